/* A classifier of points in the plane, built from the public layers, on as many ranks as it is given:
 *
 *     cc mlp.c -o mlp $(pkg-config --cflags --libs axonn) -lm
 *     ./mlp                       one rank
 *     ./mlp 2 2 1 1               four ranks as threads of this process: x=2 y=2 z=1 data=1
 *     mpirun -n 4 ./mlp 2 1 1 2   four processes: x=2, data=2
 *
 * The network and its training are written once, sequentially: a layer is told the roles of its dims, never
 * how many ranks there are. Results are the same on every grid but for roundings. The exit code is 0 if 95 %
 * of the points are classified correctly. N points, each a row of one position with F features. */
#include <axonn/axonn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 450, F = 2, CLASSES = 5, WIDE = 33, NARROW = 17, STEPS = 200, FRAME = 4 << 20 };

typedef struct job {
    ax_grid_size grid;
    double loss, correct; /* results, of rank 0 */
} job;

typedef struct trainer {
    ax_ctx *ctx;
    ax_layer *net;
    ax_param_set *params;
    ax_frame *frame; /* memory of a step */
    ax_updater *updater;
    float x[N * F];
    int32_t class[N];
} trainer;

/* Arms of a spiral, one a class. */
static void draw_points(trainer *t)
{
    for (int i = 0; i < N; i++) {
        int place = i / CLASSES + 1, places = N / CLASSES; /* on the arm, outwards */
        double r = (double)place / places;
        double angle = 6.2831853 * i / CLASSES + 4 * r + 0.1 * ax_rng_normal(1, (uint64_t)i);
        t->class[i] = i % CLASSES;
        t->x[i * F] = (float)(r * cos(angle));
        t->x[i * F + 1] = (float)(r * sin(angle));
    }
}

/* Widths in turn on MODEL and HIDDEN: what one layer sums over, the next one keeps. */
static ax_status build(ax_ctx *ctx, ax_layer **out)
{
    ax_linear_config one = {F, WIDE, AX_ROLE_MODEL, AX_ROLE_HIDDEN, .init_std = 1};
    ax_linear_config two = {WIDE, NARROW, AX_ROLE_HIDDEN, AX_ROLE_MODEL, .init_std = 0.3};
    ax_linear_config head = {NARROW, CLASSES, AX_ROLE_MODEL, AX_ROLE_VOCAB, .init_std = 0.3};
    ax_layer *net[] = {ax_linear(ctx, "one", &one), ax_gelu(ctx, "gelu1", AX_GELU_TANH),
                       ax_linear(ctx, "two", &two), ax_gelu(ctx, "gelu2", AX_GELU_TANH),
                       ax_linear(ctx, "head", &head)};
    *out = ax_sequence_of(ctx, "net", AX_COUNT(net), net);
    return *out ? AX_OK : ax_error_status();
}

/* This rank's part of a global array. */
static ax_status load(trainer *t, ax_dtype dtype, int ndim, const ax_role *roles, const void *global,
                      ax_tensor *out)
{
    ax_layout layout = ax_layout_of_roles(t->ctx, roles, ndim);
    ax_tensor all = ax_tensor_make(dtype, ndim, (int64_t[]){N, 1, F}, NULL, &layout);
    AX_TRY(ax_frame_alloc(t->frame, &all, out));
    return ax_tensor_scatter(t->ctx, out, global);
}

static ax_status forward(trainer *t, ax_mode mode, ax_tensor *logits)
{
    static const ax_role roles[] = {AX_ROLE_BATCH, AX_ROLE_NONE, AX_ROLE_MODEL};
    ax_tensor x;
    AX_TRY(ax_frame_begin(t->frame, mode == AX_MODE_TRAIN ? "train" : "eval", mode, NULL));
    AX_TRY(load(t, AX_F32, 3, roles, t->x, &x));
    return ax_layer_forward(t->net, t->frame, &x, logits);
}

