/* data: turns documents into packed token files, and token files into the rows of training steps.
 *
 * Data flow: corpus (files, directories, JSONL) -> ax_data_build (tokenizer) -> packed token file -> ax_data
 * (a source: one token file, or several read as one) -> ax_sampler (mixture and order of sources) -> rows [B,
 * T] of the step. Letters: N tokens of a source, T tokens of a row (one training sequence), B rows of a
 * step's global batch. No function is collective. Several threads may read one ax_data, or one batch
 * (ax_sampler_read), at once; all other objects are for one thread at a time.
 *
 * The packed token file (suffix .tok by custom). Little-endian, at offsets that fit their alignment:
 *
 *     byte  type  field
 *        0  8 B   magic "AXTOKENS"
 *        8  u32   version: 1, or 2 if the file has a mask
 *       12  u32   w, bytes of a token: 2 if vocab <= 65536, else 4 (unsigned)
 *       16  u64   N, tokens
 *       24  u64   D, documents
 *       32  u64   vocab: every token is below it
 *       40  u64   hash of the tokenizer (ax_tokenizer_hash), 0 if unknown
 *       48  i64   id of the end-of-text token that closes each document, -1 if there is none
 *       56  u64   bytes of the original text, for bits per byte
 *       64  u64   offset of the tokens, 256
 *       72  u64   offset of the document index: 256 + N*w rounded up to 8
 *       80  u64   XXH3-64 of all bytes from 256 to the end of the file
 *       88  u64   XXH3-64 of bytes 0 ... 87
 *       96  u64   version 2: offset of the mask, the end of the document index
 *      104  u64   version 2: number of mask bits that are 1
 *      112  u64   version 2: XXH3-64 of bytes 96 ... 111
 *      120  24 B  version 2: name of the template of its conversations, then zeros; zeros: unknown
 *      144  u64   version 2: XXH3-64 of bytes 120 ... 143, 0 if these are zeros
 *        .        zeros up to 256; anything else is damage
 *      256  u16 or u32 tokens[N], then zeros up to a multiple of 8
 *        .  u64   start[D+1]: document d is tokens start[d] ... start[d+1]-1; start[0] = 0, start[D] = N;
 *                 strictly increasing, because no document is empty; here a file of version 1 ends
 *        .  u64   version 2: mask[(N+63)/64]: bit i % 64 (of value 1 << i % 64) of mask[i / 64] is 1 if
 *                 token i is a target; each document has one; the bits after token N-1 are 0; here the file
 *                 ends
 *
 * The mask marks what an assistant says in conversations (axonn/chat.h), and all tokens of plain text. A file
 * without a mask is of version 1: all of its tokens are targets.
 *
 * The packed token file is written under a temporary name, synced and renamed. So a file under its final name
 * is complete. */
#ifndef AXONN_DATA_H
#define AXONN_DATA_H

#include "axonn/base.h"
#include "axonn/chat.h"
#include "axonn/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- formats ------------------------------------------------------------------------------------- */

typedef enum ax_data_format {
    AX_DATA_TEXT,     /* a plain text file: one document */
    AX_DATA_TREE,     /* a directory of text and JSONL files */
    AX_DATA_PIPE,     /* a pipe or a device, which is read as text or JSON */
    AX_DATA_JSONL,    /* one {"text": ...} per line; each object is a document (.jsonl, .ndjson, or .json) */
    AX_DATA_JSON,     /* an array of {"text": ...} objects, or objects spread over lines (.json) */
    AX_DATA_TOK,      /* the packed token file above */
    AX_DATA_LLMC,     /* llm.c: 1024-byte header with magic 20240520, u16 tokens */
    AX_DATA_LLMC32,   /* llm.c, Llama 3: magic 20240801, u32 tokens */
    AX_DATA_NANOGPT,  /* nanoGPT and others: headerless tokens (.bin); u16, u32 or u64 */
    AX_DATA_MEGATRON, /* Megatron-LM: NAME.idx beside NAME.bin */
} ax_data_format;

/* Returns the short English name of a format, never NULL. */
const char *ax_data_format_name(ax_data_format format);

/* Returns true if files of this format hold text, which must be tokenized before training. */
static inline bool ax_data_format_is_text(ax_data_format format) { return format <= AX_DATA_JSON; }

/* Text may be compressed (.gz, .zst). Return NULL if this program can read such files, else the name of the
 * library without which it was built. */
const char *ax_data_absent_gzip(void);
const char *ax_data_absent_zstd(void);

/* Detects the format of `path` from its first bytes, its suffix and the files beside it. For Megatron-LM,
 * `path` may be the .bin, the .idx or their common prefix. A directory with nothing but token files (.tok,
 * .bin, .idx), and a shell pattern (* ? [) that is not itself the name of a file, have the format of their
 * first file. The format of a pipe is AX_DATA_PIPE; ax_corpus_create reads the pipe and detects the format of
 * its content. AX_ERR_DATA: missing, unreadable, no known format, or a directory that holds other files
 * beside a file that is certainly a token file (not only by the suffix .bin). */
