/* Collectives in the shared memory of a node, with ranks as threads: each rank has its own heap and its own
 * mappings of the others' heaps. Several nodes are emulated by several such sets of ranks. The exchange
 * between nodes uses a second group, of the ranks of a column, with heaps of its own. Every result is
 * compared with one computed from the data that all ranks sent. */
#include "comm/node.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/ranks.h"

enum { MOST_RANKS = 8, HEAP = 64 << 20, ARENA = 16 << 20, FLIGHT = 6 };

typedef struct member {
    int rank;        /* in the communicator */
    ax_node *node;   /* heaps of the ranks of its node */
    ax_node *column; /* heaps of the ranks with the same number on the other nodes */
    ax_node_group *group, *outside;
    ax_node_op outside_op;
    ax_coll_args outside_args;
    int64_t outside_stride;
    char *gathered;
    int nodes;
    ax_node_outer outer;
    char *heap, *plain; /* two arenas: in the shared heap, in private memory */
} member;

typedef struct team {
    int nodes, size; /* ranks per node */
    const int *rank_of;
    const char *dir;
    pthread_barrier_t barrier;
    ax_node_card card[2][MOST_RANKS];
    int64_t place[2][MOST_RANKS];
    member member[MOST_RANKS];
    ax_status (*fn)(struct team *t, member *m);
    char failure[1024];
    ax_status status[MOST_RANKS];
} team;

static void pause_all(team *t) { pthread_barrier_wait(&t->barrier); }

/* A group cannot write blocks with a stride: an all-gather between nodes goes through `gathered`. */
static ax_status outer_start(void *user, const ax_coll_args *args, int64_t stride)
{
    member *m = user;
    ax_coll_args a = m->outside_args = *args;
    m->outside_stride = stride;
    m->gathered = NULL;
    if (a.coll == AX_ALL_GATHER) {
        AX_TRY(ax_calloc((size_t)(a.count * m->nodes), ax_dtype_size(a.dtype), &m->gathered));
        a.recv = m->gathered;
    }
    ax_node_start(m->outside, &a, &m->outside_op);
    return AX_OK;
}

static ax_status outer_test(void *user, bool *done)
{
    member *m = user;
    AX_TRY(ax_node_test(&m->outside_op, done));
    const ax_coll_args *a = &m->outside_args;
    size_t size = ax_dtype_size(a->dtype), bytes = (size_t)a->count * size;
    for (int n = 0; *done && m->gathered && n < m->nodes; n++)
        memcpy((char *)a->recv + (size_t)(n * m->outside_stride) * size, m->gathered + (size_t)n * bytes,
               bytes);
    if (*done)
        free(m->gathered);
    return AX_OK;
}

/* Creates the heaps and the group of the n ranks first + i·step. This rank is number `at` in the group. */
static ax_status connect(team *t, int kind, int first, int step, int n, int at, const ax_node_map *map,
                         const ax_node_outer *outer, ax_node **node, ax_node_group **group)
{
    int me = first + at * step, number[MOST_RANKS];
    ax_node_card cards[MOST_RANKS];
    int64_t place[MOST_RANKS];
    AX_TRY(ax_node_create(at, n, t->dir, HEAP, node, &t->card[kind][me]));
    pause_all(t);
    for (int i = 0; i < n; i++)
        cards[i] = t->card[kind][first + i * step];
    AX_TRY(ax_node_attach(*node, cards));
    pause_all(t);
    ax_node_seal(*node);
    AX_TRY(ax_node_group_create(*node, map, at, group, &t->place[kind][me]));
    pause_all(t);
    for (int i = 0; i < n; i++) {
        number[i] = i;
        place[i] = t->place[kind][first + i * step];
    }
    ax_node_group_join(*group, number, place, outer);
    return AX_OK;
}

