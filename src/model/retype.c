/* Changes values in the text of a config.json: the dtype of the weights, and whether the output layer is
 * tied. */
#include "model/family.h"

const char *ax_model_dtype_name(ax_dtype dtype)
{
    static const char *const names[AX_DTYPE_COUNT] = {
        [AX_F64] = "float64", [AX_F32] = "float32", [AX_BF16] = "bfloat16", [AX_F16] = "float16"};
    return names[dtype];
}

/* Sets each of the keys "dtype" (transformers 5) and "torch_dtype" (older versions) that `json` has. If
 * `json` has neither key, sets "dtype". */
static int set_dtype(json_t *json, ax_dtype dtype)
{
    static const char *const keys[] = {"dtype", "torch_dtype"};
    int failed = 0;
    for (size_t i = 0; i < AX_COUNT(keys) && dtype < AX_DTYPE_COUNT; i++)
        if (json_object_get(json, keys[i]) || (i == 0 && !json_object_get(json, keys[1])))
            failed |= json_object_set_new(json, keys[i], json_string(ax_model_dtype_name(dtype)));
    return failed;
}

ax_status ax_model_config_retype(const char *json, size_t size, const char *path, ax_dtype dtype, bool untied,
                                 ax_buf *out)
{
    json_t *root;
    AX_TRY(ax_json_parse(path, json, size, JSON_REJECT_DUPLICATES, &root));
    bool object = json_is_object(root);
    json_decref(root);
    AX_CHECK(object, AX_ERR_DATA, "%s does not hold a JSON object: is it the config.json of a model?", path);
    if (dtype == AX_DTYPE_COUNT && !untied)
        return ax_buf_add(out, json, size);
    AX_TRY(ax_json_parse_verbatim(path, json, size, &root));
    bool failed =
        set_dtype(root, dtype) || (untied && json_object_set_new(root, "tie_word_embeddings", json_false()));
    ax_status status = failed ? ax_fail(AX_ERR_MEMORY, "not enough memory to change %s", path)
                              : ax_json_print(root, JSON_INDENT(2), out);
    json_decref(root);
    AX_TRY(status);
    return ax_buf_add(out, "\n", 1);
}
