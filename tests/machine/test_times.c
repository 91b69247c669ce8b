/* machine: times of kernels, collectives and messages beside closed forms. */
#include "machine_test.h"

#include <math.h>

#include <stdlib.h>

/* Four nodes of four ranks, with numbers that are easy to tell apart. */
#define FOUR                                                                                                 \
    "nodes: 4\nranks_per_node: 4\n"                                                                          \
    "device: {memory: 1000000, launch: 1e-6, stream: 1e9, gemm: {f32: 1e10},\n"                              \
    "         kernels: [\"adamw 5e8 B/s\", \"attention 2e9 FLOP/s\"]}\n"                                     \
    "host: {copy: 3e9}\n"                                                                                    \
    "links:\n"                                                                                               \
    "  node: {rate: 1e9, latency: 1e-5}\n"                                                                   \
    "  network: {rate: 1e8, latency: 1e-3, at_once: 2, busy: 0.5}\n"

static double comm(const ax_machine *m, ax_coll coll, double bytes, int size, int inner, int in_node)
{
    double seconds;
    ax_machine_group g = {size, inner, in_node};
    OK(ax_machine_comm_seconds(m, coll, bytes, &g, &seconds));
    return seconds;
}

static void rings(void **state)
{
    (void)state;
    static const struct {
        ax_coll coll;
        int rounds;
    } cases[] = {{AX_ALL_REDUCE, 2}, {AX_ALL_GATHER, 1}, {AX_REDUCE_SCATTER, 1}, {AX_BROADCAST, 1}};
    ax_machine *m = open_text(FOUR);
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        double r = cases[i].rounds, bytes = 12e6;
        /* four ranks of a node */
        near(comm(m, cases[i].coll, bytes, 4, 1, 4), r * (3.0 / 4 * bytes / 1e9 + 3 * 1e-5));
        /* all ranks: one group per node has both transfers of the node */
        near(comm(m, cases[i].coll, bytes, 16, 1, 4), r * (15.0 / 16 * bytes / 2e8 + 15 * 1e-3));
        /* pairs in the node, then over nodes: two groups of a node share them */
        near(comm(m, cases[i].coll, bytes, 8, 2, 2), r * (7.0 / 8 * bytes / 1e8 + 7 * 1e-3));
        /* one rank of each node: four groups share them */
        near(comm(m, cases[i].coll, bytes, 4, 4, 1), r * (3.0 / 4 * bytes / 5e7 + 3 * 1e-3));
        near(comm(m, cases[i].coll, bytes, 1, 1, 1), 0);
    }
    near(comm(m, AX_BARRIER, 0, 4, 1, 4), 6e-5);
    ax_machine_close(&m);
    /* the links of the node are slower than the network */
    m = open_text("ranks_per_node: 4\nnodes: 4\ndevice: {memory: 8}\n"
                  "links: {node: {rate: 1e8}, network: {rate: 1e9, at_once: all}}\n");
    near(comm(m, AX_ALL_GATHER, 8e8, 16, 1, 4), 15.0 / 16 * 8);
    near(comm(m, AX_ALL_GATHER, 8e8, 4, 4, 1), 3.0 / 4 * 0.8);
    ax_machine_close(&m);
}

/* All ranks of a node share its links to the others, whatever their groups. */
static void all_to_all(void **state)
{
    (void)state;
    ax_machine *m = open_text(FOUR "bandwidths: [\"1 16 1e12\"]\n");
    double bytes = 12e6, rank = 2e8 / 4;
    near(comm(m, AX_ALL_TO_ALL, bytes, 4, 1, 4), 3.0 / 4 * bytes / 1e9 + 3 * 1e-5);
    near(comm(m, AX_ALL_TO_ALL, bytes, 16, 1, 4), 12.0 / 16 * bytes / rank + 1e-3);
    near(comm(m, AX_ALL_TO_ALL, bytes, 8, 2, 2), 6.0 / 8 * bytes / rank + 1e-3);
    near(comm(m, AX_ALL_TO_ALL, bytes, 4, 4, 1), 3.0 / 4 * bytes / rank + 1e-3);
    ax_machine_close(&m);
    m = open_text("ranks_per_node: 4\nnodes: 2\ndevice: {memory: 8}\npaths: {all_to_all: node}\n"
                  "links: {node: {rate: 1e8, latency: 1}, network: {rate: 1e12, at_once: all}}\n");
    near(comm(m, AX_ALL_TO_ALL, 8e8, 8, 1, 4), 3.0 / 8 * 8 + 1);
    ax_machine_close(&m);
}

