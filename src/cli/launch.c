/* `--ranks N`: the program starts itself again through the launcher of the MPI library that was built in
 * (job.c). What launchers return is not always what ranks did, so rank 0, where it runs on this host, writes
 * its exit code into memory that this process holds. */
#include "launch.h"
#include "hosts.h"

#include "job.h"

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
             "--hosts: say with --ranks how many ranks to start");
    AX_CHECK(!launch->ranks || *out || ax_max(started.size, 1) == launch->ranks, AX_ERR_USAGE,
             "--ranks %lld, but %s started %d: leave the one or the other to it", (long long)launch->ranks,
             started.launcher, started.size);
    return AX_OK;
}

#ifndef AXONN_HAVE_MPI
ax_status cli_launch_run(const cli_launch *launch, const cli_verb *verb, size_t n, char *const *words)
{
    (void)verb, (void)n, (void)words;
    return ax_fail(AX_ERR_USAGE,
                   "--ranks %lld: this program was built without MPI; install a library "
                   "(scripts/install-deps.sh does) and build it again",
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

/* "a,b:2" → "a:K,b:2" */
static ax_status host_list(const cli_launch *launch, ax_buf *out)
{
    cli_hosts hosts;
    ax_status status = cli_hosts_read(launch->hosts, launch->ranks, &hosts);
    for (int i = 0; i < hosts.n && status == AX_OK; i++)
        status = ax_buf_printf(out, "%s%s:%lld", i ? "," : "", hosts.name[i], (long long)hosts.slots[i]);
    cli_hosts_fini(&hosts);
    return status;
}

/* Open MPI: no binding, for it binds two ranks to one core each and their threads with them; and it has to be
 * told that root, and more ranks than cores, are meant. */
static void add_openmpi(command *c, const cli_launch *launch, const char *hosts)
{
    add(c, "-q"); /* how it ended is for us to tell */
    add(c, "--bind-to");
    add(c, "none");
    add(c, "--oversubscribe");
    if (!geteuid())
        add(c, "--allow-run-as-root");
    static const char *const passed[] = {"AXONN_ATTENTION", "AXONN_GRAPHS",         "AXONN_ISA",
                                         "AXONN_LOG",       "AXONN_NCCL",           "AXONN_PIN",
                                         "AXONN_PLANS",     "AXONN_RANKS_PER_NODE", "AXONN_SHARED_MEMORY",
                                         "NO_COLOR"};
    for (size_t i = 0; hosts && i < AX_COUNT(passed); i++)
        if (getenv(passed[i])) {
            add(c, "-x");
            add(c, passed[i]);
        }
    if (hosts) {
        add(c, "--host");
        add(c, hosts);
    }
    add(c, "-n");
    add_number(c, launch->ranks);
}

/* The family of MPICH binds nothing by itself. */
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
    AX_CHECK(length > 0, AX_ERR_INTERNAL, "the program cannot find its own file: %s", strerror(errno));
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

/* ---- running it ---------------------------------------------------------------------------------- */

static void print_command(char *const *words, char *out, size_t size)
{
    *out = 0;
    for (size_t i = 0; words[i]; i++)
        ax_text_add(out, size, "%s%s", i ? " " : "", strcmp(words[i], "-q") ? words[i] : "-v");
}

/* As the parent expects, of a signal that ranks did not make an end of their own of. */
static void die_of(int number)
{
    signal(number, SIG_DFL);
    raise(number);
}

/* A signal came, and the ranks have not made an end of their own of it. */
static ax_status judge_signal(const cli_job *job)
{
    if (!job->stop || job->at_once)
        die_of(job->signal);
    AX_CHECK(
        !job->note.pid, AX_ERR_SIGNAL,
        "stopped by %s, which no rank acknowledged: the job was ended without saving; run the same command "
        "to go on from the newest checkpoint",
        strsignal(job->signal));
    return ax_fail(AX_ERR_SIGNAL, "stopped by %s before %s; nothing was changed: run the same command",
                   strsignal(job->signal), job->started ? "any rank had begun" : "the ranks were started");
}

/* Launchers are programs of others, whose stack is that of the limit. */
static bool stack_is_small(void)
{
    struct rlimit limit;
    return !getrlimit(RLIMIT_STACK, &limit) && limit.rlim_cur < 1 << 20;
}

/* What an end of the launcher means. The ranks have told their own errors. MPICH's launcher returns the
 * number of a signal as it is, the shell and Open MPI's 128 more. */
static ax_status judge(const cli_job *job)
{
    char text[1024];
    const cli_note *note = &job->note;
    int status = job->status, noted = note->ended ? note->code : -1;
    int code = noted > 0 ? noted : WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    bool told = noted > 0 || (code > 1 && code <= AX_ERR_SIGNAL);
    if (job->signal && !note->ended && (!note->heard || job->unheard || job->at_once))
        return judge_signal(job);
    if (note->pid && !note->ended && WIFSIGNALED(status)) /* told by the rank that ended the job */
        return ax_fail(AX_ERR_COMM,
                       "rank 0 has gone, and the launcher did not end: hosts may be out of reach");
    AX_CHECK(noted > 0 || !WIFSIGNALED(status), AX_ERR_COMM,
             "the launcher ended by signal %d (%s), and the job with it%s", WTERMSIG(status),
             strsignal(WTERMSIG(status)),
             stack_is_small() ? ": its stack is limited (ulimit -s), and has to have a megabyte or more"
                              : "");
    if (told)
        cli_told_by_ranks();
    AX_CHECK(
        code || !note->pid || note->ended, AX_ERR_COMM, /* MPICH's, after some aborts */
        "rank 0 has gone without an exit code, and the launcher returned 0; a line above says why if a rank "
        "could");
    if (noted > 0 || (code <= AX_ERR_SIGNAL && code != AX_ERR_INTERNAL))
        return (ax_status)code;
    AX_CHECK(code != CLI_CANNOT_START, AX_ERR_USAGE,
             "--ranks: the launcher of the MPI library, %s, could not be started: install it, or start the "
             "ranks with another (mpirun -n N axonn …)",
             AXONN_MPIEXEC);
    int number = code > 128 ? code - 128 : code;
    AX_CHECK(code == AX_ERR_INTERNAL || number >= NSIG, AX_ERR_COMM,
             "a rank ended by signal %d (%s), and the job with it", number, strsignal(number));
    print_command(job->words, text, sizeof text);
    AX_CHECK(
        note->pid || job->elsewhere, AX_ERR_COMM,
        "the launcher could not start the ranks (it ended with code %d): the lines above are its own; if "
        "they do not say why, this may: %s",
        code, text);
    return ax_fail(code == AX_ERR_INTERNAL ? AX_ERR_INTERNAL : AX_ERR_COMM,
                   "the launcher ended with code %d; if nothing says why, this may: %s", code, text);
}

/* True if the words name standard input as data: data.train=/dev/stdin. */
static bool name_input(size_t n, char *const *words)
{
    for (size_t i = 0; i < n; i++)
        if (strstr(words[i], "/dev/stdin"))
            return true;
    return false;
}

ax_status cli_launch_run(const cli_launch *launch, const cli_verb *verb, size_t n, char *const *words)
{
    command c = {0};
    ax_status result = make_command(launch, n, words, &c);
    cli_job job = {.words = c.word,
                   .stop = verb->stop,
                   .elsewhere = launch->hosts,
                   .keeps_input = (verb->reads_input || name_input(n, words)) && !isatty(STDIN_FILENO)};
    fflush(NULL);
    if (result == AX_OK)
        result = cli_job_run(&job);
    if (result == AX_OK)
        result = judge(&job);
    command_fini(&c);
    return result;
}
#endif
