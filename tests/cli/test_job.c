/* cli: jobs whose launcher hangs and ignores SIGTERM, as Open MPI's does if it cannot write its files. The
 * launcher is a shell; its ranks are this program, started as `test_cli_job rank NOTE SECONDS`. */
#include "cli/cli_test.h"
#include "cli/job.h"
#include "cli/job_processes.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* A rank: if `note` is "heard", records that it has received a signal, although it has not joined the world.
 */
static int rank(const char *note, const char *seconds)
{
    const char *path = getenv(CLI_NOTE);
    int fd = path ? open(path, O_RDWR) : -1;
    cli_note *shared = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *shared, PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED)
        return 1;
    shared->heard = !strcmp(note, "heard");
    signal(SIGTERM, SIG_IGN);
    usleep((useconds_t)(atof(seconds) * 1e6));
    return 3;
}

/* Runs a job in a child of this process, which exits with a sum: 1 if the job was ended because its ranks
 * were gone, 2 if a signal came, 4 if the launcher was killed. */
static pid_t run_script(char *script)
{
    char sh[] = "sh", c[] = "-c";
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid)
        return pid;
    cli_job job = {.words = (char *const[]){sh, c, script, NULL}, .stop = SIGUSR1};
    ax_status status = cli_job_run(&job);
    _exit(status != AX_OK ? 64
                          : job.gone + 2 * (job.signal == SIGTERM) +
                                4 * (WIFSIGNALED(job.status) && WTERMSIG(job.status) == SIGKILL));
}

/* Starts a job whose launcher, stopped for a second, waits late for a helper, and then needs longer to start
 * its ranks than it may live without ranks. */
static pid_t start_slow(void)
{
    char script[] = "sleep 0.1 & (sleep 1; kill -CONT $$) & kill -STOP $$; sleep 6";
    return run_script(script);
}

/* Starts a job of two ranks. */
static pid_t start(const char *note, const char *seconds)
{
    char self[4096], script[8400];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(n > 0);
    self[n] = 0;
    snprintf(script, sizeof script,
             "trap '' TERM; '%s' rank %s %s & '%s' rank %s %s & wait; while :; do sleep 0.2; done", self,
             note, seconds, self, note, seconds);
    return run_script(script);
}

/* Starts a job whose only rank ended before anything could look for it: it has only written that it began. */
static pid_t start_brief(void)
{
    char script[256];
    snprintf(script, sizeof script,
             "trap '' TERM; printf '\\001' | dd of=\"$" CLI_NOTE "\" bs=1 seek=%zu conv=notrunc 2>/dev/null; "
             "while :; do sleep 0.2; done",
             offsetof(cli_note, begun));
    return run_script(script);
}

