/* Renders conversations by a template, and encodes them. chat_choose.c chooses the template, chat_templates.c
 * has those of the table, chat_own.h has the files that run a model's own, chat_json.c reads conversations
 * from JSON, chat_tools.c writes tools, chat_jinja.c prints and recognizes Jinja templates. */
#include "chat_templates.h"
#include "token/tok.h"

#include <stdlib.h>
#include <string.h>

/* ---- conversations ------------------------------------------------------------------------------- */

void ax_chat_turns_fini(ax_chat_turns *turns)
{
    free(turns->turn);
    chat_forget_strings(turns);
    *turns = (ax_chat_turns){0};
}

ax_status ax_chat_add(ax_chat_turns *turns, const ax_chat_turn *turn)
{
    if (turns->n == turns->capacity) {
        size_t capacity = 2 * turns->capacity + 8;
        ax_chat_turn *more = realloc(turns->turn, capacity * sizeof *more);
        AX_CHECK(more, AX_ERR_MEMORY, "not enough memory for a conversation of %zu turns", capacity);
        turns->turn = more;
        turns->capacity = capacity;
    }
    turns->turn[turns->n++] = *turn;
    return AX_OK;
}

void ax_chat_text_fini(ax_chat_text *text)
{
    ax_buf_fini(&text->text);
    ax_buf_fini(&text->parts);
    ax_buf_fini(&text->joined);
    ax_ids_fini(&text->part);
}

static const char *role_name(ax_chat_role role)
{
    static const char *const names[AX_CHAT_ROLES] = {"system", "user", "input", "tool", "assistant"};
    return names[role];
}

/* Checks that the role of turn i may follow the role of the previous turn. */
static ax_status check_order(const ax_chat_turns *turns, size_t i)
{
    const ax_chat_role role = turns->turn[i].role;
    const ax_chat_role before = i ? turns->turn[i - 1].role : AX_CHAT_ASSISTANT;
    const bool asked = before == AX_CHAT_USER || before == AX_CHAT_INPUT;
    const bool good = role == AX_CHAT_SYSTEM      ? !i
                      : role == AX_CHAT_USER      ? !asked
                      : role == AX_CHAT_ASSISTANT ? asked || before == AX_CHAT_TOOL
                      : role == AX_CHAT_TOOL ? i && (before == AX_CHAT_ASSISTANT || before == AX_CHAT_TOOL)
                                             : before == AX_CHAT_USER;
    AX_CHECK(
        good, AX_ERR_DATA,
        "turn %zu has the role %s, %s%s: a conversation may begin with a turn of the system; then the turns "
        "of user and assistant alternate, with results of tools after an answer",
        i + 1, role_name(role), i ? "but follows the role " : "but is the first", i ? role_name(before) : "");
    return AX_OK;
}

/* ---- rendering ----------------------------------------------------------------------------------- */

ax_status chat_end_part(ax_chat_text *out, size_t end, int kind)
{
    const ax_text_part part = {
        .end = end, .plain = kind & CHAT_PLAIN, .strict = kind & CHAT_STRICT, .target = kind & CHAT_TARGET};
    return ax_buf_add(&out->parts, &part, sizeof part);
}

ax_status chat_put(ax_chat_text *out, const char *text, size_t n, int kind)
{
    if (!n)
        return AX_OK;
    AX_TRY(ax_buf_add(&out->text, text, n));
    return chat_end_part(out, out->text.size, kind);
}

const char *chat_string(const ax_chat *chat, const char *text, size_t *n)
{
    *n = text ? strlen(text) : 0;
    if (text && !strcmp(text, CHAT_EOS))
        return ax_tokenizer_piece(chat->tok, ax_tokenizer_eos(chat->tok), n);
    if (!text || strcmp(text, CHAT_BEGIN))
        return text;
    *n = chat->begin.size;
    return chat->begin.data;
}

ax_status chat_put_string(const ax_chat *chat, ax_chat_text *out, const char *text, int kind)
{
    size_t n;
    text = chat_string(chat, text, &n);
    return chat_put(out, text, n, kind);
}

/* A range of bytes in the text of a turn. */
typedef struct span {
    const char *at;
    size_t n;
} span;

