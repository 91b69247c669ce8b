/* base: status and errors, log, host memory, files, clock, signals, threads, counter-based random numbers.
 *
 * All of axonn builds on this header, and nothing here knows about tensors. Start reading at ax_status, the
 * return type of almost all functions that can fail. No function is collective. Each function is thread-safe
 * on distinct objects, unless its comment says otherwise. */
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

/* The status of a function. Its values are also the exit codes of the program `axonn`. */
typedef enum ax_status {
    AX_OK = 0,
    AX_ERR_INTERNAL = 1, /* a bug of this library */
    AX_ERR_USAGE = 2,    /* a wrong command line, configuration or function argument */
    AX_ERR_MEMORY = 3,
    AX_ERR_DATA = 4, /* a file or data set is missing, damaged, or not what is expected (format, sizes) */
    AX_ERR_COMM = 5,
    AX_ERR_NUMERIC = 6,
    AX_ERR_SIGNAL = 7 /* stopped by a signal, or by a callback that returned false */
} ax_status;

/* Returns a short English name of a status; never NULL. */
const char *ax_status_name(ax_status status);

/* Records a message for the calling thread and returns `code`. The function that finds an error calls this
 * once; its callers only return the status (AX_TRY). The message says what is wrong, where, and what to do
 * next; it has no trailing newline. Messages longer than 16383 bytes are cut. */
ax_status ax_fail(ax_status code, const char *fmt, ...) AX_PRINTF(2, 3);
/* Compilers and analysers cannot see that ax_fail returns `code`. The inline function and the macro below
 * show this to the compiler, which then knows that a failure is never AX_OK. */
static inline ax_status ax_fail_code_(ax_status code) { return code; }
#define ax_fail(code, ...) (ax_fail(code, __VA_ARGS__), ax_fail_code_(code))

/* Puts the formatted text and ": " in front of the calling thread's message. For callers that know more than
 * the failed function about the place of the error. */
void ax_error_context(const char *fmt, ...) AX_PRINTF(1, 2);

/* Returns the calling thread's last message ("" if none), which is valid until this thread calls ax_fail or
 * ax_error_context again. */
const char *ax_error_message(void);
/* Returns the status that belongs to ax_error_message, AX_OK if there is no message. For callers of functions
 * that return NULL instead of a status on failure. */
ax_status ax_error_status(void);
/* ax_error_share marks the thread's last error as shared: all ranks return it, so only rank 0 has to print
 * it. ax_comm_agree calls this function; the next ax_fail removes the mark. ax_error_is_shared returns
 * whether the error has the mark. */
void ax_error_share(void);
bool ax_error_is_shared(void);

#define AX_TRY(expr)                                                                                         \
    do {                                                                                                     \
        ax_status ax_try_status_ = (expr);                                                                   \
        if (ax_try_status_ != AX_OK)                                                                         \
            return ax_try_status_;                                                                           \
    } while (0)

/* Makes the calling function fail with status `code` and a message (ax_fail), unless `cond` is true. For user
 * input and results of system calls; always compiled in. */
#define AX_CHECK(cond, code, ...)                                                                            \
    do {                                                                                                     \
        if (!(cond))                                                                                         \
            return ax_fail((code), __VA_ARGS__);                                                             \
    } while (0)

/* Aborts if an invariant of the library is violated; compiled out with NDEBUG. */
#ifdef NDEBUG
#define AX_ASSERT(cond) ((void)sizeof(cond))
#else
#define AX_ASSERT(cond) ((cond) ? (void)0 : ax_assert_failed(#cond, __FILE__, __LINE__))
#endif
void ax_assert_failed(const char *cond, const char *file, int line) __attribute__((noreturn));

/* ---- log ----------------------------------------------------------------------------------------- */

typedef enum ax_log_level { AX_LOG_ERROR, AX_LOG_WARN, AX_LOG_INFO, AX_LOG_DEBUG, AX_LOG_TRACE } ax_log_level;

/* Writes one line to stderr if `level` is enabled; a line is cut after about 4 KiB. INFO is written on rank 0
 * only. On other levels the line names the rank, if there are several ranks. */
void ax_log(ax_log_level level, const char *fmt, ...) AX_PRINTF(2, 3);

/* Sets the log level of this process. Without a call, the level is the value of the setting runtime.log
 * (runtime.h). */
void ax_log_set_level(ax_log_level level);

/* Sets the rank of the calling thread, and the number of ranks, for the log (default 0 and 1). */
void ax_log_set_rank(int rank, int size);

/* ---- host memory --------------------------------------------------------------------------------- */

/* Allocates zeroed host memory, for set-up, never on a hot path. `out` is the address of a pointer of any
 * object type. The caller releases the memory with free(). If count or size is 0, the pointer is still not
 * NULL. AX_ERR_MEMORY. */
