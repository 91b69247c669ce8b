/* Cuts a template into tokens, with trim_blocks and lstrip_blocks on, as jinja2.lexer does. */
#include "token/jinja/inner.h"
#include "token/tok.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct lexer {
    jx *e;
    const char *s;
    size_t at, n;
    bool line_start; /* what was read last ends a line */
    token *out;
    size_t n_out, capacity;
    size_t counted; /* e->line is that of this byte */
} lexer;

static void count_lines(lexer *l, size_t to)
{
    for (; l->counted < to; l->counted++)
        l->e->line += l->s[l->counted] == '\n';
}

static token *add(lexer *l, token_kind kind)
{
    l->out = jx_grow(l->e, l->out, l->n_out, &l->capacity, sizeof *l->out);
    token *t = &l->out[l->n_out++];
    *t = (token){.kind = kind, .line = l->e->line};
    return t;
}

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x1f); }

static bool starts(const lexer *l, size_t at, const char *text)
{
    const size_t n = strlen(text);
    return l->n - at >= n && !memcmp(l->s + at, text, n);
}

static size_t skip_space(const lexer *l, size_t at)
{
    while (at < l->n && is_space(l->s[at]))
        at++;
    return at;
}

/* Adds text outside tags, from `begin` to `end`, before a tag whose first character behind the bracket is
 * `sign`. */
static void add_data(lexer *l, size_t begin, size_t end, char sign, bool strips)
{
    size_t last = end;
    if (sign == '-') {
        while (last > begin && is_space(l->s[last - 1]))
            last--;
    } else if (sign != '+' && strips) {
        while (last > begin && is_space(l->s[last - 1]) && l->s[last - 1] != '\n')
            last--;
        if (!(last > begin ? l->s[last - 1] == '\n' : l->line_start))
            last = end;
    }
    if (last == begin)
        return;
    token *t = add(l, T_DATA);
    t->text = l->s + begin;
    t->n = last - begin;
}

/* Returns the length of what ends a tag at `at`: "-%}" with white space, "+%}", "%}" with a newline if
 * `trims`; 0 if nothing ends here. */
static size_t end_length(const lexer *l, size_t at, const char *close, bool trims)
{
    const size_t sign = at < l->n && (l->s[at] == '-' || (l->s[at] == '+' && trims));
    const size_t end = at + sign + 2;
    if (!starts(l, at + sign, close))
        return 0;
    if (sign && l->s[at] == '-')
        return skip_space(l, end) - at;
    return end - at + (!sign && trims && end < l->n && l->s[end] == '\n');
}

static void end_tag(lexer *l, size_t length)
{
    l->at += length;
    l->line_start = l->at && l->s[l->at - 1] == '\n';
}

/* ---- strings and numbers --------------------------------------------------------------------------- */

static int digit_of(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : 99;
}

/* Returns the length of digits of a base, with a "_" between two of them. */
static size_t digits(const lexer *l, size_t at, int base)
{
    const size_t begin = at;
    for (bool digit = false;; at++) {
        const char c = at < l->n ? l->s[at] : 0;
        if (c == '_' && digit && at + 1 < l->n) {
            digit = false;
            continue;
        }
        if (digit_of(c) >= base)
            return at - begin - (at > begin && l->s[at - 1] == '_');
        digit = true;
    }
}

/* Reads a number, and returns its length. */
static size_t lex_number(lexer *l, size_t at)
{
    char text[64];
    size_t n = 0, length;
    const char second = at + 1 < l->n ? (char)(l->s[at + 1] | 0x20) : 0;
    const int base = l->s[at] != '0' ? 10 : second == 'x' ? 16 : second == 'o' ? 8 : second == 'b' ? 2 : 10;
    bool real = false;
    length = base == 10 ? digits(l, at, 10) : 2 + digits(l, at + 2, base);
    if (base == 10 && at + length + 1 < l->n && l->s[at + length] == '.') {
        const size_t more = digits(l, at + length + 1, 10);
        real = more > 0;
        length += more ? 1 + more : 0;
    }
    if (base == 10 && at + length < l->n && (l->s[at + length] | 0x20) == 'e') {
        const bool sign = at + length + 1 < l->n && strchr("+-", l->s[at + length + 1]);
        const size_t more = digits(l, at + length + 1 + sign, 10);
        real |= more > 0;
        length += more ? 1 + sign + more : 0;
    }
    for (size_t i = base == 10 ? 0 : 2; i < length && n < sizeof text - 1; i++)
        if (l->s[at + i] != '_')
            text[n++] = l->s[at + i];
    text[n] = 0;
    token *t = add(l, real ? T_REAL : T_INT);
    errno = 0;
    if (real)
        t->real = strtod(text, NULL);
    else
        t->i = strtoll(text, NULL, base);
    if (n == sizeof text - 1 || (!real && errno))
        jx_fail(l->e, "the number %s has more than 64 bits", text);
    return length;
}