AX_MUST_CHECK ax_status ax_data_detect(const char *path, ax_data_format *out);

/* ---- token sources ------------------------------------------------------------------------------- */

typedef struct ax_data ax_data;

typedef struct ax_data_info {
    ax_data_format format;
    int token_bytes;    /* bytes of one token in the file */
    int64_t tokens;     /* N */
    int64_t documents;  /* -1: the format has no document index (documents are found by end_id) */
    int64_t targets;    /* number of tokens whose mask bit is 1; -1: the source has no mask */
    int64_t vocab;      /* 0: unknown */
    int64_t text_bytes; /* bytes of the original text; -1: unknown */
    int64_t file_bytes; /* bytes of all files of the source together */
    int64_t end_id;     /* end-of-text token; -1: none or unknown */
    int64_t begin_id;   /* token with which each document begins, because the tokenizer puts it before each
                           text (ax_data_expect_begin); -1: none or unknown */
    uint64_t tokenizer_hash;                /* 0: unknown */
    char chat_template[AX_CHAT_NAME_BYTES]; /* name of the template by which conversations became text; "":
                                               unknown, or not the same in all shards */
    /* Checksum of the contents, as stored in the file. For formats that store no checksum: a hash of the
     * length of each file and of 64 blocks of 4 KiB in it (of all bytes of a file of at most 256 KiB). */
    uint64_t checksum;
} ax_data_info;

/* Opens a token source (one file, or several files read as one); no token is read yet. A directory or a
 * pattern (ax_data_detect) names shards: files of one format and vocabulary, which are read like one file, in
 * byte order of their paths. The checksum of such a source is computed from the shards' checksums. `end_id`
 * is used only for formats without an index (llm.c, nanoGPT): a document ends with each token `end_id`; -1:
 * the whole source is one document. The caller closes the source. AX_ERR_DATA: missing, damaged, truncated,
 * or text (the message then names `axonn data build`). */
AX_MUST_CHECK ax_status ax_data_open(const char *path, int64_t end_id, ax_data **out);
void ax_data_close(ax_data **data);

/* Return the description and the path of a source; both live as long as the source, or until the path is set
 * again. */
const ax_data_info *ax_data_describe(const ax_data *data);
const char *ax_data_path(const ax_data *data);
/* Sets what ax_data_path returns: the path that the user gave, if the source was made from text. Errors of
 * the file itself go on to name the file. AX_ERR_MEMORY. */
AX_MUST_CHECK ax_status ax_data_set_path(ax_data *data, const char *path);

/* What ax_data_expect is told of the model that will read a source. */
typedef struct ax_data_reader {
    int64_t vocab;                 /* rows of the model's embedding table */
    uint64_t tokenizer_hash;       /* 0: unknown */
    const ax_tokenizer *tokenizer; /* names tokens in messages, and must outlive the source; NULL: unknown */
    bool other; /* another rank is told the same of the same source with `other` unset: that rank reads the
                   tokens and logs, and its error counts for all */
} ax_data_reader;

/* Tells the source who will read it. If the source records no vocabulary, reading a token of reader->vocab or
 * above is an error from then on. AX_ERR_DATA: the source records a larger vocabulary, or another hash of the
 * tokenizer; a hash of 0 is unknown and matches all. A larger vocabulary is accepted if both hashes are known
 * and equal, and no token of the source is reader->vocab or above: all tokens are then read, unless
 * reader->other is set. Logs how the ids of a file without a header are read. */
AX_MUST_CHECK ax_status ax_data_expect(ax_data *data, const ax_data_reader *reader);

/* Tells the source the tokenizer of the model that will read it: if the tokenizer puts tokens before each
 * text, and the first document of each file begins with them, info.begin_id becomes the first of them.
 * `warn`: warns of each file of plain text that this tokenizer made without these tokens, because prompts
 * have them. AX_ERR_DATA: a file cannot be read. */
AX_MUST_CHECK ax_status ax_data_expect_begin(ax_data *data, const ax_tokenizer *tokenizer, bool warn);

/* Verifies all of these that the format has: checksum, tokens below the vocabulary, document index,
 * end-of-text tokens that close documents, mask. Reads all files of the source in constant memory.
 * AX_ERR_DATA: the message names the file and the place of the first error found. */
AX_MUST_CHECK ax_status ax_data_check(const ax_data *data);

/* Copies tokens first ... first+count-1 to `out`. AX_ERR_USAGE if the source does not have these tokens;
 * AX_ERR_DATA if a token is outside the vocabulary. */
AX_MUST_CHECK ax_status ax_data_tokens(const ax_data *data, int64_t first, int64_t count, int32_t *out);

/* Sets bit i % 64 of bits[i / 64] to the mask bit of token first + i, 0 <= i < count; to 1 if the source has
 * no mask. The other bits of the last word are 0. AX_ERR_USAGE if the source does not have these tokens;
 * AX_ERR_DATA if a file cannot be read. */
