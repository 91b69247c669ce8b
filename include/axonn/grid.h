/* grid: the ranks as a grid of named axes, and one rank's world, the context.
 *
 * The axes are the papers' G_x, G_y, G_z, G_inter (pipe) and G_data, innermost first:
 * rank = (((data·P + pipe)·Z + z)·Y + y)·X + x, unless the ranks were put in another order (ax_grid_world).
 * "Axis" always means grid; "dim" always means tensor. */
#ifndef AXONN_GRID_H
#define AXONN_GRID_H

#include "axonn/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { AX_MAX_AXES = 16 }; /* of a grid, factors included */

typedef uint8_t ax_axis;     /* index of an axis in its grid */
typedef uint16_t ax_axisset; /* bit a = axis a */

/* The axes that every grid has, in rank order, x innermost. Factors of them follow (ax_grid_factor). */
enum { AX_X, AX_Y, AX_Z, AX_PIPE, AX_DATA, AX_AXES_STANDARD };

/* What an axis may be a product of, one row each: FACTOR(id, axis, suffix of the major factor, of the minor
 * one). Factor KV of x names the axes x.kv and x.rep. */
#define AX_FACTORS(FACTOR) FACTOR(KV, AX_X, "kv", "rep")
typedef enum ax_factor {
#define AX_FACTOR_ENUM(id, axis, major, minor) AX_FACTOR_##id,
    AX_FACTORS(AX_FACTOR_ENUM)
#undef AX_FACTOR_ENUM
        AX_FACTOR_COUNT
} ax_factor;

/* axis = major · minor: a coordinate along `axis` is (that along major) · (size of minor) + (that along
 * minor). */
typedef struct ax_factoring {
    ax_axis axis, major, minor;
} ax_factoring;

typedef struct ax_grid ax_grid;

/* Sizes of the standard axes; each at least 1. */
typedef struct ax_grid_size {
    int x, y, z, pipe, data;
} ax_grid_size;

/* Lays a grid over `world`, whose size must be the product of the sizes: else AX_ERR_USAGE. Collective along
 * world. The grid borrows world; the caller owns *out. */
AX_MUST_CHECK ax_status ax_grid_create(ax_comm *world, ax_grid_size size, ax_grid **out);
void ax_grid_destroy(ax_grid **grid);
/* Lets collectives along the grid's axes, those that ax_grid_factor makes later too, go from device to device
 * where they can (ax_comm_connect); says once where they do not, and why. The device is closed after the grid
 * is destroyed. Collective along the grid. */
AX_MUST_CHECK ax_status ax_grid_connect(ax_grid *grid, ax_device *dev);

ax_grid_size ax_grid_sizes(const ax_grid *grid);
/* The size along a standard axis, and all of them in a struct. */
int ax_grid_size_along(ax_grid_size size, ax_axis axis);
ax_grid_size ax_grid_size_of(const int n[AX_AXES_STANDARD]);
int ax_grid_axes(const ax_grid *grid);                            /* number of axes, factors included */
int ax_grid_axis_size(const ax_grid *grid, ax_axis axis);         /* ranks along it */
const char *ax_grid_axis_name(const ax_grid *grid, ax_axis axis); /* "x", "x.kv", … */
const char *ax_axis_name(ax_axis axis);                           /* of a standard axis */
int ax_grid_ranks(const ax_grid *grid);
int ax_grid_rank(const ax_grid *grid);
/* Coordinate of a rank along an axis. */
int ax_grid_coord(const ax_grid *grid, int rank, ax_axis axis);
/* The rank whose coordinates are this one's but for `coord` along `axis`. */
int ax_grid_peer(const ax_grid *grid, ax_axis axis, int coord);
/* The axis of that name, or AX_ERR_USAGE naming those that exist. */
AX_MUST_CHECK ax_status ax_grid_axis_find(const ax_grid *grid, const char *name, size_t len, ax_axis *out);
/* Declares that the axis of `factor` is a product whose major factor has `size` ranks. From then on layouts
 * and sets of axes may name the factors. A dim split by x.kv and then x.rep lies on the same ranks in the
 * same order as one split by x, in equal boxes where the sizes divide its extent: one split after the other
 * where they do not. A factor of all ranks of the axis is the axis itself. Declaring the same again changes
 * nothing; one axis may have several factorings if, of each two major sizes, one divides the other: a later
 * factoring is named with its sizes ("x.kv4", "x.rep2"). *out: an index for ax_grid_factoring. AX_ERR_USAGE
 * if `size` does not divide the axis, or fits no factoring that is in use. Collective along the grid. */
