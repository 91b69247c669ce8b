/* Chooses the template of conversations: the one that the user names, the tokenizer's own text, or one of the
 * table that fits the tokenizer; and which tokens no text of a turn can contain. */
#include "chat_templates.h"
#include "token/tok.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- tokens of templates ------------------------------------------------------------------------- */

/* Returns the id of the added token (entry of added_tokens in tokenizer.json) whose text is `name`; CHAT_EOS
 * stands for the end-of-text token. Returns -1 if the tokenizer has no such added token. */
static int32_t find_token(const ax_tokenizer *tok, const char *name)
{
    const bool is_end = !strcmp(name, CHAT_EOS);
    for (size_t i = 0; i < tok->n_added; i++) {
        const int32_t id = tok->added[i].id;
        const tok_piece *piece = &tok->pieces[id];
        if (is_end ? id == ax_tokenizer_eos(tok)
                   : piece->name_size == strlen(name) &&
                         !memcmp(tok->bytes.data + piece->name, name, strlen(name)))
            return id;
    }
    return -1;
}

/* Adds to chat->guarded[0] (ids of tokens that texts of turns cannot contain) the id of each of the n names
 * that is an added token of the tokenizer. The list of names may end earlier, with NULL. */
static ax_status guard(ax_chat *chat, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n && names[i]; i++) {
        int32_t id = find_token(chat->tok, names[i]);
        if (id >= 0)
            AX_TRY(ax_ids_add(&chat->guarded[0], &id, 1));
    }
    return AX_OK;
}

static ax_status guard_tokens(ax_chat *chat)
{
    const chat_template *t = chat->template;
    if (chat->own)
        return chat_guard_markup(chat);
    if (!t)
        return AX_OK;
    AX_TRY(guard(chat, t->needs, AX_COUNT(t->needs)));
    return guard(chat, t->guards, AX_COUNT(t->guards));
}

/* Appends to `out` the names of the tokens that the template needs and the tokenizer lacks, separated by
 * commas. Sets *missing to the number of these tokens. */
static ax_status list_missing(const ax_tokenizer *tok, const chat_template *t, ax_buf *out, int *missing)
{
    *missing = 0;
    for (size_t i = 0; i < AX_COUNT(t->needs) && t->needs[i]; i++) {
        if (find_token(tok, t->needs[i]) >= 0)
            continue;
        const char *separator = (*missing)++ ? ", " : "";
        AX_TRY(strcmp(t->needs[i], CHAT_EOS)
                   ? ax_buf_printf(out, "%s\"%s\"", separator, t->needs[i])
                   : ax_buf_printf(out, "%san end-of-text token among its added tokens", separator));
    }
    return AX_OK;
}

/* ---- the tokenizer's own template ---------------------------------------------------------------- */

/* Returns the tokenizer's template of this name, or NULL. */
static const char *find_text(const ax_tokenizer *tok, const char *name)
{
    const char *named = json_string_value(json_object_get(tok->templates, name));
    return named || strcmp(name, "default") ? named : ax_tokenizer_chat_template(tok);
}

/* The name in token files of a template that a tokenizer brings. */
static void name_own(const char *text, const char *tools, char name[AX_CHAT_NAME_BYTES])
{
    snprintf(name, AX_CHAT_NAME_BYTES, "own-%016llx", (unsigned long long)chat_jinja_hash(text, tools));
}

/* Returns the file of the tokenizer's templates, for messages. */
static const char *file_of(const ax_tokenizer *tok)
{
    return tok->template_file ? tok->template_file : "tokenizer_config.json";
}

/* Appends where the tokenizer's template of this name stands. */
static ax_status put_place(const ax_tokenizer *tok, const char *name, ax_buf *out)
{
    const char *file = file_of(tok);
    if (tok->template_dir && strcmp(name, "default") != 0)
        return ax_buf_printf(out, "%s/%s.jinja", tok->template_dir, name);
    if (tok->template_dir || tok->chat_template_apart)
        return ax_buf_printf(out, "%s", file);
    return ax_buf_printf(out, "%s, chat_template%s%s", file, tok->templates ? " " : "",
                         tok->templates ? name : "");
}

/* Creates the tokenizer's template of this name, which there is; with `tools`, that named tool_use for
 * conversations with tools, if there is one. */
