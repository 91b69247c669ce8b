/* Cuts a model into pipeline stages. */
#include "axonn/pipe.h"

/* Greedy algorithm: gives one block after the other to the stage that is cheapest so far. The result is
 * optimal, because all blocks cost the same. If several stages are cheapest, the last of them gets the block,
 * because later stages keep the activations of fewer micro-batches. */
void ax_pipe_cut(int stages, int64_t blocks, double embedding, double head, int64_t *begin)
{
    int64_t *n = begin + 1, left = blocks; /* n[s]: number of blocks of stage s */
    for (int s = 0; s < stages; s++) {
        n[s] = s > 0 && s < stages - 1;
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
    begin[0] = 0;
    for (int s = 0; s < stages; s++)
        begin[s + 1] += begin[s];
}
