/* `axonn plan` prints what a run of any number of ranks will need, and why a run cannot be. */
#include "cli/cli_test.h"

#include <math.h>

#define SMALL                                                                                                \
    "model: {family: gpt2, layers: 4, hidden: 64, heads: 4, vocab: 256, seq_len: 64}\n"                      \
    "train: {global_batch: 32, micro_batch: 1, precision: bf16}\n"

static int prepare(void **state)
{
    (void)state;
    char directory[] = "/tmp/axonn-plan-XXXXXX";
    if (!mkdtemp(directory) || chdir(directory))
        return -1;
    FILE *file = fopen("a.yaml", "w");
    return !file || fputs(SMALL, file) < 0 || fclose(file) ? -1 : 0;
}

static int clean(void **state)
{
    (void)state;
    char here[4096];
    return !getcwd(here, sizeof here) || chdir("/") || ax_remove_tree(here) != AX_OK ? -1 : 0;
}

static json_int_t integer(json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

/* The largest stage's classes add up to mem_planned, and nothing but the configuration is there afterwards.
 */
static void json_has_every_stage(void **state)
{
    (void)state;
    json_t *plan = json_of(AXONN " plan a.yaml --json --ranks 32 grid.pipe=4 grid.x=2 2>/dev/null"),
           *stages = json_object_get(plan, "stages"), *bytes;
    json_int_t most = 0;
    const char *name;
    assert_int_equal(json_array_size(stages), 4);
    for (size_t s = 0; s < 4; s++) {
        json_t *stage = json_array_get(stages, s);
        json_int_t sum = 0;
        json_object_foreach(json_object_get(stage, "device"), name, bytes)
        {
            sum += json_integer_value(bytes);
        }
        assert_int_equal(sum, integer(stage, "memory"));
        most = ax_max(most, sum);
    }
    assert_int_equal(most, integer(plan, "mem_planned"));
    assert_int_equal(integer(plan, "ranks"), 32);
    assert_int_equal(integer(plan, "tokens"), 32 * 64);
    assert_string_equal(json_string_value(json_object_get(plan, "grid")), "data=4 pipe=4 x=2 y=1 z=1");
    assert_true(integer(json_object_get(plan, "comm_bytes"), "x") > 0);
    json_decref(plan);
    ax_buf out = {0};
    assert_int_equal(shell("ls", &out), 0);
    assert_string_equal(out.data, "a.yaml\n");
    ax_buf_fini(&out);
}

static void text_names_the_largest_stage(void **state)
{
    (void)state;
    ax_buf out = {0};
    assert_int_equal(shell(AXONN " plan a.yaml grid.pipe=2 2>&1", &out), 0);
    assert_contains(out.data, "bf16 on cpu, 2 ranks: data=1 pipe=2 x=1 y=1 z=1\n");
    assert_contains(out.data, "memory of a rank of stage 0, the most\n");
    assert_contains(out.data, "a step: 32 rows of 64 tokens, 1 a micro-batch; ");
    assert_contains(out.data, "sent by a rank in a step, at most: ");
    assert_int_equal(shell(AXONN " plan a.yaml 2>&1", &out), 0);
    assert_contains(out.data, "memory of a rank\n");
    assert_null(strstr(out.data, "sent by"));
    ax_buf_fini(&out);
}

/* The run fits with the micro-batch that the plan names, and not with the next one. */
static void largest_micro_batch_is_named(void **state)
{
    (void)state;
    char command[256];
    json_t *plan = json_of(AXONN " plan a.yaml grid.pipe=2 train.micro_batch=4 --json");
    const long long limit = integer(plan, "mem_planned") + 1000;
    assert_true(json_is_null(json_object_get(plan, "largest_micro_batch")));
    json_decref(plan);
    snprintf(command, sizeof command, AXONN " plan a.yaml grid.pipe=2 runtime.device_memory=%lld --json",
             limit);
    plan = json_of(command);
    assert_int_equal(integer(plan, "largest_micro_batch"), 4);
    assert_int_equal(integer(plan, "micro_batch"), 1);
    json_decref(plan);
    ax_buf out = {0};
    snprintf(command, sizeof command,
             AXONN " plan a.yaml grid.pipe=2 train.micro_batch=8 runtime.device_memory=%lld 2>/dev/null",
             limit);
    assert_int_equal(shell(command, &out), 3);
    ax_buf_fini(&out);
}

static void impossible_plans_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *words, *said;
        int code;
    } bad[] = {{"nowhere.yaml", "nowhere.yaml", 4},
               {"a.yaml --ranks 3", "train.global_batch", 2},
               {"a.yaml model.heads=7", "heads", 2},
               {"a.yaml --ranks 6 grid.x=4", "grid", 2},
               {"a.yaml grid.pipe=1048576 grid.data=1048576", "grid", 2},
               {"a.yaml runtime.device_memory=1000000", "runtime.device_memory allows only", 3},
               {"a.yaml runtime.device_memory=4000000", "(grid.z, grid.x, grid.pipe), or reduce", 3},
               {"a.yaml model.family=mixtral grid.data=4 grid.expert=2 runtime.device_memory=12000000",
                "(grid.z, grid.x, grid.pipe, grid.expert, zero), or reduce", 3},
               {"a.yaml model.family=mixtral model.experts=2 grid.data=2 grid.expert=2 zero=3 "
                "runtime.device_memory=4000000",
                "(grid.z, grid.x, grid.pipe), or reduce", 3}};
    ax_buf out = {0};
    for (size_t i = 0; i < AX_COUNT(bad); i++) {
        char command[256];
        snprintf(command, sizeof command, AXONN " plan %s 2>&1 >/dev/null", bad[i].words);
        const int code = shell(command, &out);
        if (code != bad[i].code || !strstr(out.data, bad[i].said))
            fail_msg("axonn plan %s: exit code %d:\n%s", bad[i].words, code, out.data);
    }
    ax_buf_fini(&out);
}

