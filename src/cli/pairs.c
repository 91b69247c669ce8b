/* Scores continuations of prompts: reads pairs of both from a file, makes a document with a mask of each, and
 * evaluates these documents as axonn recall does. */
#include "pairs.h"

#include "axonn/json.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { ERRORS_MOST = 20 }; /* errors that are listed */

typedef struct pair {
    json_t *object;
    size_t prompt, end; /* where, in the list of all ids, the prompt and the continuation end */
} pair;

/* The pairs of the file, and the tokens that they become. */
typedef struct pair_list {
    const pairs_args *a;
    const opened_model *m;
    bool bare;           /* no special tokens before texts */
    ax_encoder *encoder; /* NULL: the model has no tokenizer */
    pair *item;          /* [n] */
    size_t n;
    ax_ids ids;
    ax_buf errors;
    int64_t wrong;   /* number of errors */
    char place[512]; /* of the object that is read, for messages */
} pair_list;

static const char *const inputs[] = {"prompt", "prompt_tokens", "continuation", "continuation_tokens"};
static const char *const outputs[] = {"logprob", "tokens", "greedy"};

static void pairs_fini(pair_list *p)
{
    for (size_t i = 0; i < p->n; i++)
        json_decref(p->item[i].object);
    free(p->item);
    ax_ids_fini(&p->ids);
    ax_buf_fini(&p->errors);
    ax_encoder_destroy(&p->encoder);
    p->item = NULL;
    p->n = 0;
}

/* Records that the object at p->place is wrong. `rest` follows `what`. */
static ax_status complain(pair_list *p, const char *what, const char *rest)
{
    if (p->wrong++ >= ERRORS_MOST)
        return AX_OK;
    return ax_buf_printf(&p->errors, "%s%s: %s%s", p->errors.size ? "\n" : "", p->place, what, rest);
}

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
            return complain(p, key, " has an item that is not a token of the model's vocabulary");
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
                                       : complain(p, "prompt_tokens has no token", "");
    if (!p->bare) {
        const ax_ids *before = ax_tokenizer_before(p->m->model.tokenizer);
        AX_TRY(ax_ids_add(&p->ids, before->data, before->size));
    }
    AX_TRY(encode(p, json_string_value(text), continued ? bytes_of_prompt(text) : json_string_length(text)));
    if (p->ids.size > from)
        return AX_OK;
    return end >= 0 && end < p->m->model.config.vocab
               ? add_id(p, end)
               : complain(p, "prompt is empty, and the model has no end-of-text token to start from", "");
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
    return p->ids.size > from ? AX_OK : complain(p, "the continuation adds no token to the prompt", "");
}

/* Checks the members of the object, which become input[0 ... 3], NULL where there is none. */
static ax_status check_members(pair_list *p, const json_t *object, const json_t *input[4])
{
    for (int i = 0; i < 4; i += 2) {
        input[i] = json_object_get(object, inputs[i]);
        input[i + 1] = json_object_get(object, inputs[i + 1]);
        if (!input[i] == !input[i + 1])
            AX_TRY(complain(p, inputs[i],
                            i ? ": give a text, or ids as continuation_tokens, one of both"
                              : ": give a text, or ids as prompt_tokens, one of both"));
        else if (input[i] ? !json_is_string(input[i]) : !json_is_array(input[i + 1]))
            AX_TRY(
                complain(p, inputs[input[i] ? i : i + 1], input[i] ? " is no text" : " is no list of ids"));
        else if (input[i] && !p->encoder)
            AX_TRY(
                complain(p, inputs[i], " is text, and the model has no tokenizer: give --tokenizer, or ids"));
    }
    for (size_t i = 0; i < AX_COUNT(outputs); i++)
        if (json_object_get(object, outputs[i]))
            AX_TRY(complain(p, outputs[i], " is a member that the result adds: rename it"));
    return AX_OK;
}

/* Adds a pair. Takes the object. */
static ax_status add_pair(pair_list *p, json_t *object)
{
    const json_t *input[4];
    const int64_t wrong = p->wrong, most = ax_model_config_positions(&p->m->model.config) + 1;
    const size_t from = p->ids.size;
    ax_status status = ax_list_grow(&p->item, p->n, sizeof *p->item);
    if (status != AX_OK) {
        json_decref(object);
        return status;
    }
    pair *one = &p->item[p->n++];
    *one = (pair){.object = object};
    if (!json_is_object(object))
        return complain(p, "is no JSON object", "");
    AX_TRY(check_members(p, object, input));
    if (p->wrong > wrong)
        return AX_OK;
    AX_TRY(add_prompt(p, input[0], input[1], input[2]));
    one->prompt = p->ids.size;
    AX_TRY(add_continuation(p, input[0], input[2], input[3]));
    one->end = p->ids.size;
    if ((int64_t)(one->end - from) > most) {
        char text[128];
        snprintf(text, sizeof text, "%lld tokens, and the model reads at most %lld of a pair",
                 (long long)(one->end - from), (long long)most);
        AX_TRY(complain(p, "prompt and continuation have ", text));
    }
    return AX_OK;
}

