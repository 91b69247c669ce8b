/* Threads that do not inherit that their creator is bound to a core. */
#include "axonn/base.h"

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>

/* What any thread of this process may run on; empty if the system does not tell. Whoever binds some of them
 * to cores leaves none of the process's cores without a thread, so this is what they all began with. */
static void find_processors(cpu_set_t *out)
{
    CPU_ZERO(out);
    DIR *tasks = opendir("/proc/self/task");
    if (!tasks)
        return;
    for (const struct dirent *entry; (entry = readdir(tasks));) {
        cpu_set_t mask;
        pid_t thread = (pid_t)strtol(entry->d_name, NULL, 10); /* 0 for "." and ".." */
        if (thread > 0 && !sched_getaffinity(thread, sizeof mask, &mask))
            CPU_OR(out, out, &mask);
    }
    closedir(tasks);
}

int ax_processors(void)
{
    cpu_set_t set;
    find_processors(&set);
    return (int)ax_max(CPU_COUNT(&set), 1);
}

int ax_thread_start(pthread_t *thread, void *(*main)(void *), void *arg)
{
    cpu_set_t set;
    pthread_attr_t attr;
    int error = pthread_attr_init(&attr);
    if (error)
        return error;
    find_processors(&set);
    bool told = CPU_COUNT(&set) && !pthread_attr_setaffinity_np(&attr, sizeof set, &set);
    error = pthread_create(thread, told ? &attr : NULL, main, arg);
    if (told && (error == EPERM || error == EINVAL)) /* where affinity may not be set */
        error = pthread_create(thread, NULL, main, arg);
    pthread_attr_destroy(&attr);
    return error;
}
