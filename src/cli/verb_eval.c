/* axonn eval: measures the loss of a model on data. */
#include "pairs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct args {
    model_args common;
    model_text text;
    model_keys keys;
    char *data, *pairs, *out, *loss;
    int pack; /* ax_data_packing */
    int64_t seq_len, batch;
    bool cross_documents;
    ax_row_shape
        of_run; /* the rows with which the run that wrote the model evaluates (ax_train_saved_shape) */
} args;

static const ax_option options[] = {
    MODEL_OPTIONS(args, common),
    {"data", AX_OPT_PATH, offsetof(args, data), .meta = "PATH", .help = DATA_HELP},
    {"pairs", AX_OPT_PATH, offsetof(args, pairs), .meta = "FILE",
     .help =
         "instead of --data, JSON objects, one a line or in a list, with prompt and continuation (texts), or "
         "prompt_tokens and continuation_tokens (ids): score the continuations"},
    {"out", AX_OPT_PATH, offsetof(args, out), .meta = "FILE",
     .help =
         "with --pairs: the file to which a line is written for each pair, with its other members, logprob "
         "(the sum of the log-probabilities of the continuation's tokens, in nats), tokens (their number) "
         "and "
         "greedy (true: greedy decoding gives these tokens)"},
    {"seq-len", AX_OPT_INT, offsetof(args, seq_len), "0", "[0, 16777216]", .meta = "N",
     .help =
         "tokens per row (a sequence that the model reads at once); 0: those of the run that wrote MODEL, "
         "so that the loss is that of its evaluations; of other models, those of the longest document "
         "(with --pack stream: at least 1024), at most 4096, the model's positions and the tokens that "
         "there are"},
    {"batch", AX_OPT_INT, offsetof(args, batch), "0", "[0, 65536]",
     .help = "most rows that each rank along the grid axes data and z computes at a time; 0: as many as have "
             "4096 "
             "tokens together"},
    MODEL_TEXT_OPTIONS(args, text),
    MODEL_KEYS_OPTIONS(args, keys),
    {"loss", AX_OPT_STRING, offsetof(args, loss), "auto", .choices = "auto|answers|all",
     .help =
         "which tokens count in the loss, like the configuration key data.loss: all, answers (what the "
         "assistant says; the data must have a mask) or auto (as in the run that wrote MODEL, else answers "
         "if the data have a mask, else all)"},
    {"pack", AX_OPT_ENUM, offsetof(args, pack), "auto", .choices = "stream|documents|auto",
     .help = "what a row is, like the configuration key data.pack: consecutive tokens (stream), whole "
             "documents side by side, so that each is read from its start (documents), or documents for "
             "conversations and stream for all other data (auto)"},
    {"cross-documents", AX_OPT_BOOL, offsetof(args, cross_documents), "false",
     .help = "let each token attend also to earlier documents in the same row"},
    MODEL_DEVICE_OPTIONS(args, common),
};

static ax_status report(const args *a, const ax_evaluation *e)
{
    if (!e->targets)
        ax_log(AX_LOG_WARN,
               "%s: none of its tokens is a target that follows another token of its document, so there is "
               "no loss",
               a->data);
    if (e->targets)
        AX_TRY(model_check_loss(&a->common, e->loss));
    if (a->common.json)
        return cli_print_json(json_pack("{s:o, s:o, s:o, s:I, s:I, s:I, s:I}", "loss",
                                        cli_json_number(e->loss), "perplexity", cli_json_number(exp(e->loss)),
                                        "bits_per_byte", cli_json_number(e->bits_per_byte), "targets",
                                        (json_int_t)e->targets, "untargeted", (json_int_t)e->untargeted,
                                        "begins", (json_int_t)e->begins, "bytes", (json_int_t)e->bytes));
    if (e->targets)
        printf("loss           %.6f\nperplexity     %.4f\n", e->loss, exp(e->loss));
    if (isfinite(e->bits_per_byte))
        printf("bits per byte  %.4f\n", e->bits_per_byte);
    printf("targets        %lld\n", (long long)e->targets);
    return AX_OK;
}

