/* Writes the metrics of a training run after each step: a row of metrics.jsonl, TensorBoard events, the
 * progress line. After opening, each row is built in a fixed buffer and written as a whole (ax_write_all). */
#include "axonn/json.h"
#include "axonn/trace.h"
#include "trace/tfevents.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

struct ax_metrics {
    ax_metrics_run run; /* its strings are valid only during ax_metrics_open */
    char *path;         /* path of metrics.jsonl */
    int fd, events;
    locale_t c; /* the C locale: numbers have a decimal point even if the host program's locale has a comma */
    bool terminal, line_open, any_line;
    double mean_ms;                   /* moving average of the step time, for the estimate of the time left */
    int64_t shown_step, shown_tokens; /* shown_step: step of the last progress line; shown_tokens: number of
                                         tokens since that line */
    double shown_ms;                  /* total time of the steps since the last progress line */
};

/* ---- rows ---------------------------------------------------------------------------------------- */

typedef struct row {
    char text[4096]; /* enough for comm_bytes with all 63 non-empty sets of the grid axes x.kv, x.rep, y, z,
                        pipe and data */
    size_t n;
} row;

static void row_add(row *r, const char *fmt, ...) AX_PRINTF(2, 3);
static void row_add(row *r, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(r->text + r->n, sizeof r->text - r->n, fmt, args);
    va_end(args);
    r->n = (size_t)ax_min((int64_t)sizeof r->text - 1, (int64_t)r->n + ax_max(n, 0));
}

/* Appends a number with the fewest significant digits, but at least 15, that read back as the same double (%g
 * drops trailing zeros). NaN and infinities become null, because JSON does not have them. */
static void row_number(row *r, const char *key, double value)
{
    char digits[40] = "null";
    for (int precision = 15; isfinite(value) && precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, value);
        if (strtod(digits, NULL) == value)
            break;
    }
    row_add(r, "%s\"%s\": %s", r->n ? ", " : "{", key, digits);
}

static ax_status row_write(ax_metrics *m, row *r)
{
    row_add(r, "}\n");
    return ax_write_all(m->fd, r->text, r->n, m->path);
}

/* ---- opening ------------------------------------------------------------------------------------- */

/* Returns the step of the row `line`: 0 for a row that describes the run, -1 if `line` is not a complete JSON
 * object. */
static int64_t row_step(const char *line, size_t n)
{
    json_t *json;
    int64_t step = ax_json_parse(NULL, line, n, 0, &json) == AX_OK && json_is_object(json)
                       ? json_integer_value(json_object_get(json, "step"))
                       : -1;
    json_decref(json);
    return step;
}

/* Returns the size to which metrics.jsonl is truncated when a run resumes after `step`: the end of the last
 * row of a step in 1 … `step`. If there is no such row: the end of the first row, which describes the run, or
 * 0 if that row is damaged. From row to row steps never decrease, except in rows that describe the run (step
 * 0). So the search begins at the end, and parses only the rows that are removed and the last one that is
 * kept. */
static size_t kept_size(const char *data, size_t size, int64_t step)
{
    const char *end = size ? memrchr(data, '\n', size) : NULL; /* skips an incomplete last line */
    while (end) {
        const char *before = memrchr(data, '\n', (size_t)(end - data));
        const char *line = before ? before + 1 : data;
        int64_t at = row_step(line, (size_t)(end - line));
        if (at >= (before ? 1 : 0) && at <= step)
            return (size_t)(end + 1 - data);
        end = before;
    }
    return 0;
}

static ax_status truncate_to_step(const char *path, int64_t step)
{
    char *data;
    size_t size;
    if (!ax_path_exists(path))
        return AX_OK;
    AX_TRY(ax_file_read(path, &data, &size));
    size_t kept = kept_size(data, size, step);
    free(data);
    AX_CHECK(kept == size || !truncate(path, (off_t)kept), AX_ERR_DATA,
             "cannot remove the rows after step %lld from %s: %s", (long long)step, path, strerror(errno));
    return AX_OK;
}

