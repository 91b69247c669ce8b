/* Offloaded state: the order of the matrices in the store, and the ring of buckets through which the state
 * passes to the device and back (arXiv 2110.13005, section on the memory optimization). Read offload.h first.
 *
 * A bucket waits for nothing but what it needs: its copy to the device for the bucket that was in its slot
 * before, its update for its copy, its copy back for its update. Copies run on the device's copy streams, and
 * the file's thread reads and writes while kernels run. Between file and device the host starts each step of
 * a bucket, as soon as it comes by after the step before. */
#include "parallel/offload.h"

#include <stdlib.h>

ax_status ax_offload_resolve(const char *device, ax_offload *by)
{
    bool access;
    AX_TRY(ax_device_name_host_access(device, &access));
    by->discrete = !access;
    if (by->update == AX_OFFLOAD_AUTO)
        by->update = access ? AX_OFFLOAD_ON_HOST : AX_OFFLOAD_ON_DEVICE;
    if (!by->bucket)
        by->bucket = AX_OFFLOAD_BUCKET;
    return AX_OK;
}

/* ---- order --------------------------------------------------------------------------------------- */

bool ax_offload_has(const ax_param *p)
{
    return p->set->ctx->parallel.offload.optimizer != AX_OFFLOAD_NONE && ax_param_trains(p) &&
           ax_param_is_owned(p) && p->rest.ndim >= 2;
}

/* Returns the first array of p's state that only updates read: the master weights, unless kernels read them.
 */
static int first_array(const ax_param *p) { return ax_param_rounds(p) ? AX_STATE_MASTER : AX_STATE_MOMENT; }

ax_status ax_offload_lay_out(ax_param_set *set)
{
    struct ax_offload_state *o;
    ax_offload by = set->ctx->parallel.offload;
    if (by.optimizer == AX_OFFLOAD_NONE || set->moments < 0)
        return AX_OK;
    AX_TRY(ax_calloc(1, sizeof *o, &set->offload));
    o = set->offload;
    o->ctx = set->ctx;
    if (by.update == AX_OFFLOAD_AUTO)
        AX_TRY(ax_offload_resolve(set->ctx->dev->ops.name, &by));
    o->by = by;
    o->dtype = set->ctx->accum;
    for (int i = 0; i < set->n; i++) {
        ax_param *p = set->param[i];
        p->live->offloaded = o->elements;
        if (!ax_offload_has(p))
            continue;
        o->first = first_array(p);
        for (int k = o->first; k < AX_STATE_MOMENT + set->moments; k++)
            p->state[k].offload = o;
        o->elements += ax_round_up(p->state[AX_STATE_MASTER].n, AX_UPDATE_UNIT);
    }
    o->arrays = o->elements ? AX_STATE_MOMENT + set->moments - o->first : 0;
    for (int i = 0; i < set->n; i++)
        for (int k = 0; k < AX_STATE_ARRAYS; k++)
            if (set->param[i]->state[k].offload)
                set->param[i]->state[k].at = (k - o->first) * o->elements + set->param[i]->live->offloaded;
    return AX_OK;
}

/* ---- memory -------------------------------------------------------------------------------------- */

static size_t size_of(const struct ax_offload_state *o) { return ax_dtype_size(o->dtype); }

static size_t slot_bytes(const struct ax_offload_state *o)
{
    return (size_t)(o->arrays * o->bucket) * size_of(o);
}

/* Returns true if the file's thread cannot access the memory of the device. */
static bool stages(const struct ax_offload_state *o)
{
    return o->by.optimizer == AX_OFFLOAD_FILE && o->by.discrete;
}

static ax_status make_slot(struct ax_offload_state *o, ax_offload_slot *s)
{
    s->bucket = -1;
    AX_TRY(ax_ctx_alloc(o->ctx, slot_bytes(o), &s->data));
    if (stages(o))
        AX_TRY(ax_state_store_alloc(o->ctx->dev, slot_bytes(o), &s->staging));
    AX_TRY(ax_stream_event_create(o->ctx->dev, &s->came));
    AX_TRY(ax_stream_event_create(o->ctx->dev, &s->updated));
    return ax_stream_event_create(o->ctx->dev, &s->left);
}

