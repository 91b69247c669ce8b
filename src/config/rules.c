/* Checks the rules that involve several keys of a configuration. */
#include "private.h"

#include "axonn/data.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Returns true if the value of the key, as text, differs from its default. (That a key is present does not
 * show that the user set it: config.yaml of a run has all keys.) */
static bool is_changed(const ax_config *cfg, const ax_config *defaults, const char *key)
{
    ax_buf value = {0}, preset = {0};
    bool changed = ax_option_value(cfg->set, key, &value) == AX_OK &&
                   ax_option_value(defaults->set, key, &preset) == AX_OK &&
                   strcmp(value.data, preset.data) != 0;
    ax_buf_fini(&value);
    ax_buf_fini(&preset);
    return changed;
}

void config_check_unused(ax_config *cfg, const char *const *keys, const char *why)
{
    size_t n;
    const ax_option *rows = ax_config_options(&n);
    ax_config defaults = {.set = NULL};
    if (ax_option_set_create(rows, n, &defaults, &defaults.set) != AX_OK)
        return;
    for (; *keys; keys++)
        if (is_changed(cfg, &defaults, *keys))
            ax_option_error(cfg->set, *keys, "%s", why);
    ax_config_fini(&defaults);
}

/* Finds the divisors of n that are nearest to d (d <= n): *below <= d <= *above. If d divides n, *below and
 * *above are d. */
static void nearest_divisors(int64_t n, int64_t d, int64_t *below, int64_t *above)
{
    *below = ax_divisor_below(n, d);
    *above = n / ax_divisor_below(n, ax_max(n / d, 1));
}

/* Records an error of `key`: its value `value` does not divide `whole`, the value of the key that the string
 * `of` names. The message gives the nearest divisors. */
static void must_divide(ax_config *cfg, const char *key, int64_t value, const char *of, int64_t whole)
{
    if (value > whole) {
        ax_option_error(cfg->set, key, "%" PRId64 " must divide %s (%" PRId64 "), so it cannot be larger",
                        value, of, whole);
        return;
    }
    int64_t below, above;
    nearest_divisors(whole, value, &below, &above);
    ax_option_error(cfg->set, key,
                    "%" PRId64 " must divide %s (%" PRId64 "); the nearest are %" PRId64 " and %" PRId64,
                    value, of, whole, below, above);
}

void config_check_family(ax_config *cfg, const ax_model_config *model)
{
    const int64_t heads = cfg->model.heads, size = cfg->model.head_dim;
    const struct {
        const char *key;
        bool needed; /* the key has a value that only some families support */
    } keys[] = {{"model.kv_heads", cfg->model.kv_heads != heads},
                {"model.head_dim", size && size * heads != cfg->model.hidden},
                {"model.rope_theta", cfg->model.rope_theta != 0},
                {"model.window", cfg->model.window != 0}};
    for (size_t i = 0; i < AX_COUNT(keys); i++)
        if (keys[i].needed && ax_option_ok(cfg->set, keys[i].key) &&
            !ax_family_has(model->family, keys[i].key))
            ax_option_error(cfg->set, keys[i].key,
                            "models of family %s have no such setting: leave the key out",
                            ax_model_config_family(model));
    if (ax_family_has(model->family, "model.rope_theta") && ax_option_ok(cfg->set, "model.rope_theta") &&
        cfg->model.rope_theta <= 1)
        ax_option_error(cfg->set, "model.rope_theta", "must be above 1, not %g", cfg->model.rope_theta);
    config_check_experts(cfg, model);
    if (model->experts.n > 0 && model->experts.step > 0 &&
        config_both_ok(cfg, "model.sparse_step", "model.dense_layers") &&
        !ax_model_config_sparse_blocks(model, model->layers))
        ax_option_error(cfg->set,
                        model->experts.step > model->layers ? "model.sparse_step" : "model.dense_layers",
                        "leaves none of the %lld blocks with experts", (long long)model->layers);
}

