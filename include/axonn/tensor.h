/* tensor: distributed arrays (PyTorch: DTensor), and frames, the activation memory of one micro-batch.
 *
 * A tensor is a view: dtype, global extents, layout and a pointer to this rank's local values. Copying the
 * struct makes another view; there is no reference count. The layout says which dims are split along which
 * grid axes (PyTorch: Shard), and along which axes the local values are partial sums (PyTorch: Partial). No
 * other data structure holds this information.
 *
 * The split rule. A dim of extent n and unit u has ceil(n/u) units. Each axis on the dim, major first, splits
 * the units that the earlier axes gave to the rank. It splits them into balanced runs: the sizes of the runs
 * differ by at most one, larger ones first (9 units over 4 ranks are 3,2,2,2). The last `fine` axes of a dim
 * are for the layouts in which parameters are stored between uses. Fine axes split elements instead of units:
 * n elements over g ranks into chunks of ceil(n/g), the last of which may be shorter or empty (9 elements
 * over 4 ranks are 3,3,3,0). So each nonempty part begins at a multiple of the chunk size within the n
 * elements, and collectives send and receive the parts without packing. Empty boxes are legal. A rank stores
 * its part of the array, the local box, row-major. The rows of the box are dense unless the tensor has
 * `align`: logits have it, and so have tensors that lie beside each other (ax_frame_alloc_beside). Padding to
 * chunks of equal size exists only in the buffers of collectives and after the end of a parameter's local
 * box. */
#ifndef AXONN_TENSOR_H
#define AXONN_TENSOR_H

#include "axonn/grid.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    AX_MAX_DIMS = 4,   /* dims of a tensor */
    AX_LAYOUT_AXES = 8 /* axes of a layout, over all its dims */
};

/* The axes that split one dim, in order, major first; `n` is their number. The last `fine` of these axes
 * split the dim by elements. The others split it by units: groups of elements that stay together, such as a
 * head. */
typedef struct ax_axes {
    uint8_t n, fine;
    ax_axis a[AX_LAYOUT_AXES];
} ax_axes;

/* A layout: the axes that split each dim, and the set `partial` of axes along which local values are partial
 * sums. An axis appears at most once, in `partial` or on a dim. An axis and one of its factors
 * (ax_grid_factor) may not both appear. A layout of zeros means that every rank holds the whole tensor. */
typedef struct ax_layout {
    ax_axes dim[AX_MAX_DIMS];
    ax_axisset partial;
} ax_layout;

/* The largest number of tensors whose rows one array can hold side by side (ax_frame_alloc_beside). */
enum { AX_BESIDE = 3 };

/* ax_tensor.align of logits, in bytes: cuBLAS GEMMs are slow if rows of bf16 begin at odd element offsets. */
enum { AX_ROW_ALIGN = 128 };

typedef struct ax_tensor {
    ax_dtype dtype;
    uint32_t align; /* local rows (along the last dim) are padded to a multiple of `align` bytes; 0: dense */
    uint32_t spare; /* number of rows of zeros in memory after the last row of a matrix (ax_param_pad_rows) */
    ax_layout layout;
    uint8_t ndim;
    int64_t dim[AX_MAX_DIMS];  /* global extents */
    int64_t unit[AX_MAX_DIMS]; /* split unit of each dim: how many elements stay together on a rank, such as a
                                  head; 0 means 1 */
    void *data;                /* this rank's part (box), on the context's device; NULL: no memory */
} ax_tensor;

/* A box of a global array: [lo, lo + n) in each dim. */
typedef struct ax_box {
    int64_t lo[AX_MAX_DIMS], n[AX_MAX_DIMS];
} ax_box;

/* ---- layouts ------------------------------------------------------------------------------------- */

/* Parses "b@z.data, t, d@y +x": dims in order (names of dims are ignored), '@' before the axes of a dim, '.'
 * between axes, '/' before the first axis that splits by elements ("o@x/z"), '+' before partial axes;
 * "d@x.kv.x.rep" names the two factors of x. The message of AX_ERR_USAGE gives the error and, if the syntax
 * is wrong, its column. */
AX_MUST_CHECK ax_status ax_layout_parse(const ax_grid *grid, const char *text, int *ndim, ax_layout *out);
/* Prints a layout in the syntax of ax_layout_parse. `names` ("btd") has one letter for each dim; NULL: d0,
 * d1, … Returns out. */
