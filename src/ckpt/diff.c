/* Compares two models or checkpoints: arrays, and members of their config.json, or of their
 * adapter_config.json if both are adapters. */
#include "ckpt.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 1 << 20 };

void ax_ckpt_diff_destroy(ax_ckpt_diff **diff)
{
    if (!*diff)
        return;
    for (int i = 0; i < (*diff)->n; i++) {
        free((*diff)->row[i].key);
        free((*diff)->row[i].a);
        free((*diff)->row[i].b);
    }
    free((*diff)->row);
    free(*diff);
    *diff = NULL;
}

typedef struct differ {
    ax_ckpt_diff *diff;
    const char *const *prefixes;
    int n_prefixes;
    char *a, *b; /* buffers of CHUNK_BYTES: `a` for the first array, `b` for the second */
} differ;

static ax_status add_row(ax_ckpt_diff *diff, ax_ckpt_diff_kind kind, const char *prefix, const char *key,
                         ax_ckpt_diff_row **out)
{
    AX_TRY(ax_list_grow(&diff->row, (size_t)diff->n, sizeof *diff->row));
    *out = &diff->row[diff->n];
    memset(*out, 0, sizeof **out);
    (*out)->kind = kind;
    AX_TRY(ckpt_path(&(*out)->key, "%s%s", prefix, key));
    diff->n++;
    return AX_OK;
}

/* ---- arrays -------------------------------------------------------------------------------------- */

/* Counts the values that differ, and updates the largest differences in `row`. -0 and 0 differ; two NaNs are
 * equal. */
static void compare_doubles(const double *a, const double *b, int64_t n, ax_ckpt_diff_row *row)
{
    for (int64_t i = 0; i < n; i++) {
        bool same = a[i] == b[i] && signbit(a[i]) == signbit(b[i]);
        if (same || (isnan(a[i]) && isnan(b[i])))
            continue;
        double diff = fabs(a[i] - b[i]), largest = fmax(fabs(a[i]), fabs(b[i]));
        if (isnan(diff)) /* exactly one of the two values is NaN */
            diff = INFINITY;
        row->differing++;
        row->max_abs = fmax(row->max_abs, diff);
        row->max_rel = fmax(row->max_rel, diff == 0 ? 0 : isinf(diff) ? INFINITY : diff / largest);
    }
}

static ax_status compare_floats(differ *d, ax_st *sa, const ax_st_array *a, ax_st *sb, const ax_st_array *b,
                                ax_ckpt_diff_row *row)
{
    ckpt_pieces p;
    ckpt_pieces_begin(&p, a->ndim, a->dim, CHUNK_BYTES / (int64_t)sizeof(double));
    while (ckpt_pieces_next(&p)) {
        AX_TRY(ax_st_read(sa, a, p.lo, p.n, false, AX_F64, d->a));
        AX_TRY(ax_st_read(sb, b, p.lo, p.n, false, AX_F64, d->b));
        compare_doubles((const double *)(const void *)d->a, (const double *)(const void *)d->b, p.count, row);
    }
    return AX_OK;
}

static void compare_words(ax_dtype dtype, size_t size, const char *a, const char *b, int64_t n,
                          ax_ckpt_diff_row *row)
{
    for (int64_t i = 0; i < n; i++) {
        if (!memcmp(a + (size_t)i * size, b + (size_t)i * size, size))
            continue;
        row->differing++;
        if (dtype == AX_DTYPE_COUNT) { /* axonn has no such dtype: only the bytes can be compared */
            row->max_abs = row->max_rel = INFINITY;
            continue;
        }
        double x = ax_load(dtype, a, i), y = ax_load(dtype, b, i);
        row->max_abs = fmax(row->max_abs, fabs(x - y));
        row->max_rel = fmax(row->max_rel, fabs(x - y) / fmax(fmax(fabs(x), fabs(y)), 1));
    }
}

static ax_status compare_raw(differ *d, ax_st *sa, const ax_st_array *a, ax_st *sb, const ax_st_array *b,
                             ax_ckpt_diff_row *row)
{
    size_t size = a->dtype < AX_DTYPE_COUNT ? ax_dtype_size(a->dtype) : 1;
    for (int64_t at = 0; at < a->bytes; at += CHUNK_BYTES) {
        int64_t bytes = ax_min(a->bytes - at, CHUNK_BYTES);
        AX_TRY(st_read_raw(sa, a, at, bytes, d->a));
        AX_TRY(st_read_raw(sb, b, at, bytes, d->b));
        compare_words(a->dtype, size, d->a, d->b, bytes / (int64_t)size, row);
    }
    return AX_OK;
}

