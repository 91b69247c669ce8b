/* cli: axonn generate — end tokens and prompts. */
#include "cli/cli_test.h"

#include <ctype.h>

#define GOLDEN AXONN_SOURCE_DIR "/tests/golden/gpt2/tanh"
#define DRAWN AXONN " generate model --tokens 5,6,7 --seed 1 --max-tokens 8 --json "

static int set_up(void **state)
{
    (void)state;
    return chdir(AXONN_BUILD_DIR) || ax_remove_tree("cli-generate") != AX_OK ||
           ax_mkdirs("cli-generate") != AX_OK || chdir("cli-generate") ||
           system("cp -r " GOLDEN " model && chmod -R u+w model");
}

static int tear_down(void **state)
{
    (void)state;
    return chdir("..") || ax_remove_tree("cli-generate") != AX_OK;
}

static size_t generated(const char *flags, const char *finish)
{
    char command[1024];
    snprintf(command, sizeof command, DRAWN "%s", flags);
    json_t *o = json_of(command);
    size_t n = json_array_size(json_object_get(o, "tokens"));
    assert_string_equal(json_string_value(json_object_get(o, "finish")), finish);
    json_decref(o);
    return n;
}

/* Sets eos_token_id in a JSON file, which is created if it does not exist. */
static void set_ends(const char *path, const char *value)
{
    json_t *o = json_load_file(path, 0, NULL), *ends = json_loads(value, JSON_DECODE_ANY, NULL);
    o = o ? o : json_object();
    assert_int_equal(json_object_set_new(o, "eos_token_id", ends), 0);
    assert_int_equal(json_dump_file(o, path, 0), 0);
    json_decref(o);
}

/* generation_config.json overrides config.json; each may have one id or a list. */
static void generation_stops_at_end_tokens(void **state)
{
    (void)state;
    char list[128];
    set_ends("model/config.json", "null");
    json_t *o = json_of(DRAWN), *ids = json_object_get(o, "tokens");
    assert_int_equal(json_array_size(ids), 8);
    /* Finds a token that does not occur earlier in the text. */
    size_t place = 1;
    while (place < 7 && json_equal(json_array_get(ids, place), json_array_get(ids, 0)))
        place++;
    long long end = json_integer_value(json_array_get(ids, place));
    assert_true(end != json_integer_value(json_array_get(ids, 0)));
    json_decref(o);
    snprintf(list, sizeof list, "[1000, %lld]", end);
    set_ends("model/config.json", list);
    assert_int_equal(generated("", "stop"), place);
    assert_int_equal(generated("--ignore-end", "length"), 8);
    set_ends("model/generation_config.json", "[1000, 1001]");
    assert_int_equal(generated("", "length"), 8);
    set_ends("model/config.json", "null");
    set_ends("model/generation_config.json", list);
    assert_int_equal(generated("", "stop"), place);
    snprintf(list, sizeof list, "%lld", end);
    set_ends("model/generation_config.json", list);
    assert_int_equal(generated("", "stop"), place);
    set_ends("model/generation_config.json", "null");
    set_ends("model/config.json", list);
    assert_int_equal(generated("", "stop"), place);
    ax_buf out = {0};
    set_ends("model/generation_config.json", "[\"x\"]");
    assert_int_equal(shell(DRAWN "2>&1", &out), 4);
    assert_contains(out.data,
                    "generation_config.json: \"eos_token_id\" must be a token id or a list of token ids");
    ax_buf_fini(&out);
}

static void same_output(const char *wanted, const char *command)
{
    ax_buf out = {0};
    if (shell(command, &out) || strcmp(out.data, wanted) != 0)
        fail_msg("%s printed:\n%s\ninstead of:\n%s", command, out.data, wanted);
    ax_buf_fini(&out);
}

/* A prompt from a pipe or a file loses its last newline. With --tokens or --prompt TEXT standard input is not
 * read. */
