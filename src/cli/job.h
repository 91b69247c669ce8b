/* The launcher of an MPI library as a child of this process: started, signalled, watched, ended. */
#ifndef AX_CLI_JOB_H
#define AX_CLI_JOB_H

#include "verb.h"

#include <sys/types.h>

/* What the ranks on this host tell the process that started them, in memory (a memfd of that name) whose path
 * is in the environment. */
#define CLI_NOTE "AXONN_NOTE"
#define CLI_NOTE_NAME "axonn-note"
typedef struct cli_note {
    /* Rank 0's, once there is a world. */
    int64_t pid; /* 0: nothing was written */
    int32_t ended, code;
    /* Any rank's: a signal has come, and is noted. */
    int32_t heard, unused;
} cli_note;

typedef struct cli_job {
    char *const *words; /* the launcher's command, ends with NULL */
    int stop; /* the signal that asks ranks to stop, which they acknowledge; 0: the job is ended instead */
    bool elsewhere;   /* ranks may all be on other hosts, where their notes are not seen */
    bool keeps_input; /* for rank 0, to which launchers pass it on */
    /* Once it has ended: */
    int status;   /* of the launcher, as waitpid gives it */
    int signal;   /* that came to this process, or 0 */
    bool at_once; /* a second one came: ranks were not waited for */
    bool unheard; /* no rank acknowledged it in time: the job was ended */
    bool started; /* false: the signal came before */
    cli_note note;
} cli_job;

/* How a launcher that is not there exits. */
enum { CLI_CANNOT_START = 126 };

/* Starts the launcher and waits until it has ended, and nothing that it started on this host is left. Signals
 * that come are passed on as `stop` until a rank has acknowledged it; if none has after five seconds, the job
 * is ended. AX_ERR_MEMORY */
ax_status cli_job_run(cli_job *job);

#endif
