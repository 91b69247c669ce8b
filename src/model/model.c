/* Builds a model and runs it forward and backward. */
#include "model/family.h"

#include <math.h>
#include <stdlib.h>

static ax_status check_experts(const ax_model_config *c)
{
    const ax_model_experts *e = &c->experts;
    if (!e->n && !(c->family && ax_family_has(c->family, "model.experts")))
        return AX_OK;
    AX_CHECK(e->n > 0 && e->n <= AX_EXPERTS_MAX, AX_ERR_USAGE,
             "the number of experts, %lld, is out of range: it may be 1 to %d", (long long)e->n,
             AX_EXPERTS_MAX);
    AX_CHECK(e->top_k >= 1 && e->top_k <= e->n, AX_ERR_USAGE,
             "each token chooses %lld experts of %lld: it may choose 1 to %lld", (long long)e->top_k,
             (long long)e->n, (long long)e->n);
    AX_CHECK(e->ffn >= 0 && ax_model_config_expert_ffn(c) <= AX_FFN_MAX / e->n, AX_ERR_USAGE,
             "the inner width of an expert, %lld, is out of range: %lld experts may have 1 to %lld",
             (long long)e->ffn, (long long)e->n, (long long)(AX_FFN_MAX / e->n));
    AX_CHECK(e->step >= 1, AX_ERR_USAGE, "the step from sparse block to sparse block, %lld, is not positive",
             (long long)e->step);
    AX_CHECK(e->balance >= 0 && e->balance <= AX_ROUTER_LOSS_MAX && e->z_loss >= 0 &&
                 e->z_loss <= AX_ROUTER_LOSS_MAX,
             AX_ERR_USAGE, "the coefficients of the routers' losses, %g and %g, must be from 0 to %g",
             e->balance, e->z_loss, AX_ROUTER_LOSS_MAX);
    AX_CHECK(e->capacity >= 0, AX_ERR_USAGE, "the capacity of experts, %g, must not be negative",
             e->capacity);
    return AX_OK;
}

ax_status ax_model_config_check(const ax_model_config *c)
{
    AX_CHECK(c->layers > 0 && c->hidden > 0 && c->heads > 0 && c->ffn > 0 && c->vocab > 0 && c->seq_len > 0,
             AX_ERR_USAGE,
             "the numbers of layers (%lld), heads (%lld) and positions (%lld), the hidden width (%lld), the "
             "inner width of the MLP (%lld) and the size of the vocabulary (%lld) must all be positive",
             (long long)c->layers, (long long)c->heads, (long long)c->seq_len, (long long)c->hidden,
             (long long)c->ffn, (long long)c->vocab);
    const struct {
        const char *name;
        int64_t value, most;
    } extents[] = {
        {"number of layers", c->layers, AX_LAYERS_MAX},   {"hidden width", c->hidden, AX_HIDDEN_MAX},
        {"number of heads", c->heads, AX_HIDDEN_MAX},     {"number of key heads", c->kv_heads, AX_HIDDEN_MAX},
        {"inner width of the MLP", c->ffn, AX_FFN_MAX},   {"size of the vocabulary", c->vocab, AX_VOCAB_MAX},
        {"number of positions", c->seq_len, AX_VOCAB_MAX}};
    for (size_t i = 0; i < AX_COUNT(extents); i++)
        AX_CHECK(extents[i].value <= extents[i].most, AX_ERR_USAGE,
                 "the %s, %lld, is above the maximum, %lld", extents[i].name, (long long)extents[i].value,
                 (long long)extents[i].most);
    AX_CHECK(c->head_dim > 0 || c->hidden % c->heads == 0, AX_ERR_USAGE,
             "the hidden width, %lld, is not a multiple of the number of heads, %lld", (long long)c->hidden,
             (long long)c->heads);
    AX_CHECK(c->head_dim >= 0 && c->head_dim <= AX_HIDDEN_MAX / c->heads, AX_ERR_USAGE,
             "the width of a head, %lld, is out of range: with %lld heads it may be 1 to %lld",
             (long long)c->head_dim, (long long)c->heads, (long long)(AX_HIDDEN_MAX / c->heads));
    AX_CHECK(c->kv_heads > 0 && c->heads % c->kv_heads == 0, AX_ERR_USAGE,
             "the number of heads, %lld, is not a multiple of the number of key heads, %lld",
             (long long)c->heads, (long long)c->kv_heads);
    AX_TRY(check_experts(c));
    AX_TRY(ax_rope_check(&c->rope, ax_model_config_head_dim(c)));
    AX_CHECK(c->window >= 0, AX_ERR_USAGE, "the attention window, %lld, is negative; 0 means no window",
             (long long)c->window);
    const double rate[] = {c->dropout.embd, c->dropout.resid, c->dropout.attn};
    static const char *const of[] = {"embeddings", "residual branches", "attention"};
    for (size_t i = 0; i < AX_COUNT(rate); i++)
        AX_CHECK(rate[i] >= 0 && rate[i] <= 1, AX_ERR_USAGE, "the dropout rate of %s, %g, is not in [0, 1]",
                 of[i], rate[i]);
    return AX_OK;
}

