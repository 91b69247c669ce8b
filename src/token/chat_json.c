/* Reads conversations from JSON objects of several forms. Each member of a record is used, is known to be no
 * part of what is said, or is refused: a member that was dropped in silence could be half of a
 * conversation. */
#include "axonn/json.h"
#include "chat_templates.h"
#include "token/tok.h"

#include <jansson.h>
#include <string.h>
#include <strings.h>

/* A record, and the members that the caller wants to be left out. */
typedef struct reader {
    const json_t *record;
    const ax_strings *ignore; /* may be NULL */
    ax_chat_turns *turns;
} reader;

/* ---- names of members ---------------------------------------------------------------------------- */

/* A form of records whose question and answer are two members. */
typedef struct pair_form {
    const char *question, *input, *answer; /* input: the text to which the question refers, or NULL */
} pair_form;

static const pair_form pairs[] = {
    {"prompt", NULL, "completion"},         /* TRL, OpenAI */
    {"instruction", "input", "output"},     /* Alpaca */
    {"instruction", "context", "response"}, /* Dolly */
    {"prompt", NULL, "response"},           /* names of several data sets */
    {"question", NULL, "answer"},
};
static const char *const lists[] = {"messages", "conversations"};

static const char *const systems[] = {"system", "system_prompt", "system_message"};
static const char *const reasonings[] = {"reasoning_content", "reasoning", "thinking", "thought"};

/* Flags of a turn of the assistant; 0 and false mean that the turn is no target. */
static const char *const flags[] = {"weight",   "loss_weight", "loss",      "train",
                                    "training", "trainable",   "is_target", "calculate_loss"};

/* Members that say something about a record or a turn, but are no part of what is said. A name ends with one
 * of these words: they stand alone or after "_" or "-", in any case. */
static const char *const remarks[] = {
    "id",      "ids",     "uid",    "uuid",    "guid",       "idx",      "index",     "hash",   "source",
    "sources", "dataset", "origin", "subset",  "split",      "url",      "urls",      "link",   "license",
    "author",  "name",    "model",  "version", "date",       "time",     "timestamp", "score",  "scores",
    "rating",  "ratings", "rank",   "quality", "difficulty", "language", "lang",      "locale", "category",
    "topic",   "domain",  "tag",    "tags",    "type",       "meta",     "metadata"};

static bool is_listed(const char *name, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(name, names[i]))
            return true;
    return false;
}

static bool is_remark(const char *name)
{
    for (size_t i = 0; i < AX_COUNT(remarks); i++) {
        size_t n = strlen(name), m = strlen(remarks[i]);
        if (n >= m && !strcasecmp(name + n - m, remarks[i]) &&
            (n == m || name[n - m - 1] == '_' || name[n - m - 1] == '-'))
            return true;
    }
    return false;
}

static bool is_ignored(const ax_strings *ignore, const char *name)
{
    for (size_t i = 0; ignore && i < ignore->count; i++)
        if (!strcmp(ignore->items[i], name))
            return true;
    return false;
}

/* Returns a member of a record or turn; NULL if it is missing or ignored. */
static const json_t *member_of(const reader *r, const json_t *object, const char *name)
{
    return is_ignored(r->ignore, name) ? NULL : json_object_get(object, name);
}

/* Returns true if an optional member is given, that is, neither missing, null nor empty. So a number counts
 * as given, and the reader of the member refuses it. */
static bool says_something(const json_t *value)
{
    return value && !json_is_null(value) && !(json_is_string(value) && !json_string_length(value)) &&
           !(json_is_array(value) && !json_array_size(value)) &&
           !(json_is_object(value) && !json_object_size(value));
}

/* Returns true if a member that nothing reads could be a part of the conversation. Numbers are no text. A
 * flag of a turn could decide whether the turn is learned. */
static bool could_be_content(const char *name, const json_t *value, bool in_turn)
{
    return says_something(value) && !json_is_number(value) && !(json_is_boolean(value) && !in_turn) &&
           !is_remark(name);
}

