/* Prints a chat template of chat_templates.c as Jinja, the language of Hugging Face's chat_template.jinja.
 * Also recognizes released texts by which the templates of the table write the same. */
#include "chat_templates.h"

#include <string.h>
#include <xxhash.h>

/* ---- recognizing --------------------------------------------------------------------------------- */

/* tests/golden/README.md says where the texts come from. */
#define OWN "that of the tokenizer's chat_template"
#define LAST_ONLY ", but with the turn of the system also where an answer is last"
const chat_own chat_own_texts[CHAT_OWN_TEXTS] = {
    {0x9799ad6e2dea0594, "llama3", OWN " (Llama 3 Instruct)", false, false},
    {0x94713d122b6c7113, "llama3", OWN " (Llama 3 Instruct, as TRL trains it)", false, false},
    {0xb242b4e4424831aa, "llama3", OWN " (Llama 3 Instruct, of unsloth)", false, false},
    {0x6ca7779b7730196a, "llama3.1", OWN " (Llama 3.1 Instruct)", true, false},
    {0xc9e0155c80737cf2, "qwen3",
     OWN " (Qwen3), but with the reasoning of every answer, not of the last alone", true, true},
    {0x81aa0a9f3b5fe3a7, "qwen3", OWN " (Qwen3, as TRL trains it)", true, false},
    {0xdf1cf8695803e31b, "qwen3", OWN, false, false},
    {0x2469c9508f79506e, "qwen2.5", OWN " (Qwen 2.5 Instruct)", true, false},
    {0xe44712543961e79d, "qwen2.5", OWN " (Qwen 2.5 Instruct, as TRL trains it)", true, true},
    {0x8fb5d937b1e8f5d0, "chatml", OWN " (Qwen3 2507 Instruct)", true, false},
    {0x95236ee761b6c691, "chatml", OWN " (Qwen3 2507 Instruct, as TRL trains it)", true, false},
    {0x588e6e4c9418a799, "chatml", OWN " (ChatML, of unsloth)", false, false},
    {0xda206a9e46a4ac01, "chatml", OWN " (Yi)", false, false},
    {0x4c6e807ee5fe9f4a, "chatml", OWN " (ChatML)", false, false},
    {0xa04f41d813a07b13, "chatml", OWN " (ChatML, with line ends in its strings)", false, false},
    {0x1c6f67d8dde0613a, "chatml", OWN, false, false},
    {0xa5d004210ebce758, "mistral-v0", OWN " (Mixtral 8x7B and Mistral 7B Instruct v0.2, at first)", false,
     false},
    {0xf89cfc57f651ff3d, "mistral-v1", OWN " (Mistral Instruct, tokenizer v1)", false, false},
    {0x797fff16f26a5c01, "mistral-v3", OWN " (Mistral Instruct, tokenizer v3)" LAST_ONLY, false, true},
    {0xc6614466504d495b, "mistral-v3",
     OWN " (Mistral 7B Instruct v0.3)" LAST_ONLY ", and with white space around answers", false, true},
    {0xcae647ce0048756b, "mistral-v3-tekken", OWN " (Mistral Nemo Instruct)" LAST_ONLY, false, true},
    {0x6a6adf55847af499, "mistral-v3-tekken", OWN " (Mistral Nemo Instruct, at first)" LAST_ONLY, false,
     true},
    {0x11381d1c62000f60, "mistral-v7", OWN " (Mistral Instruct, tokenizer v7)", false, false},
    {0x02cdc546cb24cabe, "mistral-v7-tekken", OWN " (Mistral Instruct, tokenizer v7, Tekken)", false, false},
    {0x731a6aa17a2b78ea, "deepseek-coder", OWN " (DeepSeek-Coder Instruct)", false, false},
};
#undef OWN
#undef LAST_ONLY

const chat_own *chat_known(const char *jinja)
{
    /* Jinja drops one newline at the end, and transformers one behind a block. */
    size_t n = strlen(jinja), newlines = 0;
    for (; n && jinja[n - 1] == '\n'; n--)
        newlines++;
    if (newlines > (n >= 2 && !memcmp(jinja + n - 2, "%}", 2) ? 2 : 1))
        return NULL;
    const uint64_t hash = XXH3_64bits(jinja, n);
    for (size_t i = 0; i < CHAT_OWN_TEXTS; i++)
        if (chat_own_texts[i].hash == hash)
            return &chat_own_texts[i];
    return NULL;
}

