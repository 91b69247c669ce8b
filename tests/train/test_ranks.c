/* Training runs of several ranks: they equal runs of one rank, can be resumed on other grids and stopped by
 * signals, and fail with one message if something is wrong on one rank only. */
#include "support/sampled.h"
#include "train/run_test.h"

#include <math.h>
#include <sys/resource.h>

#define RANK_KEYS                                                                                            \
    "model.family=gpt2 model.layers=2 model.hidden=24 model.heads=4 model.vocab=61 model.seq_len=16 "        \
    "train.global_batch=8 train.micro_batch=1 " OTHER_KEYS "train.global_batch=8 train.micro_batch=1 "

/* Keys of grids of up to eight ranks, which together use every axis. */
static const char *const grids[] = {
    "ranks=2 grid.x=2",
    "ranks=2 grid.y=2",
    "ranks=2 grid.z=2",
    "ranks=2 grid.data=2",
    "ranks=4 grid.x=2 grid.data=2",
    "ranks=4 grid.y=2 grid.z=2",
    "ranks=8 grid.x=2 grid.y=2 grid.z=2",
    "ranks=8 grid.x=2 grid.y=2 grid.data=2",
    "ranks=4 grid.x=2 grid.data=2 grid.order=data,z,y,x,pipe",
    "ranks=2 zero=1",
    "ranks=4 grid.z=2 grid.data=2 zero=3 train.weight_cache=1000000",
    "ranks=4 grid.x=2 grid.data=2 zero=2 overlap.oar=false overlap.ors=false overlap.oag=false",
    "ranks=2 strategy=fsdp",
    "ranks=4 grid.x=2 strategy=megatron",
    "ranks=2 grid.pipe=2",
    "ranks=4 grid.pipe=4 pipe.schedule=1f1b",
    "ranks=8 grid.pipe=2 grid.x=2 grid.data=2 zero=1 pipe.slack=1",
    "ranks=3 grid.pipe=3 pipe.cut=0,2 pipe.schedule=gpipe",
    "ranks=4 grid.pipe=2 grid.x=2 pipe.schedule=interleaved",
};

/* ---- what a run reported ------------------------------------------------------------------------- */

enum { MAX_STEPS = 16 };

typedef struct row {
    double loss, grad_norm;
    int64_t mem, mean, bytes; /* mem_bytes; mem_mean; comm_bytes, summed over the axes */
    double exposed;
} row;

/* Reads the rows of the steps and returns their number. If `axes` is not NULL, it gets the keys of the last
 * row's comm_bytes. */
static int rows_of(const char *run, row *out, char *axes)
{
    char path[64], *rest = NULL;
    int n = 0;
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    char *text = text_of(path);
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        json_t *json = json_loads(line, 0, NULL), *value;
        const char *key;
        assert_true(json_is_object(json));
        if (json_object_get(json, "comm_bytes")) {
            row *r = &out[n++];
            assert_int_equal(json_integer_value(json_object_get(json, "step")), n);
            *r = (row){json_number_value(json_object_get(json, "loss")),
                       json_number_value(json_object_get(json, "grad_norm")),
                       json_integer_value(json_object_get(json, "mem_bytes")),
                       json_integer_value(json_object_get(json, "mem_mean")),
                       0,
                       json_number_value(json_object_get(json, "comm_exposed_ms"))};
            if (axes)
                *axes = 0;
            json_object_foreach(json_object_get(json, "comm_bytes"), key, value)
            {
                r->bytes += json_integer_value(value);
                if (axes)
                    strcat(strcat(axes, *axes ? " " : ""), key);
            }
        }
        json_decref(json);
    }
    free(text);
    return n;
}

/* Asserts that the losses agree to 1e-5, for fp32 sums in another order. The loss is of order 1 (ln 61
 * = 4.1). */
static void same_losses(const char *a, const char *b)
{
    row x[MAX_STEPS], y[MAX_STEPS];
    int n = rows_of(a, x, NULL), m = rows_of(b, y, NULL);
    assert_int_equal(n, m);
    for (int i = 0; i < n; i++)
        if (fabs(x[i].loss - y[i].loss) > 1e-5 * x[i].loss ||
            fabs(x[i].grad_norm - y[i].grad_norm) > 1e-3 * x[i].grad_norm)
            fail_msg("step %d: loss %.9g and %.9g, norm %.9g and %.9g", i + 1, x[i].loss, y[i].loss,
                     x[i].grad_norm, y[i].grad_norm);
}

