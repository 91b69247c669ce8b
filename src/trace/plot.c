/* Draws a chart as SVG: frame, ticks, curves, legend. The SVG has only presentation attributes, no style
 * sheet and no ids, so that one HTML page can hold several charts. */
#include "trace/plot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum {
    LEFT = 64,
    RIGHT = 20,
    TOP = 40,
    BOTTOM = 48,
    NAME_MOST = 40, /* characters of a name in the legend */
    ENTRY_HEIGHT = 18,
    INSIDE_MOST = 8 /* legends of more entries would hide curves: they have room of their own, unless
                       names are long */
};

typedef struct axis {
    double lo, hi, step; /* lo, hi: range of values; step: distance between ticks */
    double from, to;     /* pixel coordinates of `lo` and `hi` */
} axis;

static bool usable(double v) { return isfinite(v) && fabs(v) < 1e100; }

static double pixel_of(const axis *a, double v)
{
    return a->from + (v - a->lo) / (a->hi - a->lo) * (a->to - a->from);
}

/* ---- text ---------------------------------------------------------------------------------------- */

ax_status ax_xml_text(const char *text, int most, ax_buf *out)
{
    const utf8proc_uint8_t *p = (const utf8proc_uint8_t *)text;
    for (int i = 0; *p; i++) {
        utf8proc_int32_t c;
        utf8proc_ssize_t n = utf8proc_iterate(p, -1, &c);
        bool bad = n <= 0 || (c < 0x20 && c != '\t') || c == 0x7f || c == 0xfffe || c == 0xffff;
        if (i == most)
            return ax_buf_printf(out, "\u2026");
        if (bad)
            AX_TRY(ax_buf_printf(out, "\ufffd"));
        else if (c < 0x80 && strchr("&<>\"'", (int)c))
            AX_TRY(ax_buf_printf(out, "&#%d;", (int)c));
        else
            AX_TRY(ax_buf_add(out, p, (size_t)n));
        p += ax_max(n, 1);
    }
    return AX_OK;
}

int ax_xml_columns(const char *text, int most)
{
    int columns = 0;
    for (const char *p = text; *p && columns <= most; p++)
        columns += (*p & 0xc0) != 0x80;
    return columns;
}

typedef struct text_style {
    const char *anchor, *fill, *extra;
    int size;
} text_style;

static ax_status draw_text(ax_buf *out, double x, double y, text_style s, const char *text)
{
    AX_TRY(ax_buf_printf(out,
                         "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"%d\" fill=\"%s\"%s>", x,
                         y, s.anchor, s.size, s.fill, s.extra ? s.extra : ""));
    AX_TRY(ax_xml_text(text, 120, out));
    return ax_buf_printf(out, "</text>\n");
}

/* ---- axes ---------------------------------------------------------------------------------------- */

/* Returns a distance between ticks of 1, 2 or 5 times a power of ten, which gives at most about `wanted`
 * ticks. */
static double tick_step(double range, int wanted)
{
    double raw = range / wanted, power = pow(10, floor(log10(raw))), m = raw / power;
    return power * (m <= 1 ? 1 : m <= 2 ? 2 : m <= 5 ? 5 : 10);
}

/* Formats the number at a tick: "0.25", "3e-05", "12.5k", "2M". */
static void tick_label(double v, char out[32])
{
    double a = fabs(v);
    v = a == 0 ? 0 : v; /* a value of -0 is shown as 0 */
    if (a >= 1e6 && a < 1e12)
        snprintf(out, 32, a >= 1e9 ? "%.9gG" : "%.9gM", v / (a >= 1e9 ? 1e9 : 1e6));
    else if (a >= 1e4 && a < 1e6)
        snprintf(out, 32, "%.9gk", v / 1e3);
    else
        snprintf(out, 32, "%.9g", v);
}

typedef struct range {
    double lo, hi;
} range;

/* Returns an axis over range r, widened if r.lo and r.hi are nearly equal. r.lo > r.hi means that there are
 * no values. */
static axis make_axis(range r, int wanted, double from, double to)
{
    if (r.lo > r.hi)
        r = (range){0, 1};
    double size = fmax(fabs(r.lo), fabs(r.hi));
    if (r.hi - r.lo <= 1e-9 * size) {
        double pad = size > 0 ? 0.1 * size : 1;
        r.lo -= r.lo == 0 ? 0 : pad;
        r.hi += pad;
    }
    return (axis){r.lo, r.hi, tick_step(r.hi - r.lo, wanted), from, to};
}

