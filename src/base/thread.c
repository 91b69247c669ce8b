/* Starts threads with a stack of fixed size. The threads may run on every processor that the process may use,
 * even if the calling thread is bound to one core. */
#include "axonn/base.h"

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>

/* Finds the processors that this process may use: the union of the affinity masks of its threads, or the
 * empty set if /proc cannot be read. The union is still the mask that the process got at its start, because
 * no code narrows the masks of all threads: either each core of that mask has a bound thread, or the thread
 * that makes the MPI calls is not bound. Returns 0 or an errno. */
static int find_processors(cpu_set_t *out)
{
    CPU_ZERO(out);
    errno = ENOMEM;
    DIR *tasks = opendir("/proc/self/task");
    if (!tasks)
        return errno == ENOENT || errno == EACCES ? 0 : errno;
    for (const struct dirent *entry; (entry = readdir(tasks));) {
        cpu_set_t mask;
        pid_t thread = (pid_t)strtol(entry->d_name, NULL, 10); /* 0 for "." and ".." */
        if (thread > 0 && !sched_getaffinity(thread, sizeof mask, &mask))
            CPU_OR(out, out, &mask);
    }
    closedir(tasks);
    return 0;
}

int ax_processors(void)
{
    cpu_set_t set;
    return find_processors(&set) || !CPU_COUNT(&set) ? 1 : CPU_COUNT(&set);
}

int ax_thread_start(pthread_t *thread, void *(*main)(void *), void *arg)
{
    cpu_set_t set;
    pthread_attr_t attr;
    int error = find_processors(&set);
    if (!error)
        error = pthread_attr_init(&attr);
    if (error)
        return error;
    if (CPU_COUNT(&set))
        error = pthread_attr_setaffinity_np(&attr, sizeof set, &set);
    if (!error)
        error = pthread_attr_setstacksize(&attr, AX_THREAD_STACK);
    if (!error)
        error = pthread_create(thread, &attr, main, arg);
    pthread_attr_destroy(&attr);
    return error;
}
