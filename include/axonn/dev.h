/* dev: devices, their memory, and running kernels on them.
 *
 * A device is one table (ax_device_ops): memory, copies and kernels. A backend may name another backend as
 * its `delegate`. It then fills in only the entries for which it has a better implementation, and inherits
 * the others from the delegate:
 *
 *   ref    plain loops in double precision, any dtype: tests compare the other backends with it
 *   cpu    threads and SIMD for the host's processor; delegates to ref
 *   check  kernels of cpu or ref, on memory that faults when the host touches it and that is NaN when it is
 *          new: finds host code that uses device pointers, and reads of memory that was never written
 *   cuda   an NVIDIA GPU, in a library of its own (libaxonn_cuda.so) that is loaded at the first use
 *   dry    no memory and no arithmetic: only listeners learn what would run (ax_listener)
 *
 * The kernels and their arguments are in kernels.h. No function is collective, unless it says so. A process
 * made by fork must not use or close the devices of its parent. */
#ifndef AXONN_DEV_H
#define AXONN_DEV_H

#include "axonn/kernels.h"
#include "axonn/trace.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- collectives --------------------------------------------------------------------------------- */

/* The reductions of collectives. The arguments of collectives are declared here and not in comm.h, because
 * listeners (ax_listener) and the links between devices need them. */
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
    int64_t count; /* number of elements. All-gather, reduce-scatter: of one rank's block; all-to-all: of the
                      block that each rank sends to each rank; all-reduce, broadcast: of the whole array */
    ax_dtype dtype;
    ax_reduce_op op; /* all-reduce and reduce-scatter only */
    int root;        /* broadcast: the rank that has the data; otherwise 0 */
} ax_coll_args;

/* Returns the name of a collective, such as "all_reduce"; never NULL. */
const char *ax_coll_name(ax_coll coll);
/* Prints a collective: "all_reduce (max) of 8 f32", "broadcast of 3 i64 from 2", "barrier". */
void ax_coll_describe(const ax_coll_args *args, char *out, size_t size);
/* Sets out[0] to the memory that a collective of `size` ranks reads on this rank, out[1] to the memory that
 * it writes. */
void ax_coll_operands(const ax_coll_args *args, int size, ax_operand out[2]);

/* ---- devices ------------------------------------------------------------------------------------- */

typedef struct ax_device ax_device;
typedef struct ax_comm ax_comm; /* comm.h */

/* An ordered queue of work on a device. A backend on the host runs a kernel before ax_launch returns. A GPU
 * runs kernels later, in order, and any later call may report the failure of a kernel. */
typedef struct ax_stream {
    ax_device *dev;
    void *impl; /* private to the backend */
} ax_stream;

typedef ax_status ax_kernel_fn(ax_stream *stream, const void *args);

/* Runs a gemm that has an epilogue (other than AX_EPILOGUE_NONE) or col_sums as several kernels: first gemm
 * without them; then activation or activation_grad for the epilogue, or col_sum for col_sums (after fill,
 * unless accumulate_sums). For backends whose gemm does not compute epilogues or col_sums itself. `kernel` is
 * the backend's table of kernels, indexed by ax_kernel. */
AX_MUST_CHECK ax_status ax_gemm_in_two(ax_stream *stream, const ax_gemm_args *args,
                                       ax_kernel_fn *const kernel[]);
/* Returns the gemm of group g of a grouped GEMM whose bounds are in host memory. */
ax_gemm_args ax_gemm_of_group(const ax_gemm_grouped_args *args, int64_t g);

/* Links: collectives from device to device, without copies through the host (GPUs: NCCL). A link is one
 * rank's handle of a group of devices, like an ncclComm_t. Collectives on all links of a device run in the
 * order in which they are started, concurrently with the device's stream. So ranks that are in several groups
 * must start their collectives in the same order. */
typedef struct ax_link ax_link;
enum { AX_LINK_UNIQUE_ID = 128, AX_LINK_PLACE = 32 };

typedef struct ax_link_group {
    const char *name;      /* name of the group, for error messages */
    const void *unique_id; /* unique id of the group, from the function `unique_id`; the same on all ranks of
                              the group */
    int rank, size;
    /* Returns the reason if another rank has failed, else NULL. The link calls this function regularly while
     * this rank waits for other ranks. */
    const char *(*failed)(void *user);
    void *user;
} ax_link_group;

