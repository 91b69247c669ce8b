/* Two start-up steps of a process: before anything else, and after its runtime settings are known. */
#ifndef AX_CLI_PROCESS_H
#define AX_CLI_PROCESS_H

#include "axonn/base.h"

/* Opens standard input, output and error on /dev/null if they are closed. Enlarges the stacks of new threads,
 * and that of this thread if the hard limit allows, to what libraries need. Ignores SIGXFSZ, so that a write
 * beyond the file size limit is an error and does not kill the process. */
void cli_process_begin(void);

/* Called after all keys runtime.* are set: checks the values that environment variables give, and logs the
 * version. AX_ERR_USAGE */
ax_status cli_process_settings(void);

#endif
