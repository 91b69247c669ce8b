/* Generates the man page axonn(1), in roff, from the tables of verbs and options. */
#include "verb.h"

#include "axonn/config.h"
#include "axonn/runtime.h"

#include <string.h>

/* Appends text in roff: escapes special characters, and protects lines that roff would take for requests. */
static ax_status roff(const char *text, ax_buf *out)
{
    bool start = true;
    for (; *text; text++) {
        if (start && (*text == '.' || *text == '\''))
            AX_TRY(ax_buf_printf(out, "\\&"));
        start = *text == '\n';
        if (*text == '-')
            AX_TRY(ax_buf_printf(out, "\\-"));
        else if (*text == '\\')
            AX_TRY(ax_buf_printf(out, "\\e"));
        else
            AX_TRY(ax_buf_add(out, text, 1));
    }
    return AX_OK;
}

static ax_status section(const char *macro, const char *title, ax_buf *out)
{
    AX_TRY(ax_buf_printf(out, ".%s \"", macro));
    AX_TRY(roff(title, out));
    return ax_buf_printf(out, "\"\n");
}

static ax_status option_rows(const ax_option *table, size_t count, bool flags, ax_buf *out)
{
    for (size_t i = 0; i < count; i++) {
        ax_buf left = {0}, right = {0};
        ax_status status = ax_option_usage(&table[i], flags, &left);
        if (status == AX_OK)
            status = ax_option_describe(&table[i], flags, &right);
        if (status == AX_OK)
            status = ax_buf_printf(out, ".TP\n.B ");
        if (status == AX_OK)
            status = roff(left.data, out);
        if (status == AX_OK)
            status = ax_buf_printf(out, "\n");
        if (status == AX_OK)
            status = roff(right.data, out);
        if (status == AX_OK)
            status = ax_buf_printf(out, "\n");
        ax_buf_fini(&left);
        ax_buf_fini(&right);
        AX_TRY(status);
    }
    return AX_OK;
}

static ax_status verbatim(const char *lines, ax_buf *out)
{
    AX_TRY(ax_buf_printf(out, ".PP\n.nf\n.RS 4\n"));
    AX_TRY(roff(lines, out));
    return ax_buf_printf(out, "%s.RE\n.fi\n", lines[strlen(lines) - 1] == '\n' ? "" : "\n");
}

static ax_status man_verb(const cli_verb *verb, ax_buf *out)
{
    ax_buf usage = {0};
    AX_TRY(section("SS", verb->name, out));
    ax_status status = cli_usage(verb, &usage);
    if (status == AX_OK)
        status = ax_buf_printf(out, ".B ");
    if (status == AX_OK)
        status = roff(usage.data, out);
    ax_buf_fini(&usage);
    AX_TRY(status);
    AX_TRY(ax_buf_printf(out, "\n.PP\n"));
    AX_TRY(roff(verb->summary, out));
    AX_TRY(ax_buf_printf(out, ".\n"));
    if (verb->details)
        AX_TRY(verbatim(verb->details, out));
    AX_TRY(option_rows(verb->options, verb->option_count, true, out));
    return verb->examples ? verbatim(verb->examples, out) : AX_OK;
}

static ax_status man_end(ax_buf *out)
{
    static const char *const codes[] = {
        "success",
        "internal error",
        "usage or configuration error",
        "not enough memory",
        "data or file error",
        "communication error",
        "a number is infinite or NaN: a loss, gradient, weight or logit",
        "stopped by a signal; the state of a training is saved, unless the message says otherwise"};
    AX_TRY(section("SH", "EXIT STATUS", out));
    for (size_t i = 0; i < AX_COUNT(codes); i++)
        AX_TRY(ax_buf_printf(out, ".TP\n.B %zu\n%s\n", i, codes[i]));
    AX_TRY(section("SH", "ENVIRONMENT", out));
    for (size_t i = 0; i < AX_RUNTIME_COUNT; i++) {
        AX_TRY(ax_buf_printf(out, ".TP\n.B %s\n", ax_runtime_options[i].variable));
        AX_TRY(ax_buf_printf(out, "The value of %s, unless that key is given.\n", ax_runtime_options[i].key));
    }
    return ax_buf_printf(out, ".TP\n.B NO_COLOR\nIf set and not empty, output has no colour.\n");
}

ax_status cli_man(ax_buf *out)
{
    AX_TRY(ax_buf_printf(out, ".TH AXONN 1 \"\" \"axonn %s\" \"User Commands\"\n", ax_version()));
    AX_TRY(ax_buf_printf(out, ".SH NAME\n"
                              "axonn \\- train, evaluate and run transformer language models\n"
                              ".SH SYNOPSIS\n"
                              ".B axonn\n.I VERB\n[\\fIarguments\\fR]\n.br\n"
                              ".B axonn\n.I VERB\n.B \\-\\-help\n.br\n"
                              ".B axonn \\-\\-version\n"
                              ".SH DESCRIPTION\n"
                              "Results go to standard output, logs and progress to standard error. With\n"
                              ".B \\-\\-json\n"
                              "standard output carries one JSON object, or one per line, and nothing else.\n"
                              "Options and the whole configuration are checked before anything is done;\n"
                              "all errors in them are reported together.\n"
                              ".SH VERBS\n"));
    for (size_t i = 0; i < cli_verb_count; i++)
        AX_TRY(man_verb(cli_verbs[i], out));
    size_t count;
    const ax_option *keys = ax_config_options(&count);
    AX_TRY(section("SH", "CONFIGURATION", out));
    AX_TRY(ax_buf_printf(
        out, "The keys of a training configuration. In a YAML file each dot is a level of nesting.\n"
             "On the command line keys are written key=value, and override those of the file.\n"
             "Verbs without a configuration take the keys that begin with runtime.\n"
             "Relative paths in a file are relative to the file's directory.\n"));
    AX_TRY(option_rows(keys, count, false, out));
    return man_end(out);
}
