/* The template that a model brings as Jinja: conversations are given to it as transformers gives them, and
 * the answers in what it writes are found. */
#include "chat_templates.h"
#include "token/jinja/jinja.h"
#include "token/tok.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

struct chat_jinja {
    ax_jinja *text, *tools; /* tools: for conversations with tools; NULL: `text` */
    json_t *tokens;         /* bos_token and the like, for the context */
    int64_t now, clock; /* clock: as a clock in this time zone shows it; of a time that is fixed: in UTC */
    bool fixed;         /* by SOURCE_DATE_EPOCH */
    int32_t end;        /* the token that ends an answer; -1: none is known */
    ax_buf closing;     /* what stands between an answer and that token */
    ax_buf fault;       /* how it fails in all sample conversations, if it does not refuse them; or empty */
    ax_buf mute; /* says that it writes no answer, as it writes none of a sample conversation; or empty */
    ax_buf rest; /* what follows an answer in which no token is, without white space before it */
    ax_jinja_text work[4];
    ax_jinja_cuts cuts; /* of the conversation */
};

/* ---- the context --------------------------------------------------------------------------------- */

static ax_status no_memory(void)
{
    return ax_fail(AX_ERR_MEMORY, "not enough memory for the conversation that a chat template reads");
}

/* Sets the members that hold the names of special tokens, as transformers gives them to templates. */
static ax_status read_tokens(const ax_tokenizer *tok, json_t **out)
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
    return *out ? AX_OK : no_memory();
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

static void set_or_null(json_t *context, const char *name, const json_t *value)
{
    if (value)
        json_object_set(context, name, (json_t *)value);
    else
        json_object_set_new(context, name, json_null());
}

/* Makes the context of a conversation. Sets number[i] to the number of turn i's message, counted from 1. */
static ax_status make_context(const chat_jinja *own, const ax_chat_turns *turns, int32_t *number,
                              json_t **out)
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
            return no_memory();
        }
    }
    json_t *context = json_copy(own->tokens);
    json_object_set_new(context, "messages", messages);
    set_or_null(context, "documents", turns->documents);
    set_or_null(context, "tools", turns->tools);
    if (turns->variables)
        json_object_set(context, "chat_template_kwargs", (json_t *)turns->variables);
    *out = context;
    return context ? AX_OK : no_memory();
}

/* Renders the first n messages of a context; with cuts, if they are not NULL. */
static ax_status write_first(const chat_jinja *own, const json_t *context, size_t n, bool prompt,
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
                           : no_memory();
    json_decref(part);
    return status;
}

/* What the template writes for the first messages: `same` bytes of the whole text, and bytes begin to end of
 * another. */
typedef struct written {
    const ax_jinja_text *all, *tail;
    size_t same, begin, end;
    size_t part; /* of the tail: the first one */
} written;

static size_t size_of(const written *text) { return text->same + text->end - text->begin; }

/* Returns byte i. */
static char byte_of(const written *text, size_t i)
{
    return i < text->same ? text->all->text.data[i] : text->tail->text.data[text->begin + i - text->same];
}

/* Finds what the template writes for the first n messages; `work` has its text if it is not known yet. */
static ax_status read_first(const chat_jinja *own, const json_t *context, const ax_jinja_text *all, size_t n,
                            bool prompt, ax_jinja_text *work, written *out)
{
    const ax_jinja_cut *cut =
        n < own->cuts.n && own->cuts.cut[2 * n + prompt].known ? &own->cuts.cut[2 * n + prompt] : NULL;
    if (cut) {
        *out = (written){all, &own->cuts.tails, cut->same, cut->begin, cut->end, cut->part};
        return AX_OK;
    }
    AX_TRY(write_first(own, context, n, prompt, NULL, work));
    *out = (written){all, work, 0, 0, work->text.size, 0};
    return AX_OK;
}

/* ---- where an answer is ---------------------------------------------------------------------------- */

typedef struct range {
    size_t begin, end;
} range;

/* Finds the bytes that come from a message among those from `begin` to `end` of a text, whose first part is
 * `part`: from the first to the last, counted from `at` on. Widens *out, which is empty at first. */
static void find_parts(const ax_jinja_text *text, size_t part, size_t begin, size_t end, size_t at,
                       int32_t from, range *out)
{
    const ax_jinja_part *parts = (const void *)text->parts.data;
    for (size_t last = begin; last < end; last = parts[part++].end)
        if (parts[part].from == from) {
            out->begin = out->end ? out->begin : at + last - begin;
            out->end = at + ax_min(parts[part].end, end) - begin;
        }
}

