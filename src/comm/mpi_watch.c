/* The watchdog: if a collective can never complete, the job ends with a message instead of hanging.
 *
 * If a caller waits and there has been no progress for `timeout` seconds, this rank's communication thread
 * asks the communication threads of all other ranks what their ranks do. A communication thread can answer at
 * any time, even while its rank computes. So there are three cases:
 * - a rank does not answer: it is stopped, dead or unreachable, and the job ends;
 * - a rank computes: the lowest rank that waits logs a warning that names the late ranks, and all continue to
 *   wait;
 * - no rank computes, and a second round of questions shows no progress: the ranks wait for one another, or
 *   for ranks that have left, and the job ends. The lowest rank that waits logs the reason.
 *
 * A rank that waits for its device, which may be computing, asks too, but ends the job only if a rank does
 * not answer. To questions of other ranks it answers that it computes. So does a rank with a send whose data
 * its device has yet to compute or copy, whatever its caller waits for.
 *
 * Read mpi.h first. */
#include "comm/mpi.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COMPUTES, WAITS, LEFT };

typedef struct answer {
    bool came;
    int state;
    uint64_t progress, before; /* the rank's world->progress in this round of questions (progress) and in the
                                  previous round (before) */
    int64_t called; /* number of operations that the rank has called on the communicator of the question */
    char text[AX_NOTE_TEXT];
} answer;

struct ax_mpi_watch {
    double since;    /* time (ax_now) since when a caller has waited without progress */
    uint64_t seen;   /* world->progress at the time `since` */
    bool in_message; /* a caller waits for messages, not for a collective or its device */
    double ask_at, warn_at, answer_deadline, hurry_at;
    int round;   /* rounds of questions asked since the last decision (decide); 0: none */
    int64_t ask; /* number of the current question: a late answer to an earlier question is ignored */
    answer *answer;
};

ax_status ax_mpi_watch_create(ax_mpi_world *w, int size)
{
    AX_TRY(ax_calloc(1, sizeof *w->watch, &w->watch));
    w->watch->seen = UINT64_MAX; /* differs from w->progress, so the first ax_mpi_watch_look sees progress and
                                    starts the clock */
    return ax_calloc((size_t)size, sizeof *w->watch->answer, &w->watch->answer);
}

void ax_mpi_watch_destroy(ax_mpi_world *w)
{
    if (w->watch)
        free(w->watch->answer);
    free(w->watch);
    w->watch = NULL;
}

/* ---- questions ----------------------------------------------------------------------------------- */

static double timeout_of(ax_mpi_world *w) { return (double)atomic_load(&w->timeout_ms) / 1000; }

/* Returns the seconds within which a rank must answer: far longer than a communication thread sleeps, even
 * on a loaded machine. */
static double patience(double timeout) { return timeout < 4 ? 2 : timeout < 20 ? timeout / 2 : 10; }

/* After ax_comm_hurry the watchdog checks only that all ranks answer. HURRY_ASK: seconds without progress
 * before the first question. HURRY_PATIENCE: seconds within which a rank must answer. hurry_again: seconds
 * until the next question; the more ranks, the more seconds, because every waiting rank asks all other
 * ranks. */
#define HURRY_ASK 0.25
#define HURRY_PATIENCE 1.75
static double hurry_again(const ax_mpi_world *w) { return fmin(0.25 * (1 + w->comm->comm.size / 256.0), 2); }

/* Writes to `out` what this rank waits for: messages, else the first operation in flight ("all_reduce of 8
 * f32, operation 3 of ranks 0, 2, 4"), else its device. */
static void describe(ax_mpi_world *w, char *out, size_t size)
{
    const ax_mpi_op *op = w->active;
    *out = 0;
    if (ax_mpi_describe_awaited(w, out, size))
        return;
    if (!op) {
        snprintf(out, size, "a collective between devices");
        return;
    }
    const ax_mpi_comm *c = op->c;
    ax_mpi_call call = ax_mpi_call_of(op);
    ax_mpi_call_describe(&call, out, size);
    ax_text_add(out, size, ", operation %lld of ranks", (long long)op->seq);
    for (int r = 0; r < c->comm.size; r++)
        if (r < 8 || r == c->comm.size - 1)
            ax_text_add(out, size, "%s %d", r == 0 ? "" : r > 8 ? " …" : ",", c->world_rank[r]);
}

static int64_t called_on(ax_mpi_world *w, uint64_t id)
{
    int64_t called = 0;
    pthread_mutex_lock(&w->lock);
    for (const ax_mpi_comm *c = w->comms; c; c = c->next)
        if (c->id == id)
            called = c->called;
    pthread_mutex_unlock(&w->lock);
    return called;
}

