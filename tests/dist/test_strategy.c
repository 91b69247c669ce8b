/* dist: strategies are rows of a table, and grids that a row does not know are refused with others that fit.
 */
#include "axonn/dist.h"
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

static void rows_are_found_by_name(void **state)
{
    (void)state;
    int n = 0;
    for (; ax_strategy_at(n); n++)
        assert_ptr_equal(named(ax_strategy_at(n)->name), ax_strategy_at(n));
    assert_int_equal(n, 5);
    const ax_strategy *none;
    assert_int_equal(ax_strategy_find("zero", &none), AX_ERR_USAGE);
    assert_non_null(strstr(ax_error_message(), "there are axonn, megatron, fsdp, hsdp, ddp"));
}

static void an_axis_that_is_lacking_must_be_one(void **state)
{
    (void)state;
    assert_int_equal(ax_strategy_check(named("axonn"), (ax_grid_size){2, 3, 4, 1, 5}), AX_OK);
    assert_int_equal(ax_strategy_check(named("hsdp"), (ax_grid_size){1, 1, 4, 1, 5}), AX_OK);
    assert_int_equal(ax_strategy_check(named("ddp"), (ax_grid_size){1, 1, 2, 1, 3}), AX_ERR_USAGE);
    assert_non_null(strstr(ax_error_message(), "strategy ddp"));
    assert_non_null(strstr(ax_error_message(), "nearest grids that fit: x=1 y=1 z=1 pipe=1 data=6"));
    assert_int_equal(ax_strategy_check(named("megatron"), (ax_grid_size){2, 2, 1, 1, 2}), AX_ERR_USAGE);
    assert_non_null(strstr(ax_error_message(),
                           "nearest grids that fit: x=2 y=1 z=1 pipe=1 data=4; x=4 y=1 z=1 pipe=1 data=2; "));
}

/* A row splits a dim by no axis that it lacks, and none twice. */
static ax_status rows_are_consistent(ax_comm *world, void *arg)
{
    static const ax_role weight[] = {AX_ROLE_HIDDEN, AX_ROLE_MODEL},
                         activation[] = {AX_ROLE_BATCH, AX_ROLE_NONE, AX_ROLE_MODEL};
    char text[128];
    ax_ctx *ctx;
    (void)arg;
    AX_TRY(ax_ctx_create(world, (ax_grid_size){1, 1, 1, 1, 1}, "ref", 1, AX_F32, 1, &ctx));
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
    EXPECT(!strcmp(ax_layout_print(ctx->grid, &a, 3, "btd", text), "b@data.z, t, d@y"));
    ax_ctx_destroy(&ctx);
    return AX_OK;
}

static void rows_name_no_axis_that_they_lack(void **state)
{
    (void)state;
    assert_ranks(1, rows_are_consistent, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_found_by_name),
        cmocka_unit_test(an_axis_that_is_lacking_must_be_one),
        cmocka_unit_test(rows_name_no_axis_that_they_lack),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
