/* Reads documents in JSON: the lines of a JSONL file, the elements of an array of objects, or objects that
 * are spread over lines. */
#include "axonn/json.h"
#include "corpus.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

/* The replacement for each byte of a character that is not valid Unicode: U+FFFF, a noncharacter that text
 * does not contain. */
#define NO_CHARACTER "\xef\xbf\xbf"

/* ---- Unicode ------------------------------------------------------------------------------------- */

/* Returns the value of the escape \uXXXX at `at`, or -1 if `at` does not begin with such an escape. */
static int escaped_code(const char *at, const char *end)
{
    int code = 0;
    if (end - at < 6 || at[0] != '\\' || at[1] != 'u')
        return -1;
    for (int i = 2; i < 6; i++) {
        const char *digits = "0123456789abcdef", *digit = at[i] ? strchr(digits, at[i] | 0x20) : NULL;
        if (!digit)
            return -1;
        code = 16 * code + (int)(digit - digits);
    }
    return code;
}

static bool is_high(int code) { return code >= 0xD800 && code < 0xDC00; }
static bool is_low(int code) { return code >= 0xDC00 && code < 0xE000; }

/* Returns the size in bytes of the character or escape (such as \u00e9) at `at`; two escapes that are a
 * surrogate pair count as one. Sets *broken if the character is a lone surrogate or not UTF-8. */
static size_t character_size(const char *at, const char *end, bool *broken)
{
    int code = escaped_code(at, end);
    *broken = false;
    if (is_high(code) && is_low(escaped_code(at + 6, end)))
        return 12;
    if (code >= 0) {
        *broken = is_high(code) || is_low(code);
        return 6;
    }
    if (*at == '\\')
        return end - at > 1 ? 2 : 1;
    utf8proc_int32_t character;
    utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)at, end - at, &character);
    *broken = n <= 0;
    return n > 0 ? (size_t)n : 1;
}

/* Appends the record with its invalid Unicode replaced: one NO_CHARACTER for each byte, so that the columns
 * in messages of the parser stay the same. */
static ax_status replace_broken(const char *text, size_t bytes, ax_buf *out)
{
    const char *end = text + bytes;
    for (const char *at = text; at < end;) {
        bool broken;
        size_t n = character_size(at, end, &broken);
        for (size_t i = 0; broken && i < n; i++)
            AX_TRY(ax_buf_add(out, NO_CHARACTER, strlen(NO_CHARACTER)));
        if (!broken)
            AX_TRY(ax_buf_add(out, at, n));
        at += n;
    }
    return AX_OK;
}

/* Parses a record (one JSON object). If that fails, parses it again with invalid characters replaced
 * (replace_broken), and sets *broken. `place`: where the text begins in its file, for error messages; NULL:
 * messages name no file. */
static ax_status parse_record(const ax_json_place *place, const char *text, size_t bytes, json_t **object,
                              bool *broken)
{
    *broken = false;
    if (ax_json_parse_at(place, text, bytes, JSON_ALLOW_NUL, object) == AX_OK)
        return AX_OK;
    ax_buf mended = {0};
    ax_status status = replace_broken(text, bytes, &mended);
    if (status == AX_OK)
        status = ax_json_parse_at(place, mended.data ? mended.data : "", mended.size, JSON_ALLOW_NUL, object);
    *broken = true;
    ax_buf_fini(&mended);
    return status;
}

/* ---- records ------------------------------------------------------------------------------------- */

/* Leaves out a record, because of what the thread's last error message says. */
static ax_status omit_record(corpus_records *r, int64_t offset, corpus_bad_kind kind)
{
    const int64_t n = r->omitted->bad[kind].n++;
    if (n < CORPUS_LISTED) {
        corpus_bad *bad = &r->omitted->bad[kind].first[n];
        bad->offset = offset;
        snprintf(bad->why, sizeof bad->why, "%s", ax_error_message());
    }
    return AX_OK;
}

static ax_status omit_no_text(corpus_records *r, int64_t offset, const char *member, const char *what)
{
    (void)ax_fail(AX_ERR_DATA, "\"%s\" is %s", member, what);
    return omit_record(r, offset, CORPUS_NO_TEXT);
}