/* Keeps the metrics of an older run when a new run starts in the same directory: renames the file or
 * directory `path` to the first of PATH.1, PATH.2, … that does not exist. */
static ax_status back_up(const char *path)
{
    ax_buf backup = {0};
    ax_status status = AX_OK;
    for (int i = 1; status == AX_OK && ax_path_exists(path); i++) {
        backup.size = 0;
        status = ax_buf_printf(&backup, "%s.%d", path, i);
        if (status == AX_OK && !ax_path_exists(backup.data) && rename(path, backup.data))
            status = ax_fail(AX_ERR_DATA, "cannot keep the older metrics %s as %s: %s", path, backup.data,
                             strerror(errno));
    }
    ax_buf_fini(&backup);
    return status;
}

static ax_status describe(ax_metrics *m, int64_t resume_step)
{
    const ax_metrics_run *r = &m->run;
    json_t *json = json_pack(
        "{s:s, s:s, s:s?, s:s?, s:s?, s:i, s:s?, s:s?, s:s?, s:s?, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:o, "
        "s:s?, s:f}",
        "version", ax_version(), "commit", ax_commit(), "model", r->model, "grid", r->grid, "strategy",
        r->strategy, "zero", r->zero, "device", r->device, "precision", r->precision, "grad_dtype",
        r->grad_dtype, "offload", r->offload, "threads", r->threads, "ranks", r->ranks, "parameters",
        (json_int_t)r->parameters, "steps", (json_int_t)r->steps, "goldfish_k", (json_int_t)r->goldfish_k,
        "mem_planned", (json_int_t)r->mem_planned, "mem_baseline", (json_int_t)r->mem_baseline,
        "peak_flops_per_s", r->peak_flops > 0 ? json_real(r->peak_flops) : json_null(), "peak_from",
        r->peak_flops > 0 ? r->peak_from : NULL, "time", ax_wall_clock());
    if (json && resume_step)
        json_object_set_new(json, "resumed_from", json_integer(resume_step));
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    AX_CHECK(
        text, AX_ERR_INTERNAL,
        "%s: cannot write the description of the run as JSON (is the model's or device's name not UTF-8?)",
        m->path);
    size_t n = strlen(text);
    text[n] = '\n'; /* replaces the NUL; n + 1 bytes are written */
    ax_status status = ax_write_all(m->fd, text, n + 1, m->path);
    free(text);
    return status;
}

static ax_status open_rows(ax_metrics *m, int64_t resume_step)
{
    AX_TRY(ax_mkdirs(m->run.dir));
    AX_TRY(ax_path_join(m->run.dir, "metrics.jsonl", &m->path));
    AX_TRY(resume_step ? truncate_to_step(m->path, resume_step) : back_up(m->path));
    m->fd = open(m->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    AX_CHECK(m->fd >= 0, AX_ERR_DATA, "cannot write %s: %s", m->path, strerror(errno));
    return describe(m, resume_step);
}

static ax_status open_events(ax_metrics *m, int64_t resume_step)
{
    char *path;
    AX_TRY(ax_path_join(m->run.dir, "tb", &path));
    ax_status status = resume_step ? AX_OK : back_up(path);
    if (status == AX_OK)
        status = ax_tfevents_open(path, resume_step, &m->events);
    free(path);
    return status;
}

ax_status ax_metrics_open(const ax_metrics_run *run, int64_t resume_step, ax_metrics **out)
{
    ax_metrics *m;
    *out = NULL;
    AX_TRY(ax_calloc(1, sizeof *m, &m));
    m->run = *run;
    m->fd = m->events = -1;
    m->terminal = isatty(STDERR_FILENO) && !run->quiet;
    m->shown_step = resume_step;
    m->c = newlocale(LC_ALL_MASK, "C", NULL);
    ax_status status =
        m->c ? open_rows(m, resume_step)
             : ax_fail(AX_ERR_MEMORY, "not enough memory to open metrics.jsonl in %s", run->dir);
    if (status == AX_OK)
        status = open_events(m, resume_step);
    if (status != AX_OK)
        ax_metrics_close(&m);
    *out = m;
    return status;
}

void ax_metrics_close(ax_metrics **metrics)
{
    ax_metrics *m = *metrics;
    if (!m)
        return;
    ax_metrics_break_line(m);
    if (m->fd >= 0)
        close(m->fd);
    if (m->events >= 0)
        close(m->events);
    if (m->c)
        freelocale(m->c);
    free(m->path);
    free(m);
    *metrics = NULL;
}

/* ---- the progress line --------------------------------------------------------------------------- */

void ax_metrics_break_line(ax_metrics *m)
{
    if (m->line_open && write(STDERR_FILENO, "\n", 1) < 0)
        return;
    m->line_open = false;
}

/* Formats a number in a few characters, such as "87", "318k" or "4.2M". */
static char *short_number(double value, char out[16])
{
    if (value >= 1e6)
        snprintf(out, 16, "%.1fM", value / 1e6);
    else if (value >= 1e4)
        snprintf(out, 16, "%.0fk", value / 1e3);
    else if (value >= 1e3)
        snprintf(out, 16, "%.2fk", value / 1e3);
    else
        snprintf(out, 16, "%.0f", value);
    return out;
}

/* Drops fields at the end of a progress line that is wider than the terminal, because the next progress line
 * could not overwrite a wrapped line. */
static void fit_terminal(row *line)
{
    struct winsize window;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &window) || window.ws_col < 2 || line->n < window.ws_col)
        return;
    line->text[window.ws_col - 1] = 0;
    char *bar = strrchr(line->text, '|');
    if (bar)
        bar[-1] = 0;
}

