/* The answers in what the template that a model brings writes, and what it leaves out. Read chat_own.h first.
 */
#include "chat_own.h"

#include <stdlib.h>
#include <string.h>

/* ---- where an answer is ---------------------------------------------------------------------------- */

static size_t size_of(const chat_written *text) { return text->same + text->end - text->begin; }

/* Returns byte i. */
static char byte_of(const chat_written *text, size_t i)
{
    return i < text->same ? text->all->text.data[i] : text->tail->text.data[text->begin + i - text->same];
}

/* Finds the bytes that come from a message among those from `begin` to `end` of a text, whose first part is
 * `part`: from the first to the last, counted from `at` on. Widens *out, which is empty at first. */
static void find_parts(const ax_jinja_text *text, size_t part, size_t begin, size_t end, size_t at,
                       int32_t from, chat_range *out)
{
    const ax_jinja_part *parts = (const void *)text->parts.data;
    for (size_t last = begin; last < end; last = parts[part++].end)
        if (parts[part].from == from) {
            out->begin = out->end ? out->begin : at + last - begin;
            out->end = at + ax_min(parts[part].end, end) - begin;
        }
}

chat_written chat_whole(const ax_jinja_text *all)
{
    const size_t n = all->text.size;
    return (chat_written){all, all, n, n, n, all->n_parts};
}

bool chat_find_message(const chat_written *text, int32_t from, chat_range *out)
{
    *out = (chat_range){0};
    find_parts(text->all, 0, 0, text->same, 0, from, out);
    find_parts(text->tail, text->part, text->begin, text->end, text->same, from, out);
    return out->end > 0;
}

/* Returns how many bytes two texts have in common from byte i of one and byte k of the other on, up to the
 * end of a character of the first. */
static size_t common(const chat_written *a, size_t i, const chat_written *b, size_t k)
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

/* Returns the bytes from byte i on that lie together; *n: how many they are. */
static const char *bytes_from(const chat_written *text, size_t i, size_t *n)
{
    const bool whole = i < text->same;
    const size_t at = whole ? i : text->begin + i - text->same;
    *n = (whole ? text->same : text->end) - at;
    return (whole ? text->all : text->tail)->text.data + at;
}

/* Returns true if n bytes from byte i of a text on are those from byte k of another on. */
static bool are_same(const chat_written *text, size_t i, const chat_written *other, size_t k, size_t n)
{
    bool so = true;
    for (size_t done = 0, there, here, more; done < n && so; done += more) {
        const char *a = bytes_from(text, i + done, &there), *b = bytes_from(other, k + done, &here);
        more = ax_min(there, here);
        more = ax_min(more, n - done);
        so = !memcmp(a, b, more);
    }
    return so;
}

/* Returns true if a text begins with another. */
static bool begins(const chat_written *text, const chat_written *prefix)
{
    const size_t n = size_of(prefix), known = ax_min(text->same, prefix->same);
    return size_of(text) >= n && (known >= n || are_same(text, known, prefix, known, n - known));
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

const tok_added *chat_first_token(const ax_tokenizer *tok, const char *text, size_t n, size_t *before)
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
                            const chat_written *all, size_t *begin)
{
    chat_range here;
    chat_written prompt, before;
    if (chat_read_first(own, context, all->all, number - 1, true, &own->work[1], &prompt) != AX_OK)
        return refuse_before(turn, number);
    *begin = size_of(&prompt);
    if (begins(all, &prompt))
        return AX_OK;
    AX_TRY(chat_read_first(own, context, all->all, number - 1, false, &own->work[2], &before));
    const size_t n = size_of(&before);
    if (!begins(all, &before) || !begins(&prompt, &before))
        return refuse(turn, "writes the turns before it otherwise if it follows them");
    *begin = n + common(all, n, &prompt, n);
    if (chat_find_message(all, (int32_t)number, &here) && here.begin >= n && here.begin < *begin)
        *begin = here.begin;
    return *begin > n ? AX_OK : refuse(turn, "begins it otherwise than it begins an answer to be written");
}

/* Returns the end of a range of a text without white space at its end. */
static size_t strip_end(const chat_written *text, chat_range range)
{
    while (range.end > range.begin && strchr(" \t\r\n", byte_of(text, range.end - 1)))
        range.end--;
    return range.end;
}

/* Returns true if all of a range stands at the end of another range, but for white space: nothing of it
 * stands further behind, in a later turn. */
static bool ends_alike(const chat_written *text, chat_range range, const chat_written *other, chat_range at)
{
    const size_t n = range.end - range.begin;
    if (n <= at.end - at.begin && are_same(text, range.begin, other, at.end - n, n))
        return true;
    for (;; range.end--, at.end--) {
        range.end = strip_end(text, range);
        at.end = strip_end(other, at);
        if (range.end == range.begin || at.end == at.begin ||
            byte_of(text, range.end - 1) != byte_of(other, at.end - 1))
            return range.end == range.begin;
    }
}

/* Finds where the answer of a turn ends, with what closes the turn: where the conversation up to it ends, if
 * it is the same text; else as far behind its last byte as both texts agree, up to a token. */