static ax_status create_own(ax_chat *chat, const char *name, bool tools, chat_jinja **out)
{
    const ax_tokenizer *tok = chat->tok;
    ax_buf where[2] = {0};
    ax_status status = put_place(tok, name, &where[0]);
    if (status == AX_OK)
        status = put_place(tok, "tool_use", &where[1]);
    const chat_source text = {find_text(tok, name), where[0].data};
    const chat_source more = {tools ? find_text(tok, "tool_use") : NULL, where[1].data};
    if (status == AX_OK)
        status = chat_jinja_create(tok, text, more, out);
    ax_buf_fini(&where[0]);
    ax_buf_fini(&where[1]);
    return status;
}

/* Takes this template as that of conversations. */
static ax_status take_own(ax_chat *chat, const char *name, bool tools)
{
    const char *text = find_text(chat->tok, name);
    AX_TRY(create_own(chat, name, tools, &chat->own));
    name_own(text, tools ? find_text(chat->tok, "tool_use") : NULL, chat->name);
    return ax_strdup(text, &chat->jinja);
}

/* Takes the tokenizer's template of this name, or the one whose texts token files name so. Leaves chat->own
 * NULL if there is none. */
static ax_status take_named_own(ax_chat *chat, const char *name)
{
    const char *tools = find_text(chat->tok, "tool_use"), *text = find_text(chat->tok, name), *found;
    char given[AX_CHAT_NAME_BYTES];
    json_t *value;
    if (text)
        return take_own(chat, name, false);
    if ((text = ax_tokenizer_chat_template(chat->tok))) {
        name_own(text, tools, given);
        if (!strcmp(given, name))
            return take_own(chat, "default", true);
        name_own(text, NULL, given);
        if (!strcmp(given, name))
            return take_own(chat, "default", false);
    }
    json_object_foreach(chat->tok->templates, found, value)
    {
        name_own(json_string_value(value), NULL, given);
        if (!strcmp(given, name))
            return take_own(chat, found, false);
    }
    return AX_OK;
}

/* Appends the names of the tokenizer's templates, separated by commas, behind `before`; nothing if there are
 * none. */
static ax_status list_own(const ax_tokenizer *tok, const char *before, ax_buf *list)
{
    const char *name;
    json_t *value;
    json_object_foreach(tok->templates, name, value)
    {
        AX_TRY(ax_buf_printf(list, "%s%s", before, name));
        before = ", ";
    }
    return AX_OK;
}

static ax_status refuse_name(const ax_chat *chat, const char *name)
{
    ax_buf list = {0};
    ax_status status = list_own(chat->tok, "; the tokenizer brings ", &list);
    if (status == AX_OK)
        status =
            ax_fail(AX_ERR_USAGE, "there is no chat template \"%s\"; there are %s%s%s", name, ax_chat_names,
                    list.size ? list.data : "",
                    strncmp(name, "own-", 4) ? ""
                                             : "; a name that begins with \"own-\" is that of another "
                                               "tokenizer's chat_template, by which the data was written");
    ax_buf_fini(&list);
    return status;
}

/* Given the `status` of creating a template that the tokenizer brings: makes a fault of it one of use. */
static ax_status refuse_broken(ax_status status)
{
    ax_buf why = {0};
    if (status != AX_ERR_DATA)
        return status;
    AX_TRY(ax_buf_printf(&why, "%s", ax_error_message()));
    status = chat_refuse(why.data);
    ax_buf_fini(&why);
    return status;
}

static ax_status take_named(ax_chat *chat, const char *name)
{
    ax_buf list = {0};
    int missing;
    for (size_t i = 0; i < CHAT_TEMPLATES && !chat->template; i++)
        chat->template = strcmp(chat_templates[i].name, name) ? NULL : &chat_templates[i];
    if (!chat->template) {
        AX_TRY(refuse_broken(take_named_own(chat, name)));
        return chat->own
                   ? chat_jinja_describe(chat->own, find_text(chat->tok, name) ? name : NULL, &chat->origin)
                   : refuse_name(chat, name);
    }
    chat->tools = chat->template->tools;
    if (find_text(chat->tok, name))
        AX_TRY(ax_buf_printf(&chat->origin,
                             "one of axonn's own; the tokenizer has another of this name, which is "
                             "not used"));
    ax_status status = list_missing(chat->tok, chat->template, &list, &missing);
    if (status == AX_OK && missing)
        status = ax_fail(AX_ERR_USAGE,
                         "chat template %s does not fit the tokenizer, which lacks %s; choose another "
                         "template or tokenizer",
                         name, list.data);
    ax_buf_fini(&list);
    return status;
}