static ax_status join(team *t, member *m, int index)
{
    static const int in_order[MOST_RANKS] = {0, 1, 2, 3, 4, 5, 6, 7};
    int node = index / t->size, at = index % t->size;
    m->rank = t->rank_of[index];
    m->nodes = t->nodes;
    m->outer = (ax_node_outer){outer_start, outer_test, m};
    ax_node_map map = {t->nodes, node, t->size, t->rank_of}, column = {1, 0, t->nodes, in_order};
    AX_TRY(connect(t, 0, node * t->size, 1, t->size, at, &map, &m->outer, &m->node, &m->group));
    AX_TRY(connect(t, 1, at, t->size, t->nodes, node, &column, NULL, &m->column, &m->outside));
    AX_TRY(ax_node_alloc(m->node, ARENA, (void **)&m->heap));
    AX_TRY(ax_calloc(1, ARENA, &m->plain));
    return t->fn(t, m);
}

typedef struct thread_arg {
    team *team;
    int index;
    pthread_t thread;
} thread_arg;

static void *thread_main(void *arg)
{
    thread_arg *a = arg;
    team *t = a->team;
    member *m = &t->member[a->index];
    t->status[a->index] = join(t, m, a->index);
    if (t->status[a->index] != AX_OK) { /* aborts, because the others would wait for ever */
        fprintf(stderr, "rank %d: %s\n", m->rank, ax_error_message());
        abort();
    }
    pause_all(t);
    ax_node_free(m->node, m->heap);
    free(m->plain);
    ax_node_group_destroy(&m->group);
    ax_node_group_destroy(&m->outside);
    ax_node_destroy(&m->node);
    ax_node_destroy(&m->column);
    return NULL;
}

static void run_in(const char *dir, int nodes, int size, const int *rank_of,
                   ax_status (*fn)(team *t, member *m))
{
    static team t;
    static const int in_order[MOST_RANKS] = {0, 1, 2, 3, 4, 5, 6, 7};
    thread_arg arg[MOST_RANKS];
    memset(&t, 0, sizeof t);
    t.nodes = nodes;
    t.size = size;
    t.dir = dir;
    t.rank_of = rank_of ? rank_of : in_order;
    t.fn = fn;
    pthread_barrier_init(&t.barrier, NULL, (unsigned)(nodes * size));
    for (int i = 0; i < nodes * size; i++) {
        arg[i] = (thread_arg){.team = &t, .index = i};
        assert_int_equal(pthread_create(&arg[i].thread, NULL, thread_main, &arg[i]), 0);
    }
    for (int i = 0; i < nodes * size; i++)
        pthread_join(arg[i].thread, NULL);
    pthread_barrier_destroy(&t.barrier);
}

static void run(int nodes, int size, const int *rank_of, ax_status (*fn)(team *t, member *m))
{
    run_in(NULL, nodes, size, rank_of, fn);
}

/* ---- random collectives -------------------------------------------------------------------------- */

typedef struct call {
    ax_coll_args args;
    ax_node_op op;
    bool done;
    int seed;
    int64_t sent, received; /* elements */
} call;

/* Element i that a rank sends: integers whose sums over eight ranks are exact in bf16. */
static double value(int seed, int rank, int64_t i)
{
    return (double)((i * 7 + rank * 5 + seed * 3) % 31) - 15;
}

static double reduced(const call *c, int ranks, int64_t i)
{
    double v = value(c->seed, 0, i);
    for (int r = 1; r < ranks; r++) {
        double x = value(c->seed, r, i);
        v = c->args.op == AX_SUM ? v + x : x > v ? x : v;
    }
    return v;
}

static double expected(const call *c, int rank, int ranks, int64_t i)
{
    int64_t n = c->args.count;
    switch (c->args.coll) {
    case AX_ALL_REDUCE:
        return reduced(c, ranks, i);
    case AX_REDUCE_SCATTER:
        return reduced(c, ranks, rank * n + i);
    case AX_ALL_GATHER:
        return value(c->seed, (int)(i / n), i % n);
    case AX_ALL_TO_ALL:
        return value(c->seed, (int)(i / n), rank * n + i % n);
    default:
        return value(c->seed, c->args.root, i);
    }
}

/* A buffer at random in the heap or in private memory, at random aligned to a cache line or not. */
static char *buffer(const member *m, size_t at, uint64_t *luck, size_t element)
{
    char *arena = random_below(luck, 3) ? m->heap : m->plain;
    return arena + at + (size_t)random_below(luck, 2) * element;
}

