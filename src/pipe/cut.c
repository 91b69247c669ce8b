/* Cuts a model into pipeline stages. */
#include "axonn/pipe.h"

/* Sets n[s] to the number of blocks of stage s. Greedy algorithm: gives each block in turn to the stage that
 * costs least so far. The result is optimal, because all blocks cost the same. If several stages cost least,
 * the last of them gets the block, because later stages keep the activations of fewer micro-batches. */
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

void ax_pipe_cut(int stages, int chunks, int64_t blocks, double embedding, double head, int64_t *begin)
{
    int64_t *n = begin + 1; /* first n[s] is the number of blocks of stage s; then the loop sets n[p] to the
                               number of blocks of part (chunk) p of the model, the last part first */
    share_out(stages, chunks, blocks, embedding, head, n);
    for (int p = stages * chunks - 1; p >= 0; p--) {
        int s = p % stages;
        n[p] = blocks_of_chunk(n[s], chunks, p / stages, s == 0);
    }
    begin[0] = 0;
    for (int p = 0; p < stages * chunks; p++)
        begin[p + 1] += begin[p];
}