/* Chooses the length of rows if --seq-len does not give it, and logs why. */
static ax_status choose_length(const args *a, const opened_model *m, ax_data *data, ax_row_shape *shape)
{
    ax_row_length length;
    char text[AX_ROW_LENGTH_TEXT];
    const int64_t positions = ax_model_config_positions(&m->model.config);
    if (!a->seq_len && shape->seq_len && m->first)
        ax_log(shape->seq_len == positions ? AX_LOG_DEBUG : AX_LOG_INFO,
               "%s: rows have %lld tokens, as in the evaluations of the run; --seq-len sets another length",
               a->data, (long long)shape->seq_len);
    if (shape->seq_len)
        return AX_OK;
    AX_TRY(ax_data_choose_length(&data, 1, shape, positions, &length));
    shape->seq_len = length.seq_len;
    ax_row_length_print(&length, "--seq-len", text);
    if (m->first)
        ax_log(length.rule == AX_LENGTH_POSITIONS ? AX_LOG_DEBUG : AX_LOG_INFO, "%s: %s", a->data, text);
    return AX_OK;
}

/* Decides how the data are cut into rows, and packs their documents unless rows are consecutive tokens. */
static ax_status cut(const args *a, const opened_model *m, ax_data *data, ax_row_shape *shape)
{
    ax_data_packed packed;
    *shape = a->of_run;
    if (a->seq_len)
        shape->seq_len = a->seq_len;
    if (a->cross_documents)
        shape->mask_documents = false;
    if (strcmp(a->loss, "auto") != 0)
        shape->answers = strcmp(a->loss, "all") != 0;
    if (a->pack != AX_PACK_AUTO)
        shape->pack = (ax_data_packing)a->pack;
    AX_TRY(choose_length(a, m, data, shape));
    ax_status status = ax_data_is_packed(data, shape) ? ax_data_pack(data, shape, &packed) : AX_OK;
    if (status == AX_ERR_USAGE)
        ax_error_context("--pack");
    return status;
}

static ax_status evaluate(const args *a, opened_model *m, ax_data *data, const ax_row_shape *shape)
{
    ax_evaluation e;
    cli_progress progress;
    cli_progress_start(&progress, "evaluating rows", false);
    progress.terminal &= m->first;
    ax_status status = ax_pretrained_eval(m->ctx, &m->model, data, shape,
                                          model_data_batch(m, a->batch, &(ax_data *){data}, 1, shape),
                                          cli_progress_show, &progress, &e);
    cli_progress_end(&progress);
    AX_TRY(status);
    return ax_comm_agree(m->world, m->first ? report(a, &e) : AX_OK);
}

static ax_status check_loss(const args *a, const ax_data *data)
{
    AX_CHECK(strcmp(a->loss, "answers") != 0 || ax_data_describe(data)->targets >= 0, AX_ERR_USAGE,
             "--loss answers: %s has no mask, which marks the answers: give conversations, or --loss all",
             a->data);
    return AX_OK;
}

static ax_status with_data(const void *raw, opened_model *m, ax_data *const *sources)
{
    const args *a = raw;
    ax_row_shape shape = {0};
    ax_status status = check_loss(a, *sources);
    if (status == AX_OK)
        status = cut(a, m, *sources, &shape);
    AX_TRY(ax_comm_agree(m->world, status));
    return evaluate(a, m, *sources, &shape);
}

static ax_status check_data(const model_data *data, opened_model *m)
{
    ax_buf errors = {0};
    return model_data_checked(model_data_check(data, m, &errors), &errors);
}

static bool reads_input(const void *raw)
{
    const args *a = raw;
    return a->data && model_data_is_stdin((const char *const *)&a->data, 1);
}