/* Checks model.hidden, model.heads, model.kv_heads and model.head_dim against each other. */
static void check_heads(ax_config *cfg, const ax_model_config *model)
{
    const int64_t heads = cfg->model.heads, kv_heads = cfg->model.kv_heads, size = cfg->model.head_dim;
    const bool sizes_ok =
        config_both_ok(cfg, "model.hidden", "model.heads") && ax_option_ok(cfg->set, "model.head_dim");
    if (sizes_ok && !size && cfg->model.hidden % heads)
        must_divide(cfg, "model.heads", heads, "model.hidden", cfg->model.hidden);
    else if (sizes_ok && ax_family_has(model->family, "model.rope_theta") &&
             ax_model_config_head_dim(model) % 2)
        ax_option_error(cfg->set, size ? "model.head_dim" : "model.heads",
                        "the width of a head, %" PRId64 ", must be even in family %s: RoPE rotates pairs",
                        ax_model_config_head_dim(model), ax_model_config_family(model));
    if (config_both_ok(cfg, "model.heads", "model.kv_heads") && heads % kv_heads)
        must_divide(cfg, "model.kv_heads", kv_heads, "model.heads", heads);
}

/* Checks, last of all, that the model as a whole is valid, and that its family has the activation. */
static void check_whole(ax_config *cfg, ax_model_config model)
{
    static const char *const keys[] = {
        "model.layers",     "model.hidden",      "model.heads",        "model.kv_heads",
        "model.head_dim",   "model.ffn",         "model.vocab",        "model.seq_len",
        "model.window",     "model.rope_theta",  "model.experts",      "model.top_k",
        "model.expert_ffn", "model.sparse_step", "model.dense_layers", "model.renormalize"};
    ax_buf text = {0};
    for (size_t i = 0; i < AX_COUNT(keys); i++)
        if (!ax_option_ok(cfg->set, keys[i]))
            return;
    model.dropout = (ax_model_dropout){0}; /* dropout is not checked here: the ranges of the keys check it,
                                              and spread_dropout has not run yet */
    if (ax_model_config_check(&model) != AX_OK)
        ax_option_error(cfg->set, cfg->model.head_dim ? "model.head_dim" : "model.heads", "%s",
                        ax_error_message());
    else if (ax_model_config_values(&model, &text) != AX_OK)
        ax_option_error(cfg->set, "model.activation", "%s", ax_error_message());
    ax_buf_fini(&text);
}

static void check_model(ax_config *cfg)
{
    const bool family = ax_config_given(cfg, "model.family"), from = ax_config_given(cfg, "model.from"),
               config = ax_config_given(cfg, "model.config");
    const ax_family *found;
    if (family + from + config != 1 && config_both_ok(cfg, "model.family", "model.from") &&
        ax_option_ok(cfg->set, "model.config"))
        ax_option_error(
            cfg->set, "model.family",
            "give exactly one of model.family (a new model), model.config (a new model of the shape in a "
            "config.json) and model.from (an existing model); %s",
            family + from + config > 1 ? "more than one is given" : "none is given");
    if (!family || !ax_option_ok(cfg->set, "model.family") ||
        ax_family_find(cfg->model.family, &found) != AX_OK)
        return;
    config_take_defaults(cfg, found);
    ax_model_config model;
    if (config_new_model(cfg, found, &model) == AX_OK) {
        check_heads(cfg, &model);
        config_check_family(cfg, &model);
        check_whole(cfg, model);
    }
    ax_model_config_fini(&model);
}

/* Prints the configuration key of a grid axis, such as "grid.x". */
static const char *axis_key(ax_axis axis, char out[16])
{
    snprintf(out, 16, "grid.%s", ax_axis_name(axis));
    return out;
}

/* Returns the axes that divide the rows of a batch: those of strategy axonn, which uses all. (With another
 * strategy the axes that it does not use have size 1.) */
static const ax_axes *batch_axes(void) { return &ax_strategy_at(0)->of[AX_ROLE_BATCH]; }