static ax_status find_end(const ax_tokenizer *tok, chat_jinja *own, const json_t *context, size_t turn,
                          size_t number, const chat_written *all, chat_range *out)
{
    chat_written up_to;
    chat_range here, alone;
    AX_TRY(chat_read_first(own, context, all->all, number, false, &own->work[1], &up_to));
    out->end = size_of(&up_to);
    if (out->end > out->begin && begins(all, &up_to))
        return AX_OK;
    if (!chat_find_message(all, (int32_t)number, &here) ||
        !chat_find_message(&up_to, (int32_t)number, &alone) || here.begin < out->begin)
        return refuse(turn, "writes it otherwise if turns follow it, and nothing of the turn shows where");
    if (!ends_alike(all, here, &up_to, alone))
        return refuse(turn, "writes it otherwise if turns follow it, or something of it in a later turn");
    const size_t same = common(all, here.end, &up_to, alone.end);
    const char *rest = all->all->text.data + here.end;
    const size_t closing = same == size_of(&up_to) - alone.end ? same : up_to_last_token(tok, rest, same);
    out->end = here.end + closing;
    return closing ? AX_OK : refuse(turn, "ends it otherwise if turns follow it");
}

/* Returns true if a range of a text has text of a message other than `from`. *part: where the search begins,
 * a part at or before the range; where it has ended. */
static bool has_others(const ax_jinja_text *all, chat_range range, int32_t from, size_t *part)
{
    const ax_jinja_part *parts = (const void *)all->parts.data;
    bool others = false;
    for (; *part < all->n_parts && (!*part || parts[*part - 1].end < range.end); ++*part) {
        const int32_t of = parts[*part].from;
        others |=
            parts[*part].end > range.begin && of != AX_JINJA_TEMPLATE && of != AX_JINJA_OTHER && of != from;
    }
    *part -= *part > 0;
    return others;
}

/* Finds the answers of a conversation, one after the other. */
static ax_status find_answers(const ax_tokenizer *tok, chat_jinja *own, const ax_chat_turns *turns,
                              const int32_t *number, const json_t *context, const ax_jinja_text *all,
                              ax_buf *answers)
{
    const size_t n = json_array_size(json_object_get(context, "messages"));
    const chat_written whole = chat_whole(all);
    size_t last = 0, part = 0;
    for (size_t i = 0; i < turns->n; i++) {
        chat_range one = {.begin = 0, .end = all->text.size};
        const size_t k = (size_t)number[i];
        if (turns->turn[i].role != AX_CHAT_ASSISTANT || turns->turn[i].unlearned)
            continue;
        AX_TRY(find_begin(own, context, i + 1, k, &whole, &one.begin));
        if (k < n)
            AX_TRY(find_end(tok, own, context, i + 1, k, &whole, &one));
        if (one.begin < last || one.end < one.begin)
            return refuse(i + 1, "writes turns in another order");
        if (has_others(all, one, number[i], &part))
            return refuse(i + 1, "writes text of another turn in it");
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
    chat_range there;             /* from the first to the last byte of it in the output; empty: none is */
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
            m->there = (chat_range){m->there.end ? m->there.begin : begin, part[i].end};
            m->marked |= part[i].block > 0;
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

/* Finds the answers that {% generation %} marks. A block belongs to the turns whose text it has; one that has
 * none and stands right behind another, as what closes an answer may, to those of the other, unless it may be
 * that of an answer without text that is learned where they are not, or the other way around. */
static ax_status find_marked(const said *message, size_t n, const ax_jinja_text *all, ax_buf *answers)
{
    enum { NO = 1, YES = 2 }; /* bits: there are turns that are not learned, that are */
    const ax_jinja_part *part = (const void *)all->parts.data;
    int answered = 0, silent = 0, before = 0;
    for (size_t i = 1; i <= n; i++)
        if (message[i].answer) {
            answered |= message[i].learned ? YES : NO;
            silent |= message[i].there.end ? 0 : message[i].learned ? YES : NO;
        }
    for (size_t i = 0, begin = 0; i < all->n_parts;) {
        chat_range one = {begin, begin};
        const uint32_t block = part[i].block;
        int known = answered & NO ? 0 : YES;
        for (; i < all->n_parts && part[i].block == block; i++) {
            one.end = part[i].end;
            if ((answered & NO) && part[i].from > 0 && (size_t)part[i].from <= n)
                known |= message[part[i].from].learned ? YES : NO;
        }
        begin = one.end;
        known = known || (silent & ~before) ? known : before;
        before = block ? known : 0;
        if (block && known != NO && known != YES)
            return ax_fail(
                AX_ERR_DATA,
                "which turns are learned cannot be told, because the model's chat_template marks a "
                "text of which %s: learn all turns of the assistant, or name a template with --template "
                "(data.template)",
                known ? "some turns are learned, and others not" : "no turn is known");
        if (block && known == YES)
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
        out->lost = "the template does not read a variable of its chat_template_kwargs";
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
    const chat_range *answer = (const void *)answers->data;
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
        status = chat_write_first(own, context, n, prompt, own->cuts.cut ? &own->cuts : NULL, all);
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
    ax_status status = chat_make_context(&own, turns, number, &context);
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