/* All points at once. *loss is their mean, before the update. */
static ax_status train_step(trainer *t, int step, double *loss)
{
    static const ax_role roles[] = {AX_ROLE_BATCH, AX_ROLE_NONE};
    ax_hyper hyper = {.lr = 1e-2, .beta1 = .9, .beta2 = .95, .eps = 1e-8, .step = step};
    ax_tensor logits, targets, stats, none;
    void *sum;
    AX_TRY(ax_param_set_zero_grad(t->params));
    AX_TRY(forward(t, AX_MODE_TRAIN, &logits));
    AX_TRY(load(t, AX_I32, 2, roles, t->class, &targets));
    AX_TRY(ax_frame_scratch(t->frame, AX_F64, 1, &sum));
    AX_TRY(ax_run_fill(t->ctx->stream, &(ax_fill_args){.n = 1, .y = sum, .dtype = AX_F64}));
    AX_TRY(ax_op_cross_entropy(t->frame, &logits, &targets, sum, &stats));
    AX_TRY(ax_op_cross_entropy_grad(t->frame, &logits, &targets, &stats, 1.0 / N));
    AX_TRY(ax_layer_backward(t->net, t->frame, &logits, &none));
    AX_TRY(ax_param_set_sync_grad(t->params));
    AX_TRY(ax_updater_step(t->updater, &hyper));
    AX_TRY(ax_reduce_axes(t->ctx, ax_batch_axes(t->ctx), sum, 1, AX_F64, AX_SUM));
    AX_TRY(ax_copy_out(t->ctx->stream, loss, sum, sizeof *loss));
    *loss /= N;
    return AX_OK;
}

/* The share of points whose own class has the largest logit. */
static ax_status evaluate(trainer *t, double *correct)
{
    ax_tensor logits;
    float all[N * CLASSES];
    AX_TRY(forward(t, AX_MODE_EVAL, &logits));
    AX_TRY(ax_tensor_collect(t->ctx, &logits, all));
    int right = 0;
    for (int i = 0; i < N; i++) {
        int best = 0;
        for (int c = 1; c < CLASSES; c++)
            best = all[i * CLASSES + c] > all[i * CLASSES + best] ? c : best;
        right += best == t->class[i];
    }
    *correct = (double)right / N;
    return AX_OK;
}

static ax_status train(trainer *t, ax_comm *world, job *mine)
{
    const ax_optim *adamw;
    draw_points(t);
    AX_TRY(ax_ctx_create(world, mine->grid, "cpu", 1, AX_F32, 1234, &t->ctx));
    AX_TRY(build(t->ctx, &t->net));
    AX_TRY(ax_optim_find("adamw", &adamw));
    AX_TRY(ax_layer_param_set(t->net, adamw->slots, &t->params));
    AX_TRY(ax_updater_create(adamw, t->params, &t->updater));
    AX_TRY(ax_param_set_init(t->params));
    AX_TRY(ax_frame_create(t->ctx, FRAME, &t->frame));
    for (int step = 1; step <= STEPS; step++) {
        AX_TRY(train_step(t, step, &mine->loss));
        if (ax_comm_rank(world) == 0 && step % 20 == 0)
            printf("step %3d  loss %.6f\n", step, mine->loss);
    }
    return evaluate(t, &mine->correct);
}

/* What each rank does. */
static ax_status run(ax_comm *world, void *arg)
{
    job mine = *(job *)arg;
    trainer t = {0};
    ax_status status = train(&t, world, &mine);
    ax_frame_destroy(&t.frame);
    ax_updater_destroy(&t.updater);
    ax_param_set_destroy(&t.params);
    ax_layer_destroy(&t.net);
    ax_ctx_destroy(&t.ctx);
    if (ax_comm_rank(world) == 0)
        *(job *)arg = mine;
    return status;
}

/* The ranks that a launcher started; or, of a grid larger than that, threads. */
static ax_status run_ranks(ax_comm *world, job *j)
{
    int ranks = j->grid.x * j->grid.y * j->grid.z * j->grid.data;
    return ax_comm_size(world) > 1 || ranks < 2 ? run(world, j) : ax_comm_threads_run(ranks, run, j);
}

/* 0, which no grid accepts, if it is no number. */
static int size_of(const char *text) { return (int)strtol(text, NULL, 10); }

int main(int argc, char **argv)
{
    ax_comm *world = NULL;
    ax_status status = ax_comm_world_create(&world);
    job j = {.grid = {1, 1, 1, 1, status == AX_OK ? ax_comm_size(world) : 1}, .correct = 1};
    if (argc == 5)
        j.grid = (ax_grid_size){size_of(argv[1]), size_of(argv[2]), size_of(argv[3]), 1, size_of(argv[4])};
    if (status == AX_OK)
        status = run_ranks(world, &j);
    if (status != AX_OK && world && ax_comm_size(world) > 1)
        ax_comm_abort(world, status, ax_error_message()); /* ends all ranks */
    if (status != AX_OK)
        fprintf(stderr, "mlp: %s\n", ax_error_message());
    else if (ax_comm_rank(world) == 0)
        printf("%.4f of the points are classified correctly\n", j.correct);
    ax_comm_destroy(&world);
    return status != AX_OK ? (int)status : !(j.correct >= 0.95);
}
