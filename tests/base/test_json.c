/* json: numbers of any size can be read, and are printed digit for digit; invalid JSON is refused. */
#include "axonn/json.h"

#include <float.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static json_t *parse(const char *text)
{
    json_t *root;
    ax_status status = ax_json_parse("t.json", text, strlen(text), 0, &root);
    if (status != AX_OK)
        fail_msg("%s: %s", text, ax_error_message());
    return root;
}

static void numbers_of_any_size_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double value;
        bool integer;
    } cases[] = {{"9223372036854775807", 0x1p63, true},
                 {"-9223372036854775808", -0x1p63, true},
                 {"9223372036854775808", 0x1p63, false},
                 {"-9223372036854775809", -0x1p63, false},
                 {"1000000000000000019884624838656", 1e30, false},
                 {"1e999", DBL_MAX, false},
                 {"-1.5E+4000", -DBL_MAX, false},
                 {"1e-999", 0, false},
                 {"Infinity", DBL_MAX, false},
                 {"-Infinity", -DBL_MAX, false},
                 {"0.1", 0.1, false}};
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        char text[128];
        snprintf(text, sizeof text, "{\"a\": \"1e999, \\\" NaN\", \"b\": [%s], \"c\": 3}", cases[i].text);
        json_t *root = parse(text), *value = json_array_get(json_object_get(root, "b"), 0);
        assert_true(json_number_value(value) == cases[i].value);
        assert_int_equal(json_is_integer(value), cases[i].integer);
        assert_int_equal(json_integer_value(json_object_get(root, "c")), 3);
        assert_string_equal(json_string_value(json_object_get(root, "a")), "1e999, \" NaN");
        json_decref(root);
    }
    char digits[1000];
    memset(digits, '7', sizeof digits);
    memcpy(digits, "[-", 2);
    memcpy(digits + sizeof digits - 2, "]", 2);
    json_t *root = parse(digits);
    assert_true(json_real_value(json_array_get(root, 0)) == -DBL_MAX);
    json_decref(root);
    root = parse("{\"a\": NaN, \"b\": -Infinity}");
    assert_true(json_is_null(json_object_get(root, "a")));
    json_decref(root);
}

static void digits_come_back(void **state)
{
    (void)state;
    static const char text[] =
        "{\"a\": 1000000000000000019884624838656, \"b\": [1e-05, 0.10, 1E+3, -0, 0.30000000000000004], "
        "\"c\": {\"d\": NaN, \"e\": -Infinity}, \"f\": \"\\\"NaN\\\\\", \"g\": 12, \"h\": 1e999, \"1e5\": "
        "true}";
    json_t *root;
    ax_buf out = {0};
    assert_int_equal(ax_json_parse_verbatim("t.json", text, strlen(text), &root), AX_OK);
    assert_int_equal(json_integer_value(json_object_get(root, "g")), 12);
    assert_int_equal(ax_json_print(root, 0, &out), AX_OK);
    assert_string_equal(out.data, text);
    json_decref(root);
    ax_buf_fini(&out);
}

/* Reals are printed as Python prints them: with the fewest digits that read back as the same value. */
static void reals_are_short(void **state)
{
    (void)state;
    static const double values[] = {1e-5, 0.02, 0.1, 1, -0.0, 1e30, 0.30000000000000004, DBL_MAX};
    json_t *list = json_array();
    ax_buf out = {0};
    for (size_t i = 0; i < AX_COUNT(values); i++)
        json_array_append_new(list, json_real(values[i]));
    json_array_append_new(list, json_string("1.0000000000000001e-5"));
    assert_int_equal(ax_json_print(list, 0, &out), AX_OK);
    assert_string_equal(out.data, "[1e-05, 0.02, 0.1, 1.0, -0.0, 1e+30, 0.30000000000000004, "
                                  "1.7976931348623157e+308, \"1.0000000000000001e-5\"]");
    json_decref(list);
    ax_buf_fini(&out);
}

/* A long run of digits that is not a number is scanned once, not again from each of its digits. */
static void digits_take_linear_time(void **state)
{
    (void)state;
    enum { SIZE = 1 << 20 };
    static const char *const ends[] = {"", "e", "."};
    char *text = malloc(SIZE + 2);
    assert_non_null(text);
    for (size_t i = 0; i < 2 * AX_COUNT(ends); i++) {
        json_t *root;
        memset(text, i % 2 ? '0' : '1', SIZE);
        strcpy(text + SIZE, ends[i / 2]);
        double start = ax_cpu_now();
        ax_status status = ax_json_parse("t.json", text, strlen(text), JSON_DECODE_ANY, &root);
        if (status == AX_OK)
            json_decref(root);
        assert_true(ax_cpu_now() - start < 5);
    }
    free(text);
}

