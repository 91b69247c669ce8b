/* Stopping and resuming after every step gives the same bits, for all precisions, orders and sources; and
 * what a resumed run may and may not change. */
#include "ckpt/ckpt.h"
#include "train/run_test.h"

/* ---- the same bits ------------------------------------------------------------------------------- */

/* Makes a run directory as a kill leaves it: the newest checkpoint is that of `step`, metrics.jsonl has later
 * steps too. */
static void make_stopped(const char *run, int64_t step)
{
    sh("rm -rf %s && mkdir -p %s/ckpt && cp -r ref/ckpt/step-%lld %s/ckpt/ && echo step-%lld > %s/latest && "
       "cp ref/metrics.jsonl %s/",
       run, run, (long long)step, run, (long long)step, run, run);
    if (step % 2)
        sh("printf '{\"step\": 7, \"lo' >> %s/metrics.jsonl", run); /* an incomplete last line */
}

/* Resumes after each step of a run of 6 steps, and compares weights, optimizer state, data position and
 * metrics with those of an uninterrupted run. */
static void resume_everywhere(const char *keys)
{
    enum { STEPS = 6 };
    sh("rm -rf ref");
    run_expect(0, "done: step 6", BASE_KEYS "data.valid=valid.tok run.eval_interval=2 %s run.dir=ref", keys);
    for (int64_t k = 1; k <= STEPS; k += SANITIZED ? 3 : 1) {
        char said[64];
        make_stopped("run", k);
        snprintf(said, sizeof said, "run/ckpt/step-%lld after step %lld", (long long)k, (long long)k);
        run_expect(0, said, BASE_KEYS "data.valid=valid.tok run.eval_interval=2 run.checkpoint_interval=0 %s",
                   keys);
        same_checkpoint("ref/ckpt/step-6", "run/ckpt/step-6");
        same_text(metrics_of("ref", true), metrics_of("run", true));
    }
}

static void fp32_shuffled_dropout(void **state)
{
    (void)state;
    resume_everywhere("model.dropout=0.1 threads=2");
}

static void bf16_two_sources_recompute(void **state)
{
    (void)state;
    resume_everywhere("model.dropout=0.1 train.precision=bf16 train.recompute=full run.save_dtype=bf16 "
                      "data.train=[{\"path\":train.tok,\"weight\":3},{\"path\":more.tok,\"weight\":1}]");
}

/* The weights are too large for the initial loss scale, so the run begins with skipped steps. */
static void fp16_scale_is_resumed(void **state)
{
    (void)state;
    const char *keys = "train.precision=fp16 model.init_std=5 run.save_dtype=fp16 run.checkpoint_interval=1";
    resume_everywhere(keys);
    char *rows = metrics_of("ref", false);
    assert_non_null(strstr(rows, "\"precision\": \"fp16\""));
    assert_non_null(strstr(rows, "\"skipped\": true"));
    assert_non_null(strstr(rows, "\"loss_scale\": 65536"));
    assert_non_null(strstr(rows, "\"loss_scale\": 32768"));
    free(rows);
    sh("rm -rf run");
    run_expect(
        0, "step 1 is skipped: its gradient overflows fp16; the loss scale is now 32768 (skipped so far: 1)",
        BASE_KEYS "%s", keys);
}

static void sequential_momentum(void **state)
{
    (void)state;
    resume_everywhere("data.order=sequential optim.name=sgd optim.schedule=wsd data.mask_documents=false "
                      "train.recompute=2");
}

/* Over several epochs: the order of later epochs is resumed too. */
static void many_epochs(void **state)
{
    (void)state;
    resume_everywhere(
        "data.train=[{\"path\":tiny.tok,\"weight\":1},{\"path\":more.tok,\"weight\":2}] model.dropout=0.2");
}

/* Resumes again and again, for one step each time. */
static void a_step_at_a_time(void **state)
{
    (void)state;
    sh("rm -rf ref run");
    run_expect(0, NULL, BASE_KEYS "optim.schedule=constant model.dropout=0.1 run.dir=ref");
    for (int steps = 2; steps <= 6; steps++) /* warm-up is two steps */
        run_expect(0, NULL, BASE_KEYS "optim.schedule=constant model.dropout=0.1 train.steps=%d", steps);
    same_checkpoint("ref/ckpt/step-6", "run/ckpt/step-6");
    same_text(metrics_of("ref", true), metrics_of("run", true));
}