static ax_status describe(const ax_st_array *a, char **out)
{
    char shape[ST_SHAPE_TEXT];
    return ckpt_path(out, "%s %s", a->dtype_name, st_shape_print(a->ndim, a->dim, shape));
}

static ax_status describe_both(const ax_st_array *a, const ax_st_array *b, ax_ckpt_diff_kind kind,
                               ax_ckpt_diff_row *row)
{
    row->kind = kind;
    AX_TRY(describe(a, &row->a));
    return describe(b, &row->b);
}

static ax_status compare_arrays(differ *d, ax_st *sa, const ax_st_array *a, ax_st *sb, const ax_st_array *b,
                                ax_ckpt_diff_row *row)
{
    row->elements = ax_st_elements(a);
    if (a->ndim != b->ndim || memcmp(a->dim, b->dim, (size_t)a->ndim * sizeof *a->dim))
        return describe_both(a, b, AX_DIFF_SHAPE, row);
    if (ckpt_convertible(a->dtype, AX_F64) && ckpt_convertible(b->dtype, AX_F64))
        AX_TRY(compare_floats(d, sa, a, sb, b, row));
    else if (!strcmp(a->dtype_name, b->dtype_name))
        AX_TRY(compare_raw(d, sa, a, sb, b, row));
    else
        return describe_both(a, b, AX_DIFF_DTYPE, row);
    row->kind = row->differing ? AX_DIFF_VALUES : AX_DIFF_NONE;
    return AX_OK;
}

/* Finds the array of `sb` to compare with array `key` of `sa`: the array with the same key. If there is none,
 * takes the array whose key differs only by a prefix such as "model.", unless `sa` itself has an array of
 * that key. */
static const ax_st_array *find_array(const differ *d, const ax_st *sa, const ax_st *sb, const char *key)
{
    const ax_st_array *found = ax_st_find(sb, key);
    for (int i = 0; !found && i < d->n_prefixes; i++) {
        found = ax_ckpt_find_array(sb, key, d->prefixes[i]);
        found = found && !ax_st_find(sa, found->key) ? found : NULL;
    }
    return found;
}

/* Adds to d->diff a row for each array of `sa`, compared with its counterpart in `sb`, and a row for each
 * array of `sb` without a counterpart. A row's key is `prefix` and the array's key. used[j] is set if array j
 * of `sb` was compared. */
static ax_status add_arrays(differ *d, ax_st *sa, ax_st *sb, const char *prefix, bool *used)
{
    ax_ckpt_diff_row *row;
    for (int i = 0; i < sa->n; i++) {
        const ax_st_array *a = &sa->array[i], *b = find_array(d, sa, sb, a->key);
        bool both = b && !used[b - sb->array];
        AX_TRY(add_row(d->diff, both ? AX_DIFF_NONE : AX_DIFF_ONLY_A, prefix, a->key, &row));
        row->elements = ax_st_elements(a);
        if (!both)
            continue;
        used[b - sb->array] = true;
        AX_TRY(compare_arrays(d, sa, a, sb, b, row));
    }
    for (int j = 0; j < sb->n; j++) {
        if (used[j])
            continue;
        AX_TRY(add_row(d->diff, AX_DIFF_ONLY_B, prefix, sb->array[j].key, &row));
        row->elements = ax_st_elements(&sb->array[j]);
    }
    return AX_OK;
}

/* Compares the arrays of two stores and appends a row for each array to d->diff, sorted by key. */
static ax_status compare_stores(differ *d, ax_st *sa, ax_st *sb, const char *prefix)
{
    bool *used;
    int first = d->diff->n;
    AX_TRY(ax_calloc((size_t)sb->n, sizeof *used, &used));
    ax_status status = add_arrays(d, sa, sb, prefix, used);
    ckpt_sort_rows(d->diff, first);
    free(used);
    return status;
}

/* ---- configuration ------------------------------------------------------------------------------- */

static ax_status add_member(ax_ckpt_diff *diff, const char *file, const char *key, const json_t *a,
                            const json_t *b)
{
    ax_ckpt_diff_row *row;
    char prefix[64];
    ax_ckpt_diff_kind kind = !a ? AX_DIFF_ONLY_B : !b ? AX_DIFF_ONLY_A : AX_DIFF_VALUES;
    snprintf(prefix, sizeof prefix, "%s:", file);
    AX_TRY(add_row(diff, kind, prefix, key, &row));
    row->a = a ? json_dumps(a, JSON_ENCODE_ANY | JSON_SORT_KEYS) : NULL;
    row->b = b ? json_dumps(b, JSON_ENCODE_ANY | JSON_SORT_KEYS) : NULL;
    return AX_OK;
}

