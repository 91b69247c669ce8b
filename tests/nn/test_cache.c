/* Generation with a key/value cache on grids: outputs computed position by position, with grouped-query heads
 * split in every way that a grid allows, equal the outputs of one rank for all positions at once. */
#include "axonn/nn.h"
#include "support/ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>

#include <cmocka.h>

enum { B = 2, T = 7, PROMPT = 3, LATE = 2, WIDTH = 24, HEADS = 6 };

typedef struct cache_case {
    ax_grid_size grid;
    int64_t kv_heads, window;
    bool cached;
    /* Results, written by rank 0: outputs, and with a cache also outputs of all positions at once, computed
     * after the cache was destroyed. */
    double y[B * T * WIDTH], after[B * T * WIDTH];
} cache_case;

/* Sets out to the inputs at positions first … first+n-1, of sequence 1 `late` earlier. */
static void inputs(int64_t first, int64_t n, int64_t late, double *out)
{
    for (int64_t b = 0; b < B; b++)
        for (int64_t i = 0; i < n * WIDTH; i++)
            out[b * n * WIDTH + i] = ax_rng_normal(7, (uint64_t)((b * T + first - b * late) * WIDTH + i));
}

/* Sets *batch to the positions first … first+n-1 of sequence 0, and those `late` earlier of sequence 1, with
 * their places in the cache. `ids`: [2, B · n], on a device that the host can read. */
static void describe(int64_t first, int64_t n, int64_t late, int32_t *ids, ax_batch *batch)
{
    ax_layout none = {0};
    for (int64_t i = 0; i < B * n; i++) {
        int64_t b = i / n, at = first - b * late + i % n;
        ids[i] = (int32_t)at;
        ids[B * n + i] = (int32_t)(at < 0 ? -1 : b * T + at);
    }
    *batch = (ax_batch){.positions = ax_tensor_make(AX_I32, 2, (int64_t[]){B, n}, NULL, &none)};
    batch->places = batch->positions;
    batch->positions.data = ids;
    batch->places.data = ids + B * n;
}

/* Runs positions first … first+n-1, those of sequence 1 `late` earlier, and writes their outputs to their
 * rows of y, if they are not before the sequence. */
static ax_status run_positions(ax_ctx *ctx, ax_layer *layer, ax_frame *frame, int64_t first, int64_t n,
                               int64_t late, double *y)
{
    double host[B * T * WIDTH];
    int32_t ids[2 * B * T];
    ax_batch batch;
    ax_layout layout = ax_activation_layout(ctx, AX_ROLE_MODEL);
    describe(first, n, late, ids, &batch);
    ax_tensor x = ax_tensor_make(AX_F64, 3, (int64_t[]){B, n, WIDTH}, NULL, &layout), out;
    AX_TRY(ax_frame_begin(frame, "positions", AX_MODE_EVAL, &batch));
    AX_TRY(ax_frame_alloc(frame, &x, &x));
    inputs(first, n, late, host);
    AX_TRY(ax_tensor_scatter(ctx, &x, host));
    AX_TRY(ax_layer_forward(layer, frame, &x, &out));
    AX_TRY(ax_tensor_collect(ctx, &out, host));
    for (int64_t b = 0; b < B; b++)
        for (int64_t i = 0; i < n * WIDTH; i++)
            if (first - b * late + i / WIDTH >= 0)
                y[(b * T + first - b * late) * WIDTH + i] = host[b * n * WIDTH + i];
    return AX_OK;
}

