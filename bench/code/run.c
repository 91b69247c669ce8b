#include "run.h"

#include "sandbox.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATH = 4096 };

struct judge {
    judge_options options;
    char dir[64];
};

static const char *const outcomes[] = {"passed",    "not built", "not parallel", "crashed",
                                       "no result", "wrong",     "too long",     "too large"};

const char *outcome_name(outcome o) { return outcomes[o]; }

static const sandbox_limits of_compiler = {
    .seconds = 60, .memory = (int64_t)2 << 30, .output = 64 << 20, .processes = 32};

/* ---- files --------------------------------------------------------------------------------------- */

/* Makes a path below the judge's folder. */
static char *path_of(const judge *j, const char *a, const char *b, char out[PATH])
{
    snprintf(out, PATH, "%s/%s%s%s", j->dir, a, *b ? "/" : "", b);
    return out;
}

static ax_status write_file(const char *path, const void *data, size_t size)
{
    FILE *f = fopen(path, "wbe");
    AX_CHECK(f, AX_ERR_USAGE, "cannot write \"%s\": %s", path, strerror(errno));
    const bool whole = fwrite(data, 1, size, f) == size;
    AX_CHECK(fclose(f) == 0 && whole, AX_ERR_USAGE, "cannot write \"%s\": %s", path, strerror(errno));
    return AX_OK;
}

static ax_status copy(const char *from_dir, const char *from, const char *to)
{
    char path[PATH], *text;
    size_t size;
    snprintf(path, sizeof path, "%s/%s", from_dir, from);
    AX_TRY(ax_file_read(path, &text, &size));
    ax_status status = write_file(to, text, size);
    free(text);
    return status;
}

/* Makes a file of the judge's folder appear in another folder. */
static ax_status lend(const judge *j, const char *kind, const char *file, const char *to)
{
    char from[PATH], at[PATH];
    path_of(j, kind, file, from);
    snprintf(at, sizeof at, "%s/%s", to, file);
    AX_CHECK(link(from, at) == 0, AX_ERR_USAGE, "cannot link \"%s\" to \"%s\": %s", at, from,
             strerror(errno));
    return AX_OK;
}

/* ---- sources ------------------------------------------------------------------------------------ */

static ax_status copy_sources(judge *j, const char *dir, const tasks *all)
{
    char path[PATH], from[PATH];
    AX_TRY(ax_mkdirs(path_of(j, "plain", "", path)));
    AX_TRY(ax_mkdirs(path_of(j, "mpi", "", path)));
    AX_TRY(copy(dir, "harness.hpp", path_of(j, "harness.hpp", "", path)));
    AX_TRY(copy(dir, "harness.cpp", path_of(j, "harness.cpp", "", path)));
    for (size_t i = 0; i < all->n; i++) {
        const char *kind = all->item[i].kind;
        if (i > 0 && strcmp(kind, all->item[i - 1].kind) == 0)
            continue;
        snprintf(from, sizeof from, "%s/problems/%s", dir, kind);
        AX_TRY(ax_mkdirs(path_of(j, kind, "", path)));
        AX_TRY(copy(from, "driver.cpp", path_of(j, kind, "driver.cpp", path)));
        AX_TRY(copy(from, "reference.cpp", path_of(j, kind, "reference.cpp", path)));
    }
    return AX_OK;
}

/* ---- compiling ----------------------------------------------------------------------------------- */

/* Runs a script of sh, with the words of `args` as $1, $2, … */
static ax_status run_script(const sandbox_limits *limits, const char *in, const char *script,
                            const char *const *args, sandbox_result *r)
{
    const char *argv[16] = {"sh", "-c", script, "sh"};
    for (int n = 4; *args; args++)
        argv[n++] = *args;
    return sandbox_run(limits, in, argv, r);
}

/* Runs a script that makes something of the judge's own; its output is r->out. */
static ax_status make(const judge *j, const char *script, const char *what, sandbox_result *r)
{
    AX_TRY(run_script(&of_compiler, j->dir, script, (const char *[]){what, NULL}, r));
    AX_CHECK(r->end == SANDBOX_EXIT && r->status == 0, AX_ERR_INTERNAL, "the judge's own \"%s\" failed: %s",
             what, r->errors[0] ? r->errors : "it was stopped");
    return AX_OK;
}

