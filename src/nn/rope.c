/* Rotary position embedding: the frequencies of its variants, and the table of cosines and sines.
 *
 * transformers computes the frequencies in fp32, and rounds the angles (frequency · position) to fp32 too. At
 * position 8192 this rounding changes an angle by up to 5e-4. Models were trained with the rounded angles, so
 * this file rounds at the same places. */
#include "nn/rope.h"

#include <math.h>
#include <stdlib.h>

#define PI 3.14159265358979323846

ax_status ax_rope_check(const ax_rope_config *c, int64_t head_dim)
{
    if (c->theta == 0)
        return AX_OK;
    AX_CHECK(head_dim % 2 == 0, AX_ERR_USAGE,
             "the width of a head, %lld, is odd; it must be even, because a rotary embedding rotates pairs",
             (long long)head_dim);
    AX_CHECK(c->theta > 1 && c->theta < 1e30, AX_ERR_USAGE, "rope_theta = %g must be above 1 and below 1e30",
             c->theta);
    AX_CHECK(c->kind == AX_ROPE_DEFAULT || (c->factor > 0 && c->factor < 1e30), AX_ERR_USAGE,
             "factor = %g of the rotary embedding must be above 0 and below 1e30", c->factor);
    AX_CHECK(c->kind < AX_ROPE_LLAMA3 || (c->original > 0 && c->original <= INT32_MAX), AX_ERR_USAGE,
             "original_max_position_embeddings = %lld of the rotary embedding must be from 1 to 2147483647",
             (long long)c->original);
    AX_CHECK(c->kind != AX_ROPE_LLAMA3 ||
                 (c->low_freq_factor > 0 && c->high_freq_factor > c->low_freq_factor),
             AX_ERR_USAGE,
             "low_freq_factor = %g and high_freq_factor = %g of the rotary embedding: the first must be "
             "positive, the second larger",
             c->low_freq_factor, c->high_freq_factor);
    AX_CHECK(
        c->kind != AX_ROPE_YARN || (c->beta_slow > 0 && c->beta_fast >= c->beta_slow), AX_ERR_USAGE,
        "beta_slow = %g and beta_fast = %g of the rotary embedding: the first must be positive, the second "
        "not smaller",
        c->beta_slow, c->beta_fast);
    return AX_OK;
}

/* Returns the frequency f as Llama 3 scales it: low frequencies are divided by c->factor, high frequencies
 * are kept, and frequencies between are interpolated. */
static float llama3_frequency(const ax_rope_config *c, float f)
{
    float factor = (float)c->factor, low = (float)c->low_freq_factor, high = (float)c->high_freq_factor,
          length = (float)(2 * PI) / f;
    if (length > (float)((double)c->original / c->low_freq_factor))
        return f / factor;
    if (length < (float)((double)c->original / c->high_freq_factor))
        return f;
    float smooth = ((float)c->original / length - low) / (high - low);
    return (1 - smooth) * f / factor + smooth * f;
}

/* Returns the index, not rounded, of the pair of elements whose angle makes `rotations` full turns over
 * c->original positions (YaRN, Peng et al. 2023, section 3.2). */
static double yarn_pair(const ax_rope_config *c, int64_t head_dim, double rotations)
{
    return (double)head_dim * log((double)c->original / (rotations * 2 * PI)) / (2 * log(c->theta));
}

/* Changes the frequencies f[] as YaRN does: divides those of slowly turning pairs of elements by c->factor,
 * and keeps those of fast pairs. For the pairs between, the result is a mixture of the divided and the kept
 * frequency, with a weight that is linear in the index of the pair. */
static void yarn_frequencies(const ax_rope_config *c, int64_t head_dim, float *f)
{
    double first = yarn_pair(c, head_dim, c->beta_fast), last = yarn_pair(c, head_dim, c->beta_slow);
    if (!c->no_truncate) {
        first = floor(first);
        last = ceil(last);
    }
    first = fmax(first, 0);
    last = fmin(last, (double)head_dim - 1);
    if (first == last)
        last += 0.001;
    for (int64_t i = 0; i < head_dim / 2; i++) {
        float ramp = ((float)i - (float)first) / (float)(last - first);
        float kept = 1 - fminf(fmaxf(ramp, 0), 1);
        f[i] = f[i] / (float)c->factor * (1 - kept) + f[i] * kept;
    }
}

