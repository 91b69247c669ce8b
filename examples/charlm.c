/* A small language model over bytes, built from the public layers and trained on one file, on one or several
 * ranks:
 *
 *     cc charlm.c -o charlm $(pkg-config --cflags --libs axonn)
 *     ./charlm charlm.c                       one rank
 *     ./charlm charlm.c 2 2 1 1               four ranks as threads of this process: x=2 y=2 z=1 data=1
 *     mpirun -n 4 ./charlm charlm.c 2 1 1 2   four processes: x=2, data=2
 *
 * The code of the network is that of a serial program: a layer knows the roles of its dims, not the number of
 * ranks. The exit code is 0 if the loss fell to less than half of GUESS. A batch has B rows of T bytes. */
#include <axonn/axonn.h>
#include <stdio.h>
#include <stdlib.h>

#define GUESS 5.545 /* log VOCAB: the loss if every byte is equally likely */
enum { VOCAB = 256, WIDTH = 64, INNER = 256, B = 8, T = 64, STEPS = 200, FRAME = 32 << 20 };

typedef struct job {
    const char *path;
    ax_grid_size grid;
    double loss; /* result, stored by rank 0: the loss of the last step */
} job;

typedef struct trainer {
    ax_ctx *ctx;
    ax_layer *net;
    ax_param_set *params;
    ax_frame *frame; /* memory for activations */
    ax_updater *updater;
    char *text;
} trainer;

/* Builds the network: x = embedding(bytes); x += attention(norm(x)); x += mlp(norm(x)); logits =
 * linear(norm(x)). */
static ax_status build(ax_ctx *ctx, ax_layer **out)
{
    ax_embedding_config table = {.vocab = VOCAB, .width = WIDTH, .init_std = 0.05};
    ax_attention_config heads = {.width = WIDTH, .heads = 4, .init_std = 0.05, .proj_init_std = 0.05};
    ax_linear_config up = {WIDTH, INNER, AX_ROLE_MODEL, AX_ROLE_INNER, .init_std = 0.05};
    ax_linear_config down = {INNER, WIDTH, AX_ROLE_INNER, AX_ROLE_MODEL, .init_std = 0.05};
    ax_linear_config head = {WIDTH, VOCAB, AX_ROLE_MODEL, AX_ROLE_VOCAB, .init_std = 0.05};
    ax_layer *attn[] = {ax_layernorm(ctx, "n1", WIDTH, AX_ROLE_MODEL, 1e-5), ax_attention(ctx, "a", &heads)};
    ax_layer *mlp[] = {ax_layernorm(ctx, "n2", WIDTH, AX_ROLE_MODEL, 1e-5), ax_linear(ctx, "up", &up),
                       ax_gelu(ctx, "gelu", AX_GELU_TANH), ax_linear(ctx, "down", &down)};
    ax_layer *block[] = {ax_sequence_of(ctx, "attn", AX_COUNT(attn), attn),
                         ax_sequence_of(ctx, "mlp", AX_COUNT(mlp), mlp)};
    ax_layer *net[] = {ax_embedding(ctx, "embed", &table),
                       ax_residual_of(ctx, "block", AX_COUNT(block), block),
                       ax_layernorm(ctx, "n3", WIDTH, AX_ROLE_MODEL, 1e-5), ax_linear(ctx, "head", &head)};
    *out = ax_sequence_of(ctx, "net", AX_COUNT(net), net);
    return *out ? AX_OK : ax_error_status();
}

/* Loads B rows from random places of the text: the bytes, and as the target of each byte the next byte. The
 * places depend on the step alone. */
static ax_status load(trainer *t, size_t size, int step, ax_batch *batch)
{
    int32_t host[B * T];
    ax_tensor *const part[] = {&batch->tokens, &batch->targets};
    ax_layout layout = ax_layout_of_roles(t->ctx, (ax_role[]){AX_ROLE_BATCH, AX_ROLE_NONE}, 2);
    ax_tensor ids = ax_tensor_make(AX_I32, 2, (int64_t[]){B, T}, NULL, &layout);
    for (int p = 0; p < 2; p++) {
        for (int i = 0; i < B * T; i++) {
            size_t row = ax_permute(t->ctx->seed, size - T, (size_t)(step * B + i / T) % (size - T));
            host[i] = (unsigned char)t->text[row + (size_t)(i % T + p)];
        }
        AX_TRY(ax_frame_alloc(t->frame, &ids, part[p]));
        AX_TRY(ax_tensor_scatter(t->ctx, part[p], host));
    }
    return AX_OK;
}

/* Trains one step. *loss is the mean over all bytes, before the update. */
static ax_status train_step(trainer *t, size_t size, int step, double *loss)
{
    ax_hyper hyper = {.lr = 3e-3, .beta1 = .9, .beta2 = .95, .eps = 1e-8, .step = step};
    ax_batch batch = {0};
    ax_tensor logits, dlogits, none;
    AX_TRY(ax_frame_begin(t->frame, "train", AX_MODE_TRAIN, &batch));
    AX_TRY(load(t, size, step, &batch));
    AX_TRY(ax_param_set_zero_grad(t->params));
    AX_TRY(ax_layer_forward(t->net, t->frame, NULL, &logits));
    AX_TRY(ax_cross_entropy_loss(t->frame, &logits, &batch.targets, AX_IGNORE_INDEX, loss, &dlogits));
    AX_TRY(ax_layer_backward(t->net, t->frame, &dlogits, &none));
    AX_TRY(ax_param_set_sync_grad(t->params));
    return ax_updater_step(t->updater, &hyper);
}

static ax_status train(trainer *t, ax_comm *world, job *mine)
{
    const ax_optim *adamw;
    size_t size;
    AX_TRY(ax_file_read(mine->path, &t->text, &size));
    AX_CHECK(size > 2 * T, AX_ERR_DATA, "%s: a text of %zu bytes is too short", mine->path, size);
    AX_TRY(ax_ctx_create(world, mine->grid, "cpu", 1, AX_F32, 1234, &t->ctx));
    AX_TRY(build(t->ctx, &t->net));
    AX_TRY(ax_optim_find("adamw", &adamw));
    AX_TRY(ax_layer_param_set(t->net, adamw->moments, &t->params));
    AX_TRY(ax_updater_create(adamw, t->params, &t->updater));
    AX_TRY(ax_param_set_init(t->params));
    AX_TRY(ax_frame_create(t->ctx, FRAME, &t->frame));
    for (int step = 1; step <= STEPS; step++) {
        AX_TRY(train_step(t, size, step, &mine->loss));
        if (ax_comm_rank(world) == 0 && (step == 1 || step % 20 == 0))
            printf("step %3d  loss %.4f\n", step, mine->loss);
    }
    return AX_OK;
}

/* Does one rank's part in the training; rank 0 stores its result in *arg. */
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
    free(t.text);
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
    job j = {
        argc > 1 ? argv[1] : __FILE__, {.of = {[AX_DATA] = status == AX_OK ? ax_comm_size(world) : 1}}, 0};
    if (argc == 6)
        j.grid = (ax_grid_size){{size_of(argv[2]), size_of(argv[3]), size_of(argv[4]), 1, size_of(argv[5])}};
    if (status == AX_OK)
        status = ax_comm_run(world, (int)ax_grid_size_ranks(j.grid), run, &j);
    if (status != AX_OK)
        fprintf(stderr, "charlm: %s\n", ax_error_message());
    ax_comm_destroy(&world);
    return status != AX_OK ? (int)status : !(j.loss < GUESS / 2);
}
