/* tensor: arrays that know how they are distributed, and the memory of one micro-batch in flight.
 *
 * A tensor is a view: dtype, global extents, layout and a pointer to this rank's local values. Copying the
 * struct makes another view; nobody counts references. The layout says which dims are split along which grid
 * axes, and along which axes the local values are partial sums; it is the only place where that is known.
 *
 * The split rule. A dim of extent n and unit u has ceil(n/u) units. Each axis on the dim, major first, splits
 * the units at hand into balanced runs (sizes differ by at most one, larger ones first: 9 over 4 is 3,2,2,2).
 * Axes counted by `fine` come last and are for layouts in which a tensor only rests: they split single
 * elements, in chunks of ceil(n/g) of which the last ones are shorter (9 over 4 is 3,3,3,0), so that parts
 * lie one chunk apart in the whole and travel between there and the ranks without being packed. Empty boxes
 * are legal. Local storage is the local box, row-major, and dense unless the tensor has `align`, which pads
 * rows; padding to a uniform chunk exists only on the wire, and behind the end of parameters. */
#ifndef AXONN_TENSOR_H
#define AXONN_TENSOR_H

#include "axonn/grid.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { AX_MAX_DIMS = 4, AX_LAYOUT_AXES = 8 }; /* of a tensor; of a layout, over all its dims */

/* Ordered axes that split one dim, major first; the last `fine` of them ignore units. */
typedef struct ax_axes {
    uint8_t n, fine;
    ax_axis a[AX_LAYOUT_AXES];
} ax_axes;

/* An axis appears at most once in a layout, `partial` included, nor with it its factors. Zero-initialised:
 * replicated everywhere. */
typedef struct ax_layout {
    ax_axes dim[AX_MAX_DIMS];
    ax_axisset partial;
} ax_layout;

/* The `align` of logits: library products are slow where rows of bf16 begin on odd elements. */
enum { AX_ROW_ALIGN = 128 };

typedef struct ax_tensor {
    ax_dtype dtype;
    uint8_t ndim;
    uint16_t align; /* bytes, of which a local row (along the last dim) takes a multiple; 0: rows are dense */
    int64_t dim[AX_MAX_DIMS];  /* global extents */
    int64_t unit[AX_MAX_DIMS]; /* split unit of each dim; 0 means 1 */
    ax_layout layout;
    void *data; /* local box on the context's device, or NULL */
} ax_tensor;

/* A box of a global array: [lo, lo + n) in each dim. */
typedef struct ax_box {
    int64_t lo[AX_MAX_DIMS], n[AX_MAX_DIMS];
} ax_box;

/* ---- layouts ------------------------------------------------------------------------------------- */

/* Parses "b@data.z, t, d@y +x": dims in order (names are for the reader), '@' axes, '.' between axes, '/'
 * before the first fine axis ("o@x/z"), '+' partial axes; "d@x.kv.x.rep" names the two factors of x.
 * AX_ERR_USAGE says what and where. */
AX_MUST_CHECK ax_status ax_layout_parse(const ax_grid *grid, const char *text, int *ndim, ax_layout *out);
/* Prints with dim names d0, d1, … or those of `names` ("btd"), one letter a dim (NULL allowed). Returns out.
 */
char *ax_layout_print(const ax_grid *grid, const ax_layout *layout, int ndim, const char *names,
                      char out[128]);
/* Equal as distributions: axes of size 1 do not count. */
bool ax_layout_equal(const ax_grid *grid, const ax_layout *a, const ax_layout *b, int ndim);
bool ax_axes_equal(const ax_grid *grid, const ax_axes *a, const ax_axes *b);
/* The layout without axes of size 1. */
ax_layout ax_layout_effective(const ax_grid *grid, const ax_layout *layout, int ndim);
/* Axes that split a dim, without `partial`. */
ax_axisset ax_layout_split_axes(const ax_layout *layout, int ndim);
/* AX_ERR_INTERNAL if an axis appears twice or does not exist. */
AX_MUST_CHECK ax_status ax_layout_check(const ax_grid *grid, const ax_layout *layout, int ndim);

