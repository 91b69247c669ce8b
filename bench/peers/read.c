/* Measures how fast this machine reads memory. This limits generation with batch 1, where each token reads
 * all weights.
 *
 *     gcc -O3 -march=native -fopenmp bench/peers/read.c -o build/read && build/read 2 256     # threads MiB
 *
 * Each thread sums up its share of an array of that size with vector loads, as one stream or as 4 or 8
 * parallel streams, without prefetching and with prefetches 1 to 16 KiB ahead. The fastest variant of each of
 * RUNS runs counts. Prints one JSON object. */
#define _GNU_SOURCE
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { RUNS = 15, LINE = 64, MOST = 8 };

typedef uint64_t vec __attribute__((vector_size(LINE)));

/* Sums up `stretches` parts of `bytes` in parallel, `lines` cache lines of each part at a time. */
static inline __attribute__((always_inline)) uint64_t sum(const char *from, int64_t bytes, int stretches,
                                                          int lines, int64_t ahead)
{
    vec s[MOST] = {{0}};
    int64_t each = bytes / stretches;
    for (int64_t at = 0; at < each; at += lines * LINE)
        for (int i = 0; i < stretches * lines; i++) {
            const char *p = from + i / lines * each + at + i % lines * LINE;
            if (ahead)
                __builtin_prefetch(p + ahead);
            s[i] += *(const vec *)(const void *)p;
        }
    for (int i = 1; i < stretches * lines; i++)
        s[0] += s[i];
    return s[0][0] + s[0][7];
}

static uint64_t sum_any(const char *from, int64_t bytes, int stretches, int64_t ahead)
{
    return stretches == 1   ? sum(from, bytes, 1, 4, ahead)
           : stretches == 4 ? sum(from, bytes, 4, 1, ahead)
                            : sum(from, bytes, 8, 1, ahead);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    static const int64_t aheads[] = {0, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 12 << 10, 16 << 10};
    static const int stretches[] = {1, 4, 8};
    enum { AHEADS = sizeof aheads / sizeof *aheads, WAYS = 3 * AHEADS };
    int threads = argc > 1 ? atoi(argv[1]) : 2;
    if (threads < 1) {
        fprintf(stderr, "usage: read THREADS MIB\n");
        return 2;
    }
    int64_t bytes = (argc > 2 ? atoll(argv[2]) : 256) << 20,
            part = bytes / threads / (MOST * LINE) * (MOST * LINE);
    char *memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (part <= 0 || memory == MAP_FAILED) {
        fprintf(stderr, "usage: read THREADS MIB\n");
        return 2;
    }
    madvise(memory, (size_t)bytes, MADV_HUGEPAGE);
    double rate[RUNS],
        plain[RUNS]; /* rates of the fastest variant, and of the fastest variant with one stream */
    uint64_t total = 0;
#pragma omp parallel num_threads(threads)
    memset(memory + omp_get_thread_num() * part, 1, (size_t)part);
    for (int run = 0; run < RUNS; run++) {
        rate[run] = plain[run] = 0;
        for (int w = 0; w < WAYS; w++) {
            double start = omp_get_wtime();
#pragma omp parallel num_threads(threads) reduction(+ : total)
            {
                const char *from = memory + omp_get_thread_num() * part;
                total += sum_any(from, part, stretches[w / AHEADS], aheads[w % AHEADS]);
            }
            double now = (double)part * threads / (omp_get_wtime() - start);
            rate[run] = now > rate[run] ? now : rate[run];
            if (w < AHEADS)
                plain[run] = rate[run];
        }
    }
    qsort(rate, RUNS, sizeof *rate, compare);
    qsort(plain, RUNS, sizeof *plain, compare);
    printf(
        "{\"threads\": %d, \"gb_per_s\": %.2f, \"least\": %.2f, \"greatest\": %.2f, \"one_stretch\": %.2f, "
        "\"sum\": %llu}\n",
        threads, rate[RUNS / 2] / 1e9, rate[0] / 1e9, rate[RUNS - 1] / 1e9, plain[RUNS / 2] / 1e9,
        (unsigned long long)total);
    return 0;
}