static int64_t batch_ranks(const ax_config *cfg)
{
    return ax_strategy_ranks(ax_strategy_at(0), AX_ROLE_BATCH, ax_config_grid(cfg));
}

/* Returns true if the keys of the batch and of the axes that divide it have valid values. */
static bool batch_ok(const ax_config *cfg)
{
    bool ok = config_both_ok(cfg, "train.global_batch", "train.micro_batch");
    char key[16];
    for (int i = 0; i < batch_axes()->n; i++)
        ok = ok && ax_option_ok(cfg->set, axis_key(batch_axes()->a[i], key));
    return ok;
}

/* Prints the number that must divide train.global_batch, as a product. Names no keys of the grid, because
 * --ranks alone may have given the ranks that divide the batch. */
static const char *batch_factors(const ax_config *cfg, char out[128])
{
    const ax_axes *axes = batch_axes();
    const int64_t micro = cfg->train.micro_batch, ranks = batch_ranks(cfg);
    snprintf(out, 128, "train.micro_batch");
    for (int i = 0; i < axes->n && ranks > 1; i++)
        ax_text_add(out, 128, "%s%s", i ? " and " : " x the ranks of the axes ", ax_axis_name(axes->a[i]));
    if (ranks > 1)
        ax_text_add(out, 128, " (%" PRId64 " x %" PRId64 " = %" PRId64 ")", micro, ranks, micro * ranks);
    else
        ax_text_add(out, 128, " (%" PRId64 ")", micro);
    return out;
}

/* Appends "a or b", or the one of them that is a size (above 0 and not the other). */
static void add_choices(char *out, size_t size, int64_t a, int64_t b)
{
    if (a > 0)
        ax_text_add(out, size, "%" PRId64, a);
    if (b > 0 && b != a)
        ax_text_add(out, size, "%s%" PRId64, a > 0 ? " or " : "", b);
}

static void check_batch(ax_config *cfg)
{
    if (!batch_ok(cfg))
        return;
    int64_t global = cfg->train.global_batch, rows = cfg->train.micro_batch * batch_ranks(cfg);
    if (global % rows == 0)
        return;
    char of[128], advice[160] = "";
    batch_factors(cfg, of);
    int64_t multiple = global / rows * rows;
    ax_text_add(advice, sizeof advice, "train.global_batch=");
    add_choices(advice, sizeof advice, multiple, multiple + rows);
    if (global % batch_ranks(cfg) == 0) {
        int64_t below, above;
        nearest_divisors(global / batch_ranks(cfg), cfg->train.micro_batch, &below, &above);
        ax_text_add(advice, sizeof advice, ", or train.micro_batch=");
        add_choices(advice, sizeof advice, below, above);
    }
    ax_option_error(cfg->set, "train.global_batch", "%" PRId64 " must be a multiple of %s: give %s", global,
                    of, advice);
}

static void check_grad_dtype(ax_config *cfg)
{
    const int grad = cfg->train.grad_dtype, precision = cfg->train.precision;
    if (!config_both_ok(cfg, "train.grad_dtype", "train.precision") || grad == AX_CONFIG_FP32 ||
        grad == precision)
        return;
    const char *name = ax_config_dtype_name(precision);
    if (precision == AX_CONFIG_FP32)
        ax_option_error(cfg->set, "train.grad_dtype", "must be fp32, not %s, because train.precision is fp32",
                        ax_config_dtype_name(grad));
    else
        ax_option_error(cfg->set, "train.grad_dtype",
                        "must be fp32 or %s, the value of train.precision, not %s", name,
                        ax_config_dtype_name(grad));
}

static void check_recompute(ax_config *cfg)
{
    if (ax_option_ok(cfg->set, "train.recompute") && cfg->train.recompute == AX_CONFIG_RECOMPUTE_NONE)
        config_check_unused(cfg, (const char *const[]){"train.recompute_comm", NULL},
                            "has no effect while train.recompute is none: set train.recompute to full, N or "
                            "auto, or leave this key out");
}

