/* Segments: parts of forward that backward runs again (ax_recompute), and the results of collectives that the
 * second run takes from the first (parallel.keep_results). Read include/axonn/tensor.h ("segments") first.
 *
 * A segment has a list in the order of its first run. An item is a result, or a note that an operation has
 * changed a result in place. The result's memory then holds the changed values, so the second run must not
 * change them again. Both runs do the same, so the second run meets the items in the same order.
 *
 * Items are compared by address. That is exact because results stay: a dry run counts the taking of an item
 * as a use of its memory, so no other allocation has this memory between the two runs. */
#include "tensor/frame.h"

#include <string.h>

typedef struct item {
    ax_tensor tensor;
    bool change; /* an operation has changed `tensor`, an earlier result, in place; false: a result */
    struct item *next;
} item;

struct ax_frame_segment {
    item *first, *last; /* `first` is NULL if the list is empty, or if the second run has taken all of it */
    ax_frame_segment *before; /* the segment whose first run came before this one's */
};

static ax_status append(ax_frame *frame, const ax_tensor *tensor, bool change)
{
    ax_frame_segment *s = frame->run.keeps;
    item *new;
    AX_TRY(ax_frame_host(frame, sizeof *new, (void **)&new));
    *new = (item){.tensor = *tensor, .change = change};
    if (s->first)
        s->last->next = new;
    else
        s->first = new;
    s->last = new;
    return AX_OK;
}

/* Starts the list of a segment whose first run begins. */
static ax_status add_segment(ax_frame *frame)
{
    ax_frame_segment *s;
    AX_TRY(ax_frame_host(frame, sizeof *s, (void **)&s));
    s->before = frame->segments;
    frame->segments = frame->run.keeps = s;
    return AX_OK;
}

ax_status ax_frame_begin_segment(ax_frame *frame, bool again, ax_frame_run *before)
{
    *before = frame->run;
    frame->run.saving = again;
    if (!frame->ctx->parallel.keep_results)
        return AX_OK;
    if (!again)
        return before->saving ? add_segment(frame) : AX_OK;
    AX_CHECK(frame->segments, AX_ERR_INTERNAL,
             "backward runs more segments again than forward has run: run forward in training mode on this "
             "frame");
    frame->run.takes = frame->segments;
    frame->segments = frame->segments->before;
    return AX_OK;
}

ax_status ax_frame_end_segment(ax_frame *frame, const ax_frame_run *before)
{
    const ax_frame_segment *took = frame->run.takes != before->takes ? frame->run.takes : NULL;
    AX_CHECK(!took || !took->first, AX_ERR_INTERNAL,
             "the second run of a segment has fewer collectives than the first: both must do the same");
    frame->run = *before;
    return AX_OK;
}

bool ax_frame_takes(const ax_frame *frame) { return frame->run.takes; }

ax_status ax_frame_keep(ax_frame *frame, const ax_tensor *result)
{
    return frame->run.keeps ? append(frame, result, false) : AX_OK;
}

/* Removes the first item from the list of the segment that runs again. Its memory is in use until now. */
static void remove_first(ax_frame *frame)
{
    ax_frame_segment *s = frame->run.takes;
    ax_frame_use(frame, s->first->tensor.data);
    s->first = s->first->next;
}

ax_status ax_frame_take(ax_frame *frame, const ax_tensor *like, ax_tensor *result, bool *taken)
{
    *taken = ax_frame_takes(frame);
    if (!*taken)
        return AX_OK;
    const item *first = frame->run.takes->first;
    AX_CHECK(first && !first->change && first->tensor.dtype == like->dtype &&
                 first->tensor.ndim == like->ndim &&
                 !memcmp(first->tensor.dim, like->dim, (size_t)like->ndim * sizeof *like->dim),
             AX_ERR_INTERNAL,
             "the second run of a segment has other collectives than the first: both must do the same");
    *result = first->tensor;
    remove_first(frame);
    return ax_frame_keep(frame, result);
}

/* Returns true if x is a result that the running segment keeps. */
static bool is_kept(const ax_frame *frame, const ax_tensor *x)
{
    const item *i = frame->run.keeps ? frame->run.keeps->first : NULL;
    while (i && (i->change || i->tensor.data != x->data))
        i = i->next;
    return i;
}

ax_status ax_frame_change(ax_frame *frame, const ax_tensor *x, bool *changed)
{
    const item *first = frame->run.takes ? frame->run.takes->first : NULL;
    *changed = first && first->change && first->tensor.data == x->data;
    if (*changed)
        remove_first(frame);
    return is_kept(frame, x) ? append(frame, x, true) : AX_OK;
}
