/* What the libFuzzer harnesses share. A harness is one file, fuzz_NAME.c, with the two functions below;
 * fuzz.c calls them and judges each input: no finding of a sanitizer, no abort, no more than two seconds of
 * processor time, no file descriptor left open, no status but those that a reader may return.
 *
 * An input may stand for several files: its parts are separated by a line FUZZ_BREAK. */
#ifndef AX_TESTS_FUZZ_H
#define AX_TESTS_FUZZ_H

#include "axonn/base.h"

#define FUZZ_BREAK "\n--8<--\n"
enum { FUZZ_PARTS = 8 };

typedef struct fuzz_part {
    char *data; /* `size` bytes and a NUL; a harness may change them */
    size_t size;
} fuzz_part;

/* ---- what a harness provides ---- */

/* Calls fuzz_seed for inputs to start from. */
void fuzz_make_seeds(void);
/* Reads an input of n parts, 1 <= n <= FUZZ_PARTS. */
void fuzz_one(const fuzz_part *part, int n);

/* ---- what it calls ---- */

/* An input to start from: parts that end with one whose data are NULL. */
void fuzz_seed(const fuzz_part *parts);
/* The same for texts that end with NULL. */
void fuzz_seed_texts(const char *const *texts);

/* A file of the source tree. */
void fuzz_seed_file(const char *path);

/* Writes a file below the harness's own folder and returns its path, which is valid until eight calls later.
 * A NULL `data` removes the file. */
const char *fuzz_file(const char *name, const void *data, size_t size);
/* The path alone, in the same way; "" is the folder. */
const char *fuzz_path(const char *name);

/* A reader's status must be AX_OK, AX_ERR_DATA or AX_ERR_USAGE, and an error must have a message. Returns
 * whether it is AX_OK. */
bool fuzz_read(ax_status status);
/* Aborts if a statement about what was read does not hold. */
#define FUZZ_HOLDS(cond) ((cond) ? (void)0 : fuzz_broken(#cond, __FILE__, __LINE__))
void fuzz_broken(const char *cond, const char *file, int line) __attribute__((noreturn));

#endif