typedef struct ax_link_ops {
    const char *name;
    /* Returns why this device has no links, or NULL. */
    const char *(*absent)(ax_device *dev);
    /* Writes a text that identifies the device on its machine, for example the PCI bus id. No two ranks of a
     * group may have the same device. */
    void (*place)(ax_device *dev, char out[AX_LINK_PLACE]);
    /* Makes the unique id of a new group; one rank calls it and sends the id to the other ranks. */
    ax_status (*unique_id)(void *id);
    /* Connects this rank to the group. Collective along the group; for set-up. If one rank fails, the other
     * ranks may wait up to two minutes. */
    ax_status (*open)(ax_device *dev, const ax_link_group *group, ax_link **out);
    void (*close)(ax_link **link); /* no collective may be in flight, unless the world has failed */
    /* Starts a collective on buffers in device memory. The collective begins after the work that is on the
     * device's stream now. args->count > 0. *ticket identifies the collective for `await`. */
    ax_status (*start)(ax_link *link, const ax_coll_args *args, int64_t *ticket);
    /* Makes the device's stream wait for the collective: work that is enqueued on the stream later runs after
     * the collective. The host does not wait. */
    ax_status (*await)(ax_link *link, int64_t ticket);
    ax_status (*check)(ax_device *dev); /* implements ax_device_check_links */
} ax_link_ops;

/* ---- copies beside kernels ----------------------------------------------------------------------- */

/* A point of a stream (CUDA: event): an event is complete when the device has done all work that was on the
 * stream when the event was recorded there. */
typedef struct ax_stream_event ax_stream_event;

typedef enum ax_copy_direction { AX_TO_DEVICE, AX_TO_HOST, AX_COPY_DIRECTIONS } ax_copy_direction;

/* The functions of a backend that copies while kernels run. They implement the public functions from
 * ax_pinned_alloc to ax_stream_event_wait, whose comments below describe them. `event` is the backend's own
 * object, the `impl` of an ax_stream_event. */
typedef struct ax_copy_ops {
    ax_status (*alloc)(ax_device *dev, size_t bytes, void **out);
    void (*free)(ax_device *dev, void *memory);
    /* Returns the `impl` of the device's copy stream of a direction. */
    void *(*stream)(ax_device *dev, ax_copy_direction direction);
    ax_status (*copy)(ax_stream *stream, void *to, const void *from, size_t bytes,
                      ax_copy_direction direction);
    ax_status (*event_create)(ax_device *dev, void **event);
    void (*event_destroy)(ax_device *dev, void *event);
    ax_status (*record)(ax_stream *stream, void *event);
    ax_status (*await)(ax_stream *stream, void *event);
    ax_status (*done)(ax_device *dev, void *event, bool *done);
    ax_status (*wait)(ax_device *dev, void *event);
} ax_copy_ops;

/* ---- listeners ----------------------------------------------------------------------------------- */

/* Kinds of events. Each is a bit, so that a listener can name a set of them. */
typedef enum ax_event_kind {
    AX_ON_KERNEL = 1,     /* a kernel is about to be launched; its arguments are legal */
    AX_ON_COPY = 2,       /* a copy between host and device is about to be enqueued */
    AX_ON_COLLECTIVE = 4, /* a collective on memory of the device has been started */
    AX_ON_MESSAGE = 8,    /* a message from or to memory of the device has been started */
    AX_ON_WAIT = 16,      /* a collective or message that was in flight is about to be awaited */
    /* The time of a kernel is known. While a listener wants this kind, launches are timed: between events of
     * the device if it has a clock (event_record), and then told later, by ax_stream_wait at the latest; else
     * the host waits for each kernel. */
    AX_ON_TIME = 32,
    /* The launching thread has ended an activity: a kernel, which the host then waits for; a layer, a wait
     * for other ranks, a task. */
    AX_ON_ACTIVITY = 64
} ax_event_kind;

