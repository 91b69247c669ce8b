/* The inside of a corpus: its files, and the units in which workers read them. Read axonn/data.h first. */
#ifndef AXONN_DATA_CORPUS_H
#define AXONN_DATA_CORPUS_H

#include "axonn/data.h"

typedef struct corpus_file {
    char *path;
    int64_t bytes, mtime_ns; /* when it was listed */
    bool jsonl, named;       /* named: by the caller, not found below a directory */
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
    corpus_unit at; /* of ax_corpus_next: the last unit read */
    ax_buf scratch, pending;
    size_t pending_at;
    int64_t skipped;                /* left out by the listing or by reading */
    int64_t dropped, dropped_bytes; /* those of `files` that were left out when they were read */
};

/* Moves to the next unit; a zeroed unit stands before the first one. False at the end. */
bool corpus_next_unit(const ax_corpus *corpus, corpus_unit *unit);

/* A document; `text` is valid during the call only. */
typedef ax_status (*corpus_take_fn)(void *user, const char *text, size_t bytes);

/* Reads a unit and hands out its documents in order. *skipped says why a file below a directory was left
 * out, or is NULL. Thread-safe; `scratch` is reused from call to call. */
AX_MUST_CHECK ax_status corpus_read_unit(const ax_corpus *corpus, const corpus_unit *unit, ax_buf *scratch,
                                         corpus_take_fn take, void *user, const char **skipped);

/* Counts a file as left out and lets the user know. */
void corpus_drop(ax_corpus *corpus, int64_t file, const char *why);

#endif
