/* bf16 GEMM on AMX: packing and micro-tile with the interface of gemm_kernels.h. One instruction multiplies a
 * tile of 16 rows by 32 values of k with a tile of 32 values of k by 16 columns.
 *
 * A micro-tile is 2 x 2 tiles of sums. A step of STEP units in k (a unit is a pair of bf16 values) loads two
 * tiles of a and two of b for four tile multiplications; the L1 and L2 caches can deliver that many loads in
 * the time of the multiplications. Panels of b have the format of the vector kernels, [units][nv*16] for nv
 * vectors of 16 columns, padded with zeros to whole steps in k. A tile of a is 16 rows of 64 bytes,
 * contiguous in k. It is read in place, or packed so that the rows of a step are adjacent:
 *
 *     a panel:  [steps][AMX_ROWS][STEP]
 *
 * AMX can store tiles to memory, but cannot move them to vector registers. So the other terms of the result
 * (prior, bias and c in ax_cpu_tile) are added to the sums after the tiles are stored. */
#ifndef AX_DEV_CPU_GEMM_AMX_KERNELS_H
#define AX_DEV_CPU_GEMM_AMX_KERNELS_H

enum { AMX_ROWS = 32, AMX_VECTORS = 2, STEP = 16 };

/* Configures eight tiles of 16 rows by 64 bytes. */
static void amx_begin(void)
{
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } whole = {
        .palette = 1, .bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&whole);
}

/* Releases the tiles, so that the system does not save them at context switches. */
static void amx_end(void) { _tile_release(); }

/* ---- packing ------------------------------------------------------------------------------------- */

/* Loads 128 bits from each of four rows, rows 0, apart, 2·apart and 3·apart from `row` on, into the four
 * 128-bit lanes of a vector. Loading in this order does a part of the transposition and saves shuffles, which
 * only one execution port can run. */
INLINE __m512i amx_lanes(const uint16_t *row, int64_t ld, int64_t apart)
{
#define LANE(i) _mm_loadu_si128((const __m128i *)(const void *)(row + (i)*apart * ld))
    __m512i x = _mm512_castsi128_si512(LANE(0));
    x = _mm512_inserti32x4(x, LANE(1), 1);
    x = _mm512_inserti32x4(x, LANE(2), 2);
    return _mm512_inserti32x4(x, LANE(3), 3);
#undef LANE
}

/* Transposes 16 rows of STEP units (a unit is two bf16, neighbours in k) to STEP rows of 16 units. The rows
 * of the result are `width` units apart. */
INLINE void amx_transpose_units(const uint16_t *src, int64_t ld, int64_t width, float *to)
{
    UNROLL
    for (int c = 0; c < 4; c++) {
        __m512i a = amx_lanes(src + 8 * c, ld, 4), b = amx_lanes(src + ld + 8 * c, ld, 4),
                d = amx_lanes(src + 2 * ld + 8 * c, ld, 4), e = amx_lanes(src + 3 * ld + 8 * c, ld, 4);
        __m512i ab = _mm512_unpacklo_epi32(a, b), de = _mm512_unpacklo_epi32(d, e);
        __m512i ab_hi = _mm512_unpackhi_epi32(a, b), de_hi = _mm512_unpackhi_epi32(d, e);
        _mm512_storeu_si512(to + (4 * c) * width, _mm512_unpacklo_epi64(ab, de));
        _mm512_storeu_si512(to + (4 * c + 1) * width, _mm512_unpackhi_epi64(ab, de));
        _mm512_storeu_si512(to + (4 * c + 2) * width, _mm512_unpacklo_epi64(ab_hi, de_hi));
        _mm512_storeu_si512(to + (4 * c + 3) * width, _mm512_unpackhi_epi64(ab_hi, de_hi));
    }
}

