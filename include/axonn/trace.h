/* trace: the metrics of a run (metrics.jsonl, TensorBoard events, the progress line), and profiling events in
 * a ring buffer for each thread.
 *
 * An ax_metrics object writes all three forms of the metrics. After ax_metrics_open, reporting a step
 * allocates nothing. Not collective: one rank reports. docs/howto.md explains the keys of metrics.jsonl. */
#ifndef AXONN_TRACE_H
#define AXONN_TRACE_H

#include "axonn/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ax_metrics ax_metrics;

/* The properties of a run that do not change. ax_metrics_open does not keep the strings after it returns. */
typedef struct ax_metrics_run {
    const char *dir;    /* run directory: metrics.jsonl and tb/ are there */
    const char *device; /* name of the device, such as "cpu" */
    int threads, ranks;
    const char *grid;       /* the grid of ranks, such as "data=1 pipe=1 x=1 y=1 z=1" */
    const char *strategy;   /* strategy of parallelism, such as "axonn"; NULL: written as null */
    int zero;               /* ZeRO stage, 0 to 3 */
    const char *precision;  /* compute dtype, such as "bf16" */
    const char *grad_dtype; /* dtype of the gradients of matrices */
    const char *offload;    /* where the optimizer's state is: "none", "host" or "file" */
    const char *model;      /* family, layers x width, such as "gpt2 6 x 256" */
    int64_t parameters;
    int64_t steps;          /* number of steps of the whole run, for the estimate of the time left */
    double expert_capacity; /* ax_model_experts; 0: every choice has a place */
    int64_t goldfish_k;     /* the goldfish loss drops about one of k targets; 0: there is none */
    double peak_flops;      /* peak FLOP/s of one rank's device, averaged over ranks; 0: unknown */
    const char *peak_from;  /* how peak_flops was found, such as by a measurement */
    int64_t mem_planned;    /* bytes that the run is planned to allocate; 0: unknown */
    int64_t mem_baseline;   /* resident memory in bytes before the planned memory was allocated */
    int64_t log_interval;   /* if stderr is not a terminal: steps between two progress lines */
    bool quiet;             /* no progress line, and no log line of evaluations */
} ax_metrics_run;

/* Communication of one step between the ranks along one set of grid axes. */
typedef struct ax_metrics_axes {
    const char *axes; /* the set of axes, such as "x" or "z.data" */
    int64_t bytes;    /* bytes that a rank would send in ring algorithms; the largest of any rank */
} ax_metrics_axes;

/* The metrics of one training step. Fields that are in metrics.jsonl as they are have the names of its
 * keys. */
typedef struct ax_metrics_step {
    int64_t step;
    double loss, grad_norm, lr;
    int64_t tokens;      /* target tokens since the first step of the run */
    int64_t step_tokens; /* positions of this step (rows times their length, masked ones included), for the
                            rate tok/s */
    double step_ms;
    double flops;      /* model FLOPs of this step over all ranks: forward and backward, no recomputation */
    double hw_flops;   /* FLOPs that all ranks executed in this step, recomputation of activations included */
    int64_t mem_bytes; /* peak memory in bytes, of the process or, with a GPU, of the GPU; the largest of any
                          rank */
    int64_t mem_mean;  /* its mean over the ranks */
    const ax_metrics_axes *comm; /* comm_count items, which the row has under the key comm_bytes */
    int comm_count;
    int64_t comm_wire_bytes; /* bytes that a rank sent to other machines; the largest of any rank */
    double comm_exposed_ms;  /* time that a rank spent in communication; the longest of any rank */
    double pipe_wait_ms; /* longest time that a rank waited for other pipeline stages; 0: the row omits it */
    bool skipped;        /* the weights were not updated, because loss or gradient was not finite */
    double loss_scale;   /* fp16 only; 0: the row omits it */
    double balance_loss, z_loss, expert_load; /* of models with experts; expert_load 0: the row omits them */
    double expert_dropped; /* fraction (0 to 1) of the step's choices of experts without a place; the row
                              omits it if expert_capacity is 0 */
    double dropped; /* fraction (0 to 1) of the step's targets that the goldfish loss dropped; the row omits
                       it if goldfish_k is 0 */
} ax_metrics_step;

