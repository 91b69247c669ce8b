/* Descriptions of machines. One that is accepted is written, must read back with the same numbers, and gives
 * times that are numbers. */
#include "axonn/machine.h"
#include "fuzz/fuzz.h"

#include <math.h>
#include <string.h>

void fuzz_make_seeds(void)
{
    fuzz_seed_texts((const char *[]){
        "name: x\nnodes: 4\nranks_per_node: 4\ncores: 8\n"
        "device:\n  memory: 1000000\n  launch: 1e-6\n  stream: 1e9\n  host_access: true\n"
        "  gemm: {f32: 1e10, bf16: 2e10, points: [NT 1024x2304x768 bf16 +bias gelu 1.2e+11, NN 8x8x8 bf16 "
        "1e9,\n"
        "    \"TN 8x16x24 bf16 f32 += +sums 8 groups 1e9\", NN 16x8x8 bf16 1e9, NN 8x16x8 bf16 1e9]}\n"
        "  kernels: [adamw 5e8 B/s, attention 2e9 FLOP/s]\n",
        NULL});
    fuzz_seed_texts(
        (const char *[]){"nodes: 2\nranks_per_node: 4\ndevice: {memory: 8}\nhost: {copy: 3e9, memory: 7}\n"
                         "links:\n  node: {rate: 1e9, latency: 1e-5, at_once: 2}\n  network: {rate: 1e8, "
                         "at_once: all, busy: 0.5}\n"
                         "paths: {all_reduce: node, all_gather: staged, broadcast: flat}\n"
                         "bandwidths: [1 2 1e9, 1 4 2e9, 2 2 3e9]\n"
                         "collectives: [all_gather 1 4 4096 1e-5, all_gather 1 4 64 3e-3, message 4 2 1000 "
                         "0.25, barrier 1 4 0 7e-6]\n",
                         NULL});
    fuzz_seed_texts((const char *[]){"ranks_per_nodes: 0\ndevice: {gemm: {points: [NX 1x1 f32 0]}}\n", NULL});
}

static void check_times(const ax_machine *m)
{
    const ax_machine_group shapes[] = {{1, 1, 1}, {2, 1, 2}, {2, 2, 1}, {6, 1, 2}, {12, 1, 4}};
    double seconds;
    for (int64_t i = 0; i < ax_machine_gemms(m); i++) {
        ax_gemm_args gemm;
        int64_t groups;
        ax_machine_gemm_at(m, i, &gemm, &groups, &seconds);
        gemm.m += 3;
        gemm.trans_a = !gemm.trans_a;
        FUZZ_HOLDS(ax_machine_kernel_seconds(m, AX_K_gemm, &gemm, &seconds) == AX_OK && seconds >= 0);
    }
    for (size_t i = 0; i < AX_COUNT(shapes); i++)
        for (int coll = AX_ALL_REDUCE; coll <= AX_BARRIER; coll++)
            if (fuzz_read(ax_machine_comm_seconds(m, (ax_coll)coll, 1000, &shapes[i], &seconds)))
                FUZZ_HOLDS(seconds >= 0);
    if (fuzz_read(ax_machine_message_seconds(m, 5, AX_MACHINE_NETWORK, true, &seconds)))
        FUZZ_HOLDS(seconds >= 0);
    (void)fuzz_read(ax_machine_check_times(m, AX_BF16, 5));
}

void fuzz_one(const fuzz_part *part, int n)
{
    ax_machine *m, *again;
    (void)n;
    if (!fuzz_read(ax_machine_parse("m.yaml", part->data, part->size, &m)))
        return;
    check_times(m);
    const char *path = fuzz_file("saved.yaml", "", 0);
    FUZZ_HOLDS(ax_machine_save(m, &(ax_strings){0}, path) == AX_OK);
    if (fuzz_read(ax_machine_open(path, &again))) { /* not if a text is not UTF-8 */
        FUZZ_HOLDS(ax_machine_gemms(again) == ax_machine_gemms(m));
        FUZZ_HOLDS(again->device.memory == m->device.memory && again->link[1].at_once == m->link[1].at_once);
        FUZZ_HOLDS(again->collectives.count == m->collectives.count);
        FUZZ_HOLDS(fabs(again->device.stream - m->device.stream) <= 1e-5 * m->device.stream);
    }
    ax_machine_close(&again);
    ax_machine_close(&m);
}
