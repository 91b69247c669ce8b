/* Copies the output of a job to standard output, in a process of its own, so that this program learns whether
 * it was written. */
#include "job_output.h"

#include "axonn/base.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct cli_output_shared {
    atomic_int state; /* cli_output_state */
    atomic_int error; /* errno of the write that failed, or 0 */
};

/* Writes all n bytes. Returns false, with errno, if that fails. */
static bool write_all(const char *data, ssize_t n)
{
    while (n > 0) {
        ssize_t done = write(STDOUT_FILENO, data, (size_t)n);
        if (done < 0 && errno != EINTR)
            return false;
        data += ax_max(done, 0);
        n -= ax_max(done, 0);
    }
    return true;
}

static _Noreturn void copy(struct cli_output_shared *shared, int from)
{
    static const int ignored[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE};
    char data[1 << 14];
    bool good = true;
    for (size_t i = 0; i < AX_COUNT(ignored); i++)
        signal(ignored[i], SIG_IGN);
    prctl(PR_SET_NAME, "axonn-output");
    while (good) {
        atomic_store(&shared->state, CLI_OUTPUT_WAITS);
        ssize_t n = read(from, data, sizeof data);
        if (n == 0 || (n < 0 && errno != EINTR))
            break;
        atomic_store(&shared->state, CLI_OUTPUT_WRITES);
        good = write_all(data, n);
    }
    if (!good)
        atomic_store(&shared->error, errno);
    atomic_store(&shared->state, CLI_OUTPUT_ENDED);
    _exit(0);
}

void cli_output_start(cli_output *out)
{
    int ends[2];
    *out = (cli_output){.end = -1};
    if (isatty(STDOUT_FILENO) || fcntl(STDOUT_FILENO, F_GETFD) < 0)
        return;
    void *shared = mmap(NULL, sizeof *out->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return;
    if (pipe2(ends, O_CLOEXEC)) {
        munmap(shared, sizeof *out->shared);
        return;
    }
    pid_t pid = fork();
    if (!pid) {
        close(ends[1]);
        copy(shared, ends[0]);
    }
    close(ends[0]);
    if (pid < 0) {
        close(ends[1]);
        munmap(shared, sizeof *out->shared);
        return;
    }
    *out = (cli_output){.pid = pid, .end = ends[1], .shared = shared};
}

void cli_output_close_end(cli_output *out)
{
    if (out->end >= 0)
        close(out->end);
    out->end = -1;
}

int cli_output_error(const cli_output *out) { return out->pid ? atomic_load(&out->shared->error) : 0; }

void cli_output_finish(cli_output *out, double seconds, const volatile int *stop)
{
    if (!out->pid)
        return;
    cli_output_close_end(out);
    double last = ax_now();
    int state = atomic_load(&out->shared->state);
    while (state != CLI_OUTPUT_ENDED && !*stop && ax_now() - last <= seconds) {
        usleep(2000);
        state = atomic_load(&out->shared->state);
        if (state == CLI_OUTPUT_WRITES)
            last = ax_now();
    }
    if (state != CLI_OUTPUT_ENDED)
        kill(out->pid, SIGKILL);
    waitpid(out->pid, NULL, 0);
}