/* Measures the loss on --data. */
static ax_status measure(args *a, opened_model *m)
{
    model_data data = {.verb = "eval", .text = &a->text, .path = (const char *const *)&a->data, .n = 1};
    AX_TRY(ax_comm_agree(m->world, check_data(&data, m)));
    AX_TRY(model_data_follow(m, &a->text, &a->of_run, &data.bare));
    return model_data_use(&data, m, with_data, a);
}

/* Reports all flags that do not go together. */
static ax_status check_flags(const args *a)
{
    const struct {
        const char *name;
        bool given;
    } others[] = {{"--seq-len", a->seq_len},
                  {"--loss", strcmp(a->loss, "auto")},
                  {"--pack", a->pack != AX_PACK_AUTO},
                  {"--cross-documents", a->cross_documents},
                  {"--template", a->text.template},
                  {"--text-key", a->text.text.key},
                  {"--bad-lines", a->text.text.bad_lines >= 0},
                  {"--ignore", a->text.ignore.count}};
    ax_buf errors = {0};
    ax_status status = AX_OK;
    if (!a->data == !a->pairs)
        status = ax_buf_printf(&errors, "give --data, or --pairs, one of both");
    if (status == AX_OK && !a->pairs != !a->out)
        status = ax_buf_printf(&errors, "%s--pairs and --out, the file of the results, go together",
                               errors.size ? "\n" : "");
    if (status == AX_OK && a->pairs && a->out && ax_path_same(a->pairs, a->out))
        status = ax_buf_printf(&errors, "%s--out would replace the pairs: give another file",
                               errors.size ? "\n" : "");
    for (size_t i = 0; i < AX_COUNT(others) && a->pairs && status == AX_OK; i++)
        if (others[i].given)
            status = ax_buf_printf(&errors, "%s%s has no effect with --pairs: leave it out",
                                   errors.size ? "\n" : "", others[i].name);
    return model_data_checked(status, &errors);
}

static ax_status run(const void *raw)
{
    args a = *(const args *)raw;
    opened_model m;
    const pairs_args pairs = {&a.common, &a.text, a.pairs, a.out, a.batch};
    ax_status status = model_open(&a.common, MODEL_ROWS, &m);
    if (status == AX_OK)
        status = ax_comm_agree(m.world, check_flags(&a));
    if (status == AX_OK)
        status = model_read_keys(&m, &a.keys);
    if (status == AX_OK)
        status = a.pairs ? pairs_score(&pairs, &m) : measure(&a, &m);
    return model_close(&m, status);
}

const cli_verb verb_eval = {
    .name = "eval",
    .summary = "measure loss, perplexity and bits per byte of a model on data",
    .details =
        "Every token is predicted once, except the first of each document (with --cross-documents and\n"
        "--pack stream: of the data). In bits per byte, such a first token counts as log2(vocabulary size)\n"
        "bits, so that the figure is comparable with a compressor's; but a token that the tokenizer puts\n"
        "before each text counts as none.\n"
        "In conversations only what the assistant says is counted, as in training (--loss).\n"
        "If MODEL is a run or a checkpoint of one, rows are cut as in the run's own evaluations, unless a\n"
        "flag says otherwise; with the run's --precision, the loss is the eval_loss of its metrics.\n"
        "With --pairs, it scores given continuations of given prompts, in one pass on any grid. Texts of a\n"
        "pair become tokens together: those that the continuation adds to the prompt's own are scored.",
    .examples = "axonn eval runs/name --data valid.txt\naxonn eval path/to/gpt2 --data valid.tok --seq-len "
                "512 --json\n"
                "axonn eval path/to/gpt2 --pairs questions.jsonl --out scores.jsonl\n"
                "axonn eval runs/name --data valid.tok --ranks 4 grid.x=2 grid.data=2",
    .options = options,
    .option_count = AX_COUNT(options),
    .args_size = sizeof(args),
    .run = run,
    .launches = true,
    .reads_input = reads_input,
};
