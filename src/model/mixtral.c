/* Mixtral (Jiang et al. 2024): Mistral with experts in place of the MLP in all blocks. */
#include "model/llama_files.h"

#define OF_BLOCK(parameter, array, fused, part, parts)                                                       \
    {                                                                                                        \
        "h.%d.moe." parameter, "model.layers.%d.block_sparse_moe." array, "model.layers.%d.mlp." fused,      \
            part, parts                                                                                      \
    }

static const ax_expert_key arrays[] = {
    OF_BLOCK("router.weight", "gate.weight", "gate.weight", 0, 1),
    OF_BLOCK("gate.weight", "experts.*.w1.weight", "experts.gate_up_proj", 0, 2),
    OF_BLOCK("up.weight", "experts.*.w3.weight", "experts.gate_up_proj", 1, 2),
    OF_BLOCK("down.weight", "experts.*.w2.weight", "experts.down_proj", 0, 1),
};

static ax_status mixtral_read(const json_t *json, const char *path, ax_model_config *c)
{
    c->seq_len = 131072; /* the defaults of MixtralConfig */
    c->kv_heads = 8;
    c->norm_eps = 1e-5;
    c->rope.theta = 1e6;
    c->experts.balance = 0.001;
    AX_TRY(ax_llama_read(json, path, c));
    AX_TRY(ax_experts_read(json, path, c));
    c->window = 0;
    return ax_json_int(json, path, "sliding_window", true, &c->window);
}

static ax_status mixtral_write(const ax_model_config *c, json_t *json)
{
    AX_TRY(ax_experts_write(c, "num_local_experts", json));
    AX_TRY(ax_mistral_window_write(c, json));
    return ax_llama_write(c, json);
}

static const ax_family_key names[] = {
    AX_LLAMA_NAMES, AX_WINDOW_NAME, AX_EXPERTS_NAMES, {"num_local_experts", "model.experts"}};

static const ax_key_rule rules[] = {AX_NO_BIAS("attention_bias"),
                                    AX_NO_BIAS("mlp_bias"),
                                    {"layer_types", "null", NULL},
                                    {"router_jitter_noise", "0 null", NULL}};

const ax_family ax_family_mixtral = {
    .name = "mixtral",
    .architecture = "MixtralForCausalLM",
    .defaults = {AX_LLAMA_FACTS, .no_bias = {true, true, true},
                 .experts = {.n = 8, .top_k = 2, .renormalize = true, .step = 1, .balance = 0.01}},
    .read = mixtral_read,
    .write = mixtral_write,
    AX_LLAMA_ARRAYS,
    .expert_keys = arrays,
    .n_expert_keys = AX_COUNT(arrays),
    .names = names,
    .n_names = AX_COUNT(names),
    .reads = AX_EXPERTS_READS " sliding_window",
    .idle = AX_EXPERTS_IDLE,
    .rules = rules,
    .n_rules = AX_COUNT(rules)};
