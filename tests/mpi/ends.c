/* mpi: how a job ends if a rank fails, stops, leaves or makes another call than the others. `ends KIND`
 * provokes one such case; ends.sh checks the launcher's exit code and the messages. */
#include "axonn/comm.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ax_status done(ax_status status, ax_work *work) { return status == AX_OK ? ax_wait(&work) : status; }

/* Rank 1 makes another call than the other ranks; `which` selects the difference. */
static ax_status mismatch(ax_comm *c, int which)
{
    float a[64] = {0}, b[256];
    ax_work *work = NULL;
    bool odd = ax_comm_rank(c) == 1;
    switch (which) {
    case 0:
        return done(odd ? ax_all_gather(c, NULL, a, b, 12, AX_F32, &work)
                        : ax_all_reduce(c, NULL, a, 8, AX_F32, AX_SUM, &work),
                    work);
    case 1:
        return done(ax_all_gather(c, NULL, a, b, odd ? 4 : 8, AX_F32, &work), work);
    case 2:
        return done(ax_all_gather(c, NULL, a, b, 8, odd ? AX_BF16 : AX_F32, &work), work);
    case 3:
        return done(ax_all_reduce(c, NULL, a, 8, AX_F32, odd ? AX_MAX : AX_SUM, &work), work);
    case 4:
        return done(ax_broadcast(c, NULL, a, 8, AX_F32, odd, &work), work);
    default: {
        ax_comm *sub = NULL;
        return odd ? ax_comm_split(c, 0, 0, &sub) : ax_barrier(c);
    }
    }
}

/* Rank 1 starts operations on two communicators in the opposite order to the others, without a wait between.
 */
static ax_status crossed_order(ax_comm *world)
{
    float a = 0, b = 0;
    ax_comm *sub;
    ax_work *one, *two;
    AX_TRY(ax_comm_split(world, 0, 0, &sub));
    bool odd = ax_comm_rank(world) == 1;
    AX_TRY(ax_all_reduce(odd ? sub : world, NULL, &a, 1, AX_F32, AX_SUM, &one));
    AX_TRY(ax_all_reduce(odd ? world : sub, NULL, &b, 1, AX_F32, AX_SUM, &two));
    AX_TRY(ax_wait(&one));
    return ax_wait(&two);
}

/* Rank 0 sends a message to rank 1, which expects another one, waits for another message, or leaves. */
static ax_status message(ax_comm **world, const char *kind)
{
    float data[8] = {0};
    ax_work *work = NULL;
    int rank = ax_comm_rank(*world);
    ax_message m = {.dtype = AX_F32, .step = 5, .micro_batch = 3, .ndim = 1, .dim = {8}};
    if (rank == 1 && !strcmp(kind, "message_mismatch"))
        m.micro_batch = 4;
    if (rank == 1 && !strcmp(kind, "message_deadlock"))
        m.kind = AX_MESSAGE_GRADIENT;
    if (rank == 1 && !strcmp(kind, "message_leave")) {
        ax_comm_destroy(world);
        return AX_OK;
    }
    AX_TRY(ax_recv(*world, NULL, &m, data, 1 - rank, &work));
    if (rank == 0 && !strcmp(kind, "message_mismatch"))
        AX_TRY(ax_send(*world, NULL, &m, data, 1, &(ax_work *){NULL}));
    return ax_wait(&work);
}

/* The data of rank 0's message come much later than the timeout, as if its device computed. */
static ax_status has_come(void *when, bool *yes)
{
    *yes = ax_now() >= *(double *)when;
    return AX_OK;
}

static ax_status late_data(ax_comm *world)
{
    float data[8] = {0};
    ax_work *work;
    ax_message m = {.dtype = AX_F32, .step = 5, .micro_batch = 3, .ndim = 1, .dim = {8}};
    AX_TRY(ax_barrier(world));
    double when = ax_now() + 6;
    ax_message_args args = {.message = m,
                            .sends = true,
                            .peer = 1,
                            .data = data,
                            .bytes = sizeof data,
                            .ready = has_come,
                            .user = &when};
    if (ax_comm_rank(world) == 0)
        AX_TRY(world->ops->message(world, &args, &work));
    else
        AX_TRY(ax_recv(world, NULL, &m, data, 0, &work));
    return ax_wait(&work);
}

/* Two messages of rank 0. Once both are posted, the device of the first fails. The second must not be asked
 * for any more, because its caller may have freed what `ready` reads. */
static atomic_bool posted, device_failed;

static ax_status fails_when_posted(void *user, bool *yes)
{
    (void)user;
    *yes = false;
    if (!atomic_load(&posted))
        return AX_OK;
    atomic_store(&device_failed, true);
    return ax_fail(AX_ERR_INTERNAL, "the device failed");
}

static ax_status is_not_asked_late(void *user, bool *yes)
{
    (void)user;
    *yes = false;
    if (atomic_load(&device_failed))
        abort();
    return AX_OK;
}

static ax_status data_never_come(ax_comm *world)
{
    float data[8] = {0};
    ax_work *first, *second;
    ax_message_args args = {.message = {.dtype = AX_F32, .ndim = 1, .dim = {8}},
                            .sends = true,
                            .peer = 1,
                            .data = data,
                            .bytes = sizeof data,
                            .ready = fails_when_posted};
    if (ax_comm_rank(world) != 0)
        return ax_barrier(world);
    AX_TRY(world->ops->message(world, &args, &first));
    args.message.kind = AX_MESSAGE_GRADIENT;
    args.ready = is_not_asked_late;
    AX_TRY(world->ops->message(world, &args, &second));
    atomic_store(&posted, true);
    AX_TRY(ax_wait(&first));
    return ax_wait(&second);
}

