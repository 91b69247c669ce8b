/* trace: metrics.jsonl reads back exactly, is truncated on resume and renamed by a new run; progress lines.
 */
#include "trace/trace_test.h"

#include <fcntl.h>
#include <float.h>
#include <locale.h>
#include <math.h>
#include <sys/ioctl.h>

static double number(const json_t *row, const char *key)
{
    const json_t *value = json_object_get(row, key);
    if (!json_is_number(value))
        fail_msg("%s is no number", key);
    return json_number_value(value);
}

static void same_double(double a, double b)
{
    if (memcmp(&a, &b, sizeof a) && !(a == 0 && b == 0))
        fail_msg("%.17g is not %.17g", a, b);
}

/* ---- rows ---------------------------------------------------------------------------------------- */

/* metrics.jsonl has the documented keys, with their types. */
static void rows_have_the_documented_keys(void **state)
{
    ax_metrics_run run = quiet_run(*state);
    ax_metrics *metrics;
    OK(ax_metrics_open(&run, 0, &metrics));
    ax_metrics_step s = a_step(1);
    s.skipped = true;
    OK(ax_metrics_step_add(metrics, &s));
    OK(ax_metrics_eval_add(metrics, 1, 3.25, 1.5, 1000, 0.75));
    OK(ax_metrics_eval_add(metrics, 1, 3.25, -1, 1000, 0.75));
    ax_metrics_close(&metrics);
    assert_null(metrics);

    json_t *rows = read_rows(*state, "metrics.jsonl"), *row = json_array_get(rows, 0);
    assert_int_equal(json_array_size(rows), 4);
    static const char *const texts[] = {"version",   "commit",     "grid",    "device",   "model",
                                        "precision", "grad_dtype", "offload", "peak_from"};
    for (size_t i = 0; i < AX_COUNT(texts); i++)
        assert_true(json_is_string(json_object_get(row, texts[i])));
    same_double(number(row, "peak_flops_per_s"), 1e12);
    assert_null(json_object_get(row, "step"));
    assert_null(json_object_get(row, "resumed_from"));

    row = json_array_get(rows, 1);
    assert_int_equal(json_integer_value(json_object_get(row, "step")), 1);
    assert_int_equal(json_integer_value(json_object_get(row, "tokens")), 4096);
    assert_int_equal(json_integer_value(json_object_get(row, "mem_bytes")), 123456789);
    assert_int_equal(json_integer_value(json_object_get(row, "mem_mean")), 123450000);
    assert_true(json_is_object(json_object_get(row, "comm_bytes")));
    assert_true(json_is_true(json_object_get(row, "skipped")));
    assert_null(json_object_get(row, "dropped")); /* there is no goldfish loss */
    double seconds = s.step_ms * 1e-3;
    same_double(number(row, "loss"), s.loss);
    same_double(number(row, "step_ms"), s.step_ms);
    same_double(number(row, "comm_exposed_ms"), 0.25);
    same_double(number(row, "tokens_per_s"), 4096 / seconds);
    same_double(number(row, "flops_per_s"), 2e11 / seconds);
    same_double(number(row, "hw_flops_per_s"), 2.5e11 / seconds);
    assert_true(fabs(number(row, "mfu") - 2e11 / seconds / 1e12) < 1e-15);

    row = json_array_get(rows, 2);
    same_double(number(row, "eval_loss"), 3.25);
    same_double(number(row, "perplexity"), exp(3.25));
    same_double(number(row, "bits_per_byte"), 1.5);
    assert_null(json_object_get(row, "loss"));
    assert_null(json_object_get(json_array_get(rows, 3), "bits_per_byte"));
    json_decref(rows);
}

static void floats_read_back_exactly(void **state)
{
    enum { N = 4000 };
    static const double odd[] = {
        0.1, 1.0 / 3, 1e22, 1e23, 5e-324, DBL_MAX, DBL_MIN, -0.0, 123456789, 9007199254740993.0, 6e-4, -2.5};
    ax_metrics_run run = quiet_run(*state);
    ax_metrics *metrics;
    double *value = calloc(N, sizeof *value);
    OK(ax_metrics_open(&run, 0, &metrics));
    for (int i = 0; i < N; i++) {
        uint32_t bits[4];
        ax_philox(7, 0, (uint64_t)i, bits);
        memcpy(&value[i], bits, sizeof value[i]);
        if (i < (int)AX_COUNT(odd))
            value[i] = odd[i];
        ax_metrics_step s = a_step(i + 1);
        s.loss = value[i];
        s.grad_norm = (float)(i / 7.0);
        OK(ax_metrics_step_add(metrics, &s));
    }
    ax_metrics_close(&metrics);
    json_t *rows = read_rows(*state, "metrics.jsonl");
    assert_int_equal(json_array_size(rows), N + 1);
    for (int i = 0; i < N; i++) {
        json_t *row = json_array_get(rows, (size_t)i + 1);
        same_double(number(row, "grad_norm"), (float)(i / 7.0));
        if (isfinite(value[i]))
            same_double(number(row, "loss"), value[i]);
        else
            assert_true(json_is_null(json_object_get(row, "loss")));
    }
    json_decref(rows);
    free(value);
}

