/* tokenizer_config.json: the end-of-text token, and the tokens that are put around each text. */
#include "data/tok.h"

#include <string.h>

/* Sets *id to the id of the token that tokenizer_config.json has under `key`, -1 if it has none. */
static ax_status find_token(const char *where, const json_t *config, const ax_tokenizer *tok, const char *key,
                            int32_t *id)
{
    const json_t *field = json_object_get(config, key);
    const char *name = json_string_value(json_is_object(field) ? json_object_get(field, "content") : field);
    *id = name ? ax_tokenizer_id(tok, name, strlen(name)) : -1;
    AX_CHECK(!name || *id >= 0, AX_ERR_DATA,
             "%s: %s of the tokenizer_config.json beside it, \"%s\", is not in the vocabulary", where, key,
             name);
    return AX_OK;
}

/* If tokenizer_config.json has add_bos_token or add_eos_token, these keys override the template: they say
 * whether bos_token is put before and eos_token after a text. As in transformers, a missing one of the two
 * keys counts as false. */
static ax_status replace_template(const char *where, const json_t *config, ax_tokenizer *tok)
{
    static const struct {
        const char *wanted, *token;
    } keys[] = {{"add_bos_token", "bos_token"}, {"add_eos_token", "eos_token"}};
    ax_ids *around[] = {&tok->before, &tok->after};
    bool given = false;
    for (size_t i = 0; i < AX_COUNT(keys); i++)
        given |= json_object_get(config, keys[i].wanted) != NULL;
    for (size_t i = 0; i < AX_COUNT(keys) && given; i++) {
        int32_t id;
        bool wanted = json_is_true(json_object_get(config, keys[i].wanted));
        if (wanted && !json_object_get(config, keys[i].token))
            continue; /* the token is named by another file or by the class: the template is kept */
        around[i]->size = 0;
        if (!wanted)
            continue;
        AX_TRY(find_token(where, config, tok, keys[i].token, &id));
        if (id >= 0)
            AX_TRY(ax_ids_add(around[i], &id, 1));
    }
    return AX_OK;
}

ax_status tok_apply_config(const char *where, const json_t *config, ax_tokenizer *tok)
{
    static const char usual[] = "<|endoftext|>";
    AX_TRY(replace_template(where, config, tok));
    AX_TRY(find_token(where, config, tok, "eos_token", &tok->eos));
    if (tok->eos < 0)
        tok->eos = ax_tokenizer_id(tok, usual, strlen(usual));
    if (!tok->config)
        AX_TRY(tok_write_config(tok->eos >= 0 ? usual : NULL, &tok->config, &tok->config_size));
    return AX_OK;
}
