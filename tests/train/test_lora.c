/* Runs that train low-rank adapters: their checkpoints, resuming, merging, and what is refused. */
#include "support/sampled.h"
#include "train/run_test.h"

#include <math.h>

#define GOLDEN AXONN_SOURCE_DIR "/tests/golden/"
#define TUNE_KEYS                                                                                            \
    OTHER_KEYS "data.train=from.tok model.seq_len=16 optim.lr=0.1 tune.method=lora tune.rank=3 "             \
               "tune.alpha=6 "
#define LORA_KEYS TUNE_KEYS "model.from=base "

static int lora_setup(void **state)
{
    if (run_setup(state))
        return -1;
    make_tokens("from.tok", 59, 3000, 1);
    sh("cp -r " GOLDEN "gpt2/tanh base && cp -r " GOLDEN "qwen3/norms wide && chmod -R u+w base wide");
    sh("rm base/golden.* wide/golden.*");
    return 0;
}

static void write_text(const char *path, const char *text)
{
    OK(ax_file_write_atomic(path, text, strlen(text)));
}

/* ---- logits -------------------------------------------------------------------------------------- */

enum { T = 12, MOST = T * 70 };

typedef struct table {
    float logits[MOST];
    int64_t n;
} table;

static ax_status take(void *user, int64_t position, const float *logits, int64_t vocab)
{
    table *t = user;
    memcpy(t->logits + position * vocab, logits, (size_t)vocab * sizeof *logits);
    t->n = (position + 1) * vocab;
    return AX_OK;
}

static void logits_of(const char *dir, table *out)
{
    static const int32_t tokens[T] = {1, 5, 50, 7, 33, 2, 2, 48, 19, 20, 21, 22};
    ax_pretrained model;
    ax_comm *self;
    ax_ctx *ctx;
    OK(ax_pretrained_open(dir, &model));
    OK(ax_comm_self_create(&self));
    OK(ax_ctx_create(self, (ax_grid_size){{1}}, "cpu", 1, AX_F32, 1, &ctx));
    OK(ax_pretrained_logits(ctx, &model, tokens, T, take, out));
    ax_ctx_destroy(&ctx);
    ax_comm_destroy(&self);
    ax_pretrained_close(&model);
}

/* Returns the largest difference, relative to the largest logit. */
static double gap(const char *a, const char *b)
{
    static table x, y;
    double worst = 0, largest = 0;
    logits_of(a, &x);
    logits_of(b, &y);
    assert_int_equal(x.n, y.n);
    for (int64_t i = 0; i < x.n; i++) {
        worst = fmax(worst, fabs(x.logits[i] - y.logits[i]));
        largest = fmax(largest, fabs(y.logits[i]));
    }
    return worst / largest;
}

static void convert(const char *dir, const char *out, ax_dtype dtype, ax_conversion *result)
{
    OK(ax_model_convert(&(ax_conversion_args){.dir = dir, .out = out, .dtype = dtype}, result));
}

/* ---- checkpoints --------------------------------------------------------------------------------- */

static void expect_files(const char *dir, const char *const *names, int n)
{
    for (int i = 0; i < n; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        if (!ax_path_exists(path))
            fail_msg("there is no %s", path);
    }
    assert_int_equal(count_files(dir), n);
}

/* The checkpoint is an adapter's directory and training/; it resumes with the same bits, and on a grid. */
static void a_checkpoint_is_an_adapter_and_resumes(void **state)
{
    (void)state;
    static const char *const names[] = {"adapter_config.json", "adapter_model.safetensors",
                                        "generation_config.json", "training"};
    sh("rm -rf run run2 run3 && cp -r base before");
    run_expect(0, "tuning low-rank updates of q, k, v, proj, up, down in each block: rank 3, alpha 6",
               LORA_KEYS "train.steps=6");
    expect_files("run/ckpt/step-3", names, (int)AX_COUNT(names));
    same_file("base/model.safetensors", "before/model.safetensors");
    /* optim.schedule: the default decays to 0 at train.steps, which the two halves must have in common */
    run_expect(0, "resuming from", LORA_KEYS "train.steps=6 run.dir=run2 train.resume=run/ckpt/step-3");
    same_file("run/ckpt/step-6/adapter_model.safetensors", "run2/ckpt/step-6/adapter_model.safetensors");
    same_file("run/ckpt/step-6/training/optim.safetensors", "run2/ckpt/step-6/training/optim.safetensors");
    run_expect(0, "resuming from",
               LORA_KEYS "train.steps=6 run.dir=run3 train.resume=run/ckpt/step-3 ranks=4 "
                         "grid.x=2 grid.pipe=2 train.micro_batch=1");
    double change = gap("run/ckpt/step-6", "base"), other = gap("run3/ckpt/step-6", "run/ckpt/step-6");
    printf("the adapter changes logits by %.1e, the grid by %.1e\n", change, other);
    assert_true(change > 0.05 && other < 1e-3);
    /* A base that has moved: its new path is written into the checkpoint, which stays good. */
    sh("cp -r run/ckpt/step-6 kept && cp -r base moved && "
       "sed -i 's,/base\",/moved\",' run/ckpt/step-6/adapter_config.json && grep -q /moved "
       "run/ckpt/step-6/*.json");
    assert_true(gap("run/ckpt/step-6", "kept") == 0);
    run_expect(0, "run/ckpt/step-6 after step 6",
               LORA_KEYS "train.steps=7 tune.targets=[] tune.layers=[]"); /* all */
}

