/* Checkpoints do not depend on the grid: saved on each of eight grids and loaded on each other one, weights
 * and optimizer state are the same bits. */
#include "support/ranks.h"
#include "train/run_test.h"

enum { T = 8 };

typedef struct placement {
    ax_grid_size grid;
    int zero;
} placement;

static const placement placements[] = {
    {{{1, 1, 1, 1, 1}}, 0}, {{{2, 1, 1, 1, 1}}, 0}, {{{3, 1, 1, 1, 2}}, 1}, {{{1, 4, 1, 1, 1}}, 0},
    {{{2, 1, 2, 1, 2}}, 2}, {{{1, 1, 5, 1, 1}}, 0}, {{{2, 2, 2, 1, 1}}, 0}, {{{1, 1, 1, 1, 7}}, 3},
};

/* Returns a model of odd sizes, which no grid divides evenly. That of qwen3 has one key head, heads of their
 * own size, and norms of heads, which are whole on every rank. */
static ax_model_config odd(const char *name)
{
    const ax_family *family;
    OK(ax_family_find(name, &family));
    ax_model_config c = ax_model_config_defaults(family);
    c.layers = 2;
    c.hidden = 21;
    c.heads = 3;
    c.kv_heads = c.head_norms ? 1 : 3;
    c.head_dim = c.head_norms ? 10 : 0;
    c.ffn = 23;
    c.vocab = 29;
    c.seq_len = T;
    c.init_std = 0.2;
    c.tie = !c.head_norms;
    return c;
}

typedef struct job {
    const char *family;
    const placement *at;
    const char *from,
        *to; /* run directories to load from and save to; from NULL: trains new weights for two steps */
} job;

static ax_status rows(void *source, int64_t first, int64_t end, const ax_rows *out)
{
    (void)source;
    for (int64_t i = 0; i < (end - first) * T; i++) {
        out->tokens[i] = (int32_t)((first * T + i) * 7 % 29);
        out->targets[i] = (int32_t)((first * T + i) * 5 % 29);
        out->doc_start[i] = 0;
        out->position[i] = (int32_t)(i % T);
    }
    return AX_OK;
}

static ax_status steps(ax_engine *engine)
{
    AX_TRY(ax_param_set_init(ax_engine_params(engine)));
    for (int i = 1; i <= 2; i++) {
        ax_step_result r;
        ax_hyper h = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = i};
        AX_TRY(ax_engine_step(engine, i, rows, NULL, ax_engine_rows(engine) * T, &h));
        AX_TRY(ax_engine_result(engine, &r));
    }
    return AX_OK;
}

static ax_status move(ax_engine *engine, const ax_optim *optim, const job *j)
{
    char path[64];
    snprintf(path, sizeof path, "%s/ckpt/step-2", j->from);
    if (j->from)
        AX_TRY(ax_ckpt_load(ax_engine_params(engine), path, optim->moment_names, NULL));
    else
        AX_TRY(steps(engine));
    return ax_ckpt_save(&(ax_ckpt_save_args){.run_dir = j->to,
                                             .step = 2,
                                             .params = ax_engine_params(engine),
                                             .dtype = AX_BF16,
                                             .moment_names = optim->moment_names,
                                             .state = "{}"});
}

static ax_status run_rank(ax_comm *world, void *arg)
{
    const job *j = arg;
    ax_model_config config = odd(j->family);
    ax_ctx *ctx;
    ax_engine *engine = NULL;
    int64_t batch = j->at->grid.of[AX_DATA] * j->at->grid.of[AX_Z];
    ax_engine_options options = {.model = &config, .seq_len = T, .micro_batch = 1, .global_batch = batch};
    AX_TRY(ax_optim_find("adamw", &options.optim));
    AX_TRY(ax_ctx_create(world, j->at->grid, "cpu", 1, AX_F32, 3, &ctx));
    ctx->parallel.zero = j->at->zero;
    ax_status status = ax_engine_create(ctx, &options, NULL, 4 << 20, &engine);
    if (status == AX_OK)
        status = move(engine, options.optim, j);
    ax_engine_destroy(&engine);
    ax_ctx_destroy(&ctx);
    return status;
}

static void same_arrays(const char *a, const char *b)
{
    static const char *const files[] = {"model.safetensors", "training/optim.safetensors"};
    for (size_t i = 0; i < AX_COUNT(files); i++) {
        char x[128], y[128];
        snprintf(x, sizeof x, "%s/ckpt/step-2/%s", a, files[i]);
        snprintf(y, sizeof y, "%s/ckpt/step-2/%s", b, files[i]);
        same_file(x, y);
    }
}

/* Saved on grid `a`, which trains its own weights, and loaded on each grid. */
static void from_grid(const char *family, size_t a)
{
    sh("rm -rf first second");
    assert_ranks(grid_ranks(placements[a].grid), run_rank, &(job){family, &placements[a], NULL, "first"});
    for (size_t b = 0; b < AX_COUNT(placements); b++) {
        assert_ranks(grid_ranks(placements[b].grid), run_rank,
                     &(job){family, &placements[b], "first", "second"});
        same_arrays("first", "second");
    }
}

static void from_each_grid_to_each_other(void **state)
{
    (void)state;
    for (size_t a = 0; a < AX_COUNT(placements); a++)
        from_grid("gpt2", a);
}

static void other_families_likewise(void **state)
{
    (void)state;
    from_grid("qwen3", 0);
    from_grid("qwen3", 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(from_each_grid_to_each_other),
                                       cmocka_unit_test(other_families_likewise)};
    return cmocka_run_group_tests_name("train.reshard", tests, run_setup, run_teardown);
}
