/* Conversations from end to end: data build, data show --mask, training on answers, generate --chat and
 * --messages, and what is refused. */
#include "axonn/ckpt.h"

#include "cli/cli_test.h"
#include "support/sanitized.h"
#include "support/scratch.h"

#include <math.h>

static char dir[SCRATCH_PATH];

/* ---- helpers -------------------------------------------------------------------------------------- */

static void put(const char *name, const char *text)
{
    assert_int_equal(ax_file_write_atomic(name, text, strlen(text)), AX_OK);
}

/* Runs a command, which must end with `code`, and print `text` (may be NULL) on standard output or error. */
static void ends(int code, const char *text, const char *command)
{
    ax_buf whole = {0}, out = {0};
    assert_int_equal(ax_buf_printf(&whole, "%s 2>&1", command), AX_OK);
    int got = shell(whole.data, &out);
    if (got != code)
        fail_msg("%s ended with %d: %s", command, got, out.data);
    if (text)
        assert_contains(out.data, text);
    ax_buf_fini(&whole);
    ax_buf_fini(&out);
}

/* Runs a command, which must succeed, and returns what it prints on standard output. The caller frees it. */
static char *output(const char *command)
{
    ax_buf out = {0};
    if (shell(command, &out))
        fail_msg("%s failed", command);
    return out.data;
}

static const char keys[] =
    "model: {family: gpt2, layers: 1, hidden: 32, heads: 2, vocab: 320, seq_len: 192}\n"
    "data: {train: qa.jsonl, valid: qa.jsonl, tokenizer: tok}\n"
    "train: {steps: 40, global_batch: 8, micro_batch: 4, precision: fp32}\n"
    "optim: {lr: 1.0e-2, schedule: constant}\nthreads: 1\n"
    "run: {eval_interval: 0}\n";

/* A tokenizer, conversations whose answers are all "x", and a run trained on them. */
static int set_up(void **state)
{
    (void)state;
    ax_buf lines = {0}, out = {0};
    if (scratch_make("/tmp", dir) || chdir(dir))
        return -1;
    for (int i = 0; i < 120; i++)
        if (ax_buf_printf(&lines,
                          "{\"messages\": [{\"role\": \"user\", \"content\": \"say %d\"}, {\"role\": "
                          "\"assistant\", \"content\": \"x\"}]}\n",
                          i) != AX_OK)
            return -1;
    put("qa.jsonl", lines.data);
    put("small.yaml", keys);
    put("plain.txt",
        "Some plain text, without any conversation, that is long enough for two rows. It goes on "
        "and on, and says nothing of interest until it ends, as all plain texts of a test do. A few "
        "more words are needed, so here they are: one, two, three, four, five, six, seven, eight.\n");
    put("words.txt",
        "Below is an instruction that describes a task. Write a response that appropriately completes the "
        "request. ### Instruction: ### Response: instruction response say 1 2 3 say 4 5 6 say x x x "
        "the the of of and and in in to to it it is is that that with with for for task request\n");
    int bad = shell(AXONN " tok train --input words.txt --vocab 280 --out tok >log 2>&1", &out) ||
              shell(AXONN " train small.yaml run.dir=run >log 2>&1", &out);
    if (bad)
        (void)!system("cat log >&2");
    ax_buf_fini(&lines);
    ax_buf_fini(&out);
    return bad ? -1 : 0;
}

static int tear_down(void **state)
{
    (void)state;
    return chdir("/") || ax_remove_tree(dir) != AX_OK ? -1 : 0;
}

/* ---- tests ---------------------------------------------------------------------------------------- */

