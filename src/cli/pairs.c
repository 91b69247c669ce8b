/* Scores continuations of prompts: reads pairs of both from a file, makes a document with a mask of each, and
 * evaluates these documents as axonn recall does. */
#include "pairs.h"

#include "records.h"

#include "axonn/json.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

typedef struct pair {
    size_t prompt, end; /* where, in the list of all ids, the prompt and the continuation end */
} pair;

/* The pairs of the file, and the tokens that they become. */
typedef struct pair_list {
    const pairs_args *a;
    const opened_model *m;
    bool bare;           /* no special tokens before texts */
    ax_encoder *encoder; /* NULL: the model has no tokenizer */
    cli_records records;
    const cli_record *record; /* the one that is read */
    pair *item;               /* [records.n] */
    ax_ids ids;
    ax_buf errors;
} pair_list;

static const char *const inputs[] = {"prompt", "prompt_tokens", "continuation", "continuation_tokens", NULL};
static const char *const outputs[] = {"logprob", "tokens", "greedy", NULL};

static void pairs_fini(pair_list *p)
{
    cli_records_fini(&p->records);
    free(p->item);
    p->item = NULL;
    ax_ids_fini(&p->ids);
    ax_buf_fini(&p->errors);
    ax_encoder_destroy(&p->encoder);
}

#define COMPLAIN(p, ...) cli_records_fault(&(p)->records, (p)->record->line, __VA_ARGS__)

/* ---- tokens -------------------------------------------------------------------------------------- */

static ax_status add_id(pair_list *p, int64_t id)
{
    const int32_t small = (int32_t)id;
    return ax_ids_add(&p->ids, &small, 1);
}

/* Adds the ids of the member `key`. */
static ax_status add_ids(pair_list *p, const json_t *list, const char *key)
{
    const json_t *value;
    size_t i;
    json_array_foreach(list, i, value)
    {
        const json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || id >= p->m->model.config.vocab)
            return COMPLAIN(p, "%s has an item that is not a token of the model's vocabulary", key);
        AX_TRY(add_id(p, id));
    }
    return AX_OK;
}

static ax_status encode(pair_list *p, const char *text, size_t n)
{
    return ax_encode(p->encoder, text, n, 0, &p->ids);
}

/* Returns the bytes of a prompt without white space at its end, which belongs to the continuation: tokens
 * begin with spaces, so the prompt would end with a token that a text has nowhere else (as in lm-eval). */
static size_t bytes_of_prompt(const json_t *prompt)
{
    const char *text = json_string_value(prompt);
    size_t n = json_string_length(prompt);
    while (n && strchr(" \t\r\n", text[n - 1]))
        n--;
    return n;
}

/* Adds the ids of a prompt; `continued`: by a text. If it has none, it becomes the end-of-text token, as for
 * axonn generate. */
static ax_status add_prompt(pair_list *p, const json_t *text, const json_t *tokens, bool continued)
{
    const size_t from = p->ids.size;
    const int64_t end = p->m->model.identity.eos;
    if (!text)
        return json_array_size(tokens) ? add_ids(p, tokens, "prompt_tokens")
                                       : COMPLAIN(p, "prompt_tokens has no token");
    if (!p->bare) {
        const ax_ids *before = ax_tokenizer_before(p->m->model.tokenizer);
        AX_TRY(ax_ids_add(&p->ids, before->data, before->size));
    }
    AX_TRY(encode(p, json_string_value(text), continued ? bytes_of_prompt(text) : json_string_length(text)));
    if (p->ids.size > from)
        return AX_OK;
    return end >= 0 && end < p->m->model.config.vocab
               ? add_id(p, end)
               : COMPLAIN(p, "prompt is empty, and the model has no end-of-text token to start from");
}

/* Adds the ids that a continuation adds to those of its prompt: the tokens of both texts together, without as
 * many as the prompt alone has. */
static ax_status add_continued(pair_list *p, const json_t *prompt, const json_t *text)
{
    ax_buf both = {0};
    const size_t from = p->ids.size;
    AX_TRY(encode(p, json_string_value(prompt), bytes_of_prompt(prompt)));
    const size_t alone = p->ids.size - from;
    p->ids.size = from;
    ax_status status = ax_buf_add(&both, json_string_value(prompt), json_string_length(prompt));
    if (status == AX_OK)
        status = ax_buf_add(&both, json_string_value(text), json_string_length(text));
    if (status == AX_OK)
        status = encode(p, both.data, both.size);
    ax_buf_fini(&both);
    const size_t left = p->ids.size - from > alone ? p->ids.size - from - alone : 0;
    if (left)
        memmove(p->ids.data + from, p->ids.data + from + alone, left * sizeof *p->ids.data);
    p->ids.size = from + left;
    return status;
}

