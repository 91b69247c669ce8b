/* Sizes that a program gives to layers and caches: those below 1 and those that overflow are AX_ERR_USAGE,
 * and the message names the parameter and the sizes. */
#include "axonn/nn.h"
#include "support/check.h"

static ax_comm *self;
static ax_ctx *ctx;

static int open_context(void **state)
{
    (void)state;
    OK(ax_comm_self_create(&self));
    OK(ax_ctx_create(self, (ax_grid_size){{1}}, "ref", 1, AX_F32, 1, &ctx));
    return 0;
}

static int close_context(void **state)
{
    (void)state;
    ax_ctx_destroy(&ctx);
    ax_comm_destroy(&self);
    return 0;
}

static ax_layer *linear(int64_t in, int64_t out, ax_role out_role)
{
    return ax_linear(
        ctx, "l", &(ax_linear_config){.in = in, .out = out, .in_role = AX_ROLE_MODEL, .out_role = out_role});
}

static ax_layer *mlp(int64_t width, int64_t ffn)
{
    return ax_mlp(ctx, "m", &(ax_mlp_config){.width = width, .ffn = ffn, .activation = AX_SILU});
}

static ax_layer *attention(int64_t width, int64_t heads)
{
    return ax_attention(ctx, "a", &(ax_attention_config){.width = width, .heads = heads});
}

static ax_layer *windowed(int64_t window)
{
    return ax_attention(ctx, "a", &(ax_attention_config){.width = 4, .heads = 2, .window = window});
}

static ax_layer *embedding(int64_t vocab, int64_t positions, int64_t width)
{
    return ax_embedding(ctx, "e",
                        &(ax_embedding_config){.vocab = vocab, .positions = positions, .width = width});
}

static void refused(const char *text, ax_layer *layer)
{
    assert_null(layer);
    FAILS(AX_ERR_USAGE, text, ax_error_status());
}

static void sizes_below_1_are_refused(void **state)
{
    (void)state;
    refused("parameter l.weight: dim 1 has 0 entries", linear(0, 3, AX_ROLE_INNER));
    refused("parameter l.weight: dim 0 has -3 entries", linear(2, -3, AX_ROLE_INNER));
    refused("parameter l.weight: dim 0 has 0 entries", linear(2, 0, AX_ROLE_VOCAB));
    refused("parameter n.weight: dim 0 has -1 entries", ax_layernorm(ctx, "n", -1, AX_ROLE_MODEL, 1e-5));
    refused("parameter m.up.weight: dim 0 has -4 entries", mlp(4, -4));
    refused("parameter a.q.weight: dim 0 has -4 entries", attention(-4, 2));
    refused("parameter a.q.weight: dim 0 has 0 entries", attention(0, 2));
    refused("attention \"a\": window = -1", windowed(-1));
    refused("parameter e.tokens: dim 0 has 0 entries", embedding(0, 2, 4));
    refused("parameter e.positions: dim 0 has -2 entries", embedding(3, -2, 4));
}

static void sizes_that_overflow_are_refused(void **state)
{
    (void)state;
    const int64_t big = INT64_C(1) << 32;
    refused("l.weight: a tensor of shape 4294967296 x 4294967296 is too large",
            linear(big, big, AX_ROLE_INNER));
    refused("l.weight: a tensor of shape 9223372036854775807 x 2", linear(2, INT64_MAX, AX_ROLE_VOCAB));
    refused("n.weight: a tensor of shape 9223372036854775807 is too large",
            ax_layernorm(ctx, "n", INT64_MAX, AX_ROLE_MODEL, 1e-5));
    refused("m.up.weight: a tensor of shape 4294967296 x 4294967296", mlp(big, big));
    refused("a.q.weight: a tensor of shape 4294967296 x 4294967296", attention(big, 2));
    refused("e.tokens: a tensor of shape 3 x 4611686018427387904", embedding(3, 2, INT64_C(1) << 62));
    ax_layer *unit = ax_linear(
        ctx, "l",
        &(ax_linear_config){
            .in = 2, .out = 3, .in_role = AX_ROLE_MODEL, .out_role = AX_ROLE_INNER, .out_unit = INT64_MAX});
    refused("has the split unit 9223372036854775807", unit);
}

static void a_tied_weight_must_have_the_sizes_of_the_layer(void **state)
{
    (void)state;
    ax_layer *table = embedding(9, 0, 4);
    assert_non_null(table);
    ax_linear_config head = {.in = 4,
                             .out = 8,
                             .in_role = AX_ROLE_MODEL,
                             .out_role = AX_ROLE_VOCAB,
                             .no_bias = true,
                             .tied = table->param[0]};
    refused("the tied parameter e.tokens must be [out, in] = [8, 4]", ax_linear(ctx, "head", &head));
    ax_layer_destroy(&table);
}

static void sizes_of_caches_are_checked(void **state)
{
    (void)state;
    ax_layer *layer = attention(4, 2);
    ax_kv_cache *cache;
    assert_non_null(layer);
    FAILS(AX_ERR_USAGE, "negative", ax_kv_cache_create(ctx, layer, -1, 8, &cache));
    FAILS(AX_ERR_USAGE, "too large", ax_kv_cache_create(ctx, layer, 2, INT64_C(1) << 62, &cache));
    ax_layer_destroy(&layer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sizes_below_1_are_refused),
                                       cmocka_unit_test(sizes_that_overflow_are_refused),
                                       cmocka_unit_test(a_tied_weight_must_have_the_sizes_of_the_layer),
                                       cmocka_unit_test(sizes_of_caches_are_checked)};
    return cmocka_run_group_tests(tests, open_context, close_context);
}
