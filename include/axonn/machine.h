/* machine: descriptions of machines, and how long kernels, copies and communication take on them.
 *
 * A description says what a machine has (nodes, ranks of a node, memory of a device) and how fast it is
 * (rates of GEMMs and other kernels, links, bandwidths of collectives). It is a YAML file, checked as
 * configurations are; docs/guide/machines.md has its keys. Some come with the library and are found by name;
 * `axonn bench gemm --save` and `axonn bench comm --save` measure one. A rank has one device. Sizes are in
 * bytes, times in seconds, rates in bytes or floating-point operations per second.
 *
 * What a description lacks is 0, NULL or an empty list. A function that gives a time fails with AX_ERR_USAGE
 * if a rate that it needs is missing; the message names the key. No function is collective; functions with a
 * const machine are thread-safe. */
#ifndef AXONN_MACHINE_H
#define AXONN_MACHINE_H

#include "axonn/dev.h"
#include "axonn/option.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What carries data: memory or links between the devices of a node, or the network between nodes. */
typedef struct ax_machine_link {
    double rate;     /* bytes per second of one transfer in one direction */
    double latency;  /* seconds of the smallest message */
    double busy;     /* seconds that a message takes longer while the ranks of the nodes compute */
    double occupies; /* part of a collective's time that kernels lose, because the cores that compute also
                        move its data: 0 (none) to 1 */
    int64_t at_once; /* transfers of a node that have this rate at the same time; further ones share it. -1:
                        one of each rank */
} ax_machine_link;

typedef enum ax_machine_carrier {
    AX_MACHINE_NODE,
    AX_MACHINE_NETWORK,
    AX_MACHINE_CARRIERS
} ax_machine_carrier;

/* How a collective's data travel; ax_comm_path names them so. In a ring each rank sends to the next one. */
typedef enum ax_machine_path {
    AX_MACHINE_NCCL,  /* a ring of all ranks, from device to device */
    AX_MACHINE_HOST,  /* "node": through memory that the ranks of a node share; rings between the nodes */
    AX_MACHINE_FLAT,  /* a ring of all ranks, of messages */
    AX_MACHINE_STAGED /* copied to the host and back, and "node" in between */
} ax_machine_path;

typedef struct ax_machine_tables ax_machine_tables; /* rows of the lists, parsed: private to the room */

/* A description. The members are the keys of the file (device.memory, …). */
typedef struct ax_machine {
    char *name;
    int64_t nodes, ranks_per_node;
    int64_t cores; /* physical cores of a node, which its ranks share; 0: unknown */
    struct {
        char *name;
        int64_t memory;   /* of a rank's device */
        int64_t scratch;  /* memory that kernels need besides their operands */
        bool host_access; /* the host can read and write device memory (ax_device_host_access) */
        double launch;    /* seconds that a launch takes besides its work */
        double stream;    /* bytes per second that kernels without a row of `kernels` read and write */
        struct {
            double rate[AX_DTYPE_COUNT]; /* floating-point operations per second of large GEMMs by dtype of
                                            the operands; used where `points` has none of that dtype */
            ax_strings points;           /* measured GEMMs: "NT 1024x2304x768 bf16 +bias 1.2e+11" */
        } gemm;
        ax_strings kernels; /* rates of kernels: "attention 2.5e+10 FLOP/s", "adamw 9e+09 B/s" */
    } device;
    struct {
        int64_t memory; /* of a node */
        double copy;    /* bytes per second between a device and the host, in one direction */
    } host;
    ax_machine_link link[AX_MACHINE_CARRIERS];
    int path[AX_BARRIER];   /* ax_machine_path of each collective but barriers */
    ax_strings bandwidths;  /* bytes per second that a rank sends in a ring, by ranks between neighbours and
                               own size:  "1 4 2.25e+11" (paper 3, SC24, section on the performance model) */
    ax_strings collectives; /* measured times: "all_reduce 1 2 65536 0.00012": name, ranks between neighbours,
                               size, bytes, seconds */
    struct {
        char *gemm, *comm; /* how the parts were measured, for people */
    } measured;
    ax_machine_tables *tables;
} ax_machine;