static void what_is_no_json_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "{\n\"a\": 01}",
                                      "{\"a\": 1.}",
                                      "{\"a\": .5}",
                                      "{\"a\": +1}",
                                      "{\"a\": -}",
                                      "{\"a\": 1e}",
                                      "{\"a\": nan}",
                                      "{\"a\": inf",
                                      "{\"a\": -NaN}",
                                      "[1e999",
                                      "[NaN, Infinity",
                                      "\"open",
                                      "\"\\",
                                      "{\"a\": NaNN}",
                                      "{\"a\": 1e999.5}",
                                      "[12 345]",
                                      "[99999999999999999999 1]",
                                      "{NaN: 1}",
                                      "[I, N, -]"};
    for (size_t i = 0; i < AX_COUNT(bad); i++) {
        json_t *root;
        char *tight; /* without a terminator, so that the sanitizer sees a read beyond the end */
        assert_int_equal(ax_calloc(1, strlen(bad[i]) + !*bad[i], &tight), AX_OK);
        memcpy(tight, bad[i], strlen(bad[i]));
        assert_int_equal(ax_json_parse("t.json", tight, strlen(bad[i]), 0, &root), AX_ERR_DATA);
        assert_null(root);
        assert_non_null(strstr(ax_error_message(), "t.json:"));
        assert_non_null(strstr(ax_error_message(), ": not valid JSON: "));
        assert_int_equal(ax_json_parse_verbatim("t.json", tight, strlen(bad[i]), &root), AX_ERR_DATA);
        assert_null(root);
        free(tight);
    }
    json_t *root;
    static const char twice[] = "{\"a\": 1e999,\n\"a\": 2}";
    assert_int_equal(ax_json_parse(NULL, twice, strlen(twice), JSON_REJECT_DUPLICATES, &root), AX_ERR_DATA);
    assert_non_null(strstr(ax_error_message(), "(line 2 of the text, column 1)"));
    assert_int_equal(ax_json_read_file("no/such.json", 0, &root), AX_ERR_DATA);
    assert_non_null(strstr(ax_error_message(), "no/such.json"));
}

/* Places refer to the original text, although numbers were rewritten, and for a part of a file to the file.
 */
static void errors_name_line_and_column(void **state)
{
    (void)state;
    static const struct {
        const char *text, *said;
    } cases[] = {{"{\"a\": 1,\n \"b\": 2,, \"c\": 3}", "t.json:2:9: not valid JSON: string or '}' expected"},
                 {"{\"a\": NaN, \"b\": 1e999, \"ä\": tru}", "t.json:1:29: not valid JSON: invalid token"},
                 {"{\"a\": 12345678901234567890, \"b\" 7}", "t.json:1:33: not valid JSON: ':' expected"},
                 {"{\"a\": 1\n", "t.json:2:1: not valid JSON: '}' expected near end of file"},
                 {"{\"a\":\n  \"a text of more than twenty bytes", "t.json:2:3: "},
                 {"{\"n\": 1,\n  \"a\": \"x\\u0000\"}",
                  "t.json:2:8: not valid JSON: the character \\u0000 is not allowed in strings here"}};
    json_t *root;
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        assert_int_equal(ax_json_parse("t.json", cases[i].text, strlen(cases[i].text), 0, &root),
                         AX_ERR_DATA);
        if (!strstr(ax_error_message(), cases[i].said))
            assert_string_equal(ax_error_message(), cases[i].said);
    }
    ax_json_place place = {"whole.json", 7, 5};
    assert_int_equal(ax_json_parse_at(&place, "[1 2]", 5, 0, &root), AX_ERR_DATA);
    assert_non_null(strstr(ax_error_message(), "whole.json:7:8: "));
    assert_int_equal(ax_json_parse_at(&place, "[1\n2]", 5, 0, &root), AX_ERR_DATA);
    assert_non_null(strstr(ax_error_message(), "whole.json:8:1: "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_of_any_size_are_read),
        cmocka_unit_test(digits_come_back),
        cmocka_unit_test(reals_are_short),
        cmocka_unit_test(digits_take_linear_time),
        cmocka_unit_test(what_is_no_json_is_refused),
        cmocka_unit_test(errors_name_line_and_column),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
