/* Notes between communication threads, beside the collectives: a rank has failed, a rank asks to speak for a
 * job that ends, a rank asks what another one does. A note is sent and forgotten. Read mpi.h first. */
#include "comm/mpi.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OUTGOING = 64, CLAIM_SECONDS = 2, SILENT_SECONDS = 10, ABORT_SECONDS = 1 };
/* What a note needs to arrive, however busy the machine is. */
#define NOTICE_SECONDS 0.3

struct ax_mpi_control {
    MPI_Comm mpi;
    ax_mpi_note in;
    MPI_Request receiving;
    ax_mpi_note out[OUTGOING];
    MPI_Request sending[OUTGOING];
    bool claimed; /* on rank 0: somebody speaks for the job */
    int granted;  /* the answer to this rank's claim: 0 none yet, 1 yes, -1 no */
};

static ax_status receive(ax_mpi_control *k)
{
    AX_MPI(MPI_Irecv(&k->in, sizeof k->in, MPI_BYTE, MPI_ANY_SOURCE, 0, k->mpi, &k->receiving));
    return AX_OK;
}

ax_status ax_mpi_control_create(ax_mpi_world *w)
{
    AX_TRY(ax_calloc(1, sizeof *w->control, &w->control));
    ax_mpi_control *k = w->control;
    k->receiving = MPI_REQUEST_NULL;
    for (int i = 0; i < OUTGOING; i++)
        k->sending[i] = MPI_REQUEST_NULL;
    AX_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &k->mpi));
    AX_MPI(MPI_Comm_set_errhandler(k->mpi, MPI_ERRORS_RETURN));
    return receive(k);
}

void ax_mpi_control_destroy(ax_mpi_world *w)
{
    ax_mpi_control *k = w->control;
    if (!k)
        return;
    if (k->receiving != MPI_REQUEST_NULL) {
        MPI_Cancel(&k->receiving);
        MPI_Wait(&k->receiving, MPI_STATUS_IGNORE);
    }
    MPI_Waitall(OUTGOING, k->sending, MPI_STATUSES_IGNORE);
    MPI_Comm_free(&k->mpi);
    free(k);
    w->control = NULL;
}

bool ax_mpi_note_send(ax_mpi_world *w, int to, const ax_mpi_note *note)
{
    ax_mpi_control *k = w->control;
    int slot, sent;
    if (MPI_Testany(OUTGOING, k->sending, &slot, &sent, MPI_STATUS_IGNORE) != MPI_SUCCESS)
        return false;
    for (slot = 0; slot < OUTGOING && k->sending[slot] != MPI_REQUEST_NULL; slot++)
        continue;
    if (slot == OUTGOING)
        return false;
    k->out[slot] = *note;
    k->out[slot].from = w->comm->comm.rank;
    return MPI_Isend(&k->out[slot], sizeof *note, MPI_BYTE, to, 0, k->mpi, &k->sending[slot]) == MPI_SUCCESS;
}

/* Tries for a while: a rank that is not reached will find out by itself. */
void ax_mpi_note_send_all(ax_mpi_world *w, const ax_mpi_note *note)
{
    double begin = ax_now();
    for (int r = 0; r < w->comm->comm.size; r++)
        while (r != w->comm->comm.rank && !ax_mpi_note_send(w, r, note) && ax_now() < begin + CLAIM_SECONDS)
            continue;
}

/* The first claim wins. */
static bool grant(ax_mpi_control *k)
{
    bool first = !k->claimed;
    k->claimed = true;
    return first;
}

/* All ranks end at one moment, with one code: a launcher kills what is left when the first has ended, and
 * what it then returns differs. Only a rank that is stopped or out of reach is left to MPI_Abort. */
static void __attribute__((noreturn)) exit_at(double moment, int status)
{
    double now = ax_wall_clock();
    if (moment > now)
        usleep((useconds_t)(fmin(moment - now, 2 * NOTICE_SECONDS) * 1e6));
    _exit(status);
}

static void read_note(ax_mpi_world *w, const ax_mpi_note *note)
{
    ax_mpi_note reply = {.kind = AX_NOTE_GRANT};
    switch (note->kind) {
    case AX_NOTE_FAIL:
        ax_mpi_fail_quietly(w, note->text);
        break;
    case AX_NOTE_CLAIM:
        reply.state = grant(w->control) ? 1 : -1;
        ax_mpi_note_send(w, note->from, &reply);
        break;
    case AX_NOTE_GRANT:
        w->control->granted = note->state;
        break;
    case AX_NOTE_END:
        exit_at(note->moment, note->state);
    case AX_NOTE_ASK:
        ax_mpi_watch_answer(w, note);
        break;
    case AX_NOTE_ANSWER:
        ax_mpi_watch_hear(w, note);
        break;
    }
}

ax_status ax_mpi_control_poll(ax_mpi_world *w)
{
    ax_mpi_control *k = w->control;
    for (int came = 1; came;) {
        AX_MPI(MPI_Test(&k->receiving, &came, MPI_STATUS_IGNORE));
        if (came) {
            ax_mpi_note note = k->in;
            AX_TRY(receive(k));
            read_note(w, &note);
        }
    }
    return AX_OK;
}

/* Reads notes until one has answered this rank's claim, or for so many seconds. */
static void poll_for(ax_mpi_world *w, double seconds, bool until_granted)
{
    for (double end = ax_now() + seconds; ax_now() < end && !(until_granted && w->control->granted);) {
        if (ax_mpi_control_poll(w) != AX_OK)
            return;
        usleep(100);
    }
}

/* True if this rank is the first that ends the job. Without an answer it takes it that nobody spoke. */
static bool may_speak(ax_mpi_world *w)
{
    const ax_mpi_note claim = {.kind = AX_NOTE_CLAIM};
    if (w->comm->comm.rank == 0)
        return grant(w->control);
    if (ax_mpi_note_send(w, 0, &claim))
        poll_for(w, CLAIM_SECONDS, true);
    return w->control->granted >= 0;
}

/* MPI_Abort of some libraries waits for a rank that cannot answer. */
static void *exit_anyway(void *status)
{
    sleep(ABORT_SECONDS);
    _exit(*(int *)status);
}

void ax_mpi_end_job(ax_mpi_world *w, int status, const char *message, bool all_hear)
{
    atomic_store(&w->ending, true);
    if (!may_speak(w))
        poll_for(w, SILENT_SECONDS, false); /* the one who spoke ends this process */
    else if (message)
        ax_log(AX_LOG_ERROR, "%s", message);
    const ax_mpi_note end = {
        .kind = AX_NOTE_END, .state = status, .moment = ax_wall_clock() + NOTICE_SECONDS};
    ax_mpi_note_send_all(w, &end);
    poll_for(w, end.moment - ax_wall_clock(), false);
    pthread_t patience;
    if (!all_hear && !ax_thread_start(&patience, exit_anyway, &status))
        MPI_Abort(w->comm->mpi, status);
    _exit(status);
}
