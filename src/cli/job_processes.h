/* The processes of a job (job.h) on this host: those whose environment names this process's note. */
#ifndef AX_CLI_JOB_PROCESSES_H
#define AX_CLI_JOB_PROCESSES_H

#include <stdbool.h>
#include <sys/types.h>

/* Returns true if a process of the job that runs this program, so a rank, is alive. *known is a rank that was
 * alive before, or 0: it is looked at first. Becomes the rank that is alive. */
bool cli_job_rank_lives(pid_t *known);
/* Returns true if a child of `parent` has ended and `parent` has not waited for it. */
bool cli_job_has_zombie(pid_t parent);
/* Returns true if the process is alive and belongs to the job. */
bool cli_job_has(pid_t process);
/* Sends signal `number` (0: none) to all children of this process that belong to the job. Returns true if
 * there are such children. */
bool cli_job_signal_children(int number);
void cli_job_kill_all(void);

#endif
