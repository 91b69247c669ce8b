/* Stores in checkpoints the chat template by which the conversations of data.train were written. The
 * tokenizer gets this template, and eos_token_id in generation_config.json gets the token that ends a turn.
 * So transformers, other programs and `axonn generate --chat` write conversations as in the training data. */
#include "axonn/json.h"
#include "train/train.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char generation[] = "generation_config.json";

/* Returns the name of the template by which all conversations of data.train were written. NULL: data.train
 * has no conversations, their template is not recorded, or they have several templates. */
static const char *find_name(const ax_train_run *run)
{
    const ax_sources *train = &run->inputs.train;
    const char *name = NULL, *path = NULL;
    for (int i = 0; i < train->n; i++) {
        const ax_data_info *info = ax_data_describe(train->data[i]);
        if (info->targets < 0)
            continue;
        if (!*info->chat_template)
            return NULL;
        if (name && strcmp(name, info->chat_template)) {
            ax_log(AX_LOG_WARN,
                   "%s was written by template %s, but %s by %s: the chat template that the model has, if "
                   "any, stays as it is; build the token files by one template to change it",
                   path, name, train->path[i], info->chat_template);
            return NULL;
        }
        name = info->chat_template;
        path = train->path[i];
    }
    return name;
}

static ax_train_file *find_file(const ax_train_files *files, const char *name)
{
    for (int i = 0; i < files->n; i++)
        if (!strcmp(files->file[i].name, name))
            return &files->file[i];
    return NULL;
}

/* ---- end tokens ---------------------------------------------------------------------------------- */

/* Returns a list of the end-of-text tokens in generation_config.json (`root`; NULL: no file). The value of
 * its key eos_token_id is one id, a list, or null; ids below 0 are left out. */
static json_t *end_ids(const json_t *root)
{
    const json_t *ids = json_object_get(root, "eos_token_id");
    json_t *list = json_array();
    size_t n = json_is_array(ids) ? json_array_size(ids) : json_is_integer(ids);
    for (size_t i = 0; i < n; i++) {
        json_t *id = json_is_array(ids) ? json_array_get(ids, i) : (json_t *)ids;
        if (json_integer_value(id) >= 0)
            json_array_append(list, id);
    }
    return list;
}

static bool has_id(const json_t *list, int64_t id)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_integer_value(json_array_get(list, i)) == id)
            return true;
    return false;
}

/* Sets the key `key` of `root` to the token id `id`; removes the key if `id` is below 0. */
static void set_id(json_t *root, const char *key, int64_t id)
{
    if (id >= 0)
        json_object_set_new(root, key, json_integer(id));
    else
        json_object_del(root, key);
}

/* Makes `root` the content of generation_config.json in `files`; adds the file if `files` lacks it. */
static ax_status set_generation(ax_train_files *files, const json_t *root)
{
    ax_train_file *file = find_file(files, generation);
    char *text = json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    AX_CHECK(text, AX_ERR_MEMORY, "not enough memory for the text of %s, which checkpoints get", generation);
    if (!file)
        return ax_train_files_add(files, generation, text, strlen(text));
    free(file->data);
    file->data = text;
    file->size = strlen(text);
    return AX_OK;
}

/* Updates the special tokens in generation_config.json. If the file was made for another tokenizer, the ids
 * become those of the run's tokenizer. `end`, the token that ends a turn of a conversation (-1: none),
 * becomes one of the end-of-text tokens. */
static ax_status update_ends(ax_train_run *run, int32_t end)
{
    const ax_train_file *file = find_file(&run->beside, generation);
    const ax_model_identity *own = &run->inputs.identity;
    json_t *root = NULL;
    if (file)
        AX_TRY(ax_json_parse(generation, file->data, file->size, 0, &root));
    const bool other = root && run->inputs.other_tokenizer;
    if (other) {
        set_id(root, "eos_token_id", own->eos);
        set_id(root, "bos_token_id", own->bos);
        json_object_del(root, "pad_token_id");
    }
    json_t *ids = end_ids(root);
    if (!json_array_size(ids) && own->eos >= 0)
        json_array_append_new(ids, json_integer(own->eos));
    const bool added = end >= 0 && !has_id(ids, end);
    if (added) {
        json_array_insert_new(ids, 0, json_integer(end));
        root = root ? root : json_object();
        json_object_set(root, "eos_token_id", ids);
    }
    ax_status status = (added || other) && json_is_object(root) ? set_generation(&run->beside, root) : AX_OK;
    json_decref(ids);
    json_decref(root);
    return status;
}

