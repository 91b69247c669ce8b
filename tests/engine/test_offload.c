/* Offloaded state: wherever it is and whatever updates it, a run has the bits of one that keeps it on the
 * device. CTest runs this with the emulated GPU, whose copies can be early or late (support/emulated.h), so
 * that a missing wait shows. */
#include "axonn/model.h"
#include "support/check.h"
#include "support/emulated.h"
#include "support/pipe_runs.h"
#include "support/ranks.h"
#include "support/sampled.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

/* Places, updates and buckets. The smallest bucket has one unit; 7777 is rounded up and cuts matrices
 * anywhere; the largest takes all. */
static const ax_offload ways[] = {
    {.optimizer = AX_OFFLOAD_HOST},
    {.optimizer = AX_OFFLOAD_HOST, .update = AX_OFFLOAD_ON_DEVICE, .bucket = 64},
    {.optimizer = AX_OFFLOAD_HOST, .update = AX_OFFLOAD_ON_DEVICE, .bucket = 7777},
    {.optimizer = AX_OFFLOAD_HOST, .update = AX_OFFLOAD_ON_DEVICE},
    {.optimizer = AX_OFFLOAD_FILE, .bucket = 1000},
    {.optimizer = AX_OFFLOAD_FILE, .update = AX_OFFLOAD_ON_DEVICE, .bucket = 7777},
    {.optimizer = AX_OFFLOAD_FILE, .update = AX_OFFLOAD_ON_DEVICE},
    {.optimizer = AX_OFFLOAD_FILE, .update = AX_OFFLOAD_ON_HOST, .bucket = 500},
    {.optimizer = AX_OFFLOAD_HOST, .update = AX_OFFLOAD_ON_HOST, .bucket = 7777},
};

static const char *describe(const pipe_setup *s, char text[PIPE_TEXT])
{
    static const char *const places[] = {"none", "host", "file"}, *const updates[] = {"auto", "device",
                                                                                      "host"};
    pipe_describe(s, text);
    ax_text_add(text, PIPE_TEXT, ", %s: %s updated by %s, buckets of %d, chunks of %d",
                s->device ? s->device : "cpu", places[s->offload.optimizer], updates[s->offload.update],
                (int)s->offload.bucket, (int)s->offload.chunk);
    return text;
}

/* Runs a setup with the ways of a list from `first` to end-1, and compares with state on the device. */
static void check_these(const pipe_setup *setup, const ax_offload *list, size_t first, size_t end,
                        size_t stride)
{
    pipe_setup s = *setup;
    pipe_result without, with;
    char text[PIPE_TEXT];
    pipe_run(&s, &without);
    for (size_t i = first; i < end; i += stride) {
        s.offload = list[i];
        pipe_run(&s, &with);
        if (!pipe_is_same(&with, &without) || with.eval != without.eval)
            fail_msg("%s: losses %.17g %.17g %.17g, not %.17g %.17g %.17g", describe(&s, text), with.loss[0],
                     with.loss[1], with.loss[2], without.loss[0], without.loss[1], without.loss[2]);
        pipe_free(&with);
    }
    pipe_free(&without);
}

/* Runs a setup with every `stride`-th way to offload from `first` on. With several ranks one way is enough: a
 * rank's state knows nothing of the others. */
static void check_ways(const pipe_setup *s, size_t first, size_t stride)
{
    check_these(s, ways, first, grid_ranks(s->grid) > 1 ? first + 1 : AX_COUNT(ways), stride);
}

/* Models, dtypes (also of gradients), optimizers and grids: postponed weight gradients, tied weights, ZeRO,
 * interleaved chunks.
 */
