/* How long kernels, copies, collectives and messages take on a machine. */
#include "private.h"

#include <math.h>
#include <string.h>

static ax_status fail_missing(const ax_machine *m, const char *key)
{
    return ax_fail(
        AX_ERR_USAGE,
        "machine %s has no %s, which times need: measure it (axonn bench gemm|comm --save FILE) or add it "
        "to the description",
        m->name, key);
}

/* ---- kernels --------------------------------------------------------------------------------------- */

double ax_machine_gemm_rate(const ax_machine *m, ax_dtype dtype)
{
    const double rate = m->device.gemm.rate[dtype], per_flop = m->tables ? m->tables->fit[dtype].c[0] : 0;
    return rate > 0 ? rate : per_flop > 0 ? 1 / per_flop : 0;
}

/* Sets *seconds to the larger of operations/rate and bytes/stream. The operations count only if the machine
 * has a rate of the dtype or `needed` is true. */
static ax_status roofline(const ax_machine *m, ax_dtype dtype, double flops, double bytes, bool needed,
                          double *seconds)
{
    const double rate = ax_machine_gemm_rate(m, dtype);
    char key[32] = "device.gemm.";
    ax_text_add(key, sizeof key, "%s", ax_dtype_name(dtype));
    if (needed && rate <= 0)
        return fail_missing(m, key);
    if (m->device.stream <= 0)
        return fail_missing(m, "device.stream");
    *seconds = m->device.launch + fmax(rate > 0 ? flops / rate : 0, bytes / m->device.stream);
    return AX_OK;
}

/* Returns the arguments that a grouped GEMM shares with a gemm. */
static ax_gemm_args of_groups(const ax_gemm_grouped_args *g)
{
    return (ax_gemm_args){.m = g->m,
                          .n = g->n,
                          .k = g->k,
                          .dtype = g->dtype,
                          .c_dtype = g->c_dtype,
                          .trans_a = g->trans_a,
                          .trans_b = g->trans_b,
                          .accumulate = g->accumulate};
}

static ax_status gemm_seconds(const ax_machine *m, ax_kernel kernel, const void *args, double flops,
                              double bytes, double *seconds)
{
    const ax_gemm_args g = kernel == AX_K_gemm ? *(const ax_gemm_args *)args : of_groups(args);
    const int64_t groups = kernel == AX_K_gemm ? 0 : ((const ax_gemm_grouped_args *)args)->groups;
    if (!g.m || !g.n || !g.k)
        *seconds = m->device.launch;
    else if (!machine_gemm_seconds(m->tables, &g, groups, seconds))
        return roofline(m, g.dtype, flops, bytes, true, seconds);
    return AX_OK;
}

/* Notes the dtype of the first operand of floats. */
static void note_dtype(void *user, const ax_operand *operand)
{
    ax_dtype *dtype = user;
    if (*dtype == AX_DTYPE_COUNT && operand->dtype <= AX_F16)
        *dtype = operand->dtype;
}

ax_status ax_machine_kernel_seconds(const ax_machine *m, ax_kernel kernel, const void *args, double *seconds)
{
    double flops, bytes;
    ax_dtype dtype = AX_DTYPE_COUNT;
    const machine_rate *mine = &m->tables->kernel[kernel];
    ax_kernel_cost(kernel, args, &flops, &bytes);
    if (mine->rate > 0) {
        *seconds = m->device.launch + (mine->flops ? flops : bytes) / mine->rate;
        return AX_OK;
    }
    if (kernel == AX_K_gemm || kernel == AX_K_gemm_grouped)
        return gemm_seconds(m, kernel, args, flops, bytes, seconds);
    ax_kernel_operands(kernel, args, note_dtype, &dtype);
    return roofline(m, dtype == AX_DTYPE_COUNT ? AX_F32 : dtype, flops, bytes, false, seconds);
}

ax_status ax_machine_copy_seconds(const ax_machine *m, double bytes, double *seconds)
{
    if (m->host.copy <= 0)
        return fail_missing(m, "host.copy");
    *seconds = bytes / m->host.copy;
    return AX_OK;
}

/* ---- groups of ranks ------------------------------------------------------------------------------- */

