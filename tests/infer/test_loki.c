/* Attention that reads few keys (Loki). If it chooses all keys, logits are those of full attention, whatever
 * the basis; if it chooses some, a sequence fed token by token has the logits of an evaluation in which every
 * token chooses. Both on models with learned positions, rotary embeddings, grouped heads, windows, and norms
 * of heads, in all dtypes, on one rank, with heads divided among fewer and more ranks than key heads, and on
 * two pipeline stages. A calibration gives on every grid what it gives on one rank, and belongs to its model.
 */
#include "axonn/infer.h"
#include "support/ranks.h"
#include "support/sampled.h"
#include "support/scratch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_POSITIONS = 64, MAX_VOCAB = 128, TOKENS = 1200, SLOTS = 5 };

typedef struct setup {
    const char *model, *device;
    ax_grid_size grid;
    bool before; /* the basis is that of keys before the rotary embedding */
    ax_dtype dtype;
} setup;

static const setup setups[] = {
    {"gpt2/exact", "cpu", {{1, 2, 1, 3, 1}}, false, AX_F32},
    {"gpt2/exact", "check:cpu", {{2, 1, 1, 1, 1}}, false, AX_F32},
    {"gpt2/tanh", "cpu", {{1, 1, 1, 1, 1}}, false, AX_F32},
    {"gpt2/tiny", "check:cpu", {{4, 1, 1, 1, 1}}, false, AX_F32}, /* some ranks have no head */
    {"llama/grouped", "cpu", {{1, 1, 1, 1, 1}}, true, AX_F32},
    {"llama/grouped", "cpu", {{3, 1, 1, 1, 1}}, false, AX_F32},
    {"llama/linear", "ref", {{1, 1, 1, 1, 1}}, true, AX_F32},
    {"mistral/window", "cpu", {{1, 1, 1, 1, 1}}, true, AX_F32},
    {"mistral/window", "check:cpu", {{2, 1, 1, 2, 1}}, true, AX_F32},
    {"mistral/window", "cpu", {{4, 1, 1, 1, 1}}, false, AX_F32},
    {"qwen3/norms", "cpu", {{1, 1, 1, 1, 1}}, false, AX_F32},
    {"qwen3/norms", "cpu", {{4, 2, 1, 1, 1}}, true, AX_F32},
    {"qwen3/norms", "cpu", {{1, 1, 1, 1, 2}}, true, AX_F32},
    {"mixtral/window", "cpu", {{1, 1, 1, 1, 2, 2}}, false, AX_F32},
    {"llama/grouped", "cpu", {{1, 1, 1, 1, 1}}, true, AX_BF16},
    {"qwen3/norms", "check:cpu", {{2, 1, 1, 1, 1}}, false, AX_BF16},
    {"mistral/window", "cpu", {{1, 1, 1, 2, 1}}, true, AX_F16},
    {"qwen3/norms", "ref", {{1, 1, 1, 1, 1}}, true, AX_F16},
    {"llama/grouped", "cpu", {{3, 1, 1, 1, 1}}, false, AX_F64},
    {"gpt2/tanh", "ref", {{1, 1, 1, 1, 1}}, false, AX_F64}};

typedef struct logits {
    float of[MAX_POSITIONS][MAX_VOCAB];
} logits;

typedef struct job {
    const setup *setup;
    const char *dir; /* a scratch directory, with the token files */
    ax_ctx *ctx;
    ax_pretrained model;
    int64_t n; /* positions */
    int32_t ids[MAX_POSITIONS];
    char basis[SCRATCH_PATH + 40];
    double largest;
    logits full, chosen;
} job;

static ax_status keep(void *user, int64_t position, const float *from, int64_t vocab)
{
    EXPECT(position < MAX_POSITIONS && vocab <= MAX_VOCAB);
    memcpy(((logits *)user)->of[position], from, (size_t)vocab * sizeof *from);
    return AX_OK;
}

