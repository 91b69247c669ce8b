/* Calibration of attention that reads few keys: the covariance of the keys of each key head, and its
 * eigenvectors. */
#include "infer/evaluate.h"
#include "infer/loki.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct calibration {
    ax_ctx *ctx;
    const ax_pretrained *model;
    const ax_data *data;
    const ax_loki_calibration *how;
    ax_row_shape shape;
    int64_t rows, tokens;
    int64_t layers, heads, e;
    double *moments; /* [layers, heads, e + 1, e]: ax_loki_attach */
    float *turn;     /* [layers, heads, e, e] */
    double *value;   /* [layers, heads, e]: eigenvalues */
} calibration;

/* ---- eigenvectors -------------------------------------------------------------------------------- */

/* Rotates rows p and q of the matrix m, [n, n], by cosine c and sine s. */
static void rotate_rows(double *m, int64_t n, int64_t p, int64_t q, double c, double s)
{
    for (int64_t i = 0; i < n; i++) {
        const double x = m[p * n + i], y = m[q * n + i];
        m[p * n + i] = c * x - s * y;
        m[q * n + i] = s * x + c * y;
    }
}

static void rotate_columns(double *m, int64_t n, int64_t p, int64_t q, double c, double s)
{
    for (int64_t i = 0; i < n; i++) {
        const double x = m[i * n + p], y = m[i * n + q];
        m[i * n + p] = c * x - s * y;
        m[i * n + q] = s * x + c * y;
    }
}

/* Makes the symmetric matrix a, [n, n], diagonal by Jacobi rotations; row i of v becomes the eigenvector of
 * a[i, i]. Each sweep rotates every pair of rows once; the elements beside the diagonal then shrink
 * quadratically, so few sweeps reach the rounding error. */
static void diagonalize(double *a, double *v, int64_t n)
{
    enum { SWEEPS = 40 };
    double norm = 0;
    for (int64_t i = 0; i < n * n; i++) {
        v[i] = i % (n + 1) == 0;
        norm += a[i] * a[i];
    }
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        double beside = 0;
        for (int64_t p = 0; p < n; p++)
            for (int64_t q = p + 1; q < n; q++) {
                const double apq = a[p * n + q];
                beside += apq * apq;
                if (apq == 0)
                    continue;
                const double theta = (a[q * n + q] - a[p * n + p]) / (2 * apq),
                             t = (theta < 0 ? -1 : 1) / (fabs(theta) + sqrt(theta * theta + 1)),
                             c = 1 / sqrt(t * t + 1), s = t * c;
                rotate_rows(a, n, p, q, c, s);
                rotate_columns(a, n, p, q, c, s);
                rotate_rows(v, n, p, q, c, s);
            }
        if (beside <= 1e-30 * norm)
            return;
    }
}

/* Computes the eigenvalues of the covariance of a head's keys and its turning matrix from its moments over
 * `count` keys. work: [2, e, e]. */
static void solve_head(const calibration *c, const double *moments, double count, double *work, float *turn,
                       double *value)
{
    const int64_t e = c->e;
    const double *sum = moments + e * e;
    double *a = work, *v = work + e * e;
    for (int64_t i = 0; i < e; i++)
        for (int64_t j = 0; j < e; j++)
            a[i * e + j] =
                (moments[i * e + j] + moments[j * e + i]) / 2 / count - sum[i] / count * sum[j] / count;
    diagonalize(a, v, e);
    for (int64_t k = 0; k < e; k++) { /* the largest of the eigenvalues that are left */
        int64_t best = -1, top = 0;
        for (int64_t i = 0; i < e; i++)
            if (!isnan(a[i * e + i]) && (best < 0 || a[i * e + i] > a[best * e + best]))
                best = i;
        for (int64_t i = 0; i < e; i++)
            if (fabs(v[best * e + i]) > fabs(v[best * e + top]))
                top = i;
        const double sign = v[best * e + top] < 0 ? -1 : 1;
        value[k] = fmax(0, a[best * e + best]);
        for (int64_t i = 0; i < e; i++)
            turn[i * e + k] = (float)(sign * v[best * e + i]);
        a[best * e + best] = NAN;
    }
}

