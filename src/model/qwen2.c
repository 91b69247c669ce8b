/* Qwen 2 and 2.5 (Yang et al. 2024): Llama with biases of q, k and v, and optional sliding-window attention
 * in some layers. */
#include "model/llama_files.h"

static ax_status qwen2_read(const json_t *json, const char *path, ax_model_config *c)
{
    c->seq_len = 32768; /* the defaults of Qwen2Config */
    c->kv_heads = 32;
    return ax_qwen_read(json, path, c);
}

static const ax_family_key names[] = {AX_LLAMA_NAMES, AX_WINDOW_NAME};

/* attention_bias is idle: the class in transformers has the biases of q, k and v, and no other, whatever it
 * is. */
static const ax_key_rule rules[] = {AX_NO_BIAS("mlp_bias"), {"qkv_bias", "true null", NULL}};

const ax_family ax_family_qwen2 = {.name = "qwen2",
                                   .architecture = "Qwen2ForCausalLM",
                                   .defaults = {AX_LLAMA_FACTS, .no_bias = {false, true, true}},
                                   .read = qwen2_read,
                                   .write = ax_qwen_write,
                                   AX_LLAMA_ARRAYS,
                                   .names = names,
                                   .n_names = AX_COUNT(names),
                                   .reads = AX_QWEN_READS,
                                   .idle = "attention_bias",
                                   .rules = rules,
                                   .n_rules = AX_COUNT(rules)};
