/* See choices.h. */
#include "support/choices.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t tokens_of(const choices *c) { return c->passes * c->blocks * c->rows * c->tokens; }

ax_status choices_create(const choices *sizes, choices **out)
{
    AX_TRY(ax_calloc(1, sizeof **out, out));
    **out = *sizes;
    AX_TRY(ax_calloc((size_t)(tokens_of(sizes) * sizes->top_k + 1), sizeof *(*out)->expert, &(*out)->expert));
    return ax_calloc((size_t)(tokens_of(sizes) + 1), sizeof *(*out)->margin, &(*out)->margin);
}

void choices_destroy(choices **c)
{
    if (!*c)
        return;
    free((*c)->expert);
    free((*c)->margin);
    free(*c);
    *c = NULL;
}

double choices_least_margin(const choices *c, int64_t pass)
{
    const int64_t n = c->blocks * c->rows * c->tokens;
    double least = 1;
    for (int64_t i = pass * n; i < (pass + 1) * n; i++)
        least = fmin(least, c->margin[i]);
    return least;
}

/* ---- one token ----------------------------------------------------------------------------------- */

static bool has(const int32_t *expert, int64_t n, int32_t e)
{
    for (int64_t j = 0; j < n; j++)
        if (expert[j] == e)
            return true;
    return false;
}

static double margin_of(const ax_route_args *r, int64_t token)
{
    const int32_t *chosen = r->choice + token * r->top_k;
    double least = 1, next = r->top_k < r->experts ? 0 : -1;
    for (int64_t e = 0; e < r->experts; e++) {
        const double p = ax_load(r->dtype, r->probs, token * r->experts + e);
        if (has(chosen, r->top_k, (int32_t)e))
            least = fmin(least, p);
        else
            next = fmax(next, p);
    }
    return next < 0 ? 1 : least - next;
}

static void compare(choices_watch *w, int64_t token, int64_t at)
{
    const int64_t k = w->route.top_k;
    const int32_t *mine = w->route.choice + token * k, *theirs = w->of->expert + at * k;
    bool flipped = false;
    for (int64_t j = 0; j < k; j++)
        flipped = flipped || !has(theirs, k, mine[j]);
    w->sum[CHOICES_TOKENS]++;
    w->sum[CHOICES_MOVED] += memcmp(mine, theirs, (size_t)k * sizeof *mine) != 0;
    w->sum[CHOICES_FLIPS] += flipped;
    if (flipped)
        w->margin = fmax(w->margin, w->of->margin[at]);
}

/* Sets experts and weights as if the router had chosen them. */
static void follow(const choices_watch *w, int64_t token, int64_t at)
{
    const ax_route_args *r = &w->route;
    const int32_t *theirs = w->of->expert + at * r->top_k;
    double sum = 0;
    for (int64_t j = 0; j < r->top_k; j++)
        sum += ax_load(r->dtype, r->probs, token * r->experts + theirs[j]);
    for (int64_t j = 0; j < r->top_k; j++) {
        const double p = ax_load(r->dtype, r->probs, token * r->experts + theirs[j]);
        r->choice[token * r->top_k + j] = theirs[j];
        ax_store(r->dtype, r->weight, token * r->top_k + j, r->renormalize ? p / sum : p);
    }
}

/* ---- one router ---------------------------------------------------------------------------------- */

/* Returns the index of the block of a visit among those with experts, and sets its micro-batch. The blocks
 * that run again in backward are visited in reverse. */
static int64_t block_of(const choices_watch *w, int64_t *micro_batch)
{
    const int64_t n = w->blocks, each = w->recompute && !w->evaluates ? 2 * n : n, at = w->visits % each;
    *micro_batch = w->visits / each;
    return w->first_block + (at < n ? at : 2 * n - 1 - at);
}

static void visit(choices_watch *w)
{
    const choices *c = w->of;
    const ax_route_args *r = &w->route;
    int64_t micro_batch;
    const int64_t block = block_of(w, &micro_batch), first = micro_batch * w->all_rows + w->first_row;
    for (int64_t i = 0; i < r->rows; i++) {
        const int64_t row = first + i / c->tokens,
                      at = ((w->pass * c->blocks + block) * c->rows + row) * c->tokens + i % c->tokens;
        if (w->use == CHOICES_COMPARE && !w->pass)
            compare(w, i, at);
        if (w->use == CHOICES_FOLLOW)
            follow(w, i, at);
        if (w->use == CHOICES_STORE) {
            memcpy(c->expert + at * r->top_k, r->choice + i * r->top_k, (size_t)r->top_k * sizeof *r->choice);
            c->margin[at] = margin_of(r, i);
        }
    }
    w->visits++;
}

/* Kernel group, which sorts the choices, follows the router's kernel. */
static void listen(void *user, const ax_device_event *launch)
{
    choices_watch *w = user;
    if (launch->kernel == AX_K_route)
        w->route = *(const ax_route_args *)launch->args;
    if (launch->kernel == AX_K_group && w->route.rows)
        visit(w);
}

/* ---- a rank -------------------------------------------------------------------------------------- */

void choices_begin(choices_watch *w, const choices *c, choices_use use, ax_engine *engine, int64_t recompute)
{
    const ax_model *model = ax_engine_model(engine);
    ax_ctx *ctx = model->ctx;
    const ax_layout layout = ax_layout_of_roles(ctx, (ax_role[]){AX_ROLE_BATCH}, 1);
    const ax_tensor rows = ax_tensor_make(AX_I32, 1, (int64_t[]){ax_engine_rows(engine)}, NULL, &layout);
    const int64_t begin = model->cut[model->stage], end = model->cut[model->stage + 1];
    int64_t n;
    *w = (choices_watch){.of = c, .use = use, .all_rows = ax_engine_rows(engine), .recompute = recompute > 0};
    ax_tensor_range(ctx->grid, &rows, 0, ax_grid_rank(ctx->grid), &w->first_row, &n);
    w->first_block = ax_model_config_sparse_blocks(&model->config, begin);
    w->blocks = ax_model_config_sparse_blocks(&model->config, end) - w->first_block;
    w->listener = (ax_listener){AX_ON_KERNEL, listen, w, NULL};
    w->dev = ctx->dev;
    ax_device_listen(w->dev, &w->listener);
}

void choices_pass(choices_watch *w, int64_t pass, bool evaluates)
{
    w->pass = pass;
    w->evaluates = evaluates;
    w->visits = 0;
}

ax_status choices_agree(choices_watch *w, ax_comm *world)
{
    ax_work *work;
    ax_device_unlisten(w->dev, &w->listener);
    AX_TRY(ax_all_reduce(world, NULL, w->sum, CHOICES_SUMS, AX_F64, AX_SUM, &work));
    AX_TRY(ax_wait(&work));
    AX_TRY(ax_all_reduce(world, NULL, &w->margin, 1, AX_F64, AX_MAX, &work));
    return ax_wait(&work);
}
