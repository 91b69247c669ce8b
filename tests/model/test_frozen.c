/* Frozen parameters: they have no memory but the weights that kernels read, and do not move. The gradients of
 * all others have the same bits as if nothing were frozen, and backward ends with the first layer that is
 * trained. */
#include "axonn/model.h"
#include "axonn/optim.h"
#include "support/params.h"
#include "support/ranks.h"
#include "support/sampled.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 8, T = 6, VOCAB = 29, MOST_PARAMS = 64, FRAME = 1 << 22 };

/* A choice of parameters that are trained: those whose name contains `trained`. */
typedef struct run {
    const char *family, *trained;
    ax_grid_size grid;
    int zero;
    ax_dtype compute;
    int recompute;
    /* results, of rank 0: gradients of all parameters (NULL: frozen), and weights after a step */
    int n;
    double *grad[MOST_PARAMS], *before[MOST_PARAMS], *after[MOST_PARAMS];
    size_t bytes[AX_MEMORY_CLASSES], count[MOST_PARAMS];
    double flops;
} run;

static ax_model_config config_of(const run *r)
{
    const ax_family *family = NULL;
    if (ax_family_find(r->family, &family) != AX_OK)
        abort();
    ax_model_config c = ax_model_config_defaults(family);
    c.layers = 2;
    c.hidden = 16;
    c.heads = 4;
    c.kv_heads = strcmp(r->family, "gpt2") ? 2 : 4;
    c.ffn = 20;
    c.vocab = VOCAB;
    c.seq_len = T;
    c.init_std = 0.3;
    return c;
}

static ax_status batch_of(ax_ctx *ctx, ax_batch *batch)
{
    int32_t host[4][ROWS * T];
    for (int i = 0; i < ROWS * T; i++) {
        host[0][i] = (i * 7 + i / 5) % VOCAB;
        host[1][i] = (i * 3 + 1) % VOCAB;
        host[2][i] = 0;
        host[3][i] = i % T;
    }
    ax_layout layout = ax_layout_of_roles(ctx, (ax_role[]){AX_ROLE_BATCH, AX_ROLE_NONE}, 2);
    ax_tensor *const t[] = {&batch->tokens, &batch->targets, &batch->doc_start, &batch->positions};
    for (int i = 0; i < 4; i++) {
        *t[i] = ax_tensor_make(AX_I32, 2, (int64_t[]){ROWS, T}, NULL, &layout);
        AX_TRY(ax_ctx_alloc(ctx, AX_MEMORY_ACTIVATIONS, (size_t)ax_tensor_bytes(ctx->grid, t[i]) + 1,
                            &t[i]->data));
        AX_TRY(ax_tensor_scatter(ctx, t[i], host[i]));
    }
    const ax_batch_numbers now = {.step = 1, .loss_scale = 1};
    void *numbers;
    AX_TRY(ax_ctx_alloc(ctx, AX_MEMORY_ACTIVATIONS, sizeof now, &numbers));
    AX_TRY(ax_copy_in(ctx->stream, numbers, &now, sizeof now));
    batch->now = numbers;
    return AX_OK;
}

static void batch_free(ax_ctx *ctx, ax_batch *batch)
{
    ax_tensor *const t[] = {&batch->tokens, &batch->targets, &batch->doc_start, &batch->positions};
    for (int i = 0; i < 4; i++)
        if (t[i]->data)
            ax_ctx_free(ctx, AX_MEMORY_ACTIVATIONS, t[i]->data, (size_t)ax_tensor_bytes(ctx->grid, t[i]) + 1);
    if (batch->now)
        ax_ctx_free(ctx, AX_MEMORY_ACTIVATIONS, (void *)(uintptr_t)batch->now, sizeof *batch->now);
}

static ax_status collect(ax_ctx *ctx, const ax_tensor *t, double **out, size_t *count)
{
    int64_t n = *count = (size_t)ax_tensor_global_count(t);
    void *host;
    AX_TRY(ax_calloc((size_t)n + 1, sizeof(double), &host));
    AX_TRY(ax_calloc((size_t)n + 1, sizeof(double), out));
    ax_status status = ax_tensor_collect(ctx, t, host);
    for (int64_t i = 0; i < n && status == AX_OK; i++)
        (*out)[i] = ax_load(t->dtype, host, i);
    free(host);
    return status;
}

