#include "prompts.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* What is sent of a prompt: the numbers of HEAD, its ids, and for each sample 1 if it is done, else 0. */
enum { IDS, MAX_TOKENS, SAMPLES, UNTIL, CHAT, HEAD };

enum { MOST_SAMPLES = 1000000, MOST_TOKENS = 1 << 24 };

static const char *const reads[] = {"prompt", "tokens", "messages", "until", "max_tokens", "samples", NULL};
static const char *const writes[] = {"sample", "text", "finish", NULL};

/* ---- one prompt ---------------------------------------------------------------------------------- */

/* The prompt that is being read. */
typedef struct reader {
    const prompt_source *source;
    prompt_list *list;
    const cli_record *record;
    ax_encoder *encoder; /* NULL: the model has no tokenizer */
    ax_ids ids;
    bool told, warned; /* which template is used; of what it leaves out */
} reader;

#define FAULT(r, ...) cli_records_fault(&(r)->list->records, (r)->record->line, __VA_ARGS__)

static ax_status read_text(reader *r, const json_t *value)
{
    const size_t n = json_string_length(value);
    const int64_t end = r->source->model->identity.eos;
    if (!json_is_string(value))
        return FAULT(r, "\"prompt\" must be a string");
    if (!r->encoder)
        return FAULT(r, "the model has no tokenizer.json: give \"tokens\" in place of \"prompt\"");
    if (n)
        return ax_encode(r->encoder, json_string_value(value), n, AX_ENCODE_ADD_SPECIAL, &r->ids);
    if (end < 0 || end >= r->source->model->config.vocab)
        return FAULT(r, "the prompt is empty, and the model has no end-of-text token to start from");
    return ax_ids_add(&r->ids, &(int32_t){(int32_t)end}, 1);
}

static ax_status read_ids(reader *r, const json_t *value)
{
    const int64_t vocab = r->source->model->config.vocab;
    if (!json_is_array(value) || !json_array_size(value))
        return FAULT(r, "\"tokens\" must be a list of token ids");
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *item = json_array_get(value, i);
        const json_int_t id = json_is_integer(item) ? json_integer_value(item) : -1;
        if (id < 0 || id >= vocab)
            return FAULT(r,
                         "\"tokens\": number %zu (from 0) is not an id of the model's vocabulary, 0 to %lld",
                         i, (long long)vocab - 1);
        AX_TRY(ax_ids_add(&r->ids, &(int32_t){(int32_t)id}, 1));
    }
    return AX_OK;
}

void cli_log_template(const ax_chat *template)
{
    if (ax_chat_origin(template))
        ax_log(AX_LOG_INFO, "template %s, %s", ax_chat_name(template), ax_chat_origin(template));
    if (ax_chat_doubt(template))
        ax_log(AX_LOG_WARN, "%s", ax_chat_doubt(template));
}

void cli_warn_lost(const ax_chat_text *text, const char *where, int64_t line, bool *warned)
{
    char at[32] = "", turn[32] = "";
    if (!text->lost || *warned)
        return;
    *warned = true;
    if (line)
        snprintf(at, sizeof at, ":%lld", (long long)line);
    if (text->lost_turn)
        snprintf(turn, sizeof turn, "turn %zu: ", text->lost_turn);
    ax_log(
        AX_LOG_WARN,
        "%s%s: the model's chat_template loses something, as with transformers: %s%s (further ones are not "
        "told)",
        where, at, turn, text->lost);
}

/* Makes the conversation of a record: its messages, and what else stands beside them there. */
static json_t *join_conversation(const json_t *record, const json_t *messages)
{
    static const char *const beside[] = {"tools", "documents", "chat_template_kwargs"};
    json_t *out = json_is_object(messages) ? json_copy((json_t *)messages) : json_object();
    if (!json_is_object(messages))
        json_object_set(out, "messages", (json_t *)messages);
    for (size_t i = 0; i < AX_COUNT(beside); i++) {
        json_t *one = json_object_get(record, beside[i]);
        if (one)
            json_object_set(out, beside[i], one);
    }
    return out;
}

static ax_status read_messages(reader *r, const json_t *value)
{
    json_t *conversation = NULL;
    ax_chat_turns turns = {0};
    ax_chat_text text = {0};
    ax_buf mask = {0};
    if (!r->encoder)
        return FAULT(r, "the model has no tokenizer.json: give \"tokens\" in place of \"messages\"");
    if (!r->source->template)
        return FAULT(r, "\"messages\" need a template, and none is known for the model: give --template");
    if (!r->told)
        cli_log_template(r->source->template);
    r->told = true;
    conversation = join_conversation(r->record->object, value);
    ax_status status = ax_chat_read(conversation, r->source->ignore, &turns);
    turns.record = r->record->object;
    if (status == AX_OK)
        status = ax_chat_render(r->source->template, &turns, true, &text);
    if (status == AX_OK)
        cli_warn_lost(&text, r->source->path, r->record->line, &r->warned);
    if (status == AX_OK)
        status = ax_chat_encode(r->encoder, &text, &r->ids, &mask);
    if (status == AX_ERR_DATA)
        status = FAULT(r, "%s", ax_error_message());
    ax_chat_turns_fini(&turns);
    ax_chat_text_fini(&text);
    ax_buf_fini(&mask);
    json_decref(conversation);
    return status;
}

