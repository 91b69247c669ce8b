#include "tasks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[WAYS] = {"serial", "omp", "mpi", "mpi+omp"};

const char *way_name(int w) { return w < WAYS ? names[w] : NULL; }

/* Cuts *rest at the line `mark`. Returns what is before it, or NULL if there is no such line. */
static char *cut(char **rest, const char *mark)
{
    char *begin = *rest, *end = strstr(begin, mark);
    if (!end)
        return NULL;
    *rest = end + strlen(mark);
    *end = '\0';
    return begin;
}

/* Reads a file: the prompt, #ifndef WRONG, the right body, #else, the wrong one, #endif. */
static ax_status read_task(const char *path, task *t)
{
    char *text;
    size_t size;
    AX_TRY(ax_file_read(path, &text, &size));
    char *rest = text, *prompt = cut(&rest, "#ifndef WRONG\n"),
         *right = prompt ? cut(&rest, "#else\n") : NULL, *wrong = right ? cut(&rest, "#endif\n") : NULL;
    ax_status status =
        wrong ? AX_OK : ax_fail(AX_ERR_DATA, "%s: needs the lines #ifndef WRONG, #else and #endif", path);
    if (status == AX_OK)
        status = ax_strdup(prompt, &t->prompt);
    if (status == AX_OK)
        status = ax_strdup(right, &t->right);
    if (status == AX_OK)
        status = ax_strdup(wrong, &t->wrong);
    free(text);
    return status;
}

static ax_status read_kind(const char *dir, const char *kind, tasks *out)
{
    for (int w = 0; w < WAYS; w++) {
        char path[4096];
        AX_TRY(ax_list_grow(&out->item, out->n, sizeof *out->item));
        task *t = &out->item[out->n++];
        *t = (task){.way = w};
        snprintf(t->kind, sizeof t->kind, "%s", kind);
        snprintf(t->id, sizeof t->id, "%s/%s", kind, names[w]);
        snprintf(path, sizeof path, "%s/%s/%s.cpp", dir, kind, names[w]);
        AX_TRY(read_task(path, t));
    }
    return AX_OK;
}

ax_status tasks_read(const char *dir, tasks *out)
{
    char problems[4096];
    ax_strings kinds = {0};
    *out = (tasks){0};
    snprintf(problems, sizeof problems, "%s/problems", dir);
    ax_status status = ax_dir_list(problems, &kinds);
    ax_strings_sort(&kinds);
    for (size_t i = 0; i < kinds.count && status == AX_OK; i++)
        if (kinds.items[i][0] != '.')
            status = read_kind(problems, kinds.items[i], out);
    ax_strings_fini(&kinds);
    return status;
}

void tasks_fini(tasks *t)
{
    for (size_t i = 0; i < t->n; i++) {
        free(t->item[i].prompt);
        free(t->item[i].right);
        free(t->item[i].wrong);
    }
    free(t->item);
    *t = (tasks){0};
}

const task *tasks_find(const tasks *t, const char *id)
{
    for (size_t i = 0; i < t->n; i++)
        if (strcmp(t->item[i].id, id) == 0)
            return &t->item[i];
    return NULL;
}

size_t task_end(const char *prompt, const char *text)
{
    int open = 0;
    for (; *prompt; prompt++)
        open += (*prompt == '{') - (*prompt == '}');
    for (const char *c = text; *c; c++) {
        open += (*c == '{') - (*c == '}');
        if (*c == '}' && open <= 0)
            return (size_t)(c - text) + 1;
    }
    return strlen(text);
}
