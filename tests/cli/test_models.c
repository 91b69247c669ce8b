/* cli: axonn train, generate, logits and eval. */
#include "axonn/ckpt.h"
#include "axonn/data.h"
#include "cli/cli_test.h"
#include "support/sampled.h"

#include <jansson.h>
#include <math.h>
#include <signal.h>

#define GOLDEN AXONN_SOURCE_DIR "/tests/golden/gpt2/tanh"
enum { VOCAB = 300, SEQ_LEN = 16 };

/* ---- helpers ------------------------------------------------------------------------------------- */

static void text_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* Runs a command that must succeed and print exactly one line of JSON, and returns it. The caller releases
 * it. */
static json_t *json_line(const char *fmt, ...) AX_PRINTF(1, 2);
static json_t *json_line(const char *fmt, ...)
{
    char command[4096];
    va_list args;
    va_start(args, fmt);
    vsnprintf(command, sizeof command, fmt, args);
    va_end(args);
    ax_buf out = {0};
    int code = shell(command, &out);
    json_t *object = json_loads(out.data, JSON_ALLOW_NUL, NULL);
    if (code || !json_is_object(object) || strchr(out.data, '\n') != out.data + out.size - 1)
        fail_msg("%s: exit code %d, printed:\n%s", command, code, out.data);
    ax_buf_fini(&out);
    return object;
}

/* Runs a command that must fail with this exit code, print nothing on stdout, and print `part` on stderr. */
static void fails(int code, const char *part, const char *command)
{
    char both[4096];
    ax_buf out = {0};
    snprintf(both, sizeof both, "%s 2>errors", command);
    int got = shell(both, &out);
    char *said;
    size_t size;
    assert_int_equal(ax_file_read("errors", &said, &size), AX_OK);
    if (got != code || !strstr(said, part))
        fail_msg("%s: exit code %d, expected %d and \"%s\":\n%s", command, got, code, part, said);
    assert_string_equal(out.data, "");
    free(said);
    ax_buf_fini(&out);
}

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

/* Prints the ids in member "tokens" as "5,17,3". */
static char *ids_of(const json_t *object, char out[512])
{
    const json_t *ids = json_object_get(object, "tokens");
    size_t n = 0;
    out[0] = 0;
    for (size_t i = 0; i < json_array_size(ids); i++)
        n += (size_t)snprintf(out + n, 512 - n, "%s%lld", i ? "," : "",
                              (long long)json_integer_value(json_array_get(ids, i)));
    return out;
}

static int64_t likeliest(const char *ids)
{
    json_t *o = json_line(AXONN " logits run --tokens %s --last --json", ids),
           *logits = json_object_get(o, "logits");
    size_t best = 0;
    assert_int_equal(json_array_size(logits), VOCAB);
    for (size_t i = 1; i < VOCAB; i++)
        if (json_number_value(json_array_get(logits, i)) > json_number_value(json_array_get(logits, best)))
            best = i;
    json_decref(o);
    return (int64_t)best;
}

/* ---- train --------------------------------------------------------------------------------------- */