static ax_status check_memory(const ax_param *p)
{
    bool trains = ax_param_trains(p);
    const ax_param_state *s = p->state;
    EXPECT(p->rest.data && s[AX_STATE_MASTER].data);
    EXPECT(trains ||
           (!p->sum.data && !p->grad.data && !s[AX_STATE_MOMENT].data && !s[AX_STATE_MOMENT + 1].data));
    EXPECT(!trains ||
           (p->sum.data && p->grad.data && s[AX_STATE_MOMENT].data && s[AX_STATE_MOMENT + 1].data));
    EXPECT(s[AX_STATE_MASTER].dtype == (trains ? AX_F32 : p->rest.dtype));
    return AX_OK;
}

/* The sums of squares are those of the weights that kernels read, matrices and vectors in two dtypes. `sumsq`
 * is memory for the sums. */
static ax_status check_weight_sums(ax_ctx *ctx, ax_param_set *set, double *sumsq)
{
    double got[MOST_PARAMS];
    AX_TRY(ax_param_set_weight_sumsq(set, sumsq));
    AX_TRY(ax_copy_out(ctx->stream, got, sumsq, (size_t)set->n * sizeof *got));
    for (int i = 0; i < set->n; i++) {
        double *weights, want = 0;
        size_t n;
        AX_TRY(collect(ctx, &set->param[i]->rounded, &weights, &n));
        for (size_t j = 0; j < n; j++)
            want += weights[j] * weights[j];
        free(weights);
        EXPECT(fabs(got[i] - want) <= 1e-12 * want);
    }
    return AX_OK;
}

static void add_flops(void *user, const ax_device_event *launch)
{
    *(double *)user += ax_kernel_flops(launch->kernel, launch->args);
}

/* One training step of two micro-batches with the same rows. */
static ax_status step(ax_ctx *ctx, ax_model *model, ax_param_set *set, ax_batch *batch, ax_frame *frame,
                      run *out)
{
    ax_tensor none = {0}, dx;
    void *total, *sumsq;
    AX_TRY(ax_ctx_alloc(ctx, AX_MEMORY_ACTIVATIONS, sizeof(double), &total));
    AX_TRY(ax_ctx_alloc(ctx, AX_MEMORY_ACTIVATIONS, (size_t)set->n * sizeof(double), &sumsq));
    AX_TRY(check_weight_sums(ctx, set, sumsq));
    AX_TRY(ax_param_set_zero_grad(set));
    ax_listener listener = {AX_ON_KERNEL, add_flops, &out->flops, NULL};
    ax_device_listen(ctx->dev, &listener);
    for (int i = 0; i < 2; i++) {
        out->flops = 0;
        AX_TRY(ax_param_set_last_micro_batch(set, i == 1));
        AX_TRY(ax_frame_begin(frame, "train", AX_MODE_TRAIN, batch));
        AX_TRY(ax_model_loss(model, frame, total, NULL));
        AX_TRY(ax_model_backward(model, 0, frame, &none, &dx));
    }
    ax_device_unlisten(ctx->dev, &listener);
    AX_TRY(ax_param_set_sync_grad(set));
    AX_TRY(ax_param_set_grad_sumsq(set, sumsq));
    for (int i = 0; i < set->n; i++)
        if (ax_param_trains(set->param[i]))
            AX_TRY(collect(ctx, &set->param[i]->grad, &out->grad[i], &out->count[i]));
    ax_updater *updater;
    const ax_optim *adamw;
    AX_TRY(ax_optim_find("adamw", &adamw));
    AX_TRY(ax_updater_create(adamw, set, &updater));
    AX_TRY(ax_updater_clip(updater, sumsq, total, 1, 1, 0));
    ax_status status = ax_updater_step(
        updater,
        &(ax_hyper){.lr = 0.1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = 1});
    if (status == AX_OK)
        status = ax_param_set_refresh(set);
    ax_update_numbers numbers;
    if (status == AX_OK)
        status = ax_updater_result(updater, &numbers);
    if (status == AX_OK && numbers.skip)
        status = ax_fail(AX_ERR_NUMERIC, "the step was skipped");
    ax_updater_destroy(&updater);
    ax_ctx_free(ctx, AX_MEMORY_ACTIVATIONS, total, sizeof(double));
    ax_ctx_free(ctx, AX_MEMORY_ACTIVATIONS, sumsq, (size_t)set->n * sizeof(double));
    return status;
}

