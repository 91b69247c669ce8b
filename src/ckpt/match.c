/* Finds the array of a store for each item, and says in which points the two do not fit. */
#include "ckpt.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

enum { MISMATCHES_SHOWN = 20, LEFT_SHOWN = 4 };

const ax_st_array *ax_ckpt_find_array(const ax_st *st, const char *key, const char *prefix)
{
    const ax_st_array *a = ax_st_find(st, key);
    if (a || !prefix)
        return a;
    size_t n = strlen(prefix);
    if (!strncmp(key, prefix, n))
        return ax_st_find(st, key + n);
    char *longer;
    if (ckpt_path(&longer, "%s%s", prefix, key) != AX_OK)
        return NULL;
    a = ax_st_find(st, longer);
    free(longer);
    return a;
}

/* Finds array number `index` of an item. */
static const ax_st_array *find_array(const ax_st *st, const ckpt_item *it, int64_t index,
                                     const ax_ckpt_rules *rules)
{
    char key[CKPT_KEY];
    ckpt_item_key(it, index, key);
    return ax_ckpt_find_array(st, key, rules ? rules->prefix : NULL);
}

static const ax_st_array *find_fused(const ax_st *st, const ckpt_item *it, const ax_ckpt_rules *rules)
{
    return rules && it->place.fused ? ax_ckpt_find_array(st, it->place.fused, rules->prefix) : NULL;
}

/* Finds the array of an item, the first one of a spread item. Of two arrays that a model ties, either one is
 * enough, as in transformers. */
static const ax_st_array *find_item(const ax_st *st, const ckpt_item *it, const ax_ckpt_rules *rules)
{
    const ax_st_array *a = find_array(st, it, 0, rules);
    if (!a)
        a = find_fused(st, it, rules);
    if (a || !rules || !rules->table || strcmp(it->key, rules->table) != 0)
        return a;
    return ax_ckpt_find_array(st, rules->head, rules->prefix);
}

static bool ignored(const char *key, const ax_ckpt_rules *rules)
{
    for (int i = 0; rules && i < rules->ignores; i++)
        if (!fnmatch(rules->ignore[i], key, 0))
            return true;
    return false;
}

typedef struct matcher {
    const ckpt_items *items;
    const ax_st *st;
    const ax_ckpt_rules *rules;
    const ax_st_array **found; /* the array of each item, or NULL */
    bool *used;                /* of each array of the store: it belongs to an item */
    name_list wrong, left;     /* mismatches; arrays that belong to no parameter */
    const char *missing;       /* key of the first item without an array, or NULL */
    char **kept;               /* names of missing arrays of spread items, which the lists refer to */
    int n_kept;
} matcher;

/* Returns a copy of a name that lives as long as m; the item's key if there is no memory for it. */
static const char *keep(matcher *m, const ckpt_item *it, const char *name)
{
    char *copy = NULL;
    if (ax_list_grow(&m->kept, (size_t)m->n_kept, sizeof *m->kept) != AX_OK ||
        ax_strdup(name, &copy) != AX_OK)
        return it->key;
    m->kept[m->n_kept++] = copy;
    return copy;
}

/* Checks an array of an item, whose extents should be `dim`. `key`: its name, if a is NULL. */
static void check_array(matcher *m, const ckpt_item *it, const ax_st_array *a, const char *key, int ndim,
                        const int64_t *dim)
{
    char has[ST_SHAPE_TEXT], wants[ST_SHAPE_TEXT], one[NAME_WHAT], many[NAME_WHAT];
    if (!a) {
        m->missing = m->missing ? m->missing : it->key;
        names_add(&m->wrong, key, (const char *const[]){"is missing", "are missing"}, false);
        return;
    }
    m->used[a - m->st->array] = true;
    if (a->ndim != ndim || memcmp(a->dim, dim, (size_t)a->ndim * sizeof *a->dim)) {
        st_shape_print(a->ndim, a->dim, has);
        st_shape_print(ndim, dim, wants);
        snprintf(one, sizeof one, "has shape %s; the model needs %s", has, wants);
        snprintf(many, sizeof many, "have shape %s; the model needs %s", has, wants);
        names_add(&m->wrong, a->key, (const char *const[]){one, many}, false);
    } else if (!ckpt_convertible(a->dtype, it->tensor.dtype)) {
        const char *rest = "which cannot be converted to";
        snprintf(one, sizeof one, "is %s, %s %s; only F64, F32, BF16 and F16 can", a->dtype_name, rest,
                 ax_dtype_name(it->tensor.dtype));
        snprintf(many, sizeof many, "are %s, %s %s; only F64, F32, BF16 and F16 can", a->dtype_name, rest,
                 ax_dtype_name(it->tensor.dtype));
        names_add(&m->wrong, a->key, (const char *const[]){one, many}, false);
    }
}

