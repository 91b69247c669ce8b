/* Adds to the contents of tokenizer.json what transformers 5 takes from the files beside it:
 * tokenizer_config.json, special_tokens_map.json and added_tokens.json. So the rest of the program, and each
 * copy that it saves, has a tokenizer.json that says all.
 *
 * Added tokens come, in this order, from added_tokens_decoder (or, if there is none, from added_tokens.json),
 * from the named special tokens such as eos_token, from other members NAME_token, and from
 * extra_special_tokens. A token that tokenizer.json has already gets the flags that the first of these gives.
 * A new token gets the id that the tokens of model.vocab have for it, else the next id. */
#include "token/tok.h"

#include <stdlib.h>
#include <string.h>

typedef struct beside {
    const char *where;
    json_t *root, *added; /* tokenizer.json, and its member added_tokens */
    json_t
        *config; /* tokenizer_config.json, with the members of special_tokens_map.json where that is read */
    bool changed;
} beside;

static const char *const named[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                    "pad_token", "cls_token", "mask_token"};

/* Takes the result of a function of jansson that stores a value, which fails if there is no memory for it. */
static ax_status stored(const beside *b, int result)
{
    AX_CHECK(!result, AX_ERR_MEMORY, "not enough memory for the tokens beside %s", b->where);
    return AX_OK;
}

/* Returns the text of a token: a string, or an object with the member content. */
static const char *content_of(const json_t *token)
{
    const char *text = json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
    return text && *text ? text : NULL;
}

static json_t *find_added(const json_t *added, const char *content)
{
    size_t i;
    json_t *entry;
    json_array_foreach(added, i, entry)
    {
        const char *text = json_is_object(entry) ? content_of(entry) : NULL;
        if (text && !strcmp(text, content))
            return entry;
    }
    return NULL;
}

/* Returns the id for a token that added_tokens lacks, as the library chooses it. */
static json_int_t next_id(const beside *b, const char *content)
{
    const json_t *vocab = json_object_get(json_object_get(b->root, "model"), "vocab");
    const json_t *known = json_object_get(vocab, content);
    json_int_t id = (json_int_t)json_object_size(vocab);
    size_t i;
    const json_t *entry;
    json_array_foreach(b->added, i, entry)
    {
        json_int_t other = json_integer_value(json_object_get(entry, "id"));
        id = ax_max(id, other < INT32_MAX ? other + 1 : other);
    }
    return known ? json_integer_value(known) : id;
}

/* Adds a token, or sets the flags of the one that is there. `token` is a string or an object; `special` is
 * the flag of a token that does not say it. `id` is the id that a file gives, -1: none. */
static ax_status take(beside *b, const json_t *token, bool special, json_int_t id)
{
    static const char *const flags[] = {"single_word", "lstrip", "rstrip", "normalized", "special"};
    const char *content = content_of(token);
    if (!content)
        return AX_OK;
    json_t *entry = find_added(b->added, content);
    if (!entry) {
        json_int_t chosen = next_id(b, content);
        AX_CHECK(id < 0 || id == chosen, AX_ERR_DATA,
                 "%s: a file beside it gives the token \"%s\" the id %lld, but tokenizer.json, which lacks "
                 "the token, "
                 "leads to the id %lld: add the token to added_tokens of tokenizer.json, with its id",
                 b->where, content, (long long)id, (long long)chosen);
        entry = json_pack("{s:I, s:s}", "id", chosen, "content", content);
        AX_TRY(stored(b, json_array_append_new(b->added, entry)));
        b->changed = true;
    } else if (!json_is_object(token))
        return AX_OK;
    const json_t *given = json_object_get(token, "special");
    special = given ? json_is_true(given) : special;
    const bool defaults[] = {false, false, false, !special, special};
    for (size_t i = 0; i < AX_COUNT(flags); i++) {
        const json_t *flag = json_object_get(token, flags[i]), *before = json_object_get(entry, flags[i]);
        bool value = i == AX_COUNT(flags) - 1 ? special : flag ? json_is_true(flag) : defaults[i];
        b->changed |= json_is_true(before) != value;
        AX_TRY(stored(b, json_object_set_new(entry, flags[i], json_boolean(value))));
    }
    return AX_OK;
}