AX_MUST_CHECK ax_status ax_data_mask(const ax_data *data, int64_t first, int64_t count, uint64_t *bits);

/* Finds the tokens of document `index`: first ... end-1. If the format has no index, the source is read from
 * its beginning. AX_ERR_USAGE: there is no such document, or the source has neither an index nor an
 * end_id. */
AX_MUST_CHECK ax_status ax_data_document(const ax_data *data, int64_t index, int64_t *first, int64_t *end);

/* Counts the documents; if the format has no index, the whole source is read. AX_ERR_USAGE: the source has
 * neither an index nor an end_id. */
AX_MUST_CHECK ax_status ax_data_count_documents(const ax_data *data, int64_t *count);

/* ---- rows ---------------------------------------------------------------------------------------- */

/* The output of functions that read rows: four arrays [rows, T], all owned by the caller, none NULL. */
typedef struct ax_rows {
    int32_t *tokens;    /* inputs; -1 where padded */
    int32_t *targets;   /* the token that follows; -1 = masked, no target */
    int32_t *doc_start; /* position in the row at which the document of position t starts; 0 if it starts in
                           an earlier row */
    int32_t *position;  /* t - doc_start[t] */
} ax_rows;

/* The goldfish loss (Hans et al. 2024, arXiv 2406.10209) drops about one of k targets, so that a model cannot
 * repeat a text verbatim: the token stays an input, but nothing is learned about predicting it. Which targets
 * are dropped is a property of the text alone:
 *
 *   hashed: target x_i is dropped if mix(H) < 2^64 / k, where
 *             H      = sum of x_{i-j} P^{j-1} over j = 1 ... window, modulo 2^61 - 1,
 *             P      = 0x13c6ef372fe94f99 (a primitive root),
 *             mix(H) = splitmix64's output function: z = H + 0x9e3779b97f4a7c15 (all modulo 2^64), then
 *                      z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9, z = (z ^ z >> 27) * 0x94d049bb133111eb,
 *                      z ^ z >> 31.
 *           The window may begin before the row, but not before the document. The first `window` tokens of a
 *           document have no full window, hence no hash, and are kept (section 3.1 of the paper: the hash is
 *           underdetermined there; the authors' code keeps them too). So a passage has the same mask wherever
 *           it stands, from its token number `window` on, counted from 0. The authors' code counts the target
 *           as part of its window; the paper's text, which axonn follows, does not.
 *   static: tokens number k, 2k, 3k, ... of each document are dropped, counted from 1.
 *
 * "Document" means a document of the source here, even if mask_documents (ax_row_shape) is false. Test
 * vectors, tokens oldest first:
 *
 *   window           H                   mix(H)              dropped
 *   1                1                   0x910a2dec89025cc1  by no k
 *   1, 2             0x13c6ef372fe94f9b  0xc77a8fc3fd4dc98a  by no k
 *   2, 1             0x078dde6e5fd29f34  0x61c6951241befbc1  by k = 2
 *   1, 2, ..., 13    0x06d0d2de11137cbf  0xec55e98152abd01a  by no k
 *   13 times 2^31-1  0x1172014f31aec224  0x4d7c0842458b73c1  by k = 2 and 3 */
typedef enum ax_goldfish_kind { AX_GOLDFISH_HASHED, AX_GOLDFISH_STATIC } ax_goldfish_kind;
#define AX_GOLDFISH_WINDOW_MAX 2048
#define AX_GOLDFISH_K_MAX 1000000000
typedef struct ax_goldfish {
    int64_t k;      /* about one of k targets is dropped, k = 2 ... AX_GOLDFISH_K_MAX; 0: no goldfish loss */
    int64_t window; /* hashed: how many tokens before a target are hashed, 1 ... AX_GOLDFISH_WINDOW_MAX */
    ax_goldfish_kind kind;
} ax_goldfish;

/* Sets keep[i] to 0 for each dropped token i of a document of n tokens in memory; the other items of `keep`
 * are not changed. AX_ERR_USAGE: a number out of range. */
AX_MUST_CHECK ax_status ax_goldfish_drop(const ax_goldfish *goldfish, const int32_t *document, int64_t n,
                                         uint8_t *keep);

/* Which part of each document is read, and what of it is to be predicted: of its first `document` tokens (of
 * all, if it has fewer) the last `target` tokens are the targets, and the `prompt` tokens before them (0:
 * all) are what the model sees first. A document without so many tokens (prompt 0: one) before its targets is
 * left out. */
typedef struct ax_excerpt {
    int64_t document, prompt, target;
} ax_excerpt;

typedef enum ax_data_packing { AX_PACK_STREAM, AX_PACK_DOCUMENTS, AX_PACK_AUTO } ax_data_packing;
typedef enum ax_data_long { AX_LONG_SPLIT, AX_LONG_TRUNCATE, AX_LONG_DROP } ax_data_long;