static const pipe_setup setups[] = {
    {.grid = {{1, 1, 1, 1, 1}}, .micro_batches = 2, .compute = AX_BF16},
    {.grid = {{1, 1, 1, 1, 1}}, .micro_batches = 2, .compute = AX_F32, .family = PIPE_QWEN3},
    {.grid = {{1, 1, 1, 1, 1}}, .micro_batches = 1, .compute = AX_F16, .optim = "sgd", .tied = true},
    {.grid = {{1, 1, 1, 1, 1}}, .micro_batches = 1, .compute = AX_F32, .optim = "sgd", .unclipped = true},
    {.grid = {{1, 1, 2, 1, 2}}, .zero = 2, .micro_batches = 2, .compute = AX_BF16, .narrow = true},
    {.grid = {{1, 1, 1, 1, 4}}, .zero = 3, .micro_batches = 2, .compute = AX_F32, .family = PIPE_LLAMA},
    {.grid = {{1, 1, 1, 2, 2}},
     .zero = 1,
     .postpone = 2,
     .micro_batches = 4,
     .compute = AX_BF16,
     .tied = true},
    {.grid = {{2, 2, 1, 1, 1}}, .micro_batches = 1, .compute = AX_BF16},
    {.grid = {{1, 1, 1, 2, 1}}, .schedule = INTERLEAVED, .micro_batches = 4, .compute = AX_F32, .tied = true},
};

static void results_have_the_bits_of_state_on_the_device(void **state)
{
    (void)state;
    for (size_t i = 0; i < AX_COUNT(setups); i++)
        check_ways(&setups[i], i ? i % AX_COUNT(ways) : 0, i ? 3 : 1);
}

/* Gradients that are reduced while buckets are updated. */
static void chunks_change_nothing(void **state)
{
    static const pipe_setup late[] = {
        {.grid = {{1, 1, 1, 1, 1}}, .micro_batches = 2, .compute = AX_BF16},
        {.grid = {{1, 1, 1, 1, 3}}, .micro_batches = 2, .compute = AX_F32},
        {.grid = {{1, 1, 2, 1, 2}}, .zero = 1, .micro_batches = 1, .compute = AX_BF16, .optim = "sgd"},
        {.grid = {{1, 1, 1, 2, 2}},
         .zero = 1,
         .micro_batches = 3,
         .compute = AX_BF16,
         .tied = true,
         .narrow = true},
        {.grid = {{2, 1, 1, 2, 2}}, .postpone = 1, .micro_batches = 2, .compute = AX_F32, .tied = true},
        {.grid = {{1, 1, 2, 1, 2}}, .zero = 3, .micro_batches = 1, .compute = AX_BF16, .lazy = true},
    };
    static const ax_offload chunks[] = {
        {AX_OFFLOAD_HOST, AX_OFFLOAD_ON_DEVICE, .bucket = 64, .chunk = 3},
        {AX_OFFLOAD_HOST, AX_OFFLOAD_ON_DEVICE, .bucket = 700, .chunk = 1},
        {AX_OFFLOAD_FILE, AX_OFFLOAD_ON_DEVICE, .bucket = 1000, .chunk = 4},
        {AX_OFFLOAD_HOST, AX_OFFLOAD_ON_DEVICE, .chunk = INT64_MAX},
    };
    (void)state;
    for (size_t i = 0; i < AX_COUNT(late); i++) {
        pipe_setup s = late[i];
        s.unclipped = true;
        check_these(&s, chunks, i % AX_COUNT(chunks), i % AX_COUNT(chunks) + 1, 1);
    }
}

/* A gradient that is not finite, in the first, a middle and the last bucket, on one rank: nothing is updated.
 */
static void steps_that_are_not_finite_change_nothing(void **state)
{
    static const pipe_setup finite[] = {
        {.grid = {{1, 1, 1, 1, 1}}, .micro_batches = 2, .compute = AX_BF16},
        {.grid = {{1, 1, 1, 1, 2}}, .micro_batches = 2, .compute = AX_F32, .unclipped = true},
        {.grid = {{1, 1, 2, 1, 1}},
         .micro_batches = 2,
         .compute = AX_BF16,
         .unclipped = true,
         .optim = "sgd"},
        {.grid = {{1, 1, 1, 1, 2}}, .zero = 1, .micro_batches = 2, .compute = AX_F32},
    };
    static const ax_offload by[] = {
        {AX_OFFLOAD_HOST, AX_OFFLOAD_ON_DEVICE, .bucket = 700, .chunk = 2},
        {AX_OFFLOAD_FILE, .bucket = 1000, .chunk = 2},
        {.optimizer = AX_OFFLOAD_HOST},
    };
    static const double numbers[] = {NAN, INFINITY, -INFINITY};
    (void)state;
    for (size_t i = 0; i < AX_COUNT(finite); i++)
        for (int k = 0; k < 3; k++) {
            pipe_setup s = finite[i];
            s.poison = numbers[k];
            s.poison_at = (double)((k + (int)i) % 3) / 2;
            s.poisoned_rank = grid_ranks(s.grid) - 1;
            check_these(&s, by, (size_t)k % AX_COUNT(by), (size_t)k % AX_COUNT(by) + 1, 1);
        }
}