/* Returns true if a member of a turn, or of a record of the form `form` (NULL: a list), is read. */
static bool is_read(const char *name, bool in_turn, const pair_form *form)
{
    static const char *const turn[] = {"role", "from", "content", "value", "tool_calls"};
    /* Data sets with "messages" repeat the question as "prompt"; Alpaca's have the conversation as a text. */
    static const char *const record[] = {"messages", "conversations",        "prompt",   "text", "history",
                                         "tools",    "chat_template_kwargs", "documents"};
    if (in_turn)
        return is_listed(name, turn, AX_COUNT(turn)) || is_listed(name, flags, AX_COUNT(flags)) ||
               is_listed(name, reasonings, AX_COUNT(reasonings));
    if (form &&
        (!strcmp(name, form->question) || !strcmp(name, form->answer) ||
         (form->input && !strcmp(name, form->input)) || is_listed(name, reasonings, AX_COUNT(reasonings))))
        return true;
    return is_listed(name, record, AX_COUNT(record)) || is_listed(name, systems, AX_COUNT(systems));
}

/* Fails if a member of `object`, a record, or a turn if `in_turn` is set, could be a part of the conversation
 * but is not read. */
static ax_status refuse_unread(const reader *r, const json_t *object, bool in_turn, const pair_form *form)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)object, name, value)
    {
        AX_CHECK(
            is_read(name, in_turn, form) || is_ignored(r->ignore, name) ||
                !could_be_content(name, value, in_turn),
            AX_ERR_DATA,
            "the %s has \"%s\", which is not read and which could be a part of what is said: remove it, or "
            "leave it out with --ignore %s (data.ignore)%s",
            in_turn ? "turn" : "conversation", name, name,
            in_turn ? ""
                    : "; a variable of the model's chat_template is a member of \"chat_template_kwargs\"");
    }
    return AX_OK;
}

/* ---- texts --------------------------------------------------------------------------------------- */

/* A text of a turn, and the reasoning before it. */
typedef struct said {
    const char *text, *reasoning; /* reasoning: NULL: none */
    size_t size, reasoning_size;
    const json_t *calls, *message;
} said;

/* Lets a value live as long as the turns. */
static ax_status keep(const reader *r, json_t *value)
{
    json_t **made = &r->turns->made;
    *made = *made ? *made : json_array();
    AX_CHECK(value && !json_array_append_new(*made, value), AX_ERR_MEMORY,
             "not enough memory for the text of a turn");
    return AX_OK;
}

/* Makes a string that lives as long as the turns. */
static ax_status keep_string(const reader *r, const ax_buf *text, const json_t **out)
{
    json_t *string = json_stringn(text->size ? text->data : "", text->size);
    *out = string;
    return keep(r, string);
}

/* Appends the text of a part {"type": "text", "text": ...} to `text`, that of a part {"type": "thinking",
 * ...} to `reasoning`. */
static ax_status join_part(const json_t *part, const char *member, size_t number, ax_buf *text,
                           ax_buf *reasoning)
{
    const char *type = json_is_string(part) ? "text" : json_string_value(json_object_get(part, "type"));
    const bool thinks = type && (!strcmp(type, "thinking") || !strcmp(type, "reasoning"));
    const json_t *value = json_is_string(part) ? part : json_object_get(part, type ? type : "text");
    AX_CHECK((!type || thinks || !strcmp(type, "text")) && json_is_string(value), AX_ERR_DATA,
             "part %zu of \"%s\" is not a text but \"%s\"; only parts with \"type\": \"text\" and a string "
             "\"text\" are read",
             number, member, type ? type : tok_json_kind(part));
    return ax_buf_add(thinks ? reasoning : text, json_string_value(value), json_string_length(value));
}

/* Joins a list of parts, as templates do, without anything between the parts. */
static ax_status join_parts(const reader *r, const json_t *list, const char *member, said *out)
{
    ax_buf text = {0}, reasoning = {0};
    const json_t *part, *string = NULL;
    size_t i;
    ax_status status = AX_OK;
    json_array_foreach(list, i, part)
    {
        if (status == AX_OK)
            status = join_part(part, member, i + 1, &text, &reasoning);
    }
    if (status == AX_OK)
        status = keep_string(r, &text, &string);
    if (status == AX_OK) {
        out->text = json_string_value(string);
        out->size = json_string_length(string);
    }
    if (status == AX_OK && reasoning.size)
        status = keep_string(r, &reasoning, &string);
    if (status == AX_OK && reasoning.size) {
        out->reasoning = json_string_value(string);
        out->reasoning_size = json_string_length(string);
    }
    ax_buf_fini(&text);
    ax_buf_fini(&reasoning);
    return status;
}

