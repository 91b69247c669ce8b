/* The table of configuration keys of a training run. Rules between keys are in rules.c. */
#include "private.h"

#include "axonn/chat.h"
#include "axonn/data.h"
#include "axonn/model.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AT(field) offsetof(ax_config, field)
#define TEXT_OF_(number) #number
#define TEXT_OF(number) TEXT_OF_(number)
#define UP_TO(most) "[1, " TEXT_OF(most) "]"

/* clang-format off */
static const ax_option options[] = {
    {"model.family", AX_OPT_STRING, AT(model.family), .choices = ax_family_names + 1,
     .help = "model family (architecture) of a new model; give exactly one of model.family, model.config and model.from"},
    {"model.config", AX_OPT_PATH, AT(model.config), .meta = "FILE",
     .help = "path of a config.json that gives the family and shape of a new model; other model.* keys override its values"},
    {"model.from", AX_OPT_PATH, AT(model.from), .meta = "DIR",
     .help = "existing model whose weights training starts from: a directory with config.json and *.safetensors, a run directory or a checkpoint; with tune.method lora also an adapter, which is trained further"},
    {"model.layers", AX_OPT_INT, AT(model.layers), "12", UP_TO(AX_LAYERS_MAX), .help = "number of transformer blocks"},
    {"model.hidden", AX_OPT_INT, AT(model.hidden), "768", UP_TO(AX_HIDDEN_MAX), .help = "width of the residual stream"},
    {"model.heads", AX_OPT_INT, AT(model.heads), "12", UP_TO(AX_HIDDEN_MAX), .help = "number of attention heads; divides model.hidden, unless model.head_dim is given"},
    {"model.kv_heads", AX_OPT_INT, AT(model.kv_heads), "0", "[0, " TEXT_OF(AX_HIDDEN_MAX) "]", .help = "number of heads of keys and values, each shared by a group of attention heads; divides model.heads; 0: as many as model.heads"},
    {"model.head_dim", AX_OPT_INT, AT(model.head_dim), "0", "[0, " TEXT_OF(AX_HIDDEN_MAX) "]", .help = "width of an attention head; 0: model.hidden divided by model.heads"},
    {"model.ffn", AX_OPT_INT, AT(model.ffn), "0", "[0, " TEXT_OF(AX_FFN_MAX) "]", .help = "inner width of the MLP; 0: four times model.hidden for gpt2; for the other families, whose MLP is gated, two thirds of that, rounded up to a multiple of 256"},
    {"model.vocab", AX_OPT_INT, AT(model.vocab), "50257", UP_TO(AX_VOCAB_MAX), .help = "size of the vocabulary; at least that of the tokenizer"},
    {"model.seq_len", AX_OPT_INT, AT(model.seq_len), "1024", UP_TO(AX_VOCAB_MAX), .help = "tokens per sample, and the number of positions of a new model. With model.from, the default is the longest document of data.train (with data.pack stream: at least 1024), at most 4096 and the model's positions; with model.config, its positions, at most 4096"},
    {"model.dropout", AX_OPT_FLOAT, AT(model.dropout), "0.0", "[0, 1]", .help = "dropout rate in training: sets those of model.embd_dropout, model.resid_dropout and model.attn_dropout that are not given. With model.from, the default is the rates in that model's config.json (embd_pdrop, resid_pdrop, attn_pdrop)"},
    {"model.embd_dropout", AX_OPT_FLOAT, AT(model.embd_dropout), NULL, "[0, 1]", .help = "dropout rate of the embeddings; default: model.dropout"},
    {"model.resid_dropout", AX_OPT_FLOAT, AT(model.resid_dropout), NULL, "[0, 1]", .help = "dropout rate of the outputs of attention and MLP, before they are added to the residual stream; default: model.dropout"},
    {"model.attn_dropout", AX_OPT_FLOAT, AT(model.attn_dropout), NULL, "[0, 1]", .help = "dropout rate of the attention probabilities; default: model.dropout"},
    {"model.activation", AX_OPT_ENUM, AT(model.activation), NULL, .choices = "gelu_new|gelu|silu",
     .help = "activation of the MLP: GELU by its tanh approximation (gelu_new, the default of gpt2), exact GELU (gelu), or SiLU (silu, of all other families)"},
    {"model.rope_theta", AX_OPT_FLOAT, AT(model.rope_theta), NULL, "[0, 1.0e+30)", .help = "base of the frequencies of rotary position embeddings; default: 10000. Not for gpt2, which learns a table of positions instead"},
    {"model.window", AX_OPT_INT, AT(model.window), "0", "[0, " TEXT_OF(AX_VOCAB_MAX) "]", .help = "sliding window of attention in all layers (mistral, ministral, qwen2, qwen3): each position attends to this many positions, itself and those before it; 0: to all positions before it"},
    {"model.tie", AX_OPT_BOOL, AT(model.tie), NULL, .help = "whether the output layer shares the embedding's weights; default: true for gpt2, false for other families"},
    {"model.init_std", AX_OPT_FLOAT, AT(model.init_std), "0.02", "[1.0e-30, 1.0e+30]", .help = "standard deviation of initial weights"},
    {"model.norm_eps", AX_OPT_FLOAT, AT(model.norm_eps), NULL, "[1.0e-30, 1.0e+30]", .help = "epsilon of the norms, added under their square root; default: 1e-5 for gpt2, 1e-6 for other families"},

    {"tune.method", AX_OPT_ENUM, AT(tune.method), "full", .choices = "full|lora",
     .help = "what is trained of model.from: all weights (full), or low-rank updates of matrices of the blocks (lora); all other weights then stay as they are, and checkpoints are adapters in PEFT's format"},
    {"tune.rank", AX_OPT_INT, AT(tune.rank), "16", UP_TO(AX_HIDDEN_MAX), .help = "tune.method lora: rank of the low-rank updates"},
    {"tune.alpha", AX_OPT_FLOAT, AT(tune.alpha), "32", "(0, 1.0e+30]", .help = "tune.method lora: a low-rank update is multiplied by tune.alpha / tune.rank"},
    {"tune.rslora", AX_OPT_BOOL, AT(tune.rslora), "false", .help = "tune.method lora: rank-stabilized scaling: a low-rank update is multiplied by tune.alpha / sqrt(tune.rank)"},
    {"tune.dropout", AX_OPT_FLOAT, AT(tune.dropout), "0.0", "[0, 1)", .help = "tune.method lora: dropout rate, in training, of the input of the low-rank updates (of their factor A)"},
    {"tune.targets", AX_OPT_STRINGS, AT(tune.targets), "all", .meta = "NAME...", .help = "tune.method lora: the matrices that get low-rank updates, such as [q, v]: q, k, v, proj (attention), gate, up, down (MLP), or the names of their modules in the model's files, as in PEFT ([q_proj, v_proj]; gpt2's c_attn is q, k and v); head (the output layer), embed (the token embedding); all: all matrices of the blocks"},
    {"tune.layers", AX_OPT_STRINGS, AT(tune.layers), "all", .meta = "BLOCK...", .help = "tune.method lora: the blocks whose matrices get low-rank updates, such as [0, 5, 8-15]; the first block is 0; all: all blocks"},

    {"data.train", AX_OPT_PATHS, AT(data.train), .required = true,
     .help = "training data: text, JSON, JSONL or token files. A pattern, or a directory of token files, is one source. Several sources are mixed in proportion to their sizes, or to their weights if any are given (default 1): [{path: A, weight: 2}, B]. A source with {path: A, epochs: N} is read N times, spread evenly over the run; the others fill the rest. If all sources have epochs, they set train.steps"},
    {"data.valid", AX_OPT_PATHS, AT(data.valid), .help = "validation data, in the formats of data.train"},
    {"data.tokenizer", AX_OPT_PATH, AT(data.tokenizer), .help = "tokenizer of the data and the model: its directory or its tokenizer.json"},
    {"data.text_key", AX_OPT_STRING, AT(data.text_key), .help = "name of the member that holds the text of a JSON object; default: text. If this key is given, an object with a string in that member is not read as a conversation"},
    {"data.bos", AX_OPT_BOOL, AT(data.bos), "true", .help = "put around each plain text what the tokenizer's post_processor puts there (as a rule a token that begins the text), as transformers does; token files are read as they are, and conversations have the tokens of their template"},
    {"data.bad_lines", AX_OPT_INT, AT(data.bad_lines), "auto", "[0, inf)", "auto",
     .help = "how many JSON records may be left out, whatever is wrong with them; more are an error, which lists the first twenty. auto: 100 records whose text is null or not valid Unicode, and no others"},
    {"data.ignore", AX_OPT_STRINGS, AT(data.ignore), .meta = "NAME...",
     .help = "members of conversations and of their turns that are left out, such as [tools, tool_calls]; others that no template writes are an error, unless they are plainly no part of what is said, such as ids and scores"},
    {"data.template", AX_OPT_STRING, AT(data.chat_template), .choices = ax_chat_names,
     .help = "template by which conversations (JSON objects with messages or conversations, or with question and answer under several names) become text; default: that of the tokenizer's chat_template if its text is known (conversations are else refused); without one, chosen by the tokenizer's special tokens"},
    {"data.loss", AX_OPT_ENUM, AT(data.loss), "auto", .choices = "auto|answers|all",
     .help = "which tokens are targets: answers (what the assistant says in conversations and the end of its turn; all tokens of plain text in the same file), all, or auto (answers for sources of data.train and data.valid that have a mask, all for the others)"},
    {"data.order", AX_OPT_ENUM, AT(data.order), "shuffled", .choices = "shuffled|sequential", .help = "order of the samples of each source: shuffled (a random permutation for each epoch, from train.seed) or sequential (in file order)"},
    {"data.mask_documents", AX_OPT_BOOL, AT(data.mask_documents), "true", .help = "true: each token attends only to tokens of its own document, positions restart with each document, and a document's first token is not a target"},
    {"data.pack", AX_OPT_ENUM, AT(data.pack), "auto", .choices = "stream|documents|auto",
     .help = "what a sample is, in training and evaluation: model.seq_len consecutive tokens (stream), whole documents side by side and then padding (documents), or documents for sources with conversations and stream for all others (auto)"},
    {"data.long", AX_OPT_ENUM, AT(data.longer), "split", .choices = "split|truncate|drop",
     .help = "in training, what becomes of a document longer than model.seq_len if documents are packed (data.pack): it is cut into pieces, each of which is read without the pieces before (split), only its beginning is read (truncate), or it is left out (drop). Evaluations split"},
    {"data.goldfish.k", AX_OPT_INT, AT(data.goldfish.k), "0", "[0, " TEXT_OF(AX_GOLDFISH_K_MAX) "]", .help = "goldfish loss, against verbatim memorization: in training about one of k targets is dropped; in evaluations none is. 0: off"},
    {"data.goldfish.window", AX_OPT_INT, AT(data.goldfish.window), "13", "[1, " TEXT_OF(AX_GOLDFISH_WINDOW_MAX) "]", .help = "with data.goldfish.kind hashed: number of tokens before a target whose hash decides whether the target is dropped; at most model.seq_len"},
    {"data.goldfish.kind", AX_OPT_ENUM, AT(data.goldfish.kind), "hashed", .choices = "hashed|static",
     .help = "which targets the goldfish loss drops: about one of k, chosen by a hash of the tokens before the target, so that all copies of a passage lose the same targets (hashed), or every k-th token of a document (static)"},

    {"train.steps", AX_OPT_INT, AT(train.steps), "1000", "[1, 1000000000]", .help = "total number of optimizer steps, including those before a resume; default if all sources of data.train have epochs: as many as are needed to read these epochs; the last step may then have fewer sequences"},
    {"train.global_batch", AX_OPT_INT, AT(train.global_batch), "64", "[1, 1000000000]", .help = "sequences per step, over all ranks"},
    {"train.micro_batch", AX_OPT_INT, AT(train.micro_batch), "4", "[1, 1000000000]", .help = "sequences per micro-batch on each rank along the grid axes data and z; train.global_batch must be a multiple of train.micro_batch x grid.data x grid.z"},
    {"train.precision", AX_OPT_ENUM, AT(train.precision), "bf16", .choices = "fp32|bf16|fp16",
     .help = "dtype in which the layers compute; master weights, weight gradients and their reductions stay fp32. fp16 uses dynamic loss scaling: steps whose gradients overflow are skipped"},
    {"train.recompute", AX_OPT_INT, AT(train.recompute), "none", "[1, 10000]", "none|full|auto",
     .help = "activation recomputation: none; full stores only the input of each block and recomputes the rest in the backward pass; N stores the input of every N blocks; auto is none if that fits into memory, else the N that takes the least memory"},
    {"train.seed", AX_OPT_INT, AT(train.seed), "1234", "[0, inf)", .help = "seed of initial weights, data order and dropout"},
    {"train.resume", AX_OPT_PATH, AT(train.resume), "auto", .choices = "auto|none", .help = "auto: continue from the newest checkpoint in run.dir, if there is one; none: start from the beginning, and fail if run.dir has checkpoints; PATH: start from that checkpoint"},
    {"train.nonfinite", AX_OPT_ENUM, AT(train.nonfinite), "stop", .choices = "stop|skip",
     .help = "when a step's loss or gradient is not finite: stop the run, or skip the step (if a weight is not finite, the run stops in any case). In fp16, a step whose gradient overflows is skipped and lowers the loss scale; this key applies when the scale cannot be lowered further"},

    {"train.weight_cache", AX_OPT_INT, AT(train.weight_cache), "0", "[0, 1152921504606846976]", .meta = "BYTES",
     .help = "bytes of all-gathered weights that each rank may keep from one micro-batch to the next of a step, to save all-gathers"},

    {"optim.name", AX_OPT_STRING, AT(optim.name), "adamw", .choices = "adamw|sgd", .help = "optimizer that updates the weights: AdamW, or SGD with momentum"},
    {"optim.lr", AX_OPT_FLOAT, AT(optim.lr), "6.0e-4", "[0, 1.0e+30]", .help = "learning rate after the warm-up, before any decay"},
    {"optim.betas", AX_OPT_FLOATS, AT(optim.betas), "0.9, 0.95", "[0, 1)", .items = 2, .help = "decay rates of AdamW's first and second moments"},
    {"optim.eps", AX_OPT_FLOAT, AT(optim.eps), "1.0e-8", "[1.0e-30, 1.0e+30]", .help = "epsilon of AdamW, added outside the square root"},
    {"optim.momentum", AX_OPT_FLOAT, AT(optim.momentum), "0.9", "[0, 1)", .help = "momentum of SGD"},
    {"optim.weight_decay", AX_OPT_FLOAT, AT(optim.weight_decay), "0.1", "[0, 1.0e+30]", .help = "weight decay of parameters with two or more dims: decoupled in adamw, added to the gradient (L2) in sgd"},
    {"optim.clip", AX_OPT_FLOAT, AT(optim.clip), "1.0", "[0, 1.0e+30]", .help = "clip the global gradient norm to this value; 0: no clipping"},
    {"optim.schedule", AX_OPT_STRING, AT(optim.schedule), "cosine", .choices = "constant|linear|cosine|wsd", .help = "learning rate after the warm-up: constant; linear or cosine decay to optim.min_lr; or wsd, constant and then a decay at the end of the run (optim.decay)"},
    {"optim.warmup", AX_OPT_QUOTA, AT(optim.warmup), "0", "[0, 1000000000]",
     .help = "length of the linear warm-up of the learning rate: a number of steps, or a percentage of train.steps (2%). If it is longer than the run, the learning rate rises until the end"},
    {"optim.min_lr", AX_OPT_FLOAT, AT(optim.min_lr), "0.0", "[0, 1.0e+30]", .help = "with optim.schedule linear, cosine or wsd: learning rate of the last step; with 0 the last step changes no weights"},
    {"optim.decay", AX_OPT_FLOAT, AT(optim.decay), "0.2", "[0, 1]", .help = "with optim.schedule wsd: fraction of the steps, at the end of the run, in which the learning rate decays to optim.min_lr"},

    {"grid.data", AX_OPT_INT, AT(grid.data), "1", "[1, 65536]", .help = "data parallelism: ranks that divide the batch"},
    {"grid.pipe", AX_OPT_INT, AT(grid.pipe), "1", "[1, 65536]", .help = "pipeline parallelism: stages, each with some of the blocks, through which the micro-batches of a step pass"},
    {"grid.x", AX_OPT_INT, AT(grid.x), "1", "[1, 65536]", .help = "tensor parallelism: ranks that split the attention heads and the inner width of the MLP"},
    {"grid.y", AX_OPT_INT, AT(grid.y), "1", "[1, 65536]", .help = "tensor parallelism: ranks that split the width of the residual stream"},
    {"grid.z", AX_OPT_INT, AT(grid.z), "1", "[1, 65536]", .help = "sharded data parallelism: ranks that shard the weights, as FSDP does, and divide the batch"},
    {"grid.order", AX_OPT_STRING, AT(grid.order), "x,y,z,pipe,data",
     .help = "grid axes in the order in which ranks are numbered, the fastest-varying axis first; launchers put consecutive ranks on one machine"},
    {"pipe.schedule", AX_OPT_ENUM, AT(pipe.schedule), "message", .choices = "message|1f1b|gpipe|interleaved",
     .help = "order in which a pipeline stage does its work. message: as messages arrive, backward first; 1f1b: a forward and a backward in turns; gpipe: all forwards, then all backwards; interleaved: 1f1b, but each stage has several chunks of the model (pipe.chunks). Results do not depend on the schedule"},
    {"pipe.slack", AX_OPT_INT, AT(pipe.slack), "0", "[0, 1000000000]", .help = "with pipe.schedule message or 1f1b: stage s of P pipeline stages may hold P - s micro-batches, plus this number; a larger number takes more memory, and stages wait less if times vary"},
    {"pipe.postpone", AX_OPT_INT, AT(pipe.postpone), "0", "[0, 1000000000]", .help = "largest number of micro-batches (with pipe.schedule interleaved: of their passes through one chunk) whose weight gradients a pipeline stage may postpone; the stage computes these gradients when it would otherwise wait, which takes more memory; 0: the backward pass computes them"},
    {"pipe.chunks", AX_OPT_INT, AT(pipe.chunks), "2", "[2, 10000]", .help = "with pipe.schedule interleaved: number of chunks (groups of adjacent blocks) of each pipeline stage. With more chunks, stages wait less for the first micro-batch to arrive, and send more messages"},
    {"pipe.cut", AX_OPT_INTS, AT(pipe.cut), "auto", "[0, " TEXT_OF(AX_LAYERS_MAX) "]", "auto",
     .help = "the first block of each pipeline stage after stage 0, blocks counted from 0, e.g. [3, 7] for three stages; with pipe.schedule interleaved: the first block of each chunk after chunk 0, in the order of forward; auto: makes the most expensive stage as cheap as possible"},
    {"strategy", AX_OPT_STRING, AT(strategy), "axonn", .choices = "axonn|megatron|fsdp|hsdp|ddp",
     .help = "parallelism strategy, and the grid axes that it uses: axonn (all), megatron (x, data), fsdp (z), hsdp (z, data), ddp (data), each also pipe. Every other axis must be 1"},
    {"zero", AX_OPT_INT, AT(zero), "0", "[0, 3]",
     .help = "ZeRO stage along grid.data: 0 shards nothing, 1 the optimizer state, 2 also the gradients, 3 also the weights"},
    {"overlap.oar", AX_OPT_BOOL, AT(overlap.oar), "true", .help = "overlap all-reduces of input gradients with the matmuls of weight gradients"},
    {"overlap.ors", AX_OPT_BOOL, AT(overlap.ors), "true", .help = "overlap reduce-scatters of weight gradients with the backward pass of the layers before"},
    {"overlap.oag", AX_OPT_BOOL, AT(overlap.oag), "true", .help = "start all-gathers of the next layers' weights before they are needed"},

    {"watchdog.timeout", AX_OPT_FLOAT, AT(watchdog.timeout), TEXT_OF(AX_COMM_TIMEOUT), "[0, inf)", .meta = "SECONDS",
     .help = "end the run when a rank has not answered for this many seconds; 0: never"},

    {"run.dir", AX_OPT_PATH, AT(run.dir), .meta = "DIR",
     .help = "directory of the run (default: runs/NAME for the configuration NAME.yaml)"},
    {"run.checkpoint_interval", AX_OPT_INT, AT(run.checkpoint_interval), "200", "[0, 1000000000]", .help = "steps between checkpoints; 0: at the end only"},
    {"run.keep_latest", AX_OPT_INT, AT(run.keep_latest), "3", "[0, 1000000000]", .help = "how many of the newest checkpoints to keep; older checkpoints are deleted; 0: keep all"},
    {"run.eval_interval", AX_OPT_INT, AT(run.eval_interval), "100", "[0, 1000000000]", .help = "steps between evaluations; 0: at the end only"},
    {"run.eval_start", AX_OPT_BOOL, AT(run.eval_start), "false", .help = "also evaluate before the first step"},
    {"run.eval_batches", AX_OPT_INT, AT(run.eval_batches), "0", "[0, 1000000000]",
     .help = "number of batches of train.micro_batch rows that an evaluation reads from each source of data.valid; they are spread evenly over the source; 0: all rows"},
    {"run.save_dtype", AX_OPT_ENUM, AT(run.save_dtype), "fp32", .choices = "fp32|bf16|fp16", .help = "dtype of the weights in a checkpoint's model.safetensors"},
    {"run.trace", AX_OPT_BOOL, AT(run.trace), "false", .help = "record a timeline of each rank, and write its newest events to trace/rank-N.json in run.dir, which the viewer Perfetto shows"},
    {"run.log_interval", AX_OPT_INT, AT(run.log_interval), "10", "[1, 1000000000]", .help = "steps between progress lines when stderr is not a terminal"},

    {"threads", AX_OPT_INT, AT(threads), "0", "[0, 4096]", .help = "compute threads per rank; 0: one per physical core, divided among the ranks of the machine"},
    {"device", AX_OPT_STRING, AT(device), "cpu", .choices = "cpu|cuda|ref", .help = "device that computes: the processor (cpu), an NVIDIA GPU (cuda), or the slow reference implementation on the processor (ref)"},

#define RUNTIME(...) AX_RUNTIME_OPTION(AT(runtime), __VA_ARGS__),
    AX_RUNTIME(RUNTIME)
#undef RUNTIME
};
/* clang-format on */

