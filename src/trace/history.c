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

/* As `number`, but returns NaN if the row has no such key. */
static double number_or_nan(const json_t *row, const char *key)
{
    const json_t *value = json_object_get(row, key);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

/* What the rows so far add up to. */
typedef struct progress {
    double tokens, seconds;
    int64_t recalled_at; /* step whose recall is in `seconds`: it has a row for each source */
    double recall_began; /* `seconds` before it */
} progress;

/* Sets the tokens and seconds of a point. */
static void place(ax_history_point *p, const json_t *row, progress *so_far)
{
    const bool step = p->kind == AX_POINT_STEP,
               again = p->kind == AX_POINT_RECALL && p->step == so_far->recalled_at;
    const double took = step ? number_or_nan(row, "step_ms") / 1e3 : number_or_nan(row, "seconds"),
                 before = again ? so_far->recall_began : so_far->seconds;
    if (step)
        so_far->tokens = number_or_nan(row, "tokens");
    if (p->kind == AX_POINT_RECALL) {
        so_far->recalled_at = p->step;
        so_far->recall_began = before;
    }
    if (isfinite(took) && !again)
        so_far->seconds += took;
    p->tokens = so_far->tokens;
    p->seconds = !isfinite(took) ? (double)NAN : step ? so_far->seconds : before;
}

static ax_status add_point(ax_history *h, const json_t *row, int line, progress *so_far)
{
    ax_point_kind kind;
    if (!kind_of(row, &kind))
        return AX_OK;
    ax_history_point p = {.kind = kind,
                          .line = line,
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
    place(&p, row, so_far);
    AX_TRY(ax_list_grow(&h->point, (size_t)h->n, sizeof *h->point));
    h->point[h->n++] = p;
    return AX_OK;
}

static ax_status read_rows(const char *data, size_t size, ax_history *out)
{
    progress so_far = {.recalled_at = -1};
    int line_number = 1;
    for (const char *line = data, *end; line < data + size; line = end + 1, line_number++) {
        end = memchr(line, '\n', (size_t)(data + size - line));
        if (!end)
            break; /* incomplete last line: the run is writing it, or was killed while it did */
        json_t *row;
        ax_status status = ax_json_parse(NULL, line, (size_t)(end - line), 0, &row);
        if (status != AX_OK)
            ax_error_context("%s:%d", out->file, line_number);
        AX_TRY(status);
        status = add_point(out, row, line_number, &so_far);
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
    char *data;
    size_t size;
    *out = (ax_history){0};
    AX_TRY(ax_path_join(run_dir, "metrics.jsonl", &out->file));
    ax_status status = ax_file_read(out->file, &data, &size);
    if (status == AX_OK) {
        status = read_rows(data, size, out);
        free(data);
    }
    if (status == AX_OK)
        status = title_of(run_dir, &out->title);
    if (status != AX_OK)
        ax_history_fini(out);
    return status;
}

ax_status ax_history_set_axis(ax_history *history, ax_history_axis axis)
{
    for (int i = 0; i < history->n; i++) {
        const ax_history_point *p = &history->point[i];
        AX_CHECK(axis != AX_HISTORY_TOKENS || isfinite(p->tokens), AX_ERR_DATA,
                 "%s:%d: no number \"tokens\" here or in the step before: draw over steps or time",
                 history->file, p->line);
        AX_CHECK(axis != AX_HISTORY_TIME || isfinite(p->seconds), AX_ERR_DATA,
                 "%s:%d: no number \"%s\": draw over steps or tokens", history->file, p->line,
                 p->kind == AX_POINT_STEP ? "step_ms" : "seconds");
    }
    history->axis = axis;
    return AX_OK;
}

void ax_history_fini(ax_history *history)
{
    free(history->file);
    free(history->title);
    free(history->point);
    ax_strings_fini(&history->source);
    *history = (ax_history){0};
}
