/* trace: what a run reports of itself: metrics.jsonl, TensorBoard events, the progress line; and rings of
 * events, what each thread did when.
 *
 * One object writes the first three. After it is open, reporting a step allocates nothing. Not collective:
 * one rank reports. The keys of metrics.jsonl and what they mean are in docs/howto.md. */
#ifndef AXONN_TRACE_H
#define AXONN_TRACE_H

#include "axonn/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ax_metrics ax_metrics;

/* What does not change during a run. Strings are borrowed by ax_metrics_open and not kept. */
typedef struct ax_metrics_run {
    const char *dir;    /* run directory: metrics.jsonl and tb/ are there */
    const char *device; /* "cpu" */
    int threads, ranks;
    const char *grid;      /* "data=1 pipe=1 x=1 y=1 z=1" */
    const char *strategy;  /* "axonn"; NULL: not said */
    int zero;              /* stage of ZeRO */
    const char *precision; /* "bf16" */
    const char *model;     /* "gpt2 6 x 256" */
    int64_t parameters;
    int64_t steps;         /* the total: for the time left */
    double peak_flops;     /* per second of one rank's device (the mean of all), 0: unknown */
    const char *peak_from; /* where that figure comes from */
    int64_t mem_planned;   /* bytes; 0: unknown */
    int64_t mem_baseline;  /* bytes resident before the planned ones were taken */
    int64_t log_interval;  /* progress lines every so many steps where stderr is no terminal */
    bool quiet;            /* no progress line */
} ax_metrics_run;

/* Bytes of a step along one set of axes. */
typedef struct ax_metrics_axes {
    const char *axes; /* "x", "z.data" */
    int64_t bytes;
} ax_metrics_axes;

/* One step, in the words of metrics.jsonl. */
typedef struct ax_metrics_step {
    int64_t step;
    double loss, grad_norm, lr;
    int64_t tokens;      /* targets so far */
    int64_t step_tokens; /* of this step, for the rate */
    double step_ms;
    double flops;    /* model FLOPs of this step (6·N + attention, no recomputation) */
    double hw_flops; /* really computed */
    int64_t mem_bytes;
    const ax_metrics_axes *comm; /* comm_bytes */
    int comm_count;
    int64_t comm_wire_bytes;
    double comm_exposed_ms;
    bool skipped;
    double loss_scale; /* of fp16; 0: the row has none */
} ax_metrics_step;

/* Opens RUN/metrics.jsonl and RUN/tb/. With resume_step > 0 the file is appended to, after rows of later
 * steps (and a torn last line) are cut off; else a new file begins (an old one is kept as metrics.jsonl.N, an
 * old tb/ as tb.N).
 * Writes the object that describes the run. The caller owns *out. AX_ERR_DATA. */
AX_MUST_CHECK ax_status ax_metrics_open(const ax_metrics_run *run, int64_t resume_step, ax_metrics **out);
/* One row, one TensorBoard event per number, and the progress line
 * "step 120/2000 | loss 3.2451 | gnorm 0.812 | lr 2.98e-04 | 412 ms | 318k tok/s | MFU 39.5% | mem 1.2 GiB |
 * eta 13m". */
AX_MUST_CHECK ax_status ax_metrics_step_add(ax_metrics *metrics, const ax_metrics_step *step);
/* {"step": N, "eval_loss": X, …} and its event and line. bits_per_byte < 0: unknown. */
AX_MUST_CHECK ax_status ax_metrics_eval_add(ax_metrics *metrics, int64_t step, double loss,
                                            double bits_per_byte, int64_t targets, double seconds);
/* Ends the progress line, so that another message can be written. */
void ax_metrics_break_line(ax_metrics *metrics);
void ax_metrics_close(ax_metrics **metrics);

/* ---- reading them back --------------------------------------------------------------------------- */

typedef struct ax_history_point {
    int64_t step;
    double loss, grad_norm, lr, step_ms, tokens_per_s;
    bool eval;      /* loss is eval_loss; the others are 0 */
} ax_history_point; /* NaN where the file has null */

typedef struct ax_history {
    char *title; /* last part of the run directory's path; owned */
    int n;
    ax_history_point *point; /* owned */
} ax_history;

/* Reads RUN/metrics.jsonl. AX_ERR_DATA with file:line. The caller releases with ax_history_fini. */
AX_MUST_CHECK ax_status ax_history_read(const char *run_dir, ax_history *out);
void ax_history_fini(ax_history *history);

/* Appends an SVG picture (complete document, 800 × 480) of the runs' training and evaluation loss against
 * steps. */
AX_MUST_CHECK ax_status ax_history_svg(const ax_history *runs, int n, ax_buf *out);
/* Appends a self-contained HTML page for one or more runs: pictures of loss, gradient norm, learning rate and
 * rate, and a table of the last values. */
AX_MUST_CHECK ax_status ax_history_html(const ax_history *runs, int n, ax_buf *out);

/* ---- events -------------------------------------------------------------------------------------- */

/* Something that a thread of this rank did from `begin` to `end` (ax_now). Both texts outlive the trace. */
typedef struct ax_event {
    double begin, end;
    const char *kind; /* "kernel", "layer", "all_gather", "wait", … */
    const char *name; /* of the kernel, layer or parameter */
    int64_t value;    /* of a kernel CPU nanoseconds of the launching thread, of a gather bytes, else 0 */
} ax_event;

/* The rings of one rank. A ring is written by one thread, keeps its newest events, and neither locks nor
 * allocates. Everywhere below a ring or a trace that is NULL means: not traced. */
typedef struct ax_trace ax_trace;
typedef struct ax_event_ring ax_event_ring;

/* Rings of at least `capacity` events. The caller owns *out. */
AX_MUST_CHECK ax_status ax_trace_create(size_t capacity, ax_trace **out);
void ax_trace_destroy(ax_trace **trace);
/* Adds a ring for a thread called `name`; the trace owns it. Not for two threads at a time. */
AX_MUST_CHECK ax_status ax_trace_ring(ax_trace *trace, const char *name, ax_event_ring **out);
void ax_event_add(ax_event_ring *ring, const char *kind, const char *name, double begin, double end,
                  int64_t value);
/* Events ever added, and the i-th of them: NULL once newer ones have taken its place. An event that its ring
 * is about to reuse must not be read: stop the writer, or stay a capacity away. */
size_t ax_event_count(const ax_event_ring *ring);
const ax_event *ax_event_get(const ax_event_ring *ring, size_t i);
/* Writes what the rings hold as Chrome trace events (JSON, microseconds since `origin`), which Perfetto and
 * chrome://tracing show: the rank is the process, a ring a thread. Threads must have stopped writing.
 * AX_ERR_DATA. */
AX_MUST_CHECK ax_status ax_trace_write(const ax_trace *trace, int rank, double origin, const char *path);

#ifdef __cplusplus
}
#endif
#endif