char *ax_layout_print(const ax_grid *grid, const ax_layout *layout, int ndim, const char *names,
                      char out[128]);
/* Return true if two layouts (ax_layout_equal), or the axes of two dims (ax_axes_equal), are the same apart
 * from axes of size 1. Arrays split in these two ways then have the same parts on each rank, if the split
 * units are equal. On a dim, an axis and the list of its factors count as different. */
bool ax_layout_equal(const ax_grid *grid, const ax_layout *a, const ax_layout *b, int ndim);
bool ax_axes_equal(const ax_grid *grid, const ax_axes *a, const ax_axes *b);
/* Returns the layout without axes of size 1. */
ax_layout ax_layout_effective(const ax_grid *grid, const ax_layout *layout, int ndim);
/* Returns the set of axes that split any dim of the layout, without its partial axes. */
ax_axisset ax_layout_split_axes(const ax_layout *layout, int ndim);
/* Returns the layout of the sums over all dims but the last of a tensor with this layout: a vector that is
 * partial along the axes that split the summed dims. */
ax_layout ax_layout_of_sums(const ax_layout *layout, int ndim);
/* Checks a layout. AX_ERR_INTERNAL if an axis appears twice (itself or through its factors), if an axis is
 * not one of the grid, or if the dims have more than AX_LAYOUT_AXES axes. */
AX_MUST_CHECK ax_status ax_layout_check(const ax_grid *grid, const ax_layout *layout, int ndim);

/* ---- tensors ------------------------------------------------------------------------------------- */

/* The largest number of elements of a tensor. Up to this number the size in bytes fits in 64 bits. */
#define AX_TENSOR_MAX (INT64_C(1) << 48)

/* Checks a tensor's size: AX_ERR_USAGE if an extent or a split unit is negative, or if a split unit or the
 * product of the extents that are not 0 is above AX_TENSOR_MAX. The message has the extents. Functions that
 * allocate tensors call this. */
AX_MUST_CHECK ax_status ax_tensor_check(const ax_tensor *tensor);

/* Returns a tensor without data that has extents `dim`, split units `unit` (elements that stay together on a
 * rank; NULL: all 1) and `layout` (NULL: replicated). */
ax_tensor ax_tensor_make(ax_dtype dtype, int ndim, const int64_t *dim, const int64_t *unit,
                         const ax_layout *layout);

/* ax_tensor_range computes the part [*lo, *lo + *n) of dim `d` that `rank` holds; ax_tensor_box the parts of
 * all dims. */
void ax_tensor_range(const ax_grid *grid, const ax_tensor *tensor, int d, int rank, int64_t *lo, int64_t *n);
ax_box ax_tensor_box(const ax_grid *grid, const ax_tensor *tensor, int rank);
/* Describe the calling rank's box. ax_tensor_extent returns the extent of dim d, ax_tensor_count the number
 * of elements, ax_tensor_pitch the distance between rows in elements (leading dimension), ax_tensor_bytes the
 * size in bytes, padding included. */
int64_t ax_tensor_extent(const ax_grid *grid, const ax_tensor *tensor, int d);
int64_t ax_tensor_count(const ax_grid *grid, const ax_tensor *tensor);
int64_t ax_tensor_pitch(const ax_grid *grid, const ax_tensor *tensor);
int64_t ax_tensor_bytes(const ax_grid *grid, const ax_tensor *tensor);
/* Returns the largest extent of dim d on any rank. Collectives pad each rank's part to this extent. */
int64_t ax_tensor_chunk(const ax_grid *grid, const ax_tensor *tensor, int d);
int64_t ax_tensor_global_count(const ax_tensor *tensor);
/* Returns true on exactly one rank of each group of ranks that hold the same values: the rank with coordinate
 * 0 along all axes that are not in the layout. If the layout does not name the axis pipe, there is one such
 * rank for each pipeline stage. */
bool ax_tensor_is_primary(const ax_grid *grid, const ax_tensor *tensor);

/* ax_tensor_scatter copies `global`, a dense array in host memory with the tensor's dtype and global extents,
 * to the ranks' boxes; ax_tensor_collect copies the boxes back. The tensor must have memory. For tests, small
 * tables and reference computations. ax_tensor_scatter sets padding to zero; along partial axes it gives the
 * values to the ranks with coordinate 0, and zeros to the others. It is not collective. ax_tensor_collect
 * sums along partial axes, in double, and gives the whole array to every rank of the pipeline stage (of all
 * stages, if the layout names the axis pipe). It is collective along these ranks. */
