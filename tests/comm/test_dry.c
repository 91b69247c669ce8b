/* comm: the world of a dry run moves nothing and has no other ranks. */
#include "axonn/comm.h"
#include "support/check.h"

#include <setjmp.h>
#include <string.h>

#include <cmocka.h>

typedef struct seen {
    int calls;
    unsigned kind;
    const ax_comm *comm;
    int n;
    ax_operand operand[2];
} seen;

static void note(void *user, const ax_device_event *e)
{
    seen *s = user;
    *s = (seen){s->calls + 1, e->kind, e->comm, e->operands, {{0}}};
    memcpy(s->operand, e->operand, (size_t)e->operands * sizeof *e->operand);
}

static bool is(const ax_operand *o, const void *at, int64_t count, ax_access access)
{
    return o->at == at && o->count == count && o->span == count && o->dtype == AX_F32 && o->access == access;
}

/* True if the observed operands are `sent` F32 elements at `send` and `received` F32 elements at `recv`. */
static bool saw(const seen *s, const void *send, int64_t sent, const void *recv, int64_t received)
{
    return s->n == 2 && is(&s->operand[0], send, sent, AX_READ) &&
           is(&s->operand[1], recv, received, AX_WRITE);
}

static void operations_only_report_their_operands(void **state)
{
    (void)state;
    seen s = {0};
    ax_comm *world;
    ax_device *dev;
    void *data;
    ax_work *work, *receive;
    OK(ax_comm_dry_create(2, 4, &world));
    OK(ax_device_open("dry", 1, &dev));
    ax_listener listener = {AX_ON_COLLECTIVE | AX_ON_MESSAGE | AX_ON_WAIT, note, &s, NULL};
    ax_device_listen(dev, &listener);
    ax_stream stream = {.dev = dev};
    OK(ax_device_alloc(dev, 4096, &data));
    char *other = (char *)data + 512;
    OK(ax_all_reduce(world, &stream, data, 1000, AX_F32, AX_MAX, &work));
    assert_true(s.calls == 1 && s.kind == AX_ON_COLLECTIVE && s.comm == world &&
                saw(&s, data, 1000, data, 1000));
    assert_true(ax_comm_traffic_get(world).bytes == 2 * 3 * 4000 / 4 &&
                ax_comm_traffic_get(world).calls == 1);
    OK(ax_wait(&work)); /* reports the operands a second time */
    assert_true(s.calls == 2 && s.kind == AX_ON_WAIT && s.comm == world && saw(&s, data, 1000, data, 1000));
    OK(ax_reduce_scatter(world, &stream, data, other, 10, AX_F32, AX_SUM, &work));
    assert_true(saw(&s, data, 40, other, 10));
    OK(ax_wait(&work));
    OK(ax_all_gather(world, &stream, data, other, 10, AX_F32, &work));
    assert_true(saw(&s, data, 10, other, 40));
    OK(ax_wait(&work));
    const ax_message m = {.kind = AX_MESSAGE_ACTIVATION, .dtype = AX_F32, .ndim = 2, .dim = {3, 7}};
    OK(ax_send(world, &stream, &m, data, 3, &work));
    assert_true(s.kind == AX_ON_MESSAGE && s.n == 1 && is(&s.operand[0], data, 21, AX_READ));
    OK(ax_recv(world, &stream, &m, other, 1, &receive));
    assert_true(s.n == 1 && is(&s.operand[0], other, 21, AX_WRITE));
    assert_true(ax_work_done(work) && ax_work_done(receive));
    OK(ax_wait(&work));
    assert_true(s.calls == 9 && is(&s.operand[0], data, 21, AX_READ));
    /* The receive is never awaited: its handle is freed with the communicator, so the address sanitizer finds
     * no leak here. */
    ax_device_free(dev, data, 4096);
    ax_device_close(&dev);
    ax_comm_destroy(&world);
}

