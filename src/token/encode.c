/* Encodes documents. A document is cut at bytes that are not UTF-8, then at added tokens (special tokens and
 * the like). The text between added tokens is normalized, cut at the added tokens that are matched in
 * normalized text, and cut into pieces by the pre-tokenizer. Each piece is looked up in a cache, or else
 * merged. */
#include "token/tok.h"

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* The piece cache maps short pieces to their token ids. It helps because a text repeats its pieces, and
 * nearly all pieces are short. A cache_line is one entry of the piece cache, and has the size of a
 * processor's cache line. */
enum { LINE_KEY = 32, LINE_IDS = 7, CACHE_LINES = 1 << 16 };
typedef struct cache_line {
    int32_t ids[LINE_IDS];
    uint8_t size, n_ids; /* size: length of the piece in `key`, 0 in an empty entry; n_ids: number of ids */
    char key[LINE_KEY];
} cache_line;
_Static_assert(sizeof(cache_line) <= 64, "a line of the piece cache fits in a cache line");

/* The ends of the parts (ax_text_part) in a stretch of text: end[i] is the end of part i, for i = first ...
 * last. Other parts have no byte in this stretch. */
typedef struct bounds {
    const char **end;
    size_t first, last;
} bounds;

struct ax_encoder {
    const ax_tokenizer *tok;
    tok_matcher matcher;
    tok_merger merger;
    cache_line *cache; /* [CACHE_LINES], by hash of the piece; a new piece replaces the one in its entry */
    ax_buf normal[2], spaced;
    int64_t invalid;
    unsigned flags; /* flags of the current call of ax_encode */
    ax_ids *out;

    /* The fields below belong to the current call of ax_encode_parts. */
    const ax_text_part *parts; /* NULL: the current call is one of ax_encode, without parts */
    const ax_ids *guarded; /* [2]: ids of further tokens, beside the special tokens, that are not recognized
                              in plain parts, and in strict parts; NULL: none */
    ax_ids *part_of;
    bounds now; /* where parts end in the text as it is now: given, normalized, or with spaces replaced */
    ax_buf ends[3], probe[2]; /* ends: memory of bounds.end for the given text, the normalized text, and the
                                 text with spaces replaced; probe: scratch */
};

ax_status ax_encoder_create(const ax_tokenizer *tok, ax_encoder **out)
{
    *out = NULL;
    ax_encoder *e;
    AX_TRY(ax_calloc(1, sizeof *e, &e));
    e->tok = tok;
    ax_status status = tok_matcher_init(&e->matcher);
    if (status == AX_OK && !(e->cache = aligned_alloc(64, CACHE_LINES * sizeof *e->cache)))
        status = ax_fail(AX_ERR_MEMORY, "not enough memory for the cache of a tokenizer");
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
    for (size_t i = 0; i < AX_COUNT(e->ends); i++)
        ax_buf_fini(&e->ends[i]);
    ax_buf_fini(&e->probe[0]);
    ax_buf_fini(&e->probe[1]);
    free(e->cache);
    free(e);
    *encoder = NULL;
}

int64_t tok_encoder_invalid(const ax_encoder *e) { return e->invalid; }
int64_t tok_encoder_unknown(const ax_encoder *e) { return e->merger.unknown; }
const ax_tokenizer *tok_encoder_tokenizer(const ax_encoder *e) { return e->tok; }

/* ---- parts --------------------------------------------------------------------------------------- */

