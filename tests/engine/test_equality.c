/* Training on every grid of eight ranks equals training on one rank. Ranks are threads and models are tiny.
 * Other numbers of ranks and all combinations of options are in test_long_equality.c. */
#include "support/equality.h"
#include "support/sampled.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

enum { STEPS = SANITIZED ? 4 : EQ_STEPS };

/* float64 tests each grid with a third of the models (under sanitizers with a sixth), fp32 every third grid
 * with GPT-2, which options_of_distribution trains in fp32, too. Otherwise fp32 and 16 bits, which take the
 * same way through the code, are tested on two grids, under sanitizers on one. The campaign tests each grid
 * with each model, and the long test has other numbers of ranks. */
static int stride(eq_model model, ax_dtype compute)
{
    return one_of(model == EQ_GPT2 && compute == AX_F32 ? 5 : 13, 41);
}
static int first(eq_model model, ax_dtype compute)
{
    return stride(model, compute) == 1 ? 0 : ((int)model + (int)compute) % 9;
}

/* Returns the run on a grid; every other grid uses recomputation, and half of these keep results. */
static eq_run on_grid(eq_run serial, ax_grid_size grid, int index)
{
    serial.grid = grid;
    serial.recompute = index % 2;
    serial.parallel.keep_results = index % 4 == 3;
    return eq_do(serial);
}

/* In float64 a grid only changes the order of sums, of at most 1e3 terms here. 1e-11 of the largest term is
 * 100 times the rounding error, and far below the effect of a term that is missing, doubled or misplaced. */
static void float64_differs_by_roundings(void **state)
{
    (void)state;
    ax_grid_size grids[64];
    int n = eq_factorizations(8, grids);
    assert_int_equal(n, 20);
    for (int m = 0; m < EQ_MODELS; m++) {
        eq_run serial = eq_serial((eq_model)m, "ref", AX_F64, 2), one = eq_do(serial);
        for (int g = m % one_of(3, 6); g < n; g += one_of(3, 6)) {
            eq_run split = on_grid(serial, grids[g], g + m);
            eq_assert_equal(&split, &one, 1e-12, 1e-11);
            eq_free(&split);
        }
        eq_free(&one);
    }
}

/* On twelve ranks the head is used twice in a row and fits into the weight cache. The first micro-batch,
 * which fills the cache, must acquire memory in the same order as the others. */
static void a_weight_in_the_cache_is_used_twice_in_a_row(void **state)
{
    (void)state;
    eq_run serial = eq_serial(EQ_SCARCE, "ref", AX_F64, 2);
    serial.rows = 24;
    eq_run one = eq_do(serial);
    serial.grid = (ax_grid_size){{1, 6, 1, 1, 2}};
    serial.parallel.zero = 3;
    eq_run split = eq_do(serial);
    eq_assert_equal(&split, &one, 1e-12, 1e-11);
    eq_free(&split);
    eq_free(&one);
}

/* The models that train in fp32 and in 16 bits. */
static const eq_model trained[] = {EQ_GPT2, EQ_GROUPED, EQ_ODD, EQ_WINDOW, EQ_NORMS, EQ_MIXTRAL, EQ_SPARSE};

/* How near rounded results are is no question to sanitizers: one model takes each way through the code, and
 * options_of_distribution trains all models. */
static size_t rounded_models(void) { return one_of(1, 2) > 1 ? 1 : AX_COUNT(trained); }

static void fp32_is_within_1e_5(void **state)
{
    (void)state;
    for (size_t i = 0; i < rounded_models(); i++)
        eq_fp32_on_grids(trained[i], STEPS, first(trained[i], AX_F32), stride(trained[i], AX_F32));
}

static void bf16_is_as_near_to_fp32_as_one_rank_is(void **state)
{
    (void)state;
    for (size_t i = 0; i < rounded_models(); i++)
        eq_16_bits_on_grids(trained[i], AX_BF16, false, STEPS, first(trained[i], AX_BF16),
                            stride(trained[i], AX_BF16));
    eq_16_bits_on_grids(EQ_LORA, AX_BF16, false, STEPS, first(EQ_LORA, AX_BF16), stride(EQ_LORA, AX_BF16));
}

