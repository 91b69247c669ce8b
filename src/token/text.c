/* Bytes and characters: UTF-8, white space, and the characters that stand for bytes in JSON files. */
#include "token/tok.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* Returns the length of the UTF-8 sequence at p, of at most n bytes; 0 if it is not valid (RFC 3629, table
 * 3-7 of the Unicode standard: no overlong forms, no surrogates, nothing above U+10FFFF). */
static size_t sequence_length(const unsigned char *p, size_t n)
{
    if (p[0] < 0x80)
        return 1;
    size_t len = p[0] < 0xC2 ? 0 : p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : p[0] < 0xF5 ? 4 : 0;
    if (!len || len > n)
        return 0;
    unsigned low = p[0] == 0xE0 ? 0xA0 : p[0] == 0xF0 ? 0x90 : 0x80;
    unsigned high = p[0] == 0xED ? 0x9F : p[0] == 0xF4 ? 0x8F : 0xBF;
    if (p[1] < low || p[1] > high)
        return 0;
    for (size_t i = 2; i < len; i++)
        if ((p[i] & 0xC0) != 0x80)
            return 0;
    return len;
}

size_t tok_utf8_prefix(const char *text, size_t n)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t i = 0;
    while (i < n) {
        uint64_t eight;
        if (n - i >= sizeof eight) {
            memcpy(&eight, p + i, sizeof eight);
            if (!(eight & UINT64_C(0x8080808080808080))) {
                i += sizeof eight;
                continue;
            }
        }
        size_t len = sequence_length(p + i, n - i);
        if (!len)
            break;
        i += len;
    }
    return i;
}

uint32_t tok_utf8_get(const char *text, size_t *size)
{
    const unsigned char *p = (const unsigned char *)text;
    if (p[0] < 0x80) {
        *size = 1;
        return p[0];
    }
    *size = p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : 4;
    uint32_t c = p[0] & (0xFFu >> (*size + 1));
    for (size_t i = 1; i < *size; i++)
        c = c << 6 | (p[i] & 0x3F);
    return c;
}

size_t tok_utf8_put(uint32_t c, char *out)
{
    return (size_t)utf8proc_encode_char((utf8proc_int32_t)c, (utf8proc_uint8_t *)out);
}

/* In tokenizer.json, bytes 0-32, 127-160 and 173 are written as other characters, from U+0100
 * (FIRST_STAND_IN) on; each other byte is written as the character whose code point is the value of the
 * byte. */
enum { FIRST_STAND_IN = 256, N_LOW = 33, N_MIDDLE = 34 };

uint32_t tok_byte_char(unsigned byte)
{
    if (byte < N_LOW)
        return FIRST_STAND_IN + byte;
    if (byte >= 127 && byte <= 160)
        return FIRST_STAND_IN + N_LOW + (byte - 127);
    return byte == 173 ? FIRST_STAND_IN + N_LOW + N_MIDDLE : byte;
}

int tok_char_byte(uint32_t c)
{
    if (c >= FIRST_STAND_IN) {
        c -= FIRST_STAND_IN;
        return c < N_LOW               ? (int)c
               : c < N_LOW + N_MIDDLE  ? (int)(c - N_LOW + 127)
               : c == N_LOW + N_MIDDLE ? 173
                                       : -1;
    }
    return tok_byte_char(c) == c ? (int)c : -1;
}

bool tok_name_bytes(const char *name, size_t n, char *out, size_t *size)
{
    *size = 0;
    for (size_t i = 0, len; i < n; i += len) {
        int byte = tok_char_byte(tok_utf8_get(name + i, &len));
        if (byte < 0)
            return false;
        out[(*size)++] = (char)byte;
    }
    return true;
}

/* Returns true if the character has the property White_Space. PCRE2's \s includes U+180E too, White_Space
 * does not. */
static bool is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

/* Returns the index at which the last character starts. The text is valid UTF-8, n > 0. */
static size_t last_character(const char *text, size_t n)
{
    do
        n--;
    while (n && ((unsigned char)text[n] & 0xC0) == 0x80);
    return n;
}

size_t tok_space_prefix(const char *text, size_t n)
{
    size_t i = 0, len;
    while (i < n && is_space(tok_utf8_get(text + i, &len)))
        i += len;
    return i;
}

size_t tok_space_suffix(const char *text, size_t n)
{
    size_t end = n, len;
    while (end) {
        size_t start = last_character(text, end);
        if (!is_space(tok_utf8_get(text + start, &len)))
            break;
        end = start;
    }
    return n - end;
}

/* Returns true for a word character (\w of Unicode's regular expressions): a letter, another alphabetic
 * character (the circled letters are symbols), a mark, a decimal digit, a connector, or a joiner. */
static bool is_word(uint32_t c)
{
    static const uint32_t circled[][2] = {
        {0x24B6, 0x24E9}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};
    const char *category = tok_category(c);
    bool word = c == 0x200C || c == 0x200D || strchr("LM", *category) || !strcmp(category, "Nd") ||
                !strcmp(category, "Nl") || !strcmp(category, "Pc");
    for (size_t i = 0; i < AX_COUNT(circled); i++)
        word |= c >= circled[i][0] && c <= circled[i][1];
    return word;
}

bool tok_starts_word(const char *text, size_t n)
{
    size_t len;
    return n && is_word(tok_utf8_get(text, &len));
}

bool tok_ends_word(const char *text, size_t n)
{
    size_t len;
    return n && is_word(tok_utf8_get(text + last_character(text, n), &len));
}
