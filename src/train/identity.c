/* Decides whether a resumed run is the same run as before: describes the run in training/state.json, and
 * compares a resumed run with the description in its checkpoint. */
#include "axonn/json.h"
#include "infer/adapter.h"
#include "train/train.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the description ----------------------------------------------------------------------------- */

static json_t *source_list(const ax_train_run *run)
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

json_t *ax_train_paths(const ax_train_run *run)
{
    json_t *paths = json_array();
    for (int i = 0; i < run->inputs.train.n; i++)
        json_array_append_new(paths, json_string(run->inputs.train.path[i]));
    return paths;
}

/* Returns what a resumed run does with `key`, which need not be a key of the configuration. */
static ax_config_resume resumes(const char *key)
{
    size_t count, row = 0;
    const ax_option *options = ax_config_options(&count);
    while (row < count && strcmp(options[row].key, key) != 0)
        row++;
    return row < count ? ax_config_resumes(row) : AX_RESUME_MODEL;
}

/* Sets *out to a JSON object of the values in the model's config.json that must stay the same. */
static ax_status model_facts(const ax_model_config *model, json_t **out)
{
    ax_buf text = {0};
    const char *key;
    json_t *value;
    void *next;
    ax_status status = ax_model_config_values(model, &text);
    if (status == AX_OK)
        status = ax_json_parse(NULL, text.data, text.size, 0, out);
    ax_buf_fini(&text);
    AX_TRY(status);
    json_object_foreach_safe(*out, next, key, value) if (resumes(key) != AX_RESUME_MODEL)
        json_object_del(*out, key);
    return AX_OK;
}

/* Returns the value of a key as state.json has it; NULL if memory is short. Words of keys that may change are
 * texts, other words their numbers. Paths and lists are null: what they mean for the run is compared instead.
 */
static json_t *value_of(const ax_config *c, size_t row)
{
    size_t count;
    char word[64];
    const ax_option *option = &ax_config_options(&count)[row];
    const void *field = (const char *)c + option->offset;
    switch (option->type) {
    case AX_OPT_BOOL:
        return json_boolean(*(const bool *)field);
    case AX_OPT_INT:
        return json_integer(*(const int64_t *)field);
    case AX_OPT_FLOAT:
        return json_real(*(const double *)field);
    case AX_OPT_QUOTA:
        return json_integer(ax_quota_of(field, c->train.steps));
    case AX_OPT_STRING:
        return *(char *const *)field ? json_string(*(char *const *)field) : json_null();
    case AX_OPT_FLOATS:
        return json_pack("[ff]", ((const double *)field)[0], ((const double *)field)[1]);
    case AX_OPT_ENUM:
        return ax_config_resumes(row) == AX_RESUME_LOGGED
                   ? json_string(ax_option_word(option, *(const int *)field, word))
                   : json_integer(*(const int *)field);
    default:
        return json_null();
    }
}

/* Returns the values of all keys with which a resumed run does one of first … last, without those that are
 * null; NULL if memory is short. */
static json_t *values_of(const ax_config *c, ax_config_resume first, ax_config_resume last)
{
    size_t count;
    const ax_option *options = ax_config_options(&count);
    json_t *values = json_object();
    for (size_t row = 0; row < count && values; row++) {
        json_t *value = ax_config_resumes(row) >= first && ax_config_resumes(row) <= last ? value_of(c, row)
                                                                                          : json_null();
        if (!json_is_null(value) && json_object_set_new(values, options[row].key, value)) {
            json_decref(values);
            values = NULL;
        }
    }
    return values;
}

/* The name in state.json of the scales of an adapter's modules that differ from its usual one. It is no key
 * of the configuration. */
static const char alphas_name[] = "alpha_pattern of the adapter";

/* Returns the member alpha_pattern of the adapter that the run writes, or NULL if memory is lacking. */
static json_t *alphas_of(const ax_train_run *run)
{
    ax_buf text = {0};
    json_t *adapter = NULL, *alphas;
    ax_status status = ax_adapter_print(&run->inputs.model, "", &text);
    if (status == AX_OK)
        status = ax_json_parse(NULL, text.data, text.size, 0, &adapter);
    alphas = status == AX_OK ? json_incref(json_object_get(adapter, "alpha_pattern")) : NULL;
    json_decref(adapter);
    ax_buf_fini(&text);
    return alphas;
}