/* Every grid writes the same adapter up to rounding, also with ZeRO and with rounded weights. */
static void grids_write_the_same_adapter(void **state)
{
    (void)state;
    static const char *const grids[] = {"ranks=2 grid.z=2", "ranks=2 grid.y=2",
                                        "ranks=4 grid.x=2 grid.data=2 zero=1", "ranks=2 grid.data=2 zero=3",
                                        "ranks=2 grid.pipe=2 pipe.postpone=1"};
    sh("rm -rf run one");
    run_expect(0, NULL,
               TUNE_KEYS
               "model.from=wide run.dir=one train.steps=3 tune.dropout=0.25 tune.targets=[q,v,gate,down]");
    for (size_t i = 0; i < AX_COUNT(grids); i++) {
        if (!my_share(i, 2))
            continue;
        sh("rm -rf run");
        run_expect(0, NULL,
                   TUNE_KEYS "model.from=wide train.steps=3 tune.targets=[q,v,gate,down] tune.dropout=0.25 "
                             "train.micro_batch=1 %s",
                   grids[i]);
        double other = gap("run", "one");
        if (!(other < 1e-4))
            fail_msg("%s: logits differ by %.1e", grids[i], other);
    }
    run_expect(0, NULL,
               TUNE_KEYS
               "model.from=wide run.dir=half train.steps=3 train.precision=bf16 run.save_dtype=bf16 "
               "train.resume=auto");
    run_expect(0, "resuming from",
               TUNE_KEYS "model.from=wide run.dir=half train.steps=5 train.precision=bf16 "
                         "run.save_dtype=bf16 ranks=2 grid.data=2 zero=2 train.micro_batch=1");
}

/* The values of tune.rslora and tune.dropout are in the adapter, in the sums and in the masks: a resumed run
 * draws the same masks, also with recomputation and on a grid. */
static void rslora_and_dropout_are_kept(void **state)
{
    (void)state;
    static const char keys[] = TUNE_KEYS
        "model.from=wide tune.targets=[q,v,gate,down] tune.rslora=true tune.dropout=0.25 train.steps=6 ";
    ax_conversion r;
    sh("rm -rf run run2 run3 plain merged");
    run_expect(0, "rank 3, alpha 6 (rank-stabilized), dropout 0.25 of their inputs", keys);
    sh("cd run/ckpt/step-6 && grep -q '\"use_rslora\": true' adapter_config.json && grep -q '\"lora_alpha\": "
       "6,' "
       "adapter_config.json && grep -q '\"lora_dropout\": 0.25,' adapter_config.json");
    run_expect(0, "resuming from", "%s run.dir=run2 train.resume=run/ckpt/step-3 train.recompute=full", keys);
    same_file("run/ckpt/step-6/adapter_model.safetensors", "run2/ckpt/step-6/adapter_model.safetensors");
    run_expect(0, "resuming from",
               "%s run.dir=run3 train.resume=run/ckpt/step-3 ranks=4 grid.x=2 grid.pipe=2 "
               "train.micro_batch=1",
               keys);
    run_expect(0, "changed: tune.dropout was 0.25 and is now 0.0",
               "%s run.dir=plain train.resume=run/ckpt/step-3 tune.dropout=0", keys);
    const double grid = gap("run3", "run"), none = gap("plain", "run");
    printf("the grid changes logits by %.1e, no dropout by %.1e\n", grid, none);
    assert_true(grid < 1e-3 && none > 0.01);
    convert("run/ckpt/step-6", "merged", AX_DTYPE_COUNT, &r);
    assert_true(gap("merged", "run") < 1e-5);
    run_expect(AX_ERR_USAGE, "tune.rslora was true and is now false", "%s tune.rslora=false", keys);
}

/* Updates of some blocks, of the output layer, which is tied, and of the token embedding: the
 * run resumes with the same bits, on other grids, and merges into a model with the same logits. */
