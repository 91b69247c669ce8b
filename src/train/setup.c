/* Start-up stages before anything is allocated: model configuration, tokenizer, data; and config.yaml. */
#include "config/private.h"
#include "train/train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ax_status ax_train_check_inputs(const ax_train_run *run)
{
    ax_option_set *set = run->config->set;
    const char *absent = ax_device_absent(run->config->device);
    if (absent)
        ax_option_error(set, "device", "\"%s\" cannot be used here: %s", run->config->device, absent);
    config_check_paths(run->config);
    ax_status status = ax_option_finish(set);
    return status == AX_ERR_USAGE && !absent ? ax_fail(AX_ERR_DATA, "%s", ax_error_message()) : status;
}

ax_status ax_train_write_config(const ax_train_run *run)
{
    ax_buf text = {0};
    char *path = NULL;
    ax_status status = ax_train_keep_runtime(run);
    if (status == AX_OK)
        status = ax_config_dump(run->config, &text);
    if (status == AX_OK)
        status = ax_path_join(run->config->run.dir, "config.yaml", &path);
    if (status == AX_OK)
        status = ax_file_write_atomic(path, text.data, text.size);
    free(path);
    ax_buf_fini(&text);
    return status;
}

/* ---- model and tokenizer ------------------------------------------------------------------------- */

static ax_status identify_base(ax_config *c, ax_train_inputs *inputs)
{
    if (inputs->model_weights)
        return ax_st_checksum(inputs->model_weights, inputs->base);
    ax_option_error(c->set, "model.from",
                    "%s holds no weights (*.safetensors), but tune.method: lora needs a model with weights: "
                    "copy them there",
                    inputs->model_dir);
    return AX_OK;
}

/* Moves directories and open weight files from *from to *inputs. The path of an adapter's base becomes
 * absolute: the run's adapters name it, and may be opened in another current directory. */
static void take_files(ax_pretrained *from, ax_train_inputs *inputs)
{
    char *whole = from->base ? realpath(from->base, NULL) : NULL;
    if (whole)
        free(from->base);
    from->base = whole ? whole : from->base;
    inputs->identity = from->identity;
    inputs->model_dir = from->base ? from->base : from->dir;
    inputs->adapter_dir = from->base ? from->dir : NULL;
    inputs->model_weights = from->weights;
    inputs->adapter_weights = from->adapter;
    from->dir = from->base = NULL;
    from->weights = from->adapter = NULL;
}

static ax_status open_pretrained(ax_comm *world, ax_config *c, ax_train_inputs *inputs)
{
    ax_pretrained from;
    /* All ranks open the checkpoint that rank 0 finds: if another run still trains in this directory, it may
     * write a newer checkpoint meanwhile. */
    AX_TRY(ax_pretrained_open_shared(world, c->model.from, &from));
    ax_status status = ax_model_config_copy(&from.config, &inputs->model);
    if (status == AX_OK)
        config_merge_model(c, &inputs->model, from.base ? &from.description : NULL);
    take_files(&from, inputs);
    if (status == AX_OK && c->data.tokenizer)
        status = ax_tokenizer_load(c->data.tokenizer, &inputs->tokenizer);
    if (status == AX_OK && c->data.tokenizer)
        inputs->other_tokenizer =
            from.tokenizer && ax_tokenizer_hash(from.tokenizer) != ax_tokenizer_hash(inputs->tokenizer);
    if (status == AX_OK && !c->data.tokenizer) {
        inputs->tokenizer = from.tokenizer;
        from.tokenizer = NULL;
    }
    ax_pretrained_close(&from);
    AX_TRY(status);
    return c->tune.method == AX_CONFIG_LORA && ax_option_ok(c->set, "model.from") ? identify_base(c, inputs)
                                                                                  : AX_OK;
}

