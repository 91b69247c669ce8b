/* Signals that end a verb which has temporary files to remove: they are noted, the verb gives up at its next
 * call of progress, and once everything is cleaned up the program dies of the signal, as its parent expects.
 * A second signal, a second or more later, ends it at once. */
#include "verb.h"

#include <signal.h>

static volatile sig_atomic_t caught;

static void note(int number)
{
    static int64_t first_ms;
    if (ax_signal_again(&first_ms)) {
        signal(number, SIG_DFL);
        raise(number);
    }
    caught = number;
}

void cli_stop_catch(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < AX_COUNT(numbers); i++) {
        struct sigaction before, action = {.sa_handler = note, .sa_flags = SA_RESTART};
        if (sigaction(numbers[i], NULL, &before) || before.sa_handler == SIG_IGN) /* as nohup wants it */
            continue;
        sigaction(numbers[i], &action, NULL);
    }
}

bool cli_stop_wanted(void) { return caught != 0; }

void cli_stop_die(void)
{
    if (!caught)
        return;
    signal(caught, SIG_DFL);
    raise(caught);
}
