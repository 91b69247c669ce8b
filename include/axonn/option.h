/* option: tables of options, whose values are read from YAML files, `key=value` overrides and the flags of a
 * verb (subcommand).
 *
 * A row of a table describes one key: type, field in the caller's struct, default, legal values, help.
 * Defaults, parsing, validation, messages, the dump of the resolved values and the help text all come from
 * the table. An option set (a table together with a struct for the values) is used in this order: create
 * (defaults) → read_file → read_overrides or read_flags → the caller's own rules (ax_option_error) → finish.
 * The set collects errors of the user, so that finish reports them all at once. The reading functions return
 * an error only if they cannot go on (no memory, unreadable file). No function is collective. */
#ifndef AXONN_OPTION_H
#define AXONN_OPTION_H

#include "axonn/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- tables -------------------------------------------------------------------------------------- */

typedef struct ax_ints {
    int64_t *items;
    size_t count;
} ax_ints;

typedef struct ax_weighted_path {
    char *path;
    double weight;  /* > 0; or 0: the user gave no weight */
    int64_t epochs; /* > 0; or 0: the user gave no epochs. A path has a weight or epochs, not both */
} ax_weighted_path;

typedef struct ax_paths {
    ax_weighted_path *items;
    size_t count;
} ax_paths;

/* A number of items, such as steps, or a percentage of all of them. */
typedef struct ax_quota {
    int64_t number; /* used if `percent` is 0 */
    double percent;
} ax_quota;

/* Returns the number of items that `quota` stands for if there are `whole` items in all. A percentage of them
 * is rounded to the nearest integer. */
int64_t ax_quota_of(const ax_quota *quota, int64_t whole);

/* The types of options, each with the C type of its field. The caller's struct owns strings and lists;
 * ax_option_fini frees them. A string that has no default and was not given is NULL. */
typedef enum ax_option_type {
    AX_OPT_BOOL,   /* bool: true | false */
    AX_OPT_INT,    /* int64_t: a number, or word i of `choices`, stored as -1-i (word 0 as -1) */
    AX_OPT_FLOAT,  /* double, finite; or word i of `choices`, stored as -1-i. `range` then has no number below
                      0 */
    AX_OPT_QUOTA,  /* ax_quota: a count N, limited by `range`, or P% with P from 0 to 100 */
    AX_OPT_STRING, /* char *; if there are `choices`, it must be one of them */
    AX_OPT_PATH, /* char *; a word of `choices` is stored unchanged; "./word" is a file named like the word */
    AX_OPT_ENUM, /* int: the index of the word in `choices`; the C enum must have the same order */
    AX_OPT_FLOATS,  /* double[items] */
    AX_OPT_INTS,    /* ax_ints; word i of `choices` is stored as -1-i, as for AX_OPT_INT */
    AX_OPT_STRINGS, /* ax_strings */
    AX_OPT_PATHS    /* ax_paths: PATH, a list of PATH, or a list of {path: PATH, weight: NUMBER} or
                       {path: PATH, epochs: N} */
} ax_option_type;

typedef struct ax_option {
    /* The name of the option: "optim.lr" in files, where dots mean nested maps; "max-tokens" for the flag
     * --max-tokens. A key that starts with a capital is a positional argument, and takes all further words if
     * its type is AX_OPT_STRINGS or AX_OPT_PATHS. */
    const char *key;
    ax_option_type type;
    size_t offset;      /* offset of the field in the caller's struct */
    const char *preset; /* the default, written as a user would (numbers of a list with commas); NULL: strings
                           are NULL, other types 0 or empty */
    const char *range; /* for numbers, e.g. "[0, 1)", "(0, inf)"; NULL: any. Applies to each item of a list */
    const char *choices; /* legal words, separated by "|": "auto|off"; NULL: no words, or those of `words` */
    const char *(*words)(int index); /* returns legal word number `index`, or NULL after the last: for words
                                        of a table of their own, in place of `choices` */
    int items;                       /* AX_OPT_FLOATS: number of values */
    bool required;                   /* the user must give a value */
    bool not_dumped;                 /* ax_option_dump leaves the option out */
    const char *meta;     /* placeholder of the value in the help: "N", "DIR"; NULL: one that fits the type */
    const char *help;     /* one sentence, no full stop */
    const char *variable; /* environment variable that gives the value if no file and no argument does, or
                             NULL. Functions of this header do not read the environment; runtime.h does */
    const char *group;    /* of a positional argument of words KEY=VALUE: the group of their keys, such as
                             "grid"; a flag that takes many values ends before such a word */
} ax_option;

