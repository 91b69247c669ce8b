#include "lines.h"

#include "axonn/json.h"

#include <stdlib.h>
#include <string.h>

void lines_fini(lines *l)
{
    for (size_t i = 0; i < l->n; i++)
        json_decref(l->item[i]);
    free(l->item);
}

ax_status lines_read(const char *path, lines *out)
{
    char *text, *next;
    size_t size;
    ax_status status = AX_OK;
    *out = (lines){0};
    AX_TRY(ax_file_read(path, &text, &size));
    for (char *line = text, *end = text + size; line < end && status == AX_OK; line = next + 1) {
        char *newline = memchr(line, '\n', (size_t)(end - line));
        const ax_json_place place = {path, (int64_t)out->n + 1, 1};
        next = newline ? newline : end;
        status = ax_list_grow(&out->item, out->n, sizeof(json_t *));
        if (status != AX_OK)
            break;
        out->item[out->n++] = NULL;
        if (strspn(line, " \t\r\n") < (size_t)(next - line))
            status =
                ax_json_parse_at(&place, line, (size_t)(next - line), JSON_ALLOW_NUL, &out->item[out->n - 1]);
    }
    free(text);
    return status;
}

const char *line_text(const json_t *line, const char *key)
{
    return json_string_value(json_object_get(line, key));
}

ax_status line_print(FILE *to, json_t *line)
{
    ax_buf text = {0};
    ax_status status = line ? ax_json_print(line, JSON_COMPACT, &text) : AX_ERR_MEMORY;
    if (status == AX_OK)
        fprintf(to, "%.*s\n", (int)text.size, text.data);
    ax_buf_fini(&text);
    json_decref(line);
    return status;
}