/* Returns true if the step was not computed because it had no target: loss and gradient norm are then
 * unknown. */
static bool is_empty(const ax_metrics_step *s) { return s->step_tokens == 0 && isnan(s->loss); }

static void print_line(ax_metrics *m, const ax_metrics_step *s)
{
    char rate[16], memory[32], left[32], took[32], mfu[16] = "n/a", loss[64] = "loss n/a | gnorm n/a";
    row line = {.n = 0};
    double steps = (double)ax_max(s->step - m->shown_step, 1), ms = m->shown_ms / steps;
    double todo = (double)ax_max(m->run.steps - s->step, 0);
    if (m->run.peak_flops > 0)
        snprintf(mfu, sizeof mfu, "%.1f%%", 100 * s->flops / (ms * 1e-3) / m->run.peak_flops / m->run.ranks);
    if (!is_empty(s))
        snprintf(loss, sizeof loss, "loss %.4f | gnorm %.3f", s->loss, s->grad_norm);
    row_add(&line, "step %lld/%lld | %s | lr %.2e | %s | %s tok/s | MFU %s | mem %s | eta %s",
            (long long)s->step, (long long)m->run.steps, loss, s->lr, ax_format_seconds(ms * 1e-3, took),
            short_number((double)m->shown_tokens / (m->shown_ms * 1e-3), rate), mfu,
            ax_format_bytes((double)s->mem_bytes, memory), ax_format_seconds(todo * m->mean_ms * 1e-3, left));
    if (m->run.goldfish_k)
        row_add(&line, " | dropped %.1f%%", 100 * s->dropped);
    if (s->expert_load > 0)
        row_add(&line, " | expert load %.2f", s->expert_load);
    if (m->run.expert_capacity > 0)
        row_add(&line, " | %.1f%% without place", 100 * s->expert_dropped);
    if (m->terminal) {
        row shown = {.n = 0};
        fit_terminal(&line);
        row_add(&shown, "\r\033[K%s", line.text);
        if (write(STDERR_FILENO, shown.text, shown.n) < 0)
            return;
    } else {
        ax_log(AX_LOG_INFO, "%s", line.text);
    }
    m->line_open = m->terminal;
    m->any_line = true;
    m->shown_step = s->step;
    m->shown_tokens = 0;
    m->shown_ms = 0;
}