/* ---- printing ------------------------------------------------------------------------------------ */

/* Appends `count` strings of the template, one after the other, as one string literal of Jinja. */
static ax_status put_literal(const ax_chat *chat, ax_buf *out, const char *const *strings, size_t count)
{
    AX_TRY(ax_buf_add(out, "'", 1));
    for (size_t i = 0; i < count; i++) {
        size_t n;
        const char *text = chat_string(chat, strings[i], &n);
        for (size_t j = 0; j < n; j++)
            AX_TRY(text[j] == '\n'                      ? ax_buf_printf(out, "\\n")
                   : text[j] == '\'' || text[j] == '\\' ? ax_buf_printf(out, "\\%c", text[j])
                                                        : ax_buf_add(out, &text[j], 1));
    }
    return ax_buf_add(out, "'", 1);
}

/* Appends a statement that writes `count` strings of the template. */
static ax_status put_strings(const ax_chat *chat, ax_buf *out, const char *const *strings, size_t count)
{
    AX_TRY(ax_buf_printf(out, "{{- "));
    AX_TRY(put_literal(chat, out, strings, count));
    return ax_buf_printf(out, " }}\n");
}

/* Appends " + " and a string of the template, unless the string is NULL or empty. */
static ax_status put_more(const ax_chat *chat, ax_buf *out, const char *string)
{
    if (!string || !*string)
        return AX_OK;
    AX_TRY(ax_buf_printf(out, " + "));
    return put_literal(chat, out, &string, 1);
}

/* Appends " + (STRING if ns.tools else '')", unless the string is NULL. */
static ax_status put_if_tools(const ax_chat *chat, ax_buf *out, const char *string)
{
    if (!string)
        return AX_OK;
    AX_TRY(ax_buf_printf(out, " + ("));
    AX_TRY(put_literal(chat, out, &string, 1));
    return ax_buf_printf(out, " if ns.tools else '')");
}

/* Appends a statement that writes a turn: its text between the two strings of `frame`. */
static ax_status put_turn(const ax_chat *chat, ax_buf *out, const chat_frame *frame, const char *text)
{
    AX_TRY(ax_buf_printf(out, "{{- "));
    AX_TRY(put_literal(chat, out, &frame->before, 1));
    AX_TRY(ax_buf_printf(out, " + %s + ", text));
    AX_TRY(put_literal(chat, out, &frame->after, 1));
    return ax_buf_printf(out, " }}\n");
}

/* Appends a statement that writes a turn of the system: its text is that of the message, or `given`. */
static ax_status put_system(const ax_chat *chat, ax_buf *out, const char *given)
{
    const chat_template *t = chat->template;
    const chat_frame *frame = &t->frame[AX_CHAT_SYSTEM];
    const bool list = t->tools && !t->tools->in_user;
    AX_TRY(ax_buf_printf(out, "{{- "));
    AX_TRY(put_literal(chat, out, &frame->before, 1));
    AX_TRY(put_if_tools(chat, out, t->tools ? t->tools->note : NULL));
    AX_TRY(put_more(chat, out, t->preamble));
    AX_TRY(given ? put_more(chat, out, given) : ax_buf_printf(out, " + text"));
    AX_TRY(put_if_tools(chat, out, list && (!given || *given) ? t->tools->after_text : NULL));
    AX_TRY(list ? ax_buf_printf(out, " + ns.tools") : AX_OK);
    AX_TRY(ax_buf_printf(out, " + "));
    AX_TRY(put_literal(chat, out, &frame->after, 1));
    return ax_buf_printf(out, " }}\n");
}

