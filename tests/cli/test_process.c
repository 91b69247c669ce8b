/* The process itself: closed standard descriptors, small stacks, signals while waiting for input, endless
 * input. */
#include "cli/cli_test.h"
#include "support/sanitized.h"

#include <signal.h>

static const char TOKENIZER[] = AXONN " tok train --input text --vocab 270 --out tok >/dev/null 2>&1";

static int set_up(void **state)
{
    ax_buf out = {0};
    (void)state;
    if (ax_mkdirs("cli-process") != AX_OK || chdir("cli-process"))
        return -1;
    assert_int_equal(shell("rm -rf *; seq 1 3000 >text", &out), 0);
    assert_int_equal(shell(TOKENIZER, &out), 0);
    assert_int_equal(shell("cat >a.yaml <<'END'\n"
                           "model: {family: gpt2, layers: 2, hidden: 32, heads: 4, vocab: 270, seq_len: 32}\n"
                           "data:  {train: text, tokenizer: tok}\n"
                           "train: {steps: 3, global_batch: 4, micro_batch: 2}\n"
                           "run:   {dir: run}\n"
                           "END\n",
                           &out),
                     0);
    ax_buf_fini(&out);
    return 0;
}

/* With closed standard descriptors, messages are not written into files that the program opens. */
static void closed_descriptors_are_safe(void **state)
{
    ax_buf out = {0};
    (void)state;
    assert_int_equal(shell(AXONN " data build --input text --tokenizer tok --out a.tok 2>/dev/null", &out),
                     0);
    assert_int_equal(shell(AXONN " data build --input text --tokenizer tok --out b.tok 0<&- 2>&-", &out), 0);
    assert_int_equal(shell("cmp a.tok b.tok", &out), 0);
    assert_int_equal(shell(AXONN " data check b.tok", &out), 0);
    assert_int_equal(shell(AXONN " train a.yaml 0<&- 1>&- 2>&-", &out), 0);
    assert_int_equal(shell("grep -rla -e 'step 1/3' -e 'memory of' -e 'checkpoint:' run", &out), 1);
    assert_int_equal(shell(AXONN " ckpt verify run 2>&1", &out), 0);
    ax_buf_fini(&out);
}

/* The program runs with stacks of 64 KiB. Not under sanitizers, which need more. */
static void small_stacks_suffice(void **state)
{
    ax_buf out = {0};
    (void)state;
    if (SANITIZED)
        skip();
    assert_int_equal(shell("ulimit -s 64; " AXONN " train a.yaml run.dir=small threads=2 2>&1", &out), 0);
    assert_int_equal(shell("ulimit -s 64; " AXONN " eval small --data text 2>&1", &out), 0);
    assert_int_equal(shell("ulimit -s 64; seq 1 9 | " AXONN " tok encode tok 2>&1", &out), 0);
    assert_int_equal(shell("ulimit -s 64; " AXONN " generate small --prompt 12 --max-tokens 3 2>&1", &out),
                     0);
    ax_buf_fini(&out);
}

/* A signal ends the wait for a pipe to which nobody writes. A training run exits with code 7; verbs with
 * temporary files end by the signal. Without --foreground, timeout also sends SIGCONT, which may reach the
 * program while LeakSanitizer stops it: LeakSanitizer then waits forever. */
static void signals_end_the_wait_for_a_pipe(void **state)
{
    static const struct {
        const char *words;
        int code;
    } cases[] = {
        {"train fifo", 7},
        {"train a.yaml run.dir=piped data.train=fifo", 7},
        {"train a.yaml run.dir=piped data.tokenizer=fifo", 7},
        {"train /dev/stdin <>fifo", 7},
        {"data build --tokenizer tok --out none.tok --input fifo", 128 + SIGTERM},
        {"tok train --vocab 300 --out none --input fifo", 128 + SIGTERM},
        {"tok encode tok <>fifo", 128 + SIGTERM},
    };
    ax_buf out = {0};
    (void)state;
    assert_int_equal(shell("rm -f fifo; mkfifo fifo", &out), 0);
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        char command[512];
        snprintf(command, sizeof command,
                 "timeout --foreground --preserve-status -k 20 -s TERM 2 " AXONN " %s 2>&1", cases[i].words);
        int code = shell(command, &out);
        if (code != cases[i].code)
            fail_msg("%s: exit code %d, not %d:\n%s", cases[i].words, code, cases[i].code, out.data);
    }
    assert_int_equal(shell("rm -rf piped none*", &out), 0);
    ax_buf_fini(&out);
}

/* Standard input that never ends is refused before it takes all memory. */
static void endless_input_is_refused(void **state)
{
    ax_buf out = {0};
    (void)state;
    assert_int_equal(shell(AXONN " tok encode tok </dev/zero 2>&1", &out), 4);
    assert_contains(out.data,
                    "standard input is larger than 256.0 MiB, the maximum here: is it the right file?");
    assert_int_equal(shell(AXONN " tok decode tok </dev/zero 2>&1", &out), 4);
    ax_buf_fini(&out);
}

/* With few open files Open MPI's launcher fails, or waits forever (28). */
static void a_launcher_needs_open_files(void **state)
{
    static const int limits[] = {6, 28};
    ax_buf out = {0};
    (void)state;
    for (size_t i = 0; i < AX_COUNT(limits); i++) {
        char command[512], says[128];
        snprintf(command, sizeof command,
                 "exec 2>&1; ulimit -n %d; " AXONN " train a.yaml --ranks 2 grid.data=2 run.dir=none",
                 limits[i]);
        snprintf(says, sizeof says,
                 "the launcher of 2 ranks needs 56 open files, and the limit (ulimit -n) is %d", limits[i]);
        int code = shell(command, &out);
        if (code == 2 && strstr(out.data, "without MPI"))
            skip();
        if (code != 5)
            fail_msg("exit code %d:\n%s", code, out.data);
        assert_contains(out.data, says);
        assert_false(ax_path_exists("none"));
    }
    ax_buf_fini(&out);
}

/* A read-only file system stands for a directory that may not be written: it refuses root too. */
static void a_launcher_needs_a_temporary_directory(void **state)
{
    ax_buf out = {0};
    (void)state;
    if (shell("mkdir -p tmp && unshare -rm mount -t tmpfs -o ro none tmp 2>&1", &out)) {
        print_message("skipped: no file system can be mounted here\n");
        skip();
    }
    int code = shell("exec 2>&1; unshare -rm sh -c 'mount -t tmpfs -o ro none tmp && TMPDIR=$PWD/tmp " AXONN
                     " train a.yaml --ranks 2 grid.data=2 run.dir=none'",
                     &out);
    if (code == 2 && strstr(out.data, "without MPI"))
        skip();
    if (code != 5)
        fail_msg("exit code %d:\n%s", code, out.data);
    assert_contains(out.data, "it cannot write to the directory of temporary files /");
    assert_contains(out.data, "/tmp: Read-only file system (set the environment variable TMPDIR to another)");
    assert_false(ax_path_exists("none"));
    ax_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closed_descriptors_are_safe),
        cmocka_unit_test(small_stacks_suffice),
        cmocka_unit_test(signals_end_the_wait_for_a_pipe),
        cmocka_unit_test(endless_input_is_refused),
        cmocka_unit_test(a_launcher_needs_open_files),
        cmocka_unit_test(a_launcher_needs_a_temporary_directory),
    };
    return cmocka_run_group_tests_name("cli.process", tests, set_up, NULL);
}