/* The largest difference of logits that is permitted, relative to the largest logit. fp32: sums in another
 * order. fp64: the matrices are orthogonal within a rounding of fp32, as which they are stored. 16 bits:
 * queries and keys are rounded once more after they are turned, and what follows rounds other numbers: in two
 * layers 16 roundings (q, k, attention, projection, two sums, two of the MLP) of 2^-9 for bf16, of 2^-12 for
 * fp16. */
static double tolerance_of(ax_dtype dtype)
{
    return dtype == AX_BF16 ? 16 * 0x1p-9 : dtype == AX_F16 ? 16 * 0x1p-12 : 1e-5;
}

static ax_status near(const job *j, const float *got, const float *want)
{
    for (int64_t v = 0; v < j->model.config.vocab; v++)
        AX_CHECK(fabs(got[v] - want[v]) <= tolerance_of(j->setup->dtype) * j->largest, AX_ERR_INTERNAL,
                 "logit %lld is %g, not %g", (long long)v, got[v], want[v]);
    return AX_OK;
}

/* Feeds all tokens to one slot of several: the first `prompt` at once, the others one by one, while other
 * slots are at other positions. Moves on to another slot, by a copy, in the middle. */
static ax_status step_through(job *j, int64_t slots, int64_t prompt, const logits *want)
{
    ax_generator *g;
    const float *now;
    int64_t mine = slots - 1;
    const int64_t vocab = j->model.config.vocab;
    const ax_generator_options o = {slots, ax_min(3, j->n), j->n};
    AX_TRY(ax_generator_create(j->ctx, &j->model, &o, &g));
    ax_status status = ax_generator_feed(g, mine, j->ids, prompt, prompt == 1 ? &now : NULL);
    for (int64_t at = prompt; at < j->n && status == AX_OK; at++) {
        int32_t tokens[SLOTS];
        for (int64_t s = 0; s < slots; s++)
            tokens[s] = s == mine ? j->ids[at] : s && at < j->n - 2 ? j->ids[(5 * s + at) % 11] : AX_IDLE;
        status = ax_generator_step(g, tokens, &now);
        if (status == AX_OK)
            status = near(j, now + mine * vocab, want->of[at]);
        if (status != AX_OK)
            ax_error_context("%lld slots, prompt of %lld, position %lld", (long long)slots, (long long)prompt,
                             (long long)at);
        if (at == j->n / 2 && slots > 1 && status == AX_OK) {
            status = ax_generator_copy(g, mine, 0, at + 1);
            mine = 0;
        }
    }
    EXPECT(status != AX_OK || ax_ctx_held(j->ctx) == ax_memory_total(ax_generator_memory(g)));
    ax_generator_destroy(&g);
    return status;
}

static ax_status calibrate(job *j)
{
    ax_data *data;
    ax_loki_ranks ranks;
    char path[SCRATCH_PATH + 40];
    snprintf(path, sizeof path, "%s/%lld.tok", j->dir, (long long)j->model.config.vocab);
    AX_TRY(ax_data_open(path, -1, &data));
    const size_t held = ax_ctx_held(j->ctx);
    const ax_loki_calibration how = {.out = j->basis, .tokens = TOKENS, .before = j->setup->before};
    ax_status status = ax_loki_calibrate(j->ctx, &j->model, data, &how, &ranks);
    EXPECT(status != AX_OK || (ranks.layers == j->model.config.layers && ranks.rank[0] >= 1 &&
                               ranks.rank[0] <= (double)ranks.head_dim));
    EXPECT(ax_ctx_held(j->ctx) == held);
    ax_loki_ranks_fini(&ranks);
    ax_data_close(&data);
    return status;
}

static ax_status read_keys(job *j, const ax_key_reading *how)
{
    AX_TRY(ax_pretrained_read_keys(&j->model, how));
    return ax_pretrained_logits(j->ctx, &j->model, j->ids, j->n, keep, &j->chosen);
}

