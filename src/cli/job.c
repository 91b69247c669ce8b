/* Running a launcher. It gets a session of its own, so that what a terminal sends reaches this process alone:
 * launchers kill their ranks a second after a SIGTERM or SIGINT, which is too soon to save, but pass SIGUSR1
 * on. They pass it on to the ranks that they have started: what comes earlier is lost, so it is repeated
 * until a rank says that it has come. If this process dies, the launcher is told to end. Processes whose
 * parent has ended become this one's children, so that it can end them too. */
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
#define REPEAT_SECONDS 0.1 /* between two of the same signal */
#define HEARD_SECONDS 5    /* for a rank to acknowledge one */
#define END_SECONDS 3      /* for a launcher to end its ranks: some give them one second */
#define GONE_SECONDS 10    /* for a launcher to notice that rank 0 has gone */
#define ORPHAN_SECONDS 1   /* for ranks to end after their launcher */

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
        if (!sigaction(watched[i], NULL, &before) && before.sa_handler != SIG_IGN) /* as nohup wants it */
            sigaction(watched[i], &action, NULL);
    }
    if (!came && ax_signal_pending()) /* since main began */
        note_signal(ax_signal_pending());
}

/* ---- the launcher -------------------------------------------------------------------------------- */

/* A launcher that is itself started by one would take what that one says for its own. */
static void forget_launcher(void)
{
    static const char *const prefixes[] = {"OMPI_", "PMIX_", "PMI_", "ORTE_"};
    for (char **at = environ; *at;) {
        char name[128];
        bool found = false;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*at, "="), *at);
        for (size_t i = 0; i < AX_COUNT(prefixes); i++)
            found |= !strncmp(name, prefixes[i], strlen(prefixes[i]));
        if (!found || unsetenv(name)) /* what is unset moves the rest here */
            at++;
    }
}

static void become_launcher(const cli_job *job, pid_t parent)
{
    if (ax_launcher_find().launcher)
        forget_launcher();
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(AX_ERR_COMM);
    for (size_t i = 0; i < AX_COUNT(watched); i++)
        signal(watched[i], SIG_DFL);
    /* A launcher that waits for the terminal's input would be stopped. */
    int null = job->keeps_input ? -1 : open("/dev/null", O_RDONLY);
    if (null >= 0)
        dup2(null, STDIN_FILENO);
    execvp(job->words[0], job->words);
    dprintf(STDERR_FILENO, "axonn: cannot start %s: %s\n", job->words[0], strerror(errno));
    _exit(CLI_CANNOT_START);
}

/* ---- notes --------------------------------------------------------------------------------------- */

/* Memory for what ranks tell, known to them by a path; -1 if there is none to be had. */
static int open_note(void)
{
    char path[64];
    int fd = memfd_create(CLI_NOTE_NAME, MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, sizeof(cli_note))) {
        close(fd);
        fd = -1;
    }
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)getpid(), fd);
    if (fd >= 0)
        setenv(CLI_NOTE, path, 1);
    return fd;
}

static void read_note(int fd, cli_note *note)
{
    cli_note now;
    if (fd >= 0 && pread(fd, &now, sizeof now, 0) == sizeof now)
        *note = now;
}

/* ---- watching ------------------------------------------------------------------------------------ */

typedef struct watch {
    cli_job *job;
    pid_t pid;
    double asked, sent; /* when the signal came, and when it was passed on last */
    double ending;      /* since when the launcher has been told to end its ranks */
    double gone;        /* since when rank 0 has been gone */
} watch;

static void end_launcher(watch *w, double now)
{
    if (!w->ending) {
        w->ending = now;
        kill(w->pid, SIGTERM);
    } else if (now - w->ending > END_SECONDS)
        kill(w->pid, SIGKILL);
}

/* Ranks listen once there is a world; before, a signal would end them as if they had failed. */
static void pass_on(watch *w, double now)
{
    cli_job *job = w->job;
    w->asked = w->asked > 0 ? w->asked : now;
    bool late = now - w->asked > HEARD_SECONDS;
    job->unheard = job->unheard || (job->stop && late && !job->note.heard && !job->elsewhere);
    if (w->ending > 0 || job->at_once || !job->stop || job->unheard) {
        end_launcher(w, now);
    } else if (!job->note.heard && now - w->sent > REPEAT_SECONDS && (job->note.pid || late)) {
        w->sent = now;
        kill(w->pid, job->stop);
    }
}

/* A launcher waits for hosts that cannot be reached any more. */
static void end_if_gone(watch *w, double now)
{
    const cli_note *note = &w->job->note;
    bool alive = !note->pid || !kill((pid_t)note->pid, 0);
    w->gone = alive ? 0 : w->gone > 0 ? w->gone : now;
    if (!alive && now - w->gone > GONE_SECONDS)
        kill(w->pid, SIGKILL); /* its ranks and daemons notice */
}

static void watch_launcher(watch *w, int note_fd)
{
    while (waitpid(w->pid, &w->job->status, WNOHANG) != w->pid) {
        double now = ax_now();
        read_note(note_fd, &w->job->note);
        w->job->signal = came;
        w->job->at_once = came_again;
        if (came)
            pass_on(w, now);
        end_if_gone(w, now);
        usleep((useconds_t)(POLL_SECONDS * 1e6));
    }
    read_note(note_fd, &w->job->note);
    w->job->signal = came;
}

/* ---- what a launcher leaves behind --------------------------------------------------------------- */

static bool is_child(const char *name)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%.20s/stat", name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = 0;
    const char *end = strrchr(text, ')'); /* of the name, which may hold anything */
    return end && strlen(end) > 4 && strtol(end + 4, NULL, 10) == getpid(); /* ") S PARENT" */
}

static void kill_children(void)
{
    DIR *processes = opendir("/proc");
    for (const struct dirent *entry; processes && (entry = readdir(processes));)
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && is_child(entry->d_name))
            kill((pid_t)strtol(entry->d_name, NULL, 10), SIGKILL);
    if (processes)
        closedir(processes);
}

/* Ranks end by themselves soon after their launcher; what does not is killed. */
static void end_orphans(void)
{
    double begin = ax_now();
    for (pid_t ended = 0; ended >= 0 && ax_now() - begin < 2 * ORPHAN_SECONDS;) {
        ended = waitpid(-1, NULL, WNOHANG);
        if (ended == 0 && ax_now() - begin > ORPHAN_SECONDS)
            kill_children();
        if (ended == 0)
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
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    pid_t pid = fork();
    AX_CHECK(pid >= 0, AX_ERR_MEMORY, "cannot start a process: %s", strerror(errno));
    if (!pid)
        become_launcher(job, parent);
    job->started = true;
    watch_launcher(&(watch){.job = job, .pid = pid}, note_fd);
    end_orphans();
    if (note_fd >= 0)
        close(note_fd);
    return AX_OK;
}