/* Returns the name of a description that comes with the library, or NULL for an index after the last. */
const char *ax_machine_shipped(int index);
/* Reads the description that comes with the library under this name; else the file of this path. The caller
 * frees *out with ax_machine_close. AX_ERR_USAGE if the description is wrong, with all errors, or if there is
 * no such file and no such name; AX_ERR_DATA if the file cannot be read; AX_ERR_MEMORY. */
AX_MUST_CHECK ax_status ax_machine_open(const char *name, ax_machine **out);
/* Reads a description from text; `name` stands for its file in messages. Errors as for ax_machine_open. */
AX_MUST_CHECK ax_status ax_machine_parse(const char *name, const char *text, size_t size, ax_machine **out);
void ax_machine_close(ax_machine **machine);
/* Returns the rows that describe the keys, for ax_option_help and completion. */
const ax_option *ax_machine_options(size_t *count);

/* Returns the number of ranks that the machine has. */
int64_t ax_machine_ranks(const ax_machine *machine);
/* Fails with AX_ERR_USAGE if the machine has fewer ranks. */
AX_MUST_CHECK ax_status ax_machine_check_ranks(const ax_machine *machine, int64_t ranks);
/* Fails with AX_ERR_USAGE if rates are missing that times of a run of `ranks` ranks with GEMMs of `dtype`
 * need; the message has all of them. */
AX_MUST_CHECK ax_status ax_machine_check_times(const ax_machine *machine, ax_dtype dtype, int64_t ranks);

/* ---- times ----------------------------------------------------------------------------------------- */

/* Sets *seconds to the time of a launch with these arguments (kernels.h), whose pointers are not followed
 * except for tables in host memory. GEMMs: the time of the measured point with the same shape, layout, dtypes
 * and additions, if there is one; else an interpolation (docs/guide/machines.md), in which a GEMM is not
 * slower than one that is larger in m, n and k, as far as the measured ones are so; without points of the
 * dtype the larger of operations/rate and bytes/stream, and `launch`. Other kernels: launch + bytes/rate or
 * launch + operations/rate by their row of device.kernels, without one the larger of bytes/stream and
 * operations/rate of GEMMs of their dtype (ax_machine_gemm_rate). */
AX_MUST_CHECK ax_status ax_machine_kernel_seconds(const ax_machine *machine, ax_kernel kernel,
                                                  const void *args, double *seconds);
/* Returns the floating-point operations per second of large GEMMs of the dtype: device.gemm.rate, else that
 * of the fit over the measured points; 0: the machine has neither. */
double ax_machine_gemm_rate(const ax_machine *machine, ax_dtype dtype);
/* Sets *seconds to the time of a copy between device and host. */
AX_MUST_CHECK ax_status ax_machine_copy_seconds(const ax_machine *machine, double bytes, double *seconds);

/* How the ranks of a communicator lie on the machine. Ranks are numbered node by node. */
typedef struct ax_machine_group {
    int size;    /* number of ranks */
    int inner;   /* distance between neighbours: the product of the axes inside those of the communicator */
    int in_node; /* how many of the ranks are on one node */
} ax_machine_group;

/* Returns what carries the data of the group from node to node, or within its node. */
ax_machine_carrier ax_machine_carries(const ax_machine_group *group);

