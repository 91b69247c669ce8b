/* Writes options as text: the values of a set as YAML, and the help of a table. */
#include "option_private.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

/* ---- dump ---------------------------------------------------------------------------------------- */

/* Returns true if a YAML double-quoted scalar keeps character c as it is. YAML forbids some characters, and
 * reads others as line breaks or as the byte order mark. */
static bool is_plain(int32_t c)
{
    return c != '"' && c != '\\' && c >= ' ' && (c < 0x7F || c >= 0xA0) && c != 0x2028 && c != 0x2029 &&
           c != 0xFEFF && c != 0xFFFE && c != 0xFFFF;
}

/* Returns true if the text is UTF-8, which YAML needs. */
static bool is_utf8(const char *text)
{
    utf8proc_int32_t c;
    utf8proc_ssize_t n = 1;
    for (; *text && n > 0; text += n > 0 ? n : 0)
        n = utf8proc_iterate((const utf8proc_uint8_t *)text, -1, &c);
    return n > 0;
}

/* Appends a YAML double-quoted scalar, which reads back as the same text. AX_ERR_USAGE if the text is not
 * UTF-8. */
static ax_status dump_string(const char *text, ax_buf *out)
{
    char quoted[80];
    AX_CHECK(is_utf8(text), AX_ERR_USAGE,
             "%s is not valid UTF-8, so config.yaml cannot hold it: use names in UTF-8",
             option_quote(text, quoted));
    AX_TRY(ax_buf_add(out, "\"", 1));
    for (utf8proc_ssize_t n; *text; text += n) {
        utf8proc_int32_t c;
        n = utf8proc_iterate((const utf8proc_uint8_t *)text, -1, &c);
        AX_TRY(is_plain(c) ? ax_buf_add(out, text, (size_t)n)
                           : ax_buf_printf(out, c < 0x100 ? "\\x%02x" : "\\u%04x", (unsigned)c));
    }
    return ax_buf_add(out, "\"", 1);
}

static ax_status dump_path(const ax_weighted_path *path, ax_buf *out)
{
    char number[32];
    if (path->weight <= 0 && !path->epochs)
        return dump_string(path->path, out);
    AX_TRY(ax_buf_printf(out, "{path: "));
    AX_TRY(dump_string(path->path, out));
    if (path->epochs)
        return ax_buf_printf(out, ", epochs: %lld}", (long long)path->epochs);
    return ax_buf_printf(out, ", weight: %s}", option_format_double(path->weight, number));
}

static ax_status dump_int(const ax_option *option, int64_t value, ax_buf *out)
{
    char word[64];
    if (option_has_words(option) && value < 0 && value > -64 &&
        *ax_option_word(option, (int)(-1 - value), word))
        return ax_buf_printf(out, "%s", word);
    return ax_buf_printf(out, "%" PRId64, value);
}

size_t option_list_length(const ax_option *option, const void *field)
{
    if (option->type == AX_OPT_FLOATS)
        return (size_t)option->items;
    return option->type == AX_OPT_INTS      ? ((const ax_ints *)field)->count
           : option->type == AX_OPT_STRINGS ? ((const ax_strings *)field)->count
                                            : ((const ax_paths *)field)->count;
}

static ax_status dump_list(const ax_option *option, const void *field, ax_buf *out)
{
    char number[32];
    AX_TRY(ax_buf_add(out, "[", 1));
    for (size_t i = 0; i < option_list_length(option, field); i++) {
        AX_TRY(ax_buf_printf(out, "%s", i ? ", " : ""));
        if (option->type == AX_OPT_FLOATS)
            AX_TRY(ax_buf_printf(out, "%s", option_format_double(((const double *)field)[i], number)));
        else if (option->type == AX_OPT_INTS)
            AX_TRY(dump_int(option, ((const ax_ints *)field)->items[i], out));
        else if (option->type == AX_OPT_STRINGS)
            AX_TRY(dump_string(((const ax_strings *)field)->items[i], out));
        else
            AX_TRY(dump_path(&((const ax_paths *)field)->items[i], out));
    }
    return ax_buf_add(out, "]", 1);
}

static ax_status dump_quota(const ax_quota *quota, ax_buf *out)
{
    char number[32];
    return quota->percent > 0 ? ax_buf_printf(out, "%s%%", option_format_double(quota->percent, number))
                              : ax_buf_printf(out, "%" PRId64, quota->number);
}