/* Every other model: fp16 takes the way of bf16, and scales the loss. */
static void fp16_is_as_near_to_fp32_as_one_rank_is(void **state)
{
    (void)state;
    for (size_t i = 0; i < rounded_models(); i += (size_t)one_of(2, 2))
        eq_16_bits_on_grids(trained[i], AX_F16, false, STEPS, first(trained[i], AX_F16),
                            stride(trained[i], AX_F16));
}

/* Gradients of matrices in 16 bits: a model with a tied table, and low-rank updates, whose factors are the
 * matrices that are trained. */
static void narrow_gradients_are_as_near_as_on_one_rank(void **state)
{
    (void)state;
    eq_16_bits_on_grids(EQ_GPT2, AX_BF16, true, STEPS, 3, 2 * stride(EQ_GPT2, AX_BF16));
    eq_16_bits_on_grids(EQ_LORA, AX_BF16, true, STEPS, 1, 2 * stride(EQ_LORA, AX_BF16));
}

/* Strategies, ZeRO stages, switching overlaps off and caching gathered weights do not change the results.
 * Each of the other models takes a sixth of the rows, GPT-2 all of them, under sanitizers each one or two;
 * the long test has all combinations. */
static void options_of_distribution_change_nothing(void **state)
{
    (void)state;
    static const struct {
        const char *strategy;
        ax_grid_size grid;
        int zero;
        bool overlap;
        size_t cache;
    } rows[] = {
        {"megatron", {{8, 1, 1, 1, 1}}, 0, true, 0},     {"megatron", {{2, 1, 1, 1, 4}}, 1, true, 0},
        {"fsdp", {{1, 1, 8, 1, 1}}, 0, true, 0},         {"fsdp", {{1, 1, 8, 1, 1}}, 0, false, 1 << 16},
        {"hsdp", {{1, 1, 4, 1, 2}}, 0, true, 0},         {"hsdp", {{1, 1, 2, 1, 4}}, 2, false, 0},
        {"ddp", {{1, 1, 1, 1, 8}}, 0, true, 0},          {"ddp", {{1, 1, 1, 1, 8}}, 1, true, 0},
        {"ddp", {{1, 1, 1, 1, 8}}, 2, true, 0},          {"ddp", {{1, 1, 1, 1, 8}}, 3, true, 0},
        {"axonn", {{1, 2, 2, 1, 2}}, 1, true, 1 << 20},  {"axonn", {{2, 1, 2, 1, 2}}, 3, true, 1 << 14},
        {"axonn", {{2, 2, 1, 1, 2}}, 2, false, 0},       {"axonn", {{4, 1, 1, 1, 2}}, 3, false, 1 << 20},
        {"axonn", {{2, 2, 2, 1, 1}}, 0, false, 1 << 20}, {"axonn", {{2, 2, 2, 1, 1}}, 1, true, 0},
        {"axonn", {{1, 1, 1, 1, 1}}, 1, true, 0},        {"axonn", {{1, 1, 2, 1, 1}}, 3, true, 0},
    };
    for (int m = 0; m < EQ_MODELS; m++) {
        eq_run serial = eq_serial((eq_model)m, "cpu", AX_F32, 4), one = eq_do(serial);
        const int each = one_of(m == EQ_GPT2 ? 1 : 6, 11);
        for (int i = m % each; i < (int)AX_COUNT(rows); i += each) {
            eq_run split = serial;
            ax_parallel *p = &split.parallel;
            assert_int_equal(ax_strategy_find(rows[i].strategy, &p->strategy), AX_OK);
            p->zero = rows[i].zero;
            p->overlap.oar = p->overlap.ors = p->overlap.oag = rows[i].overlap;
            p->weight_cache = rows[i].cache;
            split = on_grid(split, rows[i].grid, i + m);
            eq_assert_equal(&split, &one, 1e-5, 1e-4);
            eq_free(&split);
        }
        eq_free(&one);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(float64_differs_by_roundings),
                                       cmocka_unit_test(a_weight_in_the_cache_is_used_twice_in_a_row),
                                       cmocka_unit_test(fp32_is_within_1e_5),
                                       cmocka_unit_test(bf16_is_as_near_to_fp32_as_one_rank_is),
                                       cmocka_unit_test(fp16_is_as_near_to_fp32_as_one_rank_is),
                                       cmocka_unit_test(narrow_gradients_are_as_near_as_on_one_rank),
                                       cmocka_unit_test(options_of_distribution_change_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
