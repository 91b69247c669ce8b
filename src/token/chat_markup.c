/* Which added tokens are markup of a model's own chat template. Special tokens always are. Many tokenizers
 * have others by which a template separates turns (DeepSeek's <｜User｜>), writes calls, or begins reasoning,
 * and others that are text, such as runs of spaces or HTML. So sample conversations are written: what the
 * template itself writes in them is its markup, unless it is white space. An answer may contain the tokens
 * that the template writes within answers, since a model's answers have them, but none that separates turns.
 * Some templates read calls only in one of the forms that data sets have, so all are tried. What a template
 * writes in branches that no sample reaches is markup too, if it has the form of markup; answers may contain
 * it. Of a template that refuses a sample, all tokens that stand in its strings are markup. */
#include "chat_templates.h"
#include "token/tok.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define USER "{\"role\": \"user\", \"content\": \"question\"}"
#define ANSWER "{\"role\": \"assistant\", \"content\": \"answer\"}"
#define CALLS                                                                                                \
    "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"look\", \"description\": \"looks\", "   \
    "\"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\", "              \
    "\"description\": \"place\"}}, \"required\": [\"city\"]}}}], \"messages\": [" USER                       \
    ", {\"role\": \"assistant\", \"content\": \"\", \"reasoning_content\": \"reason\", \"tool_calls\": "     \
    "[{\"id\": \"call00001\", \"type\": \"function\", \"function\": {\"name\": \"look\", \"arguments\": "    \
    "{\"city\": \"there\"}}}]}, {\"role\": \"tool\", \"tool_call_id\": \"call00001\", \"name\": \"look\", "  \
    "\"content\": \"found\"}"

static const char two_answers[] = "{\"messages\": [{\"role\": \"system\", \"content\": \"order\"}, " USER
                                  ", " ANSWER ", " USER ", " ANSWER "]}";
static const char without_system[] = "{\"messages\": [" USER ", " ANSWER ", " USER ", " ANSWER "]}";
static const char developer[] =
    "{\"messages\": [{\"role\": \"developer\", \"content\": \"order\"}, " USER ", " ANSWER "]}";
static const char question[] = "{\"messages\": [" USER "]}";
static const char reasons[] =
    "{\"messages\": [" USER ", {\"role\": \"assistant\", \"reasoning_content\": \"reason\", \"content\": "
    "\"answer\"}]}";
static const char calls[] = "{" CALLS ", {\"role\": \"assistant\", \"reasoning_content\": \"reason\", "
                            "\"content\": \"answer\"}]}";
static const char after_call[] = "{" CALLS "]}";

/* Where a token is written. In conversations with nothing but turns of text: between the turns. In those with
 * reasoning, calls and tools: outside of answers, or in them. Elsewhere, for instance before an answer that
 * is to be written, which may end with what that answer would begin with. */
enum { BETWEEN = 1, OUTSIDE = 2, INSIDE = 4, ELSEWHERE = 8 };

/* Forms of calls: their arguments are an object or its text, and the content beside them is "" or null. */
enum { ARGUMENTS_TEXT = 1, CONTENT_NULL = 2, FORMS = 4 };

static const struct sample {
    const char *record;
    bool prompt;
    unsigned char outside, before, after; /* bits for text of the template outside of answers, and in them
                                             before and after what they say */
    int forms;                            /* of its calls */
    bool optional;                        /* with roles that many templates refuse */
} samples[] = {
    {two_answers, false, BETWEEN, INSIDE, BETWEEN, 1, true},
    {without_system, false, BETWEEN, INSIDE, BETWEEN, 1, false},
    {developer, false, BETWEEN, INSIDE, BETWEEN, 1, true},
    {question, true, ELSEWHERE, 0, 0, 1, false},
    {reasons, false, OUTSIDE, INSIDE, INSIDE, 1, false},
    {calls, false, OUTSIDE, INSIDE, INSIDE, FORMS, false},
    {after_call, true, ELSEWHERE, 0, 0, FORMS, false},
};

/* Returns true if answers can contain a token that is written there. Around reasoning stand the same tokens
 * in many models; templates write them in prompts too, or in what they tell the system. */
static bool is_said(const tok_added *a, unsigned char where)
{
    static const char *const reasoning[] = {"<think>", "</think>"};
    for (size_t i = 0; i < AX_COUNT(reasoning); i++)
        if (a->size == strlen(reasoning[i]) && !memcmp(a->content, reasoning[i], a->size))
            return true;
    return !(where & BETWEEN) && (where & INSIDE || !(where & OUTSIDE));
}

typedef struct finder {
    const ax_chat *chat;
    ax_encoder *encoder;
    unsigned char *where; /* [n_added] */
    bool refused;         /* a sample, in all its forms */
    ax_chat_turns turns;
    ax_chat_text text;
    ax_ids ids;
    ax_buf mask;
} finder;

bool chat_is_space(const tok_added *a)
{
    size_t at = 0;
    for (size_t n = 1; at < a->size && n; at += n)
        n = tok_space_prefix(a->content + at, a->size - at);
    return at == a->size;
}

