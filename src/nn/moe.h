/* A layer with experts: what its parts share. moe.c has the layer and its router; moe_rounds.c computes the
 * rows of all choices; moe_capacity.c exchanges the places of divided experts. */
#ifndef AXONN_NN_MOE_H
#define AXONN_NN_MOE_H

#include "nn/linear.h"

typedef struct moe {
    ax_layer base;
    ax_moe_config config;
    ax_layout x_layout; /* of input and output */
    ax_axes batch;      /* the axes that split the first dim of gathered tokens: of a rank with other experts
                           they are the same */
    ax_axes experts;    /* the axes that split the experts */
    ax_axes inner;      /* the axes that split the experts' inner width */
    ax_axes narrow;     /* the axes that split the width of what crosses the axes of experts */
} moe;

enum { MOE_ROUTER, MOE_GATE, MOE_UP, MOE_DOWN, MOE_PARAMS };
enum { MOE_BESIDE = MOE_UP - MOE_GATE + 1 }; /* gate and up, which have the same input */

/* Contractions of rows: forward, gradient of the input, gradient of the weights. */
#define MOE_FORWARD "ri,ogi->ro"
#define MOE_INPUT "ro,ogi->ri"
#define MOE_GRAD "ro,ri->ogi"

static inline const ax_moe_config *moe_config(const ax_layer *self) { return &((const moe *)self)->config; }

/* Returns the settings of the layer's choices of `tokens` in the running task, without tensors. */
ax_choices moe_choices(const ax_layer *self, const ax_frame *frame, const ax_tensor *tokens);
/* Runs the router on x, this rank's own tokens, which have the whole width; *c has the settings. */
ax_status moe_choose(ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_choices *c);
/* Computes the gradient of the router's logits from dweight, that of the weights of the choices c of this
 * rank's own tokens, and adds the gradient of the router's matrix. */
ax_status moe_router_grad(ax_layer *self, ax_frame *frame, const ax_choices *c, const ax_tensor *own,
                          const ax_tensor *dweight, ax_tensor *dlogits);
/* Adds the input gradient of the router to *dx. */
ax_status moe_add_router_input_grad(ax_layer *self, ax_frame *frame, const ax_tensor *dlogits, ax_tensor *dx);

/* Forward and backward of the layer: of all rows that this rank's experts have, in rounds. */
ax_status moe_rounds_forward(ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_tensor *y);
ax_status moe_rounds_backward(ax_layer *self, ax_frame *frame, const ax_tensor *dy, ax_tensor *dx);
/* Forward and backward in training, if the experts have a capacity and are divided. */
ax_status moe_capacity_forward(ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_tensor *y);
ax_status moe_capacity_backward(ax_layer *self, ax_frame *frame, const ax_tensor *dy, ax_tensor *dx);

#endif