/* Sets r->ids to the tokens of the record's prompt; they stay empty if something is wrong with it. */
static ax_status read_prompt(reader *r)
{
    static ax_status (*const read[])(reader *, const json_t *) = {read_text, read_ids, read_messages};
    const int64_t positions = ax_model_config_positions(&r->source->model->config);
    size_t given = 0, which = 0;
    r->ids.size = 0;
    for (size_t i = 0; i < AX_COUNT(read); i++)
        if (json_object_get(r->record->object, reads[i]))
            given++, which = i;
    if (given != 1)
        return FAULT(r, "one of \"prompt\", \"tokens\" and \"messages\" must be there, not %zu", given);
    AX_TRY(read[which](r, json_object_get(r->record->object, reads[which])));
    for (size_t i = 0; i < r->ids.size; i++)
        if (r->ids.data[i] >= r->source->model->config.vocab)
            return FAULT(r,
                         "a token of the prompt has the id %d, but the model's vocabulary has the ids 0 to "
                         "%lld: use the model's own tokenizer",
                         r->ids.data[i], (long long)r->source->model->config.vocab - 1);
    if ((int64_t)r->ids.size >= positions)
        return FAULT(r, "a prompt of %zu tokens leaves no room in the model's %lld positions: shorten it",
                     r->ids.size, (long long)positions);
    return AX_OK;
}

/* Sets *out to a member that is an integer from 1 to `most`, or leaves it. */
static ax_status read_count(reader *r, const char *name, int64_t most, int32_t *out)
{
    const json_t *value = json_object_get(r->record->object, name);
    if (!value)
        return AX_OK;
    if (!json_is_integer(value) || json_integer_value(value) < 1 || json_integer_value(value) > most)
        return FAULT(r, "\"%s\" must be an integer from 1 to %lld", name, (long long)most);
    *out = (int32_t)json_integer_value(value);
    return AX_OK;
}

/* Appends the strings that end the text, and sets *count to their number, or to -1 if the record has none. */
static ax_status read_until(reader *r, int32_t *count)
{
    const json_t *value = json_object_get(r->record->object, "until");
    const size_t n = json_is_array(value) ? json_array_size(value) : 1;
    *count = value ? (int32_t)n : -1;
    if (value && !r->encoder)
        return FAULT(r, "the model has no tokenizer.json, and \"until\" needs the text");
    for (size_t i = 0; value && i < n; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        if (!json_is_string(item) || !json_string_length(item))
            return FAULT(r, "\"until\" must be a string that is not empty, or a list of them");
        AX_TRY(ax_buf_add(&r->list->texts, json_string_value(item), json_string_length(item) + 1));
    }
    return AX_OK;
}

static ax_status add_prompt(reader *r)
{
    int32_t head[HEAD] = {0}, none = 0;
    head[SAMPLES] = (int32_t)r->source->samples;
    AX_TRY(read_prompt(r));
    AX_TRY(read_count(r, "max_tokens", MOST_TOKENS, &head[MAX_TOKENS]));
    AX_TRY(read_count(r, "samples", MOST_SAMPLES, &head[SAMPLES]));
    AX_TRY(read_until(r, &head[UNTIL]));
    head[IDS] = (int32_t)r->ids.size;
    head[CHAT] = json_object_get(r->record->object, "messages") != NULL;
    r->list->first[r->list->n++] = r->list->sent.size;
    r->list->texts_wanted += head[SAMPLES];
    AX_TRY(ax_ids_add(&r->list->sent, head, HEAD));
    AX_TRY(ax_ids_add(&r->list->sent, r->ids.data, r->ids.size));
    for (int32_t i = 0; i < head[SAMPLES]; i++)
        AX_TRY(ax_ids_add(&r->list->sent, &none, 1));
    return AX_OK;
}