/* Transposes 32 rows of 8 values to 8 rows of 32 values, which are stored one after another. */
INLINE void amx_transpose_values(const uint16_t *src, int64_t ld, float *to)
{
    __m512i v[8], x[8];
    UNROLL
    for (int i = 0; i < 8; i++)
        v[i] = amx_lanes(src + i * ld, ld, 8);
    UNROLL
    for (int i = 0; i < 8; i += 2) {
        x[i] = _mm512_unpacklo_epi16(v[i], v[i + 1]);
        x[i + 1] = _mm512_unpackhi_epi16(v[i], v[i + 1]);
    }
    UNROLL
    for (int i = 0; i < 8; i += 4) {
        v[i] = _mm512_unpacklo_epi32(x[i], x[i + 2]);
        v[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 2]);
        v[i + 2] = _mm512_unpacklo_epi32(x[i + 1], x[i + 3]);
        v[i + 3] = _mm512_unpackhi_epi32(x[i + 1], x[i + 3]);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        _mm512_storeu_si512(to + 2 * i * STEP, _mm512_unpacklo_epi64(v[i], v[i + 4]));
        _mm512_storeu_si512(to + (2 * i + 1) * STEP, _mm512_unpackhi_epi64(v[i], v[i + 4]));
    }
}

/* Packs columns of b into one panel, as the vector kernels pack pairs, and pads the panel with zeros to a
 * whole step in k. */
static void pack_b_amx(const void *src, int64_t ld, bool along_k, int64_t rows, int64_t k, int width,
                       int64_t units, void *out)
{
    (void)units;
    float *to = out;
    const uint16_t *from = src;
    int64_t whole = along_k && rows == width ? k / (2 * STEP) * (2 * STEP) : 0;
    for (int64_t at = 0; at < whole; at += 2 * STEP)
        for (int64_t r = 0; r < rows; r += W)
            amx_transpose_units(from + r * ld + at, ld, width, to + at / 2 * width + r);
    if (whole == k)
        return;
    to += whole / 2 * width;
    k -= whole;
    pack_b(BF16_PAIRS, (const char *)(from + (along_k ? whole : whole * ld)), ld, along_k, rows, k, width,
           to);
    int64_t have = (k + 1) / 2;
    memset(to + have * width, 0, (size_t)((ax_round_up(have, STEP) - have) * width) * 4);
}

/* Packs one step in k (32 values) of one panel of a (32 rows), if a is contiguous in k. Missing rows and
 * values become zeros. */
INLINE void amx_pack_step(const uint16_t *src, int64_t ld, int64_t rows, int64_t k, float *to)
{
    for (int64_t i = 0; i < AMX_ROWS; i++)
        vstore(to + i * STEP, i < rows ? pairs_along_k(src + i * ld, 0, k) : vset(0));
}

/* Packs one step in k (32 values) of one panel of a (32 rows), if a is transposed, so that the values of
 * successive rows are contiguous. Missing rows and values become zeros. */
INLINE void amx_pack_step_transposed(const uint16_t *src, int64_t ld, int64_t rows, int64_t k, float *to)
{
    if (rows >= AMX_ROWS && k >= 2 * STEP) {
        for (int64_t r = 0; r < AMX_ROWS; r += 8)
            amx_transpose_values(src + r, ld, to + r * STEP);
        return;
    }
    for (int64_t r = 0; r < AMX_ROWS; r += W) {
        vf block[W];
        UNROLL
        for (int u = 0; u < W; u++) {
            const uint16_t *row = src + 2 * u * ld + r;
            block[u] = r < rows && 2 * u < k ? pairs_of_rows(row, 2 * u + 1 < k ? row + ld : NULL, rows - r)
                                             : vset(0);
        }
        vtranspose(block);
        UNROLL
        for (int i = 0; i < W; i++)
            vstore(to + (r + i) * STEP, block[i]);
    }
}

static void pack_a_amx(const void *src, int64_t ld, bool along_k, int64_t rows, int64_t k, int width,
                       int64_t units, void *out)
{
    (void)width;
    for (int64_t r = 0; r < rows; r += AMX_ROWS)
        for (int64_t u = 0; 2 * u < k; u += STEP) {
            float *to = (float *)out + r * units + u * AMX_ROWS;
            const uint16_t *from = src;
            int64_t n = rows - r, left = k - 2 * u;
            if (along_k)
                amx_pack_step(from + r * ld + 2 * u, ld, n, left, to);
            else
                amx_pack_step_transposed(from + 2 * u * ld + r, ld, n, left, to);
        }
}

