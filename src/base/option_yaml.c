/* Reads options from YAML files and from key=value arguments.
 *
 * libyaml parses the text into a tree of nodes, each with its line and column. The functions below walk the
 * tree and match nested maps with the dotted keys of the table. Anchors and aliases work; merge keys and tags
 * are not interpreted. */
#include "option_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

typedef struct reader {
    ax_option_set *set;
    yaml_document_t *document;
    const char *name; /* file name; NULL: the text is from the command line, and messages name `place` */
    const char *place;
    const char *typed; /* the value's text on the command line; NULL: the YAML text is a file */
    const char *dir;   /* directory to which relative paths refer */
    char place_text[160];
} reader;

static const char *place_of(reader *r, yaml_mark_t mark)
{
    if (!r->name)
        return r->place;
    snprintf(r->place_text, sizeof r->place_text, "%.120s:%zu:%zu", r->name, mark.line + 1, mark.column + 1);
    return r->place_text;
}

static const char *scalar(const yaml_node_t *node)
{
    return node && node->type == YAML_SCALAR_NODE ? (const char *)node->data.scalar.value : NULL;
}

static const char *kind_of(const yaml_node_t *node)
{
    return node->type == YAML_MAPPING_NODE    ? "a map"
           : node->type == YAML_SEQUENCE_NODE ? "a list"
                                              : "a value";
}

/* Returns true if a value is null: `key:` without a value, ~ or null. */
static bool is_null(const yaml_node_t *node)
{
    const char *text = scalar(node);
    return text && node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (!*text || !strcmp(text, "~") || !strcmp(text, "null"));
}

/* ---- values -------------------------------------------------------------------------------------- */

static ax_status read_weight(const char *text, ax_weighted_path *out)
{
    AX_TRY(option_number(text, &out->weight));
    AX_CHECK(out->weight > 0, AX_ERR_USAGE, "must be greater than 0, not %g", out->weight);
    return AX_OK;
}

static ax_status read_epochs(const char *text, ax_weighted_path *out)
{
    const double most = 1e9;
    double value;
    AX_TRY(option_number(text, &value));
    AX_CHECK(value >= 1 && value <= most && value == (double)(int64_t)value, AX_ERR_USAGE,
             "must be a whole number from 1 to %g, not %s", most, text);
    out->epochs = (int64_t)value;
    return AX_OK;
}

static ax_status read_share(const char *key, const char *text, ax_weighted_path *out)
{
    ax_status status = strcmp(key, "weight") ? read_epochs(text, out) : read_weight(text, out);
    if (status != AX_OK)
        ax_error_context("%s", key);
    return status;
}

/* Reads a map {path: PATH, weight: NUMBER} or {path: PATH, epochs: N}. */
static ax_status weighted_path(reader *r, const yaml_node_t *node, const char **path, ax_weighted_path *out)
{
    for (yaml_node_pair_t *pair = node->data.mapping.pairs.start; pair < node->data.mapping.pairs.top;
         pair++) {
        const char *key = scalar(yaml_document_get_node(r->document, pair->key));
        const char *value = scalar(yaml_document_get_node(r->document, pair->value));
        bool is_path = key && !strcmp(key, "path"), is_weight = key && !strcmp(key, "weight"),
             is_epochs = key && !strcmp(key, "epochs");
        AX_CHECK((is_path || is_weight || is_epochs) && value, AX_ERR_USAGE,
                 "an item must be a path, {path: PATH, weight: NUMBER} or {path: PATH, epochs: N}");
        if (is_path)
            *path = value;
        else
            AX_TRY(read_share(key, value, out));
    }
    AX_CHECK(*path, AX_ERR_USAGE,
             "an item has no path: write {path: PATH, weight: NUMBER} or {path: PATH, epochs: N}");
    AX_CHECK(!out->weight || !out->epochs, AX_ERR_USAGE, "give %s either a weight or epochs, not both",
             *path);
    return AX_OK;
}

static ax_status read_item(reader *r, const ax_option *option, const yaml_node_t *node, size_t n,
                           option_field *field)
{
    const char *text = scalar(node);
    ax_weighted_path share = {0};
    if (node->type == YAML_MAPPING_NODE && option->type == AX_OPT_PATHS)
        AX_TRY(weighted_path(r, node, &text, &share));
    AX_CHECK(text, AX_ERR_USAGE, "must be %s, not %s", option_type_phrase(option), kind_of(node));
    AX_CHECK(!is_null(node), AX_ERR_USAGE, "has no value; remove the line to keep the default");
    AX_CHECK(strlen(text) == (node->type == YAML_SCALAR_NODE ? node->data.scalar.length : strlen(text)),
             AX_ERR_USAGE, "the value holds a NUL character; remove it");
    return option_item(option, text, r->dir, &share, n, field);
}

