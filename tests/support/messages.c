/* See messages.h. */
#include "support/messages.h"
#include "support/ranks.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 5, LARGEST = 3 << 20, MOST = 4 * AX_MESSAGE_KINDS * 8 };

/* Bytes of message `round` of a kind from one rank to another: empty, small, odd, and larger than what a
 * backend copies at a time. */
static int64_t bytes_of(int from, int to, int kind, int round)
{
    static const int64_t sizes[] = {0, 1, 4097, 65536, 100003, LARGEST};
    return sizes[(from * 3 + to * 5 + kind * 7 + round) % (int)AX_COUNT(sizes)];
}

static unsigned char value(int from, int to, int kind, int round, int64_t i)
{
    return (unsigned char)(from * 31 + to * 17 + kind * 7 + round * 3 + i * 5 + i / 251);
}

static ax_message message_of(int kind, int round, int64_t bytes)
{
    return (ax_message){.kind = (ax_message_kind)kind,
                        .dtype = AX_U8,
                        .step = 7,
                        .micro_batch = round,
                        .ndim = 2,
                        .dim = {1, bytes}};
}

typedef struct half {
    ax_work *work;
    bool sends;
    int peer, kind;
    int64_t bytes;
    unsigned char *data;
    void *shared; /* from ax_comm_alloc, or NULL: from malloc */
} half;

/* Posts one message. Half of the buffers are in memory that the ranks of a node may share. */
static ax_status post(ax_comm *c, half *h, int round, bool sends, int peer, int kind)
{
    int me = ax_comm_rank(c), from = sends ? me : peer, to = sends ? peer : me;
    *h = (half){.sends = sends, .peer = peer, .kind = kind, .bytes = bytes_of(from, to, kind, round)};
    if ((from + kind + round) % 2)
        AX_TRY(ax_comm_alloc(c, (size_t)h->bytes, &h->shared));
    else
        AX_TRY(ax_calloc((size_t)h->bytes + 1, 1, &h->data));
    h->data = h->shared ? h->shared : h->data;
    for (int64_t i = 0; i < h->bytes; i++)
        h->data[i] = sends ? value(from, to, kind, round, i) : 0xee;
    ax_message m = message_of(kind, round, h->bytes);
    return sends ? ax_send(c, NULL, &m, h->data, peer, &h->work)
                 : ax_recv(c, NULL, &m, h->data, peer, &h->work);
}

static ax_status finish(ax_comm *c, half *h, int round)
{
    int me = ax_comm_rank(c);
    AX_TRY(ax_wait(&h->work));
    for (int64_t i = 0; i < h->bytes && !h->sends; i++)
        EXPECT(h->data[i] == value(h->peer, me, h->kind, round, i));
    if (h->shared)
        ax_comm_free(c, h->shared, (size_t)h->bytes);
    else
        free(h->data);
    return AX_OK;
}

ax_status check_messages(ax_comm *c, void *arg)
{
    (void)arg;
    int g = ax_comm_size(c), me = ax_comm_rank(c);
    half halves[MOST];
    int64_t before = ax_comm_traffic_get(c).bytes, sent = 0;
    for (int round = 0; round < ROUNDS && g > 1; round++) {
        int n = 0;
        for (int k = 0; k < 2; k++) /* every second rank receives before it sends */
            for (int d = 1; d < g; d++)
                for (int kind = 0; kind < AX_MESSAGE_KINDS; kind++) {
                    bool sends = (k + me + round) % 2;
                    int peer = (me + (sends ? d : g - d)) % g;
                    AX_TRY(post(c, &halves[n], round, sends, peer, kind));
                    sent += sends ? halves[n].bytes : 0;
                    n++;
                }
        float sum = 1;
        ax_work *work;
        AX_TRY(ax_all_reduce(c, NULL, &sum, 1, AX_F32, AX_SUM, &work));
        for (int i = n - 1; i >= 0; i--)
            AX_TRY(finish(c, &halves[round % 2 ? i : n - 1 - i], round));
        AX_TRY(ax_wait(&work));
        EXPECT((int)sum == g);
    }
    EXPECT(ax_comm_traffic_get(c).bytes >= before + sent);
    return AX_OK;
}

