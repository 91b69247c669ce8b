/* Draws charts of training runs: turns the points of a run's metrics.jsonl (ax_history) into the curves of a
 * chart. */
#include "trace/plot.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define EVAL_COLOUR "#d55e00"
enum {
    SMOOTH_FROM = 40,     /* curves of fewer points are not smoothed */
    SMOOTH_PLACES = 1000, /* maximum number of points of a smoothed line */
    SMOOTH_SAMPLE = 256   /* maximum number of values averaged for one point of a smoothed line */
};

const char *ax_history_colour(int i)
{
    /* The palette of Okabe and Ito, which colour-blind readers can tell apart, without its black and its
     * yellow; then two more colours. */
    static const char *const colours[AX_HISTORY_COLOURS] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                            "#e69f00", "#56b4e9", "#7b5ea7", "#8c6d31"};
    return colours[i % AX_HISTORY_COLOURS];
}

static double value_of(const ax_history_point *p, ax_history_field field)
{
    switch (field) {
    case AX_HISTORY_GRAD_NORM:
        return p->grad_norm;
    case AX_HISTORY_LR:
        return p->lr;
    case AX_HISTORY_RATE:
        return p->tokens_per_s;
    case AX_HISTORY_LOAD:
        return p->expert_load;
    case AX_HISTORY_DROPPED:
        return 100 * p->expert_dropped;
    case AX_HISTORY_RECALL:
        return p->recalled;
    default:
        return p->loss;
    }
}

/* The unit of the x axis. */
typedef struct unit {
    const char *label;
    double size; /* in steps, tokens or seconds */
    bool counts;
} unit;

static unit unit_of(const ax_history *runs, int n)
{
    static const unit times[] = {{"time, s", 1, false}, {"time, min", 60, false}, {"time, h", 3600, false}};
    double longest = 0;
    if (!n || runs[0].axis == AX_HISTORY_STEPS)
        return (unit){"step", 1, true};
    if (runs[0].axis == AX_HISTORY_TOKENS)
        return (unit){"tokens", 1, true};
    for (int i = 0; i < n; i++)
        for (int k = 0; k < runs[i].n; k++)
            longest = fmax(longest, runs[i].point[k].seconds);
    return times[longest < 600 ? 0 : longest < 600 * 60 ? 1 : 2];
}

static double place_of(const ax_history *run, const ax_history_point *p)
{
    return run->axis == AX_HISTORY_STEPS    ? (double)p->step
           : run->axis == AX_HISTORY_TOKENS ? p->tokens
                                            : p->seconds;
}

bool ax_history_has(const ax_history *runs, int n, ax_history_field field)
{
    bool has = field <= AX_HISTORY_RATE;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < runs[i].n && !has; k++)
            has = value_of(&runs[i].point[k], field) > 0 ||
                  (field == AX_HISTORY_RECALL && runs[i].point[k].kind == AX_POINT_RECALL);
    return has;
}

/* Returns the interquartile mean of the finite values in y[from … to]. If there are more than SMOOTH_SAMPLE
 * values, uses an evenly spaced sample of them. */
static double middle_mean(const double *y, int from, int to)
{
    double sample[SMOOTH_SAMPLE], sum = 0;
    int n = 0, stride = (to - from) / SMOOTH_SAMPLE + 1;
    for (int k = from; k <= to; k += stride)
        if (isfinite(y[k]))
            sample[n++] = y[k];
    ax_sort(sample, n);
    int quarter = n / 4, middle = n - 2 * quarter;
    for (int k = quarter; k < quarter + middle; k++)
        sum += sample[k];
    return n ? sum / middle : NAN;
}

void ax_smooth(const double *x, const double *y, int n, int window, int places, double *at, double *mean)
{
    for (int j = 0; j < places; j++) {
        int i = places > 1 ? (int)((int64_t)j * (n - 1) / (places - 1)) : 0;
        int half = (int)ax_min(window / 2, i);
        at[j] = x[i];
        mean[j] = isfinite(y[i]) ? middle_mean(y, i - half, (int)ax_min(i + half, n - 1)) : NAN;
    }
}