static void train_makes_a_run_and_reports_mistakes(void **state)
{
    (void)state;
    json_t *o = json_line(AXONN " train small.yaml --json 2>errors");
    assert_true(number(o, "step") == 60 && number(o, "loss") < 4.5 && number(o, "tokens") > 0);
    const char *dir = json_string_value(json_object_get(o, "checkpoint"));
    assert_non_null(strstr(dir, "/run/ckpt/step-60"));
    assert_true(number(o, "eval_loss") > 0 && number(o, "bits_per_byte") > 0);
    json_decref(o);
    ax_buf out = {0};
    assert_int_equal(shell("cat errors", &out), 0);
    assert_contains(out.data, "memory: ");
    assert_contains(out.data, "step 60/60 | loss ");
    /* Without --json stdout stays empty. The same command again finds nothing to do. */
    assert_int_equal(shell(AXONN " train small.yaml 2>errors", &out), 0);
    assert_string_equal(out.data, "");
    /* All mistakes are reported at once. */
    assert_int_equal(shell(AXONN " train small.yaml model.layer=3 train.steps=-1 optim.nme=x 2>&1", &out), 2);
    assert_contains(out.data, "model.layer");
    assert_contains(out.data, "did you mean model.layers");
    assert_contains(out.data, "train.steps");
    assert_contains(out.data, "optim.n");
    ax_buf_fini(&out);
    /* With model.from the message does not suggest to change model.vocab. */
    text_file("from.yaml", "{model: {from: " GOLDEN "}, data: {train: ten.tok}, run: {dir: from}}\n");
    fails(4, "8192 tokens, but 67 are expected: it is for another model", AXONN " train from.yaml");
    fails(4, "outside the vocabulary (the rows of the embedding table) of 67: the tokenizer has more tokens",
          "seq 10000 10400 >beyond.txt; echo the thing >>beyond.txt; " AXONN
          " train from.yaml data.tokenizer=tok data.train=beyond.txt");
    fails(4, "set model.vocab to at least 8192", AXONN " train small.yaml data.train=ten.tok run.dir=from");
    fails(4, "nowhere.yaml", AXONN " train nowhere.yaml");
    /* data.text_key names the member with the text, and data.bad_lines limits bad lines. */
    o = json_line(
        "{ seq -f '{\"body\": \"line %%.0f\"}' 90; echo '{\"body\": null}'; } >keyed.jsonl; " AXONN
        " train small.yaml data.train=keyed.jsonl data.text_key=body train.steps=1 run.dir=keyed --json "
        "2>errors");
    assert_true(number(o, "step") == 1);
    json_decref(o);
    fails(4, "keyed.jsonl:91: \"body\" is null",
          AXONN
          " train small.yaml data.train=keyed.jsonl data.text_key=body data.bad_lines=0 run.dir=keyed2");
    fails(4, "(--text-key, or data.text_key, names another member)",
          AXONN " train small.yaml data.train=keyed.jsonl run.dir=keyed2");
    fails(4, "empty.bin is empty: it holds no tokens",
          ": >empty.bin; " AXONN " train small.yaml data.valid=empty.bin run.dir=keyed2");
    fails(4, "one.bin holds nothing to evaluate on",
          "printf '\\001\\000' >one.bin; " AXONN " train small.yaml data.valid=one.bin run.dir=keyed2");
    fails(2, "CONFIG", AXONN " train");
}

/* ---- generate ------------------------------------------------------------------------------------ */

static void the_seed_determines_the_text(void **state)
{
    (void)state;
    char a[512], b[512], c[512];
    const char *command =
        AXONN " generate run --prompt 'line 1' --max-tokens 9 --ignore-end --json --seed %d";
    json_t *x = json_line(command, 1), *y = json_line(command, 1), *z = json_line(command, 2);
    assert_string_equal(ids_of(x, a), ids_of(y, b));
    assert_string_not_equal(ids_of(x, a), ids_of(z, c));
    assert_int_equal(json_array_size(json_object_get(x, "tokens")), 9);
    assert_string_equal(json_string_value(json_object_get(x, "finish")), "length");
    assert_true(number(x, "prompt_tokens") > 0 && number(x, "prompt_tokens") <= 6);
    json_decref(x);
    json_decref(y);
    json_decref(z);
}

/* With temperature 0 each token is the likeliest one according to the logits of the whole sequence. */
static void greedy_generation_takes_the_largest_logit(void **state)
{
    (void)state;
    char ids[512] = "66,105,110", more[512];
    json_t *o =
        json_line(AXONN " generate run --tokens %s --temperature 0 --max-tokens 6 --ignore-end --json", ids);
    json_t *tokens = json_object_get(o, "tokens");
    assert_int_equal(json_array_size(tokens), 6);
    for (size_t i = 0; i < 6; i++) {
        int64_t id = json_integer_value(json_array_get(tokens, i));
        assert_int_equal(likeliest(ids), id);
        snprintf(more, sizeof more, "%s,%lld", ids, (long long)id);
        memcpy(ids, more, sizeof ids);
    }
    json_decref(o);
    /* --top-k 1 gives the same with every temperature. */
    char a[512], b[512];
    json_t *k = json_line(AXONN
                          " generate run --tokens 66,105 --top-k 1 --temperature 3 --max-tokens 5 --json"),
           *g = json_line(AXONN " generate run --tokens 66,105 --temperature 0 --max-tokens 5 --json");
    assert_string_equal(ids_of(k, a), ids_of(g, b));
    json_decref(k);
    json_decref(g);
}

