/* Writes what conversations have of tools: the list of tools, calls and results; and JSON as Python's
 * json.dumps does, because Jinja templates write tools and arguments so (tojson). */
#include "chat_templates.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- JSON ---------------------------------------------------------------------------------------- */

static ax_status put_json_string(const char *text, size_t n, ax_buf *out)
{
    static const char plain[] = "\b\f\n\r\t\"\\", escaped[] = "bfnrt\"\\";
    AX_TRY(ax_buf_add(out, "\"", 1));
    for (size_t i = 0, from = 0; i <= n; i++) {
        const unsigned char c = i < n ? (unsigned char)text[i] : 0;
        if (i < n && c >= 0x20 && c != '"' && c != '\\')
            continue;
        if (i > from)
            AX_TRY(ax_buf_add(out, text + from, i - from));
        from = i + 1;
        if (i == n)
            break;
        const char *at = c ? strchr(plain, c) : NULL;
        AX_TRY(at ? ax_buf_printf(out, "\\%c", escaped[at - plain]) : ax_buf_printf(out, "\\u%04x", c));
    }
    return ax_buf_add(out, "\"", 1);
}

/* Writes a number as Python's repr does: with as few digits as give the same number again, and with an
 * exponent below 1e-4 and from 1e16 on. The numbers that are rounded to a power of two reach half as far
 * below it as above it; so there the nearest one of few digits may be too far below, while the next one above
 * is right. A quarter of the distance to the next double leads to it. */
ax_status chat_put_real(double value, ax_buf *out)
{
    char text[32], digits[32] = "";
    int precision = 0, n = 0;
    do {
        snprintf(text, sizeof text, "%.*e", precision, value);
        if (strtod(text, NULL) != value)
            snprintf(text, sizeof text, "%.*Le", precision, value * (1 + 0x1p-54L));
    } while (strtod(text, NULL) != value && ++precision < 17);
    const char *e = strchr(text, 'e');
    const int exponent = (int)strtol(e + 1, NULL, 10);
    if (exponent < -4 || exponent >= 16)
        return ax_buf_printf(out, "%s", text);
    for (const char *c = text; c < e; c++)
        if (*c >= '0' && *c <= '9')
            digits[n++] = *c;
    AX_TRY(ax_buf_printf(out, "%s%s", signbit(value) ? "-" : "", exponent < 0 ? "0." : ""));
    for (int i = exponent + 1; i < 0; i++)
        AX_TRY(ax_buf_add(out, "0", 1));
    for (int i = 0; i < n || (exponent >= 0 && i < exponent + 2); i++) {
        AX_TRY(i == exponent + 1 && i ? ax_buf_add(out, ".", 1) : AX_OK);
        AX_TRY(ax_buf_add(out, i < n ? &digits[i] : "0", 1));
    }
    return AX_OK;
}

/* Starts a line at a depth of nesting, or, if everything is on one line, writes `space`. */
static ax_status put_break(int indent, int depth, const char *space, ax_buf *out)
{
    return indent ? ax_buf_printf(out, "\n%*s", indent * depth, "") : ax_buf_printf(out, "%s", space);
}

static ax_status put_value(const json_t *value, int indent, int depth, ax_buf *out);

static ax_status put_members(const json_t *object, int indent, int depth, ax_buf *out)
{
    const char *name;
    size_t i = 0, n;
    json_t *value;
    json_object_keylen_foreach((json_t *)object, name, n, value)
    {
        AX_TRY(i++ ? ax_buf_add(out, ",", 1) : AX_OK);
        AX_TRY(put_break(indent, depth, i > 1 ? " " : "", out));
        AX_TRY(put_json_string(name, n, out));
        AX_TRY(ax_buf_add(out, ": ", 2));
        AX_TRY(put_value(value, indent, depth, out));
    }
    return i ? put_break(indent, depth - 1, "", out) : AX_OK;
}

static ax_status put_elements(const json_t *list, int indent, int depth, ax_buf *out)
{
    const json_t *value;
    size_t i;
    json_array_foreach(list, i, value)
    {
        AX_TRY(i ? ax_buf_add(out, ",", 1) : AX_OK);
        AX_TRY(put_break(indent, depth, i ? " " : "", out));
        AX_TRY(put_value(value, indent, depth, out));
    }
    return i ? put_break(indent, depth - 1, "", out) : AX_OK;
}