/* ---- curves of a run ----------------------------------------------------------------------------- */

static void curves_fini(ax_curve *curve, int n)
{
    for (int k = 0; k < n; k++) {
        free(curve[k].x);
        free(curve[k].y);
    }
    free(curve);
}

static ax_status curve_init(ax_curve *c, ax_curve_style style, const char *name, const char *colour, int n)
{
    *c = (ax_curve){.name = name, .colour = colour, .style = style, .n = n};
    AX_TRY(ax_calloc((size_t)n, sizeof *c->x, &c->x));
    return ax_calloc((size_t)n, sizeof *c->y, &c->y);
}

/* Which points of a run make a curve: those of one kind and source. */
typedef struct points {
    ax_point_kind kind;
    int source;
} points;

static bool is_among(const ax_history_point *p, points which)
{
    return p->kind == which.kind && p->source == which.source;
}

static ax_status extract(const ax_history *run, ax_history_field field, points which, ax_curve_style style,
                         const char *name, const char *colour, ax_curve *c)
{
    int n = 0;
    for (int i = 0; i < run->n; i++)
        n += is_among(&run->point[i], which);
    AX_TRY(curve_init(c, style, n ? name : NULL, colour, n));
    n = 0;
    for (int i = 0; i < run->n; i++)
        if (is_among(&run->point[i], which)) {
            c->x[n] = place_of(run, &run->point[i]);
            c->y[n++] = value_of(&run->point[i], field);
        }
    return AX_OK;
}

static const char *dashes_of(int i)
{
    static const char *const dashes[] = {NULL, "8 4", "3 3", "12 3 3 3"};
    return dashes[(size_t)i % AX_COUNT(dashes)];
}

/* Makes the curves of one run: raw values, smoothed values and, if `field` is the loss, evaluations. If the
 * chart shows one run (`lone`), the legend names the curves; else it names the runs. */
static ax_status curves_of(const ax_history *run, ax_history_field field, const char *colour,
                           const char *dashes, bool lone, ax_curve c[3])
{
    int steps = 0;
    for (int i = 0; i < run->n; i++)
        steps += run->point[i].kind == AX_POINT_STEP;
    bool loss = field == AX_HISTORY_LOSS, smooth = field != AX_HISTORY_LR && steps >= SMOOTH_FROM;
    const char *raw = loss     ? "training"
                      : smooth ? "each step"
                               : NULL,
               *mean = loss ? "training, smoothed" : "smoothed";
    const char *of_several = smooth ? NULL : run->title;
    AX_TRY(extract(run, field, (points){AX_POINT_STEP, 0}, smooth ? AX_CURVE_THIN : AX_CURVE_LINE,
                   lone ? raw : of_several, colour, &c[0]));
    int places = smooth ? (int)ax_min(steps, SMOOTH_PLACES) : 0;
    AX_TRY(curve_init(&c[1], AX_CURVE_LINE, !smooth ? NULL : lone ? mean : run->title, colour, places));
    ax_smooth(c[0].x, c[0].y, c[0].n, (int)ax_max(steps / 25, 9), places, c[1].x, c[1].y);
    if (loss)
        AX_TRY(extract(run, field, (points){AX_POINT_EVAL, 0}, AX_CURVE_DOTS, lone ? "evaluation" : NULL,
                       lone ? EVAL_COLOUR : colour, &c[2]));
    for (int k = 0; k < 3; k++)
        c[k].dashes = c[k].style == AX_CURVE_THIN ? NULL : dashes;
    return AX_OK;
}

/* Returns the number of curves of one run: three as in curves_of, or one for each source that is recalled. */
static int count_curves(const ax_history *run, ax_history_field field)
{
    return field == AX_HISTORY_RECALL ? (int)run->source.count : 3;
}

/* Makes a curve for each source of which documents are recalled. If the chart shows one run, each source has
 * a colour of its own, else dashes of its own in the run's colour. */
