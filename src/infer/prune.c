/* Prunes a model by magnitude: sets all but the largest elements of the matrices of its blocks to zero, in a
 * copy of its directory.
 *
 * The elements that stay are those above a threshold, and of those equal to it the first ones. The threshold
 * is found digit by digit: |w| as fp32 has the same order as its bits as an integer, so a histogram of the
 * upper 16 bits says in which bin the threshold is, and a histogram of the lower 16 bits of this bin's
 * elements says which value it is. The weights are read in strips of rows: once for each histogram (bf16 has
 * no lower half), once more if matrices share the elements that are equal to the threshold, and again when
 * they are copied. */
#include "infer/copy.h"
#include "infer/pretrained.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    STRIP = 1 << 18,  /* elements that are in memory at a time, but at least one row of a matrix */
    DIGITS = 1 << 16, /* values of the upper or the lower half of an fp32 number */
    INFINITE = 0x7f80 /* upper half of infinity; those of NaN follow */
};

/* Where a matrix is in the files, and which of its elements stay. */
typedef struct place {
    const ax_st_array *array;
    int64_t lo[2], n[2]; /* the box of `array` that is the matrix */
    uint32_t least;      /* bits of the smallest magnitude that stays */
    int64_t ties;        /* number of elements of magnitude `least` that stay: the first ones */
} place;

typedef struct pruner {
    const ax_pruning_args *args;
    ax_copy copy;
    ax_pretrained model;
    ax_pruning *result;
    place *place;           /* of each matrix of *result */
    float *values;          /* the strip in memory as fp32 */
    void *elements;         /* the same strip as it is in the file */
    int64_t *upper, *lower; /* [DIGITS]: histograms */
} pruner;

static uint32_t magnitude(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits & 0x7fffffff;
}

/* ---- which matrices ------------------------------------------------------------------------------ */

/* Returns true if `word` of --skip means the matrix: one of its names, or a pattern of its array's name. */
static bool is_meant(const pruner *p, int64_t i, const char *word)
{
    return ax_model_config_matrix_is(&p->model.config, p->result->matrix[i].matrix, word) ||
           !fnmatch(word, p->place[i].array->key, 0);
}

/* Marks the matrices that are skipped. Fails if a word means no matrix, or if all matrices are skipped. */
static ax_status skip(pruner *p)
{
    ax_pruning *r = p->result;
    char unknown[256] = "", list[AX_MATRIX_LIST];
    int64_t left = r->n;
    for (int k = 0; k < p->args->skips; k++) {
        const char *word = p->args->skip[k];
        bool found = false;
        for (int64_t i = 0; i < r->n; i++)
            if (is_meant(p, i, word))
                r->matrix[i].skipped = found = true;
        if (!found)
            ax_text_add(unknown, sizeof unknown, "%s\"%s\"", *unknown ? " or " : "", word);
    }
    AX_CHECK(
        !*unknown, AX_ERR_USAGE,
        "--skip: no matrix of this model's blocks is named %s; their names are %s, and patterns are compared "
        "with the names of arrays, such as %s",
        unknown, ax_model_config_list_matrices(&p->model.config, AX_MATRIX_OF_BLOCK, list),
        p->place[0].array->key);
    for (int64_t i = 0; i < r->n; i++)
        left -= r->matrix[i].skipped;
    AX_CHECK(left, AX_ERR_USAGE, "--skip names all matrices of the blocks: none is left to prune");
    return AX_OK;
}

/* Lists the matrices block by block, in the order of ax_matrix. */
static ax_status list_matrices(pruner *p)
{
    const ax_model_config *c = &p->model.config;
    ax_pruning *r = p->result;
    const int64_t most = c->layers * AX_MATRIX_OF_BLOCK;
    int64_t out, in;
    char key[256];
    AX_TRY(ax_calloc((size_t)most, sizeof *r->matrix, &r->matrix));
    AX_TRY(ax_calloc((size_t)most, sizeof *p->place, &p->place));
    for (int64_t i = 0; i < most; i++) {
        const ax_matrix matrix = (ax_matrix)(i % AX_MATRIX_OF_BLOCK);
        if (!ax_model_config_matrix(c, matrix, &out, &in))
            continue;
        place *at = &p->place[r->n];
        ax_pruned_matrix *m = &r->matrix[r->n++];
        *m = (ax_pruned_matrix){.matrix = matrix, .block = i / AX_MATRIX_OF_BLOCK, .elements = out * in};
        ax_family_matrix_key(c->family, matrix, m->block, key);
        at->array = ax_ckpt_find_array(p->model.weights, key, ax_family_prefix(c->family));
        AX_ASSERT(at->array);
        ax_model_config_matrix_box(c, matrix, at->lo, at->n);
        AX_TRY(ax_strdup(at->array->key, &m->array));
    }
    return AX_OK;
}

