/* The families llama, mistral, qwen2 and qwen3: reading and writing config.json, what is refused, and counts
 * of parameters and FLOPs. */
#include "axonn/json.h"
#include "axonn/model.h"
#include "support/check.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SHAPE                                                                                                \
    "\"num_hidden_layers\": 3, \"hidden_size\": 12, \"num_attention_heads\": 6, \"intermediate_size\": 7, "  \
    "\"vocab_size\": 11"

static ax_status parse(const char *family, const char *keys, ax_model_config *out)
{
    char text[2048];
    int n = snprintf(text, sizeof text, "{\"model_type\": \"%s\", " SHAPE "%s%s}", family, *keys ? ", " : "",
                     keys);
    return ax_model_config_parse(text, (size_t)n, "c.json", out);
}

/* Parses a configuration that must be legal. */
static ax_model_config parsed(const char *family, const char *keys)
{
    ax_model_config c;
    if (parse(family, keys, &c) != AX_OK)
        fail_msg("%s {%s}: %s", family, keys, ax_error_message());
    return c;
}

/* Missing keys have the defaults of transformers' classes. */
static void missing_keys_have_the_defaults_of_transformers(void **state)
{
    (void)state;
    static const struct {
        const char *family, *keys;
        int64_t kv_heads, seq_len, window;
    } rows[] = {
        {"llama", "", 6, 2048, 0},
        {"mistral", "\"num_key_value_heads\": 2", 2, 131072, 4096},
        {"mistral", "\"num_key_value_heads\": null, \"sliding_window\": null", 6, 131072, 0},
        {"qwen2", "\"num_key_value_heads\": 3", 3, 32768, 0},
        {"qwen3", "\"num_key_value_heads\": null", 6, 32768, 0},
    };
    for (size_t i = 0; i < AX_COUNT(rows); i++) {
        ax_model_config c = parsed(rows[i].family, rows[i].keys);
        assert_int_equal(c.kv_heads, rows[i].kv_heads);
        assert_int_equal(c.seq_len, rows[i].seq_len);
        assert_int_equal(c.window, rows[i].window);
        assert_int_equal(ax_model_config_head_dim(&c), !strcmp(rows[i].family, "qwen3") ? 128 : 2);
        assert_true(c.norm == AX_NORM_RMS && c.gated && c.activation == AX_SILU && !c.tie && c.plain_init);
        assert_true(c.norm_eps == 1e-6 && c.init_std == 0.02 && c.rope.theta == 10000 &&
                    c.rope.kind == AX_ROPE_DEFAULT && c.dropout.attn == 0);
        assert_true(c.head_norms == !strcmp(rows[i].family, "qwen3"));
        assert_true(c.no_bias.qkv == !!strcmp(rows[i].family, "qwen2") && c.no_bias.proj && c.no_bias.mlp);
        ax_model_config_fini(&c);
    }
    ax_model_config c;
    assert_int_equal(parse("mistral", "", &c), AX_ERR_DATA); /* 8 key heads */
    assert_non_null(
        strstr(ax_error_message(),
               "c.json: the number of heads, 6, is not a multiple of the number of key heads, 8"));
}

/* ---- rotary embeddings --------------------------------------------------------------------------- */

