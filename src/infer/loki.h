/* Files of matrices that turn heads (Loki). */
#ifndef AXONN_INFER_LOKI_H
#define AXONN_INFER_LOKI_H

#include "axonn/infer.h"

/* Members of the file's metadata. */
#define AX_LOKI_MODEL "axonn_model" /* checksum of the model: ax_loki_checksum */
#define AX_LOKI_ROTARY "axonn_rotary"
#define AX_LOKI_TOKENS "axonn_tokens"

/* Prints the checksum of a model's weights, of an adapter with that of its base. */
enum { AX_LOKI_CHECKSUM = 40 };
AX_MUST_CHECK ax_status ax_loki_checksum(const ax_pretrained *model, char out[AX_LOKI_CHECKSUM]);

/* Prints the key of an array of layer number `layer`: "turn" or "eigenvalues". */
enum { AX_LOKI_KEY = 48 };
void ax_loki_key(int64_t layer, const char *what, char out[AX_LOKI_KEY]);

#endif
