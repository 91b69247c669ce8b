/* Rules between configuration keys and the files that some of them name. */
#include "config_private.h"

#include "axonn/data.h"
#include "axonn/engine.h"

#include <string.h>

enum { MISSING_MOST = 20 }; /* paths of one key that are reported */

/* A key that both the user and the model's config.json may set. */
typedef struct shape_key {
    const char *key;
    int64_t *config; /* value in the configuration; overwritten by `model` */
    int64_t model;   /* value in config.json */
} shape_key;

void config_merge_model(ax_config *c, const ax_model_config *m)
{
    const shape_key keys[] = {{"model.layers", &c->model.layers, m->layers},
                              {"model.hidden", &c->model.hidden, m->hidden},
                              {"model.heads", &c->model.heads, m->heads},
                              {"model.ffn", &c->model.ffn, m->ffn},
                              {"model.vocab", &c->model.vocab, m->vocab}};
    for (size_t i = 0; i < AX_COUNT(keys); i++) {
        if (ax_config_given(c, keys[i].key) && *keys[i].config != keys[i].model)
            ax_option_error(c->set, keys[i].key, "is %lld in model.from; leave the key out",
                            (long long)keys[i].model);
        *keys[i].config = keys[i].model;
    }
    if (ax_config_given(c, "model.activation") && c->model.activation != (int)m->activation)
        ax_option_error(c->set, "model.activation", "is different in model.from; leave the key out");
    if (ax_config_given(c, "model.tie") && c->model.tie != m->tie)
        ax_option_error(c->set, "model.tie", "is %s in model.from; leave the key out",
                        m->tie ? "true" : "false");
    if (!ax_config_given(c, "model.seq_len"))
        c->model.seq_len = m->seq_len;
    if (c->model.seq_len > m->seq_len)
        ax_option_error(c->set, "model.seq_len", "must be at most the %lld positions of model.from",
                        (long long)m->seq_len);
    c->model.activation = (int)m->activation;
    c->model.tie = m->tie;
}

void config_check_tokenizer(ax_config *c, int32_t size)
{
    if (size <= c->model.vocab)
        return;
    if (c->model.from)
        ax_option_error(c->set, "data.tokenizer",
                        "does not fit model.from: it has %d tokens, the model a vocabulary of %lld", size,
                        (long long)c->model.vocab);
    else
        ax_option_error(c->set, "model.vocab", "must be at least %d, the size of the tokenizer's vocabulary",
                        size);
}

/* Records that a file could not be read as an error of the key that names it. */
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
    config_merge_model(c, &from.config);
    ax_pretrained_close(&from);
    return AX_OK;
}

static ax_status check_tokenizer(ax_config *c)
{
    ax_tokenizer *tokenizer = NULL;
    ax_status status = ax_tokenizer_load(c->data.tokenizer, &tokenizer);
    if (status != AX_OK)
        return record_failure(c, "data.tokenizer", status);
    if (ax_option_ok(c->set, "model.from") && ax_option_ok(c->set, "model.vocab"))
        config_check_tokenizer(c, ax_tokenizer_vocab_size(tokenizer));
    ax_tokenizer_destroy(&tokenizer);
    return AX_OK;
}

static bool check_path(ax_config *c, const char *key, const char *path, bool exists)
{
    if (!exists)
        ax_option_error(c->set, key, "no such file or directory: %s", path);
    return exists;
}

/* A path of data need not be a file: it may be a pattern, or the common prefix of Megatron-LM's two files.
 * Files that match a pattern but cannot be read are an error too; its message names the file. */
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
        check_path(c, "model.from", from, ax_path_exists(from));
    check_data_paths(c, "data.train", &c->data.train);
    check_data_paths(c, "data.valid", &c->data.valid);
    if (tokenizer)
        check_path(c, "data.tokenizer", tokenizer, ax_path_exists(tokenizer));
    /* A run that exists may have checkpoints of its own, and then does not need this one any more. */
    if (named && !(c->run.dir && ax_path_exists(c->run.dir)))
        check_path(c, "train.resume", resume, ax_path_exists(resume));
}

ax_status config_check_files(ax_config *c)
{
    if (c->model.from && ax_option_ok(c->set, "model.from"))
        AX_TRY(check_from(c));
    return c->data.tokenizer && ax_option_ok(c->set, "data.tokenizer") ? check_tokenizer(c) : AX_OK;
}
