/* GEMM in tiles: parts of the operands, which may have any floating-point dtype and be transposed, are
 * converted to tiles of doubles. */
#include "dev/backend.h"
#include "dev/ref/ref.h"

#include <string.h>

enum { TILE = 32 };
typedef double tile[TILE][TILE];

typedef struct matrix {
    const void *data;
    int64_t ld;
    ax_dtype dtype;
    bool trans;
} matrix;

/* Reads `rows` rows from r0 on and `cols` columns from c0 on of op(matrix) into `out`, whose other elements
 * become zeros. */
static void read_tile(const matrix *m, int64_t r0, int64_t c0, int64_t rows, int64_t cols, tile out)
{
    memset(out, 0, sizeof(tile));
    if (!m->trans)
        for (int64_t r = 0; r < rows; r++)
            ref_read(m->dtype, m->data, (r0 + r) * m->ld + c0, cols, out[r]);
    else
        for (int64_t c = 0; c < cols; c++) {
            double column[TILE];
            ref_read(m->dtype, m->data, (c0 + c) * m->ld + r0, rows, column);
            for (int64_t r = 0; r < rows; r++)
                out[r][c] = column[r];
        }
}

/* Adds a·b to the first `rows` rows of c; each element of c is summed over ascending k. */
static void multiply(tile a, tile b, int64_t rows, int64_t k, tile c)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t p = 0; p < k; p++) {
            double *restrict sum = c[i], scale = a[i][p];
            const double *restrict row = b[p];
            for (int j = 0; j < TILE; j++)
                sum[j] += scale * row[j];
        }
}

static void write_tile(const ax_gemm_args *g, int64_t i0, int64_t j0, int64_t rows, int64_t cols, tile sum)
{
    for (int64_t i = 0; i < rows; i++) {
        int64_t at = (i0 + i) * g->ldc + j0;
        double old[TILE];
        if (g->bias) {
            double bias[TILE];
            ref_read(ax_dtype_accum(g->dtype), g->bias, j0, cols, bias);
            for (int64_t j = 0; j < cols; j++)
                sum[i][j] += bias[j];
        }
        if (g->accumulate) {
            ref_read(g->c_dtype, g->c, at, cols, old);
            for (int64_t j = 0; j < cols; j++)
                sum[i][j] += old[j];
        }
        ref_write(g->c_dtype, g->c, at, cols, sum[i]);
    }
}

ax_status ref_gemm(ax_stream *stream, const void *args)
{
    const ax_gemm_args *g = args;
    if (g->epilogue || g->col_sums)
        return ax_gemm_in_two(stream, g, ax_backend_ref.kernel);
    const matrix ma = {g->a, g->lda, g->dtype, g->trans_a}, mb = {g->b, g->ldb, g->dtype, g->trans_b};
    for (int64_t i0 = 0; i0 < g->m; i0 += TILE)
        for (int64_t j0 = 0; j0 < g->n; j0 += TILE) {
            int64_t rows = ax_min(TILE, g->m - i0), cols = ax_min(TILE, g->n - j0);
            tile a, b, c;
            memset(c, 0, sizeof c);
            for (int64_t k0 = 0; k0 < g->k; k0 += TILE) {
                int64_t depth = ax_min(TILE, g->k - k0);
                read_tile(&ma, i0, k0, rows, depth, a);
                read_tile(&mb, k0, j0, depth, cols, b);
                multiply(a, b, rows, depth, c);
            }
            write_tile(g, i0, j0, rows, cols, c);
        }
    return AX_OK;
}