static void some_blocks_and_both_tables_are_trained(void **state)
{
    (void)state;
    static const struct {
        const char *keys, *said, *named;
    } cases[] = {
        {"model.from=base tune.targets=[q,v,up,lm_head,wte] tune.layers=1",
         "updates of q, v, up in blocks 1, head, embed: rank 3", "\"transformer.h.1.attn.c_attn\""},
        {"model.from=wide tune.targets=[head] tune.layers=all", "updates of head: rank", "\"lm_head\""},
        {"model.from=wide tune.targets=embed", "updates of embed: rank", "\"model.embed_tokens\""},
        {"model.from=wide tune.targets=[all,embed_tokens] tune.layers=[0-0]",
         "gate, up, down in blocks 0, embed: rank", "\"model.layers.0.mlp.gate_proj\""}};
    static const char *const grids[] = {"grid.x=2 grid.y=2", "grid.z=2 grid.pipe=2 train.micro_batch=1",
                                        "grid.data=2 grid.pipe=2 zero=1 train.micro_batch=1",
                                        "grid.x=2 grid.data=2 zero=3 train.micro_batch=1"};
    ax_conversion r;
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        if (!my_share(i, 2))
            continue;
        sh("rm -rf run run2 run3 merged");
        run_expect(0, cases[i].said, TUNE_KEYS "train.steps=4 %s", cases[i].keys);
        run_expect(0, "resuming from", TUNE_KEYS "train.steps=4 run.dir=run2 train.resume=run/ckpt/step-2 %s",
                   cases[i].keys);
        same_file("run/ckpt/step-4/adapter_model.safetensors", "run2/ckpt/step-4/adapter_model.safetensors");
        run_expect(0, "resuming from",
                   TUNE_KEYS "train.steps=4 run.dir=run3 train.resume=run/ckpt/step-2 ranks=4 %s %s",
                   cases[i].keys, grids[i]);
        assert_true(gap("run3", "run") < 1e-3);
        sh("rm -rf on");
        run_expect(0, "the updates start from the adapter",
                   TUNE_KEYS "train.steps=1 run.dir=on optim.lr=0 model.from=run/ckpt/step-4");
        assert_true(gap("on", "run") == 0);
        sh("grep -qF '%s' run/ckpt/step-4/adapter_config.json", cases[i].named);
        convert("run/ckpt/step-4", "merged", AX_DTYPE_COUNT, &r);
        assert_true(gap("merged", "run") < 1e-5 && gap("run", i ? "wide" : "base") > 0.01);
    }
    if (my_share(AX_COUNT(cases) - 1, 2)) /* the run is that of the last case */
        run_expect(AX_ERR_USAGE, "tune.layers was \"0\" and is now \"all\"",
                   TUNE_KEYS "train.steps=5 model.from=wide tune.targets=[all,embed_tokens]");
}

/* ---- merging ------------------------------------------------------------------------------------- */

static void merged_logits_equal_unmerged_ones(void **state)
{
    (void)state;
    static const char *const golden[] = {"joint", "one", "all", "patterns", "blocks"};
    ax_conversion r;
    for (size_t i = 0; i < AX_COUNT(golden); i++) {
        char dir[512];
        snprintf(dir, sizeof dir, GOLDEN "lora/%s", golden[i]);
        sh("rm -rf merged");
        convert(dir, "merged", AX_DTYPE_COUNT, &r);
        assert_true(r.merged > 0 && gap("merged", dir) < 1e-5);
        assert_true(ax_path_exists("merged/config.json") && !ax_path_exists("merged/adapter_config.json"));
    }
    sh("rm -rf run merged half tuned");
    run_expect(0, NULL, LORA_KEYS "train.steps=4 tune.targets=[q,v,up]");
    convert("run/ckpt/step-4", "merged", AX_DTYPE_COUNT, &r);
    assert_int_equal(r.merged, 4); /* c_attn and c_fc of two blocks */
    assert_true(gap("merged", "run") < 1e-5);
    convert("run/ckpt/step-4", "half", AX_BF16, &r);
    assert_true(gap("half", "run") < 3e-2 && gap("half", "run") > 1e-6);
    /* The merged model is a model like any other: it can be tuned. */
    run_expect(0, NULL, TUNE_KEYS "model.from=merged run.dir=tuned train.steps=1");
}

/* ---- training that starts from an adapter -------------------------------------------------------- */

/* An adapter of `from`, which is trained further: with learning rate 0 it stays as it is, and its base is the
 * same. */
static void expect_continued(const char *from, const char *keys)
{
    sh("rm -rf more");
    run_expect(
        0, "the updates start from the adapter",
        OTHER_KEYS
        "data.train=from.tok model.seq_len=16 tune.method=lora model.from=%s run.dir=more train.steps=1 "
        "optim.lr=0 %s",
        from, keys);
    if (gap("more", from) != 0)
        fail_msg("%s: the adapter has changed", from);
}

/* Every grid trains the one factor A that q, k and v of GPT-2 share in an adapter of PEFT. */
static void q_k_and_v_share_one_factor(void)
{
    static const char *const grids[] = {"ranks=4 grid.x=2 grid.y=2", "ranks=4 grid.data=2 grid.z=2 zero=2",
                                        "ranks=2 grid.pipe=2 train.recompute=full"};
    static const char keys[] = OTHER_KEYS
        "data.train=from.tok model.seq_len=16 tune.method=lora tune.dropout=0.25 train.steps=3 optim.lr=0.1 "
        "train.micro_batch=1 model.from=" GOLDEN "lora/joint ";
    sh("rm -rf one");
    run_expect(0, "rank 8, alpha 12, dropout 0.25 of their inputs, 0.005 M parameters", "%s run.dir=one",
               keys);
    for (size_t i = 0; i < AX_COUNT(grids); i++) {
        sh("rm -rf more");
        run_expect(0, NULL, "%s run.dir=more %s", keys, grids[i]);
        if (!(gap("more", "one") < 1e-3))
            fail_msg("%s: logits differ by %.1e", grids[i], gap("more", "one"));
    }
    sh("cd one/ckpt/step-3 && ! grep -q '\"attn.c_attn\": ' adapter_config.json");
}

/* An adapter of PEFT, or of another run, is trained further: its keys need not be given, the optimizer is
 * new, and the result is an adapter of the same base. */
