/* Files of plans. Each line describes one GEMM on one kind of GPU and library: a hash of the kind, the
 * numbers of the key, the words of the algorithm in hexadecimal, and a checksum of the line. A file is read
 * when a device is opened or a run begins to keep plans. To add an entry, a process locks a lock file, reads
 * the file of plans again, and replaces it atomically, so that no entry of another process is lost.
 *
 * A process parses the lines of its own kind into entries. It keeps all other lines as they are: lines of
 * other GPUs and libraries, and of other versions of axonn, whose lines may have another form. It writes its
 * own lines last. So the other lines are in the order in which their processes last wrote, and the oldest of
 * them are dropped when they are too many. */
#include "dev/cuda/plans.h"

#include "axonn/dev.h"
#include "axonn/runtime.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { NUMBERS = 1 + sizeof(ax_cuda_plan_key) / sizeof(int64_t), WORDS = AX_CUDA_PLAN_WORDS };
enum {
    LINE_MOST = 21 * NUMBERS + 17 * WORDS + 1
};                                /* most bytes of an entry as text, without checksum, with a NUL */
enum { OTHERS_MOST = 256 << 10 }; /* most bytes of lines of other kinds that a file keeps: some 1,000 lines */

typedef struct entry {
    int64_t key[NUMBERS]; /* a hash of the kind, then the numbers of ax_cuda_plan_key */
    uint64_t algo[WORDS];
} entry;
_Static_assert(sizeof(int64_t) + sizeof(ax_cuda_plan_key) == sizeof(((entry *)0)->key),
               "a key is read and written as numbers");

/* The entries of one kind of GPU and library, in ascending order of keys, and the lines of other kinds. */
typedef struct list {
    size_t n;
    entry *entries;
    ax_buf others;
} list;

/* A file of plans, and the plans that this process has read from it or added. */
typedef struct store {
    char *dir, *path, *lock; /* paths of the file's directory, the file and its lock; NULL: no file */
    int64_t kind;            /* the hash of the kind whose lines are entries */
    ax_log_level level;      /* log level of messages about the file */
    int damaged;             /* number of damaged lines that were found when the store was opened */
    list known;
} store;

struct ax_cuda_plans {
    int64_t kind;     /* hash of the kind of GPU and library */
    store run, cache; /* `run` is searched first */
    double limit;     /* seconds that timing may take in all */
    double spent;     /* seconds that timing has taken until `since` */
    double since;     /* while a GEMM is timed: the time up to which `spent` is right (ax_now) */
    int depth;        /* number of GEMMs that are being timed: timing one may need the plan of another */
};

/* ---- lists --------------------------------------------------------------------------------------- */

static int compare_keys(const int64_t *a, const int64_t *b)
{
    for (int i = 0; i < NUMBERS; i++)
        if (a[i] != b[i])
            return a[i] < b[i] ? -1 : 1;
    return 0;
}