/* Appends statements that set the Jinja variable ns.tools to the list of tools. */
static ax_status put_list(const ax_chat *chat, ax_buf *out)
{
    const chat_tools *t = chat->template->tools;
    AX_TRY(ax_buf_printf(out,
                         "{%%- set ns = namespace(tools='') %%}\n{%%- if tools%s %%}\n{%%- set ns.tools = ",
                         t->empty ? " is defined and tools is not none" : ""));
    AX_TRY(put_literal(chat, out, &t->list.before, 1));
    AX_TRY(ax_buf_printf(out, " %%}\n{%%- for tool in tools %%}\n{%%- set ns.tools = ns.tools"));
    AX_TRY(put_more(chat, out, t->tool.before));
    AX_TRY(t->indent ? ax_buf_printf(out, " + (tool | tojson(indent=%d))", t->indent)
                     : ax_buf_printf(out, " + (tool | tojson)"));
    AX_TRY(put_more(chat, out, t->tool.after));
    AX_TRY(ax_buf_printf(out, " %%}\n{%%- endfor %%}\n"));
    if (*t->list.after) {
        AX_TRY(ax_buf_printf(out, "{%%- set ns.tools = ns.tools"));
        AX_TRY(put_more(chat, out, t->list.after));
        AX_TRY(ax_buf_printf(out, " %%}\n"));
    }
    return ax_buf_printf(out, "{%%- endif %%}\n");
}

/* Appends statements that write the list of tools where no turn of the system does. */
static ax_status put_list_alone(const ax_chat *chat, ax_buf *out)
{
    AX_TRY(
        ax_buf_printf(out, "{%%- if ns.tools and (not messages or messages[0]['role'] != 'system') %%}\n"));
    AX_TRY(put_system(chat, out, ""));
    return ax_buf_printf(out, "{%%- endif %%}\n");
}

/* Appends a statement that sets the Jinja variable ns.user to the turn of the user that has the system's
 * text. */
static ax_status put_place(const ax_chat *chat, ax_buf *out)
{
    return chat->template->system_at == CHAT_FIRST_USER
               ? ax_buf_printf(out, "{%%- set ns = namespace(user=1) %%}\n")
               : ax_buf_printf(out, "{%%- set ns = namespace(user=0) %%}\n"
                                    "{%%- for message in messages %%}\n"
                                    "{%%- if message['role'] == 'user' %%}\n"
                                    "{%%- set ns.user = loop.index0 %%}\n"
                                    "{%%- endif %%}\n"
                                    "{%%- endfor %%}\n");
}

static ax_status put_begin(const ax_chat *chat, ax_buf *out)
{
    const chat_template *t = chat->template;
    size_t n;
    chat_string(chat, t->begin, &n);
    if (n)
        AX_TRY(put_strings(chat, out, &t->begin, 1));
    if (t->system_at)
        return put_place(chat, out);
    if (t->tools)
        AX_TRY(put_list(chat, out));
    if (t->tools && !t->default_system)
        return put_list_alone(chat, out);
    if (!t->no_system && !t->default_system)
        return AX_OK;
    AX_TRY(ax_buf_printf(out, "{%%- if not messages or messages[0]['role'] != 'system' %%}\n"));
    AX_TRY(t->default_system ? put_system(chat, out, t->default_system)
                             : put_strings(chat, out, &t->no_system, 1));
    return ax_buf_printf(out, "{%%- endif %%}\n");
}

/* Appends a statement that writes a turn of the user, with the system's text if it stands there. */
static ax_status put_user_and_system(const ax_chat *chat, ax_buf *out)
{
    const chat_frame *user = &chat->template->frame[AX_CHAT_USER],
                     *system = &chat->template->frame[AX_CHAT_SYSTEM];
    AX_TRY(ax_buf_printf(out, "{{- "));
    AX_TRY(put_literal(chat, out, &user->before, 1));
    AX_TRY(ax_buf_printf(out, " + ("));
    AX_TRY(put_literal(chat, out, &system->before, 1));
    AX_TRY(ax_buf_printf(out, " + messages[0]['content'] + "));
    AX_TRY(put_literal(chat, out, &system->after, 1));
    AX_TRY(ax_buf_printf(
        out, " if messages[0]['role'] == 'system' and loop.index0 == ns.user else '') + text + "));
    AX_TRY(put_literal(chat, out, &user->after, 1));
    return ax_buf_printf(out, " }}\n");
}

