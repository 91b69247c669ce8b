/* Writes one HTML page for one or more training runs: charts, and a table of the last values. The page loads
 * no other resource. */
#include "trace/plot.h"

#include <math.h>
#include <stdio.h>

enum { TITLE_MOST = 80, WIDTH = 640, HEIGHT = 360 };

static const char STYLE[] =
    "body{font-family:system-ui,'DejaVu Sans',Arial,sans-serif;margin:1.5rem;color:#222;background:#fff}\n"
    "h1{font-size:1.3rem}\n"
    ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,30rem),1fr));gap:1rem}\n"
    ".charts svg{width:100%;height:auto}\n"
    ".table{overflow-x:auto}\n"
    "table{border-collapse:collapse;margin-bottom:1.5rem;font-variant-numeric:tabular-nums}\n"
    "th,td{padding:.3rem .8rem;text-align:right;border-bottom:1px solid #ddd;white-space:nowrap}\n"
    "th:first-child,td:first-child{text-align:left}\n"
    "i{display:inline-block;width:.8rem;height:.8rem;margin-right:.5rem;border-radius:2px}\n";

/* The points of a run that a row of the table shows. step: the last training step; eval: the last evaluation;
 * best: the evaluation with the lowest loss. NULL: the run has no such point. */
typedef struct last {
    const ax_history_point *step, *eval, *best;
} last;

static last last_of(const ax_history *run)
{
    last l = {0};
    for (int i = 0; i < run->n; i++) {
        const ax_history_point *p = &run->point[i];
        if (p->kind == AX_POINT_STEP)
            l.step = p;
        if (p->kind != AX_POINT_EVAL)
            continue;
        l.eval = p;
        if (isfinite(p->loss) && (!l.best || p->loss < l.best->loss))
            l.best = p;
    }
    return l;
}

static ax_status add_cell(ax_buf *out, bool known, const char *fmt, double value)
{
    char text[48] = "&#8211;";
    if (known && isfinite(value))
        snprintf(text, sizeof text, fmt, value);
    return ax_buf_printf(out, "<td>%s</td>", text);
}

static ax_status add_row(const ax_history *run, const char *colour, ax_buf *out)
{
    last l = last_of(run);
    const ax_history_point none = {0}, *s = l.step ? l.step : &none;
    int64_t step = l.eval ? l.eval->step : 0;
    AX_TRY(ax_buf_printf(out, "<tr><td><i style=\"background:%s\"></i>", colour));
    AX_TRY(ax_xml_text(run->title, TITLE_MOST, out));
    AX_TRY(ax_buf_printf(out, "</td><td>%lld</td>", (long long)ax_max(step, s->step)));
    AX_TRY(add_cell(out, l.step, "%.4f", s->loss));
    AX_TRY(add_cell(out, l.eval, "%.4f", l.eval ? l.eval->loss : NAN));
    AX_TRY(add_cell(out, l.eval, "%.2f", l.eval ? exp(l.eval->loss) : NAN));
    AX_TRY(add_cell(out, l.best, "%.4f", l.best ? l.best->loss : NAN));
    AX_TRY(add_cell(out, l.best, "%.0f", l.best ? (double)l.best->step : NAN));
    AX_TRY(add_cell(out, l.step, "%.4g", s->grad_norm));
    AX_TRY(add_cell(out, l.step, "%.3g", s->lr));
    AX_TRY(add_cell(out, l.step, "%.1f", s->step_ms));
    AX_TRY(add_cell(out, l.step, "%.0f", s->tokens_per_s));
    return ax_buf_printf(out, "</tr>\n");
}

static ax_status add_table(const ax_history *runs, int n, ax_buf *out)
{
    static const char *const heads[] = {"run",           "step",           "loss",        "eval loss",
                                        "perplexity",    "best eval loss", "at step",     "gradient norm",
                                        "learning rate", "ms per step",    "tokens per s"};
    AX_TRY(ax_buf_printf(out, "<div class=\"table\"><table>\n<thead><tr>"));
    for (size_t i = 0; i < AX_COUNT(heads); i++)
        AX_TRY(ax_buf_printf(out, "<th scope=\"col\">%s</th>", heads[i]));
    AX_TRY(ax_buf_printf(out, "</tr></thead>\n<tbody>\n"));
    for (int i = 0; i < n; i++)
        AX_TRY(add_row(&runs[i], ax_history_colour(i), out));
    return ax_buf_printf(out, "</tbody>\n</table></div>\n");
}

static ax_status add_title(const ax_history *runs, int n, ax_buf *out)
{
    if (n != 1)
        return ax_buf_printf(out, "%d runs", n);
    return ax_xml_text(runs[0].title, TITLE_MOST, out);
}

static ax_status add_page(const ax_history *runs, int n, ax_buf *out)
{
    AX_TRY(ax_buf_printf(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
                              "<meta name=\"viewport\" content=\"width=device-width\"/>\n<title>"));
    AX_TRY(add_title(runs, n, out));
    AX_TRY(ax_buf_printf(out, "</title>\n<style>\n%s</style>\n</head>\n<body>\n<h1>", STYLE));
    AX_TRY(add_title(runs, n, out));
    AX_TRY(ax_buf_printf(out, "</h1>\n"));
    AX_TRY(add_table(runs, n, out));
    AX_TRY(ax_buf_printf(out, "<div class=\"charts\">\n"));
    for (int field = 0; field < AX_HISTORY_FIELDS; field++)
        if (ax_history_has(runs, n, (ax_history_field)field))
            AX_TRY(ax_history_plot(runs, n, (ax_history_field)field, NULL, WIDTH, HEIGHT, out));
    return ax_buf_printf(out, "</div>\n</body>\n</html>\n");
}

ax_status ax_history_html(const ax_history *runs, int n, ax_buf *out)
{
    return ax_with_point(add_page, runs, n, out);
}
