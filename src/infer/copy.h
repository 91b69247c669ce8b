/* Writes a copy of a model directory in which the caller may change, repeat and add arrays of weights. */
#ifndef AXONN_INFER_COPY_H
#define AXONN_INFER_COPY_H

#include "axonn/infer.h"

enum { AX_COPY_KEY = 512 };

typedef struct ax_copy {
    /* The caller sets these before ax_copy_write. */
    const char *dir;  /* the directory that is copied */
    const char *base; /* NULL; or, if `dir` holds an adapter, the directory of its base model: the copy has
                         config.json from there, and of other files those of `dir` first */
    ax_st *from;      /* the open weight files whose arrays are copied */
    const ax_st_array *tied; /* an array of `from` that the copy has twice, the second time as tied_key; NULL:
                                none */
    const char *tied_key;
    /* Writes to `key` name number `index` under which the copy has array `a` of `from`; returns false after
     * the last. NULL: the copy has each array once, under its own name. */
    bool (*name)(void *owner, const ax_st_array *a, int64_t index, char key[AX_COPY_KEY]);
    const ax_st_array
        *added; /* n_added arrays that `from` does not have; `add` writes array `b` of `to`, one of them */
    int n_added;
    ax_status (*add)(void *owner, ax_st *to, const ax_st_array *b);
    const char *config;  /* text of config.json of the copy; NULL: that of `dir` with the new dtype */
    bool untied;         /* config.json of the copy says that the output layer is not tied */
    ax_dtype dtype;      /* dtype to which arrays of floats are converted; AX_DTYPE_COUNT: no conversion */
    int64_t shard_bytes; /* as in ax_st_plan */
    /* Writes array `b` of `to`, which is a copy of array `a` of `from`, with other values; or sets *done to
     * false, and the array is copied as it is. NULL: all arrays are copied. */
    ax_status (*write)(void *owner, const ax_st_array *a, ax_st *to, const ax_st_array *b, bool *done);
    void *owner;                                               /* of `name`, `add` and `write` */
    bool (*progress)(void *user, int64_t done, int64_t total); /* as in ax_conversion_args */
    void *user;

    /* Bytes that were read so far, and bytes to read in all. A caller that reads `from` beforehand counts
     * this too. */
    int64_t done, total;

    /* The rest belongs to copy.c. */
    char *out, *parent, *aside; /* the result, without trailing slashes; its parent directory; the hidden
                                   directory that is renamed to `out` at the end */
    ax_st *to;                  /* weight files of the result */
    struct ax_copy_entry
        *entry; /* the arrays of the result, but for added ones, in the order of `from`'s files */
    int entries;
    ax_conversion *result;
} ax_copy;

/* Begins a copy with the name `out`. The caller calls ax_copy_fini, also after an error. AX_ERR_USAGE: `out`
 * exists. */
AX_MUST_CHECK ax_status ax_copy_begin(const char *out, ax_copy *copy);
/* Returns the bytes of all arrays of the copy as they are in `from`. */
int64_t ax_copy_bytes(const ax_copy *copy);
/* Reports copy->done + `bytes` as done. AX_ERR_SIGNAL if the callback ends the copy. */
AX_MUST_CHECK ax_status ax_copy_report(const ax_copy *copy, int64_t bytes);
/* Writes the copy to a hidden directory beside `out` and renames it when it is complete; if this fails,
 * nothing remains. */
AX_MUST_CHECK ax_status ax_copy_write(ax_copy *copy, ax_conversion *result);
void ax_copy_fini(ax_copy *copy);

#endif
