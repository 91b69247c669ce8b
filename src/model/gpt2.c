/* GPT-2 (Radford et al. 2019): learned positions, pre-LayerNorm, GELU, biases everywhere, the head tied to
 * the token embedding. In its files q, k and v are concatenated in c_attn, and linear weights are [in, out]
 * (Conv1D). */
#include "model/family.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Columns: name, key in the files (%d: block), transposed, part, number of parts. */
static const ax_key_map keys[] = {
    {"embed.tokens", "transformer.wte.weight", false, 0, 1},
    {"embed.positions", "transformer.wpe.weight", false, 0, 1},
    {"h.%d.norm1.weight", "transformer.h.%d.ln_1.weight", false, 0, 1},
    {"h.%d.norm1.bias", "transformer.h.%d.ln_1.bias", false, 0, 1},
    {"h.%d.attn.q.weight", "transformer.h.%d.attn.c_attn.weight", true, 0, 3},
    {"h.%d.attn.k.weight", "transformer.h.%d.attn.c_attn.weight", true, 1, 3},
    {"h.%d.attn.v.weight", "transformer.h.%d.attn.c_attn.weight", true, 2, 3},
    {"h.%d.attn.q.bias", "transformer.h.%d.attn.c_attn.bias", false, 0, 3},
    {"h.%d.attn.k.bias", "transformer.h.%d.attn.c_attn.bias", false, 1, 3},
    {"h.%d.attn.v.bias", "transformer.h.%d.attn.c_attn.bias", false, 2, 3},
    {"h.%d.attn.proj.weight", "transformer.h.%d.attn.c_proj.weight", true, 0, 1},
    {"h.%d.attn.proj.bias", "transformer.h.%d.attn.c_proj.bias", false, 0, 1},
    {"h.%d.norm2.weight", "transformer.h.%d.ln_2.weight", false, 0, 1},
    {"h.%d.norm2.bias", "transformer.h.%d.ln_2.bias", false, 0, 1},
    {"h.%d.mlp.up.weight", "transformer.h.%d.mlp.c_fc.weight", true, 0, 1},
    {"h.%d.mlp.up.bias", "transformer.h.%d.mlp.c_fc.bias", false, 0, 1},
    {"h.%d.mlp.down.weight", "transformer.h.%d.mlp.c_proj.weight", true, 0, 1},
    {"h.%d.mlp.down.bias", "transformer.h.%d.mlp.c_proj.bias", false, 0, 1},
    {"norm.weight", "transformer.ln_f.weight", false, 0, 1},
    {"norm.bias", "transformer.ln_f.bias", false, 0, 1},
    {"head.weight", "lm_head.weight", false, 0, 1},
};

/* Arrays in files that are not parameters: the head, which some writers store although it is tied (if it
 * differs from the token embedding, the model is read as untied), and the causal masks of old files. */
static const char *const ignored[] = {"lm_head.weight", "*h.*.attn.bias", "*h.*.attn.masked_bias"};

static const struct {
    const char *word;
    ax_activation kind;
} activations[] = {{"gelu_new", AX_GELU_TANH}, {"gelu_pytorch_tanh", AX_GELU_TANH}, {"gelu", AX_GELU_EXACT}};

static ax_status read_activation(const json_t *json, const char *path, ax_activation *out)
{
    const json_t *value = json_object_get(json, "activation_function");
    const char *word = value ? json_string_value(value) : "gelu_new";
    for (size_t i = 0; word && i < AX_COUNT(activations); i++)
        if (!strcmp(word, activations[i].word)) {
            *out = activations[i].kind;
            return AX_OK;
        }
    return ax_fail(
        AX_ERR_DATA,
        "%s: activation_function \"%s\" is not implemented; use gelu_new, gelu_pytorch_tanh or gelu", path,
        word ? word : "?");
}

/* Returns the word that config.json has for the activation, or NULL if GPT-2 has none for it. */
static const char *activation_word(ax_activation kind)
{
    for (size_t i = 0; i < AX_COUNT(activations); i++)
        if (activations[i].kind == kind)
            return activations[i].word;
    return NULL;
}

