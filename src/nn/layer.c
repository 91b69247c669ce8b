/* Functions that all layers share: construction, adding of children, listing of parameters. */
#include "axonn/nn.h"

#include <stdlib.h>
#include <string.h>

ax_layer *ax_layer_new(ax_ctx *ctx, const ax_layer_ops *ops, const char *name, size_t size)
{
    ax_layer *layer;
    if (ax_calloc(1, size, &layer) != AX_OK)
        return NULL;
    layer->ops = ops;
    layer->ctx = ctx;
    if (ax_strdup(name, &layer->name) != AX_OK)
        ax_layer_destroy(&layer);
    return layer;
}

void ax_layer_destroy(ax_layer **layer)
{
    ax_layer *l = *layer;
    if (!l)
        return;
    for (int i = l->children - 1; i >= 0; i--)
        ax_layer_destroy(&l->child[i]);
    if (l->ops->destroy)
        l->ops->destroy(l);
    for (int i = 0; i < AX_LAYER_PARAMS; i++)
        if (l->param[i] && !l->borrows[i])
            ax_param_destroy(&l->param[i]);
    free(l->child);
    free(l->name);
    free(l);
    *layer = NULL;
}

ax_status ax_layer_add(ax_layer *parent, ax_layer *child)
{
    if (!parent || !child) { /* the constructor of `parent` or `child` failed, and has recorded the error */
        ax_layer_destroy(&child);
        return ax_fail_code_(ax_error_status());
    }
    ax_status status = ax_list_grow(&parent->child, (size_t)parent->children, sizeof(ax_layer *));
    if (status == AX_OK)
        parent->child[parent->children++] = child;
    else
        ax_layer_destroy(&child);
    return status;
}

static double event_begin(const ax_layer *layer) { return ax_activity_begin(layer->ctx->dev); }

static ax_status event_end(const ax_layer *layer, const char *activity, double begin, ax_status status)
{
    ax_activity_end(layer->ctx->dev, activity, layer->name, begin, 0);
    return status;
}

ax_status ax_layer_forward(ax_layer *layer, ax_frame *frame, const ax_tensor *x, ax_tensor *y)
{
    double begin = event_begin(layer);
    return event_end(layer, "forward", begin, layer->ops->forward(layer, frame, x, y));
}

ax_status ax_layer_backward(ax_layer *layer, ax_frame *frame, const ax_tensor *dy, ax_tensor *dx)
{
    if (!dx && !ax_layer_trains(layer))
        return AX_OK;
    double begin = event_begin(layer);
    return event_end(layer, "backward", begin, layer->ops->backward(layer, frame, dy, dx));
}

ax_status ax_layer_forward_sum(ax_layer *layer, ax_frame *frame, const ax_tensor *a, const ax_tensor *b,
                               ax_tensor *x, ax_tensor *y)
{
    if (!layer->ops->forward_sum) {
        AX_TRY(ax_op_add(frame, a, b, x));
        return ax_layer_forward(layer, frame, x, y);
    }
    double begin = event_begin(layer);
    return event_end(layer, "forward", begin, layer->ops->forward_sum(layer, frame, a, b, x, y));
}

ax_status ax_layer_backward_add(ax_layer *layer, ax_frame *frame, const ax_tensor *dy, const ax_tensor *add,
                                ax_tensor *dx)
{
    if (!layer->ops->backward_add) {
        ax_tensor own;
        AX_TRY(ax_layer_backward(layer, frame, dy, &own));
        return ax_op_add(frame, add, &own, dx);
    }
    double begin = event_begin(layer);
    return event_end(layer, "backward", begin, layer->ops->backward_add(layer, frame, dy, add, dx));
}

bool ax_layer_trains(const ax_layer *layer)
{
    for (int i = 0; i < AX_LAYER_PARAMS; i++)
        if (layer->param[i] && !layer->param[i]->frozen)
            return true;
    return ax_layer_first_trained(layer) < layer->children;
}

int ax_layer_first_trained(const ax_layer *layer)
{
    int i = 0;
    while (i < layer->children && !ax_layer_trains(layer->child[i]))
        i++;
    return i;
}

ax_layer *ax_layer_find(ax_layer *root, const char *name)
{
    ax_layer *found = strcmp(root->name, name) ? NULL : root;
    for (int i = 0; i < root->children && !found; i++)
        found = ax_layer_find(root->child[i], name);
    return found;
}

void ax_layer_freeze(ax_layer *layer)
{
    for (int i = 0; i < AX_LAYER_PARAMS; i++)
        if (layer->param[i])
            layer->param[i]->frozen = true;
    for (int i = 0; i < layer->children; i++)
        ax_layer_freeze(layer->child[i]);
}

void ax_layer_params(const ax_layer *layer, ax_param **out, int capacity, int *n)
{
    for (int i = 0; i < AX_LAYER_PARAMS; i++) {
        if (!layer->param[i] || layer->borrows[i])
            continue;
        if (out && *n < capacity)
            out[*n] = layer->param[i];
        ++*n;
    }
    for (int i = 0; i < layer->children; i++)
        ax_layer_params(layer->child[i], out, capacity, n);
}

ax_status ax_layer_param_set(ax_layer *layer, int moments, ax_param_set **out)
{
    int n = 0;
    ax_layer_params(layer, NULL, 0, &n);
    ax_param **params;
    AX_TRY(ax_calloc((size_t)n, sizeof *params, &params));
    int filled = 0;
    ax_layer_params(layer, params, n, &filled);
    ax_status status = ax_param_set_create(layer->ctx, params, n, moments, out);
    free(params);
    return status;
}

ax_layout ax_activation_layout(const ax_ctx *ctx, ax_role width)
{
    return ax_layout_of_roles(ctx, (ax_role[]){AX_ROLE_BATCH, AX_ROLE_NONE, width}, 3);
}
