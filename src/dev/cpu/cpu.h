/* Private header of the cpu backend: a table of kernels per instruction set, and the thread pool.
 *
 * The files isa_*.c compile the kernels of *_kernels.h once per instruction set. Each kernel except gemm is a
 * function over a range of work items (rows, elements, columns, heads and so on); its results do not depend
 * on how the items are cut into ranges. kernels.def says what the items of most kernels are, launch.c cuts
 * the work of the others into items, and distributes ranges of items over the threads. gemm.c cuts a gemm
 * into rectangles of the matrix c. isa.c chooses among the tables that this processor can run, device.c owns
 * the scratch memory, pool.c the threads, bind.c the cores to which they are bound. No kernel allocates: each
 * thread has a block of scratch, allocated when the device is opened. */
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

/* A strip of rows of matrix a: the left operand of one micro-tile. The strip consists of 32-bit units; a
 * unit is an fp32 value, or a pair of bf16 values that are neighbours in k. Unit u of row i is at `at` +
 * i·row + u·unit; `row` and `unit` are strides in bytes. The strip is either read in place, from a matrix
 * whose rows are contiguous in k (unit is 4), or packed, with rows side by side (row is 4) and memory for
 * all rows of a micro-tile. If ax_cpu_gemm.grain > 1, `grain` units of a row are read together and packed
 * together: unit u is ⌊u/grain⌋·grain·unit + 4·(u mod grain) bytes after the start of its row, and if the
 * strip is packed, `row` is 4·grain. */
typedef struct ax_cpu_rows {
    const void *at, *next; /* at: the strip; next: the following strip, which is prefetched while this one is
                              multiplied, or NULL */
    int64_t row, unit;
    int64_t n; /* rows of the strip. If it has fewer rows than a micro-tile, micro-tiles of AMX read memory
                  before `at` in place of the missing rows, and other micro-tiles read the last row again */
} ax_cpu_rows;

/* Memory to prefetch: `n` cache lines, in rows of `lines` lines each that begin `stride` bytes apart. `n`
 * counts the lines that are not prefetched yet, `at` is the first row with such lines, and the first `line`
 * lines of this row are already prefetched. Prefetches are spread over the time in which a micro-tile
 * multiplies, because in a burst they would wait for one another. */
typedef struct ax_cpu_prefetch {
    const char *at;
    int64_t stride, lines, n, line;
} ax_cpu_prefetch;

/* Work that a thread does between the steps in k of a micro-tile on AMX, whose multiplications leave the
 * vector units idle. */
typedef struct ax_cpu_step_hook {
    ax_cpu_prefetch prefetch[2]; /* memory to prefetch, lines_per_step lines in each step */
    int64_t lines_per_step[2];
    int64_t steps; /* number of steps in k until the function `call` is called next */
    void (*call)(struct ax_cpu_step_hook *);
} ax_cpu_step_hook;

/* The destination of a micro-tile, and the terms that are added to the sums: c = sums + prior + bias (+ c
 * if `add_c`, which is for a 16-bit c only: to add to an fp32 c, pass c as `prior`). */
typedef struct ax_cpu_tile {
    const float *prior; /* values to add: earlier sums (over other values of k), or the old c; NULL: none */
    const float *bias;  /* one value per column; NULL: none */
    void *c;
    int64_t prior_ld, c_ld, rows, cols;
    vtype c_type;
    bool add_c;
    /* Used only if ax_cpu_gemm.store is NULL: */
    bool plain;        /* c is fp32, and nothing but `prior` is added, and nothing is prefetched */
    bool non_temporal; /* c may be written by non-temporal stores; set only if nothing is added to the sums
                          and every row of c begins at a cache line */
    ax_cpu_prefetch prefetch[2]; /* memory to prefetch while the tile multiplies */
    /* Used only if ax_cpu_gemm.store is not NULL: */
    float *sums; /* where the tile leaves its sums. The next tile (for the last tile: ax_cpu_gemm.store) adds
                    this tile's `prior`, `bias` and (if `add_c`) old c to these sums and stores the result to
                    c. Before `sums` lies memory for the sums of missing rows (ax_cpu_rows.n). NULL: the tile
                    stores to c itself */
    const struct ax_cpu_tile
        *previous;   /* the tile before, whose sums this tile stores to c while it multiplies, or NULL */
    bool prefetch_c; /* the tile prefetches its part of c while it multiplies */
    ax_cpu_step_hook *hook; /* or NULL */
} ax_cpu_tile;

/* Packs `rows` rows of op(a), or columns of op(b), with `k` values each, into panels at `out`. A panel holds
 * `width` rows, interleaved in 32-bit units; a unit is an fp32 value, or a pair of bf16 values that are
 * neighbours in k. A panel has room for `units` units of each row, so that panels begin width · units units
 * after one another. `along_k`: successive values of k are adjacent in the source, and rows are ld elements
 * apart; otherwise the values of successive rows are adjacent, and successive values of k are ld elements
 * apart. */