/* Sets *fits if the tokenizer has all tokens that the template needs. */
static ax_status check_tokens(const ax_tokenizer *tok, const chat_template *t, bool *fits)
{
    ax_buf list = {0};
    int missing;
    ax_status status = list_missing(tok, t, &list, &missing);
    *fits = !missing;
    ax_buf_fini(&list);
    return status;
}

/* Sets *same if the tokenizer's own Jinja template is the text that ax_chat_jinja prints for template `t`. */
static ax_status is_printed(ax_chat *chat, const chat_template *t, bool *same)
{
    ax_buf jinja = {0};
    chat->template = t;
    ax_status status = ax_chat_jinja(chat, &jinja);
    *same = status == AX_OK && !strcmp(ax_tokenizer_chat_template(chat->tok), jinja.data);
    chat->template = NULL;
    ax_buf_fini(&jinja);
    return status;
}

/* Returns true if the tokenizer's own text, which writes what the template writes, names the same tokens. */
static bool has_same_tokens(const ax_tokenizer *tok, const chat_template *t)
{
    const char *own = ax_tokenizer_chat_template(tok);
    return !(strstr(own, "bos_token") && t->begin && tok->bos != find_token(tok, t->begin)) &&
           !(strstr(own, "eos_token") && ax_tokenizer_eos(tok) != find_token(tok, t->end));
}

/* Runs the tokenizer's own Jinja text, unless it is known to write what a template of the table writes: it is
 * one that axonn prints, or a released one. */
static ax_status choose_own(ax_chat *chat)
{
    const char *own = ax_tokenizer_chat_template(chat->tok), *tools = find_text(chat->tok, "tool_use");
    const chat_own *known = chat_known(own);
    const chat_template *found = NULL;
    for (int i = 0; i < CHAT_TEMPLATES && !found && !tools; i++) {
        const chat_template *t = &chat_templates[i];
        bool fits, same = false;
        AX_TRY(check_tokens(chat->tok, t, &fits));
        if (fits)
            AX_TRY(is_printed(chat, t, &same));
        if (same || (fits && known && !known->differs && !strcmp(known->name, t->name) &&
                     has_same_tokens(chat->tok, t)))
            found = t;
    }
    chat->template = found;
    chat->tools = found && (!known || known->tools) ? found->tools : NULL;
    if (found) {
        const ax_status spare = create_own(chat, "default", false, &chat->spare);
        AX_TRY(spare == AX_ERR_DATA ? AX_OK : spare);
        return ax_buf_printf(&chat->origin, "%s",
                             known ? known->origin : "that of the tokenizer's chat_template");
    }
    const ax_status status = take_own(chat, "default", true);
    if (status == AX_ERR_DATA) /* concerns conversations only */
        return ax_buf_printf(&chat->broken, "%s", ax_error_message());
    AX_TRY(status);
    const char *name = tools ? "default (tool_use for conversations with tools)" : "default";
    AX_TRY(chat_jinja_describe(chat->own, chat->tok->templates ? name : NULL, &chat->origin));
    return known && known->differs
               ? ax_buf_printf(&chat->origin,
                               "; earlier versions of axonn wrote by template %s here, as "
                               "--template %s (data.template) still does",
                               known->name, known->name)
               : AX_OK;
}

/* Chooses the first template whose tokens the tokenizer has. */
static ax_status choose_by_tokens(ax_chat *chat)
{
    bool fits = false;
    for (int i = 0; i < CHAT_TEMPLATES && !fits; i++) {
        if (chat_templates[i].asked)
            continue;
        AX_TRY(check_tokens(chat->tok, &chat_templates[i], &fits));
        if (fits)
            chat->template = &chat_templates[i];
    }
    chat->tools = chat->template ? chat->template->tools : NULL;
    return ax_buf_printf(&chat->origin, "chosen by the tokenizer's special tokens");
}

