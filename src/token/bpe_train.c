/* Tokenizer training, second half: from distinct pieces with counts to merges (read bpe_count.c first).
 *
 * The algorithm is byte pair encoding (BPE). All pieces lie one after the other in `slots`, one slot per
 * byte, with a border slot before, between and after them. A token covers a run of slots: the first slot
 * holds its id, the other slots hold NONE; the first and the last slot hold the length of the run, so that
 * both neighbours of a token are found without links. Each pair of adjacent tokens has a count (each
 * occurrence of the pair adds the count of the piece in which it lies) and a list of the slots where the pair
 * begins. Merges do not remove entries from lists: an entry is ignored if the pair is no longer at its slot.
 *
 * A merge visits only the slots in the list of its pair, and each merge at a slot removes a token. So the
 * number of slots that all merges together visit is proportional to the size of the distinct pieces, whatever
 * the lengths of the pieces and the size of the vocabulary. A merge changes the counts of the pairs that the
 * merged tokens formed with their neighbours. These changes are first added up per neighbour, in an array
 * indexed by the neighbour's id, so that the number of look-ups of pairs grows with the number of distinct
 * neighbours, not of occurrences. */
#include "token/tok.h"

#include <stdlib.h>
#include <string.h>

enum { NONE = -1, BORDER = -2, N_BYTES = 256, LEFT = 0, RIGHT = 1 };

typedef struct slot {
    int32_t id;
    uint32_t span, word; /* span: slots in the token's run; word: index of the piece in trainer.words */
} slot;

typedef struct pair {
    uint64_t key; /* ids of the two tokens: left << 32 | right */
    int64_t count;
    size_t start; /* the pair's list of slots is trainer.places[start ... start+n-1] */
    uint32_t n;
} pair;

typedef struct candidate {
    int64_t count; /* the pair's count when the candidate was pushed onto the heap; the count may have fallen
                      since */
    uint64_t key;
} candidate;

/* One occurrence of a token (the neighbour) beside a token that the current merge made. */
typedef struct event {
    uint32_t place; /* slot where the pair of neighbour and merged token begins */
    int32_t neighbour;
    int side;
} event;

/* Totals over the events of the current merge that have the same neighbour, separately for each side (LEFT,
 * RIGHT) of the merged token on which the neighbour stands. weight: the sum of the counts of the pieces in
 * which the events lie; n: the number of events. */
typedef struct tally {
    int64_t weight[2];
    size_t n[2];
} tally;

typedef struct trainer {
    const ax_tokenizer_training *training;
    bpe_table names; /* names of all tokens, by id: special tokens, then bytes, then merged tokens */
    json_t *merges;
    const bpe_table *words;

    slot *slots;
    size_t n_slots;

    pair *pairs;
    size_t n_pairs, pairs_capacity;
    uint32_t *index; /* open-addressing hash table by pair.key: index in `pairs` + 1; 0: empty slot */
    size_t mask;
    uint32_t *places;
    size_t n_places, places_capacity;

    candidate *heap;
    size_t n_heap, heap_capacity;

    event *events;
    size_t n_events, events_capacity;
    tally *tallies;   /* [vocab], indexed by the neighbour's id */
    int64_t *touched; /* 2 * neighbour + side (LEFT or RIGHT) of each tally that the current merge uses */
    size_t n_touched;
} trainer;

/* ---- pairs ---- */

static size_t index_slot(const trainer *t, uint64_t key)
{
    size_t i = (size_t)((key * UINT64_C(0x9E3779B97F4A7C15)) >> 20) & t->mask;
    while (t->index[i] && t->pairs[t->index[i] - 1].key != key)
        i = (i + 1) & t->mask;
    return i;
}

static ax_status index_grow(trainer *t)
{
    size_t n = t->index ? 2 * (t->mask + 1) : 1 << 17;
    free(t->index);
    t->index = NULL;
    AX_TRY(ax_calloc(n, sizeof *t->index, &t->index));
    t->mask = n - 1;
    for (size_t i = 0; i < t->n_pairs; i++)
        t->index[index_slot(t, t->pairs[i].key)] = (uint32_t)i + 1;
    return AX_OK;
}

