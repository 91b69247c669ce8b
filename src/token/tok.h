/* Declarations that the files of the tokenizer share (private to src/data). Read axonn/tokenizer.h first. A
 * piece (pre-token) is a part of a text that is merged by itself.
 *
 *   text.c         bytes and characters: UTF-8, white space, the byte alphabet
 *   normal.c       Unicode normal forms
 *   normalize.c    the normalizer, and the spaces that a pre-tokenizer adds or replaces
 *   unicode.c      Unicode categories of the version that Hugging Face's library has
 *   translate.c    regular expressions of tokenizer.json -> those of PCRE2
 *   pattern.c      cutting text into pieces with regular expressions
 *   files.c        the files of a tokenizer: which there are, and their texts
 *   load.c         text of tokenizer.json -> ax_tokenizer: vocabulary, merges, added tokens
 *   parts.c        tokenizer.json -> ax_tokenizer: normalizer, pre_tokenizer, post_processor
 *   beside.c       files beside tokenizer.json -> added tokens of tokenizer.json
 *   config.c       tokenizer_config.json -> end-of-text token, chat template
 *   save.c         vocabulary and merges -> tokenizer.json, for training and for GPT-2's older files
 *   tokenizer.c        look-ups of ids and names; the trie of added tokens
 *   decode.c       tokenizer.json -> decoder; ids -> text
 *   join.c         finds where a piece can be cut because no merge joins the two sides of the cut
 *   merge.c        merging the bytes or characters of one piece
 *   encode.c       text -> added tokens and sections -> pieces -> ids
 *   check.c        checks that encoding and then decoding returns the text
 *   bpe_count.c        training, first half: text -> distinct pieces with counts, in parallel
 *   bpe_train.c        training, second half: counts -> merges
 *
 * There are two kinds of tokenizers. In a byte-level tokenizer, a token's name in the JSON files has one
 * printable character for each byte (tok_byte_char); pieces and merges use the bytes. In a tokenizer of
 * SentencePiece's kind, a token's name is text in which U+2581 stands for a space and "<0x0A>" for a byte;
 * pieces are text of this form, and merging starts from characters.
 *
 * Added tokens are the entries of added_tokens in tokenizer.json, such as special tokens. They are found in a
 * text as a whole, before the text is cut into pieces. */
#ifndef AXONN_TOKEN_TOK_H
#define AXONN_TOKEN_TOK_H

#include "axonn/json.h"
#include "axonn/tokenizer.h"

#include <jansson.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* ---- text ---------------------------------------------------------------------------------------- */

/* Returns the number of bytes at the start of the text that are valid UTF-8. */
size_t tok_utf8_prefix(const char *text, size_t n);
/* Returns the length in bytes of the character whose first byte is `lead`, in valid UTF-8. */
static inline size_t tok_utf8_size(unsigned char lead)
{
    return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}
/* Returns the character at the start of valid, non-empty UTF-8; *size is its length in bytes. */
uint32_t tok_utf8_get(const char *text, size_t *size);
/* Writes the character as UTF-8 and returns its length (1 to 4). */
size_t tok_utf8_put(uint32_t c, char *out);

/* tok_byte_char returns the printable character that stands for a byte in the JSON files. tok_char_byte is
 * its inverse; it returns -1 if the character stands for no byte. As in GPT-2, printable Latin-1 characters
 * stand for themselves, and U+0100 and up, in order, stand for the other bytes. */
uint32_t tok_byte_char(unsigned byte);
int tok_char_byte(uint32_t c);
/* Converts the name of a token in a JSON file to the bytes that the name stands for. Returns false if a
 * character of the name stands for no byte. Writes at most n bytes. */
bool tok_name_bytes(const char *name, size_t n, char *out, size_t *size);

/* tok_space_prefix and tok_space_suffix return the length in bytes of the white space (property White_Space)
 * at the start and at the end of valid UTF-8. tok_starts_word and tok_ends_word tell whether the text starts
 * or ends with a word character (letter or other alphabetic character, mark, decimal digit, letter number,
 * connector, or one of the joiners U+200C and U+200D). */
