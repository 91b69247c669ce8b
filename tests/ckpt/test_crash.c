/* ckpt: a process that is killed, or a disk that fills up, at every step of a save. The library's system
 * calls go through the functions below. They count the calls that change files, and make the chosen one fail,
 * or kill the process before it. */
#include "grid_test.h"
#include "support/sampled.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

enum { SMALL = 8 }; /* number of parameters without the large one */

/* One of every each() calls is hit. */
static int each(void) { return one_of(3, 7); }

/* ---- the system, with faults --------------------------------------------------------------------- */

static atomic_int calls;          /* number of calls since the fault was set */
static int fault_at;              /* number of the call that is hit; 0: none */
static enum { KILL, FULL } fault; /* how */
static bool stays_full;           /* all later calls that need space fail too */
static double fake_free_bytes = -1;
static bool cannot_exchange; /* RENAME_EXCHANGE fails, as on NFS */

/* Counts a call; true if it must fail. `half` does the first half of the call's work. */
static bool hit(bool needs_space, void (*half)(void *), void *arg)
{
    int call = atomic_fetch_add(&calls, 1) + 1;
    if (!fault_at || call < fault_at || (call > fault_at && !(stays_full && fault == FULL)))
        return false;
    if (fault == KILL) {
        if (half)
            half(arg);
        raise(SIGKILL);
    }
    errno = ENOSPC;
    return needs_space;
}

#define REAL(name) ((__typeof__(&name))(uintptr_t)dlsym(RTLD_NEXT, #name))

typedef struct half_write {
    int fd;
    const void *data;
    size_t n;
    off_t offset;
} half_write;

static void write_half(void *arg)
{
    const half_write *w = arg;
    if (REAL(pwrite)(w->fd, w->data, w->n / 2, w->offset) < 0)
        raise(SIGKILL);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset)
{
    half_write w = {fd, data, n, offset};
    return hit(true, write_half, &w) ? -1 : REAL(pwrite)(fd, data, n, offset);
}
ssize_t write(int fd, const void *data, size_t n)
{
    return hit(true, NULL, NULL) ? -1 : REAL(write)(fd, data, n);
}
int fallocate(int fd, int mode, off_t offset, off_t n)
{
    return hit(true, NULL, NULL) ? -1 : REAL(fallocate)(fd, mode, offset, n);
}
int mkdir(const char *path, mode_t mode) { return hit(true, NULL, NULL) ? -1 : REAL(mkdir)(path, mode); }
int fsync(int fd) { return hit(true, NULL, NULL) ? -1 : REAL(fsync)(fd); }
int rename(const char *a, const char *b) { return hit(false, NULL, NULL) ? -1 : REAL(rename)(a, b); }
int renameat2(int da, const char *a, int db, const char *b, unsigned flags)
{
    if (cannot_exchange && (flags & RENAME_EXCHANGE)) {
        errno = EINVAL;
        return -1;
    }
    return hit(false, NULL, NULL) ? -1 : REAL(renameat2)(da, a, db, b, flags);
}
int remove(const char *path) { return hit(false, NULL, NULL) ? -1 : REAL(remove)(path); }

int statvfs(const char *path, struct statvfs *out)
{
    int result = REAL(statvfs)(path, out);
    if (fake_free_bytes >= 0)
        out->f_bavail = (fsblkcnt_t)(fake_free_bytes / (double)out->f_frsize);
    return result;
}

static void set_fault(int at_call, bool full)
{
    fault = full ? FULL : KILL;
    fault_at = at_call;
    atomic_store(&calls, 0);
}

/* ---- states -------------------------------------------------------------------------------------- */

typedef struct session {
    const char *run;
    int64_t first, last; /* steps to save */
    int keep;
    int report; /* a pipe to which each step that begins or ends is written, or -1 */
} session;

static ax_status save_step(known_model *m, const session *s, int64_t step)
{
    int64_t begun = -step;
    AX_TRY(known_fill(m, step));
    if (s->report >= 0)
        EXPECT(REAL(write)(s->report, &begun, sizeof begun) == sizeof begun);
    AX_TRY(known_save(m, s->run, step, AX_BF16, 300, s->keep));
    if (s->report >= 0)
        EXPECT(REAL(write)(s->report, &step, sizeof step) == sizeof step);
    return AX_OK;
}

static ax_status save_range(ax_comm *world, const session *s)
{
    known_model m = {.n = SMALL};
    ax_status status = known_open(world, (ax_grid_size){{1}}, 2, &m);
    for (int64_t step = s->first; step <= s->last && status == AX_OK; step++)
        status = save_step(&m, s, step);
    known_close(&m);
    return status;
}

