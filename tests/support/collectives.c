/* Compares the collectives of any communicator with their definitions. */
#include "support/collectives.h"
#include "support/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { COUNT = 1111 };

/* Returns element i of rank r's data. The element is exact in every dtype, and so is its sum over eight
 * ranks. */
static double value(int rank, int64_t i) { return (double)((rank * 7 + i * 3) % 11) - 4; }

static void fill(ax_dtype dtype, void *data, int rank, int64_t first, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        ax_store(dtype, data, i, value(rank, first + i));
}

static double reduced(int ranks, ax_reduce_op op, int64_t i)
{
    double all = value(0, i);
    for (int r = 1; r < ranks; r++)
        all = op == AX_SUM ? all + value(r, i) : fmax(all, value(r, i));
    return all;
}

typedef struct buffers {
    char *send, *recv;
} buffers;

static ax_status check_reductions(ax_comm *c, buffers b, int64_t n, ax_dtype dtype, ax_reduce_op op)
{
    int g = ax_comm_size(c), me = ax_comm_rank(c);
    ax_work *work;
    fill(dtype, b.send, me, 0, n);
    AX_TRY(ax_all_reduce(c, NULL, b.send, n, dtype, op, &work));
    AX_TRY(ax_wait(&work));
    for (int64_t i = 0; i < n; i++)
        EXPECT(ax_load(dtype, b.send, i) == reduced(g, op, i));
    fill(dtype, b.send, me, 0, (int64_t)g * n);
    AX_TRY(ax_reduce_scatter(c, NULL, b.send, b.recv, n, dtype, op, &work));
    AX_TRY(ax_wait(&work));
    for (int64_t i = 0; i < n; i++)
        EXPECT(ax_load(dtype, b.recv, i) == reduced(g, op, me * n + i));
    return AX_OK;
}

static ax_status check_moves(ax_comm *c, buffers b, int64_t n, ax_dtype dtype)
{
    int g = ax_comm_size(c), me = ax_comm_rank(c);
    size_t size = ax_dtype_size(dtype);
    ax_work *work;
    fill(dtype, b.send, me, 0, n);
    AX_TRY(ax_all_gather(c, NULL, b.send, b.recv, n, dtype, &work));
    AX_TRY(ax_wait(&work));
    for (int64_t i = 0; i < (int64_t)g * n; i++)
        EXPECT(ax_load(dtype, b.recv, i) == value((int)(i / n), i % n));
    memset(b.recv, 0, (size_t)(g * n) * size);
    fill(dtype, b.recv + (size_t)(me * n) * size, me, 0, n);
    AX_TRY(ax_all_gather(c, NULL, b.recv + (size_t)(me * n) * size, b.recv, n, dtype, &work));
    AX_TRY(ax_wait(&work));
    for (int64_t i = 0; i < (int64_t)g * n; i++)
        EXPECT(ax_load(dtype, b.recv, i) == value((int)(i / n), i % n));
    fill(dtype, b.send, me, 0, (int64_t)g * n);
    AX_TRY(ax_all_to_all(c, NULL, b.send, b.recv, n, dtype, &work));
    AX_TRY(ax_wait(&work));
    for (int64_t i = 0; i < (int64_t)g * n; i++)
        EXPECT(ax_load(dtype, b.recv, i) == value((int)(i / n), me * n + i % n));
    for (int root = 0; root < g; root++) {
        fill(dtype, b.send, me, 0, n);
        AX_TRY(ax_broadcast(c, NULL, b.send, n, dtype, root, &work));
        AX_TRY(ax_wait(&work));
        for (int64_t i = 0; i < n; i++)
            EXPECT(ax_load(dtype, b.send, i) == value(root, i));
    }
    return ax_barrier(c);
}

/* Runs all collectives with n elements, in every dtype. */
static ax_status check_size(ax_comm *c, buffers b, int64_t n)
{
    static const ax_dtype reducible[] = {AX_F64, AX_F32, AX_BF16, AX_F16, AX_I32, AX_I64};
    for (size_t i = 0; i < AX_COUNT(reducible); i++) {
        AX_TRY(check_reductions(c, b, n, reducible[i], AX_SUM));
        AX_TRY(check_reductions(c, b, n, reducible[i], AX_MAX));
        AX_TRY(check_moves(c, b, n, reducible[i]));
    }
    return AX_OK;
}