static void check_sparse(ax_config *cfg)
{
    if (!ax_option_ok(cfg->set, "train.sparse") || !cfg->train.sparse)
        return;
    if (!cfg->model.from)
        ax_option_error(cfg->set, "train.sparse",
                        "needs model.from, the model whose zeros stay zero (axonn prune makes one)");
    else if (cfg->tune.method == AX_CONFIG_LORA)
        ax_option_error(cfg->set, "train.sparse",
                        "is not possible with tune.method lora, whose updates would fill the zeros");
}

/* Records an error of `key` for each of its sources that has epochs or a weight: it is read as a whole, and
 * not trained. */
static void check_shares(ax_config *cfg, const char *key, const ax_paths *sources)
{
    for (size_t i = 0; i < sources->count; i++)
        if (sources->items[i].epochs || sources->items[i].weight > 0)
            ax_option_error(cfg->set, key, "only sources of data.train may have %s: give %s without %s",
                            sources->items[i].epochs ? "epochs" : "a weight", sources->items[i].path,
                            sources->items[i].epochs ? "them" : "it");
}

/* Records errors of the other keys run.recall.* if there is no run.recall.data. */
static void check_recall_is_on(ax_config *cfg)
{
    static const char *const others[] = {"run.recall.tokens", "run.recall.interval", NULL};
    if (!cfg->run.recall.data.count)
        config_check_unused(
            cfg, others,
            "has no effect without run.recall.data, the documents to recall: give them, or leave "
            "this key out");
}

void config_check_recall(ax_config *cfg)
{
    const int64_t tokens = cfg->run.recall.tokens, seq_len = cfg->model.seq_len;
    if (cfg->run.recall.data.count && config_both_ok(cfg, "run.recall.tokens", "model.seq_len") && seq_len &&
        tokens > seq_len)
        ax_option_error(cfg->set, "run.recall.tokens",
                        "a target of %" PRId64
                        " tokens leaves no token for the prompt: choose at most model.seq_len "
                        "(%" PRId64 ")",
                        tokens, seq_len);
}

static void check_schedule(ax_config *cfg)
{
    if (config_both_ok(cfg, "optim.lr", "optim.min_lr") && cfg->optim.min_lr > cfg->optim.lr)
        ax_option_error(cfg->set, "optim.min_lr", "%g must be at most optim.lr (%g)", cfg->optim.min_lr,
                        cfg->optim.lr);
}

/* Records errors of the other keys data.goldfish.* if data.goldfish.k is 0: without a goldfish loss they have
 * no effect. */
static void check_goldfish_is_on(ax_config *cfg)
{
    static const char *const others[] = {"data.goldfish.window", "data.goldfish.kind", NULL};
    if (ax_option_ok(cfg->set, "data.goldfish.k") && !cfg->data.goldfish.k)
        config_check_unused(cfg, others,
                            "has no effect while data.goldfish.k is 0 (no goldfish loss): set "
                            "data.goldfish.k, or leave this key out");
}

/* The same for the keys offload.* that have no effect with the other settings. */
static void check_offload(ax_config *cfg)
{
    static const char *const others[] = {"offload.dir", "offload.bucket", "offload.chunk", "offload.update",
                                         NULL},
                             *const dir[] = {"offload.dir", NULL}, *const chunk[] = {"offload.chunk", NULL};
    if (!ax_option_ok(cfg->set, "offload.optimizer"))
        return;
    if (cfg->offload.optimizer == AX_OFFLOAD_NONE) {
        config_check_unused(cfg, others,
                            "has no effect while offload.optimizer is none: set offload.optimizer to host or "
                            "file, or leave this key out");
        return;
    }
    if (cfg->offload.optimizer == AX_OFFLOAD_HOST)
        config_check_unused(
            cfg, dir,
            "has no effect while offload.optimizer is host: set offload.optimizer to file, or "
            "leave this key out");
    if (ax_option_ok(cfg->set, "optim.clip") && cfg->optim.clip > 0)
        config_check_unused(
            cfg, chunk,
            "needs optim.clip: 0, because clipping needs the norm of the whole gradient before "
            "the first update: set optim.clip to 0, or leave this key out");
}

