/* The tasks of bench/code, each with its prompt: one for each problem (a folder of problems/) and each way to
 * solve it. */
#ifndef TASKS_H
#define TASKS_H

#include "axonn/base.h"

typedef enum way { SERIAL, OMP, MPI, MPI_OMP, WAYS } way;

static inline bool way_has_mpi(way w) { return w == MPI || w == MPI_OMP; }
static inline bool way_has_omp(way w) { return w == OMP || w == MPI_OMP; }
const char *way_name(int w); /* NULL behind the last */

typedef struct task {
    char id[64]; /* KIND/WAY */
    char kind[32];
    way way;
    char *prompt, *right, *wrong; /* the text up to the body; bodies with their last brace */
} task;

typedef struct tasks {
    task *item;
    size_t n;
} tasks;

/* Reads all tasks of the folder `dir`, which is bench/code, sorted by kind and way. AX_ERR_DATA. */
AX_MUST_CHECK ax_status tasks_read(const char *dir, tasks *out);
void tasks_fini(tasks *t);
/* Returns the task with this id, or NULL. */
const task *tasks_find(const tasks *t, const char *id);

/* Returns the number of bytes of `text` up to the brace that closes those that `prompt` opened; all of them
 * if none does. Braces in comments and texts count, as in ParEval. */
size_t task_end(const char *prompt, const char *text);

#endif
