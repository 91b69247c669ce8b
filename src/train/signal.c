/* Signals that ask a run to save and stop. Signal handlers belong to the process, so this file has
 * process-wide state (docs/architecture.md, idea 6, lists all such state).
 *
 * A program may install the handlers at its start (ax_signals_catch). Otherwise ax_train installs them while
 * it runs; if ranks are threads, the handlers stay from the start of the first rank to the end of the last.
 *
 * While the handlers are installed, SIGPIPE is ignored: a closed pipe that receives the log must not end the
 * run. */
#include "train/train.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

static const int watched[] = {SIGTERM, SIGUSR1, SIGUSR2, SIGINT, SIGHUP, SIGPIPE};
static struct sigaction before[AX_COUNT(watched)];
static atomic_int pending; /* the last signal, or 0. Atomic: other threads read it while the handler runs */
static int64_t first_ms;   /* time of the first signal, in ms (ax_signal_again) */
static void (*_Atomic heard)(void); /* function that the handler calls, or NULL */
static pthread_mutex_t users_lock = PTHREAD_MUTEX_INITIALIZER;
static int users; /* number of ranks (threads) and of callers of ax_signals_catch that need the handlers;
                     guarded by users_lock */
static atomic_int saving; /* number of ranks (threads) that are writing a checkpoint; unless it is 0, signals
                             do not shorten the watchdog's timeout */
static _Atomic(ax_comm *) world; /* communicator of the run; a signal shortens the watchdog's timeout for its
                                    ranks (ax_comm_hurry) */

/* Handles a signal: records its number. A SIGINT that comes a second or more after the first signal ends the
 * process at once. */
static void note(int number)
{
    static const char words[] = "\naxonn: stopping; a step that runs is done first, and saved; Ctrl-C again "
                                "ends at once, without saving\n";
    int interrupted = errno; /* errno is restored at the end, for the interrupted code */
    bool again = ax_signal_again(&first_ms);
    if (again && number == SIGINT) {
        signal(SIGINT, SIG_DFL);
        raise(SIGINT);
    }
    if (!pending && number == SIGINT && write(STDERR_FILENO, words, sizeof words - 1) < 0)
        pending = number; /* has no effect, since the next line does the same. Only uses the result of write,
                             because the compiler warns about an unused result */
    pending = number;
    void (*tell)(void) = heard;
    if (tell)
        tell();
    ax_comm *comm = world;
    if (comm && !saving)
        ax_comm_hurry(comm);
    errno = interrupted;
}

static void install(void)
{
    pending = 0;
    first_ms = 0;
    ax_signal_forget();
    for (size_t i = 0; i < AX_COUNT(watched); i++) {
        struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESTART};
        if (watched[i] == SIGPIPE)
            action.sa_handler = SIG_IGN;
        sigaction(watched[i], NULL, &before[i]);
        /* A signal that is ignored, like SIGHUP under nohup, stays ignored. */
        if (before[i].sa_handler != SIG_IGN)
            sigaction(watched[i], &action, NULL);
    }
}

static void add_user(ax_comm *comm)
{
    pthread_mutex_lock(&users_lock);
    if (!users++)
        install();
    if (!world)
        world = comm;
    pthread_mutex_unlock(&users_lock);
}

void ax_signals_catch(void (*tell)(void))
{
    heard = tell;
    add_user(NULL);
}

void ax_signals_install(ax_comm *comm) { add_user(comm); }

void ax_signals_restore(ax_comm *comm)
{
    pthread_mutex_lock(&users_lock);
    if (!--users) {
        for (size_t i = 0; i < AX_COUNT(watched); i++)
            sigaction(watched[i], &before[i], NULL);
        ax_signal_forget();
    }
    if (world == comm)
        world = NULL;
    pthread_mutex_unlock(&users_lock);
}

void ax_signals_saving(bool begins)
{
    saving += begins ? 1 : -1;
    ax_comm *comm = world;
    if (comm && !saving && pending)
        ax_comm_hurry(comm);
}

int ax_signal_pending(void) { return pending; }

double ax_signal_age(void)
{
    int64_t first = __atomic_load_n(&first_ms, __ATOMIC_RELAXED);
    return pending && first ? ax_now() - 1e-3 * (double)first : 0;
}
