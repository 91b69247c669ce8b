/* The inside of a token source, shared by the files that open, read and check it. Read axonn/data.h first. */
#ifndef AXONN_DATA_SOURCE_H
#define AXONN_DATA_SOURCE_H

#include "axonn/data.h"

#include <string.h>

/* The header of the packed token file, byte for byte as axonn/data.h lists it. */
typedef struct tok_header {
    char magic[8];
    uint32_t version, token_bytes;
    uint64_t tokens, documents, vocab, tokenizer_hash;
    int64_t end_id;
    uint64_t text_bytes, tokens_at, index_at, body_hash, header_hash;
    char zero[160];
} tok_header;
_Static_assert(sizeof(tok_header) == 256, "the layout of the packed token file");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "token files are read and written as they lie in memory");

enum { TOK_HEADER_BYTES = 256, TOK_VERSION = 1, LLMC_HEADER_BYTES = 1024, MEGATRON_HEADER_BYTES = 34 };
#define TOK_MAGIC "AXTOKENS"
#define MEGATRON_MAGIC "MMIDIDX\0"
enum { LLMC_MAGIC = 20240520, LLMC32_MAGIC = 20240801, LLMC_EVAL_MAGIC = 20240522 };

/* XXH3-64 of a header without its last field but one, the hash itself. */
uint64_t tok_header_hash(const tok_header *header);

/* A file open for reading, and its size when it was opened. */
typedef struct data_file {
    char *path; /* NULL: not open */
    int fd;
    int64_t bytes;
} data_file;

/* AX_ERR_DATA: it cannot be opened, or is no regular file. */
AX_MUST_CHECK ax_status data_file_open(const char *path, data_file *out);
void data_file_close(data_file *file);
/* Reads all these bytes. AX_ERR_DATA: the file cannot be read, or has become shorter. Thread-safe. */
AX_MUST_CHECK ax_status data_file_read(const data_file *file, int64_t offset, void *out, int64_t bytes);
/* Asks the system to read the bytes into its cache, without waiting. */
void data_file_want(const data_file *file, int64_t offset, int64_t bytes);

/* An array of n 64-bit integers in a file from offset `at` on, of which a stretch is in memory. Lives on the
 * stack of who goes through the array; get reads value i, 0 <= i < n. */
enum { DATA_WINDOW = 128 };
typedef struct data_window {
    const data_file *file;
    int64_t at, n, first, count;
    int64_t value[DATA_WINDOW];
} data_window;
AX_MUST_CHECK ax_status data_window_get(data_window *window, int64_t i, int64_t *out);

/* How the starts of documents are stored. */
typedef enum data_index_kind {
    INDEX_NONE,    /* not at all: a document starts after each end_id */
    INDEX_STARTS,  /* u64 start[D+1], in tokens */
    INDEX_MEGATRON /* i64 first sequence of each document [D+1], i64 byte offset of each sequence */
} data_index_kind;

/* At most this many document starts are kept in memory, evenly spaced, so that looking up a document reads
 * one short stretch of the index and not a block per step of a bisection. */
enum { COARSE_MAX = 4096 };

/* Paths; the caller releases them with data_names_fini. */
typedef struct data_names {
    char **path;
    size_t n;
} data_names;

struct ax_data {
    /* Of a source of shards (shards.c): the opened files, closed by a NULL, and the place of each one's first
     * token. Of what follows it has path, info, limit and index_kind. */
    int parts; /* 0: a source of one file */
    ax_data **part;
    int64_t *part_at;

    char *path;
    ax_data_info info;
    int64_t limit; /* tokens are below this: the smaller of the file's and the model's vocabulary */
    data_file main, side;
    int64_t tokens_at; /* offset of the first token in main */
    data_index_kind index_kind;
    int64_t index_at;   /* offset of the index: INDEX_STARTS in main, INDEX_MEGATRON in side */
    int64_t offsets_at; /* INDEX_MEGATRON: offset in side of the byte offsets of the sequences */
    int64_t sequences;
    int64_t *coarse; /* start of every coarse_step-th document */
    int64_t coarse_n, coarse_step;
};

