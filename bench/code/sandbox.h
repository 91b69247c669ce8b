/* Runs a command that must not be trusted: without network, without the user's files, with limits of time,
 * memory, processes and output. It is Debian's bubblewrap with name spaces for users, processes, network and
 * IPC; whatever the command starts ends with it. */
#ifndef SANDBOX_H
#define SANDBOX_H

#include "axonn/base.h"

typedef struct sandbox_limits {
    double seconds;    /* elapsed */
    int64_t memory;    /* bytes of all processes together, and again as much for its files */
    int64_t output;    /* bytes of its standard output */
    int64_t processes; /* and threads */
} sandbox_limits;

typedef enum sandbox_end {
    SANDBOX_EXIT, /* of itself */
    SANDBOX_TIME, /* stopped for a limit */
    SANDBOX_MEMORY,
    SANDBOX_OUTPUT
} sandbox_end;

typedef struct sandbox_result {
    sandbox_end end;
    int status;       /* as of waitpid, after SANDBOX_EXIT */
    double seconds;   /* elapsed */
    ax_buf out;       /* standard output */
    char errors[512]; /* the start of its standard error; ? in place of each byte that is not ASCII */
} sandbox_result;

/* Becomes an unused user without rights if the caller is root, for whom limits of processes do not hold. The
 * folder `dir`, and all in it, becomes this user's. Call it before threads are started. AX_ERR_USAGE: name
 * spaces cannot be made here; the message says what to change. */
AX_MUST_CHECK ax_status sandbox_start(const char *dir);

/* Runs argv, with the folder `in` as /in, read-only, and an empty /tmp. Its standard input is empty. The
 * caller releases result->out. Thread-safe. */
AX_MUST_CHECK ax_status sandbox_run(const sandbox_limits *limits, const char *in, const char *const argv[],
                                    sandbox_result *result);

#endif