/* Something that happens on a device. */
typedef struct ax_device_event {
    ax_event_kind kind;
    const char *name; /* of the kernel or collective, the kind of message, or what an activity works on */
    ax_kernel kernel; /* KERNEL, TIME */
    const void *args; /* KERNEL: its arguments. COLLECTIVE: ax_coll_args. MESSAGE: ax_message_args (comm.h) */
    const ax_operand *operand; /* [operands]: COPY, COLLECTIVE, MESSAGE, WAIT: the device memory that is read
                                  or written. (ax_device_event_operands also lists a kernel's.) */
    int operands;
    ax_comm *comm;        /* COLLECTIVE, MESSAGE, WAIT */
    double *ends;         /* COLLECTIVE, MESSAGE: a clock (clock.h) writes the operation's end here; NULL: the
                             operation is complete. WAIT: what it wrote */
    const char *activity; /* ACTIVITY: "kernel", "forward", "gather", … (ax_event) */
    double begin, end;    /* ACTIVITY: ax_device_now; TIME: end - begin are the seconds of the kernel */
    int64_t value;        /* ACTIVITY: see ax_event */
} ax_device_event;

/* Calls `each` for each operand of an event. */
void ax_device_event_operands(const ax_device_event *event, ax_operand_fn *each, void *user);
/* Returns the bytes of the largest operand of a copy, collective or message: of a collective those of the
 * larger buffer. */
double ax_device_event_bytes(const ax_device_event *event);

/* A listener is told of the events of one device that are of its `kinds`, on the thread that launches
 * kernels. The caller of ax_device_listen owns it and keeps it until ax_device_unlisten, or until the device
 * is closed; it has no effect if `kinds` is 0. Listeners are told in the reverse order of ax_device_listen. A
 * listener that is on no list may be passed to ax_device_unlisten. */
typedef struct ax_listener {
    unsigned kinds;
    void (*tell)(void *user, const ax_device_event *event);
    void *user;
    struct ax_listener *next;
} ax_listener;
void ax_device_listen(ax_device *dev, ax_listener *listener);
void ax_device_unlisten(ax_device *dev, ax_listener *listener);
/* Tells the listeners of an event. For the code that makes events; it first asks dev->heard. */
void ax_device_tell(const ax_device *dev, const ax_device_event *event);

/* Returns the time in seconds: on the device's own clock if it has one, else ax_now. dev NULL: ax_now. */
double ax_device_now(const ax_device *dev);

/* Enclose an activity of the launching thread: ax_activity_begin returns the time, or 0 if no listener wants
 * activities; ax_activity_end tells the listeners. `activity`, `name` and `value` are those of an ax_event.
 */
double ax_activity_begin(const ax_device *dev);
void ax_activity_end(const ax_device *dev, const char *activity, const char *name, double begin,
                     int64_t value);

/* Totals over all launches of one kernel. */
typedef struct ax_kernel_total {
    int64_t calls;
    double seconds, flops, bytes; /* flops and bytes as ax_kernel_cost counts them */
} ax_kernel_total;

/* Return listeners. ax_kernel_totals adds launches and their times to total[AX_KERNEL_COUNT];
 * ax_ring_listener adds activities to a ring. NULL gives a listener without effect. */
ax_listener ax_kernel_totals(ax_kernel_total *total);
ax_listener ax_ring_listener(ax_event_ring *ring);

/* ---- backends ------------------------------------------------------------------------------------ */

/* A range of a device's memory: address and bytes. */
typedef struct ax_span {
    const void *at;
    size_t bytes;
} ax_span;

/* A part of the work of ax_device_parallel. */
typedef void ax_host_work_fn(void *user, int part);

