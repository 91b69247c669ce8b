/* Matrix products of axonn and of oneDNN 2 (the API of Debian 12's libdnnl-dev). */
#include "limit.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdlib.h>

/* A result in dense rows. */
typedef struct rows {
    const char *c;
    int64_t n;
    ax_dtype dtype;
} rows;

static float rows_at(const void *state, int64_t row, int64_t col)
{
    const rows *r = state;
    int64_t i = row * r->n + col;
    return r->dtype == AX_F32 ? ((const float *)r->c)[i] : limit_from_bf16(((const uint16_t *)r->c)[i]);
}

static rows rows_of(const bench *b, const product *p, ax_dtype dtype)
{
    return (rows){.c = b->c, .n = p->n, .dtype = dtype};
}

/* ---- axonn --------------------------------------------------------------------------------------- */

typedef struct axonn {
    rows out; /* the first member of every state in this file */
    ax_stream stream;
    ax_gemm_args gemm;
} axonn;

static void *axonn_prepare(const bench *b, const product *p)
{
    axonn *s = calloc(1, sizeof *s);
    limit_check(!s, "memory");
    ax_gemm_args g = {.m = p->m, .n = p->n, .k = p->k, .a = b->a, .b = b->b, .c = b->c, .ldc = p->n};
    g.lda = p->ta ? p->m : p->k, g.ldb = p->tb ? p->k : p->n, g.trans_a = p->ta, g.trans_b = p->tb;
    g.dtype = b->dtype, g.c_dtype = p->ta ? AX_F32 : b->dtype;
    s->out = rows_of(b, p, g.c_dtype);
    s->stream.dev = b->dev;
    s->gemm = g;
    return s;
}

static void axonn_run(void *state)
{
    axonn *s = state;
    limit_check(ax_run_gemm(&s->stream, &s->gemm), "ax_run_gemm");
}

const way way_axonn = {"axonn", axonn_prepare, axonn_run, rows_at, free};

/* ---- oneDNN's matmul primitive ------------------------------------------------------------------- */

typedef struct primitive {
    rows out;
    dnnl_engine_t engine;
    dnnl_stream_t queue;
    dnnl_primitive_t run;
    dnnl_exec_arg_t args[4];
    const bench *b;
    void *packed, *scratch;
    size_t packed_bytes, scratch_bytes;
} primitive;

static dnnl_memory_t memory_of(const primitive *s, const dnnl_memory_desc_t *desc, void *data)
{
    dnnl_memory_t memory;
    limit_check(dnnl_memory_create(&memory, desc, s->engine, data), "dnnl_memory_create");
    return memory;
}

static void pack(primitive *s, const dnnl_memory_desc_t *from, const dnnl_memory_desc_t *to)
{
    s->packed_bytes = dnnl_memory_desc_get_size(to);
    s->packed = limit_alloc(s->b, s->packed_bytes);
    dnnl_primitive_desc_t desc;
    dnnl_primitive_t reorder;
    dnnl_exec_arg_t args[2] = {{DNNL_ARG_FROM, memory_of(s, from, s->b->b)},
                               {DNNL_ARG_TO, memory_of(s, to, s->packed)}};
    limit_check(dnnl_reorder_primitive_desc_create(&desc, from, s->engine, to, s->engine, NULL), "reorder");
    limit_check(dnnl_primitive_create(&reorder, desc), "dnnl_primitive_create");
    limit_check(dnnl_primitive_execute(reorder, s->queue, 2, args), "dnnl_primitive_execute");
    limit_check(dnnl_stream_wait(s->queue), "dnnl_stream_wait");
    dnnl_primitive_desc_destroy(desc);
    dnnl_primitive_destroy(reorder);
    for (int i = 0; i < 2; i++)
        dnnl_memory_destroy(args[i].memory);
}