/* How a source is cut into rows (training sequences of T tokens).
 *
 * AX_PACK_STREAM: row i holds tokens i*T ... i*T+T: the first T are the inputs, and the last T are the
 * targets. So neighbouring rows share one token. What is left after the last full row is one more row, the
 * rest of which is padding; with full_rows, it is in no row. With mask_documents the first token of a
 * document is not a target, and attention and positions restart there; without it, doc_start is 0 everywhere.
 *
 * AX_PACK_DOCUMENTS (after ax_data_pack): a row holds whole documents side by side, and then padding. A
 * document of L tokens takes L-1 positions: its last token is a target only. `longer` says what becomes of a
 * document of more than T+1 tokens. AX_LONG_SPLIT: it is cut into pieces of T inputs (the last may be
 * shorter), which are placed like documents. No target is lost, but a piece does not see the earlier pieces.
 * AX_LONG_TRUNCATE: only its first T+1 tokens are read. AX_LONG_DROP: it is left out. Attention and positions
 * restart at each document or piece with mask_documents; without it, doc_start is 0 everywhere. A document of
 * one token has no target and is left out. Every token of a piece except the first is a target in exactly one
 * row.
 *
 * AX_PACK_AUTO: as AX_PACK_DOCUMENTS if the source has a mask (conversations), else as AX_PACK_STREAM.
 *
 * With an excerpt (target > 0), for packed sources only, a piece is the part of a document that it names,
 * which must fit into a row; without mask_documents each piece has a row of its own.
 *
 * With `answers` a token whose mask bit is 0 is not a target; a source without a mask has no such tokens. The
 * goldfish loss is for training only: for evaluation, callers set `goldfish` to 0. */
typedef struct ax_row_shape {
    int64_t seq_len; /* T */
    bool mask_documents;
    bool answers;
    bool full_rows; /* AX_PACK_STREAM: the tokens after the last full row are in no row */
    ax_data_packing pack;
    ax_data_long longer;  /* documents that are longer than a row, if documents are packed */
    ax_goldfish goldfish; /* all 0: no goldfish loss */
    ax_excerpt excerpt;   /* all 0: whole documents */
} ax_row_shape;

/* Returns true if rows of this shape hold whole documents of the source: with AX_PACK_DOCUMENTS, and with
 * AX_PACK_AUTO if the source has a mask. */
bool ax_data_is_packed(const ax_data *data, const ax_row_shape *shape);

/* The rule that decided the length of rows, for messages. */
typedef enum ax_row_length_rule {
    AX_LENGTH_LONGEST,  /* the longest document */
    AX_LENGTH_STREAM,   /* AX_ROW_STREAM */
    AX_LENGTH_ALL,      /* all tokens of the largest source */
    AX_LENGTH_MOST,     /* AX_ROW_MOST */
    AX_LENGTH_POSITIONS /* the model's positions */
} ax_row_length_rule;

typedef struct ax_row_length {
    int64_t seq_len;   /* T */
    int64_t positions; /* of the model */
    int64_t longest;   /* inputs of the longest document */
    ax_row_length_rule rule;
} ax_row_length;

/* Limits of the length of rows if the user gives none: no row is longer than AX_ROW_MOST tokens, whatever the
 * model's number of positions; rows of a source that is not packed, whose ends cut documents, have
 * AX_ROW_STREAM or more, if there are as many tokens. */
enum { AX_ROW_MOST = 4096, AX_ROW_STREAM = 1024 };

/* Chooses the length of the rows of n sources: that of the longest document (of a source that is not packed:
 * at least AX_ROW_STREAM), rounded up to a multiple of 64, at most AX_ROW_MOST, at most `positions`, the
 * number of the model's positions, and at most the tokens of the largest source. `shape` says
 * which sources are packed; its seq_len is not read. Reads the index of documents, up to the first document
 * that exceeds the limits, but no token; a source without an index counts as one document. AX_ERR_DATA if a
 * file cannot be read. */
AX_MUST_CHECK ax_status ax_data_choose_length(ax_data *const *sources, int n, const ax_row_shape *shape,
                                              int64_t positions, ax_row_length *out);

/* Prints "rows have 192 tokens, enough for …". `option`: what sets another length, such as "model.seq_len".
 */
enum { AX_ROW_LENGTH_TEXT = 256 };
void ax_row_length_print(const ax_row_length *length, const char *option, char out[AX_ROW_LENGTH_TEXT]);

/* The numbers of rows, documents and pieces that ax_data_pack has packed. */
typedef struct ax_data_packed {
    int64_t rows;
    int64_t positions;  /* positions in these rows that are not padding */
    int64_t documents;  /* documents in these rows */
    int64_t pieces;     /* parts of these documents; a document that fits into a row is one piece */
    int64_t cut;        /* documents longer than a row, of which all or a part is in these rows */
    int64_t dropped;    /* documents longer than a row that were left out (AX_LONG_DROP) */
    int64_t targetless; /* documents longer than a row that were left out because no target was in the part
                           that is read (AX_LONG_TRUNCATE) */
    int64_t lost;       /* tokens of documents longer than a row that are in no row */
    int64_t left_out;   /* documents of one token, which have no target; or too short for the excerpt */
} ax_data_packed;

