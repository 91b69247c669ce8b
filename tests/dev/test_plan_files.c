/* Files of plans of GEMMs, without a GPU: those of the user's cache and of a run, the plans that a run takes
 * over from a checkpoint, damaged files, and the time for timing. tests/dev/test_plans.c has the timing
 * itself. */
#include "dev/cuda/plans.h"

#include "axonn/dev.h"
#include "axonn/runtime.h"
#include "support/check.h"

#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define FOLDER AXONN_BUILD_DIR "/test-plan-files"
#define CACHE FOLDER "/cache"
#define RUN FOLDER "/run"
#define CHECKPOINT FOLDER "/checkpoint"
#define LOG FOLDER "/log"

static const char kind[] = "a GPU, its library";

/* ---- helpers ------------------------------------------------------------------------------------- */

static int begin(void **state)
{
    (void)state;
    setenv("AXONN_PLANS", CACHE, 1);
    unsetenv("AXONN_PLAN_SECONDS");
    return ax_remove_tree(FOLDER) != AX_OK || ax_mkdirs(RUN) != AX_OK || ax_mkdirs(CHECKPOINT) != AX_OK;
}

static char *text_of(const char *path)
{
    char *text;
    size_t size;
    OK(ax_file_read(path, &text, &size));
    return text;
}

/* From catch_log on, the log goes to a file. caught_log ends that, and returns the text; the caller frees it.
 */
