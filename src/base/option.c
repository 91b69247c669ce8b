/* Option sets: defaults, the places (file and line) where values were set, and the collection of errors. Read
 * include/axonn/option.h first. */
#include "option_private.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Only the first ERRORS_KEPT errors are printed, each cut off at ERROR_LINE_MAX - 1 bytes, so that the whole
 * message does not exceed the limit of ax_fail. */
enum { ERRORS_KEPT = 50, ERROR_LINE_MAX = 300 };

bool ax_option_is_positional(const ax_option *option) { return isupper((unsigned char)option->key[0]); }

ax_status ax_option_set_create(const ax_option *table, size_t count, void *target, ax_option_set **out)
{
    ax_option_set *set;
    AX_TRY(ax_calloc(1, sizeof *set, &set));
    ax_status status = ax_calloc(count, sizeof *set->states, &set->states);
    *set = (ax_option_set){.table = table, .count = count, .target = target, .states = set->states};
    for (size_t i = 0; i < count; i++)
        memset(set->target + table[i].offset, 0, option_field_size(&table[i]));
    for (size_t i = 0; i < count && status == AX_OK; i++) {
        if (!table[i].preset)
            continue;
        status = option_value(&table[i], table[i].preset, NULL, set->target + table[i].offset);
        if (status == AX_ERR_USAGE)
            status =
                ax_fail(AX_ERR_INTERNAL, "the table of options is wrong: the default of %s is not valid: %s",
                        table[i].key, ax_error_message());
    }
    if (status != AX_OK) {
        ax_option_fini(table, count, target);
        ax_option_set_destroy(&set);
        return status;
    }
    *out = set;
    return AX_OK;
}

void ax_option_set_destroy(ax_option_set **set)
{
    if (!*set)
        return;
    for (size_t i = 0; (*set)->states && i < (*set)->count; i++) {
        free((*set)->states[i].place);
        free((*set)->states[i].typed);
    }
    free((*set)->states);
    ax_buf_fini(&(*set)->errors);
    free(*set);
    *set = NULL;
}

void ax_option_fini(const ax_option *table, size_t count, void *target)
{
    for (size_t i = 0; i < count; i++)
        option_field_fini(&table[i], (char *)target + table[i].offset);
}

/* ---- options and their values -------------------------------------------------------------------- */

const ax_option *option_find(const ax_option_set *set, const char *key, size_t n)
{
    for (size_t i = 0; i < set->count; i++)
        if (!strncmp(set->table[i].key, key, n) && !set->table[i].key[n])
            return &set->table[i];
    return NULL;
}

ax_option_state *option_state(const ax_option_set *set, const ax_option *option)
{
    return &set->states[option - set->table];
}

static ax_option_state *find_state(const ax_option_set *set, const char *key)
{
    const ax_option *option = option_find(set, key, strlen(key));
    return option ? option_state(set, option) : NULL;
}

bool ax_option_given(const ax_option_set *set, const char *key)
{
    const ax_option_state *state = find_state(set, key);
    return state && state->place;
}

bool ax_option_typed(const ax_option_set *set, const char *key)
{
    const ax_option_state *state = find_state(set, key);
    return state && state->typed;
}

bool ax_option_ok(const ax_option_set *set, const char *key)
{
    const ax_option_state *state = find_state(set, key);
    return state && !state->failed && !set->broken;
}

const char *ax_option_place(const ax_option_set *set, const char *key)
{
    const ax_option_state *state = find_state(set, key);
    return state && state->place ? state->place : "default";
}

ax_status option_store(ax_option_set *set, const ax_option *option, option_field *value, const char *place)
{
    ax_option_state *state = option_state(set, option);
    char *copy;
    AX_TRY(ax_strdup(place, &copy));
    free(state->place);
    state->place = copy;
    char *field = set->target + option->offset;
    option_field_fini(option, field);
    memcpy(field, value, option_field_size(option));
    memset(value, 0, sizeof *value);
    return AX_OK;
}

ax_status ax_option_assign(ax_option_set *set, const char *key, const char *value, const char *place)
{
    const ax_option *option = option_find(set, key, strlen(key));
    option_field field = {{0}};
    ax_status status = option_value(option, value, "", &field);
    if (status == AX_OK)
        status = option_store(set, option, &field, place);
    option_field_fini(option, &field);
    return status;
}

ax_status option_claim(ax_option_set *set, const ax_option *option, const char *place, const char *text,
                       bool *claimed)
{
    ax_option_state *state = option_state(set, option);
    char first[80], second[80];
    *claimed = !state->typed;
    if (*claimed)
        return ax_strdup(text, &state->typed);
    if (!strcmp(state->typed, text))
        option_report(set, place, option->key, "given twice, with the same value; keep one");
    else
        option_report(set, place, option->key, "given twice, as %s and as %s; keep one",
                      option_quote(state->typed, first), option_quote(text, second));
    return AX_OK;
}

