/* adapter_config.json. */
#include "axonn/model.h"
#include "fuzz/fuzz.h"

#include <glob.h>
#include <math.h>
#include <string.h>

void fuzz_make_seeds(void)
{
    glob_t found;
    FUZZ_HOLDS(!glob(AXONN_SOURCE_DIR "/tests/golden/lora/*/adapter_config.json", 0, NULL, &found));
    for (size_t i = 0; i < found.gl_pathc; i++)
        fuzz_seed_file(found.gl_pathv[i] + strlen(AXONN_SOURCE_DIR "/"));
    globfree(&found);
    fuzz_seed_texts(
        (const char *[]){"{\"peft_type\":\"LORA\",\"base_model_name_or_path\":\"b\",\"r\":2,\"lora_alpha\":3,"
                         "\"alpha_pattern\":{\"c_fc\":5},\"use_dora\":true,\"bias\":\"all\"}",
                         NULL});
}

void fuzz_one(const fuzz_part *part, int n)
{
    ax_adapter adapter;
    (void)n;
    if (!fuzz_read(ax_adapter_parse(part->data, part->size, "adapter_config.json", &adapter)))
        return;
    FUZZ_HOLDS(adapter.base && *adapter.base);
    FUZZ_HOLDS(!isnan(ax_adapter_scale(&adapter, "transformer.h.0.mlp.c_fc", 3)));
    ax_adapter_fini(&adapter);
}
