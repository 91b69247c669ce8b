/* Generation: with the key/value cache the logits are those of the whole sequence, for prompts, chunks and
 * capacities of every length, on one rank, with heads and width split, and on pipeline stages. Those of one
 * slot have the same bits whatever the others hold. Requests beyond the model's positions are refused. */
#include "axonn/infer.h"
#include "support/ranks.h"
#include "support/sampled.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_POSITIONS = 40, MAX_VOCAB = 128 };

typedef struct setup {
    const char *name, *device; /* name of the golden model, and device */
    ax_grid_size grid;
    ax_dtype compute;
    double tolerance; /* relative to the largest logit */
} setup;

typedef struct job {
    const setup *setup;
    ax_ctx *ctx;
    ax_pretrained model;
    int32_t ids[MAX_POSITIONS];
    float whole[MAX_POSITIONS][MAX_VOCAB]; /* logits of all positions at once */
    double largest;
} job;

static ax_status keep(void *user, int64_t position, const float *logits, int64_t vocab)
{
    job *j = user;
    EXPECT(position < MAX_POSITIONS && vocab <= MAX_VOCAB);
    for (int64_t v = 0; v < vocab; v++) {
        j->whole[position][v] = logits[v];
        j->largest = fmax(j->largest, fabs(logits[v]));
    }
    return AX_OK;
}

/* Feeds a prompt, or rewinds to `from` tokens; then feeds single tokens until no position is left, and one
 * more, which must fail. */
static ax_status feed_from(job *j, ax_generator *generator, int64_t from, int64_t prompt, int64_t capacity)
{
    const float *logits;
    AX_TRY(ax_generator_rewind(generator, 0, from));
    if (from)
        AX_TRY(ax_generator_step(generator, j->ids + from, &logits));
    else
        AX_TRY(ax_generator_feed(generator, 0, j->ids, prompt, &logits));
    for (int64_t end = from ? from + 1 : prompt;; end++) {
        for (int64_t v = 0; v < j->model.config.vocab; v++)
            EXPECT(fabs(logits[v] - j->whole[end - 1][v]) <= j->setup->tolerance * j->largest);
        if (end == capacity)
            break;
        AX_TRY(ax_generator_step(generator, j->ids + end, &logits));
    }
    EXPECT(ax_generator_step(generator, j->ids, &logits) == AX_ERR_USAGE);
    EXPECT(ax_generator_feed(generator, 0, j->ids, 1, NULL) == AX_ERR_USAGE);
    EXPECT(ax_generator_rewind(generator, 0, capacity + 1) == AX_ERR_USAGE);
    EXPECT(ax_generator_rewind(generator, 0, -1) == AX_ERR_USAGE);
    return AX_OK;
}

static ax_status feed_all(job *j, ax_generator *generator, int64_t prompt, int64_t capacity)
{
    EXPECT(ax_generator_rewind(generator, 0, 1) == AX_ERR_USAGE); /* nothing was fed yet */
    AX_TRY(feed_from(j, generator, 0, prompt, capacity));
    if (prompt < capacity)
        AX_TRY(feed_from(j, generator, (prompt + capacity) / 2, prompt, capacity));
    return feed_from(j, generator, 0, prompt, capacity);
}

static ax_status every_length(job *j)
{
    int64_t n = j->model.config.seq_len;
    j->ctx->parallel.strategy = &ax_strategy_inference;
    for (int64_t i = 0; i < n; i++)
        j->ids[i] = (int32_t)((i * 37 + 11) % j->model.config.vocab);
    AX_TRY(ax_pretrained_logits(j->ctx, &j->model, j->ids, n, keep, j));
    for (int64_t prompt = 1; prompt <= n; prompt += prompt < 3 || prompt > n - 3 ? 1 : one_of(7, 17))
        for (int64_t capacity = prompt; capacity <= n; capacity += capacity < n - 1 ? one_of(11, 23) : 1) {
            ax_generator *generator;
            const ax_generator_options o = {1, capacity % 2 ? prompt : ax_min(1 + prompt % 6, capacity),
                                            capacity};
            AX_TRY(ax_generator_create(j->ctx, &j->model, &o, &generator));
            ax_status status = feed_all(j, generator, prompt, capacity);
            EXPECT(ax_ctx_held(j->ctx) == ax_memory_total(ax_generator_memory(generator)));
            ax_generator_destroy(&generator);
            if (status != AX_OK) {
                ax_error_context("prompt %lld of %lld", (long long)prompt, (long long)capacity);
                return status;
            }
        }
    return AX_OK;
}

