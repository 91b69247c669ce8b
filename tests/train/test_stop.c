/* Runs that are stopped from outside: by signals, after which they save, by kills, which cannot be caught,
 * and by the lock of a run directory that is in use. */
#include "support/sampled.h"
#include "train/kill_test.h"

#include <ctype.h>
#include <math.h>

/* The schedule does not depend on train.steps, so that a run stopped after step N equals a run of N steps. */
#define ENDLESS_KEYS                                                                                         \
    BASE_KEYS "train.steps=1000000 optim.schedule=constant model.dropout=0.1 run.checkpoint_interval=0 "     \
              "run.log_interval=1000000 "

/* Sends the signal once the run has done `step` steps. Returns the step after which it stopped. */
static int64_t stop_at(const char *keys, int64_t step, int number)
{
    pid_t pid = run_start("log", keys);
    await_step("run", pid, step);
    kill(pid, number);
    int code = run_wait(pid);
    char *log = text_of("log"), *after = strstr(log, "after step "), *by = strstr(log, "error: stopped by ");
    if (code != AX_ERR_SIGNAL || !by || !after || !strstr(by, strsignal(number)))
        fail_msg("exit code %d:\n%s", code, log);
    int64_t stopped = strtoll(strstr(by, "after step ") + 11, NULL, 10);
    free(log);
    assert_true(stopped >= step);
    assert_int_equal(last_step("run"), stopped);
    char name[64];
    snprintf(name, sizeof name, "step-%lld\n", (long long)stopped);
    char *latest = text_of("run/latest");
    assert_string_equal(latest, name);
    free(latest);
    return stopped;
}

static void signals_save_and_stop(void **state)
{
    (void)state;
    static const int numbers[] = {SIGTERM, SIGUSR1, SIGUSR2, SIGINT, SIGHUP};
    for (size_t i = 0; i < AX_COUNT(numbers); i++)
        signal(numbers[i], SIG_DFL); /* undoes what a shell sets for background processes */
    int64_t step = 0;
    sh("rm -rf ref run");
    for (size_t i = 0; i < AX_COUNT(numbers); i++)
        step = stop_at(ENDLESS_KEYS, step + 2, numbers[i]);
    run_expect(0, NULL, ENDLESS_KEYS "train.steps=%lld run.dir=ref", (long long)step);
    char a[64], b[64];
    snprintf(a, sizeof a, "ref/ckpt/step-%lld", (long long)step);
    snprintf(b, sizeof b, "run/ckpt/step-%lld", (long long)step);
    same_checkpoint(a, b);
    same_text(metrics_of("ref", true), metrics_of("run", true));
}

/* Signals that were ignored when the run began stay ignored, as under nohup. */
static void signals_that_are_ignored_do_not_stop(void **state)
{
    (void)state;
    sh("rm -rf run");
    signal(SIGHUP, SIG_IGN);
    pid_t pid = run_start("log", ENDLESS_KEYS);
    signal(SIGHUP, SIG_DFL);
    await_step("run", pid, 2);
    kill(pid, SIGHUP);
    await_step("run", pid, last_step("run") + 5);
    kill(pid, SIGTERM);
    assert_int_equal(run_wait(pid), AX_ERR_SIGNAL);
    char *log = text_of("log");
    assert_non_null(strstr(log, strsignal(SIGTERM)));
    free(log);
}

/* After a signal before the first step, one step is done and saved. */
static void a_signal_at_the_start(void **state)
{
    (void)state;
    sh("rm -rf run");
    for (int i = 0; i < 4; i++) {
        sh("rm -f run/lock");
        pid_t pid = run_start("log", ENDLESS_KEYS);
        while (!ax_path_exists("run/lock")) /* handlers are installed before anything is written */
            sleep_ms(0.2);
        sleep_ms(3 * i);
        kill(pid, SIGTERM);
        assert_int_equal(run_wait(pid), AX_ERR_SIGNAL);
        assert_true(last_step("run") > i && ax_path_exists("run/latest"));
    }
}

/* A signal ends a long evaluation at once; the resumed run does it again. */
static void a_signal_during_an_evaluation(void **state)
{
    (void)state;
    sh("rm -rf ref run");
    const char *keys = BASE_KEYS "data.valid=long.tok run.eval_interval=2 run.checkpoint_interval=0 ";
    run_expect(0, NULL, "%s run.eval_batches=3 run.dir=ref", keys);
    pid_t pid = run_start("log", keys);
    await_step("run", pid, 2);
    sleep_ms(100);
    double start = ax_now();
    kill(pid, SIGTERM);
    assert_int_equal(run_wait(pid), AX_ERR_SIGNAL);
    assert_true(ax_now() - start < (SANITIZED ? 30 : 10));
    assert_int_equal(last_step("run"), 2);
    assert_true(ax_path_is_dir("run/ckpt/step-2"));
    char *rows = metrics_of("run", true);
    assert_null(strstr(rows, "eval_loss"));
    free(rows);
    run_expect(0, NULL, "%s run.eval_batches=3", keys);
    same_text(metrics_of("ref", true), metrics_of("run", true));
    same_checkpoint("ref/ckpt/step-6", "run/ckpt/step-6");
    /* The same in the last evaluation: all steps are done, but the run is not finished. */
    sh("rm -rf run");
    pid = run_start("log", BASE_KEYS "train.steps=2 data.valid=long.tok");
    await_step("run", pid, 2);
    kill(pid, SIGUSR1);
    assert_int_equal(run_wait(pid), AX_ERR_SIGNAL);
    run_expect(0, "eval loss", BASE_KEYS "train.steps=2 data.valid=long.tok run.eval_batches=3");
    run_expect(0, "nothing to do", BASE_KEYS "train.steps=2 data.valid=long.tok run.eval_batches=3");
}

