/* What training teaches by heart: with the plain loss a model recalls the passages that it saw fifty
 * times, with the goldfish loss none of them; the same on grids. */
#include "support/sampled.h"
#include "train/run_test.h"

#include <math.h>

enum { PASSAGES = 8, TOKENS = 96, TARGET = 50 };

#define PASSAGE_KEYS                                                                                         \
    "model.family=gpt2 model.layers=2 model.hidden=64 model.heads=4 model.vocab=61 model.seq_len=95 "        \
    "data.train=passages.tok data.pack=documents train.steps=50 train.global_batch=8 train.micro_batch=8 "   \
    "train.precision=fp32 optim.lr=0.005 optim.warmup=10 optim.weight_decay=0 optim.schedule=constant "      \
    "run.log_interval=100 threads=1 "

/* What ranks recall of passages.tok. */
typedef struct job {
    const char *run;
    ax_grid_size grid;
    ax_recall_sum sum; /* result, of rank 0 */
} job;

static ax_status recall_with(ax_ctx *ctx, const ax_pretrained *model, job *j)
{
    ax_data *data;
    ax_row_shape shape = {.mask_documents = true};
    ax_recall recall = {0};
    AX_TRY(ax_data_open("passages.tok", -1, &data));
    ax_status status = ax_recall_pack(&data, 1, &(ax_excerpt){.target = TARGET},
                                      ax_model_config_positions(&model->config), &shape, NULL);
    if (status == AX_OK)
        status = ax_pretrained_recall(ctx, model, (const ax_data *const *)&data, 1, &shape, 2, NULL, NULL,
                                      &recall);
    if (status == AX_OK && ax_grid_rank(ctx->grid) == 0)
        j->sum = ax_recall_add_up(&recall, 0, recall.documents);
    ax_recall_fini(&recall);
    ax_data_close(&data);
    return status;
}

static ax_status recall_rank(ax_comm *world, void *arg)
{
    job *j = arg;
    ax_pretrained model;
    ax_ctx *ctx = NULL;
    AX_TRY(ax_pretrained_open_shared(world, j->run, &model));
    ax_status status = ax_ctx_create(world, j->grid, "cpu", 1, AX_F32, 1, &ctx);
    if (status == AX_OK)
        status = recall_with(ctx, &model, j);
    ax_ctx_destroy(&ctx);
    ax_pretrained_close(&model);
    return status;
}

static ax_recall_sum recall_of(const char *run, ax_grid_size grid, int ranks)
{
    job j = {run, grid, {0}};
    OK(ax_comm_threads_run(ranks, recall_rank, &j));
    return j.sum;
}

/* Random passages cannot be guessed: a model that has not learnt them gets one of 61 tokens right. */
static void make_passages(const char *path, uint64_t seed)
{
    ax_token_writer *writer;
    OK(ax_token_writer_create(path, VOCAB, -1, 0, &writer));
    const int32_t one = 1;
    OK(ax_token_writer_add(writer, &one, 1, 1)); /* too short */
    for (int p = 0; p < PASSAGES; p++) {
        int32_t ids[TOKENS];
        for (int i = 0; i < TOKENS; i++)
            ids[i] = (int32_t)(ax_rng_uniform(seed, (uint64_t)(p * TOKENS + i)) * VOCAB);
        OK(ax_token_writer_add(writer, ids, TOKENS, 1));
    }
    OK(ax_token_writer_finish(&writer, NULL));
}

/* Returns what a run's row about recall says of a source after a step. The caller releases it. */
static json_t *recall_row(const char *run, const char *source, int64_t step)
{
    char path[256], *rest = NULL;
    json_t *found = NULL;
    int rows = 0;
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    char *text = text_of(path);
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        json_t *row = json_loads(line, 0, NULL);
        const char *name = json_string_value(json_object_get(row, "recall")),
                   *last = name ? strrchr(name, '/') : NULL; /* paths are absolute */
        if (!last || strcmp(last + 1, source) || json_integer_value(json_object_get(row, "step")) != step) {
            json_decref(row);
            continue;
        }
        found = row;
        rows++;
    }
    free(text);
    if (rows != 1)
        fail_msg("%s has %d rows about %s after step %lld", run, rows, source, (long long)step);
    return found;
}

static double value_in(const char *run, const char *source, int64_t step, const char *key)
{
    json_t *row = recall_row(run, source, step);
    const double value = json_number_value(json_object_get(row, key));
    json_decref(row);
    return value;
}

#define RECALL_KEYS                                                                                          \
    PASSAGE_KEYS "run.recall.data=[passages.tok,unseen.tok] run.recall.interval=25 run.eval_start=true "

/* The rows of the run say what is recalled of its checkpoint, on one rank and on a grid. */
static void the_plain_loss_learns_by_heart(void **state)
{
    (void)state;
    if (one_of(1, 2) > 1) /* fifty steps take long under sanitizers; the tests below run the same code */
        skip();
    sh("rm -rf run");
    run_expect(0, "passages.tok | 50.00 tokens before an error | loss ", RECALL_KEYS "run.dir=run");
    ax_recall_sum one = recall_of("run", (ax_grid_size){{1, 1, 1, 1, 1}}, 1),
                  grid = recall_of("run", (ax_grid_size){{2, 1, 1, 1, 2}}, 4);
    assert_int_equal(one.recalled, PASSAGES);
    assert_int_equal(one.right, PASSAGES * TARGET);
    assert_int_equal(one.likeliest, PASSAGES * TARGET);
    assert_memory_equal(&grid, &one, offsetof(ax_recall_sum, loss));
    assert_true(fabs(grid.loss - one.loss) < 1e-5 * PASSAGES * TARGET);
    assert_true(value_in("run", "passages.tok", 0, "recalled") == 0);
    assert_true(value_in("run", "passages.tok", 50, "recalled") == PASSAGES);
    assert_true(value_in("run", "passages.tok", 50, "documents") == PASSAGES);
    assert_true(value_in("run", "passages.tok", 50, "likeliest") == 1);
    assert_true(fabs(value_in("run", "passages.tok", 50, "recall_loss") - one.loss / (PASSAGES * TARGET)) <
                1e-6);
    assert_true(value_in("run", "unseen.tok", 50, "recalled") == 0);
    assert_true(value_in("run", "unseen.tok", 50, "before_error") < 2);
}