/* Large messages and a small one of the same kind are in flight together. The buffers are from malloc, so the
 * data do not go through the memory that the ranks of a node share. */
ax_status check_message_window(ax_comm *c, void *arg)
{
    enum { WINDOW = 5 };
    static const int64_t bytes[WINDOW] = {1 << 20, 1 << 20, 100, 8192, 0};
    (void)arg;
    int g = ax_comm_size(c), me = ax_comm_rank(c);
    unsigned char *data[WINDOW];
    ax_work *work[WINDOW];
    for (int round = 0; round < ROUNDS && g > 1 && me < 2; round++) {
        for (int i = 0; i < WINDOW; i++) {
            ax_message m = message_of(AX_MESSAGE_WEIGHT, i, bytes[i]);
            AX_TRY(ax_calloc((size_t)bytes[i] + 1, 1, &data[i]));
            for (int64_t k = 0; k < bytes[i] && me == 0; k++)
                data[i][k] = value(0, 1, i, round, k);
            AX_TRY(me == 0 ? ax_send(c, NULL, &m, data[i], 1, &work[i])
                           : ax_recv(c, NULL, &m, data[i], 0, &work[i]));
        }
        for (int i = 0; i < WINDOW; i++) {
            AX_TRY(ax_wait(&work[i]));
            for (int64_t k = 0; k < bytes[i]; k++)
                EXPECT(data[i][k] == value(0, 1, i, round, k));
            free(data[i]);
        }
    }
    return AX_OK;
}

/* Rank 0 sends ROUNDS numbers around a ring of all ranks, one after the other. Each rank adds its rank to a
 * number and sends the sum on. */
ax_status check_message_ring(ax_comm *c, void *arg)
{
    (void)arg;
    int g = ax_comm_size(c), me = ax_comm_rank(c), came = 0, left = 0;
    int64_t in[ROUNDS], out[ROUNDS];
    ax_work *recv[ROUNDS] = {0}, *send[ROUNDS] = {0};
    if (g == 1)
        return AX_OK;
    for (int i = 0; i < ROUNDS; i++) {
        ax_message m = {.kind = AX_MESSAGE_TASK, .dtype = AX_I64, .micro_batch = i, .ndim = 1, .dim = {1}};
        AX_TRY(ax_recv(c, NULL, &m, &in[i], (me + g - 1) % g, &recv[i]));
    }
    while (came < ROUNDS) {
        if (me == 0 && left <= came) {
            ax_message m = {.kind = AX_MESSAGE_TASK,
                            .dtype = AX_I64,
                            .micro_batch = left,
                            .ndim = 1,
                            .dim = {1},
                            .note = 9 - left};
            out[left] = 1000 * left;
            AX_TRY(ax_send(c, NULL, &m, &out[left], 1, &send[left]));
            left++;
        }
        AX_TRY(ax_wait_some(c, &recv[came], 1));
        EXPECT(ax_work_done(recv[came]) && ax_work_note(recv[came]) == 9 - came);
        AX_TRY(ax_wait(&recv[came]));
        if (me != 0) {
            ax_message m = {.kind = AX_MESSAGE_TASK,
                            .dtype = AX_I64,
                            .micro_batch = came,
                            .ndim = 1,
                            .dim = {1},
                            .note = 9 - came};
            out[came] = in[came] + me;
            AX_TRY(ax_send(c, NULL, &m, &out[came], (me + 1) % g, &send[came]));
        } else {
            EXPECT(in[came] == 1000 * came + g * (g - 1) / 2);
        }
        came++;
    }
    for (int i = 0; i < ROUNDS; i++)
        AX_TRY(ax_wait(&send[i]));
    EXPECT(ax_work_done(NULL));
    return ax_wait_some(c, send, ROUNDS); /* all work handles are NULL, so the call returns at once */
}

/* The data of a send that come later: when `open` is set, and `ready` was called `polls` times. */
typedef struct late {
    atomic_bool open;
    int polls;
    int64_t value, data;
} late;