static void a_finished_run_has_nothing_to_do(void **state)
{
    (void)state;
    sh("rm -rf run");
    run_expect(0, NULL, BASE_KEYS);
    char *before = metrics_of("run", true);
    run_expect(0, "has finished 6 steps and train.steps is 6; raise train.steps to go on", BASE_KEYS);
    same_text(before, metrics_of("run", true));
}

/* Without a checkpoint the run starts again; the metrics of the first attempt are kept in another file. */
static void nothing_saved_yet(void **state)
{
    (void)state;
    sh("rm -rf ref run && mkdir run && echo '{\"version\": \"x\"}' > run/metrics.jsonl");
    run_expect(0, NULL, BASE_KEYS "run.dir=ref");
    run_expect(0, NULL, BASE_KEYS);
    same_checkpoint("ref/ckpt/step-6", "run/ckpt/step-6");
    same_text(metrics_of("ref", false), metrics_of("run", false));
    assert_true(ax_path_exists("run/metrics.jsonl.1"));
}

/* If the newest checkpoint is damaged, the run continues from the one before, and logs it. */
static void a_damaged_checkpoint_is_passed_over(void **state)
{
    (void)state;
    sh("rm -rf ref run");
    run_expect(0, NULL, BASE_KEYS "run.dir=ref");
    sh("cp -r ref run && rm -r run/ckpt/step-6 && echo step-5 > run/latest && "
       "printf x | dd of=run/ckpt/step-5/model.safetensors bs=1 seek=3000 conv=notrunc 2>/dev/null");
    run_expect(0, "run/ckpt/step-4 after step 4", BASE_KEYS);
    same_checkpoint("ref/ckpt/step-6", "run/ckpt/step-6");
    same_text(metrics_of("ref", true), metrics_of("run", true));
}

/* ---- what may change ----------------------------------------------------------------------------- */

/* A run that has decayed its learning rate and gets more steps says that it rises. One that goes on as it was
 * planned says nothing. */
static void a_rate_that_rises_again(void **state)
{
    (void)state;
    sh("rm -rf run");
    run_expect(0, NULL, BASE_KEYS "train.steps=4");
    run_expect(
        0,
        "the learning rate rises from 0 (step 4) to 0.005 (step 5): schedule cosine with optim.lr 0.01 "
        "now ends at step 8",
        BASE_KEYS "train.steps=8");
    sh("rm -r run/ckpt/step-8 run/ckpt/step-7 && echo step-6 > run/latest");
    run_expect(0, "done: step 8", BASE_KEYS "train.steps=8");
    char *log = text_of("log");
    assert_null(strstr(log, "learning rate"));
    free(log);
}

static void allowed_changes(void **state)
{
    (void)state;
    sh("rm -rf run");
    run_expect(0, NULL, BASE_KEYS "train.steps=3 optim.schedule=constant");
    run_expect(0, "train.steps was 3 and is now 5", BASE_KEYS "train.steps=5 optim.schedule=constant");
    run_expect(0, "train.micro_batch was 2 and is now 4",
               BASE_KEYS "train.steps=6 optim.schedule=constant train.micro_batch=4");
    run_expect(0, "optim.lr was 0.01 and is now 0.001",
               BASE_KEYS "train.steps=7 optim.schedule=constant optim.lr=0.001");
    run_expect(0, "train.precision was \"fp32\" and is now \"bf16\"",
               BASE_KEYS "train.steps=8 optim.schedule=constant optim.lr=0.001 train.precision=bf16 "
                         "run.save_dtype=bf16 train.recompute=1");
    run_expect(0, "train.grad_dtype was \"fp32\" and is now \"bf16\"",
               BASE_KEYS "train.steps=9 optim.schedule=constant optim.lr=0.001 train.precision=bf16 "
                         "train.grad_dtype=bf16");
    run_expect(0, "done: step 10", BASE_KEYS "train.steps=10 optim.schedule=constant optim.lr=0.001");
}