static void both_spellings_mean_the_same(void **state)
{
    (void)state;
    static const char *const spellings[][2] = {
        {"\"rope_theta\": 5e5", "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 5e5}"},
        {"\"rope_theta\": 10000, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}",
         "\"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 4.0}"},
        {"\"rope_theta\": 7.0, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, "
         "\"low_freq_factor\": 1, "
         "\"high_freq_factor\": 4, \"original_max_position_embeddings\": 512}",
         "\"rope_parameters\": {\"rope_type\": \"llama3\", \"rope_theta\": 7, \"factor\": 8, "
         "\"low_freq_factor\": 1,"
         "\"high_freq_factor\": 4, \"original_max_position_embeddings\": 512}, \"rope_theta\": 9"},
        {"\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4}",
         "\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4.0, \"beta_fast\": 32, \"beta_slow\": "
         "1, "
         "\"attention_factor\": null, \"original_max_position_embeddings\": 2048, \"truncate\": true}"},
        {"\"rope_scaling\": {\"type\": \"yarn\", \"factor\": null, \"original_max_position_embeddings\": "
         "512, "
         "\"mscale\": 0.5, \"mscale_all_dim\": 0.25, \"truncate\": false}",
         "\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4.0, \"mscale\": 0.5, "
         "\"mscale_all_dim\": 0.25, "
         "\"truncate\": false}, \"original_max_position_embeddings\": 512"}};
    for (size_t i = 0; i < AX_COUNT(spellings); i++) {
        ax_buf text[2] = {{0}, {0}};
        for (int k = 0; k < 2; k++) {
            ax_model_config c = parsed("llama", spellings[i][k]);
            OK(ax_model_config_values(&c, &text[k]));
            ax_model_config_fini(&c);
        }
        assert_string_equal(text[0].data, text[1].data);
        ax_buf_fini(&text[0]);
        ax_buf_fini(&text[1]);
    }
}

/* Returns the printed configuration as JSON. */
static json_t *printed(const ax_model_config *c)
{
    ax_buf text = {0};
    OK(ax_model_config_print(c, &(ax_model_identity){1, 2, AX_BF16}, &text));
    json_t *json = json_loads(text.data, 0, NULL);
    assert_non_null(json);
    ax_buf_fini(&text);
    return json;
}

/* A scaled rotary embedding works beyond max_position_embeddings, 48 here, and files keep that number. */
static void scaled_embeddings_have_more_positions(void **state)
{
    (void)state;
#define LENGTH "\"max_position_embeddings\": 48, \"rope_scaling\": "
    static const struct {
        const char *keys;
        int64_t positions;
    } rows[] = {{LENGTH "null", 48},
                {LENGTH "{\"type\": \"linear\", \"factor\": 2.5}", 120},
                {LENGTH "{\"type\": \"linear\", \"factor\": 0.5}", 48},
                {LENGTH "{\"type\": \"linear\", \"factor\": 1e20}", AX_VOCAB_MAX},
                {LENGTH "{\"type\": \"dynamic\", \"factor\": 4}", 48},
                {LENGTH "{\"type\": \"yarn\", \"factor\": 4}", 192},
                {LENGTH "{\"type\": \"yarn\", \"original_max_position_embeddings\": 16}", 48},
                {LENGTH
                 "{\"type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 4, "
                 "\"original_max_position_embeddings\": 32}",
                 256}};
#undef LENGTH
    for (size_t i = 0; i < AX_COUNT(rows); i++) {
        ax_model_config c = parsed("llama", rows[i].keys);
        json_t *json = printed(&c);
        assert_int_equal(ax_model_config_positions(&c), rows[i].positions);
        assert_int_equal(json_integer_value(json_object_get(json, "max_position_embeddings")), 48);
        json_decref(json);
        ax_model_config_fini(&c);
    }
}

/* The file's spelling and its unknown keys stay; without a file, what all versions of transformers read. */
static void the_spelling_of_the_file_is_kept(void **state)
{
    (void)state;
    ax_model_config c = parsed("llama", "\"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 2.0, "
                                        "\"rope_theta\": 100.0, \"note\": 3}, \"pretraining_tp\": 1");
    json_t *json = printed(&c), *p = json_object_get(json, "rope_parameters");
    assert_null(json_object_get(json, "rope_theta"));
    assert_null(json_object_get(json, "rope_scaling"));
    assert_int_equal(json_integer_value(json_object_get(p, "note")), 3);
    assert_int_equal(json_integer_value(json_object_get(json, "pretraining_tp")), 1);
    json_decref(json);
    c.rope.theta = 50; /* as a key of the user sets it */
    json = printed(&c);
    assert_true(json_real_value(json_object_get(json_object_get(json, "rope_parameters"), "rope_theta")) ==
                50);
    json_decref(json);
    free(c.source);
    c.source = NULL;
    json = printed(&c);
    assert_true(json_real_value(json_object_get(json, "rope_theta")) == 50);
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(json, "rope_scaling"), "rope_type")), "linear");
    assert_null(json_object_get(json, "rope_parameters"));
    json_decref(json);
    ax_model_config_fini(&c);
}