/* With a description the memory of its devices is the limit, and its ranks are all there are. */
static void machine_is_the_limit(void **state)
{
    (void)state;
    ax_buf out = {0};
    json_t *plan = json_of(AXONN " plan a.yaml --json --machine summit 2>/dev/null");
    char command[512];
    const json_int_t need = integer(plan, "mem_planned");
    assert_string_equal(json_string_value(json_object_get(plan, "machine")), "Summit, V100");
    assert_int_equal(integer(plan, "largest_micro_batch"), 32);
    const json_int_t own_scratch = integer(
        json_object_get(json_array_get(json_object_get(plan, "stages"), 0), "device"), "kernel scratch");
    json_decref(plan);
    for (int less = 0; less < 2; less++) {
        snprintf(command, sizeof command,
                 "printf 'name: small\\nranks_per_node: 2\\ndevice: {memory: %lld}\\n' >m.yaml",
                 (long long)need - less);
        assert_int_equal(shell(command, &out), 0);
        /* by flag, by key, and by variable */
        assert_int_equal(shell(AXONN " plan a.yaml --machine m.yaml 2>&1", &out), less ? 3 : 0);
        assert_int_equal(shell(AXONN " plan a.yaml runtime.machine=m.yaml 2>&1", &out), less ? 3 : 0);
        assert_int_equal(shell("AXONN_MACHINE=m.yaml " AXONN " plan a.yaml 2>&1", &out), less ? 3 : 0);
    }
    assert_contains(
        out.data,
        "error: machine small, whose device memory is taken for runtime.device_memory: a step needs ");
    assert_int_equal(shell(AXONN " plan a.yaml --machine summit 2>&1", &out), 0);
    assert_contains(out.data, "within the machine's device memory: 32\n");
    assert_int_equal(shell(AXONN " plan a.yaml --machine summit runtime.device_memory=1000000000 2>&1", &out),
                     0);
    assert_contains(out.data, "within runtime.device_memory: 32\n");
    assert_int_equal(shell(AXONN " plan a.yaml --machine m.yaml runtime.device_memory=1000 2>&1", &out), 3);
    assert_null(strstr(out.data, "machine small"));
    assert_int_equal(shell(AXONN " plan a.yaml --machine m.yaml grid.data=4 2>&1", &out), 2);
    assert_contains(out.data,
                    "machine small has 2 ranks (nodes: 1, ranks of a node: 2), fewer than the 4 of the grid");
    /* The scratch memory is that of the machine's kernels. */
    snprintf(command, sizeof command,
             "printf 'name: small\\nranks_per_node: 2\\ndevice: {memory: %lld, scratch: 12345}\\n' >m.yaml",
             (long long)(need - own_scratch + 12345));
    assert_int_equal(shell(command, &out), 0);
    assert_int_equal(shell(AXONN " plan a.yaml --machine m.yaml 2>&1", &out), 0);
    assert_contains(out.data, "within the machine's device memory: 1\n");
    /* Its ranks share the host memory of a node. */
    for (int less = 0; less < 2; less++) {
        const json_int_t all = need - own_scratch + 12345;
        snprintf(command, sizeof command,
                 "printf 'name: small\\nranks_per_node: 2\\ndevice: {memory: 100000000000, scratch: 12345, "
                 "host_access: true}\\nhost: {memory: %lld}\\n' >m.yaml",
                 (long long)(2 * all - less));
        assert_int_equal(shell(command, &out), 0);
        assert_int_equal(
            shell(AXONN " plan a.yaml --machine m.yaml grid.data=2 train.global_batch=64 2>&1", &out),
            less ? 3 : 0);
    }
    assert_contains(out.data, "the 2 ranks of a node need up to ");
    assert_null(strstr(out.data, "runtime.device_memory"));
    assert_int_equal(shell(AXONN " plan a.yaml runtime.machine=sumit 2>&1", &out), 2);
    assert_contains(out.data, "the nearest is summit");
    assert_int_equal(shell("echo 'nodse: 2' >m.yaml; " AXONN
                           " plan a.yaml --machine m.yaml 2>&1; rc=$?; rm m.yaml; exit $rc",
                           &out),
                     2);
    assert_contains(out.data, "m.yaml:1:1: nodse: unknown key; did you mean nodes?");
    assert_contains(out.data, "device.memory: required");
    ax_buf_fini(&out);
}

