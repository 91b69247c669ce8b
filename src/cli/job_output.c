/* Copies the output of a job to standard output, in a process of its own, so that this program learns whether
 * it was written. */
#include "job_output.h"

#include "axonn/base.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct cli_output_shared {
    atomic_int state; /* cli_output_state */
    atomic_int error; /* errno of the write that failed; EINTR or EIO if the process was ended; or 0 */
};

/* Writes all n bytes. Returns false, with errno, if that fails. Waits for room if another program has made
 * standard output non-blocking, as some make the pipes that they share. */
static bool write_all(const char *data, ssize_t n)
{
    while (n > 0) {
        ssize_t done = write(STDOUT_FILENO, data, (size_t)n);
        if (done < 0 && errno == EAGAIN)
            poll(&(struct pollfd){.fd = STDOUT_FILENO, .events = POLLOUT}, 1, -1);
        else if (done < 0 && errno != EINTR)
            return false;
        data += ax_max(done, 0);
        n -= ax_max(done, 0);
    }
    return true;
}

/* Copies until the other end is closed. What cannot be written is read nevertheless: a launcher that cannot
 * write ends the job, or itself, with messages of its own. */
static _Noreturn void copy(struct cli_output_shared *shared, int from)
{
    static const int ignored[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE};
    char data[1 << 14];
    for (size_t i = 0; i < AX_COUNT(ignored); i++)
        signal(ignored[i], SIG_IGN);
    prctl(PR_SET_NAME, "axonn-output");
    for (;;) {
        atomic_store(&shared->state, CLI_OUTPUT_WAITS);
        ssize_t n = read(from, data, sizeof data);
        if (n == 0 || (n < 0 && errno != EINTR))
            break;
        atomic_store(&shared->state, CLI_OUTPUT_WRITES);
        if (!atomic_load(&shared->error) && !write_all(data, n))
            atomic_store(&shared->error, errno);
    }
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
    pid_t ended; /* -1: it was waited for elsewhere */
    while (!(ended = waitpid(out->pid, NULL, WNOHANG)) && ax_now() - last <= seconds) {
        usleep(2000);
        if (atomic_load(&out->shared->state) == CLI_OUTPUT_WRITES && !*stop)
            last = ax_now();
    }
    if (!ended) {
        kill(out->pid, SIGKILL);
        waitpid(out->pid, NULL, 0);
    }
    int none = 0;
    if (atomic_load(&out->shared->state) != CLI_OUTPUT_ENDED && (ended || *stop))
        atomic_compare_exchange_strong(&out->shared->error, &none, ended ? EIO : EINTR);
}
