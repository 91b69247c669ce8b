/* grid: the ranks as a grid of named axes (PyTorch: DeviceMesh), and the context (ax_ctx), which holds the
 * device, stream, grid and dtypes of one rank.
 *
 * The axes are those that the AxoNN papers call G_x, G_y, G_z, G_inter (pipe) and G_data, innermost first.
 * The rank with coordinates (x, y, z, pipe, data) has the number (((data·P + pipe)·Z + z)·Y + y)·X + x, where
 * X, Y, Z and P are the sizes of x, y, z and pipe, unless ax_grid_world put the ranks in another order. An
 * "axis" is always one of the grid, a "dim" always one of a tensor. */
#ifndef AXONN_GRID_H
#define AXONN_GRID_H

#include "axonn/comm.h"
#include "axonn/pipe.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { AX_MAX_AXES = 16 }; /* axes of a grid, factors included */

typedef uint8_t ax_axis;     /* index of an axis in its grid */
typedef uint16_t ax_axisset; /* set of axes: bit a is 1 if axis a is in the set */

/* The axes that every grid has, innermost first: AXIS(id, name, what the ranks along the axis split among
 * themselves). Factors of these axes (ax_grid_factor) are axes too, with the numbers from AX_AXES_STANDARD
 * on. */
#define AX_AXES(AXIS)                                                                                        \
    AXIS(X, x, "inner width of the MLP, heads")                                                              \
    AXIS(Y, y, "residual width")                                                                             \
    AXIS(Z, z, "stored weights, rows")                                                                       \
    AXIS(PIPE, pipe, "stages")                                                                               \
    AXIS(DATA, data, "rows")
enum {
#define AX_AXIS_ENUM(id, name, split) AX_##id,
    AX_AXES(AX_AXIS_ENUM)
#undef AX_AXIS_ENUM
        AX_AXES_STANDARD
};
#define AX_GRID_ORDER "x,y,z,pipe,data" /* their names in this order (ax_grid_order_default) */

/* Each row declares that an axis may be written as a product of two axes, its factors: FACTOR(id, axis,
 * suffix of the major factor, suffix of the minor factor). Row KV factors x into x.kv and x.rep, row EXPERT
 * data into data.rep and data.exp. */
#define AX_FACTORS(FACTOR)                                                                                   \
    FACTOR(KV, AX_X, "kv", "rep")                                                                            \
    FACTOR(EXPERT, AX_DATA, "rep", "exp")
typedef enum ax_factor {
#define AX_FACTOR_ENUM(id, axis, major, minor) AX_FACTOR_##id,
    AX_FACTORS(AX_FACTOR_ENUM)
#undef AX_FACTOR_ENUM
        AX_FACTOR_COUNT
} ax_factor;

/* Two factors of an axis. A rank's coordinate along `axis` is its coordinate along `major` times the size of
 * `minor`, plus its coordinate along `minor`. */
typedef struct ax_factoring {
    ax_axis axis, major, minor;
} ax_factoring;

typedef struct ax_grid ax_grid;

/* Sizes of the standard axes (index: AX_X, …), and of data.exp, the factor of data along which experts are
 * divided (index: AX_SIZE_EXPERT; it must divide the size of data). The size 0 stands for 1, so {.of =
 * {[AX_X] = 2}} is a grid of two ranks. ax_grid_size_along returns the size at an index, ax_grid_size_ranks
 * the product of the sizes of the standard axes, at most INT32_MAX. */
enum { AX_SIZE_EXPERT = AX_AXES_STANDARD, AX_GRID_SIZES };
typedef struct ax_grid_size {
    int of[AX_GRID_SIZES];
} ax_grid_size;
int ax_grid_size_along(ax_grid_size size, ax_axis index);
int64_t ax_grid_size_ranks(ax_grid_size size);

/* Arranges the ranks of `world` as a grid. AX_ERR_USAGE unless world has as many ranks as the product of the
 * sizes. If the size AX_SIZE_EXPERT is above 1, declares its factoring (ax_grid_experts). The grid borrows
 * world; the caller owns *out. Not collective: communicators are created when they
 * are first used. */
AX_MUST_CHECK ax_status ax_grid_create(ax_comm *world, ax_grid_size size, ax_grid **out);
void ax_grid_destroy(ax_grid **grid);
/* Connects the grid's communicators, including those created later, to the device, so that data go from
 * device to device where that is possible (ax_comm_connect). If some communicators cannot be connected, logs
 * the axes of the first of these communicators and the reason, and those of the others at level debug.
 * Destroy the grid before closing the device. Collective along the grid. */