/* Returns the exit code of the child, -1 if it has not ended `seconds` after `begin`. */
static int ended(pid_t pid, double begin, double seconds)
{
    int status;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (ax_now() - begin > seconds) {
            kill(pid, SIGKILL);
            return -1;
        }
        usleep(20000);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Returns the number of processes whose command line has `word`. */
static int running(const char *word)
{
    char command[256];
    int n = -1;
    snprintf(command, sizeof command, "grep -lzsx -e '%s' /proc/[0-9]*/cmdline | wc -l", word);
    FILE *pipe = popen(command, "r");
    assert_true(pipe && fscanf(pipe, "%d", &n) == 1);
    pclose(pipe);
    return n;
}

/* Five jobs side by side, because each waits for seconds. */
static void only_hanging_launchers_are_ended(void **state)
{
    (void)state;
    double begin = ax_now();
    pid_t lost = start("none", "2.0"), heard = start("heard", "2.0"), killed = start("none", "61.25"),
          slow = start_slow(), brief = start_brief();
    while (running("61[.]25") < 2 && ax_now() - begin < 20)
        usleep(20000);
    assert_int_equal(kill(killed, SIGKILL), 0);
    assert_int_equal(kill(heard, SIGTERM), 0);
    /* 5 s until the job counts as gone, 3 s from SIGTERM to SIGKILL; the rest is for a busy machine. */
    assert_int_equal(ended(lost, begin, 40), 1 + 4);
    assert_int_equal(ended(brief, begin, 40), 1 + 4);
    assert_int_equal(ended(heard, begin, 40), 1 + 2 + 4);
    assert_int_equal(ended(killed, begin, 40), 128 + SIGKILL);
    assert_int_equal(ended(slow, begin, 40), 0);
    while (running("61[.]25") && ax_now() - begin < 40)
        usleep(20000);
    assert_int_equal(running("61[.]25"), 0);
}

/* Prints 79992 bytes, more than a pipe holds. */
static char long_output[] = "for i in 0 1 2 3 4 5 6 7; do printf '%9999d' $i; done";

/* Starts a job of `script` in a child of this process, with the descriptor `out` as standard output. The
 * child exits with what cli_job.lost tells of the output. Closes `out`. */
static pid_t start_printing(int out, char *script)
{
    char sh[] = "sh", c[] = "-c";
    pid_t pid = fork();
    assert_true(pid >= 0 && out >= 0);
    if (!pid) {
        cli_job job = {.words = (char *const[]){sh, c, script, NULL}};
        _exit(dup2(out, STDOUT_FILENO) < 0 || cli_job_run(&job) != AX_OK ? 255 : job.lost);
    }
    close(out);
    return pid;
}

/* Runs the job with its output in the file `path`. */
static int lost_output(const char *path, char *script)
{
    return ended(start_printing(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666), script), ax_now(),
                 20);
}

/* A launcher does not tell whether its output could be written. */
static void output_that_cannot_be_written_is_known(void **state)
{
    (void)state;
    char path[] = "/tmp/axonn-test-XXXXXX";
    char *text;
    size_t size;
    assert_int_equal(lost_output("/dev/full", long_output), ENOSPC);
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(lost_output(path, long_output), 0);
    assert_int_equal(ax_file_read(path, &text, &size), AX_OK);
    assert_true(size == 8 * 9999 && text[size - 1] == '7');
    free(text);
    remove(path);
}

/* Starts a job that prints more than fits into a pipe; out[0] is the pipe's end to read from. */
static pid_t fill_pipe(int flags, int out[2])
{
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    assert_int_equal(fcntl(out[1], F_SETFL, O_WRONLY | flags), 0);
    pid_t pid = start_printing(out[1], long_output);
    while (usleep(20000), !poll(&(struct pollfd){.fd = out[0], .events = POLLIN}, 1, 0))
        ;
    usleep(100000); /* for the pipe to be full */
    return pid;
}

/* Standard output may be a pipe that another program has made non-blocking. */
static void output_waits_for_room(void **state)
{
    (void)state;
    int out[2];
    char data[4096];
    ssize_t n, size = 0;
    pid_t pid = fill_pipe(O_NONBLOCK, out);
    while ((n = read(out[0], data, sizeof data)) > 0)
        size += n;
    assert_int_equal(size, 8 * 9999);
    assert_int_equal(ended(pid, ax_now(), 20), 0);
    close(out[0]);
}

/* A reader that reads no more must not keep the job from ending. */
static void a_signal_ends_the_wait_for_a_reader(void **state)
{
    (void)state;
    int out[2];
    pid_t pid = fill_pipe(0, out);
    assert_int_equal(kill(pid, SIGTERM), 0);
    assert_int_equal(ended(pid, ax_now(), 20), EINTR);
    close(out[0]);
}

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "rank"))
        return rank(argv[2], argv[3]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(output_that_cannot_be_written_is_known),
                                       cmocka_unit_test(output_waits_for_room),
                                       cmocka_unit_test(a_signal_ends_the_wait_for_a_reader),
                                       cmocka_unit_test(only_hanging_launchers_are_ended)};
    return cmocka_run_group_tests_name("cli.job", tests, NULL, NULL);
}