/* Changes the values of the keys tune.* to what they mean for this model. If the run trains all weights, only
 * tune.method is kept. If it trains low-rank updates, its base model must stay the same too. */
static bool set_tune(const ax_train_run *run, json_t *identity)
{
    static const char *const keys[] = {"tune.rank", "tune.alpha", "tune.rslora"};
    char targets[128] = "", base[64];
    for (size_t i = 0; i < AX_COUNT(keys) && run->config->tune.method == AX_CONFIG_FULL; i++)
        json_object_del(identity, keys[i]);
    if (run->config->tune.method == AX_CONFIG_FULL)
        return true;
    for (int i = 0; i < AX_MATRIX_COUNT; i++)
        if (ax_model_config_update_count(&run->inputs.model, (ax_matrix)i))
            ax_text_add(targets, sizeof targets, "%s%s", targets[0] ? "," : "", ax_matrix_name((ax_matrix)i));
    snprintf(base, sizeof base, "weights with checksum %s", run->inputs.base);
    ax_buf blocks = {0};
    bool failed = ax_model_config_print_blocks(&run->inputs.model, &blocks) != AX_OK ||
                  json_object_set_new(identity, "tune.targets", json_string(targets)) ||
                  json_object_set_new(identity, "model.from", json_string(base)) ||
                  json_object_set_new(identity, "tune.layers", json_string(blocks.data)) ||
                  json_object_set_new(identity, alphas_name, alphas_of(run));
    ax_buf_fini(&blocks);
    return !failed;
}

/* Adds the values that identify the base of the adapter that the run trains, as the member `base`: an
 * adapter's checkpoint has no config.json. */
static bool add_base_facts(const ax_train_run *run, json_t *identity)
{
    json_t *facts;
    return run->config->tune.method == AX_CONFIG_FULL || (model_facts(&run->inputs.model, &facts) == AX_OK &&
                                                          !json_object_set_new(identity, "base", facts));
}

/* Returns true if a source of data.train has a mask (a bit per token: is it a target?), so that data.loss
 * makes a difference. */
static bool any_mask(const ax_train_run *run)
{
    bool any = false;
    for (int i = 0; i < run->inputs.train.n; i++)
        any |= ax_data_describe(run->inputs.train.data[i])->targets >= 0;
    return any;
}

ax_data_packing ax_train_packing(const ax_train_run *run)
{
    int masked = 0;
    for (int i = 0; i < run->inputs.train.n; i++)
        masked += ax_data_describe(run->inputs.train.data[i])->targets >= 0;
    if (run->config->data.pack != AX_PACK_AUTO || (masked && masked < run->inputs.train.n))
        return (ax_data_packing)run->config->data.pack;
    return masked ? AX_PACK_DOCUMENTS : AX_PACK_STREAM;
}

/* The values of data.last_row in state.json, which is no key of the configuration. */
static const char *last_row(bool left_out) { return left_out ? "left out" : "padded"; }

/* Changes the values of keys that have no effect, or another one than they say, with this run's data. */
static bool set_data(const ax_train_run *run, json_t *identity)
{
    const ax_config *c = run->config;
    const bool on = c->data.goldfish.k, hashed = on && c->data.goldfish.kind == AX_GOLDFISH_HASHED;
    const int loss = c->data.loss == AX_CONFIG_ALL ? AX_CONFIG_ALL : AX_CONFIG_ANSWERS;
    if (!any_mask(run))
        json_object_del(identity, "data.loss");
    return (!any_mask(run) || !json_object_set_new(identity, "data.loss", json_integer(loss))) &&
           (on || !json_object_set_new(identity, "data.goldfish.kind", json_integer(0))) &&
           (hashed || !json_object_set_new(identity, "data.goldfish.window", json_integer(0))) &&
           !json_object_set_new(identity, "data.pack", json_integer(ax_train_packing(run))) &&
           !json_object_set_new(identity, "data.last_row", json_string(last_row(run->inputs.full_rows))) &&
           !json_object_set_new(identity, "data.train", source_list(run));
}

/* The checksum of the zeros that training keeps, which is no key of the configuration. */
static const char zeros_name[] = "zeros of model.from";

