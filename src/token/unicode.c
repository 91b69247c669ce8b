/* Unicode general categories as the regular expressions of Hugging Face's library `tokenizers` know them:
 * those of Unicode 16. The libraries PCRE2 and utf8proc have those of Unicode 14 on Debian 12, and of other
 * versions elsewhere. The table holds the characters that the versions do not agree on. */
#include "token/unicode.h"
#include "token/tok.h"

#include <utf8proc.h>

static const tok_unicode_row rows[] = {TOK_UNICODE_ROWS};

const tok_unicode_row *tok_unicode_rows(size_t *n)
{
    *n = AX_COUNT(rows);
    return rows;
}

/* Returns the row of a character, or NULL. */
static const tok_unicode_row *find_row(uint32_t c)
{
    size_t lo = 0, hi = AX_COUNT(rows);
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (rows[mid].last < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < AX_COUNT(rows) && rows[lo].first <= c ? &rows[lo] : NULL;
}

const char *tok_category(uint32_t c)
{
    const tok_unicode_row *row = find_row(c);
    return row ? row->category : utf8proc_category_string((utf8proc_int32_t)c);
}

bool tok_unicode_disputed(const char *text, size_t n)
{
    for (size_t i = 0, length; i < n; i += length) {
        length = 1;
        if ((unsigned char)text[i] < 0x80)
            continue;
        uint32_t c = tok_utf8_get(text + i, &length);
        if (c >= rows[0].first && find_row(c))
            return true;
    }
    return false;
}
