/* The classes of a rank's memory: their total, and their names in the log. */
#include "axonn/grid.h"

static const struct {
    const char *name;
    ax_memory_place place;
} classes[] = {
#define ROW(ID, name, where) {name, AX_MEMORY_ON_##where},
    AX_MEMORY(ROW)
#undef ROW
};

size_t ax_memory_on(const ax_memory *m, ax_memory_place place)
{
    size_t total = 0;
    for (int i = 0; i < AX_MEMORY_CLASSES; i++)
        total += classes[i].place == place ? m->bytes[i] : 0;
    return total;
}

const char *ax_memory_name(ax_memory_class one) { return classes[one].name; }

ax_memory_place ax_memory_where(ax_memory_class one) { return classes[one].place; }

void ax_memory_add(ax_memory *memory, const ax_memory *more)
{
    for (int i = 0; i < AX_MEMORY_CLASSES; i++)
        memory->bytes[i] += more->bytes[i];
}

size_t ax_memory_total(const ax_memory *m) { return ax_memory_on(m, AX_MEMORY_ON_DEVICE); }

char *ax_memory_print(const ax_memory *m, ax_memory_place place, char out[512])
{
    char size[32];
    out[0] = 0;
    for (int i = 0; i < AX_MEMORY_CLASSES; i++)
        if (m->bytes[i] && classes[i].place == place)
            ax_text_add(out, 512, "%s%s %s", *out ? ", " : "", classes[i].name,
                        ax_format_bytes((double)m->bytes[i], size));
    return out;
}
