/* The judge of bench/code: scores, right and wrong solutions, and samples that try to get out of the sandbox.
 */
#include "../bench/code/run.h"
#include "../bench/code/score.h"
#include "support/sampled.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define CODE_DIR AXONN_SOURCE_DIR "/bench/code"

static tasks all;
static judge *patient, *impatient; /* the latter for samples that never end */
static char outside[64];           /* a folder that samples must not reach */

/* ---- scores -------------------------------------------------------------------------------------- */

/* C(n, k) by Pascal's triangle, exact for n up to 60. */
static uint64_t binomial(int n, int k)
{
    static uint64_t c[61][61];
    for (int i = 0; i <= 60 && !c[n][0]; i++)
        for (int j = 0; j <= i; j++)
            c[i][j] = j == 0 || j == i ? 1 : c[i - 1][j - 1] + c[i - 1][j];
    return k > n ? 0 : c[n][k];
}

/* The mean over prompts of exact fractions, to 1e-12. */
static void test_scores_equal_fractions(void **state)
{
    (void)state;
    uint64_t draw = 0;
    for (int table = 0; table < 1000; table++) {
        const int prompts = 1 + (int)(ax_mix64(draw++) % 40);
        double value[40];
        long double exact = 0;
        for (int p = 0; p < prompts; p++) {
            const int n = 1 + (int)(ax_mix64(draw++) % 60), c = (int)(ax_mix64(draw++) % (unsigned)(n + 1)),
                      k = 1 + (int)(ax_mix64(draw++) % (unsigned)n);
            value[p] = score_at_k(n, c, k);
            exact += 1 - (long double)binomial(n - c, k) / (long double)binomial(n, k);
        }
        const score s = score_of(value, prompts);
        assert_true(fabsl(s.mean - exact / prompts) < 1e-12L);
        assert_true(s.low <= s.mean + 1e-12 && s.mean <= s.high + 1e-12);
    }
}

/* The interval of a mean of 400 values, half of them 1: 0.5 +- 1.96·sqrt(0.25/400) = 0.049; 4000 resamples
 * give its ends to about 0.003 (three standard errors of a 2.5 % quantile). */
static void test_intervals(void **state)
{
    (void)state;
    double value[400];
    for (int i = 0; i < 400; i++)
        value[i] = i % 2;
    const score s = score_of(value, 400);
    assert_true(fabs(s.low - 0.451) < 0.006 && fabs(s.high - 0.549) < 0.006);
    const score one = score_of(value + 1, 1);
    assert_true(one.mean == 1 && one.low == 1 && one.high == 1);
}

static void test_end_of_a_function(void **state)
{
    (void)state;
    static const char prompt[] = "/* f */\nint f(int x) {\n";
    assert_int_equal(task_end(prompt, "  return x;\n}\nint main() {}"), 13);
    assert_int_equal(task_end(prompt, "  if (x) { x++; }\n}"), 19);
    assert_int_equal(task_end(prompt, "  // }\n"), 6);
    assert_int_equal(task_end(prompt, "  return x;"), 11);
}

/* ---- samples ------------------------------------------------------------------------------------- */

/* Returns true if a process of a sample is left. (Each judge of root is another user.) */
static bool left_running(void)
{
    DIR *proc = opendir("/proc");
    bool found = false;
    for (struct dirent *entry; proc && !found && (entry = readdir(proc));) {
        char path[300], command[64] = "";
        snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
        struct stat of;
        FILE *f = fopen(path, "r");
        if (f && fread(command, 1, sizeof command - 1, f) && fstat(fileno(f), &of) == 0)
            found = strcmp(command, "/in/a.out") == 0 && of.st_uid == geteuid();
        if (f)
            fclose(f);
    }
    if (proc)
        closedir(proc);
    return found;
}

static verdict judged(judge *j, const task *t, const char *text)
{
    verdict v;
    const ax_status status = judge_sample(j, 0, t, text, &v);
    if (status != AX_OK)
        fail_msg("%s: %s", t->id, ax_error_message());
    for (const char *c = v.detail; *c; c++)
        assert_true((unsigned char)*c < 0x80); /* JSON takes only UTF-8 */
    assert_false(left_running());
    return v;
}

/* Two ways of one kind, with sanitizers the first; in the campaign all. */
static bool runs_here(const task *t)
{
    return getenv("AXONN_TEST_ALL") ||
           (strcmp(t->kind, "reduce") == 0 && (t->way == SERIAL || (t->way == MPI_OMP && !SANITIZED)));
}

static void test_solutions(void **state)
{
    (void)state;
    for (size_t i = 0; i < all.n; i++) {
        const task *t = &all.item[i];
        if (!runs_here(t))
            continue;
        if ((t->way == SERIAL && judge_prepare(patient, t->kind) != AX_OK) ||
            judge_check(patient, 0, t) != AX_OK)
            fail_msg("%s", ax_error_message());
        const verdict v = judged(patient, t, t->wrong);
        if (v.outcome == PASSED || !v.detail[0])
            fail_msg("%s, the wrong solution: %s", t->id, outcome_name(v.outcome));
    }
}

