/* Generates the bash completion script from the tables of verbs and options. The script completes verbs,
 * flags, choices and configuration keys, and file names everywhere else. */
#include "verb.h"

#include "axonn/runtime.h"

#include <string.h>

/* Appends the shell case `'verb') …`, which sets the words that may follow the verb. */
static ax_status verb_words(const cli_verb *verb, ax_buf *out)
{
    AX_TRY(ax_buf_printf(out, "    '%s') words='--help", verb->name));
    for (size_t i = 0; i < verb->option_count; i++) {
        const ax_option *option = &verb->options[i];
        if (ax_option_is_positional(option))
            continue;
        bool off = option->type == AX_OPT_BOOL && option->preset && !strcmp(option->preset, "true");
        AX_TRY(ax_buf_printf(out, " --%s%s", off ? "no-" : "", option->key));
    }
    size_t count = AX_RUNTIME_COUNT;
    const ax_option *keys = verb->keys ? verb->keys(&count) : ax_runtime_options;
    for (size_t i = 0; i < count; i++)
        AX_TRY(ax_buf_printf(out, " %s=", keys[i].key));
    return ax_buf_printf(out, "' ;;\n");
}

/* Appends, for each flag of the verb that takes a value, the shell case `'verb --flag') …`, which sets the
 * possible values: the choices of the option, none if it has no choices. */
static ax_status value_words(const cli_verb *verb, ax_buf *out)
{
    char list[AX_OPTION_LIST];
    for (size_t i = 0; i < verb->option_count; i++) {
        const ax_option *option = &verb->options[i];
        if (ax_option_is_positional(option) || option->type == AX_OPT_BOOL)
            continue;
        const char *words = ax_option_list(option, " ", list);
        AX_TRY(ax_buf_printf(out, "    '%s --%s') values='%s' takes=1 ;;\n", verb->name, option->key,
                             words ? words : ""));
    }
    return AX_OK;
}

/* Appends the first words of all verbs if `group` is "", else the second words of the verbs whose first word
 * is `group`. */
static ax_status verb_names(const char *group, ax_buf *out)
{
    size_t n = strlen(group);
    const char *previous = "";
    for (size_t i = 0; i < cli_verb_count; i++) {
        const char *name = cli_verbs[i]->name;
        if (n && (strncmp(name, group, n) != 0 || name[n] != ' '))
            continue;
        name += n ? n + 1 : 0;
        size_t length = strcspn(name, " ");
        if (strncmp(name, previous, length) != 0 || strcspn(previous, " ") != length)
            AX_TRY(ax_buf_printf(out, "%.*s ", (int)length, name));
        previous = name;
    }
    return AX_OK;
}

ax_status cli_completion_bash(ax_buf *out)
{
    AX_TRY(ax_buf_printf(out,
                         "# bash completion for axonn %s, generated from its option tables\n"
                         "_axonn()\n{\n"
                         "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
                         "    local verb=${COMP_WORDS[1]} words='' values='' takes=0\n"
                         "    COMPREPLY=()\n"
                         "    if [ \"$COMP_CWORD\" = 1 ]; then\n"
                         "        COMPREPLY=($(compgen -W '",
                         ax_version()));
    AX_TRY(verb_names("", out));
    AX_TRY(ax_buf_printf(out, "--help --version' -- \"$cur\"))\n        return\n    fi\n"
                              "    case $verb in\n"));
    const char *previous = "";
    for (size_t i = 0; i < cli_verb_count; i++) {
        const char *name = cli_verbs[i]->name;
        size_t n = strcspn(name, " ");
        if (!name[n] || (!strncmp(name, previous, n) && previous[n] == ' '))
            continue;
        char group[32];
        snprintf(group, sizeof group, "%.*s", (int)n, name);
        AX_TRY(ax_buf_printf(out,
                             "    %s)\n        if [ \"$COMP_CWORD\" = 2 ]; then\n"
                             "            COMPREPLY=($(compgen -W '",
                             group));
        AX_TRY(verb_names(group, out));
        AX_TRY(ax_buf_printf(out, "--help' -- \"$cur\"))\n            return\n        fi\n"
                                  "        verb=\"$verb ${COMP_WORDS[2]}\" ;;\n"));
        previous = name;
    }
    AX_TRY(ax_buf_printf(out, "    esac\n    case \"$verb $prev\" in\n"));
    for (size_t i = 0; i < cli_verb_count; i++)
        AX_TRY(value_words(cli_verbs[i], out));
    AX_TRY(ax_buf_printf(out, "    esac\n    case $verb in\n"));
    for (size_t i = 0; i < cli_verb_count; i++)
        AX_TRY(verb_words(cli_verbs[i], out));
    return ax_buf_printf(out, "    esac\n"
                              "    if [ \"$takes\" = 1 ]; then\n"
                              "        COMPREPLY=($(compgen -W \"$values\" -- \"$cur\"))\n"
                              "    else\n"
                              "        COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
                              "    fi\n"
                              "    case ${COMPREPLY[0]} in *=) compopt -o nospace 2>/dev/null ;; esac\n"
                              "}\n"
                              "complete -o default -F _axonn axonn\n");
}