/* The output equals ten tokens of transformers' greedy search. */
static void greedy_generation_equals_transformers(void **state)
{
    (void)state;
    ax_st *st;
    int32_t prompt[4], tokens[10];
    char wanted[512] = "", got[512], text[64] = "";
    assert_int_equal(ax_st_open(GOLDEN "/golden.safetensors", &st), AX_OK);
    assert_int_equal(ax_st_read(st, ax_st_find(st, "generate.prompt"), NULL, NULL, false, AX_I32, prompt), 0);
    assert_int_equal(ax_st_read(st, ax_st_find(st, "generate.tokens"), NULL, NULL, false, AX_I32, tokens), 0);
    ax_st_close(&st);
    for (int i = 0; i < 4; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d", i ? "," : "", prompt[i]);
    for (int i = 0; i < 10; i++)
        snprintf(wanted + strlen(wanted), sizeof wanted - strlen(wanted), "%s%d", i ? "," : "", tokens[i]);
    json_t *o =
        json_line(AXONN " generate " GOLDEN " --tokens %s --temperature 0 --max-tokens 10 --json", text);
    assert_string_equal(ids_of(o, got), wanted);
    assert_true(json_is_null(json_object_get(o, "text")));
    json_decref(o);
    /* Without a tokenizer the output is the ids, those of the prompt first. */
    ax_buf out = {0};
    char command[1024];
    snprintf(command, sizeof command, AXONN " generate " GOLDEN " --tokens %s --temperature 0 --max-tokens 2",
             text);
    assert_int_equal(shell(command, &out), 0);
    snprintf(got, sizeof got, "%d %d %d %d %d %d\n", prompt[0], prompt[1], prompt[2], prompt[3], tokens[0],
             tokens[1]);
    assert_string_equal(out.data, got);
    ax_buf_fini(&out);
}

static void generation_ends_at_stop_tokens_and_full_context(void **state)
{
    (void)state;
    char ids[512], command[2048];
    json_t *o = json_line(AXONN " generate run --tokens 66,105 --seed 3 --max-tokens 8 --ignore-end --json");
    int64_t first = json_integer_value(json_array_get(json_object_get(o, "tokens"), 0)), stop = -1;
    size_t at = 0;
    for (size_t i = 1; i < 8 && stop < 0; i++) { /* a token that does not occur earlier */
        stop = json_integer_value(json_array_get(json_object_get(o, "tokens"), at = i));
        stop = stop == first ? -1 : stop;
    }
    json_decref(o);
    assert_true(stop >= 0);
    o = json_line(AXONN
                  " generate run --tokens 66,105 --seed 3 --max-tokens 8 --ignore-end --stop %lld,299 --json",
                  (long long)stop);
    assert_int_equal(json_array_size(json_object_get(o, "tokens")), at);
    assert_string_equal(json_string_value(json_object_get(o, "finish")), "stop");
    json_decref(o);
    /* The prompt takes 14 of the model's 16 positions. The last generated token is not fed and needs none. */
    snprintf(ids, sizeof ids, "%s", "1,2,3,4,5,6,7,8,9,10,11,12,13,14");
    o = json_line(AXONN " generate run --tokens %s --max-tokens 50 --ignore-end --json", ids);
    assert_true(json_array_size(json_object_get(o, "tokens")) == 2);
    assert_string_equal(json_string_value(json_object_get(o, "finish")), "length");
    json_decref(o);
    snprintf(command, sizeof command, AXONN " generate run --tokens %s,15,16 --max-tokens 5", ids);
    fails(2, "leaves no room in the model's 16 positions", command);
}

static void prompts_are_encoded_as_text(void **state)
{
    (void)state;
    ax_buf out = {0};
    assert_int_equal(shell(AXONN " generate run --prompt 'line 1' --max-tokens 4 --ignore-end", &out), 0);
    assert_int_equal(strncmp(out.data, "line 1", 6), 0);
    assert_int_equal(out.data[out.size - 1], '\n');
    assert_int_equal(shell("ids=$(" AXONN
                           " tok encode tok --json 'line 1' | sed 's/.*\"ids\":.//; s/].*//'); " AXONN
                           " generate run --tokens $ids --max-tokens 4 --ignore-end",
                           &out),
                     0);
    assert_int_equal(strncmp(out.data, "line 1", 6), 0);
    ax_buf_fini(&out);
    json_t *o =
        json_line(AXONN " generate run --max-tokens 3 --ignore-end --json </dev/null"); /* starts from the
                                                                                         end-of-text token */
    assert_true(number(o, "prompt_tokens") == 1);
    json_decref(o);
    /* At a high temperature most tokens are single bytes (255 of about 290 ids), so the text has incomplete
     * characters. */
    o = json_line(AXONN
                  " generate run --tokens 1 --temperature 1000 --seed 1 --max-tokens 14 --ignore-end --json");
    assert_contains(json_string_value(json_object_get(o, "text")), "\xef\xbf\xbd");
    json_decref(o);
    fails(2, "give only one of --prompt, --tokens, --chat, --messages and --prompts",
          AXONN " generate run --prompt x --tokens 1");
    fails(2, "no tokenizer.json: give the prompt with --tokens", AXONN " generate " GOLDEN " --prompt x");
    fails(2, "no end-of-text token", AXONN " generate " GOLDEN " </dev/null");
    fails(2, "300 is not in the model's vocabulary, 0 … 299", AXONN " generate run --tokens 1,300");
    fails(2, "-1 is not in the model's vocabulary", AXONN " generate run --tokens=-1");
    fails(2, "temperature", AXONN " generate run --tokens 1 --temperature -1");
    fails(2, "top-p", AXONN " generate run --tokens 1 --top-p 1.5");
}

/* ---- logits -------------------------------------------------------------------------------------- */

static void logits_equal_the_golden_numbers(void **state)
{
    (void)state;
    enum { T = 19, V = 67 };
    ax_st *st;
    int32_t tokens[2][T];
    double wanted[2][T][V], worst = 0, largest = 0;
    char text[256] = "";
    assert_int_equal(ax_st_open(GOLDEN "/golden.safetensors", &st), AX_OK);
    assert_int_equal(ax_st_read(st, ax_st_find(st, "forward.tokens"), NULL, NULL, false, AX_I32, tokens), 0);
    assert_int_equal(ax_st_read(st, ax_st_find(st, "forward.logits"), NULL, NULL, false, AX_F64, wanted), 0);
    ax_st_close(&st);
    for (int i = 0; i < T; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d", i ? "," : "", tokens[0][i]);
    json_t *o = json_line(AXONN " logits " GOLDEN " --tokens %s --json", text), *shape, *logits;
    shape = json_object_get(o, "shape");
    logits = json_object_get(o, "logits");
    assert_int_equal(json_integer_value(json_array_get(shape, 0)), T);
    assert_int_equal(json_integer_value(json_array_get(shape, 1)), V);
    assert_int_equal(json_array_size(logits), T * V);
    for (int i = 0; i < T * V; i++) {
        worst =
            fmax(worst, fabs(json_number_value(json_array_get(logits, (size_t)i)) - wanted[0][i / V][i % V]));
        largest = fmax(largest, fabs(wanted[0][i / V][i % V]));
    }
    assert_true(worst < 1e-4 * largest);
    json_t *last = json_line(AXONN " logits " GOLDEN " --tokens %s --last --json", text);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(last, "shape"), 0)), 1);
    for (size_t i = 0; i < V; i++)
        assert_true(json_equal(json_array_get(json_object_get(last, "logits"), i),
                               json_array_get(logits, (T - 1) * V + i)));
    json_decref(last);
    json_decref(o);
    fails(2, "tokens", AXONN " logits run");
    fails(2, "67 is not in the model's vocabulary", AXONN " logits " GOLDEN " --tokens 67 --json");
    fails(2, "17 tokens do not fit the model, which has 16 positions",
          AXONN " logits run --tokens 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17 --json");
}

