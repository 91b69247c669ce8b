/* Tokenizer training, first half: counts how often each distinct piece (pre-token) of two or more bytes
 * occurs in the training text. A piece of one byte has nothing to merge.
 *
 * Several threads read the files in chunks. Each thread counts into its own table; the tables are added up at
 * the end. The counts must not depend on where a large file is cut into chunks. So a chunk ends with its
 * file, or between an ASCII letter or digit and a line feed. At such a place each regular expression of
 * tok_pattern_named ends a piece, whatever text follows. The counts, and the trained tokenizer, are therefore
 * the same for any number of threads. */
#include "token/tok.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

ax_status bpe_grow(void *array, size_t *capacity, size_t need, size_t size)
{
    if (need <= *capacity)
        return AX_OK;
    size_t wanted = *capacity + *capacity / 2 + 1024;
    wanted = wanted < need ? need : wanted;
    void *old, *fresh;
    memcpy(&old, array, sizeof old);
    fresh = realloc(old, wanted * size);
    AX_CHECK(fresh, AX_ERR_MEMORY,
             "not enough memory to train a tokenizer: %zu x %zu bytes were refused; use less text", wanted,
             size);
    memcpy(array, &fresh, sizeof fresh);
    *capacity = wanted;
    return AX_OK;
}

/* ---- table of strings ---- */

static ax_status rehash(bpe_table *t)
{
    size_t slots = t->slots ? 2 * (t->mask + 1) : 4096;
    uint64_t *fresh;
    AX_TRY(ax_calloc(slots, sizeof *fresh, &fresh));
    for (size_t number = 0; number < t->n; number++) {
        size_t i = t->words[number].hash & (slots - 1);
        while (fresh[i])
            i = (i + 1) & (slots - 1);
        fresh[i] = (uint64_t)t->words[number].hash << 32 | (number + 1);
    }
    free(t->slots);
    t->slots = fresh;
    t->mask = slots - 1;
    return AX_OK;
}

static ax_status add_word(bpe_table *t, size_t slot, const char *bytes, size_t n, uint32_t hash,
                          int64_t count)
{
    AX_CHECK(
        n <= UINT32_MAX && t->n < UINT32_MAX - 1, AX_ERR_DATA,
        "the training text has too many distinct pieces (2^32), or a piece of 4 GiB or more: use less text");
    AX_TRY(bpe_grow(&t->words, &t->capacity, t->n + 1, sizeof *t->words));
    AX_TRY(bpe_grow(&t->bytes, &t->bytes_capacity, t->bytes_size + n, 1));
    memcpy(t->bytes + t->bytes_size, bytes, n);
    t->words[t->n] = (bpe_word){.start = t->bytes_size, .size = (uint32_t)n, .hash = hash, .count = count};
    t->bytes_size += n;
    t->slots[slot] = (uint64_t)hash << 32 | ++t->n;
    return AX_OK;
}

ax_status bpe_table_add(bpe_table *t, const char *bytes, size_t n, int64_t count, size_t *number)
{
    if (!t->slots || t->n > t->mask / 2)
        AX_TRY(rehash(t));
    uint32_t hash = (uint32_t)XXH3_64bits(bytes, n);
    size_t i = hash & t->mask;
    for (; t->slots[i]; i = (i + 1) & t->mask) {
        bpe_word *word = &t->words[(uint32_t)t->slots[i] - 1];
        if (t->slots[i] >> 32 == hash && word->size == n && !memcmp(t->bytes + word->start, bytes, n)) {
            word->count += count;
            if (number)
                *number = (size_t)(word - t->words);
            return AX_OK;
        }
    }
    if (number)
        *number = t->n;
    return add_word(t, i, bytes, n, hash, count);
}

void bpe_table_fini(bpe_table *t)
{
    free(t->words);
    free(t->bytes);
    free(t->slots);
    *t = (bpe_table){0};
}

/* ---- work ---- */

enum { CHUNK = 4 << 20, LOOK_AHEAD = 64 << 10 };

typedef struct chunk {
    size_t path;
    int64_t
        offset; /* byte offset in the file; -1: the chunk is a whole input without a size, such as a pipe */
} chunk;

typedef struct job {
    const ax_tokenizer_training *training;
    const tok_stage *stage;
    int form;
    chunk *chunks;
    size_t n_chunks;
    int64_t total, done; /* total: bytes of regular files; done: bytes counted so far (guarded by `lock`) */
    double reported;     /* time (ax_now) of the last call of training->progress (guarded by `lock`) */
    atomic_size_t next;  /* index of the next chunk to count */
    atomic_bool stop;
    bool supplied_all; /* training->next has no more documents, or has failed (guarded by `lock`) */
    pthread_mutex_t lock;
} job;

typedef struct worker {
    job *job;
    pthread_t thread;
    bool started;
    tok_matcher matcher;
    bpe_table table;
    ax_buf text, normal;
    ax_status status;
    char message[1024]; /* message of a failure, copied because an error message can be read only in the
                           thread that failed */
} worker;

