/* Reads the files that some configuration keys name, such as the config.json of a model: checks other keys
 * against these files, and merges keys with the values in config.json. */
#include "private.h"

#include "axonn/data.h"
#include "axonn/infer.h"

#include <stdlib.h>
#include <string.h>

enum { MISSING_MOST = 20 }; /* how many missing paths are reported at most for one key */

/* An integer that the configuration key `key` and config.json both can give: *config is the value of the key,
 * *model the value from config.json. */
typedef struct shape_key {
    const char *key;
    int64_t *config, *model;
} shape_key;

typedef struct number_key {
    const char *key, *also; /* the configuration keys that set this number; `also`: a second key, or NULL */
    double *config, *model;
} number_key;

enum { SHAPE_KEYS = 9, NUMBER_KEYS = 5 };

static void list_shape(ax_config *c, ax_model_config *m, shape_key out[SHAPE_KEYS])
{
    const shape_key keys[SHAPE_KEYS] = {{"model.layers", &c->model.layers, &m->layers},
                                        {"model.hidden", &c->model.hidden, &m->hidden},
                                        {"model.heads", &c->model.heads, &m->heads},
                                        {"model.kv_heads", &c->model.kv_heads, &m->kv_heads},
                                        {"model.head_dim", &c->model.head_dim, &m->head_dim},
                                        {"model.ffn", &c->model.ffn, &m->ffn},
                                        {"model.vocab", &c->model.vocab, &m->vocab},
                                        {"model.seq_len", &c->model.seq_len, &m->seq_len},
                                        {"model.window", &c->model.window, &m->window}};
    memcpy(out, keys, sizeof keys);
}

static const ax_activation activations[] = {AX_GELU_TANH, AX_GELU_EXACT,
                                            AX_SILU}; /* indexed by ax_config_activation */

static int activation_of(const ax_model_config *m)
{
    int i = AX_COUNT(activations) - 1;
    while (i > 0 && activations[i] != m->activation)
        i--;
    return i;
}

/* ---- new models ---------------------------------------------------------------------------------- */

void config_take_defaults(ax_config *c, const ax_family *family)
{
    ax_model_config m = ax_model_config_defaults(family);
    m.hidden = c->model.hidden;
    if (!ax_config_given(c, "model.tie"))
        c->model.tie = m.tie;
    if (!ax_config_given(c, "model.norm_eps"))
        c->model.norm_eps = m.norm_eps;
    if (!ax_config_given(c, "model.activation"))
        c->model.activation = activation_of(&m);
    if (!ax_config_given(c, "model.rope_theta"))
        c->model.rope_theta = m.rope.theta;
    if (!c->model.kv_heads)
        c->model.kv_heads = c->model.heads;
    if (!c->model.ffn)
        c->model.ffn = ax_model_config_default_ffn(&m);
}

ax_model_config config_new_model(const ax_config *c, const ax_family *family)
{
    ax_model_config m = ax_model_config_defaults(family);
    m.layers = c->model.layers;
    m.hidden = c->model.hidden;
    m.heads = c->model.heads;
    m.kv_heads = c->model.kv_heads;
    m.head_dim = c->model.head_dim;
    m.ffn = c->model.ffn;
    m.vocab = c->model.vocab;
    m.seq_len = c->model.seq_len;
    m.window = c->model.window;
    m.rope.theta = c->model.rope_theta;
    m.dropout = (ax_model_dropout){c->model.embd_dropout, c->model.resid_dropout, c->model.attn_dropout};
    m.init_std = c->model.init_std;
    m.norm_eps = c->model.norm_eps;
    m.activation = activations[c->model.activation];
    m.tie = c->model.tie;
    return m;
}

/* ---- models of config.json ----------------------------------------------------------------------- */

/* Merges the numbers that do not affect array shapes. A number that the user gave is copied to *m. Any other
 * number is copied from *m to the configuration. */
