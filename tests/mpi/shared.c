/* shared PATH TOUCHED: collectives and messages on memory that the ranks of a node share, on private memory,
 * and on a mix of both. PATH (node or flat) is the expected path of the world's large all-reduces. TOUCHED is
 * the minimum of ax_comm_foreign_memory at the end, in MiB. */
#include "mpi/world.h"
#include "support/ranks.h"

#include <string.h>

enum { LARGE = 1500000 };

typedef struct buffers {
    char *shared, *plain;
    size_t bytes;
} buffers;

/* Sums over up to eight ranks are exact in bf16. */
static double value(int rank, int64_t i) { return (double)((i * 5 + rank * 3) % 17) - 8; }

/* Returns this rank's buffer. It is in shared memory on all ranks if how is 0, on all except rank 1 if 1, on
 * none if 2, on odd ranks if 3. With 1 and 3 the buffer is not aligned to a cache line. */
static char *choose(const buffers *b, int how, int rank, size_t element)
{
    bool shared = how == 0 || (how == 1 && rank != 1) || (how == 3 && rank % 2);
    return (shared ? b->shared : b->plain) + (size_t)(how % 2) * element;
}

static double sum_at(int ranks, int64_t i)
{
    double sum = 0;
    for (int r = 0; r < ranks; r++)
        sum += value(r, i);
    return sum;
}

static void fill(ax_dtype dtype, char *x, int rank, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        ax_store(dtype, x, i, value(rank, i));
}

/* Checks about 5000 elements of large buffers, at distances of `stride`. */
static ax_status check_all(ax_comm *c, const buffers *b, int how, ax_dtype dtype, int64_t n)
{
    int g = ax_comm_size(c), me = ax_comm_rank(c);
    size_t element = ax_dtype_size(dtype);
    char *x = choose(b, how, me, element), *y = x + b->bytes / 2;
    int64_t each = n / g, stride = 1 + n / 5000;
    ax_work *work;
    fill(dtype, x, me, n);
    AX_TRY(ax_all_reduce(c, NULL, x, n, dtype, AX_SUM, &work));
    AX_TRY(ax_wait(&work));
    for (int64_t i = 0; i < n; i += stride)
        EXPECT(ax_load(dtype, x, i) == sum_at(g, i));
    fill(dtype, x, me, n);
    AX_TRY(ax_reduce_scatter(c, NULL, x, y, each, dtype, AX_SUM, &work));
    AX_TRY(ax_wait(&work));
    for (int64_t i = 0; i < each; i += stride)
        EXPECT(ax_load(dtype, y, i) == sum_at(g, me * each + i));
    /* In place. */
    fill(dtype, y + (size_t)(me * each) * element, me, each);
    AX_TRY(ax_all_gather(c, NULL, y + (size_t)(me * each) * element, y, each, dtype, &work));
    AX_TRY(ax_wait(&work));
    for (int64_t i = 0; i < each * g; i += stride)
        EXPECT(ax_load(dtype, y, i) == value((int)(i / each), i % each));
    AX_TRY(ax_all_to_all(c, NULL, x, y, each, dtype, &work));
    AX_TRY(ax_wait(&work));
    for (int64_t i = 0; i < each * g; i += stride)
        EXPECT(ax_load(dtype, y, i) == value((int)(i / each), me * each + i % each));
    AX_TRY(ax_broadcast(c, NULL, x, n, dtype, g - 1, &work));
    AX_TRY(ax_wait(&work));
    for (int64_t i = 0; i < n; i += stride)
        EXPECT(ax_load(dtype, x, i) == value(g - 1, i));
    return AX_OK;
}

static ax_status check_sizes(ax_comm *c, const buffers *b)
{
    static const int64_t sizes[] = {0, 1, 7, 4097, 100003, LARGE};
    static const ax_dtype dtypes[] = {AX_F32, AX_BF16, AX_I64};
    for (size_t s = 0; s < AX_COUNT(sizes); s++)
        for (int how = 0; how < 4; how++)
            for (size_t d = 0; d < AX_COUNT(dtypes); d++)
                if (sizes[s] < LARGE || dtypes[d] != AX_I64)
                    AX_TRY(check_all(c, b, how, dtypes[d], sizes[s]));
    return AX_OK;
}

/* A long message and a short one after it are in flight together, out of shared memory. The short one is
 * copied first. When the wait for the long one returns, its buffer may be written again. */
static ax_status check_messages(ax_comm *c, const buffers *b)
{
    enum { ROUNDS = 20, LONG = 16 << 20, SHORT = 8 << 10 };
    int me = ax_comm_rank(c), to = (me + 1) % ax_comm_size(c),
        from = (me + ax_comm_size(c) - 1) % ax_comm_size(c);
    const int64_t length[] = {LONG, SHORT};
    ax_work *sent[2], *received[2];
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < 2; i++) {
            ax_message what = {.kind = AX_MESSAGE_ACTIVATION,
                               .dtype = AX_I32,
                               .step = round,
                               .ndim = 1,
                               .dim = {length[i] / 4}};
            char *data = b->shared + i * LONG;
            memset(data, 1 + round + me + i, (size_t)length[i]);
            AX_TRY(ax_recv(c, NULL, &what, b->plain + i * LONG, from, &received[i]));
            AX_TRY(ax_send(c, NULL, &what, data, to, &sent[i]));
        }
        AX_TRY(ax_wait(&sent[0]));
        memset(b->shared, 0, LONG);
        for (int i = 0; i < 2; i++)
            AX_TRY(ax_wait(&received[i]));
        AX_TRY(ax_wait(&sent[1]));
        for (int i = 0; i < 2; i++)
            for (int64_t at = 0; at < length[i]; at += 64)
                EXPECT(b->plain[i * LONG + at] == 1 + round + from + i);
    }
    return AX_OK;
}

static ax_status run(ax_comm *world, char **argv)
{
    const char *path = argv[1];
    size_t least = strtoull(argv[2], NULL, 10) << 20;
    buffers b = {.bytes = (size_t)4 * LARGE * sizeof(float)};
    ax_comm *pairs, *reversed;
    int rank = ax_comm_rank(world), size = ax_comm_size(world);
    ax_coll_args large = {.coll = AX_ALL_REDUCE, .count = LARGE, .dtype = AX_F32};
    EXPECT(!strcmp(ax_comm_path(world, NULL, &large), path));
    AX_TRY(ax_comm_alloc(world, b.bytes, (void **)&b.shared));
    AX_TRY(ax_calloc(1, b.bytes, &b.plain));
    EXPECT(!memcmp(b.shared, b.plain, b.bytes)); /* zeroed */
    AX_TRY(ax_comm_split(world, rank / 2, rank, &pairs));
    AX_TRY(ax_comm_split(world, 0, size - rank, &reversed));
    AX_TRY(check_sizes(world, &b));
    AX_TRY(check_sizes(pairs, &b));
    AX_TRY(check_sizes(reversed, &b));
    AX_TRY(check_messages(world, &b));
    /* The peers' memory that this process touched is counted as foreign. */
    int64_t foreign = ax_comm_foreign_memory(world);
    EXPECT(foreign >= (int64_t)least);
    ax_comm_destroy(&reversed);
    ax_comm_destroy(&pairs);
    ax_comm_free(world, b.shared, b.bytes);
    free(b.plain);
    return AX_OK;
}

int main(int argc, char **argv) { return in_world(argc, argv, run); }