/* Reads the number of `n` hexadecimal digits of an escape. */
static uint32_t hexadecimal(lexer *l, size_t at, size_t n)
{
    uint32_t value = 0;
    for (size_t i = 0; i < n; i++) {
        const char c = at + i < l->n ? l->s[at + i] : 0;
        if (digit_of(c) >= 16)
            jx_fail(l->e, "a string has an escape without its %zu hexadecimal digits", n);
        value = value << 4 | (uint32_t)digit_of(c);
    }
    if (value > 0x10ffff || (value >= 0xd800 && value < 0xe000))
        jx_fail(l->e, "a string has an escape that is no character");
    return value;
}

/* Appends what an escape stands for; `at` is behind its backslash. Returns its length. */
static size_t add_escape(lexer *l, size_t at, jbuf *out)
{
    static const char names[] = "\\'\"abfnrtv", values[] = "\\'\"\a\b\f\n\r\t\v";
    const char c = l->s[at], *simple = strchr(names, c);
    char text[8];
    if (c == '\n')
        return 1;
    if (simple && c) {
        jbuf_add(l->e, out, &values[simple - names], 1);
        return 1;
    }
    if (c >= '0' && c <= '7') {
        uint32_t value = 0;
        size_t n = 0;
        for (; n < 3 && at + n < l->n && l->s[at + n] >= '0' && l->s[at + n] <= '7'; n++)
            value = value << 3 | (uint32_t)(l->s[at + n] - '0');
        jbuf_add(l->e, out, text, tok_utf8_put(value, text));
        return n;
    }
    const size_t n = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (c == 'N')
        jx_fail(l->e, "a string has an escape \\N{...}, which is not offered");
    if (!n) {
        jbuf_add(l->e, out, "\\", 1);
        return 0;
    }
    jbuf_add(l->e, out, text, tok_utf8_put(hexadecimal(l, at + 1, n), text));
    return 1 + n;
}

static size_t lex_string(lexer *l, size_t begin)
{
    const char quote = l->s[begin];
    jbuf out = {0};
    for (size_t at = begin + 1; at < l->n;) {
        size_t plain = at;
        while (plain < l->n && l->s[plain] != quote && l->s[plain] != '\\')
            plain++;
        jbuf_add(l->e, &out, l->s + at, plain - at);
        at = plain;
        if (at < l->n && l->s[at] == quote) {
            token *t = add(l, T_STRING);
            t->text = out.data;
            t->n = out.n;
            return at + 1 - begin;
        }
        if (at + 1 < l->n)
            at += add_escape(l, at + 1, &out);
        at++;
    }
    jx_fail(l->e, "a string has no end: its second %c is missing", quote);
}

/* ---- tags ------------------------------------------------------------------------------------------ */

static bool is_word(char c)
{
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (unsigned char)c >= 0x80;
}