static ax_status crossed_waits(ax_comm *world)
{
    ax_comm *sub;
    AX_TRY(ax_comm_split(world, 0, 0, &sub));
    return ax_barrier(ax_comm_rank(world) == 1 ? sub : world);
}

/* Rank 0 creates a group with rank 1, which does what `kind` says instead, or is late. */
static ax_status group(ax_comm **world, const char *kind)
{
    ax_comm *pair;
    int rank = ax_comm_rank(*world);
    if (rank == 1 && !strcmp(kind, "group_stop"))
        raise(SIGSTOP);
    if (rank == 1 && !strcmp(kind, "group_leave")) {
        ax_comm_destroy(world);
        return AX_OK;
    }
    bool late = !strcmp(kind, "group_late");
    if (late)
        AX_TRY(ax_barrier(*world)); /* rank 1 is late from here on, not from its start */
    for (double begin = ax_now(); rank == 1 && late && ax_now() < begin + 3;)
        continue;
    if (rank == 0 || (rank == 1 && late)) {
        AX_TRY(ax_comm_group(*world, (int[]){0, 1}, 2, &pair));
        AX_TRY(ax_barrier(pair));
        ax_comm_destroy(&pair);
    }
    return ax_barrier(*world);
}

static ax_status fails(ax_comm *world)
{
    AX_CHECK(ax_comm_rank(world) != 2, AX_ERR_DATA, "the file is short");
    for (;;)
        AX_TRY(ax_barrier(world));
}

/* Once all ranks have started, rank 1 computes for much longer than the timeout. */
static ax_status late(ax_comm *world)
{
    AX_TRY(ax_barrier(world));
    for (double begin = ax_now(); ax_comm_rank(world) == 1 && ax_now() < begin + 3;)
        continue;
    return ax_barrier(world);
}

static ax_status signals(ax_comm *world, int number)
{
    AX_TRY(ax_barrier(world));
    if (ax_comm_rank(world) == 1)
        raise(number);
    return ax_barrier(world);
}

/* The other ranks wait for a collective of their GPUs that rank 1 does not call. */
static ax_status on_gpu(ax_comm *world, const char *kind)
{
    ax_device *dev;
    ax_binding binding = {.local_rank = ax_comm_rank(world)};
    char why[AX_COMM_WHY];
    void *memory;
    float first;
    ax_work *work;
    AX_TRY(ax_device_open_bound("cuda", 1, &binding, &dev));
    AX_TRY(ax_comm_connect(world, dev, "test", why));
    AX_CHECK(!*why, AX_ERR_INTERNAL, "%s", why);
    ax_stream stream = {dev, NULL};
    AX_TRY(ax_device_alloc(dev, 4096, &memory));
    for (int i = 0; i < 2; i++) {
        if (i && ax_comm_rank(world) == 1 && !strcmp(kind, "gpu_fail"))
            return ax_fail(AX_ERR_DATA, "the file is short");
        if (i && ax_comm_rank(world) == 1)
            raise(SIGSTOP);
        AX_TRY(ax_all_reduce(world, &stream, memory, 1000, AX_F32, AX_SUM, &work));
        AX_TRY(ax_wait(&work));
        AX_TRY(ax_copy_out(&stream, &first, memory, sizeof first));
    }
    return AX_OK;
}

static ax_status run(ax_comm **world, const char *kind)
{
    bool odd = ax_comm_rank(*world) == 1;
    if (!strncmp(kind, "mismatch", 8))
        return mismatch(*world, atoi(kind + 8));
    if (!strcmp(kind, "order"))
        return crossed_order(*world);
    if (!strcmp(kind, "deadlock"))
        return crossed_waits(*world);
    if (!strcmp(kind, "message_late"))
        return late_data(*world);
    if (!strcmp(kind, "message_fail"))
        return data_never_come(*world);
    if (!strncmp(kind, "message", 7))
        return message(world, kind);
    if (!strncmp(kind, "group", 5))
        return group(world, kind);
    if (!strcmp(kind, "late"))
        return late(*world);
    if (!strcmp(kind, "stop"))
        return signals(*world, SIGSTOP);
    if (!strcmp(kind, "kill"))
        return signals(*world, SIGKILL);
    if (!strcmp(kind, "fail"))
        return fails(*world);
    if (!strncmp(kind, "gpu", 3))
        return on_gpu(*world, kind);
    if (!strcmp(kind, "fail_all"))
        return ax_fail(AX_ERR_USAGE, "the grid does not fit");
    if (!strncmp(kind, "exit", 4) && odd)
        exit(atoi(kind + 4));
    if (!strcmp(kind, "leave") && odd) {
        ax_comm_destroy(world);
        return AX_OK;
    }
    return ax_barrier(*world);
}

int main(int argc, char **argv)
{
    ax_comm *world;
    if (argc != 2 || ax_comm_world_create(&world) != AX_OK) {
        fprintf(stderr, "axonn: error: %s\n", ax_error_message());
        return (int)ax_error_status();
    }
    ax_comm_set_timeout(world, 1);
    ax_status status = run(&world, argv[1]);
    if (status != AX_OK)
        ax_comm_abort(world, status, ax_error_message());
    ax_comm_destroy(&world);
    return 0;
}