static ax_status dump_value(const ax_option *option, const void *field, ax_buf *out)
{
    char word[64];
    switch (option->type) {
    case AX_OPT_BOOL:
        return ax_buf_printf(out, "%s", *(const bool *)field ? "true" : "false");
    case AX_OPT_INT:
        return dump_int(option, *(const int64_t *)field, out);
    case AX_OPT_FLOAT:
        if (option_has_words(option) && *(const double *)field < 0)
            return dump_int(option, (int64_t) * (const double *)field, out);
        return ax_buf_printf(out, "%s", option_format_double(*(const double *)field, word));
    case AX_OPT_QUOTA:
        return dump_quota(field, out);
    case AX_OPT_STRING:
    case AX_OPT_PATH:
        return dump_string(*(char *const *)field, out);
    case AX_OPT_ENUM:
        return ax_buf_printf(out, "%s", ax_option_word(option, *(const int *)field, word));
    default:
        return dump_list(option, field, out);
    }
}

/* Calls dump_value. The message of an error begins with the key. */
static ax_status dump_of_key(const ax_option *option, const void *field, ax_buf *out)
{
    ax_status status = dump_value(option, field, out);
    if (status != AX_OK)
        ax_error_context("%s", option->key);
    return status;
}

/* Returns the length of the group names with which both `key` and `previous` begin, dots included: for
 * "a.b.c" and "a.b.d", the length of "a.b.". */
static size_t shared_groups(const char *key, const char *previous)
{
    size_t shared = 0;
    for (size_t i = 0; key[i] && key[i] == previous[i]; i++)
        if (key[i] == '.')
            shared = i + 1;
    return shared;
}

/* Appends a line for each group of `key` that is not a group of `previous`, the key that was written before,
 * and then the indentation of the last name of `key`. */
static ax_status dump_groups(const char *key, const char *previous, ax_buf *out)
{
    size_t shared = shared_groups(key, previous);
    int depth = 0;
    for (const char *name = key, *dot; (dot = strchr(name, '.')); name = dot + 1, depth++)
        if (dot >= key + shared)
            AX_TRY(ax_buf_printf(out, "%*s%.*s:\n", 2 * depth, "", (int)(dot - name), name));
    return ax_buf_printf(out, "%*s", 2 * depth, "");
}

ax_status ax_option_dump(const ax_option_set *set, ax_buf *out)
{
    const char *previous = "";
    for (size_t i = 0; i < set->count; i++) {
        const ax_option *option = &set->table[i];
        const void *field = set->target + option->offset;
        bool text = option->type == AX_OPT_STRING || option->type == AX_OPT_PATH;
        if (option->not_dumped || (text && !*(char *const *)field))
            continue;
        AX_TRY(dump_groups(option->key, previous, out));
        const char *dot = strrchr(option->key, '.');
        AX_TRY(ax_buf_printf(out, "%s: ", dot ? dot + 1 : option->key));
        AX_TRY(dump_of_key(option, field, out));
        const char *place = set->states[i].place;
        AX_TRY(ax_buf_printf(out, place && is_utf8(place) ? " # %s\n" : "\n", place));
        previous = option->key;
    }
    return AX_OK;
}

ax_status ax_option_value(const ax_option_set *set, const char *key, ax_buf *out)
{
    const ax_option *option = option_find(set, key, strlen(key));
    const void *field = set->target + option->offset;
    if (option->type != AX_OPT_STRING && option->type != AX_OPT_PATH)
        return dump_value(option, field, out);
    const char *text = *(char *const *)field;
    return ax_buf_printf(out, "%s", text ? text : "");
}

ax_status ax_option_print(const ax_option_set *set, ax_buf *out)
{
    for (size_t i = 0; i < set->count; i++) {
        const ax_option *option = &set->table[i];
        const void *field = set->target + option->offset;
        bool text = option->type == AX_OPT_STRING || option->type == AX_OPT_PATH;
        AX_TRY(ax_buf_printf(out, "%s: ", option->key));
        if (!text || *(char *const *)field)
            AX_TRY(dump_of_key(option, field, out));
        AX_TRY(ax_buf_add(out, "\n", 1));
    }
    return AX_OK;
}

/* ---- help ---------------------------------------------------------------------------------------- */

static const char *meta(const ax_option *option)
{
    static const char *const names[] = {
        [AX_OPT_BOOL] = "true|false", [AX_OPT_INT] = "N",        [AX_OPT_FLOAT] = "X",
        [AX_OPT_STRING] = "TEXT",     [AX_OPT_PATH] = "PATH",    [AX_OPT_ENUM] = "WORD",
        [AX_OPT_QUOTA] = "N|P%",      [AX_OPT_FLOATS] = "X,...", [AX_OPT_INTS] = "N,...",
        [AX_OPT_STRINGS] = "TEXT...", [AX_OPT_PATHS] = "PATH..."};
    if (option->meta)
        return option->meta;
    return names[option->type == AX_OPT_STRING && option_has_words(option) ? AX_OPT_ENUM : option->type];
}