static size_t lex_operator(lexer *l, char *brackets, size_t *depth)
{
    static const struct {
        const char *text;
        char op;
    } two[] = {{"==", 'E'}, {"!=", 'N'}, {">=", 'G'}, {"<=", 'L'}, {"//", 'D'}, {"**", 'P'}};
    const char c = l->s[l->at];
    for (size_t i = 0; i < AX_COUNT(two); i++)
        if (starts(l, l->at, two[i].text)) {
            add(l, T_OP)->op = two[i].op;
            return 2;
        }
    if (!c || !strchr("+-/*%~[](){}><=.:|,;", c))
        jx_fail(l->e, "unexpected character '%.*s'",
                (int)(l->n - l->at < tok_utf8_size((unsigned char)c) ? 1 : tok_utf8_size((unsigned char)c)),
                l->s + l->at);
    if (strchr("([{", c)) {
        if (*depth == JX_DEPTH)
            jx_fail(l->e, "more than %d brackets inside each other", JX_DEPTH);
        brackets[(*depth)++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (strchr(")]}", c) && (!*depth || brackets[--*depth] != c)) {
        jx_fail(l->e, "unexpected '%c'", c);
    }
    add(l, T_OP)->op = c;
    return 1;
}

/* Reads what a tag has up to its end. */
static void lex_tag(lexer *l, bool block)
{
    char brackets[JX_DEPTH];
    size_t depth = 0;
    const int line = l->e->line;
    for (;;) {
        l->at = skip_space(l, l->at);
        count_lines(l, l->at);
        if (l->at >= l->n) {
            l->e->line = line;
            jx_fail(l->e, "a tag has no end: its %s is missing", block ? "%}" : "}}");
        }
        const size_t end = depth ? 0 : end_length(l, l->at, block ? "%}" : "}}", block);
        const char c = l->s[l->at];
        if (end) {
            add(l, block ? T_BLOCK_END : T_PRINT_END);
            end_tag(l, end);
            return;
        }
        if (c >= '0' && c <= '9') {
            l->at += lex_number(l, l->at);
        } else if (is_word(c)) {
            const size_t begin = l->at;
            while (l->at < l->n && is_word(l->s[l->at]))
                l->at++;
            token *t = add(l, T_NAME);
            t->text = l->s + begin;
            t->n = l->at - begin;
        } else if (c == '\'' || c == '"') {
            l->at += lex_string(l, l->at);
        } else {
            l->at += lex_operator(l, brackets, &depth);
        }
    }
}

static void lex_comment(lexer *l)
{
    const char *end = tok_text_find("#}", 2, l->s + l->at, l->n - l->at);
    if (!end)
        jx_fail(l->e, "a comment has no end: its #} is missing");
    const size_t first = l->at;
    l->at = (size_t)(end - l->s);
    if (l->at > first && strchr("+-", l->s[l->at - 1]))
        l->at--;
    end_tag(l, end_length(l, l->at, "#}", true));
}

/* Returns the length of a tag {% NAME %} without arguments; *sign: the character behind its bracket. */
static size_t word_tag(const lexer *l, size_t at, const char *name, bool trims, char *sign)
{
    const size_t begin = at;
    at += 2;
    *sign = at < l->n && strchr("+-", l->s[at]) ? l->s[at] : 0;
    at = skip_space(l, at + (*sign != 0));
    if (!starts(l, at, name))
        return 0;
    at = skip_space(l, at + strlen(name));
    if (!trims && at < l->n && l->s[at] == '+')
        return 0;
    const size_t end = end_length(l, at, "%}", trims);
    if (!end)
        return 0;
    return at + (trims || l->s[at] == '-' ? end : 2) - begin;
}

static void lex_raw(lexer *l)
{
    const size_t begin = l->at;
    for (size_t at = begin;; at++) {
        const char *open = tok_text_find("{%", 2, l->s + at, l->n - at);
        char sign;
        if (!open)
            jx_fail(l->e, "a block raw has no end: its {%% endraw %%} is missing");
        at = (size_t)(open - l->s);
        const size_t n = word_tag(l, at, "endraw", true, &sign);
        if (!n)
            continue;
        add_data(l, begin, at, sign, true);
        l->at = at;
        end_tag(l, n);
        return;
    }
}

static size_t find_tag(const lexer *l)
{
    for (size_t at = l->at; at + 1 < l->n; at++)
        if (l->s[at] == '{' && strchr("{%#", l->s[at + 1]) && l->s[at + 1])
            return at;
    return l->n;
}

static void lex_next(lexer *l)
{
    const size_t at = find_tag(l);
    char sign = 0;
    if (at == l->n) {
        add_data(l, l->at, l->n, '+', false);
        l->at = l->n;
        return;
    }
    const char kind = l->s[at + 1];
    const size_t raw = kind == '%' ? word_tag(l, at, "raw", false, &sign) : 0;
    sign = at + 2 < l->n && strchr("+-", l->s[at + 2]) ? l->s[at + 2] : 0;
    add_data(l, l->at, at, sign, kind != '{');
    l->line_start = false;
    count_lines(l, at);
    l->at = at + (raw ? raw : 2 + (sign != 0));
    if (raw) {
        l->line_start = l->s[l->at - 1] == '\n';
        lex_raw(l);
    } else if (kind == '#') {
        lex_comment(l);
    } else {
        add(l, kind == '%' ? T_BLOCK : T_PRINT);
        lex_tag(l, kind == '%');
    }
    count_lines(l, l->at);
}

token *jx_lex(jx *e, const char *text, size_t n)
{
    /* All line ends become newlines, and one at the end is dropped. */
    char *copy = jx_alloc(e, n + 1);
    size_t m = 0;
    for (size_t i = 0; i < n; i++)
        if (text[i] != '\r')
            copy[m++] = text[i];
        else if (i + 1 == n || text[i + 1] != '\n')
            copy[m++] = '\n';
    m -= m && copy[m - 1] == '\n';
    lexer l = {.e = e, .s = copy, .n = m, .line_start = true};
    e->line = 1;
    while (l.at < l.n)
        lex_next(&l);
    add(&l, T_END);
    return l.out;
}
