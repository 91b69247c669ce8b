/* Computes a checksum of token files whose format stores none: a hash of the length of each file and of 64
 * blocks of 4 KiB in it (of all bytes of a file of at most 256 KiB). So a file of 100 GB is opened as fast as
 * a small one. Another file of the same length is noticed if one of the blocks differs; a change of bytes
 * between two blocks is not noticed. */
#include "source.h"

#include <stdlib.h>
#include <xxhash.h>

enum { BLOCK_BYTES = 4096, BLOCKS = 64 };

/* Returns the offset of block i of n in a file. The blocks are evenly spaced; the first is at the start and
 * the last at the end of the file. */
static int64_t block_at(const data_file *file, int64_t i, int64_t n)
{
    int64_t room = file->bytes - BLOCK_BYTES, gaps = n - 1;
    return room / gaps * i + room % gaps * i / gaps;
}

/* Hashes all bytes of a short file into *sum. */
static ax_status sum_whole(const data_file *file, uint64_t *sum)
{
    char *all;
    if (!file->bytes)
        return AX_OK;
    AX_TRY(ax_calloc((size_t)file->bytes, 1, &all));
    ax_status status = data_file_read(file, 0, all, file->bytes);
    if (status == AX_OK)
        *sum = XXH3_64bits_withSeed(all, (size_t)file->bytes, *sum);
    free(all);
    return status;
}

static ax_status sum_file(const data_file *file, uint64_t *sum)
{
    char block[BLOCK_BYTES];
    *sum = XXH3_64bits_withSeed(&(uint64_t){(uint64_t)file->bytes}, sizeof(uint64_t), *sum);
    if (file->bytes <= BLOCKS * BLOCK_BYTES)
        return sum_whole(file, sum);
    for (int64_t i = 0; i < BLOCKS; i++) /* prefetch, so that a cold disk reads in parallel */
        data_file_want(file, block_at(file, i, BLOCKS), BLOCK_BYTES);
    for (int64_t i = 0; i < BLOCKS; i++) {
        AX_TRY(data_file_read(file, block_at(file, i, BLOCKS), block, sizeof block));
        *sum = XXH3_64bits_withSeed(block, sizeof block, *sum);
    }
    return AX_OK;
}

ax_status data_sampled_sum(const data_file *main, const data_file *side, uint64_t *out)
{
    *out = 0;
    AX_TRY(sum_file(main, out));
    AX_TRY(sum_file(side, out));
    *out = *out ? *out : 1; /* 0 stands for a source without a checksum */
    return AX_OK;
}

uint64_t data_sum_add(uint64_t sum, uint64_t more) { return XXH3_64bits_withSeed(&more, sizeof more, sum); }
