/* Computes the checksum by which an adapter (low-rank updates, LoRA) identifies its base model, and keeps the
 * checksum in the metadata of the adapter's safetensors file. */
#include "ckpt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- the checksum -------------------------------------------------------------------------------- */

enum { PLACES = 16, SAMPLE = 4096 }; /* number of samples of one array; bytes of one sample */

/* Adds samples of an array to the hash: SAMPLE bytes at each of PLACES evenly spread offsets. The first
 * sample begins at the array's first byte, the last one ends at its last byte. An array of at most SAMPLE
 * bytes is added whole. */
static ax_status add_sample(ax_st *st, const ax_st_array *a, XXH3_state_t *state)
{
    char bytes[SAMPLE];
    int64_t n = ax_min(a->bytes, SAMPLE), span = a->bytes - n;
    for (int64_t i = 0; n && i < (span ? PLACES : 1); i++) {
        AX_TRY(st_read_raw(st, a, span * i / (PLACES - 1), n, bytes));
        XXH3_64bits_update(state, bytes, (size_t)n);
    }
    return AX_OK;
}

static ax_status add_array(ax_st *st, const ax_st_array *a, XXH3_state_t *state)
{
    XXH3_64bits_update(state, a->key, strlen(a->key) + 1);
    XXH3_64bits_update(state, a->dtype_name, strlen(a->dtype_name) + 1);
    XXH3_64bits_update(state, a->dim, (size_t)a->ndim * sizeof *a->dim);
    return add_sample(st, a, state);
}

ax_status ax_st_checksum(ax_st *st, char out[17])
{
    XXH3_state_t *state = XXH3_createState();
    AX_CHECK(state, AX_ERR_MEMORY, "not enough memory while the checksum of %s was computed",
             st->index ? st->index : st->file[0].path);
    XXH3_64bits_reset(state);
    ax_status status = AX_OK;
    for (int i = 0; i < st->n && status == AX_OK; i++)
        status = add_array(st, &st->array[i], state);
    snprintf(out, 17, "%016llx", (unsigned long long)XXH3_64bits_digest(state));
    XXH3_freeState(state);
    return status;
}

/* ---- metadata ------------------------------------------------------------------------------------ */

ax_status ax_st_note(ax_st *st, const char *key, const char *value)
{
    if (!st->metadata)
        st->metadata = json_pack("{s:s}", "format", "pt");
    AX_CHECK(!json_object_set_new(st->metadata, key, json_string(value)), AX_ERR_MEMORY,
             "%s: not enough memory for the header of the file", st->file[0].path);
    return st_place_data(st);
}

ax_status ax_st_keep_metadata(ax_st *to, const ax_st *from)
{
    if (!json_object_size(from->metadata))
        return AX_OK;
    json_decref(to->metadata);
    to->metadata = json_deep_copy(from->metadata);
    AX_CHECK(to->metadata, AX_ERR_MEMORY, "%s: not enough memory for the header of the file",
             to->file[0].path);
    /* transformers reads no file without "format" */
    return json_object_get(to->metadata, "format") ? st_place_data(to) : ax_st_note(to, "format", "pt");
}

const char *ax_st_noted(const ax_st *st, const char *key)
{
    return json_string_value(json_object_get(st->metadata, key));
}

const char *ax_st_base(const ax_st *st) { return ax_st_noted(st, CKPT_BASE); }
