/* Measurements that the verbs `axonn bench ...` print. The verbs are in verb_bench_*.c. */
#ifndef AX_BENCH_BENCH_H
#define AX_BENCH_BENCH_H

#include "axonn/machine.h"
#include "axonn/train.h"

/* The memory of this rank's device, in bytes. */
typedef struct bench_memory {
    ax_memory planned; /* by class */
    size_t allocated;  /* the most that was allocated at a time: as planned (ax_ctx_peak) */
    size_t limit;      /* runtime.device_memory; 0: no limit */
    int64_t held;      /* most bytes in use so far, libraries included (ax_device_held) */
} bench_memory;

/* Returns the memory of a context so far, for which `planned` was planned. */
bench_memory bench_memory_of(const ax_ctx *ctx, const ax_memory *planned);
/* Prints it to stdout, and ends the line: "1 MiB planned, 1 MiB allocated, 3 MiB taken at most". */
void bench_memory_print(const bench_memory *memory);

/* A device whose kernels sleep for the time that a machine's description gives for them
 * (ax_machine_kernel_seconds), and compute nothing: memory keeps what it has. Copies and communication are
 * real. */
typedef struct bench_sleep {
    const ax_machine *machine; /* borrowed */
    ax_listener listener;
    ax_kernel_total total[AX_KERNEL_COUNT]; /* `seconds` alone: what kernels took by the description */
    double debt;                            /* seconds that are still to be slept */
    ax_status status;                       /* the first error of the description */
} bench_sleep;

/* The kernels of a device that computes in host memory sleep from now on, until it is closed. The caller
 * keeps *sleep as long. */
void bench_sleep_begin(ax_device *dev, const ax_machine *machine, bench_sleep *sleep);
/* Sleeps until ax_now() is `when`. */
void bench_sleep_until(double when);

/* Timings of the training steps of a configuration. */
typedef struct bench_step_times {
    ax_spread seconds; /* seconds of a step, on the slowest rank */
    int64_t tokens;    /* target tokens per step, over all ranks */
    double flops;      /* FLOPs per step, over all ranks: ax_model_config_flops_per_token · tokens */
    /* The fields below are of this rank. `exposed` and `kernel` are means over the
     * steps whose kernels are timed. */
    double exposed; /* seconds per step that this rank waited for other ranks */
    ax_kernel_total kernel[AX_KERNEL_COUNT];
    int threads;
    double goldfish;     /* seconds per token that the host takes to decide whether the goldfish loss (arXiv
                            2406.10209) drops the token; 0: no goldfish loss */
    double peak, stream; /* peak FLOP/s (ax_device_peak) and bytes/s (ax_device_stream) of this rank's device;
                            0: unknown */
    bench_memory memory;
    ax_dtype compute; /* compute dtype (ax_ctx) */
    double planned;   /* seconds of a step by the machine for whose kernels the ranks slept; 0: none */
    char model[96];   /* such as "gpt2 12 x 768" */
    char grid[96];    /* such as "data=1 pipe=1 x=2 y=1 z=1" */
} bench_step_times;

/* Runs `warm` warm-up steps, then times `steps` more. The steps are those of `axonn train`, but on random
 * tokens. On a device with its own clock (a GPU), kernels are timed in `steps` further steps. Of the
 * files that the configuration names, reads only model.from and the tokenizer. Writes no file, except that
 * the plugin for GPUs may write the plans of GEMMs that it times (runtime.plans). Unless `machine` is NULL,
 * ranks sleep in place of computing (bench_sleep). Errors as for ax_train; AX_ERR_USAGE if ranks cannot
 * sleep: the device is not cpu, the machine lacks rates, nodes have different numbers of ranks, a state in a
 * file has no price, or experts have no capacity, so that the router decides how much there is to send.
 * Collective along world. */
AX_MUST_CHECK ax_status bench_time_steps(ax_comm *world, ax_config *config, int64_t warm, int64_t steps,
                                         const ax_machine *machine, bench_step_times *out);

