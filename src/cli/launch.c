/* `--ranks N`: the program starts itself again as N ranks, through the launcher of the MPI library that it
 * was built with (job.c). A launcher's exit code is not always that of the ranks. So rank 0, if it runs on
 * this host, also writes its exit code into shared memory of this process (cli_note in job.h). */
#include "launch.h"
#include "hosts.h"

#include "job.h"

#include "axonn/runtime.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(AXONN_HAVE_MPI) && !defined(AXONN_MPIEXEC)
#error "the build defines AXONN_MPIEXEC"
#endif

ax_status cli_launch_wanted(const cli_launch *launch, bool *out)
{
    ax_launcher started = ax_launcher_find();
    *out = (launch->ranks > 1 && started.size < 2) || (launch->hosts && !started.launcher);
    AX_CHECK(!launch->hosts || launch->ranks > 0, AX_ERR_USAGE,
             "--hosts: also give --ranks, the number of ranks to start");
    AX_CHECK(!launch->ranks || *out || ax_max(started.size, 1) == launch->ranks, AX_ERR_USAGE,
             "--ranks %lld, but %s started %d ranks: leave out --ranks, or start axonn without the launcher",
             (long long)launch->ranks, started.launcher, started.size);
    return AX_OK;
}

#ifndef AXONN_HAVE_MPI
ax_status cli_launch_run(const cli_launch *launch, const cli_verb *verb, size_t n, char *const *words)
{
    (void)verb, (void)n, (void)words;
    return ax_fail(AX_ERR_USAGE,
                   "--ranks %lld: this program was built without MPI; install an MPI library "
                   "(scripts/install-deps.sh does) and build the program again",
                   (long long)launch->ranks);
}
#else

/* ---- the command line ---------------------------------------------------------------------------- */

typedef struct command {
    size_t n, room;
    char **word; /* ends with NULL */
    ax_status status;
} command;

static void add(command *c, const char *word)
{
    if (c->status == AX_OK && c->n + 2 > c->room) {
        char **more;
        c->status = ax_calloc(c->room * 2 + 16, sizeof *more, &more);
        if (c->status != AX_OK)
            return;
        if (c->n)
            memcpy(more, c->word, c->n * sizeof *more);
        free(c->word);
        c->word = more;
        c->room = c->room * 2 + 16;
    }
    if (c->status == AX_OK)
        c->status = ax_strdup(word, &c->word[c->n]);
    c->n += c->status == AX_OK;
}

static void add_number(command *c, int64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    add(c, text);
}

static void command_fini(command *c)
{
    for (size_t i = 0; i < c->n; i++)
        free(c->word[i]);
    free(c->word);
}

/* Appends the list of hosts, in which each host has a number of ranks. "a,b:2" becomes "a:K,b:2", where K is
 * the number for hosts without one (cli_hosts_read). */
static ax_status host_list(const cli_launch *launch, ax_buf *out)
{
    cli_hosts hosts;
    ax_status status = cli_hosts_read(launch->hosts, launch->ranks, &hosts);
    for (int i = 0; i < hosts.n && status == AX_OK; i++)
        status = ax_buf_printf(out, "%s%s:%lld", i ? "," : "", hosts.name[i], (long long)hosts.slots[i]);
    cli_hosts_fini(&hosts);
    return status;
}

/* Adds the argument that makes Open MPI pass the environment variable `name` to ranks on other hosts. */
static void pass_variable(command *c, const char *name)
{
    if (!getenv(name))
        return;
    add(c, "-x");
    add(c, name);
}

/* Adds the arguments for Open MPI. Binding to cores is turned off: by default, with at most two ranks, Open
 * MPI binds each rank with all its threads to a single core. Two things must be allowed explicitly: running
 * as root, and more ranks than cores. */
static void add_openmpi(command *c, const cli_launch *launch, const char *hosts)
{
    add(c, "-q"); /* quiet: this program itself reports how the job ended */
    add(c, "--bind-to");
    add(c, "none");
    add(c, "--oversubscribe");
    if (!geteuid())
        add(c, "--allow-run-as-root");
    if (hosts) {
        for (size_t i = 0; i < AX_RUNTIME_COUNT; i++)
            pass_variable(c, ax_runtime_options[i].variable);
        pass_variable(c, "NO_COLOR");
        add(c, "--host");
        add(c, hosts);
    }
    add(c, "-n");
    add_number(c, launch->ranks);
}

/* Adds the arguments for MPICH and launchers derived from it. These launchers do not bind ranks to cores by
 * default, so binding need not be turned off. */
static void add_mpich(command *c, const cli_launch *launch, const char *hosts)
{
    if (hosts) {
        add(c, "-hosts");
        add(c, hosts);
    }
    add(c, "-n");
    add_number(c, launch->ranks);
}

