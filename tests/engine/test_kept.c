/* Recomputation that keeps the results of collectives (parallel.keep_results) against recomputation that
 * communicates again: the same bits, and memory that is planned to the byte and has a closed form. (The bytes
 * that are sent: test_bytes.c, nn/test_bytes.c, nn/test_moe_bytes.c.) */
#include "support/check.h"
#include "support/equality.h"
#include "support/pipe_runs.h"
#include "support/ranks.h"
#include "support/sampled.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* ---- bits ---------------------------------------------------------------------------------------- */

static bool same_bits(const eq_run *a, const eq_run *b)
{
    bool same = !memcmp(a->loss, b->loss, sizeof a->loss) && a->norm == b->norm && a->eval == b->eval &&
                a->params == b->params;
    for (int i = 0; same && i < a->params; i++)
        same = a->count[i] == b->count[i] &&
               !memcmp(a->grad[i], b->grad[i], (size_t)a->count[i] * sizeof *a->grad[i]);
    return same;
}

/* Runs two steps with either way. (equality.c compares the memory that was held with the plan.) */
static void check_bits(eq_run r)
{
    char grid[80];
    eq_run again = eq_do(r);
    r.parallel.keep_results = true;
    eq_run kept = eq_do(r);
    if (!same_bits(&again, &kept))
        fail_msg("%s on %s, zero %d, %s, every %d blocks: other bits", eq_model_names[r.model],
                 ax_grid_size_print(r.grid, grid), r.parallel.zero, ax_dtype_name(r.compute),
                 (int)r.recompute);
    eq_free(&again);
    eq_free(&kept);
}

/* The experts of the models that have some; grid.expert must not be larger. */
static int experts_of(eq_model model)
{
    return model == EQ_MIXTRAL ? 5 : model == EQ_SPARSE ? 9 : model == EQ_OLMOE ? 3 : 1;
}

static void kept_results_change_no_bit(void **state)
{
    (void)state;
    static const ax_dtype dtypes[] = {AX_F32, AX_BF16, AX_F16};
    ax_grid_size grids[64];
    int n = eq_factorizations(8, grids), pairs = 0, runs = 0, each = one_of(19, 97);
    for (int m = 0; m < EQ_MODELS; m++)
        for (int g = 0; g < n; g++)
            for (int e = 1; e <= grids[g].of[AX_DATA] && e <= experts_of((eq_model)m); e++) {
                const int x = grids[g].of[AX_X];
                if (grids[g].of[AX_DATA] % e || x * grids[g].of[AX_Y] * e == 1 ||
                    !eq_heads_fit((eq_model)m, x) || pairs++ % each)
                    continue;
                eq_run r = eq_serial((eq_model)m, runs % 5 ? "cpu" : "check:cpu", dtypes[runs % 3], 2);
                r.grid = grids[g];
                r.grid.of[AX_SIZE_EXPERT] = e;
                r.parallel.zero = runs % 4;
                r.parallel.expert_room = runs % 2;
                r.capacity = experts_of((eq_model)m) > 1 && runs % 2 ? 0.75 : 0;
                r.recompute = 1 + runs++ % 2;
                check_bits(r);
            }
    printf("%d pairs of models and grids\n", runs);
}

/* Stages have several micro-batches in flight, each with its own list of results. The runs of one stage in
 * pipe_runs.c communicate again. */
static void stages_keep_results_of_each_micro_batch(void **state)
{
    (void)state;
    static const pipe_setup all[] = {
        {.grid = {{2, 1, 1, 2, 1}}, .micro_batches = 6, .compute = AX_F32, .recompute = 1},
        {.grid = {{1, 2, 1, 2, 1}},
         .schedule = F1B,
         .slack = 1,
         .micro_batches = 5,
         .compute = AX_BF16,
         .recompute = 2,
         .family = PIPE_QWEN3},
        {.grid = {{2, 1, 1, 2, 1}},
         .schedule = GPIPE,
         .micro_batches = 4,
         .compute = AX_F32,
         .recompute = 1,
         .family = PIPE_LLAMA,
         .lazy = true},
        {.grid = {{1, 2, 1, 2, 2}},
         .schedule = INTERLEAVED,
         .zero = 1,
         .micro_batches = 4,
         .compute = AX_F32,
         .recompute = 1},
        {.grid = {{2, 2, 1, 2, 1}},
         .postpone = 2,
         .micro_batches = 5,
         .compute = AX_F32,
         .recompute = 1,
         .family = PIPE_QWEN3},
        {.grid = {{1, 1, 1, 2, 4, 2}},
         .zero = 3,
         .micro_batches = 4,
         .compute = AX_F32,
         .recompute = 1,
         .family = PIPE_EXPERTS},
        {.grid = {{2, 1, 1, 2, 2, 2}},
         .micro_batches = 4,
         .compute = AX_F32,
         .recompute = 1,
         .family = PIPE_EXPERTS,
         .capacity = 1},
    };
    for (size_t i = 0; i < AX_COUNT(all); i++) {
        pipe_setup s = all[i];
        s.keeps = true;
        if (!my_share(i, 3))
            continue;
        if (s.schedule == MESSAGE)
            pipe_check_late(&s, 3, 2);
        else
            pipe_check(&s);
    }
}

