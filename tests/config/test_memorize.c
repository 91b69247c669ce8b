/* config: the configurations of bench/memorize, of a study of models that run on GPUs, load and have grids
 * that fit. */
#include "axonn/config.h"
#include "axonn/model.h"
#include "axonn/parallel.h"
#include "support/check.h"

#include <stdio.h>
#include <stdlib.h>

#define DIR AXONN_SOURCE_DIR "/bench/memorize/"

/* A model, its number of parameters in its published weights, and the ranks that train it. */
typedef struct paper_model {
    const char *name;
    int64_t parameters;
    int ranks;
} paper_model;

static ax_status read_shape(const char *path, ax_model_config *out)
{
    char *json;
    size_t size;
    AX_TRY(ax_file_read(path, &json, &size));
    ax_status status = ax_model_config_parse(json, size, path, out);
    free(json);
    return status;
}

static void check_model(const paper_model *m)
{
    char path[512];
    ax_config c;
    ax_model_config shape;
    int64_t total, matmul;
    snprintf(path, sizeof path, DIR "%s.yaml", m->name);
    OK(ax_config_load(path, NULL, 0, AX_CONFIG_TO_MEASURE, &c));
    OK(read_shape(c.model.config, &shape));
    ax_model_config_params(&shape, &total, &matmul);
    if (total != m->parameters)
        fail_msg("%s has %lld parameters", m->name, (long long)total);
    ax_grid_load load = {&shape, NULL, c.train.micro_batch, c.train.global_batch};
    OK(ax_strategy_find(c.strategy, &load.strategy));
    OK(ax_model_check_grid(&load, ax_config_grid(&c), m->ranks));
    assert_int_equal(c.train.global_batch, 128);
    load.micro_batch = 256; /* the check can fail */
    FAILS(AX_ERR_USAGE, "does not fit", ax_model_check_grid(&load, ax_config_grid(&c), m->ranks));
    ax_model_config_fini(&shape);
    ax_config_fini(&c);
}

static void the_papers_configurations_load(void **state)
{
    (void)state;
    static const paper_model models[] = {
        {"tinyllama-1.1b", 1100048384, 8},     {"llama-2-7b", 6738415616, 8},
        {"llama-2-13b", 13015864320, 16},      {"llama-2-70b", 68976648192, 64},
        {"llama-3.1-8b", 8030261248, 8},       {"llama-3.1-70b", 70553706496, 64},
        {"llama-3.1-405b", 405853388800, 128},
    };
    for (size_t i = 0; i < AX_COUNT(models); i++)
        check_model(&models[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_papers_configurations_load)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
