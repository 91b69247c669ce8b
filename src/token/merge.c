/* Merges the bytes or characters of one piece (pre-token) by the merge rules until no rule applies: the rule
 * of lowest rank first, and among pairs with the same rule the leftmost. Nearly all pieces are short; these
 * are merged by scanning a small array. Long pieces are merged with a heap over a linked list in O(n log n),
 * so that even a megabyte of one letter is not slow. */
#include "token/tok.h"

#include <stdlib.h>
#include <string.h>

enum { SHORT = 64, GONE = -1 };

void tok_merger_fini(tok_merger *m)
{
    free(m->id);
    free(m->prev);
    free(m->next);
    free(m->heap);
    *m = (tok_merger){0};
}

/* Writes the ids of the byte tokens ("<0x0A>") of a character without a token. Returns their number, or 0 if
 * one of the bytes has no token. */
static size_t fallback_ids(const ax_tokenizer *tok, const char *bytes, size_t n, int32_t *id)
{
    for (size_t i = 0; i < n; i++)
        if ((id[i] = tok->fallback_id[(unsigned char)bytes[i]]) < 0)
            return 0;
    return n;
}

/* Writes the ids of the piece's bytes (byte-level) or characters to `id`, which has room for n ids, and
 * returns their number. A character without a token becomes the tokens of its bytes. If one of these tokens
 * is missing, the character becomes unk_token, or is left out if there is no unk_token. With fuse_unk, a run
 * of such characters becomes one unk_token. As in Hugging Face's tokenizers, an unk_token is written late:
 * just before the next character with a token of its own, just before the next unk_token, or at the end. So
 * it comes after the byte tokens of characters that follow it in the text. */
static size_t start_ids(const ax_tokenizer *tok, tok_merger *m, const char *piece, size_t n, int32_t *id)
{
    size_t count = 0;
    bool pending = false; /* an unk_token is still to be written */
    for (size_t i = 0, size, bytes; i < n; i += size) {
        unsigned char lead = (unsigned char)piece[i];
        size = tok->byte_level ? 1
                               : ax_min(tok_utf8_size(lead),
                                        n - i); /* fewer bytes than the lead byte announces: not UTF-8 */
        int32_t known = size == 1 ? tok->byte_id[lead] : tok_find(tok, piece + i, size);
        if (known >= 0) {
            if (pending)
                id[count++] = tok->unk;
            pending = false;
            id[count++] = known;
        } else if ((bytes = fallback_ids(tok, piece + i, size, id + count))) {
            count += bytes;
        } else {
            m->unknown += (int64_t)size;
            if (pending && !tok->fuse_unk)
                id[count++] = tok->unk;
            pending = tok->unk >= 0;
        }
    }
    if (pending)
        id[count++] = tok->unk;
    return count;
}

/* Looks up the rule that merges id[i] with id[i + 1]. Sets rank[i] to the rule's rank (INT32_MAX: there is no
 * rule) and to[i] to the id of the merged token. */
static void look_up_rule(const ax_tokenizer *tok, const int32_t *id, size_t i, int32_t *rank, int32_t *to)
{
    const tok_rule *rule = tok_rule_find(tok, tok_pair(id[i], id[i + 1]));
    rank[i] = rule ? rule->rank : INT32_MAX;
    to[i] = rule ? rule->id : 0;
}

static ax_status merge_short(const ax_tokenizer *tok, tok_merger *m, const char *piece, size_t n, ax_ids *out)
{
    int32_t id[SHORT], rank[SHORT], to[SHORT];
    n = start_ids(tok, m, piece, n, id);
    for (size_t i = 0; i + 1 < n; i++)
        look_up_rule(tok, id, i, rank, to);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            best = rank[i] < rank[best] ? i : best;
        if (rank[best] == INT32_MAX)
            break;
        id[best] = to[best];
        n--;
        size_t tail = (n - best - 1) * sizeof *id;
        memmove(id + best + 1, id + best + 2, tail);
        memmove(rank + best + 1, rank + best + 2, tail);
        memmove(to + best + 1, to + best + 2, tail);
        if (best)
            look_up_rule(tok, id, best - 1, rank, to);
        if (best + 1 < n)
            look_up_rule(tok, id, best, rank, to);
    }
    return ax_ids_add(out, id, n);
}

