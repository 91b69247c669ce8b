/* Sixteen layouts over grids, stages, ZeRO, recomputation, low-rank updates, packed rows, schedules and
 * offloaded state, and what `axonn plan` says of them: the planned bytes of each class are those that ranks
 * allocate, on the host and on an emulated GPU; the planned peak is the one that the system measures of
 * processes, on one node and on emulated ones; the micro-batch that the plan names runs within the limit, and
 * the next is refused; the planned traffic is what ranks count, on emulated nodes also what goes to others.
 * CTest sets AXONN_PLUGINS for the emulated GPU. */
#include "cli/cli_test.h"
#include "support/emulated.h"
#include "support/params.h"
#include "support/ranks.h"
#include "support/sampled.h"
#include "train/run_test.h"

#include <stdatomic.h>
#include <sys/stat.h>

enum { SOME = 16 }; /* of what takes long, a test takes one of so many layouts */

typedef struct layout {
    const char *keys;
    int ranks, node;   /* node: ranks of a node */
    const char *model; /* other keys of the model than those of the file */
    bool tunes;        /* low-rank updates of another run's model */
    bool host_updates; /* on a GPU the host updates */
} layout;

static const layout layouts[] = {
    {.keys = "train.precision=fp32", .ranks = 1, .node = 1},
    {.keys = "grid.x=2", .ranks = 2, .node = 1},
    {.keys = "grid.y=2 train.recompute=full", .ranks = 2, .node = 1},
    {.keys = "grid.z=2 grid.data=2", .ranks = 4, .node = 2},
    {.keys = "grid.data=2 zero=1", .ranks = 2, .node = 1},
    {.keys = "grid.data=4 zero=2 train.grad_dtype=bf16", .ranks = 4, .node = 2},
    {.keys = "grid.data=2 zero=3 train.weight_cache=2000000", .ranks = 2, .node = 1},
    {.keys = "grid.x=2 grid.y=2 train.recompute=full train.recompute_comm=keep", .ranks = 4, .node = 2},
    {.keys = "grid.pipe=2", .ranks = 2, .node = 1, .model = "model.tie=true"},
    {.keys = "grid.pipe=4 pipe.schedule=gpipe train.recompute=2", .ranks = 4, .node = 2},
    {.keys = "grid.pipe=2 grid.data=2 pipe.schedule=interleaved pipe.chunks=2 zero=1", .ranks = 4, .node = 2},
    {.keys = "grid.pipe=2 pipe.slack=2 pipe.postpone=2",
     .ranks = 2,
     .node = 1,
     .model = "model.family=llama"},
    {.keys = "grid.data=2 train.recompute=full tune.method=lora tune.rank=8",
     .ranks = 2,
     .node = 1,
     .tunes = true},
    {.keys = "grid.z=2 train.weight_cache=20000000 tune.method=lora tune.rank=8",
     .ranks = 2,
     .node = 1,
     .tunes = true},
    {.keys = "grid.x=2 data.pack=documents offload.optimizer=file offload.bucket=100000",
     .ranks = 2,
     .node = 1,
     .model = "model.family=qwen3"},
    {.keys = "grid.data=2 zero=1 offload.optimizer=host offload.update=host",
     .ranks = 2,
     .node = 1,
     .host_updates = true},
    {.keys = "grid.data=2 grid.expert=2 offload.optimizer=host offload.update=device offload.bucket=300000",
     .ranks = 2,
     .node = 1,
     .model = "model.family=mixtral model.experts=4 model.top_k=2 model.ffn=128"},
};

/* The model of a layout in a size: a file, and keys for it. */
static const char *file_of(const layout *l, bool small)
{
    return l->tunes ? small ? "small-from.yaml" : "large-from.yaml" : small ? "small.yaml" : "large.yaml";
}
static const char *model_of(const layout *l) { return l->model ? l->model : ""; }

/* ---- the bytes of each class --------------------------------------------------------------------- */

typedef struct job {
    char keys[512], *file;
    bool host_updates;
    atomic_long pinned, on_disk; /* planned, of all ranks */
    long deleted;                /* bytes of files without names */
} job;

static ax_status any_rows(void *source, int64_t first, int64_t end, const ax_rows *out)
{
    const int64_t length = *(const int64_t *)source;
    for (int64_t i = 0; i < (end - first) * length; i++) {
        out->tokens[i] = out->targets[i] = (int32_t)(i % 7);
        out->doc_start[i] = 0;
        out->position[i] = (int32_t)(i % length);
    }
    return AX_OK;
}

