/* base: option tables — defaults, YAML, overrides, flags, messages with places, dump and read back. */
#include "axonn/option.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct sample {
    int64_t layers, stride, threads;
    double lr, betas[2];
    char *name, *dir, *resume;
    int kind;
    bool masked;
    ax_paths train;
    ax_ints tokens;
    ax_strings tags;
} sample;

#define AT(field) offsetof(sample, field)
static const ax_option table[] = {
    {"model.layers", AX_OPT_INT, AT(layers), "12", .range = "[1, inf)", .help = "blocks"},
    {"model.name", AX_OPT_STRING, AT(name), .help = "its name"},
    {"data.train", AX_OPT_PATHS, AT(train), .help = "what to train on"},
    {"data.masked", AX_OPT_BOOL, AT(masked), "true", .help = "mask documents"},
    {"data.tokens", AX_OPT_INTS, AT(tokens), "1,2", .help = "some tokens"},
    {"data.tags", AX_OPT_STRINGS, AT(tags), .help = "some tags"},
    {"optim.kind", AX_OPT_ENUM, AT(kind), "adamw", .choices = "adamw|sgd", .help = "the optimizer"},
    {"optim.lr", AX_OPT_FLOAT, AT(lr), "6e-4", .range = "(0, inf)", .help = "learning rate"},
    {"optim.betas", AX_OPT_FLOATS, AT(betas), "0.9, 0.95", .range = "[0, 1)", .items = 2, .help = "moments"},
    {"run.dir", AX_OPT_PATH, AT(dir), .help = "where to write"},
    {"run.resume", AX_OPT_PATH, AT(resume), "auto", .choices = "auto|none", .help = "from where"},
    {"run.stride", AX_OPT_INT, AT(stride), "none", .range = "[1, inf)", .choices = "none|full",
     .help = "every"},
    {"threads", AX_OPT_INT, AT(threads), "0", .range = "[0, 1024]", .help = "threads"},
};

/* Reads `text` and the overrides; the message, if any, is left in ax_error_message. */
static ax_status load(const char *text, size_t n, const char *const *overrides, sample *s, ax_buf *dump)
{
    ax_option_set *set;
    assert_int_equal(ax_option_set_create(table, AX_COUNT(table), s, &set), AX_OK);
    if (text)
        assert_int_equal(ax_option_read_text(set, "t.yaml", "/conf", text, strlen(text)), AX_OK);
    assert_int_equal(ax_option_read_overrides(set, n, (char *const *)overrides), AX_OK);
    ax_status status = ax_option_finish(set);
    if (dump)
        assert_int_equal(ax_option_dump(set, dump), AX_OK);
    ax_option_set_destroy(&set);
    return status;
}

static void drop(sample *s) { ax_option_fini(table, AX_COUNT(table), s); }

static void defaults(void **state)
{
    (void)state;
    sample s;
    assert_int_equal(load(NULL, 0, NULL, &s, NULL), AX_OK);
    assert_int_equal(s.layers, 12);
    assert_true(s.lr == 6e-4 && s.betas[0] == 0.9 && s.betas[1] == 0.95);
    assert_true(s.masked && !s.name && !s.dir && s.kind == 0 && s.stride == -1);
    assert_string_equal(s.resume, "auto");
    assert_int_equal(s.tokens.count, 2);
    assert_int_equal(s.train.count, 0);
    drop(&s);
}

static void file_then_command_line(void **state)
{
    (void)state;
    static const char text[] = "model: {layers: 3, name: 'a: b'}\n"
                               "data:\n"
                               "  train: [x.txt, {path: sub/y, weight: 2.5}, /abs]\n"
                               "  masked: false\n"
                               "  tokens: []\n"
                               "optim:\n"
                               "  lr: 1e-3 # a number, whatever YAML 1.1 says\n"
                               "  kind: sgd\n"
                               "run: {dir: ./out, resume: ./auto, stride: full}\n";
    const char *overrides[] = {"optim.lr=0.25", "optim.betas=[0.5, 0.75]", "data.tokens=4,5, 6",
                               "data.tags=a,b # c", "run={stride: 7}"};
    sample s;
    assert_int_equal(load(text, AX_COUNT(overrides), overrides, &s, NULL), AX_OK);
    assert_int_equal(s.layers, 3);
    assert_string_equal(s.name, "a: b");
    assert_int_equal(s.train.count, 3);
    assert_string_equal(s.train.items[0].path, "/conf/x.txt");
    assert_string_equal(s.train.items[1].path, "/conf/sub/y");
    assert_true(s.train.items[1].weight == 2.5 && s.train.items[2].weight == 0);
    assert_string_equal(s.train.items[2].path, "/abs");
    assert_false(s.masked);
    assert_true(s.lr == 0.25 && s.betas[0] == 0.5 && s.betas[1] == 0.75);
    assert_int_equal(s.kind, 1);
    assert_string_equal(s.dir, "/conf/out");
    assert_string_equal(s.resume, "/conf/auto");
    assert_int_equal(s.stride, 7);
    assert_int_equal(s.tokens.count, 3);
    assert_int_equal(s.tokens.items[2], 6);
    assert_string_equal(s.tags.items[0], "a,b # c");
    drop(&s);
}