static bool line_due(const ax_metrics *m, const ax_metrics_step *s)
{
    if (m->run.quiet)
        return false;
    if (!m->any_line || s->step == m->run.steps)
        return true;
    if (m->terminal) /* redraws the progress line at most once per 100 ms of step time */
        return m->shown_ms >= 100;
    return m->run.log_interval > 0 && s->step % m->run.log_interval == 0;
}

/* ---- steps and evaluations ----------------------------------------------------------------------- */

static ax_status report_step(ax_metrics *m, const ax_metrics_step *s)
{
    double seconds = s->step_ms * 1e-3, mfu = s->flops / seconds / m->run.peak_flops / m->run.ranks;
    row r = {.n = 0};
    row_add(&r, "{\"step\": %lld", (long long)s->step);
    row_number(&r, "loss", s->loss);
    row_number(&r, "grad_norm", s->grad_norm);
    row_number(&r, "lr", s->lr);
    row_add(&r, ", \"tokens\": %lld", (long long)s->tokens);
    row_number(&r, "step_ms", s->step_ms);
    row_number(&r, "tokens_per_s", (double)s->step_tokens / seconds);
    row_number(&r, "flops_per_s", s->flops / seconds);
    row_number(&r, "hw_flops_per_s", s->hw_flops / seconds);
    row_number(&r, "mfu", m->run.peak_flops > 0 ? mfu : NAN);
    row_add(&r, ", \"mem_bytes\": %lld, \"mem_mean\": %lld, \"comm_bytes\": {", (long long)s->mem_bytes,
            (long long)s->mem_mean);
    for (int i = 0; i < s->comm_count; i++)
        row_add(&r, "%s\"%s\": %lld", i ? ", " : "", s->comm[i].axes, (long long)s->comm[i].bytes);
    row_add(&r, "}, \"comm_wire_bytes\": %lld", (long long)s->comm_wire_bytes);
    row_number(&r, "comm_exposed_ms", s->comm_exposed_ms);
    if (s->pipe_wait_ms > 0)
        row_number(&r, "pipe_wait_ms", s->pipe_wait_ms);
    row_add(&r, ", \"skipped\": %s", s->skipped ? "true" : "false");
    if (s->loss_scale > 0)
        row_number(&r, "loss_scale", s->loss_scale);
    if (m->run.goldfish_k)
        row_number(&r, "dropped", s->dropped);
    if (s->expert_load > 0) {
        row_number(&r, "balance_loss", s->balance_loss);
        row_number(&r, "z_loss", s->z_loss);
        row_number(&r, "expert_load", s->expert_load);
    }
    if (m->run.expert_capacity > 0)
        row_number(&r, "expert_dropped", s->expert_dropped);
    AX_TRY(row_write(m, &r));
    const ax_scalar scalars[] = {{"train/loss", s->loss},
                                 {"train/grad_norm", s->grad_norm},
                                 {"train/lr", s->lr},
                                 {"perf/tokens_per_s", (double)s->step_tokens / seconds},
                                 {"perf/mfu", mfu}};
    const int first = is_empty(s) ? 2 : 0, end = (int)AX_COUNT(scalars) - (m->run.peak_flops > 0 ? 0 : 1);
    AX_TRY(ax_tfevents_add(m->events, ax_wall_clock(), s->step, scalars + first, end - first));
    m->mean_ms = m->mean_ms > 0 ? 0.9 * m->mean_ms + 0.1 * s->step_ms : s->step_ms;
    m->shown_ms += s->step_ms;
    m->shown_tokens += s->step_tokens;
    if (line_due(m, s))
        print_line(m, s);
    return AX_OK;
}

ax_status ax_metrics_step_add(ax_metrics *m, const ax_metrics_step *s)
{
    locale_t old = uselocale(m->c);
    ax_status status = report_step(m, s);
    (void)uselocale(old);
    return status;
}

