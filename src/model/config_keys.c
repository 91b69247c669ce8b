/* What the program does with each key of config.json. A key that it does not know is not an error, but it is
 * reported (ax_model_config_unknown); a key that would change the network in a way that is not implemented is
 * refused by its value.
 *
 * The table here has the keys that do not depend on the family; each family has a table of its own keys. The
 * golden file config_fields.json lists the keys of transformers' classes, and test model.families checks that
 * the tables have all of them. */
#include "model/family.h"

#include <string.h>

/* Keys of every class of transformers, versions 4 and 5, and keys that other programs write, separated by
 * blanks. `reads`: those that family.c and ax_pretrained_open read. `idle`: those without effect on the
 * network. */
/* clang-format off */
static const char reads[] =
    "model_type vocab_size tie_word_embeddings dtype torch_dtype bos_token_id eos_token_id";
static const char idle[] =
    /* what the model is, and where it comes from */
    "_name_or_path name_or_path _commit_hash architectures transformers_version tokenizer_class "
    "finetuning_task task_specific_params unsloth_fixed unsloth_version is_llama_config "
    "transformers.js_config "
    /* tokens; transformers does not train the embedding of pad_token_id, which no row here has as a token */
    "pad_token_id sep_token_id unk_token_id decoder_start_token_id prefix "
    /* how the same numbers are computed, and what is returned beside them */
    "use_cache output_hidden_states output_attentions return_dict use_return_dict torchscript "
    "use_bfloat16 tf_legacy_loss pretraining_tp gradient_checkpointing chunk_size_feed_forward attn_implementation "
    "_attn_implementation _attn_implementation_internal experts_implementation _experts_implementation "
    "_experts_implementation_internal fusion_config distributed_config compile_config _attn_was_changed "
    "_pre_quantization_dtype tie_last_hidden_states init_std initializer_factor "
    /* heads of classifiers, encoders and decoders, layers beside the model's */
    "id2label label2id num_labels _num_labels problem_type classifier_dropout hidden_dropout "
    "token_classification_bias is_decoder tie_encoder_decoder cross_attention_hidden_size num_mtp_layers "
    "mtp_layer_types mtp_per_layer_config mtp_mlp_layer_types mtp_hidden_states_first "
    "number_of_conv_states "
    /* a copy of max_position_embeddings */
    "max_sequence_length "
    /* generation: generation_config.json has these */
    "assistant_confidence_threshold assistant_lookbehind bad_words_ids begin_suppress_tokens "
    "diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size encoder_repetition_penalty "
    "epsilon_cutoff eta_cutoff exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id "
    "length_penalty max_length min_length no_repeat_ngram_size num_assistant_tokens "
    "num_assistant_tokens_schedule num_beam_groups num_beams num_return_sequences output_scores "
    "remove_invalid_values repetition_penalty return_dict_in_generate suppress_tokens target_lookbehind "
    "temperature top_k top_p typical_p";

/* Keys with the values that are implemented. */
static const ax_key_rule rules[] = {
    /* what changes the network in transformers */
    {"is_encoder_decoder", "false null", NULL}, {"add_cross_attention", "false null", NULL},
    {"is_causal", "true null", NULL}, {"pruned_heads", "{} null", NULL},
    {"per_layer_config", "null {}", NULL}, {"kv_sharing_modes", "null", NULL},
    {"num_kv_shared_layers", "null 0", NULL}, {"attention_chunk_size", "null", NULL},
    {"mlp_layer_types", "null", NULL}, {"transformers_weights", "null", NULL},
    {"loss_type", "null \"ForCausalLM\"", NULL}, {"quantization_config", "null", NULL},
    {"compression_config", "null", NULL}, {"quantization", "null", NULL},
    /* what scales, masks or adds something in other families, and the values for which it does not */
    {"attention_multiplier", "null", NULL}, {"embedding_multiplier", "1 null", NULL},
    {"residual_multiplier", "1 null", NULL}, {"logits_scaling", "1 null", NULL},
    {"logit_scale", "1 null", NULL}, {"scale_emb", "1 null", NULL}, {"scale_depth", "null", NULL},
    {"dim_model_base", "null", NULL}, {"attn_logit_softcapping", "null 0", NULL},
    {"final_logit_softcapping", "null 0", NULL}, {"query_pre_attn_scalar", "null", NULL},
    {"clip_qkv", "null", NULL}, {"qk_norm", "false null", NULL}, {"use_qk_norm", "false null", NULL},
    {"qk_layernorm", "false null", NULL}, {"qkv_bias", "false null", NULL},
    {"use_bias", "false null", NULL}, {"no_rope_layers", "null []", NULL},
    {"use_bidirectional_attention", "false null", NULL}, {"use_mrope", "false null", NULL},
    {"rope_interleaved", "false null", NULL}, {"alibi", "false null", NULL},
    {"use_alibi", "false null", NULL}, {"use_parallel_residual", "false null", NULL},
    {"parallel_attn", "false null", NULL}, {"num_experts", "null 0", NULL},
    {"num_local_experts", "null 0", NULL}, {"n_routed_experts", "null 0", NULL},
    {"sliding_window", "null", NULL}, {"use_sliding_window", "false null", NULL},
};
/* clang-format on */

