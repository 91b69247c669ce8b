/* Reads units of a corpus (parts that worker threads read independently). A text file is one document and one
 * unit, because cutting it could change its tokens. A JSONL file is cut into ranges of bytes; a unit has the
 * lines that start in its range. Any other JSON file is one unit. */
#include "corpus.h"
#include "source.h"

#include <errno.h>
#include <fcntl.h>
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
    *unit = (corpus_unit){file, from,
                          f->format == AX_DATA_JSONL ? ax_min(from + CORPUS_UNIT_BYTES, f->bytes) : f->bytes};
    return true;
}

static int file_open(const corpus_file *file)
{
    return file->copy >= 0 ? file->copy : open(file->path, O_RDONLY | O_CLOEXEC);
}

static void file_close(const corpus_file *file, int fd)
{
    if (fd >= 0 && fd != file->copy)
        close(fd);
}

ax_status corpus_append_range(int fd, const char *path, int64_t offset, int64_t bytes, ax_buf *buf)
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

/* ---- lines --------------------------------------------------------------------------------------- */

/* Returns the length of the byte order mark at the start of the text, or 0. */
static size_t bom_size(const char *text, size_t bytes)
{
    size_t n = strlen(DATA_BOM);
    return bytes >= n && !memcmp(text, DATA_BOM, n) ? n : 0;
}

ax_json_place corpus_place(const corpus_file *file, int64_t offset)
{
    ax_json_place place = {file->path, 1, 1};
    ax_buf part = {0};
    int fd = file_open(file);
    for (int64_t at = 0; fd >= 0 && at < offset; at += CORPUS_UNIT_BYTES) {
        part.size = 0;
        if (corpus_append_range(fd, file->path, at, ax_min(CORPUS_UNIT_BYTES, offset - at), &part) != AX_OK)
            break;
        for (size_t i = at ? 0 : bom_size(part.data, part.size); i < part.size; i++)
            if (part.data[i] == '\n') {
                place.line++;
                place.column = 1;
            } else {
                place.column += (part.data[i] & 0xC0) != 0x80; /* counts characters by their first bytes */
            }
    }
    file_close(file, fd);
    ax_buf_fini(&part);
    return place;
}

long long corpus_line_number(const corpus_file *file, int64_t offset)
{
    return corpus_place(file, offset).line;
}

/* Reads the lines of a JSONL file that start in the unit's range of bytes [from, to). Appends bytes of the
 * file to `buf`; the lines begin at buf->data + *first and reach to the end of `buf`. */
static ax_status read_lines(int fd, const char *path, const corpus_unit *unit, ax_buf *buf, size_t *first)
{
    int64_t start = ax_max(unit->from - 1, 0);
    AX_TRY(corpus_append_range(fd, path, start, unit->to - start, buf));
    *first = 0;
    if (unit->from) { /* a line starts at `from` only if the byte before it is a newline */
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
        AX_TRY(corpus_append_range(fd, path, next, CORPUS_UNIT_BYTES, buf));
        if (buf->size == searched)
            return AX_OK; /* the last line has no newline */
        next += (int64_t)(buf->size - searched);
    }
    buf->size = (size_t)(newline + 1 - buf->data);
    return AX_OK;
}

/* ---- units --------------------------------------------------------------------------------------- */

/* Returns true if a file that cannot be read or used is left out with a warning, instead of an error. A file
 * found below a directory is left out, because directories may hold anything. But this holds only for its
 * first unit. At a later unit the failure is an error, because otherwise the rest of the file would be
 * missing silently. */
static bool may_skip(const corpus_file *file, const corpus_unit *unit) { return !file->named && !unit->from; }

static ax_status take_json(const ax_corpus *corpus, const corpus_unit *unit, const char *text, size_t bytes,
                           int64_t offset, corpus_take_fn take, void *user, corpus_omitted *omitted)
{
    const corpus_file *file = &corpus->files[unit->file];
    corpus_records records = {.file = file,
                              .key = corpus->text_key,
                              .key_given = corpus->text_key_given,
                              .chat = corpus->chat,
                              .take = take,
                              .user = user,
                              .omitted = omitted,
                              .guessed = may_skip(file, unit) && data_has_suffix(file->path, ".json")};
    ax_status status = file->format == AX_DATA_JSON ? corpus_take_values(&records, text, bytes, offset)
                                                    : corpus_take_lines(&records, text, bytes, offset);
    corpus_records_fini(&records);
    return status;
}

static ax_status take_plain(const corpus_file *file, const char *text, size_t bytes, corpus_take_fn take,
                            void *user, corpus_omitted *omitted)
{
    const char *zero = memchr(text, 0, bytes);
    if (zero && !file->named) {
        omitted->file_why = data_not_text(text, bytes);
        return AX_OK;
    }
    if (zero)
        return data_refuse_nul(file->path, text, bytes, zero - text);
    return bytes ? take(user, text, bytes, NULL) : AX_OK;
}

static ax_status read_open(const ax_corpus *corpus, const corpus_unit *unit, int fd, ax_buf *buf,
                           corpus_take_fn take, void *user, corpus_omitted *omitted)
{
    const corpus_file *file = &corpus->files[unit->file];
    size_t first = 0;
    ax_status status = file->format == AX_DATA_JSONL
                           ? read_lines(fd, file->path, unit, buf, &first)
                           : corpus_append_range(fd, file->path, 0, file->bytes, buf);
    if (status == AX_ERR_DATA && may_skip(file, unit)) {
        omitted->file_why = "cannot be read";
        return AX_OK;
    }
    AX_TRY(status);
    if (!unit->from)
        first = bom_size(buf->data, buf->size);
    const char *text = buf->data + first;
    size_t bytes = buf->size - first;
    int64_t offset = ax_max(unit->from - 1, 0) + (int64_t)first;
    return file->format == AX_DATA_TEXT ? take_plain(file, text, bytes, take, user, omitted)
                                        : take_json(corpus, unit, text, bytes, offset, take, user, omitted);
}

ax_status corpus_read_unit(const ax_corpus *corpus, const corpus_unit *unit, ax_buf *scratch,
                           corpus_take_fn take, void *user, corpus_omitted *omitted)
{
    const corpus_file *file = &corpus->files[unit->file];
    *omitted = (corpus_omitted){0};
    scratch->size = 0;
    int fd = file_open(file);
    if (fd < 0 && may_skip(file, unit)) {
        omitted->file_why = "cannot be opened";
        return AX_OK;
    }
    AX_CHECK(fd >= 0, AX_ERR_DATA, "cannot open %s: %s", file->path, strerror(errno));
    ax_status status = read_open(corpus, unit, fd, scratch, take, user, omitted);
    file_close(file, fd);
    return status;
}
