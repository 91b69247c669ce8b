/* Makes an ax_tokenizer of the texts of tokenizer.json and tokenizer_config.json: vocabulary, merges, added
 * tokens (entries of added_tokens, such as special tokens). files.c reads the files; parts.c parses
 * the members beside "model": normalizer, pre_tokenizer, post_processor, decoder. config.c applies
 * tokenizer_config.json. */
#include "token/tok.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
    MAX_IDS = 1 << 24,
    SPARE_IDS = 1 << 16 /* the largest id must be below SPARE_IDS plus 8 times the number of tokens, because
                           memory is allocated for unused ids too */
};

typedef struct loader {
    const char *where;
    ax_tokenizer *tok;
    bool cuts;        /* pieces may be cut where no merge joins two characters (join.c) */
    bool joins_bytes; /* a merge joins unk_token or a byte token, so pieces must not be cut */
    XXH3_state_t hash;
} loader;

static void hash_bytes(loader *l, const void *bytes, size_t n)
{
    uint64_t size = n;
    XXH3_64bits_update(&l->hash, &size, sizeof size);
    XXH3_64bits_update(&l->hash, bytes, n);
}

static void hash_number(loader *l, int64_t number) { XXH3_64bits_update(&l->hash, &number, sizeof number); }

static ax_status get_id(const loader *l, const json_t *value, const char *token, int32_t *id)
{
    json_int_t number = json_integer_value(value);
    AX_CHECK(json_is_integer(value) && number >= 0 && number < MAX_IDS, AX_ERR_DATA,
             "%s: the id of token \"%s\" is not an integer from 0 to %d", l->where, token, MAX_IDS - 1);
    *id = (int32_t)number;
    return AX_OK;
}

static ax_status get_flag(const loader *l, const json_t *object, const char *field, bool *flag)
{
    const json_t *value = json_object_get(object, field);
    AX_CHECK(!value || json_is_null(value) || json_is_boolean(value), AX_ERR_DATA,
             "%s: the member %s is %s, not true or false", l->where, field, tok_json_kind(value));
    *flag = json_is_true(value);
    return AX_OK;
}

/* ---- vocabulary ---- */

static ax_status check_added(const loader *l, const json_t *added)
{
    json_t *seen = json_object();
    const char *twice = NULL;
    size_t i;
    const json_t *value;
    json_array_foreach(added, i, value)
    {
        const char *content = json_string_value(json_object_get(value, "content"));
        twice = content && json_object_get(seen, content) ? content : twice;
        if (content)
            json_object_set_new(seen, content, json_null());
    }
    ax_status status =
        twice ? ax_fail(AX_ERR_DATA, "%s: \"%s\" is in added_tokens twice", l->where, twice) : AX_OK;
    json_decref(seen);
    return status;
}

static ax_status count_ids(loader *l, json_t *vocab, const json_t *added)
{
    ax_tokenizer *tok = l->tok;
    const char *name;
    json_t *value;
    int32_t id = 0;
    size_t i;
    json_object_foreach(vocab, name, value)
    {
        AX_TRY(get_id(l, value, name, &id));
        tok->n_ids = (int32_t)ax_max(tok->n_ids, id + 1);
    }
    AX_TRY(check_added(l, added));
    json_array_foreach(added, i, value)
    {
        const char *content = json_string_value(json_object_get(value, "content"));
        AX_CHECK(content && *content, AX_ERR_DATA, "%s: added_tokens[%zu] has no content", l->where, i);
        AX_TRY(get_id(l, json_object_get(value, "id"), content, &id));
        tok->n_ids = (int32_t)ax_max(tok->n_ids, id + 1);
    }
    AX_CHECK(tok->n_ids, AX_ERR_DATA, "%s: model.vocab and added_tokens are empty: a tokenizer needs tokens",
             l->where);
    size_t tokens = json_object_size(vocab) + json_array_size(added);
    AX_CHECK((size_t)tok->n_ids <= SPARE_IDS + 8 * tokens, AX_ERR_DATA,
             "%s has %zu tokens, but ids up to %d, most of them unused: is the file damaged?", l->where,
             tokens, tok->n_ids - 1);
    return ax_calloc((size_t)tok->n_ids, sizeof *tok->pieces, &tok->pieces);
}

