/* Judges programs that a model has written: compiles and runs them, and prints build@k and pass@k.
 *
 *     cmake --build build --target judge
 *     build/judge prompts > prompts.jsonl
 *     build/axonn generate MODEL --prompts prompts.jsonl --out samples.jsonl --samples 20 --braces
 *     build/judge run samples.jsonl --out results.jsonl
 *
 * `judge solutions right|wrong` writes the solutions of this folder as samples; `judge score RESULTS` prints
 * the scores of earlier results again. Exit codes are those of axonn. */
#include "axonn/json.h"
#include "axonn/option.h"

#include "lines.h"
#include "report.h"
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct args {
    char *dir, *out, *path, *which;
    char *kind;
    int way;
    int64_t jobs;
    double memory;
    judge_options run;
    ax_ints k;
    bool json;
} args;

/* ---- options ------------------------------------------------------------------------------------- */

#define DIR_OPTION                                                                                           \
    {                                                                                                        \
        "problems", AX_OPT_STRING, offsetof(args, dir), AXONN_CODE_DIR, .meta = "DIR",                       \
                                                                        .help = "the folder bench/code"      \
    }
#define FILTER_OPTIONS                                                                                       \
    {"kind", AX_OPT_STRING, offsetof(args, kind), .meta = "KIND", .help = "only problems of this kind"},     \
    {                                                                                                        \
        "way", AX_OPT_ENUM, offsetof(args, way), "all", .words = word_of_way,                                \
                                                        .help = "only solutions of this way"                 \
    }
#define SCORE_OPTIONS                                                                                        \
    {"k",                                                                                                    \
     AX_OPT_INTS,                                                                                            \
     offsetof(args, k),                                                                                      \
     "1",                                                                                                    \
     "[1, 10000]",                                                                                           \
     .meta = "K,…",                                                                                          \
     .help = "numbers of samples of which one must be good"},                                                \
    {                                                                                                        \
        "json", AX_OPT_BOOL, offsetof(args, json), "false",                                                  \
            .help = "print the scores as JSON, one object per group of prompts"                              \
    }

static const char *word_of_way(int i) { return i == 0 ? "all" : way_name(i - 1); }

static const ax_option prompt_options[] = {DIR_OPTION, FILTER_OPTIONS};
static const ax_option solution_options[] = {
    {"SOLUTIONS", AX_OPT_STRING, offsetof(args, which), .required = true, .help = "right or wrong"},
    DIR_OPTION,
    FILTER_OPTIONS};
static const ax_option run_options[] = {
    {"SAMPLES", AX_OPT_STRING, offsetof(args, path), .required = true,
     .help = "samples as axonn generate --prompts writes them"},
    {"out", AX_OPT_STRING, offsetof(args, out), .required = true, .meta = "FILE",
     .help = "a new file for the result of each sample"},
    {"jobs", AX_OPT_INT, offsetof(args, jobs), "1", "[1, 256]", .meta = "N",
     .help = "samples that are judged at the same time"},
    {"ranks", AX_OPT_INT, offsetof(args, run.ranks), "2", "[2, 64]", .meta = "N", .help = "ranks of MPI"},
    {"threads", AX_OPT_INT, offsetof(args, run.threads), "2", "[2, 64]", .meta = "N",
     .help = "threads of OpenMP"},
    {"seconds", AX_OPT_FLOAT, offsetof(args, run.seconds), "20", "(0, 86400]", .meta = "S",
     .help = "limit of the time of a run"},
    {"memory", AX_OPT_FLOAT, offsetof(args, memory), "1024", "[64, 1048576]", .meta = "MIB",
     .help = "limit of the memory of a run, in MiB"},
    DIR_OPTION,
    SCORE_OPTIONS};
static const ax_option score_options[] = {
    {"RESULTS", AX_OPT_STRING, offsetof(args, path), .required = true, .help = "results of judge run"},
    SCORE_OPTIONS};

/* ---- prompts and solutions ----------------------------------------------------------------------- */

static bool wanted(const args *a, const task *t)
{
    return (!a->kind || strcmp(a->kind, t->kind) == 0) && (a->way == 0 || a->way - 1 == (int)t->way);
}

static json_t *head_of(const task *t)
{
    return json_pack("{s:s, s:s, s:s}", "id", t->id, "kind", t->kind, "way", way_name((int)t->way));
}

