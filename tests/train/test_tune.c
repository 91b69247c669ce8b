/* Training that starts from an existing model: the other files in its directory, a head that differs from the
 * token table, and keys that contradict the model. */
#include "train/run_test.h"

#include <math.h>
#include <sys/stat.h>

#define GOLDEN AXONN_SOURCE_DIR "/tests/golden/gpt2/tanh"
#define FROM_KEYS OTHER_KEYS "data.train=from.tok model.seq_len=16 "

static void write_text(const char *path, const char *text)
{
    OK(ax_file_write_atomic(path, text, strlen(text)));
}

/* ---- files beside the model ---------------------------------------------------------------------- */

static void assert_text(const char *path, const char *expected)
{
    char *text = text_of(path);
    assert_string_equal(text, expected);
    free(text);
}

static void make_model_with_files(void)
{
    sh("rm -rf model run run2 && cp -r " GOLDEN " model && chmod -R u+w model && rm model/golden.*");
    write_text("model/chat_template.jinja", "{{ messages }}");
    write_text("model/generation_config.json", "{\"eos_token_id\": [1, 2]}");
    write_text("model/vocab.txt", "");
    static const char *const stay[] = {
        "pytorch_model.bin", "optimizer.pt", "trainer_state.json", ".hidden", "pytorch_model.bin.index.json",
        "training"};
    for (size_t i = 0; i < AX_COUNT(stay); i++) {
        char path[128];
        snprintf(path, sizeof path, "model/%s", stay[i]);
        write_text(path, "{}");
    }
    sh("mkdir model/onnx && truncate -s 16M model/largest && truncate -s 16777217 model/too_large");
}

static void expect_files(const char *dir)
{
    char path[4096];
    static const char *const names[] = {
        "chat_template.jinja", "config.json", "generation_config.json", "largest", "vocab.txt",
        "model.safetensors",   "training"};
    for (size_t i = 0; i < AX_COUNT(names); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        if (!ax_path_exists(path))
            fail_msg("there is no %s", path);
    }
    snprintf(path, sizeof path, "%s/chat_template.jinja", dir);
    assert_text(path, "{{ messages }}");
    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    assert_text(path, "{\"eos_token_id\": [1, 2]}");
    if (count_files(dir) != (int)AX_COUNT(names)) {
        sh("ls %s >&2", dir);
        fail_msg("%s holds more than it should", dir);
    }
}

/* Files beside the weights are copied into every checkpoint, also if the run is resumed after all of the
 * model but its config.json was deleted, and in a run that starts from a checkpoint. */
static void files_are_copied_along(void **state)
{
    (void)state;
    make_model_with_files();
    run_expect(0, "model/too_large is larger than 16 MiB and is not copied into checkpoints",
               FROM_KEYS "model.from=model train.steps=2");
    expect_files("run/ckpt/step-1");
    expect_files("run/ckpt/step-2");
    run_expect(0, "checkpoints will not include these directories of ",
               FROM_KEYS "model.from=model run.dir=run4 train.steps=1");
    sh("rm model/chat_template.jinja model/generation_config.json model/largest");
    run_expect(0, NULL, FROM_KEYS "model.from=model train.steps=3");
    expect_files("run/ckpt/step-3");
    run_expect(0, "done: step 4", FROM_KEYS "model.from=run run.dir=run2 train.steps=4 ranks=2 grid.x=2");
    expect_files("run2/ckpt/step-4");
    run_expect(0, "done: step 5",
               FROM_KEYS "model.from=model run.dir=run3 train.steps=5 train.resume=run/ckpt/step-3");
    expect_files("run3/ckpt/step-5");
}

/* ---- an untied head ------------------------------------------------------------------------------ */

/* Copies GOLDEN to `dir` and adds a head to its weights: the token table, with its last value changed by
 * `change`. */
static void make_headed(const char *dir, float change, bool tie)
{
    ax_st *from, *to;
    ax_st_array array[64];
    sh("rm -rf %s && mkdir %s", dir, dir);
    OK(ax_st_open(GOLDEN, &from));
    int n = ax_st_count(from), table = -1;
    for (int i = 0; i < n; i++) {
        array[i] = *ax_st_at(from, i);
        table = strstr(array[i].key, "wte.weight") ? i : table;
    }
    assert_true(table >= 0 && n < 64);
    array[n] = array[table];
    array[n].key = "lm_head.weight";
    OK(ax_st_plan(dir, "model", array, n + 1, 0, &to));
    OK(ax_st_make(to));
    for (int i = 0; i <= n; i++) {
        const ax_st_array *a = i < n ? ax_st_at(from, i) : ax_st_at(from, table);
        int64_t count = ax_st_elements(a), lo[AX_ST_MAX_DIMS] = {0};
        float *values = calloc((size_t)count, sizeof *values);
        OK(ax_st_read(from, a, NULL, NULL, false, AX_F32, values));
        values[count - 1] += i < n ? 0 : change;
        OK(ax_st_write(to, ax_st_find(to, array[i].key), lo, array[i].dim, false, AX_F32, values));
        free(values);
    }
    ax_st_close(&from);
    ax_st_close(&to);
    sh("sed 's/\"tie_word_embeddings\": true/\"tie_word_embeddings\": %s/' " GOLDEN
       "/config.json > %s/config.json",
       tie ? "true" : "false", dir);
}

