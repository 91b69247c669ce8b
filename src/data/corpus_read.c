/* Reads units of a corpus (parts that worker threads read independently). A text file is one document and one
 * unit, because cutting it could change its tokens. A JSONL file is cut into ranges of bytes; a unit has the
 * lines that start in its range. Any other JSON file is one unit. */
#include "corpus.h"
#include "source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int file_open(const corpus_file *file)
{
    return file->copy >= 0 ? file->copy : open(file->path, O_RDONLY | O_CLOEXEC);
}

static void file_close(const corpus_file *file, int fd)
{
    if (fd >= 0 && fd != file->copy)
        close(fd);
}

void corpus_unit_fini(corpus_unit *unit)
{
    ax_buf_fini(&unit->text);
    free(unit->failure);
    unit->failure = NULL;
}

/* Fails if `bytes` bytes that are read whole (a text is one document, a line of JSONL one record) and as many
 * bytes of tokens cannot be in memory together. `ahead`: so many of the bytes are in memory already. */
static ax_status check_memory(const corpus_file *file, int64_t bytes, int64_t ahead)
{
    enum { ALWAYS = 64 << 20, MIB = 1 << 20 };
    if (bytes < ALWAYS)
        return AX_OK;
    const int64_t available = ax_memory_available();
    AX_CHECK(
        available < 0 || 2 * bytes - ahead <= available, AX_ERR_MEMORY,
        "%s is too large to be read: %s of %lld MiB%s must be in memory with its tokens, and %lld MiB are "
        "available: divide it (split -C 100M), or write it as JSONL, one document on each line",
        file->path, file->format == AX_DATA_JSONL ? "a line" : "a text", (long long)(bytes / MIB),
        file->packing ? " or more" : "", (long long)(available / MIB));
    return AX_OK;
}

/* ---- units of compressed files ------------------------------------------------------------------- */

/* Appends decompressed text to `text` until it holds a unit: the whole file, or at least CORPUS_UNIT_BYTES
 * that contain the end of a line. Sets *end if the file has no more. */
static ax_status unpack_unit(ax_corpus *corpus, const corpus_file *file, ax_buf *text, bool *end)
{
    enum { PART = 1 << 18 };
    bool lines = file->format == AX_DATA_JSONL;
    size_t checked = 0; /* size of the text when memory was checked */
    for (size_t got, searched = 0; !*end; searched = text->size) {
        if (lines && text->size >= CORPUS_UNIT_BYTES &&
            memchr(text->data + searched, '\n', text->size - searched))
            return AX_OK;
        if (text->size >= 2 * checked) {
            checked = text->size;
            AX_TRY(check_memory(file, 2 * (int64_t)checked, (int64_t)checked));
        }
        AX_TRY(ax_buf_reserve(text, PART + 1));
        AX_TRY(data_unpack_read(corpus->packed.unpacker, text->data + text->size, PART, &got));
        text->size += got;
        text->data[text->size] = 0;
        *end = got < PART;
    }
    return AX_OK;
}

/* Moves what follows the last end of a line from `text` to corpus->packed.ahead. */
static ax_status cut_lines(ax_corpus *corpus, ax_buf *text)
{
    const char *newline = memrchr(text->data, '\n', text->size);
    size_t keep = (size_t)(newline + 1 - text->data);
    AX_TRY(ax_buf_add(&corpus->packed.ahead, text->data + keep, text->size - keep));
    text->size = keep;
    text->data[keep] = 0;
    return AX_OK;
}

static void close_packed(ax_corpus *corpus)
{
    data_unpack_end(&corpus->packed.unpacker);
    if (corpus->packed.fd >= 0)
        close(corpus->packed.fd);
    corpus->packed.fd = -1;
}