typedef void ax_cpu_pack_fn(const void *src, int64_t ld, bool along_k, int64_t rows, int64_t k, int width,
                            int64_t units, void *out);

/* GEMM for one element type: the geometry of its micro-tile and its functions. */
typedef struct ax_cpu_gemm {
    int rows;    /* rows of a micro-tile */
    int lanes;   /* columns per vector */
    int vectors; /* vectors across the widest micro-tile */
    int pair;    /* how many values of k a packed 32-bit unit holds: 2 for pairs of bf16, else 1 */
    int grain;   /* number of 32-bit units of a row that are read together; in a panel each row has a multiple
                    of `grain` units */
    int pack_cost;                /* time to pack a value, in units of the time of a multiply-add */
    int64_t a_packed, a_unpacked; /* largest block of a in bytes: a_packed if a is packed, a_unpacked if a is
                                     read in place */
    ax_cpu_pack_fn *pack_a, *pack_b; /* pack_a ignores `width`: a panel has as many rows as a micro-tile */
    /* Multiplies one micro-tile: strip a by a packed panel b that is nv vectors wide, over k values of k. */
    void (*tile)(int nv, int64_t k, const ax_cpu_rows *a, const void *b, const ax_cpu_tile *tile);
    /* A thread calls `begin` before and `end` after the tiles of each part of a GEMM or of attention that it
     * computes. Each may be NULL. After `end` all threads see the thread's stores. */
    void (*begin)(void), (*end)(void);
    void (*store)(const ax_cpu_tile *tile); /* adds the other terms to tile->sums and stores the result to
                                               tile->c; NULL: tiles always store to c themselves */
} ax_cpu_gemm;

/* Returns true if the tile's vectors of sums can be stored unchanged: c is fp32, nothing is added, and the
 * tile has all `rows` rows and all nv · lanes columns. */
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

/* Returns how many 32-bit units a packed panel has for each row of k values. */
static inline int64_t ax_cpu_units(const ax_cpu_gemm *gemm, int64_t k)
{
    return ax_round_up(ax_ceil_div(k, gemm->pair), gemm->grain);
}

/* Computes the work items lo … hi-1 of a kernel call: rows, elements, columns, heads and so on. */
typedef void ax_cpu_range_fn(const void *args, int64_t lo, int64_t hi, void *scratch);

/* Runs `rounds` rounds of multiply-adds in registers, and adds results to *sink. Returns the number of
 * floating-point operations. */
typedef double ax_cpu_peak_fn(int64_t rounds, float *sink);

/* Reads `bytes` of memory, whole cache lines only, in one of AX_CPU_READ_WAYS ways. The ways differ in the
 * number of streams and the prefetch distance (peak_kernels.h). Returns the sum of the words, so that the
 * compiler cannot remove the reads. */
enum { AX_CPU_READ_WAYS = 21 };
typedef uint64_t ax_cpu_read_fn(int way, const char *from, int64_t bytes);

/* The kernels that multiply no matrices. Instruction sets that differ in such products alone share them. */
typedef struct ax_cpu_vectors {
    ax_cpu_range_fn *norm_grad_sum; /* last part of norm_grad and norm_grad_apply: adds the sums of all chunks
                                       of rows to dweight and dbias (ax_cpu_norm_grad) */
    /* The SIMD kernels of kernels.def. NULL for those that multiply matrices (ax_cpu_isa), for kernels
     * without SIMD (plain.c), and for those that run on the backend ref. */
    ax_cpu_range_fn *kernel[AX_KERNEL_COUNT];
} ax_cpu_vectors;

typedef struct ax_cpu_isa {
    const char *name;
    const ax_cpu_gemm *gemm[3]; /* one for each vtype */
    ax_cpu_range_fn *gemv;      /* gemm with m <= AX_CPU_GEMV_ROWS, a not transposed; items are columns */
    ax_cpu_range_fn *gemm_few;  /* gemm with m <= AX_CPU_FEW_ROWS, k <= AX_CPU_FEW_K, b transposed and a not,
                                   without `accumulate`; items are columns */
    ax_cpu_range_fn *attention, *attention_grad;
    ax_cpu_peak_fn *peak_f32, *peak_bf16;
    ax_cpu_read_fn *read;
    const ax_cpu_vectors *vectors;
} ax_cpu_isa;

