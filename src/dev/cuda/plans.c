/* The file of measured plans. Its first line names the GPU and the library. Every other line describes one
 * GEMM: the numbers of its key, the words of the algorithm in hexadecimal, and a checksum of the line. The
 * file is read when a device is opened. To add an entry, a process locks a lock file, reads the file of plans
 * again, and replaces it atomically, so that no entry of another process is lost. */
#include "dev/cuda/plans.h"

#include "axonn/runtime.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { NUMBERS = sizeof(ax_cuda_plan_key) / sizeof(int64_t), WORDS = AX_CUDA_PLAN_WORDS };

typedef struct entry {
    int64_t key[NUMBERS];
    uint64_t algo[WORDS];
} entry;
_Static_assert(sizeof(ax_cuda_plan_key) == sizeof(((entry *)0)->key), "a key is read and written as numbers");

typedef struct list {
    size_t n;
    entry *entries;
} list;

struct ax_cuda_plans {
    char *kind, *path, *lock;
    list known;
};

/* ---- lists --------------------------------------------------------------------------------------- */

static entry *find(const list *l, const int64_t *key)
{
    for (size_t i = 0; i < l->n; i++)
        if (!memcmp(l->entries[i].key, key, sizeof l->entries[i].key))
            return &l->entries[i];
    return NULL;
}

/* Adds an entry. If the list already has an entry with the same key, the old entry is replaced if `instead`
 * is true, and kept otherwise. */
static ax_status put_entry(list *l, const entry *e, bool instead)
{
    entry *there = find(l, e->key);
    if (there) {
        *there = instead ? *e : *there;
        return AX_OK;
    }
    entry *entries = realloc(l->entries, (l->n + 1) * sizeof *entries);
    AX_CHECK(entries, AX_ERR_MEMORY, "not enough memory for another plan of a GEMM");
    l->entries = entries;
    l->entries[l->n++] = *e;
    return AX_OK;
}

/* ---- the format ---------------------------------------------------------------------------------- */

uint64_t ax_cuda_plan_hash(const void *bytes, size_t n)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < n; i++)
        h = (h ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
    return h;
}

static ax_status print_plans(const ax_cuda_plans *p, const list *l, ax_buf *out)
{
    AX_TRY(ax_buf_printf(out, "%s\n", p->kind));
    for (size_t i = 0; i < l->n; i++) {
        size_t begin = out->size;
        for (int k = 0; k < NUMBERS; k++)
            AX_TRY(ax_buf_printf(out, "%" PRId64 " ", l->entries[i].key[k]));
        for (int w = 0; w < WORDS; w++)
            AX_TRY(ax_buf_printf(out, "%016" PRIx64 " ", l->entries[i].algo[w]));
        AX_TRY(
            ax_buf_printf(out, "%016" PRIx64 "\n", ax_cuda_plan_hash(out->data + begin, out->size - begin)));
    }
    return AX_OK;
}

/* Parses the line that ends at `end`. Returns false if the line is incomplete or its checksum is wrong. */
static bool parse_line(const char *line, const char *end, entry *out)
{
    const char *sum = end;
    while (sum > line && sum[-1] != ' ')
        sum--;
    if (end - sum != 16 || strtoull(sum, NULL, 16) != ax_cuda_plan_hash(line, (size_t)(sum - line)))
        return false;
    char *at = (char *)line;
    for (int i = 0; i < NUMBERS; i++)
        out->key[i] = strtoll(at, &at, 10);
    for (int i = 0; i < WORDS; i++)
        out->algo[i] = strtoull(at, &at, 16);
    return at + 1 == sum;
}

static ax_status parse(const ax_cuda_plans *p, const char *text, size_t size, list *out)
{
    size_t head = strlen(p->kind);
    AX_CHECK(size > head && !memcmp(text, p->kind, head) && text[head] == '\n', AX_ERR_DATA,
             "%s is not a file of plans for %s", p->path, p->kind);
    for (const char *line = text + head + 1; line < text + size;) {
        entry e;
        const char *end = strchr(line, '\n');
        AX_CHECK(end && parse_line(line, end, &e), AX_ERR_DATA,
                 "%s is damaged: a line is incomplete or has a wrong checksum", p->path);
        AX_TRY(put_entry(out, &e, true));
        line = end + 1;
    }
    return AX_OK;
}

/* ---- the file ------------------------------------------------------------------------------------ */

static void log_error(ax_status status)
{
    if (status != AX_OK)
        ax_log(AX_LOG_DEBUG, "cuda: plans of matmuls: %s", ax_error_message());
}

/* Reads the file into *out. The list is empty if there is no file, if the file is damaged, or if it belongs
 * to another GPU or library. */
static void read_file(const ax_cuda_plans *p, list *out)
{
    char *text = NULL;
    size_t size;
    *out = (list){0};
    if (!ax_path_exists(p->path))
        return;
    ax_status status = ax_file_read(p->path, &text, &size);
    if (status == AX_OK)
        status = parse(p, text, size, out);
    if (status != AX_OK)
        out->n = 0;
    log_error(status);
    free(text);
}

static ax_status write_file(const ax_cuda_plans *p, const list *l)
{
    ax_buf text = {0};
    ax_status status = print_plans(p, l, &text);
    if (status == AX_OK)
        status = ax_file_write_atomic(p->path, text.data, text.size);
    ax_buf_fini(&text);
    return status;
}

