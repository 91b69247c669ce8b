/* Llama 2 and 3 (Touvron et al. 2023): RMSNorm, rotary embeddings, grouped-query attention, SwiGLU, no
 * biases. Also reads models by other authors whose config.json names this family, such as TinyLlama and
 * DeepSeek-Coder. */
#include "model/llama_files.h"

static ax_status llama_read(const json_t *json, const char *path, ax_model_config *c)
{
    c->seq_len = 2048; /* LlamaConfig's default */
    AX_TRY(ax_llama_refuse(json, path, "attention_bias"));
    AX_TRY(ax_llama_refuse(json, path, "mlp_bias"));
    return ax_llama_read(json, path, c);
}

static const ax_family_key names[] = {AX_LLAMA_NAMES};

const ax_family ax_family_llama = {.name = "llama",
                                   .architecture = "LlamaForCausalLM",
                                   .defaults = {AX_LLAMA_FACTS, .biases = AX_BIASES_NONE},
                                   .read = llama_read,
                                   .write = ax_llama_write,
                                   AX_LLAMA_ARRAYS,
                                   .names = names,
                                   .n_names = AX_COUNT(names)};