void config_check_goldfish(ax_config *cfg)
{
    const int64_t k = cfg->data.goldfish.k, window = cfg->data.goldfish.window;
    if (!ax_option_ok(cfg->set, "data.goldfish.k") || !k)
        return;
    if (k == 1)
        ax_option_error(
            cfg->set, "data.goldfish.k",
            "1 would drop every target; use 0 (no goldfish loss), or at least 2 (4 drops every fourth)");
    if (ax_option_ok(cfg->set, "data.goldfish.kind") && cfg->data.goldfish.kind == AX_GOLDFISH_HASHED &&
        config_both_ok(cfg, "data.goldfish.window", "model.seq_len") && cfg->model.seq_len &&
        window > cfg->model.seq_len)
        ax_option_error(cfg->set, "data.goldfish.window",
                        "%" PRId64 " tokens are longer than a row: choose at most model.seq_len (%" PRId64
                        ")",
                        window, cfg->model.seq_len);
}

/* ---- the grid ------------------------------------------------------------------------------------ */

static void check_grid(ax_config *cfg)
{
    const ax_strategy *s;
    ax_grid_order order;
    char key[16];
    if (ax_option_ok(cfg->set, "grid.order") && ax_grid_order_parse(cfg->grid.order, &order) != AX_OK)
        ax_option_error(cfg->set, "grid.order", "%s", ax_error_message());
    if (!ax_option_ok(cfg->set, "strategy") || ax_strategy_find(cfg->strategy, &s) != AX_OK)
        return;
    for (int a = 0; a < AX_AXES_STANDARD; a++)
        if (ax_strategy_lacks(s, ax_config_grid(cfg)) >> a & 1 &&
            ax_option_ok(cfg->set, axis_key((ax_axis)a, key)))
            ax_option_error(cfg->set, key, "must be 1, not %d, with strategy %s: %s",
                            ax_grid_size_along(ax_config_grid(cfg), (ax_axis)a), s->name, s->help);
}

/* Checks that grid: auto stands alone. The command line overrides the file: sizes that it gives are taken in
 * place of auto in the file, and auto in place of sizes in the file. */
static void check_choice(ax_config *cfg)
{
    const bool typed = ax_option_typed(cfg->set, "grid");
    bool beside = false;
    char key[16];
    if (cfg->grid.choice != AX_CONFIG_GRID_AUTO || !ax_option_ok(cfg->set, "grid"))
        return;
    for (int a = 0; a < AX_GRID_SIZES; a++)
        beside |= ax_option_typed(cfg->set, axis_key((ax_axis)a, key));
    for (int a = 0; a < AX_GRID_SIZES && typed; a++)
        if (ax_option_typed(cfg->set, axis_key((ax_axis)a, key)))
            ax_option_error(cfg->set, key, "beside grid=auto, which chooses all sizes: give one of the two");
    if (beside && !typed)
        cfg->grid.choice = AX_CONFIG_GRID_KEYS;
    else
        cfg->grid.data = cfg->grid.expert = cfg->grid.pipe = cfg->grid.x = cfg->grid.y = cfg->grid.z = 1;
}

/* If there will be a search, gives the keys that it chooses values that break no rule. */
static void open_searched(ax_config *cfg, ax_config_use use)
{
    if (use != AX_CONFIG_TO_SEARCH && (use != AX_CONFIG_TO_PLAN || cfg->grid.choice != AX_CONFIG_GRID_AUTO))
        return;
    if (!ax_config_given(cfg, "train.micro_batch"))
        cfg->train.micro_batch = 1;
    if (!ax_config_given(cfg, "train.recompute"))
        cfg->train.recompute = AX_CONFIG_RECOMPUTE_AUTO;
}

