#include "records.h"

#include "axonn/json.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { FAULTS_BYTES = 12 << 10 }; /* of the message; an error message has at most 16 KiB */

ax_status cli_records_fault(cli_records *r, int64_t line, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    r->fault_count++;
    if (r->faults.size + strlen(r->path) + strlen(text) > FAULTS_BYTES)
        return AX_OK;
    return ax_buf_printf(&r->faults, "\n%s:%lld: %s", r->path, (long long)line, text);
}

ax_status cli_records_check(const cli_records *r)
{
    size_t listed = 0;
    for (size_t i = 0; i < r->faults.size; i++)
        listed += r->faults.data[i] == '\n';
    char more[64] = "";
    if (listed < r->fault_count)
        snprintf(more, sizeof more, "\nand %zu more", r->fault_count - listed);
    AX_CHECK(!r->fault_count, AX_ERR_DATA, "%zu fault%s, so nothing was done:%s%s", r->fault_count,
             r->fault_count > 1 ? "s" : "", r->faults.data ? r->faults.data : "", more);
    return AX_OK;
}

/* ---- ids ----------------------------------------------------------------------------------------- */

ax_status cli_record_id(const json_t *value, char **out)
{
    *out = NULL;
    if (!json_is_integer(value) && !(json_is_string(value) && json_string_length(value)))
        return AX_OK;
    *out = json_dumps(value, JSON_ENCODE_ANY);
    AX_CHECK(*out, AX_ERR_MEMORY, "not enough memory for the ids of a file");
    return AX_OK;
}

static int compare_ids(const void *a, const void *b)
{
    const cli_record *x = *(cli_record *const *)a, *y = *(cli_record *const *)b;
    int order = strcmp(x->id, y->id);
    return order ? order : (x->line > y->line) - (x->line < y->line);
}

/* Sorts the records with ids by them, and records those that are there twice. */
static ax_status sort_ids(cli_records *r)
{
    AX_TRY(ax_calloc(r->n + 1, sizeof(cli_record *), &r->by_id));
    for (size_t i = 0; i < r->n; i++)
        if (r->record[i].id)
            r->by_id[r->with_id++] = &r->record[i];
    qsort(r->by_id, r->with_id, sizeof *r->by_id, compare_ids);
    for (size_t i = 1; i < r->with_id; i++)
        if (!strcmp(r->by_id[i]->id, r->by_id[i - 1]->id))
            AX_TRY(cli_records_fault(r, r->by_id[i]->line, "the id %s is that of line %lld, too",
                                     r->by_id[i]->id, (long long)r->by_id[i - 1]->line));
    return AX_OK;
}

static int compare_with(const void *id, const void *record)
{
    return strcmp(id, (*(cli_record *const *)record)->id);
}

const cli_record *cli_records_find(const cli_records *r, const char *id)
{
    cli_record **found = bsearch(id, r->by_id, r->with_id, sizeof *r->by_id, compare_with);
    return found ? *found : NULL;
}

/* ---- objects ------------------------------------------------------------------------------------- */

static bool is_among(const char *name, const char *const *names)
{
    for (; *names; names++)
        if (!strcmp(name, *names))
            return true;
    return false;
}

/* Returns the member that the verb reads and that `name` seems to mean, because it differs in case or by one
 * byte; NULL if there is none. */
static const char *find_meant(const char *name, const char *const *names)
{
    char small[64];
    size_t n = 0;
    for (; name[n] && n + 1 < sizeof small; n++)
        small[n] = (char)tolower((unsigned char)name[n]);
    small[n] = 0;
    for (; *names; names++)
        if (ax_edit_distance(small, *names) <= 1)
            return *names;
    return NULL;
}

/* Removes the members that the verb reads from `object`, and sets *rest to the text of the others. */
static ax_status print_rest(cli_records *r, int64_t line, json_t *object, const char *const *reads,
                            const char *const *writes, char **rest)
{
    ax_buf text = {0};
    const char *name;
    json_t *value;
    void *next;
    json_object_foreach_safe(object, next, name, value)
    {
        if ((r->ids && !strcmp(name, "id")) || is_among(name, reads))
            json_object_del(object, name);
        else if (is_among(name, writes))
            AX_TRY(cli_records_fault(r, line, "a member \"%s\" would stand twice in the output: rename it",
                                     name));
        else if (find_meant(name, reads))
            AX_TRY(cli_records_fault(r, line,
                                     "a member \"%s\" is not read: write \"%s\", or give it a name that is "
                                     "less like that",
                                     name, find_meant(name, reads)));
    }
    ax_status status = json_object_size(object) ? ax_json_print(object, JSON_COMPACT, &text) : AX_OK;
    if (status == AX_OK && text.size) {
        text.data[0] = ','; /* in place of the brace before the members */
        text.data[text.size - 1] = 0;
    }
    if (status == AX_OK)
        status = ax_strdup(text.size ? text.data : "", rest);
    ax_buf_fini(&text);
    return status;
}

