/* base: status and errors, log, buffers, files, clock, threads, arenas, counter-based random numbers.
 *
 * Everything in axonn stands on this header and nothing here knows about tensors. Start reading at
 * ax_status: it is the return type of almost every function of the library. All functions are
 * "Not collective" and thread-safe on distinct objects unless they say otherwise. */
#ifndef AXONN_BASE_H
#define AXONN_BASE_H

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define AX_MUST_CHECK __attribute__((warn_unused_result))
#define AX_PRINTF(fmt_arg, first_arg) __attribute__((format(printf, fmt_arg, first_arg)))
#define AX_COUNT(array) (sizeof(array) / sizeof((array)[0]))

static inline int64_t ax_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t ax_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t ax_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t ax_round_up(int64_t a, int64_t b) { return ax_ceil_div(a, b) * b; }

/* ---- status -------------------------------------------------------------------------------------- */

/* The values are the exit codes of the program `axonn`. */
typedef enum ax_status {
    AX_OK = 0,
    AX_ERR_INTERNAL = 1, /* a bug of this library */
    AX_ERR_USAGE = 2,    /* command line, configuration or API arguments */
    AX_ERR_MEMORY = 3,
    AX_ERR_DATA = 4, /* a file or data set is missing, damaged or of another shape */
    AX_ERR_COMM = 5,
    AX_ERR_NUMERIC = 6,
    AX_ERR_SIGNAL = 7 /* stopped by a signal, what was done is saved */
} ax_status;

/* Short English name of a status, never NULL. */
const char *ax_status_name(ax_status status);

/* Records a message for the calling thread and returns `code`. The function that decides an error calls
 * this once; everyone above only propagates (AX_TRY). The message says what was wrong, where, and what to
 * do next; it has no trailing newline. Messages longer than 16383 bytes are cut. */
ax_status ax_fail(ax_status code, const char *fmt, ...) AX_PRINTF(2, 3);
/* Shows compilers and analysers, which do not see into ax_fail, that a failure is never AX_OK. */
static inline ax_status ax_fail_code_(ax_status code) { return code; }
#define ax_fail(code, ...) (ax_fail(code, __VA_ARGS__), ax_fail_code_(code))

/* Puts "text: " in front of the calling thread's message, for callers that know more of the place. */
void ax_error_context(const char *fmt, ...) AX_PRINTF(1, 2);

/* The calling thread's last message ("" if none); valid until its next ax_fail. */
const char *ax_error_message(void);
/* The status it was recorded with, AX_OK if none: for functions that return NULL on failure. */
ax_status ax_error_status(void);
/* Marks the last failure as one that all ranks return alike, until the next ax_fail: then rank 0 alone need
 * tell it. ax_comm_agree does it. */
void ax_error_share(void);
bool ax_error_is_shared(void);

#define AX_TRY(expr)                                                                                         \
    do {                                                                                                     \
        ax_status ax_try_status_ = (expr);                                                                   \
        if (ax_try_status_ != AX_OK)                                                                         \
            return ax_try_status_;                                                                           \
    } while (0)

/* Guards user input and results of the system; always on. */
#define AX_CHECK(cond, code, ...)                                                                            \
    do {                                                                                                     \
        if (!(cond))                                                                                         \
            return ax_fail((code), __VA_ARGS__);                                                             \
    } while (0)

/* States an invariant of the library; compiled out with NDEBUG. */
#ifdef NDEBUG
#define AX_ASSERT(cond) ((void)sizeof(cond))
#else
#define AX_ASSERT(cond) ((cond) ? (void)0 : ax_assert_failed(#cond, __FILE__, __LINE__))
#endif
void ax_assert_failed(const char *cond, const char *file, int line) __attribute__((noreturn));

/* ---- log ----------------------------------------------------------------------------------------- */

typedef enum ax_log_level { AX_LOG_ERROR, AX_LOG_WARN, AX_LOG_INFO, AX_LOG_DEBUG, AX_LOG_TRACE } ax_log_level;

/* Writes one line to stderr if `level` is enabled. INFO is written on rank 0 only; other levels carry the
 * rank where there is more than one. */
void ax_log(ax_log_level level, const char *fmt, ...) AX_PRINTF(2, 3);

/* The process-wide level (default INFO; environment AXONN_LOG=error|warn|info|debug|trace). */
void ax_log_set_level(ax_log_level level);

/* Tells the log which rank of how many the calling thread is (default 0 of 1). */
void ax_log_set_rank(int rank, int size);

/* ---- host memory --------------------------------------------------------------------------------- */

/* Zeroed host memory for set-up data, never on a hot path; *out is a pointer to any object pointer. The
 * caller owns it and releases it with free(). AX_ERR_MEMORY. count or size 0 gives a valid pointer. */