static ax_status new_model(const ax_comm *world, ax_config *c, ax_train_inputs *inputs)
{
    const ax_family *family;
    inputs->identity = (ax_model_identity){-1, -1, AX_F32};
    if (c->model.config) {
        AX_TRY(config_read_model(c, &inputs->model));
        return ax_comm_rank(world) == 0 ? ax_model_config_warn(&inputs->model, c->model.config) : AX_OK;
    }
    AX_TRY(ax_family_find(c->model.family, &family));
    AX_TRY(config_new_model(c, family, &inputs->model));
    return ax_model_config_check(&inputs->model);
}

ax_status ax_train_open_model(const ax_train_run *run, ax_train_inputs *inputs)
{
    ax_config *c = run->config;
    AX_TRY(c->model.from ? open_pretrained(run->world, c, inputs) : new_model(run->world, c, inputs));
    if (c->data.tokenizer && !inputs->tokenizer)
        AX_TRY(ax_tokenizer_load(c->data.tokenizer, &inputs->tokenizer));
    if (inputs->tokenizer)
        config_check_tokenizer(c, ax_tokenizer_vocab_size(inputs->tokenizer));
    config_check_template(c, inputs->tokenizer);
    if (!ax_config_given(c, "model.family")) {
        config_check_pipe(c, inputs->model.layers);
        config_check_goldfish(c);
        config_check_recall(c);
    }
    AX_TRY(ax_option_finish(c->set));
    AX_TRY(ax_train_open_masks(run, inputs));
    if (!inputs->tokenizer)
        return AX_OK;
    AX_TRY(ax_chat_create(inputs->tokenizer, c->data.chat_template, &inputs->chat));
    int32_t eos = ax_tokenizer_eos(inputs->tokenizer);
    if (eos >= 0)
        inputs->identity.eos = eos;
    if (inputs->identity.bos < 0)
        inputs->identity.bos = inputs->identity.eos;
    return AX_OK;
}

/* ---- data ---------------------------------------------------------------------------------------- */

static void close_sources(ax_sources *sources)
{
    for (int i = 0; i < sources->n; i++)
        ax_data_close(&sources->data[i]);
    free(sources->data);
    free(sources->path);
    free(sources->weight);
    free(sources->epochs);
    *sources = (ax_sources){0};
}

typedef struct tokenizing {
    const ax_train_run *run;
    const char *path;
    double said, beaten; /* said: ax_data_progress.seconds at the last log line; beaten:
                            ax_data_progress.seconds at the last call of ax_train_beat */
    ax_status status;    /* what the last call of ax_train_beat returned */
    int *signal;         /* signal that the last call of ax_train_beat returned, or 0 */
} tokenizing;

static bool report_progress(void *user, const ax_data_progress *p)
{
    tokenizing *t = user;
    bool done = false;
    if (p->seconds - t->beaten >= 1) {
        t->beaten = p->seconds;
        t->status = ax_train_beat(t->run, &done, t->signal);
    }
    if (p->seconds - t->said >= 5) {
        t->said = p->seconds;
        ax_log(AX_LOG_INFO, "tokenizing %s: %.0f %% of %.1f MB", t->path,
               p->bytes_total ? 100.0 * (double)p->bytes_done / (double)p->bytes_total : 0.0,
               (double)p->bytes_total / 1e6);
    }
    return t->status == AX_OK && !*t->signal && !ax_signal_pending();
}

/* Tokenizes the source `path` on rank 0 if it is text, while the other ranks wait. Sets *tokens, on all
 * ranks, to the path of the token file. */
