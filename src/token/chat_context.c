/* What the template that a model brings reads: conversations are given to it as transformers gives them. Read
 * chat_own.h first. */
#include "chat_own.h"

#include <string.h>

ax_status chat_no_memory(void)
{
    return ax_fail(AX_ERR_MEMORY, "not enough memory for the conversation that a chat template reads");
}

ax_status chat_read_tokens(const ax_tokenizer *tok, json_t **out)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    json_t *config;
    AX_TRY(ax_json_parse("tokenizer_config.json", tok->config, tok->config_size, 0, &config));
    *out = json_object();
    for (size_t i = 0; i < AX_COUNT(names); i++) {
        json_t *field = json_object_get(config, names[i]);
        field = json_is_object(field) ? json_object_get(field, "content") : field;
        if (json_is_string(field))
            json_object_set(*out, names[i], field);
    }
    json_decref(config);
    return *out ? AX_OK : chat_no_memory();
}

/* The names that transformers knows of the reasoning of a message. */
static const char *const reasoning_names[] = {"reasoning_content", "thinking", "reasoning"};

static bool is_reasoning(const char *name)
{
    size_t i = 0;
    while (i < AX_COUNT(reasoning_names) && strcmp(reasoning_names[i], name) != 0)
        i++;
    return i < AX_COUNT(reasoning_names);
}

/* Returns the reasoning of a message under one of these names, else that of its turn. Reasoning among the
 * parts of the content is a part already. */
static json_t *reasoning_of(const json_t *message, const ax_chat_turn *turn)
{
    for (size_t i = 0; i < AX_COUNT(reasoning_names) && turn->role == AX_CHAT_ASSISTANT; i++) {
        json_t *member = json_object_get(message, reasoning_names[i]);
        if (member && !json_is_null(member))
            return json_incref(member);
    }
    return turn->reasoning && !json_is_array(json_object_get(message, "content"))
               ? ax_json_text(turn->reasoning, turn->reasoning_size)
               : NULL;
}

/* The names that templates know of roles. */
static const char *const roles[AX_CHAT_ROLES] = {"system", "user", "user", "tool", "assistant"};

/* Returns true if the name of a role gets to templates as it is: templates tell these from the role. */
static bool keeps_name(const char *name)
{
    return name && (!strcmp(name, "developer") || !strcmp(name, "ipython"));
}

/* Returns true if a message has a role and content as templates read them, and no member that may be another
 * for them. */
static bool is_usual(const json_t *message, const ax_chat_turn *turn)
{
    json_t *object = (json_t *)message;
    bool role = false, usual = !turn->reasoning;
    for (void *at = json_object_iter(object); at && usual; at = json_object_iter_next(object, at)) {
        const char *name = json_object_iter_key(at);
        const json_t *member = json_object_iter_value(at);
        if (!strcmp(name, "role")) {
            const char *value = json_string_value(member);
            role = value && (!strcmp(value, roles[turn->role]) || keeps_name(value));
            usual = role;
        } else {
            usual = !json_is_null(member) && !is_reasoning(name);
        }
    }
    return usual && role;
}

/* Copies a message, and gives its role and its reasoning the names that templates read. Members that are null
 * are left out, as in transformers: many templates would write the content of a call as "None". */
static json_t *copy_message(const json_t *message, const ax_chat_turn *turn)
{
    const char *name;
    if (is_usual(message, turn))
        return json_incref((json_t *)message);
    json_t *member, *reasoning = reasoning_of(message, turn), *out = json_object();
    if (reasoning)
        json_object_set(out, "thinking", reasoning);
    json_object_foreach((json_t *)message, name, member)
    {
        if (!strcmp(name, "role") && !keeps_name(json_string_value(member)))
            json_object_set_new(out, name, json_string(roles[turn->role]));
        else if (!json_is_null(member))
            json_object_set(out, name, member);
    }
    if (reasoning)
        json_object_set_new(out, "reasoning_content", reasoning);
    return out;
}

