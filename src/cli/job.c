/* Runs an MPI launcher (mpirun) as a child process.
 *
 * The launcher gets its own session, so that signals from the terminal reach this process only. After SIGTERM
 * or SIGINT, a launcher kills its ranks within a second, which is too soon to save a checkpoint. But a
 * launcher passes SIGUSR1 on to the ranks that have started. So this process sends SIGUSR1 repeatedly, until
 * a rank acknowledges it. If this process dies, the launcher gets SIGTERM; a guard, a second child, then
 * kills what is left of the job, because a launcher may ignore SIGTERM.
 *
 * This process is a subreaper: if a descendant's parent ends, the descendant becomes a child of this process,
 * so that this process can end it too. This process ends only children whose environment names this job's
 * note (cli_note in job.h, memory that this process shares with the ranks). Other children may not belong to
 * the job: if a shell started axonn by exec, the shell's background jobs are children too. */
#include "job.h"
#include "job_output.h"
#include "job_processes.h"

#include "axonn/comm.h"
#include "axonn/train.h"

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
#define GONE_SECONDS 5     /* seconds for a launcher to notice that all ranks have ended */
#define FAR_SECONDS 10     /* the same for rank 0 of a job on several hosts */
#define LOOK_SECONDS 0.5   /* seconds between two searches for live ranks */
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

static void become_launcher(const cli_job *job, const cli_output *output, pid_t parent)
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
    if (output->end >= 0)
        dup2(output->end, STDOUT_FILENO);
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
    const cli_output *output;
    pid_t pid;
    double asked, sent; /* time when the signal came, and when it was last passed on; 0: not yet */
    double ending;      /* time when SIGTERM was sent to the launcher; 0: not yet */
    double
        gone; /* time when the ranks were first found to have ended; 0: they were not found to have ended */
    double looked; /* time of the last search for live ranks */
    double cost;   /* seconds that it took */
    pid_t rank;    /* a rank that was alive then; 0: none was found yet */
    bool begun;    /* a rank was found, or has written so */
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
 * ended, the launcher gets the rest of HEARD_SECONDS to print the last output and to end. If no rank is left,
 * an acknowledgement means nothing: end_if_gone ends the job. */
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

/* Returns true if the ranks have ended: all of them or, in a job on several hosts, rank 0, if it was on this
 * host. */
static bool ranks_ended(watch *w)
{
    const cli_note *note = &w->job->note;
    if (w->job->elsewhere)
        return note->pid && kill((pid_t)note->pid, 0);
    if (cli_job_rank_lives(&w->rank)) {
        w->begun = true;
        return false;
    }
    /* A zombie alone does not set w->begun: a launcher may run a helper, and wait for it, before the ranks.
     */
    w->begun = w->begun || note->begun;
    return w->begun || cli_job_has_zombie(w->pid);
}

/* Ends the job if the ranks ended some seconds ago and the launcher has not noticed: some launchers wait
 * forever for hosts that they cannot reach, or for a file that they cannot write. */
static void end_if_gone(watch *w, double now)
{
    /* The first rank is looked for often, because it may end early, but for at most a tenth of the time: a
     * search reads about all processes of the machine. */
    if (now - w->looked < (w->begun ? LOOK_SECONDS : 10 * w->cost))
        return;
    w->looked = now;
    w->gone = !ranks_ended(w) ? 0 : w->gone > 0 ? w->gone : now;
    w->cost = ax_now() - now;
    if (w->gone > 0 && now - w->gone > (w->job->elsewhere ? FAR_SECONDS : GONE_SECONDS)) {
        w->job->gone = true;
        end_launcher(w, now);
    }
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
        if (!w->job->stop && cli_output_error(w->output))
            end_launcher(w, now);
        end_if_gone(w, now);
        usleep((useconds_t)(POLL_SECONDS * 1e6));
    }
    read_note(note_fd, &w->job->note);
    w->job->signal = came;
}

/* ---- the end ---------------------------------------------------------------------------------------- */

/* Waits for ranks to end by themselves after their launcher has ended, and kills those that do not within
 * ORPHAN_SECONDS. A process that ends during a search may leave children that the search missed. So the
 * search is repeated as long as it finds a process, or a process has ended since the last search, but for at
 * most 2 · ORPHAN_SECONDS. */
static void end_orphans(void)
{
    double begin = ax_now(), waited = 0;
    for (bool any = true; any && waited < 2 * ORPHAN_SECONDS; waited = ax_now() - begin) {
        any = cli_job_signal_children(waited > ORPHAN_SECONDS ? SIGKILL : 0);
        while (waitpid(-1, NULL, WNOHANG) > 0)
            any = true;
        if (any)
            usleep((useconds_t)(POLL_SECONDS * 1e6));
    }
}

/* Ends the job of a process that died: waits for `alive` to close, gives the launcher the time to end after
 * the SIGTERM that it gets then, and kills what is left of the job. */
static _Noreturn void guard_job(const cli_job *job, pid_t launcher, int alive)
{
    char byte;
    setsid(); /* a signal from the terminal is none for the guard */
    prctl(PR_SET_NAME, "axonn-guard");
    for (size_t i = 0; i < AX_COUNT(watched); i++)
        signal(watched[i], SIG_IGN);
    int null = open("/dev/null", O_RDWR);
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        dup2(null, fd); /* whoever reads this program's output waits until the last holder has closed it */
    while (read(alive, &byte, 1) < 0 && errno == EINTR)
        ;
    for (double begin = ax_now(); cli_job_has(launcher) && ax_now() - begin < END_SECONDS;)
        usleep((useconds_t)(POLL_SECONDS * 1e6));
    cli_job_kill_all();
    if (job->session)
        _exit(ax_remove_tree(job->session) != AX_OK);
    _exit(0);
}

/* Starts the guard of the job. *alive is the descriptor that this process holds open as long as it lives.
 * Returns the guard's pid, -1 if there is none: a job without one runs as well. */
static pid_t start_guard(const cli_job *job, pid_t launcher, int *alive)
{
    int ends[2];
    *alive = -1;
    if (pipe2(ends, O_CLOEXEC))
        return -1;
    pid_t pid = fork();
    if (!pid) {
        close(ends[1]);
        guard_job(job, launcher, ends[0]);
    }
    close(ends[0]);
    *alive = ends[1];
    return pid;
}

static void end_guard(pid_t pid, int alive)
{
    if (pid > 0 && !kill(pid, SIGKILL))
        waitpid(pid, NULL, 0);
    if (alive >= 0)
        close(alive);
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
    cli_output output;
    cli_output_start(&output);
    pid_t pid = fork();
    if (pid < 0)
        cli_output_finish(&output, 0, &came);
    AX_CHECK(pid >= 0, AX_ERR_MEMORY,
             "cannot start a process for the launcher of the ranks: %s; the limit of processes (ulimit -u) "
             "or of memory may be reached",
             strerror(errno));
    if (!pid)
        become_launcher(job, &output, parent);
    cli_output_close_end(&output);
    job->started = true;
    int alive;
    pid_t guard = start_guard(job, pid, &alive);
    watch_launcher(&(watch){.job = job, .output = &output, .pid = pid}, note_fd);
    end_orphans();
    cli_output_finish(&output, ORPHAN_SECONDS, &came);
    job->lost = cli_output_error(&output);
    job->signal = came;
    end_guard(guard, alive);
    if (note_fd >= 0)
        close(note_fd);
    return AX_OK;
}
