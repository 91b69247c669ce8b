/* Texts of many prompts: each has the same tokens whatever the batch, the other prompts and their order are,
 * on one rank bit by bit, and on grids but where rounding decides a draw. */
#include "infer/continuation.h"
#include "support/ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PROMPTS = 9, SAMPLES = 3, MOST = 12, MAX_VOCAB = 128 };

/* Prompt i are the n ids from number `from` on; some are the same tokens. */
static const struct {
    size_t from, n;
    int64_t samples, max_tokens; /* 0: that of the options */
} prompts[PROMPTS] = {{0, 3, 3, 0}, {1, 1, 2, 5},  {0, 8, 3, 0},  {0, 12, 1, 4}, {0, 3, 1, 9},
                      {4, 7, 2, 1}, {0, 5, 1, 12}, {2, 2, 3, 11}, {1, 11, 3, 2}};

typedef struct setup {
    const char *name, *device;
    ax_grid_size grid;
    ax_dtype compute;
} setup;

typedef struct text {
    int32_t ids[MOST];
    size_t n;
    int times; /* how often it was given */
    ax_finish finish;
} text;

typedef struct job {
    const setup *setup;
    ax_ctx *ctx;
    ax_pretrained model;
    ax_text_options options;
    int32_t ids[MOST];
    const int *order; /* [PROMPTS]: which prompt comes when */
    text texts[PROMPTS][SAMPLES];
    const text (*other)[SAMPLES]; /* those of a grid */
} job;

static ax_status keep(void *user, const ax_continued *one)
{
    job *j = user;
    text *t = &j->texts[j->order[one->prompt]][one->sample];
    EXPECT(one->n <= MOST && !t->times++);
    t->n = one->n;
    t->finish = one->finish;
    memcpy(t->ids, one->ids, one->n * sizeof *one->ids);
    return AX_OK;
}

/* Continues the prompts that `order` names, without the samples that are `done` (NULL: all). */
static ax_status continue_all(job *j, const int *order, size_t count, int64_t batch, const bool *done)
{
    ax_prompt list[PROMPTS];
    memset(j->texts, 0, sizeof j->texts);
    j->order = order;
    for (size_t i = 0; i < count; i++)
        list[i] = (ax_prompt){.ids = j->ids + prompts[order[i]].from,
                              .n = prompts[order[i]].n,
                              .samples = prompts[order[i]].samples,
                              .max_tokens = prompts[order[i]].max_tokens,
                              .done = done};
    return ax_prompts_continue(j->ctx, &j->model, &j->options, list, count, batch, keep, j);
}

static bool same(const text *a, const text *b)
{
    return a->n == b->n && a->finish == b->finish && !memcmp(a->ids, b->ids, a->n * sizeof *a->ids);
}

static const int forward[] = {0, 1, 2, 3, 4, 5, 6, 7, 8}, back[] = {8, 7, 6, 5, 4, 3, 2, 1, 0},
                 some[] = {7, 2};

static ax_status begin(job *j)
{
    static const int64_t stop[] = {17, 40};
    j->options = (ax_text_options){.how = {.temperature = 1, .top_p = 0.95, .repetition_penalty = 1.1},
                                   .seed = 3,
                                   .max_tokens = 8,
                                   .stop = stop,
                                   .stops = AX_COUNT(stop)};
    j->ctx->parallel.strategy =
        ax_grid_experts(j->ctx->grid) ? &ax_strategy_inference : &ax_strategy_generation;
    for (int i = 0; i < MOST; i++)
        j->ids[i] = (i * 37 + 11) % (int32_t)j->model.config.vocab;
    return continue_all(j, forward, PROMPTS, 5, NULL);
}

/* ---- one rank ------------------------------------------------------------------------------------ */

/* Continues a prompt by ax_text, one text after the other. */
static ax_status alone(job *j, ax_text *one, int i, int64_t sample, text *out)
{
    AX_TRY(ax_text_start(one, j->ids + prompts[i].from, prompts[i].n, sample));
    while (ax_text_finish(one) == AX_UNFINISHED)
        AX_TRY(ax_text_next(one));
    const int32_t *ids = ax_text_ids(one, &out->n);
    memcpy(out->ids, ids, out->n * sizeof *ids);
    out->finish = ax_text_finish(one);
    return AX_OK;
}

/* On ref each number is computed in the same way in any pass. */
static ax_status as_alone(job *j, const text (*want)[SAMPLES])
{
    ax_text *one = NULL;
    ax_status status = AX_OK;
    for (int i = 0; i < PROMPTS && status == AX_OK; i++)
        for (int64_t s = 0; s < prompts[i].samples && status == AX_OK; s++) {
            text got = {.n = 0};
            ax_text_options o = j->options;
            o.max_tokens = prompts[i].max_tokens ? prompts[i].max_tokens : o.max_tokens;
            status = ax_text_create(j->ctx, &j->model, &o, &one);
            if (status == AX_OK)
                status = alone(j, one, i, s, &got);
            ax_text_destroy(&one);
            EXPECT(status != AX_OK || same(&got, &want[i][s]));
        }
    return status;
}