static ax_status add_continuation(pair_list *p, const json_t *prompt, const json_t *text,
                                  const json_t *tokens)
{
    const size_t from = p->ids.size;
    if (!text && json_array_size(tokens))
        return add_ids(p, tokens, "continuation_tokens");
    if (text && prompt)
        AX_TRY(add_continued(p, prompt, text));
    else if (text)
        AX_TRY(encode(p, json_string_value(text), json_string_length(text)));
    return p->ids.size > from ? AX_OK : COMPLAIN(p, "the continuation adds no token to the prompt");
}

/* Checks the members of the record, which become input[0 ... 3], NULL where there is none. */
static ax_status check_members(pair_list *p, const json_t *input[4])
{
    for (int i = 0; i < 4; i += 2) {
        const char *text = inputs[i], *ids = inputs[i + 1];
        input[i] = json_object_get(p->record->object, text);
        input[i + 1] = json_object_get(p->record->object, ids);
        if (!input[i] == !input[i + 1])
            AX_TRY(COMPLAIN(p, "%s: give a text, or ids as %s, one of both", text, ids));
        else if (input[i] && !json_is_string(input[i]))
            AX_TRY(COMPLAIN(p, "%s is no text", text));
        else if (!input[i] && !json_is_array(input[i + 1]))
            AX_TRY(COMPLAIN(p, "%s is no list of ids", ids));
        else if (input[i] && !p->encoder)
            AX_TRY(COMPLAIN(p, "%s is text, and the model has no tokenizer: give --tokenizer, or ids", text));
    }
    return AX_OK;
}

/* Adds the tokens of p->record. */
static ax_status add_pair(pair_list *p, pair *one)
{
    const json_t *input[4];
    const int64_t most = ax_model_config_positions(&p->m->model.config) + 1;
    const size_t from = p->ids.size, faults = p->records.fault_count;
    AX_TRY(check_members(p, input));
    if (p->records.fault_count > faults)
        return AX_OK;
    AX_TRY(add_prompt(p, input[0], input[1], input[2]));
    one->prompt = p->ids.size;
    AX_TRY(add_continuation(p, input[0], input[2], input[3]));
    one->end = p->ids.size;
    return (int64_t)(one->end - from) <= most
               ? AX_OK
               : COMPLAIN(
                     p, "prompt and continuation have %zu tokens, and the model reads at most %lld of a pair",
                     one->end - from, (long long)most);
}

static ax_status read_pairs(pair_list *p)
{
    AX_TRY(p->m->model.tokenizer ? ax_encoder_create(p->m->model.tokenizer, &p->encoder) : AX_OK);
    AX_TRY(cli_records_read(p->a->path, false, inputs, outputs, &p->records));
    AX_TRY(ax_calloc(p->records.n + 1, sizeof *p->item, &p->item));
    for (size_t i = 0; i < p->records.n; i++) {
        p->record = &p->records.record[i];
        AX_TRY(add_pair(p, &p->item[i]));
    }
    return cli_records_check(&p->records);
}

static ax_status write_documents(const pair_list *p, uint8_t *mask, ax_token_writer *writer)
{
    size_t from = 0;
    for (size_t i = 0; i < p->records.n; from = p->item[i++].end) {
        const size_t n = p->item[i].end - from;
        memset(mask, 0, p->item[i].prompt - from);
        memset(mask + p->item[i].prompt - from, 1, p->item[i].end - p->item[i].prompt);
        AX_TRY(ax_token_writer_add_masked(writer, p->ids.data + from, mask, (int64_t)n, 0));
    }
    return AX_OK;
}

/* Writes a token file with a document for each pair, of which the continuation is the target. */
static ax_status write_tokens(void *user, const char *path)
{
    pair_list *p = user;
    uint8_t *mask;
    ax_token_writer *writer;
    pairs_fini(p);
    AX_TRY(read_pairs(p));
    AX_TRY(ax_calloc((size_t)ax_model_config_positions(&p->m->model.config) + 1, sizeof *mask, &mask));
    ax_status status = ax_token_writer_create(path, p->m->model.config.vocab, -1, 0, &writer);
    if (status == AX_OK) {
        status = write_documents(p, mask, writer);
        if (status == AX_OK)
            status = ax_token_writer_finish(&writer, NULL);
        else
            ax_token_writer_abandon(&writer);
    }
    free(mask);
    return status;
}