size_t tok_space_prefix(const char *text, size_t n);
size_t tok_space_suffix(const char *text, size_t n);
bool tok_starts_word(const char *text, size_t n);
bool tok_ends_word(const char *text, size_t n);

/* Characters whose general category the versions of Unicode from 14 on do not agree on. `category` is the one
 * of Hugging Face's library (Unicode 16), two letters such as "Lo". `script` is a character of the same
 * script that Unicode 14 has; if Unicode 14 lacks the script, it is `first`. */
typedef struct tok_unicode_row {
    uint32_t first, last;
    char category[3];
    uint32_t script;
} tok_unicode_row;
/* Returns the n rows, in the order of the characters. */
const tok_unicode_row *tok_unicode_rows(size_t *n);
/* Returns true if the text, valid UTF-8, has a character of a row. */
bool tok_unicode_disputed(const char *text, size_t n);
/* Returns the general category of a character in Hugging Face's library. */
const char *tok_category(uint32_t c);

/* Returns the options of the library utf8proc for the Unicode normal form `name`: NFC, NFD, NFKC or NFKD.
 * Returns -1 for any other name. Options 0 mean no normalization. */
int tok_form_named(const char *name);
/* Appends `text`, which is valid UTF-8, to `out` in the normal form `form` (utf8proc options). */
AX_MUST_CHECK ax_status tok_normalize(int form, const char *text, size_t n, ax_buf *out);

/* ---- normalization ------------------------------------------------------------------------------- */

enum { TOK_MAX_STEPS = 8 };

/* One step of a normalizer or a decoder. It either converts text to a Unicode normal form, or prepends the
 * string `put`, or replaces each occurrence of the string `find` by `put`. */
typedef struct tok_step {
    int form;        /* Unicode normal form (tok_form_named); 0: the step prepends or replaces */
    char *find;      /* text to replace; NULL: prepend */
    char *put;       /* text to prepend, or to put in place of `find` */
    bool drop_first; /* decoders only: in the first token, `find` is removed, not replaced */
} tok_step;
typedef struct tok_steps {
    tok_step step[TOK_MAX_STEPS];
    int n;
} tok_steps;
void tok_steps_fini(tok_steps *steps);

/* The kind of text before a section of a document. Added tokens, and bytes that are not UTF-8, divide a
 * document into sections: the stretches of other text. This kind decides whether the normalizer and the
 * pre-tokenizer put text or a space before the section. */
typedef enum tok_place {
    TOK_CONTINUES,    /* a byte that is not UTF-8 */
    TOK_AFTER_ADDED,  /* an added token */
    TOK_AT_BEGINNING, /* nothing: the section begins the document */
} tok_place;

/* Returns a pointer to the first occurrence of `find` in the text, or NULL. `find` has at least one byte. */
const char *tok_text_find(const char *find, size_t n_find, const char *text, size_t n);
/* Appends the text to `out`, with each occurrence of the string `find` replaced by the string `put`. */
AX_MUST_CHECK ax_status tok_replace(const char *find, const char *put, const char *text, size_t n,
                                    ax_buf *out);
/* Applies the steps of a normalizer or decoder to *text. If `place` is TOK_CONTINUES, leaves out the steps
 * that prepend. Sets *text and *n to the result, which lies in the given text or in one of the buffers
 * `work`. */
AX_MUST_CHECK ax_status tok_steps_run(const tok_steps *steps, tok_place place, const char **text, size_t *n,
                                      ax_buf work[2]);
/* Returns true if a text can be cut before each byte b: the steps make of it what they make of the text
 * before b, if that is not empty, and then what they make of the rest at TOK_CONTINUES. */
bool tok_steps_divide(const tok_steps *steps, char b);

/* ---- patterns ------------------------------------------------------------------------------------ */

enum { TOK_MAX_STAGES = 8 };

/* One step of cutting text into pieces: each match of the regular expression is a piece. The text between two
 * matches is also a piece, or is dropped if `drop_gaps` is set. */