const ax_option *ax_config_options(size_t *count)
{
    *count = AX_COUNT(options);
    return options;
}

/* ---- loading ------------------------------------------------------------------------------------- */

/* Sets *out to the default of run.dir, in the current directory: runs/NAME if `path` is NAME.yaml, runs/run
 * if `path` is NULL. */
static ax_status default_dir(const char *path, char **out)
{
    const char *slash = path ? strrchr(path, '/') : NULL, *name = slash ? slash + 1 : path ? path : "run";
    const char *dot = strrchr(name, '.');
    ax_buf dir = {0};
    char *here = getcwd(NULL, 0);
    AX_CHECK(
        here, AX_ERR_DATA,
        "the path of the current directory is not known: %s; change to another directory, or give run.dir "
        "as an absolute path",
        strerror(errno));
    ax_status status = ax_buf_printf(&dir, "%s/runs/%.*s", here,
                                     dot && dot > name ? (int)(dot - name) : (int)strlen(name), name);
    free(here);
    if (status == AX_OK)
        status = ax_strdup(dir.data, out);
    ax_buf_fini(&dir);
    return status;
}

/* Copies model.dropout to each of the other dropout keys that the user did not give. If model.dropout is
 * given on the command line, it also overrides those of the other keys that only the file gives. */
static void spread_dropout(ax_config *cfg)
{
    const double rate = cfg->model.dropout;
    double *const one[] = {&cfg->model.embd_dropout, &cfg->model.resid_dropout, &cfg->model.attn_dropout};
    static const char *const keys[] = {"model.embd_dropout", "model.resid_dropout", "model.attn_dropout"};
    bool typed = ax_option_typed(cfg->set, "model.dropout");
    for (size_t i = 0; i < AX_COUNT(keys); i++)
        if (!ax_config_given(cfg, keys[i]) || (typed && !ax_option_typed(cfg->set, keys[i])))
            *one[i] = rate;
}

