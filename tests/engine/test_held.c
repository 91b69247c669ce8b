/* What a rank's device holds: the counted peak of a training or an evaluation equals the plan to the byte, a
 * limit of that many bytes is enough and one byte less is not, and host memory is checked too. */
#include "axonn/engine.h"
#include "axonn/runtime.h"
#include "engine/fit.h"
#include "support/check.h"
#include "support/params.h"
#include "support/ranks.h"
#include "support/tiny.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- engines on grids ---------------------------------------------------------------------------- */

enum { GPT2, GROUPED, LORA, EXPERTS, MODELS };

typedef struct job {
    ax_grid_size grid;
    int model, zero, postpone;
    ax_offload offload;
    bool trains;
    size_t limit;   /* of each rank's device; 0: none */
    size_t planned; /* result: the plan of the largest rank */
} job;

/* Returns a tied GPT-2; a Llama whose heads share keys; the same with low-rank updates, and with experts.
 * Widths are odd, so that the boxes of ranks differ. */
static ax_status make_config(int model, ax_model_config *out)
{
    *out = tiny(0.1);
    if (model == GPT2)
        return AX_OK;
    AX_TRY(ax_family_find(model == EXPERTS ? "qwen3_moe" : "llama", &out->family));
    out->hidden = 24;
    out->heads = 4;
    out->kv_heads = 2;
    out->norm = AX_NORM_RMS;
    out->gated = true;
    out->rope.theta = 10000;
    out->activation = AX_SILU;
    out->tie = false;
    if (model == EXPERTS)
        out->experts = (ax_model_experts){.n = 5, .top_k = 2, .ffn = 9, .step = 1, .balance = 0.1};
    for (int m = 0; m < AX_MATRIX_COUNT && model == LORA; m++)
        out->low_rank[m] = (ax_low_rank){.rank = 3, .scale = 2, .dropout = 0.1};
    return AX_OK;
}

/* The losses of single targets add up to the loss of the evaluation, up to fp32's rounding of each. */
static ax_status score(ax_engine *engine)
{
    uint64_t seed = 5;
    const int64_t rows = ax_min(ax_engine_eval_rows(engine), GLOBAL - 1);
    double whole, sum = 0;
    ax_target_scores scores;
    AX_TRY(ax_engine_eval(engine, tiny_rows, &seed, rows, &whole));
    AX_TRY(ax_engine_score(engine, tiny_rows, &seed, rows, &scores));
    for (int64_t i = 0; i < rows * T; i++) {
        EXPECT(scores.rank[i] >= 0 && scores.rank[i] < VOCAB && (scores.loss[i] > 0 || !scores.rank[i]));
        sum += scores.loss[i];
    }
    EXPECT(whole > 0 && sum > whole * (1 - 1e-6) && sum < whole * (1 + 1e-6));
    return AX_OK;
}

static ax_status use(ax_engine *engine, bool trains, bool scores)
{
    uint64_t seed = 5;
    double loss;
    ax_step_result result;
    ax_hyper hyper = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .step = 1};
    AX_TRY(ax_param_set_init(ax_engine_params(engine)));
    if (trains) {
        AX_TRY(ax_engine_step(engine, 1, tiny_rows, &seed, tiny_targets(), &hyper));
        AX_TRY(ax_engine_result(engine, &result));
    }
    AX_TRY(ax_engine_eval(engine, tiny_rows, &seed, GLOBAL, &loss));
    return scores ? score(engine) : AX_OK;
}

static ax_status create_and_use(ax_ctx *ctx, const ax_engine_options *options, const ax_engine_plan *plan)
{
    ax_engine *engine = NULL;
    ax_status status = ax_comm_agree(ctx->world, ax_engine_create(ctx, options, plan, 0, &engine));
    if (status == AX_OK)
        status = use(engine, options->optim, options->scores);
    if (status == AX_OK && !held_as_planned(ctx, &plan->memory))
        status = ax_fail(AX_ERR_INTERNAL, "rank %d held %zu bytes at most, planned are %zu",
                         ax_comm_rank(ctx->world), ax_ctx_peak(ctx), ax_memory_total(&plan->memory));
    ax_engine_destroy(&engine);
    return status;
}

