/* run.dir: the lock that keeps two runs apart, and the removal of what a failed start has made. */
#include "train/train.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Finds the parent directory of the path that is the first n bytes of `path`. Returns the length of the
 * parent's path; 0: the path names no parent directory. */
static size_t parent_of(const char *path, size_t n)
{
    while (n && path[n - 1] != '/')
        n--;
    while (n && path[n - 1] == '/')
        n--;
    return n;
}

/* Returns the length of the longest prefix of `path` that names an existing file or directory. */
static size_t existing_part(char *path)
{
    size_t n = strlen(path);
    bool there = false;
    while (n && !there) {
        char keep = path[n];
        path[n] = 0;
        there = ax_path_exists(path);
        path[n] = keep;
        n = there ? n : parent_of(path, n);
    }
    return n;
}

static ax_status fail_in_use(const char *dir, int fd)
{
    char owner[32] = "";
    ssize_t n = pread(fd, owner, sizeof owner - 1, 0);
    return ax_fail(
        AX_ERR_USAGE,
        "run.dir %s is in use by another run (process %.*s): wait for it or choose another run.dir", dir,
        n > 0 ? (int)strcspn(owner, "\n") : 1, n > 0 ? owner : "?");
}

/* Locks the open file `fd`, run.dir/lock. Fails if the file was removed before the lock was taken: then the
 * lock does not keep other runs away. */
static ax_status lock_file(const char *dir, const char *path, int fd)
{
    struct stat info;
    char text[32];
    if (flock(fd, LOCK_EX | LOCK_NB))
        return fail_in_use(dir, fd);
    AX_CHECK(!fstat(fd, &info) && info.st_nlink, AX_ERR_DATA,
             "the lock file %s was removed while this run locked it: start the run again", path);
    int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    AX_CHECK(!ftruncate(fd, 0), AX_ERR_DATA, "cannot write in run.dir %s: %s", dir, strerror(errno));
    return ax_pwrite_all(fd, text, (size_t)n, 0, path);
}

static ax_status try_lock(const char *dir, const char *path, ax_train_dir *out)
{
    AX_TRY(ax_mkdirs(dir));
    bool made = !ax_path_exists(path);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    AX_CHECK(fd >= 0, AX_ERR_DATA, "cannot write in run.dir %s: %s", dir, strerror(errno));
    ax_status status = lock_file(dir, path, fd);
    if (status != AX_OK) {
        close(fd);
        return status;
    }
    out->lock = fd;
    out->made = made;
    return AX_OK;
}

/* Creates and locks run.dir. A start of another run that fails may remove `lock` and the directories at any
 * time. So this function tries again, unless a run holds the lock. */
static ax_status lock_dir(const char *dir, char *data, const char *path, ax_train_dir *out)
{
    enum { ATTEMPTS = 10 };
    ax_status status = AX_ERR_DATA;
    out->existed = existing_part(data);
    for (int i = 0; i < ATTEMPTS && status == AX_ERR_DATA; i++)
        status = try_lock(dir, path, out);
    return status;
}

ax_status ax_train_lock(const ax_train_run *run, ax_train_dir *out)
{
    char *path, *data = NULL;
    AX_TRY(ax_path_join(run->config->run.dir, "lock", &path));
    ax_status status = ax_path_join(run->config->run.dir, "data", &data);
    if (status == AX_OK)
        status = lock_dir(run->config->run.dir, data, path, out);
    free(data);
    free(path);
    return status;
}

/* Removes only empty directories, so token files, config.yaml and all files of another run stay. Removes the
 * file `lock` after data/ and before the directory of `lock`: a run that starts meanwhile makes its own lock
 * first and then data/. */
void ax_train_dir_undo(const ax_train_run *run)
{
    const ax_train_dir *dir = &run->dir;
    char *path, *data;
    if (!dir->lock || ax_path_join(run->config->run.dir, "lock", &path) != AX_OK)
        return;
    if (ax_path_join(run->config->run.dir, "data", &data) == AX_OK) {
        size_t n = strlen(data);
        if (n > dir->existed)
            (void)rmdir(data);
        if (dir->made)
            (void)unlink(path);
        while ((n = parent_of(data, n)) > dir->existed) {
            data[n] = 0;
            if (rmdir(data))
                break;
        }
        free(data);
    }
    free(path);
}

void ax_train_dir_fini(ax_train_dir *dir)
{
    if (dir->lock)
        close(dir->lock);
    *dir = (ax_train_dir){0};
}
