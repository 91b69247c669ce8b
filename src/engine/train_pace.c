/* Gives up a step that still runs long after a signal. All ranks must leave the step at the same place, but
 * only some may have received the signal. So within a step the ranks agree, by an all-reduce, after every few
 * pieces of work, about every two seconds. The number of pieces follows from times that all ranks share, so
 * all ranks ask at the same piece. Shorter steps have no such all-reduce. */
#include "engine/train.h"

#include <math.h>

#define ASK_SECONDS 2       /* between two questions */
#define PATIENCE_SECONDS 10 /* time that a step may still run after a signal */

void ax_pace_begin(ax_pace *pace)
{
    pace->every = ax_max(pace->every, 1);
    pace->next = pace->every;
    pace->piece = 0;
    pace->asked = ax_now();
}

/* Returns the number of pieces that take ASK_SECONDS if `pieces` of them took `seconds`; at least 1. */
static int64_t pieces_between(double seconds, int64_t pieces)
{
    return (int64_t)fmax(fmin(ASK_SECONDS * (double)pieces / fmax(seconds, 1e-9), 1e15), 1);
}

/* Asks all ranks for the age of their signal, and gives the step up if it is old enough. Adapts the number of
 * pieces between two questions, to at most twice the last one: in the first step the time of a piece is not
 * known. */
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
    return ax_fail(AX_ERR_SIGNAL, "step %lld was given up after a signal", (long long)run->step);
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
