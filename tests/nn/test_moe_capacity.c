/* The capacity of experts: which choices have places, and that choices without one add nothing. */
#include "axonn/nn.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- places -------------------------------------------------------------------------------------- */

static void factors_become_places(void **state)
{
    (void)state;
    static const struct {
        double factor;
        int64_t experts, top_k, tokens, places;
    } rows[] = {{0, 8, 2, 16, 0},      {1, 8, 2, 16, 4},    {1.25, 8, 2, 16, 5},
                {1.26, 8, 2, 16, 6},   {1e-9, 8, 2, 16, 1}, {8, 8, 2, 16, 16},
                {1.1, 10, 2, 100, 22}, {1, 3, 1, 10, 4},    {1.15, 4, 1, 400, 115}};
    for (size_t i = 0; i < AX_COUNT(rows); i++)
        assert_int_equal(ax_expert_capacity(rows[i].factor, rows[i].experts, rows[i].top_k, rows[i].tokens),
                         rows[i].places);
}

enum { SAMPLES = 3, TOKENS = 23, TOP_K = 3, EXPERTS = 5, CHOICES = SAMPLES * TOKENS * TOP_K };

/* Marks the choices without a place, token after token, as kernel admit must. */
static void mark(const int32_t *ids, int64_t capacity, int32_t *choice)
{
    for (int s = 0; s < SAMPLES; s++) {
        int64_t used[EXPERTS] = {0};
        for (int i = s * TOKENS; i < (s + 1) * TOKENS; i++)
            for (int j = 0; j < TOP_K; j++) {
                int32_t *c = &choice[i * TOP_K + j];
                const bool fits = (!ids || ids[i] >= 0) && used[*c] < capacity;
                used[*c] += fits;
                *c = fits ? *c : -1 - *c;
            }
    }
}

static void run_admit(const char *device, const int32_t *ids, int64_t capacity, int32_t *choice)
{
    ax_device *dev;
    assert_int_equal(ax_device_open(device, 2, &dev), AX_OK);
    ax_stream stream = {dev, NULL};
    assert_int_equal(ax_run_admit(&stream, &(ax_admit_args){.samples = SAMPLES,
                                                            .tokens = TOKENS,
                                                            .experts = EXPERTS,
                                                            .top_k = TOP_K,
                                                            .capacity = capacity,
                                                            .ids = ids,
                                                            .choice = choice}),
                     AX_OK);
    assert_int_equal(ax_stream_wait(&stream), AX_OK);
    ax_device_close(&dev);
}

static void places_go_to_tokens_in_order(void **state)
{
    (void)state;
    int32_t choice[CHOICES], ids[SAMPLES * TOKENS];
    for (int i = 0; i < SAMPLES * TOKENS; i++) {
        ids[i] = i % 4 == 1 ? -1 : i;
        for (int j = 0, e = (int)(ax_rng_uniform(3, (uint64_t)i) * EXPERTS); j < TOP_K; j++)
            choice[i * TOP_K + j] = (e + j * (1 + i % 2)) % EXPERTS;
    }
    for (int n = 0; n < 2 * TOKENS; n++) {
        static const char *const devices[] = {"ref", "cpu"};
        const int32_t *which = n % 2 ? ids : NULL;
        int32_t expected[CHOICES];
        memcpy(expected, choice, sizeof choice);
        mark(which, 1 + n / 2, expected);
        for (size_t d = 0; d < AX_COUNT(devices); d++) {
            int32_t got[CHOICES];
            memcpy(got, choice, sizeof choice);
            run_admit(devices[d], which, 1 + n / 2, got);
            assert_memory_equal(got, expected, sizeof got);
        }
    }
}

/* ---- the layer ----------------------------------------------------------------------------------- */

enum { ROWS = 4, T = 6, WIDTH = 7, FFN = 5, FRAME = 1 << 20, N = ROWS * T * WIDTH };

static ax_layer *make_layer(ax_ctx *ctx, double capacity)
{
    return ax_moe(ctx, "m",
                  &(ax_moe_config){.width = WIDTH,
                                   .ffn = FFN,
                                   .experts = EXPERTS,
                                   .top_k = 2,
                                   .activation = AX_SILU,
                                   .init_std = 0.5,
                                   .down_init_std = 0.5,
                                   .capacity = capacity});
}

/* What a layer computes from the rows first … first+rows-1 of the tokens. */
typedef struct outcome {
    double y[N], dx[N];
} outcome;

typedef struct bench {
    ax_comm *self;
    ax_ctx *ctx;
    ax_layer *layer;
    ax_param_set *set;
    ax_frame *frame;
} bench;

static bench bench_open(double capacity)
{
    bench b;
    assert_int_equal(ax_comm_self_create(&b.self), AX_OK);
    assert_int_equal(ax_ctx_create(b.self, (ax_grid_size){{1}}, "ref", 1, AX_F64, 1, &b.ctx), AX_OK);
    b.layer = make_layer(b.ctx, capacity);
    assert_non_null(b.layer);
    assert_int_equal(ax_layer_param_set(b.layer, 0, &b.set), AX_OK);
    assert_int_equal(ax_param_set_init(b.set), AX_OK);
    assert_int_equal(ax_param_set_zero_grad(b.set), AX_OK);
    assert_int_equal(ax_frame_create(b.ctx, FRAME, &b.frame), AX_OK);
    return b;
}