/* Drops newlines at the start of a text (if `start`) and at its end (if `end`). */
static span strip_newlines(span s, bool start, bool end)
{
    for (; start && s.n && *s.at == '\n'; s.n--)
        s.at++;
    while (end && s.n && s.at[s.n - 1] == '\n')
        s.n--;
    return s;
}

/* Drops white space at both ends of a text, as Python's str.strip does: also U+001C to U+001F, which do not
 * have the property White_Space. */
static span trim(span s)
{
    for (size_t n = 1; s.n && n; s.at += n, s.n -= n)
        n = *s.at >= 0x1c && *s.at <= 0x1f ? 1 : tok_space_prefix(s.at, s.n);
    for (size_t n = 1; s.n && n; s.n -= n)
        n = s.at[s.n - 1] >= 0x1c && s.at[s.n - 1] <= 0x1f ? 1 : tok_space_suffix(s.at, s.n);
    return s;
}

/* Returns the last occurrence of `mark` in a text, or NULL. */
static const char *find_last(span s, const char *mark)
{
    const char *found = NULL;
    size_t n = strlen(mark);
    for (const char *at = s.at; (at = tok_text_find(mark, n, at, s.n - (size_t)(at - s.at))); at++)
        found = at;
    return found;
}

/* Returns the reasoning at the start of *text, without newlines at its ends, and sets *text to the bytes
 * after the last </think>. The reasoning ends at the first </think>; it begins after the last <think> before
 * that place, or else at the start of *text. Without </think> the reasoning is empty and *text stays as it
 * is. */
static span split_reasoning(span *text)
{
    static const char open[] = "<think>", shut[] = "</think>";
    const char *first = tok_text_find(shut, strlen(shut), text->at, text->n), *last = find_last(*text, shut);
    if (!first)
        return (span){text->at, 0};
    span reasoning = strip_newlines((span){text->at, (size_t)(first - text->at)}, false, true);
    const char *begin = find_last(reasoning, open);
    if (begin)
        reasoning = (span){begin + strlen(open), reasoning.n - (size_t)(begin - reasoning.at) - strlen(open)};
    const char *rest = last + strlen(shut);
    *text = (span){rest, text->n - (size_t)(rest - text->at)};
    return strip_newlines(reasoning, true, false);
}

/* Returns CHAT_TARGET if the turn is a target, else 0. */
static int kind_of(const ax_chat_turn *turn)
{
    return turn->role == AX_CHAT_ASSISTANT && !turn->unlearned ? CHAT_TARGET : 0;
}

/* Writes the reasoning of an answer. Removes it from *text, and newlines before the rest of *text. */
static ax_status put_reasoning(const ax_chat *chat, const ax_chat_turn *turn, span *text, ax_chat_text *out)
{
    const chat_template *t = chat->template;
    span reasoning = {turn->reasoning, turn->reasoning_size};
    if (!reasoning.at)
        reasoning = split_reasoning(text);
    reasoning = strip_newlines(reasoning, true, true);
    *text = strip_newlines(*text, true, false);
    AX_TRY(chat_put_string(chat, out, t->think.before, kind_of(turn)));
    AX_TRY(chat_put(out, reasoning.at, reasoning.n, CHAT_PLAIN | kind_of(turn)));
    return chat_put_string(chat, out, t->think.after, kind_of(turn));
}

static ax_status put_answer(const ax_chat *chat, const ax_chat_turn *turn, span text, ax_chat_text *out)
{
    const chat_template *t = chat->template;
    const int learned = kind_of(turn);
    /* To Qwen3's template newlines alone are a text, before which it writes none of them. */
    const bool newlines = text.n && !strip_newlines(text, true, false).n;
    AX_TRY(chat_put_string(chat, out, t->opening, learned));
    if (t->think.before)
        AX_TRY(put_reasoning(chat, turn, &text, out));
    AX_TRY(chat_put(out, text.at, text.n, CHAT_PLAIN | learned));
    return turn->calls ? chat_put_calls(chat, turn, text.n || newlines, learned, out) : AX_OK;
}

/* Returns the strings that the template writes before and after turn i. */
static const chat_frame *frame_of(const chat_template *t, const ax_chat_turns *turns, size_t i)
{
    bool after_system = i && turns->turn[i - 1].role == AX_CHAT_SYSTEM;
    return after_system && t->after_system.before ? &t->after_system : &t->frame[turns->turn[i].role];
}

