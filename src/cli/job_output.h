/* The standard output of a job (job.h), which a process of its own writes. */
#ifndef AX_CLI_JOB_OUTPUT_H
#define AX_CLI_JOB_OUTPUT_H

#include <stdbool.h>
#include <sys/types.h>

/* What the process does: it waits for output, writes it, or has ended. */
typedef enum cli_output_state { CLI_OUTPUT_WAITS, CLI_OUTPUT_WRITES, CLI_OUTPUT_ENDED } cli_output_state;

typedef struct cli_output {
    pid_t pid; /* 0: there is no such process */
    int end;   /* descriptor for the launcher to write to; -1: there is none */
    struct cli_output_shared *shared;
} cli_output;

/* Starts a process that copies what is written to out->end to standard output, unless that is a terminal or
 * the process cannot be started: the launcher then writes to standard output itself. A launcher does not tell
 * whether its own output could be written; this process does. */
void cli_output_start(cli_output *out);
/* Closes out->end in this process. The copy ends when the launcher and all ranks have closed it too. */
void cli_output_close_end(cli_output *out);
/* Returns the error number of a failed write; 0: none has failed. */
int cli_output_error(const cli_output *out);
/* Waits until all output is written, as long as the process writes. Gives up once it has only waited for
 * `seconds` seconds, because some process that does not end has the descriptor; also `seconds` seconds after
 * *stop became nonzero, because a reader may read no more (the error is then EINTR); and if something has
 * killed the process (EIO). */
void cli_output_finish(cli_output *out, double seconds, const volatile int *stop);

#endif
