/* Experts of a layer (moe.c) that compute the rows of all choices that have a place, sorted by expert, by
 * grouped GEMMs (ax_contract_grouped).
 *
 * The factor of a row is applied to the input of down, not to its output: so nothing of the size of the
 * experts' outputs is kept for backward, and the sum over the choices of a token is a plain sum. The experts'
 * inner width is split along all axes that tensor parallelism has (AX_ROLE_EXPERT), and their input has the
 * whole residual width. So forward gathers the tokens once along y, and reduces the sum over choices once:
 * the bytes depend neither on top_k nor on the experts' sizes. Backward does the same with gradients, and
 * reduces the gradients of the weights of choices, which are partial sums over the inner width.
 *
 * Experts may be divided along data.exp (AX_ROLE_EXPERTS). Then tokens, choices and weights are gathered
 * along this axis too, each rank computes the rows of its experts, and their sums are scattered back. While
 * tokens and sums cross data.exp, their width is split along x too: otherwise ranks along x would send the
 * same (arXiv 2303.06318, duplicate token dropping). A rank has none to many rows. It computes them in
 * rounds, in memory for about twice the mean number (ax_expert_rows_of). The number of rounds is that of the
 * worst case, so that no rank waits for the host to read how many there are; rounds behind the last row have
 * nothing to compute. Forward computes round 0 last, so that its values are there for backward, which
 * computes those of the other rounds again. */
#include "nn/moe.h"

/* What the rounds of forward or backward work with. All rounds use the same memory and weights: the first
 * that runs gets them. */
typedef struct rounds {
    ax_layer *self;
    ax_frame *frame;
    ax_expert_rows rows;
    ax_tensor w[MOE_DOWN + 1]; /* weights; data NULL: not acquired yet */
    ax_tensor x;               /* tokens of rows */
    ax_tensor in[MOE_BESIDE];  /* gate and up; in backward then their gradients */
    ax_tensor h;               /* input of down; in backward first its gradient */
    ax_tensor out;             /* result of down, or input gradient of gate and up */
    ax_tensor dy;              /* gradients of rows */
    ax_tensor sum;             /* the sum of `out` over the choices of each token */
} rounds;

static ax_status acquire(rounds *s, int param)
{
    return s->w[param].data ? AX_OK : ax_param_acquire(s->frame, s->self->param[param], &s->w[param]);
}

static ax_status alloc(rounds *s, const ax_tensor *like, ax_tensor *out)
{
    return out->data ? AX_OK : ax_frame_alloc(s->frame, like, out);
}

/* Copies the tokens x to their rows. */
static ax_status dispatch(rounds *s, int64_t round, const ax_tensor *x, ax_tensor *out)
{
    ax_tensor like = s->rows.like;
    like.dtype = x->dtype;
    like.dim[1] = x->dim[2];
    AX_TRY(alloc(s, &like, out));
    return ax_op_dispatch(s->frame, &s->rows, round, x, out);
}

/* Multiplies rows by the matrices of a parameter. */
static ax_status multiply(rounds *s, int64_t round, const char *spec, const ax_tensor *x, int param,
                          ax_tensor *out)
{
    const ax_groups groups = ax_expert_groups(&s->rows, round);
    ax_tensor rule;
    AX_TRY(acquire(s, param));
    AX_TRY(ax_contract_grouped_rule(s->self->ctx->grid, &groups, spec, x, &s->w[param], &rule));
    AX_TRY(alloc(s, &rule, out));
    return ax_contract_grouped(s->frame, &groups, spec,
                               &(ax_contraction){.a = x, .b = &s->w[param], .out = out}, 1);
}

/* Adds the sums of `out` over the choices of each of the tokens, which are like `tokens`. */
static ax_status combine(rounds *s, int64_t round, const ax_tensor *tokens)
{
    const bool more = s->sum.data;
    const ax_tensor like = ax_expert_sum(&s->rows, &s->out, tokens);
    AX_TRY(alloc(s, &like, &s->sum));
    return ax_op_combine(s->frame, &s->rows, round, &s->out, more, &s->sum);
}

/* ---- tokens -------------------------------------------------------------------------------------- */