typedef struct ax_device_ops {
    const char *name, *help;
    const char *delegate; /* the backend whose entries replace NULL entries here, or NULL */
    /* Loads a plugin and returns the plugin's table, which is then the delegate of this backend. Returns NULL
     * if the plugin cannot be loaded; `absent` then returns the reason. Optional. */
    const struct ax_device_ops *(*plugin)(void);
    /* Returns why the backend cannot be used on this host, or NULL if it can. Optional. */
    const char *(*absent)(void);
    /* Open and close a device of this backend. Optional. The functions of the delegates (the backends from
     * which it inherits) are called too: `open` from the last delegate up to the backend itself, `close` in
     * reverse order. */
    ax_status (*open)(ax_device *dev);
    void (*close)(ax_device *dev);
    /* True if the memory of the backend, or of a delegate, is not host memory. Collectives then copy data to
     * the host and back, or use links (direct connections between devices). */
    bool discrete_memory;
    bool imaginary; /* addresses refer to no memory: nothing is stored (dry) */

    /* All members from here on are pointers. NULL members are inherited from the backend `delegate`. */

    const ax_link_ops *links; /* or NULL */
    /* `available` returns how many bytes a new device could allocate (ax_device_available). `held` returns
     * the most bytes of a device's memory that were in use so far, libraries included (ax_device_held).
     * Optional: NULL for devices that use host memory. */
    int64_t (*available)(int local_rank, int *place);
    int64_t (*held)(ax_device *dev);
    /* Writes a text that describes the device for people (ax_device_describe) to `out`. Optional. */
    void (*describe)(ax_device *dev, char *out, size_t size);
    /* Returns the bytes of scratch memory that kernels need with `threads` threads; `open` allocates them.
     * Optional. */
    size_t (*workspace)(int threads);
    /* Allocates memory, aligned to pages on the host and to 256 bytes on a GPU. The memory is filled with NaN
     * if the backend has `poison`, else with zeros. (dry returns addresses without memory.) */
    ax_status (*alloc)(ax_device *dev, size_t bytes, void **out);
    void (*free)(ax_device *dev, void *memory, size_t bytes);
    /* Makes each thread write its part of an array once, without changing it (ax_device_touch). Optional. */
    void (*touch)(ax_device *dev, void *memory, size_t bytes);
    /* Runs work of the host on the threads that compute kernels (ax_device_parallel). Optional. */
    void (*parallel)(ax_device *dev, int parts, ax_host_work_fn *work, void *user);
    ax_status (*copy_in)(ax_stream *stream, void *device, const void *host, size_t bytes);
    ax_status (*copy_out)(ax_stream *stream, void *host, const void *device, size_t bytes); /* blocking */
    const ax_copy_ops *copies; /* copies beside kernels; or NULL: a copy is done when the call returns */
    void (*poison)(ax_device *dev, void *memory, size_t bytes); /* fills with NaN. Optional */
    /* Waits until all launched work is done. Optional: a backend without it completes kernels before
     * ax_launch returns. */
    ax_status (*wait)(ax_stream *stream);
    /* Graphs of launches. Between capture_begin and capture_end launches are captured and not run; *graph
     * contains these launches, and graph_launch enqueues all of them. capture_end is called even if a launch
     * has failed; if capture_end fails, there is no graph. graph_destroy frees a graph; launches already
     * enqueued still run. Optional, all or none. */
    ax_status (*capture_begin)(ax_stream *stream);
    ax_status (*capture_end)(ax_stream *stream, void **graph);
    ax_status (*graph_launch)(ax_stream *stream, void *graph);
    void (*graph_destroy)(ax_device *dev, void *graph);
    /* The device's own clock. event_record enqueues an event with a number in 0 … AX_EVENTS-1 on the stream;
     * the event notes the time when the stream reaches it. event_elapsed waits for the second of two events
     * and returns the seconds between them. Optional, both or none: without them the host waits for each
     * launch that is timed. */
    ax_status (*event_record)(ax_stream *stream, int event);
    ax_status (*event_elapsed)(ax_stream *stream, int first, int second, double *seconds);
    /* Measures for about `seconds` the peak floating-point operations per second for dtype `compute`: of
     * multiply-adds in registers, or of a large matmul if the backend's matmuls come from a library. Returns
     * 0 if not known. Optional. */
    double (*peak)(ax_device *dev, ax_dtype compute, double seconds);
    /* Returns the bytes per second at which the device reads `n` ranges of its memory (ax_device_read).
     * Optional. */
    double (*read)(ax_device *dev, const ax_span *span, int64_t n, double seconds);
    /* Keeps the algorithms that the device chooses by timing in a file of directory `dir`
     * (ax_device_keep_plans). Optional. */
    ax_status (*keep_plans)(ax_device *dev, const char *dir, const char *from, bool *kept);
    /* When host code of this library (for example a collective) accesses device memory, it calls `enter`
     * before and `leave` after the access. Optional. */
    void (*enter)(ax_device *dev);
    void (*leave)(ax_device *dev);
    ax_kernel_fn *kernel[AX_KERNEL_COUNT];
} ax_device_ops;

enum { AX_EVENTS = 4096 }; /* number of events of a device that has event_record */

