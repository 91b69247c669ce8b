/* Two networks for points in the plane, built from the public layers. One fits a surface, with mean squared
 * error as its loss; the other classifies the arms of a spiral, with cross-entropy. docs/library.md explains
 * this file.
 *
 *     cc mlp.c -o mlp $(pkg-config --cflags --libs axonn) -lm
 *     ./mlp                       one rank
 *     ./mlp 2 2 1 1               four ranks as threads of this process: x=2 y=2 z=1 data=1
 *     mpirun -n 4 ./mlp 2 1 1 2   four processes: x=2, data=2
 *
 * Networks and training are written as for a serial program: a layer knows the roles of its dims, not the
 * number of ranks. Results are the same on every grid except for rounding. The exit code is 0 if both
 * networks score 0.95 or more. The batch has N points; each is a row of one position with F features. */
#include <axonn/axonn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 450, F = 2, CLASSES = 5, WIDE = 33, NARROW = 17, STEPS = 200, FRAME = 4 << 20 };

/* The points, and the targets of the two networks. */
typedef struct points {
    float x[N * F], height[N];
    int32_t arm[N];
} points;

typedef struct trainer {
    ax_ctx *ctx;
    ax_layer *net;
    ax_param_set *params;
    ax_updater *updater;
    ax_frame *frame; /* memory for activations */
    points data;
} trainer;

/* Draws the arms of a spiral, and the height of a wave above each point. */
static void draw_points(points *p)
{
    for (int i = 0; i < N; i++) {
        int place = i / CLASSES + 1, places = N / CLASSES; /* place: 1 is nearest to the centre */
        double r = (double)place / places;
        double angle = 6.2831853 * i / CLASSES + 4 * r + 0.1 * ax_rng_normal(1, (uint64_t)i);
        double x = r * cos(angle), y = r * sin(angle);
        p->x[i * F] = (float)x;
        p->x[i * F + 1] = (float)y;
        p->height[i] = (float)(sin(3 * x) * cos(2 * y));
        p->arm[i] = i % CLASSES;
    }
}

/* ---- networks ------------------------------------------------------------------------------------ */

/* The roles of the widths alternate between MODEL and INNER, so that each linear layer sums over the dim
 * that the layer before it produced, and no layout changes between them. */

static ax_layer *surface_net(ax_ctx *ctx)
{
    ax_linear_config one = {F, WIDE, AX_ROLE_MODEL, AX_ROLE_INNER, .init_std = 1};
    ax_linear_config two = {WIDE, NARROW, AX_ROLE_INNER, AX_ROLE_MODEL, .init_std = 0.3};
    ax_linear_config head = {NARROW, 1, AX_ROLE_MODEL, AX_ROLE_INNER, .init_std = 0.3};
    ax_layer *net[] = {ax_linear(ctx, "one", &one), ax_tanh(ctx, "tanh"), ax_linear(ctx, "two", &two),
                       ax_silu(ctx, "silu"), ax_linear(ctx, "head", &head)};
    return ax_sequence_of(ctx, "surface", AX_COUNT(net), net);
}

static ax_layer *spiral_net(ax_ctx *ctx)
{
    ax_linear_config one = {F, WIDE, AX_ROLE_MODEL, AX_ROLE_INNER, .init_std = 1};
    ax_linear_config two = {WIDE, NARROW, AX_ROLE_INNER, AX_ROLE_MODEL, .init_std = 0.3};
    ax_linear_config head = {NARROW, CLASSES, AX_ROLE_MODEL, AX_ROLE_VOCAB, .init_std = 0.3};
    ax_layer *net[] = {ax_linear(ctx, "one", &one), ax_relu(ctx, "relu"), ax_linear(ctx, "two", &two),
                       ax_silu(ctx, "silu"), ax_linear(ctx, "head", &head)};
    return ax_sequence_of(ctx, "spiral", AX_COUNT(net), net);
}