/* Refuses options of transformers' GPT2Config that change the network and are not implemented. */
static ax_status refuse(const json_t *json, const char *path)
{
    static const struct {
        const char *key;
        bool only;
    } fixed[] = {{"scale_attn_weights", true},
                 {"scale_attn_by_inverse_layer_idx", false},
                 {"add_cross_attention", false}};
    for (size_t i = 0; i < AX_COUNT(fixed); i++) {
        const json_t *value = json_object_get(json, fixed[i].key);
        AX_CHECK(!value || json_is_true(value) == fixed[i].only, AX_ERR_DATA,
                 "%s: %s = %s is not implemented", path, fixed[i].key, fixed[i].only ? "false" : "true");
    }
    return AX_OK;
}

static ax_status gpt2_read(const json_t *json, const char *path, ax_model_config *c)
{
    AX_TRY(refuse(json, path));
    AX_TRY(ax_json_int(json, path, "n_layer", false, &c->layers));
    AX_TRY(ax_json_int(json, path, "n_embd", false, &c->hidden));
    AX_TRY(ax_json_int(json, path, "n_head", false, &c->heads));
    AX_TRY(ax_json_int(json, path, "n_positions", false, &c->seq_len));
    AX_TRY(ax_json_int(json, path, "vocab_size", false, &c->vocab));
    c->kv_heads = c->heads;
    c->ffn = 4 * c->hidden;
    AX_TRY(ax_json_int(json, path, "n_inner", true, &c->ffn));
    c->dropout = (ax_model_dropout){0.1, 0.1, 0.1}; /* GPT2Config's default */
    AX_TRY(ax_json_number(json, path, "embd_pdrop", true, &c->dropout.embd));
    AX_TRY(ax_json_number(json, path, "resid_pdrop", true, &c->dropout.resid));
    AX_TRY(ax_json_number(json, path, "attn_pdrop", true, &c->dropout.attn));
    c->norm_eps = 1e-5;
    AX_TRY(ax_json_number(json, path, "layer_norm_epsilon", true, &c->norm_eps));
    c->init_std = 0.02;
    AX_TRY(ax_json_number(json, path, "initializer_range", true, &c->init_std));
    const json_t *tie = json_object_get(json, "tie_word_embeddings");
    c->tie = !tie || json_is_null(tie) || json_is_true(tie); /* the default is true */
    return read_activation(json, path, &c->activation);
}

static ax_status gpt2_write(const ax_model_config *c, json_t *json)
{
    const char *word = activation_word(c->activation);
    AX_CHECK(word, AX_ERR_USAGE, "config.json of GPT-2 has no word for the model's activation; use GELU");
    int failed =
        json_object_set_new(json, "n_layer", json_integer(c->layers)) |
        json_object_set_new(json, "n_embd", json_integer(c->hidden)) |
        json_object_set_new(json, "n_head", json_integer(c->heads)) |
        json_object_set_new(json, "n_positions", json_integer(c->seq_len)) |
        json_object_set_new(json, "n_inner", c->ffn == 4 * c->hidden ? json_null() : json_integer(c->ffn)) |
        json_object_set_new(json, "layer_norm_epsilon", json_real(c->norm_eps)) |
        json_object_set_new(json, "initializer_range", json_real(c->init_std)) |
        json_object_set_new(json, "activation_function", json_string(word)) |
        json_object_set_new(json, "embd_pdrop", json_real(c->dropout.embd)) |
        json_object_set_new(json, "resid_pdrop", json_real(c->dropout.resid)) |
        json_object_set_new(json, "attn_pdrop", json_real(c->dropout.attn));
    AX_CHECK(!failed, AX_ERR_MEMORY, "not enough memory for config.json");
    return AX_OK;
}

/* Prints "h.<block>.<part>" into `out` and returns it. */
static const char *named(char out[64], int64_t block, const char *part)
{
    snprintf(out, 64, "h.%lld.%s", (long long)block, part);
    return out;
}

/* x += layers(x) */
static ax_status add_branch(ax_model *m, ax_layer *residual, int64_t i, const char *name,
                            ax_layer *const *layers, int n)
{
    char text[64];
    return ax_layer_add(residual, ax_sequence_of(m->ctx, named(text, i, name), n, layers));
}

/* Adds x += attn(norm1(x)); x += mlp(norm2(x)). As in GPT-2, output projections are initialized with a
 * standard deviation smaller by sqrt(2·layers). */