static ax_status run_session(const session *s)
{
    ax_comm *self;
    AX_TRY(ax_comm_self_create(&self));
    ax_status status = save_range(self, s);
    ax_comm_destroy(&self);
    return status;
}

static void save_here(const char *run, int64_t first, int64_t last, int keep)
{
    OK(run_session(&(session){run, first, last, keep, -1}));
}

/* Checks that every visible checkpoint verifies, that `latest` names one of them, and that the newest is of a
 * step from `least` to `most` and loads with the values of its step. Returns that step. */
static int64_t assert_whole(const char *run, int64_t least, int64_t most)
{
    ax_ckpt_list *list;
    OK(ax_ckpt_list_create(run, true, &list));
    bool latest = false;
    for (int i = 0; i < list->n; i++) {
        if (list->item[i].damage)
            fail_msg("%s", list->item[i].damage);
        latest |= list->item[i].latest;
    }
    assert_true(latest);
    int64_t step = list->item[0].step;
    if (step < least || step > most)
        fail_msg("the newest is step %lld, not %lld to %lld", (long long)step, (long long)least,
                 (long long)most);
    ax_comm *self;
    known_model m = {.n = SMALL};
    OK(ax_comm_self_create(&self));
    OK(known_open(self, (ax_grid_size){{1}}, 2, &m));
    OK(ax_ckpt_load(m.set, list->item[0].dir, known_slots, NULL));
    OK(known_check(&m, step));
    known_close(&m);
    ax_comm_destroy(&self);
    ax_ckpt_list_destroy(&list);
    return step;
}

static void assert_no_remains(const char *run)
{
    char command[600];
    snprintf(command, sizeof command, "test -z \"$(find %s -name '.*' -mindepth 1)\"", run);
    assert_int_equal(system(command), 0); // NOLINT
}

/* ---- kills --------------------------------------------------------------------------------------- */

/* Kills at every call that changes a file, one by one, in saves that are new, that prune, and that replace a
 * step. Then cleans, as a run does first when it resumes. */
static void kill_at_every_call(const char *run)
{
    int kills = 0;
    save_here(run, 1, 2, 2);
    for (int again = 0; again < 2; again++)
        for (int k = 1 + again * (each() > 1);; k += each()) {
            int64_t newest = assert_whole(run, 1, INT64_MAX), step = newest + !again;
            int child = fork();
            if (child == 0) {
                set_fault(k, false);
                _exit(run_session(&(session){run, step, step, 2, -1}));
            }
            int status;
            assert_int_equal(waitpid(child, &status, 0), child);
            if (cannot_exchange)
                OK(ax_ckpt_clean(run));
            assert_whole(run, newest, step);
            if (WIFEXITED(status)) {
                assert_int_equal(WEXITSTATUS(status), 0);
                break;
            }
            assert_int_equal(WTERMSIG(status), SIGKILL);
            kills++;
        }
    assert_true(kills > 100 / each());
    OK(ax_ckpt_clean(run));
    save_here(run, 1000, 1000, 1);
    assert_no_remains(run);
    print_message("             killed %d times\n", kills);
}

static void killed_at_every_call(void **state) { kill_at_every_call(*state); }

static void killed_where_names_cannot_be_exchanged(void **state)
{
    cannot_exchange = true;
    kill_at_every_call(*state);
    cannot_exchange = false;
}

/* Reads the steps that the child reports as begun and ended. */
static void drain(int fd, int64_t *ended, int64_t *begun)
{
    int64_t word;
    while (read(fd, &word, sizeof word) == sizeof word) {
        *begun = word < 0 ? -word : *begun;
        *ended = word > 0 ? word : *ended;
    }
}

static void killed_at_random_moments(void **state)
{
    const char *run = *state;
    double start = ax_now(), one_save;
    save_here(run, 1, 5, 2);
    one_save = (ax_now() - start) / 5;
    const int64_t kills = 200 / each();
    int64_t step = 5, moved = 0;
    for (int64_t k = 0; k < kills; k++) {
        int pipes[2];
        assert_int_equal(pipe(pipes), 0);
        int child = fork();
        if (child == 0) {
            close(pipes[0]);
            _exit(run_session(&(session){run, step + 1, step + 1000, 2, pipes[1]}));
        }
        close(pipes[1]);
        int64_t ended = step, begun = step + 1, word;
        assert_int_equal(read(pipes[0], &word, sizeof word), sizeof word); /* the first save begins */
        usleep((useconds_t)((double)ax_rng_uniform(5, (uint64_t)k) * 3e6 * one_save));
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        drain(pipes[0], &ended, &begun);
        close(pipes[0]);
        int64_t now = assert_whole(run, ended, begun);
        moved += now > step;
        step = now;
    }
    assert_true(moved > kills / 10 && moved < kills); /* kills before the rename and after it */
}