static ax_status report_eval(ax_metrics *m, int64_t step, double loss, double bits_per_byte, int64_t targets,
                             double seconds)
{
    row r = {.n = 0};
    char bits[48] = "", value[64] = "n/a (no target)", took[32];
    row_add(&r, "{\"step\": %lld", (long long)step);
    row_number(&r, "eval_loss", loss);
    row_number(&r, "perplexity", exp(loss));
    if (bits_per_byte >= 0)
        row_number(&r, "bits_per_byte", bits_per_byte);
    row_add(&r, ", \"targets\": %lld", (long long)targets);
    row_number(&r, "seconds", seconds);
    AX_TRY(row_write(m, &r));
    const ax_scalar scalars[] = {{"eval/loss", loss}, {"eval/bits_per_byte", bits_per_byte}};
    if (targets)
        AX_TRY(ax_tfevents_add(m->events, ax_wall_clock(), step, scalars, bits_per_byte >= 0 ? 2 : 1));
    ax_metrics_break_line(m);
    if (bits_per_byte >= 0)
        snprintf(bits, sizeof bits, " | %.4f bits per byte", bits_per_byte);
    if (targets)
        snprintf(value, sizeof value, "%.4f | perplexity %.2f", loss, exp(loss));
    if (!m->run.quiet)
        ax_log(AX_LOG_INFO, "step %lld | eval loss %s%s | %s", (long long)step, value, bits,
               ax_format_seconds(seconds, took));
    return AX_OK;
}

ax_status ax_metrics_eval_add(ax_metrics *m, int64_t step, double loss, double bits_per_byte, int64_t targets,
                              double seconds)
{
    locale_t old = uselocale(m->c);
    ax_status status = report_eval(m, step, loss, bits_per_byte, targets, seconds);
    (void)uselocale(old);
    return status;
}

/* Appends a row of metrics.jsonl. NaN and infinities become null. */
static ax_status add_recall(ax_buf *rows, int64_t step, const ax_metrics_recall *s, double seconds)
{
    json_t *json =
        json_pack("{s:I, s:s, s:I, s:I, s:f, s:f, s:o, s:f}", "step", (json_int_t)step, "recall", s->source,
                  "documents", (json_int_t)s->documents, "recalled", (json_int_t)s->recalled, "before_error",
                  s->before_error, "likeliest", s->likeliest, "recall_loss",
                  isfinite(s->loss) ? json_real(s->loss) : json_null(), "seconds", seconds);
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    AX_CHECK(text, AX_ERR_MEMORY,
             "the name of a source of run.recall.data is not UTF-8, or there is not enough memory: %s",
             s->source);
    ax_status status = ax_buf_printf(rows, "%s\n", text);
    free(text);
    return status;
}

/* Logs what is recalled of a source, and adds it to *all. */
static void log_recall(ax_metrics *m, int64_t step, const ax_metrics_recall *s, ax_metrics_recall *all)
{
    all->documents += s->documents;
    all->recalled += s->recalled;
    if (!m->run.quiet)
        ax_log(AX_LOG_INFO,
               "step %lld | recalls %lld of %lld documents of %s | %.2f tokens before an error | loss %.4f",
               (long long)step, (long long)s->recalled, (long long)s->documents, s->source, s->before_error,
               s->loss);
}

static ax_status report_recall(ax_metrics *m, int64_t step, const ax_metrics_recall *source, int n,
                               double seconds)
{
    ax_buf rows = {0};
    ax_metrics_recall all = {0};
    ax_status status = AX_OK;
    for (int i = 0; i < n && status == AX_OK; i++)
        status = add_recall(&rows, step, &source[i], seconds);
    if (status == AX_OK)
        status = ax_write_all(m->fd, rows.data, rows.size, m->path);
    ax_buf_fini(&rows);
    AX_TRY(status);
    ax_metrics_break_line(m);
    for (int i = 0; i < n; i++)
        log_recall(m, step, &source[i], &all);
    const ax_scalar share = {"recall/documents", (double)all.recalled / (double)ax_max(all.documents, 1)};
    return ax_tfevents_add(m->events, ax_wall_clock(), step, &share, 1);
}

ax_status ax_metrics_recall_add(ax_metrics *m, int64_t step, const ax_metrics_recall *source, int n,
                                double seconds)
{
    locale_t old = uselocale(m->c);
    ax_status status = report_recall(m, step, source, n, seconds);
    (void)uselocale(old);
    return status;
}