AX_MUST_CHECK ax_status ax_calloc(size_t count, size_t size, void *out);

/* Copy `text` (ax_strdup), or at most its first n bytes (ax_strndup). The caller frees *out. */
AX_MUST_CHECK ax_status ax_strdup(const char *text, char **out);
AX_MUST_CHECK ax_status ax_strndup(const char *text, size_t n, char **out);

/* A growable byte buffer. A buffer of zeros is valid and empty. `data` is owned by the buffer, and
 * NUL-terminated once anything was added. ax_buf_reserve allocates memory for `extra` more bytes.
 * AX_ERR_MEMORY. */
typedef struct ax_buf {
    char *data;
    size_t size, capacity;
} ax_buf;
AX_MUST_CHECK ax_status ax_buf_add(ax_buf *buf, const void *bytes, size_t n);
AX_MUST_CHECK ax_status ax_buf_reserve(ax_buf *buf, size_t extra);
AX_MUST_CHECK ax_status ax_buf_printf(ax_buf *buf, const char *fmt, ...) AX_PRINTF(2, 3);
void ax_buf_fini(ax_buf *buf);

/* Makes room for one more element in a list of `count` elements of `size` bytes. `items` is the address of
 * the list's pointer, which is NULL at first, and which only this function changes: a list has room for
 * `count` elements, rounded up to a power of two. AX_ERR_MEMORY; the list is then as before. */
AX_MUST_CHECK ax_status ax_list_grow(void *items, size_t count, size_t size);

/* A list of texts. A list of zeros is valid and empty. ax_strings_add prints a text and appends it,
 * ax_strings_sort sorts by bytes. */
typedef struct ax_strings {
    char **items;
    size_t count;
} ax_strings;
AX_MUST_CHECK ax_status ax_strings_add(ax_strings *list, const char *fmt, ...) AX_PRINTF(2, 3);
void ax_strings_sort(ax_strings *list);
void ax_strings_fini(ax_strings *list);

/* Zeroed memory in whole pages, between two inaccessible guard pages: an access to the page before the first
 * or after the last one is a segmentation fault instead of silent damage. `bytes` is rounded up to whole
 * pages. For large regions the system is asked for huge pages. AX_ERR_MEMORY. */
typedef struct ax_region {
    char *base;   /* first usable byte, aligned to 4096 bytes */
    size_t bytes; /* usable */
} ax_region;
AX_MUST_CHECK ax_status ax_region_create(size_t bytes, ax_region *out);
void ax_region_destroy(ax_region *region);

/* ---- files --------------------------------------------------------------------------------------- */

/* Opens a file to read it; the caller closes *fd. Opening a named pipe does not wait for a writer.
 * AX_ERR_DATA if the file cannot be opened. */
AX_MUST_CHECK ax_status ax_file_open(const char *path, int *fd);
/* Waits until a read of the descriptor would not block; returns at once for a regular file. `path` is for
 * messages. AX_ERR_SIGNAL: a signal was noted (ax_signal_noted) before or during the call. */
AX_MUST_CHECK ax_status ax_file_wait(int fd, const char *path);
/* Reads a descriptor up to the end of file and appends the bytes to `buf`. AX_ERR_DATA: the descriptor cannot
 * be read, or `buf` would hold more than `most` bytes; AX_ERR_SIGNAL: as ax_file_wait. */
AX_MUST_CHECK ax_status ax_file_read_stream(int fd, const char *path, int64_t most, ax_buf *buf);
/* Reads a whole file into a new buffer, with a NUL after its *size bytes; the caller frees *data.
 * AX_ERR_DATA: the file cannot be read, has more than `most` bytes, or is a pipe or device that gives more
 * than 1 GiB (a device such as /dev/zero has no end). AX_ERR_SIGNAL: as ax_file_wait, while waiting for a
 * pipe or device. */
AX_MUST_CHECK ax_status ax_file_read_most(const char *path, int64_t most, char **data, size_t *size);
/* Reads a whole file into a new buffer, as ax_file_read_most does. A regular file may have any size; a pipe
 * or a device may give at most 1 GiB. */
AX_MUST_CHECK ax_status ax_file_read(const char *path, char **data, size_t *size);

/* Finds the file that a write to `path` replaces: *out is `path` with symbolic links resolved or, if no such
 * file exists, a copy of `path`; the caller frees it. AX_ERR_DATA if `path` is a link whose target does not
 * exist, or is no regular file (a directory, a pipe). */
AX_MUST_CHECK ax_status ax_file_to_replace(const char *path, char **out);
/* Replaces the content of `path`: writes a temporary file, syncs it and renames it to `path` (if `path` is a
 * link: to the link's target). So even after a crash `path` has either its old or its whole new content. */