static int catch_log(void)
{
    int before = dup(STDERR_FILENO), fd = open(LOG, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    assert_true(before >= 0 && fd >= 0 && dup2(fd, STDERR_FILENO) >= 0);
    close(fd);
    return before;
}

static char *caught_log(int before)
{
    dup2(before, STDERR_FILENO);
    close(before);
    return text_of(LOG);
}

/* Opens plans. *said is set to what the log says meanwhile; the caller frees it. */
static ax_cuda_plans *open_saying(const char *of, const char *dir, const char *from, char **said)
{
    ax_cuda_plans *plans;
    int before = catch_log();
    ax_status status = ax_cuda_plans_open(of, dir, from, 0, &plans);
    *said = caught_log(before);
    assert_int_equal(status, AX_OK);
    return plans;
}

static ax_cuda_plans *open_plans(const char *dir, const char *from)
{
    char *said;
    ax_cuda_plans *plans = open_saying(kind, dir, from, &said);
    assert_non_null(plans);
    free(said);
    return plans;
}

static void add(ax_cuda_plans *plans, int64_t m, uint64_t algo, bool timed)
{
    ax_cuda_plans_add(plans, &(ax_cuda_plan_key){.m = m}, (uint64_t[AX_CUDA_PLAN_WORDS]){algo, 7}, timed,
                      false);
}

/* Returns the algorithm of the GEMM with `m` rows, 0 if there is none. */
static uint64_t algo_of(ax_cuda_plans *plans, int64_t m)
{
    const uint64_t *algo = ax_cuda_plans_find(plans, &(ax_cuda_plan_key){.m = m});
    assert_true(!algo || algo[1] == 7);
    return algo ? algo[0] : 0;
}

/* Expects the algorithm of the GEMM with `m` rows in plans that are opened for that. */
static void expect(const char *dir, int64_t m, uint64_t algo)
{
    ax_cuda_plans *plans = open_plans(dir, NULL);
    assert_int_equal(algo_of(plans, m), algo);
    ax_cuda_plans_close(&plans);
}

/* Makes a file of plans in `dir`, as a run would that uses no other: the GEMM with m rows has algorithm m. */
static void make_file(const char *dir, const char *of, int n)
{
    char *said;
    setenv("AXONN_PLANS", FOLDER "/unused", 1);
    ax_cuda_plans *plans = open_saying(of, dir, NULL, &said);
    for (int m = 1; m <= n; m++)
        add(plans, m, (uint64_t)m, false);
    ax_cuda_plans_close(&plans);
    setenv("AXONN_PLANS", CACHE, 1);
    free(said);
}

static void expect_text(const char *text, const char *part)
{
    if (!strstr(text, part))
        assert_string_equal(text, part);
}

/* ---- the user's cache and a run ------------------------------------------------------------------ */

/* The run's file gets the plans that the run uses, and no others. */
static void a_run_keeps_what_it_uses(void **state)
{
    (void)state;
    ax_cuda_plans *plans = open_plans(NULL, NULL);
    add(plans, 1, 11, true);
    add(plans, 2, 12, true);
    ax_cuda_plans_close(&plans);
    plans = open_plans(RUN, NULL);
    assert_int_equal(algo_of(plans, 1), 11);
    add(plans, 3, 13, true);
    ax_cuda_plans_close(&plans);
    expect(NULL, 3, 13);
    setenv("AXONN_PLANS", FOLDER "/empty", 1);
    expect(RUN, 1, 11);
    expect(RUN, 2, 0);
    expect(RUN, 3, 13);
}

/* If two processes choose at the same time, both use what was written first. */
static void the_first_choice_counts(void **state)
{
    (void)state;
    ax_cuda_plans *a = open_plans(RUN, NULL), *b = open_plans(RUN, NULL);
    add(a, 1, 21, true);
    add(b, 1, 22, true);
    assert_int_equal(algo_of(b, 1), 21);
    ax_cuda_plans_close(&b);
    setenv("AXONN_PLANS", FOLDER "/other", 1); /* a rank of another machine, which has a plan of its own */
    b = open_plans(NULL, NULL);
    add(b, 1, 23, true);
    add(b, 2, 24, true);
    ax_cuda_plans_close(&b);
    b = open_plans(RUN, NULL);
    assert_int_equal(algo_of(b, 1), 21);
    add(a, 2, 25, true);
    assert_int_equal(algo_of(b, 2), 25);
    ax_cuda_plans_close(&a);
    ax_cuda_plans_close(&b);
}

static void an_algorithm_that_does_not_work_is_replaced(void **state)
{
    (void)state;
    ax_cuda_plans *plans = open_plans(RUN, NULL);
    add(plans, 1, 31, true);
    ax_cuda_plans_add(plans, &(ax_cuda_plan_key){.m = 1}, (uint64_t[AX_CUDA_PLAN_WORDS]){32, 7}, true, true);
    assert_int_equal(algo_of(plans, 1), 32);
    ax_cuda_plans_close(&plans);
    expect(RUN, 1, 32);
    expect(NULL, 1, 32);
}

/* What was not timed, for lack of time, holds for this run only. */
static void untimed_plans_stay_in_their_run(void **state)
{
    (void)state;
    ax_cuda_plans *plans = open_plans(RUN, NULL);
    add(plans, 1, 41, false);
    assert_int_equal(algo_of(plans, 1), 41);
    ax_cuda_plans_close(&plans);
    expect(NULL, 1, 0);
    expect(RUN, 1, 41);
}

static void there_must_be_a_place(void **state)
{
    (void)state;
    char *said;
    setenv("AXONN_PLANS", "off", 1);
    assert_null(open_saying(kind, RUN, CHECKPOINT, &said));
    assert_string_equal(said, "");
    free(said);
    unsetenv("AXONN_PLANS");
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    assert_null(open_saying(kind, NULL, NULL, &said));
    free(said);
    ax_cuda_plans *plans = open_plans(RUN, NULL);
    add(plans, 1, 51, true);
    ax_cuda_plans_close(&plans);
    expect(RUN, 1, 51);
}

static void a_run_says_what_it_knows(void **state)
{
    (void)state;
    char *said;
    make_file(RUN, kind, 3);
    make_file(RUN, "another GPU", 2);
    make_file(CACHE, kind, 4);
    setenv("AXONN_PLAN_SECONDS", "5", 1);
    ax_cuda_plans *plans = open_saying(kind, RUN, NULL, &said);
    assert_string_equal(said,
                        "plans of GEMMs: 3 in " RUN "/plans.txt, 4 in " CACHE
                        "/plans.txt; timing others on the GPU takes at most 5 s (runtime.plan_seconds)\n");
    ax_cuda_plans_close(&plans);
    free(said);
    plans = open_saying(kind, NULL, NULL, &said);
    assert_string_equal(said, "");
    ax_cuda_plans_close(&plans);
    free(said);
}

/* ---- plans of a checkpoint ----------------------------------------------------------------------- */

static void a_checkpoint_has_priority(void **state)
{
    (void)state;
    make_file(CHECKPOINT, kind, 3);
    ax_cuda_plans *plans = open_plans(RUN, NULL);
    add(plans, 1, 61, true);
    add(plans, 4, 64, true);
    ax_cuda_plans_close(&plans);
    char *before = text_of(CHECKPOINT "/plans.txt");
    OK(ax_remove_tree(CHECKPOINT "/plans.lock"));
    for (int again = 0; again < 2; again++) {
        plans = open_plans(RUN, again ? NULL : CHECKPOINT);
        for (int64_t m = 1; m <= 3; m++)
            assert_int_equal(algo_of(plans, m), m);
        assert_int_equal(algo_of(plans, 4), 64);
        ax_cuda_plans_close(&plans);
    }
    char *after = text_of(CHECKPOINT "/plans.txt");
    assert_string_equal(before, after);
    assert_false(ax_path_exists(CHECKPOINT "/plans.lock"));
    free(before);
    free(after);
}

/* A run whose directory cannot be written uses the checkpoint's plans all the same. */
static void a_checkpoint_counts_if_the_run_cannot_write(void **state)
{
    (void)state;
    char *said;
    make_file(CHECKPOINT, kind, 3);
    OK(ax_mkdirs(RUN "/plans.lock")); /* a directory: it cannot be opened as the lock */
    ax_cuda_plans *plans = open_saying(kind, RUN, CHECKPOINT, &said);
    expect_text(said, "warning: plans of GEMMs are not kept: cannot open the lock file " RUN "/plans.lock");
    free(said);
    for (int64_t m = 1; m <= 3; m++)
        assert_int_equal(algo_of(plans, m), m);
    ax_cuda_plans_close(&plans);
    OK(ax_remove_tree(RUN "/plans.lock"));
}

static void a_checkpoint_without_plans(void **state)
{
    (void)state;
    char *said;
    ax_cuda_plans *plans = open_saying(kind, RUN, CHECKPOINT, &said);
    assert_null(strstr(said, "warning"));
    assert_false(ax_path_exists(RUN "/plans.txt"));
    ax_cuda_plans_close(&plans);
    free(said);
}

/* Plans of another GPU stay in the file, for the case that the run returns there. */
static void a_checkpoint_of_another_gpu(void **state)
{
    (void)state;
    char *said;
    make_file(CHECKPOINT, "another GPU", 2);
    ax_cuda_plans *plans = open_saying(kind, RUN, CHECKPOINT, &said);
    expect_text(said,
                "warning: " CHECKPOINT "/plans.txt has no plans of GEMMs for this GPU and library (a GPU, "
                "its library): algorithms are chosen again, and results differ from now on in their last "
                "digits\n");
    free(said);
    assert_int_equal(algo_of(plans, 1), 0);
    add(plans, 1, 71, true);
    ax_cuda_plans_close(&plans);
    expect(RUN, 1, 71);
    plans = open_saying("another GPU", RUN, CHECKPOINT, &said);
    assert_null(strstr(said, "warning"));
    assert_int_equal(algo_of(plans, 1), 1);
    assert_int_equal(algo_of(plans, 2), 2);
    ax_cuda_plans_close(&plans);
    free(said);
}

/* Plans of another GPU have priority too if they come from a checkpoint, and are in the file once. */
static void a_checkpoint_has_priority_for_another_gpu(void **state)
{
    (void)state;
    char *said;
    ax_cuda_plans *plans = open_saying("another GPU", RUN, NULL, &said);
    free(said);
    add(plans, 1, 75, false);
    ax_cuda_plans_close(&plans);
    make_file(CHECKPOINT, "another GPU", 2);
    for (int again = 0; again < 2; again++) {
        plans = open_plans(RUN, CHECKPOINT);
        ax_cuda_plans_close(&plans);
    }
    char *text = text_of(RUN "/plans.txt");
    int lines = 0;
    for (const char *at = text; (at = strchr(at, '\n')); at++)
        lines++;
    assert_int_equal(lines, 3);
    free(text);
    plans = open_saying("another GPU", RUN, NULL, &said);
    assert_int_equal(algo_of(plans, 1), 1);
    assert_int_equal(algo_of(plans, 2), 2);
    ax_cuda_plans_close(&plans);
    free(said);
}

/* ---- damage -------------------------------------------------------------------------------------- */

static void damaged_lines_are_reported_once(void **state)
{
    (void)state;
    char *said;
    make_file(RUN, kind, 3);
    char *text = text_of(RUN "/plans.txt"), *second = strchr(text, '\n') + 1;
    *second ^= 1;
    OK(ax_file_write_atomic(RUN "/plans.txt", text, strlen(text) - 1)); /* the third line is cut off, too */
    ax_cuda_plans *plans = open_saying(kind, RUN, NULL, &said);
    expect_text(said, "warning: " RUN "/plans.txt has 2 damaged lines: algorithms are chosen again for these "
                      "GEMMs, and results may differ from then on in their last digits\n");
    assert_int_equal(algo_of(plans, 1), 1);
    assert_int_equal(algo_of(plans, 2), 0);
    assert_int_equal(algo_of(plans, 3), 0);
    ax_cuda_plans_close(&plans);
    free(said);
    plans = open_saying(kind, RUN, NULL, &said);
    assert_null(strstr(said, "warning"));
    ax_cuda_plans_close(&plans);
    free(said);
    free(text);
}

/* Damage of the cache costs a measurement, and is not reported. */
static void a_damaged_cache_is_silent(void **state)
{
    (void)state;
    char *said;
    OK(ax_mkdirs(CACHE));
    OK(ax_file_write_atomic(CACHE "/plans.txt", "no plans\n", 9));
    ax_cuda_plans *plans = open_saying(kind, NULL, NULL, &said);
    assert_string_equal(said, "");
    free(said);
    add(plans, 1, 81, true);
    ax_cuda_plans_close(&plans);
    expect(NULL, 1, 81);
}

/* Appends a line that another version of axonn, whose lines have another form, could have written. */
static void add_other_line(ax_buf *text, int number)
{
    size_t begin = text->size;
    OK(ax_buf_printf(text, "7 %d 0000000000000009 ", number));
    OK(ax_buf_printf(text, "%016" PRIx64 "\n", ax_cuda_plan_hash(text->data + begin, text->size - begin)));
}

/* Lines that another version of axonn wrote are not damaged, and stay in the file. */
static void lines_of_another_form_are_kept(void **state)
{
    (void)state;
    char *said;
    ax_buf others = {0}, text = {0};
    make_file(RUN, kind, 1);
    char *known = text_of(RUN "/plans.txt");
    add_other_line(&others, 2);
    add_other_line(&others, 1);
    OK(ax_buf_printf(&text, "%s%s", known, others.data));
    OK(ax_file_write_atomic(RUN "/plans.txt", text.data, text.size));
    free(known);
    ax_cuda_plans *plans = open_saying(kind, RUN, NULL, &said);
    assert_null(strstr(said, "warning"));
    assert_int_equal(algo_of(plans, 1), 1);
    add(plans, 2, 72, false);
    ax_cuda_plans_close(&plans);
    free(said);
    char *written = text_of(RUN "/plans.txt");
    assert_memory_equal(written, others.data, others.size); /* before the lines of the writer */
    free(written);
    expect(RUN, 1, 1);
    expect(RUN, 2, 72);
    ax_buf_fini(&others);
    ax_buf_fini(&text);
}

/* A file keeps at most 256 KiB of lines of other versions: those that were written last. */
static void the_oldest_lines_are_dropped(void **state)
{
    (void)state;
    const size_t most = 256 << 10;
    ax_buf others = {0};
    char last[64];
    while (others.size <= most)
        add_other_line(&others, 1000000 + (int)(others.size / 44)); /* 44: bytes of a line */
    assert_int_equal(others.size % 44, 0);
    OK(ax_file_write_atomic(RUN "/plans.txt", others.data, others.size));
    ax_cuda_plans *plans = open_plans(RUN, NULL);
    add(plans, 1, 73, false);
    ax_cuda_plans_close(&plans);
    char *text = text_of(RUN "/plans.txt");
    snprintf(last, sizeof last, "%s", others.data + others.size - 44);
    assert_null(strstr(text, "7 1000000 "));
    expect_text(text, "7 1000001 ");
    expect_text(text, last);
    expect(RUN, 1, 73);
    ax_buf_fini(&others);
    free(text);
}

/* Without a file the plans are kept in memory, and one warning says so. */
static void a_run_without_a_file(void **state)
{
    (void)state;
    OK(ax_mkdirs(RUN "/plans.lock")); /* cannot be opened as a file */
    ax_cuda_plans *plans = open_plans(RUN, NULL);
    int before = catch_log();
    add(plans, 1, 91, true);
    add(plans, 2, 92, true);
    char *said = caught_log(before);
    assert_int_equal(algo_of(plans, 1), 91);
    assert_int_equal(algo_of(plans, 2), 92);
    ax_cuda_plans_close(&plans);
    char *first =
        strstr(said, "warning: plans of GEMMs are not kept: cannot open the lock file " RUN "/plans.lock");
    assert_non_null(first);
    assert_null(strstr(first + 1, "warning"));
    free(said);
}

/* ---- time ---------------------------------------------------------------------------------------- */

static void timing_ends_after_its_time(void **state)
{
    (void)state;
    setenv("AXONN_PLAN_SECONDS", "2", 1);
    ax_cuda_plans *plans = open_plans(RUN, NULL);
    int before = catch_log();
    ax_cuda_plans_begin(plans);
    ax_cuda_plans_begin(plans); /* for a GEMM within the other */
    usleep(1200 * 1000);
    ax_cuda_plans_end(plans);
    bool late = ax_cuda_plans_late(plans);
    ax_cuda_plans_end(plans);
    usleep(900 * 1000); /* nothing is timed */
    ax_cuda_plans_begin(plans);
    bool later = ax_cuda_plans_late(plans);
    usleep(900 * 1000);
    bool at_last = ax_cuda_plans_late(plans);
    ax_cuda_plans_end(plans);
    ax_cuda_plans_begin(plans);
    bool still = ax_cuda_plans_late(plans);
    ax_cuda_plans_end(plans);
    char *said = caught_log(before);
    assert_true(!late && !later && at_last && still);
    assert_string_equal(said,
                        "the time for timing GEMMs (runtime.plan_seconds) is used up: further shapes use "
                        "the library's first algorithm\n");
    free(said);
    ax_cuda_plans_close(&plans);
    setenv("AXONN_PLAN_SECONDS", "0", 1);
    plans = open_plans(RUN, NULL);
    ax_cuda_plans_begin(plans);
    assert_true(ax_cuda_plans_late(plans));
    ax_cuda_plans_end(plans);
    ax_cuda_plans_close(&plans);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_run_keeps_what_it_uses, begin),
        cmocka_unit_test_setup(the_first_choice_counts, begin),
        cmocka_unit_test_setup(an_algorithm_that_does_not_work_is_replaced, begin),
        cmocka_unit_test_setup(untimed_plans_stay_in_their_run, begin),
        cmocka_unit_test_setup(there_must_be_a_place, begin),
        cmocka_unit_test_setup(a_run_says_what_it_knows, begin),
        cmocka_unit_test_setup(a_checkpoint_has_priority, begin),
        cmocka_unit_test_setup(a_checkpoint_counts_if_the_run_cannot_write, begin),
        cmocka_unit_test_setup(a_checkpoint_without_plans, begin),
        cmocka_unit_test_setup(a_checkpoint_of_another_gpu, begin),
        cmocka_unit_test_setup(a_checkpoint_has_priority_for_another_gpu, begin),
        cmocka_unit_test_setup(damaged_lines_are_reported_once, begin),
        cmocka_unit_test_setup(a_damaged_cache_is_silent, begin),
        cmocka_unit_test_setup(lines_of_another_form_are_kept, begin),
        cmocka_unit_test_setup(the_oldest_lines_are_dropped, begin),
        cmocka_unit_test_setup(a_run_without_a_file, begin),
        cmocka_unit_test_setup(timing_ends_after_its_time, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
