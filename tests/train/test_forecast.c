/* The plan that one process makes of a run of several ranks equals what the run reports: the memory of the
 * largest rank, and the bytes that ranks send in a step. */
#include "axonn/runtime.h"

#include "support/sampled.h"
#include "train/run_test.h"

#define KEYS                                                                                                 \
    "model.family=gpt2 model.layers=4 model.hidden=24 model.heads=4 model.vocab=61 model.seq_len=16 "        \
    "train.global_batch=16 train.micro_batch=2 train.steps=2 train.precision=bf16 "                          \
    "run.checkpoint_interval=0 "                                                                             \
    "data.train=train.tok threads=1 run.dir=run "
#define EXPERTS "model.family=mixtral model.experts=4 model.top_k=2 grid.expert=2 "

/* Ranks of a stage that run collectives within tasks (along x, y, z, or with ZeRO 2 and 3) agree on the order
 * of their tasks if there are several stages, in as many calls as their messages take; so pipelines here have
 * none of these, or one schedule whose order is fixed. */
static const char *const runs[] = {
    "ranks=1",
    "ranks=4 grid.z=2 grid.data=2 train.global_batch=8",
    "ranks=4 grid.data=4 zero=2 train.global_batch=8",
    "ranks=4 grid.data=4 zero=3 train.global_batch=32 overlap.oar=false overlap.ors=false overlap.oag=false",
    "ranks=2 grid.x=2",
    "ranks=2 grid.y=2 zero=1",
    "ranks=4 grid.z=2 grid.data=2",
    "ranks=4 grid.data=4 zero=2",
    "ranks=4 grid.data=4 zero=3",
    "ranks=2 grid.z=2 train.weight_cache=30000",
    "ranks=2 grid.z=2 train.weight_cache=30000 train.global_batch=4",
    "ranks=3 grid.data=3 zero=1 train.global_batch=18",
    "ranks=4 grid.x=2 grid.y=2 train.recompute=full train.recompute_comm=keep",
    "ranks=2 grid.pipe=2",
    "ranks=4 grid.pipe=2 grid.data=2 zero=1 train.recompute=full",
    "ranks=4 grid.pipe=4 pipe.schedule=gpipe",
    "ranks=4 grid.pipe=2 grid.data=2 pipe.schedule=interleaved pipe.chunks=2",
    "ranks=2 grid.data=2 " EXPERTS,
    "ranks=4 grid.data=2 grid.x=2 " EXPERTS "moe.capacity=1.25 train.recompute=full",
    "ranks=4 grid.x=2 grid.data=2 grid.order=data,z,y,x,pipe",
};

/* Enters in `most` the bytes of a stage, if they are more than those of the stages before. */
static void add_sent(const ax_engine_plan *stage, json_t *most)
{
    for (int i = 0; i < stage->n_sent; i++) {
        const ax_axes_bytes *s = &stage->sent[i];
        if (s->bytes > json_integer_value(json_object_get(most, s->axes)))
            json_object_set_new(most, s->axes, json_integer((json_int_t)s->bytes));
    }
}

/* Compares bytes by axes; entries of 0 bytes may be missing. */
static void compare_sent(const char *keys, json_t *planned, json_t *counted)
{
    const char *axes;
    json_t *bytes;
    json_object_foreach(counted, axes, bytes)
    {
        if (json_integer_value(bytes) != json_integer_value(json_object_get(planned, axes)))
            fail_msg("%s: %lld bytes along %s, planned %lld", keys, (long long)json_integer_value(bytes),
                     axes, (long long)json_integer_value(json_object_get(planned, axes)));
    }
    json_object_foreach(planned, axes, bytes) { assert_non_null(json_object_get(counted, axes)); }
}