ax_status prompts_read(const prompt_source *source, prompt_list *out)
{
    reader r = {.source = source, .list = out};
    AX_TRY(cli_records_read(source->path, true, reads, writes, &out->records));
    AX_TRY(ax_calloc(out->records.n + 1, sizeof *out->first, &out->first));
    ax_status status =
        source->model->tokenizer ? ax_encoder_create(source->model->tokenizer, &r.encoder) : AX_OK;
    for (size_t i = 0; i < out->records.n && status == AX_OK; i++) {
        r.record = &out->records.record[i];
        status = add_prompt(&r);
    }
    ax_encoder_destroy(&r.encoder);
    ax_ids_fini(&r.ids);
    return status == AX_OK ? cli_records_check(&out->records) : status;
}

/* ---- all prompts --------------------------------------------------------------------------------- */

void prompts_hash(const prompt_list *p, char out[17])
{
    uint64_t hash = XXH3_64bits(p->sent.data, p->sent.size * sizeof *p->sent.data);
    hash = XXH3_64bits_withSeed(p->texts.data ? p->texts.data : "", p->texts.size, hash);
    for (size_t i = 0; i < p->records.n; i++) {
        const cli_record *record = &p->records.record[i];
        hash = XXH3_64bits_withSeed(record->id, strlen(record->id) + 1, hash);
        hash = XXH3_64bits_withSeed(record->rest, strlen(record->rest) + 1, hash);
    }
    snprintf(out, 17, "%016llx", (unsigned long long)hash);
}

bool prompts_mark(prompt_list *p, size_t prompt, int64_t sample)
{
    int32_t *head = p->sent.data + p->first[prompt], *done = head + HEAD + head[IDS];
    if (sample < 0 || sample >= head[SAMPLES] || done[sample])
        return false;
    done[sample] = 1;
    p->texts_done++;
    return true;
}

/* Sends bytes of rank 0 to all ranks. `bytes` holds *size of them on rank 0, and has room for them elsewhere.
 */
static ax_status send_bytes(ax_comm *world, void *bytes, int64_t size)
{
    ax_work *work;
    if (!size)
        return AX_OK;
    AX_TRY(ax_broadcast(world, NULL, bytes, size, AX_U8, 0, &work));
    return ax_wait(&work);
}

/* Makes the list of prompts that p->sent and p->texts describe. */
static ax_status list_prompts(prompt_list *p, const ax_chat *template)
{
    const char *text = p->texts.data;
    const int32_t *at = p->sent.data;
    bool *done = p->done;
    for (size_t i = 0; i < p->n; i++) {
        const int32_t *head = at;
        ax_prompt *prompt = &p->prompt[i];
        for (int32_t k = 0; k < head[UNTIL]; k++, text += strlen(text) + 1)
            AX_TRY(ax_strings_add(&p->until[i], "%s", text));
        *prompt = (ax_prompt){.ids = head + HEAD,
                              .n = (size_t)head[IDS],
                              .max_tokens = head[MAX_TOKENS],
                              .until = head[UNTIL] < 0 ? NULL : &p->until[i],
                              .chat = head[CHAT] ? template : NULL,
                              .samples = head[SAMPLES],
                              .done = done};
        at = head + HEAD + head[IDS];
        for (int32_t k = 0; k < head[SAMPLES]; k++)
            *done++ = *at++;
    }
    return AX_OK;
}

ax_status prompts_share(ax_comm *world, const ax_chat *template, prompt_list *p)
{
    int64_t sizes[] = {(int64_t)p->n, (int64_t)p->sent.size, (int64_t)p->texts.size, p->texts_wanted,
                       p->texts_done};
    AX_TRY(send_bytes(world, sizes, sizeof sizes));
    p->n = (size_t)sizes[0];
    p->texts_wanted = sizes[3];
    p->texts_done = sizes[4];
    if (ax_comm_rank(world) != 0) {
        AX_TRY(ax_calloc((size_t)sizes[1], sizeof *p->sent.data, &p->sent.data));
        p->sent.size = (size_t)sizes[1];
        AX_TRY(ax_buf_reserve(&p->texts, (size_t)sizes[2]));
        p->texts.size = (size_t)sizes[2];
    }
    AX_TRY(ax_calloc(p->n, sizeof *p->prompt, &p->prompt));
    AX_TRY(ax_calloc(p->n, sizeof *p->until, &p->until));
    AX_TRY(ax_calloc((size_t)p->texts_wanted, sizeof *p->done, &p->done));
    AX_TRY(send_bytes(world, p->sent.data, sizes[1] * (int64_t)sizeof *p->sent.data));
    AX_TRY(send_bytes(world, p->texts.data, sizes[2]));
    return list_prompts(p, template);
}

void prompts_fini(prompt_list *p)
{
    for (size_t i = 0; i < p->n && p->until; i++)
        ax_strings_fini(&p->until[i]);
    cli_records_fini(&p->records);
    ax_ids_fini(&p->sent);
    ax_buf_fini(&p->texts);
    free(p->prompt), free(p->first), free(p->done), free(p->until);
    *p = (prompt_list){0};
}