static ax_status with_model(ax_comm *world, const setup *s, ax_status (*fn)(job *))
{
    static const char models[] = AXONN_SOURCE_DIR "/tests/golden/gpt2";
    job j = {.setup = s};
    char *dir;
    AX_TRY(ax_path_join(models, s->name, &dir));
    ax_status status = ax_pretrained_open(dir, &j.model);
    if (status == AX_OK)
        status = ax_ctx_create(world, s->grid, s->device, 1, s->compute, 1, &j.ctx);
    if (status == AX_OK)
        status = fn(&j);
    ax_ctx_destroy(&j.ctx);
    ax_pretrained_close(&j.model);
    free(dir);
    return status;
}

static ax_status every_length_rank(ax_comm *world, void *arg) { return with_model(world, arg, every_length); }

/* In bf16 the logits are rounded to a relative 2^-8, after sums in another order. */
static void a_cache_changes_nothing(void **state)
{
    (void)state;
    static const setup setups[] = {{"tanh", "cpu", {{1, 1, 1, 1, 1}}, AX_F32, 1e-5},
                                   {"tanh", "cpu", {{1, 1, 1, 1, 1}}, AX_BF16, 0x1p-6},
                                   {"tanh", "ref", {{1, 1, 1, 1, 1}}, AX_BF16, 0},
                                   {"exact", "check:cpu", {{1, 1, 1, 1, 1}}, AX_F32, 1e-5},
                                   {"exact", "cpu", {{2, 1, 1, 1, 1}}, AX_F32, 1e-5},
                                   {"exact", "cpu", {{1, 2, 1, 1, 1}}, AX_F32, 1e-5},
                                   {"tanh", "cpu", {{3, 2, 1, 1, 1}}, AX_F32, 1e-5},
                                   {"tiny", "cpu", {{4, 1, 1, 1, 1}}, AX_F32, 1e-5},
                                   {"tanh", "cpu", {{1, 1, 1, 2, 1}}, AX_F32, 1e-5},
                                   {"exact", "check:cpu", {{2, 1, 1, 3, 1}}, AX_F32, 1e-5},
                                   {"../mixtral/window", "check:cpu", {{1, 1, 1, 1, 2, 2}}, AX_F32, 1e-5}};
    for (size_t i = 0; i < AX_COUNT(setups); i++)
        assert_ranks(grid_ranks(setups[i].grid), every_length_rank, &setups[i]);
}

/* ---- slots --------------------------------------------------------------------------------------- */

enum { PROMPT = 7, STEPS = 9 };

/* Fills one slot with the first PROMPT tokens, by a copy from the slot before if `copied`, and steps on; the
 * others begin at other steps, with other tokens, and are idle in some. Sets out to the logits of each step.
 */
static ax_status step_slots(job *j, const ax_generator_options *o, int64_t mine, bool company, bool copied,
                            float (*out)[MAX_VOCAB])
{
    ax_generator *g;
    const float *logits;
    const int64_t vocab = j->model.config.vocab, filled = copied ? (mine + 1) % o->slots : mine;
    AX_TRY(ax_generator_create(j->ctx, &j->model, o, &g));
    ax_status status = ax_generator_feed(g, filled, j->ids, copied ? PROMPT + 2 : PROMPT, NULL);
    if (status == AX_OK && copied)
        status = ax_generator_copy(g, filled, mine, PROMPT);
    for (int64_t at = 0; at < STEPS && status == AX_OK; at++) {
        int32_t tokens[16];
        for (int64_t s = 0; s < o->slots; s++)
            tokens[s] = s == mine                                ? j->ids[PROMPT + at]
                        : company && s != filled && (s + at) % 3 ? j->ids[(5 * s + at) % 11]
                                                                 : AX_IDLE;
        status = ax_generator_step(g, tokens, &logits);
        for (int64_t v = 0; v < vocab && status == AX_OK; v++)
            out[at][v] = logits[mine * vocab + v];
    }
    EXPECT(status != AX_OK || ax_ctx_held(j->ctx) == ax_memory_total(ax_generator_memory(g)));
    EXPECT(ax_generator_memory(g)->bytes[AX_MEMORY_LOGITS] ==
           (size_t)(o->slots * j->model.config.vocab) * sizeof(float));
    ax_generator_destroy(&g);
    return status;
}

