/* Which elements of a matrix are zero in weight files. */
#include "ckpt.h"

typedef struct reading {
    ax_st *st;
    const ckpt_item *item;
    const ax_st_array *array;
    ax_dtype dtype;
    void *staging;
    uint64_t *bits;
} reading;

/* Sets the bits of the elements of a piece that are not zero: rows of the box, or a part of a row. */
static void set_bits(const reading *r, int64_t cols, const ckpt_pieces *p)
{
    uint64_t *bits = r->bits + p->first / cols * ax_ceil_div(cols, 64);
    int64_t col = p->first % cols;
    for (int64_t i = 0; i < p->count; i++) {
        if (ax_load(r->dtype, r->staging, i) != 0) /* NaN, too: the first step reports it */
            bits[col / 64] |= (uint64_t)1 << col % 64;
        if (++col == cols) {
            col = 0;
            bits += ax_ceil_div(cols, 64);
        }
    }
}

static ax_status read_box(const reading *r, const ax_box *box)
{
    ckpt_pieces p;
    int64_t lo[AX_MAX_DIMS] = {0}, file_lo[AX_MAX_DIMS], file_n[AX_MAX_DIMS];
    ckpt_pieces_begin(&p, 2, box->n, AX_ST_STAGING / (int64_t)ax_dtype_size(r->dtype));
    while (ckpt_pieces_next(&p)) {
        for (int d = 0; d < 2; d++)
            lo[d] = box->lo[d] + p.lo[d];
        ckpt_place_box(r->item, lo, p.n, file_lo, file_n);
        AX_TRY(ax_st_read(r->st, r->array, file_lo, file_n, r->item->place.transpose, r->dtype, r->staging));
        set_bits(r, box->n[1], &p);
    }
    return AX_OK;
}

ax_status ax_ckpt_read_mask(ax_st *st, const ax_param *param, const char *prefix, ax_dtype dtype,
                            const ax_box *box, uint64_t *bits)
{
    ckpt_items items;
    ax_region staging;
    AX_TRY(ckpt_items_list((ax_param *[]){(ax_param *)(uintptr_t)param}, 1, false, &items)); /* only read */
    reading r = {.st = st, .item = items.item, .dtype = dtype, .bits = bits};
    r.array = ax_ckpt_find_array(st, items.item->key, prefix);
    ax_status status = ax_region_create(AX_ST_STAGING, &staging);
    if (status == AX_OK) {
        r.staging = staging.base;
        status = r.array ? read_box(&r, box)
                         : ax_fail(AX_ERR_DATA, "the weight files have no array %s", items.item->key);
        ax_region_destroy(&staging);
    }
    ckpt_items_fini(&items);
    return status;
}