/* Gives every rank the whole residual width of the tokens that the ranks of its experts have. */
static ax_status gather(ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_tensor *out)
{
    const moe *m = (const moe *)self;
    const ax_layout crossed = {.dim = {m->batch, {0}, m->narrow}}, whole = {.dim = {m->batch}};
    ax_tensor at = *x;
    if (m->batch.n < m->x_layout.dim[0].n)
        AX_TRY(ax_settle(frame, x, &crossed, &at));
    return ax_settle(frame, &at, &whole, out);
}

/* Returns this rank's own part of gathered tokens, which is a part of their memory. */
static ax_tensor own_part(const ax_layer *self, const ax_tensor *tokens)
{
    const ax_grid *grid = self->ctx->grid;
    const int rank = ax_grid_rank(grid);
    int64_t begin, own_begin, n;
    ax_tensor own = *tokens;
    own.layout.dim[0] = ((const moe *)self)->x_layout.dim[0];
    ax_tensor_range(grid, tokens, 0, rank, &begin, &n);
    ax_tensor_range(grid, &own, 0, rank, &own_begin, &n);
    own.data = (char *)tokens->data +
               (own_begin - begin) * tokens->dim[1] * tokens->dim[2] * (int64_t)ax_dtype_size(tokens->dtype);
    return own;
}

/* Starts the sum of `sum`, partial sums for gathered tokens, over ranks; *part, this rank's own tokens as
 * they cross the axes of experts, is complete after *work. Sums along x and y come first. finish_sum waits,
 * and gives the result the layout of the layer's output. (All allocations after the start are those of other
 * collectives: when they are made must not depend on when this one ends.) */
static ax_status start_sum(ax_layer *self, ax_frame *frame, const ax_tensor *sum, ax_tensor *part,
                           ax_work **work)
{
    const moe *m = (const moe *)self;
    ax_tensor at = *sum;
    ax_layout crossed = m->x_layout, summed;
    crossed.dim[2] = m->narrow;
    summed = crossed;
    summed.dim[0] = m->batch;
    summed.partial = ax_layout_split_axes(&(ax_layout){.dim = {m->experts}}, 1);
    if (ax_grid_effective(self->ctx->grid, summed.partial))
        AX_TRY(ax_settle(frame, sum, &summed, &at));
    return ax_redistribute(frame, &at, &crossed, part, work);
}

static ax_status finish_sum(ax_layer *self, ax_frame *frame, const ax_tensor *part, ax_work **work,
                            ax_tensor *y)
{
    AX_TRY(ax_wait(work));
    return ax_settle(frame, part, &((moe *)self)->x_layout, y);
}

/* Returns the rows of the experts without their tensors. */
static ax_expert_rows rows_of(const ax_layer *self, const ax_choices *c, const ax_tensor *tokens)
{
    const double room = self->ctx->parallel.expert_room;
    return ax_expert_rows_of(self->ctx->grid, c, tokens, &((const moe *)self)->experts,
                             room > 0 ? room : AX_EXPERT_ROOM);
}

/* ---- forward ------------------------------------------------------------------------------------- */

/* Computes gate and up of the rows of a round; they lie beside each other. */
static ax_status enter_experts(rounds *s, int64_t round, const ax_tensor *tokens)
{
    const ax_groups groups = ax_expert_groups(&s->rows, round);
    ax_tensor rule[MOE_BESIDE];
    ax_contraction each[MOE_BESIDE];
    AX_TRY(dispatch(s, round, tokens, &s->x));
    for (int i = 0; i < MOE_BESIDE; i++) {
        AX_TRY(acquire(s, MOE_GATE + i));
        AX_TRY(ax_contract_grouped_rule(s->self->ctx->grid, &groups, MOE_FORWARD, &s->x, &s->w[MOE_GATE + i],
                                        &rule[i]));
        each[i] = (ax_contraction){.a = &s->x, .b = &s->w[MOE_GATE + i], .out = &s->in[i]};
    }
    if (!s->in[0].data)
        AX_TRY(ax_frame_alloc_beside(s->frame, MOE_BESIDE, rule, s->in));
    return ax_contract_grouped(s->frame, &groups, MOE_FORWARD, each, MOE_BESIDE);
}