static void masks_are_shown(void **state)
{
    (void)state;
    put("two.jsonl", "{\"instruction\": \"Sum.\", \"input\": \"3 4\", \"output\": \"7\"}\n"
                     "{\"messages\": [{\"role\": \"user\", \"content\": \"never answered\"}]}\n"
                     "{\"text\": \"plain\"}\n");
    ends(0, "template alpaca, chosen by the tokenizer's special tokens",
         AXONN " data build --input two.jsonl --tokenizer tok --out two.tok");
    ends(0, "1 conversation without an answer left out",
         AXONN " data build --input two.jsonl --tokenizer tok --template alpaca --out two.tok");
    ends(0, "### Instruction:\nSum.\n\n### Input:\n3 4\n\n### Response:\n[7<|endoftext|>]\n",
         AXONN " data show two.tok --mask --tokenizer tok");
    ends(0, "[plain<|endoftext|>]\n", AXONN " data show two.tok --mask --tokenizer tok --document 1");
    json_t *shown = json_of(AXONN " data show two.tok --mask --document 1 --json");
    size_t n = json_array_size(json_object_get(shown, "ids"));
    assert_true(n > 1 && n == json_array_size(json_object_get(shown, "mask")));
    json_decref(shown);
    ends(0, "good", AXONN " data check two.tok");
    ends(2, "--first: give it with --count and without --document",
         AXONN " data show two.tok --mask --first 3");
    ends(2, "--first: give it with --count",
         AXONN " data show two.tok --mask --first 3 --count 2 --document 1");
    ends(0, NULL, AXONN " data show two.tok --mask --first 3 --count 2");
    ends(0, NULL, AXONN " data build --input plain.txt --tokenizer tok --out plain.tok");
    ends(2, "--mask: plain.tok has no mask", AXONN " data show plain.tok --mask");
    ends(2, "--template: chat template llama3 does not fit the tokenizer, which lacks \"<|begin_of_text|>\"",
         AXONN " data build --input two.jsonl --tokenizer tok --template llama3 --out three.tok");
    assert_false(ax_path_exists("three.tok"));
}

static void answers_are_learned(void **state)
{
    (void)state;
    char *log = output("cat log");
    assert_contains(log, "qa.jsonl: the loss is on answers, ");
    free(log);
    put("m.json", "[{\"role\": \"user\", \"content\": \"say 7\"}]");
    json_t *said = json_of(AXONN " generate run --messages m.json --temperature 0 --json");
    assert_string_equal(json_string_value(json_object_get(said, "text")), "x");
    assert_string_equal(json_string_value(json_object_get(said, "finish")), "stop");
    json_decref(said);
    char *chat = output("printf 'say 3\\n\\nsay 4' | " AXONN " generate run --chat --temperature 0");
    assert_string_equal(chat, "x\nx\n");
    free(chat);
    chat = output("cat m.json | " AXONN " generate run --messages /dev/stdin --temperature 0");
    assert_string_equal(chat, "x\n");
    free(chat);
    static const char *const questions[] = {
        "[{\"role\": \"user\", \"content\": \"say 7\"}]", "{\"prompt\": \"say 7\"}",
        "{\"instruction\": \"say 7\"}", "{\"instruction\": \"say\", \"input\": \"7\", \"messages\": null}"};
    for (size_t i = 0; i < AX_COUNT(questions); i++) {
        put("q.json", questions[i]);
        json_t *answer =
            json_of("cat q.json | " AXONN " generate run --messages - --temperature 0 --max-tokens 3 --json");
        assert_true(json_integer_value(json_object_get(answer, "prompt_tokens")) > 20);
        if (i < 3)
            assert_string_equal(json_string_value(json_object_get(answer, "text")), "x");
        json_decref(answer);
    }
}

/* A conversation that fills the model's positions goes on without its oldest turns, and a turn that is too
 * long is left out. */
static void long_conversations_go_on(void **state)
{
    (void)state;
    const char *talk = "for i in 1 2 3 4 5 6 7 8 9; do echo say $i; done | " AXONN
                       " generate run --chat --temperature 0 --max-tokens 9";
    ends(0, "oldest turns are forgotten (start the program again", talk);
    char *count =
        output("for i in 1 2 3 4 5 6 7 8 9; do echo say $i; done | " AXONN
               " generate run --chat --temperature 0 --max-tokens 9 --json 2>log | grep -c seconds");
    assert_string_equal(count, "9\n");
    free(count);
    const char *long_turn = "(for i in 1 2 3 4 5 6 7 8 9; do printf 'say 12345678901234567890 '; done; "
                            "echo; echo say 4) | " AXONN " generate run --chat --temperature 0";
    ends(0, "leaves no room for an answer in the model's 192 positions, so it is left out", long_turn);
    ends(0, "\nx\n", long_turn);
}

/* Files that are not token files, and directories that are not those of tokenizers, are not overwritten. */
static void nothing_else_is_overwritten(void **state)
{
    (void)state;
    put("notes.md", "notes");
    put("empty", "");
    ends(2, "notes.md exists and is not a token file",
         AXONN " data build --input qa.jsonl --tokenizer tok --out notes.md");
    ends(2, "notes.md exists and is not a token file",
         AXONN " data build --input qa.jsonl --tokenizer tok --out new.tok --valid notes.md");
    assert_false(ax_path_exists("new.tok"));
    ends(0, NULL, AXONN " data build --input qa.jsonl --tokenizer tok --out empty");
    ends(0, NULL, AXONN " data build --input qa.jsonl --tokenizer tok --out empty");
    ends(2, "--out: notes.md exists and is not a tokenizer's directory",
         AXONN " tok train --input words.txt --vocab 280 --out notes.md");
    ends(0, "notes", "cat notes.md; mkdir full bare; touch full/notes");
    ends(2, "--out: full exists and is not a tokenizer's directory",
         AXONN " tok train --input words.txt --vocab 280 --out full");
    ends(0, NULL, AXONN " tok train --input words.txt --vocab 280 --out bare");
    ends(0, NULL, AXONN " tok train --input words.txt --vocab 280 --out bare");
}

