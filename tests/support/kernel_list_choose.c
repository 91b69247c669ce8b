/* The lists of kernel cases, fifth part: attention that reads few keys. */
#include "support/kernel_list.h"

#include "support/kernel_macros.h"

bool kc_build_turn(kernel_case *c, int index)
{
    static const int64_t shapes[][4] = {{0, 2, 1, 8},   {1, 1, 1, 1},   {3, 4, 2, 3},   {5, 2, 2, 16},
                                        {9, 6, 3, 40},  {17, 3, 1, 64}, {4, 8, 2, 128}, {33, 2, 1, 80},
                                        {2, 2, 2, 300}, {7, 1, 1, 256}};
    if (index / 2 >= (int)AX_COUNT(shapes) || !kc_takes(c, KC_ACTIVATION))
        return false;
    ARGS(turn);
    const int64_t *s = shapes[index / 2];
    a->rows = s[0], a->heads = s[1], a->kv_heads = s[2], a->head_dim = s[3];
    a->ld = s[1] * s[3] + index % 2 * 3;
    kc_name(c, " %d rows h%d g%d d%d", (int)s[0], (int)s[1], (int)s[2], (int)s[3]);
    DTYPE(dtype, c->dtype);
    IN(turn, ACCUM, s[2] * s[3] * s[3]);
    INOUT(x, c->dtype, s[0] * a->ld, (double)s[3]);
    return true;
}

typedef struct choose_shape {
    int64_t b, t, s, offset, h, g, d, window, keys;
    double share;
    bool documents, group, each;
} choose_shape;

/* Fills the last operand with small integers, of which there are few, so that scores are exact and many are
 * equal. */
static void fill_integers(kernel_case *c, void *data, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        ax_store(c->dtype, data, i, (double)kc_integer(c, -2, 3));
}

bool kc_build_choose(kernel_case *c, int index)
{
    static const choose_shape shapes[] = {
        {0, 3, 3, 0, 2, 1, 4, 0, 1, 0, false, false, false},
        {1, 1, 1, 0, 1, 1, 1, 0, 1, 0, false, false, false},
        {2, 5, 5, 0, 4, 2, 3, 0, 2, 0, true, false, false},
        {2, 5, 5, 0, 4, 2, 3, 0, 2, 0, true, true, false},
        {1, 17, 17, 0, 3, 1, 8, 0, 0, 0.25, false, true, false},
        {3, 1, 200, 199, 4, 2, 16, 0, 50, 0, false, false, false},
        {3, 1, 200, 150, 4, 2, 16, 0, 0, 0.3, false, true, false},
        {1, 70, 70, 0, 4, 2, 32, 0, 0, 0.1, true, false, false},
        {1, 131, 131, 0, 2, 1, 31, 40, 7, 0, true, true, false},
        {2, 1, 600, 598, 2, 2, 8, 100, 33, 0, false, false, false},
        {4, 1, 300, 299, 3, 1, 24, 0, 0, 0.5, false, false, true},
        {4, 1, 300, 299, 3, 1, 24, 17, 20, 0, false, true, true},
        {3, 5, 50, 40, 2, 1, 80, 0, 60, 0, true, false, true},
        {1, 3, 9, -1, 2, 1, 300, 0, 1, 0, false, false, false},
        {2, 2, 1000, 998, 4, 4, 64, 0, 0, 1.0, false, false, false},
        {1, 2, 130, 128, 1, 1, 1, 0, 128, 0, false, false, false},
    };
    if (index / 2 >= (int)AX_COUNT(shapes) || !kc_takes(c, KC_ACTIVATION))
        return false;
    ARGS(choose);
    const choose_shape *s = &shapes[index / 2];
    a->batch = s->b, a->q_len = s->t, a->kv_len = s->s, a->q_offset = s->offset;
    a->heads = s->h, a->kv_heads = s->g, a->width = s->d;
    a->window = s->window, a->keys = s->keys, a->share = s->share, a->group = s->group;
    a->q_step = s->d + index % 3;
    a->q_ld = s->h * a->q_step + 2;
    if (index % 2) { /* each head's keys for themselves, else those of a position side by side */
        a->k_ld = s->d, a->k_batch_stride = s->s * s->d, a->k_step = s->b * a->k_batch_stride;
    } else {
        a->k_step = s->d + 1, a->k_ld = s->g * a->k_step, a->k_batch_stride = s->s * a->k_ld + 5;
    }
    kc_name(c, " b%d t%d s%d+%d h%d g%d d%d window %d keys %d share %g%s", (int)s->b, (int)s->t, (int)s->s,
            (int)s->offset, (int)s->h, (int)s->g, (int)s->d, (int)s->window, (int)s->keys, s->share,
            s->group ? " group" : "");
    DTYPE(dtype, c->dtype);
    const int64_t queries = s->b * s->t * a->q_ld,
                  keys = index % 2 ? s->g * a->k_step : s->b * a->k_batch_stride;
    fill_integers(c, RAW(q, KC_IN, c->dtype, queries, 0), queries);
    int32_t *positions = s->each ? RAW(positions, KC_IN, AX_I32, s->b * s->t, 0) : NULL;
    for (int64_t i = 0; i < s->b * s->t && s->each; i++)
        positions[i] = (int32_t)(i % s->t ? positions[i - 1] + 1 : kc_integer(c, 0, s->offset + 1));
    fill_integers(c, RAW(k, KC_IN, c->dtype, keys, 0), keys);
    if (s->documents)
        kc_fill_documents(c, RAW(doc_start, KC_IN, AX_I32, s->b * s->t, 0), s->b, s->t, s->offset);
    RAW(chosen, KC_OUT, AX_I64, s->b * s->t * (s->group ? s->g : s->h) * ((s->s + 63) / 64), 0);
    return true;
}
