/* Memory of a template or a rendering, its bounds, and its errors. */
#include "token/jinja/inner.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

struct chunk {
    struct chunk *next;
    size_t size;
    _Alignas(max_align_t) char data[];
};

/* Copies a text with escapes in place of control characters: texts of strangers must not steer a terminal. */
static void escape(const char *text, char *out, size_t size)
{
    enum { LONGEST = 5 };
    const char *end = out + size - LONGEST;
    while (*text && out < end) {
        const unsigned char c = (unsigned char)*text++, next = (unsigned char)*text;
        const bool wide = c == 0xc2 && next >= 0x80 && next < 0xa0;
        if (c == '\n')
            out += sprintf(out, "\\n");
        else if (c < 0x20 || c == 0x7f || wide)
            out += sprintf(out, "\\x%02x", wide ? next : c);
        else
            *out++ = (char)c;
        text += wide;
    }
    *out = 0;
}

static void say(jx *e, const char *fmt, va_list args)
{
    char message[2048], shown[4096];
    vsnprintf(message, sizeof message, fmt, args);
    escape(message, shown, sizeof shown);
    (void)ax_fail(AX_ERR_DATA, "%s:%d: %s", e->where, e->line, shown);
}

void jx_fail(jx *e, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    say(e, fmt, args);
    va_end(args);
    e->own_fault = false;
    longjmp(*e->out, 1);
}

void jx_fail_own(jx *e, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    say(e, fmt, args);
    va_end(args);
    e->own_fault = true;
    longjmp(*e->out, 1);
}

void jx_too_long(jx *e)
{
    jx_fail_own(
        e, "the template takes more steps than the size of the conversation allows: the conversation is too "
           "long for it, or a loop in it has no end");
}

static void out_of_memory(jx *e)
{
    (void)ax_fail(AX_ERR_MEMORY, "not enough memory for a chat template");
    longjmp(*e->out, 1);
}

void *jx_chunk(jx *e, size_t n)
{
    enum { CHUNK = 32 << 10 };
    arena *a = e->arena;
    const size_t room = n > CHUNK / 4 ? n : CHUNK;
    if (room > a->most - a->used)
        jx_fail_own(e,
                    "the template takes more memory than the size of the conversation allows (%zu MiB): the "
                    "conversation is too long for it, or a loop in it has no end",
                    a->most >> 20);
    struct chunk *c = malloc(sizeof *c + room);
    if (!c)
        out_of_memory(e);
    a->used += room;
    c->next = a->chunks;
    c->size = room;
    a->chunks = c;
    if (room > n) {
        a->at = c->data + n;
        a->left = room - n;
    }
    return c->data;
}

void arena_rewind(arena *a, const arena *before)
{
    while (a->chunks != before->chunks) {
        struct chunk *c = a->chunks;
        a->chunks = c->next;
        a->used -= c->size;
        free(c);
    }
    a->at = before->at;
    a->left = before->left;
}

void arena_fini(arena *a)
{
    arena_rewind(a, &(arena){0});
    *a = (arena){0};
}

void *jx_grow(jx *e, void *array, size_t n, size_t *capacity, size_t size)
{
    if (n < *capacity)
        return array;
    const size_t larger = 2 * *capacity + 8; /* *capacity stays as it is if there is no memory */
    jx_charge(e, n * size);
    void *more = jx_room(e, larger * size);
    if (n)
        memcpy(more, array, n * size);
    *capacity = larger;
    return more;
}

/* ---- names --------------------------------------------------------------------------------------- */

static size_t slot_of(const name_table *names, const char *text, size_t n)
{
    size_t i = XXH3_64bits(text, n) & (names->capacity - 1);
    while (names->slot[i] && (strlen(names->slot[i]) != n || memcmp(names->slot[i], text, n) != 0))
        i = (i + 1) & (names->capacity - 1);
    return i;
}

const char *names_find(const name_table *names, const char *text, size_t n)
{
    return names->capacity ? names->slot[slot_of(names, text, n)] : NULL;
}

static void grow_names(jx *e, name_table *names)
{
    name_table more = {.n = names->n, .capacity = names->capacity ? 2 * names->capacity : 64};
    more.slot = jx_alloc(e, more.capacity * sizeof *more.slot);
    for (size_t i = 0; i < names->capacity; i++)
        if (names->slot[i])
            more.slot[slot_of(&more, names->slot[i], strlen(names->slot[i]))] = names->slot[i];
    *names = more;
}

const char *jx_intern(jx *e, name_table *names, const char *text, size_t n)
{
    if (2 * names->n >= names->capacity)
        grow_names(e, names);
    const char **slot = &names->slot[slot_of(names, text, n)];
    if (!*slot) {
        char *copy = jx_alloc(e, n + 1);
        memcpy(copy, text, n);
        *slot = copy;
        names->n++;
    }
    return *slot;
}

/* ---- texts --------------------------------------------------------------------------------------- */

void jbuf_add(jx *e, jbuf *b, const char *text, size_t n)
{
    if (b->n + n > e->most_text)
        jx_fail_own(e, "the template writes more text than the size of the conversation allows (%zu MiB)",
                    e->most_text >> 20);
    if (b->n + n > b->capacity) {
        const size_t capacity = 2 * b->capacity > b->n + n ? 2 * b->capacity : b->n + n + 32;
        char *more = jx_room(e, capacity);
        if (b->n)
            memcpy(more, b->data, b->n);
        b->data = more;
        b->capacity = capacity;
    }
    if (n)
        memcpy(b->data + b->n, text, n);
    b->n += n;
    jx_charge(e, n);
}

void jbuf_printf(jx *e, jbuf *b, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    jbuf_add(e, b, text, n < 0 ? 0 : (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}