static ax_status put_user(const ax_chat *chat, ax_buf *out)
{
    static const char after[] = "{%%- if not loop.first and messages[loop.index0 - 1]['role'] == '%s' %%}\n";
    const chat_template *t = chat->template;
    if (t->between) {
        AX_TRY(ax_buf_printf(out, after, "assistant"));
        AX_TRY(put_strings(chat, out, &t->between, 1));
        AX_TRY(ax_buf_printf(out, "{%%- endif %%}\n"));
    }
    if (t->system_at)
        return put_user_and_system(chat, out);
    if (t->tools && t->tools->in_user) { /* only the first turn has the list */
        AX_TRY(put_turn(chat, out, &t->frame[AX_CHAT_USER], "ns.tools + text"));
        return ax_buf_printf(out, "{%%- set ns.tools = '' %%}\n");
    }
    if (!t->after_system.before)
        return put_turn(chat, out, &t->frame[AX_CHAT_USER], "text");
    AX_TRY(ax_buf_printf(out, after, "system"));
    AX_TRY(put_turn(chat, out, &t->after_system, "text"));
    AX_TRY(ax_buf_printf(out, "{%%- else %%}\n"));
    AX_TRY(put_turn(chat, out, &t->frame[AX_CHAT_USER], "text"));
    return ax_buf_printf(out, "{%%- endif %%}\n");
}

/* Appends statements that set the Jinja variable reasoning: to the message's reasoning_content or, if it has
 * none, to the reasoning in `text` before </think>. In the second case the statements also remove the
 * reasoning from `text`, as split_reasoning (chat.c) does. */
static ax_status put_reasoning(ax_buf *out)
{
    return ax_buf_printf(
        out, "{%%- set reasoning = '' %%}\n"
             "{%%- if message['reasoning_content'] is string %%}\n"
             "{%%- set reasoning = message['reasoning_content'] %%}\n"
             "{%%- elif '</think>' in text %%}\n"
             "{%%- set reasoning = text.split('</think>')[0].rstrip('\\n').split('<think>')[-1] %%}\n"
             "{%%- set text = text.split('</think>')[-1].lstrip('\\n') %%}\n"
             "{%%- endif %%}\n");
}

/* Appends statements that write the calls of an answer. A template of one call writes no text beside it, as
 * Llama 3.1's. */
static ax_status put_calls(const ax_chat *chat, ax_buf *out)
{
    const chat_tools *t = chat->template->tools;
    AX_TRY(ax_buf_printf(out, t->gap ? "{%%- for item in message['tool_calls'] or [] %%}\n"
                                     : "{%%- if message['tool_calls'] | length > 1 %%}\n"
                                       "{{- raise_exception('A turn has one call of a tool') }}\n"
                                       "{%%- endif %%}\n"
                                       "{%%- for item in message['tool_calls'] %%}\n"));
    AX_TRY(ax_buf_printf(out, "{%%- set function = item['function'] or item %%}\n"));
    if (t->gap) {
        AX_TRY(ax_buf_printf(out, "{%%- if text or not loop.first %%}\n"));
        AX_TRY(put_strings(chat, out, &t->gap, 1));
        AX_TRY(ax_buf_printf(out, "{%%- endif %%}\n"));
    }
    AX_TRY(ax_buf_printf(out, "{{- "));
    AX_TRY(put_literal(chat, out, &t->call.before, 1));
    AX_TRY(ax_buf_printf(out, " + function['name']"));
    AX_TRY(put_more(chat, out, t->arguments));
    AX_TRY(ax_buf_printf(out, t->verbatim
                                  ? " + (function['arguments'] if function['arguments'] is string else "
                                    "function['arguments'] | tojson)"
                                  : " + (function['arguments'] | tojson)"));
    AX_TRY(put_more(chat, out, t->call.after));
    return ax_buf_printf(out, " }}\n{%%- endfor %%}\n");
}

