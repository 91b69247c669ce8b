/* Reads the metrics.jsonl of a run into an ax_history. */
#include "axonn/json.h"
#include "axonn/trace.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Returns the number `key` of a row. Returns NaN for null, which stands in metrics.jsonl for numbers that are
 * not finite, and 0 if the row has no such key. */
static double number(const json_t *row, const char *key)
{
    const json_t *value = json_object_get(row, key);
    return json_is_null(value) ? (double)NAN : json_number_value(value);
}

/* Sets *index to the index of a source among those of the history, to which it is added if it is new. */
static ax_status find_source(ax_history *h, const char *name, int *index)
{
    for (*index = 0; *index < (int)h->source.count; ++*index)
        if (!strcmp(h->source.items[*index], name))
            return AX_OK;
    return ax_strings_add(&h->source, "%s", name);
}

/* Returns what a row is about. False: it describes the run. */
static bool kind_of(const json_t *row, ax_point_kind *kind)
{
    *kind = json_object_get(row, "eval_loss")                ? AX_POINT_EVAL
            : json_is_string(json_object_get(row, "recall")) ? AX_POINT_RECALL
                                                             : AX_POINT_STEP;
    return *kind != AX_POINT_STEP || json_object_get(row, "loss");
}

static ax_status add_point(ax_history *h, const json_t *row)
{
    ax_point_kind kind;
    if (!kind_of(row, &kind))
        return AX_OK;
    ax_history_point p = {.kind = kind,
                          .step = json_integer_value(json_object_get(row, "step")),
                          .loss = number(row, kind == AX_POINT_EVAL ? "eval_loss" : "loss"),
                          .grad_norm = number(row, "grad_norm"),
                          .lr = number(row, "lr"),
                          .step_ms = number(row, "step_ms"),
                          .tokens_per_s = number(row, "tokens_per_s"),
                          .expert_load = number(row, "expert_load"),
                          .expert_dropped = number(row, "expert_dropped")};
    if (kind == AX_POINT_RECALL) {
        p.recalled = 100 * number(row, "recalled") / number(row, "documents");
        AX_TRY(find_source(h, json_string_value(json_object_get(row, "recall")), &p.source));
    }
    AX_TRY(ax_list_grow(&h->point, (size_t)h->n, sizeof *h->point));
    h->point[h->n++] = p;
    return AX_OK;
}

static ax_status read_rows(const char *path, const char *data, size_t size, ax_history *out)
{
    int line_number = 1;
    for (const char *line = data, *end; line < data + size; line = end + 1, line_number++) {
        end = memchr(line, '\n', (size_t)(data + size - line));
        if (!end)
            break; /* incomplete last line: the run is writing it, or was killed while it did */
        json_t *row;
        ax_status status = ax_json_parse(NULL, line, (size_t)(end - line), 0, &row);
        if (status != AX_OK)
            ax_error_context("%s:%d", path, line_number);
        AX_TRY(status);
        status = add_point(out, row);
        json_decref(row);
        AX_TRY(status);
    }
    return AX_OK;
}

/* Sets *title to the last component of the directory's path; realpath resolves "." and removes trailing
 * slashes. */
static ax_status title_of(const char *run_dir, char **title)
{
    char *whole = realpath(run_dir, NULL);
    const char *path = whole ? whole : run_dir, *slash = strrchr(path, '/');
    ax_status status = ax_strdup(slash && slash[1] ? slash + 1 : path, title);
    free(whole);
    return status;
}

ax_status ax_history_read(const char *run_dir, ax_history *out)
{
    char *path, *data;
    size_t size;
    *out = (ax_history){0};
    AX_TRY(ax_path_join(run_dir, "metrics.jsonl", &path));
    ax_status status = ax_file_read(path, &data, &size);
    if (status == AX_OK) {
        status = read_rows(path, data, size, out);
        free(data);
    }
    free(path);
    if (status == AX_OK)
        status = title_of(run_dir, &out->title);
    if (status != AX_OK)
        ax_history_fini(out);
    return status;
}

void ax_history_fini(ax_history *history)
{
    free(history->title);
    free(history->point);
    ax_strings_fini(&history->source);
    *history = (ax_history){0};
}
