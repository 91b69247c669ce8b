/* Declarations shared by the files config*.c and train_setup.c. */
#ifndef AXONN_ENGINE_CONFIG_PRIVATE_H
#define AXONN_ENGINE_CONFIG_PRIVATE_H

#include "axonn/config.h"
#include "axonn/model.h"

/* config_rules.c: checks the rules between keys, and records errors with ax_option_error. */
void config_check(ax_config *cfg);

/* config_model.c: checks keys against the model that model.from names, and records errors likewise. */

/* Copies the model's shape into the configuration. A key that the user set to another value is an error. */
void config_merge_model(ax_config *cfg, const ax_model_config *model);
/* Checks that a tokenizer of `size` tokens fits into the model's vocabulary. */
void config_check_tokenizer(ax_config *cfg, int32_t size);
/* Checks that all paths to read from exist. */
void config_check_paths(ax_config *cfg);
/* Checks model.from and data.tokenizer as above, if these keys are valid. For a configuration with other
 * errors, so that all errors are reported together. */
ax_status config_check_files(ax_config *cfg);

#endif