/* Sources are mixed by size, unless weights are given; equal weights differ from no weights. */
static void weights_of_sources(void **state)
{
    (void)state;
    static const struct {
        const char *list;
        double first, second;
    } cases[] = {{"[train.tok,more.tok]", 4, 3},
                 {"[{\"path\":train.tok,\"weight\":1},{\"path\":more.tok,\"weight\":1}]", 1, 1},
                 {"[{\"path\":train.tok,\"weight\":3},more.tok]", 3, 1}};
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        sh("rm -rf run");
        run_expect(0, NULL, BASE_KEYS "train.global_batch=70 train.micro_batch=7 train.steps=4 data.train=%s",
                   cases[i].list);
        json_t *state_json = json_load_file("run/ckpt/step-4/training/state.json", 0, NULL),
               *counts = json_object_get(state_json, "sampler");
        double share = cases[i].first / (cases[i].first + cases[i].second),
               found = (double)json_integer_value(json_array_get(counts, 0)) / 280;
        json_decref(state_json);
        assert_true(found > share - 0.02 && found < share + 0.02);
    }
    run_expect(2, "data.train was",
               BASE_KEYS "train.global_batch=70 train.micro_batch=7 train.steps=5 "
                         "data.train=[train.tok,more.tok]");
}

static void refused_changes(void **state)
{
    (void)state;
    static const struct {
        const char *keys;
        const char *said[6];
    } cases[] = {
        {"model.layers=3", {"model.layers was 2 and is now 3"}},
        {"train.seed=5 train.global_batch=8 model.hidden=48 model.seq_len=8 model.activation=gelu "
         "model.norm_eps=1e-6",
         {"train.seed was 1234 and is now 5", "train.global_batch was 4 and is now 8",
          "model.hidden was 24 and is now 48", "model.seq_len was 16 and is now 8",
          "model.activation was \"gelu_new\" and is now \"gelu\"", "model.norm_eps"}},
        {"data.train=more.tok", {"tokens) and is now /", "/more.tok ("}},
        {"data.train=[train.tok,more.tok] data.order=sequential",
         {"tokens) and is now /", "/more.tok (", "data.order was \"shuffled\" and is now \"sequential\""}},
        {"data.goldfish.k=4 data.goldfish.window=7",
         {"data.goldfish.k was 0 and is now 4", "data.goldfish.window was 0 and is now 7"}},
        {"optim.name=sgd", {"optim.name was \"adamw\" and is now \"sgd\""}},
    };
    sh("rm -rf run");
    run_expect(0, NULL, BASE_KEYS "train.steps=2");
    char *before = metrics_of("run", false);
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        run_expect(2, "cannot be continued, this would be another run:", BASE_KEYS "%s", cases[i].keys);
        char *log = text_of("log");
        for (int k = 0; k < 6 && cases[i].said[k]; k++)
            assert_non_null(strstr(log, cases[i].said[k]));
        free(log);
    }
    same_text(before, metrics_of("run", false)); /* nothing was written */
    run_expect(2, "run.dir", BASE_KEYS "train.resume=none");
    char *log = text_of("log");
    assert_non_null(
        strstr(log, "already holds 2 checkpoints: continue the run with train.resume=auto, or choose"));
    free(log);
}

/* Copies the tokens of a packed file to a nanoGPT file, adding `more` to each. */
static void make_nanogpt(const char *from, const char *to, size_t width, int more)
{
    ax_data *data;
    FILE *file = fopen(to, "wb");
    assert_non_null(file);
    OK(ax_data_open(from, -1, &data));
    for (int64_t i = 0; i < ax_data_describe(data)->tokens; i++) {
        int32_t token;
        OK(ax_data_tokens(data, i, 1, &token));
        int32_t word = (token + more) % VOCAB; /* its first bytes are the lowest */
        assert_int_equal(fwrite(&word, width, 1, file), 1);
    }
    ax_data_close(&data);
    assert_int_equal(fclose(file), 0);
}

static void state_path(const char *dir, char path[4096])
{
    snprintf(path, 4096, "%s/training/state.json", dir);
}

