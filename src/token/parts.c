/* Reads the members of a tokenizer.json beside "model": normalizer, pre_tokenizer and post_processor
 * (decode.c reads decoder). Parts that are not implemented here are errors, whose message names the
 * field. */
#include "token/tok.h"

#include <string.h>

const char *tok_json_kind(const json_t *value)
{
    if (!value)
        return "missing";
    static const char *const kinds[] = {
        [JSON_OBJECT] = "an object",   [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "an integer", [JSON_REAL] = "a number",  [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",        [JSON_NULL] = "null"};
    return kinds[json_typeof(value)];
}

ax_status tok_part_type(const char *where, const char *field, const json_t *part, const char **type)
{
    *type = NULL;
    if (!part || json_is_null(part))
        return AX_OK;
    *type = json_string_value(json_object_get(part, "type"));
    AX_CHECK(*type, AX_ERR_DATA, "%s: %s has no member \"type\" that is a string", where, field);
    return AX_OK;
}

ax_status tok_sequence_members(const char *where, const char *field, const json_t *part, const char *key,
                               const json_t **members)
{
    *members = json_object_get(part, key);
    AX_CHECK(json_is_array(*members), AX_ERR_DATA, "%s: the member %s.%s is %s, not an array", where, field,
             key, tok_json_kind(*members));
    return AX_OK;
}

ax_status tok_add_step(const char *where, const char *field, int form, const char *find, const char *put,
                       tok_steps *steps)
{
    AX_CHECK(steps->n < TOK_MAX_STEPS, AX_ERR_DATA,
             "%s: %s has more than %d steps, the most that is supported", where, field, TOK_MAX_STEPS);
    tok_step *step = &steps->step[steps->n++];
    *step = (tok_step){.form = form};
    if (find)
        AX_TRY(ax_strdup(find, &step->find));
    return ax_strdup(put, &step->put);
}

ax_status tok_add_replace(const char *where, const char *field, const json_t *part, tok_steps *steps)
{
    const char *find = json_string_value(json_object_get(json_object_get(part, "pattern"), "String"));
    const char *put = json_string_value(json_object_get(part, "content"));
    AX_CHECK(find && *find, AX_ERR_DATA,
             "%s: %s Replace.pattern is not a String of one or more characters, as is supported here", where,
             field);
    AX_CHECK(put, AX_ERR_DATA, "%s: %s Replace.content is %s, not a string", where, field,
             tok_json_kind(json_object_get(part, "content")));
    return tok_add_step(where, field, 0, find, put, steps);
}

static ax_status parse_normalizer(const char *where, const json_t *part, ax_tokenizer *tok)
{
    const char *type;
    tok_steps *steps = &tok->normalizer;
    AX_TRY(tok_part_type(where, "normalizer", part, &type));
    if (!type)
        return AX_OK;
    if (!strcmp(type, "Sequence")) {
        const json_t *members, *member;
        size_t i;
        AX_TRY(tok_sequence_members(where, "normalizer", part, "normalizers", &members));
        json_array_foreach(members, i, member) AX_TRY(parse_normalizer(where, member, tok));
        return AX_OK;
    }
    if (!strcmp(type, "Replace"))
        return tok_add_replace(where, "normalizer", part, steps);
    if (!strcmp(type, "Prepend")) {
        const char *put = json_string_value(json_object_get(part, "prepend"));
        AX_CHECK(put && *put, AX_ERR_DATA,
                 "%s: normalizer Prepend.prepend is not a string of one or more characters", where);
        return tok_add_step(where, "normalizer", 0, NULL, put, steps);
    }
    int form = tok_form_named(type);
    AX_CHECK(form >= 0, AX_ERR_DATA,
             "%s: normalizer %s is not supported (NFC, NFD, NFKC, NFKD, Prepend and Replace are)", where,
             type);
    bool again = steps->n && steps->step[steps->n - 1].form == form;
    return again ? AX_OK : tok_add_step(where, "normalizer", form, NULL, "", steps);
}

static ax_status add_stage(const char *where, const char *pattern, bool drop_gaps, ax_tokenizer *tok)
{
    AX_CHECK(tok->n_stages < TOK_MAX_STAGES, AX_ERR_DATA,
             "%s: pre_tokenizer has more than %d patterns, the most that is supported", where,
             TOK_MAX_STAGES);
    ax_status status = tok_stage_init(&tok->stages[tok->n_stages++], pattern, drop_gaps);
    if (status != AX_OK)
        ax_error_context("%s: pre_tokenizer", where);
    return status;
}

/* Appends to `out` a regular expression that matches the text `literal`. */
static ax_status add_quoted(const char *literal, ax_buf *out)
{
    for (const char *p = literal; *p; p++)
        AX_TRY(ax_buf_printf(out, strchr("\\^$.[]|()?*+{}-&#", *p) ? "\\%c" : "%c", *p));
    return AX_OK;
}

/* Reads a pre_tokenizer of type Split. Behavior Isolated: each match is a piece, and so is the text between
 * two matches. Behavior Removed with `invert`: the text between matches is dropped. */
static ax_status parse_split(const char *where, const json_t *part, ax_tokenizer *tok)
{
    const json_t *pattern = json_object_get(part, "pattern");
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));
    const char *literal = json_string_value(json_object_get(pattern, "String"));
    const char *behavior = json_string_value(json_object_get(part, "behavior"));
    bool invert = json_is_true(json_object_get(part, "invert"));
    AX_CHECK(regex || literal, AX_ERR_DATA, "%s: pre_tokenizer Split.pattern is neither Regex nor String",
             where);
    bool removed = behavior && invert && !strcmp(behavior, "Removed");
    AX_CHECK(removed || (behavior && !strcmp(behavior, "Isolated")), AX_ERR_DATA,
             "%s: pre_tokenizer Split.behavior %s%s is not supported (Isolated is, and Removed with invert)",
             where, behavior ? behavior : "(missing)", invert ? " with invert" : "");
    if (regex)
        return add_stage(where, regex, removed, tok);
    ax_buf quoted = {0};
    ax_status status = add_quoted(literal, &quoted);
    if (status == AX_OK)
        status = add_stage(where, quoted.data ? quoted.data : "", removed, tok);
    ax_buf_fini(&quoted);
    return status;
}

static ax_status parse_byte_level(const char *where, const json_t *part, ax_tokenizer *tok)
{
    const json_t *use_regex = json_object_get(part, "use_regex");
    const json_t *prefix = json_object_get(part, "add_prefix_space");
    AX_CHECK(!use_regex || json_is_boolean(use_regex), AX_ERR_DATA,
             "%s: ByteLevel.use_regex is %s, not true or false", where, tok_json_kind(use_regex));
    AX_CHECK(json_is_boolean(prefix), AX_ERR_DATA, "%s: ByteLevel.add_prefix_space is %s, not true or false",
             where, tok_json_kind(prefix));
    AX_CHECK(!json_is_true(prefix) || !tok->n_stages, AX_ERR_DATA,
             "%s: ByteLevel.add_prefix_space after another pre_tokenizer is not supported", where);
    AX_CHECK(!tok->space, AX_ERR_DATA, "%s: pre_tokenizer ByteLevel after Metaspace is not supported", where);
    tok->prefix = json_is_true(prefix) ? TOK_PREFIX_ALWAYS : TOK_PREFIX_NEVER;
    return json_is_false(use_regex) ? AX_OK : add_stage(where, tok_pattern_named("gpt2"), false, tok);
}

/* Sets *prefix (when a space is put before a text) from the member prepend_scheme or, in older files,
 * add_prefix_space. */
static ax_status metaspace_prefix(const char *where, const char *field, const json_t *part,
                                  tok_prefix *prefix)
{
    static const char *const names[] = {
        [TOK_PREFIX_NEVER] = "never", [TOK_PREFIX_ALWAYS] = "always", [TOK_PREFIX_FIRST] = "first"};
    const json_t *scheme = json_object_get(part, "prepend_scheme");
    const char *name = json_string_value(scheme);
    bool refused = json_is_false(json_object_get(part, "add_prefix_space"));
    if (!scheme)
        name = names[refused ? TOK_PREFIX_NEVER : TOK_PREFIX_ALWAYS];
    size_t i = 0;
    while (i < AX_COUNT(names) && name && strcmp(names[i], name))
        i++;
    AX_CHECK(name && i < AX_COUNT(names), AX_ERR_DATA,
             "%s: %s Metaspace.prepend_scheme is not always, first or never", where, field);
    *prefix = (tok_prefix)i;
    AX_CHECK(!refused || *prefix == TOK_PREFIX_NEVER, AX_ERR_DATA,
             "%s: %s Metaspace has prepend_scheme \"%s\", but add_prefix_space is false", where, field, name);
    return AX_OK;
}

ax_status tok_parse_metaspace(const char *where, const char *field, const json_t *part, const char **space,
                              tok_prefix *prefix)
{
    *space = json_string_value(json_object_get(part, "replacement"));
    AX_CHECK(*space && **space && tok_utf8_size((unsigned char)**space) == strlen(*space), AX_ERR_DATA,
             "%s: %s Metaspace.replacement is not one character", where, field);
    return metaspace_prefix(where, field, part, prefix);
}

static ax_status parse_metaspace(const char *where, const json_t *part, ax_tokenizer *tok)
{
    const char *space;
    const json_t *split = json_object_get(part, "split");
    AX_CHECK(!tok->space && !tok->n_stages, AX_ERR_DATA,
             "%s: pre_tokenizer Metaspace after another pre_tokenizer is not supported", where);
    AX_TRY(tok_parse_metaspace(where, "pre_tokenizer", part, &space, &tok->prefix));
    AX_CHECK(!split || json_is_null(split) || json_is_boolean(split), AX_ERR_DATA,
             "%s: pre_tokenizer Metaspace.split is %s, not true or false", where, tok_json_kind(split));
    tok->split_spaces = !json_is_false(split);
    return ax_strdup(space, &tok->space);
}

static ax_status parse_pre_tokenizer(const char *where, const json_t *part, ax_tokenizer *tok)
{
    const char *type;
    AX_TRY(tok_part_type(where, "pre_tokenizer", part, &type));
    if (!type)
        return AX_OK;
    AX_CHECK(!tok->byte_level, AX_ERR_DATA, "%s: pre_tokenizer %s after ByteLevel is not supported", where,
             type);
    if (!strcmp(type, "Sequence")) {
        const json_t *members, *member;
        size_t i;
        AX_TRY(tok_sequence_members(where, "pre_tokenizer", part, "pretokenizers", &members));
        json_array_foreach(members, i, member) AX_TRY(parse_pre_tokenizer(where, member, tok));
        return AX_OK;
    }
    if (!strcmp(type, "ByteLevel")) {
        tok->byte_level = true;
        return parse_byte_level(where, part, tok);
    }
    if (!strcmp(type, "Metaspace"))
        return parse_metaspace(where, part, tok);
    if (!strcmp(type, "Split"))
        return parse_split(where, part, tok);
    if (!strcmp(type, "Digits")) {
        bool each = json_is_true(json_object_get(part, "individual_digits"));
        return add_stage(where, each ? "\\p{N}" : "\\p{N}+", false, tok);
    }
    return ax_fail(AX_ERR_DATA,
                   "%s: pre_tokenizer %s is not supported (ByteLevel, Metaspace, Split and Digits are)",
                   where, type);
}

static ax_status add_template_ids(const char *where, const json_t *specials, const json_t *name, ax_ids *ids)
{
    const char *key = json_string_value(name);
    const json_t *list = key ? json_object_get(json_object_get(specials, key), "ids") : NULL, *item;
    AX_CHECK(json_is_array(list), AX_ERR_DATA,
             "%s: post_processor names the special token \"%s\", but special_tokens does not list its ids",
             where, key ? key : "");
    size_t i;
    json_array_foreach(list, i, item)
    {
        int32_t id = (int32_t)json_integer_value(item);
        AX_CHECK(json_is_integer(item) && json_integer_value(item) == id && id >= 0, AX_ERR_DATA,
                 "%s: post_processor: an id of the special token \"%s\" is not an integer from 0 on", where,
                 key);
        AX_TRY(ax_ids_add(ids, &id, 1));
    }
    return AX_OK;
}

static ax_status parse_template(const char *where, const json_t *part, ax_tokenizer *tok)
{
    const json_t *single = json_object_get(part, "single"), *item;
    AX_CHECK(json_is_array(single), AX_ERR_DATA,
             "%s: post_processor TemplateProcessing.single is %s, not an array", where,
             tok_json_kind(single));
    AX_CHECK(!tok->before.size && !tok->after.size, AX_ERR_DATA,
             "%s: post_processor has two templates; only one is supported", where);
    int sequences = 0;
    size_t i;
    json_array_foreach(single, i, item)
    {
        const json_t *special = json_object_get(item, "SpecialToken");
        if (special)
            AX_TRY(add_template_ids(where, json_object_get(part, "special_tokens"),
                                    json_object_get(special, "id"), sequences ? &tok->after : &tok->before));
        else
            sequences += json_object_get(item, "Sequence") != NULL;
    }
    AX_CHECK(sequences == 1, AX_ERR_DATA,
             "%s: post_processor TemplateProcessing.single has %d sequences instead of 1", where, sequences);
    return AX_OK;
}

static ax_status parse_post_processor(const char *where, const json_t *part, ax_tokenizer *tok)
{
    const char *type;
    AX_TRY(tok_part_type(where, "post_processor", part, &type));
    if (!type || !strcmp(type, "ByteLevel")) /* ByteLevel only changes offsets, not ids */
        return AX_OK;
    if (!strcmp(type, "Sequence")) {
        const json_t *members, *member;
        size_t i;
        AX_TRY(tok_sequence_members(where, "post_processor", part, "processors", &members));
        json_array_foreach(members, i, member) AX_TRY(parse_post_processor(where, member, tok));
        return AX_OK;
    }
    AX_CHECK(!strcmp(type, "TemplateProcessing"), AX_ERR_DATA,
             "%s: post_processor %s is not supported (TemplateProcessing and ByteLevel are)", where, type);
    return parse_template(where, part, tok);
}

ax_status tok_parse_parts(const char *where, const json_t *root, ax_tokenizer *tok)
{
    AX_TRY(parse_normalizer(where, json_object_get(root, "normalizer"), tok));
    AX_TRY(parse_pre_tokenizer(where, json_object_get(root, "pre_tokenizer"), tok));
    AX_TRY(parse_post_processor(where, json_object_get(root, "post_processor"), tok));
    return tok_parse_decoder(where, json_object_get(root, "decoder"), tok);
}
