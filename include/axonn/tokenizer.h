/* data/tokenizer: byte-pair encoding - load, train, encode, decode, check.
 *
 * A tokenizer has the parts of a Hugging Face `tokenizer.json` of the type BPE: a normalizer, a pre-tokenizer
 * that cuts text into pieces, merges inside a piece, added tokens, a template of special tokens, a decoder.
 * Two kinds of BPE can be read. In byte-level BPE (GPT-2, Llama 3, Qwen, DeepSeek) merging starts from bytes.
 * In SentencePiece's BPE (Llama 2, Mistral) merging starts from characters, U+2581 stands for a space, and a
 * character that has no token is encoded as the byte tokens (<0x00> to <0xFF>) of its UTF-8 bytes. A
 * tokenizer never changes after it was created (ax_tokenizer_set_chat_template is part of its creation), so
 * any number of threads may share it. The state of encoding (cache of encoded pieces, scratch memory) is in
 * an ax_encoder, one per thread. Token ids are int32_t, from 0. Text is bytes with a length: it may hold NUL
 * and need not be valid UTF-8. Nothing here is collective. */
#ifndef AXONN_TOKENIZER_H
#define AXONN_TOKENIZER_H

#include "axonn/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ax_tokenizer ax_tokenizer;
typedef struct ax_encoder ax_encoder;

/* A growable array of token ids. Zero-initialise to start; `data` is owned by the array. */
typedef struct ax_ids {
    int32_t *data;
    size_t size, capacity;
} ax_ids;
AX_MUST_CHECK ax_status ax_ids_add(ax_ids *ids, const int32_t *more, size_t n);
void ax_ids_fini(ax_ids *ids);

/* ---- load, save, ask ----------------------------------------------------------------------------- */

/* Loads a tokenizer. `path` is a directory, the directory of a run (which has a subdirectory `tokenizer`), a
 * tokenizer.json, or a vocab.json of GPT-2's kind with merges.txt beside it. In a directory, vocab.json is
 * used if there is no tokenizer.json. From the files
 * beside tokenizer.json, what transformers 5 takes is taken: the chat template, split_special_tokens, for two
 * classes add_prefix_space, and added tokens (added_tokens_decoder, or else special_tokens_map.json and
 * added_tokens.json; the named special tokens; extra_special_tokens). add_bos_token and add_eos_token count
 * only beside a vocab.json, where tokenizer_class is read too. The caller owns *out. AX_ERR_DATA if a file is
 * missing or damaged, or uses a feature that is not implemented here; the message names the field. If the
 * directory has only a tokenizer.model, the message says how to convert that file to a tokenizer.json. No
 * field of tokenizer.json that changes the ids of a text is silently ignored, except `truncation` and
 * `padding`, which are settings of one run. */
AX_MUST_CHECK ax_status ax_tokenizer_load(const char *path, ax_tokenizer **out);

/* Writes the files of the tokenizer into the directory `dir`, which is created if missing: tokenizer.json,
 * tokenizer_config.json and, if the latter does not hold the chat template, chat_template.jinja.
 * tokenizer.json is byte for byte the file that was loaded, unless files beside it add tokens, which are then
 * part of it; for a tokenizer that was trained, or loaded from vocab.json and merges.txt, it is the file made
 * then. tokenizer_config.json is byte for byte the file that was loaded, or a new one if there was none;
 * ax_tokenizer_set_chat_template removes the chat template from it. A chat_template.jinja that is in `dir`
 * already is replaced or removed. Hugging Face `tokenizers` and transformers load the result. */
AX_MUST_CHECK ax_status ax_tokenizer_save(const ax_tokenizer *tok, const char *dir);

void ax_tokenizer_destroy(ax_tokenizer **tok);

/* Returns the largest id plus 1: the smallest vocabulary of a model that uses this tokenizer. */
int32_t ax_tokenizer_vocab_size(const ax_tokenizer *tok);

/* Returns the id of the token that ends a document: `eos_token` of tokenizer_config.json, else
 * `<|endoftext|>`, else -1. */
int32_t ax_tokenizer_eos(const ax_tokenizer *tok);

/* Return the ids of the special tokens that post_processor puts before and after each text (begin of text,
 * …), as ax_encode does with AX_ENCODE_ADD_SPECIAL; owned by `tok`. */
const ax_ids *ax_tokenizer_before(const ax_tokenizer *tok);
const ax_ids *ax_tokenizer_after(const ax_tokenizer *tok);

/* Returns the tokenizer's chat template, the Jinja text by which transformers writes conversations: the file
 * chat_template.jinja beside tokenizer.json, else "chat_template" of tokenizer_config.json (of several
 * templates, the one named "default"). Returns NULL if there is none. axonn/chat.h runs it. */
