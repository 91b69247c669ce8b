/* Cuts a model into pipeline stages. The units of a model are the embedding, each block, and the final norm
 * with the head, numbered from 0 in this order. A stage may have several chunks, which are runs of adjacent
 * units: chunk c of stage s is part p = c · stages + s of the model. */
#include "axonn/pipe.h"

typedef struct units {
    int64_t n; /* number of units to cut: units 0 … n - 1 */
    int64_t blocks;
    const int64_t *cost; /* NULL: each block costs 1, the embedding and the head cost nothing */
} units;

static int64_t cost_of(const units *all, int64_t unit)
{
    return all->cost ? all->cost[unit] : unit > 0 && unit <= all->blocks;
}

static int64_t sum_of(const units *all, int64_t first, int64_t end)
{
    int64_t sum = 0;
    for (int64_t i = first; i < end; i++)
        sum += cost_of(all, i);
    return sum;
}

/* ---- one chunk per stage ------------------------------------------------------------------------- */

/* Gives each stage, from the first one on, as many units as it can have at a total cost of at most `limit`,
 * but leaves a unit for each later stage. Sets begin[s] to the first unit of stage s. Returns true if no unit
 * is left. */
static bool fill_stages(const units *all, int stages, int64_t limit, int64_t *begin)
{
    int64_t at = 0;
    for (int s = 0; s < stages; s++) {
        begin[s] = at;
        for (int64_t sum = 0; at < all->n - (stages - 1 - s) && sum + cost_of(all, at) <= limit; at++)
            sum += cost_of(all, at);
    }
    return at == all->n;
}

/* Returns the cost of the most expensive stage under the best cut, by bisection. Overwrites `begin` with
 * trial cuts. */
static int64_t least_limit(const units *all, int stages, int64_t *begin)
{
    int64_t low = 0, high = sum_of(all, 0, all->n);
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (fill_stages(all, stages, middle, begin))
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Sets begin[s] to the first unit of stage s. A limit is a cost that no stage exceeds. The least limit often
 * allows several cuts, because only one stage must cost that much. So the stages are cut one by one, from the
 * last to the first, each with the least limit for the stages and units that are left. Within this limit, a
 * stage takes units until it costs at least the mean of the stages that are left. So later stages get more:
 * they keep the activations of fewer micro-batches. */
static void cut_stages(const units *all, int stages, int64_t *begin)
{
    units left = *all;
    for (int s = stages - 1; s > 0; s--) {
        int64_t limit = least_limit(&left, s + 1, begin), mean = ax_ceil_div(sum_of(&left, 0, left.n), s + 1);
        (void)fill_stages(&left, s + 1, limit, begin); /* now begin[s] is the last unit with which stage s can
                                                          begin so that the earlier stages keep the limit */
        int64_t sum = sum_of(&left, begin[s], left.n);
        while (begin[s] > s && sum < mean && sum + cost_of(&left, begin[s] - 1) <= limit)
            sum += cost_of(&left, --begin[s]);
        left.n = begin[s];
    }
    begin[0] = 0;
}

/* ---- several chunks per stage -------------------------------------------------------------------- */

/* Sets n[s] to the number of blocks of stage s, as if all blocks had the same cost. `embedding` and `head`
 * are the costs of the embedding and of the head, in units of this cost. Greedy algorithm: gives one block
 * after the other to the stage that is cheapest so far. The result is optimal for blocks of equal cost. If
 * several stages are cheapest, the last of them gets the block, because later stages keep the activations of
 * fewer micro-batches. */
static void share_out(int stages, int chunks, int64_t blocks, double embedding, double head, int64_t *n)
{
    int64_t left = blocks;
    for (int s = 0; s < stages; s++) { /* a chunk with the embedding or the head may have no block */
        n[s] = ax_max(0, chunks - (s == 0) - (s == stages - 1));
        left -= n[s];
    }
    for (; left > 0; left--) {
        int cheapest = 0;
        double least = 0;
        for (int s = 0; s < stages; s++) {
            double cost = (double)n[s] + (s == 0 ? embedding : 0) + (s == stages - 1 ? head : 0);
            if (s == 0 || cost <= least) {
                cheapest = s;
                least = cost;
            }
        }
        n[cheapest]++;
    }
}

/* Returns how many of the n blocks of stage s are in its chunk c. Chunks differ by one block at most; the
 * chunks with the embedding and with the head are among the shorter ones. */
static int64_t blocks_of_chunk(int64_t n, int chunks, int c, bool first_stage)
{
    int at =
        first_stage ? chunks - 1 - c : c; /* the first n % chunks chunks in this order have one block more */
    return n / chunks + (at < n % chunks);
}

/* Sets begin[p] to the first block of part p. First chooses the number of blocks of each part as if all
 * blocks had the mean cost. Then moves each boundary between parts to where the true cost of the blocks
 * before the boundary is nearest to their cost in the first choice. */
static void cut_chunks(const units *all, int stages, int chunks, int64_t *begin)
{
    int parts = stages * chunks;
    int64_t blocks = all->blocks, *n = begin + 1;
    double mean = (double)ax_max(1, sum_of(all, 1, 1 + blocks)) / (double)blocks;
    /* At first n[s] is the number of blocks of stage s. The first loop sets n[p] to the number of blocks of
     * part p, the last part first. */
    share_out(stages, chunks, blocks, (double)cost_of(all, 0) / mean, (double)cost_of(all, 1 + blocks) / mean,
              n);
    for (int p = parts - 1; p >= 0; p--)
        n[p] = blocks_of_chunk(n[p % stages], chunks, p / stages, p % stages == 0);
    int64_t before = 0; /* number of blocks first chosen for the parts before part p */
    int64_t at = 0;
    double sum = 0; /* cost of the blocks before `at` */
    begin[0] = 0;
    for (int p = 1; p < parts; p++) {
        int64_t least = begin[p - 1] + (p > 1), most = blocks - (parts - 1 - p);
        before += begin[p];
        for (double cost; at < most; sum += cost, at++) {
            cost = (double)cost_of(all, 1 + at);
            if (at >= least && sum + cost / 2 >= (double)before * mean)
                break;
        }
        begin[p] = at;
    }
    begin[parts] = blocks;
}

void ax_pipe_cut(int stages, int chunks, int64_t blocks, const int64_t *cost, int64_t *begin)
{
    const units all = {blocks + 2, blocks, cost};
    if (chunks > 1) {
        cut_chunks(&all, stages, chunks, begin);
        return;
    }
    cut_stages(&all, stages, begin);
    for (int s = 1; s < stages; s++)
        begin[s]--; /* from the number of a unit to that of a block */
    begin[stages] = blocks;
}
