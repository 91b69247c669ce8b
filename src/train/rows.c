/* The rows with which the run that wrote a checkpoint evaluates, so that others can evaluate alike. */
#include "axonn/train.h"

#include "axonn/json.h"

#include <jansson.h>
#include <stdlib.h>

static int64_t whole(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

/* Returns the value of data.pack. training/state.json has what follows from it for data.train, in which
 * data.loss tells whether a source has a mask: without a mask auto is stream, with one it is documents. So
 * what auto does not say was given by the user. */
static ax_data_packing pack_of(const json_t *run)
{
    const ax_data_packing pack = (ax_data_packing)whole(run, "data.pack");
    const bool masked = json_object_get(run, "data.loss");
    return pack == (masked ? AX_PACK_DOCUMENTS : AX_PACK_STREAM) ? AX_PACK_AUTO : pack;
}

static ax_status read_state(const ax_pretrained *model, const char *path, ax_row_shape *shape, bool *bos)
{
    json_t *state;
    ax_status status = ax_json_read_file(path, 0, &state);
    if (status != AX_OK) /* the run that wrote the checkpoint may have removed it meanwhile */
        return ax_path_exists(path) ? status : AX_OK;
    const json_t *run = json_object_get(state, "run"),
                 *framed = json_object_get(json_object_get(state, "settings"), "data.bos");
    const int64_t seq_len = whole(run, "model.seq_len");
    if (seq_len > 0 && seq_len <= ax_model_config_positions(&model->config)) {
        *shape = (ax_row_shape){.seq_len = seq_len,
                                .mask_documents = json_is_true(json_object_get(run, "data.mask_documents")),
                                .answers = whole(run, "data.loss") != AX_CONFIG_ALL,
                                .pack = pack_of(run)};
        *bos = !json_is_false(framed);
    }
    json_decref(state);
    return AX_OK;
}

ax_status ax_train_saved_shape(const ax_pretrained *model, ax_row_shape *shape, bool *bos)
{
    char *path;
    *shape = (ax_row_shape){.mask_documents = true, .answers = true, .pack = AX_PACK_AUTO};
    *bos = true;
    AX_TRY(ax_path_join(model->dir, "training/state.json", &path));
    ax_status status = ax_path_exists(path) ? read_state(model, path, shape, bos) : AX_OK;
    free(path);
    return status;
}
