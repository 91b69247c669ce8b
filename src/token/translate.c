/* Translates the regular expressions (patterns) of a tokenizer.json to PCRE2.
 *
 * The files are written for Oniguruma in Ruby syntax. With its options UTF and UCP, PCRE2 gives the patterns
 * of published tokenizers the same meaning, with two exceptions. PCRE2's \s includes U+180E: \s is translated
 * to an explicit class. And PCRE2 may have another version of Unicode, so that \p{L} has more or fewer
 * characters: for each class with properties, PCRE2 is asked about the characters that the versions of
 * Unicode do not agree on (tok_unicode_rows), and those that it gets wrong are added to the class, or
 * excluded. A few constructs that PCRE2 reads differently, or does not know, are errors. */
#include "token/tok.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The characters with the Unicode property White_Space, and all other characters, as ranges inside a
 * character class of a regular expression. */
#define SPACES                                                                                               \
    "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{"     \
    "3000}"
#define NOT_SPACES                                                                                           \
    "\\x00-\\x08\\x0e-\\x1f\\x21-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"                 \
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"

/* The translation of a pattern. The other fields are the current character class (or the property outside of
 * a class), divided by the kind of its members. */
typedef struct translation {
    const char *pattern;
    ax_buf *out;
    bool corrected; /* classes are right for the characters of tok_unicode_rows too */
    bool in_class, negated;
    ax_buf plain, categories, scripts; /* members of the class: properties of the two kinds, and all others */
    int depth, caseless;               /* number of open groups; depth of the (?i:...) around, 0: none */
} translation;

static pcre2_code *compile(const char *text, size_t n)
{
    int error;
    PCRE2_SIZE at;
    return pcre2_compile((PCRE2_SPTR)text, n, PCRE2_UTF | PCRE2_UCP, &error, &at, NULL);
}

static bool compiles(const char *format, int n, const char *name)
{
    char text[64];
    int length = snprintf(text, sizeof text, format, n, name);
    pcre2_code *code = length > 0 && (size_t)length < sizeof text ? compile(text, (size_t)length) : NULL;
    pcre2_code_free(code);
    return code != NULL;
}

/* ---- classes with properties ---- */

/* Returns a character of a general category, on which all versions of Unicode agree. */
static uint32_t sample(const char *category)
{
    static const struct {
        char name[3];
        uint32_t c;
    } samples[] = {{"Lu", 'A'},   {"Ll", 'a'},    {"Lt", 0x1C5}, {"Lm", 0x2B0},  {"Lo", 0xAA}, {"Mn", 0x300},
                   {"Mc", 0x903}, {"Me", 0x488},  {"Nd", '0'},   {"Nl", 0x16EE}, {"No", 0xB2}, {"Pc", '_'},
                   {"Pd", '-'},   {"Ps", '('},    {"Pe", ')'},   {"Pi", 0xAB},   {"Pf", 0xBB}, {"Po", '!'},
                   {"Sm", '+'},   {"Sc", '$'},    {"Sk", '^'},   {"So", 0xA6},   {"Cf", 0xAD}, {"Zs", ' '},
                   {"Cc", 0},     {"Co", 0xE000}, {"Cn", 0xFDD0}};
    for (size_t i = 0; i < AX_COUNT(samples); i++)
        if (!strcmp(samples[i].name, category))
            return samples[i].c;
    return 0xFDD0;
}

static bool matches(const pcre2_code *code, pcre2_match_data *match, uint32_t c)
{
    char text[4];
    size_t n = tok_utf8_put(c, text);
    return code && pcre2_match(code, (PCRE2_SPTR)text, n, 0, 0, match, NULL) > 0;
}

/* Compares the properties of the class in the library with those in PCRE2. Appends to `missing` the
 * characters that PCRE2 does not match, but should, and to `excess` those that it matches, but should not. */