bool ax_config_keys_list_has(const char *list, const char *text)
{
    for (size_t n; list && *list; list += n + (list[n] == ' ')) {
        n = strcspn(list, " ");
        if (n == strlen(text) && !memcmp(text, list, n))
            return true;
    }
    return false;
}

bool ax_family_reads(const ax_family *family, const char *key)
{
    return ax_config_keys_list_has(family->reads, key);
}

static const ax_key_rule *find_rule(const ax_key_rule *of, size_t n, const char *key)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(of[i].key, key))
            return &of[i];
    return NULL;
}

/* Returns true if the key is known, and sets *rule to its rule, or to NULL if all its values are accepted.
 * What a family says of a key counts, rather than what is said of all families. */
static bool find_key(const ax_family *family, const char *key, const ax_key_rule **rule)
{
    *rule = find_rule(family->rules, (size_t)family->n_rules, key);
    if (*rule || ax_family_reads(family, key) || ax_config_keys_list_has(family->idle, key))
        return true;
    *rule = find_rule(rules, AX_COUNT(rules), key);
    return *rule || ax_config_keys_list_has(reads, key) || ax_config_keys_list_has(idle, key);
}

/* Fails unless the value is one of those that the rule lists. */
static ax_status check_value(const ax_key_rule *rule, const json_t *value, const char *path)
{
    ax_buf text = {0};
    if (json_is_number(value)) /* 1.0 is 1 */
        AX_TRY(ax_buf_printf(&text, "%.12g", json_number_value(value)));
    else
        AX_TRY(ax_json_print(value, JSON_COMPACT | JSON_ENCODE_ANY, &text));
    ax_status status = AX_OK;
    if (!ax_config_keys_list_has(rule->only, text.data))
        status = ax_fail(
            AX_ERR_DATA, "%s: %s = %.60s%s is not implemented (accepted: %s), so this model cannot be used%s",
            path, rule->key, text.data, strlen(text.data) > 60 ? "…" : "", rule->only,
            strncmp(rule->key, "quant", 5) ? "" : ": use the model's files without quantization");
    ax_buf_fini(&text);
    return status;
}

/* Moves the value of an alias to the key that it stands for (rule->alias). */
static ax_status resolve(const ax_key_rule *rule, json_t *json, const char *path)
{
    json_t *value = json_object_get(json, rule->key), *other = json_object_get(json, rule->alias);
    AX_CHECK(!other || json_is_null(value) || json_equal(value, other), AX_ERR_DATA,
             "%s: %s and %s are two names of one value, but their values differ: remove one of them", path,
             rule->key, rule->alias);
    AX_CHECK(other || json_is_null(value) || !json_object_set(json, rule->alias, value), AX_ERR_MEMORY,
             "not enough memory for the text of the model's config.json");
    return AX_OK;
}

ax_status ax_config_keys_check(const ax_family *family, json_t *json, const char *path)
{
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach_safe(json, next, key, value)
    {
        const ax_key_rule *rule;
        if (find_key(family, key, &rule) && rule && rule->only)
            AX_TRY(check_value(rule, value, path));
    }
    for (int i = 0; i < family->n_rules; i++)
        if (family->rules[i].alias && json_object_get(json, family->rules[i].key))
            AX_TRY(resolve(&family->rules[i], json, path));
    return AX_OK;
}

void ax_config_keys_drop_aliases(const ax_family *family, json_t *json)
{
    for (int i = 0; i < family->n_rules; i++)
        if (family->rules[i].alias)
            json_object_del(json, family->rules[i].key);
}

ax_status ax_config_keys_add_unknown(ax_buf *out, const char *object, const char *key)
{
    return ax_buf_printf(out, "%s%s%s%.80s", out->size ? ", " : "", object, *object ? "." : "", key);
}

static ax_status list_unknown(const ax_family *family, const json_t *json, ax_buf *out)
{
    const char *key;
    json_t *value;
    const ax_key_rule *rule;
    json_object_foreach((json_t *)json, key, value)
    {
        if (!find_key(family, key, &rule))
            AX_TRY(ax_config_keys_add_unknown(out, "", key));
    }
    return ax_family_reads(family, "rope_theta") ? ax_rope_list_unused(json, out) : AX_OK;
}

ax_status ax_model_config_unknown(const ax_model_config *config, ax_buf *out)
{
    json_t *json;
    if (!config->source)
        return AX_OK;
    AX_TRY(ax_json_parse("config.json", config->source, strlen(config->source), 0, &json));
    ax_status status = list_unknown(config->family, json, out);
    json_decref(json);
    return status;
}

ax_status ax_model_config_warn(const ax_model_config *config, const char *path)
{
    ax_buf unknown = {0};
    ax_status status = ax_model_config_unknown(config, &unknown);
    if (status == AX_OK && unknown.size)
        ax_log(AX_LOG_WARN,
               "%s: keys that models of family %s do not have are ignored; if they describe the network, the "
               "results are not its own: %s",
               path, config->family->name, unknown.data);
    ax_buf_fini(&unknown);
    return status;
}