static ax_status put_value(const json_t *value, int indent, int depth, ax_buf *out)
{
    const bool object = json_is_object(value);
    switch (json_typeof(value)) {
    case JSON_OBJECT:
    case JSON_ARRAY:
        AX_TRY(ax_buf_add(out, object ? "{" : "[", 1));
        AX_TRY((object ? put_members : put_elements)(value, indent, depth + 1, out));
        return ax_buf_add(out, object ? "}" : "]", 1);
    case JSON_STRING:
        return put_json_string(json_string_value(value), json_string_length(value), out);
    case JSON_INTEGER:
        return ax_buf_printf(out, "%lld", (long long)json_integer_value(value));
    case JSON_REAL:
        return chat_put_real(json_real_value(value), out);
    case JSON_TRUE:
        return ax_buf_printf(out, "true");
    case JSON_FALSE:
        return ax_buf_printf(out, "false");
    default:
        return ax_buf_printf(out, "null");
    }
}

ax_status chat_put_json(const json_t *value, int indent, ax_buf *out)
{
    return put_value(value, indent, 0, out);
}

/* Returns true if the value has a real from 2^63 to 2^64 or the negative of one. These are as a rule unsigned
 * integers of 64 bits, such as hashes, which ax_json_parse reads as reals because Jansson's are signed. */
static bool has_unsigned(const json_t *value)
{
    const char *name;
    json_t *member;
    const json_t *element;
    size_t i;
    json_object_foreach((json_t *)value, name, member)
    {
        if (has_unsigned(member))
            return true;
    }
    json_array_foreach(value, i, element)
    {
        if (has_unsigned(element))
            return true;
    }
    const double size = json_is_real(value) ? fabs(json_real_value(value)) : 0;
    return size >= 0x1p63 && size <= 0x1p64;
}

ax_status chat_check_numbers(const json_t *value, const char *what)
{
    AX_CHECK(!has_unsigned(value), AX_ERR_DATA,
             "%s: a number does not fit into 64 bits with a sign, and would be written with other digits: "
             "write it as a string",
             what);
    return AX_OK;
}

/* Appends a JSON value, none of whose tokens are special, as a part. */
static ax_status put_json(const json_t *value, int indent, int kind, ax_chat_text *out)
{
    out->joined.size = 0;
    AX_TRY(chat_put_json(value, indent, &out->joined));
    return chat_put(out, out->joined.data, out->joined.size, CHAT_PLAIN | kind);
}

/* ---- what a template writes ---------------------------------------------------------------------- */

bool chat_has_list(const chat_template *t, const ax_chat_turns *turns)
{
    return t->tools && turns->tools && (t->tools->empty || json_array_size(turns->tools));
}

/* The function of a call, in the form of OpenAI or alone. */
static const json_t *function_of(const json_t *call)
{
    const json_t *function = json_object_get(call, "function");
    return function ? function : call;
}

static ax_status refuse_tools(const ax_chat *chat, const char *what)
{
    const chat_template *t = chat->template;
    return ax_fail(
        AX_ERR_DATA,
        "%s, which %s%s does not write: name a template that writes tools (chatml, llama3.1, qwen2.5, "
        "qwen3) with --template or data.template if the model is to learn its format, or leave the "
        "conversation out with --bad-lines",
        what, t->tools ? "the tokenizer's own text of template " : "template ", t->name);
}

static ax_status check_calls(const ax_chat *chat, const ax_chat_turn *turn)
{
    const chat_template *t = chat->template;
    const json_t *call;
    size_t i;
    if (!chat->tools)
        return refuse_tools(chat, "the turn calls tools (\"tool_calls\")");
    AX_CHECK(
        t->tools->gap || (json_array_size(turn->calls) == 1 && !turn->size), AX_ERR_DATA,
        "template %s writes one call of a tool in a turn, and no text beside the call; this turn has %zu "
        "calls and %zu bytes of text: divide it, or choose another template (qwen3, for instance)",
        t->name, json_array_size(turn->calls), turn->size);
    json_array_foreach(turn->calls, i, call)
    {
        AX_CHECK(
            t->tools->verbatim || json_is_object(json_object_get(function_of(call), "arguments")),
            AX_ERR_DATA,
            "the \"arguments\" of call %zu are a string, which the chat_template of such models writes in "
            "quotes: write them as an object",
            i + 1);
    }
    return AX_OK;
}