/* Returns true if a named special token is `content`. */
static bool is_named(const json_t *config, const char *content)
{
    for (size_t i = 0; i < AX_COUNT(named); i++) {
        const char *text = content_of(json_object_get(config, named[i]));
        if (text && !strcmp(text, content))
            return true;
    }
    return false;
}

/* ---- ids that files give ---- */

typedef struct numbered {
    json_int_t id;
    const char *name; /* of added_tokens.json; NULL */
    const json_t *token;
} numbered;

static int by_id(const void *a, const void *b)
{
    json_int_t x = ((const numbered *)a)->id, y = ((const numbered *)b)->id;
    return (x > y) - (x < y);
}

/* Takes the tokens of added_tokens_decoder, {"300": {"content": "<x>", ...}}, or those of added_tokens.json,
 * {"<x>": 300}, in the order of their ids. */
static ax_status take_numbered(beside *b, json_t *tokens, bool decoder)
{
    const char *key;
    json_t *value;
    size_t n = 0, count = json_object_size(tokens);
    numbered *list;
    AX_TRY(ax_calloc(count + 1, sizeof *list, &list));
    json_object_foreach(tokens, key, value) list[n++] =
        (numbered){decoder ? strtoll(key, NULL, 10) : json_integer_value(value), decoder ? NULL : key, value};
    qsort(list, n, sizeof *list, by_id);
    ax_status status = AX_OK;
    for (size_t i = 0; i < n && status == AX_OK; i++) {
        json_t *name = list[i].name ? json_string(list[i].name) : NULL;
        const char *content = name ? list[i].name : content_of(list[i].token);
        bool special = content && is_named(b->config, content);
        json_t *token = name ? name : json_deep_copy(list[i].token);
        status = stored(b, !token);
        if (status == AX_OK && special && json_is_object(token))
            status = stored(b, json_object_set_new(token, "special", json_true()));
        if (status == AX_OK && !name && !json_is_object(list[i].token))
            status = ax_fail(AX_ERR_DATA,
                             "%s: added_tokens_decoder of the tokenizer_config.json beside it holds %s for "
                             "%lld, not an object",
                             b->where, tok_json_kind(list[i].token), (long long)list[i].id);
        if (status == AX_OK && (decoder || (content && !find_added(b->added, content))))
            status = take(b, token, special, list[i].id);
        json_decref(token);
    }
    free(list);
    return status;
}

/* ---- names ---- */

/* Takes a special token from the member `key` of the configuration. The flags of a token that is there
 * already stay as they are, except that a named token is special. */
static ax_status take_special(beside *b, const char *key, const json_t *token)
{
    AX_CHECK(json_is_null(token) || json_is_string(token) || json_is_object(token), AX_ERR_DATA,
             "%s: %s of the files beside it is %s, not a string or an object", b->where, key,
             tok_json_kind(token));
    const char *content = content_of(token);
    json_t *entry = content ? find_added(b->added, content) : NULL;
    if (!entry)
        return take(b, token, true, -1);
    if (is_named(b->config, content) && !json_is_true(json_object_get(entry, "special"))) {
        AX_TRY(stored(b, json_object_set_new(entry, "special", json_true())));
        b->changed = true;
    }
    return AX_OK;
}

static ax_status take_extra(beside *b)
{
    const json_t *extra = json_object_get(b->config, "extra_special_tokens");
    bool none = !extra || json_is_null(extra) || (json_is_array(extra) && !json_array_size(extra));
    const char *key = none ? "additional_special_tokens" : "extra_special_tokens", *name;
    json_t *tokens = json_object_get(b->config, key), *token;
    size_t i;
    AX_CHECK(!tokens || json_is_null(tokens) || json_is_array(tokens) || json_is_object(tokens), AX_ERR_DATA,
             "%s: %s of the files beside it is %s, not an array", b->where, key, tok_json_kind(tokens));
    json_object_foreach(tokens, name, token) AX_TRY(take_special(b, name, token));
    json_array_foreach(tokens, i, token) AX_TRY(take_special(b, key, token));
    return AX_OK;
}