static ax_status prepare_source(const ax_train_run *run, const char *path, char **tokens, int *signal)
{
    bool done = false;
    ax_status status = AX_OK;
    *tokens = NULL;
    if (ax_train_first(run)) {
        char *cache = NULL;
        tokenizing state = {.run = run, .path = path, .signal = signal};
        status = ax_path_join(run->config->run.dir, "data", &cache);
        if (status == AX_OK)
            status = ax_data_prepare(path,
                                     &(ax_data_build_options){
                                         .corpus = {.text_key = run->config->data.text_key,
                                                    .chat = run->inputs.chat,
                                                    .ignore = run->config->data.ignore,
                                                    .bad_lines = run->config->data.bad_lines},
                                         .tokenizer = run->inputs.tokenizer,
                                         .bare = !run->config->data.bos,
                                         .progress = report_progress,
                                         .user = &state,
                                     },
                                     cache, tokens);
        free(cache);
        done = true;
    }
    do {
        ax_status told = ax_train_beat(run, &done, signal);
        status = status == AX_OK ? told : status;
    } while (!done && status == AX_OK);
    AX_TRY(ax_comm_agree(run->world, status));
    return ax_comm_share_text(run->world, 0, tokens);
}

/* Checks that the vocabulary of a data source is not larger than the model's, and that the tokenizer of the
 * run made its tokens. For a new model the message suggests a larger model.vocab. */
static ax_status expect_source(const ax_train_run *run, ax_data *data)
{
    int64_t vocab = ax_data_describe(data)->vocab;
    AX_CHECK(
        run->config->model.from || vocab <= run->inputs.model.vocab, AX_ERR_DATA,
        "%s has a vocabulary of %lld tokens, the model one of %lld: set model.vocab to at least %lld, or "
        "build the file with the model's tokenizer",
        ax_data_path(data), (long long)vocab, (long long)run->inputs.model.vocab, (long long)vocab);
    const ax_tokenizer *tokenizer = run->inputs.tokenizer;
    return ax_data_expect(data, &(ax_data_reader){run->inputs.model.vocab,
                                                  tokenizer ? ax_tokenizer_hash(tokenizer) : 0, tokenizer,
                                                  .other = !ax_train_first(run)});
}

static ax_status open_source(const ax_train_run *run, const char *path, ax_data **out, int *signal)
{
    char *tokens;
    AX_TRY(prepare_source(run, path, &tokens, signal));
    int64_t eos = run->inputs.tokenizer ? ax_tokenizer_eos(run->inputs.tokenizer) : -1;
    ax_status status = ax_data_open(tokens, eos, out);
    if (status == AX_OK)
        status = ax_data_set_path(*out, path);
    if (status == AX_OK)
        status = expect_source(run, *out);
    if (status == AX_OK && run->inputs.tokenizer)
        status =
            ax_data_expect_begin(*out, run->inputs.tokenizer, run->config->data.bos && ax_train_first(run));
    free(tokens);
    return ax_comm_agree(run->world, status);
}

static ax_status open_sources(const ax_train_run *run, const ax_paths *paths, ax_sources *out, int *signal)
{
    AX_TRY(ax_calloc(paths->count, sizeof *out->data, &out->data));
    AX_TRY(ax_calloc(paths->count, sizeof *out->path, &out->path));
    AX_TRY(ax_calloc(paths->count, sizeof *out->weight, &out->weight));
    AX_TRY(ax_calloc(paths->count, sizeof *out->epochs, &out->epochs));
    for (size_t i = 0; i < paths->count; i++)
        out->weighted = out->weighted || paths->items[i].weight > 0;
    for (size_t i = 0; i < paths->count; i++) {
        double given = paths->items[i].weight;
        out->epochs[i] = paths->items[i].epochs;
        out->weight[i] = out->weighted && given <= 0 && !out->epochs[i] ? 1 : given;
        out->path[i] = paths->items[i].path;
        out->n++;
        AX_TRY(open_source(run, paths->items[i].path, &out->data[i], signal));
    }
    return AX_OK;
}

static bool is_masked(const ax_data *data) { return ax_data_describe(data)->targets >= 0; }

/* Records an error, if data.loss is answers, for each data source without a mask: only a mask says which
 * tokens are answers. */