/* The second answer of a conversation is that to the whole conversation so far, on one rank and on two. */
static void a_conversation_is_kept(void **state)
{
    (void)state;
    static const char *const ranks[] = {"", " --ranks 2"};
    put("u.yaml", keys);
    ends(0, NULL, AXONN " train u.yaml run.dir=unlearned train.steps=1 optim.lr=0");
    for (size_t i = 0; i < (has_ranks() ? 2 : 1); i++) {
        char command[512];
        snprintf(command, sizeof command,
                 "printf 'say 3\\nand?\\n' | " AXONN
                 " generate unlearned --chat --temperature 0 --max-tokens 5 --json%s",
                 ranks[i]);
        char *lines = output(command);
        json_t *first = json_loads(lines, JSON_DISABLE_EOF_CHECK, NULL),
               *second = json_loads(strchr(lines, '\n') + 1, 0, NULL);
        assert_non_null(first);
        assert_non_null(second);
        json_t *whole = json_pack("{s:[{s:s,s:s},{s:s,s:O},{s:s,s:s}]}", "messages", "role", "user",
                                  "content", "say 3", "role", "assistant", "content",
                                  json_object_get(first, "text"), "role", "user", "content", "and?");
        char *text = json_dumps(whole, 0);
        put("whole.json", text);
        json_t *again =
            json_of(AXONN " generate unlearned --messages whole.json --temperature 0 --max-tokens 5 --json");
        assert_true(json_equal(json_object_get(again, "tokens"), json_object_get(second, "tokens")));
        assert_true(
            json_equal(json_object_get(again, "prompt_tokens"), json_object_get(second, "prompt_tokens")));
        json_decref(first);
        json_decref(second);
        json_decref(whole);
        json_decref(again);
        free(text);
        free(lines);
    }
}

/* Returns the loss of the last step of a run of two steps. */
static double loss_of(const char *more)
{
    char command[512];
    snprintf(command, sizeof command,
             AXONN " train small.yaml train.steps=2 run.dir=same%s >same.log 2>&1 && "
                   "tail -n 1 same/metrics.jsonl && rm -r same",
             more);
    ax_buf out = {0};
    if (shell(command, &out))
        ends(0, NULL, "cat same.log; false");
    /* The last row is the evaluation. */
    char *at = strstr(out.data, "eval_loss");
    at = at ? at : strstr(out.data, "loss");
    double loss = at ? atof(strchr(at, ':') + 1) : -1;
    ax_buf_fini(&out);
    return loss;
}

/* The loss is over the targets of the whole batch, whatever the micro-batch and the grid. */
static void losses_do_not_depend_on_the_grid(void **state)
{
    (void)state;
    double one = loss_of("");
    assert_true(one > 0);
    assert_true(fabs(loss_of(" train.micro_batch=1") - one) < 1e-5 * one);
    if (has_ranks()) {
        assert_true(fabs(loss_of(" --ranks 2 grid.data=2") - one) < 1e-5 * one);
        assert_true(fabs(loss_of(" --ranks 2 grid.x=2 train.micro_batch=2") - one) < 1e-5 * one);
    }
    assert_true(fabs(loss_of(" data.loss=answers") - one) == 0);
    assert_true(fabs(loss_of(" data.loss=all") - one) > 1e-3);
}

static void steps_without_targets_are_reported(void **state)
{
    (void)state;
    ends(0, "step 1 has no target: none of its rows has an answer",
         AXONN " train small.yaml run.dir=few model.seq_len=8 train.steps=1 train.global_batch=1 "
               "train.micro_batch=1 data.order=sequential run.eval_batches=1");
    ends(0, NULL, "grep -q '\"loss\": null, \"grad_norm\": null.*\"skipped\": true' few/metrics.jsonl");
    ends(0, NULL, "grep -q '\"eval_loss\": null, \"perplexity\": null.*\"targets\": 0' few/metrics.jsonl");
}