static ax_status take_names(beside *b)
{
    const char *key;
    json_t *token;
    for (size_t i = 0; i < AX_COUNT(named); i++)
        if ((token = json_object_get(b->config, named[i])))
            AX_TRY(take_special(b, named[i], token));
    json_object_foreach(b->config, key, token)
    {
        size_t n = strlen(key);
        if (n > 6 && !strcmp(key + n - 6, "_token") && content_of(token))
            AX_TRY(take_special(b, key, token));
    }
    return take_extra(b);
}

/* ---- spaces ---- */

/* Sets add_prefix_space of the pre-tokenizer ByteLevel, where transformers' class of the tokenizer builds it
 * from tokenizer_config.json rather than from tokenizer.json. `first`: no other pre-tokenizer runs before
 * `part`. */
static ax_status take_prefix_space(beside *b, json_t *part, bool first)
{
    static const char *const classes[] = {"GPT2Tokenizer", "Qwen2Tokenizer"};
    const char *class = json_string_value(json_object_get(b->config, "tokenizer_class"));
    const char *type = json_string_value(json_object_get(part, "type"));
    const json_t *wanted = json_object_get(b->config, "add_prefix_space");
    bool builds = false;
    for (size_t i = 0; i < AX_COUNT(classes); i++)
        builds |= class && !strncmp(class, classes[i], strlen(classes[i]));
    size_t i;
    json_t *member;
    json_array_foreach(json_object_get(part, "pretokenizers"), i, member)
        AX_TRY(take_prefix_space(b, member, first && !i));
    if (!builds || !json_is_boolean(wanted) || !type || strcmp(type, "ByteLevel"))
        return AX_OK;
    AX_CHECK(
        first || json_is_false(wanted), AX_ERR_DATA,
        "%s: add_prefix_space of the tokenizer_config.json beside it is true, so that %s puts a space before "
        "each piece into which the pre_tokenizer cuts a text, which is not supported: set it to false, with "
        "which the published tokenizers of this class were made",
        b->where, class);
    b->changed |= json_is_true(json_object_get(part, "add_prefix_space")) != json_is_true(wanted);
    return stored(b, json_object_set_new(part, "add_prefix_space", json_boolean(json_is_true(wanted))));
}

/* ---- tokens around a text ---- */

static json_t *one_item(const char *kind, const char *id)
{
    return json_pack("{s:{s:s, s:i}}", kind, "id", id, "type_id", 0);
}

/* Appends the special token `key` of the configuration to `single`, and its id to `specials`, if `wanted` is
 * true and the token is there. */
static ax_status add_around(const beside *b, const char *wanted, const char *key, json_t *single,
                            json_t *specials)
{
    const char *content =
        json_is_true(json_object_get(b->config, wanted)) ? content_of(json_object_get(b->config, key)) : NULL;
    const json_t *entry = content ? find_added(b->added, content) : NULL;
    if (!entry)
        return AX_OK;
    json_t *made = json_pack("{s:s, s:[I], s:[s]}", "id", content, "ids",
                             json_integer_value(json_object_get(entry, "id")), "tokens", content);
    AX_TRY(stored(b, json_object_set_new(specials, content, made)));
    return stored(b, json_array_append_new(single, one_item("SpecialToken", content)));
}

/* Sets post_processor as add_bos_token and add_eos_token of tokenizer_config.json say. A tokenizer.json says
 * itself which tokens are put around a text: transformers then ignores the two keys. */