static ax_status check_sizes(ax_comm *c, size_t count, const int64_t *sizes)
{
    int64_t largest = 1;
    for (size_t i = 0; i < count; i++)
        largest = ax_max(largest, sizes[i]);
    buffers b = {0};
    ax_status status = ax_calloc((size_t)(ax_comm_size(c) * largest), 8, &b.send);
    if (status == AX_OK)
        status = ax_calloc((size_t)(ax_comm_size(c) * largest), 8, &b.recv);
    for (size_t i = 0; i < count && status == AX_OK; i++) {
        status = check_size(c, b, sizes[i]);
        if (status != AX_OK)
            ax_error_context("%lld elements", (long long)sizes[i]);
    }
    free(b.send);
    free(b.recv);
    return status;
}

ax_status check_collectives(ax_comm *c, void *arg)
{
    (void)arg;
    static const int64_t sizes[] = {0, 1, 5, COUNT};
    return check_sizes(c, AX_COUNT(sizes), sizes);
}

ax_status check_large_collectives(ax_comm *c, void *arg)
{
    (void)arg;
    static const int64_t sizes[] = {65537, 600001};
    return check_sizes(c, AX_COUNT(sizes), sizes);
}

/* Sums values whose sum depends on the order of additions. Every rank must add in rank order, in every
 * run. */
ax_status check_rank_order(ax_comm *c, void *arg)
{
    (void)arg;
    float data[COUNT];
    for (int i = 0; i < COUNT; i++)
        data[i] = ax_rng_normal(ax_rng_key(1, "order", (uint64_t)ax_comm_rank(c)), (uint64_t)i);
    ax_work *work;
    AX_TRY(ax_all_reduce(c, NULL, data, COUNT, AX_F32, AX_SUM, &work));
    AX_TRY(ax_wait(&work));
    for (int i = 0; i < COUNT; i++) {
        float sum = 0;
        for (int r = 0; r < ax_comm_size(c); r++) {
            float x = ax_rng_normal(ax_rng_key(1, "order", (uint64_t)r), (uint64_t)i);
            sum = r ? sum + x : x;
        }
        EXPECT(data[i] == sum);
    }
    data[0] = ax_comm_rank(c) == 1 ? NAN : 1;
    AX_TRY(ax_all_reduce(c, NULL, data, 1, AX_F32, AX_MAX, &work));
    AX_TRY(ax_wait(&work));
    EXPECT(isnan(data[0]));
    return AX_OK;
}

/* Splits the world into two groups: the even ranks, and the odd ranks in reverse order. Rank 6 is in neither.
 * Both groups run collectives at the same time. */
ax_status check_splits(ax_comm *world, void *arg)
{
    (void)arg;
    int me = ax_comm_rank(world);
    int odd = ax_comm_size(world) / 2, even = (ax_comm_size(world) + 1) / 2 - (ax_comm_size(world) > 6);
    ax_comm *half, *pair;
    AX_TRY(ax_comm_split(world, me == 6 ? -1 : me % 2, me % 2 ? -me : 0, &half));
    EXPECT((half == NULL) == (me == 6));
    ax_status status = AX_OK;
    if (half) {
        EXPECT(ax_comm_size(half) == (me % 2 ? odd : even));
        EXPECT(ax_comm_rank(half) == (me % 2 ? odd - 1 - me / 2 : me / 2 - (me > 6)));
        status = check_collectives(half, NULL);
        if (status == AX_OK)
            status = ax_comm_split(half, ax_comm_rank(half) / 2, 0, &pair);
        if (status == AX_OK)
            status = check_collectives(pair, NULL);
        ax_comm_destroy(&pair);
    }
    ax_comm_destroy(&half);
    return status == AX_OK ? ax_barrier(world) : status;
}

/* Ranks 0 and 1, 2 and 3, … are pairs, and each pair creates groups in which its second rank comes first.
 * Every second pair begins after the other pairs have destroyed their groups, and one of its ranks begins
 * late. A pair has two groups at the same time, creates a third one after it destroyed one of them, and a
 * fourth one as a group of a group. At the end all ranks form a group in reverse order. */