static ax_status read_node(reader *r, const ax_option *option, const yaml_node_t *node, option_field *field)
{
    if (node->type != YAML_SEQUENCE_NODE || !option_is_list(option)) {
        AX_TRY(read_item(r, option, node, 0, field));
        return option_items_end(option, 1);
    }
    size_t n = 0;
    for (yaml_node_item_t *it = node->data.sequence.items.start; it < node->data.sequence.items.top; it++)
        AX_TRY(read_item(r, option, yaml_document_get_node(r->document, *it), n++, field));
    return option_items_end(option, n);
}

static ax_status read_option(reader *r, const ax_option *option, const yaml_node_t *node)
{
    const char *place = place_of(r, node->start_mark);
    bool claimed = true;
    if (r->typed)
        AX_TRY(option_claim(r->set, option, place, r->typed, &claimed));
    if (!claimed)
        return AX_OK;
    option_field field = {{0}};
    ax_status status = read_node(r, option, node, &field);
    if (status == AX_OK)
        status = option_store(r->set, option, &field, place);
    option_field_fini(option, &field);
    return option_absorb(r->set, option, place, status);
}

/* ---- maps ---------------------------------------------------------------------------------------- */

/* The scalar keys of a map, sorted by name; keys with the same name are in the order of the text. */
typedef struct map_keys {
    const yaml_node_t **key;
    size_t n;
} map_keys;

static int by_name(const void *x, const void *y)
{
    const yaml_node_t *a = *(const yaml_node_t *const *)x, *b = *(const yaml_node_t *const *)y;
    int order = strcmp(scalar(a), scalar(b));
    if (order)
        return order;
    return a->start_mark.index < b->start_mark.index ? -1 : a->start_mark.index > b->start_mark.index;
}

static ax_status sort_keys(reader *r, const yaml_node_t *map, map_keys *out)
{
    const yaml_node_pair_t *pair = map->data.mapping.pairs.start, *top = map->data.mapping.pairs.top;
    *out = (map_keys){0};
    AX_TRY(ax_calloc((size_t)(top - pair), sizeof *out->key, &out->key));
    for (; pair < top; pair++) {
        const yaml_node_t *key = yaml_document_get_node(r->document, pair->key);
        if (scalar(key))
            out->key[out->n++] = key;
    }
    if (out->n)
        qsort(out->key, out->n, sizeof(yaml_node_t *), by_name);
    return AX_OK;
}