static void numbers_that_are_not_finite_are_null(void **state)
{
    ax_metrics_run run = quiet_run(*state);
    run.peak_flops = 0; /* unknown: no mfu */
    run.goldfish_k = 4;
    run.expert_capacity = 1.5;
    run.peak_from = NULL;
    ax_metrics *metrics;
    OK(ax_metrics_open(&run, 0, &metrics));
    ax_metrics_step s = a_step(1);
    s.loss = NAN;
    s.dropped = 0.25;
    s.expert_dropped = 0.125;
    s.grad_norm = INFINITY;
    s.step_ms = 0;
    OK(ax_metrics_step_add(metrics, &s));
    OK(ax_metrics_eval_add(metrics, 1, -INFINITY, -1, 0, 0));
    ax_metrics_close(&metrics);
    json_t *rows = read_rows(*state, "metrics.jsonl");
    assert_true(json_is_null(json_object_get(json_array_get(rows, 0), "peak_flops_per_s")));
    assert_true(json_is_null(json_object_get(json_array_get(rows, 0), "peak_from")));
    same_double(number(json_array_get(rows, 0), "goldfish_k"), 4);
    same_double(number(json_array_get(rows, 1), "dropped"), 0.25);
    same_double(number(json_array_get(rows, 1), "expert_dropped"), 0.125);
    static const char *const null[] = {"loss", "grad_norm", "tokens_per_s", "flops_per_s", "mfu"};
    for (size_t i = 0; i < AX_COUNT(null); i++)
        assert_true(json_is_null(json_object_get(json_array_get(rows, 1), null[i])));
    assert_true(json_is_null(json_object_get(json_array_get(rows, 2), "eval_loss")));
    json_decref(rows);
}

/* A host program may have set a locale whose numbers have a comma. */
static void rows_do_not_follow_the_locale(void **state)
{
    if (!setlocale(LC_NUMERIC, "de_DE.UTF-8") && !setlocale(LC_NUMERIC, "fr_FR.UTF-8"))
        skip();
    ax_metrics_run run = quiet_run(*state);
    ax_metrics *metrics;
    OK(ax_metrics_open(&run, 0, &metrics));
    add_steps(metrics, 3, 3);
    ax_metrics_close(&metrics);
    json_t *rows = read_rows(*state, "metrics.jsonl");
    same_double(number(json_array_get(rows, 1), "loss"), a_step(3).loss);
    json_decref(rows);
    setlocale(LC_NUMERIC, "C");
}

/* ---- resuming ------------------------------------------------------------------------------------ */