ax_status check_groups(ax_comm *world, void *arg)
{
    (void)arg;
    int g = ax_comm_size(world), me = ax_comm_rank(world), pair[] = {me | 1, me & ~1}, all[64];
    ax_comm *one, *two, *again;
    if (me / 2 % 2)
        AX_TRY(ax_barrier(world));
    if (me % 4 == 3)
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    if (pair[0] < g) {
        AX_TRY(ax_comm_group(world, pair, 2, &one));
        EXPECT(ax_comm_size(one) == 2 && ax_comm_rank(one) == !(me % 2));
        AX_TRY(ax_comm_group(world, pair, 2, &two));
        AX_TRY(check_collectives(two, NULL));
        AX_TRY(check_collectives(one, NULL));
        ax_comm_destroy(&one);
        AX_TRY(ax_comm_group(world, pair, 2, &one));
        AX_TRY(ax_comm_group(two, (int[]){1, 0}, 2, &again));
        EXPECT(ax_comm_rank(again) == me % 2);
        AX_TRY(check_collectives(again, NULL));
        AX_TRY(check_collectives(one, NULL));
        ax_comm_destroy(&again);
        ax_comm_destroy(&two);
        ax_comm_destroy(&one);
    }
    if (!(me / 2 % 2))
        AX_TRY(ax_barrier(world));
    for (int r = 0; r < g; r++)
        all[r] = g - 1 - r;
    AX_TRY(ax_comm_group(world, all, g, &again));
    EXPECT(ax_comm_rank(again) == g - 1 - me);
    AX_TRY(check_collectives(again, NULL));
    ax_comm_destroy(&again);
    return ax_comm_group(world, &all[me], 0, &again) == AX_ERR_INTERNAL ? AX_OK : AX_ERR_INTERNAL;
}

/* Runs operations of three communicators at once, and waits for them in another order than they were started
 * in. */
static ax_status overlap_once(ax_comm *world, ax_comm *row, ax_comm *own, float *data, float *gathered,
                              int64_t n)
{
    int g = ax_comm_size(world), me = ax_comm_rank(world);
    ax_work *work[6];
    for (int64_t i = 0; i < 6 * n; i++)
        data[i] = (float)value(me, i);
    AX_TRY(ax_all_reduce(world, NULL, data, n, AX_F32, AX_SUM, &work[0]));
    AX_TRY(ax_all_reduce(row, NULL, data + n, n, AX_F32, AX_SUM, &work[1]));
    AX_TRY(ax_all_gather(world, NULL, data + 2 * n, gathered, n, AX_F32, &work[2]));
    AX_TRY(ax_all_reduce(own, NULL, data + 3 * n, n, AX_F32, AX_SUM, &work[3]));
    AX_TRY(ax_broadcast(row, NULL, data + 4 * n, n, AX_F32, 0, &work[4]));
    AX_TRY(ax_all_reduce(world, NULL, data + 5 * n, n, AX_F32, AX_MAX, &work[5]));
    for (int i = 5; i >= 0; i--)
        AX_TRY(ax_wait(&work[i]));
    for (int64_t i = 0; i < n; i++) {
        double row_sum = 0;
        for (int r = me % 2; r < g; r += 2)
            row_sum += value(r, n + i);
        EXPECT(data[i] == reduced(g, AX_SUM, i));
        EXPECT(data[n + i] == row_sum);
        EXPECT(data[3 * n + i] == value(me, 3 * n + i));
        EXPECT(data[4 * n + i] == value(me % 2, 4 * n + i));
        EXPECT(data[5 * n + i] == reduced(g, AX_MAX, 5 * n + i));
        for (int r = 0; r < g; r++)
            EXPECT(gathered[r * n + i] == value(r, 2 * n + i));
    }
    return AX_OK;
}

ax_status check_overlap(ax_comm *world, void *arg)
{
    (void)arg;
    static const int64_t sizes[] = {1, 1000, 200000};
    ax_comm *row, *own;
    float *data, *gathered;
    AX_TRY(ax_comm_split(world, ax_comm_rank(world) % 2, 0, &row));
    AX_TRY(ax_comm_split(world, ax_comm_rank(world), 0, &own));
    AX_TRY(ax_calloc(6 * 200000, sizeof *data, &data));
    AX_TRY(ax_calloc((size_t)ax_comm_size(world) * 200000, sizeof *data, &gathered));
    ax_status status = AX_OK;
    for (int i = 0; i < 12 && status == AX_OK; i++)
        status = overlap_once(world, row, own, data, gathered, sizes[i % 3]);
    free(data);
    free(gathered);
    ax_comm_destroy(&own);
    ax_comm_destroy(&row);
    return status;
}

/* ---- random operations in random order ------------------------------------------------------------ */

enum { SLOTS = 6, LARGEST = 70000 };

/* An operation in flight, with what is needed to check its result. */
typedef struct slot {
    ax_comm *comm;
    ax_work *work;
    int kind; /* an ax_coll */
    int64_t n;
    int root;
    float *send, *recv;
} slot;

static int64_t random_count(uint64_t *state)
{
    static const int bound[] = {4, 100, 5000, LARGEST};
    return random_below(state, bound[random_below(state, 4)]);
}

