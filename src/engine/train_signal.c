/* Signals that ask a run to save and stop. A handler can only note the signal, and there is one disposition
 * per process, so this is the one place of the library with process-wide state; training installs it for its
 * own duration. A second SIGINT ends the process at once. */
#include "engine/train.h"

static const int watched[] = {SIGTERM, SIGUSR1, SIGUSR2, SIGINT};
static struct sigaction before[AX_COUNT(watched)];
static volatile sig_atomic_t pending;

static void note(int number)
{
    if (number == SIGINT && pending) {
        signal(SIGINT, SIG_DFL);
        raise(SIGINT);
    }
    pending = number;
}

void ax_signals_install(void)
{
    pending = 0;
    for (size_t i = 0; i < AX_COUNT(watched); i++) {
        struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESTART};
        sigaction(watched[i], &action, &before[i]);
    }
}

void ax_signals_restore(void)
{
    for (size_t i = 0; i < AX_COUNT(watched); i++)
        sigaction(watched[i], &before[i], NULL);
}

int ax_signal_pending(void) { return pending; }
