/* Control messages ("notes") between communication threads, on an MPI communicator of their own. They report
 * that a rank has failed, end the job, and carry the watchdog's questions and answers. A sender does not wait
 * until its note has arrived. Read mpi.h first.
 *
 * How a job ends: every rank that wants to end it sends a claim to rank 0 (AX_NOTE_CLAIM), which grants
 * the first one. The rank whose claim was granted logs the reason. Then all ranks exit at the same moment
 * with the same exit code. */
#include "comm/mpi.h"
#include "comm/world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* OUTGOING: largest number of notes that this rank is sending at the same time. The other constants are
 * explained where they are used. */
enum { OUTGOING = 64, CLAIM_SECONDS = 2, SILENT_SECONDS = 10, ABORT_SECONDS = 1 };
/* Seconds from sending AX_NOTE_END to the exit: enough for this message to arrive on a busy machine. */
#define NOTICE_SECONDS 0.3

struct ax_mpi_control {
    MPI_Comm mpi;
    ax_mpi_note in;
    MPI_Request receiving;
    ax_mpi_note out[OUTGOING];
    MPI_Request sending[OUTGOING];
    bool claimed; /* on rank 0: some rank was already allowed to log why the job ends */
    int granted;  /* rank 0's reply to this rank's request to log why the job ends: 0 none yet, 1 granted, -1
                     refused */
};

static ax_status post_receive(ax_mpi_control *k)
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
    return post_receive(k);
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

/* Sends a control message (note) to all other ranks. Retries messages that could not be sent, for
 * CLAIM_SECONDS in all. A rank that the message does not reach detects the failure by its own watchdog, if
 * that is on. */
void ax_mpi_note_send_all(ax_mpi_world *w, const ax_mpi_note *note)
{
    double begin = ax_now();
    for (int r = 0; r < w->comm->comm.size; r++)
        while (r != w->comm->comm.rank && !ax_mpi_note_send(w, r, note) && ax_now() < begin + CLAIM_SECONDS)
            continue;
}

/* On rank 0: grants the first claim (a rank's request to log why the job ends) and refuses all later ones.
 * Returns true if this claim is granted. */
static bool grant_claim(ax_mpi_control *k)
{
    bool first = !k->claimed;
    k->claimed = true;
    return first;
}

/* Exits at the time `moment` (ax_wall_clock), or after 2 * NOTICE_SECONDS if that is earlier. All ranks exit
 * at the same moment with the same code. The reason: when the first rank ends, a launcher kills the other
 * ranks, and launchers differ in the exit code that they then return. MPI_Abort is used only for ranks that
 * are stopped or unreachable. */
static void __attribute__((noreturn)) exit_at(double moment, int status)
{
    double now = ax_wall_clock();
    if (moment > now)
        usleep((useconds_t)(fmin(moment - now, 2 * NOTICE_SECONDS) * 1e6));
    ax_comm_exit(status);
}

static void read_note(ax_mpi_world *w, const ax_mpi_note *note)
{
    ax_mpi_note reply = {.kind = AX_NOTE_GRANT};
    switch (note->kind) {
    case AX_NOTE_FAIL:
        ax_mpi_fail_quietly(w, note->text);
        break;
    case AX_NOTE_CLAIM:
        reply.state = grant_claim(w->control) ? 1 : -1;
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
            AX_TRY(post_receive(k));
            read_note(w, &note);
        }
    }
    return AX_OK;
}

/* Receives and handles control messages (notes) for `seconds`. If until_granted is true, stops as soon as
 * rank 0 has replied to this rank's AX_NOTE_CLAIM. */
static void poll_for(ax_mpi_world *w, double seconds, bool until_granted)
{
    for (double end = ax_now() + seconds; ax_now() < end && !(until_granted && w->control->granted);) {
        if (ax_mpi_control_poll(w) != AX_OK)
            return;
        usleep(100);
    }
}

/* Asks rank 0 whether this rank shall log why the job ends. Returns true if this rank asked first, or if rank
 * 0 does not reply within CLAIM_SECONDS. */
static bool claim_report(ax_mpi_world *w)
{
    const ax_mpi_note claim = {.kind = AX_NOTE_CLAIM};
    if (w->comm->comm.rank == 0)
        return grant_claim(w->control);
    if (ax_mpi_note_send(w, 0, &claim))
        poll_for(w, CLAIM_SECONDS, true);
    return w->control->granted >= 0;
}

/* Ends the process after ABORT_SECONDS, on a thread of its own: in some MPI libraries MPI_Abort waits for
 * ever if a rank is stopped or unreachable. */
static void *exit_after_delay(void *status)
{
    sleep(ABORT_SECONDS);
    ax_comm_exit(*(int *)status);
}

void ax_mpi_end_job(ax_mpi_world *w, int status, const char *message, bool all_hear)
{
    atomic_store(&w->ending, true);
    if (!claim_report(w))
        poll_for(w, SILENT_SECONDS,
                 false); /* usually AX_NOTE_END arrives in this time and ends the process */
    else if (message)
        ax_log(AX_LOG_ERROR, "%s", message);
    const ax_mpi_note end = {
        .kind = AX_NOTE_END, .state = status, .moment = ax_wall_clock() + NOTICE_SECONDS};
    ax_mpi_note_send_all(w, &end);
    poll_for(w, end.moment - ax_wall_clock(), false);
    ax_comm_tell_abort(status); /* called here, because MPI_Abort below does not return */
    pthread_t patience;
    if (!all_hear && !ax_thread_start(&patience, exit_after_delay, &status))
        MPI_Abort(w->comm->mpi, status);
    ax_comm_exit(status);
}
