/* Sums and maxima over ranks: included once per instruction set by reduce_<isa>.c, which sets AX_REDUCE_TABLE
 * and switches the compiler to the set. Vectors of 64 bytes are the compiler's own; where registers are
 * narrower it uses several. AX_REDUCE_F16C: the set has conversions of fp16. Everything here is static, so no
 * code of one set leaks into another. */
#include "comm/reduce.h"

#include <string.h>

/* In C the condition of a vector comparison is a vector of integers of the same width. */
typedef double f64 __attribute__((vector_size(64)));
typedef float f32 __attribute__((vector_size(64)));
typedef int32_t i32 __attribute__((vector_size(64)));
typedef int64_t i64 __attribute__((vector_size(64)));
typedef uint32_t u32 __attribute__((vector_size(64)));
typedef uint16_t u16 __attribute__((vector_size(32)));

/* Vectors in flight: enough to hide a load's latency, few enough for 16 registers of 32 bytes. */
enum { FLIGHT = 4 };
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 4")
#endif

#define LOAD_PLAIN(v, p) memcpy(&(v), p, sizeof(v))
#define SAVE_PLAIN(p, v) memcpy(p, &(v), sizeof(v))

#define LOAD_BF16(v, p)                                                                                      \
    do {                                                                                                     \
        u16 half;                                                                                            \
        memcpy(&half, p, sizeof half);                                                                       \
        (v) = (f32)(__builtin_convertvector(half, u32) << 16);                                               \
    } while (0)

/* To nearest even; a NaN stays one, as in ax_bf16_from_float. */
#define SAVE_BF16(p, v)                                                                                      \
    do {                                                                                                     \
        u32 bits = (u32)(v), nan = (u32)((v) != (v));                                                        \
        u32 rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40;                   \
        u16 half = __builtin_convertvector((nan & quiet) | (~nan & rounded), u16);                           \
        memcpy(p, &half, sizeof half);                                                                       \
    } while (0)

/* Both sets of instructions round to nearest even and keep a NaN, as ax_f16_from_float. */
#ifdef AX_REDUCE_F16C
#define LOAD_F16(v, p)                                                                                       \
    do {                                                                                                     \
        __m128i half[2];                                                                                     \
        memcpy(half, p, sizeof half);                                                                        \
        __m256 wide[2] = {_mm256_cvtph_ps(half[0]), _mm256_cvtph_ps(half[1])};                               \
        memcpy(&(v), wide, sizeof wide);                                                                     \
    } while (0)