/* Sets *out to a text: a string, or a list of parts. */
static ax_status read_text(const reader *r, const json_t *value, const char *member, said *out)
{
    if (json_is_array(value))
        return join_parts(r, value, member, out);
    AX_CHECK(json_is_string(value), AX_ERR_DATA, "\"%s\" must be a string or a list of texts, but is %s",
             member, value ? tok_json_kind(value) : "missing");
    out->text = json_string_value(value);
    out->size = json_string_length(value);
    return AX_OK;
}

/* Sets the reasoning of an answer to the member of `object` that has it, under one of its names. */
static ax_status read_reasoning(const reader *r, const json_t *object, said *out)
{
    for (size_t i = 0; i < AX_COUNT(reasonings); i++) {
        const json_t *value = member_of(r, object, reasonings[i]);
        said text = {0};
        if (!says_something(value))
            continue;
        AX_TRY(read_text(r, value, reasonings[i], &text));
        AX_CHECK(!out->reasoning ||
                     (out->reasoning_size == text.size && !memcmp(out->reasoning, text.text, text.size)),
                 AX_ERR_DATA,
                 "\"%s\" is another reasoning than the one the turn already has: keep one of them",
                 reasonings[i]);
        out->reasoning = text.text;
        out->reasoning_size = text.size;
    }
    return AX_OK;
}

/* Sets *unlearned if a flag of the turn says that it is no target. Only answers can be targets. */
static ax_status read_flags(const reader *r, const json_t *object, ax_chat_role role, bool *unlearned)
{
    for (size_t i = 0; i < AX_COUNT(flags); i++) {
        const json_t *value = member_of(r, object, flags[i]);
        if (!value || json_is_null(value))
            continue;
        const bool on = json_is_true(value) || (json_is_number(value) && json_number_value(value) == 1);
        const bool off = json_is_false(value) || (json_is_number(value) && json_number_value(value) == 0);
        AX_CHECK(on || off, AX_ERR_DATA,
                 "\"%s\" must be 1 or true (the turn is a target), or 0 or false (it is none)", flags[i]);
        AX_CHECK(off || role == AX_CHAT_ASSISTANT || json_is_number(value), AX_ERR_DATA,
                 "\"%s\" marks the turn as a target, but only turns of the assistant can be targets",
                 flags[i]);
        *unlearned |= off;
    }
    return AX_OK;
}

/* ---- turns --------------------------------------------------------------------------------------- */

/* The names that JSON files use for roles. */
static const struct {
    const char *name;
    ax_chat_role role;
} roles[] = {
    {"system", AX_CHAT_SYSTEM},      {"developer", AX_CHAT_SYSTEM}, /* OpenAI's later name */
    {"user", AX_CHAT_USER},          {"human", AX_CHAT_USER},        {"assistant", AX_CHAT_ASSISTANT},
    {"gpt", AX_CHAT_ASSISTANT},      {"model", AX_CHAT_ASSISTANT},   {"tool", AX_CHAT_TOOL},
    {"tool_response", AX_CHAT_TOOL}, {"tool_results", AX_CHAT_TOOL}, {"ipython", AX_CHAT_TOOL},
};

static ax_status find_role(const json_t *value, const char *member, ax_chat_role *role)
{
    const char *name = json_string_value(value);
    AX_CHECK(name, AX_ERR_DATA, "\"%s\" must be a string, but is %s", member,
             value ? tok_json_kind(value) : "missing");
    for (size_t i = 0; i < AX_COUNT(roles); i++)
        if (!strcmp(roles[i].name, name)) {
            *role = roles[i].role;
            return AX_OK;
        }
    static const char *const calls[] = {"tool_call", "function", "function_call", "observation"};
    return ax_fail(
        AX_ERR_DATA,
        "has the role \"%s\", which no template has: %sthe roles are system (or developer), user (or "
        "human), assistant (or gpt, model) and tool",
        name,
        is_listed(name, calls, AX_COUNT(calls))
            ? "calls of tools are read as \"tool_calls\" of the assistant, "
              "and results as turns of the role tool; "
            : "");
}