static void paths_of_the_command_line(void **state)
{
    (void)state;
    const char *overrides[] = {"data.train=./x.txt", "run.dir=."};
    char *here = getcwd(NULL, 0), *file;
    assert_int_equal(ax_path_join(here, "x.txt", &file), AX_OK);
    sample s;
    assert_int_equal(load(NULL, 2, overrides, &s, NULL), AX_OK);
    assert_string_equal(s.train.items[0].path, file);
    assert_string_equal(s.dir, here);
    drop(&s);
    free(file);
    free(here);
}

/* One line of YAML (or an override) and what its error must say. */
static void messages(void **state)
{
    (void)state;
    static const struct {
        const char *text, *override, *message;
    } cases[] = {
        {"model:\n  layer: 3\n", NULL, "t.yaml:2:3: model.layer: unknown key; did you mean model.layers?"},
        {"lr: 3\n", NULL, "t.yaml:1:1: lr: unknown key; did you mean optim.lr?"},
        {"optimizer: {lr: 3}\n", NULL, "t.yaml:1:1: optimizer: unknown key; did you mean optim?"},
        {"run: {watchdogs: 3}\n", NULL,
         "t.yaml:1:7: run.watchdogs: unknown key; there are dir, resume, stride"},
        {"strategy: x\n", NULL,
         "t.yaml:1:1: strategy: unknown key; there are model, data, optim, run, threads"},
        {"model:\n  layers: 3x\n", NULL, "t.yaml:2:11: model.layers: must be an integer, not \"3x\""},
        {"model:\n  layers: 1_000\n", NULL,
         "t.yaml:2:11: model.layers: must be an integer, not \"1_000\"; write 1000"},
        {"model: {layers: 1e3}\n", NULL,
         "t.yaml:1:17: model.layers: must be an integer, not \"1e3\"; write 1000"},
        {"model: {layers: 0x10}\n", NULL, "t.yaml:1:17: model.layers: must be an integer, not \"0x10\""},
        {"model: {layers: 99999999999999999999}\n", NULL,
         "t.yaml:1:17: model.layers: \"99999999999999999999\" does not fit into 64 bits, the size of an "
         "integer here"},
        {"model: {layers: 0}\n", NULL, "t.yaml:1:17: model.layers: must be at least 1, not \"0\""},
        {"threads: 2000\n", NULL, "t.yaml:1:10: threads: must be from 0 to 1024, not \"2000\""},
        {"model: {layers: }\n", NULL,
         "t.yaml:1:17: model.layers: has no value; remove the line to keep the default"},
        {"model: {layers: [1]}\n", NULL, "t.yaml:1:17: model.layers: must be an integer, not a list"},
        {"optim: {lr: {a: 1}}\n", NULL, "t.yaml:1:13: optim.lr: must be a number, not a map"},
        {"optim: {lr: inf}\n", NULL, "t.yaml:1:13: optim.lr: must be a number, not \"inf\""},
        {"optim: {lr: 1e999}\n", NULL,
         "t.yaml:1:13: optim.lr: \"1e999\" is too large for a number; the limit is about 1.8e308"},
        {"optim: {lr: 0}\n", NULL, "t.yaml:1:13: optim.lr: must be greater than 0, not \"0\""},
        {"optim: {kind: adam}\n", NULL,
         "t.yaml:1:15: optim.kind: must be adamw or sgd, not \"adam\"; the nearest is adamw"},
        {"optim: {betas: [0.9]}\n", NULL, "t.yaml:1:16: optim.betas: must be a list of 2 numbers, not of 1"},
        {"optim: {betas: [0.9, 1, 2]}\n", NULL,
         "t.yaml:1:16: optim.betas: must be at least 0 and less than 1, not \"1\""},
        {"optim: {betas: 0.9}\n", NULL, "t.yaml:1:16: optim.betas: must be a list of 2 numbers, not of 1"},
        {"optim: 3\n", NULL, "t.yaml:1:8: optim: must be a map of keys (kind, lr, betas), not a value"},
        {"optim.lr: 3\n", NULL,
         "t.yaml:1:1: optim.lr: in a file, keys are nested: write lr indented under optim:"},
        {"data: {masked: yes}\n", NULL,
         "t.yaml:1:16: data.masked: must be true or false, not \"yes\"; the nearest is true"},
        {"data: {train: [{paht: x}]}\n", NULL,
         "t.yaml:1:15: data.train: an item must be a path, {path: PATH, weight: NUMBER} or {path: PATH, "
         "epochs: "
         "N}"},
        {"data: {train: [{path: x, epochs: 1.5}]}\n", NULL,
         "t.yaml:1:15: data.train: epochs: must be a whole number from 1 to 1e+09, not 1.5"},
        {"data: {train: [{path: x, epochs: 2, weight: 1}]}\n", NULL,
         "t.yaml:1:15: data.train: give x either a weight or epochs, not both"},
        {"data: {train: [{path: x, weight: -1}]}\n", NULL,
         "t.yaml:1:15: data.train: weight: must be greater than 0, not -1"},
        {"data: {train: ''}\n", NULL, "t.yaml:1:15: data.train: must be a path, not an empty text"},
        {"run: {stride: ful}\n", NULL,
         "t.yaml:1:15: run.stride: must be none or full, not \"ful\"; the nearest is full; an integer is "
         "also allowed"},
        {"threads: 1\nthreads: 2\n", NULL,
         "t.yaml:2:1: threads: duplicate key; it is given first in line 1; keep one"},
        {"model:\n\tlayers: 3\n", NULL, "t.yaml:2:1: the line is indented with a tab; YAML requires spaces"},
        {"", NULL, "t.yaml: there is no content, only blanks or comments; write at least one key"},
        {"# nothing\n", NULL, "t.yaml: there is no content, only blanks or comments; write at least one key"},
        {"- a\n", NULL, "t.yaml:1:1: must be a map of keys (model, data, optim, run, threads), not a list"},
        {"threads: 1\n---\nthreads: 2\n", NULL,
         "t.yaml:3:1: a second YAML document starts here; there must be only one"},
        {"? [a]\n: 3\n", NULL,
         "t.yaml:1:3: a key must be the name of an option, not a list, a map or a long text"},
        {NULL, "threads", "command line: \"threads\" must have the form key=value"},
        {NULL, "optim=3",
         "command line: optim: is a group of keys (kind, lr, betas), not a key; write optim.KEY=VALUE"},
        {NULL, "optim.rl=3", "command line: optim.rl: unknown key; did you mean optim.lr?"},
        {NULL, "optim.lr=", "command line: optim.lr: must be a number, not \"\""},
        {NULL, "optim={lr: 1, kind: x}", "command line: optim.kind: must be adamw or sgd, not \"x\""},
        {NULL, "threads={a: [}", "command line: threads: must be an integer, not \"{a: [}\""},
        {NULL, "run={stride: 7",
         "command line: not valid YAML: did not find expected ',' or '}' while parsing a flow mapping that "
         "starts above"},
    };
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        sample s;
        size_t n = cases[i].override != NULL;
        assert_int_equal(load(cases[i].text, n, &cases[i].override, &s, NULL), AX_ERR_USAGE);
        assert_string_equal(ax_error_message(), cases[i].message);
        drop(&s);
    }
}

