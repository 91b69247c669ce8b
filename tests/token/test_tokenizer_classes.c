/* data: where patterns of tokenizers cut text: classes of characters compared with Hugging Face's on every
 * character, and what regular expression engines read differently. */
#include "token/tok.h"

#include <inttypes.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { CHARACTERS = 0x110000 - 0x800 }; /* all but the surrogates */

/* A text of characters in order. of[i] is the number of the character that begins at byte i, 0 <= i <= n; the
 * surrogates count as none. */
typedef struct every {
    char *text;
    uint32_t *of;
    size_t n;
} every;

/* The ranges of characters of a class, hashed as tests/golden/make_classes.py does. */
typedef struct ranges {
    const every *all;
    uint32_t first, last; /* of the range that is not hashed yet */
    int64_t characters;
    uint64_t hash;
} ranges;

static uint32_t nth_character(uint32_t i) { return i < 0xD800 ? i : i + 0x800; }

/* Returns true for planes 4 to 13, 15 and 16, whose characters are unassigned or for private use. */
static bool is_elsewhere(uint32_t c) { return c >= 0x40000 && c >> 16 != 14; }

static void hash_range(ranges *r)
{
    const uint32_t ends[] = {r->first, r->last};
    for (int i = 0; r->characters && i < 8; i++)
        r->hash = (r->hash ^ (ends[i / 4] >> 8 * (i % 4) & 0xFF)) * UINT64_C(0x100000001B3);
}

/* Adds the characters first ... last, which are above those that were added before. */
static void add_range(ranges *r, uint32_t first, uint32_t last)
{
    if (!r->characters || first != r->last + 1) {
        hash_range(r);
        r->first = first;
    }
    r->last = last;
    r->characters += last - first + 1;
}

static ax_status take_piece(void *arg, const char *piece, size_t n)
{
    ranges *r = arg;
    size_t at = (size_t)(piece - r->all->text);
    uint32_t first = r->all->of[at], end = r->all->of[at + n];
    if (first < 0xD800 && end > 0xD800) { /* no range crosses the surrogates */
        add_range(r, first, 0xD7FF);
        first = 0xD800;
    }
    add_range(r, nth_character(first), nth_character(end - 1));
    return AX_OK;
}

/* Adds the characters behind which an added token with single_word is not found. */
static void find_words(ranges *r)
{
    for (uint32_t i = 0; i < CHARACTERS; i++) {
        char text[4];
        const uint32_t c = nth_character(i);
        if (!is_elsewhere(c) && tok_ends_word(text, tok_utf8_put(c, text)))
            add_range(r, c, c);
    }
}

static void find_matches(const char *class, tok_matcher *matcher, ranges *r)
{
    char pattern[128];
    tok_stage stage;
    snprintf(pattern, sizeof pattern, "%s++", class);
    assert_int_equal(tok_stage_init(&stage, pattern, true), AX_OK);
    assert_int_equal(tok_split(&stage, 1, matcher, r->all->text, r->all->n, take_piece, r), AX_OK);
    tok_stage_fini(&stage);
}

/* `few`: only those that are not elsewhere. */
static void make_text(every *all, int few)
{
    all->text = malloc(4 * CHARACTERS);
    all->of = malloc((4 * CHARACTERS + 1) * sizeof *all->of);
    for (uint32_t i = 0; i < CHARACTERS; i++) {
        const uint32_t c = nth_character(i);
        if (few && is_elsewhere(c))
            continue;
        all->of[all->n] = i;
        all->n += tok_utf8_put(c, all->text + all->n);
    }
    all->of[all->n] = CHARACTERS;
}

/* Each class has the characters that it has in the library tokenizers, with each version of PCRE2 and of
 * utf8proc. */
static void classes_on_every_character(void **state)
{
    json_t *golden = json_load_file(AXONN_SOURCE_DIR "/tests/golden/classes.json", 0, NULL);
    const json_t *entry;
    tok_matcher matcher;
    every texts[2] = {{0}}; /* [1]: few characters */
    size_t i;
    int wrong = 0;
    (void)state;
    for (int few = 0; few < 2; few++)
        make_text(&texts[few], few);
    assert_non_null(golden);
    assert_int_equal(tok_matcher_init(&matcher), AX_OK);
    json_array_foreach(json_object_get(golden, "classes"), i, entry)
    {
        const char *class = json_string_value(json_object_get(entry, "class"));
        const char *want = json_string_value(json_object_get(entry, "ranges"));
        ranges r = {.all = &texts[json_is_true(json_object_get(entry, "few"))],
                    .hash = UINT64_C(0xCBF29CE484222325)};
        char hash[32];
        if (strcmp(class, "word"))
            find_matches(class, &matcher, &r);
        else
            find_words(&r);
        hash_range(&r);
        snprintf(hash, sizeof hash, "%016" PRIx64, r.hash);
        if (!strcmp(hash, want))
            continue;
        print_error(
            "%s has %lld characters, not exactly the %lld of the library, which make_classes.py prints\n",
            class, (long long)r.characters,
            (long long)json_integer_value(json_object_get(entry, "characters")));
        wrong++;
    }
    assert_true(i > 50);
    assert_int_equal(wrong, 0);
    tok_matcher_fini(&matcher);
    json_decref(golden);
    for (int few = 0; few < 2; few++) {
        free(texts[few].text);
        free(texts[few].of);
    }
}

