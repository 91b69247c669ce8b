/* `axonn plan --top K` and `grid: auto`: the search for a layout, the command that it prints, and runs that
 * choose their grid. */
#include "cli/cli_test.h"

#include "axonn/data.h"

#include "support/sampled.h"

#include <math.h>

#define SMALL                                                                                                \
    "model: {family: gpt2, layers: 4, hidden: 64, heads: 4, vocab: 256, seq_len: 64}\n"                      \
    "data: {train: train.tok}\n"                                                                             \
    "train: {global_batch: 8, precision: fp32, steps: 2}\nrun: {dir: run}\nthreads: 1\n"
#define MACHINE                                                                                              \
    "name: two nodes\nnodes: 2\nranks_per_node: %d\ndevice: {memory: %s, scratch: 100000, host_access: "     \
    "true, stream: 1e11,\n"                                                                                  \
    "  gemm: {bf16: 1e12, f32: 1e12}}\n"                                                                     \
    "links: {node: {rate: 1e10, latency: 1e-6}, network: {rate: 1e8, latency: 1e-5}}\n"

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void write_machine(const char *path, int ranks_per_node, const char *memory)
{
    char text[1024];
    snprintf(text, sizeof text, MACHINE, ranks_per_node, memory);
    write_text(path, text);
}

static int prepare(void **state)
{
    (void)state;
    char directory[] = "/tmp/axonn-search-XXXXXX";
    ax_token_writer *writer;
    int32_t document[2000];
    if (!mkdtemp(directory) || chdir(directory))
        return -1;
    for (int i = 0; i < 2000; i++)
        document[i] = i * 7 % 255;
    write_text("a.yaml", SMALL);
    write_machine("m.yaml", 2, "100000000000");
    write_machine("three.yaml", 3, "100000000000");
    return ax_token_writer_create("train.tok", 256, 255, 0, &writer) != AX_OK ||
           ax_token_writer_add(writer, document, 2000, 6000) != AX_OK ||
           ax_token_writer_finish(&writer, NULL) != AX_OK;
}

static int clean(void **state)
{
    (void)state;
    char here[4096];
    return !getcwd(here, sizeof here) || chdir("/") || ax_remove_tree(here) != AX_OK ? -1 : 0;
}

