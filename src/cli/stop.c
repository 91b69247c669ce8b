/* Signals that end a verb which has temporary files to remove: they are noted, the verb gives up at its next
 * call of progress, and once everything is cleaned up the program dies of the signal, as its parent expects.
 * A second signal ends it at once, unless it comes with the first: launchers send to the process and to its
 * group. */
#include "verb.h"

#include <signal.h>
#include <time.h>

static volatile sig_atomic_t caught, first_second;

static void note(int number)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (caught && now.tv_sec - first_second > 1) {
        signal(number, SIG_DFL);
        raise(number);
    }
    if (!caught)
        first_second = (sig_atomic_t)now.tv_sec;
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
