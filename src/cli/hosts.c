/* Parses the value of --hosts. */
#include "hosts.h"

#include <stdlib.h>
#include <string.h>

/* Reads the number of ranks that follows a host's name: the n characters at `text`. `list` is used in
 * messages. */
static ax_status read_slots(const char *list, const char *text, size_t n, int64_t *out)
{
    enum { MOST = 1 << 20 };
    size_t digits = strspn(text, "0123456789");
    *out = digits && digits == n ? strtoll(text, NULL, 10) : 0;
    AX_CHECK(*out >= 1 && *out <= MOST, AX_ERR_USAGE,
             "--hosts %s: \"%.*s\" must be a number of ranks from 1 to %d (HOST:RANKS)", list, (int)n, text,
             MOST);
    return AX_OK;
}

ax_status cli_hosts_read(const char *list, int64_t ranks, cli_hosts *out)
{
    int n = 1;
    for (const char *c = list; *c; c++)
        n += *c == ',';
    *out = (cli_hosts){0};
    AX_TRY(ax_calloc((size_t)n, sizeof *out->name, &out->name));
    AX_TRY(ax_calloc((size_t)n, sizeof *out->slots, &out->slots));
    for (const char *at = list; out->n < n; out->n++) {
        size_t whole = strcspn(at, ","), name = strcspn(at, ",:");
        AX_CHECK(name, AX_ERR_USAGE,
                 "--hosts %s: the name of a host is empty; write HOST,HOST,... or HOST:RANKS,...", list);
        out->slots[out->n] = ax_ceil_div(ranks, n);
        if (name < whole)
            AX_TRY(read_slots(list, at + name + 1, whole - name - 1, &out->slots[out->n]));
        AX_TRY(ax_strndup(at, name, &out->name[out->n]));
        at += whole + (at[whole] == ',');
    }
    return AX_OK;
}

void cli_hosts_fini(cli_hosts *hosts)
{
    for (int i = 0; i < hosts->n; i++)
        free(hosts->name[i]);
    free(hosts->name);
    free(hosts->slots);
    *hosts = (cli_hosts){0};
}