/* The starts of the documents of a source that has an index, as one goes through them. */
typedef struct data_starts {
    const ax_data *data;
    data_window index, offsets;
} data_starts;
void data_starts_begin(data_starts *starts, const ax_data *data);
/* First token of document d, 0 <= d <= D; D gives N, and so does a damaged entry. */
AX_MUST_CHECK ax_status data_starts_get(data_starts *starts, int64_t d, int64_t *start);
/* The document that holds token `pos`, 0 <= pos < N. */
AX_MUST_CHECK ax_status data_starts_find(data_starts *starts, int64_t pos, int64_t *document);

/* Tokens as they stand in the file, whatever their values; ax_data_tokens also judges them. */
AX_MUST_CHECK ax_status data_read_tokens(const ax_data *data, int64_t first, int64_t count, int32_t *out);
/* Asks the system to read tokens first ... end-1 into its cache, without waiting. */
void data_want_tokens(const ax_data *data, int64_t first, int64_t end);

/* What lies of tokens first ... end-1 in one shard: its tokens from ... to-1, which stand `at` tokens behind
 * `first`. */
typedef struct data_stretch {
    const ax_data *part; /* NULL before the first */
    int index;
    int64_t from, to, at;
} data_stretch;

/* The next stretch of first ... end-1, of which the source has shards. */
bool data_next_stretch(const ax_data *data, int64_t first, int64_t end, data_stretch *stretch);
/* The shard that holds a token. */
int data_part_of(const ax_data *data, int64_t token);

/* The files that a path means: those that a pattern matches or the token files of a directory, in byte order,
 * or none where it means itself. AX_ERR_DATA: a pattern that nothing matches, a directory with token files
 * and others. */
AX_MUST_CHECK ax_status data_list(const char *path, data_names *out);
/* The files that a pattern matches. */
AX_MUST_CHECK ax_status data_match(const char *pattern, data_names *out);
void data_names_fini(data_names *names);
/* Whether a path is a pattern as the shell's: it holds * ? or [ and nothing is there under that very name. */
bool data_is_pattern(const char *path);

/* ax_data_detect of a file, or of what two files' names begin with. */
AX_MUST_CHECK ax_status data_detect_file(const char *path, ax_data_format *out);

/* A source of one file, and the shards of a source; `data` is closed by the caller whatever the result. */
AX_MUST_CHECK ax_status data_open_file(const char *path, int64_t end_id, ax_data **out);
AX_MUST_CHECK ax_status data_open_parts(ax_data *data, const data_names *names, int64_t end_id);

/* The .idx and .bin of a Megatron data set from either of them or their common prefix; the caller frees. */
AX_MUST_CHECK ax_status data_megatron_paths(const char *path, char **idx, char **bin);

/* The checksum of two files behind each other. */
uint64_t data_sum_add(uint64_t sum, uint64_t more);
/* Checksum of the lengths of a source's files and of blocks sampled from them, never 0; `side` may be empty.
 */
AX_MUST_CHECK ax_status data_sampled_sum(const data_file *main, const data_file *side, uint64_t *out);

/* The byte order mark that some programs put before UTF-8. */
#define DATA_BOM "\xef\xbb\xbf"

bool data_has_suffix(const char *path, const char *suffix);

/* What a file of text holds whose name says no more than .json, or nothing, by its first n bytes; `complete`
 * if these are all: an array of objects or objects that are spread over lines (AX_DATA_JSON), an object on
 * each line (AX_DATA_JSONL), or text. */
ax_data_format data_json_format(const char *head, size_t n, bool complete);

/* Why a file that holds a NUL byte is no text, after "it"; `head` are its first n bytes. */
const char *data_not_text(const char *head, size_t n);
/* Fails with that, and says what to do about it; the first NUL is at `offset`. */
AX_MUST_CHECK ax_status data_refuse_nul(const char *path, const char *head, size_t n, int64_t offset);

/* The first bytes of a file, enough to tell formats apart; *n is how many. */
enum { DATA_HEAD_BYTES = 4096 };
AX_MUST_CHECK ax_status data_read_head(const char *path, char head[DATA_HEAD_BYTES], size_t *n);

#endif