/* Appends to l->tok->bytes the text that the token `name` decodes to. `first`: the token is the first one of
 * the decoded text. Sets *start to the offset of the appended text in l->tok->bytes, and *size to its
 * length. */
static ax_status add_text(loader *l, const char *name, size_t n, bool first, size_t *start, uint32_t *size)
{
    ax_buf *bytes = &l->tok->bytes;
    *start = bytes->size;
    AX_TRY(tok_name_text(l->tok, name, n, first, bytes));
    *size = (uint32_t)(bytes->size - *start);
    return AX_OK;
}

/* Sets the name of token `id` and the texts that the token decodes to. The texts are computed from `spelled`:
 * the name or, for an added token that is matched in normalized text, the normalized name. `named` is the
 * name that error messages show. */
static ax_status set_piece(loader *l, int32_t id, const char *named, const char *name, size_t n,
                           const char *spelled, size_t n_spelled)
{
    tok_piece *piece = &l->tok->pieces[id];
    ax_buf *bytes = &l->tok->bytes;
    AX_CHECK(!piece->name_size, AX_ERR_DATA,
             "%s: two tokens have the id %d, one of them \"%s\": give each an id of its own", l->where, id,
             named);
    AX_CHECK(n && n <= UINT32_MAX, AX_ERR_DATA, "%s: the token with id %d has an empty name", l->where, id);
    piece->name = piece->text = piece->first = bytes->size;
    piece->name_size = piece->text_size = piece->first_size = (uint32_t)n;
    AX_TRY(ax_buf_add(bytes, name, n));
    if (l->tok->byte_level && spelled == name)
        return AX_OK;
    AX_TRY(add_text(l, spelled, n_spelled, false, &piece->text, &piece->text_size));
    return add_text(l, spelled, n_spelled, true, &piece->first, &piece->first_size);
}

static ax_status add_vocab(loader *l, json_t *vocab)
{
    const char *name;
    json_t *value;
    ax_buf bytes = {0};
    ax_status status = AX_OK;
    json_object_foreach(vocab, name, value)
    {
        size_t n = strlen(name), size;
        int32_t id = (int32_t)json_integer_value(value);
        status = ax_buf_reserve(&bytes, n);
        if (status != AX_OK)
            break;
        bool spelled = l->tok->byte_level && tok_name_bytes(name, n, bytes.data, &size);
        const char *key = spelled ? bytes.data : name;
        size = spelled ? size : n;
        status = set_piece(l, id, name, key, size, key, size);
        if (status != AX_OK)
            break;
        l->tok->pieces[id].in_model = spelled || !l->tok->byte_level;
    }
    ax_buf_fini(&bytes);
    return status;
}

static ax_status index_pieces(ax_tokenizer *tok)
{
    uint64_t slots = 16;
    while (slots < 2 * (uint64_t)tok->n_ids)
        slots *= 2;
    tok->by_name_mask = slots - 1;
    AX_TRY(ax_calloc(slots, sizeof *tok->by_name, &tok->by_name));
    memset(tok->by_name, -1, slots * sizeof *tok->by_name);
    memset(tok->byte_id, -1, sizeof tok->byte_id);
    for (int32_t id = 0; id < tok->n_ids; id++) {
        const tok_piece *piece = &tok->pieces[id];
        if (!piece->in_model)
            continue;
        const char *name = tok->bytes.data + piece->name;
        uint64_t i = XXH3_64bits(name, piece->name_size) & tok->by_name_mask;
        while (tok->by_name[i] >= 0)
            i = (i + 1) & tok->by_name_mask;
        tok->by_name[i] = id;
        if (piece->name_size == 1)
            tok->byte_id[(unsigned char)name[0]] = id;
    }
    return AX_OK;
}

/* ---- merges ---- */

static void set_rule(ax_tokenizer *tok, uint64_t pair, int32_t rank, int32_t id)
{
    uint64_t i = (pair * UINT64_C(0x9E3779B97F4A7C15)) >> tok->rules_shift;
    while (tok->rules[i].pair != TOK_NO_PAIR && tok->rules[i].pair != pair)
        i = (i + 1) & tok->rules_mask;
    tok->rules[i] = (tok_rule){.pair = pair, .rank = rank, .id = id};
}