typedef struct tok_stage {
    pcre2_code *code;
    pcre2_code *corrected; /* the same for texts with characters on which the versions of Unicode disagree
                              (tok_unicode_rows); it is slower. NULL: `code` is right for all texts */
    char *pattern;         /* the regular expression as written in tokenizer.json */
    bool drop_gaps;
} tok_stage;

/* Returns the regular expression by which the pre-tokenizer `name` (gpt2, llama3 or qwen2) splits text, or
 * NULL for any other name. */
const char *tok_pattern_named(const char *name);
/* Compiles a regular expression written for Hugging Face tokenizers (Oniguruma, Ruby syntax) so that PCRE2
 * finds the same matches. AX_ERR_DATA: the expression has a construct that is not supported. */
AX_MUST_CHECK ax_status tok_stage_init(tok_stage *stage, const char *pattern, bool drop_gaps);
void tok_stage_fini(tok_stage *stage);

/* Appends to `out` the regular expression of PCRE2 that has the same matches as `pattern`, which is written
 * for Oniguruma in Ruby syntax; unless `corrected` is true, only in texts without characters on which the
 * versions of Unicode disagree. AX_ERR_DATA as for tok_stage_init. */
AX_MUST_CHECK ax_status tok_translate(const char *pattern, bool corrected, ax_buf *out);

/* PCRE2 state for matching; each thread needs its own. */
typedef struct tok_matcher {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
} tok_matcher;
AX_MUST_CHECK ax_status tok_matcher_init(tok_matcher *matcher);
void tok_matcher_fini(tok_matcher *matcher);

typedef ax_status (*tok_piece_fn)(void *arg, const char *piece, size_t n);
/* Cuts valid UTF-8 into pieces by all stages (regular expressions) in turn, and calls `fn` for each piece,
 * left to right. */
AX_MUST_CHECK ax_status tok_split(const tok_stage *stages, int n_stages, tok_matcher *matcher,
                                  const char *text, size_t n, tok_piece_fn fn, void *arg);

/* ---- the tokenizer ------------------------------------------------------------------------------- */

typedef struct tok_piece {
    size_t name, text, first; /* offsets in ax_tokenizer.bytes of three strings, whose lengths follow */
    uint32_t name_size; /* length of the token's name, by which tok_find finds the token; 0: no token has this
                           id */
    uint32_t text_size; /* length of the text that the token decodes to */
    uint32_t first_size; /* length of the text that the token decodes to if it is the first token of a text */
    bool special;
    bool in_model; /* the token is in model.vocab, and tok_find finds it by its name */
} tok_piece;

typedef struct tok_rule {
    uint64_t pair; /* ids of the two tokens that the rule merges, left << 32 | right; TOK_NO_PAIR in an empty
                      slot */
    int32_t rank, id; /* rank: a rule of lower rank is applied first; id: the merged token */
} tok_rule;
#define TOK_NO_PAIR UINT64_MAX

typedef struct tok_added {
    int32_t id;
    bool special, lstrip, rstrip, single_word, normalized;
    char *content; /* text to find; if `normalized` is set, its normalized form */
    size_t size;
} tok_added;

/* When a pre-tokenizer puts a space before a text that does not start with one. */
typedef enum tok_prefix {
    TOK_PREFIX_NEVER,
    TOK_PREFIX_ALWAYS, /* a space at the beginning of the document and after added tokens */
    TOK_PREFIX_FIRST   /* a space only at the beginning of the document */
} tok_prefix;

/* A node of a trie (prefix tree) over the bytes of added tokens. The children of a node are a list, linked by
 * `sibling`. */
typedef struct tok_node {
    int32_t child, sibling, added; /* indices of the first child, of the next child of the same parent, and of
                                      the added token that ends here; -1: none */
    unsigned char byte;
} tok_node;
typedef struct tok_tree {
    tok_node *nodes;
    int32_t n_nodes;
    int32_t root[256]; /* [b]: index of the node for the first byte b; -1: none */
} tok_tree;