enum {
    AX_CPU_GEMV_ROWS = 4, /* largest m of a gemm that `gemv` computes; also the largest q_len for which
                             attention computes queries one by one */
    AX_CPU_FEW_ROWS = 16, /* largest m and k of a gemm that `gemm_few` computes */
    AX_CPU_FEW_K = 64 << 10,
    AX_CPU_ATTENTION_QUERIES = 256, /* largest number of queries in a work item of attention; an item is
                                       (sequence, head, block of queries) */
    AX_CPU_MAX_HEAD_DIM = 256,      /* with a larger head_dim, attention runs on the reference backend */
    AX_CPU_A_BLOCK = 512 << 10,     /* largest packed block of a (ax_cpu_gemm.a_packed), in bytes */
    AX_CPU_TILE_SUMS = 32 * 32,     /* largest number of sums of a micro-tile that ax_cpu_gemm.store stores */
    AX_CPU_LINE = 64                /* bytes of a cache line */
};

/* Returns true if attention computes queries one by one: there are few, as in generation, and no dropout. */
static inline bool ax_cpu_few_queries(const ax_attention_args *a)
{
    return a->q_len <= AX_CPU_GEMV_ROWS && a->drop.p == 0;
}

extern const ax_cpu_isa ax_cpu_isa_generic;
#ifdef __x86_64__
extern const ax_cpu_isa ax_cpu_isa_avx2, ax_cpu_isa_avx512, ax_cpu_isa_avx512_bf16, ax_cpu_isa_avx512_amx;
extern const ax_cpu_vectors ax_cpu_vectors_avx512_bf16; /* also those of avx512_amx */
#endif

/* Returns kernel table number `index` of those that this processor can run, from the best to the portable
 * one; NULL after the last. */
const ax_cpu_isa *ax_cpu_isa_at(int index);
/* Chooses the kernel table (instruction set) for a new device: the best, or the one that setting runtime.isa
 * names. AX_ERR_USAGE if the setting's value is unknown, or this processor cannot run it, unless the value is
 * only preferred (ax_runtime_prefer). */
ax_status ax_cpu_isa_choose(const ax_cpu_isa **out);

typedef struct ax_cpu_pool ax_cpu_pool;
typedef struct ax_cpu_places ax_cpu_places;

/* The state of an open device (ax_device.impl). */
typedef struct ax_cpu {
    const ax_cpu_isa *isa;
    int threads;
    ax_cpu_pool *pool;
    ax_cpu_places *places; /* cores of the threads; NULL: threads are not bound */
    ax_region scratch;     /* one block of AX_CPU_SCRATCH bytes per thread, followed by the partial sums of
                              reductions */
    int way;               /* the fastest way of reading memory (ax_cpu_read_fn); valid if way_found */
    bool way_found;
} ax_cpu;

enum {
    AX_CPU_SCRATCH = 7 << 20,            /* bytes of scratch per thread */
    AX_CPU_LISTED = AX_CPU_SCRATCH / 32, /* among how many keys attention lists those chosen at a time */
    /* The most keys among which choose chooses: it has 8 bytes of scratch for each, and a few hundred more.
     */
    AX_CPU_CHOICE = AX_CPU_SCRATCH / 8 - 128,
    AX_CPU_PARTIALS = 1024, /* largest number of partial sums (doubles) of a reduction */
    /* embedding_grad with a 16-bit dtable: the most rows of dy that are taken at a time (ax_cpu_linked_rows),
     * and the most rows of dtable. With more the kernel runs on the reference backend. */
    AX_CPU_LINKS = AX_CPU_SCRATCH / 16
};

/* Arguments of ax_cpu_fill. `element`: the bits of the value in the dtype of the array. The value is
 * converted before the kernel runs, because threads flush subnormals to 0 while they run kernels. */
typedef struct ax_cpu_filling {
    const ax_fill_args *a;
    char element[8];
} ax_cpu_filling;

/* Arguments of the kernels sumsq and squared_error, which sum over all elements. Work items are chunks of
 * elements; the sum of chunk i is stored in partials[i]. */
typedef struct ax_cpu_chunks {
    const void *args; /* the argument struct of the kernel; for sumsq ax_cpu_sumsq */
    int64_t chunk;    /* elements per chunk */
    double *partials;
} ax_cpu_chunks;

/* Arguments of ax_cpu_compress and ax_cpu_expand, whose work items are rows: those of the kernel, and the
 * kernels `convert` and `add` for SIMD. */
typedef struct ax_cpu_masked {
    const void *args;
    ax_cpu_range_fn *convert, *add;
} ax_cpu_masked;

/* One array of a call of kernel sumsq, whose elements are squared and summed. */
typedef struct ax_cpu_sumsq {
    int64_t n;
    const void *x;
    ax_dtype dtype;
} ax_cpu_sumsq;