/* Checks that grid.expert divides grid.data. */
static void check_expert_ranks(ax_config *cfg)
{
    const int64_t data = cfg->grid.data, expert = cfg->grid.expert;
    if (data % expert && config_both_ok(cfg, "grid.data", "grid.expert"))
        must_divide(cfg, "grid.expert", expert, "grid.data", data);
}

/* Checks the keys of divided experts. Without grid.data, the number of ranks decides what grid.expert must
 * divide (ax_config_take_ranks). */
static void check_expert_keys(ax_config *cfg)
{
    if (ax_config_given(cfg, "grid.data"))
        check_expert_ranks(cfg);
    if (cfg->grid.expert == 1 && ax_option_ok(cfg->set, "grid.expert"))
        config_check_unused(
            cfg, (const char *const[]){"moe.room", NULL},
            "has no effect while grid.expert is 1: divide the experts, or leave this key out");
    if ((cfg->grid.expert == 1 && ax_option_ok(cfg->set, "grid.expert")) ||
        (cfg->moe.capacity == 0 && ax_option_ok(cfg->set, "moe.capacity")))
        config_check_unused(cfg, (const char *const[]){"overlap.dtd", NULL},
                            "has no effect without moe.capacity and grid.expert above 1: give both, or leave "
                            "this key out");
}

/* Returns true if pipe.cut is a list (the first block of each pipeline stage except stage 0), not the word
 * auto. */
static bool cut_is_given(const ax_config *cfg) { return cfg->pipe.cut.count && cfg->pipe.cut.items[0] >= 0; }

enum { FITS = 256 }; /* size, in bytes, of a text that shows an example of pipe.cut */

/* Writes a valid value of pipe.cut, such as "[3, 7]", that divides `blocks` blocks into `stages` stages (with
 * several chunks: chunks) of nearly equal length; "auto" if the list is too long. */
static const char *even_cut(int64_t stages, int64_t blocks, char out[FITS])
{
    snprintf(out, FITS, "[");
    for (int64_t s = 1; s < stages; s++)
        ax_text_add(out, FITS, "%s%" PRId64, s > 1 ? ", " : "", s * (blocks + 2) / stages - 1);
    ax_text_add(out, FITS, "]");
    if (strlen(out) >= FITS - 8)
        snprintf(out, FITS, "auto");
    return out;
}

static bool is_interleaved(const ax_config *cfg)
{
    return cfg->pipe.schedule == AX_PIPE_INTERLEAVED && cfg->grid.pipe > 1;
}

bool ax_config_fits_pipe(const ax_config *cfg, int64_t micro_batch)
{
    return ax_pipe_fits((ax_pipe_schedule)cfg->pipe.schedule, cfg->grid.pipe,
                        cfg->train.global_batch / (micro_batch * batch_ranks(cfg)));
}

/* Records errors of keys that have no effect with the pipeline's schedule. */
static void check_pipe_keys(ax_config *cfg)
{
    static const char *const slack[] = {"pipe.slack", NULL}, *const chunks[] = {"pipe.chunks", NULL};
    if (!config_both_ok(cfg, "pipe.schedule", "grid.pipe") || cfg->grid.pipe == 1)
        return;
    if (cfg->pipe.schedule == AX_PIPE_GPIPE || is_interleaved(cfg))
        config_check_unused(cfg, slack,
                            "has an effect only with pipe.schedule message or 1f1b: leave the key out");
    if (!is_interleaved(cfg))
        config_check_unused(cfg, chunks,
                            "has an effect only with pipe.schedule interleaved: leave the key out");
}

