/* Checkpoints of a run: training/state.json, which holds the run's state other than weights and optimizer
 * state, and the check that a resumed run is the same run. */
#include "axonn/json.h"
#include "engine/adapter.h"
#include "engine/train.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- state.json ---------------------------------------------------------------------------------- */

static json_t *source_list(const ax_run *run)
{
    json_t *sources = json_array();
    for (int i = 0; i < run->inputs.train.n; i++) {
        const ax_data_info *info = ax_data_describe(run->inputs.train.data[i]);
        char checksum[32];
        snprintf(checksum, sizeof checksum, "%016llx", (unsigned long long)info->checksum);
        json_t *source = json_pack("{s:I,s:s,s:f}", "tokens", (json_int_t)info->tokens, "checksum", checksum,
                                   "weight", run->inputs.train.weight[i]);
        if (source && run->inputs.train.epochs[i])
            json_object_set_new(source, "epochs", json_integer(run->inputs.train.epochs[i]));
        json_array_append_new(sources, source);
    }
    return sources;
}

/* Returns the paths of data.train. They are used in messages only, because files may move between runs. */
static json_t *path_list(const ax_run *run)
{
    json_t *paths = json_array();
    for (int i = 0; i < run->inputs.train.n; i++)
        json_array_append_new(paths, json_string(run->inputs.train.path[i]));
    return paths;
}

/* Returns the values of the keys `tune` that identify a run. A run of low-rank updates is identified by its
 * base too. */
static json_t *tune_of(const ax_run *run)
{
    const ax_config *c = run->config;
    char targets[128] = "";
    if (c->tune.method == AX_CONFIG_FULL)
        return json_pack("{s:i}", "tune.method", c->tune.method);
    for (int i = 0; i < AX_MATRIX_COUNT; i++)
        if (run->inputs.model.low_rank[i].rank)
            ax_text_add(targets, sizeof targets, "%s%s", targets[0] ? "," : "", ax_matrix_name((ax_matrix)i));
    char base[64];
    snprintf(base, sizeof base, "weights with checksum %s", run->inputs.base);
    return json_pack("{s:i,s:I,s:f,s:s,s:s}", "tune.method", c->tune.method, "tune.rank",
                     (json_int_t)c->tune.rank, "tune.alpha", c->tune.alpha, "tune.targets", targets,
                     "model.from", base);
}

/* Whether a source of data.train has a mask, so that data.loss makes a difference. */
static bool any_mask(const ax_run *run)
{
    bool any = false;
    for (int i = 0; i < run->inputs.train.n; i++)
        any |= ax_data_describe(run->inputs.train.data[i])->targets >= 0;
    return any;
}

/* Returns the values of the keys `data.goldfish` that identify a run. */
static json_t *goldfish_of(const ax_run *run)
{
    const ax_config *c = run->config;
    /* If the goldfish loss is off, its other keys have no effect. The key window has an effect with kind
     * hashed only. */
    const bool on = c->data.goldfish.k, hashed = on && c->data.goldfish.kind == AX_GOLDFISH_HASHED;
    return json_pack("{s:I,s:I,s:i}", "data.goldfish.k", (json_int_t)c->data.goldfish.k,
                     "data.goldfish.window", (json_int_t)(hashed ? c->data.goldfish.window : 0),
                     "data.goldfish.kind", on ? c->data.goldfish.kind : 0);
}

/* Returns the values that identify a run, in the order in which messages print them. In a resumed run all of
 * them must be the same. The values that identify the model are not included (model_facts). */
static json_t *identity_of(const ax_run *run)
{
    const ax_config *c = run->config;
    json_t *tune = tune_of(run), *goldfish = goldfish_of(run);
    /* data.loss is left out if no source has a mask, because it then makes no difference. */
    json_t *loss = !any_mask(run)
                       ? NULL
                       : json_integer(c->data.loss == AX_CONFIG_ALL ? AX_CONFIG_ALL : AX_CONFIG_ANSWERS);
    json_t *identity = json_pack(
        "{s:I,s:I,s:I,s:i,s:b,s:i,s:o*,s:s,s:o}", "model.seq_len", (json_int_t)c->model.seq_len,
        "train.global_batch", (json_int_t)c->train.global_batch, "train.seed", (json_int_t)c->train.seed,
        "data.order", c->data.order, "data.mask_documents", c->data.mask_documents, "data.pack", c->data.pack,
        "data.loss", loss, "optim.name", c->optim.name, "data.train", source_list(run));
    bool failed = !identity || !tune || !goldfish || json_object_update(identity, goldfish) ||
                  json_object_update(identity, tune);
    json_decref(goldfish);
    json_decref(tune);
    if (failed)
        json_decref(identity);
    return failed ? NULL : identity;
}