/* Returns the index of the part in which the byte at `at` lies. */
static size_t part_at(const ax_encoder *e, const char *at)
{
    size_t low = e->now.first, high = e->now.last;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (e->now.end[mid] > at)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

static bool has_id(const ax_ids *ids, int32_t id)
{
    for (size_t i = 0; i < ids->size; i++)
        if (ids->data[i] == id)
            return true;
    return false;
}

/* Returns true if the added token must not be recognized in this text, because a byte of it lies in a part
 * that cannot have the token. */
static bool is_refused(const ax_encoder *e, const tok_added *a, const char *text)
{
    const bool everywhere = a->special || (e->guarded && has_id(&e->guarded[0], a->id));
    if (!e->parts || !(everywhere || (e->guarded && has_id(&e->guarded[1], a->id))))
        return false;
    for (size_t i = part_at(e, text), last = part_at(e, text + a->size - 1); i <= last; i++)
        if (e->parts[i].plain && (everywhere || e->parts[i].strict))
            return true;
    return false;
}

/* Appends the index of the part that holds the byte at `at` to e->part_of, n times: once for each of the last
 * n ids, whose tokens end in this part. */
static ax_status note_part(ax_encoder *e, const char *at, size_t n)
{
    int32_t part = e->parts ? (int32_t)part_at(e, at) : 0;
    for (size_t i = 0; e->parts && i < n; i++)
        AX_TRY(ax_ids_add(e->part_of, &part, 1));
    return AX_OK;
}

/* Returns how many bytes the token `id` stands for, if it encodes the bytes of a piece from `at` on. */
static size_t token_size(const ax_tokenizer *tok, int32_t id, const char *at)
{
    const tok_piece *piece = &tok->pieces[id];
    if (id == tok->fallback_id[(unsigned char)*at])
        return 1;
    return id == tok->unk ? tok_utf8_size((unsigned char)*at) : piece->name_size;
}

/* Appends to e->part_of, for each id of the piece, the index of the part in which its token ends. The ids of
 * the piece are e->out from index `first` on. */
static ax_status note_piece(ax_encoder *e, size_t first, const char *piece, size_t n)
{
    const char *last = piece + n - 1;
    size_t count = e->out->size - first;
    if (!e->parts || part_at(e, piece) == part_at(e, last))
        return note_part(e, last, count);
    for (size_t i = 0; i < count; i++) {
        piece = i + 1 < count ? piece + token_size(e->tok, e->out->data[first + i], piece) : last + 1;
        piece = piece <= last ? piece : last + 1;
        AX_TRY(note_part(e, piece - 1, 1));
    }
    return AX_OK;
}

/* A change of the text of a section (between two added tokens) before it is encoded. The result of `run` may
 * lie in `work`: two buffers for normalize, one for tok_set_spaces. If `divides` is true of a byte, then a
 * text that `run` does not make empty may be cut before this byte: what it makes of a longer text is what it
 * makes of the text before the cut, and then what it makes of the rest at TOK_CONTINUES. */
typedef struct change {
    ax_status (*run)(const ax_tokenizer *tok, tok_place place, const char **text, size_t *n, ax_buf *work);
    bool (*divides)(const ax_tokenizer *tok, char b);
} change;

static ax_status normalize(const ax_tokenizer *tok, tok_place place, const char **text, size_t *n,
                           ax_buf *work)
{
    return tok_steps_run(&tok->normalizer, place, text, n, work);
}

static bool normalize_divides(const ax_tokenizer *tok, char b)
{
    return tok_steps_divide(&tok->normalizer, b);
}

static const change normalizing = {normalize, normalize_divides},
                    spacing = {tok_set_spaces, tok_spaces_divide};

/* Sets *size to the size of what the change makes of the text. */
static ax_status changed_size(ax_encoder *e, const change *c, tok_place place, const char *text, size_t n,
                              size_t *size)
{
    *size = n;
    return c->run(e->tok, place, &text, size, e->probe);
}

/* Sets e->now to the ends of the parts in `made`, the text that the change made of `text`. A part ends in
 * `made` after as many bytes as the change makes of the text before the part's end. This text is
 * cut at `cut`, the last possible place, and `done` bytes are made of what is before: so the time is linear
 * in the text where its bytes divide it. */
static ax_status move_bounds(ax_encoder *e, ax_buf *ends, const change *c, tok_place place, const char *text,
                             size_t n, const char *made, size_t n_made)
{
    size_t first = part_at(e, text), last = part_at(e, text + n - 1), done = 0, size;
    const char **end = (const char **)(void *)ends->data, *cut = text, *seen = text;
    for (size_t i = first; i < last; i++) {
        const char *stop = e->now.end[i], *at = stop;
        while (at > seen && !c->divides(e->tok, *at))
            at--;
        if (at > seen) {
            AX_TRY(changed_size(e, c, place, cut, (size_t)(at - cut), &size));
            if (done + size) {
                done += size;
                cut = at;
                place = TOK_CONTINUES;
            }
        }
        AX_TRY(changed_size(e, c, place, cut, (size_t)(stop - cut), &size));
        end[i] = made + ax_min(done + size, n_made);
        seen = stop;
    }
    end[last] = made + n_made;
    e->now = (bounds){end, first, last};
    return AX_OK;
}

/* Applies the change to *text, and sets e->now to the ends of the parts in the result. */
static ax_status run_change(ax_encoder *e, ax_buf *ends, const change *c, tok_place place, const char **text,
                            size_t *n, ax_buf *work)
{
    const char *before = *text;
    size_t size = *n;
    AX_TRY(c->run(e->tok, place, text, n, work));
    return e->parts && *text != before && size && *n ? move_bounds(e, ends, c, place, before, size, *text, *n)
                                                     : AX_OK;
}

/* ---- pieces -------------------------------------------------------------------------------------- */

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
        size_t first = e->out->size;
        size = joins ? tok_join_cut(joins, piece, n) : n;
        AX_TRY(encode_uncut(e, piece, size));
        AX_TRY(note_piece(e, first, piece, size));
    }
    return AX_OK;
}

