/* cli: axonn recall, and axonn eval --pairs. */
#include "axonn/data.h"
#include "cli/cli_test.h"
#include "support/check.h"

#include <math.h>

#define GOLDEN AXONN_SOURCE_DIR "/tests/golden/gpt2/tanh"
enum { VOCAB = 67, DOCUMENTS = 12, TOKENS = 16 };

/* The lines of JSON that a command prints, which must succeed. */
typedef struct lines {
    int n;
    json_t *line[100];
} lines;

static lines lines_of(const char *command)
{
    lines l = {0};
    ax_buf out = {0};
    const int code = shell(command, &out);
    for (char *rest = NULL, *line = strtok_r(out.data, "\n", &rest); line;
         line = strtok_r(NULL, "\n", &rest)) {
        json_t *object = json_loads(line, 0, NULL);
        if (!json_is_object(object) || l.n == (int)AX_COUNT(l.line))
            fail_msg("%s printed %s", command, line);
        l.line[l.n++] = object;
    }
    if (code)
        fail_msg("%s: exit code %d", command, code);
    ax_buf_fini(&out);
    return l;
}

static void drop(lines *l)
{
    while (l->n)
        json_decref(l->line[--l->n]);
}

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value) && !json_is_boolean(value))
        fail_msg("there is no number \"%s\"", key);
    return json_is_boolean(value) ? json_is_true(value) : json_number_value(value);
}

/* The totals are the sums and means of the documents' lines, and these those of their tokens. */
static void totals_follow_from_the_documents(void **state)
{
    (void)state;
    lines l = lines_of(AXONN " recall " GOLDEN " --data a.tok --tokens 5 --per-token --json 2>errors");
    const json_t *totals = l.line[l.n - 1];
    double recalled = 0, before = 0, likeliest = 0, loss = 0;
    assert_int_equal(l.n, DOCUMENTS + 1);
    for (int d = 0; d < DOCUMENTS; d++) {
        const json_t *tokens = json_object_get(l.line[d], "tokens"), *token;
        double sum = 0, first = 0;
        size_t i, wrong = 0;
        assert_int_equal(json_array_size(tokens), 5);
        json_array_foreach(tokens, i, token)
        {
            sum += number(token, "loss");
            wrong += number(token, "rank") > 0;
            first += !wrong;
            assert_int_equal(number(token, "id"), (d * 31 + (int)(TOKENS - 5 + i) * 7) % VOCAB);
        }
        assert_int_equal(number(l.line[d], "document"), d + d / 4); /* a short one follows each fourth */
        assert_int_equal(number(l.line[d], "before_error"), first);
        assert_true(number(l.line[d], "recalled") == (first == 5));
        assert_true(fabs(number(l.line[d], "loss") - sum / 5) < 1e-12);
        recalled += number(l.line[d], "recalled");
        before += first / DOCUMENTS;
        likeliest += number(l.line[d], "likeliest") / DOCUMENTS;
        loss += number(l.line[d], "loss") / DOCUMENTS;
    }
    assert_string_equal(json_string_value(json_object_get(totals, "source")), "a.tok");
    assert_int_equal(number(totals, "documents"), DOCUMENTS);
    assert_int_equal(number(totals, "left_out"), DOCUMENTS / 4 - 1);
    assert_true(number(totals, "recalled") == recalled &&
                fabs(number(totals, "before_error") - before) < 1e-12);
    assert_true(fabs(number(totals, "likeliest") - likeliest) < 1e-12 &&
                fabs(number(totals, "loss") - loss) < 1e-9);
    drop(&l);
}

/* Returns the totals of the last source that a command prints. The caller releases them. */
static json_t *totals_of(const char *flags)
{
    char command[1024];
    snprintf(command, sizeof command, AXONN " recall " GOLDEN " %s --json 2>errors", flags);
    lines l = lines_of(command);
    json_t *totals = json_incref(l.line[l.n - 1]);
    drop(&l);
    return totals;
}

/* Compares the mean loss, which depends on what the model sees and predicts, in fp32. */
static void same_loss(const char *a, const char *b, bool same)
{
    json_t *x = totals_of(a), *y = totals_of(b);
    if ((fabs(number(x, "loss") - number(y, "loss")) < 1e-6) != same)
        fail_msg("%s: %g, %s: %g", a, number(x, "loss"), b, number(y, "loss"));
    json_decref(x);
    json_decref(y);
}

