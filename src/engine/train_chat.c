/* Makes checkpoints carry the chat template by which the conversations of data.train were written. The
 * tokenizer gets this template, and eos_token_id in generation_config.json gets the token that ends a turn.
 * So transformers, other programs and `axonn generate --chat` write conversations as in the training data. */
#include "axonn/json.h"
#include "engine/train.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char generation[] = "generation_config.json";

/* Returns the name of the template by which all conversations of data.train were written. NULL: data.train
 * has no conversations, their template is not recorded, or they have several templates. */
static const char *find_name(const ax_run *run)
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
            ax_log(
                AX_LOG_WARN,
                "%s was written by template %s, but %s by %s: the chat template of the model stays as it is",
                path, name, train->path[i], info->chat_template);
            return NULL;
        }
        name = info->chat_template;
        path = train->path[i];
    }
    return name;
}

static ax_run_file *find_file(const ax_run_files *files, const char *name)
{
    for (int i = 0; i < files->n; i++)
        if (!strcmp(files->file[i].name, name))
            return &files->file[i];
    return NULL;
}

/* ---- the end of a turn --------------------------------------------------------------------------- */

/* Returns a list of `end` and then `ids`, the value of eos_token_id: one id, a list, or NULL if the file has
 * no such key. In place of a missing value, `eos` is used, the id in config.json. Returns NULL if the ids
 * have `end` already, or if memory is short. */
static json_t *add_id(const json_t *ids, int32_t end, int64_t eos)
{
    json_t *list = json_pack("[i]", (int)end);
    size_t n = json_is_array(ids) ? json_array_size(ids) : json_is_integer(ids);
    bool there = !ids && end == eos;
    for (size_t i = 0; i < n; i++) {
        json_t *id = json_is_array(ids) ? json_array_get(ids, i) : (json_t *)ids;
        there = there || json_integer_value(id) == end;
        json_array_append(list, id);
    }
    if (!ids && eos >= 0)
        json_array_append_new(list, json_integer(eos));
    if (!there)
        return list;
    json_decref(list);
    return NULL;
}

/* Replaces the text of generation_config.json, or adds the file. */
static ax_status set_generation(ax_run_files *files, const json_t *root)
{
    ax_run_file *file = find_file(files, generation);
    char *text = json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    AX_CHECK(text, AX_ERR_MEMORY, "not enough memory for %s", generation);
    if (!file)
        return ax_run_files_add(files, generation, text, strlen(text));
    free(file->data);
    file->data = text;
    file->size = strlen(text);
    return AX_OK;
}

/* Adds the token that ends a turn to the end tokens in generation_config.json. */
static ax_status add_end(ax_run *run, int32_t end)
{
    const ax_run_file *file = find_file(&run->beside, generation);
    json_t *root = NULL;
    if (file)
        AX_TRY(ax_json_parse(generation, file->data, file->size, 0, &root));
    else
        AX_CHECK(root = json_object(), AX_ERR_MEMORY, "not enough memory for %s", generation);
    json_t *ids = add_id(json_object_get(root, "eos_token_id"), end, run->inputs.identity.eos);
    ax_status status = AX_OK;
    if (ids && json_is_object(root)) {
        json_object_set(root, "eos_token_id", ids);
        status = set_generation(&run->beside, root);
    }
    json_decref(ids);
    json_decref(root);
    return status;
}

/* ---- the template -------------------------------------------------------------------------------- */

static ax_status carry(ax_run *run, const ax_chat *chat)
{
    ax_buf jinja = {0};
    if (ax_chat_is_own(chat))
        return AX_OK;
    ax_log(AX_LOG_INFO, "checkpoints will have the chat template %s, by which the data was written%s",
           ax_chat_name(chat),
           ax_tokenizer_chat_template(run->inputs.tokenizer) ? ", in place of the tokenizer's" : "");
    ax_status status = ax_chat_jinja(chat, &jinja);
    if (status == AX_OK)
        status = ax_tokenizer_set_chat_template(run->inputs.tokenizer, jinja.data);
    ax_buf_fini(&jinja);
    return status;
}

ax_status ax_run_carry_template(ax_run *run)
{
    ax_tokenizer *tok = run->inputs.tokenizer;
    const char *name = find_name(run);
    ax_chat *chat = NULL;
    if (tok && name) {
        AX_TRY(ax_chat_create(tok, name, &chat));
        ax_status status = carry(run, chat);
        if (status == AX_OK)
            status = add_end(run, ax_chat_end(chat));
        ax_chat_destroy(&chat);
        AX_TRY(status);
    }
    if (tok && ax_tokenizer_chat_template(tok))
        ax_run_files_remove(&run->beside, "chat_template.jinja"); /* it is saved with the tokenizer */
    return AX_OK;
}
