/* Internals of the goldfish loss, which drops about one of k targets: those that a hash of the `window`
 * tokens before the target selects (hashed), or every k-th token of a document (static). */
#ifndef AXONN_DATA_GOLDFISH_H
#define AXONN_DATA_GOLDFISH_H

#include "axonn/data.h"

typedef struct goldfish_hash {
    uint64_t factor; /* -P^window modulo 2^61 - 1: removes the oldest token of the window from the hash (P:
                        see axonn/data.h) */
    uint64_t limit;  /* a target is dropped if its hash, after mixing (mix in goldfish.c), is below `limit` */
} goldfish_hash;
/* Returns the constants of the hash for the window and k of a goldfish loss; zeros for a static loss, which
 * drops every k-th token and has no hash. */
goldfish_hash goldfish_hash_for(const ax_goldfish *goldfish);

/* Sets keep[i] to 0 if the loss drops token from + i of a document, for tokens from ... to-1 of the document.
 * tokens[0] is token `from`. A hashed loss also reads the `window` tokens before tokens[0], as far as the
 * document has them; a static loss reads no tokens. */
void goldfish_drop(const ax_goldfish *goldfish, const goldfish_hash *hash, const int32_t *tokens,
                   int64_t from, int64_t to, uint8_t *keep);

/* Checks the settings of a goldfish loss. AX_ERR_USAGE: one is out of range. */
AX_MUST_CHECK ax_status goldfish_check(const ax_goldfish *goldfish);

#endif