/* ---- the micro-tile ------------------------------------------------------------------------------ */

/* Stores rows r0 … r1-1 of a micro-tile to c. Before that, adds the other terms to the micro-tile's sums:
 * t->prior (earlier sums, or the old fp32 c), the bias, and the old c if t->add_c. The micro-tile is nv whole
 * vectors wide. */
INLINE void amx_store_rows(int nv, const ax_cpu_tile *t, int64_t r0, int64_t r1)
{
    for (int64_t i = r0; i < r1; i++) {
        const float *prior = t->prior + i * t->prior_ld, *sums = t->sums + i * nv * W;
        uint16_t *halves = (uint16_t *)t->c + i * t->c_ld;
        UNROLL
        for (int v = 0; v < nv; v++) {
            vf sum = add_terms(t, vload(sums + v * W), prior, v * W);
            if (t->add_c)
                sum = sum + vload_b(halves + v * W);
            if (t->c_type == VBF16)
                vstore_b(halves + v * W, sum);
            else
                vstore((float *)t->c + i * t->c_ld + v * W, sum);
        }
    }
}

static void amx_store(const ax_cpu_tile *t)
{
    if (t->cols == 2 * W)
        amx_store_rows(2, t, 0, t->rows);
    else if (t->cols == W)
        amx_store_rows(1, t, 0, t->rows);
    else
        tile_store(t, t->sums, t->cols > W ? 2 * W : W);
}

/* Multiplies one step in k: tiles 0 to 3 hold the sums, 4 and 5 are loaded from a, 6 and 7 from b. If nv is
 * 1, tiles 1, 3 and 7 are not used. */
INLINE void amx_step(int nv, const char *a, int64_t a_row, const char *b)
{
    _tile_loadd(6, b, (size_t)nv * LINE);
    _tile_loadd(4, a, (size_t)a_row);
    _tile_dpbf16ps(0, 4, 6);
    if (nv > 1) {
        _tile_loadd(7, b + LINE, (size_t)nv * LINE);
        _tile_dpbf16ps(1, 4, 7);
    }
    _tile_loadd(5, a + 16 * a_row, (size_t)a_row);
    _tile_dpbf16ps(2, 5, 6);
    if (nv > 1)
        _tile_dpbf16ps(3, 5, 7);
}

/* Work between the steps of a micro-tile, while the AMX unit multiplies and the vector units are idle:
 * storing rows of the previous micro-tile, and prefetching rows of c. */
typedef struct step_work {
    const ax_cpu_tile *previous; /* or NULL */
    int64_t rows, stored;        /* number of rows of `previous`, and how many of these are already stored */
    int64_t prefetched;          /* number of rows of c that are already prefetched */
    int64_t rows_per_step;       /* rows to store, and to prefetch, in each step */
} step_work;

INLINE step_work amx_step_work_of(int nv, int64_t k, const ax_cpu_tile *t)
{
    step_work w = {.previous = t->previous, .prefetched = t->prefetch_c ? 0 : t->rows};
    /* A previous micro-tile with another width belongs to another panel, or has columns that are not whole
     * vectors. It is stored at once. */
    if (w.previous && w.previous->cols != nv * W) {
        amx_store(w.previous);
        w.previous = NULL;
    }
    w.rows = w.previous ? w.previous->rows : 0;
    if (w.previous || t->prefetch_c) {
        int64_t steps = ax_ceil_div(k, 2 * STEP);
        w.rows_per_step = ax_ceil_div(AMX_ROWS, steps);
    }
    return w;
}

INLINE void amx_prefetch_c(const ax_cpu_tile *t, int64_t r0, int64_t r1)
{
    int64_t size = vsize(t->c_type);
    for (int64_t i = r0; i < r1; i++) {
        const char *at = (const char *)t->c + i * t->c_ld * size, *end = at + t->cols * size;
        for (at -= (uintptr_t)at % LINE; at < end; at += LINE)
            __builtin_prefetch(at, 1, 2);
    }
}

