/* The table of verbs and the search in it. */
#include "verb.h"

#include <string.h>

#define VERB(name) &verb_##name,
const cli_verb *const cli_verbs[] = {
#include "verbs.def"
};
#undef VERB
const size_t cli_verb_count = AX_COUNT(cli_verbs);

/* Returns the number of words in `name` if `words` begin with it, else 0. */
static size_t match(const char *name, size_t n, char *const *words)
{
    size_t used = 0;
    for (const char *rest = name; *rest; used++) {
        size_t length = strcspn(rest, " ");
        if (used == n || strlen(words[used]) != length || strncmp(words[used], rest, length) != 0)
            return 0;
        rest += length;
        rest += strspn(rest, " ");
    }
    return used;
}

const cli_verb *cli_verb_find(size_t n, char *const *words, size_t *used)
{
    const cli_verb *best = NULL;
    *used = 0;
    for (size_t i = 0; i < cli_verb_count; i++) {
        size_t matched = match(cli_verbs[i]->name, n, words);
        if (matched > *used) {
            *used = matched;
            best = cli_verbs[i];
        }
    }
    return best;
}

bool cli_verb_is_group(const char *word)
{
    size_t n = strlen(word);
    for (size_t i = 0; i < cli_verb_count; i++)
        if (!strncmp(cli_verbs[i]->name, word, n) && cli_verbs[i]->name[n] == ' ')
            return true;
    return false;
}

static ax_status fail_in_group(const char *group, const char *second)
{
    ax_buf names = {0};
    size_t n = strlen(group);
    for (size_t i = 0; i < cli_verb_count; i++)
        if (!strncmp(cli_verbs[i]->name, group, n) && cli_verbs[i]->name[n] == ' ')
            AX_TRY(ax_buf_printf(&names, "%s%s", names.size ? ", " : "", cli_verbs[i]->name + n + 1));
    ax_status status =
        second && second[0] != '-'
            ? ax_fail(AX_ERR_USAGE, "axonn %s: unknown verb \"%.40s\"; there are %s", group, second,
                      names.data)
            : ax_fail(AX_ERR_USAGE, "axonn %s: a second word must follow: one of %s", group, names.data);
    ax_buf_fini(&names);
    return status;
}

ax_status cli_verb_unknown(size_t n, char *const *words)
{
    if (cli_verb_is_group(words[0]))
        return fail_in_group(words[0], n > 1 ? words[1] : NULL);
    const char *best = NULL;
    int nearest = 1 + (int)ax_max(1, (int64_t)strlen(words[0]) / 2);
    for (size_t i = 0; i < cli_verb_count; i++) {
        char first[32];
        snprintf(first, sizeof first, "%.*s", (int)strcspn(cli_verbs[i]->name, " "), cli_verbs[i]->name);
        int distance = ax_edit_distance(first, words[0]);
        if (distance < nearest) {
            nearest = distance;
            best = cli_verbs[i]->name;
        }
    }
    if (best)
        return ax_fail(AX_ERR_USAGE, "unknown verb \"%.40s\"; did you mean %.*s?", words[0],
                       (int)strcspn(best, " "), best);
    return ax_fail(AX_ERR_USAGE, "unknown verb \"%.40s\"", words[0]);
}