ax_machine_carrier ax_machine_carries(const ax_machine_group *group)
{
    return group->in_node < group->size ? AX_MACHINE_NETWORK : AX_MACHINE_NODE;
}

/* ---- collectives ----------------------------------------------------------------------------------- */

/* What a ring of p ranks sends and waits for: rounds·(p-1)/p of the bytes, in rounds·(p-1) steps. */
static const int rounds[] = {[AX_ALL_REDUCE] = 2, [AX_ALL_GATHER] = 1, [AX_REDUCE_SCATTER] = 1,
                             [AX_ALL_TO_ALL] = 1, [AX_BROADCAST] = 1,  [AX_BARRIER] = 2};

static double ring_seconds(ax_coll coll, int ranks, double bytes, double rate, double latency)
{
    const double steps = rounds[coll] * (ranks - 1);
    return steps / ranks * (bytes > 0 ? bytes / rate : 0) + steps * latency;
}

/* Interpolates between measured times of a collective, distance and size: linearly in the logarithms of bytes
 * and seconds; below the first the time of the first, beyond the last at the rate of the last two, at
 * most twice the last one's own, or, if the two are equal, at its own. A single time is that of a rate.
 * Returns false if there are none. */
static bool measured_seconds(const ax_machine_tables *t, int coll, int64_t inner, int64_t size, double bytes,
                             double *seconds)
{
    const machine_time *first = NULL, *last;
    size_t n = 0;
    for (size_t i = 0; i < t->times; i++)
        if (t->time[i].coll == coll && t->time[i].inner == inner && t->time[i].size == size) {
            first = first ? first : &t->time[i];
            n++;
        }
    if (!n)
        return false;
    last = first + n - 1;
    while (last > first && last->bytes > bytes) /* now last->bytes <= bytes, or last is the first */
        last--;
    const machine_time *next = last < first + n - 1 ? last + 1 : last;
    if (n == 1)
        *seconds = first->bytes > 0 ? bytes / first->bytes * first->seconds : first->seconds;
    else if (bytes <= first->bytes)
        *seconds = first->seconds;
    else if (next == last) {
        const double mean = last->bytes / last->seconds, more = last->seconds - last[-1].seconds,
                     rate = more > 0 ? fmin((last->bytes - last[-1].bytes) / more, 2 * mean) : mean;
        *seconds = last->seconds + (bytes - last->bytes) / rate;
    } else {
        double part =
            last->bytes > 0 ? log(bytes / last->bytes) / log(next->bytes / last->bytes) : bytes / next->bytes;
        *seconds = last->seconds * pow(next->seconds / last->seconds, part);
    }
    return true;
}

static double bandwidth_of(const ax_machine *m, const ax_machine_group *g)
{
    for (size_t i = 0; i < m->tables->bandwidths; i++)
        if (m->tables->bandwidth[i].inner == g->inner && m->tables->bandwidth[i].size == g->size)
            return m->tables->bandwidth[i].rate;
    return 0;
}

/* Bytes per second that a rank has while all ranks of a node send: `ways` transfers of the node at a time. */
static double shared_rate(const ax_machine *m, ax_machine_carrier carrier, double ways)
{
    const ax_machine_link *link = &m->link[carrier];
    const double at_once = link->at_once < 0 ? (double)m->ranks_per_node : (double)link->at_once;
    return carrier == AX_MACHINE_NETWORK ? link->rate * at_once / ways : link->rate * fmin(1, at_once / ways);
}

static const char *const rate_key[] = {
    [AX_MACHINE_NODE] = "links.node.rate", [AX_MACHINE_NETWORK] = "links.network.rate"};

static ax_status find_rate(const ax_machine *m, ax_machine_carrier carrier, double ways, double *rate)
{
    *rate = shared_rate(m, carrier, ways);
    if (*rate <= 0)
        return fail_missing(m, rate_key[carrier]);
    return AX_OK;
}

/* The ring of a group that goes over `carrier`: all ranks of a node send within it; over the network each of
 * the groups to which the ranks of the node belong sends. */
static ax_status find_ring_rate(const ax_machine *m, ax_machine_carrier carrier, const ax_machine_group *g,
                                double *rate)
{
    const double ranks = (double)m->ranks_per_node;
    return find_rate(m, carrier, carrier == AX_MACHINE_NODE ? ranks : fmax(1, ranks / g->in_node), rate);
}