/* Returns the settings that a resumed run may change. Each change is logged. */
static json_t *settings_of(const ax_run *run)
{
    const ax_config *c = run->config;
    const char *precision = ax_run_dtype_name(c->train.precision);
    return json_pack(
        "{s:I,s:I,s:s,s:I,s:f,s:f,s:f,s:f,s:[ff],s:f,s:f,s:f,s:f,s:s,s:I,s:f,s:f}", "train.steps",
        (json_int_t)c->train.steps, "train.micro_batch", (json_int_t)c->train.micro_batch, "train.precision",
        precision, "train.recompute", (json_int_t)run->plan.options.recompute, "model.embd_dropout",
        run->inputs.model.dropout.embd, "model.resid_dropout", run->inputs.model.dropout.resid,
        "model.attn_dropout", run->inputs.model.dropout.attn, "optim.lr", c->optim.lr, "optim.betas",
        c->optim.betas[0], c->optim.betas[1], "optim.eps", c->optim.eps, "optim.momentum", c->optim.momentum,
        "optim.weight_decay", c->optim.weight_decay, "optim.clip", c->optim.clip, "optim.schedule",
        c->optim.schedule, "optim.warmup", (json_int_t)run->plan.schedule.warmup, "optim.min_lr",
        c->optim.min_lr, "optim.decay", c->optim.decay);
}

static ax_status print_state(const ax_run *run, char **out)
{
    const ax_config *c = run->config;
    int64_t counts[run->inputs.train.n];
    ax_sampler_state(run->state.sampler, counts);
    json_t *sampler = json_array();
    for (int i = 0; i < run->inputs.train.n; i++)
        json_array_append_new(sampler, json_integer(counts[i]));
    json_t *state =
        json_pack("{s:s,s:s,s:I,s:I,s:b,s:o,s:o,s:o,s:o}", "axonn", ax_version(), "commit", ax_commit(),
                  "step", (json_int_t)run->state.step, "tokens", (json_int_t)run->state.tokens, "evaluate",
                  run->state.eval_pending, "sampler", sampler, "paths", path_list(run), "run",
                  identity_of(run), "settings", settings_of(run));
    const ax_loss_scale *scale = ax_engine_loss_scale(run->state.engine);
    bool complete = state;
    if (state && c->train.precision == AX_CONFIG_FP16)
        complete = !json_object_set_new(state, "loss_scale",
                                        json_pack("{s:f,s:I,s:I}", "scale", scale->scale, "good_steps",
                                                  (json_int_t)scale->good_steps, "skipped_steps",
                                                  (json_int_t)scale->skipped_steps));
    *out = complete ? json_dumps(state, JSON_INDENT(2)) : NULL;
    json_decref(state);
    AX_CHECK(*out, AX_ERR_MEMORY, "not enough memory to write the run's state as text");
    return AX_OK;
}

/* ---- saving -------------------------------------------------------------------------------------- */

/* Called on rank 0: sets *out to the checkpoint's small files, and *state to the text of
 * training/state.json. */
static ax_status collect_files(const ax_run *run, ax_run_files *written, ax_ckpt_file **out, char **state)
{
    AX_TRY(ax_run_write_files(run, written));
    AX_TRY(ax_calloc((size_t)(written->n + run->beside.n), sizeof **out, out));
    for (int i = 0; i < written->n + run->beside.n; i++) {
        const ax_run_file *f = i < written->n ? &written->file[i] : &run->beside.file[i - written->n];
        (*out)[i] = (ax_ckpt_file){f->name, f->data, f->size};
    }
    return print_state(run, state);
}