/* The cores to which the threads of a device are bound. */
enum { AX_CORES_MAX = 1024 };
typedef struct ax_binding {
    int n;               /* number of cores, one for each thread; 0: threads are not bound */
    const char *why_not; /* the reason if n is 0 */
    int local_rank;      /* index, from 0, of the rank on its machine: selects one of several GPUs */
    bool alone;          /* there is one rank, so no MPI traffic keeps another thread of the process busy */
    uint64_t cores[AX_CORES_MAX / 64]; /* bit i of word w: core 64·w + i, as ax_cores numbers them */
} ax_binding;
/* Writes the cores as "0-3,6" to `out`, of `size` bytes. Returns out. */
char *ax_binding_print(const ax_binding *binding, char *out, size_t size);

/* A recorded sequence of kernel launches. If it repeats, it may run as graphs: see ax_replay_begin. */
typedef struct ax_replay ax_replay;

struct ax_device {
    ax_device_ops ops; /* the backend's table, with inherited entries filled in */
    int threads;
    const ax_binding *binding; /* the binding of the threads, or NULL. Valid only while the device is being
                                  opened; NULL afterwards */
    ax_listener *listener;     /* the first listener, or NULL */
    unsigned heard;            /* the kinds of events that the listeners want */
    const double *now;         /* the time on the device's own clock (clock.h), or NULL: it has none */
    struct {
        int first, n;
        ax_kernel kernel[AX_EVENTS / 2];
    } timed; /* a ring of n launches, from `first` on, whose times listeners have not been told; an event was
                recorded before and after each launch */
    ax_replay *replay; /* the replay that has begun, or NULL */
    void *impl;        /* private to the backend that runs the kernels */
    void *memory; /* private to the backends check and dry, which have memory or addresses of their own */
};

/* ax_device_count returns the number of backends. ax_device_backend returns the table of the backend with
 * this index, or NULL if there is none. More preferred backends have higher indices. */
int ax_device_count(void);
const ax_device_ops *ax_device_backend(int index);

/* Returns why backend `name` cannot be used on this host, or NULL if it can. Loads the backend's plugin, if
 * it has one. */
const char *ax_device_absent(const char *name);

/* Opens backend `name` ("ref", "cpu", "cuda", "check", "check:cpu", "dry"). threads 0 means
 * ax_cores_usable(): one per physical core that this process may use. AX_ERR_USAGE if `threads` is negative,
 * or, with a message that lists the usable backends, if `name` is unknown or cannot be used on this host. The
 * caller owns *out. */
AX_MUST_CHECK ax_status ax_device_open(const char *name, int threads, ax_device **out);
/* Opens backend `name` with `threads` threads, as ax_device_open does. Backends with threads (cpu, check:cpu)
 * bind each thread to one of binding->cores; cuda binds no thread: it only chooses the GPU by
 * binding->local_rank. The thread that opens the device is bound to the first core until it closes the
 * device; the other threads are bound to the next cores. Threads are not bound if `binding` is NULL, if it
 * has another number of cores than the device has threads, or if the system refuses. While the device is
 * open, threads that the opening thread starts inherit its binding, unless they are started by
 * ax_thread_start. */
AX_MUST_CHECK ax_status ax_device_open_bound(const char *name, int threads, const ax_binding *binding,
                                             ax_device **out);
void ax_device_close(ax_device **dev);
/* Sets *bytes to the bytes of scratch memory that backend `name` needs with `threads` threads (0:
 * ax_cores_usable()). Opens no device. AX_ERR_USAGE if `name` is unknown. */
AX_MUST_CHECK ax_status ax_device_workspace(const char *name, int threads, size_t *bytes);
/* Return whether the host can read and write a device's memory at any time: not if the memory is discrete,
 * and not if it is accessible only between the backend's functions `enter` and `leave`. Messages of a device
 * without host access go through pinned memory (comm.h). ax_device_name_host_access sets *yes for the backend
 * `name`, and opens no device; AX_ERR_USAGE if `name` is unknown. */
bool ax_device_host_access(const ax_device *dev);
AX_MUST_CHECK ax_status ax_device_name_host_access(const char *name, bool *yes);

