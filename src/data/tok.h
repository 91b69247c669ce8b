/* data, private: declarations that the parts of the tokenizer share. Read axonn/tokenizer.h first.
 *
 *   tok_text.c         bytes and characters: UTF-8, white space, normal forms, the byte alphabet
 *   tok_pattern.c      patterns and cutting text into pieces with them
 *   tok_load.c         tokenizer.json -> ax_tokenizer        tok_parts.c   its normalizer, pattern, template
 *   tok_save.c         parts of a tokenizer -> tokenizer.json, for training and for GPT-2's older files
 *   tokenizer.c        the tokenizer's tables and questions about it; decoding
 *   tok_merge.c        merging the bytes of one piece
 *   tok_encode.c       text -> added tokens and sections -> pieces -> ids
 *   tok_check.c        round trip
 *   bpe_count.c        training, first half: text -> distinct pieces with counts, in parallel
 *   bpe_train.c        training, second half: counts -> merges
 *
 * Two spellings of a token exist: its bytes, and its name in the JSON files, where each byte is written as
 * one printable character (tok_byte_char). Pieces, merges and everything fast use bytes. */
#ifndef AXONN_DATA_TOK_H
#define AXONN_DATA_TOK_H

#include "axonn/json.h"
#include "axonn/tokenizer.h"

#include <jansson.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* ---- text ---------------------------------------------------------------------------------------- */

/* Returns the number of bytes at the start of the text that are valid UTF-8. */
size_t tok_utf8_prefix(const char *text, size_t n);
/* Returns the character at the start of valid, non-empty UTF-8; *size is its length in bytes. */
uint32_t tok_utf8_get(const char *text, size_t *size);
/* Writes the character as UTF-8 and returns its length (1 to 4). */
size_t tok_utf8_put(uint32_t c, char *out);

/* Maps a byte to the printable character that stands for it in the JSON files, and back (-1: the character
 * stands for no byte). As in GPT-2: printable Latin-1 characters stand for themselves, and U+0100 and up, in
 * order, for the other bytes. */
uint32_t tok_byte_char(unsigned byte);
int tok_char_byte(uint32_t c);
/* Converts a name in a JSON file to the bytes that it stands for. Returns false if a character of the name
 * stands for no byte. Writes at most as many bytes as the name has. */
bool tok_name_bytes(const char *name, size_t n, char *out, size_t *size);

/* Return the length in bytes of the white space (property White_Space) at the start or the end of valid
 * UTF-8; whether the text starts or ends with a word character (letter, mark, digit, connector). */
size_t tok_space_prefix(const char *text, size_t n);
size_t tok_space_suffix(const char *text, size_t n);
bool tok_starts_word(const char *text, size_t n);
bool tok_ends_word(const char *text, size_t n);

/* Returns the normal form of this name (a set of utf8proc options; 0 is none), or -1 if the name is unknown.
 */
int tok_form_named(const char *name);
/* Appends valid UTF-8 to `out`, normalized. */
AX_MUST_CHECK ax_status tok_normalize(int form, const char *text, size_t n, ax_buf *out);

/* ---- patterns ------------------------------------------------------------------------------------ */

enum { TOK_MAX_STAGES = 8 };

/* One step of cutting text into pieces: each match of the pattern is a piece, and so is the text between two
 * matches, unless `drop_gaps`. */
typedef struct tok_stage {
    pcre2_code *code;
    char *pattern; /* as written in the file */
    bool drop_gaps;
} tok_stage;

/* Returns the pattern of this name (gpt2, llama3, qwen2), or NULL. */
const char *tok_pattern_named(const char *name);
/* Compiles a pattern written for Hugging Face tokenizers' engine (Oniguruma, Ruby syntax) so that PCRE2 gives
 * the same matches, or refuses it: AX_ERR_DATA. */
AX_MUST_CHECK ax_status tok_stage_init(tok_stage *stage, const char *pattern, bool drop_gaps);
void tok_stage_fini(tok_stage *stage);

