/* Applies tokenizer_config.json: the end-of-text token and the chat template. The chat template may also be a
 * file of its own, chat_template.jinja. */
#include "token/tok.h"

#include <string.h>

/* Sets *id to the id of the token that the member `key` of tokenizer_config.json names, such as "eos_token";
 * -1 if there is no such member. */
static ax_status find_token(const char *where, const json_t *config, const ax_tokenizer *tok, const char *key,
                            int32_t *id)
{
    const json_t *field = json_object_get(config, key);
    const char *name = json_string_value(json_is_object(field) ? json_object_get(field, "content") : field);
    *id = name ? ax_tokenizer_id(tok, name, strlen(name)) : -1;
    AX_CHECK(!name || *id >= 0, AX_ERR_DATA,
             "%s: %s of the tokenizer_config.json beside it, \"%s\", is not in the vocabulary: name a token "
             "that is",
             where, key, name);
    return AX_OK;
}

/* ---- the chat template --------------------------------------------------------------------------- */

enum { MOST_TEMPLATE_BYTES = 1 << 20 };

/* Sets *text to the text of a template's file; NULL: there is no such file. AX_ERR_DATA if it is larger than
 * a template may be, or not UTF-8. */
static ax_status read_template(const char *dir, const char *name, char **text)
{
    char *path;
    size_t size;
    *text = NULL;
    AX_TRY(ax_path_join(dir, name, &path));
    ax_status status =
        ax_path_is_given(path) ? ax_file_read_most(path, MOST_TEMPLATE_BYTES, text, &size) : AX_OK;
    if (status == AX_OK && *text && tok_utf8_prefix(*text, size) != size) {
        status = ax_fail(AX_ERR_DATA, "%s is not valid UTF-8: write the chat template in UTF-8", path);
        free(*text);
        *text = NULL;
    }
    free(path);
    return status;
}

/* Returns true if the name of a template is UTF-8 without control characters, so that messages can show it;
 * else warns that the template is left out. */
static bool accept_name(const char *where, const char *name, size_t n)
{
    bool plain = tok_utf8_prefix(name, n) == n;
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)name[i], next = (unsigned char)name[i + 1];
        plain &= c >= 0x20 && c != 0x7f && !(c == 0xc2 && next < 0xa0);
    }
    if (!plain)
        ax_log(AX_LOG_WARN,
               "a chat template of %s is left out: its name is not UTF-8, or has control characters: give "
               "it another name",
               where);
    return plain;
}

static ax_status add_template(ax_tokenizer *tok, const char *name, size_t n, const char *text)
{
    tok->templates = tok->templates ? tok->templates : json_object();
    AX_CHECK(tok->templates && !json_object_setn_new(tok->templates, name, n, json_string(text)),
             AX_ERR_MEMORY, "not enough memory for the chat templates of a tokenizer");
    return AX_OK;
}

/* Reads the templates NAME.jinja of the directory additional_chat_templates. Files that cannot be read are
 * left out: conversations may never need them. */
static ax_status read_more_templates(const char *dir, ax_tokenizer *tok)
{
    static const char end[] = ".jinja";
    char *more, *text;
    ax_strings names = {0};
    AX_TRY(ax_path_join(dir, "additional_chat_templates", &more));
    const bool listed = ax_path_is_dir(more) || (ax_path_is_given(more) && !ax_path_exists(more));
    ax_status status = listed ? ax_dir_list(more, &names) : AX_OK;
    for (size_t i = 0; i < names.count && status == AX_OK; i++) {
        const size_t n = strlen(names.items[i]), stem = n > strlen(end) ? n - strlen(end) : 0;
        if (!stem || strcmp(names.items[i] + stem, end) != 0 || !accept_name(more, names.items[i], stem))
            continue;
        status = read_template(more, names.items[i], &text);
        if (status == AX_ERR_DATA) {
            ax_log(AX_LOG_WARN, "a chat template is left out: %s", ax_error_message());
            status = AX_OK;
        }
        if (status == AX_OK && text)
            status = add_template(tok, names.items[i], stem, text);
        free(text);
    }
    ax_strings_fini(&names);
    free(more);
    return status;
}

/* Replaces the text of tokenizer_config.json by `config`, which is released. */
static ax_status set_config(ax_tokenizer *tok, json_t *config)
{
    char *text = json_dumps(config, JSON_INDENT(2));
    json_decref(config);
    AX_CHECK(text, AX_ERR_MEMORY, "not enough memory to write the tokenizer_config.json of a tokenizer");
    free(tok->config);
    tok->config = text;
    tok->config_size = strlen(text);
    return AX_OK;
}

/* Puts all templates into tokenizer_config.json, as a list that transformers reads too. So what is saved has
 * them without a directory of its own. */
static ax_status list_templates(ax_tokenizer *tok)
{
    json_t *config, *value;
    const char *name;
    if (tok->chat_template)
        AX_TRY(add_template(tok, "default", 7, tok->chat_template));
    AX_TRY(ax_json_parse("tokenizer_config.json", tok->config, tok->config_size, 0, &config));
    json_t *list = json_array();
    json_object_foreach(tok->templates, name, value)
    {
        json_array_append_new(list, json_pack("{s:s, s:O}", "name", name, "template", value));
    }
    json_object_set_new(config, "chat_template", list);
    tok->chat_template_apart = false;
    return set_config(tok, config);
}

