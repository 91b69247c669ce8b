/* Continues the prompts of a file: the order of what is read, checked, generated and written. */
#include "prompts.h"

#include "axonn/json.h"

#include <string.h>

/* A run and its counts, for all ranks; file and progress are rank 0's. */
typedef struct running {
    const opened_model *m;
    const prompt_run *run;
    prompt_list prompts;
    text_file file;
    cli_progress progress;
    int64_t texts, tokens; /* of this call */
} running;

static json_t *list_of_stops(const ax_text_options *o)
{
    json_t *list = json_array();
    for (size_t i = 0; i < o->stops; i++)
        json_array_append_new(list, json_integer(o->stop[i]));
    return list;
}

static json_t *list_of_ends(const ax_pretrained *model)
{
    json_t *list = json_array();
    for (size_t i = 0; i < model->ends.size; i++)
        json_array_append_new(list, json_integer(model->ends.data[i]));
    return list;
}

static json_t *list_of_strings(const ax_strings *strings)
{
    json_t *list = json_array();
    for (size_t i = 0; i < strings->count; i++)
        json_array_append_new(list, json_string(strings->items[i]));
    return list;
}

/* Describes which keys the model reads (ax_pretrained_read_keys). */
static ax_status describe_keys(const ax_pretrained *model, json_t **out)
{
    char basis[17] = "";
    const ax_loki *l = model->loki;
    if (model->turns)
        AX_TRY(ax_st_checksum(model->turns, basis));
    *out = json_pack("{s:I, s:f, s:I, s:b, s:s}", "count", (json_int_t)l->keys, "part", l->share, "dims",
                     (json_int_t)l->dims, "group", l->group, "basis", basis);
    return AX_OK;
}

/* Makes the first line of the file of texts: all that decides them, but for rounding the number of ranks. */
static ax_status describe(const running *r, json_t **out)
{
    char weights[17] = "", adapter[17] = "", prompts[17];
    const ax_text_options *o = r->run->options;
    const ax_pretrained *model = &r->m->model;
    const ax_chat *template = r->run->source.template;
    AX_TRY(ax_st_checksum(model->weights, weights));
    if (model->adapter)
        AX_TRY(ax_st_checksum(model->adapter, adapter));
    prompts_hash(&r->prompts, prompts);
    json_t *keys = NULL;
    if (model->loki)
        AX_TRY(describe_keys(model, &keys));
    *out = json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:I, s:f, s:I, s:f, s:f, s:f, s:o, s:o, s:o, s:b, s:b, s:s, s:s, s:s}",
        "weights", weights, "adapter", adapter, "prompts", prompts, "seed", (json_int_t)o->seed, "samples",
        (json_int_t)r->run->source.samples, "max_tokens", (json_int_t)o->max_tokens, "temperature",
        o->how.temperature, "top_k", (json_int_t)o->how.top_k, "top_p", o->how.top_p, "min_p", o->how.min_p,
        "repetition_penalty", o->how.repetition_penalty, "stop", list_of_stops(o), "ends",
        list_of_ends(model), "until", list_of_strings(o->until), "braces", o->braces, "ignore_end",
        o->ignore_end, "template", template ? ax_chat_name(template) : "", "precision",
        r->run->common->precision, "device", r->run->common->device);
    json_object_set_new(*out, "keys", keys ? keys : json_null());
    return AX_OK;
}

/* Reads the prompts and the texts that are there. */
static ax_status prepare(running *r)
{
    json_t *settings;
    AX_TRY(prompts_read(&r->run->source, &r->prompts));
    AX_TRY(describe(r, &settings));
    return text_file_open(r->run->out, settings, &r->prompts, &r->file);
}

static ax_status take(void *user, const ax_continued *one)
{
    running *r = user;
    r->texts++;
    r->tokens += (int64_t)one->n;
    if (!r->m->first)
        return AX_OK;
    cli_progress_update(&r->progress, r->prompts.texts_done + r->texts, r->prompts.texts_wanted);
    return text_file_add(&r->file, one, r->m->model.tokenizer != NULL);
}

static ax_status report(const running *r, double seconds)
{
    const double rate = seconds > 0 ? (double)r->tokens / seconds : 0;
    char line[256];
    if (r->run->common->json)
        return cli_print_json(json_pack(
            "{s:I, s:I, s:I, s:f, s:f}", "texts", (json_int_t)r->texts, "tokens", (json_int_t)r->tokens,
            "already_there", (json_int_t)r->prompts.texts_done, "seconds", seconds, "tokens_per_s", rate));
    int n = snprintf(line, sizeof line, "%lld texts, %lld tokens in %.1f s (%.0f tokens/s)",
                     (long long)r->texts, (long long)r->tokens, seconds, rate);
    if (r->prompts.texts_done)
        n += snprintf(line + n, sizeof line - (size_t)n, "; %lld texts were there already",
                      (long long)r->prompts.texts_done);
    n += snprintf(line + n, sizeof line - (size_t)n, "\n");
    return cli_print(line, (size_t)n);
}

static ax_status finish(running *r, double seconds)
{
    AX_TRY(text_file_end(&r->file));
    return report(r, seconds);
}

ax_status prompts_run(const opened_model *opened, const prompt_run *run)
{
    running r = {.m = opened, .run = run};
    ax_status status = ax_comm_agree(opened->world, opened->first ? prepare(&r) : AX_OK);
    if (status == AX_OK)
        status = ax_comm_agree(opened->world, prompts_share(opened->world, run->source.template, &r.prompts));
    const double start = ax_now();
    cli_progress_start(&r.progress, "generating", false);
    if (status == AX_OK)
        status = ax_prompts_continue(opened->ctx, &opened->model, run->options, r.prompts.prompt, r.prompts.n,
                                     run->batch, take, &r);
    cli_progress_end(&r.progress);
    if (status == AX_OK)
        status = ax_comm_agree(opened->world, opened->first ? finish(&r, ax_now() - start) : AX_OK);
    text_file_close(&r.file);
    prompts_fini(&r.prompts);
    return status;
}