/* Appends the object whose JSON text has n bytes and begins at `place`. */
static ax_status add_record(cli_records *r, const ax_json_place *place, const char *text, size_t n,
                            const char *const *reads, const char *const *writes)
{
    json_t *object, *verbatim = NULL;
    ax_status status = ax_json_parse_at(place, text, n, JSON_REJECT_DUPLICATES, &object);
    if (status != AX_OK) {
        const char *message = strstr(ax_error_message(), "not valid JSON");
        return status == AX_ERR_DATA
                   ? cli_records_fault(r, place->line, "%s", message ? message : ax_error_message())
                   : status;
    }
    if (!json_is_object(object)) {
        json_decref(object);
        return cli_records_fault(r, place->line, "not a JSON object");
    }
    status = ax_list_grow(&r->record, r->n, sizeof *r->record);
    if (status != AX_OK) {
        json_decref(object);
        return status;
    }
    cli_record *record = &r->record[r->n++];
    *record = (cli_record){.object = object, .line = place->line};
    if (r->ids)
        AX_TRY(cli_record_id(json_object_get(object, "id"), &record->id));
    if (r->ids && !record->id)
        AX_TRY(cli_records_fault(r, place->line, "\"id\" must be there, a string or an integer"));
    AX_TRY(ax_json_parse_verbatim(place->path, text, n, &verbatim));
    status = print_rest(r, place->line, verbatim, reads, writes, &record->rest);
    json_decref(verbatim);
    return status;
}

/* ---- files --------------------------------------------------------------------------------------- */

static bool is_blank(const char *line, size_t n) { return strspn(line, " \t\r") >= n; }

static ax_status read_lines(cli_records *r, const char *text, size_t size, const char *const *reads,
                            const char *const *writes)
{
    ax_json_place place = {r->path, 1, 1};
    for (const char *at = text, *end = text + size; at < end; place.line++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        const size_t n = (size_t)((stop ? stop : end) - at);
        if (!is_blank(at, n))
            AX_TRY(add_record(r, &place, at, n, reads, writes));
        at += n + 1;
    }
    return AX_OK;
}

/* Returns the end of a value in a valid JSON text, which begins at `at`. */
static const char *skip_value(const char *at)
{
    int depth = 0;
    for (bool string = false;; at++) {
        if (string) {
            if (*at == '\\')
                at++;
            else
                string = *at != '"';
        } else if (*at == '"') {
            string = true;
        } else if (*at == '[' || *at == '{') {
            depth++;
        } else if (*at == ']' || *at == '}') {
            if (!depth--)
                return at;
        } else if (*at == ',' && !depth) {
            return at;
        }
    }
}

/* Reads the elements of a JSON array. */
static ax_status read_array(cli_records *r, const char *text, size_t size, const char *const *reads,
                            const char *const *writes)
{
    json_t *whole;
    ax_json_place place = {r->path, 1, 1};
    AX_TRY(ax_json_parse(r->path, text, size, 0, &whole));
    const size_t count = json_array_size(whole);
    json_decref(whole);
    const char *at = strchr(text, '['), *seen = text;
    for (size_t i = 0; i < count; i++) {
        at += 1 + strspn(at + 1, " \t\r\n");
        for (; seen < at; seen++)
            place.line += *seen == '\n';
        const char *end = skip_value(at);
        AX_TRY(add_record(r, &place, at, (size_t)(end - at), reads, writes));
        at = end;
    }
    return AX_OK;
}

ax_status cli_records_read(const char *path, bool ids, const char *const *reads, const char *const *writes,
                           cli_records *out)
{
    char *text;
    size_t size;
    *out = (cli_records){.path = path, .ids = ids};
    AX_TRY(ax_file_read(path, &text, &size));
    ax_status status = text[strspn(text, " \t\r\n")] == '[' ? read_array(out, text, size, reads, writes)
                                                            : read_lines(out, text, size, reads, writes);
    free(text);
    if (status == AX_OK && !out->n && !out->fault_count)
        status = ax_fail(AX_ERR_DATA,
                         "%s is empty: it should have a JSON object on each line, or an array of them", path);
    return status == AX_OK ? sort_ids(out) : status;
}

void cli_records_fini(cli_records *r)
{
    for (size_t i = 0; i < r->n; i++) {
        json_decref(r->record[i].object);
        free(r->record[i].id);
        free(r->record[i].rest);
    }
    free(r->record);
    free(r->by_id);
    ax_buf_fini(&r->faults);
    *r = (cli_records){0};
}
