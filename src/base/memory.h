/* The memory of this process. */
#ifndef AX_BASE_MEMORY_H
#define AX_BASE_MEMORY_H

#include <stdint.h>

/* Returns the number of bytes that the line "key N kB" of a /proc file states, N * 1024; -1 if there is no
 * such line, or if the file cannot be read. Allocates nothing. */
int64_t base_proc_bytes(const char *path, const char *key);

/* Returns freed memory to the system, also what malloc keeps because it was freed in small pieces. */
void base_memory_trim(void);

#endif