ax_status ax_config_load(const char *path, char *const *overrides, size_t n, ax_config_use use,
                         ax_config *cfg)
{
    memset(cfg, 0, sizeof *cfg);
    size_t synonyms;
    const ax_option_synonym *others = ax_config_synonyms(&synonyms);
    AX_TRY(ax_option_set_create(options, AX_COUNT(options), cfg, &cfg->set));
    ax_option_take_synonyms(cfg->set, others, synonyms);
    if (path)
        AX_TRY(ax_option_read_file(cfg->set, path));
    AX_TRY(ax_option_read_overrides(cfg->set, n, overrides));
    config_check(cfg);
    if (use == AX_CONFIG_TO_MEASURE)
        ax_option_waive(cfg->set, "data.train");
    ax_status status = ax_option_finish(cfg->set);
    if (status == AX_ERR_USAGE) { /* some keys have errors: also checks the files that the other keys name, so
                                     that all errors are reported together */
        if (use != AX_CONFIG_TO_MEASURE)
            config_check_paths(cfg);
        AX_TRY(config_check_files(cfg));
        status = ax_option_finish(cfg->set);
    }
    AX_TRY(status);
    if (!cfg->run.dir)
        AX_TRY(default_dir(path, &cfg->run.dir));
    spread_dropout(cfg);
    return AX_OK;
}

void ax_config_fini(ax_config *cfg)
{
    ax_option_set_destroy(&cfg->set);
    ax_option_fini(options, AX_COUNT(options), cfg);
}

bool ax_config_given(const ax_config *cfg, const char *key) { return ax_option_given(cfg->set, key); }

ax_status ax_config_dump(const ax_config *cfg, ax_buf *out) { return ax_option_dump(cfg->set, out); }

static const struct {
    ax_dtype dtype;
    const char *name;
} precisions[] = {[AX_CONFIG_FP32] = {AX_F32, "fp32"},
                  [AX_CONFIG_BF16] = {AX_BF16, "bf16"},
                  [AX_CONFIG_FP16] = {AX_F16, "fp16"}};

ax_dtype ax_config_dtype(int precision) { return precisions[precision].dtype; }
const char *ax_config_dtype_name(int precision) { return precisions[precision].name; }

ax_grid_size ax_config_grid(const ax_config *cfg)
{
#define SIZE(id, name, split) [AX_##id] = (int)cfg->grid.name,
    return (ax_grid_size){{AX_AXES(SIZE)}};
#undef SIZE
}