static void syntax_errors_have_a_place(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "model: {layers: 3\n", "model: [1, 2}\n",        "a: b: c\n", "model: 'x\n", "model: *nowhere\n",
        "\xff\xfe\x00",        "%YAML 9.9\n---\na: 1\n", "a: \x01\n"};
    for (size_t i = 0; i < AX_COUNT(texts); i++) {
        sample s;
        assert_int_equal(load(texts[i], 0, NULL, &s, NULL), AX_ERR_USAGE);
        assert_memory_equal(ax_error_message(), "t.yaml:", 7);
        drop(&s);
    }
}

/* If a text cannot be read to its end, keys that it does not give are not reported as missing. */
static void nothing_follows_from_unread_text(void **state)
{
    (void)state;
    static const ax_option required[] = {{"a", AX_OPT_INT, 0, .required = true, .help = "a number"},
                                         {"b", AX_OPT_INT, sizeof(int64_t), .help = "another"}};
    static const char *const texts[] = {"a: {b\n", "b:\n\ta: 1\n", "", "- a\n", "\xff\x01"};
    const char *const overrides[] = {"b=x"};
    for (size_t i = 0; i < AX_COUNT(texts); i++) {
        int64_t values[2];
        ax_option_set *set;
        assert_int_equal(ax_option_set_create(required, 2, values, &set), AX_OK);
        assert_int_equal(ax_option_read_text(set, "t.yaml", "", texts[i], strlen(texts[i])), AX_OK);
        assert_int_equal(ax_option_read_overrides(set, 1, (char *const *)overrides), AX_OK);
        assert_false(ax_option_ok(set, "a"));
        assert_int_equal(ax_option_finish(set), AX_ERR_USAGE);
        assert_memory_equal(ax_error_message(), "2 errors:\n  t.yaml:", 19);
        assert_non_null(strstr(ax_error_message(), "command line: b: must be an integer"));
        ax_option_set_destroy(&set);
    }
}