static void prompts_from_standard_input(void **state)
{
    (void)state;
#define SHORT AXONN " generate small --max-tokens 4 --seed 3 --ignore-end "
    ax_buf wanted = {0}, other = {0};
    assert_int_equal(
        shell("for i in $(seq 99); do echo \"line $i of a text\"; done > text; " AXONN
              " tok train --input text --vocab 280 --out tok 2>&1 && echo '{run: {dir: small}}' > small.yaml "
              "&& " AXONN " train small.yaml model.family=gpt2 model.layers=1 model.hidden=16 model.heads=2 "
              "model.vocab=280 "
              "model.seq_len=64 data.train=text data.tokenizer=tok train.steps=1 train.global_batch=1 "
              "train.micro_batch=1 2>&1",
              &wanted),
        0);
    assert_int_equal(shell(SHORT "--prompt 'line 1'", &wanted), 0);
    assert_int_equal(strncmp(wanted.data, "line 1", 6), 0);
    same_output(wanted.data, "printf 'line 1' | " SHORT);
    same_output(wanted.data, "echo 'line 1' | " SHORT);
    same_output(wanted.data, "echo 'line 1' | " SHORT "--prompt -");
    same_output(wanted.data, "echo 'line 1' > prompt; " SHORT "--prompt - < prompt");
    same_output(wanted.data, "echo 'no' | " SHORT "--prompt 'line 1'");
    same_output(wanted.data, "(sleep 0.2; printf 'li'; sleep 0.2; printf 'ne 1') | " SHORT);
    /* What an editor of another system adds is no text. */
    same_output(wanted.data, "printf '\\357\\273\\277line 1\\r\\n' | " SHORT);
    assert_int_equal(shell("printf 'line 1\\nline 2' | " SHORT, &wanted), 0);
    same_output(wanted.data, "printf 'line 1\\r\\nline 2\\r\\n' | " SHORT);
    assert_int_equal(shell(SHORT "--tokens 5", &wanted), 0);
    same_output(wanted.data, "echo 'line 1' | " SHORT "--tokens 5");
    /* Empty standard input is an empty prompt. */
    assert_int_equal(shell(SHORT "--prompt ''", &wanted), 0);
    same_output(wanted.data, SHORT "</dev/null");
    /* An empty line at the end stays, and bytes that are not UTF-8 are accepted. */
    assert_int_equal(shell("printf 'a\\n\\n' | " SHORT, &other), 0);
    assert_int_equal(strncmp(other.data, "a\n", 2), 0);
    assert_int_equal(shell("printf 'a\\0\\377b' | " SHORT, &other), 0);
    assert_memory_equal(other.data, "a\0\377b", 4);
    ax_buf_fini(&wanted);
    ax_buf_fini(&other);
#undef SHORT
}

static json_t *text_of(const char *flags)
{
    char command[512];
    snprintf(command, sizeof command,
             AXONN " generate small --max-tokens 40 --seed 3 --ignore-end --prompt 'line {' --json %s",
             flags);
    return json_of(command);
}

/* A text ends before a string, and the same part is printed. (An untrained model draws each byte soon.) */
static void strings_end_texts(void **state)
{
    (void)state;
    ax_buf out = {0};
    json_t *whole = text_of("");
    char text[512], flags[64];
    snprintf(text, sizeof text, "%s", json_string_value(json_object_get(whole, "text")));
    size_t at = 1; /* the place of two bytes that a shell takes as they are */
    while (text[at] && !(isalnum((unsigned char)text[at]) && isalnum((unsigned char)text[at + 1])))
        at++;
    assert_true(text[at]);
    snprintf(flags, sizeof flags, "--until none '%.2s'", text + at);
    json_t *ended = text_of(flags);
    char first[512];
    snprintf(first, sizeof first, "%s", json_string_value(json_object_get(ended, "text")));
    assert_true(!strncmp(first, text, strlen(first)) &&
                strlen(first) == (size_t)(strstr(text, (char[]){text[at], text[at + 1], 0}) - text));
    assert_string_equal(json_string_value(json_object_get(ended, "finish")), "stop");
    assert_true(json_array_size(json_object_get(ended, "tokens")) < 40);
    json_decref(whole);
    json_decref(ended);
    assert_int_equal(shell(AXONN " generate small --prompt a --until '' 2>&1", &out), 2);
    assert_contains(out.data, "--until: a text cannot end before an empty string");
    assert_int_equal(shell(AXONN " generate " GOLDEN " --tokens 5 --braces 2>&1", &out), 2);
    assert_contains(out.data, "has no tokenizer.json: --until and --braces need the text");
    ax_buf_fini(&out);
}