/* Adds array a, if there is one, to the mismatches. */
static void refuse_array(matcher *m, const ax_st_array *a, const char *const what[2])
{
    if (!a)
        return;
    m->used[a - m->st->array] = true;
    names_add(&m->wrong, a->key, what, false);
}

/* Checks the arrays of a spread item: one for each expert, or one for all. */
static void check_spread(matcher *m, const ckpt_item *it, const ax_st_array *first)
{
    static const char *const second[2] = {
        "is a second form of experts that are there already: remove one form",
        "are a second form of experts that are there already: remove one form"};
    const int64_t dim[3] = {it->place.spread, it->place.parts * it->place.dim[0], it->place.dim[1]};
    const ax_st_array *fused = find_fused(m->st, it, m->rules);
    const bool together = fused && first == fused;
    char key[CKPT_KEY];
    if (together)
        check_array(m, it, fused, it->place.fused, 3, dim);
    else if (first)
        refuse_array(m, fused, second);
    for (int64_t k = 0; k < it->place.spread; k++) {
        const ax_st_array *a = find_array(m->st, it, k, m->rules);
        ckpt_item_key(it, k, key);
        if (together)
            refuse_array(m, a, second);
        else
            check_array(m, it, a, a ? a->key : keep(m, it, key), it->place.ndim, it->place.dim);
    }
}

static void check_item(matcher *m, const ckpt_item *it, const ax_st_array *a)
{
    if (it->place.spread)
        check_spread(m, it, a);
    else
        check_array(m, it, a, it->key, it->place.ndim, it->place.dim);
}

/* Returns true if `key` is `pattern` with a number in place of the star. */
static bool is_numbered(const char *key, const char *pattern)
{
    const char *star = strchr(pattern, '*');
    const size_t before = star ? (size_t)(star - pattern) : 0;
    if (!star || strncmp(key, pattern, before) != 0)
        return false;
    const size_t digits = strspn(key + before, "0123456789");
    return digits && !strcmp(key + before + digits, star + 1);
}

/* Returns true if array `key`, which belongs to no parameter, has the name of an expert's array in a layer of
 * the model: the expert has a number that the model's experts do not have. */
static bool is_of_expert(const matcher *m, const char *key)
{
    const char *prefix = m->rules && m->rules->prefix ? m->rules->prefix : "";
    const size_t n = strlen(prefix);
    for (int i = 0; i < m->items->n; i++) {
        const ckpt_item *it = &m->items->item[i];
        if (it->place.spread &&
            (is_numbered(key, it->key) || (!strncmp(it->key, prefix, n) && is_numbered(key, it->key + n)) ||
             (!strncmp(key, prefix, n) && is_numbered(key + n, it->key))))
            return true;
    }
    return false;
}

/* Returns true if array `key`, which belongs to no parameter, says how the array `before`, which does, is
 * quantized: q.weight_scale beside q.weight, q.weight.absmax, q.SCB. */
static bool is_of_quantized(const char *key, const char *before)
{
    const size_t n = strlen(before), size = strlen(key);
    return (n && !strncmp(before, key, n) && (key[n] == '_' || key[n] == '.')) ||
           (size > 4 && !strcmp(key + size - 4, ".SCB"));
}

/* Sorts the arrays that belong to no parameter into those that may be left alone and mismatches. */
static void check_rest(matcher *m)
{
    static const char *const quantized[2] = {"says how another array is quantized, which is not implemented: "
                                             "get the model's files without quantization",
                                             "say how other arrays are quantized, which is not implemented: "
                                             "get the model's files without quantization"};
    static const char *const extra[2] = {"is of an expert that the model does not have",
                                         "are of experts that the model does not have"};
    static const char *const stranger[2] = {"belongs to no parameter of the model",
                                            "belong to no parameter of the model"};
    const bool strict = !m->rules || m->rules->strict ||
                        m->wrong.count; /* a parameter that is missing may be one of these arrays */
    const char *before =
        ""; /* the last array that is used; those whose names begin with its name follow it */
    for (int i = 0; i < m->st->n; i++) {
        const char *key = m->st->array[i].key;
        before = m->used[i] ? key : before;
        if (m->used[i] || ignored(key, m->rules))
            continue;
        if (m->rules && is_of_quantized(key, before))
            names_add(&m->wrong, key, quantized, false);
        else if (is_of_expert(m, key))
            names_add(&m->wrong, key, extra, false);
        else if (strict)
            names_add(&m->wrong, key, stranger, false);
        else
            names_add(&m->left, key, (const char *const[]){"", ""}, true);
    }
}