static void prompts_and_documents_are_cut(void **state)
{
    (void)state;
    ax_buf out = {0};
    same_loss("--data a.tok --tokens 5", "--data a.tok --tokens 5 --prompt-tokens 11", true);
    same_loss("--data a.tok --tokens 5", "--data a.tok --tokens 5 --prompt-tokens 10", false);
    same_loss("--data a.tok --tokens 5", "--data a.tok --tokens 5 --document-tokens 15", false);
    same_loss("--data a.tok --tokens 5 --document-tokens 9", "--data head.tok --tokens 5", true);
    same_loss("--data a.tok --tokens 5 --prompt-tokens 3 --document-tokens 9",
              "--data head.tok --tokens 5 --prompt-tokens 3", true);
    /* With all tokens but the first as targets, it is the loss of `axonn eval`. */
    json_t *all = totals_of("--data head.tok --tokens 8"),
           *eval = json_of(AXONN " eval " GOLDEN " --data head.tok --pack documents --json 2>errors");
    assert_int_equal(number(eval, "targets"), 8 * DOCUMENTS);
    assert_true(fabs(number(all, "loss") - number(eval, "loss")) < 1e-6);
    json_decref(all);
    json_decref(eval);
    assert_int_equal(
        shell(AXONN " recall " GOLDEN " --data a.tok head.tok --tokens 5 --per-token 2>errors", &out), 0);
    assert_contains(out.data, "source  document  target       id        loss     rank\na.tok ");
    assert_contains(out.data,
                    "\nsource    documents  left out  recalled  before error  likeliest      loss\na.tok   ");
    assert_contains(out.data, "\nhead.tok         12         0 ");
    assert_int_equal(
        shell("grep -c 'a.tok: 2 of 14 documents are too short for prompt and target' errors", &out), 0);
    ax_buf_fini(&out);
}

static void every_grid_recalls_the_same(void **state)
{
    (void)state;
    static const char *const grids[] = {"--ranks 2 --grid data=2", "--ranks 4 grid.x=2 grid.pipe=2"};
    for (size_t i = 0; i < AX_COUNT(grids) && has_ranks(); i++) {
        char flags[256];
        snprintf(flags, sizeof flags, "--data a.tok --tokens 5 --threads 1 %s", grids[i]);
        same_loss("--data a.tok --tokens 5", flags, true);
    }
}

static void fails(int code, const char *part, const char *command)
{
    char both[2048];
    ax_buf out = {0};
    snprintf(both, sizeof both, "%s 2>errors", command);
    const int got = shell(both, &out);
    char *said;
    size_t size;
    OK(ax_file_read("errors", &said, &size));
    if (got != code || !strstr(said, part) || out.size)
        fail_msg("%s: exit code %d, expected %d and \"%s\":\n%s%s", command, got, code, part, said, out.data);
    free(said);
    ax_buf_fini(&out);
}

static void mistakes_are_reported(void **state)
{
    (void)state;
#define RECALL AXONN " recall " GOLDEN " "
    fails(2, "data", RECALL);
    fails(2, "tokens", RECALL "--data a.tok --tokens 0");
    fails(2, "prompt-tokens", RECALL "--data a.tok --prompt-tokens 0");
    fails(2, "a target of 25 tokens after a prompt of 1 does not fit into the 25 tokens",
          RECALL "--data a.tok --tokens 25");
    fails(2, "a target of 9 tokens after a prompt of 4 does not fit into the 12 tokens",
          RECALL "--data a.tok --tokens 9 --prompt-tokens 4 --document-tokens 12");
    /* all that is wrong, at once */
    fails(2, "a.txt is text and", RECALL "--data a.txt b.txt --tokens 50");
    fails(2, "b.txt is text and", RECALL "--data a.txt b.txt --tokens 50");
    fails(2, "a target of 50 tokens after a prompt of 1", RECALL "--data a.txt b.txt --tokens 50");
    fails(2, "has no index of documents", RECALL "--data flat.bin --tokens 5");
    fails(4, "nowhere.tok", RECALL "--data a.tok nowhere.tok --tokens 5");
    fails(4, "head.tok: no document of 12 has the 12 tokens of a prompt and a target",
          RECALL "--data a.tok head.tok --tokens 11");
    fails(4, "expected: it is for another model", RECALL "--data other.tok --tokens 5");
    fails(2, "the grid x=3 y=1", RECALL "--tokens 5 --data a.tok grid.x=3"); /* the grid's size, not a path */
    fails(6, "the loss is ", AXONN " recall spoilt --data a.tok --tokens 5");
}

