/* The file of the texts that continue many prompts: what is there counts, so the command that was stopped
 * goes on. */
#include "prompts.h"

#include "axonn/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Writes bytes at the end of the file by one call, so that a line that is not whole can only be the last. */
static ax_status append(const text_file *f, const char *bytes, size_t n)
{
    ssize_t written;
    do
        written = write(f->fd, bytes, n);
    while (written < 0 && errno == EINTR);
    AX_CHECK(written == (ssize_t)n, AX_ERR_DATA, "%s cannot be written: %s", f->path,
             written < 0 ? strerror(errno) : "the disk is full");
    return AX_OK;
}

/* ---- texts that are there ------------------------------------------------------------------------ */

/* Appends to `out` the members in which the settings of the file differ from those of this call. */
static ax_status name_differences(const json_t *theirs, json_t *ours, ax_buf *out)
{
    const char *name;
    json_t *value;
    json_object_foreach(ours, name, value)
    {
        const json_t *other = json_object_get(theirs, name);
        if (json_equal(value, other) || (json_is_null(value) && !other))
            continue;
        AX_TRY(ax_buf_printf(out, "%s%s ", out->size ? ", " : "", name));
        AX_TRY(other ? ax_json_print(other, JSON_ENCODE_ANY, out) : ax_buf_printf(out, "nothing"));
        AX_TRY(ax_buf_printf(out, ", not "));
        AX_TRY(ax_json_print(value, JSON_ENCODE_ANY, out));
    }
    return AX_OK;
}

static ax_status refuse_file(const text_file *f)
{
    return ax_fail(
        AX_ERR_DATA,
        "%s exists, and its first line is not that of a file of axonn generate --prompts: give another "
        "--out",
        f->path);
}

static ax_status check_settings(const text_file *f, const char *line, size_t n, json_t *settings)
{
    ax_buf differences = {0};
    json_t *theirs = json_loadb(line, n, 0, NULL);
    const bool ours = json_is_string(json_object_get(theirs, "weights"));
    ax_status status = ours ? name_differences(theirs, settings, &differences) : AX_OK;
    json_decref(theirs);
    if (status == AX_OK && !ours)
        status = refuse_file(f);
    else if (status == AX_OK && differences.size)
        status = ax_fail(
            AX_ERR_DATA,
            "%s has texts that were made with %s: give the same, or another --out (or remove the file)",
            f->path, differences.data);
    ax_buf_fini(&differences);
    return status;
}

/* Marks the sample of a line as done, or records what is wrong with the line. */
static ax_status read_text(const text_file *f, cli_records *faults, int64_t number, const char *line,
                           size_t n)
{
    char *id;
    json_t *text;
    ax_status status =
        ax_json_parse(NULL, line, n, JSON_ALLOW_NUL, &text); /* *text is NULL if the line is damaged */
    AX_TRY(status == AX_ERR_DATA ? AX_OK : status);
    const json_t *sample = json_object_get(text, "sample");
    status = cli_record_id(json_object_get(text, "id"), &id);
    const cli_record *record = id ? cli_records_find(&f->prompts->records, id) : NULL;
    if (status == AX_OK && (!id || !json_is_integer(sample)))
        status = cli_records_fault(faults, number, "damaged: not a text with an id and a sample");
    else if (status == AX_OK && !record)
        status = cli_records_fault(faults, number, "the id %s is none of the prompts'", id);
    else if (status == AX_OK && !prompts_mark(f->prompts, (size_t)(record - f->prompts->records.record),
                                              json_integer_value(sample)))
        status = cli_records_fault(faults, number, "sample %lld of id %s is there twice, or not asked for",
                                   (long long)json_integer_value(sample), id);
    free(id);
    json_decref(text);
    return status;
}

