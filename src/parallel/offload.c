/* Offloaded state: the order of the matrices in the store, and the ring of buckets through which the state
 * passes to the device that updates, and back (arXiv 2110.13005, section on the memory optimization). Read
 * offload.h first.
 *
 * A bucket waits for nothing but what it needs: its copy to the device for the bucket that was in its slot
 * before, its update for its copy, its copy back for its update. Copies run on the device's copy streams, and
 * the file's thread reads and writes while kernels run. Between file and GPU the host starts each step of a
 * bucket, as soon as it comes by after the step before. */
#include "parallel/offload.h"

#include <stdlib.h>

const char *ax_offload_place_name(ax_offload_place place)
{
    static const char *const names[] = {"none", "host", "file"};
    return names[place];
}

ax_status ax_offload_resolve(const char *device, ax_offload *by)
{
    bool access;
    if (by->memory == AX_OFFLOAD_BY_DEVICE) {
        AX_TRY(ax_device_name_host_access(device, &access));
        by->memory = access ? AX_OFFLOAD_SHARED : AX_OFFLOAD_DISCRETE;
    }
    if (by->update == AX_OFFLOAD_AUTO)
        by->update = by->memory == AX_OFFLOAD_SHARED ? AX_OFFLOAD_ON_HOST : AX_OFFLOAD_ON_DEVICE;
    if (!by->bucket)
        by->bucket = AX_OFFLOAD_BUCKET;
    return AX_OK;
}

bool ax_offload_host_carries(const ax_offload *by) { return by->memory == AX_OFFLOAD_SHARED; }

/* ---- settings ------------------------------------------------------------------------------------ */

/* Returns true if the context's device can use the store itself. */
static bool is_in_place(const ax_offload *by)
{
    return by->optimizer == AX_OFFLOAD_HOST && by->update == AX_OFFLOAD_ON_HOST &&
           by->memory != AX_OFFLOAD_DISCRETE;
}

