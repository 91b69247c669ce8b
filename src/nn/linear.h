/* Functions of linear layers that attention and MLP, which consist of linear layers, call. */
#ifndef AXONN_NN_LINEAR_H
#define AXONN_NN_LINEAR_H

#include "axonn/nn.h"

/* Makes the weights of n <= AX_BESIDE linear layers one group, and their biases another (ax_param_join): the
 * parameters of a group get adjacent memory, so that ax_linear_forward_shared and ax_linear_backward_shared,
 * called with the layers in this order, need one GEMM where sizes allow it. All layers must have a bias, or
 * none. */
void ax_linear_join(ax_layer *const *layers, int n);
/* Runs forward of n <= AX_BESIDE linear layers on the same x. The layers act like one layer with concatenated
 * weights: adjacent weights are multiplied by one GEMM. y[i] is the output of layer i. If `beside` is true,
 * the outputs lie beside each other (ax_frame_alloc_beside), provided that no output needs redistribution, or
 * that each needs an all-reduce alone, along the same axes. In all other cases their rows are dense, or
 * padded if out_role is AX_ROLE_VOCAB. Collective along the axes of the layers' layouts. */
AX_MUST_CHECK ax_status ax_linear_forward_shared(ax_layer *const *layers, int n, ax_frame *frame,
                                                 const ax_tensor *x, bool beside, ax_tensor *y);
/* Runs backward of n linear layers whose forward was one call of ax_linear_forward_shared. dy[i] is the
 * output gradient of layer i, and *dx the sum of the input gradients (NULL: not needed). The layers act like
 * one layer with concatenated weights: *dx is reduced over ranks once. With parallel.overlap.oar, all
 * weight-gradient GEMMs overlap this reduction (OAR, arXiv 2502.08145). Collective along the axes of the
 * layers' layouts. */
AX_MUST_CHECK ax_status ax_linear_backward_shared(ax_layer *const *layers, int n, ax_frame *frame,
                                                  const ax_tensor *dy, ax_tensor *dx);

/* Computes y = f(linear(x)), where f is the activation `kind`. The GEMM's epilogue applies f, unless the
 * GEMM's result is a partial sum over ranks or the layer has a low-rank update. *preact becomes the input of
 * f; except in training its data may be NULL. */
AX_MUST_CHECK ax_status ax_linear_forward_activation(ax_layer *self, ax_frame *frame, const ax_tensor *x,
                                                     ax_activation kind, ax_tensor *preact, ax_tensor *y);
/* Runs backward of a linear layer whose input was f(preact), where f is the activation `kind`. The caller
 * must have saved `preact` (ax_frame_save) before the layer's forward. *dx becomes the gradient of preact. */
AX_MUST_CHECK ax_status ax_linear_backward_activation(ax_layer *self, ax_frame *frame, const ax_tensor *dy,
                                                      ax_activation kind, ax_tensor *dx);

#endif