/* ---- eval ---------------------------------------------------------------------------------------- */

/* axonn eval of the checkpoint gives the evaluation that training reported for its last step. */
static void eval_equals_the_evaluation_of_training(void **state)
{
    (void)state;
    ax_buf out = {0};
    assert_int_equal(shell("grep eval_loss run/metrics.jsonl | tail -1", &out), 0);
    json_t *row = json_loads(out.data, 0, NULL);
    json_t *o = json_line(AXONN " eval run --data valid.txt --batch 2 --json");
    assert_true(number(o, "loss") == number(row, "eval_loss"));
    assert_true(number(o, "bits_per_byte") == number(row, "bits_per_byte"));
    assert_true(number(o, "targets") == number(row, "targets"));
    assert_true(fabs(number(o, "perplexity") - exp(number(o, "loss"))) < 1e-9);
    /* The same data tokenized before, with another batch size, and in bf16. */
    assert_int_equal(shell(AXONN " data build --input valid.txt --tokenizer tok --out valid.tok 2>&1", &out),
                     0);
    json_t *t = json_line(AXONN " eval run --data valid.tok --batch 7 --json");
    assert_true(fabs(number(t, "loss") - number(o, "loss")) < 1e-6);
    assert_true(number(t, "targets") == number(o, "targets") && number(t, "bytes") == number(o, "bytes"));
    json_decref(t);
    t = json_line(AXONN " eval run --data valid.tok --precision bf16 --json");
    assert_true(fabs(number(t, "loss") - number(o, "loss")) < 0.05);
    json_decref(t);
    t = json_line(AXONN " eval run --data valid.tok --precision fp16 --json");
    assert_true(fabs(number(t, "loss") - number(o, "loss")) < 0.01);
    json_decref(t);
    /* With shorter rows attention sees less, but every token except one is still a target once. */
    t = json_line(AXONN " eval run --data valid.tok --seq-len 4 --json");
    assert_true(number(t, "targets") == number(o, "targets") && number(t, "loss") != number(o, "loss"));
    json_decref(t);
    json_decref(o);
    json_decref(row);
    assert_int_equal(shell(AXONN " eval run --data valid.tok", &out), 0);
    assert_contains(out.data, "perplexity");
    assert_contains(out.data, "bits per byte");
    fails(4, "nowhere.tok", AXONN " eval run --data nowhere.tok --json");
    /* nanoGPT files do not store their vocabulary: a token beyond the model's is found when it is read. */
    assert_int_equal(shell("yes | head -c 400 | tr 'y\\n' '\\1\\2' >beyond.bin", &out), 0);
    ax_buf_fini(&out);
    fails(4, "set a larger vocabulary, use the tokenizer that made the file",
          AXONN " eval run --data beyond.bin");
    fails(2, "data", AXONN " eval run");
    fails(2, "17 tokens are not possible with this model: choose 1 to 16 tokens",
          AXONN " eval run --data valid.tok --seq-len 17");
    fails(4, "expected: it is for another model", AXONN " eval " GOLDEN " --data valid.tok --json");
    fails(2, "valid.txt is text and " GOLDEN " has no tokenizer: give --tokenizer",
          AXONN " eval " GOLDEN " --data valid.txt");
}

