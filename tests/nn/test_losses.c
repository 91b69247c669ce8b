/* Losses of whole batches, with gradients, compared with their formulas in plain loops, on grids that split
 * the batch, the width and the classes unevenly. Also the errors that they return. */
#include "axonn/nn.h"
#include "support/ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { B = 5, T = 3, ROWS = B * T, MOST = 7, COUNT = ROWS * MOST, OTHER = 9 };

/* Arguments of a call, and the expected result. */
typedef struct loss_case {
    ax_grid_size grid;
    const char *device;
    ax_dtype dtype;
    bool classes;   /* true: cross-entropy; false: squared error */
    int width;      /* width of the output */
    bool flat;      /* the output has dims [rows, width], not [b, t, width] */
    ax_dtype ids;   /* dtype of the targets, if these are classes */
    uint16_t align; /* ax_tensor.align of the logits */
    int64_t ignore; /* the class of all rows from `kept` on */
    int kept;
    double x[COUNT], y[COUNT], loss, grad[COUNT];
} loss_case;

static double value(int i, int shift) { return (double)((i * 37 + i / 7 * 11 + shift) % 19 - 9) / 4; }

/* Returns the target of a row. Ignored rows come last, so that ranks have different numbers of them. */
static int64_t class_of(const loss_case *c, int r) { return r < c->kept ? r * 5 % c->width : c->ignore; }

static void expect_squares(loss_case *c, int n)
{
    c->loss = 0;
    for (int i = 0; i < n; i++) {
        c->loss += (c->x[i] - c->y[i]) * (c->x[i] - c->y[i]) / n;
        c->grad[i] = 2 * (c->x[i] - c->y[i]) / n;
    }
}

static void expect_entropy(loss_case *c)
{
    c->loss = 0;
    memset(c->grad, 0, sizeof c->grad);
    for (int r = 0; r < c->kept; r++) {
        double sum = 0, *x = c->x + r * c->width;
        for (int j = 0; j < c->width; j++)
            sum += exp(x[j]);
        for (int j = 0; j < c->width; j++)
            c->grad[r * c->width + j] = (exp(x[j]) / sum - (j == class_of(c, r))) / c->kept;
        c->loss += (log(sum) - x[class_of(c, r)]) / c->kept;
    }
}

/* All values are multiples of 1/4 below 8, which are exact in every element type. */
static void prepare(loss_case *c)
{
    int n = ROWS * c->width;
    for (int i = 0; i < n; i++) {
        c->x[i] = value(i, 0);
        c->y[i] = c->classes && i < ROWS ? (double)class_of(c, i) : value(i, 5);
    }
    if (c->classes)
        expect_entropy(c);
    else
        expect_squares(c, n);
}

static ax_tensor shape(ax_ctx *ctx, const loss_case *c, ax_dtype dtype, int ndim)
{
    const ax_role last = c->classes ? AX_ROLE_VOCAB : AX_ROLE_MODEL;
    const ax_role flat[] = {AX_ROLE_BATCH, last}, deep[] = {AX_ROLE_BATCH, AX_ROLE_NONE, last};
    const int64_t flat_dim[] = {ROWS, c->width}, deep_dim[] = {B, T, c->width};
    ax_layout layout = ax_layout_of_roles(ctx, c->flat ? flat : deep, ndim);
    return ax_tensor_make(dtype, ndim, c->flat ? flat_dim : deep_dim, NULL, &layout);
}

/* Makes a tensor and copies the rank's part of `global` into it. */
static ax_status scatter_values(ax_ctx *ctx, ax_frame *frame, ax_tensor like, const double *global,
                                ax_tensor *out)
{
    double host[COUNT];
    int64_t n = 1;
    for (int d = 0; d < like.ndim; d++)
        n *= like.dim[d];
    for (int64_t i = 0; i < n; i++)
        ax_store(like.dtype, host, i, global[i]);
    AX_TRY(ax_frame_alloc(frame, &like, out));
    return ax_tensor_scatter(ctx, out, host);
}

static ax_status run_loss(ax_frame *frame, const loss_case *c, const ax_tensor *x, const ax_tensor *y,
                          double *loss, ax_tensor *dx)
{
    return c->classes ? ax_cross_entropy_loss(frame, x, y, c->ignore, loss, dx)
                      : ax_mse_loss(frame, x, y, loss, dx);
}

