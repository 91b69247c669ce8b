/* Tensors: which box (part) of a global array each rank holds, and copies between boxes and global arrays in
 * host memory.
 *
 * ax_tensor_range is the only implementation of the split rule (which rank gets which part of a dim),
 * explained in tensor.h. */
#include "axonn/tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the split rule ------------------------------------------------------------------------------ */

/* Cuts [*lo, *lo + *n) into `parts` runs whose sizes differ by at most one, larger ones first, and sets *lo
 * and *n to run `index`. */
static void split(int64_t *lo, int64_t *n, int parts, int index)
{
    int64_t base = *n / parts, extra = *n % parts;
    *lo += index * base + ax_min(index, extra);
    *n = base + (index < extra);
}

/* Cuts [*lo, *lo + *n) into `parts` chunks of ceil(n/parts), of which the last ones may be shorter or empty,
 * and sets *lo and *n to chunk `index`. */
static void split_in_chunks(int64_t *lo, int64_t *n, int parts, int index)
{
    int64_t chunk = ax_ceil_div(*n, parts), skip = ax_min(index * chunk, *n);
    *lo += skip;
    *n = ax_min(chunk, *n - skip);
}

/* Sets *lo and *n to the part of dim d that `rank` holds. rank < 0 means the rank whose coordinates are all
 * 0, which has the largest part (see ax_tensor_chunk). */
static void range(const ax_grid *grid, const ax_tensor *tensor, int d, int rank, int64_t *lo, int64_t *n)
{
    const ax_axes *axes = &tensor->layout.dim[d];
    int64_t extent = tensor->dim[d], unit = ax_max(tensor->unit[d], 1);
    int64_t from = 0, count = ax_ceil_div(extent, unit);
    for (int i = 0; i < axes->n; i++) {
        if (i == axes->n - axes->fine) {
            int64_t end = ax_min((from + count) * unit, extent);
            from = ax_min(from * unit, extent);
            count = end - from;
            unit = 1;
        }
        int coord = rank < 0 ? 0 : ax_grid_coord(grid, rank, axes->a[i]);
        bool fine = i >= axes->n - axes->fine;
        (fine ? split_in_chunks : split)(&from, &count, ax_grid_axis_size(grid, axes->a[i]), coord);
    }
    *lo = ax_min(from * unit, extent);
    *n = ax_min((from + count) * unit, extent) - *lo;
}

void ax_tensor_range(const ax_grid *grid, const ax_tensor *tensor, int d, int rank, int64_t *lo, int64_t *n)
{
    range(grid, tensor, d, rank, lo, n);
}

/* Returns the size of the part of the rank whose coordinates are all 0. This part is the largest, because
 * larger parts come first, and only the dim's last split unit may be short. */
int64_t ax_tensor_chunk(const ax_grid *grid, const ax_tensor *tensor, int d)
{
    int64_t lo, n;
    range(grid, tensor, d, -1, &lo, &n);
    return n;
}

/* ---- tensors ------------------------------------------------------------------------------------- */

ax_tensor ax_tensor_make(ax_dtype dtype, int ndim, const int64_t *dim, const int64_t *unit,
                         const ax_layout *layout)
{
    ax_tensor tensor = {.dtype = dtype, .ndim = (uint8_t)ndim};
    for (int d = 0; d < ndim; d++) {
        tensor.dim[d] = dim[d];
        tensor.unit[d] = unit ? unit[d] : 1;
    }
    if (layout)
        tensor.layout = *layout;
    return tensor;
}

/* Prints the tensor's extents: "450 x 1 x 2". */
static const char *print_extents(const ax_tensor *tensor, char *out, size_t size)
{
    out[0] = 0;
    for (int d = 0; d < tensor->ndim; d++)
        ax_text_add(out, size, "%s%lld", d ? " x " : "", (long long)tensor->dim[d]);
    return out;
}

ax_status ax_tensor_check(const ax_tensor *tensor)
{
    char text[AX_MAX_DIMS * 24];
    int64_t count = 1;
    for (int d = 0; d < tensor->ndim; d++) {
        int64_t extent = tensor->dim[d], unit = tensor->unit[d];
        AX_CHECK(extent >= 0, AX_ERR_USAGE, "a tensor of shape %s has a negative extent",
                 print_extents(tensor, text, sizeof text));
        AX_CHECK(unit >= 0 && unit <= AX_TENSOR_MAX, AX_ERR_USAGE,
                 "dim %d of a tensor of shape %s has the split unit %lld, which is not in [0, 2^48]", d,
                 print_extents(tensor, text, sizeof text), (long long)unit);
        AX_CHECK(!__builtin_mul_overflow(count, ax_max(extent, 1), &count) && count <= AX_TENSOR_MAX,
                 AX_ERR_USAGE, "a tensor of shape %s is too large: it may have at most 2^48 elements",
                 print_extents(tensor, text, sizeof text));
    }
    return AX_OK;
}

