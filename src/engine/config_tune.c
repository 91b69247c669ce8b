/* The configuration keys tune.*: which low-rank updates (LoRA) a run trains instead of the model's own
 * weights. */
#include "config_private.h"

#include <stdio.h>
#include <string.h>

void config_check_tune(ax_config *c)
{
    static const char *const of_lora[] = {"tune.rank",   "tune.alpha",   "tune.targets",
                                          "tune.rslora", "tune.dropout", NULL};
    /* Earlier versions wrote an empty list, which stands for all, to a run's config.yaml. */
    if (!c->tune.targets.count && ax_option_ok(c->set, "tune.targets") &&
        ax_option_assign(c->set, "tune.targets", "all", "default") != AX_OK)
        ax_option_error(c->set, "tune.targets", "%s", ax_error_message());
    if (ax_option_ok(c->set, "tune.method") && c->tune.method != AX_CONFIG_LORA)
        config_check_unused(c, of_lora,
                            "has an effect only with tune.method: lora: set that, or leave this key out");
    if (ax_option_ok(c->set, "tune.method") && ax_option_ok(c->set, "model.from") &&
        c->tune.method == AX_CONFIG_LORA && !ax_config_given(c, "model.from"))
        ax_option_error(c->set, "tune.method",
                        "lora trains updates of an existing model: give that model as model.from");
}

/* Returns true if a word of the key tune.targets stands for the matrix: "all", its name, or the name of its
 * module in the family's files, as in PEFT. */
static bool is_meant(const ax_model_config *m, ax_matrix matrix, const char *word)
{
    int64_t out, in;
    char module[256];
    if (!ax_model_config_matrix(m, matrix, &out, &in))
        return false;
    ax_family_module(m->family, matrix, module);
    return !strcmp(word, "all") || !strcmp(word, ax_matrix_name(matrix)) || ax_module_matches(module, word);
}

/* Appends ", word" to a list, or "word" to an empty one, unless the list has the word. */
static void list_word(char list[128], const char *word)
{
    char spaced[130], wanted[130];
    snprintf(spaced, sizeof spaced, " %s,", list);
    snprintf(wanted, sizeof wanted, " %s,", word);
    if (!strstr(spaced, wanted))
        ax_text_add(list, 128, "%s%s", list[0] ? ", " : "", word);
}

/* Prints what tune.targets can name: "q, k, v, proj, up, down, or as in its files c_attn, c_proj, c_fc". */
static const char *list_matrices(const ax_model_config *m, char out[320])
{
    int64_t rows, cols;
    char own[128] = "", files[128] = "", module[256];
    for (int i = 0; i < AX_MATRIX_COUNT; i++) {
        if (!ax_model_config_matrix(m, (ax_matrix)i, &rows, &cols))
            continue;
        ax_family_module(m->family, (ax_matrix)i, module);
        list_word(own, ax_matrix_name((ax_matrix)i));
        list_word(files, strrchr(module, '.') + 1);
    }
    snprintf(out, 320, "%s, or as in its files %s", own, files);
    return out;
}

static void choose(ax_config *c, const ax_model_config *m, bool chosen[AX_MATRIX_COUNT])
{
    char list[320];
    const ax_strings *words = &c->tune.targets;
    for (size_t i = 0; i < words->count; i++) {
        bool found = false;
        for (int k = 0; k < AX_MATRIX_COUNT; k++) {
            bool meant = is_meant(m, (ax_matrix)k, words->items[i]);
            chosen[k] |= meant;
            found |= meant;
        }
        if (!found)
            ax_option_error(c->set, "tune.targets",
                            "the blocks of family %s have no matrix \"%s\"; they have %s",
                            ax_model_config_family(m), words->items[i], list_matrices(m, list));
    }
}

static bool keys_are_ok(const ax_config *c)
{
    static const char *const keys[] = {"tune.rank", "tune.alpha", "tune.targets", "tune.rslora",
                                       "tune.dropout"};
    for (size_t i = 0; i < AX_COUNT(keys); i++)
        if (!ax_option_ok(c->set, keys[i]))
            return false;
    return true;
}

void config_tune(ax_config *c, ax_model_config *m)
{
    bool chosen[AX_MATRIX_COUNT] = {false};
    int64_t out, in, rank = c->tune.rank;
    if (c->tune.method != AX_CONFIG_LORA || !keys_are_ok(c))
        return;
    choose(c, m, chosen);
    m->low_rank_root = c->tune.rslora;
    const ax_low_rank update = {.rank = rank,
                                .scale = ax_low_rank_scale(c->tune.alpha, (double)rank, c->tune.rslora),
                                .dropout = c->tune.dropout};
    for (int i = 0; i < AX_MATRIX_COUNT; i++) {
        if (!chosen[i] || !ax_model_config_matrix(m, (ax_matrix)i, &out, &in))
            continue;
        m->low_rank[i] = update;
        if (rank <= ax_min(out, in))
            continue;
        ax_option_error(c->set, "tune.rank",
                        "%lld is above %lld, the smaller side of matrix %s [%lld, %lld]: choose a smaller "
                        "rank, or leave the matrix out of tune.targets",
                        (long long)rank, (long long)ax_min(out, in), ax_matrix_name((ax_matrix)i),
                        (long long)out, (long long)in);
        return;
    }
}

/* ---- model.from is an adapter -------------------------------------------------------------------- */

/* Prints the names of the matrices that have an update: "q,v". */
static const char *list_updated(const ax_model_config *m, char out[128])
{
    out[0] = 0;
    for (int i = 0; i < AX_MATRIX_COUNT; i++)
        if (m->low_rank[i].rank)
            ax_text_add(out, 128, "%s%s", out[0] ? "," : "", ax_matrix_name((ax_matrix)i));
    return out;
}

/* Sets tune.targets to the matrices that the adapter updates. If the user gave the key, checks it instead. */
static void take_targets(ax_config *c, const ax_model_config *m)
{
    bool chosen[AX_MATRIX_COUNT] = {false}, same = true;
    char list[128];
    list_updated(m, list);
    if (!ax_config_given(c, "tune.targets")) {
        if (ax_option_assign(c->set, "tune.targets", list, "model.from") != AX_OK)
            ax_option_error(c->set, "tune.targets", "%s", ax_error_message());
        return;
    }
    choose(c, m, chosen);
    for (int i = 0; i < AX_MATRIX_COUNT; i++)
        same &= chosen[i] == (m->low_rank[i].rank > 0);
    if (!same)
        ax_option_error(
            c->set, "tune.targets",
            "must be [%s], the matrices that the adapter in model.from updates; leave the key out", list);
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
    for (int i = 0; i < AX_MATRIX_COUNT; i++)
        m->low_rank[i].dropout = c->tune.dropout;
}
