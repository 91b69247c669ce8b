/* Reads the files that some configuration keys name, such as the config.json of a model: checks other keys
 * against these files, and merges keys with the values in config.json. */
#include "private.h"

#include "axonn/data.h"
#include "axonn/infer.h"

#include <stdlib.h>
#include <string.h>

enum { MISSING_MOST = 20 }; /* how many missing paths are reported at most for one key */

/* How a fact of a model gets its value (AX_FACT in axonn/config.def). */
enum {
    FIXED = 1,  /* the weights of model.from were trained with its value */
    FAMILY = 2, /* the default for a new model is that of the family */
    ZERO = 4,   /* the value 0 stands for the default */
    RATE = 8    /* model.dropout sets it too */
};

/* A fact of a model that the configuration key `key` and config.json both can give. */
typedef struct fact {
    const char *key;
    ax_option_type type;
    int how;
    size_t config, model; /* offsets of the value in ax_config and in ax_model_config */
} fact;

#define AX_GROUP(name)
#define AX_END(name)
#define AX_ROW(...)
#define AX_FACT(group, name, type, resume, fact, how, ...)                                                   \
    {#group "." #name, AX_OPT_##type, how, offsetof(ax_config, group.name), offsetof(ax_model_config, fact)},
static const fact facts[] = {
#include "axonn/config.def"
};

static const size_t sizes[] = {[AX_OPT_BOOL] = sizeof(bool),
                               [AX_OPT_INT] = sizeof(int64_t),
                               [AX_OPT_FLOAT] = sizeof(double),
                               [AX_OPT_ENUM] = sizeof(ax_activation)};

/* Copies a fact from the configuration to the model, and from the model to the configuration. */
static void to_model(const fact *f, const ax_config *c, ax_model_config *m)
{
    const char *from = (const char *)c + f->config;
    if (f->type == AX_OPT_ENUM)
        m->activation = ax_model_activation(c->model.activation);
    else
        memcpy((char *)m + f->model, from, sizes[f->type]);
}

static void to_config(const fact *f, const ax_model_config *m, ax_config *c)
{
    const char *from = (const char *)m + f->model;
    if (f->type == AX_OPT_ENUM)
        c->model.activation = ax_model_activation_index(m->activation);
    else
        memcpy((char *)c + f->config, from, sizes[f->type]);
}

static bool is_given(const fact *f, const ax_config *c)
{
    return ax_config_given(c, f->key) || (f->how & RATE && ax_config_given(c, "model.dropout"));
}

/* Returns true if the user gave the fact another value than the model has. */
static bool is_changed(const fact *f, const ax_config *c, const ax_model_config *m)
{
    ax_model_config given = *m;
    to_model(f, c, &given);
    return is_given(f, c) &&
           memcmp((char *)&given + f->model, (const char *)m + f->model, sizes[f->type]) != 0;
}

static bool is_length(const fact *f) { return f->model == offsetof(ax_model_config, seq_len); }
static bool is_norm_eps(const fact *f) { return f->model == offsetof(ax_model_config, norm_eps); }

/* ---- new models ---------------------------------------------------------------------------------- */

void config_take_defaults(ax_config *c, const ax_family *family)
{
    ax_model_config m = ax_model_config_defaults(family);
    m.hidden = c->model.hidden;
    for (size_t i = 0; i < AX_COUNT(facts); i++)
        if (facts[i].how & FAMILY && !is_given(&facts[i], c))
            to_config(&facts[i], &m, c);
    if (!c->model.kv_heads)
        c->model.kv_heads = c->model.heads;
    if (!c->model.ffn)
        c->model.ffn = ax_model_config_default_ffn(&m);
}

/* Makes m->experts.dense as long as the model, from model.dense_layers if the user gave that key. If not, the
 * blocks beyond those of the config.json are sparse. */
static ax_status take_dense(ax_config *c, ax_model_config *m)
{
    const ax_strings *words = &c->model.dense_layers;
    const bool given =
        words->count && ax_option_ok(c->set, "model.dense_layers") && ax_option_ok(c->set, "model.layers");
    char *const read = m->experts.dense;
    if (!given && !read)
        return AX_OK;
    AX_TRY(ax_calloc((size_t)m->layers + 1, 1, &m->experts.dense));
    memset(m->experts.dense, '0', (size_t)m->layers);
    if (!given)
        memcpy(m->experts.dense, read, (size_t)ax_min((int64_t)strlen(read), m->layers));
    free(read);
    for (size_t i = 0; given && i < words->count; i++)
        if (!config_mark_blocks(words->items[i], m->layers, m->experts.dense, '1')) {
            ax_option_error(c->set, "model.dense_layers",
                            "\"%s\" is no block from 0 to %lld, and no range of them", words->items[i],
                            (long long)m->layers - 1);
            break;
        }
    return AX_OK;
}

ax_status config_new_model(ax_config *c, const ax_family *family, ax_model_config *out)
{
    *out = ax_model_config_defaults(family);
    for (size_t i = 0; i < AX_COUNT(facts); i++)
        to_model(&facts[i], c, out);
    return take_dense(c, out);
}

/* ---- models of config.json ----------------------------------------------------------------------- */

/* Sets the length of rows to 0, not chosen yet, if the user did not give it: it follows from the data
 * (train/setup.c). */
static void merge_seq_len(ax_config *c, const ax_model_config *m)
{
    const int64_t most = ax_model_config_positions(m);
    if (!ax_config_given(c, "model.seq_len"))
        c->model.seq_len = 0;
    if (c->model.seq_len > most)
        ax_option_error(c->set, "model.seq_len",
                        "must be at most %lld, the number of positions of the model in model.from",
                        (long long)most);
}

/* Records an error of a fact that the user gave another value than the weights were trained with. */
static void refuse(ax_config *c, const fact *f, const ax_model_config *m)
{
    const char *was = (const char *)m + f->model;
    if (!m->experts.n && !strcmp(f->key, "model.experts"))
        ax_option_error(
            c->set, f->key,
            "the model in model.from has no experts: leave the key out, or make them with axonn ckpt "
            "convert MODEL --experts N --top-k K --out DIR");
    else if (f->type == AX_OPT_INT)
        ax_option_error(c->set, f->key, "must be %lld, as in model.from; leave the key out",
                        (long long)*(const int64_t *)was);
    else if (f->type == AX_OPT_FLOAT)
        ax_option_error(c->set, f->key, "must be %g, as in model.from; leave the key out",
                        *(const double *)was);
    else if (f->type == AX_OPT_BOOL)
        ax_option_error(c->set, f->key, "must be %s, as in model.from; leave the key out",
                        *(const bool *)was ? "true" : "false");
    else
        ax_option_error(c->set, f->key,
                        "must be the activation of the model in model.from; leave the key out");
}

void config_merge_model(ax_config *c, ax_model_config *m, const ax_adapter *adapter)
{
    m->head_dim = ax_model_config_head_dim(m);
    merge_seq_len(c, m);
    if (c->model.dense_layers.count)
        ax_option_error(
            c->set, "model.dense_layers",
            "the model in model.from has weights for the blocks that its config.json says: leave the "
            "key out");
    for (size_t i = 0; i < AX_COUNT(facts); i++) {
        const fact *f = &facts[i];
        const bool changed = is_changed(f, c, m);
        if (is_length(f))
            continue;
        if (changed && f->how & FIXED)
            refuse(c, f, m);
        else if (changed && is_norm_eps(f) && c->tune.method == AX_CONFIG_LORA)
            ax_option_error(c->set, f->key,
                            "an adapter cannot change the value of its base, %g: leave the key out",
                            m->norm_eps);
        else if (changed)
            to_model(f, c, m);
        to_config(f, m, c);
    }
    config_check_experts(c, m);
    if (adapter)
        config_continue(c, m, adapter);
    else
        config_tune(c, m);
}

/* Merges the length of rows with the number of positions: a given length is also the number in config.json.
 * If none is given, rows have as many tokens as the model has positions; with a rotary embedding, which has
 * no table of learned positions, at most AX_ROW_MOST. */
static void override_seq_len(ax_config *c, ax_model_config *m)
{
    if (ax_config_given(c, "model.seq_len"))
        m->seq_len = c->model.seq_len;
    else
        c->model.seq_len = m->rope.theta > 0 ? ax_min(ax_model_config_positions(m), AX_ROW_MOST) : m->seq_len;
}

/* Replaces values read from config.json by the values of the keys that the user gave. Then copies all
 * resulting values to the configuration. */
static void override_model(ax_config *c, ax_model_config *m)
{
    if (m->window_layers && ax_config_given(c, "model.layers") && c->model.layers != m->layers)
        ax_option_error(c->set, "model.layers",
                        "must be %lld, as in model.config, which says of each layer whether it has a window; "
                        "leave the key out",
                        (long long)m->layers);
    /* A head_dim of 0 means hidden / heads. So head_dim follows hidden and heads if the keys below replace
     * these. */
    if (m->head_dim * m->heads == m->hidden)
        m->head_dim = 0;
    override_seq_len(c, m);
    for (size_t i = 0; i < AX_COUNT(facts); i++) {
        const fact *f = &facts[i];
        const bool stands_for_default = f->how & ZERO && !*(const int64_t *)((const char *)c + f->config);
        if (is_length(f))
            continue;
        if (is_given(f, c) && !stands_for_default)
            to_model(f, c, m);
        to_config(f, m, c);
    }
}

/* Records an error if the model with the overridden values is not valid, or if config.json of its family has
 * no key for one of the values. */
static ax_status check_overridden(ax_config *c, const ax_model_config *m)
{
    static const char *const keys[] = {"model.rope_theta", "model.experts", "model.top_k",
                                       "model.sparse_step"};
    ax_buf text = {0};
    for (size_t i = 0; i < AX_COUNT(keys); i++)
        if (!ax_option_ok(c->set, keys[i]))
            return AX_OK; /* the error of this key is already recorded and says more */
    ax_status status = ax_model_config_check(m);
    if (status == AX_OK)
        status = ax_model_config_values(m, &text);
    ax_buf_fini(&text);
    if (status == AX_ERR_USAGE) {
        ax_option_error(c->set, "model.config", "does not fit the other model.* keys: %s",
                        ax_error_message());
        return AX_OK;
    }
    return status;
}

ax_status config_read_model(ax_config *c, ax_model_config *out)
{
    char *text;
    size_t size;
    *out = (ax_model_config){0};
    AX_TRY(ax_file_read_most(c->model.config, AX_CONFIG_JSON_MAX, &text, &size));
    ax_status status = ax_model_config_parse(text, size, c->model.config, out);
    free(text);
    AX_TRY(status);
    override_model(c, out);
    AX_TRY(take_dense(c, out));
    config_check_family(c, out);
    return check_overridden(c, out);
}

/* ---- checks of files ----------------------------------------------------------------------------- */

void config_check_tokenizer(ax_config *c, int32_t size)
{
    if (!c->model.from && size > c->model.vocab)
        ax_option_error(c->set, "model.vocab", "must be at least %d, the size of the tokenizer's vocabulary",
                        size);
}

void config_check_template(ax_config *c, const ax_tokenizer *tokenizer)
{
    ax_chat *chat = NULL;
    if (!c->data.chat_template || !ax_option_ok(c->set, "data.template"))
        return;
    if (!tokenizer)
        ax_option_error(c->set, "data.template", "needs a tokenizer: set data.tokenizer");
    else if (ax_chat_create(tokenizer, c->data.chat_template, &chat) != AX_OK)
        ax_option_error(c->set, "data.template", "%s", ax_error_message());
    ax_chat_destroy(&chat);
}

/* Given the `status` of reading the file that `key` names: records ax_error_message() as an error of `key`,
 * unless `status` is AX_OK or AX_ERR_MEMORY. */
static ax_status record_failure(ax_config *c, const char *key, ax_status status)
{
    if (status == AX_OK || status == AX_ERR_MEMORY)
        return status;
    ax_option_error(c->set, key, "%s", ax_error_message());
    return AX_OK;
}

static ax_status check_from(ax_config *c)
{
    ax_pretrained from;
    ax_status status = ax_pretrained_open(c->model.from, &from);
    if (status != AX_OK)
        return record_failure(c, "model.from", status);
    config_merge_model(c, &from.config, from.base ? &from.description : NULL);
    ax_pretrained_close(&from);
    return AX_OK;
}

static ax_status check_shape(ax_config *c)
{
    ax_model_config model;
    ax_status status = config_read_model(c, &model);
    ax_model_config_fini(&model);
    return record_failure(c, "model.config", status);
}

static ax_status check_tokenizer(ax_config *c)
{
    ax_tokenizer *tokenizer = NULL;
    ax_status status = ax_tokenizer_load(c->data.tokenizer, &tokenizer);
    if (status != AX_OK)
        return record_failure(c, "data.tokenizer", status);
    if (ax_option_ok(c->set, "model.from") && ax_option_ok(c->set, "model.config") &&
        ax_option_ok(c->set, "model.vocab"))
        config_check_tokenizer(c, ax_tokenizer_vocab_size(tokenizer));
    config_check_template(c, tokenizer);
    ax_tokenizer_destroy(&tokenizer);
    return AX_OK;
}

static bool check_path(ax_config *c, const char *key, const char *path, bool exists)
{
    if (!exists)
        ax_option_error(c->set, key, "no such file or directory: %s", path);
    return exists;
}

/* Checks that the path of model.from exists. The message helps if it is the name of a model on the hub. */
static void check_from_path(ax_config *c, const char *path)
{
    char *dir = NULL;
    if (!ax_path_exists(path) && ax_ckpt_find_model(path, &dir) != AX_OK)
        ax_option_error(c->set, "model.from", "%s", ax_error_message());
    free(dir);
}

/* Checks a path of a source of data. The path need not be an existing file: it may be a glob pattern,
 * or the common prefix of Megatron-LM's .bin and .idx files. If files match but cannot be read, that is an
 * error too, and the message names the file. */
static bool check_data_path(ax_config *c, const char *key, const char *path)
{
    ax_data_format format;
    if (ax_path_exists(path) || ax_data_detect(path, &format) == AX_OK)
        return true;
    ax_option_error(c->set, key, "%s", ax_error_message());
    return false;
}

static void check_data_paths(ax_config *c, const char *key, const ax_paths *paths)
{
    int missing = 0;
    for (size_t i = 0; i < paths->count && missing < MISSING_MOST; i++)
        missing += !check_data_path(c, key, paths->items[i].path);
}

void config_check_paths(ax_config *c)
{
    const char *from = c->model.from, *tokenizer = c->data.tokenizer, *resume = c->train.resume;
    bool named = strcmp(resume, "auto") != 0 && strcmp(resume, "none") != 0;
    if (from)
        check_from_path(c, from);
    if (c->model.config)
        check_path(c, "model.config", c->model.config, ax_path_exists(c->model.config));
    check_data_paths(c, "data.train", &c->data.train);
    check_data_paths(c, "data.valid", &c->data.valid);
    check_data_paths(c, "run.recall.data", &c->run.recall.data);
    if (tokenizer)
        check_path(c, "data.tokenizer", tokenizer, ax_path_exists(tokenizer));
    /* If run.dir exists, the run may have checkpoints of its own, and then the checkpoint that train.resume
     * names is no longer needed. */
    if (named && !(c->run.dir && ax_path_exists(c->run.dir)))
        check_path(c, "train.resume", resume, ax_path_exists(resume));
}

ax_status config_check_files(ax_config *c)
{
    if (c->model.from && ax_option_ok(c->set, "model.from"))
        AX_TRY(check_from(c));
    if (c->model.config && ax_option_ok(c->set, "model.config"))
        AX_TRY(check_shape(c));
    return c->data.tokenizer && ax_option_ok(c->set, "data.tokenizer") ? check_tokenizer(c) : AX_OK;
}
