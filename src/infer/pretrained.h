/* Opens the weights of a model alone. */
#ifndef AXONN_INFER_PRETRAINED_H
#define AXONN_INFER_PRETRAINED_H

#include "axonn/infer.h"

/* Opens the model in directory `dir`, which is not an adapter's: config.json and the weight files, not the
 * tokenizer. The errors are those of ax_pretrained_open; AX_ERR_DATA also if there are no weight files. The
 * caller releases *out with ax_pretrained_close. */
AX_MUST_CHECK ax_status ax_pretrained_open_weights(const char *dir, ax_pretrained *out);

#endif