AX_MUST_CHECK ax_status ax_grid_connect(ax_grid *grid, ax_device *dev);

ax_grid_size ax_grid_sizes(const ax_grid *grid);
int ax_grid_axes(const ax_grid *grid);                            /* number of axes, factors included */
int ax_grid_axis_size(const ax_grid *grid, ax_axis axis);         /* number of ranks along the axis */
const char *ax_grid_axis_name(const ax_grid *grid, ax_axis axis); /* "x", "x.kv", … */
/* Returns the name of a size of ax_grid_size: that of a standard axis, or "expert". */
const char *ax_axis_name(ax_axis index);
int ax_grid_ranks(const ax_grid *grid);
int ax_grid_rank(const ax_grid *grid);
/* Returns the coordinate of a rank along an axis. */
int ax_grid_coord(const ax_grid *grid, int rank, ax_axis axis);
/* Returns the rank whose coordinates are this rank's, except that its coordinate along `axis` is `coord`. */
int ax_grid_peer(const ax_grid *grid, ax_axis axis, int coord);
/* Finds the axis named by the first `len` bytes of `name`. AX_ERR_USAGE, with a message that lists the axes,
 * if there is none. */
AX_MUST_CHECK ax_status ax_grid_axis_find(const ax_grid *grid, const char *name, size_t len, ax_axis *out);
/* Factors an axis (row `factor` of AX_FACTORS) into a major factor of `size` ranks and a minor factor. The
 * size of the minor factor is the size of the axis divided by `size`. From then on layouts and sets of axes
 * may name the factors. *out is an index for ax_grid_factoring. A factor that has the size of the whole axis
 * is the axis itself. Declaring the same factoring again changes nothing. All ranks declare the same
 * factorings; not collective.
 *
 * Several factorings. An axis may have several factorings if, for any two of them, the size of one major
 * factor divides the size of the other. The names of a later factoring include its sizes ("x.kv4", "x.rep2").
 * AX_ERR_USAGE if `size` does not divide the size of the axis. Also AX_ERR_USAGE if an earlier factoring of
 * the axis has a major factor whose size neither divides `size` nor is a multiple of `size`, or if the grid
 * could get more than AX_MAX_AXES axes.
 *
 * Layouts (tensor.h). A dim split by x.kv and then x.rep has its boxes (the parts that ranks hold) on the
 * same ranks, in the same order, as a dim split by x. The boxes of the two layouts are equal if the size of x
 * divides the number of units of the dim. Otherwise they may differ, because x.rep splits the parts that x.kv
 * has made. */
AX_MUST_CHECK ax_status ax_grid_factor(ax_grid *grid, ax_factor factor, int size, int *out);
ax_factoring ax_grid_factoring(const ax_grid *grid, int index);
/* Returns the factors of data whose minor one divides experts, or NULL if data has no such factors. */
const ax_factoring *ax_grid_experts(const ax_grid *grid);
/* Replaces each axis that has factors by its factors, recursively. Axes without factors are called atoms. A
 * set of atoms never counts an axis twice, as a whole and as a factor. */
ax_axisset ax_grid_atoms(const ax_grid *grid, ax_axisset axes);
/* Prints the names of a set's axes, "z.data". If a set has all factors of an axis, prints the axis instead of
 * its factors. Returns out. */
enum { AX_AXISSET_TEXT = 128 };
char *ax_grid_set_print(const ax_grid *grid, ax_axisset axes, char out[AX_AXISSET_TEXT]);
/* Returns the effective set of `axes`: its atoms (ax_grid_atoms) whose size is above 1. Two sets with the
 * same effective set have the same groups of ranks. */
ax_axisset ax_grid_effective(const ax_grid *grid, ax_axisset axes);
/* Returns the number of ranks in a group along `axes`: the product of the sizes of their atoms. */
int ax_grid_group_size(const ax_grid *grid, ax_axisset axes);

/* Returns the communicator of the ranks that differ from this one only along `axes`, ordered by rank; owned
 * by the grid. Sets of axes with the same effective set (ax_grid_effective) share a communicator;
 * ax_comm_traffic_get returns its traffic. The first call for an effective set creates the communicator and
 * is collective along this set alone; later calls are not collective. */
