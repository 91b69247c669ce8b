/* comm: collectives of rank threads against their definitions; failures, mismatched calls, deadlocks. */
#include "axonn/comm.h"
#include "support/collectives.h"
#include "support/lazy.h"
#include "support/messages.h"
#include "support/ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { MAX_RANKS = 8 };

static void collectives_are_right(void **state)
{
    (void)state;
    for (int size = 1; size <= MAX_RANKS; size++)
        assert_ranks(size, check_collectives, NULL);
}

static void self_is_a_group_of_one(void **state)
{
    (void)state;
    ax_comm *self, *sub;
    assert_int_equal(ax_comm_self_create(&self), AX_OK);
    assert_int_equal(check_collectives(self, NULL), AX_OK);
    assert_int_equal(ax_comm_split(self, 3, 0, &sub), AX_OK);
    assert_int_equal(check_collectives(sub, NULL), AX_OK);
    assert_int_equal(ax_comm_traffic_get(sub).bytes, 0);
    assert_int_equal(ax_comm_traffic_get(sub).calls, 0);
    ax_comm_abort(sub, AX_ERR_COMM, NULL);
    assert_int_equal(ax_barrier(self), AX_ERR_COMM);
    ax_comm_destroy(&sub);
    assert_null(sub);
    assert_int_equal(ax_comm_split(self, -1, 0, &sub), AX_ERR_COMM);
    ax_comm_destroy(&self);
}

static void reductions_keep_rank_order_and_nan(void **state)
{
    (void)state;
    assert_ranks(8, check_rank_order, NULL);
}

static void operations_overlap(void **state)
{
    (void)state;
    assert_ranks(8, check_overlap, NULL);
    assert_ranks(4, check_random, NULL);
}

static ax_status traffic_of_four(ax_comm *c, void *arg)
{
    (void)arg;
    float send[64] = {0}, recv[64];
    ax_work *work;
    AX_TRY(ax_all_reduce(c, NULL, send, 16, AX_F32, AX_SUM, &work));
    EXPECT(ax_comm_traffic_get(c).bytes == 2 * 16 * 4 * 3 / 4);
    AX_TRY(ax_all_gather(c, NULL, send, recv, 16, AX_F32, &work));
    EXPECT(ax_comm_traffic_get(c).bytes == 96 + 16 * 4 * 3);
    AX_TRY(ax_reduce_scatter(c, NULL, send, recv, 16, AX_F32, AX_SUM, &work));
    EXPECT(ax_comm_traffic_get(c).bytes == 96 + 2 * 16 * 4 * 3);
    AX_TRY(ax_all_to_all(c, NULL, send, recv, 16, AX_F32, &work));
    EXPECT(ax_comm_traffic_get(c).bytes == 96 + 3 * 16 * 4 * 3);
    AX_TRY(ax_broadcast(c, NULL, send, 16, AX_F32, 2, &work));
    EXPECT(ax_comm_traffic_get(c).bytes == 96 + 3 * 16 * 4 * 3 + 48);
    AX_TRY(ax_barrier(c));
    EXPECT(ax_comm_traffic_get(c).calls == 6);
    return AX_OK;
}

static void traffic_is_ring_equivalent(void **state)
{
    (void)state;
    assert_ranks(4, traffic_of_four, NULL);
}

static void splits_can_be_reordered_and_nested(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++)
        assert_ranks(8, check_splits, NULL);
}

static void groups_are_created_by_their_ranks_alone(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 8; ranks++)
        assert_ranks(ranks, check_groups, NULL);
}

static void messages_arrive_in_order(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks++) {
        assert_ranks(ranks, check_messages, NULL);
        assert_ranks(ranks, check_message_window, NULL);
        assert_ranks(ranks, check_message_ring, NULL);
        assert_ranks(ranks, check_late_data, NULL);
    }
}

static ax_status messages_over_lazy(ax_comm *world, void *arg)
{
    ax_comm *late;
    AX_TRY(lazy_create(world, NULL, &late));
    ax_status status = check_message_ring(late, arg);
    ax_comm_destroy(&late);
    return status;
}

static void lazy_messages_arrive_when_awaited(void **state)
{
    (void)state;
    assert_ranks(3, messages_over_lazy, NULL);
}

/* ---- failures ------------------------------------------------------------------------------------ */

typedef struct outcome {
    ax_status status[MAX_RANKS];
    char message[MAX_RANKS][256];
    int kind;
} outcome;

