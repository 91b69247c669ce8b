/* Mistral (Jiang et al. 2023): Llama with sliding-window attention, in all layers or in those that
 * layer_types names. Ministral is the same network under another model_type: transformers 5 makes it of a
 * file of Mistral's that has layer_types, and writes its name when it saves the model. */
#include "model/llama_files.h"

static ax_status mistral_read(const json_t *json, const char *path, ax_model_config *c)
{
    c->seq_len = 131072; /* the defaults of MistralConfig */
    c->kv_heads = 8;
    AX_TRY(ax_llama_read(json, path, c));
    return ax_mistral_window_read(json, path, c);
}

static ax_status mistral_write(const ax_model_config *c, json_t *json)
{
    AX_TRY(ax_mistral_window_write(c, json));
    return ax_llama_write(c, json);
}

static const ax_family_key names[] = {AX_LLAMA_NAMES, AX_WINDOW_NAME};

static const ax_key_rule rules[] = {AX_NO_BIAS("attention_bias"), AX_NO_BIAS("mlp_bias")};

#define MISTRAL                                                                                              \
    .defaults = {AX_LLAMA_FACTS, .no_bias = {true, true, true}}, .read = mistral_read,                       \
    .write = mistral_write, AX_LLAMA_ARRAYS, .names = names, .n_names = AX_COUNT(names),                     \
    .reads = AX_LLAMA_WINDOW_READS, .rules = rules, .n_rules = AX_COUNT(rules)

const ax_family ax_family_mistral = {.name = "mistral", .architecture = "MistralForCausalLM", MISTRAL};
const ax_family ax_family_ministral = {.name = "ministral", .architecture = "MinistralForCausalLM", MISTRAL};