/* A GEMM of a step: all calls that differ only in the addresses of their operands. */
typedef struct bench_gemm {
    ax_gemm_args args; /* its pointers are all NULL; of a grouped GEMM, what the two structs share */
    int64_t groups;    /* 0: a GEMM; above 0: a grouped GEMM of so many groups */
    int64_t stride;    /* of a grouped GEMM */
    bool bias;         /* true: args.bias was not NULL in the step */
    bool preact;       /* true: args.preact, the preactivation, was not NULL in the step */
    bool sums;         /* true: args.col_sums, the sums of the columns of a, was not NULL in the step */
    int64_t calls;     /* calls per step */
    ax_spread seconds; /* seconds of a call */
} bench_gemm;

/* The different GEMMs in this rank's part of a step, in descending order of the total time of their calls. */
typedef struct bench_gemms {
    bench_gemm *gemm;
    int64_t n;
    int64_t calls;  /* calls per step of all GEMMs together */
    double flops;   /* FLOPs per step */
    double seconds; /* seconds per step: Σ over GEMMs of calls · median time of a call */
    int threads;
    int64_t cache;               /* bytes of the last-level caches of the cores that this process may use,
                                    together; 0: unknown */
    double peak[AX_DTYPE_COUNT]; /* peak FLOP/s (ax_device_peak) for each dtype that the GEMMs have; 0:
                                    unknown, or no GEMM has the dtype */
    ax_dtype compute;
    const char *device;
    char model[96], grid[96]; /* such as "gpt2 12 x 768", "data=1 pipe=1 x=2 y=1 z=1" */
} bench_gemms;

/* Finds the GEMMs of a training step of the configuration by running the step on the dry device. Then times
 * each of them `runs` times on the configuration's device, with operands that are not in the caches. All
 * ranks time their own GEMMs at the same time. If `machine` is not NULL, also measures what a description
 * says of a device (bench_measure_device). Errors as for bench_time_steps. The caller releases *out with
 * bench_gemms_fini, also after an error. Collective along world. */
AX_MUST_CHECK ax_status bench_time_gemms(ax_comm *world, ax_config *config, int64_t runs, ax_machine *machine,
                                         bench_gemms *out);
void bench_gemms_fini(bench_gemms *gemms);
/* FLOPs of a call. */
double bench_gemm_flops(const bench_gemm *gemm);

/* Writes what the host's processor is to `name`, and returns the size of one last-level cache in bytes, 0 if
 * unknown. */
size_t bench_processor(char *name, size_t size);
/* Sets *out to the number of ranks on each node. AX_ERR_USAGE if nodes differ. Collective along world. */
AX_MUST_CHECK ax_status bench_node_size(ax_comm *world, int *out);
/* Opens the description of this machine in file `path`, to which measured parts will be added; without such a
 * file a new one. On other ranks than 0 it is a new one in either case. Enters the numbers of nodes and ranks
 * and the host. AX_ERR_USAGE if the file was measured with other numbers of them. The caller closes *out.
 * Collective along world. */
AX_MUST_CHECK ax_status bench_machine_open(ax_comm *world, const char *path, ax_machine **out);
/* Sets *how, machine->measured.gemm or .comm, to `text`, and writes rank 0's description to the file, with
 * comments that list what it lacks. Collective along world. */
AX_MUST_CHECK ax_status bench_machine_save(ax_comm *world, ax_machine *machine, char **how, const char *text,
                                           const char *path);
/* Measures what a description says of a device, except for rates of kernels: memory, scratch, time of a
 * launch, rates of its memory and of copies. `local_size` is the number of ranks of this machine, which all
 * measure at the same time. */
AX_MUST_CHECK ax_status bench_measure_device(ax_ctx *ctx, int local_size, ax_machine *machine);

