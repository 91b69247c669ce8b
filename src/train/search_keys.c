/* The keys that a search over layouts chooses: which values they may have, and how a plan takes them. */
#include "train/search.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const search_key_names[AX_SEARCH_KEYS] = {
#define NAME(ID, key) key,
    AX_SEARCHED(NAME)
#undef NAME
};

int64_t search_weights(const struct ax_search *s)
{
    int64_t parameters, matmul;
    ax_model_config_params(&s->run->inputs.model, &parameters, &matmul);
    return parameters * (int64_t)ax_dtype_size(s->base.compute);
}

/* ---- legal grids ----------------------------------------------------------------------------------- */

/* Returns true if the configuration fixes this size of the grid to another value. */
static bool is_other(const struct ax_search *s, ax_axis axis, int size)
{
    char key[24];
    const ax_grid_size given = ax_config_grid(s->run->config);
    snprintf(key, sizeof key, "grid.%s", ax_axis_name(axis));
    return !s->run->config->grid.choice && ax_config_given(s->run->config, key) &&
           ax_grid_size_along(given, axis) != size;
}

/* The smallest rows of a micro-batch that the configuration allows. */
static int64_t least_rows(const struct ax_search *s)
{
    return s->fixed[AX_SEARCH_MICRO_BATCH] ? s->base.options.micro_batch : 1;
}

/* Returns true if a pipeline of `parts` parts has those of the configuration's cut, if it gives one. */
static bool suits_cut(const struct ax_search *s, int64_t parts)
{
    return !s->base.parallel.pipe.cut || parts == (int64_t)s->run->config->pipe.cut.count + 1;
}

/* Returns true if the model has a block, the embedding or the head for each part of the pipeline, and the
 * cut that the configuration may give has as many. */
static bool parts_fit(const struct ax_search *s, ax_grid_size size)
{
    const ax_pipe_settings *pipe = &s->base.parallel.pipe;
    const int64_t stages = ax_grid_size_along(size, AX_PIPE);
    const bool chunked = s->fixed[AX_SEARCH_SCHEDULE] && pipe->schedule == AX_PIPE_INTERLEAVED && stages > 1;
    const int64_t least = !chunked ? 1 : s->fixed[AX_SEARCH_CHUNKS] ? pipe->chunks : 2;
    return suits_cut(s, stages * least) && stages * least <= s->run->inputs.model.layers + 2;
}

/* Enters the grid if it is legal. */
static void add_grid(struct ax_search *s, ax_grid_size size, int most)
{
    const ax_grid_load load = {&s->run->inputs.model, s->base.parallel.strategy, least_rows(s),
                               s->base.options.global_batch};
    for (int a = 0; a < AX_GRID_SIZES; a++)
        if (is_other(s, (ax_axis)a, ax_grid_size_along(size, (ax_axis)a)))
            return;
    if (!ax_model_fits_grid(&load, size) || !parts_fit(s, size))
        return;
    if (s->n_grids < most)
        s->grid[s->n_grids] = size;
    s->n_grids++;
}

/* Enters all ways to write `ranks` as a product of the axes from `axis` on, and to divide the experts. */
static void add_grids(struct ax_search *s, ax_grid_size size, int axis, int64_t ranks, int most)
{
    if (axis == AX_AXES_STANDARD - 1) {
        const int64_t experts = ax_min(s->run->inputs.model.experts.n, ranks);
        size.of[axis] = (int)ranks;
        for (int e = 1; e <= ax_max(experts, 1); e++) {
            size.of[AX_SIZE_EXPERT] = e;
            if (ranks % e == 0)
                add_grid(s, size, most);
        }
        return;
    }
    for (int64_t f = 1; f <= ranks; f++)
        if (ranks % f == 0) {
            size.of[axis] = (int)f;
            add_grids(s, size, axis + 1, ranks / f, most);
        }
}

ax_status search_list_grids(struct ax_search *s)
{
    free(s->grid);
    s->grid = NULL;
    s->n_grids = 0;
    add_grids(s, (ax_grid_size){{0}}, 0, s->ranks, 0);
    const int n = s->n_grids;
    AX_TRY(ax_calloc((size_t)ax_max(n, 1), sizeof *s->grid, &s->grid));
    s->n_grids = 0;
    add_grids(s, (ax_grid_size){{0}}, 0, s->ranks, n);
    return AX_OK;
}