static ax_status take_template(beside *b)
{
    json_t *single = json_array(), *specials = json_object(), *pair = NULL;
    ax_status status = add_around(b, "add_bos_token", "bos_token", single, specials);
    if (status == AX_OK)
        status = stored(b, json_array_append_new(single, one_item("Sequence", "A")));
    if (status == AX_OK)
        status = add_around(b, "add_eos_token", "eos_token", single, specials);
    if (status == AX_OK && json_object_size(specials)) {
        pair = json_deep_copy(single);
        status = stored(b, json_array_append_new(pair, one_item("Sequence", "B")));
    }
    if (status == AX_OK && pair) {
        json_t *made = json_pack("{s:s, s:O, s:O, s:O}", "type", "TemplateProcessing", "single", single,
                                 "pair", pair, "special_tokens", specials);
        status = stored(b, json_object_set_new(b->root, "post_processor", made));
        b->changed = true;
    }
    json_decref(single);
    json_decref(specials);
    json_decref(pair);
    return status;
}

/* Adds to `root`, the contents of tokenizer.json, what `config`, `map` (special_tokens_map.json) and `more`
 * (added_tokens.json) say. `complete`: tokenizer.json says which tokens are put around a text. */
static ax_status take_beside(const char *where, json_t *root, bool complete, json_t *config,
                             const json_t *map, json_t *more, bool *changed)
{
    beside b = {.where = where, .root = root, .config = config};
    json_t *decoder = json_object_get(config, "added_tokens_decoder");
    const json_t *added = json_object_get(root, "added_tokens");
    if (!added || json_is_null(added))
        AX_TRY(stored(&b, json_object_set_new(root, "added_tokens", json_array())));
    b.added = json_object_get(root, "added_tokens");
    if (!json_is_array(b.added))
        return AX_OK; /* tok_parse refuses it */
    if (!decoder && json_is_object(map))
        AX_TRY(stored(&b, json_object_update(config, (json_t *)(uintptr_t)map)));
    AX_TRY(take_numbered(&b, decoder ? decoder : more, decoder != NULL));
    AX_TRY(take_names(&b));
    AX_TRY(take_prefix_space(&b, json_object_get(root, "pre_tokenizer"), true));
    if (!complete)
        AX_TRY(take_template(&b));
    *changed = b.changed;
    return AX_OK;
}

/* Reads the JSON file `name` of the directory `dir`. Sets *root to NULL if there is no such file. */
static ax_status read_beside(const char *dir, const char *name, json_t **root)
{
    char *path;
    AX_TRY(ax_path_join(dir, name, &path));
    ax_status status = ax_path_is_given(path) ? ax_json_read_file(path, 0, root) : AX_OK;
    free(path);
    return status;
}

/* Replaces *text by `root` as text. */
static ax_status replace_text(const char *where, const json_t *root, size_t flags, char **text, size_t *size)
{
    char *made = json_dumps(root, flags);
    AX_CHECK(made, AX_ERR_MEMORY, "not enough memory for the text of %s", where);
    free(*text);
    *text = made;
    *size = strlen(made);
    return AX_OK;
}

ax_status tok_add_beside(const char *where, const char *dir, json_t *root, json_t *config, ax_tokenizer *tok)
{
    json_t *map = NULL, *more = NULL, *before = json_copy(config);
    bool changed = false;
    ax_status status = dir ? read_beside(dir, "special_tokens_map.json", &map) : AX_OK;
    if (status == AX_OK && dir)
        status = read_beside(dir, "added_tokens.json", &more);
    if (status == AX_OK)
        status = take_beside(where, root, dir != NULL, config, map, more, &changed);
    if (status == AX_OK && changed)
        status = replace_text(where, root, JSON_COMPACT, &tok->json, &tok->json_size);
    if (status == AX_OK && !json_equal(before, config))
        status =
            replace_text("tokenizer_config.json", config, JSON_INDENT(2), &tok->config, &tok->config_size);
    json_decref(before);
    json_decref(map);
    json_decref(more);
    return status;
}