/* Sets *out to the pair with key `key`, which is added if it is missing. */
static ax_status pair_get(trainer *t, uint64_t key, pair **out)
{
    if (!t->index || t->n_pairs > t->mask / 2)
        AX_TRY(index_grow(t));
    size_t i = index_slot(t, key);
    if (!t->index[i]) {
        AX_CHECK(t->n_pairs < UINT32_MAX, AX_ERR_DATA,
                 "the training text has too many distinct pairs of tokens (2^32): use less text");
        AX_TRY(bpe_grow(&t->pairs, &t->pairs_capacity, t->n_pairs + 1, sizeof *t->pairs));
        t->pairs[t->n_pairs] = (pair){.key = key};
        t->index[i] = (uint32_t)++t->n_pairs;
    }
    *out = &t->pairs[t->index[i] - 1];
    return AX_OK;
}

/* Moves the list of pair p (the slots where p begins) to the end of `places` and reserves room for `more`
 * entries after the list. */
static ax_status pair_extend(trainer *t, pair *p, size_t more)
{
    AX_TRY(bpe_grow(&t->places, &t->places_capacity, t->n_places + p->n + more, sizeof *t->places));
    memmove(t->places + t->n_places, t->places + p->start, p->n * sizeof *t->places);
    p->start = t->n_places;
    t->n_places += p->n + more;
    return AX_OK;
}

/* ---- heap of candidates: most frequent first; of equally frequent ones, smallest ids first ---- */

static bool comes_first(candidate a, candidate b)
{
    return a.count != b.count ? a.count > b.count : a.key < b.key;
}

static ax_status heap_push(trainer *t, candidate c)
{
    AX_TRY(bpe_grow(&t->heap, &t->heap_capacity, t->n_heap + 1, sizeof *t->heap));
    size_t i = t->n_heap++;
    for (size_t up; i && comes_first(c, t->heap[up = (i - 1) / 2]); i = up)
        t->heap[i] = t->heap[up];
    t->heap[i] = c;
    return AX_OK;
}

/* Replaces the top of the heap (its best candidate) by `c`, and restores the order of the heap. */
static void heap_replace(trainer *t, candidate c)
{
    size_t i = 0;
    for (size_t down; (down = 2 * i + 1) < t->n_heap; i = down) {
        down += down + 1 < t->n_heap && comes_first(t->heap[down + 1], t->heap[down]);
        if (!comes_first(t->heap[down], c))
            break;
        t->heap[i] = t->heap[down];
    }
    t->heap[i] = c;
}

static void heap_pop(trainer *t)
{
    candidate last = t->heap[--t->n_heap];
    if (t->n_heap)
        heap_replace(t, last);
}

/* Removes the most frequent pair from the heap and returns it; NULL if there is none. If the count of the
 * candidate on top is out of date, the candidate first gets its pair's present count, or is removed if that
 * is not positive. */
static pair *best_pair(trainer *t)
{
    while (t->n_heap) {
        candidate top = t->heap[0];
        pair *p = &t->pairs[t->index[index_slot(t, top.key)] - 1];
        if (p->count == top.count) {
            heap_pop(t);
            return p;
        }
        top.count = p->count;
        if (top.count > 0)
            heap_replace(t, top);
        else
            heap_pop(t);
    }
    return NULL;
}

/* ---- set-up ---- */

/* Adds a token for each of the 256 bytes to `names`, after the special tokens. The name of a token is the
 * character that stands for its byte in JSON files (tok_byte_char); the tokens are in ascending order of
 * these characters. Sets byte_id[b] to the id of byte b's token. */
static ax_status add_bytes(trainer *t, int32_t byte_id[N_BYTES])
{
    enum { LAST_CHARACTER = 323 };
    for (uint32_t c = 0; c <= LAST_CHARACTER; c++) {
        char name[4];
        size_t number, before = t->names.n;
        int byte = tok_char_byte(c);
        if (byte < 0)
            continue;
        AX_TRY(bpe_table_add(&t->names, name, tok_utf8_put(c, name), 0, &number));
        AX_CHECK(number == before, AX_ERR_USAGE,
                 "special token \"%.*s\" is a single character that stands for a byte: give it a longer name",
                 (int)tok_utf8_put(c, name), name);
        byte_id[byte] = (int32_t)number;
    }
    return AX_OK;
}

