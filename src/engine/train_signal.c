/* Signals that ask a run to save and stop. A handler can only note the signal, and there is one disposition
 * per process, so this is the one place of the library with process-wide state; training installs it for its
 * own duration (of the first of several ranks that are threads to the last). A broken pipe of the log is no
 * reason to stop, so SIGPIPE is ignored meanwhile. */
#include "engine/train.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

static const int watched[] = {SIGTERM, SIGUSR1, SIGUSR2, SIGINT, SIGHUP, SIGPIPE};
static struct sigaction before[AX_COUNT(watched)];
static atomic_int pending; /* atomic: ranks that are threads read it while another of them is interrupted */
static atomic_long first_second;
static pthread_mutex_t users_lock = PTHREAD_MUTEX_INITIALIZER;
static int users;
static atomic_int saving; /* ranks that write a checkpoint, which may keep them from answering for long */
static _Atomic(ax_comm *) world; /* whose other ranks have to answer once a signal came */

/* A second SIGINT ends the process at once, unless it comes with the first: launchers forward what the
 * terminal has sent to the whole process group already. */
static void note(int number)
{
    static const char words[] =
        "\naxonn: saving after this step; Ctrl-C again ends at once, without saving\n";
    struct timespec now;
    int interrupted = errno; /* of the code that is interrupted */
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (number == SIGINT && pending && now.tv_sec - first_second > 1) {
        signal(SIGINT, SIG_DFL);
        raise(SIGINT);
    }
    if (!pending) {
        first_second = (long)now.tv_sec;
        if (number == SIGINT && write(STDERR_FILENO, words, sizeof words - 1) < 0)
            pending = number; /* nobody listens: the signal counts all the same */
    }
    pending = number;
    ax_comm *comm = world;
    if (comm && !saving)
        ax_comm_hurry(comm);
    errno = interrupted;
}

static void install(void)
{
    pending = 0;
    for (size_t i = 0; i < AX_COUNT(watched); i++) {
        struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESTART};
        if (watched[i] == SIGPIPE)
            action.sa_handler = SIG_IGN;
        sigaction(watched[i], NULL, &before[i]);
        if (before[i].sa_handler != SIG_IGN) /* as nohup wants it */
            sigaction(watched[i], &action, NULL);
    }
}

void ax_signals_install(ax_comm *comm)
{
    pthread_mutex_lock(&users_lock);
    if (!users++) {
        world = comm;
        install();
    }
    pthread_mutex_unlock(&users_lock);
}

void ax_signals_restore(void)
{
    pthread_mutex_lock(&users_lock);
    if (!--users)
        for (size_t i = 0; i < AX_COUNT(watched); i++)
            sigaction(watched[i], &before[i], NULL);
    world = users ? world : NULL;
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
