/* The keys of a training run; the rules between them are in config_rules.c. */
#include "config_private.h"

#include "axonn/model.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AT(field) offsetof(ax_config, field)
#define TEXT_OF_(number) #number
#define TEXT_OF(number) TEXT_OF_(number)
#define UP_TO(most) "[1, " TEXT_OF(most) "]"

/* clang-format off */
static const ax_option options[] = {
    {"model.family", AX_OPT_STRING, AT(model.family), .choices = "gpt2",
     .help = "family of a new model; give this or model.from"},
    {"model.from", AX_OPT_PATH, AT(model.from), .meta = "DIR",
     .help = "an existing model (config.json, *.safetensors) to start from"},
    {"model.layers", AX_OPT_INT, AT(model.layers), "12", UP_TO(AX_LAYERS_MAX), .help = "transformer blocks"},
    {"model.hidden", AX_OPT_INT, AT(model.hidden), "768", UP_TO(AX_HIDDEN_MAX), .help = "width of the residual stream"},
    {"model.heads", AX_OPT_INT, AT(model.heads), "12", UP_TO(AX_HIDDEN_MAX), .help = "attention heads; divides model.hidden"},
    {"model.ffn", AX_OPT_INT, AT(model.ffn), "0", "[0, " TEXT_OF(AX_FFN_MAX) "]", .help = "inner width of the MLP; 0 is four times model.hidden"},
    {"model.vocab", AX_OPT_INT, AT(model.vocab), "50257", UP_TO(AX_VOCAB_MAX), .help = "size of the vocabulary; must hold the tokenizer's"},
    {"model.seq_len", AX_OPT_INT, AT(model.seq_len), "1024", UP_TO(AX_VOCAB_MAX), .help = "tokens of a sample and positions of the model"},
    {"model.dropout", AX_OPT_FLOAT, AT(model.dropout), "0.0", "[0, 1)", .help = "probability of dropping an activation in training"},
    {"model.activation", AX_OPT_ENUM, AT(model.activation), "gelu_new", .choices = "gelu_new|gelu",
     .help = "activation of the MLP: GELU's tanh form or the exact one"},
    {"model.tie", AX_OPT_BOOL, AT(model.tie), "true", .help = "the output layer shares the embedding's weights"},
    {"model.init_std", AX_OPT_FLOAT, AT(model.init_std), "0.02", "[1.0e-30, 1.0e+30]", .help = "standard deviation of initial weights"},
    {"model.norm_eps", AX_OPT_FLOAT, AT(model.norm_eps), "1e-5", "[1.0e-30, 1.0e+30]", .help = "epsilon of the norms"},

    {"data.train", AX_OPT_PATHS, AT(data.train), .required = true,
     .help = "what to train on: text, JSON, JSONL or token files; a pattern, or a directory of token files, is one source of shards; a list is mixed by size or by its weights, 1 where one has none: [{path: A, weight: 2}, B]"},
    {"data.valid", AX_OPT_PATHS, AT(data.valid), .help = "what to evaluate on"},
    {"data.tokenizer", AX_OPT_PATH, AT(data.tokenizer), .help = "a tokenizer's directory or its tokenizer.json"},
    {"data.text_key", AX_OPT_STRING, AT(data.text_key), "text", .help = "member of JSON objects that holds the text"},
    {"data.bad_lines", AX_OPT_INT, AT(data.bad_lines), "100", "[0, inf)",
     .help = "JSON objects that may be left out because their text is null or not valid Unicode; more are an error"},
    {"data.order", AX_OPT_ENUM, AT(data.order), "shuffled", .choices = "shuffled|sequential", .help = "order of the samples"},
    {"data.mask_documents", AX_OPT_BOOL, AT(data.mask_documents), "true", .help = "attention does not cross documents"},

    {"train.steps", AX_OPT_INT, AT(train.steps), "1000", "[1, 1000000000]", .help = "optimizer steps in total, resumed parts included"},
    {"train.global_batch", AX_OPT_INT, AT(train.global_batch), "64", "[1, 1000000000]", .help = "sequences per step, of all ranks together"},
    {"train.micro_batch", AX_OPT_INT, AT(train.micro_batch), "4", "[1, 1000000000]", .help = "sequences computed at a time by each rank of data and z; train.global_batch is a multiple of it times grid.data times grid.z"},
    {"train.precision", AX_OPT_ENUM, AT(train.precision), "bf16", .choices = "fp32|bf16|fp16",
     .help = "arithmetic of the layers; weights and reductions stay fp32. With fp16 the loss is scaled dynamically: steps that overflow are skipped"},
    {"train.recompute", AX_OPT_INT, AT(train.recompute), "none", "[1, 10000]", "none|full",
     .help = "blocks whose activations are computed again in the backward pass: none, all, or groups of N"},
    {"train.seed", AX_OPT_INT, AT(train.seed), "1234", "[0, inf)", .help = "seed of weights, order and dropout"},
    {"train.resume", AX_OPT_PATH, AT(train.resume), "auto", .choices = "auto|none", .help = "continue the newest checkpoint of run.dir, none, or start from the one given"},
    {"train.nonfinite", AX_OPT_ENUM, AT(train.nonfinite), "stop", .choices = "stop|skip",
     .help = "what to do about a step whose loss or gradient is not finite; in fp16, where no smaller loss scale mends it"},

    {"train.weight_cache", AX_OPT_INT, AT(train.weight_cache), "0", "[0, 1152921504606846976]", .meta = "BYTES",
     .help = "bytes of gathered weights that are kept from one micro-batch to the next"},

    {"optim.name", AX_OPT_STRING, AT(optim.name), "adamw", .choices = "adamw|sgd", .help = "optimizer"},
    {"optim.lr", AX_OPT_FLOAT, AT(optim.lr), "6.0e-4", "[0, 1.0e+30]", .help = "learning rate"},
    {"optim.betas", AX_OPT_FLOATS, AT(optim.betas), "0.9, 0.95", "[0, 1)", .items = 2, .help = "decay of AdamW's moments"},
    {"optim.eps", AX_OPT_FLOAT, AT(optim.eps), "1.0e-8", "[1.0e-30, 1.0e+30]", .help = "epsilon of AdamW, outside the root"},
    {"optim.momentum", AX_OPT_FLOAT, AT(optim.momentum), "0.9", "[0, 1)", .help = "momentum of SGD"},
    {"optim.weight_decay", AX_OPT_FLOAT, AT(optim.weight_decay), "0.1", "[0, 1.0e+30]", .help = "weight decay of parameters of two or more dims: decoupled with adamw, part of the gradient (L2) with sgd"},
    {"optim.clip", AX_OPT_FLOAT, AT(optim.clip), "1.0", "[0, 1.0e+30]", .help = "largest global gradient norm; 0 is off"},
    {"optim.schedule", AX_OPT_STRING, AT(optim.schedule), "cosine", .choices = "constant|linear|cosine|wsd", .help = "learning rate after the warm-up"},
    {"optim.warmup", AX_OPT_QUOTA, AT(optim.warmup), "0", "[0, 1000000000]",
     .help = "steps of linear warm-up, or a share of train.steps (2%); one that is longer than the run leaves the learning rate rising"},
    {"optim.min_lr", AX_OPT_FLOAT, AT(optim.min_lr), "0.0", "[0, 1.0e+30]", .help = "learning rate of the last step under linear, cosine and wsd; with 0 the last step changes no weight"},
    {"optim.decay", AX_OPT_FLOAT, AT(optim.decay), "0.2", "[0, 1]", .help = "wsd: fraction of the steps, at the end, that decays to optim.min_lr"},

    {"grid.data", AX_OPT_INT, AT(grid.data), "1", "[1, 65536]", .help = "ranks that share the batch"},
    {"grid.pipe", AX_OPT_INT, AT(grid.pipe), "1", "[1, 65536]", .help = "pipeline stages"},
    {"grid.x", AX_OPT_INT, AT(grid.x), "1", "[1, 65536]", .help = "ranks that split the hidden widths"},
    {"grid.y", AX_OPT_INT, AT(grid.y), "1", "[1, 65536]", .help = "ranks that split the residual width"},
    {"grid.z", AX_OPT_INT, AT(grid.z), "1", "[1, 65536]", .help = "ranks that share the weights and the batch"},
    {"grid.order", AX_OPT_STRING, AT(grid.order), "x,y,z,pipe,data",
     .help = "the axes as ranks are numbered, innermost first: consecutive ranks are on one machine"},
    {"strategy", AX_OPT_STRING, AT(strategy), "axonn", .choices = "axonn|megatron|fsdp|hsdp|ddp",
     .help = "which axes split what: all of them; x and data; z; z and data; data. An axis that it lacks must be 1"},
    {"zero", AX_OPT_INT, AT(zero), "0", "[0, 3]",
     .help = "what ranks along data share out: 1 the optimizer's state, 2 gradients too, 3 weights too"},
    {"overlap.oar", AX_OPT_BOOL, AT(overlap.oar), "true", .help = "all-reduces of input gradients run beside the products of weight gradients"},
    {"overlap.ors", AX_OPT_BOOL, AT(overlap.ors), "true", .help = "reduce-scatters of weight gradients are awaited by the optimizer only"},
    {"overlap.oag", AX_OPT_BOOL, AT(overlap.oag), "true", .help = "all-gathers of the next layers' weights are started ahead"},

    {"watchdog.timeout", AX_OPT_FLOAT, AT(watchdog.timeout), "30", "[0, inf)", .meta = "SECONDS",
     .help = "seconds after which a rank that does not answer ends the run; 0: never"},

    {"run.dir", AX_OPT_PATH, AT(run.dir), .meta = "DIR",
     .help = "directory of the run (default: runs/NAME for the configuration NAME.yaml)"},
    {"run.checkpoint_interval", AX_OPT_INT, AT(run.checkpoint_interval), "200", "[0, 1000000000]", .help = "steps between checkpoints; 0: at the end only"},
    {"run.keep_latest", AX_OPT_INT, AT(run.keep_latest), "3", "[0, 1000000000]", .help = "checkpoints that are kept; 0: all"},
    {"run.eval_interval", AX_OPT_INT, AT(run.eval_interval), "100", "[0, 1000000000]", .help = "steps between evaluations; 0: at the end only"},
    {"run.eval_start", AX_OPT_BOOL, AT(run.eval_start), "false", .help = "evaluate before the first step too"},
    {"run.eval_batches", AX_OPT_INT, AT(run.eval_batches), "0", "[0, 1000000000]",
     .help = "micro-batches of an evaluation, from all over data.valid; 0: the whole of it"},
    {"run.save_dtype", AX_OPT_ENUM, AT(run.save_dtype), "fp32", .choices = "fp32|bf16|fp16", .help = "weights in a checkpoint's model.safetensors"},
    {"run.trace", AX_OPT_BOOL, AT(run.trace), "false", .help = "note what each rank does when, and write the newest of it to RUN/trace/rank-N.json, which Perfetto shows"},
    {"run.log_interval", AX_OPT_INT, AT(run.log_interval), "10", "[1, 1000000000]", .help = "steps between progress lines where stderr is no terminal"},

    {"threads", AX_OPT_INT, AT(threads), "0", "[0, 4096]", .help = "threads that compute; 0: one per physical core"},
    {"device", AX_OPT_STRING, AT(device), "cpu", .choices = "cpu|cuda|ref", .help = "what computes"},
};
/* clang-format on */