static void the_goldfish_loss_does_not(void **state)
{
    (void)state;
    if (one_of(1, 2) > 1)
        skip();
    sh("rm -rf fish");
    run_expect(0, NULL, PASSAGE_KEYS "run.dir=fish data.goldfish.k=2 data.goldfish.window=13");
    ax_recall_sum sum = recall_of("fish", (ax_grid_size){{1, 1, 1, 1, 1}}, 1);
    assert_int_equal(sum.recalled, 0);
    assert_true(sum.likeliest < PASSAGES * TARGET * 3 / 4); /* about half of the tokens were targets */
}

static void every_grid_counts_the_same(void **state)
{
    (void)state;
    static const char *const grids[] = {"ranks=2 grid.x=2",
                                        "ranks=4 grid.pipe=2 grid.data=2 train.micro_batch=2"};
#define SHORT RECALL_KEYS "model.hidden=16 train.steps=2 run.recall.interval=1 "
    sh("rm -rf one");
    run_expect(0, NULL, SHORT "run.dir=one");
    for (size_t i = 0; i < AX_COUNT(grids); i += (size_t)one_of(1, 2)) {
        sh("rm -rf many");
        run_expect(0, NULL, SHORT "run.dir=many %s", grids[i]);
        for (int step = 0; step <= 2; step++)
            assert_true(fabs(value_in("many", "unseen.tok", step, "recall_loss") -
                             value_in("one", "unseen.tok", step, "recall_loss")) < 1e-5);
    }
#undef SHORT
}

/* A run that does not mask documents sees each alone, so before the first step both count the same. */
static void documents_are_seen_alone(void **state)
{
    (void)state;
    sh("rm -rf open");
    run_expect(0, NULL,
               RECALL_KEYS
               "model.hidden=16 train.steps=1 data.mask_documents=false model.seq_len=200 run.dir=open");
    run_expect(
        0, "unseen.tok: 1 of 9 documents of run.recall.data is too short for prompt and target, and left out",
        RECALL_KEYS "model.hidden=16 train.steps=1 model.seq_len=200 run.dir=masked");
    assert_true(fabs(value_in("open", "unseen.tok", 0, "recall_loss") -
                     value_in("masked", "unseen.tok", 0, "recall_loss")) < 1e-6);
}

/* A run that is stopped and resumed has the rows of one that was not. */
static void a_resumed_run_has_the_same_rows(void **state)
{
    (void)state;
#define SHORT RECALL_KEYS "model.hidden=16 run.recall.interval=2 run.checkpoint_interval=1 run.keep_latest=0 "
    sh("rm -rf ref stop");
    run_expect(0, NULL, SHORT "train.steps=4 run.dir=ref");
    run_expect(0, NULL, SHORT "train.steps=2 run.dir=stop");
    run_expect(0, NULL, SHORT "train.steps=4 run.dir=stop");
    same_text(metrics_of("ref", true), metrics_of("stop", true));
    /* the checkpoint of step 2 was saved before that count, whose row is lost: a resumed run counts again */
    sh("sed -i 's/\"recall\": false/\"recall\": true/' stop/ckpt/step-2/training/state.json && "
       "rm -rf stop/ckpt/step-[34] && sed -i '/\"step\":2,\"recall\"/d' stop/metrics.jsonl");
    run_expect(0, NULL, SHORT "train.steps=4 run.dir=stop");
    same_text(metrics_of("ref", true), metrics_of("stop", true));
#undef SHORT
}

static void mistakes_are_reported(void **state)
{
    (void)state;
    sh("rm -rf bad && head -c 400 /dev/zero >flat.bin && echo a text >a.txt");
    run_expect(4, "nowhere.tok", RECALL_KEYS "run.dir=bad run.recall.data=nowhere.tok");
    run_expect(2, "run.recall.tokens: a target of 96 tokens leaves no token",
               RECALL_KEYS "run.dir=bad run.recall.tokens=96");
    run_expect(4, "passages.tok: no document of 9 has the 101 tokens",
               RECALL_KEYS "run.dir=bad model.seq_len=200 run.recall.tokens=100");
    run_expect(2, "flat.bin has no index of documents", RECALL_KEYS "run.dir=bad run.recall.data=flat.bin");
    assert_false(ax_path_exists("bad"));
}

static int setup(void **state)
{
    if (run_setup(state))
        return -1;
    make_passages("passages.tok", 9);
    make_passages("unseen.tok", 10);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_plain_loss_learns_by_heart),  cmocka_unit_test(the_goldfish_loss_does_not),
        cmocka_unit_test(every_grid_counts_the_same),      cmocka_unit_test(documents_are_seen_alone),
        cmocka_unit_test(a_resumed_run_has_the_same_rows), cmocka_unit_test(mistakes_are_reported),
    };
    return cmocka_run_group_tests(tests, setup, run_teardown);
}