/* ---- full disks ---------------------------------------------------------------------------------- */

/* The disk fills up at every call in turn: the save fails with a message that names the checkpoint and the
 * bytes it needs, leaves nothing behind, and does not change earlier checkpoints. */
static void fill_at_every_call(const char *run, int64_t step)
{
    int refused = 0;
    char needs[64];
    snprintf(needs, sizeof needs, "ckpt/step-%lld, which needs ", (long long)step);
    save_here(run, 1, 2, 2);
    stays_full = true;
    ax_log_set_level(AX_LOG_ERROR);
    for (int k = 1;; k += each()) {
        set_fault(k, true);
        ax_status status = run_session(&(session){run, step, step, 2, -1});
        set_fault(0, true);
        if (status == AX_OK)
            break;
        assert_int_equal(status, AX_ERR_DATA);
        if (!strstr(ax_error_message(), needs) || !strstr(ax_error_message(), "No space left on device"))
            fail_msg("call %d: %s", k, ax_error_message());
        assert_int_equal(assert_whole(run, 2, 3), 2);
        assert_no_remains(run);
        refused++;
    }
    ax_log_set_level(AX_LOG_INFO);
    assert_int_equal(assert_whole(run, step, step), step);
    assert_true(refused > 50 / each());
}

static void full_at_every_call(void **state) { fill_at_every_call(*state, 3); }

static void full_where_names_cannot_be_exchanged(void **state)
{
    cannot_exchange = true;
    fill_at_every_call(*state, 2); /* replaces step 2 */
    cannot_exchange = false;
}

static ax_status save_on_grid(ax_comm *world, void *arg)
{
    known_model m = {.n = SMALL};
    ax_status status = known_open(world, (ax_grid_size){{2, 2, 1, 1, 1}}, 2, &m);
    if (status == AX_OK)
        status = known_fill(&m, 3);
    if (status == AX_OK)
        status = known_save(&m, arg, 3, AX_F32, 0, 2);
    known_close(&m);
    return status;
}

/* Whichever rank has the error, all ranks fail. */
static void full_on_any_rank(void **state)
{
    char *run = *state;
    save_here(run, 1, 2, 2);
    stays_full = false; /* one rank only */
    int k = 1;
    for (;; k += 5 * each()) {
        set_fault(k, true);
        ax_status status = ax_comm_threads_run(4, save_on_grid, run);
        set_fault(0, true);
        if (status == AX_OK)
            break;
        assert_int_equal(status, AX_ERR_DATA);
        assert_int_equal(assert_whole(run, 2, 3), 2);
        assert_no_remains(run);
    }
    assert_true(k > 50);
}

static void refused_before_it_begins(void **state)
{
    const char *run = *state;
    save_here(run, 1, 1, 1);
    fake_free_bytes = 8192;
    FAILS(AX_ERR_DATA, "in addition to the files there, but 8.0 KiB are free",
          run_session(&(session){run, 2, 2, 1, -1}));
    assert_non_null(strstr(ax_error_message(), "no space in "));
    fake_free_bytes = -1;
    assert_int_equal(assert_whole(run, 1, 1), 1);
    assert_no_remains(run);
}

/* Without an injected fault: a limit of the system (RLIMIT_FSIZE) refuses files of more than a few hundred
 * bytes. */
static void limited_by_the_system(void **state)
{
    const char *run = *state;
    save_here(run, 1, 1, 1);
    int child = fork();
    if (child == 0) {
        struct rlimit limit = {700, 700};
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &limit);
        ax_status status = run_session(&(session){run, 2, 2, 1, -1});
        _exit(strstr(ax_error_message(), "File too large") ? (int)status : 100);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), AX_ERR_DATA);
    assert_int_equal(assert_whole(run, 1, 1), 1);
    assert_no_remains(run);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        TEST(killed_at_every_call),
        TEST(killed_where_names_cannot_be_exchanged),
        TEST(killed_at_random_moments),
        TEST(full_at_every_call),
        TEST(full_where_names_cannot_be_exchanged),
        TEST(full_on_any_rank),
        TEST(refused_before_it_begins),
        TEST(limited_by_the_system),
    };
    return cmocka_run_group_tests_name("ckpt.crash", tests, NULL, NULL);
}
