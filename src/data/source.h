/* Internals of ax_data, a source of tokens (one token file, or several read as one); shared by the files that
 * open, read and check sources. Read axonn/data.h first. */
#ifndef AXONN_DATA_SOURCE_H
#define AXONN_DATA_SOURCE_H

#include "axonn/data.h"
#include "data/unpack.h"

#include <string.h>
#include <sys/stat.h>

/* The header of the packed token file, byte for byte as axonn/data.h lists it. */
typedef struct tok_header {
    char magic[8];
    uint32_t version, token_bytes;
    uint64_t tokens, documents, vocab, tokenizer_hash;
    int64_t end_id;
    uint64_t text_bytes, tokens_at, index_at, body_hash, header_hash;
    uint64_t mask_at, targets, mask_hash;   /* of files with a mask (version 2); zeros in version 1 */
    char chat_template[AX_CHAT_NAME_BYTES]; /* zeros if the template is unknown, as in files of earlier
                                               versions of this program */
    uint64_t chat_template_hash;
    char zero[104];
} tok_header;
_Static_assert(sizeof(tok_header) == 256, "the layout of the packed token file");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "token files are read and written as they lie in memory");

enum {
    TOK_HEADER_BYTES = 256,
    TOK_VERSION_PLAIN = 1,
    TOK_VERSION_MASK = 2,
    LLMC_HEADER_BYTES = 1024,
    MEGATRON_HEADER_BYTES = 34
};
#define TOK_MAGIC "AXTOKENS"
#define MEGATRON_MAGIC "MMIDIDX\0"
enum { LLMC_MAGIC = 20240520, LLMC32_MAGIC = 20240801, LLMC_EVAL_MAGIC = 20240522 };

/* Return an XXH3-64 checksum of a part of the header. tok_header_hash: of the bytes before the field
 * header_hash. tok_mask_hash: of the fields mask_at and targets. tok_chat_template_hash: of the field
 * chat_template; 0 if that field is empty. */
uint64_t tok_header_hash(const tok_header *header);
uint64_t tok_mask_hash(const tok_header *header);
uint64_t tok_chat_template_hash(const tok_header *header);
/* Returns the number of bytes of the mask of a file with this number of tokens. */
static inline uint64_t tok_mask_bytes(uint64_t tokens) { return (tokens + 63) / 64 * 8; }

/* A file open for reading, and its size when it was opened. */
typedef struct data_file {
    char *path; /* NULL: not open */
    int fd;
    int64_t bytes;
} data_file;

/* Opens a file for reading. AX_ERR_DATA: it cannot be opened, or is not a regular file. */
AX_MUST_CHECK ax_status data_file_open(const char *path, data_file *out);
void data_file_close(data_file *file);
/* Reads exactly `bytes` bytes. AX_ERR_DATA: the file cannot be read, or has become shorter. Thread-safe. */
AX_MUST_CHECK ax_status data_file_read(const data_file *file, int64_t offset, void *out, int64_t bytes);
/* Prefetches bytes: asks the system to read them into the page cache, without waiting. */
void data_file_want(const data_file *file, int64_t offset, int64_t bytes);

/* A view of an array of n 64-bit integers that begins at byte `at` of `file`. Only elements first ...
 * first+count-1 are in memory, in `value`. data_window_get returns element i, 0 <= i < n, and refills `value`
 * if needed. A data_window is a local variable of the function that reads the array. */
enum { DATA_WINDOW = 128 };
typedef struct data_window {
    const data_file *file;
    int64_t at, n, first, count;
    int64_t value[DATA_WINDOW];
} data_window;
AX_MUST_CHECK ax_status data_window_get(data_window *window, int64_t i, int64_t *out);

/* How the starts of documents are stored. */
typedef enum data_index_kind {
    INDEX_NONE,    /* no index: a document starts after each end_id */
    INDEX_STARTS,  /* u64 start[D+1]: index of the first token of each of D documents */
    INDEX_MEGATRON /* Megatron-LM: a document consists of adjacent sequences of tokens; an empty one has none.
                      Two arrays of i64: index of the first sequence of each of D documents (D+1 entries), and
                      byte offset of each sequence in the .bin file */
} data_index_kind;