static double number(json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

/* Returns the memory of a node of `ranks` ranks whose devices use it, for ranks of the stage that needs the
 * most.
 */
static double node_memory(json_t *plan, int ranks)
{
    size_t k;
    json_t *stage, *bytes;
    const char *name;
    double most = 0;
    json_array_foreach(json_object_get(plan, "stages"), k, stage)
    {
        double all = number(stage, "memory");
        json_object_foreach(json_object_get(stage, "host"), name, bytes) { all += json_number_value(bytes); }
        most = fmax(most, all);
    }
    return most * ranks;
}

/* The plan of the keys that the search prints has the time and the memory that it says. */
static void the_plan_of_each_is_the_same(void **state)
{
    (void)state;
    /* The printed keys have an axis that is given, and no other key that is. */
    static const struct {
        const char *machine;
        int ranks_per_node;
        const char *axis, *others;
    } given[] = {{"m", 2, "grid.pipe=2", "train.recompute=none"},
                 {"m", 2, "", "zero=2 train.recompute=full train.micro_batch=2"},
                 {"m", 2, "", "pipe.slack=3 train.recompute_comm=keep"},
                 {"three", 3, "grid.x=2", "zero=1"}, /* groups lie otherwise on nodes, by rank and order */
                 {"m", 2, "", "pipe.schedule=interleaved pipe.chunks=2 train.global_batch=6"}};
    for (size_t i = 0; i < AX_COUNT(given); i += (size_t)one_of(1, 3)) {
        char command[1024];
        snprintf(command, sizeof command,
                 AXONN " plan a.yaml --ranks 4 --machine %s.yaml --top 4 --json %s %s", given[i].machine,
                 given[i].axis, given[i].others);
        json_t *found = json_of(command), *one;
        double before = 0;
        size_t k;
        assert_int_equal(json_array_size(json_object_get(found, "best")), 4);
        json_array_foreach(json_object_get(found, "best"), k, one)
        {
            const char *keys = json_string_value(json_object_get(one, "keys"));
            snprintf(command, sizeof command, AXONN " plan a.yaml --ranks 4 --machine %s.yaml --json %s %s",
                     given[i].machine, given[i].others, keys);
            json_t *plan = json_of(command);
            assert_true(number(plan, "mem_planned") == number(one, "mem_planned"));
            assert_true(node_memory(plan, given[i].ranks_per_node) == number(one, "host_memory"));
            assert_true(fabs(number(plan, "step_ms") - number(one, "step_ms")) <
                        1e-9 * number(plan, "step_ms"));
            assert_true(number(one, "step_ms") >= before * (1 - 1e-9));
            before = number(one, "step_ms");
            assert_contains(keys, *given[i].axis ? given[i].axis : "grid.data=");
            json_decref(plan);
        }
        json_decref(found);
    }
}

/* What a rival costs more than the first, in JSON, is the difference of their rows. */
static void rivals_are_differences_of_rows(void **state)
{
    (void)state;
    json_t *found = json_of(AXONN " plan a.yaml --ranks 4 --machine m.yaml --top 1 --explain --json"),
           *best = json_object_get(found, "best"), *first = json_array_get(best, 0), *rival, *ms;
    static const char *const times[] = {"kernels_ms", "pipe_wait_ms"};
    const char *axes;
    size_t i;
    assert_int_equal(json_array_size(best), 4);
    assert_int_equal(json_array_size(json_object_get(found, "rivals")), 3);
    json_array_foreach(json_object_get(found, "rivals"), i, rival)
    {
        json_t *row = json_array_get(best, i + 1), *along = json_object_get(rival, "comm_exposed_ms");
        double sum = 0, of_rows = 0;
        assert_true(number(rival, "number") == (double)i + 2);
        assert_true(fabs(number(row, "step_ms") / number(first, "step_ms") - 1 - number(rival, "slower")) <
                    1e-9);
        for (size_t k = 0; k < AX_COUNT(times); k++)
            assert_true(fabs(number(row, times[k]) - number(first, times[k]) - number(rival, times[k])) <
                        1e-9);
        json_object_foreach(along, axes, ms) { sum += json_number_value(ms); }
        json_object_foreach(json_object_get(row, "comm_exposed_ms"), axes, ms)
        {
            assert_non_null(json_object_get(along, axes));
            of_rows += json_number_value(ms);
        }
        json_object_foreach(json_object_get(first, "comm_exposed_ms"), axes, ms)
        {
            assert_non_null(json_object_get(along, axes));
            of_rows -= json_number_value(ms);
        }
        assert_true(fabs(sum - of_rows) < 1e-9);
    }
    json_decref(found);
}

/* The last line is a command that runs, and the run has the grid that it says. */
static void the_last_line_runs(void **state)
{
    (void)state;
    ax_buf out = {0};
    if (!has_ranks())
        skip();
    assert_int_equal(shell(AXONN " plan a.yaml --ranks 2 --machine m.yaml --top 3 --explain", &out), 0);
    assert_contains(out.data, "  1  ");
    assert_contains(out.data, "  3  ");
    assert_contains(out.data, "the first: a rank of stage 0 computes longest; in a step it sends\n");
    assert_contains(out.data, "2 is ");
    char *last = strstr(out.data, "axonn train a.yaml --ranks 2 grid.data="), command[2048];
    assert_non_null(last);
    snprintf(command, sizeof command, AXONN "%.*s 2>&1", (int)strcspn(last, "\n") - 5, last + 5);
    assert_int_equal(shell(command, &out), 0);
    assert_int_equal(shell("rm -r run", &out), 0);
    ax_buf_fini(&out);
}

/* A run chooses its grid, says it in config.yaml, and keeps it when it is continued; another number of ranks,
 * or the command line, lets it choose again. */
static void a_run_chooses_its_grid(void **state)
{
    (void)state;
    ax_buf out = {0}, first = {0};
    if (!has_ranks())
        skip();
    write_text("auto.yaml", SMALL "grid: auto\n");
    const char *grid = "sed -n '/^grid:/,/^pipe:/{s/ *#.*//;p}' run/config.yaml";
    assert_int_equal(
        shell(AXONN " train auto.yaml --ranks 2 runtime.machine=m.yaml train.micro_batch=2 2>&1", &out), 0);
    assert_contains(out.data, "grid: auto chose grid.data=");
    assert_int_equal(shell(grid, &first), 0);
    assert_contains(first.data, "grid:\n  data: ");
    assert_null(strstr(first.data, "auto"));
    /* Continued, even without a description. */
    assert_int_equal(shell(AXONN " train auto.yaml --ranks 2 train.micro_batch=2 train.steps=3 2>&1", &out),
                     0);
    assert_contains(out.data, "grid: auto keeps the run's grid.data=");
    assert_int_equal(shell(grid, &out), 0);
    assert_string_equal(out.data, first.data);
    assert_int_equal(
        shell(AXONN " train auto.yaml --ranks 2 train.micro_batch=2 train.steps=4 grid=auto 2>&1", &out), 2);
    assert_contains(out.data, "grid: auto needs a description of the machine: give runtime.machine");
    assert_int_equal(
        shell(AXONN
              " train auto.yaml --ranks 1 train.micro_batch=2 train.steps=4 runtime.machine=m.yaml 2>&1",
              &out),
        0);
    assert_contains(out.data, "grid: auto chose grid.data=1 ");
    assert_int_equal(shell("rm -r run auto.yaml", &out), 0);
    ax_buf_fini(&out);
    ax_buf_fini(&first);
}

static void bad_searches_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *words, *said[3];
        int code;
    } bad[] = {
        {"grid=auto", {"2 errors", "give --machine NAME or FILE", "give --ranks N"}, 2},
        {"--top 3 --ranks 8 --machine m.yaml", {"machine two nodes has 4 ranks", "fewer than the 8"}, 2},
        {"grid=auto grid.x=2 grid.z=2 --ranks 4 --machine m.yaml",
         {"2 errors", "grid.x: beside grid=auto", "grid.z: beside grid=auto"},
         2},
        {"grid=auto grid.x=2 zero=9",
         {"4 errors", "grid.x: beside grid=auto", "give --machine NAME or FILE"},
         2},
        {"--top 1 --ranks 8 --machine slow.yaml",
         {"2 errors", "machine two nodes has 4 ranks", "lacks rates that times need: device.stream"},
         2},
        {"grid=aut --ranks 4", {"must be keys or auto, not \"aut\""}, 2},
        {"--explain", {"--explain: only a search is explained"}, 2},
        {"--top 51 --ranks 4 --machine m.yaml", {"--top"}, 2},
        {"--top 1 --ranks 4 --machine m.yaml grid.x=3", {"no grid of 4 ranks is legal"}, 2},
        {"--top 1 --ranks 4 --machine m.yaml offload.optimizer=file", {"offload.optimizer=file"}, 2},
        {"--top 1 --ranks 1 --machine small.yaml",
         {"no layout of 1 ranks fits", "device memory but machine two nodes allows only",
          "the smallest number of ranks that would do is 2"},
         3},
        {"--top 1 --ranks 4 --machine m.yaml runtime.device_memory=400000",
         {"device memory but runtime.device_memory allows only 390.6 KiB"},
         3},
        {"--top 1 --ranks 1 --machine m.yaml runtime.device_memory=1000",
         {"the weights alone, which need ", "no number of ranks up to the machine's 4 was found"},
         3},
        {"--top 1 --ranks 2 --machine m.yaml grid.pipe=2 'pipe.cut=[0]' runtime.device_memory=2000000",
         {"no layout of 2 ranks fits", "(x=1 y=1 z=1 pipe=2 data=1) takes 8"}, /* of the second stage */
         3},
        {"--top 1 --ranks 6 --machine wide.yaml grid.x=2 grid.data=1 grid.z=1 grid.pipe=1 "
         "runtime.device_memory=900000",
         {"the smallest number of ranks that would do is 8"}, /* 9 ranks have no such grid */
         3},
        {"--top 1 --ranks 2 --machine tiny.yaml",
         {"no number of ranks up to the machine's 4 was found that would do"},
         3},
        {"--top 1 --ranks 1 --machine many.yaml model.hidden=512 model.heads=32 model.layers=16 "
         "train.global_batch=512",
         {"the weights alone, which need 17 ranks", "the smallest number of ranks that would do is 76"},
         3}};
    ax_buf out = {0};
    write_machine("small.yaml", 2, "3000000");
    write_machine("tiny.yaml", 2, "1000000");
    write_machine("many.yaml", 2, "12000000");
    assert_int_equal(shell("sed -i 's/^nodes: 2/nodes: 2048/' many.yaml", &out), 0);
    assert_int_equal(shell("sed 's/stream: 1e11, *//' m.yaml >slow.yaml", &out), 0);
    assert_int_equal(shell("sed 's/_node: 2/_node: 16/' m.yaml >wide.yaml", &out), 0);
    /* Sanitizers leave out the last, which searches thousands of ranks. */
    for (size_t i = 0; i < AX_COUNT(bad) - (one_of(1, 2) > 1); i++) {
        char command[256];
        snprintf(command, sizeof command, AXONN " plan a.yaml %s 2>&1 >/dev/null", bad[i].words);
        const int code = shell(command, &out);
        bool said = true;
        for (int k = 0; k < 3 && bad[i].said[k]; k++)
            said = said && strstr(out.data, bad[i].said[k]);
        if (code != bad[i].code || !said)
            fail_msg("axonn plan a.yaml %s: exit code %d:\n%s", bad[i].words, code, out.data);
    }
    ax_buf_fini(&out);
}

