/* Compares every file that a checkpoint's manifest lists with its size and checksum in the manifest, and
 * reports all damaged files. */
#include "ckpt.h"

#include <stdlib.h>
#include <string.h>

void ax_ckpt_report_destroy(ax_ckpt_report **report)
{
    if (!*report)
        return;
    for (int i = 0; i < (*report)->n; i++) {
        free((*report)->fault[i].file);
        free((*report)->fault[i].what);
    }
    free((*report)->fault);
    free((*report)->remark);
    free(*report);
    *report = NULL;
}

/* Adds the calling thread's error message to the report, as a fault of `file`. */
static ax_status add_fault(ax_ckpt_report *r, const char *file)
{
    AX_TRY(ax_list_grow(&r->fault, (size_t)r->n, sizeof *r->fault));
    ax_ckpt_fault *f = &r->fault[r->n++];
    memset(f, 0, sizeof *f);
    AX_TRY(ax_strdup(ax_error_message(), &f->what));
    return ax_strdup(file, &f->file);
}

static ax_status verify_files(const char *dir, ax_ckpt_report *r)
{
    manifest m;
    r->manifest = true;
    r->files = 1;
    ax_status status = manifest_read(dir, &m);
    if (status != AX_OK)
        return status == AX_ERR_DATA ? add_fault(r, MANIFEST) : status;
    r->bytes = m.bytes;
    for (int i = 0; i < m.n && status == AX_OK; i++) {
        r->files++;
        status = manifest_check_file(dir, &m.file[i]);
        if (status == AX_ERR_DATA)
            status = add_fault(r, m.file[i].name);
    }
    manifest_fini(&m);
    return status;
}

/* Returns the name of the file that describes the arrays of a model file or directory. */
static const char *described_by(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!ax_path_is_dir(path))
        return slash ? slash + 1 : path;
    if (ax_ckpt_is_adapter(path))
        return "adapter_model.safetensors";
    return ax_dir_has(path, "model.safetensors") ? "model.safetensors" : "model.safetensors.index.json";
}

/* Checks a model file or directory without a manifest: headers, file sizes and index must agree. */
static ax_status verify_structure(const char *path, ax_ckpt_report *r)
{
    ax_st *st;
    ax_status status = ax_st_open(path, &st);
    r->files = 1;
    if (status != AX_OK)
        return status == AX_ERR_DATA ? add_fault(r, described_by(path)) : status;
    r->files = st->files;
    r->bytes = ax_st_bytes(st);
    status = ax_st_remark(st) ? ax_strdup(ax_st_remark(st), &r->remark) : AX_OK;
    ax_st_close(&st);
    return status;
}

ax_status ax_ckpt_verify(const char *dir, ax_ckpt_report **out)
{
    *out = NULL;
    AX_CHECK(ax_path_exists(dir), AX_ERR_DATA, "no such file or directory: %s", dir);
    bool listed = ax_dir_has(dir, MANIFEST);
    AX_CHECK(listed || !ax_path_is_dir(dir) || ax_ckpt_has_weights(dir) || ax_ckpt_is_adapter(dir),
             AX_ERR_DATA,
             "%s holds no checkpoint (" MANIFEST
             "), no model (model.safetensors) and no adapter (adapter_config.json)",
             dir);
    AX_TRY(ax_calloc(1, sizeof **out, out));
    ax_status status = listed ? verify_files(dir, *out) : verify_structure(dir, *out);
    if (status != AX_OK)
        ax_ckpt_report_destroy(out);
    return status;
}
