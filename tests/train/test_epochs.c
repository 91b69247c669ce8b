/* Sources with epochs: a run reads them exactly so often, is resumed with the same bits, and refuses epochs
 * that do not fit. If all sources have epochs, they say how many steps the run has, of which the last one may
 * have fewer samples. */
#include "train/run_test.h"

#include <math.h>

/* 80 samples; a.tok has 7 samples, b.tok 5, fill.tok 100. */
#define EPOCH_KEYS BASE_KEYS "optim.schedule=constant train.steps=20 run.checkpoint_interval=0 "
#define MIX_OF(a)                                                                                            \
    "data.train=[{\"path\":a.tok,\"epochs\":" #a                                                             \
    "},{\"path\":fill.tok,\"weight\":2},{\"path\":b.tok,\"epochs\":4}] "
#define MIX MIX_OF(3)
#define MIX5 MIX_OF(5)

/* Without train.steps: 21 samples, of which the last of 6 steps has one. */
#define FREE_KEYS                                                                                            \
    MODEL_KEYS                                                                                               \
    "train.global_batch=4 train.micro_batch=2 train.precision=fp32 optim.lr=0.01 run.keep_latest=0 "         \
    "run.checkpoint_interval=1 run.log_interval=1 threads=1 run.dir=run "
#define ALL_OF_A FREE_KEYS "optim.warmup=40%% data.train=[{\"path\":a.tok,\"epochs\":3}] "

/* Writes `samples` samples of 16 tokens. */
static void make_samples(const char *path, int64_t samples, int32_t first)
{
    ax_token_writer *writer;
    int32_t document[17];
    OK(ax_token_writer_create(path, VOCAB, -1, 0, &writer));
    for (int64_t i = 0; i < samples; i++) {
        for (int32_t t = 0; t < 17; t++)
            document[t] = (first + t * 3 + (int32_t)i) % VOCAB;
        OK(ax_token_writer_add(writer, document, i ? 16 : 17, 1));
    }
    OK(ax_token_writer_finish(&writer, NULL));
}

/* Asserts how many samples of each source a checkpoint has counted. */
static void expect_counts(const char *path, int64_t a, int64_t b, int64_t c)
{
    json_t *state = json_load_file(path, 0, NULL), *counts = json_object_get(state, "sampler");
    const int64_t want[] = {a, b, c};
    assert_int_equal(json_array_size(counts), 3);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(json_integer_value(json_array_get(counts, i)), want[i]);
    json_decref(state);
}

static int64_t samples_read(const char *run, int64_t step)
{
    char path[128];
    snprintf(path, sizeof path, "%s/ckpt/step-%lld/training/state.json", run, (long long)step);
    json_t *state = json_load_file(path, 0, NULL);
    int64_t read = json_integer_value(json_array_get(json_object_get(state, "sampler"), 0));
    json_decref(state);
    return read;
}

static void read_so_often(void **state)
{
    (void)state;
    run_expect(0, "a.tok: 7 samples, 3.0 epochs in this run, 26.2 % of it", EPOCH_KEYS MIX "run.dir=ref");
    char *log = text_of("log");
    assert_non_null(strstr(log, "fill.tok: 100 samples, 0.4 epochs in this run, 48.8 % of it"));
    free(log);
    expect_counts("ref/ckpt/step-20/training/state.json", 21, 39, 20);
    /* Resumed from checkpoints of a run of the same length: a shorter one would have other places. */
    run_expect(0, NULL, EPOCH_KEYS MIX "run.dir=half run.checkpoint_interval=7 run.keep_latest=0");
    for (int step = 7; step <= 14; step += 7) {
        sh("rm -rf run && mkdir -p run/ckpt && cp -r half/ckpt/step-%d run/ckpt/ && echo step-%d > "
           "run/latest && "
           "cp half/metrics.jsonl run/",
           step, step);
        run_expect(0, "done: step 20", EPOCH_KEYS MIX);
        same_checkpoint("ref/ckpt/step-20", "run/ckpt/step-20");
    }
    /* More steps: what is left is spread over the longer run. Fewer: they have no place. */
    sh("rm -rf run && mkdir -p run/ckpt && cp -r half/ckpt/step-7 run/ckpt/ && echo step-7 > run/latest");
    run_expect(2, "epochs of ", EPOCH_KEYS MIX "train.steps=10");
    run_expect(0, "changed: train.steps was 20 and is now 25", EPOCH_KEYS MIX "train.steps=25");
    expect_counts("run/ckpt/step-25/training/state.json", 21, 59, 20);
    run_expect(2, "a.tok (113 tokens, 3 epochs), /",
               EPOCH_KEYS "train.steps=26 data.train=[a.tok,fill.tok,b.tok]");
}

