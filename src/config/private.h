/* Declarations shared by the files of this folder and train/setup.c. */
#ifndef AXONN_CONFIG_PRIVATE_H
#define AXONN_CONFIG_PRIVATE_H

#include "axonn/chat.h"
#include "axonn/config.h"
#include "axonn/model.h"

/* rules.c: checks the rules between keys, and records errors with ax_option_error. */
void config_check(ax_config *cfg, ax_config_use use);

/* Returns true if the two keys have valid values. A rule between two keys is skipped if one of the keys is
 * already wrong. */
static inline bool config_both_ok(const ax_config *cfg, const char *a, const char *b)
{
    return ax_option_ok(cfg->set, a) && ax_option_ok(cfg->set, b);
}

/* Records an error for each key with a value that models of model->family cannot have, such as a window.
 * config_check_experts (experts.c) does so for the keys about experts, and if a router would not learn. */
void config_check_family(ax_config *cfg, const ax_model_config *model);
void config_check_experts(ax_config *cfg, const ax_model_config *model);

/* Records the error `why` for each of the `keys` (a list that ends with NULL) that does not have its default
 * value. The caller has found that these keys have no effect in this configuration. */
void config_check_unused(ax_config *cfg, const char *const *keys, const char *why);

/* tune.c: config_check_tune checks that tune.method fits the other keys. config_tune sets the low-rank
 * updates of *model, the description of model.from, and records an error for each key that does not fit this
 * model. If model.from is an adapter, *model has its updates: config_continue copies their rank, alpha,
 * targets and rslora to the configuration, sets the dropout of *model, and records an error for each key with
 * another value. */
void config_check_tune(ax_config *cfg);
/* Sets to `mark` the items of `chosen`, one for each of `blocks` blocks, that a word means: "all", "5",
 * "8-15". Returns false if the word is none of these, or if there is no such block. */
bool config_mark_blocks(const char *word, int64_t blocks, char *chosen, char mark);
void config_tune(ax_config *cfg, ax_model_config *model);
void config_continue(ax_config *cfg, ax_model_config *model, const ax_adapter *adapter);

/* model.c: merges keys with the values of a model's config.json, and records errors with
 * ax_option_error. */

/* Sets, for a new model, the keys whose defaults depend on the family or on other keys to these defaults, if
 * the user did not give them: model.tie, model.norm_eps, model.activation, model.rope_theta, model.kv_heads
 * and model.ffn (for the last two a given 0 also means the default). */
void config_take_defaults(ax_config *cfg, const ax_family *family);
/* Makes the description of a new model of the family from the model.* keys. The caller releases *out with
 * ax_model_config_fini, also after an error. */
ax_status config_new_model(ax_config *cfg, const ax_family *family, ax_model_config *out);
/* Merges the keys with *model, the description read from the config.json of model.from. Records an error if
 * the user gave another value for a key with which the weights were trained: array shapes, window,
 * activation, rope_theta, tie; with tune.method lora also norm_eps. model.seq_len may be smaller than in
 * *model. Dropout rates, init_std and norm_eps that the user gave are copied into *model. All other values
 * are copied from *model into the configuration. Sets the low-rank updates of *model, unless model.from is an
 * adapter, `adapter` (NULL: it is a model): then *model describes its base, and has its updates. */
void config_merge_model(ax_config *cfg, ax_model_config *model, const ax_adapter *adapter);
/* Reads the config.json that model.config names into *out, overrides its values by the keys that the user
 * gave, and copies all resulting values into the configuration. The caller releases *out with
 * ax_model_config_fini, also after an error. */
ax_status config_read_model(ax_config *cfg, ax_model_config *out);
/* Records an error if a new model has a smaller vocabulary than the tokenizer, `size`. A pretrained model
 * may: its data must not use the tokens that it lacks (ax_data_expect). */
void config_check_tokenizer(ax_config *cfg, int32_t size);
/* Records an error if data.template is given and does not fit the tokenizer (NULL: there is no tokenizer). */
void config_check_template(ax_config *cfg, const ax_tokenizer *tokenizer);
/* Records an error for each input path that does not exist. */
void config_check_paths(ax_config *cfg);
/* Reads and checks the files that the keys model.from, model.config and data.tokenizer name, if the keys are
 * valid. Called if other keys have errors, so that all errors are reported together. */
ax_status config_check_files(ax_config *cfg);

/* Checks the keys of the goldfish loss: the value of data.goldfish.k, and that with data.goldfish.kind hashed
 * data.goldfish.window is not above model.seq_len. */
void config_check_goldfish(ax_config *cfg);

/* Checks that a row of model.seq_len tokens has room for run.recall.tokens and a token before them. */
void config_check_recall(ax_config *cfg);

/* Checks the keys grid.pipe and pipe.* against a model of `blocks` blocks. */
void config_check_pipe(ax_config *cfg, int64_t blocks);

#endif