static ax_status setup(ax_comm *world, const loss_case *c, ax_ctx **ctx, ax_frame **frame, ax_tensor *x,
                       ax_tensor *y)
{
    const int dims = c->flat ? 2 : 3;
    AX_TRY(ax_ctx_create(world, c->grid, c->device, 1, c->dtype, 1, ctx));
    AX_TRY(ax_frame_create(*ctx, 1 << 16, frame));
    AX_TRY(ax_frame_begin(*frame, "loss", AX_MODE_TRAIN, NULL));
    ax_tensor like = shape(*ctx, c, c->dtype, dims);
    like.align = c->align;
    AX_TRY(scatter_values(*ctx, *frame, like, c->x, x));
    like = shape(*ctx, c, c->classes ? c->ids : c->dtype, c->classes ? dims - 1 : dims);
    return scatter_values(*ctx, *frame, like, c->y, y);
}

/* 16-bit gradients may differ by one rounding; others by a few, because a row is summed in another order. */
static ax_status compare(const loss_case *c, double loss, double again, const void *grad)
{
    const double unit = c->dtype == AX_F64    ? 0x1p-48
                        : c->dtype == AX_F32  ? 0x1p-20
                        : c->dtype == AX_BF16 ? 0x1p-8
                                              : 0x1p-11;
    AX_CHECK(fabs(loss - c->loss) <= (c->dtype == AX_F64 ? 0x1p-48 : 0x1p-20) * fabs(c->loss),
             AX_ERR_INTERNAL, "the loss is %.9g, not %.9g", loss, c->loss);
    EXPECT(again == loss);
    for (int i = 0; i < ROWS * c->width; i++) {
        double got = ax_load(c->dtype, grad, i);
        AX_CHECK(fabs(got - c->grad[i]) <= unit * (fabs(c->grad[i]) + 0x1p-7), AX_ERR_INTERNAL,
                 "gradient %d is %.9g, not %.9g", i, got, c->grad[i]);
    }
    return AX_OK;
}

static ax_status run_rank(ax_comm *world, void *arg)
{
    const loss_case *c = arg;
    ax_ctx *ctx = NULL;
    ax_frame *frame = NULL;
    ax_tensor x, y, dx;
    double loss, again, grad[COUNT];
    ax_status status = setup(world, c, &ctx, &frame, &x, &y);
    if (status == AX_OK)
        status = run_loss(frame, c, &x, &y, &again, NULL); /* without dx, x stays unchanged */
    if (status == AX_OK)
        status = run_loss(frame, c, &x, &y, &loss, &dx);
    if (status == AX_OK)
        status = ax_tensor_collect(ctx, &dx, grad);
    if (status == AX_OK && ax_comm_rank(world) == 0)
        status = compare(c, loss, again, grad);
    ax_frame_destroy(&frame);
    ax_ctx_destroy(&ctx);
    return status;
}

static const ax_grid_size grids[] = {{{1, 1, 1, 1, 1}}, {{2, 1, 1, 1, 1}}, {{1, 2, 1, 1, 1}},
                                     {{1, 1, 2, 1, 1}}, {{1, 1, 1, 1, 3}}, {{2, 2, 1, 1, 2}},
                                     {{1, 2, 2, 1, 2}}, {{8, 1, 1, 1, 1}}};

static void on_all_grids(loss_case c)
{
    static const struct {
        const char *device;
        ax_dtype dtype;
    } kinds[] = {{"ref", AX_F64}, {"check", AX_F64}, {"cpu", AX_F32}, {"cpu", AX_BF16}, {"cpu", AX_F16}};
    prepare(&c);
    for (size_t k = 0; k < AX_COUNT(kinds); k++)
        for (size_t i = 0; i < AX_COUNT(grids); i++) {
            c.device = kinds[k].device;
            c.dtype = kinds[k].dtype;
            c.grid = grids[i];
            assert_ranks(grid_ranks(c.grid), run_rank, &c);
        }
}

static void mse_loss_equals_its_formula(void **state)
{
    (void)state;
    for (int flat = 0; flat < 2; flat++) {
        on_all_grids((loss_case){.width = MOST, .flat = flat});
        on_all_grids((loss_case){.width = 1, .flat = flat});
    }
}

