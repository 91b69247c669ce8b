/* cli: what a verb of the program is. A verb is one file verb_<name>.c that defines `verb_<name>`, and one
 * line in verbs.def; help, man page and completion follow from the tables.
 *
 * Rules for all verbs: data goes to stdout, everything else to stderr; with --json stdout carries one JSON
 * object (or one per line) and nothing else; the status returned is the program's exit code, and main prints
 * the message of an error. */
#ifndef AX_CLI_VERB_H
#define AX_CLI_VERB_H

#include "axonn/option.h"

#include <jansson.h>
#include <stdio.h>

/* The first field of the arguments of verbs that run on several ranks; LAUNCH_OPTIONS (launch.h) has its
 * rows.
 */
typedef struct cli_launch {
    int64_t ranks;
    char *hosts;
} cli_launch;

typedef struct cli_verb {
    const char *name;     /* "tok train" */
    const char *summary;  /* one line, lower case, no full stop */
    const char *details;  /* further lines for the help, at most 98 columns; or NULL */
    const char *examples; /* lines, each a command; or NULL */
    const ax_option *options;
    size_t option_count;
    size_t args_size; /* of the struct that the options fill */
    ax_status (*run)(const void *args);
    /* The configuration keys that the verb takes as key=value, for its help; or NULL. */
    const ax_option *(*keys)(size_t *count);
    bool launches;    /* args begin with a cli_launch */
    int stop;         /* launches: the signal that asks its ranks to stop; 0: SIGTERM */
    bool reads_input; /* launches: rank 0 reads standard input, where it is no terminal */
} cli_verb;

#define VERB(name) extern const cli_verb verb_##name;
#include "verbs.def"
#undef VERB

/* ---- the table of verbs: verbs.c ---- */

extern const cli_verb *const cli_verbs[];
extern const size_t cli_verb_count;

/* The verb that the first of n words name, longest name first, and in *used how many words that took; NULL if
 * there is none. */
const cli_verb *cli_verb_find(size_t n, char *const *words, size_t *used);
/* True if verbs called "word …" exist. */
bool cli_verb_is_group(const char *word);
/* Fails with AX_ERR_USAGE, naming the nearest verb or the members of the group. */
ax_status cli_verb_unknown(size_t n, char *const *words);

/* ---- texts from the tables: help.c, man.c, completion.c ---- */

ax_status cli_help_program(bool colour, ax_buf *out);
ax_status cli_help_group(const char *group, bool colour, ax_buf *out);
ax_status cli_help_verb(const cli_verb *verb, bool colour, ax_buf *out);
/* "axonn tok train --input PATH... [flags]" */
ax_status cli_usage(const cli_verb *verb, ax_buf *out);
ax_status cli_man(ax_buf *out);
ax_status cli_completion_bash(ax_buf *out);

/* ---- signals: stop.c ---- */

/* From now on SIGINT, SIGTERM and SIGHUP are noted: a verb with files to remove stops by its progress. */
void cli_stop_catch(void);
/* True once such a signal came. */
bool cli_stop_wanted(void);
/* Dies of the signal that came, if any; called when the verb has cleaned up. */
void cli_stop_die(void);

/* ---- reading text ---- */

/* How text is read: fields of the arguments of verbs that do; TEXT_OPTIONS are their rows. */
typedef struct cli_text {
    char *key;
    int64_t bad_lines;
} cli_text;

#define TEXT_OPTIONS(args, field)                                                                            \
    {"text-key", AX_OPT_STRING, offsetof(args, field.key),                                                   \
     "text",     .meta = "KEY", .help = "JSON member that holds the text"},                                  \
    {                                                                                                        \
        "bad-lines", AX_OPT_INT, offsetof(args, field.bad_lines), "100", "[0, inf)",                         \
            .meta = "N",                                                                                     \
            .help = "how many JSON objects may be skipped because their text is null or not valid Unicode; " \
                    "more are an error"                                                                      \
    }

/* ---- output: output.c ---- */

/* True if the stream is a terminal that wants colour (NO_COLOR unset, TERM not dumb). */
bool cli_colour(FILE *stream);
/* Prints the object as one line on stdout and releases it; NULL (no memory) and write errors are failures. */
ax_status cli_print_json(json_t *object);
/* Writes bytes to stdout. AX_ERR_DATA */
ax_status cli_print(const char *text, size_t n);

/* A JSON number, or null where there is none: NaN and the infinities. */
json_t *cli_json_number(double value);
/* A JSON string of any bytes; those that are no UTF-8 become U+FFFD. NULL without memory. */
json_t *cli_json_text(const char *bytes, size_t n);
/* Whole standard input. AX_ERR_DATA */
ax_status cli_read_stdin(ax_buf *out);

/* Progress of one long task on stderr: a bar on a terminal, else a plain line every ten seconds. */
typedef struct cli_progress {
    const char *what; /* "tokenizing" */
    bool bytes;       /* amounts are bytes, else counts */
    bool terminal;
    double start, shown;
} cli_progress;
void cli_progress_start(cli_progress *progress, const char *what, bool bytes);
/* total <= 0: unknown. Cheap enough to be called often. */
void cli_progress_update(cli_progress *progress, int64_t done, int64_t total);
/* Removes the bar. */
void cli_progress_end(cli_progress *progress);

#endif