/* Largest number of document starts kept in memory (ax_data.coarse), at even distances. With them, a binary
 * search reads the file only within the part of the index between two of these starts. */
enum { COARSE_MAX = 4096 };

/* The rows of a source whose documents are packed (whole documents side by side in a row; pack.c). A piece is
 * a document, or a part of a document that is longer than a row. */
typedef struct data_pack {
    ax_row_shape shape; /* the rows that were packed (ax_data_pack says what counts of it) */
    int64_t rows, pieces;
    int64_t *start;  /* [pieces] index in the source of the first token of each piece */
    int32_t *length; /* [pieces] number of inputs of each piece; an input's target is the next token */
    int64_t *first;  /* [rows+1] index of the first piece of each row; first[rows] is `pieces` */
} data_pack;
void data_pack_free(data_pack **pack);
/* Returns true if rows of both shapes have the same pieces. */
bool data_packs_alike(const ax_row_shape *a, const ax_row_shape *b);

struct ax_data {
    /* A source of shards (several files read as one; shards.c) uses the fields `part` and `part_at`, and of
     * the fields after them only path, info, limit, index_kind and pack. A source of one file does not use
     * `part` and `part_at`. */
    int parts;        /* number of shards; 0: a source of one file */
    ax_data **part;   /* the opened shards, NULL-terminated */
    int64_t *part_at; /* index in the source of the first token of each shard */

    char *path;
    char *given; /* the path that the user gave, if it is another; NULL: `path` */
    ax_data_info info;
    int64_t limit; /* each token id must be below `limit`: the vocabulary size that the file records, else
                      that of the model, which ax_data_expect sets (INT32_MAX before) */
    const ax_tokenizer *tokenizer; /* for messages; NULL: unknown. Not owned */
    data_file main, side; /* main: file with the tokens; side: the .idx file of a Megatron-LM data set */
    int64_t tokens_at;    /* offset of the first token in main */
    data_index_kind index_kind;
    int64_t index_at;   /* offset of the index: INDEX_STARTS in main, INDEX_MEGATRON in side */
    int64_t mask_at;    /* offset of the mask in main; 0: there is none */
    int64_t offsets_at; /* INDEX_MEGATRON: offset, in side, of the array of the sequences' byte offsets */
    int64_t sequences;  /* INDEX_MEGATRON: number of sequences */
    int64_t *coarse; /* [coarse_n] index of the first token of every coarse_step-th document, kept in memory
                        for fast searches */
    int64_t coarse_n, coarse_step;
    data_pack *pack; /* NULL: the documents are not packed. In a source of shards, only the source has a
                        data_pack, not its shards */
};

/* State for reading the document starts of a source of one file that has an index. Reading is fastest in
 * ascending order. */
typedef struct data_starts {
    const ax_data *data;
    data_window index, offsets;
} data_starts;
void data_starts_begin(data_starts *starts, const ax_data *data);
/* Sets *start to the index of the first token of document d, 0 <= d <= D (D: number of documents). Sets
 * *start to N (number of tokens) if d = D, or if the index entry points outside the file. */
AX_MUST_CHECK ax_status data_starts_get(data_starts *starts, int64_t d, int64_t *start);
/* Sets *document to the index of the document that holds token `pos`, 0 <= pos < N. */
AX_MUST_CHECK ax_status data_starts_find(data_starts *starts, int64_t pos, int64_t *document);

/* State of a loop over the documents of a source that has an index, in their order. A data_walk is a local
 * variable of the function with the loop. */
typedef struct data_walk {
    const ax_data *data;
    int64_t first, end; /* the current document is tokens first ... end-1 of the source */
    /* Only source.c uses the fields below. */
    int part;           /* the shard that holds the current document */
    int64_t part_at;    /* index in the source of the shard's first token */
    int64_t next;       /* index, in the shard, of the document after the current one */
    data_starts starts; /* document starts of the shard */
} data_walk;
/* Begins with the document that holds `token`, 0 <= token < N. */
AX_MUST_CHECK ax_status data_walk_begin(data_walk *walk, const ax_data *data, int64_t token);
/* Goes on to the next document; after the last one, first = end = N. */
AX_MUST_CHECK ax_status data_walk_next(data_walk *walk);