/* Bad conversations are listed, once however many ranks there are, or left out. */
static void bad_conversations_are_listed(void **state)
{
    (void)state;
    ends(0, NULL,
         "(cat qa.jsonl; echo '{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": "
         "\"tool\", \"content\": \"x\"}]}'; echo '{}'; echo '{\"question\": 3, \"answer\": \"a\"}') "
         ">odd.jsonl");
    char command[512];
    snprintf(command, sizeof command,
             AXONN " train small.yaml run.dir=odd data.train=odd.jsonl%s >odd.log 2>&1",
             has_ranks() ? " --ranks 2 grid.data=2" : "");
    ends(4, NULL, command);
    ends(0, "1\n", "grep -c axonn: odd.log");
    ends(0, "3 records cannot be used, allowed: 0; correct them, or leave such records out: --bad-lines 3",
         "cat odd.log");
    ends(0, "odd.jsonl:121: turn 2: the turn is the result of a tool, which template alpaca does not write",
         "cat odd.log");
    ends(0, "odd.jsonl:122: expected an object", "cat odd.log");
    ends(0, "odd.jsonl:123: turn 1: \"question\" must be a string", "cat odd.log");
    const char *left =
        AXONN " train small.yaml run.dir=odd data.train=odd.jsonl data.bad_lines=3 train.steps=1";
    ends(0, "3 records were left out:", left);
    ends(0, "3 bad lines left out",
         AXONN " data build --input odd.jsonl --tokenizer tok --out odd.tok --bad-lines 3");
}

static void configurations_are_refused(void **state)
{
    (void)state;
    const char *both =
        AXONN " train small.yaml run.dir=none data.loss=answers data.train=plain.txt data.valid=plain.txt "
              "model.seq_len=16";
    ends(2, "plain.txt", both);
    ends(2, "/plain.txt of data.train has no mask that marks the answers", both);
    ends(2,
         "of data.valid has no mask that marks the answers: build it from conversations, or set data.loss to "
         "auto or all",
         both);
    ends(2, "of data.train has no mask", both);
    ends(2,
         "data.template: chat template chatml does not fit the tokenizer, which lacks \"<|im_start|>\", "
         "\"<|im_end|>\"",
         AXONN " train small.yaml run.dir=none data.template=chatml");
    const char *two = AXONN " train small.yaml run.dir=none data.template=chatml optim.min_lr=1";
    ends(2, "data.template", two);
    ends(2, "optim.min_lr", two);
    ends(2, "data.template", AXONN " train small.yaml run.dir=none data.template=gemma");
    ends(2, "data.loss was \"answers\" and is now \"all\"",
         AXONN " train small.yaml run.dir=run data.loss=all "
               "train.steps=50");
    ends(2, "--template: give it only together with --chat",
         AXONN " generate run --prompt x --template alpaca");
    ends(2, "give only one of --prompt, --tokens, --chat, --messages and --prompts",
         AXONN " generate run --chat --messages m.json </dev/null");
    put("bad.json", "{\"prompt\": 3}");
    ends(4, "standard input: turn 1: \"prompt\" must be a string or a list of texts, but is an integer",
         AXONN " generate run --messages - <bad.json");
    put("bad.json", "[{\"role\": \"user\",\n \"content\": }]");
    ends(4, "bad.json:2:13: not valid JSON", AXONN " generate run --messages bad.json");
    put("bad.json",
        "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]");
    ends(4,
         "the last turn must be the user's (or the result of a tool), so that the assistant can answer it; "
         "its role is assistant",
         AXONN " generate run --messages bad.json");
}

static void evaluation_counts_the_same_targets(void **state)
{
    (void)state;
    json_t *answers = json_of(AXONN " eval run --data qa.jsonl --json"),
           *all = json_of(AXONN " eval run --data qa.jsonl --loss all --json");
    int64_t few = json_integer_value(json_object_get(answers, "targets"));
    assert_true(few >= 240 && few < json_integer_value(json_object_get(all, "targets")) / 4);
    assert_true(json_is_null(json_object_get(answers, "bits_per_byte")));
    assert_false(json_is_null(json_object_get(all, "bits_per_byte")));
    assert_true(json_number_value(json_object_get(answers, "loss")) < 0.2);
    assert_true(json_number_value(json_object_get(all, "loss")) > 1);
    json_decref(answers);
    json_decref(all);
    ends(2, "--loss answers: plain.txt has no mask", AXONN " eval run --data plain.txt --loss answers");
}

static double loss_in(const char *command)
{
    json_t *value = json_of(command);
    double loss = json_number_value(json_object_get(value, "loss"));
    json_decref(value);
    return loss;
}

