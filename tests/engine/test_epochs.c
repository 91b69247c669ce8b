/* Sources with epochs: a run reads them exactly so often, is resumed with the same bits, and refuses epochs
 * that do not fit. */
#include "engine/run_test.h"

/* 80 samples; a.tok has 7 samples, b.tok 5, fill.tok 100. */
#define EPOCH_KEYS BASE_KEYS "optim.schedule=constant train.steps=20 run.checkpoint_interval=0 "
#define MIX                                                                                                  \
    "data.train=[{\"path\":a.tok,\"epochs\":3},{\"path\":fill.tok,\"weight\":2},{\"path\":b.tok,\"epochs\":" \
    "4}] "

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
    log = text_of("log");
    assert_non_null(strstr(log, "no train.steps fits, because the 21 samples are no multiple of "
                                "train.global_batch (4): choose one that divides them, or add a source by "
                                "weight, which fills the rest"));
    free(log);
    for (int steps = 6; steps <= 8; steps += 2)
        run_expect(2, ": set train.steps to 7, or add a source by weight, which fills the rest",
                   EPOCH_KEYS "train.steps=%d data.train=[{\"path\":a.tok,\"epochs\":4}]", steps);
    run_expect(2, "/fill.tok would be read: the epochs of the other sources fill the samples of the run, 28 ",
               EPOCH_KEYS "train.steps=7 data.train=[{\"path\":a.tok,\"epochs\":4},fill.tok]");
    log = text_of("log");
    assert_non_null(strstr(log, "set train.steps to at least 8, or leave this source out"));
    free(log);
    run_expect(2, "only sources of data.train have epochs",
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

static int setup(void **state)
{
    if (run_setup(state))
        return -1;
    make_samples("a.tok", 7, 1);
    make_samples("b.tok", 5, 20);
    make_samples("fill.tok", 100, 40);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(read_so_often), cmocka_unit_test(from_a_checkpoint),
                                       cmocka_unit_test(what_does_not_fit)};
    return cmocka_run_group_tests(tests, setup, run_teardown);
}