/* Names that other programs give an option, and what is written here instead. */
typedef struct ax_option_synonym {
    const char *names; /* in lower case, with underscores, separated by "|": "learning_rate|max_lr" */
    const char *write; /* begins with a key or a flag of the table: "optim.lr", "--max-tokens N" */
} ax_option_synonym;

/* Writes word number `value` of an option's `choices` or `words` to `word`: word 1 of "auto|off" is "off"; ""
 * if there is no such word. Returns `word`. */
const char *ax_option_word(const ax_option *option, int value, char word[64]);
/* Writes all words of an option to `list`, with `between` between two words. Returns `list`, or NULL if the
 * option has no words. */
enum { AX_OPTION_LIST = 256 };
const char *ax_option_list(const ax_option *option, const char *between, char list[AX_OPTION_LIST]);

/* Returns true if the row describes a positional argument, not a flag. */
bool ax_option_is_positional(const ax_option *option);

/* ---- sets ---------------------------------------------------------------------------------------- */

typedef struct ax_option_set ax_option_set;

/* Creates a set of the options in `table`, with the values in the caller's struct `target`. All fields of
 * `target` that the table names are set to their defaults. `table` and `target` must outlive the set.
 * AX_ERR_MEMORY; AX_ERR_INTERNAL if a default is not valid. */
AX_MUST_CHECK ax_status ax_option_set_create(const ax_option *table, size_t count, void *target,
                                             ax_option_set **out);
/* Frees the set, but not the strings and lists in `target` (ax_option_fini does). */
void ax_option_set_destroy(ax_option_set **set);

/* Frees the strings and lists in `target` and zeroes their fields. */
void ax_option_fini(const ax_option *table, size_t count, void *target);

/* Reads a YAML file. A relative path in the file starts at the file's directory, and becomes absolute.
 * AX_ERR_DATA if the file cannot be read or has more than 1 MiB, AX_ERR_MEMORY. */
AX_MUST_CHECK ax_status ax_option_read_file(ax_option_set *set, const char *path);
/* Reads YAML text from memory, as ax_option_read_file does from a file. `name` is the file's name in
 * messages; a relative path in the text starts at `dir`. */
AX_MUST_CHECK ax_status ax_option_read_text(ax_option_set *set, const char *name, const char *dir,
                                            const char *text, size_t size);

/* Reads "key=value" arguments; a key given twice is an error of the user. For a list or a group of keys, a
 * value that starts with [ or { is YAML; any other value is taken literally. Relative paths become absolute.
 * AX_ERR_MEMORY. */
AX_MUST_CHECK ax_status ax_option_read_overrides(ax_option_set *set, size_t n, char *const *overrides);

/* Reads a verb's flags and positional arguments: --key VALUE, --key=VALUE, --flag and --no-flag for bools,
 * -- ends the flags. AX_OPT_STRINGS and AX_OPT_PATHS take all values up to the next flag and may be repeated;
 * AX_OPT_INTS and AX_OPT_FLOATS take one value with commas. Any other flag given twice is an error of the
 * user. Paths stay as typed. AX_ERR_MEMORY. */
AX_MUST_CHECK ax_status ax_option_read_flags(ax_option_set *set, size_t n, char *const *args);
/* Makes a later ax_option_read_flags accept arguments GROUP.NAME=VALUE too, such as train.steps=10. If the
 * set `keys` has keys that begin with GROUP, these arguments are read into `keys`, as by
 * ax_option_read_overrides. Such arguments may stand between any two flags. An argument after "--", or after
 * a flag that takes one value, is never read as GROUP.NAME=VALUE. `keys` must outlive the call of
 * ax_option_read_flags. */
void ax_option_take_keys(ax_option_set *set, ax_option_set *keys);