/* Returns true if text of the answer follows part `i` of the answer. */
static bool text_follows(const ax_chat_text *text, size_t i)
{
    const ax_text_part *part = (const void *)text->parts.data;
    const size_t n = text->parts.size / sizeof *part;
    while (i < n && part[i].target && !part[i].plain)
        i++;
    return i < n && part[i].target;
}

/* Notes the added tokens in the text of a sample. */
static ax_status note_tokens(finder *f, const struct sample *s)
{
    const ax_tokenizer *tok = f->chat->tok;
    const ax_text_part *part = (const void *)f->text.parts.data;
    f->ids.size = f->mask.size = 0;
    AX_TRY(ax_chat_encode(f->encoder, &f->text, &f->ids, &f->mask));
    for (size_t i = 0; i < f->ids.size; i++) {
        const size_t at = (size_t)f->text.part.data[i];
        for (size_t k = 0; k < tok->n_added && !part[at].plain; k++)
            if (tok->added[k].id == f->ids.data[i])
                f->where[k] |= !part[at].target             ? s->outside
                               : text_follows(&f->text, at) ? s->before
                                                            : s->after;
    }
    return AX_OK;
}

/* Gives the calls of a record a form. */
static void set_form(json_t *record, int form)
{
    json_t *message, *call;
    size_t i, k;
    json_array_foreach(json_object_get(record, "messages"), i, message)
    {
        json_t *list = json_object_get(message, "tool_calls");
        if (list && form & CONTENT_NULL)
            json_object_set_new(message, "content", json_null());
        json_array_foreach(list, k, call)
        {
            json_t *function = json_object_get(call, "function");
            char *text = form & ARGUMENTS_TEXT ? json_dumps(json_object_get(function, "arguments"), 0) : NULL;
            if (text)
                json_object_set_new(function, "arguments", json_string(text));
            free(text);
        }
    }
}

/* Writes a sample in a form, without learning its answers if these cannot be told. A template may refuse it:
 * *written is not set then. What separates turns is told by prompts: blocks {% generation %} may have it in
 * them. */
static ax_status write_sample(finder *f, const struct sample *s, int form, bool *written)
{
    json_t *record = json_loads(s->record, 0, NULL);
    AX_CHECK(record, AX_ERR_MEMORY, "not enough memory for a conversation");
    set_form(record, form);
    f->turns.n = 0;
    f->text.text.size = f->text.parts.size = 0;
    ax_status status = ax_chat_read(record, NULL, &f->turns);
    if (status == AX_OK)
        status = chat_jinja_render(f->chat, f->chat->own, &f->turns, s->prompt, false, &f->text);
    if (status == AX_ERR_DATA) {
        f->text.text.size = f->text.parts.size = 0;
        for (size_t i = 0; i < f->turns.n; i++)
            f->turns.turn[i].unlearned = true;
        status = chat_jinja_render(f->chat, f->chat->own, &f->turns, s->prompt, false, &f->text);
    }
    if (status == AX_OK)
        status = note_tokens(f, s);
    *written |= status == AX_OK;
    json_decref(record);
    return status == AX_ERR_DATA ? AX_OK : status;
}

/* Writes a sample in all its forms. */
static ax_status write_forms(finder *f, const struct sample *s)
{
    bool written = false;
    for (int form = 0; form < s->forms; form++)
        AX_TRY(write_sample(f, s, form, &written));
    f->refused |= !written && !s->optional;
    return AX_OK;
}

/* Returns true if a token has the form of markup: <...> or [...]. */
static bool looks_like_markup(const tok_added *a)
{
    const char first = a->size > 2 ? a->content[0] : 0, last = a->size > 2 ? a->content[a->size - 1] : 0;
    return (first == '<' && last == '>') || (first == '[' && last == ']');
}

static ax_status find_tokens(ax_chat *chat, finder *f)
{
    const ax_tokenizer *tok = chat->tok;
    AX_TRY(ax_encoder_create(tok, &f->encoder));
    AX_TRY(ax_calloc(tok->n_added, sizeof *f->where, &f->where));
    for (size_t i = 0; i < AX_COUNT(samples); i++)
        AX_TRY(write_forms(f, &samples[i]));
    for (size_t k = 0; k < tok->n_added; k++) {
        const tok_added *a = &tok->added[k];
        if (!f->where[k] && f->refused && chat_jinja_has(chat->own, a->content, a->size))
            f->where[k] = BETWEEN;
        else if (!f->where[k] && looks_like_markup(a) && chat_jinja_writes(chat->own, a->content, a->size))
            f->where[k] = ELSEWHERE;
        if (f->where[k] && !a->special && !chat_is_space(a))
            AX_TRY(ax_ids_add(&chat->guarded[is_said(a, f->where[k])], &a->id, 1));
    }
    return AX_OK;
}

ax_status chat_guard_markup(ax_chat *chat)
{
    finder f = {.chat = chat};
    bool any = false;
    for (size_t k = 0; k < chat->tok->n_added; k++)
        any |= !chat->tok->added[k].special;
    const ax_status status = any ? find_tokens(chat, &f) : AX_OK;
    ax_encoder_destroy(&f.encoder);
    ax_chat_turns_fini(&f.turns);
    ax_chat_text_fini(&f.text);
    ax_ids_fini(&f.ids);
    ax_buf_fini(&f.mask);
    free(f.where);
    return status;
}