static ax_status take_text(corpus_records *r, const json_t *text, bool broken, int64_t offset)
{
    if (json_is_null(text))
        return omit_no_text(r, offset, r->key, "null");
    if (!json_is_string(text) && r->guessed) {
        r->omitted->file_why = "is JSON whose first record has no text (set --text-key, or data.text_key, to "
                               "the member that has it)";
        return AX_OK;
    }
    if (!json_is_string(text)) {
        (void)ax_fail(AX_ERR_DATA,
                      "expected an object with a string \"%s\" (--text-key, or data.text_key, names another "
                      "member%s)%s",
                      r->key,
                      r->file->format == AX_DATA_JSON ? "; give plain text another suffix than .json" : "",
                      r->chat ? ", or with a conversation: \"messages\", \"conversations\", \"prompt\" and "
                                "\"completion\", or \"instruction\" and \"output\""
                              : "");
        return omit_record(r, offset, r->refused);
    }
    const char *bytes = json_string_value(text);
    size_t n = json_string_length(text);
    if (broken && memmem(bytes, n, NO_CHARACTER, strlen(NO_CHARACTER)))
        return omit_no_text(r, offset, r->key, "not valid Unicode");
    return n ? r->take(r->user, bytes, n, NULL) : AX_OK;
}

static bool is_answered(const ax_chat_turns *turns)
{
    for (size_t i = 0; i < turns->n; i++)
        if (turns->turn[i].role == AX_CHAT_ASSISTANT)
            return true;
    return false;
}

static bool has_target(const ax_chat_text *text)
{
    const ax_text_part *part = (const void *)text->parts.data;
    size_t n = text->parts.size / sizeof *part;
    while (n && !part[n - 1].target)
        n--;
    return n;
}

/* Reads a conversation into r->turns, and renders it. */
static ax_status render(corpus_records *r, const json_t *object)
{
    r->turns.n = 0;
    AX_TRY(ax_chat_read(object, r->ignore, &r->turns));
    AX_TRY(ax_chat_render(r->chat, &r->turns, false, &r->rendered));
    AX_CHECK(!is_answered(&r->turns) || has_target(&r->rendered), AX_ERR_DATA,
             "nothing of the conversation is learned: its answers are marked so, are empty, or are not in "
             "what the template writes");
    return AX_OK;
}

/* Counts a conversation of which the template has left something out. */
static void note_lost(corpus_records *r, int64_t offset)
{
    corpus_bad *first = &r->omitted->lost;
    char turn[32] = "";
    if (r->omitted->losing++)
        return;
    if (r->rendered.lost_turn)
        snprintf(turn, sizeof turn, "turn %zu: ", r->rendered.lost_turn);
    first->offset = offset;
    snprintf(first->why, sizeof first->why, "%s%s", turn, r->rendered.lost);
}

static ax_status take_conversation(corpus_records *r, const json_t *object, const char *member, bool broken,
                                   int64_t offset)
{
    ax_status status = render(r, object);
    if (status == AX_ERR_DATA && r->guessed) {
        r->omitted->file_why = "is JSON whose first record is not a valid conversation";
        return AX_OK;
    }
    if (status == AX_ERR_DATA)
        return omit_record(r, offset, r->refused);
    if (status != AX_OK) { /* such as a missing template, which concerns all conversations */
        ax_error_context("%s:%lld", r->file->path, corpus_line_number(r->file, offset));
        return status;
    }
    const ax_buf *text = &r->rendered.text;
    if (broken && memmem(text->data, text->size, NO_CHARACTER, strlen(NO_CHARACTER)))
        return omit_no_text(r, offset, member, "not valid Unicode");
    if (is_answered(&r->turns) && r->rendered.lost)
        note_lost(r, offset);
    if (is_answered(&r->turns))
        return r->take(r->user, text->data, text->size, &r->rendered);
    if (!r->omitted->unanswered++)
        r->omitted->first_unanswered = offset;
    return AX_OK;
}

void corpus_records_fini(corpus_records *r)
{
    ax_chat_turns_fini(&r->turns);
    ax_chat_text_fini(&r->rendered);
}