static ax_status reserve(tok_merger *m, size_t n)
{
    AX_CHECK(n < INT32_MAX, AX_ERR_DATA,
             "the text has a piece of %zu bytes that the tokenizer cannot cut; at most 2 GiB can be encoded: "
             "divide the text",
             n);
    if (n > m->capacity) {
        tok_merger fresh = {.capacity = n, .heap_capacity = 2 * n, .unknown = m->unknown};
        tok_merger_fini(m);
        *m = fresh;
        AX_TRY(ax_calloc(n, sizeof *m->id, &m->id));
        AX_TRY(ax_calloc(n, sizeof *m->prev, &m->prev));
        AX_TRY(ax_calloc(n, sizeof *m->next, &m->next));
        AX_TRY(ax_calloc(m->heap_capacity, sizeof *m->heap, &m->heap));
    }
    return AX_OK;
}

/* Heap entries are rank << 32 | position, so the smallest entry is the next merge. A node has WAYS children,
 * so the heap has few levels: each level of a heap that is larger than the caches costs a cache miss. */
enum { WAYS = 4 };

static void heap_push(uint64_t *heap, size_t *n, uint64_t entry)
{
    size_t i = (*n)++;
    for (size_t up; i && heap[up = (i - 1) / WAYS] > entry; i = up)
        heap[i] = heap[up];
    heap[i] = entry;
}

static uint64_t heap_pop(uint64_t *heap, size_t *n)
{
    uint64_t top = heap[0], last = heap[--*n];
    size_t i = 0;
    for (size_t down; (down = WAYS * i + 1) < *n; i = down) {
        size_t end = down + WAYS < *n ? down + WAYS : *n;
        for (size_t child = down + 1; child < end; child++)
            down = heap[child] < heap[down] ? child : down;
        if (heap[down] >= last)
            break;
        heap[i] = heap[down];
    }
    heap[i] = last;
    return top;
}

static const tok_rule *rule_at(const ax_tokenizer *tok, const tok_merger *m, size_t n, uint32_t at)
{
    return m->next[at] < n ? tok_rule_find(tok, tok_pair(m->id[at], m->id[m->next[at]])) : NULL;
}

static void push_at(const ax_tokenizer *tok, tok_merger *m, size_t n, uint32_t at, size_t *n_heap)
{
    const tok_rule *rule = rule_at(tok, m, n, at);
    if (rule)
        heap_push(m->heap, n_heap, (uint64_t)(uint32_t)rule->rank << 32 | at);
}

static ax_status merge_long(const ax_tokenizer *tok, tok_merger *m, const char *piece, size_t n, ax_ids *out)
{
    AX_TRY(reserve(m, n));
    n = start_ids(tok, m, piece, n, m->id);
    for (size_t i = 0; i < n; i++) {
        m->prev[i] = (uint32_t)i - 1; /* prev[0] is not used */
        m->next[i] = (uint32_t)i + 1;
    }
    /* The heap gets at most n - 1 entries here. Each of at most n - 1 merges takes one entry and adds at most
     * two. So heap_capacity, 2n, suffices. */
    size_t n_heap = 0;
    for (size_t i = 0; i < n; i++)
        push_at(tok, m, n, (uint32_t)i, &n_heap);
    while (n_heap) {
        uint64_t entry = heap_pop(m->heap, &n_heap);
        uint32_t at = (uint32_t)entry;
        const tok_rule *rule = m->id[at] == GONE ? NULL : rule_at(tok, m, n, at);
        if (!rule || (uint32_t)rule->rank != entry >> 32)
            continue; /* out of date: the pair at this position has changed since the entry was pushed */
        uint32_t gone = m->next[at];
        m->id[at] = rule->id;
        m->id[gone] = GONE;
        m->next[at] = m->next[gone];
        if (m->next[at] < n)
            m->prev[m->next[at]] = at;
        push_at(tok, m, n, at, &n_heap);
        if (at)
            push_at(tok, m, n, m->prev[at], &n_heap);
    }
    AX_TRY(tok_ids_reserve(out, n));
    for (size_t i = 0; i < n; i = m->next[i])
        out->data[out->size++] = m->id[i];
    return AX_OK;
}

ax_status tok_merge(const ax_tokenizer *tok, tok_merger *m, const char *piece, size_t n, ax_ids *out)
{
    return (n <= SHORT ? merge_short : merge_long)(tok, m, piece, n, out);
}
