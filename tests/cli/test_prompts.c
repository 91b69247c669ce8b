/* cli: axonn generate --prompts — texts of many prompts, whatever stops the command in between. */
#include "cli/cli_test.h"

#define MODEL_KEYS                                                                                           \
    "model.family=gpt2 model.layers=1 model.hidden=16 model.heads=2 model.vocab=280 model.seq_len=200 "      \
    "train.steps=1 train.global_batch=1 train.micro_batch=1"
#define SEED AXONN " generate small --max-tokens 12 --samples 2 --ignore-end --seed "
#define MANY SEED "1 "

static const char prompts[] =
    "{\"id\": \"a\", \"prompt\": \"line {\", \"kind\": \"sort\", \"big\": 1234567890123456789012, "
    "\"samples\": 3}\n"
    "{\"id\": 7, \"tokens\": [5, 6, 7], \"max_tokens\": 3}\n"
    "\n"
    "{\"id\": \"c\", \"messages\": [{\"role\": \"user\", \"content\": \"line 3\"}], \"samples\": 1}\n"
    "{\"id\": \"b\", \"prompt\": \"line 7 of\", \"until\": [\"1\", \"e\"], \"way\": {\"x\": 1.50}}\n";

static void put(const char *path, const char *text)
{
    assert_int_equal(ax_file_write_atomic(path, text, strlen(text)), AX_OK);
}

static int set_up(void **state)
{
    ax_buf out = {0};
    (void)state;
    if (chdir(AXONN_BUILD_DIR) || ax_remove_tree("cli-prompts") != AX_OK ||
        ax_mkdirs("cli-prompts") != AX_OK || chdir("cli-prompts"))
        return 1;
    put("prompts", prompts);
    int code =
        shell("for i in $(seq 99); do echo \"line $i of a text\"; done > text; " AXONN
              " tok train --input text --vocab 280 --out tok 2>&1 && echo '{run: {dir: small}}' > small.yaml "
              "&& " AXONN " train small.yaml " MODEL_KEYS " data.train=text data.tokenizer=tok 2>&1",
              &out);
    ax_buf_fini(&out);
    return code;
}

static int tear_down(void **state)
{
    (void)state;
    return chdir("..") || ax_remove_tree("cli-prompts") != AX_OK;
}

static void run(const char *command, int code, const char *said)
{
    ax_buf out = {0};
    int got = shell(command, &out);
    if (got != code)
        fail_msg("%s: exit code %d, not %d:\n%s", command, got, code, out.data);
    assert_contains(out.data, said);
    ax_buf_fini(&out);
}

/* The lines of two files are the same in some order, and none is there twice. */
static void same_lines(const char *a, const char *b)
{
    char command[256];
    snprintf(command, sizeof command,
             "LC_ALL=C sort %s > 1; LC_ALL=C sort %s > 2; diff 1 2 2>&1 && test -z \"$(uniq -d 1)\"", a, b);
    run(command, 0, "");
}

static json_t *line_of(const char *path, const char *id, int sample)
{
    char text[16384];
    json_t *found = NULL;
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    for (int n = 0; fgets(text, sizeof text, f) && !found; n++) {
        json_t *line = json_loads(text, JSON_DECODE_ANY, NULL);
        char *theirs = json_dumps(json_object_get(line, "id"), JSON_ENCODE_ANY);
        if (n && theirs && !strcmp(theirs, id) &&
            json_integer_value(json_object_get(line, "sample")) == sample)
            found = json_incref(line);
        free(theirs);
        json_decref(line);
    }
    fclose(f);
    assert_non_null(found);
    return found;
}

static const char *word(const json_t *line, const char *name)
{
    return json_string_value(json_object_get(line, name));
}

static void each_text_is_a_line(void **state)
{
    (void)state;
    run(MANY "--prompts prompts --out want 2>&1", 0, "8 texts, ");
    run("wc -l < want", 0, "9");
    run("grep -c '\"kind\":\"sort\",\"big\":1234567890123456789012}' want", 0, "3");
    run("grep -c '\"way\":{\"x\":1.50}}' want", 0, "2");
    json_t *ids = line_of("want", "7", 1), *until = line_of("want", "\"b\"", 0),
           *talk = line_of("want", "\"c\"", 0);
    assert_true(json_array_size(json_object_get(ids, "tokens")) == 3 &&
                !strcmp(word(ids, "finish"), "length"));
    assert_true(!strpbrk(word(until, "text"), "1e"));
    assert_true(word(talk, "text") && json_array_size(json_object_get(talk, "tokens")));
    json_decref(ids);
    json_decref(until);
    json_decref(talk);
    run(MANY "--prompts prompts --out want --json", 0, "\"already_there\":8");
    run("wc -l < want", 0, "9");
}