AX_MUST_CHECK ax_status ax_calloc(size_t count, size_t size, void *out);

/* Copies of a string or of at most n bytes of it; the caller frees. */
AX_MUST_CHECK ax_status ax_strdup(const char *text, char **out);
AX_MUST_CHECK ax_status ax_strndup(const char *text, size_t n, char **out);

/* A growable byte buffer. Zero-initialise to start; `data` is NUL-terminated once anything was added and
 * is owned by the buffer. */
typedef struct ax_buf {
    char *data;
    size_t size, capacity;
} ax_buf;
AX_MUST_CHECK ax_status ax_buf_add(ax_buf *buf, const void *bytes, size_t n);
AX_MUST_CHECK ax_status ax_buf_reserve(ax_buf *buf, size_t extra);
AX_MUST_CHECK ax_status ax_buf_printf(ax_buf *buf, const char *fmt, ...) AX_PRINTF(2, 3);
void ax_buf_fini(ax_buf *buf);

/* Memory that comes from the system in whole pages with an inaccessible guard page on either side: an
 * overrun of more than the last page's slack is a fault, not silence. `bytes` is rounded up to pages; the
 * block ends at the rear guard page. Zeroed. Large blocks ask for huge pages. AX_ERR_MEMORY. */
typedef struct ax_region {
    char *base;   /* first usable byte, aligned to 4096 */
    size_t bytes; /* usable */
} ax_region;
AX_MUST_CHECK ax_status ax_region_create(size_t bytes, ax_region *out);
void ax_region_destroy(ax_region *region);

/* ---- files --------------------------------------------------------------------------------------- */

/* Opens a file to read it; the caller closes *fd. A named pipe without a writer is opened at once.
 * AX_ERR_DATA */
AX_MUST_CHECK ax_status ax_file_open(const char *path, int *fd);
/* Waits until a read of the descriptor returns at once. AX_ERR_SIGNAL: a signal was noted meanwhile, or
 * before (ax_signal_noted); `path` names the descriptor. Descriptors of regular files never wait. */
AX_MUST_CHECK ax_status ax_file_wait(int fd, const char *path);
/* Appends what a descriptor gives until it ends. AX_ERR_DATA: it cannot be read, or gives more than `most`
 * bytes; AX_ERR_SIGNAL: as ax_file_wait. */
AX_MUST_CHECK ax_status ax_file_read_stream(int fd, const char *path, int64_t most, ax_buf *buf);
/* Whole file into a fresh buffer (NUL-terminated beyond *size); the caller frees. AX_ERR_DATA: it cannot be
 * read, or holds more than `most` bytes, as a device that never ends does. */
AX_MUST_CHECK ax_status ax_file_read_most(const char *path, int64_t most, char **data, size_t *size);
/* The same without a limit for files, and with one of 1 GiB for pipes and devices. */
AX_MUST_CHECK ax_status ax_file_read(const char *path, char **data, size_t *size);

/* The file that a writer replaces who was asked for `path`: what symbolic links lead to; the caller frees.
 * AX_ERR_DATA for links to nothing, and if a directory, a device or a pipe is there. */
AX_MUST_CHECK ax_status ax_file_to_replace(const char *path, char **out);
/* Writes aside, syncs and renames, so that `path` holds either its old or its whole new content. */
AX_MUST_CHECK ax_status ax_file_write_atomic(const char *path, const void *data, size_t size);

/* write(2) / pread(2) until all is done. `path` serves the message only. */
AX_MUST_CHECK ax_status ax_write_all(int fd, const void *data, size_t size, const char *path);
AX_MUST_CHECK ax_status ax_pwrite_all(int fd, const void *data, size_t size, int64_t offset,
                                      const char *path);
AX_MUST_CHECK ax_status ax_pread_all(int fd, void *data, size_t size, int64_t offset, const char *path);

/* Creates a directory and its parents; an existing directory is fine. */
AX_MUST_CHECK ax_status ax_mkdirs(const char *path);
/* Syncs the directory itself, so that renames in it survive a crash. */
AX_MUST_CHECK ax_status ax_dir_sync(const char *path);
/* Removes a file or a whole tree; a missing path is fine. Never follows links. */
AX_MUST_CHECK ax_status ax_remove_tree(const char *path);
bool ax_path_exists(const char *path);
bool ax_path_is_dir(const char *path);
/* True if both name the same entry of the same directory, however spelled and whether it exists or not. */
bool ax_path_same(const char *a, const char *b);

/* "a/b" from "a" and "b"; an absolute `name` is returned as it is. The caller frees. */
AX_MUST_CHECK ax_status ax_path_join(const char *dir, const char *name, char **out);