/* Sets begins[i] to 1 if a document starts at token first + i of a source, 0 <= i < count, and to 0 if none
 * does; first >= 1. In a source with an index, `walk` must be at the document that holds token first - 1, and
 * is moved to the one that holds the last of the tokens. In a source without, a document starts after each
 * end_id; before[i] must be token first + i - 1 if there is an end_id. */
AX_MUST_CHECK ax_status data_mark_starts(const ax_data *data, data_walk *walk, const int32_t *before,
                                         int64_t first, int64_t count, uint8_t *begins);

/* ---- targets.c ----------------------------------------------------------------------------------- */

typedef struct data_targets {
    int64_t kept;    /* number of targets */
    int64_t dropped; /* number of tokens that are not targets only because the goldfish loss drops them */
} data_targets;

/* Decides which of tokens first ... first+count-1 of a source are targets, first >= 1. `targets` is NULL, or
 * holds these tokens; each that is not a target is replaced by -1. Used for shapes with a goldfish loss and
 * for masked sources. The shape must have passed ax_data_check_shape. */
AX_MUST_CHECK ax_status data_decide_targets(const ax_data *data, const ax_row_shape *shape, int64_t first,
                                            int64_t count, int32_t *targets, data_targets *out);
/* Returns true if rows of this shape leave out targets by the mask of the source. */
bool data_is_masked(const ax_data *data, const ax_row_shape *shape);
/* Counts the unmasked targets of a row, as ax_data_row_targets does, and the targets that the goldfish loss
 * dropped. */
AX_MUST_CHECK ax_status data_row_targets(const ax_data *data, const ax_row_shape *shape, int64_t row,
                                         data_targets *out);

/* Fills row `line` of the arrays of `out` with padding: a row without any target. */
void data_empty_row(const ax_row_shape *shape, const ax_rows *out, int64_t line);

/* Prefetches the tokens of a row: asks the system to read them into the page cache, without waiting. */
void data_want_row(const ax_data *data, const ax_row_shape *shape, int64_t row);

/* Reads tokens without checking their values; ax_data_tokens also compares them with the vocabulary. */
AX_MUST_CHECK ax_status data_read_tokens(const ax_data *data, int64_t first, int64_t count, int32_t *out);
/* Reads the mask bits of `count` tokens to `bits`, 64 in each word, as ax_data_mask does, but does not check
 * that the tokens lie in the source. */
AX_MUST_CHECK ax_status data_read_mask(const ax_data *data, int64_t first, int64_t count, uint64_t *bits);
/* Prefetches tokens first ... end-1: asks the system to read them into the page cache, without waiting. */
void data_want_tokens(const ax_data *data, int64_t first, int64_t end);

/* A part of tokens first ... end-1 of a source that lies in one shard (file): tokens from ... to-1 of the
 * shard `part`. Token `from` of the shard is token first + at of the source. */
typedef struct data_stretch {
    const ax_data *part; /* the shard; NULL before the first data_next_stretch */
    int index;           /* index of the shard */
    int64_t from, to, at;
} data_stretch;

/* Sets *stretch to the next shard's part of tokens first ... end-1 of a source of shards, or to the first
 * shard's part if *stretch is zeroed. Returns false if there is no further part. */
bool data_next_stretch(const ax_data *data, int64_t first, int64_t end, data_stretch *stretch);
/* Returns the index of the shard that holds a token. */
int data_part_of(const ax_data *data, int64_t token);

/* Lists the files that `path` stands for, in byte order of their paths: the files that match a shell pattern,
 * or the token files of a directory. For any other path the list is empty. AX_ERR_DATA: no file matches the
 * pattern, or a directory has other files beside a file that is certainly a token file (not only by the
 * suffix .bin). */
AX_MUST_CHECK ax_status data_list(const char *path, ax_strings *out);
/* Lists the files that match a shell pattern. AX_ERR_DATA: there are none. */
AX_MUST_CHECK ax_status data_match(const char *pattern, ax_strings *out);
/* Calls `fn` for each file below directory `dir`, in byte order of their names, except those whose names
 * begin with a dot and those below symbolic links to directories. For a file that cannot be accessed, and for
 * a directory that cannot be listed, `info` is NULL, and `why` says why. */