int64_t ax_offload_chunk(const ax_param_set *set)
{
    const struct ax_offload_state *o = set->offload;
    int64_t elements;
    if (!o || is_in_place(&o->by) || !o->by.chunk)
        return 0;
    return __builtin_mul_overflow(ax_round_up(o->by.bucket, AX_UPDATE_UNIT), o->by.chunk, &elements)
               ? INT64_MAX
               : elements;
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

static ax_status create_state(ax_param_set *set)
{
    struct ax_offload_state *o;
    AX_TRY(ax_calloc(1, sizeof *o, &o));
    set->offload = o;
    o->ctx = set->ctx;
    o->dtype = set->ctx->accum;
    o->by = set->ctx->parallel.offload;
    /* A plan, made on the device dry, has resolved what follows from the device of the real run. */
    bool planned = set->ctx->dev->ops.imaginary && o->by.update != AX_OFFLOAD_AUTO;
    return planned ? AX_OK : ax_offload_resolve(set->ctx->dev->ops.name, &o->by);
}

ax_status ax_offload_lay_out(ax_param_set *set)
{
    if (set->ctx->parallel.offload.optimizer == AX_OFFLOAD_NONE || set->moments < 0)
        return AX_OK;
    AX_TRY(create_state(set));
    struct ax_offload_state *o = set->offload;
    const int end = AX_STATE_MOMENT + set->moments;
    for (int i = 0; i < set->n; i++) {
        ax_param *p = set->param[i];
        p->live->offloaded = o->elements;
        if (!ax_offload_has(p))
            continue;
        /* In fp32 pruned matrices have an array more than others. */
        o->first = o->arrays ? (int)ax_min(o->first, first_array(p)) : first_array(p);
        o->arrays = end - o->first;
        o->grad_size = ax_dtype_size(p->grad.dtype);
        o->weight_size = ax_dtype_size(p->rounded.dtype);
        for (int k = first_array(p); k < end; k++)
            p->state[k].offload = o;
        /* With the padding of collectives, matrices begin alike on all ranks that gather them together. An
         * empty box has a place, too, so that a rank with matrices has a store. */
        o->elements += ax_round_up(ax_max(ax_param_wire_room(set->ctx, p, &p->grad), 1), AX_UPDATE_UNIT);
    }
    for (int i = 0; i < set->n; i++)
        for (int k = 0; k < AX_STATE_ARRAYS; k++)
            if (set->param[i]->state[k].offload)
                set->param[i]->state[k].at = (k - o->first) * o->elements + set->param[i]->live->offloaded;
    return AX_OK;
}

/* ---- memory -------------------------------------------------------------------------------------- */

static size_t size_of(const struct ax_offload_state *o) { return ax_dtype_size(o->dtype); }

/* Returns true if a cpu device updates for a device with memory of its own. */
static bool is_remote(const struct ax_offload_state *o)
{
    return o->by.update == AX_OFFLOAD_ON_HOST && o->by.memory == AX_OFFLOAD_DISCRETE;
}

static bool in_file(const struct ax_offload_state *o) { return o->by.optimizer == AX_OFFLOAD_FILE; }

/* Returns true if the file's thread cannot access the memory of the device that updates. */
static bool stages(const struct ax_offload_state *o)
{
    return in_file(o) && o->by.memory == AX_OFFLOAD_DISCRETE && !is_remote(o);
}

/* Returns the address of an element of an array in a store that is memory. */
static char *stored(const ax_param_state *s, int64_t first)
{
    return (char *)ax_state_store_memory(s->offload->store) + (size_t)(s->at + first) * size_of(s->offload);
}

/* Returns the bytes of the state in a slot: 0 if the device that updates uses the store. */
static size_t state_bytes(const struct ax_offload_state *o)
{
    return is_remote(o) && !in_file(o) ? 0 : (size_t)(o->arrays * o->bucket) * size_of(o);
}

static size_t slot_bytes(const struct ax_offload_state *o)
{
    return state_bytes(o) + (is_remote(o) ? (size_t)o->bucket * (o->grad_size + o->weight_size) : 0);
}

static ax_status make_slot(struct ax_offload_state *o, ax_offload_slot *s)
{
    ax_device *dev = o->ctx->dev;
    s->bucket = s->fetched = -1;
    AX_TRY(is_remote(o) ? ax_state_store_alloc(dev, slot_bytes(o), &s->data)
                        : ax_ctx_alloc(o->ctx, AX_MEMORY_RING, slot_bytes(o), &s->data));
    if (stages(o))
        AX_TRY(ax_state_store_alloc(dev, slot_bytes(o), &s->staging));
    AX_TRY(ax_stream_event_create(dev, &s->came));
    AX_TRY(ax_stream_event_create(dev, &s->updated));
    return ax_stream_event_create(dev, &s->left);
}

static void free_slot(struct ax_offload_state *o, ax_offload_slot *s)
{
    if (is_remote(o))
        ax_state_store_free(o->ctx->dev, s->data, slot_bytes(o));
    else
        ax_ctx_free(o->ctx, AX_MEMORY_RING, s->data, slot_bytes(o));
    ax_state_store_free(o->ctx->dev, s->staging, slot_bytes(o));
    ax_stream_event_destroy(&s->came);
    ax_stream_event_destroy(&s->updated);
    ax_stream_event_destroy(&s->left);
}

/* Opens the device that updates, if it is not the context's. The plan counts its scratch memory. */
static ax_status find_stream(struct ax_offload_state *o)
{
    const ax_device *dev = o->ctx->dev;
    o->stream = *o->ctx->stream;
    if (!is_remote(o))
        return AX_OK;
    AX_TRY(ax_device_open(dev->ops.imaginary ? "dry" : "cpu", dev->threads, &o->host));
    o->stream = (ax_stream){.dev = o->host};
    return AX_OK;
}

/* Makes the addresses of the state, if the context's device can use the store. */
static void address_store(const ax_param_set *set)
{
    for (int i = 0; i < set->n; i++)
        for (int k = 0; k < AX_STATE_ARRAYS; k++) {
            ax_param_state *s = &set->param[i]->state[k];
            if (s->offload)
                s->data = stored(s, 0);
            s->offload = NULL;
        }
}

static ax_status check_pruned(const ax_param_set *set)
{
    for (int i = 0; i < set->n && is_remote(set->offload); i++)
        AX_CHECK(
            !set->param[i]->mask, AX_ERR_USAGE,
            "%s is a pruned matrix, which the host cannot update for a device with memory of its own: set "
            "offload.update to device",
            set->param[i]->name);
    return AX_OK;
}

ax_status ax_offload_make(ax_param_set *set)
{
    struct ax_offload_state *o = set->offload;
    if (!o || !o->arrays)
        return AX_OK;
    AX_TRY(check_pruned(set));
    size_t *bytes = set->memory.bytes, all = (size_t)(o->arrays * o->elements) * size_of(o);
    AX_TRY(ax_state_store_create(o->ctx->dev, &o->by, all, &o->store));
    bytes[in_file(o) ? AX_MEMORY_FILE : AX_MEMORY_HOST] += all;
    if (is_in_place(&o->by)) {
        address_store(set);
        return AX_OK;
    }
    o->bucket = ax_min(ax_round_up(o->by.bucket, AX_UPDATE_UNIT), o->elements);
    o->buckets = ax_ceil_div(o->elements, o->bucket);
    AX_TRY(find_stream(o));
    for (int slots = (int)ax_min(o->buckets, AX_OFFLOAD_RING); o->slots < slots; o->slots++) {
        AX_TRY(make_slot(o, &o->slot[o->slots]));
        bytes[is_remote(o) ? AX_MEMORY_HOST : AX_MEMORY_RING] += slot_bytes(o);
        bytes[AX_MEMORY_HOST] += stages(o) ? slot_bytes(o) : 0;
    }
    return AX_OK;
}

/* ---- state on its way ---------------------------------------------------------------------------- */

static ax_offload_slot *slot_of(struct ax_offload_state *o, int64_t bucket)
{
    return &o->slot[bucket % o->slots];
}

/* Returns the number of elements of a bucket in each array. */
static int64_t bucket_elements(const struct ax_offload_state *o, int64_t bucket)
{
    return ax_min(o->bucket, o->elements - bucket * o->bucket);
}

/* Fills in the parts of a request that moves a bucket between the store and the slot. */
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

/* Enqueues a copy on the copy stream of a direction. */
static ax_status copy_on(ax_stream *stream, ax_copy_direction direction, void *device, void *host,
                         size_t bytes)
{
    return direction == AX_TO_DEVICE ? ax_copy_in_async(stream, device, host, bytes)
                                     : ax_copy_out_async(stream, host, device, bytes);
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
        void *host = s->staging ? p->memory : (char *)ax_state_store_memory(o->store) + p->at;
        void *device = (char *)s->data + (size_t)(k * o->bucket) * size_of(o);
        AX_TRY(copy_on(&stream, direction, device, host, p->bytes));
    }
    return ax_stream_record(&stream, direction == AX_TO_DEVICE ? s->came : s->left);
}