static ax_status compare(const translation *t, const pcre2_code *const codes[3], ax_buf *missing,
                         ax_buf *excess)
{
    size_t n;
    const tok_unicode_row *rows = tok_unicode_rows(&n);
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    AX_CHECK(match, AX_ERR_MEMORY, "not enough memory to compile the pattern \"%s\"", t->pattern);
    ax_status status = AX_OK;
    for (size_t i = 0; i < n && status == AX_OK; i++) {
        const tok_unicode_row *row = &rows[i];
        bool have = matches(codes[0], match, row->first);
        bool want = matches(codes[1], match, sample(row->category)) || matches(codes[2], match, row->script);
        if (have != want)
            status = ax_buf_printf(have ? excess : missing, "\\x{%x}-\\x{%x}", row->first, row->last);
    }
    pcre2_match_data_free(match);
    return status;
}

/* Appends the class [...] with the members of `parts` to `out`. */
static ax_status add_class(const ax_buf *const *parts, size_t n, bool negated, ax_buf *out)
{
    AX_TRY(ax_buf_printf(out, negated ? "[^" : "["));
    for (size_t i = 0; i < n; i++)
        AX_TRY(ax_buf_add(out, parts[i]->data, parts[i]->size));
    return ax_buf_printf(out, "]");
}

static ax_status find_differences(const translation *t, ax_buf *missing, ax_buf *excess)
{
    const ax_buf *kinds[] = {&t->categories, &t->scripts};
    const struct {
        const ax_buf *const *parts;
        size_t n;
    } sets[] = {{kinds, 2}, {kinds, 1}, {kinds + 1, 1}};
    pcre2_code *codes[AX_COUNT(sets)] = {0};
    ax_status status = AX_OK;
    for (size_t i = 0; i < AX_COUNT(sets) && status == AX_OK; i++) {
        ax_buf text = {0};
        bool empty = i && !sets[i].parts[0]->size;
        status = empty ? AX_OK : add_class(sets[i].parts, sets[i].n, false, &text);
        codes[i] = status == AX_OK && !empty ? compile(text.data, text.size) : NULL;
        ax_buf_fini(&text);
    }
    if (status == AX_OK && codes[0])
        status = compare(t, (const pcre2_code *const *)codes, missing, excess);
    for (size_t i = 0; i < AX_COUNT(codes); i++)
        pcre2_code_free(codes[i]);
    return status;
}

/* Appends the current class to t->out. What is missing becomes a member of the class. If there is an excess,
 * the class is an alternative: with its properties for other characters, without them for those of the
 * excess. */
static ax_status add_corrected(translation *t, const ax_buf *missing, const ax_buf *excess)
{
    const ax_buf *all[] = {&t->plain, &t->categories, &t->scripts, missing};
    if (!excess->size)
        return add_class(all, AX_COUNT(all), t->negated, t->out);
    AX_TRY(ax_buf_printf(t->out, "(?:(?!"));
    AX_TRY(add_class(&excess, 1, false, t->out));
    AX_TRY(ax_buf_printf(t->out, ")"));
    AX_TRY(add_class(all, AX_COUNT(all), t->negated, t->out));
    AX_TRY(ax_buf_printf(t->out, "|(?="));
    AX_TRY(add_class(&excess, 1, false, t->out));
    AX_TRY(ax_buf_printf(t->out, ")"));
    if (t->plain.size)
        AX_TRY(add_class(all, 1, t->negated, t->out));
    else
        AX_TRY(ax_buf_printf(t->out, t->negated ? "[\\x{0}-\\x{10ffff}]" : "(?!)"));
    return ax_buf_printf(t->out, ")");
}

static ax_status end_class(translation *t)
{
    ax_buf missing = {0}, excess = {0};
    bool properties = t->categories.size || t->scripts.size;
    ax_status status = t->corrected && properties ? find_differences(t, &missing, &excess) : AX_OK;
    if (status == AX_OK)
        status = add_corrected(t, &missing, &excess);
    ax_buf_fini(&missing);
    ax_buf_fini(&excess);
    t->in_class = false;
    return status;
}

static void begin_class(translation *t, bool negated)
{
    t->in_class = true;
    t->negated = negated;
    t->plain.size = t->categories.size = t->scripts.size = 0;
}

/* ---- escapes ---- */

/* Writes a hyphen that follows a class of characters, such as \s, as a member of its own: it cannot begin a
 * range. */
