/* Merges an adapter with its base model: computes W + scale · B·A for each array W of weights that has
 * factors A and B. The network is not built. */
#include "infer/adapter.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- which arrays have factors ------------------------------------------------------------------- */

const ax_st_array *ax_merge_tied(const ax_pretrained *m, const char **key)
{
    const ax_model_config *c = &m->config;
    const char *head, *table, *prefix = ax_family_prefix(c->family);
    ax_family_tied(c->family, &head, &table);
    const ax_st_array *of_head = ax_ckpt_find_array(m->weights, head, prefix),
                      *of_table = ax_ckpt_find_array(m->weights, table, prefix);
    *key = of_head ? table : head;
    if (!ax_model_config_is_untied_by_adapter(c) || (of_head && of_table))
        return NULL;
    return of_head ? of_head : of_table;
}

/* Returns true if the array `weights` of the base, which becomes the array `key` of the merged model, holds
 * the matrix with this name. */
static bool holds(const ax_pretrained *m, const ax_st_array *weights, const char *key, const char *matrix)
{
    return !strcmp(key, weights->key)
               ? ax_ckpt_find_array(m->weights, matrix, ax_family_prefix(m->config.family)) == weights
               : !strcmp(key, matrix);
}

ax_status ax_merge_factors(const ax_pretrained *m, const ax_st_array *weights, const char *name,
                           ax_merge_pair *out)
{
    const ax_family *family = m->config.family;
    char key[256], factor[256];
    *out = (ax_merge_pair){0};
    for (int i = 0; i < AX_MATRIX_COUNT; i++)
        for (int64_t block = 0; block < ax_model_config_matrix_count(&m->config, (ax_matrix)i); block++) {
            const ax_low_rank *update = ax_model_config_update(&m->config, (ax_matrix)i, block);
            if (!update->rank)
                continue;
            ax_family_matrix_key(family, (ax_matrix)i, block, key);
            if (!holds(m, weights, name, key))
                continue;
            ax_family_low_rank_key(family, (ax_matrix)i, block, 'A', factor);
            out->a = ax_st_find(m->adapter, factor);
            ax_family_low_rank_key(family, (ax_matrix)i, block, 'B', factor);
            out->b = ax_st_find(m->adapter, factor);
            out->scale = update->scale;
            AX_CHECK(out->a && out->b, AX_ERR_DATA,
                     "the adapter %s lacks factor %s of the low-rank update of %s: its files are incomplete; "
                     "copy them again",
                     m->dir, out->a ? "B" : "A", key);
            /* B·A is [out, in]; files that store weights as [in, out] need the transpose of B·A, which is
             * Aᵀ·Bᵀ. */
            out->transposed = weights->dim[0] == out->a->dim[1] && weights->dim[1] == out->b->dim[0] &&
                              ax_family_is_transposed(family, (ax_matrix)i);
            return AX_OK;
        }
    return AX_OK;
}

/* ---- sums ---------------------------------------------------------------------------------------- */

/* The rows [first, first + n) of an array of `cols` columns, and the two factors of the array's low-rank
 * update: left [rows of the array, rank], multiplied by the scale of the update, and right [rank, cols].
 * values [n, cols]: the elements of these rows. */
typedef struct strip {
    int64_t first, n, cols, rank;
    const double *left, *right;
    double *values;
} strip;

static void add_product(const strip *s)
{
    for (int64_t r = 0; r < s->n; r++) {
        double *row = s->values + r * s->cols;
        for (int64_t k = 0; k < s->rank; k++) {
            double factor = s->left[(s->first + r) * s->rank + k];
            const double *right = s->right + k * s->cols;
            for (int64_t c = 0; c < s->cols; c++)
                row[c] += factor * right[c];
        }
    }
}

/* Returns how many finite values become infinite in fp16, the only dtype with such a small range. */
static int64_t count_overflows(const strip *s, ax_dtype dtype)
{
    const double least = 65520; /* fp16 rounds this value to 65536, which is infinite in fp16 */
    int64_t count = 0;
    for (int64_t i = 0; i < s->n * s->cols && dtype == AX_F16; i++)
        count += isfinite(s->values[i]) && fabs(s->values[i]) >= least;
    return count;
}

static ax_status read_factors(const ax_pretrained *m, const ax_merge_pair *p, double *left, double *right)
{
    const ax_st_array *l = p->transposed ? p->a : p->b, *r = p->transposed ? p->b : p->a;
    AX_TRY(ax_st_read(m->adapter, l, NULL, NULL, p->transposed, AX_F64, left));
    AX_TRY(ax_st_read(m->adapter, r, NULL, NULL, p->transposed, AX_F64, right));
    for (int64_t i = 0; i < ax_st_elements(l); i++)
        left[i] *= p->scale;
    return AX_OK;
}

static ax_status merge_strips(const ax_pretrained *m, const ax_st_array *from, ax_st *to,
                              const ax_st_array *b, strip *s, int64_t most, int64_t *overflows)
{
    for (s->first = 0; s->first < from->dim[0]; s->first += most) {
        s->n = ax_min(most, from->dim[0] - s->first);
        const int64_t lo[] = {s->first, 0}, n[] = {s->n, s->cols};
        AX_TRY(ax_st_read(m->weights, from, lo, n, false, AX_F64, s->values));
        add_product(s);
        *overflows += count_overflows(s, b->dtype);
        AX_TRY(ax_st_write(to, b, lo, n, false, AX_F64, s->values));
    }
    return AX_OK;
}

ax_status ax_merge_array(const ax_pretrained *m, const ax_merge_pair *pair, const ax_st_array *from,
                         ax_st *to, const ax_st_array *b, int64_t *overflows)
{
    enum { STRIP = 1 << 18 }; /* elements of the array in memory at a time, but at least one row */
    double *left = NULL, *right = NULL;
    strip s = {.cols = from->dim[1], .rank = pair->a->dim[0]};
    int64_t most = ax_max(STRIP / s.cols, 1);
    ax_status status = ax_calloc((size_t)(from->dim[0] * s.rank), sizeof *left, &left);
    if (status == AX_OK)
        status = ax_calloc((size_t)(s.cols * s.rank), sizeof *right, &right);
    if (status == AX_OK)
        status = ax_calloc((size_t)(most * s.cols), sizeof *s.values, &s.values);
    if (status == AX_OK)
        status = read_factors(m, pair, left, right);
    s.left = left;
    s.right = right;
    if (status == AX_OK)
        status = merge_strips(m, from, to, b, &s, most, overflows);
    free(left);
    free(right);
    free(s.values);
    return status;
}
