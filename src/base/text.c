/* Appends to strings of fixed size, prints bytes and seconds in readable units, computes edit distances,
 * returns the version. */
#include "axonn/base.h"

#include <stdio.h>
#include <string.h>

#ifndef AXONN_VERSION
#error "the build defines AXONN_VERSION and AXONN_COMMIT"
#endif

const char *ax_version(void) { return AXONN_VERSION; }
const char *ax_commit(void) { return AXONN_COMMIT; }

void ax_text_add_args(char *out, size_t room, const char *fmt, va_list args)
{
    size_t used = strnlen(out, room);
    if (used < room)
        vsnprintf(out + used, room - used, fmt, args);
}

void ax_text_add(char *out, size_t room, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    ax_text_add_args(out, room, fmt, args);
    va_end(args);
}

char *ax_format_bytes(double bytes, char out[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t u = 0;
    while (bytes >= 1024 && u + 1 < AX_COUNT(units)) {
        bytes /= 1024;
        u++;
    }
    snprintf(out, 32, u ? "%.1f %s" : "%.0f %s", bytes, units[u]);
    return out;
}

char *ax_format_seconds(double seconds, char out[32])
{
    const double most = 1e15;
    long s = (long)(seconds < most ? seconds + 0.5 : most);
    if (seconds >= most)
        snprintf(out, 32, "%.3g s", seconds);
    else if (seconds < 0.01)
        snprintf(out, 32, "%.3g ms", seconds * 1e3);
    else if (seconds < 1)
        snprintf(out, 32, "%.0f ms", seconds * 1e3);
    else if (seconds < 60)
        snprintf(out, 32, "%.1f s", seconds);
    else if (s < 3600)
        snprintf(out, 32, "%ldm%02lds", s / 60, s % 60);
    else
        snprintf(out, 32, "%ldh%02ldm", s / 3600, s % 3600 / 60);
    return out;
}

int64_t ax_divisor_below(int64_t n, int64_t most)
{
    int64_t best = 1;
    for (int64_t i = 1; i <= n / i; i++) {
        if (n % i)
            continue;
        best = i <= most ? ax_max(best, i) : best;
        best = n / i <= most ? ax_max(best, n / i) : best;
    }
    return best;
}

int ax_edit_distance(const char *a, const char *b)
{
    enum { MAX = 128 };
    int rows[3][MAX + 1], n = (int)strnlen(a, MAX), m = (int)strnlen(b, MAX);
    for (int j = 0; j <= m; j++)
        rows[0][j] = j;
    for (int i = 1; i <= n; i++) {
        int *row = rows[i % 3], *above = rows[(i + 2) % 3], *second = rows[(i + 1) % 3];
        row[0] = i;
        for (int j = 1; j <= m; j++) {
            int other = above[j - 1] + (a[i - 1] != b[j - 1]);
            row[j] = (int)ax_min(other, ax_min(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = (int)ax_min(row[j], second[j - 2] + 1);
        }
    }
    return rows[n % 3][m];
}