/* Text becomes the same documents as in a token file. */
static void text_is_tokenized(void **state)
{
    (void)state;
    ax_buf out = {0};
    int code = shell(
        "for i in $(seq 40); do echo \"{\\\"text\\\": \\\"passage $i of a text, again $((i % 7))\\\"}\"; "
        "done "
        ">text.jsonl && " AXONN
        " tok train --input text.jsonl --vocab 290 --special '<|endoftext|>' --out tok "
        "2>errors && " AXONN " data build --input text.jsonl --tokenizer tok --out text.tok 2>>errors && "
        "printf 'model: {family: gpt2, layers: 1, hidden: 8, heads: 1, vocab: 300, seq_len: 40}\n"
        "data: {train: text.tok, tokenizer: tok}\ntrain: {steps: 1, global_batch: 4, precision: fp32}\n"
        "run: {dir: run}\nthreads: 1\n' >run.yaml && " AXONN " train run.yaml 2>>errors",
        &out);
    assert_int_equal(code, 0);
    lines text = lines_of("cat text.jsonl | " AXONN
                          " recall run --data /dev/stdin text.tok --tokens 4 --json 2>errors");
    assert_int_equal(text.n, 2 * 40 + 2);
    for (int d = 0; d < 40; d++)
        assert_true(number(text.line[d], "loss") == number(text.line[40 + d], "loss"));
    drop(&text);
    /* The user's path stands in errors, not that of a token file. */
    fails(4, "axonn: error: text.jsonl: no document of 40 has the 31 tokens of a prompt and a target",
          AXONN " recall run --data text.jsonl --tokens 30");
    ax_buf_fini(&out);
}

/* ---- axonn eval --pairs -------------------------------------------------------------------------- */

/* Writes a pair of tokens a ... b-1 and b ... c-1 of document d of a.tok, with an id and another member. */
static void write_pair(FILE *file, int d, int a, int b, int c)
{
    (void)fprintf(file, "{\"id\": \"%d/%d\", \"prompt_tokens\": [", d, b);
    for (int i = a; i < c; i++)
        (void)fprintf(file, "%s%d",
                      i == a   ? ""
                      : i == b ? "], \"continuation_tokens\": ["
                               : ", ",
                      (d * 31 + i * 7) % VOCAB);
    (void)fprintf(file, "], \"more\": {\"d\": [%d, 2.5]}}\n\n", d);
}

static lines scores_of(const char *flags)
{
    char command[1024];
    snprintf(command, sizeof command, AXONN " eval %s --out scores >totals 2>errors && cat scores", flags);
    return lines_of(command);
}

/* The last tokens of documents as continuations get what recall says of them; one continuation in two parts,
 * each with all before it as its prompt, gets the same sum. */
static void pairs_are_scored_as_recall_does(void **state)
{
    (void)state;
    FILE *file = fopen("pairs.jsonl", "w");
    assert_non_null(file);
    for (int d = 0; d < DOCUMENTS; d++) {
        write_pair(file, d, 0, 11, 16);
        write_pair(file, d, 0, 11, 13);
        write_pair(file, d, 0, 13, 16);
    }
    assert_int_equal(fclose(file), 0);
    lines r = lines_of(AXONN " recall " GOLDEN " --data a.tok --tokens 5 --json 2>errors"),
          s = scores_of(GOLDEN " --pairs pairs.jsonl");
    assert_int_equal(s.n, 3 * DOCUMENTS);
    for (int d = 0; d < DOCUMENTS; d++) {
        json_t *const *one = s.line + (size_t)3 * d;
        const double whole = number(one[0], "logprob");
        char id[16];
        snprintf(id, sizeof id, "%d/11", d);
        assert_string_equal(json_string_value(json_object_get(one[0], "id")), id);
        assert_int_equal(json_array_size(json_object_get(json_object_get(one[0], "more"), "d")), 2);
        assert_int_equal(json_object_size(one[0]), 5);
        assert_int_equal(number(one[0], "tokens"), 5);
        assert_true(number(one[0], "greedy") == number(r.line[d], "recalled"));
        /* sums of 5 losses of about 5, each of which errs by some roundings of logits of about 10 in fp32 */
        assert_true(fabs(whole + 5 * number(r.line[d], "loss")) < 1e-4);
        assert_true(fabs(whole - number(one[1], "logprob") - number(one[2], "logprob")) < 1e-4);
    }
    drop(&r);
    drop(&s);
}

