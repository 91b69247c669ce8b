/* Kernel choose against a sort, on 1 to 200 keys: on small integers, whose scores are exact and often equal,
 * the bits are those of the sort; on random numbers no chosen score is more than a rounding below the last
 * one that the sort chooses. And the bytes that attention of few keys counts, against closed forms. */
#include "axonn/dev.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 200, WIDTH = 40, WORDS = (MOST + 63) / 64 };

typedef struct scored {
    double score;
    int64_t key;
} scored;

/* The order of choice: falling scores, then rising positions. */
static int by_choice(const void *a, const void *b)
{
    const scored *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->key < y->key ? -1 : 1;
}

static float q[WIDTH], k[MOST][WIDTH];

static void draw(uint64_t seed, bool integers)
{
    for (int64_t i = 0; i < WIDTH + MOST * WIDTH; i++) {
        const double u = ax_rng_uniform(seed, (uint64_t)i);
        const float x = integers ? (float)floor(5 * u) - 2 : (float)(2 * u - 1);
        if (i < WIDTH)
            q[i] = x;
        else
            k[i / WIDTH - 1][i % WIDTH] = x;
    }
}

static bool has(const uint64_t *bits, int64_t j) { return bits[j / 64] >> j % 64 & 1; }

/* What the last of n positions chooses: `keys` keys, by the first `width` elements. Several query heads share
 * the key head, and choose together. */
typedef struct call {
    int64_t n, heads, width, keys;
    const float *q; /* [heads, WIDTH] */
    uint64_t *bits; /* gets the choice */
} call;

static void choose(ax_stream *stream, const call *c)
{
    assert_int_equal(ax_run_choose(stream, &(ax_choose_args){.batch = 1,
                                                             .q_len = 1,
                                                             .kv_len = c->n,
                                                             .q_offset = c->n - 1,
                                                             .heads = c->heads,
                                                             .kv_heads = 1,
                                                             .width = c->width,
                                                             .q_ld = c->heads * WIDTH,
                                                             .q_step = WIDTH,
                                                             .k_ld = WIDTH,
                                                             .k_step = WIDTH,
                                                             .k_batch_stride = c->n * WIDTH,
                                                             .q = c->q,
                                                             .k = k,
                                                             .keys = c->keys,
                                                             .chosen = c->bits,
                                                             .dtype = AX_F32,
                                                             .group = c->heads > 1}),
                     AX_OK);
}

/* Chooses `wanted` of n keys by their first `width` elements, and compares. */
static void check(ax_stream *stream, int64_t n, int64_t wanted, int64_t width, bool integers)
{
    scored all[MOST];
    uint64_t bits[WORDS];
    int64_t chosen = 0;
    for (int64_t j = 0; j < n; j++) {
        all[j] = (scored){0, j};
        for (int64_t c = 0; c < width; c++)
            all[j].score += (double)q[c] * (double)k[j][c];
    }
    qsort(all, (size_t)n, sizeof *all, by_choice);
    memset(bits, 0xff, sizeof bits);
    choose(stream, &(call){.n = n, .heads = 1, .width = width, .keys = wanted, .q = q, .bits = bits});
    const int64_t most = wanted < n ? wanted : n;
    const double last = all[most - 1].score, rounding = integers ? 0 : (double)width * 0x1p-23;
    for (int64_t i = 0; i < n; i++) {
        const bool here = has(bits, all[i].key);
        chosen += here;
        if (integers && here != (i < most))
            fail_msg("%lld of %lld keys, width %lld: key %lld is%s chosen", (long long)wanted, (long long)n,
                     (long long)width, (long long)all[i].key, here ? "" : " not");
        if (here)
            assert_true(all[i].score >= last - rounding);
        else
            assert_true(all[i].score <= last + rounding);
    }
    assert_int_equal(chosen, most);
    for (int64_t j = n; j < (n + 63) / 64 * 64; j++)
        assert_false(has(bits, j));
}

static void choices_are_those_of_a_sort(void **state)
{
    static const char *const devices[] = {"ref", "cpu"};
    (void)state;
    for (size_t d = 0; d < AX_COUNT(devices); d++) {
        ax_device *dev;
        assert_int_equal(ax_device_open(devices[d], 1, &dev), AX_OK);
        ax_stream stream = {dev, NULL};
        for (int64_t n = 1; n <= MOST; n++)
            for (int way = 0; way < 2; way++) {
                draw((uint64_t)(2 * n + way), way == 0);
                const int64_t wanted[] = {1, (n + 3) / 4, n - n / 3, n, n + 1}, widths[] = {1, 8, WIDTH};
                for (size_t i = 0; i < AX_COUNT(wanted); i++)
                    check(&stream, n, wanted[i], widths[(i + (size_t)n) % AX_COUNT(widths)], way == 0);
            }
        ax_device_close(&dev);
    }
}

