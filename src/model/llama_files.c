/* The arrays in weight files and the keys of config.json that the families llama, mistral, ministral, qwen2
 * and qwen3 have in common. */
#include "model/llama_files.h"

#include <string.h>

/* Columns: parameter; array in the weight files (%d: number of the block); whether the array is transposed;
 * which part of the array the parameter is, and of how many. Rows for parameters that a family does not have
 * (biases, norms of heads) are unused. */
const ax_key_map ax_llama_keys[AX_LLAMA_KEYS] = {
    {"embed.tokens", "model.embed_tokens.weight", false, 0, 1},
    {"h.%d.norm1.weight", "model.layers.%d.input_layernorm.weight", false, 0, 1},
    {"h.%d.attn.q.weight", "model.layers.%d.self_attn.q_proj.weight", false, 0, 1},
    {"h.%d.attn.k.weight", "model.layers.%d.self_attn.k_proj.weight", false, 0, 1},
    {"h.%d.attn.v.weight", "model.layers.%d.self_attn.v_proj.weight", false, 0, 1},
    {"h.%d.attn.q.bias", "model.layers.%d.self_attn.q_proj.bias", false, 0, 1},
    {"h.%d.attn.k.bias", "model.layers.%d.self_attn.k_proj.bias", false, 0, 1},
    {"h.%d.attn.v.bias", "model.layers.%d.self_attn.v_proj.bias", false, 0, 1},
    {"h.%d.attn.proj.bias", "model.layers.%d.self_attn.o_proj.bias", false, 0, 1},
    {"h.%d.attn.q_norm.weight", "model.layers.%d.self_attn.q_norm.weight", false, 0, 1},
    {"h.%d.attn.k_norm.weight", "model.layers.%d.self_attn.k_norm.weight", false, 0, 1},
    {"h.%d.attn.proj.weight", "model.layers.%d.self_attn.o_proj.weight", false, 0, 1},
    {"h.%d.norm2.weight", "model.layers.%d.post_attention_layernorm.weight", false, 0, 1},
    {"h.%d.mlp.gate.weight", "model.layers.%d.mlp.gate_proj.weight", false, 0, 1},
    {"h.%d.mlp.up.weight", "model.layers.%d.mlp.up_proj.weight", false, 0, 1},
    {"h.%d.mlp.down.weight", "model.layers.%d.mlp.down_proj.weight", false, 0, 1},
    {"h.%d.mlp.gate.bias", "model.layers.%d.mlp.gate_proj.bias", false, 0, 1},
    {"h.%d.mlp.up.bias", "model.layers.%d.mlp.up_proj.bias", false, 0, 1},
    {"h.%d.mlp.down.bias", "model.layers.%d.mlp.down_proj.bias", false, 0, 1},
    {"norm.weight", "model.norm.weight", false, 0, 1},
    {"head.weight", "lm_head.weight", false, 0, 1},
};

/* Patterns of arrays in weight files that are not loaded as parameters: a head that is stored although it is
 * tied, and the frequencies of rotary embeddings in old files. */
const char *const ax_llama_ignored[AX_LLAMA_IGNORED] = {"lm_head.weight", "*rotary_emb.inv_freq"};

static ax_status read_activation(const json_t *json, const char *path)
{
    const json_t *value = json_object_get(json, "hidden_act");
    const char *word = value ? json_string_value(value) : "silu";
    AX_CHECK(word && (!strcmp(word, "silu") || !strcmp(word, "swish")), AX_ERR_DATA,
             "%s: hidden_act \"%s\" is not implemented; use silu", path, word ? word : "(not a string)");
    return AX_OK;
}

/* Reads an optional integer. Null sets *out to 0; a missing key leaves *out unchanged. */
static ax_status read_nullable(const json_t *json, const char *path, const char *key, int64_t *out)
{
    if (json_is_null(json_object_get(json, key)))
        *out = 0;
    return ax_json_int(json, path, key, true, out);
}

/* Reads attention_bias (of q, k, v and the output projection) and mlp_bias, where the family has them. */
static ax_status read_biases(const json_t *json, const char *path, ax_model_config *c)
{
    bool attention = false, mlp = false;
    if (ax_family_reads(c->family, "attention_bias")) {
        AX_TRY(ax_json_bool(json, path, "attention_bias", &attention));
        c->no_bias.qkv = c->no_bias.proj = !attention;
    }
    if (ax_family_reads(c->family, "mlp_bias")) {
        AX_TRY(ax_json_bool(json, path, "mlp_bias", &mlp));
        c->no_bias.mlp = !mlp;
    }
    return AX_OK;
}

