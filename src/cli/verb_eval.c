/* axonn eval: measures the loss of a model on data. */
#include "axonn/train.h"
#include "model.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct args {
    model_args common;
    char *data, *tokenizer, *template, *loss;
    int pack; /* ax_data_packing */
    cli_text text;
    int64_t seq_len, batch;
    ax_strings ignore;
    bool cross_documents, bos;
    ax_row_shape
        of_run; /* the rows with which the run that wrote the model evaluates (ax_train_saved_shape) */
    bool bare;  /* no special tokens around texts: because of --no-bos, or as in that run */
} args;

static const ax_option options[] = {
    MODEL_OPTIONS(args, common),
    {"data", AX_OPT_PATH, offsetof(args, data), .required = true, .meta = "PATH",
     .help = "text, JSON or JSONL, a directory of them, a token file, a directory of shards, or a pattern "
             "('*.bin'); /dev/stdin reads text from standard input"},
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
    {"tokenizer", AX_OPT_PATH, offsetof(args, tokenizer), .meta = "DIR",
     .help = "a tokenizer's directory or tokenizer.json, to use instead of the model's tokenizer"},
    TEXT_OPTIONS(args, text),
    {"bos", AX_OPT_BOOL, offsetof(args, bos), "true",
     .help =
         "put around each text of --data what the tokenizer's post_processor puts there (as a rule a token "
         "that begins the text), as transformers does; conversations have the tokens of their template"},
    IGNORE_OPTION(args, ignore),
    {"template", AX_OPT_STRING, offsetof(args, template), .choices = ax_chat_names,
     .help = "template by which conversations become text; default: that of the model's chat_template if its "
             "text is known; without one, chosen by the tokenizer's special tokens"},
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
    AX_CHECK(
        isfinite(e->loss) || !e->targets, AX_ERR_NUMERIC,
        "the loss is %g: the model has weights that are not finite, or it overflows in this precision (%s)%s",
        e->loss, a->common.precision, strcmp(a->common.precision, "fp32") ? "; try --precision fp32" : "");
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

/* Returns the number of rows that each rank computes at a time: not more than there are. */
static int64_t batch_of(const args *a, const opened_model *m, const ax_data *data, const ax_row_shape *shape)
{
    AX_ASSERT(shape->seq_len > 0);
    const int64_t ranks = ax_grid_group_size(m->ctx->grid, ax_batch_axes(m->ctx)),
                  most = a->batch ? a->batch : ax_max(AX_ROW_MOST / shape->seq_len, 1);
    return ax_max(ax_min(most, ax_ceil_div(ax_data_rows(data, shape), ranks)), 1);
}

static ax_status evaluate(const args *a, opened_model *m, const ax_data *data, const ax_row_shape *shape)
{
    ax_evaluation e;
    cli_progress progress;
    cli_progress_start(&progress, "evaluating rows", false);
    progress.terminal &= m->first;
    ax_status status = ax_pretrained_eval(m->ctx, &m->model, data, shape, batch_of(a, m, data, shape),
                                          cli_progress_show, &progress, &e);
    cli_progress_end(&progress);
    AX_TRY(status);
    return ax_comm_agree(m->world, m->first ? report(a, &e) : AX_OK);
}

static ax_status with_data(const args *a, opened_model *m, const char *tokens)
{
    ax_data *data = NULL;
    ax_row_shape shape = {0};
    const ax_tokenizer *tok = m->model.tokenizer;
    ax_status status = ax_data_open(tokens, tok ? ax_tokenizer_eos(tok) : -1, &data);
    if (status == AX_OK)
        status =
            ax_data_expect(data, &(ax_data_reader){m->model.config.vocab, tok ? ax_tokenizer_hash(tok) : 0,
                                                   tok, .other = !m->first});
    if (status == AX_OK && tok)
        status = ax_data_expect_begin(data, tok, !a->bare && m->first);
    if (status == AX_OK && !strcmp(a->loss, "answers") && ax_data_describe(data)->targets < 0)
        status = ax_fail(
            AX_ERR_USAGE,
            "--loss answers: %s has no mask, which marks the answers: give conversations, or --loss all",
            a->data);
    if (status == AX_OK)
        status = cut(a, m, data, &shape);
    status = ax_comm_agree(m->world, status);
    if (status == AX_OK)
        status = evaluate(a, m, data, &shape);
    ax_data_close(&data);
    return status;
}

static ax_status check_data(const args *a, const opened_model *m)
{
    ax_data_format format;
    AX_TRY(ax_data_detect(a->data, &format));
    AX_CHECK(m->model.tokenizer || format != AX_DATA_PIPE, AX_ERR_USAGE,
             "%s is a pipe, which is read as text, and %s has no tokenizer: give --tokenizer; a token file "
             "must be a regular file",
             a->data, m->model.dir);
    AX_CHECK(m->model.tokenizer || !ax_data_format_is_text(format), AX_ERR_USAGE,
             "%s is text and %s has no tokenizer: give --tokenizer, or a token file", a->data, m->model.dir);
    AX_CHECK(!a->template || ax_data_format_is_text(format), AX_ERR_USAGE,
             "--template: %s holds tokens, not conversations: leave out --template", a->data);
    AX_CHECK(a->bos || ax_data_format_is_text(format), AX_ERR_USAGE,
             "--no-bos: %s holds tokens, which are read as they are: leave out --no-bos", a->data);
    return AX_OK;
}

static bool show_build(void *user, const ax_data_progress *progress)
{
    cli_progress_update(user, progress->bytes_done, progress->bytes_total);
    return !cli_stop_wanted();
}

/* Creates a temporary directory, which the caller removes, and tokenizes the text into it. Sets `dir` to the
 * path of the directory, and *tokens to the path of the token file. If --data holds tokens already, *tokens
 * is the path of --data. */
static ax_status prepare(const args *a, const opened_model *m, char *dir, size_t size, char **tokens)
{
    snprintf(dir, size, "%s/axonn-eval-XXXXXX", ax_temporary_dir());
    if (!mkdtemp(dir)) {
        ax_status status = ax_fail(AX_ERR_DATA,
                                   "cannot create a temporary directory in %s: %s; set the environment "
                                   "variable TMPDIR to another directory",
                                   ax_temporary_dir(), strerror(errno));
        *dir = 0;
        return status;
    }
    ax_chat *chat = NULL;
    cli_progress progress;
    ax_status status = m->model.tokenizer ? ax_chat_create(m->model.tokenizer, a->template, &chat) : AX_OK;
    if (status != AX_OK) {
        ax_error_context("--template");
        return status;
    }
    cli_progress_start(&progress, "tokenizing", true);
    progress.terminal &= m->first;
    status = ax_data_prepare(a->data,
                             &(ax_data_build_options){.corpus = {.text_key = a->text.key,
                                                                 .chat = chat,
                                                                 .ignore = a->ignore,
                                                                 .bad_lines = a->text.bad_lines},
                                                      .tokenizer = m->model.tokenizer,
                                                      .bare = a->bare,
                                                      .progress = show_build,
                                                      .user = &progress},
                             dir, tokens);
    cli_progress_end(&progress);
    ax_chat_destroy(&chat);
    return status;
}

/* Tokenizes the text on rank 0, then evaluates on all ranks. A rank on another host that does not see rank
 * 0's temporary directory tokenizes the text itself. */
static ax_status with_tokens(const args *a, opened_model *m)
{
    char dir[4096] = "", *tokens = NULL;
    cli_stop_catch();
    cli_world_wait_for_first(m->world, true);
    ax_status status = ax_comm_agree(m->world, m->first ? prepare(a, m, dir, sizeof dir, &tokens) : AX_OK);
    cli_world_wait_for_first(m->world, false);
    if (status == AX_OK)
        status = ax_comm_share_text(m->world, 0, &tokens);
    if (status == AX_OK) {
        bool hidden = !m->first && !ax_path_exists(tokens);
        if (hidden) {
            free(tokens);
            tokens = NULL;
        }
        status = ax_comm_agree(m->world, hidden ? prepare(a, m, dir, sizeof dir, &tokens) : AX_OK);
    }
    if (status == AX_OK)
        status = with_data(a, m, tokens);
    free(tokens);
    ax_status removed = *dir ? ax_remove_tree(dir) : AX_OK;
    return status != AX_OK ? status : removed;
}

/* Sets a->of_run and a->bare. Rank 0 reads the checkpoint, which a run that still trains may remove. */
static ax_status follow_run(args *a, const opened_model *m)
{
    ax_row_shape *shape = &a->of_run;
    ax_work *work;
    bool bos;
    AX_TRY(ax_comm_agree(m->world, m->first ? ax_train_saved_shape(&m->model, shape, &bos) : AX_OK));
    int64_t values[] = {shape->seq_len, shape->mask_documents, shape->answers, shape->pack, m->first && bos};
    AX_TRY(ax_broadcast(m->world, NULL, values, AX_COUNT(values), AX_I64, 0, &work));
    AX_TRY(ax_wait(&work));
    *shape = (ax_row_shape){.seq_len = values[0],
                            .mask_documents = values[1],
                            .answers = values[2],
                            .pack = (ax_data_packing)values[3]};
    a->bare = !a->bos || !values[4];
    return AX_OK;
}

static ax_status prepare_model(const args *a, opened_model *m)
{
    if (a->tokenizer) {
        ax_tokenizer_destroy(&m->model.tokenizer);
        AX_TRY(ax_tokenizer_load(a->tokenizer, &m->model.tokenizer));
    }
    return check_data(a, m);
}

static bool reads_input(const void *raw) { return cli_is_stdin(((const args *)raw)->data); }

static ax_status run(const void *raw)
{
    args a = *(const args *)raw;
    opened_model m;
    ax_status status = model_open(&a.common, MODEL_ROWS, &m);
    if (status == AX_OK)
        status = ax_comm_agree(m.world, prepare_model(&a, &m));
    if (status == AX_OK)
        status = follow_run(&a, &m);
    if (status == AX_OK)
        status = with_tokens(&a, &m);
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
        "flag says otherwise; with the run's --precision, the loss is the eval_loss of its metrics.",
    .examples = "axonn eval runs/name --data valid.txt\naxonn eval path/to/gpt2 --data valid.tok --seq-len "
                "512 --json\n"
                "axonn eval runs/name --data valid.tok --ranks 4 grid.x=2 grid.data=2",
    .options = options,
    .option_count = AX_COUNT(options),
    .args_size = sizeof(args),
    .run = run,
    .launches = true,
    .reads_input = reads_input,
};