static json_t *drawn(const char *flags)
{
    char command[512];
    snprintf(command, sizeof command,
             AXONN " generate model --tokens 5,6,7 --seed 1 --max-tokens 12 --ignore-end "
                   "--json %s 2>log",
             flags);
    json_t *o = json_of(command), *ids = json_incref(json_object_get(o, "tokens"));
    json_decref(o);
    return ids;
}

/* generation_config.json gives each value that no flag gives; the log says so. */
static void models_bring_their_sampling(void **state)
{
    (void)state;
    static const struct {
        const char *file, *flags, *same, *said;
    } cases[] = {
        {"{\"temperature\": 0.5, \"top_k\": 5}", "", "--temperature 0.5 --top-k 5",
         "temperature 0.5, top-k 5, as"},
        {"{\"top_p\": 0.3, \"min_p\": 0.2}", "", "--top-p 0.3 --min-p 0.2", "top-p 0.3, min-p 0.2, as"},
        {"{\"temperature\": 0.5}", "--temperature 2", "--temperature 2", NULL},
        {"{\"repetition_penalty\": 1.5}", "--temperature 0", "--temperature 0 --repetition-penalty 1.5",
         "repetition penalty 1.5, as"},
        {"{\"do_sample\": false, \"temperature\": 0.6}", "", "--temperature 0", "temperature 0, as"},
        {"{\"do_sample\": false, \"temperature\": 0.6}", "--top-k 3", "--top-k 3 --temperature 0.6",
         "temperature 0.6, as"},
        {"{\"temperature\": null, \"eos_token_id\": 3}", "", "", NULL},
        {"{\"do_sample\": true, \"top_p\": 0}", "", "--temperature 0", "top-p 0, as"},
        {"{\"do_sample\": true, \"temperature\": 0, \"top_k\": 5.0}", "", "--temperature 0",
         "temperature 0, top-k 5, as"},
        {"{\"typical_p\": 0.9, \"num_beams\": 1, \"bad_words_ids\": [[3]], \"suppress_tokens\": []}", "", "",
         "generation_config.json has typical_p, bad_words_ids, which transformers applies"},
    };
    ax_buf out = {0};
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        assert_int_equal(
            ax_file_write_atomic("model/generation_config.json", cases[i].file, strlen(cases[i].file)),
            AX_OK);
        json_t *got = drawn(cases[i].flags);
        assert_int_equal(shell("cat log", &out), 0);
        if (cases[i].said)
            assert_contains(out.data, cases[i].said);
        else
            assert_null(strstr(out.data, "generation_config"));
        assert_int_equal(ax_file_write_atomic("model/generation_config.json", "{}", 2), AX_OK);
        json_t *wanted = drawn(cases[i].same);
        assert_true(json_equal(got, wanted));
        json_decref(got);
        json_decref(wanted);
    }
    static const char *const bad[][2] = {
        {"{\"top_k\": 3.5}", "generation_config.json: top_k must be an integer of at least 0"},
        {"{\"top_k\": -1}", "generation_config.json: top_k must be an integer of at least 0"},
        {"{\"do_sample\": \"no\"}", "generation_config.json: do_sample must be true or false"},
        {"{\"repetition_penalty\": 0}",
         "generation_config.json: repetition_penalty must be a number above 0"},
        {"{\"top_p\": 1.5}", "generation_config.json: top_p must be a number of at least 0 and at most 1"}};
    for (size_t i = 0; i < AX_COUNT(bad); i++) {
        assert_int_equal(ax_file_write_atomic("model/generation_config.json", bad[i][0], strlen(bad[i][0])),
                         AX_OK);
        assert_int_equal(shell(AXONN " generate model --tokens 5 2>&1", &out), 4);
        assert_contains(out.data, bad[i][1]);
    }
    assert_int_equal(shell(AXONN " generate model --tokens 5 --top-p 1 --max-tokens 1 2>&1", &out), 0);
    assert_int_equal(remove("model/generation_config.json"), 0);
    ax_buf_fini(&out);
}