int64_t ax_model_config_head_dim(const ax_model_config *c)
{
    return c->head_dim ? c->head_dim : c->hidden / c->heads;
}

int64_t ax_model_config_positions(const ax_model_config *c)
{
    const ax_rope_config *rope = &c->rope;
    const double length = rope->kind == AX_ROPE_LINEAR   ? (double)c->seq_len
                          : rope->kind >= AX_ROPE_LLAMA3 ? (double)rope->original
                                                         : 0;
    return rope->theta > 0 ? ax_max(c->seq_len, (int64_t)fmin(rope->factor * length, AX_VOCAB_MAX))
                           : c->seq_len;
}

bool ax_model_config_is_sparse(const ax_model_config *c, int64_t block)
{
    const ax_model_experts *e = &c->experts;
    return e->n > 0 && (block + 1) % e->step == 0 && !(e->dense && e->dense[block] == '1');
}

int64_t ax_model_config_expert_ffn(const ax_model_config *c)
{
    return c->experts.ffn ? c->experts.ffn : c->ffn;
}

int64_t ax_model_config_sparse_blocks(const ax_model_config *c, int64_t end)
{
    int64_t n = 0;
    for (int64_t i = 0; i < end; i++)
        n += ax_model_config_is_sparse(c, i);
    return n;
}

int64_t ax_model_config_default_ffn(const ax_model_config *c)
{
    return c->gated ? ax_round_up(8 * c->hidden / 3, 256) : 4 * c->hidden;
}

int64_t ax_model_config_window(const ax_model_config *c, int64_t layer)
{
    return c->window_layers && c->window_layers[layer] == '0' ? 0 : c->window;
}

/* Sets *all to the number of elements of the routers, the experts, and the MLPs of the other blocks, *active
 * to that of those that a token uses; 0 if the model has no experts. */
static void count_experts(const ax_model_config *c, int64_t *active, int64_t *all)
{
    const ax_model_experts *x = &c->experts;
    const int64_t d = c->hidden, expert = 3 * ax_model_config_expert_ffn(c) * d,
                  sparse = ax_model_config_sparse_blocks(c, c->layers),
                  rest = x->n ? sparse * x->n * d + (c->layers - sparse) * 3 * c->ffn * d : 0;
    *active = rest + sparse * x->top_k * expert;
    *all = rest + sparse * x->n * expert;
}

void ax_model_config_params(const ax_model_config *c, int64_t *total, int64_t *matmul)
{
    int64_t d = c->hidden, out, in, block = 0;
    int64_t norm =
        c->norm == AX_NORM_LAYER ? 2 * d : d; /* LayerNorm has weight and bias, RMSNorm only a weight */
    const int64_t e = ax_model_config_head_dim(c);
    int64_t vectors = 2 * norm + (c->head_norms ? 2 * e : c->wide_norms ? (c->heads + c->kv_heads) * e : 0);
    for (int m = 0; m < AX_MATRIX_OF_BLOCK; m++)
        if (ax_model_config_matrix(c, (ax_matrix)m, &out, &in)) {
            bool none = m < AX_MATRIX_PROJ   ? c->no_bias.qkv
                        : m > AX_MATRIX_PROJ ? c->no_bias.mlp
                                             : c->no_bias.proj;
            block += out * in;
            vectors += none ? 0 : out;
        }
    const int64_t positions = c->rope.theta > 0 ? 0 : c->seq_len;
    int64_t active, experts;
    count_experts(c, &active, &experts);
    *matmul = c->layers * block + active + c->vocab * d;
    *total = c->layers * (block + vectors) + experts + (c->tie ? 1 : 2) * c->vocab * d + positions * d + norm;
}

/* Returns the number of blocks before the first trained parameter: these have no backward. */
static int64_t blocks_without_backward(const ax_model_config *c)
{
    int64_t i = 0;
    bool found = !ax_model_config_is_adapted(c) || c->low_rank[AX_MATRIX_EMBED].rank;
    for (; !found && i < c->layers; i += !found)
        for (int m = 0; m < AX_MATRIX_OF_BLOCK; m++)
            found |= ax_model_config_update(c, (ax_matrix)m, i)->rank > 0;
    return i;
}

/* Returns the training FLOPs per token of the low-rank updates. Factor A of the embedding is no operand of a
 * GEMM. */
static double flops_of_updates(const ax_model_config *c)
{
    return 6.0 * (double)(ax_model_config_low_rank_params(c) - c->low_rank[AX_MATRIX_EMBED].rank * c->vocab);
}