static void free_slot(struct ax_offload_state *o, ax_offload_slot *s)
{
    ax_ctx_free(o->ctx, s->data, slot_bytes(o));
    ax_state_store_free(o->ctx->dev, s->staging, slot_bytes(o));
    ax_stream_event_destroy(&s->came);
    ax_stream_event_destroy(&s->updated);
    ax_stream_event_destroy(&s->left);
}

/* Makes the addresses of the state, if the device that updates can use the store itself. */
static void address_store(const ax_param_set *set)
{
    const struct ax_offload_state *o = set->offload;
    for (int i = 0; i < set->n; i++)
        for (int k = 0; k < AX_STATE_ARRAYS; k++) {
            ax_param_state *s = &set->param[i]->state[k];
            if (s->offload)
                s->data = (char *)ax_state_store_memory(o->store) + (size_t)s->at * size_of(o);
            s->offload = NULL;
        }
}

ax_status ax_offload_make(ax_param_set *set)
{
    struct ax_offload_state *o = set->offload;
    if (!o || !o->arrays)
        return AX_OK;
    size_t bytes = (size_t)(o->arrays * o->elements) * size_of(o);
    bool in_file = o->by.optimizer == AX_OFFLOAD_FILE;
    AX_TRY(ax_state_store_create(o->ctx->dev, &o->by, bytes, &o->store));
    set->memory.bytes[in_file ? AX_MEMORY_FILE : AX_MEMORY_HOST] += bytes;
    if (!in_file && o->by.update == AX_OFFLOAD_ON_HOST) {
        address_store(set);
        return AX_OK;
    }
    o->bucket = ax_min(ax_round_up(o->by.bucket, AX_UPDATE_UNIT), o->elements);
    o->buckets = ax_ceil_div(o->elements, o->bucket);
    int slots = (int)ax_min(o->buckets, AX_OFFLOAD_RING);
    for (; o->slots < slots; o->slots++)
        AX_TRY(make_slot(o, &o->slot[o->slots]));
    set->memory.bytes[AX_MEMORY_RING] += (size_t)slots * slot_bytes(o);
    set->memory.bytes[AX_MEMORY_HOST] += stages(o) ? (size_t)slots * slot_bytes(o) : 0;
    return AX_OK;
}

/* ---- a bucket on its way ------------------------------------------------------------------------- */

static ax_offload_slot *slot_of(struct ax_offload_state *o, int64_t bucket)
{
    return &o->slot[bucket % o->slots];
}

/* Returns the number of elements of a bucket in each array. */
static int64_t bucket_elements(const struct ax_offload_state *o, int64_t bucket)
{
    return ax_min(o->bucket, o->elements - bucket * o->bucket);
}

/* Fills in the parts of a request that moves a bucket between the file and the slot. */
static void list_parts(const struct ax_offload_state *o, const ax_offload_slot *s, bool write,
                       ax_state_store_request *r)
{
    char *memory = s->staging ? s->staging : s->data;
    r->write = write;
    r->parts = o->arrays;
    for (int k = 0; k < o->arrays; k++)
        r->part[k] = (ax_state_store_part){
            .at = (size_t)(k * o->elements + s->bucket * o->bucket) * size_of(o),
            .bytes = (size_t)bucket_elements(o, s->bucket) * size_of(o),
            .memory = memory + (size_t)(k * o->bucket) * size_of(o),
        };
}

/* Enqueues copies of the bucket in slot s between the device and pinned memory, which is the store or the
 * slot's staging memory. */