/* Chooses all keys. */
static ax_status exact(job *j, const char *dims, const char *per)
{
    AX_TRY(read_keys(j, &(ax_key_reading){j->basis, "1.0", dims, per}));
    for (int64_t t = 0; t < j->n; t++)
        AX_TRY(near(j, j->chosen.of[t], j->full.of[t]));
    AX_TRY(step_through(j, SLOTS, 4, &j->full));
    return step_through(j, 1, 2, &j->full);
}

/* Chooses some. The first token of a sequence has no choice, so that a prompt of one token chooses too. */
static ax_status some(job *j, const ax_key_reading *how)
{
    double most = 0;
    AX_TRY(read_keys(j, how));
    for (int64_t v = 0; v < j->model.config.vocab; v++)
        most = fmax(most, fabs(j->chosen.of[j->n - 1][v] - j->full.of[j->n - 1][v]));
    EXPECT(most > 10 * tolerance_of(AX_F32) * j->largest); /* the choice matters */
    AX_TRY(step_through(j, SLOTS, 1, &j->chosen));
    if (ax_grid_axis_size(j->ctx->grid, AX_DATA) > 1 && !ax_grid_experts(j->ctx->grid)) {
        j->ctx->parallel.strategy = &ax_strategy_generation; /* each rank along data has slots of its own */
        AX_TRY(step_through(j, SLOTS, 1, &j->chosen));
        j->ctx->parallel.strategy = &ax_strategy_inference;
    }
    return step_through(j, 1, 1, &j->chosen);
}

static ax_status check_model(job *j)
{
    j->n = ax_min(j->model.config.seq_len, MAX_POSITIONS);
    for (int64_t i = 0; i < j->n; i++)
        j->ids[i] = (int32_t)((i * i * 7 + i * 5 + 11) % j->model.config.vocab);
    snprintf(j->basis, sizeof j->basis, "%s/basis.safetensors", j->dir);
    AX_TRY(calibrate(j));
    j->ctx->parallel.strategy = &ax_strategy_inference;
    AX_TRY(ax_pretrained_logits(j->ctx, &j->model, j->ids, j->n, keep, &j->full));
    for (int64_t i = 0; i < j->n * j->model.config.vocab; i++)
        j->largest = fmax(j->largest, fabs(j->full.of[i / j->model.config.vocab][i % j->model.config.vocab]));
    AX_TRY(exact(j, "0.5", NULL));
    AX_TRY(exact(j, "1.0", "group"));
    if (j->setup->dtype != AX_F32) /* a rounding may change a choice */
        return AX_OK;
    if (ax_model_config_head_dim(&j->model.config) > 8) /* else the first elements are all */
        AX_TRY(some(j, &(ax_key_reading){j->basis, "0.3", "8", "group"}));
    AX_TRY(some(j, &(ax_key_reading){j->basis, "3", "1.0", "head"}));
    return some(j, &(ax_key_reading){NULL, "0.25", NULL, NULL});
}

/* Fails unless the eigenvalues of two calibrations fall, and are equal within 1e-5 of the largest of a head:
 * 2 heads of width 12. */
static ax_status same_values(const job *j, const char *a, const char *b)
{
    ax_st *st[2];
    double value[2][2 * 12];
    AX_TRY(ax_st_open(a, &st[0]));
    ax_status status = ax_st_open(b, &st[1]);
    for (int64_t layer = 0; layer < j->model.config.layers && status == AX_OK; layer++) {
        char key[64];
        snprintf(key, sizeof key, "layers.%lld.eigenvalues", (long long)layer);
        for (int i = 0; i < 2 && status == AX_OK; i++)
            status = ax_st_read(st[i], ax_st_find(st[i], key), NULL, NULL, false, AX_F64, value[i]);
        for (int i = 0; i < 2 * 12 && status == AX_OK; i++)
            if (fabs(value[0][i] - value[1][i]) > 1e-5 * value[0][i / 12 * 12] ||
                (i % 12 && value[0][i] > value[0][i - 1]))
                status = ax_fail(AX_ERR_INTERNAL, "eigenvalue %d is %g, not %g", i, value[1][i], value[0][i]);
    }
    ax_st_close(&st[0]);
    if (status == AX_OK)
        ax_st_close(&st[1]);
    return status;
}

