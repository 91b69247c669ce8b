/* When a signal comes, stops a verb that has temporary files to remove. The handler records the signal, and
 * the verb stops at its next progress callback. After its clean-up the program ends by the same signal, so
 * that its parent sees which signal ended it. A second signal, at least a second after the first, ends the
 * program at once. */
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
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
    for (size_t i = 0; i < AX_COUNT(numbers); i++) {
        struct sigaction before, action = {.sa_handler = note, .sa_flags = SA_RESTART};
        if (sigaction(numbers[i], NULL, &before) ||
            before.sa_handler ==
                SIG_IGN) /* a signal that is ignored, like SIGHUP under nohup, stays ignored */
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