AX_MUST_CHECK ax_status ax_grid_factor(ax_grid *grid, ax_factor factor, int size, int *out);
ax_factoring ax_grid_factoring(const ax_grid *grid, int index);
/* Axes as they do not overlap: an axis that has factors is replaced by them, down to those that have none. */
ax_axisset ax_grid_atoms(const ax_grid *grid, ax_axisset axes);
/* The axes of a set by name, "z.data"; an axis all of whose factors are in it by its own. Returns out. */
enum { AX_AXISSET_TEXT = 128 };
char *ax_grid_set_print(const ax_grid *grid, ax_axisset axes, char out[AX_AXISSET_TEXT]);
/* The atoms of `axes` whose size is above 1: two sets that are equal so have the same groups. */
ax_axisset ax_grid_effective(const ax_grid *grid, ax_axisset axes);
/* Ranks of a group along `axes`: the product of the sizes of their atoms. */
int ax_grid_group_size(const ax_grid *grid, ax_axisset axes);

/* The communicator of the ranks that differ from this one only along `axes`, ordered by rank; owned by the
 * grid. Its ax_comm_traffic_get is what travelled along exactly this set, whatever it was called. Not
 * collective: pipeline stages, which do different things, ask for different ones. */
ax_comm *ax_grid_comm(const ax_grid *grid, ax_axisset axes);
/* The communicators that there are: group `index` of ax_grid_groups, and the atoms that it is along. */
int ax_grid_groups(const ax_grid *grid);
ax_comm *ax_grid_group(const ax_grid *grid, int index, ax_axisset *axes);
/* That of all ranks of the grid. */
ax_comm *ax_grid_comm_all(const ax_grid *grid);

/* The axes in the order in which ranks are numbered, innermost first: consecutive ranks, which launchers
 * place on one machine, differ along the first. */
typedef struct ax_grid_order {
    ax_axis axis[AX_AXES_STANDARD];
} ax_grid_order;
extern const ax_grid_order ax_grid_order_default; /* x, y, z, pipe, data */
/* "y,x,z,pipe,data" and back; AX_ERR_USAGE if it does not name each axis once. Not collective. */
AX_MUST_CHECK ax_status ax_grid_order_parse(const char *text, ax_grid_order *out);
char *ax_grid_order_print(const ax_grid_order *order, char out[32]);
/* The coordinates of rank `rank` under an order, by axis; returns the rank that has them by default. */
int ax_grid_place(ax_grid_size size, const ax_grid_order *order, int rank, int coord[AX_AXES_STANDARD]);
/* The ranks of `world` numbered anew, so that a grid laid over *out stands on `world` in that order. The size
 * must fit. The caller owns *out and destroys it before world. Collective along world. */
AX_MUST_CHECK ax_status ax_grid_world(ax_comm *world, ax_grid_size size, const ax_grid_order *order,
                                      ax_comm **out);

/* Whether a grid would do; `arg` is the caller's. */
typedef bool ax_grid_legal_fn(const void *arg, ax_grid_size size);
/* "x=2 y=1 z=1 pipe=1 data=4". Returns out. */
char *ax_grid_size_print(ax_grid_size size, char out[80]);
/* Prints the up to three grids of `ranks` ranks that are legal (NULL: all are) and nearest to `wanted`, as
 * "x=2 y=1 z=1 pipe=1 data=4; …", or "none". Returns out. */
