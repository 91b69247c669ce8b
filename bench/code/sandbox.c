#include "sandbox.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- an unused user ------------------------------------------------------------------------------ */

/* Returns true if a process belongs to the user. */
static bool has_processes(uid_t user)
{
    bool found = false;
    DIR *proc = opendir("/proc");
    for (struct dirent *entry; proc && !found && (entry = readdir(proc));) {
        char path[300];
        struct stat of;
        snprintf(path, sizeof path, "/proc/%s", entry->d_name);
        found = isdigit((unsigned char)entry->d_name[0]) && stat(path, &of) == 0 && of.st_uid == user;
    }
    if (proc)
        closedir(proc);
    return found;
}

/* Returns a user id above those that Debian gives to users, which no account and no process has. */
static uid_t unused_user(void)
{
    uid_t user = 61200;
    while (getpwuid(user) || has_processes(user))
        user++;
    return user;
}

static uid_t owner;

static int give(const char *path, const struct stat *of, int kind, struct FTW *at)
{
    (void)of;
    (void)kind;
    (void)at;
    return lchown(path, owner, owner);
}

static ax_status leave_root(const char *dir)
{
    enum { OPEN_FOLDERS = 16 };
    owner = unused_user();
    AX_CHECK(nftw(dir, give, OPEN_FOLDERS, FTW_PHYS) == 0, AX_ERR_USAGE, "cannot give \"%s\" to user %d: %s",
             dir, (int)owner, strerror(errno));
    AX_CHECK(setgroups(0, NULL) == 0 && setgid(owner) == 0 && setuid(owner) == 0, AX_ERR_USAGE,
             "cannot become user %d: %s", (int)owner, strerror(errno));
    /* Otherwise /proc/self belongs to root, and bubblewrap cannot write its maps of users there. */
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    return AX_OK;
}

ax_status sandbox_start(const char *dir)
{
    static const sandbox_limits limits = {.seconds = 10, .memory = 64 << 20, .output = 64, .processes = 8};
    sandbox_result r;
    if (geteuid() == 0)
        AX_TRY(leave_root(dir));
    AX_TRY(sandbox_run(&limits, dir, (const char *[]){"true", NULL}, &r));
    ax_buf_fini(&r.out);
    AX_CHECK(
        r.end == SANDBOX_EXIT && r.status == 0, AX_ERR_USAGE,
        "no samples are run, because bubblewrap cannot make a sandbox here: %s; install it (Debian: apt-get "
        "install bubblewrap), and allow name spaces of users: sysctl user.max_user_namespaces above 0, "
        "kernel.unprivileged_userns_clone=1 or kernel.apparmor_restrict_unprivileged_userns=0 where they "
        "exist; in a container: a seccomp profile that allows unshare and mount (podman; docker run "
        "--security-opt seccomp=unconfined --security-opt apparmor=unconfined)",
        r.errors[0] ? r.errors : "it does not start");
    return AX_OK;
}

/* ---- system calls -------------------------------------------------------------------------------- */

#if defined __x86_64__
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined __aarch64__
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#else
#error "name the architecture for the filter of system calls"
#endif

#define DENY(call)                                                                                           \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_##call, 0, 1),                                                  \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM)

/* Refuses memory that no process need have mapped (the watch would not see it), and system calls of another
 * architecture or of x32 (numbers from 2^30 on), by which the others could be reached. */
static const struct sock_filter filter[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 1U << 30, 0, 1),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
    DENY(memfd_create),
    DENY(shmget),
    DENY(msgget),
    DENY(io_uring_setup),
    DENY(add_key),
    DENY(bpf),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};

/* Returns a file from which bubblewrap reads the filter, or -1. */
static int open_filter(void)
{
    const int fd = memfd_create("filter", MFD_CLOEXEC);
    if (fd >= 0 && (write(fd, filter, sizeof filter) != sizeof filter || lseek(fd, 0, SEEK_SET) != 0)) {
        close(fd);
        return -1;
    }
    return fd;
}

/* ---- processes ----------------------------------------------------------------------------------- */

/* Returns a process's first child, or 0. */
static pid_t first_child(pid_t pid)
{
    char path[64];
    int child = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)pid, (int)pid);
    FILE *f = fopen(path, "re");
    if (f && fscanf(f, "%d", &child) != 1)
        child = 0;
    if (f)
        fclose(f);
    return child;
}

