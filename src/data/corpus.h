/* Internals of ax_corpus: the input files, the byte ranges (units) in which worker threads read them, and the
 * records of JSON files. Read axonn/data.h first. */
#ifndef AXONN_DATA_CORPUS_H
#define AXONN_DATA_CORPUS_H

#include "axonn/chat.h"
#include "axonn/data.h"
#include "axonn/json.h"
#include "data/unpack.h"

typedef struct corpus_file {
    char *path;
    int64_t bytes, mtime_ns; /* size and modification time when the files were listed; for a pipe, mtime_ns is
                                a hash of its bytes */
    int copy; /* descriptor of an unlinked temporary file that holds a pipe's bytes; -1: read the file from
                 `path` */
    ax_data_format format; /* text, JSONL or JSON */
    data_packing packing;  /* how the file is compressed */
    bool named;            /* the caller named the file, or a pattern that matches it; false: it was found
                              below a directory */
} corpus_file;

/* A unit of work: a whole text or JSON file, or the lines of a JSONL file that start at byte offsets [from,
 * to). `file` is an index in ax_corpus.files. A compressed file can be read in order only, so that its units
 * come with their text (whole lines, if it is JSONL), and offsets are those in the decompressed text. */
typedef struct corpus_unit {
    int64_t file, from, to;
    int64_t share;      /* how many bytes of the file on disk the unit accounts for */
    bool first, packed; /* first: the unit is the first of its file */
    ax_buf text;        /* of a compressed file */
    char *failure;      /* message of the error that ended the decompression */
} corpus_unit;
void corpus_unit_fini(corpus_unit *unit);

enum { CORPUS_UNIT_BYTES = 1 << 20 };

/* Why a JSON record is bad: it has no usable text (null, or not valid Unicode), or it is refused for any
 * other reason. */
typedef enum corpus_bad_kind { CORPUS_NO_TEXT, CORPUS_REFUSED, CORPUS_BAD_KINDS } corpus_bad_kind;

enum { CORPUS_LISTED = 20 }; /* how many bad records of a kind are listed, others are counted */

/* The bad records of one kind in the whole corpus. */
typedef struct corpus_tally {
    int64_t n, limit; /* their number so far, and how many may be left out */
    int listed;       /* number of lines in `list` */
    ax_buf list;      /* "FILE:LINE: REASON" of the first ones, each after a newline */
    ax_buf reason;    /* that of the last line of the list */
} corpus_tally;

struct ax_corpus {
    corpus_file *files;
    int64_t n, bytes; /* n: number of files; bytes: their total size */
    char *text_key;
    bool text_key_given; /* the caller chose text_key: an object with a string in that member is not read as a
                            conversation */
    const ax_chat *chat; /* template of conversations; NULL: JSON objects are not read as conversations */
    ax_strings ignore;   /* members of conversations to leave out; owned by the caller */
    corpus_tally bad[CORPUS_BAD_KINDS];
    corpus_bad_kind refused; /* the kind as which refused records count: CORPUS_NO_TEXT if the caller said how
                                many records may be left out, whatever is wrong with them */
    int64_t search; /* above 0: there are too many bad records, and so many more bytes are read to list
                       others */
    corpus_unit at; /* the unit that ax_corpus_next read last */
    struct {        /* the compressed file of which corpus_next_unit returns units */
        int fd;
        data_unpacker *unpacker; /* NULL: no file is open */
        ax_buf ahead;            /* text that follows the last unit */
        int64_t used;            /* bytes of the file on disk that earlier units account for */
    } packed;
    ax_buf scratch, pending;
    size_t pending_at;              /* offset in `pending` of the next document that ax_corpus_next returns */
    int64_t tables;                 /* number of files of comma- or tab-separated values */
    int64_t documents;              /* number of documents that ax_corpus_next has returned */
    int64_t skipped;                /* number of files and directories left out, while listing or reading */
    int64_t dropped, dropped_bytes; /* number and total size of the entries of `files` that were left out
                                       after they were listed */
    int64_t unanswered;             /* number of conversations without an answer left out so far */
    int64_t losing;                 /* number of conversations that lose something (ax_chat_text.lost) */
    ax_buf lost;                    /* "FILE:LINE: WHAT" of the first one */
};

typedef struct corpus_bad {
    int64_t offset; /* where the record begins in the file */
    char why[320];
} corpus_bad;

/* The parts of a unit that were left out while it was read: the whole file, bad JSON records, conversations
 * without an answer, or what the template leaves out of conversations. */
typedef struct corpus_omitted {
    const char *file_why;     /* why the whole file was left out, to be printed after "it", such as "cannot be
                                 read"; NULL: the file was not left out */
    int64_t unanswered;       /* number of conversations left out */
    int64_t first_unanswered; /* byte offset in the file of the first conversation left out */
    int64_t losing;           /* number of conversations of which the template leaves something out */
    corpus_bad lost;          /* the first one */
    struct {
        int64_t n;
        corpus_bad first[CORPUS_LISTED];
    } bad[CORPUS_BAD_KINDS];
} corpus_omitted;

/* Lists the files of the inputs and copies pipes to temporary files, as ax_corpus_create does. `progress`
 * (may be NULL) is called while a pipe is copied; if `progress` returns false, the copying stops with
 * AX_ERR_SIGNAL. */
