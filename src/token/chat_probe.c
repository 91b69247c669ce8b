/* A template that a model brings is created: short conversations show how it ends answers, and whether it
 * fails whatever it is given. Read chat_own.h first. */
#include "chat_own.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

static bool is_blank(const ax_jinja_text *text)
{
    size_t i = 0;
    while (i < text->text.size && strchr(" \t\r\n", text->text.data[i]))
        i++;
    return i == text->text.size;
}

/* Short conversations that differ in what templates ask for. The last one has contents that are lists. */
static const char *const samples[] = {
    "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": "
    "\"b\"}]}",
    "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"a\"}, "
    "{\"role\": \"assistant\", \"content\": \"b\"}, {\"role\": \"user\", \"content\": \"c\"}, {\"role\": "
    "\"assistant\", \"content\": \"d\"}]}",
    "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}]}, {\"role\": "
    "\"assistant\", \"content\": [{\"type\": \"text\", \"text\": \"b\"}]}], \"tools\": [{\"type\": "
    "\"function\", \"function\": {\"name\": \"f\"}}], \"documents\": [{\"title\": \"t\", \"text\": \"x\"}]}"};

/* Writes sample i into own->work[0]. */
static ax_status write_sample(chat_jinja *own, size_t i)
{
    json_t *context = json_copy(own->tokens), *sample = json_loads(samples[i], 0, NULL);
    chat_set_or_null(context, "tools", NULL);
    chat_set_or_null(context, "documents", NULL);
    const json_t *messages = json_object_get(sample, "messages");
    const ax_status status =
        messages && !json_object_update(context, sample)
            ? chat_write_first(own, context, json_array_size(messages), false, NULL, &own->work[0])
            : chat_no_memory();
    json_decref(sample);
    json_decref(context);
    return status;
}

/* Notes if the template fails in each sample at the same place in the same way. That is no fault of a record
 * that fails so too. */
static ax_status find_fault(chat_jinja *own)
{
    bool same = true;
    for (size_t i = 0; i < AX_COUNT(samples) && same; i++) {
        const ax_status status = write_sample(own, i);
        if (status != AX_OK && status != AX_ERR_DATA)
            return status;
        same = status == AX_ERR_DATA && !strstr(ax_error_message(), AX_JINJA_REFUSES) &&
               (!own->fault.size || !strcmp(own->fault.data, ax_error_message()));
        if (same && !own->fault.size)
            AX_TRY(ax_buf_printf(&own->fault, "%s", ax_error_message()));
    }
    own->fault.size = same ? own->fault.size : 0;
    return AX_OK;
}

/* Notes if the template, which has written no answer that is a string, writes none that is a list either. */
static ax_status find_mute(const char *where, chat_jinja *own)
{
    const ax_jinja_text *text = &own->work[0];
    chat_range at;
    const ax_status status = write_sample(own, AX_COUNT(samples) - 1);
    if (status != AX_OK)
        return status == AX_ERR_DATA ? AX_OK : status;
    const chat_written whole = chat_whole(text);
    return chat_find_message(&whole, 2, &at)
               ? AX_OK
               : ax_buf_printf(&own->mute,
                               "%s: the template writes nothing of answers, which are to be learned", where);
}

/* Finds the token that ends an answer, and what stands before it, from a short conversation. A template that
 * refuses this conversation ends answers with the end-of-text token. AX_ERR_DATA: the template is at fault
 * whatever the conversation. `where`: its place, for messages. */
static ax_status find_closing(const ax_tokenizer *tok, const char *where, chat_jinja *own)
{
    static const char answer[] = "Answer.";
    ax_chat_turn turn[] = {{.role = AX_CHAT_USER, .text = "Question?", .size = 9},
                           {.role = AX_CHAT_ASSISTANT, .text = answer, .size = sizeof answer - 1}};
    int32_t number[AX_COUNT(turn)];
    json_t *context;
    ax_jinja_text *text = &own->work[0];
    chat_range at;
    own->end = ax_tokenizer_eos(tok);
    AX_TRY(chat_make_context(own, &(ax_chat_turns){.turn = turn, .n = AX_COUNT(turn)}, number, &context));
    const ax_status status = chat_write_first(own, context, AX_COUNT(turn), false, NULL, text);
    json_decref(context);
    const chat_written whole = chat_whole(text);
    if (status == AX_ERR_MEMORY || text->own_fault)
        return status;
    AX_CHECK(status != AX_OK || text->text.size, AX_ERR_DATA, "%s: the template writes nothing", where);
    AX_CHECK(status != AX_OK || !is_blank(text), AX_ERR_DATA, "%s: the template writes only white space",
             where);
    if (status != AX_OK)
        return find_fault(own);
    if (!chat_find_message(&whole, 2, &at))
        return chat_find_message(&whole, AX_JINJA_OTHER, &at) ? AX_OK : find_mute(where, own);
    const char *rest = text->text.data + at.end;
    size_t n = 0;
    const tok_added *end = chat_first_token(tok, rest, text->text.size - at.end, &n);
    if (!end)
        return ax_buf_printf(&own->rest, "%s", rest + strspn(rest, " \n"));
    own->end = end->id;
    return ax_buf_add(&own->closing, rest, n);
}