static ax_status pass_hyphen(translation *t, const char **p)
{
    if (!t->in_class || **p != '-')
        return AX_OK;
    *p += 1;
    return ax_buf_printf(&t->plain, "\\-");
}

/* Translates the property \p{NAME} of n bytes, or \p{^NAME}. PCRE2 reads \p{Han} as the property
 * Script_Extensions, which also holds for punctuation that several scripts share; Oniguruma reads it as
 * Script, PCRE2's \p{sc:Han}. PCRE2 before 10.40 has no other properties than categories and scripts, and no
 * "sc:". */
static ax_status add_property(translation *t, bool negated, const char *name, size_t n)
{
    if (n && *name == '^') {
        negated = !negated;
        name++;
        n--;
    }
    AX_CHECK(n && n < 50 && strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_&") >= n,
             AX_ERR_DATA, "pattern \"%s\": \\p{%.*s} is not a property that is supported", t->pattern,
             (int)ax_min(n, 50), name);
    bool short_name = n <= 2 || (n == 3 && !memcmp(name, "Any", 3));
    bool prefix = compiles("\\p{sc:%.*s}", (int)n, name);
    bool script = prefix || (!compiles("\\p{sc:%.*s}", 5, "Latin") && compiles("\\p{%.*s}", (int)n, name));
    AX_CHECK(short_name || script, AX_ERR_DATA,
             "pattern \"%s\": \\p{%.*s} is neither a general category, such as L or Lu, nor a script, such "
             "as Han: spell "
             "it out as a class",
             t->pattern, (int)n, name);
    AX_CHECK(!t->caseless, AX_ERR_DATA,
             "pattern \"%s\": engines read \\p{%.*s} inside of (?i:...) differently: write it outside",
             t->pattern, (int)n, name);
    bool alone = !t->in_class;
    if (alone)
        begin_class(t, negated);
    AX_TRY(ax_buf_printf(short_name ? &t->categories : &t->scripts, "\\%c{%s%.*s}",
                         negated && !alone ? 'P' : 'p', !short_name && prefix ? "sc:" : "", (int)n, name));
    return alone ? end_class(t) : AX_OK;
}

static ax_status translate_property(translation *t, char c, const char **p)
{
    if (c == 'd' || c == 'D')
        return add_property(t, c == 'D', "Nd", 2);
    AX_CHECK(**p == '{', AX_ERR_DATA, "pattern \"%s\": write \\%c{NAME} with braces, which engines need",
             t->pattern, c);
    size_t n = strcspn(*p, "}");
    AX_CHECK((*p)[n], AX_ERR_DATA, "pattern \"%s\": the } after \\%c{ is missing", t->pattern, c);
    const char *name = *p + 1;
    *p += n + 1;
    return add_property(t, c == 'P', name, n - 1);
}

/* Translates the escape at *p and moves *p past it. */
static ax_status translate_escape(translation *t, const char **p)
{
    const char *pattern = t->pattern;
    ax_buf *out = t->in_class ? &t->plain : t->out;
    char c = (*p)[1];
    AX_CHECK(c, AX_ERR_DATA, "pattern \"%s\" ends in a backslash", pattern);
    AX_CHECK(!isalpha((unsigned char)c) || strchr("sSdDpPxunrtfveacz", c), AX_ERR_DATA,
             "pattern \"%s\" uses \\%c, which engines read differently: spell it out as a class", pattern, c);
    *p += 2;
    if (strchr("sSdDpP", c)) {
        const char *members = c == 's' ? SPACES : NOT_SPACES;
        AX_TRY(tolower((unsigned char)c) != 's' ? translate_property(t, c, p)
                                                : ax_buf_printf(out, t->in_class ? "%s" : "[%s]", members));
        return pass_hyphen(t, p);
    }
    if (c == 'v') /* \v is the vertical tab here; in PCRE2, \v is a class of characters */
        return ax_buf_printf(out, "\\x0b");
    if (c != 'u') {
        size_t braced = **p == '{' && c == 'x' ? strcspn(*p, "}") : 0;
        AX_CHECK(!braced || (*p)[braced], AX_ERR_DATA, "pattern \"%s\": the } after \\%c{ is missing",
                 pattern, c);
        AX_TRY(ax_buf_printf(out, "\\%c", c));
        AX_TRY(ax_buf_add(out, *p, braced + !!braced));
        *p += braced + !!braced;
        return AX_OK;
    }
    AX_CHECK(strspn(*p, "0123456789abcdefABCDEF") >= 4, AX_ERR_DATA,
             "pattern \"%s\": \\u must be followed by four hexadecimal digits", pattern);
    AX_TRY(ax_buf_printf(out, "\\x{%.4s}", *p));
    *p += 4;
    return AX_OK;
}