AX_MUST_CHECK ax_status ax_file_write_atomic(const char *path, const void *data, size_t size);
/* Writes a file in its place, and syncs it: a crash may leave a part of it. */
AX_MUST_CHECK ax_status ax_file_write_synced(const char *path, const void *data, size_t size);
/* Copies the content of the file `from` to `to`, and syncs it: a crash may leave a part of it. */
AX_MUST_CHECK ax_status ax_file_copy_synced(const char *from, const char *to);

/* Call write(2), pwrite(2) or pread(2) until all bytes are done. AX_ERR_DATA if a call fails, or if the file
 * ends before all bytes are read. `path` is for messages only. */
AX_MUST_CHECK ax_status ax_write_all(int fd, const void *data, size_t size, const char *path);
AX_MUST_CHECK ax_status ax_pwrite_all(int fd, const void *data, size_t size, int64_t offset,
                                      const char *path);
AX_MUST_CHECK ax_status ax_pread_all(int fd, void *data, size_t size, int64_t offset, const char *path);

/* Creates a directory and its parents; an existing directory is no error. */
AX_MUST_CHECK ax_status ax_mkdirs(const char *path);
/* Syncs the directory itself, so that renames in it survive a crash. */
AX_MUST_CHECK ax_status ax_dir_sync(const char *path);
/* Lists the names in a directory, "." and ".." left out, sorted by bytes; the caller releases *out with
 * ax_strings_fini, also on failure. AX_ERR_DATA if the directory cannot be listed. */
AX_MUST_CHECK ax_status ax_dir_list(const char *dir, ax_strings *out);
/* Returns true if directory `dir` has a file or directory of this name. */
bool ax_dir_has(const char *dir, const char *name);
/* Removes a file, or a directory with all its content. It is no error if `path` does not exist. Symbolic
 * links are removed, never followed. */
AX_MUST_CHECK ax_status ax_remove_tree(const char *path);
/* Returns the directory for temporary files: the value of the environment variable TMPDIR, or "/tmp" if that
 * variable is unset or empty. */
const char *ax_temporary_dir(void);
/* Returns the bytes that are available in the file system of directory `dir`; INFINITY: unknown. */
double ax_dir_available(const char *dir);
/* Checks that the file system of directory `dir` has `bytes` free bytes. If not, returns AX_ERR_DATA; the
 * message says that `what` ("the checkpoint") needs this many bytes. Returns AX_OK if the free space is
 * unknown: a later write may then fail for lack of space. */
AX_MUST_CHECK ax_status ax_dir_has_space(const char *dir, int64_t bytes, const char *what);
/* If a file with these first bytes (36 are enough) is none that the program reads, but one that a failed
 * download or another program left in its place (a Git LFS pointer, a web page, a file of torch.save, …),
 * returns what it is and what to do, to follow the file's name in a message. Otherwise returns NULL. */
const char *ax_file_stand_in(const char *bytes, size_t size);
bool ax_path_exists(const char *path);
/* Returns true if there is an optional file to read: also if it is a link whose target is missing, as in a
 * damaged copy of the hub's cache, so that reading it fails and names it. */
bool ax_path_is_given(const char *path);
bool ax_path_is_dir(const char *path);
/* Returns true if both paths end with the same name in the same directory, however that directory is spelled.
 * The entry need not exist, and is not resolved if it is a link. If one of the two directories does not
 * exist, compares the paths as texts. */
bool ax_path_same(const char *a, const char *b);

/* Joins `dir` and `name`: "a" and "b" give "a/b"; an absolute `name`, or any name if `dir` is "", is returned
 * unchanged. The caller frees *out. */
AX_MUST_CHECK ax_status ax_path_join(const char *dir, const char *name, char **out);

/* ---- clock --------------------------------------------------------------------------------------- */

double ax_now(void);        /* seconds, monotonic, arbitrary origin */
double ax_cpu_now(void);    /* CPU seconds of the calling thread */
double ax_wall_clock(void); /* seconds since 1970 */

/* Return the peak and the current resident memory of this process in bytes, as /proc reports it (VmHWM,
 * VmRSS); -1: unknown. */
int64_t ax_memory_peak(void);
int64_t ax_memory_now(void);
/* Returns the part of the current resident memory that other processes can share (RssShmem); -1: unknown. */
int64_t ax_memory_shared(void);
/* Returns freed memory to the system and resets the peak (VmHWM) to the memory that is resident now, if the
 * system allows that. */
void ax_memory_restart_peak(void);
/* Returns the bytes that this process can still allocate: the smallest of MemAvailable in /proc/meminfo, the
 * bytes left below the memory limits of its control groups, and the bytes left below its address space limit
 * (RLIMIT_AS). Cached files that were not used lately (inactive_file) do not count as used in a control
 * group. -1: unknown. */
int64_t ax_memory_available(void);