/* ---- results ------------------------------------------------------------------------------------- */

/* Appends the line of a pair: its members but prompt and continuation, and what the model says. */
static ax_status add_line(const cli_record *record, const ax_recall_sum *sum, ax_buf *out)
{
    json_t *logprob = cli_json_number(-sum->loss);
    const char *rest = record->rest; /* each member after a comma */
    ax_status status = ax_buf_printf(out, "{%s%s\"logprob\":", *rest ? rest + 1 : "", *rest ? "," : "");
    if (status == AX_OK)
        status = ax_json_print(logprob, JSON_ENCODE_ANY, out);
    if (status == AX_OK)
        status = ax_buf_printf(out, ",\"tokens\":%lld,\"greedy\":%s}\n", (long long)sum->tokens,
                               sum->recalled ? "true" : "false");
    json_decref(logprob);
    return status;
}

static ax_status print_totals(const pair_list *p, const ax_recall_sum *sum)
{
    const double loss = sum->loss / (double)sum->tokens;
    if (p->a->common->json)
        return cli_print_json(json_pack("{s:I, s:I, s:I, s:f, s:f}", "pairs", (json_int_t)p->records.n,
                                        "tokens", (json_int_t)sum->tokens, "greedy",
                                        (json_int_t)sum->recalled, "logprob", -sum->loss, "loss", loss));
    printf("pairs    %zu\ntokens   %lld\ngreedy   %lld\nlogprob  %.6f\nloss     %.6f\n", p->records.n,
           (long long)sum->tokens, (long long)sum->recalled, -sum->loss, loss);
    return AX_OK;
}

static ax_status write_results(const pair_list *p, const ax_recall *r)
{
    ax_buf lines = {0};
    const ax_recall_sum all = ax_recall_add_up(r, 0, r->documents);
    AX_ASSERT(r->documents == (int64_t)p->records.n);
    AX_TRY(model_check_loss(p->a->common, all.loss / (double)all.tokens));
    ax_status status = AX_OK;
    for (int64_t d = 0; d < r->documents && status == AX_OK; d++) {
        const ax_recall_sum sum = ax_recall_add_up(r, d, d + 1);
        status = add_line(&p->records.record[d], &sum, &lines);
    }
    if (status == AX_OK)
        status = ax_file_write_atomic(p->a->out, lines.data, lines.size);
    ax_buf_fini(&lines);
    return status == AX_OK ? print_totals(p, &all) : status;
}

/* ---- evaluation ---------------------------------------------------------------------------------- */

/* Packs the pairs into rows as long as the longest of them. */
static ax_status pack(ax_data *data, ax_row_shape *shape)
{
    ax_data_packed packed;
    int64_t longest;
    AX_TRY(ax_data_longest(data, INT64_MAX, &longest));
    *shape = (ax_row_shape){
        .seq_len = longest - 1, .mask_documents = true, .answers = true, .pack = AX_PACK_DOCUMENTS};
    return ax_data_pack(data, shape, &packed);
}

static ax_status with_data(const void *user, opened_model *m, ax_data *const *sources)
{
    const pair_list *p = user;
    ax_row_shape shape;
    ax_recall recall;
    cli_progress progress;
    AX_TRY(ax_comm_agree(m->world, pack(*sources, &shape)));
    cli_progress_start(&progress, "evaluating rows", false);
    progress.terminal &= m->first;
    ax_status status = ax_pretrained_recall(m->ctx, &m->model, (const ax_data *const *)sources, 1, &shape,
                                            model_data_batch(m, p->a->batch, sources, 1, &shape),
                                            cli_progress_show, &progress, &recall);
    cli_progress_end(&progress);
    if (status == AX_OK)
        status = ax_comm_agree(m->world, m->first ? write_results(p, &recall) : AX_OK);
    ax_recall_fini(&recall);
    return status;
}

ax_status pairs_score(const pairs_args *args, opened_model *m)
{
    ax_row_shape of_run;
    pair_list p = {.a = args, .m = m};
    model_data data = {
        .verb = "eval", .text = args->text, .path = &args->path, .write = write_tokens, .user = &p};
    ax_status status = ax_comm_agree(m->world, model_data_check(&data, m, &p.errors));
    if (status == AX_OK)
        status = model_data_follow(m, args->text, &of_run, &p.bare);
    data.n = 1;
    data.bare = true; /* says nothing about tokens before the texts, which write_tokens puts there */
    if (status == AX_OK)
        status = model_data_use(&data, m, with_data, &p);
    pairs_fini(&p);
    return status;
}
