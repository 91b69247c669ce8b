/* The common part of all harnesses: seeds, files, a mutator, and the checks of each input. */
#include "fuzz/fuzz.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);

enum { CPU_SECONDS = 2 };

/* ---- files --------------------------------------------------------------------------------------- */

/* fuzz/NAME. Harnesses read files/ in it; seeds/ has the seeds. */
static char folder[512];

/* The files of a harness need not survive a crash, so fsync takes no time. */
int fsync(int fd)
{
    (void)fd;
    return 0;
}

const char *fuzz_path(const char *name)
{
    static char path[8][1024];
    static int turn;
    char *out = path[turn++ % 8];
    snprintf(out, sizeof path[0], "%s/files/%s", folder, name);
    return out;
}

static void write_file(const char *path, const void *data, size_t size)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size || close(fd)) {
        perror(path);
        exit(1);
    }
}

const char *fuzz_file(const char *name, const void *data, size_t size)
{
    const char *path = fuzz_path(name);
    if (data)
        write_file(path, data, size);
    else
        unlink(path);
    return path;
}

/* ---- seeds --------------------------------------------------------------------------------------- */

void fuzz_seed(const fuzz_part *parts)
{
    static int count;
    char name[1024];
    ax_buf all = {0};
    for (const fuzz_part *p = parts; p->data; p++)
        if ((p > parts && ax_buf_add(&all, FUZZ_BREAK, strlen(FUZZ_BREAK)) != AX_OK) ||
            ax_buf_add(&all, p->data, p->size) != AX_OK)
            exit(1);
    snprintf(name, sizeof name, "%s/seeds/%03d", folder, count++);
    write_file(name, all.data, all.size);
    ax_buf_fini(&all);
}

void fuzz_seed_texts(const char *const *texts)
{
    fuzz_part parts[FUZZ_PARTS + 1] = {0};
    for (int i = 0; i < FUZZ_PARTS && texts[i]; i++)
        parts[i] = (fuzz_part){(char *)texts[i], strlen(texts[i])};
    fuzz_seed(parts);
}

void fuzz_seed_file(const char *path)
{
    char whole[1024], *data;
    size_t size;
    snprintf(whole, sizeof whole, "%s/%s", AXONN_SOURCE_DIR, path);
    if (ax_file_read(whole, &data, &size) != AX_OK) {
        fprintf(stderr, "%s\n", ax_error_message());
        exit(1);
    }
    fuzz_seed((fuzz_part[]){{data, size}, {NULL, 0}});
    free(data);
}

/* Whether the command line names files that are to be run once, as inputs. */
static bool names_inputs(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (*argv[i] != '-' && ax_path_exists(argv[i]) && !ax_path_is_dir(argv[i]))
            return true;
    return false;
}

/* Makes the directory anew, and adds seeds/ to the corpora on the command line. libFuzzer writes new inputs
 * into the first corpus. This is seeds/ unless the user named another, so a run with a fixed random seed
 * always does the same. */
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static char seeds[600];
    const char *slash = strrchr((*argv)[0], '/');
    snprintf(folder, sizeof folder, "fuzz/%s", slash ? slash + 1 : (*argv)[0]);
    snprintf(seeds, sizeof seeds, "%s/seeds", folder);
    if (ax_remove_tree(folder) != AX_OK || ax_mkdirs(seeds) != AX_OK || ax_mkdirs(fuzz_path("")) != AX_OK) {
        fprintf(stderr, "%s\n", ax_error_message());
        return 1;
    }
    ax_log_set_level(AX_LOG_ERROR);
    fuzz_make_seeds();
    if (names_inputs(*argc, *argv))
        return 0;
    char **more = malloc(((size_t)*argc + 2) * sizeof *more);
    if (!more)
        return 1;
    memcpy(more, *argv, (size_t)*argc * sizeof *more);
    more[(*argc)++] = seeds;
    more[*argc] = NULL;
    *argv = more;
    return 0;
}

/* ---- mutants ------------------------------------------------------------------------------------- */

/* Repeats a short stretch of the input many times, for deep nesting and long lists. Time or memory that grows
 * faster than the input then exceeds the limits. */
static size_t repeat(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    uint32_t draw[4];
    ax_philox(seed, 0, 0, draw);
    size_t at = draw[0] % size, n = 1 + draw[1] % ax_min(64, (int64_t)(size - at)), room = max_size - size;
    size_t times = ax_min(1 + draw[2] % (draw[3] % 8 ? 64 : 1 << 16), (int64_t)(room / n));
    memmove(data + at + times * n, data + at, size - at);
    for (size_t i = 0; i < times * n; i++)
        data[at + i] = data[at + times * n + i % n];
    return size + times * n;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    if (size && seed % 16 == 0)
        return repeat(data, size, max_size, seed);
    return LLVMFuzzerMutate(data, size, (size_t)ax_min((int64_t)max_size, 2 * (int64_t)size + 256));
}

/* ---- checks of an input -------------------------------------------------------------------------- */

void fuzz_broken(const char *cond, const char *file, int line)
{
    fprintf(stderr, "%s:%d: this does not hold: %s\nthe last error was: %s\n", file, line, cond,
            ax_error_message());
    abort();
}

bool fuzz_read(ax_status status)
{
    if (status != AX_OK && status != AX_ERR_DATA && status != AX_ERR_USAGE) {
        fprintf(stderr, "a reader returned \"%s\": %s\n", ax_status_name(status), ax_error_message());
        abort();
    }
    FUZZ_HOLDS(status == AX_OK || *ax_error_message());
    return status == AX_OK;
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Returns the lowest free descriptor; it differs if one was left open. */
static int free_descriptor(void)
{
    int fd = dup(STDERR_FILENO);
    close(fd);
    return fd;
}

static int split(char *text, size_t size, fuzz_part *part)
{
    int n = 0;
    for (char *end = text + size;; n++) {
        char *stop =
            n + 1 < FUZZ_PARTS ? memmem(text, (size_t)(end - text), FUZZ_BREAK, strlen(FUZZ_BREAK)) : NULL;
        part[n] = (fuzz_part){text, (size_t)((stop ? stop : end) - text)};
        if (!stop)
            return n + 1;
        *stop = 0;
        text = stop + strlen(FUZZ_BREAK);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_part part[FUZZ_PARTS];
    char *text = malloc(size + 1);
    if (!text)
        return 0;
    memcpy(text, data, size);
    text[size] = 0;
    int n = split(text, size, part), descriptor = free_descriptor();
    double start = cpu_seconds();
    fuzz_one(part, n);
    double took = cpu_seconds() - start;
    if (took > CPU_SECONDS) {
        fprintf(stderr, "%zu bytes took %.1f s of processor time, of which %d s are allowed\n", size, took,
                CPU_SECONDS);
        abort();
    }
    FUZZ_HOLDS(free_descriptor() == descriptor);
    free(text);
    return 0;
}
