/* Scores continuations of prompts, for axonn eval --pairs. */
#ifndef AX_CLI_PAIRS_H
#define AX_CLI_PAIRS_H

#include "model_data.h"

typedef struct pairs_args {
    const model_args *common;
    const model_text *text;
    const char *path, *out;
    int64_t batch;
} pairs_args;

/* Reads the pairs of a prompt and a continuation in the file `path`, evaluates all continuations by one
 * forward pass, writes a line for each pair to `out`, and prints the totals. Collective along the grid. */
ax_status pairs_score(const pairs_args *args, opened_model *m);

#endif