static void what_does_not_fit(void **state)
{
    (void)state;
    sh("rm -rf run");
    run_expect(2, "3 epochs of ", EPOCH_KEYS MIX "train.steps=5");
    char *log = text_of("log");
    assert_non_null(strstr(log,
                           "which has 7 samples, do not fit into the samples of the run, 20 (train.steps x "
                           "train.global_batch): at most 2 fit; or set train.steps to at least 11"));
    assert_non_null(strstr(log, "4 epochs of "));
    assert_non_null(strstr(log, "beside those of the other sources: at most 1 fits; or"));
    free(log);
    /* This advice is right: with so many steps the run is made. */
    run_expect(0, "done: step 11", EPOCH_KEYS MIX "train.steps=11 run.dir=eleven");
    run_expect(0, "done: step 6",
               EPOCH_KEYS "train.steps=6 run.dir=six data.train=[{\"path\":a.tok,\"epochs\":3},fill.tok]");
    run_expect(2, "no whole epoch fits; or set train.steps to at least 6",
               EPOCH_KEYS "train.steps=1 data.train=[{\"path\":a.tok,\"epochs\":3},fill.tok]");
    run_expect(2, "1 epoch of ",
               EPOCH_KEYS "train.steps=1 data.train=[{\"path\":a.tok,\"epochs\":1},fill.tok]");
    run_expect(
        2,
        "all sources have epochs, 21 samples together, but the run has 80 (train.steps x train.global_batch)",
        EPOCH_KEYS "data.train=[{\"path\":a.tok,\"epochs\":3}]");
    for (int steps = 5; steps <= 7; steps += 2)
        run_expect(2,
                   ": set train.steps to 6 or leave it out, or add a source by weight, which fills the rest",
                   EPOCH_KEYS "train.steps=%d data.train=[{\"path\":a.tok,\"epochs\":3}]", steps);
    for (int steps = 6; steps <= 8; steps += 2)
        run_expect(2,
                   ": set train.steps to 7 or leave it out, or add a source by weight, which fills the rest",
                   EPOCH_KEYS "train.steps=%d data.train=[{\"path\":a.tok,\"epochs\":4}]", steps);
    run_expect(2,
               "the epochs of data.train need too many steps: train.steps must be from 1 to 1000000000, not ",
               FREE_KEYS "train.global_batch=1 train.micro_batch=1 "
                         "data.train=[{\"path\":a.tok,\"epochs\":999999999}]");
    run_expect(2, "/fill.tok would be read: the epochs of the other sources fill the samples of the run, 28 ",
               EPOCH_KEYS "train.steps=7 data.train=[{\"path\":a.tok,\"epochs\":4},fill.tok]");
    log = text_of("log");
    assert_non_null(strstr(log, "set train.steps to at least 8, or leave this source out"));
    free(log);
    run_expect(2, "only sources of data.train may have epochs",
               EPOCH_KEYS MIX "data.valid=[{\"path\":a.tok,\"epochs\":3}]");
    assert_false(ax_path_exists("run/metrics.jsonl"));
    /* Epochs that fill the run exactly need no other source: 4 x 7 = 28 = 7 steps of 4. */
    run_expect(0, "done: step 7", EPOCH_KEYS "train.steps=7 data.train=[{\"path\":a.tok,\"epochs\":4}]");
}

/* A new run that starts from a checkpoint reads what is left of the epochs, whatever its batch. */
static void from_a_checkpoint(void **state)
{
    (void)state;
#define NEW_KEYS EPOCH_KEYS MIX "train.resume=from/ckpt/step-7 run.dir=new "
    sh("rm -rf from new");
    run_expect(0, NULL, EPOCH_KEYS MIX "run.dir=from run.checkpoint_interval=7 run.keep_latest=0");
    run_expect(0, "done: step 14", NEW_KEYS "train.steps=14 train.global_batch=8");
    expect_counts("new/ckpt/step-14/training/state.json", 21, 43, 20);
    sh("rm -rf new");
    run_expect(0, "done: step 33", NEW_KEYS "train.steps=33 train.global_batch=2");
    expect_counts("new/ckpt/step-33/training/state.json", 21, 39, 20);
    sh("rm -rf new");
    run_expect(2, "samples of the run, 34 (28 until step 7, and then train.global_batch in each step)",
               NEW_KEYS "train.steps=10 train.global_batch=2");
    /* Other rows are counted from the beginning: packed, each sample of these files is a row. */
    run_expect(0, "done: step 20", NEW_KEYS "data.pack=documents");
    expect_counts("new/ckpt/step-20/training/state.json", 21, 11, 20);
}