/* The first of several samples is the only one of a single call, and each is another text. */
static void several_samples(void **state)
{
    (void)state;
    ax_buf out = {0};
    json_t *alone = drawn(""), *all[3];
    assert_int_equal(shell(AXONN
                           " generate model --tokens 5,6,7 --seed 1 --max-tokens 12 --ignore-end --json "
                           "--samples 3 2>log",
                           &out),
                     0);
    const char *line = out.data;
    for (int i = 0; i < 3; i++, line = strchr(line, '\n') + 1) {
        json_t *o = json_loadb(line, strcspn(line, "\n"), 0, NULL);
        assert_int_equal(json_integer_value(json_object_get(o, "sample")), i);
        all[i] = json_incref(json_object_get(o, "tokens"));
        json_decref(o);
    }
    assert_true(!*line && json_equal(all[0], alone));
    assert_true(!json_equal(all[0], all[1]) && !json_equal(all[1], all[2]) && !json_equal(all[0], all[2]));
    for (int i = 0; i < 3; i++)
        json_decref(all[i]);
    json_decref(alone);
    /* Without --json, a line begins each of several texts. */
    char one[256], first[300];
    assert_int_equal(shell(AXONN " generate model --tokens 5,6,7 --seed 1 --max-tokens 3 2>log", &out), 0);
    snprintf(one, sizeof one, "%s", out.data);
    assert_int_equal(
        shell(AXONN " generate model --tokens 5,6,7 --seed 1 --max-tokens 3 --samples 2 2>log", &out), 0);
    int n = snprintf(first, sizeof first, "--- sample 0\n%s--- sample 1\n", one);
    assert_true(!strncmp(out.data, first, (size_t)n) && out.data[n] && !strstr(one, "sample"));
    assert_int_equal(shell(AXONN " generate model --chat --samples 2 2>&1", &out), 2);
    ax_buf_fini(&out);
}

/* A model's vocabulary is often padded beyond its tokenizer's. An untrained model draws such ids often. */
static void ids_beyond_the_tokenizer_have_no_text(void **state)
{
    ax_buf out = {0};
    (void)state;
    assert_int_equal(
        shell(AXONN " train small.yaml run.dir=padded model.family=gpt2 model.layers=1 model.hidden=16 "
                    "model.heads=2 model.vocab=4096 model.seq_len=64 data.train=text data.tokenizer=tok "
                    "train.steps=1 train.global_batch=1 train.micro_batch=1 2>&1",
              &out),
        0);
    json_t *o =
        json_of(AXONN " generate padded --max-tokens 32 --seed 3 --ignore-end --prompt 'line 1' --json");
    const json_t *tokens = json_object_get(o, "tokens");
    size_t beyond = 0;
    for (size_t i = 0; i < json_array_size(tokens); i++)
        beyond += json_integer_value(json_array_get(tokens, i)) >= 280;
    assert_true(json_array_size(tokens) == 32 && beyond > 0);
    json_decref(o);
    assert_int_equal(shell(AXONN " generate padded --max-tokens 1 --ignore-end --tokens 5,3000 2>&1", &out),
                     0);
    ax_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generation_stops_at_end_tokens),
        cmocka_unit_test(prompts_from_standard_input),
        cmocka_unit_test(strings_end_texts),
        cmocka_unit_test(models_bring_their_sampling),
        cmocka_unit_test(several_samples),
        cmocka_unit_test(ids_beyond_the_tokenizer_have_no_text),
    };
    return cmocka_run_group_tests_name("cli.generate", tests, set_up, tear_down);
}
