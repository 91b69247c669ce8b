/* Internals of the goldfish loss: the hash, prepared for one window and k. */
#ifndef AXONN_DATA_GOLDFISH_H
#define AXONN_DATA_GOLDFISH_H

#include "axonn/data.h"

typedef struct goldfish_hash {
    uint64_t factor; /* -P^window modulo 2^61 - 1: takes the oldest token out of the hash */
    uint64_t limit;  /* a target is dropped if the mixed hash is below it */
} goldfish_hash;
/* Prepares a hash; all 0 for a static loss, which has none. */
goldfish_hash goldfish_hash_for(const ax_goldfish *goldfish);

/* Sets keep[i] to 0 for each dropped one of tokens from ... to-1 of a document, which are at tokens[0] ... .
 * Tokens before tokens[0] are read: those of the windows. A static loss reads none. */
void goldfish_drop(const ax_goldfish *goldfish, const goldfish_hash *hash, const int32_t *tokens,
                   int64_t from, int64_t to, uint8_t *keep);

/* AX_ERR_USAGE: a number out of range. */
AX_MUST_CHECK ax_status goldfish_check(const ax_goldfish *goldfish);

#endif