/* One ring of all ranks, which is as slow as the slower carrier of those that it goes over. */
static ax_status one_ring(const ax_machine *m, ax_coll coll, double bytes, const ax_machine_group *g,
                          double *seconds)
{
    const ax_machine_carrier carrier = ax_machine_carries(g);
    double rate = bandwidth_of(m, g), within;
    if (rate <= 0) {
        AX_TRY(find_ring_rate(m, carrier, g, &rate));
        if (g->in_node > 1) {
            AX_TRY(find_ring_rate(m, AX_MACHINE_NODE, g, &within));
            rate = fmin(rate, within);
        }
    }
    *seconds = ring_seconds(coll, g->size, bytes, rate, m->link[carrier].latency);
    return AX_OK;
}

/* Over memory that the ranks of a node share: within the node, and of the nodes with one another. */
static ax_status two_rings(const ax_machine *m, ax_coll coll, double bytes, const ax_machine_group *g,
                           double *seconds)
{
    const int ranks[] = {
        [AX_MACHINE_NODE] = g->in_node, [AX_MACHINE_NETWORK] = (int)ax_ceil_div(g->size, g->in_node)};
    *seconds = 0;
    for (int c = 0; c < AX_MACHINE_CARRIERS; c++) {
        double rate;
        if (ranks[c] <= 1)
            continue;
        AX_TRY(find_ring_rate(m, (ax_machine_carrier)c, g, &rate));
        *seconds += ring_seconds(coll, ranks[c], bytes, rate, m->link[c].latency);
    }
    return AX_OK;
}

/* An all-to-all that leaves the node: each rank sends to all others at the same time, and all ranks of a node
 * share its links. */
static ax_status to_all(const ax_machine *m, double bytes, const ax_machine_group *g, double *seconds)
{
    const int others[] = {[AX_MACHINE_NODE] = g->in_node - 1, [AX_MACHINE_NETWORK] = g->size - g->in_node};
    *seconds = 0;
    for (int c = 0; c < AX_MACHINE_CARRIERS; c++) {
        double rate;
        if (!others[c])
            continue;
        AX_TRY(find_rate(m, (ax_machine_carrier)c, (double)m->ranks_per_node, &rate));
        *seconds = fmax(*seconds, (double)others[c] / g->size * bytes / rate + m->link[c].latency);
    }
    return AX_OK;
}

ax_status ax_machine_comm_seconds(const ax_machine *m, ax_coll coll, double bytes, const ax_machine_group *g,
                                  double *seconds)
{
    const int path = coll == AX_BARRIER ? m->path[AX_ALL_REDUCE] : m->path[coll];
    double copies = 0;
    *seconds = 0;
    if (g->size <= 1 || measured_seconds(m->tables, (int)coll, g->inner, g->size, bytes, seconds))
        return AX_OK;
    if (path == AX_MACHINE_STAGED && coll != AX_BARRIER)
        AX_TRY(ax_machine_copy_seconds(m, 2 * bytes, &copies));
    if (coll == AX_ALL_TO_ALL && ax_machine_carries(g) == AX_MACHINE_NETWORK)
        AX_TRY(to_all(m, bytes, g, seconds));
    else if (bandwidth_of(m, g) <= 0 && (path == AX_MACHINE_HOST || path == AX_MACHINE_STAGED))
        AX_TRY(two_rings(m, coll, bytes, g, seconds));
    else
        AX_TRY(one_ring(m, coll, bytes, g, seconds));
    *seconds += copies;
    return AX_OK;
}

ax_status ax_machine_message_seconds(const ax_machine *m, double bytes, ax_machine_carrier carrier,
                                     bool computing, double *seconds)
{
    const ax_machine_link *link = &m->link[carrier];
    const int64_t distance = carrier == AX_MACHINE_NODE ? 1 : m->ranks_per_node;
    if (!measured_seconds(m->tables, AX_MACHINE_MESSAGE, distance, 2, bytes, seconds)) {
        if (link->rate <= 0)
            return fail_missing(m, rate_key[carrier]);
        *seconds = link->latency + bytes / link->rate;
    }
    *seconds += computing ? link->busy : 0;
    return AX_OK;
}