static void groups_are_dry_too(void **state)
{
    (void)state;
    const int three[] = {1, 2, 3}, alone[] = {2};
    ax_comm *world, *group, *one, *none;
    ax_work *work;
    double x = 0;
    OK(ax_comm_dry_create(2, 4, &world));
    OK(ax_comm_group(world, three, 3, &group));
    assert_true(ax_comm_rank(group) == 1 && ax_comm_size(group) == 3);
    OK(ax_comm_group(world, alone, 1, &one));
    assert_true(ax_comm_rank(one) == 0 && ax_comm_size(one) == 1);
    FAILS(AX_ERR_INTERNAL, "no other ranks", ax_all_reduce(one, NULL, &x, 1, AX_F64, AX_SUM, &work));
    FAILS(AX_ERR_INTERNAL, "no other ranks", ax_barrier(group));
    FAILS(AX_ERR_INTERNAL, "ax_comm_group", ax_comm_split(world, 0, 0, &none));
    ax_comm_destroy(&one);
    ax_comm_destroy(&group);
    ax_comm_destroy(&world);
    FAILS(AX_ERR_USAGE, "no rank 4", ax_comm_dry_create(4, 4, &world));
}

/* A rank that is alone gets what it gave, and zeros of the ranks that do not exist. */
static void alone_decides_for_all(void **state)
{
    (void)state;
    ax_comm *world, *group;
    ax_work *work;
    const int order[] = {2, 0, 1};
    int32_t mine[3] = {7, 8, 9}, all[3] = {1, 1, 1}, part[3] = {5, 5, 5};
    OK(ax_comm_alone_create(3, &world));
    assert_true(ax_comm_rank(world) == 0 && ax_comm_size(world) == 3 && ax_comm_is_dry(world));
    OK(ax_all_reduce(world, NULL, mine, 3, AX_I32, AX_SUM, &work));
    OK(ax_wait(&work));
    assert_true(mine[0] == 7 && mine[1] == 8 && mine[2] == 9);
    OK(ax_all_gather(world, NULL, mine, all, 1, AX_I32, &work));
    OK(ax_wait(&work));
    assert_true(all[0] == 7 && !all[1] && !all[2]);
    OK(ax_reduce_scatter(world, NULL, mine, part, 1, AX_I32, AX_MAX, &work));
    OK(ax_wait(&work));
    assert_true(part[0] == 7 && part[1] == 5);
    OK(ax_all_to_all(world, NULL, mine, part, 1, AX_I32, &work));
    OK(ax_wait(&work));
    assert_true(part[0] == 7 && !part[1] && !part[2]);
    OK(ax_barrier(world));
    OK(ax_comm_agree(world, AX_OK));
    assert_int_equal(ax_comm_agree(world, ax_fail(AX_ERR_DATA, "no file")), AX_ERR_DATA);
    assert_string_equal(ax_error_message(), "no file");
    OK(ax_comm_group(world, order, 3, &group));
    assert_true(ax_comm_rank(group) == 1 && ax_comm_size(group) == 3);
    ax_comm_destroy(&group);
    ax_comm_destroy(&world);
}

/* The worst placed of the groups along the same axes counts, in the numbers of the world. */
static void places_are_those_of_the_world(void **state)
{
    (void)state;
    static const struct {
        int world, n, ranks[4], node;
        ax_comm_place want;
    } cases[] = {{16, 4, {0, 1, 2, 3}, 4, {1, 4}},  {16, 4, {0, 1, 2, 3}, 6, {1, 2}},
                 {16, 2, {0, 1}, 6, {1, 2}},        {16, 4, {0, 4, 8, 12}, 8, {4, 2}},
                 {12, 3, {0, 4, 8}, 6, {4, 2}},     {8, 4, {0, 1, 4, 5}, 4, {1, 2}},
                 {16, 4, {0, 8, 2, 10}, 8, {2, 2}}, {16, 2, {0, 12}, 4, {12, 1}}};
    ax_comm *world, *group;
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        OK(ax_comm_dry_create(0, cases[i].world, &world));
        OK(ax_comm_group(world, cases[i].ranks, cases[i].n, &group));
        for (int again = 0; again < 2; again++) {
            const ax_comm_place p = ax_comm_place_of(group, cases[i].node);
            if (p.inner != cases[i].want.inner || p.in_node != cases[i].want.in_node)
                fail_msg("case %zu: distance %d, %d in a node", i, p.inner, p.in_node);
            assert_int_equal(ax_comm_place_of(group, 1).in_node, 1);
        }
        ax_comm_destroy(&group);
        ax_comm_destroy(&world);
    }
    const int numbers[] = {0, 4, 1, 5, 2, 6, 3, 7}, pair[] = {2, 3};
    OK(ax_comm_dry_create(3, 8, &world));
    OK(ax_comm_dry_number(world, numbers));
    OK(ax_comm_group(world, pair, 2, &group));
    assert_int_equal(ax_comm_world_rank(group, 0), 1);
    assert_int_equal(ax_comm_world_rank(group, 1), 5);
    assert_int_equal(ax_comm_place_of(group, 4).inner, 4);
    assert_int_equal(ax_comm_place_of(group, 4).in_node, 1);
    assert_int_equal(ax_comm_place_of(world, 4).in_node, 4);
    ax_comm_destroy(&group);
    ax_comm_destroy(&world);
}