ax_box ax_tensor_box(const ax_grid *grid, const ax_tensor *tensor, int rank)
{
    ax_box box = {{0}, {0}};
    for (int d = 0; d < tensor->ndim; d++)
        range(grid, tensor, d, rank, &box.lo[d], &box.n[d]);
    return box;
}

int64_t ax_tensor_extent(const ax_grid *grid, const ax_tensor *tensor, int d)
{
    int64_t lo, n;
    range(grid, tensor, d, ax_grid_rank(grid), &lo, &n);
    return n;
}

static int64_t box_count(const ax_box *box, int ndim)
{
    int64_t count = 1;
    for (int d = 0; d < ndim; d++)
        count *= box->n[d];
    return count;
}

int64_t ax_tensor_count(const ax_grid *grid, const ax_tensor *tensor)
{
    ax_box box = ax_tensor_box(grid, tensor, ax_grid_rank(grid));
    return box_count(&box, tensor->ndim);
}

/* Returns the number of elements of memory that a row of `cols` elements takes, padding included. */
static int64_t pitch_of(const ax_tensor *tensor, int64_t cols)
{
    return tensor->align ? ax_round_up(cols, tensor->align / (int64_t)ax_dtype_size(tensor->dtype)) : cols;
}

int64_t ax_tensor_pitch(const ax_grid *grid, const ax_tensor *tensor)
{
    return tensor->ndim ? pitch_of(tensor, ax_tensor_extent(grid, tensor, tensor->ndim - 1)) : 1;
}

/* Returns the number of elements of memory that a box takes, padding included. */
static int64_t box_room(const ax_tensor *tensor, const ax_box *box)
{
    ax_box padded = *box;
    if (tensor->ndim)
        padded.n[tensor->ndim - 1] = pitch_of(tensor, box->n[tensor->ndim - 1]);
    return box_count(&padded, tensor->ndim);
}

int64_t ax_tensor_bytes(const ax_grid *grid, const ax_tensor *tensor)
{
    ax_box box = ax_tensor_box(grid, tensor, ax_grid_rank(grid));
    return box_room(tensor, &box) * (int64_t)ax_dtype_size(tensor->dtype);
}

int64_t ax_tensor_global_count(const ax_tensor *tensor)
{
    int64_t count = 1;
    for (int d = 0; d < tensor->ndim; d++)
        count *= tensor->dim[d];
    return count;
}

/* Returns true if the coordinates of `rank` along all of `axes` are 0. */
static bool at_origin(const ax_grid *grid, int rank, ax_axisset axes)
{
    for (int a = 0; a < ax_grid_axes(grid); a++)
        if ((axes >> a & 1) && ax_grid_coord(grid, rank, (ax_axis)a))
            return false;
    return true;
}

/* Returns the axes along which the ranks of one pipeline stage differ: all axes except pipe. If `named` (the
 * axes of the tensor's layout) contains pipe, the result contains pipe too. */
static ax_axisset stage_axes(const ax_grid *grid, ax_axisset named)
{
    return (ax_axisset)(((1u << ax_grid_axes(grid)) - 1) & ~((1u << AX_PIPE) & ~(unsigned)named));
}

static ax_axisset axes_named(const ax_tensor *tensor)
{
    return ax_layout_split_axes(&tensor->layout, tensor->ndim) | tensor->layout.partial;
}

static bool is_primary(const ax_grid *grid, const ax_tensor *tensor, int rank)
{
    ax_axisset used = axes_named(tensor);
    return at_origin(grid, rank,
                     ax_grid_effective(grid, stage_axes(grid, used)) &
                         (ax_axisset)~ax_grid_effective(grid, used));
}

bool ax_tensor_is_primary(const ax_grid *grid, const ax_tensor *tensor)
{
    return is_primary(grid, tensor, ax_grid_rank(grid));
}

/* ---- global arrays in host memory ---------------------------------------------------------------- */

/* Callback of for_rows for a contiguous row of a box: `global` and `local` are the row's offsets in the
 * global array and in the local box, `count` its length, all in elements. */
typedef void row_fn(void *arg, int64_t global, int64_t local, int64_t count);

static void for_rows(const ax_tensor *tensor, const ax_box *box, row_fn *fn, void *arg)
{
    int last = tensor->ndim - 1;
    int64_t cols = last < 0 ? 1 : box->n[last];
    int64_t rows = cols ? box_count(box, tensor->ndim) / cols : 0;
    for (int64_t row = 0; row < rows; row++) {
        int64_t rest = row, global = last < 0 ? 0 : box->lo[last];
        int64_t stride = last < 0 ? 1 : tensor->dim[last];
        for (int d = last - 1; d >= 0; d--) {
            global += (box->lo[d] + rest % box->n[d]) * stride;
            rest /= box->n[d];
            stride *= tensor->dim[d];
        }
        fn(arg, global, row * pitch_of(tensor, cols), cols);
    }
}