/* ---- memory -------------------------------------------------------------------------------------- */

enum { D = 128, FFN = 320, HEADS = 8, KV_HEADS = 4, T = 64, MICRO = 2, MICRO_BATCHES = 3 };

typedef struct plan_case {
    const char *family;
    ax_grid_size grid;
    int64_t recompute;
    size_t price; /* result: by how much a block for each stage costs more if it keeps results */
} plan_case;

static ax_status plan_activations(ax_comm *world, const plan_case *c, int64_t layers, bool keeps, size_t *out)
{
    const ax_family *family;
    ax_parallel parallel = ax_parallel_default;
    ax_engine_plan plan;
    AX_TRY(ax_family_find(c->family, &family));
    ax_model_config config = ax_model_config_defaults(family);
    config.layers = layers;
    config.hidden = D;
    config.heads = HEADS;
    config.kv_heads = strcmp(c->family, "gpt2") != 0 ? KV_HEADS : HEADS;
    config.ffn = FFN;
    config.vocab = 64;
    config.seq_len = T;
    config.experts.n = config.experts.n ? 4 : 0;
    parallel.keep_results = keeps;
    parallel.pipe.schedule = AX_PIPE_GPIPE; /* a stage holds all micro-batches */
    ax_engine_options options = {.model = &config,
                                 .seq_len = T,
                                 .micro_batch = MICRO,
                                 .global_batch =
                                     MICRO * MICRO_BATCHES * c->grid.of[AX_Z] * c->grid.of[AX_DATA],
                                 .recompute = c->recompute,
                                 .clip = 1};
    AX_TRY(ax_optim_find("adamw", &options.optim));
    AX_TRY(ax_engine_plan_make(&options, world, c->grid, &parallel, "cpu", 1, AX_BF16, &plan));
    *out = plan.memory.bytes[AX_MEMORY_ACTIVATIONS];
    ax_engine_plan_fini(&plan);
    return AX_OK;
}

/* Plans models that differ by a segment for each stage. */
static ax_status find_price(ax_comm *world, void *arg)
{
    plan_case *c = arg;
    const int64_t more = c->recompute * c->grid.of[AX_PIPE], layers = 2 * more;
    size_t bytes[2][2];
    if (ax_comm_rank(world))
        return AX_OK;
    for (int deeper = 0; deeper < 2; deeper++)
        for (int keeps = 0; keeps < 2; keeps++)
            AX_TRY(plan_activations(world, c, layers + deeper * more, keeps, &bytes[deeper][keeps]));
    c->price = bytes[1][1] - bytes[0][1] - (bytes[1][0] - bytes[0][0]);
    return AX_OK;
}

/* Returns the bytes of the results that a block keeps in bf16: of the sums over x (outputs of attention and
 * MLP), over y (its other linear layers, and fp32 statistics of two norms). */
static size_t kept_bytes(const plan_case *c)
{
    const size_t x = (size_t)c->grid.of[AX_X], y = (size_t)c->grid.of[AX_Y], m = MICRO * T, e = 2;
    const bool gpt2 = !strcmp(c->family, "gpt2");
    const size_t heads = gpt2 ? 3 * HEADS : HEADS + 2 * KV_HEADS, inner = (gpt2 ? 1 : 2) * FFN,
                 numbers = gpt2 ? 2 : 1;
    const size_t over_x = x > 1 ? 2 * m * D / y * e : 0,
                 over_y =
                     y > 1 ? m * (heads * (D / HEADS) + inner) / x * e + 2 * numbers * m * sizeof(float) : 0;
    return over_x + over_y;
}

/* The plan knows the price: for each segment, and for each micro-batch that a stage holds, the bytes of the
 * results. */
static void the_price_is_that_of_the_results(void **state)
{
    (void)state;
    plan_case all[] = {
        {"gpt2", {{2, 1, 1, 1, 1}}, 1, 0},  {"gpt2", {{1, 4, 1, 1, 1}}, 1, 0},
        {"llama", {{2, 2, 1, 1, 1}}, 1, 0}, {"llama", {{4, 2, 1, 1, 1}}, 2, 0},
        {"gpt2", {{2, 2, 1, 2, 1}}, 1, 0},  {"gpt2", {{1, 1, 2, 1, 2}}, 1, 0},
    };
    for (size_t i = 0; i < AX_COUNT(all); i++) {
        char grid[80];
        plan_case *c = &all[i];
        const int stages = c->grid.of[AX_PIPE];
        const size_t want = kept_bytes(c) * (size_t)c->recompute * (stages > 1 ? MICRO_BATCHES : 1);
        OK(ax_comm_threads_run(grid_ranks(c->grid), find_price, c));
        if (c->price != want)
            fail_msg("%s on %s, every %d blocks: a segment costs %zu bytes more, its results have %zu",
                     c->family, ax_grid_size_print(c->grid, grid), (int)c->recompute, c->price, want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(kept_results_change_no_bit),
                                       cmocka_unit_test(stages_keep_results_of_each_micro_batch),
                                       cmocka_unit_test(the_price_is_that_of_the_results)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