/* Finds the bytes that come from a message: from the first to the last. Returns false if there are none. */
static bool find_message(const written *text, int32_t from, range *out)
{
    *out = (range){0};
    find_parts(text->all, 0, 0, text->same, 0, from, out);
    find_parts(text->tail, text->part, text->begin, text->end, text->same, from, out);
    return out->end > 0;
}

/* Returns how many bytes two texts have in common from byte i of one and byte k of the other on, up to the
 * end of a character of the first. */
static size_t common(const written *a, size_t i, const written *b, size_t k)
{
    const size_t n = size_of(a), m = size_of(b);
    size_t same = 0;
    if (i == k && i < a->same && i < b->same)
        same = ax_min(a->same, b->same) - i;
    while (i + same < n && k + same < m && byte_of(a, i + same) == byte_of(b, k + same))
        same++;
    while (same && i + same < n && (byte_of(a, i + same) & 0xc0) == 0x80)
        same--;
    return same;
}

/* Returns true if a text begins with another. */
static bool begins(const written *text, const written *prefix)
{
    const size_t n = size_of(prefix), same = ax_min(text->same, prefix->same);
    bool so = size_of(text) >= n;
    if (so && text->same >= n)
        return n == same ||
               !memcmp(text->all->text.data + same, prefix->tail->text.data + prefix->begin, n - same);
    for (size_t i = same; i < n && so; i++)
        so = byte_of(text, i) == byte_of(prefix, i);
    return so;
}

/* Returns the longest added token at the start of n bytes of text; NULL: none is there. */
static const tok_added *token_at(const ax_tokenizer *tok, const char *text, size_t n, size_t *size)
{
    const tok_added *longest = NULL;
    *size = 0;
    for (size_t i = 0; i < tok->n_added; i++) {
        const tok_piece *piece = &tok->pieces[tok->added[i].id];
        if (piece->name_size > *size && piece->name_size <= n &&
            !memcmp(text, tok->bytes.data + piece->name, piece->name_size)) {
            longest = &tok->added[i];
            *size = piece->name_size;
        }
    }
    return longest;
}

/* Returns the length of the first n bytes of a text up to the end of the last added token in them, and of the
 * newlines behind it; 0: no token is in them. */
static size_t up_to_last_token(const ax_tokenizer *tok, const char *text, size_t n)
{
    size_t end = 0;
    for (size_t at = 0, size; at < n; at += ax_max(size, 1))
        if (token_at(tok, text + at, n - at, &size))
            end = at + size;
    while (end && end < n && text[end] == '\n')
        end++;
    return end;
}

/* Returns the first special token in a text, or the first added token if none is special, but for white
 * space; NULL: there is none. *before is the number of bytes before it. The end-of-text token counts as
 * special. */
static const tok_added *first_token(const ax_tokenizer *tok, const char *text, size_t n, size_t *before)
{
    const tok_added *first = NULL;
    for (size_t at = 0, size; at < n; at += ax_max(size, 1)) {
        const tok_added *one = token_at(tok, text + at, n - at, &size);
        const bool special = one && (one->special || one->id == ax_tokenizer_eos(tok));
        if (one && (special || (!first && !chat_is_space(one)))) {
            first = one;
            *before = at;
        }
        if (special)
            break;
    }
    return first;
}

static ax_status refuse(size_t turn, const char *why)
{
    return ax_fail(AX_ERR_DATA,
                   "turn %zu: where the answer is cannot be told, because the model's chat_template %s: mark "
                   "the turn \"weight\": 0 if it is not to be learned, or name a template with --template "
                   "(data.template)",
                   turn, why);
}

/* Fails for an answer whose prompt the template refuses: it gets too few messages. */
static ax_status refuse_before(size_t turn, size_t number)
{
    const ax_status status = ax_error_status();
    ax_buf why = {0};
    if (status != AX_ERR_DATA)
        return status;
    ax_status made = ax_buf_printf(&why, "writes no prompt %s (%s)",
                                   number == 1 ? "without a question before it" : "after the turns before it",
                                   ax_error_message());
    made = made == AX_OK ? refuse(turn, why.data) : made;
    ax_buf_fini(&why);
    return made;
}

/* Finds where the answer of a turn begins in the text of the conversation: behind the prompt for it. If the
 * prompt ends with more than the conversation has there, such as "<think>", behind what both have, but not
 * behind the turn's own first byte: an answer may begin as the rest of the prompt does. */
