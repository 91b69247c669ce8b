/* The configuration keys tune.*: which low-rank updates (LoRA) a run trains instead of the model's own
 * weights. */
#include "private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Replaces an empty list by the word "all", for which it stands: so PEFT reads layers_to_transform, and so
 * earlier versions wrote tune.targets to a run's config.yaml. */
static void take_empty_for_all(ax_config *c, const char *key, const ax_strings *list)
{
    if (!list->count && ax_option_ok(c->set, key) && ax_option_assign(c->set, key, "all", "default") != AX_OK)
        ax_option_error(c->set, key, "%s", ax_error_message());
}

void config_check_tune(ax_config *c)
{
    static const char *const of_lora[] = {
        "tune.rank", "tune.alpha", "tune.targets", "tune.layers", "tune.rslora", "tune.dropout", NULL};
    take_empty_for_all(c, "tune.targets", &c->tune.targets);
    take_empty_for_all(c, "tune.layers", &c->tune.layers);
    if (ax_option_ok(c->set, "tune.method") && c->tune.method != AX_CONFIG_LORA)
        config_check_unused(c, of_lora,
                            "has an effect only with tune.method: lora: set that, or leave this key out");
    if (ax_option_ok(c->set, "tune.method") && ax_option_ok(c->set, "model.from") &&
        c->tune.method == AX_CONFIG_LORA && !ax_config_given(c, "model.from"))
        ax_option_error(c->set, "tune.method",
                        "lora trains updates of an existing model: give that model as model.from");
}

/* Returns true if a word of the key tune.targets stands for the matrix: "all" (the matrices of blocks; PEFT's
 * word is "all-linear"), or a name of the matrix. */
static bool is_meant(const ax_model_config *m, ax_matrix matrix, const char *word)
{
    int64_t out, in;
    bool all = !strcmp(word, "all") || !strcmp(word, "all-linear");
    return ax_model_config_matrix_is(m, matrix, word) ||
           (all && matrix < AX_MATRIX_OF_BLOCK && ax_model_config_matrix(m, matrix, &out, &in));
}

static void choose(ax_config *c, const ax_model_config *m, bool chosen[AX_MATRIX_COUNT])
{
    char list[AX_MATRIX_LIST];
    const ax_strings *words = &c->tune.targets;
    for (size_t i = 0; i < words->count; i++) {
        bool found = false;
        for (int k = 0; k < AX_MATRIX_COUNT; k++) {
            bool meant = is_meant(m, (ax_matrix)k, words->items[i]);
            chosen[k] |= meant;
            found |= meant;
        }
        if (!found)
            ax_option_error(c->set, "tune.targets", "models of family %s have no matrix \"%s\"; they have %s",
                            ax_model_config_family(m), words->items[i],
                            ax_model_config_list_matrices(m, AX_MATRIX_COUNT, list));
    }
}

static bool keys_are_ok(const ax_config *c)
{
    static const char *const keys[] = {"tune.rank",   "tune.alpha",  "tune.targets",
                                       "tune.rslora", "tune.layers", "tune.dropout"};
    for (size_t i = 0; i < AX_COUNT(keys); i++)
        if (!ax_option_ok(c->set, keys[i]))
            return false;
    return true;
}

bool config_mark_blocks(const char *word, int64_t blocks, char *chosen, char mark)
{
    char *end;
    if (!strcmp(word, "all")) {
        memset(chosen, mark, (size_t)blocks);
        return true;
    }
    if (word[strspn(word, "0123456789-")] || !*word || *word == '-')
        return false;
    long long first = strtoll(word, &end, 10), last = first;
    if (*end == '-' && end[1] && end[1] != '-')
        last = strtoll(end + 1, &end, 10);
    if (*end || last < first || last >= blocks)
        return false;
    memset(chosen + first, mark, (size_t)(last - first + 1));
    return true;
}

static void choose_blocks(ax_config *c, int64_t blocks, bool used, char *chosen)
{
    const ax_strings *words = &c->tune.layers;
    if (!used && words->count && strcmp(words->items[0], "all") != 0) {
        ax_option_error(c->set, "tune.layers",
                        "has an effect only if tune.targets names matrices of the blocks");
        return;
    }
    for (size_t i = 0; i < words->count; i++)
        if (!config_mark_blocks(words->items[i], blocks, chosen, 1))
            ax_option_error(c->set, "tune.layers",
                            "\"%s\" is no block of this model, whose blocks are 0 to %lld, and no range of "
                            "them such as 0-%lld; a list is written [0, %lld]",
                            words->items[i], (long long)blocks - 1, (long long)blocks - 1,
                            (long long)blocks - 1);
}