static void ask_all(ax_mpi_world *w, double now)
{
    ax_mpi_watch *k = w->watch;
    ax_mpi_note note = {
        .kind = AX_NOTE_ASK, .ask = ++k->ask, .comm = w->active && !k->in_message ? w->active->c->id : 0};
    k->round++;
    k->answer_deadline = now + (atomic_load(&w->hurried) ? HURRY_PATIENCE : patience(timeout_of(w)));
    for (int r = 0; r < w->comm->comm.size; r++) {
        answer *a = &k->answer[r];
        a->before = a->progress;
        a->came = r == w->comm->comm.rank;
        a->state = WAITS;
    }
    answer *mine = &k->answer[w->comm->comm.rank];
    mine->state = ax_mpi_awaits_data(w) ? COMPUTES : WAITS;
    mine->called = w->active ? w->active->seq : 0;
    describe(w, mine->text, sizeof mine->text);
    ax_mpi_note_send_all(w, &note);
}

/* Returns true if a caller waits, whether it sleeps or makes progress itself. */
static bool is_waited_for(ax_mpi_world *w) { return atomic_load(&w->waiting) || atomic_load(&w->helping); }

static bool waits_for_device(ax_mpi_world *w) { return (double)atomic_load(&w->in_device) > ax_now() * 1000; }

void ax_mpi_watch_answer(ax_mpi_world *w, const ax_mpi_note *question)
{
    ax_mpi_note note = {.kind = AX_NOTE_ANSWER, .ask = question->ask, .progress = w->progress};
    note.called = called_on(w, question->comm);
    bool waits = is_waited_for(w) && !ax_mpi_awaits_data(w);
    note.state = atomic_load(&w->leaving) ? LEFT : waits ? WAITS : COMPUTES;
    if (w->active || w->messages)
        describe(w, note.text, sizeof note.text);
    ax_mpi_note_send(w, question->from, &note);
}

void ax_mpi_watch_hear(ax_mpi_world *w, const ax_mpi_note *note)
{
    ax_mpi_watch *k = w->watch;
    answer *a = &k->answer[note->from];
    if (note->ask != k->ask)
        return;
    a->came = true;
    a->state = note->state;
    a->progress = note->progress;
    a->called = note->called;
    memcpy(a->text, note->text, sizeof a->text);
}

/* ---- decision ------------------------------------------------------------------------------------ */

typedef bool rank_predicate(ax_mpi_world *w, int rank);

static bool is_silent(ax_mpi_world *w, int rank) { return !w->watch->answer[rank].came; }
static bool computes(ax_mpi_world *w, int rank)
{
    return w->watch->answer[rank].came && w->watch->answer[rank].state == COMPUTES;
}
static bool waits(ax_mpi_world *w, int rank)
{
    return w->watch->answer[rank].came && w->watch->answer[rank].state == WAITS;
}
static bool has_moved(ax_mpi_world *w, int rank)
{
    return w->watch->answer[rank].progress != w->watch->answer[rank].before;
}
/* Returns true if this rank waits for `rank`. If this rank waits for a collective: `rank` is a member of the
 * group and has not called this collective. If this rank waits for messages: `rank` has left the world, so
 * `rank` never sends or receives the message. */
static bool is_missing(ax_mpi_world *w, int rank)
{
    if (w->watch->in_message)
        return w->watch->answer[rank].state == LEFT && ax_mpi_awaits_message_of(w, rank);
    const ax_mpi_comm *c = w->active->c;
    bool member = false;
    for (int r = 0; r < c->comm.size; r++)
        member |= c->world_rank[r] == rank;
    return member && w->watch->answer[rank].called < w->active->seq;
}
static bool has_left(ax_mpi_world *w, int rank)
{
    return is_missing(w, rank) && w->watch->answer[rank].state == LEFT;
}

/* Returns true if `rank` waits for another operation than this rank does. */
static bool waits_elsewhere(ax_mpi_world *w, int rank)
{
    const answer *mine = &w->watch->answer[w->comm->comm.rank];
    return waits(w, rank) && strcmp(w->watch->answer[rank].text, mine->text) != 0;
}

static int first_rank(ax_mpi_world *w, rank_predicate *which)
{
    for (int r = 0; r < w->comm->comm.size; r++)
        if (which(w, r))
            return r;
    return -1;
}

/* Writes to `out` the ranks for which which() is true, such as "rank 2" or "ranks 2, 5". */
static void list_ranks(ax_mpi_world *w, rank_predicate *which, char *out, size_t size)
{
    int n = 0;
    for (int r = 0; r < w->comm->comm.size; r++)
        n += which(w, r);
    snprintf(out, size, n == 1 ? "rank" : "ranks");
    for (int r = 0, said = 0; r < w->comm->comm.size; r++)
        if (which(w, r))
            ax_text_add(out, size, "%s %d", said++ ? "," : "", r);
}