/* Returns the first key of the map that has the name of `key`. */
static const yaml_node_t *find_first(const map_keys *keys, const yaml_node_t *key)
{
    size_t low = 0, high = keys->n;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (strcmp(scalar(keys->key[mid]), scalar(key)) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return keys->key[low];
}

static ax_status read_map(reader *r, const char *prefix, const yaml_node_t *map);

/* Reads the map that is the value of the group `full`, or the root of the document if `full` is "". */
static ax_status read_group(reader *r, const char *full, const yaml_node_t *node)
{
    if (node->type == YAML_MAPPING_NODE)
        return read_map(r, full, node);
    if (is_null(node) && *full)
        return AX_OK;
    ax_buf names = {0};
    option_list_group(r->set, full, &names);
    option_report(r->set, place_of(r, node->start_mark), *full ? full : NULL,
                  "must be a map of keys (%s), not %s", names.data, kind_of(node));
    ax_buf_fini(&names);
    return AX_OK;
}

static ax_status read_pair(reader *r, const char *prefix, const map_keys *keys, const yaml_node_pair_t *pair)
{
    const yaml_node_t *key = yaml_document_get_node(r->document, pair->key);
    const yaml_node_t *value = yaml_document_get_node(r->document, pair->value);
    const char *place = place_of(r, key->start_mark), *name = scalar(key);
    char full[128];
    if (!name || strlen(prefix) + strlen(name) + 2 > sizeof full) {
        option_report(r->set, place, *prefix ? prefix : NULL,
                      "a key must be the name of an option, not a list, a map or a long text");
        return AX_OK;
    }
    snprintf(full, sizeof full, "%s%s%s", prefix, *prefix ? "." : "", name);
    const yaml_node_t *first = find_first(keys, key);
    if (first != key) {
        option_report(r->set, place, full, "duplicate key; it is given first in line %zu; keep one",
                      first->start_mark.line + 1);
        return AX_OK;
    }
    const ax_option *option = option_find(r->set, full, strlen(full));
    if (strchr(name, '.') && r->name) {
        option_report(r->set, place, full,
                      "in a file, keys are nested: write %s indented under %.*s:", strchr(name, '.') + 1,
                      (int)strcspn(name, "."), name);
        return AX_OK;
    }
    /* A group may be a key itself, whose value is a word in place of the map. */
    const bool group = option_is_group(r->set, full);
    if (option && !(group && (value->type == YAML_MAPPING_NODE || is_null(value))))
        return read_option(r, option, value);
    if (group)
        return read_group(r, full, value);
    option_unknown(r->set, place, full);
    return AX_OK;
}

static ax_status read_map(reader *r, const char *prefix, const yaml_node_t *map)
{
    map_keys keys;
    AX_TRY(sort_keys(r, map, &keys));
    ax_status status = AX_OK;
    const yaml_node_pair_t *pair = map->data.mapping.pairs.start, *top = map->data.mapping.pairs.top;
    for (; pair < top && status == AX_OK; pair++)
        status = read_pair(r, prefix, &keys, pair);
    free(keys.key);
    return status;
}

/* ---- documents ----------------------------------------------------------------------------------- */

/* Returns true if the indentation of line `line` (counted from 0) of the text contains a tab. */
static bool tab_indents(const char *text, size_t size, size_t line)
{
    const char *at = text, *end = text + size;
    for (; line && at < end; at++)
        line -= *at == '\n';
    for (; at < end && (*at == ' ' || *at == '\t'); at++)
        if (*at == '\t')
            return true;
    return false;
}

static void report_syntax(reader *r, const yaml_parser_t *parser, const char *text, size_t size)
{
    r->set->broken = true;
    if (parser->error == YAML_READER_ERROR) {
        option_report(r->set, r->name ? r->name : r->place, NULL,
                      "not a YAML text: %s at byte %zu (a file of another kind?)", parser->problem,
                      parser->problem_offset);
        return;
    }
    yaml_mark_t mark = parser->problem_mark;
    char context[96] = "";
    if (parser->context)
        snprintf(context, sizeof context, " %s%s", parser->context,
                 parser->context_mark.line != mark.line ? " that starts above" : "");
    if (r->name && tab_indents(text, size, mark.line))
        option_report(r->set, place_of(r, mark), NULL,
                      "the line is indented with a tab; YAML requires spaces");
    else
        option_report(r->set, place_of(r, mark), NULL, "not valid YAML: %s%s", parser->problem, context);
}

static bool load_document(reader *r, yaml_parser_t *parser, yaml_document_t *document, const char *text,
                          size_t size)
{
    bool ok = yaml_parser_load(parser, document);
    if (!ok)
        report_syntax(r, parser, text, size);
    return ok;
}

/* Largest nesting depth of maps and lists. It is limited, because libyaml's time grows with the square of the
 * depth. */
enum { NESTING_MAX = 32 };

static int nesting_of(const yaml_event_t *event)
{
    switch (event->type) {
    case YAML_SEQUENCE_START_EVENT:
    case YAML_MAPPING_START_EVENT:
        return 1;
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        return -1;
    default:
        return 0;
    }
}

/* Checks that maps and lists in the text, up to the first syntax error, nest at most NESTING_MAX deep. Sets
 * *flat to true if they do; otherwise sets *flat to false and records an error. */
static ax_status check_nesting(reader *r, const char *text, size_t size, bool *flat)
{
    yaml_parser_t parser;
    yaml_event_t event;
    AX_CHECK(yaml_parser_initialize(&parser), AX_ERR_MEMORY, "not enough memory to read %s as YAML",
             r->name ? r->name : r->place);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, size);
    int depth = 0;
    for (bool more = true; more && depth <= NESTING_MAX && yaml_parser_parse(&parser, &event);) {
        depth += nesting_of(&event);
        more = event.type != YAML_STREAM_END_EVENT;
        if (depth > NESTING_MAX)
            option_report(r->set, place_of(r, event.start_mark), NULL,
                          "maps and lists are nested more than %d deep here", NESTING_MAX);
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    *flat = depth <= NESTING_MAX;
    r->set->broken |= !*flat;
    return AX_OK;
}

/* Reads `text`, which must hold exactly one YAML document. Its values go to the option `option` or, if that
 * is NULL, to the options of the group `prefix` ("": all options). */
static ax_status read_document(reader *r, const char *prefix, const ax_option *option, const char *text,
                               size_t size)
{
    yaml_parser_t parser;
    yaml_document_t document, more;
    bool flat;
    AX_TRY(check_nesting(r, text, size, &flat));
    if (!flat)
        return AX_OK;
    AX_CHECK(yaml_parser_initialize(&parser), AX_ERR_MEMORY, "not enough memory to read %s as YAML",
             r->name ? r->name : r->place);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, size);
    r->document = &document;
    ax_status status = AX_OK;
    if (load_document(r, &parser, &document, text, size)) {
        const yaml_node_t *root = yaml_document_get_root_node(&document);
        r->set->broken |= !root || (!option && !*prefix && root->type != YAML_MAPPING_NODE);
        if (!root)
            option_report(r->set, r->name ? r->name : r->place, NULL,
                          "there is no content, only blanks or comments; write at least one key");
        else
            status = option ? read_option(r, option, root) : read_group(r, prefix, root);
        if (root && status == AX_OK && load_document(r, &parser, &more, text, size)) {
            const yaml_node_t *second = yaml_document_get_root_node(&more);
            if (second)
                option_report(r->set, place_of(r, second->start_mark), NULL,
                              "a second YAML document starts here; there must be only one");
            yaml_document_delete(&more);
        }
        yaml_document_delete(&document);
    }
    r->document = NULL;
    yaml_parser_delete(&parser);
    return status;
}