static void plan_run(const char *keys, int ranks)
{
    char *text = strdup(keys), *key[MAX_KEYS];
    json_t *begin = row_with("run", "mem_planned", 0), *step = row_with("run", "comm_bytes", 2),
           *sent = json_object();
    size_t n = keys_of_rank(text, 0, key), largest = 0;
    ax_config config;
    ax_comm *world;
    ax_trainer *trainer;
    OK(ax_config_load(NULL, key, n, AX_CONFIG_TO_MEASURE, &config));
    OK(ax_comm_alone_create(ranks, &world));
    OK(ax_trainer_create(world, &config, &trainer));
    for (int s = 0; s < ax_trainer_plan(trainer)->grid.of[AX_PIPE]; s++) {
        ax_engine_plan stage;
        OK(ax_trainer_plan_stage(trainer, s, &stage));
        largest = ax_max(largest, ax_memory_total(&stage.memory));
        add_sent(&stage, sent);
        ax_engine_plan_fini(&stage);
    }
    if ((json_int_t)largest != json_integer_value(json_object_get(begin, "mem_planned")))
        fail_msg("%s: planned %zu bytes, the run %lld", keys, largest,
                 (long long)json_integer_value(json_object_get(begin, "mem_planned")));
    compare_sent(keys, sent, json_object_get(step, "comm_bytes"));
    ax_trainer_destroy(&trainer);
    ax_comm_destroy(&world);
    ax_config_fini(&config);
    json_decref(begin);
    json_decref(step);
    json_decref(sent);
    free(text);
}

static void plans_equal_runs(void **state)
{
    (void)state;
    make_tokens("train.tok", VOCAB, 4000, 1);
    for (size_t i = 0; i < AX_COUNT(runs); i++) {
        char keys[1024];
        if (!my_share(i, 3))
            continue;
        snprintf(keys, sizeof keys, KEYS "%s", runs[i] + strlen("ranks=N"));
        sh("rm -rf run");
        run_expect(0, NULL, "%s %.7s", keys, runs[i]);
        plan_run(keys, (int)strtol(runs[i] + strlen("ranks="), NULL, 10));
    }
}

/* No rank of a planned run is on this machine, so only the limit that the user gives is too small for it. */
static void only_the_given_limit_counts(void **state)
{
    (void)state;
    static const char *const sizes[] = {" runtime.device_memory=0", " runtime.device_memory=1000000"};
    for (size_t i = 0; i < AX_COUNT(sizes); i++) {
        char keys[512], *key[MAX_KEYS];
        ax_config config;
        ax_comm *world;
        ax_trainer *trainer;
        snprintf(keys, sizeof keys,
                 "model.family=gpt2 model.layers=1000 model.hidden=24576 model.heads=96 model.seq_len=64 "
                 "train.global_batch=8 train.micro_batch=1 grid.z=8%s",
                 sizes[i]);
        OK(ax_config_load(NULL, key, keys_of_rank(keys, 0, key), AX_CONFIG_TO_MEASURE, &config));
        OK(ax_comm_alone_create(8, &world));
        ax_status status = ax_trainer_create(world, &config, &trainer);
        assert_int_equal(status, i ? AX_ERR_MEMORY : AX_OK);
        if (i)
            assert_non_null(strstr(ax_error_message(), "runtime.device_memory allows only"));
        ax_trainer_destroy(&trainer);
        ax_comm_destroy(&world);
        ax_config_fini(&config);
    }
}

/* What a rank of a planned run sends to other nodes, and its buffers of collectives. */
typedef struct outside {
    int64_t wire;
    size_t buffers;
} outside;

/* Plans one rank, on nodes of `node` ranks. */
static outside plan_rank(const ax_train_plan *p, int rank, int node)
{
    int *numbers;
    ax_comm *world;
    ax_engine_plan plan;
    OK(ax_grid_numbers(p->grid, &p->order, &numbers));
    OK(ax_comm_dry_create(rank, ax_comm_size(p->ranks), &world));
    OK(ax_comm_dry_number(world, numbers));
    OK(ax_comm_dry_nodes(world, node, true));
    OK(ax_engine_plan_make(&p->options, world, p->grid, &p->parallel, p->config->device, p->threads.count,
                           p->compute, &plan));
    const outside out = {plan.wire, plan.memory.bytes[AX_MEMORY_COLLECTIVES]};
    ax_engine_plan_fini(&plan);
    ax_comm_destroy(&world);
    free(numbers);
    return out;
}

/* Compares the plans of stages with those of all their ranks. To whom gathers of little data go depends on
 * the place in the group, which the plan leaves out: less than 1 %. Returns true if a rank sends more to
 * other nodes than the first of its stage. */
