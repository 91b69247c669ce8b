/* Generates help texts from the tables of verbs and options. */
#include "verb.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const char CODES[] =
    "  0  success                             5  communication error\n"
    "  1  internal error                      6  a number is infinite or NaN\n"
    "  2  usage or configuration error        7  stopped by a signal; all finished steps are saved\n"
    "  3  not enough memory\n"
    "  4  data or file error\n";

static int width(void)
{
    struct winsize window;
    int columns = 0;
    if (isatty(STDOUT_FILENO) && !ioctl(STDOUT_FILENO, TIOCGWINSZ, &window))
        columns = window.ws_col;
    return columns ? (int)ax_max(50, ax_min(columns, 110)) : 100;
}

static ax_status heading(const char *text, bool colour, ax_buf *out)
{
    return ax_buf_printf(out, colour ? "\n\033[1m%s\033[0m\n" : "\n%s\n", text);
}

ax_status cli_usage(const cli_verb *verb, ax_buf *out)
{
    size_t flags = 0;
    AX_TRY(ax_buf_printf(out, "axonn %s", verb->name));
    for (size_t i = 0; i < verb->option_count; i++) {
        const ax_option *option = &verb->options[i];
        flags += !ax_option_is_positional(option) && !option->required;
        if (!ax_option_is_positional(option) && !option->required)
            continue;
        AX_TRY(ax_buf_printf(out, option->required ? " " : " ["));
        AX_TRY(ax_option_usage(option, true, out));
        AX_TRY(ax_buf_printf(out, option->required ? "" : "]"));
    }
    return ax_buf_printf(out, flags ? " [flags]" : "");
}

/* Appends a line "  tok train  summary" for each verb of the group ("" for all verbs). */
static ax_status list_verbs(const char *group, ax_buf *out)
{
    size_t n = strlen(group), column = 0;
    for (size_t i = 0; i < cli_verb_count; i++)
        column = (size_t)ax_max((int64_t)column, (int64_t)strlen(cli_verbs[i]->name));
    for (size_t i = 0; i < cli_verb_count; i++)
        if (!strncmp(cli_verbs[i]->name, group, n) && (!n || cli_verbs[i]->name[n] == ' '))
            AX_TRY(
                ax_buf_printf(out, "  %-*s  %s\n", (int)column, cli_verbs[i]->name, cli_verbs[i]->summary));
    return AX_OK;
}

ax_status cli_help_program(bool colour, ax_buf *out)
{
    AX_TRY(ax_buf_printf(out, "axonn %s: trains, evaluates and runs transformer language models\n",
                         ax_version()));
    AX_TRY(heading("Usage", colour, out));
    AX_TRY(ax_buf_printf(out, "  axonn VERB [arguments]\n"
                              "  axonn VERB --help\n"
                              "  axonn --version\n"));
    AX_TRY(heading("Verbs", colour, out));
    AX_TRY(list_verbs("", out));
    AX_TRY(heading("Exit codes", colour, out));
    return ax_buf_printf(out, "%s", CODES);
}

ax_status cli_help_group(const char *group, bool colour, ax_buf *out)
{
    AX_TRY(ax_buf_printf(out, "axonn %s: a group of verbs; see 'axonn %s VERB --help'\n", group, group));
    AX_TRY(heading("Verbs", colour, out));
    return list_verbs(group, out);
}

/* Appends `title` and a row for each positional argument of the verb (`positional` true) or for each flag
 * (false). Appends nothing if there is none. */
static ax_status help_rows(const cli_verb *verb, bool positional, const char *title, bool colour, ax_buf *out)
{
    ax_option *rows;
    size_t n = 0;
    AX_TRY(ax_calloc(verb->option_count, sizeof *rows, &rows));
    for (size_t i = 0; i < verb->option_count; i++)
        if (ax_option_is_positional(&verb->options[i]) == positional)
            rows[n++] = verb->options[i];
    ax_status status = AX_OK;
    if (n)
        status = heading(title, colour, out);
    if (n && status == AX_OK)
        status = ax_option_help(rows, n, true, width(), out);
    free(rows);
    return status;
}

static ax_status indented(const char *lines, ax_buf *out)
{
    for (const char *end; *lines; lines = *end ? end + 1 : end) {
        end = strchrnul(lines, '\n');
        AX_TRY(ax_buf_printf(out, end > lines ? "  %.*s\n" : "%.*s\n", (int)(end - lines), lines));
    }
    return AX_OK;
}

ax_status cli_help_verb(const cli_verb *verb, bool colour, ax_buf *out)
{
    AX_TRY(ax_buf_printf(out, "axonn %s: %s\n", verb->name, verb->summary));
    AX_TRY(heading("Usage", colour, out));
    AX_TRY(ax_buf_printf(out, "  "));
    AX_TRY(cli_usage(verb, out));
    AX_TRY(ax_buf_printf(out, "\n"));
    if (verb->details) {
        AX_TRY(ax_buf_printf(out, "\n"));
        AX_TRY(indented(verb->details, out));
    }
    AX_TRY(help_rows(verb, true, "Arguments", colour, out));
    AX_TRY(help_rows(verb, false, "Flags", colour, out));
    if (verb->keys) {
        size_t count;
        const ax_option *keys = verb->keys(&count);
        AX_TRY(heading("Configuration keys", colour, out));
        AX_TRY(ax_option_help(keys, count, false, width(), out));
    } else {
        AX_TRY(heading("Runtime settings", colour, out));
        AX_TRY(ax_buf_printf(out, "  runtime.NAME=VALUE, such as runtime.log=debug; axonn info --options "
                                  "lists them\n"));
    }
    if (verb->examples) {
        AX_TRY(heading("Examples", colour, out));
        AX_TRY(indented(verb->examples, out));
    }
    return AX_OK;
}