struct ax_tokenizer {
    char *json, *config; /* contents of tokenizer.json and of tokenizer_config.json */
    size_t json_size, config_size;
    char *chat_template; /* Jinja, or NULL */
    json_t *templates;   /* by name, where there are several: an object of texts; or NULL */
    char *template_file; /* of the chat template, for messages; or NULL */
    char *template_dir;  /* has a file NAME.jinja for each of `templates` but the default one; or NULL */
    const char *template_fault; /* why chat_template of tokenizer_config.json is none; or NULL */

    tok_piece *pieces; /* [n_ids], indexed by id */
    int32_t n_ids;
    int32_t bos; /* id of bos_token of tokenizer_config.json; -1: none, or not in the vocabulary */
    ax_buf bytes;
    int32_t *by_name; /* hash table with open addressing, from names to ids; -1 in an empty slot */
    uint64_t by_name_mask;
    bool byte_level;          /* false: names are text, as in SentencePiece's files */
    int32_t byte_id[256];     /* id of the token whose name is this one byte; -1: there is none */
    int32_t fallback_id[256]; /* [b]: id of the token for byte b ("<0x00>", …), used for characters without a
                                 token; -1: none */

    tok_rule *rules; /* hash table with open addressing, keyed by `pair` */
    uint64_t rules_mask;
    int rules_shift;
    bool ignore_merges;
    int32_t unk; /* id of unk_token; -1: none, so characters without a token are dropped */
    bool fuse_unk;
    uint64_t *joins; /* bit table of the pairs of characters that a merge may join (join.c); NULL: pieces
                        are not cut further */

    tok_steps normalizer;
    char *space; /* text that replaces each space of the normalized text, such as U+2581; NULL: spaces stay */
    bool split_spaces;
    tok_prefix prefix;
    tok_stage stages[TOK_MAX_STAGES];
    int n_stages;

    tok_added *added;
    size_t n_added;
    tok_tree raw_tree, normal_tree; /* added tokens matched before (raw) and after (normal) normalization */

    ax_ids before, after; /* ids that the template of post_processor puts before and after the text */
    tok_steps decoder;
    bool chat_template_apart; /* chat_template is saved in a file of its own, chat_template.jinja */
    bool split_specials;      /* special tokens in a text are encoded as plain text (split_special_tokens) */
    bool decode_bytes;        /* a token named "<0x0A>", … decodes to one byte */
    char strip; /* decoding removes up to `strips` of this character from the start of the text */
    int strips;
    int32_t eos;
    uint64_t hash;
};

/* Builds a tokenizer from `json`, the text of tokenizer.json, and `config`, the text of tokenizer_config.json
 * (may be NULL). Takes ownership of the two texts, even on failure. `where` names the file in messages. `dir`
 * is the directory with the files beside tokenizer.json; NULL if `json` was made of other files: then
 * tokenizer_config.json says which tokens are put around a text. */
AX_MUST_CHECK ax_status tok_parse(const char *where, const char *dir, char *json, size_t json_size,
                                  char *config, size_t config_size, ax_tokenizer **out);
/* Adds to `root`, the contents of tokenizer.json, what transformers takes from the files beside it: `config`,
 * the contents of tokenizer_config.json, and special_tokens_map.json and added_tokens.json of `dir` (NULL as
 * for tok_parse). Adds the members of special_tokens_map.json to `config` if they count. Updates tok->json
 * and tok->config. AX_ERR_DATA: the files contradict each other. */
AX_MUST_CHECK ax_status tok_add_beside(const char *where, const char *dir, json_t *root, json_t *config,
                                       ax_tokenizer *tok);
/* Applies tokenizer_config.json, once the vocabulary and the post_processor of tokenizer.json are in `tok`:
 * sets tok->eos, tok->bos, tok->split_specials, and the chat template or templates. `config` is NULL
 * if there is no such file; tok->config is then set to a text for such a file, to be saved with checkpoints.
 */
AX_MUST_CHECK ax_status tok_apply_config(const char *where, const json_t *config, ax_tokenizer *tok);
/* Reads chat_template.jinja of `dir` and the files of additional_chat_templates, if there are any. They
 * replace all chat templates of tokenizer_config.json. AX_ERR_DATA: the file cannot be read, or is larger
 * than 1 MiB. */