/* The ranks share the heads. */
static ax_status solve(const calibration *c)
{
    const int64_t e = c->e, all = c->layers * c->heads;
    const int rank = ax_comm_rank(c->ctx->world), ranks = ax_comm_size(c->ctx->world);
    ax_work *work;
    double *room;
    AX_TRY(ax_calloc((size_t)(2 * e * e), sizeof *room, &room));
    for (int64_t h = rank; h < all; h += ranks)
        solve_head(c, c->moments + h * (e + 1) * e, (double)c->tokens, room, c->turn + h * e * e,
                   c->value + h * e);
    free(room);
    AX_TRY(ax_all_reduce(c->ctx->world, NULL, c->turn, all * e * e, AX_F32, AX_SUM, &work));
    AX_TRY(ax_wait(&work));
    AX_TRY(ax_all_reduce(c->ctx->world, NULL, c->value, all * e, AX_F64, AX_SUM, &work));
    return ax_wait(&work);
}

/* ---- measuring ----------------------------------------------------------------------------------- */

/* Adds up the moments of a layer over the ranks that have different rows, and gives them to one rank of the
 * stage. */
static ax_status take_moments(void *user, int64_t layer, ax_tensor *t)
{
    const calibration *c = user;
    const ax_grid *grid = c->ctx->grid;
    const int64_t n = ax_tensor_global_count(t);
    const int rank = ax_grid_rank(grid);
    void *global;
    AX_TRY(
        ax_reduce_axes(c->ctx, ax_batch_axes(c->ctx), t->data, ax_tensor_count(grid, t), t->dtype, AX_SUM));
    AX_TRY(ax_calloc((size_t)n, ax_dtype_size(t->dtype), &global));
    ax_status status = ax_tensor_collect(c->ctx, t, global);
    const bool first = !ax_grid_coord(grid, rank, AX_X) && !ax_grid_coord(grid, rank, AX_Y) &&
                       !ax_grid_coord(grid, rank, AX_Z) && !ax_grid_coord(grid, rank, AX_DATA);
    for (int64_t i = 0; i < n && status == AX_OK && first; i++)
        c->moments[layer * n + i] = ax_load(t->dtype, global, i);
    free(global);
    return status;
}

static ax_status check_finite(const calibration *c)
{
    const int64_t n = c->heads * (c->e + 1) * c->e;
    for (int64_t i = 0; i < c->layers * n; i++)
        AX_CHECK(
            isfinite(c->moments[i]), AX_ERR_DATA,
            "the keys of layer %lld are not finite: the model has weights that are not, or it overflows in "
            "this precision",
            (long long)(i / n));
    return AX_OK;
}

static ax_status measure(void *user, ax_engine *engine)
{
    calibration *c = user;
    ax_evaluation unused = {0};
    ax_work *work;
    AX_TRY(ax_engine_eval_data(engine, c->data, &c->shape, c->rows, c->how->progress, c->how->user, &unused));
    AX_TRY(ax_loki_visit(ax_engine_model(engine)->root, take_moments, c));
    AX_TRY(ax_all_reduce(c->ctx->world, NULL, c->moments, c->layers * c->heads * (c->e + 1) * c->e, AX_F64,
                         AX_SUM, &work));
    return ax_wait(&work);
}

/* ---- the file ------------------------------------------------------------------------------------ */

static const char suffix[] = ".safetensors";

static bool has_suffix(const char *path)
{
    const size_t n = strlen(path);
    return n > strlen(suffix) && !strcmp(path + n - strlen(suffix), suffix) &&
           path[n - strlen(suffix) - 1] != '/';
}

/* Writes the directory of the file to `dir`, which has room for a path, and returns its name there. */
static const char *split_path(const char *path, char dir[4096])
{
    const char *slash = strrchr(path, '/');
    snprintf(dir, 4096, "%.*s", slash > path ? (int)(slash - path) : 1, slash ? path : ".");
    return slash ? slash + 1 : path;
}

