/* Declares a set of 64-bit hashes (private to src/data). */
#ifndef AXONN_DATA_HASH_SET_H
#define AXONN_DATA_HASH_SET_H

#include "axonn/base.h"

/* Hash table with open addressing. A zero-initialized hash_set is the empty set. */
typedef struct hash_set {
    uint64_t *slots; /* a hash in each slot; 0: the slot is empty */
    size_t capacity; /* a power of two, or 0 */
    size_t n;
} hash_set;

/* Adds `hash`; *added is false if the set already contained `hash`. AX_ERR_MEMORY. */
AX_MUST_CHECK ax_status hash_set_add(hash_set *set, uint64_t hash, bool *added);
void hash_set_fini(hash_set *set);

#endif