static ax_status print_tasks(const args *a, const tasks *all)
{
    const bool right = a->which && strcmp(a->which, "right") == 0;
    size_t n = 0;
    AX_CHECK(!a->which || right || strcmp(a->which, "wrong") == 0, AX_ERR_USAGE,
             "judge solutions right or wrong, not \"%s\"", a->which);
    for (size_t i = 0; i < all->n; i++) {
        const task *t = &all->item[i];
        if (!wanted(a, t))
            continue;
        json_t *line = head_of(t);
        if (a->which) {
            json_object_set_new(line, "sample", json_integer(0));
            json_object_set_new(line, "text", json_string(right ? t->right : t->wrong));
        } else {
            json_object_set_new(line, "prompt", json_string(t->prompt));
        }
        AX_TRY(line_print(stdout, line));
        n++;
    }
    AX_CHECK(n, AX_ERR_USAGE, "there are no problems of the kind \"%s\": see judge prompts", a->kind);
    return AX_OK;
}

/* ---- judging ------------------------------------------------------------------------------------- */

/* What threads share. They call `each` for the items 0 to n - 1. */
typedef struct bench {
    const args *args;
    const lines *samples;
    tasks tasks;   /* those that have samples */
    lines results; /* one for each sample; NULL: not judged yet */
    judge *judge;
    FILE *out;
    ax_status (*each)(struct bench *b, int worker, size_t i);
    size_t n, next;
    pthread_mutex_t lock;
    ax_status status; /* of the first call that failed */
    char message[1024];
} bench;

static volatile sig_atomic_t stopped;

static void note(int signal) { stopped = signal; }

/* Takes the index of the next item. Returns false if there is none. */
static bool take(bench *b, size_t *index)
{
    pthread_mutex_lock(&b->lock);
    *index = b->next;
    const bool more = b->next < b->n && b->status == AX_OK && !stopped;
    b->next += more;
    pthread_mutex_unlock(&b->lock);
    return more;
}

typedef struct thread {
    bench *bench;
    int index;
    pthread_t id;
} thread;

static void *work(void *arg)
{
    const thread *w = arg;
    bench *b = w->bench;
    for (size_t i; take(b, &i);) {
        const ax_status status = b->each(b, w->index, i);
        if (status == AX_OK)
            continue;
        pthread_mutex_lock(&b->lock);
        b->status = status;
        snprintf(b->message, sizeof b->message, "%s", ax_error_message());
        pthread_mutex_unlock(&b->lock);
    }
    return NULL;
}

/* Calls `each` for n items, with as many threads as the user asks for. */
static ax_status for_each(bench *b, ax_status (*each)(bench *b, int worker, size_t i), size_t n)
{
    const int jobs = (int)b->args->jobs;
    thread *w;
    int started = 0;
    b->each = each;
    b->n = n;
    b->next = 0;
    AX_TRY(ax_calloc((size_t)jobs, sizeof *w, &w));
    for (; started < jobs; started++) {
        w[started] = (thread){.bench = b, .index = started};
        if (ax_thread_start(&w[started].id, work, &w[started]) != 0)
            break;
    }
    for (int i = 0; i < started; i++)
        pthread_join(w[i].id, NULL);
    free(w);
    AX_CHECK(started, AX_ERR_MEMORY, "cannot start a thread");
    AX_CHECK(!stopped, AX_ERR_SIGNAL, "stopped by a signal");
    AX_CHECK(b->status == AX_OK, b->status, "%s", b->message);
    return AX_OK;
}

static ax_status keep(bench *b, size_t index, const task *t, const verdict *v)
{
    json_t *line = head_of(t);
    json_object_set(line, "sample", json_object_get(b->samples->item[index], "sample"));
    json_object_set_new(line, "result", json_string(outcome_name(v->outcome)));
    json_object_set_new(line, "seconds", json_real(v->seconds));
    if (v->detail[0])
        json_object_set_new(line, "detail", json_stringn_nocheck(v->detail, strlen(v->detail)));
    pthread_mutex_lock(&b->lock);
    b->results.item[index] = line;
    const ax_status status = line_print(b->out, json_incref(line));
    fflush(b->out);
    pthread_mutex_unlock(&b->lock);
    return status;
}

