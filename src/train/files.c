/* The small files of a checkpoint: the files that the run writes itself, and copies of the files in the
 * directory from which the run starts (a checkpoint, or model.from). */
#include "infer/beside.h"
#include "train/train.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void ax_train_files_fini(ax_train_files *files)
{
    for (int i = 0; i < files->n; i++) {
        free(files->file[i].name);
        free(files->file[i].data);
    }
    free(files->file);
    files->file = NULL;
    files->n = 0;
}

ax_status ax_train_files_add(ax_train_files *files, const char *name, char *data, size_t size)
{
    char *copy;
    ax_status status = ax_list_grow(&files->file, (size_t)files->n, sizeof *files->file);
    if (status == AX_OK)
        status = ax_strdup(name, &copy);
    if (status == AX_OK)
        files->file[files->n++] = (ax_train_file){.name = copy, .data = data, .size = size};
    else
        free(data);
    return status;
}

void ax_train_files_remove(ax_train_files *files, const char *name)
{
    for (int i = files->n - 1; i >= 0; i--) {
        if (strcmp(files->file[i].name, name))
            continue;
        free(files->file[i].name);
        free(files->file[i].data);
        memmove(files->file + i, files->file + i + 1, (size_t)(--files->n - i) * sizeof *files->file);
    }
}

/* Appends the file `name` of `dir` to *files, under the name `as`. */
static ax_status add_from(ax_train_files *files, const char *dir, const char *name, const char *as)
{
    char *path, *data;
    size_t size;
    AX_TRY(ax_path_join(dir, name, &path));
    ax_status status = ax_file_read(path, &data, &size);
    free(path);
    return status == AX_OK ? ax_train_files_add(files, as, data, size) : status;
}

/* Appends the file `name` of `dir` to *files, under the name `as`, if there is such a file; else does
 * nothing. */
static ax_status add_existing(ax_train_files *files, const char *dir, const char *name, const char *as)
{
    return ax_dir_has(dir, name) ? add_from(files, dir, name, as) : AX_OK;
}

/* ---- files that the run writes ------------------------------------------------------------------- */

/* Appends the tokenizer's files to *files. ax_tokenizer_save writes them to run.dir/tokenizer first. */
static ax_status add_tokenizer(const ax_train_run *run, ax_train_files *files)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"};
    char *dir;
    if (!run->inputs.tokenizer)
        return AX_OK;
    AX_TRY(ax_path_join(run->config->run.dir, "tokenizer", &dir));
    ax_status status = ax_tokenizer_save(run->inputs.tokenizer, dir);
    for (size_t i = 0; status == AX_OK && i < AX_COUNT(names); i++)
        status = add_existing(files, dir, names[i], names[i]);
    free(dir);
    return status;
}

static ax_status add_config(const ax_train_run *run, ax_train_files *files)
{
    ax_buf text = {0};
    ax_model_identity identity = run->inputs.identity;
    const ax_model_config *model = &run->inputs.model;
    bool adapter = ax_model_config_is_adapted(model);
    identity.dtype = ax_config_dtype(run->config->run.save_dtype);
    ax_status status = adapter ? ax_adapter_print(model, run->inputs.model_dir, &text)
                               : ax_model_config_print(model, &identity, &text);
    if (status == AX_OK)
        return ax_train_files_add(files, adapter ? "adapter_config.json" : "config.json", text.data,
                                  text.size);
    ax_buf_fini(&text);
    return status;
}

ax_status ax_train_write_files(const ax_train_run *run, ax_train_files *out)
{
    AX_TRY(add_config(run, out));
    if (run->state.keeps_plans)
        AX_TRY(add_existing(out, run->config->run.dir, AX_PLANS_FILE, "training/" AX_PLANS_FILE));
    return add_tokenizer(run, out);
}

ax_status ax_train_carry_plans(const ax_train_run *run, ax_train_files *out)
{
    static const char name[] = "training/" AX_PLANS_FILE;
    bool may = ax_train_first(run) && run->resume.dir;
    return may ? add_existing(out, run->resume.dir, name, name) : AX_OK;
}

/* ---- files beside the initial weights ------------------------------------------------------------ */

static bool is_one_of(const char *name, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(names[i], name))
            return true;
    return false;
}

/* Returns true if the file `name` is not copied into checkpoints. Not copied are kinds of files that never
 * belong to a copy of a model (beside.c), files that the run writes itself, and files of a tokenizer that is
 * not used because data.tokenizer names another one. */