static ax_status open_packed(ax_corpus *corpus, const corpus_file *file)
{
    corpus->packed.used = 0;
    corpus->packed.fd = file->copy >= 0 ? dup(file->copy) : open(file->path, O_RDONLY | O_CLOEXEC);
    AX_CHECK(corpus->packed.fd >= 0, AX_ERR_DATA, "cannot open %s: %s", file->path, strerror(errno));
    return data_unpack_start(corpus->packed.fd, file->path, file->packing, &corpus->packed.unpacker);
}

/* Fills *unit with the next text of the file. After the last text, the file is closed. */
static ax_status fill_packed(ax_corpus *corpus, corpus_file *file, corpus_unit *unit)
{
    bool end = false;
    if (unit->first)
        AX_TRY(open_packed(corpus, file));
    unit->text = corpus->packed.ahead;
    corpus->packed.ahead = (ax_buf){0};
    AX_TRY(unpack_unit(corpus, file, &unit->text, &end));
    if (!end)
        AX_TRY(cut_lines(corpus, &unit->text));
    unit->to = unit->from + (int64_t)unit->text.size;
    unit->share = data_unpack_offset(corpus->packed.unpacker) - corpus->packed.used;
    corpus->packed.used += unit->share;
    if (!end)
        return AX_OK;
    close_packed(corpus);
    corpus->bytes += unit->to - file->bytes; /* from now on the bytes of the text count */
    file->bytes = unit->to;
    return AX_OK;
}

/* Sets *unit to the text of a compressed file from offset `from` on. Returns false if there is none. */
static bool next_packed(ax_corpus *corpus, int64_t file, int64_t from, corpus_unit *unit)
{
    *unit = (corpus_unit){.file = file, .from = from, .to = from, .first = !from, .packed = true};
    if (from && !corpus->packed.unpacker)
        return false;
    if (fill_packed(corpus, &corpus->files[file], unit) == AX_OK)
        return unit->text.size > 0;
    close_packed(corpus);
    ax_buf_fini(&unit->text);
    if (ax_strdup(ax_error_message(), &unit->failure) != AX_OK)
        unit->failure = NULL;
    unit->to = from + 1; /* so that the next call goes to the next file */
    return true;
}

bool corpus_next_unit(ax_corpus *corpus, corpus_unit *unit)
{
    int64_t file = unit->file, from = unit->to;
    for (; file < corpus->n; file++, from = 0) {
        const corpus_file *f = &corpus->files[file];
        if (f->packing ? next_packed(corpus, file, from, unit) : from < f->bytes)
            break;
        if (f->packing)
            corpus_unit_fini(unit);
    }
    if (file == corpus->n) {
        *unit = (corpus_unit){.file = file};
        return false;
    }
    const corpus_file *f = &corpus->files[file];
    if (f->packing)
        return true;
    int64_t to = f->format == AX_DATA_JSONL ? ax_min(from + CORPUS_UNIT_BYTES, f->bytes) : f->bytes;
    *unit = (corpus_unit){.file = file, .from = from, .to = to, .share = to - from, .first = !from};
    return true;
}

/* ---- bytes --------------------------------------------------------------------------------------- */

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

/* Moves the place behind the n bytes. */
static void advance(ax_json_place *place, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i] == '\n') {
            place->line++;
            place->column = 1;
        } else {
            place->column += (bytes[i] & 0xC0) != 0x80; /* counts characters by their first bytes */
        }
}

/* Reads the next `bytes` bytes of the text, from offset `at` on, into `part`. */
static ax_status read_part(const corpus_file *file, int fd, data_unpacker *unpacker, int64_t at,
                           int64_t bytes, ax_buf *part)
{
    part->size = 0;
    if (!unpacker)
        return corpus_append_range(fd, file->path, at, bytes, part);
    AX_TRY(ax_buf_reserve(part, (size_t)bytes));
    return data_unpack_read(unpacker, part->data, (size_t)bytes, &part->size);
}

