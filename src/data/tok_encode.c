/* Encodes documents. A document is cut at bytes that are not UTF-8, then at added tokens; the text between
 * these is normalized, cut at the added tokens that are matched in normalized text, and cut into pieces by
 * the pre-tokenizer. Each piece is looked up in a cache, or else merged. */
#include "data/tok.h"

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* The piece cache maps short pieces to their ids; it helps because text repeats its pieces, and nearly all
 * are short. One cache_line is an entry of it and has the size of a processor's cache line. */
enum { LINE_KEY = 32, LINE_IDS = 7, CACHE_LINES = 1 << 16 };
typedef struct cache_line {
    int32_t ids[LINE_IDS];
    uint8_t size, n_ids; /* size: length of the piece in `key`, 0 in an empty entry; n_ids: number of ids */
    char key[LINE_KEY];
} cache_line;
_Static_assert(sizeof(cache_line) <= 64, "a line of the piece cache fits in a cache line");

struct ax_encoder {
    const ax_tokenizer *tok;
    tok_matcher matcher;
    tok_merger merger;
    cache_line *cache; /* [CACHE_LINES], by hash of the piece; a new piece replaces the one in its entry */
    ax_buf normal[2], spaced;
    int64_t invalid;
    unsigned flags; /* flags of the current call of ax_encode */
    ax_ids *out;
};

ax_status ax_encoder_create(const ax_tokenizer *tok, ax_encoder **out)
{
    *out = NULL;
    ax_encoder *e;
    AX_TRY(ax_calloc(1, sizeof *e, &e));
    e->tok = tok;
    ax_status status = tok_matcher_init(&e->matcher);
    if (status == AX_OK && !(e->cache = aligned_alloc(64, CACHE_LINES * sizeof *e->cache)))
        status = ax_fail(AX_ERR_MEMORY, "not enough memory for the cache of an encoder");
    if (status != AX_OK) {
        ax_encoder_destroy(&e);
        return status;
    }
    memset(e->cache, 0, CACHE_LINES * sizeof *e->cache);
    *out = e;
    return AX_OK;
}

void ax_encoder_destroy(ax_encoder **encoder)
{
    ax_encoder *e = *encoder;
    if (!e)
        return;
    tok_matcher_fini(&e->matcher);
    tok_merger_fini(&e->merger);
    ax_buf_fini(&e->normal[0]);
    ax_buf_fini(&e->normal[1]);
    ax_buf_fini(&e->spaced);
    free(e->cache);
    free(e);
    *encoder = NULL;
}

int64_t tok_encoder_invalid(const ax_encoder *e) { return e->invalid; }
int64_t tok_encoder_unknown(const ax_encoder *e) { return e->merger.unknown; }
const ax_tokenizer *tok_encoder_tokenizer(const ax_encoder *e) { return e->tok; }

static ax_status merge_piece(ax_encoder *e, const char *piece, size_t n)
{
    int32_t whole = e->tok->ignore_merges ? tok_find(e->tok, piece, n) : -1;
    return whole >= 0 ? ax_ids_add(e->out, &whole, 1) : tok_merge(e->tok, &e->merger, piece, n, e->out);
}

static ax_status encode_uncut(ax_encoder *e, const char *piece, size_t n)
{
    if (n > LINE_KEY)
        return merge_piece(e, piece, n);
    cache_line *line = &e->cache[XXH3_64bits(piece, n) % CACHE_LINES];
    if (line->size == n && !memcmp(line->key, piece, n)) {
        AX_TRY(tok_ids_reserve(e->out, LINE_IDS));
        memcpy(e->out->data + e->out->size, line->ids, sizeof line->ids);
        e->out->size += line->n_ids;
        return AX_OK;
    }
    size_t start = e->out->size;
    int64_t unknown = e->merger.unknown;
    AX_TRY(merge_piece(e, piece, n));
    size_t n_ids = e->out->size - start;
    if (n_ids <= LINE_IDS && unknown == e->merger.unknown) {
        line->size = (uint8_t)n;
        line->n_ids = (uint8_t)n_ids;
        memcpy(line->key, piece, n);
        memcpy(line->ids, e->out->data + start, n_ids * sizeof *line->ids);
    }
    return AX_OK;
}

static ax_status encode_piece(void *arg, const char *piece, size_t n)
{
    ax_encoder *e = arg;
    const uint64_t *joins = n > LINE_KEY ? e->tok->joins : NULL;
    for (size_t size; n; piece += size, n -= size) {
        size = joins ? tok_join_cut(joins, piece, n) : n;
        AX_TRY(encode_uncut(e, piece, size));
    }
    return AX_OK;
}

/* Cuts text by the pre-tokenizer's patterns and encodes the pieces. */
static ax_status encode_stages(ax_encoder *e, const char *text, size_t n)
{
    return tok_split(e->tok->stages, e->tok->n_stages, &e->matcher, text, n, encode_piece, e);
}

