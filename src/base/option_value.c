/* Option values: for each type, a function that converts text to a field of the caller's struct. */
#include "option_private.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *option_quote(const char *text, char out[80])
{
    size_t n = strlen(text), kept = n > 60 ? 57 : n;
    snprintf(out, 80, "\"%.*s%s\"", (int)kept, text, kept < n ? "..." : "");
    for (char *c = out; *c; c++)
        if ((unsigned char)*c < ' ')
            *c = '?';
    return out;
}

/* ---- choices and ranges -------------------------------------------------------------------------- */

const char *ax_option_word(const ax_option *option, int value, char word[64])
{
    const char *at = option->choices;
    word[0] = 0;
    if (value < 0)
        return word;
    for (int i = 0; !option->words && at && i < value; i++) {
        const char *bar = strchr(at, '|');
        at = bar ? bar + 1 : NULL;
    }
    at = option->words ? option->words(value) : at;
    snprintf(word, 64, "%.*s", at ? (int)strcspn(at, "|") : 0, at ? at : "");
    return word;
}

const char *ax_option_list(const ax_option *option, const char *between, char list[AX_OPTION_LIST])
{
    char word[64];
    list[0] = 0;
    for (int i = 0; *ax_option_word(option, i, word); i++)
        ax_text_add(list, AX_OPTION_LIST, "%s%s", i ? between : "", word);
    return *list ? list : NULL;
}

/* Returns the index of `text` among the words of the option, or -1. */
static int find_word(const ax_option *option, const char *text)
{
    char word[64];
    for (int i = 0; *ax_option_word(option, i, word); i++)
        if (!strcmp(text, word))
            return i;
    return -1;
}

/* Fails with "must be a, b or c, not "x"; the nearest is b". */
static ax_status fail_choice(const ax_option *option, const char *text)
{
    char list[AX_OPTION_LIST] = "", best[64] = "", word[64], next[64], quoted[80];
    int nearest = 1 << 20;
    for (int i = 0; *ax_option_word(option, i, word); i++) {
        const bool last = !*ax_option_word(option, i + 1, next);
        ax_text_add(list, sizeof list, "%s%s", !i ? "" : last ? " or " : ", ", word);
        int distance = ax_edit_distance(text, word);
        if (distance < nearest) {
            nearest = distance;
            memcpy(best, word, sizeof best);
        }
    }
    /* Suggests the nearest choice only if the option has several choices, and if at most half of the letters
     * of `text` must change. */
    bool near = strcmp(list, best) != 0 && 2 * nearest <= (int)strlen(text);
    return ax_fail(AX_ERR_USAGE, "must be %s, not %s%s%s", list, option_quote(text, quoted),
                   near ? "; the nearest is " : "", near ? best : "");
}

typedef struct bounds {
    double lo, hi;
    bool open_lo, open_hi;
} bounds;

static bounds parse_range(const char *range)
{
    char *end;
    bounds b = {.open_lo = range[0] == '('};
    b.lo = strtod(range + 1, &end);
    b.hi = strtod(end + 1, &end);
    b.open_hi = *end == ')';
    return b;
}

/* Prints a bound, with all digits if it is an integer of 64 bits. */
static const char *format_bound(double value, char out[32])
{
    bool integer = value == floor(value) && fabs(value) < 0x1p63;
    snprintf(out, 32, integer ? "%.0f" : "%.12g", value);
    return out;
}

char *option_range_phrase(const char *range, char out[96])
{
    bounds b = parse_range(range);
    bool lo = isfinite(b.lo), hi = isfinite(b.hi);
    char left[48] = "", right[48] = "", low[32], high[32];
    format_bound(b.lo, low);
    format_bound(b.hi, high);
    if (lo)
        snprintf(left, sizeof left, "%s %s", b.open_lo ? "greater than" : "at least", low);
    if (hi)
        snprintf(right, sizeof right, "%s %s", b.open_hi ? "less than" : "at most", high);
    if (lo && hi && !b.open_lo && !b.open_hi)
        snprintf(out, 96, "from %s to %s", low, high);
    else
        snprintf(out, 96, "%s%s%s", left, lo && hi ? " and " : "", right);
    return out;
}

static ax_status check_range(const ax_option *option, double value, const char *text)
{
    if (!option->range)
        return AX_OK;
    bounds b = parse_range(option->range);
    char phrase[96], quoted[80];
    bool ok = (b.open_lo ? value > b.lo : value >= b.lo) && (b.open_hi ? value < b.hi : value <= b.hi);
    AX_CHECK(ok, AX_ERR_USAGE, "must be %s, not %s", option_range_phrase(option->range, phrase),
             option_quote(text, quoted));
    return AX_OK;
}

