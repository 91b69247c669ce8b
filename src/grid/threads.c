/* Chooses the number of compute threads of each rank, by default its share of the machine's cores, and the
 * cores to which these threads are bound. */
#include "grid/threads.h"

#include "axonn/runtime.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef ax_threads_member member;

static int count_bits(const uint64_t *set)
{
    int n = 0;
    for (int w = 0; w < AX_CORES_MAX / 64; w++)
        n += __builtin_popcountll(set[w]);
    return n;
}

/* Returns the rank's share of the cores of its machine. The ranks that may use a core share it equally; all
 * ranks of the machine share the CPU quota of their control group equally. */
static int64_t cores_share(const member *all, int n, int rank)
{
    const member *mine = &all[rank];
    double cores = 0;
    int local_size = 0;
    for (int r = 0; r < n; r++)
        local_size += all[r].host == mine->host;
    for (int c = 0; c < AX_CORES_MAX; c++) {
        int users = 0;
        uint64_t bit = UINT64_C(1) << (c % 64);
        if (!(mine->cores.usable[c / 64] & bit))
            continue;
        for (int r = 0; r < n; r++)
            users += all[r].host == mine->host && (all[r].cores.usable[c / 64] & bit);
        cores += 1.0 / users;
    }
    cores = fmin(cores, mine->cores.quota / local_size);
    return ax_max((int64_t)(cores + 1e-6), 1);
}

/* Totals over the ranks of one machine. */
typedef struct host_totals {
    int ranks, first;   /* number of ranks on the machine; lowest rank on the machine */
    int cores, machine; /* cores that at least one of the ranks may use; cores of the machine */
    int64_t threads;
    bool crowded; /* a rank has more threads than cores that it may use, or all ranks together have more
                     threads than cores */
    uint64_t set[AX_CORES_MAX / 64];
} host_totals;

static host_totals add_up(const member *all, int n, uint64_t host)
{
    host_totals t = {.first = -1};
    for (int r = 0; r < n; r++) {
        if (all[r].host != host)
            continue;
        t.first = t.first < 0 ? r : t.first;
        t.ranks++;
        t.threads += all[r].threads;
        t.machine = all[r].cores.machine;
        t.crowded |= all[r].threads > count_bits(all[r].cores.usable);
        for (int w = 0; w < AX_CORES_MAX / 64; w++)
            t.set[w] |= all[r].cores.usable[w];
    }
    t.cores = count_bits(t.set);
    t.crowded |= t.threads > t.cores;
    return t;
}

/* Warns, on the lowest rank of each machine, if the user asks for more threads than the machine has cores, or
 * if the launcher's binding makes threads share cores or leaves cores idle. */
static void warn_of_binding(const member *all, int n, int rank)
{
    char name[64] = "this machine";
    host_totals t = add_up(all, n, all[rank].host);
    bool launched = n > 1 || ax_launcher_find().launcher;
    bool bound = count_bits(all[rank].cores.usable) < t.machine;
    if (t.first != rank || (!launched && t.threads <= t.machine))
        return;
    gethostname(name, sizeof name - 1);
    if (t.threads > t.machine && all[rank].wanted == 1)
        ax_log(AX_LOG_WARN,
               "%lld threads of %d ranks share the %d cores of %s: %d ranks there would be enough",
               (long long)t.threads, t.ranks, t.machine, name, t.machine);
    else if (t.threads > t.machine && all[rank].wanted)
        ax_log(AX_LOG_WARN, "%lld threads of %d rank%s share the %d cores of %s: threads=%d would be enough",
               (long long)t.threads, t.ranks, t.ranks == 1 ? "" : "s", t.machine, name,
               (int)ax_max(t.machine / t.ranks, 1));
    else if (bound && t.crowded && t.threads <= t.machine)
        ax_log(
            AX_LOG_WARN,
            "%lld threads of %d rank%s share cores, because the launcher binds the ranks to %d of the %d "
            "cores of %s: start mpirun with --bind-to none or --map-by slot:PE=%lld (srun: --cpu-bind=none)",
            (long long)t.threads, t.ranks, t.ranks == 1 ? "" : "s", t.cores, t.machine, name,
            (long long)all[rank].threads);
    else if (bound && t.cores < t.machine)
        ax_log(AX_LOG_WARN,
               "the launcher binds %d rank%s to %d of the %d cores of %s: mpirun --bind-to none (srun "
               "--cpu-bind=none) gives all",
               t.ranks, t.ranks == 1 ? "" : "s", t.cores, t.machine, name);
}

/* ---- binding ------------------------------------------------------------------------------------- */

