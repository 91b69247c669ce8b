/* Declarations shared by the files config*.c and train_setup.c. */
#ifndef AXONN_ENGINE_CONFIG_PRIVATE_H
#define AXONN_ENGINE_CONFIG_PRIVATE_H

#include "axonn/config.h"
#include "axonn/model.h"

/* config_rules.c: checks the rules between keys, and records errors with ax_option_error. */
void config_check(ax_config *cfg);

/* Records an error for each key that models of the family do not have. */
void config_check_family(ax_config *cfg, const ax_model_config *model);

/* config_model.c: merges keys with the values of a model's config.json, and records errors with
 * ax_option_error. */

/* Sets the keys of a new model that the user did not give to the defaults of its family. */
void config_take_defaults(ax_config *cfg, const ax_family *family);
/* Returns the model that the keys describe (model.family: a new model). */
ax_model_config config_new_model(const ax_config *cfg, const ax_family *family);
/* Copies the values of model.from's config.json into the configuration. If the user gave another value for a
 * key that decides array shapes, that is an error; other numbers that the user gave are copied into the model
 * instead. */
void config_merge_model(ax_config *cfg, ax_model_config *model);
/* Reads the config.json that model.config names, replaces the values that the user gave by keys, and copies
 * all values into the configuration. The caller releases *out with ax_model_config_fini, also after
 * an error. */
ax_status config_read_model(ax_config *cfg, ax_model_config *out);
/* Checks that a tokenizer of `size` tokens fits into the model's vocabulary. */
void config_check_tokenizer(ax_config *cfg, int32_t size);
/* Checks that all paths to read from exist. */
void config_check_paths(ax_config *cfg);
/* Reads and checks the files of model.from, model.config and data.tokenizer, if these keys are valid. Called
 * for a configuration that has other errors, so that all errors are reported together. */
ax_status config_check_files(ax_config *cfg);

/* Checks the pipeline's keys against a model of `blocks` blocks. */
void config_check_pipe(ax_config *cfg, int64_t blocks);

#endif
