/* Rank threads in tests. */
#include "support/ranks.h"

#include <setjmp.h>
#include <stdio.h>

#include <cmocka.h>

void assert_ranks(int size, ax_rank_fn *fn, const void *arg)
{
    if (ax_comm_threads_run(size, fn, (void *)arg) != AX_OK)
        fail_msg("%d ranks: %s", size, ax_error_message());
}

int grid_ranks(ax_grid_size size) { return size.x * size.y * size.z * size.pipe * size.data; }

int random_below(uint64_t *state, int n)
{
    uint32_t word[4];
    ax_philox(0, 0, (*state)++, word);
    return (int)(word[0] % (uint32_t)n);
}
