/* Abandons a step that still runs long after a signal. All ranks must leave the step at the same place, but
 * perhaps only some ranks have received the signal. So within a step the ranks run an all-reduce about every
 * two seconds, always after the same number of pieces of work (micro-batches, or parts of the sampler's
 * choice of rows). The number is computed from times that are the same on all ranks, so all ranks call the
 * all-reduce before the same piece. After the first steps, steps shorter than two seconds have no such
 * all-reduce.
 *
 * With pipeline stages, only the ranks of the first stage run all-reduces while micro-batches are computed.
 * The messages between stages tell these ranks that a rank of a later stage has received a signal, and tell
 * the other stages that the step is abandoned (pipeline.c). */
#include "train/train.h"

#include <math.h>

#define ASK_SECONDS 2       /* seconds between two all-reduces */
#define PATIENCE_SECONDS 10 /* seconds that a step may still run after a signal */

void ax_pace_begin(ax_pace *pace)
{
    pace->every = ax_max(pace->every, 1);
    pace->next = pace->every;
    pace->piece = 0;
    pace->asked = ax_now();
}

/* Returns how many pieces of work (micro-batches, or parts of the choice of rows) take ASK_SECONDS if
 * `pieces` pieces took `seconds`; at least 1. */
static int64_t pieces_between(double seconds, int64_t pieces)
{
    return (int64_t)fmax(fmin(ASK_SECONDS * (double)pieces / fmax(seconds, 1e-9), 1e15), 1);
}

/* Finds by an all-reduce how long any rank has known of a signal, and abandons the step if that is
 * PATIENCE_SECONDS or more. Sets the number of pieces of work until the next all-reduce, to at most twice the
 * previous number. In the first step of a run, this number begins with 1. */
static ax_status ask(const ax_train_run *run, ax_pace *pace, int *signal)
{
    enum { SECONDS, AGE, SIGNAL, N };
    double now = ax_now(), age = fmax(ax_signal_age(), ax_engine_stop_asked(run->state.engine)),
           max[N] = {now - pace->asked, age, ax_signal_pending()};
    if (ax_comm_size(pace->ranks) > 1) {
        ax_work *work;
        AX_TRY(ax_all_reduce(pace->ranks, NULL, max, N, AX_F64, AX_MAX, &work));
        AX_TRY(ax_wait(&work));
    }
    pace->every = ax_min(pieces_between(max[SECONDS], pace->every), 2 * pace->every);
    pace->next += pace->every;
    pace->asked = now;
    if (max[AGE] < PATIENCE_SECONDS)
        return AX_OK;
    *signal = (int)max[SIGNAL];
    return ax_fail(AX_ERR_SIGNAL, "step %lld was stopped by a signal before it was complete, and is dropped",
                   (long long)run->state.step);
}

ax_status ax_pace_piece(const ax_train_run *run, ax_pace *pace, int *signal)
{
    return pace->piece++ < pace->next ? AX_OK : ask(run, pace, signal);
}

void ax_pace_end(ax_pace *pace, double seconds)
{
    if (pace->piece > 0)
        pace->every = pieces_between(seconds, pace->piece);
}