/* ---- values ---------------------------------------------------------------------------------------- */

static void add(search_values *v, int64_t value) { v->of[v->n++] = value; }

static void list_grids(const struct ax_search *s, const ax_candidate *c, search_values *v)
{
    (void)c;
    for (int i = 0; i < s->n_grids; i++)
        add(v, i);
}

static int64_t batch_ranks(const struct ax_search *s, const ax_candidate *c)
{
    return ax_strategy_ranks(s->base.parallel.strategy, AX_ROLE_BATCH, c->grid);
}

int64_t search_micro_batches(const struct ax_search *s, const ax_candidate *c)
{
    return s->base.options.global_batch / (c->value[AX_SEARCH_MICRO_BATCH] * batch_ranks(s, c));
}

static int64_t stages_of(const ax_candidate *c) { return ax_grid_size_along(c->grid, AX_PIPE); }

/* Returns true if the activations of a micro-batch, which a stage sends to the next, are not too large for a
 * message. */
static bool can_be_sent(const struct ax_search *s, const ax_candidate *c, int64_t rows)
{
    const double bytes = (double)rows * (double)s->base.options.seq_len *
                         (double)s->run->inputs.model.hidden * (double)ax_dtype_size(s->base.compute) /
                         ax_grid_size_along(c->grid, AX_Y);
    return stages_of(c) == 1 || bytes <= INT32_MAX;
}

/* Returns true if the schedule that the configuration may give can run the micro-batches of `rows` rows. */
static bool suits_schedule(const struct ax_search *s, const ax_candidate *c, int64_t micro_batches)
{
    return !s->fixed[AX_SEARCH_SCHEDULE] || stages_of(c) == 1 ||
           ax_pipe_fits(s->base.parallel.pipe.schedule, stages_of(c), micro_batches);
}

/* All that divide a rank's rows, the largest first: if a pipeline does not count, the fewest messages. */
static void list_micro_batches(const struct ax_search *s, const ax_candidate *c, search_values *v)
{
    const int64_t rows = s->base.options.global_batch / batch_ranks(s, c);
    for (int64_t m = rows; m > 0; m = m > 1 ? ax_divisor_below(rows, m - 1) : 0)
        if (can_be_sent(s, c, m) && suits_schedule(s, c, rows / m))
            add(v, m);
}

/* Stage 1 updates the least and sends no more than 0. */
static void list_zero(const struct ax_search *s, const ax_candidate *c, search_values *v)
{
    static const int stages[] = {1, 0, 2, 3};
    const int n = ax_grid_size_along(c->grid, AX_DATA) > 1 ? (int)AX_COUNT(stages) : 0;
    (void)s;
    for (int i = 0; i < n; i++)
        add(v, stages[i]);
    if (!n)
        add(v, 0);
}

static void list_recompute(const struct ax_search *s, const ax_candidate *c, search_values *v)
{
    (void)c;
    if (!s->fixed[AX_SEARCH_RECOMPUTE_COMM] || !s->base.parallel.keep_results)
        add(v, 0);
    add(v, 1);
}

static bool communicates_activations(const ax_candidate *c)
{
    return ax_grid_size_along(c->grid, AX_X) > 1 || ax_grid_size_along(c->grid, AX_Y) > 1 ||
           ax_grid_size_along(c->grid, AX_SIZE_EXPERT) > 1;
}

static void list_recompute_comm(const struct ax_search *s, const ax_candidate *c, search_values *v)
{
    (void)s;
    if (c->value[AX_SEARCH_RECOMPUTE] && communicates_activations(c))
        add(v, AX_CONFIG_KEEP);
    add(v, AX_CONFIG_AGAIN);
}

static void list_offload(const struct ax_search *s, const ax_candidate *c, search_values *v)
{
    (void)c;
    add(v, AX_OFFLOAD_NONE);
    if (s->offloads)
        add(v, AX_OFFLOAD_HOST);
}

/* A cache spares gathers only of weights that are sharded, from one micro-batch to the next. */
static void list_weight_cache(const struct ax_search *s, const ax_candidate *c, search_values *v)
{
    if (search_micro_batches(s, c) > 1 &&
        (ax_grid_size_along(c->grid, AX_Z) > 1 || c->value[AX_SEARCH_ZERO] == 3))
        add(v, ax_round_up(search_weights(s), (int64_t)ax_dtype_size(s->base.compute) << 20)); /* all */
    add(v, 0);
}