static ax_status add_block(ax_model *m, ax_layer *residual, int64_t i)
{
    const ax_model_config *c = &m->config;
    double out_std = c->init_std / sqrt(2.0 * (double)c->layers);
    char a[64], b[64], d[64];
    ax_attention_config attention = {.width = c->hidden,
                                     .heads = c->heads,
                                     .init_std = c->init_std,
                                     .proj_init_std = out_std,
                                     .dropout = c->dropout.attn};
    ax_mlp_config perceptron = {.width = c->hidden,
                                .ffn = c->ffn,
                                .activation = c->activation,
                                .init_std = c->init_std,
                                .down_init_std = out_std};
    ax_layer *const attn[] = {
        ax_layernorm(m->ctx, named(a, i, "norm1"), c->hidden, AX_ROLE_MODEL, c->norm_eps),
        ax_attention(m->ctx, named(b, i, "attn"), &attention),
        ax_dropout(m->ctx, named(d, i, "attn.drop"), c->dropout.resid)};
    AX_TRY(add_branch(m, residual, i, "attn_branch", attn, AX_COUNT(attn)));
    ax_layer *const mlp[] = {
        ax_layernorm(m->ctx, named(a, i, "norm2"), c->hidden, AX_ROLE_MODEL, c->norm_eps),
        ax_mlp(m->ctx, named(b, i, "mlp"), &perceptron),
        ax_dropout(m->ctx, named(d, i, "mlp.drop"), c->dropout.resid)};
    return add_branch(m, residual, i, "mlp_branch", mlp, AX_COUNT(mlp));
}

/* Adds the blocks: one residual for all of them or, with recomputation, one for each group of `recompute`
 * blocks, of which only the input is stored. */
static ax_status add_blocks(ax_model *m, int64_t recompute)
{
    const int64_t length = recompute > 0 ? recompute : m->config.layers;
    for (int64_t i = 0; i < m->config.layers;) {
        int64_t end = ax_min(m->config.layers, i + length);
        char name[64];
        ax_layer *segment = ax_residual(m->ctx, named(name, i, "segment"));
        ax_status status = segment ? AX_OK : AX_ERR_MEMORY;
        for (; status == AX_OK && i < end; i++)
            status = add_block(m, segment, i);
        if (status != AX_OK) {
            ax_layer_destroy(&segment);
            return status;
        }
        AX_TRY(ax_layer_add(m->body, recompute > 0 ? ax_recompute(m->ctx, name, segment) : segment));
    }
    return AX_OK;
}

static ax_status gpt2_build(ax_model *m, int64_t recompute)
{
    const ax_model_config *c = &m->config;
    ax_layer *embed = ax_embedding(
        m->ctx, "embed",
        &(ax_embedding_config){
            .vocab = c->vocab, .positions = c->seq_len, .width = c->hidden, .init_std = c->init_std});
    AX_TRY(ax_layer_add(m->body, embed));
    AX_TRY(ax_layer_add(m->body, ax_dropout(m->ctx, "embed.drop", c->dropout.embd)));
    AX_TRY(add_blocks(m, recompute));
    AX_TRY(ax_layer_add(m->body, ax_layernorm(m->ctx, "norm", c->hidden, AX_ROLE_MODEL, c->norm_eps)));
    m->head = ax_linear(m->ctx, "head",
                        &(ax_linear_config){.in = c->hidden,
                                            .out = c->vocab,
                                            .in_role = AX_ROLE_MODEL,
                                            .out_role = AX_ROLE_VOCAB,
                                            .init_std = c->init_std,
                                            .no_bias = true,
                                            .tied = c->tie ? embed->param[0] : NULL});
    AX_TRY(ax_layer_add(m->root, m->head));
    return ax_key_map_apply(m->root, keys, AX_COUNT(keys));
}

const ax_family ax_family_gpt2 = {.name = "gpt2",
                                  .architecture = "GPT2LMHeadModel",
                                  .read = gpt2_read,
                                  .write = gpt2_write,
                                  .build = gpt2_build,
                                  .head = "lm_head.weight",
                                  .table = "transformer.wte.weight",
                                  .prefix = "transformer.",
                                  .ignored = ignored,
                                  .n_ignored = AX_COUNT(ignored)};
