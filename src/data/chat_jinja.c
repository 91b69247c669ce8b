/* Prints a chat template of chat_templates.c as Jinja, the language of Hugging Face's chat_template.jinja.
 * Also recognizes which of these templates a tokenizer's own Jinja text corresponds to, by strings in that
 * text. Jinja is never run here. */
#include "chat_templates.h"

#include <string.h>
#include <xxhash.h>

/* ---- recognizing --------------------------------------------------------------------------------- */

/* Jinja templates of released models that write conversations as a template of ours does, by XXH3 of their
 * text without newlines at its end. tests/golden/README.md says where the texts come from. */
static const struct {
    uint64_t hash;
    const char *name, *origin;
} known[] = {
    {0x9799ad6e2dea0594, "llama3", "that of the tokenizer's chat_template (Llama 3 Instruct)"},
    {0xc9e0155c80737cf2, "qwen3",
     "that of the tokenizer's chat_template (Qwen3), but with the reasoning of every answer, not of the last "
     "alone"},
    {0x94713d122b6c7113, "llama3",
     "that of the tokenizer's chat_template (Llama 3 Instruct, as TRL trains it)"},
    {0xb242b4e4424831aa, "llama3", "that of the tokenizer's chat_template (Llama 3 Instruct, of unsloth)"},
    {0x81aa0a9f3b5fe3a7, "qwen3", "that of the tokenizer's chat_template (Qwen3, as TRL trains it)"},
    {0x8fb5d937b1e8f5d0, "chatml", "that of the tokenizer's chat_template (Qwen3 2507 Instruct)"},
    {0x95236ee761b6c691, "chatml",
     "that of the tokenizer's chat_template (Qwen3 2507 Instruct, as TRL trains it)"},
    {0x731a6aa17a2b78ea, "deepseek-coder", "that of the tokenizer's chat_template (DeepSeek-Coder Instruct)"},
    {0x588e6e4c9418a799, "chatml", "that of the tokenizer's chat_template (ChatML, of unsloth)"},
    {0xda206a9e46a4ac01, "chatml", "that of the tokenizer's chat_template (Yi)"},
    {0x4c6e807ee5fe9f4a, "chatml", "that of the tokenizer's chat_template (ChatML)"},
};

const char *chat_known(const char *jinja, const char **origin)
{
    size_t n = strlen(jinja);
    while (n && jinja[n - 1] == '\n')
        n--;
    const uint64_t hash = XXH3_64bits(jinja, n);
    for (size_t i = 0; i < AX_COUNT(known); i++)
        if (known[i].hash == hash) {
            *origin = known[i].origin;
            return known[i].name;
        }
    return NULL;
}

bool chat_has_marks(const char *jinja, const chat_template *t)
{
    for (size_t i = 0; i < AX_COUNT(t->marks) && t->marks[i]; i++)
        if (!strstr(jinja, t->marks[i]))
            return false;
    return !t->other || !strstr(jinja, t->other);
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

/* Appends a statement that writes a turn: its text between the two strings of `frame`. */
static ax_status put_turn(const ax_chat *chat, ax_buf *out, const chat_frame *frame)
{
    AX_TRY(ax_buf_printf(out, "{{- "));
    AX_TRY(put_literal(chat, out, &frame->before, 1));
    AX_TRY(ax_buf_printf(out, " + text + "));
    AX_TRY(put_literal(chat, out, &frame->after, 1));
    return ax_buf_printf(out, " }}\n");
}

static ax_status put_begin(const ax_chat *chat, ax_buf *out)
{
    const chat_template *t = chat->template;
    size_t n;
    chat_string(chat, t->begin, &n);
    if (n)
        AX_TRY(put_strings(chat, out, &t->begin, 1));
    if (!t->no_system)
        return AX_OK;
    AX_TRY(ax_buf_printf(out, "{%%- if not messages or messages[0]['role'] != 'system' %%}\n"));
    AX_TRY(put_strings(chat, out, &t->no_system, 1));
    return ax_buf_printf(out, "{%%- endif %%}\n");
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
    if (!t->after_system.before)
        return put_turn(chat, out, &t->frame[AX_CHAT_USER]);
    AX_TRY(ax_buf_printf(out, after, "system"));
    AX_TRY(put_turn(chat, out, &t->after_system));
    AX_TRY(ax_buf_printf(out, "{%%- else %%}\n"));
    AX_TRY(put_turn(chat, out, &t->frame[AX_CHAT_USER]));
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
             "{%%- set text = text.split('</think>')[-1] %%}\n"
             "{%%- endif %%}\n");
}

static ax_status put_answer(const ax_chat *chat, ax_buf *out)
{
    const chat_template *t = chat->template;
    const chat_frame *frame = &t->frame[AX_CHAT_ASSISTANT];
    const char *before[] = {frame->before, t->opening, t->think.before};
    if (t->think.before)
        AX_TRY(put_reasoning(out));
    AX_TRY(ax_buf_printf(out, "{{- "));
    AX_TRY(put_literal(chat, out, before, AX_COUNT(before)));
    if (t->think.before) {
        AX_TRY(ax_buf_printf(out, " + reasoning.strip('\\n') + "));
        AX_TRY(put_literal(chat, out, &t->think.after, 1));
    }
    AX_TRY(ax_buf_printf(out, t->think.before ? " + text.lstrip('\\n') + " : " + text + "));
    AX_TRY(put_literal(chat, out, &frame->after, 1));
    return ax_buf_printf(out, " }}\n");
}

static ax_status put_turns(const ax_chat *chat, ax_buf *out)
{
    const chat_template *t = chat->template;
    AX_TRY(ax_buf_printf(out,
                         "{%%- for message in messages %%}\n"
                         "{%%- if message['role'] not in ['user', 'assistant'] and not (message['role'] == "
                         "'system' and loop.first) %%}\n"
                         "{{- raise_exception('A conversation has a turn of the system or none, then turns "
                         "of user and assistant') }}\n"
                         "{%%- endif %%}\n"
                         "{%%- set text = message['content']%s %%}\n"
                         "{%%- if message['role'] == 'system' %%}\n",
                         t->trims ? " | trim" : ""));
    AX_TRY(put_turn(chat, out, &t->frame[AX_CHAT_SYSTEM]));
    AX_TRY(ax_buf_printf(out, "{%%- elif message['role'] == 'user' %%}\n"));
    AX_TRY(put_user(chat, out));
    AX_TRY(ax_buf_printf(out, "{%%- else %%}\n"));
    AX_TRY(put_answer(chat, out));
    return ax_buf_printf(out, "{%%- endif %%}\n{%%- endfor %%}\n");
}

ax_status ax_chat_jinja(const ax_chat *chat, ax_buf *out)
{
    AX_CHECK(chat->template, AX_ERR_USAGE,
             "no chat template fits the tokenizer, so none can be written as Jinja (chat_template)");
    AX_TRY(put_begin(chat, out));
    AX_TRY(put_turns(chat, out));
    AX_TRY(ax_buf_printf(out, "{%%- if add_generation_prompt %%}\n"));
    AX_TRY(put_strings(chat, out, &chat->template->frame[AX_CHAT_ASSISTANT].before, 1));
    return ax_buf_printf(out, "{%%- endif %%}");
}
