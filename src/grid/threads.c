/* How many threads each rank computes with: its share of the cores that the ranks of its machine may use. */
#include "grid/threads.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef ax_threads_member member;

static int count(const uint64_t *set)
{
    int n = 0;
    for (int w = 0; w < AX_CORES_MAX / 64; w++)
        n += __builtin_popcountll(set[w]);
    return n;
}

/* Each core is shared equally by the ranks that may use it, and so is the time that a control group allows.
 */
static int64_t share(const member *all, int n, int rank)
{
    const member *mine = &all[rank];
    double cores = 0;
    int neighbours = 0;
    for (int r = 0; r < n; r++)
        neighbours += all[r].host == mine->host;
    for (int c = 0; c < AX_CORES_MAX; c++) {
        int users = 0;
        uint64_t bit = UINT64_C(1) << (c % 64);
        if (!(mine->cores.usable[c / 64] & bit))
            continue;
        for (int r = 0; r < n; r++)
            users += all[r].host == mine->host && (all[r].cores.usable[c / 64] & bit);
        cores += 1.0 / users;
    }
    cores = fmin(cores, mine->cores.quota / neighbours);
    return ax_max((int64_t)(cores + 1e-6), 1);
}

/* The ranks of one machine together. */
typedef struct together {
    int ranks, first, cores, machine;
    int64_t threads;
    bool crowded; /* a rank, or all of them, have more threads than cores */
    uint64_t set[AX_CORES_MAX / 64];
} together;

static together add_up(const member *all, int n, uint64_t host)
{
    together t = {.first = -1};
    for (int r = 0; r < n; r++) {
        if (all[r].host != host)
            continue;
        t.first = t.first < 0 ? r : t.first;
        t.ranks++;
        t.threads += all[r].threads;
        t.machine = all[r].cores.machine;
        t.crowded |= all[r].threads > count(all[r].cores.usable);
        for (int w = 0; w < AX_CORES_MAX / 64; w++)
            t.set[w] |= all[r].cores.usable[w];
    }
    t.cores = count(t.set);
    t.crowded |= t.threads > t.cores;
    return t;
}

/* Tells, once for each machine, of threads that share cores though there are enough, or of more than there
 * are, and of cores that a launcher's binding leaves idle. */
static void judge_binding(const member *all, int n, int rank)
{
    char name[64] = "this machine";
    together t = add_up(all, n, all[rank].host);
    bool launched = n > 1 || ax_launcher_find().launcher;
    bool bound = count(all[rank].cores.usable) < t.machine;
    if (t.first != rank || (!launched && t.threads <= t.machine))
        return;
    gethostname(name, sizeof name - 1);
    if (t.threads > t.machine && all[rank].wanted == 1)
        ax_log(AX_LOG_WARN, "%lld threads of %d ranks share the %d cores of %s: fewer ranks would be enough",
               (long long)t.threads, t.ranks, t.machine, name);
    else if (t.threads > t.machine && all[rank].wanted)
        ax_log(AX_LOG_WARN, "%lld threads of %d rank%s share the %d cores of %s: threads=%d would be enough",
               (long long)t.threads, t.ranks, t.ranks == 1 ? "" : "s", t.machine, name,
               (int)ax_max(t.machine / t.ranks, 1));
    else if (bound && t.crowded && t.threads <= t.machine)
        ax_log(
            AX_LOG_WARN,
            "%lld threads of %d rank%s share cores, bound by the launcher to %d of the %d of %s: start with "
            "--bind-to none, or --map-by slot:PE=%lld",
            (long long)t.threads, t.ranks, t.ranks == 1 ? "" : "s", t.cores, t.machine, name,
            (long long)all[rank].threads);
    else if (bound && t.cores < t.machine)
        ax_log(AX_LOG_WARN,
               "the launcher binds %d rank%s to %d of the %d cores of %s: --bind-to none gives all", t.ranks,
               t.ranks == 1 ? "" : "s", t.cores, t.machine, name);
}

/* ---- binding ------------------------------------------------------------------------------------- */

/* Threads are bound where that cannot hurt: each has a core to itself, no core is left, and nothing else
 * limits them. A job that leaves cores would, if it were bound, share the first ones with another such job
 * while the last ones idle: the system's scheduler knows better. */
static const char *why_not(const member *all, int n, uint64_t host, const together *t)
{
    for (int r = 0; r < n; r++) {
        if (all[r].host != host)
            continue;
        if (all[r].free)
            return "AXONN_PIN=off";
        if (!all[r].cores.physical)
            return "the machine does not show its cores";
        if (all[r].cores.quota < count(all[r].cores.usable))
            return "a control group allows less time than these cores have";
    }
    if (t->threads > t->cores)
        return "there are more threads than cores";
    if (t->threads < t->cores)
        return "they leave cores free, where other programs may be";
    return NULL;
}

/* Takes the first `n` cores of `usable` out of `left`; false if there are not so many. */
static bool take(const uint64_t *usable, int64_t n, uint64_t *left, ax_binding *out)
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

/* Ranks take their cores in the order of their numbers, so that a rank's are near one another. */
void ax_threads_bind(const ax_threads_member *all, int n, int rank, ax_binding *out)
{
    together t = add_up(all, n, all[rank].host);
    const char *why = why_not(all, n, all[rank].host, &t);
    ax_binding taken, mine = {0};
    for (int r = 0; r < n && !why; r++) {
        if (all[r].host != all[rank].host)
            continue;
        if (!take(all[r].cores.usable, all[r].threads, t.set, &taken))
            why = "the ranks' cores overlap in part";
        if (r == rank)
            mine = taken;
    }
    mine.alone = n == 1;
    *out = why ? (ax_binding){.why_not = why} : mine;
}

/* ---- what a rank takes --------------------------------------------------------------------------- */

ax_status ax_threads_neighbour(ax_comm *world, int *out)
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
    const char *pin = getenv("AXONN_PIN");
    member mine, *all;
    memset(&mine, 0, sizeof mine); /* its gaps travel too */
    mine.wanted = wanted;
    mine.free = pin && !strcmp(pin, "off");
    mine.host = ax_host_key();
    ax_cores_find(&mine.cores);
    AX_TRY(ax_calloc((size_t)n, sizeof *all, &all));
    ax_status status = exchange(world, &mine, all);
    if (status == AX_OK) {
        for (int r = 0; r < n; r++)
            if (all[r].host == mine.host)
                all[r].threads = all[r].wanted ? all[r].wanted : share(all, n, r);
        judge_binding(all, n, rank);
        out->count = (int)all[rank].threads;
        out->neighbours = add_up(all, n, mine.host).ranks;
        ax_threads_bind(all, n, rank, &out->binding);
        for (int r = 0; r < rank; r++)
            out->binding.neighbour += all[r].host == mine.host;
        if (pin && *pin && !mine.free && strcmp(pin, "auto") != 0)
            status = ax_fail(AX_ERR_USAGE, "AXONN_PIN is \"%s\", not auto or off", pin);
    }
    free(all);
    return ax_comm_agree(world, status);
}