static bool is_tied(const char *dir)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/config.json", dir);
    json_t *config = json_load_file(path, 0, NULL), *tie = json_object_get(config, "tie_word_embeddings");
    assert_true(json_is_boolean(tie));
    bool tied = json_is_true(tie);
    json_decref(config);
    return tied;
}

static double last_loss(const char *run)
{
    char *text = metrics_of(run, true), *at = NULL;
    for (char *next = text; (next = strstr(next, "\"loss\": ")); next++)
        at = next;
    assert_non_null(at);
    double loss = strtod(at + 8, NULL);
    free(text);
    return loss;
}

/* The model trains exactly as if config.json said that the head is not tied, also on grids, and it can be
 * resumed. */
static void a_head_that_differs_is_untied(void **state)
{
    (void)state;
    sh("rm -rf run run2 run3 run4");
    make_headed("says_tied", 0.5F, true);
    make_headed("says_untied", 0.5F, false);
    run_expect(0,
               "says_tied: config.json ties lm_head.weight to transformer.wte.weight, but the files hold "
               "different values: the model is read with an untied head (tie_word_embeddings: false)",
               FROM_KEYS "model.from=says_tied");
    char *said = text_of("log"), *told = strstr(said, "is read with an untied head");
    assert_null(strstr(told + 1, "is read with an untied head")); /* once */
    free(said);
    assert_false(is_tied("run/ckpt/step-6"));
    run_expect(0, "done: step 6", FROM_KEYS "model.from=says_untied run.dir=run2");
    same_text(metrics_of("run", true), metrics_of("run2", true));
    same_file("run/ckpt/step-6/model.safetensors", "run2/ckpt/step-6/model.safetensors");
    run_expect(0, "done: step 3",
               FROM_KEYS "model.from=says_tied run.dir=run3 train.steps=3 ranks=2 grid.x=2 "
                         "optim.schedule=constant");
    run_expect(0, "done: step 6",
               FROM_KEYS "model.from=says_tied run.dir=run3 ranks=4 grid.y=2 grid.z=2 "
                         "train.micro_batch=1 optim.schedule=constant");
    run_expect(0, "done: step 6", FROM_KEYS "model.from=says_tied run.dir=run4 optim.schedule=constant");
    assert_true(fabs(last_loss("run3") - last_loss("run4")) < 1e-5 * last_loss("run4"));
    assert_false(is_tied("run3/ckpt/step-6"));
    run_expect(2, "model.tie: must be false, as in model.from",
               FROM_KEYS "model.from=says_tied model.tie=true");
}

/* A head that equals the token table stays tied. */
static void a_head_that_is_the_table_is_tied(void **state)
{
    (void)state;
    sh("rm -rf run run2");
    make_headed("copied", 0, true);
    run_expect(0, "done: step 6", FROM_KEYS "model.from=copied");
    assert_true(is_tied("run/ckpt/step-6"));
    run_expect(0, "done: step 6", FROM_KEYS "model.from=" GOLDEN " run.dir=run2");
    same_text(metrics_of("run", true), metrics_of("run2", true));
}

/* ---- mistakes ------------------------------------------------------------------------------------ */

/* Invalid keys, keys that contradict the model, and files that do not fit it are all reported at once. */
static void mistakes_are_reported_together(void **state)
{
    (void)state;
    sh("rm -rf run");
    run_expect(2, NULL,
               FROM_KEYS "model.from=" GOLDEN " model.layers=9 model.seq_len=25 optim.lrr=1 train.steps=-1 "
                         "data.tokenizer=tok");
    static const char *const said[] = {"optim.lrr: unknown key", "train.steps: must be from 1",
                                       "model.layers: must be 2, as in model.from; leave the key out",
                                       "model.seq_len: must be at most 24, the number of positions"};
    char *log = text_of("log");
    for (size_t i = 0; i < AX_COUNT(said); i++)
        if (!strstr(log, said[i]))
            fail_msg("\"%s\" is not in:\n%s", said[i], log);
    free(log);
    run_expect(2, "model.from: ", FROM_KEYS "model.from=nowhere optim.lrr=1");
    run_expect(2, "data.valid: no such file or directory",
               BASE_KEYS "data.valid=[train.tok,nowhere.tok] optim.lrr=1");
    run_expect(2, "model.vocab: must be at least 280", BASE_KEYS "data.tokenizer=tok optim.lrr=1");
    assert_false(ax_path_exists("run"));
}

static int set_up(void **state)
{
    if (run_setup(state))
        return -1;
    make_tokens("train.tok", VOCAB, 4000, 1);
    make_tokens("from.tok", 67, 4000, 2);
    make_tokenizer();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_are_copied_along),
        cmocka_unit_test(a_head_that_differs_is_untied),
        cmocka_unit_test(a_head_that_is_the_table_is_tied),
        cmocka_unit_test(mistakes_are_reported_together),
    };
    return cmocka_run_group_tests_name("train.tune", tests, set_up, run_teardown);
}
