/* GEMM by cuBLASLt. A row-major c = op(a)·op(b) is the column-major cᵀ = op(b)ᵀ·op(a)ᵀ, so cuBLASLt is given
 * b first. The plan of a GEMM (its descriptors and algorithm) is made at the first call of its shape
 * (gemm_plan.c), and kept here in a hash table. */
#include "dev/cuda/gemm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef ax_cuda_plan plan;
typedef ax_cuda_plan_key plan_key;
typedef ax_cuda_matmuls matmuls;

/* Opens the files of algorithms that were chosen by timing. `dir`: directory of a run, into which each
 * algorithm that the run uses is written; NULL: none. `from`: directory whose algorithms are read before any
 * is chosen; NULL: none. `spent`: seconds that timing has already taken. */
static ax_status open_measured(matmuls *p, const char *dir, const char *from, double spent)
{
    AX_TRY(ax_cuda_plans_open(p->kind, dir, from, spent, &p->measured));
    if (!p->measured || p->begin)
        return AX_OK;
    AX_CUDA(cudaEventCreateWithFlags(&p->begin, cudaEventDefault));
    AX_CUDA(cudaEventCreateWithFlags(&p->end, cudaEventDefault));
    return AX_OK;
}

ax_status ax_cuda_matmuls_create(const ax_cuda *cu, const char *gpu, matmuls **out)
{
    enum { ROOM = 256 };
    matmuls *p;
    *out = NULL;
    AX_TRY(ax_calloc(1, sizeof *p, &p));
    *out = p;
    p->workspace = (size_t)cu->scratch_bytes - AX_CUDA_BIAS_BYTES;
    p->bias = (char *)cu->scratch + p->workspace;
    snprintf(p->kind, sizeof p->kind, "%s, %d multiprocessors, cuBLASLt %zu, keys 3", gpu, cu->processors,
             cublasLtGetVersion());
    AX_TRY(ax_calloc(ROOM, sizeof *p->slot, &p->slot));
    p->room = ROOM;
    AX_LT(cublasLtCreate(&p->library));
    return open_measured(p, NULL, NULL, 0);
}

static void forget_plans(matmuls *p)
{
    for (int64_t i = 0; i < p->room; i++)
        if (p->slot[i])
            ax_cuda_plan_destroy(p->slot[i]);
    memset(p->slot, 0, (size_t)p->room * sizeof *p->slot);
    p->used = 0;
}

/* Opens the files of plans for a run. Drops the present plans, so that GEMMs that have run before get plans
 * that are kept in these files too. The time that timing has taken before, for example for the GEMMs that
 * measure the peak rate, counts towards runtime.plan_seconds. */
ax_status ax_cuda_matmuls_keep(matmuls *p, const char *dir, const char *from, bool *kept)
{
    double spent = ax_cuda_plans_spent(p->measured);
    forget_plans(p);
    ax_cuda_plans_close(&p->measured);
    AX_TRY(open_measured(p, dir, from, spent));
    *kept = p->measured;
    return AX_OK;
}

void ax_cuda_matmuls_destroy(matmuls **out)
{
    matmuls *p = *out;
    if (!p)
        return;
    if (p->slot)
        forget_plans(p);
    if (p->library)
        cublasLtDestroy(p->library);
    if (p->begin)
        cudaEventDestroy(p->begin);
    if (p->end)
        cudaEventDestroy(p->end);
    ax_cuda_plans_close(&p->measured);
    free(p->slot);
    free(p);
    *out = NULL;
}

/* ---- the table ----------------------------------------------------------------------------------- */

static plan_key key_of(const ax_gemm_args *g)
{
    const void *sums =
        g->accumulate_sums ? NULL : g->col_sums; /* where cuBLASLt stores col_sums; NULL: in scratch */
    return (plan_key){.m = g->m,
                      .n = g->n,
                      .k = g->k,
                      .lda = g->lda,
                      .ldb = g->ldb,
                      .ldc = g->ldc,
                      .dtype = g->dtype,
                      .c_dtype = g->c_dtype,
                      .trans_a = g->trans_a,
                      .trans_b = g->trans_b,
                      .accumulate = g->accumulate,
                      .bias = g->bias       ? 1
                              : g->col_sums ? 2
                                            : 0,
                      .align_a = ax_cuda_alignment(g->a),
                      .align_b = ax_cuda_alignment(g->b),
                      .align_c = ax_cuda_alignment(g->c),
                      .align_bias = ax_cuda_alignment(g->bias ? g->bias : sums),
                      .epilogue = g->epilogue,
                      .preact = g->preact != NULL,
                      .align_preact = ax_cuda_alignment(g->preact)};
}

/* Returns the slot of the hash table that has the plan with this key, or the empty slot where it belongs. */
static plan **slot_of(const matmuls *all, const plan_key *key)
{
    uint64_t i = ax_cuda_plan_hash(key, sizeof *key) & (uint64_t)(all->room - 1);
    while (all->slot[i] && memcmp(&all->slot[i]->key, key, sizeof *key))
        i = (i + 1) & (uint64_t)(all->room - 1);
    return &all->slot[i];
}

static ax_status grow_table(matmuls *all)
{
    matmuls larger = {.room = 2 * all->room};
    AX_TRY(ax_calloc((size_t)larger.room, sizeof *larger.slot, &larger.slot));
    for (int64_t i = 0; i < all->room; i++)
        if (all->slot[i])
            *slot_of(&larger, &all->slot[i]->key) = all->slot[i];
    free(all->slot);
    all->slot = larger.slot;
    all->room = larger.room;
    return AX_OK;
}

static ax_status find_plan(matmuls *all, ax_stream *stream, const ax_gemm_args *g, plan **out)
{
    plan_key key = key_of(g);
    plan *p = *slot_of(all, &key);
    *out = p;
    if (p)
        return AX_OK;
    if (2 * all->used + 2 >= all->room)
        AX_TRY(grow_table(all));
    AX_TRY(ax_calloc(1, sizeof *p, &p));
    p->key = key;
    ax_status status = ax_cuda_plan_make(all, stream, g, p);
    if (status != AX_OK) {
        ax_cuda_plan_destroy(p);
        return status;
    }
    all->used++;
    *out = *slot_of(all, &key) =
        p; /* the slot is looked up again, because making p may have added another plan */
    return AX_OK;
}

ax_status ax_cuda_gemm(ax_stream *stream, const void *args)
{
    const ax_gemm_args *g = args;
    ax_cuda *cu = ax_cuda_of(stream);
    plan *p;
    bool accumulate = g->accumulate;
    if (!g->m || (!g->n && !g->col_sums))
        return AX_OK;
    if ((g->epilogue || g->col_sums) && !ax_cuda_may_fuse(cu->matmuls, g))
        return ax_gemm_in_two(stream, g, ax_plugin_cuda.kernel);
    if (!g->k) /* k = 0 is computed without cuBLASLt, which rejects it */
        return accumulate && !g->bias ? AX_OK : ax_cuda_spread_rows(stream, g);
    AX_TRY(find_plan(cu->matmuls, stream, g, &p));
    if (p->unfused)
        return ax_gemm_in_two(stream, g, ax_plugin_cuda.kernel);
    if (p->use_own_kernel)
        return ax_cuda_plain_gemm(stream, g);
    if (g->bias && p->separate_bias) {
        AX_TRY(ax_cuda_spread_rows(stream, g));
        accumulate = true;
    }
    return ax_cuda_plan_run(cu->matmuls, stream, p, g, accumulate);
}
