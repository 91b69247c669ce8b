/* The host backend's inside: what its instruction-set tables hold, and how a kernel gets its threads.
 *
 * Three layers. `isa_*.c` compile the kernels of *_kernels.h once per instruction set; each is a function
 * over a range of work items (rows, elements, heads, columns), whose results do not depend on how the items
 * are cut into ranges. `kernels.def` says for each kernel what its items are, and `launch.c` lets threads
 * take ranges of them. `isa.c` chooses among the tables that this processor can run, `device.c` owns the
 * scratch memory, `pool.c` the threads, `bind.c` the cores that they are bound to. No kernel allocates:
 * scratch is one block per thread, made when the device is opened. */
#ifndef AX_DEV_CPU_CPU_H
#define AX_DEV_CPU_CPU_H

#include "dev/backend.h"

/* The element types that the vector kernels are compiled for. */
typedef enum vtype { VF32, VBF16, VF16 } vtype;
static inline vtype vtype_of(ax_dtype dtype)
{
    return dtype == AX_BF16 ? VBF16 : dtype == AX_F16 ? VF16 : VF32;
}
static inline int64_t vsize(vtype type) { return type == VF32 ? 4 : 2; }

/* The left operand of a micro-tile: unit u of row i is at `at` + i·row + u·unit, both in bytes: a matrix as
 * it lies, whose rows are contiguous in k (unit is 4), or else packed: rows side by side (row is 4), all of a
 * micro-tile's readable. Units of tiles with a `grain` are packed so many together: unit u is
 * ⌊u/grain⌋·grain·unit + 4·(u mod grain) from its row, and row is 4·grain. */
typedef struct ax_cpu_rows {
    const void *at, *next; /* next: the strip that comes after, asked for meanwhile, or NULL */
    int64_t row, unit;
    int64_t n; /* rows at `at`; where fewer than a micro-tile's, those before it can be read */
} ax_cpu_rows;

/* Memory that is needed soon, `n` cache lines: `lines` of each row, rows `stride` bytes apart; of the first,
 * `line` are behind. It is asked for while a micro-tile multiplies: in a burst, requests would wait for one
 * another. */
typedef struct ax_cpu_prefetch {
    const char *at;
    int64_t stride, lines, n, line;
} ax_cpu_prefetch;

/* What a thread does between steps in k of tiles that multiply beside the vector units. */
typedef struct ax_cpu_step_hook {
    ax_cpu_prefetch prefetch[2]; /* what steps ask for, `share` lines each */
    int64_t lines_per_step[2];
    int64_t steps; /* until the next call */
    void (*call)(struct ax_cpu_step_hook *);
} ax_cpu_step_hook;

/* Where the sums of a micro-tile go: c = sums + prior + bias (+ c when `add_c`, which is for c of 16 bits
 * only: an fp32 c that is added to is its own prior). */
typedef struct ax_cpu_tile {
    const float *prior, *bias; /* or NULL */
    void *c;
    int64_t prior_ld, c_ld, rows, cols;
    vtype c_type;
    bool add_c;
    bool non_temporal; /* the caches c may go, by tiles that store at once: it is just the sums, in whole
                          lines */
    ax_cpu_prefetch prefetch[2]; /* by tiles that store at once */
    /* By those with an ax_cpu_gemm.store: */
    float *sums; /* where the sums of its rows are left, behind room for those before them (ax_cpu_rows.n);
                    NULL: they are stored at once */
    const struct ax_cpu_tile *previous; /* a tile whose sums are stored while this one multiplies, or NULL */
    bool prefetch_c;                    /* c's rows are asked for while it multiplies */
    ax_cpu_step_hook *hook;             /* or NULL */
} ax_cpu_tile;

/* Packs rows x k of an operand into panels of `width` rows that lie `units` units in k apart. `along_k` says
 * that the source is contiguous in k, with stride ld between rows; else the other way round. */
typedef void ax_cpu_pack_fn(const void *src, int64_t ld, bool along_k, int64_t rows, int64_t k, int width,
                            int64_t units, void *out);