/* Packs the documents of a source into rows of shape->seq_len tokens, for shapes with which the source is
 * packed (ax_data_is_packed). A piece is a document, or a part of a document that is longer than a row. The
 * algorithm is bin packing by first fit, the longest piece first, within groups of 1024 pieces that follow
 * one another in the file. The rows are a function of the file, of T, shape->excerpt (with it, of
 * mask_documents), shape->longer and, with AX_LONG_TRUNCATE, shape->answers alone. The list of the pieces
 * stays in memory until ax_data_close or the next ax_data_pack: 20 bytes a piece at most. Reads the index of
 * documents and, if documents are truncated, the mask of the longer ones, but no token. For other values of
 * these, the caller must call it again. AX_ERR_USAGE as for ax_data_check_shape; AX_ERR_DATA if a file cannot
 * be read; AX_ERR_MEMORY. */
AX_MUST_CHECK ax_status ax_data_pack(ax_data *data, const ax_row_shape *shape, ax_data_packed *out);

/* Where a piece is in the rows of a packed source. */
typedef struct ax_data_piece {
    int64_t index;         /* number of pieces before it in the source */
    int64_t document;      /* index in the source of the document that it is, or is a part of */
    int64_t start;         /* index in the source of its first token */
    int64_t row, position; /* of its first input */
    int64_t length;        /* number of its inputs */
} ax_data_piece;

/* Lists all pieces that ax_data_pack has packed, in the order of rows; the caller frees *out.
 * AX_ERR_DATA if a file cannot be read; AX_ERR_MEMORY. */
AX_MUST_CHECK ax_status ax_data_pieces(const ax_data *data, ax_data_piece **out, int64_t *n);

/* Sets *longest to the number of tokens of the longest document, or to a number of at least `enough` as soon
 * as one document has as many. A source without an index of documents counts as one document. AX_ERR_DATA if
 * a file cannot be read. */
AX_MUST_CHECK ax_status ax_data_longest(const ax_data *data, int64_t enough, int64_t *longest);

/* Counts the documents that AX_PACK_STREAM cuts: those with tokens in more than one row of seq_len tokens.
 * The source must have an index of documents. AX_ERR_DATA if a file cannot be read. */
AX_MUST_CHECK ax_status ax_data_count_cut(const ax_data *data, int64_t seq_len, int64_t *cut);

/* Returns the number of rows: ceil((N-1) / T), with full_rows (N-1) / T rounded down; if the source is
 * packed, as many as ax_data_pack made. Without full_rows and AX_LONG_TRUNCATE or AX_LONG_DROP, each token
 * but the first of the source (but the first of each document, if the source is packed) is the target of
 * exactly one position in these rows. That position is masked if the token is the first of a document
 * (mask_documents), if its mask bit is 0 (answers), or if the goldfish loss drops it. Returns 0 if seq_len is
 * out of range, or if the source is packed and ax_data_pack was not called for this shape. */
int64_t ax_data_rows(const ax_data *data, const ax_row_shape *shape);

/* Checks that rows of this shape can be read. AX_ERR_USAGE: seq_len is not 1 ... INT32_MAX, or another number
 * is out of range; the source is packed, but has no index of documents; an excerpt has no target or is longer
 * than a row, or the source is not packed; or the goldfish loss is static, but the source finds its documents
 * by end_id, without an index. The functions that read rows of such a shape fail in the same way. */
AX_MUST_CHECK ax_status ax_data_check_shape(const ax_data *data, const ax_row_shape *shape);

/* Copies row `row` of the source, 0 <= row < ax_data_rows, to row `line` of the arrays of `out`. The padding
 * of a row has token 0 and target -1, and belongs to the last document. *targets (may be NULL) is the
 * number of unmasked targets. Allocates nothing. AX_ERR_DATA: a token outside the vocabulary, or a file that
 * became shorter. */
AX_MUST_CHECK ax_status ax_data_row(const ax_data *data, const ax_row_shape *shape, int64_t row,
                                    const ax_rows *out, int64_t line, int64_t *targets);

/* Sets *targets to the number of unmasked targets of a row. Reads the row's tokens only if documents are
 * found by end_id, or for the hashed goldfish loss. AX_ERR_DATA if a file cannot be read. */
AX_MUST_CHECK ax_status ax_data_row_targets(const ax_data *data, const ax_row_shape *shape, int64_t row,
                                            int64_t *targets);

/* ---- order and mixture --------------------------------------------------------------------------- */

typedef enum ax_data_order { AX_ORDER_SHUFFLED, AX_ORDER_SEQUENTIAL } ax_data_order;