static ax_status slots_alike(job *j)
{
    static const struct {
        int64_t slots, mine;
        bool company, copied;
    } ways[] = {{5, 0, false, false}, {5, 4, true, true}, {16, 11, true, false}, {8, 2, true, true}};
    static const size_t count = AX_COUNT(ways);
    float first[STEPS][MAX_VOCAB], other[STEPS][MAX_VOCAB];
    const int64_t vocab = j->model.config.vocab, n = PROMPT + STEPS;
    j->ctx->parallel.strategy = &ax_strategy_inference;
    for (int64_t i = 0; i < n; i++)
        j->ids[i] = (int32_t)((i * 37 + 11) % vocab);
    AX_TRY(ax_pretrained_logits(j->ctx, &j->model, j->ids, n, keep, j));
    for (size_t w = 0; w < count; w++) {
        const ax_generator_options o = {ways[w].slots, 4, ax_min(n + (int64_t)w, j->model.config.seq_len)};
        AX_TRY(step_slots(j, &o, ways[w].mine, ways[w].company, ways[w].copied, w ? other : first));
        for (int64_t at = 0; at < STEPS; at++)
            for (int64_t v = 0; v < vocab; v++) {
                EXPECT(fabs(first[at][v] - j->whole[PROMPT + at][v]) <= j->setup->tolerance * j->largest);
                EXPECT(!w || other[at][v] == first[at][v]);
            }
    }
    return AX_OK;
}

static ax_status slots_alike_rank(ax_comm *world, void *arg) { return with_model(world, arg, slots_alike); }

/* Tolerances against the whole sequence as above. */
static void a_slot_does_not_depend_on_others(void **state)
{
    (void)state;
    static const setup setups[] = {{"tanh", "cpu", {{1, 1, 1, 1, 1}}, AX_F32, 1e-5},
                                   {"tanh", "cpu", {{1, 1, 1, 1, 1}}, AX_BF16, 0x1p-6},
                                   {"tanh", "ref", {{1, 1, 1, 1, 1}}, AX_BF16, 0},
                                   {"exact", "check:cpu", {{1, 1, 1, 1, 1}}, AX_F32, 1e-5},
                                   {"tanh", "cpu", {{3, 2, 1, 1, 1}}, AX_F32, 1e-5},
                                   {"tanh", "cpu", {{2, 1, 1, 2, 1}}, AX_F32, 1e-5},
                                   {"../mixtral/window", "check:cpu", {{1, 1, 1, 1, 1}}, AX_F32, 1e-5},
                                   {"../mixtral/window", "cpu", {{1, 1, 1, 1, 2, 2}}, AX_F32, 1e-5}};
    for (size_t i = 0; i < AX_COUNT(setups); i++)
        assert_ranks(grid_ranks(setups[i].grid), slots_alike_rank, &setups[i]);
    static const setup gpu = {"tanh", "cuda", {{1, 1, 1, 1, 1}}, AX_F32, 1e-5};
    if (getenv("AXONN_PLUGINS"))
        assert_ranks(1, slots_alike_rank, &gpu);
}

