/* Status codes and the calling thread's last error. */
#include "axonn/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef ax_fail /* base.h has a macro of this name; this file defines the function that the macro calls */

enum { MESSAGE_MAX = 16384 };
static _Thread_local char message[MESSAGE_MAX];
static _Thread_local ax_status last;
static _Thread_local bool shared;

const char *ax_status_name(ax_status status)
{
    static const char *const names[] = {
        "ok",         "internal error",      "usage error",     "not enough memory",
        "data error", "communication error", "numerical error", "stopped by a signal"};
    return (unsigned)status < AX_COUNT(names) ? names[status] : "unknown status";
}

ax_status ax_fail(ax_status code, const char *fmt, ...)
{
    /* Formats into a local buffer first, because an argument may be the old message itself. */
    char text[MESSAGE_MAX];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    memcpy(message, text, sizeof message);
    shared = false;
    return last = code;
}

void ax_error_context(const char *fmt, ...)
{
    char text[MESSAGE_MAX];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    ax_text_add(text, sizeof text, ": %s", message);
    memcpy(message, text, sizeof message);
}

const char *ax_error_message(void) { return message; }
ax_status ax_error_status(void) { return last; }
void ax_error_share(void) { shared = true; }
bool ax_error_is_shared(void) { return shared; }

void ax_assert_failed(const char *cond, const char *file, int line)
{
    fprintf(stderr, "axonn: %s:%d: invariant broken: %s (this is a bug: please report it)\n", file, line,
            cond);
    abort();
}