/* ---- the whole ---- */

/* Fails for constructs outside of character classes that mean something else in Ruby syntax than in PCRE2. */
static ax_status refuse_dialect(const char *pattern, const char *p)
{
    if (p[0] == '(' && p[1] == '?') {
        const char *flags = p + 2;
        bool options = strchr("imxsuad-", *flags) != NULL;
        AX_CHECK(!options || flags[strspn(flags, "i")] == ':', AX_ERR_DATA,
                 "pattern \"%s\": the only inline option that is supported is (?i:...)", pattern);
        AX_CHECK(options || strchr(":=!>", *flags) || (*flags == '<' && strchr("=!", flags[1])), AX_ERR_DATA,
                 "pattern \"%s\": the group \"%.4s\" is not supported", pattern, p);
    }
    if (p[0] == '{') {
        AX_CHECK(p[1] != ',', AX_ERR_DATA, "pattern \"%s\": write {0,n} instead of {,n}", pattern);
        const char *end = strchr(p, '}');
        AX_CHECK(
            !end || end[1] != '+', AX_ERR_DATA,
            "pattern \"%s\": regular expression engines read {n,m}+ differently: write (?>...{n,m}) or {n,m}",
            pattern);
    }
    return AX_OK;
}

/* Keeps count of groups, and of the one that ignores case. */
static void count_groups(translation *t, const char *p)
{
    if (*p == '(' && ++t->depth && !t->caseless && p[1] == '?' && p[2] == 'i')
        t->caseless = t->depth;
    if (*p != ')')
        return;
    if (t->caseless == t->depth)
        t->caseless = 0;
    t->depth--;
}

/* Translates one character outside of classes, or the start of a class, and moves *p past it. */
static ax_status translate_outside(translation *t, const char **p)
{
    const char *at = *p;
    if (*at != '[') {
        AX_TRY(refuse_dialect(t->pattern, at));
        count_groups(t, at);
        *p = at + 1;
        return ax_buf_add(t->out, at, 1);
    }
    begin_class(t, at[1] == '^');
    *p = at + 1 + t->negated;
    AX_CHECK(**p != ']', AX_ERR_DATA, "pattern \"%s\": write \\] for a bracket in a class", t->pattern);
    return AX_OK;
}

/* Translates one character of a class, or its end, and moves *p past it. */
static ax_status translate_inside(translation *t, const char **p)
{
    const char *at = (*p)++;
    AX_CHECK(*at != '[' && !(at[0] == '&' && at[1] == '&'), AX_ERR_DATA,
             "pattern \"%s\": sets inside of a class are not supported", t->pattern);
    if (*at == ']')
        return end_class(t);
    bool literal =
        *at == '-' && (!t->plain.size || at[1] == ']' || (at[1] == '\\' && at[2] && strchr("sSdDpP", at[2])));
    return ax_buf_printf(&t->plain, literal ? "\\-" : "%c", *at);
}

ax_status tok_translate(const char *pattern, bool corrected, ax_buf *out)
{
    translation t = {.pattern = pattern, .out = out, .corrected = corrected};
    ax_status status = AX_OK;
    for (const char *p = pattern; *p && status == AX_OK;)
        status = *p == '\\'   ? translate_escape(&t, &p)
                 : t.in_class ? translate_inside(&t, &p)
                              : translate_outside(&t, &p);
    if (status == AX_OK && t.in_class)
        status = ax_fail(AX_ERR_DATA, "pattern \"%s\": the ] of a class is missing", pattern);
    ax_buf_fini(&t.plain);
    ax_buf_fini(&t.categories);
    ax_buf_fini(&t.scripts);
    return status;
}