/* The memory of check:cpu must not be accessed while no kernel or copy runs. A build with sanitizers takes
 * every other way, a build without them those between. */
static void nothing_else_accesses_the_device(void **state)
{
    (void)state;
    pipe_setup s = setups[0];
    s.device = "check:cpu";
    check_ways(&s, SANITIZED ? 2 : 3, 2);
    s = setups[3];
    s.device = "check:cpu";
    check_ways(&s, 5, 3);
}

/* ---- memory -------------------------------------------------------------------------------------- */

/* A model whose matrices have no padding: all sizes are multiples of 64. */
static ax_status make_model(ax_ctx *ctx, const char *family, bool lora, ax_model **model)
{
    ax_model_config config;
    const ax_family *of;
    AX_TRY(ax_family_find(family, &of));
    config = ax_model_config_defaults(of);
    config.layers = 2, config.hidden = 64, config.ffn = 128, config.vocab = 128, config.seq_len = 64;
    config.heads = config.kv_heads = 4;
    static const ax_low_rank updates[] = {{64, 2, 0}, {64, 2, 0}};
    ax_status status = lora ? ax_model_config_set_updates(&config, AX_MATRIX_Q, updates) : AX_OK;
    if (status == AX_OK)
        status = ax_model_create(ctx, &config, &(ax_model_use){.positions = 64}, model);
    ax_model_config_fini(&config);
    return status;
}

/* Returns what the table of docs/howto.md says that weights, gradients and state take on the device, in
 * bf16 with AdamW. Vectors are fp32: weights, gradients and two moments. */
static size_t table_bytes(const ax_param_set *set, int64_t bucket)
{
    const ax_grid *g = set->ctx->grid;
    int64_t bytes = 0, offloaded = 0;
    for (int i = 0; i < set->n; i++) {
        const ax_param *p = set->param[i];
        int64_t weights = ax_tensor_count(g, &p->rest), sum = ax_tensor_count(g, &p->sum),
                grad = ax_tensor_count(g, &p->grad);
        if (p->rest.ndim < 2) {
            bytes += ax_round_up((p->frozen ? 4 : 4 + 4) * weights, 64) + (p->frozen ? 0 : 8 * weights);
            continue;
        }
        bytes += 2 * weights + (p->frozen ? 0 : 4 * sum + (sum == grad ? 0 : 4 * grad));
        offloaded += p->frozen ? 0 : grad;
    }
    int64_t buckets = ax_ceil_div(offloaded, bucket);
    return (size_t)(bytes + 12 * ax_min(bucket, offloaded) * ax_min(buckets, 3));
}

static ax_status check_table(const char *family, bool lora, int zero, int64_t bucket)
{
    ax_parallel parallel = ax_parallel_default;
    parallel.zero = zero;
    parallel.offload = (ax_offload){.optimizer = AX_OFFLOAD_HOST,
                                    .update = AX_OFFLOAD_ON_DEVICE,
                                    .bucket = bucket,
                                    .memory = AX_OFFLOAD_DISCRETE};
    ax_ctx *ctx;
    ax_model *model;
    ax_param_set *set;
    AX_TRY(ax_ctx_create_dry(1, 2, (ax_grid_size){{1, 1, 1, 1, 2}}, AX_BF16, &parallel, &ctx));
    AX_TRY(make_model(ctx, family, lora, &model));
    AX_TRY(ax_layer_param_set(model->root, 2, &set));
    const size_t *bytes = set->memory.bytes;
    size_t got = bytes[AX_MEMORY_WEIGHTS] + bytes[AX_MEMORY_COPIES] + bytes[AX_MEMORY_GRADIENTS] +
                 bytes[AX_MEMORY_OPTIMIZER] + bytes[AX_MEMORY_RING];
    if (got != table_bytes(set, bucket))
        fail_msg("%s, zero %d, buckets of %d: %zu bytes, not %zu", family, zero, (int)bucket, got,
                 table_bytes(set, bucket));
    ax_param_set_destroy(&set);
    ax_model_destroy(&model);
    ax_ctx_destroy(&ctx);
    return AX_OK;
}