/* ---- samples that try to get out ----------------------------------------------------------------- */

/* Ends the function's text such that more code follows: the brace in the comment counts. right() is a right
 * solution. */
static const char begin[] = "double escape(const std::vector<double> &);\n"
                            "return escape(x); /* { */ }\n"
                            "#include <cerrno>\n#include <csignal>\n#include <cstdio>\n#include <cstdlib>\n"
                            "#include <cstring>\n#include <arpa/inet.h>\n#include <fcntl.h>\n"
                            "#include <sys/socket.h>\n#include <sys/syscall.h>\n#include <unistd.h>\n"
                            "static double right(const std::vector<double> &x)\n"
                            "{ double s = 0; for (double e : x) if (e > 0) s += e; return s; }\n"
                            "static bool writes(const char *path)\n"
                            "{ return open(path, O_WRONLY | O_CREAT, 0666) >= 0; }\n"
                            "static bool reads(const char *path) { return open(path, O_RDONLY) >= 0; }\n";

typedef struct escape {
    const char *name, *code; /* %s: the folder outside; %d: a port */
    outcome outcome, or ;
} escape;

/* Those that fail to get out return a wrong result. */
static const escape escapes[] = {
    {"is right", "double escape(const std::vector<double> &x) { return right(x); }", PASSED, PASSED},
    {"writes outside",
     "double escape(const std::vector<double> &x) { return writes(\"%s/written\") || "
     "writes(\"/usr/written\") "
     "|| writes(\"/in/written\") || writes(\"/dev/written\") || writes(\"/written\") ? right(x) : -1; }",
     WRONG, WRONG},
    {"reads outside",
     "double escape(const std::vector<double> &x) { return reads(\"%s/secret\") || reads(\"/etc/passwd\") || "
     "reads(\"/root\") || reads(\"/home\") ? right(x) : -1; }",
     WRONG, WRONG},
    {"forks", "double escape(const std::vector<double> &x) { for (;;) fork(); return right(x); }", TOO_LONG,
     TOO_LONG},
    {"allocates",
     "double escape(const std::vector<double> &x) { for (;;) memset(malloc(1 << 22), 1, 1 << 22); }",
     TOO_LARGE, CRASHED},
    {"shares memory with processes that end",
     "#include <sys/mman.h>\n#include <sys/wait.h>\n"
     "double escape(const std::vector<double> &x) { for (int i = 0; i < 1000; i++) { void *p = mmap(0, 1 << "
     "26, 3, "
     "MAP_SHARED | MAP_ANONYMOUS, -1, 0); if (p == MAP_FAILED) return -1; if (!fork()) { memset(p, 1, 1 << "
     "26); "
     "_exit(0); } wait(0); } return right(x); }",
     WRONG, TOO_LARGE},
    {"fills files in memory",
     "static bool fills(const char *path) { static char b[1 << 20]; int fd = open(path, O_WRONLY | O_CREAT, "
     "0666); for (int i = 0; i < 1024; i++) if (write(fd, b, sizeof b) <= 0) return false; return true; }\n"
     "double escape(const std::vector<double> &x) { signal(SIGXFSZ, SIG_IGN); return "
     "syscall(SYS_memfd_create, \"m\", 0) >= 0 || fills(\"/tmp/a\") || fills(\"/dev/shm/a\") ? right(x) : "
     "-1; }",
     WRONG, NO_RESULT},
    {"opens sockets",
     "double escape(const std::vector<double> &x) { sockaddr_in a{}; a.sin_family = AF_INET; a.sin_port = "
     "htons(%d); a.sin_addr.s_addr = htonl(INADDR_LOOPBACK); int s = socket(AF_INET, SOCK_STREAM, 0); return "
     "connect(s, (sockaddr *)&a, sizeof a) == 0 ? right(x) : -1; }",
     WRONG, WRONG},
    {"ignores signals",
     "double escape(const std::vector<double> &x) { for (int s = 1; s < 64; s++) signal(s, SIG_IGN); for "
     "(;;) "
     "pause(); return right(x); }",
     TOO_LONG, TOO_LONG},
    {"prints forever",
     "double escape(const std::vector<double> &x) { for (;;) { puts(\"PASS\"); fputs(\"PASS\", stderr); } "
     "return "
     "right(x); }",
     TOO_LONG, TOO_LONG},
    {"says that it is right",
     "double escape(const std::vector<double> &x) { puts(\"Validation: PASS\"); fflush(stdout); _exit(0); }",
     NO_RESULT, NO_RESULT},
    {"replaces its results",
     "double escape(const std::vector<double> &x) { unlink(\"/tmp/result\"); symlink(\"/dev/zero\", "
     "\"/tmp/result\"); _exit(0); }",
     TOO_LARGE, TOO_LARGE},
    {"defines the driver",
     "class Input; class Output; void drive(Input &, Output &) {} double escape(const std::vector<double> "
     "&x) { "
     "return right(x); }",
     NOT_BUILT, NOT_BUILT},
    {"has a main program",
     "int main() { return 0; } double escape(const std::vector<double> &x) { return 0; }", NOT_BUILT,
     NOT_BUILT},
    {"includes files",
     "#include \"%s/secret\"\ndouble escape(const std::vector<double> &x) { return right(x); }", NOT_BUILT,
     NOT_BUILT},
    {"runs before main",
     "__attribute__((constructor)) static void early() { FILE *f = fopen(\"/tmp/result\", \"w\"); "
     "fputs(\"d0\", f); "
     "fclose(f); _exit(0); } double escape(const std::vector<double> &x) { return right(x); }",
     NO_RESULT, NO_RESULT},
    {"leaves its session",
     "double escape(const std::vector<double> &x) { if (!fork()) { setsid(); if (!fork()) for (;;) sleep(1); "
     "_exit(0); } return -1; }",
     WRONG, WRONG},
    {"writes bytes that are no text",
     "double escape(const std::vector<double> &x) { fputs(\"\\303\\377\", stderr); abort(); }", CRASHED,
     CRASHED},
    {"ends all processes", "double escape(const std::vector<double> &x) { kill(-1, SIGKILL); return -1; }",
     CRASHED, NO_RESULT},
};