typedef struct ax_sampler_options {
    ax_row_shape shape;
    int64_t batch;         /* B */
    ax_data_order order;   /* shuffled: a pseudo-random permutation per source and epoch, in O(1) memory */
    uint64_t seed;         /* seed of the order */
    const double *weights; /* one weight per source, > 0, in any scale; NULL: the sizes of the sources */
    /* One number per source, or NULL. epochs[i] > 0: source i is read epochs[i] times, spread evenly over the
     * run, and has no weight; 0: source i has a weight. The sources with weights share the samples that are
     * left. */
    const int64_t *epochs;
    /* Only needed with epochs: samples of the whole run, those before ax_sampler_restore included. If these
     * samples do not fill the last batch, the rest of its rows is padding. */
    int64_t samples;
} ax_sampler_options;

typedef struct ax_sampler ax_sampler;

/* Creates a deterministic stream of samples drawn from `sources`, which must outlive it. Sample g comes from
 * the source i with the largest w_i*max(g,1) - count_i; of equal ones, the first. Here w_i is the weight of
 * source i divided by the sum of all weights, and count_i the number of samples drawn from source i before.
 * Sample g is sample number count_i of source i, in the order of the source's current epoch. So every sample
 * is a pure function of (seed, g), and the counts are all that is needed to resume.
 *
 * With epochs, source i gets E_i = epochs[i] * (its rows) of the run's G samples. All sources with weights
 * together count as one more source, which gets the samples that are left. Let n be the number of sources
 * counted in this way (if no samples are left for the sources with weights, these do not count). If n > 1,
 * each source has, after every sample g, at most d = 1 - 1/(2n-2) samples more or fewer than E_i*g/G
 * (Tijdeman 1980, "The chairman assignment problem"). If n = 2, sample m of a source, m from 0, is at most
 * one sample from place (m+1/2)*G/E_i of the run. If it is the turn of the sources with weights, the rule of
 * the first paragraph chooses one of them; its g is the number of samples taken from these sources so far.
 *
 * The caller destroys the sampler. AX_ERR_DATA: a source too short for one row. AX_ERR_USAGE: an option is
 * out of range; the E_i together exceed G, or are less than G and no source has a weight. */
AX_MUST_CHECK ax_status ax_sampler_create(ax_data *const *sources, int n, const ax_sampler_options *options,
                                          ax_sampler **out);
void ax_sampler_destroy(ax_sampler **sampler);

/* Get and set the position in the stream: for each source, the number of samples taken so far. After
 * ax_sampler_restore the next batch is the one that followed ax_sampler_state. If `samples` or the epochs
 * have changed, the samples are spread as in the new run: a source that is ahead of its even share E_i*g/G
 * gets no sample until the run has caught up with it, and a source that is behind gets the next samples. Each
 * source i with epochs is still read exactly epochs[i] times in all. AX_ERR_DATA: negative counts.
 * AX_ERR_USAGE: `per_source` has more samples of a source with epochs, or of the sources with weights
 * together, than the whole run gives them. */
void ax_sampler_state(const ax_sampler *sampler, int64_t *per_source);
AX_MUST_CHECK ax_status ax_sampler_restore(ax_sampler *sampler, const int64_t *per_source);

/* Chooses the B samples of the next step and advances; *targets is the number of unmasked targets of the
 * whole batch, counted as ax_data_row_targets does. Allocates nothing. AX_ERR_DATA: a file that cannot be
 * read. AX_ERR_USAGE: with epochs, all samples of the run were taken before. */
AX_MUST_CHECK ax_status ax_sampler_next(ax_sampler *sampler, int64_t *targets);

/* Returns how many targets the goldfish loss has dropped in the rows of the current batch that are chosen so
 * far. The number *targets of ax_sampler_next does not include them. */
int64_t ax_sampler_dropped(const ax_sampler *sampler);

/* Does ax_sampler_next in parts, which together cover rows 0 ... B-1 in order: chooses rows first ... end-1
 * and counts their targets. Between two parts a caller may give up the batch, by ax_sampler_restore with the
 * counts from before the batch. AX_ERR_USAGE also if the rows are not in the batch; AX_ERR_DATA as for
 * ax_sampler_next. */
AX_MUST_CHECK ax_status ax_sampler_next_part(ax_sampler *sampler, int64_t first, int64_t end,
                                             int64_t *targets);

/* Reads rows first ... end-1 of the batch that ax_sampler_next chose into rows 0, 1, … of the arrays of
 * `out`; a row that is padding has no target. Any rows can be read, any number of times and in any order: a
 * data-parallel rank reads only its own rows. Several threads may call ax_sampler_read at the same time, but
 * not during ax_sampler_next. Allocates nothing. AX_ERR_USAGE if the rows are not in the batch; AX_ERR_DATA
 * as for ax_data_row. */
AX_MUST_CHECK ax_status ax_sampler_read(const ax_sampler *sampler, int64_t first, int64_t end,
                                        const ax_rows *out);

/* Does ax_sampler_next, then ax_sampler_read for all B rows. */
AX_MUST_CHECK ax_status ax_sampler_next_batch(ax_sampler *sampler, const ax_rows *out, int64_t *targets);

/* Sets *src and *sample to the source and the sample that are row `row` of the current batch; both to -1 if
 * the row is padding. */