static ax_status take_record(corpus_records *r, const char *text, size_t bytes, int64_t offset)
{
    json_t *object;
    bool broken;
    AX_CHECK(!ax_signal_noted(), AX_ERR_SIGNAL, "the reading of %s was stopped by a signal", r->file->path);
    if (parse_record(NULL, text, bytes, &object, &broken) != AX_OK) {
        if (r->guessed)
            r->omitted->file_why = "is not valid JSON";
        if (r->guessed)
            return AX_OK;
        ax_json_place place = corpus_place(r->file, offset); /* finds the line for the error message; slow,
                                                                because it reads the file up to `offset` */
        AX_TRY(parse_record(&place, text, bytes, &object, &broken));
    }
    const json_t *body = json_object_get(object, r->key);
    const bool is_text = !r->chat || (r->key_given && json_is_string(body));
    const char *member = is_text ? NULL : ax_chat_member(object, r->ignore);
    ax_status status =
        member ? take_conversation(r, object, member, broken, offset) : take_text(r, body, broken, offset);
    json_decref(object);
    r->guessed = false;
    return status;
}

/* ---- lines --------------------------------------------------------------------------------------- */

static bool is_blank(const char *line, size_t bytes)
{
    while (bytes && (*line == ' ' || *line == '\t' || *line == '\r'))
        line++, bytes--;
    return !bytes;
}

ax_status corpus_take_lines(corpus_records *r, const char *text, size_t bytes, int64_t offset)
{
    for (const char *line = text, *end = text + bytes; line < end && !r->omitted->file_why;) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        size_t n = (size_t)((newline ? newline : end) - line);
        if (!is_blank(line, n))
            AX_TRY(take_record(r, line, n, offset + (line - text)));
        line += n + 1;
    }
    return AX_OK;
}

/* ---- arrays and objects -------------------------------------------------------------------------- */

static const char *skip_blanks(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\r' || *at == '\n'))
        at++;
    return at;
}

/* Returns the end of the JSON value at `at`: the byte after an object or array; for any other value, the next
 * comma or closing bracket. */
static const char *skip_element(const char *at, const char *end)
{
    bool quoted = false;
    for (int64_t depth = 0; at < end; at++) {
        if (quoted && *at == '\\')
            at++;
        else if (*at == '"')
            quoted = !quoted;
        else if (!quoted && (*at == '{' || *at == '['))
            depth++;
        else if (!quoted && (*at == '}' || *at == ']' || *at == ',') && depth == 0)
            break;
        else if (!quoted && (*at == '}' || *at == ']') && --depth == 0)
            return at + 1;
    }
    return at < end ? at : end;
}

/* Moves *at from the end of an array element to the next element; after the last element, to the end of the
 * text. Fails if neither a comma nor the end of the array follows. */
static ax_status skip_separator(const corpus_records *r, const char *text, int64_t offset, const char **at,
                                const char *end)
{
    const char *p = skip_blanks(*at, end);
    if (p < end && *p == ',') {
        p = *at = skip_blanks(p + 1, end);
        if (p < end)
            return AX_OK;
    }
    if (p < end && *p == ']' && skip_blanks(p + 1, end) == end) {
        *at = end;
        return AX_OK;
    }
    ax_json_place place = corpus_place(r->file, offset + (p - text));
    return ax_fail(AX_ERR_DATA, "%s:%lld:%lld: not valid JSON: %s", place.path, (long long)place.line,
                   (long long)place.column,
                   p == end    ? "the array has no end: is the file complete?"
                   : *p == ']' ? "there is more text after the end of the array"
                               : "expected a comma or the end of the array");
}

static ax_status take_array(corpus_records *r, const char *text, int64_t offset, const char *at,
                            const char *end)
{
    at = skip_blanks(at + 1, end);
    if (at < end && *at == ']') /* no elements */
        return skip_separator(r, text, offset, &at, end);
    while (at < end && !r->omitted->file_why) {
        const char *behind = skip_element(at, end);
        AX_TRY(take_record(r, at, (size_t)(behind - at), offset + (at - text)));
        at = behind;
        AX_TRY(skip_separator(r, text, offset, &at, end));
    }
    return AX_OK;
}

ax_status corpus_take_values(corpus_records *r, const char *text, size_t bytes, int64_t offset)
{
    const char *end = text + bytes, *at = skip_blanks(text, end);
    if (at < end && *at == '[')
        return take_array(r, text, offset, at, end);
    while (at < end && !r->omitted->file_why) {
        const char *behind = skip_element(at, end);
        AX_TRY(take_record(r, at, (size_t)(behind - at), offset + (at - text)));
        at = skip_blanks(behind, end);
    }
    return AX_OK;
}
