/* machine: descriptions are read, all that is wrong with one is said at once, and what is saved reads back.
 */
#include "machine_test.h"

#include "axonn/runtime.h"

#include <math.h>

#include <stdlib.h>
#include <unistd.h>

static void shipped_ones_are_right(void **state)
{
    (void)state;
    static const char *const names[] = {"alps", "frontier", "h100x8", "h200x8", "perlmutter", "summit"};
    int n = 0;
    for (const char *name; (name = ax_machine_shipped(n)); n++) {
        ax_machine *m;
        assert_string_equal(name, names[n]);
        OK(ax_machine_open(name, &m));
        ax_dtype dtype = strcmp(name, "summit") ? AX_BF16 : AX_F16;
        OK(ax_machine_check_times(m, dtype, ax_machine_ranks(m)));
        assert_non_null(m->device.name);
        ax_machine_close(&m);
        assert_null(m);
    }
    assert_int_equal(n, AX_COUNT(names));
    for (int i = 0; i < n; i++) { /* the words of runtime.machine */
        char word[64];
        assert_string_equal(ax_option_word(&ax_runtime_options[AX_RUNTIME_MACHINE], i + 1, word), names[i]);
    }
    assert_null(ax_machine_shipped(-1));
}

static void values_are_read(void **state)
{
    (void)state;
    ax_machine *m;
    OK(ax_machine_open("perlmutter", &m));
    assert_string_equal(m->name, "Perlmutter, A100 40GB");
    assert_int_equal(ax_machine_ranks(m), 1536 * 4);
    assert_int_equal(m->device.memory, 40LL << 30);
    assert_true(m->device.gemm.rate[AX_BF16] == 2.8e14 && m->device.gemm.rate[AX_F64] == 1.95e13);
    assert_int_equal(m->link[AX_MACHINE_NODE].at_once, -1);
    assert_int_equal(m->link[AX_MACHINE_NETWORK].at_once, 4);
    assert_int_equal(m->path[AX_BROADCAST], AX_MACHINE_NCCL);
    assert_int_equal(m->bandwidths.count, 3);
    OK(ax_machine_check_ranks(m, 6144));
    assert_int_equal(ax_machine_check_ranks(m, 6145), AX_ERR_USAGE);
    assert_string_equal(ax_error_message(), "machine Perlmutter, A100 40GB has 6144 ranks (nodes: 1536, "
                                            "ranks of a node: 4), fewer than the 6145 of the "
                                            "grid: use a smaller grid or another machine");
    ax_machine_close(&m);
}

/* The messages, in the file tests/machine/errors.txt. */
static void all_errors_at_once(void **state)
{
    (void)state;
    static const char text[] =
        "nodes: 2\n"
        "ranks_per_nodes: 4\n"
        "ranks_per_node: 4\n"
        "device:\n"
        "  memory: 0\n"
        "  strem: 1e9\n"
        "  stream: 0\n"
        "  gemm:\n"
        "    bf16: -1\n"
        "    fp32: 1e12\n"
        "    points:\n"
        "      - \"NT 8x8x8 bf16 1e9\"\n"
        "      - \"NT 8x8x8 bf16 2e9\"\n"
        "      - \"NX 8x8x8 bf16 2e9\"\n"
        "      - \"NT 8x8 bf16 2e9\"\n"
        "      - \"NT 8x8x8 fp16 2e9\"\n"
        "      - \"NT 8x8x8 bf16 +bais 2e9\"\n"
        "      - \"NT 8x8x8 bf16 +bias 0\"\n"
        "      - \"NT\"\n"
        "  kernels: [\"adam 1e9 B/s\", \"adamw 1e9 GB/s\", \"sgd 0 B/s\", \"scale 1 B/s\", \"scale 2 "
        "B/s\"]\n"
        "links:\n"
        "  node: {rate: fast, at_once: 5}\n"
        "  netwrk: {rate: 1e9}\n"
        "paths: {all_reduce: tree, all_gater: nccl}\n"
        "bandwidths: [\"1 2 1e9\", \"1 2 2e9\", \"1 3 1e9\", \"1 16 1e9\", \"2 1 1e9\", \"1 2\"]\n"
        "collectives: [\"all_reduce 1 2 8 1e-6\", \"all_reduce 1 2 8 2e-6\", \"al_gather 1 2 8 1\", "
        "\"broadcast 1 2 -8 1\", \"barrier 1 2 0 0\", \"message 4 2 8 inf\"]\n";
    ax_machine *m;
    size_t size;
    char *want;
    assert_int_equal(ax_machine_parse("m.yaml", text, strlen(text), &m), AX_ERR_USAGE);
    assert_null(m);
    OK(ax_file_read(AXONN_SOURCE_DIR "/tests/machine/errors.txt", &want, &size));
    want[size - 1] = 0; /* a newline */
    assert_string_equal(ax_error_message(), want);
    free(want);
}

