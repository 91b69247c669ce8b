/* Cross-entropy over a split vocabulary: losses and gradients on grids over x and y against those of one
 * rank, with vocabularies that the ranks do not divide, and with fewer entries than ranks, so that some ranks
 * hold none. */
#include "axonn/op.h"
#include "support/ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { B = 3, T = 4, MOST = 70 };

typedef struct loss_case {
    ax_grid_size grid;
    const char *device;
    ax_dtype dtype;
    int64_t vocab;
    uint16_t align; /* ax_tensor.align of the logits */
    /* The results, written by rank 0. */
    double loss, grad[B * T * MOST];
} loss_case;

/* Makes logits so large that exp overflows unless the maximum of the whole row is subtracted. Some targets
 * are masked. */
static void inputs(int64_t vocab, ax_dtype dtype, void *logits, int32_t *targets)
{
    for (int64_t i = 0; i < B * T * vocab; i++)
        ax_store(dtype, logits, i, 120.0 * (double)((i * 37 + i / vocab * 11) % 19 - 9));
    for (int64_t r = 0; r < B * T; r++)
        targets[r] = r % 5 == 3 ? -1 : (int32_t)(r * 7 % vocab);
}

static ax_status scatter_values(ax_ctx *ctx, ax_frame *frame, ax_tensor *t, const void *global)
{
    AX_TRY(ax_frame_alloc(frame, t, t));
    return ax_tensor_scatter(ctx, t, global);
}

static ax_status compute(ax_ctx *ctx, ax_frame *frame, loss_case *c)
{
    double host[B * T * MOST];
    int32_t ids[B * T];
    ax_tensor stats,
        logits = ax_tensor_make(c->dtype, 3, (int64_t[]){B, T, c->vocab},
                                (int64_t[]){1, 1, ax_vocab_unit(ctx, c->vocab)}, NULL),
        targets = ax_tensor_make(AX_I32, 2, (int64_t[]){B, T}, NULL, NULL);
    logits.align = c->align;
    logits.layout = ax_layout_of_roles(ctx, (ax_role[]){AX_ROLE_BATCH, AX_ROLE_NONE, AX_ROLE_VOCAB}, 3);
    targets.layout = ax_layout_of_roles(ctx, (ax_role[]){AX_ROLE_BATCH, AX_ROLE_NONE}, 2);
    inputs(c->vocab, c->dtype, host, ids);
    void *total;
    AX_TRY(ax_frame_begin(frame, "loss", AX_MODE_TRAIN, NULL));
    AX_TRY(scatter_values(ctx, frame, &logits, host));
    AX_TRY(scatter_values(ctx, frame, &targets, ids));
    AX_TRY(ax_frame_scratch(frame, AX_F64, 1, &total));
    AX_TRY(ax_run_fill(ctx->stream, &(ax_fill_args){.n = 1, .y = total, .dtype = AX_F64}));
    AX_TRY(ax_op_cross_entropy(frame, &logits, &targets, total, NULL, &stats));
    AX_TRY(ax_op_cross_entropy_grad(frame, &logits, &targets, &stats, 0.5));
    AX_TRY(ax_reduce_axes(ctx, ax_batch_axes(ctx), total, 1, AX_F64, AX_SUM));
    AX_TRY(ax_copy_out(ctx->stream, &c->loss, total, sizeof c->loss));
    AX_TRY(ax_tensor_collect(ctx, &logits, host));
    for (int64_t i = 0; i < B * T * c->vocab; i++)
        c->grad[i] = ax_load(c->dtype, host, i);
    return AX_OK;
}

static ax_status run_rank(ax_comm *world, void *arg)
{
    loss_case *mine, *c = arg;
    ax_ctx *ctx;
    ax_frame *frame = NULL;
    AX_TRY(ax_calloc(1, sizeof *mine, &mine));
    *mine = *c;
    ax_status status = ax_ctx_create(world, c->grid, c->device, 1, c->dtype, 1, &ctx);
    if (status == AX_OK)
        status = ax_frame_create(ctx, 1 << 18, &frame);
    if (status == AX_OK)
        status = compute(ctx, frame, mine);
    if (status == AX_OK && ax_comm_rank(world) == 0) {
        c->loss = mine->loss;
        memcpy(c->grad, mine->grad, sizeof c->grad);
    }
    ax_frame_destroy(&frame);
    ax_ctx_destroy(&ctx);
    free(mine);
    return status;
}

