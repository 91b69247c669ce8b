/* Pruned matrices (key train.sparse): a run that stores and reduces the kept elements alone has the bits of a
 * dense run whose weights and summed gradients are multiplied by the mask. */
#include "axonn/model.h"
#include "support/check.h"
#include "support/emulated.h"
#include "support/params.h"
#include "support/pipe_runs.h"
#include "support/ranks.h"
#include "support/sampled.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static double difference(double a, double b) { return a == b ? 0 : fabs(a - b) / fmax(fabs(a), fabs(b)); }

/* Weights, moments and losses have the same bits; norms are sums of the same squares in another order. */
static void compare(const pipe_setup *s, const pipe_result *got, const pipe_result *dense)
{
    char text[PIPE_TEXT];
    pipe_describe(s, text);
    ax_text_add(text, PIPE_TEXT, ", density %g", s->density);
    assert_int_equal(got->n, dense->n);
    for (int i = 0; i < PIPE_STEPS; i++)
        if (got->loss[i] != dense->loss[i] || difference(got->norm[i], dense->norm[i]) > 1e-12)
            fail_msg("%s: step %d has loss %.17g and norm %.17g, not %.17g and %.17g", text, i + 1,
                     got->loss[i], got->norm[i], dense->loss[i], dense->norm[i]);
    for (int64_t i = 0; i < got->n; i++)
        if (got->values[i] != dense->values[i] && !(isnan(got->values[i]) && isnan(dense->values[i])))
            fail_msg("%s: value %lld of %lld is %.17g, not %.17g", text, (long long)i, (long long)got->n,
                     got->values[i], dense->values[i]);
    assert_true(got->eval == dense->eval);
}

static void check(const pipe_setup *setup, const ax_offload *offload)
{
    pipe_setup s = *setup;
    pipe_result dense, got;
    pipe_run(&s, &dense);
    s.pruned = true;
    if (offload)
        s.offload = *offload;
    pipe_run(&s, &got);
    compare(&s, &got, &dense);
    pipe_free(&got);
    pipe_free(&dense);
}

/* The clipping factor follows from the norm, whose last bit the order of its sum may change: the setups do
 * not clip, but for those of one rank, in which the bits of the factor are the same. */
static const pipe_setup setups[] = {
    {.grid = {{1, 1, 1, 1, 1}}, .density = 0.2, .micro_batches = 3, .compute = AX_F32},
    {.grid = {{1, 1, 1, 1, 1}}, .density = 0.5, .micro_batches = 2, .compute = AX_BF16, .family = PIPE_QWEN3},
    {.grid = {{1, 1, 1, 1, 1}},
     .density = 0.1,
     .micro_batches = 2,
     .compute = AX_F16,
     .optim = "sgd",
     .more = 12}, /* until the loss scale fits */
    {.grid = {{1, 1, 1, 1, 1}}, .density = 0.01, .micro_batches = 1, .compute = AX_BF16, .tied = true},
    {.grid = {{1, 1, 1, 1, 1}}, .density = 0.3, .micro_batches = 3, .compute = AX_BF16, .narrow = true},
    {.grid = {{1, 1, 2, 1, 1}}, .density = 0.2, .micro_batches = 2, .compute = AX_F32},
    {.grid = {{1, 1, 1, 1, 2}}, .density = 0.2, .micro_batches = 2, .compute = AX_BF16, .zero = 1},
    {.grid = {{1, 1, 2, 1, 2}}, .density = 0.1, .micro_batches = 2, .compute = AX_BF16, .zero = 2},
    {.grid = {{1, 1, 1, 1, 4}}, .density = 0.2, .micro_batches = 1, .compute = AX_F32, .zero = 3},
    {.grid = {{2, 1, 1, 1, 2}}, .density = 0.2, .micro_batches = 2, .compute = AX_BF16, .family = PIPE_LLAMA},
    {.grid = {{1, 2, 2, 1, 1}}, .density = 0.5, .micro_batches = 2, .compute = AX_F32, .family = PIPE_LLAMA},
    {.grid = {{2, 2, 2, 1, 1}}, .density = 0.2, .micro_batches = 1, .compute = AX_BF16},
    {.grid = {{1, 1, 1, 2, 2}},
     .density = 0.2,
     .zero = 1,
     .postpone = 2,
     .micro_batches = 4,
     .compute = AX_BF16,
     .tied = true},
    {.grid = {{1, 1, 2, 2, 1}},
     .density = 0.1,
     .schedule = INTERLEAVED,
     .micro_batches = 4,
     .compute = AX_F32},
};

