/* What linear layers offer to the layers that are built of them. */
#ifndef AXONN_NN_LINEAR_H
#define AXONN_NN_LINEAR_H

#include "axonn/nn.h"

/* Backward of n linear layers whose forward ran one after the other on the same x: *dx is the sum of what
 * each gives. dy: one gradient per layer. As if they were one layer, whose weight is theirs side by side: dx
 * is reduced once, and every weight's gradient overlaps it (OAR, 2502.08145). Collective along the axes of
 * the layers' layouts. */
AX_MUST_CHECK ax_status ax_linear_backward_shared(ax_layer *const *layers, int n, ax_frame *frame,
                                                  const ax_tensor *dy, ax_tensor *dx);

/* y = gelu(linear(x)), in one kernel where no sums of other ranks are to come; *pre is what gelu took.
 * Outside of training, where nobody will ask for it, it may be without data. */
AX_MUST_CHECK ax_status ax_linear_forward_gelu(ax_layer *self, ax_frame *frame, const ax_tensor *x,
                                               ax_gelu_kind kind, ax_tensor *pre, ax_tensor *y);
/* Backward of a linear layer that was given gelu(pre), where `pre` was saved before its forward: *dx is the
 * gradient of pre. */
AX_MUST_CHECK ax_status ax_linear_backward_gelu(ax_layer *self, ax_frame *frame, const ax_tensor *dy,
                                                ax_gelu_kind kind, ax_tensor *dx);

#endif
