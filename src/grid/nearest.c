/* Finds legal grids whose sizes are nearest to those of a grid that does not fit; error messages suggest
 * these grids. */
#include "axonn/grid.h"

#include <math.h>
#include <stdio.h>

enum { SUGGESTIONS = 3 };

typedef struct candidate {
    ax_grid_size size;
    double distance;
} candidate;

typedef struct search {
    ax_grid_size wanted;
    ax_grid_legal_fn *legal; /* says whether a grid is legal; NULL: all grids are */
    const void *arg;
    candidate now, best[SUGGESTIONS];
    int n;
} search;

/* Returns the distance of two grids: the sum over axes of |log(ratio of sizes)|. An axis whose wanted size is
 * 1 counts double, because the user probably had a reason not to split along it. */
static double distance(ax_grid_size wanted, ax_grid_size size)
{
    double sum = 0;
    for (int a = 0; a < AX_GRID_SIZES; a++) {
        const int n = ax_grid_size_along(wanted, (ax_axis)a);
        sum += fabs(log((double)size.of[a] / n)) * (n == 1 ? 2.0 : 1.0);
    }
    return sum;
}

static void keep_best(search *s)
{
    if (s->legal && !s->legal(s->arg, s->now.size))
        return;
    s->now.distance = distance(s->wanted, s->now.size);
    int at = s->n;
    while (at > 0 && s->now.distance < s->best[at - 1].distance)
        at--;
    for (int i = s->n < SUGGESTIONS ? s->n : SUGGESTIONS - 1; i > at; i--)
        s->best[i] = s->best[i - 1];
    if (at < SUGGESTIONS)
        s->best[at] = s->now;
    if (s->n < SUGGESTIONS)
        s->n++;
}

/* Tries all sizes of data.exp, which divide that of data; 1 alone if experts were not to be divided. */
static void divide_experts(search *s)
{
    const int data = s->now.size.of[AX_DATA],
              most = ax_grid_size_along(s->wanted, AX_SIZE_EXPERT) > 1 ? data : 1;
    for (int e = 1; e <= most; e++)
        if (data % e == 0) {
            s->now.size.of[AX_SIZE_EXPERT] = e;
            keep_best(s);
        }
}

/* Tries all ways to write `ranks` as a product of sizes of the axes `axis`, `axis` + 1, … */
static void factorize(search *s, int axis, int ranks)
{
    if (axis == AX_AXES_STANDARD - 1) {
        s->now.size.of[axis] = ranks;
        divide_experts(s);
        return;
    }
    for (int f = 1; f <= ranks; f++)
        if (ranks % f == 0) {
            s->now.size.of[axis] = f;
            factorize(s, axis + 1, ranks / f);
        }
}

char *ax_grid_size_print(ax_grid_size size, char out[80])
{
    *out = 0;
    for (int a = 0; a < AX_AXES_STANDARD; a++)
        ax_text_add(out, 80, "%s%s=%d", a ? " " : "", ax_axis_name((ax_axis)a),
                    ax_grid_size_along(size, (ax_axis)a));
    if (ax_grid_size_along(size, AX_SIZE_EXPERT) > 1)
        ax_text_add(out, 80, " %s=%d", ax_axis_name(AX_SIZE_EXPERT), size.of[AX_SIZE_EXPERT]);
    return out;
}

/* Prints the axes of `size` whose sizes are not the wanted ones, as keys: "grid.x=1 grid.data=4". */
static void print_changes(ax_grid_size wanted, ax_grid_size size, char out[128])
{
    *out = 0;
    for (int a = 0; a < AX_GRID_SIZES; a++)
        if (size.of[a] != ax_grid_size_along(wanted, (ax_axis)a))
            ax_text_add(out, 128, "%sgrid.%s=%d", *out ? " " : "", ax_axis_name((ax_axis)a), size.of[a]);
}

char *ax_grid_nearest(ax_grid_size wanted, int ranks, ax_grid_legal_fn *legal, const void *arg, char out[320])
{
    search s = {.wanted = wanted, .legal = legal, .arg = arg};
    factorize(&s, 0, ranks);
    snprintf(out, 320, "%s", s.n ? "" : "none");
    for (int i = 0; i < s.n; i++) {
        char one[128];
        print_changes(s.wanted, s.best[i].size, one);
        ax_text_add(out, 320, "%s%s", i ? "; " : "", one);
    }
    return out;
}