static ax_status init_rules(ax_tokenizer *tok, size_t n)
{
    size_t slots = 16;
    tok->rules_shift = 60;
    for (; slots < 2 * n; slots *= 2)
        tok->rules_shift--;
    tok->rules_mask = slots - 1;
    AX_TRY(ax_calloc(slots, sizeof *tok->rules, &tok->rules));
    for (size_t i = 0; i < slots; i++)
        tok->rules[i].pair = TOK_NO_PAIR;
    return AX_OK;
}

/* Sets `names` to the two names of a merge, "a b" or ["a", "b"], each NUL-terminated. Sets *right to the
 * second name. */
static ax_status merge_names(const loader *l, size_t rank, const json_t *merge, ax_buf *names,
                             const char **right)
{
    const char *text = json_string_value(merge), *space = text ? strchr(text, ' ') : NULL;
    names->size = 0;
    if (text && space && space > text && space[1] && !strchr(space + 1, ' ')) {
        AX_TRY(ax_buf_add(names, text, strlen(text) + 1));
        names->data[space - text] = 0;
        *right = names->data + (space - text) + 1;
        return AX_OK;
    }
    const char *a = json_string_value(json_array_get(merge, 0));
    const char *b = json_string_value(json_array_get(merge, 1));
    AX_CHECK(a && b && json_array_size(merge) == 2, AX_ERR_DATA,
             "%s: model.merges[%zu] is neither \"a b\" nor [\"a\", \"b\"]", l->where, rank);
    AX_TRY(ax_buf_add(names, a, strlen(a) + 1));
    AX_TRY(ax_buf_add(names, b, strlen(b) + 1));
    *right = names->data + strlen(a) + 1;
    return AX_OK;
}

static ax_status vocab_id(const loader *l, size_t rank, const json_t *vocab, const char *name, int32_t *id)
{
    const json_t *value = json_object_get(vocab, name);
    AX_CHECK(value, AX_ERR_DATA, "%s: model.merges[%zu] needs the token \"%s\", which is not in model.vocab",
             l->where, rank, name);
    *id = (int32_t)json_integer_value(value);
    return AX_OK;
}

/* Returns true if token `id` stands for characters that have no token of their own: if it is unk_token or a
 * byte token. */
static bool is_stand_in(const ax_tokenizer *tok, int32_t id)
{
    bool found = id == tok->unk;
    for (size_t i = 0; i < AX_COUNT(tok->fallback_id); i++)
        found |= id == tok->fallback_id[i];
    return found;
}

static ax_status add_merge(loader *l, size_t rank, const json_t *vocab, const json_t *merge, ax_buf *names)
{
    const char *right = NULL;
    int32_t a = 0, b = 0, ab = 0;
    AX_TRY(merge_names(l, rank, merge, names, &right));
    AX_TRY(vocab_id(l, rank, vocab, names->data, &a));
    AX_TRY(vocab_id(l, rank, vocab, right, &b));
    size_t left_size = strlen(names->data);
    if (l->cuts) {
        AX_TRY(tok_join_add(&l->tok->joins, names->data, right));
        l->joins_bytes |= is_stand_in(l->tok, a) || is_stand_in(l->tok, b);
    }
    memmove(names->data + left_size, right, strlen(right) + 1);
    AX_TRY(vocab_id(l, rank, vocab, names->data, &ab));
    set_rule(l->tok, tok_pair(a, b), (int32_t)rank, ab);
    hash_number(l, a);
    hash_number(l, b);
    return AX_OK;
}

static ax_status add_merges(loader *l, const json_t *vocab, const json_t *merges)
{
    AX_CHECK(json_is_array(merges), AX_ERR_DATA, "%s: model.merges is %s, not an array", l->where,
             tok_json_kind(merges));
    AX_CHECK(json_array_size(merges) < INT32_MAX, AX_ERR_DATA,
             "%s: model.merges has %zu merges; at most %d are supported", l->where, json_array_size(merges),
             INT32_MAX - 1);
    AX_TRY(init_rules(l->tok, json_array_size(merges)));
    ax_buf names = {0};
    ax_status status = AX_OK;
    for (size_t i = 0; i < json_array_size(merges) && status == AX_OK; i++)
        status = add_merge(l, i, vocab, json_array_get(merges, i), &names);
    ax_buf_fini(&names);
    return status;
}