static ax_status make_command(const cli_launch *launch, size_t n, char *const *words, command *c)
{
    char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    AX_CHECK(length > 0, AX_ERR_INTERNAL,
             "the program cannot find its own file by /proc/self/exe: %s; /proc must be mounted",
             strerror(errno));
    self[length] = 0;
    ax_buf hosts = {0};
    if (launch->hosts)
        c->status = host_list(launch, &hosts);
    add(c, AXONN_MPIEXEC);
    (strcmp(AXONN_MPI_KIND, "openmpi") ? add_mpich : add_openmpi)(c, launch, hosts.data);
    ax_buf_fini(&hosts);
    add(c, self);
    for (size_t i = 0; i < n; i++)
        add(c, words[i]);
    return c->status;
}

/* ---- running the launcher ------------------------------------------------------------------------ */

/* Writes the command line for an error message, with -v (verbose) in place of -q, so that the user who runs
 * it sees the launcher's own messages. */
static void print_command(char *const *words, char *out, size_t size)
{
    *out = 0;
    for (size_t i = 0; words[i]; i++)
        ax_text_add(out, size, "%s%s", i ? " " : "", strcmp(words[i], "-q") ? words[i] : "-v");
}

/* Ends this process by the signal's default action, so that its parent sees that the signal ended it. */
static void raise_default(int number)
{
    signal(number, SIG_DFL);
    raise(number);
}

/* Returns AX_ERR_SIGNAL for a job that a signal ended before the ranks could stop by themselves. If the verb
 * has no stop signal, or SIGINT came twice, ends this process by the signal instead. */
static ax_status fail_by_signal(const cli_job *job)
{
    if (job->at_once)
        fprintf(stderr, "axonn: ended at once by a second %s, without saving\n", strsignal(job->signal));
    if (!job->stop || job->at_once)
        raise_default(job->signal);
    AX_CHECK(
        !job->note.pid, AX_ERR_SIGNAL,
        "stopped by %s, which no rank acknowledged: the job was ended without saving; run the same command "
        "to resume from the newest checkpoint",
        strsignal(job->signal));
    return ax_fail(AX_ERR_SIGNAL, "stopped by %s before %s; nothing was changed: run the same command again",
                   strsignal(job->signal), job->started ? "any rank had begun" : "the ranks were started");
}

/* Checks the limit of open files (ulimit -n). Open MPI's launcher opens 32 files, and 4 more for each rank on
 * this host. If the limit is slightly too low, the launcher does not fail but waits forever. */
static ax_status check_open_files(const cli_launch *launch)
{
    struct rlimit limit;
    long long needed = 48 + (launch->hosts ? 0 : 4 * (long long)launch->ranks);
    AX_CHECK(getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= (rlim_t)needed, AX_ERR_COMM,
             "the launcher of %lld ranks needs %lld open files, and the limit (ulimit -n) is %llu: raise it",
             (long long)launch->ranks, needed, (unsigned long long)limit.rlim_cur);
    return AX_OK;
}

/* Checks that the current directory exists, and lets a launcher that is started without PATH find its own
 * programs and the shell. */
static ax_status check_surroundings(void)
{
    char *here = getcwd(NULL, 0);
    AX_CHECK(
        here, AX_ERR_DATA,
        "the launcher of the ranks cannot start, because the path of the current directory is not known: "
        "%s; change to another directory",
        strerror(errno));
    free(here);
    setenv("PATH", "/usr/local/bin:/usr/bin:/bin", 0);
    return AX_OK;
}

/* Returns true if the stack limit is below 1 MiB, too little for some launchers. */
static bool stack_is_small(void)
{
    struct rlimit limit;
    return !getrlimit(RLIMIT_STACK, &limit) && limit.rlim_cur < 1 << 20;
}

/* Returns true if a signal ended the job before the ranks could stop by themselves. If the verb has no stop
 * signal, ranks may report errors that follow from the launcher's end, such as a closed standard input. Such
 * a job counts as ended by the signal. */
static bool ended_by_signal(const cli_job *job)
{
    const cli_note *note = &job->note;
    if (!job->signal)
        return false;
    if (!job->stop)
        return !note->ended || note->code || job->status || job->lost == EINTR;
    return !note->ended && (!note->heard || job->unheard || job->at_once);
}

/* Returns the status of the job: the exit code that rank 0 noted or, if it noted none or 0, that of the
 * launcher. Ranks print their own errors. If a signal ended a rank, MPICH's launcher exits with the signal's
 * number; Open MPI's launcher and the shell exit with 128 + that number. */