static ax_status add_said(const reader *r, ax_chat_role role, const said *s, bool unlearned)
{
    return ax_chat_add(r->turns, &(ax_chat_turn){.role = role,
                                                 .message = s->message,
                                                 .text = s->text,
                                                 .size = s->size,
                                                 .calls = s->calls,
                                                 .reasoning = s->reasoning,
                                                 .reasoning_size = s->reasoning_size,
                                                 .unlearned = unlearned});
}

/* Appends a turn whose text is the member `member` of the record. An answer may have its reasoning beside
 * it. */
static ax_status add_member(const reader *r, const char *member, ax_chat_role role)
{
    said s = {0};
    ax_status status = read_text(r, member_of(r, r->record, member), member, &s);
    if (status == AX_OK && role == AX_CHAT_ASSISTANT)
        status = read_reasoning(r, r->record, &s);
    if (status != AX_OK)
        ax_error_context("turn %zu", r->turns->n + 1);
    AX_TRY(status);
    return add_said(r, role, &s, false);
}

/* Fails if a member of a tool's call could be a part of the call but is not read. */
static ax_status check_members(const json_t *call, const char *const *names, size_t n)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)call, name, value)
    {
        AX_CHECK(is_listed(name, names, n) || !could_be_content(name, value, true), AX_ERR_DATA,
                 "has \"%s\", which no template writes", name);
    }
    return AX_OK;
}

static ax_status check_call(const json_t *call)
{
    static const char *const names[] = {"name", "arguments"}, *const wrapped[] = {"function"};
    const json_t *function = json_object_get(call, "function");
    if (function)
        AX_TRY(check_members(call, wrapped, 1));
    function = function ? function : call;
    const json_t *arguments = json_object_get(function, "arguments");
    AX_CHECK(json_is_string(json_object_get(function, "name")) &&
                 (json_is_object(arguments) || json_is_string(arguments)),
             AX_ERR_DATA,
             "must be an object with \"function\", which has a string \"name\" and \"arguments\" (an "
             "object or a string)");
    AX_TRY(chat_check_numbers(arguments, "\"arguments\""));
    return check_members(function, names, 2);
}

/* Sets the calls of an answer. */
static ax_status read_calls(const reader *r, const json_t *turn, ax_chat_role role, said *out)
{
    const json_t *calls = member_of(r, turn, "tool_calls"), *call;
    size_t i;
    if (!says_something(calls))
        return AX_OK;
    AX_CHECK(role == AX_CHAT_ASSISTANT, AX_ERR_DATA, "only turns of the assistant can have \"tool_calls\"");
    AX_CHECK(json_is_array(calls), AX_ERR_DATA, "\"tool_calls\" is %s, not a list", tok_json_kind(calls));
    json_array_foreach(calls, i, call)
    {
        ax_status status = check_call(call);
        if (status != AX_OK)
            ax_error_context("element %zu of \"tool_calls\"", i + 1);
        AX_TRY(status);
    }
    out->calls = calls;
    return AX_OK;
}

/* Sets *out to the message as a model's own template gets it: without members that are ignored. */
static ax_status read_message(const reader *r, const json_t *turn, const json_t **out)
{
    *out = turn;
    if (!r->ignore || !r->ignore->count)
        return AX_OK;
    json_t *copy = json_copy((json_t *)turn);
    for (size_t i = 0; copy && i < r->ignore->count; i++)
        json_object_del(copy, r->ignore->items[i]);
    *out = copy;
    return keep(r, copy);
}