/* A rope_scaling without members counts as absent, but what is written into it is read first. */
static void two_spellings_in_one_file_agree(void **state)
{
    (void)state;
    ax_model_config c = parsed("llama",
                               "\"rope_scaling\": {}, \"rope_parameters\": {\"rope_type\": \"linear\", "
                               "\"factor\": 2.0, \"rope_theta\": 100.0}"),
                    again;
    ax_buf text = {0};
    OK(ax_model_config_print(&c, &(ax_model_identity){1, 2, AX_F32}, &text));
    OK(ax_model_config_parse(text.data, text.size, "again.json", &again));
    assert_true(c.rope.theta == 100 && again.rope.theta == 100 && again.rope.factor == 2);
    ax_buf_fini(&text);
    ax_model_config_fini(&c);
    ax_model_config_fini(&again);
}

/* ---- windows ------------------------------------------------------------------------------------- */

static void windows_are_read_for_each_layer(void **state)
{
    (void)state;
    static const struct {
        const char *family, *keys;
        int64_t window[3];
    } rows[] = {
        {"mistral", "\"num_key_value_heads\": 2, \"sliding_window\": 5", {5, 5, 5}},
        {"mistral",
         "\"sliding_window\": 5, \"layer_types\": [\"full_attention\", \"sliding_attention\", \"attention\"]",
         {0, 5, 0}},
        {"mistral",
         "\"layer_types\": [\"sliding_attention\", \"sliding_attention\", \"sliding_attention\"]",
         {4096, 4096, 4096}},
        {"mistral",
         "\"sliding_window\": 5, \"layer_types\": [\"full_attention\", \"full_attention\", "
         "\"full_attention\"]",
         {0, 0, 0}},
        {"mistral", "\"sliding_window\": null, \"layer_types\": null", {0, 0, 0}},
        {"ministral",
         "\"sliding_window\": 5, \"layer_types\": [\"sliding_attention\", \"full_attention\", "
         "\"sliding_attention\"]",
         {5, 0, 5}},
        {"ministral", "\"num_key_value_heads\": 2", {4096, 4096, 4096}},
        {"llama", "\"layer_types\": [\"full_attention\", \"full_attention\", \"full_attention\"]", {0, 0, 0}},
        {"qwen2", "\"use_sliding_window\": true, \"sliding_window\": 5, \"max_window_layers\": 1", {0, 5, 5}},
        {"qwen2", "\"use_sliding_window\": true, \"sliding_window\": 5, \"max_window_layers\": 0", {5, 5, 5}},
        {"qwen2", "\"use_sliding_window\": true, \"sliding_window\": 5", {0, 0, 0}}, /* 28 layers have none */
        {"qwen2",
         "\"use_sliding_window\": false, \"sliding_window\": 5, \"max_window_layers\": 1",
         {0, 0, 0}},
        {"qwen2",
         "\"use_sliding_window\": false, \"sliding_window\": 0, \"max_window_layers\": null",
         {0, 0, 0}},
        {"qwen2",
         "\"use_sliding_window\": true, \"sliding_window\": 5, \"max_window_layers\": -1",
         {5, 5, 5}},
        {"qwen3", "\"use_sliding_window\": true, \"max_window_layers\": 2", {0, 0, 4096}},
        {"qwen3",
         "\"use_sliding_window\": true, \"sliding_window\": 7, \"max_window_layers\": 2, "
         "\"layer_types\": [\"sliding_attention\", \"full_attention\", \"sliding_attention\"]",
         {7, 0, 7}}};
    for (size_t i = 0; i < AX_COUNT(rows); i++) {
        char keys[512];
        snprintf(keys, sizeof keys, "%s%s", rows[i].keys,
                 strstr(rows[i].keys, "key_value") ? "" : ", \"num_key_value_heads\": 3");
        ax_model_config c = parsed(rows[i].family, keys), again, copy;
        ax_buf text = {0};
        OK(ax_model_config_print(&c, &(ax_model_identity){1, 2, AX_F32}, &text));
        OK(ax_model_config_parse(text.data, text.size, "again.json", &again));
        OK(ax_model_config_copy(&c, &copy));
        for (int64_t k = 0; k < 3; k++) {
            assert_int_equal(ax_model_config_window(&c, k), rows[i].window[k]);
            assert_int_equal(ax_model_config_window(&again, k), rows[i].window[k]);
            assert_int_equal(ax_model_config_window(&copy, k), rows[i].window[k]);
        }
        ax_buf_fini(&text);
        ax_model_config_fini(&c);
        ax_model_config_fini(&again);
        ax_model_config_fini(&copy);
    }
}

