/* The keys of config.json and the arrays in weight files of the families with experts: mixtral, qwen3_moe,
 * olmoe. */
#include "model/llama_files.h"

#include <stdlib.h>
#include <string.h>

#define OF_MLP(parameter, array, fused, part, parts)                                                         \
    {                                                                                                        \
        "h.%d.moe." parameter, "model.layers.%d.mlp." array, "model.layers.%d.mlp." fused, part, parts       \
    }

const ax_expert_key ax_mlp_expert_keys[AX_EXPERT_KEYS] = {
    OF_MLP("router.weight", "gate.weight", "gate.weight", 0, 1),
    OF_MLP("gate.weight", "experts.*.gate_proj.weight", "experts.gate_up_proj", 0, 2),
    OF_MLP("up.weight", "experts.*.up_proj.weight", "experts.gate_up_proj", 1, 2),
    OF_MLP("down.weight", "experts.*.down_proj.weight", "experts.down_proj", 0, 1),
};

/* Files have num_experts, or num_local_experts, or both. */
static ax_status read_count(const json_t *json, const char *path, int64_t *out)
{
    int64_t other = 0;
    AX_TRY(ax_json_int(json, path, "num_local_experts", true, &other));
    *out = other ? other : *out;
    AX_TRY(ax_json_int(json, path, "num_experts", true, out));
    AX_CHECK(!other || other == *out, AX_ERR_DATA,
             "%s: num_local_experts is %lld and num_experts %lld: they are two names of one number", path,
             (long long)other, (long long)*out);
    return AX_OK;
}

ax_status ax_experts_read(const json_t *json, const char *path, ax_model_config *c)
{
    ax_model_experts *e = &c->experts;
    AX_TRY(read_count(json, path, &e->n));
    AX_TRY(ax_json_int(json, path, "num_experts_per_tok", true, &e->top_k));
    AX_TRY(ax_json_number(json, path, "router_aux_loss_coef", true, &e->balance));
    if (ax_family_reads(c->family, "norm_topk_prob"))
        AX_TRY(ax_json_bool(json, path, "norm_topk_prob", &e->renormalize));
    return AX_OK;
}

ax_status ax_experts_write(const ax_model_config *c, const char *count, json_t *json)
{
    const ax_model_experts *e = &c->experts;
    const char *other = strcmp(count, "num_experts") ? "num_experts" : "num_local_experts";
    const bool keeps = json_object_get(json, other), has = ax_family_reads(c->family, "norm_topk_prob");
    AX_CHECK(
        has || e->renormalize, AX_ERR_USAGE,
        "models of family %s divide the weights of a token's experts by their sum: config.json has no key to "
        "say otherwise",
        c->family->name);
    const bool failed = json_object_set_new(json, count, json_integer(e->n)) ||
                        (keeps && json_object_set_new(json, other, json_integer(e->n))) ||
                        json_object_set_new(json, "num_experts_per_tok", json_integer(e->top_k)) ||
                        json_object_set_new(json, "router_aux_loss_coef", json_real(e->balance)) ||
                        (has && json_object_set_new(json, "norm_topk_prob", json_boolean(e->renormalize)));
    AX_CHECK(!failed, AX_ERR_MEMORY, "not enough memory for the text of the model's config.json");
    return AX_OK;
}

ax_status ax_dense_read(const json_t *json, const char *path, ax_model_config *c)
{
    const json_t *list = json_object_get(json, "mlp_only_layers");
    AX_CHECK(!list || json_is_null(list) || json_is_array(list), AX_ERR_DATA,
             "%s: \"mlp_only_layers\" must be a list of numbers of blocks", path);
    AX_CHECK(c->layers <= AX_LAYERS_MAX, AX_ERR_DATA, "%s: num_hidden_layers = %lld is above the maximum, %d",
             path, (long long)c->layers, AX_LAYERS_MAX);
    if (!json_array_size(list))
        return AX_OK;
    AX_TRY(ax_calloc((size_t)c->layers + 1, 1, &c->experts.dense));
    memset(c->experts.dense, '0', (size_t)c->layers);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *number = json_array_get(list, i);
        const json_int_t block = json_is_integer(number) ? json_integer_value(number) : -1;
        AX_CHECK(block >= 0, AX_ERR_DATA, "%s: mlp_only_layers[%zu] is not the number of a block", path, i);
        if (block < c->layers) /* as in transformers, others are ignored */
            c->experts.dense[block] = '1';
    }
    return AX_OK;
}

ax_status ax_dense_write(const ax_model_config *c, json_t *json)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < c->layers && c->experts.dense; i++)
        if (c->experts.dense[i] == '1')
            json_array_append_new(list, json_integer(i));
    AX_CHECK(!json_object_set_new(json, "mlp_only_layers", list), AX_ERR_MEMORY,
             "not enough memory for the text of the model's config.json");
    return AX_OK;
}
