/* The configurations of bench/code/recipe: they say what HPC-Coder-V2 does (arXiv 2412.15178, section 5),
 * their grids are legal, and what a rank holds fits into its GPU. */
#include "axonn/config.h"
#include "axonn/engine.h"
#include "axonn/parallel.h"
#include "support/check.h"
#include "support/scratch.h"

#define RECIPE AXONN_SOURCE_DIR "/bench/code/recipe/"

/* A model of the paper: the members of its config.json that others do not share, the number of parameters of
 * its published weights, and the GPUs that tune it. */
typedef struct paper_model {
    const char *name;
    int layers, hidden, heads, ffn;
    int64_t parameters;
    int gpus;
} paper_model;

static const paper_model models[] = {
    {"deepseek-coder-1.3b", 24, 2048, 16, 5504, 1346471936, 2},
    {"deepseek-coder-6.7b", 32, 4096, 32, 11008, 6740512768, 16},
};

static const char config_json[] =
    "{\"model_type\": \"llama\", \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-6, \"vocab_size\": 32256, "
    "\"tie_word_embeddings\": false, \"max_position_embeddings\": 16384, \"rope_theta\": 100000, "
    "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 4.0}, \"num_hidden_layers\": %d, "
    "\"hidden_size\": %d, \"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"intermediate_size\": "
    "%d}";

static void put(const char *dir, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    OK(ax_file_write_atomic(path, text, strlen(text)));
}

/* Makes what a user has: a model, here without weights, data, and a copy of the configuration beside them. */
static void make_folder(const char *dir, const paper_model *m, const char *kind, ax_model_config *shape)
{
    static const char conversation[] = "{\"instruction\": \"a\", \"output\": \"b\"}\n";
    char name[128], text[1024], path[512], *yaml;
    size_t size;
    snprintf(name, sizeof name, "%s/%s-%s", dir, m->name, kind);
    OK(ax_mkdirs(name));
    snprintf(text, sizeof text, config_json, m->layers, m->hidden, m->heads, m->heads, m->ffn);
    put(name, "config.json", text);
    OK(ax_model_config_parse(text, strlen(text), name, shape));
    for (const char *const *data = (const char *const[]){"hpc", "oss", "evol", NULL}; *data; data++) {
        snprintf(name, sizeof name, "%s-instruct.jsonl", *data);
        put(dir, name, conversation);
    }
    snprintf(path, sizeof path, RECIPE "%s.yaml", m->name);
    OK(ax_file_read(path, &yaml, &size));
    snprintf(name, sizeof name, "%s.yaml", m->name);
    put(dir, name, yaml);
    free(yaml);
}

/* What section 5 of the paper says. */
static void check_keys(const ax_config *c)
{
    assert_int_equal(c->model.seq_len, 8192);
    assert_int_equal(c->train.global_batch, 128);
    assert_int_equal(c->train.precision, AX_CONFIG_BF16);
    assert_string_equal(c->optim.name, "adamw");
    assert_string_equal(c->data.chat_template, "alpaca");
    assert_int_equal(c->data.train.count, 3);
    for (size_t i = 0; i < c->data.train.count; i++)
        assert_int_equal(c->data.train.items[i].epochs, 2);
}

/* Plans a step of the first and the last of the ranks. */
static void check_memory(const ax_config *c, const paper_model *m, const ax_model_config *shape)
{
    ax_engine_options options = {.model = shape,
                                 .seq_len = c->model.seq_len,
                                 .micro_batch = c->train.micro_batch,
                                 .global_batch = c->train.global_batch,
                                 .recompute = 1,
                                 .clip = c->optim.clip};
    ax_parallel parallel = ax_parallel_default;
    ax_engine_plan plan;
    assert_int_equal(c->train.recompute, AX_CONFIG_RECOMPUTE_FULL);
    OK(ax_optim_find(c->optim.name, &options.optim));
    OK(ax_strategy_find(c->strategy, &parallel.strategy));
    for (int rank = 0; rank < m->gpus; rank += m->gpus - 1) {
        ax_comm *world;
        OK(ax_comm_dry_create(rank, m->gpus, &world));
        OK(ax_engine_plan_make(&options, world, ax_config_grid(c), &parallel, "cpu", 1, AX_BF16, &plan));
        ax_comm_destroy(&world);
        const double gb = (double)ax_memory_total(&plan.memory) / 1e9;
        ax_engine_plan_fini(&plan);
        /* AdamW with bf16: 18 bytes for each element of the rank's share. Drivers and libraries take some of
         * 80 GB. */
        const double state =
            18e-9 * (double)m->parameters / (double)ax_grid_size_along(ax_config_grid(c), AX_Z);
        if (gb < state || gb > 75)
            fail_msg("rank %d of %s plans %.1f GB", rank, m->name, gb);
    }
}