/* Returns the reason for not binding threads, or NULL. Threads are bound only where binding cannot hurt: each
 * thread has a core to itself, no core is left over, and no CPU quota applies. An example of harm: if two
 * jobs on one machine left cores free and bound their threads, both jobs would be bound to the first cores,
 * and the last cores would be idle. The operating system's scheduler does better. */
static const char *why_not(const member *all, int n, uint64_t host, const host_totals *t)
{
    for (int r = 0; r < n; r++) {
        if (all[r].host != host)
            continue;
        if (all[r].pin_off)
            return "runtime.pin=off";
        if (!all[r].cores.physical)
            return "the operating system does not list the machine's cores";
        if (all[r].cores.quota < count_bits(all[r].cores.usable))
            return "a CPU quota (cgroup) allows less than the full time of these cores";
    }
    if (t->threads > t->cores)
        return "there are more threads than cores";
    if (t->threads < t->cores)
        return "the threads leave cores free, which other programs may use";
    return NULL;
}

/* Moves the first `n` cores that are in both `usable` and `left` from `left` to *out. Returns false if there
 * are fewer than n. */
static bool take_cores(const uint64_t *usable, int64_t n, uint64_t *left, ax_binding *out)
{
    *out = (ax_binding){0};
    for (int c = 0; c < AX_CORES_MAX && out->n < n; c++) {
        uint64_t bit = UINT64_C(1) << (c % 64);
        if (usable[c / 64] & left[c / 64] & bit) {
            left[c / 64] &= ~bit;
            out->cores[c / 64] |= bit;
            out->n++;
        }
    }
    return out->n == n;
}

/* Lets one rank of the machine after the other take the lowest of its usable cores that are left, so that the
 * cores of a rank are near one another. */
void ax_threads_bind(const ax_threads_member *all, int n, int rank, ax_binding *out)
{
    host_totals t = add_up(all, n, all[rank].host);
    const char *why = why_not(all, n, all[rank].host, &t);
    ax_binding taken, mine = {0};
    for (int r = 0; r < n && !why; r++) {
        if (all[r].host != all[rank].host)
            continue;
        if (!take_cores(all[r].cores.usable, all[r].threads, t.set, &taken))
            why = "the ranks' cores overlap in part";
        if (r == rank)
            mine = taken;
    }
    mine.alone = n == 1;
    *out = why ? (ax_binding){.why_not = why} : mine;
}

/* ---- the ranks of a machine ---------------------------------------------------------------------- */

ax_status ax_threads_local_rank(ax_comm *world, int *out)
{
    ax_work *work;
    uint64_t mine = ax_host_key(), *all;
    AX_TRY(ax_calloc((size_t)ax_comm_size(world), sizeof *all, &all));
    ax_status status = ax_all_gather(world, NULL, &mine, all, sizeof mine, AX_U8, &work);
    if (status == AX_OK)
        status = ax_wait(&work);
    *out = 0;
    for (int r = 0; r < ax_comm_rank(world) && status == AX_OK; r++)
        *out += all[r] == mine;
    free(all);
    return status;
}

static ax_status exchange(ax_comm *world, const member *mine, member *all)
{
    ax_work *work;
    AX_TRY(ax_all_gather(world, NULL, mine, all, sizeof *mine, AX_U8, &work));
    return ax_wait(&work);
}

ax_status ax_threads_share(ax_comm *world, int wanted, ax_threads *out)
{
    int n = ax_comm_size(world), rank = ax_comm_rank(world);
    const char *pin;
    member mine, *all;
    memset(&mine, 0, sizeof mine); /* the all-gather sends the padding of the struct too */
    mine.wanted = wanted;
    mine.pin_off = ax_runtime_get(AX_RUNTIME_PIN, &pin) == AX_OK && !strcmp(pin, "off");
    mine.host = ax_host_key();
    ax_cores_find(&mine.cores);
    AX_TRY(ax_calloc((size_t)n, sizeof *all, &all));
    ax_status status = exchange(world, &mine, all);
    if (status == AX_OK) {
        for (int r = 0; r < n; r++)
            if (all[r].host == mine.host)
                all[r].threads = all[r].wanted ? all[r].wanted : cores_share(all, n, r);
        if (!ax_comm_is_dry(world)) /* else the ranks are on other machines */
            warn_of_binding(all, n, rank);
        out->count = (int)all[rank].threads;
        out->local_size = add_up(all, n, mine.host).ranks;
        ax_threads_bind(all, n, rank, &out->binding);
        for (int r = 0; r < rank; r++)
            out->binding.local_rank += all[r].host == mine.host;
        status = ax_runtime_get(AX_RUNTIME_PIN, &pin);
    }
    free(all);
    return ax_comm_agree(world, status);
}