ax_json_place corpus_place(const corpus_file *file, int64_t offset)
{
    ax_json_place place = {file->path, 1, 1};
    ax_buf part = {0};
    data_unpacker *unpacker = NULL;
    int fd = file_open(file);
    bool good =
        fd >= 0 && (!file->packing || data_unpack_start(fd, file->path, file->packing, &unpacker) == AX_OK);
    for (int64_t at = 0; good && at < offset; at += CORPUS_UNIT_BYTES) {
        good = read_part(file, fd, unpacker, at, ax_min(CORPUS_UNIT_BYTES, offset - at), &part) == AX_OK;
        size_t skipped = at ? 0 : bom_size(part.data, part.size);
        if (good)
            advance(&place, part.data + skipped, part.size - skipped);
    }
    data_unpack_end(&unpacker);
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
                              .ignore = &corpus->ignore,
                              .take = take,
                              .user = user,
                              .omitted = omitted,
                              .refused = corpus->refused,
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
        return data_refuse_nul(file->path, file->packing, text, bytes, zero - text);
    return bytes ? take(user, text, bytes, NULL) : AX_OK;
}

/* Passes the documents of a unit to `take`. Its text is the bytes of `buf` from `first` on, which begin at
 * `offset` of the file's text. */
static ax_status take_unit(const ax_corpus *corpus, const corpus_unit *unit, const ax_buf *buf, size_t first,
                           int64_t offset, corpus_take_fn take, void *user, corpus_omitted *omitted)
{
    const corpus_file *file = &corpus->files[unit->file];
    if (!unit->from) {
        first = bom_size(buf->data, buf->size);
        offset = (int64_t)first;
        ax_status status = data_refuse_wide(file->path, file->packing, buf->data, buf->size);
        if (status != AX_OK && may_skip(file, unit)) {
            omitted->file_why = data_not_text(buf->data, buf->size);
            return AX_OK;
        }
        AX_TRY(status);
    }
    const char *text = buf->data + first;
    size_t bytes = buf->size - first;
    return file->format == AX_DATA_TEXT ? take_plain(file, text, bytes, take, user, omitted)
                                        : take_json(corpus, unit, text, bytes, offset, take, user, omitted);
}

static ax_status read_open(const ax_corpus *corpus, const corpus_unit *unit, int fd, ax_buf *buf,
                           corpus_take_fn take, void *user, corpus_omitted *omitted)
{
    const corpus_file *file = &corpus->files[unit->file];
    size_t first = 0;
    if (file->format != AX_DATA_JSONL)
        AX_TRY(check_memory(file, file->bytes, 0));
    ax_status status = file->format == AX_DATA_JSONL
                           ? read_lines(fd, file->path, unit, buf, &first)
                           : corpus_append_range(fd, file->path, 0, file->bytes, buf);
    if (status == AX_ERR_DATA && may_skip(file, unit)) {
        omitted->file_why = "cannot be read";
        return AX_OK;
    }
    AX_TRY(status);
    int64_t offset = ax_max(unit->from - 1, 0) + (int64_t)first;
    return take_unit(corpus, unit, buf, first, offset, take, user, omitted);
}

static ax_status read_packed(const ax_corpus *corpus, corpus_unit *unit, corpus_take_fn take, void *user,
                             corpus_omitted *omitted)
{
    ax_status status = unit->text.data
                           ? take_unit(corpus, unit, &unit->text, 0, unit->from, take, user, omitted)
                           : ax_fail(AX_ERR_DATA, "%s", unit->failure ? unit->failure : "not enough memory");
    corpus_unit_fini(unit);
    return status;
}

ax_status corpus_read_unit(const ax_corpus *corpus, corpus_unit *unit, ax_buf *scratch, corpus_take_fn take,
                           void *user, corpus_omitted *omitted)
{
    const corpus_file *file = &corpus->files[unit->file];
    *omitted = (corpus_omitted){0};
    scratch->size = 0;
    if (unit->packed)
        return read_packed(corpus, unit, take, user, omitted);
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
