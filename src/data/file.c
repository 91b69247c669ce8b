/* Reads token files with pread, never with mmap: a mapped file that is truncated kills the process that
 * touches it, while a short read becomes an error with the file's name. */
#include "source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* Opens a file for reading. With O_NONBLOCK, open() does not wait for the writer of a named pipe; the caller
 * then refuses the pipe. A data set may have more shards (files) than the soft limit of open files,
 * RLIMIT_NOFILE. When this limit is reached, it is raised to the hard limit. */
static int open_file(const char *path)
{
    struct rlimit limit;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0 || errno != EMFILE || getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= limit.rlim_max)
        return fd;
    limit.rlim_cur = limit.rlim_max;
    return setrlimit(RLIMIT_NOFILE, &limit) ? -1 : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

ax_status data_file_open(const char *path, data_file *out)
{
    struct stat info;
    *out = (data_file){.fd = open_file(path)};
    AX_CHECK(out->fd >= 0, AX_ERR_DATA, "cannot open %s: %s", path, strerror(errno));
    ax_status status = ax_strdup(path, &out->path);
    if (status == AX_OK && fstat(out->fd, &info))
        status = ax_fail(AX_ERR_DATA, "cannot read %s: %s", path, strerror(errno));
    else if (status == AX_OK && !S_ISREG(info.st_mode))
        status = ax_fail(AX_ERR_DATA, "%s must be a regular file, not a directory, pipe or device", path);
    if (status != AX_OK)
        data_file_close(out);
    else
        out->bytes = info.st_size;
    return status;
}

void data_file_close(data_file *file)
{
    if (file->path)
        close(file->fd);
    free(file->path);
    *file = (data_file){0};
}

ax_status data_file_read(const data_file *file, int64_t offset, void *out, int64_t bytes)
{
    char *to = out;
    while (bytes > 0) {
        ssize_t n = pread(file->fd, to, (size_t)bytes, offset);
        if (n < 0 && errno == EINTR)
            continue;
        AX_CHECK(n >= 0, AX_ERR_DATA, "cannot read %s: %s", file->path, strerror(errno));
        AX_CHECK(n > 0, AX_ERR_DATA,
                 "%s became shorter while it was in use: it had %lld bytes when it was opened, and now "
                 "none at offset %lld; start again when nothing writes to it",
                 file->path, (long long)file->bytes, (long long)offset);
        to += n;
        offset += n;
        bytes -= n;
    }
    return AX_OK;
}

void data_file_want(const data_file *file, int64_t offset, int64_t bytes)
{
    posix_fadvise(file->fd, offset, bytes, POSIX_FADV_WILLNEED);
}

ax_status data_window_get(data_window *w, int64_t i, int64_t *out)
{
    if (i < w->first || i >= w->first + w->count) {
        /* The new window (the elements held in memory) begins at i if the caller reads forward, and ends at i
         * if the caller reads backward. */
        int64_t first = i < w->first ? ax_max(i - DATA_WINDOW + 1, 0) : i;
        int64_t count = ax_min(DATA_WINDOW, w->n - first);
        w->count = 0;
        AX_TRY(data_file_read(w->file, w->at + 8 * first, w->value, 8 * count));
        w->first = first;
        w->count = count;
    }
    *out = w->value[i - w->first];
    return AX_OK;
}