/* ---- errors -------------------------------------------------------------------------------------- */

static void report(ax_option_set *set, const char *place, const char *key, const char *fmt, va_list args)
{
    const ax_option *option = key ? option_find(set, key, strlen(key)) : NULL;
    if (option)
        option_state(set, option)->failed = true;
    if (set->error_count++ >= ERRORS_KEPT)
        return;
    char line[ERROR_LINE_MAX] = "";
    if (place)
        ax_text_add(line, sizeof line, "%.120s: ", place);
    if (key)
        ax_text_add(line, sizeof line,
                    "%s%.60s: ", set->flags && option && !ax_option_is_positional(option) ? "--" : "", key);
    ax_text_add_args(line, sizeof line, fmt, args);
    if (strlen(line) == sizeof line - 1)
        memcpy(line + sizeof line - 4, "...", 4);
    /* If memory is short, the line is lost, but error_count still makes ax_option_finish fail. */
    if (ax_buf_printf(&set->errors, "\n  %s", line) != AX_OK)
        return;
}

void option_report(ax_option_set *set, const char *place, const char *key, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    report(set, place, key, fmt, args);
    va_end(args);
}

void ax_option_error(ax_option_set *set, const char *key, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    report(set, ax_option_place(set, key), key, fmt, args);
    va_end(args);
}

ax_status option_absorb(ax_option_set *set, const ax_option *option, const char *place, ax_status status)
{
    if (status != AX_ERR_USAGE)
        return status;
    char *text;
    AX_TRY(ax_strdup(ax_error_message(), &text));
    option_report(set, place, option->key, "%s", text);
    free(text);
    return AX_OK;
}

void ax_option_waive(ax_option_set *set, const char *key)
{
    ax_option_state *state = find_state(set, key);
    if (state)
        state->waived = true;
}

ax_status ax_option_finish(ax_option_set *set)
{
    for (size_t i = 0; i < set->count; i++) {
        const ax_option *option = &set->table[i];
        const ax_option_state *state = &set->states[i];
        if (!option->required || state->failed || state->waived)
            continue;
        if (!state->place && !set->broken)
            option_report(set, NULL, option->key, "required, but not given (%s)", option->help);
        else if (state->place && option_is_list(option) &&
                 !option_list_length(option, set->target + option->offset))
            option_report(set, state->place, option->key, "the list is empty; give at least one value (%s)",
                          option->help);
    }
    if (!set->error_count)
        return AX_OK;
    const char *lines = set->errors.data ? set->errors.data : "\n  (not enough memory for the messages)";
    if (set->error_count == 1)
        return ax_fail(AX_ERR_USAGE, "%s", lines + 3);
    if (set->error_count <= ERRORS_KEPT)
        return ax_fail(AX_ERR_USAGE, "%zu errors:%s", set->error_count, lines);
    return ax_fail(AX_ERR_USAGE, "%zu errors, the first %d of them:%s", set->error_count, ERRORS_KEPT, lines);
}

/* ---- unknown keys -------------------------------------------------------------------------------- */

bool option_is_group(const ax_option_set *set, const char *prefix)
{
    size_t n = strlen(prefix);
    for (size_t i = 0; i < set->count; i++)
        if (!strncmp(set->table[i].key, prefix, n) && set->table[i].key[n] == '.')
            return true;
    return false;
}

/* Returns the length of the name in `key` after the prefix of n bytes, up to the next dot: for "grid.x" and
 * the prefix "grid." it is 1, the length of "x". Returns 0 if the key does not begin with the prefix ("" or
 * "group."). */
static size_t name_under(const char *key, const char *prefix, size_t n)
{
    return strncmp(key, prefix, n) ? 0 : strcspn(key + n, ".");
}

void option_list_group(const ax_option_set *set, const char *prefix, ax_buf *out)
{
    char group[128] = "";
    if (*prefix)
        snprintf(group, sizeof group, "%s.", prefix);
    size_t n = strlen(group), last = 0;
    const char *previous = "";
    for (size_t i = 0; i < set->count; i++) {
        const char *name = set->table[i].key + n;
        size_t length = name_under(set->table[i].key, group, n);
        /* Rows of one group are adjacent in a table. So comparing each name with the one that was
         * listed last is enough to list every name only once. */
        if (!length || ax_option_is_positional(&set->table[i]) ||
            (length == last && !strncmp(name, previous, last)))
            continue;
        if (ax_buf_printf(out, "%s%s%.*s", last ? ", " : "", set->flags ? "--" : "", (int)length, name) !=
            AX_OK)
            return;
        previous = name;
        last = length;
    }
}

static const char *last_name(const char *key)
{
    const char *dot = strrchr(key, '.');
    return dot ? dot + 1 : key;
}

/* Returns how far a legal key is from the given key: the edit distance of the two, but at most
 * - 1 if their last names (after the last dot) are equal,
 * - else 2 if both have at least 3 characters and one is a prefix of the other,
 * - else 1 more than the edit distance of their last names. */