/* All orders of the axes: AX_AXES_STANDARD digits, the innermost axis first. */
enum { ORDERS = 120 };
static ax_grid_order order_at(int64_t index)
{
    ax_axis left[AX_AXES_STANDARD];
    ax_grid_order order;
    memcpy(left, ax_grid_order_default.axis, sizeof left);
    for (int i = 0, ways = ORDERS; i < AX_AXES_STANDARD; i++) {
        ways /= AX_AXES_STANDARD - i;
        const int64_t k = index / ways;
        order.axis[i] = left[k];
        memmove(left + k, left + k + 1, sizeof *left * (size_t)(AX_AXES_STANDARD - i - 1 - k));
        index %= ways;
    }
    return order;
}

/* Returns the largest distance between neighbours that the rows of the description name. */
static int64_t farthest(const ax_machine *m)
{
    int64_t most = m->ranks_per_node;
    for (size_t i = 0; i < m->bandwidths.count; i++)
        most = ax_max(most, strtoll(m->bandwidths.items[i], NULL, 10));
    for (size_t i = 0; i < m->collectives.count; i++) {
        const char *row = m->collectives.items[i];
        most = ax_max(most, strtoll(row + strcspn(row, " "), NULL, 10));
    }
    return most;
}

/* How the ranks along each axis lie on nodes, as far as the description tells it apart: the distance of
 * neighbours. Axes of size 1 have none. */
static void print_places(ax_grid_size grid, const ax_grid_order *order, int64_t farthest,
                         int64_t out[AX_AXES_STANDARD])
{
    int64_t distance = 1;
    for (int i = 0; i < AX_AXES_STANDARD; i++) {
        const int size = ax_grid_size_along(grid, order->axis[i]);
        out[order->axis[i]] = size > 1 ? ax_min(distance, farthest + 1) : 0;
        distance *= size;
    }
}

/* Orders that put the ranks of every axis alike on nodes count once, by the first of them. If nodes have
 * sizes that cut through axes, all orders of axes above 1 count. */
static void list_orders(const struct ax_search *s, const ax_candidate *c, search_values *v)
{
    int64_t seen[ORDERS][AX_AXES_STANDARD];
    const int64_t node = s->by.machine->ranks_per_node;
    bool aligned = true;
    for (int a = 0; a < AX_AXES_STANDARD; a++)
        aligned &= node % ax_grid_size_along(c->grid, (ax_axis)a) == 0 ||
                   ax_grid_size_along(c->grid, (ax_axis)a) % node == 0 || (node & (node - 1)) == 0;
    aligned &= (s->ranks & (s->ranks - 1)) == 0 || node == 1;
    for (int i = 0; i < ORDERS; i++) {
        const ax_grid_order order = order_at(i);
        int k = 0;
        print_places(c->grid, &order, aligned ? farthest(s->by.machine) : s->ranks, seen[v->n]);
        while (k < v->n && memcmp(seen[k], seen[v->n], sizeof *seen) != 0)
            k++;
        if (k == v->n)
            add(v, i);
    }
}

static bool takes_slack(int64_t schedule) { return schedule == AX_PIPE_MESSAGE || schedule == AX_PIPE_1F1B; }

/* Without a pipeline the keys pipe.* have no effect, and keep their first values. */
static void list_schedules(const struct ax_search *s, const ax_candidate *c, search_values *v)
{
    static const ax_pipe_schedule schedules[] = {AX_PIPE_INTERLEAVED, AX_PIPE_GPIPE, AX_PIPE_1F1B,
                                                 AX_PIPE_MESSAGE};
    const int64_t stages = stages_of(c), layers = s->run->inputs.model.layers;
    for (size_t i = 0; i < AX_COUNT(schedules); i++) {
        const int64_t least = schedules[i] == AX_PIPE_INTERLEAVED ? 2 : 1;
        if (s->fixed[AX_SEARCH_SLACK] && s->base.parallel.pipe.slack && !takes_slack(schedules[i]))
            continue;
        if (stages > 1 ? ax_pipe_fits(schedules[i], stages, search_micro_batches(s, c)) &&
                             stages * least <= layers + 2 && suits_cut(s, stages * least)
                       : schedules[i] == AX_PIPE_MESSAGE)
            add(v, schedules[i]);
    }
}

static bool is_interleaved(const ax_candidate *c)
{
    return stages_of(c) > 1 && c->value[AX_SEARCH_SCHEDULE] == AX_PIPE_INTERLEAVED;
}

