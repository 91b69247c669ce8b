/* Says what a directory holds in place of the weights, or of the model, that is looked for. */
#include "ckpt.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A kind of file that other programs take for weights. */
typedef struct other_kind {
    const char *pattern; /* shell pattern for names */
    const char *what;    /* what it is, and what to do */
    bool resave;         /* transformers can write it as safetensors */
} other_kind;

static const other_kind kinds[] = {
    {"adapter_model.safetensors", "the weights of an adapter: its adapter_config.json is missing", false},
    {"consolidated*.safetensors",
     "weights with the names of Mistral's own programs, which are not read: get the files that transformers "
     "reads (config.json, model*.safetensors) from the model's page, with `hf download`",
     false},
    {"*.gguf",
     "a file of llama.cpp, often quantized, which is not read: get the safetensors files of the model from "
     "which "
     "it was made",
     false},
    {"pytorch_model*.bin", "weights saved by torch.save, which are not read", true},
    {"model*.*.safetensors",
     "a variant of the weights: give its files, and their index, the names without the part before "
     ".safetensors",
     false},
    {"*.safetensors", "not the name of a model's weights: if it holds them, rename it to model.safetensors",
     false},
    {"consolidated*.pth",
     "weights of Meta's own programs, which are not read: get the files that transformers reads "
     "(config.json, model*.safetensors) from the model's page, with `hf download`",
     false},
    {"*.pt", "a file of torch.save, which is not read", false},
    {"tf_model.h5", "weights of TensorFlow, which are not read", false},
    {"flax_model.msgpack", "weights of Flax, which are not read", false},
    {"*.onnx", "a network for ONNX, which is not read", false},
    {"*.llamafile", "a program with quantized weights, which is not read", false},
    {"tekken.json", "the tokenizer of Mistral's own programs: the model's weights are missing", false},
    {"tokenizer.model", "the tokenizer of SentencePiece: the model's weights are missing", false},
    {"tokenizer.json", "a tokenizer: the model's weights are missing", false},
};

/* Returns the first kind, in the order of the table, of which `dir` has a file; *name is the file's name. */
static const other_kind *find_other(const char *dir, char name[256])
{
    const other_kind *found = NULL;
    ax_strings names = ckpt_names(dir);
    for (size_t i = 0; i < names.count; i++)
        for (const other_kind *kind = kinds; kind < (found ? found : kinds + AX_COUNT(kinds)); kind++)
            if (!fnmatch(kind->pattern, names.items[i], FNM_CASEFOLD)) {
                found = kind;
                snprintf(name, 256, "%s", names.items[i]);
            }
    ax_strings_fini(&names);
    return found;
}

static bool has_incomplete(const char *dir, const char *below)
{
    char *path;
    bool found = false;
    if (ckpt_path(&path, "%s/%s", dir, below) != AX_OK)
        return false;
    ax_strings names = ckpt_names(path);
    for (size_t i = 0; i < names.count && !found; i++)
        found = !fnmatch("*.incomplete", names.items[i], 0);
    ax_strings_fini(&names);
    free(path);
    return found;
}

bool ckpt_is_unfinished(const char *dir)
{
    return has_incomplete(dir, ".cache/huggingface/download") || has_incomplete(dir, "../../blobs") ||
           has_incomplete(dir, ".");
}

/* Returns in *name a directory in `dir` that has a config.json; false if there is none. */
static bool find_nested(const char *dir, char name[256])
{
    bool found = false;
    ax_strings names = ckpt_names(dir);
    for (size_t i = 0; i < names.count && !found; i++) {
        char *path;
        if (names.items[i][0] == '.' || ckpt_path(&path, "%s/%s", dir, names.items[i]) != AX_OK)
            continue;
        found = ax_dir_has(path, "config.json") || ax_dir_has(path, "adapter_config.json");
        if (found)
            snprintf(name, 256, "%s", names.items[i]);
        free(path);
    }
    ax_strings_fini(&names);
    return found;
}

/* Appends to `text` what `dir` holds instead of what is looked for; nothing if nothing is known. */
static ax_status describe(const char *dir, ax_buf *text)
{
    char name[256];
    const other_kind *kind = find_other(dir, name);
    if (ckpt_is_unfinished(dir))
        return ax_buf_printf(text,
                             "; its download is not finished (there are files *.incomplete): repeat it");
    if (kind)
        AX_TRY(ax_buf_printf(text, "; it has %s, %s", name, kind->what));
    if (kind && kind->resave)
        return ax_buf_printf(text,
                             ": save them as safetensors, with python3 -c \"from transformers import "
                             "AutoModelForCausalLM as M; M.from_pretrained('%s').save_pretrained('%s')\"",
                             dir, dir);
    if (!kind && find_nested(dir, name))
        return ax_buf_printf(text, "; its directory %s holds a model: give %s/%s", name, dir, name);
    return AX_OK;
}

ax_status ckpt_refuse_weights(const char *dir, const char *stem)
{
    ax_buf text = {0};
    ax_status status = describe(dir, &text);
    if (status == AX_OK)
        status = ax_fail(
            AX_ERR_DATA, "%s holds neither %s.safetensors nor %s.safetensors.index.json%s", dir, stem, stem,
            text.data ? text.data : "; files of other formats must be saved as safetensors first");
    ax_buf_fini(&text);
    return status;
}

ax_status ckpt_refuse_dir(const char *dir)
{
    ax_buf text = {0};
    ax_status status = describe(dir, &text);
    if (status == AX_OK)
        status = ax_fail(AX_ERR_DATA,
                         "%s is neither a model directory (config.json, model.safetensors), nor an adapter's "
                         "(adapter_config.json, adapter_model.safetensors), nor a run (ckpt/)%s",
                         dir, text.data ? text.data : "");
    ax_buf_fini(&text);
    return status;
}

/* ---- links --------------------------------------------------------------------------------------- */

/* Fails if `name` is a link to a file that does not exist, and is of a kind that would be read. */
static ax_status check_link(const char *dir, const char *name)
{
    static const char *const read[] = {"*.json", "*.safetensors", "merges.txt", "*.jinja"};
    bool wanted = false;
    char *path, target[512];
    for (size_t i = 0; i < AX_COUNT(read); i++)
        wanted |= !fnmatch(read[i], name, 0);
    if (!wanted)
        return AX_OK;
    AX_TRY(ckpt_path(&path, "%s/%s", dir, name));
    ssize_t n = ax_path_exists(path) ? -1 : readlink(path, target, sizeof target - 1);
    ax_status status = AX_OK;
    if (n >= 0)
        status =
            ax_fail(AX_ERR_DATA,
                    "%s is a link to %.*s, which does not exist: copy the model again with the files that "
                    "its links lead to (cp -rL), or download it again",
                    path, (int)n, target);
    free(path);
    return status;
}

ax_status ckpt_check_links(const char *dir)
{
    ax_strings names = ckpt_names(dir);
    ax_status status = AX_OK;
    for (size_t i = 0; i < names.count && status == AX_OK; i++)
        status = check_link(dir, names.items[i]);
    ax_strings_fini(&names);
    return status;
}