/* Writes to `out` the error message that is logged when the job ends. */
static void explain_hang(ax_mpi_world *w, char *out, size_t size)
{
    char what[AX_NOTE_TEXT], who[160];
    describe(w, what, sizeof what);
    int seconds = (int)(ax_now() - w->watch->since + 0.5);
    if (first_rank(w, is_silent) >= 0) {
        list_ranks(w, is_silent, who, sizeof who);
        snprintf(out, size,
                 "this rank has waited %d s in %s; no answer from %s: stopped, dead, or out of reach, so the "
                 "job ends; the messages and the host of a silent rank may say why",
                 seconds, what, who);
    } else if (first_rank(w, has_left) >= 0) {
        list_ranks(w, has_left, who, sizeof who);
        snprintf(out, size,
                 "this rank has waited %d s in %s; %s left the world without calling it, so the job ends",
                 seconds, what, who);
    } else if (first_rank(w, is_missing) < 0 && first_rank(w, waits_elsewhere) < 0) {
        snprintf(out, size,
                 "this rank has waited %d s in %s without progress, although all its ranks have called it, "
                 "so the job ends: the network or MPI may be at fault",
                 seconds, what);
    } else {
        snprintf(out, size, "the ranks have waited for one another for %d s, so the job ends:", seconds);
        for (int r = 0, n = 0; r < w->comm->comm.size; r++)
            if (waits(w, r))
                ax_text_add(out, size, "%s rank %d in %s", n++ ? ";" : "", r, w->watch->answer[r].text);
    }
}

static void warn_late(ax_mpi_world *w, double now)
{
    ax_mpi_watch *k = w->watch;
    char what[AX_NOTE_TEXT], who[160];
    if (now < k->warn_at || first_rank(w, waits) != w->comm->comm.rank)
        return;
    k->warn_at = now + (now - k->since);
    describe(w, what, sizeof what);
    list_ranks(w, first_rank(w, is_missing) < 0 ? computes : is_missing, who, sizeof who);
    ax_log(AX_LOG_WARN, "this rank has waited %d s for %s in %s; all ranks answer, so it continues to wait",
           (int)(now - k->since + 0.5), who, what);
}

static void decide(ax_mpi_world *w, double now)
{
    ax_mpi_watch *k = w->watch;
    bool hopeless = first_rank(w, is_silent) >= 0, hurried = atomic_load(&w->hurried);
    if (!hopeless && hurried) {
        k->round = 0;
        k->since = now;
        k->ask_at = k->hurry_at = now + hurry_again(w);
        return;
    }
    if (!hopeless && !w->active &&
        !k->in_message) { /* this rank waits for its device, which may be computing */
        k->round = 0;
        k->ask_at = now + timeout_of(w);
        return;
    }
    if (!hopeless && first_rank(w, computes) < 0) {
        if (k->round == 1) {
            if (now >= k->answer_deadline)
                ask_all(w, now);
            return;
        }
        hopeless = first_rank(w, has_moved) < 0;
    }
    if (!hopeless) {
        warn_late(w, now);
        k->round = 0;
        k->ask_at = now + timeout_of(w);
    } else if (hurried || first_rank(w, waits) == w->comm->comm.rank ||
               now >= k->answer_deadline + patience(timeout_of(w))) {
        char text[900];
        explain_hang(w, text, sizeof text);
        ax_mpi_end_job(w, AX_ERR_COMM, text, first_rank(w, is_silent) < 0);
    }
}

void ax_mpi_watch_look(ax_mpi_world *w)
{
    ax_mpi_watch *k = w->watch;
    double now = ax_now(), timeout = timeout_of(w);
    k->in_message = ax_mpi_awaits_messages(w);
    bool hurried = atomic_load(&w->hurried), in_operation = (w->active || k->in_message) && is_waited_for(w),
         in_device = !w->active && !k->in_message && waits_for_device(w),
         waiting = (timeout > 0 || hurried) && (in_operation || in_device) && !atomic_load(&w->failed);
    if (!waiting || w->progress != k->seen) {
        k->seen = w->progress;
        k->since = now;
        k->ask_at = k->warn_at = now + timeout;
        k->round = 0;
        return;
    }
    if (k->round == 0) {
        if (now >= k->ask_at || (hurried && now >= fmax(k->since + HURRY_ASK, k->hurry_at)))
            ask_all(w, now);
        return;
    }
    if (first_rank(w, is_silent) < 0 || now >= k->answer_deadline)
        decide(w, now);
}