/* ---- runs ---------------------------------------------------------------------------------------- */

static void every_grid_trains_as_one_rank(void **state)
{
    (void)state;
    sh("rm -rf ref run");
    run_expect(0, "eval loss", RANK_KEYS "train.micro_batch=8 data.valid=valid.tok run.dir=ref");
    for (size_t i = 0; i < AX_COUNT(grids); i++) {
        if (!my_share(i, 3))
            continue;
        sh("rm -rf run");
        run_expect(0, "eval loss", RANK_KEYS "data.valid=valid.tok %s", grids[i]);
        same_losses("ref", "run");
    }
}

/* The first object of metrics.jsonl describes the run; each step has the bytes that it transferred. */
static void metrics_describe_the_ranks(void **state)
{
    (void)state;
    row rows[MAX_STEPS];
    char axes[256];
    sh("rm -rf run");
    run_expect(0, NULL, RANK_KEYS "ranks=4 grid.x=2 grid.data=2");
    assert_int_equal(rows_of("run", rows, axes), 6);
    assert_true(rows[0].bytes > 0 && rows[0].mem > 0 && rows[1].bytes == rows[5].bytes);
    assert_true(rows[5].exposed > 0);
    assert_true(rows[5].mean > rows[5].mem / 2 && rows[5].mean <= rows[5].mem); /* the ranks do the same */
    assert_non_null(strstr(axes, "x"));
    assert_non_null(strstr(axes, "data"));
    char *text = text_of("run/metrics.jsonl");
    assert_non_null(strstr(text, "\"grid\":\"data=2 pipe=1 x=2 y=1 z=1\",\"strategy\":\"axonn\",\"zero\":0"));
    assert_non_null(strstr(text, "\"ranks\":4"));
    free(text);
    sh("rm -rf run");
    run_expect(0, NULL, RANK_KEYS);
    assert_int_equal(rows_of("run", rows, axes), 6);
    assert_true(rows[0].bytes == 0 && rows[0].exposed == 0 && rows[0].mean == rows[0].mem);
    assert_string_equal(axes, "");
}

/* Two stages: rank 0 sends 8 activations and the table of tokens, rank 1 as many gradients. In fp32 both have
 * the same bytes. */
static void pipelines_report_their_messages(void **state)
{
    (void)state;
    sh("rm -rf run");
    run_expect(0, "pipeline of 2 stages, 8 micro-batches a step: 1 block in 2 slots, 1 block in 1 slot",
               RANK_KEYS "train.precision=fp32 ranks=2 grid.pipe=2 pipe.cut=1 train.steps=2");
    char *text = text_of("run/metrics.jsonl"), bytes[64];
    snprintf(bytes, sizeof bytes, "\"pipe\": %d", 8 * 16 * 24 * 4 + 61 * 24 * 4 + 8 * (1 + 36));
    if (!strstr(text, bytes) || !strstr(text, "\"pipe_wait_ms\": "))
        fail_msg("no %s, or no pipe_wait_ms, in\n%s", bytes, text);
    free(text);
}

/* With pipe.cut=0 rank 0 has only the table of tokens, and rank 1 has all blocks and the head. */
static void mem_planned_is_that_of_the_largest_stage(void **state)
{
    (void)state;
    static const char keys[] = RANK_KEYS "model.tie=false ranks=2 grid.pipe=2 pipe.cut=0 train.steps=1";
    char size[32], expected[80];
    sh("rm -rf run");
    run_expect(0, "memory of rank 0: ", keys);
    char *text = text_of("run/metrics.jsonl"), *at = strstr(text, "\"mem_planned\":");
    assert_non_null(at);
    const int64_t planned = strtoll(at + strlen("\"mem_planned\":"), NULL, 10);
    ax_format_bytes((double)planned, size);
    free(text);
    sh("rm -rf run");
    snprintf(expected, sizeof expected, "memory of the largest rank: %s", size);
    run_expect(0, expected, "%s runtime.device_memory=%lld", keys, (long long)planned);
    sh("rm -rf run");
    snprintf(expected, sizeof expected, "rank 1: a step needs %s (%lld bytes) of device memory but ", size,
             (long long)planned);
    run_expect(3, expected, "%s runtime.device_memory=%lld", keys, (long long)planned - 1);
}