/* Reads the whole lines of the file; *whole is their size. */
static ax_status read_texts(const text_file *f, const char *text, size_t size, json_t *settings,
                            size_t *whole)
{
    cli_records faults = {.path = f->path};
    ax_status status = AX_OK;
    *whole = 0;
    for (int64_t number = 1; status == AX_OK; number++) {
        const char *line = text + *whole, *end = memchr(line, '\n', size - *whole);
        if (!end)
            break;
        status = number == 1 ? check_settings(f, line, (size_t)(end - line), settings)
                             : read_text(f, &faults, number, line, (size_t)(end - line));
        *whole = (size_t)(end - text) + 1;
    }
    if (status == AX_OK)
        status = cli_records_check(&faults);
    cli_records_fini(&faults);
    return status;
}

/* ---- the file ------------------------------------------------------------------------------------ */

/* Reads what is in the file, drops a line that was not written to its end, and writes the settings if there
 * are none yet. */
static ax_status go_on(text_file *f, json_t *settings)
{
    char *text;
    size_t size, whole;
    AX_TRY(ax_json_print(settings, JSON_COMPACT, &f->line));
    AX_TRY(ax_buf_add(&f->line, "\n", 1));
    AX_TRY(ax_file_read(f->path, &text, &size));
    ax_status status = read_texts(f, text, size, settings, &whole);
    if (status == AX_OK && !whole && (size >= f->line.size || memcmp(text, f->line.data, size) != 0))
        status = refuse_file(f); /* not even the beginning of our first line */
    free(text);
    AX_TRY(status);
    AX_CHECK(whole == size || !ftruncate(f->fd, (off_t)whole), AX_ERR_DATA,
             "%s: its last line is not whole, and cannot be removed: %s", f->path, strerror(errno));
    if (whole)
        return AX_OK;
    return append(f, f->line.data, f->line.size);
}

ax_status text_file_open(const char *path, json_t *settings, prompt_list *prompts, text_file *out)
{
    *out = (text_file){.path = path, .prompts = prompts};
    ax_status status = AX_OK;
    struct stat is;
    out->fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (!settings)
        status = ax_fail(AX_ERR_MEMORY, "not enough memory for the settings of %s", path);
    else if (out->fd < 0)
        status = ax_fail(AX_ERR_DATA, "%s cannot be opened for writing: %s", path, strerror(errno));
    else if (fstat(out->fd, &is) || !S_ISREG(is.st_mode))
        status = ax_fail(AX_ERR_USAGE,
                         "%s is not a regular file: give a file that a later call can go on with", path);
    else if (flock(out->fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        status =
            ax_fail(AX_ERR_USAGE, "another process writes to %s: wait for it, or give another --out", path);
    else
        status = go_on(out, settings);
    json_decref(settings);
    return status;
}

ax_status text_file_add(text_file *f, const ax_continued *one, bool said)
{
    const cli_record *record = &f->prompts->records.record[one->prompt];
    json_t *text = said ? ax_json_text(one->text, one->size) : json_null();
    char *printed = json_dumps(text, JSON_ENCODE_ANY);
    f->line.size = 0;
    ax_status status = printed
                           ? ax_buf_printf(&f->line, "{\"id\":%s,\"sample\":%lld,\"text\":%s,\"tokens\":[",
                                           record->id, (long long)one->sample, printed)
                           : ax_fail(AX_ERR_MEMORY, "not enough memory for the line of a text");
    json_decref(text);
    free(printed);
    for (size_t i = 0; i < one->n && status == AX_OK; i++)
        status = ax_buf_printf(&f->line, "%s%d", i ? "," : "", one->ids[i]);
    if (status == AX_OK)
        status = ax_buf_printf(&f->line, "],\"finish\":\"%s\"%s}\n",
                               one->finish == AX_FINISH_STOP ? "stop" : "length", record->rest);
    return status == AX_OK ? append(f, f->line.data, f->line.size) : status;
}

ax_status text_file_end(text_file *f)
{
    const int fd = f->fd;
    AX_CHECK(fsync(fd) == 0, AX_ERR_DATA, "%s cannot be written: %s", f->path, strerror(errno));
    f->fd = -1;
    AX_CHECK(close(fd) == 0, AX_ERR_DATA, "%s cannot be written: %s", f->path, strerror(errno));
    return AX_OK;
}

void text_file_close(text_file *f)
{
    if (f->path && f->fd >= 0)
        close(f->fd);
    ax_buf_fini(&f->line);
}