/* ax_option_waive: a required key need not be given. */
static void waived(void **state)
{
    (void)state;
    static const ax_option required[] = {{"a", AX_OPT_INT, 0, .required = true, .help = "a number"}};
    int64_t value;
    ax_option_set *set;
    assert_int_equal(ax_option_set_create(required, 1, &value, &set), AX_OK);
    ax_option_waive(set, "a");
    ax_option_waive(set, "b");
    assert_int_equal(ax_option_finish(set), AX_OK);
    ax_option_set_destroy(&set);
}

static void keys_given_twice(void **state)
{
    (void)state;
    const char *overrides[] = {"threads=2",    "threads=3",    "run={dir: a, stride: 7}",
                               "run.stride=8", "data.train=x", "data.train=x"};
    sample s;
    assert_int_equal(load("threads: 1\n", AX_COUNT(overrides), overrides, &s, NULL), AX_ERR_USAGE);
    assert_string_equal(
        ax_error_message(),
        "3 errors:\n"
        "  command line: threads: given twice, as \"2\" and as \"3\"; keep one\n"
        "  command line: run.stride: given twice, as \"{dir: a, stride: 7}\" and as \"8\"; keep one\n"
        "  command line: data.train: given twice, with the same value; keep one");
    drop(&s);
}

static void all_errors_at_once(void **state)
{
    (void)state;
    static const char text[] = "model: {layers: x, heads: 3}\noptim: {lr: -1}\n";
    const char *overrides[] = {"data.masked=1"};
    sample s;
    ax_option_set *set;
    assert_int_equal(ax_option_set_create(table, AX_COUNT(table), &s, &set), AX_OK);
    assert_int_equal(ax_option_read_text(set, "t.yaml", "", text, strlen(text)), AX_OK);
    assert_int_equal(ax_option_read_overrides(set, 1, (char *const *)overrides), AX_OK);
    ax_option_error(set, "threads", "must be %d", 7);
    assert_false(ax_option_ok(set, "optim.lr"));
    assert_true(ax_option_ok(set, "optim.betas"));
    assert_int_equal(ax_option_finish(set), AX_ERR_USAGE);
    assert_string_equal(ax_error_message(),
                        "5 errors:\n"
                        "  t.yaml:1:17: model.layers: must be an integer, not \"x\"\n"
                        "  t.yaml:1:20: model.heads: unknown key; there are layers, name\n"
                        "  t.yaml:2:13: optim.lr: must be greater than 0, not \"-1\"\n"
                        "  command line: data.masked: must be true or false, not \"1\"; the nearest is true\n"
                        "  default: threads: must be 7");
    assert_true(s.lr == 6e-4); /* a bad value leaves the earlier value */
    ax_option_set_destroy(&set);
    drop(&s);
}