static ax_status copy_bucket(const struct ax_offload_state *o, const ax_offload_slot *s,
                             ax_copy_direction direction)
{
    ax_stream stream = ax_copy_stream(o->ctx->dev, direction);
    ax_state_store_request parts;
    list_parts(o, s, false, &parts);
    for (int k = 0; k < o->arrays; k++) {
        const ax_state_store_part *p = &parts.part[k];
        char *host = s->staging ? p->memory : (char *)ax_state_store_memory(o->store) + p->at;
        void *device = (char *)s->data + (size_t)(k * o->bucket) * size_of(o);
        AX_TRY(direction == AX_TO_DEVICE ? ax_copy_in_async(&stream, device, host, p->bytes)
                                         : ax_copy_out_async(&stream, host, device, p->bytes));
    }
    return ax_stream_record(&stream, direction == AX_TO_DEVICE ? s->came : s->left);
}

/* Starts to write what has left the slot to the file, after its copy to the staging memory. */
static ax_status flush(struct ax_offload_state *o, ax_offload_slot *s)
{
    if (!s->leaves)
        return AX_OK;
    s->leaves = false;
    AX_TRY(ax_stream_event_wait(s->left));
    ax_state_store_start(o->store, &s->out);
    return AX_OK;
}

/* Enqueues the copy of a bucket to the device, after the bucket before has left the slot. */
static ax_status copy_in(struct ax_offload_state *o, ax_offload_slot *s)
{
    ax_stream in = ax_copy_stream(o->ctx->dev, AX_TO_DEVICE);
    AX_TRY(ax_stream_await(&in, s->left));
    return copy_bucket(o, s, AX_TO_DEVICE);
}

/* Starts to bring a bucket to its slot. */
static ax_status bring(struct ax_offload_state *o, int64_t bucket)
{
    ax_offload_slot *s = slot_of(o, bucket);
    if (bucket >= o->buckets || s->bucket == bucket)
        return AX_OK;
    AX_TRY(flush(o, s));
    s->bucket = bucket;
    if (o->by.optimizer != AX_OFFLOAD_FILE)
        return copy_in(o, s);
    AX_TRY(ax_state_store_wait(o->store, &s->in));
    list_parts(o, s, false, &s->in);
    ax_state_store_start(o->store, &s->in);
    return AX_OK;
}

ax_status ax_offload_begin(ax_param_set *set)
{
    struct ax_offload_state *o = set->offload;
    for (int64_t b = 0; o && b < o->slots; b++)
        AX_TRY(bring(o, b));
    return AX_OK;
}

ax_status ax_offload_acquire(ax_param_set *set, int64_t bucket)
{
    struct ax_offload_state *o = set->offload;
    ax_offload_slot *s = slot_of(o, bucket);
    AX_TRY(bring(o, bucket));
    AX_TRY(ax_state_store_wait(o->store, &s->in));
    if (s->staging)
        AX_TRY(copy_in(o, s));
    return ax_stream_await(o->ctx->stream, s->came);
}

ax_status ax_offload_release(ax_param_set *set, int64_t bucket)
{
    struct ax_offload_state *o = set->offload;
    ax_offload_slot *s = slot_of(o, bucket);
    bool file = o->by.optimizer == AX_OFFLOAD_FILE;
    if (file) {
        AX_TRY(ax_state_store_wait(o->store, &s->out));
        list_parts(o, s, true, &s->out);
    }
    if (!file || s->staging) {
        ax_stream out = ax_copy_stream(o->ctx->dev, AX_TO_HOST);
        AX_TRY(ax_stream_record(o->ctx->stream, s->updated));
        AX_TRY(ax_stream_await(&out, s->updated));
        AX_TRY(copy_bucket(o, s, AX_TO_HOST));
    } else {
        AX_TRY(ax_stream_wait(o->ctx->stream));
        ax_state_store_start(o->store, &s->out);
    }
    s->leaves = s->staging;
    s->bucket = -1;
    /* The slot of the bucket before is next: this one's has still to be updated and to leave. */
    return bucket ? bring(o, bucket - 1 + o->slots) : AX_OK;
}

/* Waits until all state is in the store, and forgets what was brought to the slots. */
static ax_status settle(struct ax_offload_state *o)
{
    for (int i = 0; i < o->slots; i++) {
        ax_offload_slot *s = &o->slot[i];
        AX_TRY(flush(o, s));
        AX_TRY(ax_state_store_wait(o->store, &s->in));
        AX_TRY(ax_state_store_wait(o->store, &s->out));
        AX_TRY(ax_stream_event_wait(s->left));
        AX_TRY(ax_stream_event_wait(s->came));
        s->bucket = -1;
    }
    return AX_OK;
}

