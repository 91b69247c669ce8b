/* Reading units of a corpus. A text file is one document and one unit, for cutting it could change its
 * tokens; a JSONL file is cut by bytes, and a unit owns the lines that start in it, so that units of one file
 * can be read in parallel without knowing of each other. */
#include "corpus.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <string.h>
#include <unistd.h>

bool corpus_next_unit(const ax_corpus *corpus, corpus_unit *unit)
{
    int64_t file = unit->file, from = unit->to;
    while (file < corpus->n && from >= corpus->files[file].bytes) {
        file++;
        from = 0;
    }
    if (file == corpus->n) {
        *unit = (corpus_unit){file, 0, 0};
        return false;
    }
    const corpus_file *f = &corpus->files[file];
    *unit = (corpus_unit){file, from, f->jsonl ? ax_min(from + CORPUS_UNIT_BYTES, f->bytes) : f->bytes};
    return true;
}

/* Appends up to `bytes` bytes of the file from `offset` on to `buf`; fewer at its end. */
static ax_status append_range(int fd, const char *path, int64_t offset, int64_t bytes, ax_buf *buf)
{
    AX_TRY(ax_buf_reserve(buf, (size_t)bytes));
    while (bytes > 0) {
        ssize_t n = pread(fd, buf->data + buf->size, (size_t)bytes, offset);
        if (n < 0 && errno == EINTR)
            continue;
        AX_CHECK(n >= 0, AX_ERR_DATA, "cannot read %s: %s", path, strerror(errno));
        if (!n)
            break;
        buf->size += (size_t)n;
        offset += n;
        bytes -= n;
    }
    buf->data[buf->size] = 0;
    return AX_OK;
}

/* ---- JSONL --------------------------------------------------------------------------------------- */

/* The number of the line that starts at `offset`, from 1. Only errors need it. */
static long long line_number(int fd, const char *path, int64_t offset)
{
    long long line = 1;
    ax_buf part = {0};
    for (int64_t at = 0; at < offset; at += CORPUS_UNIT_BYTES) {
        part.size = 0;
        if (append_range(fd, path, at, ax_min(CORPUS_UNIT_BYTES, offset - at), &part) != AX_OK)
            break;
        for (size_t i = 0; i < part.size; i++)
            line += part.data[i] == '\n';
    }
    ax_buf_fini(&part);
    return line;
}

/* The lines that start in [from, to): the text from the first such line to the end of the last. */
static ax_status read_lines(int fd, const char *path, const corpus_unit *unit, ax_buf *buf, size_t *first)
{
    int64_t start = ax_max(unit->from - 1, 0);
    AX_TRY(append_range(fd, path, start, unit->to - start, buf));
    *first = 0;
    if (unit->from) { /* a line starts at `from` only if a newline stands before it */
        const char *newline = memchr(buf->data, '\n', buf->size);
        *first = newline ? (size_t)(newline + 1 - buf->data) : buf->size;
    }
    if (*first == buf->size)
        return AX_OK;
    size_t searched = buf->size - 1;
    int64_t next = unit->to;
    const char *newline;
    while (!(newline = memchr(buf->data + searched, '\n', buf->size - searched))) {
        searched = buf->size;
        AX_TRY(append_range(fd, path, next, CORPUS_UNIT_BYTES, buf));
        if (buf->size == searched)
            return AX_OK; /* the last line has no newline */
        next += (int64_t)(buf->size - searched);
    }
    buf->size = (size_t)(newline + 1 - buf->data);
    return AX_OK;
}

typedef struct line_place {
    int fd;
    const char *path, *key;
    int64_t offset; /* in the file */
} line_place;

static ax_status take_line(const line_place *place, const char *line, size_t bytes, corpus_take_fn take,
                           void *user)
{
    json_error_t error;
    json_t *object = json_loadb(line, bytes, JSON_ALLOW_NUL, &error);
    if (!object)
        return ax_fail(AX_ERR_DATA, "%s:%lld: no valid JSON: %s (column %d)", place->path,
                       line_number(place->fd, place->path, place->offset), error.text, error.column);
    const json_t *text = json_object_get(object, place->key);
    ax_status status = AX_OK;
    if (!json_is_string(text))
        status = ax_fail(AX_ERR_DATA, "%s:%lld: an object with a string \"%s\" is wanted on each line",
                         place->path, line_number(place->fd, place->path, place->offset), place->key);
    else if (json_string_length(text))
        status = take(user, json_string_value(text), json_string_length(text));
    json_decref(object);
    return status;
}

static bool is_blank(const char *line, size_t bytes)
{
    while (bytes && (*line == ' ' || *line == '\t' || *line == '\r'))
        line++, bytes--;
    return !bytes;
}

static ax_status take_lines(line_place *place, const char *text, size_t bytes, corpus_take_fn take,
                            void *user)
{
    for (const char *line = text, *end = text + bytes; line < end;) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        size_t n = (size_t)((newline ? newline : end) - line);
        if (!is_blank(line, n))
            AX_TRY(take_line(place, line, n, take, user));
        place->offset += (int64_t)n + 1;
        line += n + 1;
    }
    return AX_OK;
}

/* ---- units --------------------------------------------------------------------------------------- */

/* Trees may hold anything; but a file of which a part was taken is not silently cut. */
static bool may_skip(const corpus_file *file, const corpus_unit *unit) { return !file->named && !unit->from; }

static ax_status read_open(const ax_corpus *corpus, const corpus_unit *unit, int fd, ax_buf *buf,
                           corpus_take_fn take, void *user, const char **skipped)
{
    const corpus_file *file = &corpus->files[unit->file];
    size_t first = 0;
    ax_status status = file->jsonl ? read_lines(fd, file->path, unit, buf, &first)
                                   : append_range(fd, file->path, 0, file->bytes, buf);
    if (status == AX_ERR_DATA && may_skip(file, unit)) {
        *skipped = "it cannot be read";
        return AX_OK;
    }
    AX_TRY(status);
    if (file->jsonl) {
        line_place place = {fd, file->path, corpus->text_key, ax_max(unit->from - 1, 0) + (int64_t)first};
        return take_lines(&place, buf->data + first, buf->size - first, take, user);
    }
    const char *zero = memchr(buf->data, 0, buf->size);
    if (zero && !file->named) {
        *skipped = "it is no text (it holds a NUL byte)";
        return AX_OK;
    }
    AX_CHECK(!zero, AX_ERR_DATA, "%s is no text: it holds a NUL byte at offset %lld", file->path,
             (long long)(zero - buf->data));
    return buf->size ? take(user, buf->data, buf->size) : AX_OK;
}

ax_status corpus_read_unit(const ax_corpus *corpus, const corpus_unit *unit, ax_buf *scratch,
                           corpus_take_fn take, void *user, const char **skipped)
{
    const corpus_file *file = &corpus->files[unit->file];
    *skipped = NULL;
    scratch->size = 0;
    int fd = open(file->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && may_skip(file, unit)) {
        *skipped = "it cannot be opened";
        return AX_OK;
    }
    AX_CHECK(fd >= 0, AX_ERR_DATA, "cannot open %s: %s", file->path, strerror(errno));
    ax_status status = read_open(corpus, unit, fd, scratch, take, user, skipped);
    close(fd);
    return status;
}