/* ---- tensors ------------------------------------------------------------------------------------- */

/* A tensor without data: extents `dim` and units (NULL: all 1). */
ax_tensor ax_tensor_make(ax_dtype dtype, int ndim, const int64_t *dim, const int64_t *unit,
                         const ax_layout *layout);

/* The box of dim `d` that `rank` holds: [*lo, *lo + *n). */
void ax_tensor_range(const ax_grid *grid, const ax_tensor *tensor, int d, int rank, int64_t *lo, int64_t *n);
ax_box ax_tensor_box(const ax_grid *grid, const ax_tensor *tensor, int rank);
/* Local extent of dim d, elements, elements from one row to the next, and bytes of memory, padding included,
 * on the calling rank. */
int64_t ax_tensor_extent(const ax_grid *grid, const ax_tensor *tensor, int d);
int64_t ax_tensor_count(const ax_grid *grid, const ax_tensor *tensor);
int64_t ax_tensor_pitch(const ax_grid *grid, const ax_tensor *tensor);
int64_t ax_tensor_bytes(const ax_grid *grid, const ax_tensor *tensor);
/* Largest extent of dim d over all ranks: what each travels as on the wire. */
int64_t ax_tensor_chunk(const ax_grid *grid, const ax_tensor *tensor, int d);
int64_t ax_tensor_global_count(const ax_tensor *tensor);
/* True on exactly one rank of each group that holds the same box (coordinate 0 on all axes not in the
 * layout). */
bool ax_tensor_is_primary(const ax_grid *grid, const ax_tensor *tensor);
/* How many ranks hold each element. */
int ax_tensor_replicas(const ax_grid *grid, const ax_tensor *tensor);

/* A global host array (dtype of the tensor, dense) from or to the ranks' boxes, in memory that the tensor
 * has (padding becomes zeros): for tests, small tables and oracles. Along partial axes scatter gives the
 * values to coordinate 0 and zeros to the others; collect sums them, in double, and gives every rank the
 * whole. scatter: not collective; collect: collective along the grid. */
AX_MUST_CHECK ax_status ax_tensor_scatter(ax_ctx *ctx, ax_tensor *tensor, const void *global);
AX_MUST_CHECK ax_status ax_tensor_collect(ax_ctx *ctx, const ax_tensor *tensor, void *global);

/* ---- frames -------------------------------------------------------------------------------------- */

typedef enum ax_mode {
    AX_MODE_TRAIN, /* layers save what backward needs */
    AX_MODE_EVAL   /* forward only */
} ax_mode;

/* What a micro-batch carries beside activations. Tensors are [b, t] int32 with the batch layout. */
typedef struct ax_batch {
    ax_tensor tokens, targets, doc_start,
        positions;               /* targets < 0 are masked; doc_start: see ax_attention_args */
    const ax_batch_numbers *now; /* device memory, or NULL */
    struct ax_kv_cache *cache;   /* generation: keys and values of earlier positions (nn.h); else NULL */
} ax_batch;

/* The memory of one micro-batch in flight, and the stack of what forward saved for backward. Memory is only
 * ever allocated, never freed one by one: a frame hands out addresses, and knows from a dry run when each
 * was last used, so that addresses are shared without anyone saying "free".
 *
 *   bump mode     a fixed block, nothing shared: tests and small programs
 *   record mode   on the dry device: notes size, birth and last use of each allocation
 *   planned mode  the k-th allocation since ax_frame_begin lies where the plan says
 *
 * A plan is a list of offsets per task (a name such as "train" or "eval"), and the size of the block. */
typedef struct ax_frame ax_frame;
typedef struct ax_frame_plan ax_frame_plan;

/* Bump mode with `bytes` of device memory (record mode, and `bytes` ignored, when ctx is on the dry device).
 * The caller owns *out; ctx must outlive it. */