static ax_status is_there(void *user, bool *yes)
{
    late *l = user;
    *yes = atomic_load(&l->open) && l->polls-- <= 0;
    l->data = *yes ? l->value : -1;
    return AX_OK;
}

static ax_status send_late(ax_comm *c, const ax_message *m, late *l, int to, ax_work **work)
{
    ax_message_args args = {.message = *m,
                            .sends = true,
                            .peer = to,
                            .data = &l->data,
                            .bytes = sizeof l->data,
                            .ready = is_there,
                            .user = l};
    return c->ops->message(c, &args, work);
}

static ax_message gradient(int number)
{
    return (ax_message){
        .kind = AX_MESSAGE_GRADIENT, .dtype = AX_I64, .micro_batch = number, .ndim = 1, .dim = {1}};
}

/* Passes a message of another kind around the ring, and runs a collective. */
static ax_status check_not_held_up(ax_comm *c)
{
    int g = ax_comm_size(c), me = ax_comm_rank(c);
    int64_t in = -1, out = me, sum = 1;
    ax_work *recv, *send, *reduce;
    ax_message m = {.kind = AX_MESSAGE_TASK, .dtype = AX_I64, .ndim = 1, .dim = {1}};
    AX_TRY(ax_recv(c, NULL, &m, &in, (me + g - 1) % g, &recv));
    AX_TRY(ax_send(c, NULL, &m, &out, (me + 1) % g, &send));
    AX_TRY(ax_wait(&recv));
    AX_TRY(ax_wait(&send));
    AX_TRY(ax_all_reduce(c, NULL, &sum, 1, AX_I64, AX_SUM, &reduce));
    AX_TRY(ax_wait(&reduce));
    EXPECT(in == (me + g - 1) % g && sum == g);
    return AX_OK;
}

/* Every second send has its data at once, but stays behind the one before it. The data of the first come only
 * after other operations, which it does not hold up. */
ax_status check_late_data(ax_comm *c, void *arg)
{
    enum { SENDS = 6 };
    (void)arg;
    int g = ax_comm_size(c), me = ax_comm_rank(c), from = (me + g - 1) % g, to = (me + 1) % g;
    int64_t in[SENDS];
    late out[SENDS];
    ax_work *recv[SENDS], *send[SENDS];
    for (int i = 0; i < SENDS && g > 1; i++) {
        ax_message m = gradient(i);
        out[i] = (late){.open = i > 0, .polls = i % 4 * 5, .value = 100 * me + i, .data = -1};
        AX_TRY(ax_recv(c, NULL, &m, &in[i], from, &recv[i]));
        AX_TRY(i % 2 ? ax_send(c, NULL, &m, &out[i].value, to, &send[i])
                     : send_late(c, &m, &out[i], to, &send[i]));
    }
    if (g == 1)
        return AX_OK;
    AX_TRY(check_not_held_up(c));
    for (int i = 0; i < SENDS; i++)
        EXPECT(!ax_work_done(send[i]));
    atomic_store(&out[0].open, true);
    for (int i = 0; i < SENDS; i++) {
        AX_TRY(ax_wait(&recv[i]));
        EXPECT(in[i] == 100 * from + i);
    }
    for (int i = 0; i < SENDS; i++)
        AX_TRY(ax_wait(&send[i]));
    return AX_OK;
}

ax_status check_independent(ax_comm *c, void *arg)
{
    (void)arg;
    float sum = 1, one = 5, got = 0;
    ax_work *reduce, *work;
    ax_message m = {.kind = AX_MESSAGE_GRADIENT, .dtype = AX_F32, .ndim = 1, .dim = {1}};
    if (ax_comm_rank(c) == 1) {
        AX_TRY(ax_recv(c, NULL, &m, &got, 0, &work));
        AX_TRY(ax_wait(&work));
        EXPECT(got == 5);
    }
    AX_TRY(ax_all_reduce(c, NULL, &sum, 1, AX_F32, AX_SUM, &reduce));
    if (ax_comm_rank(c) == 0) {
        AX_TRY(ax_send(c, NULL, &m, &one, 1, &work));
        AX_TRY(ax_wait(&work));
    }
    return ax_wait(&reduce);
}