static void training_starts_from_an_adapter(void **state)
{
    (void)state;
    static const char *const peft[] = {"joint", "one", "all", "patterns"};
    static const char keys[] =
        OTHER_KEYS "data.train=from.tok model.seq_len=16 tune.method=lora train.steps=6 "
                   "optim.lr=0.1 model.from=run ";
    char from[512];
    for (size_t i = 0; i < AX_COUNT(peft); i++) {
        snprintf(from, sizeof from, GOLDEN "lora/%s", peft[i]);
        expect_continued(from, "");
    }
    sh("rm -rf run && grep -q '\"base_model_name_or_path\": \"%s\"' more/ckpt/step-1/*.json",
       AXONN_SOURCE_DIR "/tests/golden/qwen3/norms");
    run_expect(0, NULL, LORA_KEYS "train.steps=2 tune.targets=[q,v,up] tune.dropout=0.5");
    expect_continued("run", "tune.rank=3 tune.alpha=6 tune.targets=[up,v,q,k] tune.rslora=false");
    q_k_and_v_share_one_factor();
    sh("rm -rf run");
    run_expect(0, NULL, TUNE_KEYS "model.from=wide train.steps=2 tune.targets=[q,head,embed] tune.layers=1");
    expect_continued("run", "");
    sh("grep -q 'layers: \\[\"1\"\\]' more/config.yaml");
    expect_continued("run", "tune.targets=[head,q_proj,embed] tune.layers=[1]");
    sh("rm -rf run");
    run_expect(0, NULL, TUNE_KEYS "model.from=wide train.steps=2 tune.targets=[head]");
    expect_continued("run", "tune.layers=all");
    sh("rm -rf run");
    run_expect(0, NULL, TUNE_KEYS "model.from=wide train.steps=2 tune.targets=[q,v] tune.dropout=0.5");
    expect_continued("run", "tune.targets=[q_proj,v] tune.rank=3");
    same_file("run/ckpt/step-2/adapter_model.safetensors", "more/ckpt/step-1/adapter_model.safetensors");
    same_file("run/ckpt/step-2/adapter_config.json", "more/ckpt/step-1/adapter_config.json");
    sh("rm -rf more less");
    run_expect(0, "dropout 0.5 of their inputs", "%s run.dir=more", keys);
    sh("grep -q 'targets: \\[\"q\", \"v\"\\]' more/config.yaml && grep -q 'rank: 3$' more/config.yaml");
    run_expect(0, "resuming from", "%s run.dir=less train.resume=more/ckpt/step-3", keys);
    same_file("more/ckpt/step-6/adapter_model.safetensors", "less/ckpt/step-6/adapter_model.safetensors");
    same_file("more/ckpt/step-6/training/optim.safetensors", "less/ckpt/step-6/training/optim.safetensors");
    assert_true(gap("more", "run") > 0.01);
    sh("rm -rf less");
    run_expect(0, "resuming from",
               "%s run.dir=less train.resume=more/ckpt/step-3 ranks=4 grid.z=2 grid.y=2 train.micro_batch=1",
               keys);
    assert_true(gap("more", "less") < 1e-3);
}

static void keys_that_contradict_the_adapter_are_refused(void **state)
{
    (void)state;
    static const char from[] = OTHER_KEYS
        "data.train=from.tok model.seq_len=16 train.steps=6 run.dir=new model.from=" GOLDEN "lora/patterns ";
    static const struct {
        const char *keys, *part;
    } cases[] = {
        {"tune.method=lora tune.rank=2",
         "tune.rank: must be 3, as in the adapter in model.from; leave the key"},
        {"tune.method=lora tune.alpha=3", "tune.alpha: must be 6, as in the adapter in model.from; leave"},
        {"tune.method=lora tune.rslora=true", "tune.rslora: must be false, as in the adapter in model.from"},
        {"tune.method=lora tune.targets=[q]",
         "tune.targets: must be [q,v], the matrices that the adapter in "},
        {"",
         "patterns is an adapter: set tune.method to lora to train it further. To train all weights, merge"}};
    for (size_t i = 0; i < AX_COUNT(cases); i++)
        run_expect(AX_ERR_USAGE, cases[i].part, "%s %s", from, cases[i].keys);
    sh("rm -rf given && cp -r " GOLDEN "lora/all given && chmod -R u+w given && "
       "sed -i 's/\"lora_alpha\": .*,/\"lora_alpha\": -3,/; s,\": \"../..,\": \"" GOLDEN ",' "
       "given/adapter_config.json");
    run_expect(AX_ERR_USAGE, "given has lora_alpha -3, but only updates with one above 0 are trained",
               OTHER_KEYS
               "data.train=from.tok model.seq_len=16 run.dir=new model.from=given tune.method=lora");
}

/* A run that goes on from an adapter reads the adapter's scales again when it is resumed. Other ones than
 * before are refused. */