/* Makes messages about unknown keys and flags say what is written here instead of the names of other
 * programs. A name is compared with the key's last name (after the last dot), whatever its case, and with -
 * for _. Rows whose `write` does not begin with a key of the table are not used, unless the options are flags
 * of a verb that also takes KEY=VALUE arguments: there `write` may be a key too. `synonyms` must outlive the
 * set. */
void ax_option_take_synonyms(ax_option_set *set, const ax_option_synonym *synonyms, size_t count);

/* Returns true if a file, the command line or ax_option_assign gave the key a valid value, false if it has
 * its default. */
bool ax_option_given(const ax_option_set *set, const char *key);
/* Returns true if the command line gave the key a value, valid or not. A flag that may be repeated
 * (AX_OPT_STRINGS, AX_OPT_PATHS) does not count. */
bool ax_option_typed(const ax_option_set *set, const char *key);
/* Returns true if the key is in the table, no error was recorded for it, and every YAML text could be read to
 * its end. Code that checks a rule over several keys calls ax_option_ok first, because a key that seems to be
 * missing may be in a part of a text that was not read. */
bool ax_option_ok(const ax_option_set *set, const char *key);
/* Returns where the value comes from: "train.yaml:12:7", "command line", what ax_option_assign was given, or
 * "default". */
const char *ax_option_place(const ax_option_set *set, const char *key);

/* Sets the value of `key`, which is in the table; `place` is where the value comes from (ax_option_place).
 * Relative paths become absolute. AX_ERR_USAGE if the value is not allowed, AX_ERR_MEMORY. */
AX_MUST_CHECK ax_status ax_option_assign(ax_option_set *set, const char *key, const char *value,
                                         const char *place);

/* Records an error of `key`. The printed error consists of the place where the key was set (ax_option_place),
 * the key, and this message. */
void ax_option_error(ax_option_set *set, const char *key, const char *fmt, ...) AX_PRINTF(3, 4);

/* Makes `key` optional, although `required` is true in its row of the table. */
void ax_option_waive(ax_option_set *set, const char *key);

/* Ends reading: records an error for each required option that was not given, and returns AX_OK if no error
 * was recorded, else AX_ERR_USAGE. The message of AX_ERR_USAGE has the errors, one per line, at most 50. Each
 * line says where the value was set (file and line, or "command line"), the key, the rule that it breaks, and
 * often the nearest legal key or value. */
AX_MUST_CHECK ax_status ax_option_finish(ax_option_set *set);

/* ---- text ---------------------------------------------------------------------------------------- */

/* Appends the values as YAML. A YAML comment says where each value was set (file and line, or "command
 * line"); values that nobody set have none. Strings that are NULL, and rows with `not_dumped`, are left out.
 * Reading this YAML gives the identical struct, except for rows with `not_dumped`: floats are written so that
 * they read back exactly. AX_ERR_USAGE if a text is not UTF-8. */
AX_MUST_CHECK ax_status ax_option_dump(const ax_option_set *set, ax_buf *out);

/* Appends the value of one key of the table as it is written after "key="; a single text or path without
 * quotes. */
AX_MUST_CHECK ax_status ax_option_value(const ax_option_set *set, const char *key, ax_buf *out);

/* Appends all values as lines "key: value", without the place where each was set, so that equal values give
 * equal text. AX_ERR_USAGE as for ax_option_dump. */
AX_MUST_CHECK ax_status ax_option_print(const ax_option_set *set, ax_buf *out);

/* Appends the left column of an option's help. If the option is a flag of a verb (`flag` is true), this is
 * "--max-tokens N"; else it is "optim.lr X". */
AX_MUST_CHECK ax_status ax_option_usage(const ax_option *option, bool flag, ax_buf *out);
/* Appends the right column of an option's help: help text, legal values, default (or "required") and
 * environment variable. The default of a flag of type bool is left out. */
AX_MUST_CHECK ax_status ax_option_describe(const ax_option *option, bool flag, ax_buf *out);
/* Appends the help of the whole table: the two columns of each row, aligned, in lines of at most `width`
 * characters. */
AX_MUST_CHECK ax_status ax_option_help(const ax_option *table, size_t count, bool flags, int width,
                                       ax_buf *out);

#ifdef __cplusplus
}
#endif
#endif