static void append(const char *path, const char *text)
{
    FILE *file = fopen(path, "a");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* The rows as a word per row: "run", the step, or "eval STEP". */
static void rows_are(const char *dir, const char *expected)
{
    json_t *rows = read_rows(dir, "metrics.jsonl"), *row;
    size_t i;
    char text[1024] = "";
    json_array_foreach(rows, i, row)
    {
        size_t n = strlen(text);
        json_t *step = json_object_get(row, "step");
        if (!step)
            snprintf(text + n, sizeof text - n, "%srun", n ? ", " : "");
        else
            snprintf(text + n, sizeof text - n, "%s%s%lld", n ? ", " : "",
                     json_object_get(row, "eval_loss") ? "eval " : "", json_integer_value(step));
    }
    assert_string_equal(text, expected);
    json_decref(rows);
}

static ax_metrics *open_run(const char *dir, int64_t resume_step)
{
    ax_metrics_run run = quiet_run(dir);
    ax_metrics *metrics;
    OK(ax_metrics_open(&run, resume_step, &metrics));
    return metrics;
}

static void resuming_cuts_later_rows(void **state)
{
    const char *dir = *state;
    ax_metrics *metrics = open_run(dir, 0);
    add_steps(metrics, 1, 2);
    OK(ax_metrics_eval_add(metrics, 2, 3, -1, 1, 1));
    add_steps(metrics, 3, 4);
    OK(ax_metrics_eval_add(metrics, 4, 3, -1, 1, 1));
    add_steps(metrics, 5, 6);
    ax_metrics_close(&metrics);
    append(in(dir, "metrics.jsonl"), "{\"step\": 7, \"lo"); /* an incomplete line, as a kill leaves it */

    metrics = open_run(dir, 4); /* the evaluation at the checkpoint's step stays */
    add_steps(metrics, 5, 7);
    ax_metrics_close(&metrics);
    rows_are(dir, "run, 1, 2, eval 2, 3, 4, eval 4, run, 5, 6, 7");

    metrics = open_run(dir, 3); /* earlier than all steps of the second session: its description goes too */
    ax_metrics_close(&metrics);
    rows_are(dir, "run, 1, 2, eval 2, 3, run");
    json_t *rows = read_rows(dir, "metrics.jsonl");
    assert_int_equal(json_integer_value(json_object_get(json_array_get(rows, 5), "resumed_from")), 3);
    json_decref(rows);

    append(in(dir, "metrics.jsonl"), "\n\nno json\n{\"step\": 4"); /* as a power cut may leave it */
    metrics = open_run(dir, 50); /* a later step than the file has: all complete rows stay */
    ax_metrics_close(&metrics);
    rows_are(dir, "run, 1, 2, eval 2, 3, run");
}

static void resuming_works_without_rows(void **state)
{
    const char *dir = *state;
    ax_metrics *metrics = open_run(dir, 10); /* metrics.jsonl was deleted */
    add_steps(metrics, 11, 11);
    ax_metrics_close(&metrics);
    rows_are(dir, "run, 11");
    metrics = open_run(dir, 5); /* earlier than all its steps: only the description stays */
    ax_metrics_close(&metrics);
    rows_are(dir, "run, run");
    OK(ax_file_write_atomic(in(dir, "metrics.jsonl"), "", 0));
    metrics = open_run(dir, 5);
    ax_metrics_close(&metrics);
    rows_are(dir, "run");
    OK(ax_file_write_atomic(in(dir, "metrics.jsonl"), "{\"ver", 5));
    metrics = open_run(dir, 5);
    ax_metrics_close(&metrics);
    rows_are(dir, "run");
}

/* The time to truncate a long file depends on the rows removed, not on the file: the checkpoint is near its
 * end. */
static void resuming_a_long_run_is_quick(void **state)
{
    enum { ROWS = 100000, REPEAT = 3 };
    ax_metrics *metrics = open_run(*state, 0);
    ax_buf rows = {0};
    for (int i = 1; i <= ROWS; i++)
        OK(ax_buf_printf(&rows, "{\"step\": %d, \"loss\": 3.25, \"padding\": \"%0200d\"}\n", i, 0));
    append(in(*state, "metrics.jsonl"), rows.data);
    ax_buf_fini(&rows);
    ax_metrics_close(&metrics);
    double best = INFINITY;
    for (int i = 0; i < REPEAT; i++) {
        double start = ax_cpu_now();
        metrics = open_run(*state, ROWS - 100 - i);
        best = fmin(best, ax_cpu_now() - start);
        ax_metrics_close(&metrics);
    }
    if (best > 0.25)
        fail_msg("%.3f s", best);
}

static void new_runs_set_old_ones_aside(void **state)
{
    const char *dir = *state;
    for (int i = 1; i <= 3; i++) {
        ax_metrics *metrics = open_run(dir, 0);
        add_steps(metrics, 1, i);
        ax_metrics_close(&metrics);
    }
    static const char *const names[] = {"metrics.jsonl.1", "metrics.jsonl.2", "metrics.jsonl"};
    for (size_t i = 0; i < AX_COUNT(names); i++) {
        json_t *rows = read_rows(dir, names[i]);
        assert_int_equal(json_array_size(rows), i + 2);
        json_decref(rows);
    }
    assert_true(ax_path_is_dir(in(dir, "tb")) && ax_path_is_dir(in(dir, "tb.1")) &&
                ax_path_is_dir(in(dir, "tb.2")));
    assert_false(ax_path_exists(in(dir, "tb.3")));
}

static void opening_fails_with_a_reason(void **state)
{
    ax_metrics_run run = quiet_run(in(*state, "file"));
    ax_metrics *metrics = (ax_metrics *)&run;
    append(run.dir, "x");
    FAILS(AX_ERR_DATA, "file", ax_metrics_open(&run, 0, &metrics));
    assert_null(metrics);
    run = quiet_run(*state);
    run.model = "\xff";
    FAILS(AX_ERR_INTERNAL, "UTF-8", ax_metrics_open(&run, 0, &metrics));
    run = quiet_run(in(*state, "other"));
    OK(ax_mkdirs(in(*state, "other/metrics.jsonl")));
    FAILS(AX_ERR_DATA, "metrics.jsonl", ax_metrics_open(&run, 3, &metrics));
    ax_metrics_close(&metrics);
}

/* ---- the progress line --------------------------------------------------------------------------- */

/* Reports steps 1 to n while stderr is `fd`. */
static void report_to(const char *dir, int fd, int64_t resume_step, int n)
{
    int saved = dup(STDERR_FILENO);
    ax_metrics_run run = quiet_run(dir);
    ax_metrics *metrics;
    run.quiet = false;
    run.steps = 23;
    run.expert_capacity = resume_step; /* only the second session drops choices */
    dup2(fd, STDERR_FILENO);
    ax_status status = ax_metrics_open(&run, resume_step, &metrics);
    for (int64_t i = resume_step + 1; status == AX_OK && i <= n; i++) {
        ax_metrics_step s = a_step(i);
        s.expert_load = i == 20 ? 1.25 : 0;
        s.expert_dropped = 0.0625;
        status = ax_metrics_step_add(metrics, &s);
    }
    ax_metrics_close(&metrics);
    dup2(saved, STDERR_FILENO);
    close(saved);
    OK(status);
}

static void progress_goes_to_a_file_at_intervals(void **state)
{
    const char *log = in(*state, "log");
    int fd = open(log, O_CREAT | O_RDWR, 0600);
    report_to(*state, fd, 0, 23);
    report_to(*state, fd, 17, 19);
    close(fd);
    char *text;
    size_t size;
    OK(ax_file_read(log, &text, &size));
    assert_null(strchr(text, '\r'));
    int64_t steps[8] = {0};
    size_t n = 0;
    for (char *line = text; n < AX_COUNT(steps) && sscanf(line, "step %ld/23 | ", &steps[n]) == 1; n++)
        line = strchr(line, '\n') + 1;
    static const int64_t expected[8] = {1, 10, 20, 23, 18}; /* the first of each session too */
    assert_memory_equal(steps, expected, sizeof steps);
    assert_non_null(strstr(text, " | expert load 1.25\n")); /* of a model with experts */
    assert_non_null(strstr(text, " | 6.2% without place\n"));
    const char *first =
        "step 1/23 | loss 5.0000 | gnorm 0.100 | lr 3.00e-04 | 400 ms | 10k tok/s | MFU 50.0% | "
        "mem 117.7 MiB | eta 8.8 s\n";
    text[strlen(first)] = 0;
    assert_string_equal(text, first);
    free(text);
}

/* Stores the text that a terminal of `columns` columns gets for ten steps. */
static void terminal_text(const char *dir, unsigned short columns, char *text, size_t size)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY), slave;
    assert_true(master >= 0 && !grantpt(master) && !unlockpt(master));
    slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    assert_true(slave >= 0);
    struct winsize window = {.ws_row = 24, .ws_col = columns};
    assert_int_equal(ioctl(slave, TIOCSWINSZ, &window), 0);
    report_to(dir, slave, 0, 10);
    close(slave);
    size_t used = 0;
    for (ssize_t n; used < size - 1 && (n = read(master, text + used, size - 1 - used)) > 0;)
        used += (size_t)n;
    text[used] = 0;
    close(master);
}

