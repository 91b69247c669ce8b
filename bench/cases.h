/* The kernels whose speed matters, at the shapes of training and generation: bench_kernels measures them,
 * bench_ratios checks some of them. */
#ifndef AXONN_BENCH_CASES_H
#define AXONN_BENCH_CASES_H

#include "axonn/dev.h"

/* Shapes of a model, of its attention and of its optimizer's state. Lists end with a 0. */
typedef struct bench_shapes {
    int64_t tokens[3];     /* numbers of rows of GEMMs */
    int64_t rows, targets; /* rows of the kernels between GEMMs, and of those of the loss */
    int64_t width, ffn, vocab, updated;
    int64_t experts[3][3]; /* layers with experts: their number, width, inner width */
    struct {
        int64_t batch, t, h, g, d;
    } attention[8];
    struct {
        int64_t batch, keys[2], h, d;
    } generation; /* attention of one query */
    struct {
        int64_t batch, keys, h, g, d;
    } few[5];      /* attention of one query that reads a quarter of the keys */
    size_t memory; /* bytes for the operands of a case; if operands are kept, of all cases */
} bench_shapes;

/* Shapes for processors: GPT-2 124M with 1024 tokens. For GPUs: GPT-2 1.5B with 16384 tokens, and Llama's
 * heads. For ratios: smaller ones, but arrays that do not fit in the caches of a small machine. Tiny ones
 * only show that a program works. */
extern const bench_shapes bench_of_processors, bench_of_gpus, bench_of_ratios, bench_tiny;

typedef union bench_args {
#define BENCH_ARGS(name) ax_##name##_args name;
    AX_KERNELS(BENCH_ARGS)
#undef BENCH_ARGS
} bench_args;

typedef struct bench_call {
    char name[96];
    ax_kernel kernel;
    bench_args args;
} bench_call;

/* Calls that are measured in turns, because they are compared. */
enum { BENCH_CALLS = 7, BENCH_SHARED = 4 };
typedef struct bench_group {
    ax_dtype dtype;
    int calls, shares;
    bench_call call[BENCH_CALLS];
    struct {
        const char *name;
        int call[BENCH_SHARED]; /* these together are compared with call 0 */
    } share[2];
} bench_group;

typedef struct bench_cases {
    ax_device *dev;
    const bench_shapes *shapes;
    bool keep; /* operands stay valid; otherwise until the next group is made */
    /* Whether the group that begins with a call of this name is made. */
    bool (*wants)(void *user, const char *name);
    void (*take)(void *user, const bench_group *group);
    void *user;
    /* private */
    ax_stream stream;
    char *memory, *tables; /* operands; tables of arrays in host memory */
    float *normal;         /* normally distributed numbers */
    size_t used, tables_used;
} bench_cases;

/* Makes the operands of all groups that are wanted, and hands the groups to `take`, one after another. Ends
 * the process if the device fails. If operands are kept, their
 * memory is that of the process until it ends. */
void bench_cases_run(bench_cases *b);

#endif