/* Returns the name of an instruction set that the cpu backend has kernels for and this processor can run:
 * "avx512_amx", "avx512_bf16", "avx512", "avx2" or "generic". `index` 0 is the best of them; returns NULL
 * beyond the last. "avx512_amx" runs bf16 matmuls and attention on AMX tiles. Calling this function requests
 * the right to use AMX for this process. */
const char *ax_isa_name(int index);
/* Sets *name to the instruction set that a new cpu device uses: the best, or the one that setting runtime.isa
 * names (runtime.h). If this processor cannot run the one that is named: AX_ERR_USAGE, with a message that
 * lists the available instruction sets; but if the name is only preferred (ax_runtime_prefer), logs a warning
 * and takes the best. */
AX_MUST_CHECK ax_status ax_isa_chosen(const char **name);

/* Measure the peak rates of a device for about `seconds`. ax_device_peak sets *flops to the floating-point
 * operations per second in dtype `compute`, of multiply-adds in registers or, on a GPU, of a large matmul; 0
 * if not known for this device. The cpu backend measures bf16 for BF16, and fp32 for every other dtype.
 * ax_device_stream sets *bytes to the bytes per second when an array of AX_STREAM_BYTES is read and written
 * in place: the best of at least 8 passes. AX_ERR_MEMORY if there is no memory for this array. */
enum { AX_STREAM_BYTES = 256 << 20 };
AX_MUST_CHECK ax_status ax_device_peak(ax_device *dev, ax_dtype compute, double seconds, double *flops);
AX_MUST_CHECK ax_status ax_device_stream(ax_device *dev, double seconds, double *bytes);
/* Returns the bytes per second at which the device reads `n` spans of its memory, one after the other. The
 * rate is the median of several passes over all spans: passes begin until `seconds` have elapsed, but there
 * are at least 5 and at most 1000. The function reads in the way that is fastest on this device; the first
 * call for a device finds that way (105 passes over up to 256 MiB). The rate is an upper bound for work that
 * reads the same spans, such as generating a token, which reads all weights. Returns 0 if the rate is not
 * known for this device, or if there is nothing to read. */
double ax_device_read(ax_device *dev, const ax_span *span, int64_t n, double seconds);

/* The machine's physical cores, and which of them this process may use by its affinity mask. Cores beyond
 * AX_CORES_MAX are ignored. */
typedef struct ax_cores {
    int machine;  /* number of cores of the machine, those included that a cpuset of the process's cgroup
                     excludes */
    double quota; /* CPUs that the cgroup's quota allows; infinity: no limit */
    uint64_t usable[AX_CORES_MAX / 64]; /* bit i of word w: core 64·w + i may be used */
    bool physical; /* true: a bit of `usable` is a physical core; false: it is a hardware thread, because the
                      system lists no cores, or there are more than AX_CORES_MAX cores */
} ax_cores;
void ax_cores_find(ax_cores *out);
/* Returns the number of physical cores that this process may use by affinity mask and cgroup quota, at
 * least 1; of hardware threads if the system does not list the physical cores. */
int ax_cores_usable(void);
/* Returns the bytes of the last-level caches of the cores that this process may use; 0 if not known. */
int64_t ax_cores_cache(void);

/* Allocates and frees device memory, for set-up only, never within a step. *out is NULL on error
 * (AX_ERR_MEMORY). `bytes` must be the same in both calls. NULL may be freed. */
AX_MUST_CHECK ax_status ax_device_alloc(ax_device *dev, size_t bytes, void **out);
void ax_device_free(ax_device *dev, void *memory, size_t bytes);

/* ax_device_available returns the bytes that a device of backend `name`, opened now by the rank with local
 * rank `local_rank`, could allocate; -1 if not known. *place is set to a number that identifies the memory
 * (for example the GPU); ranks of a machine that get the same number share that memory. ax_device_held
 * returns the largest number of bytes of an open device's memory that were in use so far. On a GPU it counts
 * from the opening of the device on, and memory that other processes have taken since then counts too. For a
 * device that uses host memory, ax_device_available returns ax_memory_available() and sets *place to 0, and
 * ax_device_held returns ax_memory_peak(). */
int64_t ax_device_available(const char *name, int local_rank, int *place);
int64_t ax_device_held(ax_device *dev);