static ax_status find_begin(chat_jinja *own, const json_t *context, size_t turn, size_t number,
                            const written *all, size_t *begin)
{
    range here;
    written prompt, before;
    if (read_first(own, context, all->all, number - 1, true, &own->work[1], &prompt) != AX_OK)
        return refuse_before(turn, number);
    *begin = size_of(&prompt);
    if (begins(all, &prompt))
        return AX_OK;
    AX_TRY(read_first(own, context, all->all, number - 1, false, &own->work[2], &before));
    const size_t n = size_of(&before);
    if (!begins(all, &before) || !begins(&prompt, &before))
        return refuse(turn, "writes the turns before it otherwise if it follows them");
    *begin = n + common(all, n, &prompt, n);
    if (find_message(all, (int32_t)number, &here) && here.begin >= n && here.begin < *begin)
        *begin = here.begin;
    return *begin > n ? AX_OK : refuse(turn, "begins it otherwise than it begins an answer to be written");
}

/* Finds where the answer of a turn ends, with what closes the turn: where the conversation up to it ends, if
 * it is the same text; else as far behind its last byte as both texts agree, up to a token. */
static ax_status find_end(const ax_tokenizer *tok, chat_jinja *own, const json_t *context, size_t turn,
                          size_t number, const written *all, range *out)
{
    written up_to;
    range here, alone;
    AX_TRY(read_first(own, context, all->all, number, false, &own->work[1], &up_to));
    out->end = size_of(&up_to);
    if (out->end > out->begin && begins(all, &up_to))
        return AX_OK;
    if (!find_message(all, (int32_t)number, &here) || !find_message(&up_to, (int32_t)number, &alone) ||
        here.begin < out->begin)
        return refuse(turn, "writes it otherwise if turns follow it, and nothing of the turn shows where");
    const size_t same = common(all, here.end, &up_to, alone.end);
    const char *rest = all->all->text.data + here.end;
    const size_t closing = same == size_of(&up_to) - alone.end ? same : up_to_last_token(tok, rest, same);
    out->end = here.end + closing;
    return closing ? AX_OK : refuse(turn, "ends it otherwise if turns follow it");
}

/* Finds the answers of a conversation, one after the other. */
static ax_status find_answers(const ax_tokenizer *tok, chat_jinja *own, const ax_chat_turns *turns,
                              const int32_t *number, const json_t *context, const ax_jinja_text *all,
                              ax_buf *answers)
{
    const size_t n = json_array_size(json_object_get(context, "messages"));
    const written whole = {all, all, all->text.size, all->text.size, all->text.size, all->n_parts};
    size_t last = 0;
    for (size_t i = 0; i < turns->n; i++) {
        range one;
        const size_t k = (size_t)number[i];
        if (turns->turn[i].role != AX_CHAT_ASSISTANT || turns->turn[i].unlearned)
            continue;
        AX_TRY(find_begin(own, context, i + 1, k, &whole, &one.begin));
        one.end = all->text.size;
        if (k < n)
            AX_TRY(find_end(tok, own, context, i + 1, k, &whole, &one));
        if (one.begin < last || one.end < one.begin)
            return refuse(i + 1, "writes turns in another order");
        last = one.end;
        AX_TRY(ax_buf_add(answers, &one, sizeof one));
    }
    return AX_OK;
}

/* What is known of each message, by its number. */
typedef struct said {
    size_t turn;                  /* counted from 1 */
    bool answer, learned, speaks; /* speaks: the turn is not empty */
    bool marked;                  /* {% generation %} marks some of it */
    range there;                  /* from the first to the last byte of it in the output; empty: none is */
} said;

static ax_status list_messages(const ax_chat_turns *turns, const int32_t *number, size_t n, said **out)
{
    AX_TRY(ax_calloc(n + 1, sizeof **out, out));
    for (size_t i = 0; i < turns->n; i++) {
        const ax_chat_turn *turn = &turns->turn[i];
        if (turn->role != AX_CHAT_INPUT)
            (*out)[number[i]] = (said){.turn = i + 1,
                                       .answer = turn->role == AX_CHAT_ASSISTANT,
                                       .learned = !turn->unlearned,
                                       .speaks = turn->size || turn->calls || turn->reasoning_size};
    }
    return AX_OK;
}

/* Notes where the text of each message stands in the output. Returns true if text of tools does, or text of
 * which it is not known where it came from. */