static void check_masks(const ax_train_run *run, const char *key, const ax_sources *sources)
{
    ax_option_set *set = run->config->set;
    for (int i = 0; i < sources->n && run->config->data.loss == AX_CONFIG_ANSWERS; i++)
        if (!is_masked(sources->data[i]))
            ax_option_error(set, "data.loss",
                            "%s of %s has no mask that marks the answers: build it from conversations, or "
                            "set data.loss to auto or all",
                            sources->path[i], key);
}

/* Records an error for each token file whose conversations were written by another template than
 * data.template. Token files name a template that a tokenizer brings by its texts, not by its name. */
static void check_templates(const ax_train_run *run, const char *key, const ax_sources *sources)
{
    const char *wanted = run->config->data.chat_template;
    for (int i = 0; i < sources->n && wanted; i++) {
        const char *name = ax_data_describe(sources->data[i])->chat_template;
        if (*name && strcmp(name, ax_chat_name(run->inputs.chat)))
            ax_option_error(run->config->set, "data.template",
                            "%s of %s was built with template %s: build it again with --template %s, or set "
                            "data.template to %s",
                            sources->path[i], key, name, wanted, name);
    }
}

/* Logs, for each source with a mask, which of its tokens are targets. */
static void log_targets(const ax_train_run *run, const ax_sources *sources)
{
    for (int i = 0; i < sources->n; i++) {
        const ax_data_info *info = ax_data_describe(sources->data[i]);
        double share = run->inputs.shape.answers ? (double)info->targets / (double)info->tokens : 1;
        if (is_masked(sources->data[i]))
            ax_log(AX_LOG_INFO, "%s: the loss is on %s, %.1f %% of its %lld tokens", sources->path[i],
                   run->inputs.shape.answers ? "answers" : "all tokens (data.loss: all)", 100 * share,
                   (long long)info->tokens);
    }
}

/* Records an error of `key` for each source that cannot be cut into rows of this shape. */
static void check_sources(const ax_train_run *run, const char *key, const ax_sources *sources,
                          const ax_row_shape *shape)
{
    for (int i = 0; i < sources->n; i++)
        if (ax_data_check_shape(sources->data[i], shape) != AX_OK)
            ax_option_error(run->config->set, key, "%s", ax_error_message());
}

/* Returns a word for a number of documents of a source: those with a mask are conversations. */
static const char *documents(const ax_data *data, int64_t n)
{
    static const char *const words[2][2] = {{"documents", "document"}, {"conversations", "conversation"}};
    return words[is_masked(data)][n == 1];
}

/* Logs what became of the documents that are longer than a row. */
static void log_long(const char *path, const ax_data *data, const ax_data_packed *p, ax_data_long longer)
{
    const int64_t n = p->cut + p->dropped + p->targetless, pieces = p->pieces - p->documents + p->cut;
    const char *what = documents(data, n), *are = n == 1 ? "is" : "are";
    if (n && longer == AX_LONG_SPLIT)
        ax_log(AX_LOG_INFO, "%s: %lld %s %s longer than a row and became %lld pieces", path, (long long)n,
               what, are, (long long)pieces);
    else if (n)
        ax_log(AX_LOG_INFO, "%s: %lld %s %s longer than a row%s: %lld tokens are not read (data.long: %s)",
               path, (long long)n, what, are, longer == AX_LONG_DROP ? " and left out" : "",
               (long long)p->lost, longer == AX_LONG_DROP ? "drop" : "truncate");
    if (p->targetless)
        ax_log(AX_LOG_WARN,
               "%s: %lld %s without a target after cutting (data.long: truncate) %s left out: raise "
               "model.seq_len, or set data.long: split",
               path, (long long)p->targetless, documents(data, p->targetless),
               p->targetless == 1 ? "is" : "are");
}