/* Timings of a generator that continues a prompt. Times in seconds. */
typedef struct bench_token_times {
    ax_spread prompt; /* seconds to feed the whole prompt and choose the first token */
    ax_spread token;  /* seconds per step: feeding a token of each text and choosing the next ones */
    /* The fields below are of this rank. */
    double weights;  /* bytes of the weight matrices that the GEMMs of one token read, rows of zeros that pad
                        them included (ax_param_pad_rows) */
    ax_spread read;  /* bytes/s at which the device can read these weights (ax_device_read); 0: unknown */
    ax_spread share; /* per round: (time to read the weights at the rate `read`) / (median time of a token);
                        0: unknown */
    ax_kernel_total kernel[AX_KERNEL_COUNT]; /* means over the tokens */
    bench_memory memory;
    char model[96], grid[96]; /* such as "gpt2 12 x 768", "data=1 pipe=1 x=2 y=1 z=1" */
} bench_token_times;

/* What bench_time_tokens does. */
typedef struct bench_tokens {
    int64_t prompt, tokens, rounds; /* tokens: of each text */
    int64_t batch;                  /* texts that are generated at a time */
    double top_p;                   /* tokens are drawn with this top-p; 0: the likeliest are taken */
} bench_tokens;

/* Times `rounds` rounds after one warm-up round. A round feeds a prompt of `prompt` random tokens, generates
 * `tokens` more, and then times the reading of the weights. Generating and reading alternate, so that other
 * load on the machine slows both of them alike. On a device with its own clock (a GPU), kernels are timed in
 * one further round. In a batch each step generates a token of each text; two texts or more are five rows or
 * more, as in ax_prompts_continue, some of them idle. Collective along the grid. */
AX_MUST_CHECK ax_status bench_time_tokens(ax_ctx *ctx, const ax_pretrained *model, const bench_tokens *what,
                                          bench_token_times *out);

/* A value of ax_coll_args.coll in addition to those of ax_coll: a message from rank 0 to rank 1, which `bench
 * comm` times too. */
enum { BENCH_MESSAGE = AX_BARRIER + 1 };

/* Measures how many seconds the MPI library's own blocking collective with the arguments `args` takes
 * (BENCH_MESSAGE: its blocking send and receive), from the end of a barrier until this rank has its result.
 * The dtype must be f32 or f64, and the count below 2^31. Collective along comm. AX_ERR_USAGE if the ranks do
 * not communicate over MPI. */
AX_MUST_CHECK ax_status bench_time_mpi(ax_comm *comm, const ax_coll_args *args, double *seconds);

/* The end of a training step without a model: matrices of this rank's pipeline stage, the reduction of their
 * gradients along data, and their update by AdamW, with the state where ax_parallel.offload says. */
typedef struct bench_update {
    ax_ctx *ctx;      /* borrowed */
    int64_t elements; /* of the matrices of a stage */
    int params;
    ax_param **param; /* [params]: the matrices of all stages */
    ax_param_set *set;
    ax_updater *updater;
    double *numbers; /* in device memory: a loss of 0, then the sums of squares of the gradients */
    int64_t steps;   /* updates so far */
} bench_update;

/* Makes matrices of `elements` elements for each stage, rounded up to whole rows of 1024. Keeps the chunk of
 * ctx->parallel.offload; the caller may set another one after the call, to make the next ones. AX_ERR_USAGE
 * if this chunk would have no effect. The caller releases *out with bench_update_fini, also after an error.
 * Collective along the grid. */
AX_MUST_CHECK ax_status bench_update_make(ax_ctx *ctx, int64_t elements, bench_update *out);
void bench_update_fini(bench_update *update);
/* Begins a step: sets all elements of this rank's gradients to 1, in a task of `frame`. */
AX_MUST_CHECK ax_status bench_update_begin(bench_update *update, ax_frame *frame);
/* Ends the step as the engine does without clipping: reduces the gradients, computes their norm and updates
 * the matrices; with a chunk, updates them while gradients are reduced. Returns after the update. Collective
 * along the grid. */
AX_MUST_CHECK ax_status bench_update_end(bench_update *update);
/* Runs a step and measures how many seconds its reduction takes by itself, and then its update, each from a
 * barrier until this rank is done. Collective along the grid. */
AX_MUST_CHECK ax_status bench_update_time_parts(bench_update *update, ax_frame *frame, double *reduction,
                                                double *seconds);

#endif