/* Arguments of norm_grad and norm_grad_apply, whose work items are chunks of rows. Each chunk sums its rows'
 * contributions to dweight and dbias by itself, so that x and dy are read from memory once. Afterwards
 * norm_grad_sum, whose items are columns, adds the sums of all chunks to dweight and dbias. The size of the
 * chunks depends only on rows and cols, so the order of additions does not depend on the number of
 * threads. */
typedef struct ax_cpu_norm_grad {
    const void *args;      /* the argument struct of the kernel */
    int64_t chunk, chunks; /* rows per chunk, number of chunks */
    float *sums;           /* [chunks, 2, stride]: sums for dweight, then for dbias */
    int64_t stride;        /* cols, rounded up to whole vectors */
    void *dweight, *dbias;
} ax_cpu_norm_grad;

/* Lists of those of the rows first … first + n - 1 of dy that have the same id, in ascending order. Row first
 * + r is followed by row first + next[r]; next[r] is -1 if it is the last of its list. `follows[r]`: it is
 * not the first of its list. */
typedef struct ax_cpu_linked_rows {
    int64_t first, n;
    int32_t *next;
    bool *follows;
} ax_cpu_linked_rows;

/* Arguments of embedding_grad. `linked` is for a 16-bit dtable: the rows with the same id are added in fp32,
 * and their sum is rounded once. */
typedef struct ax_cpu_embedding_grad {
    const void *args; /* the argument struct of the launch */
    ax_cpu_linked_rows linked;
} ax_cpu_embedding_grad;

/* Arguments of the optimizer kernels: the arguments of the launch, and the one array to update. */
typedef struct ax_cpu_update {
    const void *args; /* the argument struct of the launch */
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

/* Calls body(job, part, parts, scratch) for each part 0 … parts-1 of a job on the device's threads, including
 * the calling thread. The order of the parts, and which thread runs which part, are not defined. `scratch` is
 * the running thread's block of scratch. */
typedef void ax_cpu_body(void *job, int part, int parts, char *scratch);
void ax_cpu_parallel(const ax_cpu *cpu, int parts, ax_cpu_body *body, void *job);

/* Looks up the cores of `binding` and binds the calling thread to the first one. Returns NULL if one of these
 * steps fails. */
ax_cpu_places *ax_cpu_places_take(const ax_binding *binding);
/* Binds the calling thread to the core of thread `thread`. Returns false if the system refuses. */
bool ax_cpu_bind(const ax_cpu_places *places, int thread);
/* Frees *places, which may be NULL. If the calling thread still has the binding that ax_cpu_places_take gave
 * it, first restores the binding that it had before. */
void ax_cpu_places_leave(ax_cpu_places **places);

/* Starts `threads` - 1 workers beside the caller. Each worker is bound to its core (places NULL: not bound)
 * and has AX_CPU_SCRATCH bytes of `scratch`. The worker is the first to write them, so that their pages lie
 * near its core (NUMA first touch). `alone`: no other thread needs the cores, so idle threads spin longer. */
ax_status ax_cpu_pool_create(int threads, char *scratch, const ax_cpu_places *places, bool alone,
                             ax_cpu_pool **out);
void ax_cpu_pool_destroy(ax_cpu_pool **out);

ax_status ax_cpu_open(ax_device *dev);
void ax_cpu_close(ax_device *dev);
size_t ax_cpu_workspace(int threads);
void ax_cpu_touch(ax_device *dev, void *memory, size_t bytes);
void ax_cpu_host_work(ax_device *dev, int parts, ax_host_work_fn *work, void *user);

/* Kernels without SIMD (plain.c, masked.c). Work items are elements for fill and copy, rows for the others.
 */
ax_cpu_range_fn ax_cpu_fill, ax_cpu_copy, ax_cpu_copy_box, ax_cpu_compress, ax_cpu_expand, ax_cpu_route,
    ax_cpu_admit, ax_cpu_route_stats, ax_cpu_route_grad, ax_cpu_scatter;

double ax_cpu_peak(ax_device *dev, ax_dtype compute, double seconds);
double ax_cpu_read(ax_device *dev, const ax_span *span, int64_t n, double seconds);

ax_status ax_cpu_gemm_run(ax_stream *stream, const void *args);
ax_status ax_cpu_gemm_grouped_run(ax_stream *stream, const void *args);
/* Returns the largest number of values of k that are added up before the sum is added to that of the values
 * before: it depends on k alone. */
int64_t ax_cpu_gemm_block(const ax_cpu_gemm *gemm, int64_t k);
/* Computes one part of c, rows m0 … m1-1 by columns n0 … n1-1; a and b are fp32, bf16 or fp16. `scratch` is
 * the running thread's block of scratch. */
void ax_cpu_gemm_part(const ax_cpu_gemm *gemm, const ax_gemm_args *g, int64_t m0, int64_t m1, int64_t n0,
                      int64_t n1, char *scratch);

#endif