static bool note_places(said *message, size_t n, const ax_jinja_text *all)
{
    const ax_jinja_part *part = (const void *)all->parts.data;
    bool other = false;
    for (size_t i = 0, begin = 0; i < all->n_parts; begin = part[i++].end) {
        said *m = part[i].from > 0 && (size_t)part[i].from <= n ? &message[part[i].from] : NULL;
        other |= part[i].from == AX_JINJA_OTHER;
        if (m) {
            m->there = (range){m->there.end ? m->there.begin : begin, part[i].end};
            m->marked |= part[i].marked;
        }
    }
    return other;
}

/* Returns true if answers are to be learned, and nothing of any of them stands in the output. */
static bool lacks_answers(const said *message, size_t n)
{
    bool learned = false, there = false;
    for (size_t i = 1; i <= n; i++) {
        const bool counts = message[i].answer && message[i].learned && message[i].speaks;
        learned |= counts;
        there |= counts && message[i].there.end;
    }
    return learned && !there;
}

/* Fails if the text of an answer that is to be learned stands in the output, and nothing of it is marked: the
 * template marks some answers only. */
static ax_status check_marked(const said *message, size_t n)
{
    for (size_t i = 1; i <= n; i++)
        AX_CHECK(
            !message[i].answer || !message[i].learned || !message[i].speaks || !message[i].there.end ||
                message[i].marked,
            AX_ERR_DATA,
            "turn %zu: the model's chat_template marks answers with {%% generation %%}, but nothing of this "
            "one: mark the turn \"weight\": 0 if it is not to be learned, or name a template with "
            "--template (data.template)",
            message[i].turn);
    return AX_OK;
}

/* Finds the answers that {% generation %} marks. A block belongs to the turn whose text it has. */
static ax_status find_marked(const said *message, size_t n, const ax_jinja_text *all, ax_buf *answers)
{
    const ax_jinja_part *part = (const void *)all->parts.data;
    bool all_learned = true;
    for (size_t i = 1; i <= n; i++)
        all_learned &= !message[i].answer || message[i].learned;
    for (size_t i = 0, begin = 0; i < all->n_parts;) {
        range one = {begin, begin};
        bool learned = all_learned, known = all_learned;
        const bool marked = part[i].marked;
        for (; i < all->n_parts && part[i].marked == marked; i++) {
            one.end = part[i].end;
            if (!known && part[i].from > 0 && (size_t)part[i].from <= n) {
                known = true;
                learned = message[part[i].from].learned;
            }
        }
        begin = one.end;
        if (marked && !known)
            return ax_fail(
                AX_ERR_DATA,
                "which turns are learned cannot be told, because the model's chat_template marks a "
                "text of which no turn is known: learn all turns of the assistant, or name a "
                "template with --template (data.template)");
        if (marked && learned)
            AX_TRY(ax_buf_add(answers, &one, sizeof one));
    }
    return check_marked(message, n);
}

/* ---- what is lost ---------------------------------------------------------------------------------- */

static bool has(const char *text, size_t n, const char *what, size_t size)
{
    return memmem(text, n, what, size);
}

/* Returns true if the content of a turn is a list of parts, and stands as such in n bytes of the output. */
static bool has_list(const ax_chat_turn *turn, const char *there, size_t n)
{
    static const char *const marks[] = {"'type': 'text'", "\"type\": \"text\"", "\"type\":\"text\""};
    bool found = false;
    if (!json_is_array(json_object_get(turn->message, "content")))
        return false;
    for (size_t i = 0; i < AX_COUNT(marks); i++)
        found |= has(there, n, marks[i], strlen(marks[i])) &&
                 !has(turn->text, turn->size, marks[i], strlen(marks[i]));
    return found;
}

/* Returns what the template has left out or garbled of a turn, as a phrase; NULL: nothing that is noticed.
 * `known`: all text of messages in the output is known to be theirs. Reasoning may be left out: many
 * templates drop that of earlier turns. */