/* The stream is cut inside a copy of the conversation, so that its end stands without its start. Packed, each
 * copy is whole and has the loss that it has alone, up to the rounding of fp32 sums. */
static void evaluation_packs_documents(void **state)
{
    (void)state;
    put("one.jsonl", "{\"question\": \"say 1\", \"answer\": \"x\"}\n");
    ends(0, NULL, "cat one.jsonl one.jsonl one.jsonl >three.jsonl");
    double alone = loss_in(AXONN " eval unlearned --data one.jsonl --json"),
           packed = loss_in(AXONN " eval unlearned --data three.jsonl --pack documents --json"),
           stream = loss_in(AXONN " eval unlearned --data three.jsonl --pack stream --json");
    assert_true(fabs(packed - alone) < 1e-5 * alone);
    assert_true(packed == loss_in(AXONN " eval unlearned --data three.jsonl --json"));
    assert_true(fabs(stream - alone) > 1e-4 * alone);
    ends(0, NULL, "head -c 2000 /dev/zero >headless.bin");
    ends(2, "--pack: ", AXONN " eval unlearned --data headless.bin --pack documents");
}

/* ---- checkpoints carry the template --------------------------------------------------------------- */

/* Expects that the JSON file has `ids` (as JSON) under eos_token_id. */
static void expect_ends(const char *path, const char *ids)
{
    json_t *root = json_load_file(path, 0, NULL), *expected = json_loads(ids, JSON_DECODE_ANY, NULL);
    assert_non_null(root);
    assert_true(json_equal(json_object_get(root, "eos_token_id"), expected));
    json_decref(root);
    json_decref(expected);
}

/* Sets rows of the token embedding of the model in alpaca/ to a value. */
static void fill_rows(const char *ids, float value)
{
    ax_st *st;
    assert_int_equal(ax_st_open("blank", &st), AX_OK);
    const ax_st_array *a = ax_st_find(st, "transformer.wte.weight");
    FILE *file = fopen("blank/model.safetensors", "r+b");
    assert_true(a && file && a->dtype == AX_F32);
    for (; *ids; ids++)
        for (int64_t c = 0; c < a->dim[1]; c++) {
            assert_int_equal(fseek(file,
                                   (long)(a->offset + ((*ids - '0') * a->dim[1] + c) * (int64_t)sizeof value),
                                   SEEK_SET),
                             0);
            assert_int_equal(fwrite(&value, sizeof value, 1, file), 1);
        }
    assert_int_equal(fclose(file), 0);
    ax_st_close(&st);
}

/* The base has rows of zeros, or equal rows, for the tokens of the template. Training all weights changes
 * them, training updates of the blocks does not. */
static void tokens_that_were_never_learned_are_named(void)
{
    static const char lora[] =
        "rm -rf blank_run; " AXONN " train tune.yaml run.dir=blank_run model.from=blank tune.method=lora";
    ends(0, NULL, "rm -rf blank && " AXONN " ckpt convert alpaca --out blank");
    fill_rows("12", 0);
    ends(0, "has never learned: <|im_start|> (id 1), <|im_end|> (id 2): their rows of transformer.wte.weight",
         lora);
    fill_rows("1", 0.25F);
    ends(0, "has never learned: <|im_end|> (id 2): their rows", lora);
    fill_rows("23", 0.5F);
    ends(0, "has never learned: <|im_end|> (id 2): their rows", lora);
    fill_rows("3", 0.25F);
    ends(1, NULL,
         "rm -rf blank_run; " AXONN
         " train tune.yaml run.dir=blank_run model.from=blank tune.method=lora 2>&1 | grep never");
    fill_rows("12", 0);
    ends(1, NULL,
         "rm -rf blank_run; " AXONN " train tune.yaml run.dir=blank_run model.from=blank tune.method=lora "
         "tune.targets=[q,embed,head] 2>&1 | grep never");
}