static void memory_is_that_of_the_table(void **state)
{
    static const int64_t buckets[] = {64, 7808, AX_OFFLOAD_BUCKET};
    (void)state;
    for (int zero = 0; zero < 4; zero++)
        for (size_t i = 0; i < AX_COUNT(buckets); i++) {
            OK(check_table("gpt2", false, zero, buckets[i]));
            OK(check_table("llama", false, zero, buckets[i]));
            OK(check_table("llama", true, zero, buckets[i]));
        }
}

/* ---- a matrix alone ------------------------------------------------------------------------------ */

typedef struct matrix_job {
    ax_grid_size grid;
    int64_t rows, cols;
    ax_offload offload;
    ax_status (*test)(ax_param_set *set);
} matrix_job;

static ax_status run_matrix(ax_comm *world, void *arg)
{
    const matrix_job *j = arg;
    ax_ctx *ctx;
    ax_param *p = NULL;
    ax_param_set *set = NULL;
    AX_TRY(ax_ctx_create(world, j->grid, "cpu", 1, AX_BF16, 3, &ctx));
    ctx->parallel.offload = j->offload;
    ax_status status = ax_param_create(ctx, "w", 2, (int64_t[]){j->rows, j->cols}, NULL,
                                       (ax_role[]){AX_ROLE_INNER, AX_ROLE_MODEL}, AX_INIT_NORMAL, 1, &p);
    if (status == AX_OK)
        status = ax_param_set_create(ctx, &p, 1, 2, &set);
    status = ax_comm_agree(world, status);
    if (status == AX_OK)
        status = j->test(set);
    ax_param_set_destroy(&set);
    ax_param_destroy(&p);
    ax_ctx_destroy(&ctx);
    return status;
}

static void check_matrix(const matrix_job *j) { assert_ranks(grid_ranks(j->grid), run_matrix, j); }

/* Sets the values again while the first buckets are on their way to the device, and compares. */
static ax_status sets_values_twice(ax_param_set *set)
{
    const ax_param_state *s = &set->param[0]->state[AX_STATE_MASTER];
    size_t bytes = (size_t)s->n * sizeof(float);
    char *values; /* the first ones, then the second ones */
    AX_TRY(ax_calloc(2, bytes + 1, &values));
    for (size_t i = 0; i < 2; i++) {
        AX_TRY(ax_param_set_init(set));
        AX_TRY(ax_param_state_read(set->ctx, s, 0, s->n, values + i * bytes));
        AX_TRY(ax_param_set_zero_grad(set));
    }
    bool same = !memcmp(values, values + bytes, bytes);
    free(values);
    return same ? AX_OK : ax_fail(AX_ERR_INTERNAL, "the second values differ");
}

/* More ranks than rows or columns. */
static void a_rank_may_have_no_element(void **state)
{
    (void)state;
    for (size_t i = 0; i < AX_COUNT(ways); i++) {
        check_matrix(&(matrix_job){{{2, 1, 1, 1, 1}}, 1, 3, ways[i], sets_values_twice});
        check_matrix(&(matrix_job){{{1, 2, 1, 1, 1}}, 3, 1, ways[i], sets_values_twice});
    }
}

static void values_can_be_set_again(void **state)
{
    (void)state;
    for (size_t i = 0; i < AX_COUNT(ways); i++)
        check_matrix(&(matrix_job){{{1, 1, 1, 1, 1}}, 300, 200, ways[i], sets_values_twice});
}