/* Several templates without a default: that of tools counts for conversations with tools, none for others. */
static ax_status choose_without_default(ax_chat *chat)
{
    const char *tools = find_text(chat->tok, "tool_use");
    if (tools) {
        const ax_status status = take_own(chat, "tool_use", false);
        if (status == AX_ERR_DATA) /* concerns conversations only */
            return ax_buf_printf(&chat->broken, "%s", ax_error_message());
        AX_TRY(status);
        AX_TRY(chat_jinja_describe(chat->own, "tool_use", &chat->origin));
    }
    AX_TRY(ax_buf_printf(&chat->broken, "%s: no template of it is named default%s", file_of(chat->tok),
                         tools ? ", and the conversation has no tools" : ""));
    return list_own(chat->tok, "; the tokenizer brings ", &chat->broken);
}

static ax_status choose(ax_chat *chat)
{
    const ax_tokenizer *tok = chat->tok;
    return tok->template_fault ? ax_buf_printf(&chat->broken, "%s: %s", file_of(tok), tok->template_fault)
           : ax_tokenizer_chat_template(tok) ? choose_own(chat)
           : tok->templates                  ? choose_without_default(chat)
                                             : choose_by_tokens(chat);
}

static ax_status add_begin(ax_chat *chat)
{
    const ax_ids *before = &chat->tok->before;
    for (size_t i = 0, n; i < before->size; i++) {
        const char *text = ax_tokenizer_piece(chat->tok, before->data[i], &n);
        if (text)
            AX_TRY(ax_buf_add(&chat->begin, text, n));
    }
    return AX_OK;
}

/* Sets chat->doubt if an answer ends with text that is no token. Some templates write nothing behind the last
 * answer; what ends it is then not known. */
static ax_status doubt_end(ax_chat *chat)
{
    const char *rest = chat->own ? chat_jinja_rest(chat->own) : "";
    int n = (int)ax_min(strcspn(rest, "\n\r\t\x1b\xc2"), 100);
    while (n && (rest[n] & 0xc0) == 0x80)
        n--;
    return n ? ax_buf_printf(
                   &chat->doubt,
                   "template %s, the tokenizer's own, ends an answer with \"%.*s\", which is text to "
                   "this tokenizer, no token: a model learns no token that ends an answer, and goes "
                   "on to the greatest number of tokens unless --until \"%.*s\" ends it. Use the "
                   "tokenizer for which the template was made, or name a template whose tokens this "
                   "one has (--template, data.template)",
                   chat->name, n, rest, n, rest)
             : AX_OK;
}

ax_status ax_chat_create(const ax_tokenizer *tok, const char *name, ax_chat **out)
{
    *out = NULL;
    ax_chat *chat;
    AX_TRY(ax_calloc(1, sizeof *chat, &chat));
    chat->tok = tok;
    ax_status status = add_begin(chat);
    if (status == AX_OK)
        status = name ? take_named(chat, name) : choose(chat);
    if (status == AX_OK)
        status = guard_tokens(chat);
    if (status == AX_OK)
        status = doubt_end(chat);
    if (status != AX_OK)
        ax_chat_destroy(&chat);
    *out = chat;
    return status;
}

void ax_chat_destroy(ax_chat **chat)
{
    if (*chat) {
        ax_buf_fini(&(*chat)->begin);
        ax_buf_fini(&(*chat)->origin);
        ax_buf_fini(&(*chat)->broken);
        ax_buf_fini(&(*chat)->doubt);
        chat_jinja_destroy(&(*chat)->own);
        chat_jinja_destroy(&(*chat)->spare);
        free((*chat)->jinja);
        ax_ids_fini(&(*chat)->guarded[0]);
        ax_ids_fini(&(*chat)->guarded[1]);
    }
    free(*chat);
    *chat = NULL;
}

const char *ax_chat_name(const ax_chat *chat)
{
    return chat->template ? chat->template->name : chat->own ? chat->name : "none";
}

const char *ax_chat_origin(const ax_chat *chat)
{
    return (chat->template || chat->own) && chat->origin.size ? chat->origin.data : NULL;
}

const char *ax_chat_doubt(const ax_chat *chat) { return chat->doubt.size ? chat->doubt.data : NULL; }

int64_t ax_chat_date(const ax_chat *chat, bool *fixed)
{
    *fixed = false;
    return chat->own ? chat_jinja_date(chat->own, fixed) : -1;
}

int32_t ax_chat_end(const ax_chat *chat)
{
    return chat->template ? find_token(chat->tok, chat->template->end)
           : chat->own    ? chat_jinja_end(chat->own)
                          : -1;
}