static ax_status weights_of(ax_ctx *ctx, const ax_param_set *set, double **out, run *r)
{
    for (int i = 0; i < set->n; i++)
        AX_TRY(collect(ctx, &set->param[i]->rest, &out[i], &r->count[i]));
    return AX_OK;
}

static ax_status run_model(ax_ctx *ctx, run *r)
{
    ax_model *model;
    ax_param_set *set;
    ax_frame *frame;
    ax_batch batch = {0};
    ax_model_config config = config_of(r);
    AX_TRY(ax_model_create(ctx, &config, &(ax_model_use){.recompute = r->recompute}, &model));
    ax_param *params[MOST_PARAMS];
    int n = 0;
    ax_layer_params(model->root, params, MOST_PARAMS, &n);
    for (int i = 0; i < n; i++)
        params[i]->frozen = !strstr(params[i]->name, r->trained);
    AX_TRY(ax_layer_param_set(model->root, 2, &set));
    AX_TRY(ax_param_set_init(set));
    AX_TRY(ax_frame_create(ctx, FRAME, &frame));
    r->n = set->n;
    memcpy(r->bytes, set->memory.bytes, sizeof r->bytes);
    ax_status status = batch_of(ctx, &batch);
    for (int i = 0; i < set->n && status == AX_OK; i++)
        status = check_memory(set->param[i]);
    if (status == AX_OK)
        status = weights_of(ctx, set, r->before, r);
    if (status == AX_OK)
        status = step(ctx, model, set, &batch, frame, r);
    if (status == AX_OK)
        status = weights_of(ctx, set, r->after, r);
    batch_free(ctx, &batch);
    ax_frame_destroy(&frame);
    ax_param_set_destroy(&set);
    ax_model_destroy(&model);
    return status;
}

static void run_free(run *r)
{
    for (int i = 0; i < MOST_PARAMS; i++) {
        free(r->grad[i]);
        free(r->before[i]);
        free(r->after[i]);
    }
}

static ax_status on_rank(ax_comm *world, void *arg)
{
    run mine = *(const run *)arg;
    ax_ctx *ctx;
    AX_TRY(ax_ctx_create(world, mine.grid, "cpu", 1, mine.compute, 5, &ctx));
    ctx->parallel.zero = mine.zero;
    ax_status status = run_model(ctx, &mine);
    ax_ctx_destroy(&ctx);
    if (ax_comm_rank(world) == 0)
        *(run *)arg = mine;
    else
        run_free(&mine);
    return status;
}

static run do_run(run r)
{
    if (ax_comm_threads_run(grid_ranks(r.grid), on_rank, &r) != AX_OK)
        fail_msg("%s, trained \"%s\", zero %d: %s", r.family, r.trained, r.zero, ax_error_message());
    return r;
}

static bool same(const double *a, const double *b, size_t n) { return !memcmp(a, b, n * sizeof *a); }

/* Compares a run in which some parameters are frozen with the run in which all are trained. */
static void compare(const run *some, const run *all)
{
    int trained = 0;
    for (int i = 0; i < all->n; i++) {
        size_t n = all->count[i];
        assert_true(same(some->before[i], all->before[i], n));
        if (!some->grad[i]) {
            assert_true(same(some->after[i], some->before[i], n));
            continue;
        }
        trained++;
        if (!same(some->grad[i], all->grad[i], n))
            fail_msg("%s, trained \"%s\", zero %d: the gradient of parameter %d differs", some->family,
                     some->trained, some->zero, i);
        assert_true(same(some->after[i], all->after[i], n));
        assert_false(same(some->after[i], some->before[i], n));
    }
    assert_true(trained > 0 && trained < all->n);
    assert_true(some->bytes[AX_MEMORY_GRADIENTS] < all->bytes[AX_MEMORY_GRADIENTS] &&
                some->bytes[AX_MEMORY_OPTIMIZER] < all->bytes[AX_MEMORY_OPTIMIZER]);
    assert_true(some->flops < all->flops);
}