static call make(const member *m, int ranks, uint64_t *common, uint64_t *own, int slot)
{
    static const ax_dtype dtypes[] = {AX_F32, AX_F32, AX_BF16, AX_F16, AX_F64, AX_I32, AX_I64};
    static const int counts[] = {0, 1, 3, 17, 64, 100, 1000, 2048, 5001, 20000, 40000};
    call c = {.seed = random_below(common, 1000)};
    ax_coll_args *a = &c.args;
    a->coll = (ax_coll)random_below(common, AX_BARRIER + 1);
    a->dtype = dtypes[random_below(common, AX_COUNT(dtypes))];
    a->op = random_below(common, 3) ? AX_SUM : AX_MAX;
    a->root = random_below(common, ranks);
    a->count = a->coll == AX_BARRIER ? 0 : counts[random_below(common, AX_COUNT(counts))];
    bool scatters = a->coll == AX_REDUCE_SCATTER || a->coll == AX_ALL_TO_ALL,
         gathers = a->coll == AX_ALL_GATHER || a->coll == AX_ALL_TO_ALL;
    if (scatters || gathers)
        a->count /= ranks;
    size_t size = ax_dtype_size(a->dtype), room = (size_t)ARENA / FLIGHT / 2 / 64 * 64;
    c.sent = a->count * (scatters ? ranks : 1);
    c.received = a->count * (gathers ? ranks : 1);
    char *send = buffer(m, 2 * (size_t)slot * room, own, size),
         *recv = buffer(m, (2 * (size_t)slot + 1) * room, own, size);
    if (a->coll == AX_ALL_REDUCE || a->coll == AX_BROADCAST)
        send = recv;
    else if (a->coll == AX_ALL_GATHER && random_below(own, 2))
        send = recv + (size_t)m->rank * (size_t)a->count * size;
    for (int64_t i = 0; i < c.received; i++)
        ax_store(a->dtype, recv, i, -99);
    for (int64_t i = 0; i < c.sent; i++)
        ax_store(a->dtype, send, i, value(c.seed, m->rank, i));
    a->send = send;
    a->recv = recv;
    return c;
}

static ax_status drive(call *calls, int n)
{
    for (int left = n; left;) {
        for (int i = 0; i < n; i++)
            if (!calls[i].done) {
                AX_TRY(ax_node_test(&calls[i].op, &calls[i].done));
                left -= calls[i].done;
            }
        sched_yield();
    }
    return AX_OK;
}

static ax_status check_result(const call *c, int rank, int ranks)
{
    for (int64_t i = 0; i < c->received; i++) {
        double got = ax_load(c->args.dtype, c->args.recv, i), want = expected(c, rank, ranks, i);
        AX_CHECK(got == want, AX_ERR_INTERNAL, "%s of %lld %s, element %lld: %g, not %g",
                 ax_coll_name(c->args.coll), (long long)c->args.count, ax_dtype_name(c->args.dtype),
                 (long long)i, got, want);
    }
    return AX_OK;
}

static ax_status many(team *t, member *m)
{
    int ranks = t->nodes * t->size;
    uint64_t common = 1, own = 1000 + (uint64_t)m->rank * 100000;
    for (int round = 0; round < 40; round++) {
        call calls[FLIGHT];
        int n = 0;
        for (int i = 0; i < FLIGHT; i++) {
            calls[n] = make(m, ranks, &common, &own, n);
            if (!ax_node_takes(m->group, &calls[n].args))
                continue;
            ax_node_start(m->group, &calls[n].args, &calls[n].op);
            n++;
        }
        AX_TRY(drive(calls, n));
        for (int i = 0; i < n; i++)
            AX_TRY(check_result(&calls[i], m->rank, ranks));
    }
    return AX_OK;
}

static void collectives_are_right_on_one_node(void **state)
{
    (void)state;
    for (int size = 1; size <= 5; size++)
        run(1, size, NULL, many);
}

static void collectives_are_right_on_several_nodes(void **state)
{
    (void)state;
    static const int scattered[] = {4, 0, 2, 5, 1, 3};
    run(2, 2, NULL, many);
    run(3, 2, scattered, many);
    run(2, 3, scattered, many);
    run(4, 2, NULL, many);
}