/* A packed matrix product for one element type: the geometry of its micro-tile and its functions. */
typedef struct ax_cpu_gemm {
    int rows;                        /* of a micro-tile */
    int lanes;                       /* columns per vector */
    int vectors;                     /* most vectors across a micro-tile */
    int pair;                        /* values of k in a packed 32-bit unit */
    int grain;                       /* units that are read together; panels have a multiple of it */
    int pack_cost;                   /* of packing a value, in multiply-adds */
    int64_t a_packed, a_unpacked;    /* most bytes of a block of a: packed; read as it lies */
    ax_cpu_pack_fn *pack_a, *pack_b; /* pack_a's width is `rows` */
    void (*tile)(int nv, int64_t k, const ax_cpu_rows *a, const void *b, const ax_cpu_tile *tile);
    void (*begin)(void), (*end)(void); /* around a thread's tiles, or NULL; then all see what they stored */
    void (*store)(const ax_cpu_tile *tile); /* stores tile->sums; NULL where tiles always do so at once */
} ax_cpu_gemm;

/* Whether c is just the sums, which a whole tile of nv vectors stores as they are. */
static inline bool ax_cpu_is_plain_store(const ax_cpu_tile *t, int rows, int nv, int lanes)
{
    return t->c_type == VF32 && !t->prior && !t->bias && t->rows == rows && t->cols == (int64_t)nv * lanes;
}

static inline void ax_cpu_begin(const ax_cpu_gemm *gemm)
{
    if (gemm->begin)
        gemm->begin();
}
static inline void ax_cpu_end(const ax_cpu_gemm *gemm)
{
    if (gemm->end)
        gemm->end();
}

/* Units of k values in a panel. */
static inline int64_t ax_cpu_units(const ax_cpu_gemm *gemm, int64_t k)
{
    return ax_round_up(ax_ceil_div(k, gemm->pair), gemm->grain);
}

/* Items lo … hi-1 of a kernel's work. */
typedef void ax_cpu_range_fn(const void *args, int64_t lo, int64_t hi, void *scratch);

/* Runs multiply-adds in registers for so many rounds; how many floating-point operations that were. */
typedef double ax_cpu_peak_fn(int64_t rounds, float *sink);

/* Reads the whole lines in `bytes` of memory by one of AX_CPU_READ_WAYS ways and returns the sum of their
 * words: so none can be left out. */
enum { AX_CPU_READ_WAYS = 21 };
typedef uint64_t ax_cpu_read_fn(int way, const char *from, int64_t bytes);

typedef struct ax_cpu_isa {
    const char *name;
    const ax_cpu_gemm *gemm[3]; /* by vtype */
    ax_cpu_range_fn *gemv;      /* gemm with m <= AX_CPU_GEMV_ROWS and a not transposed: items are columns */
    ax_cpu_peak_fn *peak_f32, *peak_bf16;
    ax_cpu_read_fn *read;
    ax_cpu_range_fn *norm_grad_cols;          /* norm_grad_apply's dweight and dbias: items are columns */
    ax_cpu_range_fn *kernel[AX_KERNEL_COUNT]; /* NULL: the reference's */
} ax_cpu_isa;

enum {
    AX_CPU_GEMV_ROWS = 4,           /* also the most queries that attention treats one by one */
    AX_CPU_ATTENTION_QUERIES = 256, /* per work item of attention: item = (batch, head, block of queries) */
    AX_CPU_MAX_HEAD_DIM = 256,      /* wider heads are the reference's */
    AX_CPU_A_BLOCK = 512 << 10,     /* bytes: most that ax_cpu_gemm.a_packed may say */
    AX_CPU_TILE_SUMS = 32 * 32,     /* most sums of a micro-tile that leaves them in memory */
    AX_CPU_LINE = 64                /* bytes */
};

extern const ax_cpu_isa ax_cpu_isa_generic;
#ifdef __x86_64__
extern const ax_cpu_isa ax_cpu_isa_avx2, ax_cpu_isa_avx512, ax_cpu_isa_avx512_bf16, ax_cpu_isa_avx512_amx;
#endif

/* The tables that this processor can run, best first; NULL beyond the last, which is the portable one. */
const ax_cpu_isa *ax_cpu_isa_at(int index);
/* The one that a device opened now uses: the best, or what AXONN_ISA in the environment names. AX_ERR_USAGE.
 */
