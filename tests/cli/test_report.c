/* cli: axonn report. */
#include "cli/cli_test.h"

#include <jansson.h>

static char dir[] = "/tmp/axonn-report-XXXXXX";

static void write_run(const char *name, double loss)
{
    char path[256], text[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(ax_mkdirs(path), AX_OK);
    snprintf(path, sizeof path, "%s/%s/metrics.jsonl", dir, name);
    snprintf(text, sizeof text,
             "{\"version\": \"1\"}\n{\"step\": 1, \"loss\": 9}\n{\"step\": 2, \"loss\": %g}\n"
             "{\"step\": 2, \"eval_loss\": 4.5}\n",
             loss);
    assert_int_equal(ax_file_write_atomic(path, text, strlen(text)), AX_OK);
}

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(dir))
        return -1;
    write_run("a", 4.25);
    write_run("sub/a", 3.75);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return ax_remove_tree(dir) == AX_OK ? 0 : -1;
}

static int report(const char *arguments, ax_buf *out)
{
    char command[1024];
    snprintf(command, sizeof command, "cd %s && " AXONN " report %s", dir, arguments);
    return shell(command, out);
}

static void read_output(const char *name, ax_buf *out)
{
    char command[256];
    snprintf(command, sizeof command, "cat %s/%s", dir, name);
    assert_int_equal(shell(command, out), 0);
}

static void report_writes_pages_and_pictures(void **state)
{
    (void)state;
    ax_buf out = {0};
    assert_int_equal(report("a", &out), 0);
    assert_string_equal(out.data, "a/report.html\n");
    read_output("a/report.html", &out);
    assert_contains(out.data, "<!DOCTYPE html>");
    assert_contains(out.data, "<td>4.2500</td><td>4.5000</td>");

    assert_int_equal(report("a sub/a --out both.SVG", &out), 0);
    read_output("both.SVG", &out);
    assert_contains(out.data, "<?xml");
    assert_contains(out.data, ">sub/a<"); /* equal names are replaced by paths */
    assert_contains(out.data, ">2 runs<");
    ax_buf_fini(&out);
}

static void json_output(void **state)
{
    (void)state;
    ax_buf out = {0};
    assert_int_equal(report("a sub/a --out x.html --json 2>/dev/null", &out), 0);
    json_t *json = json_loads(out.data, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(json, "out")), "x.html");
    assert_string_equal(json_string_value(json_object_get(json, "format")), "html");
    json_t *run = json_array_get(json_object_get(json, "runs"), 1);
    assert_string_equal(json_string_value(json_object_get(run, "run")), "sub/a");
    assert_int_equal(json_integer_value(json_object_get(run, "step")), 2);
    assert_true(json_real_value(json_object_get(run, "loss")) == 3.75);
    assert_true(json_real_value(json_object_get(run, "eval_loss")) == 4.5);
    json_decref(json);
    ax_buf_fini(&out);
}

static void mistakes_are_errors(void **state)
{
    (void)state;
    ax_buf out = {0};
    assert_int_equal(report("2>&1", &out), 2);
    assert_contains(out.data, "RUN: required");
    assert_int_equal(report("a --out loss.png 2>&1", &out), 2);
    assert_contains(out.data, "must end in .html or .svg");
    assert_int_equal(report("a --x hours 2>&1", &out), 2);
    assert_contains(out.data, "step, tokens or time");
    assert_int_equal(report("a --x time --out x.svg 2>&1", &out), 4);
    assert_contains(out.data, "a/metrics.jsonl:2: no number \"step_ms\"");
    assert_int_equal(report("a --x tokens --out x.svg 2>&1", &out), 4);
    assert_contains(out.data, "a/metrics.jsonl:2: no number \"tokens\"");
    assert_int_equal(report("nothing --json 2>/dev/null", &out), 4);
    assert_string_equal(out.data, "");
    assert_int_equal(report("a --out no/such/x.svg 2>&1", &out), 4);
    assert_contains(out.data, "no/such/x.svg");
    ax_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(report_writes_pages_and_pictures),
        cmocka_unit_test(json_output),
        cmocka_unit_test(mistakes_are_errors),
    };
    return cmocka_run_group_tests_name("report", tests, setup, teardown);
}