ax_status chat_check_tools(const ax_chat *chat, const ax_chat_turns *turns)
{
    const chat_template *t = chat->template;
    if (json_array_size(turns->tools) && !chat->tools)
        return refuse_tools(
            chat, "the conversation has \"tools\" (--ignore tools, or data.ignore, leaves them out)");
    AX_CHECK(!chat_has_list(t, turns) || !t->tools->in_user || turns->n > 1 ||
                 (turns->n && turns->turn[0].role == AX_CHAT_USER),
             AX_ERR_DATA, "template %s writes the tools in the first turn of the user, but there is none",
             t->name);
    for (size_t i = 0; i < turns->n; i++) {
        const ax_chat_turn *turn = &turns->turn[i];
        ax_status status = turn->calls ? check_calls(chat, turn) : AX_OK;
        if (turn->role == AX_CHAT_TOOL && !chat->tools)
            status = refuse_tools(chat, "the turn is the result of a tool");
        if (status != AX_OK)
            ax_error_context("turn %zu", i + 1);
        AX_TRY(status);
    }
    return AX_OK;
}

ax_status chat_put_list(const ax_chat *chat, const ax_chat_turns *turns, ax_chat_text *out)
{
    const chat_tools *t = chat->template->tools;
    const json_t *tool;
    size_t i;
    AX_TRY(chat_put_string(chat, out, t->list.before, 0));
    json_array_foreach(turns->tools, i, tool)
    {
        AX_TRY(chat_put_string(chat, out, t->tool.before, 0));
        AX_TRY(put_json(tool, t->indent, 0, out));
        AX_TRY(chat_put_string(chat, out, t->tool.after, 0));
    }
    return chat_put_string(chat, out, t->list.after, 0);
}

ax_status chat_put_calls(const ax_chat *chat, const ax_chat_turn *turn, bool follows, int kind,
                         ax_chat_text *out)
{
    const chat_tools *t = chat->template->tools;
    const json_t *call;
    size_t i;
    json_array_foreach(turn->calls, i, call)
    {
        const json_t *name = json_object_get(function_of(call), "name"),
                     *arguments = json_object_get(function_of(call), "arguments");
        AX_TRY(chat_put_string(chat, out, i || follows ? t->gap : NULL, kind));
        AX_TRY(chat_put_string(chat, out, t->call.before, kind));
        AX_TRY(chat_put(out, json_string_value(name), json_string_length(name), CHAT_PLAIN | kind));
        AX_TRY(chat_put_string(chat, out, t->arguments, kind));
        AX_TRY(json_is_string(arguments) ? chat_put(out, json_string_value(arguments),
                                                    json_string_length(arguments), CHAT_PLAIN | kind)
                                         : put_json(arguments, 0, kind, out));
        AX_TRY(chat_put_string(chat, out, t->call.after, kind));
    }
    return AX_OK;
}

ax_status chat_put_result(const ax_chat *chat, const ax_chat_turns *turns, size_t i, ax_chat_text *out)
{
    const chat_tools *t = chat->template->tools;
    const ax_chat_turn *turn = &turns->turn[i];
    const bool first = !i || turns->turn[i - 1].role != AX_CHAT_TOOL,
               last = i + 1 == turns->n || turns->turn[i + 1].role != AX_CHAT_TOOL;
    AX_TRY(chat_put_string(chat, out, first ? t->row.before : NULL, 0));
    AX_TRY(chat_put_string(chat, out, t->result.before, 0));
    if (t->quoted) {
        out->joined.size = 0;
        AX_TRY(put_json_string(turn->text, turn->size, &out->joined));
        AX_TRY(chat_put(out, out->joined.data, out->joined.size, CHAT_PLAIN));
    } else {
        AX_TRY(chat_put(out, turn->text, turn->size, CHAT_PLAIN));
    }
    AX_TRY(chat_put_string(chat, out, t->result.after, 0));
    return chat_put_string(chat, out, last ? t->row.after : NULL, 0);
}
