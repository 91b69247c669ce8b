/* Opens a MODEL argument on the ranks of a grid, or finds its directory. */
#include "model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the grid ------------------------------------------------------------------------------------ */

/* A key of each axis, with its size. The help is that of the keys of a configuration (config/config.c). */
static const ax_option size_options[AX_GRID_SIZES] = {
#define SIZE_AT(index, name)                                                                                 \
    {.key = "grid." #name,                                                                                   \
     .type = AX_OPT_INT,                                                                                     \
     .offset = (index) * sizeof(int64_t),                                                                    \
     .preset = "1",                                                                                          \
     .range = "[1, 65536]"},
#define SIZE(id, name, split) SIZE_AT(AX_##id, name)
    AX_AXES(SIZE) SIZE_AT(AX_SIZE_EXPERT, expert)
#undef SIZE
#undef SIZE_AT
};

/* Splits "x=2,y=1" into the words "grid.x=2" and "grid.y=1". */
static ax_status split_words(const char *text, ax_strings *out)
{
    for (size_t n; *text; text += n + (text[n] != 0)) {
        n = strcspn(text, ", ");
        if (n)
            AX_TRY(ax_strings_add(out, "%s%.*s", strncmp(text, "grid.", 5) ? "grid." : "", (int)n, text));
    }
    return AX_OK;
}

/* Reads the sizes of the axes from `keys`, words such as grid.x=2, and from `text`, such as "x=2,y=1" (NULL:
 * none). *given: one of them gives `axis` a size. */
static ax_status read_sizes(const ax_strings *keys, const char *text, ax_axis axis, ax_grid_size *out,
                            bool *given)
{
    ax_strings words = {0};
    ax_option_set *set;
    int64_t size[AX_GRID_SIZES];
    AX_TRY(ax_option_set_create(size_options, AX_GRID_SIZES, size, &set));
    ax_status status = ax_option_read_overrides(set, keys->count, keys->items);
    if (status == AX_OK && text)
        status = split_words(text, &words);
    if (status == AX_OK)
        status = ax_option_read_overrides(set, words.count, words.items);
    if (status == AX_OK)
        status = ax_option_finish(set);
    for (int a = 0; a < AX_GRID_SIZES; a++)
        out->of[a] = (int)size[a];
    *given = ax_option_given(set, size_options[axis].key);
    ax_option_set_destroy(&set);
    ax_strings_fini(&words);
    return status;
}

ax_status cli_grid_parse(const char *text, ax_grid_size *out)
{
    bool given;
    return read_sizes(&(ax_strings){0}, text, AX_X, out, &given);
}

/* Sets *out to the grid that the arguments give. The ranks that its axes leave over are along axis x
 * (MODEL_SEQUENCE) or axis data, unless the arguments give that axis a size. */
static ax_status find_grid(const model_args *args, model_use use, int ranks, ax_grid_size *out)
{
    const ax_axis axis = use == MODEL_SEQUENCE ? AX_X : AX_DATA;
    bool given;
    AX_TRY(read_sizes(&args->keys, args->grid, axis, out, &given));
    if (!given && ranks % ax_grid_size_ranks(*out) == 0)
        out->of[axis] = ranks / (int)ax_grid_size_ranks(*out);
    return AX_OK;
}

/* ---- opening ------------------------------------------------------------------------------------- */

static ax_status check_grid(model_use use, const opened_model *m, const ax_grid_size *grid)
{
    const ax_strategy *strategy = use == MODEL_ROWS ? ax_strategy_at(0) : &ax_strategy_inference;
    ax_grid_load load = {&m->model.config, strategy, 1, 0};
    return ax_model_check_grid(&load, *grid, ax_comm_size(m->world));
}

ax_status model_open(const model_args *args, model_use use, opened_model *out)
{
    ax_grid_size grid;
    ax_threads threads;
    *out = (opened_model){0};
    AX_TRY(cli_world_open(&out->world));
    out->first = ax_comm_rank(out->world) == 0;
    AX_TRY(ax_comm_agree(out->world, find_grid(args, use, ax_comm_size(out->world), &grid)));
    AX_TRY(ax_pretrained_open_shared(out->world, args->model, &out->model));
    AX_TRY(ax_comm_agree(out->world, check_grid(use, out, &grid)));
    AX_TRY(ax_threads_share(out->world, (int)args->threads, &threads));
    AX_TRY(ax_ctx_create_with(out->world, grid, args->device, &threads, ax_config_dtype_of(args->precision),
                              0, &out->ctx));
    if (use != MODEL_ROWS)
        out->ctx->parallel.strategy = use == MODEL_SEQUENCES && !ax_grid_experts(out->ctx->grid)
                                          ? &ax_strategy_generation
                                          : &ax_strategy_inference;
    return AX_OK;
}

ax_status model_read_keys(opened_model *m, const model_keys *keys)
{
    return ax_comm_agree(m->world, ax_pretrained_read_keys(&m->model, keys));
}

ax_status model_check_loss(const model_args *args, double loss)
{
    AX_CHECK(
        isfinite(loss), AX_ERR_NUMERIC,
        "the loss is %g: the model has weights that are not finite, or it overflows in this precision (%s)%s",
        loss, args->precision, strcmp(args->precision, "fp32") ? "; try --precision fp32" : "");
    return AX_OK;
}

ax_status model_close(opened_model *opened, ax_status status)
{
    cli_world_abort_unshared(opened->world, status);
    ax_ctx_destroy(&opened->ctx);
    ax_pretrained_close(&opened->model);
    return cli_world_close(&opened->world, status);
}

/* ---- without a grid ------------------------------------------------------------------------------ */

ax_status cli_use_model(const char *model, ax_status (*use)(void *user, const char *dir), void *user)
{
    char *dir = NULL;
    bool gone;
    ax_status status;
    do {
        free(dir);
        AX_TRY(ax_ckpt_find_model(model, &dir));
        cli_stop_catch();
        status = use(user, dir);
        gone = status == AX_ERR_DATA && !ax_path_exists(dir);
    } while (gone);
    free(dir);
    return status;
}