/* ---- model ---- */

/* Fails if the member "model" sets one of the options `fields`, which are not supported here. An option that
 * is missing, or has the value null, false, 0 or "", counts as not set. */
static ax_status refuse_variants(const loader *l, const json_t *model)
{
    static const char *const fields[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < AX_COUNT(fields); i++) {
        const json_t *value = json_object_get(model, fields[i]);
        const char *text = json_string_value(value);
        bool unset = !value || json_is_null(value) || json_is_false(value) || (text && !*text) ||
                     (json_is_number(value) && json_number_value(value) == 0);
        AX_CHECK(unset, AX_ERR_DATA,
                 "%s: model.%s is set, but only BPE without it is supported: use another tokenizer", l->where,
                 fields[i]);
    }
    return AX_OK;
}

static ax_status find_unk(loader *l, const json_t *model, const json_t *vocab)
{
    const char *unk = json_string_value(json_object_get(model, "unk_token"));
    const json_t *id = unk ? json_object_get(vocab, unk) : NULL;
    AX_CHECK(!unk || id, AX_ERR_DATA, "%s: model.unk_token \"%s\" is not in model.vocab", l->where, unk);
    l->tok->unk = unk ? (int32_t)json_integer_value(id) : -1;
    return AX_OK;
}

/* Finds the byte tokens <0x00> to <0xFF>. Decides whether pieces may be cut (join.c): only in a tokenizer
 * that is not byte-level and does not set ignore_merges, and only if a character without a token is encoded
 * independently of its neighbours. This is so if all 256 byte tokens exist, or if each such character becomes
 * an unk_token of its own. */
static ax_status find_fallback(loader *l, const json_t *model)
{
    ax_tokenizer *tok = l->tok;
    bool fallback, complete = true;
    AX_TRY(get_flag(l, model, "byte_fallback", &fallback));
    AX_CHECK(!fallback || !tok->byte_level, AX_ERR_DATA,
             "%s: model.byte_fallback is not supported with pre_tokenizer ByteLevel", l->where);
    for (unsigned byte = 0; byte < AX_COUNT(tok->fallback_id); byte++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", byte);
        tok->fallback_id[byte] = fallback ? tok_find(tok, name, strlen(name)) : -1;
        complete &= tok->fallback_id[byte] >= 0;
    }
    l->cuts = !tok->byte_level && !tok->ignore_merges &&
              (complete || (tok->unk >= 0 && !tok->fuse_unk && !fallback));
    return AX_OK;
}

static ax_status parse_model(loader *l, const json_t *model, const json_t *added)
{
    ax_tokenizer *tok = l->tok;
    const char *type = json_string_value(json_object_get(model, "type"));
    json_t *vocab = json_object_get(model, "vocab");
    AX_CHECK(json_is_object(model), AX_ERR_DATA, "%s: model is %s, not an object", l->where,
             tok_json_kind(model));
    AX_CHECK(!type || !strcmp(type, "BPE"), AX_ERR_DATA, "%s: model.type is %s; only BPE is supported",
             l->where, type);
    AX_CHECK(json_is_object(vocab), AX_ERR_DATA, "%s: model.vocab is %s, not an object", l->where,
             tok_json_kind(vocab));
    AX_TRY(refuse_variants(l, model));
    AX_TRY(get_flag(l, model, "ignore_merges", &tok->ignore_merges));
    AX_TRY(get_flag(l, model, "fuse_unk", &tok->fuse_unk));
    AX_TRY(count_ids(l, vocab, added));
    AX_TRY(add_vocab(l, vocab));
    AX_TRY(index_pieces(tok));
    AX_TRY(find_unk(l, model, vocab));
    AX_TRY(find_fallback(l, model));
    AX_TRY(add_merges(l, vocab, json_object_get(model, "merges")));
    if (l->joins_bytes) {
        free(tok->joins);
        tok->joins = NULL;
    }
    return AX_OK;
}

/* ---- added tokens ---- */

/* Sets the text by which an added token is found in documents: `content`, which is normalized if
 * a->normalized is set. */