static void bits_are_those_of_masked_dense_training(void **state)
{
    (void)state;
    for (size_t i = 0; i < AX_COUNT(setups); i += SANITIZED ? 3 : 1) {
        pipe_setup s = setups[i];
        s.unclipped = grid_ranks(s.grid) > 1;
        check(&s, NULL);
    }
}

/* 100 steps. */
static void bits_stay_the_same_for_many_steps(void **state)
{
    static const pipe_setup long_ones[] = {
        {.grid = {{1, 1, 1, 1, 1}}, .density = 0.1, .micro_batches = 2, .compute = AX_BF16},
        {.grid = {{1, 1, 2, 1, 2}}, .density = 0.2, .micro_batches = 2, .compute = AX_F32, .zero = 1},
        {.grid = {{1, 1, 1, 2, 2}}, .density = 0.5, .micro_batches = 4, .compute = AX_F16, .zero = 2},
    };
    (void)state;
    for (size_t i = 0; i < AX_COUNT(long_ones); i += (size_t)one_of(3, 3)) {
        pipe_setup s = long_ones[i];
        s.unclipped = true;
        s.more = 100 - PIPE_STEPS;
        check(&s, NULL);
    }
}

/* Every grid of eight ranks without stages, and of two stages with four, with each ZeRO stage and precision.
 */
static void grids_have_the_bits_of_masked_dense_training(void **state)
{
    static const ax_dtype dtypes[] = {AX_F32, AX_BF16, AX_F16};
    static const double densities[] = {0.5, 0.2, 0.1, 0.01};
    const int every = one_of(60, 360);
    int n = 0;
    (void)state;
    for (int pipe = 1; pipe <= 2; pipe++)
        for (int x = 1; x <= 8 / pipe; x *= 2)
            for (int y = 1; x * y <= 8 / pipe; y *= 2)
                for (int z = 1; x * y * z <= 8 / pipe; z *= 2)
                    for (int k = 0; k < 12; k++, n++) {
                        pipe_setup s = {.grid = {{x, y, z, pipe, 8 / pipe / (x * y * z)}},
                                        .zero = k / 3,
                                        .micro_batches = 2,
                                        .compute = dtypes[k % 3],
                                        .density = densities[(n + k) % 4],
                                        .optim = n % 5 ? "adamw" : "sgd",
                                        .family = (pipe_family)(n % PIPE_EXPERTS),
                                        .more = k % 3 == 2 ? 12 : 0,
                                        .unclipped = true};
                        if (n % every == 7 % every)
                            check(&s, NULL);
                    }
}

static void state_may_be_offloaded(void **state)
{
    static const ax_offload ways[] = {
        {.optimizer = AX_OFFLOAD_HOST},
        {.optimizer = AX_OFFLOAD_HOST, .update = AX_OFFLOAD_ON_DEVICE, .bucket = 64},
        {.optimizer = AX_OFFLOAD_FILE, .bucket = 1000, .chunk = 2},
    };
    (void)state;
    for (size_t i = 0; i < AX_COUNT(setups); i += SANITIZED ? 3 : 1) {
        pipe_setup s = setups[i];
        s.unclipped = grid_ranks(s.grid) > 1;
        check(&s, &ways[i % AX_COUNT(ways)]);
    }
}

/* ---- memory -------------------------------------------------------------------------------------- */

static size_t aligned(int64_t n, size_t size) { return (size_t)ax_round_up(n * (int64_t)size, 64); }

/* The table of the guide: a
 * vector of each array has the elements that the rank keeps, and the gradient its padding. */