/* Replaces a checkpoint's state, and says so in its manifest. */
static void write_state(const char *dir, const char *text)
{
    manifest m;
    char path[4096];
    state_path(dir, path);
    OK(ax_file_write_atomic(path, text, strlen(text)));
    OK(manifest_read(dir, &m));
    for (int i = 0; i < m.n; i++)
        if (!strcmp(m.file[i].name, "training/state.json"))
            OK(manifest_hash_file(path, &m.file[i].bytes, &m.file[i].xxh3));
    OK(manifest_write(dir, &m));
    manifest_fini(&m);
}

/* Sets the checksum in a checkpoint's state to 0, as earlier versions wrote it for nanoGPT files. */
static void forget_checksum(const char *dir)
{
    char path[4096];
    state_path(dir, path);
    char *text = text_of(path), *checksum = strstr(text, "\"checksum\": \"");
    assert_non_null(checksum);
    memset(checksum + 13, '0', 16);
    write_state(dir, text);
    free(text);
}

/* A run is not resumed with another file of the same length, even if the format stores no checksum. */
static void a_swapped_file(void **state)
{
    (void)state;
    sh("rm -rf run");
    make_nanogpt("train.tok", "plain.bin", 2, 0);
    run_expect(0, NULL, BASE_KEYS "data.train=plain.bin train.steps=2");
    run_expect(0, "after step 2", BASE_KEYS "data.train=plain.bin train.steps=3");
    make_nanogpt("train.tok", "plain.bin", 2, 1);
    run_expect(2, "data.train: the contents of ", BASE_KEYS "data.train=plain.bin train.steps=4");
    forget_checksum("run/ckpt/step-3");
    run_expect(0, "after step 3", BASE_KEYS "data.train=plain.bin train.steps=4");
    run_expect(0, "after step 4", BASE_KEYS "data.train=plain.bin train.steps=5");
}

/* One of several ranks says how a file without a header is read. */
static void said_by_one_rank(void **state)
{
    static const char said[] = "plain.u32.bin has no header";
    (void)state;
    sh("rm -rf run");
    make_nanogpt("train.tok", "plain.u32.bin", 4, 0);
    run_expect(0, said, BASE_KEYS "data.train=plain.u32.bin train.steps=1 ranks=2 grid.x=2 model.heads=4");
    char *log = text_of("log");
    assert_null(strstr(strstr(log, said) + 1, said));
    free(log);
}

/* Earlier versions listed what identifies the model in the state. Now it is read from config.json, which
 * these checkpoints have too. They had no goldfish loss. */
static void model_facts_listed_in_the_state(void **state)
{
    (void)state;
    char path[4096];
    sh("rm -rf run");
    run_expect(0, NULL, BASE_KEYS "train.steps=2");
    state_path("run/ckpt/step-2", path);
    json_t *saved = json_load_file(path, 0, NULL);
    json_t *facts = json_pack("{s:s,s:i,s:i,s:i,s:i,s:i,s:b,s:i,s:f}", "model.family", "gpt2", "model.layers",
                              2, "model.hidden", 24, "model.heads", 3, "model.ffn", 96, "model.vocab", VOCAB,
                              "model.tie", 1, "model.activation", 0, "model.norm_eps", 1e-5);
    json_t *run = json_object_get(saved, "run");
    assert_int_equal(json_object_update_missing(run, facts), 0);
    assert_int_equal(json_object_del(run, "data.goldfish.k") | json_object_del(run, "data.goldfish.window") |
                         json_object_del(run, "data.goldfish.kind"),
                     0);
    char *text = json_dumps(saved, 0);
    assert_non_null(text);
    write_state("run/ckpt/step-2", text);
    free(text);
    json_decref(facts);
    json_decref(saved);
    run_expect(2, "model.tie was true and is now false", BASE_KEYS "model.tie=false train.steps=3");
    run_expect(0, "after step 2", BASE_KEYS "train.steps=3");
}

/* Texts begin with the token that post_processor puts before them. A run of an earlier version, whose state
 * does not say whether they do, goes on with the tokens that it had. */