/* Encodes text without added tokens. */
static ax_status encode_text(ax_encoder *e, const char *text, size_t n, tok_place place)
{
    const ax_tokenizer *tok = e->tok;
    AX_TRY(tok_set_spaces(tok, place, &text, &n, &e->spaced));
    size_t size = tok->split_spaces ? strlen(tok->space) : 0;
    for (const char *next; size && n > size && (next = tok_text_find(tok->space, size, text + 1, n - 1));) {
        AX_TRY(encode_stages(e, text, (size_t)(next - text)));
        n -= (size_t)(next - text);
        text = next;
    }
    return encode_stages(e, text, n);
}

/* Extends [*begin, *end), where the text of the added token `a` was found, by the white space that the token
 * takes with it (lstrip, rstrip), but not to the left of `floor`. Returns false if the token must be a word
 * of its own (single_word) and is not. */
static bool adjust_match(const tok_added *a, const char *text, size_t n, size_t floor, size_t *begin,
                         size_t *end)
{
    if (a->single_word && (tok_ends_word(text, *begin) || tok_starts_word(text + *end, n - *end)))
        return false;
    if (a->lstrip && *begin > floor)
        *begin -= tok_space_suffix(text + floor, *begin - floor);
    if (a->rstrip)
        *end += tok_space_prefix(text + *end, n - *end);
    return true;
}

/* Finds the next added token at or after *at. Sets *id to its id and [*begin, *end) to its range. Moves *at
 * to the end of the token's text, not past white space that the token takes with it. Returns false if there
 * is no further token. */
static bool next_added(const ax_encoder *e, const tok_tree *tree, const char *text, size_t n, size_t floor,
                       size_t *at, int32_t *id, size_t *begin, size_t *end)
{
    while (*at < n) {
        int32_t found =
            tree->root[(unsigned char)text[*at]] < 0 ? -1 : tok_tree_match(tree, text + *at, n - *at);
        if (found < 0) {
            ++*at;
            continue;
        }
        const tok_added *a = &e->tok->added[found];
        *begin = *at;
        *end = *at += a->size;
        if ((e->flags & AX_ENCODE_PLAIN) && a->special)
            continue;
        if (adjust_match(a, text, n, floor, begin, end)) {
            *id = a->id;
            return true;
        }
    }
    return false;
}

typedef ax_status (*section_fn)(ax_encoder *e, const char *text, size_t n, tok_place place);

/* Cuts valid UTF-8 at the added tokens of `tree`, the longest match at the leftmost position first. Appends
 * the ids of these tokens to e->out, and calls `section` for the text between them. */
static ax_status cut_added(ax_encoder *e, const tok_tree *tree, const char *text, size_t n, tok_place place,
                           section_fn section)
{
    size_t done = 0, at = 0, begin, end;
    int32_t id;
    while (tree->n_nodes && next_added(e, tree, text, n, done, &at, &id, &begin, &end)) {
        if (begin > done)
            AX_TRY(section(e, text + done, begin - done, place));
        AX_TRY(ax_ids_add(e->out, &id, 1));
        done = end;
        place = TOK_AFTER_ADDED;
    }
    return done < n ? section(e, text + done, n - done, place) : AX_OK;
}

/* Encodes normalized text. */
static ax_status encode_normalized(ax_encoder *e, const char *text, size_t n, tok_place place)
{
    return cut_added(e, &e->tok->normal_tree, text, n, place, encode_text);
}

/* Encodes text that is already cut at the added tokens that match before normalization. */
static ax_status encode_section(ax_encoder *e, const char *text, size_t n, tok_place place)
{
    AX_TRY(tok_steps_run(&e->tok->normalizer, place, &text, &n, e->normal));
    return encode_normalized(e, text, n, place);
}

static ax_status encode_document(ax_encoder *e, const char *text, size_t n)
{
    for (size_t at = 0; at < n;) {
        size_t valid = tok_utf8_prefix(text + at, n - at);
        AX_TRY(cut_added(e, &e->tok->raw_tree, text + at, valid, at ? TOK_CONTINUES : TOK_AT_BEGINNING,
                         encode_section));
        at += valid;
        if (at < n) {
            AX_TRY(tok_merge(e->tok, &e->merger, text + at, 1, e->out));
            e->invalid++;
            at++;
        }
    }
    return AX_OK;
}

ax_status ax_encode(ax_encoder *e, const char *text, size_t n, unsigned flags, ax_ids *out)
{
    const ax_tokenizer *tok = e->tok;
    e->flags = flags;
    e->out = out;
    if (flags & AX_ENCODE_ADD_SPECIAL)
        AX_TRY(ax_ids_add(out, tok->before.data, tok->before.size));
    AX_TRY(encode_document(e, text, n));
    return flags & AX_ENCODE_ADD_SPECIAL ? ax_ids_add(out, tok->after.data, tok->after.size) : AX_OK;
}