/* Adds a line if the file has the first missing array under a longer name, "_orig_mod.NAME". */
static ax_status explain_missing(const matcher *m, ax_buf *text)
{
    size_t n = m->missing ? strlen(m->missing) : 0, size;
    for (int i = 0; n && i < m->st->n; i++) {
        const char *key = m->st->array[i].key;
        size = strlen(key);
        if (!m->used[i] && size > n && !strcmp(key + size - n, m->missing) && key[size - n - 1] == '.')
            return ax_buf_printf(text,
                                 "\n  The names in the file begin with \"%.*s\": save the model without the "
                                 "wrapper that put it there.",
                                 (int)(size - n), key);
    }
    return m->rules && m->rules->head && !m->rules->table && m->missing && !strcmp(m->missing, m->rules->head)
               ? ax_buf_printf(text, "\n  If the output layer shares the token embedding, config.json needs "
                                     "\"tie_word_embeddings\": true.")
               : AX_OK;
}

static ax_status refuse(const matcher *m)
{
    ax_buf text = {0};
    ax_status status = AX_OK;
    const name_list *wrong = &m->wrong;
    for (int i = 0; i < wrong->n && i < MISMATCHES_SHOWN && status == AX_OK; i++) {
        const name_group *g = &wrong->group[i];
        status = ax_buf_printf(&text, "\n  array%s ", g->count > 1 ? "s" : "");
        if (status == AX_OK)
            status = names_print(g, &text);
        if (status == AX_OK)
            status = ax_buf_printf(&text, " %s", g->what[g->count > 1]);
    }
    if (status == AX_OK)
        status = explain_missing(m, &text);
    if (status == AX_OK)
        status = ax_fail(AX_ERR_DATA, "%s does not hold the arrays of this model: %d mismatch%s%s:%s",
                         m->st->index ? m->st->index : m->st->file[0].path, wrong->count,
                         wrong->count == 1 ? "" : "es",
                         wrong->n > MISMATCHES_SHOWN ? " (only the first are listed)" : "", text.data);
    ax_buf_fini(&text);
    return status;
}

/* Appends the line on arrays that are left alone, if there are any. */
static ax_status describe_left(const matcher *m, ax_buf *out)
{
    const name_list *left = &m->left;
    if (!left->count)
        return AX_OK;
    AX_TRY(ax_buf_printf(out, "%s: %d array%s to no parameter of the model and %s left alone: ",
                         m->st->index ? m->st->index : m->st->file[0].path, left->count,
                         left->count == 1 ? " belongs" : "s belong", left->count == 1 ? "is" : "are"));
    for (int i = 0; i < left->n && i < LEFT_SHOWN; i++) {
        AX_TRY(ax_buf_printf(out, "%s", i ? ", " : ""));
        AX_TRY(names_print(&left->group[i], out));
    }
    return left->n > LEFT_SHOWN ? ax_buf_printf(out, ", …") : AX_OK;
}

static ax_status match(matcher *m, ax_buf *left)
{
    for (int i = 0; i < m->items->n; i++)
        AX_TRY(ckpt_check_place(&m->items->item[i]));
    for (int i = 0; i < m->items->n; i++) {
        m->found[i] = find_item(m->st, &m->items->item[i], m->rules);
        check_item(m, &m->items->item[i], m->found[i]);
    }
    check_rest(m);
    if (m->wrong.count)
        return refuse(m);
    return left ? describe_left(m, left) : AX_OK;
}

ax_status ckpt_match(const ckpt_items *items, const ax_st *st, const ax_ckpt_rules *rules,
                     const ax_st_array **found, ax_buf *left)
{
    matcher *m;
    AX_TRY(ax_calloc(1, sizeof *m, &m));
    m->items = items;
    m->st = st;
    m->rules = rules;
    m->found = found;
    ax_status status = ax_calloc((size_t)st->n, sizeof *m->used, &m->used);
    if (status == AX_OK)
        status = match(m, left);
    for (int i = 0; i < m->n_kept; i++)
        free(m->kept[i]);
    free(m->kept);
    free(m->used);
    free(m);
    return status;
}

ax_status ax_ckpt_match(ax_param *const *params, int n, const ax_st *st, const ax_ckpt_rules *rules,
                        ax_buf *left)
{
    ckpt_items items;
    const ax_st_array **found = NULL;
    AX_TRY(ckpt_items_list(params, n, rules && rules->frozen, &items));
    ax_status status = ax_calloc((size_t)n, sizeof *found, &found);
    if (status == AX_OK)
        status = ckpt_match(&items, st, rules, found, left);
    free(found);
    ckpt_items_fini(&items);
    return status;
}