/* Returns the bytes that a process has in memory, without mapped files. */
static int64_t resident(pid_t pid)
{
    char path[64], line[128];
    long long kb = 0, each;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "RssAnon: %lld", &each) == 1 || sscanf(line, "RssShmem: %lld", &each) == 1)
            kb += each;
    if (f)
        fclose(f);
    return kb << 10;
}

/* Returns the name space of processes of a process, or 0. */
static ino_t name_space(pid_t pid)
{
    char path[64];
    struct stat of;
    snprintf(path, sizeof path, "/proc/%d/ns/pid", (int)pid);
    return stat(path, &of) == 0 ? of.st_ino : 0;
}

/* Returns the bytes that all processes of the sandbox, whose first process is `first`, have in memory. */
static int64_t resident_together(pid_t first)
{
    const ino_t space = name_space(first);
    int64_t bytes = 0;
    DIR *proc = space ? opendir("/proc") : NULL;
    for (struct dirent *entry; proc && (entry = readdir(proc));) {
        const pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (pid > 0 && name_space(pid) == space)
            bytes += resident(pid);
    }
    if (proc)
        closedir(proc);
    return bytes;
}

/* Ends all processes of the sandbox: its first process takes the others with it. bubblewrap, `pid`, ends
 * after them. */
static void stop(pid_t pid)
{
    const pid_t first = first_child(pid);
    kill(first ? first : pid, SIGKILL);
}

/* ---- running ------------------------------------------------------------------------------------- */

enum { FILTER_FD = 3 }; /* from which bubblewrap reads the filter; it closes it */

typedef struct command {
    char *argv[96];
    char text[16][64];
    int n, texts;
} command;

static void add(command *c, const char *word) { c->argv[c->n++] = (char *)word; }

static void add_number(command *c, const char *prefix, int64_t value)
{
    snprintf(c->text[c->texts], sizeof c->text[0], "%s%lld", prefix, (long long)value);
    add(c, c->text[c->texts++]);
}

/* The root and /dev are writable unless they are mounted again; files in /tmp and /dev/shm are memory. The
 * limits are set inside: there they count what is inside. */
static void make_command(command *c, const sandbox_limits *limits, const char *in, const char *const argv[])
{
    static const char *const first[] = {"bwrap",
                                        "--unshare-user",
                                        "--unshare-all",
                                        "--disable-userns",
                                        "--cap-drop",
                                        "ALL",
                                        "--clearenv",
                                        "--die-with-parent",
                                        "--new-session",
                                        "--hostname",
                                        "judge",
                                        "--ro-bind",
                                        "/usr",
                                        "/usr",
                                        "--symlink",
                                        "usr/bin",
                                        "/bin",
                                        "--symlink",
                                        "usr/lib",
                                        "/lib",
                                        "--symlink",
                                        "usr/lib64",
                                        "/lib64",
                                        "--ro-bind-try",
                                        "/etc/alternatives",
                                        "/etc/alternatives",
                                        "--ro-bind-try",
                                        "/etc/openmpi",
                                        "/etc/openmpi",
                                        "--ro-bind-try",
                                        "/etc/ld.so.cache",
                                        "/etc/ld.so.cache",
                                        "--ro-bind-try",
                                        "/sys/devices/system",
                                        "/sys/devices/system",
                                        "--proc",
                                        "/proc",
                                        "--dev",
                                        "/dev",
                                        "--setenv",
                                        "PATH",
                                        "/usr/bin",
                                        "--setenv",
                                        "HOME",
                                        "/tmp",
                                        "--chdir",
                                        "/tmp",
                                        "--seccomp"};
    for (size_t i = 0; i < sizeof first / sizeof *first; i++)
        add(c, first[i]);
    add_number(c, "", FILTER_FD);
    for (int i = 0; i < 2; i++) {
        add(c, "--size");
        add_number(c, "", limits->memory / 2);
        add(c, "--tmpfs");
        add(c, i ? "/tmp" : "/dev/shm");
    }
    for (const char *const *word = (const char *const[]){"--ro-bind", in, "/in", "--remount-ro", "/dev",
                                                         "--remount-ro", "/", "prlimit", "--core=0", NULL};
         *word; word++)
        add(c, *word);
    add_number(c, "--nproc=", limits->processes);
    add_number(c, "--fsize=", limits->memory / 2);
    add_number(c, "--nofile=", 256);
    add_number(c, "--as=", limits->memory + ((int64_t)1 << 30)); /* with room for mapped libraries */
    while (*argv)
        add(c, *argv++);
    add(c, NULL);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct watch {
    const sandbox_limits *limits;
    sandbox_result *result;
    pid_t pid;
    int out, errors; /* pipes; -1: closed */
    size_t shown;    /* bytes of result->errors */
} watch;

/* Reads what is in a pipe; closes it at its end. */
static ax_status read_pipe(watch *w, int *fd)
{
    char bytes[1 << 16];
    const ssize_t n = read(*fd, bytes, sizeof bytes);
    if (n <= 0) {
        if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
            close(*fd);
            *fd = -1;
        }
        return AX_OK;
    }
    if (fd == &w->out)
        return ax_buf_add(&w->result->out, bytes, (size_t)n);
    const size_t more = ax_min((size_t)n, sizeof w->result->errors - 1 - w->shown);
    for (size_t i = 0; i < more; i++)
        w->result->errors[w->shown++] = (char)(bytes[i] & 0x80 ? '?' : bytes[i]);
    return AX_OK;
}