static ax_status count_piece(void *arg, const char *piece, size_t n)
{
    worker *w = arg;
    return n < 2 ? AX_OK : bpe_table_add(&w->table, piece, n, 1, NULL);
}

static ax_status count_text(worker *w, const char *text, size_t n)
{
    for (size_t at = 0; at < n; at++) {
        size_t valid = tok_utf8_prefix(text + at, n - at);
        const char *run = text + at;
        size_t size = valid;
        if (w->job->form) {
            w->normal.size = 0;
            AX_TRY(tok_normalize(w->job->form, run, size, &w->normal));
            run = w->normal.data;
            size = w->normal.size;
        }
        AX_TRY(tok_split(w->job->stage, 1, &w->matcher, run, size, count_piece, w));
        at += valid; /* `at` is now at the end, or at a byte that is not UTF-8. Such a byte is a piece of one
                        byte, which is not counted: the loop skips it */
    }
    return AX_OK;
}

static ax_status add_progress(job *j, size_t bytes)
{
    const ax_tokenizer_training *t = j->training;
    bool go_on = true;
    pthread_mutex_lock(&j->lock);
    j->done += (int64_t)bytes;
    double now = ax_now();
    if (t->progress && (now - j->reported > 0.1 || j->done == j->total)) {
        j->reported = now;
        go_on = t->progress(t->progress_arg, AX_TOKENIZER_COUNT, j->done, t->next ? 0 : j->total);
    }
    pthread_mutex_unlock(&j->lock);
    AX_CHECK(go_on, AX_ERR_SIGNAL, "training the tokenizer was stopped");
    return AX_OK;
}