/* The keys that are chosen in a run, as attention gets them. */
enum { MAX_WORDS = 1 << 14 };
typedef struct choices {
    ax_device *dev;
    ax_status status;
    int64_t n;
    uint64_t word[MAX_WORDS];
} choices;

static void note_choices(void *user, const ax_device_event *e)
{
    choices *c = user;
    const ax_attention_args *a = e->args;
    if (e->kernel != AX_K_attention || !a->chosen)
        return;
    const int64_t n = a->batch * a->q_len * a->choosers * ax_ceil_div(a->kv_len, 64);
    ax_stream stream = {c->dev, NULL};
    AX_ASSERT(c->n + n <= MAX_WORDS);
    ax_status status = ax_copy_out(&stream, c->word + c->n, a->chosen, (size_t)n * sizeof *a->chosen);
    c->status = c->status == AX_OK ? status : c->status;
    c->n += n;
}

static ax_status find_choices(job *j, const char *basis, choices *c)
{
    ax_listener listener = {AX_ON_KERNEL, note_choices, c, NULL};
    c->dev = j->ctx->dev;
    AX_TRY(ax_pretrained_read_keys(&j->model, &(ax_key_reading){basis, "0.25", "8", NULL}));
    ax_device_listen(j->ctx->dev, &listener);
    ax_status status = ax_pretrained_logits(j->ctx, &j->model, j->ids, j->n, keep, &j->chosen);
    ax_device_unlisten(j->ctx->dev, &listener);
    return status == AX_OK ? c->status : status;
}

/* Fails unless the bases of both files choose the same keys, but one of a hundred. Their vectors need not be
 * the same, where eigenvalues are nearly equal. */
static ax_status same_choices(job *j, const char *a, const char *b)
{
    choices *c;
    int64_t both = 0, any = 0;
    AX_TRY(ax_calloc(2, sizeof *c, &c));
    j->n = ax_min(j->model.config.seq_len, MAX_POSITIONS);
    for (int64_t i = 0; i < j->n; i++)
        j->ids[i] = (int32_t)((i * i * 7 + i * 5 + 11) % j->model.config.vocab);
    j->ctx->parallel.strategy = &ax_strategy_inference;
    ax_status status = find_choices(j, a, &c[0]);
    if (status == AX_OK)
        status = find_choices(j, b, &c[1]);
    EXPECT(c[0].n == c[1].n);
    for (int64_t i = 0; i < c[0].n && status == AX_OK; i++) {
        both += __builtin_popcountll(c[0].word[i] & c[1].word[i]);
        any += __builtin_popcountll(c[0].word[i] | c[1].word[i]);
    }
    free(c);
    EXPECT(status != AX_OK || ax_grid_axis_size(j->ctx->grid, AX_X) > 2 || any > 0);
    if (status == AX_OK && (double)both < 0.99 * (double)any)
        return ax_fail(AX_ERR_INTERNAL, "%lld keys are chosen by both bases, %lld by one of them",
                       (long long)both, (long long)any);
    return status;
}

/* The first grid writes the file with which the others compare theirs. */
static ax_status calibrate_alike(job *j)
{
    char first[sizeof j->basis];
    const bool here = ax_grid_ranks(j->ctx->grid) == 1;
    snprintf(first, sizeof first, "%s/first.safetensors", j->dir);
    snprintf(j->basis, sizeof j->basis, "%s/%s.safetensors", j->dir, here ? "first" : "other");
    AX_TRY(calibrate(j));
    if (here)
        return AX_OK;
    AX_TRY(same_values(j, first, j->basis));
    return same_choices(j, first, j->basis);
}