#define SAVE_F16(p, v)                                                                                       \
    do {                                                                                                     \
        __m256 wide[2];                                                                                      \
        memcpy(wide, &(v), sizeof wide);                                                                     \
        __m128i half[2] = {_mm256_cvtps_ph(wide[0], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),          \
                           _mm256_cvtps_ph(wide[1], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};         \
        memcpy(p, half, sizeof half);                                                                        \
    } while (0)
#else
#define LOAD_F16(v, p)                                                                                       \
    for (size_t lane = 0; lane < sizeof(v) / sizeof(float); lane++)                                          \
    (v)[lane] = ax_f16_to_float((p)[lane])
#define SAVE_F16(p, v)                                                                                       \
    for (size_t lane = 0; lane < sizeof(v) / sizeof(float); lane++)                                          \
    (p)[lane] = ax_f16_from_float((v)[lane])
#endif

#define SUM(mask, acc, x) (acc) += (x)
#define MAX(mask, acc, x)                                                                                    \
    do {                                                                                                     \
        mask take = (mask)((x) > (acc)) | (mask)((x) != (x));                                                \
        (acc) = (__typeof__(acc))(((mask)(x)&take) | ((mask)(acc) & ~take));                                 \
    } while (0)

/* `elem` is what memory holds, `vec` the type of accumulation: sizeof(vec) / sizeof(lane) elements at a time.
 * What is left over goes through the same code, in a buffer of one vector. */
#define DEFINE(name, elem, lane, vec, mask, LOAD, SAVE, COMBINE)                                             \
    static void name(int n, const void *const *src, int m, void *const *dst, int64_t count)                  \
    {                                                                                                        \
        enum { LANES = sizeof(vec) / sizeof(lane) };                                                         \
        int64_t i = 0;                                                                                       \
        for (; i + FLIGHT * LANES <= count; i += FLIGHT * LANES) {                                           \
            vec acc[FLIGHT], x;                                                                              \
            const elem *s = (const elem *)src[0] + i;                                                        \
            UNROLL                                                                                           \
            for (int k = 0; k < FLIGHT; k++)                                                                 \
                LOAD(acc[k], s + k * LANES);                                                                 \
            for (int r = 1; r < n; r++) {                                                                    \
                s = (const elem *)src[r] + i;                                                                \
                UNROLL                                                                                       \
                for (int k = 0; k < FLIGHT; k++) {                                                           \
                    LOAD(x, s + k * LANES);                                                                  \
                    COMBINE(mask, acc[k], x);                                                                \
                }                                                                                            \
            }                                                                                                \
            for (int j = 0; j < m; j++) {                                                                    \
                elem *d = (elem *)dst[j] + i;                                                                \
                UNROLL                                                                                       \
                for (int k = 0; k < FLIGHT; k++)                                                             \
                    SAVE(d + k * LANES, acc[k]);                                                             \
            }                                                                                                \
        }                                                                                                    \
        for (; i < count; i += LANES) {                                                                      \
            elem part[LANES] = {0};                                                                          \
            size_t bytes = (size_t)ax_min(count - i, LANES) * sizeof(elem);                                  \
            vec acc, x;                                                                                      \
            memcpy(part, (const elem *)src[0] + i, bytes);                                                   \
            LOAD(acc, part);                                                                                 \
            for (int r = 1; r < n; r++) {                                                                    \
                memcpy(part, (const elem *)src[r] + i, bytes);                                               \
                LOAD(x, part);                                                                               \
                COMBINE(mask, acc, x);                                                                       \
            }                                                                                                \
            SAVE(part, acc);                                                                                 \
            for (int j = 0; j < m; j++)                                                                      \
                memcpy((elem *)dst[j] + i, part, bytes);                                                     \
        }                                                                                                    \
    }

#define DEFINE_BOTH(name, elem, lane, vec, mask, LOAD, SAVE)                                                 \
    DEFINE(name##_sum, elem, lane, vec, mask, LOAD, SAVE, SUM)                                               \
    DEFINE(name##_max, elem, lane, vec, mask, LOAD, SAVE, MAX)

DEFINE_BOTH(reduce_f64, double, double, f64, i64, LOAD_PLAIN, SAVE_PLAIN)
DEFINE_BOTH(reduce_f32, float, float, f32, i32, LOAD_PLAIN, SAVE_PLAIN)
DEFINE_BOTH(reduce_bf16, uint16_t, float, f32, i32, LOAD_BF16, SAVE_BF16)
DEFINE_BOTH(reduce_f16, uint16_t, float, f32, i32, LOAD_F16, SAVE_F16)
DEFINE_BOTH(reduce_i32, int32_t, int32_t, i32, i32, LOAD_PLAIN, SAVE_PLAIN)
DEFINE_BOTH(reduce_i64, int64_t, int64_t, i64, i64, LOAD_PLAIN, SAVE_PLAIN)

const ax_reduce_table AX_REDUCE_TABLE = {
    [AX_REDUCE_F64] = {reduce_f64_sum, reduce_f64_max},    [AX_REDUCE_F32] = {reduce_f32_sum, reduce_f32_max},
    [AX_REDUCE_BF16] = {reduce_bf16_sum, reduce_bf16_max}, [AX_REDUCE_F16] = {reduce_f16_sum, reduce_f16_max},
    [AX_REDUCE_I32] = {reduce_i32_sum, reduce_i32_max},    [AX_REDUCE_I64] = {reduce_i64_sum, reduce_i64_max},
};