/* Returns true if turn i is an input (AX_CHAT_INPUT, of the Alpaca format) that the template appends to the
 * user's turn before it. */
static bool is_appended(const chat_template *t, const ax_chat_turns *turns, size_t i)
{
    return i < turns->n && turns->turn[i].role == AX_CHAT_INPUT && !t->frame[AX_CHAT_INPUT].before;
}

/* Sets *text to the text of turn i, without white space at its ends if the template drops it (t->trims). If
 * the next turn is an input that the template appends to turn i (is_appended), the input's text is added
 * after a newline. */
static ax_status turn_text(const chat_template *t, const ax_chat_turns *turns, size_t i, ax_chat_text *out,
                           span *text)
{
    const ax_chat_turn *turn = &turns->turn[i], *input = turn + 1;
    *text = (span){turn->text, turn->size};
    if (is_appended(t, turns, i + 1)) {
        out->joined.size = 0;
        AX_TRY(ax_buf_add(&out->joined, turn->text, turn->size));
        AX_TRY(ax_buf_add(&out->joined, "\n", 1));
        AX_TRY(ax_buf_add(&out->joined, input->text, input->size));
        *text = (span){out->joined.data, out->joined.size};
    }
    *text = t->trims ? trim(*text) : *text;
    return AX_OK;
}

static bool has_system(const ax_chat_turns *turns)
{
    return turns->n && turns->turn[0].role == AX_CHAT_SYSTEM;
}

static bool is_first_question(const ax_chat_turns *turns, size_t i)
{
    return turns->turn[i].role == AX_CHAT_USER && i == has_system(turns);
}

static bool is_last_question(const ax_chat_turns *turns, size_t i)
{
    for (size_t k = i + 1; k < turns->n; k++)
        if (turns->turn[k].role == AX_CHAT_USER)
            return false;
    return turns->turn[i].role == AX_CHAT_USER;
}

/* Writes the system's text in turn i, if the template has it there (t->system_at). */
static ax_status put_system_inside(const ax_chat *chat, const ax_chat_turns *turns, size_t i,
                                   ax_chat_text *out)
{
    const chat_template *t = chat->template;
    const ax_chat_turn *system = &turns->turn[0];
    if (t->system_at == CHAT_OWN_TURN || !has_system(turns) ||
        !(t->system_at == CHAT_FIRST_USER ? is_first_question : is_last_question)(turns, i))
        return AX_OK;
    AX_TRY(chat_put_string(chat, out, t->frame[AX_CHAT_SYSTEM].before, 0));
    AX_TRY(chat_put(out, system->text, system->size, CHAT_PLAIN));
    return chat_put_string(chat, out, t->frame[AX_CHAT_SYSTEM].after, 0);
}

/* Writes a turn of the system, which the conversation need not have. Bits of `kind` are of the text. */
static ax_status put_system(const ax_chat *chat, const ax_chat_turns *turns, span text, int kind,
                            ax_chat_text *out)
{
    const chat_template *t = chat->template;
    const bool list = chat_has_list(t, turns);
    AX_TRY(chat_put_string(chat, out, t->frame[AX_CHAT_SYSTEM].before, 0));
    AX_TRY(chat_put_string(chat, out, list ? t->tools->note : NULL, 0));
    AX_TRY(chat_put_string(chat, out, t->preamble, 0));
    AX_TRY(chat_put(out, text.at, text.n, kind));
    if (list && !t->tools->in_user) {
        AX_TRY(chat_put_string(chat, out, has_system(turns) || text.n ? t->tools->after_text : NULL, 0));
        AX_TRY(chat_put_list(chat, turns, out));
    }
    return chat_put_string(chat, out, t->frame[AX_CHAT_SYSTEM].after, 0);
}