AX_MUST_CHECK ax_status ax_tensor_scatter(ax_ctx *ctx, ax_tensor *tensor, const void *global);
AX_MUST_CHECK ax_status ax_tensor_collect(ax_ctx *ctx, const ax_tensor *tensor, void *global);

/* ---- frames -------------------------------------------------------------------------------------- */

typedef enum ax_mode {
    AX_MODE_TRAIN, /* layers save what backward needs */
    AX_MODE_EVAL   /* forward only */
} ax_mode;

/* The inputs of a micro-batch. All tensors except x are int32 [samples, positions], with the samples split
 * along the axes that split the batch (ax_batch_axes). */
typedef struct ax_batch {
    ax_tensor tokens, targets, doc_start, positions,
        places; /* tokens: negative: padding. targets: the tokens to predict; negative: not part of the
                   loss. doc_start: position at which each token's document begins; data NULL: 0 for all
                   tokens. places: row of the key/value cache, sequence · capacity + position, to which each
                   token's key and value go, -1: they are dropped; without a cache it is not read */
    const ax_batch_numbers *now; /* scalars that change with each micro-batch; device memory. NULL: the loss
                                    scale is 1, and dropout masks depend on the number of training tasks that
                                    the frame has begun (ax_frame_train_tasks) */
    ax_tensor x;     /* activations [b, t, d] of the pipeline stage before; data NULL on the first stage */
    double *routers; /* device memory for statistics of the routers of mixtures of experts, [layers, 3 +
                        experts] (ax_moe_config), to which backward adds; NULL: not counted */
} ax_batch;

/* A frame is the activation memory (arena) of one micro-batch, with the stack of tensors that forward saves
 * for backward. There is no call to free an allocation: a dry run of the task observes when each allocation
 * is last used. A plan made from these lifetimes lets allocations with disjoint lifetimes share addresses.
 *
 *   bump mode     places allocations one after the other in a fixed block, without sharing: for tests and
 *                 small programs
 *   record mode   on the dry device: records the size, birth and last use of each allocation
 *   planned mode  gives the k-th allocation since ax_frame_begin the offset that the plan has for it
 *
 * A plan holds, for each task (a name such as "train" or "eval"), a list of the allocations' offsets, and the
 * size of the block. */
typedef struct ax_frame ax_frame;
typedef struct ax_frame_plan ax_frame_plan;

/* Creates a frame with `bytes` of device memory that places allocations one after the other (bump mode). With
 * `bytes` 0 the frame records sizes and lifetimes of allocations (record mode), which needs the device `dry`:
 * on others AX_ERR_MEMORY. The caller owns *out; ctx must outlive it. */
AX_MUST_CHECK ax_status ax_frame_create(ax_ctx *ctx, size_t bytes, ax_frame **out);
/* Creates a frame that places allocations as `plan` says (planned mode); it borrows `plan`. */
AX_MUST_CHECK ax_status ax_frame_create_planned(ax_ctx *ctx, const ax_frame_plan *plan, ax_frame **out);
/* Creates slot number `slot` (from 1), that is, another frame like `first`, slot 0, for another micro-batch;
 * `first` is in planned or bump mode. A task may begin in one slot while the task of another slot is between
 * two of its parts (ax_frame_next_part). In planned mode the slots share all memory, except allocations that
 * a task uses in several of its parts. `first` must outlive the slot. */
AX_MUST_CHECK ax_status ax_frame_create_slot(ax_frame *first, int slot, ax_frame **out);
void ax_frame_destroy(ax_frame **frame);

/* Deletes the recorded allocations of all tasks of a frame in record mode. The next run of each task records
 * its allocations again. */
void ax_frame_forget(ax_frame *frame);
/* Returns true if slot number `slot` may run the task. */
typedef bool ax_frame_runs_fn(const void *user, int slot, const char *task);
/* Makes the memory plan of the tasks that a frame recorded on the dry device (record mode). The plan is for
 * `slots` frames, one for each micro-batch in flight (ax_frame_create_slot). `runs` says which slots may run
 * a task of several parts, so that the others need no memory of their own for it; NULL: all may. The caller
 * owns *out. */
AX_MUST_CHECK ax_status ax_frame_plan_create(const ax_frame *frame, int slots, ax_frame_runs_fn *runs,
                                             const void *user, ax_frame_plan **out);