/* Per-thread state for matching. */
typedef struct tok_matcher {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
} tok_matcher;
AX_MUST_CHECK ax_status tok_matcher_init(tok_matcher *matcher);
void tok_matcher_fini(tok_matcher *matcher);

typedef ax_status (*tok_piece_fn)(void *arg, const char *piece, size_t n);
/* Cuts valid UTF-8 by all stages in turn and calls `fn` for each piece, left to right. */
AX_MUST_CHECK ax_status tok_split(const tok_stage *stages, int n_stages, tok_matcher *matcher,
                                  const char *text, size_t n, tok_piece_fn fn, void *arg);

/* ---- the tokenizer ------------------------------------------------------------------------------- */

typedef struct tok_piece {
    size_t start;  /* offset of the token's bytes in `bytes` */
    uint32_t size; /* 0: no token has this id */
    bool special;
    bool in_model; /* the token's name is spelled in the byte alphabet, so `by_bytes` finds the token */
} tok_piece;

typedef struct tok_rule {
    uint64_t pair; /* left << 32 | right; TOK_NO_PAIR in an empty slot */
    int32_t rank, id;
} tok_rule;
#define TOK_NO_PAIR UINT64_MAX

typedef struct tok_added {
    int32_t id;
    bool special, lstrip, rstrip, single_word, normalized;
    char *content; /* normalized, if `normalized` */
    size_t size;
} tok_added;

/* A trie over the bytes of added tokens; the children of a node are linked by `sibling`. */
typedef struct tok_node {
    int32_t child, sibling, added; /* -1: none */
    unsigned char byte;
} tok_node;
typedef struct tok_tree {
    tok_node *nodes;
    int32_t n_nodes;
    int32_t root[256];
} tok_tree;

struct ax_tokenizer {
    char *json, *config; /* the texts of the two files */
    size_t json_size, config_size;

    tok_piece *pieces; /* [n_ids] */
    int32_t n_ids;
    ax_buf bytes;
    int32_t *by_bytes; /* open addressing: ids, -1 in an empty slot */
    uint64_t by_bytes_mask;
    int32_t byte_id[256]; /* -1 where the vocabulary lacks the byte */

    tok_rule *rules; /* open addressing by pair */
    uint64_t rules_mask;
    int rules_shift;
    bool ignore_merges;
    int32_t unk; /* -1: unknown bytes are dropped */
    bool fuse_unk;

    int form; /* normal form, see tok_form_named */
    bool prefix_space;
    tok_stage stages[TOK_MAX_STAGES];
    int n_stages;

    tok_added *added;
    size_t n_added;
    tok_tree raw_tree, normal_tree; /* added tokens to match before and after normalization */

    ax_ids before, after; /* ids that the template puts before and after the text */
    int32_t eos;
    uint64_t hash;
};

/* Builds a tokenizer from the texts of its two files. Takes ownership of both, even on failure; config may be
 * NULL. `where` names the file in messages. */
AX_MUST_CHECK ax_status tok_parse(const char *where, char *json, size_t json_size, char *config,
                                  size_t config_size, ax_tokenizer **out);
/* Parses normalizer, pre_tokenizer, post_processor and decoder into `tok`. */
AX_MUST_CHECK ax_status tok_parse_parts(const char *where, const json_t *root, ax_tokenizer *tok);
/* Returns what a JSON value is, for messages: "null", "a string", … */
const char *tok_json_kind(const json_t *value);

/* Writes a tokenizer.json into *text, which the caller frees. `pattern` is a name for tok_pattern_named
 * (qwen2 also sets the normalizer NFC); vocab: object name -> id; merges: array; added: array of added
 * tokens. */
AX_MUST_CHECK ax_status tok_write_json(const char *pattern, bool prefix_space, json_t *vocab, json_t *merges,
                                       json_t *added, char **text, size_t *size);
