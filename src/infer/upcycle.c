/* Makes a model with experts of a dense model's directory: each expert is a copy of the MLP, and the routers
 * are random. */
#include "infer/copy.h"
#include "infer/pretrained.h"

#include "axonn/philox.h"

#include <stdlib.h>
#include <string.h>

typedef struct upcycler {
    ax_copy copy;
    ax_pretrained dense;
    ax_model_config sparse;
    ax_buf config;
    ax_st_array *router; /* of each block */
} upcycler;

static bool name_array(void *owner, const ax_st_array *a, int64_t index, char key[AX_COPY_KEY])
{
    const upcycler *u = owner;
    return ax_upcycled_name(&u->sparse, a->key, index, key);
}

/* Writes the weights of a router: normal numbers, small enough that all experts are about equally probable,
 * and different for each block. */
static ax_status add_router(void *owner, ax_st *to, const ax_st_array *b)
{
    upcycler *u = owner;
    const int64_t n = ax_st_elements(b);
    const uint64_t key = ax_rng_key(AX_UPCYCLE_SEED, b->key, 0);
    float *values;
    AX_TRY(ax_calloc((size_t)n, sizeof *values, &values));
    for (int64_t i = 0; i < n; i++)
        values[i] = (float)u->sparse.init_std * ax_rng_normal(key, (uint64_t)i);
    ax_status status = ax_st_write(to, b, NULL, NULL, false, AX_F32, values);
    free(values);
    return status;
}

/* Returns true if the names of the arrays have the family's prefix. */
static bool has_prefix(const upcycler *u)
{
    const char *prefix = ax_family_prefix(u->sparse.family);
    for (int i = 0; i < ax_st_count(u->copy.from); i++)
        if (!strncmp(ax_st_at(u->copy.from, i)->key, prefix, strlen(prefix)))
            return true;
    return false;
}

static ax_status list_routers(upcycler *u, ax_dtype dtype)
{
    const ax_model_config *c = &u->sparse;
    const bool whole = has_prefix(u);
    char key[AX_COPY_KEY];
    AX_TRY(ax_calloc((size_t)c->layers, sizeof *u->router, &u->router));
    for (int64_t i = 0; i < c->layers; i++) {
        u->router[i] = (ax_st_array){.ndim = 2, .dim = {c->experts.n, c->hidden}, .dtype = dtype};
        ax_upcycled_router(c, whole, i, key);
        AX_TRY(ax_strdup(key, (char **)&u->router[i].key));
        u->copy.n_added++;
    }
    u->copy.added = u->router;
    return AX_OK;
}

/* Makes config.json, and checks that it describes the new model. */
static ax_status describe(upcycler *u, ax_dtype dtype)
{
    ax_model_identity identity = u->dense.identity;
    ax_model_config again;
    identity.dtype = dtype;
    AX_TRY(ax_model_config_print(&u->sparse, &identity, &u->config));
    ax_status status =
        ax_model_config_parse(u->config.data, u->config.size, "config.json of the result", &again);
    ax_model_config_fini(&again);
    u->copy.config = u->config.data;
    return status;
}

static ax_status upcycle(upcycler *u, const ax_conversion_args *args, ax_conversion *result)
{
    AX_TRY(ax_copy_begin(args->out, &u->copy));
    AX_CHECK(!ax_ckpt_is_adapter(args->dir), AX_ERR_USAGE,
             "%s is an adapter: merge it with its base first (axonn ckpt convert %s --out DIR)", args->dir,
             args->dir);
    AX_TRY(ax_pretrained_open_weights(args->dir, &u->dense));
    AX_TRY(ax_model_config_upcycle(&u->dense.config, args->experts, args->top_k, &u->sparse));
    const ax_dtype dtype = args->dtype < AX_DTYPE_COUNT ? args->dtype : u->dense.identity.dtype;
    u->copy.dir = args->dir;
    u->copy.from = u->dense.weights;
    u->copy.dtype = args->dtype;
    u->copy.shard_bytes = args->shard_bytes;
    u->copy.name = name_array;
    u->copy.add = add_router;
    u->copy.owner = u;
    u->copy.progress = args->progress;
    u->copy.user = args->user;
    AX_TRY(list_routers(u, dtype));
    AX_TRY(describe(u, dtype));
    return ax_copy_write(&u->copy, result);
}

ax_status ax_model_upcycle(const ax_conversion_args *args, ax_conversion *result)
{
    upcycler u = {0};
    *result = (ax_conversion){0};
    ax_status status = upcycle(&u, args, result);
    ax_copy_fini(&u.copy);
    for (int i = 0; i < u.copy.n_added; i++)
        free((char *)(uintptr_t)u.router[i].key);
    free(u.router);
    ax_buf_fini(&u.config);
    ax_model_config_fini(&u.sparse);
    ax_pretrained_close(&u.dense);
    return status;
}
