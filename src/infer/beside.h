/* The files that lie beside a model's weights, and are copied together with the model. */
#ifndef AXONN_INFER_BESIDE_H
#define AXONN_INFER_BESIDE_H

#include <stdbool.h>

/* Returns true if a file of this name in a model directory is copied together with the model.
 * Weights and optimizer states are not copied. Callers also leave out files above AX_BESIDE_MOST bytes
 * (ax_model_convert copies those of a tokenizer of any size). */
bool ax_beside_copied(const char *name);
enum { AX_BESIDE_MOST = 16 << 20 };
/* The directory of the chat templates that a model has by name. It is copied with a model; checkpoints of
 * runs have these templates in tokenizer_config.json. */
#define AX_BESIDE_TEMPLATES "additional_chat_templates"
/* Logs a warning if the file `name` of directory `dir` is a link that leads out of it. Links of the hub's
 * cache to its own blobs/ do not count. */
void ax_beside_say_link(const char *dir, const char *name);

#endif