/* Runs a script whose output becomes the file `to`. */
static ax_status make_file(const judge *j, const char *script, const char *what, const char *to)
{
    char path[PATH];
    sandbox_result r;
    ax_status status = make(j, script, what, &r);
    if (status == AX_OK)
        status = write_file(path_of(j, to, "", path), r.out.data, r.out.size);
    ax_buf_fini(&r.out);
    return status;
}

static const char compile[] = "c++ -std=c++17 -O2 -I/in -c \"/in/$1\" -o x.o && cat x.o",
                  compile_mpi[] = "mpicxx.openmpi -std=c++17 -O2 -DJUDGE_MPI -c \"/in/$1\" -o x.o && cat x.o";

/* Compiles the harness, for MPI too if a task needs it. */
static ax_status compile_harness(judge *j, const tasks *all)
{
    bool mpi = false;
    for (size_t i = 0; i < all->n; i++)
        mpi = mpi || way_has_mpi(all->item[i].way);
    AX_TRY(make_file(j, compile, "harness.cpp", "plain/harness.o"));
    return mpi ? make_file(j, compile_mpi, "harness.cpp", "mpi/harness.o") : AX_OK;
}

ax_status judge_create(const char *dir, const tasks *all, const judge_options *options, judge **out)
{
    judge *j;
    AX_TRY(ax_calloc(1, sizeof *j, &j));
    *out = j;
    j->options = *options;
    snprintf(j->dir, sizeof j->dir, "/tmp/judge-XXXXXX");
    AX_CHECK(mkdtemp(j->dir), AX_ERR_USAGE, "cannot make a folder in /tmp: %s", strerror(errno));
    AX_TRY(copy_sources(j, dir, all));
    AX_TRY(sandbox_start(j->dir));
    return compile_harness(j, all);
}

void judge_destroy(judge **j)
{
    if (*j && ax_remove_tree((*j)->dir) != AX_OK)
        fprintf(stderr, "judge: %s\n", ax_error_message());
    free(*j);
    *j = NULL;
}

/* Prints the size of the input, the input, and the expected results. */
static const char refer[] =
    "set -e; c++ -std=c++17 -O2 -DJUDGE_REFERENCE -I/in /in/harness.cpp \"/in/$1\" -o "
    "a.out; ./a.out input expected; wc -c <input; cat input expected";

ax_status judge_prepare(judge *j, const char *kind)
{
    char source[64], driver[64], path[PATH], *at;
    sandbox_result r;
    snprintf(source, sizeof source, "%s/driver.cpp", kind);
    snprintf(driver, sizeof driver, "%s/driver.o", kind);
    AX_TRY(make_file(j, compile, source, driver));
    snprintf(source, sizeof source, "%s/reference.cpp", kind);
    ax_status status = make(j, refer, source, &r);
    if (status == AX_OK) {
        const size_t size = strtoul(r.out.data, &at, 10);
        at++; /* the end of the line */
        status = write_file(path_of(j, kind, "input", path), at, size);
        if (status == AX_OK)
            status = write_file(path_of(j, kind, "expected", path), at + size,
                                r.out.size - (size_t)(at + size - r.out.data));
    }
    ax_buf_fini(&r.out);
    return status;
}

static const char *harness_of(const task *t) { return way_has_mpi(t->way) ? "mpi" : "plain"; }

/* ---- results ------------------------------------------------------------------------------------- */

/* An array of a file of results; see harness.cpp. */
typedef struct array {
    char type;
    double tolerance;
    uint64_t n;
    const char *data;
} array;

/* Takes the next array of [*at, end). Returns false if there is no whole one. */
static bool next_array(const char **at, const char *end, array *a)
{
    enum { HEAD = 1 + sizeof(double) + sizeof(uint64_t) };
    if (end - *at < HEAD)
        return false;
    a->type = **at;
    memcpy(&a->tolerance, *at + 1, sizeof a->tolerance);
    memcpy(&a->n, *at + 1 + sizeof a->tolerance, sizeof a->n);
    a->data = *at + HEAD;
    const uint64_t size = a->type == 'd' ? sizeof(double) : sizeof(int32_t);
    if ((uint64_t)(end - a->data) / size < a->n)
        return false;
    *at = a->data + a->n * size;
    return true;
}

