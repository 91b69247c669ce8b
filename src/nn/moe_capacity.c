/* Experts of a layer (moe.c) that have a capacity and are divided along data.exp, in training (arXiv
 * 2303.06318). What ranks exchange has fixed extents: for each expert and sample as many rows as there are
 * places, [experts, samples, places, width], with zeros where no choice has the place. One all-to-all gives
 * each rank the rows of its experts from the samples of all ranks along data.exp, another gives the results
 * back. Choices and weights stay with their tokens, which sum up their results by weight; so these results
 * are kept for backward, which sends gradients in the same way.
 *
 * All ranks along x and y have the same rows for experts, and partial sums of all results. With overlap.dtd
 * (duplicate token dropping) each of them sends a part of the places, and the parts are gathered behind the
 * all-to-all; results are scattered before it. Without, each sends all rows. The sums over ranks along x and
 * y have the same order, so the bits are the same. */
#include "nn/moe.h"

/* What both directions work with. */
typedef struct experts {
    ax_layer *self;
    ax_frame *frame;
    ax_choices choices;
    ax_tensor tokens;         /* this rank's own, with the whole width */
    ax_tensor x;              /* rows of this rank's experts */
    ax_tensor in[MOE_BESIDE]; /* gate and up; in backward then their gradients */
    ax_tensor results;        /* of the places of this rank's samples */
} experts;

/* ---- the exchange -------------------------------------------------------------------------------- */

/* The layouts of places: of all experts or of those of a rank, of all places or of a part. */
static ax_layout layout_of(const ax_layer *self, bool of_experts, bool part)
{
    const moe *m = (const moe *)self;
    const ax_axes none = {0};
    return (ax_layout){.dim = {of_experts ? m->experts : none, of_experts ? m->batch : m->x_layout.dim[0],
                               part ? m->inner : none}};
}

/* Changes x to each of three layouts in turn. */
static ax_status settle_along(ax_frame *frame, const ax_layout layout[3], ax_tensor x, ax_tensor *out)
{
    for (int i = 0; i < 3; i++) {
        AX_TRY(ax_settle(frame, &x, &layout[i], out));
        x = *out;
    }
    return AX_OK;
}

/* Sends the places of this rank's samples to the ranks of their experts. */
static ax_status exchange(const experts *e, const ax_tensor *places, ax_tensor *rows)
{
    const bool dtd = e->self->ctx->parallel.overlap.dtd;
    const ax_layout along[] = {layout_of(e->self, false, dtd), layout_of(e->self, true, dtd),
                               layout_of(e->self, true, false)};
    return settle_along(e->frame, along, *places, rows);
}

/* Sends the rows back, which are partial sums over ranks along x and y. */
static ax_status exchange_back(const experts *e, const ax_tensor *rows, ax_tensor *places)
{
    const bool dtd = e->self->ctx->parallel.overlap.dtd;
    const ax_layout along[] = {layout_of(e->self, true, true), layout_of(e->self, !dtd, dtd),
                               layout_of(e->self, false, false)};
    return settle_along(e->frame, along, *rows, places);
}

/* ---- rows ---------------------------------------------------------------------------------------- */

/* Returns the most experts that a rank has. */
static int64_t most_experts(const ax_layer *self)
{
    const ax_layout layout = {.dim = {((const moe *)self)->experts}};
    const ax_tensor all = ax_tensor_make(AX_I32, 1, &moe_config(self)->experts, NULL, &layout);
    return ax_tensor_chunk(self->ctx->grid, &all, 0);
}

/* Returns the places of this rank's experts as rows, [rows, width]: for each sample as many as a rank has at
 * most, so that ranks with other experts have equally many. Those behind the last expert are not used. */
static ax_tensor as_rows(const experts *e, const ax_tensor *places)
{
    const moe *m = (const moe *)e->self;
    const ax_layout divided = {.dim = {m->experts}};
    const int64_t unit = most_experts(e->self) * places->dim[2] *
                         ax_grid_group_size(e->self->ctx->grid, ax_layout_split_axes(&divided, 1));
    ax_layout layout = {.dim = {m->batch}, .partial = places->layout.partial};
    for (int i = 0; i < m->experts.n; i++, layout.dim[0].fine++)
        layout.dim[0].a[layout.dim[0].n++] = m->experts.a[i];
    ax_tensor rows = ax_tensor_make(places->dtype, 2, (int64_t[]){places->dim[1] * unit, places->dim[3]},
                                    (int64_t[]){unit * ax_max(places->unit[1], 1), 1}, &layout);
    rows.data = places->data;
    return rows;
}