/* On a machine whose kernels take no time, a step takes as long as the link takes for the bytes that a rank
 * sends; on one without a link, as long as the kernels, whose bytes per second are halved, twice as long. */
static void machine_gives_the_time_of_a_step(void **state)
{
    (void)state;
    ax_buf out = {0};
    json_t *plan;
    double ms[2];
    assert_int_equal(
        shell("printf 'name: links\\nranks_per_node: 2\\ndevice: {memory: 100000000000, host_access: true, "
              "stream: 1e30, gemm: {bf16: 1e30, f32: 1e30}}\\nlinks: {node: {rate: 1e9}}\\n' >m.yaml",
              &out),
        0);
    plan = json_of(AXONN " plan a.yaml grid.x=2 --machine m.yaml --tokens 20480 --json 2>/dev/null");
    const double sent = (double)integer(json_object_get(plan, "comm_bytes"), "x"),
                 step = json_number_value(json_object_get(plan, "step_ms"));
    assert_true(sent > 0 && fabs(step - sent / 1e9 * 1e3) < 1e-9 * step);
    assert_true(fabs(json_number_value(json_object_get(plan, "seconds")) - 10 * step / 1e3) < 1e-9 * step);
    json_decref(plan);
    for (int i = 0; i < 2; i++) {
        char command[256];
        snprintf(
            command, sizeof command,
            "printf 'name: kernels\\nranks_per_node: 2\\ndevice: {memory: 100000000000, host_access: true, "
            "stream: %se9, gemm: {bf16: 1e30, f32: 1e30}}\\n' >m.yaml",
            i ? "1" : "2");
        assert_int_equal(shell(command, &out), 0);
        plan = json_of(AXONN " plan a.yaml --machine m.yaml --json 2>/dev/null");
        ms[i] = json_number_value(json_object_get(plan, "step_ms"));
        json_decref(plan);
    }
    assert_true(ms[0] > 0 && fabs(ms[1] - 2 * ms[0]) < 1e-9 * ms[1]);
    assert_int_equal(shell(AXONN " plan a.yaml --machine m.yaml 2>&1", &out), 0);
    assert_contains(out.data, "time of a step: ");
    assert_contains(out.data, " of the rate of GEMMs; kernels ");
    /* A rate that no machine has gives a time nevertheless. */
    assert_int_equal(shell("sed 's/stream: 1e9/stream: 1e-30/' m.yaml >slow.yaml; " AXONN
                           " plan a.yaml --machine slow.yaml 2>&1; rc=$?; rm slow.yaml; exit $rc",
                           &out),
                     0);
    assert_contains(out.data, "e+38 s, ");
    /* Rates are missing: everything but times. */
    assert_int_equal(shell(AXONN " plan a.yaml grid.x=2 --machine m.yaml 2>&1", &out), 0);
    assert_contains(out.data, "no time of a step: ");
    assert_contains(out.data, "links.node.rate");
    assert_null(strstr(out.data, "tokens/s"));
    static const struct {
        const char *keys, *said;
    } unknown[] = {{"--machine m.yaml offload.optimizer=file", "no time of a step: offload.optimizer=file"},
                   {"--machine gpu.yaml offload.optimizer=host offload.update=host",
                    "no time of a step: offload.update=host"}};
    assert_int_equal(
        shell("{ sed 's/host_access: true/host_access: false/' m.yaml && echo 'host: {copy: 1e9}'; } "
              ">gpu.yaml",
              &out),
        0);
    for (size_t i = 0; i < AX_COUNT(unknown); i++) {
        char command[256];
        snprintf(command, sizeof command, AXONN " plan a.yaml %s 2>&1", unknown[i].keys);
        assert_int_equal(shell(command, &out), 0);
        assert_contains(out.data, unknown[i].said);
    }
    /* Where devices compute in host memory, the same kernels update the same state. */
    plan = json_of(AXONN " plan a.yaml --machine m.yaml offload.optimizer=host offload.update=host --json "
                         "2>/dev/null");
    assert_true(fabs(json_number_value(json_object_get(plan, "step_ms")) - ms[1]) < 1e-9 * ms[1]);
    json_decref(plan);
    assert_int_equal(shell(AXONN " plan a.yaml --machine m.yaml offload.optimizer=host offload.update=device "
                                 "2>&1",
                           &out),
                     0);
    assert_contains(out.data, "tokens/s");
    assert_int_equal(shell("rm m.yaml gpu.yaml; " AXONN " plan a.yaml --tokens 5 2>&1", &out), 2);
    assert_contains(out.data, "--tokens: times need a description of a machine");
    ax_buf_fini(&out);
}