/* Buffers of more than one part: a part is 1 MiB on one node, 4 MiB of columns with several nodes. */
static ax_status large(team *t, member *m)
{
    int ranks = t->nodes * t->size;
    for (int coll = AX_ALL_REDUCE; coll <= AX_BROADCAST; coll++)
        for (int where = 0; where < 3; where++) {
            bool one = coll == AX_ALL_REDUCE || coll == AX_BROADCAST,
                 scatters = coll == AX_REDUCE_SCATTER || coll == AX_ALL_TO_ALL,
                 gathers = coll == AX_ALL_GATHER || coll == AX_ALL_TO_ALL;
            int64_t whole = (ARENA / 2) / (int64_t)sizeof(float) - 100;
            call c = {.seed = coll, .args = {.coll = (ax_coll)coll, .dtype = AX_F32, .root = ranks - 1}};
            c.args.count = scatters || gathers ? whole / ranks : whole;
            c.sent = c.args.count * (scatters ? ranks : 1);
            c.received = c.args.count * (gathers ? ranks : 1);
            /* where: 0, all ranks' buffers are in heaps; 1, none; 2, rank 0's only. */
            char *arena = where == 0 || (where == 2 && m->rank == 0) ? m->heap : m->plain;
            float *send = (float *)arena, *recv = one ? send : (float *)(arena + ARENA / 2);
            for (int64_t i = 0; i < c.sent; i++)
                send[i] = (float)value(c.seed, m->rank, i);
            c.args.send = send;
            c.args.recv = recv;
            if (!ax_node_takes(m->group, &c.args))
                continue;
            ax_node_start(m->group, &c.args, &c.op);
            AX_TRY(drive(&c, 1));
            for (int64_t i = 0; i < c.received; i += 1 + i % 13)
                EXPECT(recv[i] == (float)expected(&c, m->rank, ranks, i));
        }
    return AX_OK;
}

static void collectives_of_large_buffers_are_right(void **state)
{
    (void)state;
    static const int scattered[] = {3, 0, 2, 1};
    run(1, 3, NULL, large);
    run(2, 2, scattered, large);
}

/* ---- order of sums, mismatched calls ------------------------------------------------------------- */

/* Whichever rank computes an element, its sum has the bits of addition in rank order. */
static ax_status sum_in_order(team *t, member *m)
{
    enum { N = 50000 };
    float *x = (float *)m->heap;
    for (int i = 0; i < N; i++)
        x[i] = ax_rng_normal((uint64_t)m->rank, (uint64_t)i);
    call c = {.args = {.coll = AX_ALL_REDUCE, .send = x, .recv = x, .count = N, .dtype = AX_F32}};
    ax_node_start(m->group, &c.args, &c.op);
    AX_TRY(drive(&c, 1));
    for (int i = 0; i < N; i++) {
        float sum = ax_rng_normal(0, (uint64_t)i);
        for (int r = 1; r < t->size; r++)
            sum += ax_rng_normal((uint64_t)r, (uint64_t)i);
        EXPECT(x[i] == sum);
    }
    return AX_OK;
}

static void sums_are_in_rank_order(void **state)
{
    (void)state;
    run(1, 2, NULL, sum_in_order);
    run(1, 5, NULL, sum_in_order);
}

static ax_status disagree(team *t, member *m)
{
    (void)t;
    call c = {.args = {.coll = AX_ALL_REDUCE,
                       .send = m->heap,
                       .recv = m->heap,
                       .count = m->rank == 1 ? 7 : 8,
                       .dtype = AX_F32}};
    ax_node_start(m->group, &c.args, &c.op);
    EXPECT(drive(&c, 1) == AX_ERR_COMM);
    EXPECT(strstr(ax_error_message(),
                  "rank 1 called all_reduce of 7 f32 where rank 0 called all_reduce of 8 f32"));
    return AX_OK;
}

static void errors_of_mismatched_calls_name_both_ranks(void **state)
{
    (void)state;
    run(1, 2, NULL, disagree);
}