/* Returns the limit that is exceeded, else SANDBOX_EXIT. A machine short of memory counts too: memory can be
 * shared by processes that have not touched it, and is then seen nowhere. */
static sandbox_end exceeded(const watch *w, double start)
{
    const int64_t low = (int64_t)256 << 20;
    const pid_t first = first_child(w->pid);
    if (now() - start > w->limits->seconds)
        return SANDBOX_TIME;
    if ((int64_t)w->result->out.size > w->limits->output)
        return SANDBOX_OUTPUT;
    if (first && (resident_together(first) > w->limits->memory || ax_memory_available() < low))
        return SANDBOX_MEMORY;
    return SANDBOX_EXIT;
}

/* Reads the output and watches the limits until the command has ended. */
static ax_status follow(watch *w)
{
    enum { MILLISECONDS = 20 };
    sandbox_result *r = w->result;
    const double start = now();
    double looked = start;
    ax_status status = AX_OK;
    while ((w->out >= 0 || w->errors >= 0) && status == AX_OK && r->end == SANDBOX_EXIT) {
        struct pollfd fds[] = {{.fd = w->out, .events = POLLIN}, {.fd = w->errors, .events = POLLIN}};
        poll(fds, 2, MILLISECONDS);
        if (fds[0].revents)
            status = read_pipe(w, &w->out);
        if (fds[1].revents && status == AX_OK)
            status = read_pipe(w, &w->errors);
        if (now() - looked > MILLISECONDS * 1e-3) {
            r->end = exceeded(w, start);
            looked = now();
        }
    }
    if (status != AX_OK || r->end != SANDBOX_EXIT)
        stop(w->pid);
    while (waitpid(w->pid, &r->status, 0) < 0 && errno == EINTR)
        ;
    r->seconds = now() - start;
    return status;
}

static ax_status spawn(command *c, int filter_fd, int out[2], int errors[2], pid_t *pid)
{
    posix_spawn_file_actions_t files;
    AX_CHECK(posix_spawn_file_actions_init(&files) == 0, AX_ERR_MEMORY, "no memory to start a sandbox");
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, out[1], 1);
    posix_spawn_file_actions_adddup2(&files, errors[1], 2);
    posix_spawn_file_actions_adddup2(&files, filter_fd, FILTER_FD);
    const int error = posix_spawnp(pid, "bwrap", &files, NULL, c->argv, environ);
    posix_spawn_file_actions_destroy(&files);
    AX_CHECK(error == 0, AX_ERR_USAGE, "cannot run bwrap, which Debian's package bubblewrap has: %s",
             strerror(error));
    return AX_OK;
}

ax_status sandbox_run(const sandbox_limits *limits, const char *in, const char *const argv[],
                      sandbox_result *result)
{
    command c = {.n = 0};
    watch w = {.limits = limits, .result = result};
    int out[2], errors[2];
    *result = (sandbox_result){.end = SANDBOX_EXIT};
    AX_CHECK(pipe2(out, O_CLOEXEC) == 0 && pipe2(errors, O_CLOEXEC) == 0, AX_ERR_USAGE,
             "cannot make a pipe: %s", strerror(errno));
    const int fd = open_filter();
    make_command(&c, limits, in, argv);
    ax_status status = spawn(&c, fd, out, errors, &w.pid);
    close(fd);
    close(out[1]);
    close(errors[1]);
    w.out = out[0];
    w.errors = errors[0];
    if (status == AX_OK)
        status = follow(&w);
    for (const int *each = (const int[]){w.out, w.errors, -2}; *each != -2; each++)
        if (*each >= 0)
            close(*each);
    return status;
}