/* ---- strips -------------------------------------------------------------------------------------- */

/* The rows of a matrix that are in memory. */
typedef struct strip {
    int64_t lo[2], n[2]; /* a box of the matrix's array */
    int64_t count;       /* number of elements */
} strip;

static int64_t rows_of_strip(const place *at) { return ax_max(STRIP / at->n[1], 1); }

/* Goes to the next strip of the matrix, in a zeroed struct to the first one. Returns false after the last. */
static bool next_strip(const place *at, strip *s)
{
    s->lo[0] = s->count ? s->lo[0] + s->n[0] : at->lo[0];
    s->lo[1] = at->lo[1];
    s->n[0] = ax_min(rows_of_strip(at), at->lo[0] + at->n[0] - s->lo[0]);
    s->n[1] = at->n[1];
    s->count = s->n[0] * s->n[1];
    return s->count > 0;
}

/* Reads a strip as fp32 while the thresholds are found. */
static ax_status read_strip(pruner *p, const place *at, const strip *s)
{
    AX_TRY(ax_copy_report(&p->copy, 0));
    AX_TRY(ax_st_read(p->model.weights, at->array, s->lo, s->n, false, AX_F32, p->values));
    p->copy.done += s->count * (int64_t)ax_dtype_size(at->array->dtype);
    return AX_OK;
}

/* ---- thresholds ---------------------------------------------------------------------------------- */

/* Adds the upper halves of the magnitudes of matrix `i` to the histogram. */
static ax_status count_upper(pruner *p, int64_t i)
{
    const place *at = &p->place[i];
    for (strip s = {0}; next_strip(at, &s);) {
        AX_TRY(read_strip(p, at, &s));
        for (int64_t k = 0; k < s.count; k++)
            p->upper[magnitude(p->values[k]) >> 16]++;
    }
    for (int digit = INFINITE; digit < DIGITS; digit++)
        AX_CHECK(!p->upper[digit], AX_ERR_DATA,
                 "%s: array %s has values that are not finite as fp32: their magnitudes cannot be compared",
                 p->model.dir, at->array->key);
    return AX_OK;
}

/* Adds the lower halves of those magnitudes of matrix `i` whose upper half is `digit` to the histogram. */
static ax_status count_lower(pruner *p, int64_t i, uint32_t digit)
{
    const place *at = &p->place[i];
    for (strip s = {0}; next_strip(at, &s);) {
        AX_TRY(read_strip(p, at, &s));
        for (int64_t k = 0; k < s.count; k++) {
            uint32_t bits = magnitude(p->values[k]);
            if (bits >> 16 == digit)
                p->lower[bits & 0xffff]++;
        }
    }
    return AX_OK;
}

/* Returns the bin of a histogram that holds the element number *keep, counted from the largest, and subtracts
 * from *keep the elements of the bins above it. */
static uint32_t find_bin(const int64_t *histogram, int64_t *keep)
{
    uint32_t bin = DIGITS - 1;
    for (; histogram[bin] < *keep; bin--)
        *keep -= histogram[bin];
    return bin;
}

/* Gives each of the matrices [first, end) that are pruned its share of the `ties` elements of the smallest
 * magnitude that stay: those of the first matrices. */
static ax_status share_ties(pruner *p, int64_t first, int64_t end, int64_t ties)
{
    for (int64_t i = first; i < end; i++) {
        place *at = &p->place[i];
        if (p->result->matrix[i].skipped)
            continue;
        for (strip s = {0}; at->ties < ties && next_strip(at, &s);) {
            AX_TRY(read_strip(p, at, &s));
            for (int64_t k = 0; k < s.count; k++)
                at->ties += magnitude(p->values[k]) == at->least;
        }
        at->ties = ax_min(at->ties, ties);
        ties -= at->ties;
    }
    return AX_OK;
}