static void include(double v, range *r)
{
    if (usable(v)) {
        r->lo = fmin(r->lo, v);
        r->hi = fmax(r->hi, v);
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void ax_sort(double *values, int n) { qsort(values, (size_t)n, sizeof *values, by_value); }

/* Widens r to include the 1st to 99th percentile of the curve's y values. Raises *limit to the value above
 * which points of the curve are outliers, if that is larger. */
static ax_status include_most(const ax_curve *c, range *r, double *limit)
{
    double *sorted;
    int n = 0;
    AX_TRY(ax_calloc((size_t)c->n, sizeof *sorted, &sorted));
    for (int i = 0; i < c->n; i++)
        if (usable(c->y[i]))
            sorted[n++] = c->y[i];
    ax_sort(sorted, n);
    if (n) {
        double low = sorted[n / 100], high = sorted[n - 1 - n / 100];
        include(low, r);
        include(high, r);
        *limit = fmax(*limit, high + 3 * (high - low));
    }
    free(sorted);
    return AX_OK;
}

/* Computes the range of the y axis. A single spike must not flatten the rest of the chart. So outliers of
 * curves with raw values (AX_CURVE_THIN) do not widen the range. If there are such curves, other curves widen
 * it upward only to the limit that include_most computes. */
static ax_status y_range(const ax_plot *p, range *r)
{
    range all = {INFINITY, -INFINITY};
    double limit = -INFINITY;
    for (int k = 0; k < p->n; k++) {
        const ax_curve *c = &p->curve[k];
        if (c->style == AX_CURVE_THIN)
            AX_TRY(include_most(c, r, &limit));
        for (int i = 0; c->style != AX_CURVE_THIN && i < c->n; i++)
            include(c->y[i], &all);
    }
    include(all.lo, r);
    include(limit > r->lo ? fmin(all.hi, limit) : all.hi, r);
    return AX_OK;
}

static ax_status make_axes(const ax_plot *p, double right, axis *x, axis *y)
{
    range xs = {INFINITY, -INFINITY}, ys = xs;
    for (int k = 0; k < p->n; k++)
        for (int i = 0; i < p->curve[k].n; i++)
            include(p->curve[k].x[i], &xs);
    AX_TRY(y_range(p, &ys));
    if (xs.lo > 0 && (xs.lo <= 0.1 * xs.hi || xs.lo == xs.hi))
        xs.lo = 0; /* the run began near 0: show the axis from 0 */
    if (p->from_zero && ys.lo <= ys.hi)
        include(0, &ys);
    *x = make_axis(xs, (int)ax_max((int64_t)(right / 100), 1), LEFT, right);
    if (p->x_counts)
        x->step = fmax(x->step, 1);
    *y = make_axis(ys, p->height / 60, p->height - BOTTOM, TOP);
    double pad = 0.04 * (y->hi - y->lo);
    y->hi += pad;
    if (!p->from_zero || y->lo < 0)
        y->lo -= pad;
    return AX_OK;
}

static ax_status draw_frame(const ax_plot *p, const axis *x, const axis *y, ax_buf *out)
{
    const text_style small = {"middle", "#444", NULL, 11}, right = {"end", "#444", NULL, 11};
    char label[32];
    for (double t = ceil(y->lo / y->step); t * y->step <= y->hi; t++) {
        double at = pixel_of(y, t * y->step);
        AX_TRY(ax_buf_printf(out, "<path d=\"M%d %.1fH%.1f\" stroke=\"#e4e4e4\"/>\n", LEFT, at, x->to));
        tick_label(t * y->step, label);
        AX_TRY(draw_text(out, LEFT - 8, at + 4, right, label));
    }
    for (double t = ceil(x->lo / x->step); t * x->step <= x->hi; t++) {
        double at = pixel_of(x, t * x->step);
        AX_TRY(ax_buf_printf(out, "<path d=\"M%.1f %dv5\" stroke=\"#666\"/>\n", at, p->height - BOTTOM));
        tick_label(t * x->step, label);
        AX_TRY(draw_text(out, at, p->height - BOTTOM + 18, small, label));
    }
    AX_TRY(ax_buf_printf(out, "<path d=\"M%d %dV%dH%.1f\" fill=\"none\" stroke=\"#666\"/>\n", LEFT, TOP,
                         p->height - BOTTOM, x->to));
    AX_TRY(draw_text(out, (x->from + x->to) / 2, p->height - 10, (text_style){"middle", "#222", NULL, 12},
                     p->x_label));
    AX_TRY(draw_text(out, LEFT, TOP - 8, (text_style){"start", "#222", NULL, 12}, p->y_label));
    return draw_text(out, p->width / 2.0, 22, (text_style){"middle", "#111", " font-weight=\"bold\"", 15},
                     p->title);
}

/* ---- curves -------------------------------------------------------------------------------------- */

typedef struct pen {
    ax_buf *out;
    const ax_curve *curve;
    const axis *x, *y;
    int run; /* number of points drawn since the last gap */
} pen;

static ax_status pen_to(pen *p, int i)
{
    return ax_buf_printf(p->out, "%s%.1f %.1f", p->run++ ? "L" : "M", pixel_of(p->x, p->curve->x[i]),
                         pixel_of(p->y, p->curve->y[i]) - TOP);
}

static ax_status pen_up(pen *p)
{
    if (p->run == 1) /* a point between two gaps is drawn as a dash */
        AX_TRY(ax_buf_printf(p->out, "m-2 0h4"));
    p->run = 0;
    return AX_OK;
}

/* Draws points [from, to) of the curve, which lie in one column of pixels. Only the first, lowest, highest
 * and last point are drawn; drawing all points would give the same picture. */
static ax_status draw_column(pen *p, int from, int to)
{
    const double *y = p->curve->y;
    int lowest = from, highest = from;
    for (int i = from; i < to; i++) {
        lowest = y[i] < y[lowest] ? i : lowest;
        highest = y[i] > y[highest] ? i : highest;
    }
    int at[4] = {from, (int)ax_min(lowest, highest), (int)ax_max(lowest, highest), to - 1};
    for (int k = 0; k < 4; k++)
        if (k == 0 || at[k] != at[k - 1])
            AX_TRY(pen_to(p, at[k]));
    return AX_OK;
}

static const char *dashes_of(const ax_curve *c) { return c->dashes ? c->dashes : "none"; }

static ax_status draw_path(pen *p)
{
    const ax_curve *c = p->curve;
    bool thin = c->style == AX_CURVE_THIN;
    if (!c->n)
        return AX_OK;
    AX_TRY(ax_buf_printf(p->out,
                         "<path fill=\"none\" stroke=\"%s\" stroke-width=\"%s\" stroke-opacity=\"%s\" "
                         "stroke-dasharray=\"%s\" stroke-linejoin=\"round\" stroke-linecap=\"%s\" d=\"M0 0",
                         c->colour, thin ? "1" : "2", thin ? "0.3" : "1", dashes_of(c),
                         c->dashes ? "butt" : "round"));
    for (int i = 0, end; i < c->n; i = end) {
        end = i + 1;
        if (!usable(c->x[i]) || !usable(c->y[i])) {
            AX_TRY(pen_up(p));
            continue;
        }
        double column = floor(pixel_of(p->x, c->x[i]));
        while (end < c->n && usable(c->x[end]) && usable(c->y[end]) &&
               floor(pixel_of(p->x, c->x[end])) == column)
            end++;
        AX_TRY(draw_column(p, i, end));
    }
    AX_TRY(pen_up(p));
    return ax_buf_printf(p->out, "\"/>\n");
}

/* Draws a dot with a tooltip on each point. Draws no dots if they would be closer than 4 pixels, because they
 * would merge into a band; the line alone then shows the values. */
static ax_status draw_dots(pen *p)
{
    const ax_curve *c = p->curve;
    for (int i = 0; c->n <= (p->x->to - p->x->from) / 4 && i < c->n; i++)
        if (usable(c->x[i]) && usable(c->y[i]))
            AX_TRY(ax_buf_printf(p->out,
                                 "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"#fff\" stroke=\"%s\" "
                                 "stroke-width=\"2\"><title>%.9g: %.6g</title></circle>\n",
                                 pixel_of(p->x, c->x[i]), pixel_of(p->y, c->y[i]) - TOP, c->colour, c->x[i],
                                 c->y[i]));
    return AX_OK;
}

/* Draws all curves in an inner <svg> element, which clips them at the top and bottom of the frame. */
static ax_status draw_curves(const ax_plot *plot, const axis *x, const axis *y, ax_buf *out)
{
    AX_TRY(ax_buf_printf(out, "<svg x=\"0\" y=\"%d\" width=\"%d\" height=\"%d\">\n", TOP, plot->width,
                         plot->height - TOP - BOTTOM));
    bool any = false;
    for (int style = AX_CURVE_THIN; style <= AX_CURVE_DOTS; style++)
        for (int k = 0; k < plot->n; k++) {
            pen p = {.out = out, .curve = &plot->curve[k], .x = x, .y = y};
            if ((int)p.curve->style != style)
                continue;
            any = any || p.curve->n;
            AX_TRY(draw_path(&p));
            if (style == AX_CURVE_DOTS)
                AX_TRY(draw_dots(&p));
        }
    AX_TRY(ax_buf_printf(out, "</svg>\n"));
    return any ? AX_OK
               : draw_text(out, (x->from + x->to) / 2, (y->from + y->to) / 2,
                           (text_style){"middle", "#888", NULL, 14}, "no values yet");
}

/* ---- legend -------------------------------------------------------------------------------------- */

static ax_status draw_entry(const ax_curve *c, double x, double y, ax_buf *out)
{
    bool thin = c->style == AX_CURVE_THIN;
    AX_TRY(ax_buf_printf(out,
                         "<path d=\"M%.1f %.1fh22\" stroke=\"%s\" stroke-width=\"%s\" stroke-opacity=\"%s\" "
                         "stroke-dasharray=\"%s\"/>\n",
                         x, y - 4, c->colour, thin ? "1" : "2", thin ? "0.45" : "1", dashes_of(c)));
    if (c->style == AX_CURVE_DOTS)
        AX_TRY(ax_buf_printf(
            out,
            "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"#fff\" stroke=\"%s\" stroke-width=\"2\"/>\n",
            x + 11, y - 4, c->colour));
    AX_TRY(ax_buf_printf(out, "<text x=\"%.1f\" y=\"%.1f\" font-size=\"12\" fill=\"#222\">", x + 30, y));
    AX_TRY(ax_xml_text(c->name, NAME_MOST, out));
    if (c->part) {
        AX_TRY(ax_buf_printf(out, ", "));
        AX_TRY(ax_xml_text(c->part, NAME_MOST, out));
    }
    return ax_buf_printf(out, "</text>\n");
}

static int entry_columns(const ax_curve *c)
{
    return ax_xml_columns(c->name, NAME_MOST) + (c->part ? 2 + ax_xml_columns(c->part, NAME_MOST) : 0);
}

typedef struct legend {
    int entries, listed;
    double x, y, width, height;
    bool beside; /* it has room of its own, at the right of the frame */
} legend;

static legend make_legend(const ax_plot *p)
{
    const int most = (p->height - TOP - BOTTOM - 8) / ENTRY_HEIGHT;
    int columns = 0;
    legend l = {0};
    for (int k = 0; k < p->n; k++)
        if (p->curve[k].name) {
            columns = (int)ax_max(columns, entry_columns(&p->curve[k]));
            l.entries++;
        }
    l.listed = l.entries <= most ? l.entries : most - 1; /* the last row says how many more there are */
    l.width = 44 + 6.8 * columns;
    l.height = ax_min(l.entries, most) * ENTRY_HEIGHT + 8.0;
    l.beside = l.entries > INSIDE_MOST && l.width < 0.45 * p->width;
    l.x = p->width - (l.beside ? 0 : RIGHT) - 8 - l.width;
    l.y = p->legend_below && !l.beside ? p->height - BOTTOM - 8 - l.height : TOP + 6;
    return l;
}

static ax_status draw_legend(const ax_plot *p, const legend *l, ax_buf *out)
{
    int row = 0;
    if (!l->entries)
        return AX_OK;
    AX_TRY(ax_buf_printf(out,
                         "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"3\" fill=\"#fff\" "
                         "fill-opacity=\"0.85\" stroke=\"#ddd\"/>\n",
                         l->x, l->y, l->width, l->height));
    for (int k = 0; k < p->n && row < l->listed; k++)
        if (p->curve[k].name)
            AX_TRY(draw_entry(&p->curve[k], l->x + 8, l->y + ENTRY_HEIGHT * ++row, out));
    if (l->entries == l->listed)
        return AX_OK;
    return ax_buf_printf(out, "<text x=\"%.1f\" y=\"%.1f\" font-size=\"12\" fill=\"#222\">%d more</text>\n",
                         l->x + 38, l->y + ENTRY_HEIGHT * ++row, l->entries - l->listed);
}

ax_status ax_plot_draw(const ax_plot *plot, ax_buf *out)
{
    axis x, y;
    const legend l = make_legend(plot);
    AX_TRY(make_axes(plot, l.beside ? l.x - 8 : plot->width - RIGHT, &x, &y));
    AX_TRY(ax_buf_printf(out,
                         "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                         "viewBox=\"0 0 %d %d\" font-family=\"system-ui, 'DejaVu Sans', Arial, sans-serif\" "
                         "role=\"img\">\n<title>",
                         plot->width, plot->height, plot->width, plot->height));
    AX_TRY(ax_xml_text(plot->title, 120, out));
    AX_TRY(ax_buf_printf(out, "</title>\n<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", plot->width,
                         plot->height));
    AX_TRY(draw_frame(plot, &x, &y, out));
    AX_TRY(draw_curves(plot, &x, &y, out));
    AX_TRY(draw_legend(plot, &l, out));
    return ax_buf_printf(out, "</svg>\n");
}