/* ---- the keys of transformers' classes ----------------------------------------------------------- */

/* Keys that have no default here: a file without them is refused. */
static bool is_required(const char *key)
{
    static const char *const required[] = {"num_hidden_layers",
                                           "hidden_size",
                                           "num_attention_heads",
                                           "intermediate_size",
                                           "vocab_size",
                                           "n_layer",
                                           "n_embd",
                                           "n_head",
                                           "n_positions"};
    for (size_t i = 0; i < AX_COUNT(required); i++)
        if (!strcmp(required[i], key))
            return true;
    return false;
}

/* Parses `json`, no key of which may be unknown, and prints what was read, without the text it was read from.
 */
static void read_and_print(json_t *json, ax_buf *out)
{
    ax_model_config c;
    ax_buf text = {0}, unknown = {0};
    OK(ax_json_print(json, JSON_COMPACT, &text));
    OK(ax_model_config_parse(text.data, text.size, "c.json", &c));
    OK(ax_model_config_unknown(&c, &unknown));
    if (unknown.size)
        fail_msg("family %s does not know: %s", ax_model_config_family(&c), unknown.data);
    free(c.source);
    c.source = NULL;
    OK(ax_model_config_print(&c, &(ax_model_identity){1, 2, AX_F32}, out));
    ax_buf_fini(&text);
    ax_buf_fini(&unknown);
    ax_model_config_fini(&c);
}

static void check_class(const char *family, json_t *shared, json_t *own)
{
    json_t *sets[] = {shared, own}, *all = json_pack("{s:s}", "model_type", family), *least = json_copy(all),
           *value;
    const char *key;
    size_t index;
    ax_buf text[2] = {{0}, {0}};
    for (size_t i = 0; i < AX_COUNT(sets); i++) {
        json_object_foreach(json_object_get(sets[i], "fields"), key, value)
        {
            json_object_set(all, key, value);
            if (is_required(key))
                json_object_set(least, key, value);
        }
        json_array_foreach(json_object_get(sets[i], "read"), index,
                           value) if (!json_object_get(all, json_string_value(value)))
            json_object_set_new(all, json_string_value(value), json_null());
    }
    read_and_print(all, &text[0]);
    read_and_print(least, &text[1]);
    assert_string_equal(text[0].data, text[1].data);
    for (int i = 0; i < 2; i++)
        ax_buf_fini(&text[i]);
    json_decref(all);
    json_decref(least);
}

/* Every field of transformers' classes, and whatever else their code reads from a configuration, is known.
 * With their defaults they mean the same as without. */
