/* The interface of a model family, and helpers for the file that implements one. */
#ifndef AXONN_MODEL_FAMILY_H
#define AXONN_MODEL_FAMILY_H

#include "axonn/json.h"
#include "axonn/model.h"

#include <jansson.h>

/* One row of a family's key map: the parameter `name` of the network is stored in weight files in the array
 * `key`. In both names, %d stands for the number of the block. `transpose`: the array is the transpose of the
 * parameter. Along its output dim the array consists of `parts` equal parts, and the parameter is part number
 * `part`, from 0. */
typedef struct ax_key_map {
    const char *name, *key;
    bool transpose;
    int part, parts;
} ax_key_map;

/* A row of a family's key map for sparse blocks: parameter `name` is stored in the arrays `key`, in which *
 * stands for the number of the expert, or read from the array `fused`, of whose rows it is part `part` of
 * `parts` (ax_param_file). */
typedef struct ax_expert_key {
    const char *name, *key, *fused;
    int part, parts;
} ax_expert_key;

/* A key of config.json, and the configuration key `option` of the same meaning, which error messages name
 * instead of `key`. */
typedef struct ax_family_key {
    const char *key, *option;
} ax_family_key;

/* A key of config.json of which only the values `only` are implemented, JSON texts separated by blanks; or,
 * if `only` is NULL, another name of the key `alias`. */
typedef struct ax_key_rule {
    const char *key, *only, *alias;
} ax_key_rule;

struct ax_family {
    const char *name;         /* name of the family, and value of model_type in config.json */
    const char *architecture; /* name of the class in the transformers library */
    ax_model_config defaults; /* properties that all networks of the family share, and default values for a
                                 new model; sizes are 0 */
    /* Reads config.json into *out, which has the family's defaults already. `path` is only for messages. */
    ax_status (*read)(const json_t *json, const char *path, ax_model_config *out);
    /* Sets in `json` the keys of config.json that the family has. */
    ax_status (*write)(const ax_model_config *config, json_t *json);
    const ax_key_map *keys; /* key map: from parameters to arrays in weight files */
    int n_keys;
    const ax_expert_key *expert_keys; /* the same for the router and the experts of sparse blocks */
    int n_expert_keys;
    const ax_family_key *names; /* the keys that `write` sets and that have a configuration key */
    int n_names;
    /* The keys of config.json, beside those that all families have (config_keys.c), separated by blanks:
     * those that `read` reads, and those without effect on the network. `rules`: keys with rules for their
     * values. */
    const char *reads, *idle;
    const ax_key_rule *rules;
    int n_rules;
    const char *head, *table; /* names, in weight files, of the arrays of the output layer's weight and of the
                                 token embedding */
    const char *prefix;       /* prefix of array names that some weight files lack, such as "transformer." */
    const char *const *ignored; /* shell patterns for names of arrays that are not loaded */
    int n_ignored;
};

/* retype.c: returns the name that config.json has for a dtype, or NULL. */
const char *ax_model_dtype_name(ax_dtype dtype);

/* Read a number of a JSON object; an integer must be positive. Messages name the file `path` and the key. If
 * an optional key is missing or null, *out stays unchanged. */
ax_status ax_json_int(const json_t *json, const char *path, const char *key, bool optional, int64_t *out);
ax_status ax_json_number(const json_t *json, const char *path, const char *key, bool optional, double *out);
/* Reads an optional true or false. If the key is missing or null, *out stays unchanged. */
ax_status ax_json_bool(const json_t *json, const char *path, const char *key, bool *out);

/* config_keys.c. ax_config_keys_check fails with AX_ERR_DATA if a key of config.json has a value that is not
 * implemented, and moves the values of aliases to the keys that they stand for. ax_config_keys_drop_aliases
 * removes the aliases. ax_family_reads returns true if the family reads the key; false for keys that all
 * families have. ax_config_keys_list_has returns true if `text` is one of the words of a list, which blanks
 * separate. ax_config_keys_add_unknown appends the name of a key to a list. */
AX_MUST_CHECK ax_status ax_config_keys_check(const ax_family *family, json_t *json, const char *path);
void ax_config_keys_drop_aliases(const ax_family *family, json_t *json);
bool ax_family_reads(const ax_family *family, const char *key);
bool ax_config_keys_list_has(const char *list, const char *text);
AX_MUST_CHECK ax_status ax_config_keys_add_unknown(ax_buf *out, const char *object, const char *key);

/* rope_files.c: appends to a list the members of the rotary embedding's parameters in config.json that this
 * kind of embedding does not have. */
AX_MUST_CHECK ax_status ax_rope_list_unused(const json_t *json, ax_buf *out);

/* Writes `pattern` with the number of the block in place of %d, and that of the expert, unless it is
 * negative, in place of *. */
enum { AX_KEY_TEXT = 512 };
void ax_key_print(const char *pattern, int block, int64_t expert, char out[AX_KEY_TEXT]);
/* Returns true if `name` is `pattern`, whose %d, if it has one, stands for the number of a block, *block. */
bool ax_key_is(const char *name, const char *pattern, int *block);
/* Sets ax_param.file of all parameters of a tree by the family's key maps. AX_ERR_INTERNAL if one is in none.
 */
ax_status ax_key_map_apply(ax_layer *root, const ax_family *family);

/* stage.c: the pipeline stages of a model. The functions are called in this order:
 *
 * - ax_stage_plan, before any layer is built: chooses the first block of each chunk of each stage.
 * - ax_stage_segment, before a segment (adjacent blocks that are one layer of the body) is built: returns the
 *   end (exclusive) of the segment that begins with `block`. A segment has at most `length` blocks, and ends
 *   where the next chunk begins, because no layer may belong to two chunks.
 * - ax_stage_note, before a layer is added to the body: notes whether a chunk of this rank's stage begins
 * with this layer, or ends before it. `block` is the layer's first block; for the final norm it is
 * config.layers.
 * - ax_stage_place, after all parameters are declared: sets the place of each. */
AX_MUST_CHECK ax_status ax_stage_plan(ax_model *model, const ax_model_use *use);
int64_t ax_stage_segment(const ax_model *model, int64_t block, int64_t length);
void ax_stage_note(ax_model *model, int64_t block);
void ax_stage_place(ax_model *model);

/* adapter_members.c: adds a line to `refused`, the text of an error message, for each member of an
 * adapter_config.json that has a value that is not allowed. */
AX_MUST_CHECK ax_status ax_adapter_check_members(const json_t *json, ax_buf *refused);

/* adapter_names.c: sets *value to the number that `key` (alpha_pattern or rank_pattern) gives for a module.
 * Leaves *value if `key` does not name the module. */
AX_MUST_CHECK ax_status ax_adapter_of_module(const ax_adapter *adapter, const char *key, const char *module,
                                             double *value);

/* low_rank.c: copies low_rank_blocks of *from, whose other fields *to has already. */
AX_MUST_CHECK ax_status ax_low_rank_copy(const ax_model_config *from, ax_model_config *to);

/* low_rank.c: if model->config has low-rank updates (LoRA), freezes all parameters of the network, and then
 * adds the factors A and B of the updates. Call after ax_key_map_apply. */
AX_MUST_CHECK ax_status ax_low_rank_build(ax_model *model);

/* Builds the network of model->config: adds the embedding, the blocks and the final norm to model->body,
 * creates model->head, sets ax_param.file of all parameters, and calls ax_low_rank_build. */
ax_status ax_decoder_build(ax_model *model, const ax_model_use *use);

#endif
