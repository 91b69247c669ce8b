/* Counts the allocations of the whole process, libraries included. The counters replace malloc and its
 * relatives, except under a sanitizer, which has replacements of its own: then nothing is counted and no
 * allocation fails. */
#ifndef AXONN_TESTS_MALLOCS_H
#define AXONN_TESTS_MALLOCS_H

#include "support/sanitized.h"

#include <stdatomic.h>

#define MALLOCS_COUNTED (!SANITIZED)

extern atomic_long mallocs_made;   /* calls that allocate, failed ones included */
extern atomic_long mallocs_freed;  /* blocks freed */
extern atomic_long mallocs_alive;  /* blocks allocated and not yet freed */
extern atomic_long mallocs_mapped; /* calls of mmap, except by the C library itself */
extern atomic_long mallocs_victim; /* the number, in mallocs_made, of the call that fails; 0: none */

#endif
