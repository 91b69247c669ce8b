/* Runtime settings (keys runtime.*). A setting has the value that the program has set, else that of its
 * environment variable, else its default.
 *
 * The values that the program has set are in a list, newest first. No entry is ever removed from the list, so
 * reading needs no lock, and pointers to the values stay valid. */
#include "option_private.h"

#include "axonn/runtime.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define ROW(...) AX_RUNTIME_OPTION(0, __VA_ARGS__),
const ax_option ax_runtime_options[AX_RUNTIME_COUNT] = {AX_RUNTIME(ROW)};

typedef struct setting {
    struct setting *next;
    ax_runtime_id id;
    bool none;      /* this entry cancels older ones (ax_runtime_set with NULL): the environment variable
                       applies if it is set, else the default */
    bool preferred; /* the value is replaced if this machine cannot use it (ax_runtime_prefer) */
    char value[];
} setting;

static _Atomic(setting *) newest;
static atomic_bool fixed[AX_RUNTIME_COUNT]; /* set by ax_runtime_fix: the value is in use and cannot change */

/* Returns the value that the program has set for the setting, or NULL. */
static const setting *find_setting(ax_runtime_id id)
{
    const setting *s = atomic_load(&newest);
    while (s && s->id != id)
        s = s->next;
    return s && !s->none ? s : NULL;
}

/* Returns the value of the setting's environment variable, or NULL. An empty variable counts as unset. */
static const char *variable_of(ax_runtime_id id)
{
    const char *text = getenv(ax_runtime_options[id].variable);
    return text && *text ? text : NULL;
}

const char *ax_runtime_source(ax_runtime_id id)
{
    const ax_option *row = &ax_runtime_options[id];
    return !find_setting(id) && variable_of(id) ? row->variable : row->key;
}

/* Checks that the setting's row in ax_runtime_options allows `value`. If the row allows only choices, sets
 * *number to the index of `value` among them. Errors begin with `source`, the key or environment variable
 * from which the value comes. */
static ax_status check_value(ax_runtime_id id, const char *value, const char *source, int *number)
{
    option_field field = {{0}};
    ax_status status = option_value(&ax_runtime_options[id], value, NULL, &field);
    memcpy(number, &field, sizeof *number);
    option_field_fini(&ax_runtime_options[id], &field);
    if (status == AX_ERR_USAGE)
        ax_error_context("%s", source);
    return status;
}

ax_status ax_runtime_get(ax_runtime_id id, const char **value)
{
    const setting *s = find_setting(id);
    const char *variable = variable_of(id);
    int number;
    *value = s ? s->value : variable ? variable : ax_runtime_options[id].preset;
    return s || !variable ? AX_OK : check_value(id, variable, ax_runtime_options[id].variable, &number);
}

ax_status ax_runtime_fix(ax_runtime_id id, const char **value)
{
    atomic_store(&fixed[id], true);
    return ax_runtime_get(id, value);
}

ax_status ax_runtime_check(void)
{
    const char *value;
    for (int id = 0; id < AX_RUNTIME_COUNT; id++)
        AX_TRY(ax_runtime_get((ax_runtime_id)id, &value));
    return AX_OK;
}

/* ---- setting values ------------------------------------------------------------------------------ */

static ax_status add_setting(ax_runtime_id id, const char *value, bool preferred)
{
    size_t n = value ? strlen(value) + 1 : 1;
    setting *s;
    AX_TRY(ax_calloc(1, sizeof *s + n, &s));
    s->id = id;
    s->none = !value;
    s->preferred = preferred;
    memcpy(s->value, value ? value : "", n);
    s->next = atomic_load(&newest);
    while (!atomic_compare_exchange_weak(&newest, &s->next, s)) {
    }
    return AX_OK;
}

static ax_status set_value(ax_runtime_id id, const char *value, bool preferred)
{
    const setting *s = find_setting(id);
    const char *now;
    int number = 0;
    bool same = value ? s && !strcmp(s->value, value) && s->preferred == preferred : !s;
    if (value)
        AX_TRY(check_value(id, value, ax_runtime_options[id].key, &number));
    if (atomic_load(&fixed[id])) {
        AX_TRY(ax_runtime_get(id, &now));
        AX_CHECK(value && !strcmp(now, value), AX_ERR_USAGE,
                 "%s: this process already uses \"%s\" and cannot change to \"%s\": set the value before its "
                 "first use",
                 ax_runtime_options[id].key, now, value ? value : "");
    }
    if (!same)
        AX_TRY(add_setting(id, value, preferred));
    if (id != AX_RUNTIME_LOG)
        return AX_OK;
    AX_TRY(ax_runtime_get(id, &now));
    AX_TRY(check_value(id, now, ax_runtime_source(id), &number));
    ax_log_set_level((ax_log_level)number); /* the choices are in the order of the levels */
    return AX_OK;
}

ax_status ax_runtime_set(ax_runtime_id id, const char *value) { return set_value(id, value, false); }

ax_status ax_runtime_set_given(const ax_option_set *set)
{
    for (int id = 0; id < AX_RUNTIME_COUNT; id++) {
        ax_buf text = {0};
        if (!ax_option_given(set, ax_runtime_options[id].key))
            continue;
        ax_status status = ax_option_value(set, ax_runtime_options[id].key, &text);
        if (status == AX_OK)
            status = ax_runtime_set((ax_runtime_id)id, text.data);
        ax_buf_fini(&text);
        AX_TRY(status);
    }
    return AX_OK;
}

/* ---- values that a resumed run had --------------------------------------------------------------- */

ax_status ax_runtime_prefer(ax_runtime_id id, const char *value)
{
    ax_status status = set_value(id, value, true);
    if (status != AX_ERR_USAGE)
        return status;
    ax_log(AX_LOG_WARN, "the run had %s=%s, which cannot be used here (%s): it goes on with %s",
           ax_runtime_options[id].key, value, ax_error_message(), ax_runtime_options[id].preset);
    return AX_OK;
}

ax_status ax_runtime_unavailable(ax_runtime_id id, const char *value, const char *best, const char *why)
{
    const setting *s = find_setting(id);
    if (s && strcmp(s->value, value) != 0) /* another thread has replaced the value */
        return AX_OK;
    AX_CHECK(s && s->preferred, AX_ERR_USAGE, "the setting %s is \"%s\", %s", ax_runtime_source(id), value,
             why);
    ax_log(AX_LOG_WARN,
           "the run had %s=%s, %s: it goes on with %s, and its results differ from then on in their last "
           "digits",
           ax_runtime_options[id].key, value, why, best);
    return ax_runtime_set(id, best);
}
