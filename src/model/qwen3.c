/* Qwen 3 (Yang et al. 2025): Llama with an RMSNorm of each head of q and k, and optional sliding-window
 * attention in some layers. */
#include "model/llama_files.h"

static ax_status qwen3_read(const json_t *json, const char *path, ax_model_config *c)
{
    c->seq_len = 32768; /* the defaults of Qwen3Config */
    c->kv_heads = 32;
    c->head_dim = 128;
    return ax_qwen_read(json, path, c);
}

static const ax_family_key names[] = {AX_LLAMA_NAMES, AX_WINDOW_NAME};

static const ax_key_rule rules[] = {
    AX_NO_BIAS("mlp_bias"), {"qk_norm", "true null", NULL}, {"use_qk_norm", "true null", NULL}};

const ax_family ax_family_qwen3 = {
    .name = "qwen3",
    .architecture = "Qwen3ForCausalLM",
    .defaults = {AX_LLAMA_FACTS, .no_bias = {true, true, true}, .head_norms = true},
    .read = qwen3_read,
    .write = ax_qwen_write,
    AX_LLAMA_ARRAYS,
    .names = names,
    .n_names = AX_COUNT(names),
    .reads = AX_QWEN_READS " attention_bias",
    .rules = rules,
    .n_rules = AX_COUNT(rules)};