static ax_status live(ax_comm *world, void *arg)
{
    job *j = arg;
    ax_model_config config;
    ax_parallel parallel = ax_parallel_default;
    ax_engine_plan plan = {.frame = NULL};
    ax_ctx *ctx = NULL;
    ax_engine_options options = {.model = &config,
                                 .seq_len = T,
                                 .micro_batch = 1,
                                 .global_batch = GLOBAL,
                                 .clip = 1,
                                 .scores = j->zero % 2 == 0};
    AX_TRY(make_config(j->model, &config));
    config.experts.capacity = j->model == EXPERTS ? j->zero % 2 : 0;
    parallel.zero = j->zero;
    parallel.pipe.postpone = j->postpone;
    parallel.offload = j->offload;
    if (j->trains)
        AX_TRY(ax_optim_find("adamw", &options.optim));
    ax_status status = ax_engine_plan_make(&options, world, j->grid, &parallel, "cpu", 1, AX_BF16, &plan);
    if (status == AX_OK)
        status = ax_ctx_create(world, j->grid, "cpu", 1, AX_BF16, 1, &ctx);
    if (status == AX_OK) {
        ctx->parallel = parallel;
        ctx->most = j->limit;
        status = create_and_use(ctx, &options, &plan);
    }
    int64_t largest = (int64_t)ax_memory_total(&plan.memory);
    ax_work *work;
    if (status == AX_OK)
        status = ax_all_reduce(world, NULL, &largest, 1, AX_I64, AX_MAX, &work);
    if (status == AX_OK)
        status = ax_wait(&work);
    if (ax_comm_rank(world) == 0)
        j->planned = (size_t)largest;
    if (status == AX_OK && ax_ctx_held(ctx) != plan.memory.bytes[AX_MEMORY_WORKSPACE])
        status = ax_fail(AX_ERR_INTERNAL, "%zu bytes are still held", ax_ctx_held(ctx));
    ax_engine_plan_fini(&plan);
    ax_ctx_destroy(&ctx);
    return status;
}

static void the_counted_peak_is_the_plan(void **state)
{
    (void)state;
    static const job grids[] = {{.grid = {{1, 1, 1, 1, 1}}},
                                {.grid = {{2, 1, 2, 1, 1}}},
                                {.grid = {{1, 2, 1, 1, 2}}},
                                {.grid = {{1, 1, 1, 1, 4}}},
                                {.grid = {{1, 1, 1, 1, 4, 2}}}, /* for experts alone */
                                {.grid = {{1, 1, 1, 2, 2}}, .postpone = 1}};
    for (int model = 0; model < MODELS; model++)
        for (int zero = 0; zero < 4; zero++)
            for (size_t g = 0; g < AX_COUNT(grids); g++) {
                job j = grids[g];
                ax_status status = AX_OK;
                if (j.grid.of[AX_SIZE_EXPERT] > 1 && model != EXPERTS)
                    continue;
                if (zero && j.grid.of[AX_DATA] == 1)
                    continue;
                j.model = model;
                j.zero = zero;
                for (int evaluates = 0; evaluates <= !zero && status == AX_OK; evaluates++) {
                    j.trains = !evaluates;
                    status = ax_comm_threads_run(grid_ranks(j.grid), live, &j);
                }
                if (status != AX_OK)
                    fail_msg("model %d, ZeRO %d, grid %zu: %s", model, zero, g, ax_error_message());
            }
}

/* State that leaves the device takes only its buckets with it. */
static void the_peak_of_offloaded_state_is_the_plan(void **state)
{
    (void)state;
    static const int64_t buckets[] = {64, 7777, AX_OFFLOAD_BUCKET};
    for (int model = 0; model < MODELS; model++)
        for (int zero = 0; zero < 4; zero++)
            for (size_t b = 0; b < AX_COUNT(buckets); b++) {
                job j = {.grid = {{1, 1, 1, 1, 2}}, .model = model, .zero = zero, .trains = true};
                j.offload = (ax_offload){.optimizer = b % 2 ? AX_OFFLOAD_FILE : AX_OFFLOAD_HOST,
                                         .update = AX_OFFLOAD_ON_DEVICE,
                                         .bucket = buckets[b],
                                         .dir = "."};
                if (ax_comm_threads_run(2, live, &j) != AX_OK)
                    fail_msg("model %d, ZeRO %d, bucket %zu: %s", model, zero, b, ax_error_message());
            }
}

/* The stages of a pipeline need different amounts: the limit is that of the largest. */
static void one_byte_less_than_the_plan_is_too_little(void **state)
{
    (void)state;
    for (int model = 0; model < MODELS; model++) {
        job j = {.grid = {{1, 1, 1, 2, 1}}, .model = model, .trains = true};
        OK(ax_comm_threads_run(2, live, &j));
        j.limit = j.planned;
        OK(ax_comm_threads_run(2, live, &j));
        j.limit--;
        FAILS(AX_ERR_MEMORY, "runtime.device_memory allows", ax_comm_threads_run(2, live, &j));
    }
}

/* ---- the context --------------------------------------------------------------------------------- */