/* Decides which elements of the matrices [first, end) stay, of all those that are pruned together. */
static ax_status choose(pruner *p, int64_t first, int64_t end)
{
    ax_pruning *r = p->result;
    int64_t elements = 0;
    bool upper_is_all = true; /* the lower halves of the magnitudes are zero */
    memset(p->upper, 0, DIGITS * sizeof *p->upper);
    memset(p->lower, 0, DIGITS * sizeof *p->lower);
    for (int64_t i = first; i < end; i++)
        if (!r->matrix[i].skipped) {
            elements += r->matrix[i].elements;
            upper_is_all &= p->place[i].array->dtype == AX_BF16;
            AX_TRY(count_upper(p, i));
        }
    int64_t keep = llround(p->args->density * (double)elements);
    r->chosen += keep;
    /* with `keep` 0 the bins are the highest ones, which no finite number has */
    uint32_t upper = find_bin(p->upper, &keep);
    if (upper_is_all)
        p->lower[0] = p->upper[upper];
    for (int64_t i = first; i < end && !upper_is_all; i++)
        if (!r->matrix[i].skipped)
            AX_TRY(count_lower(p, i, upper));
    uint32_t lower = find_bin(p->lower, &keep);
    const bool all = p->lower[lower] == keep || end == first + 1;
    for (int64_t i = first; i < end; i++) {
        p->place[i].least = upper << 16 | lower;
        p->place[i].ties = all ? keep : 0;
    }
    return all ? AX_OK : share_ties(p, first, end, keep);
}

static ax_status choose_all(pruner *p)
{
    const ax_pruning *r = p->result;
    if (p->args->scope == AX_PRUNE_MODEL)
        return choose(p, 0, r->n);
    for (int64_t i = 0; i < r->n; i++)
        if (!r->matrix[i].skipped)
            AX_TRY(choose(p, i, i + 1));
    return AX_OK;
}

/* ---- the copy ------------------------------------------------------------------------------------ */

/* Sets those of n elements of `size` bytes to +0 whose value as fp32 is 0. */
static void clear_zeros(const float *value, int64_t n, size_t size, void *elements)
{
#define CLEAR(type)                                                                                          \
    for (int64_t k = 0; k < n; k++)                                                                          \
    ((type *)elements)[k] = magnitude(value[k]) ? ((type *)elements)[k] : 0
    if (size == 2)
        CLEAR(uint16_t);
    else if (size == 4)
        CLEAR(uint32_t);
    else
        CLEAR(uint64_t);
#undef CLEAR
}

/* Writes matrix `i`. */
static ax_status write_matrix(pruner *p, int64_t i, ax_st *to, const ax_st_array *b)
{
    place *at = &p->place[i];
    ax_pruned_matrix *m = &p->result->matrix[i];
    for (strip s = {0}; next_strip(at, &s);) {
        AX_TRY(ax_copy_report(&p->copy, 0));
        AX_TRY(ax_st_read(p->model.weights, at->array, s.lo, s.n, false, AX_F32, p->values));
        AX_TRY(ax_st_read(p->model.weights, at->array, s.lo, s.n, false, b->dtype, p->elements));
        for (int64_t k = 0; k < s.count; k++) {
            uint32_t bits = magnitude(p->values[k]);
            bool stays = bits > at->least || (bits == at->least && at->ties-- > 0);
            p->values[k] = stays ? p->values[k] : 0;
            m->kept += stays && bits;
        }
        clear_zeros(p->values, s.count, ax_dtype_size(b->dtype), p->elements);
        AX_TRY(ax_st_write(to, b, s.lo, s.n, false, b->dtype, p->elements));
    }
    return AX_OK;
}

/* Writes a matrix that is skipped, but is in an array with others that are not. */
static ax_status copy_matrix(pruner *p, const place *at, ax_st *to, const ax_st_array *b)
{
    for (strip s = {0}; next_strip(at, &s);) {
        AX_TRY(ax_st_read(p->model.weights, at->array, s.lo, s.n, false, b->dtype, p->elements));
        AX_TRY(ax_st_write(to, b, s.lo, s.n, false, b->dtype, p->elements));
    }
    return AX_OK;
}

