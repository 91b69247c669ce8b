/* The interface of a model family, and helpers for its file. */
#ifndef AXONN_MODEL_FAMILY_H
#define AXONN_MODEL_FAMILY_H

#include "axonn/json.h"
#include "axonn/model.h"

#include <jansson.h>

struct ax_family {
    const char *name;         /* also model_type in config.json */
    const char *architecture; /* class of the transformers library */
    /* Fills the shape from config.json; `path` for messages. */
    ax_status (*read)(const json_t *json, const char *path, ax_model_config *out);
    /* Sets the family's keys. */
    ax_status (*write)(const ax_model_config *config, json_t *json);
    /* Adds embedding, blocks and final norm to model->body, creates model->head, and sets ax_param.file of
     * all parameters (ax_key_map_apply). */
    ax_status (*build)(ax_model *model, int64_t recompute);
    const char *head, *table; /* keys of the output layer's weight and of the token table */
    const char *prefix;
    const char *const *ignored;
    int n_ignored;
};

/* Read a key of a JSON object; messages name file and key. A missing optional key leaves *out unchanged. */
ax_status ax_json_int(const json_t *json, const char *path, const char *key, bool optional, int64_t *out);
ax_status ax_json_number(const json_t *json, const char *path, const char *key, bool optional, double *out);

/* One row of a family's key map: files store parameters named `name` (with %d for the number of the block)
 * under `key`, as part `part` of `parts` equal parts along the output dim of the file's array. */
typedef struct ax_key_map {
    const char *name, *key;
    bool transpose;
    int part, parts;
} ax_key_map;
ax_status ax_key_map_apply(ax_layer *root, const ax_key_map *map, int n);

#endif