double ax_model_config_flops_per_token(const ax_model_config *c, int64_t seq_len)
{
    int64_t total, matmul;
    ax_model_config_params(c, &total, &matmul);
    /* Of each element of a matrix: 2 for forward, 2 for the gradient of the input, and 2 for the gradient of
     * the matrix, unless the matrix is frozen because of low-rank updates. */
    double width = (double)(c->heads * ax_model_config_head_dim(c)), t = (double)seq_len;
    double trained = ax_model_config_is_adapted(c) ? 4 : 6, block = (double)(matmul - c->vocab * c->hidden);
    int64_t forward_only = blocks_without_backward(c);
    double flops =
        trained * (double)matmul - (trained - 2) * block * (double)forward_only / (double)c->layers;
    for (int64_t i = 0; i < c->layers; i++) {
        double w = (double)ax_model_config_window(c, i);
        /* seen: 2 · the mean number of positions to which a position attends */
        double seen = w > 0 && w < t ? w * (2 - w / t) : t;
        flops += (i < forward_only ? 2.0 : 6.0) * width * seen;
    }
    return flops + flops_of_updates(c);
}

ax_status ax_model_create(ax_ctx *ctx, const ax_model_config *config, const ax_model_use *use, ax_model **out)
{
    AX_TRY(ax_model_config_check(config));
    ax_model *model;
    AX_TRY(ax_calloc(1, sizeof *model, &model));
    model->ctx = ctx;
    ax_status status = ax_model_config_copy(config, &model->config);
    if (status == AX_OK) {
        model->root = ax_sequence(ctx, "model");
        model->body = ax_sequence(ctx, "body");
        status = ax_layer_add(model->root, model->body);
    }
    if (status == AX_OK)
        status = ax_stage_plan(model, use);
    if (status == AX_OK)
        status = ax_decoder_build(model, use);
    if (status == AX_OK)
        ax_stage_place(model);
    if (status != AX_OK) {
        ax_model_destroy(&model);
        return status;
    }
    *out = model;
    return AX_OK;
}

void ax_model_destroy(ax_model **model)
{
    if (!*model)
        return;
    ax_layer_destroy(&(*model)->root);
    ax_model_config_fini(&(*model)->config);
    free((*model)->cut);
    free((*model)->chunk);
    free(*model);
    *model = NULL;
}

ax_status ax_model_forward(ax_model *model, int chunk, ax_frame *frame, ax_tensor *y)
{
    const ax_batch *batch = ax_frame_batch(frame);
    *y = batch->x;
    for (int i = model->chunk[chunk].first; i < model->chunk[chunk].end; i++) {
        const ax_tensor x = *y;
        AX_TRY(ax_layer_forward(model->body->child[i], frame, &x, y));
    }
    return AX_OK;
}

ax_status ax_model_logits(ax_model *model, ax_frame *frame, bool last, ax_tensor *logits)
{
    ax_tensor x, at;
    AX_TRY(ax_model_forward(model, model->chunks - 1, frame, &x));
    at = x;
    if (last)
        AX_TRY(ax_op_last_position(frame, &x, &at));
    return ax_layer_forward(model->head, frame, &at, logits);
}

ax_status ax_model_loss(ax_model *model, ax_frame *frame, double *total, const ax_scores *scores)
{
    ax_tensor logits, stats;
    AX_TRY(ax_model_logits(model, frame, false, &logits));
    AX_TRY(ax_op_cross_entropy(frame, &logits, &ax_frame_batch(frame)->targets, total, scores, &stats));
    AX_TRY(ax_frame_save(frame, &logits));
    return ax_frame_save(frame, &stats);
}

static ax_status head_backward(ax_model *model, ax_frame *frame, ax_tensor *dx)
{
    ax_tensor logits, stats;
    AX_TRY(ax_frame_restore(frame, &stats));
    AX_TRY(ax_frame_restore(frame, &logits));
    AX_TRY(ax_op_cross_entropy_grad(frame, &logits, &ax_frame_batch(frame)->targets, &stats, 1));
    return ax_layer_backward(model->head, frame, &logits, dx);
}

ax_status ax_model_backward(ax_model *model, int chunk, ax_frame *frame, const ax_tensor *dy, ax_tensor *dx)
{
    if (ax_model_ends(model, chunk))
        AX_TRY(head_backward(model, frame, dx));
    else
        *dx = *dy;
    /* In the first part of the model (a part is a chunk of a pipeline stage), backward ends with the first
     * layer that is trained. Every other part computes dx, which is sent to the part before it. */
    int first = ax_model_begins(model, chunk) ? ax_layer_first_trained(model->body) : -1;
    for (int i = model->chunk[chunk].end - 1; i >= ax_max(model->chunk[chunk].first, first); i--) {
        const ax_tensor in = *dx;
        AX_TRY(ax_layer_backward(model->body->child[i], frame, &in, i == first ? NULL : dx));
    }
    if (ax_model_begins(model, chunk))
        *dx = (ax_tensor){0};
    return AX_OK;
}
