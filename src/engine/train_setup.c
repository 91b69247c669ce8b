/* Start-up stages before anything is allocated: model configuration, tokenizer, data; and config.yaml. */
#include "engine/config_private.h"
#include "engine/train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ax_status ax_run_check_inputs(const ax_run *run)
{
    ax_option_set *set = run->config->set;
    const char *absent = ax_device_absent(run->config->device);
    if (absent)
        ax_option_error(set, "device", "\"%s\" cannot be used here: %s", run->config->device, absent);
    config_check_paths(run->config);
    ax_status status = ax_option_finish(set);
    return status == AX_ERR_USAGE && !absent ? ax_fail(AX_ERR_DATA, "%s", ax_error_message()) : status;
}

ax_status ax_run_write_config(const ax_run *run)
{
    ax_buf text = {0};
    char *path = NULL;
    ax_status status = ax_run_keep_runtime(run);
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

static ax_status identify_base(ax_config *c, ax_run_inputs *inputs)
{
    if (inputs->model_weights)
        return ax_st_checksum(inputs->model_weights, inputs->base);
    ax_option_error(c->set, "model.from",
                    "%s holds no weights (*.safetensors), but tune.method: lora needs a model with weights: "
                    "copy them there",
                    inputs->model_dir);
    return AX_OK;
}

static ax_status open_pretrained(ax_comm *world, ax_config *c, ax_run_inputs *inputs)
{
    ax_pretrained from;
    /* All ranks open the checkpoint that rank 0 finds: if another run still trains in this directory, it may
     * write a newer checkpoint meanwhile. */
    AX_TRY(ax_pretrained_open_shared(world, c->model.from, &from));
    ax_status status = ax_model_config_copy(&from.config, &inputs->model);
    if (from.base)
        config_refuse_adapter(c, from.dir);
    inputs->identity = from.identity;
    inputs->model_dir = from.dir;
    inputs->model_weights = from.weights;
    from.dir = NULL;
    from.weights = NULL;
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
    if (!ax_option_ok(c->set, "model.from"))
        return AX_OK;
    config_merge_model(c, &inputs->model);
    return c->tune.method == AX_CONFIG_LORA ? identify_base(c, inputs) : AX_OK;
}

static ax_status new_model(ax_config *c, ax_run_inputs *inputs)
{
    const ax_family *family;
    inputs->identity = (ax_model_identity){-1, -1, AX_F32};
    if (c->model.config)
        return config_read_model(c, &inputs->model);
    AX_TRY(ax_family_find(c->model.family, &family));
    inputs->model = config_new_model(c, family);
    return ax_model_config_check(&inputs->model);
}

ax_status ax_run_open_model(const ax_run *run, ax_run_inputs *inputs)
{
    ax_config *c = run->config;
    AX_TRY(c->model.from ? open_pretrained(run->world, c, inputs) : new_model(c, inputs));
    if (c->data.tokenizer && !inputs->tokenizer)
        AX_TRY(ax_tokenizer_load(c->data.tokenizer, &inputs->tokenizer));
    if (inputs->tokenizer)
        config_check_tokenizer(c, ax_tokenizer_vocab_size(inputs->tokenizer));
    config_check_template(c, inputs->tokenizer);
    if (!ax_config_given(c, "model.family")) {
        config_check_pipe(c, inputs->model.layers);
        config_check_goldfish(c);
    }
    AX_TRY(ax_option_finish(c->set));
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
    const ax_run *run;
    const char *path;
    double said, beaten; /* said: ax_data_progress.seconds at the last log line; beaten:
                            ax_data_progress.seconds at the last call of ax_run_beat */
    ax_status status;    /* what the last call of ax_run_beat returned */
    int *signal;         /* signal that the last call of ax_run_beat returned, or 0 */
} tokenizing;

static bool report_progress(void *user, const ax_data_progress *p)
{
    tokenizing *t = user;
    bool done = false;
    if (p->seconds - t->beaten >= 1) {
        t->beaten = p->seconds;
        t->status = ax_run_beat(t->run, &done, t->signal);
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
static ax_status prepare_source(const ax_run *run, const char *path, char **tokens, int *signal)
{
    bool done = false;
    ax_status status = AX_OK;
    *tokens = NULL;
    if (ax_run_first(run)) {
        char *cache = NULL;
        tokenizing state = {.run = run, .path = path, .signal = signal};
        status = ax_path_join(run->config->run.dir, "data", &cache);
        if (status == AX_OK)
            status = ax_data_prepare(path,
                                     &(ax_data_build_options){
                                         .corpus = {.text_key = run->config->data.text_key,
                                                    .chat = run->inputs.chat,
                                                    .bad_lines = run->config->data.bad_lines},
                                         .tokenizer = run->inputs.tokenizer,
                                         .progress = report_progress,
                                         .user = &state,
                                     },
                                     cache, tokens);
        free(cache);
        done = true;
    }
    do {
        ax_status told = ax_run_beat(run, &done, signal);
        status = status == AX_OK ? told : status;
    } while (!done && status == AX_OK);
    AX_TRY(ax_comm_agree(run->world, status));
    return ax_comm_share_text(run->world, 0, tokens);
}

/* Checks that the vocabulary of a data source is not larger than the model's, and that the tokenizer of the
 * run made its tokens. For a new model the message suggests a larger model.vocab. */
static ax_status expect_source(const ax_run *run, ax_data *data)
{
    int64_t vocab = ax_data_describe(data)->vocab;
    AX_CHECK(
        run->config->model.from || vocab <= run->inputs.model.vocab, AX_ERR_DATA,
        "%s has a vocabulary of %lld tokens, the model one of %lld: set model.vocab to at least %lld, or "
        "build the file with the model's tokenizer",
        ax_data_path(data), (long long)vocab, (long long)run->inputs.model.vocab, (long long)vocab);
    return ax_data_expect(data, run->inputs.model.vocab,
                          run->inputs.tokenizer ? ax_tokenizer_hash(run->inputs.tokenizer) : 0);
}

static ax_status open_source(const ax_run *run, const char *path, ax_data **out, int *signal)
{
    char *tokens;
    AX_TRY(prepare_source(run, path, &tokens, signal));
    int64_t eos = run->inputs.tokenizer ? ax_tokenizer_eos(run->inputs.tokenizer) : -1;
    ax_status status = ax_data_open(tokens, eos, out);
    if (status == AX_OK)
        status = expect_source(run, *out);
    free(tokens);
    return ax_comm_agree(run->world, status);
}

static ax_status open_sources(const ax_run *run, const ax_paths *paths, ax_sources *out, int *signal)
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
static void check_masks(const ax_run *run, const char *key, const ax_sources *sources)
{
    ax_option_set *set = run->config->set;
    for (int i = 0; i < sources->n && run->config->data.loss == AX_CONFIG_ANSWERS; i++)
        if (!is_masked(sources->data[i]))
            ax_option_error(set, "data.loss",
                            "%s of %s has no mask that marks the answers: build it from conversations, or "
                            "set data.loss to auto or "
                            "all",
                            sources->path[i], key);
}

/* Records an error for each token file whose conversations were written by another template than
 * data.template. */
static void check_templates(const ax_run *run, const char *key, const ax_sources *sources)
{
    const char *wanted = run->config->data.chat_template;
    for (int i = 0; i < sources->n && wanted; i++) {
        const char *name = ax_data_describe(sources->data[i])->chat_template;
        if (*name && strcmp(name, wanted))
            ax_option_error(run->config->set, "data.template",
                            "%s of %s was built with template %s: build it again with --template %s, or set "
                            "data.template to %s",
                            sources->path[i], key, name, wanted, name);
    }
}

/* Logs, for each source with a mask, which of its tokens are targets. */
static void log_targets(const ax_run *run, const ax_sources *sources)
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
static void check_sources(const ax_run *run, const char *key, const ax_sources *sources,
                          const ax_row_shape *shape)
{
    for (int i = 0; i < sources->n; i++)
        if (ax_data_check_shape(sources->data[i], shape) != AX_OK)
            ax_option_error(run->config->set, key, "%s", ax_error_message());
}

static ax_status pack_sources(const ax_run *run, const ax_sources *sources, const ax_row_shape *shape)
{
    for (int i = 0; i < sources->n; i++) {
        ax_data_packed p;
        AX_TRY(ax_data_pack(sources->data[i], shape, &p));
        int64_t pieces = p.pieces - p.documents + p.cut;
        if (!ax_run_first(run))
            continue;
        ax_log(AX_LOG_INFO,
               "%s: %lld document%s packed into %lld row%s of %lld tokens, %.1f %% of which are used",
               sources->path[i], (long long)p.documents, p.documents == 1 ? " is" : "s are",
               (long long)p.rows, p.rows == 1 ? "" : "s", (long long)shape->seq_len,
               100 * (double)p.positions / (double)ax_max(p.rows * shape->seq_len, 1));
        if (p.cut)
            ax_log(AX_LOG_INFO, "%s: %lld document%s longer than a row and became %lld pieces",
                   sources->path[i], (long long)p.cut, p.cut == 1 ? " is" : "s are", (long long)pieces);
        if (p.left_out)
            ax_log(AX_LOG_INFO, "%s: %lld document%s of one token, which has no target, and left out",
                   sources->path[i], (long long)p.left_out, p.left_out == 1 ? " is" : "s are");
    }
    return AX_OK;
}

/* Checks that all sources can be cut into rows, and reports all errors of keys that depend on the data
 * together. Then packs the documents if data.pack is documents. */
static ax_status cut_sources(const ax_run *run, const ax_run_inputs *inputs, const ax_row_shape *trained)
{
    check_sources(run, "data.train", &inputs->train, trained);
    check_sources(run, "data.valid", &inputs->valid, &inputs->shape);
    AX_TRY(ax_option_finish(run->config->set));
    if (trained->pack != AX_PACK_DOCUMENTS)
        return AX_OK;
    AX_TRY(pack_sources(run, &inputs->train, trained));
    return pack_sources(run, &inputs->valid, &inputs->shape);
}

static ax_row_shape trained_shape(const ax_run *run, const ax_run_inputs *inputs)
{
    const ax_config *c = run->config;
    ax_row_shape shape = inputs->shape;
    shape.goldfish = (ax_goldfish){.k = c->data.goldfish.k,
                                   .window = c->data.goldfish.window,
                                   .kind = (ax_goldfish_kind)c->data.goldfish.kind};
    return shape;
}

ax_status ax_run_open_data(const ax_run *run, ax_run_inputs *inputs, int *signal)
{
    const ax_config *c = run->config;
    ax_sources *train = &inputs->train, *valid = &inputs->valid;
    inputs->shape = (ax_row_shape){.seq_len = c->model.seq_len,
                                   .mask_documents = c->data.mask_documents,
                                   .answers = c->data.loss != AX_CONFIG_ALL,
                                   .pack = (ax_data_packing)c->data.pack};
    const ax_row_shape trained = trained_shape(run, inputs);
    AX_TRY(open_sources(run, &c->data.train, train, signal));
    AX_TRY(open_sources(run, &c->data.valid, valid, signal));
    check_masks(run, "data.train", train);
    check_masks(run, "data.valid", valid);
    check_templates(run, "data.train", train);
    check_templates(run, "data.valid", valid);
    AX_TRY(cut_sources(run, inputs, &trained));
    log_targets(run, train);
    log_targets(run, valid);
    /* Checked here rather than at the first evaluation, so that the error comes early. */
    for (int i = 0; i < valid->n; i++)
        AX_CHECK(ax_data_rows(valid->data[i], &inputs->shape), AX_ERR_DATA,
                 "%s holds nothing to evaluate on: it has %s; leave it out of data.valid",
                 ax_data_path(valid->data[i]),
                 inputs->shape.pack ? "no document of two tokens or more" : "fewer than two tokens");
    return AX_OK;
}

/* ---- the samples of a run ------------------------------------------------------------------------ */

/* How the sources of data.train share the samples of a run, from its first step to its last. */
typedef struct sharing {
    const ax_run *run;
    int64_t step;   /* steps that are done */
    int64_t before; /* samples read in the steps that are done */
    int64_t all;    /* samples of the whole run: `before`, plus train.global_batch for each further step */
    int64_t mixed;  /* samples read so far from sources that have no epochs and are mixed by weight */
    int by_weight;  /* number of sources without epochs */
    double epochs;  /* number of samples in all epochs of the sources that have epochs */
    double weights; /* sum of the weights of the sources without epochs */
} sharing;

static int64_t samples_of(const ax_run *run, int source)
{
    const ax_row_shape shape = trained_shape(run, &run->inputs);
    return ax_data_samples(run->inputs.train.data[source], &shape);
}

/* Returns the weight by which a source is mixed: the one given, or, if the user gave no weights, its number
 * of samples. */
static double weight_of(const ax_run *run, int source)
{
    const ax_sources *train = &run->inputs.train;
    return train->weighted ? train->weight[source] : (double)samples_of(run, source);
}

static sharing share_samples(const ax_run *run, int64_t step, const int64_t *read)
{
    const ax_config *c = run->config;
    const ax_sources *train = &run->inputs.train;
    sharing s = {.run = run, .step = step};
    for (int i = 0; i < train->n; i++) {
        s.before += read[i];
        if (train->epochs[i]) {
            s.epochs += (double)train->epochs[i] * (double)samples_of(run, i);
            continue;
        }
        s.mixed += read[i];
        s.by_weight++;
        s.weights += weight_of(run, i);
    }
    s.all = s.before + ax_max(c->train.steps - step, 0) * c->train.global_batch;
    return s;
}

/* Prints how many samples a run has, and how this number is computed. */
static const char *print_samples(const sharing *s, char out[160])
{
    if (!s->step)
        snprintf(out, 160, "%lld (train.steps x train.global_batch)", (long long)s->all);
    else
        snprintf(out, 160, "%lld (%lld until step %lld, and then train.global_batch in each step)",
                 (long long)s->all, (long long)s->before, (long long)s->step);
    return out;
}

/* Returns the value of train.steps that the epochs need. If there are also sources by weight (without
 * epochs), at least one sample is left for these; otherwise the last step may have fewer samples than a
 * batch. */
static double steps_needed(const sharing *s)
{
    const double batch = (double)s->run->config->train.global_batch,
                 samples = s->epochs + (s->by_weight ? (double)ax_max(s->mixed, 1) : 0) - (double)s->before;
    return (double)s->step + ceil(fmax(samples, 0) / batch);
}

/* Prints, for an error message, the advice to set train.steps to the number of steps that the epochs need. */
static const char *print_steps(const sharing *s, char out[256])
{
    snprintf(out, 256, "set train.steps to %s%.0f%s", s->by_weight ? "at least " : "", steps_needed(s),
             s->by_weight ? "" : " or leave it out, or add a source by weight, which fills the rest");
    return out;
}

/* Logs the value of train.steps that follows from the epochs, and how it is computed. */
static void log_steps(const sharing *s)
{
    const ax_sources *train = &s->run->inputs.train;
    char samples[96], read[96] = "";
    if (train->n == 1)
        snprintf(samples, sizeof samples, "%lld epoch%s of %lld samples", (long long)train->epochs[0],
                 train->epochs[0] == 1 ? "" : "s", (long long)samples_of(s->run, 0));
    else
        snprintf(samples, sizeof samples, "%.0f samples in the epochs of %d sources", s->epochs, train->n);
    if (s->step)
        snprintf(read, sizeof read, "; %lld samples were read until step %lld", (long long)s->before,
                 (long long)s->step);
    ax_log(AX_LOG_INFO, "train.steps = %lld: %s in batches of %lld%s", (long long)s->run->config->train.steps,
           samples, (long long)s->run->config->train.global_batch, read);
}

ax_status ax_run_derive_steps(const ax_run *run, int64_t step, const int64_t *read)
{
    ax_config *c = run->config;
    const sharing s = share_samples(run, step, read);
    char steps[32];
    if (s.by_weight || s.epochs <= 0 || ax_config_given(c, "train.steps"))
        return AX_OK;
    snprintf(steps, sizeof steps, "%.0f", fmax(steps_needed(&s), 1));
    if (ax_option_assign(c->set, "train.steps", steps, "the epochs of data.train") != AX_OK)
        return ax_fail(AX_ERR_USAGE,
                       "the epochs of data.train need too many steps: train.steps %s; give fewer epochs, or "
                       "raise train.global_batch",
                       ax_error_message());
    if (ax_run_first(run))
        log_steps(&s);
    return AX_OK;
}

/* Divides the samples of the run, except those already read from sources by weight (without epochs), among
 * the sources with epochs, in the order of data.train. Records an error for each source whose epochs do not
 * fit into the samples that the sources before it leave. */
static void check_parts(const sharing *s)
{
    const ax_sources *train = &s->run->inputs.train;
    int64_t left = s->all - s->mixed;
    char samples[160], steps[256], most_text[64];
    for (int i = 0; i < train->n; i++) {
        int64_t rows = samples_of(s->run, i), epochs = train->epochs[i], most = left / rows;
        snprintf(most_text, sizeof most_text, "at most %lld %s", (long long)most, most == 1 ? "fits" : "fit");
        if (epochs > most)
            ax_option_error(s->run->config->set, "data.train",
                            "%lld epoch%s of %s, which has %lld sample%s, do%s not fit into the samples of "
                            "the run, %s%s: %s; or %s",
                            (long long)epochs, epochs == 1 ? "" : "s", train->path[i], (long long)rows,
                            rows == 1 ? "" : "s", epochs == 1 ? "es" : "", print_samples(s, samples),
                            left < s->all ? ", beside those of the other sources" : "",
                            most ? most_text : "no whole epoch fits", print_steps(s, steps));
        left -= ax_min(epochs, most) * rows;
    }
}

/* Records an error in three cases: all sources have epochs, and their samples need more or fewer steps than
 * train.steps (the last step may have fewer samples than a batch); the epochs, with the samples already read
 * from the other sources, need more samples than the run has; the epochs take all samples of the run, so that
 * a source by weight (without epochs) would never be read. */
static void check_epochs(const sharing *s)
{
    const ax_sources *train = &s->run->inputs.train;
    ax_option_set *set = s->run->config->set;
    char samples[160], steps[256];
    for (int i = 0; i < train->n; i++)
        if (!samples_of(s->run, i)) /* an empty source: ax_sampler_create reports the error */
            return;
    if (s->by_weight == train->n)
        return;
    if (!s->by_weight && steps_needed(s) != (double)ax_max(s->run->config->train.steps, s->step))
        ax_option_error(set, "data.train",
                        "all sources have epochs, %.0f samples together, but the run has %s: %s", s->epochs,
                        print_samples(s, samples), print_steps(s, steps));
    else if (s->by_weight && s->epochs + (double)s->mixed > (double)s->all)
        check_parts(s);
    for (int i = 0; i < train->n && s->by_weight && !s->mixed && s->epochs == (double)s->all; i++)
        if (!train->epochs[i])
            ax_option_error(
                set, "data.train",
                "nothing of %s would be read: the epochs of the other sources fill the samples of the "
                "run, %s: %s, or leave this source out",
                train->path[i], print_samples(s, samples), print_steps(s, steps));
}

/* Logs, for each source, how much of it the run reads. */
static void log_epochs(const sharing *s)
{
    const ax_sources *train = &s->run->inputs.train;
    for (int i = 0; i < train->n && ax_run_first(s->run); i++) {
        double rows = (double)samples_of(s->run, i), epochs = (double)train->epochs[i];
        if (!train->epochs[i])
            epochs = ((double)s->all - s->epochs) * weight_of(s->run, i) / s->weights / rows;
        ax_log(AX_LOG_INFO, "%s: %.0f sample%s, %.1f epochs in this run, %.1f %% of it", train->path[i], rows,
               rows == 1 ? "" : "s", epochs, 100 * epochs * rows / (double)ax_max(s->all, 1));
    }
}

ax_status ax_run_create_sampler(const ax_run *run, int64_t step, const int64_t *read, ax_sampler **sampler)
{
    const ax_config *c = run->config;
    const ax_sources *train = &run->inputs.train;
    sharing s = share_samples(run, step, read);
    *sampler = NULL;
    check_epochs(&s);
    AX_TRY(ax_option_finish(c->set));
    if (!s.by_weight)
        s.all = (int64_t)s.epochs;
    ax_sampler_options options = {.shape = trained_shape(run, &run->inputs),
                                  .batch = c->train.global_batch,
                                  .order = c->data.order == AX_CONFIG_SEQUENTIAL ? AX_ORDER_SEQUENTIAL
                                                                                 : AX_ORDER_SHUFFLED,
                                  .seed = ax_rng_key((uint64_t)c->train.seed, "data order", 0),
                                  .weights = train->weighted ? train->weight : NULL,
                                  .epochs = train->epochs,
                                  .samples = s.all};
    AX_TRY(ax_sampler_create(train->data, train->n, &options, sampler));
    log_epochs(&s);
    ax_status status = ax_sampler_restore(*sampler, read);
    if (status != AX_OK)
        ax_sampler_destroy(sampler);
    return status;
}

/* ---- closing ------------------------------------------------------------------------------------- */

void ax_inputs_close_weights(ax_run_inputs *inputs) { ax_st_close(&inputs->model_weights); }

void ax_inputs_fini(ax_run_inputs *inputs)
{
    close_sources(&inputs->train);
    close_sources(&inputs->valid);
    ax_model_config_fini(&inputs->model);
    ax_chat_destroy(&inputs->chat);
    ax_tokenizer_destroy(&inputs->tokenizer);
    free(inputs->model_dir);
    ax_st_close(&inputs->model_weights);
}