/* ---- numbers ------------------------------------------------------------------------------------- */

static size_t digits(const char *text) { return strspn(text, "0123456789"); }

/* Returns true if the text is a decimal number. strtod alone would also accept hexadecimal numbers, "inf" and
 * "nan". */
static bool is_decimal(const char *text)
{
    text += *text == '-' || *text == '+';
    size_t whole = digits(text), fraction = 0;
    text += whole;
    if (*text == '.') {
        fraction = digits(++text);
        text += fraction;
    }
    if (whole + fraction == 0)
        return false;
    if (*text == 'e' || *text == 'E') {
        text++;
        text += *text == '-' || *text == '+';
        size_t exponent = digits(text);
        if (!exponent)
            return false;
        text += exponent;
    }
    return *text == 0;
}

/* Removes the separators _ and , from a number such as "1_000" or "1,000", for a hint in the error message.
 * Returns false if `text` has no separators, or is not a number without them. */
static bool without_underscores(const char *text, char out[40])
{
    size_t n = 0;
    bool found = false;
    for (; *text && n < 39; text++) {
        found |= *text == '_' || *text == ',';
        if (*text != '_' && *text != ',')
            out[n++] = *text;
    }
    out[n] = 0;
    return found && is_decimal(out);
}

ax_status option_number(const char *text, double *out)
{
    char quoted[80], plain[40];
    option_quote(text, quoted);
    AX_CHECK(!without_underscores(text, plain), AX_ERR_USAGE, "must be a number, not %s; write %s", quoted,
             plain);
    AX_CHECK(is_decimal(text), AX_ERR_USAGE, "must be a number, not %s", quoted);
    *out = strtod(text, NULL);
    AX_CHECK(isfinite(*out), AX_ERR_USAGE, "%s is too large for a number; the limit is about 1.8e308",
             quoted);
    return AX_OK;
}

static ax_status parse_int(const char *text, int64_t *out)
{
    char quoted[80], plain[40];
    option_quote(text, quoted);
    size_t sign = *text == '-' || *text == '+';
    if (digits(text + sign) && !text[sign + digits(text + sign)]) {
        errno = 0;
        *out = strtoll(text, NULL, 10);
        AX_CHECK(!errno, AX_ERR_USAGE, "%s does not fit into 64 bits, the size of an integer here", quoted);
        return AX_OK;
    }
    AX_CHECK(!without_underscores(text, plain), AX_ERR_USAGE, "must be an integer, not %s; write %s", quoted,
             plain);
    double value = is_decimal(text) ? strtod(text, NULL) : NAN;
    AX_CHECK(!(value == floor(value) && fabs(value) < 1e15), AX_ERR_USAGE,
             "must be an integer, not %s; write %.0f", quoted, value);
    return ax_fail(AX_ERR_USAGE, "must be an integer, not %s", quoted);
}

char *option_format_double(double value, char out[32])
{
    for (int precision = 1; precision <= 17; precision++) {
        snprintf(out, 32, "%.*g", precision, value);
        if (strtod(out, NULL) == value)
            break;
    }
    return out;
}

/* ---- items, one parser per type ------------------------------------------------------------------ */

typedef struct item {
    const ax_option *option;
    const char *text, *dir;
    const ax_weighted_path *share;
    size_t n;
} item;

static ax_status item_bool(const item *it, void *field)
{
    static const char *const yes[] = {"yes", "on", "True", "TRUE", "1", "y", "Yes", "On"};
    char quoted[80];
    bool value = !strcmp(it->text, "true"), alike = false;
    for (size_t i = 0; i < AX_COUNT(yes); i++)
        alike |= !strcmp(it->text, yes[i]);
    AX_CHECK(value || !strcmp(it->text, "false"), AX_ERR_USAGE,
             "must be true or false, not %s; the nearest is %s", option_quote(it->text, quoted),
             alike || ax_edit_distance(it->text, "true") < ax_edit_distance(it->text, "false") ? "true"
                                                                                               : "false");
    *(bool *)field = value;
    return AX_OK;
}

/* Sets *word to the number of the word that stands for a number, -1 if the text is none. AX_ERR_USAGE if the
 * text is another word; the message says that `number` is allowed too. */
