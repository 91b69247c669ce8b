/* cli: the verbs (subcommands) of the program. A verb is defined as `verb_<name>` in a file verb_<name>.c
 * (several verbs of a group: verb_<group>.c), and listed in verbs.def. Verbs of benchmarks are in src/bench.
 * Help, man page and completion are generated from the cli_verb structs.
 *
 * Rules for all verbs: results go to stdout, everything else to stderr. With --json stdout carries one JSON
 * object (or one per line) and nothing else. The status that a verb returns is the program's exit code, and
 * main prints its error message, unless a rank has printed it. */
#ifndef AX_CLI_VERB_H
#define AX_CLI_VERB_H

#include "axonn/data.h"
#include "axonn/option.h"

#include <jansson.h>
#include <stdio.h>

/* The arguments that all verbs that run on several ranks have; must be the first field of the verb's argument
 * struct. The options for them are LAUNCH_OPTIONS (launch.h). */
typedef struct cli_launch {
    int64_t ranks;
    char *hosts;
} cli_launch;

typedef struct cli_verb {
    const char *name;     /* the words that call the verb, such as "tok train" */
    const char *summary;  /* one line, lower case, no full stop */
    const char *details;  /* further lines for the help, at most 98 columns; or NULL */
    const char *examples; /* example commands, one a line; or NULL */
    const ax_option *options;
    size_t option_count;
    size_t args_size; /* size of the struct that the options fill and `run` gets */
    ax_status (*run)(const void *args);
    /* Returns the table of configuration keys that the verb takes as key=value. NULL: the verb takes only the
     * keys of runtime.h, which main reads. */
    const ax_option *(*keys)(size_t *count);
    bool launches; /* the verb takes --ranks; its argument struct begins with a cli_launch */
    int stop;      /* if launches: signal that asks the ranks to save and stop; 0: a signal ends the ranks */
    /* If `launches`: returns true if rank 0 reads standard input. The result is used only if standard input
     * is not a terminal. NULL: rank 0 never reads standard input. */
    bool (*reads_input)(const void *args);
} cli_verb;

#define VERB(name) extern const cli_verb verb_##name;
#include "verbs.def"
#undef VERB

/* ---- the table of verbs: verbs.c ---- */

extern const cli_verb *const cli_verbs[];
extern const size_t cli_verb_count;

/* Returns the verb whose name is the beginning of the n words, or NULL. If several names match, returns the
 * verb with the longest. *used is the number of words in the name. */
const cli_verb *cli_verb_find(size_t n, char *const *words, size_t *used);
/* Returns true if `word` is the first word of a group of verbs, such as "tok". */
bool cli_verb_is_group(const char *word);
/* Returns AX_ERR_USAGE for an unknown verb. The message names the most similar verb, if one is similar, or
 * the verbs of the group. */
ax_status cli_verb_unknown(size_t n, char *const *words);

/* ---- texts generated from the tables: help.c, man.c, completion.c ---- */

ax_status cli_help_program(bool colour, ax_buf *out);
ax_status cli_help_group(const char *group, bool colour, ax_buf *out);
ax_status cli_help_verb(const cli_verb *verb, bool colour, ax_buf *out);
/* Appends the usage line of the verb: "axonn tok train --input PATH... [flags]". */
ax_status cli_usage(const cli_verb *verb, ax_buf *out);
ax_status cli_man(ax_buf *out);
ax_status cli_completion_bash(ax_buf *out);

/* ---- signals: stop.c ---- */

/* Catches SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 from now on, except those that the process ignores, so
 * that the verb can remove its temporary files. Once cli_stop_wanted() is true, the verb's progress callback
 * must return false. */
void cli_stop_catch(void);
/* Returns true if one of the caught signals has been received. */
bool cli_stop_wanted(void);
/* Ends the process by the signal that was received, if there was one. main calls this after the verb, which
 * has then cleaned up. */
void cli_stop_die(void);

/* ---- reading text ---- */

/* The arguments that all verbs that read text have. The options for them are TEXT_OPTIONS. */
typedef struct cli_text {
    char *key;
    int64_t bad_lines;
} cli_text;

/* The arguments of verbs that read a corpus. The options for them are INPUT_OPTION, INCLUDE_OPTION and
 * TEXT_OPTIONS, in their place among the verb's others. */
typedef struct cli_corpus {
    ax_strings input, include;
    cli_text text;
} cli_corpus;
/* Returns the options of the corpus, which borrow from `corpus`. */
ax_corpus_options cli_corpus_options(const cli_corpus *corpus);