/* ---- the template -------------------------------------------------------------------------------- */

/* Gives the tokenizer the chat template as a Jinja text. The tokenizer's own template is replaced even if it
 * writes conversations in the same format, because it may add text that the data does not have, such as a
 * system turn. */
static ax_status carry(ax_train_run *run, const ax_chat *chat)
{
    ax_buf jinja = {0};
    const char *own = ax_tokenizer_chat_template(run->inputs.tokenizer);
    ax_status status = ax_chat_jinja(chat, &jinja);
    if (status == AX_OK && (!own || strcmp(own, jinja.data) != 0)) {
        ax_log(AX_LOG_INFO, "checkpoints will have the chat template %s, by which the data was written%s",
               ax_chat_name(chat), own ? ", in place of the tokenizer's own" : "");
        status = ax_tokenizer_set_chat_template(run->inputs.tokenizer, jinja.data);
    }
    ax_buf_fini(&jinja);
    return status;
}

/* Warns if validation data was written by another chat template than the training data: then the losses
 * cannot be compared. */
static void compare_valid(const ax_train_run *run, const char *name)
{
    const ax_sources *valid = &run->inputs.valid;
    for (int i = 0; i < valid->n; i++) {
        const char *other = ax_data_describe(valid->data[i])->chat_template;
        if (*other && strcmp(other, name) != 0)
            ax_log(AX_LOG_WARN,
                   "%s of data.valid was written by template %s, but data.train by %s: set data.template, or "
                   "build the token files by one template",
                   valid->path[i], other, name);
    }
}

/* Warns that checkpoints do not have the template by which data.train was written, because of `why`. */
static void warn_of_other(const ax_train_run *run, const char *name, const char *why)
{
    const char *own = ax_chat_name(run->inputs.chat);
    const bool other = !strncmp(name, "own-", 4), none = !ax_tokenizer_chat_template(run->inputs.tokenizer);
    ax_log(AX_LOG_WARN,
           "the conversations of data.train were written by template %s, which %s: checkpoints %s%s, so "
           "prompts are written otherwise than the model learns them. Build the data again with the run's "
           "tokenizer%s",
           name, other ? "is the chat_template of another tokenizer" : why,
           none ? "have no chat template" : "keep the tokenizer's own chat template, ", none ? "" : own,
           other ? ", or set data.tokenizer to a copy of it that has the other tokenizer's text as "
                   "chat_template.jinja"
                 : "");
}

ax_status ax_train_carry_template(ax_train_run *run)
{
    ax_tokenizer *tok = run->inputs.tokenizer;
    const char *name = find_name(run);
    int32_t end = -1;
    ax_chat *chat = NULL;
    if (name)
        compare_valid(run, name);
    if (tok && name && ax_chat_create(tok, name, &chat) != AX_OK)
        warn_of_other(run, name, ax_error_message());
    if (chat) {
        if (ax_chat_doubt(chat))
            ax_log(AX_LOG_WARN, "%s", ax_chat_doubt(chat));
        ax_status status = carry(run, chat);
        if (status == AX_OK)
            status = ax_train_warn_unlearned(run, chat);
        end = ax_chat_end(chat);
        ax_chat_destroy(&chat);
        AX_TRY(status);
    }
    if (tok && ax_tokenizer_chat_template(tok))
        ax_train_files_remove(&run->beside, "chat_template.jinja"); /* saved with the tokenizer instead */
    return update_ends(run, end);
}