/* The command has keys that were given as a map, and not those that the search did not choose. */
static void the_command_keeps_what_is_given(void **state)
{
    (void)state;
    ax_buf out = {0};
    assert_int_equal(shell(AXONN " plan a.yaml --ranks 2 --machine m.yaml --top 1 --tokens 1024 "
                                 "'train={global_batch: 16, micro_batch: 2}' optim.lr=0.001 "
                                 "'grid={pipe: 2, order: \"pipe,x,y,z,data\"}'",
                           &out),
                     0);
    assert_contains(out.data, "\n1024 tokens: ");
    assert_contains(out.data, "axonn train a.yaml --ranks 2 'train={global_batch: 16, micro_batch: 2}' "
                              "optim.lr=0.001 grid.order=pipe,x,y,z,data grid.data=");
    assert_null(strstr(out.data, "train.micro_batch="));
    ax_buf_fini(&out);
}

/* Pipelines have the parts of a cut that is given, also if one of these has no block. */
static void a_given_cut_is_kept(void **state)
{
    (void)state;
    static const struct {
        const char *words;
        bool chunked;
    } cases[] = {{"'pipe.cut=[1]'", false},
                 {"'pipe.cut=[0]'", false},
                 {"'pipe.cut=[4]'", false},
                 {"'pipe.cut=[0,1,3]' pipe.schedule=interleaved train.micro_batch=1", true}};
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        char command[256];
        size_t k;
        json_t *row;
        snprintf(command, sizeof command,
                 AXONN " plan a.yaml --json --ranks 2 --machine m.yaml --top 50 grid.pipe=2 %s",
                 cases[i].words);
        json_t *out = json_of(command), *best = json_object_get(out, "best");
        assert_true(json_array_size(best) > 1);
        json_array_foreach(best, k, row)
        {
            const char *words = json_string_value(json_object_get(row, "keys"));
            assert_int_equal(strstr(words, "pipe.chunks=") != NULL, cases[i].chunked);
            assert_true(!cases[i].chunked || strstr(words, "pipe.chunks=2"));
        }
        json_decref(out);
    }
}

