/* Line charts of runs as SVG. */
#ifndef AXONN_TRACE_PLOT_H
#define AXONN_TRACE_PLOT_H

#include "axonn/trace.h"

typedef enum ax_curve_style {
    AX_CURVE_THIN, /* light and thin: raw values behind a smoothed line; their outliers do not widen the range
                      of the y axis */
    AX_CURVE_LINE,
    AX_CURVE_DOTS /* a dot on each value, joined by a line */
} ax_curve_style;

/* A curve has a gap where a value is not finite. */
typedef struct ax_curve {
    const char *name;   /* name in the legend; NULL: not listed */
    const char *part;   /* in the legend after the name; NULL: none */
    const char *colour; /* such as "#0072b2" */
    const char *dashes; /* lengths of dashes and gaps, such as "7 4"; NULL: a solid line */
    ax_curve_style style;
    int n;
    double *x, *y;
} ax_curve;

typedef struct ax_plot {
    const char *title, *x_label, *y_label;
    bool x_counts;     /* the x axis shows counts, so its ticks are integers */
    int width, height; /* pixels */
    bool from_zero;    /* the y axis includes 0 */
    bool legend_below; /* legend at the bottom: for curves that run along the top */
    const ax_curve *curve;
    int n;
} ax_plot;

/* Appends the chart as one <svg> element. The size of the element in bytes depends on the chart's width in
 * pixels, but has a limit that does not depend on the number of points of a curve. AX_ERR_MEMORY. */
AX_MUST_CHECK ax_status ax_plot_draw(const ax_plot *plot, ax_buf *out);

/* Appends at most `most` characters of the text, then "…" if there are more. Escapes the characters that XML
 * reserves. Replaces control characters, which XML forbids, and malformed UTF-8 by U+FFFD. */
AX_MUST_CHECK ax_status ax_xml_text(const char *text, int most, ax_buf *out);
/* Returns the approximate width, in characters, of the text that ax_xml_text appends. */
int ax_xml_columns(const char *text, int most);

/* The quantity of a run that a chart shows. */
typedef enum ax_history_field {
    AX_HISTORY_LOSS, /* training and evaluation loss */
    AX_HISTORY_GRAD_NORM,
    AX_HISTORY_LR,
    AX_HISTORY_RATE,    /* tokens per second */
    AX_HISTORY_LOAD,    /* ax_step_result.expert_load */
    AX_HISTORY_DROPPED, /* percentage of the choices of experts that have no place */
    AX_HISTORY_RECALL,  /* percentage of the documents of each source that is recalled */
    AX_HISTORY_FIELDS
} ax_history_field;

/* Returns true if a chart of `field` shows something: all runs have a loss, but only some have experts, for
 * example. */
bool ax_history_has(const ax_history *runs, int n, ax_history_field field);
/* Appends one chart that shows `field` of all runs. If `title` is NULL, the chart's title is the name of the
 * field. AX_ERR_MEMORY. */
AX_MUST_CHECK ax_status ax_history_plot(const ax_history *runs, int n, ax_history_field field,
                                        const char *title, int width, int height, ax_buf *out);
/* Calls draw(runs, n, out) in the C locale: SVG and CSS need a decimal point, but the locale of the program
 * may use a decimal comma. */
AX_MUST_CHECK ax_status ax_with_point(ax_status (*draw)(const ax_history *, int, ax_buf *),
                                      const ax_history *runs, int n, ax_buf *out);
enum { AX_HISTORY_COLOURS = 8 };
/* Returns the colour of run i in all pictures. Colours repeat after AX_HISTORY_COLOURS runs; then the
 * smoothed lines and evaluations of ax_history_plot differ in their dashes. */
const char *ax_history_colour(int i);
/* Smooths a curve of n points with a moving interquartile mean, at `places` points that are spread evenly.
 * For point j of these, sets at[j] to its x value, and mean[j] to the mean of the middle half, by size, of
 * the `window` y values around it. So a single spike does not change mean[j]. Near the beginning, where
 * losses fall steeply, the window is smaller, so that it stays centred on the point; near the end the window
 * ends with the last point of the curve. Values that are not finite are left out of the means; if the point
 * itself is not finite, mean[j] is NaN, which is drawn as a gap. */
void ax_smooth(const double *x, const double *y, int n, int window, int places, double *at, double *mean);
/* Sorts values in ascending order; all must be finite. */
void ax_sort(double *values, int n);

#endif
