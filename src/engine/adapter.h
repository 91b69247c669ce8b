/* Adapters: see adapter.c. */
#ifndef AXONN_ENGINE_ADAPTER_H
#define AXONN_ENGINE_ADAPTER_H

#include "axonn/engine.h"

/* Opens the adapter in `dir`: reads adapter_config.json, finds the directory *base of its base, and opens its
 * weights. The caller releases all three, also after an error. */
AX_MUST_CHECK ax_status ax_adapter_open(const char *dir, ax_adapter *adapter, char **base, ax_st **st);
/* Checks that the store `base` holds the weights for which the adapter was made. Adapters of other programs
 * do not say for which. */
AX_MUST_CHECK ax_status ax_adapter_check_base(const ax_st *st, const char *dir, ax_st *base,
                                              const char *base_dir);
/* Sets the low-rank updates of `config`, the base's, to those of the adapter. */
AX_MUST_CHECK ax_status ax_adapter_updates(const ax_adapter *adapter, const ax_st *st, const char *dir,
                                           ax_model_config *config);

#endif
