/* dev: where arrays live and what computes on them.
 *
 * A device is one table (ax_device_ops): memory, copies and kernels. A backend fills in the kernels that it
 * does better than the backend it names as `delegate` and inherits the rest:
 *
 *   ref    plain loops in double precision, any dtype: the oracle that judges every other backend
 *   cpu    threads and SIMD for the host's processor; delegates to ref
 *   check  runs cpu's or ref's kernels, but memory faults when the host touches it, and is poisoned (NaN)
 *          when it is handed out: it finds host/device mix-ups and reads of what nobody wrote
 *   cuda   an NVIDIA GPU, in a library of its own (libaxonn_cuda.so) that is loaded when it is asked for
 *   dry    no memory and no arithmetic: counts work and lets a planner observe what is used when
 *
 * What kernels there are, and what they are given, is in kernels.h. All functions are not collective. A
 * process made by fork neither uses nor closes the devices of its parent. */
#ifndef AXONN_DEV_H
#define AXONN_DEV_H

#include "axonn/kernels.h"
#include "axonn/trace.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- collectives --------------------------------------------------------------------------------- */

/* What ranks of a group do together (comm.h), as data: what a communicator carries out, what a dry device
 * observes, and what devices that reach each other do without the host. */
typedef enum ax_reduce_op { AX_SUM, AX_MAX } ax_reduce_op;

typedef enum ax_coll {
    AX_ALL_REDUCE,
    AX_ALL_GATHER,
    AX_REDUCE_SCATTER,
    AX_ALL_TO_ALL,
    AX_BROADCAST,
    AX_BARRIER
} ax_coll;

typedef struct ax_coll_args {
    ax_coll coll;
    const void *send;
    void *recv;
    int64_t count; /* per rank for gather, scatter and all-to-all; of the whole for the others */
    ax_dtype dtype;
    ax_reduce_op op;
    int root;
} ax_coll_args;

/* "all_reduce", …; never NULL. */
const char *ax_coll_name(ax_coll coll);
/* "all_reduce (max) of 8 f32", "broadcast of 3 i64 from 2", "barrier". */
void ax_coll_describe(const ax_coll_args *args, char *out, size_t size);

/* ---- devices ------------------------------------------------------------------------------------- */

typedef struct ax_device ax_device;

/* An ordered queue of work on a device. The host backends run a kernel before ax_launch returns; a GPU runs
 * it later, in order, and a failure of it may be told by any later call. */
typedef struct ax_stream {
    ax_device *dev;
    void *impl; /* the backend's */
} ax_stream;

typedef ax_status ax_kernel_fn(ax_stream *stream, const void *args);

/* For backends: a product that does not end in STORE by the two kernels of the table that it is. */
AX_MUST_CHECK ax_status ax_gemm_in_two(ax_stream *stream, const ax_gemm_args *args,
                                       ax_kernel_fn *const kernel[]);

/* Devices that reach one another without the host (GPUs by NCCL). A link is a rank's end of a group of them.
 * What is started on the links of a device runs in that order, beside its stream; so ranks that are in
 * several groups start on them in one common order. */
typedef struct ax_link ax_link;
enum { AX_LINK_TOKEN = 128, AX_LINK_PLACE = 32 };

typedef struct ax_link_group {
    const char *name;  /* for messages */
    const void *token; /* of the group: the same on all its ranks */
    int rank, size;
    /* NULL, or why the others will not come; asked now and then while this rank waits for them. */
    const char *(*failed)(void *user);
    void *user;
} ax_link_group;