AX_MUST_CHECK ax_status corpus_create(const ax_corpus_options *options, ax_data_progress_fn progress,
                                      void *user, ax_corpus **out);

/* Copies the pipe or terminal `file->path` until its end into an unlinked temporary file, so that the bytes
 * can be read repeatedly and by several threads. Sets the members bytes, mtime_ns, copy and format of *file.
 * AX_ERR_DATA: the pipe is not text, or the disk is full. AX_ERR_SIGNAL: a signal arrived, or `progress`
 * returned false. */
AX_MUST_CHECK ax_status corpus_copy_pipe(corpus_file *file, ax_data_progress_fn progress, void *user);

/* Sets *unit to the unit that follows *unit, or to the first unit if *unit is zeroed. Returns false after the
 * last unit. *unit, whose memory the caller has taken or released, then owns its text. The calls for a corpus
 * must be in order, and not at the same time. */
bool corpus_next_unit(ax_corpus *corpus, corpus_unit *unit);

/* Receives a document; `text` is valid during the call only. `chat`: NULL, or, if the document is a
 * conversation, its text divided into the parts of turns and of the template. */
typedef ax_status (*corpus_take_fn)(void *user, const char *text, size_t bytes, ax_chat_text *chat);

/* Reads a unit, passes its documents to `take`, in order, and releases its memory. Sets *omitted to what was
 * left out. Thread-safe if each thread has its own `scratch`, which is reused from call to call.
 * AX_ERR_SIGNAL: a signal arrived, which is seen between records. */
AX_MUST_CHECK ax_status corpus_read_unit(const ax_corpus *corpus, corpus_unit *unit, ax_buf *scratch,
                                         corpus_take_fn take, void *user, corpus_omitted *omitted);

/* Adds what `omitted` says of `unit` to the counts and lists of `corpus`, and logs warnings. Must be called
 * for the units in order. Too many bad records (corpus_is_failing) are an error only at the end of the
 * corpus, so that all are listed, or after another GiB of text: AX_ERR_DATA. */
AX_MUST_CHECK ax_status corpus_note(ax_corpus *corpus, const corpus_unit *unit,
                                    const corpus_omitted *omitted);

/* Returns true if more records are bad than may be left out. The rest of the corpus is then read only to list
 * others, and its documents are of no use. */
bool corpus_is_failing(const ax_corpus *corpus);

/* Ends the reading of a corpus that gave `documents` documents: warns of the records and conversations that
 * were left out. AX_ERR_DATA: there are too many bad records, which the message lists; `documents` is 0. */
AX_MUST_CHECK ax_status corpus_finish(const ax_corpus *corpus, int64_t documents);

/* Appends to `buf` the `bytes` bytes that begin at `offset` in a file, or fewer if the file ends before, and
 * a NUL that buf->size does not count. */
AX_MUST_CHECK ax_status corpus_append_range(int fd, const char *path, int64_t offset, int64_t bytes,
                                            ax_buf *buf);

/* Returns the line and the column (in characters), both counted from 1, of the byte at `offset`. Reads the
 * file from its start to `offset`, so it is for error messages only. */
ax_json_place corpus_place(const corpus_file *file, int64_t offset);
/* Returns only the line that corpus_place returns. */
long long corpus_line_number(const corpus_file *file, int64_t offset);

/* ---- records of JSON: corpus_json.c -------------------------------------------------------------- */

/* State for reading the JSON records of a file. Each record is an object and gives one document: a
 * conversation, which the template `chat` renders, or else the text in the member `key`. If `key_given` is
 * set, an object whose member `key` is a string is not read as a conversation. Documents are passed to
 * `take`. */
typedef struct corpus_records {
    const corpus_file *file;
    const char *key;
    bool key_given;
    const ax_chat *chat; /* NULL: no record is a conversation */
    const ax_strings *ignore;
    ax_chat_turns turns; /* scratch */
    ax_chat_text rendered;
    corpus_take_fn take;
    void *user;
    corpus_omitted *omitted;
    corpus_bad_kind refused; /* as in ax_corpus */
    bool guessed; /* the file was found below a directory, only its suffix .json and its first bytes suggest
                     that it holds documents, and no record has been read yet. If the first record is then not
                     valid JSON, is not a valid conversation, or has neither a string nor null as its text,
                     the file is left out without an error */
} corpus_records;

/* Frees the scratch memory (`turns` and `rendered`). */
void corpus_records_fini(corpus_records *r);
/* Passes the document of each line of `text` to r->take. `text` begins at byte `offset` of the file. */
AX_MUST_CHECK ax_status corpus_take_lines(corpus_records *r, const char *text, size_t bytes, int64_t offset);
/* Passes the documents of a whole file to r->take. The file is a JSON array of objects, or objects one after
 * the other. `text` begins at byte `offset` of the file. */
AX_MUST_CHECK ax_status corpus_take_values(corpus_records *r, const char *text, size_t bytes, int64_t offset);

/* ---- building: build.c --------------------------------------------------------------------------- */

/* Returns true if a build puts special tokens around documents of plain text. */
bool data_frames(const ax_data_build_options *options);

/* Tokenizes a corpus that is already open into packed token files, as ax_data_build does. Destroys the corpus
 * in any case. */
AX_MUST_CHECK ax_status corpus_build(const ax_data_build_options *options, ax_corpus *corpus,
                                     ax_data_build_report *report);

#endif