static const ax_grid_size grids[] = {
    {{1, 1, 1, 1, 1}}, {{2, 1, 1, 1, 2}}, {{1, 2, 2, 1, 1}}, {{2, 2, 1, 1, 2}}};

static void gradients_have_the_bits_of_a_run_without_frozen_parameters(void **state)
{
    (void)state;
    static const char *const trained[] = {"h.1.attn.q.weight", "mlp.down", "norm1",      "embed.positions",
                                          "attn.proj.bias",    "head",     "h.0.mlp.up", "h.1."};
    for (size_t g = 0; g < AX_COUNT(grids); g++)
        for (int zero = 0; zero <= 3; zero++) {
            const char *family = (g + (size_t)zero) % 2 ? "llama" : "gpt2";
            run all = do_run((run){.family = family,
                                   .trained = "",
                                   .grid = grids[g],
                                   .zero = zero,
                                   .compute = AX_F32,
                                   .recompute = zero % 2});
            const size_t each = (size_t)one_of(1, 4);
            for (size_t i = (g + (size_t)zero) % each; i < AX_COUNT(trained); i += each) {
                bool lacks = strcmp(family, "gpt2")
                                 ? strstr(trained[i], "positions") || strstr(trained[i], "bias")
                                 : !strcmp(trained[i], "head");
                if (lacks)
                    continue;
                run some = all;
                memset(some.grad, 0, sizeof some.grad);
                memset(some.before, 0, sizeof some.before);
                memset(some.after, 0, sizeof some.after);
                some.trained = trained[i];
                some = do_run(some);
                compare(&some, &all);
                run_free(&some);
            }
            run_free(&all);
        }
}

/* In 16 bits a frozen matrix has 2 bytes per element, a trained one 2 + 4 + 4 + 8. */
static void frozen_matrices_have_two_bytes_per_element(void **state)
{
    (void)state;
    run r = {
        .family = "llama", .trained = "h.1.mlp.up.weight", .grid = {{1, 1, 1, 1, 1}}, .compute = AX_BF16};
    r = do_run(r);
    enum {
        A = 16 * 20,
        MATRICES = 2 * (16 * 16 * 2 + 16 * 8 * 2 + 3 * A) + 2 * VOCAB * 16,
        VECTORS = 5 * 16
    };
    assert_in_range(r.bytes[AX_MEMORY_WEIGHTS], 2 * (MATRICES - A) + 4 * A + 4 * VECTORS,
                    2 * (MATRICES - A) + 4 * A + 4 * VECTORS + 64 * MOST_PARAMS);
    assert_in_range(r.bytes[AX_MEMORY_COPIES], 2 * A, 2 * A + 63);
    assert_in_range(r.bytes[AX_MEMORY_GRADIENTS], 4 * A, 4 * A + 63);
    assert_in_range(r.bytes[AX_MEMORY_OPTIMIZER], 8 * A, 8 * A + 126);
    run_free(&r);
}

/* Nothing is computed below the first layer that is trained. */
static void backward_ends_with_the_first_layer_that_is_trained(void **state)
{
    (void)state;
    run low =
        do_run((run){.family = "llama", .trained = "h.0.mlp.down", .grid = grids[0], .compute = AX_F32});
    run high =
        do_run((run){.family = "llama", .trained = "h.1.mlp.down", .grid = grids[0], .compute = AX_F32});
    /* From block 1's down projection to block 0's: the input gradients of the GEMMs of a block. */
    double block = 2.0 * ROWS * T * (16 * 16 * 2 + 16 * 8 * 2 + 3 * 16 * 20);
    assert_true(low.flops - high.flops > block && low.flops - high.flops < 2 * block);
    run_free(&low);
    run_free(&high);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_have_the_bits_of_a_run_without_frozen_parameters),
        cmocka_unit_test(frozen_matrices_have_two_bytes_per_element),
        cmocka_unit_test(backward_ends_with_the_first_layer_that_is_trained)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