static void log_packed(const char *path, const ax_data *data, const ax_row_shape *shape,
                       const ax_data_packed *p)
{
    ax_log(AX_LOG_INFO, "%s: %lld %s %s packed into %lld row%s of %lld tokens, %.1f %% of which are used",
           path, (long long)p->documents, documents(data, p->documents), p->documents == 1 ? "is" : "are",
           (long long)p->rows, p->rows == 1 ? "" : "s", (long long)shape->seq_len,
           100 * (double)p->positions / (double)ax_max(p->rows * shape->seq_len, 1));
    log_long(path, data, p, shape->longer);
    if (p->left_out)
        ax_log(AX_LOG_INFO, "%s: %lld document%s of one token, which has no target, and left out", path,
               (long long)p->left_out, p->left_out == 1 ? " is" : "s are");
}

/* Logs how many conversations of a source lie in more than one row of consecutive tokens. */
static ax_status log_cut(const char *path, const ax_data *data, const ax_row_shape *shape)
{
    int64_t cut;
    AX_TRY(ax_data_count_cut(data, shape->seq_len, &cut));
    if (cut)
        ax_log(
            AX_LOG_INFO,
            "%s: %lld of %lld conversations are cut between rows of consecutive tokens (data.pack: stream); "
            "data.pack: documents keeps them whole",
            path, (long long)cut, (long long)ax_data_describe(data)->documents);
    return AX_OK;
}

/* Packs the documents of the sources that are packed, and logs where conversations are cut. */
static ax_status pack_sources(const ax_train_run *run, const ax_sources *sources, const ax_row_shape *shape)
{
    for (int i = 0; i < sources->n; i++) {
        ax_data *data = sources->data[i];
        ax_data_packed p;
        bool packed = ax_data_is_packed(data, shape);
        if (packed)
            AX_TRY(ax_data_pack(data, shape, &p));
        if (packed && ax_train_first(run))
            log_packed(sources->path[i], data, shape, &p);
        else if (is_masked(data) && ax_train_first(run))
            AX_TRY(log_cut(sources->path[i], data, shape));
    }
    return AX_OK;
}

/* Records an error of data.long if the user gave it, but no source of data.train is packed. */
static void check_long(const ax_train_run *run, const ax_sources *train, const ax_row_shape *trained)
{
    bool packed = false;
    for (int i = 0; i < train->n; i++)
        packed |= ax_data_is_packed(train->data[i], trained);
    if (trained->longer != AX_LONG_SPLIT && !packed)
        ax_option_error(
            run->config->set, "data.long",
            "has an effect only where a sample holds whole documents: set data.pack: documents, or "
            "leave this key out");
}

/* Checks that all sources can be cut into rows, and reports all errors of keys that depend on the data
 * together. Then packs the documents of the sources that data.pack says. */
static ax_status cut_sources(const ax_train_run *run, const ax_train_inputs *inputs,
                             const ax_row_shape *trained)
{
    check_sources(run, "data.train", &inputs->train, trained);
    check_sources(run, "data.valid", &inputs->valid, &inputs->shape);
    check_long(run, &inputs->train, trained);
    AX_TRY(ax_option_finish(run->config->set));
    AX_TRY(pack_sources(run, &inputs->train, trained));
    return pack_sources(run, &inputs->valid, &inputs->shape);
}

static void log_left_out(const ax_sources *sources, const int64_t *left_out)
{
    for (int i = 0; i < sources->n; i++)
        if (left_out[i])
            ax_log(AX_LOG_WARN,
                   "%s: %lld of %lld documents of run.recall.data %s too short for prompt and target, and "
                   "left out",
                   sources->path[i], (long long)left_out[i],
                   (long long)ax_data_describe(sources->data[i])->documents, left_out[i] == 1 ? "is" : "are");
}

