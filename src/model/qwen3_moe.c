/* Qwen 3 with experts (Yang et al. 2025): Qwen 3 with experts in place of the MLP, in all blocks or in some.
 */
#include "model/llama_files.h"

static ax_status qwen3_moe_read(const json_t *json, const char *path, ax_model_config *c)
{
    ax_model_experts *e = &c->experts;
    c->seq_len = 32768; /* the defaults of Qwen3MoeConfig */
    c->kv_heads = 4;
    e->n = 128;
    e->top_k = 8;
    e->ffn = 768;
    e->balance = 0.001;
    AX_TRY(ax_llama_read(json, path, c));
    AX_TRY(ax_experts_read(json, path, c));
    AX_TRY(ax_json_int(json, path, "moe_intermediate_size", true, &e->ffn));
    AX_TRY(ax_json_int(json, path, "decoder_sparse_step", true, &e->step));
    AX_TRY(ax_dense_read(json, path, c));
    return ax_qwen_moe_window_read(json, path, c);
}

static ax_status qwen3_moe_write(const ax_model_config *c, json_t *json)
{
    AX_TRY(ax_experts_write(c, "num_experts", json));
    AX_TRY(ax_dense_write(c, json));
    AX_TRY(ax_qwen_moe_window_write(c, json));
    const bool failed =
        json_object_set_new(json, "moe_intermediate_size", json_integer(ax_model_config_expert_ffn(c))) ||
        json_object_set_new(json, "decoder_sparse_step", json_integer(c->experts.step));
    AX_CHECK(!failed, AX_ERR_MEMORY, "not enough memory for the text of the model's config.json");
    return ax_llama_write(c, json);
}

static const ax_family_key names[] = {AX_LLAMA_NAMES,
                                      AX_WINDOW_NAME,
                                      AX_EXPERTS_NAMES,
                                      {"num_experts", "model.experts"},
                                      {"moe_intermediate_size", "model.expert_ffn"},
                                      {"norm_topk_prob", "model.renormalize"},
                                      {"decoder_sparse_step", "model.sparse_step"},
                                      {"mlp_only_layers", "model.dense_layers"}};

static const ax_key_rule rules[] = {AX_NO_BIAS("mlp_bias"),
                                    {"layer_types", "null", NULL},
                                    {"qk_norm", "true null", NULL},
                                    {"use_qk_norm", "true null", NULL}};

const ax_family ax_family_qwen3_moe = {
    .name = "qwen3_moe",
    .architecture = "Qwen3MoeForCausalLM",
    .defaults = {AX_LLAMA_FACTS, .no_bias = {true, true, true}, .head_norms = true,
                 .experts = {.n = 8, .top_k = 2, .step = 1, .balance = 0.01}},
    .read = qwen3_moe_read,
    .write = qwen3_moe_write,
    AX_LLAMA_ARRAYS,
    .expert_keys = ax_mlp_expert_keys,
    .n_expert_keys = AX_EXPERT_KEYS,
    .names = names,
    .n_names = AX_COUNT(names),
    .reads = AX_EXPERTS_READS " attention_bias norm_topk_prob moe_intermediate_size decoder_sparse_step "
                              "mlp_only_layers sliding_window use_sliding_window",
    .idle = AX_EXPERTS_IDLE " max_window_layers shared_expert_intermediate_size",
    .rules = rules,
    .n_rules = AX_COUNT(rules)};
