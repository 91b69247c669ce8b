/* Unicode normal forms of text, as Hugging Face's library `tokenizers` computes them. */
#include "token/tok.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* Ranges of characters that normalization keeps as they are; the text before such a character and the text
 * after it are normalized separately. Hugging Face's library computes the normal forms of Unicode 9: it does
 * not reorder marks of later versions, and neither composes nor decomposes characters of later versions. The
 * ranges hold the characters added in Unicode 10 to 18 that have a combining class or a decomposition, or
 * that occur in the decomposition of another character. tests/golden/check_tokens.py (with the package
 * unicodedata2) encodes texts with each character of the first two kinds, and compares the tokens with those
 * of the library. U+11A7 is in the table for another reason: utf8proc before November 2025 loses this
 * character after a Hangul syllable. */
static const uint32_t inert[][2] = {
    {0x558, 0x558},     {0x58B, 0x58C},     {0x5C8, 0x5C9},     {0x7FD, 0x7FD},     {0x897, 0x89F},
    {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},
    {0x11A7, 0x11A7},   {0x1715, 0x1715},   {0x1ABF, 0x1AF0},   {0x1DF6, 0x1DFA},   {0x209D, 0x209F},
    {0x32FF, 0x32FF},   {0xA7F1, 0xA7F4},   {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x105C9, 0x105C9},
    {0x105D2, 0x105D2}, {0x105DA, 0x105DA}, {0x105E4, 0x105E4}, {0x10781, 0x10785}, {0x10787, 0x107B0},
    {0x107B2, 0x107BF}, {0x10D24, 0x10D27}, {0x10D69, 0x10D6D}, {0x10EAB, 0x10EAC}, {0x10ECB, 0x10ECF},
    {0x10EF0, 0x10EFB}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070},
    {0x1133B, 0x1133B}, {0x11382, 0x11385}, {0x1138B, 0x1138B}, {0x1138E, 0x1138E}, {0x11390, 0x11391},
    {0x113B8, 0x113B8}, {0x113BB, 0x113BB}, {0x113C2, 0x113C2}, {0x113C5, 0x113C5}, {0x113C7, 0x113C9},
    {0x113CE, 0x113D0}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930}, {0x11935, 0x11935},
    {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
    {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97},
    {0x11F41, 0x11F42}, {0x1611E, 0x16129}, {0x1612F, 0x1612F}, {0x16D63, 0x16D63}, {0x16D67, 0x16D6A},
    {0x16FF0, 0x16FF1}, {0x1B123, 0x1B126}, {0x1CCD6, 0x1CCF9}, {0x1D127, 0x1D128}, {0x1D250, 0x1D252},
    {0x1D25B, 0x1D25C}, {0x1D25F, 0x1D25F}, {0x1D280, 0x1D281}, {0x1D6A6, 0x1D6A6}, {0x1DF95, 0x1DF95},
    {0x1DFCD, 0x1DFFF}, {0x1E030, 0x1E06D}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE},
    {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}, {0x1E5EE, 0x1E5EF}, {0x1E6E3, 0x1E6E3}, {0x1E6E6, 0x1E6E6},
    {0x1E6EE, 0x1E6EF}, {0x1E6F5, 0x1E6F5}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9}};

/* Returns true if character c is in the table `inert`. */
static bool is_inert(uint32_t c)
{
    size_t lo = 0, hi = AX_COUNT(inert);
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (inert[mid][1] < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < AX_COUNT(inert) && inert[lo][0] <= c;
}

int tok_form_named(const char *name)
{
    static const struct {
        const char *name;
        int form;
    } forms[] = {{"NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE},
                 {"NFD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
                 {"NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
                 {"NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT}};
    for (size_t i = 0; i < AX_COUNT(forms); i++)
        if (!strcmp(forms[i].name, name))
            return forms[i].form;
    return -1;
}

/* Returns the index, at or after i, of the first byte that is not ASCII; n if there is none. */
static size_t find_wide(const char *text, size_t i, size_t n)
{
    while (i < n && (unsigned char)text[i] < 0x80)
        i++;
    return i;
}

/* Normalizes `n` bytes of text in which no character is in the table `inert`. */
static ax_status normalize_part(int form, const char *text, size_t n, ax_buf *out)
{
    utf8proc_uint8_t *normal = NULL;
    utf8proc_ssize_t size =
        utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, &normal, (utf8proc_option_t)form);
    AX_CHECK(size >= 0, size == UTF8PROC_ERROR_NOMEM ? AX_ERR_MEMORY : AX_ERR_DATA,
             "cannot normalize %zu bytes of text: %s", n, utf8proc_errmsg(size));
    ax_status status = ax_buf_add(out, normal, (size_t)size);
    free(normal);
    return status;
}

/* Copies the characters of a stretch of text that are in the table `inert`, and normalizes the text between
 * them. */
static ax_status normalize_stretch(int form, const char *text, size_t n, ax_buf *out)
{
    size_t begin = 0, size;
    for (size_t i = 0; i < n; i += size) {
        if (!is_inert(tok_utf8_get(text + i, &size)))
            continue;
        AX_TRY(normalize_part(form, text + begin, i - begin, out));
        AX_TRY(ax_buf_add(out, text + i, size));
        begin = i + size;
    }
    return normalize_part(form, text + begin, n - begin, out);
}

/* Normalizes the stretches of text that hold non-ASCII characters, and copies the rest. ASCII is its own
 * normal form, and an ASCII character never combines with the text before it. So the text from one ASCII
 * character to the next can be normalized by itself. Two stretches with at most MERGE_WITHIN ASCII bytes
 * between them are normalized together. */
ax_status tok_normalize(int form, const char *text, size_t n, ax_buf *out)
{
    enum { MERGE_WITHIN = 32 };
    for (size_t i = 0; i < n;) {
        size_t begin = form ? find_wide(text, i, n) : n, end = begin;
        /* Begins one ASCII character earlier, because a combining mark may combine with that character. */
        begin -= begin > i && begin < n;
        AX_TRY(ax_buf_add(out, text + i, begin - i));
        for (size_t wide = end; wide < n && wide - end <= MERGE_WITHIN; wide = find_wide(text, end, n))
            for (end = wide; end < n && (unsigned char)text[end] >= 0x80;)
                end++;
        i = end;
        if (begin == end)
            continue;
        AX_TRY(normalize_stretch(form, text + begin, end - begin, out));
    }
    return AX_OK;
}
