/* Runs of the families of Llama's kind, with experts or without: new models from keys and from a config.json,
 * resumed on other grids, and models of another family. */
#include "support/sampled.h"
#include "train/run_test.h"

#include <math.h>

#define GOLDEN AXONN_SOURCE_DIR "/tests/golden/"
#define SHAPE "model.layers=2 model.hidden=24 model.vocab=61 model.seq_len=16 " OTHER_KEYS

/* What each family's test model is, beside its sizes. */
static const struct {
    const char *family, *keys;
} families[] = {
    {"llama", "model.heads=6 model.kv_heads=2 model.rope_theta=500 "},
    {"mistral", "model.heads=4 model.kv_heads=1 model.head_dim=10 model.window=5 "},
    {"qwen2", "model.heads=6 model.kv_heads=3 model.tie=true model.window=7 "},
    {"qwen3", "model.heads=4 model.kv_heads=2 model.head_dim=14 model.tie=true "},
    {"mixtral", "model.heads=4 model.ffn=20 model.experts=3 moe.balance=0.02 "},
    {"qwen3_moe", "model.heads=4 model.ffn=20 model.experts=4 model.dense_layers=0 "},
    {"olmoe", "model.heads=4 model.ffn=20 model.experts=2 model.renormalize=true "},
};

/* A checkpoint is a model from which another run starts with the same weights, and which resumes on another
 * grid. On the same grid a run that was stopped equals one that was not, bit for bit. */
static void runs_resume(void **state)
{
    (void)state;
    for (size_t i = 0; i < AX_COUNT(families); i++) {
        char keys[512];
        if (!my_share(i, 3))
            continue;
        snprintf(keys, sizeof keys, SHAPE "optim.schedule=constant model.family=%s %s", families[i].family,
                 families[i].keys);
        sh("rm -rf run ref other");
        run_expect(0, NULL, "%srun.dir=ref ranks=4 grid.x=2 grid.data=2 train.micro_batch=1", keys);
        run_expect(0, NULL, "%strain.steps=3 ranks=4 grid.x=2 grid.data=2 train.micro_batch=1", keys);
        run_expect(0, "after step 3", "%sranks=4 grid.x=2 grid.data=2 train.micro_batch=1", keys);
        same_checkpoint("ref/ckpt/step-6", "run/ckpt/step-6");
        run_expect(0, "after step 6", "%sranks=3 grid.y=3 train.steps=8", keys);
        run_expect(2, "model.family was \"gpt2\" and is now", "%srun.dir=old", keys);
        run_expect(0, "done: step 1",
                   OTHER_KEYS "model.seq_len=16 model.from=run train.steps=1 run.dir=other");
        sh("cmp run/ckpt/step-8/config.json other/ckpt/step-1/config.json");
    }
}

/* grid.expert is free: a checkpoint goes on with experts divided among other ranks, or undivided. The batch,
 * and so the loss and the share of dropped choices, is the same; sums of fp32 are added in another order. */
static void resume_with_experts_on_other_ranks(const char *capacity)
{
    static const char *const grids[] = {"", "ranks=4 grid.data=4 grid.expert=2 ",
                                        "ranks=4 grid.x=2 grid.data=2 grid.expert=2 zero=1 "};
    double loss[AX_COUNT(grids)], dropped[AX_COUNT(grids)];
    char keys[512];
    snprintf(keys, sizeof keys,
             SHAPE "optim.schedule=constant model.family=qwen3_moe model.heads=4 model.ffn=20 "
                   "model.experts=4 train.micro_batch=1 moe.capacity=%s ",
             capacity);
    sh("rm -rf run other");
    run_expect(0, NULL, "%sranks=4 grid.data=4 grid.expert=4 train.steps=2", keys);
    for (size_t i = 0; i < AX_COUNT(grids); i++) {
        run_expect(0, "after step 2", "%s%srun.dir=other train.resume=run/ckpt/step-2 train.steps=4", keys,
                   grids[i]);
        loss[i] = number_at("other", "loss", 4);
        dropped[i] = atof(capacity) > 0 ? number_at("other", "expert_dropped", 4) : 0;
        assert_true(fabs(loss[i] - loss[0]) < 1e-5 && dropped[i] == dropped[0]);
        sh("rm -rf other");
    }
    assert_true((dropped[0] > 0) == (atof(capacity) > 0));
}

static void runs_resume_with_experts_on_other_ranks(void **state)
{
    (void)state;
    resume_with_experts_on_other_ranks("0");
    resume_with_experts_on_other_ranks("0.75");
    run_expect(2, "moe.capacity was 0.75 and is now 1",
               SHAPE "optim.schedule=constant model.family=qwen3_moe model.heads=4 model.ffn=20 "
                     "model.experts=4 train.micro_batch=1 moe.capacity=1 train.steps=4");
}