static ax_status save(const ax_run *run)
{
    const ax_config *c = run->config;
    ax_run_files written = {0};
    ax_ckpt_file *files = NULL;
    char *state = NULL;
    double start = ax_now();
    ax_status status =
        ax_comm_agree(run->world, ax_run_first(run) ? collect_files(run, &written, &files, &state) : AX_OK);
    if (status == AX_OK)
        status = ax_ckpt_save(&(ax_ckpt_save_args){.run_dir = c->run.dir,
                                                   .step = run->state.step,
                                                   .params = ax_engine_params(run->state.engine),
                                                   .base = run->inputs.base[0] ? run->inputs.base : NULL,
                                                   .dtype = ax_run_dtype(c->run.save_dtype),
                                                   .slot_names = run->plan.options.optim->slot_names,
                                                   .files = files,
                                                   .n_files = written.n + run->beside.n,
                                                   .state = state,
                                                   .keep_latest = c->run.keep_latest});
    ax_run_files_fini(&written);
    free(files);
    free(state);
    AX_TRY(status);
    char took[32];
    ax_report_break_line(run);
    ax_log(AX_LOG_INFO, "saved %s/ckpt/step-%lld in %s", c->run.dir, (long long)run->state.step,
           ax_format_seconds(ax_now() - start, took));
    return AX_OK;
}

/* A signal shortens the timeout of the ranks to 2 s. While saving, ranks may take longer to answer, so the
 * normal timeout applies. */
ax_status ax_run_save(const ax_run *run)
{
    ax_signals_saving(true);
    ax_comm_set_timeout(run->world, run->config->watchdog.timeout);
    ax_status status = save(run);
    ax_signals_saving(false);
    return status;
}

/* ---- resuming ------------------------------------------------------------------------------------ */

static ax_status count_checkpoints(const char *run_dir, int *n)
{
    ax_ckpt_list *list;
    AX_TRY(ax_ckpt_list_create(run_dir, false, &list));
    *n = list->n;
    ax_ckpt_list_destroy(&list);
    return AX_OK;
}

/* Whether `path` is run.dir or lies below it. */
static bool inside_run(const char *run_dir, const char *path)
{
    char *a = realpath(run_dir, NULL), *b = realpath(path, NULL);
    size_t n = a ? strlen(a) : 0;
    bool inside = a && b && !strncmp(a, b, n) && (b[n] == '/' || !b[n]);
    free(a);
    free(b);
    return inside;
}

/* Called on rank 0: finds the checkpoint to start from. A path in train.resume starts a new run from that
 * checkpoint, with one exception: if run.dir already has checkpoints and the path lies outside run.dir, the
 * run continues from its own newest checkpoint. So the same command can be repeated. A path inside run.dir
 * goes back to that checkpoint. */
static ax_status find_resume(const ax_run *run, ax_run_resume *resume)
{
    const ax_config *c = run->config;
    const char *wanted = c->train.resume;
    int own;
    AX_TRY(ax_ckpt_clean(c->run.dir));
    AX_TRY(count_checkpoints(c->run.dir, &own));
    bool named = strcmp(wanted, "auto") != 0 && strcmp(wanted, "none") != 0;
    AX_CHECK(strcmp(wanted, "none") != 0 || !own, AX_ERR_USAGE,
             "run.dir %s already holds %d checkpoint%s: continue the run with train.resume=auto, or choose "
             "another run.dir",
             c->run.dir, own, own == 1 ? "" : "s");
    if (named && own && !inside_run(c->run.dir, wanted)) {
        ax_log(AX_LOG_INFO, "run.dir has its own checkpoints: the run continues from these, not from %s",
               wanted);
        named = false;
    }
    resume->new_run = named;
    return ax_ckpt_find_resume(c->run.dir, named ? wanted : own ? "auto" : "none", &resume->dir);
}

/* Lets rank 0 remove incomplete checkpoints and find the checkpoint to start from, then tells the other
 * ranks. */
ax_status ax_run_find_resume(const ax_run *run, ax_run_resume *resume)
{
    AX_TRY(ax_comm_agree(run->world, ax_run_first(run) ? find_resume(run, resume) : AX_OK));
    AX_TRY(ax_comm_share_text(run->world, 0, &resume->dir));
    int64_t new_run = resume->new_run;
    AX_TRY(ax_run_max(run, &new_run, 1));
    resume->new_run = new_run;
    return AX_OK;
}

