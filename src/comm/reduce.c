/* Sums and maxima over ranks, in rank order: the same bits wherever they are computed. */
#include "comm/reduce.h"

#define PLAIN(x) (x)

/* One function per element type: `acc` is the type of accumulation, `load` and `save` convert. */
#define DEFINE_REDUCE(name, type, acc_type, load, save)                                                      \
    static void name(ax_reduce_op op, int n, const void *const *src, int64_t first, int64_t count,           \
                     void *out)                                                                              \
    {                                                                                                        \
        acc_type acc[AX_REDUCE_BLOCK];                                                                       \
        const type *x = (const type *)src[0] + first;                                                        \
        for (int64_t i = 0; i < count; i++)                                                                  \
            acc[i] = load(x[i]);                                                                             \
        for (int r = 1; r < n; r++) {                                                                        \
            x = (const type *)src[r] + first;                                                                \
            for (int64_t i = 0; i < count && op == AX_SUM; i++)                                              \
                acc[i] += load(x[i]);                                                                        \
            for (int64_t i = 0; i < count && op == AX_MAX; i++) {                                            \
                acc_type v = load(x[i]);                                                                     \
                acc[i] = v > acc[i] || v != v ? v : acc[i];                                                  \
            }                                                                                                \
        }                                                                                                    \
        type *y = out;                                                                                       \
        for (int64_t i = 0; i < count; i++)                                                                  \
            y[i] = save(acc[i]);                                                                             \
    }

DEFINE_REDUCE(reduce_f64, double, double, PLAIN, PLAIN)
DEFINE_REDUCE(reduce_f32, float, float, PLAIN, PLAIN)
DEFINE_REDUCE(reduce_bf16, uint16_t, float, ax_bf16_to_float, ax_bf16_from_float)
DEFINE_REDUCE(reduce_i32, int32_t, int32_t, PLAIN, PLAIN)
DEFINE_REDUCE(reduce_i64, int64_t, int64_t, PLAIN, PLAIN)

void ax_reduce_block(ax_dtype dtype, ax_reduce_op op, int n, const void *const *src, int64_t first,
                     int64_t count, void *out)
{
    AX_ASSERT(count <= AX_REDUCE_BLOCK);
    switch (dtype) {
    case AX_F64:
        reduce_f64(op, n, src, first, count, out);
        break;
    case AX_F32:
        reduce_f32(op, n, src, first, count, out);
        break;
    case AX_BF16:
        reduce_bf16(op, n, src, first, count, out);
        break;
    case AX_I32:
        reduce_i32(op, n, src, first, count, out);
        break;
    case AX_I64:
        reduce_i64(op, n, src, first, count, out);
        break;
    default:
        AX_ASSERT(!"the public collectives refuse other dtypes");
    }
}