static void refused(const char *text, const char *why)
{
    ax_machine *m;
    FAILS(AX_ERR_USAGE, why, ax_machine_parse("m.yaml", text, strlen(text), &m));
}

static void impossible_machines(void **state)
{
    (void)state;
    refused("nodes: 1048576\nranks_per_node: 2\ndevice: {memory: 1}\n", "more than the 1048576 ranks");
    refused("ranks_per_node: 2\ndevice: {memory: 8, scratch: 8}\n",
            "must be less than device.memory, 8, not 8");
    refused("nodes: 1\n", "ranks_per_node: required, but not given");
    refused("[1, 2]\n", "must be a map of keys (name, nodes, ranks_per_node");
    refused("name: x\n", "device.memory: required");
    refused("ranks_per_node: 1\ndevice: {memory: 8, gemm: {points: \"NN 1x1x1 bf16 1e9 groups 7\"}}\n",
            "the number of groups must be an integer of at least 1, not \"1e9\"");
}

static void names_and_files(void **state)
{
    (void)state;
    ax_machine *m;
    assert_int_equal(ax_machine_open("perlmuter", &m), AX_ERR_USAGE);
    assert_string_equal(
        ax_error_message(),
        "there is no description of a machine \"perlmuter\": neither a file of this name nor one of "
        "those that come with axonn (alps, frontier, h100x8, h200x8, perlmutter, summit); the nearest is "
        "perlmutter");
    assert_null(m);
    assert_int_equal(ax_machine_open("/", &m), AX_ERR_DATA);
}

/* What is missing is named, all of it. */
static void missing_rates(void **state)
{
    (void)state;
    ax_machine *m = open_text("ranks_per_node: 2\nnodes: 2\ndevice: {memory: 1000}\n");
    double seconds;
    ax_machine_group pair = {2, 1, 2}, far = {2, 2, 1};
    ax_scale_args scale = {.n = 8, .x = &scale, .dtype = AX_F32};
    ax_gemm_args gemm = {.m = 1, .n = 1, .k = 1, .dtype = AX_BF16, .c_dtype = AX_BF16};
    assert_int_equal(ax_machine_check_times(m, AX_BF16, 4), AX_ERR_USAGE);
    assert_string_equal(
        ax_error_message(),
        "machine m.yaml lacks rates that times need: device.gemm.bf16, device.stream, host.copy, "
        "links.node.rate, links.network.rate; measure them (axonn bench gemm|comm --save FILE) or add "
        "them to the description");
    FAILS(AX_ERR_USAGE, "has no device.stream", ax_machine_kernel_seconds(m, AX_K_scale, &scale, &seconds));
    FAILS(AX_ERR_USAGE, "has no device.gemm.bf16", ax_machine_kernel_seconds(m, AX_K_gemm, &gemm, &seconds));
    FAILS(AX_ERR_USAGE, "has no host.copy", ax_machine_copy_seconds(m, 1, &seconds));
    FAILS(AX_ERR_USAGE, "has no links.node.rate",
          ax_machine_comm_seconds(m, AX_ALL_REDUCE, 8, &pair, &seconds));
    FAILS(AX_ERR_USAGE, "has no links.network.rate",
          ax_machine_comm_seconds(m, AX_ALL_REDUCE, 8, &far, &seconds));
    assert_int_equal(ax_machine_message_seconds(m, 8, AX_MACHINE_NETWORK, false, &seconds), AX_ERR_USAGE);
    ax_machine_close(&m);
    m = open_text("ranks_per_node: 2\ndevice: {memory: 8, host_access: true, stream: 1, gemm: {bf16: 1}}\n"
                  "links: {node: {rate: 1}}\npaths: {broadcast: staged}\n");
    OK(ax_machine_check_times(m, AX_BF16, 1));
    FAILS(AX_ERR_USAGE, "host.copy", ax_machine_check_times(m, AX_BF16, 2));
    ax_machine_close(&m);
}