static bool set_zeros(const ax_train_run *run, json_t *identity)
{
    char sum[17];
    if (!run->inputs.masks)
        return true;
    ax_train_print_masks(run, sum);
    return !json_object_set_new(identity, zeros_name, json_string(sum));
}

json_t *ax_train_identity(const ax_train_run *run)
{
    json_t *identity = values_of(run->config, AX_RESUME_RUN, AX_RESUME_WEIGHTS);
    if (set_data(run, identity) && set_zeros(run, identity) && set_tune(run, identity) &&
        add_base_facts(run, identity))
        return identity;
    json_decref(identity);
    return NULL;
}

json_t *ax_train_settings(const ax_train_run *run)
{
    json_t *settings = values_of(run->config, AX_RESUME_LOGGED, AX_RESUME_LOGGED);
    if (!ax_train_can_frame(run))
        json_object_del(settings, "data.bos");
    if (run->config->tune.method == AX_CONFIG_FULL)
        json_object_del(settings, "tune.dropout");
    json_object_set_new(settings, "train.recompute", json_integer(run->plan.options.recompute));
    return settings;
}

/* ---- descriptions of earlier versions ------------------------------------------------------------ */

/* Replaces each saved checksum of 0 in `state` by the checksum of the present file, so that the two are
 * equal. Earlier versions wrote 0 for token files whose format has no checksum. */
static void fill_unknown_checksums(const ax_train_run *run, const json_t *state)
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

/* Converts the dropout rates in a `state` that earlier versions wrote: there model.dropout was the only rate,
 * and was not applied to attention. */
static void split_dropout(const json_t *state)
{
    json_t *saved = json_object_get(state, "settings"), *rate = json_object_get(saved, "model.dropout");
    if (!rate)
        return;
    json_object_set(saved, "model.embd_dropout", rate);
    json_object_set(saved, "model.resid_dropout", rate);
    json_object_set_new(saved, "model.attn_dropout", json_real(0));
}

/* Adds `value` to the saved values unless they have the key. */
static void add_new(json_t *saved, const char *key, json_t *value)
{
    if (json_object_get(saved, key))
        json_decref(value);
    else
        json_object_set_new(saved, key, value);
}

/* Adds the defaults of the keys that earlier versions did not have. Those of `kept` stay absent: every
 * version has written them, or left them out only where they had no effect. */
static void add_defaults(json_t *saved, ax_config_resume first, ax_config_resume last)
{
    static const char *const kept[] = {"data.loss",          "data.order", "data.mask_documents",
                                       "model.seq_len",      "optim.name", "train.seed",
                                       "train.global_batch", "tune.rank",  "tune.alpha"};
    size_t count;
    const ax_option *options = ax_config_options(&count);
    ax_config defaults = {.set = NULL};
    if (ax_option_set_create(options, count, &defaults, &defaults.set) != AX_OK)
        return;
    json_t *values = values_of(&defaults, first, last);
    for (size_t i = 0; i < AX_COUNT(kept); i++)
        json_object_del(values, kept[i]);
    json_object_update_missing(saved, values);
    json_decref(values);
    ax_config_fini(&defaults);
}

/* Adds keys that earlier versions did not have: first those whose default is not what these versions did.
 * They trained on full rows of consecutive tokens, without goldfish loss, on texts without special tokens. */
static void add_new_keys(const ax_train_run *run, const json_t *state)
{
    json_t *saved = json_object_get(state, "run"), *settings = json_object_get(state, "settings");
    add_new(saved, "data.pack", json_integer(AX_PACK_STREAM));
    add_new(saved, "data.last_row", json_string(last_row(true)));
    add_new(saved, "data.goldfish.window", json_integer(0));
    add_new(settings, "data.bos", json_false());
    add_defaults(saved, AX_RESUME_RUN, AX_RESUME_WEIGHTS);
    add_defaults(settings, AX_RESUME_LOGGED, AX_RESUME_LOGGED);
    if (saved && json_object_get(saved, "tune.targets") && !json_object_get(saved, "tune.layers"))
        json_object_set_new(saved, "tune.layers", json_string("all"));
    if (run->config->tune.method == AX_CONFIG_LORA)
        add_new(saved, alphas_name, alphas_of(run)); /* was not written, and is taken as it is */
}