static void keys_of_transformers_are_known(void **state)
{
    (void)state;
    json_t *versions, *version;
    const char *name;
    OK(ax_json_read_file(AXONN_SOURCE_DIR "/tests/golden/config_fields.json", 0, &versions));
    assert_int_equal(json_object_size(versions), 2);
    json_object_foreach(versions, name, version) for (int i = 0; ax_family_name(i); i++) check_class(
        ax_family_name(i), json_object_get(version, "all"), json_object_get(version, ax_family_name(i)));
    json_decref(versions);
}

/* Keys that nobody knows are listed, also those of the rotary embedding that its kind does not have. */
static void unknown_keys_are_listed(void **state)
{
    (void)state;
    static const struct {
        const char *family, *keys, *unknown;
    } rows[] = {
        {"llama", "\"use_cache\": false, \"rope_scaling\": null, \"logits_scaling\": 1.0", ""},
        {"llama",
         "\"auto_map\": {}, \"pretraining_tp\": 2, \"rope_scaling\": {\"factor\": 8.0, \"beta_fast\": null}, "
         "\"my_scale\": 2",
         "auto_map, my_scale, rope_scaling.factor"},
        {"qwen2",
         "\"num_key_value_heads\": 2, \"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 2, "
         "\"mscale\": 1, \"scale\": 1}",
         "rope_parameters.scale"},
        {"llama", "\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2.0, \"note\": 1}",
         "rope_scaling.note"},
        /* keys in files of Yarn-Llama, SmolLM2, Vicuna, Qwen 2.5 and DistilGPT2 */
        {"llama",
         "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 16, \"finetuned\": true}, \"is_llama_config\": "
         "true, "
         "\"rope_interleaved\": false, \"transformers.js_config\": {}, \"max_sequence_length\": 48",
         ""},
        {"qwen2", "\"num_key_value_heads\": 2, \"use_mrope\": false, \"_num_labels\": 1", ""},
    };
    for (size_t i = 0; i < AX_COUNT(rows); i++) {
        ax_model_config c = parsed(rows[i].family, rows[i].keys);
        ax_buf unknown = {0};
        OK(ax_model_config_unknown(&c, &unknown));
        assert_string_equal(unknown.size ? unknown.data : "", rows[i].unknown);
        ax_buf_fini(&unknown);
        ax_model_config_fini(&c);
    }
}

/* attention_bias and mlp_bias are facts of the blocks, and are written again. */
static void biases_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *family, *keys;
        ax_no_bias no_bias;
        int64_t more; /* parameters of the biases of 3 layers; all widths are 12, that of the MLP is 7 */
    } rows[] = {
        {"llama", "\"attention_bias\": false, \"mlp_bias\": null", {true, true, true}, 0},
        {"llama", "\"attention_bias\": true", {false, false, true}, 3 * 4 * 12},
        {"llama", "\"attention_bias\": true, \"mlp_bias\": true", {0}, 3 * (4 * 12 + 2 * 7 + 12)},
        {"llama", "\"mlp_bias\": true", {true, true, false}, 3 * (2 * 7 + 12)},
        {"qwen3",
         "\"num_key_value_heads\": 6, \"head_dim\": 2, \"attention_bias\": true",
         {false, false, true},
         3 * 4 * 12},
        {"qwen2", "\"num_key_value_heads\": 6, \"attention_bias\": false", {false, true, true}, 3 * 3 * 12},
    };
    for (size_t i = 0; i < AX_COUNT(rows); i++) {
        ax_model_config c = parsed(rows[i].family, rows[i].keys), again;
        ax_buf text = {0};
        int64_t with, without, matmul;
        assert_memory_equal(&c.no_bias, &rows[i].no_bias, sizeof c.no_bias);
        ax_model_config_params(&c, &with, &matmul);
        OK(ax_model_config_print(&c, &(ax_model_identity){1, 2, AX_F32}, &text));
        OK(ax_model_config_parse(text.data, text.size, "again.json", &again));
        assert_memory_equal(&again.no_bias, &rows[i].no_bias, sizeof c.no_bias);
        again.no_bias = (ax_no_bias){true, true, true};
        ax_model_config_params(&again, &without, &matmul);
        assert_int_equal(with - without, rows[i].more);
        text.size = 0;
        c.no_bias = (ax_no_bias){.qkv = true}; /* no family's file has keys for this */
        assert_int_equal(ax_model_config_print(&c, &(ax_model_identity){1, 2, AX_F32}, &text), AX_ERR_USAGE);
        ax_buf_fini(&text);
        ax_model_config_fini(&c);
        ax_model_config_fini(&again);
    }
}