static void start_scatter(ax_comm *comm, ax_stream *stream, void *data, int64_t count, ax_work **work)
{
    OK(ax_reduce_scatter(comm, stream, data, (char *)data + (64 << 20), count, AX_F32, AX_SUM, work));
}

static void expect_buffers(ax_comm *comm, const ax_comm_buffers *want)
{
    const ax_comm_buffers got = ax_comm_buffers_of(comm);
    assert_memory_equal(got.piece, want->piece, sizeof got.piece);
    assert_memory_equal(got.exchange, want->exchange, sizeof got.exchange);
    assert_int_equal(got.columns, want->columns);
}

/* Pieces of a reduction have 1 MiB of scratch, the last what is left; those that are in flight together
 * count. */
static void buffers_are_those_in_flight(void **state)
{
    (void)state;
    enum { MIB = 1 << 20 };
    const ax_comm_buffers apart = {.piece = {MIB, 2 * (200000 - 131072) * 4, 2 * 4 * 10}},
                          among = {.exchange = {MIB, MIB, MIB, MIB}, .columns = 4 * MIB},
                          none = {.columns = 0};
    ax_comm *world, *group;
    ax_device *dev;
    void *data;
    ax_work *a, *b, *c;
    OK(ax_device_open("dry", 1, &dev));
    OK(ax_device_alloc(dev, 128 << 20, &data));
    ax_stream stream = {.dev = dev};
    const int pair[] = {1, 2};
    for (int shared = 0; shared < 2; shared++) { /* ranks of a node without shared memory are apart too */
        OK(ax_comm_dry_create(1, 4, &world));
        OK(ax_comm_dry_nodes(world, shared ? 2 : 4, shared));
        OK(ax_comm_group(world, pair, 2, &group));
        start_scatter(group, &stream, data, 10, &a);
        start_scatter(group, &stream, data, 200000, &b);
        OK(ax_all_gather(group, &stream, data, data, 5000000, AX_F32, &c));
        expect_buffers(group, &apart);
        OK(ax_wait(&a));
        start_scatter(group, &stream, data, 9, &a);
        expect_buffers(group, &apart);
        expect_buffers(world, &none);
        ax_comm_destroy(&group);
        if (shared) { /* two ranks on each of two nodes exchange one operation at a time */
            start_scatter(world, &stream, data, 1000000, &a);
            start_scatter(world, &stream, data, 1000000, &b);
            expect_buffers(world, &among);
        }
        ax_comm_destroy(&world);
    }
    OK(ax_comm_dry_create(1, 4, &world));
    OK(ax_comm_dry_nodes(world, 4, true));
    start_scatter(world, &stream, data, 1000000, &a);
    expect_buffers(world, &none);
    ax_comm_destroy(&world);
    ax_device_free(dev, data, 128 << 20);
    ax_device_close(&dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone_decides_for_all),
        cmocka_unit_test(operations_only_report_their_operands),
        cmocka_unit_test(groups_are_dry_too),
        cmocka_unit_test(places_are_those_of_the_world),
        cmocka_unit_test(buffers_are_those_in_flight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
