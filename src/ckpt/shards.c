/* Opens the weight files of a directory: one file, shards with an index, or shards without one. As in
 * transformers, the index says which shards belong to the model, and all their arrays count, whether the
 * index lists them or not. If an array is in several shards, the index says which copy counts. */
#include "ckpt.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* ---- lists of shards ----------------------------------------------------------------------------- */

static bool plain_name(const char *name) { return name[0] && name[0] != '.' && !strchr(name, '/'); }

/* Lists the shards that the index names, each once. */
static ax_status list_indexed(const ax_st *st, json_t *map, ax_strings *names)
{
    AX_CHECK(json_is_object(map), AX_ERR_DATA,
             "%s: \"weight_map\" is missing or not an object, so the file is not an index of safetensors",
             st->index);
    json_t *seen = json_object();
    ax_status status = AX_OK;
    const char *key;
    json_t *value;
    json_object_foreach(map, key, value)
    {
        const char *name = json_string_value(value);
        if (!name || !plain_name(name))
            status = ax_fail(
                AX_ERR_DATA,
                "%s: array %s: the shard is not a file name; it must be that of a file in the same directory",
                st->index, key);
        else if (!json_object_get(seen, name)) {
            json_object_set_new(seen, name, json_null());
            status = ax_strings_add(names, "%s", name);
        }
        if (status != AX_OK)
            break;
    }
    json_decref(seen);
    return status;
}

/* Opens the shards, in the order of their names, or fails with the names of those that are missing. */
static ax_status open_shards(ax_st *st, const char *dir, const char *listed_by, ax_strings *names)
{
    ax_buf missing = {0};
    ax_status status = AX_OK;
    int lost = 0;
    ax_strings_sort(names);
    for (size_t i = 0; i < names->count && status == AX_OK; i++)
        if (!ax_dir_has(dir, names->items[i]) && lost++ < 4)
            status = ax_buf_printf(&missing, "%s%s", lost > 1 ? ", " : "", names->items[i]);
    if (status == AX_OK && lost)
        status = ax_fail(AX_ERR_DATA, "%s lacks %d of the %zu shards that %s: %s%s; %s", dir, lost,
                         names->count, listed_by, missing.data, lost > 4 ? ", …" : "",
                         ckpt_is_unfinished(dir)
                             ? "the download is not finished (there are files *.incomplete): repeat it"
                             : "get them from where the others came from, for example with `hf download`");
    ax_buf_fini(&missing);
    for (size_t i = 0; i < names->count && status == AX_OK; i++) {
        char *path;
        status = ax_path_join(dir, names->items[i], &path);
        if (status == AX_OK) {
            status = st_header_read(st, path);
            free(path);
        }
    }
    return status;
}

/* ---- the index and the shards -------------------------------------------------------------------- */

/* What is unusual about the shards; the first array of each kind is an example. */
typedef struct oddities {
    int copies, moved, absent;
    const char *copy, *copy_file, *was_moved, *moved_file, *was_absent;
} oddities;

static int by_key_and_file(const void *x, const void *y)
{
    const ax_st_array *a = x, *b = y;
    int order = strcmp(a->key, b->key);
    return order ? order : a->file - b->file;
}

/* Returns the one of the copies first … end-1 of an array that counts: that in the shard that the index
 * names, or else the last one. */
static int choose_copy(const ax_st *st, const json_t *map, int first, int end)
{
    const char *named = json_string_value(json_object_get(map, st->array[first].key));
    for (int i = first; named && i < end; i++)
        if (!strcmp(named, base_name(st->file[st->array[i].file].path)))
            return i;
    return end - 1;
}

/* Sorts the arrays by key and drops the copies that do not count. */
static void drop_copies(ax_st *st, const json_t *map, oddities *odd)
{
    int kept = 0;
    if (st->n)
        qsort(st->array, (size_t)st->n, sizeof *st->array, by_key_and_file);
    for (int first = 0, end; first < st->n; first = end) {
        for (end = first + 1; end < st->n && !strcmp(st->array[end].key, st->array[first].key);)
            end++;
        const int chosen = choose_copy(st, map, first, end);
        const ax_st_array keep = st->array[chosen];
        for (int i = first; i < end; i++)
            if (i != chosen)
                free((char *)st->array[i].key);
        if (end > first + 1 && !odd->copies++) {
            odd->copy = keep.key;
            odd->copy_file = base_name(st->file[keep.file].path);
        }
        st->array[kept++] = keep;
    }
    st->n = kept;
}

/* Counts the arrays that are in other shards than the index says, or in none. */
static void compare_index(const ax_st *st, json_t *map, oddities *odd)
{
    const char *key;
    json_t *value;
    json_object_foreach(map, key, value)
    {
        const ax_st_array *a = ax_st_find(st, key);
        if (!a && !odd->absent++)
            odd->was_absent = key;
        const char *file = a ? base_name(st->file[a->file].path) : NULL;
        if (a && strcmp(file, json_string_value(value)) != 0 && !odd->moved++) {
            odd->was_moved = key;
            odd->moved_file = file;
        }
    }
}

