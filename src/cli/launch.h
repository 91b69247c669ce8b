/* The ranks of a verb: starting them, being one of them. */
#ifndef AX_CLI_LAUNCH_H
#define AX_CLI_LAUNCH_H

#include "axonn/config.h"
#include "axonn/grid.h"
#include "verb.h"

#define LAUNCH_OPTIONS(args, field)                                                                          \
    {"ranks",                                                                                                \
     AX_OPT_INT,                                                                                             \
     offsetof(args, field.ranks),                                                                            \
     "0",                                                                                                    \
     "[0, 65536]",                                                                                           \
     .meta = "N",                                                                                            \
     .help = "start this many ranks through MPI's launcher; 0: start none, and run on the ranks that "       \
             "mpirun or srun started, else on one"},                                                         \
    {                                                                                                        \
        "hosts", AX_OPT_STRING, offsetof(args, field.hosts),                                                 \
            .meta = "LIST",                                                                                  \
            .help = "with --ranks: the hosts to start them on, as host,host,... or host:ranks,...; "         \
                    "default: this one"                                                                      \
    }

/* True if `launch` asks for ranks that nobody has started yet. AX_ERR_USAGE if a launcher started another
 * number of them. */
ax_status cli_launch_wanted(const cli_launch *launch, bool *out);
/* Runs this command (its n words behind the program's name) on launch->ranks ranks and waits; a
 * signal asks them to stop with verb->stop (0: ends them). Returns what the ranks agreed on. */
ax_status cli_launch_run(const cli_launch *launch, const cli_verb *verb, size_t n, char *const *words);

/* Finds out who started this process as a rank, if anyone on this host did. */
void cli_starter_find(void);
/* Tells it that a signal has come to this rank. For signal handlers. */
void cli_starter_heard(void);

/* The world that this process is in. Collective. */
ax_status cli_world_open(ax_comm **world);
/* Ends the job, here, if `status` is an error that the others do not share: they may be waiting for this
 * rank.
 */
void cli_world_judge(ax_comm *world, ax_status status);
/* Leaves it, after telling the error: rank 0 does if all ranks have the same; an error that the others do not
 * share ends the job. Returns `status`. */
ax_status cli_world_close(ax_comm **world, ax_status status);
/* A verb that does what a configuration says: the file `path` with `overrides` is loaded for `use`, `run` is
 * called with the verb's arguments, and the world, which this opens, is left as cli_world_close does.
 * Collective. */
typedef ax_status cli_configured_fn(ax_comm *world, ax_config *config, const void *args);
ax_status cli_configured(const char *path, const ax_strings *overrides, ax_config_use use,
                         cli_configured_fn *run, const void *args);
/* Prints the error of `status`, once, unless another rank does. */
void cli_tell(ax_status status);
/* The ranks that this process has started did. */
void cli_told_by_ranks(void);

#endif