static ax_status recall_of(const ax_history *run, const char *colour, bool lone, ax_curve *c)
{
    for (int i = 0; i < (int)run->source.count; i++) {
        const char *source = run->source.items[i];
        AX_TRY(extract(run, AX_HISTORY_RECALL, (points){AX_POINT_RECALL, i}, AX_CURVE_DOTS,
                       lone ? source : run->title, lone ? ax_history_colour(i) : colour, &c[i]));
        c[i].part = lone ? NULL : source;
        c[i].dashes = dashes_of(lone ? 0 : i);
    }
    return AX_OK;
}

/* Makes the curves of all runs, and returns in *n their number. */
static ax_status all_curves(const ax_history *runs, int count, ax_history_field field, ax_curve *curve,
                            int *n)
{
    *n = 0;
    for (int i = 0; i < count; i++) {
        const char *colour = ax_history_colour(i), *dashes = dashes_of(i / AX_HISTORY_COLOURS);
        AX_TRY(field == AX_HISTORY_RECALL
                   ? recall_of(&runs[i], colour, count == 1, curve + *n)
                   : curves_of(&runs[i], field, colour, dashes, count == 1, curve + *n));
        *n += count_curves(&runs[i], field);
    }
    return AX_OK;
}

/* Returns whether any of the n curves of losses has evaluations. */
static bool has_evaluations(const ax_curve *curve, int n)
{
    for (int i = 2; i < n; i += 3)
        if (curve[i].n)
            return true;
    return false;
}

ax_status ax_history_plot(const ax_history *runs, int n, ax_history_field field, const char *title, int width,
                          int height, ax_buf *out)
{
    static const char *const names[] = {"loss",
                                        "gradient norm",
                                        "learning rate",
                                        "tokens per second",
                                        "largest load of an expert",
                                        "choices without a place, %",
                                        "documents recalled, %"};
    ax_curve *curve;
    int curves = 1, made;
    for (int i = 0; i < n; i++)
        curves += count_curves(&runs[i], field);
    AX_TRY(ax_calloc((size_t)curves, sizeof *curve, &curve));
    ax_status status = all_curves(runs, n, field, curve + 1, &made);
    const unit x = unit_of(runs, n);
    for (int k = 0; k < curves && status == AX_OK; k++)
        for (int i = 0; i < curve[k].n; i++)
            curve[k].x[i] /= x.size;
    if (n > 1 && field == AX_HISTORY_LOSS &&
        has_evaluations(curve + 1, made)) /* a legend entry explains the dots */
        curve[0] = (ax_curve){.name = "evaluation", .colour = "#666", .style = AX_CURVE_DOTS};
    if (status == AX_OK)
        status = ax_plot_draw(&(ax_plot){.title = title ? title : names[field],
                                         .x_label = x.label,
                                         .x_counts = x.counts,
                                         .y_label = title ? names[field] : "",
                                         .width = width,
                                         .height = height,
                                         .from_zero = field != AX_HISTORY_LOSS,
                                         .legend_below = field == AX_HISTORY_RATE,
                                         .curve = curve,
                                         .n = curves},
                              out);
    curves_fini(curve, curves);
    return status;
}

static ax_status draw_document(const ax_history *runs, int n, ax_buf *out)
{
    char several[32];
    snprintf(several, sizeof several, "%d runs", n);
    AX_TRY(ax_buf_printf(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"));
    return ax_history_plot(runs, n, AX_HISTORY_LOSS, n == 1 ? runs[0].title : several, 800, 480, out);
}

ax_status ax_with_point(ax_status (*draw)(const ax_history *, int, ax_buf *), const ax_history *runs, int n,
                        ax_buf *out)
{
    locale_t c = newlocale(LC_ALL_MASK, "C", NULL);
    AX_CHECK(c, AX_ERR_MEMORY, "not enough memory to draw the chart of a report");
    locale_t old = uselocale(c);
    ax_status status = draw(runs, n, out);
    (void)uselocale(old);
    freelocale(c);
    return status;
}

ax_status ax_history_svg(const ax_history *runs, int n, ax_buf *out)
{
    return ax_with_point(draw_document, runs, n, out);
}
