/* Gradients of matrices in 16 bits (narrow_grads in ax_parallel) against gradients in fp32. Activations are
 * the same in both, so a gradient of the first step differs only by the roundings of its sum over
 * micro-batches and ranks. */
#include "support/equality.h"
#include "support/ranks.h"
#include "support/sampled.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

static eq_run wide_run(eq_model model, ax_dtype compute, int ranks, int64_t micro_batches, int steps)
{
    eq_run r = eq_serial(model, "cpu", compute, steps);
    r.grid.of[AX_DATA] = ranks;
    r.micro_batches = micro_batches;
    r.rows = ranks * micro_batches;
    return r;
}

/* The bound. bf16 has a unit roundoff of u = 2^-8: rounding to nearest changes a number by at most u of
 * itself, and by 0.41 u in the root mean square over all significands, less than u/2 = 2^-9. A rank rounds
 * the sum after each of M micro-batches, and reductions over R ranks round at most R times. These roundings
 * are independent, so the errors' squares add up, and no partial sum of gradients is larger than the sum by
 * more than chance: the error is at most 2^-9·sqrt(M + R) of the norm. fp16 has u = 2^-11, so its bound is
 * 2^-12·sqrt(M + R). The token table of the tied model has two contributions in each micro-batch, which are
 * smaller than their sum. */
static void gradients_are_within_their_roundings(void **state)
{
    (void)state;
    static const int64_t micro_batches[] = {1, 8, 32};
    static const struct {
        eq_model model;
        ax_dtype compute;
        int zero;
    } cases[] = {{EQ_GPT2, AX_BF16, 0}, {EQ_GPT2, AX_F16, 2}, {EQ_NORMS, AX_BF16, 3}, {EQ_LORA, AX_BF16, 1}};
    for (size_t c = 0; c < AX_COUNT(cases); c += (size_t)one_of(1, 3))
        for (int ranks = 1; ranks <= 4; ranks += 3)
            for (size_t i = 0; i < AX_COUNT(micro_batches); i++) {
                const double unit = cases[c].compute == AX_F16 ? 0x1p-12 : 0x1p-9;
                double bound = unit * sqrt((double)(micro_batches[i] + ranks));
                eq_run wide = wide_run(cases[c].model, cases[c].compute, ranks, micro_batches[i], 1);
                wide.parallel.zero = cases[c].zero;
                eq_run narrow = wide;
                narrow.parallel.narrow_grads = true;
                wide = eq_do(wide);
                narrow = eq_do(narrow);
                double gap = eq_matrix_gap(&narrow, &wide);
                printf("%s %s, %d micro-batches on %d ranks: %.2f of the bound\n",
                       eq_model_names[cases[c].model], ax_dtype_name(cases[c].compute), (int)micro_batches[i],
                       ranks, gap / bound);
                assert_true(gap > 0 && gap <= bound);
                eq_free(&wide);
                eq_free(&narrow);
            }
}

/* Losses of 50 steps are within 0.002 of those with gradients in fp32. A step has 128 rows: with few rows its
 * gradient is so noisy that every rounding moves the loss by more than that, bf16 activations' too. */
static void losses_stay_within_2e_3(void **state)
{
    (void)state;
    enum { STEPS = 50, RANKS = 2, ROWS = 128 };
    if (SANITIZED)
        skip();
    eq_run wide = wide_run(EQ_GPT2, AX_BF16, RANKS, 4, STEPS);
    wide.rows = ROWS;
    eq_run narrow = wide;
    double worst = 0;
    narrow.parallel.narrow_grads = true;
    wide = eq_do(wide);
    narrow = eq_do(narrow);
    for (int i = 0; i < STEPS; i++)
        worst = fmax(worst, fabs(narrow.loss[i] - wide.loss[i]));
    printf("losses of %d steps within %.1e, from %.3f to %.3f\n", STEPS, worst, wide.loss[0],
           wide.loss[STEPS - 1]);
    assert_true(worst > 0 && worst < 2e-3);
    eq_free(&wide);
    eq_free(&narrow);
}

/* ---- memory -------------------------------------------------------------------------------------- */

/* A model of which every array, and every half of one, fills whole units of 64 bytes: nothing is padded. */
enum { L = 2, D = 32, F = 64, V = 64, T = 16, RANKS = 2 };
enum { MATRICES = L * (4 * D * D + 2 * D * F) + V * D + T * D, VECTORS = L * (9 * D + F) + 2 * D };

static ax_status plan_rank(ax_comm *world, void *arg)
{
    (void)arg;
    const ax_grid_size grid = {{1, 1, 1, 1, RANKS}};
    const ax_family *family;
    AX_TRY(ax_family_find("gpt2", &family));
    ax_model_config config = ax_model_config_defaults(family);
    config.layers = L, config.hidden = D, config.heads = config.kv_heads = 4, config.ffn = F;
    config.vocab = V, config.seq_len = T, config.tie = true;
    ax_engine_options options = {.model = &config, .seq_len = T, .micro_batch = 1, .global_batch = RANKS};
    AX_TRY(ax_optim_find("adamw", &options.optim));
    for (int i = 0; i < 16; i++) {
        ax_parallel parallel = ax_parallel_default;
        ax_engine_plan plan;
        const ax_dtype compute = i / 8 ? AX_F32 : AX_BF16;
        const int zero = parallel.zero = i / 2 % 4;
        parallel.narrow_grads = i % 2;
        AX_TRY(ax_engine_plan_make(&options, world, grid, &parallel, "cpu", 1, compute, &plan));
        const size_t *bytes = plan.memory.bytes, g = compute == AX_BF16 && i % 2 ? 2 : 4;
        const size_t state = MATRICES / (zero >= 1 ? RANKS : 1), rest = MATRICES / (zero >= 3 ? RANKS : 1);
        size_t grads = MATRICES / (zero >= 2 ? RANKS : 1);
        grads += zero == 1 ? MATRICES / RANKS : 0; /* ZeRO-1: the sum, and the part that is reduced */
        EXPECT(bytes[AX_MEMORY_GRADIENTS] == g * grads + 4 * VECTORS);
        EXPECT(bytes[AX_MEMORY_OPTIMIZER] == 8 * (state + VECTORS));
        EXPECT(bytes[AX_MEMORY_WEIGHTS] == 4 * ((compute == AX_BF16 ? state : rest) + VECTORS));
        EXPECT(bytes[AX_MEMORY_COPIES] == (compute == AX_BF16 ? 2 * rest : 0));
        ax_engine_plan_fini(&plan);
    }
    return AX_OK;
}

/* A matrix in 16 bits takes 14 bytes an element and those of its gradient, 2 or 4; a vector takes 16. ZeRO
 * divides them. In fp32 the setting changes nothing. */
static void planned_memory_is_exact(void **state)
{
    (void)state;
    if (ax_comm_threads_run(RANKS, plan_rank, NULL) != AX_OK)
        fail_msg("%s", ax_error_message());
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gradients_are_within_their_roundings),
                                       cmocka_unit_test(losses_stay_within_2e_3),
                                       cmocka_unit_test(planned_memory_is_exact)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
