/* Reads options from the arguments of a verb (subcommand): --key VALUE, --key=VALUE, --flag, --no-flag,
 * positional arguments. */
#include "option_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char PLACE[] = "command line";

typedef struct scan {
    ax_option_set *set;
    size_t n, at;
    char *const *args;
    bool flags_ended;  /* the argument "--" was read: no flags follow */
    size_t positional; /* row of the table at which the search for the next positional argument begins */
} scan;

/* Returns true if the text is a flag: it begins with "--", and the argument "--" was not read before it. "-"
 * and negative numbers such as -1 are values. */
static bool looks_like_flag(const scan *s, const char *text)
{
    return !s->flags_ended && text[0] == '-' && text[1] == '-';
}

/* Returns true if the text is KEY=VALUE, and writes the part of KEY before its first dot to `group`. Returns
 * false after the argument "--". */
static bool group_of(const scan *s, const char *text, char group[64])
{
    size_t n = strcspn(text, ".=");
    if (s->flags_ended || !strchr(text, '=') || n >= 64)
        return false;
    snprintf(group, 64, "%.*s", (int)n, text);
    return true;
}

/* Returns true if the text is KEY=VALUE, and its group is one of set->keys, the option set that gets such
 * arguments. */
static bool is_key(const scan *s, const char *text)
{
    char group[64];
    if (!s->set->keys || !group_of(s, text, group))
        return false;
    return option_is_group(s->set->keys, group);
}

/* Returns true if the text is KEY=VALUE, and a positional argument takes the keys of its group. */
static bool is_positional_key(const scan *s, const char *text)
{
    char group[64];
    bool found = false;
    for (size_t i = 0; group_of(s, text, group) && i < s->set->count; i++)
        found |= s->set->table[i].group && !strcmp(s->set->table[i].group, group);
    return found;
}

/* Stores the value `text` that the command line gives for an option. If the option takes many values, the
 * value is appended to the option's list. */
static ax_status store_value(scan *s, const ax_option *option, const char *text)
{
    option_field field = {{0}};
    char *target = s->set->target + option->offset;
    ax_status status;
    bool claimed = true;
    if (!option_takes_many(option))
        AX_TRY(option_claim(s->set, option, PLACE, text, &claimed));
    if (!claimed)
        return AX_OK;
    if (option_takes_many(option)) {
        if (!option_state(s->set, option)->place)
            option_field_fini(option, target); /* the first value that is given replaces the default list */
        memcpy(&field, target, option_field_size(option));
        memset(target, 0, option_field_size(option));
        status = option_item(option, text, NULL, NULL, 0, &field);
    } else {
        status = option_value(option, text, NULL, &field);
    }
    if (status == AX_OK)
        status = option_store(s->set, option, &field, PLACE);
    option_field_fini(option, &field);
    return option_absorb(s->set, option, PLACE, status);
}

/* Returns the option that the text "--name", "--no-name" or "--name=VALUE" names, or NULL. */
static const ax_option *find_named(const scan *s, const char *text)
{
    const char *name = text + 2;
    const ax_option *option = option_find(s->set, name, strcspn(name, "="));
    if (option || strncmp(name, "no-", 3))
        return option;
    option = option_find(s->set, name + 3, strlen(name + 3));
    return option && option->type == AX_OPT_BOOL ? option : NULL;
}

/* Reports a flag without a value. If the next argument begins with dashes but is no known flag, it may be
 * meant as the value. Then that argument is skipped, and the report says how to write a value that begins
 * with dashes. */
static void report_no_value(scan *s, const ax_option *option)
{
    const char *next = s->at < s->n ? s->args[s->at] : NULL;
    char hint[96] = "";
    if (next && looks_like_flag(s, next) && next[2] && !find_named(s, next)) {
        snprintf(hint, sizeof hint, "; write values that begin with dashes as --%s=%.40s", option->key, next);
        s->at++;
    }
    option_report(s->set, PLACE, option->key, "needs a value (%s)%s", option->help, hint);
}

static ax_status store_values(scan *s, const ax_option *option, const char *attached)
{
    if (attached)
        return store_value(s, option, attached);
    size_t taken = 0;
    while (s->at < s->n && !looks_like_flag(s, s->args[s->at]) &&
           (option_takes_many(option) ? !is_key(s, s->args[s->at]) && !is_positional_key(s, s->args[s->at])
                                      : !taken)) {
        AX_TRY(store_value(s, option, s->args[s->at++]));
        taken++;
    }
    if (!taken)
        report_no_value(s, option);
    return AX_OK;
}

static ax_status read_flag(scan *s, const char *text)
{
    const char *name = text + 2;
    size_t n = strcspn(name, "=");
    const char *attached = name[n] ? name + n + 1 : NULL;
    const ax_option *option = option_find(s->set, name, n);
    if (option && option->type != AX_OPT_BOOL)
        return store_values(s, option, attached);
    if (option)
        return store_value(s, option, attached ? attached : "true");
    option = find_named(s, text);
    if (option)
        return store_value(s, option, "false");
    char *key;
    AX_TRY(ax_strndup(name, n, &key));
    option_unknown(s->set, PLACE, key);
    free(key);
    return AX_OK;
}

static ax_status read_positional(scan *s, const char *text)
{
    if (is_key(s, text))
        return ax_option_read_overrides(s->set->keys, 1, &s->args[s->at - 1]);
    for (; s->positional < s->set->count; s->positional++) {
        const ax_option *option = &s->set->table[s->positional];
        if (!ax_option_is_positional(option))
            continue;
        s->positional += !option_takes_many(option);
        return store_value(s, option, text);
    }
    char quoted[80];
    option_report(s->set, PLACE, NULL,
                  "unexpected argument %s: leave it out, or write the flag that takes it before it",
                  option_quote(text, quoted));
    return AX_OK;
}

void ax_option_take_keys(ax_option_set *set, ax_option_set *keys) { set->keys = keys; }

ax_status ax_option_read_flags(ax_option_set *set, size_t n, char *const *args)
{
    set->flags = true;
    scan s = {.set = set, .n = n, .args = args};
    while (s.at < n) {
        const char *text = args[s.at++];
        if (!looks_like_flag(&s, text))
            AX_TRY(read_positional(&s, text));
        else if (text[2])
            AX_TRY(read_flag(&s, text));
        else
            s.flags_ended = true;
    }
    return AX_OK;
}