static bool asks_date(const chat_jinja *own)
{
    return ax_jinja_asks_date(own->text) || (own->tools && ax_jinja_asks_date(own->tools));
}

/* Sets the time that the template writes. */
static ax_status read_time(chat_jinja *own)
{
    const char *epoch = getenv("SOURCE_DATE_EPOCH");
    char *end = NULL;
    struct tm local;
    const time_t now = time(NULL);
    own->fixed = epoch && *epoch && asks_date(own);
    own->now = own->fixed ? strtoll(epoch, &end, 10) : (int64_t)now;
    own->clock = own->now + (!own->fixed && localtime_r(&now, &local) ? local.tm_gmtoff : 0);
    AX_CHECK(
        !own->fixed || (!*end && own->now >= 0 && own->now < INT64_C(253402300800)), AX_ERR_USAGE,
        "the environment variable SOURCE_DATE_EPOCH, whose date chat templates write, is \"%s\", but must be "
        "a number of seconds since 1970: date -ud 2026-01-31 +%%s prints one",
        epoch);
    return AX_OK;
}

ax_status chat_jinja_create(const ax_tokenizer *tok, chat_source text, chat_source tools, chat_jinja **out)
{
    chat_jinja *own;
    AX_TRY(ax_calloc(1, sizeof *own, &own));
    ax_status status = ax_jinja_parse(text.where, text.text, strlen(text.text), &own->text);
    if (status == AX_OK && tools.text)
        status = ax_jinja_parse(tools.where, tools.text, strlen(tools.text), &own->tools);
    if (status == AX_OK)
        status = read_time(own);
    if (status == AX_OK)
        status = chat_read_tokens(tok, &own->tokens);
    if (status == AX_OK)
        status = find_closing(tok, text.where, own);
    ax_jinja_text_fini(&own->work[0]);
    if (status != AX_OK)
        chat_jinja_destroy(&own);
    *out = own;
    return status;
}

void chat_jinja_destroy(chat_jinja **jinja)
{
    chat_jinja *own = *jinja;
    if (!own)
        return;
    ax_jinja_destroy(&own->text);
    ax_jinja_destroy(&own->tools);
    json_decref(own->tokens);
    ax_buf_fini(&own->closing);
    ax_buf_fini(&own->rest);
    ax_buf_fini(&own->fault);
    ax_buf_fini(&own->mute);
    free(own);
    *jinja = NULL;
}

bool chat_jinja_reads(const chat_jinja *own, const ax_chat_turns *turns, const char *name)
{
    return ax_jinja_reads(own->tools && turns->tools ? own->tools : own->text, name);
}

bool chat_jinja_writes(const chat_jinja *own, const char *text, size_t size)
{
    return ax_jinja_writes(own->text, text, size) || (own->tools && ax_jinja_writes(own->tools, text, size));
}

bool chat_jinja_has(const chat_jinja *own, const char *text, size_t size)
{
    return ax_jinja_has(own->text, text, size) || (own->tools && ax_jinja_has(own->tools, text, size));
}

const char *chat_jinja_fault(const chat_jinja *own, const char *message)
{
    const ax_buf *known[] = {&own->fault, &own->mute};
    for (size_t i = 0; i < AX_COUNT(known); i++)
        if (known[i]->size && !strcmp(known[i]->data, message))
            return known[i]->data;
    return NULL;
}

int32_t chat_jinja_end(const chat_jinja *own) { return own->end; }

const char *chat_jinja_rest(const chat_jinja *own) { return own->rest.size ? own->rest.data : ""; }

void chat_jinja_answer(const chat_jinja *own, const char *text, size_t *size)
{
    const size_t n = own->closing.size;
    if (n && *size >= n && !memcmp(text + *size - n, own->closing.data, n))
        *size -= n;
}

int64_t chat_jinja_date(const chat_jinja *own, bool *fixed)
{
    *fixed = own->fixed;
    return asks_date(own) ? own->now : -1;
}

ax_status chat_jinja_describe(const chat_jinja *own, const char *name, ax_buf *out)
{
    char date[128] = "";
    struct tm when;
    const time_t clock = (time_t)own->clock;
    if (asks_date(own) && gmtime_r(&clock, &when))
        strftime(date, sizeof date, ", which can write the date (%d %b %Y; SOURCE_DATE_EPOCH sets another)",
                 &when);
    return ax_buf_printf(out, "the tokenizer's own chat_template%s%s, run as it is%s", name ? " " : "",
                         name ? name : "", date);
}

uint64_t chat_jinja_hash(const char *text, const char *tools)
{
    const uint64_t hash = XXH3_64bits(text, strlen(text));
    return tools ? XXH3_64bits_withSeed(tools, strlen(tools), hash) : hash;
}