/* A key whose value differs between the checkpoint (`before`) and this run (`now`). `paths`: the paths of
 * data.train that the checkpoint has saved. */
typedef struct change {
    const char *key;
    const json_t *before, *now, *paths;
} change;

/* Prints sources as "a.tok (4350 tokens), b.tok (17 tokens, weight 2)". `paths` may be NULL: old checkpoints
 * have no paths. */
static ax_status print_sources(const json_t *sources, const json_t *paths, ax_buf *out)
{
    for (size_t i = 0; i < json_array_size(sources); i++) {
        const json_t *source = json_array_get(sources, i);
        const char *path = json_string_value(json_array_get(paths, i));
        double weight = json_number_value(json_object_get(source, "weight"));
        long long epochs = json_integer_value(json_object_get(source, "epochs"));
        AX_TRY(ax_buf_printf(out, "%s%s (%lld tokens", i ? ", " : "", path ? path : "a source",
                             (long long)json_integer_value(json_object_get(source, "tokens"))));
        if (weight > 0)
            AX_TRY(ax_buf_printf(out, ", weight %g", weight));
        if (epochs)
            AX_TRY(ax_buf_printf(out, ", %lld epoch%s", epochs, epochs == 1 ? "" : "s"));
        AX_TRY(ax_buf_printf(out, ")"));
    }
    return AX_OK;
}

/* Prints a value as the user writes it in a configuration: files as paths, choices as words. */
static ax_status print_value(const char *key, const json_t *value, const json_t *paths, ax_buf *out)
{
    size_t count;
    char word[64];
    const ax_option *option = ax_config_options(&count), *end = option + count;
    while (option < end && strcmp(option->key, key) != 0)
        option++;
    if (option < end && option->type == AX_OPT_PATHS && json_is_array(value))
        return print_sources(value, paths, out);
    if (option < end && option->type == AX_OPT_ENUM && json_is_integer(value))
        return ax_buf_printf(out, "\"%s\"", ax_option_word(option, (int)json_integer_value(value), word));
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    ax_status status = ax_buf_printf(out, "%s", text ? text : "absent");
    free(text);
    return status;
}

static ax_status describe_change(const ax_run *run, const change *c, ax_buf *out)
{
    ax_buf a = {0}, b = {0};
    json_t *paths = path_list(run);
    ax_status status = print_value(c->key, c->before, c->paths, &a);
    if (status == AX_OK)
        status = print_value(c->key, c->now, paths, &b);
    if (status == AX_OK && json_is_array(c->before) && !strcmp(a.data, b.data))
        status = ax_buf_printf(out, "%s: the contents of %s have changed", c->key, b.data);
    else if (status == AX_OK)
        status = ax_buf_printf(out, "%s was %s and is now %s", c->key, a.data, b.data);
    json_decref(paths);
    ax_buf_fini(&a);
    ax_buf_fini(&b);
    return status;
}

/* Whether a new run that starts from a checkpoint may change the key. It may change data and batches, but not
 * the model. */
static bool may_differ(const ax_run *run, const char *key)
{
    return run->resume.new_run &&
           (!strncmp(key, "data.", 5) || !strncmp(key, "train.", 6) || !strcmp(key, "model.seq_len"));
}

/* Compares `now`, the identity or the settings of this run, with the same values in the saved state. Logs
 * each change that is allowed, and adds a line to `refused` for each one that is not. */
static ax_status report_changes(const ax_run *run, const json_t *state, json_t *now, bool identity,
                                ax_buf *refused)
{
    const json_t *saved = json_object_get(state, identity ? "run" : "settings"),
                 *paths = json_object_get(state, "paths");
    const char *key;
    json_t *value;
    json_object_foreach(now, key, value)
    {
        const json_t *before = json_object_get(saved, key);
        ax_buf text = {0};
        if (json_equal(before, value))
            continue;
        ax_status status = describe_change(run, &(change){key, before, value, paths}, &text);
        if (status == AX_OK && (!identity || may_differ(run, key)))
            ax_log(AX_LOG_INFO, "changed: %s", text.data);
        else if (status == AX_OK)
            status = ax_buf_printf(refused, "\n  %s", text.data);
        ax_buf_fini(&text);
        AX_TRY(status);
    }
    return AX_OK;
}

