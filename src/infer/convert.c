/* Writes a model directory with another dtype or other shards, without building the network. If the directory
 * holds an adapter, writes its base model, with the adapter's updates added. */
#include "infer/adapter.h"
#include "infer/copy.h"

typedef struct converter {
    ax_copy copy;
    ax_pretrained model; /* if the source is an adapter's directory: the adapter with its base model */
    ax_st *from;         /* else the source's weight files */
    ax_conversion *result;
} converter;

/* If the adapter updates array `b`, writes the sum of array `a` and the update. */
static ax_status merge_array(void *owner, const ax_st_array *a, ax_st *to, const ax_st_array *b, bool *done)
{
    converter *c = owner;
    ax_merge_pair pair;
    AX_TRY(ax_merge_factors(&c->model, a, b->key, &pair));
    *done = pair.a != NULL;
    if (!*done)
        return AX_OK;
    AX_TRY(ax_copy_report(&c->copy, 0));
    c->result->merged++;
    return ax_merge_array(&c->model, &pair, a, to, b, &c->result->overflows);
}

static ax_status open_source(converter *c, const char *dir)
{
    ax_copy *copy = &c->copy;
    copy->dir = dir;
    if (ax_ckpt_is_adapter(dir)) {
        AX_TRY(ax_pretrained_open(dir, &c->model));
        copy->base = c->model.base;
        copy->untied = ax_model_config_is_untied_by_adapter(&c->model.config);
        copy->tied = ax_merge_tied(&c->model, &copy->tied_key);
        copy->write = merge_array;
        copy->owner = c;
        copy->from = c->model.weights;
    } else {
        AX_TRY(ax_st_open(dir, &c->from));
        copy->from = c->from;
    }
    if (ax_st_remark(copy->from))
        ax_log(AX_LOG_INFO, "%s", ax_st_remark(copy->from));
    return AX_OK;
}

ax_status ax_model_convert(const ax_conversion_args *args, ax_conversion *result)
{
    converter c = {.result = result};
    *result = (ax_conversion){0};
    ax_status status = ax_copy_begin(args->out, &c.copy);
    c.copy.dtype = args->dtype;
    c.copy.shard_bytes = args->shard_bytes;
    c.copy.progress = args->progress;
    c.copy.user = args->user;
    if (status == AX_OK)
        status = open_source(&c, args->dir);
    if (status == AX_OK)
        status = ax_copy_write(&c.copy, result);
    ax_copy_fini(&c.copy);
    ax_st_close(&c.from);
    ax_pretrained_close(&c.model);
    return status;
}
