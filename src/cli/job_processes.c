/* Finds the processes of a job in /proc: this process, their starter, may have lost sight of them, because a
 * launcher starts them, and a launcher may have died. */
#include "job_processes.h"
#include "job.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads /proc/PID/FILE into *out and appends a NUL. Leaves *out empty if that fails. */
static void read_process(const char *pid, const char *file, ax_buf *out)
{
    enum { CHUNK = 16384 };
    char path[64];
    ssize_t n = 0;
    out->size = 0;
    snprintf(path, sizeof path, "/proc/%.20s/%s", pid, file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && ax_buf_reserve(out, CHUNK) == AX_OK && (n = read(fd, out->data + out->size, CHUNK)) > 0)
        out->size += (size_t)n;
    if (fd >= 0)
        close(fd);
    if (out->size)
        out->data[out->size] = 0;
}

/* Returns the pid of the parent process, 0 if the process has ended. *state is R (running), S (sleeping), Z
 * (ended, and not yet waited for by its parent) and so on. */
static pid_t parent_of(const char *pid, char *state, ax_buf *work)
{
    read_process(pid, "stat", work);
    /* The text is "PID (NAME) STATE PARENT …"; the name may itself hold any byte. */
    const char *end = work->size ? strrchr(work->data, ')') : NULL;
    *state = end && strlen(end) > 4 ? end[2] : 0;
    return *state ? (pid_t)strtol(end + 4, NULL, 10) : 0;
}

/* Returns true if the environment of the process has the variable CLI_NOTE with this job's value, which marks
 * processes of the job. Returns false for a process that has ended: its environment is empty. */
static bool is_marked(const char *pid, ax_buf *work)
{
    char mark[128];
    const char *path = getenv(CLI_NOTE);
    snprintf(mark, sizeof mark, CLI_NOTE "=%s", path ? path : "");
    read_process(pid, "environ", work);
    return work->size && memmem(work->data, work->size, mark, strlen(mark) + 1);
}

/* Returns true if the process runs the file that this process runs. */
static bool is_this_program(const char *pid)
{
    char path[64], own[4096], other[4096];
    snprintf(path, sizeof path, "/proc/%.20s/exe", pid);
    ssize_t n = readlink("/proc/self/exe", own, sizeof own), m = readlink(path, other, sizeof other);
    return n > 0 && n == m && !memcmp(own, other, (size_t)n);
}

/* Calls `visit` with each process of this host until it returns true. Returns whether it did. */
static bool visit_processes(bool (*visit)(const char *pid, ax_buf *work, void *data), void *data)
{
    bool found = false;
    ax_buf work = {0};
    DIR *processes = opendir("/proc");
    for (const struct dirent *entry; processes && !found && (entry = readdir(processes));)
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9')
            found = visit(entry->d_name, &work, data);
    if (processes)
        closedir(processes);
    ax_buf_fini(&work);
    return found;
}

static pid_t number_of(const char *pid) { return (pid_t)strtol(pid, NULL, 10); }

static bool visit_rank(const char *pid, ax_buf *work, void *data)
{
    if (!is_this_program(pid) || !is_marked(pid, work))
        return false;
    *(pid_t *)data = number_of(pid);
    return true;
}

bool cli_job_rank_lives(pid_t *known)
{
    char pid[32];
    ax_buf work = {0};
    snprintf(pid, sizeof pid, "%ld", (long)*known);
    bool lives = *known && visit_rank(pid, &work, known);
    ax_buf_fini(&work);
    return lives || visit_processes(visit_rank, known);
}

static bool visit_zombie(const char *pid, ax_buf *work, void *data)
{
    char state;
    return parent_of(pid, &state, work) == *(pid_t *)data && state == 'Z';
}

bool cli_job_has_zombie(pid_t parent) { return visit_processes(visit_zombie, &parent); }

bool cli_job_has(pid_t process)
{
    char pid[32];
    ax_buf work = {0};
    snprintf(pid, sizeof pid, "%ld", (long)process);
    bool has = is_marked(pid, &work);
    ax_buf_fini(&work);
    return has;
}

typedef struct signalling {
    int number;
    pid_t parent; /* 0: any */
    bool any;     /* a process got the signal */
} signalling;

static bool visit_signal(const char *pid, ax_buf *work, void *data)
{
    char state;
    signalling *s = data;
    if ((!s->parent || parent_of(pid, &state, work) == s->parent) && is_marked(pid, work)) {
        s->any = true;
        kill(number_of(pid), s->number);
    }
    return false;
}

bool cli_job_signal_children(int number)
{
    signalling s = {.number = number, .parent = getpid()};
    visit_processes(visit_signal, &s);
    return s.any;
}

void cli_job_kill_all(void) { visit_processes(visit_signal, &(signalling){.number = SIGKILL}); }