void ax_offload_free(ax_param_set *set)
{
    struct ax_offload_state *o = set->offload;
    if (!o)
        return;
    ax_status ignored = settle(o); /* ax_param_set_destroy returns no status */
    (void)ignored;
    for (int i = 0; i < (int)AX_COUNT(o->slot); i++)
        free_slot(o, &o->slot[i]);
    ax_state_store_destroy(&o->store);
    free(o);
    set->offload = NULL;
}

/* ---- parts of parameters ------------------------------------------------------------------------- */

int64_t ax_offload_buckets(const ax_param_set *set) { return set->offload ? set->offload->buckets : 0; }

bool ax_param_is_bucketed(const ax_param *p) { return ax_offload_buckets(p->set) && ax_offload_has(p); }

/* Returns where the state of p ends among the offloaded elements; where that of its predecessors ends, if p
 * has none. */
static int64_t end_of(const ax_param *p)
{
    return p->live->offloaded + (ax_offload_has(p) ? p->state[AX_STATE_MASTER].n : 0);
}

int64_t ax_offload_last(const ax_param *p)
{
    return ax_offload_buckets(p->set) ? ax_ceil_div(end_of(p), p->set->offload->bucket) - 1 : -1;
}

bool ax_offload_find(const ax_param *p, int64_t bucket, ax_offload_part *out)
{
    struct ax_offload_state *o = p->set->offload;
    int64_t begin = bucket * o->bucket, lo = ax_max(p->live->offloaded, begin),
            hi = ax_min(end_of(p), begin + o->bucket);
    if (!ax_offload_has(p) || lo >= hi)
        return false;
    *out = (ax_offload_part){.first = lo - p->live->offloaded, .n = hi - lo};
    for (int k = 0; k < o->arrays; k++)
        out->state[o->first + k] =
            (char *)slot_of(o, bucket)->data + (size_t)(k * o->bucket + lo - begin) * size_of(o);
    return true;
}

/* ---- piece by piece ------------------------------------------------------------------------------ */

int64_t ax_offload_piece(const ax_param_state *s) { return s->offload->arrays * s->offload->bucket; }
void *ax_offload_room(const ax_param_state *s) { return s->offload->slot[0].data; }

ax_status ax_offload_move(const ax_param_state *s, bool write, int64_t first, int64_t n, void *host)
{
    struct ax_offload_state *o = s->offload;
    AX_TRY(settle(o));
    return ax_state_store_move(o->store, write, (size_t)(s->at + first) * size_of(o), (size_t)n * size_of(o),
                               host);
}

/* Moves n elements between the store and the first slot, through the slot's staging memory if it has some. */
static ax_status move_piece(const ax_param_state *s, bool write, int64_t first, int64_t n)
{
    struct ax_offload_state *o = s->offload;
    size_t at = (size_t)(s->at + first) * size_of(o), bytes = (size_t)n * size_of(o);
    char *memory = ax_state_store_memory(o->store), *device = o->slot[0].data;
    AX_TRY(settle(o));
    char *host = memory ? memory + at : o->slot[0].staging;
    if (!host)
        return ax_state_store_move(o->store, write, at, bytes, device);
    if (write)
        AX_TRY(ax_copy_out(o->ctx->stream, host, device, bytes));
    if (!memory)
        AX_TRY(ax_state_store_move(o->store, write, at, bytes, host));
    return write ? AX_OK : ax_copy_in(o->ctx->stream, device, host, bytes);
}

ax_status ax_offload_fetch(const ax_param_state *s, int64_t first, int64_t n, void **out)
{
    *out = ax_offload_room(s);
    return move_piece(s, false, first, n);
}

ax_status ax_offload_put(const ax_param_state *s, int64_t first, int64_t n)
{
    return move_piece(s, true, first, n);
}
