/* Opens a MODEL argument on the ranks of a grid. */
#include "model.h"

#include <stdlib.h>
#include <string.h>

/* ---- the grid ------------------------------------------------------------------------------------ */

typedef struct sizes {
    int64_t x, y, z, pipe, data;
} sizes;

static const ax_option size_options[] = {
    {"grid.x", AX_OPT_INT, offsetof(sizes, x), "1", "[1, 65536]",
     .help = "ranks that split the attention heads and the inner width of the MLP"},
    {"grid.y", AX_OPT_INT, offsetof(sizes, y), "1", "[1, 65536]",
     .help = "ranks that split the width of the residual stream"},
    {"grid.z", AX_OPT_INT, offsetof(sizes, z), "1", "[1, 65536]",
     .help = "ranks that shard the weights and divide the rows of a batch among them"},
    {"grid.pipe", AX_OPT_INT, offsetof(sizes, pipe), "1", "[1, 65536]",
     .help = "pipeline stages, each with some of the blocks"},
    {"grid.data", AX_OPT_INT, offsetof(sizes, data), "1", "[1, 65536]",
     .help = "ranks that divide the rows of a batch among them"},
};

/* Splits "x=2,y=1" into the words "grid.x=2" and "grid.y=1". */
static ax_status split_words(const char *text, ax_strings *out)
{
    size_t room = 1;
    for (const char *c = text; *c; c++)
        room += *c == ',' || *c == ' ';
    AX_TRY(ax_calloc(room, sizeof *out->items, &out->items));
    for (const char *at = text; *at;) {
        size_t n = strcspn(at, ", ");
        ax_buf word = {0};
        if (n) {
            AX_TRY(ax_buf_printf(&word, "%s%.*s", strncmp(at, "grid.", 5) ? "grid." : "", (int)n, at));
            out->items[out->count++] = word.data;
        }
        at += n + (at[n] != 0);
    }
    return AX_OK;
}

/* Reads the sizes of the axes from the words. *given: the words have the key `key`. */
static ax_status read_sizes(const model_args *args, const ax_strings *words, const char *key, sizes *out,
                            bool *given)
{
    ax_option_set *set;
    AX_TRY(ax_option_set_create(size_options, AX_COUNT(size_options), out, &set));
    ax_status status = ax_option_read_overrides(set, args->keys.count, args->keys.items);
    if (status == AX_OK)
        status = ax_option_read_overrides(set, words->count, words->items);
    if (status == AX_OK)
        status = ax_option_finish(set);
    *given = ax_option_given(set, key);
    ax_option_set_destroy(&set);
    return status;
}

ax_status cli_grid_parse(const char *text, ax_grid_size *out)
{
    ax_strings words = {0};
    sizes s = {1, 1, 1, 1, 1};
    bool given;
    ax_status status = split_words(text, &words);
    if (status == AX_OK)
        status = read_sizes(&(model_args){.grid = NULL}, &words, "grid.x", &s, &given);
    *out = (ax_grid_size){(int)s.x, (int)s.y, (int)s.z, (int)s.pipe, (int)s.data};
    for (size_t i = 0; i < words.count; i++)
        free(words.items[i]);
    free(words.items);
    return status;
}

/* Sets *out to the grid that the arguments give. The ranks that its axes leave over are along axis data
 * (MODEL_ROWS) or axis x (MODEL_SEQUENCE), unless the arguments give that axis a size. */
static ax_status find_grid(const model_args *args, model_use use, int ranks, ax_grid_size *out)
{
    ax_strings words = {0};
    sizes s = {1, 1, 1, 1, 1};
    bool given = false;
    ax_status status = args->grid ? split_words(args->grid, &words) : AX_OK;
    if (status == AX_OK)
        status = read_sizes(args, &words, use == MODEL_ROWS ? "grid.data" : "grid.x", &s, &given);
    *out = (ax_grid_size){(int)s.x, (int)s.y, (int)s.z, (int)s.pipe, (int)s.data};
    int64_t product = 1;
    for (int a = 0; a < AX_AXES_STANDARD; a++)
        product = ax_min(product * ax_grid_size_along(*out, (ax_axis)a), INT32_MAX);
    if (!given && ranks % product == 0)
        *(use == MODEL_ROWS ? &out->data : &out->x) = (int)(ranks / product);
    for (size_t i = 0; i < words.count; i++)
        free(words.items[i]);
    free(words.items);
    return status;
}

/* ---- opening ------------------------------------------------------------------------------------- */

static ax_status check_grid(model_use use, const opened_model *m, const ax_grid_size *grid)
{
    const ax_strategy *strategy = use == MODEL_SEQUENCE ? &ax_strategy_inference : ax_strategy_at(0);
    ax_grid_load load = {&m->model.config, strategy, 1, 0};
    return ax_model_check_grid(&load, *grid, ax_comm_size(m->world));
}

ax_status model_open(const model_args *args, model_use use, opened_model *out)
{
    ax_grid_size grid;
    ax_threads threads;
    *out = (opened_model){0};
    ax_dtype compute = !strcmp(args->precision, "bf16")   ? AX_BF16
                       : !strcmp(args->precision, "fp16") ? AX_F16
                                                          : AX_F32;
    AX_TRY(cli_world_open(&out->world));
    out->first = ax_comm_rank(out->world) == 0;
    AX_TRY(ax_comm_agree(out->world, find_grid(args, use, ax_comm_size(out->world), &grid)));
    AX_TRY(ax_pretrained_open_shared(out->world, args->model, &out->model));
    AX_TRY(ax_comm_agree(out->world, check_grid(use, out, &grid)));
    AX_TRY(ax_threads_share(out->world, (int)args->threads, &threads));
    AX_TRY(ax_ctx_create_with(out->world, grid, args->device, &threads, compute, 0, &out->ctx));
    if (use == MODEL_SEQUENCE)
        out->ctx->parallel.strategy = &ax_strategy_inference;
    return AX_OK;
}

ax_status model_close(opened_model *opened, ax_status status)
{
    cli_world_abort_unshared(opened->world, status);
    ax_ctx_destroy(&opened->ctx);
    ax_pretrained_close(&opened->model);
    return cli_world_close(&opened->world, status);
}
