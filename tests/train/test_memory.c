/* The memory of a training step: the plan made before step 1 equals what the system measures, all of it is
 * used, and nothing is allocated after step 2. */
#include "axonn/engine.h"
#include "axonn/trace.h"
#include "dev/backend.h"
#include "dev/cpu/cpu.h"
#include "support/mallocs.h"
#include "support/params.h"
#include "support/sampled.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* Returns the number of allocations, frees and mappings of all threads so far. */
static long calls(void)
{
    return atomic_load(&mallocs_made) + atomic_load(&mallocs_freed) + atomic_load(&mallocs_mapped);
}

/* ---- a training in its own process --------------------------------------------------------------- */

typedef struct shape {
    int64_t layers, hidden, heads, vocab, seq_len, micro_batch, global_batch, recompute;
    ax_dtype compute;
    double dropout;
    int threads;
    const char *family;
    int64_t rank;    /* of low-rank updates of all matrices; 0: all weights are trained */
    bool pruned;     /* the blocks' matrices keep one of ten elements */
    double capacity; /* of experts */
} shape;

typedef struct measured {
    int64_t baseline, peak; /* resident bytes before planning; VmHWM after the steps */
    size_t planned, frame, frame_used;
    long calls;   /* allocations in steps 3 … 8 */
    long control; /* calls counted for one allocation made on purpose: the counter works */
} measured;

static ax_status keep_a_tenth(void *source, ax_ctx *ctx, const ax_param *p, const ax_box *box, uint64_t *bits)
{
    (void)source, (void)ctx, (void)p;
    for (int64_t r = 0; r < box->n[0]; r++)
        for (int64_t c = r % 10; c < box->n[1]; c += 10)
            bits[r * ax_ceil_div(box->n[1], 64) + c / 64] |= (uint64_t)1 << c % 64;
    return AX_OK;
}

typedef struct training {
    ax_model_config config;
    ax_engine_options options;
    ax_engine_plan plan;
    ax_comm *self;
    ax_ctx *ctx;
    ax_engine *engine;
    ax_data *data;
    ax_sampler *sampler;
    ax_metrics *metrics;
} training;

static ax_status open_data(training *t, const shape *s)
{
    enum { LENGTH = 1000 };
    ax_token_writer *writer;
    int32_t tokens[LENGTH];
    AX_TRY(ax_token_writer_create("memory.tok", s->vocab, -1, 0, &writer));
    for (int document = 0; document < 40; document++) {
        for (int i = 0; i < LENGTH; i++)
            tokens[i] = (int32_t)((i * 31 + document) % s->vocab);
        AX_TRY(ax_token_writer_add(writer, tokens, LENGTH, LENGTH));
    }
    AX_TRY(ax_token_writer_finish(&writer, NULL));
    AX_TRY(ax_data_open("memory.tok", -1, &t->data));
    return ax_sampler_create(&t->data, 1,
                             &(ax_sampler_options){.shape = {.seq_len = s->seq_len, .mask_documents = true},
                                                   .batch = s->global_batch,
                                                   .seed = 1},
                             &t->sampler);
}