/* Advice for stages that have too little memory: to postpone nothing, if that would fit; and no number of
 * micro-batches that the schedule cannot have (here three on two stages). */
static void too_little_memory_for_slots(void **state)
{
    (void)state;
    const int64_t seq_len = 4096, free_bytes = ax_memory_available(),
                  slots = free_bytes / (seq_len * 24 * 4 * 5);
    run_expect(3, ": pipe.postpone: 0 would fit (",
               RANK_KEYS "ranks=2 grid.pipe=2 model.seq_len=%lld train.micro_batch=1 train.global_batch=%lld "
                         "pipe.postpone=%lld",
               (long long)seq_len, (long long)(2 * slots), (long long)slots);
    run_expect(3, ": pipe.schedule: message would fit (",
               RANK_KEYS "ranks=2 grid.pipe=2 model.seq_len=%lld train.micro_batch=1 train.global_batch=%lld "
                         "pipe.schedule=gpipe",
               (long long)seq_len, (long long)(2 * slots));
    if (!SANITIZED) /* sanitizers reserve terabytes */
        run_limited(
            3,
            "even train.micro_batch: 1 with train.recompute: full with offload.optimizer: file does not fit",
            RLIMIT_AS, (rlim_t)264 << 20,
            RANK_KEYS "ranks=2 grid.pipe=2 pipe.schedule=interleaved model.seq_len=1048576 "
                      "train.micro_batch=3 train.global_batch=6");
}

/* Untied models have the same bits on any number of stages, so a run that changes it ends with the same
 * files. */
static void stages_do_not_change_a_bit(void **state)
{
    (void)state;
    static const char keys[] = RANK_KEYS "optim.schedule=constant model.tie=false model.layers=4 ";
    sh("rm -rf ref run");
    run_expect(0, NULL, "%s train.steps=6 run.dir=ref", keys);
    run_expect(0, NULL, "%s train.steps=2 ranks=2 grid.pipe=2", keys);
    run_expect(0, "resuming", "%s train.steps=3 ranks=6 grid.pipe=6 pipe.slack=2", keys);
    run_expect(0, "resuming", "%s train.steps=4", keys);
    run_expect(
        0,
        "pipeline of 2 stages of 3 chunks, 8 micro-batches a step: 2 blocks in 7 slots, 2 blocks in 5 slots",
        "%s train.steps=5 ranks=2 grid.pipe=2 pipe.schedule=interleaved pipe.chunks=3", keys);
    run_expect(0, "resuming", "%s train.steps=6 ranks=3 grid.pipe=3 pipe.schedule=1f1b", keys);
    sh("cmp ref/ckpt/step-6/model.safetensors run/ckpt/step-6/model.safetensors");
    sh("cmp ref/ckpt/step-6/training/optim.safetensors run/ckpt/step-6/training/optim.safetensors");
}

/* Forward may keep the results of collectives for what backward computes again, from any step on: the files
 * have the same bits, and fewer bytes are sent. The plan knows what that takes. */
static void kept_results_are_not_sent_again(void **state)
{
    (void)state;
    static const char keys[] = RANK_KEYS
        "ranks=4 grid.x=2 grid.y=2 optim.schedule=constant train.recompute=full train.recompute_comm=";
    row again[MAX_STEPS], kept[MAX_STEPS];
    sh("rm -rf ref run");
    run_expect(0, NULL, "%sagain train.steps=3 run.dir=ref", keys);
    run_expect(0, NULL, "%sagain train.steps=1", keys);
    run_expect(0, "train.recompute_comm keep takes ", "%skeep train.steps=3", keys);
    sh("cmp ref/ckpt/step-3/model.safetensors run/ckpt/step-3/model.safetensors");
    sh("cmp ref/ckpt/step-3/training/optim.safetensors run/ckpt/step-3/training/optim.safetensors");
    assert_int_equal(rows_of("ref", again, NULL), 3);
    assert_int_equal(rows_of("run", kept, NULL), 3);
    assert_true(kept[2].bytes < again[2].bytes);
    sh("rm -rf run");
    run_expect(0, NULL, "%skeep train.steps=1", keys);
    char *text = text_of("run/metrics.jsonl"), *at = strstr(text, "\"mem_planned\":");
    assert_non_null(at);
    const int64_t planned = strtoll(at + strlen("\"mem_planned\":"), NULL, 10);
    free(text);
    sh("rm -rf run");
    run_expect(3, ": train.recompute_comm: again would fit (", "%skeep runtime.device_memory=%lld", keys,
               (long long)planned - 1);
    run_expect(0, "train.recompute_comm keep has no effect: x, y and expert are 1",
               RANK_KEYS "ranks=2 grid.z=2 train.steps=1 train.recompute=2 train.recompute_comm=keep");
}