AX_MUST_CHECK ax_status ax_grid_comm(ax_grid *grid, ax_axisset axes, ax_comm **out);
/* A set of axes along which ranks communicate, and the buffers of its communicator (ax_comm_buffers_of). */
typedef struct ax_grid_use {
    ax_axisset axes;
    ax_comm_buffers buffers;
} ax_grid_use;
/* Lists the sets of axes for which a communicator of several ranks exists. *out is an array in ascending
 * order of sets that ends with the set 0; the caller frees it. Not collective. */
AX_MUST_CHECK ax_status ax_grid_used(const ax_grid *grid, ax_grid_use **out);
/* Creates the communicators along the sets of axes in `used`, a list as from ax_grid_used, for instance that
 * of a dry run of the same network, and gives them their buffers (ax_comm_reserve_buffers). For set-up.
 * Collective along the grid. AX_ERR_MEMORY. */
AX_MUST_CHECK ax_status ax_grid_prepare(ax_grid *grid, const ax_grid_use *used);
/* Returns the bytes of the buffers of all communicators of the grid. */
size_t ax_grid_buffers(const ax_grid *grid);
/* Returns the bytes of buffers that ax_grid_prepare would add: all that `used` asks for, or, if another
 * engine on this grid has prepared communicators, less. Not collective. */
size_t ax_grid_lacking_buffers(const ax_grid *grid, const ax_grid_use *used);
/* Sets *out to ranks of a grid over a dry world: one, the lowest, for each way in which ranks with this
 * rank's coordinate along pipe lie on nodes with the ranks along the communicators so far, but this rank's
 * way (ax_comm_dry_mark). They may send more to other nodes than this rank. The caller frees *out.
 * AX_ERR_MEMORY.
 */
AX_MUST_CHECK ax_status ax_grid_apart(const ax_grid *grid, int **out, int *n);
/* ax_grid_groups returns the number of communicators that the grid has created. ax_grid_group returns one of
 * these communicators, and sets *axes to the atoms along which its ranks differ. */
int ax_grid_groups(const ax_grid *grid);
ax_comm *ax_grid_group(const ax_grid *grid, int index, ax_axisset *axes);

/* The axes in the order in which ranks are numbered, innermost first: consecutive ranks differ along the
 * first axis. Launchers put consecutive ranks on one machine. */
typedef struct ax_grid_order {
    ax_axis axis[AX_AXES_STANDARD];
} ax_grid_order;
extern const ax_grid_order ax_grid_order_default; /* x, y, z, pipe, data */
/* ax_grid_order_parse reads and ax_grid_order_print prints an order such as "y,x,z,pipe,data". AX_ERR_USAGE
 * if the text does not name each standard axis once. Not collective. */
AX_MUST_CHECK ax_status ax_grid_order_parse(const char *text, ax_grid_order *out);
char *ax_grid_order_print(const ax_grid_order *order, char out[32]);
/* Sets coord[axis] to the coordinates of rank `rank` in a grid whose ranks are numbered in this order.
 * Returns the rank that has these coordinates in the default order. */
int ax_grid_place(ax_grid_size size, const ax_grid_order *order, int rank, int coord[AX_AXES_STANDARD]);
/* Sets *out to the numbers of all ranks of the grid in this order, by their rank in the default order (the
 * inverse of ax_grid_place). The caller frees *out. AX_ERR_MEMORY. Not collective. */
AX_MUST_CHECK ax_status ax_grid_numbers(ax_grid_size size, const ax_grid_order *order, int **out);
/* Creates the communicator *out, which has the ranks of `world` in another order: ax_grid_create over *out
 * gives each rank the coordinates that `order` gives to its number in `world` (ax_grid_place). The product of
 * the sizes must be the size of `world`. The caller owns *out and destroys it before world. Collective along
 * world. */
AX_MUST_CHECK ax_status ax_grid_world(ax_comm *world, ax_grid_size size, const ax_grid_order *order,
                                      ax_comm **out);

/* Returns true if a grid of this size is legal; `arg` is what the caller of ax_grid_nearest passed as
 * `arg`. */
typedef bool ax_grid_legal_fn(const void *arg, ax_grid_size size);
/* Prints the sizes as "x=2 y=1 z=1 pipe=1 data=4", followed by " expert=2" if it is above 1. Returns out. */
char *ax_grid_size_print(ax_grid_size size, char out[80]);
/* Prints up to three grids of `ranks` ranks, those nearest to `wanted` for which `legal` returns true
 * (`legal` NULL: all grids are legal), or "none". Each is printed as the keys by which it differs from
 * `wanted`, so that users can give them: "grid.x=1 grid.data=4; grid.data=2". Returns out. */