static ax_status start(training *t, const shape *s, measured *out)
{
    const ax_family *family;
    AX_TRY(ax_family_find(s->family, &family));
    t->config = ax_model_config_defaults(family);
    t->config.layers = s->layers;
    t->config.hidden = s->hidden;
    t->config.heads = t->config.kv_heads = s->heads;
    t->config.ffn = 4 * s->hidden;
    t->config.vocab = s->vocab;
    t->config.seq_len = s->seq_len;
    t->config.dropout = (ax_model_dropout){s->dropout, s->dropout, s->dropout};
    t->config.tie = true;
    t->config.experts.capacity = s->capacity;
    for (int m = 0; m < AX_MATRIX_COUNT; m++)
        if (s->rank && (m != AX_MATRIX_GATE || t->config.gated))
            t->config.low_rank[m] = (ax_low_rank){.rank = s->rank, .scale = 2, .dropout = 0.1};
    t->options = (ax_engine_options){.model = &t->config,
                                     .seq_len = s->seq_len,
                                     .micro_batch = s->micro_batch,
                                     .global_batch = s->global_batch,
                                     .recompute = s->recompute,
                                     .clip = 1};
    AX_TRY(ax_optim_find("adamw", &t->options.optim));
    AX_TRY(open_data(t, s));
    out->baseline = ax_memory_now();
    ax_grid_size one = {{1, 1, 1, 1, 1}};
    AX_TRY(ax_comm_self_create(&t->self));
    if (s->pruned)
        AX_TRY(ax_masks_create(t->self, keep_a_tenth, NULL, &t->options.masks));
    AX_TRY(ax_engine_plan_make(&t->options, t->self, one, NULL, "cpu", s->threads, s->compute, &t->plan));
    out->planned = ax_memory_total(&t->plan.memory);
    AX_TRY(ax_ctx_create(t->self, one, "cpu", s->threads, s->compute, 1, &t->ctx));
    AX_TRY(ax_engine_create(t->ctx, &t->options, &t->plan, 0, &t->engine));
    AX_TRY(init_pruned(ax_engine_params(t->engine)));
    return ax_metrics_open(&(ax_metrics_run){.dir = "memory.run",
                                             .device = "cpu",
                                             .threads = 2,
                                             .ranks = 1,
                                             .steps = 8,
                                             .peak_flops = 1e11,
                                             .log_interval = 1},
                           0, &t->metrics);
}

static ax_status read_rows(void *source, int64_t first, int64_t end, const ax_rows *out)
{
    return ax_sampler_read(source, first, end, out);
}

/* Does what ax_train does between two step boundaries. */
static ax_status step(training *t, int64_t number)
{
    int64_t targets;
    ax_step_result r;
    double begin = ax_now();
    ax_hyper hyper = {
        .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = number};
    AX_TRY(ax_sampler_next(t->sampler, &targets));
    AX_TRY(ax_engine_step(t->engine, number, read_rows, t->sampler, targets, &hyper));
    AX_TRY(ax_engine_result(t->engine, &r));
    AX_CHECK(r.finite, AX_ERR_NUMERIC, "step %lld is not finite", (long long)number);
    return ax_metrics_step_add(t->metrics, &(ax_metrics_step){.step = number,
                                                              .loss = r.loss,
                                                              .grad_norm = r.grad_norm,
                                                              .lr = hyper.lr,
                                                              .tokens = targets * number,
                                                              .step_tokens = targets,
                                                              .step_ms = (ax_now() - begin) * 1e3,
                                                              .flops = 1e6,
                                                              .hw_flops = 1e6,
                                                              .mem_bytes = ax_memory_peak()});
}

static ax_status train(training *t, int steps, const shape *s, measured *out)
{
    AX_TRY(start(t, s, out));
    /* Touch all of the kernels' scratch memory, because the kernels of such a small model use only a part of
     * it. */
    memset(((ax_cpu *)t->ctx->dev->impl)->scratch.base, 0, ax_cpu_workspace(s->threads));
    for (int i = 1; i <= steps; i++) {
        long before = calls();
        AX_TRY(step(t, i));
        out->calls += i > 2 ? calls() - before : 0;
    }
    long before = calls();
    void *volatile block = malloc(100); /* volatile, or the compiler removes malloc and free */
    free(block);
    out->control = calls() - before;
    out->peak = ax_memory_peak();
    out->frame = t->plan.memory.bytes[AX_MEMORY_ACTIVATIONS];
    out->frame_used = ax_frame_high_water(ax_engine_frame(t->engine));
    return AX_OK;
}

static void finish(training *t)
{
    ax_metrics_close(&t->metrics);
    ax_engine_destroy(&t->engine);
    ax_masks_destroy(&t->options.masks);
    ax_engine_plan_fini(&t->plan);
    ax_ctx_destroy(&t->ctx);
    ax_comm_destroy(&t->self);
    ax_sampler_destroy(&t->sampler);
    ax_data_close(&t->data);
}

