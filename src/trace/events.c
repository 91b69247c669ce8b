/* Ring buffers that hold the most recent profiling events of each thread, and their export in Chrome's trace
 * event format. */
#include "axonn/trace.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ax_event_ring {
    char name[32];
    ax_event_ring *next;
    int lane;             /* index of the ring, from 0; the thread's id in trace files */
    size_t mask;          /* capacity - 1 */
    _Atomic size_t count; /* number of events added so far; only the thread that adds events stores it */
    ax_event event[];
};

struct ax_trace {
    size_t capacity; /* events per ring, a power of two */
    int lanes;
    _Atomic(ax_event_ring *) rings;
};

ax_status ax_trace_create(size_t capacity, ax_trace **out)
{
    AX_CHECK(capacity > 0 && capacity <= (size_t)1 << 28, AX_ERR_USAGE,
             "ax_trace_create: a ring cannot have %zu events: choose 1 to 2^28", capacity);
    AX_TRY(ax_calloc(1, sizeof **out, out));
    (*out)->capacity = 1;
    while ((*out)->capacity < capacity)
        (*out)->capacity *= 2;
    return AX_OK;
}

void ax_trace_destroy(ax_trace **trace)
{
    if (!*trace)
        return;
    for (ax_event_ring *r = (*trace)->rings, *next; r; r = next) {
        next = r->next;
        free(r);
    }
    free(*trace);
    *trace = NULL;
}

ax_status ax_trace_ring(ax_trace *trace, const char *name, ax_event_ring **out)
{
    *out = NULL;
    if (!trace)
        return AX_OK;
    AX_TRY(ax_calloc(1, sizeof **out + trace->capacity * sizeof(ax_event), out));
    ax_event_ring *ring = *out;
    snprintf(ring->name, sizeof ring->name, "%s", name);
    ring->mask = trace->capacity - 1;
    ring->lane = trace->lanes++;
    ring->next = trace->rings;
    trace->rings = ring;
    return AX_OK;
}

void ax_event_add(ax_event_ring *ring, const char *kind, const char *name, double begin, double end,
                  int64_t value)
{
    if (!ring)
        return;
    size_t n = atomic_load_explicit(&ring->count, memory_order_relaxed);
    ring->event[n & ring->mask] = (ax_event){begin, end, kind, name, value};
    atomic_store_explicit(&ring->count, n + 1, memory_order_release);
}

size_t ax_event_count(const ax_event_ring *ring)
{
    return ring ? atomic_load_explicit(&ring->count, memory_order_acquire) : 0;
}

const ax_event *ax_event_get(const ax_event_ring *ring, size_t i)
{
    size_t n = ax_event_count(ring);
    return i < n && n - i <= ring->mask + 1 ? &ring->event[i & ring->mask] : NULL;
}

/* ---- export -------------------------------------------------------------------------------------- */

/* Writes the name of an event, with '_' for characters that JSON strings would have to escape. */
static void put_name(FILE *f, const char *text)
{
    for (; *text; text++)
        fputc((unsigned char)*text < 0x20 || *text == '"' || *text == '\\' ? '_' : *text, f);
}

static void put_event(FILE *f, const ax_event_ring *ring, const ax_event *e, int rank, double origin)
{
    fprintf(f, ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"cat\":\"%s\",\"name\":\"", rank, ring->lane,
            e->kind);
    put_name(f, e->name);
    fprintf(f, "\",\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"value\":%lld}}", (e->begin - origin) * 1e6,
            (e->end - e->begin) * 1e6, (long long)e->value);
}

ax_status ax_trace_write(const ax_trace *trace, int rank, double origin, const char *path)
{
    FILE *f = fopen(path, "w");
    AX_CHECK(f, AX_ERR_DATA, "cannot write %s: %s", path, strerror(errno));
    fprintf(f, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    fprintf(f, "{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":\"rank %d\"}}", rank,
            rank);
    for (const ax_event_ring *r = trace->rings; r; r = r->next) {
        size_t n = ax_event_count(r), kept = ax_min(n, r->mask + 1);
        fprintf(f,
                ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"%s\"}}",
                rank, r->lane, r->name);
        for (size_t i = n - kept; i < n; i++)
            put_event(f, r, ax_event_get(r, i), rank, origin);
    }
    fprintf(f, "\n]}\n");
    errno = 0;
    bool failed = fflush(f) || ferror(f);
    int reason = errno; /* 0 if an earlier write failed: its reason is no longer known */
    if (fclose(f)) {
        failed = true;
        reason = reason ? reason : errno;
    }
    AX_CHECK(!failed, AX_ERR_DATA, "cannot write %s: %s", path, strerror(reason ? reason : EIO));
    return AX_OK;
}