static void many_errors_are_cut(void **state)
{
    (void)state;
    ax_buf text = {0};
    for (int i = 0; i < 500; i++)
        assert_int_equal(ax_buf_printf(&text, "key%d: 1\n", i), AX_OK);
    sample s;
    assert_int_equal(load(text.data, 0, NULL, &s, NULL), AX_ERR_USAGE);
    assert_memory_equal(ax_error_message(), "500 errors, the first 50 of them:\n  t.yaml:1:1: key0: unknown",
                        60);
    assert_non_null(strstr(ax_error_message(), "t.yaml:50:1: key49"));
    assert_null(strstr(ax_error_message(), "t.yaml:51:1"));
    drop(&s);
    ax_buf_fini(&text);
}

/* Texts that are made to take long, such as deep nesting, are answered within a second of this thread's time.
 */
static void hostile_texts_are_answered_soon(void **state)
{
    (void)state;
    static const struct {
        const char *head, *repeated, *message;
        int n;
        bool numbered;
    } cases[] = {
        {"", "[", "t.yaml:1:33: maps and lists are nested more than 32 deep", 200000, false},
        {"model: ", "{a: ", "maps and lists are nested more than 32 deep", 100000, false},
        {"", "- ", "maps and lists are nested more than 32 deep", 200000, false},
        {"", "key%d: 1\n", "40000 errors, the first 50 of them", 40000, true},
        {"", "key%d: 1\nmodel: {}\n", "39999 errors, the first 50 of them", 20000, true},
        {"", "model: {}\n", "39999 errors, the first 50 of them", 40000, false},
    };
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        ax_buf text = {0};
        assert_int_equal(ax_buf_printf(&text, "%s", cases[i].head), AX_OK);
        for (int k = 0; k < cases[i].n; k++) {
            char line[64];
            snprintf(line, sizeof line, "%s", cases[i].repeated);
            if (cases[i].numbered)
                snprintf(line, sizeof line, "key%d: 1\n%s", k, strchr(cases[i].repeated, '\n') + 1);
            assert_int_equal(ax_buf_add(&text, line, strlen(line)), AX_OK);
        }
        sample s;
        double start = ax_cpu_now();
        assert_int_equal(load(text.data, 0, NULL, &s, NULL), AX_ERR_USAGE);
        double seconds = ax_cpu_now() - start;
        if (!strstr(ax_error_message(), cases[i].message))
            assert_string_equal(ax_error_message(), cases[i].message);
        if (seconds > 1)
            fail_msg("case %zu took %.1f s", i, seconds);
        drop(&s);
        ax_buf_fini(&text);
    }
}

/* Reading a list takes time in proportion to its length. */
static void long_lists(void **state)
{
    (void)state;
    enum { ITEMS = 60000 };
    ax_buf text = {0};
    assert_int_equal(ax_buf_printf(&text, "data:\n  train:\n"), AX_OK);
    for (int i = 0; i < ITEMS; i++)
        assert_int_equal(ax_buf_printf(&text, "  - /%d\n", i), AX_OK);
    sample s;
    double start = ax_cpu_now();
    assert_int_equal(load(text.data, 0, NULL, &s, NULL), AX_OK);
    assert_true(ax_cpu_now() - start < 3);
    assert_int_equal(s.train.count, ITEMS);
    for (int i = 0; i < ITEMS; i++)
        assert_int_equal(strtol(s.train.items[i].path + 1, NULL, 10), i);
    drop(&s);
    ax_buf_fini(&text);
}

/* An endless file (a device) is refused once it exceeds the size limit of configuration files. */
static void endless_files(void **state)
{
    (void)state;
    sample s;
    ax_option_set *set;
    char *data;
    size_t size;
    assert_int_equal(ax_option_set_create(table, AX_COUNT(table), &s, &set), AX_OK);
    assert_int_equal(ax_option_read_file(set, "/dev/zero"), AX_ERR_DATA);
    assert_string_equal(ax_error_message(),
                        "/dev/zero is larger than 1.0 MiB, the maximum here: is it the right file?");
    assert_int_equal(ax_file_read_most("/dev/zero", 100, &data, &size), AX_ERR_DATA);
    assert_null(data);
    ax_option_set_destroy(&set);
    drop(&s);
}

