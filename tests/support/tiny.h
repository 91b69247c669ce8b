/* A model of odd sizes for steps of the engine, and rows of tokens for it. */
#ifndef AXONN_TESTS_SUPPORT_TINY_H
#define AXONN_TESTS_SUPPORT_TINY_H

#include "axonn/engine.h"
#include "support/check.h"

enum { T = 12, VOCAB = 29, GLOBAL = 8 };

/* Returns a model with heads of width 7 and an MLP of width 23. */
ax_model_config tiny(double dropout);

/* Makes rows that depend only on their index and on the uint64_t at `source`: tokens, documents of different
 * lengths, some masked targets. */
ax_read_rows_fn tiny_rows;
/* Returns the number of unmasked targets in GLOBAL such rows. */
int64_t tiny_targets(void);

#endif