static void paths(void **state)
{
    (void)state;
    ax_machine *m = open_text(FOUR "paths: {all_reduce: node, all_gather: staged, broadcast: flat}\n");
    double bytes = 12e6, node = 3.0 / 4 * bytes / 1e9 + 3e-5, network = 3.0 / 4 * bytes / 2e8 + 3e-3;
    near(comm(m, AX_ALL_REDUCE, bytes, 16, 1, 4), 2 * (node + network));
    near(comm(m, AX_ALL_REDUCE, bytes, 4, 1, 4), 2 * node);
    near(comm(m, AX_ALL_GATHER, bytes, 16, 1, 4), node + network + 2 * bytes / 3e9);
    near(comm(m, AX_BROADCAST, bytes, 4, 1, 4), node);
    /* the four ranks lie on two nodes, three of them on one */
    near(comm(m, AX_ALL_REDUCE, bytes, 4, 1, 3),
         2 * (2.0 / 3 * bytes / 1e9 + 2e-5 + bytes / 2 / (2e8 / (4.0 / 3)) + 1e-3));
    ax_machine_close(&m);
    m = open_text("ranks_per_node: 4\ndevice: {memory: 8}\nlinks: {node: {rate: 1e9, at_once: 2}}\n");
    near(comm(m, AX_ALL_GATHER, 1e9, 4, 1, 4), 3.0 / 4 * 2); /* four ranks send, two at a time */
    ax_machine_close(&m);
}

/* Paper 3: measured bandwidths within a node, and the two cases beyond it, on Perlmutter's description. */
static void bandwidths_of_paper_3(void **state)
{
    (void)state;
    static const struct {
        int size, inner, in_node;
        double rate; /* in GB/s */
    } cases[] = {{2, 1, 2, 76},  {4, 1, 4, 225}, {2, 2, 2, 76}, {8, 1, 4, 80},
                 {32, 1, 4, 80}, {4, 2, 2, 40},  {8, 4, 1, 20}, {8, 8, 1, 20}};
    ax_machine *m;
    OK(ax_machine_open("perlmutter", &m));
    for (size_t i = 0; i < AX_COUNT(cases); i++)
        near(comm(m, AX_ALL_REDUCE, 1e9, cases[i].size, cases[i].inner, cases[i].in_node),
             2 * (cases[i].size - 1.0) / cases[i].size / cases[i].rate);
    ax_machine_close(&m);
}

static void a_group_is_carried_by_its_widest_link(void **state)
{
    (void)state;
    static const struct {
        ax_machine_group group;
        ax_machine_carrier by;
    } cases[] = {{{4, 1, 4}, AX_MACHINE_NODE},
                 {{2, 4, 1}, AX_MACHINE_NETWORK},
                 {{4, 2, 2}, AX_MACHINE_NETWORK},
                 {{16, 1, 4}, AX_MACHINE_NETWORK},
                 {{1, 1, 1}, AX_MACHINE_NODE}};
    for (size_t i = 0; i < AX_COUNT(cases); i++)
        assert_int_equal(ax_machine_carries(&cases[i].group), cases[i].by);
}