/* Measured values are saved beside those that the file had, and read back. */
static void saved_values_read_back(void **state)
{
    (void)state;
    char path[] = "/tmp/axonn-machine-XXXXXX";
    int fd = mkstemp(path);
    ax_machine *m;
    ax_strings missing = {0};
    ax_gemm_args g = {.m = 16,
                      .n = 32,
                      .k = 64,
                      .dtype = AX_BF16,
                      .c_dtype = AX_F32,
                      .trans_a = true,
                      .accumulate = true,
                      .col_sums = &fd};
    ax_kernel_total total = {.calls = 10, .seconds = 2, .flops = 7, .bytes = 3e9};
    double seconds;
    assert_true(fd >= 0 && !close(fd));
    OK(ax_machine_create(&m));
    m->ranks_per_node = 2;
    m->device.memory = 1 << 20;
    m->device.launch = 0.1;
    m->device.host_access = true;
    m->path[AX_ALL_TO_ALL] = AX_MACHINE_STAGED;
    OK(ax_strdup("a \"quoted\" name \\", &m->name));
    for (int i = 1; i <= 2; i++) { /* the second replaces the first */
        OK(ax_machine_put_gemm(m, &g, 0, 1.5 * i));
        OK(ax_machine_put_time(m, AX_ALL_GATHER, 1, 2, 4096, 1e-5 * i));
    }
    g.col_sums = NULL; /* another GEMM, whose name is the beginning of the first one's */
    OK(ax_machine_put_gemm(m, &g, 0, 1));
    g.col_sums = &fd;
    OK(ax_machine_put_kernel(m, AX_K_adamw, &total));
    OK(ax_machine_put_kernel(m, AX_K_adamw, &total));
    OK(ax_machine_put_kernel(m, AX_K_attention, &total));
    OK(ax_strings_add(&missing, "links.network: all ranks are on one node"));
    OK(ax_machine_save(m, &missing, path));
    ax_machine_close(&m);
    OK(ax_machine_open(path, &m));
    assert_string_equal(m->name, "a  quoted  name  ");
    assert_int_equal(m->path[AX_ALL_TO_ALL], AX_MACHINE_STAGED);
    assert_true(m->device.host_access && m->nodes == 1);
    assert_int_equal(m->device.gemm.points.count, 2);
    assert_int_equal(m->device.kernels.count, 2);
    assert_string_equal(m->device.gemm.points.items[0], "TN 16x32x64 bf16 f32 += +sums 21845.3");
    assert_string_equal(m->device.kernels.items[0], "adamw 3e+09 B/s");
    assert_string_equal(m->device.kernels.items[1], "attention 7 FLOP/s");
    assert_string_equal(m->collectives.items[0], "all_gather 1 2 4096 2e-05");
    OK(ax_machine_kernel_seconds(m, AX_K_gemm, &g, &seconds));
    assert_true(fabs(seconds / 3 - 1) < 1e-5);
    ax_machine_close(&m);
    char *text;
    size_t size;
    OK(ax_file_read(path, &text, &size));
    assert_non_null(strstr(text, "# missing: links.network: all ranks are on one node\n"));
    free(text);
    ax_strings_fini(&missing);
    assert_int_equal(unlink(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shipped_ones_are_right), cmocka_unit_test(values_are_read),
        cmocka_unit_test(all_errors_at_once),     cmocka_unit_test(impossible_machines),
        cmocka_unit_test(names_and_files),        cmocka_unit_test(missing_rates),
        cmocka_unit_test(saved_values_read_back)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