static double planned(const char *words, const char *key)
{
    char command[512];
    snprintf(command, sizeof command, AXONN " plan a.yaml --json %s 2>/dev/null", words);
    json_t *plan = json_of(command);
    const double value = json_number_value(json_object_get(plan, key));
    json_decref(plan);
    return value;
}

/* With data innermost the groups along x lie across nodes, whose links are slower; messages of stages that
 * are on one node do not. */
static void order_and_nodes_count(void **state)
{
    (void)state;
    ax_buf out = {0};
    assert_true(planned("grid.x=4 grid.data=4 grid.order=data,x,y,z,pipe --machine perlmutter", "step_ms") >
                2 * planned("grid.x=4 grid.data=4 --machine perlmutter", "step_ms"));
    /* Stages 1 and 2 are on different nodes, with or without the network's latency. */
    for (int i = 0; i < 2; i++) {
        char command[512];
        snprintf(
            command, sizeof command,
            "printf 'name: m\\nnodes: 2\\nranks_per_node: 2\\ndevice: {memory: 100000000000, host_access: "
            "true, stream: 1e30, gemm: {bf16: 1e30, f32: 1e30}}\\nlinks: {node: {rate: 1e30}, network: "
            "{rate: 1e30, latency: %s}}\\n' >m%d.yaml",
            i ? "1" : "0", i);
        assert_int_equal(shell(command, &out), 0);
    }
    const char *stages = "grid.pipe=4 train.global_batch=1 model.tie=false";
    char words[256];
    double ms[2];
    for (int i = 0; i < 2; i++) {
        snprintf(words, sizeof words, "%s --machine m%d.yaml", stages, i);
        ms[i] = planned(words, "pipe_wait_ms");
    }
    assert_true(fabs(ms[1] - ms[0] - 2000) < 1); /* an activation, and a gradient */
    assert_int_equal(shell("rm m0.yaml m1.yaml", &out), 0);
    ax_buf_fini(&out);
}

/* Whether the host can access the device's memory, the description says, whatever the device of the file: if
 * it cannot, messages go through pinned memory, and who sends them to other nodes is not known. */
