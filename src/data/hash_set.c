/* A set of 64-bit hashes: a hash table with open addressing. */
#include "hash_set.h"

#include <stdlib.h>

static void insert(uint64_t *slots, size_t capacity, uint64_t hash, bool *added)
{
    size_t i = hash & (capacity - 1);
    while (slots[i] && slots[i] != hash)
        i = (i + 1) & (capacity - 1);
    *added = !slots[i];
    slots[i] = hash;
}

/* Doubles the table. At most half of the slots are used, so that lookups probe few slots. */
static ax_status grow(hash_set *set)
{
    size_t capacity = set->capacity ? 2 * set->capacity : 1024;
    uint64_t *slots;
    bool added;
    AX_TRY(ax_calloc(capacity, sizeof *slots, &slots));
    for (size_t i = 0; i < set->capacity; i++)
        if (set->slots[i])
            insert(slots, capacity, set->slots[i], &added);
    free(set->slots);
    set->slots = slots;
    set->capacity = capacity;
    return AX_OK;
}

ax_status hash_set_add(hash_set *set, uint64_t hash, bool *added)
{
    if (2 * set->n >= set->capacity)
        AX_TRY(grow(set));
    /* A hash of 0 is stored as 1, because 0 marks an empty slot. */
    insert(set->slots, set->capacity, hash ? hash : 1, added);
    set->n += *added;
    return AX_OK;
}

void hash_set_fini(hash_set *set)
{
    free(set->slots);
    *set = (hash_set){0};
}
