/* Binding of threads to cores: the rule, for invented machines, and its use by ranks that are threads of this
 * process on the real machine. */
#include "grid/threads.h"

#include <math.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { HERE = 1, THERE = 2, MOST = 16 };

static ax_threads_member rank_on(uint64_t host, uint64_t cores, int threads)
{
    return (ax_threads_member){
        .host = host,
        .cores = {.machine = 64, .quota = INFINITY, .usable = {cores}, .physical = true},
        .threads = threads};
}

/* The cores to which rank `rank` is bound, one for each of its threads; 0 if it is not bound, and then
 * .why_not gives the reason. */
static uint64_t bound(const ax_threads_member *all, int n, int rank)
{
    ax_binding b;
    ax_threads_bind(all, n, rank, &b);
    assert_int_equal(b.n, b.why_not ? 0 : all[rank].threads);
    assert_int_equal(__builtin_popcountll(b.cores[0]), b.n);
    return b.cores[0];
}

static void cores_are_shared_in_order(void **state)
{
    (void)state;
    const ax_threads_member one[] = {rank_on(HERE, 0xf, 4)};
    assert_int_equal(bound(one, 1, 0), 0xf);
    const ax_threads_member uneven[] = {rank_on(HERE, 0x7f, 1), rank_on(THERE, 3, 2), rank_on(HERE, 0x7f, 4),
                                        rank_on(HERE, 0x7f, 2)};
    assert_int_equal(bound(uneven, 4, 0), 0x01);
    assert_int_equal(bound(uneven, 4, 1), 0x03);
    assert_int_equal(bound(uneven, 4, 2), 0x1e);
    assert_int_equal(bound(uneven, 4, 3), 0x60);
}

static void affinity_masks_of_a_launcher_are_kept(void **state)
{
    (void)state;
    const ax_threads_member apart[] = {rank_on(HERE, 0xf0, 4), rank_on(HERE, 0x05, 2)};
    assert_int_equal(bound(apart, 2, 0), 0xf0);
    assert_int_equal(bound(apart, 2, 1), 0x05);
    /* Rank 0 takes the only cores that rank 1 may use. Both ranks find this out, and neither is bound. */
    const ax_threads_member overlap[] = {rank_on(HERE, 0x7, 1), rank_on(HERE, 0x3, 2)};
    assert_int_equal(bound(overlap, 2, 0), 0);
    assert_int_equal(bound(overlap, 2, 1), 0);
}

static void ranks_are_not_bound_where_it_could_slow_them(void **state)
{
    (void)state;
    ax_threads_member all[] = {rank_on(HERE, 0xf, 2), rank_on(HERE, 0xf, 2), rank_on(THERE, 0xf, 4)};
    const ax_threads_member good = all[0];
    assert_int_equal(bound(all, 3, 0), 0x3);
    all[0].threads = 3; /* more threads than cores */
    assert_int_equal(bound(all, 3, 1), 0);
    all[0].threads = 1; /* a core would stay unused */
    assert_int_equal(bound(all, 3, 1), 0);
    all[0] = good;
    all[0].pin_off = true;
    assert_int_equal(bound(all, 3, 1), 0);
    all[0] = good;
    all[0].cores.quota = 3.5;
    assert_int_equal(bound(all, 3, 1), 0);
    all[0].cores.quota = 4;
    assert_int_equal(bound(all, 3, 1), 0xc);
    all[0].cores.physical = false;
    assert_int_equal(bound(all, 3, 1), 0);
    assert_int_equal(bound(all, 3, 2), 0xf); /* another machine */
}

/* For each rank of this process its binding, and its affinity mask before, during and after that. */
typedef struct seen {
    int wanted;
    cpu_set_t before[MOST], during[MOST], after[MOST];
    ax_binding binding[MOST];
} seen;

static ax_status record_bindings(ax_comm *world, void *arg)
{
    seen *s = arg;
    int me = ax_comm_rank(world);
    ax_grid_size size = {.of = {[AX_DATA] = ax_comm_size(world)}};
    ax_threads threads;
    ax_ctx *ctx;
    sched_getaffinity(0, sizeof(cpu_set_t), &s->before[me]);
    AX_TRY(ax_threads_share(world, s->wanted, &threads));
    s->binding[me] = threads.binding;
    AX_TRY(ax_ctx_create_with(world, size, "cpu", &threads, AX_F32, 1, &ctx));
    sched_getaffinity(0, sizeof(cpu_set_t), &s->during[me]);
    ax_ctx_destroy(&ctx);
    sched_getaffinity(0, sizeof(cpu_set_t), &s->after[me]);
    return AX_OK;
}

static void run_ranks(int ranks, int wanted, seen *s)
{
    memset(s, 0, sizeof *s);
    s->wanted = wanted;
    assert_int_equal(ax_comm_threads_run(ranks, record_bindings, s), AX_OK);
    for (int r = 0; r < ranks; r++)
        assert_true(CPU_EQUAL(&s->before[r], &s->after[r]));
}

static int cores_here(bool *can_bind)
{
    ax_cores cores;
    int n = 0;
    ax_cores_find(&cores);
    for (int w = 0; w < AX_CORES_MAX / 64; w++)
        n += __builtin_popcountll(cores.usable[w]);
    *can_bind = cores.physical && cores.quota >= n;
    return n;
}

static void ranks_of_a_process_share_the_cores(void **state)
{
    (void)state;
    static seen s;
    bool can_bind;
    cpu_set_t sum, common;
    int cores = cores_here(&can_bind);
    if (!can_bind || cores > MOST)
        skip();
    run_ranks(cores, 1, &s);
    CPU_ZERO(&sum);
    for (int r = 0; r < cores; r++) {
        assert_int_equal(s.binding[r].n, 1);
        CPU_AND(&common, &sum, &s.during[r]);
        assert_int_equal(CPU_COUNT(&common), 0);
        CPU_OR(&sum, &sum, &s.during[r]);
    }
    assert_true(CPU_EQUAL(&sum, &s.before[0]));
}

static void more_ranks_than_cores_are_not_bound(void **state)
{
    (void)state;
    static seen s;
    bool can_bind;
    int cores = cores_here(&can_bind);
    if (cores >= MOST)
        skip();
    run_ranks(cores + 1, 1, &s);
    for (int r = 0; r <= cores; r++) {
        assert_int_equal(s.binding[r].n, 0);
        assert_non_null(s.binding[r].why_not);
        assert_true(CPU_EQUAL(&s.during[r], &s.before[r]));
    }
}

static void users_can_turn_binding_off(void **state)
{
    (void)state;
    static seen s;
    setenv("AXONN_PIN", "off", 1);
    run_ranks(1, 0, &s);
    assert_int_equal(s.binding[0].n, 0);
    assert_true(CPU_EQUAL(&s.during[0], &s.before[0]));
    setenv("AXONN_PIN", "sometimes", 1);
    assert_int_equal(ax_comm_threads_run(2, record_bindings, &s), AX_ERR_USAGE);
    unsetenv("AXONN_PIN");
}

int main(void)
{
    unsetenv("AXONN_PIN");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cores_are_shared_in_order),
        cmocka_unit_test(affinity_masks_of_a_launcher_are_kept),
        cmocka_unit_test(ranks_are_not_bound_where_it_could_slow_them),
        cmocka_unit_test(ranks_of_a_process_share_the_cores),
        cmocka_unit_test(more_ranks_than_cores_are_not_bound),
        cmocka_unit_test(users_can_turn_binding_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
