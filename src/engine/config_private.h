/* What the files of the configuration share. */
#ifndef AXONN_ENGINE_CONFIG_PRIVATE_H
#define AXONN_ENGINE_CONFIG_PRIVATE_H

#include "axonn/config.h"

/* config_rules.c: records what breaks a rule over several keys. */
void config_check(ax_config *cfg);

#endif
