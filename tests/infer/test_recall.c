/* Recall: the ranks and losses of targets are those of the logits with which the generator continues the
 * prompt, on one rank and on grids; the losses are those of transformers. */
#include "golden_case.h"
#include "support/equality.h"
#include "support/ranks.h"
#include "support/sampled.h"
#include "support/scratch.h"

#include <sys/stat.h>
#include <unistd.h>

enum { DOCUMENTS = 200, SHORT = 3, PROMPT = 6, TARGET = 7, TOKENS = PROMPT + TARGET, MAX_VOCAB = 128 };

/* One model, its documents, and what the generator says of each token of their targets. */
typedef struct study {
    const char *model, *path;
    ax_grid_size grid;
    ax_dtype compute;
    bool alone;       /* rows do not mask documents, so each has its own */
    bool tied;        /* tokens 2i and 2i+1 have the same row of the table */
    double tolerance; /* relative to the largest logit: logits as near as this may change places */
    int32_t ids[DOCUMENTS][TOKENS];
    int changed[DOCUMENTS]; /* the token of the target that is not the greedy one; TARGET: none */
    int32_t rank[DOCUMENTS][TARGET], low[DOCUMENTS][TARGET], high[DOCUMENTS][TARGET];
    double loss[DOCUMENTS][TARGET];
    int64_t near; /* results: ranks that differ because logits are as near as the tolerance */
    ax_recall_sum sum;
} study;

/* ---- what the generator says --------------------------------------------------------------------- */

static bool twins(const study *s, int64_t a, int64_t b) { return s->tied && a != b && a / 2 == b / 2; }

/* Ranks the token among the logits. Logits as near as the tolerance may be in either order, except those of
 * twins, which are the same numbers. */
static void rank_token(study *s, const float *logits, int64_t vocab, int d, int t)
{
    const int32_t token = s->ids[d][PROMPT + t];
    double largest = 0, most = -INFINITY, sum = 0;
    for (int64_t v = 0; v < vocab; v++) {
        largest = fmax(largest, fabs(logits[v]));
        most = fmax(most, logits[v]);
    }
    for (int64_t v = 0; v < vocab; v++) {
        const double gap = (double)logits[v] - logits[token],
                     near = twins(s, v, token) ? 0 : s->tolerance * largest;
        sum += exp(logits[v] - most);
        s->rank[d][t] += gap > 0 || (gap == 0 && v < token);
        s->low[d][t] += gap > near || (near == 0 && gap == 0 && v < token);
        s->high[d][t] += v != token && (gap > -near || (gap == -near && (near > 0 || v < token)));
    }
    s->loss[d][t] = log(sum) + most - logits[token];
}

static int32_t greedy(const float *logits, int64_t vocab)
{
    int32_t token = -1;
    return ax_sample(logits, (int)vocab, &(ax_sampling){.temperature = 0, .top_p = 1}, 0, NULL, &token) ==
                   AX_OK
               ? token
               : -1;
}

/* Continues a random prompt greedily, except for at most one token, and ranks each token of this target. */
static ax_status make_document(study *s, ax_generator *g, int64_t vocab, int d, uint64_t *state)
{
    const float *logits;
    for (int i = 0; i < PROMPT; i++)
        s->ids[d][i] = random_below(state, (int)vocab);
    s->changed[d] = random_below(state, TARGET + 3);
    AX_TRY(ax_generator_rewind(g, 0, 0));
    AX_TRY(ax_generator_feed(g, 0, s->ids[d], PROMPT, &logits));
    for (int t = 0; t < TARGET; t++) {
        int32_t token = greedy(logits, vocab);
        EXPECT(token >= 0 && (!s->tied || token % 2 == 0));
        if (t == s->changed[d])
            token = s->tied && token + 1 < vocab
                        ? token + 1
                        : (token + 1 + random_below(state, (int)vocab - 1)) % (int32_t)vocab;
        s->ids[d][PROMPT + t] = token;
        rank_token(s, logits, vocab, d, t);
        EXPECT((s->rank[d][t] == 0) == (t != s->changed[d]));
        if (t + 1 < TARGET)
            AX_TRY(ax_generator_step(g, &token, &logits));
    }
    return AX_OK;
}