typedef struct ax_link_ops {
    const char *name;
    /* Why this device has no links, or NULL. */
    const char *(*absent)(ax_device *dev);
    /* Which device of its machine it is: those of a group differ. */
    void (*place)(ax_device *dev, char out[AX_LINK_PLACE]);
    /* A new group's token, made by one rank for all. */
    ax_status (*invite)(void *token);
    /* Collective along the group; for set-up. If one rank fails, the others may wait up to two minutes. */
    ax_status (*open)(ax_device *dev, const ax_link_group *group, ax_link **out);
    void (*close)(ax_link **link); /* nothing may be in flight, unless the world has failed */
    /* Starts a collective between buffers of the device after what its stream has; args->count > 0. */
    ax_status (*start)(ax_link *link, const ax_coll_args *args, int64_t *ticket);
    /* What the device's stream is given from now on runs after it. The host does not wait. */
    ax_status (*await)(ax_link *link, int64_t ticket);
} ax_link_ops;

/* Some of a device's memory. */
typedef struct ax_span {
    const void *at;
    size_t bytes;
} ax_span;

typedef struct ax_device_ops {
    const char *name, *help;
    const char *delegate; /* whose entries fill the NULL ones, or NULL */
    /* Loads the table of a plugin, which is the delegate then; NULL if it cannot, and `absent` says why.
     * Optional. */
    const struct ax_device_ops *(*plugin)(void);
    /* Why the backend cannot be used on this host, or NULL if it can. Optional. */
    const char *(*absent)(void);
    /* Optional: those of the delegates are called too, `open` from the last delegate up to the backend
     * itself, `close` the other way round. */
    ax_status (*open)(ax_device *dev);
    void (*close)(ax_device *dev);
    /* Its memory, or that of a delegate, is not the host's: what collectives move goes through a copy, or
     * over links. */
    bool apart;

    /* From here on all entries are pointers; those that are NULL are inherited from the delegates. */

    const ax_link_ops *links; /* or NULL */
    /* Bytes that a device opened now could give to rank number `neighbour` of its machine, -1 if that is not
     * known; *place: the number of the memory that they are of. And the most that this process held of it,
     * libraries' share among it, as the driver counts. Optional: without them it is the host's memory, number
     * 0. */
    int64_t (*available)(int neighbour, int *place);
    int64_t (*held)(ax_device *dev);
    /* Bytes of scratch that kernels use on this device with so many threads; allocated by open. Optional. */
    size_t (*workspace)(int threads);
    ax_status (*alloc)(ax_device *dev, size_t bytes, void **out); /* zeroed unless poisoned, page-aligned */
    void (*free)(ax_device *dev, void *memory, size_t bytes);
    /* Each thread writes what is there in its part of an array once more. Optional. */
    void (*touch)(ax_device *dev, void *memory, size_t bytes);
    ax_status (*copy_in)(ax_stream *stream, void *device, const void *host, size_t bytes);
    ax_status (*copy_out)(ax_stream *stream, void *host, const void *device, size_t bytes); /* waits */
    /* ax_copy_out_begin and ax_copy_out_end. Optional, both or none: without them begin waits. */
    ax_status (*copy_out_begin)(ax_stream *stream, const void *device, size_t bytes);
    ax_status (*copy_out_end)(ax_stream *stream, void *host, size_t bytes);
    void (*poison)(ax_device *dev, void *memory, size_t bytes); /* optional: marks content as invalid */
    /* Returns when all that was launched has run. Optional: where it is missing, ax_launch itself waits. */
    ax_status (*wait)(ax_stream *stream);
    /* Launches as one. Between record_begin and record_end kernels are noted and not run; *graph is what was
     * noted, and `replay` enqueues it. record_end is called whatever became of the kernels; if it fails
     * nothing is left of them. forget: replays that were enqueued still run. Optional, all or none. */
    ax_status (*record_begin)(ax_stream *stream);
    ax_status (*record_end)(ax_stream *stream, void **graph);
    ax_status (*replay)(ax_stream *stream, void *graph);
    void (*forget)(ax_device *dev, void *graph);
    /* The device's own clock: `stamp` has it note when the stream has come so far, as number 0 … AX_STAMPS-1;
     * `between` waits for the second of two stamps and says what has passed, in seconds. Optional, both or
     * none: without them launches are waited for that are timed. */
    ax_status (*stamp)(ax_stream *stream, int number);
    ax_status (*between)(ax_stream *stream, int first, int second, double *seconds);
    /* Floating-point operations per second of products of `compute` at best, seen in about so many seconds:
     * in registers, or where libraries decide what feeds them, of a large product. 0: not known. Optional. */
    double (*peak)(ax_device *dev, ax_dtype compute, double seconds);
    /* ax_device_read. Optional. */
    double (*read)(ax_device *dev, const ax_span *span, int64_t n, double seconds);
    /* Bracket every access to device memory by library code on the host, collectives included. Optional. */
    void (*enter)(ax_device *dev);
    void (*leave)(ax_device *dev);
    /* Replaces all kernels, on a device that has no memory (dry): its pointers lead nowhere. Optional. */
    ax_status (*launch)(ax_stream *stream, ax_kernel kernel, const void *args);
    ax_kernel_fn *kernel[AX_KERNEL_COUNT];
} ax_device_ops;