/* Each rank writes its trace: all steps of a short run, with their kernels and waits. */
static void traces_are_written(void **state)
{
    (void)state;
    static const char *const kinds[] = {"step", "kernel", "forward", "backward", "gather", "start"};
    sh("rm -rf run");
    run_expect(0, NULL, RANK_KEYS "ranks=2 grid.z=2 run.trace=true");
    for (int rank = 0; rank < 2; rank++) {
        char path[64];
        int seen[AX_COUNT(kinds)] = {0};
        snprintf(path, sizeof path, "run/trace/rank-%d.json", rank);
        json_t *root = json_load_file(path, 0, NULL), *event;
        size_t i;
        assert_non_null(root);
        json_array_foreach(json_object_get(root, "traceEvents"), i, event)
        {
            const char *kind = json_string_value(json_object_get(event, "cat"));
            assert_int_equal(json_integer_value(json_object_get(event, "pid")), rank);
            for (size_t k = 0; kind && k < AX_COUNT(kinds); k++)
                seen[k] += !strcmp(kind, kinds[k]);
        }
        assert_int_equal(seen[0], 6);
        for (size_t k = 1; k < AX_COUNT(kinds); k++)
            assert_true(seen[k] >= 6);
        json_decref(root);
    }
    sh("test ! -e ref/trace");
}

/* Rank 0 tokenizes text while the others wait, and all ranks read the result. */
static void text_is_tokenized_once(void **state)
{
    (void)state;
    sh("rm -rf ref run");
    make_tokenizer();
    static const char keys[] =
        RANK_KEYS "data.train=text.txt data.tokenizer=tok model.vocab=300 train.steps=3 ";
    run_expect(0, "tokenizing", "%s train.micro_batch=8 run.dir=ref", keys);
    run_expect(0, "tokenizing", "%s ranks=4 grid.x=2 grid.data=2", keys);
    same_losses("ref", "run");
    assert_int_equal(count_files("run/data"), count_files("ref/data"));
}

/* The grid changes four times, in the end to one rank. */
static void a_run_that_changes_its_grid(void **state)
{
    (void)state;
    sh("rm -rf ref run");
    run_expect(0, NULL, RANK_KEYS "optim.schedule=constant train.steps=8 train.micro_batch=8 run.dir=ref");
    run_expect(0, NULL, RANK_KEYS "optim.schedule=constant train.steps=2 ranks=2 grid.x=2");
    run_expect(0, "resuming", RANK_KEYS "optim.schedule=constant train.steps=4 ranks=4 grid.y=2 grid.z=2");
    run_expect(0, "resuming", RANK_KEYS "optim.schedule=constant train.steps=5 ranks=4 grid.data=4");
    run_expect(0, "resuming", RANK_KEYS "optim.schedule=constant train.steps=6 ranks=4 grid.pipe=2 grid.z=2");
    run_expect(0, "resuming", RANK_KEYS "optim.schedule=constant train.steps=8");
    same_losses("ref", "run");
}

/* ---- mistakes ------------------------------------------------------------------------------------ */

/* Makes a run that must fail with exactly one error line in its log, which contains `said`. */
static void refused(int code, const char *said, const char *keys)
{
    int got = run_wait(run_start("log", keys));
    char *log = text_of("log"), *first = strstr(log, "error: ");
    if (got != code || !first || strstr(first + 1, "error: ") || !strstr(first, said))
        fail_msg("exit code %d, expected %d and once \"%s\":\n%s", got, code, said, log);
    free(log);
}