static void texts_begin_as_when_the_run_began(void **state)
{
    (void)state;
    char path[4096];
    make_tokenizer();
    sh("rm -rf run && sed -i 's/\"post_processor\": *null,/\"post_processor\": {\"type\": "
       "\"TemplateProcessing\", \"pair\": [], \"single\": [{\"SpecialToken\": {\"id\": \"<|endoftext|>\", "
       "\"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], \"special_tokens\": "
       "{\"<|endoftext|>\": {\"id\": \"<|endoftext|>\", \"ids\": [0], \"tokens\": [\"<|endoftext|>\"]}}},/' "
       "tok/tokenizer.json");
    const char *keys = BASE_KEYS "data.tokenizer=tok model.vocab=300 data.train=text.txt train.steps=1";
    run_expect(0, "each text begins with <|endoftext|> (0)", "%s", keys);
    run_expect(2, "data.train was", "%s data.bos=false train.steps=2", keys);
    sh("rm -rf run");
    run_expect(0, "done: step 1", "%s data.bos=false", keys);
    state_path("run/ckpt/step-1", path);
    json_t *saved = json_load_file(path, 0, NULL);
    assert_int_equal(json_object_del(json_object_get(saved, "settings"), "data.bos"), 0);
    char *text = json_dumps(saved, 0);
    write_state("run/ckpt/step-1", text);
    free(text);
    json_decref(saved);
    run_expect(0, "data.bos is false, as it was when this run began", "%s train.steps=2", keys);
}

/* Makes a checkpoint's state look as earlier versions wrote it: they had neither data.long nor padded last
 * rows. `sources`: the object data.train of the state, or NULL to leave it. */
static void make_older(const char *dir, json_t *sources)
{
    char path[4096];
    state_path(dir, path);
    json_t *saved = json_load_file(path, 0, NULL), *run = json_object_get(saved, "run");
    assert_int_equal(json_object_del(run, "data.long") | json_object_del(run, "data.last_row"), 0);
    if (sources)
        json_object_set(run, "data.train", sources);
    char *text = json_dumps(saved, 0);
    assert_non_null(text);
    write_state(dir, text);
    free(text);
    json_decref(saved);
}

/* Writes 40 tokens, or the 33 of them that fill two samples of 16. */
static void make_tail(const char *path, int64_t tokens)
{
    int32_t document[40];
    ax_token_writer *writer;
    for (int32_t i = 0; i < 40; i++)
        document[i] = i;
    OK(ax_token_writer_create(path, VOCAB, -1, 0, &writer));
    OK(ax_token_writer_add(writer, document, tokens, tokens));
    OK(ax_token_writer_finish(&writer, NULL));
}

/* Earlier versions left out the tokens after the last full sample. A run that began so goes on so: it equals
 * one on a file that ends there. */
static void rows_of_earlier_versions(void **state)
{
    (void)state;
#define TAIL BASE_KEYS "optim.schedule=constant data.train=[{\"path\":tail.tok,\"epochs\":8}] "
    sh("rm -rf ref run other && mkdir -p run/ckpt");
    make_tail("full.tok", 33);
    make_tail("tail.tok", 40);
    run_expect(0, NULL, TAIL "train.steps=4 data.train=[{\"path\":full.tok,\"epochs\":8}] run.dir=ref");
    run_expect(0, NULL, TAIL "data.train=tail.tok train.steps=1 run.dir=other");
    json_t *other = json_load_file("other/ckpt/step-1/training/state.json", 0, NULL),
           *source = json_array_get(json_object_get(json_object_get(other, "run"), "data.train"), 0);
    json_object_set_new(source, "epochs", json_integer(8));
    json_object_set_new(source, "weight", json_real(0));
    sh("cp -r ref/ckpt/step-1 run/ckpt/ && echo step-1 > run/latest");
    make_older("run/ckpt/step-1", json_object_get(json_object_get(other, "run"), "data.train"));
    json_decref(other);
    run_expect(0, "tail.tok: its last 7 tokens are in no sample, because the run began with a version that",
               TAIL "train.steps=4");
    same_file("ref/ckpt/step-4/model.safetensors", "run/ckpt/step-4/model.safetensors");
    /* Two more epochs, in this directory and in a new one. */
    run_expect(0, "tail.tok: 2 samples, 10.0 epochs",
               TAIL "train.steps=5 data.train=[{\"path\":tail.tok,\"epochs\":10}]");
    sh("rm -rf other");
    run_expect(0, "tail.tok: 2 samples, 10.0 epochs",
               TAIL "train.steps=5 train.resume=run/ckpt/step-4 run.dir=other "
                    "data.train=[{\"path\":tail.tok,\"epochs\":10}]");
    same_file("other/ckpt/step-5/model.safetensors", "run/ckpt/step-5/model.safetensors");
}

