/* Attention that reads few keys: what the user asked for, and the matrices that turn heads. */
#include "infer/loki.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ax_status ax_loki_checksum(const ax_pretrained *model, char out[AX_LOKI_CHECKSUM])
{
    char base[17], adapter[17] = "";
    AX_TRY(ax_st_checksum(model->weights, base));
    if (model->adapter)
        AX_TRY(ax_st_checksum(model->adapter, adapter));
    snprintf(out, AX_LOKI_CHECKSUM, "%s%s%s", base, *adapter ? "+" : "", adapter);
    return AX_OK;
}

void ax_loki_key(int64_t layer, const char *what, char out[AX_LOKI_KEY])
{
    snprintf(out, AX_LOKI_KEY, "layers.%lld.%s", (long long)layer, what);
}

/* What is wrong with the user's arguments: a text for each. */
typedef struct faults {
    ax_buf text;
    ax_status status; /* of the printing */
    bool of_file;     /* a file is wrong */
} faults;

#define FAULT(f, ...)                                                                                        \
    do {                                                                                                     \
        if ((f)->status == AX_OK && (f)->text.size)                                                          \
            (f)->status = ax_buf_printf(&(f)->text, "\n");                                                   \
        if ((f)->status == AX_OK)                                                                            \
            (f)->status = ax_buf_printf(&(f)->text, __VA_ARGS__);                                            \
    } while (0)

/* Reads a count from 1 to `most`, or a part in (0, 1]. `of`: what it counts. */
static void read_amount(const char *flag, const char *text, const char *of, int64_t most, int64_t *count,
                        double *part, faults *f)
{
    char *end;
    *count = 0, *part = 0;
    if (!text)
        return;
    errno = 0;
    if (strchr(text, '.')) {
        *part = strtod(text, &end);
        if (*end || errno || !(*part > 0 && *part <= 1))
            FAULT(f, "%s %s: a part of the %s is above 0 and at most 1.0", flag, text, of);
        return;
    }
    *count = strtoll(text, &end, 10);
    if (end == text || *end || errno || *count < 1 || *count > most)
        FAULT(f, "%s %s: give 1 to %lld of the %s, or a part of them with a decimal point, up to 1.0", flag,
              text, (long long)most, of);
}

static void check_flags(const ax_key_reading *how, faults *f)
{
    if (how->dims && !how->file)
        FAULT(f,
              "--dims needs --loki FILE, which `axonn loki calibrate` writes: without it the first elements "
              "of a head are no better than others");
    if (how->file && (!how->keys || !how->dims))
        FAULT(f, "--loki needs --keys and --dims: %s missing",
              how->keys   ? "--dims is"
              : how->dims ? "--keys is"
                          : "both are");
    if (how->per && !how->keys)
        FAULT(f, "--per needs --keys");
    if (how->per && strcmp(how->per, "head") && strcmp(how->per, "group"))
        FAULT(f, "--per %s: it is head or group", how->per);
}

/* Compares a file with the model. */
static ax_status check_file(const ax_pretrained *m, ax_st *st, const char *path, faults *f)
{
    char sum[AX_LOKI_CHECKSUM], key[AX_LOKI_KEY];
    const char *noted = ax_st_noted(st, AX_LOKI_MODEL);
    const int64_t e = ax_model_config_head_dim(&m->config), heads = m->config.kv_heads;
    int64_t layers = 0;
    const size_t before = f->text.size;
    AX_TRY(ax_loki_checksum(m, sum));
    if (!noted)
        FAULT(f, "%s was not written by `axonn loki calibrate`: its header has no " AX_LOKI_MODEL, path);
    else if (strcmp(noted, sum))
        FAULT(f, "%s is the calibration of a model with other weights (checksum %s, %s has %s)", path, noted,
              m->dir, sum);
    for (int i = 0; i < ax_st_count(st); i++)
        layers += strstr(ax_st_at(st, i)->key, ".turn") != NULL;
    if (layers != m->config.layers)
        FAULT(f, "%s has matrices of %lld layers, the model has %lld layers", path, (long long)layers,
              (long long)m->config.layers);
    for (int64_t n = 0; n < m->config.layers; n++) {
        ax_loki_key(n, "turn", key);
        const ax_st_array *a = ax_st_find(st, key);
        const bool fits =
            a && a->dtype == AX_F32 && a->ndim == 3 && a->dim[0] == heads && a->dim[1] == e && a->dim[2] == e;
        if (a && !fits) {
            FAULT(f, "%s: %s does not have a matrix of F32 for each of %lld key heads of width %lld", path,
                  key, (long long)heads, (long long)e);
            break;
        }
    }
    f->of_file |= f->text.size > before;
    return AX_OK;
}

