/* axonn ckpt convert: writes a model with another dtype, in other shards, merged with an adapter, or with
 * experts. */
#include "axonn/config.h"
#include "axonn/infer.h"
#include "model.h"

#include <stdlib.h>
#include <string.h>

typedef struct convert_args {
    char *model, *out, *dtype, *shard_size;
    int64_t experts, top_k;
    bool json;
} convert_args;

static const ax_option convert_options[] = {
    {"MODEL", AX_OPT_PATH, offsetof(convert_args, model), .required = true,
     .help = "the model to convert: a Hugging Face directory, an adapter's directory, a run directory (its "
             "newest checkpoint) or a checkpoint"},
    {"out", AX_OPT_PATH, offsetof(convert_args, out), .required = true, .meta = "DIR",
     .help = "the directory to write, which must not exist"},
    {"dtype", AX_OPT_STRING, offsetof(convert_args, dtype), .words = ax_config_dtype_name,
     .help = "dtype of the weights that are written; default: unchanged"},
    {"shard-size", AX_OPT_STRING, offsetof(convert_args, shard_size), "5GB", .meta = "SIZE",
     .help = "maximum size of the weights in one file, e.g. 500MB or 2GiB"},
    {"experts", AX_OPT_INT, offsetof(convert_args, experts), "0", "[0, 65536]", .meta = "N",
     .help = "make a mixture of N experts in each block of a dense model: each expert is a copy of the "
             "block's MLP, and the router is random, so the new model computes what the dense one does, and "
             "can be trained further; llama and mistral become mixtral, qwen3 becomes qwen3_moe. 0: no "
             "experts"},
    {"top-k", AX_OPT_INT, offsetof(convert_args, top_k), "0", "[0, 65536]", .meta = "K",
     .help = "with --experts: how many experts each token chooses"},
    {"json", AX_OPT_BOOL, offsetof(convert_args, json), "false",
     .help = "print the result as one JSON object"},
};

/* Reads a size such as "5GB": a number and a unit, B, KB, MB, GB, TB, KiB, MiB, GiB or TiB. Without a unit it
 * is in bytes. */
static ax_status read_size(const char *text, int64_t *out)
{
    static const char letters[] = "KMGT";
    char *unit;
    double value = strtod(text, &unit);
    const char *letter = *unit ? strchr(letters, *unit) : NULL;
    bool binary = letter && unit[1] == 'i';
    for (int64_t i = letter ? letter - letters + 1 : 0; i > 0; i--)
        value *= binary ? 1024 : 1000;
    const char *rest = unit + (letter ? 1 + binary : 0);
    bool good = unit == text + strspn(text, "0123456789.") && unit > text && value >= 1 && value < 9e18 &&
                (!strcmp(rest, "B") || (!letter && !*rest));
    AX_CHECK(
        good, AX_ERR_USAGE,
        "--shard-size %s: must be a number of bytes, or a number with B, KB, MB, GB, TB, KiB, MiB, GiB or "
        "TiB, such as 5GB",
        text);
    *out = (int64_t)value;
    return AX_OK;
}

typedef struct conversion {
    ax_conversion_args how;
    ax_conversion result;
} conversion;

static ax_status convert(void *raw, const char *dir)
{
    conversion *c = raw;
    c->how.dir = dir;
    return c->how.experts ? ax_model_upcycle(&c->how, &c->result) : ax_model_convert(&c->how, &c->result);
}

static ax_status report(const convert_args *a, const ax_conversion *r, double seconds)
{
    char bytes[32], time[32];
    if (a->json)
        return cli_print_json(json_pack(
            "{s:s, s:s, s:s?, s:i, s:i, s:i, s:i, s:I, s:I, s:f}", "model", a->model, "out", a->out, "dtype",
            a->dtype, "arrays", r->arrays, "converted", r->converted, "merged", r->merged, "files", r->files,
            "bytes", (json_int_t)r->bytes, "overflows", (json_int_t)r->overflows, "seconds", seconds));
    if (r->merged)
        printf("%s: updates of %d arrays were merged\n", a->out, r->merged);
    printf("%s: %d arrays, of which %d were converted, in %d file%s of %s, %s\n", a->out, r->arrays,
           r->converted, r->files, r->files == 1 ? "" : "s", ax_format_bytes((double)r->bytes, bytes),
           ax_format_seconds(seconds, time));
    return AX_OK;
}

static ax_status run_convert(const void *raw)
{
    const convert_args *a = raw;
    double start = ax_now();
    cli_progress progress;
    conversion c = {.how = {.out = a->out,
                            .dtype = ax_config_dtype_of(a->dtype),
                            .experts = a->experts,
                            .top_k = a->top_k,
                            .progress = cli_progress_show,
                            .user = &progress}};
    AX_TRY(read_size(a->shard_size, &c.how.shard_bytes));
    AX_CHECK(!a->experts == !a->top_k, AX_ERR_USAGE, "--experts and --top-k go together: give both, or none");
    AX_CHECK(a->experts == 0 || (a->top_k >= 2 && a->top_k <= a->experts), AX_ERR_USAGE,
             "--experts %lld --top-k %lld: each token must choose at least two experts (the renormalized "
             "weight of a single one is 1, so the router would not learn), and at most all",
             (long long)a->experts, (long long)a->top_k);
    cli_progress_start(&progress, "converting", true);
    ax_status status = cli_use_model(a->model, convert, &c);
    cli_progress_end(&progress);
    AX_TRY(status);
    return report(a, &c.result, ax_now() - start);
}

const cli_verb verb_ckpt_convert = {
    .name = "ckpt convert",
    .summary = "write a model with another dtype, in other shards, merged with an adapter, or with experts",
    .details =
        "Writes a complete Hugging Face directory: weights with their keys and shapes, config.json with all\n"
        "its keys and the new dtype, the tokenizer, and whatever else is beside the model, up to 16 MiB a\n"
        "file. Works for models of any family. Converts arrays of float64, float32, bfloat16 and float16,\n"
        "rounding to nearest even, and copies others as they are. Needs 4 MiB of memory beside the files'\n"
        "headers, however large the model; for an adapter, also memory for two of its factors in float64.\n"
        "\n"
        "If MODEL is an adapter, or a run that trains one, DIR is its base with the updates added to the\n"
        "weights: W + scale BA, computed in float64 and rounded to the dtype.\n"
        "\n"
        "DIR appears when it is complete; until then the files are in a hidden directory beside it, which a\n"
        "failure or a signal removes. The exit code is 2 if DIR exists, 4 if a file is damaged or there is\n"
        "no space, and 128 + N after signal N.",
    .examples = "axonn ckpt convert runs/name --out name-bf16 --dtype bf16\n"
                "axonn ckpt convert path/to/model --out resharded --shard-size 2GB\n"
                "axonn ckpt convert runs/lora --out merged\n"
                "axonn ckpt convert path/to/llama --experts 8 --top-k 2 --out mixture",
    .options = convert_options,
    .option_count = AX_COUNT(convert_options),
    .args_size = sizeof(convert_args),
    .run = run_convert,
};