/* What greedy decoding puts after a prompt is greedy, and nothing else is; on two ranks and in a list too. */
static void greedy_continuations_are_found(void **state)
{
    (void)state;
    ax_buf out = {0};
    json_t *text =
        json_of(AXONN " generate " GOLDEN " --tokens 3,1,4 --max-tokens 4 --temperature 0 --json 2>errors");
    char *ids = json_dumps(json_object_get(text, "tokens"), 0), command[1024];
    snprintf(command, sizeof command,
             "echo '[{\"prompt_tokens\": [3, 1, 4], \"continuation_tokens\": %s},"
             "{\"prompt_tokens\": [3, 1], \"continuation_tokens\": %s}]' >list.json",
             ids, ids);
    assert_int_equal(shell(command, &out), 0);
    for (int ranks = 1; ranks <= (has_ranks() ? 2 : 1); ranks++) {
        lines s = scores_of(ranks == 1 ? GOLDEN " --pairs list.json"
                                       : GOLDEN " --pairs list.json --ranks 2 --threads 1");
        assert_int_equal(s.n, 2);
        assert_int_equal(json_object_size(s.line[0]), 3);
        assert_true(number(s.line[0], "greedy") && !number(s.line[1], "greedy"));
        drop(&s);
    }
    assert_int_equal(shell("cat totals", &out), 0);
    assert_contains(out.data, "pairs    2\ntokens   8\ngreedy   1\nlogprob  -");
    json_decref(text);
    free(ids);
    ax_buf_fini(&out);
}

/* Texts become the tokens that the tokenizer makes of prompt and continuation together, and white space
 * between them is the continuation's; an empty prompt is the end-of-text token. The model is that of
 * text_is_tokenized. */
static void texts_of_pairs_are_tokenized(void **state)
{
    (void)state;
    ax_buf out = {0};
    /* the same pairs as texts and as ids, by which the continuation is what follows the prompt's tokens */
    assert_int_equal(
        shell("encode() { " AXONN " tok encode tok \"$1\"; }\n"
              "prompt=$(encode 'passage 7') both=$(encode 'passage 7 of a text') word=$(encode passage)\n"
              "end=$(encode '<|endoftext|>')\n"
              "printf '%s\n' '{\"prompt\": \"passage 7\", \"continuation\": \" of a text\"}' "
              "\"{\\\"prompt_tokens\\\": [$prompt], \\\"continuation_tokens\\\": [${both#$prompt,}]}\" "
              "'{\"prompt\": \"\", \"continuation\": \"passage\"}' "
              "\"{\\\"prompt_tokens\\\": [$end], \\\"continuation_tokens\\\": [$word]}\" "
              "'{\"prompt\": \"passage 7 \", \"continuation\": \"of a text\"}' "
              "\"{\\\"prompt_tokens\\\": [$prompt], \\\"continuation_tokens\\\": [${both#$prompt,}]}\" "
              ">text.pairs",
              &out),
        0);
    lines s = scores_of("run --pairs text.pairs");
    assert_int_equal(s.n, 6);
    for (int i = 0; i < 6; i += 2) {
        assert_true(number(s.line[i], "logprob") == number(s.line[i + 1], "logprob"));
        assert_true(number(s.line[i], "tokens") == number(s.line[i + 1], "tokens"));
    }
    drop(&s);
    ax_buf_fini(&out);
}