#define INPUT_OPTION(args, field)                                                                            \
    {                                                                                                        \
        "input", AX_OPT_STRINGS, offsetof(args, field.input),                                                \
            .required = true, .meta = "PATH...",                                                             \
            .help = "text, JSON and JSONL files, directories of them, or patterns ('*.txt'); -: standard "   \
                    "input"                                                                                  \
    }
#define INCLUDE_OPTION(args, field)                                                                          \
    {                                                                                                        \
        "include", AX_OPT_STRINGS, offsetof(args, field.include),                                            \
            .meta = "PATTERN...",                                                                            \
            .help = "in directories, read only files whose names match these patterns, e.g. '*.h'; "         \
                    "default: all"                                                                           \
    }

/* For verbs that read conversations. */
#define IGNORE_OPTION(args, field)                                                                           \
    {                                                                                                        \
        "ignore", AX_OPT_STRINGS, offsetof(args, field),                                                     \
            .meta = "NAME...",                                                                               \
            .help = "members of conversations and of their turns that are left out, e.g. tools tool_calls; " \
                    "others that nothing reads are an error, unless they are plainly no part of what "       \
                    "is said, such as ids and scores"                                                        \
    }

#define TEXT_OPTIONS(args, field)                                                                            \
    {"text-key", AX_OPT_STRING, offsetof(args, field.key), .meta = "KEY",                                    \
     .help = "name of the member that holds the text of a JSON object; default: "                            \
             "text. If this flag is given, an object with a string in that member "                          \
             "is not read as a conversation"},                                                               \
    {                                                                                                        \
        "bad-lines", AX_OPT_INT, offsetof(args, field.bad_lines), "auto", "[0, inf)", "auto",                \
            .meta = "N",                                                                                     \
            .help =                                                                                          \
                "how many JSON records may be left out, whatever is wrong with them; more are an error, "    \
                "which lists the first twenty. auto: 100 records whose text is null or not valid "           \
                "Unicode, and no others"                                                                     \
    }

/* ---- output: output.c ---- */

/* Returns true if output to the stream may have colour: the stream is a terminal, NO_COLOR is unset or empty,
 * and TERM is set, but not to dumb. */
bool cli_colour(FILE *stream);
/* Prints the object as one line on stdout, and releases it. Fails if `object` is NULL (because there was
 * not enough memory, or a text was not UTF-8), or if stdout cannot be written. */
ax_status cli_print_json(json_t *object);
/* Writes bytes to stdout. AX_ERR_DATA if that fails. */
ax_status cli_print(const char *text, size_t n);

/* Returns `value` as a JSON number, or as null if it is NaN or infinite. */
json_t *cli_json_number(double value);
/* Returns true if the path leads to the file that is standard input: /dev/stdin, /dev/fd/0, a link to one of
 * them. */
bool cli_is_stdin(const char *path);
/* Reads all of standard input. AX_ERR_DATA: it cannot be read, or holds more than 256 MiB. */
ax_status cli_read_stdin(ax_buf *out);
/* Appends the prompt on standard input: without a byte order mark, with line ends LF, and without the last of
 * them. Logs after two seconds that the program waits. AX_ERR_DATA if there are more than 64 MiB. */
ax_status cli_read_prompt(ax_buf *out);
/* Reads a line of standard input into *line, which getline allocates, without its end (LF or CR LF) and
 * without a byte order mark at its start. *n is -1 at the end of the input. */
ax_status cli_read_line(char **line, size_t *room, ssize_t *n);

/* The progress of one long task, shown on stderr: as a bar on a terminal, else as a line every ten
 * seconds. */
typedef struct cli_progress {
    const char *what; /* what the task does, such as "tokenizing" */
    bool bytes;       /* true: amounts are bytes; false: counts */
    bool terminal;
    double start, shown;
} cli_progress;
void cli_progress_start(cli_progress *progress, const char *what, bool bytes);
/* Shows the progress, unless it was shown less than 0.1 s ago (ten seconds, if stderr is no terminal); so
 * this function may be called often. total <= 0: not known. */
void cli_progress_update(cli_progress *progress, int64_t done, int64_t total);
/* Shows the progress of an operation of the library that calls this back with a cli_progress. Returns false,
 * which ends the operation, once a signal was caught. */
bool cli_progress_show(void *progress, int64_t done, int64_t total);
/* Removes the bar from the terminal. */
void cli_progress_end(cli_progress *progress);

#endif