AX_MUST_CHECK ax_status ax_frame_create(ax_ctx *ctx, size_t bytes, ax_frame **out);
/* Planned mode; the frame borrows `plan`. */
AX_MUST_CHECK ax_status ax_frame_create_planned(ax_ctx *ctx, const ax_frame_plan *plan, ax_frame **out);
void ax_frame_destroy(ax_frame **frame);

/* Record mode: forgets the tasks that ran, to record them as they run from now on. */
void ax_frame_forget(ax_frame *frame);
/* After tasks ran in record mode: their plan. The caller owns *out. */
AX_MUST_CHECK ax_status ax_frame_plan_create(const ax_frame *frame, ax_frame_plan **out);
void ax_frame_plan_destroy(ax_frame_plan **plan);
size_t ax_frame_plan_bytes(const ax_frame_plan *plan);
/* Bytes that the task's allocations would need if no address were shared, and the largest sum alive at one
 * time: the plan's size lies between them. */
size_t ax_frame_plan_unshared(const ax_frame_plan *plan);
size_t ax_frame_plan_lower_bound(const ax_frame_plan *plan);

ax_ctx *ax_frame_ctx(const ax_frame *frame);
/* Starts a task: all memory handed out before is void, the stack is empty. `batch` is borrowed until the next
 * begin and may be NULL. */
AX_MUST_CHECK ax_status ax_frame_begin(ax_frame *frame, const char *task, ax_mode mode,
                                       const ax_batch *batch);
const ax_batch *ax_frame_batch(const ax_frame *frame);
/* The name of the running task, "" before the first. */
const char *ax_frame_task_name(const ax_frame *frame);
/* Has fn(user) called by the next ax_frame_begin while the memory is still what it was: to end what is in
 * flight on it. One at a time: an earlier `user`, if it is another, is called now. NULL: nobody. What `user`
 * is must stay until then, or until the frame is destroyed. */
typedef ax_status ax_frame_end_fn(void *user);
AX_MUST_CHECK ax_status ax_frame_at_end(ax_frame *frame, ax_frame_end_fn *fn, void *user);
/* Bytes handed out since creation at most (bump: top; planned: end of the highest block). */
size_t ax_frame_high_water(const ax_frame *frame);

/* Memory for a tensor (dtype, extents, units and layout as given; data ignored), valid until it is last used
 * before the next begin. Contents are undefined. */
AX_MUST_CHECK ax_status ax_frame_alloc(ax_frame *frame, const ax_tensor *like, ax_tensor *out);
/* Flat memory of `count` local elements without a layout. */
AX_MUST_CHECK ax_status ax_frame_scratch(ax_frame *frame, ax_dtype dtype, int64_t count, void **out);

/* Host memory, zeroed, until the next begin; taken from the system only where no earlier task needed as much.
 * At most AX_FRAME_HOST bytes at a time. */
enum { AX_FRAME_HOST = 4096 };
AX_MUST_CHECK ax_status ax_frame_host(ax_frame *frame, size_t bytes, void **out);

/* Whether layers keep what backward needs now: true in AX_MODE_TRAIN, except inside recomputed segments. */
bool ax_frame_saving(const ax_frame *frame);
/* Whether the task began in AX_MODE_TRAIN: dropout is on. */
bool ax_frame_training(const ax_frame *frame);
/* Switches saving and returns what it was. */
bool ax_frame_set_saving(ax_frame *frame, bool saving);
/* Pushes a view; nothing if the frame is not saving. Backward pops in reverse order. Popping an empty stack:
 * AX_ERR_INTERNAL. */
AX_MUST_CHECK ax_status ax_frame_save(ax_frame *frame, const ax_tensor *tensor);
AX_MUST_CHECK ax_status ax_frame_restore(ax_frame *frame, ax_tensor *out);

#ifdef __cplusplus
}
#endif
#endif