void ax_sampler_where(const ax_sampler *sampler, int64_t row, int *src, int64_t *sample);

/* ---- writing token files ------------------------------------------------------------------------- */

typedef struct ax_token_writer ax_token_writer;

/* Starts a packed token file. `vocab` is 1 to 2^31; end_id is -1 and tokenizer_hash 0 if there is none. The
 * file is written under a temporary name and gets the name `path` only in ax_token_writer_finish. AX_ERR_DATA
 * if the file cannot be created; AX_ERR_USAGE if vocab or end_id is out of range. */
AX_MUST_CHECK ax_status ax_token_writer_create(const char *path, int64_t vocab, int64_t end_id,
                                               uint64_t tokenizer_hash, ax_token_writer **out);

/* Appends one document of `count` tokens made from `text_bytes` bytes of text, and end_id if the file has
 * one. If `count` is 0 and the file has no end_id, appends nothing. AX_ERR_DATA: a token outside the
 * vocabulary, disk full. */
AX_MUST_CHECK ax_status ax_token_writer_add(ax_token_writer *writer, const int32_t *tokens, int64_t count,
                                            int64_t text_bytes);

/* Appends one document of `count` tokens with a mask (ax_token_writer_add appends one without): is_target[i]
 * is 1 if tokens[i] is a target, else 0. The end_id that is appended is not a target; a document that ends
 * with end_id gets no second one. In a file with masks, all tokens of documents that ax_token_writer_add
 * appends are targets. AX_ERR_USAGE: no token is a target; AX_ERR_DATA as for ax_token_writer_add. */
AX_MUST_CHECK ax_status ax_token_writer_add_masked(ax_token_writer *writer, const int32_t *tokens,
                                                   const uint8_t *is_target, int64_t count,
                                                   int64_t text_bytes);

/* Records the name of the template (axonn/chat.h) by which the documents with a mask were written: at most
 * AX_CHAT_NAME_BYTES - 1 lower-case letters, digits and '-'. A file without a mask records none. */
void ax_token_writer_set_template(ax_token_writer *writer, const char *name);

/* Completes, syncs and renames the file; frees the writer in any case. *info may be NULL. AX_ERR_DATA: no
 * document was added, or the disk is full. */
AX_MUST_CHECK ax_status ax_token_writer_finish(ax_token_writer **writer, ax_data_info *info);

/* Deletes the unfinished file and frees the writer. NULL is allowed. */
void ax_token_writer_abandon(ax_token_writer **writer);

/* ---- documents of text --------------------------------------------------------------------------- */

/* What to read as text. An input is a text file, a JSON or JSONL file, a shell pattern of such files, a
 * directory, or "-" (standard input). Directories are walked recursively (names that begin with a dot are
 * left out, links to files are followed, links to directories are not), and their files are taken in byte
 * order of their paths. A .json file is JSONL if its first line is an object, JSON if it is an array of
 * objects or objects that are spread over lines, else text. A pipe or terminal (/dev/stdin, process
 * substitution) is first read to its end, and its format is detected in the same way. A byte order mark
 * before text is dropped. */
typedef struct ax_corpus_options {
    const char *const *inputs;
    int n_inputs;
    const char *const *include; /* shell patterns for names of files below directories, e.g. "*.h" */
    int n_include;              /* 0: every file */
    /* Name of the member that holds the text of a JSON object. An object with a string there is not read as a
     * conversation. NULL: the member "text"; an object that is a conversation is then read as one even if it
     * has this member. */
    const char *text_key;
    /* Template by which JSON objects that are conversations (ax_chat_member) become text; must outlive the
     * corpus. NULL: no object is read as a conversation. */
    const ax_chat *chat;
    /* Members of conversations and of their turns that are left out; must outlive the corpus. */
    ax_strings ignore;
    /* How many JSON records may be left out: those whose text is null or not valid Unicode (lone surrogates),
     * that have no text, or are conversations that cannot be read or written. The first is reported in a
     * warning, all that are listed at the end. More than this number are an error, whose message lists the
     * first twenty with file, line and reason. Below 0: 100 records whose text is null or not valid Unicode,
     * and no others. */
    int64_t bad_lines;
} ax_corpus_options;

typedef struct ax_corpus ax_corpus;

/* Lists the files of the inputs, and copies the content of pipes to temporary files. The caller destroys
 * *out. AX_ERR_DATA: an input is missing, or no file is left. */
AX_MUST_CHECK ax_status ax_corpus_create(const ax_corpus_options *options, ax_corpus **out);
void ax_corpus_destroy(ax_corpus **corpus);

/* Return the number of files of the corpus, and their total size in bytes, without the files that have been
 * left out so far. */
int64_t ax_corpus_files(const ax_corpus *corpus);
int64_t ax_corpus_bytes(const ax_corpus *corpus);
/* Returns the path of file `file`, an index into all listed files; the string lives as long as the corpus. */
const char *ax_corpus_path(const ax_corpus *corpus, int64_t file);