/* Loads the copy of the configuration, with a key of the command line or without. */
static void load(const char *dir, const char *name, const char *key, const char *value, ax_config *out)
{
    char path[512], word[512], *overrides[] = {word};
    snprintf(path, sizeof path, "%s/%s.yaml", dir, name);
    if (key)
        snprintf(word, sizeof word, "%s=%s", key, value);
    OK(ax_config_load(path, overrides, key ? 1 : 0, AX_CONFIG_TO_TRAIN, out));
}

static void the_papers_recipe_fits(void **state)
{
    const char *dir = *state;
    for (size_t i = 0; i < AX_COUNT(models); i++) {
        const paper_model *m = &models[i];
        ax_config c;
        ax_model_config shape, same;
        ax_grid_load grid_load = {&shape, NULL, 0, 0};
        char instruct[256];
        int64_t total, matmul;
        make_folder(dir, m, "base", &shape);
        ax_model_config_params(&shape, &total, &matmul);
        assert_int_equal(total, m->parameters);
        load(dir, m->name, NULL, NULL, &c);
        check_keys(&c);
        assert_int_equal(c.data.loss, AX_CONFIG_ANSWERS);
        assert_true(strstr(c.model.from, "b-base"));
        OK(ax_strategy_find(c.strategy, &grid_load.strategy));
        grid_load.micro_batch = c.train.micro_batch;
        grid_load.global_batch = c.train.global_batch;
        OK(ax_model_check_grid(&grid_load, ax_config_grid(&c), m->gpus));
        check_memory(&c, m, &shape);
        ax_config_fini(&c);
        load(dir, m->name, "data.loss", "all", &c);
        check_keys(&c);
        assert_int_equal(c.data.loss, AX_CONFIG_ALL);
        ax_config_fini(&c);
        make_folder(dir, m, "instruct", &same);
        snprintf(instruct, sizeof instruct, "%s/%s-instruct", dir, m->name);
        load(dir, m->name, "model.from", instruct, &c);
        check_keys(&c);
        assert_string_equal(c.model.from, instruct);
        ax_config_fini(&c);
        ax_model_config_fini(&shape);
        ax_model_config_fini(&same);
    }
}

/* bench/code/learn.py: two million parameters on x=2, data=2, with the loss of answers. */
static void the_small_recipe_loads(void **state)
{
    const char *dir = *state;
    char *yaml;
    size_t size;
    ax_config c;
    OK(ax_file_read(RECIPE "small.yaml", &yaml, &size));
    put(dir, "small.yaml", yaml);
    free(yaml);
    put(dir, "learned.jsonl", "{\"instruction\": \"a\", \"output\": \"b\"}\n");
    load(dir, "small", "data.tokenizer", AXONN_SOURCE_DIR "/tests/golden/tokenizer.json", &c);
    const ax_grid_size grid = ax_config_grid(&c);
    assert_int_equal(ax_grid_size_along(grid, AX_X), 2);
    assert_int_equal(ax_grid_size_along(grid, AX_DATA), 2);
    assert_int_equal(c.data.loss, AX_CONFIG_ANSWERS);
    assert_string_equal(c.data.chat_template, "alpaca");
    ax_config_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_papers_recipe_fits, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(the_small_recipe_loads, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