/* ---- refusals ------------------------------------------------------------------------------------ */

/* What would change the numbers and is not implemented is refused by key and value. */
static void refusals_name_key_and_value(void **state)
{
    (void)state;
    static const struct {
        const char *family, *keys, *message;
    } rows[] = {
        {"llama", "\"hidden_act\": \"gelu\"", "hidden_act \"gelu\" is not implemented"},
        {"qwen2", "\"hidden_act\": 3", "hidden_act \"(not a string)\" is not implemented"},
        {"qwen3", "\"mlp_bias\": true", "mlp_bias = true is not implemented (accepted: false null)"},
        {"ministral", "\"mlp_bias\": true", "mlp_bias = true is not implemented"},
        {"mistral", "\"attention_bias\": true", "attention_bias = true is not implemented"},
        {"llama", "\"attention_bias\": 1", "\"attention_bias\" must be true or false"},
        {"llama", "\"tie_word_embeddings\": \"true\"", "\"tie_word_embeddings\" must be true or false"},
        {"llama", "\"is_causal\": false", "is_causal = false"},
        {"llama", "\"per_layer_config\": {\"0\": {\"sliding_window\": 4}}", "per_layer_config = {"},
        {"llama", "\"attn_logit_softcapping\": 50.0", "attn_logit_softcapping = 50 is not"},
        {"llama", "\"attention_multiplier\": 0.0625", "attention_multiplier = 0.0625"},
        {"llama", "\"pruned_heads\": {\"0\": [1]}", "pruned_heads = {\"0\":[1]}"},
        {"llama", "\"sliding_window\": 4", "sliding_window = 4"},
        {"qwen2", "\"use_mrope\": true", "use_mrope = true"},
        {"llama", "\"layer_types\": [\"full_attention\", \"sliding_attention\", \"full_attention\"]",
         "layer_types[1] is sliding_attention, but models of family llama have no window"},
        {"mistral",
         "\"num_key_value_heads\": 2, \"sliding_window\": null, \"layer_types\": [\"full_attention\", "
         "\"full_attention\", \"sliding_attention\"]",
         "layer_types[2] is sliding_attention, but sliding_window is null"},
        {"mistral", "\"quantization_config\": {\"bits\": 4}", "quantization_config"},
        {"gpt2", "\"quantization_config\": {}", "quantization_config"},
        {"llama", "\"rope_scaling\": {\"type\": \"dynamic\"}", "\"factor\" must be a number"},
        {"llama", "\"rope_scaling\": {\"rope_type\": \"longrope\"}", "change with the length"},
        {"llama", "\"rope_parameters\": {\"rope_type\": \"spiral\"}",
         "rope_type \"spiral\" is not implemented"},
        {"llama", "\"rope_parameters\": {\"full_attention\": {}}", "layers of type full_attention"},
        {"llama", "\"rope_parameters\": [1]", "\"rope_parameters\" must be a JSON object or null"},
        {"llama", "\"rope_scaling\": {\"type\": \"linear\"}", "\"factor\" must be a number"},
        {"llama", "\"rope_scaling\": {\"type\": \"linear\", \"factor\": -2}", "factor = -2"},
        {"llama", "\"partial_rotary_factor\": 0.5", "partial_rotary_factor = 0.5"},
        {"llama", "\"rope_theta\": 0", "rope_theta = 0"},
        {"llama", "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, \"attention_factor\": 0}",
         "attention_factor = 0 of"},
        {"llama", "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, \"mscale\": -1}", "mscale = -1"},
        {"llama", "\"rms_norm_eps\": -1e-6", "rms_norm_eps = -1e-06 is not positive"},
        {"qwen3", "\"rms_norm_eps\": 0", "rms_norm_eps = 0 is not positive"},
        {"llama", "\"head_dim\": 3", "the width of a head, 3, is odd"},
        {"llama", "\"num_key_value_heads\": 4",
         "the number of heads, 6, is not a multiple of the number of key heads, 4"},
        {"llama", "\"num_key_value_heads\": 0", "\"num_key_value_heads\" must be a positive integer"},
        {"mistral", "\"num_key_value_heads\": 2, \"sliding_window\": 0",
         "\"sliding_window\" must be a positive"},
        {"qwen2", "\"num_key_value_heads\": 2, \"use_sliding_window\": true, \"sliding_window\": -1",
         "\"sliding_window\" must be a positive"},
        {"qwen2", "\"num_key_value_heads\": 2, \"layer_types\": [\"full_attention\"]", "a list of 3 words"},
        {"qwen3",
         "\"num_key_value_heads\": 2, \"layer_types\": [\"full_attention\", \"full_attention\", \"linear\"]",
         "layer_types[2] = \"linear\""},
        {"qwen3",
         "\"num_key_value_heads\": 2, \"layer_types\": [\"full_attention\", \"full_attention\", "
         "\"sliding_attention\"]",
         "use_sliding_window is not true"},
        {"qwen3", "\"num_key_value_heads\": 2, \"use_sliding_window\": true, \"max_window_layers\": 1.5",
         "\"max_window_layers\" must be"},
        {"mixtral", "\"num_key_value_heads\": 2, \"router_aux_loss_coef\": -1",
         "the coefficients of the routers' losses, -1 and 0, must be from 0 to 1e+30"},
        {"mixtral", "\"num_key_value_heads\": 2, \"router_aux_loss_coef\": 1e31",
         "1e+31 and 0, must be from"},
        {"olmoe", "\"router_aux_loss_coef\": Infinity", "must be from 0 to 1e+30"},
    };
    for (size_t i = 0; i < AX_COUNT(rows); i++) {
        ax_model_config c;
        if (parse(rows[i].family, rows[i].keys, &c) != AX_ERR_DATA ||
            !strstr(ax_error_message(), rows[i].message) || strncmp(ax_error_message(), "c.json: ", 8))
            fail_msg("%s {%s}: \"%s\" does not say \"%s\"", rows[i].family, rows[i].keys, ax_error_message(),
                     rows[i].message);
        assert_null(c.source);
        assert_null(c.window_layers);
    }
}