/* Makes copies that are enqueued on `stream` later wait for what is enqueued on the compute stream. */
static ax_status after_kernels(const struct ax_offload_state *o, const ax_offload_slot *s, ax_stream *stream)
{
    AX_TRY(ax_stream_record(o->ctx->stream, s->updated));
    return ax_stream_await(stream, s->updated);
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

/* Starts to bring the state of a bucket to its slot. */
static ax_status bring(struct ax_offload_state *o, int64_t bucket)
{
    if (bucket >= o->buckets || slot_of(o, bucket)->bucket == bucket)
        return AX_OK;
    ax_offload_slot *s = slot_of(o, bucket);
    AX_TRY(flush(o, s));
    s->bucket = bucket;
    if (!in_file(o))
        return is_remote(o) ? AX_OK : copy_in(o, s);
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
        s->bucket = s->fetched = -1;
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
    ax_device_close(&o->host);
    free(o);
    set->offload = NULL;
}

/* ---- gradients and weights on their way, if the host updates for a GPU ----------------------------- */

/* Enqueues copies between the device and the gradients or weights in a bucket's slot. */
static ax_status copy_parts(const ax_param_set *set, int64_t bucket, bool grads, ax_copy_direction direction)
{
    ax_stream stream = ax_copy_stream(set->ctx->dev, direction);
    for (int i = 0; i < set->n; i++) {
        ax_offload_part part;
        const ax_param *p = set->param[i];
        if (!ax_offload_find(p, bucket, &part))
            continue;
        const ax_tensor *t = grads ? &p->grad : &p->rounded;
        AX_TRY(copy_on(&stream, direction, ax_param_at(t, part.first), grads ? part.grad : part.weights,
                       (size_t)part.n * ax_dtype_size(t->dtype)));
    }
    return AX_OK;
}

/* Enqueues the copies of a bucket's gradients to its slot; also of the weights, if these are the master
 * weights. */
static ax_status fetch_grads(ax_param_set *set, int64_t bucket)
{
    struct ax_offload_state *o = set->offload;
    if (bucket >= o->buckets || slot_of(o, bucket)->fetched == bucket)
        return AX_OK;
    ax_offload_slot *s = slot_of(o, bucket);
    ax_stream out = ax_copy_stream(o->ctx->dev, AX_TO_HOST);
    s->fetched = bucket;
    AX_TRY(after_kernels(o, s, &out)); /* also after the weights of the slot's last bucket have left */
    AX_TRY(copy_parts(set, bucket, true, AX_TO_HOST));
    if (o->first != AX_STATE_MASTER)
        AX_TRY(copy_parts(set, bucket, false, AX_TO_HOST));
    return ax_stream_record(&out, s->came);
}

/* Enqueues the way back of the weights that the host has updated, after kernels that read the old ones. */
static ax_status return_weights(ax_param_set *set, int64_t bucket)
{
    struct ax_offload_state *o = set->offload;
    ax_offload_slot *s = slot_of(o, bucket);
    ax_stream in = ax_copy_stream(o->ctx->dev, AX_TO_DEVICE);
    s->fetched = -1;
    AX_TRY(after_kernels(o, s, &in));
    AX_TRY(copy_parts(set, bucket, false, AX_TO_DEVICE));
    AX_TRY(ax_stream_record(&in, s->left));
    return ax_stream_await(o->ctx->stream, s->left);
}

/* ---- buckets ------------------------------------------------------------------------------------- */

int64_t ax_offload_buckets(const ax_param_set *set) { return set->offload ? set->offload->buckets : 0; }

size_t ax_offload_bytes(const ax_param_set *set)
{
    const struct ax_offload_state *o = set->offload;
    return o ? (size_t)(o->arrays * o->elements) * size_of(o) : 0;
}

int ax_offload_slots(const ax_param_set *set, int64_t *elements)
{
    *elements = set->offload ? set->offload->bucket : 0;
    return set->offload ? set->offload->slots : 0;
}

int64_t ax_offload_begin_of(const ax_param_set *set, int64_t bucket)
{
    return bucket < ax_offload_buckets(set) ? bucket * set->offload->bucket : -1;
}

bool ax_param_is_bucketed(const ax_param *p) { return ax_offload_buckets(p->set) && ax_offload_has(p); }

int64_t ax_offload_last(const ax_param *p)
{
    int64_t buckets = ax_offload_buckets(p->set), mine = p->live->offloaded;
    if (!buckets)
        return -1;
    /* The gradient of a parameter without state here, the last stage's copy of a tied table, is ready no
     * earlier than with the bucket that has the element after it (ax_param_set_reduce). */
    int64_t last = ax_offload_has(p) ? mine + ax_param_wire_room(p->set->ctx, p, &p->grad) - 1 : mine;
    return ax_min(last / p->set->offload->bucket, buckets - 1);
}

bool ax_offload_find(const ax_param *p, int64_t bucket, ax_offload_part *out)
{
    struct ax_offload_state *o = p->set->offload;
    int64_t begin = bucket * o->bucket, mine = p->live->offloaded, lo = ax_max(mine, begin),
            hi = ax_min(mine + p->state[AX_STATE_MASTER].n, begin + o->bucket);
    if (!ax_offload_has(p) || lo >= hi)
        return false;
    *out = (ax_offload_part){.first = lo - mine, .n = hi - lo};
    char *state = slot_of(o, bucket)->data, *grads = state + state_bytes(o),
         *weights = grads + (size_t)o->bucket * o->grad_size;
    for (int k = first_array(p); k < o->first + o->arrays; k++)
        out->state[k] = state_bytes(o)
                            ? state + (size_t)((k - o->first) * o->bucket + lo - begin) * size_of(o)
                            : stored(&p->state[k], out->first);
    out->grad =
        is_remote(o) ? grads + (size_t)(lo - begin) * o->grad_size : ax_param_at(&p->grad, out->first);
    if (p->mask) /* ax_param_expand writes the weights */
        return true;
    out->weights =
        is_remote(o) ? weights + (size_t)(lo - begin) * o->weight_size : ax_param_at(&p->rounded, out->first);
    return true;
}

ax_stream *ax_offload_stream(const ax_param_set *set)
{
    return ax_offload_buckets(set) ? &set->offload->stream : set->ctx->stream;
}

ax_status ax_offload_reduce(ax_param_set *set, int64_t bucket)
{
    const struct ax_offload_state *o = set->offload;
    if (bucket < 0)
        return ax_param_set_reduce(set, AX_ALL_BUCKETS, AX_ALL_BUCKETS);
    int64_t k = ax_min(o->by.chunk, o->buckets), ahead = is_remote(o); /* ax_offload_acquire copies the next
                                                                          bucket's gradients, too */
    return ax_param_set_reduce(set, (bucket / k + 2) * k, bucket + 1 + ahead);
}

ax_status ax_offload_acquire(ax_param_set *set, int64_t bucket)
{
    struct ax_offload_state *o = set->offload;
    ax_offload_slot *s = slot_of(o, bucket);
    AX_TRY(bring(o, bucket));
    AX_TRY(ax_state_store_wait(o->store, &s->in));
    if (!is_remote(o)) {
        if (s->staging)
            AX_TRY(copy_in(o, s));
        return ax_stream_await(o->ctx->stream, s->came);
    }
    AX_TRY(fetch_grads(set, bucket));
    if (o->slots > 1) /* they come while the host updates this bucket */
        AX_TRY(fetch_grads(set, bucket + 1));
    return ax_stream_event_wait(s->came);
}

ax_status ax_offload_release(ax_param_set *set, int64_t bucket)
{
    struct ax_offload_state *o = set->offload;
    ax_offload_slot *s = slot_of(o, bucket);
    ax_stream out = ax_copy_stream(o->ctx->dev, AX_TO_HOST);
    if (in_file(o)) {
        AX_TRY(ax_state_store_wait(o->store, &s->out)); /* it is done, but may have failed */
        list_parts(o, s, true, &s->out);
    }
    s->leaves = s->staging;
    if (is_remote(o)) {
        AX_TRY(return_weights(set, bucket));
    } else if (!in_file(o) || s->leaves) {
        AX_TRY(after_kernels(o, s, &out));
        AX_TRY(copy_bucket(o, s, AX_TO_HOST));
    }
    if (in_file(o) && !s->leaves) {
        AX_TRY(ax_stream_wait(&o->stream));
        ax_state_store_start(o->store, &s->out);
    }
    s->bucket = -1;
    /* The slot of the bucket before is next: this one's has still to be updated and to leave. */
    return bucket ? bring(o, bucket - 1 + o->slots) : AX_OK;
}

/* ---- piece by piece ------------------------------------------------------------------------------ */

int64_t ax_offload_piece(const ax_param_state *s)
{
    const struct ax_offload_state *o = s->offload;
    return is_remote(o) ? o->bucket
                        : o->arrays * o->bucket; /* ax_offload_round needs room for weights, too */
}

ax_status ax_offload_room(const ax_param_state *s, int64_t first, void **out)
{
    *out = state_bytes(s->offload) ? s->offload->slot[0].data : stored(s, first);
    return settle(s->offload);
}

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
    if (!state_bytes(o))
        return AX_OK;
    char *host = memory ? memory + at : o->slot[0].staging;
    if (!host)
        return ax_state_store_move(o->store, write, at, bytes, device);
    if (write)
        AX_TRY(ax_copy_out(o->ctx->stream, host, device, bytes));
    if (!memory)
        AX_TRY(ax_state_store_move(o->store, write, at, bytes, host));
    return write ? AX_OK : ax_copy_in(o->ctx->stream, device, host, bytes);
}

ax_status ax_offload_fetch(const ax_param_state *s, int64_t first, int64_t n)
{
    return move_piece(s, false, first, n);
}

ax_status ax_offload_put(const ax_param_state *s, int64_t first, int64_t n)
{
    return move_piece(s, true, first, n);
}

ax_status ax_offload_round(const ax_param_state *s, int64_t first, int64_t n, const ax_tensor *to)
{
    struct ax_offload_state *o = s->offload;
    char *target = ax_param_at(to, first), *mine = (char *)o->slot[0].data + state_bytes(o);
    void *room;
    AX_TRY(ax_offload_fetch(s, first, n));
    AX_TRY(ax_offload_room(s, first, &room));
    AX_TRY(ax_run_convert(&o->stream, &(ax_convert_args){.n = n,
                                                         .x = room,
                                                         .y = is_remote(o) ? mine : target,
                                                         .x_dtype = s->dtype,
                                                         .y_dtype = to->dtype}));
    AX_TRY(ax_stream_wait(&o->stream)); /* the first bucket may come to the slot next, on a copy stream */
    return is_remote(o) ? ax_copy_in(o->ctx->stream, target, mine, (size_t)n * ax_dtype_size(to->dtype))
                        : AX_OK;
}
