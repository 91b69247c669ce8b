/* Files of JSON objects, one a line. */
#ifndef LINES_H
#define LINES_H

#include "axonn/base.h"

#include <jansson.h>
#include <stdio.h>

typedef struct lines {
    json_t **item; /* NULL: an empty line */
    size_t n;
} lines;

/* Reads a file. AX_ERR_DATA. The caller releases *out with lines_fini, also after an error. */
AX_MUST_CHECK ax_status lines_read(const char *path, lines *out);
void lines_fini(lines *l);
/* Returns a member of a line that is a text, or NULL. */
const char *line_text(const json_t *line, const char *key);
/* Prints an object as a line. Takes the object, which is NULL if there was no memory for it. */
AX_MUST_CHECK ax_status line_print(FILE *to, json_t *line);

#endif
