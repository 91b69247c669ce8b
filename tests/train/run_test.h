/* Whole training runs from a test. Each run is a child process, like `axonn train`, so that it can be killed,
 * has an exit code, and its log can be read. The current directory is a scratch directory, to which paths are
 * relative. */
#ifndef AX_TESTS_RUN_TEST_H
#define AX_TESTS_RUN_TEST_H

#include "axonn/ckpt.h"
#include "axonn/train.h"
#include "support/check.h"
#include "support/sanitized.h"
#include "support/scratch.h"

#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* Makes fsync do nothing. Tests kill processes but do not cut the power, so written data survives anyway. */
int fsync(int fd)
{
    (void)fd;
    return 0;
}

/* ---- scratch directory --------------------------------------------------------------------------- */

static char scratch_dir[SCRATCH_PATH];

static inline int run_setup(void **state)
{
    (void)state;
    return scratch_make("/tmp", scratch_dir) || chdir(scratch_dir) ? -1 : 0;
}

static inline int run_teardown(void **state)
{
    (void)state;
    return chdir("/") || ax_remove_tree(scratch_dir) != AX_OK ? -1 : 0;
}

/* Writes a token file of documents of different lengths, about `tokens` tokens in all. A small model can
 * learn them: they are mostly ramps. */
static inline void make_tokens(const char *path, int64_t vocab, int64_t tokens, uint64_t seed)
{
    ax_token_writer *writer;
    OK(ax_token_writer_create(path, vocab, vocab - 1, 0, &writer));
    uint64_t key = ax_rng_key(seed, "tokens", 0);
    for (int64_t at = 0, n; at < tokens; at += n + 1) {
        int32_t document[80];
        n = 5 + (int64_t)(ax_rng_uniform(key, (uint64_t)at) * 70);
        for (int64_t i = 0; i < n; i++)
            document[i] =
                (int32_t)((at + i + (ax_rng_uniform(key, (uint64_t)(at + i)) < 0.2f)) % (vocab - 1));
        OK(ax_token_writer_add(writer, document, n, 3 * n));
    }
    OK(ax_token_writer_finish(&writer, NULL));
}

/* ---- runs ---------------------------------------------------------------------------------------- */

enum { VOCAB = 61, MAX_KEYS = 64 };
#define MODEL_KEYS                                                                                           \
    "model.family=gpt2 model.layers=2 model.hidden=24 model.heads=3 model.vocab=61 model.seq_len=16 "
#define OTHER_KEYS                                                                                           \
    "data.train=train.tok train.steps=6 train.global_batch=4 train.micro_batch=2 train.precision=fp32 "      \
    "optim.lr=0.01 optim.warmup=2 run.checkpoint_interval=1 run.keep_latest=0 run.log_interval=1 "           \
    "threads=1 run.dir=run "
#define BASE_KEYS MODEL_KEYS OTHER_KEYS

typedef struct outcome {
    int code;    /* exit code; 128 + signal */
    ax_buf said; /* its standard error */
} outcome;

/* Adds a "key=value" word to the n words of `list`, or replaces the word with the same key. */
static inline size_t set_key(char **list, size_t n, char *word)
{
    size_t length = strcspn(word, "=") + 1, at = 0;
    while (at < n && strncmp(list[at], word, length))
        at++;
    list[at] = word;
    return ax_max(n, at + 1);
}

/* Splits `keys` into the words for a rank. If a key occurs more than once, the last one counts.
 * "@2:key=value" is for rank 2 only. */
static inline size_t keys_of_rank(char *keys, int rank, char **key)
{
    char *rest = NULL, *end;
    size_t n = 0;
    for (char *word = strtok_r(keys, " ", &rest); word && n < MAX_KEYS; word = strtok_r(NULL, " ", &rest)) {
        if (*word == '@' && strtol(word + 1, &end, 10) != rank)
            continue;
        n = set_key(key, n, *word == '@' ? end + 1 : word);
    }
    return n;
}

/* Does what one rank of `axonn train` does, except that every rank prints its error. */
static inline ax_status train_rank(ax_comm *world, void *arg)
{
    char *text = strdup(arg), *key[MAX_KEYS];
    ax_config config;
    ax_train_result result = {0};
    size_t n = keys_of_rank(text, ax_comm_rank(world), key);
    ax_status status = ax_comm_agree(world, ax_config_load(NULL, key, n, AX_CONFIG_TO_TRAIN, &config));
    if (status == AX_OK)
        status = ax_train(world, &config, &result);
    if (status != AX_OK && (!ax_error_is_shared() || ax_comm_rank(world) == 0))
        fprintf(stderr, "error: %s\n", ax_error_message());
    else if (status == AX_OK && ax_comm_rank(world) == 0)
        fprintf(stderr, "done: step %lld, checkpoint %s, eval loss %g\n", (long long)result.step,
                result.checkpoint ? result.checkpoint : "none", result.eval_loss);
    free(result.checkpoint);
    ax_config_fini(&config);
    free(text);
    return status;
}