/* Returns the index of the first entry whose key is not less than `key`. */
static size_t place_of(const list *l, const int64_t *key)
{
    size_t lo = 0, hi = l->n;
    while (lo < hi) {
        size_t middle = lo + (hi - lo) / 2;
        if (compare_keys(l->entries[middle].key, key) < 0)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo;
}

static entry *find(const list *l, const int64_t *key)
{
    size_t i = place_of(l, key);
    return i < l->n && !compare_keys(l->entries[i].key, key) ? &l->entries[i] : NULL;
}

/* Adds an entry. If the list already has an entry with the same key, the old entry is replaced if `instead`
 * is true, and kept otherwise. */
static ax_status put_entry(list *l, const entry *e, bool instead)
{
    size_t i = place_of(l, e->key);
    if (i < l->n && !compare_keys(l->entries[i].key, e->key)) {
        if (instead)
            l->entries[i] = *e;
        return AX_OK;
    }
    AX_TRY(ax_list_grow(&l->entries, l->n, sizeof *l->entries));
    memmove(l->entries + i + 1, l->entries + i, (l->n - i) * sizeof *l->entries);
    l->entries[i] = *e;
    l->n++;
    return AX_OK;
}

/* Adds the entries of `from` whose keys `to` does not have. */
static ax_status merge(list *to, const list *from)
{
    for (size_t i = 0; i < from->n; i++)
        AX_TRY(put_entry(to, &from->entries[i], false));
    return AX_OK;
}

static bool same_lists(const list *a, const list *b)
{
    return a->n == b->n && (!a->n || !memcmp(a->entries, b->entries, a->n * sizeof *a->entries)) &&
           a->others.size == b->others.size &&
           (!a->others.size || !memcmp(a->others.data, b->others.data, a->others.size));
}

static void fini_list(list *l)
{
    free(l->entries);
    ax_buf_fini(&l->others);
    *l = (list){0};
}

/* ---- lines of other kinds ------------------------------------------------------------------------ */

/* Returns the offset of the line after the one at offset `at`. */
static size_t next_line(const ax_buf *lines, size_t at)
{
    const char *end = memchr(lines->data + at, '\n', lines->size - at);
    return (size_t)(end - lines->data) + 1;
}

/* Returns true if `lines` contain this line of n bytes, its newline included. */
static bool has_line(const ax_buf *lines, const char *line, size_t n)
{
    for (size_t at = 0; at < lines->size; at = next_line(lines, at))
        if (lines->size - at >= n && !memcmp(lines->data + at, line, n))
            return true;
    return false;
}

/* Appends to `to` the lines of `lines` that `but` does not contain. */
static ax_status add_lines(ax_buf *to, const ax_buf *lines, const ax_buf *but)
{
    for (size_t at = 0, next; at < lines->size; at = next) {
        next = next_line(lines, at);
        if (!has_line(but, lines->data + at, next - at))
            AX_TRY(ax_buf_add(to, lines->data + at, next - at));
    }
    return AX_OK;
}

/* Drops the first lines, so that at most OTHERS_MOST bytes are left. */
static void drop_oldest(ax_buf *lines)
{
    size_t first = 0;
    while (lines->size - first > OTHERS_MOST)
        first = next_line(lines, first);
    if (!first)
        return;
    lines->size -= first;
    memmove(lines->data, lines->data + first, lines->size);
}

/* ---- the format ---------------------------------------------------------------------------------- */

uint64_t ax_cuda_plan_hash(const void *bytes, size_t n)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < n; i++)
        h = (h ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
    return h;
}