static void places(void **state)
{
    (void)state;
    static const char text[] = "model:\n  layers: 3\n  name: x\n";
    const char *overrides[] = {"model.name=y"};
    sample s;
    ax_option_set *set;
    assert_int_equal(ax_option_set_create(table, AX_COUNT(table), &s, &set), AX_OK);
    assert_int_equal(ax_option_read_text(set, "t.yaml", "", text, strlen(text)), AX_OK);
    assert_int_equal(ax_option_read_overrides(set, 1, (char *const *)overrides), AX_OK);
    assert_int_equal(ax_option_finish(set), AX_OK);
    assert_string_equal(ax_option_place(set, "model.layers"), "t.yaml:2:11");
    assert_string_equal(ax_option_place(set, "model.name"), "command line");
    assert_string_equal(ax_option_place(set, "threads"), "default");
    assert_true(ax_option_given(set, "model.layers"));
    assert_false(ax_option_given(set, "threads"));
    ax_option_set_destroy(&set);
    drop(&s);
}

/* A dump reads back as the same values, whatever they are. */
static void dump_reads_back(void **state)
{
    (void)state;
    static const char text[] = "model: {layers: 9223372036854775807, name: \"q\\\"\\\\ \\n\\t# ü: {\"}\n"
                               "data: {train: [{path: 'a b', weight: 0.1}, \"c,d\", {path: e, epochs: 3}], "
                               "tokens: [-3], tags: ['~', '']}\n"
                               "run: {stride: 3, resume: none}\n";
    ax_buf first = {0}, second = {0};
    for (uint64_t i = 0; i < 200; i++) {
        char lr[64], betas[64];
        double value = (double)ax_rng_uniform(7, 2 * i) / 3 + 1e-9;
        snprintf(lr, sizeof lr, "optim.lr=%.17g", value);
        snprintf(betas, sizeof betas, "optim.betas=%.17g,%.17g", value * value, value / 7);
        const char *overrides[] = {lr, betas};
        sample s, t;
        first.size = second.size = 0;
        assert_int_equal(load(text, 2, overrides, &s, &first), AX_OK);
        assert_int_equal(load(first.data, 0, NULL, &t, &second), AX_OK);
        assert_true(s.lr == value && t.lr == value);
        assert_memory_equal(s.betas, t.betas, sizeof s.betas);
        assert_true(s.layers == INT64_MAX && t.layers == INT64_MAX);
        assert_string_equal(s.name, "q\"\\ \n\t# ü: {");
        assert_string_equal(s.name, t.name);
        assert_int_equal(t.train.count, 3);
        assert_true(t.train.items[2].epochs == 3 && t.train.items[1].epochs == 0);
        assert_string_equal(t.train.items[0].path, "/conf/a b");
        assert_true(t.train.items[0].weight == 0.1);
        assert_string_equal(t.tags.items[0], "~");
        assert_string_equal(t.tags.items[1], "");
        assert_string_equal(t.resume, "none");
        assert_int_equal(t.stride, 3);
        drop(&s);
        drop(&t);
    }
    ax_buf_fini(&first);
    ax_buf_fini(&second);
}

/* Every character reads back, also those that YAML does not print or reads as line breaks: C1 controls, line
 * separators, the byte order mark, U+FFFE. */
static void dump_keeps_characters(void **state)
{
    (void)state;
    static const char *const names[] = {"\xC2\x80|\xC2\x85|\xC2\x9F|\xC2\xA0", "a\xE2\x80\xA8\xE2\x80\xA9z",
                                        "\xEF\xBB\xBFx", "\xEF\xBF\xBE\xEF\xBF\xBF",
                                        "\x7F \t\xF0\x9F\x98\x80"};
    for (size_t i = 0; i < AX_COUNT(names); i++) {
        sample s, t;
        ax_buf dump = {0};
        ax_option_set *set;
        assert_int_equal(ax_option_set_create(table, AX_COUNT(table), &s, &set), AX_OK);
        assert_int_equal(ax_option_assign(set, "model.name", names[i], "command line"), AX_OK);
        assert_int_equal(ax_option_finish(set), AX_OK);
        assert_int_equal(ax_option_dump(set, &dump), AX_OK);
        assert_int_equal(load(dump.data, 0, NULL, &t, NULL), AX_OK);
        assert_string_equal(t.name, names[i]);
        ax_option_set_destroy(&set);
        ax_buf_fini(&dump);
        drop(&s);
        drop(&t);
    }
}

/* Bytes that are not UTF-8 are legal in file names, but YAML cannot hold them. The place of a value, which is
 * a comment of the dump, is left out. */
