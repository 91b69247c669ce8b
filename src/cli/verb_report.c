/* axonn report: plots the metrics of runs as an HTML page, or their loss as an SVG. */
#include "verb.h"

#include "axonn/json.h"
#include "axonn/trace.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct report_args {
    ax_strings run;
    char *out;
    int x; /* ax_history_axis */
    bool json;
} report_args;

static const ax_option options[] = {
    {"RUN", AX_OPT_STRINGS, offsetof(report_args, run), .required = true,
     .help = "directories of the runs to plot"},
    {"out", AX_OPT_PATH, offsetof(report_args, out), .meta = "FILE",
     .help =
         "output file: .html for the page, .svg for the loss alone; default: report.html in the first RUN"},
    {"x", AX_OPT_ENUM, offsetof(report_args, x), "step", .choices = "step|tokens|time",
     .help = "x axis: steps, target tokens, or the time of steps and evaluations, without starts and "
             "checkpoints"},
    {"json", AX_OPT_BOOL, offsetof(report_args, json), "false",
     .help = "print the result as one JSON object"},
};

/* Returns the output format that the suffix of `path` stands for, or NULL. */
static const char *format_of(const char *path)
{
    const char *dot = strrchr(path, '.');
    if (dot && !strcasecmp(dot, ".svg"))
        return "svg";
    return dot && (!strcasecmp(dot, ".html") || !strcasecmp(dot, ".htm")) ? "html" : NULL;
}

static bool title_repeats(const report_args *a, const ax_history *runs, size_t i)
{
    for (size_t k = 0; k < a->run.count; k++)
        if (k != i && !strcmp(runs[i].title, runs[k].title))
            return true;
    return false;
}

/* Replaces the titles of runs that have the same title by the paths of these runs. */
static ax_status make_titles_distinct(const report_args *a, ax_history *runs)
{
    bool *repeats;
    AX_TRY(ax_calloc(a->run.count, sizeof *repeats, &repeats));
    for (size_t i = 0; i < a->run.count; i++)
        repeats[i] = title_repeats(a, runs, i);
    ax_status status = AX_OK;
    for (size_t i = 0; i < a->run.count && status == AX_OK; i++) {
        char *path;
        if (!repeats[i] || (status = ax_strdup(a->run.items[i], &path)) != AX_OK)
            continue;
        free(runs[i].title);
        runs[i].title = path;
    }
    free(repeats);
    return status;
}

static json_t *number_or_null(const double *value) { return value ? cli_json_number(*value) : json_null(); }

/* Returns the last step, loss and evaluation loss of the run. A loss that the run does not have is null; if
 * the run has neither loss, the step is 0. */
static json_t *run_json(const char *path, const ax_history *run)
{
    const ax_history_point *step = NULL, *eval = NULL;
    for (int i = 0; i < run->n; i++)
        if (run->point[i].kind != AX_POINT_RECALL)
            *(run->point[i].kind == AX_POINT_EVAL ? &eval : &step) = &run->point[i];
    return json_pack("{s:o, s:i, s:I, s:o, s:o}", "run", ax_json_text(path, strlen(path)), "points", run->n,
                     "step",
                     (json_int_t)(step   ? step->step
                                  : eval ? eval->step
                                         : 0),
                     "loss", number_or_null(step ? &step->loss : NULL), "eval_loss",
                     number_or_null(eval ? &eval->loss : NULL));
}

static ax_status print_json(const report_args *a, const ax_history *runs, const char *out, const char *format)
{
    json_t *list = json_array();
    for (size_t i = 0; i < a->run.count; i++)
        json_array_append_new(list, run_json(a->run.items[i], &runs[i]));
    return cli_print_json(
        json_pack("{s:o, s:s, s:o}", "out", ax_json_text(out, strlen(out)), "format", format, "runs", list));
}

static ax_status write_report(const report_args *a, const ax_history *runs, const char *out,
                              const char *format)
{
    ax_buf text = {0};
    int n = (int)a->run.count;
    ax_status status =
        !strcmp(format, "svg") ? ax_history_svg(runs, n, &text) : ax_history_html(runs, n, &text);
    if (status == AX_OK)
        status = ax_file_write_atomic(out, text.data, text.size);
    ax_buf_fini(&text);
    if (status == AX_OK && a->json)
        return print_json(a, runs, out, format);
    if (status == AX_OK)
        printf("%s\n", out);
    return status;
}

static ax_status read_and_write(const report_args *a, const char *out)
{
    const char *format = format_of(out);
    AX_CHECK(format, AX_ERR_USAGE, "--out %s: the name must end in .html or .svg", out);
    ax_history *runs;
    AX_TRY(ax_calloc(a->run.count, sizeof *runs, &runs));
    ax_status status = AX_OK;
    for (size_t i = 0; i < a->run.count && status == AX_OK; i++)
        if ((status = ax_history_read(a->run.items[i], &runs[i])) == AX_OK)
            status = ax_history_set_axis(&runs[i], (ax_history_axis)a->x);
    if (status == AX_OK)
        status = make_titles_distinct(a, runs);
    if (status == AX_OK)
        status = write_report(a, runs, out, format);
    for (size_t i = 0; i < a->run.count; i++)
        ax_history_fini(&runs[i]);
    free(runs);
    return status;
}

static ax_status run_report(const void *raw)
{
    const report_args *a = raw;
    if (a->out)
        return read_and_write(a, a->out);
    char *out;
    AX_TRY(ax_path_join(a->run.items[0], "report.html", &out));
    ax_status status = read_and_write(a, out);
    free(out);
    return status;
}

const cli_verb verb_report = {
    .name = "report",
    .summary = "plot the metrics of runs in an HTML page, or their loss in an SVG",
    .details = "Plots loss, gradient norm, learning rate, tokens per second, recall and, of models with "
               "experts,\n"
               "their largest load and the choices without a place, from metrics.jsonl; a run may still "
               "be training.\n"
               "Prints the path of the file that it wrote.",
    .examples = "axonn report runs/a\naxonn report runs/a runs/b --out compare.html\n"
                "axonn report runs/a --out loss.svg\n"
                "axonn report runs/a runs/b --x time --out loss.svg",
    .options = options,
    .option_count = AX_COUNT(options),
    .args_size = sizeof(report_args),
    .run = run_report,
};
