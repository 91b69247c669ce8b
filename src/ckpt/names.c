/* Groups the names of arrays that differ in the number of the block only, for messages: model.layers.0.x and
 * model.layers.1.x become model.layers.{0..1}.x (2). */
#include "ckpt.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Returns where the first part of `key` that is a number begins (parts are separated by dots), and sets *n to
 * its length. If there is none, returns the end of the key. */
static const char *find_number(const char *key, size_t *n)
{
    for (const char *part = key; *part; part += *n + (part[*n] == '.')) {
        *n = strcspn(part, ".");
        size_t digits = 0;
        while (digits < *n && isdigit((unsigned char)part[digits]))
            digits++;
        if (*n && digits == *n && *n < 10)
            return part;
    }
    *n = 0;
    return key + strlen(key);
}

static bool same_group(const name_group *g, const char *key, size_t before, const char *after, bool whole)
{
    return g->before == before && !strncmp(g->key, key, before) && (g->whole == whole) &&
           (whole || !strcmp(g->after, after));
}

void names_add(name_list *list, const char *key, const char *const what[2], bool whole)
{
    size_t digits;
    const char *number = find_number(key, &digits), *after = number + digits;
    const size_t before = (size_t)(number - key);
    const int64_t block = digits ? strtoll(number, NULL, 10) : -1;
    whole = whole && digits;
    for (int i = list->n - 1; i >= 0; i--) {
        name_group *g = &list->group[i];
        if (!same_group(g, key, before, after, whole) || strcmp(g->what[0], what[0]) != 0)
            continue;
        if (!whole && block == g->last) /* an array that several parameters share */
            return;
        g->same &= !strcmp(g->after, after);
        g->first = ax_min(g->first, block);
        g->last = block;
        g->count++;
        list->count++;
        return;
    }
    list->count++;
    if (list->n == NAME_GROUPS)
        return;
    name_group *g = &list->group[list->n++];
    *g =
        (name_group){.key = key, .after = after, .before = before, .first = block, .last = block, .count = 1};
    g->whole = whole;
    g->same = true;
    for (int k = 0; k < 2; k++)
        snprintf(g->what[k], sizeof g->what[k], "%s", what[k]);
}

ax_status names_print(const name_group *g, ax_buf *out)
{
    if (g->count == 1)
        return ax_buf_printf(out, "%s", g->key);
    AX_TRY(ax_buf_printf(out, "%.*s", (int)g->before, g->key));
    if (g->first == g->last)
        AX_TRY(ax_buf_printf(out, "%lld", (long long)g->first));
    else
        AX_TRY(ax_buf_printf(out, "{%lld..%lld}", (long long)g->first, (long long)g->last));
    return ax_buf_printf(out, "%s (%d)", g->same ? g->after : ".*", g->count);
}
