/* Internals of a corpus: its files, the units in which workers read them, and the records of JSON files. Read
 * axonn/data.h first. */
#ifndef AXONN_DATA_CORPUS_H
#define AXONN_DATA_CORPUS_H

#include "axonn/data.h"
#include "axonn/json.h"

typedef struct corpus_file {
    char *path;
    int64_t bytes, mtime_ns; /* at the time of the listing; mtime_ns of a pipe: a hash of its bytes */
    int copy;                /* an unlinked temporary file with a pipe's bytes; -1: read from `path` */
    ax_data_format format;   /* text, JSONL or JSON */
    bool named;              /* the caller named the file; false: it was found below a directory */
} corpus_file;

/* A unit of work: a whole file of text or JSON, or the lines of a JSONL file that start in [from, to). */
typedef struct corpus_unit {
    int64_t file, from, to;
} corpus_unit;

enum { CORPUS_UNIT_BYTES = 1 << 20 };

struct ax_corpus {
    corpus_file *files;
    int64_t n, capacity, bytes;
    char *text_key;
    int64_t bad_limit; /* largest number of records without a text that may be left out */
    corpus_unit at;    /* the last unit that ax_corpus_next read */
    ax_buf scratch, pending;
    size_t pending_at;
    int64_t documents;              /* number of documents that ax_corpus_next has returned */
    int64_t skipped;                /* files left out by the listing or by reading */
    int64_t dropped, dropped_bytes; /* number and bytes of `files` that were left out when they were read */
    int64_t bad_lines;              /* records left out so far */
};

/* Records that were left out while a unit was read. */
typedef struct corpus_omitted {
    const char *file_why; /* why the whole file was left out (the end of a sentence "it …"); NULL: it was not
                             left out */
    int64_t records;      /* records of JSON without a text */
    int64_t first;        /* offset of the first such record in the file */
    const char *record_why; /* value of the first such record in place of a text: "null", … */
} corpus_omitted;

/* Does what ax_corpus_create does, with a callback: `progress` (may be NULL) is called while a pipe is
 * copied, and may stop the copying. */
AX_MUST_CHECK ax_status corpus_create(const ax_corpus_options *options, ax_data_progress_fn progress,
                                      void *user, ax_corpus **out);

/* Copies the pipe or terminal `file->path` until its end into an unlinked temporary file, so that it can be
 * read repeatedly and by several threads; fills in the rest of `file`. AX_ERR_DATA: it is not text, or the
 * disk is full; AX_ERR_SIGNAL. */
AX_MUST_CHECK ax_status corpus_copy_pipe(corpus_file *file, ax_data_progress_fn progress, void *user);

/* Moves to the next unit; a zeroed unit stands before the first one. False at the end. */
bool corpus_next_unit(const ax_corpus *corpus, corpus_unit *unit);

/* Receives a document; `text` is valid during the call only. */
typedef ax_status (*corpus_take_fn)(void *user, const char *text, size_t bytes);

/* Reads a unit and hands out its documents in order. Thread-safe; `scratch` is reused from call to call. */
AX_MUST_CHECK ax_status corpus_read_unit(const ax_corpus *corpus, const corpus_unit *unit, ax_buf *scratch,
                                         corpus_take_fn take, void *user, corpus_omitted *omitted);

/* Counts the records that were left out while a unit was read, and warns of them; to be called for the units
 * in order. AX_ERR_DATA: more records were left out than the corpus allows. */
AX_MUST_CHECK ax_status corpus_note(ax_corpus *corpus, const corpus_unit *unit,
                                    const corpus_omitted *omitted);

/* Called at the end of a corpus from which `documents` documents were read: warns of the number of records
 * left out. AX_ERR_DATA: there was no document. */
AX_MUST_CHECK ax_status corpus_finish(const ax_corpus *corpus, int64_t documents);

/* Appends the bytes of a file from `offset` on to `buf`: `bytes` of them, or fewer at the end of the file. */
AX_MUST_CHECK ax_status corpus_append_range(int fd, const char *path, int64_t offset, int64_t bytes,
                                            ax_buf *buf);

/* Returns line and column, from 1, of the byte at `offset`. Reads the file up to there, so it is for messages
 * only. */
ax_json_place corpus_place(const corpus_file *file, int64_t offset);
/* Returns the line alone. */
long long corpus_line_number(const corpus_file *file, int64_t offset);

/* ---- records of JSON: corpus_json.c -------------------------------------------------------------- */

/* Reads records, each a JSON object with a text, and hands out their texts. */
typedef struct corpus_records {
    const corpus_file *file;
    const char *key;
    corpus_take_fn take;
    void *user;
    corpus_omitted *omitted;
    bool guessed; /* only the suffix suggests that the file holds documents: the file is left out if its first
                     record has no text */
} corpus_records;

/* Hands out the documents of the lines of `text`, which begins at `offset` of the file. */
AX_MUST_CHECK ax_status corpus_take_lines(corpus_records *r, const char *text, size_t bytes, int64_t offset);
/* Hands out the documents of a whole file: an array of objects, or objects one after the other. */
AX_MUST_CHECK ax_status corpus_take_values(corpus_records *r, const char *text, size_t bytes, int64_t offset);

/* ---- building: build.c --------------------------------------------------------------------------- */

/* Does what ax_data_build does, for a corpus that is already open. Destroys the corpus in any case. */
AX_MUST_CHECK ax_status corpus_build(const ax_data_build_options *options, ax_corpus *corpus,
                                     ax_data_build_report *report);

#endif