/* Returns rows of this rank's experts as places, with the layout that follows from the rows' partial sums. */
static ax_tensor as_places(const experts *e, const ax_tensor *rows)
{
    ax_layout layout = layout_of(e->self, true, false);
    layout.partial = rows->layout.partial;
    ax_tensor places = ax_tensor_make(
        rows->dtype, 4, (int64_t[]){e->choices.experts, e->tokens.dim[0], e->choices.capacity, rows->dim[1]},
        (int64_t[]){1, e->tokens.unit[0], 1, 1}, &layout);
    places.data = rows->data;
    return places;
}

static ax_groups groups_of(const experts *e)
{
    ax_layout layout = layout_of(e->self, true, false);
    const ax_tensor samples = ax_tensor_make(AX_I32, 2, (int64_t[]){e->choices.experts, e->tokens.dim[0]},
                                             (int64_t[]){1, e->tokens.unit[0]}, &layout);
    return (ax_groups){.n = e->choices.experts,
                       .axes = layout.dim[0],
                       .each = ax_tensor_extent(e->self->ctx->grid, &samples, 1) * e->choices.capacity,
                       .rounds = 1};
}

/* Multiplies rows by the matrices of a parameter. */
static ax_status multiply(const experts *e, const char *spec, const ax_tensor *x, int param, ax_tensor *out)
{
    const ax_groups groups = groups_of(e);
    ax_tensor w, rule;
    AX_TRY(ax_param_acquire(e->frame, e->self->param[param], &w));
    AX_TRY(ax_contract_grouped_rule(e->self->ctx->grid, &groups, spec, x, &w, &rule));
    AX_TRY(ax_frame_alloc(e->frame, &rule, out));
    return ax_contract_grouped(e->frame, &groups, spec, &(ax_contraction){.a = x, .b = &w, .out = out}, 1);
}

/* Computes gate and up of the rows; they lie beside each other. */
static ax_status enter_experts(experts *e)
{
    const ax_groups groups = groups_of(e);
    ax_tensor w[MOE_BESIDE], rule[MOE_BESIDE];
    ax_contraction each[MOE_BESIDE];
    for (int i = 0; i < MOE_BESIDE; i++) {
        AX_TRY(ax_param_acquire(e->frame, e->self->param[MOE_GATE + i], &w[i]));
        AX_TRY(ax_contract_grouped_rule(e->self->ctx->grid, &groups, MOE_FORWARD, &e->x, &w[i], &rule[i]));
        each[i] = (ax_contraction){.a = &e->x, .b = &w[i], .out = &e->in[i]};
    }
    AX_TRY(ax_frame_alloc_beside(e->frame, MOE_BESIDE, rule, e->in));
    return ax_contract_grouped(e->frame, &groups, MOE_FORWARD, each, MOE_BESIDE);
}

/* Computes the gradients of the rows from those of gate and up. */
static ax_status input_grads(experts *e, ax_tensor *out)
{
    const ax_groups groups = groups_of(e);
    ax_tensor w[MOE_BESIDE], rule;
    ax_contraction each[MOE_BESIDE];
    for (int i = 0; i < MOE_BESIDE; i++) {
        AX_TRY(ax_param_acquire(e->frame, e->self->param[MOE_GATE + i], &w[i]));
        each[i] = (ax_contraction){.a = &e->in[i], .b = &w[i], .out = out, .accumulate = i > 0};
    }
    AX_TRY(ax_contract_grouped_rule(e->self->ctx->grid, &groups, MOE_INPUT, &e->in[0], &w[0], &rule));
    AX_TRY(ax_frame_alloc(e->frame, &rule, out));
    return ax_contract_grouped(e->frame, &groups, MOE_INPUT, each, MOE_BESIDE);
}

/* ---- forward ------------------------------------------------------------------------------------- */

/* Gives every rank the whole width of its own tokens. */
static ax_status whole_width(const ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_tensor *out)
{
    return ax_settle(frame, x, &(ax_layout){.dim = {((const moe *)self)->x_layout.dim[0]}}, out);
}

/* Sums up the places of each token in y, which gets the layout of the layer's output. */
static ax_status sum_up(const experts *e, const ax_tensor *places, bool weighted, ax_tensor *y)
{
    ax_tensor sum;
    AX_TRY(ax_frame_alloc(e->frame, &e->tokens, &sum));
    AX_TRY(ax_op_sum_places(e->frame, &e->choices, places, weighted, &sum));
    return ax_settle(e->frame, &sum, &((const moe *)e->self)->x_layout, y);
}