static ax_status job_result(const cli_job *job)
{
    char text[1024];
    const cli_note *note = &job->note;
    int status = job->status, noted = note->ended ? note->code : -1;
    int code = noted > 0 ? noted : WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    bool told = noted > 0 || (code > 1 && code <= AX_ERR_SIGNAL);
    if (ended_by_signal(job))
        return fail_by_signal(job);
    struct sigaction pipe;
    if (job->lost == EPIPE && noted <= 0 && !sigaction(SIGPIPE, NULL, &pipe) && pipe.sa_handler == SIG_DFL)
        raise_default(SIGPIPE); /* as a process that writes to a closed pipe itself */
    AX_CHECK(!job->lost || noted > 0, AX_ERR_DATA, "standard output cannot be written: %s",
             strerror(job->lost));
    if (job->signal && noted == 0) /* the signal may have ended the launcher after the ranks had finished */
        return AX_OK;
    AX_CHECK(!job->gone || noted >= 0, AX_ERR_COMM,
             "%s ended without an exit code, and the launcher did not notice and was ended: %s",
             job->elsewhere ? "rank 0" : "all ranks",
             job->elsewhere ? "some hosts may be out of reach"
                            : "the messages above may say why; a limit (ulimit -a), the memory or the "
                              "directory of temporary files (TMPDIR) may be exhausted");
    if (job->gone && noted == 0) /* the ranks have done their work */
        return AX_OK;
    AX_CHECK(
        noted <= 0 || !WIFSIGNALED(status), (ax_status)noted,
        "the ranks ended with exit code %d; the launcher was ended by signal %d (%s), so their messages may "
        "be missing above",
        noted, WTERMSIG(status), strsignal(WTERMSIG(status)));
    AX_CHECK(!WIFSIGNALED(status), AX_ERR_COMM,
             "the launcher was ended by signal %d (%s), and the job with it%s", WTERMSIG(status),
             strsignal(WTERMSIG(status)),
             stack_is_small() ? ": its stack limit (ulimit -s) is below 1 MiB, raise it"
                              : ": the messages above may say why");
    if (told)
        cli_ranks_print_error();
    AX_CHECK(code || !note->pid || note->ended,
             AX_ERR_COMM, /* MPICH's launcher returns 0 after some aborts */
             "rank 0 ended without an exit code, and the launcher returned 0; the lines above may say why");
    if (noted > 0 || (code <= AX_ERR_SIGNAL && code != AX_ERR_INTERNAL))
        return (ax_status)code;
    AX_CHECK(code != CLI_CANNOT_START, AX_ERR_USAGE,
             "--ranks: the launcher of the MPI library, %s, could not be started: install it, or use another "
             "launcher of the same library (mpirun -n N axonn …)",
             AXONN_MPIEXEC);
    int number = code > 128 ? code - 128 : code;
    AX_CHECK(code == AX_ERR_INTERNAL || number >= NSIG, AX_ERR_COMM,
             "a rank was ended by signal %d (%s), and the job with it%s", number, strsignal(number),
             number == SIGKILL ? ": the machine may have run out of memory"
                               : ": the messages above may say why");
    print_command(job->words, text, sizeof text);
    AX_CHECK(
        note->pid || job->elsewhere, AX_ERR_COMM,
        "the launcher could not start the ranks (its exit code is %d): see its messages above, or run it "
        "directly: %s",
        code, text);
    return ax_fail(code == AX_ERR_INTERNAL ? AX_ERR_INTERNAL : AX_ERR_COMM,
                   "the launcher ended with exit code %d: see the messages above, or run it directly: %s",
                   code, text);
}

/* Creates the directory for the session files of Open MPI's launcher. By default all launchers of a user
 * share one directory. The launcher that ends last removes it, and a launcher that starts at that moment
 * fails. */
static ax_status create_session(char *path, size_t size)
{
    snprintf(path, size, "%s/axonn-session-XXXXXX", ax_temporary_dir());
    AX_CHECK(mkdtemp(path), AX_ERR_COMM,
             "the launcher cannot start the ranks, because it cannot write to the directory of temporary "
             "files %s: %s (set the environment variable TMPDIR to another)",
             ax_temporary_dir(), strerror(errno));
    return AX_OK;
}

/* Runs the job, with a directory for the session files of Open MPI's launcher. With --hosts, the launcher
 * uses its default directory instead, because nothing would remove this job's directory on the other hosts.
 */
static ax_status run_job(cli_job *job)
{
    char session[4096];
    if (!strcmp(AXONN_MPI_KIND, "openmpi") && !job->elsewhere) {
        AX_TRY(create_session(session, sizeof session));
        job->session = session;
    }
    ax_status status = cli_job_run(job);
    if (job->session && ax_remove_tree(session) != AX_OK)
        ax_log(AX_LOG_WARN, "%s", ax_error_message());
    job->session = NULL;
    return status;
}

ax_status cli_launch_run(const cli_launch *launch, const cli_verb *verb, size_t n, char *const *words)
{
    command c = {0};
    ax_status result = make_command(launch, n, words, &c);
    cli_job job = {.words = c.word,
                   .stop = verb->stop,
                   .elsewhere = launch->hosts,
                   .keeps_input = verb->reads_input && verb->reads_input(launch) && !isatty(STDIN_FILENO)};
    fflush(NULL);
    if (result == AX_OK)
        result = check_surroundings();
    if (result == AX_OK)
        result = check_open_files(launch);
    if (result == AX_OK)
        result = run_job(&job);
    if (result == AX_OK)
        result = job_result(&job);
    command_fini(&c);
    return result;
}
#endif