static ax_status compare_members(ax_ckpt_diff *diff, const char *file, json_t *a, json_t *b)
{
    const char *key;
    json_t *value;
    json_object_foreach(a, key, value)
    {
        const json_t *other = json_object_get(b, key);
        if (!json_equal(value, other))
            AX_TRY(add_member(diff, file, key, value, other));
    }
    json_object_foreach(b, key, value) if (!json_object_get(a, key))
        AX_TRY(add_member(diff, file, key, NULL, value));
    return AX_OK;
}

/* Returns the name of the file that describes the model, or the adapter. */
static const char *config_name(const char *dir)
{
    return ax_ckpt_is_adapter(dir) ? "adapter_config.json" : "config.json";
}

static ax_status load_config(const char *dir, json_t **out)
{
    char *path;
    AX_TRY(ckpt_path(&path, "%s/%s", dir, config_name(dir)));
    ax_status status = ax_json_read_file(path, 0, out);
    if (status == AX_OK && !json_is_object(*out))
        status = ax_fail(AX_ERR_DATA, "%s does not hold a JSON object, so it cannot be compared", path);
    free(path);
    return status;
}

/* ---- two arrays of one model --------------------------------------------------------------------- */

/* Compares two arrays of the same dtype and shape bit by bit. Sets *same to false if they differ. */
static ax_status compare_values(ax_st *st, const ax_st_array *a, const ax_st_array *b, char *chunk,
                                bool *same)
{
    ckpt_pieces p;
    size_t size = ax_dtype_size(a->dtype);
    ckpt_pieces_begin(&p, a->ndim, a->dim, CHUNK_BYTES / (int64_t)size);
    while (*same && ckpt_pieces_next(&p)) {
        AX_TRY(ax_st_read(st, a, p.lo, p.n, false, a->dtype, chunk));
        AX_TRY(ax_st_read(st, b, p.lo, p.n, false, a->dtype, chunk + CHUNK_BYTES));
        *same = !memcmp(chunk, chunk + CHUNK_BYTES, (size_t)p.count * size);
    }
    return AX_OK;
}

ax_status ax_ckpt_same_arrays(const char *path, const char *a, const char *b, const char *prefix, bool *same)
{
    ax_st *st;
    char *chunk = NULL;
    AX_TRY(ax_st_open(path, &st));
    const ax_st_array *x = ax_ckpt_find_array(st, a, prefix), *y = ax_ckpt_find_array(st, b, prefix);
    *same = !x || !y ||
            (x->dtype < AX_DTYPE_COUNT && x->dtype == y->dtype && x->ndim == y->ndim &&
             !memcmp(x->dim, y->dim, (size_t)x->ndim * sizeof *x->dim));
    ax_status status = AX_OK;
    if (x && y && *same) {
        status = ax_calloc(2, CHUNK_BYTES, &chunk);
        if (status == AX_OK)
            status = compare_values(st, x, y, chunk, same);
    }
    free(chunk);
    ax_st_close(&st);
    return status;
}

/* ---- the two sources of a comparison ------------------------------------------------------------- */

/* Sets *out to the file or directory to compare, given the user's argument `path`. If `path` is a run, *out
 * is the run's newest undamaged checkpoint. If `path` is a file, a model or a checkpoint, *out is `path`,
 * without a check for damage: damaged checkpoints may be compared too. */
static ax_status find_source(const char *path, char **out)
{
    return !ax_path_is_dir(path) || ax_dir_has(path, MANIFEST) ? ax_strdup(path, out)
                                                               : ax_ckpt_find_model(path, out);
}

static bool has_optim(const char *dir)
{
    return ax_dir_has(dir, "training/optim.safetensors") ||
           ax_dir_has(dir, "training/optim.safetensors.index.json");
}

/* One of the two sources that are compared. Its files stay open, so that a run may remove a checkpoint while
 * it is compared. */
typedef struct source {
    char *path; /* a directory or a file */
    ax_st *model;
    ax_st *optim;      /* NULL if one of the two sources has no optimizer state */
    manifest manifest; /* read if `optim` is not NULL; empty if manifest.json is missing or damaged */
    json_t *config;    /* config.json or adapter_config.json; NULL if one of the two sources lacks it */
} source;

