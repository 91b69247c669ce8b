/* Host memory: zeroed blocks, growable buffers, page regions between guard pages. */
#include "axonn/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, HUGE_PAGE = 2 << 20 };

ax_status ax_calloc(size_t count, size_t size, void *out)
{
    void *p = calloc(count ? count : 1, size ? size : 1);
    AX_CHECK(p, AX_ERR_MEMORY,
             "not enough memory: %zu x %zu bytes were refused; end other programs, or raise this process's "
             "limits (ulimit -v, those of its container)",
             count, size);
    memcpy(out, &p, sizeof p);
    return AX_OK;
}

ax_status ax_strndup(const char *text, size_t n, char **out)
{
    size_t len = strnlen(text, n);
    AX_TRY(ax_calloc(len + 1, 1, out));
    memcpy(*out, text, len);
    return AX_OK;
}

ax_status ax_strdup(const char *text, char **out) { return ax_strndup(text, strlen(text), out); }

ax_status ax_buf_reserve(ax_buf *buf, size_t extra)
{
    size_t need = buf->size + extra + 1;
    if (need <= buf->capacity)
        return AX_OK;
    size_t capacity = buf->capacity ? buf->capacity : 64;
    while (capacity < need)
        capacity *= 2;
    char *data = realloc(buf->data, capacity);
    AX_CHECK(data, AX_ERR_MEMORY,
             "not enough memory: a buffer of %zu bytes was refused; end other programs, or raise this "
             "process's limits (ulimit -v, those of its container)",
             capacity);
    buf->data = data;
    buf->capacity = capacity;
    return AX_OK;
}

ax_status ax_buf_add(ax_buf *buf, const void *bytes, size_t n)
{
    AX_TRY(ax_buf_reserve(buf, n));
    if (n)
        memcpy(buf->data + buf->size, bytes, n);
    buf->size += n;
    buf->data[buf->size] = 0;
    return AX_OK;
}

ax_status ax_buf_printf(ax_buf *buf, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    ax_status status =
        n < 0 ? ax_fail(AX_ERR_INTERNAL, "ax_buf_printf: vsnprintf rejects the format \"%s\"", fmt)
              : ax_buf_reserve(buf, (size_t)n);
    if (status == AX_OK) {
        vsnprintf(buf->data + buf->size, (size_t)n + 1, fmt, again);
        buf->size += (size_t)n;
    }
    va_end(again);
    return status;
}

void ax_buf_fini(ax_buf *buf)
{
    free(buf->data);
    *buf = (ax_buf){0};
}

ax_status ax_region_create(size_t bytes, ax_region *out)
{
    char text[32];
    AX_CHECK(bytes <= INT64_MAX - 4 * PAGE, AX_ERR_MEMORY,
             "not enough memory or address space for a block of %s; end other programs, or raise this "
             "process's limits (ulimit -v, those of its container)",
             ax_format_bytes((double)bytes, text));
    size_t usable = (size_t)ax_round_up((int64_t)(bytes ? bytes : 1), PAGE);
    char *whole =
        mmap(NULL, usable + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    AX_CHECK(whole != MAP_FAILED, AX_ERR_MEMORY,
             "not enough memory or address space for a block of %s; end other programs, or raise this "
             "process's limits (ulimit -v, those of its container)",
             ax_format_bytes((double)bytes, text));
    *out = (ax_region){whole + PAGE, usable};
    if (mprotect(out->base, usable, PROT_READ | PROT_WRITE)) {
        ax_region_destroy(out);
        return ax_fail(AX_ERR_MEMORY,
                       "not enough memory for a block of %s; end other programs, or raise this process's "
                       "limits (ulimit -v, those of its container)",
                       ax_format_bytes((double)bytes, text));
    }
    if (usable >= 4 * (size_t)HUGE_PAGE)
        madvise(out->base, usable, MADV_HUGEPAGE);
    return AX_OK;
}

void ax_region_destroy(ax_region *region)
{
    if (region->base)
        munmap(region->base - PAGE, region->bytes + 2 * PAGE);
    *region = (ax_region){0};
}