static ax_status put_turn(const ax_chat *chat, const ax_chat_turns *turns, size_t i, ax_chat_text *out)
{
    AX_TRY(check_order(turns, i));
    const chat_template *t = chat->template;
    const chat_frame *frame = frame_of(t, turns, i);
    const ax_chat_turn *turn = &turns->turn[i];
    const bool answers = turn->role == AX_CHAT_ASSISTANT;
    span text;
    if (is_appended(t, turns, i))
        return AX_OK;
    if (turn->role == AX_CHAT_TOOL)
        return chat_put_result(chat, turns, i, out);
    AX_TRY(turn_text(t, turns, i, out, &text));
    if (turn->role == AX_CHAT_USER && i && turns->turn[i - 1].role == AX_CHAT_ASSISTANT)
        AX_TRY(chat_put_string(chat, out, t->between, 0));
    if (turn->role == AX_CHAT_SYSTEM)
        return t->system_at ? AX_OK : put_system(chat, turns, text, CHAT_PLAIN, out);
    AX_TRY(chat_put_string(chat, out, frame->before, 0));
    AX_TRY(put_system_inside(chat, turns, i, out));
    if (is_first_question(turns, i) && chat_has_list(t, turns) && t->tools->in_user)
        AX_TRY(chat_put_list(chat, turns, out));
    AX_TRY(answers ? put_answer(chat, turn, text, out) : chat_put(out, text.at, text.n, CHAT_PLAIN));
    return chat_put_string(chat, out, frame->after, kind_of(turn));
}

/* Writes the template's strings before the first turn: `begin` and, unless the first turn is the system's,
 * `no_system` or `no_system_input`, or a turn of the system that the template always writes, or for tools. */
static ax_status put_begin(const ax_chat *chat, const ax_chat_turns *turns, ax_chat_text *out)
{
    const chat_template *t = chat->template;
    bool input = turns->n > 1 && turns->turn[1].role == AX_CHAT_INPUT && t->no_system_input;
    AX_TRY(chat_put_string(chat, out, t->begin, 0));
    if (has_system(turns))
        return AX_OK;
    if (t->default_system || chat_has_list(t, turns)) {
        const char *text = t->default_system ? t->default_system : "";
        return put_system(chat, turns, (span){text, strlen(text)}, 0, out);
    }
    return chat_put_string(chat, out, input ? t->no_system_input : t->no_system, 0);
}

/* Writes plain turns, as TRL does. */
static ax_status render_plain(const ax_chat *chat, const ax_chat_turns *turns, ax_chat_text *out)
{
    size_t n = 0;
    const int32_t id = ax_tokenizer_eos(chat->tok);
    const char *end = id >= 0 ? ax_tokenizer_piece(chat->tok, id, &n) : NULL;
    for (size_t i = 0; i < turns->n; i++)
        AX_TRY(chat_put(out, turns->turn[i].text, turns->turn[i].size, kind_of(&turns->turn[i])));
    const ax_chat_turn *last = &turns->turn[turns->n - 1];
    const bool ended = end && last->size >= n && !memcmp(last->text + last->size - n, end, n);
    return end && !ended ? chat_put(out, end, n, CHAT_TARGET) : AX_OK;
}

/* Fails if no answer can follow the last turn. */
static ax_status check_last(const ax_chat_turns *turns)
{
    const ax_chat_role last = turns->n ? turns->turn[turns->n - 1].role : AX_CHAT_SYSTEM;
    AX_CHECK(last == AX_CHAT_USER || last == AX_CHAT_INPUT || last == AX_CHAT_TOOL, AX_ERR_DATA,
             "the last turn must be the user's (or the result of a tool), so that the assistant can answer "
             "it; %s%s",
             turns->n ? "its role is " : "there are no turns", turns->n ? role_name(last) : "");
    return AX_OK;
}

ax_status chat_refuse(const char *why)
{
    return ax_fail(
        AX_ERR_USAGE,
        "the tokenizer's own chat_template cannot be used: %s; correct it, or name the template to "
        "write conversations by with --template or data.template (%s)",
        why, ax_chat_names);
}

/* Fails if there is no template for the conversation. */
static ax_status need_template(const ax_chat *chat, const ax_chat_turns *turns)
{
    if (chat->broken.size && !(chat->own && turns->tools))
        return chat_refuse(chat->broken.data);
    AX_CHECK(
        chat->template || chat->own, AX_ERR_USAGE,
        "a conversation needs a chat template, but none fits this tokenizer: for each template it lacks "
        "special tokens (for alpaca, an end-of-text token among its added tokens); use another tokenizer");
    return AX_OK;
}

/* Fails if a conversation gives variables to a template of the table, which has none. */
static ax_status refuse_variables(const ax_chat *chat, const ax_chat_turns *turns)
{
    const char *name = turns->variables ? "chat_template_kwargs" : "documents";
    AX_CHECK(
        !turns->variables && !turns->documents, AX_ERR_DATA,
        "the conversation has \"%s\", but template %s, which axonn writes itself, has no variables: only "
        "a model's own chat_template has them; leave them out with --ignore %s (data.ignore)",
        name, ax_chat_name(chat), name);
    return AX_OK;
}

