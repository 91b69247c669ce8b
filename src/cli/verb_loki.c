/* axonn loki calibrate: measures the keys of a model, so that attention can choose the keys that it reads. */
#include "model_data.h"

typedef struct args {
    model_args common;
    model_text text;
    char *data, *out, *rotary;
    int64_t tokens;
} args;

static const ax_option options[] = {
    MODEL_OPTIONS(args, common),
    {"data", AX_OPT_PATH, offsetof(args, data), .meta = "PATH", .required = true, .help = DATA_HELP},
    {"out", AX_OPT_PATH, offsetof(args, out), .meta = "FILE", .required = true,
     .help = "the file to write, NAME.safetensors; an older one is replaced"},
    {"rotary", AX_OPT_STRING, offsetof(args, rotary), "after", .choices = "before|after",
     .help =
         "measure keys before or after the rotary embedding. Which is better differs from model to model"},
    {"tokens", AX_OPT_INT, offsetof(args, tokens), "65536", "[1, 1000000000000]", .meta = "N",
     .help =
         "tokens whose keys are measured, in rows spread over the data: at least 16 for each element of a "
         "head"},
    MODEL_TEXT_OPTIONS(args, text),
    MODEL_DEVICE_OPTIONS(args, common),
};

static double mean_of(const ax_loki_ranks *r)
{
    double sum = 0;
    for (int64_t i = 0; i < r->layers; i++)
        sum += r->rank[i];
    return sum / (double)ax_max(r->layers, 1);
}

static ax_status report(const args *a, const ax_loki_ranks *r)
{
    if (a->common.json) {
        json_t *ranks = json_array();
        for (int64_t i = 0; i < r->layers; i++)
            json_array_append_new(ranks, json_real(r->rank[i]));
        return cli_print_json(json_pack("{s:s, s:s, s:s, s:I, s:I, s:o, s:f}", "model", a->common.model,
                                        "out", a->out, "rotary", a->rotary, "tokens", (json_int_t)r->tokens,
                                        "head_dim", (json_int_t)r->head_dim, "rank90", ranks, "mean",
                                        mean_of(r)));
    }
    printf("layer  rank@90 of %lld\n", (long long)r->head_dim);
    for (int64_t i = 0; i < r->layers; i++)
        printf("%5lld  %.1f\n", (long long)i, r->rank[i]);
    printf(" mean  %.1f\n%s: keys of %lld tokens, %s the rotary embedding\n", mean_of(r), a->out,
           (long long)r->tokens, a->rotary);
    return AX_OK;
}

static ax_status with_data(const void *raw, opened_model *m, ax_data *const *sources)
{
    const args *a = raw;
    cli_progress progress;
    ax_loki_ranks ranks;
    cli_progress_start(&progress, "measuring rows", false);
    progress.terminal &= m->first;
    const ax_loki_calibration how = {.out = a->out,
                                     .tokens = a->tokens,
                                     .before = a->rotary[0] == 'b',
                                     .progress = cli_progress_show,
                                     .user = &progress};
    ax_status status = ax_loki_calibrate(m->ctx, &m->model, *sources, &how, &ranks);
    cli_progress_end(&progress);
    if (status == AX_OK)
        status = ax_comm_agree(m->world, m->first ? report(a, &ranks) : AX_OK);
    ax_loki_ranks_fini(&ranks);
    return status;
}

static ax_status measure(const args *a, opened_model *m)
{
    ax_row_shape unused;
    ax_buf errors = {0};
    model_data data = {.verb = "loki", .text = &a->text, .path = (const char *const *)&a->data, .n = 1};
    AX_TRY(ax_comm_agree(m->world, model_data_checked(model_data_check(&data, m, &errors), &errors)));
    AX_TRY(model_data_follow(m, &a->text, &unused, &data.bare));
    return model_data_use(&data, m, with_data, a);
}

static bool reads_input(const void *raw)
{
    const args *a = raw;
    return model_data_is_stdin((const char *const *)&a->data, 1);
}

static ax_status run(const void *raw)
{
    const args *a = raw;
    opened_model m;
    ax_status status = model_open(&a->common, MODEL_ROWS, &m);
    if (status == AX_OK)
        status = measure(a, &m);
    return model_close(&m, status);
}

const cli_verb verb_loki_calibrate = {
    .name = "loki calibrate",
    .summary = "find a basis in which few elements of keys say which keys matter",
    .details =
        "Measures the covariance of the keys of each key head on text, and writes its eigenvectors to a "
        "file.\n"
        "With --loki FILE, generate, eval and bench generate turn queries and keys by them, choose for each\n"
        "token the keys with the largest scores by the first elements alone, and attend to these keys "
        "(Loki,\n"
        "paper 2406.02542). Prints for each layer how many of a head's elements have 90 % of the variance "
        "of\n"
        "keys (rank@90), mean over key heads.",
    .examples =
        "axonn loki calibrate path/to/llama --data text.txt --out keys.safetensors\n"
        "axonn loki calibrate path/to/llama --data text.tok --out keys.safetensors --rotary before\n"
        "axonn generate path/to/llama --prompt 'Once' --loki keys.safetensors --keys 0.25 --dims 0.25",
    .options = options,
    .option_count = AX_COUNT(options),
    .args_size = sizeof(args),
    .run = run,
    .launches = true,
    .reads_input = reads_input,
};