/* ---- heaps --------------------------------------------------------------------------------------- */

static void *sum_bytes(const void *memory, size_t n)
{
    const volatile char *p = memory;
    uintptr_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (uintptr_t)p[i];
    return (void *)sum;
}

static void heaps_allocate_zeroed_memory_and_free_it(void **state)
{
    (void)state;
    ax_node *node;
    ax_node_card card;
    assert_int_equal(ax_node_create(0, 1, NULL, 64 << 20, &node, &card), AX_OK);
    char *a, *b, *c, *again;
    assert_int_equal(ax_node_alloc(node, 100, (void **)&a), AX_OK);
    assert_int_equal(ax_node_alloc(node, 20 << 20, (void **)&b), AX_OK);
    assert_int_equal(ax_node_alloc(node, 0, (void **)&c), AX_OK);
    assert_int_equal((uintptr_t)a % 4096, 0);
    assert_null(sum_bytes(b, 20 << 20));
    memset(a, 1, 100);
    memset(b, 1, 20 << 20);
    assert_true(ax_node_offset(node, a, 100) > 0);
    assert_true(ax_node_offset(node, b + 5, 100) == ax_node_offset(node, b, 1) + 5);
    assert_ptr_equal(ax_node_at(node, 0, ax_node_offset(node, b, 1)), b);
    int local;
    assert_int_equal(ax_node_offset(node, &local, sizeof local), -1);
    assert_int_equal(ax_node_offset(node, b, 64 << 20), -1);
    ax_node_free(node, b);
    ax_node_free(node, NULL);
    assert_int_equal(ax_node_alloc(node, 20 << 20, (void **)&again), AX_OK);
    assert_ptr_equal(again, b); /* the first gap */
    assert_null(sum_bytes(again, 20 << 20));
    void *none = a;
    assert_int_equal(ax_node_alloc(node, 80 << 20, &none), AX_ERR_MEMORY);
    assert_null(none);
    /* Many small ones, freed in another order. */
    void *small[100];
    for (int i = 0; i < 100; i++)
        assert_int_equal(ax_node_alloc(node, (size_t)i * 1000, &small[i]), AX_OK);
    for (int i = 0; i < 100; i++)
        ax_node_free(node, small[(i * 37) % 100]);
    ax_node_free(node, a);
    ax_node_free(node, again);
    ax_node_free(node, c);
    ax_node_destroy(&node);
    assert_null(node);
}

/* Runs fn in a child process; returns the signal that ended it, or its negated exit code. */
static int in_child(void (*fn)(void))
{
    pid_t child = fork();
    if (child == 0) {
        fn();
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status);
}

static void overrun(void)
{
    ax_node *node;
    ax_node_card card;
    char *a;
    signal(SIGSEGV, SIG_DFL); /* removes the sanitizer's handler, which would print a report */
    if (ax_node_create(0, 1, NULL, 4 << 20, &node, &card) || ax_node_alloc(node, 4096, (void **)&a))
        _exit(1);
    a[4096] = 1;
}

static void an_overrun_faults(void **state)
{
    (void)state;
    assert_int_equal(in_child(overrun), SIGSEGV);
}

static void limited(void)
{
    ax_node *node;
    ax_node_card card;
    struct rlimit limit = {(rlim_t)1 << 40, (rlim_t)1 << 40};
    if (setrlimit(RLIMIT_AS, &limit))
        _exit(2);
    _exit(ax_node_create(0, 1, NULL, 0, &node, &card) == AX_ERR_MEMORY &&
                  strstr(ax_error_message(), "ulimit -v") && !card.token
              ? 0
              : 1);
}

static void a_limited_address_space_is_an_error(void **state)
{
    (void)state;
    assert_int_equal(in_child(limited), 0);
}