static ax_status describe(ax_st *st, const oddities *odd)
{
    ax_buf text = {0};
    ax_status status = AX_OK;
    if (odd->absent)
        status = ax_buf_printf(&text, "; it lists %d array%s that no shard has (%s%s)", odd->absent,
                               odd->absent == 1 ? "" : "s", odd->was_absent, odd->absent > 1 ? ", …" : "");
    if (odd->copies && status == AX_OK)
        status = ax_buf_printf(&text, "; %d array%s in more than one shard (%s%s; the copy in %s counts)",
                               odd->copies, odd->copies == 1 ? " is" : "s are", odd->copy,
                               odd->copies > 1 ? ", …" : "", odd->copy_file);
    if (odd->moved && status == AX_OK)
        status = ax_buf_printf(
            &text, "; %d array%s not in the shard that it names, but in another (%s in %s%s)", odd->moved,
            odd->moved == 1 ? " is" : "s are", odd->was_moved, odd->moved_file, odd->moved > 1 ? ", …" : "");
    if (text.size && status == AX_OK)
        status = ckpt_path(&st->remark, "%s does not fit its shards: %s", st->index, text.data + 2);
    ax_buf_fini(&text);
    return status;
}

static ax_status open_indexed(ax_st *st, const char *dir, json_t *map)
{
    ax_strings names = {0};
    ax_status status = list_indexed(st, map, &names);
    if (status == AX_OK)
        status = open_shards(st, dir, "its index lists", &names);
    ax_strings_fini(&names);
    AX_TRY(status);
    oddities odd = {0};
    drop_copies(st, map, &odd);
    compare_index(st, map, &odd);
    return describe(st, &odd);
}

static ax_status open_index(ax_st *st, const char *dir)
{
    json_t *root;
    AX_TRY(ax_json_read_file(st->index, JSON_REJECT_DUPLICATES, &root));
    ax_status status = open_indexed(st, dir, json_object_get(root, "weight_map"));
    json_decref(root);
    return status;
}

/* ---- shards without an index --------------------------------------------------------------------- */

/* Reads "-00001" and the like at *text, and moves *text behind it. Returns 0 if the text is none. */
static long shard_number(const char **text)
{
    char *end;
    if ((*text)[0] != '-' || (*text)[1] < '0' || (*text)[1] > '9')
        return 0;
    long value = strtol(*text + 1, &end, 10);
    *text = end;
    return value <= 99999 ? value : 0;
}

/* Returns the K of the name STEM-00001-of-0000K.safetensors, or 0 for other names. */
static int shards_of(const char *name, const char *stem)
{
    size_t n = strlen(stem);
    if (strncmp(name, stem, n) != 0)
        return 0;
    const char *rest = name + n;
    long i = shard_number(&rest), count = 0;
    if (!strncmp(rest, "-of", 3)) {
        rest += 3;
        count = shard_number(&rest);
    }
    return i >= 1 && i <= count && !strcmp(rest, ".safetensors") ? (int)count : 0;
}

int st_count_shards(const char *dir, const char *stem)
{
    ax_strings names = ckpt_names(dir);
    int count = 0;
    for (size_t i = 0; i < names.count && count >= 0; i++) {
        const int here = shards_of(names.items[i], stem);
        count = !here || here == count ? count : count ? -1 : here;
    }
    ax_strings_fini(&names);
    return count;
}

/* Opens the shards STEM-00001-of-0000K.safetensors … of a directory that has no index. */
static ax_status open_numbered(ax_st *st, const char *dir, const char *stem, int count)
{
    ax_strings names = {0};
    ax_status status = AX_OK;
    for (int i = 1; i <= count && status == AX_OK; i++)
        status = ax_strings_add(&names, "%s-%05d-of-%05d.safetensors", stem, i, count);
    if (status == AX_OK)
        status = open_shards(st, dir, "their names announce", &names);
    ax_strings_fini(&names);
    AX_TRY(status);
    AX_TRY(st_sort(st));
    return ckpt_path(&st->remark, "%s has no %s.safetensors.index.json; all its %d shards are read", dir,
                     stem, count);
}

/* ---- directories --------------------------------------------------------------------------------- */

static ax_status open_in_dir(ax_st *st, const char *dir, const char *stem)
{
    char *single;
    AX_TRY(ckpt_path(&single, "%s/%s.safetensors", dir, stem));
    ax_status status = AX_OK;
    int count;
    if (ax_path_exists(single)) {
        status = st_header_read(st, single);
        if (status == AX_OK)
            status = st_sort(st);
        free(single);
        return status;
    }
    free(single);
    AX_TRY(ckpt_path(&st->index, "%s/%s.safetensors.index.json", dir, stem));
    if (ax_path_exists(st->index))
        return open_index(st, dir);
    free(st->index);
    st->index = NULL;
    count = st_count_shards(dir, stem);
    AX_CHECK(count >= 0, AX_ERR_DATA,
             "%s holds shards of two models (%s-…-of-… with different last numbers) and no "
             "%s.safetensors.index.json that says which belong together: move the others away",
             dir, stem, stem);
    return count ? open_numbered(st, dir, stem, count) : ckpt_refuse_weights(dir, stem);
}

ax_status st_open_dir(const char *dir, const char *stem, ax_st **out)
{
    ax_st *st;
    AX_TRY(ax_calloc(1, sizeof *st, &st));
    ax_status status = open_in_dir(st, dir, stem);
    if (status != AX_OK)
        ax_st_close(&st);
    *out = st;
    return status;
}

const char *ax_st_remark(const ax_st *st) { return st->remark; }
