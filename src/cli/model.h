/* Opens a model on a grid of ranks, for all verbs that run a model; finds its directory, for those that copy
 * it. */
#ifndef AX_CLI_MODEL_H
#define AX_CLI_MODEL_H

#include "axonn/config.h"
#include "axonn/infer.h"
#include "launch.h"

/* The arguments that all verbs that run a model have; must be the first field of the verb's argument struct.
 * The options for them are MODEL_OPTIONS and MODEL_DEVICE_OPTIONS. */
typedef struct model_args {
    cli_launch launch;
    char *model, *precision, *device, *grid;
    ax_strings keys; /* words such as grid.x=2: another way to give `grid` */
    int64_t threads;
    bool json;
} model_args;

#define MODEL_OPTIONS(args, field)                                                                           \
    {"MODEL", AX_OPT_PATH, offsetof(args, field.model), .required = true,                                    \
     .help = "the model: a Hugging Face directory, an adapter's directory, a run directory (its newest "     \
             "checkpoint) or a checkpoint"},                                                                 \
    {                                                                                                        \
        "KEY=VALUE", AX_OPT_STRINGS, offsetof(args, field.keys),                                             \
            .group = "grid",                                                                                 \
            .help = "sizes of the grid of ranks, each an argument, e.g. grid.x=2 grid.data=2; another way "  \
                    "to give --grid"                                                                         \
    }
#define MODEL_DEVICE_OPTIONS(args, field)                                                                    \
    LAUNCH_OPTIONS(args, field.launch),                                                                      \
        {"grid", AX_OPT_STRING, offsetof(args, field.grid), .meta = "x=N,y=N,...",                           \
         .help = "sizes of the grid of ranks in one argument, e.g. x=2,data=2; default: "                    \
                 "all ranks along data (eval, recall, generate --prompts) or along x"},                      \
        {"precision",                                                                                        \
         AX_OPT_STRING,                                                                                      \
         offsetof(args, field.precision),                                                                    \
         "fp32",                                                                                             \
         .words = ax_config_dtype_name,                                                                      \
         .help = "dtype in which the layers compute"},                                                       \
        {"threads",                                                                                          \
         AX_OPT_INT,                                                                                         \
         offsetof(args, field.threads),                                                                      \
         "0",                                                                                                \
         "[0, 4096]",                                                                                        \
         .help = "compute threads per rank; 0: one per physical core, divided "                              \
                 "among the ranks of the machine"},                                                          \
        {"device",                                                                                           \
         AX_OPT_STRING,                                                                                      \
         offsetof(args, field.device),                                                                       \
         "cpu",                                                                                              \
         .choices = "cpu|cuda|ref",                                                                          \
         .help = "device that computes: the processor (cpu), an NVIDIA GPU (cuda), or the slow reference "   \
                 "implementation on the processor (ref)"},                                                   \
    {                                                                                                        \
        "json", AX_OPT_BOOL, offsetof(args, field.json), "false", .help = "print the result as JSON"         \
    }

/* The flags of attention that reads few keys. */
typedef ax_key_reading model_keys;
#define MODEL_KEYS_OPTIONS(args, field)                                                                      \
    {"loki", AX_OPT_PATH, offsetof(args, field.file), .meta = "FILE",                                        \
     .help = "with --keys: choose the keys in the basis of this file, which axonn loki calibrate wrote"},    \
        {"keys", AX_OPT_STRING, offsetof(args, field.keys), .meta = "K",                                     \
         .help = "let each token read only the K keys with the largest scores of those that it sees: a "     \
                 "count, or with a decimal point a part of them (0.25), rounded up; without --loki scores "  \
                 "are exact"},                                                                               \
        {"dims", AX_OPT_STRING, offsetof(args, field.dims), .meta = "D",                                     \
         .help = "with --loki: compute these scores from the first D elements of heads: a count, or a part " \
                 "of them, rounded up to a multiple of 8"},                                                  \
    {                                                                                                        \
        "per", AX_OPT_STRING, offsetof(args, field.per),                                                     \
            .meta = "head|group",                                                                            \
            .help = "with --keys: each head chooses (head, the default), or the query heads that share a "   \
                    "key head choose together (group)"                                                       \
    }

typedef struct opened_model {
    ax_pretrained model;
    ax_comm *world;
    ax_ctx *ctx;
    bool first; /* this is rank 0, which prints */
} opened_model;

/* Parses a grid such as "x=2,data=4". An axis that is not named has size 1. */
ax_status cli_grid_parse(const char *text, ax_grid_size *out);

/* What the ranks of a grid divide among themselves: the rows of a batch (MODEL_ROWS), the work on one
 * sequence (MODEL_SEQUENCE), or sequences that are generated (MODEL_SEQUENCES). */
typedef enum model_use { MODEL_ROWS, MODEL_SEQUENCE, MODEL_SEQUENCES } model_use;

/* Creates the communicator of all ranks (the world), and opens the model on these ranks. The caller calls
 * model_close, also after an error. Collective. */
ax_status model_open(const model_args *args, model_use use, opened_model *out);
/* Lets the model read few keys, if the flags say so (ax_pretrained_read_keys). Collective. */
ax_status model_read_keys(opened_model *m, const model_keys *keys);
/* Fails with AX_ERR_NUMERIC if the mean loss of an evaluation is not finite. */
ax_status model_check_loss(const model_args *args, double loss);
/* Closes the model, destroys the communicator of all ranks, and prints the error of `status`, as
 * cli_world_close does. Returns `status`. */
ax_status model_close(opened_model *opened, ax_status status);

/* Calls `use` with the directory to which MODEL leads: a model, or the newest checkpoint if MODEL is a run.
 * If the run removes this checkpoint meanwhile, calls `use` again with the one that is then the newest.
 * Signals are caught (cli_stop_catch). */
ax_status cli_use_model(const char *model, ax_status (*use)(void *user, const char *dir), void *user);

#endif