/* Writes the array if a matrix in it is pruned. The matrices in an array are all of it. */
static ax_status write_array(void *owner, const ax_st_array *a, ax_st *to, const ax_st_array *b, bool *done)
{
    pruner *p = owner;
    const ax_pruning *r = p->result;
    for (int64_t i = 0; i < r->n; i++)
        *done |= p->place[i].array == a && !r->matrix[i].skipped;
    for (int64_t i = 0; i < r->n && *done; i++)
        if (p->place[i].array == a)
            AX_TRY(r->matrix[i].skipped ? copy_matrix(p, &p->place[i], to, b) : write_matrix(p, i, to, b));
    return AX_OK;
}

static ax_status open_model(pruner *p)
{
    const char *dir = p->args->dir;
    AX_CHECK(
        !ax_ckpt_is_adapter(dir), AX_ERR_USAGE,
        "%s is an adapter, whose matrices are its base's: merge the two first (axonn ckpt convert %s --out "
        "DIR), and prune DIR",
        dir, dir);
    AX_TRY(ax_pretrained_open_weights(dir, &p->model));
    AX_CHECK(!p->model.config.experts.n, AX_ERR_USAGE,
             "%s has experts: pruning of models with experts is not implemented", dir);
    if (ax_st_remark(p->model.weights))
        ax_log(AX_LOG_INFO, "%s", ax_st_remark(p->model.weights));
    p->copy.dir = dir;
    p->copy.from = p->model.weights;
    p->copy.shard_bytes = AX_ST_SAME_FILES;
    p->copy.write = write_array;
    p->copy.owner = p;
    p->copy.progress = p->args->progress;
    p->copy.user = p->args->user;
    return AX_OK;
}

/* Takes memory for strips and histograms, and counts the bytes that will be read. */
static ax_status prepare(pruner *p)
{
    int64_t most = 0;
    p->copy.total = ax_copy_bytes(&p->copy);
    for (int64_t i = 0; i < p->result->n; i++) {
        const place *at = &p->place[i];
        const ax_pruned_matrix *m = &p->result->matrix[i];
        most = ax_max(most, rows_of_strip(at) * at->n[1]);
        if (!m->skipped)
            p->copy.total += m->elements *
                             (at->array->dtype == AX_BF16 ? 2 : 2 * (int64_t)ax_dtype_size(at->array->dtype));
    }
    AX_TRY(ax_calloc((size_t)most, sizeof *p->values, &p->values));
    AX_TRY(ax_calloc((size_t)most, sizeof(double), &p->elements)); /* the largest dtype */
    AX_TRY(ax_calloc(DIGITS, sizeof *p->upper, &p->upper));
    return ax_calloc(DIGITS, sizeof *p->lower, &p->lower);
}

static ax_status prune(pruner *p)
{
    ax_pruning *r = p->result;
    AX_TRY(ax_copy_begin(p->args->out, &p->copy));
    AX_TRY(open_model(p));
    AX_TRY(list_matrices(p));
    AX_TRY(skip(p));
    AX_TRY(prepare(p));
    AX_TRY(choose_all(p));
    AX_TRY(ax_copy_write(&p->copy, &r->copy));
    for (int64_t i = 0; i < r->n; i++)
        if (!r->matrix[i].skipped) {
            r->elements += r->matrix[i].elements;
            r->kept += r->matrix[i].kept;
        }
    return AX_OK;
}

ax_status ax_model_prune(const ax_pruning_args *args, ax_pruning *result)
{
    pruner p = {.args = args, .result = result};
    *result = (ax_pruning){0};
    ax_status status = args->density > 0 && args->density <= 1
                           ? prune(&p)
                           : ax_fail(AX_ERR_USAGE, "density %g is not in (0, 1]", args->density);
    ax_copy_fini(&p.copy);
    ax_pretrained_close(&p.model);
    free(p.place);
    free(p.values);
    free(p.elements);
    free(p.upper);
    free(p.lower);
    if (status != AX_OK)
        ax_pruning_fini(result);
    return status;
}

void ax_pruning_fini(ax_pruning *pruning)
{
    for (int64_t i = 0; i < pruning->n; i++)
        free(pruning->matrix[i].array);
    free(pruning->matrix);
    *pruning = (ax_pruning){0};
}
