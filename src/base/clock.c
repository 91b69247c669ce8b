/* Clocks, and the memory use of the process as /proc reports it. */
#include "axonn/base.h"
#include "base/memory.h"

#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double clock_seconds(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double ax_now(void) { return clock_seconds(CLOCK_MONOTONIC); }
double ax_cpu_now(void) { return clock_seconds(CLOCK_THREAD_CPUTIME_ID); }
double ax_wall_clock(void) { return clock_seconds(CLOCK_REALTIME); }

/* Reads the file without stdio, because stdio allocates memory, and nothing may be allocated within a
 * training step. */
int64_t base_proc_bytes(const char *path, const char *key)
{
    char text[8192];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return -1;
    text[n] = 0;
    const char *line = strstr(text, key);
    return line ? 1024 * strtoll(line + strlen(key), NULL, 10) : -1;
}

int64_t ax_memory_peak(void) { return base_proc_bytes("/proc/self/status", "VmHWM:"); }
int64_t ax_memory_now(void) { return base_proc_bytes("/proc/self/status", "VmRSS:"); }

int64_t ax_memory_shared(void) { return base_proc_bytes("/proc/self/status", "RssShmem:"); }

void base_memory_trim(void)
{
    /* Ranks that are threads of one process may call this function at once. If a sanitizer replaces malloc,
     * malloc_trim is the first call into glibc's allocator, which initialises itself without a lock. */
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    malloc_trim(0);
    pthread_mutex_unlock(&lock);
}

void ax_memory_restart_peak(void)
{
    base_memory_trim();
    int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (write(fd, "5", 1) != 1) /* unsupported: the peak then covers the whole life of the process */
        ax_log(AX_LOG_DEBUG, "/proc/self/clear_refs cannot be written: the peak of memory is that of the "
                             "whole life of the process");
    close(fd);
}
