/* Building a model and running it forward and backward. */
#include "model/family.h"

#include <stdlib.h>

ax_status ax_model_config_check(const ax_model_config *c)
{
    AX_CHECK(c->layers > 0 && c->hidden > 0 && c->heads > 0 && c->ffn > 0 && c->vocab > 0 && c->seq_len > 0,
             AX_ERR_USAGE, "layers, hidden, heads, ffn, vocab and seq_len must be positive");
    const struct {
        const char *name;
        int64_t value, most;
    } extents[] = {{"layers", c->layers, AX_LAYERS_MAX}, {"hidden", c->hidden, AX_HIDDEN_MAX},
                   {"heads", c->heads, AX_HIDDEN_MAX},   {"kv_heads", c->kv_heads, AX_HIDDEN_MAX},
                   {"ffn", c->ffn, AX_FFN_MAX},          {"vocab", c->vocab, AX_VOCAB_MAX},
                   {"seq_len", c->seq_len, AX_VOCAB_MAX}};
    for (size_t i = 0; i < AX_COUNT(extents); i++)
        AX_CHECK(extents[i].value <= extents[i].most, AX_ERR_USAGE, "%s = %lld is above the maximum, %lld",
                 extents[i].name, (long long)extents[i].value, (long long)extents[i].most);
    AX_CHECK(c->hidden % c->heads == 0, AX_ERR_USAGE, "hidden = %lld is not a multiple of heads = %lld",
             (long long)c->hidden, (long long)c->heads);
    const double rate[] = {c->dropout.embd, c->dropout.resid, c->dropout.attn};
    static const char *const of[] = {"embeddings", "residual branches", "attention"};
    for (size_t i = 0; i < AX_COUNT(rate); i++)
        AX_CHECK(rate[i] >= 0 && rate[i] <= 1, AX_ERR_USAGE, "dropout of %s = %g is not in [0, 1]", of[i],
                 rate[i]);
    return AX_OK;
}

void ax_model_config_params(const ax_model_config *c, int64_t *total, int64_t *matmul)
{
    int64_t d = c->hidden, kv = c->hidden / c->heads * c->kv_heads,
            block = 2 * d * d + 2 * d * kv + 2 * d * c->ffn;
    int64_t biases = d + 2 * kv + d + c->ffn + d + 4 * d;
    *matmul = c->layers * block + c->vocab * d;
    *total = c->layers * (block + biases) + (c->tie ? 1 : 2) * c->vocab * d + c->seq_len * d + 2 * d;
}

double ax_model_config_flops_per_token(const ax_model_config *c, int64_t seq_len)
{
    int64_t total, matmul;
    ax_model_config_params(c, &total, &matmul);
    return 6.0 * (double)matmul + 6.0 * (double)c->layers * (double)c->hidden * (double)seq_len;
}

ax_status ax_model_create(ax_ctx *ctx, const ax_model_config *config, int64_t recompute, ax_model **out)
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
        status = config->family->build(model, recompute);
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
    free(*model);
    *model = NULL;
}

ax_status ax_model_logits(ax_model *model, ax_frame *frame, bool last, ax_tensor *logits)
{
    ax_tensor x, at;
    AX_TRY(ax_layer_forward(model->body, frame, NULL, &x));
    at = x;
    if (last)
        AX_TRY(ax_op_last_position(frame, &x, &at));
    return ax_layer_forward(model->head, frame, &at, logits);
}

ax_status ax_model_loss(ax_model *model, ax_frame *frame, double *total)
{
    ax_tensor logits, stats;
    AX_TRY(ax_model_logits(model, frame, false, &logits));
    AX_TRY(ax_op_cross_entropy(frame, &logits, &ax_frame_batch(frame)->targets, total, &stats));
    AX_TRY(ax_frame_save(frame, &logits));
    return ax_frame_save(frame, &stats);
}

ax_status ax_model_backward(ax_model *model, ax_frame *frame)
{
    ax_tensor logits, stats, dx, none;
    AX_TRY(ax_frame_restore(frame, &stats));
    AX_TRY(ax_frame_restore(frame, &logits));
    AX_TRY(ax_op_cross_entropy_grad(frame, &logits, &ax_frame_batch(frame)->targets, &stats, 1));
    AX_TRY(ax_layer_backward(model->head, frame, &logits, &dx));
    return ax_layer_backward(model->body, frame, &dx, &none);
}