/* Sets *out to a JSON object of the values that identify the model (ax_model_config_identity). */
static ax_status model_facts(const ax_model_config *model, json_t **out)
{
    ax_buf text = {0};
    ax_status status = ax_model_config_identity(model, &text);
    if (status == AX_OK)
        status = ax_json_parse(NULL, text.data, text.size, 0, out);
    ax_buf_fini(&text);
    return status;
}

/* Sets *out to the values that identify the model of the checkpoint. They are read from its config.json,
 * because state.json does not have them and checkpoints of all versions have a config.json. */
static ax_status saved_model_facts(const ax_run *run, json_t **out)
{
    char *path, *text = NULL;
    size_t size;
    ax_model_config saved = {0};
    AX_TRY(ax_path_join(run->resume.dir, "config.json", &path));
    ax_status status = ax_file_read(path, &text, &size);
    if (status == AX_OK)
        status = ax_model_config_parse(text, size, path, &saved);
    if (status == AX_OK)
        status = model_facts(&saved, out);
    ax_model_config_fini(&saved);
    free(text);
    free(path);
    return status;
}

/* Adds the values that identify the model to `before`, those of the checkpoint, and to `now`, those of this
 * run, so that they are compared too. If the families differ, adds only model.family to `now`. */
static ax_status add_model_facts(const ax_run *run, json_t *before, json_t *now)
{
    json_t *saved = NULL, *model = NULL, *value;
    const char *key;
    ax_status status = saved_model_facts(run, &saved);
    if (status == AX_OK)
        status = model_facts(&run->inputs.model, &model);
    int failed = status == AX_OK ? json_object_update(before, saved) : 0;
    bool same_family =
        json_equal(json_object_get(saved, "model.family"), json_object_get(model, "model.family"));
    json_object_foreach(saved, key, value) if (same_family && !json_object_get(model, key)) failed |=
        json_object_set_new(model, key, json_null());
    json_object_foreach(model, key, value) if (same_family || !strcmp(key, "model.family")) failed |=
        json_object_set(now, key, value);
    json_decref(saved);
    json_decref(model);
    AX_CHECK(status != AX_OK || !failed, AX_ERR_MEMORY, "not enough memory for the description of the model");
    return status;
}

static ax_config_method tuned(const json_t *saved)
{
    return (ax_config_method)json_integer_value(json_object_get(saved, "tune.method"));
}

/* Appends which base the adapter of the checkpoint updates, for a run whose model.from names another one:
 * that of a run names its newest checkpoint. */
static ax_status add_base(const ax_run *run, ax_buf *out)
{
    char *base = NULL;
    if (!strstr(out->data, "\n  model.from was") || !ax_ckpt_is_adapter(run->resume.dir) ||
        ax_adapter_find_base(run->resume.dir, &base) != AX_OK)
        return AX_OK;
    ax_status status = ax_buf_printf(out, "\n  (the adapter updates %s)", base);
    free(base);
    return status;
}

static ax_status check_same_run(const ax_run *run, const json_t *state)
{
    ax_buf refused = {0};
    json_t *saved = json_object_get(state, "run");
    AX_CHECK(json_is_object(saved), AX_ERR_DATA,
             "%s: training/state.json lacks the description of the run (its member \"run\")",
             run->resume.dir);
    json_t *identity = identity_of(run);
    /* An adapter's checkpoint has no config.json. Its model is identified by the checksum of the base instead
     * (tune_of). */
    bool models = tuned(saved) == AX_CONFIG_FULL && run->config->tune.method == AX_CONFIG_FULL;
    ax_status status = models ? add_model_facts(run, saved, identity) : AX_OK;
    if (status == AX_OK)
        status = report_changes(run, state, identity, true, &refused);
    if (status == AX_OK && refused.size)
        status = add_base(run, &refused);
    if (status == AX_OK && refused.size)
        status = ax_fail(
            AX_ERR_USAGE,
            "%s cannot be continued, this would be another run:%s\nrestore the old values, or choose another "
            "run.dir; there train.resume=%s starts a new run from this checkpoint, if the model is the same",
            run->resume.dir, refused.data, run->resume.dir);
    json_decref(identity);
    ax_buf_fini(&refused);
    return status;
}

