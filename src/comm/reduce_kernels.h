/* Sums and maxima over the arrays of several ranks. Each reduce_<isa>.c includes this file once, after it has
 * defined AX_REDUCE_TABLE and set the compiler's target. Vectors are GCC vector extensions of 64 bytes; the
 * compiler splits them where registers are narrower. All functions are static: the linker could otherwise use
 * one instruction set's function in place of another's. */
#include "comm/reduce.h"

#include <string.h>

/* In C a vector comparison gives a vector of integers of the same width (0 or -1). */
typedef double f64 __attribute__((vector_size(64)));
typedef float f32 __attribute__((vector_size(64)));
typedef int32_t i32 __attribute__((vector_size(64)));
typedef int64_t i64 __attribute__((vector_size(64)));
typedef uint32_t u32 __attribute__((vector_size(64)));
typedef uint16_t u16 __attribute__((vector_size(32)));

/* FLIGHT is the number of 64-byte vectors per iteration: enough to hide the latency of loads, few enough for
 * AVX2's 16 registers of 32 bytes. */
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

/* Stores v as bf16, as ax_bf16_from_float does: rounds to nearest even; a NaN stays a NaN. */
#define SAVE_BF16(p, v)                                                                                      \
    do {                                                                                                     \
        u32 bits = (u32)(v), nan = (u32)((v) != (v));                                                        \
        u32 rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40;                   \
        u16 half = __builtin_convertvector((nan & quiet) | (~nan & rounded), u16);                           \
        memcpy(p, &half, sizeof half);                                                                       \
    } while (0)

/* Loads f16 values into v, as ax_f16_to_float does: one case for subnormal, one for normal, one for infinite
 * and NaN values. */
#define LOAD_F16(v, p)                                                                                       \
    do {                                                                                                     \
        u16 half;                                                                                            \
        memcpy(&half, p, sizeof half);                                                                       \
        u32 all = __builtin_convertvector(half, u32), sign = (all & 0x8000) << 16, bits = all & 0x7fff;      \
        u32 small = (u32)(bits < 0x400), beyond = (u32)(bits >= 0x7c00);                                     \
        u32 subnormal = (u32)(__builtin_convertvector((i32)bits, f32) * 0x1p-24f);                           \
        u32 normal = (bits << 13) + 0x38000000 + (beyond & 0x38000000);                                      \
        (v) = (f32)(sign | (small & subnormal) | (~small & normal));                                         \
    } while (0)

/* Stores v as f16, as ax_f16_from_float does. */
#define SAVE_F16(p, v)                                                                                       \
    do {                                                                                                     \
        u32 all = (u32)(v), sign = all >> 16 & 0x8000, bits = all & 0x7fffffff;                              \
        u32 nan = (u32)(bits > 0x7f800000), over = (u32)(bits >= 0x477ff000);                                \
        u32 small = (u32)(bits < 0x38800000);                                                                \
        u32 subnormal = (u32)((f32)bits + 0.5f) - 0x3f000000;                                                \
        u32 normal = (bits - 0x38000000 + 0xfff + (bits >> 13 & 1)) >> 13;                                   \
        u32 beyond = 0x7c00 | (nan & (0x200 | (bits >> 13 & 0x3ff)));                                        \
        u32 out = (small & subnormal) | (over & beyond) | (~(small | over) & normal);                        \
        u16 half = __builtin_convertvector(sign | out, u16);                                                 \
        memcpy(p, &half, sizeof half);                                                                       \
    } while (0)

#define SUM(mask, acc, x) (acc) += (x)
#define MAX(mask, acc, x)                                                                                    \
    do {                                                                                                     \
        mask take = (mask)((x) > (acc)) | (mask)((x) != (x));                                                \
        (acc) = (__typeof__(acc))(((mask)(x)&take) | ((mask)(acc) & ~take));                                 \
    } while (0)

/* Defines a reduction function (ax_reduce_fn). `elem` is the type in memory, `vec` the vector type of
 * accumulation, `lane` the type of its elements, and `mask` the integer vector type of comparisons of `vec`.
 * Elements at the end that do not fill a vector are copied to a buffer of one vector and use the same
 * operations, so that their results have the same bits. */
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