static ax_status set_content(loader *l, const char *content, tok_added *a)
{
    static const tok_steps none;
    ax_buf work[2] = {{0}};
    size_t n = strlen(content);
    const char *text = content;
    ax_status status =
        tok_steps_run(a->normalized ? &l->tok->normalizer : &none, TOK_AT_BEGINNING, &text, &n, work);
    if (status == AX_OK && !n)
        status =
            ax_fail(AX_ERR_DATA,
                    "%s: the normalizer turns the added token \"%s\" into an empty text, so it could never "
                    "be found: set \"normalized\": false in its entry of added_tokens, or remove the entry",
                    l->where, content);
    if (status == AX_OK)
        status = ax_strndup(text, n, &a->content);
    a->size = n;
    ax_buf_fini(&work[0]);
    ax_buf_fini(&work[1]);
    return status;
}

static ax_status add_token(loader *l, const json_t *entry, const json_t *vocab)
{
    ax_tokenizer *tok = l->tok;
    tok_added *a = &tok->added[tok->n_added++];
    const char *content = json_string_value(json_object_get(entry, "content"));
    const json_t *known = json_object_get(vocab, content);
    *a = (tok_added){.id = (int32_t)json_integer_value(json_object_get(entry, "id"))};
    AX_TRY(get_flag(l, entry, "special", &a->special));
    AX_TRY(get_flag(l, entry, "lstrip", &a->lstrip));
    AX_TRY(get_flag(l, entry, "rstrip", &a->rstrip));
    AX_TRY(get_flag(l, entry, "single_word", &a->single_word));
    AX_TRY(get_flag(l, entry, "normalized", &a->normalized));
    AX_CHECK(!known || json_integer_value(known) == a->id, AX_ERR_DATA,
             "%s: \"%s\" has the id %d in added_tokens and %lld in model.vocab, but must have one id",
             l->where, content, a->id, (long long)json_integer_value(known));
    AX_TRY(set_content(l, content, a));
    tok_piece *piece = &tok->pieces[a->id];
    size_t n = strlen(content);
    /* In a byte-level vocabulary, each character of a name stands for one byte. The name of an added token is
     * its text instead. If the two give different bytes, merging must not produce this token. */
    if (known && tok->byte_level && piece->in_model && n != piece->name_size)
        piece->in_model = false;
    if (known)
        piece->name_size = 0;
    AX_TRY(set_piece(l, a->id, content, content, n, a->content, a->size));
    piece->special = a->special;
    hash_bytes(l, a->content, a->size);
    hash_number(l, a->special | a->lstrip << 1 | a->rstrip << 2 | a->single_word << 3 | a->normalized << 4);
    return AX_OK;
}

static ax_status add_tokens(loader *l, const json_t *added, const json_t *vocab)
{
    ax_tokenizer *tok = l->tok;
    AX_TRY(ax_calloc(json_array_size(added), sizeof *tok->added, &tok->added));
    for (size_t i = 0; i < json_array_size(added); i++)
        AX_TRY(add_token(l, json_array_get(added, i), vocab));
    AX_TRY(tok_tree_init(&tok->raw_tree, tok->added, tok->n_added, false));
    return tok_tree_init(&tok->normal_tree, tok->added, tok->n_added, true);
}

/* ---- the whole ---- */

/* Hashes the settings that earlier versions of this program did not support. Not called for byte-level
 * tokenizers whose normalizer is empty or a single Unicode normal form, so that their hashes stay those of
 * earlier versions. */
static void hash_text_kind(loader *l)
{
    const ax_tokenizer *tok = l->tok;
    for (int i = 0; i < tok->normalizer.n; i++) {
        const tok_step *step = &tok->normalizer.step[i];
        hash_number(l, step->form);
        hash_bytes(l, step->find, step->find ? strlen(step->find) : 0);
        hash_bytes(l, step->put, strlen(step->put));
    }
    hash_bytes(l, tok->space, tok->space ? strlen(tok->space) : 0);
    const int64_t rest[] = {tok->byte_level, tok->split_spaces};
    hash_bytes(l, rest, sizeof rest);
    hash_bytes(l, tok->fallback_id, sizeof tok->fallback_id);
}