/* Drops the templates of tokenizer_config.json: those that have files of their own count. */
static void drop_templates(ax_tokenizer *tok)
{
    free(tok->chat_template);
    tok->chat_template = NULL;
    json_decref(tok->templates);
    tok->templates = NULL;
    tok->template_fault = NULL;
}

/* Reads the templates that have files of their own, into a tokenizer without templates. */
static ax_status read_files(const char *dir, ax_tokenizer *tok)
{
    AX_TRY(read_template(dir, "chat_template.jinja", &tok->chat_template));
    tok->chat_template_apart = tok->chat_template;
    AX_TRY(read_more_templates(dir, tok));
    return tok->templates ? list_templates(tok) : AX_OK;
}

ax_status tok_read_chat_template(const char *dir, ax_tokenizer *tok)
{
    ax_tokenizer files = {.config = tok->config, .config_size = tok->config_size};
    ax_status status = read_files(dir, &files);
    const bool found = files.chat_template || files.templates;
    const bool others = tok->templates || tok->template_fault || (tok->chat_template && !files.chat_template);
    if (status == AX_OK && found &&
        (others || (tok->chat_template && strcmp(tok->chat_template, files.chat_template) != 0)))
        ax_log(
            AX_LOG_INFO,
            "%s: %s differs from chat_template of tokenizer_config.json; the file counts, as in transformers",
            dir, files.chat_template ? "chat_template.jinja" : "additional_chat_templates");
    if (status == AX_OK && found) {
        drop_templates(tok);
        tok->chat_template = files.chat_template;
        tok->templates = files.templates;
        tok->chat_template_apart = files.chat_template_apart;
    } else {
        drop_templates(&files);
    }
    tok->config = files.config;
    tok->config_size = files.config_size;
    if (status == AX_OK && !tok->template_file)
        status = ax_path_join(dir,
                              !found               ? "tokenizer_config.json"
                              : tok->chat_template ? "chat_template.jinja"
                                                   : "additional_chat_templates",
                              &tok->template_file);
    if (status == AX_OK && found && tok->templates && !tok->template_dir)
        status = ax_path_join(dir, "additional_chat_templates", &tok->template_dir);
    return status;
}

/* Removes "chat_template" from tokenizer_config.json: some readers would use it instead of
 * chat_template.jinja. */
static ax_status drop_template(ax_tokenizer *tok)
{
    json_t *config;
    AX_TRY(ax_json_parse("tokenizer_config.json", tok->config, tok->config_size, 0, &config));
    if (!json_object_del(config, "chat_template"))
        return set_config(tok, config);
    json_decref(config);
    return AX_OK;
}

ax_status ax_tokenizer_set_chat_template(ax_tokenizer *tok, const char *jinja)
{
    char *text;
    AX_TRY(ax_strdup(jinja, &text));
    drop_templates(tok);
    tok->chat_template = text;
    tok->chat_template_apart = true;
    return drop_template(tok);
}

/* Makes an object, by name, of a list of templates, objects with "name" and "template", or of such an object.
 * The last one of a name counts. NULL: it is neither, or has something else than texts. */
static json_t *name_templates(const json_t *field)
{
    json_t *named = json_is_object(field)  ? json_copy((json_t *)field)
                    : json_is_array(field) ? json_object()
                                           : NULL;
    const json_t *item;
    json_t *text;
    const char *name;
    void *next;
    size_t i;
    bool good = true;
    json_array_foreach(field, i, item)
    {
        name = json_string_value(json_object_get(item, "name"));
        text = json_object_get(item, "template");
        good &= name && !json_object_set(named, name, text);
    }
    json_object_foreach_safe(named, next, name, text)
    {
        good &= json_is_string(text);
        if (!accept_name("tokenizer_config.json", name, strlen(name)))
            json_object_del(named, name);
    }
    if (!good) {
        json_decref(named);
        named = NULL;
    }
    return named;
}

/* Reads the member "chat_template": a text, or several by name. What is neither is a fault of conversations
 * only. */
static ax_status read_config_templates(const json_t *field, ax_tokenizer *tok)
{
    if (!field || json_is_null(field))
        return AX_OK;
    if (!json_is_string(field)) {
        tok->templates = name_templates(field);
        field = json_object_get(tok->templates, "default");
        if (!tok->templates)
            tok->template_fault =
                "it is neither a text, nor texts by name (a list of objects with \"name\" and "
                "\"template\")";
    }
    return field ? ax_strdup(json_string_value(field), &tok->chat_template) : AX_OK;
}

/* -------------------------------------------------------------------------------------------------- */

ax_status tok_apply_config(const char *where, const json_t *config, ax_tokenizer *tok)
{
    static const char usual[] = "<|endoftext|>";
    tok->split_specials = json_is_true(json_object_get(config, "split_special_tokens"));
    AX_TRY(find_token(where, config, tok, "eos_token", &tok->eos));
    if (tok->eos < 0)
        tok->eos = ax_tokenizer_id(tok, usual, strlen(usual));
    const json_t *bos = json_object_get(config, "bos_token");
    const char *name = json_string_value(json_is_object(bos) ? json_object_get(bos, "content") : bos);
    tok->bos = name ? ax_tokenizer_id(tok, name, strlen(name)) : -1;
    AX_TRY(read_config_templates(json_object_get(config, "chat_template"), tok));
    if (!tok->config)
        AX_TRY(tok_write_config(tok->eos >= 0 ? usual : NULL, &tok->config, &tok->config_size));
    return AX_OK;
}
