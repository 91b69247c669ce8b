/* Cuts text into pieces with the regular expressions (patterns) of a tokenizer.json. */
#include "token/tok.h"

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

static ax_status compile(const char *pattern, const ax_buf *text, pcre2_code **code)
{
    int error;
    PCRE2_SIZE at;
    char why[256] = "";
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    AX_CHECK(context, AX_ERR_MEMORY, "not enough memory to compile the pattern \"%s\"", pattern);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    *code = pcre2_compile((PCRE2_SPTR)text->data, text->size,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &at,
                          context);
    pcre2_compile_context_free(context);
    if (!*code) {
        pcre2_get_error_message(error, (PCRE2_UCHAR *)why, sizeof why);
        return ax_fail(AX_ERR_DATA, "pattern \"%s\" is not a valid regular expression: %s", pattern, why);
    }
    pcre2_jit_compile(*code, PCRE2_JIT_COMPLETE); /* if this fails, matching is only slower */
    return AX_OK;
}

ax_status tok_stage_init(tok_stage *stage, const char *pattern, bool drop_gaps)
{
    *stage = (tok_stage){.drop_gaps = drop_gaps};
    size_t valid = tok_utf8_prefix(pattern, strlen(pattern));
    AX_CHECK(*pattern, AX_ERR_DATA, "the pattern is empty");
    AX_CHECK(valid == strlen(pattern), AX_ERR_DATA, "the pattern is not valid UTF-8 at byte %zu", valid);
    ax_buf text = {0}, corrected = {0};
    ax_status status = tok_translate(pattern, false, &text);
    if (status == AX_OK)
        status = tok_translate(pattern, true, &corrected);
    if (status == AX_OK)
        status = compile(pattern, &text, &stage->code);
    bool same = text.size == corrected.size && (!text.size || !memcmp(text.data, corrected.data, text.size));
    if (status == AX_OK && !same)
        status = compile(pattern, &corrected, &stage->corrected);
    ax_buf_fini(&text);
    ax_buf_fini(&corrected);
    return status == AX_OK ? ax_strdup(pattern, &stage->pattern) : status;
}

void tok_stage_fini(tok_stage *stage)
{
    pcre2_code_free(stage->code);
    pcre2_code_free(stage->corrected);
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
 * is none. `disputed`: the text may have characters for which the stage has another code. */
static ax_status next_match(const tok_stage *stage, tok_matcher *m, bool disputed, const char *text, size_t n,
                            size_t from, size_t *begin, size_t *end)
{
    const pcre2_code *code = disputed && stage->corrected ? stage->corrected : stage->code;
    *end = 0;
    while (from < n) {
        PCRE2_SPTR subject = (PCRE2_SPTR)text;
        int rc = pcre2_match(code, subject, n, from, PCRE2_NO_UTF_CHECK, m->match, m->context);
        if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
            rc = pcre2_match(code, subject, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, m->match, m->context);
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

static ax_status split(const tok_stage *stages, int n_stages, tok_matcher *matcher, bool disputed,
                       const char *text, size_t n, tok_piece_fn fn, void *arg)
{
    if (!n)
        return AX_OK;
    if (!n_stages)
        return fn(arg, text, n);
    for (size_t at = 0, begin, end; at < n; at = end) {
        AX_TRY(next_match(stages, matcher, disputed, text, n, at, &begin, &end));
        if (!end)
            begin = end = n;
        if (!stages->drop_gaps)
            AX_TRY(split(stages + 1, n_stages - 1, matcher, disputed, text + at, begin - at, fn, arg));
        AX_TRY(split(stages + 1, n_stages - 1, matcher, disputed, text + begin, end - begin, fn, arg));
    }
    return AX_OK;
}

ax_status tok_split(const tok_stage *stages, int n_stages, tok_matcher *matcher, const char *text, size_t n,
                    tok_piece_fn fn, void *arg)
{
    bool corrected = false;
    for (int i = 0; i < n_stages; i++)
        corrected = corrected || stages[i].corrected;
    bool disputed = corrected && tok_unicode_disputed(text, n);
    return split(stages, n_stages, matcher, disputed, text, n, fn, arg);
}
