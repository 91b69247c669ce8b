/* Reads numbers from /proc files without allocating memory. */
#ifndef AX_BASE_MEMORY_H
#define AX_BASE_MEMORY_H

#include <stdint.h>

/* Returns the bytes of the line "key N kB" of a /proc file, or -1. */
int64_t base_proc_bytes(const char *path, const char *key);

#endif