static ax_status take_first(void *arg, const char *piece, size_t n)
{
    (void)piece;
    size_t *first = arg;
    *first = *first ? *first : n;
    return AX_OK;
}

/* Characters of Unicode 15 and 16 have their properties with each version of PCRE2; those of 17 have none, as
 * in the library tokenizers. The first piece is the first two characters if the class matches both. */
static void properties_of_unicode_16(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *text;
        size_t first;
    } cases[] = {{"\\p{S}+|x", "\U0001FA77\U0001FABFx", 8},
                 {"[^\\s\\p{L}\\p{N}]+|x", "\U0001FA77\U0002EBF0x", 4},
                 {"\\p{L}+|x", "\U0002EBF0\u1C89x", 8},
                 {"[\\P{L}y]+|\\p{L}", "\U0001FA77\u1C89x", 4},
                 {"\\p{Han}+|x", "\U0002EBF0\U00031350x", 8},
                 {"\\p{L}+|\\P{L}", "a\U000323B0x", 1},
                 {"\\p{Mc}+|\\P{Mc}", "\U0001171E\U0001171Ex", 8},
                 {"[\\p{Mn}]+|\\P{Mn}", "\U0001171E\U0001171Ex", 4},
                 {"\\d+|\\D",
                  "\U00011F50"
                  "1x",
                  5}};
    tok_matcher matcher;
    assert_int_equal(tok_matcher_init(&matcher), AX_OK);
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        tok_stage stage;
        size_t first = 0;
        assert_int_equal(tok_stage_init(&stage, cases[i].pattern, false), AX_OK);
        assert_int_equal(
            tok_split(&stage, 1, &matcher, cases[i].text, strlen(cases[i].text), take_first, &first), AX_OK);
        if (first != cases[i].first)
            fail_msg("pattern %s: the first piece has %zu bytes, not %zu", cases[i].pattern, first,
                     cases[i].first);
        tok_stage_fini(&stage);
    }
    tok_matcher_fini(&matcher);
    assert_true(tok_starts_word("\u24B6", 3) && tok_starts_word("\U0002EBF0", 4));
}

static ax_status add_piece(void *joined, const char *piece, size_t n)
{
    AX_TRY(ax_buf_add(joined, "|", ((ax_buf *)joined)->size > 0));
    return ax_buf_add(joined, piece, n);
}

/* Where PCRE2's own reading of a pattern would cut a text elsewhere than Oniguruma. */
static void cuts_are_oniguruma_s(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *text, *pieces;
    } cases[] = {
        {"\\p{Han}+", "\u4e2d\u6587\u3001\u4e2d", "\u4e2d\u6587|\u3001|\u4e2d"}, /* U+3001 is Common */
        {"[ \\v]+", "a \v\nb", "a| \v|\nb"},
        {"[\\s-x]+", "a -x w", "a| -x |w"},
        {"\\s+", "a\u180e b", "a\u180e| |b"},
    };
    tok_matcher matcher;
    assert_int_equal(tok_matcher_init(&matcher), AX_OK);
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        tok_stage stage;
        ax_buf joined = {0};
        assert_int_equal(tok_stage_init(&stage, cases[i].pattern, false), AX_OK);
        assert_int_equal(
            tok_split(&stage, 1, &matcher, cases[i].text, strlen(cases[i].text), add_piece, &joined), AX_OK);
        assert_int_equal(ax_buf_add(&joined, "", 1), AX_OK);
        assert_string_equal(joined.data, cases[i].pieces);
        ax_buf_fini(&joined);
        tok_stage_fini(&stage);
    }
    tok_matcher_fini(&matcher);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(classes_on_every_character),
                                       cmocka_unit_test(properties_of_unicode_16),
                                       cmocka_unit_test(cuts_are_oniguruma_s)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