/* Sets the keys that read_biases reads. Fails if the family's config.json cannot describe the biases. */
static ax_status write_biases(const ax_model_config *c, json_t *json)
{
    const ax_no_bias *lacks = &c->no_bias, usual = ax_model_config_defaults(c->family).no_bias;
    bool attention = ax_family_reads(c->family, "attention_bias"),
         mlp = ax_family_reads(c->family, "mlp_bias");
    AX_CHECK((attention ? lacks->qkv == lacks->proj : lacks->qkv == usual.qkv && lacks->proj == usual.proj) &&
                 (mlp || lacks->mlp == usual.mlp),
             AX_ERR_USAGE, "config.json of family %s has no keys for the biases that this model has",
             c->family->name);
    const bool failed =
        (attention && json_object_set_new(json, "attention_bias", json_boolean(!lacks->qkv))) ||
        (mlp && json_object_set_new(json, "mlp_bias", json_boolean(!lacks->mlp)));
    AX_CHECK(!failed, AX_ERR_MEMORY, "not enough memory for the text of the model's config.json");
    return AX_OK;
}

ax_status ax_llama_read(const json_t *json, const char *path, ax_model_config *c)
{
    AX_TRY(read_activation(json, path));
    AX_TRY(ax_json_int(json, path, "num_hidden_layers", false, &c->layers));
    AX_TRY(ax_json_int(json, path, "hidden_size", false, &c->hidden));
    AX_TRY(ax_json_int(json, path, "num_attention_heads", false, &c->heads));
    AX_TRY(ax_json_int(json, path, "intermediate_size", false, &c->ffn));
    AX_TRY(ax_json_int(json, path, "vocab_size", false, &c->vocab));
    AX_TRY(read_nullable(json, path, "num_key_value_heads", &c->kv_heads));
    AX_TRY(read_nullable(json, path, "head_dim", &c->head_dim));
    c->kv_heads = c->kv_heads ? c->kv_heads : c->heads;
    AX_TRY(ax_json_int(json, path, "max_position_embeddings", true, &c->seq_len));
    AX_TRY(ax_json_number(json, path, "rms_norm_eps", true, &c->norm_eps));
    AX_CHECK(c->norm_eps > 0, AX_ERR_DATA, "%s: rms_norm_eps = %g is not positive", path, c->norm_eps);
    AX_TRY(ax_json_number(json, path, "initializer_range", true, &c->init_std));
    AX_TRY(ax_json_number(json, path, "attention_dropout", true, &c->dropout.attn));
    AX_TRY(read_biases(json, path, c));
    return ax_rope_read(json, path, c);
}

ax_status ax_llama_write(const ax_model_config *c, json_t *json)
{
    AX_CHECK(c->activation == AX_SILU, AX_ERR_USAGE,
             "models of family %s have the activation silu; no other activation is implemented for them",
             c->family->name);
    int failed = json_object_set_new(json, "num_hidden_layers", json_integer(c->layers)) |
                 json_object_set_new(json, "hidden_size", json_integer(c->hidden)) |
                 json_object_set_new(json, "num_attention_heads", json_integer(c->heads)) |
                 json_object_set_new(json, "num_key_value_heads", json_integer(c->kv_heads)) |
                 json_object_set_new(json, "head_dim", json_integer(ax_model_config_head_dim(c))) |
                 json_object_set_new(json, "intermediate_size", json_integer(c->ffn)) |
                 json_object_set_new(json, "hidden_act", json_string("silu")) |
                 json_object_set_new(json, "max_position_embeddings", json_integer(c->seq_len)) |
                 json_object_set_new(json, "rms_norm_eps", json_real(c->norm_eps)) |
                 json_object_set_new(json, "initializer_range", json_real(c->init_std)) |
                 json_object_set_new(json, "attention_dropout", json_real(c->dropout.attn));
    AX_CHECK(!failed, AX_ERR_MEMORY, "not enough memory for the text of the model's config.json");
    AX_TRY(write_biases(c, json));
    return ax_rope_write(c, json);
}