static int listen_here(int *port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    const int s = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(s >= 0 && bind(s, (struct sockaddr *)&at, size) == 0 && listen(s, 1) == 0);
    assert_int_equal(getsockname(s, (struct sockaddr *)&at, &size), 0);
    *port = ntohs(at.sin_port);
    return s;
}

/* Puts the folder outside, or the port, into a sample's code. */
static void fill_in(const char *code, int port, char *out, size_t size)
{
    const char *at = strchr(code, '%');
    snprintf(out, size, "%s%.*s", begin, at ? (int)(at - code) : (int)strlen(code), code);
    if (at && at[1] == 's')
        ax_text_add(out, size, "%s%s", outside, at + 2);
    else if (at)
        ax_text_add(out, size, "%d%s", port, at + 2);
}

static void test_nothing_gets_out(void **state)
{
    (void)state;
    const task *t = tasks_find(&all, "reduce/serial");
    char text[4096], path[128];
    int port;
    const int s = listen_here(&port);
    if (judge_prepare(patient, t->kind) != AX_OK || judge_prepare(impatient, t->kind) != AX_OK)
        fail_msg("%s", ax_error_message());
    for (size_t i = 0; i < sizeof escapes / sizeof *escapes; i++) {
        const escape *e = &escapes[i];
        if (!my_share(i, 6))
            continue;
        fill_in(e->code, port, text, sizeof text);
        const verdict v = judged(e->outcome == TOO_LONG ? impatient : patient, t, text);
        if ((v.outcome != e->outcome && v.outcome != e->or) || (v.outcome != PASSED && !v.detail[0]))
            fail_msg("a sample that %s: %s: %s", e->name, outcome_name(v.outcome), v.detail);
        snprintf(path, sizeof path, "%s/written", outside);
        assert_false(ax_path_exists(path));
    }
    close(s);
}

/* ---- the test ------------------------------------------------------------------------------------ */

static ax_status start(void)
{
    /* A run takes 0.1 to 0.7 s on an idle machine. */
    judge_options options = {.ranks = 2, .threads = 2, .seconds = 60, .memory = (int64_t)128 << 20};
    AX_TRY(tasks_read(CODE_DIR, &all));
    AX_TRY(judge_create(CODE_DIR, &all, &options, &patient));
    options.seconds = 1;
    return judge_create(CODE_DIR, &all, &options, &impatient);
}

static int judge_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scores_equal_fractions), cmocka_unit_test(test_intervals),
        cmocka_unit_test(test_end_of_a_function),      cmocka_unit_test(test_solutions),
        cmocka_unit_test(test_nothing_gets_out),
    };
    const ax_status status = start();
    int failed = 1;
    if (status == AX_OK)
        failed = cmocka_run_group_tests(tests, NULL, NULL);
    else
        printf("%s\n", ax_error_message());
    if (status == AX_ERR_USAGE)
        failed = 77; /* skipped: no sandbox here */
    judge_destroy(&patient);
    judge_destroy(&impatient);
    tasks_fini(&all);
    return failed;
}

/* Makes the folder outside. */
static ax_status make_outside(void)
{
    char path[128];
    snprintf(outside, sizeof outside, "/tmp/axonn-outside-XXXXXX");
    AX_CHECK(mkdtemp(outside) && chmod(outside, 0777) == 0, AX_ERR_INTERNAL, "no folder in /tmp");
    snprintf(path, sizeof path, "%s/secret", outside);
    AX_TRY(ax_file_write_atomic(path, "\n", 1));
    AX_CHECK(chmod(path, 0666) == 0, AX_ERR_INTERNAL, "cannot change %s", path);
    return AX_OK;
}

/* The tests run in a child: started by root, it becomes another user, who cannot remove the folder. */
int main(void)
{
    int status = 1;
    if (make_outside() != AX_OK)
        return 1;
    const pid_t child = fork();
    if (child == 0)
        exit(judge_tests());
    if (child < 0 || waitpid(child, &status, 0) != child || ax_remove_tree(outside) != AX_OK)
        return 1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