/* Returns the bytes of the files that this process has open and that have no name. */
static long deleted_bytes(void)
{
    DIR *d = opendir("/proc/self/fd");
    long bytes = 0;
    for (struct dirent *e; (e = readdir(d));) {
        char path[300], to[4096];
        struct stat s;
        snprintf(path, sizeof path, "/proc/self/fd/%s", e->d_name);
        const ssize_t n = readlink(path, to, sizeof to - 1);
        to[ax_max(n, 0)] = 0;
        if (strstr(to, scratch_dir) && strstr(to, " (deleted)") && !stat(path, &s))
            bytes += (long)s.st_size;
    }
    closedir(d);
    return bytes;
}

/* Takes a step, and compares what is allocated with the plan. */
static ax_status step_as_planned(ax_ctx *ctx, ax_engine *engine, const ax_train_plan *plan, job *j)
{
    int64_t length = plan->options.seq_len;
    const ax_memory *planned = &plan->engine.memory;
    ax_hyper hyper = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .step = 1};
    ax_step_result result;
    size_t scratch = 0;
    AX_TRY(ax_engine_step(engine, 1, any_rows, &length, plan->options.global_batch * length, &hyper));
    AX_TRY(ax_engine_result(engine, &result));
    EXPECT(held_as_planned(ctx, planned));
    EXPECT(has_planned_memory(ax_engine_params(engine), planned));
    if (j->host_updates && !ax_device_uses_host_memory(ctx->dev))
        AX_TRY(ax_device_workspace("cpu", ctx->dev->threads, &scratch));
    atomic_fetch_add(&j->pinned, (long)(ax_memory_on(planned, AX_MEMORY_ON_HOST) - scratch));
    atomic_fetch_add(&j->on_disk, (long)ax_memory_on(planned, AX_MEMORY_ON_DISK));
    AX_TRY(ax_barrier(ctx->world));
    if (ax_comm_rank(ctx->world) == 0)
        j->deleted = deleted_bytes();
    return ax_barrier(ctx->world);
}

static ax_status allocate_as_planned(ax_comm *world, void *arg)
{
    job *j = arg;
    char *text = strdup(j->keys), *key[MAX_KEYS];
    ax_config config;
    ax_trainer *trainer = NULL;
    ax_ctx *ctx = NULL;
    ax_engine *engine = NULL;
    ax_status status =
        ax_config_load(j->file, key, keys_of_rank(text, 0, key), AX_CONFIG_TO_MEASURE, &config);
    if (status == AX_OK)
        status = ax_trainer_create(world, &config, &trainer);
    if (status == AX_OK)
        status = ax_trainer_engine(trainer, &ctx, &engine);
    if (status == AX_OK)
        status = step_as_planned(ctx, engine, ax_trainer_plan(trainer), j);
    ax_engine_destroy(&engine);
    ax_ctx_destroy(&ctx);
    ax_trainer_destroy(&trainer);
    ax_config_fini(&config);
    free(text);
    return status;
}

/* Runs a layout on a device. Returns the pinned memory of the emulated GPU that was allocated. */
static long allocate(const layout *l, const char *device, int ranks, const char *keys, job *j)
{
    emulated_count_fn *pinned = (emulated_count_fn *)(uintptr_t)emulated_function(EMULATED_PINNED);
    const long before = pinned ? pinned() : 0;
    *j = (job){.file = (char *)(uintptr_t)file_of(l, true), .host_updates = l->host_updates};
    snprintf(j->keys, sizeof j->keys, "device=%s threads=1 runtime.log=error %s %s", device, model_of(l),
             keys);
    if (ax_comm_threads_run(ranks, allocate_as_planned, j) != AX_OK)
        fail_msg("%s: %s", j->keys, ax_error_message());
    return pinned ? pinned() - before : 0;
}

static void classes_on_the_host(void **state)
{
    (void)state;
    for (size_t i = 0; i < AX_COUNT(layouts); i++) {
        job j;
        if (!my_share(i, 3))
            continue;
        allocate(&layouts[i], "cpu", layouts[i].ranks, layouts[i].keys, &j);
        assert_int_equal(j.deleted, atomic_load(&j.on_disk));
    }
}