static ax_status judge_one(bench *b, int worker, size_t i)
{
    const json_t *line = b->samples->item[i];
    const char *id = line_text(line, "id");
    verdict v;
    if (!id)
        return AX_OK; /* the line of settings, or an empty one */
    const task *t = tasks_find(&b->tasks, id);
    AX_TRY(judge_sample(b->judge, worker, t, line_text(line, "text"), &v));
    return stopped ? AX_OK : keep(b, i, t, &v);
}

/* Prepares a task's kind, with its first task. */
static ax_status prepare_one(bench *b, int worker, size_t i)
{
    const task *t = &b->tasks.item[i];
    (void)worker;
    return i > 0 && strcmp(t->kind, t[-1].kind) == 0 ? AX_OK : judge_prepare(b->judge, t->kind);
}

static ax_status check_one(bench *b, int worker, size_t i)
{
    return judge_check(b->judge, worker, &b->tasks.item[i]);
}

static bool same_sample(const json_t *a, const json_t *b)
{
    const char *x = line_text(a, "id"), *y = line_text(b, "id");
    return x && y && strcmp(x, y) == 0 &&
           json_equal(json_object_get(a, "sample"), json_object_get(b, "sample"));
}

/* Checks all samples, and lists what is wrong with their lines. The first line may describe the settings of
 * axonn generate. */
static ax_status check_samples(const args *a, const tasks *all, const lines *samples)
{
    enum { MOST = 20 };
    ax_buf text = {0};
    ax_status status = AX_OK;
    int wrong = 0;
    size_t n = 0;
    for (size_t i = 0; i < samples->n && status == AX_OK; i++) {
        const json_t *line = samples->item[i];
        const char *id = line_text(line, "id"), *why = NULL;
        if (!line || (i == 0 && !json_object_get(line, "id")))
            continue;
        n++;
        if (!id || !tasks_find(all, id))
            why = "\"id\" is not that of a prompt of this folder (judge prompts lists them)";
        else if (!line_text(line, "text"))
            why = "has no \"text\"";
        for (size_t j = 0; j < i && !why; j++)
            if (same_sample(line, samples->item[j]))
                why = "is the same sample of the same prompt as an earlier line";
        if (why && wrong++ < MOST)
            status = ax_buf_printf(&text, "%s%s:%zu: %s", text.size ? "\n" : "", a->path, i + 1, why);
    }
    if (status == AX_OK && wrong)
        status = ax_fail(AX_ERR_DATA, "%s%s", text.data, wrong > MOST ? "\n…" : "");
    else if (status == AX_OK && !n)
        status = ax_fail(AX_ERR_DATA, "%s has no samples", a->path);
    ax_buf_fini(&text);
    return status;
}

/* Lists the tasks that have samples. */
static ax_status find_tasks(const tasks *all, const lines *samples, tasks *out)
{
    for (size_t i = 0; i < all->n; i++) {
        bool has = false;
        for (size_t j = 0; j < samples->n && !has; j++) {
            const char *id = line_text(samples->item[j], "id");
            has = id && strcmp(id, all->item[i].id) == 0;
        }
        if (!has)
            continue;
        AX_TRY(ax_list_grow(&out->item, out->n, sizeof *out->item));
        out->item[out->n++] = all->item[i];
    }
    return AX_OK;
}

static ax_status prepare(bench *b)
{
    AX_TRY(judge_create(b->args->dir, &b->tasks, &b->args->run, &b->judge));
    AX_TRY(for_each(b, prepare_one, b->tasks.n));
    return for_each(b, check_one, b->tasks.n);
}

/* Judges all samples; the file a->out is open as b->out. */
static ax_status judge_all(bench *b)
{
    ax_status status = prepare(b);
    if (status != AX_OK)
        unlink(b->args->out);
    else
        status = for_each(b, judge_one, b->samples->n);
    if (status == AX_ERR_SIGNAL && ax_path_exists(b->args->out))
        status = ax_fail(status, "stopped by a signal; \"%s\" has the results so far", b->args->out);
    judge_destroy(&b->judge);
    if (status == AX_OK && (ferror(b->out) || fflush(b->out) != 0))
        status = ax_fail(AX_ERR_USAGE, "cannot write \"%s\": %s", b->args->out, strerror(errno));
    return status;
}