AX_MUST_CHECK ax_status tok_read_chat_template(const char *dir, ax_tokenizer *tok);
/* Parses normalizer, pre_tokenizer, post_processor and decoder into `tok`. */
AX_MUST_CHECK ax_status tok_parse_parts(const char *where, const json_t *root, ax_tokenizer *tok);
AX_MUST_CHECK ax_status tok_parse_decoder(const char *where, const json_t *part, ax_tokenizer *tok);
/* Returns the type of a JSON value in words, for messages: "null", "a string", … */
const char *tok_json_kind(const json_t *value);
/* Sets *type to the member "type" of a part of tokenizer.json, such as the normalizer. *type is NULL if the
 * part is null or missing. `field` names the part in messages. */
AX_MUST_CHECK ax_status tok_part_type(const char *where, const char *field, const json_t *part,
                                      const char **type);
/* Sets *members to the member `key` of `part`, a part of tokenizer.json whose type is Sequence. The member is
 * an array; its elements are parts that run one after the other. */
AX_MUST_CHECK ax_status tok_sequence_members(const char *where, const char *field, const json_t *part,
                                             const char *key, const json_t **members);
/* Appends to `steps` the step that `part` describes: an object of type Replace in a normalizer or decoder. */
AX_MUST_CHECK ax_status tok_add_replace(const char *where, const char *field, const json_t *part,
                                        tok_steps *steps);
/* Appends a step with the members `form`, `find` and `put` (tok_step) to `steps`; `find` may be NULL. */
AX_MUST_CHECK ax_status tok_add_step(const char *where, const char *field, int form, const char *find,
                                     const char *put, tok_steps *steps);
/* Reads an object of type Metaspace (SentencePiece's handling of spaces). Sets *space to the character that
 * replaces a space. Sets *prefix to the cases in which a space is put before a text. */
AX_MUST_CHECK ax_status tok_parse_metaspace(const char *where, const char *field, const json_t *part,
                                            const char **space, tok_prefix *prefix);

/* Writes a tokenizer.json into *text, which the caller frees. `pattern` is a name for tok_pattern_named
 * (qwen2 also sets the normalizer NFC); `vocab` is an object from names to ids, `merges` an array of pairs of
 * names ("a b" or ["a", "b"]), `added` an array of objects made by tok_added_json. */
AX_MUST_CHECK ax_status tok_write_json(const char *pattern, bool prefix_space, json_t *vocab, json_t *merges,
                                       json_t *added, char **text, size_t *size);
/* Makes one entry of `added_tokens`; NULL if out of memory. */
json_t *tok_added_json(int32_t id, const char *content, bool special);
/* Writes a tokenizer_config.json into *text, which the caller frees; eos may be NULL. */
AX_MUST_CHECK ax_status tok_write_config(const char *eos, char **text, size_t *size);
/* Fails, because `dir` has SentencePiece's tokenizer.model but no tokenizer.json. The message gives a command
 * that makes a tokenizer.json of it. */
AX_MUST_CHECK ax_status tok_refuse_sentencepiece(const char *dir);
/* Loads vocab.json and merges.txt of `dir`. */
AX_MUST_CHECK ax_status tok_load_gpt2_files(const char *dir, ax_tokenizer **out);

AX_MUST_CHECK ax_status tok_ids_reserve(ax_ids *ids, size_t extra);
/* Returns the id of the token with exactly this name (in a byte-level tokenizer: with these bytes), or -1.
 * Finds only tokens of model.vocab (`in_model` is set). */
int32_t tok_find(const ax_tokenizer *tok, const char *name, size_t n);

/* Replaces the spaces in *text and puts a space before *text, if the pre-tokenizer's settings in `tok` say
 * so. Sets *text and *n to the result, which lies in the given text or in `work`. */
AX_MUST_CHECK ax_status tok_set_spaces(const ax_tokenizer *tok, tok_place place, const char **text, size_t *n,
                                       ax_buf *work);