/* Renders a conversation by a template of the table. */
static ax_status render_listed(const ax_chat *chat, const ax_chat_turns *turns, bool prompt,
                               ax_chat_text *out)
{
    AX_TRY(refuse_variables(chat, turns));
    AX_TRY(chat_check_tools(chat, turns));
    AX_CHECK(
        !has_system(turns) || chat->template->frame[AX_CHAT_SYSTEM].before, AX_ERR_DATA,
        "the conversation has a turn of the system, which template %s does not have: choose another template "
        "(mistral-v1, for instance), or leave the turn out",
        ax_chat_name(chat));
    AX_TRY(put_begin(chat, turns, out));
    for (size_t i = 0; i < turns->n; i++)
        AX_TRY(put_turn(chat, turns, i, out));
    if (!prompt)
        return AX_OK;
    AX_TRY(check_last(turns));
    return chat_put_string(chat, out, chat->template->frame[AX_CHAT_ASSISTANT].before, 0);
}

/* Renders a conversation by a text of the tokenizer. */
static ax_status render_own(const ax_chat *chat, const chat_jinja *own, const ax_chat_turns *turns,
                            bool prompt, ax_chat_text *out)
{
    out->text.size = out->parts.size = 0;
    if (prompt)
        AX_TRY(check_last(turns));
    AX_TRY(chat_check_variables(own, turns));
    const ax_status status = chat_jinja_render(chat, own, turns, prompt, true, out);
    const char *fault = status == AX_ERR_DATA ? chat_jinja_fault(own, ax_error_message()) : NULL;
    return fault ? chat_refuse(fault) : status;
}

ax_status ax_chat_render(const ax_chat *chat, const ax_chat_turns *turns, bool prompt, ax_chat_text *out)
{
    out->text.size = out->parts.size = 0;
    out->guarded = chat->guarded;
    out->lost = NULL;
    out->lost_turn = 0;
    out->plain = turns->plain && turns->n && !prompt;
    if (out->plain)
        return render_plain(chat, turns, out);
    AX_TRY(need_template(chat, turns));
    if (chat->own)
        return render_own(chat, chat->own, turns, prompt, out);
    if (!chat->tools) /* nor does the tokenizer's text write them */
        AX_TRY(chat_check_tools(chat, turns));
    const ax_status status = render_listed(chat, turns, prompt, out);
    return status == AX_ERR_DATA && chat->spare ? render_own(chat, chat->spare, turns, prompt, out) : status;
}

size_t ax_chat_opening(const ax_chat *chat, const char *text, size_t size)
{
    const char *opening = chat->template ? chat->template->opening : NULL;
    size_t n = opening ? strlen(opening) : 0;
    return size >= n && !memcmp(text, opening ? opening : "", n) ? n : 0;
}

void ax_chat_answer(const ax_chat *chat, const char **text, size_t *size)
{
    const chat_template *t = chat->template;
    if (chat->own) {
        chat_jinja_answer(chat->own, *text, size);
        return;
    }
    const char *closing = t->frame[AX_CHAT_ASSISTANT].after, *end = strstr(closing, t->end);
    size_t before = ax_chat_opening(chat, *text, *size), after = end ? (size_t)(end - closing) : 0;
    *text += before;
    *size -= before;
    if (*size >= after && !memcmp(*text + *size - after, closing, after))
        *size -= after;
}

ax_status ax_chat_encode(ax_encoder *encoder, ax_chat_text *text, ax_ids *ids, ax_buf *is_target)
{
    const ax_text_part *parts = (const void *)text->parts.data;
    size_t n = text->parts.size / sizeof *parts;
    text->part.size = 0;
    if (!n)
        return AX_OK;
    AX_TRY(ax_encode_parts(encoder, text->text.data, parts, n, text->guarded, ids, &text->part));
    AX_TRY(ax_buf_reserve(is_target, text->part.size));
    for (size_t i = 0; i < text->part.size; i++)
        is_target->data[is_target->size++] = (char)parts[text->part.data[i]].target;
    return AX_OK;
}
