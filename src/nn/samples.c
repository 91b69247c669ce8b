/* The table of sample layers (layers.def), which the tests and `axonn selftest` check. */
#include "axonn/nn.h"

#include <stdio.h>
#include <string.h>

/* Prints NAME.PART into `out` and returns `out`. */
static const char *named(char out[32], const char *name, const char *part)
{
    snprintf(out, 32, "%s.%s", name, part);
    return out;
}

static ax_layer *mlp(ax_ctx *ctx, const char *name)
{
    char a[32], b[32], c[32], d[32];
    ax_layer *const layers[] = {
        ax_layernorm(ctx, named(a, name, "norm"), 7, AX_ROLE_MODEL, 1e-5),
        ax_linear(
            ctx, named(b, name, "up"),
            &(ax_linear_config){
                .in = 7, .out = 13, .in_role = AX_ROLE_MODEL, .out_role = AX_ROLE_INNER, .init_std = 0.5}),
        ax_gelu(ctx, named(c, name, "act"), AX_GELU_TANH),
        ax_linear(
            ctx, named(d, name, "down"),
            &(ax_linear_config){
                .in = 13, .out = 7, .in_role = AX_ROLE_INNER, .out_role = AX_ROLE_MODEL, .init_std = 0.5})};
    return ax_sequence_of(ctx, name, AX_COUNT(layers), layers);
}

/* Adds a low-rank update to each linear layer and embedding of a tree. The scale 2 makes the update about as
 * large as the product with the weight, so that errors of the update are noticed. */
static ax_status add_low_rank(ax_layer *layer, int64_t rank, double dropout)
{
    if (!strcmp(layer->ops->kind, "linear"))
        AX_TRY(ax_linear_add_low_rank(layer, &(ax_low_rank){rank, 2, dropout}));
    if (!strcmp(layer->ops->kind, "embedding"))
        AX_TRY(ax_embedding_add_low_rank(layer, &(ax_low_rank){rank, 2, 0}));
    for (int i = 0; i < layer->children; i++)
        AX_TRY(add_low_rank(layer->child[i], rank, dropout));
    return AX_OK;
}

static ax_layer *low_rank(ax_layer *layer, int64_t rank, double dropout)
{
    if (layer && add_low_rank(layer, rank, dropout) != AX_OK)
        ax_layer_destroy(&layer);
    return layer;
}

/* Returns a residual layer with every kind of branch: r1 and r3 begin with a norm, r2 cannot fuse the
 * addition before it (it has no forward_sum), r4 is empty, and r5 is only a norm. The norms of r3 and r5 are
 * fused with the addition before them (forward_sum). */
static ax_layer *residual(ax_ctx *ctx)
{
    ax_layer *const branches[] = {mlp(ctx, "r1"), ax_gelu(ctx, "r2", AX_GELU_TANH), mlp(ctx, "r3"),
                                  ax_sequence(ctx, "r4"), ax_layernorm(ctx, "r5", 7, AX_ROLE_MODEL, 1e-5)};
    return ax_residual_of(ctx, "r", AX_COUNT(branches), branches);
}

#define AX_SAMPLE(name, role, width, unit, make)                                                             \
    static ax_layer *make_##name(ax_ctx *ctx) { return make; }
#include "nn/layers.def"
#undef AX_SAMPLE

const ax_layer_sample ax_layer_samples[] = {
#define AX_SAMPLE(name, role, width, unit, make) {#name, make_##name, role, width, unit},
#include "nn/layers.def"
#undef AX_SAMPLE
};

const int ax_layer_sample_count = AX_COUNT(ax_layer_samples);