/* A tokenizer with the tokens of ChatML, for which alpaca is chosen only if a model says so. */
static void checkpoints_carry_the_template(void **state)
{
    (void)state;
    const char *chosen = "template alpaca, that of the tokenizer's chat_template";
    ends(0, NULL,
         AXONN " tok train --input words.txt --vocab 282 --special '<|endoftext|>' '<|im_start|>' "
               "'<|im_end|>' --out tok2");
    ends(0, "template chatml, chosen by the tokenizer's special tokens",
         AXONN " data build --input qa.jsonl --tokenizer tok2 --out chatml.tok");
    ends(0, NULL, AXONN " data build --input qa.jsonl --tokenizer tok2 --out alpaca.tok --template alpaca");
    ends(0, "template    alpaca", AXONN " data show alpaca.tok");
    put("new.yaml", "model: {family: gpt2, layers: 1, hidden: 32, heads: 2, vocab: 320, seq_len: 192}\n"
                    "data: {train: alpaca.tok, tokenizer: tok2}\nthreads: 1\n"
                    "train: {steps: 1, global_batch: 2, micro_batch: 2}\n");
    put("tune.yaml", "model: {from: alpaca}\ndata: {train: chatml.tok}\nthreads: 1\n"
                     "train: {steps: 1, global_batch: 2, micro_batch: 2}\n");
    ends(0, "checkpoints will have the chat template alpaca", AXONN " train new.yaml run.dir=alpaca");
    assert_false(ax_path_exists("alpaca/ckpt/step-1/generation_config.json")); /* its end is the text's */
    ends(0, chosen, AXONN " generate alpaca --chat --max-tokens 2 </dev/null");

    /* The directory of a run is that of its tokenizer. */
    ends(0, chosen + strlen("template "),
         AXONN " data build --input qa.jsonl --tokenizer alpaca --out again.tok 2>&1");

    /* Tuning by another template replaces the template, and adds the token that ends a turn. */
    ends(0, "checkpoints will have the chat template chatml, by which the data was written, in place of",
         AXONN " train tune.yaml run.dir=chatml");
    ends(0, "template chatml, that of the tokenizer's chat_template",
         AXONN " generate chatml --chat --max-tokens 2 </dev/null");
    expect_ends("chatml/ckpt/step-1/generation_config.json", "[2, 0]");

    /* So does an adapter, and the model into which it is merged. */
    ends(0, NULL, AXONN " train tune.yaml run.dir=adapter tune.method=lora");
    tokens_that_were_never_learned_are_named();
    ends(0, NULL, AXONN " ckpt convert adapter --out merged");
    ends(0, "template chatml, that of the tokenizer's chat_template",
         AXONN " generate merged --chat --max-tokens 2 </dev/null");
    expect_ends("merged/generation_config.json", "[2, 0]");

    /* A template of the same format may write more than the data has, so it is replaced. End tokens that have
     * the id are kept. */
    put("merged/chat_template.jinja", "{# mine #}<|im_start|><|im_end|>{{ messages | center }}");
    put("merged/generation_config.json", "{\"eos_token_id\": 2, \"temperature\": 0.6}\n");
    ends(2,
         "the tokenizer's own chat_template cannot be used: merged/chat_template.jinja:1: the template uses "
         "what axonn does not offer: filter center; correct it, or name",
         "echo x | " AXONN " generate merged --chat --max-tokens 2");
    ends(0, NULL, "echo x | " AXONN " generate merged --chat --template chatml --max-tokens 2");
    ends(0, "in place of the tokenizer's own",
         AXONN " train tune.yaml run.dir=again model.from=merged data.train=chatml.tok");
    ends(1, NULL, "grep mine again/ckpt/step-1/chat_template.jinja");
    ends(0, "{\"eos_token_id\": 2, \"temperature\": 0.6}", "cat again/ckpt/step-1/generation_config.json");

    /* A file without end tokens gets that of the text too; ids of another tokenizer are replaced. */
    put("merged/generation_config.json", "{\"eos_token_id\": null, \"pad_token_id\": 5}\n");
    ends(0, NULL, AXONN " train tune.yaml run.dir=null model.from=merged data.train=chatml.tok");
    expect_ends("null/ckpt/step-1/generation_config.json", "[2, 0]");
    put("merged/generation_config.json", "{\"eos_token_id\": [7, 8], \"pad_token_id\": 5}\n");
    ends(0, NULL,
         AXONN " train tune.yaml run.dir=other model.from=merged data.tokenizer=tok data.train=plain.txt "
               "model.seq_len=16");
    expect_ends("other/ckpt/step-1/generation_config.json", "0");
    assert_false(ax_path_exists("other/ckpt/step-1/chat_template.jinja"));

    /* What an earlier run has left in the directory of the tokenizer is not saved. */
    ends(0, NULL, "mkdir -p left/tokenizer; cp again/ckpt/step-1/chat_template.jinja left/tokenizer");
    ends(0, NULL, AXONN " train new.yaml run.dir=left data.train=plain.txt model.seq_len=16");
    assert_false(ax_path_exists("left/ckpt/step-1/chat_template.jinja"));

    /* Plain text and a mixture of templates change nothing. */
    ends(0, NULL, AXONN " train tune.yaml run.dir=plain data.train=plain.txt model.seq_len=16");
    ends(0, chosen, AXONN " generate plain --chat --max-tokens 2 </dev/null");
    ends(0, "by chatml: the chat template that the model has, if any, stays as it is",
         AXONN " train tune.yaml run.dir=mixed 'data.train=[alpaca.tok, chatml.tok]'");
    ends(0, chosen, AXONN " generate mixed --chat --max-tokens 2 </dev/null");
    ends(2, "alpaca.tok of data.train was built with template alpaca: build it again with --template chatml",
         AXONN " train new.yaml run.dir=none data.template=chatml");
    ends(0, "qa.jsonl of data.valid was written by template chatml, but data.train by alpaca",
         AXONN " train new.yaml run.dir=valid data.valid=qa.jsonl");
    ends(2, "--template: alpaca.tok holds tokens", AXONN " eval alpaca --data alpaca.tok --template chatml");
}