static double element(const array *a, uint64_t i)
{
    double d;
    int32_t k;
    if (a->type == 'd') {
        memcpy(&d, a->data + i * sizeof d, sizeof d);
        return d;
    }
    memcpy(&k, a->data + i * sizeof k, sizeof k);
    return k;
}

/* Compares the number `index` array of a result with the expected one. */
static bool same_array(int index, const array *is, const array *want, verdict *v)
{
    if (is->type != want->type || is->n != want->n) {
        snprintf(v->detail, sizeof v->detail, "result %d has %llu elements, not %llu", index,
                 (unsigned long long)is->n, (unsigned long long)want->n);
        return false;
    }
    for (uint64_t i = 0; i < want->n; i++) {
        const double a = element(is, i), b = element(want, i);
        if (fabs(a - b) <= want->tolerance)
            continue;
        snprintf(v->detail, sizeof v->detail, "element %llu of result %d is %.17g, not %.17g",
                 (unsigned long long)i, index, a, b);
        return false;
    }
    return true;
}

static void compare(const ax_buf *is, const char *want, size_t size, verdict *v)
{
    const char *at = is->data ? is->data : "", *end = at + is->size, *from = want;
    array a, b;
    v->outcome = NO_RESULT;
    for (int i = 1; next_array(&from, want + size, &b); i++) {
        if (!next_array(&at, end, &a)) {
            snprintf(v->detail, sizeof v->detail, "the function did not return: result %d is missing", i);
            return;
        }
        if (!same_array(i, &a, &b, v)) {
            v->outcome = WRONG;
            return;
        }
    }
    v->outcome = at == end ? PASSED : NO_RESULT;
    if (at != end)
        snprintf(v->detail, sizeof v->detail, "there is something behind the last result");
}

static ax_status compare_with_file(const judge *j, const task *t, const ax_buf *out, verdict *v)
{
    char path[PATH], *want;
    size_t size;
    AX_TRY(ax_file_read(path_of(j, t->kind, "expected", path), &want, &size));
    compare(out, want, size, v);
    free(want);
    return AX_OK;
}

/* ---- one sample ---------------------------------------------------------------------------------- */

/* Sets the verdict of a command that did not end well. Returns true if it ended well. */
static bool ended(const sandbox_result *r, outcome failure, verdict *v)
{
    const bool signalled = r->end == SANDBOX_EXIT && WIFEXITED(r->status) && WEXITSTATUS(r->status) > 128;
    if (r->end == SANDBOX_EXIT && r->status == 0)
        return true;
    v->outcome = r->end == SANDBOX_TIME ? TOO_LONG : r->end == SANDBOX_EXIT ? failure : TOO_LARGE;
    if (r->end == SANDBOX_TIME)
        snprintf(v->detail, sizeof v->detail, "stopped after %.3g s", r->seconds);
    else if (r->end != SANDBOX_EXIT)
        snprintf(v->detail, sizeof v->detail, "stopped for its %s",
                 r->end == SANDBOX_MEMORY ? "memory" : "output");
    else if (r->errors[0])
        snprintf(v->detail, sizeof v->detail, "%s", r->errors);
    else if (signalled)
        snprintf(v->detail, sizeof v->detail, "%s", strsignal(WEXITSTATUS(r->status) - 128));
    else
        snprintf(v->detail, sizeof v->detail, "exit code %d",
                 WIFEXITED(r->status) ? WEXITSTATUS(r->status) : -1);
    return false;
}

static ax_status write_source(const char *dir, const task *t, const char *text)
{
    char path[PATH];
    ax_buf source = {0};
    snprintf(path, sizeof path, "%s/sample.cpp", dir);
    ax_status status = ax_buf_printf(&source, "%s%.*s\n", t->prompt, (int)task_end(t->prompt, text), text);
    if (status == AX_OK)
        status = write_file(path, source.data, source.size);
    ax_buf_fini(&source);
    return status;
}

/* Prints whether the object needs OpenMP and MPI, then the program. */
static const char build_sample[] =
    "set -e; \"$1\" -std=c++17 -O2 -w $2 -c /in/sample.cpp -o s.o; "
    "\"$1\" $2 s.o /in/driver.o /in/harness.o -o a.out; nm -u s.o >needs; "
    "echo $(grep -c ' GOMP_' needs || :) $(grep -c ' MPI_' needs || :); cat a.out";