/* Trains in a child process, so that VmHWM is that of this training alone. */
static measured measure(const shape *s, int steps)
{
    measured m = {0};
    int channel[2];
    fflush(NULL);
    assert_int_equal(pipe(channel), 0);
    pid_t pid = fork();
    if (!pid) {
        training t = {.plan = {.frame = NULL}};
        int quiet = open("/dev/null", O_WRONLY);
        int said = dup(STDERR_FILENO);
        dup2(quiet, STDERR_FILENO);
        ax_status status = train(&t, steps, s, &m);
        dup2(said, STDERR_FILENO);
        if (status != AX_OK)
            fprintf(stderr, "%s\n", ax_error_message());
        finish(&t);
        _exit(status || write(channel[1], &m, sizeof m) != sizeof m);
    }
    int status;
    close(channel[1]);
    assert_int_equal(read(channel[0], &m, sizeof m), sizeof m);
    close(channel[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    return m;
}

static const shape small = {.layers = 2,
                            .hidden = 48,
                            .heads = 3,
                            .vocab = 500,
                            .seq_len = 64,
                            .micro_batch = 2,
                            .global_batch = 4,
                            .compute = AX_F32,
                            .dropout = 0.1,
                            .threads = 2,
                            .family = "gpt2"};

/* ---- tests --------------------------------------------------------------------------------------- */

static void a_step_allocates_nothing(void **state)
{
    (void)state;
    if (SANITIZED) {
        print_message("skipped: the sanitizer has the allocator\n");
        skip();
    }
    static const struct {
        const char *family;
        ax_dtype compute;
        int64_t recompute, rank;
        bool pruned;
    } rows[] = {{"gpt2", AX_F32, 0, 0, false},    {"qwen3", AX_F32, 1, 0, true},
                {"qwen3", AX_BF16, 0, 0, true},   {"gpt2", AX_BF16, 1, 5, false},
                {"mixtral", AX_F32, 1, 0, false}, {"olmoe", AX_BF16, 0, 0, false}};
    for (size_t i = 0; i < AX_COUNT(rows); i++) {
        shape s = small;
        s.family = rows[i].family;
        s.compute = rows[i].compute;
        s.recompute = rows[i].recompute;
        s.rank = rows[i].rank;
        s.pruned = rows[i].pruned;
        s.capacity = s.compute == AX_BF16;
        measured m = measure(&s, 8);
        assert_int_equal(m.control, 2);
        assert_int_equal(m.calls, 0);
    }
}

/* ---- on grids ------------------------------------------------------------------------------------ */

typedef struct grid_case {
    const char *family;
    ax_grid_size grid;
    ax_parallel parallel;
    int64_t recompute;
    double capacity; /* of experts */
    atomic_long asked;
} grid_case;

static ax_status any_rows(void *source, int64_t first, int64_t end, const ax_rows *out)
{
    int64_t n = (end - first) * *(const int64_t *)source;
    for (int64_t i = 0; i < n; i++) {
        out->tokens[i] = out->targets[i] = (int32_t)(i % 7);
        out->doc_start[i] = 0;
        out->position[i] = (int32_t)(i % *(const int64_t *)source);
    }
    return AX_OK;
}

/* Runs the steps on this rank and counts the allocations of all ranks in steps 3 … 6. */
static ax_status count_steps(ax_ctx *ctx, ax_engine *engine, int64_t seq_len, int64_t targets,
                             atomic_long *asked)
{
    AX_TRY(ax_param_set_init(ax_engine_params(engine)));
    for (int i = 1; i <= 6; i++) {
        ax_step_result r;
        double loss;
        ax_hyper hyper = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .step = i};
        AX_TRY(ax_barrier(ctx->world));
        long before = calls();
        AX_TRY(ax_engine_step(engine, i, any_rows, &seq_len, targets, &hyper));
        AX_TRY(ax_engine_result(engine, &r));
        AX_TRY(ax_engine_eval(engine, any_rows, &seq_len, 8, &loss));
        atomic_fetch_add(asked, i > 2 ? calls() - before : 0);
        AX_TRY(ax_barrier(ctx->world));
    }
    return AX_OK;
}

static ax_status grid_rank(ax_comm *world, void *arg)
{
    grid_case *c = arg;
    training t = {.plan = {.frame = NULL}};
    const ax_family *family;
    AX_TRY(ax_family_find(c->family, &family));
    t.config = ax_model_config_defaults(family);
    t.config.layers = 2;
    t.config.hidden = 24;
    t.config.heads = t.config.kv_heads = 3;
    t.config.ffn = 50;
    t.config.vocab = 61;
    t.config.seq_len = 16;
    t.config.tie = true;
    t.config.experts.capacity = c->capacity;
    t.options = (ax_engine_options){.model = &t.config,
                                    .seq_len = 16,
                                    .micro_batch = 1,
                                    .global_batch = 24,
                                    .recompute = c->recompute,
                                    .clip = 1};
    AX_TRY(ax_optim_find("adamw", &t.options.optim));
    ax_status status =
        ax_engine_plan_make(&t.options, world, c->grid, &c->parallel, "ref", 1, AX_BF16, &t.plan);
    if (status == AX_OK)
        status = ax_ctx_create(world, c->grid, "ref", 1, AX_BF16, 1, &t.ctx);
    if (status == AX_OK) {
        t.ctx->parallel = c->parallel;
        status = ax_engine_create(t.ctx, &t.options, &t.plan, 0, &t.engine);
    }
    if (status == AX_OK)
        status = count_steps(t.ctx, t.engine, 16, 24 * 16, &c->asked);
    ax_engine_destroy(&t.engine);
    ax_engine_plan_fini(&t.plan);
    ax_ctx_destroy(&t.ctx);
    return status;
}

/* Communication, also of uneven parts, allocates nothing. */
static void a_step_on_a_grid_allocates_nothing(void **state)
{
    (void)state;
    if (SANITIZED)
        skip();
    for (int i = 0; i < 6; i++) {
        const int zero = i % 4;
        grid_case c = {.family = i < 4 ? "gpt2" : "mixtral",
                       .grid = {{1, 2, 2, 1, 2, i < 5 ? 1 : 2}},
                       .parallel = ax_parallel_default,
                       .capacity = i < 5 ? 0 : 1,
                       .recompute = zero % 2};
        c.parallel.zero = zero;
        c.parallel.weight_cache = zero % 3 ? 4000 : 0;
        c.parallel.keep_results = i > 1; /* the cases of an odd i recompute */
        if (ax_comm_threads_run(8, grid_rank, &c) != AX_OK)
            fail_msg("%s, zero %d: %s", c.family, zero, ax_error_message());
        assert_int_equal(atomic_load(&c.asked), 0);
    }
}

static void the_plan_is_what_is_measured(void **state)
{
    (void)state;
    static const shape shapes[] = {
        /* mostly weights */
        {8, 256, 8, 4000, 64, 1, 1, 0, AX_F32, 0, 1, "gpt2", 0, false, 0},
        /* mostly activations, and two micro-batches */
        {4, 96, 4, 1000, 256, 8, 16, 0, AX_BF16, 0.1, 1, "gpt2", 0, false, 0},
        /* the same, with recomputation */
        {4, 96, 4, 1000, 256, 16, 16, 1, AX_F32, 0.1, 1, "gpt2", 0, false, 0},
        /* mostly logits */
        {1, 32, 2, 20000, 256, 4, 4, 0, AX_F32, 0, 1, "gpt2", 0, false, 0},
        /* mostly the parts of constant size */
        {2, 48, 3, 500, 64, 2, 4, 0, AX_F32, 0.1, 2, "gpt2", 0, false, 0},
        /* other families: RMSNorm, rotary positions, a gated MLP; norms of heads */
        {8, 192, 6, 4000, 64, 1, 1, 0, AX_F32, 0, 1, "llama", 0, false, 0},
        {4, 96, 4, 1000, 256, 8, 16, 0, AX_BF16, 0, 1, "qwen3", 0, false, 0},
        /* low-rank updates: mostly frozen weights; mostly activations */
        {8, 512, 8, 8000, 64, 1, 1, 0, AX_BF16, 0, 1, "llama", 8, false, 0},
        {4, 96, 4, 1000, 256, 8, 16, 0, AX_BF16, 0, 1, "gpt2", 4, false, 0},
        /* pruned matrices: mostly weights with their zeros; mostly activations */
        {8, 512, 8, 500, 64, 1, 1, 0, AX_F32, 0, 1, "llama", 0, true, 0},
        {4, 96, 4, 1000, 256, 8, 16, 0, AX_BF16, 0, 1, "gpt2", 0, true, 0},
        /* experts, 8 in each block: mostly weights; mostly activations, with two micro-batches or
           recomputation */
        {2, 128, 4, 1000, 64, 1, 1, 0, AX_F32, 0, 1, "mixtral", 0, false, 0},
        {2, 128, 4, 1000, 64, 1, 1, 0, AX_BF16, 0, 1, "qwen3_moe", 0, false, 0},
        {2, 128, 4, 1000, 64, 1, 1, 0, AX_F32, 0, 1, "olmoe", 0, false, 0},
        {3, 48, 4, 1000, 256, 8, 16, 0, AX_BF16, 0.1, 1, "mixtral", 0, false, 0},
        {3, 48, 4, 1000, 256, 16, 16, 1, AX_F32, 0, 1, "qwen3_moe", 0, false, 0},
        {3, 48, 4, 1000, 256, 8, 8, 0, AX_BF16, 0, 1, "olmoe", 0, false, 0},
        {3, 48, 4, 1000, 256, 8, 16, 0, AX_BF16, 0, 1, "mixtral", 0, false, 0.5},
    };
    for (size_t i = 0; i < AX_COUNT(shapes); i++) {
        if (SANITIZED && i != 4)
            continue;
        measured m = measure(&shapes[i], 2);
        double planned = (double)m.planned / 1048576, found = (double)(m.peak - m.baseline) / 1048576;
        print_message("planned %.1f MiB, measured %.1f MiB (%.1f of %.1f MiB of the frame used)\n", planned,
                      found, (double)m.frame_used / 1048576, (double)m.frame / 1048576);
        assert_true((double)m.frame_used >= 0.95 * (double)m.frame && m.frame_used <= m.frame);
        /* The plan does not include a sanitizer's tables. */
        if (!SANITIZED && (found > 1.01 * planned + 8 || found < 0.99 * planned - 8))
            fail_msg("the plan is wrong by %.1f MiB", found - planned);
    }
}

/* The table of rotary positions has a class of its own in the plan: fp32 cosines and sines of T positions.
 * All layers share it. */
static void tables_of_positions_are_planned(void **state)
{
    (void)state;
    for (int rotary = 0; rotary < 2; rotary++) {
        training t = {0};
        measured m = {0};
        const shape s = {3, 48, 4, 500, 160, 1, 1, 0, AX_BF16, 0, 1, rotary ? "llama" : "gpt2", 0, false, 0};
        if (start(&t, &s, &m) != AX_OK)
            fail_msg("%s", ax_error_message());
        assert_int_equal(t.plan.memory.bytes[AX_MEMORY_TABLES], rotary ? 160 * (48 / 4) * sizeof(float) : 0);
        assert_int_equal(ax_layer_table_bytes(ax_engine_model(t.engine)->root),
                         t.plan.memory.bytes[AX_MEMORY_TABLES]);
        finish(&t);
    }
}

/* Rounds the bytes of an array up to its alignment in a block of parameters. */
static size_t padded(int64_t elements, int64_t size) { return (size_t)ax_round_up(elements * size, 64); }

/* With low-rank updates a frozen matrix takes 2 bytes an element, a factor 18: 4 of the master weight, 2 of
 * its copy, 4 of its gradient, and 8 of AdamW's moments. A vector takes 4. */
static void the_memory_of_low_rank_updates_is_exact(void **state)
{
    (void)state;
    training t = {0};
    measured m = {0};
    const shape s = {3, 48, 4, 500, 16, 1, 1, 0, AX_BF16, 0, 1, "gpt2", 5, false, 0};
    if (start(&t, &s, &m) != AX_OK)
        fail_msg("%s", ax_error_message());
    const ax_param_set *set = ax_engine_params(t.engine);
    size_t weights = 0, copies = 0, gradients = 0, optimizer = 0;
    int64_t frozen = 0, factors = 0, total, matmul;
    for (int i = 0; i < set->n; i++) {
        const ax_param *p = set->param[i];
        int64_t n = ax_tensor_global_count(&p->rest), zeros = 0;
        if (p->row_unit) /* the token table: rows of 128 bytes of logits */
            zeros = (ax_round_up(p->rest.dim[0], 64) - p->rest.dim[0]) * p->rest.dim[1];
        bool matrix = p->rest.ndim == 2;
        assert_true(p->frozen == !strstr(p->name, ".lora_"));
        frozen += p->frozen ? n : 0;
        factors += p->frozen ? 0 : n;
        weights += padded(n + zeros, p->frozen && matrix ? 2 : 4);
        copies += p->frozen ? 0 : padded(n, 2);
        gradients += p->frozen ? 0 : padded(n, 4);
        optimizer += p->frozen ? 0 : 2 * padded(n, 4);
    }
    ax_model_config_params(&t.config, &total, &matmul);
    assert_int_equal(frozen, total);
    assert_int_equal(factors, ax_model_config_low_rank_params(&t.config));
    assert_int_equal(t.plan.memory.bytes[AX_MEMORY_WEIGHTS], weights);
    assert_int_equal(t.plan.memory.bytes[AX_MEMORY_COPIES], copies);
    assert_int_equal(t.plan.memory.bytes[AX_MEMORY_GRADIENTS], gradients);
    assert_int_equal(t.plan.memory.bytes[AX_MEMORY_OPTIMIZER], optimizer);
    finish(&t);
}

/* A deep model is planned quickly: no part of the plan takes quadratic time. The campaign plans the maximum
 * depth. */
static void a_deep_model_is_planned_quickly(void **state)
{
    (void)state;
    training t = {0};
    measured m = {0};
    int layers = AX_LAYERS_MAX / one_of(8, 8);
    clock_t begin = clock();
    if (start(&t, &(shape){layers, 1, 1, 257, 8, 1, 1, 0, AX_BF16, 0, 1, "gpt2", 0, false, 0}, &m) != AX_OK)
        fail_msg("%s", ax_error_message());
    double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    print_message("%d layers are ready after %.1f s\n", layers, seconds);
    assert_true(seconds < 60.0 * layers / AX_LAYERS_MAX);
    finish(&t);
}

static int set_up(void **state)
{
    (void)state;
    static char dir[] = "/tmp/axonn-memory-XXXXXX";
    *state = dir;
    return !mkdtemp(dir) || chdir(dir);
}

static int tear_down(void **state) { return chdir("/") || ax_remove_tree(*state) != AX_OK; }

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_step_allocates_nothing),
                                       cmocka_unit_test(a_step_on_a_grid_allocates_nothing),
                                       cmocka_unit_test(the_plan_is_what_is_measured),
                                       cmocka_unit_test(tables_of_positions_are_planned),
                                       cmocka_unit_test(the_memory_of_low_rank_updates_is_exact),
                                       cmocka_unit_test(a_deep_model_is_planned_quickly)};
    return cmocka_run_group_tests_name("train.memory", tests, set_up, tear_down);
}
