/* base: runtime settings — which value counts, which are refused, and how a verb's arguments give them. */
#include "axonn/runtime.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char *value_of(ax_runtime_id id)
{
    const char *value;
    assert_int_equal(ax_runtime_get(id, &value), AX_OK);
    return value;
}

static void assert_message(const char *part)
{
    if (!strstr(ax_error_message(), part))
        assert_string_equal(ax_error_message(), part);
}

/* Each row: the key and the variable have the same name, and the default is allowed. */
static void the_table_is_whole(void **state)
{
    (void)state;
    for (int id = 0; id < AX_RUNTIME_COUNT; id++) {
        const ax_option *row = &ax_runtime_options[id];
        assert_memory_equal(row->key, "runtime.", 8);
        assert_memory_equal(row->variable, "AXONN_", 6);
        assert_int_equal(strcasecmp(row->key + 8, row->variable + 6), 0);
        unsetenv(row->variable);
        assert_string_equal(value_of((ax_runtime_id)id), row->preset);
        assert_int_equal(ax_runtime_set((ax_runtime_id)id, row->preset), AX_OK);
        assert_int_equal(ax_runtime_set((ax_runtime_id)id, NULL), AX_OK);
    }
}

static void a_key_wins_over_its_variable(void **state)
{
    (void)state;
    assert_string_equal(value_of(AX_RUNTIME_ISA), "auto");
    assert_string_equal(ax_runtime_source(AX_RUNTIME_ISA), "runtime.isa");
    setenv("AXONN_ISA", "avx2", 1);
    assert_string_equal(value_of(AX_RUNTIME_ISA), "avx2");
    assert_string_equal(ax_runtime_source(AX_RUNTIME_ISA), "AXONN_ISA");
    assert_int_equal(ax_runtime_set(AX_RUNTIME_ISA, "generic"), AX_OK);
    assert_string_equal(value_of(AX_RUNTIME_ISA), "generic");
    assert_string_equal(ax_runtime_source(AX_RUNTIME_ISA), "runtime.isa");
    assert_int_equal(ax_runtime_set(AX_RUNTIME_ISA, NULL), AX_OK);
    assert_string_equal(value_of(AX_RUNTIME_ISA), "avx2");
    setenv("AXONN_ISA", "", 1); /* as if it were not set */
    assert_string_equal(value_of(AX_RUNTIME_ISA), "auto");
    unsetenv("AXONN_ISA");
}

/* A message names the key or the variable that gave the value, and what is allowed. */
static void wrong_values_are_refused(void **state)
{
    (void)state;
    const char *value;
    assert_int_equal(ax_runtime_set(AX_RUNTIME_GRAPHS, "yes"), AX_ERR_USAGE);
    assert_message("runtime.graphs: must be on or off, not \"yes\"");
    assert_int_equal(ax_runtime_set(AX_RUNTIME_RANKS_PER_NODE, "two"), AX_ERR_USAGE);
    assert_message("runtime.ranks_per_node: must be an integer");
    assert_string_equal(value_of(AX_RUNTIME_GRAPHS), "on");
    setenv("AXONN_PIN", "sometimes", 1);
    assert_int_equal(ax_runtime_get(AX_RUNTIME_PIN, &value), AX_ERR_USAGE);
    assert_message("AXONN_PIN: must be auto or off, not \"sometimes\"");
    assert_int_equal(ax_runtime_check(), AX_ERR_USAGE);
    assert_message("AXONN_PIN: must be auto or off");
    assert_int_equal(ax_runtime_set(AX_RUNTIME_PIN, "off"), AX_OK); /* the variable is not used any more */
    assert_int_equal(ax_runtime_check(), AX_OK);
    assert_int_equal(ax_runtime_set(AX_RUNTIME_PIN, NULL), AX_OK);
    unsetenv("AXONN_PIN");
}

static void what_is_used_once_stays(void **state)
{
    (void)state;
    const char *value;
    assert_int_equal(ax_runtime_set(AX_RUNTIME_PLUGINS, "/one"), AX_OK);
    assert_int_equal(ax_runtime_set(AX_RUNTIME_PLUGINS, "/two"), AX_OK);
    assert_int_equal(ax_runtime_fix(AX_RUNTIME_PLUGINS, &value), AX_OK);
    assert_string_equal(value, "/two");
    assert_int_equal(ax_runtime_set(AX_RUNTIME_PLUGINS, "/two"), AX_OK);
    assert_int_equal(ax_runtime_set(AX_RUNTIME_PLUGINS, "/three"), AX_ERR_USAGE);
    assert_message("runtime.plugins: this process already uses \"/two\"");
    assert_string_equal(value_of(AX_RUNTIME_PLUGINS), "/two");
}

/* A value that is only preferred gives way, others are an error. */
static void a_preferred_value_may_be_replaced(void **state)
{
    (void)state;
    assert_int_equal(ax_runtime_prefer(AX_RUNTIME_ISA, "avx512"), AX_OK);
    assert_string_equal(value_of(AX_RUNTIME_ISA), "avx512");
    assert_int_equal(ax_runtime_unavailable(AX_RUNTIME_ISA, "avx512", "avx2", "which is a test"), AX_OK);
    assert_string_equal(value_of(AX_RUNTIME_ISA), "avx2");
    assert_int_equal(ax_runtime_unavailable(AX_RUNTIME_ISA, "avx2", "generic", "which is a test"),
                     AX_ERR_USAGE);
    assert_message("runtime.isa is \"avx2\", which is a test");
    assert_int_equal(ax_runtime_prefer(AX_RUNTIME_ISA, "avx9"), AX_OK); /* of a later version */
    assert_string_equal(value_of(AX_RUNTIME_ISA), "avx2");
    assert_int_equal(ax_runtime_set(AX_RUNTIME_ISA, NULL), AX_OK);
    setenv("AXONN_ISA", "avx512", 1);
    assert_int_equal(ax_runtime_unavailable(AX_RUNTIME_ISA, "avx512", "avx2", "which is a test"),
                     AX_ERR_USAGE);
    assert_message("AXONN_ISA is \"avx512\", which is a test");
    unsetenv("AXONN_ISA");
}

