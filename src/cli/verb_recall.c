/* axonn recall: counts the documents that a model reproduces word for word. */
#include "model_data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct args {
    model_args common;
    model_text text;
    ax_strings data;
    int64_t tokens, prompt, document, batch; /* prompt, document: -1: all */
    bool per_token;
} args;

static const ax_option options[] = {
    MODEL_OPTIONS(args, common),
    {"data", AX_OPT_STRINGS, offsetof(args, data), .required = true, .meta = "PATH...",
     .help = "sources of documents: each " DATA_HELP},
    {"tokens", AX_OPT_INT, offsetof(args, tokens), "50", "[1, 16777216]", .meta = "N",
     .help = "tokens of each document to predict, the target: the last of those that are read of it"},
    {"prompt-tokens", AX_OPT_INT, offsetof(args, prompt), "all", "[1, 16777216]", "all", .meta = "N",
     .help = "tokens before the target that the model sees; all: all that are read of the document"},
    {"document-tokens", AX_OPT_INT, offsetof(args, document), "all", "[2, 16777216]", "all", .meta = "N",
     .help =
         "read the first N tokens of each document; all: the whole document. Without --prompt-tokens at most "
         "one token more than the model has positions"},
    {"per-token", AX_OPT_BOOL, offsetof(args, per_token), "false",
     .help = "print the loss and the rank of each token of the targets; the likeliest token has rank 0"},
    {"batch", AX_OPT_INT, offsetof(args, batch), "0", "[0, 65536]",
     .help = "most rows that each rank along the grid axes data and z computes at a time; 0: as many as "
             "have 4096 tokens together"},
    MODEL_TEXT_OPTIONS(args, text),
    MODEL_DEVICE_OPTIONS(args, common),
};

/* ---- output -------------------------------------------------------------------------------------- */

/* One source and its result. */
typedef struct result {
    const args *a;
    const char *path;
    const ax_data *data;
    const ax_recall *recall;
} result;

static json_t *json_tokens(const ax_recall *r, int64_t d, const int32_t *ids)
{
    json_t *list = json_array();
    for (int64_t i = r->first[d]; i < r->first[d + 1]; i++)
        json_array_append_new(list, json_pack("{s:i, s:o, s:i}", "id", (int)ids[i - r->first[d]], "loss",
                                              cli_json_number(r->loss[i]), "rank", (int)r->rank[i]));
    return list;
}

static ax_status print_document_json(const result *s, int64_t d, const int32_t *ids)
{
    const ax_recall *r = s->recall;
    const ax_recall_sum sum = ax_recall_add_up(r, d, d + 1);
    json_t *line =
        json_pack("{s:s, s:I, s:b, s:I, s:f, s:f}", "source", s->path, "document", (json_int_t)r->document[d],
                  "recalled", (int)sum.recalled, "before_error", (json_int_t)sum.right, "likeliest",
                  (double)sum.likeliest / (double)sum.tokens, "loss", sum.loss / (double)sum.tokens);
    if (line && s->a->per_token)
        json_object_set_new(line, "tokens", json_tokens(r, d, ids));
    return cli_print_json(line);
}

static void print_document(const result *s, int64_t d, const int32_t *ids)
{
    const ax_recall *r = s->recall;
    for (int64_t i = 0; i < s->a->tokens; i++)
        printf("%s  %8lld  %6lld  %7d  %10.6f  %7d\n", s->path, (long long)r->document[d], (long long)i,
               (int)ids[i], r->loss[r->first[d] + i], (int)r->rank[r->first[d] + i]);
}

static ax_status print_documents(const result *s)
{
    const ax_recall *r = s->recall;
    int32_t *ids;
    AX_TRY(ax_calloc((size_t)s->a->tokens, sizeof *ids, &ids));
    ax_status status = AX_OK;
    for (int64_t d = 0; d < r->documents && status == AX_OK; d++) {
        if (s->a->per_token)
            status = ax_data_tokens(s->data, r->start[d], s->a->tokens, ids);
        if (status == AX_OK && s->a->common.json)
            status = print_document_json(s, d, ids);
        else if (status == AX_OK)
            print_document(s, d, ids);
    }
    free(ids);
    return status;
}

/* Prints the totals of a source. */
static ax_status print_totals(const result *s, int width)
{
    const ax_recall *r = s->recall;
    const ax_recall_sum sum = ax_recall_add_up(r, 0, r->documents);
    const double documents = (double)r->documents, targets = (double)sum.tokens,
                 before = (double)sum.right / documents, likeliest = (double)sum.likeliest / targets,
                 loss = sum.loss / targets;
    if (s->a->common.json)
        return cli_print_json(json_pack("{s:s, s:I, s:I, s:I, s:I, s:f, s:f, s:f}", "source", s->path,
                                        "documents", (json_int_t)r->documents, "left_out",
                                        (json_int_t)r->left_out, "tokens", (json_int_t)s->a->tokens,
                                        "recalled", (json_int_t)sum.recalled, "before_error", before,
                                        "likeliest", likeliest, "loss", loss));
    printf("%-*s  %9lld  %8lld  %8lld  %12.2f  %8.2f%%  %8.4f\n", width, s->path, (long long)r->documents,
           (long long)r->left_out, (long long)sum.recalled, before, 100 * likeliest, loss);
    return AX_OK;
}

/* Logs how many documents were too short. Fails if a loss is not finite. */
static ax_status check_result(const result *s)
{
    const ax_recall *r = s->recall;
    const ax_recall_sum sum = ax_recall_add_up(r, 0, r->documents);
    const int64_t all = r->left_out + r->documents;
    if (r->left_out)
        ax_log(AX_LOG_WARN,
               "%s: %lld of %lld documents are too short for prompt and target, and are left out", s->path,
               (long long)r->left_out, (long long)all);
    return model_check_loss(&s->a->common, sum.loss / (double)sum.tokens);
}

