/* Which experts the tokens of a run choose: stored, compared with those of another run, or replaced by them,
 * where the choices are sorted (ax_listener). Used by support/equality.c. */
#ifndef AXONN_TESTS_CHOICES_H
#define AXONN_TESTS_CHOICES_H

#include "axonn/engine.h"

typedef enum choices_use {
    CHOICES_STORE,
    CHOICES_COMPARE, /* those of the first pass: later ones have other weights */
    CHOICES_FOLLOW
} choices_use;

/* The choices of all passes of a run on one rank. A pass is a step or an evaluation. */
typedef struct choices {
    int64_t passes, rows, tokens; /* rows of a pass, tokens of a row */
    int64_t blocks, top_k;        /* blocks: those with experts */
    int32_t *expert;              /* [passes, blocks, rows, tokens, top_k] */
    double *margin; /* [passes, blocks, rows, tokens]: the least of the chosen probabilities minus the largest
                       of the others; 1 if there are no others */
} choices;

/* Differences from the choices of one rank: tokens whose experts are others or in another order; tokens that
 * have other experts, with the largest margin of these on one rank. Indices of an array, because ranks add
 * them. */
enum { CHOICES_TOKENS, CHOICES_MOVED, CHOICES_FLIPS, CHOICES_SUMS };

/* What one rank does with the choices of its tokens. */
typedef struct choices_watch {
    const choices *of;
    choices_use use;
    int64_t first_block, blocks; /* those with experts of this rank's stage */
    int64_t first_row, all_rows; /* this rank's first row in a micro-batch, and the rows of a micro-batch */
    bool recompute;              /* blocks run forward again in backward, each by itself */
    int64_t pass, visits;        /* visits: of routers in this pass */
    bool evaluates;              /* this pass has no backward */
    ax_route_args route;         /* of the last router */
    double sum[CHOICES_SUMS], margin;
    ax_device *dev;
    ax_listener listener; /* of dev */
} choices_watch;

AX_MUST_CHECK ax_status choices_create(const choices *sizes, choices **out);
void choices_destroy(choices **c);
/* Returns the least margin of a pass. */
double choices_least_margin(const choices *c, int64_t pass);

/* Makes *w listen to the rank of an engine with one chunk, whose device the host can access. *w must live
 * until choices_agree. */
void choices_begin(choices_watch *w, const choices *c, choices_use use, ax_engine *engine, int64_t recompute);
/* Says that the next pass begins. */
void choices_pass(choices_watch *w, int64_t pass, bool evaluates);
/* Ends to listen, and adds up what the ranks of `world` found. Collective. */
AX_MUST_CHECK ax_status choices_agree(choices_watch *w, ax_comm *world);

#endif
