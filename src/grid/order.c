/* The order of a grid's axes in which ranks are numbered. Launchers put consecutive ranks on one machine. So
 * groups of ranks along the first axes of an order lie within machines if they fit there, and groups along
 * the last axes span machines. */
#include "axonn/grid.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AXIS(id, name, split) AX_##id,
const ax_grid_order ax_grid_order_default = {{AX_AXES(AXIS)}};

char *ax_grid_order_print(const ax_grid_order *order, char out[32])
{
    *out = 0;
    for (int i = 0; i < AX_AXES_STANDARD; i++)
        ax_text_add(out, 32, "%s%s", i ? "," : "", ax_axis_name(order->axis[i]));
    return out;
}

ax_status ax_grid_order_parse(const char *text, ax_grid_order *out)
{
    unsigned seen = 0;
    const char *at = text;
    char names[64] = "";
    for (int a = 0; a < AX_AXES_STANDARD; a++)
        ax_text_add(names, sizeof names, "%s%s",
                    !a                          ? ""
                    : a == AX_AXES_STANDARD - 1 ? " and "
                                                : ", ",
                    ax_axis_name((ax_axis)a));
    for (int i = 0; i < AX_AXES_STANDARD; i++) {
        size_t n = strcspn(at, ",");
        int a = 0;
        while (a < AX_AXES_STANDARD &&
               (strlen(ax_axis_name((ax_axis)a)) != n || memcmp(ax_axis_name((ax_axis)a), at, n) != 0))
            a++;
        bool more = i + 1 < AX_AXES_STANDARD;
        AX_CHECK(a < AX_AXES_STANDARD && !(seen >> a & 1) && (at[n] == ',') == more, AX_ERR_USAGE,
                 "the order must name each of %s once, the innermost first, with commas and "
                 "no blanks, such as " AX_GRID_ORDER "; it is \"%.60s\"",
                 names, text);
        seen |= 1u << a;
        out->axis[i] = (ax_axis)a;
        at += n + more;
    }
    return AX_OK;
}

int ax_grid_place(ax_grid_size size, const ax_grid_order *order, int rank, int coord[AX_AXES_STANDARD])
{
    int place = 0;
    for (int i = 0; i < AX_AXES_STANDARD; i++) {
        int n = ax_grid_size_along(size, order->axis[i]);
        coord[order->axis[i]] = rank % n;
        rank /= n;
    }
    for (int a = AX_AXES_STANDARD - 1; a >= 0; a--)
        place = place * ax_grid_size_along(size, (ax_axis)a) + coord[a];
    return place;
}

ax_status ax_grid_numbers(ax_grid_size size, const ax_grid_order *order, int **out)
{
    const int n = (int)ax_grid_size_ranks(size);
    int coord[AX_AXES_STANDARD];
    AX_TRY(ax_calloc((size_t)n, sizeof **out, out));
    for (int r = 0; r < n; r++)
        (*out)[ax_grid_place(size, order, r, coord)] = r;
    return AX_OK;
}

ax_status ax_grid_world(ax_comm *world, ax_grid_size size, const ax_grid_order *order, ax_comm **out)
{
    int *ranks;
    *out = NULL;
    AX_TRY(ax_grid_numbers(size, order, &ranks));
    ax_status status = ax_comm_group(world, ranks, ax_comm_size(world), out);
    free(ranks);
    return status;
}