static int key_distance(const char *legal, const char *given)
{
    int distance = ax_edit_distance(legal, given);
    if (!strcmp(last_name(legal), last_name(given)))
        return (int)ax_min(distance, 1);
    size_t n = strlen(legal), m = strlen(given);
    if (n >= 3 && m >= 3 && !strncmp(legal, given, n < m ? n : m))
        return (int)ax_min(distance, 2);
    return (int)ax_min(distance, ax_edit_distance(last_name(legal), last_name(given)) + 1);
}

/* Returns true if the set has the flags of a verb that also takes KEY=VALUE arguments. Users sometimes write
 * such an argument as a flag (--train.steps=10). */
static bool takes_keys(const ax_option_set *set)
{
    for (size_t i = 0; i < set->count; i++)
        if (set->flags && set->table[i].type == AX_OPT_STRINGS && !strcmp(set->table[i].key, "KEY=VALUE"))
            return true;
    return false;
}

void ax_option_take_synonyms(ax_option_set *set, const ax_option_synonym *synonyms, size_t count)
{
    set->synonyms = synonyms;
    set->synonym_count = count;
}

/* Returns true if `name` is one of the `names` of a synonym, whatever its case, and with - for _. */
static bool has_name(const char *names, const char *name)
{
    for (const char *end; *names; names = *end ? end + 1 : end) {
        size_t n = strcspn(names, "|"), i = 0;
        end = names + n;
        while (i < n && name[i] && (name[i] == '-' ? '_' : tolower((unsigned char)name[i])) == names[i])
            i++;
        if (i == n && !name[i])
            return true;
    }
    return false;
}

/* Returns true if the table has the key or flag with which `write` begins. */
static bool is_written_here(const ax_option_set *set, const char *write)
{
    const char *key = write + (set->flags ? strspn(write, "-") : 0);
    return (set->flags == (key > write) && option_find(set, key, strcspn(key, " :="))) ||
           (key == write && takes_keys(set));
}

/* Returns what is written here instead of `key`, a name of another program, or NULL. */
static const char *find_synonym(const ax_option_set *set, const char *key)
{
    for (size_t i = 0; i < set->synonym_count; i++)
        if (has_name(set->synonyms[i].names, last_name(key)) && is_written_here(set, set->synonyms[i].write))
            return set->synonyms[i].write;
    return NULL;
}

void option_unknown(ax_option_set *set, const char *place, const char *key)
{
    if (set->error_count >= ERRORS_KEPT) { /* this error is only counted and will not be printed */
        set->error_count++;
        return;
    }
    char best[128] = "", candidate[128];
    int nearest = 1 + (int)ax_max(1, (int64_t)strlen(last_name(key)) / 3);
    for (size_t i = 0; i < set->count; i++) {
        const char *legal = set->table[i].key;
        if (ax_option_is_positional(&set->table[i]))
            continue;
        /* Compares with the names of groups first, because "optimizer" is nearer to the group "optim" than to
         * any key in it. */
        for (const char *dot = strchr(legal, '.'); dot; dot = strchr(dot + 1, '.')) {
            snprintf(candidate, sizeof candidate, "%.*s", (int)(dot - legal), legal);
            if (key_distance(candidate, key) < nearest && !strchr(key, '.')) {
                nearest = key_distance(candidate, key);
                memcpy(best, candidate, sizeof best);
            }
        }
        if (key_distance(legal, key) < nearest) {
            nearest = key_distance(legal, key);
            snprintf(best, sizeof best, "%s", legal);
        }
    }
    const char *dash = set->flags ? "--" : "", *what = set->flags ? "flag" : "key";
    const char *here = find_synonym(set, key);
    if (here) {
        option_report(set, place, NULL, "%s%.60s: unknown %s; here it is %s%s", dash, key, what, here,
                      set->flags && *here != '-' ? ", without dashes (optim.lr=3e-4)" : "");
        return;
    }
    if (*best) {
        option_report(set, place, NULL, "%s%.60s: unknown %s; did you mean %s%s?", dash, key, what, dash,
                      best);
        return;
    }
    if (strchr(key, '.') && takes_keys(set)) {
        option_report(set, place, NULL, "--%.60s: unknown flag; keys are written without dashes: %.60s=...",
                      key, key);
        return;
    }
    char group[128];
    snprintf(group, sizeof group, "%.*s", strrchr(key, '.') ? (int)(strrchr(key, '.') - key) : 0, key);
    if (!option_is_group(set, group))
        group[0] = 0;
    ax_buf names = {0};
    option_list_group(set, group, &names);
    option_report(set, place, NULL, "%s%.60s: unknown %s; there are %s%s", dash, key, what,
                  names.data ? names.data : "none",
                  takes_keys(set) ? "; keys are written without dashes (grid.x=2)" : "");
    ax_buf_fini(&names);
}