static ax_status noted(ax_comm *c, outcome *o, ax_status status)
{
    int me = ax_comm_rank(c);
    o->status[me] = status;
    snprintf(o->message[me], sizeof o->message[me], "%s", status == AX_OK ? "" : ax_error_message());
    return status;
}

static ax_status mismatch(ax_comm *c, void *arg)
{
    outcome *o = arg;
    float a[64] = {0}, b[64];
    ax_work *work;
    bool odd = ax_comm_rank(c) == 1;
    switch (o->kind) {
    case 0:
        return noted(c, o,
                     odd ? ax_all_gather(c, NULL, a, b, 12, AX_F32, &work)
                         : ax_all_reduce(c, NULL, a, 8, AX_F32, AX_SUM, &work));
    case 1:
        return noted(c, o, ax_all_gather(c, NULL, a, b, odd ? 4 : 8, AX_F32, &work));
    case 2:
        return noted(c, o, ax_all_gather(c, NULL, a, b, 8, odd ? AX_BF16 : AX_F32, &work));
    case 3:
        return noted(c, o, ax_all_reduce(c, NULL, a, 8, AX_F32, odd ? AX_MAX : AX_SUM, &work));
    case 4:
        return noted(c, o, ax_broadcast(c, NULL, a, 8, AX_F32, odd ? 1 : 0, &work));
    default: {
        ax_comm *sub = NULL;
        return noted(c, o, odd ? ax_comm_split(c, 0, 0, &sub) : ax_barrier(c));
    }
    }
}

static ax_status mismatched_messages(ax_comm *c, void *arg)
{
    int kind = *(int *)arg, me = ax_comm_rank(c);
    float data[64] = {0};
    ax_work *work = NULL;
    ax_message m = {.dtype = AX_F32, .step = 5, .micro_batch = 3, .ndim = 2, .dim = {4, 8}};
    m.step += me == 1 && kind == 0;
    m.micro_batch += me == 1 && kind == 1;
    m.dim[1] += me == 1 && kind == 2;
    m.dtype = me == 1 && kind == 3 ? AX_BF16 : AX_F32;
    m.chunk = me == 1 && kind == 4 ? 2 : 0;
    if (me < 2)
        AX_TRY(me == 0 ? ax_send(c, NULL, &m, data, 1, &work) : ax_recv(c, NULL, &m, data, 0, &work));
    AX_TRY(ax_wait(&work));
    return ax_barrier(c);
}

static void errors_of_mismatched_messages_name_both_ranks(void **state)
{
    (void)state;
    static const char *const expected[] = {"activation of micro-batch 3 of step 6, f32 [4, 8]",
                                           "activation of micro-batch 4 of step 5, f32 [4, 8]",
                                           "activation of micro-batch 3 of step 5, f32 [4, 9]",
                                           "activation of micro-batch 3 of step 5, bf16 [4, 8]",
                                           "activation of micro-batch 3 of step 5 for chunk 2, f32 [4, 8]"};
    for (int kind = 0; kind < (int)AX_COUNT(expected); kind++) {
        char text[256];
        snprintf(
            text, sizeof text,
            "rank 0 sent the activation of micro-batch 3 of step 5, f32 [4, 8], where rank 1 receives the %s",
            expected[kind]);
        assert_int_equal(ax_comm_threads_run(3, mismatched_messages, &kind), AX_ERR_COMM);
        assert_non_null(strstr(ax_error_message(), text));
    }
}

/* Ranks 0 and 1 wait for each other's messages, rank 2 in a barrier or, with *arg, has returned. */
static ax_status crossed_messages(ax_comm *c, void *arg)
{
    int me = ax_comm_rank(c);
    float data[2] = {0};
    ax_work *work[2] = {NULL, NULL};
    ax_message m = {
        .kind = AX_MESSAGE_GRADIENT, .dtype = AX_F32, .step = 5, .micro_batch = 3, .ndim = 1, .dim = {1}};
    if (me == 2)
        return *(bool *)arg ? AX_OK : ax_barrier(c);
    AX_TRY(ax_recv(c, NULL, &m, &data[0], 1 - me, &work[0]));
    AX_TRY(ax_recv(c, NULL, &m, &data[1], 2, &work[1]));
    AX_TRY(ax_wait_some(c, work, 2));
    return ax_wait(&work[ax_work_done(work[0]) ? 0 : 1]);
}

