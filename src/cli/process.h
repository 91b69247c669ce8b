/* Settings of the process that must be made before anything else. */
#ifndef AX_CLI_PROCESS_H
#define AX_CLI_PROCESS_H

/* Opens standard input, output and error on /dev/null if they are closed. Enlarges the stacks of new threads,
 * and that of this thread if the hard limit allows, to what libraries need. Ignores SIGXFSZ, so that a write
 * beyond the file size limit is an error and does not kill the process. */
void cli_process_begin(void);

#endif