/* Rows are those of the run, not those that the model's positions or the data allow. */
static void eval_reads_the_rows_of_the_run(void **state)
{
    (void)state;
    ax_buf out = {0};
    assert_int_equal(
        shell("printf 'model: {from: run, seq_len: 8}\ndata: {train: valid.tok, valid: valid.tok, "
              "mask_documents: false, pack: documents}\ntrain: {steps: 1, global_batch: 2, micro_batch: 2, "
              "precision: fp32}\nrun: {dir: short}\n' >short.yaml; " AXONN
              " train short.yaml 2>errors && grep eval_loss short/metrics.jsonl",
              &out),
        0);
    json_t *row = json_loads(out.data, 0, NULL);
    json_t *o = json_line(AXONN " eval short --data valid.tok --batch 2 --json 2>errors");
    assert_true(number(o, "loss") == number(row, "eval_loss"));
    assert_int_equal(shell("grep 'rows have 8 tokens, as in the evaluations of the run' errors", &out), 0);
    json_t *longer = json_line(AXONN " eval short --data valid.tok --batch 2 --seq-len 16 --json");
    assert_true(number(longer, "loss") != number(row, "eval_loss"));
    json_decref(longer);
    json_decref(o);
    json_decref(row);
    ax_buf_fini(&out);
}

/* Data without targets is an error, pipes are read, and --text-key works. */
static void eval_reads_all_input_formats(void **state)
{
    (void)state;
    fails(4, "there is no text in", ": >empty.txt; " AXONN " eval run --data empty.txt");
    fails(4, "empty.bin is empty: it holds no tokens", ": >empty.bin; " AXONN " eval run --data empty.bin");
    fails(4, "one.bin holds nothing to evaluate on",
          "printf '\\001\\000' >one.bin; " AXONN " eval run --data one.bin");
    json_t *o = json_line("cat valid.txt | " AXONN " eval run --data /dev/stdin --json"),
           *same = json_line(AXONN " eval run --data valid.txt --json");
    assert_true(json_equal(o, same));
    json_decref(o);
    json_decref(same);
    const char *const lines = "printf '{\"body\":\"line 1\"}\\n{\"body\":null}\\n' >body.jsonl; ";
    o = json_line("%s" AXONN " eval run --data body.jsonl --text-key body --json", lines);
    assert_int_equal(json_integer_value(json_object_get(o, "bytes")), 6);
    json_decref(o);
    fails(4, "body.jsonl:2: \"body\" is null",
          AXONN " eval run --data body.jsonl --text-key body --bad-lines 0");
    fails(4, "an object with a string \"text\"", AXONN " eval run --data body.jsonl");
}

