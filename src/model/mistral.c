/* Mistral (Jiang et al. 2023): Llama with sliding-window attention in all layers. */
#include "model/llama_files.h"

static ax_status mistral_read(const json_t *json, const char *path, ax_model_config *c)
{
    c->seq_len = 131072; /* the defaults of MistralConfig */
    c->kv_heads = 8;
    c->window = 4096;
    AX_TRY(ax_llama_refuse(json, path, "attention_bias"));
    AX_TRY(ax_llama_refuse(json, path, "mlp_bias"));
    if (json_is_null(json_object_get(json, "sliding_window")))
        c->window = 0;
    AX_TRY(ax_json_int(json, path, "sliding_window", true, &c->window));
    return ax_llama_read(json, path, c);
}

static ax_status mistral_write(const ax_model_config *c, json_t *json)
{
    AX_CHECK(!json_object_set_new(json, "sliding_window", c->window ? json_integer(c->window) : json_null()),
             AX_ERR_MEMORY, "not enough memory for the text of the model's config.json");
    return ax_llama_write(c, json);
}

static const ax_family_key names[] = {AX_LLAMA_NAMES, {"sliding_window", "model.window", false}};

const ax_family ax_family_mistral = {.name = "mistral",
                                     .architecture = "MistralForCausalLM",
                                     .defaults = {AX_LLAMA_FACTS, .biases = AX_BIASES_NONE},
                                     .read = mistral_read,
                                     .write = mistral_write,
                                     AX_LLAMA_ARRAYS,
                                     .names = names,
                                     .n_names = AX_COUNT(names)};