/* The file's auto gives way to axes on the command line, and the file's axes to grid=auto there. */
static void the_command_line_decides(void **state)
{
    (void)state;
    ax_buf out = {0};
    write_text("auto.yaml", SMALL "grid: auto\n");
    write_text("axes.yaml", SMALL "grid: {x: 3}\n");
    assert_int_equal(shell(AXONN " plan auto.yaml grid.x=2 2>&1", &out), 0);
    assert_contains(out.data, "2 ranks: data=1 pipe=1 x=2 y=1 z=1\n");
    json_t *with = json_of(AXONN " plan auto.yaml grid.x=2 --json"),
           *without = json_of(AXONN " plan a.yaml grid.x=2 --json");
    assert_true(number(with, "mem_planned") == number(without, "mem_planned"));
    json_decref(with);
    json_decref(without);
    assert_int_equal(shell(AXONN " plan axes.yaml grid=auto --ranks 2 --machine m.yaml 2>&1", &out), 0);
    assert_contains(out.data, "axonn train axes.yaml --ranks 2 grid.data=");
    assert_int_equal(shell("rm auto.yaml axes.yaml", &out), 0);
    ax_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_plan_of_each_is_the_same), cmocka_unit_test(rivals_are_differences_of_rows),
        cmocka_unit_test(the_last_line_runs),           cmocka_unit_test(a_run_chooses_its_grid),
        cmocka_unit_test(bad_searches_are_refused),     cmocka_unit_test(a_given_cut_is_kept),
        cmocka_unit_test(the_command_line_decides),     cmocka_unit_test(the_command_keeps_what_is_given),
    };
    return cmocka_run_group_tests_name("cli.search", tests, prepare, clean);
}
