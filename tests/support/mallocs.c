/* See mallocs.h. */
#include "support/mallocs.h"

#include <errno.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

atomic_long mallocs_made, mallocs_freed, mallocs_alive, mallocs_mapped, mallocs_victim;

#if MALLOCS_COUNTED

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t items, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *memory);

static bool refused(void) { return atomic_fetch_add(&mallocs_made, 1) + 1 == atomic_load(&mallocs_victim); }

static void *count_allocated(void *memory)
{
    atomic_fetch_add(&mallocs_alive, memory != NULL);
    return memory;
}

void *malloc(size_t size) { return refused() ? NULL : count_allocated(__libc_malloc(size)); }

void *calloc(size_t items, size_t size)
{
    return refused() ? NULL : count_allocated(__libc_calloc(items, size));
}

void *realloc(void *old, size_t size)
{
    void *memory = refused() ? NULL : __libc_realloc(old, size);
    return old ? memory : count_allocated(memory);
}

void free(void *memory)
{
    atomic_fetch_add(&mallocs_freed, memory != NULL);
    atomic_fetch_sub(&mallocs_alive, memory != NULL);
    __libc_free(memory);
}

void *memalign(size_t alignment, size_t size)
{
    return refused() ? NULL : count_allocated(__libc_memalign(alignment, size));
}

void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void **out, size_t alignment, size_t size)
{
    void *memory = memalign(alignment, size);
    if (!memory)
        return ENOMEM;
    *out = memory;
    return 0;
}

void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
    atomic_fetch_add(&mallocs_mapped, 1);
    return (void *)syscall(SYS_mmap, at, size, protection, flags, fd, offset);
}

#endif
