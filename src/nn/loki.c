/* Attention layers that read few keys, or measure them: in a tree of layers. */
#include "nn/attention.h"

typedef struct visitor {
    int64_t layers; /* attention layers so far, of all pipeline stages */
    const ax_loki *how;
    ax_loki_visit_fn *visit;
    void *user;
} visitor;

static ax_status visit(visitor *v, ax_layer *layer)
{
    if (layer->ops == &ax_attention_ops) {
        const int64_t number = v->layers++;
        if (ax_attention_is_here(layer) && v->how)
            AX_TRY(ax_attention_attach(layer, v->how));
        if (ax_attention_is_here(layer) && v->visit && ax_attention_matrix(layer)->ndim)
            AX_TRY(v->visit(v->user, number, ax_attention_matrix(layer)));
    }
    for (int i = 0; i < layer->children; i++)
        AX_TRY(visit(v, layer->child[i]));
    return AX_OK;
}

ax_status ax_loki_attach(ax_layer *root, const ax_loki *how) { return visit(&(visitor){.how = how}, root); }

ax_status ax_loki_visit(ax_layer *root, ax_loki_visit_fn *fn, void *user)
{
    return visit(&(visitor){.visit = fn, .user = user}, root);
}