/* Packs the documents of run.recall.data, whose last tokens are targets. */
static ax_status pack_recall(const ax_train_run *run, ax_train_inputs *inputs)
{
    const ax_sources *sources = &inputs->recall;
    const ax_excerpt excerpt = {.target = run->config->run.recall.tokens};
    int64_t *left_out;
    if (!sources->n)
        return AX_OK;
    inputs->recall_shape =
        (ax_row_shape){.seq_len = inputs->shape.seq_len, .mask_documents = inputs->shape.mask_documents};
    AX_TRY(ax_calloc((size_t)sources->n, sizeof *left_out, &left_out));
    ax_status status =
        ax_recall_pack(sources->data, sources->n, &excerpt, ax_model_config_positions(&inputs->model),
                       &inputs->recall_shape, left_out);
    if (status == AX_OK && ax_train_first(run))
        log_left_out(sources, left_out);
    free(left_out);
    return status;
}

/* Chooses the length of rows by data.train, if it is not known. */
static ax_status choose_length(const ax_train_run *run, ax_train_inputs *inputs)
{
    ax_config *c = run->config;
    char text[AX_ROW_LENGTH_TEXT];
    ax_row_length length;
    if (c->model.seq_len)
        return AX_OK;
    AX_TRY(ax_data_choose_length(inputs->train.data, inputs->train.n, &inputs->shape,
                                 ax_model_config_positions(&inputs->model), &length));
    c->model.seq_len = inputs->shape.seq_len = length.seq_len;
    config_check_goldfish(c);
    config_check_recall(c);
    ax_row_length_print(&length, "model.seq_len", text);
    if (ax_train_first(run))
        ax_log(AX_LOG_INFO, "data.train: %s", text);
    return AX_OK;
}

ax_status ax_train_open_data(const ax_train_run *run, ax_train_inputs *inputs, int *signal)
{
    const ax_config *c = run->config;
    ax_sources *train = &inputs->train, *valid = &inputs->valid;
    AX_TRY(open_sources(run, &c->data.train, train, signal));
    AX_TRY(open_sources(run, &c->data.valid, valid, signal));
    AX_TRY(open_sources(run, &c->run.recall.data, &inputs->recall, signal));
    AX_TRY(ax_train_set_shape(run, inputs));
    AX_TRY(choose_length(run, inputs));
    const ax_row_shape trained = ax_train_trained_shape(run);
    check_masks(run, "data.train", train);
    check_masks(run, "data.valid", valid);
    check_templates(run, "data.train", train);
    check_templates(run, "data.valid", valid);
    check_templates(run, "run.recall.data", &inputs->recall);
    AX_TRY(cut_sources(run, inputs, &trained));
    AX_TRY(pack_recall(run, inputs));
    log_targets(run, train);
    log_targets(run, valid);
    /* Checked here rather than at the first evaluation, so that the error comes early. */
    for (int i = 0; i < valid->n; i++)
        AX_CHECK(ax_data_rows(valid->data[i], &inputs->shape), AX_ERR_DATA,
                 "%s holds nothing to evaluate on: it has %s; leave it out of data.valid",
                 ax_data_path(valid->data[i]),
                 ax_data_is_packed(valid->data[i], &inputs->shape) ? "no document of two tokens or more"
                                                                   : "fewer than two tokens");
    return AX_OK;
}

/* ---- closing ------------------------------------------------------------------------------------- */

void ax_inputs_close_weights(ax_train_inputs *inputs)
{
    ax_st_close(&inputs->model_weights);
    ax_st_close(&inputs->adapter_weights);
}

void ax_inputs_fini(ax_train_inputs *inputs)
{
    close_sources(&inputs->train);
    close_sources(&inputs->valid);
    close_sources(&inputs->recall);
    ax_model_config_fini(&inputs->model);
    ax_chat_destroy(&inputs->chat);
    ax_tokenizer_destroy(&inputs->tokenizer);
    free(inputs->model_dir);
    free(inputs->adapter_dir);
    ax_inputs_close_weights(inputs);
    ax_masks_destroy(&inputs->masks);
}