/* model.config: the shape of a file, of which keys replace values. */
static void shapes_come_from_a_file(void **state)
{
    (void)state;
    sh("rm -rf run other");
    run_expect(0, "done: step 2",
               OTHER_KEYS "model.config=" GOLDEN "llama/llama3/config.json model.seq_len=16 model.layers=2 "
                          "model.vocab=61 model.kv_heads=6 train.steps=2");
    char *text = text_of("run/ckpt/step-2/config.json");
    static const char *const kept[] = {"\"rope_type\": \"llama3\"", "\"high_freq_factor\": 4.0",
                                       "\"rope_theta\": 500.0",     "\"num_hidden_layers\": 2",
                                       "\"vocab_size\": 61",        "\"num_key_value_heads\": 6",
                                       "\"intermediate_size\": 50", "\"max_position_embeddings\": 16",
                                       "\"pretraining_tp\": 1",     "\"tie_word_embeddings\": true"};
    for (size_t i = 0; i < AX_COUNT(kept); i++)
        if (!strstr(text, kept[i]))
            fail_msg("%s is not in\n%s", kept[i], text);
    free(text);
    run_expect(0, "after step 2",
               OTHER_KEYS "model.config=" GOLDEN "llama/llama3/config.json model.seq_len=16 model.layers=2 "
                          "model.vocab=61 model.kv_heads=6 train.steps=3");
    run_expect(2, "model.kv_heads was 6 and is now 3",
               OTHER_KEYS "model.config=" GOLDEN "llama/llama3/config.json model.seq_len=16 model.layers=2 "
                          "model.vocab=61 model.kv_heads=3 train.steps=4");
    /* the width of a head follows model.hidden, as the file's own does */
    sh("rm -rf other");
    run_expect(0, "done: step 1",
               OTHER_KEYS "model.config=" GOLDEN "llama/llama3/config.json model.seq_len=16 model.hidden=60 "
                          "model.vocab=61 train.steps=1 run.dir=other");
    text = text_of("other/ckpt/step-1/config.json");
    assert_non_null(strstr(text, "\"head_dim\": 10"));
    free(text);
    sh("rm -rf other");
    /* a window in some layers only */
    run_expect(0, "done: step 1",
               OTHER_KEYS "model.config=" GOLDEN "qwen3/types/config.json model.vocab=61 model.seq_len=16 "
                          "train.steps=1 run.dir=other");
    text = text_of("other/ckpt/step-1/config.json");
    assert_non_null(strstr(text, "\"max_window_layers\": 0"));
    free(text);
    sh("rm -rf other");
    /* more blocks than the file has, which says that its second one has no experts */
    run_expect(0, "done: step 1",
               OTHER_KEYS
               "model.config=" GOLDEN "qwen3_moe/dense/config.json model.vocab=61 model.seq_len=16 "
               "model.layers=40 train.global_batch=1 train.micro_batch=1 train.steps=1 run.dir=other");
    text = text_of("other/ckpt/step-1/config.json");
    assert_non_null(strstr(text, "\"mlp_only_layers\": [\n    1\n  ]"));
    free(text);
    sh("rm -rf other");
    /* biases; a key that nobody knows is named, and kept */
    sh("sed 's/\"mlp_bias\"/\"my_key\": 1, &/' " GOLDEN "llama/biases/config.json >biases.json");
    run_expect(0, "biases.json: keys that models of family llama do not have are ignored",
               OTHER_KEYS
               "model.config=biases.json model.vocab=61 model.seq_len=16 train.steps=1 run.dir=other");
    text = text_of("other/ckpt/step-1/config.json");
    assert_true(strstr(text, "\"attention_bias\": true") && strstr(text, "\"mlp_bias\": true") &&
                strstr(text, "\"my_key\": 1"));
    free(text);
    run_expect(2, "attention_bias was true and is now false",
               OTHER_KEYS "model.config=" GOLDEN "llama/yarn/config.json model.vocab=61 model.seq_len=16 "
                          "train.steps=2 run.dir=other");
}

