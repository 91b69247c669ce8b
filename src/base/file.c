/* Reads whole files, writes files so that a crash leaves the old or the new content, creates, lists and
 * removes directories. */
#include "axonn/base.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

const char *ax_temporary_dir(void)
{
    const char *named = getenv("TMPDIR");
    return named && *named ? named : "/tmp";
}

double ax_dir_available(const char *dir)
{
    struct statvfs info;
    return statvfs(dir, &info) ? INFINITY : (double)info.f_bavail * (double)info.f_frsize;
}

ax_status ax_dir_has_space(const char *dir, int64_t bytes, const char *what)
{
    char needs[32], has[32];
    const double available = ax_dir_available(dir);
    AX_CHECK((double)bytes <= available, AX_ERR_DATA,
             "no space in %s: %s needs %s (%lld bytes) in addition to the files there, but %s are free; free "
             "some, or choose another directory",
             dir, what, ax_format_bytes((double)bytes, needs), (long long)bytes,
             ax_format_bytes(available, has));
    return AX_OK;
}

bool ax_path_exists(const char *path) { return access(path, F_OK) == 0; }

bool ax_path_is_given(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

bool ax_path_is_dir(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* Writes the directory of `path` to `out`, with all symbolic links resolved, and returns the last component
 * of `path`. Returns NULL if the directory does not exist or the path is too long. */
static const char *resolve_entry(const char *path, char out[PATH_MAX])
{
    char dir[PATH_MAX];
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if ((size_t)(name - path) >= sizeof dir)
        return NULL;
    snprintf(dir, sizeof dir, "%.*s", (int)(name - path), path);
    return realpath(dir[0] ? dir : ".", out) ? name : NULL;
}

bool ax_path_same(const char *a, const char *b)
{
    char dir_a[PATH_MAX], dir_b[PATH_MAX];
    const char *name_a = resolve_entry(a, dir_a), *name_b = resolve_entry(b, dir_b);
    return name_a && name_b ? !strcmp(name_a, name_b) && !strcmp(dir_a, dir_b) : !strcmp(a, b);
}

ax_status ax_path_join(const char *dir, const char *name, char **out)
{
    if (name[0] == '/' || !dir[0])
        return ax_strdup(name, out);
    size_t n = strlen(dir) + strlen(name) + 2;
    AX_TRY(ax_calloc(n, 1, out));
    snprintf(*out, n, "%s%s%s", dir, dir[strlen(dir) - 1] == '/' ? "" : "/", name);
    return AX_OK;
}

static ax_status fail_size(const char *path, int64_t most)
{
    char text[32];
    return ax_fail(AX_ERR_DATA, "%s is larger than %s, the maximum here: is it the right file?", path,
                   ax_format_bytes((double)most, text));
}

static ax_status fail_open(const char *path, int error)
{
    char target[512];
    const ssize_t n = error == ENOENT ? readlink(path, target, sizeof target) : -1;
    return n < 0
               ? ax_fail(AX_ERR_DATA, "cannot open %s: %s", path, strerror(error))
               : ax_fail(AX_ERR_DATA,
                         "cannot open %s: it is a link to %.*s, which does not exist: copy the file that it "
                         "leads to (cp -L), or remove the link",
                         path, (int)n, target);
}

/* With O_NONBLOCK, open does not wait for a writer of a named pipe; ax_file_wait waits for the pipe's bytes
 * instead. The flag is cleared afterwards, so that reads block. */
ax_status ax_file_open(const char *path, int *fd)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        return fail_open(path, errno);
    int flags = fcntl(*fd, F_GETFL);
    if (flags >= 0 && !fcntl(*fd, F_SETFL, flags & ~O_NONBLOCK))
        return AX_OK;
    ax_status status = ax_fail(AX_ERR_DATA, "cannot open %s: %s", path, strerror(errno));
    close(*fd);
    *fd = -1;
    return status;
}

/* The caller polls with this function before each read, because a signal interrupts a poll, while the system
 * restarts an interrupted read. The poll has a timeout, because a signal between the check of ax_signal_noted
 * and the poll does not interrupt the poll. */
ax_status ax_file_wait(int fd, const char *path)
{
    enum { PATIENCE_MS = 100 };
    struct pollfd wanted = {.fd = fd, .events = POLLIN};
    do
        AX_CHECK(!ax_signal_noted(), AX_ERR_SIGNAL, "stopped by a signal while waiting for bytes of %s",
                 path);
    while (poll(&wanted, 1, PATIENCE_MS) <= 0);
    return AX_OK;
}

ax_status ax_file_read_stream(int fd, const char *path, int64_t most, ax_buf *buf)
{
    enum { CHUNK = 65536 };
    for (;;) {
        AX_TRY(ax_buf_reserve(buf, CHUNK));
        AX_TRY(ax_file_wait(fd, path));
        ssize_t n = read(fd, buf->data + buf->size, CHUNK);
        if (n < 0 && errno == EINTR)
            continue;
        AX_CHECK(n >= 0, AX_ERR_DATA, "cannot read %s: %s", path, strerror(errno));
        buf->size += (size_t)n;
        buf->data[buf->size] = 0;
        if (!n)
            return AX_OK;
        if ((int64_t)buf->size > most)
            return fail_size(path, most);
    }
}

static ax_status read_open(int fd, const char *path, int64_t most, ax_buf *buf)
{
    struct stat info;
    AX_CHECK(!fstat(fd, &info), AX_ERR_DATA, "cannot read %s: %s", path, strerror(errno));
    AX_CHECK(!S_ISDIR(info.st_mode), AX_ERR_DATA, "%s is a directory, not a file", path);
    if (!S_ISREG(info.st_mode))
        return ax_file_read_stream(fd, path, ax_min(most, 1 << 30), buf);
    if (info.st_size > most)
        return fail_size(path, most);
    AX_TRY(ax_buf_reserve(buf, (size_t)info.st_size));
    AX_TRY(ax_pread_all(fd, buf->data, (size_t)info.st_size, 0, path));
    buf->size = (size_t)info.st_size;
    buf->data[buf->size] = 0;
    return AX_OK;
}

ax_status ax_file_read_most(const char *path, int64_t most, char **data, size_t *size)
{
    ax_buf buf = {0};
    *data = NULL;
    int fd;
    AX_TRY(ax_file_open(path, &fd));
    ax_status status = read_open(fd, path, most, &buf);
    close(fd);
    if (status != AX_OK) {
        ax_buf_fini(&buf);
        return status;
    }
    *data = buf.data;
    *size = buf.size;
    return AX_OK;
}

ax_status ax_file_read(const char *path, char **data, size_t *size)
{
    return ax_file_read_most(path, INT64_MAX, data, size);
}

ax_status ax_write_all(int fd, const void *data, size_t size, const char *path)
{
    const char *p = data;
    while (size) {
        ssize_t n = write(fd, p, size);
        if (n < 0 && errno == EINTR)
            continue;
        AX_CHECK(n >= 0, AX_ERR_DATA, "cannot write %s: %s", path, strerror(errno));
        p += n;
        size -= (size_t)n;
    }
    return AX_OK;
}

ax_status ax_pwrite_all(int fd, const void *data, size_t size, int64_t offset, const char *path)
{
    const char *p = data;
    while (size) {
        ssize_t n = pwrite(fd, p, size, offset);
        if (n < 0 && errno == EINTR)
            continue;
        AX_CHECK(n >= 0, AX_ERR_DATA, "cannot write %s: %s", path, strerror(errno));
        p += n;
        size -= (size_t)n;
        offset += n;
    }
    return AX_OK;
}

ax_status ax_pread_all(int fd, void *data, size_t size, int64_t offset, const char *path)
{
    char *p = data;
    while (size) {
        ssize_t n = pread(fd, p, size, offset);
        if (n < 0 && errno == EINTR)
            continue;
        AX_CHECK(n >= 0, AX_ERR_DATA, "cannot read %s: %s", path, strerror(errno));
        AX_CHECK(n > 0, AX_ERR_DATA,
                 "%s is truncated: %zu bytes are missing at offset %lld; get or write the file again", path,
                 size, (long long)offset);
        p += n;
        size -= (size_t)n;
        offset += n;
    }
    return AX_OK;
}

ax_status ax_dir_sync(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    AX_CHECK(fd >= 0, AX_ERR_DATA, "cannot open directory %s: %s", path, strerror(errno));
    int failed = fsync(fd), error = errno;
    close(fd);
    AX_CHECK(!failed || error == EINVAL, AX_ERR_DATA, "cannot flush directory %s to disk: %s", path,
             strerror(error));
    return AX_OK;
}

/* Writes and syncs the file `to`. Errors name `path`, the file that the caller knows. */
static ax_status create(const char *to, const char *path, int *fd)
{
    *fd = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    AX_CHECK(*fd >= 0, AX_ERR_DATA, "cannot create %s: %s", path, strerror(errno));
    return AX_OK;
}

/* Flushes and closes a file after its last write, whose status is `status`. */
static ax_status sync_and_close(int fd, const char *path, ax_status status)
{
    if (status == AX_OK && fsync(fd))
        status = ax_fail(AX_ERR_DATA, "cannot flush %s to disk: %s", path, strerror(errno));
    if (close(fd) && status == AX_OK)
        status = ax_fail(AX_ERR_DATA, "%s could not be written completely: %s", path, strerror(errno));
    return status;
}

static ax_status write_and_sync(const char *to, const char *path, const void *data, size_t size)
{
    int fd;
    AX_TRY(create(to, path, &fd));
    return sync_and_close(fd, path, ax_write_all(fd, data, size, path));
}

static ax_status copy_bytes(int in, const char *from, int out, const char *to)
{
    char bytes[1 << 14];
    for (;;) {
        ssize_t n = read(in, bytes, sizeof bytes);
        if (n < 0 && errno == EINTR)
            continue;
        AX_CHECK(n >= 0, AX_ERR_DATA, "cannot read %s: %s", from, strerror(errno));
        if (!n)
            return AX_OK;
        AX_TRY(ax_write_all(out, bytes, (size_t)n, to));
    }
}

ax_status ax_file_copy_synced(const char *from, const char *to)
{
    int in, out;
    AX_TRY(ax_file_open(from, &in));
    ax_status status = create(to, to, &out);
    if (status == AX_OK)
        status = sync_and_close(out, to, copy_bytes(in, from, out, to));
    close(in);
    return status;
}

ax_status ax_file_write_synced(const char *path, const void *data, size_t size)
{
    return write_and_sync(path, path, data, size);
}

ax_status ax_file_to_replace(const char *path, char **out)
{
    struct stat info;
    *out = NULL;
    if (!stat(path, &info)) {
        AX_CHECK(S_ISREG(info.st_mode), AX_ERR_DATA,
                 "cannot create %s: %s with this name exists; write to another path", path,
                 S_ISDIR(info.st_mode)    ? "a directory"
                 : S_ISFIFO(info.st_mode) ? "a pipe"
                 : S_ISSOCK(info.st_mode) ? "a socket"
                                          : "a device");
        *out = realpath(path, NULL);
        AX_CHECK(*out, AX_ERR_DATA, "cannot create %s: %s", path, strerror(errno));
        return AX_OK;
    }
    AX_CHECK(lstat(path, &info) || !S_ISLNK(info.st_mode), AX_ERR_DATA,
             "cannot create %s: it is a symbolic link whose target does not exist; remove the link, or write "
             "to another path",
             path);
    return ax_strdup(path, out);
}

static ax_status write_and_rename(const char *path, const void *data, size_t size)
{
    size_t n = strlen(path) + 32;
    char *aside;
    AX_TRY(ax_calloc(n, 1, &aside));
    snprintf(aside, n, "%s.tmp.%ld", path, (long)getpid());
    ax_status status = write_and_sync(aside, path, data, size);
    if (status == AX_OK && rename(aside, path))
        status = ax_fail(AX_ERR_DATA, "cannot create %s: %s", path, strerror(errno));
    if (status != AX_OK)
        unlink(aside);
    free(aside);
    AX_TRY(status);
    char dir[4096];
    snprintf(dir, sizeof dir, "%s", path);
    char *slash = strrchr(dir, '/');
    if (slash)
        *(slash == dir ? slash + 1 : slash) = 0;
    return ax_dir_sync(slash ? dir : ".");
}

ax_status ax_file_write_atomic(const char *path, const void *data, size_t size)
{
    char *to;
    AX_TRY(ax_file_to_replace(path, &to));
    ax_status status = write_and_rename(to, data, size);
    free(to);
    return status;
}

ax_status ax_mkdirs(const char *path)
{
    char *copy;
    AX_TRY(ax_strdup(path, &copy));
    ax_status status = AX_OK;
    for (char *p = copy + 1; status == AX_OK; p++) {
        if (*p != '/' && *p)
            continue;
        char keep = *p;
        *p = 0;
        if (mkdir(copy, 0777) && errno != EEXIST)
            status = ax_fail(AX_ERR_DATA, "cannot create directory %s: %s", copy, strerror(errno));
        else if (!ax_path_is_dir(copy))
            status = ax_fail(
                AX_ERR_DATA,
                "%s must be a directory, but exists and is none: remove it, or choose another path", copy);
        *p = keep;
        if (!keep)
            break;
    }
    free(copy);
    return status;
}

ax_status ax_dir_list(const char *dir, ax_strings *out)
{
    *out = (ax_strings){0};
    DIR *entries = opendir(dir);
    AX_CHECK(entries, AX_ERR_DATA, "cannot list the directory %s: %s", dir, strerror(errno));
    ax_status status = AX_OK;
    const struct dirent *entry;
    while (status == AX_OK && (errno = 0, entry = readdir(entries)))
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            status = ax_strings_add(out, "%s", entry->d_name);
    if (status == AX_OK && errno)
        status = ax_fail(AX_ERR_DATA, "cannot list the directory %s: %s", dir, strerror(errno));
    closedir(entries);
    ax_strings_sort(out);
    return status;
}

bool ax_dir_has(const char *dir, const char *name)
{
    char *path;
    if (ax_path_join(dir, name, &path) != AX_OK)
        return false;
    bool there = ax_path_exists(path);
    free(path);
    return there;
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    return remove(path);
}

ax_status ax_remove_tree(const char *path)
{
    struct stat info;
    if (lstat(path, &info) && errno == ENOENT)
        return AX_OK;
    AX_CHECK(!nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS), AX_ERR_DATA,
             "cannot remove %s and what it holds: %s", path, strerror(errno));
    return AX_OK;
}
