/* The classes of a rank's memory: their total, and their names in the log. */
#include "axonn/grid.h"

static const struct {
    const char *name;
    enum { DEVICE, HOST, DISK } where;
} classes[] = {
#define ROW(ID, name, where) {name, where},
    AX_MEMORY(ROW)
#undef ROW
};

size_t ax_memory_total(const ax_memory *m)
{
    size_t total = 0;
    for (int i = 0; i < AX_MEMORY_CLASSES; i++)
        total += classes[i].where == DEVICE ? m->bytes[i] : 0;
    return total;
}

char *ax_memory_print(const ax_memory *m, char out[512])
{
    char size[32];
    out[0] = 0;
    for (int i = 0; i < AX_MEMORY_CLASSES; i++)
        if (m->bytes[i] && classes[i].where == DEVICE)
            ax_text_add(out, 512, "%s%s %s", *out ? ", " : "", classes[i].name,
                        ax_format_bytes((double)m->bytes[i], size));
    return out;
}