/* The emulated GPU runs kernels slowly. */
static void classes_on_a_gpu(void **state)
{
    (void)state;
    if (!getenv("AXONN_PLUGINS"))
        skip();
    assert_null(ax_device_absent("cuda"));
    const size_t step = (size_t)one_of(SOME, SOME);
    for (size_t i = 10 % step; i < AX_COUNT(layouts); i += step) {
        const layout *l = &layouts[i];
        job j, alone;
        /* What a rank pins beside: for copies and numbers of a step. */
        const long fixed = allocate(l, "cuda", 1, l->tunes ? "tune.method=lora tune.rank=8" : "", &alone),
                   pinned = allocate(l, "cuda", l->ranks, l->keys, &j) - l->ranks * fixed;
        print_message("%-90s pinned %ld bytes\n", l->keys, pinned);
        if (pinned != atomic_load(&j.pinned))
            fail_msg("%s: %ld bytes of pinned memory, planned %ld", j.keys, pinned, atomic_load(&j.pinned));
        assert_int_equal(j.deleted, atomic_load(&j.on_disk));
    }
}

/* ---- processes ----------------------------------------------------------------------------------- */

static int64_t integer(json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

/* Plans a layout on nodes of `node` ranks (0: one node). `more`: further keys. The caller releases the plan.
 */
static json_t *plan_of(const layout *l, int node, const char *more)
{
    char command[1024];
    snprintf(command, sizeof command, AXONN " plan %s --ranks %d --json runtime.ranks_per_node=%d %s %s %s",
             file_of(l, false), l->ranks, node, model_of(l), l->keys, more);
    return json_of(command);
}

/* Trains two steps on nodes of `node` ranks (0: this one). Returns the exit code; the log is in the file
 * `log`. */
static int train(const layout *l, int node, const char *more)
{
    char command[1024];
    ax_buf out = {0};
    snprintf(command, sizeof command,
             "rm -rf run && " AXONN " train %s --ranks %d run.dir=run runtime.ranks_per_node=%d %s %s %s "
             ">log 2>&1",
             file_of(l, false), l->ranks, node, model_of(l), l->keys, more);
    const int code = shell(command, &out);
    ax_buf_fini(&out);
    return code;
}

static void expect(int code, const layout *l, int node, const char *more)
{
    const int got = train(l, node, more);
    char *log = text_of("log");
    if (got != code)
        fail_msg("%s %s: exit code %d, not %d:\n%s", l->keys, more, got, code, log);
    free(log);
}

/* The measured peak of the process beside the planned one, which on device cpu includes host memory. */
static void compare_peaks(const layout *l, int node, json_t *plan)
{
    json_t *begin = row_with("run", "mem_planned", 0), *step = row_with("run", "mem_bytes", 2),
           *stages = json_object_get(plan, "stages"), *bytes;
    int64_t host = 0;
    const char *name;
    for (size_t s = 0; s < json_array_size(stages); s++) {
        int64_t of_stage = 0;
        json_object_foreach(json_object_get(json_array_get(stages, s), "host"), name, bytes)
        {
            of_stage += json_integer_value(bytes);
        }
        host = ax_max(host, of_stage);
    }
    assert_int_equal(integer(begin, "mem_planned"), integer(plan, "mem_planned"));
    const double planned = (double)(integer(plan, "mem_planned") + host) / 1048576,
                 measured = (double)(integer(step, "mem_bytes") - integer(begin, "mem_baseline")) / 1048576;
    print_message("%-90s planned %6.1f MiB, measured %6.1f on %s\n", l->keys, planned, measured,
                  node ? "emulated nodes" : "one node");
    if (measured > 1.01 * planned + 8 || measured < 0.99 * planned - 8)
        fail_msg("%s, nodes of %d ranks: the plan is wrong by %.1f MiB", l->keys, node, measured - planned);
    json_decref(begin);
    json_decref(step);
}

/* Compares the bytes along each set of axes, and those to other nodes, in the second step: what the first
 * starts to gather, the second waits for. */
static void compare_traffic(const layout *l, json_t *plan)
{
    json_t *step = row_with("run", "comm_bytes", 2), *planned = json_object_get(plan, "comm_bytes"), *bytes;
    const char *axes;
    json_object_foreach(json_object_get(step, "comm_bytes"), axes, bytes)
    {
        if (json_integer_value(bytes) != integer(planned, axes))
            fail_msg("%s: %lld bytes along %s, planned %lld", l->keys, (long long)json_integer_value(bytes),
                     axes, (long long)integer(planned, axes));
    }
    const double wire = (double)integer(step, "comm_wire_bytes"),
                 of_plan = (double)integer(plan, "comm_wire_bytes");
    print_message("%-90s to other nodes planned %.0f bytes, counted %.0f\n", l->keys, of_plan, wire);
    if (wire > 1.01 * of_plan || wire < 0.99 * of_plan)
        fail_msg("%s: %.0f bytes to other nodes, planned %.0f", l->keys, wire, of_plan);
    json_decref(step);
}

/* Refuses the next micro-batch that the layout could have. */
static void refuse_next(const layout *l, int64_t largest, int64_t limit)
{
    char more[128];
    int code = AX_ERR_USAGE; /* of a micro-batch that does not divide the rows, or that a schedule refuses */
    for (int64_t m = largest + 1; m <= 32 && code == AX_ERR_USAGE; m++) {
        snprintf(more, sizeof more, "train.micro_batch=%lld runtime.device_memory=%lld", (long long)m,
                 (long long)limit);
        code = train(l, 0, more);
    }
    if (code != AX_ERR_MEMORY)
        fail_msg("%s: exit code %d beyond the largest micro-batch %lld", l->keys, code, (long long)largest);
}

static void runs_are_as_planned(void **state)
{
    (void)state;
    if (!has_ranks())
        skip();
    const size_t step = (size_t)one_of(SOME, SOME);
    for (size_t i = 10 % step; i < AX_COUNT(layouts); i += step) {
        const layout *l = &layouts[i];
        char more[128];
        json_t *two = plan_of(l, 0, "train.micro_batch=2");
        const int64_t limit = integer(two, "mem_planned") + 1000;
        snprintf(more, sizeof more, "runtime.device_memory=%lld", (long long)limit);
        json_t *one = plan_of(l, 0, more);
        const int64_t largest = integer(one, "largest_micro_batch");
        assert_in_range(largest, 2, 16);
        snprintf(more, sizeof more, "train.micro_batch=%lld runtime.device_memory=%lld", (long long)largest,
                 (long long)limit);
        json_t *plan = plan_of(l, 0, more), *apart = plan_of(l, l->node, more);
        expect(0, l, 0, more);
        compare_peaks(l, 0, plan);
        expect(0, l, l->node, more);
        compare_peaks(l, l->node, apart);
        compare_traffic(l, apart);
        refuse_next(l, largest, limit);
        json_decref(two);
        json_decref(one);
        json_decref(plan);
        json_decref(apart);
    }
}

/* ---- files --------------------------------------------------------------------------------------- */

static void write_config(const char *path, const char *model, int rows)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file,
            "model: {%s}\ndata: {train: train.tok}\n"
            "train: {steps: 2, global_batch: %d, micro_batch: 1, precision: bf16}\n"
            "run: {checkpoint_interval: 0}\nthreads: 1\n",
            model, rows);
    assert_int_equal(fclose(file), 0);
}