void ax_frame_plan_destroy(ax_frame_plan **plan);
/* Returns the bytes of device memory of all frames of the plan together. */
size_t ax_frame_plan_bytes(const ax_frame_plan *plan);

ax_ctx *ax_frame_ctx(const ax_frame *frame);
/* Starts a task (work with a memory plan of its own, such as "train"). Invalidates all memory allocated
 * before, and empties the stack of saved tensors. The frame borrows `batch`, which may be NULL, until the
 * next ax_frame_begin. */
AX_MUST_CHECK ax_status ax_frame_begin(ax_frame *frame, const char *task, ax_mode mode,
                                       const ax_batch *batch);
/* Returns true if the frame can run the task: in planned mode, if the plan has it and the frame's slot has
 * room for what it keeps. */
bool ax_frame_runs(const ax_frame *frame, const char *task);
/* Ends a part of a task and begins the next; the frames of other micro-batches may run tasks in between. A
 * task has up to three parts, such as forward, backward, weight gradients. `name` becomes the name of the
 * running task. */
AX_MUST_CHECK ax_status ax_frame_next_part(ax_frame *frame, const char *name);

/* A task may defer contractions to a later part. While ax_frame_defers returns true, functions that compute
 * weight gradients call ax_frame_defer instead of computing their n contractions, of a[i] and b (n <=
 * AX_BESIDE). ax_frame_run_deferred later switches deferring off and calls fn(frame, n, user, spec, a, b) for
 * each call of ax_frame_defer, in their order. `user` has 2n pointers, of which user[i] and user[n + i]
 * belong to a[i]. `spec` must be a string literal. The pointers in `user` and the structs a[i] and *b are
 * copied; the data must be memory of the frame or of a parameter, and must not be overwritten before fn is
 * called. ax_frame_begin switches deferring off and drops the deferred contractions. */
typedef ax_status ax_frame_deferred_fn(ax_frame *frame, int n, void *const *user, const char *spec,
                                       const ax_tensor *a, const ax_tensor *b);
void ax_frame_set_deferring(ax_frame *frame, bool defers);
bool ax_frame_defers(const ax_frame *frame);
AX_MUST_CHECK ax_status ax_frame_defer(ax_frame *frame, ax_frame_deferred_fn *fn, int n, void *const *user,
                                       const char *spec, const ax_tensor *a, const ax_tensor *b);
AX_MUST_CHECK ax_status ax_frame_run_deferred(ax_frame *frame);
const ax_batch *ax_frame_batch(const ax_frame *frame);
/* Returns the name of the running task; "" before the first task. */
const char *ax_frame_task_name(const ax_frame *frame);
/* Registers a callback: the next ax_frame_begin or ax_frame_next_part first calls fn(user), because from then
 * on the frame's memory is free for other uses. fn can wait for transfers that still use the frame's memory.
 * A frame has only one callback: if another `user` is registered, the earlier callback is called at once. So
 * ax_frame_at_end(frame, NULL, NULL) calls the registered callback, and leaves none. `user` must stay valid
 * until the call, or until the frame is destroyed. */
typedef ax_status ax_frame_end_fn(void *user);
AX_MUST_CHECK ax_status ax_frame_at_end(ax_frame *frame, ax_frame_end_fn *fn, void *user);
/* Returns how many bytes of the frame's block have been used so far: the maximum of offset + size over all
 * allocations since the frame was created (in planned mode, over those in the slot's own block too). */
size_t ax_frame_high_water(const ax_frame *frame);

/* Allocates this rank's box of a tensor with the dtype, shape and layout of `like`, whose data is ignored.
 * The content is undefined. The memory is valid until the next ax_frame_begin; in planned mode only until the
 * last use that the dry run recorded, because later allocations may share the memory. AX_ERR_USAGE if
 * ax_tensor_check fails, AX_ERR_MEMORY if the frame is too small, AX_ERR_INTERNAL if an earlier run of the
 * task, or the dry run of a plan, had another allocation at this point of the task. */
AX_MUST_CHECK ax_status ax_frame_alloc(ax_frame *frame, const ax_tensor *like, ax_tensor *out);
/* Allocates n <= AX_BESIDE tensors beside each other: a row of the array that is allocated has a row of
 * out[0], then one of out[1], and so on. out[i] has dtype, shape and layout of like[i], and its `align` is
 * the number of bytes of a row of the array. All `like` have the same dtype and the same local extents except
 * the last. Errors as for ax_frame_alloc. */