/* Feeds a prompt at once and then position by position, the second sequence behind the first one. */
static ax_status feed_all(ax_ctx *ctx, ax_layer *layer, ax_frame *frame, cache_case *c)
{
    ax_kv_cache *cache = NULL, *second;
    if (!c->cached)
        return run_positions(ctx, layer, frame, 0, T, 0, c->y);
    AX_TRY(ax_kv_cache_create(ctx, layer, B, T, &cache));
    EXPECT(ax_kv_cache_create(ctx, layer, B, T, &second) == AX_ERR_USAGE && !second);
    ax_status status = run_positions(ctx, layer, frame, 0, PROMPT, LATE, c->y);
    for (int64_t t = PROMPT; t < T && status == AX_OK; t++)
        status = run_positions(ctx, layer, frame, t, 1, LATE, c->y);
    for (int64_t t = T - LATE; t < T && status == AX_OK; t++) /* the first again, as the second goes on */
        status = run_positions(ctx, layer, frame, t, 1, 0, c->y);
    ax_kv_cache_destroy(&cache);
    return status == AX_OK ? run_positions(ctx, layer, frame, 0, T, 0, c->after) : status;
}

static ax_status run_rank(ax_comm *world, void *arg)
{
    cache_case mine = *(cache_case *)arg;
    ax_attention_config config = {
        .width = WIDTH, .heads = HEADS, .kv_heads = mine.kv_heads, .init_std = 0.3, .proj_init_std = 0.3};
    config.window = mine.window;
    ax_ctx *ctx;
    ax_layer *layer = NULL;
    ax_param_set *set = NULL;
    ax_frame *frame = NULL;
    AX_TRY(ax_ctx_create(world, mine.grid, "ref", 1, AX_F64, 5, &ctx));
    ctx->parallel.strategy = &ax_strategy_inference;
    layer = ax_attention(ctx, "a", &config);
    ax_status status = layer ? AX_OK : ax_error_status();
    if (status == AX_OK)
        status = ax_layer_param_set(layer, -1, &set);
    if (status == AX_OK)
        status = ax_param_set_init(set);
    if (status == AX_OK)
        status = ax_frame_create(ctx, 1 << 20, &frame);
    if (status == AX_OK)
        status = feed_all(ctx, layer, frame, &mine);
    ax_frame_destroy(&frame);
    ax_param_set_destroy(&set);
    ax_layer_destroy(&layer);
    ax_ctx_destroy(&ctx);
    if (ax_comm_rank(world) == 0)
        *(cache_case *)arg = mine;
    return status;
}

/* Tolerance: in float64, sums of at most 24 terms of order one are added in another order. */
static void generation_with_a_cache_equals_one_forward(void **state)
{
    (void)state;
    static const ax_grid_size grids[] = {{{1, 1, 1, 1, 1}}, {{2, 1, 1, 1, 1}}, {{3, 1, 1, 1, 1}},
                                         {{4, 2, 1, 1, 1}}, {{6, 1, 1, 1, 1}}, {{2, 3, 1, 1, 1}},
                                         {{8, 1, 1, 1, 1}}, {{2, 1, 2, 1, 2}}};
    for (int64_t kv = 1; kv <= HEADS; kv++) {
        if (HEADS % kv)
            continue;
        const int64_t window = kv == 3 ? 2 : 0; /* shorter than the prompt and than the steps after it */
        cache_case whole = {.grid = grids[0], .kv_heads = kv, .window = window};
        assert_ranks(1, run_rank, &whole);
        for (size_t i = 0; i < AX_COUNT(grids); i++) {
            if (!ax_heads_fit(HEADS, kv, grids[i].of[AX_X]))
                continue;
            cache_case split = {.grid = grids[i], .kv_heads = kv, .window = window, .cached = true};
            assert_ranks(grid_ranks(split.grid), run_rank, &split);
            for (int k = 0; k < B * T * WIDTH; k++)
                if (!(fabs(split.y[k] - whole.y[k]) < 1e-13 && fabs(split.after[k] - whole.y[k]) < 1e-13))
                    fail_msg("%d key heads, x=%d y=%d: element %d is %g, and %g without the cache, not %g",
                             (int)kv, grids[i].of[AX_X], grids[i].of[AX_Y], k, split.y[k], split.after[k],
                             whole.y[k]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(generation_with_a_cache_equals_one_forward)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