static void pairs_that_are_wrong_are_listed(void **state)
{
    (void)state;
    ax_buf out = {0};
    assert_int_equal(
        shell("printf '%s\n' '{\"prompt\": \"x\", \"continuation_tokens\": [4]}' '[1]' "
              "'{\"prompt_tokens\": [], \"continuation_tokens\": [7]}' "
              "'{\"prompt_tokens\": [1], \"continuation_tokens\": []}' "
              "'{\"prompt_tokens\": [1], \"continuation_tokens\": [2], \"greedy\": 3}' "
              "'{\"prompt_tokens\": [1], \"continuation_tokens\": [99]}' "
              "'{\"prompt_tokens\": [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1], \"continuation_tokens\": "
              "[3,2,4,5]}' '{\"prompt\": ' '{\"prompt\": \"x\", \"prompt_tokens\": [1], "
              "\"continuation_tokens\": 2}' >bad.jsonl; : >empty.jsonl",
              &out),
        0);
#define PAIRS AXONN " eval " GOLDEN " --pairs "
    static const char *const said[] = {
        "\nbad.jsonl:1: prompt is text, and the model has no tokenizer",
        "\nbad.jsonl:2: not a JSON object",
        "\nbad.jsonl:3: prompt_tokens has no token",
        "\nbad.jsonl:4: the continuation adds no token to the prompt",
        "\nbad.jsonl:5: a member \"greedy\" would stand twice in the output",
        "\nbad.jsonl:6: continuation_tokens has an item that is not a token",
        "\nbad.jsonl:7: prompt and continuation have 26 tokens, and the model reads at most 25",
        "\nbad.jsonl:8: not valid JSON",
        "\nbad.jsonl:9: prompt: give a text, or ids as prompt_tokens, one of both",
        "\nbad.jsonl:9: continuation_tokens is no list of ids"};
    fails(4, said[0], PAIRS "bad.jsonl --out never");
    assert_int_equal(shell("cat errors", &out), 0);
    for (size_t i = 0; i < AX_COUNT(said); i++)
        assert_contains(out.data, said[i]);
    assert_int_equal(shell("test -e never", &out), 1);
    fails(4, "empty.jsonl is empty", PAIRS "empty.jsonl --out never");
    fails(2, "--pairs and --out, the file of the results, go together\n--seq-len has no effect with --pairs",
          PAIRS "bad.jsonl --seq-len 4");
    fails(2, "give --data, or --pairs, one of both", PAIRS "bad.jsonl --out never --data a.tok");
    fails(6, "the loss is ", AXONN " eval spoilt --pairs list.json --out never");
    ax_buf_fini(&out);
}

static void write_documents(const char *path, int64_t vocab, int64_t tokens, bool shorter)
{
    ax_token_writer *writer;
    OK(ax_token_writer_create(path, vocab, -1, 0, &writer));
    for (int d = 0; d < DOCUMENTS; d++) {
        int32_t ids[TOKENS];
        for (int i = 0; i < TOKENS; i++)
            ids[i] = (d * 31 + i * 7) % VOCAB;
        OK(ax_token_writer_add(writer, ids, tokens, 1));
        if (shorter && d % 4 == 3 && d + 1 < DOCUMENTS)
            OK(ax_token_writer_add(writer, ids, 4, 1));
    }
    OK(ax_token_writer_finish(&writer, NULL));
}

static int set_up(void **state)
{
    (void)state;
    ax_buf out = {0};
    if (chdir(AXONN_BUILD_DIR) || ax_remove_tree("cli-recall") != AX_OK || ax_mkdirs("cli-recall") != AX_OK ||
        chdir("cli-recall"))
        return 1;
    write_documents("a.tok", VOCAB, TOKENS, true);
    write_documents("head.tok", VOCAB, 9, false);
    write_documents("other.tok", 300, 9, false);
    /* a model whose first weights are not finite */
    const int code =
        shell("echo a text >a.txt && cp a.txt b.txt && head -c 4000 /dev/zero >flat.bin && cp -r " GOLDEN
              " spoilt && printf '\\377\\377\\377\\377\\377\\377\\377\\377' | dd of=spoilt/model.safetensors "
              "bs=1 seek=$(($(stat -c %s spoilt/model.safetensors) - 8)) conv=notrunc 2>/dev/null",
              &out);
    ax_buf_fini(&out);
    return code;
}

static int tear_down(void **state)
{
    (void)state;
    return chdir("..") || ax_remove_tree("cli-recall") != AX_OK;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(totals_follow_from_the_documents),
        cmocka_unit_test(prompts_and_documents_are_cut),
        cmocka_unit_test(every_grid_recalls_the_same),
        cmocka_unit_test(mistakes_are_reported),
        cmocka_unit_test(text_is_tokenized),
        cmocka_unit_test(pairs_are_scored_as_recall_does),
        cmocka_unit_test(greedy_continuations_are_found),
        cmocka_unit_test(texts_of_pairs_are_tokenized),
        cmocka_unit_test(pairs_that_are_wrong_are_listed),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
