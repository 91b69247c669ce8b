/* A small model whose elements all have known values, on any grid, on the device that keeps host and device
 * memory apart. */
#ifndef AXONN_TESTS_CKPT_GRID_TEST_H
#define AXONN_TESTS_CKPT_GRID_TEST_H

#include "ckpt_test.h"

enum { KNOWN_PARAMS = 11 };

/* Parameters that are fused, transposed, spread over an array for each entry of their middle dim, of odd
 * sizes, larger than the staging buffer, or have a dim split over more ranks than it has units. */
static const struct {
    const char *name, *key;
    int ndim;
    int64_t dim[3], unit[3];
    ax_role role[3];
    bool transpose;
    int64_t in[2], lo[2];
} known[KNOWN_PARAMS] = {
    {"wte", "m.wte.weight", 2, {11, 6}, {1, 1}, {AX_ROLE_VOCAB, AX_ROLE_MODEL}, false, {11, 6}, {0, 0}},
    {"q.w", "m.c_attn.weight", 2, {8, 6}, {4, 1}, {AX_ROLE_INNER, AX_ROLE_MODEL}, true, {6, 24}, {0, 0}},
    {"k.w", "m.c_attn.weight", 2, {8, 6}, {4, 1}, {AX_ROLE_INNER, AX_ROLE_MODEL}, true, {6, 24}, {0, 8}},
    {"v.w", "m.c_attn.weight", 2, {8, 6}, {4, 1}, {AX_ROLE_INNER, AX_ROLE_MODEL}, true, {6, 24}, {0, 16}},
    {"q.b", "m.c_attn.bias", 1, {8}, {4}, {AX_ROLE_INNER}, false, {24}, {0}},
    {"k.b", "m.c_attn.bias", 1, {8}, {4}, {AX_ROLE_INNER}, false, {24}, {8}},
    {"v.b", "m.c_attn.bias", 1, {8}, {4}, {AX_ROLE_INNER}, false, {24}, {16}},
    {"ln", NULL, 1, {6}, {1}, {AX_ROLE_MODEL}, false, {0}, {0}},
    {"up.w",
     "m.experts.*.up.weight",
     3,
     {9, 3, 5},
     {1, 1, 1},
     {AX_ROLE_EXPERT, AX_ROLE_EXPERTS},
     false,
     {9, 5},
     {0, 0}},
    {"down.w",
     "m.experts.*.down.weight",
     3,
     {5, 3, 9},
     {1, 1, 1},
     {AX_ROLE_NONE, AX_ROLE_EXPERTS, AX_ROLE_EXPERT},
     false,
     {5, 9},
     {0, 0}},
    {"big",
     "m.big.weight",
     2,
     {701, 1203},
     {1, 1},
     {AX_ROLE_MODEL, AX_ROLE_INNER},
     true,
     {1203, 701},
     {0, 0}},
};

static const char *const known_slots[] = {"exp_avg", "exp_avg_sq"};

/* Returns element i of the array with this key: 24 hashed bits as a float in [-1, 1). */
static inline float known_at(uint64_t key, int64_t i)
{
    uint64_t h = (key ^ (uint64_t)i) * UINT64_C(0x9E3779B97F4A7C15);
    return (float)((int32_t)(h >> 40) - (1 << 23)) * 0x1p-23f;
}

static inline uint64_t known_key(const char *name, int what, int64_t step)
{
    return ax_rng_key((uint64_t)step, name, (uint64_t)what);
}

/* Returns element i of array `what` (0: weights, 1 and 2: slots) of a parameter at a step. */
static inline float known_value(const char *name, int what, int64_t step, int64_t i)
{
    return known_at(known_key(name, what, step), i);
}

typedef struct known_model {
    int n; /* uses only the first n parameters; 0: all. The last is by far the largest */
    int zero;
    ax_ctx *ctx;
    ax_param *param[KNOWN_PARAMS];
    ax_param_set *set;
} known_model;