static ax_status fill_file(const calibration *c, ax_st *st)
{
    char sum[AX_LOKI_CHECKSUM], tokens[32];
    snprintf(tokens, sizeof tokens, "%lld", (long long)c->tokens);
    AX_TRY(ax_loki_checksum(c->model, sum));
    AX_TRY(ax_st_note(st, AX_LOKI_MODEL, sum));
    AX_TRY(ax_st_note(st, AX_LOKI_ROTARY, c->how->before ? "before" : "after"));
    AX_TRY(ax_st_note(st, AX_LOKI_TOKENS, tokens));
    AX_TRY(ax_st_make(st));
    for (int64_t n = 0; n < c->layers; n++) {
        char key[AX_LOKI_KEY];
        ax_loki_key(n, "turn", key);
        AX_TRY(ax_st_write(st, ax_st_find(st, key), NULL, NULL, false, AX_F32,
                           c->turn + n * c->heads * c->e * c->e));
        ax_loki_key(n, "eigenvalues", key);
        AX_TRY(
            ax_st_write(st, ax_st_find(st, key), NULL, NULL, false, AX_F64, c->value + n * c->heads * c->e));
    }
    return ax_st_sync(st);
}

/* Writes the arrays to DIR/STEM.new.safetensors, then gives the file its name. */
static ax_status write_arrays(const calibration *c, const ax_st_array *arrays)
{
    char dir[4096], stem[4096], aside[8300];
    const char *path = c->how->out;
    ax_st *st;
    snprintf(stem, sizeof stem, "%s", split_path(path, dir));
    snprintf(stem + strlen(stem) - strlen(suffix), 16, ".new");
    snprintf(aside, sizeof aside, "%s/%s%s", dir, stem, suffix);
    AX_TRY(ax_st_plan(dir, stem, arrays, (int)(2 * c->layers), INT64_MAX, &st));
    ax_status status = fill_file(c, st);
    ax_st_close(&st);
    if (status == AX_OK && rename(aside, path))
        status = ax_fail(AX_ERR_DATA, "cannot create %s: %s", path, strerror(errno));
    if (status != AX_OK)
        remove(aside);
    return status;
}

static ax_status write_file(const calibration *c)
{
    ax_st_array *arrays;
    char(*key)[AX_LOKI_KEY];
    AX_TRY(ax_calloc((size_t)(2 * c->layers), sizeof *arrays, &arrays));
    ax_status status = ax_calloc((size_t)(2 * c->layers), sizeof *key, &key);
    for (int64_t i = 0; i < 2 * c->layers && status == AX_OK; i++) {
        const bool values = i % 2;
        ax_loki_key(i / 2, values ? "eigenvalues" : "turn", key[i]);
        arrays[i] = (ax_st_array){.key = key[i],
                                  .dtype = values ? AX_F64 : AX_F32,
                                  .ndim = values ? 2 : 3,
                                  .dim = {c->heads, c->e, values ? 0 : c->e}};
    }
    if (status == AX_OK)
        status = write_arrays(c, arrays);
    free(key);
    free(arrays);
    return status;
}

/* ---- the whole calibration ----------------------------------------------------------------------- */

/* Reports all that is wrong with the arguments, and with the directory of the file. */
static ax_status check(const calibration *c)
{
    const ax_loki_calibration *how = c->how;
    ax_buf errors = {0};
    ax_status status = AX_OK;
    const int64_t least = 16 * c->e;
    char dir[4096];
    if (how->tokens < least)
        status = ax_buf_printf(&errors, "%lld tokens are too few for heads of width %lld: give %lld or more",
                               (long long)how->tokens, (long long)c->e, (long long)least);
    else if (c->tokens < least)
        status = ax_buf_printf(
            &errors,
            "%s has too few tokens: %lld can be measured in whole rows of %lld on each of these "
            "ranks, and heads of width %lld need %lld",
            ax_data_path(c->data), (long long)c->tokens, (long long)c->shape.seq_len, (long long)c->e,
            (long long)least);
    if (status == AX_OK && how->before && c->model->config.rope.theta == 0)
        status =
            ax_buf_printf(&errors, "%sthe model has no rotary embedding, before which keys could be measured",
                          errors.size ? "\n" : "");
    if (status == AX_OK && !has_suffix(how->out))
        status = ax_buf_printf(&errors, "%s%s: the name of the file must end in %s", errors.size ? "\n" : "",
                               how->out, suffix);
    const bool usage = errors.size;
    split_path(how->out, dir);
    if (status == AX_OK && ax_comm_rank(c->ctx->world) == 0 && access(dir, W_OK | X_OK))
        status = ax_buf_printf(&errors, "%s%s: no file can be written to %s: %s", errors.size ? "\n" : "",
                               how->out, dir, strerror(errno));
    if (status == AX_OK && errors.size)
        status = ax_fail(usage ? AX_ERR_USAGE : AX_ERR_DATA, "%s", errors.data);
    ax_buf_fini(&errors);
    return status;
}