/* Checks that the schedule interleaved can run the number of micro-batches that train.global_batch has. */
static void check_chunks(ax_config *cfg)
{
    if (!config_both_ok(cfg, "pipe.schedule", "pipe.chunks") || !batch_ok(cfg) ||
        !ax_option_ok(cfg->set, "grid.pipe"))
        return;
    int64_t rows = cfg->train.micro_batch * batch_ranks(cfg), global = cfg->train.global_batch;
    int64_t stages = cfg->grid.pipe, unit = rows * stages;
    if (global % rows || ax_config_fits_pipe(cfg, cfg->train.micro_batch))
        return;
    char of[128], nearest[64];
    if (global < unit)
        snprintf(nearest, sizeof nearest, "is %" PRId64, unit);
    else
        snprintf(nearest, sizeof nearest, "are %" PRId64 " and %" PRId64, global / unit * unit,
                 (global / unit + 1) * unit);
    ax_option_error(
        cfg->set, "train.global_batch",
        "%" PRId64 " has %" PRId64 " micro-batch%s, but pipe.schedule=interleaved needs a multiple of "
        "grid.pipe (%" PRId64 "): make train.global_batch a multiple of %s x grid.pipe; the nearest %s",
        global, global / rows, global == rows ? "" : "es", stages, batch_factors(cfg, of), nearest);
}

void config_check_pipe(ax_config *cfg, int64_t blocks)
{
    const ax_ints *cut = &cfg->pipe.cut;
    char fits[FITS];
    if (!ax_option_ok(cfg->set, "grid.pipe") || !config_both_ok(cfg, "pipe.cut", "pipe.chunks") ||
        !ax_option_ok(cfg->set, "pipe.schedule"))
        return;
    int64_t stages = cfg->grid.pipe * (is_interleaved(cfg) ? cfg->pipe.chunks : 1);
    const char *what = is_interleaved(cfg) ? "grid.pipe x pipe.chunks" : "grid.pipe";
    if (stages > blocks + 2) {
        if (is_interleaved(cfg) && cfg->grid.pipe * 2 <= blocks + 2)
            ax_option_error(cfg->set, "pipe.chunks",
                            "%" PRId64 " chunks of each of %" PRId64
                            " stages are too many for a model of %" PRId64
                            " blocks: each chunk needs the embedding, a block or the head; at most %" PRId64,
                            cfg->pipe.chunks, cfg->grid.pipe, blocks, (blocks + 2) / cfg->grid.pipe);
        else
            ax_option_error(cfg->set, "grid.pipe",
                            "%" PRId64 " stages%s are too many for a model of %" PRId64
                            " blocks: each needs the embedding, a block or the head; at most %" PRId64,
                            cfg->grid.pipe, is_interleaved(cfg) ? " of two chunks" : "", blocks,
                            is_interleaved(cfg) ? (blocks + 2) / 2 : blocks + 2);
        return;
    }
    if (!cut_is_given(cfg))
        return;
    for (size_t i = 0; i < cut->count; i++)
        if (cut->items[i] < 0) {
            ax_option_error(cfg->set, "pipe.cut",
                            "give either the word auto alone, or a list of block numbers without it");
            return;
        }
    if (stages == 1) {
        ax_option_error(cfg->set, "pipe.cut", "lists blocks, but there is only one stage: leave the key out");
        return;
    }
    even_cut(stages, blocks, fits);
    if ((int64_t)cut->count != stages - 1) {
        ax_option_error(cfg->set, "pipe.cut",
                        "lists %zu block%s, but %s = %" PRId64 " needs %" PRId64
                        ": the first blocks of all %s but the first; for instance %s",
                        cut->count, cut->count == 1 ? "" : "s", what, stages, stages - 1,
                        is_interleaved(cfg) ? "chunks" : "stages", fits);
        return;
    }
    for (size_t i = 0; i < cut->count; i++) {
        int64_t block = cut->items[i], least = i ? cut->items[i - 1] + 1 : 0;
        if (block >= least && block <= blocks)
            continue;
        ax_option_error(cfg->set, "pipe.cut",
                        block > blocks
                            ? "block %" PRId64 " lies outside the model, whose blocks are 0 to %" PRId64
                              " (%" PRId64 ": a stage with only the head); for instance %s"
                            : "block %" PRId64 " is not above the block before it (blocks 0 to %" PRId64
                              ", %" PRId64 ": a stage with only the head); for instance %s",
                        block, blocks - 1, blocks, fits);
        return;
    }
}