static bool is_alnum(char c) { return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z'); }

/* Returns the first position at or after `at` where a chunk may begin: a line feed directly after an ASCII
 * letter or digit. Returns n if there is none. */
static size_t find_cut(const char *text, size_t n, size_t at)
{
    for (at = at ? at : 1; at < n; at++) {
        const char *feed = memchr(text + at, '\n', n - at);
        if (!feed)
            break;
        at = (size_t)(feed - text);
        if (is_alnum(text[at - 1]))
            return at;
    }
    return n;
}

/* Reads bytes of the file into `text` until `text` has `want` bytes or the file ends. `text` holds the file's
 * bytes from `offset` on. *end tells whether the file ended before that. */
static ax_status read_until(int fd, const char *path, int64_t offset, size_t want, ax_buf *text, bool *end)
{
    *end = false;
    AX_TRY(ax_buf_reserve(text, want > text->size ? want - text->size : 0));
    while (text->size < want) {
        ssize_t n = pread(fd, text->data + text->size, want - text->size, offset + (int64_t)text->size);
        if (n < 0 && errno == EINTR)
            continue;
        AX_CHECK(n >= 0, AX_ERR_DATA, "cannot read %s: %s", path, strerror(errno));
        *end = n == 0;
        if (!n)
            return AX_OK;
        text->size += (size_t)n;
    }
    return AX_OK;
}

/* Counts the pieces of one chunk: the text from the first cut (find_cut) at or after `offset`, or from the
 * start of the file if `offset` is 0, to the first cut at or after the next chunk's offset, or to the end of
 * the file if there is no such cut. */
static ax_status count_chunk(worker *w, int fd, const char *path, int64_t offset)
{
    size_t before = offset > 0; /* find_cut looks at the byte before a cut */
    bool end;
    w->text.size = 0;
    AX_TRY(read_until(fd, path, offset - (int64_t)before, before + CHUNK + LOOK_AHEAD, &w->text, &end));
    size_t from = offset ? find_cut(w->text.data, w->text.size, before) : 0;
    if (from >= before + CHUNK)
        return AX_OK;
    size_t looked = before + CHUNK, to;
    while ((to = find_cut(w->text.data, w->text.size, looked)) == w->text.size && !end) {
        looked = w->text.size;
        AX_TRY(read_until(fd, path, offset - (int64_t)before, 2 * w->text.size, &w->text, &end));
    }
    AX_TRY(count_text(w, w->text.data + from, to - from));
    return add_progress(w->job, to - from);
}

static ax_status count_stream(worker *w, const char *path)
{
    char *text;
    size_t n;
    AX_TRY(ax_file_read(path, &text, &n));
    ax_status status = count_text(w, text, n);
    free(text);
    AX_TRY(status);
    return add_progress(w->job, n);
}

static ax_status count_one(worker *w, const chunk *c)
{
    const char *path = w->job->training->paths[c->path];
    if (c->offset < 0)
        return count_stream(w, path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    AX_CHECK(fd >= 0, AX_ERR_DATA, "cannot open %s: %s", path, strerror(errno));
    ax_status status = count_chunk(w, fd, path, c->offset);
    close(fd);
    return status;
}

/* Counts the documents that the caller's function training->next supplies. */
static ax_status count_supplied(worker *w)
{
    job *j = w->job;
    const ax_tokenizer_training *t = j->training;
    while (t->next && !atomic_load(&j->stop)) {
        bool end = false;
        ax_status status = AX_OK;
        w->text.size = 0;
        pthread_mutex_lock(&j->lock);
        if (!j->supplied_all)
            status = t->next(t->next_arg, &w->text, &end);
        end |= j->supplied_all;
        j->supplied_all |= end || status != AX_OK;
        pthread_mutex_unlock(&j->lock);
        AX_TRY(status);
        if (end)
            break;
        AX_TRY(count_text(w, w->text.data, w->text.size));
        AX_TRY(add_progress(j, w->text.size));
    }
    return AX_OK;
}

static ax_status count_all(worker *w)
{
    AX_TRY(tok_matcher_init(&w->matcher));
    for (size_t i;
         !atomic_load(&w->job->stop) && (i = atomic_fetch_add(&w->job->next, 1)) < w->job->n_chunks;)
        AX_TRY(count_one(w, &w->job->chunks[i]));
    return count_supplied(w);
}

static void *work(void *arg)
{
    worker *w = arg;
    w->status = count_all(w);
    if (w->status != AX_OK) {
        atomic_store(&w->job->stop, true);
        strncpy(w->message, ax_error_message(), sizeof w->message - 1);
    }
    return NULL;
}

/* ---- the whole ---- */

static ax_status list_chunks(job *j)
{
    const ax_tokenizer_training *t = j->training;
    size_t capacity = 0;
    for (size_t i = 0; i < t->n_paths; i++) {
        struct stat info;
        AX_CHECK(!stat(t->paths[i], &info), AX_ERR_DATA, "cannot open %s: %s", t->paths[i], strerror(errno));
        AX_CHECK(!S_ISDIR(info.st_mode), AX_ERR_DATA, "%s is a directory; give its files", t->paths[i]);
        bool sized = S_ISREG(info.st_mode);
        j->total += sized ? (int64_t)info.st_size : 0;
        for (int64_t offset = 0; !offset || (sized && offset < info.st_size); offset += CHUNK) {
            AX_TRY(bpe_grow(&j->chunks, &capacity, j->n_chunks + 1, sizeof *j->chunks));
            j->chunks[j->n_chunks++] = (chunk){i, sized ? offset : -1};
        }
    }
    return AX_OK;
}

/* Runs the workers; the calling thread is worker 0. If workers failed, returns the error of the one with the
 * lowest number. */
static ax_status run_workers(worker *workers, int n)
{
    for (int i = 1; i < n; i++)
        workers[i].started = !ax_thread_start(&workers[i].thread, work, &workers[i]);
    work(&workers[0]);
    for (int i = 1; i < n; i++)
        if (workers[i].started)
            pthread_join(workers[i].thread, NULL);
    for (int i = 0; i < n; i++)
        if (workers[i].status != AX_OK)
            return ax_fail(workers[i].status, "%s", workers[i].message);
    return AX_OK;
}

static ax_status sum_tables(worker *workers, int n, bpe_table *out)
{
    *out = workers[0].table;
    workers[0].table = (bpe_table){0};
    for (int i = 1; i < n; i++) {
        const bpe_table *t = &workers[i].table;
        for (size_t k = 0; k < t->n; k++)
            AX_TRY(
                bpe_table_add(out, t->bytes + t->words[k].start, t->words[k].size, t->words[k].count, NULL));
        bpe_table_fini(&workers[i].table);
    }
    return AX_OK;
}

static ax_status count_in_threads(job *j, int threads, bpe_table *out)
{
    worker *workers;
    AX_TRY(list_chunks(j));
    AX_TRY(ax_calloc((size_t)threads, sizeof *workers, &workers));
    for (int i = 0; i < threads; i++)
        workers[i].job = j;
    ax_status status = run_workers(workers, threads);
    if (status == AX_OK)
        status = sum_tables(workers, threads, out);
    for (int i = 0; i < threads; i++) {
        tok_matcher_fini(&workers[i].matcher);
        bpe_table_fini(&workers[i].table);
        ax_buf_fini(&workers[i].text);
        ax_buf_fini(&workers[i].normal);
    }
    free(workers);
    return status;
}

ax_status bpe_count(const ax_tokenizer_training *training, const tok_stage *stage, int form, bpe_table *out)
{
    job j = {.training = training, .stage = stage, .form = form};
    pthread_mutex_init(&j.lock, NULL);
    *out = (bpe_table){0};
    ax_status status = count_in_threads(&j, training->threads > 0 ? training->threads : ax_processors(), out);
    if (status != AX_OK)
        bpe_table_fini(out);
    pthread_mutex_destroy(&j.lock);
    free(j.chunks);
    return status;
}