static void measured_times_are_interpolated(void **state)
{
    (void)state;
    ax_machine *m =
        open_text(FOUR "collectives: [\"all_gather 1 4 4096 1e-5\", \"all_gather 1 4 1048576 3e-3\",\n"
                       "              \"all_gather 1 4 65536 1e-4\", \"message 4 2 1000 0.25\",\n"
                       "              \"barrier 1 4 0 7e-6\", \"reduce_scatter 1 4 100 3e-5\",\n"
                       "              \"reduce_scatter 1 4 1000 2e-5\", \"reduce_scatter 1 4 10000 4e-5\",\n"
                       "              \"broadcast 1 4 1000 2e-5\", \"broadcast 1 4 2000 2e-5\",\n"
                       "              \"all_to_all 1 4 1000 2e-5\", \"all_to_all 1 4 2000 2.01e-5\"]\n");
    double before = 0, seconds;
    near(comm(m, AX_ALL_GATHER, 4096, 4, 1, 4), 1e-5);
    near(comm(m, AX_ALL_GATHER, 65536, 4, 1, 4), 1e-4);
    near(comm(m, AX_ALL_GATHER, 1048576, 4, 1, 4), 3e-3);
    near(comm(m, AX_ALL_GATHER, 8, 4, 1, 4), 1e-5);
    near(comm(m, AX_ALL_GATHER, 16384, 4, 1, 4), sqrt(1e-5 * 1e-4)); /* half way between 2^12 and 2^16 */
    near(comm(m, AX_ALL_GATHER, 2 * 1048576 - 65536, 4, 1, 4), 3e-3 + 2.9e-3);
    near(comm(m, AX_BROADCAST, 6000, 4, 1, 4), 6e-5);
    near(comm(m, AX_ALL_TO_ALL, 6000, 4, 1, 4), 2.01e-5 * 2);
    near(comm(m, AX_BARRIER, 0, 4, 1, 4), 7e-6);
    near(comm(m, AX_REDUCE_SCATTER, 100, 4, 1, 4), 2e-5); /* what was faster at 1000 bytes */
    near(comm(m, AX_REDUCE_SCATTER, 1000, 4, 1, 4), 2e-5);
    near(comm(m, AX_REDUCE_SCATTER, 10000, 4, 1, 4), 4e-5);
    for (double bytes = 1; bytes < 1e9; bytes *= 1.3, before = seconds) {
        seconds = comm(m, AX_ALL_GATHER, bytes, 4, 1, 4);
        assert_true(seconds >= before);
    }
    /* other sizes and collectives have links */
    near(comm(m, AX_ALL_GATHER, 4096, 2, 1, 2), 0.5 * 4096 / 1e9 + 1e-5);
    near(comm(m, AX_ALL_REDUCE, 4096, 4, 1, 4), 2 * (0.75 * 4096 / 1e9 + 3e-5));
    OK(ax_machine_message_seconds(m, 2000, AX_MACHINE_NETWORK, false, &seconds));
    near(seconds, 0.5);
    OK(ax_machine_message_seconds(m, 2000, AX_MACHINE_NETWORK, true, &seconds));
    near(seconds, 1.0);
    OK(ax_machine_message_seconds(m, 2000, AX_MACHINE_NODE, true, &seconds));
    near(seconds, 1e-5 + 2e-6);
    ax_machine_close(&m);
}

static double kernel(const ax_machine *m, ax_kernel which, const void *args)
{
    double seconds;
    OK(ax_machine_kernel_seconds(m, which, args, &seconds));
    return seconds;
}

