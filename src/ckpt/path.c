/* Formats paths, and looks for files in directories. */
#include "ckpt.h"

#include <stdio.h>
#include <stdlib.h>

ax_status ckpt_path(char **out, const char *fmt, ...)
{
    char *text;
    va_list args;
    va_start(args, fmt);
    int n = vasprintf(&text, fmt, args);
    va_end(args);
    *out = n < 0 ? NULL : text;
    return n < 0 ? ax_fail(AX_ERR_MEMORY, "not enough memory for a path inside a checkpoint or model")
                 : AX_OK;
}

bool ckpt_has(const char *dir, const char *name)
{
    char *path;
    if (ckpt_path(&path, "%s/%s", dir, name) != AX_OK)
        return false;
    bool exists = ax_path_exists(path);
    free(path);
    return exists;
}