/* Sets *seconds to the time of a collective of a group, while all other groups of the same kind do the same.
 * `bytes` is the size of the larger of send and receive buffer: of all-gather what a rank has afterwards, of
 * reduce-scatter what it had before. In this order:
 *
 * 1. measured times of this collective, distance and size (`collectives`), interpolated between numbers of
 * bytes;
 * 2. f·bytes/rate + steps·latency, where f is (p-1)/p (all-reduce: twice that) and steps p-1 (all-reduce:
 * 2(p-1)), with the rate of the row of `bandwidths`;
 * 3. the same with the rates of links: within a node link.node; between nodes the network's rate·at_once,
 * divided among the groups that the ranks of a node belong to (paper 3, case 2). Along path "node" each of
 * its two rings has its own part: p is the number of ranks within a node, then the number of nodes. A ring
 * that has several ranks of a node is not faster than link.node.
 *
 * An all-to-all that leaves the node is no ring: without measured times it takes the larger of the bytes for
 * other nodes over what a rank has of the network (rate·at_once/ranks_per_node) and of those for its own node
 * over link.node, and a latency; `bandwidths` do not count.
 *
 * A barrier takes its steps' latency. A group of one rank takes no time. */
AX_MUST_CHECK ax_status ax_machine_comm_seconds(const ax_machine *machine, ax_coll coll, double bytes,
                                                const ax_machine_group *group, double *seconds);
/* Sets *seconds to the time from the start of a message until it has arrived, within a node or over the
 * network. `computing`: ranks compute meanwhile, so that it takes link.busy longer. */
AX_MUST_CHECK ax_status ax_machine_message_seconds(const ax_machine *machine, double bytes,
                                                   ax_machine_carrier carrier, bool computing,
                                                   double *seconds);

/* ---- measuring ------------------------------------------------------------------------------------- */

/* What a name of a measured time stands for: an ax_coll, or this for messages. */
enum { AX_MACHINE_MESSAGE = AX_BARRIER + 1 };

/* Writes the name of a GEMM as in a row of device.gemm.points: whether A and B are transposed (T) or not (N),
 * MxNxK, the operands' dtype, the result's dtype if it differs, then += (adds to the result), +bias, +sums
 * (column sums of A), gelu (an activation function of any kind), gelu' (its derivative), "8 groups" (a
 * grouped GEMM; else `groups` is 0). Of the pointers in `gemm` only whether they are NULL counts. Returns
 * out. */
enum { AX_MACHINE_GEMM_NAME = 128 };
char *ax_machine_gemm_name(const ax_gemm_args *gemm, int64_t groups, char out[AX_MACHINE_GEMM_NAME]);

/* ax_machine_gemms returns the number of measured GEMMs; ax_machine_gemm_at gets one of them: its arguments,
 * whose pointers are not NULL where there is such an operand and point to nothing, its groups (0: not
 * grouped), and the seconds of a call. */
int64_t ax_machine_gemms(const ax_machine *machine);
void ax_machine_gemm_at(const ax_machine *machine, int64_t index, ax_gemm_args *gemm, int64_t *groups,
                        double *seconds);

/* Makes a description without any value, for code that measures. */
AX_MUST_CHECK ax_status ax_machine_create(ax_machine **out);
/* Add measured rows to the lists of a machine, in place of the row of the same GEMM, kernel or collective if
 * there is one. ax_machine_put_kernel takes the totals of many calls, less device.launch for each. The times
 * that other functions give stay those of the description as it was opened. */
AX_MUST_CHECK ax_status ax_machine_put_gemm(ax_machine *machine, const ax_gemm_args *gemm, int64_t groups,
                                            double seconds);
AX_MUST_CHECK ax_status ax_machine_put_kernel(ax_machine *machine, ax_kernel kernel,
                                              const ax_kernel_total *total);
AX_MUST_CHECK ax_status ax_machine_put_time(ax_machine *machine, int coll, int inner, int size, int64_t bytes,
                                            double seconds);
/* Writes the description to a file, in place of what it had. `missing` are keys that could not be measured,
 * with the reason, which become comments. AX_ERR_DATA. */
AX_MUST_CHECK ax_status ax_machine_save(const ax_machine *machine, const ax_strings *missing,
                                        const char *path);

#ifdef __cplusplus
}
#endif
#endif