char *ax_grid_nearest(ax_grid_size wanted, int ranks, ax_grid_legal_fn *legal, const void *arg,
                      char out[320]);

/* ---- context ------------------------------------------------------------------------------------- */

/* How a run is distributed over its grid and what of its communication is overlapped. Zero-initialised, but
 * for overlap: the defaults. */
typedef struct ax_parallel {
    const struct ax_strategy *strategy; /* dist.h; NULL: axonn, all axes */
    int zero;                           /* stage of ZeRO along data, 0 … 3 */
    struct {
        bool oar; /* all-reduce of the input's gradient behind the product of the weight's */
        bool ors; /* reduce-scatters of weight gradients stay in flight */
        bool oag; /* all-gathers of weights are started ahead, in the order of their use */
    } overlap;
    size_t weight_cache; /* bytes of gathered weights that are kept until the optimizer changes them */
} ax_parallel;

/* One rank's world. Several live in one process when ranks are threads; the library has no other state. Plain
 * data: fill it, or use ax_ctx_create. */
typedef struct ax_ctx {
    ax_device *dev;
    ax_stream *stream; /* the compute stream */
    ax_comm *world;
    ax_grid *grid;
    int neighbour;    /* this rank's number among those of its machine */
    ax_dtype compute; /* activations, and weights of two or more dims in kernels: F64, F32, BF16 or F16 */
    ax_dtype accum;   /* master weights, gradients, statistics, one-dim parameters: F64 or F32 */
    uint64_t seed;
    ax_parallel parallel; /* not to be changed once there are layers or parameters */
} ax_ctx;

/* The threads that a rank computes with. */
typedef struct ax_threads {
    int count;
    int neighbours;     /* ranks on this machine, this one among them */
    ax_binding binding; /* dev.h */
} ax_threads;

/* Threads to compute with on each rank: `wanted`, or if that is 0 the rank's share of the cores that the
 * ranks of its machine may use, at least 1. They are bound to cores, no two ranks' to the same, if all ranks
 * of the machine together have as many threads as cores, unless the environment has AXONN_PIN=off. Warns
 * where the launcher's binding makes threads share cores, or leaves cores idle. Collective along world. */
AX_MUST_CHECK ax_status ax_threads_share(ax_comm *world, int wanted, ax_threads *out);

/* ZeRO 0 with all three overlaps and no weight cache, by the strategy axonn. */
extern const ax_parallel ax_parallel_default;

/* Opens device `device` with `threads` threads (0: ax_threads_share) and lays a grid over `world`; ->parallel
 * has its defaults and is the caller's to change. With 0 the calling thread may be bound to a core until this
 * thread destroys the context. The context owns device, stream and grid and borrows world.
 * Collective along world. */
AX_MUST_CHECK ax_status ax_ctx_create(ax_comm *world, ax_grid_size size, const char *device, int threads,
                                      ax_dtype compute, uint64_t seed, ax_ctx **out);
/* The same with the threads that ax_threads_share gave. */
AX_MUST_CHECK ax_status ax_ctx_create_with(ax_comm *world, ax_grid_size size, const char *device,
                                           const ax_threads *threads, ax_dtype compute, uint64_t seed,
                                           ax_ctx **out);
void ax_ctx_destroy(ax_ctx **ctx);

/* Device memory for set-up, never within a step, in which collectives are fastest: ax_comm_alloc of the world
 * where the device uses host memory, else ax_device_alloc. `bytes` is the same in both calls; NULL may be
 * freed. Not collective. AX_ERR_MEMORY. */
AX_MUST_CHECK ax_status ax_ctx_alloc(ax_ctx *ctx, size_t bytes, void **out);
void ax_ctx_free(ax_ctx *ctx, void *memory, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