/* Describes the device of backend `name` for people: the GPU, its memory, and what computes attention on it.
 * Opens the device for that and closes it again; returns the errors of ax_device_open. Writes an empty
 * string, and opens no device, if the backend has nothing to add to its `help`, is unknown, or has a plugin
 * that cannot be loaded. */
AX_MUST_CHECK ax_status ax_device_describe(const char *name, char *out, size_t size);

/* Places the pages of an array near the cores whose threads will work on them (NUMA first touch): each thread
 * writes the part of the array that it gets in elementwise kernels, without changing its content. Call it for
 * new arrays that are first written in another way, for example by a copy, because a page lies near the core
 * that first writes it. */
void ax_device_touch(ax_device *dev, void *memory, size_t bytes);

/* Calls work(user, part) for each part 0 … parts-1, at the same time on the threads that compute the device's
 * kernels; one part after the other if these are not threads of the host. Which thread has which part is not
 * defined. `work` neither uses the device nor reports errors, and subnormal numbers may count as 0 in it. */
void ax_device_parallel(ax_device *dev, int parts, ax_host_work_fn *work, void *user);
/* Returns how many parts run at the same time. */
int ax_device_workers(const ax_device *dev);

/* Makes a device keep on disk which algorithms it chooses by timing them (device cuda: algorithms of GEMMs).
 * From this call on, the device stores all its choices in file AX_PLANS_FILE of directory `dir`, and does not
 * time again what the file has. First takes over the choices in AX_PLANS_FILE of directory `from`, if `from`
 * is not NULL and has such a file; these choices have priority. Devices, also of other processes, may share a
 * directory: the first choice counts. Logs how long timing may take (runtime.plan_seconds). Problems with the
 * files are warnings. Sets *kept to true; or to false, and keeps nothing, if the device does not choose
 * algorithms by timing or setting runtime.plans is off. */
AX_MUST_CHECK ax_status ax_device_keep_plans(ax_device *dev, const char *dir, const char *from, bool *kept);
#define AX_PLANS_FILE "plans.txt"

/* Returns true if the device's kernels can work on any memory of this process, even if it is not from
 * ax_device_alloc. */
bool ax_device_uses_host_memory(const ax_device *dev);

/* Runs or enqueues a kernel. Only one thread at a time may launch on a device. AX_ERR_USAGE if an argument is
 * wrong, for example a dtype that the kernel does not support. */
