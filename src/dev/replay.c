/* Replays (ax_replay_begin): launches that repeat from step to step are given to the device as graphs.
 *
 * A replay records launches in segments. A segment ends at the next copy, wait, event or collective on the
 * stream (ax_replay_cut), or at the end of the replay. As long as launches equal the recorded ones, they are
 * deferred. If the segment then ends, and all its launches have repeated, they run as one graph, which is
 * captured when they first repeat. A segment that has fewer than MIN_LAUNCHES launches, or that the device
 * refuses to capture, gets no graph: its launches are run one by one. At the first launch that differs, the
 * deferred launches are run one by one, and the rest of the segment is recorded again. */
#include "dev/backend.h"

#include "axonn/runtime.h"

#include <stdlib.h>
#include <string.h>

/* Segments (launches between two calls of ax_replay_cut) with fewer launches than this get no graph. (The
 * number is a guess and was not measured.) */
enum { MIN_LAUNCHES = 4 };

typedef struct launch {
    ax_kernel kernel;
    size_t args; /* offset of the launch's arguments in segment.args */
} launch;

typedef struct segment {
    launch *launch;
    char *args;
    /* n: number of launches; bytes: size of their arguments; room, bytes_room: number of launches, and of
     * bytes of arguments, for which memory is allocated */
    size_t n, room, bytes, bytes_room;
    void *graph;    /* graph of all launches of the segment, or NULL */
    size_t repeats; /* how often the segment repeated while it had no graph */
} segment;

struct ax_replay {
    ax_device *dev;
    bool disabled; /* graphs are disabled by runtime.graphs=off */
    segment *segment;
    size_t n, at;    /* number of segments, and index of the current one */
    size_t deferred; /* number of launches of the current segment that equal the recorded ones and have not
                        run yet */
    bool recording;  /* a launch of the current segment differed from the recorded one, or none was recorded:
                        from this launch on, the launches of the segment are run and recorded */
    /* The error of launches that ax_replay_cut_keep_error has run. A later ax_replay_cut returns it. */
    ax_status deferred_error;
};

/* ---- segments ------------------------------------------------------------------------------------ */

/* Grows the array *memory to at least `need` elements of `size` bytes. */
static ax_status grow(void **memory, size_t *room, size_t need, size_t size)
{
    if (need <= *room)
        return AX_OK;
    size_t more = 2 * need;
    void *larger = realloc(*memory, more * size);
    AX_CHECK(
        larger, AX_ERR_MEMORY,
        "not enough host memory to record kernel launches for CUDA graphs (%zu bytes): runtime.graphs=off "
        "records none",
        more * size);
    *memory = larger;
    *room = more;
    return AX_OK;
}

static ax_status record_launch(segment *s, ax_kernel kernel, const void *args)
{
    size_t bytes = ax_kernel_args_size(kernel);
    void *launches = s->launch, *all = s->args;
    ax_status status = grow(&launches, &s->room, s->n + 1, sizeof *s->launch);
    if (status == AX_OK)
        status = grow(&all, &s->bytes_room, s->bytes + bytes, 1);
    s->launch = launches;
    s->args = all;
    AX_TRY(status);
    memcpy(s->args + s->bytes, args, bytes);
    s->launch[s->n++] = (launch){kernel, s->bytes};
    s->bytes += bytes;
    return AX_OK;
}

static bool matches(const segment *s, size_t i, ax_kernel kernel, const void *args)
{
    return i < s->n && s->launch[i].kernel == kernel &&
           !memcmp(s->args + s->launch[i].args, args, ax_kernel_args_used(kernel));
}

static void drop_graph(const ax_replay *r, segment *s)
{
    if (s->graph)
        r->dev->ops.graph_destroy(r->dev, s->graph);
    s->graph = NULL;
    s->repeats = 0;
}

/* Removes all launches of the segment but the first n. */
static void truncate_segment(const ax_replay *r, segment *s, size_t n)
{
    if (n == s->n)
        return;
    drop_graph(r, s);
    s->bytes = s->launch[n].args;
    s->n = n;
}

static ax_status run_launches(ax_stream *stream, const segment *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        AX_TRY(ax_device_run(stream, s->launch[i].kernel, s->args + s->launch[i].args));
    return AX_OK;
}

/* Tries to capture the segment (a sequence of launches) as a graph, unless it has fewer than MIN_LAUNCHES
 * launches. If the device refuses, the segment has no graph for now. The device may accept it later, so the
 * capture is tried again whenever the number of repeats without a graph, `repeats`, is a power of two. */