static void merge_numbers(ax_config *c, ax_model_config *m)
{
    const number_key numbers[NUMBER_KEYS] = {
        {"model.init_std", NULL, &c->model.init_std, &m->init_std},
        {"model.norm_eps", NULL, &c->model.norm_eps, &m->norm_eps},
        {"model.embd_dropout", "model.dropout", &c->model.embd_dropout, &m->dropout.embd},
        {"model.resid_dropout", "model.dropout", &c->model.resid_dropout, &m->dropout.resid},
        {"model.attn_dropout", "model.dropout", &c->model.attn_dropout, &m->dropout.attn}};
    for (size_t i = 0; i < NUMBER_KEYS; i++) {
        const number_key *n = &numbers[i];
        bool given = ax_config_given(c, n->key) || (n->also && ax_config_given(c, n->also));
        if (given && n->model == &m->norm_eps && c->tune.method == AX_CONFIG_LORA && *n->config != *n->model)
            ax_option_error(c->set, n->key,
                            "an adapter cannot change the value of its base, %g: leave the key out",
                            *n->model);
        if (given)
            *n->model = *n->config;
        *n->config = *n->model;
    }
}

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

void config_merge_model(ax_config *c, ax_model_config *m, const ax_adapter *adapter)
{
    shape_key keys[SHAPE_KEYS];
    list_shape(c, m, keys);
    m->head_dim = ax_model_config_head_dim(m);
    merge_seq_len(c, m);
    for (size_t i = 0; i < SHAPE_KEYS; i++) {
        if (keys[i].model == &m->seq_len)
            continue;
        if (ax_config_given(c, keys[i].key) && *keys[i].config != *keys[i].model)
            ax_option_error(c->set, keys[i].key, "must be %lld, as in model.from; leave the key out",
                            (long long)*keys[i].model);
        *keys[i].config = *keys[i].model;
    }
    if (ax_config_given(c, "model.rope_theta") && c->model.rope_theta != m->rope.theta)
        ax_option_error(c->set, "model.rope_theta", "must be %g, as in model.from; leave the key out",
                        m->rope.theta);
    if (ax_config_given(c, "model.activation") && c->model.activation != activation_of(m))
        ax_option_error(c->set, "model.activation",
                        "must be the activation of the model in model.from; leave the key out");
    if (ax_config_given(c, "model.tie") && c->model.tie != m->tie)
        ax_option_error(c->set, "model.tie", "must be %s, as in model.from; leave the key out",
                        m->tie ? "true" : "false");
    c->model.rope_theta = m->rope.theta;
    c->model.activation = activation_of(m);
    c->model.tie = m->tie;
    merge_numbers(c, m);
    if (adapter)
        config_continue(c, m, adapter);
    else
        config_tune(c, m);
}

/* Returns true if the user gave `key` a value that replaces the value in config.json. The value 0 means
 * "default" and replaces nothing; but for model.window 0 means "no window" and does replace. */
static bool replaces(const ax_config *c, const shape_key *key)
{
    return ax_config_given(c, key->key) && (*key->config > 0 || !strcmp(key->key, "model.window"));
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
    shape_key keys[SHAPE_KEYS];
    list_shape(c, m, keys);
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
    for (size_t i = 0; i < SHAPE_KEYS; i++) {
        if (keys[i].model == &m->seq_len)
            continue;
        if (replaces(c, &keys[i]))
            *keys[i].model = *keys[i].config;
        *keys[i].config = *keys[i].model;
    }
    if (ax_config_given(c, "model.rope_theta"))
        m->rope.theta = c->model.rope_theta;
    if (ax_config_given(c, "model.activation"))
        m->activation = activations[c->model.activation];
    if (ax_config_given(c, "model.tie"))
        m->tie = c->model.tie;
    c->model.rope_theta = m->rope.theta;
    c->model.activation = activation_of(m);
    c->model.tie = m->tie;
    merge_numbers(c, m);
}

/* Records an error if the model with the overridden values is not valid, or if config.json of its family has
 * no key for one of the values. */
static ax_status check_overridden(ax_config *c, const ax_model_config *m)
{
    ax_buf text = {0};
    if (!ax_option_ok(c->set, "model.rope_theta"))
        return AX_OK; /* the error of this key is already recorded and says more */
    ax_status status = ax_model_config_check(m);
    if (status == AX_OK)
        status = ax_model_config_identity(m, &text);
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

/* Checks a path in data.train or data.valid. The path need not be an existing file: it may be a glob pattern,
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
