/* mpi: collectives over MPI against their definitions: results, order of sums, overlap of operations. */
#include "support/collectives.h"
#include "mpi/world.h"
#include "support/messages.h"
#include "support/on_device.h"
#include "support/ranks.h"

#include <string.h>

/* Operations in flight wait for one another if the communicator has one buffer. */
static ax_status with_one_buffer(ax_comm *comm)
{
    enum { OPS = 4, COUNT = 700001, ROOM = (1 << 20) + (1 << 12) };
    const ax_comm_buffers one = {.piece = {ROOM}, .exchange = {ROOM}};
    const size_t g = (size_t)ax_comm_size(comm);
    const int me = ax_comm_rank(comm);
    float *send[OPS], *recv[OPS], *x;
    ax_work *work[OPS];
    AX_TRY(ax_comm_reserve_buffers(comm, &one));
    const ax_comm_buffers had = ax_comm_buffers_of(comm); /* on one node nothing is exchanged */
    ax_comm_buffers more = had;
    more.piece[1] = ROOM;
    EXPECT(had.piece[0] == ROOM && !ax_comm_lacking_buffers(comm, &had));
    EXPECT(ax_comm_lacking_buffers(comm, &more) == ROOM);
    for (int i = 0; i < OPS; i++) {
        AX_TRY(ax_comm_alloc(comm, g * COUNT * sizeof *x, (void **)&send[i]));
        AX_TRY(ax_comm_alloc(comm, g * COUNT * sizeof *x, (void **)&recv[i]));
        for (size_t k = 0; k < g * COUNT; k++)
            send[i][k] = (float)((int)(k % 11) + me + i);
    }
    for (int i = 0; i < OPS; i++)
        AX_TRY(i % 2 ? ax_all_reduce(comm, NULL, send[i], COUNT, AX_F32, AX_SUM, &work[i])
                     : ax_reduce_scatter(comm, NULL, send[i], recv[i], COUNT, AX_F32, AX_SUM, &work[i]));
    for (int i = 0; i < OPS; i++) {
        AX_TRY(ax_wait(&work[i]));
        x = i % 2 ? send[i] : recv[i];
        for (size_t k = 0, at = i % 2 ? 0 : (size_t)me * COUNT; k < COUNT; k++)
            EXPECT(x[k] == (float)(g * ((at + k) % 11 + (size_t)i) + g * (g - 1) / 2));
        ax_comm_free(comm, send[i], g * COUNT * sizeof *x);
        ax_comm_free(comm, recv[i], g * COUNT * sizeof *x);
    }
    const ax_comm_buffers now = ax_comm_buffers_of(comm);
    EXPECT(!memcmp(now.piece, one.piece, sizeof now.piece) && !now.exchange[1]);
    return AX_OK;
}

/* A plan that counted no buffers, because it does not know the nodes, leaves a communicator as it is: several
 * pieces of an operation are in flight. */
static ax_status without_a_plan(ax_comm *comm)
{
    const ax_comm_buffers none = {.columns = 0};
    const size_t n = (size_t)ax_comm_size(comm) * 700001;
    float *x;
    ax_work *work;
    AX_TRY(ax_comm_reserve_buffers(comm, &none));
    AX_TRY(ax_comm_alloc(comm, n * sizeof *x, (void **)&x));
    memset(x, 0, n * sizeof *x);
    AX_TRY(ax_all_reduce(comm, NULL, x, (int64_t)n, AX_F32, AX_SUM, &work));
    AX_TRY(ax_wait(&work));
    ax_comm_free(comm, x, n * sizeof *x);
    const ax_comm_buffers now = ax_comm_buffers_of(comm);
    EXPECT(!now.piece[0] == !now.piece[1] && !now.exchange[0] == !now.exchange[1]);
    return AX_OK;
}

static ax_status check_buffers(ax_comm *world, void *arg)
{
    (void)arg;
    ax_comm *all;
    AX_TRY(ax_comm_split(world, 0, ax_comm_rank(world), &all));
    ax_status status = without_a_plan(all);
    if (status == AX_OK)
        status = with_one_buffer(all);
    ax_comm_destroy(&all);
    return status;
}

static ax_status check_all(ax_comm *world, bool links)
{
    static const struct {
        const char *what;
        ax_rank_fn *fn;
        bool of_links; /* false: not run over links between GPUs (NCCL), because NCCL adds in another order or
                          the test takes long */
    } checks[] = {{"collectives", check_collectives, true},
                  {"rank order", check_rank_order, false},
                  {"splits", check_splits, true},
                  {"groups", check_groups, true},
                  {"overlap", check_overlap, true},
                  {"random operations", check_random, true},
                  {"few buffers", check_buffers, false},
                  {"messages", check_messages, false},
                  {"a window of messages", check_message_window, false},
                  {"a ring of messages", check_message_ring, false},
                  {"messages whose data come later", check_late_data, false},
                  {"messages beside collectives", check_independent, false},
                  {"large collectives", check_large_collectives, false}};
    ax_status status = AX_OK;
    for (size_t i = 0; i < AX_COUNT(checks) && status == AX_OK; i++) {
        if (links && !checks[i].of_links)
            continue;
        status = checks[i].fn(world, NULL);
        if (status != AX_OK)
            ax_error_context("%s", checks[i].what);
    }
    return status;
}

static ax_status check_links(ax_comm *world)
{
    ax_binding binding = {.local_rank = ax_comm_rank(world)};
    ax_device *dev;
    ax_comm *over;
    AX_TRY(ax_device_open_bound("cuda", 1, &binding, &dev));
    AX_TRY(on_device_create(world, dev, "nccl", &over));
    AX_TRY(check_all(over, true));
    ax_comm_destroy(&over);
    ax_device_close(&dev);
    return AX_OK;
}

static ax_status run(ax_comm *world, char **argv)
{
    AX_CHECK(ax_comm_size(world) == atoi(argv[1]), AX_ERR_USAGE, "there are %d ranks, not %s",
             ax_comm_size(world), argv[1]);
    return strcmp(argv[2], "cuda") ? check_all(world, false) : check_links(world);
}

/* collectives N [cuda]: N is the expected number of ranks; cuda: from GPU to GPU (NCCL). */
int main(int argc, char **argv) { return in_world(argc, argv, run); }