/* transformers has two words for SiLU. */
static void swish_is_silu(void **state)
{
    (void)state;
    ax_model_config c = parsed("llama", "\"hidden_act\": \"swish\"");
    assert_int_equal(c.activation, AX_SILU);
    ax_model_config_fini(&c);
}

/* ---- counts -------------------------------------------------------------------------------------- */

/* The counts of well-known models equal those that transformers reports. */
static void parameters_are_counted(void **state)
{
    (void)state;
    static const struct {
        const char *name, *family;
        ax_model_config shape;
        int64_t total;
    } rows[] = {
        {"Llama 2 7B",
         "llama",
         {.layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 32, .ffn = 11008, .vocab = 32000},
         6738415616},
        {"Llama 3.2 1B",
         "llama",
         {.layers = 16,
          .hidden = 2048,
          .heads = 32,
          .kv_heads = 8,
          .ffn = 8192,
          .vocab = 128256,
          .tie = true},
         1235814400},
        {"Mistral 7B",
         "mistral",
         {.layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8, .ffn = 14336, .vocab = 32000},
         7241732096},
        {"Qwen2 0.5B",
         "qwen2",
         {.layers = 24, .hidden = 896, .heads = 14, .kv_heads = 2, .ffn = 4864, .vocab = 151936, .tie = true},
         494032768},
        {"Qwen3 0.6B",
         "qwen3",
         {.layers = 28,
          .hidden = 1024,
          .heads = 16,
          .kv_heads = 8,
          .head_dim = 128,
          .ffn = 3072,
          .vocab = 151936,
          .tie = true},
         596049920}};
    for (size_t i = 0; i < AX_COUNT(rows); i++) {
        const ax_family *family;
        int64_t total, matmul;
        OK(ax_family_find(rows[i].family, &family));
        ax_model_config c = ax_model_config_defaults(family);
        const ax_model_config *s = &rows[i].shape;
        c.layers = s->layers;
        c.hidden = s->hidden;
        c.heads = s->heads;
        c.kv_heads = s->kv_heads;
        c.head_dim = s->head_dim;
        c.ffn = s->ffn;
        c.vocab = s->vocab;
        c.tie = s->tie;
        c.seq_len = 4096;
        ax_model_config_params(&c, &total, &matmul);
        if (total != rows[i].total)
            fail_msg("%s has %lld parameters, not %lld", rows[i].name, (long long)total,
                     (long long)rows[i].total);
    }
}

