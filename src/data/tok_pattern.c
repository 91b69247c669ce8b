/* Translates the regular expressions (patterns) of a tokenizer.json to PCRE2, and cuts text into pieces with
 * them.
 *
 * The files are written for Oniguruma in Ruby syntax. With its options UTF and UCP, PCRE2 gives the patterns
 * of published tokenizers the same meaning, except that its \s includes U+180E: \s is translated to an
 * explicit class. A few constructs that PCRE2 reads differently, or does not know, are errors. */
#include "data/tok.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *tok_pattern_named(const char *name)
{
    static const struct {
        const char *name, *pattern;
    } patterns[] = {
        {"gpt2", "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
        {"llama3", "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
                   " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
        {"qwen2", "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
                  " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}};
    for (size_t i = 0; i < AX_COUNT(patterns); i++)
        if (!strcmp(patterns[i].name, name))
            return patterns[i].pattern;
    return NULL;
}

/* The characters with the Unicode property White_Space, and all other characters, as ranges inside a
 * character class of a regular expression. */
#define SPACES                                                                                               \
    "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{"     \
    "3000}"
#define NOT_SPACES                                                                                           \
    "\\x00-\\x08\\x0e-\\x1f\\x21-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"                 \
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"

/* Returns true if NAME of a property \p{NAME} is a script (writing system) of Unicode. PCRE2 reads \p{Han} as
 * the property Script_Extensions, which also holds for punctuation that several scripts share; Oniguruma
 * reads it as Script, PCRE2's \p{sc:Han}. */
static bool is_script(const char *name, size_t n)
{
    char text[64];
    int error;
    PCRE2_SIZE at;
    int length = snprintf(text, sizeof text, "\\p{sc:%.*s}", (int)n, name);
    if (length < 0 || (size_t)length >= sizeof text)
        return false;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)text, (size_t)length, PCRE2_UTF, &error, &at, NULL);
    pcre2_code_free(code);
    return code != NULL;
}

/* Translates the braces of a property \p{NAME} or \p{^NAME}: {NAME} or {^NAME}, n bytes. */
static ax_status translate_property(const char *braced, size_t n, ax_buf *out)
{
    size_t start = n > 1 && braced[1] == '^' ? 2 : 1;
    bool script = n > start + 1 && is_script(braced + start, n - start - 1);
    AX_TRY(ax_buf_add(out, braced, start));
    AX_TRY(ax_buf_add(out, "sc:", script ? 3 : 0));
    return ax_buf_add(out, braced + start, n - start);
}

/* Translates the escape at *p and moves *p past it. */
static ax_status translate_escape(const char *pattern, const char **p, bool in_class, ax_buf *out)
{
    char c = (*p)[1];
    AX_CHECK(c, AX_ERR_DATA, "pattern \"%s\" ends in a backslash", pattern);
    AX_CHECK(!isalpha((unsigned char)c) || strchr("sSdDpPxunrtfveacz", c), AX_ERR_DATA,
             "pattern \"%s\" uses \\%c, which engines read differently: spell it out as a class", pattern, c);
    *p += 2;
    if (c == 's' || c == 'S') {
        const char *members = c == 's' ? SPACES : NOT_SPACES;
        AX_TRY(ax_buf_printf(out, in_class ? "%s" : "[%s]", members));
        if (!in_class || (*p)[0] != '-' || (*p)[1] == ']')
            return AX_OK;
        *p += 1; /* the hyphen after \s or \S stands for itself, because a class cannot begin a range */
        return ax_buf_printf(out, "\\-");
    }
    if (c == 'v') /* \v is the vertical tab here; in PCRE2, \v is a class of characters */
        return ax_buf_printf(out, "\\x0b");
    if (c != 'u') {
        size_t braced = **p == '{' && strchr("pPx", c) ? strcspn(*p, "}") : 0;
        AX_CHECK(!braced || (*p)[braced], AX_ERR_DATA, "pattern \"%s\": the } after \\%c{ is missing",
                 pattern, c);
        AX_TRY(ax_buf_printf(out, "\\%c", c));
        size_t n = braced + !!braced;
        AX_TRY(n && c != 'x' ? translate_property(*p, n, out) : ax_buf_add(out, *p, n));
        *p += n;
        return AX_OK;
    }
    AX_CHECK(strspn(*p, "0123456789abcdefABCDEF") >= 4, AX_ERR_DATA,
             "pattern \"%s\": \\u must be followed by four hexadecimal digits", pattern);
    AX_TRY(ax_buf_printf(out, "\\x{%.4s}", *p));
    *p += 4;
    return AX_OK;
}

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

static ax_status translate(const char *pattern, ax_buf *out)
{
    bool in_class = false;
    for (const char *p = pattern; *p;) {
        if (*p == '\\') {
            AX_TRY(translate_escape(pattern, &p, in_class, out));
            continue;
        }
        if (in_class) {
            AX_CHECK(*p != '[' && !(p[0] == '&' && p[1] == '&'), AX_ERR_DATA,
                     "pattern \"%s\": sets inside of a class are not supported", pattern);
            in_class = *p != ']';
        } else if (*p == '[') {
            in_class = true;
            AX_CHECK(p[1] != ']' && !(p[1] == '^' && p[2] == ']'), AX_ERR_DATA,
                     "pattern \"%s\": write \\] for a bracket in a class", pattern);
        } else
            AX_TRY(refuse_dialect(pattern, p));
        AX_TRY(ax_buf_add(out, p++, 1));
    }
    return AX_OK;
}

ax_status tok_stage_init(tok_stage *stage, const char *pattern, bool drop_gaps)
{
    *stage = (tok_stage){.drop_gaps = drop_gaps};
    size_t valid = tok_utf8_prefix(pattern, strlen(pattern));
    AX_CHECK(*pattern, AX_ERR_DATA, "the pattern is empty");
    AX_CHECK(valid == strlen(pattern), AX_ERR_DATA, "the pattern is not valid UTF-8 at byte %zu", valid);
    ax_buf text = {0};
    ax_status status = translate(pattern, &text);
    pcre2_compile_context *context = status == AX_OK ? pcre2_compile_context_create(NULL) : NULL;
    if (status == AX_OK && !context)
        status = ax_fail(AX_ERR_MEMORY, "not enough memory to compile the pattern \"%s\"", pattern);
    if (status == AX_OK) {
        int error;
        PCRE2_SIZE at;
        pcre2_set_newline(context, PCRE2_NEWLINE_LF);
        stage->code = pcre2_compile((PCRE2_SPTR)text.data, text.size,
                                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
                                    &at, context);
        char why[256] = "";
        if (!stage->code) {
            pcre2_get_error_message(error, (PCRE2_UCHAR *)why, sizeof why);
            status =
                ax_fail(AX_ERR_DATA, "pattern \"%s\" is not a valid regular expression: %s", pattern, why);
        }
    }
    pcre2_compile_context_free(context);
    ax_buf_fini(&text);
    if (status == AX_OK)
        status = ax_strdup(pattern, &stage->pattern);
    if (status == AX_OK)
        pcre2_jit_compile(stage->code, PCRE2_JIT_COMPLETE); /* if this fails, matching is only slower */
    return status;
}

void tok_stage_fini(tok_stage *stage)
{
    pcre2_code_free(stage->code);
    free(stage->pattern);
    *stage = (tok_stage){0};
}

ax_status tok_matcher_init(tok_matcher *matcher)
{
    matcher->match = pcre2_match_data_create(1, NULL);
    matcher->context = pcre2_match_context_create(NULL);
    matcher->stack = pcre2_jit_stack_create(32 << 10, 8 << 20, NULL);
    AX_CHECK(matcher->match && matcher->context, AX_ERR_MEMORY,
             "not enough memory to split text by the tokenizer's pattern");
    if (matcher->stack)
        pcre2_jit_stack_assign(matcher->context, NULL, matcher->stack);
    return AX_OK;
}

void tok_matcher_fini(tok_matcher *matcher)
{
    pcre2_match_data_free(matcher->match);
    pcre2_match_context_free(matcher->context);
    pcre2_jit_stack_free(matcher->stack);
    *matcher = (tok_matcher){0};
}

/* Finds the next match at or after `from` that is not empty (an empty match cuts nothing). *end is 0 if there
 * is none. */
static ax_status next_match(const tok_stage *stage, tok_matcher *m, const char *text, size_t n, size_t from,
                            size_t *begin, size_t *end)
{
    *end = 0;
    while (from < n) {
        PCRE2_SPTR subject = (PCRE2_SPTR)text;
        int rc = pcre2_match(stage->code, subject, n, from, PCRE2_NO_UTF_CHECK, m->match, m->context);
        if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
            rc = pcre2_match(stage->code, subject, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, m->match,
                             m->context);
        if (rc == PCRE2_ERROR_NOMATCH)
            return AX_OK;
        if (rc < 0) {
            char why[256] = "";
            pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
            return ax_fail(AX_ERR_DATA, "the tokenizer's pattern \"%s\" fails at byte %zu of a text: %s",
                           stage->pattern, from, why);
        }
        const PCRE2_SIZE *found = pcre2_get_ovector_pointer(m->match);
        *begin = found[0];
        *end = found[1];
        if (*begin < *end)
            return AX_OK;
        size_t len = 0;
        if (*begin < n)
            tok_utf8_get(text + *begin, &len);
        from = *begin + ax_max((int64_t)len, 1);
        *end = 0;
    }
    return AX_OK;
}

ax_status tok_split(const tok_stage *stages, int n_stages, tok_matcher *matcher, const char *text, size_t n,
                    tok_piece_fn fn, void *arg)
{
    if (!n)
        return AX_OK;
    if (!n_stages)
        return fn(arg, text, n);
    for (size_t at = 0, begin, end; at < n; at = end) {
        AX_TRY(next_match(stages, matcher, text, n, at, &begin, &end));
        if (!end)
            begin = end = n;
        if (!stages->drop_gaps)
            AX_TRY(tok_split(stages + 1, n_stages - 1, matcher, text + at, begin - at, fn, arg));
        AX_TRY(tok_split(stages + 1, n_stages - 1, matcher, text + begin, end - begin, fn, arg));
    }
    return AX_OK;
}