typedef ax_status data_file_fn(void *user, const char *path, const struct stat *info, const char *why);
AX_MUST_CHECK ax_status data_each_file(const char *dir, data_file_fn *fn, void *user);
/* Returns true if a path is a shell pattern: it contains *, ? or [, and no file, directory or Megatron-LM
 * data set has exactly this name. */
bool data_is_pattern(const char *path);

/* Detects the format of `path`: a single file or directory, or the common prefix of a Megatron-LM data set.
 * ax_data_detect calls this function, and also handles shell patterns and directories of token files. */
AX_MUST_CHECK ax_status data_detect_file(const char *path, ax_data_format *out);

/* Opens a source of one file. */
AX_MUST_CHECK ax_status data_open_file(const char *path, int64_t end_id, ax_data **out);
/* Opens the files `names` as the shards of `data`. The caller closes `data`, also on failure. */
AX_MUST_CHECK ax_status data_open_parts(ax_data *data, const ax_strings *names, int64_t end_id);

/* Makes the .idx and .bin paths of a Megatron-LM data set from either path or their common prefix; the caller
 * frees both. */
AX_MUST_CHECK ax_status data_megatron_paths(const char *path, char **idx, char **bin);

/* Sets *width to the number of bytes of a token in a file without a header (headerless.c). AX_ERR_DATA: it is
 * unclear, or the file's content shows that it holds no such tokens. */
AX_MUST_CHECK ax_status data_headerless_width(const data_file *file, int *width);

/* Combines two checksums into one, which depends on their order. */
uint64_t data_sum_add(uint64_t sum, uint64_t more);
/* Sets *out to a checksum, never 0, of the lengths of a source's files and of blocks sampled from them.
 * `side` is zeroed if the source has only one file. */
AX_MUST_CHECK ax_status data_sampled_sum(const data_file *main, const data_file *side, uint64_t *out);

/* The byte order mark that some programs put before UTF-8 text. */
#define DATA_BOM "\xef\xbb\xbf"

bool data_has_suffix(const char *path, const char *suffix);

/* Returns true if the suffix of a file's name says that it holds JSON. */
bool data_is_json(const char *name);
/* Detects the format of a text by the suffix of its name (NULL: that of a pipe, which may be anything) and
 * its first n bytes, `head`. If they are fewer than DATA_HEAD_BYTES, there are no more.
 *
 * .jsonl, .ndjson: AX_DATA_JSON for an array of objects or an object that is spread over lines from its first
 *                  brace on, else AX_DATA_JSONL.
 * .json, pipe:     AX_DATA_JSON for an array of objects or objects that are spread over lines, AX_DATA_JSONL
 *                  for an object on each line, else AX_DATA_TEXT.
 * others:          AX_DATA_TEXT. */
ax_data_format data_text_format(const char *name, const char *head, size_t n);

/* Returns the end of a path that says that the file is compressed, such as ".gz"; "" if it says nothing. */
const char *data_packed_suffix(const char *path);
/* Detects the format of the text in a compressed file, which begins with the n bytes `head` (at most
 * DATA_HEAD_BYTES). AX_ERR_DATA: it is not text. */
AX_MUST_CHECK ax_status data_detect_inside(const char *path, data_packing packing, const char *head, size_t n,
                                           ax_data_format *out);

/* Fails with AX_ERR_DATA if a text is in UTF-16 or UTF-32. */
AX_MUST_CHECK ax_status data_refuse_wide(const char *path, data_packing packing, const char *head, size_t n);

/* Returns the reason why a file that contains a NUL byte is not text, to be printed after "it", such as "is
 * in UTF-16: …". `head` holds the file's first n bytes. */
const char *data_not_text(const char *head, size_t n);
/* Fails with AX_ERR_DATA for a file whose first NUL byte is at `offset`. The message tells the user what to
 * do. `head` holds the file's first n bytes. */
AX_MUST_CHECK ax_status data_refuse_nul(const char *path, data_packing packing, const char *head, size_t n,
                                        int64_t offset);

/* Reads the first bytes of a file, at most DATA_HEAD_BYTES, which suffice to detect its format. Sets *n to
 * their number. */
enum { DATA_HEAD_BYTES = 4096 };
AX_MUST_CHECK ax_status data_read_head(const char *path, char head[DATA_HEAD_BYTES], size_t *n);

#endif