/* Opens RUN/metrics.jsonl and RUN/tb/. With resume_step > 0, truncates the file after the last row of that
 * step or an earlier one (this also removes an incomplete last line) and appends. Otherwise starts a new
 * file, and renames an old one to metrics.jsonl.N and an old tb/ to tb.N. Then writes the row that describes
 * the run. The caller owns *out. AX_ERR_DATA if a file cannot be read or written. */
AX_MUST_CHECK ax_status ax_metrics_open(const ax_metrics_run *run, int64_t resume_step, ax_metrics **out);
/* Reports a step: writes one row of metrics.jsonl, and one TensorBoard event with the loss, the gradient
 * norm, the learning rate, the tokens per second and, if the peak is known, the MFU. If the progress line is
 * due, also writes "step 120/2000 | loss 3.2451 | gnorm 0.812 | lr 2.98e-04 | 412 ms | 318k tok/s | MFU 39.5%
 * | mem 1.2 GiB | eta 13m". The progress line is due for the first and the last step; in between, every
 * log_interval steps or, on a terminal, every 100 ms of step time. */
AX_MUST_CHECK ax_status ax_metrics_step_add(ax_metrics *metrics, const ax_metrics_step *step);
/* Reports an evaluation: row {"step": N, "eval_loss": X, …}, TensorBoard event and log line.
 * bits_per_byte is NaN or below 0 if it is unknown. */
AX_MUST_CHECK ax_status ax_metrics_eval_add(ax_metrics *metrics, int64_t step, double loss,
                                            double bits_per_byte, int64_t targets, double seconds);
/* What the model recalls of one source of documents (ax_recall in infer.h). Fields are in metrics.jsonl as
 * they are, but `source` and `loss`. */
typedef struct ax_metrics_recall {
    const char *source;
    int64_t documents, recalled;
    double before_error, likeliest, loss; /* means over documents, and over the tokens to recall */
} ax_metrics_recall;
/* Reports what is recalled of n sources: for each a row {"step": N, "recall": SOURCE, "recalled": R, …,
 * "recall_loss": X, …}, all written at once, and a log line; TensorBoard events of their sums. */
AX_MUST_CHECK ax_status ax_metrics_recall_add(ax_metrics *metrics, int64_t step,
                                              const ax_metrics_recall *source, int n, double seconds);
/* Ends the progress line on the terminal, so that the next message starts on a new line. */
void ax_metrics_break_line(ax_metrics *metrics);
void ax_metrics_close(ax_metrics **metrics);

/* ---- reading metrics.jsonl ----------------------------------------------------------------------- */

typedef enum ax_point_kind {
    AX_POINT_STEP,
    AX_POINT_EVAL,  /* `loss` is the evaluation loss */
    AX_POINT_RECALL /* `recalled` and `source` are set */
} ax_point_kind;

/* A row of metrics.jsonl about a training step, an evaluation, or what is recalled of a source of documents.
 * Numbers that are null in the file are NaN; those that the row does not have are 0. */
typedef struct ax_history_point {
    ax_point_kind kind;
    int64_t step;
    double loss, grad_norm, lr, step_ms, tokens_per_s, expert_load, expert_dropped;
    double recalled; /* percentage of the documents */
    int source;      /* index in ax_history.source */
    /* Target tokens, and seconds of the steps, evaluations and recalls, since the first step of the run,
     * whatever sessions it had. An evaluation is at the time at which it began. NaN: the file does not say.
     */
    double tokens, seconds;
    int line; /* of the file */
} ax_history_point;

/* What pictures show on the x axis. */
typedef enum ax_history_axis { AX_HISTORY_STEPS, AX_HISTORY_TOKENS, AX_HISTORY_TIME } ax_history_axis;

