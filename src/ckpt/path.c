/* Formats paths, and lists directories. */
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

ax_strings ckpt_names(const char *dir)
{
    ax_strings names;
    if (ax_dir_list(dir, &names) != AX_OK)
        ax_strings_fini(&names);
    return names;
}