enum { CHUNKS_PRESET = 2 };

/* Powers of two, the most first. */
static void list_chunks(const struct ax_search *s, const ax_candidate *c, search_values *v)
{
    int64_t chunks = CHUNKS_PRESET;
    while (is_interleaved(c) && stages_of(c) * chunks * 2 <= s->run->inputs.model.layers + 2)
        chunks *= 2;
    for (; chunks >= CHUNKS_PRESET; chunks /= 2)
        if (!is_interleaved(c) || suits_cut(s, stages_of(c) * chunks))
            add(v, chunks);
}

static void list_slack(const struct ax_search *s, const ax_candidate *c, search_values *v)
{
    const int64_t schedule = c->value[AX_SEARCH_SCHEDULE], stages = stages_of(c);
    if (stages > 1 && takes_slack(schedule) && search_micro_batches(s, c) > stages) {
        add(v, stages);
        add(v, 1);
    }
    add(v, 0);
}

static void list_postpone(const struct ax_search *s, const ax_candidate *c, search_values *v)
{
    (void)s;
    if (stages_of(c) > 1)
        add(v, stages_of(c));
    add(v, 0);
}

/* ---- the keys -------------------------------------------------------------------------------------- */

/* Set a value in a plan, and get the plan's. */
#define FIELD(name, member)                                                                                  \
    static void set_##name(int64_t value, ax_train_plan *p) { p->member = (__typeof__(p->member))value; }    \
    static int64_t get_##name(const ax_train_plan *p) { return (int64_t)p->member; }
FIELD(micro_batch, options.micro_batch)
FIELD(zero, parallel.zero)
FIELD(recompute, options.recompute)
FIELD(recompute_comm, parallel.keep_results)
FIELD(offload, parallel.offload.optimizer)
FIELD(weight_cache, parallel.weight_cache)
FIELD(schedule, parallel.pipe.schedule)
FIELD(chunks, parallel.pipe.chunks)
FIELD(slack, parallel.pipe.slack)
FIELD(postpone, parallel.pipe.postpone)
#undef FIELD

/* The keys of AX_SEARCHED. A grid and an order are set by themselves (search_apply). */
static const struct {
    void (*list)(const struct ax_search *s, const ax_candidate *c, search_values *values);
    void (*set)(int64_t value, ax_train_plan *plan);
    int64_t (*get)(const ax_train_plan *plan);
} keys[AX_SEARCH_KEYS] = {
    [AX_SEARCH_GRID] = {list_grids, NULL, NULL},
    [AX_SEARCH_MICRO_BATCH] = {list_micro_batches, set_micro_batch, get_micro_batch},
    [AX_SEARCH_ZERO] = {list_zero, set_zero, get_zero},
    [AX_SEARCH_RECOMPUTE] = {list_recompute, set_recompute, get_recompute},
    [AX_SEARCH_RECOMPUTE_COMM] = {list_recompute_comm, set_recompute_comm, get_recompute_comm},
    [AX_SEARCH_OFFLOAD] = {list_offload, set_offload, get_offload},
    [AX_SEARCH_WEIGHT_CACHE] = {list_weight_cache, set_weight_cache, get_weight_cache},
    [AX_SEARCH_ORDER] = {list_orders, NULL, NULL},
    [AX_SEARCH_SCHEDULE] = {list_schedules, set_schedule, get_schedule},
    [AX_SEARCH_CHUNKS] = {list_chunks, set_chunks, get_chunks},
    [AX_SEARCH_SLACK] = {list_slack, set_slack, get_slack},
    [AX_SEARCH_POSTPONE] = {list_postpone, set_postpone, get_postpone}};

/* Returns the number of the configuration's order in the list of all. */
static int64_t given_order(const struct ax_search *s)
{
    for (int i = 0; i < ORDERS; i++) {
        const ax_grid_order order = order_at(i);
        if (!memcmp(&order, &s->base.order, sizeof order))
            return i;
    }
    return 0;
}

/* Returns true if a value that the configuration gives can be had: a pipeline may be unable to run the
 * number of micro-batches. */
static bool is_possible(const struct ax_search *s, const ax_candidate *c, ax_search_key key, int64_t value)
{
    if (key == AX_SEARCH_MICRO_BATCH)
        return s->base.options.global_batch % (value * batch_ranks(s, c)) == 0;
    if (key == AX_SEARCH_SCHEDULE)
        return ax_pipe_fits((ax_pipe_schedule)value, stages_of(c), search_micro_batches(s, c));
    return true;
}

