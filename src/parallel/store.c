/* Stores: pinned host memory, or an unnamed file with a thread that reads and writes it. */
#include "parallel/store.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct ax_state_store {
    ax_device *dev;
    size_t bytes;
    void *memory; /* in host memory; NULL: a file, or no memory */
    int fd;       /* of the file; -1: none */
    char *name;   /* what messages call the file */
    pthread_t thread;
    bool started, ends; /* the thread runs; it is asked to end */
    pthread_mutex_t mutex;
    pthread_cond_t changed;              /* a request was started or is done, or `ends` was set */
    ax_state_store_request *head, *tail; /* the requests that are not done */
};

/* ---- files --------------------------------------------------------------------------------------- */

/* Opens a file that has no name, or, on file systems that cannot do this, one whose name is removed at once.
 * Returns its descriptor, or -1 and errno. */
static int open_unnamed(const char *dir)
{
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    char *path;
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL))
        return fd;
    if (ax_path_join(dir, ".offload-XXXXXX", &path) != AX_OK) {
        errno = ENOMEM;
        return -1;
    }
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0)
        unlink(path);
    free(path);
    return fd;
}

static ax_status open_file(ax_state_store *s, const char *dir)
{
    char size[32];
    s->fd = open_unnamed(dir);
    AX_CHECK(s->fd >= 0, AX_ERR_DATA,
             "offload.dir: no file for the optimizer's state can be created in %s: %s", dir, strerror(errno));
    int error = posix_fallocate(s->fd, 0, (off_t)s->bytes);
    AX_CHECK(
        !error, AX_ERR_DATA,
        "offload.dir: %s of the optimizer's state cannot be reserved in %s: %s. %s, or keep the state in "
        "host memory (offload.optimizer: host)",
        ax_format_bytes((double)s->bytes, size), dir, strerror(error),
        error == EFBIG ? "Raise the limit of a file's size (ulimit -f; some file systems have a limit, too)"
                       : "Give a directory with more space as offload.dir");
    return AX_OK;
}

static ax_status run_request(ax_state_store *s, const ax_state_store_request *r)
{
    for (int i = 0; i < r->parts; i++) {
        const ax_state_store_part *p = &r->part[i];
        AX_TRY(r->write ? ax_pwrite_all(s->fd, p->memory, p->bytes, (int64_t)p->at, s->name)
                        : ax_pread_all(s->fd, p->memory, p->bytes, (int64_t)p->at, s->name));
    }
    return AX_OK;
}

static void *serve(void *store)
{
    ax_state_store *s = store;
    pthread_mutex_lock(&s->mutex);
    for (;;) {
        ax_state_store_request *r = s->head;
        if (!r && s->ends)
            break;
        if (!r) {
            pthread_cond_wait(&s->changed, &s->mutex);
            continue;
        }
        pthread_mutex_unlock(&s->mutex);
        ax_status status = run_request(s, r);
        pthread_mutex_lock(&s->mutex);
        r->status = status;
        if (status != AX_OK)
            snprintf(r->message, sizeof r->message, "%s", ax_error_message());
        s->head = r->next;
        r->done = true;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

static ax_status start_thread(ax_state_store *s)
{
    int error = ax_thread_start(&s->thread, serve, s);
    AX_CHECK(!error, AX_ERR_MEMORY,
             "offload.optimizer: the thread that reads and writes the file of the optimizer's state cannot "
             "be started: %s",
             strerror(error));
    s->started = true;
    return AX_OK;
}

static ax_status make_file(ax_state_store *s, const char *dir)
{
    ax_buf name = {0};
    AX_TRY(ax_buf_printf(&name, "the file of the optimizer's state in %s", dir));
    s->name = name.data;
    AX_TRY(open_file(s, dir));
    return start_thread(s);
}

/* ---- host memory --------------------------------------------------------------------------------- */

ax_status ax_state_store_alloc(ax_device *dev, size_t bytes, void **out)
{
    return dev->ops.imaginary ? ax_device_alloc(dev, bytes, out) : ax_pinned_alloc(dev, bytes, out);
}

void ax_state_store_free(ax_device *dev, void *memory, size_t bytes)
{
    if (dev->ops.imaginary)
        ax_device_free(dev, memory, bytes);
    else
        ax_pinned_free(dev, memory, bytes);
}

/* ---- stores -------------------------------------------------------------------------------------- */

ax_status ax_state_store_create(ax_device *dev, const ax_offload *by, size_t bytes, ax_state_store **out)
{
    ax_state_store *s;
    *out = NULL;
    AX_TRY(ax_calloc(1, sizeof *s, &s));
    *s = (ax_state_store){.dev = dev, .bytes = bytes, .fd = -1};
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->changed, NULL);
    ax_status status = AX_OK;
    if (by->optimizer == AX_OFFLOAD_HOST)
        status = ax_state_store_alloc(dev, bytes, &s->memory);
    else if (!dev->ops.imaginary)
        status = make_file(s, by->dir ? by->dir : ".");
    if (status != AX_OK)
        ax_state_store_destroy(&s);
    *out = s;
    return status;
}

void ax_state_store_destroy(ax_state_store **store)
{
    ax_state_store *s = *store;
    if (!s)
        return;
    if (s->started) {
        pthread_mutex_lock(&s->mutex);
        s->ends = true;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->mutex);
        pthread_join(s->thread, NULL);
    }
    if (s->fd >= 0)
        close(s->fd);
    ax_state_store_free(s->dev, s->memory, s->bytes);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->mutex);
    free(s->name);
    free(s);
    *store = NULL;
}

void *ax_state_store_memory(const ax_state_store *store) { return store->memory; }

/* ---- requests ------------------------------------------------------------------------------------ */

void ax_state_store_start(ax_state_store *s, ax_state_store_request *r)
{
    r->waiting = s->started;
    if (!s->started)
        return;
    r->done = false;
    r->next = NULL;
    pthread_mutex_lock(&s->mutex);
    if (s->head)
        s->tail->next = r;
    else
        s->head = r;
    s->tail = r;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
}

ax_status ax_state_store_wait(ax_state_store *s, ax_state_store_request *r)
{
    if (!r->waiting)
        return AX_OK;
    pthread_mutex_lock(&s->mutex);
    while (!r->done)
        pthread_cond_wait(&s->changed, &s->mutex);
    pthread_mutex_unlock(&s->mutex);
    r->waiting = false;
    return r->status == AX_OK ? AX_OK : ax_fail(r->status, "%s", r->message);
}

ax_status ax_state_store_move(ax_state_store *s, bool write, size_t at, size_t bytes, void *memory)
{
    char *mine = s->memory ? (char *)s->memory + at : NULL;
    if (mine) {
        memcpy(write ? mine : memory, write ? memory : mine, bytes);
        return AX_OK;
    }
    ax_state_store_request r = {.write = write, .parts = 1, .part = {{at, bytes, memory}}};
    ax_state_store_start(s, &r);
    return ax_state_store_wait(s, &r);
}