static void attaching_the_wrong_file_is_an_error(void **state)
{
    (void)state;
    ax_node *a, *b;
    ax_node_card card[2];
    assert_int_equal(ax_node_create(0, 2, NULL, 4 << 20, &a, &card[0]), AX_OK);
    assert_int_equal(ax_node_create(1, 2, NULL, 4 << 20, &b, &card[1]), AX_OK);
    uint64_t token = card[1].token++;
    assert_int_equal(ax_node_attach(a, card), AX_ERR_COMM);
    assert_non_null(
        strstr(ax_error_message(), "this rank cannot use the shared memory of rank 1 of this node: "));
    assert_non_null(strstr(ax_error_message(), "is not the file that the other rank created"));
    card[1].token = 0;
    assert_int_equal(ax_node_attach(a, card), AX_ERR_COMM);
    ax_node_destroy(&b);
    card[1].token = token;
    assert_int_equal(ax_node_attach(a, card), AX_ERR_COMM);
    ax_node_destroy(&a);
}

/* A tmpfs of 8 MiB (containers have 64 MiB): an allocation that does not fit is an error, and allocated
 * memory never causes SIGBUS. */
static void fill_small(void)
{
    char dir[] = "/tmp/axonn-node-XXXXXX";
    ax_node *node;
    ax_node_card card;
    char *a, *b;
    if (!mkdtemp(dir))
        _exit(2);
    if (mount("axonn", dir, "tmpfs", 0, "size=8m")) {
        rmdir(dir);
        _exit(77);
    }
    bool ok = ax_node_create(0, 1, dir, 64 << 20, &node, &card) == AX_OK && !access(card.path, R_OK) &&
              ax_node_alloc(node, 5 << 20, (void **)&a) == AX_OK &&
              ax_node_alloc(node, 5 << 20, (void **)&b) == AX_ERR_MEMORY && !b &&
              strstr(ax_error_message(), strerror(ENOSPC));
    if (ok) {
        memset(a, 1, 5 << 20);
        ax_node_free(node, a);
        ok = ax_node_alloc(node, 7 << 20, (void **)&b) == AX_OK;
    }
    if (ok) {
        memset(b, 1, 7 << 20);
        ax_node_seal(node);
        ok = access(card.path, R_OK) != 0;
        ax_node_destroy(&node);
    }
    umount2(dir, MNT_DETACH);
    rmdir(dir);
    _exit(ok ? 0 : 1);
}

static void a_full_file_system_is_an_error(void **state)
{
    (void)state;
    int code = -in_child(fill_small);
    if (code == 77)
        skip(); /* only root may mount */
    assert_int_equal(code, 0);
}

static void heaps_can_be_files_in_a_directory(void **state)
{
    (void)state;
    run_in("/dev/shm", 1, 3, NULL, many);
    /* Temporary directories of batch systems and CI have long names. */
    char dir[512] = "/dev/shm/axonn-node-XXXXXX", deep[400];
    assert_non_null(mkdtemp(dir));
    snprintf(deep, sizeof deep, "%s/%0200d", dir, 0);
    assert_int_equal(mkdir(deep, 0700), 0);
    run_in(deep, 1, 3, NULL, many);
    assert_int_equal(ax_remove_tree(dir), AX_OK);
    /* A path that no system call takes. */
    char *endless;
    ax_node *node;
    ax_node_card card;
    assert_int_equal(ax_calloc(AX_NODE_PATH + 1, 1, &endless), AX_OK);
    memset(endless, 'x', AX_NODE_PATH);
    assert_int_equal(ax_node_create(0, 1, endless, 0, &node, &card), AX_ERR_USAGE);
    assert_non_null(strstr(ax_error_message(), "has 4096 bytes"));
    free(endless);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_are_right_on_one_node),
        cmocka_unit_test(collectives_are_right_on_several_nodes),
        cmocka_unit_test(collectives_of_large_buffers_are_right),
        cmocka_unit_test(sums_are_in_rank_order),
        cmocka_unit_test(errors_of_mismatched_calls_name_both_ranks),
        cmocka_unit_test(heaps_allocate_zeroed_memory_and_free_it),
        cmocka_unit_test(an_overrun_faults),
        cmocka_unit_test(a_limited_address_space_is_an_error),
        cmocka_unit_test(attaching_the_wrong_file_is_an_error),
        cmocka_unit_test(a_full_file_system_is_an_error),
        cmocka_unit_test(heaps_can_be_files_in_a_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