static ax_status refused(job *j)
{
    ax_generator *generator;
    int64_t n = j->model.config.seq_len;
    if (ax_grid_ranks(j->ctx->grid) > 1) {
        EXPECT(ax_generator_create(j->ctx, &j->model, &(ax_generator_options){1, 1, n}, &generator) ==
               AX_ERR_USAGE);
        j->ctx->parallel.strategy = &ax_strategy_generation;
        EXPECT(!ax_grid_experts(j->ctx->grid) ||
               ax_generator_create(j->ctx, &j->model, &(ax_generator_options){1, 1, n}, &generator) ==
                   AX_ERR_USAGE);
        return AX_OK;
    }
    const ax_generator_options bad[] = {{1, 0, n},     {0, 1, n},     {1, n + 1, n},
                                        {1, n, n - 1}, {1, 1, n + 1}, {INT64_C(1) << 40, 1, n}};
    for (size_t i = 0; i < AX_COUNT(bad); i++)
        EXPECT(ax_generator_create(j->ctx, &j->model, &bad[i], &generator) == AX_ERR_USAGE);
    const float *logits;
    int32_t outside[] = {(int32_t)j->model.config.vocab, -1};
    AX_TRY(ax_generator_create(j->ctx, &j->model, &(ax_generator_options){2, 1, n}, &generator));
    for (size_t i = 0; i < AX_COUNT(outside); i++)
        EXPECT(ax_generator_feed(generator, 1, &outside[i], 1, &logits) == AX_ERR_USAGE);
    EXPECT(ax_generator_step(generator, (int32_t[]){AX_IDLE, outside[0]}, &logits) == AX_ERR_USAGE);
    AX_TRY(ax_generator_feed(generator, 1, (int32_t[]){1, 2}, 2, NULL));
    EXPECT(ax_generator_feed(generator, 2, (int32_t[]){1}, 1, NULL) == AX_ERR_USAGE);
    EXPECT(ax_generator_copy(generator, 1, 0, 3) == AX_ERR_USAGE);
    EXPECT(ax_generator_copy(generator, 1, 1, 1) == AX_ERR_USAGE);
    EXPECT(ax_generator_copy(generator, 1, 2, 1) == AX_ERR_USAGE);
    EXPECT(ax_generator_rewind(generator, 2, 0) == AX_ERR_USAGE);
    ax_generator_destroy(&generator);
    return AX_OK;
}

static ax_status refused_rank(ax_comm *world, void *arg) { return with_model(world, arg, refused); }

static void invalid_input_is_refused(void **state)
{
    (void)state;
    static const setup setups[] = {{"tiny", "cpu", {{1, 1, 1, 1, 1}}, AX_F32, 0},
                                   {"tiny", "cpu", {{1, 1, 2, 1, 1}}, AX_F32, 0},
                                   {"../mixtral/window", "cpu", {{1, 1, 1, 1, 2, 2}}, AX_F32, 0}};
    for (size_t i = 0; i < AX_COUNT(setups); i++)
        assert_ranks(grid_ranks(setups[i].grid), refused_rank, &setups[i]);
}

/* On a GPU, messages between stages go through pinned memory. A generator reserves what it plans, and
 * releases it; so do those of ax_pretrained_logits. */
static ax_status reserves_and_releases(job *j)
{
    const float *logits;
    const int32_t ids[] = {1, 2, 3};
    for (int i = 0; i < 2; i++) {
        ax_generator *generator;
        AX_TRY(ax_generator_create(j->ctx, &j->model, &(ax_generator_options){1, 3, 8}, &generator));
        size_t pinned = ax_generator_memory(generator)->bytes[AX_MEMORY_PINNED];
        EXPECT(pinned > 0 && reserved_messages(j->ctx) == pinned);
        AX_TRY(ax_generator_feed(generator, 0, ids, 3, &logits));
        AX_TRY(ax_generator_step(generator, ids, &logits));
        EXPECT(reserved_messages(j->ctx) == pinned);
        ax_generator_destroy(&generator);
        EXPECT(reserved_messages(j->ctx) == 0);
        AX_TRY(ax_pretrained_logits(j->ctx, &j->model, ids, 3, NULL, NULL));
        EXPECT(reserved_messages(j->ctx) == 0);
    }
    return AX_OK;
}

static ax_status reserves_and_releases_rank(ax_comm *world, void *arg)
{
    return with_model(world, arg, reserves_and_releases);
}

static void pinned_memory_is_planned(void **state)
{
    (void)state;
    static const setup stages = {"tiny", "cuda", {{1, 1, 1, 2, 1}}, AX_F32, 0};
    if (!getenv("AXONN_PLUGINS"))
        skip();
    assert_ranks(grid_ranks(stages.grid), reserves_and_releases_rank, &stages);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cache_changes_nothing), cmocka_unit_test(a_slot_does_not_depend_on_others),
        cmocka_unit_test(invalid_input_is_refused), cmocka_unit_test(pinned_memory_is_planned)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
