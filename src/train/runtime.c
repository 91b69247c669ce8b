/* Runtime settings of a run (runtime.h). The settings on which results depend are saved in
 * run.dir/config.yaml, and restored when the run is resumed. */
#include "axonn/runtime.h"
#include "train/train.h"

#include <stdlib.h>
#include <string.h>

ax_status ax_train_set_runtime(const ax_train_run *run) { return ax_runtime_set_given(run->config->set); }

static bool is_kept(int id) { return !ax_runtime_options[id].not_dumped; }

/* Returns true if the run computes with the CPU kernels that the setting runtime.isa chooses. */
static bool uses_isa(const ax_train_run *run) { return !strcmp(run->config->device, "cpu"); }

/* ---- restoring settings -------------------------------------------------------------------------- */

/* Reads the runtime settings in the file `path` as uninterpreted texts: another version of the program may
 * have written values that this version does not know. Ignores other keys, and errors in the file. */
static ax_status read_file(const char *path, char *value[AX_RUNTIME_COUNT])
{
    ax_option rows[AX_RUNTIME_COUNT];
    ax_option_set *set;
    for (size_t id = 0; id < AX_RUNTIME_COUNT; id++)
        rows[id] = (ax_option){
            .key = ax_runtime_options[id].key, .type = AX_OPT_STRING, .offset = id * sizeof(char *)};
    AX_TRY(ax_option_set_create(rows, AX_RUNTIME_COUNT, value, &set));
    ax_status status = ax_path_exists(path) ? ax_option_read_file(set, path) : AX_OK;
    ax_option_set_destroy(&set);
    return status == AX_ERR_DATA ? AX_OK : status;
}

static ax_status read_kept(const ax_train_run *run, char *value[AX_RUNTIME_COUNT])
{
    char *path;
    AX_TRY(ax_path_join(run->config->run.dir, "config.yaml", &path));
    ax_status status = read_file(path, value);
    free(path);
    return status;
}

/* Sets the runtime setting `id` to `was`, the value that the resumed run had before, unless the user gave
 * another value. */
static ax_status use_again(const ax_train_run *run, ax_runtime_id id, const char *was)
{
    const ax_option *row = &ax_runtime_options[id];
    const char *now;
    AX_TRY(ax_runtime_get(id, &now));
    bool asked = ax_option_given(run->config->set, row->key) || strcmp(now, row->preset) != 0;
    if (asked && strcmp(now, was) != 0) {
        ax_log(AX_LOG_INFO, "changed: %s was \"%s\" and is now \"%s\"", row->key, was, now);
        return AX_OK;
    }
    return ax_runtime_prefer(id, was);
}

ax_status ax_train_resume_runtime(const ax_train_run *run)
{
    char *value[AX_RUNTIME_COUNT] = {NULL};
    const char *isa;
    bool resumed = run->resume.dir && !run->resume.new_run;
    ax_status status = AX_OK;
    if (resumed && ax_train_first(run))
        status = read_kept(run, value);
    status = ax_comm_agree(run->world, status);
    for (int id = 0; resumed && id < AX_RUNTIME_COUNT && status == AX_OK; id++) {
        if (!is_kept(id))
            continue;
        status = ax_comm_share_text(run->world, 0, &value[id]);
        if (status == AX_OK && value[id])
            status = ax_comm_agree(run->world, use_again(run, (ax_runtime_id)id, value[id]));
    }
    for (int id = 0; id < AX_RUNTIME_COUNT; id++)
        free(value[id]);
    AX_TRY(status);
    return uses_isa(run) ? ax_isa_chosen(&isa) : AX_OK;
}

/* ---- saving settings ----------------------------------------------------------------------------- */

static ax_status keep_value(ax_option_set *set, ax_runtime_id id, const char *value)
{
    const char *key = ax_runtime_options[id].key, *source = ax_runtime_source(id);
    ax_buf now = {0};
    ax_status status = ax_option_value(set, key, &now);
    if (status == AX_OK && strcmp(now.data, value) != 0)
        status = ax_option_assign(set, key, value, strcmp(source, key) ? source : "chosen at the start");
    ax_buf_fini(&now);
    return status;
}

ax_status ax_train_keep_runtime(const ax_train_run *run)
{
    for (int id = 0; id < AX_RUNTIME_COUNT; id++) {
        const char *value;
        if (!is_kept(id))
            continue;
        AX_TRY(id == AX_RUNTIME_ISA && uses_isa(run) ? ax_isa_chosen(&value)
                                                     : ax_runtime_get((ax_runtime_id)id, &value));
        AX_TRY(keep_value(run->config->set, (ax_runtime_id)id, value));
    }
    return AX_OK;
}