ax_status ax_option_read_text(ax_option_set *set, const char *name, const char *dir, const char *text,
                              size_t size)
{
    reader r = {.set = set, .name = name, .dir = dir};
    return read_document(&r, "", NULL, text, size);
}

enum { FILE_MOST = 1 << 20 }; /* the largest YAML file in bytes; such files are written by hand */

ax_status ax_option_read_file(ax_option_set *set, const char *path)
{
    char *text, *dir = NULL;
    size_t size;
    AX_CHECK(!ax_path_is_dir(path), AX_ERR_DATA, "%s is a directory, but a YAML file is expected", path);
    AX_TRY(ax_file_read_most(path, FILE_MOST, &text, &size));
    const char *slash = strrchr(path, '/');
    size_t n = !slash ? 0 : slash == path ? 1 : (size_t)(slash - path);
    ax_status status = ax_strndup(path, n, &dir);
    if (status == AX_OK)
        status = ax_option_read_text(set, path, dir, text, size);
    free(dir);
    free(text);
    return status;
}

/* ---- key=value ----------------------------------------------------------------------------------- */

static ax_status read_literal(reader *r, const ax_option *option, const char *text)
{
    option_field field = {{0}};
    bool claimed;
    AX_TRY(option_claim(r->set, option, r->place, text, &claimed));
    if (!claimed)
        return AX_OK;
    ax_status status = option_value(option, text, r->dir, &field);
    if (status == AX_OK)
        status = option_store(r->set, option, &field, r->place);
    option_field_fini(option, &field);
    return option_absorb(r->set, option, r->place, status);
}

static ax_status read_override(ax_option_set *set, const char *argument)
{
    reader r = {.set = set, .place = "command line", .dir = ""};
    char key[128], quoted[80];
    const char *value = strchr(argument, '=');
    if (!value || value == argument || (size_t)(value - argument) >= sizeof key) {
        option_report(set, r.place, NULL, "%s must have the form key=value", option_quote(argument, quoted));
        return AX_OK;
    }
    snprintf(key, sizeof key, "%.*s", (int)(value - argument), argument);
    r.typed = ++value;
    const ax_option *option = option_find(set, key, strlen(key));
    const bool yaml = *value == '[' || *value == '{', map = *value == '{' && option_is_group(set, key);
    if (option && !map && !(yaml && option_is_list(option)))
        return read_literal(&r, option, value);
    if (map)
        return read_document(&r, key, NULL, value, strlen(value));
    if (option || (yaml && option_is_group(set, key)))
        return read_document(&r, key, option, value, strlen(value));
    if (option_is_group(set, key)) {
        ax_buf names = {0};
        option_list_group(set, key, &names);
        option_report(set, r.place, key, "is a group of keys (%s), not a key; write %s.KEY=VALUE", names.data,
                      key);
        ax_buf_fini(&names);
    } else {
        option_unknown(set, r.place, key);
    }
    return AX_OK;
}

ax_status ax_option_read_overrides(ax_option_set *set, size_t n, char *const *overrides)
{
    for (size_t i = 0; i < n; i++)
        AX_TRY(read_override(set, overrides[i]));
    return AX_OK;
}
