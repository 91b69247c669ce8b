/* A step that runs for long after a signal is given up. All ranks have to leave it at the same place, and
 * only some may know of the signal, so they ask one another on the way: after as many pieces of work as take
 * some seconds. How many these are follows from times that all ranks share, so no rank asks alone; steps that
 * take less have no such questions. */
#include "engine/train.h"

#include <math.h>

#define ASK_SECONDS 2       /* between two questions */
#define PATIENCE_SECONDS 10 /* from a signal to the end of a step that it finds */

void ax_pace_begin(ax_pace *pace)
{
    pace->every = ax_max(pace->every, 1);
    pace->next = pace->every;
    pace->piece = 0;
    pace->asked = ax_now();
}

/* Pieces that take ASK_SECONDS, where `pieces` of them took `seconds`. */
static int64_t pieces_between(double seconds, int64_t pieces)
{
    return (int64_t)fmax(fmin(ASK_SECONDS * (double)pieces / fmax(seconds, 1e-9), 1e15), 1);
}

/* In the first step nothing is known: one piece, and then at most twice as many as before. */
static ax_status ask(ax_run *run, ax_pace *pace)
{
    enum { SECONDS, AGE, SIGNAL, N };
    double now = ax_now(), max[N] = {now - pace->asked, ax_signal_age(), ax_signal_pending()};
    if (ax_comm_size(run->world) > 1) {
        ax_work *work;
        AX_TRY(ax_all_reduce(run->world, NULL, max, N, AX_F64, AX_MAX, &work));
        AX_TRY(ax_wait(&work));
    }
    pace->every = ax_min(pieces_between(max[SECONDS], pace->every), 2 * pace->every);
    pace->next += pace->every;
    pace->asked = now;
    if (max[AGE] < PATIENCE_SECONDS)
        return AX_OK;
    run->signal = (int)max[SIGNAL];
    run->given_up = run->step;
    return ax_fail(AX_ERR_SIGNAL, "step %lld was given up", (long long)run->step);
}

ax_status ax_pace_piece(ax_run *run, ax_pace *pace)
{
    return pace->piece++ < pace->next ? AX_OK : ask(run, pace);
}

void ax_pace_end(ax_pace *pace, double seconds)
{
    if (pace->piece > 0)
        pace->every = pieces_between(seconds, pace->piece);
}