/* Told of each operation of a dry device by its operands: of kernels and copies before they "run", of
 * collectives when they start and when they are awaited. */
typedef void ax_observe_fn(void *user, const ax_operand *operand, int64_t n);

/* Told of every launch on a device of any kind, before it is run. */
typedef void ax_watch_fn(void *user, ax_kernel kernel, const void *args);

enum { AX_STAMPS = 4096 };    /* of a device that has them */
enum { AX_COPY_LATER = 256 }; /* bytes: of ax_copy_out_begin */

/* What the launches of one kernel came to. */
typedef struct ax_kernel_total {
    int64_t calls;
    double seconds, flops, bytes; /* the last two as ax_kernel_cost counts them */
} ax_kernel_total;

/* The cores that the threads of a device have to themselves. */
enum { AX_CORES_MAX = 1024 };
typedef struct ax_binding {
    int n;               /* cores, one for each thread; 0: the system places the threads */
    const char *why_not; /* because of this */
    int neighbour;       /* the rank's number among those of its machine: which of several GPUs is its */
    bool alone;          /* the process has no other thread that is often busy: one rank, no MPI traffic */
    uint64_t cores[AX_CORES_MAX / 64]; /* bit i of word w: core 64·w + i, as ax_cores numbers them */
} ax_binding;
/* The cores as "0-3,6", in `size` bytes. Returns out. */
char *ax_binding_print(const ax_binding *binding, char *out, size_t size);

/* Launches that come again: see ax_replay_begin. */
typedef struct ax_replay ax_replay;

struct ax_device {
    ax_device_ops ops; /* resolved: inherited entries filled in */
    int threads;
    const ax_binding *binding; /* that it is to be opened with, or NULL; NULL when it is open */
    ax_event_ring *ring;       /* kernels, and the layers they belong to, are noted here (trace.h) */
    double flops;              /* of all launches since open, as ax_kernel_cost counts them */
    int64_t launches;
    ax_kernel_total *totals; /* [AX_KERNEL_COUNT] that launches are added to, their times at the latest by
                                ax_stream_wait; or NULL */
    struct {
        int first, n;
        ax_kernel kernel[AX_STAMPS / 2];
    } stamped; /* a ring of launches between two stamps each, whose times have not been added */
    char later[AX_COPY_LATER]; /* what ax_copy_out_begin has read, where the backend does not keep it */
    ax_replay *replay;         /* that has begun; or NULL */
    ax_observe_fn *observe;    /* dry device only */
    void *observe_user;
    ax_watch_fn *watch; /* or NULL */
    void *watch_user;
    void *impl;   /* of the backend that computes */
    void *memory; /* of the backend that hands out memory, where another one computes */
};

/* The registry: backends in the order in which they are preferred least to most. */
int ax_device_count(void);
const ax_device_ops *ax_device_backend(int index);