/* Earlier versions cut conversations like any text, unless data.pack was documents. */
static void packing_of_earlier_versions(void **state)
{
    (void)state;
#define TALKS BASE_KEYS "optim.schedule=constant data.train=talks.tok "
    ax_token_writer *writer;
    sh("rm -rf ref run new");
    OK(ax_token_writer_create("talks.tok", VOCAB, -1, 0, &writer));
    for (int32_t d = 0; d < 23; d++) /* so many that they fill the last row */
        OK(ax_token_writer_add_masked(writer, (int32_t[]){d, 2, 3, 4, 5, 6, 7},
                                      (uint8_t[]){0, 0, 0, 1, 1, 1, 1}, 7, 7));
    OK(ax_token_writer_finish(&writer, NULL));
    run_expect(0, "talks.tok: 7 of 23 conversations are cut between rows of consecutive tokens",
               TALKS "data.pack=stream run.dir=ref");
    make_stopped("run", 3);
    make_older("run/ckpt/step-3", NULL);
    run_expect(0, "data.pack is stream, as in the run of the checkpoint", TALKS);
    same_file("ref/ckpt/step-6/model.safetensors", "run/ckpt/step-6/model.safetensors");
    sh("grep -q '^  pack: stream' run/config.yaml");
    run_expect(0, "talks.tok: 23 conversations are packed into 12 rows of 16 tokens", TALKS "run.dir=new");
    run_expect(2, "data.pack was \"documents\" and is now \"stream\"",
               TALKS "run.dir=new data.pack=stream train.steps=7");
    run_expect(2, "data.long was \"split\" and is now \"drop\"",
               TALKS "run.dir=new data.long=drop train.steps=7");
    run_expect(4, "talks.tok: 23 conversations without a target after cutting",
               TALKS "run.dir=cut data.long=truncate model.seq_len=2");
    sh("grep -q 'talks.tok: 23 conversations are longer than a row: 161 tokens are not read' log");
}

/* A state without the object "run" is an error of the checkpoint. */
static void a_state_without_a_run(void **state)
{
    (void)state;
    sh("rm -rf run");
    run_expect(0, NULL, BASE_KEYS "train.steps=2");
    write_state("run/ckpt/step-2", "{\"step\": 2, \"run\": 0}");
    run_expect(4, "step-2: training/state.json lacks the description of the run (its member \"run\")",
               BASE_KEYS "train.steps=3");
    write_state("run/ckpt/step-2", "[]");
    run_expect(4, "step-2: training/state.json lacks the description of the run (its member \"run\")",
               BASE_KEYS "train.steps=3");
}

/* Earlier versions wrote one rate of dropout, which was not that of attention. */
static void one_rate_of_dropout(void **state)
{
    (void)state;
    char path[4096];
    sh("rm -rf run");
    run_expect(0, NULL, BASE_KEYS "model.dropout=0.25 model.attn_dropout=0 train.steps=2");
    state_path("run/ckpt/step-2", path);
    json_t *saved = json_load_file(path, 0, NULL), *settings = json_object_get(saved, "settings");
    json_object_set(settings, "model.dropout", json_object_get(settings, "model.embd_dropout"));
    assert_int_equal(json_object_del(settings, "model.embd_dropout") |
                         json_object_del(settings, "model.resid_dropout") |
                         json_object_del(settings, "model.attn_dropout"),
                     0);
    char *text = json_dumps(saved, 0);
    assert_non_null(text);
    write_state("run/ckpt/step-2", text);
    free(text);
    json_decref(saved);
    run_expect(0, "model.attn_dropout was 0.0 and is now 0.25", BASE_KEYS "model.dropout=0.25 train.steps=3");
    char *log = text_of("log");
    assert_non_null(strstr(log, "after step 2"));
    assert_null(strstr(log, "model.embd_dropout was"));
    assert_null(strstr(log, "model.resid_dropout was"));
    free(log);
}