static ax_status word_or_number(const item *it, const char *number, int *word)
{
    *word = find_word(it->option, it->text);
    if (*word >= 0 || !option_has_words(it->option) || !isalpha((unsigned char)it->text[0]))
        return AX_OK;
    (void)fail_choice(it->option, it->text);
    return ax_fail(AX_ERR_USAGE, "%s; %s is also allowed", ax_error_message(), number);
}

static ax_status item_int(const item *it, void *field)
{
    int word;
    AX_TRY(word_or_number(it, "an integer", &word));
    if (word >= 0) {
        *(int64_t *)field = -1 - word;
        return AX_OK;
    }
    AX_TRY(parse_int(it->text, field));
    return check_range(it->option, (double)*(int64_t *)field, it->text);
}

static ax_status item_float(const item *it, void *field)
{
    int word;
    AX_TRY(word_or_number(it, "a number", &word));
    if (word >= 0) {
        *(double *)field = -1 - word;
        return AX_OK;
    }
    AX_TRY(option_number(it->text, field));
    return check_range(it->option, *(double *)field, it->text);
}

static ax_status item_quota(const item *it, void *field)
{
    ax_quota *quota = field;
    size_t n = strlen(it->text);
    char number[32], quoted[80];
    if (!n || it->text[n - 1] != '%') {
        /* Other programs write 0.03 for 3 %. */
        double share = is_decimal(it->text) ? strtod(it->text, NULL) : 0;
        AX_CHECK(!(share > 0 && share < 1), AX_ERR_USAGE,
                 "must be an integer or a percentage, not %s; write %.6g%%", option_quote(it->text, quoted),
                 100 * share);
        AX_TRY(parse_int(it->text, &quota->number));
        return check_range(it->option, (double)quota->number, it->text);
    }
    snprintf(number, sizeof number, "%.*s", (int)(n - 1), it->text);
    AX_CHECK(n <= sizeof number && is_decimal(number), AX_ERR_USAGE,
             "must be an integer or a percentage such as 5%%, not %s", option_quote(it->text, quoted));
    quota->percent = strtod(number, NULL);
    AX_CHECK(quota->percent >= 0 && quota->percent <= 100, AX_ERR_USAGE, "must be from 0%% to 100%%, not %s",
             option_quote(it->text, quoted));
    return AX_OK;
}

static ax_status item_string(const item *it, void *field)
{
    if (option_has_words(it->option) && find_word(it->option, it->text) < 0)
        return fail_choice(it->option, it->text);
    return ax_strdup(it->text, field);
}

static ax_status item_path(const item *it, void *field)
{
    AX_CHECK(it->text[0], AX_ERR_USAGE, "must be a path, not an empty text");
    if (!it->dir || find_word(it->option, it->text) >= 0)
        return ax_strdup(it->text, field);
    return option_absolute(it->dir, it->text, field);
}

static ax_status item_enum(const item *it, void *field)
{
    int word = find_word(it->option, it->text);
    if (word < 0)
        return fail_choice(it->option, it->text);
    *(int *)field = word;
    return AX_OK;
}

static ax_status item_floats(const item *it, void *field)
{
    double value;
    AX_TRY(item_float(it, &value));
    if (it->n < (size_t)it->option->items) /* option_items_end reports surplus items */
        ((double *)field)[it->n] = value;
    return AX_OK;
}

static ax_status item_ints(const item *it, void *field)
{
    ax_ints *list = field;
    int64_t value;
    AX_TRY(item_int(it, &value));
    AX_TRY(ax_list_grow(&list->items, list->count, sizeof *list->items));
    list->items[list->count++] = value;
    return AX_OK;
}

static ax_status item_strings(const item *it, void *field) { return ax_strings_add(field, "%s", it->text); }

static ax_status item_paths(const item *it, void *field)
{
    ax_paths *list = field;
    AX_TRY(ax_list_grow(&list->items, list->count, sizeof *list->items));
    ax_weighted_path *last = &list->items[list->count];
    *last = it->share ? *it->share : (ax_weighted_path){0};
    AX_TRY(item_path(it, &last->path));
    list->count++;
    return AX_OK;
}

/* ---- freeing fields ------------------------------------------------------------------------------ */

static void fini_string(void *field) { free(*(char **)field); }
static void fini_ints(void *field) { free(((ax_ints *)field)->items); }
static void fini_strings(void *field) { ax_strings_fini(field); }

static void fini_paths(void *field)
{
    ax_paths *list = field;
    for (size_t i = 0; i < list->count; i++)
        free(list->items[i].path);
    free(list->items);
}