const char *ax_tokenizer_chat_template(const ax_tokenizer *tok);
/* Replaces the chat template (ax_tokenizer_chat_template) by `jinja`. Does not change the tokenizer's hash.
 * AX_ERR_MEMORY. */
AX_MUST_CHECK ax_status ax_tokenizer_set_chat_template(ax_tokenizer *tok, const char *jinja);

/* Returns a hash of everything in the tokenizer on which the ids of a text depend, including the end-of-text
 * token. The formatting of the files does not change the hash. Token files record the hash, so that a model
 * with another tokenizer can be refused. */
uint64_t ax_tokenizer_hash(const ax_tokenizer *tok);

/* Returns the id of the token `name`, or -1; added tokens are searched first. The name of an added token is
 * its content. The name of any other token is, in byte-level BPE, the bytes that the token stands for, such
 * as " the"; in SentencePiece's BPE, the name in the file, such as "\u2581the" or "<0x0A>". A byte-level
 * token is not found if its name in the file has other characters than the 256 by which GPT-2 writes bytes;
 * encoding never produces such a token. */
int32_t ax_tokenizer_id(const ax_tokenizer *tok, const char *name, size_t n);

/* Returns the bytes that a token stands for inside a text (not NUL-terminated; owned by `tok`), or NULL if no
 * token has this id. */
const char *ax_tokenizer_piece(const ax_tokenizer *tok, int32_t id, size_t *n);

/* Returns true if tokenizer.json marks the token as special (end of text, begin of text, …). */
bool ax_tokenizer_is_special(const ax_tokenizer *tok, int32_t id);

/* ---- encode and decode --------------------------------------------------------------------------- */

enum {
    AX_ENCODE_ADD_SPECIAL = 1, /* add the special tokens (begin of text, …) of post_processor */
    AX_ENCODE_PLAIN = 2        /* encode special tokens in the text as plain text, for untrusted input */
};

/* Creates an encoder for one thread; `tok` must outlive the encoder. The caller owns *out. AX_ERR_MEMORY. */
AX_MUST_CHECK ax_status ax_encoder_create(const ax_tokenizer *tok, ax_encoder **out);
void ax_encoder_destroy(ax_encoder **encoder);

/* Appends the ids of one document, n bytes at `text`, to `out`. flags: AX_ENCODE_*. Appends no end-of-text
 * token. Each byte that is not part of valid UTF-8 becomes a piece of its own, so that decoding returns the
 * input byte for byte, if there are tokens for all bytes. If the file has a normalizer or adds a prefix
 * space, decoding returns the text changed by them. Time is O(n log n) in the worst case. AX_ERR_DATA if the
 * pre-tokenizer's regular expression exceeds the limits of the matcher on this text; `out` then has the ids
 * of the text before that place. */
AX_MUST_CHECK ax_status ax_encode(ax_encoder *encoder, const char *text, size_t n, unsigned flags,
                                  ax_ids *out);

/* A part of a text: the bytes from the end of the previous part up to the offset `end`. A part never ends
 * inside a UTF-8 character. */
typedef struct ax_text_part {
    size_t end;
    bool plain;  /* special tokens, and those of guarded[0], in the part are encoded as plain text */
    bool strict; /* of a plain part: so are those of guarded[1] */
    bool target; /* the part is a training target; only for the caller (ax_chat_text) */
} ax_text_part;

/* Encodes a text of n >= 1 parts; the last part ends with the text. Appends the ids to `out`, and to `part`,
 * for each id, the index of the part that holds the token's last byte. The text is encoded as a whole, as by
 * ax_encode with flags 0, with one exception: a special token is recognized only if no byte of it lies in a
 * plain part (ax_text_part.plain). guarded[0] lists the ids of further tokens with the same rule, guarded[1]
 * those of tokens without a byte in a strict part; NULL: none.
 * The index in `part` may be wrong only for tokens next to a character that no token stands for. Errors as
 * for ax_encode. */
AX_MUST_CHECK ax_status ax_encode_parts(ax_encoder *encoder, const char *text, const ax_text_part *parts,
                                        size_t n, const ax_ids guarded[2], ax_ids *out, ax_ids *part);

enum {
    AX_DECODE_SKIP_SPECIAL = 1, /* special tokens give no text */
    AX_DECODE_CONTINUE = 2      /* the ids continue a text, so a leading space is part of the text */
};

/* Appends the text of n token ids to `out`, as the member "decoder" of tokenizer.json says. SentencePiece's
 * BPE encodes a text with a space before it; decoding removes this space, unless AX_DECODE_CONTINUE is given.
 * flags: AX_DECODE_*. Bytes that are not UTF-8 are returned as they are. AX_ERR_DATA for an id that no token
 * has. */
