/* The search for the layout of a run: shared by search.c (the order in which candidates are tried),
 * search_keys.c (their values) and search_replay.c (their time and memory). */
#ifndef AXONN_TRAIN_SEARCH_H
#define AXONN_TRAIN_SEARCH_H

#include "train/train.h"

/* Values of a key, the one that is fastest if memory does not count first, and the one that needs the least
 * memory last. The caller owns the array, which has room for search.values_most. */
typedef struct search_values {
    int64_t *of;
    int n;
} search_values;

/* The whole search. */
struct ax_search {
    ax_train_run *run;    /* model, inputs and configuration; borrowed */
    ax_train_run own;     /* what `run` points to if the search opened them itself */
    ax_search_options by; /* what the caller asked for */
    ax_comm *world;       /* of a run whose other ranks do not exist */
    ax_train_plan base;   /* the plan whose layout is replaced by that of a candidate */
    bool fixed[AX_SEARCH_KEYS];
    bool alike;      /* all blocks of the model are alike, so a few of them tell the time of all */
    bool offloads;   /* an offloaded state can be priced */
    size_t limit;    /* bytes that a rank may take of its device */
    int64_t ranks;   /* of the grids */
    int values_most; /* the most values of a key */
    ax_grid_size *grid;
    int n_grids;
    char refused[512];     /* why the engine could not run a candidate */
    int64_t replays;       /* of a rank's step so far */
    int64_t candidates;    /* whose time was found, with all keys */
    size_t least;          /* bytes of the candidate that needs the least memory, if none fits */
    ax_candidate least_of; /* that candidate */
    ax_candidate *best;    /* [n], the fastest first */
    int n;
};

/* ---- search_keys.c --------------------------------------------------------------------------------- */

/* The keys of the configuration. */
extern const char *const search_key_names[AX_SEARCH_KEYS];
/* Returns the bytes of the model's weights in the compute dtype. */
int64_t search_weights(const struct ax_search *s);
/* Returns how many micro-batches a rank's rows are in a step, by the candidate's grid and micro-batch. */
int64_t search_micro_batches(const struct ax_search *s, const ax_candidate *c);
/* Lists the legal grids of s->ranks ranks. */
ax_status search_list_grids(struct ax_search *s);
/* Sets `values` to the values of the key for a candidate whose keys before it have values. */
void search_list(const struct ax_search *s, const ax_candidate *c, ax_search_key key, search_values *values);
/* Gives the candidate's key this value. */
void search_set(const struct ax_search *s, ax_candidate *c, ax_search_key key, int64_t value);
/* Sets in *plan what the candidate's keys say. */
void search_apply(const ax_candidate *c, ax_train_plan *plan);

/* ---- search_replay.c ------------------------------------------------------------------------------- */

/* What is known of a candidate whose later keys have no value yet. */
typedef enum search_mode {
    SEARCH_ROOM,    /* find the memory alone, and that of the first stage */
    SEARCH_MEMORY,  /* find the memory alone */
    SEARCH_OPEN,    /* the micro-batch is open too: the time of one stage that has its share of blocks */
    SEARCH_ANYWAY,  /* the order is open: collectives cost the least that they can */
    SEARCH_ORDERED, /* the schedule is open: its messages take no time */
    SEARCH_TIMED    /* all keys have values */
} search_mode;

/* Finds the memory of the rank that needs the most, and the time of a step. If the blocks are alike and
 * `whole` is false, two sizes of a stage with few blocks are replayed, and the others follow. Sets
 * c->memory, c->host, and all times. While keys are open, one chunk stands for all of a stage; c->memory is
 * then SIZE_MAX: not known, and not found to fit. */
ax_status search_replay(struct ax_search *s, ax_candidate *c, search_mode mode, bool whole);

#endif