static void capture_graph(ax_stream *stream, segment *s)
{
    const ax_device_ops *ops = &stream->dev->ops;
    if (s->n < MIN_LAUNCHES || (s->repeats & (s->repeats - 1)) != 0) {
        s->repeats++;
        return;
    }
    ax_status status = ops->capture_begin(stream);
    if (status == AX_OK) {
        ax_status launched = run_launches(stream, s, s->n);
        status = ops->capture_end(stream, &s->graph);
        if (launched != AX_OK && status == AX_OK) {
            ops->graph_destroy(stream->dev, s->graph);
            s->graph = NULL;
            status = launched;
        }
    }
    s->repeats += status != AX_OK;
    if (status == AX_OK)
        ax_log(AX_LOG_DEBUG, "%s: captured %zu launches as one graph", ops->name, s->n);
    else
        ax_log(AX_LOG_DEBUG,
               "%s: %zu launches run one by one, because they could not be captured as a graph: %s",
               ops->name, s->n, ax_error_message());
}

/* ---- comparing launches with the recorded ones --------------------------------------------------- */

/* Sets *out to segment (sequence of launches) number r->at, to which the next launch belongs. Creates the
 * segment if it does not exist yet. */
static ax_status current_segment(ax_replay *r, segment **out)
{
    if (r->at == r->n) {
        segment *more = realloc(r->segment, (r->n + 1) * sizeof *more);
        AX_CHECK(more, AX_ERR_MEMORY,
                 "not enough host memory to record kernel launches for CUDA graphs: runtime.graphs=off "
                 "records none");
        r->segment = more;
        more[r->n++] = (segment){0};
    }
    *out = &r->segment[r->at];
    return AX_OK;
}

ax_status ax_replay_launch(ax_stream *stream, ax_kernel kernel, const void *args)
{
    ax_replay *r = stream->dev->replay;
    segment *s;
    AX_TRY(current_segment(r, &s));
    if (!r->recording && matches(s, r->deferred, kernel, args)) {
        r->deferred++;
        return AX_OK;
    }
    if (!r->recording) {
        size_t n = r->deferred;
        r->recording = true;
        r->deferred = 0;
        truncate_segment(r, s, n);
        drop_graph(r, s); /* the graph does not contain the launch that is now added */
        AX_TRY(run_launches(stream, s, n));
    }
    AX_TRY(ax_device_run(stream, kernel, args));
    return record_launch(s, kernel, args);
}

static ax_status run_deferred(ax_stream *stream, ax_replay *r)
{
    segment *s = &r->segment[r->at];
    size_t n = r->deferred;
    bool whole = n == s->n;
    r->deferred = 0;
    truncate_segment(r, s, n);
    if (whole && !s->graph)
        capture_graph(stream, s);
    return s->graph ? stream->dev->ops.graph_launch(stream, s->graph) : run_launches(stream, s, n);
}

ax_status ax_replay_cut(ax_stream *stream)
{
    ax_replay *r = stream->dev->replay;
    if (!r || (!r->recording && !r->deferred))
        return r ? r->deferred_error : AX_OK;
    ax_status status = r->recording ? AX_OK : run_deferred(stream, r);
    r->recording = false;
    r->at++;
    return status == AX_OK ? r->deferred_error : status;
}

void ax_replay_cut_keep_error(ax_device *dev)
{
    ax_stream stream = {.dev = dev};
    ax_status status = ax_replay_cut(&stream);
    if (dev->replay)
        dev->replay->deferred_error = status;
}

/* ---- public functions ---------------------------------------------------------------------------- */

ax_status ax_replay_create(ax_device *dev, ax_replay **out)
{
    const char *graphs;
    *out = NULL;
    AX_TRY(ax_runtime_get(AX_RUNTIME_GRAPHS, &graphs));
    AX_TRY(ax_calloc(1, sizeof **out, out));
    (*out)->dev = dev;
    (*out)->disabled = !strcmp(graphs, "off");
    return AX_OK;
}

void ax_replay_destroy(ax_replay **replay)
{
    ax_replay *r = *replay;
    if (!r)
        return;
    for (size_t i = 0; i < r->n; i++) {
        drop_graph(r, &r->segment[i]);
        free(r->segment[i].launch);
        free(r->segment[i].args);
    }
    free(r->segment);
    free(r);
    *replay = NULL;
}

ax_status ax_replay_begin(ax_stream *stream, ax_replay *replay)
{
    ax_device *dev = stream->dev;
    AX_ASSERT(!dev->replay && replay->dev == dev);
    if (replay->disabled || !dev->ops.capture_begin || dev->heard & (AX_ON_TIME | AX_ON_ACTIVITY))
        return AX_OK;
    replay->at = replay->deferred = 0;
    replay->deferred_error = AX_OK;
    replay->recording = false;
    dev->replay = replay;
    return AX_OK;
}

ax_status ax_replay_end(ax_stream *stream, ax_status status)
{
    if (status == AX_OK)
        status = ax_replay_cut(stream);
    stream->dev->replay = NULL;
    return status;
}