static const char *lost_of_turn(const ax_chat_turn *turn, const said *m, const ax_jinja_text *all, bool known)
{
    const char *there = all->text.data + m->there.begin, *text = turn->text, *end = text + turn->size;
    const size_t size = m->there.end - m->there.begin;
    if (size && has_list(turn, there, size))
        return "the template writes the list of its parts, not their text";
    if (size && !turn->calls)
        return NULL;
    while (text < end && strchr(" \t\r\n", *text))
        text++;
    const bool optional = text == end || has(text, (size_t)(end - text), "</think>", 8);
    size_t n = 0; /* its first bytes that are the same in JSON and HTML, and if the text is stripped */
    while (text + n < end && (unsigned char)text[n] >= ' ' && !strchr("\"\\'<>&", text[n]))
        n++;
    while (n && text[n - 1] == ' ')
        n--;
    if (size)
        return optional || !n || has(there, size, text, n)
                   ? NULL
                   : "the template writes its calls, but not its text";
    return !known || (optional && !turn->calls) || (n && has(all->text.data, all->text.size, text, n))
               ? NULL
               : "nothing of it is in what the template writes";
}

/* Returns true if the template reads all variables that the conversation gives it. */
static bool reads_variables(const chat_jinja *own, const ax_chat_turns *turns)
{
    const char *name;
    json_t *value;
    bool all = true;
    json_object_foreach((json_t *)turns->variables, name, value)
    {
        all &= chat_jinja_reads(own, turns, name);
    }
    return all;
}

/* Notes the first thing that the template has left out or garbled. */
static void find_lost(const chat_jinja *own, const ax_chat_turns *turns, const int32_t *number,
                      const said *message, const ax_jinja_text *all, bool other, ax_chat_text *out)
{
    if (turns->documents && !chat_jinja_reads(own, turns, "documents"))
        out->lost = "the template does not read its documents";
    else if (!reads_variables(own, turns))
        out->lost = "the template reads no variable of a name in its chat_template_kwargs";
    const bool tools = json_array_size(turns->tools) > 0;
    if (tools && !other && !out->lost)
        out->lost = "nothing of its tools is in what the template writes";
    for (size_t i = 0; i < turns->n && !out->lost; i++)
        if (turns->turn[i].role != AX_CHAT_INPUT) {
            out->lost = lost_of_turn(&turns->turn[i], &message[number[i]], all, tools || !other);
            out->lost_turn = out->lost ? i + 1 : 0;
        }
}

/* Returns the kind of text that comes from `from`. */
static int kind_of(const said *message, size_t n, int32_t from)
{
    const bool answer = from > 0 && (size_t)from <= n && message[from].answer;
    return from == AX_JINJA_TEMPLATE ? 0 : answer ? CHAT_PLAIN : CHAT_PLAIN | CHAT_STRICT;
}

/* Lists the parts of a text, which are targets where answers are. */
static ax_status take_parts(const ax_jinja_text *all, const ax_buf *answers, const said *message,
                            size_t n_messages, ax_chat_text *out)
{
    const ax_jinja_part *part = (const void *)all->parts.data;
    const range *answer = (const void *)answers->data;
    const size_t n = answers->size / sizeof *answer;
    for (size_t i = 0, k = 0, begin = 0; i < all->n_parts;) {
        while (k < n && answer[k].end <= begin)
            k++;
        const bool target = k < n && answer[k].begin <= begin;
        size_t end = part[i].end;
        if (k < n && answer[k].begin > begin && answer[k].begin < end)
            end = answer[k].begin;
        if (target && answer[k].end < end)
            end = answer[k].end;
        if (end > begin)
            AX_TRY(chat_end_part(out, end,
                                 kind_of(message, n_messages, part[i].from) | (target ? CHAT_TARGET : 0)));
        i += end == part[i].end;
        begin = end;
    }
    return AX_OK;
}

/* Wants the texts of the first messages that tell where answers are. */
static ax_status want_cuts(const said *message, size_t n, ax_jinja_cuts *cuts)
{
    cuts->n = n;
    AX_TRY(ax_calloc(2 * n + 1, sizeof *cuts->cut, &cuts->cut));
    for (size_t i = 1; i <= n; i++) {
        if (!message[i].answer || !message[i].learned)
            continue;
        cuts->cut[2 * (i - 1)].spare = !cuts->cut[2 * (i - 1)].wanted;
        cuts->cut[2 * (i - 1)].wanted = cuts->cut[2 * (i - 1) + 1].wanted = true;
        if (i < n)
            cuts->cut[2 * i].wanted = true;
    }
    return AX_OK;
}