static void dump_refuses_bytes(void **state)
{
    (void)state;
    sample s;
    ax_buf dump = {0};
    ax_option_set *set;
    assert_int_equal(ax_option_set_create(table, AX_COUNT(table), &s, &set), AX_OK);
    assert_int_equal(ax_option_assign(set, "model.name", "x", "bad\xFF.yaml:1:1"), AX_OK);
    assert_int_equal(ax_option_finish(set), AX_OK);
    assert_int_equal(ax_option_dump(set, &dump), AX_OK);
    assert_null(strchr(dump.data, '\xFF'));
    ax_option_set_destroy(&set);
    drop(&s);
    assert_int_equal(ax_option_set_create(table, AX_COUNT(table), &s, &set), AX_OK);
    assert_int_equal(ax_option_assign(set, "model.name", "r\xFF", "command line"), AX_OK);
    assert_int_equal(ax_option_finish(set), AX_OK);
    assert_int_equal(ax_option_dump(set, &dump), AX_ERR_USAGE);
    assert_non_null(strstr(ax_error_message(), "model.name: \"r\xFF\" is not valid UTF-8"));
    ax_option_set_destroy(&set);
    ax_buf_fini(&dump);
    drop(&s);
}

/* ---- flags --------------------------------------------------------------------------------------- */

typedef struct verb_args {
    char *model;
    ax_strings rest, input;
    int64_t max_tokens;
    ax_ints tokens;
    bool json, color;
} verb_args;

static const ax_option flags[] = {
    {"MODEL", AX_OPT_PATH, offsetof(verb_args, model), .required = true, .help = "a model"},
    {"FILE", AX_OPT_STRINGS, offsetof(verb_args, rest), .help = "more files"},
    {"max-tokens", AX_OPT_INT, offsetof(verb_args, max_tokens), "16", .range = "[1, inf)",
     .help = "stop after N"},
    {"input", AX_OPT_STRINGS, offsetof(verb_args, input), .help = "inputs"},
    {"tokens", AX_OPT_INTS, offsetof(verb_args, tokens), .help = "the prompt as token ids"},
    {"json", AX_OPT_BOOL, offsetof(verb_args, json), "false", .help = "print JSON"},
    {"color", AX_OPT_BOOL, offsetof(verb_args, color), "true", .help = "use colour"},
};

static ax_status read_flags(size_t n, const char *const *args, verb_args *out)
{
    ax_option_set *set;
    assert_int_equal(ax_option_set_create(flags, AX_COUNT(flags), out, &set), AX_OK);
    assert_int_equal(ax_option_read_flags(set, n, (char *const *)args), AX_OK);
    ax_status status = ax_option_finish(set);
    ax_option_set_destroy(&set);
    return status;
}
#define READ_FLAGS(out, ...)                                                                                 \
    read_flags(AX_COUNT(((const char *[]){__VA_ARGS__})), (const char *const[]){__VA_ARGS__}, out)

static void flags_are_read(void **state)
{
    (void)state;
    verb_args a;
    assert_int_equal(READ_FLAGS(&a, "--tokens", "1,2,3", "gpt", "--json", "f1", "--max-tokens=5",
                                "--no-color", "--input", "a", "-", "--input", "b", "--", "--f2"),
                     AX_OK);
    assert_string_equal(a.model, "gpt");
    assert_int_equal(a.rest.count, 2);
    assert_string_equal(a.rest.items[1], "--f2");
    assert_int_equal(a.max_tokens, 5);
    assert_int_equal(a.tokens.count, 3);
    assert_int_equal(a.input.count, 3);
    assert_string_equal(a.input.items[2], "b");
    assert_true(a.json && !a.color);
    ax_option_fini(flags, AX_COUNT(flags), &a);
}

