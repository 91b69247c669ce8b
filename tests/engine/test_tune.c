/* Training an existing model on: what its directory holds beside weights, a head that is not the token table,
 * and keys that contradict it. */
#include "engine/run_test.h"

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

/* What lies beside the weights goes into every checkpoint, also of a run that goes on where the model is gone
 * but for its configuration, and of a run that starts from a checkpoint. */
static void files_are_copied_along(void **state)
{
    (void)state;
    make_model_with_files();
    run_expect(0, "model/too_large is larger than 16 MiB and is not copied into checkpoints",
               FROM_KEYS "model.from=model train.steps=2");
    expect_files("run/ckpt/step-1");
    expect_files("run/ckpt/step-2");
    sh("rm model/chat_template.jinja model/generation_config.json model/largest");
    run_expect(0, NULL, FROM_KEYS "model.from=model train.steps=3");
    expect_files("run/ckpt/step-3");
    run_expect(0, "done: step 4", FROM_KEYS "model.from=run run.dir=run2 train.steps=4 ranks=2 grid.x=2");
    expect_files("run2/ckpt/step-4");
    run_expect(0, "done: step 5",
               FROM_KEYS "model.from=model run.dir=run3 train.steps=5 train.resume=run/ckpt/step-3");
    expect_files("run3/ckpt/step-5");
}

static int set_up(void **state)
{
    if (scratch_setup(state))
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
    };
    return cmocka_run_group_tests_name("engine.tune", tests, set_up, scratch_teardown);
}