static ax_status read_turn(const reader *r, const json_t *turn)
{
    const bool shared = json_object_get(turn, "from");
    const char *role_member = shared ? "from" : "role", *member = shared ? "value" : "content";
    ax_chat_role role = AX_CHAT_USER;
    bool unlearned = false;
    said s = {.text = ""};
    AX_CHECK(json_is_object(turn), AX_ERR_DATA, "is %s, not an object with \"role\" and \"content\"",
             tok_json_kind(turn));
    AX_TRY(find_role(json_object_get(turn, role_member), role_member, &role));
    AX_TRY(refuse_unread(r, turn, true, NULL));
    AX_TRY(read_calls(r, turn, role, &s));
    const json_t *text = json_object_get(turn, member);
    /* An answer that only calls tools has no text, also if --ignore leaves the calls out. */
    if ((text && !json_is_null(text)) || !says_something(json_object_get(turn, "tool_calls")))
        AX_TRY(read_text(r, text, member, &s));
    AX_TRY(read_flags(r, turn, role, &unlearned));
    if (role == AX_CHAT_ASSISTANT)
        AX_TRY(read_reasoning(r, turn, &s));
    if (!shared)
        AX_TRY(read_message(r, turn, &s.message));
    return add_said(r, role, &s, unlearned);
}

static ax_status read_list(const reader *r, const json_t *list)
{
    size_t i;
    const json_t *turn;
    json_array_foreach(list, i, turn)
    {
        ax_status status = read_turn(r, turn);
        if (status != AX_OK)
            ax_error_context("turn %zu", r->turns->n + 1);
        AX_TRY(status);
    }
    return AX_OK;
}

/* ---- records ------------------------------------------------------------------------------------- */

/* Appends the turn of the system that stands beside the conversation, if there is one. If the conversation
 * begins with a turn of the system too, the two must be one. */
static ax_status read_system(const reader *r, const json_t *list)
{
    for (size_t i = 0; i < AX_COUNT(systems); i++) {
        const json_t *value = member_of(r, r->record, systems[i]);
        if (!says_something(value))
            continue;
        const json_t *first = json_array_get(list, 0);
        const json_t *role = json_object_get(first, json_object_get(first, "from") ? "from" : "role");
        ax_chat_role found = AX_CHAT_USER;
        if (json_is_string(role) && find_role(role, "role", &found) == AX_OK && found == AX_CHAT_SYSTEM &&
            json_equal(value, json_object_get(first, json_object_get(first, "from") ? "value" : "content")))
            continue;
        AX_TRY(add_member(r, systems[i], AX_CHAT_SYSTEM));
    }
    return AX_OK;
}

/* Sets the tools of the conversation, a list or, as some data sets have it, a string with the list in JSON.
 */
static ax_status read_tools(const reader *r)
{
    const json_t *tools = member_of(r, r->record, "tools"), *tool;
    json_t *parsed = NULL;
    size_t i;
    if (json_is_string(tools) && json_string_length(tools)) {
        AX_TRY(ax_json_parse("\"tools\"", json_string_value(tools), json_string_length(tools), JSON_ALLOW_NUL,
                             &parsed));
        AX_TRY(keep(r, parsed));
        tools = parsed;
    }
    r->turns->tools = json_is_array(tools) ? tools : NULL;
    AX_CHECK(json_is_array(tools) || !says_something(tools), AX_ERR_DATA,
             "\"tools\" is %s, not a list of objects", tok_json_kind(tools));
    json_array_foreach(r->turns->tools, i, tool)
    {
        AX_CHECK(json_is_object(tool), AX_ERR_DATA, "element %zu of \"tools\" is %s, not an object", i + 1,
                 tok_json_kind(tool));
    }
    return chat_check_numbers(r->turns->tools, "\"tools\"");
}