static void mistakes_are_reported_once(void **state)
{
    (void)state;
    sh("rm -rf run");
    refused(2,
            "grid.x: the grid x=2 y=1 z=1 pipe=1 data=2 needs 4 ranks but there are 3: start as many "
            "(--ranks 4), or choose one of the nearest grids that fit: grid.x=1 grid.data=3; ",
            RANK_KEYS "train.global_batch=12 ranks=3 grid.x=2 grid.data=2");
    refused(2,
            "grid.data: the grid x=1 y=1 z=1 pipe=1 data=1 needs 1 rank but there are 2: start as many "
            "(--ranks 1), or choose one of the nearest grids that fit: grid.data=2; grid.",
            RANK_KEYS "ranks=2 grid.data=1");
    refused(2, "grid.x: the grid x=2 y=1 z=1 pipe=1 data=1 needs 2 ranks but there are 3",
            RANK_KEYS "ranks=3 train.global_batch=12 grid.x=2");
    refused(
        2,
        "train.global_batch: 8 must be a multiple of train.micro_batch x the ranks of the axes z and data "
        "(1 x 3 = 3): give train.global_batch=6 or 9",
        RANK_KEYS "ranks=3");
    refused(2, "rank 1: train.seed is 3 here (command line) and 1234 on rank 0: give all ranks the same",
            RANK_KEYS "ranks=3 grid.data=3 train.global_batch=12 @1:train.seed=3");
    refused(2, "rank 2: model.init_std is 0.02 here (default) and 0.03 on rank 0",
            RANK_KEYS "ranks=4 grid.data=4 @0:model.init_std=0.03 @1:model.init_std=0.03");
    refused(2, "rank 1: ", RANK_KEYS "ranks=2 grid.data=2 @1:model.hidden=25");
    refused(2, "model.heads: 5 must divide", RANK_KEYS "ranks=2 grid.data=2 model.heads=5");
    refused(2, "grid.order: the order must name each of x, y, z, pipe and data once",
            RANK_KEYS "ranks=2 grid.x=2 grid.order=x,y");
    refused(
        2,
        "grid.pipe: 5 stages are too many for a model of 2 blocks: each needs the embedding, a block or the "
        "head; at most 4",
        RANK_KEYS "ranks=5 grid.pipe=5");
    refused(2,
            "pipe.cut: lists 2 blocks, but grid.pipe = 2 needs 1: the first blocks of all stages but the "
            "first; for instance [1]",
            RANK_KEYS "ranks=2 grid.pipe=2 pipe.cut=1,2");
    refused(
        2,
        "pipe.cut: block 1 is not above the block before it (blocks 0 to 1, 2: a stage with only the head); "
        "for instance [0, 1]",
        RANK_KEYS "ranks=3 grid.pipe=3 pipe.cut=1,1");
    refused(
        2,
        "pipe.cut: block 3 lies outside the model, whose blocks are 0 to 1 (2: a stage with only the head); "
        "for instance [1]",
        RANK_KEYS "ranks=2 grid.pipe=2 pipe.cut=3");
    refused(2, "pipe.slack: ", RANK_KEYS "ranks=2 grid.pipe=2 pipe.slack=-1");
    refused(4, "error: command line: data.train: no such file or directory: ",
            RANK_KEYS "ranks=2 grid.x=2 data.train=no");
    assert_false(ax_path_exists("run"));
}

/* One rank does not see the checkpoint, because its directory tree lacks it. */
static void a_rank_without_the_checkpoint(void **state)
{
    (void)state;
    static const char keys[] = RANK_KEYS "train.steps=4 ranks=4 grid.x=2 grid.z=2";
    sh("rm -rf run");
    run_expect(0, NULL, "%s train.steps=2", keys);
    sh("cp -r run kept");
    static const char *const files[] = {"model.safetensors", "training/optim.safetensors",
                                        "training/state.json"};
    for (size_t i = 0; i < AX_COUNT(files); i++) {
        /* The only checkpoint is damaged: the run fails and overwrites nothing. */
        sh("rm -rf run && cp -r kept run && rm -rf run/ckpt/step-1 && rm run/ckpt/step-2/%s", files[i]);
        refused(4, "", keys);
        sh("rm -rf run && cp -r kept run && rm -rf run/ckpt/step-1 && "
           "printf '\\1\\2\\3' | dd of=run/ckpt/step-2/%s bs=1 seek=200 conv=notrunc status=none",
           files[i]);
        sh("cp -r run before");
        refused(4, "", keys);
        sh("diff -r -x lock run before && rm -rf before");
    }
    sh("rm -rf kept");
}

/* Limits of one process: a memory limit, which the two ranks of a machine exceed together, and a limit of
 * file size, which only rank 0 exceeds. */
