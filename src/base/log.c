/* The log: writes one line per message to stderr. */
#include "axonn/base.h"
#include "axonn/runtime.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const names[] = {"error", "warning", "info", "debug", "trace"};
static const char *const level_words[] = {"error", "warn", "info", "debug", "trace"};
static atomic_int level_now = -1;
static _Thread_local int my_rank, my_size = 1;

static int level_get(void)
{
    int level = atomic_load(&level_now);
    if (level >= 0)
        return level;
    const char *word;
    int unknown = -1;
    ax_status status = ax_runtime_get(AX_RUNTIME_LOG, &word);
    level = AX_LOG_INFO;
    for (int i = 0; status == AX_OK && i < (int)AX_COUNT(level_words); i++)
        if (!strcmp(word, level_words[i]))
            level = i;
    if (atomic_compare_exchange_strong(&level_now, &unknown, level) && status != AX_OK)
        ax_log(AX_LOG_WARN, "%s", ax_error_message());
    return atomic_load(&level_now);
}

void ax_log_set_level(ax_log_level level) { atomic_store(&level_now, (int)level); }

void ax_log_set_rank(int rank, int size)
{
    my_rank = rank;
    my_size = size;
}

void ax_log(ax_log_level level, const char *fmt, ...)
{
    if ((int)level > level_get() || (level == AX_LOG_INFO && my_rank != 0))
        return;
    char line[4200];
    int n = 0;
    if (level != AX_LOG_INFO)
        n = my_size > 1 ? snprintf(line, sizeof line, "axonn: %s: rank %d: ", names[level], my_rank)
                        : snprintf(line, sizeof line, "axonn: %s: ", names[level]);
    va_list args;
    va_start(args, fmt);
    int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, args);
    va_end(args);
    if (m < 0)
        return;
    size_t len = (size_t)ax_min(n + m, (int64_t)sizeof line - 2);
    line[len++] = '\n';
    /* The whole line is written with one call of write, so that lines of several ranks on one terminal are
     * not mixed. */
    if (write(STDERR_FILENO, line, len) < 0)
        return;
}