/* Sets the documents of the conversation, and the variables that its record has for the template. */
static ax_status read_variables(const reader *r)
{
    static const char *const taken[] = {"messages",  "tools",     "documents", "add_generation_prompt",
                                        "bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    const json_t *given = member_of(r, r->record, "chat_template_kwargs"),
                 *documents = member_of(r, r->record, "documents"), *one;
    size_t i;
    AX_CHECK(json_is_object(given) || !says_something(given), AX_ERR_DATA,
             "\"chat_template_kwargs\" is %s, not an object with variables of the chat template",
             tok_json_kind(given));
    AX_CHECK(json_is_array(documents) || !says_something(documents), AX_ERR_DATA,
             "\"documents\" is %s, not a list of objects", tok_json_kind(documents));
    for (i = 0; i < AX_COUNT(taken); i++)
        AX_CHECK(!json_object_get(given, taken[i]), AX_ERR_DATA,
                 "\"chat_template_kwargs\" has \"%s\", which the template gets from elsewhere (from the "
                 "record, the tokenizer, or whether a prompt is written): remove it there",
                 taken[i]);
    json_array_foreach(documents, i, one)
    {
        AX_CHECK(json_is_object(one), AX_ERR_DATA, "element %zu of \"documents\" is %s, not an object", i + 1,
                 tok_json_kind(one));
    }
    r->turns->variables = json_object_size(given) ? given : NULL;
    r->turns->documents = json_is_array(documents) ? documents : NULL;
    AX_TRY(chat_check_numbers(given, "\"chat_template_kwargs\""));
    return chat_check_numbers(documents, "\"documents\"");
}

/* Appends the earlier turns that "history" has beside a question: a list of pairs [question, answer]. */
static ax_status read_history(const reader *r)
{
    const json_t *history = member_of(r, r->record, "history"), *pair;
    size_t i;
    if (!says_something(history))
        return AX_OK;
    AX_CHECK(json_is_array(history), AX_ERR_DATA, "\"history\" is %s, not a list of pairs [question, answer]",
             tok_json_kind(history));
    json_array_foreach(history, i, pair)
    {
        const json_t *side[] = {json_array_get(pair, 0), json_array_get(pair, 1)};
        AX_CHECK(json_array_size(pair) == 2 && json_is_string(side[0]) && json_is_string(side[1]),
                 AX_ERR_DATA, "element %zu of \"history\" is not a pair [question, answer] of strings",
                 i + 1);
        for (int k = 0; k < 2; k++)
            AX_TRY(add_said(r, k ? AX_CHAT_ASSISTANT : AX_CHAT_USER,
                            &(said){.text = json_string_value(side[k]), .size = json_string_length(side[k])},
                            false));
    }
    return AX_OK;
}

/* Appends the turns of a member: a list of turns, or one turn with the role `role`. */
static ax_status read_side(const reader *r, const char *member, ax_chat_role role)
{
    const json_t *value = member_of(r, r->record, member), *first = json_array_get(value, 0);
    bool turns = json_is_array(value) && (json_object_get(first, "role") || json_object_get(first, "from"));
    return turns ? read_list(r, value) : add_member(r, member, role);
}

/* Reads TRL's plain texts: the completion follows the prompt, without a template. */
static ax_status read_plain(const reader *r, const pair_form *form)
{
    static const char *const others[] = {"history", "tools", "chat_template_kwargs", "documents"};
    for (size_t i = 0; i < AX_COUNT(systems) + AX_COUNT(others) + AX_COUNT(reasonings); i++) {
        const size_t k = i - AX_COUNT(systems);
        const char *name = i < AX_COUNT(systems)  ? systems[i]
                           : k < AX_COUNT(others) ? others[k]
                                                  : reasonings[k - AX_COUNT(others)];
        AX_CHECK(
            !says_something(member_of(r, r->record, name)), AX_ERR_DATA,
            "\"%s\" stands beside the strings \"%s\" and \"%s\", which are joined without a template, so it "
            "has no place: write the record as \"messages\", or let --ignore (data.ignore) name \"%s\"",
            name, form->question, form->answer, name);
    }
    r->turns->plain = true;
    AX_TRY(add_member(r, form->question, AX_CHAT_USER));
    return add_member(r, form->answer, AX_CHAT_ASSISTANT);
}

static ax_status read_pair(const reader *r, const pair_form *form)
{
    const json_t *question = member_of(r, r->record, form->question),
                 *answer = member_of(r, r->record, form->answer),
                 *input = form->input ? member_of(r, r->record, form->input) : NULL;
    if (form == pairs && json_is_string(question) && json_is_string(answer))
        return read_plain(r, form);
    AX_TRY(read_system(r, json_is_array(question) ? question : NULL));
    AX_TRY(read_history(r));
    AX_TRY(read_side(r, form->question, AX_CHAT_USER));
    if (says_something(input))
        AX_TRY(add_member(r, form->input, AX_CHAT_INPUT));
    /* If the question is a list, its answers belong to it: only those after it are learned. */
    for (size_t i = 0; answer && json_is_array(question) && i < r->turns->n; i++)
        r->turns->turn[i].unlearned = true;
    return answer ? read_side(r, form->answer, AX_CHAT_ASSISTANT) : AX_OK;
}

static bool is_given(const reader *r, const char *name)
{
    const json_t *value = member_of(r, r->record, name);
    return value && !json_is_null(value);
}

/* Returns the list that makes the record a conversation, or NULL. */
static const char *find_list(const reader *r)
{
    for (size_t i = 0; i < AX_COUNT(lists); i++)
        if (is_given(r, lists[i]))
            return lists[i];
    return NULL;
}

/* Returns the form whose question and answer the record has, or NULL. If `question` is true, the answer may
 * be missing. */
static const pair_form *find_pair(const reader *r, bool question)
{
    for (size_t i = 0; i < AX_COUNT(pairs); i++)
        if (is_given(r, pairs[i].question) && member_of(r, r->record, pairs[i].answer))
            return &pairs[i];
    for (size_t i = 0; i < AX_COUNT(pairs) && question; i++)
        if (is_given(r, pairs[i].question) &&
            (!pairs[i].input || !is_given(r, "context") || !strcmp(pairs[i].input, "context")))
            return &pairs[i];
    return NULL;
}

/* Returns the name of the member that makes the record a conversation, and its form (NULL: a list). */
static const char *find_member(const reader *r, bool question, const pair_form **form)
{
    const char *list = find_list(r);
    *form = list ? NULL : find_pair(r, question);
    return list ? list : *form ? (*form)->question : NULL;
}

void chat_forget_strings(ax_chat_turns *turns)
{
    json_decref(turns->made);
    turns->made = NULL;
}

const char *ax_chat_member(const json_t *object, const ax_strings *ignore)
{
    const pair_form *form;
    return find_member(&(reader){object, ignore, NULL}, false, &form);
}

ax_status ax_chat_read(const json_t *value, const ax_strings *ignore, ax_chat_turns *turns)
{
    const reader r = {value, ignore, turns};
    const pair_form *form;
    if (!turns->n)
        chat_forget_strings(turns);
    turns->plain = false;
    turns->tools = turns->documents = turns->variables = turns->record = NULL;
    if (json_is_array(value))
        return read_list(&r, value);
    turns->record = value;
    turns->ignored = ignore;
    const char *member = find_member(&r, true, &form);
    AX_CHECK(member, AX_ERR_DATA,
             "not a conversation: it must be a list of messages, or an object with \"messages\", "
             "\"conversations\", \"prompt\" and perhaps \"completion\" or \"response\", \"instruction\" and "
             "perhaps \"output\" or \"response\", or \"question\" and perhaps \"answer\"");
    AX_TRY(refuse_unread(&r, value, false, form));
    AX_TRY(read_tools(&r));
    AX_TRY(read_variables(&r));
    if (form)
        return read_pair(&r, form);
    const json_t *list = member_of(&r, value, member);
    AX_CHECK(json_is_array(list), AX_ERR_DATA, "the member \"%s\" is %s, not a list of turns", member,
             tok_json_kind(list));
    AX_TRY(read_system(&r, list));
    AX_TRY(read_history(&r));
    return read_list(&r, list);
}

ax_status chat_check_variables(const chat_jinja *own, const ax_chat_turns *turns)
{
    const reader r = {turns->record, turns->ignored, NULL};
    const pair_form *form;
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)turns->record, name, value)
    {
        if (json_is_null(value) || !chat_jinja_reads(own, turns, name) || is_ignored(r.ignore, name))
            continue;
        find_member(&r, true, &form);
        AX_CHECK(
            is_read(name, false, form), AX_ERR_DATA,
            "the conversation has \"%s\", which is a variable of the model's chat_template but is not read "
            "there: write it as a member of \"chat_template_kwargs\", as in {\"chat_template_kwargs\": "
            "{\"%s\": ...}}, or leave it out with --ignore %s (data.ignore)",
            name, name, name);
    }
    return AX_OK;
}
