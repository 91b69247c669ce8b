/* Runs the launcher of an MPI library (mpirun) as a child of this process: starts it, watches it, passes
 * signals on to it, and ends it. */
#ifndef AX_CLI_JOB_H
#define AX_CLI_JOB_H

#include "verb.h"

#include <sys/types.h>

/* A note from the ranks on this host to the process that started them. It is in shared memory, a memfd called
 * CLI_NOTE_NAME, whose path is in the environment variable CLI_NOTE. */
#define CLI_NOTE "AXONN_NOTE"
#define CLI_NOTE_NAME "axonn-note"
typedef struct cli_note {
    /* Written by rank 0, once it has joined the world. */
    int64_t pid;         /* of rank 0; 0: nothing was written yet */
    int32_t ended, code; /* whether rank 0 has ended, and its exit code */
    /* Written by any rank that has received a signal. */
    int32_t heard, unused;
} cli_note;

typedef struct cli_job {
    char *const *words; /* the launcher's command, ends with NULL */
    int stop; /* signal that asks the ranks to save and stop; they acknowledge it. 0: end the job instead */
    bool elsewhere;   /* all ranks may be on other hosts, whose notes do not reach this process */
    bool keeps_input; /* the launcher gets standard input, for rank 0; else it gets /dev/null */
    /* Results, set when the job has ended: */
    int status;   /* of the launcher, as waitpid returns it */
    int signal;   /* the signal that this process received, or 0 */
    bool at_once; /* SIGINT came a second time: the ranks were not waited for */
    bool unheard; /* no rank acknowledged the signal in time: the job was ended */
    bool started; /* the launcher was started; false: a signal came before that */
    cli_note note;
} cli_job;

/* The exit code of the child if the launcher cannot be executed. */
enum { CLI_CANNOT_START = 126 };

/* Starts the launcher and waits until it has ended and none of the processes that it started on this host is
 * left. A signal to this process is passed on as job->stop, repeatedly, until a rank has acknowledged it. If
 * no rank has done so after five seconds, the job is ended. AX_ERR_MEMORY */
ax_status cli_job_run(cli_job *job);

#endif
