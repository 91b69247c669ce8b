/* The inside of a corpus: its files, the units in which workers read them, and the records of files of JSON.
 * Read axonn/data.h first. */
#ifndef AXONN_DATA_CORPUS_H
#define AXONN_DATA_CORPUS_H

#include "axonn/data.h"
#include "axonn/json.h"

typedef struct corpus_file {
    char *path;
    int64_t bytes, mtime_ns; /* when it was listed; mtime_ns of a pipe: a hash of its bytes */
    int copy;                /* a pipe's bytes in a temporary file without a name; -1: read from `path` */
    ax_data_format format;   /* text, JSONL or JSON */
    bool named;              /* by the caller, not found below a directory */
} corpus_file;

/* What one worker reads at a time: a whole text file, or the lines of a JSONL file that start in
 * [from, to). */
typedef struct corpus_unit {
    int64_t file, from, to;
} corpus_unit;

enum { CORPUS_UNIT_BYTES = 1 << 20 };

struct ax_corpus {
    corpus_file *files;
    int64_t n, capacity, bytes;
    char *text_key;
    int64_t bad_limit; /* records without a text that may be left out */
    corpus_unit at;    /* of ax_corpus_next: the last unit read */
    ax_buf scratch, pending;
    size_t pending_at;
    int64_t documents;              /* given by ax_corpus_next */
    int64_t skipped;                /* files left out by the listing or by reading */
    int64_t dropped, dropped_bytes; /* those of `files` that were left out when they were read */
    int64_t bad_lines;              /* left out so far */
};

/* What reading a unit left out. */
typedef struct corpus_omitted {
    const char *file_why; /* why the whole file was, which was found below a directory, after "it"; or NULL */
    int64_t records;      /* records of JSON without a text */
    int64_t first;        /* where the first of them begins in the file */
    const char *record_why; /* what its text is */
} corpus_omitted;

/* ax_corpus_create, which copies pipes: `progress` (may be NULL) is asked meanwhile whether to go on. */
AX_MUST_CHECK ax_status corpus_create(const ax_corpus_options *options, ax_data_progress_fn progress,
                                      void *user, ax_corpus **out);

/* Copies what comes out of the pipe or terminal `file->path` until its end into a temporary file without a
 * name, so that it can be read as often and by as many threads as a file; fills in the rest of `file`.
 * AX_ERR_DATA: it is no text, or there is no room; AX_ERR_SIGNAL. */
AX_MUST_CHECK ax_status corpus_copy_pipe(corpus_file *file, ax_data_progress_fn progress, void *user);

/* Moves to the next unit; a zeroed unit stands before the first one. False at the end. */
bool corpus_next_unit(const ax_corpus *corpus, corpus_unit *unit);

/* A document; `text` is valid during the call only. */
typedef ax_status (*corpus_take_fn)(void *user, const char *text, size_t bytes);

/* Reads a unit and hands out its documents in order. Thread-safe; `scratch` is reused from call to call. */
AX_MUST_CHECK ax_status corpus_read_unit(const ax_corpus *corpus, const corpus_unit *unit, ax_buf *scratch,
                                         corpus_take_fn take, void *user, corpus_omitted *omitted);

/* Counts what a unit left out, units being given in order, and tells the user of it. AX_ERR_DATA: these are
 * more records than the corpus allows. */
AX_MUST_CHECK ax_status corpus_note(ax_corpus *corpus, const corpus_unit *unit,
                                    const corpus_omitted *omitted);

/* Called at the end of a corpus that gave so many documents: says how many records were left out.
 * AX_ERR_DATA: there was no document. */
AX_MUST_CHECK ax_status corpus_finish(const ax_corpus *corpus, int64_t documents);

/* Appends up to `bytes` bytes of a file from `offset` on to `buf`; fewer at its end. */
AX_MUST_CHECK ax_status corpus_append_range(int fd, const char *path, int64_t offset, int64_t bytes,
                                            ax_buf *buf);

/* The line and the column, from 1, of the byte at `offset`. Only messages need them. */
ax_json_place corpus_place(const corpus_file *file, int64_t offset);
/* The line alone. */
long long corpus_line_number(const corpus_file *file, int64_t offset);

/* ---- records of JSON: corpus_json.c -------------------------------------------------------------- */

/* Reads records, each a JSON object with a text, and hands out their texts. */
typedef struct corpus_records {
    const corpus_file *file;
    const char *key;
    corpus_take_fn take;
    void *user;
    corpus_omitted *omitted;
    bool guessed; /* so far only the file's suffix says that it holds documents: if the first record has no */
                  /* text, the file is left out */
} corpus_records;

/* The lines of `text`, which stands at `offset` of the file. */
AX_MUST_CHECK ax_status corpus_take_lines(corpus_records *r, const char *text, size_t bytes, int64_t offset);
/* The same of a whole file: the elements of an array, or objects one behind another. */
AX_MUST_CHECK ax_status corpus_take_values(corpus_records *r, const char *text, size_t bytes, int64_t offset);

/* ---- building: build.c --------------------------------------------------------------------------- */

/* ax_data_build of a corpus that is open; destroys it in any case. */
AX_MUST_CHECK ax_status corpus_build(const ax_data_build_options *options, ax_corpus *corpus,
                                     ax_data_build_report *report);

#endif