/* A window of w positions of T: the positions 1 … w see as many, the others w. */
static void a_window_reduces_the_flops(void **state)
{
    (void)state;
    enum { T = 100, W = 10 };
    ax_model_config c = parsed("qwen2", "\"num_key_value_heads\": 2, \"use_sliding_window\": true, "
                                        "\"sliding_window\": 10, \"max_window_layers\": 2");
    int64_t total, matmul, seen = 0;
    ax_model_config_params(&c, &total, &matmul);
    for (int p = 1; p <= T; p++)
        seen += p < W ? p : W;
    double attention = ax_model_config_flops_per_token(&c, T) - 6.0 * (double)matmul;
    /* The formula leaves out w / 2T positions for each query, as that of causal attention leaves out half of
     * one. */
    double expected = 6.0 * 12 * (2 * T + 2 * ((double)seen / T - W / (2.0 * T)));
    assert_true(fabs(attention - expected) < 1e-9 * expected);
    c.window = T;
    assert_true(ax_model_config_flops_per_token(&c, T) == 6.0 * (double)matmul + 6.0 * 3 * 12 * T);
    ax_model_config_fini(&c);
}

static void inner_widths_have_a_default(void **state)
{
    (void)state;
    ax_model_config c = {.hidden = 768};
    assert_int_equal(ax_model_config_default_ffn(&c), 3072);
    c.gated = true;
    assert_int_equal(ax_model_config_default_ffn(&c), 2048);
    c.hidden = 4096; /* as in Llama 2 7B */
    assert_int_equal(ax_model_config_default_ffn(&c), 11008);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(missing_keys_have_the_defaults_of_transformers),
                                       cmocka_unit_test(both_spellings_mean_the_same),
                                       cmocka_unit_test(scaled_embeddings_have_more_positions),
                                       cmocka_unit_test(the_spelling_of_the_file_is_kept),
                                       cmocka_unit_test(two_spellings_in_one_file_agree),
                                       cmocka_unit_test(windows_are_read_for_each_layer),
                                       cmocka_unit_test(keys_of_transformers_are_known),
                                       cmocka_unit_test(unknown_keys_are_listed),
                                       cmocka_unit_test(biases_are_read),
                                       cmocka_unit_test(refusals_name_key_and_value),
                                       cmocka_unit_test(swish_is_silu),
                                       cmocka_unit_test(parameters_are_counted),
                                       cmocka_unit_test(a_window_reduces_the_flops),
                                       cmocka_unit_test(inner_widths_have_a_default)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