INLINE void amx_do_step_work(step_work *w, int nv, const ax_cpu_tile *t)
{
    if (w->stored < w->rows) {
        int64_t end = ax_min(w->stored + w->rows_per_step, w->rows);
        amx_store_rows(nv, w->previous, w->stored, end);
        w->stored = end;
    }
    if (w->prefetched < t->rows) {
        int64_t end = ax_min(w->prefetched + w->rows_per_step, t->rows);
        amx_prefetch_c(t, w->prefetched, end);
        w->prefetched = end;
    }
    ax_cpu_step_hook *m = t->hook;
    if (m) {
        prefetch_lines(&m->prefetch[0], m->lines_per_step[0]);
        prefetch_lines(&m->prefetch[1], m->lines_per_step[1]);
        if (--m->steps == 0)
            m->call(m);
    }
}

INLINE void amx_tile(int nv, int64_t k, const ax_cpu_rows *a, const char *b, const ax_cpu_tile *t)
{
    _Alignas(64) float local_sums[AMX_ROWS * AMX_VECTORS * W];
    int64_t missing = AMX_ROWS - a->n, step = a->unit * STEP;
    const char *at = (const char *)a->at - missing * a->row;
    bool direct = !t->sums && ax_cpu_is_plain_store(t, AMX_ROWS, nv, W);
    float *sums = direct ? t->c : t->sums ? t->sums - missing * nv * W : local_sums;
    int64_t sums_ld = direct ? t->c_ld : nv * W;
    step_work w = amx_step_work_of(nv, k, t);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    __asm__ volatile("" ::: "memory"); /* packed values must be stored before tile loads */
    for (int64_t left = k; left > 0; left -= 2 * STEP) {
        if (left < 2 * STEP &&
            a->unit == 4) { /* a is read in place, so the values after the row's end may not be zeros */
            _Alignas(64) float rest[AMX_ROWS * STEP];
            amx_pack_step((const uint16_t *)(const void *)at, a->row / 2, AMX_ROWS, left, rest);
            __asm__ volatile("" ::: "memory");
            amx_step(nv, (const char *)rest, LINE, b);
        } else
            amx_step(nv, at, a->row, b);
        at += step;
        b += STEP * nv * LINE;
        amx_do_step_work(&w, nv, t);
    }
    _tile_stored(0, sums, (size_t)sums_ld * 4);
    _tile_stored(2, sums + 16 * sums_ld, (size_t)sums_ld * 4);
    if (nv > 1) {
        _tile_stored(1, sums + W, (size_t)sums_ld * 4);
        _tile_stored(3, sums + 16 * sums_ld + W, (size_t)sums_ld * 4);
    }
    __asm__ volatile("" ::: "memory"); /* sums must be loaded after tile stores */
    if (t->sums || direct)
        return;
    ax_cpu_tile now = *t;
    now.sums = local_sums + missing * nv * W;
    amx_store(&now);
}

static void tile_amx(int nv, int64_t k, const ax_cpu_rows *a, const void *b, const ax_cpu_tile *t)
{
    if (nv == 2)
        amx_tile(2, k, a, b, t);
    else
        amx_tile(1, k, a, b, t);
}

static const ax_cpu_gemm gemm_bf16 = {
    .rows = AMX_ROWS,
    .lanes = W,
    .vectors = AMX_VECTORS,
    .pair = 2,
    .grain = STEP,
    .pack_cost = 72,
    .a_packed = AX_CPU_A_BLOCK,
    .a_unpacked = 192 << 10,
    .pack_a = pack_a_amx,
    .pack_b = pack_b_amx,
    .tile = tile_amx,
    .begin = amx_begin,
    .end = amx_end,
    .store = amx_store,
};
_Static_assert((int)AMX_ROWS *AMX_VECTORS *W <= (int)AX_CPU_TILE_SUMS,
               "the caller's memory for the sums is too small");

#endif
