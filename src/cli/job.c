/* Runs an MPI launcher (mpirun) as a child process.
 *
 * The launcher gets its own session, so that signals from the terminal reach this process only. After SIGTERM
 * or SIGINT, a launcher kills its ranks within a second, which is too soon to save a checkpoint. But a
 * launcher passes SIGUSR1 on to the ranks that have started. So this process sends SIGUSR1 repeatedly, until
 * a rank acknowledges it. If this process dies, the launcher gets SIGTERM.
 *
 * This process is a subreaper: if a descendant's parent ends, the descendant becomes a child of this process,
 * so that this process can end it too. This process ends only children whose environment names this job's
 * note (cli_note in job.h, memory that this process shares with the ranks). Other children may not belong to
 * the job: if a shell started axonn by exec, the shell's background jobs are children too. */
#include "job.h"

#include "axonn/comm.h"
#include "axonn/engine.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define POLL_SECONDS 0.02
#define REPEAT_SECONDS 0.1 /* seconds between two sends of a signal to the launcher */
#define HEARD_SECONDS 5    /* seconds for a rank to acknowledge a signal */
#define END_SECONDS 3      /* seconds for a launcher to end its ranks after SIGTERM; some first wait 1 s */
#define GONE_SECONDS 10    /* seconds for a launcher to notice that rank 0 has ended */
#define ORPHAN_SECONDS 1   /* seconds for ranks to end by themselves after their launcher */

/* ---- signals to this process --------------------------------------------------------------------- */

static volatile sig_atomic_t came, came_again;

static void note_signal(int number)
{
    static int64_t first_ms;
    if (ax_signal_again(&first_ms) && number == SIGINT)
        came_again = 1;
    came = number;
}

static const int watched[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};

static void catch_signals(void)
{
    for (size_t i = 0; i < AX_COUNT(watched); i++) {
        struct sigaction before, action = {.sa_handler = note_signal, .sa_flags = SA_RESTART};
        if (!sigaction(watched[i], NULL, &before) &&
            before.sa_handler !=
                SIG_IGN) /* a signal that is ignored, like SIGHUP under nohup, stays ignored */
            sigaction(watched[i], &action, NULL);
    }
    if (!came &&
        ax_signal_pending()) /* the verb's handler recorded a signal before this handler was installed */
        note_signal(ax_signal_pending());
}

/* ---- the launcher -------------------------------------------------------------------------------- */

/* Removes the environment variables that another launcher set for this process; the new launcher would take
 * them for its own. */
static void clear_launcher_variables(void)
{
    static const char *const prefixes[] = {"OMPI_", "PMIX_", "PMI_", "ORTE_"};
    for (char **at = environ; *at;) {
        char name[128];
        bool found = false;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*at, "="), *at);
        for (size_t i = 0; i < AX_COUNT(prefixes); i++)
            found |= !strncmp(name, prefixes[i], strlen(prefixes[i]));
        if (!found ||
            unsetenv(name)) /* unsetenv moves the following variables down, so *at is then the next one */
            at++;
    }
}

static void become_launcher(const cli_job *job, pid_t parent)
{
    if (ax_launcher_find().launcher)
        clear_launcher_variables();
    if (job->session)
        setenv("OMPI_MCA_orte_tmpdir_base", job->session, 0); /* the user's own choice has priority */
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(AX_ERR_COMM);
    for (size_t i = 0; i < AX_COUNT(watched); i++)
        signal(watched[i], SIG_DFL);
    /* The launcher is not in the terminal's session, so it would be stopped if it read from the terminal. */
    int null = job->keeps_input ? -1 : open("/dev/null", O_RDONLY);
    if (null >= 0)
        dup2(null, STDIN_FILENO);
    execvp(job->words[0], job->words);
    dprintf(STDERR_FILENO, "axonn: cannot start %s: %s\n", job->words[0], strerror(errno));
    _exit(CLI_CANNOT_START);
}

/* ---- the note of the ranks (cli_note) ------------------------------------------------------------ */

/* Creates the shared memory (memfd) for the note and puts its path into the environment variable CLI_NOTE,
 * which also marks the processes of this job. Returns the file descriptor, or -1 if the memory cannot be
 * created. */
static int open_note(void)
{
    char path[64];
    int fd = memfd_create(CLI_NOTE_NAME, MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, sizeof(cli_note))) {
        close(fd);
        fd = -1;
    }
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)getpid(), fd);
    setenv(CLI_NOTE, path, 1);
    return fd;
}

static void read_note(int fd, cli_note *note)
{
    cli_note now;
    if (fd >= 0 && pread(fd, &now, sizeof now, 0) == sizeof now)
        *note = now;
}

/* ---- watching the launcher ----------------------------------------------------------------------- */

typedef struct watch {
    cli_job *job;
    pid_t pid;
    double asked, sent; /* time when the signal came, and when it was last passed on; 0: not yet */
    double ending;      /* time when SIGTERM was sent to the launcher; 0: not yet */
    double gone; /* time when rank 0 was first found to have ended; 0: it was not found to have ended */
} watch;

static void end_launcher(watch *w, double now)
{
    if (!w->ending) {
        w->ending = now;
        kill(w->pid, SIGTERM);
    } else if (now - w->ending > END_SECONDS)
        kill(w->pid, SIGKILL);
}