ax_status ax_cpu_isa_choose(const ax_cpu_isa **out);

typedef struct ax_cpu_pool ax_cpu_pool;
typedef struct ax_cpu_places ax_cpu_places;

/* What an open device owns (ax_device.impl). */
typedef struct ax_cpu {
    const ax_cpu_isa *isa;
    int threads;
    ax_cpu_pool *pool;
    ax_cpu_places *places; /* of the threads, or NULL */
    ax_region scratch;     /* a block per thread, then the partial sums of reductions */
    int way;               /* of reading, that is fastest here, if it was found out */
    bool way_found;
} ax_cpu;

enum {
    AX_CPU_SCRATCH = 7 << 20, /* bytes per thread */
    AX_CPU_PARTIALS = 1024    /* doubles */
};

/* What ax_cpu_fill takes: an element as it is stored. Kernels would store a small one as 0. */
typedef struct ax_cpu_filling {
    const ax_fill_args *a;
    char element[8];
} ax_cpu_filling;

/* What the sumsq kernels take: items are chunks, whose sums go to `partials`. */
typedef struct ax_cpu_sumsq {
    const ax_sumsq_args *a;
    int64_t chunk;
    double *partials;
} ax_cpu_sumsq;

/* What the kernels of updates take: one of their arrays. */
typedef struct ax_cpu_update {
    const void *args; /* of the kernel */
    const ax_update_array *array;
} ax_cpu_update;

static inline ax_cpu *ax_cpu_of(const ax_stream *stream) { return stream->dev->impl; }
static inline char *ax_cpu_scratch(const ax_cpu *cpu, int thread)
{
    return cpu->scratch.base + (size_t)thread * AX_CPU_SCRATCH;
}

static inline double *ax_cpu_partials(const ax_cpu *cpu)
{
    return (double *)(void *)ax_cpu_scratch(cpu, cpu->threads);
}

/* Runs body for all parts of a job on the device's threads, the caller's included; the order of the parts,
 * and which threads take them, are open. `scratch` is that of the thread. */
typedef void ax_cpu_body(void *job, int part, int parts, char *scratch);
void ax_cpu_parallel(const ax_cpu *cpu, int parts, ax_cpu_body *body, void *job);

/* Binds the calling thread to the first of these cores; NULL if that cannot be done. */
ax_cpu_places *ax_cpu_places_take(const ax_binding *binding);
/* Binds the calling thread to the core of thread `thread`. */
bool ax_cpu_bind(const ax_cpu_places *places, int thread);
/* Gives the thread that took them its former binding. *places may be NULL. */
void ax_cpu_places_leave(ax_cpu_places **places);

/* `threads` - 1 workers beside the caller, each at its place (NULL: anywhere) with AX_CPU_SCRATCH bytes of
 * `scratch`, which it is the first to touch. */
ax_status ax_cpu_pool_create(int threads, char *scratch, const ax_cpu_places *places, bool alone,
                             ax_cpu_pool **out);
void ax_cpu_pool_destroy(ax_cpu_pool **out);

ax_status ax_cpu_open(ax_device *dev);
void ax_cpu_close(ax_device *dev);
size_t ax_cpu_workspace(int threads);
void ax_cpu_touch(ax_device *dev, void *memory, size_t bytes);

/* Kernels that need no vectors (plain.c): items are elements for fill, else rows. */
ax_cpu_range_fn ax_cpu_fill, ax_cpu_copy, ax_cpu_copy_box;

double ax_cpu_peak(ax_device *dev, ax_dtype compute, double seconds);
double ax_cpu_read(ax_device *dev, const ax_span *span, int64_t n, double seconds);

ax_status ax_cpu_gemm_run(ax_stream *stream, const void *args);
/* The product of one thread's part of c, rows m0 … m1-1 by columns n0 … n1-1, a and b in T = fp32, bf16 or
 * fp16. */
void ax_cpu_gemm_part(const ax_cpu_gemm *gemm, const ax_gemm_args *g, int64_t m0, int64_t m1, int64_t n0,
                      int64_t n1, char *scratch);

#endif