/* Sets *out to the loss scale in the saved state. Leaves it unchanged if the run does not use fp16, or the
 * checkpoint is not of an fp16 run. */
static ax_status read_loss_scale(const ax_run *run, const json_t *state, ax_loss_scale *out)
{
    const json_t *saved = json_object_get(state, "loss_scale");
    if (!saved || run->config->train.precision != AX_CONFIG_FP16)
        return AX_OK;
    *out = (ax_loss_scale){.scale = json_number_value(json_object_get(saved, "scale")),
                           .good_steps = json_integer_value(json_object_get(saved, "good_steps")),
                           .skipped_steps = json_integer_value(json_object_get(saved, "skipped_steps"))};
    int exponent;
    AX_CHECK(out->scale >= AX_LOSS_SCALE_LEAST && out->scale <= AX_LOSS_SCALE_MOST &&
                 frexp(out->scale, &exponent) == 0.5,
             AX_ERR_DATA,
             "%s: training/state.json has a loss scale of %g, which is not a power of two in [%g, %g]",
             run->resume.dir, out->scale, AX_LOSS_SCALE_LEAST, AX_LOSS_SCALE_MOST);
    return AX_OK;
}

/* Replaces each saved checksum of 0 in `state` by that of the present file, so that it matches. Earlier
 * versions wrote 0 for token files whose format has no checksum. */
static void fill_unknown_checksums(const ax_run *run, const json_t *state)
{
    json_t *saved = json_object_get(json_object_get(state, "run"), "data.train"), *now = source_list(run);
    for (size_t i = 0; i < json_array_size(saved) && i < json_array_size(now); i++) {
        json_t *source = json_array_get(saved, i);
        const char *checksum = json_string_value(json_object_get(source, "checksum"));
        if (checksum && strspn(checksum, "0") == strlen(checksum))
            json_object_set(source, "checksum", json_object_get(json_array_get(now, i), "checksum"));
    }
    json_decref(now);
}

/* Converts `state` from earlier versions: model.dropout was the only dropout rate, and was not applied to
 * attention. */
static void split_dropout(const json_t *state)
{
    json_t *saved = json_object_get(state, "settings"), *rate = json_object_get(saved, "model.dropout");
    if (!rate)
        return;
    json_object_set(saved, "model.embd_dropout", rate);
    json_object_set(saved, "model.resid_dropout", rate);
    json_object_set_new(saved, "model.attn_dropout", json_real(0));
}

/* Adds the keys that earlier versions did not have. Their values are what earlier versions always did: train
 * all weights, on rows of consecutive tokens, without goldfish loss. */
static void add_new_keys(const json_t *state)
{
    static const char *const keys[] = {"data.pack", "data.goldfish.k", "data.goldfish.window",
                                       "data.goldfish.kind", "tune.method"};
    _Static_assert(AX_CONFIG_FULL == 0, "the value of tune.method");
    json_t *saved = json_object_get(state, "run");
    for (size_t i = 0; i < AX_COUNT(keys); i++)
        if (saved && !json_object_get(saved, keys[i]))
            json_object_set_new(saved, keys[i], json_integer(0));
}

/* Returns true if this run has the same samples as the run that wrote the checkpoint: the same sources, cut
 * into the same rows. Only a new run can differ here: a resumed run with other samples has been refused
 * before. */
static bool same_samples(const ax_run *run, const json_t *state)
{
    static const char *const keys[] = {"data.train", "data.pack", "model.seq_len"};
    json_t *saved = json_object_get(state, "run"), *now = identity_of(run);
    bool same = true;
    for (size_t i = 0; i < AX_COUNT(keys); i++)
        same = same && json_equal(json_object_get(saved, keys[i]), json_object_get(now, keys[i]));
    json_decref(now);
    return same;
}

/* Reads the number of steps and tokens, and the number of samples read of each source. A new run with other
 * samples starts at the beginning of its data. */