static void a_resumed_run_keeps_the_scales_of_its_adapter(void **state)
{
    (void)state;
    static const char keys[] =
        OTHER_KEYS "data.train=from.tok model.seq_len=16 tune.method=lora run.dir=more model.from=given ";
    sh("rm -rf more given && cp -r " GOLDEN "lora/joint given && chmod -R u+w given && "
       "sed -i 's,\": \"../..,\": \"" GOLDEN ",' given/adapter_config.json");
    run_expect(0, NULL, "%s train.steps=1", keys);
    sh("sed -i 's/\"alpha_pattern\": {}/\"alpha_pattern\": {\"c_fc\": 30}/' given/adapter_config.json && "
       "grep -q c_fc.*30 given/adapter_config.json");
    run_expect(AX_ERR_USAGE, "alpha_pattern of the adapter was {} and is now {\"mlp.c_fc\":30}",
               "%s train.steps=2", keys);
}

/* The weights of the base are not all of it: its config.json must stay the same, too. */
static void a_resumed_run_keeps_the_configuration_of_its_base(void **state)
{
    (void)state;
    static const char keys[] = TUNE_KEYS "model.from=other run.dir=more ";
    sh("rm -rf more other && cp -r wide other");
    run_expect(0, NULL, "%s train.steps=1", keys);
    sh("sed -i 's/\"rms_norm_eps\": [^,]*/\"rms_norm_eps\": 0.5/' other/config.json");
    run_expect(AX_ERR_USAGE, "model.norm_eps was", "%s train.steps=2", keys);
}

/* ---- what is refused ----------------------------------------------------------------------------- */

static void refuse(const char *part, const char *keys)
{
    sh("rm -rf new");
    run_expect(AX_ERR_USAGE, part, "%s run.dir=new", keys);
    assert_false(ax_path_exists("new/ckpt"));
}

static void wrong_keys_are_refused_together(void **state)
{
    (void)state;
    refuse("tune.targets: models of family gpt2 have no matrix \"gate\"; they have q, k, v, proj, up, down, "
           "head, embed, or as in its files c_attn, c_proj, c_fc, lm_head, wte",
           LORA_KEYS "tune.targets=[q,gate]");
    refuse("tune.targets: models of family qwen3 have no matrix \"layers.0.mlp.up_proj\"; they have q, k, v, "
           "proj, gate, up, down, head, embed, or as in its files q_proj, k_proj, v_proj, o_proj, gate_proj, "
           "up_proj, down_proj, lm_head, embed_tokens",
           TUNE_KEYS "model.from=wide tune.targets=[layers.0.mlp.up_proj]");
    refuse(
        "tune.layers: \"2\" is no block of this model, whose blocks are 0 to 1, and no range of them such as "
        "0-1",
        LORA_KEYS "tune.layers=[1,2]");
    static const char *const bad[] = {"1-0", "-1", "0-2", "0-", "x", "0--1", "0-1-1"};
    for (size_t i = 0; i < AX_COUNT(bad); i++) {
        char keys[512];
        snprintf(keys, sizeof keys, LORA_KEYS "tune.layers=['%s']", bad[i]);
        refuse("is no block of this model", keys);
    }
    refuse("tune.layers: has an effect only if tune.targets", LORA_KEYS "tune.targets=head tune.layers=1");
    refuse("tune.layers: has an effect only with tune.method: lora", BASE_KEYS "tune.layers=0");
    refuse("tune.rank: 21 is above 20, the smaller side of matrix q [20, 20]", LORA_KEYS "tune.rank=21");
    refuse("tune.method: lora trains updates of an existing model", BASE_KEYS "tune.method=lora");
    refuse("tune.rank: has an effect only with tune.method: lora", BASE_KEYS "tune.rank=4");
    refuse("model.norm_eps: an adapter cannot change the value of its base",
           LORA_KEYS "model.norm_eps=0.001");
    /* all at once */
    refuse("tune.targets: models of", LORA_KEYS "tune.targets=[lm_tail] tune.rank=30 train.steps=0");
    char *log = text_of("log");
    assert_non_null(strstr(log, "train.steps"));
    free(log);
}

/* tune.targets takes the names of modules in the model's files too. */
static void targets_have_the_names_of_peft(void **state)
{
    (void)state;
    static const struct {
        const char *keys, *said;
    } cases[] = {
        {"model.from=base tune.targets=[c_attn,mlp.c_proj]", "updates of q, k, v, down in each block"},
        {"model.from=base tune.targets=[c_proj,up]", "updates of proj, up, down in each block"},
        {"model.from=wide tune.targets=[q_proj,self_attn.o_proj]", "updates of q, proj in each block"},
        {"model.from=wide tune.targets=[k_proj,v_proj,gate_proj,up_proj,down_proj]",
         "updates of k, v, gate, up, down in each block"},
        {"model.from=wide tune.targets=all", "updates of q, k, v, proj, gate, up, down in each block"}};
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        sh("rm -rf run");
        run_expect(0, cases[i].said, TUNE_KEYS "train.steps=1 %s", cases[i].keys);
    }
    /* Either name means the same run. Without the key config.yaml says "all". */
    run_expect(0, "resuming from",
               TUNE_KEYS "model.from=wide train.steps=2 tune.targets=[q,k_proj,v,o_proj,gate,up_proj,down]");
    run_expect(0, "resuming from", TUNE_KEYS "model.from=wide train.steps=3");
    sh("grep -q 'targets: \\[\"all\"\\]' run/config.yaml");
}

