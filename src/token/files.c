/* Finds and reads the files of a tokenizer: ax_tokenizer_load. */
#include "token/tok.h"

#include <stdlib.h>
#include <string.h>

/* Reads tokenizer_config.json of the directory `dir`. Sets *text to NULL if there is no such file. */
static ax_status read_config(const char *dir, char **text, size_t *size)
{
    char *path;
    *text = NULL;
    *size = 0;
    AX_TRY(ax_path_join(dir, "tokenizer_config.json", &path));
    ax_status status = ax_path_is_given(path) ? ax_file_read(path, text, size) : AX_OK;
    free(path);
    return status;
}

static ax_status load_json_file(const char *path, const char *dir, ax_tokenizer **out)
{
    char *json, *config;
    size_t json_size, config_size;
    AX_TRY(ax_file_read(path, &json, &json_size));
    ax_status status = read_config(dir, &config, &config_size);
    if (status != AX_OK) {
        free(json);
        return status;
    }
    return tok_parse(path, dir, json, json_size, config, config_size, out);
}

static ax_status load_directory(const char *dir, ax_tokenizer **out)
{
    char *path;
    AX_TRY(ax_path_join(dir, "tokenizer.json", &path));
    ax_status status =
        ax_path_is_given(path) ? load_json_file(path, dir, out) : tok_load_gpt2_files(dir, out);
    free(path);
    return status;
}

/* Sets *out to the directory with the tokenizer's files: the subdirectory `tokenizer` if `path` is the
 * directory of a run, else `path`. */
static ax_status find_directory(const char *path, char **out)
{
    char *part, *file;
    AX_TRY(ax_path_join(path, "tokenizer", &part));
    ax_status status = ax_path_join(path, "tokenizer.json", &file);
    if (status == AX_OK && (ax_path_is_given(file) || !ax_path_is_dir(part))) {
        free(part);
        part = NULL;
        status = ax_strdup(path, &part);
    }
    free(file);
    if (status == AX_OK)
        *out = part;
    return status;
}

/* Loads a tokenizer from its file `path`, which is in the directory `dir`. */
static ax_status load_file(const char *path, const char *dir, ax_tokenizer **out)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    return !strcmp(name, "tokenizer.model") ? tok_refuse_sentencepiece(dir)
           : !strcmp(name, "vocab.json")    ? tok_load_gpt2_files(dir, out)
                                            : load_json_file(path, dir, out);
}

ax_status ax_tokenizer_load(const char *path, ax_tokenizer **out)
{
    *out = NULL;
    AX_CHECK(ax_path_exists(path), AX_ERR_DATA,
             "no such file or directory: %s; give a tokenizer's directory or its tokenizer.json", path);
    const char *slash = strrchr(path, '/');
    const bool is_dir = ax_path_is_dir(path);
    char *dir;
    AX_TRY(is_dir  ? find_directory(path, &dir)
           : slash ? ax_strndup(path, ax_max(slash - path, 1), &dir)
                   : ax_strdup(".", &dir));
    ax_status status = is_dir ? load_directory(dir, out) : load_file(path, dir, out);
    if (status == AX_OK)
        status = tok_read_chat_template(dir, *out);
    if (status != AX_OK)
        ax_tokenizer_destroy(out);
    free(dir);
    return status;
}