/* Returns the number of ranks that the grid needs. *key: that of its first axis whose size is above 1, or
 * grid.data if there is none. */
static int64_t grid_ranks(const ax_config *cfg, char key[16])
{
    const ax_grid_size size = ax_config_grid(cfg);
    snprintf(key, 16, "grid.data");
    for (int a = AX_AXES_STANDARD - 1; a >= 0; a--)
        if (size.of[a] > 1)
            axis_key((ax_axis)a, key);
    return ax_grid_size_ranks(size);
}

/* Gives the ranks that the other axes leave over to the last axis along which the strategy divides the
 * batch: data, or z with fsdp. Does nothing if the user has set the size of that axis, or the other axes do
 * not divide the number of ranks. */
static ax_status spread_ranks(ax_config *cfg, int ranks, int64_t product, const ax_strategy *strategy)
{
    const ax_axes *batch = &strategy->of[AX_ROLE_BATCH];
    char key[16], size[16], place[32];
    axis_key(batch->a[batch->n - 1], key);
    if (ranks % product || ax_config_given(cfg, key))
        return AX_OK;
    snprintf(size, sizeof size, "%" PRId64, ranks / product);
    snprintf(place, sizeof place, "%d ranks", ranks);
    AX_TRY(ax_option_assign(cfg->set, key, size, place));
    check_batch(cfg);
    check_chunks(cfg);
    return ax_option_finish(cfg->set);
}

ax_status ax_config_take_ranks(ax_config *cfg, int ranks)
{
    ax_grid_load load = {.micro_batch = cfg->train.micro_batch, .global_batch = cfg->train.global_batch};
    char key[16], grid[80], nearest[320];
    int64_t product = grid_ranks(cfg, key);
    AX_TRY(ax_strategy_find(cfg->strategy, &load.strategy));
    if (product != ranks)
        AX_TRY(spread_ranks(cfg, ranks, product, load.strategy));
    product = grid_ranks(cfg, key);
    check_expert_ranks(cfg);
    if (product == ranks)
        return ax_option_finish(cfg->set);
    ax_grid_size wanted = ax_config_grid(cfg);
    ax_option_error(cfg->set, key,
                    "the grid %s needs %" PRId64 " rank%s but there %s %d: start "
                    "as many (--ranks %" PRId64 "), or choose one of the nearest grids that fit: %s",
                    ax_grid_size_print(wanted, grid), product, product == 1 ? "" : "s",
                    ranks == 1 ? "is" : "are", ranks, product,
                    ax_grid_nearest(wanted, ranks, ax_model_fits_grid, &load, nearest));
    return ax_option_finish(cfg->set);
}

void config_check(ax_config *cfg, ax_config_use use)
{
    check_choice(cfg); /* first: it sets sizes of the grid, and decides whether they are searched */
    open_searched(cfg, use);
    check_model(cfg);
    config_check_tune(cfg);
    check_batch(cfg);
    check_schedule(cfg);
    check_grad_dtype(cfg);
    check_shares(cfg, "data.valid", &cfg->data.valid);
    check_shares(cfg, "run.recall.data", &cfg->run.recall.data);
    check_recall_is_on(cfg);
    check_goldfish_is_on(cfg);
    check_recompute(cfg);
    check_sparse(cfg);
    check_offload(cfg);
    check_grid(cfg);
    check_expert_keys(cfg);
    check_pipe_keys(cfg);
    check_chunks(cfg);
    /* Without model.family, train/setup.c calls these checks after it has read config.json. */
    if (ax_config_given(cfg, "model.family")) {
        config_check_pipe(cfg, cfg->model.layers);
        config_check_goldfish(cfg);
        config_check_recall(cfg);
    }
}
