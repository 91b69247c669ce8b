/* `--ranks N`: the program starts itself again through the launcher of the MPI library that was built in, and
 * watches over it. The launcher gets a session of its own, so that what a terminal sends reaches this process
 * alone: launchers kill their ranks a second after a SIGTERM or SIGINT, which is too soon to save, but pass
 * SIGUSR1 on. If this process dies, the launcher is told to end. What launchers return is not always what
 * ranks did, so rank 0, where it runs on this host, writes its exit code into memory that this process holds.
 */
#include "launch.h"
#include "hosts.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
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

static volatile sig_atomic_t came;
static volatile pid_t launcher;
static int stop_as;
static bool keeps_input; /* for rank 0, to which launchers pass it on */

enum { CANNOT_START = 126 };

/* A second signal of a terminal's user, not the same one that came twice, ends the job at once. */
static void pass_on(int number)
{
    static volatile time_t first;
    struct timespec now;
    int interrupted = errno; /* of the code that is interrupted */
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!came)
        first = now.tv_sec;
    bool again = came && number == SIGINT && now.tv_sec - first > 1;
    came = number;
    if (launcher > 0)
        kill(launcher, again ? SIGTERM : stop_as);
    errno = interrupted;
}

static const int passed_on[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};

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

static void become_launcher(const command *c, pid_t parent)
{
    if (ax_launcher_find().launcher)
        forget_launcher();
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(AX_ERR_COMM);
    for (size_t i = 0; i < AX_COUNT(passed_on); i++)
        signal(passed_on[i], SIG_DFL);
    /* A launcher that waits for the terminal's input would be stopped. */
    int null = keeps_input ? -1 : open("/dev/null", O_RDONLY);
    if (null >= 0)
        dup2(null, STDIN_FILENO);
    execvp(c->word[0], c->word);
    dprintf(STDERR_FILENO, "axonn: cannot start %s: %s\n", c->word[0], strerror(errno));
    _exit(CANNOT_START);
}

static void print_command(const command *c, char *out, size_t size)
{
    *out = 0;
    for (size_t i = 0; i < c->n; i++)
        ax_text_add(out, size, "%s%s", i ? " " : "", strcmp(c->word[i], "-q") ? c->word[i] : "-v");
}

/* Memory for what rank 0 tells, known to it by a path; -1 if there is none to be had. */
static int open_note(void)
{
    char path[64];
    int fd = memfd_create(CLI_NOTE_NAME, MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)getpid(), fd);
    if (fd >= 0)
        setenv(CLI_NOTE, path, 1);
    return fd;
}

/* What rank 0 has told so far. */
static cli_note read_note(int fd)
{
    cli_note note = {0};
    return fd >= 0 && pread(fd, &note, sizeof note, 0) == sizeof note ? note : (cli_note){0};
}

/* As the parent expects, of a signal that ranks did not make an end of their own of. */
static void die_of(int number)
{
    signal(number, SIG_DFL);
    raise(number);
}

/* What an end of the launcher means. The ranks have told their own errors. MPICH's launcher returns the
 * number of a signal as it is, the shell and Open MPI's 128 more. */
static ax_status judge(const command *c, int status, const cli_note *note)
{
    char text[1024];
    int noted = note->ended ? note->code : -1;
    int code = noted > 0 ? noted : WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    bool told = noted > 0 || (code > 1 && code <= AX_ERR_SIGNAL);
    if (came && !told && !note->ended)
        die_of(came);
    if (note->pid && !note->ended && WIFSIGNALED(status) && !came) /* told by the rank that ended the job */
        return ax_fail(AX_ERR_COMM,
                       "rank 0 has gone, and the launcher did not end: hosts may be out of reach");
    AX_CHECK(noted > 0 || !WIFSIGNALED(status), AX_ERR_COMM,
             "the launcher ended by signal %d (%s), and the job with it", WTERMSIG(status),
             strsignal(WTERMSIG(status)));
    if (told)
        cli_told_by_ranks();
    AX_CHECK(
        code || !note->pid || note->ended, AX_ERR_COMM, /* MPICH's, after some aborts */
        "rank 0 has gone without an exit code, and the launcher returned 0; a line above says why if a rank "
        "could");
    if (noted > 0 || (code <= AX_ERR_SIGNAL && code != AX_ERR_INTERNAL))
        return (ax_status)code;
    AX_CHECK(code != CANNOT_START, AX_ERR_USAGE,
             "--ranks: the launcher of the MPI library, %s, could not be started: install it, or start the "
             "ranks with another (mpirun -n N axonn …)",
             AXONN_MPIEXEC);
    int number = code > 128 ? code - 128 : code;
    AX_CHECK(code == AX_ERR_INTERNAL || number >= NSIG, AX_ERR_COMM,
             "a rank ended by signal %d (%s), and the job with it", number, strsignal(number));
    print_command(c, text, sizeof text);
    return ax_fail(code == AX_ERR_INTERNAL ? AX_ERR_INTERNAL : AX_ERR_COMM,
                   "the launcher ended with code %d; if nothing says why, this may: %s", code, text);
}

/* A launcher waits for hosts that cannot be reached any more. When rank 0 is gone for GRACE_SECONDS, it is
 * ended; true once it has ended. */
static bool has_ended(pid_t pid, int note_fd, double *gone, int *status)
{
    enum { GRACE_SECONDS = 10 };
    cli_note note = read_note(note_fd);
    if (waitpid(pid, status, WNOHANG) == pid)
        return true;
    bool alive = !note.pid || !kill((pid_t)note.pid, 0);
    *gone = alive ? 0 : *gone > 0 ? *gone : ax_now();
    if (!alive && ax_now() - *gone > GRACE_SECONDS)
        kill(pid, SIGKILL); /* its ranks and daemons notice */
    return false;
}

static ax_status watch(const command *c, int note_fd, int *status)
{
    pid_t parent = getpid();
    for (size_t i = 0; i < AX_COUNT(passed_on); i++) {
        struct sigaction before, action = {.sa_handler = pass_on, .sa_flags = SA_RESTART};
        if (!sigaction(passed_on[i], NULL, &before) && before.sa_handler != SIG_IGN)
            sigaction(passed_on[i], &action, NULL);
    }
    pid_t pid = fork();
    AX_CHECK(pid >= 0, AX_ERR_MEMORY, "cannot start a process: %s", strerror(errno));
    if (!pid)
        become_launcher(c, parent);
    launcher = pid;
    if (came)
        kill(pid, stop_as);
    for (double gone = 0; !has_ended(pid, note_fd, &gone, status);)
        usleep(20000);
    launcher = 0;
    return AX_OK;
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
    int status = 0;
    stop_as = verb->stop ? verb->stop : SIGTERM;
    keeps_input = (verb->reads_input || name_input(n, words)) && !isatty(STDIN_FILENO);
    ax_status result = make_command(launch, n, words, &c);
    fflush(NULL);
    int fd = open_note();
    if (result == AX_OK)
        result = watch(&c, fd, &status);
    cli_note note = read_note(fd);
    if (result == AX_OK)
        result = judge(&c, status, &note);
    if (fd >= 0)
        close(fd);
    command_fini(&c);
    return result;
}
#endif