static void another_base_is_refused(void **state)
{
    (void)state;
    sh("rm -rf run other");
    run_expect(0, NULL, LORA_KEYS "train.steps=2");
    sh("cp -r base other");
    ax_conversion r;
    sh("rm -rf moved");
    convert("base", "moved", AX_BF16, &r);
    run_expect(AX_ERR_USAGE, "model.from was \"weights with checksum",
               TUNE_KEYS "model.from=moved train.steps=3");
    run_expect(AX_ERR_USAGE, "/base)\nrestore the old values", TUNE_KEYS "model.from=moved train.steps=3");
    run_expect(0, "resuming from",
               TUNE_KEYS "model.from=other train.steps=3"); /* the same weights elsewhere */
    run_expect(AX_ERR_USAGE, "tune.rank was 3 and is now 2", LORA_KEYS "train.steps=4 tune.rank=2");
    run_expect(AX_ERR_USAGE, "tune.method was \"lora\" and is now \"full\"",
               OTHER_KEYS "model.from=base data.train=from.tok model.seq_len=16 train.steps=4");
    sh("sed -i 's,\"base_model_name_or_path\": \".*\",\"base_model_name_or_path\": \"%s/moved\",' "
       "run/ckpt/step-3/adapter_config.json && rm -rf alone && cp -r run/ckpt/step-3 alone && rm -r "
       "alone/training",
       scratch_dir);
    ax_pretrained model;
    assert_int_equal(ax_pretrained_open("alone", &model), AX_ERR_DATA);
    assert_non_null(strstr(ax_error_message(), "alone is an adapter for another base"));
}

/* A weight of the base that is not finite is named, although it has no gradient. */
static void a_frozen_weight_that_is_not_finite_is_named(void **state)
{
    (void)state;
    ax_st *from;
    const float nan_value = NAN;
    sh("rm -rf sick && cp -r base sick");
    OK(ax_st_open("sick", &from));
    const ax_st_array *a = ax_st_find(from, "transformer.h.1.mlp.c_fc.weight");
    assert_non_null(a);
    FILE *file = fopen("sick/model.safetensors", "r+b");
    assert_true(file && !fseek(file, (long)a->offset, SEEK_SET));
    assert_int_equal(fwrite(&nan_value, sizeof nan_value, 1, file), 1);
    assert_int_equal(fclose(file), 0);
    ax_st_close(&from);
    run_expect(AX_ERR_NUMERIC, "h.1.mlp.up.weight",
               TUNE_KEYS "model.from=sick run.dir=sick_run train.precision=bf16");
}

static void expect_config(const char *part, const char *members)
{
    char text[1024];
    snprintf(text, sizeof text,
             "{\"peft_type\": \"LORA\", \"base_model_name_or_path\": \"%s/base\", \"r\": 8, "
             "\"lora_alpha\": 12%s}",
             scratch_dir, members);
    write_text("given/adapter_config.json", text);
    ax_pretrained model;
    ax_status status = ax_pretrained_open("given", &model);
    if (!part) {
        OK(status);
        ax_pretrained_close(&model);
        return;
    }
    assert_int_equal(status, AX_ERR_DATA);
    if (!strstr(ax_error_message(), part))
        fail_msg("%s, not %s", ax_error_message(), part);
}

/* Removes the arrays with `part` in their key from given/adapter_model.safetensors. */
static void remove_arrays(const char *part)
{
    ax_st *from, *to;
    ax_st_array array[64];
    int n = 0;
    OK(ax_st_open("given", &from));
    for (int i = 0; i < ax_st_count(from) && n < 64; i++)
        if (!strstr(ax_st_at(from, i)->key, part))
            array[n++] = *ax_st_at(from, i);
    assert_true(n > 0 && n < ax_st_count(from));
    sh("rm -rf fewer && mkdir fewer");
    OK(ax_st_plan("fewer", "adapter_model", array, n, 0, &to));
    OK(ax_st_make(to));
    for (int i = 0; i < n; i++) {
        const ax_st_array *a = ax_st_find(from, array[i].key);
        int64_t overflows = 0;
        OK(ax_st_copy(from, a, to, ax_st_find(to, a->key), 0, ax_st_elements(a), &overflows));
    }
    ax_st_close(&from);
    ax_st_close(&to);
    sh("mv fewer/adapter_model.safetensors given");
}

/* The means of the routers' losses are over the blocks that have a backward: each sample's balance loss is
 * near top_k = 2 in both blocks. */
static void only_blocks_with_a_backward_count(void **state)
{
    (void)state;
    static const char *const layers[] = {"all", "1"};
    make_tokens("few.tok", 47, 300, 1);
    for (size_t i = 0; i < AX_COUNT(layers); i++) {
        sh("rm -rf run");
        run_expect(0, NULL,
                   TUNE_KEYS "data.train=few.tok train.steps=1 tune.targets=q tune.layers=%s "
                             "model.from=" GOLDEN "mixtral/window",
                   layers[i]);
        assert_true(number_at("run", "balance_loss", 1) > 1.5);
    }
}

/* Blocks may differ in whether matrices have updates, and in rank and scale. Merged or not, the logits are
 * the same; PEFT's own are in lora/blocks (test_adapter.c). */
