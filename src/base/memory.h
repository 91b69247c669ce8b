/* Reads numbers from /proc files without allocating memory. */
#ifndef AX_BASE_MEMORY_H
#define AX_BASE_MEMORY_H

#include <stdint.h>

/* Returns the number of bytes that the line "key N kB" of a /proc file states, N * 1024; -1 if there is no
 * such line, or if the file cannot be read. */
int64_t base_proc_bytes(const char *path, const char *key);

#endif
