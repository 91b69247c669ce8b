/* Input and output of the verbs: standard input, text and JSON on stdout, progress on stderr. */
#include "verb.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool cli_colour(FILE *stream)
{
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    return isatty(fileno(stream)) && !(no && *no) && term && strcmp(term, "dumb") != 0;
}

ax_status cli_print(const char *text, size_t n)
{
    AX_CHECK(fwrite(text, 1, n, stdout) == n, AX_ERR_DATA, "standard output cannot be written: %s",
             strerror(errno));
    return AX_OK;
}

json_t *cli_json_number(double value) { return isfinite(value) ? json_real(value) : json_null(); }

ax_status cli_print_json(json_t *object)
{
    AX_CHECK(object, AX_ERR_MEMORY,
             "the JSON output cannot be made: there is not enough memory, or a path is not valid UTF-8");
    int failed = json_dumpf(object, stdout, JSON_COMPACT);
    json_decref(object);
    AX_CHECK(!failed && putchar('\n') != EOF && !fflush(stdout), AX_ERR_DATA,
             "standard output cannot be written: %s", strerror(errno));
    return AX_OK;
}

ax_corpus_options cli_corpus_options(const cli_corpus *corpus)
{
    return (ax_corpus_options){.inputs = (const char *const *)corpus->input.items,
                               .n_inputs = (int)corpus->input.count,
                               .include = (const char *const *)corpus->include.items,
                               .n_include = (int)corpus->include.count,
                               .text_key = corpus->text.key,
                               .bad_lines = corpus->text.bad_lines};
}

bool cli_is_stdin(const char *path)
{
    struct stat named, input;
    return !stat(path, &named) && !fstat(STDIN_FILENO, &input) && named.st_dev == input.st_dev &&
           named.st_ino == input.st_ino;
}

enum {
    STDIN_MOST = 256 << 20
}; /* bytes; limited, because processing text takes several times its size in memory */

ax_status cli_read_stdin(ax_buf *out)
{
    AX_TRY(ax_file_read_stream(STDIN_FILENO, "standard input", STDIN_MOST, out));
    return ax_buf_add(out, "", 0);
}

/* ---- progress ------------------------------------------------------------------------------------ */

void cli_progress_start(cli_progress *progress, const char *what, bool bytes)
{
    *progress = (cli_progress){.what = what, .bytes = bytes, .terminal = isatty(STDERR_FILENO)};
    progress->start = progress->shown = ax_now();
}

static const char *amount(const cli_progress *progress, double value, char out[32])
{
    if (progress->bytes)
        return ax_format_bytes(value, out);
    snprintf(out, 32, "%.0f", value);
    return out;
}

/* Formats a progress line: "43 %  12.3 MiB of 30.1 MiB  8.2 MiB/s  3.1 s left". */
static void describe(const cli_progress *progress, int64_t done, int64_t total, char *out, size_t size)
{
    char a[32], b[32], c[32], d[32];
    double elapsed = ax_now() - progress->start;
    double rate = elapsed > 0 ? (double)done / elapsed : 0;
    amount(progress, (double)done, a);
    amount(progress, rate, c);
    if (total <= 0) {
        snprintf(out, size, "%s  %s/s", a, c);
        return;
    }
    double left = rate > 0 ? (double)(total - done) / rate : 0;
    snprintf(out, size, "%3.0f %%  %s of %s  %s/s  %s left", 100.0 * (double)done / (double)total, a,
             amount(progress, (double)total, b), c, ax_format_seconds(left, d));
}

void cli_progress_update(cli_progress *progress, int64_t done, int64_t total)
{
    enum { WIDTH = 24 };
    double now = ax_now();
    if (now - progress->shown < (progress->terminal ? 0.1 : 10))
        return;
    progress->shown = now;
    char text[160];
    describe(progress, done, total, text, sizeof text);
    if (!progress->terminal) {
        ax_log(AX_LOG_INFO, "%s: %s", progress->what, text);
        return;
    }
    char bar[WIDTH + 1];
    int full = total > 0 ? (int)ax_min(WIDTH, done * WIDTH / total) : 0;
    for (int i = 0; i < WIDTH; i++)
        bar[i] = i < full ? '#' : '.';
    bar[WIDTH] = 0;
    fprintf(stderr, "\r%s [%s] %s\033[K", progress->what, bar, text);
    fflush(stderr);
}

bool cli_progress_show(void *progress, int64_t done, int64_t total)
{
    cli_progress_update(progress, done, total);
    return !cli_stop_wanted();
}

void cli_progress_end(cli_progress *progress)
{
    if (progress->terminal)
        fprintf(stderr, "\r\033[K");
}