/* Gives the chosen matrices an update in the chosen blocks. `updates` has room for one update per block. */
static void set_updates(ax_config *c, ax_model_config *m, const bool chosen[AX_MATRIX_COUNT],
                        const char *blocks, ax_low_rank *updates)
{
    const ax_low_rank update = {.rank = c->tune.rank,
                                .scale =
                                    ax_low_rank_scale(c->tune.alpha, (double)c->tune.rank, c->tune.rslora),
                                .dropout = c->tune.dropout};
    for (int i = 0; i < AX_MATRIX_COUNT; i++) {
        for (int64_t k = 0; k < ax_model_config_matrix_count(m, (ax_matrix)i); k++)
            updates[k] = chosen[i] && (blocks[k] || i >= AX_MATRIX_OF_BLOCK) ? update : (ax_low_rank){0};
        if (ax_model_config_set_updates(m, (ax_matrix)i, updates) != AX_OK)
            ax_option_error(c->set, "tune.layers", "%s", ax_error_message());
    }
}

/* Records an error if the rank is larger than a side of a chosen matrix. */
static void check_rank(ax_config *c, const ax_model_config *m, const bool chosen[AX_MATRIX_COUNT])
{
    int64_t out, in, rank = c->tune.rank;
    for (int i = 0; i < AX_MATRIX_COUNT; i++) {
        if (!chosen[i] || !ax_model_config_matrix(m, (ax_matrix)i, &out, &in) || rank <= ax_min(out, in))
            continue;
        ax_option_error(c->set, "tune.rank",
                        "%lld is above %lld, the smaller side of matrix %s [%lld, %lld]: choose a smaller "
                        "rank, or leave the matrix out of tune.targets",
                        (long long)rank, (long long)ax_min(out, in), ax_matrix_name((ax_matrix)i),
                        (long long)out, (long long)in);
        return;
    }
}

void config_tune(ax_config *c, ax_model_config *m)
{
    bool chosen[AX_MATRIX_COUNT] = {false};
    char *blocks = NULL;
    ax_low_rank *updates = NULL;
    if (c->tune.method != AX_CONFIG_LORA || !keys_are_ok(c))
        return;
    choose(c, m, chosen);
    m->low_rank_root = c->tune.rslora;
    check_rank(c, m, chosen);
    if (ax_calloc((size_t)m->layers, 1, &blocks) == AX_OK &&
        ax_calloc((size_t)m->layers, sizeof *updates, &updates) == AX_OK) {
        bool used = false;
        for (int i = 0; i < AX_MATRIX_OF_BLOCK; i++)
            used |= chosen[i];
        choose_blocks(c, m->layers, used, blocks);
        set_updates(c, m, chosen, blocks, updates);
    } else
        ax_option_error(c->set, "tune.layers", "%s", ax_error_message());
    free(blocks);
    free(updates);
}

/* ---- model.from is an adapter -------------------------------------------------------------------- */

/* Prints the names of the matrices that have an update: "q,v". */
static const char *list_updated(const ax_model_config *m, char out[128])
{
    out[0] = 0;
    for (int i = 0; i < AX_MATRIX_COUNT; i++)
        if (ax_model_config_update_count(m, (ax_matrix)i))
            ax_text_add(out, 128, "%s%s", out[0] ? "," : "", ax_matrix_name((ax_matrix)i));
    return out;
}

/* Replaces the items of *out by those of a list that commas separate. */
static ax_status set_items(ax_strings *out, const char *list)
{
    ax_strings_fini(out);
    for (size_t n; *list; list += n + (list[n] == ',')) {
        n = strcspn(list, ",");
        AX_TRY(ax_strings_add(out, "%.*s", (int)n, list));
    }
    return AX_OK;
}

/* Sets `key`, a list, to `list`, what the adapter says, unless the user gave the key. */
static void take_list(ax_config *c, const char *key, ax_strings *value, const char *list)
{
    if (!ax_config_given(c, key) && set_items(value, list) != AX_OK)
        ax_option_error(c->set, key, "%s", ax_error_message());
}