char *ax_grid_nearest(ax_grid_size wanted, int ranks, ax_grid_legal_fn *legal, const void *arg,
                      char out[320]);

/* ---- classes of memory ---------------------------------------------------------------------------- */

/* The classes of a rank's memory: X(ID, name in the log, where it is: DEVICE, HOST or DISK). The classes on
 * the device are what ax_ctx_peak counts. */
/* clang-format off */
#define AX_MEMORY(X)                                                                                         \
    /* Master weights, and weights that kernels read without a copy of their own: vectors, frozen weights, */ \
    /* all weights in fp32. */                                                                               \
    X(WEIGHTS, "weights", DEVICE)                                                                            \
    /* Weights in the compute dtype beside their master weights; gathered weights (train.weight_cache). */   \
    X(COPIES, "compute copies", DEVICE)                                                                      \
    X(MASKS, "masks", DEVICE) /* of pruned matrices */                                                       \
    X(GRADIENTS, "gradients", DEVICE)                                                                        \
    X(OPTIMIZER, "optimizer", DEVICE)                                                                        \
    X(RING, "buckets of offloaded state", DEVICE)                                                            \
    X(ACTIVATIONS, "activations", DEVICE) /* and saved tensors (ax_frame) */                                 \
    /* Buffers for tokens, targets and positions, for loss and norms, and the tables of sums and updates. */ \
    X(BATCH, "batch", DEVICE)                                                                                \
    X(TABLES, "position tables", DEVICE) /* cosines and sines of rotary position embeddings */               \
    X(MESSAGES, "messages", DEVICE)      /* buffers of messages between pipeline stages */                   \
    X(CACHE, "key/value cache", DEVICE)  /* of a generator */                                                \
    X(WORKSPACE, "kernel scratch", DEVICE)                                                                   \
    /* Buffers of messages between stages; 0 if the host can access the device's memory at any time. */      \
    X(PINNED, "pinned messages", HOST)                                                                       \
    /* Buffers of collectives between nodes over MPI (ax_comm_buffers). */                                   \
    X(COLLECTIVES, "collectives", HOST)                                                                      \
    X(LOGITS, "logits", HOST) /* of a generator, for the host to draw tokens from */                         \
    /* Offloaded state in host memory, and the buffers between its file and a GPU. */                        \
    X(HOST, "offloaded state", HOST)                                                                         \
    X(FILE, "offloaded state", DISK)
/* clang-format on */

typedef enum ax_memory_class {
#define AX_MEMORY_ID_(ID, ...) AX_MEMORY_##ID,
    AX_MEMORY(AX_MEMORY_ID_)
#undef AX_MEMORY_ID_
        AX_MEMORY_CLASSES
} ax_memory_class;

/* Bytes of memory by class. */
typedef struct ax_memory {
    size_t bytes[AX_MEMORY_CLASSES];
} ax_memory;
typedef enum ax_memory_place { AX_MEMORY_ON_DEVICE, AX_MEMORY_ON_HOST, AX_MEMORY_ON_DISK } ax_memory_place;
/* Returns the bytes of all classes at a place; ax_memory_total those on the device. */
size_t ax_memory_on(const ax_memory *memory, ax_memory_place place);
/* ax_memory_name returns the name of a class in the log, ax_memory_where its place. */
const char *ax_memory_name(ax_memory_class one);
ax_memory_place ax_memory_where(ax_memory_class one);
size_t ax_memory_total(const ax_memory *memory);
/* Adds the bytes of each class of `more` to those of *memory. */
void ax_memory_add(ax_memory *memory, const ax_memory *more);
/* Prints each class at a place that has bytes, with its name: "weights 1.2 MiB, batch 4 KiB". Returns out. */
char *ax_memory_print(const ax_memory *memory, ax_memory_place place, char out[512]);

/* ---- context ------------------------------------------------------------------------------------- */

/* Where the state of trained matrices lies that only updates read: master weights, if kernels read rounded
 * copies, and the optimizer's arrays (arXiv 2110.13005, section on the memory optimization). Updates bring it
 * to the device bucket by bucket, or run where it is. */
