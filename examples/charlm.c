/* A small language model over bytes, built from the public layers and trained on one file:
 *
 *     cc charlm.c -o charlm $(pkg-config --cflags --libs axonn) && ./charlm charlm.c
 *
 * The network is written once, sequentially: a layer is told the roles of its dims, never how many ranks
 * there are. The exit code is 0 if the loss fell to less than half that of a guess. B rows of T bytes. */
#include <axonn/axonn.h>
#include <stdio.h>
#include <stdlib.h>

#define GUESS 5.545 /* log VOCAB: the loss of all bytes being equally likely */
enum { VOCAB = 256, WIDTH = 64, INNER = 256, B = 8, T = 64, STEPS = 200, FRAME = 32 << 20 };

typedef struct trainer {
    ax_comm *self; /* a world of one rank */
    ax_ctx *ctx;
    ax_layer *net;
    ax_param_set *params;
    ax_frame *frame; /* memory of a step */
    const ax_optim *optim;
    char *text;
} trainer;

/* x = bytes; x += attention(norm(x)); x += mlp(norm(x)); logits. */
static ax_status build(ax_ctx *ctx, ax_layer **out)
{
    ax_embedding_config table = {.vocab = VOCAB, .width = WIDTH, .init_std = 0.05};
    ax_attention_config heads = {.width = WIDTH, .heads = 4, .init_std = 0.05, .proj_init_std = 0.05};
    ax_linear_config up = {WIDTH, INNER, AX_ROLE_MODEL, AX_ROLE_HIDDEN, .init_std = 0.05};
    ax_linear_config down = {INNER, WIDTH, AX_ROLE_HIDDEN, AX_ROLE_MODEL, .init_std = 0.05};
    ax_linear_config head = {WIDTH, VOCAB, AX_ROLE_MODEL, AX_ROLE_VOCAB, .init_std = 0.05};
    ax_layer *attn[] = {ax_layernorm(ctx, "n1", WIDTH, AX_ROLE_MODEL, 1e-5), ax_attention(ctx, "a", &heads)};
    ax_layer *mlp[] = {ax_layernorm(ctx, "n2", WIDTH, AX_ROLE_MODEL, 1e-5), ax_linear(ctx, "up", &up),
                       ax_gelu(ctx, "gelu", AX_GELU_TANH), ax_linear(ctx, "down", &down)};
    ax_layer *net[] = {ax_embedding(ctx, "embed", &table),
                       ax_residual(ctx, "r1", ax_sequence_of(ctx, "attn", AX_COUNT(attn), attn)),
                       ax_residual(ctx, "r2", ax_sequence_of(ctx, "mlp", AX_COUNT(mlp), mlp)),
                       ax_layernorm(ctx, "n3", WIDTH, AX_ROLE_MODEL, 1e-5), ax_linear(ctx, "head", &head)};
    *out = ax_sequence_of(ctx, "net", AX_COUNT(net), net);
    return *out ? AX_OK : ax_error_status();
}

/* B rows from anywhere in the text (a function of the step alone): bytes, and the bytes that follow them. */
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

/* *loss is the sum over the rows, before the update. */
static ax_status train_step(trainer *t, size_t size, int step, double *loss)
{
    ax_hyper hyper = {.lr = 3e-3, .beta1 = .9, .beta2 = .95, .eps = 1e-8, .step = step, .grad_scale = 1};
    ax_batch batch = {0};
    ax_tensor logits, stats, none;
    void *sum;
    AX_TRY(ax_frame_begin(t->frame, "train", AX_MODE_TRAIN, &batch));
    AX_TRY(load(t, size, step, &batch));
    AX_TRY(ax_frame_scratch(t->frame, AX_F64, 1, &sum));
    AX_TRY(ax_run_fill(t->ctx->stream, &(ax_fill_args){.n = 1, .y = sum, .dtype = AX_F64}));
    AX_TRY(ax_param_set_zero_grad(t->params));
    AX_TRY(ax_layer_forward(t->net, t->frame, NULL, &logits));
    AX_TRY(ax_op_cross_entropy(t->frame, &logits, &batch.targets, sum, &stats));
    AX_TRY(ax_op_cross_entropy_grad(t->frame, &logits, &batch.targets, &stats, 1.0 / (B * T)));
    AX_TRY(ax_layer_backward(t->net, t->frame, &logits, &none));
    AX_TRY(ax_param_set_sync_grad(t->params));
    AX_TRY(ax_optim_step(t->optim, &hyper, t->params));
    return ax_copy_out(t->ctx->stream, loss, sum, sizeof *loss);
}

static ax_status train(trainer *t, const char *path, double *loss)
{
    size_t size;
    AX_TRY(ax_file_read(path, &t->text, &size));
    AX_CHECK(size > 2 * T, AX_ERR_DATA, "%s: a text of %zu bytes is too short", path, size);
    AX_TRY(ax_comm_self_create(&t->self));
    AX_TRY(ax_ctx_create(t->self, (ax_grid_size){1, 1, 1, 1, 1}, "cpu", 1, AX_F32, 1234, &t->ctx));
    AX_TRY(build(t->ctx, &t->net));
    AX_TRY(ax_optim_find("adamw", &t->optim));
    AX_TRY(ax_layer_param_set(t->net, t->optim->slots, &t->params));
    AX_TRY(ax_param_set_init(t->params));
    AX_TRY(ax_frame_create(t->ctx, FRAME, &t->frame));
    for (int step = 1; step <= STEPS; step++) {
        AX_TRY(train_step(t, size, step, loss));
        if (step == 1 || step % 20 == 0)
            printf("step %3d  loss %.4f\n", step, *loss / (B * T));
    }
    return AX_OK;
}

int main(int argc, char **argv)
{
    trainer t = {0};
    double loss = 0;
    ax_status status = train(&t, argc > 1 ? argv[1] : __FILE__, &loss);
    if (status != AX_OK)
        fprintf(stderr, "charlm: %s\n", ax_error_message());
    ax_frame_destroy(&t.frame);
    ax_param_set_destroy(&t.params);
    ax_layer_destroy(&t.net);
    ax_ctx_destroy(&t.ctx);
    ax_comm_destroy(&t.self);
    free(t.text);
    return status != AX_OK ? (int)status : !(loss < B * T * GUESS / 2);
}
