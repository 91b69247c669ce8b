/* Functions of linear layers for layers that are built from them (attention, MLP). */
#ifndef AXONN_NN_LINEAR_H
#define AXONN_NN_LINEAR_H

#include "axonn/nn.h"

/* Backward of n linear layers whose forward ran one after the other on the same x: *dx is the sum of their
 * input gradients. dy: one gradient per layer. The layers act like one layer with concatenated weights: dx is
 * reduced once, and the GEMMs of all weight gradients overlap with this all-reduce (OAR, arXiv 2502.08145).
 * Collective along the axes of the layers' layouts. */
AX_MUST_CHECK ax_status ax_linear_backward_shared(ax_layer *const *layers, int n, ax_frame *frame,
                                                  const ax_tensor *dy, ax_tensor *dx);

/* y = f(linear(x)), f of `kind`, by one kernel unless the result of the GEMM is a partial sum over ranks.
 * *preact is the preactivation, the input of f; outside of training it may have no data. */
AX_MUST_CHECK ax_status ax_linear_forward_activation(ax_layer *self, ax_frame *frame, const ax_tensor *x,
                                                     ax_activation kind, ax_tensor *preact, ax_tensor *y);
/* Backward of a linear layer whose input was f(preact), where the caller saved `preact` before the layer's
 * forward: *dx is the gradient of preact. */
AX_MUST_CHECK ax_status ax_linear_backward_activation(ax_layer *self, ax_frame *frame, const ax_tensor *dy,
                                                      ax_activation kind, ax_tensor *dx);

#endif