/* A signal leaves no temporary files, and the exit status says that the signal ended the process. */
static void an_interrupted_eval_leaves_no_files(void **state)
{
    (void)state;
    char expected[64];
    ax_buf out = {0};
    assert_int_equal(
        shell("for i in $(seq 200); do cat train.txt; done >long.txt; mkdir -p tmp; "
              "for signal in TERM USR1 USR2; do TMPDIR=$PWD/tmp " AXONN
              " eval run --data long.txt >errors 2>&1 & p=$!; "
              "until ls -d tmp/axonn-eval-* >/dev/null 2>&1 || ! kill -0 $p; do sleep 0.01; done; "
              "kill -$signal $p; wait $p; echo $(($? - 128)); ls -A tmp; done; rm long.txt",
              &out),
        0);
    snprintf(expected, sizeof expected, "%d\n%d\n%d\n", SIGTERM, SIGUSR1, SIGUSR2);
    assert_string_equal(out.data, expected);
    ax_buf_fini(&out);
}

/* An empty TMPDIR counts as unset. */
static void an_empty_tmpdir_is_unset(void **state)
{
    (void)state;
    ax_buf out = {0};
    assert_int_equal(shell("TMPDIR= " AXONN " eval run --data valid.txt 2>&1", &out), 0);
    assert_contains(out.data, " into /tmp/axonn-eval-");
    ax_buf_fini(&out);
}

/* Too little memory is reported before anything is allocated. */
static void too_little_memory_is_reported_first(void **state)
{
    (void)state;
    if (SANITIZED) /* a sanitizer reserves more address space than any limit */
        skip();
    fails(3, "evaluating 50000 rows of 16 tokens at a time needs",
          "ulimit -v 400000; " AXONN " eval run --data many.tok --batch 65536");
}

/* Verbs that read a model keep to runtime.device_memory: the plan, and the device's scratch memory alone. */
static void device_memory_is_limited(void **state)
{
    (void)state;
    static const char says[] = "runtime.device_memory allows";
    fails(3, "evaluating 50000 rows of 16 tokens at a time needs",
          AXONN " eval run --data many.tok --batch 65536 --threads 1 runtime.device_memory=100000000");
    fails(3, says, AXONN " eval run --data many.tok runtime.device_memory=1000");
    fails(3, says, AXONN " generate run --prompt a --max-tokens 2 runtime.device_memory=1000");
    fails(3, says, "AXONN_DEVICE_MEMORY=1000 " AXONN " logits run --tokens 1,2");
    fails(3, says, AXONN " bench generate run runtime.device_memory=1000");
}

/* A run replaces its checkpoints while it trains; verbs that read it take the newest one that exists. */
static void a_run_in_training_is_read(void **state)
{
    (void)state;
    ax_buf out = {0};
    char command[4096];
    snprintf(command, sizeof command,
             AXONN " train small.yaml run.dir=going run.keep_latest=1 run.checkpoint_interval=1 "
                   "train.steps=1000000 optim.schedule=constant 2>/dev/null & p=$!; "
                   "until [ -s going/latest ] || ! kill -0 $p; do sleep 0.05; done; "
                   "for i in $(seq %d); do " AXONN
                   " eval going --data few.tok >/dev/null 2>>errors.going || echo failed; " AXONN
                   " ckpt diff going going >/dev/null 2>>errors.going || echo failed; " AXONN
                   " ckpt verify going >/dev/null 2>>errors.going || "
                   "echo failed; done; kill $p; wait $p; cat errors.going",
             20 / one_of(4, 8));
    assert_int_equal(shell(command, &out), 0);
    assert_string_equal(out.data, "");
    ax_buf_fini(&out);
}