void ax_rope_frequencies(const ax_rope_config *c, int64_t head_dim, float *out)
{
    for (int64_t i = 0; i < head_dim / 2; i++) {
        double theta = (float)c->theta,
               exponent = (float)(2 * i) / (float)head_dim; /* theta and exponent are rounded to fp32 */
        out[i] = 1 / (float)pow(theta, exponent);
        if (c->kind == AX_ROPE_LINEAR)
            out[i] /= (float)c->factor;
        if (c->kind == AX_ROPE_LLAMA3)
            out[i] = llama3_frequency(c, out[i]);
    }
    if (c->kind == AX_ROPE_YARN)
        yarn_frequencies(c, head_dim, out);
}

static double yarn_scale(double factor, double mscale)
{
    return factor > 1 ? 0.1 * mscale * log(factor) + 1 : 1;
}

double ax_rope_attention_factor(const ax_rope_config *c)
{
    if (c->kind != AX_ROPE_YARN)
        return 1;
    if (c->attention_factor > 0)
        return c->attention_factor;
    if (c->mscale > 0 && c->mscale_all_dim > 0)
        return yarn_scale(c->factor, c->mscale) / yarn_scale(c->factor, c->mscale_all_dim);
    return yarn_scale(c->factor, 1);
}

/* ---- the table of cosines and sines -------------------------------------------------------------- */

size_t ax_rope_table_bytes(const ax_tensor *table)
{
    return table->ndim ? (size_t)ax_tensor_global_count(table) * sizeof(float) : 0;
}

/* Fills `table`, [positions, pairs, 2] in host memory, with cosine and sine of each angle. `f`: the frequency
 * of each pair. */
static void fill(const ax_rope_config *c, const float *f, int64_t positions, int64_t pairs, float *table)
{
    const float factor = (float)ax_rope_attention_factor(c);
    for (int64_t p = 0; p < positions; p++)
        for (int64_t i = 0; i < pairs; i++) {
            double angle = (float)p * f[i]; /* the product is rounded to fp32, as in transformers */
            table[2 * (p * pairs + i)] = (float)cos(angle) * factor;
            table[2 * (p * pairs + i) + 1] = (float)sin(angle) * factor;
        }
}

static ax_status fill_and_copy(ax_ctx *ctx, const ax_rope_config *c, const ax_tensor *table, float *f)
{
    float *host;
    if (ctx->dev->ops.imaginary) /* nothing reads the table */
        return AX_OK;
    AX_TRY(ax_calloc(1, ax_rope_table_bytes(table), &host));
    ax_rope_frequencies(c, 2 * table->dim[1], f);
    fill(c, f, table->dim[0], table->dim[1], host);
    ax_status status = ax_copy_in(ctx->stream, table->data, host, ax_rope_table_bytes(table));
    free(host);
    return status;
}

ax_status ax_rope_table_make(ax_ctx *ctx, const ax_rope_config *c, int64_t head_dim, int64_t positions,
                             ax_tensor *out)
{
    float *f;
    ax_tensor table = ax_tensor_make(AX_F32, 3, (int64_t[]){positions, head_dim / 2, 2}, NULL, NULL);
    AX_TRY(ax_rope_check(c, head_dim));
    AX_CHECK(positions > 0, AX_ERR_USAGE, "a rotary embedding needs at least 1 position, not %lld",
             (long long)positions);
    AX_TRY(ax_tensor_check(&table));
    AX_TRY(ax_ctx_alloc(ctx, AX_MEMORY_TABLES, ax_rope_table_bytes(&table), &table.data));
    *out = table;
    AX_TRY(ax_calloc((size_t)head_dim, sizeof *f, &f));
    ax_status status = fill_and_copy(ctx, c, &table, f);
    free(f);
    return status;
}

void ax_rope_table_free(ax_ctx *ctx, ax_tensor *table)
{
    if (table->data)
        ax_ctx_free(ctx, AX_MEMORY_TABLES, table->data, ax_rope_table_bytes(table));
    *table = (ax_tensor){0};
}