/* Returns a key that is equal in all processes of a host and almost certainly differs between hosts: a hash
 * of the host's name and its kernel's boot id. A container with a host name of its own counts as a host. */
uint64_t ax_host_key(void);
/* Returns a key that is equal in all processes that run under one kernel, those of all its containers, which
 * share its processors. */
uint64_t ax_kernel_key(void);

/* ---- signals ------------------------------------------------------------------------------------- */

/* Notes the arrival of a signal that asks the process to stop (ax_signal_noted). The handlers of such signals
 * call this function; it is async-signal-safe. *first_ms, which the caller sets to 0 at the beginning, keeps
 * the time of the first signal in milliseconds. Returns true for a signal that comes a second or more after
 * the first. A second signal that comes earlier counts as the same signal, because terminals and launchers
 * send a signal both to a process and to its process group. */
bool ax_signal_again(int64_t *first_ms);
/* Returns true if a signal was noted (ax_signal_again) since the last call of ax_signal_forget. If so,
 * functions that wait for bytes of a pipe (ax_file_wait) give up. */
bool ax_signal_noted(void);
void ax_signal_forget(void);

/* ---- threads ------------------------------------------------------------------------------------- */

/* Starts a thread that runs main(arg), as pthread_create does, with two differences. The new thread may run
 * on all processors of this process, even if the calling thread is bound to a core (dev.h). Its stack has
 * AX_THREAD_STACK bytes, whatever the limit of the process (ulimit -s). Returns 0 or an errno. */
enum { AX_THREAD_STACK = 8 << 20 };
int ax_thread_start(pthread_t *thread, void *(*main)(void *), void *arg);
/* Returns the number of processors that this process may use, at least 1. */
int ax_processors(void);

/* ---- random numbers ------------------------------------------------------------------------------ */

/* Computes four 32-bit words by Philox4x32-10 (Salmon et al., SC'11), a pure function of key and counter. All
 * random numbers of models and data come from this generator. Counters are made of *global* element indices
 * (positions in the whole array), never of rank or thread, so each grid of ranks draws the same numbers. */
void ax_philox(uint64_t key, uint64_t counter_hi, uint64_t counter_lo, uint32_t out[4]);

/* Returns a Philox key: a hash of the run's seed, of the purpose of the random numbers (such as "data/order",
 * or the name of the weight whose initial values are drawn), and of an index. */
uint64_t ax_rng_key(uint64_t seed, const char *purpose, uint64_t index);

/* Returns a hash of x: splitmix64's output function (Steele, Lea and Flood, OOPSLA'14). A bijection. */
static inline uint64_t ax_mix64(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* Return random number `index` of the sequence that `key` selects: uniform in [0, 1) with 24 bits, or
 * standard normal (Box-Muller). Numbers 4k … 4k+3 come from one call of ax_philox. */
float ax_rng_uniform(uint64_t key, uint64_t index);
float ax_rng_normal(uint64_t key, uint64_t index);

/* Returns the number to which a keyed permutation of 0 … n-1 maps `index`. Every key gives a bijection; the
 * function needs O(1) memory (a six-round Feistel network with cycle walking). n > 0, index < n. */
uint64_t ax_permute(uint64_t key, uint64_t n, uint64_t index);

/* ---- numbers ------------------------------------------------------------------------------------- */

/* Prints a number of bytes with a unit: "12.3 MiB". Writes at most 32 bytes and returns `out`. */
char *ax_format_bytes(double bytes, char out[32]);
/* Appends formatted text to the string in `out`, a buffer of `room` bytes. Text that does not fit is cut off;
 * the result always ends with a NUL. */
void ax_text_add(char *out, size_t room, const char *fmt, ...) AX_PRINTF(3, 4);
void ax_text_add_args(char *out, size_t room, const char *fmt, va_list args) AX_PRINTF(3, 0);
/* Prints a duration, given in seconds, with units: "412 ms", "3m12s", "1h05m". Returns `out`. */
char *ax_format_seconds(double seconds, char out[32]);

/* Returns the largest divisor of n > 0 that is at most `most` >= 1. */
int64_t ax_divisor_below(int64_t n, int64_t most);

/* A summary of n > 0 measurements. ax_spread_of computes it from the array `value`, which it sorts in
 * place. */
typedef struct ax_spread {
    double median, min, max, mean;
} ax_spread;
ax_spread ax_spread_of(double *value, int64_t n);

/* Returns the edit distance of two strings, for messages such as "did you mean". Only the first 128 bytes of
 * each string count. Swapping two adjacent characters is one edit. */
int ax_edit_distance(const char *a, const char *b);

/* Return the version, e.g. "0.1.0", and the Git commit from which it was built ("unknown" outside a
 * checkout). */
const char *ax_version(void);
const char *ax_commit(void);

#ifdef __cplusplus
}
#endif
#endif
