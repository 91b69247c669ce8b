/* Layouts, which say which grid axes split each dim of a tensor: parsing, printing, comparison, and the check
 * that no axis appears twice. */
#include "axonn/tensor.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* ---- parsing ------------------------------------------------------------------------------------- */

typedef struct parser {
    const ax_grid *grid;
    const char *text, *at;
} parser;

static void skip_space(parser *p)
{
    while (isspace((unsigned char)*p->at))
        p->at++;
}

static bool accept(parser *p, char c)
{
    skip_space(p);
    if (*p->at != c)
        return false;
    p->at++;
    return true;
}

static size_t word_length(const char *text)
{
    size_t n = 0;
    while (isalnum((unsigned char)text[n]) || text[n] == '_')
        n++;
    return n;
}

static ax_status parse_error(const parser *p, const char *what)
{
    return ax_fail(AX_ERR_USAGE,
                   "layout \"%s\", column %d: %s; example of a layout: \"b@z.data, t, o@x/z +y\"", p->text,
                   (int)(p->at - p->text) + 1, what);
}

/* Returns the length of the axis name at p->at. A dot separates two axes ("x.y"), but may also be part of the
 * name of a factor ("x.kv"). */
static size_t axis_length(const parser *p)
{
    size_t longest = word_length(p->at);
    for (int a = AX_AXES_STANDARD; a < ax_grid_axes(p->grid); a++) {
        const char *name = ax_grid_axis_name(p->grid, (ax_axis)a);
        size_t n = strlen(name);
        if (!strncmp(p->at, name, n) && !word_length(p->at + n))
            longest = n;
    }
    return longest;
}

static ax_status parse_axis(parser *p, ax_axis *out)
{
    skip_space(p);
    size_t n = axis_length(p);
    if (!n)
        return parse_error(p, "expected the name of an axis");
    if (ax_grid_axis_find(p->grid, p->at, n, out) != AX_OK) {
        ax_error_context("layout \"%s\", column %d", p->text, (int)(p->at - p->text) + 1);
        return AX_ERR_USAGE;
    }
    p->at += n;
    return AX_OK;
}

static ax_status parse_dim_axes(parser *p, ax_axes *axes)
{
    bool fine = accept(p, '/');
    do {
        ax_axis axis;
        AX_TRY(parse_axis(p, &axis));
        if (axes->n == AX_LAYOUT_AXES)
            return parse_error(p, "too many axes on one dim");
        axes->a[axes->n++] = axis;
        axes->fine = (uint8_t)(axes->fine + fine);
        if (!fine && accept(p, '/'))
            fine = true;
        else if (!accept(p, '.'))
            return AX_OK;
    } while (true);
}

static ax_status parse_dim(parser *p, ax_axes *axes)
{
    skip_space(p);
    size_t n = word_length(p->at);
    if (!n)
        return parse_error(p, "expected the name of a dim");
    p->at += n;
    return accept(p, '@') ? parse_dim_axes(p, axes) : AX_OK;
}

ax_status ax_layout_parse(const ax_grid *grid, const char *text, int *ndim, ax_layout *out)
{
    parser p = {.grid = grid, .text = text, .at = text};
    ax_layout layout = {0};
    int n = 0;
    do {
        if (n == AX_MAX_DIMS)
            return parse_error(&p, "a tensor has at most four dims");
        AX_TRY(parse_dim(&p, &layout.dim[n++]));
    } while (accept(&p, ','));
    for (bool more = accept(&p, '+'); more; more = accept(&p, '+') || accept(&p, '.')) {
        ax_axis axis;
        AX_TRY(parse_axis(&p, &axis));
        ax_axisset atoms = ax_grid_atoms(grid, (ax_axisset)(1u << axis));
        if (ax_grid_atoms(grid, layout.partial) & atoms)
            return parse_error(&p, "a partial axis is named twice");
        layout.partial |= (ax_axisset)(1u << axis);
    }
    skip_space(&p);
    if (*p.at)
        return parse_error(&p, "unexpected character");
    if (ax_layout_check(grid, &layout, n) != AX_OK)
        return ax_fail(AX_ERR_USAGE, "layout \"%s\" is not valid: %s", text, ax_error_message());
    *ndim = n;
    *out = layout;
    return AX_OK;
}

/* ---- printing ------------------------------------------------------------------------------------ */