/* Why backend `name` cannot be used on this host, or NULL if it can. A plugin is loaded for it. */
const char *ax_device_absent(const char *name);

/* Opens backend `name` ("ref", "cpu", "cuda", "check", "check:cpu", "dry"). threads 0 means one per physical
 * core. `name` unknown or absent on this host: AX_ERR_USAGE naming those that are there. The caller owns
 * *out. */
AX_MUST_CHECK ax_status ax_device_open(const char *name, int threads, ax_device **out);
/* The same with each thread bound to one of binding->cores: the opening thread to the first, until it closes
 * the device, the others to the next ones. None is if `binding` is NULL, has not as many cores as there are
 * threads, or the system refuses. Threads that the opening one starts meanwhile inherit its core unless
 * ax_thread_start starts them. */
AX_MUST_CHECK ax_status ax_device_open_bound(const char *name, int threads, const ax_binding *binding,
                                             ax_device **out);
void ax_device_close(ax_device **dev);
/* Bytes of scratch that backend `name` takes with so many threads (0: one per physical core), without opening
 * it. */
AX_MUST_CHECK ax_status ax_device_workspace(const char *name, int threads, size_t *bytes);

/* The instruction sets that kernels of the cpu backend are compiled for and this processor can run, best
 * first (of "avx512_amx", "avx512_bf16", "avx512", "avx2", "generic"); NULL beyond the last. "avx512_amx" has
 * bf16 products and attention on tiles; asking whether it can run gets this process the right to use them. */
const char *ax_isa_name(int index);
/* The one that a cpu device opened now uses: the best, or what environment AXONN_ISA names. If that is none
 * of the above: AX_ERR_USAGE naming those that are. */
AX_MUST_CHECK ax_status ax_isa_chosen(const char **name);

/* What the device can do at best, the best of what was seen in about so many seconds: floating-point
 * operations per second of multiply-adds of `compute` that wait for nothing (0: not known for this device),
 * and bytes per second of an array far larger than caches that is read and written in place (256 MiB, taken
 * for the while; AX_ERR_MEMORY). */
AX_MUST_CHECK ax_status ax_device_peak(ax_device *dev, ax_dtype compute, double seconds, double *flops);
AX_MUST_CHECK ax_status ax_device_stream(ax_device *dev, double seconds, double *bytes);
/* Bytes per second at which the device reads `n` spans of its memory, one after the other: the median of 5 or
 * more passes over all of them, as many as begin within `seconds` but at most 1000. By the way of reading
 * that is fastest there, which a device's first call finds out before (105 passes over up to 256 MiB). What
 * else reads them all, as a token that is generated reads the weights, may be compared with it. 0: not known
 * for this device, or nothing to read. */
double ax_device_read(ax_device *dev, const ax_span *span, int64_t n, double seconds);

/* The machine's physical cores, and which of them the affinity mask leaves to this process. Cores beyond
 * AX_CORES_MAX are not seen. */
typedef struct ax_cores {
    int machine;                        /* how many there are */
    double quota;                       /* CPUs' worth of time that the control group allows; infinite: all */
    uint64_t usable[AX_CORES_MAX / 64]; /* bit i of word w: core 64·w + i */
    bool physical; /* these are the cores, all of them; else hardware threads stand for them, or some are not
                      seen */
} ax_cores;
void ax_cores_find(ax_cores *out);
/* Physical cores that this process may use (affinity mask and cgroup quota respected), at least 1. */
int ax_cores_usable(void);
/* Bytes of the last-level caches of the cores that the affinity mask leaves to this process; 0: not known. */
int64_t ax_cores_cache(void);

/* Device memory for set-up, never within a step; *out is NULL on error (AX_ERR_MEMORY). `bytes` is the same
 * in both calls. NULL may be freed. */
AX_MUST_CHECK ax_status ax_device_alloc(ax_device *dev, size_t bytes, void **out);
void ax_device_free(ax_device *dev, void *memory, size_t bytes);