/* The same as tok_steps_divide, for tok_set_spaces. */
bool tok_spaces_divide(const ax_tokenizer *tok, char b);
/* Appends to `out` the text that the token `name` decodes to. `first`: the token is the first one of the
 * decoded text. */
AX_MUST_CHECK ax_status tok_name_text(const ax_tokenizer *tok, const char *name, size_t n, bool first,
                                      ax_buf *out);

AX_MUST_CHECK ax_status tok_tree_init(tok_tree *tree, const tok_added *added, size_t n, bool normalized);
void tok_tree_fini(tok_tree *tree);
/* Returns the index, in ax_tokenizer.added, of the longest added token of `tree` with which the text starts;
 * -1 if there is none. */
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

/* Scratch memory for merging long pieces; one for each thread. */
typedef struct tok_merger {
    int32_t *id;
    uint32_t *prev, *next;
    size_t capacity;
    uint64_t *heap;
    size_t heap_capacity;
    int64_t unknown; /* number of bytes encoded so far that no token stands for */
} tok_merger;
void tok_merger_fini(tok_merger *merger);
/* Appends the token ids of one piece: the ids of its bytes or characters, merged by the rules; the rule of
 * lowest rank first, and among pairs with the same rule the leftmost. */
AX_MUST_CHECK ax_status tok_merge(const ax_tokenizer *tok, tok_merger *merger, const char *piece, size_t n,
                                  ax_ids *out);

/* Records in the bit table *joins (join.c) that a merge joins the last character of `left` with the first
 * character of `right`, the names of two tokens. Allocates *joins at the first call. */
AX_MUST_CHECK ax_status tok_join_add(uint64_t **joins, const char *left, const char *right);
/* Returns the length of the shortest part at the start of a text that no merge can join with the text after
 * it, or n if there is none. */
size_t tok_join_cut(const uint64_t *joins, const char *text, size_t n);

struct ax_encoder;
/* tok_encoder_invalid returns the number of bytes encoded so far that are not valid UTF-8,
 * tok_encoder_unknown the number of bytes that no token stands for. */
int64_t tok_encoder_invalid(const struct ax_encoder *encoder);
int64_t tok_encoder_unknown(const struct ax_encoder *encoder);
const ax_tokenizer *tok_encoder_tokenizer(const struct ax_encoder *encoder);

/* ---- training ------------------------------------------------------------------------------------ */

/* Makes room for at least `need` elements of `size` bytes in a growable array. `array` is the address of the
 * pointer to the array, *capacity the number of elements for which there is room. */
AX_MUST_CHECK ax_status bpe_grow(void *array, size_t *capacity, size_t need, size_t size);

/* A bpe_table holds distinct byte strings, numbered in the order of their first appearance. A bpe_word is one
 * string of a table, with its count. */
typedef struct bpe_word {
    size_t start; /* offset in bpe_table.bytes */
    uint32_t size, hash;
    int64_t count;
} bpe_word;
typedef struct bpe_table {
    bpe_word *words;
    size_t n, capacity;
    char *bytes;
    size_t bytes_size, bytes_capacity;
    uint64_t *slots; /* open-addressing hash table: hash << 32 | number of the string + 1; 0: empty slot */
    size_t mask;     /* number of slots - 1 */
} bpe_table;
/* Adds `count` to the count of a string, after inserting the string with count 0 if the table does not
 * contain it. *number (may be NULL) is the string's number. */
AX_MUST_CHECK ax_status bpe_table_add(bpe_table *table, const char *bytes, size_t n, int64_t count,
                                      size_t *number);
void bpe_table_fini(bpe_table *table);

/* Counts how often each distinct piece (pre-token) occurs in all documents. Leaves out pieces of one byte,
 * because they have nothing to merge. `form`: Unicode normal form of the text (tok_form_named); 0: none. */
AX_MUST_CHECK ax_status bpe_count(const ax_tokenizer_training *training, const tok_stage *stage, int form,
                                  bpe_table *out);

#endif