ax_status ax_option_usage(const ax_option *option, bool flag, ax_buf *out)
{
    if (flag && ax_option_is_positional(option))
        return ax_buf_printf(out, "%s%s", option->meta ? option->meta : option->key,
                             option_takes_many(option) ? "..." : "");
    if (flag && option->type == AX_OPT_BOOL)
        return ax_buf_printf(out, "--%s%s", option->preset && !strcmp(option->preset, "true") ? "no-" : "",
                             option->key);
    return ax_buf_printf(out, "%s%s %s", flag ? "--" : "", option->key, meta(option));
}

ax_status ax_option_describe(const ax_option *option, bool flag, ax_buf *out)
{
    char phrase[96], list[AX_OPTION_LIST], sep[3] = " (";
    AX_TRY(ax_buf_printf(out, "%s", option->help));
    if (ax_option_list(option, "|", list)) {
        AX_TRY(ax_buf_printf(out, "%s%s", sep, list));
        if (option->type == AX_OPT_INT || option->type == AX_OPT_PATH)
            AX_TRY(ax_buf_printf(out, "|%s", option->meta ? meta(option) : option_type_phrase(option)));
        memcpy(sep, "; ", 2);
    }
    if (option->range) {
        AX_TRY(ax_buf_printf(out, "%s%s", sep, option_range_phrase(option->range, phrase)));
        memcpy(sep, "; ", 2);
    }
    if (option->required && !ax_option_is_positional(option)) {
        AX_TRY(ax_buf_printf(out, "%srequired", sep));
        memcpy(sep, "; ", 2);
    } else if (option->preset && !(flag && option->type == AX_OPT_BOOL)) {
        AX_TRY(ax_buf_printf(out, "%sdefault: %s", sep, option->preset));
        memcpy(sep, "; ", 2);
    }
    if (option->variable) {
        AX_TRY(ax_buf_printf(out, "%svariable: %s", sep, option->variable));
        memcpy(sep, "; ", 2);
    }
    return ax_buf_printf(out, "%s", sep[0] == ';' ? ")" : "");
}

/* Appends `text` broken at blanks, so that lines have at most `width` columns (a single longer word stays
 * whole). The last line of `out` must have reached column `indent`; all further lines are indented by as
 * much. */
static ax_status wrap(const char *text, int indent, int width, ax_buf *out)
{
    int column = indent;
    while (*text) {
        int n = (int)strcspn(text, " ");
        bool fits = column == indent || column + 1 + n <= width;
        if (!fits) {
            AX_TRY(ax_buf_printf(out, "\n%*s", indent, ""));
            column = indent;
        }
        AX_TRY(ax_buf_printf(out, "%s%.*s", column > indent ? " " : "", n, text));
        column += n + (column > indent);
        text += n;
        text += strspn(text, " ");
    }
    return ax_buf_add(out, "\n", 1);
}

static ax_status help_row(const ax_option *option, bool flags, int column, int width, ax_buf *out)
{
    ax_buf left = {0}, right = {0};
    ax_status status = ax_option_usage(option, flags, &left);
    if (status == AX_OK)
        status = ax_option_describe(option, flags, &right);
    if (status == AX_OK && (int)left.size + 4 > column)
        status = ax_buf_printf(out, "  %s\n%*s", left.data, column, "");
    else if (status == AX_OK)
        status = ax_buf_printf(out, "  %-*s", column - 2, left.data);
    if (status == AX_OK)
        status = wrap(right.data, column, width, out);
    ax_buf_fini(&left);
    ax_buf_fini(&right);
    return status;
}

ax_status ax_option_help(const ax_option *table, size_t count, bool flags, int width, ax_buf *out)
{
    enum { COLUMN_MAX = 30 };
    int column = 0;
    for (size_t i = 0; i < count; i++) {
        ax_buf left = {0};
        AX_TRY(ax_option_usage(&table[i], flags, &left));
        column = (int)ax_max(column, ax_min((int64_t)left.size + 4, COLUMN_MAX));
        ax_buf_fini(&left);
    }
    for (size_t i = 0; i < count; i++)
        AX_TRY(help_row(&table[i], flags, column, width, out));
    return AX_OK;
}
