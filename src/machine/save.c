/* Writes a description as YAML, as it is read. */
#include "private.h"

#include <stdio.h>
#include <string.h>

/* Returns true if a member has a value that the description must have. */
static bool has_value(const ax_option *option, const char *field)
{
    switch (option->type) {
    case AX_OPT_INT:
        return *(const int64_t *)field != 0;
    case AX_OPT_FLOAT:
        return *(const double *)field > 0;
    case AX_OPT_STRING:
        return *(char *const *)field != NULL;
    case AX_OPT_STRINGS:
        return ((const ax_strings *)field)->count > 0;
    default:
        return true;
    }
}

/* Appends text in quotes, without characters that would need to be written in another way. */
static ax_status add_text(ax_buf *out, const char *text)
{
    AX_TRY(ax_buf_printf(out, "\""));
    for (; *text; text++)
        AX_TRY(ax_buf_printf(out, "%c",
                             *text == '"' || *text == '\\' || (unsigned char)*text < ' ' ? ' ' : *text));
    return ax_buf_printf(out, "\"");
}

static ax_status add_list(ax_buf *out, const ax_strings *list, int indent)
{
    for (size_t i = 0; i < list->count; i++) {
        AX_TRY(ax_buf_printf(out, "\n%*s- ", indent, ""));
        AX_TRY(add_text(out, list->items[i]));
    }
    return AX_OK;
}

static ax_status add_value(ax_buf *out, const ax_option *option, const char *field, int indent)
{
    char word[64];
    switch (option->type) {
    case AX_OPT_INT:
        if (*(const int64_t *)field < 0)
            return ax_buf_printf(out, " %s",
                                 ax_option_word(option, (int)(-1 - *(const int64_t *)field), word));
        return ax_buf_printf(out, " %lld", (long long)*(const int64_t *)field);
    case AX_OPT_FLOAT:
        return ax_buf_printf(out, " %.6g", *(const double *)field);
    case AX_OPT_BOOL:
        return ax_buf_printf(out, " %s", *(const bool *)field ? "true" : "false");
    case AX_OPT_ENUM:
        return ax_buf_printf(out, " %s", ax_option_word(option, *(const int *)field, word));
    case AX_OPT_STRING:
        AX_TRY(ax_buf_printf(out, " "));
        return add_text(out, *(char *const *)field);
    default:
        return add_list(out, (const ax_strings *)field, indent);
    }
}

/* Appends "key: value" of a row, in the groups of its key: those that the row before it, `previous`, had are
 * open. */
static ax_status add_row(ax_buf *out, const ax_option *option, const char *field, const char *previous)
{
    const char *name = option->key;
    int depth = 0;
    bool open = true;
    for (const char *dot; (dot = strchr(name, '.')); name = dot + 1, depth++) {
        open = open && !strncmp(option->key, previous, (size_t)(dot + 1 - option->key));
        if (!open)
            AX_TRY(ax_buf_printf(out, "%*s%.*s:\n", 2 * depth, "", (int)(dot - name), name));
    }
    AX_TRY(ax_buf_printf(out, "%*s%s:", 2 * depth, "", name));
    AX_TRY(add_value(out, option, field, 2 * depth + 2));
    return ax_buf_printf(out, "\n");
}

static ax_status add_all(ax_buf *out, const ax_machine *m, const ax_strings *missing)
{
    size_t n;
    const ax_option *option = ax_machine_options(&n);
    const char *previous = "";
    AX_TRY(ax_buf_printf(
        out, "# Written by axonn bench gemm --save and axonn bench comm --save, which keep no comments.\n"));
    for (size_t i = 0; i < n; i++) {
        const char *field = (const char *)m + option[i].offset;
        if (!has_value(&option[i], field))
            continue;
        AX_TRY(add_row(out, &option[i], field, previous));
        previous = option[i].key;
    }
    for (size_t i = 0; i < missing->count; i++)
        AX_TRY(ax_buf_printf(out, "# missing: %s\n", missing->items[i]));
    return AX_OK;
}

ax_status ax_machine_save(const ax_machine *machine, const ax_strings *missing, const char *path)
{
    ax_buf out = {0};
    ax_status status = add_all(&out, machine, missing);
    if (status == AX_OK)
        status = ax_file_write_atomic(path, out.data, out.size);
    ax_buf_fini(&out);
    return status;
}

/* Returns true if the row consists of the key and as many further words as the value has. */
static bool has_key(const char *row, const char *key, const char *value)
{
    const size_t n = strlen(key);
    int words = 1;
    if (strncmp(row, key, n) != 0 || row[n] != ' ')
        return false;
    for (; *value; value++)
        words += *value == ' ';
    for (const char *c = row + n; *c; c++)
        words -= *c == ' ';
    return words == 0;
}

ax_status machine_put_row(ax_strings *list, const char *key, const char *format, double value)
{
    char text[96];
    snprintf(text, sizeof text, format, value);
    for (size_t i = 0; i < list->count; i++)
        if (has_key(list->items[i], key, text)) {
            ax_strings one = {0};
            AX_TRY(ax_strings_add(&one, "%s %s", key, text));
            char *old = list->items[i];
            list->items[i] = one.items[0];
            one.items[0] = old;
            ax_strings_fini(&one);
            return AX_OK;
        }
    return ax_strings_add(list, "%s %s", key, text);
}