static ax_status companions_do_not_matter(job *j)
{
    static const struct {
        const int *order;
        size_t count;
        int64_t batch;
    } ways[] = {{forward, PROMPTS, 1}, {back, PROMPTS, 16}, {some, 2, 3}, {back, PROMPTS, 7}, {some, 2, 1}};
    static const bool done[] = {true, false, true};
    text want[PROMPTS][SAMPLES];
    int ended = 0, different = 0;
    AX_TRY(begin(j));
    memcpy(want, j->texts, sizeof want);
    for (size_t w = 0; w <= AX_COUNT(ways); w++) {
        const bool resumes = w == AX_COUNT(ways);
        const int *order = resumes ? forward : ways[w].order;
        const size_t count = resumes ? PROMPTS : ways[w].count;
        AX_TRY(continue_all(j, order, count, resumes ? 5 : ways[w].batch, resumes ? done : NULL));
        for (size_t i = 0; i < count; i++)
            for (int64_t s = 0; s < prompts[order[i]].samples; s++) {
                const text *got = &j->texts[order[i]][s], *other = &want[order[i]][s];
                EXPECT(got->times == (resumes && done[s] ? 0 : 1) && other->times == 1);
                EXPECT(!got->times || same(got, other));
                ended += other->finish == AX_FINISH_STOP;
                different += s > 0 && !same(other, &want[order[i]][0]);
            }
    }
    EXPECT(ended > 0 && different > 0);
    /* Prompts 0 and 4 are the same tokens, and the second may have one more. */
    EXPECT(!memcmp(want[0][0].ids, want[4][0].ids, want[0][0].n * sizeof *want[0][0].ids));
    return strcmp(j->setup->device, "ref") ? AX_OK : as_alone(j, (const text(*)[SAMPLES])want);
}

static ax_status refused(job *j)
{
    int32_t ids[64] = {0};
    const size_t n = (size_t)ax_model_config_positions(&j->model.config);
    j->ctx->parallel.strategy = &ax_strategy_inference;
    ax_prompt long_one = {.ids = ids, .n = n, .samples = 1};
    EXPECT(ax_prompts_continue(j->ctx, &j->model, &j->options, &long_one, 1, 0, keep, j) == AX_ERR_USAGE);
    EXPECT(ax_prompts_continue(j->ctx, &j->model, &j->options, &long_one, 1, 2, keep, j) == AX_ERR_USAGE);
    return AX_OK;
}

static ax_status with_model(ax_comm *world, const setup *s, job *j, ax_status (*fn)(job *))
{
    static const char models[] = AXONN_SOURCE_DIR "/tests/golden";
    char *dir;
    j->setup = s;
    AX_TRY(ax_path_join(models, s->name, &dir));
    ax_status status = ax_pretrained_open(dir, &j->model);
    if (status == AX_OK)
        status = ax_ctx_create(world, s->grid, s->device, 1, s->compute, 1, &j->ctx);
    if (status == AX_OK)
        status = fn(j);
    ax_ctx_destroy(&j->ctx);
    ax_pretrained_close(&j->model);
    free(dir);
    return status;
}

static ax_status companions_rank(ax_comm *world, void *arg)
{
    job j = {0};
    AX_TRY(with_model(world, arg, &j, companions_do_not_matter));
    return with_model(world, arg, &j, refused);
}

static void texts_do_not_depend_on_others(void **state)
{
    (void)state;
    static const setup setups[] = {{"gpt2/tanh", "ref", {{1, 1, 1, 1, 1}}, AX_F32},
                                   {"gpt2/tanh", "cpu", {{1, 1, 1, 1, 1}}, AX_F32},
                                   {"gpt2/tanh", "cpu", {{1, 1, 1, 1, 1}}, AX_BF16},
                                   {"gpt2/tanh", "check:cpu", {{1, 1, 1, 1, 2}}, AX_F32},
                                   {"mixtral/window", "cpu", {{1, 1, 1, 1, 1}}, AX_F32}};
    for (size_t i = 0; i < AX_COUNT(setups); i++)
        assert_ranks(grid_ranks(setups[i].grid), companions_rank, &setups[i]);
}

/* ---- grids --------------------------------------------------------------------------------------- */

enum { GRIDS = 7 };

typedef struct grids {
    text on[GRIDS][PROMPTS][SAMPLES]; /* written by rank 0 */
    int at;
} grids;