static ax_status fill_slots(trainer *t, const int32_t byte_id[N_BYTES])
{
    const bpe_table *words = t->words;
    t->n_slots = words->bytes_size + words->n + 1;
    AX_CHECK(t->n_slots < UINT32_MAX, AX_ERR_DATA,
             "the training text has %zu bytes of distinct pieces; at most 2^32 are supported: use less text",
             words->bytes_size);
    AX_TRY(ax_calloc(t->n_slots, sizeof *t->slots, &t->slots));
    slot *s = t->slots;
    *s++ = (slot){.id = BORDER};
    for (size_t w = 0; w < words->n; w++) {
        const char *bytes = words->bytes + words->words[w].start;
        for (size_t i = 0; i < words->words[w].size; i++)
            *s++ = (slot){byte_id[(unsigned char)bytes[i]], 1, (uint32_t)w};
        *s++ = (slot){.id = BORDER};
    }
    return AX_OK;
}

/* Finds the pairs of adjacent bytes in three passes: counts them, reserves their lists, fills the lists. */
static ax_status find_byte_pairs(trainer *t)
{
    size_t base = t->names.n - N_BYTES, pairs = N_BYTES * N_BYTES;
    size_t *n;
    int64_t *weight;
    AX_TRY(ax_calloc(pairs, sizeof *n + sizeof *weight, &n));
    weight = (int64_t *)(n + pairs);
    ax_status status = AX_OK;
    for (size_t i = 1; i + 1 < t->n_slots; i++)
        if (t->slots[i].id != BORDER && t->slots[i + 1].id != BORDER) {
            size_t k = ((size_t)t->slots[i].id - base) * N_BYTES + ((size_t)t->slots[i + 1].id - base);
            n[k]++;
            weight[k] += t->words->words[t->slots[i].word].count;
        }
    for (size_t k = 0; k < pairs && status == AX_OK; k++) {
        pair *p;
        if (!n[k])
            continue;
        status = pair_get(t, tok_pair((int32_t)(base + k / N_BYTES), (int32_t)(base + k % N_BYTES)), &p);
        if (status == AX_OK)
            status = pair_extend(t, p, n[k]);
        if (status == AX_OK)
            status = heap_push(t, (candidate){p->count = weight[k], p->key});
        n[k] = t->n_pairs - 1;
    }
    for (size_t i = 1; i + 1 < t->n_slots && status == AX_OK; i++)
        if (t->slots[i].id != BORDER && t->slots[i + 1].id != BORDER) {
            size_t k = ((size_t)t->slots[i].id - base) * N_BYTES + ((size_t)t->slots[i + 1].id - base);
            pair *p = &t->pairs[n[k]];
            t->places[p->start + p->n++] = (uint32_t)i;
        }
    free(n);
    return status;
}

/* ---- one merge ---- */

static ax_status record_neighbour(trainer *t, int side, int32_t neighbour, int64_t weight, size_t place)
{
    tally *sum = &t->tallies[neighbour];
    if (!sum->n[side]++)
        t->touched[t->n_touched++] = 2 * (int64_t)neighbour + side;
    sum->weight[side] += weight;
    AX_TRY(bpe_grow(&t->events, &t->events_capacity, t->n_events + 1, sizeof *t->events));
    t->events[t->n_events++] = (event){(uint32_t)place, neighbour, side};
    return AX_OK;
}

/* Merges the token a at slot i and the token b after it into `ab`, if both are still there. Records the
 * tokens before and after `ab` (record_neighbour). */
