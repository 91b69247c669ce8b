/* config.json of a model, and generation_config.json as a second part. A configuration that was read is
 * printed and read again. */
#include "axonn/infer.h"
#include "axonn/json.h"
#include "fuzz/fuzz.h"

#include <glob.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

void fuzz_make_seeds(void)
{
    glob_t found;
    FUZZ_HOLDS(!glob(AXONN_SOURCE_DIR "/tests/golden/*/*/config.json", 0, NULL, &found)); /* every family */
    for (size_t i = 0; i < found.gl_pathc; i++)
        fuzz_seed_file(found.gl_pathv[i] + strlen(AXONN_SOURCE_DIR "/"));
    globfree(&found);
    fuzz_seed_texts(
        (const char *[]){"{\"model_type\":\"gpt2\",\"n_embd\":8,\"n_layer\":1000000,\"n_head\":2,"
                         "\"vocab_size\":7,\"n_positions\":16,\"n_inner\":null,\"eos_token_id\":[1,2],"
                         "\"activation_function\":\"gelu_new\",\"resid_pdrop\":0.1,\"attn_pdrop\":0,"
                         "\"embd_pdrop\":0.5,\"tie_word_embeddings\":false}",
                         "{\"eos_token_id\":[3,4],\"bos_token_id\":1,\"temperature\":0.7}", NULL});
    fuzz_seed_texts((const char *[]){"{\"model_type\":\"gpt2\",\"hidden_size\":8,\"n_embd\":8,\"num_hidden_"
                                     "layers\":1,\"num_attention_heads\":2,"
                                     "\"vocab_size\":7,\"max_position_embeddings\":16,\"is_causal\":true,"
                                     "\"pruned_heads\":{},\"loss_type\":null}",
                                     NULL});
    fuzz_seed_texts((const char *[]){
        "{\"model_type\":\"mistral\",\"hidden_size\":8,\"num_hidden_layers\":2,\"num_attention_heads\":2,"
        "\"num_key_value_heads\":1,\"intermediate_size\":5,\"vocab_size\":7,\"layer_types\":[\"attention\","
        "\"sliding_attention\"],\"auto_map\":{},\"rope_scaling\":{\"factor\":2,\"note\":1},\"logit_scale\":1."
        "0}",
        NULL});
}

/* Checks that a printed configuration reads back, and prints the same again. */
static void print_and_read(const ax_model_config *config)
{
    ax_model_identity identity = {-1, -1, AX_F32};
    ax_buf first = {0}, second = {0};
    ax_model_config again;
    if (fuzz_read(ax_model_config_print(config, &identity, &first))) {
        FUZZ_HOLDS(ax_model_config_parse(first.data, first.size, "printed", &again) == AX_OK);
        FUZZ_HOLDS(ax_model_config_print(&again, &identity, &second) == AX_OK);
        FUZZ_HOLDS(first.size == second.size && !memcmp(first.data, second.data, first.size));
        ax_model_config_fini(&again);
    }
    ax_buf_fini(&first);
    ax_buf_fini(&second);
}

/* Checks that the unknown keys of a configuration that was read can be listed. */
static void list_unknown(const ax_model_config *config)
{
    ax_buf unknown = {0};
    FUZZ_HOLDS(ax_model_config_unknown(config, &unknown) == AX_OK);
    ax_buf_fini(&unknown);
}

static void read_config(const fuzz_part *part)
{
    ax_model_config config, copy;
    int64_t total, matmul;
    if (!fuzz_read(ax_model_config_parse(part->data, part->size, "config.json", &config)))
        return;
    if (fuzz_read(ax_model_config_check(&config))) {
        ax_model_config_params(&config, &total, &matmul);
        FUZZ_HOLDS(total >= matmul && matmul >= 0);
    }
    print_and_read(&config);
    list_unknown(&config);
    FUZZ_HOLDS(ax_model_config_copy(&config, &copy) == AX_OK);
    ax_model_config_fini(&copy);
    ax_model_config_fini(&config);
}

/* Checks that a configuration of another dtype reads back. */
static void retype(const fuzz_part *part)
{
    ax_buf out = {0};
    struct json_t *root;
    if (fuzz_read(ax_model_config_retype(part->data, part->size, "config.json", AX_BF16, true, &out))) {
        FUZZ_HOLDS(ax_json_parse("retyped", out.data, out.size, 0, &root) == AX_OK);
        FUZZ_HOLDS(
            !strcmp(json_string_value(json_object_get(root, "dtype") ? json_object_get(root, "dtype")
                                                                     : json_object_get(root, "torch_dtype")),
                    "bfloat16"));
        json_decref(root);
    }
    ax_buf_fini(&out);
}

void fuzz_one(const fuzz_part *part, int n)
{
    ax_pretrained model;
    read_config(part);
    retype(part);
    fuzz_file("config.json", part->data, part->size);
    fuzz_file("generation_config.json", n > 1 ? part[1].data : NULL, n > 1 ? part[1].size : 0);
    if (fuzz_read(ax_pretrained_open(fuzz_path(""), &model)))
        ax_pretrained_close(&model);
}
