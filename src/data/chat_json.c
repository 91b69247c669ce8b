/* Reads conversations from JSON objects of several forms. */
#include "axonn/chat.h"
#include "data/tok.h"

#include <jansson.h>
#include <string.h>

/* The names that JSON files use for roles. */
static const struct {
    const char *name;
    ax_chat_role role;
} roles[] = {
    {"system", AX_CHAT_SYSTEM},       {"user", AX_CHAT_USER},     {"human", AX_CHAT_USER},
    {"assistant", AX_CHAT_ASSISTANT}, {"gpt", AX_CHAT_ASSISTANT},
};

static ax_status find_role(const json_t *value, const char *member, size_t turn, ax_chat_role *role)
{
    const char *name = json_string_value(value);
    AX_CHECK(name, AX_ERR_DATA, "turn %zu: \"%s\" must be a string, but is %s", turn, member,
             value ? tok_json_kind(value) : "missing");
    for (size_t i = 0; i < AX_COUNT(roles); i++)
        if (!strcmp(roles[i].name, name)) {
            *role = roles[i].role;
            return AX_OK;
        }
    return ax_fail(AX_ERR_DATA,
                   "turn %zu has the role \"%s\", which no template has: the roles are system, user "
                   "(or human) and assistant (or gpt)",
                   turn, name);
}

/* Fails if the member `member` of `object` has a value: a string, or a list or an object that is not empty.
 * Called for members that no chat template writes, such as "tools". */
static ax_status refuse_unwritten(const json_t *object, const char *member)
{
    const json_t *value = json_object_get(object, member);
    AX_CHECK(
        !value || json_is_null(value) ||
            (!json_array_size(value) && !json_object_size(value) && !json_is_string(value)),
        AX_ERR_DATA,
        "the conversation has \"%s\", which no template writes: leave out the conversation, or remove \"%s\" "
        "from it",
        member, member);
    return AX_OK;
}

/* Appends a turn whose text is the member `member` of `object`. */
static ax_status add_text(const json_t *object, const char *member, ax_chat_role role, ax_chat_turns *turns)
{
    const json_t *text = json_object_get(object, member);
    AX_TRY(refuse_unwritten(object, "tool_calls"));
    AX_CHECK(json_is_string(text), AX_ERR_DATA, "turn %zu: \"%s\" must be a string, but is %s", turns->n + 1,
             member, text ? tok_json_kind(text) : "missing");
    const json_t *reasoning = json_object_get(object, "reasoning_content");
    return ax_chat_add(turns, &(ax_chat_turn){.role = role,
                                              .text = json_string_value(text),
                                              .size = json_string_length(text),
                                              .reasoning = json_string_value(reasoning),
                                              .reasoning_size = json_string_length(reasoning)});
}

static ax_status read_list(const json_t *list, ax_chat_turns *turns)
{
    size_t i;
    const json_t *turn;
    json_array_foreach(list, i, turn)
    {
        ax_chat_role role = AX_CHAT_USER;
        bool shared = json_object_get(turn, "from");
        AX_CHECK(json_is_object(turn), AX_ERR_DATA,
                 "turn %zu is %s, not an object with \"role\" and "
                 "\"content\"",
                 i + 1, tok_json_kind(turn));
        AX_TRY(find_role(json_object_get(turn, shared ? "from" : "role"), shared ? "from" : "role", i + 1,
                         &role));
        AX_TRY(add_text(turn, shared ? "value" : "content", role, turns));
    }
    return AX_OK;
}

/* Appends the turns of the member `member` of `object`: a list of turns, or a string, which is one turn with
 * the role `role`. */
static ax_status read_side(const json_t *object, const char *member, ax_chat_role role, ax_chat_turns *turns)
{
    const json_t *value = json_object_get(object, member);
    return json_is_array(value) ? read_list(value, turns) : add_text(object, member, role, turns);
}

/* Returns true if an optional member is given, that is, neither missing, null nor an empty string. So a
 * number or a list counts as given, and add_text refuses it. */
static bool says_something(const json_t *value)
{
    return value && !json_is_null(value) && !(json_is_string(value) && !json_string_length(value));
}

static ax_status read_alpaca(const json_t *object, ax_chat_turns *turns)
{
    const json_t *input = json_object_get(object, "input");
    AX_TRY(add_text(object, "instruction", AX_CHAT_USER, turns));
    if (says_something(input))
        AX_TRY(add_text(object, "input", AX_CHAT_INPUT, turns));
    return json_object_get(object, "output") ? add_text(object, "output", AX_CHAT_ASSISTANT, turns) : AX_OK;
}

static ax_status read_prompt(const json_t *object, ax_chat_turns *turns)
{
    AX_TRY(read_side(object, "prompt", AX_CHAT_USER, turns));
    return json_object_get(object, "completion") ? read_side(object, "completion", AX_CHAT_ASSISTANT, turns)
                                                 : AX_OK;
}

/* Returns the name of the member that makes an object a conversation, or NULL. If `question` is true,
 * "prompt" and "instruction" count even if the object has no answer ("completion", "output"). */
static const char *find_member(const json_t *object, bool question)
{
    static const char *const members[][2] = {
        {"messages", NULL}, {"conversations", NULL}, {"prompt", "completion"}, {"instruction", "output"}};
    for (size_t i = 0; i < AX_COUNT(members); i++) {
        const json_t *value = json_object_get(object, members[i][0]);
        if (value && !json_is_null(value) &&
            (question || !members[i][1] || json_object_get(object, members[i][1])))
            return members[i][0];
    }
    return NULL;
}

const char *ax_chat_member(const json_t *object) { return find_member(object, false); }

ax_status ax_chat_read(const json_t *value, ax_chat_turns *turns)
{
    if (json_is_array(value))
        return read_list(value, turns);
    const char *member = find_member(value, true);
    AX_CHECK(member, AX_ERR_DATA,
             "not a conversation: it must be a list of messages, or an object with \"messages\", "
             "\"conversations\", \"prompt\" and perhaps \"completion\", or \"instruction\" and perhaps "
             "\"output\"");
    AX_TRY(refuse_unwritten(value, "tools"));
    if (!strcmp(member, "prompt"))
        return read_prompt(value, turns);
    if (!strcmp(member, "instruction"))
        return read_alpaca(value, turns);
    const json_t *list = json_object_get(value, member);
    AX_CHECK(json_is_array(list), AX_ERR_DATA, "the member \"%s\" is %s, not a list of turns", member,
             tok_json_kind(list));
    if (!strcmp(member, "conversations") && says_something(json_object_get(value, "system")))
        AX_TRY(add_text(value, "system", AX_CHAT_SYSTEM, turns));
    return read_list(list, turns);
}
