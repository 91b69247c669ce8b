/* Qwen 2 and 2.5 (Yang et al. 2024): Llama with biases of q, k and v, and optional sliding-window attention
 * in some layers. */
#include "model/llama_files.h"

static ax_status qwen2_read(const json_t *json, const char *path, ax_model_config *c)
{
    c->seq_len = 32768; /* the defaults of Qwen2Config */
    c->kv_heads = 32;
    AX_TRY(ax_llama_read(json, path, c));
    return ax_qwen_window_read(json, path, c);
}

static ax_status qwen2_write(const ax_model_config *c, json_t *json)
{
    AX_TRY(ax_qwen_window_write(c, json));
    return ax_llama_write(c, json);
}

static const ax_family_key names[] = {AX_LLAMA_NAMES, {"sliding_window", "model.window"}};

/* attention_bias is idle: the class in transformers has the biases of q, k and v, and no other, whatever it
 * is. */
static const ax_key_rule rules[] = {AX_NO_BIAS("mlp_bias"), {"qkv_bias", "true null", NULL}};

const ax_family ax_family_qwen2 = {.name = "qwen2",
                                   .architecture = "Qwen2ForCausalLM",
                                   .defaults = {AX_LLAMA_FACTS, .no_bias = {false, true, true}},
                                   .read = qwen2_read,
                                   .write = qwen2_write,
                                   AX_LLAMA_ARRAYS,
                                   .names = names,
                                   .n_names = AX_COUNT(names),
                                   .reads = AX_QWEN_READS,
                                   .idle = "attention_bias",
                                   .rules = rules,
                                   .n_rules = AX_COUNT(rules)};