static void the_machine_says_what_the_host_accesses(void **state)
{
    (void)state;
    ax_buf out = {0};
    for (int i = 0; i < 4; i++) {
        char command[512];
        const bool access = i % 2;
        snprintf(command, sizeof command,
                 "printf 'name: m\\nranks_per_node: 2\\ndevice: {memory: 100000000000, host_access: %s}\\n' "
                 ">m.yaml",
                 access ? "true" : "false");
        assert_int_equal(shell(command, &out), 0);
        snprintf(command, sizeof command,
                 AXONN " plan a.yaml --json --machine m.yaml grid.pipe=2 model.tie=false device=%s",
                 i / 2 ? "cuda" : "cpu");
        json_t *plan = json_of(command),
               *host = json_object_get(json_array_get(json_object_get(plan, "stages"), 0), "host");
        assert_int_equal(json_integer_value(json_object_get(host, "pinned messages")) > 0, !access);
        assert_int_equal(json_object_get(plan, "comm_wire_bytes") != NULL, access);
        json_decref(plan);
    }
    assert_int_equal(shell("rm m.yaml", &out), 0);
    ax_buf_fini(&out);
}

/* Kernels that sleep take what the plan says of kernels, and a step at least what they take. */
static void kernels_sleep_as_planned(void **state)
{
    (void)state;
    static const char keys[] = "train.global_batch=4 train.micro_batch=2";
    ax_buf out = {0};
    char command[512];
    const char *name;
    double slept = 0;
    json_t *kernel;
    assert_int_equal(shell("printf 'name: m\nranks_per_node: 2\ndevice: {memory: 100000000000, host_access: "
                           "true, stream: 1e9, gemm: {bf16: 2e9, f32: 2e9}}\nlinks: {node: {rate: 1e9}}\n' "
                           ">m.yaml",
                           &out),
                     0);
    snprintf(command, sizeof command, AXONN " plan a.yaml %s --machine m.yaml --json 2>/dev/null", keys);
    json_t *plan = json_of(command), *stage = json_array_get(json_object_get(plan, "stages"), 0);
    const double kernels = json_number_value(json_object_get(stage, "kernels_ms"));
    snprintf(command, sizeof command,
             AXONN " bench step a.yaml %s --steps 2 --sleep m.yaml --json 2>/dev/null", keys);
    json_t *step = json_of(command);
    json_object_foreach(json_object_get(step, "kernels"), name, kernel)
    {
        slept += json_number_value(json_object_get(kernel, "ms"));
    }
    assert_true(kernels > 50 && fabs(slept - kernels) < 1e-9 * kernels);
    assert_true(json_number_value(json_object_get(step, "planned_ms")) ==
                json_number_value(json_object_get(plan, "step_ms")));
    /* A step may take back up to 10 ms by which the ranks overslept before it. */
    assert_true(json_number_value(json_object_get(step, "min")) > kernels - 10);
    json_decref(plan);
    json_decref(step);
    static const struct {
        const char *keys, *said;
    } bad[] = {{"device=ref", "only device=cpu can sleep, not ref"},
               {"offload.optimizer=file", "the time of reading and writing the file is not known"},
               {"model.family=mixtral", "without moe.capacity the router decides"},
               {"train.precision=fp16", "device.gemm.f16"}};
    for (size_t i = 0; i < AX_COUNT(bad); i++) {
        snprintf(command, sizeof command, AXONN " bench step a.yaml %s --sleep m.yaml 2>&1", bad[i].keys);
        assert_int_equal(shell(command, &out), 2);
        assert_contains(out.data, bad[i].said);
    }
    assert_int_equal(shell("rm m.yaml", &out), 0);
    ax_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_sleep_as_planned),
        cmocka_unit_test(the_machine_says_what_the_host_accesses),
        cmocka_unit_test(machine_gives_the_time_of_a_step),
        cmocka_unit_test(machine_is_the_limit),
        cmocka_unit_test(order_and_nodes_count),
        cmocka_unit_test(json_has_every_stage),
        cmocka_unit_test(text_names_the_largest_stage),
        cmocka_unit_test(largest_micro_batch_is_named),
        cmocka_unit_test(impossible_plans_are_refused),
    };
    return cmocka_run_group_tests(tests, prepare, clean);
}
