/* What the verbs that run a model share: opening it on a device. */
#ifndef AX_CLI_MODEL_H
#define AX_CLI_MODEL_H

#include "axonn/engine.h"
#include "verb.h"

/* The first fields of those verbs' arguments; MODEL_OPTIONS are their rows. */
typedef struct model_args {
    char *model, *precision, *device;
    int64_t threads;
    bool json;
} model_args;

#define MODEL_OPTIONS(args, field)                                                                           \
    {                                                                                                        \
        "MODEL", AX_OPT_PATH, offsetof(args, field.model),                                                   \
            .required = true, .help = "a Hugging Face directory, a run directory or a checkpoint"            \
    }
#define MODEL_DEVICE_OPTIONS(args, field)                                                                    \
    {"precision", AX_OPT_STRING,          offsetof(args, field.precision),                                   \
     "fp32",      .choices = "fp32|bf16", .help = "arithmetic of the layers"},                               \
        {"threads", AX_OPT_INT,  offsetof(args, field.threads),                                              \
         "0",       "[0, 4096]", .help = "threads that compute; 0: one per physical core"},                  \
        {"device", AX_OPT_STRING,        offsetof(args, field.device),                                       \
         "cpu",    .choices = "cpu|ref", .help = "what computes"},                                           \
    {                                                                                                        \
        "json", AX_OPT_BOOL, offsetof(args, field.json), "false", .help = "print JSON"                       \
    }

typedef struct opened_model {
    ax_pretrained model;
    ax_comm *self;
    ax_ctx *ctx;
} opened_model;

ax_status model_open(const model_args *args, opened_model *out);
void model_close(opened_model *opened);

#endif