/* A directory and a pattern that name the same shards are the same data. */
static void shards(void **state)
{
    (void)state;
    sh("rm -rf run shards");
    sh("mkdir shards");
    make_tokens("shards/a.tok", VOCAB, 300, 5);
    make_tokens("shards/b.tok", VOCAB, 200, 6);
    run_expect(0, NULL, BASE_KEYS "data.train=shards train.steps=2");
    run_expect(0, "after step 2", BASE_KEYS "data.train=shards/*.tok train.steps=3");
    run_expect(2, "data.train was", BASE_KEYS "data.train=shards/a.tok train.steps=4");
    run_expect(4, "no file matches the pattern", BASE_KEYS "data.train=shards/*.bin train.steps=4");
}

/* ---- a new run from a checkpoint ----------------------------------------------------------------- */

static void a_checkpoint_by_name(void **state)
{
    (void)state;
    sh("rm -rf ref run");
    run_expect(0, NULL, BASE_KEYS "model.dropout=0.1 run.dir=ref");
    run_expect(0, "ref/ckpt/step-3 after step 3", BASE_KEYS "model.dropout=0.1 train.resume=ref/ckpt/step-3");
    same_checkpoint("ref/ckpt/step-6", "run/ckpt/step-6");
    char *rows = metrics_of("run", false);
    assert_non_null(strstr(rows, "\"resumed_from\": 3"));
    assert_null(strstr(rows, "\"step\": 3,"));
    free(rows);
    /* The same command again continues the new run, instead of starting from the old checkpoint. */
    run_expect(0, "run/ckpt/step-6 after step 6",
               BASE_KEYS "model.dropout=0.1 train.resume=ref/ckpt/step-3 train.steps=7");
    /* Other data and another batch: a new run that starts with the old weights and optimizer state. */
    sh("rm -rf run");
    run_expect(0, "done: step 6",
               BASE_KEYS
               "train.resume=ref/ckpt/step-3 data.train=more.tok train.global_batch=2 train.seed=7");
    /* Another model shape is refused. */
    sh("rm -rf run");
    run_expect(2, "model.hidden was 24 and is now 48",
               BASE_KEYS "train.resume=ref/ckpt/step-3 model.hidden=48");
    run_expect(4, "nowhere", BASE_KEYS "train.resume=nowhere");
}

/* Going back to an earlier checkpoint of the same run removes later steps from metrics.jsonl. */
static void back_to_an_earlier_step(void **state)
{
    (void)state;
    sh("rm -rf ref run");
    run_expect(0, NULL, BASE_KEYS "run.dir=ref");
    sh("cp -r ref run");
    run_expect(0, "run/ckpt/step-2 after step 2", BASE_KEYS "train.resume=run/ckpt/step-2 optim.lr=0.1");
    char *rows = metrics_of("run", true), *before = metrics_of("ref", true);
    assert_int_equal(strncmp(rows, before, (size_t)(strstr(before, "\"step\": 3,") - before) - 100), 0);
    assert_string_not_equal(rows, before);
    free(rows);
    free(before);
    run_expect(0, "run/ckpt/step-6 after step 6", BASE_KEYS "optim.lr=0.1 train.steps=7");
}

/* ---- runtime settings ---------------------------------------------------------------------------- */

/* Replaces the kept instruction set. */
static void keep_isa(const char *name)
{
    sh("sed -i 's/^  isa: [^ ]*/  isa: %s/' run/config.yaml && grep -q '^  isa: %s' run/config.yaml", name,
       name);
}

/* Returns the name of an instruction set that this processor cannot run, or NULL. */
static const char *absent_isa(void)
{
    static const char *const all[] = {"avx512_amx", "avx512_bf16", "avx512", "avx2"};
    for (size_t i = 0; i < AX_COUNT(all); i++) {
        int k = 0;
        while (ax_isa_name(k) && strcmp(ax_isa_name(k), all[i]) != 0)
            k++;
        if (!ax_isa_name(k))
            return all[i];
    }
    return NULL;
}