/* Tolerance: ranks add a row's sum in another order, which costs one rounding of the accumulation dtype per
 * rank; 16-bit gradients may then round the other way. */
static void equal(const loss_case *a, const loss_case *serial)
{
    double bound = a->dtype == AX_F64   ? 1e-14
                   : a->dtype == AX_F32 ? 2e-6
                   : a->dtype == AX_F16 ? 1.0 / 1024
                                        : 1.0 / 128;
    double least = a->dtype == AX_F16 ? 0x1p-14 : 1e-30; /* below, fp16 has steps of 2^-24 */
    assert_true(fabs(a->loss - serial->loss) <= (a->dtype == AX_F64 ? 1e-14 : 2e-6) * fabs(serial->loss));
    for (int64_t i = 0; i < B * T * a->vocab; i++)
        if (!(fabs(a->grad[i] - serial->grad[i]) <= bound * fmax(fabs(serial->grad[i]), least)))
            fail_msg("x=%d y=%d vocab %d: gradient %d is %g, not %g", a->grid.of[AX_X], a->grid.of[AX_Y],
                     (int)a->vocab, (int)i, a->grad[i], serial->grad[i]);
}

static void a_split_vocabulary_gives_the_same_loss(void **state)
{
    (void)state;
    static const ax_grid_size grids[] = {{{2, 1, 1, 1, 1}}, {{1, 2, 1, 1, 1}}, {{2, 2, 1, 1, 2}},
                                         {{3, 2, 1, 1, 1}}, {{1, 1, 2, 1, 2}}, {{4, 2, 1, 1, 1}},
                                         {{1, 8, 1, 1, 1}}};
    static const int64_t vocabs[] = {1, 2, 5, 7, 64, 70};
    static const struct {
        const char *device;
        ax_dtype dtype;
    } kinds[] = {{"ref", AX_F64}, {"check", AX_F64}, {"cpu", AX_F32}, {"cpu", AX_BF16}, {"cpu", AX_F16}};
    for (size_t k = 0; k < AX_COUNT(kinds); k++)
        for (size_t v = 0; v < AX_COUNT(vocabs); v++) {
            loss_case serial = {.grid = {{1, 1, 1, 1, 1}},
                                .device = kinds[k].device,
                                .dtype = kinds[k].dtype,
                                .vocab = vocabs[v]};
            assert_ranks(1, run_rank, &serial);
            assert_true(isfinite(serial.loss));
            loss_case padded = serial;
            padded.align = AX_ROW_ALIGN;
            assert_ranks(1, run_rank, &padded);
            assert_true(padded.loss == serial.loss && !memcmp(padded.grad, serial.grad, sizeof serial.grad));
            for (size_t i = 0; i < AX_COUNT(grids); i++) {
                loss_case split = serial;
                split.grid = grids[i];
                split.align = i % 2 ? AX_ROW_ALIGN : 0;
                assert_ranks(grid_ranks(split.grid), run_rank, &split);
                equal(&split, &serial);
            }
        }
}

/* Operations whose kernels need dense rows refuse padded ones. */
static ax_status others_of_logits(ax_comm *world, void *arg)
{
    (void)arg;
    ax_ctx *ctx;
    ax_frame *frame;
    ax_tensor y, z, stats, x = ax_tensor_make(AX_F32, 3, (int64_t[]){B, T, 5}, NULL, NULL);
    x.align = AX_ROW_ALIGN;
    AX_TRY(ax_ctx_create(world, (ax_grid_size){{1}}, "ref", 1, AX_F32, 1, &ctx));
    AX_TRY(ax_frame_create(ctx, 1 << 16, &frame));
    AX_TRY(ax_frame_begin(frame, "padded", AX_MODE_TRAIN, NULL));
    AX_TRY(ax_frame_alloc(frame, &x, &x));
    EXPECT(ax_op_activation(frame, &x, AX_GELU_TANH, &y) == AX_ERR_USAGE);
    EXPECT(ax_op_add(frame, &x, &x, &y) == AX_ERR_USAGE);
    EXPECT(ax_op_norm(frame, &(ax_norm_of){.eps = 1e-5}, &x, NULL, &z, &y, &stats) == AX_ERR_USAGE);
    ax_frame_destroy(&frame);
    ax_ctx_destroy(&ctx);
    return AX_OK;
}

static void other_operations_refuse_padded_rows(void **state)
{
    (void)state;
    assert_ranks(1, others_of_logits, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_split_vocabulary_gives_the_same_loss),
                                       cmocka_unit_test(other_operations_refuse_padded_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
