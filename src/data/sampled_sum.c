/* A checksum for token files whose format has none. It covers the lengths of the files and blocks sampled
 * from them, so that a file of 100 GB is opened as fast as a small one. Another file of the same length is
 * noticed; a change between two blocks is not. */
#include "source.h"

#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

enum { BLOCK_BYTES = 4096, BLOCKS = 64 };

/* Block i of the n blocks of a file: evenly spaced, the first at the start and the last at the end. */
static const char *block_at(const data_map *map, int64_t i, int64_t n)
{
    int64_t room = (int64_t)map->bytes - BLOCK_BYTES, gaps = n - 1;
    return map->base + room / gaps * i + room % gaps * i / gaps;
}

/* Asks for all blocks first: from a cold disk they come in parallel. */
static void want_blocks(const data_map *map)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (int64_t i = 0; i < BLOCKS; i++) {
        uintptr_t block = (uintptr_t)block_at(map, i, BLOCKS), low = block / page * page;
        madvise((void *)low, block + BLOCK_BYTES - low, MADV_WILLNEED);
    }
}

static uint64_t sum_map(const data_map *map, uint64_t seed)
{
    uint64_t sum = XXH3_64bits_withSeed(&(uint64_t){map->bytes}, sizeof(uint64_t), seed);
    if (map->bytes <= (size_t)BLOCKS * BLOCK_BYTES)
        return map->bytes ? XXH3_64bits_withSeed(map->base, map->bytes, sum) : sum;
    want_blocks(map);
    for (int64_t i = 0; i < BLOCKS; i++) {
        const char *block = block_at(map, i, BLOCKS);
        sum = XXH3_64bits_withSeed(block, BLOCK_BYTES, sum);
        data_map_forget(map, block, block + BLOCK_BYTES);
    }
    return sum;
}

uint64_t data_sampled_sum(const data_map *main, const data_map *side)
{
    uint64_t sum = sum_map(side, sum_map(main, 0));
    return sum ? sum : 1; /* 0 stands for a source without a checksum */
}

uint64_t data_sum_add(uint64_t sum, uint64_t more) { return XXH3_64bits_withSeed(&more, sizeof more, sum); }