/* Adds the results of the rows of a round to s->sum. */
static ax_status forward_round(rounds *s, int64_t round, const ax_tensor *tokens)
{
    AX_TRY(enter_experts(s, round, tokens));
    ax_tensor like = s->in[0];
    like.align = 0;
    AX_TRY(alloc(s, &like, &s->h));
    AX_TRY(ax_op_glu_rows(s->frame, &s->rows, round, &s->in[0], &s->in[1], moe_config(s->self)->activation,
                          &s->h));
    AX_TRY(multiply(s, round, MOE_FORWARD, &s->h, MOE_DOWN, &s->out));
    return combine(s, round, tokens);
}

enum { SAVED = 11 }; /* tensors that forward saves */

/* Lists what forward saves: the gathered tokens, gate and up of round 0, the choices, and their rows. */
static void list_saved(ax_tensor *tokens, rounds *s, ax_choices *c, ax_tensor *out[SAVED])
{
    ax_tensor *const list[SAVED] = {tokens,          &s->in[0],      &s->in[1],      &c->probs,
                                    &c->lse,         &c->weight,     &c->choice,     &s->rows.weight,
                                    &s->rows.source, &s->rows.place, &s->rows.bounds};
    for (int i = 0; i < SAVED; i++)
        out[i] = list[i];
}

ax_status moe_rounds_forward(ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_tensor *y)
{
    rounds s = {.self = self, .frame = frame};
    ax_tensor tokens, part, *saved[SAVED];
    ax_choices c = moe_choices(self, frame, x);
    ax_work *work;
    AX_TRY(gather(self, frame, x, &tokens));
    const ax_tensor own = own_part(self, &tokens);
    AX_TRY(moe_choose(self, frame, &own, &c));
    s.rows = rows_of(self, &c, &tokens);
    AX_TRY(ax_op_group(frame, &c, &s.rows));
    for (int64_t round = s.rows.rounds - 1; round >= 0; round--)
        AX_TRY(forward_round(&s, round, &tokens));
    list_saved(&tokens, &s, &c, saved);
    for (int i = 0; i < SAVED; i++)
        AX_TRY(ax_frame_save(frame, saved[i]));
    AX_TRY(start_sum(self, frame, &s.sum, &part, &work));
    return finish_sum(self, frame, &part, &work, y);
}

/* ---- backward ------------------------------------------------------------------------------------ */

static ax_status restore(rounds *s, ax_tensor *tokens, ax_choices *c)
{
    ax_tensor *saved[SAVED];
    ax_expert_rows rows;
    list_saved(tokens, s, c, saved);
    for (int i = SAVED - 1; i >= 0; i--)
        AX_TRY(ax_frame_restore(s->frame, saved[i]));
    rows = rows_of(s->self, c, tokens);
    rows.weight = s->rows.weight;
    rows.source = s->rows.source;
    rows.place = s->rows.place;
    rows.bounds = s->rows.bounds;
    s->rows = rows;
    return AX_OK;
}

/* Allocates *dweight, the gradient of the weights of all choices of the gathered tokens: partial sums over
 * the inner width, and over ranks with other experts. Choices without a row on this rank have the gradient 0.
 */
static ax_status alloc_weight_grads(rounds *s, ax_tensor *dweight)
{
    const ax_ctx *ctx = s->self->ctx;
    const ax_layout inner = {.dim = {s->in[0].layout.dim[1], s->rows.axes}};
    ax_tensor like = s->rows.weight;
    like.layout.partial = ax_layout_split_axes(&inner, 2);
    AX_TRY(ax_frame_alloc(s->frame, &like, dweight));
    const ax_fill_args fill = {
        .n = ax_tensor_count(ctx->grid, dweight), .y = dweight->data, .dtype = dweight->dtype};
    return (s->rows.axes.n || moe_config(s->self)->capacity > 0) && fill.n ? ax_run_fill(ctx->stream, &fill)
                                                                           : AX_OK;
}

/* Computes the gradients of gate and up of the rows of a round, in their memory, and adds that of the weights
 * of down. Sets those of the weights of the choices in dweight. */