/* ---- without train.steps ------------------------------------------------------------------------- */

static void epochs_set_the_steps(void **state)
{
    (void)state;
    sh("rm -rf free given run new");
    run_expect(0, "train.steps = 6: 3 epochs of 7 samples in batches of 4\n", ALL_OF_A "run.dir=free");
    sh("grep -q '^  steps: 6  *# the epochs of data.train' free/config.yaml");
    run_expect(0, "a.tok: 7 samples, 3.0 epochs in this run, 100.0 % of it",
               ALL_OF_A "run.dir=given train.steps=6");
    same_checkpoint("free/ckpt/step-6", "given/ckpt/step-6");
    same_text(metrics_of("free", true), metrics_of("given", true));
    for (int step = 1; step <= 5; step += SANITIZED ? 2 : 1) {
        char part[64];
        snprintf(part, sizeof part, "in batches of 4; %d samples were read until step %d\n", 4 * step, step);
        sh("rm -rf run && mkdir -p run/ckpt && cp -r free/ckpt/step-%d run/ckpt/ && echo step-%d > "
           "run/latest && cp free/metrics.jsonl run/",
           step, step);
        run_expect(0, part, ALL_OF_A);
        same_checkpoint("free/ckpt/step-6", "run/ckpt/step-6");
        char *log = text_of("log");
        assert_null(strstr(log, "changed: "));
        free(log);
    }
    run_expect(0, "all epochs of data.train are read: give more to go on, or choose another", ALL_OF_A);
    run_expect(0, "and train.steps is 6; all epochs", ALL_OF_A "train.steps=6");
    /* Several sources; a new run from a checkpoint, with other batches; a source by weight beside them. */
    run_expect(0, "train.steps = 7: 27 samples in the epochs of 2 sources in batches of 4\n",
               FREE_KEYS "data.train=[{\"path\":a.tok,\"epochs\":1},{\"path\":b.tok,\"epochs\":4}] "
                         "run.dir=two");
    run_expect(0,
               "train.steps = 5: 3 epochs of 7 samples in batches of 6; 12 samples were read until step 3\n",
               ALL_OF_A "run.dir=new train.resume=free/ckpt/step-3 train.global_batch=6");
    assert_int_equal(last_step("new"), 5);
    if (!SANITIZED) /* a thousand steps; read_so_often reads a source by weight beside epochs, too */
        run_expect(0, "fill.tok: 100 samples, 39.8 epochs in this run",
                   FREE_KEYS "data.train=[{\"path\":a.tok,\"epochs\":3},fill.tok] run.dir=filled "
                             "train.resume=none run.checkpoint_interval=0");
}

/* ---- other epochs -------------------------------------------------------------------------------- */

#define EPOCHS_OF_A(n)                                                                                       \
    FREE_KEYS "run.checkpoint_interval=0 optim.schedule=constant data.train=[{\"path\":a.tok,\"epochs\":" #n \
              "}] "

/* A run that has ended, or has not, reads as many epochs in all as it is told then, in its own directory and
 * in a new one. Fewer than it has read are refused. */
