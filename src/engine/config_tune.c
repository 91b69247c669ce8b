/* The keys `tune`: which low-rank updates a run trains instead of the model's own weights. */
#include "config_private.h"

#include <stdio.h>
#include <string.h>

void config_check_tune(ax_config *c)
{
    static const char *const of_lora[] = {"tune.rank", "tune.alpha", "tune.targets", NULL};
    if (ax_option_ok(c->set, "tune.method") && c->tune.method != AX_CONFIG_LORA)
        config_check_unused(c, of_lora, "belongs to tune.method: lora, which is not set");
    if (ax_option_ok(c->set, "tune.method") && ax_option_ok(c->set, "model.from") &&
        c->tune.method == AX_CONFIG_LORA && !ax_config_given(c, "model.from"))
        ax_option_error(c->set, "tune.method",
                        "lora trains updates of an existing model: give this model as model.from");
}

/* Returns the matrix with this name, or AX_MATRIX_COUNT if the model lacks it. */
static ax_matrix find_matrix(const ax_model_config *m, const char *name)
{
    int64_t out, in;
    int i = 0;
    while (i < AX_MATRIX_COUNT && (strcmp(ax_matrix_name((ax_matrix)i), name) != 0 ||
                                   !ax_model_config_matrix(m, (ax_matrix)i, &out, &in)))
        i++;
    return (ax_matrix)i;
}

/* Prints the names of the model's matrices: "q, k, v, proj, up, down". */
static const char *list_matrices(const ax_model_config *m, char out[128])
{
    int64_t rows, cols;
    out[0] = 0;
    for (int i = 0; i < AX_MATRIX_COUNT; i++)
        if (ax_model_config_matrix(m, (ax_matrix)i, &rows, &cols))
            ax_text_add(out, 128, "%s%s", out[0] ? ", " : "", ax_matrix_name((ax_matrix)i));
    return out;
}

static void choose(ax_config *c, ax_model_config *m, bool chosen[AX_MATRIX_COUNT])
{
    int64_t out, in;
    char list[128];
    for (int i = 0; i < AX_MATRIX_COUNT && !c->tune.targets.count; i++)
        chosen[i] = ax_model_config_matrix(m, (ax_matrix)i, &out, &in);
    for (size_t i = 0; i < c->tune.targets.count; i++) {
        ax_matrix matrix = find_matrix(m, c->tune.targets.items[i]);
        if (matrix < AX_MATRIX_COUNT)
            chosen[matrix] = true;
        else
            ax_option_error(c->set, "tune.targets",
                            "the blocks of family %s have no matrix \"%s\"; they have %s",
                            ax_model_config_family(m), c->tune.targets.items[i], list_matrices(m, list));
    }
}

void config_tune(ax_config *c, ax_model_config *m)
{
    bool chosen[AX_MATRIX_COUNT] = {false};
    int64_t out, in, rank = c->tune.rank;
    if (c->tune.method != AX_CONFIG_LORA || !ax_option_ok(c->set, "tune.rank") ||
        !ax_option_ok(c->set, "tune.alpha") || !ax_option_ok(c->set, "tune.targets"))
        return;
    choose(c, m, chosen);
    for (int i = 0; i < AX_MATRIX_COUNT; i++) {
        if (!chosen[i] || !ax_model_config_matrix(m, (ax_matrix)i, &out, &in))
            continue;
        m->low_rank[i] = (ax_low_rank){rank, c->tune.alpha / (double)rank};
        if (rank <= ax_min(out, in))
            continue;
        ax_option_error(c->set, "tune.rank", "%lld is above %lld, the smaller side of matrix %s [%lld, %lld]",
                        (long long)rank, (long long)ax_min(out, in), ax_matrix_name((ax_matrix)i),
                        (long long)out, (long long)in);
        return;
    }
}