static void blocks_may_differ(void **state)
{
    (void)state;
    static const struct {
        const char *removed, *members;
        int merged;
    } cases[] = {
        {"h.0.attn.c_attn.", ", \"target_modules\": [\"c_attn\", \"c_proj\", \"c_fc\"]", 7},
        {".h.1.", ", \"target_modules\": [\"c_attn\", \"c_proj\", \"c_fc\"], \"layers_to_transform\": [0]",
         4},
        {".h.1.",
         ", \"target_modules\": [\"c_attn\", \"c_proj\", \"c_fc\"], \"layers_to_transform\": 0, "
         "\"layers_pattern\": [\"h\"]",
         4},
        {".h.0.",
         ", \"target_modules\": \".*h\\\\.1\\\\.(attn|mlp)\\\\.c_[a-z]+\", \"alpha_pattern\": "
         "{\"h.1.mlp.c_fc\": 3}",
         4},
        {"c_fc", "", 6},
    };
    ax_conversion r;
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        sh("rm -rf given merged && cp -r " GOLDEN "lora/joint given && chmod -R u+w given");
        remove_arrays(cases[i].removed);
        expect_config(NULL, cases[i].members);
        convert("given", "merged", AX_DTYPE_COUNT, &r);
        assert_int_equal(r.merged, cases[i].merged);
        assert_true(gap("merged", "given") < 1e-5 && gap("given", "base") > 0.01);
    }
    /* A scale of one block only, and half a pair of factors. */
    sh("rm -rf given merged && cp -r " GOLDEN "lora/joint given && chmod -R u+w given");
    expect_config(NULL, ", \"alpha_pattern\": {\"h.0.attn.c_attn\": 3}");
    convert("given", "merged", AX_DTYPE_COUNT, &r);
    assert_true(gap("merged", "given") < 1e-5 && gap("given", GOLDEN "lora/joint") > 0.01);
    remove_arrays("h.1.attn.c_attn.lora_B");
    expect_config("h.1.attn.c_attn.lora_B.weight", "");
}

static void foreign_adapters_are_checked(void **state)
{
    (void)state;
    sh("rm -rf given && cp -r " GOLDEN "lora/joint given && chmod -R u+w given");
    expect_config(NULL, "");
    expect_config("use_dora: true: DoRA is not implemented", ", \"use_dora\": true");
    expect_config("bias: \"all\": biases that were trained", ", \"bias\": \"all\", \"use_dora\": true");
    expect_config("the regular expression \"(q\" is not valid", ", \"alpha_pattern\": {\"(q\": 3}");
    expect_config("new_member: {\"a\":1}: this member is unknown", ", \"new_member\": {\"a\": 1}");
    expect_config(NULL, ", \"new_member\": null, \"other\": false, \"third\": []");
    expect_config(NULL, ", \"target_modules\": \".*\\\\.(c_attn|c_proj|c_fc)\"");
    expect_config("leaves this module out", ", \"target_modules\": [\"c_attn\", \"attn.c_proj\"]");
    expect_config("holds factors of transformer.h.1.attn.c_attn, but",
                  ", \"target_modules\": [\"c_attn\", \"c_proj\", \"c_fc\"], \"layers_to_transform\": [0], "
                  "\"layers_pattern\": \"h\"");
    expect_config("leaves this module out", ", \"exclude_modules\": [\"mlp.c_proj\"]");
    expect_config("alpha_pattern: the value of c_fc is not a number",
                  ", \"alpha_pattern\": {\"c_fc\": \"3\"}");
    expect_config("gives transformer.h.0.attn.c_attn rank 5, but", ", \"rank_pattern\": {\"c_attn\": 5}");
    expect_config("rank_pattern: the value of c_fc is not a number", ", \"rank_pattern\": {\"c_fc\": null}");
    expect_config("modules_to_save", ", \"modules_to_save\": [\"lm_head\"]");
    expect_config("lora_dropout: \"0.5\": must be a number", ", \"lora_dropout\": \"0.5\"");
    /* PEFT would replace the base's table by the copy in the adapter, here that of another base. */
    sh("rm -rf given shifted && cp -r " GOLDEN
       "lora/blocks given && cp -r wide shifted && chmod -R u+w given && "
       "sed -i 's,\"base_model_name_or_path\": \".*\",\"base_model_name_or_path\": \"%s/shifted\",' "
       "given/adapter_config.json",
       scratch_dir);
    ax_pretrained shifted;
    OK(ax_pretrained_open("given", &shifted));
    const long at = (long)ax_st_find(shifted.weights, "model.embed_tokens.weight")->offset;
    ax_pretrained_close(&shifted);
    sh("printf x | dd of=shifted/model.safetensors bs=1 seek=%ld conv=notrunc 2>/dev/null", at + 4001);
    assert_int_equal(ax_pretrained_open("given", &shifted), AX_ERR_DATA);
    assert_non_null(
        strstr(ax_error_message(), "given holds base_model.model.lm_head.base_layer.weight, another one"));
    /* Tied matrices that PEFT updates together, and a whole matrix (the name in the header keeps its length).
     */
    sh("sed -i 's/shifted/wide/; /\"lm_head\",/d' given/adapter_config.json");
    assert_int_equal(ax_pretrained_open("given", &shifted), AX_ERR_DATA);
    assert_non_null(strstr(ax_error_message(), "given holds factors of lm_head, but target_modules"));
    sh("sed -i 's/tying\": false/tying\": true/' given/adapter_config.json");
    OK(ax_pretrained_open("given", &shifted));
    ax_pretrained_close(&shifted);
    sh("sed -i 's/lm_head.base_layer.weight\":/lm_head.weight\"           :/' "
       "given/adapter_model.safetensors");
    assert_int_equal(ax_pretrained_open("given", &shifted), AX_ERR_DATA);
    assert_non_null(
        strstr(ax_error_message(), "given holds base_model.model.lm_head.weight, a whole matrix"));
    sh("rm -rf given && cp -r " GOLDEN "lora/all given && chmod -R u+w given");
    expect_config("updates no matrix that models of family gpt2 have", "");
    sh("rm -rf given && cp -r " GOLDEN "lora/one given && chmod -R u+w given");
    ax_pretrained model;
    write_text(
        "given/adapter_config.json",
        "{\"peft_type\": \"LORA\", \"base_model_name_or_path\": \"gpt2\", \"r\": 1, \"lora_alpha\": 2}");
    assert_int_equal(ax_pretrained_open("given", &model), AX_ERR_DATA);
    assert_non_null(strstr(
        ax_error_message(),
        "there is no such directory: set \"base_model_name_or_path\" in this file to the path of the base"));
    write_text("given/adapter_config.json", "{\"r\": 1}");
    assert_int_equal(ax_pretrained_open("given", &model), AX_ERR_DATA);
    assert_non_null(strstr(ax_error_message(), "peft_type is missing"));
}

