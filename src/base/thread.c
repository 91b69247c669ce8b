/* Threads that do not inherit that their creator is bound to a core, nor how large its stack may be. */
#include "axonn/base.h"

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>

/* What any thread of this process may run on; empty if the system does not tell. Whoever binds some of them
 * to cores leaves none of the process's cores without a thread, so this is what they all began with. Returns
 * 0 or an errno. */
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
