/* Builds the network of every family from an ax_model_config: token embedding, blocks of attention and MLP
 * (or experts) on a residual stream, a last norm, and the head. */
#include "model/family.h"

#include <math.h>
#include <stdio.h>

/* Prints "h.<block>.<part>" into `out` and returns `out`. */
static const char *named(char out[64], int64_t block, const char *part)
{
    snprintf(out, 64, "h.%lld.%s", (long long)block, part);
    return out;
}

/* A decoder while it is built. */
typedef struct build {
    ax_model *m;
    ax_model_use use;
    const ax_layer *first; /* attention layer of block 0, whose rotary-embedding table the other blocks use */
} build;

/* Adds to `residual` the branch x += layers(x), where the n layers run in sequence. The branch gets the name
 * h.<i>.<name>. */
static ax_status add_branch(ax_model *m, ax_layer *residual, int64_t i, const char *name,
                            ax_layer *const *layers, int n)
{
    char text[64];
    return ax_layer_add(residual, ax_sequence_of(m->ctx, named(text, i, name), n, layers));
}

static ax_layer *norm(const ax_model *m, const char *name)
{
    const ax_model_config *c = &m->config;
    return c->norm == AX_NORM_RMS ? ax_rmsnorm(m->ctx, name, c->hidden, AX_ROLE_MODEL, c->norm_eps)
                                  : ax_layernorm(m->ctx, name, c->hidden, AX_ROLE_MODEL, c->norm_eps);
}

/* Returns the standard deviation of the initial weights of output projections (of attention and MLP). In
 * GPT-2 this is the deviation of other weights divided by sqrt(2 · layers), because the residual stream is
 * the sum of the outputs of 2 · layers such projections. */
static double projection_std(const ax_model_config *c)
{
    return c->plain_init ? c->init_std : c->init_std / sqrt(2.0 * (double)c->layers);
}

static ax_layer *attention(build *b, const char *name, int64_t i)
{
    const ax_model_config *c = &b->m->config;
    ax_layer *layer =
        ax_attention(b->m->ctx, name,
                     &(ax_attention_config){.width = c->hidden,
                                            .heads = c->heads,
                                            .kv_heads = c->kv_heads,
                                            .head_dim = c->head_dim,
                                            .window = ax_model_config_window(c, i),
                                            .init_std = c->init_std,
                                            .proj_init_std = projection_std(c),
                                            .dropout = c->dropout.attn,
                                            .no_bias = c->no_bias.qkv,
                                            .no_proj_bias = c->no_bias.proj,
                                            .head_norm_eps = c->head_norms || c->wide_norms ? c->norm_eps : 0,
                                            .wide_norms = c->wide_norms,
                                            .rope = c->rope,
                                            .positions = b->use.positions,
                                            .rope_from = c->rope.theta > 0 ? b->first : NULL});
    b->first = b->first ? b->first : layer;
    return layer;
}

static ax_layer *perceptron(const ax_model *m, const char *name)
{
    const ax_model_config *c = &m->config;
    return ax_mlp(m->ctx, name,
                  &(ax_mlp_config){.width = c->hidden,
                                   .ffn = c->ffn,
                                   .activation = c->activation,
                                   .init_std = c->init_std,
                                   .down_init_std = projection_std(c),
                                   .gated = c->gated,
                                   .no_bias = c->no_bias.mlp});
}

/* Returns the experts of block `i`. The losses of the routers are means over the sparse blocks. */
static ax_layer *experts(const build *b, const char *name, int64_t i)
{
    const ax_model_config *c = &b->m->config;
    const double sparse = (double)ax_model_config_sparse_blocks(c, c->layers);
    return ax_moe(b->m->ctx, name,
                  &(ax_moe_config){.width = c->hidden,
                                   .ffn = ax_model_config_expert_ffn(c),
                                   .experts = c->experts.n,
                                   .top_k = c->experts.top_k,
                                   .renormalize = c->experts.renormalize,
                                   .activation = c->activation,
                                   .init_std = c->init_std,
                                   .down_init_std = projection_std(c),
                                   .balance = c->experts.balance / sparse,
                                   .z = c->experts.z_loss / sparse,
                                   .capacity = c->experts.capacity,
                                   .index = ax_model_config_sparse_blocks(c, i)});
}