/* Each member of PEFT's LoraConfig is known: its default is accepted, and another value is not said to be
 * unknown. A value of init_lora_weights with which PEFT computes something else, or nothing, is refused. */
static void every_member_of_peft_is_known(void **state)
{
    (void)state;
    json_t *json = json_load_file(GOLDEN "lora/fields.json", 0, NULL), *value, *pair;
    const char *name;
    size_t i, accepted = 0;
    sh("rm -rf given && cp -r " GOLDEN "lora/joint given && chmod -R u+w given");
    json_object_foreach(json_object_get(json, "fields"), name, value)
    {
        json_t *text = json_pack("{s:s,s:s,s:i,s:i}", "peft_type", "LORA", "base_model_name_or_path", "base",
                                 "r", 8, "lora_alpha", 12);
        ax_adapter adapter;
        if (!json_is_null(value) || !json_object_get(text, name))
            json_object_set(text, name, value);
        char *given = json_dumps(text, 0);
        OK(ax_adapter_parse(given, strlen(given), name, &adapter));
        ax_adapter_fini(&adapter);
        free(given);
        json_object_set_new(text, name, json_pack("{s:[i]}", "odd", 1));
        given = json_dumps(text, 0);
        if (ax_adapter_parse(given, strlen(given), "file", &adapter) == AX_OK)
            ax_adapter_fini(&adapter);
        else if (strstr(ax_error_message(), "unknown"))
            fail_msg("%s", ax_error_message());
        free(given);
        json_decref(text);
    }
    json_array_foreach(json_object_get(json, "init_lora_weights"), i, pair)
    {
        char members[128], *text = json_dumps(json_array_get(pair, 0), JSON_ENCODE_ANY);
        bool same =
            json_number_value(json_array_get(pair, 1)) == 0 && json_is_number(json_array_get(pair, 1));
        snprintf(members, sizeof members, ", \"init_lora_weights\": %s", text);
        if (same && (!json_is_string(json_array_get(pair, 0)) || strcmp(text, "\"lora_ga\"")) &&
            strcmp(text, "\"\"") != 0 && strcmp(text, "[]") != 0) {
            expect_config(NULL, members);
            accepted++;
        } else
            expect_config("init_lora_weights: ", members);
        free(text);
    }
    assert_int_equal(accepted, 10);
    json_decref(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_checkpoint_is_an_adapter_and_resumes),
                                       cmocka_unit_test(grids_write_the_same_adapter),
                                       cmocka_unit_test(rslora_and_dropout_are_kept),
                                       cmocka_unit_test(some_blocks_and_both_tables_are_trained),
                                       cmocka_unit_test(merged_logits_equal_unmerged_ones),
                                       cmocka_unit_test(training_starts_from_an_adapter),
                                       cmocka_unit_test(keys_that_contradict_the_adapter_are_refused),
                                       cmocka_unit_test(a_resumed_run_keeps_the_scales_of_its_adapter),
                                       cmocka_unit_test(a_resumed_run_keeps_the_configuration_of_its_base),
                                       cmocka_unit_test(targets_have_the_names_of_peft),
                                       cmocka_unit_test(wrong_keys_are_refused_together),
                                       cmocka_unit_test(another_base_is_refused),
                                       cmocka_unit_test(a_frozen_weight_that_is_not_finite_is_named),
                                       cmocka_unit_test(only_blocks_with_a_backward_count),
                                       cmocka_unit_test(blocks_may_differ),
                                       cmocka_unit_test(foreign_adapters_are_checked),
                                       cmocka_unit_test(every_member_of_peft_is_known)};
    return cmocka_run_group_tests(tests, lora_setup, run_teardown);
}