/* ---- clock --------------------------------------------------------------------------------------- */

double ax_now(void);        /* seconds, monotonic, arbitrary origin */
double ax_cpu_now(void);    /* CPU seconds of the calling thread */
double ax_wall_clock(void); /* seconds since 1970 */

/* Peak resident memory of this process in bytes as the system counts it (VmHWM), and the present one. */
int64_t ax_memory_peak(void);
int64_t ax_memory_now(void);
/* Of the present one, memory that other processes see too (RssShmem). */
int64_t ax_memory_shared(void);
/* Returns freed memory to the system and lets VmHWM begin again from what is resident now. */
void ax_memory_restart_peak(void);
/* What this process may still use: the least of MemAvailable, of what its control groups leave (cached files
 * are given back), and of its address space limit. -1: unknown. */
int64_t ax_memory_available(void);

/* A number that processes of one host share, and those of others most likely do not: its name, and when its
 * kernel was started, make it. */
uint64_t ax_host_key(void);

/* ---- signals ------------------------------------------------------------------------------------- */

/* For handlers of signals that ask the process to stop (async-signal-safe): notes that one came. *first_ms, 0
 * before any signal, keeps the moment of the first one; true for a signal that comes a second or more after
 * it. One that comes sooner is the same signal twice: terminals and launchers send to a process and to its
 * group. */
bool ax_signal_again(int64_t *first_ms);
/* Whether one was noted since the last call of ax_signal_forget. What waits for bytes of a pipe then gives
 * up. */
bool ax_signal_noted(void);
void ax_signal_forget(void);

/* ---- threads ------------------------------------------------------------------------------------- */

/* pthread_create, but the new thread may run on all processors of this process: not only on the core that the
 * calling one is bound to (dev.h). Its stack has AX_THREAD_STACK bytes, whatever the limit of the process's
 * own is (ulimit -s). Returns 0 or an errno. */
enum { AX_THREAD_STACK = 8 << 20 };
int ax_thread_start(pthread_t *thread, void *(*main)(void *), void *arg);
/* The number of these processors, at least 1. */
int ax_processors(void);

/* ---- random numbers ------------------------------------------------------------------------------ */

/* Philox4x32-10 (Salmon et al., SC'11): four 32-bit words, a pure function of key and counter. All
 * randomness of axonn is drawn so, keyed by *global* element indices, never by rank or thread. */
void ax_philox(uint64_t key, uint64_t counter_hi, uint64_t counter_lo, uint32_t out[4]);

/* A key for a purpose: mixes the run's seed with a name ("init/h.0.attn.q") and an index. */
uint64_t ax_rng_key(uint64_t seed, const char *purpose, uint64_t index);

/* Uniform in [0, 1) with 24 bits, and standard normal (Box-Muller), for element `index` of stream `key`.
 * Elements 4k … 4k+3 share one Philox block. */
float ax_rng_uniform(uint64_t key, uint64_t index);
float ax_rng_normal(uint64_t key, uint64_t index);

/* A keyed permutation of 0 … n-1 in O(1) memory (a four-round-plus Feistel network with cycle walking):
 * returns the image of `index`. A bijection for every key. n > 0, index < n. */
uint64_t ax_permute(uint64_t key, uint64_t n, uint64_t index);

/* ---- numbers ------------------------------------------------------------------------------------- */

/* Bytes for people: "12.3 MiB". Writes at most 32 bytes and returns `out`. */
char *ax_format_bytes(double bytes, char out[32]);
/* Appends to the text in `out`, which has room for `room` bytes, its NUL included. What does not fit is cut.
 */
void ax_text_add(char *out, size_t room, const char *fmt, ...) AX_PRINTF(3, 4);
void ax_text_add_args(char *out, size_t room, const char *fmt, va_list args) AX_PRINTF(3, 0);
/* Seconds for people: "412 ms", "3m12s", "1h05m". */
char *ax_format_seconds(double seconds, char out[32]);

/* The largest divisor of n > 0 that is at most `most` >= 1. */
int64_t ax_divisor_below(int64_t n, int64_t most);

/* What n > 0 measurements come to; they are sorted where they are. */
typedef struct ax_spread {
    double median, min, max, mean;
} ax_spread;
ax_spread ax_spread_of(double *value, int64_t n);

/* Edit distance of two short strings, for "did you mean"; two neighbours exchanged are one edit. */
int ax_edit_distance(const char *a, const char *b);

/* The release, e.g. "0.1.0", and the commit it was built from ("unknown" outside a checkout). */
const char *ax_version(void);
const char *ax_commit(void);

#ifdef __cplusplus
}
#endif
#endif