char *ax_layout_print(const ax_grid *grid, const ax_layout *layout, int ndim, const char *names,
                      char out[128])
{
    const size_t room = 128;
    out[0] = 0;
    for (int d = 0; d < ndim; d++) {
        const ax_axes *axes = &layout->dim[d];
        if (names && d < (int)strlen(names))
            ax_text_add(out, room, "%s%c", d ? ", " : "", names[d]);
        else
            ax_text_add(out, room, "%sd%d", d ? ", " : "", d);
        for (int i = 0; i < axes->n; i++)
            ax_text_add(out, room, "%s%s", i == axes->n - axes->fine ? (i ? "/" : "@/") : (i ? "." : "@"),
                        ax_grid_axis_name(grid, axes->a[i]));
    }
    const char *mark = " +";
    for (int a = 0; a < ax_grid_axes(grid); a++)
        if (layout->partial >> a & 1) {
            ax_text_add(out, room, "%s%s", mark, ax_grid_axis_name(grid, (ax_axis)a));
            mark = ".";
        }
    return out;
}

/* ---- queries ------------------------------------------------------------------------------------- */

/* Returns the axes that split a dim, without axes of size 1. */
static ax_axes effective(const ax_grid *grid, const ax_axes *axes)
{
    ax_axes kept = {0};
    for (int i = 0; i < axes->n; i++)
        if (ax_grid_axis_size(grid, axes->a[i]) > 1) {
            kept.a[kept.n++] = axes->a[i];
            kept.fine = (uint8_t)(kept.fine + (i >= axes->n - axes->fine));
        }
    return kept;
}

bool ax_layout_equal(const ax_grid *grid, const ax_layout *a, const ax_layout *b, int ndim)
{
    for (int d = 0; d < ndim; d++)
        if (!ax_axes_equal(grid, &a->dim[d], &b->dim[d]))
            return false;
    return ax_grid_effective(grid, a->partial) == ax_grid_effective(grid, b->partial);
}

bool ax_axes_equal(const ax_grid *grid, const ax_axes *a, const ax_axes *b)
{
    ax_axes p = effective(grid, a), q = effective(grid, b);
    return p.n == q.n && p.fine == q.fine && !memcmp(p.a, q.a, p.n);
}

ax_layout ax_layout_effective(const ax_grid *grid, const ax_layout *layout, int ndim)
{
    ax_layout kept = {.partial = ax_grid_effective(grid, layout->partial)};
    for (int d = 0; d < ndim; d++)
        kept.dim[d] = effective(grid, &layout->dim[d]);
    return kept;
}

ax_axisset ax_layout_split_axes(const ax_layout *layout, int ndim)
{
    ax_axisset axes = 0;
    for (int d = 0; d < ndim; d++)
        for (int i = 0; i < layout->dim[d].n; i++)
            axes |= (ax_axisset)(1u << layout->dim[d].a[i]);
    return axes;
}

ax_layout ax_layout_of_sums(const ax_layout *layout, int ndim)
{
    return (ax_layout){.dim[0] = layout->dim[ndim - 1],
                       .partial = layout->partial | ax_layout_split_axes(layout, ndim - 1)};
}

ax_status ax_layout_check(const ax_grid *grid, const ax_layout *layout, int ndim)
{
    ax_axisset seen = ax_grid_atoms(grid, layout->partial);
    int count = 0;
    char text[128];
    AX_CHECK(layout->partial >> ax_grid_axes(grid) == 0, AX_ERR_INTERNAL,
             "a layout is partial along an axis that the grid does not have (bits %#x); the grid has %d axes",
             (unsigned)layout->partial, ax_grid_axes(grid));
    for (int d = 0; d < ndim; d++) {
        const ax_axes *axes = &layout->dim[d];
        count += axes->n;
        AX_CHECK(count <= AX_LAYOUT_AXES && axes->fine <= axes->n, AX_ERR_INTERNAL,
                 "dim %d of a layout has %d axes, of which %d split by elements; the limit over all dims is "
                 "%d axes",
                 d, axes->n, axes->fine, AX_LAYOUT_AXES);
        for (int i = 0; i < axes->n; i++) {
            ax_axis axis = axes->a[i];
            AX_CHECK(axis < ax_grid_axes(grid), AX_ERR_INTERNAL,
                     "dim %d of a layout names axis %d, but the grid has %d axes", d, axis,
                     ax_grid_axes(grid));
            ax_axisset atoms = ax_grid_atoms(grid, (ax_axisset)(1u << axis));
            AX_CHECK(!(seen & atoms), AX_ERR_INTERNAL, "axis %s appears twice in layout [%s]",
                     ax_grid_axis_name(grid, axis), ax_layout_print(grid, layout, ndim, NULL, text));
            seen |= atoms;
        }
    }
    return AX_OK;
}
