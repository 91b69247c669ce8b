/* Starts the ranks of a verb, and lets a process that is a rank join the other ranks. */
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
             "mpirun or srun started, else on one rank"},                                                    \
    {                                                                                                        \
        "hosts", AX_OPT_STRING, offsetof(args, field.hosts),                                                 \
            .meta = "LIST",                                                                                  \
            .help = "with --ranks: the hosts to start ranks on, as host,host,... or host:ranks,...; "        \
                    "default: this host"                                                                     \
    }

/* The arguments of verbs that need a configuration; the first field of the verb's argument struct. */
typedef struct cli_config_args {
    cli_launch launch;
    char *path;
    ax_strings overrides;
} cli_config_args;

#define CONFIG_OPTIONS(args, field)                                                                          \
    {"CONFIG",         AX_OPT_PATH,           offsetof(args, field.path),                                    \
     .required = true, .meta = "CONFIG.yaml", .help = "YAML file with the configuration of the run"},        \
        {"KEY=VALUE", AX_OPT_STRINGS, offsetof(args, field.overrides),                                       \
         .help = "configuration keys with values, e.g. optim.lr=1e-3; they override those of the file"},     \
        LAUNCH_OPTIONS(args, field.launch)

/* Sets *out to true if this process must start ranks: `launch` asks for several ranks and no launcher has
 * started this process as one of several ranks, or `launch` asks for hosts and no launcher has started this
 * process. AX_ERR_USAGE if a launcher has started another number of ranks than `launch` asks for, or if
 * `launch` has hosts but no number of ranks. */
ax_status cli_launch_wanted(const cli_launch *launch, bool *out);
/* Runs the command `axonn words[0] … words[n-1]` on launch->ranks ranks and waits for them. A signal to this
 * process is passed on to the ranks as signal verb->stop (0: the signal ends the ranks). Returns the status
 * on which the ranks agreed, or an error if the launcher failed or a signal ended the job. */
ax_status cli_launch_run(const cli_launch *launch, const cli_verb *verb, size_t n, char *const *words);

/* Opens the note (cli_note), shared memory of the process that started this rank, if that process runs on
 * this host. */
void cli_starter_find(void);
/* Records in the note (cli_note, memory of the process that started the ranks) that this rank has received a
 * signal. May be called from a signal handler. */
void cli_starter_note_signal(void);

/* Creates the communicator of all ranks of the job, and gives all ranks the runtime settings of rank 0. If
 * this fails, *world is NULL. Collective. */
ax_status cli_world_open(ax_comm **world);
/* Turns the watchdog of this rank off (`waits` true) or on again; does nothing on rank 0. While rank 0 reads
 * from the user or tokenizes, the other ranks may have to wait without limit. The watchdog would then warn,
 * or end the job while rank 0's process is suspended (Ctrl-Z). Not collective. */
void cli_world_wait_for_first(ax_comm *world, bool waits);
/* If `status` is an error of this rank only, aborts the job and does not return, because the other ranks may
 * be waiting for this rank. Otherwise, and in a job of one rank, does nothing. `world` may be NULL. */
void cli_world_abort_unshared(ax_comm *world, ax_status status);
/* Prints the error of `status`, if any, on rank 0, and destroys the communicator. Aborts the job if the error
 * is one of this rank only. Returns `status`; if *world is NULL, does nothing else. */
ax_status cli_world_close(ax_comm **world, ax_status status);
/* Runs a verb that needs a configuration: loads it for the use `use`, creates the communicator of all ranks,
 * calls `run` with `args`, the verb's arguments, which begin with cli_config_args, and destroys the
 * communicator. Collective. */
typedef ax_status cli_configured_fn(ax_comm *world, ax_config *config, const void *args);
ax_status cli_configured(const void *args, ax_config_use use, cli_configured_fn *run);
/* Only loads the configuration and applies its runtime settings to this process. The caller releases *config,
 * also after an error. */
ax_status cli_config_open(const cli_config_args *args, ax_config_use use, ax_config *config);
/* Prints the error message, if `status` is an error that this process has not printed yet and that no other
 * rank prints. */
void cli_print_error(ax_status status);
/* Makes cli_print_error print nothing: the ranks that this process started have already printed the error. */
void cli_ranks_print_error(void);

#endif