static ax_status run_checked(const args *a, const tasks *all, const lines *samples)
{
    bench b = {.args = a, .samples = samples, .lock = PTHREAD_MUTEX_INITIALIZER};
    const int fd = open(a->out, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    AX_CHECK(fd >= 0, AX_ERR_USAGE, "cannot make \"%s\": %s", a->out, strerror(errno));
    b.out = fdopen(fd, "w");
    b.results.n = samples->n;
    ax_status status = b.out ? ax_calloc(samples->n, sizeof(json_t *), &b.results.item) : AX_ERR_MEMORY;
    if (status == AX_OK)
        status = find_tasks(all, samples, &b.tasks);
    if (status == AX_OK)
        status = judge_all(&b);
    if (b.out)
        fclose(b.out);
    if (status == AX_OK)
        status = report_scores(a->out, &b.results, &a->k, a->json);
    lines_fini(&b.results);
    free(b.tasks.item);
    return status;
}

static ax_status run_verb(args *a, const tasks *all)
{
    lines samples;
    signal(SIGINT, note);
    signal(SIGTERM, note);
    a->run.memory = (int64_t)(a->memory * (1 << 20));
    ax_status status = lines_read(a->path, &samples);
    if (status == AX_OK)
        status = check_samples(a, all, &samples);
    if (status == AX_OK)
        status = run_checked(a, all, &samples);
    lines_fini(&samples);
    return status;
}

static ax_status score_verb(const args *a)
{
    lines results;
    ax_status status = lines_read(a->path, &results);
    if (status == AX_OK)
        status = report_scores(a->path, &results, &a->k, a->json);
    lines_fini(&results);
    return status;
}

/* ---- verbs --------------------------------------------------------------------------------------- */

static const struct verb {
    const char *name, *help;
    const ax_option *options;
    size_t n;
} verbs[] = {
    {"prompts", "print the prompts, one JSON object a line", prompt_options,
     sizeof prompt_options / sizeof *prompt_options},
    {"solutions", "print this folder's solutions as samples", solution_options,
     sizeof solution_options / sizeof *solution_options},
    {"run", "judge samples and print scores", run_options, sizeof run_options / sizeof *run_options},
    {"score", "print the scores of results", score_options, sizeof score_options / sizeof *score_options},
};

static ax_status help(void)
{
    ax_buf text = {0};
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        AX_TRY(ax_buf_printf(&text, "%sjudge %s: %s\n", i ? "\n" : "", verbs[i].name, verbs[i].help));
        AX_TRY(ax_option_help(verbs[i].options, verbs[i].n, true, 100, &text));
    }
    printf("%.*s", (int)text.size, text.data);
    ax_buf_fini(&text);
    return AX_OK;
}

static ax_status run_with(const struct verb *v, args *a)
{
    tasks all = {0};
    ax_status status = v->options == score_options ? AX_OK : tasks_read(a->dir, &all);
    if (status == AX_OK)
        status = v->options == score_options ? score_verb(a)
                 : v->options == run_options ? run_verb(a, &all)
                                             : print_tasks(a, &all);
    tasks_fini(&all);
    return status;
}

static ax_status run_main(int argc, char **argv)
{
    const struct verb *v = NULL;
    ax_option_set *set;
    args a = {0};
    bool asked = argc < 2;
    for (int i = 1; i < argc; i++)
        asked = asked || strcmp(argv[i], "--help") == 0;
    if (asked)
        return help();
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        if (strcmp(argv[1], verbs[i].name) == 0)
            v = &verbs[i];
    AX_CHECK(v, AX_ERR_USAGE, "there is no judge %s: prompts, solutions, run or score", argv[1]);
    AX_TRY(ax_option_set_create(v->options, v->n, &a, &set));
    ax_status status = ax_option_read_flags(set, (size_t)argc - 2, argv + 2);
    if (status == AX_OK)
        status = ax_option_finish(set);
    ax_option_set_destroy(&set);
    if (status == AX_OK)
        status = run_with(v, &a);
    ax_option_fini(v->options, v->n, &a);
    return status;
}

int main(int argc, char **argv)
{
    const ax_status status = run_main(argc, argv);
    if (status != AX_OK)
        fprintf(stderr, "judge: %s\n", ax_error_message());
    return (int)status;
}