/* The log's level follows its setting at once. */
static void the_level_of_the_log_is_set(void **state)
{
    (void)state;
    int pipes[2], kept = dup(STDERR_FILENO);
    char text[256] = "";
    assert_int_equal(pipe(pipes), 0);
    dup2(pipes[1], STDERR_FILENO);
    assert_int_equal(ax_runtime_set(AX_RUNTIME_LOG, "warn"), AX_OK);
    ax_log(AX_LOG_DEBUG, "one");
    assert_int_equal(ax_runtime_set(AX_RUNTIME_LOG, "debug"), AX_OK);
    ax_log(AX_LOG_DEBUG, "two");
    assert_int_equal(ax_runtime_set(AX_RUNTIME_LOG, NULL), AX_OK);
    ax_log(AX_LOG_DEBUG, "three");
    dup2(kept, STDERR_FILENO);
    assert_true(read(pipes[0], text, sizeof text - 1) > 0);
    assert_string_equal(text, "axonn: debug: two\n");
    close(pipes[0]);
    close(pipes[1]);
    close(kept);
}

/* ---- arguments of a verb ------------------------------------------------------------------------- */

typedef struct args {
    char *name, *text;
    ax_strings inputs;
    int64_t n;
} args;

static const ax_option rows[] = {
    {"NAME", AX_OPT_STRING, offsetof(args, name), .required = true, .help = "a name"},
    {"input", AX_OPT_STRINGS, offsetof(args, inputs), .help = "inputs"},
    {"text", AX_OPT_STRING, offsetof(args, text), .help = "a text"},
    {"n", AX_OPT_INT, offsetof(args, n), "0", .help = "a number"},
};

/* Reads `words`, separated by blanks, into *a, and the runtime keys among them into the settings. */
static ax_status read_words(const char *words, args *a)
{
    char copy[256], *list[16], *rest = NULL;
    size_t n = 0;
    ax_runtime_values values;
    ax_option_set *set, *keys;
    strcpy(copy, words);
    for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        list[n++] = word;
    assert_int_equal(ax_option_set_create(rows, AX_COUNT(rows), a, &set), AX_OK);
    assert_int_equal(ax_option_set_create(ax_runtime_options, AX_RUNTIME_COUNT, &values, &keys), AX_OK);
    ax_option_take_keys(set, keys);
    assert_int_equal(ax_option_read_flags(set, n, list), AX_OK);
    ax_status status = ax_option_finish(set);
    if (status == AX_OK)
        status = ax_option_finish(keys);
    if (status == AX_OK)
        status = ax_runtime_set_given(keys);
    ax_option_set_destroy(&set);
    ax_option_set_destroy(&keys);
    ax_option_fini(ax_runtime_options, AX_RUNTIME_COUNT, &values);
    return status;
}

static void keys_may_stand_anywhere(void **state)
{
    (void)state;
    args a;
    assert_int_equal(read_words("runtime.isa=avx2 --input x y runtime.pin=off them --n 3 "
                                "runtime.ranks_per_node=2 --text runtime.graphs=off runtime.nccl=lib",
                                &a),
                     AX_OK);
    assert_string_equal(a.name, "them");
    assert_int_equal(a.inputs.count, 2);
    assert_int_equal(a.n, 3);
    assert_string_equal(a.text, "runtime.graphs=off"); /* the value of a flag */
    assert_string_equal(value_of(AX_RUNTIME_ISA), "avx2");
    assert_string_equal(value_of(AX_RUNTIME_PIN), "off");
    assert_string_equal(value_of(AX_RUNTIME_RANKS_PER_NODE), "2");
    assert_string_equal(value_of(AX_RUNTIME_GRAPHS), "on");
    char *here = getcwd(NULL, 0);
    assert_memory_equal(value_of(AX_RUNTIME_NCCL), here, strlen(here)); /* a path */
    free(here);
    ax_option_fini(rows, AX_COUNT(rows), &a);

    assert_int_equal(read_words("-- runtime.graphs=off", &a), AX_OK);
    assert_string_equal(a.name, "runtime.graphs=off");
    assert_string_equal(value_of(AX_RUNTIME_GRAPHS), "on");
    ax_option_fini(rows, AX_COUNT(rows), &a);

    assert_int_equal(read_words("x runtime.isa=mmx", &a), AX_ERR_USAGE);
    assert_message(
        "runtime.isa: must be auto, avx512_amx, avx512_bf16, avx512, avx2 or generic, not \"mmx\"");
    ax_option_fini(rows, AX_COUNT(rows), &a);
    assert_int_equal(read_words("x runtime.iso=avx2", &a), AX_ERR_USAGE);
    assert_message("runtime.iso: unknown key; did you mean runtime.isa?");
    ax_option_fini(rows, AX_COUNT(rows), &a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_is_whole),
        cmocka_unit_test(a_key_wins_over_its_variable),
        cmocka_unit_test(wrong_values_are_refused),
        cmocka_unit_test(what_is_used_once_stays),
        cmocka_unit_test(a_preferred_value_may_be_replaced),
        cmocka_unit_test(the_level_of_the_log_is_set),
        cmocka_unit_test(keys_may_stand_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
