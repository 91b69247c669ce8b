/* An adapter: adapter_config.json, and adapter_model.safetensors as a second part. The base is a golden
 * model. */
#include "axonn/infer.h"
#include "fuzz/fuzz.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BASE AXONN_SOURCE_DIR "/tests/golden/gpt2/tanh"

/* Adds a seed: a text, and the factors of a golden adapter. */
static void seed(const char *text, const char *name)
{
    char *path, *factors, *copy;
    size_t size;
    FUZZ_HOLDS(ax_path_join(AXONN_SOURCE_DIR "/tests/golden/lora", name, &path) == AX_OK);
    FUZZ_HOLDS(ax_file_read(path, &factors, &size) == AX_OK && ax_strdup(text, &copy) == AX_OK);
    fuzz_seed((const fuzz_part[]){{copy, strlen(copy)}, {factors, size}, {NULL, 0}});
    free(path);
    free(factors);
    free(copy);
}

void fuzz_make_seeds(void)
{
    seed("{\"peft_type\":\"LORA\",\"base_model_name_or_path\":\"" BASE "\",\"r\":1,\"lora_alpha\":2}",
         "one/adapter_model.safetensors");
    seed("{\"peft_type\":\"LORA\",\"base_model_name_or_path\":\"" BASE
         "\",\"r\":8,\"lora_alpha\":3,\"use_rslora\":true,"
         "\"rank_pattern\":{\"c_fc\":8},\"alpha_pattern\":{\"c_fc\":5},\"bias\":\"none\",\"modules_to_save\":"
         "null}",
         "joint/adapter_model.safetensors");
    seed("{\"peft_type\":\"LORA\",\"base_model_name_or_path\":\"b\",\"r\":2,\"lora_alpha\":3,"
         "\"alpha_pattern\":{\"^c\":\"5\"},\"use_dora\":true,\"bias\":\"all\"}",
         "one/adapter_model.safetensors");
    seed("{\"peft_type\":\"LORA\",\"base_model_name_or_path\":\"" BASE
         "\",\"r\":1,\"lora_alpha\":2,\"init_lora_weights\":\"Gaussian\",\"target_modules\":\".*(c_proj|c_fc)"
         "\","
         "\"exclude_modules\":[\"wte\"],\"alpha_pattern\":{\"^transformer.h.[0-9].*\":5}}",
         "one/adapter_model.safetensors");
    seed("{\"peft_type\":\"LORA\",\"base_model_name_or_path\":\"" BASE
         "\",\"r\":1,\"lora_alpha\":2,\"target_modules\":[\"c_proj\",\"c_fc\"],\"layers_to_transform\":[0,1],"
         "\"layers_pattern\":[\"layers\",\"h\"],\"new_member\":[]}",
         "one/adapter_model.safetensors");
    seed("{\"peft_type\":\"LORA\",\"base_model_name_or_path\":\"" AXONN_SOURCE_DIR
         "/tests/golden/qwen3/norms\",\"r\":3,\"lora_alpha\":6,\"ensure_weight_tying\":true,"
         "\"rank_pattern\":{\"layers.1.self_attn.q_proj\":5,\"lm_head\":2}}",
         "blocks/adapter_model.safetensors");
}

static void read_config(const fuzz_part *part)
{
    ax_adapter adapter;
    if (!fuzz_read(ax_adapter_parse(part->data, part->size, "adapter_config.json", &adapter)))
        return;
    FUZZ_HOLDS(adapter.base && *adapter.base);
    ax_low_rank update;
    bool meant;
    if (fuzz_read(ax_adapter_update(&adapter, "transformer.h.0.mlp.c_fc", &update)))
        FUZZ_HOLDS(update.rank >= 1 && !isnan(update.scale));
    (void)fuzz_read(ax_adapter_targets(&adapter, "transformer.h.0.mlp.c_fc", &meant));
    ax_adapter_fini(&adapter);
}

void fuzz_one(const fuzz_part *part, int n)
{
    ax_pretrained model;
    read_config(part);
    fuzz_file("adapter_config.json", part->data, part->size);
    fuzz_file("adapter_model.safetensors", n > 1 ? part[1].data : NULL, n > 1 ? part[1].size : 0);
    if (!fuzz_read(ax_pretrained_open(fuzz_path(""), &model)))
        return;
    FUZZ_HOLDS(model.base && ax_model_config_is_adapted(&model.config));
    ax_pretrained_close(&model);
}