static void close_source(source *s)
{
    free(s->path);
    s->path = NULL;
    ax_st_close(&s->model);
    ax_st_close(&s->optim);
    manifest_fini(&s->manifest);
    json_decref(s->config);
    s->config = NULL;
}

static void close_sources(source s[2])
{
    close_source(&s[0]);
    close_source(&s[1]);
}

static ax_status open_optim(source *s)
{
    char *dir;
    AX_TRY(ckpt_path(&dir, "%s/training", s->path));
    ax_status status = st_open_dir(dir, "optim", &s->optim);
    free(dir);
    if (status != AX_OK)
        return status;
    status = manifest_read(s->path, &s->manifest);
    return status == AX_ERR_DATA ? AX_OK : status; /* without a manifest, rows keep the parameters' names */
}

/* Fails if one source is the directory of an adapter, and the other that of a model: they have no array in
 * common. */
static ax_status check_kinds(const source s[2])
{
    const bool first = ax_ckpt_is_adapter(s[0].path);
    const char *adapter = s[!first].path, *model = s[first].path;
    AX_CHECK(
        first == ax_ckpt_is_adapter(s[1].path) || !ax_path_is_dir(model), AX_ERR_DATA,
        "%s is an adapter and %s a full model: merge the adapter with its base first (axonn ckpt convert %s "
        "--out DIR), and compare DIR with the model",
        adapter, model, adapter);
    return AX_OK;
}

static ax_status open_sources(const char *const path[2], source s[2])
{
    for (int i = 0; i < 2; i++)
        AX_TRY(find_source(path[i], &s[i].path));
    AX_TRY(check_kinds(s));
    for (int i = 0; i < 2; i++)
        AX_TRY(ax_st_open(s[i].path, &s[i].model));
    bool optim = has_optim(s[0].path) && has_optim(s[1].path);
    const char *name = config_name(s[0].path);
    bool config = ax_dir_has(s[0].path, name) && ax_dir_has(s[1].path, name);
    for (int i = 0; i < 2 && optim; i++)
        AX_TRY(open_optim(&s[i]));
    for (int i = 0; i < 2 && config; i++)
        AX_TRY(load_config(s[i].path, &s[i].config));
    return AX_OK;
}

/* Returns true if the run `path` has removed the checkpoint s->path, because it has saved a newer one since
 * s->path was chosen. */
static bool was_removed(const char *path, const source *s)
{
    return s->path && strcmp(s->path, path) != 0 && !ax_path_exists(s->path);
}

static ax_status open_newest_sources(const char *const path[2], source s[2])
{
    for (;;) {
        ax_status status = open_sources(path, s);
        if (!was_removed(path[0], &s[0]) && !was_removed(path[1], &s[1]))
            return status;
        close_sources(s);
    }
}

static ax_status compare_training(differ *d, source s[2])
{
    int first = d->diff->n;
    if (!s[0].optim)
        return AX_OK;
    AX_TRY(compare_stores(d, s[0].optim, s[1].optim, "training/"));
    return ckpt_name_rows(d->diff, first, &s[0].manifest);
}

static ax_status compare(differ *d, source s[2])
{
    AX_TRY(ax_calloc(2, CHUNK_BYTES, &d->a));
    d->b = d->a + CHUNK_BYTES;
    AX_TRY(compare_stores(d, s[0].model, s[1].model, ""));
    for (int i = 0; i < d->diff->n; i++)
        d->diff->common += d->diff->row[i].kind < AX_DIFF_ONLY_A;
    AX_TRY(compare_training(d, s));
    AX_TRY(compare_members(d->diff, config_name(s[0].path), s[0].config, s[1].config));
    for (int i = 0; i < d->diff->n; i++)
        d->diff->differing += d->diff->row[i].kind != AX_DIFF_NONE;
    return AX_OK;
}

ax_status ax_ckpt_diff_create(const char *a, const char *b, const char *const *prefixes, int n_prefixes,
                              ax_ckpt_diff **out)
{
    source s[2] = {{0}};
    differ d = {.prefixes = prefixes, .n_prefixes = n_prefixes};
    *out = NULL;
    AX_TRY(ax_calloc(1, sizeof *d.diff, &d.diff));
    ax_status status = open_newest_sources((const char *const[]){a, b}, s);
    if (status == AX_OK)
        status = compare(&d, s);
    close_sources(s);
    free(d.a);
    if (status != AX_OK)
        ax_ckpt_diff_destroy(&d.diff);
    *out = d.diff;
    return status;
}