AX_MUST_CHECK ax_status ax_launch(ax_stream *stream, ax_kernel kernel, const void *args);
#define AX_KERNEL_WRAPPER(name)                                                                              \
    AX_MUST_CHECK static inline ax_status ax_run_##name(ax_stream *stream, const ax_##name##_args *args)     \
    {                                                                                                        \
        return ax_launch(stream, AX_K_##name, args);                                                         \
    }
AX_KERNELS(AX_KERNEL_WRAPPER)
#undef AX_KERNEL_WRAPPER

/* Replays. A replay records the launches between its begin and its end. If the same launches with the same
 * arguments follow the next begin, a device with graphs (CUDA graphs) runs them as graphs instead of one by
 * one. As long as launches equal the recorded ones, the library defers them until the next copy, wait, event
 * or collective on the stream, or until the end of the replay. The launches between two of these points are
 * one graph, if they are four or more. Launches that differ from the recorded ones are run one by one and
 * recorded for the next time. So numbers that change each time should be in device memory, not in arguments.
 *
 * Launches run as usual on devices without graphs, in replays that begin while launches are timed (AX_ON_TIME
 * or AX_ON_ACTIVITY), and if setting runtime.graphs is off when the replay is created. At most
 * one replay of a device may be between its begin and its end. ax_replay_end gets the `status` of the
 * launches. If `status` is an error, ax_replay_end drops the launches that are still deferred and returns
 * `status`; otherwise it runs these launches and returns their status. Destroy a replay before its device is
 * closed. */
AX_MUST_CHECK ax_status ax_replay_create(ax_device *dev, ax_replay **out);
void ax_replay_destroy(ax_replay **replay);
AX_MUST_CHECK ax_status ax_replay_begin(ax_stream *stream, ax_replay *replay);
AX_MUST_CHECK ax_status ax_replay_end(ax_stream *stream, ax_status status);
/* Runs the launches that a replay has deferred (ax_replay_begin). Code that enqueues anything other than a
 * launch on the stream calls this function first; the library's copies, waits, events and collectives do so
 * themselves. */
AX_MUST_CHECK ax_status ax_replay_cut(ax_stream *stream);

/* Waits until all work launched on the stream is done. */
AX_MUST_CHECK ax_status ax_stream_wait(ax_stream *stream);

/* ax_copy_in copies host to device; the host memory may be reused on return. ax_copy_out copies device to
 * host; the copy is complete on return. */
AX_MUST_CHECK ax_status ax_copy_in(ax_stream *stream, void *device, const void *host, size_t bytes);
AX_MUST_CHECK ax_status ax_copy_out(ax_stream *stream, void *host, const void *device, size_t bytes);

/* Copies beside kernels. A device has two copy streams, one for each direction, beside the stream of its
 * kernels: copies to the device, copies to the host and kernels run at the same time. The device does the
 * work of one stream in order; between streams, events alone give an order. For example, a kernel that reads
 * what a copy brings: ax_stream_record(copy stream, e) after the copy, ax_stream_await(compute stream, e)
 * before the kernel. For a copy into memory that earlier kernels read, the two streams change places: record
 * e on the compute stream after the kernels, and make the copy stream await e before the copy.
 *
 * On a backend without such copies (ax_device_ops.copies is NULL) every copy is done when the call returns,
 * and events are always complete. The functions may then be called in the same way. Copies on copy streams
 * are not part of a replay's graphs (ax_replay_begin), and do not make the library run deferred launches.
 *
 * Listeners are told of a copy when it is enqueued, not when it is done. So this memory must not be from a
 * frame (tensor.h), whose lifetimes follow from what they are told. */

/* Allocate and free pinned host memory, which the device can access while it copies. For set-up, because
 * pinning takes long. The memory is zeroed. `bytes` must be the same in both calls. NULL may be freed. The
 * copies must be done before the memory is freed. AX_ERR_MEMORY. */
AX_MUST_CHECK ax_status ax_pinned_alloc(ax_device *dev, size_t bytes, void **out);
void ax_pinned_free(ax_device *dev, void *memory, size_t bytes);
/* Returns the device's copy stream of a direction. It is not for kernels. */
ax_stream ax_copy_stream(ax_device *dev, ax_copy_direction direction);
/* Enqueue a copy between device memory and pinned memory of this device, on the copy stream of the direction
 * or on the compute stream. The host does not wait. Neither memory may be changed, nor the target be read,
 * before an event that was recorded after the copy is complete. */
AX_MUST_CHECK ax_status ax_copy_in_async(ax_stream *stream, void *device, const void *host, size_t bytes);
AX_MUST_CHECK ax_status ax_copy_out_async(ax_stream *stream, void *host, const void *device, size_t bytes);

/* Create and destroy an event. An event that was never recorded is complete. The caller owns *out, and
 * destroys it before the device is closed. */
AX_MUST_CHECK ax_status ax_stream_event_create(ax_device *dev, ax_stream_event **out);
void ax_stream_event_destroy(ax_stream_event **event);
/* Records an event at the present end of a stream of its device. A place where it was recorded earlier no
 * longer counts. */
AX_MUST_CHECK ax_status ax_stream_record(ax_stream *stream, ax_stream_event *event);
/* Makes the stream wait for the event as it is recorded now: work that is enqueued on the stream later runs
 * after the event is complete. The host does not wait. */
AX_MUST_CHECK ax_status ax_stream_await(ax_stream *stream, const ax_stream_event *event);
/* Sets *done to whether the event is complete, without waiting. Any thread may call it while no other thread
 * records the event. */
AX_MUST_CHECK ax_status ax_stream_event_done(const ax_stream_event *event, bool *done);
/* Waits on the host until the event is complete. AX_ERR_COMM if links have failed. */
AX_MUST_CHECK ax_status ax_stream_event_wait(const ax_stream_event *event);
/* Checks the links of the device. If one of them, or another rank, has failed, aborts all links, for which
 * the device's streams could otherwise wait for ever, and returns AX_ERR_COMM. A host that polls events with
 * ax_stream_event_done must call this function every few milliseconds. Only the thread that launches kernels
 * may call it. */
AX_MUST_CHECK ax_status ax_device_check_links(ax_device *dev);

#ifdef __cplusplus
}
#endif
#endif