/* Chooses the rows: consecutive tokens, no padding, the same number on each rank that has rows of its own. */
static void choose_rows(calibration *c)
{
    const int64_t tokens = ax_data_describe(c->data)->tokens,
                  groups = ax_grid_group_size(c->ctx->grid, ax_batch_axes(c->ctx));
    c->shape =
        (ax_row_shape){.seq_len = ax_min(ax_min(AX_ROW_STREAM, ax_model_config_positions(&c->model->config)),
                                         ax_max(tokens - 1, 1))};
    const int64_t whole = (tokens - 1) / c->shape.seq_len,
                  wanted = ax_round_up(ax_ceil_div(c->how->tokens, c->shape.seq_len), groups);
    c->rows = ax_max(0, ax_min(whole, wanted)) / groups * groups;
    c->tokens = c->rows * c->shape.seq_len;
}

static ax_status find_ranks(const calibration *c, ax_loki_ranks *out)
{
    *out = (ax_loki_ranks){.layers = c->layers, .tokens = c->tokens, .head_dim = c->e};
    AX_TRY(ax_calloc((size_t)c->layers, sizeof *out->rank, &out->rank));
    for (int64_t h = 0; h < c->layers * c->heads; h++) {
        const double *value = c->value + h * c->e;
        double all = 0, sum = 0;
        int64_t n = 0;
        for (int64_t i = 0; i < c->e; i++)
            all += value[i];
        while (n < c->e && sum < 0.9 * all)
            sum += value[n++];
        out->rank[h / c->heads] += (double)n / (double)c->heads;
    }
    return AX_OK;
}

static ax_status run(calibration *c, ax_loki_ranks *out)
{
    const size_t heads = (size_t)(c->layers * c->heads), e = (size_t)c->e;
    const ax_loki what = {.kind = c->how->before ? AX_LOKI_MEASURE_BEFORE : AX_LOKI_MEASURE_AFTER};
    AX_TRY(ax_calloc(heads * (e + 1) * e, sizeof *c->moments, &c->moments));
    AX_TRY(ax_calloc(heads * e * e, sizeof *c->turn, &c->turn));
    AX_TRY(ax_calloc(heads * e, sizeof *c->value, &c->value));
    AX_TRY(ax_pretrained_use_engine(c->ctx, c->model, &what, &c->shape, 1, false, measure, c));
    AX_TRY(check_finite(c));
    AX_TRY(solve(c));
    AX_TRY(ax_comm_agree(c->ctx->world, ax_comm_rank(c->ctx->world) ? AX_OK : write_file(c)));
    return find_ranks(c, out);
}

ax_status ax_loki_calibrate(ax_ctx *ctx, const ax_pretrained *model, const ax_data *data,
                            const ax_loki_calibration *how, ax_loki_ranks *out)
{
    calibration c = {.ctx = ctx,
                     .model = model,
                     .data = data,
                     .how = how,
                     .layers = model->config.layers,
                     .heads = model->config.kv_heads,
                     .e = ax_model_config_head_dim(&model->config)};
    *out = (ax_loki_ranks){0};
    choose_rows(&c);
    ax_status status = ax_comm_agree(ctx->world, check(&c));
    if (status == AX_OK)
        status = run(&c, out);
    free(c.moments);
    free(c.turn);
    free(c.value);
    return status;
}

void ax_loki_ranks_fini(ax_loki_ranks *ranks)
{
    free(ranks->rank);
    *ranks = (ax_loki_ranks){0};
}