static void a_context_counts_and_refuses(void **state)
{
    (void)state;
    const ax_grid_size one = {{1, 1, 1, 1, 1}};
    ax_comm *self;
    ax_ctx *ctx;
    void *a, *b;
    size_t scratch;
    char limit[32];
    OK(ax_comm_self_create(&self));
    OK(ax_device_workspace("cpu", 2, &scratch));
    assert_true(scratch > 0);
    snprintf(limit, sizeof limit, "%zu", scratch + 1000);
    OK(ax_runtime_set(AX_RUNTIME_DEVICE_MEMORY, limit));
    OK(ax_ctx_create(self, one, "cpu", 2, AX_F32, 1, &ctx));
    assert_int_equal(ax_ctx_held(ctx), scratch);
    OK(ax_ctx_alloc(ctx, AX_MEMORY_BATCH, 600, &a));
    FAILS(AX_ERR_MEMORY, "401 B (key/value cache 401 B) are refused: the device holds ",
          ax_ctx_alloc(ctx, AX_MEMORY_CACHE, 401, &b));
    assert_non_null(strstr(ax_error_message(), "(batch 600 B, kernel scratch "));
    assert_non_null(strstr(ax_error_message(), "that runtime.device_memory allows; set it higher"));
    assert_null(b);
    OK(ax_ctx_alloc(ctx, AX_MEMORY_BATCH, 400, &b));
    ax_ctx_free(ctx, AX_MEMORY_BATCH, a, 600);
    ax_ctx_free(ctx, AX_MEMORY_BATCH, NULL, 600);
    assert_int_equal(ax_ctx_held(ctx), scratch + 400);
    assert_int_equal(ax_ctx_peak(ctx), scratch + 1000);
    ax_ctx_free(ctx, AX_MEMORY_BATCH, b, 400);
    ax_ctx_destroy(&ctx);
    /* scratch memory of three threads does not fit, and a dry run has no limit */
    FAILS(AX_ERR_MEMORY, "runtime.device_memory allows", ax_ctx_create(self, one, "cpu", 3, AX_F32, 1, &ctx));
    OK(ax_ctx_create_dry(0, 1, one, AX_F32, NULL, &ctx));
    OK(ax_ctx_alloc(ctx, AX_MEMORY_BATCH, (size_t)1 << 40, &a));
    ax_ctx_free(ctx, AX_MEMORY_BATCH, a, (size_t)1 << 40);
    ax_ctx_destroy(&ctx);
    OK(ax_runtime_set(AX_RUNTIME_DEVICE_MEMORY, NULL));
    ax_comm_destroy(&self);
}

/* ---- the machine --------------------------------------------------------------------------------- */

static ax_status find(ax_comm *world, double device, double host, ax_fit *out)
{
    const double all = (double)ax_memory_available();
    const ax_memory need = {.bytes[AX_MEMORY_WEIGHTS] = (size_t)(device * all),
                            .bytes[AX_MEMORY_PINNED] = (size_t)(host * all)};
    return ax_fit_find(world, "cpu", 0, &need, out);
}

/* On device cpu, what is planned for the device and for the host is in the same memory, of all ranks of the
 * machine. */
static ax_status check_host(ax_comm *world, void *arg)
{
    (void)arg;
    ax_fit m;
    double each = 1.0 / ax_comm_size(world);
    AX_TRY(find(world, 0.6 * each, 0, &m));
    EXPECT(ax_fit_holds(&m));
    AX_TRY(find(world, 0, 0.6 * each, &m));
    EXPECT(ax_fit_holds(&m));
    AX_TRY(find(world, 0.6 * each, 0.6 * each, &m));
    EXPECT(!ax_fit_holds(&m) && ax_fit_check(&m, "a step needs", "x") == AX_ERR_MEMORY);
    EXPECT(strstr(ax_error_message(), "are available here: x"));
    return AX_OK;
}

static void host_memory_is_checked(void **state)
{
    (void)state;
    assert_ranks(1, check_host, NULL);
    assert_ranks(3, check_host, NULL);
}

static void the_limit_is_checked_to_the_byte(void **state)
{
    (void)state;
    ax_fit m;
    ax_comm *self;
    const ax_memory need = {.bytes[AX_MEMORY_WEIGHTS] = 1000, .bytes[AX_MEMORY_PINNED] = 1000};
    OK(ax_comm_self_create(&self));
    OK(ax_runtime_set(AX_RUNTIME_DEVICE_MEMORY, "1000"));
    OK(ax_fit_find(self, "cpu", 0, &need, &m));
    OK(ax_fit_check(&m, "a step needs", "x"));
    OK(ax_runtime_set(AX_RUNTIME_DEVICE_MEMORY, "999"));
    OK(ax_fit_find(self, "cpu", 0, &need, &m));
    FAILS(AX_ERR_MEMORY, "(1000 bytes) of device memory but runtime.device_memory allows only",
          ax_fit_check(&m, "a step needs", "x"));
    OK(ax_runtime_set(AX_RUNTIME_DEVICE_MEMORY, NULL));
    ax_comm_destroy(&self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_counted_peak_is_the_plan),
                                       cmocka_unit_test(the_peak_of_offloaded_state_is_the_plan),
                                       cmocka_unit_test(one_byte_less_than_the_plan_is_too_little),
                                       cmocka_unit_test(a_context_counts_and_refuses),
                                       cmocka_unit_test(host_memory_is_checked),
                                       cmocka_unit_test(the_limit_is_checked_to_the_byte)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