static void limits_of_one_process(void **state)
{
    (void)state;
    static const struct {
        int code;
        const char *said, *keys;
        int what;
        rlim_t limit;
    } cases[] = {
        {3, "error: a step needs ", RANK_KEYS "ranks=2 grid.data=2 model.hidden=384 model.vocab=20000",
         RLIMIT_AS, (rlim_t)400 << 20},
        {4, "no checkpoint can be saved: its largest file has ", RANK_KEYS "ranks=2 grid.data=2",
         RLIMIT_FSIZE, 20000},
    };
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        if (SANITIZED && cases[i].what == RLIMIT_AS)
            continue; /* a sanitizer itself needs more than this limit */
        sh("rm -rf run");
        fflush(NULL);
        pid_t pid = fork();
        if (!pid) {
            struct rlimit limit = {cases[i].limit, cases[i].limit};
            int fd = open("log", O_WRONLY | O_CREAT | O_TRUNC, 0666);
            if (fd < 0 || dup2(fd, STDERR_FILENO) < 0 || setrlimit(cases[i].what, &limit))
                _exit(99);
            signal(SIGXFSZ, SIG_IGN);
            train_and_exit(cases[i].keys);
        }
        int code = run_wait(pid);
        char *log = text_of("log"), *first = strstr(log, "error: ");
        if (code != cases[i].code || !strstr(log, cases[i].said) || !first || strstr(first + 1, "error: "))
            fail_msg("exit code %d, expected %d and once \"%s\":\n%s", code, cases[i].code, cases[i].said,
                     log);
        free(log);
        assert_false(ax_path_exists("run/latest"));
    }
}

static void a_directory_in_use(void **state)
{
    (void)state;
    sh("rm -rf run");
    pid_t pid = run_start("first", RANK_KEYS "train.steps=1000000 optim.schedule=constant ranks=2 grid.x=2");
    await_step("run", pid, 1);
    refused(2, "is in use by another run", RANK_KEYS "ranks=2 grid.data=2");
    kill(pid, SIGTERM);
    assert_int_equal(run_wait(pid), AX_ERR_SIGNAL);
}

/* ---- signals ------------------------------------------------------------------------------------- */

static void signals_stop_all_ranks(void **state)
{
    (void)state;
    static const int numbers[] = {SIGTERM, SIGUSR1, SIGUSR2};
    static const char *const on[] = {"grid.y=2 grid.data=2", "grid.pipe=2 grid.data=2", "grid.pipe=4"};
    sh("rm -rf run");
    for (size_t i = 0; i < AX_COUNT(numbers); i++) {
        int64_t before = last_step("run");
        char keys[640];
        snprintf(keys, sizeof keys,
                 RANK_KEYS "train.steps=1000000 optim.schedule=constant "
                           "run.checkpoint_interval=0 ranks=4 %s",
                 on[i]);
        pid_t pid = run_start("log", keys);
        await_step("run", pid, before + 2);
        kill(pid, numbers[i]);
        assert_int_equal(run_wait(pid), AX_ERR_SIGNAL);
        char *log = text_of("log"), *said = strstr(log, "error: stopped by ");
        assert_true(said && !strstr(said + 1, "error: ") && strstr(said, "by a signal after step"));
        free(log);
        assert_true(last_step("run") > before);
    }
}

static int set_up(void **state)
{
    if (run_setup(state))
        return -1;
    make_tokens("train.tok", VOCAB, 4000, 1);
    make_tokens("valid.tok", VOCAB, 500, 2);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_grid_trains_as_one_rank),
        cmocka_unit_test(metrics_describe_the_ranks),
        cmocka_unit_test(pipelines_report_their_messages),
        cmocka_unit_test(mem_planned_is_that_of_the_largest_stage),
        cmocka_unit_test(too_little_memory_for_slots),
        cmocka_unit_test(stages_do_not_change_a_bit),
        cmocka_unit_test(kept_results_are_not_sent_again),
        cmocka_unit_test(traces_are_written),
        cmocka_unit_test(text_is_tokenized_once),
        cmocka_unit_test(a_run_that_changes_its_grid),
        cmocka_unit_test(mistakes_are_reported_once),
        cmocka_unit_test(a_rank_without_the_checkpoint),
        cmocka_unit_test(limits_of_one_process),
        cmocka_unit_test(a_directory_in_use),
        cmocka_unit_test(signals_stop_all_ranks),
    };
    return cmocka_run_group_tests_name("train.ranks", tests, set_up, run_teardown);
}
