/* Host memory: zeroed blocks, growable buffers and lists, page regions between guard pages. */
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

ax_status ax_list_grow(void *items, size_t count, size_t size)
{
    void *list;
    if (count & (count - 1)) /* neither 0 nor a power of two: there is room */
        return AX_OK;
    memcpy(&list, items, sizeof list);
    list = realloc(list, (count ? 2 * count : 1) * size);
    AX_CHECK(
        list, AX_ERR_MEMORY,
        "not enough memory: a list of more than %zu x %zu bytes was refused; end other programs, or raise "
        "this process's limits (ulimit -v, those of its container)",
        count, size);
    memcpy(items, &list, sizeof list);
    return AX_OK;
}

ax_status ax_strings_add(ax_strings *list, const char *fmt, ...)
{
    va_list args;
    AX_TRY(ax_list_grow(&list->items, list->count, sizeof *list->items));
    va_start(args, fmt);
    int n = vasprintf(&list->items[list->count], fmt, args);
    va_end(args);
    AX_CHECK(n >= 0, AX_ERR_MEMORY, "not enough memory for item %zu of a list of texts", list->count + 1);
    list->count++;
    return AX_OK;
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void ax_strings_sort(ax_strings *list)
{
    if (list->count) /* qsort does not take NULL */
        qsort(list->items, list->count, sizeof *list->items, compare_texts);
}

void ax_strings_fini(ax_strings *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->items[i]);
    free(list->items);
    *list = (ax_strings){0};
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
