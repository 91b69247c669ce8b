/* Llama 2 and 3 (Touvron et al. 2023): RMSNorm, rotary embeddings, grouped-query attention, SwiGLU, and
 * biases only if config.json asks for them. Also reads models by other authors whose config.json names this
 * family, such as TinyLlama and DeepSeek-Coder. */
#include "model/llama_files.h"

static ax_status llama_read(const json_t *json, const char *path, ax_model_config *c)
{
    c->seq_len = 2048; /* LlamaConfig's default */
    AX_TRY(ax_llama_read(json, path, c));
    return ax_llama_window_read(json, path, c);
}

static ax_status llama_write(const ax_model_config *c, json_t *json)
{
    json_object_del(json, "layer_types");
    return ax_llama_write(c, json);
}

static const ax_family_key names[] = {AX_LLAMA_NAMES};

const ax_family ax_family_llama = {.name = "llama",
                                   .architecture = "LlamaForCausalLM",
                                   .defaults = {AX_LLAMA_FACTS, .no_bias = {true, true, true}},
                                   .read = llama_read,
                                   .write = llama_write,
                                   AX_LLAMA_ARRAYS,
                                   .names = names,
                                   .n_names = AX_COUNT(names),
                                   .reads = AX_LLAMA_READS " attention_bias mlp_bias"};