static const struct type_row {
    const char *phrase;
    size_t size;
    ax_status (*parse)(const item *it, void *field);
    void (*fini)(void *field);
    bool list, many;
} types[] = {
    [AX_OPT_BOOL] = {"true or false", sizeof(bool), item_bool, NULL, false, false},
    [AX_OPT_INT] = {"an integer", sizeof(int64_t), item_int, NULL, false, false},
    [AX_OPT_FLOAT] = {"a number", sizeof(double), item_float, NULL, false, false},
    [AX_OPT_QUOTA] = {"an integer or a percentage", sizeof(ax_quota), item_quota, NULL, false, false},
    [AX_OPT_STRING] = {"a text", sizeof(char *), item_string, fini_string, false, false},
    [AX_OPT_PATH] = {"a path", sizeof(char *), item_path, fini_string, false, false},
    [AX_OPT_ENUM] = {"a word", sizeof(int), item_enum, NULL, false, false},
    [AX_OPT_FLOATS] = {"a list of numbers", sizeof(double), item_floats, NULL, true, false},
    [AX_OPT_INTS] = {"a list of integers", sizeof(ax_ints), item_ints, fini_ints, true, false},
    [AX_OPT_STRINGS] = {"a list of texts", sizeof(ax_strings), item_strings, fini_strings, true, true},
    [AX_OPT_PATHS] = {"a path or a list of paths", sizeof(ax_paths), item_paths, fini_paths, true, true},
};

bool option_has_words(const ax_option *option) { return option->choices || option->words; }
bool option_is_list(const ax_option *option) { return types[option->type].list; }
bool option_takes_many(const ax_option *option) { return types[option->type].many; }
const char *option_type_phrase(const ax_option *option) { return types[option->type].phrase; }

size_t option_field_size(const ax_option *option)
{
    return types[option->type].size * (option->type == AX_OPT_FLOATS ? (size_t)option->items : 1);
}

void option_field_fini(const ax_option *option, void *field)
{
    if (types[option->type].fini)
        types[option->type].fini(field);
    memset(field, 0, option_field_size(option));
}

ax_status option_item(const ax_option *option, const char *text, const char *dir,
                      const ax_weighted_path *share, size_t n, void *field)
{
    item it = {option, text, dir, share, n};
    return types[option->type].parse(&it, field);
}

ax_status option_items_end(const ax_option *option, size_t n)
{
    AX_CHECK(option->type != AX_OPT_FLOATS || n == (size_t)option->items, AX_ERR_USAGE,
             "must be a list of %d numbers, not of %zu", option->items, n);
    return AX_OK;
}

ax_status option_value(const ax_option *option, const char *text, const char *dir, void *field)
{
    if (option->type != AX_OPT_FLOATS && option->type != AX_OPT_INTS)
        return option_item(option, text, dir, NULL, 0, field);
    size_t n = 0;
    for (const char *rest = text; rest; n++) {
        rest += strspn(rest, " ");
        size_t length = strcspn(rest, ",");
        char *one;
        AX_TRY(ax_strndup(rest, length, &one));
        for (size_t i = length; i > 0 && one[i - 1] == ' '; i--)
            one[i - 1] = 0;
        ax_status status = option_item(option, one, dir, NULL, n, field);
        free(one);
        AX_TRY(status);
        rest = rest[length] ? rest + length + 1 : NULL;
    }
    return option_items_end(option, n);
}

int64_t ax_quota_of(const ax_quota *quota, int64_t whole)
{
    return quota->percent > 0 ? (int64_t)llround(quota->percent / 100 * (double)whole) : quota->number;
}

/* ---- paths --------------------------------------------------------------------------------------- */

ax_status option_absolute(const char *dir, const char *path, char **out)
{
    while (path[0] == '.' && path[1] == '/') {
        path += 2;
        path += strspn(path, "/");
    }
    const char *name = !path[0] || !strcmp(path, ".") ? NULL : path;
    char *here = NULL, *base = NULL;
    if (path[0] == '/')
        return ax_strdup(path, out);
    ax_status status = AX_OK;
    if (dir[0] != '/') {
        here = getcwd(NULL, 0);
        AX_CHECK(here, AX_ERR_DATA,
                 "the path of the current directory is not known: %s; change to another directory, or write "
                 "\"%s\" as an absolute path",
                 strerror(errno), path);
        status = !dir[0] || !strcmp(dir, ".") ? ax_strdup(here, &base) : ax_path_join(here, dir, &base);
    } else {
        status = ax_strdup(dir, &base);
    }
    if (status == AX_OK)
        status = name ? ax_path_join(base, name, out) : ax_strdup(base, out);
    free(here);
    free(base);
    return status;
}
