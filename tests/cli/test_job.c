/* cli: jobs whose launcher hangs and ignores SIGTERM, as Open MPI's does if it cannot write its files. The
 * launcher is a shell; its ranks are this program, started as `test_cli_job rank NOTE SECONDS`. */
#include "cli/cli_test.h"
#include "cli/job.h"
#include "cli/job_processes.h"

#include <fcntl.h>
#include <signal.h>
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

/* Four jobs side by side, because each waits for seconds. */
static void only_hanging_launchers_are_ended(void **state)
{
    (void)state;
    double begin = ax_now();
    pid_t lost = start("none", "0.3"), heard = start("heard", "0.3"), killed = start("none", "61.25"),
          slow = start_slow();
    while (running("61[.]25") < 2 && ax_now() - begin < 20)
        usleep(20000);
    assert_int_equal(kill(killed, SIGKILL), 0);
    assert_int_equal(kill(heard, SIGTERM), 0);
    /* 5 s until the job counts as gone, 3 s from SIGTERM to SIGKILL; the rest is for a busy machine. */
    assert_int_equal(ended(lost, begin, 40), 1 + 4);
    assert_int_equal(ended(heard, begin, 40), 1 + 2 + 4);
    assert_int_equal(ended(killed, begin, 40), 128 + SIGKILL);
    assert_int_equal(ended(slow, begin, 40), 0);
    while (running("61[.]25") && ax_now() - begin < 40)
        usleep(20000);
    assert_int_equal(running("61[.]25"), 0);
}

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "rank"))
        return rank(argv[2], argv[3]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(only_hanging_launchers_are_ended)};
    return cmocka_run_group_tests_name("cli.job", tests, NULL, NULL);
}