static ax_status backward_down(rounds *s, int64_t round, const ax_tensor *dy, const ax_tensor *dweight)
{
    const ax_groups groups = ax_expert_groups(&s->rows, round);
    AX_TRY(dispatch(s, round, dy, &s->dy));
    AX_TRY(multiply(s, round, MOE_INPUT, &s->dy, MOE_DOWN, &s->h));
    AX_TRY(ax_op_glu_rows_grad(s->frame, &s->rows, round, &s->in[0], &s->in[1], &s->h,
                               moe_config(s->self)->activation, dweight));
    return ax_param_accumulate_grouped(s->frame, &groups, 1, &s->self->param[MOE_DOWN], MOE_GRAD, &s->dy,
                                       &s->h);
}

/* Adds the input gradients of the rows of a round to s->sum. */
static ax_status add_input_grads(rounds *s, int64_t round, const ax_tensor *tokens)
{
    const ax_groups groups = ax_expert_groups(&s->rows, round);
    ax_tensor rule;
    ax_contraction each[MOE_BESIDE];
    for (int i = 0; i < MOE_BESIDE; i++) {
        AX_TRY(acquire(s, MOE_GATE + i));
        each[i] =
            (ax_contraction){.a = &s->in[i], .b = &s->w[MOE_GATE + i], .out = &s->out, .accumulate = i > 0};
    }
    AX_TRY(
        ax_contract_grouped_rule(s->self->ctx->grid, &groups, MOE_INPUT, &s->in[0], &s->w[MOE_GATE], &rule));
    AX_TRY(alloc(s, &rule, &s->out));
    AX_TRY(ax_contract_grouped(s->frame, &groups, MOE_INPUT, each, MOE_BESIDE));
    return combine(s, round, tokens);
}

/* Adds the gradients of the weights of gate and up. */
static ax_status add_gate_grads(rounds *s, int64_t round, const ax_tensor *tokens)
{
    const ax_groups groups = ax_expert_groups(&s->rows, round);
    if (round == 0) /* enter_experts has done it for the others */
        AX_TRY(dispatch(s, round, tokens, &s->x));
    return ax_param_accumulate_grouped(s->frame, &groups, MOE_BESIDE, &s->self->param[MOE_GATE], MOE_GRAD,
                                       s->in, &s->x);
}

/* Runs the rounds backward. *dx (NULL: not needed), the input gradient of the experts, is complete after
 * *work, and overlaps with the last gradients of weights. */
static ax_status backward_rounds(rounds *s, const ax_tensor *tokens, const ax_tensor *dy,
                                 const ax_tensor *dweight, ax_tensor *dx, ax_work **work)
{
    for (int64_t round = 0; round < s->rows.rounds; round++) {
        if (round > 0)
            AX_TRY(enter_experts(s, round, tokens));
        AX_TRY(backward_down(s, round, dy, dweight));
        if (dx)
            AX_TRY(add_input_grads(s, round, tokens));
        if (dx && round + 1 == s->rows.rounds)
            AX_TRY(start_sum(s->self, s->frame, &s->sum, dx, work));
        if (!s->self->ctx->parallel.overlap.oar)
            AX_TRY(ax_wait(work));
        AX_TRY(add_gate_grads(s, round, tokens));
    }
    return AX_OK;
}

ax_status moe_rounds_backward(ax_layer *self, ax_frame *frame, const ax_tensor *dy, ax_tensor *dx)
{
    rounds s = {.self = self, .frame = frame};
    ax_tensor tokens, gathered, dweight, dlogits, part;
    ax_choices c = moe_choices(self, frame, dy);
    ax_work *work = NULL;
    AX_TRY(restore(&s, &tokens, &c));
    const ax_tensor own = own_part(self, &tokens);
    AX_TRY(gather(self, frame, dy, &gathered));
    AX_TRY(alloc_weight_grads(&s, &dweight));
    AX_TRY(backward_rounds(&s, &tokens, &gathered, &dweight, dx ? &part : NULL, &work));
    AX_TRY(moe_router_grad(self, frame, &c, &own, &dweight, &dlogits));
    if (!dx)
        return AX_OK;
    AX_TRY(finish_sum(self, frame, &part, &work, dx));
    return moe_add_router_input_grad(self, frame, &dlogits, dx);
}