/* Does what `axonn train` does, on the number of rank threads that a word "ranks=N" gives. Under a leak
 * checker a leak changes the exit code. */
static inline void train_and_exit(const char *keys)
{
    char *text = strdup(keys), *word = strstr(text, "ranks=");
    int ranks = word ? (int)strtol(word + 6, NULL, 10) : 1;
    if (word)
        memset(word, ' ', strcspn(word, " "));
    ax_status status = ax_comm_threads_run(ranks, train_rank, text);
    free(text);
    exit((int)status);
}

/* Starts a run with "key=value" words (the last one of a key counts). The file `log` gets its log. */
static inline pid_t run_start(const char *log, const char *keys)
{
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid)
        return pid;
    int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0 || dup2(fd, STDERR_FILENO) < 0)
        _exit(99);
    close(fd);
    train_and_exit(keys);
    _exit(99);
}

static inline int run_wait(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Returns the text of a file; the caller frees it. Not inlined, because gcc 12 then warns wrongly that the
 * address of `text` is returned. */
__attribute__((noinline, unused)) static char *text_of(const char *path)
{
    char *text;
    size_t size;
    OK(ax_file_read(path, &text, &size));
    return text;
}

/* Runs to the end and expects this exit code, and that the log contains `part` (NULL: anything). */
static inline void run_expect(int code, const char *part, const char *fmt, ...) AX_PRINTF(3, 4);
static inline void run_expect(int code, const char *part, const char *fmt, ...)
{
    char keys[4096];
    va_list args;
    va_start(args, fmt);
    vsnprintf(keys, sizeof keys, fmt, args);
    va_end(args);
    int got = run_wait(run_start("log", keys));
    char *said = text_of("log");
    if (got != code || (part && !strstr(said, part)))
        fail_msg("exit code %d, expected %d and \"%s\"; it said:\n%s", got, code, part ? part : "", said);
    free(said);
}

/* Makes a run under a resource limit (setrlimit) of `bytes`. */
static inline void run_limited(int code, const char *said, int what, rlim_t bytes, const char *keys)
{
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        struct rlimit limit = {bytes, bytes};
        int fd = open("log", O_WRONLY | O_CREAT | O_TRUNC, 0666);
        if (fd < 0 || dup2(fd, STDERR_FILENO) < 0 || setrlimit(what, &limit))
            _exit(99);
        signal(SIGXFSZ, SIG_IGN);
        train_and_exit(keys);
    }
    int got = run_wait(pid);
    char *log = text_of("log");
    if (got != code || !strstr(log, said))
        fail_msg("exit code %d, expected %d and \"%s\":\n%s", got, code, said, log);
    free(log);
}

static inline void sleep_ms(double ms) { usleep((useconds_t)(ms * 1e3)); }

/* ---- what runs leave behind ---------------------------------------------------------------------- */

/* Returns metrics.jsonl, one line per row, without values that differ from run to run: times and memory. With
 * `rows_only` also without the rows that describe a run. The caller frees it. */
static inline char *metrics_of(const char *run, bool rows_only)
{
    static const char *const changing[] = {"step_ms", "tokens_per_s", "flops_per_s",     "hw_flops_per_s",
                                           "mfu",     "mem_bytes",    "mem_mean",        "mem_baseline",
                                           "seconds", "time",         "peak_flops_per_s"};
    char path[4096], *rest = NULL;
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    char *text = text_of(path);
    ax_buf out = {0};
    OK(ax_buf_add(&out, "", 0));
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        json_t *row = json_loads(line, 0, NULL);
        if (!json_is_object(row))
            fail_msg("%s: this is no row: %s", path, line);
        for (size_t i = 0; i < AX_COUNT(changing); i++)
            json_object_del(row, changing[i]);
        if (!rows_only || json_object_get(row, "step")) {
            char *clean = json_dumps(row, JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
            OK(ax_buf_printf(&out, "%s\n", clean));
            free(clean);
        }
        json_decref(row);
    }
    free(text);
    return out.data;
}