ax_status ax_pretrained_read_keys(ax_pretrained *m, const ax_key_reading *how)
{
    const int64_t e = ax_model_config_head_dim(&m->config);
    faults f = {.status = AX_OK};
    ax_loki loki = {.kind = AX_LOKI_READ, .turned = how->file != NULL};
    double part;
    ax_status opened = AX_OK;
    ax_st_close(&m->turns);
    free(m->loki);
    m->loki = NULL;
    read_amount("--keys", how->keys, "keys that a query sees", ax_model_config_positions(&m->config),
                &loki.keys, &loki.share, &f);
    read_amount("--dims", how->dims, "elements of a head", e, &loki.dims, &part, &f);
    loki.dims = ax_min(e, ax_round_up(part > 0 ? (int64_t)ceil(part * (double)e - 1e-6) : loki.dims, 8));
    loki.group = how->per && !strcmp(how->per, "group");
    check_flags(how, &f);
    const bool usage = f.text.size;
    if (how->file) {
        opened = ax_st_open(how->file, &m->turns);
        if (opened == AX_OK)
            opened = check_file(m, m->turns, how->file, &f);
        else
            FAULT(&f, "%s", ax_error_message());
    }
    ax_status status = f.status;
    if (status == AX_OK && f.text.size)
        status = ax_fail(usage ? AX_ERR_USAGE : opened != AX_OK ? opened : AX_ERR_DATA, "%s", f.text.data);
    ax_buf_fini(&f.text);
    if (status == AX_OK)
        status = opened;
    if (status != AX_OK || !how->keys)
        return status;
    AX_TRY(ax_calloc(1, sizeof *m->loki, &m->loki));
    *m->loki = loki;
    return AX_OK;
}

/* ---- matrices ------------------------------------------------------------------------------------ */

typedef struct loading {
    const ax_pretrained *model;
    ax_layer *root;
} loading;

/* Reads this rank's matrices of a layer. */
static ax_status load_layer(void *user, int64_t layer, ax_tensor *t)
{
    const loading *l = user;
    ax_ctx *ctx = l->root->ctx;
    const ax_box box = ax_tensor_box(ctx->grid, t, ax_grid_rank(ctx->grid));
    const size_t bytes = (size_t)ax_tensor_bytes(ctx->grid, t);
    char key[AX_LOKI_KEY];
    void *host;
    if (!bytes)
        return AX_OK;
    ax_loki_key(layer, "turn", key);
    const ax_st_array *array = ax_st_find(l->model->turns, key);
    AX_CHECK(array, AX_ERR_DATA, "the calibration has no %s", key);
    AX_TRY(ax_calloc(1, bytes, &host));
    ax_status status = ax_st_read(l->model->turns, array, box.lo, box.n, false, t->dtype, host);
    if (status == AX_OK)
        status = ax_copy_in(ctx->stream, t->data, host, bytes);
    free(host);
    return status;
}

ax_status ax_pretrained_load_turns(const ax_pretrained *model, ax_layer *root)
{
    return model->turns ? ax_loki_visit(root, load_layer, &(loading){model, root}) : AX_OK;
}
