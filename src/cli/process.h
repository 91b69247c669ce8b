/* What must hold in this process before anything else is done. */
#ifndef AX_CLI_PROCESS_H
#define AX_CLI_PROCESS_H

/* Opens standard input, output and error on /dev/null where they are closed, gives threads and, if it may,
 * this one stacks large enough for libraries, and makes a file that may not grow an error instead of a death.
 */
void cli_process_begin(void);

#endif