/* Starts a random collective. All ranks of the world draw the same numbers, so that all start the same
 * collective. */
static ax_status start_random(slot *s, uint64_t *state)
{
    int g = ax_comm_size(s->comm), me = ax_comm_rank(s->comm);
    s->kind = random_below(state, 5);
    s->n = random_count(state);
    s->root = random_below(state, 1 << 20) % g;
    bool in_place = random_below(state, 2);
    fill(AX_F32, s->send, me, 0, g * s->n);
    fill(AX_F32, s->recv, me, 0, s->n);
    switch (s->kind) {
    case AX_ALL_REDUCE:
        return ax_all_reduce(s->comm, NULL, s->recv, s->n, AX_F32, AX_SUM, &s->work);
    case AX_ALL_GATHER:
        if (in_place)
            memcpy(s->recv + me * s->n, s->send, (size_t)s->n * sizeof *s->send);
        return ax_all_gather(s->comm, NULL, in_place ? s->recv + me * s->n : s->send, s->recv, s->n, AX_F32,
                             &s->work);
    case AX_REDUCE_SCATTER:
        return ax_reduce_scatter(s->comm, NULL, s->send, s->recv, s->n, AX_F32, AX_MAX, &s->work);
    case AX_ALL_TO_ALL:
        return ax_all_to_all(s->comm, NULL, s->send, s->recv, s->n, AX_F32, &s->work);
    default:
        return ax_broadcast(s->comm, NULL, s->recv, s->n, AX_F32, s->root, &s->work);
    }
}

static double expected(const slot *s, int64_t i)
{
    int g = ax_comm_size(s->comm), me = ax_comm_rank(s->comm);
    switch (s->kind) {
    case AX_ALL_REDUCE:
        return reduced(g, AX_SUM, i);
    case AX_ALL_GATHER:
        return value((int)(i / s->n), i % s->n);
    case AX_REDUCE_SCATTER:
        return reduced(g, AX_MAX, me * s->n + i);
    case AX_ALL_TO_ALL:
        return value((int)(i / s->n), me * s->n + i % s->n);
    default:
        return value(s->root, i);
    }
}

static ax_status end_random(slot *s)
{
    AX_TRY(ax_wait(&s->work));
    bool whole = s->kind == AX_ALL_GATHER || s->kind == AX_ALL_TO_ALL;
    int64_t n = whole ? ax_comm_size(s->comm) * s->n : s->n;
    for (int64_t i = 0; i < n; i++)
        if (s->recv[i] != expected(s, i))
            return ax_fail(AX_ERR_INTERNAL, "%s of %lld elements: element %lld is %g, not %g",
                           ax_coll_name((ax_coll)s->kind), (long long)s->n, (long long)i, s->recv[i],
                           expected(s, i));
    return AX_OK;
}

/* Starts operations on random communicators, each in a random slot; an operation still in that slot is waited
 * for and checked first. Some ranks are late at random. */
static ax_status random_rounds(ax_comm *world, slot *slots, ax_comm **comms, int rounds)
{
    uint64_t shared = 7, own = 1000 + (uint64_t)ax_comm_rank(world);
    for (int round = 0; round < rounds; round++) {
        slot *s = &slots[random_below(&shared, SLOTS)];
        if (s->work)
            AX_TRY(end_random(s));
        s->comm = comms[random_below(&shared, 3)];
        AX_TRY(start_random(s, &shared));
        for (volatile int late = random_below(&own, 4) ? 0 : random_below(&own, 100000); late > 0; late--)
            continue;
    }
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].work)
            AX_TRY(end_random(&slots[i]));
    return AX_OK;
}

ax_status check_random(ax_comm *world, void *arg)
{
    (void)arg;
    int me = ax_comm_rank(world), g = ax_comm_size(world), width = g % 2 ? g : 2;
    slot slots[SLOTS] = {0};
    ax_comm *comms[3] = {world};
    float *memory;
    size_t each = (size_t)g * LARGEST;
    AX_TRY(ax_comm_split(world, me / width, me, &comms[1]));
    AX_TRY(ax_comm_split(world, me % width, -me, &comms[2]));
    AX_TRY(ax_calloc(2 * SLOTS * each, sizeof *memory, &memory));
    for (int i = 0; i < SLOTS; i++) {
        slots[i].send = memory + (size_t)(2 * i) * each;
        slots[i].recv = memory + (size_t)(2 * i + 1) * each;
    }
    ax_status status = random_rounds(world, slots, comms, 300);
    ax_comm_destroy(&comms[2]);
    ax_comm_destroy(&comms[1]);
    free(memory);
    return status;
}