static ax_status report(const args *a, ax_data *const *sources, const ax_recall *recall)
{
    const int n = (int)a->data.count;
    int width = (int)strlen("source");
    AX_ASSERT(recall);
    for (int i = 0; i < n; i++) {
        width = ax_max(width, (int)strlen(a->data.items[i]));
        AX_TRY(check_result(&(result){a, a->data.items[i], sources[i], &recall[i]}));
    }
    if (a->per_token && !a->common.json)
        printf("source  document  target       id        loss     rank\n");
    for (int i = 0; i < n && (a->common.json || a->per_token); i++)
        AX_TRY(print_documents(&(result){a, a->data.items[i], sources[i], &recall[i]}));
    if (!a->common.json)
        printf("%-*s  documents  left out  recalled  before error  likeliest      loss\n", width, "source");
    for (int i = 0; i < n; i++)
        AX_TRY(print_totals(&(result){a, a->data.items[i], sources[i], &recall[i]}, width));
    return AX_OK;
}

/* ---- evaluation ---------------------------------------------------------------------------------- */

static ax_excerpt excerpt_of(const args *a)
{
    return (ax_excerpt){
        .document = ax_max(a->document, 0), .prompt = ax_max(a->prompt, 0), .target = a->tokens};
}

static ax_status evaluate(const args *a, opened_model *m, ax_data *const *sources, const ax_row_shape *shape,
                          ax_recall *recall)
{
    const int n = (int)a->data.count;
    cli_progress progress;
    cli_progress_start(&progress, "evaluating rows", false);
    progress.terminal &= m->first;
    ax_status status = ax_pretrained_recall(m->ctx, &m->model, (const ax_data *const *)sources, n, shape,
                                            model_data_batch(m, a->batch, sources, n, shape),
                                            cli_progress_show, &progress, recall);
    cli_progress_end(&progress);
    AX_TRY(status);
    return ax_comm_agree(m->world, m->first ? report(a, sources, recall) : AX_OK);
}

static ax_status with_data(const void *raw, opened_model *m, ax_data *const *sources)
{
    const args *a = raw;
    const int n = (int)a->data.count;
    const ax_excerpt excerpt = excerpt_of(a);
    ax_row_shape shape = {.mask_documents = true};
    ax_recall *recall = NULL;
    ax_status status =
        ax_recall_pack(sources, n, &excerpt, ax_model_config_positions(&m->model.config), &shape, NULL);
    if (status == AX_OK)
        status = ax_calloc((size_t)n, sizeof *recall, &recall);
    status = ax_comm_agree(m->world, status);
    if (status == AX_OK)
        status = evaluate(a, m, sources, &shape, recall);
    for (int i = 0; recall && i < n; i++)
        ax_recall_fini(&recall[i]);
    free(recall);
    return status;
}

/* Reports all that is wrong with the sources, and with prompt and target. */
static ax_status check(const args *a, const model_data *data, opened_model *m)
{
    const ax_excerpt excerpt = excerpt_of(a);
    ax_buf errors = {0};
    ax_status status = model_data_check(data, m, &errors);
    if (status == AX_OK && ax_recall_check(&excerpt, ax_model_config_positions(&m->model.config)) != AX_OK)
        status = ax_buf_printf(&errors, "%s--tokens, --prompt-tokens, --document-tokens: %s",
                               errors.size ? "\n" : "", ax_error_message());
    return model_data_checked(status, &errors);
}

static bool reads_input(const void *raw)
{
    const args *a = raw;
    return model_data_is_stdin((const char *const *)a->data.items, (int)a->data.count);
}

static ax_status run(const void *raw)
{
    const args *a = raw;
    opened_model m;
    ax_row_shape of_run;
    model_data data = {.verb = "recall",
                       .text = &a->text,
                       .path = (const char *const *)a->data.items,
                       .n = (int)a->data.count};
    ax_status status = model_open(&a->common, MODEL_ROWS, &m);
    if (status == AX_OK)
        status = ax_comm_agree(m.world, check(a, &data, &m));
    if (status == AX_OK)
        status = model_data_follow(&m, &a->text, &of_run, &data.bare);
    if (status == AX_OK)
        status = model_data_use(&data, &m, with_data, a);
    return model_close(&m, status);
}

const cli_verb verb_recall = {
    .name = "recall",
    .summary = "count the documents that a model reproduces word for word",
    .details =
        "Each document is cut into a prompt and a target, its last --tokens tokens. The target is\n"
        "recalled if greedy decoding (axonn generate --temperature 0) continues the prompt with exactly\n"
        "these tokens. That is so if each of them is the likeliest given the true text before it, so\n"
        "nothing is generated: one forward pass answers, on any grid. Of equally likely tokens the one\n"
        "with the smaller id counts. For each source: documents, those left out because they are too\n"
        "short, those recalled, the mean number of tokens before the first wrong one (before error), the\n"
        "share of the targets' tokens that are the likeliest, and the mean loss of these tokens. --json\n"
        "prints a line for each document too. A document of a token file ends with its end-of-text token,\n"
        "which counts like any other.",
    .examples = "axonn recall runs/name --data passages.jsonl\n"
                "axonn recall runs/name --data seen.tok unseen.tok --document-tokens 256 --tokens 50 --json\n"
                "axonn recall runs/name --data seen.tok --prompt-tokens 32 --per-token --json",
    .options = options,
    .option_count = AX_COUNT(options),
    .args_size = sizeof(args),
    .run = run,
    .launches = true,
    .reads_input = reads_input,
};