/* The file of the first rank, which has two of three rows, can no longer be written. */
static ax_status fails_on_all_ranks(ax_param_set *set)
{
    ax_comm *world = set->ctx->world;
    struct rlimit all, few;
    EXPECT(!getrlimit(RLIMIT_FSIZE, &all));
    few = all;
    few.rlim_cur = 4096; /* more than a row */
    if (ax_comm_rank(world) == 0)
        EXPECT(!setrlimit(RLIMIT_FSIZE, &few));
    AX_TRY(ax_comm_agree(world, AX_OK));
    ax_status status = ax_param_set_init(set);
    AX_TRY(ax_comm_agree(world, AX_OK));
    if (ax_comm_rank(world) == 0)
        EXPECT(!setrlimit(RLIMIT_FSIZE, &all));
    EXPECT(status == AX_ERR_DATA);
    EXPECT(strstr(ax_error_message(), "rank 0: cannot write the file of the optimizer's state in ."));
    return AX_OK;
}

static void a_disk_that_fails_is_an_error_of_all_ranks(void **state)
{
    (void)state;
    signal(SIGXFSZ, SIG_IGN); /* pwrite fails instead */
    check_matrix(
        &(matrix_job){{{2, 1, 1, 1, 1}}, 3, 1000, {.optimizer = AX_OFFLOAD_FILE}, fails_on_all_ranks});
}

/* ---- GPUs ---------------------------------------------------------------------------------------- */

/* How late copies of the emulated GPU are, in polls; by turns if below 0. */
static void delay(long polls)
{
    emulated_delay_fn *set = (emulated_delay_fn *)(uintptr_t)emulated_function(EMULATED_DELAY);
    if (set)
        set(polls);
}

/* The bits do not depend on when copies end. If the host updates, its kernels round otherwise than those of
 * the GPU: three steps of AdamW amplify roundings of 6e-8 to less than a step of lr, 0.01. */
static void copies_of_a_gpu_may_be_early_or_late(void **state)
{
    static const long late[] = {-1, 0, 4};
    static const ax_offload by[] = {
        {AX_OFFLOAD_HOST, AX_OFFLOAD_ON_DEVICE, .bucket = 1500, .chunk = 2},
        {AX_OFFLOAD_FILE, AX_OFFLOAD_ON_DEVICE, .bucket = 2000},
        {AX_OFFLOAD_HOST, AX_OFFLOAD_ON_HOST, .bucket = 2000},
        {AX_OFFLOAD_FILE, AX_OFFLOAD_ON_HOST, .bucket = 1500, .chunk = 1},
    };
    (void)state;
    if (ax_device_absent("cuda"))
        skip();
    for (int fp32 = 0; fp32 < 2; fp32++) {
        pipe_setup s = {.grid = {{1, 1, 1, 1, 1}},
                        .micro_batches = 1,
                        .device = "cuda",
                        .unclipped = true,
                        .compute = fp32 ? AX_F32 : AX_BF16};
        pipe_result with, without;
        char text[PIPE_TEXT];
        delay(-1);
        pipe_run(&s, &without);
        for (size_t k = (size_t)fp32; k < AX_COUNT(by); k += 2)
            for (size_t i = 0; i < AX_COUNT(late); i++) {
                if (!my_share(i + k, 3))
                    continue;
                s.offload = by[k];
                delay(late[i]);
                pipe_run(&s, &with);
                bool same = pipe_is_same(&with, &without), near = pipe_is_near(&s, &with, &without);
                if (by[k].update == AX_OFFLOAD_ON_HOST ? !near : !same)
                    fail_msg("%s: copies late by %ld", describe(&s, text), late[i]);
                pipe_free(&with);
            }
        pipe_free(&without);
    }
    delay(-1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_have_the_bits_of_state_on_the_device),
        cmocka_unit_test(chunks_change_nothing),
        cmocka_unit_test(steps_that_are_not_finite_change_nothing),
        cmocka_unit_test(nothing_else_accesses_the_device),
        cmocka_unit_test(memory_is_that_of_the_table),
        cmocka_unit_test(a_rank_may_have_no_element),
        cmocka_unit_test(values_can_be_set_again),
        cmocka_unit_test(a_disk_that_fails_is_an_error_of_all_ranks),
        cmocka_unit_test(copies_of_a_gpu_may_be_early_or_late),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