/* Sets tune.targets to the matrices that the adapter updates. If the user gave the key, checks it instead. */
static void take_targets(ax_config *c, const ax_model_config *m)
{
    bool chosen[AX_MATRIX_COUNT] = {false}, same = true;
    char list[128];
    take_list(c, "tune.targets", &c->tune.targets, list_updated(m, list));
    if (!ax_option_ok(c->set, "tune.targets"))
        return;
    choose(c, m, chosen);
    for (int i = 0; i < AX_MATRIX_COUNT; i++)
        same &= chosen[i] == (ax_model_config_update_count(m, (ax_matrix)i) > 0);
    if (!same)
        ax_option_error(
            c->set, "tune.targets",
            "must be [%s], the matrices that the adapter in model.from updates; leave the key out", list);
}

/* Sets tune.layers to the blocks in which the adapter updates matrices (all, if blocks do not differ). If the
 * user gave the key, checks it instead. */
static void take_blocks(ax_config *c, const ax_model_config *m)
{
    ax_buf list = {0};
    char *chosen = NULL;
    bool same = true;
    ax_status status = ax_model_config_print_blocks(m, &list);
    if (status == AX_OK)
        status = ax_calloc((size_t)m->layers, 1, &chosen);
    if (status != AX_OK)
        ax_option_error(c->set, "tune.layers", "%s", ax_error_message());
    else
        take_list(c, "tune.layers", &c->tune.layers, list.data);
    if (chosen && ax_option_ok(c->set, "tune.layers"))
        choose_blocks(c, m->layers, true, chosen);
    for (int64_t i = 0; chosen && i < m->layers && ax_option_ok(c->set, "tune.layers"); i++)
        same &= (chosen[i] != 0) == (!m->low_rank_blocks || ax_model_config_block_is_adapted(m, i));
    if (!same)
        ax_option_error(c->set, "tune.layers",
                        "must be [%s], the blocks that the adapter in model.from updates; leave the key out",
                        list.data);
    free(chosen);
    ax_buf_fini(&list);
}

static void take_numbers(ax_config *c, const ax_adapter *adapter)
{
    const char *const rslora = adapter->root ? "true" : "false";
    if (ax_config_given(c, "tune.rank") && c->tune.rank != adapter->rank)
        ax_option_error(c->set, "tune.rank",
                        "must be %lld, as in the adapter in model.from; leave the key out",
                        (long long)adapter->rank);
    if (ax_config_given(c, "tune.alpha") && c->tune.alpha != adapter->alpha)
        ax_option_error(c->set, "tune.alpha",
                        "must be %g, as in the adapter in model.from; leave the key out", adapter->alpha);
    if (ax_config_given(c, "tune.rslora") && c->tune.rslora != adapter->root)
        ax_option_error(c->set, "tune.rslora",
                        "must be %s, as in the adapter in model.from; leave the key out", rslora);
    if (!(adapter->alpha > 0)) /* the run's config.yaml could not be given */
        ax_option_error(c->set, "model.from",
                        "the adapter %s has lora_alpha %g, but only updates with one above 0 are trained: "
                        "merge it with its base (axonn ckpt convert %s --out DIR), set model.from to DIR, "
                        "and train a new adapter",
                        c->model.from, adapter->alpha, c->model.from);
    c->tune.rank = adapter->rank;
    c->tune.alpha = adapter->alpha;
    c->tune.rslora = adapter->root;
    if (!ax_config_given(c, "tune.dropout"))
        c->tune.dropout = adapter->dropout;
    if (!(c->tune.dropout >= 0 && c->tune.dropout < 1))
        ax_option_error(
            c->set, "tune.dropout",
            "is not given, and the adapter in model.from has lora_dropout %g, which is not in [0, "
            "1): give a rate",
            c->tune.dropout);
}

void config_continue(ax_config *c, ax_model_config *m, const ax_adapter *adapter)
{
    if (c->tune.method != AX_CONFIG_LORA) {
        ax_option_error(
            c->set, "model.from",
            "%s is an adapter: set tune.method to lora to train it further. To train all weights, "
            "merge it with its base (axonn ckpt convert %s --out DIR) and set model.from to DIR",
            c->model.from, c->model.from);
        return;
    }
    if (!keys_are_ok(c))
        return;
    take_numbers(c, adapter);
    take_targets(c, m);
    take_blocks(c, m);
    for (int i = 0; i < AX_MATRIX_COUNT; i++)
        m->low_rank[i].dropout = c->tune.dropout;
    for (int64_t i = 0; i < m->layers * AX_MATRIX_OF_BLOCK && m->low_rank_blocks; i++)
        m->low_rank_blocks[i].dropout = c->tune.dropout;
}