static inline ax_status known_open(ax_comm *world, ax_grid_size size, int slots, known_model *m)
{
    AX_TRY(ax_ctx_create(world, size, "check", 1, AX_F32, 1, &m->ctx));
    m->ctx->parallel.zero = m->zero;
    m->n = m->n ? m->n : KNOWN_PARAMS;
    for (int i = 0; i < m->n; i++) {
        AX_TRY(ax_param_create(m->ctx, known[i].name, known[i].ndim, known[i].dim, known[i].unit,
                               known[i].role, AX_INIT_ZERO, 0, &m->param[i]));
        if (!known[i].key)
            continue;
        ax_param_file *f = &m->param[i]->file;
        AX_TRY(ax_strdup(known[i].key, &f->key));
        f->spread = known[i].ndim == 3 ? known[i].dim[1] : 0;
        f->ndim = f->spread ? 2 : known[i].ndim;
        f->transpose = known[i].transpose;
        memcpy(f->dim, known[i].in, sizeof known[i].in);
        memcpy(f->lo, known[i].lo, sizeof known[i].lo);
    }
    return ax_param_set_create(m->ctx, m->param, m->n, slots, &m->set);
}

static inline void known_close(known_model *m)
{
    ax_param_set_destroy(&m->set);
    for (int i = 0; i < m->n; i++)
        ax_param_destroy(&m->param[i]);
    ax_ctx_destroy(&m->ctx);
}

/* Writes the values of this rank's box of the array with this key to `out`. */
static inline void known_box(const ax_grid *grid, const ax_tensor *t, uint64_t key, float *out)
{
    ax_box box = ax_tensor_box(grid, t, ax_grid_rank(grid));
    int64_t n[3] = {1, 1, 1}, lo[3] = {0, 0, 0}, dim[3] = {1, 1, 1};
    for (int d = 0, to = 3 - t->ndim; d < t->ndim; d++, to++) {
        n[to] = box.n[d];
        lo[to] = box.lo[d];
        dim[to] = t->dim[d];
    }
    for (int64_t r = 0; r < n[0]; r++)
        for (int64_t s = 0; s < n[1]; s++)
            for (int64_t c = 0; c < n[2]; c++)
                *out++ = known_at(key, ((lo[0] + r) * dim[1] + lo[1] + s) * dim[2] + lo[2] + c);
}

/* Sets an array to the values of its key, or, with `wrong`, counts the elements that differ from them. */
static inline ax_status known_visit(known_model *m, int i, int array, uint64_t key, int64_t *wrong)
{
    const ax_param_state *s = &m->param[i]->state[array];
    int64_t n = s->n;
    float *values, *have;
    AX_TRY(ax_calloc(2 * (size_t)n, sizeof *values, &values));
    have = values + n;
    known_box(m->ctx->grid, &m->param[i]->rounded, key, values);
    ax_status status =
        wrong ? ax_param_state_read(m->ctx, s, 0, n, have) : ax_param_state_write(m->ctx, s, 0, n, values);
    for (int64_t k = 0; wrong && k < n; k++)
        *wrong += values[k] != have[k];
    free(values);
    return status;
}

/* Sets every array to its values at a step. */
static inline ax_status known_fill(known_model *m, int64_t step)
{
    for (int i = 0; i < m->n; i++)
        for (int what = 0; what <= m->set->moments; what++)
            AX_TRY(known_visit(m, i, what, known_key(known[i].name, what, step), NULL));
    return AX_OK;
}

/* Checks that every array has exactly its values at the step. */
static inline ax_status known_check(known_model *m, int64_t step)
{
    for (int i = 0; i < m->n; i++)
        for (int what = 0; what <= m->set->moments; what++) {
            int64_t wrong = 0;
            AX_TRY(known_visit(m, i, what, known_key(known[i].name, what, step), &wrong));
            AX_CHECK(!wrong, AX_ERR_INTERNAL, "%s, array %d: %lld values are not those of step %lld",
                     known[i].name, what, (long long)wrong, (long long)step);
        }
    return AX_OK;
}

static const ax_ckpt_file known_files[] = {{"config.json", "{\"n\": 1, \"name\": \"known\"}\n", 26},
                                           {"tokenizer.json", "{}", 2},
                                           {"training/more.txt", "more\n", 5}};

static inline ax_status known_save(known_model *m, const char *run, int64_t step, ax_dtype dtype,
                                   int64_t shard_bytes, int64_t keep)
{
    char state[64];
    snprintf(state, sizeof state, "{\"step\": %lld}", (long long)step);
    ax_ckpt_save_args args = {.run_dir = run,
                              .step = step,
                              .params = m->set,
                              .dtype = dtype,
                              .shard_bytes = shard_bytes,
                              .moment_names = known_slots,
                              .files = known_files,
                              .n_files = AX_COUNT(known_files),
                              .state = state,
                              .keep_latest = keep};
    return ax_ckpt_save(&args);
}

#endif
