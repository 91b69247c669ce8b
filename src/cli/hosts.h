/* The value of --hosts: a list of hosts with their numbers of ranks, "node1,node2:4". */
#ifndef AX_CLI_HOSTS_H
#define AX_CLI_HOSTS_H

#include "axonn/base.h"

typedef struct cli_hosts {
    int n;
    char **name;
    int64_t *slots; /* largest number of ranks on each host */
} cli_hosts;

/* Parses the list of hosts for a job of `ranks` ranks. A host without a number gets ceil(ranks / number of
 * hosts) ranks. The caller releases *out with cli_hosts_fini, also after an error. AX_ERR_USAGE if the
 * list is not valid. */
AX_MUST_CHECK ax_status cli_hosts_read(const char *list, int64_t ranks, cli_hosts *out);
void cli_hosts_fini(cli_hosts *hosts);

#endif