static void bench_close(bench *b)
{
    ax_frame_destroy(&b->frame);
    ax_param_set_destroy(&b->set);
    ax_layer_destroy(&b->layer);
    ax_ctx_destroy(&b->ctx);
    ax_comm_destroy(&b->self);
}

/* Runs the layer on the rows first … first+rows-1 of N values. ids: NULL, or the tokens' ids. */
static void run(bench *b, ax_mode mode, int first, int rows, int32_t *ids, outcome *out)
{
    const int64_t dim[] = {rows, T, WIDTH};
    const size_t bytes = (size_t)(rows * T * WIDTH) * sizeof(double);
    ax_tensor x = ax_tensor_make(AX_F64, 3, dim, NULL, NULL), y, dx;
    ax_batch batch = {.tokens = ax_tensor_make(AX_I32, 2, dim, NULL, NULL)};
    double tokens[N];
    for (int i = 0; i < N; i++)
        tokens[i] = ax_rng_normal(5, (uint64_t)i);
    batch.tokens.data = ids ? ids + first * T : NULL;
    x.data = tokens + first * T * WIDTH;
    assert_int_equal(ax_frame_begin(b->frame, "t", mode, &batch), AX_OK);
    assert_int_equal(ax_layer_forward(b->layer, b->frame, &x, &y), AX_OK);
    memcpy(out->y + first * T * WIDTH, y.data, bytes);
    if (mode == AX_MODE_EVAL)
        return;
    assert_int_equal(ax_layer_backward(b->layer, b->frame, &x, &dx), AX_OK);
    memcpy(out->dx + first * T * WIDTH, dx.data, bytes);
}

/* Each sample by itself, or all together: the same bits. */
static void samples_do_not_depend_on_each_other(void **state)
{
    (void)state;
    static outcome whole, cut;
    bench b = bench_open(0.5);
    run(&b, AX_MODE_TRAIN, 0, ROWS, NULL, &whole);
    for (int rows = 1; rows < ROWS; rows *= 2) {
        memset(&cut, 0, sizeof cut);
        for (int first = 0; first < ROWS; first += rows)
            run(&b, AX_MODE_TRAIN, first, rows, NULL, &cut);
        assert_memory_equal(&cut, &whole, sizeof cut);
    }
    bench_close(&b);
}

/* Padding has no rows, and leaves its places to other tokens. Evaluation drops nothing. */
static void padding_takes_no_places(void **state)
{
    (void)state;
    static outcome all, some, dropless, evaluated;
    int32_t ids[ROWS * T];
    bench b = bench_open(0.5), free_of = bench_open(0);
    for (int i = 0; i < ROWS * T; i++)
        ids[i] = i % T < 2 ? -1 : i; /* padding before all other tokens */
    run(&b, AX_MODE_TRAIN, 0, ROWS, NULL, &all);
    run(&b, AX_MODE_TRAIN, 0, ROWS, ids, &some);
    run(&free_of, AX_MODE_TRAIN, 0, ROWS, NULL, &dropless);
    run(&b, AX_MODE_EVAL, 0, ROWS, NULL, &evaluated);
    assert_memory_equal(evaluated.y, dropless.y, sizeof dropless.y);
    assert_memory_not_equal(all.y, dropless.y, sizeof dropless.y);
    int more = 0;
    for (int i = 0; i < ROWS * T; i++) {
        const double *token = some.y + i * WIDTH;
        for (int c = 0; c < WIDTH && i % T < 2; c++)
            assert_true(token[c] == 0);
        more += i % T >= 2 && memcmp(token, all.y + i * WIDTH, WIDTH * sizeof *token) != 0;
    }
    assert_true(more > 0); /* of the other tokens some have places that padding had */
    bench_close(&b);
    bench_close(&free_of);
}

/* The result of a token is that of the tokens up to it alone: a later one takes no place from it. */
static void later_tokens_take_no_places(void **state)
{
    (void)state;
    static outcome all, first;
    int32_t ids[ROWS * T];
    bench b = bench_open(0.5);
    run(&b, AX_MODE_TRAIN, 0, ROWS, NULL, &all);
    for (int from = 1; from < T; from++) {
        for (int i = 0; i < ROWS * T; i++)
            ids[i] = i % T < from ? i : -1;
        run(&b, AX_MODE_TRAIN, 0, ROWS, ids, &first);
        for (int i = 0; i < ROWS * T; i++)
            if (i % T < from)
                assert_memory_equal(first.y + i * WIDTH, all.y + i * WIDTH, WIDTH * sizeof *all.y);
    }
    bench_close(&b);
}

static void a_negative_capacity_is_refused(void **state)
{
    (void)state;
    static const double wrong[] = {-1, NAN};
    for (size_t i = 0; i < AX_COUNT(wrong); i++) {
        bench b = bench_open(1);
        assert_null(make_layer(b.ctx, wrong[i]));
        assert_non_null(strstr(ax_error_message(), "choose a positive factor"));
        bench_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(factors_become_places),
                                       cmocka_unit_test(places_go_to_tokens_in_order),
                                       cmocka_unit_test(samples_do_not_depend_on_each_other),
                                       cmocka_unit_test(padding_takes_no_places),
                                       cmocka_unit_test(later_tokens_take_no_places),
                                       cmocka_unit_test(a_negative_capacity_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
