/* Compiles samples and runs them in a sandbox; compares their results with those of the references. */
#ifndef RUN_H
#define RUN_H

#include "tasks.h"

typedef enum outcome {
    PASSED,
    NOT_BUILT,    /* does not compile or link */
    NOT_PARALLEL, /* compiles, but does not use what its way asks for */
    CRASHED,      /* ended by a signal or an exit code */
    NO_RESULT,    /* ended well, but left no results, or too few */
    WRONG,        /* other results */
    TOO_LONG,     /* exceeded a limit */
    TOO_LARGE
} outcome;
const char *outcome_name(outcome o);

typedef struct verdict {
    outcome outcome;
    double seconds;   /* of the run, 0 if there was none */
    char detail[512]; /* why it did not pass; "" if it did */
} verdict;

typedef struct judge_options {
    int64_t ranks, threads; /* of MPI and OpenMP */
    double seconds;         /* limit of a run */
    int64_t memory;         /* likewise, bytes */
} judge_options;

typedef struct judge judge;

/* Makes a temporary folder with what the tasks need, becomes an unused user if the caller is root, and checks
 * that sandboxes can be made. `dir` is the folder bench/code. AX_ERR_USAGE: no sandbox here. */
AX_MUST_CHECK ax_status judge_create(const char *dir, const tasks *all, const judge_options *options,
                                     judge **out);
void judge_destroy(judge **j);

/* Compiles the driver and the reference of a kind, and makes its input and expected results. Different kinds
 * may be prepared at the same time. */
AX_MUST_CHECK ax_status judge_prepare(judge *j, const char *kind);

/* Checks that the right solution of a task, whose kind is prepared, passes. AX_ERR_INTERNAL: it does not,
 * which is the judge's fault. */
AX_MUST_CHECK ax_status judge_check(judge *j, int worker, const task *t);

/* Judges the text that continues the prompt of t, in the folder of `worker`, of which each thread has its
 * own. */
AX_MUST_CHECK ax_status judge_sample(judge *j, int worker, const task *t, const char *text, verdict *out);

#endif