/* Cuts text by the pre-tokenizer's patterns and encodes the pieces. */
static ax_status encode_stages(ax_encoder *e, const char *text, size_t n)
{
    return tok_split(e->tok->stages, e->tok->n_stages, &e->matcher, text, n, encode_piece, e);
}

/* Encodes text in which tok_set_spaces has added and replaced spaces. */
static ax_status encode_spaced(ax_encoder *e, const char *text, size_t n)
{
    const ax_tokenizer *tok = e->tok;
    size_t size = tok->split_spaces ? strlen(tok->space) : 0;
    for (const char *next; size && n > size && (next = tok_text_find(tok->space, size, text + 1, n - 1));) {
        AX_TRY(encode_stages(e, text, (size_t)(next - text)));
        n -= (size_t)(next - text);
        text = next;
    }
    return encode_stages(e, text, n);
}

/* Encodes text without added tokens. */
static ax_status encode_text(ax_encoder *e, const char *text, size_t n, tok_place place)
{
    const bounds outer = e->now;
    AX_TRY(run_change(e, &e->ends[2], &spacing, place, &text, &n, &e->spaced));
    ax_status status = encode_spaced(e, text, n);
    e->now = outer;
    return status;
}

/* Adjusts the range [*begin, *end) in which the text of the added token `a` was found. Adds to the range the
 * white space around the token that belongs to it (options lstrip and rstrip), but nothing before `floor`.
 * Returns false if the token must be a word of its own (option single_word) and is not. */
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

/* Finds the next added token at or after *at. Sets *id to its id, and [*begin, *end) to its range with the
 * white space that belongs to it. Moves *at to the end of the token's own text. Returns false if there is no
 * further token. */
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
        if (((e->flags & AX_ENCODE_PLAIN) || e->tok->split_specials) && a->special)
            continue;
        if (is_refused(e, a, text + *begin)) {
            *at = *begin + 1; /* another token may begin inside this match */
            continue;
        }
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
        AX_TRY(note_part(e, text + at - 1, 1));
        done = end;
        place = TOK_AFTER_ADDED;
    }
    return done < n ? section(e, text + done, n - done, place) : AX_OK;
}

static ax_status encode_normalized(ax_encoder *e, const char *text, size_t n, tok_place place)
{
    return cut_added(e, &e->tok->normal_tree, text, n, place, encode_text);
}

/* Encodes a section: the text between two of the added tokens that are matched before normalization. */
static ax_status encode_section(ax_encoder *e, const char *text, size_t n, tok_place place)
{
    const bounds outer = e->now;
    AX_TRY(run_change(e, &e->ends[1], &normalizing, place, &text, &n, e->normal));
    ax_status status = encode_normalized(e, text, n, place);
    e->now = outer;
    return status;
}

static ax_status encode_document(ax_encoder *e, const char *text, size_t n)
{
    for (size_t at = 0; at < n;) {
        size_t valid = tok_utf8_prefix(text + at, n - at);
        AX_TRY(cut_added(e, &e->tok->raw_tree, text + at, valid, at ? TOK_CONTINUES : TOK_AT_BEGINNING,
                         encode_section));
        at += valid;
        if (at < n) {
            size_t first = e->out->size;
            AX_TRY(tok_merge(e->tok, &e->merger, text + at, 1, e->out));
            AX_TRY(note_piece(e, first, text + at, 1));
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
    e->parts = NULL;
    if (flags & AX_ENCODE_ADD_SPECIAL)
        AX_TRY(ax_ids_add(out, tok->before.data, tok->before.size));
    AX_TRY(encode_document(e, text, n));
    return flags & AX_ENCODE_ADD_SPECIAL ? ax_ids_add(out, tok->after.data, tok->after.size) : AX_OK;
}

ax_status ax_encode_parts(ax_encoder *e, const char *text, const ax_text_part *parts, size_t n,
                          const ax_ids guarded[2], ax_ids *out, ax_ids *part)
{
    for (size_t i = 0; i < AX_COUNT(e->ends); i++) {
        e->ends[i].size = 0;
        AX_TRY(ax_buf_reserve(&e->ends[i], n * sizeof(const char *)));
    }
    const char **end = (const char **)(void *)e->ends[0].data;
    for (size_t i = 0; i < n; i++)
        end[i] = text + parts[i].end;
    e->flags = 0;
    e->out = out;
    e->parts = parts;
    e->guarded = guarded;
    e->part_of = part;
    e->now = (bounds){end, 0, n - 1};
    return encode_document(e, text, parts[n - 1].end);
}