static bool compare_ranks(const char *keys, const ax_trainer *trainer, int node)
{
    const ax_train_plan *p = ax_trainer_plan(trainer);
    const int ranks = ax_comm_size(p->ranks), stages = p->grid.of[AX_PIPE];
    bool differs = false;
    for (int s = 0; s < stages; s++) {
        ax_engine_plan stage;
        outside most = {.wire = 0}, first = {.wire = -1};
        for (int r = 0; r < ranks; r++) {
            int coord[AX_AXES_STANDARD];
            ax_grid_place(p->grid, &ax_grid_order_default, r, coord);
            if (coord[AX_PIPE] != s)
                continue;
            const outside one = plan_rank(p, r, node);
            first = first.wire < 0 ? one : first;
            most.wire = ax_max(most.wire, one.wire);
            most.buffers = ax_max(most.buffers, one.buffers);
        }
        OK(ax_trainer_plan_stage(trainer, s, &stage));
        const size_t buffers = stage.memory.bytes[AX_MEMORY_COLLECTIVES];
        if (stage.wire > most.wire || (double)stage.wire < 0.99 * (double)most.wire ||
            buffers != most.buffers)
            fail_msg(
                "%s, nodes of %d: stage %d sends %lld bytes to other nodes and has buffers of %zu, its ranks "
                "at most %lld and %zu",
                keys, node, s, (long long)stage.wire, buffers, (long long)most.wire, most.buffers);
        differs |= (double)first.wire < 0.99 * (double)most.wire;
        ax_engine_plan_fini(&stage);
    }
    return differs;
}

/* Where nodes do not divide groups, the plan has what the rank needs that sends the most to other nodes. */
static void the_worst_placed_rank_counts(void **state)
{
    (void)state;
    static const struct {
        const char *keys;
        int ranks, node;
        bool differs;
    } cases[] = {
        {"grid.x=2 grid.data=2 zero=1", 4, 3, true},
        {"grid.x=3 grid.data=4 zero=3", 12, 4, true},
        {"grid.y=3 grid.z=2 grid.pipe=2 grid.order=y,pipe,z,x,data", 12, 5, true},
        {"grid.data=4 " EXPERTS, 4, 3, true},
        {"grid.data=8 model.vocab=7001 train.micro_batch=1", 8, 4, false}, /* slices differ by a line */
        {"grid.x=2 grid.y=2 grid.data=2", 8, 4, false}};
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        char keys[1024], node[16], *key[MAX_KEYS];
        ax_config config;
        ax_comm *world;
        ax_trainer *trainer;
        snprintf(node, sizeof node, "%d", cases[i].node);
        snprintf(keys, sizeof keys, KEYS "runtime.device_memory=0 %s", cases[i].keys);
        OK(ax_config_load(NULL, key, keys_of_rank(keys, 0, key), AX_CONFIG_TO_MEASURE, &config));
        OK(ax_runtime_set(AX_RUNTIME_RANKS_PER_NODE, node));
        OK(ax_comm_alone_create(cases[i].ranks, &world));
        OK(ax_trainer_create(world, &config, &trainer));
        assert_int_equal(compare_ranks(cases[i].keys, trainer, cases[i].node), cases[i].differs);
        ax_trainer_destroy(&trainer);
        ax_comm_destroy(&world);
        ax_config_fini(&config);
    }
    OK(ax_runtime_set(AX_RUNTIME_RANKS_PER_NODE, "0"));
}

/* train.recompute auto is chosen for the stage that needs the most, here the second. */
static void recomputation_is_that_of_all_stages(void **state)
{
    (void)state;
    static const char keys[] = KEYS " grid.pipe=2 pipe.cut=0 model.tie=false ";
    char limited[1024];
    sh("rm -rf run");
    run_expect(0, NULL, "%s ranks=2 runtime.device_memory=0", keys);
    json_t *begin = row_with("run", "mem_planned", 0);
    snprintf(limited, sizeof limited, "%s train.recompute=auto runtime.device_memory=%lld", keys,
             (long long)json_integer_value(json_object_get(begin, "mem_planned")) - 1);
    json_decref(begin);
    sh("rm -rf run");
    run_expect(0, "train.recompute auto chose ", "%s ranks=2", limited);
    plan_run(limited, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(plans_equal_runs),
                                       cmocka_unit_test(only_the_given_limit_counts),
                                       cmocka_unit_test(the_worst_placed_rank_counts),
                                       cmocka_unit_test(recomputation_is_that_of_all_stages)};
    return cmocka_run_group_tests(tests, run_setup, run_teardown);
}