/* ---- a step ---------------------------------------------------------------------------------------- */

/* Loads this rank's part of the array `global` into a tensor with the first `ndim` dims and the layout of
 * `like`. */
static ax_status load(trainer *t, ax_dtype dtype, int ndim, const ax_tensor *like, const void *global,
                      ax_tensor *out)
{
    ax_tensor all = ax_tensor_make(dtype, ndim, like->dim, like->unit, &like->layout);
    AX_TRY(ax_frame_alloc(t->frame, &all, out));
    return ax_tensor_scatter(t->ctx, out, global);
}

static ax_status forward(trainer *t, ax_mode mode, ax_tensor *y)
{
    static const ax_role roles[] = {AX_ROLE_BATCH, AX_ROLE_NONE, AX_ROLE_MODEL};
    ax_layout layout = ax_layout_of_roles(t->ctx, roles, 3);
    ax_tensor x, like = ax_tensor_make(AX_F32, 3, (int64_t[]){N, 1, F}, NULL, &layout);
    AX_TRY(ax_frame_begin(t->frame, mode == AX_MODE_TRAIN ? "train" : "eval", mode, NULL));
    AX_TRY(load(t, AX_F32, 3, &like, t->data.x, &x));
    return ax_layer_forward(t->net, t->frame, &x, y);
}

/* Computes the loss and its gradient dy. The targets have the layout of the output y: surface_loss has a
 * height for each element, spiral_loss an arm for each row. */
static ax_status surface_loss(trainer *t, const ax_tensor *y, double *loss, ax_tensor *dy)
{
    ax_tensor height;
    AX_TRY(load(t, AX_F32, 3, y, t->data.height, &height));
    return ax_mse_loss(t->frame, y, &height, loss, dy);
}

static ax_status spiral_loss(trainer *t, const ax_tensor *y, double *loss, ax_tensor *dy)
{
    ax_tensor arm;
    AX_TRY(load(t, AX_I32, 2, y, t->data.arm, &arm));
    return ax_cross_entropy_loss(t->frame, y, &arm, AX_IGNORE_INDEX, loss, dy);
}

typedef ax_status loss_fn(trainer *t, const ax_tensor *y, double *loss, ax_tensor *dy);

/* Trains one step on all points. *loss is the loss before the update. */
static ax_status train_step(trainer *t, loss_fn *find_loss, int step, double *loss)
{
    ax_hyper hyper = {
        .lr = 1e-2 * (STEPS + 1 - step) / STEPS, .beta1 = .9, .beta2 = .95, .eps = 1e-8, .step = step};
    ax_tensor y, dy, dx;
    AX_TRY(ax_param_set_zero_grad(t->params));
    AX_TRY(forward(t, AX_MODE_TRAIN, &y));
    AX_TRY(find_loss(t, &y, loss, &dy));
    AX_TRY(ax_layer_backward(t->net, t->frame, &dy, &dx));
    AX_TRY(ax_param_set_sync_grad(t->params));
    return ax_updater_step(t->updater, &hyper);
}

/* ---- scores: 1 is best ----------------------------------------------------------------------------- */

/* Computes the share of the heights' variance that the network explains. */
static ax_status surface_score(trainer *t, double *score)
{
    double loss, mean = 0, variance = 0;
    ax_tensor y;
    AX_TRY(forward(t, AX_MODE_EVAL, &y));
    AX_TRY(surface_loss(t, &y, &loss, NULL));
    for (int i = 0; i < N; i++)
        mean += t->data.height[i] / N;
    for (int i = 0; i < N; i++)
        variance += pow(t->data.height[i] - mean, 2) / N;
    *score = 1 - loss / variance;
    return AX_OK;
}

