/* Texts: where they end, and that a text does not depend on the texts before it, whose keys and values it
 * uses again. */
#include "axonn/infer.h"
#include "support/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 24 }; /* positions of the model, which has no tokenizer */
static const int32_t prompt[] = {5, 6, 7, 8, 9, 10, 11, 12};

/* A continuation: its tokens, its text, and why it ended. */
typedef struct result {
    int32_t ids[MOST];
    size_t n;
    char text[256];
    ax_finish finish;
} result;

/* Continues the first n tokens of `from`. The parts that are taken are the whole text. */
static ax_status continue_prompt(ax_text *text, const int32_t *from, size_t n, int64_t sample, result *out)
{
    size_t size, more;
    *out = (result){.n = 0};
    AX_TRY(ax_text_start(text, from, n, sample));
    for (;;) {
        const char *part = ax_text_take(text, &size);
        strncat(out->text, part, size);
        if (ax_text_finish(text) != AX_UNFINISHED)
            break;
        AX_TRY(ax_text_next(text));
    }
    EXPECT(*ax_text_take(text, &more) == 0 && more == 0);
    EXPECT(ax_text_next(text) == AX_ERR_USAGE);
    const char *whole = ax_text_get(text, &size);
    EXPECT(size == strlen(out->text) && !memcmp(whole, out->text, size));
    const int32_t *ids = ax_text_ids(text, &out->n);
    memcpy(out->ids, ids, out->n * sizeof *ids);
    out->finish = ax_text_finish(text);
    return AX_OK;
}

/* Continues a prompt with an ax_text of its own. */
static ax_status continue_alone(ax_ctx *ctx, const ax_pretrained *model, const ax_text_options *options,
                                const int32_t *from, size_t n, int64_t sample, result *out)
{
    ax_text *text;
    AX_TRY(ax_text_create(ctx, model, options, &text));
    ax_status status = continue_prompt(text, from, n, sample, out);
    ax_text_destroy(&text);
    return status;
}

static ax_status ends(ax_ctx *ctx, const ax_pretrained *model, ax_text_options o)
{
    result r, stopped;
    AX_TRY(continue_alone(ctx, model, &o, prompt, 8, 0, &r));
    EXPECT(r.n == 6 && r.finish == AX_FINISH_LENGTH);
    o.max_tokens = 100;
    AX_TRY(continue_alone(ctx, model, &o, prompt, 8, 0, &r));
    EXPECT(r.n == MOST - 8 && r.finish == AX_FINISH_LENGTH);
    const int64_t stop[] = {-1, r.ids[3]};
    size_t first = 0;
    while (r.ids[first] != r.ids[3])
        first++;
    o.stop = stop;
    o.stops = AX_COUNT(stop);
    AX_TRY(continue_alone(ctx, model, &o, prompt, 8, 0, &stopped));
    EXPECT(stopped.n == first && stopped.finish == AX_FINISH_STOP);
    EXPECT(!memcmp(stopped.ids, r.ids, first * sizeof *r.ids) &&
           !strncmp(stopped.text, r.text, strlen(stopped.text)));
    o.echo = true;
    AX_TRY(continue_alone(ctx, model, &o, prompt, 3, 0, &r));
    EXPECT(!strncmp(r.text, "5 6 7 ", r.n ? 6 : 5));
    ax_text *text;
    AX_TRY(ax_text_create(ctx, model, &o, &text));
    int32_t all[MOST] = {0};
    EXPECT(ax_text_next(text) == AX_ERR_USAGE);
    EXPECT(ax_text_start(text, all, MOST, 0) == AX_ERR_USAGE);
    ax_text_destroy(&text);
    return AX_OK;
}

/* Prompts that begin like the text before, that do not, that are longer, and that are the same. */
static ax_status follow(ax_ctx *ctx, const ax_pretrained *model, const ax_text_options *o)
{
    static const struct {
        size_t from, n;
    } prompts[] = {{0, 3}, {0, 8}, {2, 5}, {2, 5}, {1, 5}, {0, 1}, {4, 1}, {0, 3}};
    ax_text *text;
    result here, alone;
    AX_TRY(ax_text_create(ctx, model, o, &text));
    for (size_t i = 0; i < AX_COUNT(prompts); i++) {
        const int32_t *from = prompt + prompts[i].from;
        AX_TRY(continue_prompt(text, from, prompts[i].n, (int64_t)i, &here));
        AX_TRY(continue_alone(ctx, model, o, from, prompts[i].n, (int64_t)i, &alone));
        EXPECT(here.n == alone.n && !memcmp(here.ids, alone.ids, here.n * sizeof *here.ids));
        EXPECT(!strcmp(here.text, alone.text) && here.finish == alone.finish);
    }
    ax_text_destroy(&text);
    return AX_OK;
}

static ax_status run(ax_comm *world, void *arg)
{
    ax_ctx *ctx;
    ax_pretrained model;
    const ax_grid_size *grid = arg;
    ax_text_options o = {.how = {.temperature = 1, .top_p = 1, .repetition_penalty = 1}, .max_tokens = 6};
    AX_TRY(ax_pretrained_open(AXONN_SOURCE_DIR "/tests/golden/gpt2/tanh", &model));
    ax_status status = ax_ctx_create(world, *grid, "ref", 1, AX_F64, 1, &ctx);
    if (status == AX_OK)
        status = ends(ctx, &model, o);
    if (status == AX_OK)
        status = follow(ctx, &model, &o);
    o.grows = true;
    if (status == AX_OK)
        status = follow(ctx, &model, &o);
    ax_ctx_destroy(&ctx);
    ax_pretrained_close(&model);
    return status;
}

static void texts_end_and_follow(void **state)
{
    (void)state;
    static const ax_grid_size grids[] = {{{1, 1, 1, 1, 1}}, {{1, 1, 1, 2, 1}}};
    for (size_t i = 0; i < AX_COUNT(grids); i++)
        assert_ranks(grid_ranks(grids[i]), run, &grids[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts_end_and_follow)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