void search_list(const struct ax_search *s, const ax_candidate *c, ax_search_key key, search_values *values)
{
    values->n = 0;
    if (!s->fixed[key]) {
        keys[key].list(s, c, values);
        return;
    }
    const int64_t value = key == AX_SEARCH_ORDER ? given_order(s) : keys[key].get(&s->base);
    if (is_possible(s, c, key, value))
        add(values, value);
}

void search_set(const struct ax_search *s, ax_candidate *c, ax_search_key key, int64_t value)
{
    c->value[key] = value;
    if (key == AX_SEARCH_GRID)
        c->grid = s->grid[value];
    if (key == AX_SEARCH_ORDER)
        c->order = order_at(value);
}

void search_apply(const ax_candidate *c, ax_train_plan *plan)
{
    plan->grid = c->grid;
    plan->order = c->order;
    for (int key = 0; key < AX_SEARCH_KEYS; key++)
        if (keys[key].set)
            keys[key].set(c->value[key], plan);
}

/* ---- as text --------------------------------------------------------------------------------------- */

static const ax_option *option_of(const char *key)
{
    size_t n;
    const ax_option *row = ax_config_options(&n);
    while (n-- && strcmp(row->key, key) != 0)
        row++;
    return row;
}

static ax_status print_grid(const ax_candidate *c, ax_buf *out)
{
    static const ax_axis shown[] = {AX_DATA, AX_SIZE_EXPERT, AX_PIPE, AX_X, AX_Y, AX_Z};
    for (size_t i = 0; i < AX_COUNT(shown); i++)
        if (shown[i] != AX_SIZE_EXPERT || ax_grid_size_along(c->grid, AX_SIZE_EXPERT) > 1)
            AX_TRY(ax_buf_printf(out, "%sgrid.%s=%d", out->size ? " " : "", ax_axis_name(shown[i]),
                                 ax_grid_size_along(c->grid, shown[i])));
    return AX_OK;
}

static ax_status print_value(const ax_candidate *c, ax_search_key key, ax_buf *out)
{
    const ax_option *row = option_of(search_key_names[key]);
    const int64_t value = c->value[key];
    char text[64];
    if (key == AX_SEARCH_GRID)
        return print_grid(c, out);
    if (key == AX_SEARCH_ORDER)
        ax_grid_order_print(&c->order, text);
    else if (row->type == AX_OPT_ENUM)
        ax_option_word(row, (int)value, text);
    else if (key == AX_SEARCH_RECOMPUTE && value <= 1)
        snprintf(text, sizeof text, "%s", value ? "full" : "none");
    else
        snprintf(text, sizeof text, "%lld", (long long)value);
    return ax_buf_printf(out, "%s%s=%s", out->size ? " " : "", row->key, text);
}

/* Returns true if the key has an effect with the candidate's other keys: one without may not be given. */
static bool has_effect(const ax_candidate *c, ax_search_key key)
{
    switch (key) {
    case AX_SEARCH_RECOMPUTE_COMM:
        return c->value[AX_SEARCH_RECOMPUTE] && communicates_activations(c);
    case AX_SEARCH_SCHEDULE:
    case AX_SEARCH_POSTPONE:
        return stages_of(c) > 1;
    case AX_SEARCH_CHUNKS:
        return is_interleaved(c);
    case AX_SEARCH_SLACK:
        return stages_of(c) > 1 && takes_slack(c->value[AX_SEARCH_SCHEDULE]);
    default:
        return true;
    }
}

ax_status ax_search_words(const ax_search *s, const ax_candidate *c, ax_buf *out)
{
    for (int key = 0; key < AX_SEARCH_KEYS; key++)
        if (!s->fixed[key] && has_effect(c, (ax_search_key)key) &&
            (key == AX_SEARCH_GRID || key == AX_SEARCH_ORDER || !s->by.axes_only))
            AX_TRY(print_value(c, (ax_search_key)key, out));
    if (!s->fixed[AX_SEARCH_OFFLOAD] && c->value[AX_SEARCH_OFFLOAD] &&
        !ax_config_given(s->run->config, "offload.update"))
        AX_TRY(ax_buf_printf(out, " offload.update=device"));
    return AX_OK;
}