static ax_status restore_position(const ax_run *run, const json_t *state, ax_run_position *out)
{
    const json_t *sampler = json_object_get(state, "sampler");
    out->step = json_integer_value(json_object_get(state, "step"));
    out->tokens = json_integer_value(json_object_get(state, "tokens"));
    out->eval_pending =
        run->inputs.valid.n && !run->resume.new_run && json_is_true(json_object_get(state, "evaluate"));
    if (run->resume.new_run && !same_samples(run, state))
        return AX_OK;
    AX_CHECK(json_is_array(sampler) && (int)json_array_size(sampler) == run->inputs.train.n, AX_ERR_DATA,
             "%s: training/state.json has no position for each of the %d data sources", run->resume.dir,
             run->inputs.train.n);
    for (int i = 0; i < run->inputs.train.n; i++) {
        out->read[i] = json_integer_value(json_array_get(sampler, (size_t)i));
        AX_CHECK(out->read[i] >= 0 && out->read[i] <= INT64_MAX / 2 / run->inputs.train.n, AX_ERR_DATA,
                 "%s: training/state.json says that %lld samples of %s were read", run->resume.dir,
                 (long long)out->read[i], run->inputs.train.path[i]);
    }
    return AX_OK;
}

/* Reads the state of the checkpoint from which the run starts. */
static ax_status read_state(const ax_run *run, json_t **state)
{
    char *text;
    AX_TRY(ax_ckpt_read_state(run->resume.dir, &text));
    ax_status status = ax_json_parse("training/state.json", text, strlen(text), 0, state);
    free(text);
    if (status != AX_OK)
        ax_error_context("%s", run->resume.dir);
    AX_TRY(status);
    fill_unknown_checksums(run, *state);
    split_dropout(*state);
    add_new_keys(*state);
    return AX_OK;
}

ax_status ax_run_restore_position(const ax_run *run, ax_run_resume *resume, ax_run_position *position)
{
    json_t *state;
    if (!run->resume.dir)
        return AX_OK;
    AX_TRY(read_state(run, &state));
    ax_status status = check_same_run(run, state);
    if (status == AX_OK)
        status = restore_position(run, state, position);
    if (status == AX_OK)
        status = read_loss_scale(run, state, &resume->scale);
    json_decref(state);
    return status;
}

ax_status ax_run_log_changes(const ax_run *run)
{
    json_t *state;
    if (!run->resume.dir)
        return AX_OK;
    AX_TRY(read_state(run, &state));
    json_t *settings = settings_of(run);
    ax_status status = report_changes(run, state, settings, false, NULL);
    json_decref(settings);
    json_decref(state);
    return status;
}

static ax_status load_checkpoint(const ax_run *run)
{
    ax_ckpt_rules rules = {.prefix = ax_family_prefix(run->inputs.model.family)};
    rules.ignore = ax_family_ignored(run->inputs.model.family, &rules.ignores);
    AX_TRY(ax_ckpt_load(ax_engine_params(run->state.engine), run->resume.dir,
                        run->plan.options.optim->slot_names, &rules));
    AX_TRY(ax_param_set_refresh(ax_engine_params(run->state.engine)));
    if (run->resume.scale.scale > 0)
        *ax_engine_loss_scale(run->state.engine) = run->resume.scale;
    ax_log(AX_LOG_INFO, "resuming from %s after step %lld", run->resume.dir, (long long)run->state.step);
    return AX_OK;
}

ax_status ax_run_init_weights(const ax_run *run, ax_engine *engine)
{
    if (!run->config->model.from)
        return ax_param_set_init(ax_engine_params(engine));
    if (ax_model_config_is_adapted(&run->inputs.model))
        AX_TRY(ax_param_set_init_trained(ax_engine_params(engine)));
    const ax_pretrained from = {
        .dir = run->inputs.model_dir, .config = run->inputs.model, .weights = run->inputs.model_weights};
    return ax_pretrained_load(&from, ax_engine_params(engine));
}

ax_status ax_run_start_weights(const ax_run *run)
{
    /* The checkpoint of an adapter lacks the weights of its base. */
    if (!run->resume.dir || ax_model_config_is_adapted(&run->inputs.model))
        AX_TRY(ax_run_init_weights(run, run->state.engine));
    return run->resume.dir ? load_checkpoint(run) : AX_OK;
}

void ax_resume_fini(ax_run_resume *resume) { free(resume->dir); }