/* All errors of a configuration are reported at once, those in files that keys name included. */
static void errors_are_reported_together(void **state)
{
    (void)state;
    static const struct {
        const char *keys, *said[4];
    } rows[] = {
        {"model.config=" GOLDEN
         "qwen3/types/config.json model.layers=9 model.kv_heads=2 optim.lrr=1 train.steps=-1",
         {"model.layers: must be 3, as in model.config, which says of each layer", "optim.lrr: unknown key",
          "train.steps: must be",
          "model.config: does not fit the other model.* keys: the number of heads, 3, is not a multiple"}},
        {"model.config=" GOLDEN "llama/yarn/config.json model.window=4 model.activation=gelu optim.lrr=1",
         {"model.window: models of family llama have no such setting", "optim.lrr: unknown key",
          "models of family llama have the activation silu"}},
        {"model.from=" GOLDEN "mistral/window model.kv_heads=4 model.window=8 model.rope_theta=3 optim.lrr=1",
         {"model.kv_heads: must be 2, as in model.from; leave the key out",
          "model.window: must be 7, as in model.from", "model.rope_theta: must be 10000, as in model.from",
          "optim.lrr: unknown key"}},
        {"model.family=llama model.window=4 model.head_dim=7 model.kv_heads=5 model.heads=4",
         {"model.window: models of family llama have no such setting",
          "model.head_dim: the width of a head, 7, must be even",
          "model.kv_heads: 5 must divide model.heads (4), so it cannot be larger"}},
        {"model.config=" GOLDEN "llama/llama3/config.json model.rope_theta=0.5 optim.lrr=1",
         {"2 errors:", "model.rope_theta: must be above 1", "optim.lrr: unknown key"}},
        {"model.config=" GOLDEN "mixtral/window/config.json model.top_k=9 optim.lrr=1",
         {"2 errors:", "model.top_k: each token chooses 9 experts of 5", "optim.lrr: unknown key"}},
        {"model.family=llama model.heads=4 model.experts=4 grid.data=2 grid.expert=2",
         {"model.experts: models of family llama have no experts",
          "grid.expert: models of family llama have no experts"}},
        {"model.config=nowhere.json optim.lrr=1", {"no such file or directory", "optim.lrr: unknown key"}},
        {"model.config=train.tok optim.lrr=1", {"model.config: ", "optim.lrr: unknown key"}},
        {"model.from=acme/llama optim.lrr=1", {"hf download acme/llama", "optim.lrr: unknown key"}},
    };
    for (size_t i = 0; i < AX_COUNT(rows); i++) {
        sh("rm -rf run");
        run_expect(2, NULL, OTHER_KEYS "%s", rows[i].keys);
        char *log = text_of("log");
        for (size_t k = 0; k < AX_COUNT(rows[i].said) && rows[i].said[k]; k++)
            if (!strstr(log, rows[i].said[k]))
                fail_msg("\"%s\" is not in:\n%s", rows[i].said[k], log);
        free(log);
    }
    run_expect(4, "not valid JSON", OTHER_KEYS "model.config=train.tok");
    run_expect(2, "model.layers: must be 3, as in model.config",
               OTHER_KEYS "model.config=" GOLDEN "qwen3/types/config.json model.layers=2 model.vocab=61");
}

static int set_up(void **state)
{
    int failed = run_setup(state);
    make_tokens("train.tok", VOCAB, 2000, 1);
    run_expect(0, NULL, BASE_KEYS "run.dir=old train.steps=1");
    return failed;
}

/* Rows are as long as the data ask for, not as long as the model has positions; a run that continues keeps
 * its length, and checkpoints keep the model's number of positions. */
static void rows_follow_the_data(void **state)
{
    (void)state;
#define TUNE OTHER_KEYS "model.from=long data.pack=documents "
    sh("rm -rf run long");
    run_expect(0, NULL,
               OTHER_KEYS "model.family=llama model.layers=1 model.hidden=24 model.heads=3 model.vocab=61 "
                          "model.seq_len=16 train.steps=1");
    sh("mv run/ckpt/step-1 long && rm -r run long/training && "
       "sed -i 's/\"max_position_embeddings\": 16/\"max_position_embeddings\": 1048576/' long/config.json");
    run_expect(0, "data.train: rows have 128 tokens, enough for the longest document (",
               TUNE "train.steps=1");
    sh("grep -q 'seq_len: 128' run/config.yaml");
    sh("grep -q 'embeddings\": 1048576' run/ckpt/step-1/config.json && rm -r run");
    run_expect(
        0, "rows have 1024 tokens, the default for rows that cut documents; model.seq_len sets another",
        TUNE "data.pack=stream train.global_batch=1 train.micro_batch=1 train.steps=1 run.dir=streamed");
    run_expect(0, NULL, TUNE "model.seq_len=32 train.steps=1");
    run_expect(0, "done: step 2", TUNE "train.steps=2");
    sh("grep -q 'seq_len: 32' run/config.yaml");
    run_expect(2, "data.goldfish.window: 200 tokens are longer than a row",
               TUNE "data.goldfish.k=4 data.goldfish.window=200 run.dir=goldfish");
#undef TUNE
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_resume), cmocka_unit_test(runs_resume_with_experts_on_other_ranks),
        cmocka_unit_test(shapes_come_from_a_file), cmocka_unit_test(rows_follow_the_data),
        cmocka_unit_test(errors_are_reported_together)};
    return cmocka_run_group_tests_name("train.families", tests, set_up, run_teardown);
}
