/* In builds with assertions: checks that all ranks of a group call the same operation, and that any two ranks
 * call the operations of all communicators that they share in the same order.
 *
 * Before an operation starts, each of its ranks sends a description of its call (ax_mpi_call) to every other
 * rank of the group. These messages use one MPI communicator of the whole world. So the k-th such message
 * from one rank to another describes the sender's k-th operation in which both ranks take part. If it differs
 * from the receiver's k-th operation with this sender, an error is reported. Read mpi.h first. */
#include "comm/mpi.h"

#include <stdlib.h>
#include <string.h>

struct ax_mpi_checks {
    MPI_Comm mpi;
    ax_mpi_call out, *in; /* out: this rank's call; in[r]: the call of the group's rank r */
    MPI_Request *sent, *got;
};

ax_status ax_mpi_checks_create(ax_mpi_world *w, int size)
{
    AX_TRY(ax_calloc(1, sizeof *w->checks, &w->checks));
    ax_mpi_checks *k = w->checks;
    AX_TRY(ax_calloc((size_t)size, sizeof *k->in, &k->in));
    AX_TRY(ax_calloc((size_t)size, sizeof(MPI_Request), &k->sent));
    AX_TRY(ax_calloc((size_t)size, sizeof(MPI_Request), &k->got));
    AX_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &k->mpi));
    AX_MPI(MPI_Comm_set_errhandler(k->mpi, MPI_ERRORS_RETURN));
    return AX_OK;
}

void ax_mpi_checks_destroy(ax_mpi_world *w)
{
    if (!w->checks)
        return;
    MPI_Comm_free(&w->checks->mpi);
    free(w->checks->in);
    free(w->checks->sent);
    free(w->checks->got);
    free(w->checks);
    w->checks = NULL;
}

ax_status ax_mpi_check_start(ax_mpi_op *op)
{
    ax_mpi_comm *c = op->c;
    ax_mpi_checks *k = c->world->checks;
    int bytes = (int)sizeof k->out;
    memset(&k->out, 0, sizeof k->out); /* padding bytes are sent too */
    k->out = ax_mpi_call_of(op);
    for (int r = 0; r < c->comm.size; r++) {
        k->sent[r] = k->got[r] = MPI_REQUEST_NULL;
        k->in[r] = k->out;
        if (r == c->comm.rank)
            continue;
        AX_MPI(MPI_Irecv(&k->in[r], bytes, MPI_BYTE, c->world_rank[r], 0, k->mpi, &k->got[r]));
        AX_MPI(MPI_Isend(&k->out, bytes, MPI_BYTE, c->world_rank[r], 0, k->mpi, &k->sent[r]));
    }
    return AX_OK;
}

static ax_status same_call(const ax_mpi_comm *c, const ax_mpi_call *in)
{
    char one[128], other[128];
    for (int r = 1; r < c->comm.size; r++) {
        const ax_mpi_call *a = &in[0], *b = &in[r];
        if (a->kind == b->kind && a->coll == b->coll && a->count == b->count && a->dtype == b->dtype &&
            a->op == b->op && a->root == b->root)
            continue;
        ax_mpi_call_describe(b, one, sizeof one);
        ax_mpi_call_describe(a, other, sizeof other);
        return ax_fail(
            AX_ERR_COMM,
            "rank %d called %s where rank %d called %s: all ranks must make the same calls in the same order",
            c->world_rank[r], one, c->world_rank[0], other);
    }
    return AX_OK;
}

static ax_status same_operation(const ax_mpi_comm *c, int rank, const ax_mpi_call *theirs,
                                const ax_mpi_call *mine)
{
    char one[128], other[128];
    if (theirs->comm == mine->comm && theirs->seq == mine->seq)
        return AX_OK;
    ax_mpi_call_describe(mine, one, sizeof one);
    ax_mpi_call_describe(theirs, other, sizeof other);
    return ax_fail(
        AX_ERR_COMM,
        "ranks %d and %d call in different orders on the communicators that both belong to: rank %d called "
        "%s (call %lld in a group of %d ranks) where rank %d called %s (call %lld in a group of %d ranks)",
        c->world_rank[c->comm.rank], c->world_rank[rank], c->world_rank[c->comm.rank], one,
        (long long)mine->seq, mine->size, c->world_rank[rank], other, (long long)theirs->seq, theirs->size);
}

ax_status ax_mpi_check_test(ax_mpi_op *op, bool *done)
{
    const ax_mpi_comm *c = op->c;
    ax_mpi_checks *k = c->world->checks;
    int sent, open = 0;
    AX_MPI(MPI_Testall(c->comm.size, k->sent, &sent, MPI_STATUSES_IGNORE));
    for (int r = 0; r < c->comm.size; r++) {
        int came = 1;
        if (k->got[r] != MPI_REQUEST_NULL) {
            AX_MPI(MPI_Test(&k->got[r], &came, MPI_STATUS_IGNORE));
            if (came)
                AX_TRY(same_operation(c, r, &k->in[r], &k->out));
        }
        open += !came;
    }
    *done = sent && !open;
    return *done ? same_call(c, k->in) : AX_OK;
}