static void kernels_have_rates(void **state)
{
    (void)state;
    ax_machine *m = open_text(FOUR);
    static float x[8], y[8];
    ax_scale_args scale = {.n = 1000, .x = x, .dtype = AX_F32};
    ax_add_args add = {.n = 1000, .a = x, .b = x, .y = y, .dtype = AX_F32};
    ax_gemm_args gemm = {.m = 100,
                         .n = 200,
                         .k = 300,
                         .a = x,
                         .b = x,
                         .c = y,
                         .lda = 300,
                         .ldb = 200,
                         .ldc = 200,
                         .dtype = AX_F32,
                         .c_dtype = AX_F32},
                 thin = gemm, none = gemm;
    double flops, bytes, seconds;
    near(kernel(m, AX_K_scale, &scale), 1e-6 + 8000 / 1e9);
    ax_kernel_cost(AX_K_add, &add, &flops, &bytes);
    near(kernel(m, AX_K_add, &add), 1e-6 + bytes / 1e9);
    near(kernel(m, AX_K_gemm, &gemm), 1e-6 + 2.0 * 100 * 200 * 300 / 1e10); /* of operations */
    thin.m = 1;
    near(kernel(m, AX_K_gemm, &thin), 1e-6 + 4.0 * (300 + 200 * 300 + 200) / 1e9); /* of bytes */
    none.k = 0;
    near(kernel(m, AX_K_gemm, &none), 1e-6);
    OK(ax_machine_copy_seconds(m, 6e9, &seconds));
    near(seconds, 2);
    ax_attention_args attention = {.batch = 1,
                                   .q_len = 64,
                                   .kv_len = 64,
                                   .heads = 2,
                                   .kv_heads = 2,
                                   .head_dim = 16,
                                   .q_ld = 32,
                                   .kv_ld = 32,
                                   .q = x,
                                   .k = x,
                                   .v = x,
                                   .o = y,
                                   .dtype = AX_F32};
    ax_kernel_cost(AX_K_attention, &attention, &flops, &bytes);
    near(kernel(m, AX_K_attention, &attention), 1e-6 + flops / 2e9);
    near(ax_machine_gemm_rate(m, AX_F32), 1e10);
    assert_true(ax_machine_gemm_rate(m, AX_BF16) == 0);
    ax_machine_close(&m);
    m = open_text("ranks_per_node: 1\ndevice:\n  memory: 8\n  stream: 1e20\n  gemm:\n    points:\n"
                  "    - NN 64x64x64 f32 1e9\n    - NN 512x512x512 f32 1e9\n");
    near(ax_machine_gemm_rate(m, AX_F32), 1e9);
    near(kernel(m, AX_K_attention, &attention), flops / 1e9);
    ax_machine_close(&m);
}

/* ---- GEMMs ----------------------------------------------------------------------------------------- */

static ax_gemm_args shape(int64_t m, int64_t n, int64_t k)
{
    return (ax_gemm_args){
        .m = m, .n = n, .k = k, .lda = k, .ldb = n, .ldc = n, .dtype = AX_BF16, .c_dtype = AX_BF16};
}

/* Seconds of a device on which a GEMM takes a launch, its operations, and its operands: what the fit can say.
 */
static double truth(const ax_gemm_args *g)
{
    double m = (double)g->m, n = (double)g->n, k = (double)g->k;
    return 1e-5 + 2 * m * n * k / 1e12 + (m * k + k * n) / 1e10 + m * n / 2e10;
}

static void points_are_hit_and_times_rise(void **state)
{
    (void)state;
    static const int64_t sizes[] = {16, 96, 512, 3072};
    ax_buf text = {0};
    OK(ax_buf_printf(&text, "ranks_per_node: 1\ndevice:\n  memory: 8\n  gemm:\n    points:\n"));
    for (size_t i = 0; i < 64; i++) {
        if (i % 3 == 1) /* not all of them */
            continue;
        ax_gemm_args g = shape(sizes[i % 4], sizes[i / 4 % 4], sizes[i / 16]);
        assert_int_equal(ax_buf_printf(&text, "    - NN %lldx%lldx%lld bf16 %.17g\n", (long long)g.m,
                                       (long long)g.n, (long long)g.k,
                                       2.0 * (double)(g.m * g.n * g.k) / truth(&g)),
                         AX_OK);
    }
    ax_machine *m = open_text(text.data);
    ax_buf_fini(&text);
    for (size_t i = 0; i < 64; i++) {
        ax_gemm_args g = shape(sizes[i % 4], sizes[i / 4 % 4], sizes[i / 16]);
        near(kernel(m, AX_K_gemm, &g), truth(&g)); /* measured, or from the fit, which is exact here */
    }
    for (int along = 0; along < 3; along++) {
        double before = 0;
        for (int64_t x = 1; x < 20000; x += 1 + x / 7) {
            ax_gemm_args g = shape(along == 0 ? x : 100, along == 1 ? x : 700, along == 2 ? x : 300);
            double seconds = kernel(m, AX_K_gemm, &g);
            assert_true(seconds >= before);
            assert_true(fabs(seconds / truth(&g) - 1) < 1e-6);
            before = seconds;
        }
    }
    ax_machine_close(&m);
}