static ax_status make_documents(ax_comm *world, void *arg)
{
    study *s = arg;
    ax_pretrained model;
    ax_ctx *ctx = NULL;
    ax_generator *g = NULL;
    uint64_t state = 7;
    AX_TRY(ax_pretrained_open(s->model, &model));
    EXPECT(model.config.vocab <= MAX_VOCAB);
    ax_status status = ax_ctx_create(world, (ax_grid_size){{1, 1, 1, 1, 1}}, "cpu", 1, s->compute, 1, &ctx);
    if (status == AX_OK)
        status = ax_generator_create(ctx, &model, &(ax_generator_options){1, PROMPT, TOKENS}, &g);
    for (int d = 0; d < DOCUMENTS && status == AX_OK; d++)
        status = make_document(s, g, model.config.vocab, d, &state);
    ax_generator_destroy(&g);
    ax_ctx_destroy(&ctx);
    ax_pretrained_close(&model);
    return status;
}

/* Writes the documents to a token file, each with a tail that is not read, and some that are too short. */
static void write_documents(study *s)
{
    ax_token_writer *writer;
    OK(ax_token_writer_create(s->path, MAX_VOCAB, -1, 0, &writer));
    for (int d = 0; d < DOCUMENTS; d++) {
        int32_t whole[TOKENS + 5] = {0};
        memcpy(whole, s->ids[d], sizeof s->ids[d]);
        OK(ax_token_writer_add(writer, whole, TOKENS + d % 5, 1));
        if (d < SHORT)
            OK(ax_token_writer_add(writer, whole, TARGET, 1));
    }
    OK(ax_token_writer_finish(&writer, NULL));
}

/* ---- what recall says ---------------------------------------------------------------------------- */

/* A document that is too short follows each of the first SHORT documents. */
static int64_t place_of(int d) { return d + ax_min(d, SHORT); }

static ax_status check_recall(study *s, const ax_recall *r, bool first)
{
    EXPECT(r->documents == DOCUMENTS && r->first[DOCUMENTS] == DOCUMENTS * TARGET && r->left_out == SHORT);
    for (int d = 0; d < DOCUMENTS; d++) {
        EXPECT(r->document[d] == place_of(d));
        for (int t = 0; t < TARGET; t++) {
            const int64_t at = (int64_t)d * TARGET + t;
            AX_CHECK(r->rank[at] >= s->low[d][t] && r->rank[at] <= s->high[d][t], AX_ERR_INTERNAL,
                     "document %d, token %d: rank %d, that of generation is %d (%d to %d)", d, t, r->rank[at],
                     s->rank[d][t], s->low[d][t], s->high[d][t]);
            /* a loss is a difference of logits, each of which may err by the tolerance of the largest, about
             * 10 */
            EXPECT(fabs(r->loss[at] - s->loss[d][t]) < 20 * s->tolerance);
            if (first)
                s->near += r->rank[at] != s->rank[d][t];
        }
    }
    if (first)
        s->sum = ax_recall_add_up(r, 0, DOCUMENTS);
    return AX_OK;
}

static ax_status recall_here(ax_ctx *ctx, study *s, const ax_pretrained *model, ax_data *data)
{
    const ax_excerpt excerpt = {.document = TOKENS, .target = TARGET};
    const int64_t positions = ax_model_config_positions(&model->config);
    /* rows with room for two documents, if they may share one */
    ax_row_shape shape = {.seq_len = ax_min(2 * TOKENS, positions), .mask_documents = !s->alone};
    ax_recall recall;
    AX_TRY(ax_recall_pack(&data, 1, &excerpt, positions, &shape, NULL));
    AX_TRY(
        ax_pretrained_recall(ctx, model, (const ax_data *const *)&data, 1, &shape, 7, NULL, NULL, &recall));
    ax_status status = check_recall(s, &recall, ax_grid_rank(ctx->grid) == 0);
    ax_recall_fini(&recall);
    return status;
}

static ax_status recall_rank(ax_comm *world, void *arg)
{
    study *s = arg;
    ax_pretrained model;
    ax_ctx *ctx = NULL;
    ax_data *data = NULL;
    AX_TRY(ax_pretrained_open(s->model, &model));
    ax_status status = ax_ctx_create(world, s->grid, "cpu", 1, s->compute, 1, &ctx);
    if (status == AX_OK)
        status = ax_data_open(s->path, -1, &data);
    if (status == AX_OK)
        status = recall_here(ctx, s, &model, data);
    ax_data_close(&data);
    ax_ctx_destroy(&ctx);
    ax_pretrained_close(&model);
    return status;
}

