/* The table of sample layers that tests and `axonn selftest` run over. */
#include "axonn/nn.h"

static ax_layer *mlp(ax_ctx *ctx)
{
    ax_layer *const layers[] = {
        ax_layernorm(ctx, "mlp.norm", 7, AX_ROLE_MODEL, 1e-5),
        ax_linear(
            ctx, "mlp.up",
            &(ax_linear_config){
                .in = 7, .out = 13, .in_role = AX_ROLE_MODEL, .out_role = AX_ROLE_HIDDEN, .init_std = 0.5}),
        ax_gelu(ctx, "mlp.act", AX_GELU_TANH),
        ax_linear(
            ctx, "mlp.down",
            &(ax_linear_config){
                .in = 13, .out = 7, .in_role = AX_ROLE_HIDDEN, .out_role = AX_ROLE_MODEL, .init_std = 0.5})};
    return ax_sequence_of(ctx, "mlp", AX_COUNT(layers), layers);
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