/* A template that a tokenizer brings by name: token files name it by its text, data.template by its name. */
static void templates_of_the_model_have_names(void **state)
{
    (void)state;
#define WRITES(mark) "{% for m in messages %}{{ '" mark "' ~ m.role ~ ':' ~ m.content }}\\n{% endfor %}"
    ends(0, NULL, "rm -rf named && cp -r tok named");
    put("named/tokenizer_config.json",
        "{\"eos_token\": \"<|endoftext|>\", \"chat_template\": [{\"name\": \"default\", \"template\": "
        "\"" WRITES("d") "\"}, {\"name\": \"rag\", \"template\": \"" WRITES(
            "r") "\"}, {\"name\": "
                 "\"alpaca\", \"template\": \"" WRITES("a") "\"}]}");
    ends(0, "template alpaca, one of axonn's own; the tokenizer has another of this name, which is not used",
         AXONN " data build --input qa.jsonl --tokenizer named --out rag.tok --template alpaca");
    ends(0, "own chat_template default, run as it is",
         AXONN " data build --input qa.jsonl --tokenizer named --out default.tok");
    ends(0, "own chat_template rag, run as it is",
         AXONN " data build --input qa.jsonl --tokenizer named --out rag.tok --template rag");
    for (int text = 0; text < 2; text++) {
        char command[256];
        snprintf(command, sizeof command,
                 "rm -rf by; " AXONN " train small.yaml run.dir=by data.tokenizer=named data.template=rag "
                 "train.steps=1 data.train=%s data.valid=%s",
                 text ? "qa.jsonl" : "rag.tok", text ? "qa.jsonl" : "rag.tok");
        ends(0, "checkpoints will have the chat template own-", command);
    }
    ends(2, "rag.tok of data.train was built with template own-",
         AXONN " train small.yaml run.dir=none data.tokenizer=named data.template=default data.train=rag.tok "
               "data.valid=rag.tok");

    /* A tokenizer that lacks the text by which the data was written cannot give it to checkpoints. */
    static const char lacks[] = "rm -rf by; " AXONN " train small.yaml run.dir=by train.steps=1 "
                                "data.train=rag.tok data.valid=rag.tok data.tokenizer=";
    char with[sizeof lacks + 8];
    snprintf(with, sizeof with, "%stok", lacks);
    ends(0, "is the chat_template of another tokenizer: checkpoints have no chat template, so prompts", with);
    ends(0, NULL, "rm -rf copy && cp -r tok copy");
    put("copy/chat_template.jinja", "{{ 'other' }}");
    snprintf(with, sizeof with, "%scopy", lacks);
    ends(
        0,
        "is the chat_template of another tokenizer: checkpoints keep the tokenizer's own chat template, own-",
        with);
    put("copy/chat_template.jinja",
        "{% for m in messages %}{{ 'r' ~ m.role ~ ':' ~ m.content }}\n{% endfor %}");
    ends(0, NULL, with);
    ends(0, NULL, "cmp copy/chat_template.jinja by/ckpt/step-1/chat_template.jinja");
}