/* Sends SIGTERM `ms` milliseconds after the run has done `step` steps, and stops the process for longer than
 * a step may run after a signal. Asserts that it gave up the next step. */
static void give_up_after(const char *keys, int64_t step, double ms)
{
    char said[128];
    pid_t pid = run_start("log", keys);
    if (step)
        await_step("run", pid, step);
    while (!ax_path_exists("run/metrics.jsonl"))
        sleep_ms(1);
    sleep_ms(ms);
    kill(pid, SIGTERM);
    sleep_ms(50); /* time for its handler to run */
    kill(pid, SIGSTOP);
    sleep_ms(10500);
    kill(pid, SIGCONT);
    double start = ax_now();
    int code = run_wait(pid);
    char *log = text_of("log");
    snprintf(said, sizeof said, "after step %lld, which is saved; step %lld still ran", (long long)step,
             (long long)step + 1);
    if (code != AX_ERR_SIGNAL || !strstr(log, said))
        fail_msg("exit code %d after %g s:\n%s", code, ax_now() - start, log);
    free(log);
    snprintf(said, sizeof said, "run/ckpt/step-%lld", (long long)step);
    assert_true(ax_path_is_dir(said));
}

/* A step of two pipelines that takes some seconds is given up, and done again by the resumed run with the
 * same bits. It computes for a minute, so only the campaign does this; the next test gives up a step too. */
static void a_step_that_takes_long_is_given_up(void **state)
{
    (void)state;
    if (one_of(2, 2) > 1)
        skip();
    char keys[1024];
    double seconds = 0;
    /* Ranks agree every two seconds. A step may be three times faster later, when other tests have ended. */
    for (double rows = 800; seconds < 6; rows *= fmin(fmax(7 / seconds, 1.2), 8)) {
        snprintf(
            keys, sizeof keys,
            BASE_KEYS
            "ranks=4 grid.pipe=2 grid.data=2 zero=1 train.micro_batch=1 optim.warmup=1 model.dropout=0.1 "
            "run.checkpoint_interval=0 optim.schedule=constant train.global_batch=%d ",
            2 * (int)(rows / 2));
        sh("rm -rf ref run");
        double start = ax_now();
        run_expect(0, NULL, "%s train.steps=1 run.dir=ref", keys);
        seconds = ax_now() - start;
    }
    run_expect(0, NULL, "%s train.steps=2 run.dir=ref", keys);
    give_up_after(keys, 1, 0);
    run_expect(0, "resuming ", "%s train.steps=2", keys);
    same_checkpoint("ref/ckpt/step-2", "run/ckpt/step-2");
}

/* The signal comes while the rows of the step are chosen, or soon after. Two stages agree to give up. */
static void a_huge_step_is_given_up(void **state)
{
    (void)state;
    sh("rm -rf run");
    const char *keys =
        BASE_KEYS "ranks=2 grid.pipe=2 train.steps=2 train.global_batch=20000000 train.micro_batch=1";
    give_up_after(keys, 0, 200);
}

/* Only a few kills; test_long_kill.c does hundreds. */
static void kills_change_no_bit(void **state)
{
    (void)state;
    double seconds = kill_reference("");
    kill_count count = {0, 0};
    for (uint64_t seed = 0; seed < 10 && (count.kills < 12 || count.resumed < 4); seed++)
        kill_and_compare(seed % 2 ? "" : "offload.optimizer=file offload.bucket=1000", 12, seconds, seed,
                         &count);
    sh("! find run -name '.offload*' | grep .");
    print_message("%d kills, resumed %d times\n", count.kills, count.resumed);
    assert_true(count.kills > 0 && count.resumed > 0);
}

static void a_directory_in_use_is_refused(void **state)
{
    (void)state;
    char said[128];
    sh("rm -rf run");
    pid_t pid = run_start("first", ENDLESS_KEYS);
    await_step("run", pid, 1);
    snprintf(said, sizeof said, "is in use by another run (process %ld): wait for it or choose another",
             (long)pid);
    run_expect(2, said, BASE_KEYS);
    assert_true(ax_path_exists("run/lock")); /* of the other run: the start that failed leaves it */
    kill(pid, SIGTERM);
    assert_int_equal(run_wait(pid), AX_ERR_SIGNAL);
    /* The lock is released when its process ends, in whatever way. */
    pid = run_start("first", ENDLESS_KEYS);
    await_step("run", pid, last_step("run") + 1);
    kill(pid, SIGKILL);
    assert_int_equal(run_wait(pid), 128 + SIGKILL);
    run_expect(0, NULL, ENDLESS_KEYS "train.steps=%lld", (long long)last_step("run") + 2);
}

static int set_up(void **state)
{
    if (kill_setup(state))
        return -1;
    make_tokens("long.tok", VOCAB, 3000000, 5);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(signals_save_and_stop),
        cmocka_unit_test(signals_that_are_ignored_do_not_stop),
        cmocka_unit_test(a_signal_at_the_start),
        cmocka_unit_test(a_signal_during_an_evaluation),
        cmocka_unit_test(a_step_that_takes_long_is_given_up),
        cmocka_unit_test(a_huge_step_is_given_up),
        cmocka_unit_test(kills_change_no_bit),
        cmocka_unit_test(a_directory_in_use_is_refused),
    };
    return cmocka_run_group_tests_name("train.stop", tests, set_up, run_teardown);
}