/* A score that is not a number counts as the largest, also if the query heads of a key head choose together.
 */
static void check_no_number(const char *device)
{
    ax_device *dev;
    assert_int_equal(ax_device_open(device, 1, &dev), AX_OK);
    ax_stream stream = {dev, NULL};
    enum { N = 70, HEADS = 2 };
    static float heads[HEADS][WIDTH];
    uint64_t bits[2];
    draw(7, false);
    for (int h = 0; h < HEADS; h++) {
        memcpy(heads[h], q, sizeof q);
        heads[h][0] = h ? -1.0f : 0.0f; /* infinity · 0 is no number; infinity · -1 is the smallest score */
    }
    k[5][0] = INFINITY;
    choose(&stream, &(call){.n = N, .heads = HEADS, .width = 8, .keys = 2, .q = heads[0], .bits = bits});
    assert_true(has(bits, 5));
    ax_device_close(&dev);
}

static void what_is_no_number_is_chosen(void **state)
{
    (void)state;
    check_no_number("ref");
    check_no_number("cpu");
}

/* More keys than a thread has scratch for the scores of several heads, or for a list of keys: three query
 * heads together choose some, and attend to them. Scores are integers above LONG_LEAST. */
enum { LONG = 500007, LONG_H = 3, LONG_D = 4, LONG_LEAST = -200, LONG_WANTED = LONG / 3 };
static float kv[LONG * LONG_D], values[LONG * LONG_D], queries[LONG_H * LONG_D];
static int64_t group_score[LONG];

static int64_t score_of(int h, int64_t j)
{
    double sum = 0;
    for (int i = 0; i < LONG_D; i++)
        sum += (double)queries[h * LONG_D + i] * (double)kv[j * LONG_D + i];
    return (int64_t)sum;
}

/* Fails unless the LONG_WANTED best keys have bits, of equal ones the first. */
static void check_choice(const uint64_t *bits)
{
    static int64_t count[-LONG_LEAST + 1], most[LONG_H];
    for (int h = 0; h < LONG_H; h++)
        for (int64_t j = 0; j < LONG; j++)
            most[h] = j && most[h] > score_of(h, j) ? most[h] : score_of(h, j);
    for (int64_t j = 0; j < LONG; j++) {
        group_score[j] = LONG_LEAST;
        for (int h = 0; h < LONG_H; h++) {
            const int64_t x = score_of(h, j) - most[h];
            group_score[j] = x > group_score[j] ? x : group_score[j];
        }
        count[-group_score[j]]++;
    }
    int64_t last = 0,
            left = LONG_WANTED; /* the score of the last key that is chosen; how many have it or less */
    for (; count[last] < left; last++)
        left -= count[last];
    for (int64_t j = 0; j < LONG; j++) {
        const bool chosen = group_score[j] > -last || (group_score[j] == -last && left-- > 0);
        assert_int_equal(has(bits, j), chosen);
    }
}

/* A sum of n terms in fp32 is off by at most n · 2^-24 of the sum of their sizes, here at most 4 times that
 * of the weights: 0.04. Values rise with the position, so a piece that is left out changes more. */
static void check_attention(const uint64_t *bits, const float *out)
{
    for (int h = 0; h < LONG_H; h++) {
        double sum = 0, of[LONG_D] = {0};
        for (int64_t j = 0; j < LONG; j++) {
            const double weight = has(bits, j) ? exp(0.02 * (double)score_of(h, j)) : 0;
            sum += weight;
            for (int i = 0; i < LONG_D; i++)
                of[i] += weight * (double)values[j * LONG_D + i];
        }
        for (int i = 0; i < LONG_D; i++)
            assert_float_equal(out[h * LONG_D + i], of[i] / sum, 4 * LONG_WANTED * 0x1p-24f);
    }
}

