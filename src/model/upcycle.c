/* Describes the model with experts that is made of a dense one (sparse upcycling, Komatsuzaki et al. 2023):
 * each expert begins as a copy of the MLP. The weights of a token's experts are renormalized, so their sum is
 * that of one MLP. */
#include "model/family.h"

#include <stdio.h>
#include <string.h>

/* Families whose MLPs may become experts, and the families of the results. */
static const struct {
    const char *dense, *sparse;
} pairs[] = {{"llama", "mixtral"}, {"mistral", "mixtral"}, {"ministral", "mixtral"}, {"qwen3", "qwen3_moe"}};

static ax_status find_sparse(const ax_model_config *dense, const ax_family **out)
{
    for (size_t i = 0; i < AX_COUNT(pairs); i++)
        if (!strcmp(pairs[i].dense, dense->family->name))
            return ax_family_find(pairs[i].sparse, out);
    return ax_fail(
        AX_ERR_USAGE,
        "models of family %s cannot become a mixture of experts: those of llama and mistral become "
        "mixtral, those of qwen3 qwen3_moe",
        dense->family->name);
}

ax_status ax_model_config_upcycle(const ax_model_config *dense, int64_t experts, int64_t top_k,
                                  ax_model_config *out)
{
    const ax_family *family;
    *out = (ax_model_config){0};
    AX_TRY(find_sparse(dense, &family));
    const ax_no_bias *lacks = &dense->no_bias;
    const bool qkv = ax_family_reads(family, "attention_bias");
    AX_CHECK(lacks->mlp && (qkv || (lacks->qkv && lacks->proj)), AX_ERR_USAGE,
             "the model's %s biases, which models of family %s do not have",
             lacks->mlp ? "attention has" : "MLPs have", family->name);
    AX_CHECK(!dense->window_layers, AX_ERR_USAGE,
             "some layers of the model have a sliding window and others have none, which models of family %s "
             "cannot have",
             family->name);
    AX_TRY(ax_model_config_copy(dense, out));
    out->family = family;
    out->experts = family->defaults.experts;
    out->experts.n = experts;
    out->experts.top_k = top_k;
    out->experts.renormalize = true;
    return ax_model_config_check(out);
}

/* Returns the row of the key map whose arrays array `key` of a dense model becomes, or NULL. `key` may lack
 * the family's prefix. */
static const ax_expert_key *find_row(const ax_family *family, const char *key, int *block)
{
    const size_t n = strlen(family->prefix);
    for (int i = 0; i < family->n_keys; i++) {
        const ax_key_map *dense = &family->keys[i];
        if (!strstr(dense->name, ".mlp.") ||
            !(ax_key_is(key, dense->key, block) || ax_key_is(key, dense->key + n, block)))
            continue;
        for (int k = 0; k < family->n_expert_keys; k++)
            if (!strcmp(strstr(family->expert_keys[k].name, ".moe.") + 5, strstr(dense->name, ".mlp.") + 5))
                return &family->expert_keys[k];
    }
    return NULL;
}

/* Writes the name of an array. `whole`: with the family's prefix. */
static void print_key(const ax_family *family, const char *pattern, bool whole, int block, int64_t expert,
                      char out[AX_KEY_TEXT])
{
    ax_key_print(pattern + (whole ? 0 : strlen(family->prefix)), block, expert, out);
}

bool ax_upcycled_name(const ax_model_config *sparse, const char *key, int64_t index, char out[512])
{
    const ax_family *family = sparse->family;
    int block;
    const ax_expert_key *row = find_row(family, key, &block);
    if (!row) {
        snprintf(out, 512, "%s", key);
        return index == 0;
    }
    print_key(family, row->key, !strncmp(key, family->prefix, strlen(family->prefix)), block, index, out);
    return index < sparse->experts.n;
}

void ax_upcycled_router(const ax_model_config *sparse, bool whole, int64_t block, char out[512])
{
    const ax_family *family = sparse->family;
    for (int k = 0; k < family->n_expert_keys; k++)
        if (strstr(family->expert_keys[k].name, ".router."))
            print_key(family, family->expert_keys[k].key, whole, (int)block, 0, out);
}