typedef enum ax_offload_place {
    AX_OFFLOAD_NONE, /* on the device */
    AX_OFFLOAD_HOST, /* in host memory, pinned for a GPU */
    AX_OFFLOAD_FILE  /* in an unnamed file, which is gone when the process ends */
} ax_offload_place;
typedef enum ax_offload_update {
    AX_OFFLOAD_AUTO,      /* ON_HOST if the device computes in host memory, else ON_DEVICE */
    AX_OFFLOAD_ON_DEVICE, /* the device updates; the state passes through it in buckets */
    AX_OFFLOAD_ON_HOST    /* the host updates, where the state is */
} ax_offload_update;
typedef enum ax_offload_memory {
    AX_OFFLOAD_BY_DEVICE, /* not known yet: the device's backend says it (ax_offload_resolve) */
    AX_OFFLOAD_SHARED,    /* the device computes in host memory, or the host can access the device's */
    AX_OFFLOAD_DISCRETE   /* the device has memory that the host cannot access */
} ax_offload_memory;
#define AX_EXPERT_ROOM 2.0            /* default of ax_parallel.expert_room */
enum { AX_OFFLOAD_BUCKET = 4 << 20 }; /* default number of elements of a bucket */
typedef struct ax_offload {
    ax_offload_place optimizer;
    ax_offload_update update;
    int64_t bucket; /* elements, rounded up to a multiple of AX_UPDATE_UNIT; 0: AX_OFFLOAD_BUCKET */
    int64_t chunk;  /* without clipping, the gradients of this many buckets are reduced while those before are
                       updated (k in the paper); 0: all are reduced before the update */
    const char *dir;          /* directory of the file; borrowed. NULL: the current directory */
    ax_offload_memory memory; /* of the device, also if nothing is offloaded */
} ax_offload;

/* How a run is distributed over its grid, and which communication overlaps with computation. The default of
 * each field is 0, except for `overlap` (ax_parallel_default). */
typedef struct ax_parallel {
    const struct ax_strategy *strategy; /* which axes split which dims; NULL: "axonn", which uses all axes */
    int zero; /* ZeRO stage: along data, 1 splits optimizer state, 2 also gradients, 3 also weights */
    bool narrow_grads; /* gradients of matrices have the compute dtype; false: the accum dtype */
    struct {
        bool oar; /* the all-reduce of the input gradient overlaps with the GEMM of the weight gradient */
        bool ors; /* reduce-scatters of weight gradients overlap with the backward pass of other layers */
        bool oag; /* all-gathers of weights are prefetched in the order of use */
        bool dtd; /* of the places of divided experts each rank along x and y sends a part (nn/moe_capacity.c)
                   */
    } overlap;
    size_t weight_cache; /* bytes of gathered weights that are kept until the optimizer updates them */
    bool keep_results;   /* what is computed again in backward takes the results of collectives of
                            activations from forward; false: it communicates again */
    double expert_room;  /* if experts are divided among ranks: rows for which a rank has memory, in units of
                            the rows that each rank computes if all experts have equally many; at least 1; 0:
                            AX_EXPERT_ROOM */
    ax_offload offload;
    ax_pipe_settings pipe;
} ax_parallel;

/* The context of one rank. A process whose ranks are threads has several contexts. A program may fill in the
 * fields itself, or use ax_ctx_create. */
typedef struct ax_ctx {
    ax_device *dev;
    ax_stream *stream; /* the compute stream */
    ax_comm *world;
    ax_grid *grid;
    int local_rank;   /* this rank's index, from 0, among the ranks of its machine (MPI: local rank) */
    ax_dtype compute; /* dtype of activations, and of weights with two or more dims as kernels read them: F64,
                         F32, BF16, F16 */
    ax_dtype accum; /* dtype of master weights, gradients (but see narrow_grads), statistics, parameters with
                       one dim: F64, F32 */
    uint64_t seed;
    ax_parallel parallel; /* must not change once layers or parameters exist */
    bool owns_world;      /* ax_ctx_destroy destroys `world` */
    ax_memory held;       /* bytes that the device holds for this rank now, by class */
    size_t peak;          /* the most that it has held so far (ax_ctx_peak) */
    size_t most;          /* bytes that it may hold (runtime.device_memory); 0: no limit */
} ax_ctx;

/* The compute threads of a rank, and the cores to which they are bound. */
typedef struct ax_threads {
    int count;          /* number of threads */
    int local_size;     /* number of ranks on this machine (MPI: local size), this rank included */
    ax_binding binding; /* the cores of the threads, or why they are not bound (dev.h) */
} ax_threads;

