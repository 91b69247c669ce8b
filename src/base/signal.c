/* Records that a signal asked the process to stop, and when the first such signal came. */
#include "axonn/base.h"

#include <stdatomic.h>
#include <time.h>

static atomic_bool noted;

bool ax_signal_again(int64_t *first_ms)
{
    enum { AGAIN_MS = 1000 };
    struct timespec t;
    int64_t first = 0;
    noted = true;
    clock_gettime(CLOCK_MONOTONIC, &t);
    int64_t now = (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
    return !__atomic_compare_exchange_n(first_ms, &first, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED) &&
           now - first >= AGAIN_MS;
}

bool ax_signal_noted(void) { return noted; }
void ax_signal_forget(void) { noted = false; }