static void more_epochs(void **state)
{
    (void)state;
    sh("rm -rf three four six new run mixed");
    run_expect(0, NULL, EPOCHS_OF_A(4) "run.dir=four");
    run_expect(0, NULL, EPOCHS_OF_A(6) "run.dir=six");
    sh("cp -r four run");
    run_expect(0, "changed: data.train was ", EPOCHS_OF_A(6));
    same_checkpoint("six/ckpt/step-11", "run/ckpt/step-11");
    sh("rm -rf run");
    run_expect(0,
               "train.steps = 11: 6 epochs of 7 samples in batches of 4; 28 samples were read until step 7\n",
               EPOCHS_OF_A(6) "train.resume=four/ckpt/step-7");
    same_checkpoint("six/ckpt/step-11", "run/ckpt/step-11");
    /* The last step of three epochs has one sample; the next step goes on behind it. */
    run_expect(0, NULL, EPOCHS_OF_A(3) "run.dir=three");
    run_expect(0,
               "train.steps = 10: 5 epochs of 7 samples in batches of 4; 21 samples were read until step 6\n",
               EPOCHS_OF_A(5) "run.dir=three");
    assert_int_equal(samples_read("three", 10), 35);
    run_expect(0, "done: step 12", EPOCHS_OF_A(6) "run.dir=three train.steps=12");
    run_expect(2, "all sources have epochs, 56 samples together, but the run has 42 ",
               EPOCHS_OF_A(8) "run.dir=three train.steps=12");
    run_expect(2,
               "a.tok has epochs: 5, but after step 12 it was read 6.00 times already (42 samples, 7 in each "
               "epoch): set epochs to at least 6, or choose another run.dir",
               EPOCHS_OF_A(5) "run.dir=three");
    run_expect(0, "all epochs of data.train are read: give more", EPOCHS_OF_A(6) "run.dir=three");
    /* Beside a source by weight. */
    run_expect(0, NULL, EPOCH_KEYS MIX "run.dir=mixed");
    run_expect(2, "set train.steps to at least 24", EPOCH_KEYS MIX5 "run.dir=mixed");
    run_expect(0, "done: step 24", EPOCH_KEYS MIX5 "run.dir=mixed train.steps=24");
    expect_counts("mixed/ckpt/step-24/training/state.json", 35, 41, 20);
    run_expect(2, "a.tok has epochs: 3, but after step 24 it was read 5.00 times already",
               EPOCH_KEYS MIX "run.dir=mixed train.steps=30");
    /* Another source is read from its beginning. */
    run_expect(0, "train.steps = 12: 4 epochs of 5 samples in batches of 4 after step 7\n",
               EPOCHS_OF_A(4) "run.dir=new train.resume=four/ckpt/step-7 "
                              "data.train=[{\"path\":b.tok,\"epochs\":4}]");
    char *log = text_of("log");
    assert_non_null(
        strstr(log, "data.train has other samples than the checkpoint's run: it is read from its"));
    free(log);
}

/* Each token but the first is a target once in an epoch, also those after the last full row. */
static void the_last_tokens_are_read(void **state)
{
    (void)state;
    ax_token_writer *writer;
    int32_t document[40];
    for (int32_t i = 0; i < 40; i++)
        document[i] = i;
    OK(ax_token_writer_create("tail.tok", VOCAB, -1, 0, &writer));
    OK(ax_token_writer_add(writer, document, 40, 40));
    OK(ax_token_writer_finish(&writer, NULL));
    run_expect(0, "tail.tok: 3 samples, 3.0 epochs in this run, 100.0 % of it",
               FREE_KEYS "run.dir=tail data.train=[{\"path\":tail.tok,\"epochs\":3}]");
    assert_true(number_at("tail", "tokens", 3) == 3 * 39);
}

/* ---- the last step ------------------------------------------------------------------------------- */

/* With plain SGD the weights change by the learning rate times the gradient. */
enum { BATCH = 8 };
#define LAST_KEYS                                                                                            \
    FREE_KEYS                                                                                                \
    "model.heads=4 train.global_batch=8 optim.name=sgd optim.momentum=0 optim.schedule=constant "            \
    "optim.lr=0.1 data.train=[{\"path\":docs.tok,\"epochs\":3}] "

/* Writes documents of up to 40 tokens, some of which are masked. */
static void make_documents(const char *path)
{
    ax_token_writer *writer;
    OK(ax_token_writer_create(path, VOCAB, VOCAB - 1, 0, &writer));
    for (uint64_t d = 0; d < 6; d++) {
        int32_t document[40];
        uint8_t is_target[40];
        int64_t n = 2 + (int64_t)(ax_rng_uniform(1, d) * 38);
        for (int64_t i = 0; i < n; i++) {
            document[i] = (int32_t)(ax_rng_uniform(2 + d, (uint64_t)i) * (VOCAB - 1));
            is_target[i] = i == n - 1 || ax_rng_uniform(50 + d, (uint64_t)i) < 0.5f;
        }
        OK(ax_token_writer_add_masked(writer, document, is_target, n, n));
    }
    OK(ax_token_writer_finish(&writer, NULL));
}

