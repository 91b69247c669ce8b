/* Copies the bytes of pipes (/dev/stdin, process substitution, named pipes) to temporary files, so that they
 * can be read like files. */
#include "corpus.h"
#include "source.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

static ax_status create_copy(const char *path, int *fd)
{
    char name[4096];
    snprintf(name, sizeof name, "%s/axonn-pipe-XXXXXX", ax_temporary_dir());
    *fd = mkostemp(name, O_CLOEXEC);
    AX_CHECK(*fd >= 0, AX_ERR_DATA,
             "cannot copy %s to %s: %s (set the environment variable TMPDIR to another directory)", path,
             name, strerror(errno));
    unlink(name);
    return AX_OK;
}

/* Waits until there are bytes to read, or the pipe ends. Fails if a signal arrives or `progress` returns
 * false. */
static ax_status wait_for_bytes(int fd, const corpus_file *file, ax_data_progress_fn progress, void *user)
{
    enum { PATIENCE_MS = 100 };
    struct pollfd wanted = {.fd = fd, .events = POLLIN};
    ax_data_progress copied = {.bytes_done = file->bytes};
    do
        AX_CHECK(!ax_signal_noted() && (!progress || progress(user, &copied)), AX_ERR_SIGNAL,
                 "reading %s was stopped, by a signal or by the caller", file->path);
    while (poll(&wanted, 1, PATIENCE_MS) <= 0);
    return AX_OK;
}

/* Fails because of a NUL byte at `offset`. `head` holds the first n bytes of the pipe, which tell the format
 * that the message names; n is 0 if these bytes are no longer in memory. */
static ax_status refuse_nul(const corpus_file *file, const char *head, size_t n, int64_t offset)
{
    ax_status status = data_refuse_nul(file->path, DATA_PLAIN, head, n, offset);
    ax_error_context("%s is a pipe, which is read as text (a token file must be a regular file)", file->path);
    return status;
}

static ax_status copy_all(int fd, corpus_file *file, ax_data_progress_fn progress, void *user,
                          XXH3_state_t *hash)
{
    char chunk[1 << 14];
    for (ssize_t n; (n = read(fd, chunk, sizeof chunk)) != 0;) {
        AX_CHECK(n > 0 || errno == EINTR, AX_ERR_DATA, "cannot read %s: %s", file->path, strerror(errno));
        if (n < 0)
            continue;
        /* Refuses NUL bytes early, so that reading /dev/zero ends. */
        if (!file->bytes)
            file->packing = data_packing_of(chunk, (size_t)n);
        const char *zero = file->packing ? NULL : memchr(chunk, 0, (size_t)n);
        if (zero)
            return refuse_nul(file, chunk, file->bytes ? 0 : (size_t)n, file->bytes + (zero - chunk));
        AX_TRY(
            ax_write_all(file->copy, chunk, (size_t)n,
                         "the copy of a pipe (in the directory that the environment variable TMPDIR names)"));
        XXH3_64bits_update(hash, chunk, (size_t)n);
        file->bytes += n;
        AX_TRY(wait_for_bytes(fd, file, progress, user));
    }
    return AX_OK;
}

ax_status corpus_copy_pipe(corpus_file *file, ax_data_progress_fn progress, void *user)
{
    file->bytes = 0;
    AX_TRY(create_copy(file->path, &file->copy));
    int fd;
    AX_TRY(ax_file_open(file->path, &fd));
    XXH3_state_t *hash = XXH3_createState();
    ax_status status = hash ? wait_for_bytes(fd, file, progress, user)
                            : ax_fail(AX_ERR_MEMORY, "not enough memory for the checksum of %s", file->path);
    if (status == AX_OK) {
        XXH3_64bits_reset(hash);
        status = copy_all(fd, file, progress, user, hash);
        file->mtime_ns = (int64_t)XXH3_64bits_digest(hash);
    }
    XXH3_freeState(hash);
    close(fd);
    AX_TRY(status);
    char head[DATA_HEAD_BYTES];
    size_t unpacked = 0;
    if (file->packing)
        AX_TRY(data_unpack_head(file->copy, file->path, file->packing, head, sizeof head, &unpacked));
    ssize_t n = file->packing ? (ssize_t)unpacked : pread(file->copy, head, sizeof head, 0);
    file->format = data_text_format(NULL, head, (size_t)ax_max(n, 0));
    return AX_OK;
}