void ax_train_convert_state(const ax_train_run *run, json_t *state)
{
    fill_unknown_checksums(run, state);
    split_dropout(state);
    add_new_keys(run, state);
}

ax_data_packing ax_train_saved_packing(const json_t *state)
{
    return (ax_data_packing)json_integer_value(json_object_get(json_object_get(state, "run"), "data.pack"));
}

bool ax_train_saved_full_rows(const json_t *state)
{
    const char *saved = json_string_value(json_object_get(json_object_get(state, "run"), "data.last_row"));
    return saved && !strcmp(saved, last_row(true));
}

/* ---- the comparison ------------------------------------------------------------------------------ */

/* A key whose value differs between the checkpoint (`before`) and this run (`now`). `paths`: the paths of
 * data.train that the checkpoint has saved. */
typedef struct change {
    const char *key;
    const json_t *before, *now, *paths;
} change;

/* Prints data sources, such as "a.tok (4350 tokens), b.tok (17 tokens, weight 2)". `paths` may be NULL: old
 * checkpoints have no paths. */
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

static ax_status describe_change(const ax_train_run *run, const change *c, ax_buf *out)
{
    ax_buf a = {0}, b = {0};
    json_t *paths = ax_train_paths(run);
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

/* Returns true if a new run that starts from a checkpoint of another run may change the key. */
static bool may_differ(const ax_train_run *run, const char *key)
{
    return run->resume.new_run &&
           (resumes(key) == AX_RESUME_RUN || !strcmp(key, "data.last_row") || !strcmp(key, zeros_name));
}

/* Returns true if two lists of sources (source_list) are equal, but for how often sources with epochs are
 * read. */
static bool same_sources(const json_t *a, const json_t *b)
{
    bool same = json_array_size(a) == json_array_size(b);
    for (size_t i = 0; same && i < json_array_size(a); i++) {
        json_t *x = json_copy(json_array_get(a, i)), *y = json_copy(json_array_get(b, i));
        same = json_object_del(x, "epochs") == json_object_del(y, "epochs") && json_equal(x, y);
        json_decref(x);
        json_decref(y);
    }
    return same;
}

/* Compares `now` with the values of the same keys in the saved state. `now` holds values of this run: those
 * that must stay the same (`identity`), or settings that may change. Logs each change that is allowed, and
 * adds a line to `refused` for each change that is not. */
static ax_status report_changes(const ax_train_run *run, const json_t *state, json_t *now, bool identity,
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
        bool allowed =
            !identity || may_differ(run, key) || (!strcmp(key, "data.train") && same_sources(before, value));
        if (status == AX_OK && allowed)
            ax_log(AX_LOG_INFO, "changed: %s", text.data);
        else if (status == AX_OK)
            status = ax_buf_printf(refused, "\n  %s", text.data);
        ax_buf_fini(&text);
        AX_TRY(status);
    }
    return AX_OK;
}

/* Sets *out to the values that identify the model of the checkpoint. Those of an adapter's base are in the
 * description of the run, `saved_run`. Those of another model are read from the checkpoint's config.json,
 * because state.json does not have them, and every checkpoint that is not an adapter has a config.json. */