static void long_sequences_have_choices(void **state)
{
    static uint64_t bits[(LONG + 63) / 64];
    float out[LONG_H * LONG_D];
    ax_device *dev;
    (void)state;
    for (int64_t i = 0; i < LONG * LONG_D; i++)
        kv[i] = (float)(i * 7919 % 1013 % 9) - 4, values[i] = 4 * (float)i / (LONG * LONG_D);
    for (int64_t i = 0; i < LONG_H * LONG_D; i++)
        queries[i] = (float)(i % 5) - 2;
    assert_int_equal(ax_device_open("cpu", 2, &dev), AX_OK);
    ax_stream stream = {dev, NULL};
    assert_int_equal(ax_run_choose(&stream, &(ax_choose_args){.batch = 1,
                                                              .q_len = 1,
                                                              .kv_len = LONG,
                                                              .q_offset = LONG - 1,
                                                              .heads = LONG_H,
                                                              .kv_heads = 1,
                                                              .width = LONG_D,
                                                              .q_ld = LONG_H * LONG_D,
                                                              .q_step = LONG_D,
                                                              .k_ld = LONG_D,
                                                              .k_step = LONG_D,
                                                              .k_batch_stride = LONG * LONG_D,
                                                              .q = queries,
                                                              .k = kv,
                                                              .keys = LONG_WANTED,
                                                              .chosen = bits,
                                                              .dtype = AX_F32,
                                                              .group = true}),
                     AX_OK);
    check_choice(bits);
    assert_int_equal(ax_run_attention(&stream, &(ax_attention_args){.batch = 1,
                                                                    .q_len = 1,
                                                                    .kv_len = LONG,
                                                                    .q_offset = LONG - 1,
                                                                    .heads = LONG_H,
                                                                    .kv_heads = 1,
                                                                    .head_dim = LONG_D,
                                                                    .q_ld = LONG_H * LONG_D,
                                                                    .kv_ld = LONG_D,
                                                                    .scale = 0.02,
                                                                    .q = queries,
                                                                    .k = kv,
                                                                    .v = values,
                                                                    .o = out,
                                                                    .chosen = bits,
                                                                    .choosers = 1,
                                                                    .chosen_keys = LONG_WANTED,
                                                                    .dtype = AX_F32}),
                     AX_OK);
    check_attention(bits, out);
    ax_device_close(&dev);
}

/* A head with e elements and s keys, of which it reads K by D elements, in bf16: reading D·s + 2·K·e elements
 * of the cache and e² of the matrix, which is fp32, and of each operand its own bytes; a word for each 64
 * keys is written, and read. (Paper 2406.02542 counts D·s + 2·K·e + 2·e².) */
static double bytes_of(ax_kernel kernel, const void *args)
{
    double flops, bytes;
    ax_kernel_cost(kernel, args, &flops, &bytes);
    return bytes;
}

static void bytes_are_those_of_the_paper(void **state)
{
    (void)state;
    static char memory[8];
    const int64_t e = 128, s = 3072, D = 32, K = 768, words = s / 64;
    const ax_choose_args choose = {.batch = 1,
                                   .q_len = 1,
                                   .kv_len = s,
                                   .q_offset = s - 1,
                                   .heads = 1,
                                   .kv_heads = 1,
                                   .width = D,
                                   .q_ld = e,
                                   .q_step = e,
                                   .k_ld = D,
                                   .k_step = s * D,
                                   .k_batch_stride = s * D,
                                   .q = memory,
                                   .k = memory,
                                   .keys = K,
                                   .chosen = (uint64_t *)(void *)memory,
                                   .dtype = AX_BF16};
    const ax_attention_args attention = {.batch = 1,
                                         .q_len = 1,
                                         .kv_len = s,
                                         .q_offset = s - 1,
                                         .heads = 1,
                                         .kv_heads = 1,
                                         .head_dim = e,
                                         .q_ld = e,
                                         .kv_ld = e,
                                         .scale = 1,
                                         .q = memory,
                                         .k = memory,
                                         .v = memory,
                                         .chosen = (const uint64_t *)(const void *)memory,
                                         .choosers = 1,
                                         .chosen_keys = K,
                                         .o = memory,
                                         .dtype = AX_BF16};
    const ax_turn_args turn = {.rows = 1,
                               .heads = 1,
                               .kv_heads = 1,
                               .head_dim = e,
                               .ld = e,
                               .turn = memory,
                               .x = memory,
                               .dtype = AX_BF16};
    assert_true(bytes_of(AX_K_choose, &choose) == (double)(2 * (D * s + D) + 8 * words));
    assert_true(bytes_of(AX_K_attention, &attention) == (double)(2 * (2 * K * e + 2 * e) + 8 * words));
    assert_true(bytes_of(AX_K_turn, &turn) == (double)(4 * e * e + 2 * 2 * e));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices_are_those_of_a_sort), cmocka_unit_test(what_is_no_number_is_chosen),
        cmocka_unit_test(long_sequences_have_choices), cmocka_unit_test(bytes_are_those_of_the_paper)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