/* Returns the first object of metrics.jsonl that has the key, of this step. The caller releases it. */
static inline json_t *row_with(const char *run, const char *key, int64_t step)
{
    char path[4096], *rest = NULL;
    json_t *found = NULL;
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    char *text = text_of(path);
    for (char *line = strtok_r(text, "\n", &rest); line && !found; line = strtok_r(NULL, "\n", &rest)) {
        json_t *json = json_loads(line, 0, NULL);
        if (json_object_get(json, key) && json_integer_value(json_object_get(json, "step")) == step)
            found = json_incref(json);
        json_decref(json);
    }
    free(text);
    assert_non_null(found);
    return found;
}

static inline double number_at(const char *run, const char *key, int64_t step)
{
    json_t *row = row_with(run, key, step);
    double value = json_number_value(json_object_get(row, key));
    json_decref(row);
    return value;
}

/* Returns the last step in metrics.jsonl, 0 if there is none yet. */
static inline int64_t last_step(const char *run)
{
    char path[4096], *text;
    size_t size;
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    if (ax_file_read(path, &text, &size) != AX_OK)
        return 0;
    int64_t step = 0;
    for (const char *at = text; (at = strstr(at, "{\"step\": ")); at++)
        if (strchr(at, '\n'))
            step = strtoll(at + 9, NULL, 10);
    free(text);
    return step;
}

/* Waits until the run has reported `step`, or has ended. */
static inline void await_step(const char *run, pid_t pid, int64_t step)
{
    siginfo_t info = {.si_pid = 0};
    while (last_step(run) < step) {
        assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT), 0);
        if (info.si_pid)
            return;
        sleep_ms(1);
    }
}

static inline void same_text(char *a, char *b)
{
    assert_string_equal(a, b);
    free(a);
    free(b);
}

static inline void same_file(const char *a, const char *b)
{
    char *x, *y;
    size_t n, m;
    OK(ax_file_read(a, &x, &n));
    OK(ax_file_read(b, &y, &m));
    if (n != m || memcmp(x, y, n) != 0)
        fail_msg("%s and %s differ", a, b);
    free(x);
    free(y);
}

static inline int count_files(const char *dir)
{
    DIR *d = opendir(dir);
    assert_non_null(d);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* Asserts that both checkpoints have the same state.json, except settings that a resumed run may change. */
static inline void same_state(const char *a, const char *b)
{
    char *text[2];
    const char *const path[2] = {a, b};
    for (int i = 0; i < 2; i++) {
        json_t *state = json_load_file(path[i], 0, NULL);
        assert_int_equal(json_object_del(state, "settings"), 0);
        text[i] = json_dumps(state, JSON_SORT_KEYS);
        json_decref(state);
    }
    same_text(text[0], text[1]);
}

/* Asserts that all files of both checkpoints are equal, except the manifest (times, serial numbers). */
static inline void same_checkpoint(const char *a, const char *b)
{
    char x[4096], y[4096];
    DIR *d = opendir(a);
    if (!d)
        fail_msg("there is no checkpoint %s", a);
    if (count_files(a) != count_files(b))
        fail_msg("%s and %s hold different files", a, b);
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.' || !strcmp(e->d_name, "manifest.json"))
            continue;
        snprintf(x, sizeof x, "%s/%s", a, e->d_name);
        snprintf(y, sizeof y, "%s/%s", b, e->d_name);
        if (ax_path_is_dir(x))
            same_checkpoint(x, y);
        else if (!strcmp(e->d_name, "state.json"))
            same_state(x, y);
        else
            same_file(x, y);
    }
    closedir(d);
}

static inline void sh(const char *fmt, ...) AX_PRINTF(1, 2);
static inline void sh(const char *fmt, ...)
{
    char command[8192];
    va_list args;
    va_start(args, fmt);
    vsnprintf(command, sizeof command, fmt, args);
    va_end(args);
    if (system(command))
        fail_msg("failed: %s", command);
}

/* Makes a tokenizer of 280 tokens in tok/, and the text that it is trained on. */
static inline void make_tokenizer(void)
{
    static const char *const paths[] = {"text.txt"}, *const specials[] = {"<|endoftext|>"};
    ax_tokenizer *tokenizer;
    sh("for i in $(seq 300); do echo \"line $i of a text to learn, and again $((i %% 7))\"; done > text.txt");
    OK(ax_tokenizer_train(
        &(ax_tokenizer_training){
            .vocab = 280, .specials = specials, .n_specials = 1, .paths = paths, .n_paths = 1, .threads = 1},
        &tokenizer));
    OK(ax_tokenizer_save(tokenizer, "tok"));
    ax_tokenizer_destroy(&tokenizer);
}

#endif
