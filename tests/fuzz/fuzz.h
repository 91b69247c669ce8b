/* Interface between the libFuzzer harnesses and fuzz.c. A harness is one file, fuzz_NAME.c, with the first
 * two functions below. fuzz.c calls them and checks each input: no finding of a sanitizer, no abort, at most
 * two seconds of processor time, no file descriptor left open, and only statuses that a reader may return.
 *
 * An input may stand for several files: a line FUZZ_BREAK separates its parts. */
#ifndef AX_TESTS_FUZZ_H
#define AX_TESTS_FUZZ_H

#include "axonn/base.h"

#define FUZZ_BREAK "\n--8<--\n"
enum { FUZZ_PARTS = 8 };

typedef struct fuzz_part {
    char *data; /* `size` bytes and a NUL; a harness may overwrite them */
    size_t size;
} fuzz_part;

/* ---- functions that each harness defines ---- */

/* Passes the seeds, inputs from which fuzzing starts, to fuzz_seed. */
void fuzz_make_seeds(void);
/* Gives an input of n parts to the reader, 1 <= n <= FUZZ_PARTS. */
void fuzz_one(const fuzz_part *part, int n);

/* ---- functions that a harness calls ---- */

/* Adds a seed. The last part is followed by one whose `data` is NULL. */
void fuzz_seed(const fuzz_part *parts);
/* Adds a seed whose parts are texts; the last one is followed by NULL. */
void fuzz_seed_texts(const char *const *texts);

/* Adds a file of the source tree as a seed. */
void fuzz_seed_file(const char *path);

/* Writes a file into the harness's own directory, or removes it if `data` is NULL. Returns its path, which
 * stays valid for seven more calls of this function and fuzz_path. */
const char *fuzz_file(const char *name, const void *data, size_t size);
/* Returns the path of such a file without writing it; "" is the directory. */
const char *fuzz_path(const char *name);

/* Checks that a reader's status is AX_OK, AX_ERR_DATA or AX_ERR_USAGE, and that an error has a message.
 * Returns whether the status is AX_OK. */
bool fuzz_read(ax_status status);
/* Aborts if a condition on the data that were read does not hold. */
#define FUZZ_HOLDS(cond) ((cond) ? (void)0 : fuzz_broken(#cond, __FILE__, __LINE__))
void fuzz_broken(const char *cond, const char *file, int line) __attribute__((noreturn));

#endif