static void flag_errors(void **state)
{
    (void)state;
    verb_args a;
    assert_int_equal(READ_FLAGS(&a, "--max-token", "3", "--tokens", "--max-tokens", "0"), AX_ERR_USAGE);
    assert_string_equal(ax_error_message(),
                        "3 errors:\n"
                        "  command line: --max-token: unknown flag; did you mean --max-tokens?\n"
                        "  command line: --tokens: needs a value (the prompt as token ids)\n"
                        "  command line: --max-tokens: must be at least 1, not \"0\"");
    ax_option_fini(flags, AX_COUNT(flags), &a);
    assert_int_equal(READ_FLAGS(&a, "m", "--josn", "--max-tokens", "1", "--max-tokens=2", "--tokens", "--x",
                                "--input", "a", "--input", "a"),
                     AX_ERR_USAGE);
    assert_string_equal(
        ax_error_message(),
        "3 errors:\n"
        "  command line: --josn: unknown flag; did you mean --json?\n"
        "  command line: --max-tokens: given twice, as \"1\" and as \"2\"; keep one\n"
        "  command line: --tokens: needs a value (the prompt as token ids); write values that begin with "
        "dashes as --tokens=--x");
    ax_option_fini(flags, AX_COUNT(flags), &a);
    assert_int_equal(READ_FLAGS(&a, "m", "--qqqqqqq"), AX_ERR_USAGE);
    assert_string_equal(ax_error_message(), "command line: --qqqqqqq: unknown flag; there are --max-tokens, "
                                            "--input, --tokens, --json, --color");
    ax_option_fini(flags, AX_COUNT(flags), &a);
    assert_int_equal(READ_FLAGS(&a, "--json=maybe"), AX_ERR_USAGE);
    assert_non_null(strstr(ax_error_message(), "--json: must be true or false"));
    assert_non_null(strstr(ax_error_message(), "MODEL: required, but not given (a model)"));
    ax_option_fini(flags, AX_COUNT(flags), &a);
}

/* A verb says how a flag of another program is called here, but only if it has that flag. */
static void flags_of_other_programs(void **state)
{
    (void)state;
    static const ax_option_synonym others[] = {
        {"max_new_tokens|length", "--max-tokens N"}, {"top", "--top-k K"}, {"learning_rate", "optim.lr"}};
    static const char *const words[] = {"m",          "--max_new-tokens", "3",
                                        "--LENGTH=4", "--top=3",          "--learning-rate=1"};
    verb_args a;
    ax_option_set *set;
    assert_int_equal(ax_option_set_create(flags, AX_COUNT(flags), &a, &set), AX_OK);
    ax_option_take_synonyms(set, others, AX_COUNT(others));
    assert_int_equal(ax_option_read_flags(set, AX_COUNT(words), (char *const *)words), AX_OK);
    assert_int_equal(ax_option_finish(set), AX_ERR_USAGE);
    assert_string_equal(ax_error_message(),
                        "4 errors:\n"
                        "  command line: --max_new-tokens: unknown flag; here it is --max-tokens N\n"
                        "  command line: --LENGTH: unknown flag; here it is --max-tokens N\n"
                        "  command line: --top: unknown flag; there are --max-tokens, --input, --tokens, "
                        "--json, --color\n"
                        "  command line: --learning-rate: unknown flag; there are --max-tokens, --input, "
                        "--tokens, --json, --color");
    ax_option_set_destroy(&set);
    ax_option_fini(flags, AX_COUNT(flags), &a);
}

static void help_text(void **state)
{
    (void)state;
    ax_buf out = {0};
    assert_int_equal(ax_option_help(flags, AX_COUNT(flags), true, 50, &out), AX_OK);
    assert_string_equal(out.data, "  MODEL            a model\n"
                                  "  FILE...          more files\n"
                                  "  --max-tokens N   stop after N (at least 1;\n"
                                  "                   default: 16)\n"
                                  "  --input TEXT...  inputs\n"
                                  "  --tokens N,...   the prompt as token ids\n"
                                  "  --json           print JSON\n"
                                  "  --no-color       use colour\n");
    ax_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        cmocka_unit_test(file_then_command_line),
        cmocka_unit_test(paths_of_the_command_line),
        cmocka_unit_test(messages),
        cmocka_unit_test(syntax_errors_have_a_place),
        cmocka_unit_test(nothing_follows_from_unread_text),
        cmocka_unit_test(waived),
        cmocka_unit_test(keys_given_twice),
        cmocka_unit_test(all_errors_at_once),
        cmocka_unit_test(many_errors_are_cut),
        cmocka_unit_test(hostile_texts_are_answered_soon),
        cmocka_unit_test(long_lists),
        cmocka_unit_test(endless_files),
        cmocka_unit_test(places),
        cmocka_unit_test(dump_reads_back),
        cmocka_unit_test(dump_keeps_characters),
        cmocka_unit_test(dump_refuses_bytes),
        cmocka_unit_test(flags_are_read),
        cmocka_unit_test(flag_errors),
        cmocka_unit_test(flags_of_other_programs),
        cmocka_unit_test(help_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