static bool is_excluded(const ax_train_run *run, const char *name)
{
    static const char *const written[] = {"config.json", "adapter_config.json", "tokenizer.json",
                                          "tokenizer_config.json", AX_BESIDE_TEMPLATES};
    static const char *const tokenizer[] = {"vocab.json",        "merges.txt",      "special_tokens_map.json",
                                            "added_tokens.json", "tokenizer.model", "chat_template.jinja"};
    return !ax_beside_copied(name) || is_one_of(name, written, AX_COUNT(written)) ||
           (run->config->data.tokenizer && is_one_of(name, tokenizer, AX_COUNT(tokenizer)));
}

/* Appends the file `name` of directory `dir` to *out, if the file is to be copied. If `name` is a directory,
 * appends its name to *directories, for a log message. */
static ax_status add_beside(const ax_train_run *run, const char *dir, const char *name, ax_train_files *out,
                            ax_buf *directories)
{
    char *path;
    struct stat info;
    if (is_excluded(run, name))
        return AX_OK;
    AX_TRY(ax_path_join(dir, name, &path));
    bool there = !stat(path, &info), regular = there && S_ISREG(info.st_mode),
         small = regular && info.st_size <= AX_BESIDE_MOST;
    if (regular && !small)
        ax_log(
            AX_LOG_WARN,
            "%s is larger than 16 MiB and is not copied into checkpoints: copy it yourself if it is needed",
            path);
    free(path);
    if (small)
        ax_beside_say_link(dir, name);
    if (there && S_ISDIR(info.st_mode))
        return ax_buf_printf(directories, "%s%s", directories->size ? ", " : "", name);
    return small ? add_from(out, dir, name, name) : AX_OK;
}

/* Logs which files of `dir` are copied into checkpoints, and which directories are not. */
static ax_status log_files(const char *dir, const ax_train_files *files, const ax_buf *directories)
{
    ax_buf names = {0};
    ax_status status = AX_OK;
    for (int i = 0; i < files->n && status == AX_OK; i++)
        status = ax_buf_printf(&names, "%s%s", i ? ", " : "", files->file[i].name);
    if (status == AX_OK && files->n)
        ax_log(AX_LOG_INFO, "checkpoints will include these files from %s: %s", dir, names.data);
    if (directories->size)
        ax_log(AX_LOG_INFO, "checkpoints will not include these directories of %s: %s", dir,
               directories->data);
    ax_buf_fini(&names);
    return status;
}

/* Reads into *out the files of the directory `dir` that are to be copied. AX_ERR_DATA if a file cannot be
 * read, or `dir` was removed meanwhile. */
static ax_status read_files(const ax_train_run *run, const char *dir, ax_train_files *out)
{
    ax_strings names;
    ax_buf directories = {0};
    ax_status status = ax_dir_list(dir, &names);
    for (size_t i = 0; i < names.count && status == AX_OK; i++)
        status = add_beside(run, dir, names.items[i], out, &directories);
    ax_strings_fini(&names);
    if (status == AX_OK && !ax_path_exists(dir))
        status = ax_fail(AX_ERR_DATA,
                         "%s was removed while its files were read, perhaps by a run that keeps only its "
                         "newest checkpoints (run.keep_latest)",
                         dir);
    if (status == AX_OK && !run->resume.dir)
        status = log_files(dir, out, &directories);
    ax_buf_fini(&directories);
    return status;
}

/* Reads the files to copy from the checkpoint from which the run starts, or else from the directory of
 * model.from. If another run wrote this directory and still trains, that run may remove the directory when it
 * saves its next checkpoint. Then the files are read from that run's newest checkpoint: all checkpoints of a
 * run have the same small files. */
ax_status ax_train_find_files(const ax_train_run *run, ax_train_files *out)
{
    char *newest = NULL;
    const char *from = run->inputs.adapter_dir ? run->inputs.adapter_dir : run->inputs.model_dir;
    const char *dir = run->resume.dir ? run->resume.dir : from;
    ax_status status = dir ? read_files(run, dir, out) : AX_OK;
    while (status == AX_ERR_DATA && run->config->model.from && !ax_path_exists(dir)) {
        ax_train_files_fini(out);
        free(newest);
        newest = NULL;
        AX_TRY(ax_ckpt_find_model(run->config->model.from, &newest));
        dir = newest;
        status = read_files(run, dir, out);
    }
    free(newest);
    return status;
}