static void deadlocks_in_messages_are_found(void **state)
{
    (void)state;
    for (int returns = 0; returns < 2; returns++) {
        bool arg = returns;
        assert_int_equal(ax_comm_threads_run(3, crossed_messages, &arg), AX_ERR_COMM);
        assert_non_null(strstr(ax_error_message(),
                               "rank 0 in receive of gradient of micro-batch 3 of step 5, f32 [1] "
                               "from rank 1"));
        assert_non_null(strstr(ax_error_message(), "from rank 2"));
        assert_non_null(
            strstr(ax_error_message(), returns ? "1 of 3 ranks have returned" : "rank 2 in barrier"));
    }
}

/* The data of rank 0's message come after *arg polls; below 0 their device fails. Both ranks then wait for
 * messages that nobody sends. */
static ax_status has_come(void *polls, bool *yes)
{
    AX_CHECK(*(int *)polls >= 0, AX_ERR_INTERNAL, "the device is gone");
    *yes = (*(int *)polls)-- == 0;
    return AX_OK;
}

static ax_status late_and_then_crossed(ax_comm *c, void *arg)
{
    int me = ax_comm_rank(c);
    float data[2] = {0};
    ax_work *work;
    ax_message m = {.kind = AX_MESSAGE_GRADIENT, .dtype = AX_F32, .ndim = 1, .dim = {1}};
    ax_message_args args = {.message = m,
                            .sends = true,
                            .peer = 1,
                            .data = &data[0],
                            .bytes = sizeof data[0],
                            .ready = has_come,
                            .user = arg};
    if (me == 0)
        AX_TRY(c->ops->message(c, &args, &work));
    else
        AX_TRY(ax_recv(c, NULL, &m, &data[0], 0, &work));
    AX_TRY(ax_wait(&work));
    m.micro_batch = 1;
    AX_TRY(ax_recv(c, NULL, &m, &data[1], 1 - me, &work));
    return ax_wait(&work);
}

/* While the data of a send are to come, ranks that all wait are no deadlock; afterwards they are. */
static void deadlocks_behind_late_data_are_found(void **state)
{
    (void)state;
    for (int polls = 0; polls < 40; polls += 13) {
        int left = polls;
        assert_int_equal(ax_comm_threads_run(2, late_and_then_crossed, &left), AX_ERR_COMM);
        assert_non_null(strstr(ax_error_message(), "the ranks wait for one another"));
        assert_non_null(
            strstr(ax_error_message(), "rank 0 in receive of gradient of micro-batch 1 of step 0"));
        assert_non_null(
            strstr(ax_error_message(), "rank 1 in receive of gradient of micro-batch 1 of step 0"));
    }
}

/* Rank 0 computes while the data of its send come; rank 1, which has slept before the send, looks for them.
 */
static ax_status late_while_computing(ax_comm *c, void *came)
{
    int polls = 3;
    double begin = ax_now();
    float data = 0;
    ax_work *work;
    ax_message m = {.kind = AX_MESSAGE_GRADIENT, .dtype = AX_F32, .ndim = 1, .dim = {1}};
    ax_message_args args = {.message = m,
                            .sends = true,
                            .peer = 1,
                            .data = &data,
                            .bytes = sizeof data,
                            .ready = has_come,
                            .user = &polls};
    if (ax_comm_rank(c) == 1) {
        AX_TRY(ax_recv(c, NULL, &m, &data, 0, &work));
        AX_TRY(ax_wait(&work));
        atomic_store((atomic_bool *)came, true);
        return AX_OK;
    }
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    AX_TRY(c->ops->message(c, &args, &work));
    while (!atomic_load((atomic_bool *)came))
        EXPECT(ax_now() < begin + 20);
    return ax_wait(&work);
}

static void sleeping_ranks_look_for_late_data(void **state)
{
    (void)state;
    atomic_bool came = false;
    assert_ranks(2, late_while_computing, &came);
}

static void a_device_that_fails_ends_all_ranks(void **state)
{
    (void)state;
    int fails = -1;
    assert_int_equal(ax_comm_threads_run(2, late_and_then_crossed, &fails), AX_ERR_COMM);
    assert_non_null(strstr(ax_error_message(), "rank 0 failed: the device is gone"));
}