/* With a NaN in the last norm's weights, JSON output has null for numbers that are not finite, and the verb
 * fails. */
static void models_with_nan_are_errors(void **state)
{
    (void)state;
    ax_st *st;
    ax_buf out = {0};
    char command[512];
    assert_int_equal(shell("rm -rf spoilt && cp -r " GOLDEN " spoilt", &out), 0);
    assert_int_equal(ax_st_open("spoilt/model.safetensors", &st), AX_OK);
    long long at = (long long)ax_st_find(st, "transformer.ln_f.weight")->offset;
    ax_st_close(&st);
    snprintf(command, sizeof command,
             "printf '\\377\\377\\377\\177' | dd of=spoilt/model.safetensors bs=1 seek=%lld conv=notrunc "
             "2>errors",
             at);
    assert_int_equal(shell(command, &out), 0);
    const char *logits = AXONN " logits spoilt --tokens 1,2 --last --json 2>errors";
    assert_int_equal(shell(logits, &out), 6);
    json_t *o = json_loads(out.data, 0, NULL);
    assert_true(json_is_null(json_array_get(json_object_get(o, "logits"), 3)));
    json_decref(o);
    assert_int_equal(shell("cat errors", &out), 0);
    assert_contains(out.data, "logits are not finite, the first at position 1, token ");
    assert_int_equal(shell(AXONN " logits spoilt --tokens 1,2 2>/dev/null", &out), 6);
    fails(6, "the loss is ", AXONN " eval spoilt --data few.tok --json");
    fails(6, "is NaN", AXONN " generate spoilt --tokens 1 --json");
    ax_buf_fini(&out);
}

/* ---- MODEL --------------------------------------------------------------------------------------- */

static void invalid_models_are_errors(void **state)
{
    (void)state;
    static const char *const verbs[] = {"generate %s --tokens 1", "logits %s --tokens 1 --json",
                                        "eval %s --data few.tok --json"};
    static const struct {
        const char *make, *model, *said;
    } cases[] = {
        {"true", "nowhere", "no such file or directory: nowhere"},
        {"mkdir -p empty", "empty", "empty"},
        {"true", "small.yaml", "small.yaml"},
        {"mkdir -p young/ckpt", "young", "young"},
        {"rm -rf hf && cp -r " GOLDEN " hf && rm hf/model.safetensors", "hf", "model.safetensors"},
        {"rm -rf hf && cp -r " GOLDEN " hf && truncate -s -40 hf/model.safetensors", "hf",
         "model.safetensors"},
        {"rm -rf hf && cp -r " GOLDEN " hf && sed -i s/gpt2/gptx/ hf/config.json", "hf", "gptx"},
        {"rm -rf hf && cp -r " GOLDEN " hf && sed -i 's/\"n_embd\": 20/\"n_embd\": 25/' hf/config.json", "hf",
         "wte"},
        {"rm -rf hf && cp -r " GOLDEN " hf && sed -i 's/\"n_layer\": 2/\"n_layer\": 1000000/' hf/config.json",
         "hf", "the number of layers, 1000000, is above the maximum, 10000"},
        {"rm -rf hf && cp -r " GOLDEN " hf && sed -i 's/\"n_layer\": 2/\"n_layer\": 3/' hf/config.json", "hf",
         "h.2.ln_1.weight is missing"},
        {"rm -rf hf && cp -r " GOLDEN " hf && sed -i 's/\"n_embd\": 20/\"n_embd\": 1000000/' hf/config.json",
         "hf", "the model needs [1000000]"},
        {"rm -rf hf && cp -r " GOLDEN " hf && echo '{' > hf/config.json", "hf", "hf/config.json"},
        {"rm -rf hf && cp -r run/ckpt/step-60 hf && "
         "printf x | dd of=hf/model.safetensors bs=1 seek=5000 conv=notrunc 2>/dev/null",
         "hf", "damaged"},
    };
    char command[1024], verb[512];
    ax_buf out = {0};
    for (size_t i = 0; i < AX_COUNT(cases); i++)
        for (size_t v = i % (size_t)one_of(1, 3); v < AX_COUNT(verbs); v += (size_t)one_of(1, 3)) {
            assert_int_equal(shell(cases[i].make, &out), 0);
            snprintf(verb, sizeof verb, AXONN " %s", verbs[v]);
            char *at = strstr(verb, "%s");
            snprintf(command, sizeof command, "%.*s%s%s", (int)(at - verb), verb, cases[i].model, at + 2);
            fails(4, cases[i].said, command);
        }
    ax_buf_fini(&out);
    fails(2, "MODEL", AXONN " generate --tokens 1");
}