static ax_status print_list(const list *l, ax_buf *out)
{
    AX_TRY(ax_buf_add(out, l->others.data, l->others.size));
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

/* Returns the checksum at the end of a line, or NULL if the checksum is missing or wrong. */
static const char *checked_sum(const char *line, const char *end)
{
    const char *sum = end;
    while (sum > line && sum[-1] != ' ')
        sum--;
    char text[17] = "";
    if (end - sum != 16)
        return NULL;
    memcpy(text, sum, 16);
    return strtoull(text, NULL, 16) == ax_cuda_plan_hash(line, (size_t)(sum - line)) ? sum : NULL;
}

/* Parses the part of a line before its checksum. Returns false if the line has another form, because another
 * version of axonn has written it. */
static bool parse_line(const char *line, const char *sum, entry *out)
{
    char text[LINE_MOST], *at = text;
    size_t n = (size_t)(sum - line);
    if (n >= sizeof text)
        return false;
    memcpy(text, line, n);
    text[n] = 0;
    for (int i = 0; i < NUMBERS; i++)
        out->key[i] = strtoll(at, &at, 10);
    for (int i = 0; i < WORDS; i++)
        out->algo[i] = strtoull(at, &at, 16);
    return at + 1 == text + n;
}

/* Parses a file into *out: lines of kind `kind` as entries, other lines as they are. Ignores damaged lines,
 * whose number it adds to *damaged. */
static ax_status parse(const char *text, size_t size, int64_t kind, list *out, int *damaged)
{
    for (const char *line = text, *end; line < text + size; line = end + 1) {
        entry e;
        end = memchr(line, '\n', (size_t)(text + size - line));
        const char *sum = end ? checked_sum(line, end) : NULL;
        *damaged += !sum;
        if (sum)
            AX_TRY(parse_line(line, sum, &e) && e.key[0] == kind
                       ? put_entry(out, &e, true)
                       : ax_buf_add(&out->others, line, (size_t)(end + 1 - line)));
        if (!end)
            break;
    }
    return AX_OK;
}

/* ---- a file -------------------------------------------------------------------------------------- */

/* Reads the file into *out, which is empty if there is no file. */
static ax_status read_file(const store *s, list *out, int *damaged)
{
    char *text = NULL;
    size_t size;
    *out = (list){0};
    *damaged = 0;
    if (!ax_path_exists(s->path))
        return AX_OK;
    AX_TRY(ax_file_read(s->path, &text, &size));
    ax_status status = parse(text, size, s->kind, out, damaged);
    free(text);
    drop_oldest(&out->others);
    return status;
}

static ax_status write_file(const store *s)
{
    ax_buf text = {0};
    AX_CHECK(!ax_path_exists(s->path) || !access(s->path, W_OK), AX_ERR_DATA, "%s cannot be written: %s",
             s->path, strerror(errno));
    ax_status status = print_list(&s->known, &text);
    if (status == AX_OK)
        status = ax_file_write_atomic(s->path, text.data, text.size);
    ax_buf_fini(&text);
    return status;
}

/* Takes the lock; waits at most two seconds, because other processes hold it only while they read and write
 * the file. */
static ax_status take_lock(const store *s, int *fd)
{
    enum { TRIES = 200 };
    const struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
    AX_TRY(ax_mkdirs(s->dir));
    *fd = open(s->lock, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    AX_CHECK(*fd >= 0, AX_ERR_DATA, "cannot open the lock file %s: %s", s->lock, strerror(errno));
    for (int i = 0; flock(*fd, LOCK_EX | LOCK_NB); i++) {
        if (i == TRIES || errno != EWOULDBLOCK) {
            ax_status status = ax_fail(AX_ERR_DATA, "cannot lock %s, which another process may hold: %s",
                                       s->lock, strerror(errno));
            close(*fd);
            return status;
        }
        nanosleep(&pause, NULL);
    }
    return AX_OK;
}

/* Reads the file again, and merges into s->known: if several lists have a plan for the same GEMM, the plan of
 * `first` takes precedence, then the plan of the file, then the known plan. Of two lines of another kind for
 * one GEMM the last one counts, so the lines of `first` follow the lines of the file. Sets *same to whether
 * the file has the result already. */
static ax_status merge_with_file(store *s, const list *first, bool *same)
{
    int damaged;
    list all = {0}, file;
    ax_status status = read_file(s, &file, &damaged);
    const list *const lists[] = {first, &file, &s->known};
    for (size_t i = 0; i < AX_COUNT(lists) && status == AX_OK; i++)
        status = merge(&all, lists[i]);
    if (status == AX_OK)
        status = add_lines(&all.others, &file.others, &first->others);
    if (status == AX_OK)
        status = ax_buf_add(&all.others, first->others.data, first->others.size);
    drop_oldest(&all.others);
    *same = status == AX_OK && !damaged && same_lists(&all, &file);
    fini_list(&file);
    if (status != AX_OK) {
        fini_list(&all);
        return status;
    }
    fini_list(&s->known);
    s->known = all;
    return AX_OK;
}

/* Merges again under the lock, because another process may have written the file meanwhile. Then writes the
 * file, unless it has the result already. */
static ax_status write_under_lock(store *s, const list *first)
{
    int lock;
    bool same;
    AX_TRY(take_lock(s, &lock));
    ax_status status = merge_with_file(s, first, &same);
    if (status == AX_OK && !same)
        status = write_file(s);
    close(lock);
    return status;
}

/* Merges `first` into the plans that are known and into the file. Takes the lock only if the file must be
 * written. The file can be read without the lock, because it is always replaced as a whole. The first failure
 * is logged at s->level, further ones at level debug. */
static void update(store *s, const list *first)
{
    bool same;
    ax_status status = merge_with_file(s, first, &same);
    if (status == AX_OK && !same)
        status = write_under_lock(s, first);
    if (status == AX_OK)
        return;
    ax_log(s->level,
           "plans of GEMMs are not kept: %s; the next start may choose other algorithms, whose "
           "results differ in their last digits",
           ax_error_message());
    s->level = AX_LOG_DEBUG;
}

static void add(store *s, const entry *e, bool instead)
{
    const list none = {0}, one = {.n = 1, .entries = (entry *)e};
    if (!s->path)
        return;
    if (put_entry(&s->known, e, instead) != AX_OK)
        ax_log(s->level, "a plan of a GEMM is not kept: %s", ax_error_message());
    update(s, instead ? &one : &none);
}

static void close_store(store *s)
{
    fini_list(&s->known);
    free(s->dir);
    free(s->path);
    free(s->lock);
}

/* Reads the file of plans in a directory; does nothing if `dir` is NULL. */
static ax_status open_store(const char *dir, int64_t kind, ax_log_level level, store *s)
{
    if (!dir)
        return AX_OK;
    s->kind = kind;
    s->level = level;
    AX_TRY(ax_strdup(dir, &s->dir));
    AX_TRY(ax_path_join(dir, AX_PLANS_FILE, &s->path));
    AX_TRY(ax_path_join(dir, "plans.lock", &s->lock));
    if (read_file(s, &s->known, &s->damaged) != AX_OK)
        ax_log(level,
               "plans of GEMMs cannot be read: %s; algorithms may be chosen again, and results may then "
               "differ in their last digits",
               ax_error_message());
    if (s->damaged)
        ax_log(
            level,
            "%s has %d damaged line%s: algorithms are chosen again for these GEMMs, and results may differ "
            "from then on in their last digits",
            s->path, s->damaged, s->damaged == 1 ? "" : "s");
    return AX_OK;
}

/* ---- opening ------------------------------------------------------------------------------------- */

/* Sets *out to the cache's directory, in which setting runtime.plans keeps plans; to NULL if there is none.
 * *off is set to whether the setting is off. */
static ax_status cache_dir(char **out, bool *off)
{
    const char *value, *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    const char *source = ax_runtime_source(AX_RUNTIME_PLANS);
    *out = NULL;
    AX_TRY(ax_runtime_get(AX_RUNTIME_PLANS, &value));
    *off = !strcmp(value, "off");
    if (*off)
        return AX_OK;
    if (strcmp(value, "on")) {
        AX_CHECK(
            strchr(value, '/'), AX_ERR_USAGE,
            "%s is \"%s\": it must be off, on, or a directory whose path contains a '/', such as ./plans",
            source, value);
        return ax_strdup(value, out);
    }
    if (cache && *cache == '/')
        return ax_path_join(cache, "axonn", out);
    return home && *home ? ax_path_join(home, ".cache/axonn", out) : AX_OK;
}

/* Takes over the plans that a run had earlier in another directory, `from`. They have priority over the plans
 * in the run's present directory. */
static ax_status take_over(ax_cuda_plans *p, const char *kind, const char *from)
{
    store before = {0};
    ax_status status = open_store(from, p->kind, AX_LOG_WARN, &before);
    if (status == AX_OK && (before.known.n || before.known.others.size)) {
        if (!before.known.n)
            ax_log(AX_LOG_WARN,
                   "%s has no plans of GEMMs for this GPU and library (%s): algorithms are chosen again, and "
                   "results differ from now on in their last digits",
                   before.path, kind);
        update(&p->run, &before.known);
    }
    close_store(&before);
    return status;
}

/* Logs how many plans are known, and how long timing may take. */
static void announce(const ax_cuda_plans *p)
{
    char cached[4200] = "";
    if (p->cache.path)
        ax_text_add(cached, sizeof cached, ", %zu in %s", p->cache.known.n, p->cache.path);
    ax_log(AX_LOG_INFO,
           "plans of GEMMs: %zu in %s%s; timing others on the GPU takes at most %g s (runtime.plan_seconds)",
           p->run.known.n, p->run.path, cached, p->limit);
}

static ax_status init_plans(const char *kind, const char *cache, const char *dir, const char *from,
                            ax_cuda_plans *p)
{
    const char *seconds;
    AX_TRY(ax_runtime_get(AX_RUNTIME_PLAN_SECONDS, &seconds));
    p->limit = strtod(seconds, NULL);
    p->kind = (int64_t)ax_cuda_plan_hash(kind, strlen(kind));
    AX_TRY(open_store(cache, p->kind, AX_LOG_DEBUG, &p->cache));
    AX_TRY(open_store(dir, p->kind, AX_LOG_WARN, &p->run));
    if (p->run.damaged)
        update(&p->run, &(list){0}); /* removes the damaged lines, so that no other rank reports them */
    if (from)
        AX_TRY(take_over(p, kind, from));
    if (dir)
        announce(p);
    return AX_OK;
}

ax_status ax_cuda_plans_open(const char *kind, const char *dir, const char *from, double spent,
                             ax_cuda_plans **out)
{
    char *cache;
    bool off;
    *out = NULL;
    AX_TRY(cache_dir(&cache, &off));
    if (off || (!cache && !dir))
        return AX_OK;
    ax_status status = ax_calloc(1, sizeof **out, out);
    if (status == AX_OK) {
        (*out)->spent = spent;
        status = init_plans(kind, cache, dir, from, *out);
    }
    free(cache);
    return status;
}

void ax_cuda_plans_close(ax_cuda_plans **plans)
{
    if (!*plans)
        return;
    close_store(&(*plans)->run);
    close_store(&(*plans)->cache);
    free(*plans);
    *plans = NULL;
}

/* ---- plans --------------------------------------------------------------------------------------- */

static void set_key(const ax_cuda_plans *p, const ax_cuda_plan_key *key, entry *e)
{
    e->key[0] = p->kind;
    memcpy(e->key + 1, key, sizeof *key);
}

const uint64_t *ax_cuda_plans_find(ax_cuda_plans *p, const ax_cuda_plan_key *key)
{
    entry wanted;
    set_key(p, key, &wanted);
    const entry *e = find(&p->run.known, wanted.key);
    if (e)
        return e->algo;
    e = find(&p->cache.known, wanted.key);
    if (!e || !p->run.path)
        return e ? e->algo : NULL;
    add(&p->run, e, false); /* another rank may have added another algorithm, which then counts */
    e = find(&p->run.known, wanted.key);
    return e ? e->algo : NULL;
}

void ax_cuda_plans_add(ax_cuda_plans *p, const ax_cuda_plan_key *key, const uint64_t *algo, bool timed,
                       bool instead)
{
    entry e;
    set_key(p, key, &e);
    memcpy(e.algo, algo, sizeof e.algo);
    if (timed) {
        add(&p->cache, &e, instead);
        const entry *cached = find(&p->cache.known, e.key);
        e = cached ? *cached : e;
    }
    add(&p->run, &e, instead);
}

/* ---- the time for timing ------------------------------------------------------------------------- */

/* Adds the time since p->since to p->spent. */
static void spend(ax_cuda_plans *p)
{
    double now = ax_now();
    bool some = p->spent < p->limit;
    p->spent += now - p->since;
    p->since = now;
    if (some && p->spent >= p->limit)
        ax_log(AX_LOG_INFO, "the time for timing GEMMs (runtime.plan_seconds) is used up: further shapes use "
                            "the library's first algorithm");
}

void ax_cuda_plans_begin(ax_cuda_plans *p)
{
    if (p->depth++)
        spend(p);
    p->since = ax_now();
}

bool ax_cuda_plans_late(const ax_cuda_plans *p) { return p->spent + (ax_now() - p->since) >= p->limit; }

void ax_cuda_plans_end(ax_cuda_plans *p)
{
    spend(p);
    p->depth--;
}

double ax_cuda_plans_spent(const ax_cuda_plans *p) { return p ? p->spent : 0; }