static void *primitive_prepare(const bench *b, const product *p, bool packed)
{
    primitive *s = calloc(1, sizeof *s);
    limit_check(!s, "memory");
    s->b = b;
    s->out = rows_of(b, p, p->ta ? AX_F32 : b->dtype);
    limit_check(dnnl_engine_create(&s->engine, dnnl_cpu, 0), "dnnl_engine_create");
    limit_check(dnnl_stream_create(&s->queue, s->engine, dnnl_stream_default_flags), "dnnl_stream_create");
    dnnl_data_type_t type = b->dtype == AX_BF16 ? dnnl_bf16 : dnnl_f32;
    dnnl_dims_t ad = {p->m, p->k}, bd = {p->k, p->n}, cd = {p->m, p->n};
    dnnl_dims_t as = {p->ta ? 1 : p->k, p->ta ? p->m : 1}, bs = {p->tb ? 1 : p->n, p->tb ? p->k : 1},
                cs = {p->n, 1};
    dnnl_memory_desc_t am, bm, any, cm;
    limit_check(dnnl_memory_desc_init_by_strides(&am, 2, ad, type, as), "a");
    limit_check(dnnl_memory_desc_init_by_strides(&bm, 2, bd, type, bs), "b");
    limit_check(dnnl_memory_desc_init_by_tag(&any, 2, bd, type, dnnl_format_tag_any), "b");
    limit_check(dnnl_memory_desc_init_by_strides(&cm, 2, cd, p->ta ? dnnl_f32 : type, cs), "c");
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_attr_t attr;
    dnnl_primitive_desc_t desc;
    limit_check(dnnl_matmul_desc_init(&matmul, &am, packed ? &any : &bm, NULL, &cm), "dnnl_matmul_desc_init");
    limit_check(dnnl_primitive_attr_create(&attr), "dnnl_primitive_attr_create");
    limit_check(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user), "scratchpad");
    dnnl_status_t status = dnnl_primitive_desc_create(&desc, &matmul, attr, s->engine, NULL);
    if (status == dnnl_unimplemented) { /* bf16 on processors without AVX-512 */
        dnnl_primitive_attr_destroy(attr);
        dnnl_stream_destroy(s->queue);
        dnnl_engine_destroy(s->engine);
        free(s);
        return NULL;
    }
    limit_check(status, "dnnl_primitive_desc_create");
    limit_check(dnnl_primitive_create(&s->run, desc), "dnnl_primitive_create");
    const dnnl_memory_desc_t *weights = dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 0);
    const dnnl_memory_desc_t *pad = dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    s->scratch_bytes = dnnl_memory_desc_get_size(pad);
    s->scratch = s->scratch_bytes ? limit_alloc(b, s->scratch_bytes) : NULL;
    if (packed)
        pack(s, &bm, weights);
    s->args[0] = (dnnl_exec_arg_t){DNNL_ARG_SRC, memory_of(s, &am, b->a)};
    s->args[1] = (dnnl_exec_arg_t){DNNL_ARG_WEIGHTS, memory_of(s, weights, packed ? s->packed : b->b)};
    s->args[2] = (dnnl_exec_arg_t){DNNL_ARG_DST, memory_of(s, &cm, b->c)};
    s->args[3] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, memory_of(s, pad, s->scratch)};
    dnnl_primitive_desc_destroy(desc);
    dnnl_primitive_attr_destroy(attr);
    return s;
}

static void *plain_prepare(const bench *b, const product *p) { return primitive_prepare(b, p, false); }

static void *packed_prepare(const bench *b, const product *p)
{
    return p->b_constant ? primitive_prepare(b, p, true) : NULL;
}

static void primitive_run(void *state)
{
    primitive *s = state;
    limit_check(dnnl_primitive_execute(s->run, s->queue, 4, s->args), "dnnl_primitive_execute");
    limit_check(dnnl_stream_wait(s->queue), "dnnl_stream_wait");
}

static void primitive_release(void *state)
{
    primitive *s = state;
    dnnl_primitive_destroy(s->run);
    for (int i = 0; i < 4; i++)
        dnnl_memory_destroy(s->args[i].memory);
    dnnl_stream_destroy(s->queue);
    dnnl_engine_destroy(s->engine);
    ax_device_free(s->b->dev, s->packed, s->packed_bytes);
    ax_device_free(s->b->dev, s->scratch, s->scratch_bytes);
    free(s);
}

const way way_plain = {"oneDNN", plain_prepare, primitive_run, rows_at, primitive_release};
const way way_packed = {"packed", packed_prepare, primitive_run, rows_at, primitive_release};

/* ---- its BLAS-like functions, which write fp32 --------------------------------------------------- */

/* Exported by the library but not declared in its headers. Row-major, like dnnl_sgemm. */
dnnl_status_t dnnl_gemm_bf16bf16f32(char transa, char transb, dnnl_dim_t m, dnnl_dim_t n, dnnl_dim_t k,
                                    float alpha, const uint16_t *a, dnnl_dim_t lda, const uint16_t *b,
                                    dnnl_dim_t ldb, float beta, float *c, dnnl_dim_t ldc);

typedef struct blas {
    rows out;
    const bench *b;
    product p;
} blas;

/* False for bf16 on processors without AVX-512. */
static bool blas_has(ax_dtype dtype)
{
    const uint16_t one = 0x3f80;
    float c;
    return dtype == AX_F32 ||
           dnnl_gemm_bf16bf16f32('N', 'N', 1, 1, 1, 1, &one, 1, &one, 1, 0, &c, 1) == dnnl_success;
}

static void *blas_prepare(const bench *b, const product *p)
{
    if (!blas_has(b->dtype))
        return NULL;
    blas *s = malloc(sizeof *s);
    limit_check(!s, "memory");
    *s = (blas){.out = rows_of(b, p, AX_F32), .b = b, .p = *p};
    return s;
}

static void blas_run(void *state)
{
    const blas *s = state;
    const product *p = &s->p;
    char ta = p->ta ? 'T' : 'N', tb = p->tb ? 'T' : 'N';
    int64_t lda = p->ta ? p->m : p->k, ldb = p->tb ? p->k : p->n;
    if (s->b->dtype == AX_F32)
        limit_check(dnnl_sgemm(ta, tb, p->m, p->n, p->k, 1, (float *)s->b->a, lda, (float *)s->b->b, ldb, 0,
                               (float *)s->b->c, p->n),
                    "dnnl_sgemm");
    else
        limit_check(dnnl_gemm_bf16bf16f32(ta, tb, p->m, p->n, p->k, 1, (uint16_t *)s->b->a, lda,
                                          (uint16_t *)s->b->b, ldb, 0, (float *)s->b->c, p->n),
                    "dnnl_gemm_bf16bf16f32");
}

const way way_blas = {"gemm", blas_prepare, blas_run, rows_at, free};