static ax_status check_table(ax_comm *world, void *arg)
{
    const pipe_setup *s = arg;
    const ax_dtype compute = s->compute;
    ax_ctx *ctx;
    ax_param *p = NULL;
    ax_param_set *set = NULL;
    enum { ROWS = 96, COLS = 130 };
    AX_TRY(ax_ctx_create(world, s->grid, "cpu", 1, compute, 3, &ctx));
    ctx->parallel.zero = s->zero;
    AX_TRY(ax_param_create(ctx, "w", 2, (int64_t[]){ROWS, COLS}, NULL,
                           (ax_role[]){AX_ROLE_INNER, AX_ROLE_MODEL}, AX_INIT_ZERO, 1, &p));
    /* Row r keeps its first r % 5 · 10 elements. */
    uint64_t bits[ROWS][3] = {{0}};
    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t c = 0; c < r % 5 * 10; c++)
            bits[r][c / 64] |= (uint64_t)1 << c % 64;
    AX_TRY(ax_param_prune(ctx, p, &bits[0][0]));
    AX_TRY(ax_param_set_create(ctx, &p, 1, 2, &set));
    const ax_grid_size g = s->grid;
    const int z = g.of[AX_Z], parts = z * (s->zero ? g.of[AX_DATA] : 1), sums = s->zero >= 2 ? parts : z,
              rests = s->zero >= 3 ? parts : z;
    int64_t longest = 0, mine = 0;
    for (int k = 0; k < parts; k++) {
        int64_t kept = 0;
        for (int64_t r = ROWS / parts * k; r < ROWS / parts * (k + 1); r++)
            kept += r % 5 * 10;
        longest = ax_max(longest, kept);
        const int my_part = parts == z
                                ? ax_grid_coord(ctx->grid, ax_grid_rank(ctx->grid), AX_Z)
                                : ax_grid_coord(ctx->grid, ax_grid_rank(ctx->grid), AX_Z) * g.of[AX_DATA] +
                                      ax_grid_coord(ctx->grid, ax_grid_rank(ctx->grid), AX_DATA);
        mine = k == my_part ? kept : mine;
    }
    longest = ax_round_up(longest, 16);
    const size_t *got = set->memory.bytes, size = ax_dtype_size(compute);
    const int64_t dense = (int64_t)ROWS * COLS / rests, sum = longest * parts / sums;
    EXPECT(got[AX_MEMORY_WEIGHTS] == aligned(mine, 4));
    EXPECT(got[AX_MEMORY_OPTIMIZER] == 2 * aligned(mine, 4));
    EXPECT(got[AX_MEMORY_COPIES] == aligned(dense, size));
    EXPECT(got[AX_MEMORY_MASKS] == aligned(ROWS * 3, 8) + aligned(ROWS + 1, 4));
    EXPECT(got[AX_MEMORY_GRADIENTS] == aligned(sum, 4) + (sums == parts ? 0 : aligned(longest, 4)));
    ax_param_set_destroy(&set);
    ax_param_destroy(&p);
    ax_ctx_destroy(&ctx);
    return AX_OK;
}

static void memory_is_that_of_the_table(void **state)
{
    (void)state;
    for (int zero = 0; zero < 4; zero++)
        for (int narrow = 0; narrow < 2; narrow++)
            for (int z = 1; z <= 4; z *= 2) {
                pipe_setup s = {.grid = {{1, 1, z, 1, z > 2 ? 1 : 2}},
                                .zero = zero,
                                .compute = narrow ? AX_BF16 : AX_F32};
                assert_ranks(grid_ranks(s.grid), check_table, &s);
            }
}

/* ---- state in host memory ------------------------------------------------------------------------ */

typedef struct shape {
    ax_grid_size grid;
    int zero, rows, cols;
    double density;
} shape;

static double value(const shape *s, int64_t row, int64_t col)
{
    const uint64_t at = (uint64_t)(row * 1000 + col);
    return ax_rng_uniform(5, at) < s->density ? ax_rng_uniform(6, at) + 1 : 0;
}

