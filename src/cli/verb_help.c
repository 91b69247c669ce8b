/* axonn help: prints the help of a verb. For the installation, also prints the man page and the bash
 * completion. */
#include "verb.h"

typedef struct args {
    ax_strings verb;
    bool man;
    char *completion;
} args;

static const ax_option options[] = {
    {"VERB", AX_OPT_STRINGS, offsetof(args, verb),
     .help = "the verb whose help is shown, e.g. train or tok encode"},
    {"man", AX_OPT_BOOL, offsetof(args, man), "false", .help = "print the man page axonn(1) as roff"},
    {"completion", AX_OPT_STRING, offsetof(args, completion), .choices = "bash", .meta = "SHELL",
     .help = "print the script by which this shell completes the command line of axonn"},
};

static ax_status help(const args *a, ax_buf *out)
{
    if (a->man)
        return cli_man(out);
    if (a->completion)
        return cli_completion_bash(out);
    if (!a->verb.count)
        return cli_help_program(cli_colour(stdout), out);
    size_t used;
    const cli_verb *verb = cli_verb_find(a->verb.count, a->verb.items, &used);
    if (verb)
        return cli_help_verb(verb, cli_colour(stdout), out);
    if (a->verb.count == 1 && cli_verb_is_group(a->verb.items[0]))
        return cli_help_group(a->verb.items[0], cli_colour(stdout), out);
    return cli_verb_unknown(a->verb.count, a->verb.items);
}

static ax_status run(const void *raw)
{
    ax_buf out = {0};
    ax_status status = help(raw, &out);
    if (status == AX_OK)
        status = cli_print(out.data, out.size);
    ax_buf_fini(&out);
    return status;
}

const cli_verb verb_help = {
    .name = "help",
    .summary = "show how to use a verb",
    .examples = "axonn help train\naxonn help --man | man -l -",
    .options = options,
    .option_count = AX_COUNT(options),
    .args_size = sizeof(args),
    .run = run,
};
