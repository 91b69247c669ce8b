/* Runs the launcher of an MPI library (mpirun) as a child of this process: starts it, watches it, passes
 * signals on to it, and ends it. */
#ifndef AX_CLI_JOB_H
#define AX_CLI_JOB_H

#include "verb.h"

#include <sys/types.h>

/* The note: a shared-memory struct that ranks on this host write and the process that started them reads. The
 * memory is a memfd with the name CLI_NOTE_NAME; its path is in the environment variable CLI_NOTE. */
#define CLI_NOTE "AXONN_NOTE"
#define CLI_NOTE_NAME "axonn-note"
typedef struct cli_note {
    /* Written by rank 0 when it has joined the world, and when it ends. If the job is aborted, other ranks
     * write `ended` and `code` too, unless rank 0 has: the launcher may have killed it. */
    int64_t pid;         /* pid of rank 0; 0: rank 0 has not joined yet */
    int32_t ended, code; /* `ended`: whether rank 0 has ended; `code`: its exit code */
    /* `heard` is set to 1 by any rank that has received a signal, `begun` by each rank as it starts: ranks
     * may end before the process that started them has looked for them. */
    int32_t heard, begun;
} cli_note;

typedef struct cli_job {
    char *const *words; /* command line of the launcher; the last element is NULL */
    int stop; /* signal that asks the ranks to save and stop; a rank acknowledges it by cli_note.heard. 0: any
                 signal to this process ends the job at once */
    bool elsewhere;   /* all ranks may be on other hosts; ranks on other hosts cannot write the note */
    bool keeps_input; /* the launcher gets this process's standard input, for rank 0; false: it gets /dev/null
                       */
    const char *session; /* directory for the session files of Open MPI's launcher, or NULL: the launcher
                            chooses one */
    /* Results, set when the job has ended: */
    int status;   /* exit status of the launcher, as waitpid returns it */
    int signal;   /* the signal that this process received, or 0 */
    bool at_once; /* SIGINT came twice: the job was ended without waiting for the ranks to save */
    bool gone;    /* the ranks had ended, but the launcher had not: it was ended */
    bool unheard; /* no rank acknowledged the signal in time: the job was ended */
    int lost;     /* errno of the write of the ranks' standard output that failed; 0: all was written */
    bool started; /* the launcher was started; false: a signal came before the start */
    cli_note note;
} cli_job;

/* The exit code of the child if the launcher cannot be executed. */
enum { CLI_CANNOT_START = 126 };

/* Starts the launcher, unless a signal that asks the ranks to stop has come before. Waits until the launcher
 * has ended. Gives the processes that the launcher started on this host one second to end too, and then kills
 * them. If this process receives a signal: if job->stop is 0, ends the job; otherwise sends job->stop to the
 * launcher repeatedly until a rank has acknowledged it, and ends the job if no rank has done so within five
 * seconds. With job->elsewhere, acknowledgements may not reach this process, so the job then goes on without
 * one. If all ranks have ended and the launcher does not notice, ends the launcher; likewise if
 * standard output cannot be written and job->stop is 0. If this process dies, its
 * job ends within seconds. Returns AX_ERR_MEMORY if no process can be started; the job's own result is in
 * job->status. */
ax_status cli_job_run(cli_job *job);

#endif