static const setup all_grids[GRIDS] = {
    {"gpt2/tanh", "cpu", {{4, 1, 1, 1, 1}}, AX_F32},        {"gpt2/tanh", "cpu", {{1, 1, 1, 2, 2}}, AX_F32},
    {"gpt2/tanh", "cpu", {{1, 1, 1, 1, 4}}, AX_F32},        {"gpt2/tanh", "cpu", {{2, 1, 1, 2, 1}}, AX_F32},
    {"gpt2/tanh", "cpu", {{1, 2, 2, 1, 1}}, AX_F32},        {"gpt2/tanh", "cpu", {{2, 1, 1, 1, 2}}, AX_F32},
    {"mixtral/window", "cpu", {{1, 1, 1, 1, 2, 2}}, AX_F32}};

static ax_status grid_rank(ax_comm *world, void *arg)
{
    grids *g = arg;
    job j = {0};
    AX_TRY(with_model(world, &all_grids[g->at], &j, begin));
    if (ax_comm_rank(world) == 0)
        memcpy(g->on[g->at], j.texts, sizeof j.texts);
    return AX_OK;
}

static ax_status keep_last(void *user, int64_t position, const float *logits, int64_t vocab)
{
    (void)position;
    memcpy(user, logits, (size_t)vocab * sizeof *logits);
    return AX_OK;
}

/* Returns whether the draw after the tokens that two texts share is near a boundary: other random numbers,
 * within 1e-5, give other tokens. */
static ax_status is_near(job *j, int i, int64_t sample, const text *a, const text *b, bool *near)
{
    enum { STEPS = 64 };
    float logits[MAX_VOCAB], work[3 * MAX_VOCAB];
    ax_continuation c = {0};
    int32_t id, low = -1;
    size_t n = 0;
    const int vocab = (int)j->model.config.vocab;
    const ax_prompt prompt = {
        .ids = j->ids + prompts[i].from, .n = prompts[i].n, .max_tokens = prompts[i].max_tokens};
    AX_TRY(ax_continuation_begin(&c, &j->model, &j->options, &prompt, sample));
    for (; n < a->n && n < b->n && a->ids[n] == b->ids[n]; n++)
        AX_TRY(ax_ids_add(&c.ids, &a->ids[n], 1));
    AX_TRY(ax_pretrained_logits(j->ctx, &j->model, c.ids.data, (int64_t)c.ids.size, keep_last, logits));
    const ax_sampling how = {1, 0, j->options.how.top_p, 0};
    ax_sample_penalize(logits, vocab, j->options.how.repetition_penalty, c.ids.data, c.ids.size, work);
    memcpy(logits, work, (size_t)vocab * sizeof *logits);
    *near = false;
    for (int step = -STEPS; step <= STEPS && !*near; step++) {
        double u = ax_rng_uniform(c.key, n) + 1e-5 * step / STEPS;
        AX_TRY(ax_sample(logits, vocab, &how, fmin(fmax(u, 0), 1 - 1e-9), work, &id));
        *near = low >= 0 && id != low;
        low = id;
    }
    ax_continuation_fini(&c);
    return AX_OK;
}

static ax_status compare(job *j)
{
    int near_boundary = 0;
    AX_TRY(begin(j));
    for (int i = 0; i < PROMPTS; i++)
        for (int64_t s = 0; s < prompts[i].samples; s++) {
            bool near = true;
            const text *got = &j->other[i][s], *want = &j->texts[i][s];
            EXPECT(got->times == 1);
            if (same(got, want))
                continue;
            AX_TRY(is_near(j, i, s, got, want, &near));
            EXPECT(near);
            near_boundary++;
        }
    EXPECT(near_boundary < 2); /* of 19 texts of 5 draws each, within 1e-5 of one of about 50 boundaries */
    return AX_OK;
}

static ax_status compare_rank(ax_comm *world, void *arg)
{
    const grids *g = arg;
    for (int at = 0; at < GRIDS; at++) {
        job j = {.other = g->on[at]};
        setup serial = all_grids[at];
        serial.grid = (ax_grid_size){{1, 1, 1, 1, 1}};
        ax_status status = with_model(world, &serial, &j, compare);
        if (status != AX_OK) {
            ax_error_context("grid %d", at);
            return status;
        }
    }
    return AX_OK;
}

static void grids_draw_the_same_tokens(void **state)
{
    (void)state;
    static grids g;
    for (g.at = 0; g.at < GRIDS; g.at++)
        assert_ranks(grid_ranks(all_grids[g.at].grid), grid_rank, &g);
    assert_ranks(1, compare_rank, &g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts_do_not_depend_on_others),
                                       cmocka_unit_test(grids_draw_the_same_tokens)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
