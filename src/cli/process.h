/* Start-up of a process, in two steps: before anything else, and once its runtime settings are known. */
#ifndef AX_CLI_PROCESS_H
#define AX_CLI_PROCESS_H

#include "axonn/base.h"

/* Opens standard input, output and error on /dev/null if they are closed. Enlarges the stacks of new threads,
 * and of this thread if the hard limit allows, to the size that libraries need. Ignores SIGXFSZ: a write
 * beyond the file size limit then fails with an error instead of killing the process. */
void cli_process_begin(void);

/* Checks the runtime settings that come from environment variables, and logs the version. To be called after
 * all runtime.* keys are set. AX_ERR_USAGE if a variable has a value that is not valid. */
ax_status cli_process_settings(void);

#endif