/* Another batch, another order of the prompts, an array. The first line has a hash of the prompts. */
static void order_and_batch_change_nothing(void **state)
{
    (void)state;
    run("(echo [; grep id prompts | tac | sed '$!s/$/,/'; echo ]) > array", 0, "");
    run(MANY "--prompts array --out other --batch 1 2>&1", 0, "8 texts");
    run(MANY "--prompts prompts --out third --batch 6 --threads 1 2>&1", 0, "8 texts");
    same_lines("want", "third");
    run("tail -n +2 want > 3; tail -n +2 other > 4", 0, "");
    same_lines("3", "4");
    put("quoted", "[{\"id\": 1, \"prompt\": \"5\\\" pipe\"}, {\"id\": 2, \"prompt\": \"\\\\\"}]\n");
    run(MANY "--prompts quoted --out quotes 2>&1", 0, " texts, ");
    run("grep '\"id\":2,' quotes", 0, "\"sample\":0");
    if (!has_ranks())
        return;
    run(MANY "--prompts prompts --out ranks --batch 2 --ranks 2 2>&1", 0, "8 texts"); /* along data */
    same_lines("want", "ranks");
}

/* Cuts the file at many places, and kills the command at some moments. */
static void a_stopped_command_goes_on(void **state)
{
    (void)state;
    char command[512];
    ax_buf size = {0};
    run("wc -c < want", 0, "");
    assert_int_equal(shell("wc -c < want", &size), 0);
    const int bytes = atoi(size.data), step = SANITIZED ? bytes / 3 : bytes / 13;
    for (int at = 0; at < bytes; at += step) {
        snprintf(command, sizeof command, "head -c %d want > cut && " MANY "--prompts prompts --out cut 2>&1",
                 at);
        run(command, 0, " texts, ");
        same_lines("want", "cut");
    }
    run("sed 's/\"text\":\"/\"text\":\"\\\\u0000/' want > nul; " MANY "--prompts prompts --out nul 2>&1", 0,
        "0 texts, ");
    for (int i = 1; i < 6; i++) {
        snprintf(command, sizeof command,
                 "(timeout -s KILL 0.0%d " MANY "--prompts prompts --out killed; true) >/dev/null 2>&1", i);
        run(command, 0, "");
    }
    run(MANY "--prompts prompts --out killed 2>&1", 0, " texts, ");
    same_lines("want", "killed");
    ax_buf_fini(&size);
}

static void other_settings_and_damage_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *change, *flags, *said;
    } cases[] = {
        {"cp want o", "2", "o has texts that were made with seed 1, not 2"},
        {"cp want o", "1 --top-p 0.5 --braces", "made with top_p 1.0, not 0.5, braces false, not true"},
        {"cp want o; sed 's/line 7/line 8/' prompts > p", "1", "made with prompts \""},
        {"sed '3s/^.//' want > o", "1", "o:3: damaged: not a text with an id and a sample"},
        {"sed '3s/\"id\":[^,]*/\"id\":\"x\"/; $s/\"sample\":./\"sample\":9/' want > o", "1",
         "2 faults, so nothing was done:\no:3: the id \"x\" is none of the prompts'"},
        {"(cat want; tail -n 1 want) > o", "1", "is there twice, or not asked for"},
        {"cp want o; sed 's/sort/scan/' prompts > p", "1", "made with prompts \""},
        {"printf important > o", "1", "its first line is not that of a file of axonn generate --prompts"},
        {"cp prompts o", "1", "its first line is not that of a file of axonn generate --prompts"},
        {"mkdir -p d; rm -f o; ln -s d o", "1", "o cannot be opened for writing"}};
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        char command[512];
        snprintf(command, sizeof command, "rm -f o; cp prompts p; %s; " SEED "%s --prompts p --out o 2>&1",
                 cases[i].change, cases[i].flags);
        run(command, 4, cases[i].said);
    }
    run("rm -f o; mkfifo o; " SEED "1 --prompts prompts --out o 2>&1", 2, "o is not a regular file");
}

