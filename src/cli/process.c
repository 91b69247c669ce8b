/* Start-up of the process: standard files, stack sizes, SIGXFSZ, runtime settings. */
#include "process.h"

#include "axonn/runtime.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

/* Opens file descriptors 0, 1 and 2 on /dev/null if they are closed. Otherwise the next open() would return
 * one of them, and text printed to stdout or stderr would go into that file. */
static void open_standard(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", O_RDWR) != fd)
            _exit(AX_ERR_DATA); /* there is nowhere to print an error */
}

/* Raises the limit up to which this thread's stack may grow, and the default stack size of new threads.
 * Libraries start threads with that default too. Raising the limit does not change that default size: glibc
 * took it from the old limit when the process began. */
static void enlarge_stacks(void)
{
    struct rlimit limit;
    pthread_attr_t attr;
    if (!getrlimit(RLIMIT_STACK, &limit) && limit.rlim_cur < AX_THREAD_STACK) {
        limit.rlim_cur = ax_min((int64_t)limit.rlim_max, AX_THREAD_STACK);
        setrlimit(RLIMIT_STACK, &limit);
    }
    size_t size = 0;
    if (pthread_getattr_default_np(&attr))
        return;
    if (!pthread_attr_getstacksize(&attr, &size) && size < AX_THREAD_STACK &&
        !pthread_attr_setstacksize(&attr, AX_THREAD_STACK))
        pthread_setattr_default_np(&attr);
    pthread_attr_destroy(&attr);
}

void cli_process_begin(void)
{
    open_standard();
    enlarge_stacks();
    signal(SIGXFSZ, SIG_IGN);
}

ax_status cli_process_settings(void)
{
    AX_TRY(ax_runtime_check());
    ax_log(AX_LOG_DEBUG, "version %s (%s)", ax_version(), ax_commit());
    return AX_OK;
}