/* Bytes that a device of backend `name` opened now could give to rank number `neighbour` of its machine, -1
 * if that is not known, and the number of the memory that they are of: ranks of a machine with the same share
 * it. And the most that this process held of an open device's. Where that is the host's memory:
 * ax_memory_available, number 0, and ax_memory_peak. */
int64_t ax_device_available(const char *name, int neighbour, int *place);
int64_t ax_device_held(ax_device *dev);

/* Makes memory resident, near the threads that kernels over the elements of this array will have work on it;
 * what it holds remains. For arrays that someone else, such as a copy, writes first: memory lies near the
 * core of its first writer, and a kernel's threads write their own parts of its results. */
void ax_device_touch(ax_device *dev, void *memory, size_t bytes);

/* True if the device's kernels work on any memory of this process, as ax_device_alloc gives it or not. */
bool ax_device_uses_host_memory(const ax_device *dev);

/* Runs or enqueues a kernel. One thread at a time launches on a device. An element type that the kernel does
 * not take: AX_ERR_USAGE. */
AX_MUST_CHECK ax_status ax_launch(ax_stream *stream, ax_kernel kernel, const void *args);
#define AX_KERNEL_WRAPPER(name)                                                                              \
    AX_MUST_CHECK static inline ax_status ax_run_##name(ax_stream *stream, const ax_##name##_args *args)     \
    {                                                                                                        \
        return ax_launch(stream, AX_K_##name, args);                                                         \
    }
AX_KERNELS(AX_KERNEL_WRAPPER)
#undef AX_KERNEL_WRAPPER

/* A replay notes what is launched between its begin and its end. When the same comes again, launch by launch
 * and argument by argument, a device that can is given all of it at once (a GPU a graph), instead of a launch
 * at a time. For that launches are put off until they are known to be the same: up to the next copy, wait or
 * collective, or the end. What differs is launched as ever, and noted for the next time; nothing is assumed
 * to be as it was. So what changes every time belongs in device memory, not in arguments. Devices that cannot
 * launch as ever, as do all while launches are timed or traced, and where environment AXONN_GRAPHS is off
 * (AX_ERR_USAGE if it is neither on nor off). A device has one replay begun at a time. end: returns `status`,
 * what became of the launches, or if that is AX_OK what becomes of those put off. destroy: before the device
 * is closed. */
AX_MUST_CHECK ax_status ax_replay_create(ax_device *dev, ax_replay **out);
void ax_replay_destroy(ax_replay **replay);
AX_MUST_CHECK ax_status ax_replay_begin(ax_stream *stream, ax_replay *replay);
AX_MUST_CHECK ax_status ax_replay_end(ax_stream *stream, ax_status status);
/* Launches what was put off: who gives the stream something else than launches calls this first, as copies
 * and waits do. */
AX_MUST_CHECK ax_status ax_replay_cut(ax_stream *stream);

/* Returns when all that was launched on the stream has run. */
AX_MUST_CHECK ax_status ax_stream_wait(ax_stream *stream);

/* Host to device (host memory may be used again on return), and device to host (complete on return). */
AX_MUST_CHECK ax_status ax_copy_in(ax_stream *stream, void *device, const void *host, size_t bytes);
AX_MUST_CHECK ax_status ax_copy_out(ax_stream *stream, void *host, const void *device, size_t bytes);
/* Device to host in two parts. begin: the device puts `bytes`, AX_COPY_LATER at most, aside when it has done
 * what the stream was given before; the host does not wait. end: waits until it has, not for what the stream
 * was given since, and copies them to `host`. A device keeps those of the newest begin, for any number of
 * ends. */
AX_MUST_CHECK ax_status ax_copy_out_begin(ax_stream *stream, const void *device, size_t bytes);
AX_MUST_CHECK ax_status ax_copy_out_end(ax_stream *stream, void *host, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