/* Points that no fit meets are hit, and times rise between them. */
static void uneven_points(void **state)
{
    (void)state;
    ax_machine *m = open_text("ranks_per_node: 1\ndevice:\n  memory: 8\n  gemm:\n    points:\n"
                              "    - NN 10x10x10 bf16 2000\n"     /* 1 s */
                              "    - NN 100x10x10 bf16 4000\n"    /* 5 s */
                              "    - NN 1000x10x10 bf16 25000\n"  /* 8 s */
                              "    - NN 10x1000x10 bf16 3200\n"); /* 62.5 s */
    static const struct {
        int64_t m, n;
        double seconds;
    } at[] = {{10, 10, 1}, {100, 10, 5}, {1000, 10, 8}, {10, 1000, 62.5}};
    double before = 0;
    for (size_t i = 0; i < AX_COUNT(at); i++) {
        ax_gemm_args g = shape(at[i].m, at[i].n, 10);
        near(kernel(m, AX_K_gemm, &g), at[i].seconds);
    }
    for (int64_t x = 1; x < 5000; x++) {
        ax_gemm_args g = shape(x, 10, 10), one = shape(10, x, 10);
        double seconds = kernel(m, AX_K_gemm, &g);
        assert_true(seconds >= before);
        before = seconds;
        assert_true(kernel(m, AX_K_gemm, &one) > 0);
    }
    ax_machine_close(&m);
}

/* A GEMM has the points of its own kind, else those of its layout, else those of its dtype. */
static void kinds_are_told_apart(void **state)
{
    (void)state;
    ax_machine *m =
        open_text("ranks_per_node: 1\ndevice:\n  memory: 8\n  gemm:\n    bf16: 1\n    f32: 1e6\n    points:\n"
                  "    - NN 10x10x10 bf16 2000\n"            /* 1 s */
                  "    - NN 10x10x10 bf16 +bias gelu 1000\n" /* 2 s */
                  "    - TN 10x10x10 bf16 f32 += 500\n"      /* 4 s */
                  "    - NN 10x10x10 bf16 2 groups 250\n"    /* 8 s */
                  "  stream: 1e6\n");
    ax_gemm_args plain = shape(10, 10, 10), gelu = plain, add = plain, twice = shape(20, 10, 10);
    ax_gemm_grouped_args groups = {
        .m = 10, .n = 10, .k = 10, .groups = 2, .each = 5, .dtype = AX_BF16, .c_dtype = AX_BF16};
    near(kernel(m, AX_K_gemm, &plain), 1);
    near(kernel(m, AX_K_gemm, &twice), 2);
    gelu.bias = m;
    gelu.epilogue = AX_EPILOGUE_ACTIVATION;
    near(kernel(m, AX_K_gemm, &gelu), 2);
    gelu.m = 20;
    near(kernel(m, AX_K_gemm, &gelu), 4);
    add.trans_a = true;
    add.c_dtype = AX_F32;
    add.accumulate = true;
    near(kernel(m, AX_K_gemm, &add), 4);
    add.accumulate = false; /* no point of this kind: that of the layout */
    near(kernel(m, AX_K_gemm, &add), 4);
    near(kernel(m, AX_K_gemm_grouped, &groups), 8);
    plain.dtype = plain.c_dtype = AX_F32; /* no point of this dtype */
    near(kernel(m, AX_K_gemm, &plain), 2000 / 1e6);
    plain.dtype = plain.c_dtype = AX_F64;
    double seconds;
    assert_int_equal(ax_machine_kernel_seconds(m, AX_K_gemm, &plain, &seconds), AX_ERR_USAGE);
    ax_machine_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rings),
                                       cmocka_unit_test(all_to_all),
                                       cmocka_unit_test(paths),
                                       cmocka_unit_test(bandwidths_of_paper_3),
                                       cmocka_unit_test(a_group_is_carried_by_its_widest_link),
                                       cmocka_unit_test(measured_times_are_interpolated),
                                       cmocka_unit_test(kernels_have_rates),
                                       cmocka_unit_test(points_are_hit_and_times_rise),
                                       cmocka_unit_test(uneven_points),
                                       cmocka_unit_test(kinds_are_told_apart)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