static ax_status with_model(ax_comm *world, const setup *s, const char *dir, ax_status (*fn)(job *))
{
    job *j;
    char path[512];
    AX_TRY(ax_calloc(1, sizeof *j, &j));
    *j = (job){.setup = s, .dir = dir};
    snprintf(path, sizeof path, "%s/tests/golden/%s", AXONN_SOURCE_DIR, s->model);
    ax_status status = ax_pretrained_open(path, &j->model);
    if (status == AX_OK)
        status = ax_ctx_create(world, s->grid, s->device, 1, s->dtype, 1, &j->ctx);
    if (status == AX_OK)
        status = fn(j);
    if (status != AX_OK)
        ax_error_context("%s on %s", s->model, s->device);
    ax_ctx_destroy(&j->ctx);
    ax_pretrained_close(&j->model);
    free(j);
    return status;
}

typedef struct run {
    const setup *setup;
    const char *dir;
    ax_status (*fn)(job *);
} run;

static ax_status run_rank(ax_comm *world, void *arg)
{
    const run *r = arg;
    return with_model(world, r->setup, r->dir, r->fn);
}

/* Writes a token file for each of the vocabularies of `setups`. */
static void write_tokens(const char *dir, int64_t vocab)
{
    static int32_t ids[TOKENS + 200];
    char path[SCRATCH_PATH + 40];
    ax_token_writer *w;
    snprintf(path, sizeof path, "%s/%lld.tok", dir, (long long)vocab);
    for (int64_t i = 0; i < TOKENS + 200; i++)
        ids[i] = (int32_t)((i * i * 3 + i / 7) % vocab);
    assert_int_equal(ax_token_writer_create(path, vocab, -1, 0, &w), AX_OK);
    assert_int_equal(ax_token_writer_add(w, ids, TOKENS + 200, -1), AX_OK);
    assert_int_equal(ax_token_writer_finish(&w, NULL), AX_OK);
}

static void logits_agree(void **state)
{
    static const int64_t vocabs[] = {67, 101, 11, 31, 53, 59, 47};
    for (size_t i = 0; i < AX_COUNT(vocabs); i++)
        write_tokens(*state, vocabs[i]);
    for (size_t i = 0; i < AX_COUNT(setups); i++)
        if (my_share(i, 3))
            assert_ranks(grid_ranks(setups[i].grid), run_rank, &(run){&setups[i], *state, check_model});
    static const setup gpu = {"llama/grouped", "cuda", {{1, 1, 1, 1, 1}}, true, AX_F32};
    if (getenv("AXONN_PLUGINS"))
        assert_ranks(1, run_rank, &(run){&gpu, *state, check_model});
}

static void calibrations_agree(void **state)
{
    static const setup grids[] = {{"qwen3/norms", "cpu", {{1, 1, 1, 1, 1}}, true, AX_F32},
                                  {"qwen3/norms", "cpu", {{2, 1, 1, 1, 1}}, true, AX_F32},
                                  {"qwen3/norms", "check:cpu", {{4, 1, 1, 1, 1}}, true, AX_F32},
                                  {"qwen3/norms", "cpu", {{1, 2, 2, 1, 1}}, true, AX_F32},
                                  {"qwen3/norms", "cpu", {{1, 1, 1, 2, 1}}, true, AX_F32},
                                  {"qwen3/norms", "cpu", {{2, 1, 1, 2, 2}}, true, AX_F32}};
    write_tokens(*state, 59);
    for (size_t i = 0; i < AX_COUNT(grids); i++)
        if (i == 0 || my_share(i, 3))
            assert_ranks(grid_ranks(grids[i].grid), run_rank, &(run){&grids[i], *state, calibrate_alike});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(logits_agree, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(calibrations_agree, scratch_setup, scratch_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