/* Returns the weights of a checkpoint, one array after the other; the caller frees them. */
static float *weights_of(const char *run, int64_t step, int64_t *n)
{
    char path[128], *bytes;
    uint64_t header;
    size_t size;
    snprintf(path, sizeof path, "%s/ckpt/step-%lld/model.safetensors", run, (long long)step);
    OK(ax_file_read(path, &bytes, &size));
    memcpy(&header, bytes, sizeof header);
    *n = (int64_t)(size - 8 - header) / 4;
    memmove(bytes, bytes + 8 + header, (size_t)*n * 4);
    return (float *)(void *)bytes;
}

/* Asserts that two runs had the same loss and the same number of targets in a step, and weights after it. */
static void same_step(const char *a, const char *b, int64_t step)
{
    int64_t n, m;
    float *x = weights_of(a, step, &n), *y = weights_of(b, step, &m);
    double loss = number_at(a, "loss", step);
    assert_true(loss > 1 && fabs(loss - number_at(b, "loss", step)) < 1e-5);
    assert_true(number_at(a, "tokens", step) == number_at(b, "tokens", step));
    assert_int_equal(n, m);
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)x[i] - (double)y[i]) < 1e-6))
            fail_msg("weight %lld is %g in %s, and %g in %s", (long long)i, x[i], a, y[i], b);
    free(x);
    free(y);
}

#define EXPERTS "model.family=mixtral model.ffn=20 model.experts=3 moe.balance=0.5 moe.z_loss=0.1"

/* The last step of a run is that of a run whose batch is exactly what is left: on one rank, and on grids with
 * ranks and micro-batches of padding alone. */
static void last_step_is_exact(void **state)
{
    (void)state;
    static const char *const kinds[] = {"data.loss=all", "data.pack=documents",
                                        "data.goldfish.k=3 data.goldfish.window=2", EXPERTS},
                             *const grids[] = {"train.micro_batch=8",
                                               "ranks=2 grid.data=2",
                                               "ranks=4 grid.data=4 zero=3",
                                               "ranks=4 grid.x=2 grid.z=2 train.micro_batch=1",
                                               "ranks=2 grid.pipe=2",
                                               "ranks=4 grid.pipe=2 grid.data=2 pipe.postpone=1 zero=2"};
    for (size_t i = 0; i < AX_COUNT(kinds); i++) {
        sh("rm -rf whole exact");
        run_expect(0, NULL, LAST_KEYS "run.dir=whole %s", kinds[i]);
        const long long steps = last_step("whole"), before = BATCH * (steps - 1),
                        left = samples_read("whole", steps) - before;
        assert_true(left > 0 && left <= BATCH / 2 && samples_read("whole", steps - 1) == before);
        run_expect(0, NULL,
                   LAST_KEYS "%s run.dir=exact train.resume=whole/ckpt/step-%lld train.global_batch=%lld "
                             "train.micro_batch=1",
                   kinds[i], steps - 1, left);
        same_step("whole", "exact", steps);
    }
    /* The last model has experts, whose losses are means over the samples that there are. */
    const double balance = number_at("whole", "balance_loss", last_step("whole"));
    assert_true(balance >= 2 &&
                fabs(balance - number_at("exact", "balance_loss", last_step("exact"))) < 1e-5);
    for (size_t i = 0; i < AX_COUNT(grids); i += SANITIZED ? 2 : 1) {
        sh("rm -rf grid");
        run_expect(0, NULL, LAST_KEYS "run.dir=grid %s %s", kinds[AX_COUNT(kinds) - 1], grids[i]);
        for (int64_t step = 1; step <= last_step("whole"); step++)
            same_step("whole", "grid", step);
    }
}

static int setup(void **state)
{
    if (run_setup(state))
        return -1;
    make_samples("a.tok", 7, 1);
    make_samples("b.tok", 5, 20);
    make_samples("fill.tok", 100, 40);
    make_documents("docs.tok");
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(read_so_often),     cmocka_unit_test(from_a_checkpoint),
        cmocka_unit_test(what_does_not_fit), cmocka_unit_test(epochs_set_the_steps),
        cmocka_unit_test(more_epochs),       cmocka_unit_test(the_last_tokens_are_read),
        cmocka_unit_test(last_step_is_exact)};
    return cmocka_run_group_tests(tests, setup, run_teardown);
}