/* Computes the share of points for which the logit of their own arm is the largest. */
static ax_status spiral_score(trainer *t, double *score)
{
    ax_tensor y;
    float all[N * CLASSES];
    AX_TRY(forward(t, AX_MODE_EVAL, &y));
    AX_TRY(ax_tensor_collect(t->ctx, &y, all));
    int right = 0;
    for (int i = 0; i < N; i++) {
        int best = 0;
        for (int c = 1; c < CLASSES; c++)
            best = all[i * CLASSES + c] > all[i * CLASSES + best] ? c : best;
        right += best == t->data.arm[i];
    }
    *score = (double)right / N;
    return AX_OK;
}

/* ---- training -------------------------------------------------------------------------------------- */

enum { TASKS = 2 };

static const struct task {
    const char *name;
    ax_layer *(*build)(ax_ctx *ctx);
    loss_fn *loss;
    ax_status (*score)(trainer *t, double *score);
} tasks[TASKS] = {{"surface", surface_net, surface_loss, surface_score},
                  {"spiral", spiral_net, spiral_loss, spiral_score}};

static ax_status train(trainer *t, const struct task *task, bool tell, double *score)
{
    const ax_optim *adamw;
    double loss;
    t->net = task->build(t->ctx);
    AX_TRY(t->net ? AX_OK : ax_error_status());
    AX_TRY(ax_optim_find("adamw", &adamw));
    AX_TRY(ax_layer_param_set(t->net, adamw->moments, &t->params));
    AX_TRY(ax_updater_create(adamw, t->params, &t->updater));
    AX_TRY(ax_param_set_init(t->params));
    AX_TRY(ax_frame_create(t->ctx, FRAME, &t->frame));
    for (int step = 1; step <= STEPS; step++) {
        AX_TRY(train_step(t, task->loss, step, &loss));
        if (tell && step % 20 == 0)
            printf("%s: step %3d  loss %.6f\n", task->name, step, loss);
    }
    return task->score(t, score);
}

typedef struct job {
    ax_grid_size grid;
    double score[TASKS]; /* results, stored by rank 0 */
} job;

/* Does one rank's part in training the two networks; rank 0 stores its scores in *arg. */
static ax_status run(ax_comm *world, void *arg)
{
    job mine = *(job *)arg;
    trainer t = {0};
    draw_points(&t.data);
    ax_status status = ax_ctx_create(world, mine.grid, "cpu", 1, AX_F32, 1234, &t.ctx);
    for (int i = 0; i < TASKS && status == AX_OK; i++) {
        status = train(&t, &tasks[i], ax_comm_rank(world) == 0, &mine.score[i]);
        ax_frame_destroy(&t.frame);
        ax_updater_destroy(&t.updater);
        ax_param_set_destroy(&t.params);
        ax_layer_destroy(&t.net);
    }
    ax_ctx_destroy(&t.ctx);
    if (ax_comm_rank(world) == 0)
        *(job *)arg = mine;
    return status;
}

/* Returns the number in `text`; if there is none, 0, which is not a legal size of a grid. */
static int size_of(const char *text) { return (int)strtol(text, NULL, 10); }

int main(int argc, char **argv)
{
    ax_comm *world = NULL;
    ax_status status = ax_comm_world_create(&world);
    job j = {.grid = {.of = {[AX_DATA] = status == AX_OK ? ax_comm_size(world) : 1}}};
    if (argc == 5)
        j.grid = (ax_grid_size){{size_of(argv[1]), size_of(argv[2]), size_of(argv[3]), 1, size_of(argv[4])}};
    if (status == AX_OK)
        status = ax_comm_run(world, (int)ax_grid_size_ranks(j.grid), run, &j);
    bool good = true, first = world && ax_comm_rank(world) == 0;
    if (status != AX_OK)
        fprintf(stderr, "mlp: %s\n", ax_error_message());
    for (int i = 0; i < TASKS && status == AX_OK && first; i++) {
        printf("%s: score %.4f\n", tasks[i].name, j.score[i]);
        good = good && j.score[i] >= 0.95;
    }
    ax_comm_destroy(&world);
    return status != AX_OK ? (int)status : !good;
}