static ax_status put_answer(const ax_chat *chat, ax_buf *out)
{
    const chat_template *t = chat->template;
    const chat_frame *frame = &t->frame[AX_CHAT_ASSISTANT];
    const char *before[] = {frame->before, t->opening, t->think.before};
    const char *text = t->think.before              ? "text.lstrip('\\n')"
                       : t->tools && !t->tools->gap ? "('' if message['tool_calls'] else text)"
                                                    : "text";
    if (t->think.before)
        AX_TRY(put_reasoning(out));
    AX_TRY(ax_buf_printf(out, "{{- "));
    AX_TRY(put_literal(chat, out, before, AX_COUNT(before)));
    if (t->think.before) {
        AX_TRY(ax_buf_printf(out, " + reasoning.strip('\\n') + "));
        AX_TRY(put_literal(chat, out, &t->think.after, 1));
    }
    AX_TRY(ax_buf_printf(out, " + %s", text));
    if (t->tools) {
        AX_TRY(ax_buf_printf(out, " }}\n%s", t->tools->gap ? "" : "{%- if message['tool_calls'] %}\n"));
        AX_TRY(put_calls(chat, out));
        AX_TRY(ax_buf_printf(out, "%s{{- ''", t->tools->gap ? "" : "{%- endif %}\n"));
    }
    AX_TRY(put_more(chat, out, frame->after));
    return ax_buf_printf(out, " }}\n");
}

/* Appends a statement that writes a string if the message on one side of a result of a tool is no result. */
static ax_status put_row(const ax_chat *chat, ax_buf *out, const char *string, const char *end,
                         const char *side)
{
    if (!*string)
        return AX_OK;
    AX_TRY(ax_buf_printf(out, "{%%- if loop.%s or messages[loop.index0 %s 1]['role'] != 'tool' %%}\n", end,
                         side));
    AX_TRY(put_strings(chat, out, &string, 1));
    return ax_buf_printf(out, "{%%- endif %%}\n");
}

static ax_status put_result(const ax_chat *chat, ax_buf *out)
{
    const chat_tools *t = chat->template->tools;
    AX_TRY(ax_buf_printf(out, "{%%- elif message['role'] == 'tool' %%}\n"));
    AX_TRY(put_row(chat, out, t->row.before, "first", "-"));
    AX_TRY(put_turn(chat, out, &t->result, t->quoted ? "(message['content'] | tojson)" : "text"));
    return put_row(chat, out, t->row.after, "last", "+");
}

static ax_status put_turns(const ax_chat *chat, ax_buf *out)
{
    const chat_template *t = chat->template;
    const bool system = t->frame[AX_CHAT_SYSTEM].before;
    AX_TRY(ax_buf_printf(
        out,
        "{%%- for message in messages %%}\n"
        "{%%- if message['role'] not in ['user', 'assistant'%s]%s %%}\n"
        "{{- raise_exception('A conversation has a turn of the system or none, then turns "
        "of user and assistant') }}\n"
        "{%%- endif %%}\n"
        "{%%- set text = %s%s %%}\n"
        "{%%- if message['role'] == 'system' %%}\n",
        t->tools ? ", 'tool'" : "", system ? " and not (message['role'] == 'system' and loop.first)" : "",
        t->tools ? "(message['content'] or '')" : "message['content']", t->trims ? " | trim" : ""));
    AX_TRY(t->system_at || !system ? AX_OK : put_system(chat, out, NULL));
    AX_TRY(ax_buf_printf(out, "{%%- elif message['role'] == 'user' %%}\n"));
    AX_TRY(put_user(chat, out));
    if (t->tools)
        AX_TRY(put_result(chat, out));
    AX_TRY(ax_buf_printf(out, "{%%- else %%}\n"));
    AX_TRY(put_answer(chat, out));
    return ax_buf_printf(out, "{%%- endif %%}\n{%%- endfor %%}\n");
}

ax_status ax_chat_jinja(const ax_chat *chat, ax_buf *out)
{
    if (chat->own)
        return ax_buf_add(out, chat->jinja, strlen(chat->jinja));
    AX_CHECK(chat->template, AX_ERR_USAGE,
             "no chat template fits the tokenizer, so none can be written as Jinja (chat_template)");
    AX_TRY(put_begin(chat, out));
    AX_TRY(put_turns(chat, out));
    AX_TRY(ax_buf_printf(out, "{%%- if add_generation_prompt %%}\n"));
    AX_TRY(put_strings(chat, out, &chat->template->frame[AX_CHAT_ASSISTANT].before, 1));
    return ax_buf_printf(out, "{%%- endif %%}");
}