static void selftest_passes(void **state)
{
    (void)state;
    ax_buf out = {0};
    if (one_of(1, 2) > 1) /* nn.layers makes the same checks */
        skip();
    assert_int_equal(shell(AXONN " selftest --json", &out), 0);
    int checks = 0;
    for (char *rest = NULL, *line = strtok_r(out.data, "\n", &rest); line;
         line = strtok_r(NULL, "\n", &rest)) {
        json_t *row = json_loads(line, 0, NULL);
        assert_true(json_is_true(json_object_get(row, "passed")));
        json_decref(row);
        checks++;
    }
    assert_true(checks > 20);
    ax_buf_fini(&out);
}

/* ---- main ---------------------------------------------------------------------------------------- */

static ax_status make_tokens(const char *path, int32_t vocab, int documents)
{
    ax_token_writer *writer;
    int32_t tokens[2000];
    AX_TRY(ax_token_writer_create(path, vocab, -1, 0, &writer));
    for (int i = 0; i < 2000; i++)
        tokens[i] = i * 31 % vocab;
    for (int i = 0; i < documents; i++)
        AX_TRY(ax_token_writer_add(writer, tokens, 2000, 2000));
    return ax_token_writer_finish(&writer, NULL);
}

static int set_up(void **state)
{
    (void)state;
    ax_buf out = {0};
    if (chdir(AXONN_BUILD_DIR) || ax_remove_tree("cli-models") != AX_OK || ax_mkdirs("cli-models") != AX_OK ||
        chdir("cli-models") || make_tokens("ten.tok", 8192, 20) != AX_OK ||
        make_tokens("few.tok", 60, 20) != AX_OK || make_tokens("many.tok", 60, 400) != AX_OK)
        return 1;
    text_file("small.yaml",
              "model: {family: gpt2, layers: 2, hidden: 24, heads: 3, vocab: 300, seq_len: 16}\n"
              "data: {train: train.txt, valid: valid.txt, tokenizer: tok}\n"
              "train: {steps: 60, global_batch: 8, micro_batch: 2, precision: fp32}\n"
              "optim: {lr: 1.0e-2, warmup: 5}\n"
              "run: {dir: run, checkpoint_interval: 0}\n"
              "threads: 1\n");
    int code = shell(
        "for i in $(seq 300); do echo \"line $i of a text to learn, and again $((i % 7))\"; done > "
        "train.txt && for i in $(seq 301 330); do echo \"line $i of a text to learn\"; done > valid.txt "
        "&& " AXONN " tok train --input train.txt --vocab 290 --special '<|endoftext|>' --out tok 2>&1",
        &out);
    if (code)
        print_message("%s", out.data);
    ax_buf_fini(&out);
    return code;
}

static int tear_down(void **state)
{
    (void)state;
    return chdir("..") || ax_remove_tree("cli-models") != AX_OK;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(train_makes_a_run_and_reports_mistakes),
        cmocka_unit_test(the_seed_determines_the_text),
        cmocka_unit_test(greedy_generation_takes_the_largest_logit),
        cmocka_unit_test(greedy_generation_equals_transformers),
        cmocka_unit_test(generation_ends_at_stop_tokens_and_full_context),
        cmocka_unit_test(prompts_are_encoded_as_text),
        cmocka_unit_test(logits_equal_the_golden_numbers),
        cmocka_unit_test(eval_equals_the_evaluation_of_training),
        cmocka_unit_test(eval_reads_the_rows_of_the_run),
        cmocka_unit_test(eval_reads_all_input_formats),
        cmocka_unit_test(an_interrupted_eval_leaves_no_files),
        cmocka_unit_test(an_empty_tmpdir_is_unset),
        cmocka_unit_test(invalid_models_are_errors),
        cmocka_unit_test(too_little_memory_is_reported_first),
        cmocka_unit_test(device_memory_is_limited),
        cmocka_unit_test(a_run_in_training_is_read),
        cmocka_unit_test(models_with_nan_are_errors),
        cmocka_unit_test(selftest_passes),
    };
    return cmocka_run_group_tests_name("cli.models", tests, set_up, tear_down);
}