static int set_up(void **state)
{
    static const char *const sizes[] = {"small", "large"},
                             *const models[] = {
                                 "family: gpt2, layers: 4, hidden: 48, heads: 4, vocab: 512, "
                                 "seq_len: 32",
                                 "family: gpt2, layers: 4, hidden: 256, heads: 4, vocab: 4000, "
                                 "seq_len: 128"};
    if (run_setup(state))
        return -1;
    make_tokens("train.tok", 512, 40000, 1);
    for (int i = 0; i < 2; i++) {
        char path[64], model[64];
        snprintf(path, sizeof path, "%s.yaml", sizes[i]);
        write_config(path, models[i], i ? 32 : 8);
        if (!i || one_of(SOME, SOME) == 1) /* large ones are tuned in the campaign alone */
            sh(AXONN " train %s run.dir=%s threads=2 2>/dev/null", path, sizes[i]);
        snprintf(path, sizeof path, "%s-from.yaml", sizes[i]);
        snprintf(model, sizeof model, "from: %s", sizes[i]);
        write_config(path, model, i ? 32 : 8);
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(classes_on_the_host),
                                       cmocka_unit_test(classes_on_a_gpu),
                                       cmocka_unit_test(runs_are_as_planned)};
    return cmocka_run_group_tests_name("cli.memory", tests, set_up, run_teardown);
}