/* ---- the file ------------------------------------------------------------------------------------ */

static ax_status read_array(pair_list *p, const char *text, size_t size)
{
    json_t *list, *object;
    size_t i;
    AX_TRY(ax_json_parse(p->a->path, text, size, 0, &list));
    ax_status status = AX_OK;
    json_array_foreach(list, i, object)
    {
        snprintf(p->place, sizeof p->place, "%s: pair %zu", p->a->path, i + 1);
        status = add_pair(p, json_incref(object));
        if (status != AX_OK)
            break;
    }
    json_decref(list);
    return status;
}

static ax_status read_line(pair_list *p, const char *line, size_t n)
{
    json_t *object;
    if (strspn(line, " \t\r") >= n)
        return AX_OK;
    const ax_status status = ax_json_parse(NULL, line, n, JSON_DECODE_ANY, &object);
    if (status == AX_ERR_DATA)
        return complain(p, ax_error_message(), "");
    AX_TRY(status);
    return add_pair(p, object);
}

static ax_status read_lines(pair_list *p, const char *text, size_t size)
{
    int64_t number = 1;
    for (const char *line = text, *end; line < text + size; line = end + 1, number++) {
        end = memchr(line, '\n', (size_t)(text + size - line));
        if (!end)
            end = text + size;
        snprintf(p->place, sizeof p->place, "%s:%lld", p->a->path, (long long)number);
        AX_TRY(read_line(p, line, (size_t)(end - line)));
    }
    return AX_OK;
}

/* Fails if anything is wrong with the pairs, with a line for each of the first errors. */
static ax_status check_pairs(pair_list *p)
{
    if (p->wrong > ERRORS_MOST)
        AX_TRY(ax_buf_printf(&p->errors, "\n%lld more errors", (long long)(p->wrong - ERRORS_MOST)));
    AX_CHECK(!p->wrong, AX_ERR_DATA, "%s", p->errors.data);
    AX_CHECK(p->n, AX_ERR_DATA,
             "%s has no pair: give a JSON object with prompt and continuation on each line", p->a->path);
    return AX_OK;
}

static ax_status read_pairs(pair_list *p)
{
    char *text;
    size_t size;
    AX_TRY(p->m->model.tokenizer ? ax_encoder_create(p->m->model.tokenizer, &p->encoder) : AX_OK);
    AX_TRY(ax_file_read(p->a->path, &text, &size));
    const size_t blank = strspn(text, " \t\r\n");
    ax_status status = text[blank] == '[' ? read_array(p, text, size) : read_lines(p, text, size);
    free(text);
    return status == AX_OK ? check_pairs(p) : status;
}

static ax_status write_documents(const pair_list *p, uint8_t *mask, ax_token_writer *writer)
{
    size_t from = 0;
    for (size_t i = 0; i < p->n; from = p->item[i++].end) {
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
static ax_status add_line(const pair *one, const ax_recall_sum *sum, ax_buf *out)
{
    for (size_t i = 0; i < AX_COUNT(inputs); i++)
        json_object_del(one->object, inputs[i]);
    const int failed = json_object_set_new(one->object, outputs[0], cli_json_number(-sum->loss)) |
                       json_object_set_new(one->object, outputs[1], json_integer(sum->tokens)) |
                       json_object_set_new(one->object, outputs[2], json_boolean(sum->recalled));
    AX_CHECK(!failed, AX_ERR_MEMORY, "not enough memory for the results");
    AX_TRY(ax_json_print(one->object, 0, out));
    return ax_buf_printf(out, "\n");
}

static ax_status print_totals(const pair_list *p, const ax_recall_sum *sum)
{
    const double loss = sum->loss / (double)sum->tokens;
    if (p->a->common->json)
        return cli_print_json(json_pack("{s:I, s:I, s:I, s:f, s:f}", "pairs", (json_int_t)p->n, "tokens",
                                        (json_int_t)sum->tokens, "greedy", (json_int_t)sum->recalled,
                                        "logprob", -sum->loss, "loss", loss));
    printf("pairs    %zu\ntokens   %lld\ngreedy   %lld\nlogprob  %.6f\nloss     %.6f\n", p->n,
           (long long)sum->tokens, (long long)sum->recalled, -sum->loss, loss);
    return AX_OK;
}

static ax_status write_results(const pair_list *p, const ax_recall *r)
{
    ax_buf lines = {0};
    const ax_recall_sum all = ax_recall_add_up(r, 0, r->documents);
    AX_ASSERT(r->documents == (int64_t)p->n);
    AX_TRY(model_check_loss(p->a->common, all.loss / (double)all.tokens));
    ax_status status = AX_OK;
    for (int64_t d = 0; d < r->documents && status == AX_OK; d++) {
        const ax_recall_sum sum = ax_recall_add_up(r, d, d + 1);
        status = add_line(&p->item[d], &sum, &lines);
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
