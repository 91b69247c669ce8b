/* Names the rows of optimizer state in a comparison. Checkpoints store optimizer state under the names of
 * parameters. Here each name is replaced by the key of the parameter's weights in model files, which the
 * manifest records. Parameters that share an array share a row. */
#include "ckpt.h"

#include <stdlib.h>
#include <string.h>

#define TRAINING "training/"

/* Renames "training/SLOT.PARAMETER" to "training/SLOT.KEY" if the manifest has a key for the parameter. SLOT
 * is the kind of the optimizer state, such as exp_avg. */
static ax_status rename_row(ax_ckpt_diff_row *row, const json_t *params)
{
    const char *slot = row->key + strlen(TRAINING), *dot = strchr(slot, '.');
    const char *key =
        dot ? json_string_value(json_object_get(json_object_get(params, dot + 1), "key")) : NULL;
    char *name;
    if (!key)
        return AX_OK;
    AX_TRY(ckpt_path(&name, TRAINING "%.*s.%s", (int)(dot - slot), slot, key));
    free(row->key);
    row->key = name;
    return AX_OK;
}

static int by_key(const void *x, const void *y)
{
    const ax_ckpt_diff_row *a = x, *b = y;
    return strcmp(a->key, b->key);
}

void ckpt_sort_rows(ax_ckpt_diff *diff, int first)
{
    if (diff->n > first)
        qsort(diff->row + first, (size_t)(diff->n - first), sizeof *diff->row, by_key);
}

/* Merges `row` into `into` and returns true if they have the same key and either both were compared or both
 * are missing in the same source. Otherwise returns false. */
static bool merge_into(ax_ckpt_diff_row *into, const ax_ckpt_diff_row *row)
{
    bool compared = into->kind <= AX_DIFF_VALUES && row->kind <= AX_DIFF_VALUES;
    bool missing = into->kind >= AX_DIFF_ONLY_A && into->kind == row->kind;
    if (strcmp(into->key, row->key) != 0 || (!compared && !missing))
        return false;
    into->kind = into->kind > row->kind ? into->kind : row->kind;
    into->elements += row->elements;
    into->differing += row->differing;
    into->max_abs = row->max_abs > into->max_abs ? row->max_abs : into->max_abs;
    into->max_rel = row->max_rel > into->max_rel ? row->max_rel : into->max_rel;
    return true;
}

static void merge_rows(ax_ckpt_diff *diff, int first)
{
    int kept = first;
    for (int i = first; i < diff->n; i++) {
        ax_ckpt_diff_row *row = &diff->row[i];
        if (kept > first && merge_into(&diff->row[kept - 1], row)) {
            free(row->key);
            continue;
        }
        diff->row[kept++] = *row;
    }
    diff->n = kept;
}

ax_status ckpt_name_rows(ax_ckpt_diff *diff, int first, const manifest *m)
{
    for (int i = first; i < diff->n; i++)
        AX_TRY(rename_row(&diff->row[i], m->params));
    ckpt_sort_rows(diff, first);
    merge_rows(diff, first);
    return AX_OK;
}