/* Takes the lock; waits at most two seconds, because other processes hold it only while they read and write
 * the file. */
static ax_status take_lock(const ax_cuda_plans *p, int *fd)
{
    enum { TRIES = 200 };
    const struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
    *fd = open(p->lock, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    AX_CHECK(*fd >= 0, AX_ERR_DATA, "cannot open %s: %s", p->lock, strerror(errno));
    for (int i = 0; flock(*fd, LOCK_EX | LOCK_NB); i++) {
        if (i == TRIES || errno != EWOULDBLOCK) {
            ax_status status = ax_fail(AX_ERR_DATA, "cannot lock %s: %s", p->lock, strerror(errno));
            close(*fd);
            return status;
        }
        nanosleep(&pause, NULL);
    }
    return AX_OK;
}

/* Reads the file again, adds `e` and the other entries that this process knows, and writes the result. */
static ax_status merge_and_write(ax_cuda_plans *p, const entry *e, bool instead)
{
    list all;
    read_file(p, &all);
    ax_status status = put_entry(&all, e, instead);
    for (size_t i = 0; i < p->known.n && status == AX_OK; i++)
        status = put_entry(&all, &p->known.entries[i], false);
    if (status != AX_OK) {
        free(all.entries);
        return status;
    }
    free(p->known.entries);
    p->known = all;
    AX_CHECK(!ax_path_exists(p->path) || !access(p->path, W_OK), AX_ERR_DATA, "%s is not writable", p->path);
    return write_file(p, &all);
}

/* ---- opening and public functions ---------------------------------------------------------------- */

static ax_status folder_of_plans(char **out)
{
    const char *value, *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    const char *source = ax_runtime_source(AX_RUNTIME_PLANS);
    *out = NULL;
    AX_TRY(ax_runtime_get(AX_RUNTIME_PLANS, &value));
    if (!strcmp(value, "off"))
        return AX_OK;
    if (strcmp(value, "on")) {
        AX_CHECK(strchr(value, '/'), AX_ERR_USAGE,
                 "%s is \"%s\": it must be off, on, or a folder whose name contains a '/'", source, value);
        return ax_strdup(value, out);
    }
    if (cache && *cache == '/')
        return ax_path_join(cache, "axonn", out);
    AX_CHECK(home && *home, AX_ERR_USAGE,
             "%s is on, but neither XDG_CACHE_HOME nor HOME names a folder for the plans: set one of them, "
             "or give a folder instead of \"on\"",
             source);
    return ax_path_join(home, ".cache/axonn", out);
}

static ax_status name_file(const char *folder, const char *name, const char *end, char **out)
{
    ax_buf path = {0};
    ax_status status = ax_buf_printf(&path, "%s/%s%s", folder, name, end);
    if (status == AX_OK)
        *out = path.data;
    else
        ax_buf_fini(&path);
    return status;
}

/* Sets the paths of the file, such as "nvidia-h100-80gb-hbm3-132-multiprocessors-….txt", and of its lock. */
static ax_status name_files(ax_cuda_plans *p, const char *folder)
{
    char name[200] = "";
    size_t n = 0;
    for (const char *c = p->kind; *c && n + 1 < sizeof name; c++)
        if (isalnum((unsigned char)*c))
            name[n++] = (char)tolower((unsigned char)*c);
        else if (n && name[n - 1] != '-')
            name[n++] = '-';
    AX_TRY(name_file(folder, name, ".txt", &p->path));
    return name_file(folder, name, ".txt.lock", &p->lock);
}

static ax_status init_plans(const char *kind, const char *folder, ax_cuda_plans *p)
{
    AX_TRY(ax_strdup(kind, &p->kind));
    AX_TRY(name_files(p, folder));
    log_error(ax_mkdirs(folder));
    read_file(p, &p->known);
    return AX_OK;
}

ax_status ax_cuda_plans_open(const char *kind, ax_cuda_plans **out)
{
    char *folder;
    *out = NULL;
    AX_TRY(folder_of_plans(&folder));
    if (!folder)
        return AX_OK;
    ax_status status = ax_calloc(1, sizeof **out, out);
    if (status == AX_OK)
        status = init_plans(kind, folder, *out);
    free(folder);
    return status;
}

void ax_cuda_plans_close(ax_cuda_plans **plans)
{
    ax_cuda_plans *p = *plans;
    if (!p)
        return;
    free(p->known.entries);
    free(p->kind);
    free(p->path);
    free(p->lock);
    free(p);
    *plans = NULL;
}

const uint64_t *ax_cuda_plans_find(const ax_cuda_plans *plans, const ax_cuda_plan_key *key)
{
    const entry *e = find(&plans->known, (const int64_t *)key);
    return e ? e->algo : NULL;
}

void ax_cuda_plans_add(ax_cuda_plans *plans, const ax_cuda_plan_key *key, const uint64_t *algo, bool instead)
{
    entry e;
    int lock;
    memcpy(e.key, key, sizeof e.key);
    memcpy(e.algo, algo, sizeof e.algo);
    ax_status status = take_lock(plans, &lock);
    if (status == AX_OK) {
        status = merge_and_write(plans, &e, instead);
        close(lock);
    }
    log_error(status);
    if (status != AX_OK && (instead || !find(&plans->known, e.key)))
        log_error(put_entry(&plans->known, &e, true));
}