/* What ends an answer is text to the tokenizer: each program that writes conversations says so, once. */
static void answers_without_an_end_are_doubted(void **state)
{
    (void)state;
#define ONCE                                                                                                 \
    " 2>&1 | tee doubt.log | grep -c 'ends an answer with \"<|stop|>\", which is text to this tokenizer'"
    ends(0, NULL, "rm -rf stop && cp -r tok stop");
    put("stop/tokenizer_config.json",
        "{\"eos_token\": \"<|endoftext|>\", \"chat_template\": "
        "\"{% for m in messages %}{{ m.role ~ m.content }}<|stop|>\\n{% endfor %}\"}");
    ends(0, "1\n", AXONN " data build --input qa.jsonl --tokenizer stop --out stop.tok" ONCE);
    ends(0, "1\n",
         "rm -rf by; " AXONN
         " train small.yaml run.dir=by data.tokenizer=stop train.steps=1 data.valid=stop.tok "
         "data.train=[stop.tok,qa.jsonl]" ONCE);
    ends(0, "1\n", AXONN " eval by --data qa.jsonl" ONCE);
    ends(0, "1\n", "echo x | " AXONN " generate by --chat --max-tokens 1" ONCE);
    put("talk", "{\"id\": 1, \"prompt\": \"a\"}\n"
                "{\"id\": 2, \"messages\": [{\"role\": \"user\", \"content\": \"b\"}]}\n"
                "{\"id\": 3, \"messages\": [{\"role\": \"user\", \"content\": \"c\"}]}\n");
    ends(0, "1\n", AXONN " generate by --prompts talk --max-tokens 1 --out talked" ONCE);
    ends(0, "own chat_template, run as it is", "cat doubt.log");
    put("talk", "{\"id\": 1, \"prompt\": \"a\"}\n");
    ends(1, NULL, AXONN " generate by --prompts talk --max-tokens 1 --out alone 2>&1 | grep template");
}

/* What a template leaves out of conversations is counted, and the first of these is named. */
static void losses_are_counted(void **state)
{
    (void)state;
#define TOOLS "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]"
#define ASK "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}"
    static const char told[] = "losing.jsonl:2: nothing of its tools is in what the template writes. Name a";
    put("losing.jsonl", ASK ", {\"role\": \"assistant\", \"content\": \"a\"}]}\n" ASK
                            ", {\"role\": \"assistant\", \"content\": \"b\"}], " TOOLS "}\n" ASK
                            ", {\"role\": \"assistant\", \"content\": \"c\"}], " TOOLS "}\n");
    ends(0, told, AXONN " data build --input losing.jsonl --tokenizer stop --out losing.tok");
    ends(0, "loses something of 2 conversations, as with transformers: of the first, losing.jsonl:2: ",
         AXONN " data build --input losing.jsonl --tokenizer stop --out losing.tok");
    ends(0, told,
         "rm -rf by; " AXONN
         " train small.yaml run.dir=by data.tokenizer=stop train.steps=1 data.valid=stop.tok "
         "data.train=losing.jsonl");
    put("ask.json", ASK "], " TOOLS "}\n");
    ends(0, "ask.json: the model's chat_template loses something, as with transformers: nothing of its tools",
         AXONN " generate by --messages ask.json --max-tokens 1");
    put("talk",
        "{\"id\": 2, \"messages\": [{\"role\": \"user\", \"content\": \"b\"}, {\"role\": \"assistant\", "
        "\"content\": \"\", \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {}}}]}, "
        "{\"role\": \"tool\", \"content\": \"c\"}]}\n");
    ends(0,
         "talk:1: the model's chat_template loses something, as with transformers: turn 2: nothing of it is",
         AXONN " generate by --prompts talk --max-tokens 1 --out lost");
    put("talk", "{\"id\": 2, \"messages\": [{\"role\": \"user\", \"content\": \"b\"}], "
                "\"chat_template_kwargs\": {\"style\": 1}}\n");
    ends(0,
         "talk:1: the model's chat_template loses something, as with transformers: the template does "
         "not read a variable of its chat_template_kwargs",
         AXONN " generate by --prompts talk --max-tokens 1 --out given");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_are_shown),
        cmocka_unit_test(answers_are_learned),
        cmocka_unit_test(long_conversations_go_on),
        cmocka_unit_test(nothing_else_is_overwritten),
        cmocka_unit_test(a_conversation_is_kept),
        cmocka_unit_test(losses_do_not_depend_on_the_grid),
        cmocka_unit_test(steps_without_targets_are_reported),
        cmocka_unit_test(bad_conversations_are_listed),
        cmocka_unit_test(configurations_are_refused),
        cmocka_unit_test(evaluation_counts_the_same_targets),
        cmocka_unit_test(evaluation_packs_documents),
        cmocka_unit_test(checkpoints_carry_the_template),
        cmocka_unit_test(templates_of_the_model_have_names),
        cmocka_unit_test(answers_without_an_end_are_doubted),
        cmocka_unit_test(losses_are_counted),
    };
    return cmocka_run_group_tests_name("cli.chat", tests, set_up, tear_down);
}