const ax_option *ax_config_options(size_t *count)
{
    *count = AX_COUNT(options);
    return options;
}

/* ---- loading ------------------------------------------------------------------------------------- */

/* runs/NAME under the current directory, for NAME.yaml. */
static ax_status default_dir(const char *path, char **out)
{
    const char *slash = path ? strrchr(path, '/') : NULL, *name = slash ? slash + 1 : path ? path : "run";
    const char *dot = strrchr(name, '.');
    ax_buf dir = {0};
    char *here = getcwd(NULL, 0);
    AX_CHECK(here, AX_ERR_DATA, "the current directory cannot be read");
    ax_status status = ax_buf_printf(&dir, "%s/runs/%.*s", here,
                                     dot && dot > name ? (int)(dot - name) : (int)strlen(name), name);
    free(here);
    if (status == AX_OK)
        status = ax_strdup(dir.data, out);
    ax_buf_fini(&dir);
    return status;
}

ax_status ax_config_load(const char *path, char *const *overrides, size_t n, ax_config_use use,
                         ax_config *cfg)
{
    memset(cfg, 0, sizeof *cfg);
    AX_TRY(ax_option_set_create(options, AX_COUNT(options), cfg, &cfg->set));
    if (path)
        AX_TRY(ax_option_read_file(cfg->set, path));
    AX_TRY(ax_option_read_overrides(cfg->set, n, overrides));
    config_check(cfg);
    if (use == AX_CONFIG_TO_MEASURE)
        ax_option_waive(cfg->set, "data.train");
    ax_status status = ax_option_finish(cfg->set);
    if (status == AX_ERR_USAGE) { /* what is wrong with files that keys name is told with it */
        AX_TRY(config_check_files(cfg));
        status = ax_option_finish(cfg->set);
    }
    AX_TRY(status);
    if (!cfg->run.dir)
        AX_TRY(default_dir(path, &cfg->run.dir));
    if (!cfg->model.ffn)
        cfg->model.ffn = 4 * cfg->model.hidden;
    return AX_OK;
}

void ax_config_fini(ax_config *cfg)
{
    ax_option_set_destroy(&cfg->set);
    ax_option_fini(options, AX_COUNT(options), cfg);
}

bool ax_config_given(const ax_config *cfg, const char *key) { return ax_option_given(cfg->set, key); }

ax_status ax_config_dump(const ax_config *cfg, ax_buf *out) { return ax_option_dump(cfg->set, out); }