/* Writes state in pieces, expands it, and reads it in other pieces. */
static ax_status move_state(ax_comm *world, void *arg)
{
    const shape *s = arg;
    ax_ctx *ctx;
    ax_param *p = NULL;
    ax_param_set *set = NULL;
    uint64_t bits[40 * 3] = {0};
    float host[40 * 130], back[40 * 130];
    AX_TRY(ax_ctx_create(world, s->grid, "cpu", 1, AX_F32, 3, &ctx));
    ctx->parallel.zero = s->zero;
    AX_TRY(ax_param_create(ctx, "w", 2, (int64_t[]){s->rows, s->cols}, NULL,
                           (ax_role[]){AX_ROLE_INNER, AX_ROLE_MODEL}, AX_INIT_ZERO, 1, &p));
    const ax_box whole = ax_param_box(ctx, p),
                 box = ax_tensor_box(ctx->grid, &p->rounded, ax_grid_rank(ctx->grid));
    for (int64_t r = 0; r < whole.n[0]; r++)
        for (int64_t c = 0; c < whole.n[1]; c++)
            if (value(s, whole.lo[0] + r, whole.lo[1] + c) != 0)
                bits[r * ax_ceil_div(whole.n[1], 64) + c / 64] |= (uint64_t)1 << c % 64;
    AX_TRY(ax_param_prune(ctx, p, bits));
    AX_TRY(ax_param_set_create(ctx, &p, 1, 2, &set));
    const int64_t n = box.n[0] * box.n[1];
    for (int64_t i = 0; i < n; i++)
        host[i] = (float)value(s, box.lo[0] + i / box.n[1], box.lo[1] + i % box.n[1]);
    const ax_param_state *master = &p->state[AX_STATE_MASTER];
    for (int64_t at = 0, piece; at < n; at += piece) {
        piece = ax_min(7, n - at);
        AX_TRY(ax_param_state_write(ctx, master, at, piece, host + at));
    }
    AX_TRY(ax_param_set_refresh(set));
    for (int64_t at = 0, piece; at < n; at += piece) {
        piece = ax_min(11, n - at);
        AX_TRY(ax_param_state_read(ctx, master, at, piece, back + at));
    }
    EXPECT(!n || !memcmp(host, back, (size_t)n * sizeof *host));
    EXPECT(!n || !memcmp(host, p->rounded.data, (size_t)n * sizeof *host));
    for (int64_t i = 0; i < n; i++)
        if (host[i] == 0) { /* what the mask does not keep stays zero */
            host[i] = 1;
            EXPECT(ax_param_state_write(ctx, master, i, 1, host + i) == AX_ERR_DATA);
            break;
        }
    ax_param_set_destroy(&set);
    ax_param_destroy(&p);
    ax_ctx_destroy(&ctx);
    return AX_OK;
}

static void state_is_read_and_written_as_dense_rows(void **state)
{
    static const double densities[] = {0, 0.1, 0.5, 1};
    (void)state;
    for (int i = 0; i < 26; i++) {
        shape s = {.grid = {{1, 1, 1, 1, 1}},
                   .rows = 1 + i * 3 % 40,
                   .cols = i == 25 ? 130 : 1 + i * 5,
                   .density = densities[i % 4]};
        assert_ranks(1, move_state, &s);
        s.grid = (ax_grid_size){{1, 1, 2, 1, 2}};
        s.zero = i % 4;
        assert_ranks(4, move_state, &s);
        s.grid = (ax_grid_size){{2, 2, 1, 1, 1}};
        assert_ranks(4, move_state, &s);
    }
}

/* ---- devices ------------------------------------------------------------------------------------- */

static void other_devices_agree(void **state)
{
    static const ax_offload ring = {
        .optimizer = AX_OFFLOAD_HOST, .update = AX_OFFLOAD_ON_DEVICE, .bucket = 1000};
    pipe_setup s = {
        .grid = {{1, 1, 1, 1, 1}}, .density = 0.2, .pruned = true, .micro_batches = 2, .compute = AX_F32};
    pipe_result cpu, other;
    (void)state;
    pipe_run(&s, &cpu);
    s.device = "check:cpu";
    pipe_run(&s, &other);
    assert_true(pipe_is_same(&other, &cpu));
    pipe_free(&other);
    if (!ax_device_absent("cuda")) {
        s.device = "cuda";
        pipe_run(&s, &other);
        assert_true(pipe_is_near(&s, &other, &cpu));
        pipe_free(&cpu);
        s.offload = ring;
        pipe_run(&s, &cpu);
        assert_true(pipe_is_same(&other, &cpu));
        pipe_free(&other);
    }
    pipe_free(&cpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_those_of_masked_dense_training),
        cmocka_unit_test(bits_stay_the_same_for_many_steps),
        cmocka_unit_test(grids_have_the_bits_of_masked_dense_training),
        cmocka_unit_test(state_may_be_offloaded),
        cmocka_unit_test(memory_is_that_of_the_table),
        cmocka_unit_test(state_is_read_and_written_as_dense_rows),
        cmocka_unit_test(other_devices_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
