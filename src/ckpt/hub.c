/* Finds models in the cache of the Hugging Face hub: models--ORG--NAME/ with snapshots/REVISION/, one
 * directory for each version, whose files are links to ../../blobs/, and refs/main, a file with the revision
 * of main. */
#include "ckpt.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FOLDER "models--"

/* Sets *out to the snapshot of cache folder `folder` that refs/main names; to NULL if there is none. */
static ax_status find_main(const char *folder, char **out)
{
    char *path, *text = NULL;
    size_t size;
    *out = NULL;
    AX_TRY(ckpt_path(&path, "%s/refs/main", folder));
    ax_status status = ax_path_is_given(path) ? ax_file_read_most(path, 4096, &text, &size) : AX_OK;
    free(path);
    AX_TRY(status);
    if (text && !strchr(text, '/')) {
        text[strcspn(text, " \r\n")] = 0;
        status = ckpt_path(out, "%s/snapshots/%s", folder, text);
        if (status == AX_OK && (!text[0] || text[0] == '.' || !ax_path_is_dir(*out))) {
            free(*out);
            *out = NULL;
        }
    }
    free(text);
    return status;
}

/* Sets *out to the only snapshot of cache folder `folder`. Fails if it has none or several. */
static ax_status find_only(const char *folder, char **out)
{
    char *path;
    int count = 0;
    ax_buf text = {0};
    AX_TRY(ckpt_path(&path, "%s/snapshots", folder));
    ax_strings names = ckpt_names(path);
    ax_status status = AX_OK;
    for (size_t i = 0; i < names.count && status == AX_OK; i++)
        if (names.items[i][0] != '.')
            status = ax_buf_printf(&text, "%s%s/%s", count++ ? ", " : "", path, names.items[i]);
    if (status == AX_OK && count == 1)
        status = ax_strdup(text.data, out);
    else if (status == AX_OK && count)
        status = ax_fail(
            AX_ERR_DATA,
            "%s is a folder of the hub's cache with %d snapshots, of which none is main: give one of %s",
            folder, count, text.data);
    else if (status == AX_OK)
        status = ax_fail(AX_ERR_DATA, "%s is a folder of the hub's cache without a snapshot%s", folder,
                         ckpt_is_unfinished(path) ? ": its download is not finished; repeat it"
                                                  : ": download the model");
    ax_strings_fini(&names);
    ax_buf_fini(&text);
    free(path);
    return status;
}

ax_status ckpt_find_snapshot(const char *path, char **out)
{
    char *folder;
    size_t n = strlen(path);
    *out = NULL;
    while (n > 1 && path[n - 1] == '/')
        n--;
    if (n > 10 && !strncmp(path + n - 10, "/snapshots", 10))
        n -= 10;
    AX_TRY(ax_strndup(path, n, &folder));
    const char *slash = strrchr(folder, '/'), *name = slash ? slash + 1 : folder;
    ax_status status = AX_OK;
    if (!strncmp(name, FOLDER, strlen(FOLDER)) && ax_dir_has(folder, "snapshots")) {
        status = find_main(folder, out);
        if (status == AX_OK && !*out)
            status = find_only(folder, out);
    }
    free(folder);
    return status;
}

/* ---- names of models ----------------------------------------------------------------------------- */

/* Returns the directory in which huggingface_hub keeps models; the caller frees *out, NULL if unknown. */
static ax_status cache_dir(char **out)
{
    static const struct {
        const char *variable, *below;
    } places[] = {{"HF_HUB_CACHE", ""},
                  {"HUGGINGFACE_HUB_CACHE", ""},
                  {"HF_HOME", "/hub"},
                  {"XDG_CACHE_HOME", "/huggingface/hub"},
                  {"HOME", "/.cache/huggingface/hub"}};
    *out = NULL;
    for (size_t i = 0; i < AX_COUNT(places); i++) {
        const char *value = getenv(places[i].variable);
        if (value && *value)
            return ckpt_path(out, "%s%s", value, places[i].below);
    }
    return AX_OK;
}

/* Returns the last two names of a path, "ORG/NAME", which may be a model's name on the hub; of a path without
 * slash, all of it. */
static const char *last_names(const char *path)
{
    const char *slash = strrchr(path, '/'), *start = slash;
    if (!slash)
        return path;
    while (start > path && start[-1] != '/')
        start--;
    return start;
}

static bool is_hub_name(const char *name)
{
    int slashes = 0;
    if (!isalnum((unsigned char)name[0]))
        return false;
    for (const char *c = name; *c; c++) {
        slashes += *c == '/';
        if (!isalnum((unsigned char)*c) && !strchr("-_./", *c))
            return false;
    }
    return slashes <= 1 && name[strlen(name) - 1] != '/';
}

/* Sets *out to the snapshot of the model `name` in the hub's cache; to NULL if the cache does not have it. */
static ax_status find_cached(const char *name, char **out)
{
    char *cache, *folder;
    AX_TRY(cache_dir(&cache));
    *out = NULL;
    if (!cache)
        return AX_OK;
    const size_t org = strcspn(name, "/");
    ax_status status = ckpt_path(&folder, "%s/" FOLDER "%.*s%s%s", cache, (int)org, name,
                                 name[org] ? "--" : "", name[org] ? name + org + 1 : "");
    free(cache);
    AX_TRY(status);
    status = ax_path_is_dir(folder) ? ckpt_find_snapshot(folder, out) : AX_OK;
    free(folder);
    return status == AX_ERR_DATA ? AX_OK : status;
}

/* Sets *name to the name that `path`, which does not exist, may have on the hub: NAME, or ORG/NAME if there
 * is no directory ORG. NULL: it is no such name. */
static ax_status find_hub_name(const char *path, const char **name)
{
    const char *slash = strrchr(path, '/'), *last = last_names(path);
    char *parent;
    AX_TRY(ax_strndup(path, slash ? (size_t)(slash - path) : 0, &parent));
    *name = is_hub_name(last) && !ax_path_is_dir(parent) ? last : NULL;
    free(parent);
    return AX_OK;
}

ax_status ckpt_refuse_path(const char *path)
{
    char *cached = NULL;
    const char *name;
    AX_TRY(find_hub_name(path, &name));
    if (name)
        AX_TRY(find_cached(name, &cached));
    if (cached) {
        ax_status status = ax_fail(AX_ERR_DATA,
                                   "no such file or directory: %s; models are given as directories, and the "
                                   "hub's cache has %s in %s: give that directory",
                                   path, name, cached);
        free(cached);
        return status;
    }
    AX_CHECK(
        !name || !strchr(name, '/'), AX_ERR_DATA,
        "no such file or directory: %s; if %s is a model's name on the Hugging Face hub, download it first "
        "(hf download %s --local-dir DIR), and give DIR",
        path, name, name);
    return ax_fail(AX_ERR_DATA, "no such file or directory: %s", path);
}