/* A resumed run computes with the instruction set with which it began, whatever the best one is. */
static void the_instruction_set_is_kept(void **state)
{
    (void)state;
    sh("rm -rf ref run");
    run_expect(0, NULL, BASE_KEYS "train.precision=bf16 runtime.isa=generic run.dir=ref");
    make_stopped("run", 3);
    sh("cp ref/config.yaml run/ && grep -q '^  isa: generic' run/config.yaml && ! grep -q '^  log:' "
       "run/config.yaml");
    run_expect(0, NULL, BASE_KEYS "train.precision=bf16");
    same_checkpoint("ref/ckpt/step-6", "run/ckpt/step-6");
    sh("grep -q '^  isa: generic' run/config.yaml");
    run_expect(0, NULL,
               BASE_KEYS "train.precision=bf16 train.steps=7 optim.schedule=constant runtime.isa=auto");
    sh("grep -q '^  isa: %s ' run/config.yaml", ax_isa_name(0));
    if (strcmp(ax_isa_name(0), "generic"))
        run_expect(0, "changed: runtime.isa was \"",
                   BASE_KEYS
                   "train.precision=bf16 train.steps=8 optim.schedule=constant runtime.isa=generic");
}

/* A run whose instruction set does not exist here says so and goes on with the best. */
static void another_instruction_set_is_used(void **state)
{
    (void)state;
    char said[160];
    const char *absent = absent_isa();
    sh("rm -rf run");
    run_expect(0, NULL, BASE_KEYS "train.steps=2 optim.schedule=constant");
    keep_isa("avx9"); /* of a later version */
    run_expect(0, "warning: the run had runtime.isa=avx9, which cannot be used here",
               BASE_KEYS "train.steps=3 optim.schedule=constant");
    sh("grep -q '^  isa: %s ' run/config.yaml", ax_isa_name(0));
    if (!absent)
        return;
    keep_isa(absent);
    snprintf(said, sizeof said, "the run had runtime.isa=%s, which this processor cannot run", absent);
    run_expect(0, said, BASE_KEYS "train.steps=4 optim.schedule=constant");
    sh("grep -q '^  isa: %s ' run/config.yaml", ax_isa_name(0));
    keep_isa(absent); /* the same command as when the run began elsewhere */
    run_expect(0, said, BASE_KEYS "train.steps=5 optim.schedule=constant ranks=2 grid.data=2 runtime.isa=%s",
               absent);
    snprintf(said, sizeof said, "runtime.isa is \"%s\", which this processor cannot run", absent);
    run_expect(2, said, BASE_KEYS "train.steps=6 optim.schedule=constant runtime.isa=%s", absent);
}

static int set_up(void **state)
{
    if (run_setup(state))
        return -1;
    make_tokens("train.tok", VOCAB, 4000, 1);
    make_tokens("more.tok", VOCAB, 3000, 2);
    make_tokens("valid.tok", VOCAB, 300, 3);
    make_tokens("tiny.tok", VOCAB, 60, 4);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fp32_shuffled_dropout),
        cmocka_unit_test(bf16_two_sources_recompute),
        cmocka_unit_test(fp16_scale_is_resumed),
        cmocka_unit_test(sequential_momentum),
        cmocka_unit_test(many_epochs),
        cmocka_unit_test(a_step_at_a_time),
        cmocka_unit_test(a_finished_run_has_nothing_to_do),
        cmocka_unit_test(nothing_saved_yet),
        cmocka_unit_test(a_damaged_checkpoint_is_passed_over),
        cmocka_unit_test(a_rate_that_rises_again),
        cmocka_unit_test(allowed_changes),
        cmocka_unit_test(weights_of_sources),
        cmocka_unit_test(refused_changes),
        cmocka_unit_test(a_swapped_file),
        cmocka_unit_test(said_by_one_rank),
        cmocka_unit_test(rows_of_earlier_versions),
        cmocka_unit_test(packing_of_earlier_versions),
        cmocka_unit_test(model_facts_listed_in_the_state),
        cmocka_unit_test(texts_begin_as_when_the_run_began),
        cmocka_unit_test(a_state_without_a_run),
        cmocka_unit_test(one_rate_of_dropout),
        cmocka_unit_test(shards),
        cmocka_unit_test(a_checkpoint_by_name),
        cmocka_unit_test(back_to_an_earlier_step),
        cmocka_unit_test(the_instruction_set_is_kept),
        cmocka_unit_test(another_instruction_set_is_used),
    };
    return cmocka_run_group_tests_name("train.resume", tests, set_up, run_teardown);
}