/* Compiles the sample of `dir`. *built: its program is the file a.out there. */
static ax_status build(const char *dir, const task *t, verdict *v, bool *built)
{
    const char *const args[] = {way_has_mpi(t->way) ? "mpicxx.openmpi" : "c++",
                                way_has_omp(t->way) ? "-fopenmp" : "", NULL};
    char path[PATH];
    sandbox_result r;
    *built = false;
    ax_status status = run_script(&of_compiler, dir, build_sample, args, &r);
    if (status == AX_OK && ended(&r, NOT_BUILT, v)) {
        char *rest = r.out.data;
        const long omp = strtol(rest, &rest, 10), mpi = strtol(rest, &rest, 10);
        *built = true;
        if ((way_has_omp(t->way) && !omp) || (way_has_mpi(t->way) && !mpi)) {
            v->outcome = NOT_PARALLEL;
            snprintf(v->detail, sizeof v->detail, "does not use %s",
                     way_has_omp(t->way) && !omp ? "OpenMP" : "MPI");
            *built = false;
        }
        snprintf(path, sizeof path, "%s/a.out", dir);
        status = write_file(path, rest + 1, r.out.size - (size_t)(rest + 1 - r.out.data));
        if (status == AX_OK && chmod(path, 0755) != 0)
            status = ax_fail(AX_ERR_USAGE, "cannot change \"%s\": %s", path, strerror(errno));
    }
    ax_buf_fini(&r.out);
    return status;
}

/* What a sample prints does not count; its results are a file, which the script prints. */
static const char run_sample[] =
    "export OMP_NUM_THREADS=$2 OMP_WAIT_POLICY=passive MALLOC_ARENA_MAX=2 OMPI_MCA_btl=self,vader "
    "OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_plm_rsh_agent=; mpi=\"$1\"; "
    "$mpi /in/a.out /in/input /tmp/result >/dev/null; status=$?; cat /tmp/result; exit $status";

static ax_status run(const judge *j, const char *dir, const task *t, verdict *v)
{
    const judge_options *o = &j->options;
    const sandbox_limits limits = {.seconds = o->seconds,
                                   .memory = o->memory,
                                   .output = 64 << 20,
                                   .processes = 64 + o->ranks * (o->threads + 8)};
    char mpi[128] = "", threads[32];
    sandbox_result r;
    if (way_has_mpi(t->way))
        snprintf(mpi, sizeof mpi, "mpirun.openmpi -q --oversubscribe --bind-to none -n %lld",
                 (long long)o->ranks);
    snprintf(threads, sizeof threads, "%lld", (long long)o->threads);
    ax_status status = run_script(&limits, dir, run_sample, (const char *[]){mpi, threads, NULL}, &r);
    if (status == AX_OK && ended(&r, CRASHED, v))
        status = compare_with_file(j, t, &r.out, v);
    v->seconds = r.seconds;
    ax_buf_fini(&r.out);
    return status;
}

ax_status judge_sample(judge *j, int worker, const task *t, const char *text, verdict *out)
{
    char dir[PATH], name[32];
    bool built;
    *out = (verdict){.outcome = NOT_BUILT};
    snprintf(name, sizeof name, "worker-%d", worker);
    AX_TRY(ax_mkdirs(path_of(j, name, "", dir)));
    AX_TRY(lend(j, t->kind, "driver.o", dir));
    AX_TRY(lend(j, harness_of(t), "harness.o", dir));
    AX_TRY(write_source(dir, t, text));
    AX_TRY(build(dir, t, out, &built));
    if (built) {
        AX_TRY(lend(j, t->kind, "input", dir));
        AX_TRY(run(j, dir, t, out));
    }
    return ax_remove_tree(dir);
}

ax_status judge_check(judge *j, int worker, const task *t)
{
    verdict v;
    AX_TRY(judge_sample(j, worker, t, t->right, &v));
    AX_CHECK(v.outcome == PASSED, AX_ERR_INTERNAL, "the right solution of %s does not pass here: %s: %s",
             t->id, outcome_name(v.outcome), v.detail);
    return AX_OK;
}