static void recall_on(study *s, ax_grid_size grid)
{
    s->grid = grid;
    s->near = 0;
    assert_ranks(grid_ranks(grid), recall_rank, s);
}

/* On one rank the counts are those of the documents. */
static void check_counts(const study *s)
{
    ax_recall_sum want = {0};
    for (int d = 0; d < DOCUMENTS; d++) {
        want.recalled += s->changed[d] >= TARGET;
        want.right += ax_min(s->changed[d], TARGET);
        want.likeliest += TARGET - (s->changed[d] < TARGET);
    }
    assert_true(want.recalled > DOCUMENTS / 8 && want.recalled < DOCUMENTS);
    if (!s->near) {
        assert_int_equal(s->sum.recalled, want.recalled);
        assert_int_equal(s->sum.right, want.right);
        assert_int_equal(s->sum.likeliest, want.likeliest);
    }
}

static bool fits(const study *s, ax_grid_size grid)
{
    ax_pretrained model;
    OK(ax_pretrained_open(s->model, &model));
    const ax_grid_load load = {&model.config, ax_strategy_at(0), 7, 0};
    const bool fits = ax_model_check_grid(&load, grid, grid_ranks(grid)) == AX_OK;
    ax_pretrained_close(&model);
    return fits;
}

/* Runs recall on one rank, and on every stride-th grid of 8 ranks that the model allows, also with stages. */
static void run_study(const char *name, bool tied, ax_dtype compute, double tolerance, int stride)
{
    static study s;
    ax_grid_size grids[64];
    int64_t near = 0, ran = 0;
    s = (study){
        .model = name, .path = "recall.tok", .tied = tied, .compute = compute, .tolerance = tolerance};
    assert_ranks(1, make_documents, &s);
    write_documents(&s);
    recall_on(&s, (ax_grid_size){{1, 1, 1, 1, 1}});
    check_counts(&s);
    s.alone = true;
    recall_on(&s, (ax_grid_size){{1, 1, 1, 1, 1}});
    s.alone = false;
    printf("%s: %d documents, %lld recalled; %lld tokens differ from generation\n", name, DOCUMENTS,
           (long long)s.sum.recalled, (long long)s.near);
    for (int stages = 1; stages <= 2; stages++)
        for (int i = 0, n = eq_factorizations(8 / stages, grids); i < n; i++) {
            grids[i].of[AX_PIPE] = stages;
            if (i % stride || !fits(&s, grids[i]))
                continue;
            recall_on(&s, grids[i]);
            near += s.near;
            ran++;
        }
    printf("%s: %lld grids of 8 ranks, %lld tokens differ\n", name, (long long)ran, (long long)near);
    assert_true(ran > 0);
}

#define GOLDEN_DIR AXONN_SOURCE_DIR "/tests/golden/"

/* fp32 rounds to 2^-24, some tens of times along a logit: 1e-5. */
static void recall_equals_generation(void **state)
{
    (void)state;
    run_study(GOLDEN_DIR "gpt2/exact", false, AX_F32, 1e-5, one_of(3, 11));
    run_study(GOLDEN_DIR "llama/grouped", false, AX_F32, 1e-5, one_of(3, 13));
    run_study(GOLDEN_DIR "mixtral/window", false, AX_F32, 1e-5, one_of(4, 13));
}

static void copy_file(const char *from, const char *to, const char *name, const char *twins)
{
    char path[600], *bytes;
    size_t size;
    snprintf(path, sizeof path, "%s/%s", from, name);
    OK(ax_file_read(path, &bytes, &size));
    if (twins) { /* rows 2i and 2i+1 of this array become the same */
        ax_st *st;
        OK(ax_st_open(path, &st));
        const ax_st_array *a = ax_st_find(st, twins);
        assert_non_null(a);
        const size_t row = (size_t)(a->bytes / a->dim[0]);
        for (int64_t i = 0; i + 1 < a->dim[0]; i += 2) {
            char *first = bytes + a->offset + (size_t)i * row;
            memcpy(first + row, first, row);
        }
        ax_st_close(&st);
    }
    snprintf(path, sizeof path, "%s/%s", to, name);
    OK(ax_file_write_atomic(path, bytes, size));
    free(bytes);
}

