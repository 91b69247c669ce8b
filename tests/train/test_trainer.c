/* ax_trainer: its plan says what the configuration says, its steps are those of ax_train, and a configuration
 * that cannot run is refused. */
#include "support/ranks.h"
#include "train/run_test.h"

#include <math.h>

enum { STEPS = 3 };

typedef struct job {
    const char *keys;
    double loss[STEPS]; /* of ax_train */
} job;

/* Opens the training data as a run does: same rows in the same order. */
static ax_status open_sampler(const ax_train_plan *plan, ax_data **data, ax_sampler **out)
{
    const ax_config *c = plan->config;
    ax_sampler_options options = {
        .shape = {.seq_len = c->model.seq_len, .mask_documents = c->data.mask_documents},
        .batch = plan->options.global_batch,
        .order = AX_ORDER_SHUFFLED,
        .seed = ax_rng_key((uint64_t)c->train.seed, "data order", 0)};
    AX_TRY(ax_data_open("train.tok", -1, data));
    return ax_sampler_create(data, 1, &options, out);
}

static ax_status read_rows(void *sampler, int64_t first, int64_t end, const ax_rows *out)
{
    return ax_sampler_read(sampler, first, end, out);
}

static ax_status check_steps(const ax_train_plan *plan, ax_engine *engine, ax_sampler *sampler,
                             const double *loss)
{
    for (int64_t step = 1; step <= STEPS; step++) {
        int64_t targets;
        ax_step_result result;
        ax_hyper hyper = ax_train_hyper(plan, step);
        AX_TRY(ax_sampler_next(sampler, &targets));
        AX_TRY(ax_engine_step(engine, step, read_rows, sampler, targets, &hyper));
        AX_TRY(ax_engine_result(engine, &result));
        EXPECT(result.loss == loss[step - 1]);
    }
    return AX_OK;
}

static ax_status check_trainer(const ax_train_plan *plan, ax_trainer *trainer, const double *loss)
{
    ax_ctx *ctx;
    ax_engine *engine;
    ax_data *data = NULL;
    ax_sampler *sampler = NULL;
    EXPECT(plan->options.model->layers == 2 && plan->options.global_batch == 4);
    EXPECT(plan->grid.of[AX_DATA] == ax_comm_size(plan->ranks) && plan->compute == AX_F32);
    EXPECT(ax_memory_total(&plan->engine.memory) > 0);
    EXPECT(ax_train_hyper(plan, 1).lr == 0.005 && ax_train_hyper(plan, 2).lr == 0.01); /* warm-up: 2 steps */
    ax_status status = ax_trainer_engine(trainer, &ctx, &engine);
    if (status == AX_OK)
        status = open_sampler(plan, &data, &sampler);
    if (status == AX_OK)
        status = check_steps(plan, engine, sampler, loss);
    ax_sampler_destroy(&sampler);
    ax_data_close(&data);
    ax_engine_destroy(&engine);
    ax_ctx_destroy(&ctx);
    return status;
}

static ax_status load(const char *keys, ax_config *config)
{
    char *text = strdup(keys), *key[MAX_KEYS];
    size_t n = keys_of_rank(text, 0, key);
    ax_status status = ax_config_load(NULL, key, n, AX_CONFIG_TO_MEASURE, config);
    free(text);
    return status;
}

static ax_status trainer_rank(ax_comm *world, void *arg)
{
    const job *j = arg;
    ax_config config;
    ax_trainer *trainer;
    AX_TRY(load(j->keys, &config));
    ax_status status = ax_trainer_create(world, &config, &trainer);
    if (status == AX_OK)
        status = check_trainer(ax_trainer_plan(trainer), trainer, j->loss);
    ax_trainer_destroy(&trainer);
    ax_config_fini(&config);
    return status;
}

/* Reads the losses of a run's first steps from its metrics.jsonl. */
static void read_losses(const char *run, double *loss)
{
    char *text = metrics_of(run, true), *rest = NULL, *line = strtok_r(text, "\n", &rest);
    for (int i = 0; i < STEPS; i++, line = strtok_r(NULL, "\n", &rest)) {
        json_t *row = json_loads(line ? line : "", 0, NULL);
        assert_int_equal(json_integer_value(json_object_get(row, "step")), i + 1);
        loss[i] = json_number_value(json_object_get(row, "loss"));
        json_decref(row);
    }
    free(text);
}

static void steps_are_those_of_a_run(void **state)
{
    (void)state;
    static const struct {
        int ranks;
        const char *keys;
    } runs[] = {{1, BASE_KEYS "run.dir=one"},
                {2, BASE_KEYS "run.dir=two grid.data=2 grid.order=data,x,y,z,pipe"}};
    make_tokens("train.tok", VOCAB, 4000, 1);
    for (size_t i = 0; i < AX_COUNT(runs); i++) {
        job j = {.keys = runs[i].keys};
        run_expect(0, NULL, "%s ranks=%d", runs[i].keys, runs[i].ranks);
        read_losses(i ? "two" : "one", j.loss);
        assert_ranks(runs[i].ranks, trainer_rank, &j);
    }
}

static ax_status refused_rank(ax_comm *world, void *arg)
{
    (void)arg;
    ax_config config;
    ax_trainer *trainer;
    AX_TRY(load(BASE_KEYS "run.dir=none grid.data=1", &config)); /* its grid has one rank */
    ax_status status = ax_trainer_create(world, &config, &trainer);
    ax_config_fini(&config);
    EXPECT(status == AX_ERR_USAGE && !trainer && !ax_path_exists("none"));
    return AX_OK;
}

static void impossible_plan_is_refused(void **state)
{
    (void)state;
    assert_ranks(2, refused_rank, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(steps_are_those_of_a_run),
                                       cmocka_unit_test(impossible_plan_is_refused)};
    return cmocka_run_group_tests(tests, run_setup, run_teardown);
}
