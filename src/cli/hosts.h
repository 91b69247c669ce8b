/* A list of hosts, as --hosts takes it: "node1,node2:4". */
#ifndef AX_CLI_HOSTS_H
#define AX_CLI_HOSTS_H

#include "axonn/base.h"

typedef struct cli_hosts {
    int n;
    char **name;
    int64_t *slots; /* how many ranks each takes */
} cli_hosts;

/* Hosts without a number take as many ranks each as are enough where all take as many. The caller releases
 * *out with cli_hosts_fini, whatever the result. AX_ERR_USAGE. */
AX_MUST_CHECK ax_status cli_hosts_read(const char *list, int64_t ranks, cli_hosts *out);
void cli_hosts_fini(cli_hosts *hosts);

#endif