static void errors_of_mismatched_calls_name_both_ranks(void **state)
{
    (void)state;
#define SAME ": all ranks must make the same calls in the same order"
    static const char *const expected[] = {
        "rank 1 called all_gather of 12 f32 where rank 0 called all_reduce of 8 f32" SAME,
        "rank 1 called all_gather of 4 f32 where rank 0 called all_gather of 8 f32" SAME,
        "rank 1 called all_gather of 8 bf16 where rank 0 called all_gather of 8 f32" SAME,
        "rank 1 called all_reduce (max) of 8 f32 where rank 0 called all_reduce of 8 f32" SAME,
        "rank 1 called broadcast of 8 f32 from 1 where rank 0 called broadcast of 8 f32 from 0" SAME,
        "rank 1 called split where rank 0 called barrier" SAME};
#undef SAME
    for (int kind = 0; kind < (int)AX_COUNT(expected); kind++) {
        outcome o = {.kind = kind};
        assert_int_equal(ax_comm_threads_run(3, mismatch, &o), AX_ERR_COMM);
        for (int r = 0; r < 3; r++) {
            assert_int_equal(o.status[r], AX_ERR_COMM);
            assert_string_equal(o.message[r], expected[kind]);
        }
        assert_non_null(strstr(ax_error_message(), expected[kind]));
    }
}

static ax_status one_fails(ax_comm *c, void *arg)
{
    outcome *o = arg;
    if (ax_comm_rank(c) == 2)
        return noted(c, o, ax_fail(AX_ERR_DATA, "the file is short"));
    for (;;)
        AX_TRY(noted(c, o, ax_barrier(c)));
}

static void a_failing_rank_ends_the_others(void **state)
{
    (void)state;
    outcome o = {0};
    assert_int_equal(ax_comm_threads_run(5, one_fails, &o), AX_ERR_DATA);
    assert_string_equal(ax_error_message(), "rank 2: the file is short");
    for (int r = 0; r < 5; r++) {
        assert_int_equal(o.status[r], r == 2 ? AX_ERR_DATA : AX_ERR_COMM);
        assert_string_equal(o.message[r], r == 2 ? "the file is short" : "rank 2 failed: the file is short");
    }
}

static ax_status returns_early(ax_comm *c, void *arg)
{
    (void)arg;
    return ax_comm_rank(c) == 1 ? AX_OK : ax_barrier(c);
}

static ax_status crosses_over(ax_comm *c, void *arg)
{
    (void)arg;
    ax_comm *sub;
    AX_TRY(ax_comm_split(c, 0, 0, &sub));
    ax_status status = ax_barrier(ax_comm_rank(c) ? sub : c);
    ax_comm_destroy(&sub);
    return status;
}

static void deadlocks_are_errors(void **state)
{
    (void)state;
    assert_int_equal(ax_comm_threads_run(3, returns_early, NULL), AX_ERR_COMM);
    assert_non_null(strstr(ax_error_message(), "in barrier of 3 ranks"));
    assert_non_null(strstr(ax_error_message(), "1 of 3 ranks have returned"));
    assert_int_equal(ax_comm_threads_run(2, crosses_over, NULL), AX_ERR_COMM);
    assert_non_null(strstr(ax_error_message(), "wait for one another"));
}

static void bad_calls_are_refused(void **state)
{
    (void)state;
    ax_comm *self;
    ax_work *work;
    float x = 0;
    assert_int_equal(ax_comm_self_create(&self), AX_OK);
    assert_int_equal(ax_all_reduce(self, NULL, &x, 1, AX_U8, AX_SUM, &work), AX_ERR_INTERNAL);
    assert_int_equal(ax_all_reduce(self, NULL, &x, -1, AX_F32, AX_SUM, &work), AX_ERR_INTERNAL);
    assert_int_equal(ax_broadcast(self, NULL, &x, 1, AX_F32, 1, &work), AX_ERR_INTERNAL);
    assert_int_equal(ax_comm_threads_run(0, returns_early, NULL), AX_ERR_USAGE);
    ax_comm_destroy(&self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_are_right),
        cmocka_unit_test(self_is_a_group_of_one),
        cmocka_unit_test(reductions_keep_rank_order_and_nan),
        cmocka_unit_test(operations_overlap),
        cmocka_unit_test(traffic_is_ring_equivalent),
        cmocka_unit_test(splits_can_be_reordered_and_nested),
        cmocka_unit_test(groups_are_created_by_their_ranks_alone),
        cmocka_unit_test(messages_arrive_in_order),
        cmocka_unit_test(lazy_messages_arrive_when_awaited),
        cmocka_unit_test(errors_of_mismatched_messages_name_both_ranks),
        cmocka_unit_test(deadlocks_in_messages_are_found),
        cmocka_unit_test(deadlocks_behind_late_data_are_found),
        cmocka_unit_test(sleeping_ranks_look_for_late_data),
        cmocka_unit_test(a_device_that_fails_ends_all_ranks),
        cmocka_unit_test(errors_of_mismatched_calls_name_both_ranks),
        cmocka_unit_test(a_failing_rank_ends_the_others),
        cmocka_unit_test(deadlocks_are_errors),
        cmocka_unit_test(bad_calls_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