static ax_status saved_model_facts(const ax_train_run *run, const json_t *saved_run, json_t **out)
{
    char *path, *text = NULL;
    size_t size;
    ax_model_config saved = {0};
    *out = json_deep_copy(json_object_get(saved_run, "base"));
    if (*out)
        return AX_OK;
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

/* Adds the values that identify the model to the values that are compared: those of the checkpoint's model to
 * `before`, those of this run's model to `now`. If the families differ, adds only model.family to `now`. */
static ax_status add_model_facts(const ax_train_run *run, json_t *before, json_t *now)
{
    json_t *saved = NULL, *model = NULL, *value;
    const char *key;
    ax_status status = saved_model_facts(run, before, &saved);
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
    AX_CHECK(status != AX_OK || !failed, AX_ERR_MEMORY,
             "not enough memory to describe this run's model, for the comparison with the checkpoint");
    return status;
}

static ax_config_method tuned(const json_t *saved)
{
    return (ax_config_method)json_integer_value(json_object_get(saved, "tune.method"));
}

/* Appends to an error message which base model the checkpoint's adapter updates, if model.from names another
 * model. (If model.from is a run directory, it stands for the newest checkpoint there, which may be another
 * one by now.) */
static ax_status add_base(const ax_train_run *run, ax_buf *out)
{
    char *base = NULL;
    if (!strstr(out->data, "\n  model.from was") || !ax_ckpt_is_adapter(run->resume.dir) ||
        ax_adapter_find_base(run->resume.dir, &base) != AX_OK)
        return AX_OK;
    ax_status status = ax_buf_printf(out, "\n  (the adapter updates %s)", base);
    free(base);
    return status;
}

ax_status ax_train_check_same(const ax_train_run *run, const json_t *state)
{
    ax_buf refused = {0};
    json_t *saved = json_object_get(state, "run");
    AX_CHECK(json_is_object(saved), AX_ERR_DATA,
             "%s: training/state.json lacks the description of the run (its member \"run\"), so it is "
             "damaged: set "
             "train.resume to another checkpoint",
             run->resume.dir);
    json_t *identity = ax_train_identity(run);
    json_object_del(identity, "base"); /* its members are compared one by one */
    /* Earlier versions identified the base of an adapter by the checksum of its weights only. */
    const bool full = run->config->tune.method == AX_CONFIG_FULL;
    bool models = (tuned(saved) == AX_CONFIG_FULL) == full && (full || json_object_get(saved, "base"));
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

bool ax_train_same_sources(const ax_train_run *run, const json_t *state)
{
    const json_t *saved = json_object_get(state, "run");
    json_t *now = source_list(run);
    bool same = same_sources(json_object_get(saved, "data.train"), now) &&
                json_integer_value(json_object_get(saved, "model.seq_len")) == run->config->model.seq_len;
    json_decref(now);
    return same;
}

bool ax_train_same_samples(const ax_train_run *run, const json_t *state)
{
    const json_t *saved = json_object_get(state, "run");
    return ax_train_same_sources(run, state) && ax_train_saved_packing(state) == ax_train_packing(run) &&
           json_integer_value(json_object_get(saved, "data.long")) == run->config->data.longer;
}

/* Reads the schedule of the learning rate by which the run went on until the checkpoint. */
static ax_status read_schedule(const json_t *settings, ax_schedule *out)
{
    const char *kind = json_string_value(json_object_get(settings, "optim.schedule"));
    *out = (ax_schedule){.steps = json_integer_value(json_object_get(settings, "train.steps")),
                         .warmup = json_integer_value(json_object_get(settings, "optim.warmup")),
                         .lr = json_number_value(json_object_get(settings, "optim.lr")),
                         .min_lr = json_number_value(json_object_get(settings, "optim.min_lr")),
                         .decay = json_number_value(json_object_get(settings, "optim.decay"))};
    return ax_schedule_find(kind ? kind : "constant", &out->kind);
}

/* Logs if the learning rate rises where the run goes on, although it was past its warm-up: a run that had
 * decayed it and gets more steps is then earlier in its decay. */
static ax_status log_rising_rate(const ax_train_run *run)
{
    ax_schedule before;
    const int64_t step = run->state.step, end = run->config->train.steps;
    AX_TRY(read_schedule(json_object_get(run->resume.state, "settings"), &before));
    if (run->resume.new_run || step <= before.warmup || step >= end || !ax_train_first(run))
        return AX_OK;
    const double was = ax_schedule_lr(&before, step), now = ax_schedule_lr(&run->plan.schedule, step + 1);
    if (now > was)
        ax_log(AX_LOG_INFO,
               "the learning rate rises from %.3g (step %lld) to %.3g (step %lld): schedule %s with optim.lr "
               "%g now ends at step %lld",
               was, (long long)step, now, (long long)step + 1, run->config->optim.schedule,
               run->config->optim.lr, (long long)end);
    return AX_OK;
}

ax_status ax_train_log_changes(const ax_train_run *run)
{
    if (!run->resume.state)
        return AX_OK;
    json_t *settings = ax_train_settings(run);
    ax_status status = report_changes(run, run->resume.state, settings, false, NULL);
    json_decref(settings);
    return status == AX_OK ? log_rising_rate(run) : status;
}