typedef struct ax_history {
    char *file;              /* path of metrics.jsonl; owned */
    char *title;             /* last component of the run directory's path; owned */
    ax_history_axis axis;    /* steps, unless ax_history_set_axis sets another */
    int n;                   /* number of points */
    ax_history_point *point; /* in the order of the file; owned */
    ax_strings source;       /* the sources of documents that are recalled; owned */
} ax_history;

/* Reads RUN/metrics.jsonl. AX_ERR_DATA: the file cannot be read, or a row is not JSON (the message has
 * file:line). An incomplete last line is ignored. The caller releases *out with ax_history_fini. */
AX_MUST_CHECK ax_status ax_history_read(const char *run_dir, ax_history *out);
void ax_history_fini(ax_history *history);
/* Sets what pictures of the run show on the x axis. AX_ERR_DATA, with file:line: a row does not have it. All
 * runs of a picture must have the same axis. */
AX_MUST_CHECK ax_status ax_history_set_axis(ax_history *history, ax_history_axis axis);

/* Appends an SVG picture (complete document, 800 × 480) of the runs' training and evaluation loss against
 * their axis. */
AX_MUST_CHECK ax_status ax_history_svg(const ax_history *runs, int n, ax_buf *out);
/* Appends a self-contained HTML page for one or more runs: charts of loss, gradient norm, learning rate and
 * tokens per second, of the load of experts, dropped choices and recalled documents if a run counts them, and
 * a table of the last values. */
AX_MUST_CHECK ax_status ax_history_html(const ax_history *runs, int n, ax_buf *out);

/* ---- events -------------------------------------------------------------------------------------- */

/* An activity of one thread of this rank, from `begin` to `end` (ax_now). `kind` and `name` must outlive the
 * trace: only their addresses are stored. */
typedef struct ax_event {
    double begin, end;
    const char *kind; /* "kernel", "forward", "gather", "wait", … */
    const char *name; /* name of the kernel, layer, parameter or collective */
    int64_t value;    /* kernel: CPU time of the launching thread in ns; gather (of a parameter): bytes; task,
                         send and receive of a pipeline: index of the micro-batch; otherwise 0 */
} ax_event;

/* An event ring is a ring buffer of events, written by one thread; a trace holds all rings of one rank. A
 * full ring overwrites its oldest events. Adding an event takes no lock and allocates nothing. If tracing is
 * off, traces and rings are NULL: ax_trace_ring returns a NULL ring for a NULL trace, and ax_event_add does
 * nothing for a NULL ring. */
typedef struct ax_trace ax_trace;
typedef struct ax_event_ring ax_event_ring;

/* Creates a trace whose rings hold at least `capacity` events each, 1 to 2^28 (else AX_ERR_USAGE). The caller
 * owns *out. */
AX_MUST_CHECK ax_status ax_trace_create(size_t capacity, ax_trace **out);
void ax_trace_destroy(ax_trace **trace);
/* Adds an event ring for a thread, which trace files call `name`; the trace owns the ring. Not
 * thread-safe. */
AX_MUST_CHECK ax_status ax_trace_ring(ax_trace *trace, const char *name, ax_event_ring **out);
void ax_event_add(ax_event_ring *ring, const char *kind, const char *name, double begin, double end,
                  int64_t value);
/* ax_event_count returns the number of events added since creation, overwritten events included. ax_event_get
 * returns event i, counted in the order of adding, or NULL if a newer event has overwritten it. The writing
 * thread may overwrite the oldest event while another thread reads it. So stop the writing thread first, or
 * do not read the oldest event. */
size_t ax_event_count(const ax_event_ring *ring);
const ax_event *ax_event_get(const ax_event_ring *ring, size_t i);
/* Writes the events in the rings as Chrome trace events (JSON, microseconds since `origin`), for Perfetto and
 * chrome://tracing: the rank becomes a process, each ring a thread of it. All threads must have stopped
 * adding events. AX_ERR_DATA if the file cannot be written. */
AX_MUST_CHECK ax_status ax_trace_write(const ax_trace *trace, int rank, double origin, const char *path);

#ifdef __cplusplus
}
#endif
#endif