typedef struct row_copy {
    ax_dtype dtype;
    char *global; /* global array, with elements of `dtype` */
    char *local;
    double *sum; /* the global array in double, to which row_add adds rows; other callbacks do not use it */
} row_copy;

static void row_to_local(void *arg, int64_t global, int64_t local, int64_t count)
{
    row_copy *c = arg;
    size_t size = ax_dtype_size(c->dtype);
    memcpy(c->local + (size_t)local * size, c->global + (size_t)global * size, (size_t)count * size);
}

static void row_to_global(void *arg, int64_t global, int64_t local, int64_t count)
{
    row_copy *c = arg;
    size_t size = ax_dtype_size(c->dtype);
    memcpy(c->global + (size_t)global * size, c->local + (size_t)local * size, (size_t)count * size);
}

static void row_add(void *arg, int64_t global, int64_t local, int64_t count)
{
    row_copy *c = arg;
    for (int64_t i = 0; i < count; i++)
        c->sum[global + i] += ax_load(c->dtype, c->local, local + i);
}

ax_status ax_tensor_scatter(ax_ctx *ctx, ax_tensor *tensor, const void *global)
{
    const ax_grid *grid = ctx->grid;
    int rank = ax_grid_rank(grid);
    ax_box box = ax_tensor_box(grid, tensor, rank);
    size_t bytes = (size_t)ax_tensor_bytes(grid, tensor);
    AX_CHECK(tensor->data || !bytes, AX_ERR_INTERNAL,
             "ax_tensor_scatter: the tensor has no memory (its data is NULL): allocate it first");
    row_copy copy = {.dtype = tensor->dtype, .global = (char *)global};
    AX_TRY(ax_calloc(bytes, 1, &copy.local));
    if (at_origin(grid, rank, tensor->layout.partial))
        for_rows(tensor, &box, row_to_local, &copy);
    ax_status status = bytes ? ax_copy_in(ctx->stream, tensor->data, copy.local, bytes) : AX_OK;
    free(copy.local);
    return status;
}

/* Gathers in host memory the tensor's boxes of all ranks of the pipeline stage, or of all stages if the
 * tensor's layout names the axis pipe. The box of the i-th of these ranks begins at element i · chunk of
 * *out. */
static ax_status gather_boxes(ax_ctx *ctx, const ax_tensor *tensor, int64_t chunk, char **out)
{
    ax_grid *grid = ctx->grid;
    size_t size = ax_dtype_size(tensor->dtype), bytes = (size_t)ax_tensor_bytes(grid, tensor);
    char *all;
    ax_work *work;
    ax_comm *comm;
    AX_TRY(ax_grid_comm(grid, stage_axes(grid, axes_named(tensor)), &comm));
    AX_TRY(ax_calloc((size_t)(ax_comm_size(comm) * chunk), size, &all));
    char *mine = all + (size_t)(ax_comm_rank(comm) * chunk) * size;
    ax_status status = bytes ? ax_copy_out(ctx->stream, mine, tensor->data, bytes) : AX_OK;
    if (status == AX_OK)
        status = ax_all_gather(comm, NULL, mine, all, chunk, tensor->dtype, &work);
    if (status == AX_OK)
        status = ax_wait(&work);
    if (status == AX_OK)
        *out = all;
    else
        free(all);
    return status;
}

ax_status ax_tensor_collect(ax_ctx *ctx, const ax_tensor *tensor, void *global)
{
    ax_grid *grid = ctx->grid;
    int64_t count = ax_tensor_global_count(tensor);
    ax_box largest = {{0}, {0}};
    for (int d = 0; d < tensor->ndim; d++)
        largest.n[d] = ax_tensor_chunk(grid, tensor, d);
    int64_t chunk = box_room(tensor, &largest);
    row_copy copy = {.dtype = tensor->dtype, .global = global};
    char *all;
    AX_TRY(gather_boxes(ctx, tensor, chunk, &all));
    bool adds = ax_grid_effective(grid, tensor->layout.partial);
    ax_status status = adds ? ax_calloc((size_t)count, sizeof *copy.sum, &copy.sum) : AX_OK;
    bool all_stages = axes_named(tensor) >> AX_PIPE & 1;
    int stage = ax_grid_coord(grid, ax_grid_rank(grid), AX_PIPE);
    for (int r = 0, i = 0; r < ax_grid_ranks(grid) && status == AX_OK; r++) {
        if (!all_stages && ax_grid_coord(grid, r, AX_PIPE) != stage)
            continue;
        copy.local = all + (size_t)(i++ * chunk) * ax_dtype_size(tensor->dtype);
        if (!is_primary(grid, tensor, r))
            continue;
        ax_box box = ax_tensor_box(grid, tensor, r);
        for_rows(tensor, &box, adds ? row_add : row_to_global, &copy);
    }
    for (int64_t i = 0; i < count && adds && status == AX_OK; i++)
        ax_store(tensor->dtype, global, i, copy.sum[i]);
    free(copy.sum);
    free(all);
    return status;
}
