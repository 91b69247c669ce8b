/* axonn train: runs or resumes the training that a configuration file describes. */
#include "axonn/train.h"
#include "launch.h"

#include <signal.h>
#include <stdlib.h>

typedef struct args {
    cli_config_args common;
    bool json;
} args;

static const ax_option options[] = {
    CONFIG_OPTIONS(args, common),
    {"json", AX_OPT_BOOL, offsetof(args, json), "false",
     .help = "print the result of the finished run as one JSON object"},
};

static ax_status report(const args *a, const ax_config *config, const ax_train_result *r)
{
    if (a->json)
        return cli_print_json(json_pack("{s:s, s:I, s:I, s:o, s:o, s:o, s:s?}", "run", config->run.dir,
                                        "step", (json_int_t)r->step, "tokens", (json_int_t)r->tokens, "loss",
                                        cli_json_number(r->loss), "eval_loss", cli_json_number(r->eval_loss),
                                        "bits_per_byte", cli_json_number(r->bits_per_byte), "checkpoint",
                                        r->checkpoint));
    if (r->checkpoint)
        ax_log(AX_LOG_INFO, "checkpoint: %s", r->checkpoint);
    return AX_OK;
}

static ax_status train(ax_comm *world, ax_config *config, const void *raw)
{
    const args *a = raw;
    ax_train_result result = {0};
    ax_status status = ax_train(world, config, &result);
    if (status == AX_OK)
        status = ax_comm_agree(world, ax_comm_rank(world) ? AX_OK : report(a, config, &result));
    free(result.checkpoint);
    return status;
}

static bool includes_stdin(const ax_paths *paths)
{
    bool found = false;
    for (size_t i = 0; i < paths->count; i++)
        found |= cli_is_stdin(paths->items[i].path);
    return found;
}

/* Returns true if the run reads standard input: as the configuration file, or as one of the data files that
 * the configuration names. Returns false for an invalid configuration, without an error: the ranks read the
 * configuration again and report the errors. */
static bool reads_input(const void *raw)
{
    const args *a = raw;
    ax_config config;
    if (cli_is_stdin(a->common.path))
        return true;
    ax_status status = ax_config_load(a->common.path, a->common.overrides.items, a->common.overrides.count,
                                      AX_CONFIG_TO_TRAIN, &config);
    bool found =
        status == AX_OK && (includes_stdin(&config.data.train) || includes_stdin(&config.data.valid));
    ax_config_fini(&config);
    return found;
}

static ax_status run(const void *raw) { return cli_configured(raw, AX_CONFIG_TO_TRAIN, train); }

const cli_verb verb_train = {
    .name = "train",
    .summary = "train a model from a configuration file, or resume its training",
    .details =
        "Metrics, checkpoints and the complete configuration are written to run.dir. To resume a stopped\n"
        "run, repeat the command. SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 and Ctrl-C save a checkpoint after\n"
        "the current step and stop; a step that still runs ten seconds later is given up. A second Ctrl-C,\n"
        "at least a second after the first, stops at once without saving. A signal while data are still\n"
        "tokenized leaves no checkpoint.",
    .examples = "axonn train gpt.yaml\naxonn train gpt.yaml optim.lr=1e-3 train.steps=500\n"
                "axonn train gpt.yaml --ranks 4 grid.x=2 grid.data=2\nmpirun -n 4 --bind-to none axonn train "
                "gpt.yaml grid.data=4",
    .options = options,
    .option_count = AX_COUNT(options),
    .args_size = sizeof(args),
    .run = run,
    .keys = ax_config_options,
    .launches = true,
    .reads_input = reads_input,
    .stop = SIGUSR1,
};
