/* parallel: the table of strategies; grids that do not fit a strategy are refused with suggestions that fit.
 */
#include "axonn/parallel.h"
#include "support/ranks.h"

#include <setjmp.h>
#include <string.h>

#include <cmocka.h>

static const ax_strategy *named(const char *name)
{
    const ax_strategy *s = NULL;
    assert_int_equal(ax_strategy_find(name, &s), AX_OK);
    return s;
}

static void strategies_are_found_by_name(void **state)
{
    (void)state;
    int n = 0;
    for (; ax_strategy_at(n); n++)
        assert_ptr_equal(named(ax_strategy_at(n)->name), ax_strategy_at(n));
    assert_int_equal(n, 5);
    const ax_strategy *none;
    assert_int_equal(ax_strategy_find("zero", &none), AX_ERR_USAGE);
    assert_non_null(strstr(ax_error_message(), "choose one of axonn, megatron, fsdp, hsdp, ddp"));
}

static void axes_that_a_strategy_lacks_are_found(void **state)
{
    (void)state;
    assert_int_equal(ax_strategy_lacks(named("axonn"), (ax_grid_size){{2, 3, 4, 1, 5}}), 0);
    assert_int_equal(ax_strategy_lacks(named("hsdp"), (ax_grid_size){{1, 1, 4, 1, 5}}), 0);
    assert_int_equal(ax_strategy_lacks(named("ddp"), (ax_grid_size){{1, 1, 2, 1, 3}}), 1 << AX_Z);
    assert_int_equal(ax_strategy_lacks(named("megatron"), (ax_grid_size){{2, 2, 2, 1, 2}}),
                     1 << AX_Y | 1 << AX_Z);
}

/* A strategy splits dims only by axes that it uses, and no layout has an axis twice. */
static ax_status rows_are_consistent(ax_comm *world, void *arg)
{
    static const ax_role weight[] = {AX_ROLE_INNER, AX_ROLE_MODEL},
                         activation[] = {AX_ROLE_BATCH, AX_ROLE_NONE, AX_ROLE_MODEL};
    char text[128];
    ax_ctx *ctx;
    (void)arg;
    AX_TRY(ax_ctx_create(world, (ax_grid_size){{1}}, "ref", 1, AX_F32, 1, &ctx));
    for (int i = 0; i < 6; i++) {
        const ax_strategy *s = ctx->parallel.strategy = i < 5 ? ax_strategy_at(i) : &ax_strategy_inference;
        ax_layout w = ax_layout_of_roles(ctx, weight, 2), a = ax_layout_of_roles(ctx, activation, 3);
        ax_layout rest = w;
        for (int k = 0; k < s->rest.n; k++)
            rest.dim[0].a[rest.dim[0].n++] = s->rest.a[k];
        w.partial = ax_batch_axes(ctx);
        EXPECT(ax_layout_check(ctx->grid, &w, 2) == AX_OK && ax_layout_check(ctx->grid, &a, 3) == AX_OK);
        EXPECT(ax_layout_check(ctx->grid, &rest, 2) == AX_OK);
        EXPECT(!((ax_layout_split_axes(&rest, 2) | ax_layout_split_axes(&a, 3)) & ~s->axes));
    }
    ctx->parallel.strategy = NULL;
    ax_layout a = ax_layout_of_roles(ctx, activation, 3);
    EXPECT(!strcmp(ax_layout_print(ctx->grid, &a, 3, "btd", text), "b@z.data, t, d@y"));
    /* The vocabulary takes the axis of the width, so each rank has whole rows of the embedding table. */
    ax_layout table = ax_layout_of_roles(ctx, (ax_role[]){AX_ROLE_VOCAB, AX_ROLE_MODEL}, 2);
    EXPECT(!strcmp(ax_layout_print(ctx->grid, &table, 2, "vd", text), "v@x.y, d"));
    ax_ctx_destroy(&ctx);
    return AX_OK;
}

/* Experts are split along data.exp, and layouts name the factors of data. The gradient of experts is whole
 * along data.exp, so ZeRO splits it along data.rep; that of other parameters along data. */
static ax_status divided_experts(ax_comm *world, void *arg)
{
    char text[128];
    ax_ctx *ctx;
    ax_param *expert, *dense;
    (void)arg;
    AX_TRY(ax_ctx_create(world, (ax_grid_size){{1, 1, 2, 1, 4, 2}}, "ref", 1, AX_F32, 1, &ctx));
    ctx->parallel.zero = 2;
    const ax_role roles[] = {AX_ROLE_EXPERT, AX_ROLE_EXPERTS, AX_ROLE_NONE};
    AX_TRY(ax_param_create(ctx, "e", 3, (int64_t[]){8, 3, 5}, NULL, roles, AX_INIT_ZERO, 0, &expert));
    AX_TRY(ax_param_create(ctx, "d", 2, (int64_t[]){8, 5}, NULL, (ax_role[]){AX_ROLE_INNER, AX_ROLE_MODEL},
                           AX_INIT_ZERO, 0, &dense));
    ax_layout x = ax_layout_of_roles(ctx, (ax_role[]){AX_ROLE_BATCH, AX_ROLE_MODEL}, 2);
    EXPECT(!strcmp(ax_layout_print(ctx->grid, &x, 2, "bd", text), "b@z.data.rep.data.exp, d@y"));
    EXPECT(!strcmp(ax_layout_print(ctx->grid, &expert->use, 3, "fed", text), "f@x.y, e@data.exp, d"));
    EXPECT(!strcmp(ax_layout_print(ctx->grid, &expert->sum.layout, 3, "fed", text),
                   "f@x.y/z.data.rep, e@data.exp, d"));
    EXPECT(!strcmp(ax_layout_print(ctx->grid, &dense->sum.layout, 2, "oi", text), "o@x/z.data, i@y"));
    ax_grid_size sizes = ax_grid_sizes(ctx->grid);
    EXPECT(sizes.of[AX_DATA] == 4 && sizes.of[AX_SIZE_EXPERT] == 2);
    ax_param_destroy(&expert);
    ax_param_destroy(&dense);
    ax_ctx_destroy(&ctx);
    return AX_OK;
}