static void lines_fit_the_terminal(void **state)
{
    for (unsigned short columns = 2; columns < 130; columns = (unsigned short)(columns + 9)) {
        char text[8192];
        int lines = 0;
        terminal_text(*state, columns, text, sizeof text);
        char *save;
        for (char *line = strtok_r(text, "\r\n", &save); line; line = strtok_r(NULL, "\r\n", &save)) {
            assert_memory_equal(line, "\033[K", 3);
            if (strlen(line + 3) >= columns)
                fail_msg("%u columns: %s", columns, line + 3);
            if (columns > 20 && strncmp(line + 3, "step ", 5) != 0)
                fail_msg("%u columns: %s", columns, line + 3);
            if (line[3] && line[strlen(line) - 1] == '|')
                fail_msg("%u columns: %s", columns, line + 3);
            lines++;
        }
        assert_int_equal(lines, 10);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_setup, scratch_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(rows_have_the_documented_keys),
        TEST(floats_read_back_exactly),
        TEST(numbers_that_are_not_finite_are_null),
        TEST(rows_do_not_follow_the_locale),
        TEST(resuming_cuts_later_rows),
        TEST(resuming_works_without_rows),
        TEST(resuming_a_long_run_is_quick),
        TEST(new_runs_set_old_ones_aside),
        TEST(opening_fails_with_a_reason),
        TEST(progress_goes_to_a_file_at_intervals),
        TEST(lines_fit_the_terminal),
    };
    return cmocka_run_group_tests_name("metrics", tests, NULL, NULL);
}
