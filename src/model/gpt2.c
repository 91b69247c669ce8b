/* GPT-2 (Radford et al. 2019): learned positions, pre-LayerNorm, GELU, biases in all layers, and a head tied
 * to the token embedding. In its weight files q, k and v are concatenated in c_attn, and weights of linear
 * layers are stored as [in, out] (Conv1D). */
#include "model/family.h"

#include <string.h>

/* Columns: parameter; array in the weight files (%d: number of the block); whether the array is transposed;
 * which part of the array the parameter is, and of how many (c_attn has q, k and v). */
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

/* Patterns of arrays in weight files that are not loaded as parameters. Some writers store the head although
 * it is tied; if it differs from the token embedding, the model is read as untied. Old files have the causal
 * masks. */
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
        word ? word : "(not a string)");
}

/* Returns the name of the activation in config.json, or NULL if GPT-2 has no name for it. */
static const char *activation_word(ax_activation kind)
{
    for (size_t i = 0; i < AX_COUNT(activations); i++)
        if (activations[i].kind == kind)
            return activations[i].word;
    return NULL;
}

static ax_status gpt2_read(const json_t *json, const char *path, ax_model_config *c)
{
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
    AX_TRY(ax_json_number(json, path, "layer_norm_epsilon", true, &c->norm_eps));
    AX_TRY(ax_json_number(json, path, "initializer_range", true, &c->init_std));
    return read_activation(json, path, &c->activation);
}

static ax_status gpt2_write(const ax_model_config *c, json_t *json)
{
    const char *word = activation_word(c->activation);
    AX_CHECK(word, AX_ERR_USAGE,
             "models of family gpt2 have the activation gelu_new or gelu; their config.json has no word for "
             "another one");
    AX_CHECK(c->kv_heads == c->heads && ax_model_config_head_dim(c) * c->heads == c->hidden, AX_ERR_USAGE,
             "config.json of GPT-2 has no key for a number of key heads or a size of heads: use kv_heads = "
             "heads and head_dim = hidden / heads");
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
    AX_CHECK(!failed, AX_ERR_MEMORY, "not enough memory for the text of the model's config.json");
    return AX_OK;
}

/* Columns: key of config.json; configuration key. */
static const ax_family_key names[] = {{"n_layer", "model.layers"},
                                      {"n_embd", "model.hidden"},
                                      {"n_head", "model.heads"},
                                      {"n_inner", "model.ffn"},
                                      {"activation_function", "model.activation"},
                                      {"layer_norm_epsilon", "model.norm_eps"},
                                      {"n_positions", "model.seq_len"},
                                      {"initializer_range", "model.init_std"},
                                      {"embd_pdrop", "model.embd_dropout"},
                                      {"resid_pdrop", "model.resid_dropout"},
                                      {"attn_pdrop", "model.attn_dropout"}};

/* Other names of keys in transformers, and values that are implemented. */
static const ax_key_rule rules[] = {{"num_hidden_layers", NULL, "n_layer"},
                                    {"hidden_size", NULL, "n_embd"},
                                    {"num_attention_heads", NULL, "n_head"},
                                    {"max_position_embeddings", NULL, "n_positions"},
                                    {"scale_attn_weights", "true", NULL},
                                    {"scale_attn_by_inverse_layer_idx", "false null", NULL},
                                    {"layer_types", "null", NULL}};

const ax_family ax_family_gpt2 = {
    .name = "gpt2",
    .architecture = "GPT2LMHeadModel",
    .defaults = {.norm_eps = 1e-5, .init_std = 0.02, .activation = AX_GELU_TANH, .tie = true},
    .read = gpt2_read,
    .write = gpt2_write,
    .keys = keys,
    .n_keys = AX_COUNT(keys),
    .names = names,
    .n_names = AX_COUNT(names),
    .reads =
        "n_layer n_embd n_head n_positions n_inner activation_function embd_pdrop resid_pdrop attn_pdrop "
        "layer_norm_epsilon initializer_range",
    /* reorder_and_upcast_attn computes attention in fp32, as the program always does; n_ctx is of old
     * versions, which did not use it; the rest is for classifiers, or of other families */
    .idle = "reorder_and_upcast_attn n_ctx summary_type summary_use_proj summary_activation "
            "summary_proj_to_labels summary_first_dropout summary_last_dropout attention_dropout head_dim "
            "rope_theta rope_scaling rope_parameters partial_rotary_factor original_max_position_embeddings",
    .rules = rules,
    .n_rules = AX_COUNT(rules),
    .head = "lm_head.weight",
    .table = "transformer.wte.weight",
    .prefix = "transformer.",
    .ignored = ignored,
    .n_ignored = AX_COUNT(ignored)};