/* The split unit of a vocabulary is 64 if shards then are nearly equal, and less for a small vocabulary. */
static ax_status units(ax_comm *world, void *arg)
{
    ax_ctx *ctx;
    (void)arg;
    AX_TRY(ax_ctx_create(world, (ax_grid_size){{2, 2, 1, 1, 1}}, "ref", 1, AX_F32, 1, &ctx));
    EXPECT(ax_vocab_unit(ctx, 50257) == 64 && ax_vocab_unit(ctx, 2048) == 64);
    EXPECT(ax_vocab_unit(ctx, 2047) == 32 && ax_vocab_unit(ctx, 256) == 8 && ax_vocab_unit(ctx, 1) == 1);
    ctx->parallel.strategy = &ax_strategy_inference;
    EXPECT(ax_vocab_unit(ctx, 256) == 8);
    AX_TRY(ax_strategy_find("ddp", &ctx->parallel.strategy));
    EXPECT(ax_vocab_unit(ctx, 512) == 64);
    ax_ctx_destroy(&ctx);
    return AX_OK;
}

static void experts_lie_along_a_factor_of_data(void **state)
{
    (void)state;
    assert_ranks(8, divided_experts, NULL);
}

static void a_vocabulary_is_split_in_units(void **state)
{
    (void)state;
    assert_ranks(4, units, NULL);
}

/* How query and key heads are split, by the number of ranks along x: roles, units, and errors. */
static ax_status heads_of_six(ax_comm *world, void *arg)
{
    const int *kv_heads = arg;
    int x = ax_comm_size(world);
    bool fits = ax_heads_fit(6, *kv_heads, x), shared = x > *kv_heads && *kv_heads < 6;
    char text[128];
    ax_heads split;
    ax_ctx *ctx;
    AX_TRY(ax_ctx_create(world, (ax_grid_size){{x, 1, 1, 1, 1}}, "ref", 1, AX_F32, 1, &ctx));
    ax_status status = ax_heads_split(ctx, 6, *kv_heads, &split);
    EXPECT(fits == (status == AX_OK) && fits == (!shared || x % *kv_heads == 0));
    if (!fits)
        EXPECT(status == AX_ERR_USAGE && strstr(ax_error_message(), "ranks along x cannot split"));
    if (fits) {
        EXPECT(split.q_unit == (shared ? 1 : 6 / *kv_heads));
        ax_layout q = ax_layout_of_roles(ctx, &split.q, 1), kv = ax_layout_of_roles(ctx, &split.kv, 1);
        EXPECT(!strcmp(ax_layout_print(ctx->grid, &q, 1, "h", text),
                       shared && *kv_heads > 1 ? "h@x.kv.x.rep" : "h@x"));
        EXPECT(!strcmp(ax_layout_print(ctx->grid, &kv, 1, "h", text), !shared         ? "h@x"
                                                                      : *kv_heads > 1 ? "h@x.kv"
                                                                                      : "h"));
        ax_axisset parts = ax_grad_axes_of_roles(ctx, &split.kv, 1);
        EXPECT(ax_grid_effective(ctx->grid, parts) ==
               (shared ? 1 << ax_grid_factoring(ctx->grid, 0).minor : 0));
        EXPECT(!ax_grid_effective(ctx->grid, ax_grad_axes_of_roles(ctx, &split.q, 1)));
        /* What all heads share is whole on every rank; its gradient is a sum over all that split the heads.
         */
        ax_layout head = ax_layout_of_roles(ctx, &split.head, 1);
        EXPECT(!head.dim[0].n);
        EXPECT(ax_grid_effective(ctx->grid, ax_grad_axes_of_roles(ctx, &split.head, 1)) ==
               ax_grid_effective(ctx->grid, ax_layout_split_axes(&q, 1)));
    }
    ax_ctx_destroy(&ctx);
    return AX_OK;
}

static void query_heads_stay_with_their_key_head(void **state)
{
    (void)state;
    for (int kv = 1; kv <= 6; kv++)
        for (int x = 1; x <= 8 && 6 % kv == 0; x++)
            assert_ranks(x, heads_of_six, &kv);
}

static void strategies_split_only_by_axes_that_they_use(void **state)
{
    (void)state;
    assert_ranks(1, rows_are_consistent, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strategies_are_found_by_name),
        cmocka_unit_test(axes_that_a_strategy_lacks_are_found),
        cmocka_unit_test(strategies_split_only_by_axes_that_they_use),
        cmocka_unit_test(experts_lie_along_a_factor_of_data),
        cmocka_unit_test(a_vocabulary_is_split_in_units),
        cmocka_unit_test(query_heads_stay_with_their_key_head),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
