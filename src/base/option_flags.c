/* Options from a verb's arguments: --key VALUE, --key=VALUE, --flag, --no-flag, positional arguments. */
#include "option_private.h"

#include <stdlib.h>
#include <string.h>

static const char PLACE[] = "command line";

typedef struct scan {
    ax_option_set *set;
    size_t n, at;
    char *const *args;
    bool flags_ended;  /* after "--" */
    size_t positional; /* row from which the next positional argument is looked for */
} scan;

/* "-" and negative numbers are values. */
static bool looks_like_flag(const scan *s, const char *text)
{
    return !s->flags_ended && text[0] == '-' && text[1] == '-';
}

/* Adds values to a list field in place; other types start afresh. */
static ax_status take(scan *s, const ax_option *option, const char *text)
{
    option_field field = {{0}};
    char *target = s->set->target + option->offset;
    ax_status status;
    if (option_takes_many(option)) {
        if (!option_state(s->set, option)->place)
            option_field_fini(option, target); /* the default goes with the first value given */
        memcpy(&field, target, option_field_size(option));
        memset(target, 0, option_field_size(option));
        status = option_item(option, text, NULL, 1, 0, &field);
    } else {
        status = option_value(option, text, NULL, &field);
    }
    if (status == AX_OK)
        status = option_store(s->set, option, &field, PLACE);
    option_field_fini(option, &field);
    return option_absorb(s->set, option, PLACE, status);
}

static ax_status take_values(scan *s, const ax_option *option, const char *attached)
{
    if (attached)
        return take(s, option, attached);
    size_t taken = 0;
    while (s->at < s->n && !looks_like_flag(s, s->args[s->at]) && (!taken || option_takes_many(option))) {
        AX_TRY(take(s, option, s->args[s->at++]));
        taken++;
    }
    if (!taken)
        option_report(s->set, PLACE, option->key, "needs a value (%s)", option->help);
    return AX_OK;
}

static ax_status read_flag(scan *s, const char *name)
{
    size_t n = strcspn(name, "=");
    const char *attached = name[n] ? name + n + 1 : NULL;
    const ax_option *option = option_find(s->set, name, n);
    if (option && option->type != AX_OPT_BOOL)
        return take_values(s, option, attached);
    if (option)
        return take(s, option, attached ? attached : "true");
    option = strncmp(name, "no-", 3) ? NULL : option_find(s->set, name + 3, strlen(name + 3));
    if (option && option->type == AX_OPT_BOOL)
        return take(s, option, "false");
    char *key;
    AX_TRY(ax_strndup(name, n, &key));
    option_unknown(s->set, PLACE, key);
    free(key);
    return AX_OK;
}

static ax_status read_positional(scan *s, const char *text)
{
    for (; s->positional < s->set->count; s->positional++) {
        const ax_option *option = &s->set->table[s->positional];
        if (!ax_option_is_positional(option))
            continue;
        s->positional += !option_takes_many(option);
        return take(s, option, text);
    }
    char quoted[80];
    option_report(s->set, PLACE, NULL, "unexpected argument %s", option_quote(text, quoted));
    return AX_OK;
}

ax_status ax_option_read_flags(ax_option_set *set, size_t n, char *const *args)
{
    set->flags = true;
    scan s = {.set = set, .n = n, .args = args};
    while (s.at < n) {
        const char *text = args[s.at++];
        if (!looks_like_flag(&s, text))
            AX_TRY(read_positional(&s, text));
        else if (text[2])
            AX_TRY(read_flag(&s, text + 2));
        else
            s.flags_ended = true;
    }
    return AX_OK;
}