static ax_status merge_at(trainer *t, size_t i, int32_t a, int32_t b, int32_t ab)
{
    slot *s = t->slots;
    if (s[i].id != a)
        return AX_OK;
    size_t j = i + s[i].span;
    if (s[j].id != b)
        return AX_OK;
    size_t after = j + s[j].span;
    int64_t weight = t->words->words[s[i].word].count;
    if (s[i - 1].id != BORDER) {
        size_t before = i - s[i - 1].span;
        AX_TRY(record_neighbour(t, LEFT, s[before].id, weight, before));
    }
    if (s[after].id != BORDER)
        AX_TRY(record_neighbour(t, RIGHT, s[after].id, weight, i));
    s[j].id = NONE;
    s[i].id = ab;
    s[i].span = s[after - 1].span = (uint32_t)(after - i);
    return AX_OK;
}

/* new_key returns the key of the pair that neighbour x on `side` forms with the new token `ab`. old_key
 * returns the key of the pair that x formed before the merge with the token next to it, `a` or `b`. */
static uint64_t new_key(int32_t x, int side, int32_t ab)
{
    return side == LEFT ? tok_pair(x, ab) : tok_pair(ab, x);
}
static uint64_t old_key(int32_t x, int side, int32_t a, int32_t b)
{
    return side == LEFT ? tok_pair(x, a) : tok_pair(b, x);
}

/* Updates the counts of pairs after a merge of a and b to `ab`. Adds the tallies (totals per neighbour) to
 * the counts of the pairs with `ab`, and subtracts them from the counts of the pairs with a or b. Reserves
 * the lists of the new pairs. Afterwards n[side] of a tally is the index in `places` where merge_pair puts
 * the next entry of the new pair's list. */
static ax_status apply_tallies(trainer *t, int32_t a, int32_t b, int32_t ab)
{
    pair *p;
    for (size_t k = 0; k < t->n_touched; k++) {
        int32_t x = (int32_t)(t->touched[k] / 2);
        int side = (int)(t->touched[k] % 2);
        tally *sum = &t->tallies[x];
        AX_TRY(pair_get(t, new_key(x, side, ab), &p));
        AX_TRY(pair_extend(t, p, sum->n[side]));
        p->count += sum->weight[side];
        size_t next = p->start + p->n;
        p->n += (uint32_t)sum->n[side];
        sum->n[side] = next;
    }
    for (size_t k = 0; k < t->n_touched; k++) {
        int32_t x = (int32_t)(t->touched[k] / 2);
        int side = (int)(t->touched[k] % 2);
        AX_TRY(pair_get(t, old_key(x, side, a, b), &p));
        p->count -= t->tallies[x].weight[side];
    }
    return AX_OK;
}

static ax_status push_new_pairs(trainer *t, int32_t ab)
{
    for (size_t k = 0; k < t->n_touched; k++) {
        int32_t x = (int32_t)(t->touched[k] / 2);
        int side = (int)(t->touched[k] % 2);
        const pair *p = &t->pairs[t->index[index_slot(t, new_key(x, side, ab))] - 1];
        if (p->count > 0)
            AX_TRY(heap_push(t, (candidate){p->count, p->key}));
        t->tallies[x].n[side] = 0;
        t->tallies[x].weight[side] = 0;
    }
    return AX_OK;
}

static ax_status merge_pair(trainer *t, pair *p, int32_t ab)
{
    int32_t a = (int32_t)(p->key >> 32), b = (int32_t)(uint32_t)p->key;
    size_t start = p->start, n = p->n;
    p->n = 0; /* after this merge the pair does not occur any more; p is not valid once t->pairs has grown */
    t->n_events = t->n_touched = 0;
    for (size_t k = 0; k < n; k++)
        AX_TRY(merge_at(t, t->places[start + k], a, b, ab));
    AX_TRY(apply_tallies(t, a, b, ab));
    for (size_t k = 0; k < t->n_events; k++) {
        const event *e = &t->events[k];
        t->places[t->tallies[e->neighbour].n[e->side]++] = e->place;
    }
    return push_new_pairs(t, ab);
}

/* ---- the loop ---- */

/* Appends the merge of pair p to t->merges. Sets *ab to the id of the merged token: a new token, or an
 * earlier token with the same name. */