/* Adds block `i` to the layer `residual`: x += attn(norm1(x)); x += mlp(norm2(x)). */
static ax_status add_block(build *b, ax_layer *residual, int64_t i)
{
    ax_model *m = b->m;
    const double p = m->config.dropout.resid;
    char name[3][64];
    ax_layer *const attn[] = {norm(m, named(name[0], i, "norm1")), attention(b, named(name[1], i, "attn"), i),
                              ax_dropout(m->ctx, named(name[2], i, "attn.drop"), p)};
    AX_TRY(add_branch(m, residual, i, "attn_branch", attn, AX_COUNT(attn)));
    const bool sparse = ax_model_config_is_sparse(&m->config, i);
    ax_layer *const mlp[] = {norm(m, named(name[0], i, "norm2")),
                             sparse ? experts(b, named(name[1], i, "moe"), i)
                                    : perceptron(m, named(name[1], i, "mlp")),
                             ax_dropout(m->ctx, named(name[2], i, "mlp.drop"), p)};
    return add_branch(m, residual, i, "mlp_branch", mlp, AX_COUNT(mlp));
}

/* Adds the blocks in segments. Each segment is one residual layer. Without recomputation, a segment has all
 * blocks of one chunk (the adjacent blocks that a pipeline stage runs together). With recomputation, a
 * segment has up to `use.recompute` blocks, and only the segment's input is saved for backward. */
static ax_status add_blocks(build *b)
{
    ax_model *m = b->m;
    const bool recompute = b->use.recompute > 0;
    const int64_t length = recompute ? b->use.recompute : m->config.layers;
    for (int64_t i = 0; i < m->config.layers;) {
        int64_t end = ax_stage_segment(m, i, length);
        ax_stage_note(m, i);
        char name[64];
        ax_layer *segment = ax_residual(m->ctx, named(name, i, "segment"));
        ax_status status = segment ? AX_OK : AX_ERR_MEMORY;
        for (; status == AX_OK && i < end; i++)
            status = add_block(b, segment, i);
        if (status != AX_OK) {
            ax_layer_destroy(&segment);
            return status;
        }
        AX_TRY(ax_layer_add(m->body, recompute ? ax_recompute(m->ctx, name, segment) : segment));
    }
    ax_stage_note(m, m->config.layers);
    return AX_OK;
}

ax_status ax_decoder_build(ax_model *m, const ax_model_use *use)
{
    const ax_model_config *c = &m->config;
    build b = {m, *use, NULL};
    b.use.positions = use->positions ? use->positions : c->seq_len;
    ax_layer *embed = ax_embedding(m->ctx, "embed",
                                   &(ax_embedding_config){.vocab = c->vocab,
                                                          .positions = c->rope.theta > 0 ? 0 : c->seq_len,
                                                          .width = c->hidden,
                                                          .init_std = c->init_std});
    AX_TRY(ax_layer_add(m->body, embed));
    AX_TRY(ax_layer_add(m->body, ax_dropout(m->ctx, "embed.drop", c->dropout.embd)));
    AX_TRY(add_blocks(&b));
    AX_TRY(ax_layer_add(m->body, norm(m, "norm")));
    m->head = ax_linear(m->ctx, "head",
                        &(ax_linear_config){.in = c->hidden,
                                            .out = c->vocab,
                                            .in_role = AX_ROLE_MODEL,
                                            .out_role = AX_ROLE_VOCAB,
                                            .init_std = c->init_std,
                                            .no_bias = true,
                                            .tied = c->tie ? embed->param[0] : NULL});
    AX_TRY(ax_layer_add(m->root, m->head));
    AX_TRY(ax_key_map_apply(m->root, c->family));
    return ax_low_rank_build(m);
}
