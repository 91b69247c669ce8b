/* Shared by the files that implement option.h: struct ax_option_set, functions for single values, and
 * functions that collect errors. */
#ifndef AX_BASE_OPTION_PRIVATE_H
#define AX_BASE_OPTION_PRIVATE_H

#include "axonn/option.h"

typedef struct ax_option_state {
    char *place; /* where the value was set, such as "train.yaml:12:7" or "command line"; NULL: nowhere, so
                    the default applies */
    bool failed; /* an error was recorded for the key */
    bool waived; /* ax_option_waive was called: the key may be missing although it is required */
    char *typed; /* the value's text on the command line, valid or not; NULL: none, or the values were given
                    by a flag that takes many (option_takes_many) */
} ax_option_state;

struct ax_option_set {
    const ax_option *table;
    size_t count;
    char *target;
    ax_option_state *states; /* one for each row of `table` */
    ax_buf errors;           /* one line for each of the first ERRORS_KEPT (50) errors */
    size_t error_count;
    ax_option_set *keys; /* the option set that gets the arguments KEY=VALUE among the flags, or NULL */
    const ax_option_synonym *synonyms; /* names of other programs, or NULL */
    size_t synonym_count;
    bool flags;  /* the options are flags: messages show keys as --key */
    bool broken; /* a YAML text could not be read to its end, so keys that seem to be missing may be in its
                    rest */
};

/* A buffer that is large enough for the field of an option of any type. */
enum { OPTION_FLOATS_MAX = 8 };
typedef union option_field {
    double floats[OPTION_FLOATS_MAX];
    void *alignment;
} option_field;

/* ---- values: option_value.c ---- */

/* option_item parses item n of a value and adds it to `field`. A value is a sequence of items; a value of a
 * scalar type has exactly one. The caller zeroes `field`, adds the items in order (n = 0, 1, …), and then
 * calls option_items_end, which checks the number of items. The message of AX_ERR_USAGE (ax_error_message) is
 * the broken rule, without the key and without the file and line. Relative paths are taken relative to `dir`;
 * if `dir` is NULL, they stay unchanged. `share` gives the weight or the epochs of an item of AX_OPT_PATHS,
 * and is NULL, or has zeros, if the item is only a path; share->path is not used. */
ax_status option_item(const ax_option *option, const char *text, const char *dir,
                      const ax_weighted_path *share, size_t n, void *field);
ax_status option_items_end(const ax_option *option, size_t n);
/* Parses the text of a whole value: a list of numbers is split at commas, any other text is one item. */
ax_status option_value(const ax_option *option, const char *text, const char *dir, void *field);
ax_status option_number(const char *text, double *out);
bool option_has_words(const ax_option *option);
bool option_is_list(const ax_option *option);
bool option_takes_many(const ax_option *option); /* as a flag it takes all arguments up to the next flag */
size_t option_field_size(const ax_option *option);
void option_field_fini(const ax_option *option, void *field);
/* Returns the number of items of a list field. */
size_t option_list_length(const ax_option *option, const void *field);
/* Returns a phrase for the option's type: "an integer", "a path", … */
const char *option_type_phrase(const ax_option *option);
/* Writes `text` in quotes to `out`, shortened if it is long, with ? for control characters. Returns out. */
char *option_quote(const char *text, char out[80]);
/* Writes a range in words: "at least 1", "from 0 to 10", "at least 0 and less than 1". Returns out. */
char *option_range_phrase(const char *range, char out[96]);
/* Writes `value` with the fewest digits that read back as the same double. Returns out. */
char *option_format_double(double value, char out[32]);
/* Makes `path` absolute: an absolute path stays unchanged, any other is relative to `dir`. If `dir` is not
 * absolute either, it is relative to the current directory ("": the current directory itself). The caller
 * frees *out. */
ax_status option_absolute(const char *dir, const char *path, char **out);

/* ---- sets: option.c ---- */

/* Returns the table row of `key`, which has n bytes, or NULL. */
const ax_option *option_find(const ax_option_set *set, const char *key, size_t n);
ax_option_state *option_state(const ax_option_set *set, const ax_option *option);
/* Moves a parsed value into the field of the target struct. Records `place`, where the value was set (file
 * and line, or "command line"). Zeroes *value. */
ax_status option_store(ax_option_set *set, const ax_option *option, option_field *value, const char *place);
/* Records that the command line gives `text` for the option. Sets *claimed to true. But if the command line
 * has already given the option a value, sets *claimed to false and records the error that the option is given
 * twice. */
ax_status option_claim(ax_option_set *set, const ax_option *option, const char *place, const char *text,
                       bool *claimed);
/* Records an error. `place` is the file and line, or "command line"; NULL: the error has no place. `key` need
 * not be a key of the table; NULL: the error belongs to no key. */
void option_report(ax_option_set *set, const char *place, const char *key, const char *fmt, ...)
    AX_PRINTF(4, 5);
/* Handles `status`, the status of reading the value of `option`: records AX_ERR_USAGE as an error of the set
 * and returns AX_OK; returns any other status unchanged. */
ax_status option_absorb(ax_option_set *set, const ax_option *option, const char *place, ax_status status);
/* Records an error for `key`, which the table lacks. The message suggests the nearest key or group of the
 * table or, if none is near, lists those of the table. */
void option_unknown(ax_option_set *set, const char *place, const char *key);
/* Returns true if the table has keys of the form "prefix.…". */
bool option_is_group(const ax_option_set *set, const char *prefix);
/* Appends the names of the keys and groups directly under the group `prefix` ("": the top level), separated
 * by commas. */
void option_list_group(const ax_option_set *set, const char *prefix, ax_buf *out);

#endif
