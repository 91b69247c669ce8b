/* The lists of kernel cases, fourth part: clipping, and the updates of optimizers. */
#include "support/kernel_macros.h"

#include <math.h>
#include <string.h>

/* Adds the numbers of step 2. `skip`: the update must write nothing. */
static void put_numbers(kernel_case *c, size_t field, kc_role role, double grad_scale, bool skip)
{
    ax_update_numbers now = {.lr = 1e-3,
                             .correction1 = 1 - 0.9 * 0.9,
                             .correction2 = 1 - 0.95 * 0.95,
                             .grad_scale = grad_scale,
                             .skip = skip};
    enum { WORDS = sizeof now / sizeof(double) };
    memcpy(kc_add(c, "numbers", role, field, AX_F64, WORDS, 0), &now, sizeof now);
}

/* Makes cases of clip: finite sums, an infinite sum, an infinite loss, and a step whose skip flag was already
 * set. */
bool kc_build_clip(kernel_case *c, int index)
{
    static const double clips[] = {0, 1, 1e-3, 1e6};
    enum { FINE, SUM, LOSS, SKIPPED, WAYS };
    ARGS(clip);
    if (!kc_takes(c, KC_ACCUM) || index / WAYS >= kc_length_count - 1)
        return false;
    int way = index % WAYS;
    a->n = kc_lengths[index / WAYS];
    a->clip = clips[(index / WAYS + way) % (int)AX_COUNT(clips)];
    a->targets = 7;
    a->scale = index % 3 ? 1 : 0x1p16;
    double *sums = IN(sumsq, AX_F64, a->n), *loss = IN(loss, AX_F64, 1);
    for (int64_t i = 0; i < a->n; i++)
        sums[i] = fabs(sums[i]);
    for (int64_t i = a->n / 2; way == SUM && i < a->n; i += 5)
        sums[i] = INFINITY;
    loss[0] = way == LOSS ? INFINITY : 3.25;
    put_numbers(c, FIELD(numbers), KC_INOUT, 0.75, way == SKIPPED);
    if (way != SKIPPED) /* the result is F64 for every dtype */
        c->operand[c->operands - 1].bound = 4 * ((double)a->n + 1) * 0x1p-53;
    return true;
}

/* The arrays of an update: one; or three, of which the second is short and has no copy. */
typedef struct arrays {
    int count;
    int64_t n[3], total;
    int table; /* index of the operand */
} arrays;

static arrays put_table(kernel_case *c, size_t field, size_t host, int64_t n, bool several)
{
    arrays all = {.count = several ? 3 : 1, .n = {n, several ? 5 : 0, several ? n / 2 + 3 : 0}};
    ax_update_array table[3] = {{0}};
    enum { WORDS = sizeof *table / sizeof(double) };
    for (int i = 0; i < all.count; i++) {
        table[i] = (ax_update_array){.n = all.n[i], .decays = i != 1};
        /* with three arrays, this launch is the second one over a longer table */
        table[i].first = i         ? table[i - 1].first + ax_round_up(all.n[i - 1], AX_UPDATE_UNIT)
                         : several ? 3 * AX_UPDATE_UNIT
                                   : 0;
        all.total += all.n[i];
    }
    all.table = c->operands;
    memcpy(kc_add(c, "array", KC_IN, field, AX_F64, all.count * (int)WORDS, 0), table,
           (size_t)all.count * sizeof *table);
    c->operand[all.table].host = host;
    return all;
}

static void *put_array(kernel_case *c, const arrays *all, int i, const char *name, kc_role role, size_t field,
                       ax_dtype dtype)
{
    void *data = kc_add_to_table(c, all->table, name, role, (size_t)i * sizeof(ax_update_array) + field,
                                 dtype, all->n[i], role == KC_IN ? 0 : 8);
    if (role != KC_OUT)
        kc_fill(c, 0.25, 1);
    return data;
}
#define ARRAY(name, role, dtype) put_array(c, &all, i, #name, role, offsetof(ax_update_array, name), dtype)

/* Adds the gradient of array i, in `dtype` if the arrays are fp32. */
static void *put_grad(kernel_case *c, const arrays *all, int i, ax_dtype dtype)
{
    dtype = c->dtype == AX_F32 ? dtype : c->dtype;
    void *g = put_array(c, all, i, "g", KC_IN, offsetof(ax_update_array, g), dtype);
    kc_typed(c, (size_t)i * sizeof(ax_update_array) + offsetof(ax_update_array, g_dtype));
    return g;
}

