/* OLMoE (Muennighoff et al. 2024): Llama with experts in place of the MLP in all blocks, and RMSNorms over
 * all heads of q and of k. */
#include "model/llama_files.h"

static ax_status olmoe_read(const json_t *json, const char *path, ax_model_config *c)
{
    c->seq_len = 4096; /* the defaults of OlmoeConfig */
    c->norm_eps = 1e-5;
    c->experts.n = 64;
    c->experts.top_k = 8;
    AX_TRY(ax_llama_read(json, path, c));
    return ax_experts_read(json, path, c);
}

static ax_status olmoe_write(const ax_model_config *c, json_t *json)
{
    AX_TRY(ax_experts_write(c, "num_experts", json));
    return ax_llama_write(c, json);
}

static const ax_family_key names[] = {AX_LLAMA_NAMES,
                                      AX_EXPERTS_NAMES,
                                      {"num_experts", "model.experts"},
                                      {"norm_topk_prob", "model.renormalize"}};

static const ax_key_rule rules[] = {AX_NO_BIAS("mlp_bias"),
                                    {"layer_types", "null", NULL},
                                    {"qk_norm", "true null", NULL},
                                    {"use_qk_norm", "true null", NULL}};

const ax_family ax_family_olmoe = {.name = "olmoe",
                                   .architecture = "OlmoeForCausalLM",
                                   .defaults = {AX_LLAMA_FACTS, .no_bias = {true, true, true},
                                                .wide_norms = true,
                                                .experts = {.n = 8, .top_k = 2, .step = 1, .balance = 0.01}},
                                   .read = olmoe_read,
                                   .write = olmoe_write,
                                   AX_LLAMA_ARRAYS,
                                   .expert_keys = ax_mlp_expert_keys,
                                   .n_expert_keys = AX_EXPERT_KEYS,
                                   .names = names,
                                   .n_names = AX_COUNT(names),
                                   .reads = AX_EXPERTS_READS " attention_bias norm_topk_prob",
                                   .idle = AX_EXPERTS_IDLE,
                                   .rules = rules,
                                   .n_rules = AX_COUNT(rules)};