/* Chooses the number of compute threads of this rank: `wanted`; or, if `wanted` is 0, the rank's share of the
 * cores that the ranks of its machine may use, within the CPU quota, at least 1. Also chooses a core for each
 * thread, to which the thread is to be bound, if all of the following hold: the system lists the physical
 * cores; the ranks of the machine together have exactly as many threads as cores that they may use; each rank
 * can get cores of its own; no CPU quota is lower; and runtime.pin is not off (runtime.h). Otherwise
 * out->binding.why_not says why not. Warns if there are more threads than cores, or if the launcher's binding
 * makes threads share cores or leaves cores idle. Collective along world. */
AX_MUST_CHECK ax_status ax_threads_share(ax_comm *world, int wanted, ax_threads *out);

/* The defaults: strategy axonn, ZeRO stage 0, gradients in the accum dtype, all three overlaps, no weight
 * cache. */
extern const ax_parallel ax_parallel_default;

/* Opens device `device` with `threads` threads (0: ax_threads_share chooses) and lays a grid over `world`.
 * AX_ERR_USAGE if the device has no memory (dry).
 * (*out)->parallel has the defaults, which the caller may change. With threads 0 the calling thread may be
 * bound to a core until it destroys the context. The context owns device, stream and grid and borrows world.
 * Collective along world. */
AX_MUST_CHECK ax_status ax_ctx_create(ax_comm *world, ax_grid_size size, const char *device, int threads,
                                      ax_dtype compute, uint64_t seed, ax_ctx **out);
/* Opens a device and lays a grid over `world`, as ax_ctx_create does. The device gets the number of threads,
 * and the binding of threads to cores, that ax_threads_share has returned in *threads. Collective along
 * `world`. */
AX_MUST_CHECK ax_status ax_ctx_create_with(ax_comm *world, ax_grid_size size, const char *device,
                                           const ax_threads *threads, ax_dtype compute, uint64_t seed,
                                           ax_ctx **out);
/* Creates the context of a dry run: this process acts as rank `rank` of `ranks` ranks on a grid of this size,
 * without any other rank, on the device `dry`, which has no memory and computes nothing. `parallel` NULL: the
 * defaults. The context also owns its world (ax_comm_dry_create). Not collective. */
AX_MUST_CHECK ax_status ax_ctx_create_dry(int rank, int ranks, ax_grid_size size, ax_dtype compute,
                                          const ax_parallel *parallel, ax_ctx **out);
/* Does the same as a rank of `world`, a communicator of a dry run (ax_comm_is_dry), which the context
 * borrows.
 */
AX_MUST_CHECK ax_status ax_ctx_create_dry_over(ax_comm *world, ax_grid_size size, ax_dtype compute,
                                               const ax_parallel *parallel, ax_ctx **out);
void ax_ctx_destroy(ax_ctx **ctx);

/* Allocates device memory in which collectives are fastest: by ax_comm_alloc of the world if the device uses
 * host memory, else by ax_device_alloc. For set-up, never within a step. `of` is the class as which the bytes
 * are counted. Pass the same class and bytes to ax_ctx_free; NULL may be freed. Not collective.
 * AX_ERR_MEMORY, also if the device would then hold more than runtime.device_memory allows: the message has
 * what it holds, by class. */
AX_MUST_CHECK ax_status ax_ctx_alloc(ax_ctx *ctx, ax_memory_class of, size_t bytes, void **out);
void ax_ctx_free(ax_ctx *ctx, ax_memory_class of, void *memory, size_t bytes);
/* Do the same with a block of memory whose bytes belong to several classes, all on the device. */
AX_MUST_CHECK ax_status ax_ctx_alloc_block(ax_ctx *ctx, const ax_memory *of, void **out);
void ax_ctx_free_block(ax_ctx *ctx, const ax_memory *of, void *memory);
/* Return the bytes that the device holds for this rank, now and at most so far: the scratch memory of its
 * kernels (ax_device_workspace), which is allocated when the context opens the device, and all that
 * ax_ctx_alloc has allocated, as many bytes as were asked for. What libraries and drivers take beside that is
 * not counted (ax_device_held measures it). */
size_t ax_ctx_held(const ax_ctx *ctx);
size_t ax_ctx_peak(const ax_ctx *ctx);
/* Sets *bytes to the bytes that a rank's device may hold, the value of runtime.device_memory; 0: no limit. A
 * context keeps the value that it was created with; contexts of dry runs have no limit. AX_ERR_USAGE if the
 * environment variable is wrong. */
AX_MUST_CHECK ax_status ax_ctx_find_limit(size_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