/* 15, 4 or none of the 15 rows count. The id to ignore is out of range, or a class. */
static void cross_entropy_loss_equals_its_formula(void **state)
{
    (void)state;
    for (int flat = 0; flat < 2; flat++)
        for (int wide = 0; wide < 2; wide++) {
            loss_case c = {.classes = true,
                           .width = MOST,
                           .flat = flat,
                           .ids = wide ? AX_I64 : AX_I32,
                           .align = wide ? AX_ROW_ALIGN : 0,
                           .ignore = AX_IGNORE_INDEX,
                           .kept = ROWS};
            on_all_grids(c);
            c.kept = 4;
            on_all_grids(c);
            c.ignore = 6; /* a class that no counted row has */
            on_all_grids(c);
            c.kept = 0;
            on_all_grids(c);
        }
}

/* All ranks must return the same error, even if only one of them has the wrong target. */
static ax_status check_refusals(ax_comm *world, void *arg)
{
    loss_case c = *(const loss_case *)arg;
    ax_ctx *ctx = NULL;
    ax_frame *frame = NULL;
    ax_tensor x, y, dx, other;
    double loss;
    c.y[1] = OTHER;
    AX_TRY(setup(world, &c, &ctx, &frame, &x, &y));
    EXPECT(ax_cross_entropy_loss(frame, &x, &y, -100, &loss, &dx) == AX_ERR_DATA);
    EXPECT(strstr(ax_error_message(), "1 of 15 targets are neither a class (0 to 6) nor ignore_index"));
    EXPECT(ax_cross_entropy_loss(frame, &x, &y, OTHER, &loss, NULL) == AX_OK);
    EXPECT(ax_cross_entropy_loss(frame, &x, &x, -100, &loss, &dx) == AX_ERR_USAGE);
    EXPECT(strstr(ax_error_message(), "targets are f32, not i32 or i64"));
    EXPECT(ax_mse_loss(frame, &x, &y, &loss, &dx) == AX_ERR_USAGE);
    EXPECT(strstr(ax_error_message(), "the target is i32, but the output f32"));
    other = x;
    other.ndim = 2;
    EXPECT(ax_mse_loss(frame, &x, &other, &loss, &dx) == AX_ERR_USAGE);
    EXPECT(strstr(ax_error_message(), "the target has 2 dims instead of 3"));
    other = x;
    other.dim[1]++;
    EXPECT(ax_mse_loss(frame, &x, &other, &loss, &dx) == AX_ERR_USAGE);
    EXPECT(strstr(ax_error_message(), "dim 1 of the target has 4 entries, that of the output 3"));
    other = x;
    other.layout = (ax_layout){0};
    EXPECT(ax_mse_loss(frame, &x, &other, &loss, &dx) == AX_ERR_USAGE);
    EXPECT(strstr(ax_error_message(), "give their dims the same roles"));
    other = x;
    other.align = AX_ROW_ALIGN; /* as of a linear layer's output of role AX_ROLE_VOCAB */
    EXPECT(ax_mse_loss(frame, &other, &x, &loss, &dx) == AX_ERR_USAGE);
    EXPECT(strstr(ax_error_message(), "its linear layer has out_role AX_ROLE_VOCAB"));
    EXPECT(ax_op_activation(frame, &other, AX_RELU, &dx) == AX_ERR_USAGE);
    EXPECT(strstr(ax_error_message(), "a linear layer with out_role AX_ROLE_VOCAB"));
    ax_frame_destroy(&frame);
    ax_ctx_destroy(&ctx);
    return AX_OK;
}

static void wrong_targets_are_errors_on_all_ranks(void **state)
{
    (void)state;
    loss_case c = {.grid = {{2, 1, 1, 1, 2}},
                   .device = "cpu",
                   .dtype = AX_F32,
                   .classes = true,
                   .width = MOST,
                   .ids = AX_I32,
                   .ignore = AX_IGNORE_INDEX,
                   .kept = ROWS};
    prepare(&c);
    assert_ranks(4, check_refusals, &c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(mse_loss_equals_its_formula),
                                       cmocka_unit_test(cross_entropy_loss_equals_its_formula),
                                       cmocka_unit_test(wrong_targets_are_errors_on_all_ranks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
