/* cli: where generation ends, and where its prompt comes from. */
#include "cli/cli_test.h"

#include <jansson.h>

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

static json_t *json_of(const char *command)
{
    ax_buf out = {0};
    int code = shell(command, &out);
    json_t *object = json_loads(out.data, 0, NULL);
    if (code || !json_is_object(object))
        fail_msg("%s: exit code %d, printed:\n%s", command, code, out.data);
    ax_buf_fini(&out);
    return object;
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

/* Replaces the value of eos_token_id in a JSON file, which is made if there is none. */
static void set_ends(const char *path, const char *value)
{
    json_t *o = json_load_file(path, 0, NULL), *ends = json_loads(value, JSON_DECODE_ANY, NULL);
    o = o ? o : json_object();
    assert_int_equal(json_object_set_new(o, "eos_token_id", ends), 0);
    assert_int_equal(json_dump_file(o, path, 0), 0);
    json_decref(o);
}

/* generation_config.json counts before config.json; either may have a list. */
static void ends_where_the_model_says(void **state)
{
    (void)state;
    char list[128];
    set_ends("model/config.json", "null");
    json_t *o = json_of(DRAWN), *ids = json_object_get(o, "tokens");
    assert_int_equal(json_array_size(ids), 8);
    /* An id that comes for the first time at its place. */
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
                    "generation_config.json: \"eos_token_id\" must be a token id or a list of them");
    ax_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends_where_the_model_says),
    };
    return cmocka_run_group_tests_name("cli.generate", tests, set_up, tear_down);
}