/* A skipped update must not change a bit. */
static void expect_nothing(kernel_case *c)
{
    for (int i = 0; i < c->operands; i++)
        c->operand[i].bound = 0;
}

/* Kinds of calls: one array, three arrays (the first has a 16-bit gradient), the same with the skip flag
 * set. */
enum { ONE, SEVERAL, SKIPPED, CALLS };

bool kc_build_adamw(kernel_case *c, int index)
{
    static const ax_dtype copies[] = {AX_DTYPE_COUNT, AX_BF16, AX_F16, AX_F32, AX_BF16, AX_F16};
    enum { NARROW = 4 }; /* the gradients of the copies from here on have the copy's dtype */
    ARGS(adamw);
    int singles = (int)AX_COUNT(copies), variants = singles + CALLS - 1, length = index / variants,
        variant = index % variants, call = variant < singles ? ONE : variant - singles + 1;
    ax_dtype copy = call == ONE ? copies[variant] : AX_BF16;
    bool spike = copy == AX_F32; /* the square of grad_scale is subnormal in fp32 */
    if (!kc_takes(c, KC_ACCUM) || length >= kc_length_count)
        return false;
    arrays all = put_table(c, FIELD(array), FIELD(table), kc_lengths[length], call != ONE);
    a->n = all.total, a->arrays = all.count;
    a->beta1 = 0.9, a->beta2 = 0.95, a->eps = 1e-8, a->decay = 0.1;
    DTYPE(dtype, c->dtype);
    if (copy != AX_DTYPE_COUNT)
        DTYPE(copy_dtype, copy);
    for (int i = 0; i < all.count; i++) {
        bool narrow = call == ONE ? variant >= NARROW : !i;
        void *g = put_grad(c, &all, i, narrow ? copy : c->dtype);
        for (int64_t k = 0; spike && k < all.n[i]; k++)
            ax_store(c->dtype, g, k, 1e19 * ax_load(c->dtype, g, k)); /* not 16-bit, as the copy is not */
        ARRAY(w, KC_INOUT, c->dtype);
        ARRAY(m, KC_INOUT, c->dtype);
        void *v = ARRAY(v, KC_INOUT, c->dtype);
        for (int64_t k = 0; k < all.n[i]; k++)
            ax_store(c->dtype, v, k, fabs(ax_load(c->dtype, v, k)));
        if (copy != AX_DTYPE_COUNT && i != 1) {
            ARRAY(copy, KC_OUT, copy);
            a->copied += all.n[i];
        }
    }
    put_numbers(c, FIELD(numbers), KC_IN, spike ? 0.75e-19 : 0.75, call == SKIPPED);
    if (call == SKIPPED)
        expect_nothing(c);
    return true;
}

bool kc_build_sgd(kernel_case *c, int index)
{
    enum { MOMENTUM = 1, COPY = 2, NARROW = 4, SINGLES = 8 }; /* NARROW: a 16-bit gradient */
    ARGS(sgd);
    int variants = SINGLES + CALLS - 1, length = index / variants, variant = index % variants,
        call = variant < SINGLES ? ONE : variant - SINGLES + 1,
        with = call == ONE ? variant : MOMENTUM | COPY | NARROW;
    if (!kc_takes(c, KC_ACCUM) || length >= kc_length_count)
        return false;
    arrays all = put_table(c, FIELD(array), FIELD(table), kc_lengths[length], call != ONE);
    a->n = all.total, a->arrays = all.count;
    a->momentum = 0.9, a->decay = 0.05;
    DTYPE(dtype, c->dtype);
    if (with & (COPY | NARROW))
        DTYPE(copy_dtype, length % 2 ? AX_F16 : AX_BF16);
    for (int i = 0; i < all.count; i++) {
        put_grad(c, &all, i, with & NARROW && !i ? a->copy_dtype : c->dtype);
        ARRAY(w, KC_INOUT, c->dtype);
        if (with & MOMENTUM)
            ARRAY(m, KC_INOUT, c->dtype);
        if (with & COPY && i != 1) {
            ARRAY(copy, KC_OUT, a->copy_dtype);
            a->copied += all.n[i];
        }
    }
    put_numbers(c, FIELD(numbers), KC_IN, 0.75, call == SKIPPED);
    if (call == SKIPPED)
        expect_nothing(c);
    return true;
}