/* All faults of the prompts are listed, and nothing is generated. */
static void faults_are_listed(void **state)
{
    (void)state;
    put("bad", "{\"id\": \"a\", \"prompt\": \"line\", \"tokens\": [1]}\n"
               "{\"prompt\": \"x\"}\n"
               "{\"id\": \"a\", \"tokens\": [1000], \"text\": 1}\n"
               "no\n"
               "{\"id\": \"c\", \"prompt\": 3, \"until\": \"\", \"max_tokens\": 0, \"samples\": 1.5}\n"
               "{\"id\": 1.5, \"messages\": [{\"role\": \"x\", \"content\": \"hi\"}]}\n"
               "{\"id\": \"e\", \"tokens\": []}\n"
               "[1]\n"
               "{\"id\": \"f\", \"prompt\": \"x\", \"max_token\": 3, \"Until\": \"y\"}\n");
    static const char *const said[] = {
        "16 faults, so nothing was done:",
        "bad:1: one of \"prompt\", \"tokens\" and \"messages\" must be there, not 2",
        "bad:2: \"id\" must be there, a string or an integer",
        "bad:3: the id \"a\" is that of line 1, too",
        "bad:3: \"tokens\": number 0 (from 0) is not an id of the model's vocabulary, 0 to 279",
        "bad:3: a member \"text\" would stand twice in the output",
        "bad:4: not valid JSON",
        "bad:5: \"prompt\" must be a string",
        "bad:5: \"until\" must be a string that is not empty",
        "bad:5: \"max_tokens\" must be an integer from 1 to 16777216",
        "bad:5: \"samples\" must be an integer from 1 to 1000000",
        "bad:6: \"id\" must be there, a string or an integer",
        "bad:6: ",
        "bad:7: \"tokens\" must be a list of token ids",
        "bad:8: not a JSON object",
        "bad:9: a member \"max_token\" is not read: write \"max_tokens\"",
        "bad:9: a member \"Until\" is not read: write \"until\""};
    for (size_t i = 0; i < AX_COUNT(said); i++)
        run(MANY "--prompts bad --out none 2>&1", 4, said[i]);
    run("test ! -e none", 0, "");
    run("for i in $(seq 300); do echo \"{\\\"id\\\": $i}\"; done > bad", 0, "");
    run(MANY "--prompts bad --out none 2>&1", 4, "300 faults, so nothing was done:");
    run(MANY "--prompts bad --out none 2>&1", 4, "\nand ");
    put("bad", "[{\"id\": 1, \"prompt\": \"a\"},\n\n {\"id\": 2,\n\"prompt\": []}, {\"id\": 1, \"prompt\": "
               "\"b]\"}]\n");
    run(MANY "--prompts bad --out none 2>&1", 4, "bad:3: \"prompt\" must be a string");
    run(MANY "--prompts bad --out none 2>&1", 4, "bad:4: the id 1 is that of line 1, too");
    put("bad", "{\"id\": 1, \"prompt\": \"a\", \"until\": \"x\"}\n{\"id\": 2, \"messages\": []}\n");
    run(AXONN " generate " AXONN_SOURCE_DIR "/tests/golden/gpt2/tanh --prompts bad --out none 2>&1", 4,
        "bad:1: the model has no tokenizer.json: give \"tokens\" in place of \"prompt\"");
    put("bad", "");
    run(MANY "--prompts bad --out none 2>&1", 4, "bad is empty");
    run(MANY "--prompts prompts 2>&1", 2, "--prompts FILE and --out FILE: give both or none");
    run(AXONN " generate small --tokens 1 --batch 3 2>&1", 2,
        "--batch: give it only together with --prompts");
    run(MANY "--prompts prompts --out o --prompt x 2>&1", 2, "give only one of --prompt");
}

/* SIGTERM ends the command as it does other programs; the lines so far are whole, and the command goes on. */
static void a_signal_ends_it(void **state)
{
    (void)state;
    put("many", "{\"id\": 1, \"tokens\": [5], \"samples\": 3000, \"max_tokens\": 150}\n");
    run(MANY "--prompts many --out stopped >/dev/null 2>&1 & p=$!; until [ $(cat stopped 2>/dev/null | wc "
             "-l) -gt 2 ]; "
             "do sleep 0.02; done; kill -TERM $p; wait $p",
        143, "");
    run("test $(wc -l < stopped) -lt 3001", 0, "");
    run(MANY "--prompts many --out stopped >/dev/null 2>&1 & p=$!; n=$(cat stopped | wc -l); "
             "until [ $(cat stopped | wc -l) -gt $n ]; do sleep 0.02; done; kill -TERM $p; wait $p",
        143, "");
}

/* A batch is as large as there are texts, if these are fewer. The message names the largest batch that fits,
 * and that one does. */
static void a_batch_too_large_is_refused(void **state)
{
    (void)state;
    char command[512];
    ax_buf out = {0};
#define LIMITED "runtime.device_memory=30000000 --threads 1 --prompts many --out limited --batch "
    put("many", "{\"id\": 1, \"tokens\": [5], \"samples\": 60000, \"max_tokens\": 1}\n");
    run(MANY "runtime.device_memory=30000000 --prompts prompts --out limited --batch 60000 2>&1", 0,
        "8 texts");
    run("rm limited", 0, "");
    assert_int_equal(shell(MANY LIMITED "60000 2>&1", &out), 3);
    const char *fits = strstr(out.data, "the largest that does is --batch ");
    assert_non_null(fits);
    const int most = atoi(fits + strlen("the largest that does is --batch "));
    snprintf(command, sizeof command, MANY LIMITED "%d 2>&1", most + 1);
    assert_int_equal(shell(command, &out), 3);
    snprintf(command, sizeof command, MANY LIMITED "%d 2>&1", most);
    run(command, 0, "60000 texts");
    ax_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_text_is_a_line),
        cmocka_unit_test(order_and_batch_change_nothing),
        cmocka_unit_test(a_stopped_command_goes_on),
        cmocka_unit_test(other_settings_and_damage_are_refused),
        cmocka_unit_test(faults_are_listed),
        cmocka_unit_test(a_signal_ends_it),
        cmocka_unit_test(a_batch_too_large_is_refused),
    };
    return cmocka_run_group_tests_name("cli.prompts", tests, set_up, tear_down);
}