static ax_status record_merge(trainer *t, const pair *p, int32_t *ab)
{
    const bpe_word *a = &t->names.words[p->key >> 32], *b = &t->names.words[(uint32_t)p->key];
    ax_buf name = {0};
    size_t number = 0;
    ax_status status = ax_buf_add(&name, t->names.bytes + a->start, a->size);
    if (status == AX_OK)
        status = ax_buf_add(&name, t->names.bytes + b->start, b->size);
    json_t *merge = status == AX_OK ? json_pack("[s%, s%]", name.data, (size_t)a->size, name.data + a->size,
                                                (size_t)b->size)
                                    : NULL;
    if (status == AX_OK && json_array_append_new(t->merges, merge))
        status = ax_fail(AX_ERR_MEMORY,
                         "not enough memory for the merges of a new tokenizer; use a smaller vocabulary");
    if (status == AX_OK)
        status = bpe_table_add(&t->names, name.data, name.size, 0, &number);
    ax_buf_fini(&name);
    *ab = (int32_t)number;
    return status;
}

static ax_status report_merges(const trainer *t)
{
    const ax_tokenizer_training *o = t->training;
    AX_CHECK(!o->progress ||
                 o->progress(o->progress_arg, AX_TOKENIZER_MERGE, (int64_t)t->names.n, (int64_t)o->vocab),
             AX_ERR_SIGNAL, "training the tokenizer was stopped");
    return AX_OK;
}

static ax_status merge_all(trainer *t)
{
    size_t vocab = (size_t)t->training->vocab;
    double reported = 0;
    while (t->names.n < vocab) {
        int32_t ab;
        pair *p = best_pair(t);
        if (!p)
            break;
        AX_TRY(record_merge(t, p, &ab));
        AX_TRY(merge_pair(t, p, ab));
        if (ax_now() - reported > 0.1) {
            reported = ax_now();
            AX_TRY(report_merges(t));
        }
    }
    if (t->names.n < vocab)
        ax_log(
            AX_LOG_WARN,
            "the training text yields a vocabulary of only %zu tokens, not %zu: more text would yield more",
            t->names.n, vocab);
    return report_merges(t);
}

static ax_status train(trainer *t)
{
    int32_t byte_id[N_BYTES];
    size_t vocab = (size_t)t->training->vocab;
    t->merges = json_array();
    AX_CHECK(t->merges, AX_ERR_MEMORY,
             "not enough memory for the merges of a new tokenizer; use a smaller vocabulary");
    for (size_t i = 0; i < t->training->n_specials; i++) {
        const char *name = t->training->specials[i];
        AX_TRY(bpe_table_add(&t->names, name, strlen(name), 0, NULL));
    }
    AX_TRY(add_bytes(t, byte_id));
    AX_TRY(ax_calloc(vocab, sizeof *t->tallies, &t->tallies));
    AX_TRY(ax_calloc(2 * vocab, sizeof *t->touched, &t->touched));
    AX_TRY(fill_slots(t, byte_id));
    AX_TRY(find_byte_pairs(t));
    return merge_all(t);
}

static void trainer_fini(trainer *t)
{
    bpe_table_fini(&t->names);
    json_decref(t->merges);
    free(t->slots);
    free(t->pairs);
    free(t->index);
    free(t->places);
    free(t->heap);
    free(t->events);
    free(t->tallies);
    free(t->touched);
}

/* ---- options and result ---- */

static ax_status check_specials(const ax_tokenizer_training *o)
{
    bool eos_listed = !o->eos;
    for (size_t i = 0; i < o->n_specials; i++) {
        const char *name = o->specials[i];
        AX_CHECK(*name && tok_utf8_prefix(name, strlen(name)) == strlen(name), AX_ERR_USAGE,
                 "special token number %zu is empty or not valid UTF-8: give it a name in UTF-8", i + 1);
        for (size_t k = 0; k < i; k++)
            AX_CHECK(strcmp(name, o->specials[k]), AX_ERR_USAGE,
                     "special token \"%s\" is given twice: name it once", name);
        eos_listed |= o->eos && !strcmp(name, o->eos);
    }
    AX_CHECK(eos_listed, AX_ERR_USAGE,
             "the end-of-text token \"%s\" is not among the special tokens; name it there too (--special)",
             o->eos);
    return AX_OK;
}