enum { SAVED = 11 }; /* tensors that forward saves */

static void list_saved(experts *e, ax_tensor *out[SAVED])
{
    ax_choices *c = &e->choices;
    ax_tensor *const list[SAVED] = {&e->tokens, &e->x,      &e->in[0],  &e->in[1], &e->results, &c->probs,
                                    &c->lse,    &c->weight, &c->choice, &c->place, &c->source};
    for (int i = 0; i < SAVED; i++)
        out[i] = list[i];
}

ax_status moe_capacity_forward(ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_tensor *y)
{
    experts e = {.self = self, .frame = frame, .choices = moe_choices(self, frame, x)};
    ax_tensor places, rows, h, out, *saved[SAVED];
    e.choices.placed = true;
    AX_TRY(whole_width(self, frame, x, &e.tokens));
    AX_TRY(moe_choose(self, frame, &e.tokens, &e.choices));
    AX_TRY(ax_op_fill_places(frame, &e.choices, &e.tokens, false, &places));
    AX_TRY(exchange(&e, &places, &rows));
    e.x = as_rows(&e, &rows);
    AX_TRY(enter_experts(&e));
    AX_TRY(ax_op_glu(frame, &e.in[0], &e.in[1], moe_config(self)->activation, &h));
    AX_TRY(multiply(&e, MOE_FORWARD, &h, MOE_DOWN, &out));
    rows = as_places(&e, &out);
    AX_TRY(exchange_back(&e, &rows, &e.results));
    list_saved(&e, saved);
    for (int i = 0; i < SAVED; i++)
        AX_TRY(ax_frame_save(frame, saved[i]));
    return sum_up(&e, &e.results, true, y);
}

/* ---- backward ------------------------------------------------------------------------------------ */

/* Computes the gradients of gate and up, in their memory, from those of the results, and adds that of the
 * weights of down. Rows without a choice have the gradient 0. */
static ax_status backward_down(experts *e, const ax_tensor *dy)
{
    const ax_groups groups = groups_of(e);
    const ax_activation kind = moe_config(e->self)->activation;
    ax_tensor places, rows, drows, h, dh;
    AX_TRY(ax_op_fill_places(e->frame, &e->choices, dy, true, &places));
    AX_TRY(exchange(e, &places, &rows));
    drows = as_rows(e, &rows);
    AX_TRY(ax_op_glu(e->frame, &e->in[0], &e->in[1], kind, &h));
    AX_TRY(multiply(e, MOE_INPUT, &drows, MOE_DOWN, &dh));
    AX_TRY(ax_op_glu_grad(e->frame, &e->in[0], &e->in[1], &dh, kind));
    return ax_param_accumulate_grouped(e->frame, &groups, 1, &e->self->param[MOE_DOWN], MOE_GRAD, &drows, &h);
}

ax_status moe_capacity_backward(ax_layer *self, ax_frame *frame, const ax_tensor *dy, ax_tensor *dx)
{
    experts e = {.self = self, .frame = frame, .choices = moe_choices(self, frame, dy)};
    ax_tensor whole, dweight, dlogits, out, rows, places, *saved[SAVED];
    list_saved(&e, saved);
    for (int i = SAVED - 1; i >= 0; i--)
        AX_TRY(ax_frame_restore(frame, saved[i]));
    const ax_groups groups = groups_of(&e);
    AX_TRY(whole_width(self, frame, dy, &whole));
    AX_TRY(ax_op_sum_places_grad(frame, &e.choices, &e.results, &whole, &dweight));
    AX_TRY(moe_router_grad(self, frame, &e.choices, &e.tokens, &dweight, &dlogits));
    AX_TRY(backward_down(&e, &whole));
    if (dx) {
        AX_TRY(input_grads(&e, &out));
        rows = as_places(&e, &out);
        AX_TRY(exchange_back(&e, &rows, &places));
        AX_TRY(sum_up(&e, &places, false, dx));
    }
    AX_TRY(ax_param_accumulate_grouped(frame, &groups, MOE_BESIDE, &self->param[MOE_GATE], MOE_GRAD, e.in,
                                       &e.x));
    return dx ? moe_add_router_input_grad(self, frame, &dlogits, dx) : AX_OK;
}