/* Passes the signal on to the launcher until a rank acknowledges it. Ends the job instead if the verb has no
 * stop signal, if SIGINT came twice, or if no rank has acknowledged the signal within HEARD_SECONDS (unless
 * job->elsewhere: the ranks may then be unable to acknowledge it). Passes the signal on only after rank 0 has
 * joined the world: a rank that has not joined yet would be killed by the signal, as if it had failed. If
 * rank 0 is on another host, nothing tells when it has joined, so the wait is HEARD_SECONDS. Once rank 0 has
 * ended, the launcher gets the rest of HEARD_SECONDS to print the last output and to end. */
static void forward_signal(watch *w, double now)
{
    cli_job *job = w->job;
    w->asked = w->asked > 0 ? w->asked : now;
    bool late = now - w->asked > HEARD_SECONDS;
    if (job->note.ended && !job->at_once && !late)
        return;
    job->unheard = job->unheard || (job->stop && late && !job->note.heard && !job->elsewhere);
    if (w->ending > 0 || job->at_once || !job->stop || job->unheard) {
        end_launcher(w, now);
    } else if (!job->note.heard && now - w->sent > REPEAT_SECONDS && (job->note.pid || late)) {
        w->sent = now;
        kill(w->pid, job->stop);
    }
}

/* Kills the launcher if rank 0 ended more than GONE_SECONDS ago: some launchers wait forever for hosts that
 * they cannot reach. */
static void end_if_gone(watch *w, double now)
{
    const cli_note *note = &w->job->note;
    bool alive = !note->pid || !kill((pid_t)note->pid, 0);
    w->gone = alive ? 0 : w->gone > 0 ? w->gone : now;
    if (!alive && now - w->gone > GONE_SECONDS)
        kill(w->pid, SIGKILL); /* the launcher's ranks and daemons notice its death and end */
}

static void watch_launcher(watch *w, int note_fd)
{
    while (waitpid(w->pid, &w->job->status, WNOHANG) == 0) {
        double now = ax_now();
        read_note(note_fd, &w->job->note);
        w->job->signal = came;
        w->job->at_once = came_again;
        if (came)
            forward_signal(w, now);
        end_if_gone(w, now);
        usleep((useconds_t)(POLL_SECONDS * 1e6));
    }
    read_note(note_fd, &w->job->note);
    w->job->signal = came;
}

/* ---- processes that a launcher leaves behind ----------------------------------------------------- */

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

static bool is_child(const char *pid, ax_buf *work)
{
    read_process(pid, "stat", work);
    const char *end = work->size ? strrchr(work->data, ')')
                                 : NULL; /* end of the process name, which may itself hold any byte */
    return end && strlen(end) > 4 &&
           strtol(end + 4, NULL, 10) ==
               getpid(); /* the text at `end` is ") STATE PARENT"; PARENT is the pid of the parent process */
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

/* Sends signal `number` (0: none) to all children of this process that belong to the job. Returns true if
 * there are such children. */
static bool signal_orphans(int number)
{
    bool any = false;
    ax_buf work = {0};
    DIR *processes = opendir("/proc");
    for (const struct dirent *entry; processes && (entry = readdir(processes));)
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && is_child(entry->d_name, &work) &&
            is_marked(entry->d_name, &work)) {
            any = true;
            kill((pid_t)strtol(entry->d_name, NULL, 10), number);
        }
    if (processes)
        closedir(processes);
    ax_buf_fini(&work);
    return any;
}

/* Waits for ranks to end by themselves after their launcher has ended, and kills those that do not within
 * ORPHAN_SECONDS. A process that ends during a search may leave children that the search missed. So the
 * search is repeated as long as it finds a process, or a process has ended since the last search, but for at
 * most 2 · ORPHAN_SECONDS. */
static void end_orphans(void)
{
    double begin = ax_now(), waited = 0;
    for (bool any = true; any && waited < 2 * ORPHAN_SECONDS; waited = ax_now() - begin) {
        any = signal_orphans(waited > ORPHAN_SECONDS ? SIGKILL : 0);
        while (waitpid(-1, NULL, WNOHANG) > 0)
            any = true;
        if (any)
            usleep((useconds_t)(POLL_SECONDS * 1e6));
    }
}

ax_status cli_job_run(cli_job *job)
{
    pid_t parent = getpid();
    int note_fd = open_note();
    catch_signals();
    job->signal = came;
    if (came && job->stop)
        return AX_OK;
    signal(SIGCHLD,
           SIG_DFL); /* if SIGCHLD were ignored, waitpid would not return the exit status of the launcher */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    pid_t pid = fork();
    AX_CHECK(pid >= 0, AX_ERR_MEMORY,
             "cannot start a process for the launcher of the ranks: %s; the limit of processes (ulimit -u) "
             "or of memory may be reached",
             strerror(errno));
    if (!pid)
        become_launcher(job, parent);
    job->started = true;
    watch_launcher(&(watch){.job = job, .pid = pid}, note_fd);
    end_orphans();
    if (note_fd >= 0)
        close(note_fd);
    return AX_OK;
}