AX_MUST_CHECK ax_status ax_frame_alloc_beside(ax_frame *frame, int n, const ax_tensor *like, ax_tensor *out);
/* Allocates an array of `count` elements, without a layout. Errors as for ax_frame_alloc. */
AX_MUST_CHECK ax_status ax_frame_scratch(ax_frame *frame, ax_dtype dtype, int64_t count, void **out);

/* Allocates zeroed host memory, valid until the next ax_frame_begin. The frame reuses the memory: malloc is
 * called only when a task needs more than any task before. `bytes` is at most AX_FRAME_HOST. */
enum { AX_FRAME_HOST = 4096 };
AX_MUST_CHECK ax_status ax_frame_host(ax_frame *frame, size_t bytes, void **out);

/* Returns true if the running task began in AX_MODE_TRAIN, in which dropout is on. */
bool ax_frame_training(const ax_frame *frame);
/* Returns the number of tasks that began in AX_MODE_TRAIN since the frame was created, including the running
 * one. */
uint64_t ax_frame_train_tasks(const ax_frame *frame);
/* ax_frame_save pushes a view on the stack of saved tensors; it does nothing if saving is off. Saving is on
 * when a task begins in AX_MODE_TRAIN; segments turn it off and on. ax_frame_restore pops the top view, so
 * backward restores in the reverse order of saving; AX_ERR_INTERNAL if the stack is empty. */
AX_MUST_CHECK ax_status ax_frame_save(ax_frame *frame, const ax_tensor *tensor);
AX_MUST_CHECK ax_status ax_frame_restore(ax_frame *frame, ax_tensor *out);

/* ---- segments ------------------------------------------------------------------------------------ */

/* A segment is a part of forward that backward runs again (layer ax_recompute). Its first run saves nothing,
 * its second run saves what backward needs. Segments run again in the reverse order of their first runs.
 *
 * With parallel.keep_results, the first run of a training task keeps the results of its collectives, and the
 * second run takes them, in the same order, and does not communicate. A function that communicates
 * activations in forward calls ax_frame_take before, and ax_frame_keep after. Nothing is copied: a result
 * stays in its memory. So an operation that changes an activation in place asks ax_frame_change first: the
 * first run may have changed the result already. Between a collective and such an operation nothing may read
 * the result that needs the unchanged values. (Weights are not kept: parallel.weight_cache is for these.) */
typedef struct ax_frame_segment ax_frame_segment;
typedef struct ax_frame_run {
    bool saving;
    ax_frame_segment *keeps, *takes; /* the segments whose first and whose second run is under way; NULL:
                                        none, or parallel.keep_results is off */
} ax_frame_run;

/* ax_frame_begin_segment begins the first run of a segment or, with `again`, the second run of the last
 * segment that has not run again. ax_frame_end_segment ends the run. *before is what was under way. Other
 * segments may begin and end in between. AX_ERR_INTERNAL if the second run has other collectives than the
 * first. */
AX_MUST_CHECK ax_status ax_frame_begin_segment(ax_frame *frame, bool again, ax_frame_run *before);
AX_MUST_CHECK ax_status ax_frame_end_segment(ax_frame *frame, const ax_frame_run *before);
/* Returns true if the second run of a segment is under way that takes results. What only produces the source
 * of a collective need not run then. */
bool ax_frame_takes(const ax_frame *frame);
/* In such a run, sets *result to the next result, which must have the dtype and the global shape of `like`,
 * and *taken to true; else sets *taken to false. AX_ERR_INTERNAL if there is no such result. */
AX_MUST_CHECK ax_status ax_frame_take(ax_frame *frame, const ax_tensor *like, ax_tensor *result, bool *taken);
/* Keeps the result of a collective, which may still be in flight, if a first run is under way that keeps
 * results. The memory then stays in use until the second run has taken it. */
AX_MUST_CHECK ax_status ax_frame_keep(ax_frame *frame, const ax_tensor *result);
/* An operation that is about to change x in place calls this. Sets *changed to true if the memory of x has
 * the change already, because x is a result that was taken: the operation must leave it out. */
AX_MUST_CHECK ax_status ax_frame_change(ax_frame *frame, const ax_tensor *x, bool *changed);

#ifdef __cplusplus
}
#endif
#endif