static ax_status render(const ax_tokenizer *tok, chat_jinja *own, const ax_chat_turns *turns, bool prompt,
                        bool marks, const int32_t *number, const json_t *context, ax_chat_text *out)
{
    ax_jinja_text *all = &own->work[0];
    ax_buf answers = {0};
    said *message = NULL;
    const size_t n = json_array_size(json_object_get(context, "messages"));
    marks = marks && ax_jinja_marks(own->tools && turns->tools ? own->tools : own->text);
    ax_status status = list_messages(turns, number, n, &message);
    if (status == AX_OK && !prompt && !marks)
        status = want_cuts(message, n, &own->cuts);
    if (status == AX_OK)
        status = write_first(own, context, n, prompt, own->cuts.cut ? &own->cuts : NULL, all);
    if (status == AX_OK && !all->text.size)
        status = ax_fail(AX_ERR_DATA, "the model's chat_template writes nothing for the conversation");
    const bool other = status == AX_OK && note_places(message, n, all);
    if (status == AX_OK && !prompt && own->mute.size && !other && lacks_answers(message, n))
        status = ax_fail(AX_ERR_DATA, "%s", own->mute.data);
    if (status == AX_OK)
        find_lost(own, turns, number, message, all, other, out);
    if (status == AX_OK && !prompt)
        status = marks && !all->lost ? find_marked(message, n, all, &answers)
                                     : find_answers(tok, own, turns, number, context, all, &answers);
    if (status == AX_OK)
        status = take_parts(all, &answers, message, n, out);
    ax_buf_fini(&answers);
    free(message);
    return status;
}

ax_status chat_jinja_render(const ax_chat *chat, const chat_jinja *text, const ax_chat_turns *turns,
                            bool prompt, bool marks, ax_chat_text *out)
{
    json_t *context = NULL;
    int32_t *number;
    chat_jinja own = *text; /* the texts of this call are its own: threads share `chat` */
    AX_TRY(ax_calloc(turns->n + 1, sizeof *number, &number));
    memset(own.work, 0, sizeof own.work);
    own.work[0].memory = out->joined;
    own.work[0].text = out->text;
    out->joined = out->text = (ax_buf){0};
    ax_status status = make_context(&own, turns, number, &context);
    if (status == AX_OK)
        status = render(chat->tok, &own, turns, prompt, marks, number, context, out);
    out->joined = own.work[0].memory;
    out->text = own.work[0].text;
    if (status != AX_OK)
        out->text.size = out->parts.size = 0;
    own.work[0].memory = own.work[0].text = (ax_buf){0};
    for (size_t i = 0; i < AX_COUNT(own.work); i++)
        ax_jinja_text_fini(&own.work[i]);
    ax_jinja_text_fini(&own.cuts.tails);
    free(own.cuts.cut);
    json_decref(context);
    free(number);
    return status;
}

/* ---- creation ---------------------------------------------------------------------------------------- */

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
    set_or_null(context, "tools", NULL);
    set_or_null(context, "documents", NULL);
    const json_t *messages = json_object_get(sample, "messages");
    const ax_status status =
        messages && !json_object_update(context, sample)
            ? write_first(own, context, json_array_size(messages), false, NULL, &own->work[0])
            : no_memory();
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
    range at;
    const ax_status status = write_sample(own, AX_COUNT(samples) - 1);
    if (status != AX_OK)
        return status == AX_ERR_DATA ? AX_OK : status;
    const written whole = {text, text, text->text.size, text->text.size, text->text.size, text->n_parts};
    return find_message(&whole, 2, &at)
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
    range at;
    own->end = ax_tokenizer_eos(tok);
    AX_TRY(make_context(own, &(ax_chat_turns){.turn = turn, .n = AX_COUNT(turn)}, number, &context));
    const ax_status status = write_first(own, context, AX_COUNT(turn), false, NULL, text);
    json_decref(context);
    const written whole = {text, text, text->text.size, text->text.size, text->text.size, text->n_parts};
    if (status == AX_ERR_MEMORY || text->own_fault)
        return status;
    AX_CHECK(status != AX_OK || text->text.size, AX_ERR_DATA, "%s: the template writes nothing", where);
    AX_CHECK(status != AX_OK || !is_blank(text), AX_ERR_DATA, "%s: the template writes only white space",
             where);
    if (status != AX_OK)
        return find_fault(own);
    if (!find_message(&whole, 2, &at)) {
        return find_message(&whole, AX_JINJA_OTHER, &at) ? AX_OK : find_mute(where, own);
    }
    const char *rest = text->text.data + at.end;
    size_t n = 0;
    const tok_added *end = first_token(tok, rest, text->text.size - at.end, &n);
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
        status = read_tokens(tok, &own->tokens);
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
