/* Line charts as SVG, for the pictures of runs. */
#ifndef AXONN_TRACE_PLOT_H
#define AXONN_TRACE_PLOT_H

#include "axonn/trace.h"

typedef enum ax_curve_style {
    AX_CURVE_THIN, /* light and thin: raw values behind a smoothed line; outliers do not set the y axis */
    AX_CURVE_LINE,
    AX_CURVE_DOTS /* a dot on each value, joined by a line */
} ax_curve_style;

/* Values that are not finite leave gaps. */
typedef struct ax_curve {
    const char *name;   /* in the legend; NULL: not listed */
    const char *colour; /* "#0072b2" */
    ax_curve_style style;
    int n;
    double *x, *y;
} ax_curve;

typedef struct ax_plot {
    const char *title, *x_label, *y_label; /* x counts: its ticks are whole numbers */
    int width, height;                     /* pixels */
    bool from_zero;                        /* the y axis includes 0 */
    bool legend_below;                     /* the curves run along the top: the legend stands at the bottom */
    const ax_curve *curve;
    int n;
} ax_plot;

/* Appends the chart as one <svg> element. Its size in bytes is bounded by the width, not by the number of
 * points. AX_ERR_MEMORY. */
AX_MUST_CHECK ax_status ax_plot_draw(const ax_plot *plot, ax_buf *out);

/* Appends at most `most` characters of the text, with what XML reserves escaped and what it forbids (control
 * characters, malformed UTF-8) replaced. */
AX_MUST_CHECK ax_status ax_xml_text(const char *text, int most, ax_buf *out);
/* How many columns that takes, about. */
int ax_xml_columns(const char *text, int most);

/* What of a run is drawn. */
typedef enum ax_history_field {
    AX_HISTORY_LOSS, /* with the evaluations */
    AX_HISTORY_GRAD_NORM,
    AX_HISTORY_LR,
    AX_HISTORY_RATE,
    AX_HISTORY_FIELDS
} ax_history_field;

/* Appends one chart. title NULL: the name of the field. AX_ERR_MEMORY. */
AX_MUST_CHECK ax_status ax_history_plot(const ax_history *runs, int n, ax_history_field field,
                                        const char *title, int width, int height, ax_buf *out);
/* Calls draw(runs, n, out) with the decimal point that SVG and CSS want, whatever the host program's locale
 * says. */
AX_MUST_CHECK ax_status ax_with_point(ax_status (*draw)(const ax_history *, int, ax_buf *),
                                      const ax_history *runs, int n, ax_buf *out);
/* The colour of run i in all pictures. */
const char *ax_history_colour(int i);
/* At `places` places evenly over the n points: the mean of the middle half of the `window` values around,
 * which one spike does not move. At the beginning, where losses fall steeply, the window shrinks so that it
 * stays centred. Values that are not finite do not count and leave gaps. */
void ax_smooth(const double *x, const double *y, int n, int window, int places, double *at, double *mean);
/* Sorts finite numbers. */
void ax_sort(double *values, int n);

#endif