AX_MUST_CHECK ax_status ax_decode(const ax_tokenizer *tok, const int32_t *ids, size_t n, unsigned flags,
                                  ax_buf *out);

/* The state of decoding token by token. Only whole characters are returned: the start of a UTF-8 sequence (at
 * most 3 bytes) is held back until further tokens complete it or show that it is invalid. */
typedef struct ax_decoder {
    const ax_tokenizer *tok;
    unsigned flags;
    char held[4];
    size_t n_held;
    bool at_first; /* no token has been decoded yet; false from the start with AX_DECODE_CONTINUE */
    int strips;    /* number of characters, as a rule spaces, that may still be removed from the start of the
                      text */
} ax_decoder;
void ax_decoder_init(ax_decoder *decoder, const ax_tokenizer *tok, unsigned flags);
AX_MUST_CHECK ax_status ax_decoder_push(ax_decoder *decoder, int32_t id, ax_buf *out);
/* Appends the bytes that are still held back. The decoder is then as after ax_decoder_init. */
AX_MUST_CHECK ax_status ax_decoder_finish(ax_decoder *decoder, ax_buf *out);

/* ---- train --------------------------------------------------------------------------------------- */

typedef enum ax_tokenizer_phase {
    AX_TOKENIZER_COUNT, /* `done` and `total`: bytes of text read so far, and of all files; `total` is 0 if
                           ax_tokenizer_training.next supplies documents */
    AX_TOKENIZER_MERGE  /* `done` and `total`: number of tokens made so far, and to make in all */
} ax_tokenizer_phase;

typedef struct ax_tokenizer_training {
    int32_t vocab;               /* number of tokens in all, the 256 bytes and the special tokens included */
    const char *pattern;         /* pre-tokenizer: "gpt2" (or NULL), "llama3", "qwen2" (with NFC) */
    const char *const *specials; /* special tokens; they get the first ids, in this order */
    size_t n_specials;
    const char *eos; /* one of `specials`; NULL: "<|endoftext|>" if `specials` contains it, else none */
    const char *const *paths; /* text files; each is one document */
    size_t n_paths;
    /* Supplies further documents: appends the next document to `doc`, which is empty at the call, or sets
     * *end. May be NULL. Called under a lock, from any of the threads. */
    ax_status (*next)(void *arg, ax_buf *doc, bool *end);
    void *next_arg;
    int threads; /* 0: one per processor (ax_processors); the trained tokenizer does not depend on the
                    number */
    /* Called now and then with the progress, never by two threads at once. Returns false to stop: training
     * then fails with AX_ERR_SIGNAL. May be NULL. */
    bool (*progress)(void *arg, ax_tokenizer_phase phase, int64_t done, int64_t total);
    void *progress_arg;
} ax_tokenizer_training;

/* Trains byte-level BPE (Sennrich et al., ACL'16, on bytes): repeatedly merges the most frequent pair of
 * neighbouring tokens inside pieces, as Hugging Face's BpeTrainer does with the byte alphabet. Among equally
 * frequent pairs the one with the smallest ids is merged. If no pairs are left, training stops with fewer
 * than `vocab` tokens and logs this. The caller owns *out. AX_ERR_USAGE: an option is not valid. AX_ERR_DATA:
 * a file cannot be read, or the text is too large. AX_ERR_SIGNAL: `progress` returned false. */
AX_MUST_CHECK ax_status ax_tokenizer_train(const ax_tokenizer_training *training, ax_tokenizer **out);

/* ---- check --------------------------------------------------------------------------------------- */

/* Statistics of a tokenizer on a set of documents. Zero-initialise it; ax_tokenizer_check adds to it. */
typedef struct ax_tokenizer_report {
    int64_t documents, bytes, tokens; /* bytes / tokens is the compression ratio */
    int64_t invalid_bytes;            /* bytes that are not part of valid UTF-8 */
    int64_t unknown;                  /* bytes that no token stands for: lost, or replaced by unk_token */
    int64_t normalized;        /* documents that decode to their normalized text, not to the original */
    int64_t failed;            /* documents that decode to neither their normalized text nor the original */
    int64_t first_failed;      /* index of the first failed document */
    int64_t first_failed_byte; /* offset, in the decoded text of that document, of the first byte that is not
                                  as expected */
    int64_t tokens_used;       /* number of distinct token ids that occurred */
    uint8_t *used;             /* [vocabulary]: 1 if the id occurred; owned by the report */
} ax_tokenizer_report;
void ax_tokenizer_report_fini(ax_tokenizer_report *report);

/* Encodes and decodes one document, compares, and adds the result to `report`. A difference is a result, not
 * an error. */
AX_MUST_CHECK ax_status ax_tokenizer_check(ax_encoder *encoder, const char *text, size_t n,
                                           ax_tokenizer_report *report);

#ifdef __cplusplus
}
#endif
#endif
