/* Reads metrics.jsonl back. */
#include "axonn/trace.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ax_status add_point(ax_history *h, int *capacity, const json_t *row)
{
    const json_t *loss = json_object_get(row, "loss"), *eval = json_object_get(row, "eval_loss");
    if (!json_is_number(loss) && !json_is_number(eval))
        return AX_OK; /* a description, or a step whose loss was not finite */
    if (h->n == *capacity) {
        *capacity = *capacity ? 2 * *capacity : 256;
        ax_history_point *point = realloc(h->point, (size_t)*capacity * sizeof *point);
        AX_CHECK(point, AX_ERR_MEMORY, "cannot hold %d points of a run", *capacity);
        h->point = point;
    }
    h->point[h->n++] =
        (ax_history_point){.step = json_integer_value(json_object_get(row, "step")),
                           .loss = json_number_value(eval ? eval : loss),
                           .grad_norm = json_number_value(json_object_get(row, "grad_norm")),
                           .lr = json_number_value(json_object_get(row, "lr")),
                           .step_ms = json_number_value(json_object_get(row, "step_ms")),
                           .tokens_per_s = json_number_value(json_object_get(row, "tokens_per_s")),
                           .eval = eval != NULL};
    return AX_OK;
}

static ax_status read_rows(const char *path, const char *data, size_t size, ax_history *out)
{
    int capacity = 0, line_number = 1;
    for (const char *line = data, *end; line < data + size; line = end + 1, line_number++) {
        end = memchr(line, '\n', (size_t)(data + size - line));
        if (!end)
            break; /* being written, or torn by a kill */
        json_error_t error;
        json_t *row = json_loadb(line, (size_t)(end - line), 0, &error);
        AX_CHECK(row, AX_ERR_DATA, "%s:%d: %s", path, line_number, error.text);
        ax_status status = add_point(out, &capacity, row);
        json_decref(row);
        AX_TRY(status);
    }
    return AX_OK;
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
    size_t n = strlen(run_dir);
    while (n > 1 && run_dir[n - 1] == '/')
        n--;
    size_t start = n;
    while (start > 0 && run_dir[start - 1] != '/')
        start--;
    if (status == AX_OK)
        status = ax_strndup(run_dir + start, n - start, &out->title);
    if (status != AX_OK)
        ax_history_fini(out);
    return status;
}

void ax_history_fini(ax_history *history)
{
    free(history->title);
    free(history->point);
    *history = (ax_history){0};
}
