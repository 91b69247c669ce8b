/* Allocations of the whole process, libraries included. A program that uses these counters gets its own
 * malloc and kin, which stand in front of the C library's; but not under a sanitizer, which has its own:
 * nothing is counted or refused then. */
#ifndef AXONN_TESTS_MALLOCS_H
#define AXONN_TESTS_MALLOCS_H

#include "support/sanitized.h"

#include <stdatomic.h>

#define MALLOCS_COUNTED (!SANITIZED)

extern atomic_long mallocs_made;   /* blocks asked for, whether they were had or not */
extern atomic_long mallocs_freed;  /* blocks given back */
extern atomic_long mallocs_alive;  /* blocks that were had and not given back */
extern atomic_long mallocs_mapped; /* calls of mmap, of libraries other than the C library */
extern atomic_long mallocs_victim; /* the one of mallocs_made that is refused; 0: none */

#endif