/* Appends the next document to `doc`, or sets *end if there is none. Empty documents, and conversations
 * without a turn of the assistant, are left out. In directories, files that cannot be read, files that are
 * not text (they hold a NUL byte), and .json files whose first record has no text are counted and left out;
 * the first ten cause a warning. Inputs that the caller names must be readable text. AX_ERR_DATA: invalid
 * JSON, with file:line; at the end, if there are more bad records than bad_lines, or no document at all. */
AX_MUST_CHECK ax_status ax_corpus_next(ax_corpus *corpus, ax_buf *doc, bool *end);

/* Returns the number of files and directories that ax_corpus_create and ax_corpus_next have left out so
 * far. */
int64_t ax_corpus_skipped(const ax_corpus *corpus);
/* Returns the number of JSON records left out so far (bad_lines in ax_corpus_options). */
int64_t ax_corpus_bad_lines(const ax_corpus *corpus);

/* ---- building ------------------------------------------------------------------------------------ */

typedef struct ax_data_progress {
    int64_t bytes_done, bytes_total; /* bytes of text read, and of all files */
    int64_t documents, tokens;       /* done so far, validation part included; tokens without the end-of-text
                                        tokens that the writer appends */
    double seconds;                  /* since the start */
} ax_data_progress;

/* Called from any thread, but never by two threads at once: at most about ten times a second, and once at the
 * end. While a pipe is read, the function is called more often, after each part of up to 16 KiB; bytes_total
 * is then 0. Returns false to stop: the function in progress then fails with AX_ERR_SIGNAL. */
typedef bool (*ax_data_progress_fn)(void *user, const ax_data_progress *progress);

typedef struct ax_data_build_options {
    ax_corpus_options corpus;
    const ax_tokenizer *tokenizer;
    const char *output;       /* path of the token file */
    const char *valid_output; /* path of the token file of the validation part; NULL if valid_fraction is 0 */
    /* Share of the documents that go to the validation part, in [0, 1). A hash of a document's text decides,
     * so equal documents go to the same part, in any corpus. */
    double valid_fraction;
    bool dedup; /* leave out documents that are equal to an earlier one */
    /* Encode plain text without the special tokens that the tokenizer's post_processor puts around each text
     * (ax_tokenizer_before). Conversations never get these tokens: their template writes its own. */
    bool bare;
    int threads;                  /* 0: all processors */
    ax_data_progress_fn progress; /* may be NULL */
    void *user;
} ax_data_build_options;

typedef struct ax_data_build_report {
    int64_t files, skipped; /* files read; files and directories left out (ax_corpus_skipped) */
    int64_t copies;         /* number of documents left out by dedup */
    int64_t bad_lines;      /* number of JSON objects left out (bad_lines in ax_corpus_options) */
    int64_t conversations;  /* number of documents that are conversations */
    int64_t unanswered;     /* number of conversations left out because they have no turn of the assistant */
    bool framed; /* documents of plain text got the special tokens of post_processor, which has some */
    ax_data_info train, valid; /* the two files written; `valid` is all zero without a validation part */
} ax_data_build_report;

/* Tokenizes a corpus into one packed token file, or into two (training and validation part). A document of
 * plain text is encoded with the special tokens that post_processor puts around a text, as by transformers,
 * unless `bare` is set; then follows the tokenizer's end-of-text token, if there is one and post_processor
 * has not put it there. A file with conversations (corpus.chat) has a mask, which marks the tokens that are
 * targets. The result does not depend on the number of threads. Memory is bounded: about 64 MiB of text that
 * is being tokenized, and its tokens. A single document, or a JSON file that is not JSONL, takes more if it
 * is larger than that. dedup compares hashes of texts (XXH3-64), which take 16 to 32 bytes per document.
 * *report may be NULL. AX_ERR_DATA: errors of ax_corpus_next, no document in the training or the validation
 * part, disk full; AX_ERR_USAGE: an output that is the other output or an input, or that exists, is not empty
 * and is not a token file of this format; AX_ERR_SIGNAL: stopped by `progress`. No unfinished file is left
 * behind. */
AX_MUST_CHECK ax_status ax_data_build(const ax_data_build_options *options, ax_data_build_report *report);

/* Finds or makes the token file for `path`, which data.train or data.valid names. If `path` holds tokens,
 * *token_path is `path` itself. Otherwise *token_path is a file in the directory `cache_dir`, which is
 * created if missing. A file that an earlier call left there is used if the tokenizer, the options for
 * reading text, and the names, sizes and times of the text files have not changed; otherwise the text is
 * tokenized now. `how` gives the tokenizer (may be NULL if `path` holds tokens), how text is read, threads
 * and progress; its inputs and `output` are ignored, and its options valid_output, valid_fraction and dedup
 * must not be set. The caller frees *token_path. One rank calls this function before the other ranks open the
 * token file. */
AX_MUST_CHECK ax_status ax_data_prepare(const char *path, const ax_data_build_options *how,
                                        const char *cache_dir, char **token_path);

#ifdef __cplusplus
}
#endif
#endif