/* Makes one entry of `added_tokens`; NULL if out of memory. */
json_t *tok_added_json(int32_t id, const char *content, bool special);
/* Writes a tokenizer_config.json into *text, which the caller frees; eos may be NULL. */
AX_MUST_CHECK ax_status tok_write_config(const char *eos, char **text, size_t *size);
/* Loads vocab.json and merges.txt of `dir`. */
AX_MUST_CHECK ax_status tok_load_gpt2_files(const char *dir, ax_tokenizer **out);

AX_MUST_CHECK ax_status tok_ids_reserve(ax_ids *ids, size_t extra);
/* Returns the id of the model's token of exactly these bytes, or -1. */
int32_t tok_find(const ax_tokenizer *tok, const char *bytes, size_t n);

AX_MUST_CHECK ax_status tok_tree_init(tok_tree *tree, const tok_added *added, size_t n, bool normalized);
void tok_tree_fini(tok_tree *tree);
/* Returns the index of the longest added token that the text starts with, or -1. */
int32_t tok_tree_match(const tok_tree *tree, const char *text, size_t n);

/* ---- merging ------------------------------------------------------------------------------------- */

static inline uint64_t tok_pair(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* Returns the rule that merges a pair, or NULL. */
static inline const tok_rule *tok_rule_find(const ax_tokenizer *tok, uint64_t pair)
{
    uint64_t i = (pair * UINT64_C(0x9E3779B97F4A7C15)) >> tok->rules_shift;
    for (;; i = (i + 1) & tok->rules_mask) {
        if (tok->rules[i].pair == pair)
            return &tok->rules[i];
        if (tok->rules[i].pair == TOK_NO_PAIR)
            return NULL;
    }
}

/* Per-thread scratch memory for merging long pieces. */
typedef struct tok_merger {
    int32_t *id;
    uint32_t *prev, *next;
    size_t capacity;
    uint64_t *heap;
    size_t heap_capacity;
    int64_t unknown; /* bytes met so far that the vocabulary lacks */
} tok_merger;
void tok_merger_fini(tok_merger *merger);
/* Appends the ids of one piece: its bytes, merged by the rules, lowest rank first, leftmost among equals. */
AX_MUST_CHECK ax_status tok_merge(const ax_tokenizer *tok, tok_merger *merger, const char *piece, size_t n,
                                  ax_ids *out);

struct ax_encoder;
/* Counts of the bytes encoded so far that are not valid UTF-8, or that no token stands for. */
int64_t tok_encoder_invalid(const struct ax_encoder *encoder);
int64_t tok_encoder_unknown(const struct ax_encoder *encoder);
const ax_tokenizer *tok_encoder_tokenizer(const struct ax_encoder *encoder);

/* ---- training ------------------------------------------------------------------------------------ */

/* Grows *(T **)array to at least `need` elements of `size` bytes; it has room for *capacity. */
AX_MUST_CHECK ax_status bpe_grow(void *array, size_t *capacity, size_t need, size_t size);

/* Distinct byte strings, numbered in the order of their first appearance, each with a count. */
typedef struct bpe_word {
    size_t start; /* into `bytes` */
    uint32_t size, hash;
    int64_t count;
} bpe_word;
typedef struct bpe_table {
    bpe_word *words;
    size_t n, capacity;
    char *bytes;
    size_t bytes_size, bytes_capacity;
    uint64_t *slots; /* open addressing: hash << 32 | number + 1; 0 is empty */
    size_t mask;     /* slots - 1 */
} bpe_table;
/* Adds `count` to a string's count, and the string if it is new; *number (may be NULL) is the string's
 * number. */
AX_MUST_CHECK ax_status bpe_table_add(bpe_table *table, const char *bytes, size_t n, int64_t count,
                                      size_t *number);
void bpe_table_fini(bpe_table *table);

/* Counts the pieces of all documents that have two bytes or more; shorter ones have nothing to merge. */
AX_MUST_CHECK ax_status bpe_count(const ax_tokenizer_training *training, const tok_stage *stage, int form,
                                  bpe_table *out);

#endif
