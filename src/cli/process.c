/* The first acts of the program. */
#include "process.h"

#include "axonn/base.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

/* A file that is opened later would become standard output or error, and get what is written there. The
 * lowest free descriptor is the one that is opened. */
static void open_standard(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", O_RDWR) != fd)
            _exit(AX_ERR_DATA); /* and no place to say why */
}

/* A stack may grow up to the limit of the moment. Libraries start threads of their own, whose stacks have the
 * size that the limit had when the process began. */
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