static ax_status check_options(const ax_tokenizer_training *o)
{
    const char *pattern = o->pattern ? o->pattern : "gpt2";
    AX_CHECK(tok_pattern_named(pattern), AX_ERR_USAGE,
             "pattern \"%s\" is unknown: choose gpt2, llama3 or qwen2", pattern);
    AX_CHECK(o->vocab <= 1 << 24, AX_ERR_USAGE, "a vocabulary of %d is too large: at most %d", o->vocab,
             1 << 24);
    AX_CHECK(o->vocab >= 0 && (size_t)o->vocab >= N_BYTES + o->n_specials, AX_ERR_USAGE,
             "a vocabulary of %d is too small for 256 bytes and %zu special tokens: at least %zu", o->vocab,
             o->n_specials, N_BYTES + o->n_specials);
    AX_CHECK(o->n_paths || o->next, AX_ERR_USAGE,
             "there is no text to train a tokenizer on: give files, or a function that supplies documents");
    return check_specials(o);
}

/* Returns the end-of-text token: the option `eos`, or <|endoftext|> if `eos` is NULL and <|endoftext|> is a
 * special token, else NULL. */
static const char *chosen_eos(const ax_tokenizer_training *o)
{
    for (size_t i = 0; i < o->n_specials; i++)
        if (!strcmp(o->specials[i], o->eos ? o->eos : "<|endoftext|>"))
            return o->specials[i];
    return NULL;
}

static ax_status vocab_json(const trainer *t, json_t *vocab, json_t *added)
{
    int failed = !vocab || !added;
    for (size_t i = 0; i < t->names.n && !failed; i++) {
        const bpe_word *word = &t->names.words[i];
        char *name;
        AX_TRY(ax_strndup(t->names.bytes + word->start, word->size, &name));
        failed |= json_object_set_new(vocab, name, json_integer((json_int_t)i));
        if (i < t->training->n_specials)
            failed |= json_array_append_new(added, tok_added_json((int32_t)i, name, true));
        free(name);
    }
    AX_CHECK(!failed, AX_ERR_MEMORY, "not enough memory for the vocabulary of %zu tokens of a new tokenizer",
             t->names.n);
    return AX_OK;
}

static ax_status make_tokenizer(const trainer *t, const char *pattern, ax_tokenizer **out)
{
    char *json = NULL, *config = NULL;
    size_t json_size = 0, config_size = 0;
    json_t *vocab = json_object(), *added = json_array();
    ax_status status = vocab_json(t, vocab, added);
    if (status == AX_OK)
        status = tok_write_json(pattern, false, vocab, t->merges, added, &json, &json_size);
    json_decref(vocab);
    json_decref(added);
    if (status == AX_OK)
        status = tok_write_config(chosen_eos(t->training), &config, &config_size);
    if (status != AX_OK) {
        free(json);
        return status;
    }
    return tok_parse("the trained tokenizer", NULL, json, json_size, config, config_size, out);
}

ax_status ax_tokenizer_train(const ax_tokenizer_training *training, ax_tokenizer **out)
{
    const char *pattern = training->pattern ? training->pattern : "gpt2";
    *out = NULL;
    AX_TRY(check_options(training));
    tok_stage stage;
    bpe_table words = {0};
    ax_status status = tok_stage_init(&stage, tok_pattern_named(pattern), false);
    if (status == AX_OK)
        status = bpe_count(training, &stage, strcmp(pattern, "qwen2") ? 0 : tok_form_named("NFC"), &words);
    trainer t = {.training = training, .words = &words};
    if (status == AX_OK)
        status = train(&t);
    if (status == AX_OK)
        status = make_tokenizer(&t, pattern, out);
    trainer_fini(&t);
    bpe_table_fini(&words);
    tok_stage_fini(&stage);
    return status;
}
