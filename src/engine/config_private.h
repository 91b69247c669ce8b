/* What the files of the configuration share. */
#ifndef AXONN_ENGINE_CONFIG_PRIVATE_H
#define AXONN_ENGINE_CONFIG_PRIVATE_H

#include "axonn/config.h"
#include "axonn/model.h"

/* config_rules.c: records what breaks a rule over several keys. */
void config_check(ax_config *cfg);

/* config_model.c: keys beside the model that model.from names. What is wrong is recorded. */

/* The model's shape becomes the configuration's; a key that contradicts it is an error of the user. */
void config_merge_model(ax_config *cfg, const ax_model_config *model);
/* A vocabulary of `size` fits into the model's. */
void config_check_tokenizer(ax_config *cfg, int32_t size);
/* The rules above for a configuration in which something else is wrong, so that all is told at once: reads
 * model.from and data.tokenizer as far as these keys are right. */
ax_status config_check_files(ax_config *cfg);

#endif