/* Each token has a twin with the same logits. In 16 bits many others tie too. There a logit that is computed
 * with a cache errs by 2^-6 of the largest (infer.generate), so the difference of two by 2^-5. */
static void of_tied_logits_the_first_counts(void **state)
{
    (void)state;
    assert_int_equal(mkdir("tied", 0777), 0);
    copy_file(GOLDEN_DIR "gpt2/tanh", "tied", "config.json", NULL);
    copy_file(GOLDEN_DIR "gpt2/tanh", "tied", "model.safetensors", "transformer.wte.weight");
    run_study("tied", true, AX_F32, 1e-5, one_of(3, 11));
    run_study("tied", true, AX_BF16, 0x1p-5, one_of(7, 19));
}

/* Writes a golden case's n rows of `length` tokens as documents. */
static void write_rows(const double *tokens, int64_t n, int64_t length)
{
    ax_token_writer *writer;
    OK(ax_token_writer_create("golden.tok", MAX_VOCAB, -1, 0, &writer));
    for (int64_t r = 0; r < n; r++) {
        int32_t ids[64];
        assert_true(length <= (int64_t)AX_COUNT(ids));
        for (int64_t i = 0; i < length; i++)
            ids[i] = (int32_t)tokens[r * length + i];
        OK(ax_token_writer_add(writer, ids, length, 1));
    }
    OK(ax_token_writer_finish(&writer, NULL));
}

/* Recalls all tokens but the first of each row of a golden case. */
static void recall_rows(golden *g, ax_recall *out)
{
    ax_data *data;
    ax_row_shape shape = {.mask_documents = true};
    int64_t dim[AX_ST_MAX_DIMS];
    double *tokens = array(g, "forward.tokens", dim);
    write_rows(tokens, dim[0], dim[1]);
    OK(ax_data_open("golden.tok", -1, &data));
    OK(ax_recall_pack(&data, 1, &(ax_excerpt){.target = dim[1] - 1},
                      ax_model_config_positions(&g->model.config), &shape, NULL));
    OK(ax_pretrained_recall(g->ctx, &g->model, (const ax_data *const *)&data, 1, &shape, 2, NULL, NULL, out));
    assert_int_equal(out->documents, dim[0]);
    ax_data_close(&data);
    free(tokens);
}

/* Compares losses and ranks with those of transformers' logits. Returns the largest difference of a loss. */
static double compare_rows(golden *g, const ax_recall *r)
{
    double *tokens = array(g, "forward.tokens", NULL), *logits = array(g, "forward.logits", NULL), worst = 0;
    const int64_t targets = r->first[1], vocab = g->model.config.vocab;
    for (int64_t i = 0; i < r->first[r->documents]; i++) {
        const int64_t at = i / targets * (targets + 1) + i % targets, token = (int64_t)tokens[at + 1];
        const double *l = logits + at * vocab;
        double sum = 0;
        int better = 0;
        for (int64_t v = 0; v < vocab; v++) {
            sum += exp(l[v]);
            better += l[v] > l[token];
        }
        worst = fmax(worst, fabs(log(sum) - l[token] - r->loss[i]));
        assert_int_equal(r->rank[i], better);
    }
    free(tokens);
    free(logits);
    return worst;
}

static void losses_are_those_of_transformers(void **state)
{
    (void)state;
    static const char *const cases[] = {"gpt2/exact", "llama/grouped"};
    for (size_t c = 0; c < AX_COUNT(cases); c++) {
        golden g;
        ax_recall r;
        open_case(&g, cases[c], "cpu");
        recall_rows(&g, &r);
        const double worst = compare_rows(&g, &r);
        printf("%s: losses of %lld tokens are within %.1e of transformers'\n", cases[c],
               (long long)r.first[r.documents], worst);
        assert_true(worst < 1e-5);
        ax_recall_fini(&r);
        close_case(&g);
    }
}

static int setup(void **state)
{
    static char dir[SCRATCH_PATH];
    *state = dir;
    return scratch_make("/tmp", dir) || chdir(dir) ? -1 : 0;
}

static int teardown(void **state) { return chdir("/") || ax_remove_tree(*state) != AX_OK ? -1 : 0; }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recall_equals_generation),
        cmocka_unit_test(of_tied_logits_the_first_counts),
        cmocka_unit_test(losses_are_those_of_transformers),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