/* Makes the message of a turn that was no message, with the input (AX_CHAT_INPUT) that follows it. */
static json_t *make_message(const ax_chat_turn *turn, const ax_chat_turn *input)
{
    ax_buf text = {0};
    json_t *message = NULL;
    if (ax_buf_add(&text, turn->text, turn->size) == AX_OK &&
        (!input ||
         (ax_buf_add(&text, "\n", 1) == AX_OK && ax_buf_add(&text, input->text, input->size) == AX_OK)))
        message = json_pack("{s:s, s:o}", "role", roles[turn->role], "content",
                            ax_json_text(text.size ? text.data : "", text.size));
    if (message && turn->calls)
        json_object_set(message, "tool_calls", (json_t *)turn->calls);
    json_t *out = message ? copy_message(message, turn) : NULL;
    json_decref(message);
    ax_buf_fini(&text);
    return out;
}

void chat_set_or_null(json_t *context, const char *name, const json_t *value)
{
    if (value)
        json_object_set(context, name, (json_t *)value);
    else
        json_object_set_new(context, name, json_null());
}

ax_status chat_make_context(const chat_jinja *own, const ax_chat_turns *turns, int32_t *number, json_t **out)
{
    json_t *messages = json_array();
    for (size_t i = 0; turns->turn && i < turns->n; i++) {
        const ax_chat_turn *turn = &turns->turn[i], *next = i + 1 < turns->n ? turn + 1 : NULL;
        const ax_chat_turn *input = next && next->role == AX_CHAT_INPUT ? next : NULL;
        number[i] = (int32_t)json_array_size(messages);
        if (turn->role == AX_CHAT_INPUT)
            continue;
        json_t *message =
            turn->message && !input ? copy_message(turn->message, turn) : make_message(turn, input);
        number[i] = (int32_t)json_array_size(messages) + 1;
        if (!message || json_array_append_new(messages, message)) {
            json_decref(messages);
            return chat_no_memory();
        }
    }
    json_t *context = json_copy(own->tokens);
    json_object_set_new(context, "messages", messages);
    chat_set_or_null(context, "documents", turns->documents);
    chat_set_or_null(context, "tools", turns->tools);
    if (turns->variables)
        json_object_set(context, "chat_template_kwargs", (json_t *)turns->variables);
    *out = context;
    return context ? AX_OK : chat_no_memory();
}

ax_status chat_write_first(const chat_jinja *own, const json_t *context, size_t n, bool prompt,
                           ax_jinja_cuts *cuts, ax_jinja_text *out)
{
    const json_t *messages = json_object_get(context, "messages");
    const bool tools = own->tools && json_is_array(json_object_get(context, "tools"));
    json_t *part = json_copy((json_t *)context);
    if (n < json_array_size(messages)) {
        json_t *list = json_array();
        for (size_t i = 0; i < n; i++)
            json_array_append(list, json_array_get(messages, i));
        json_object_set_new(part, "messages", list);
    }
    json_object_set_new(part, "add_generation_prompt", json_boolean(prompt));
    ax_status status = part
                           ? ax_jinja_render_cuts(tools ? own->tools : own->text, part, own->clock, cuts, out)
                           : chat_no_memory();
    json_decref(part);
    return status;
}

ax_status chat_read_first(const chat_jinja *own, const json_t *context, const ax_jinja_text *all, size_t n,
                          bool prompt, ax_jinja_text *work, chat_written *out)
{
    const ax_jinja_cut *cut =
        n < own->cuts.n && own->cuts.cut[2 * n + prompt].known ? &own->cuts.cut[2 * n + prompt] : NULL;
    if (cut) {
        *out = (chat_written){all, &own->cuts.tails, cut->same, cut->begin, cut->end, cut->part};
        return AX_OK;
    }
    AX_TRY(chat_write_first(own, context, n, prompt, NULL, work));
    *out = (chat_written){all, work, 0, 0, work->text.size, 0};
    return AX_OK;
}