static void hash_rest(loader *l)
{
    const ax_tokenizer *tok = l->tok;
    const tok_steps *normalizer = &tok->normalizer;
    bool one_form = normalizer->n == 1 && normalizer->step[0].form;
    for (int32_t id = 0; id < tok->n_ids; id++)
        hash_bytes(l, tok->bytes.data + tok->pieces[id].name, tok->pieces[id].name_size);
    for (int i = 0; i < tok->n_stages; i++) {
        hash_bytes(l, tok->stages[i].pattern, strlen(tok->stages[i].pattern));
        hash_number(l, tok->stages[i].drop_gaps);
    }
    hash_bytes(l, tok->before.data, tok->before.size * sizeof *tok->before.data);
    hash_bytes(l, tok->after.data, tok->after.size * sizeof *tok->after.data);
    const int64_t rest[] = {one_form ? normalizer->step[0].form : 0,
                            tok->prefix,
                            tok->ignore_merges,
                            tok->unk,
                            tok->fuse_unk,
                            tok->eos};
    hash_bytes(l, rest, sizeof rest);
    if (!tok->byte_level || (normalizer->n && !one_form))
        hash_text_kind(l);
    if (tok->split_specials)
        hash_number(l, true);
}

static ax_status check_template(const loader *l, const ax_ids *ids)
{
    for (size_t i = 0; i < ids->size; i++)
        AX_CHECK(ids->data[i] < l->tok->n_ids && l->tok->pieces[ids->data[i]].name_size, AX_ERR_DATA,
                 "%s: post_processor adds token %d, which is not in the vocabulary", l->where, ids->data[i]);
    return AX_OK;
}

static ax_status parse_roots(loader *l, const json_t *root, const json_t *config)
{
    ax_tokenizer *tok = l->tok;
    const json_t *model = json_object_get(root, "model"), *added = json_object_get(root, "added_tokens");
    AX_CHECK(!added || json_is_null(added) || json_is_array(added), AX_ERR_DATA,
             "%s: added_tokens is %s, not an array", l->where, tok_json_kind(added));
    XXH3_64bits_reset(&l->hash);
    AX_TRY(tok_parse_parts(l->where, root, tok));
    AX_TRY(parse_model(l, model, added));
    AX_TRY(add_tokens(l, added, json_object_get(model, "vocab")));
    AX_TRY(check_template(l, &tok->before));
    AX_TRY(check_template(l, &tok->after));
    AX_TRY(tok_apply_config(l->where, config, tok));
    hash_rest(l);
    tok->hash = XXH3_64bits_digest(&l->hash);
    return AX_OK;
}

static ax_status parse_json(const char *where, const char *text, size_t size, json_t **root)
{
    AX_TRY(ax_json_parse(where, text, size, JSON_REJECT_DUPLICATES, root));
    AX_CHECK(json_is_object(*root), AX_ERR_DATA, "%s holds %s, not a JSON object", where,
             tok_json_kind(*root));
    return AX_OK;
}

ax_status tok_parse(const char *where, const char *dir, char *json, size_t json_size, char *config,
                    size_t config_size, ax_tokenizer **out)
{
    loader l = {.where = where};
    ax_status status = ax_calloc(1, sizeof *l.tok, &l.tok);
    if (status != AX_OK) {
        free(json);
        free(config);
        return status;
    }
    *l.tok = (ax_tokenizer){
        .json = json, .json_size = json_size, .config = config, .config_size = config_size, .eos = -1};
    json_t *root = NULL, *config_root = NULL;
    status = parse_json(where, json, json_size, &root);
    if (status == AX_OK && config &&
        (status = parse_json("tokenizer_config.json", config, config_size, &config_root)) != AX_OK)
        ax_error_context("beside %s", where);
    if (status == AX_OK && !config && !(config_root = json_object()))
        status = ax_fail(AX_ERR_MEMORY, "not enough memory to load %s", where);
    if (status == AX_OK)
        status = tok_add_beside(where, dir, root, config_root, l.tok);
    if (status == AX_OK)
        status = parse_roots(&l, root, config_root);
    json_decref(root);
    json_decref(config_root);
    if (status != AX_OK)
        ax_tokenizer_destroy(&l.tok);
    *out = l.tok;
    return status;
}
