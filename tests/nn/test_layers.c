/* Every layer of layers.def: its gradients against finite differences in float64 on the reference device, and
 * its values and gradients on grids of up to 8 thread-ranks over x, y, z and data against the serial run:
 * some for each layer, all in the campaign. */
#include "axonn/nn.h"

#include "support/sampled.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void gradients_match_finite_differences(void **state)
{
    (void)state;
    for (int s = 0; s < ax_layer_sample_count; s += one_of(1, 3)) { /* on grids sanitizers see all layers */
        double worst;
        if (ax_layer_check_gradient(&ax_layer_samples[s], &worst) != AX_OK)
            fail_msg("%s: %s", ax_layer_samples[s].name, ax_error_message());
        printf("%-20s worst relative gradient error %.1e\n", ax_layer_samples[s].name, worst);
        assert_true(worst < 1e-6);
    }
}

/* Whether the grid is illegal for a sample with grouped-query attention: it has more ranks along x than the
 * sample has key heads, and not a multiple of them. */
static bool is_refused(const ax_layer_sample *sample, int x)
{
    static const struct {
        const char *name;
        int kv_heads;
    } shared[] = {{"attention_grouped", 3},    {"attention_shared", 2},     {"attention_dropout", 2},
                  {"attention_head_dim", 2},   {"attention_window", 2},     {"attention_rope", 2},
                  {"attention_head_norms", 2}, {"attention_wide_norms", 2}, {"low_rank_attention", 2}};
    for (size_t i = 0; i < AX_COUNT(shared); i++)
        if (!strcmp(sample->name, shared[i].name))
            return x > shared[i].kv_heads && x % shared[i].kv_heads;
    return false;
}

/* Returns the number of the sample's experts, among so many ranks at most they can be divided; for samples
 * without experts a number above that of ranks. */
static int experts_of(const ax_layer_sample *sample)
{
    static const struct {
        const char *name;
        int experts;
    } few[] = {{"moe_top1", 4}, {"moe_top2", 5}, {"moe_capacity", 3}};
    for (size_t i = 0; i < AX_COUNT(few); i++)
        if (!strcmp(sample->name, few[i].name))
            return few[i].experts;
    return 9;
}

/* In float64 a grid only reorders sums of at most a few hundred terms: 1e-12 is 1e4 roundings. With ZeRO 1
 * and 3, ranks have memory for the mean number of rows of experts: those with more compute them in rounds. */
static void on_grid(const ax_layer_sample *sample, ax_grid_size grid, int zero, const char *device)
{
    double worst;
    bool overlap = zero != 2;
    ax_parallel parallel = {.zero = zero,
                            .overlap = {.oar = overlap, .ors = overlap, .oag = overlap, .dtd = overlap},
                            .weight_cache = zero == 3 ? 1 << 20 : 0,
                            .keep_results = zero % 3,
                            .expert_room = zero % 2};
    ax_status status = ax_layer_check_grid(sample, grid, &parallel, device, &worst);
    if (is_refused(sample, grid.of[AX_X])) {
        assert_int_equal(status, AX_ERR_USAGE);
        assert_non_null(strstr(ax_error_message(), "ranks along x cannot split"));
        return;
    }
    char text[80];
    if (status != AX_OK)
        fail_msg("%s on %s, zero %d: %s", sample->name, ax_grid_size_print(grid, text), zero,
                 ax_error_message());
    if (!(worst < 1e-12))
        fail_msg("%s on %s, zero %d, %s: off by %.1e", sample->name, ax_grid_size_print(grid, text), zero,
                 device, worst);
}

static void layers_on_grids_equal_one_rank(void **state)
{
    (void)state;
    int pairs = 0, each = one_of(11, 53); /* primes, so that each layer meets other grids */
    for (int s = 0; s < ax_layer_sample_count; s++) {
        for (int x = 1; x <= 8; x++)
            for (int y = 1; x * y <= 8; y++)
                for (int z = 1; x * y * z <= 8; z++)
                    for (int d = 1; x * y * z * d <= 8; d++)
                        for (int zero = 0; zero < (d > 1 ? 4 : 1); zero++)
                            if (pairs++ % each == 0)
                                on_grid(&ax_layer_samples[s], (ax_grid_size){{x, y, z, 1, d}}, zero,
                                        zero && z == 2 && d == 2 ? "check" : "ref");
    }
    printf("%d layer and grid pairs\n", (pairs + each - 1) / each);
}

/* Calls on_grid for all samples on all grids of up to eight ranks whose experts are divided among several,
 * each with one of the four ZeRO stages; every `each`-th pair. Samples without experts get their batch split
 * along the factors of data. */
static int on_grids_with_experts(int each)
{
    int pairs = 0;
    for (int s = 0; s < ax_layer_sample_count; s++)
        for (int x = 1; x <= 4; x++)
            for (int y = 1; x * y <= 4; y++)
                for (int z = 1; x * y * z <= 4; z++)
                    for (int d = 2; x * y * z * d <= 8; d++)
                        for (int e = 2; e <= d && e <= experts_of(&ax_layer_samples[s]); e++)
                            if (d % e == 0 && pairs++ % each == 0)
                                on_grid(&ax_layer_samples[s], (ax_grid_size){{x, y, z, 1, d, e}},
                                        pairs / each % 4, z == 2 ? "check" : "ref");
    return (pairs + each - 1) / each;
}

static void layers_with_divided_experts_equal_one_rank(void **state)
{
    (void)state;
    printf("%d layer and grid pairs\n", on_grids_with_experts(one_of(11, 53)));
}

/* The outermost constructor returns status and message of a constructor deep in the tree that failed, and no
 * memory leaks. */
static void errors_of_inner_constructors_are_returned(void **state)
{
    (void)state;
    ax_comm *self;
    ax_ctx *ctx;
    assert_int_equal(ax_comm_self_create(&self), AX_OK);
    assert_int_equal(ax_ctx_create(self, (ax_grid_size){{1}}, "ref", 1, AX_F64, 1, &ctx), AX_OK);
    ax_layer *inner[] = {ax_dropout(ctx, "wrong", 2), ax_gelu(ctx, "g", AX_GELU_TANH)};
    ax_layer *branch[] = {ax_sequence_of(ctx, "inner", AX_COUNT(inner), inner)};
    ax_layer *outer[] = {ax_layernorm(ctx, "n", 7, AX_ROLE_MODEL, 1e-5), ax_residual_of(ctx, "r", 1, branch),
                         ax_gelu(ctx, "h", AX_GELU_TANH)};
    assert_null(ax_sequence_of(ctx, "outer", AX_COUNT(outer), outer));
    assert_int_equal(ax_error_status(), AX_ERR_USAGE);
    assert_string_equal(ax_error_message(), "dropout \"wrong\": p = 2 is not in [0, 1]");
    ax_layer *good[] = {ax_gelu(ctx, "g", AX_GELU_TANH), ax_gelu(ctx, "h", AX_GELU_EXACT)};
    ax_layer *net = ax_sequence_of(ctx, "good", AX_COUNT(good), good);
    assert_non_null(net);
    assert_int_equal(net->children, 2);
    ax_layer_destroy(&net);
    ax_ctx_destroy(&ctx);
    ax_comm_destroy(&self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gradients_match_finite_differences),
                                       cmocka_unit_test(layers_on_grids_equal_one_rank),
                                       cmocka_unit_test(layers_with_divided_experts_equal_one_rank),
                                       cmocka_unit_test(errors_of_inner_constructors_are_returned)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
