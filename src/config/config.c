/* Makes the table of configuration keys of a training run from axonn/config.def. Rules between keys are in
 * rules.c. */
#include "private.h"

#include "axonn/chat.h"
#include "axonn/data.h"
#include "axonn/model.h"
#include "axonn/optim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT_OF_(number) #number
#define TEXT_OF(number) TEXT_OF_(number)
#define UP_TO(most) "[1, " TEXT_OF(most) "]"
#define UP_FROM_0(most) "[0, " TEXT_OF(most) "]"
#define AX_GROUP(name)
#define AX_END(name)
#define AX_ROW(key, path, name, type, resume, ...)                                                           \
    {key, AX_OPT_##type, offsetof(ax_config, path), __VA_ARGS__},
#define RUNTIME(...) AX_RUNTIME_OPTION(offsetof(ax_config, runtime), __VA_ARGS__),
static const ax_option options[] = {
#include "axonn/config.def"
    AX_RUNTIME(RUNTIME)};

#define AX_GROUP(name)
#define AX_END(name)
#define AX_ROW(key, path, name, type, resume, ...) AX_RESUME_##resume,
static const ax_config_resume resumes[AX_COUNT(options)] = {
#include "axonn/config.def"
};

ax_config_resume ax_config_resumes(size_t row) { return resumes[row]; }

const ax_option *ax_config_options(size_t *count)
{
    *count = AX_COUNT(options);
    return options;
}

/* ---- loading ------------------------------------------------------------------------------------- */

/* Sets *out to the default of run.dir, in the current directory: runs/NAME if `path` is NAME.yaml, runs/run
 * if `path` is NULL. */
static ax_status default_dir(const char *path, char **out)
{
    const char *slash = path ? strrchr(path, '/') : NULL, *name = slash ? slash + 1 : path ? path : "run";
    const char *dot = strrchr(name, '.');
    ax_buf dir = {0};
    char *here = getcwd(NULL, 0);
    AX_CHECK(
        here, AX_ERR_DATA,
        "the path of the current directory is not known: %s; change to another directory, or give run.dir "
        "as an absolute path",
        strerror(errno));
    ax_status status = ax_buf_printf(&dir, "%s/runs/%.*s", here,
                                     dot && dot > name ? (int)(dot - name) : (int)strlen(name), name);
    free(here);
    if (status == AX_OK)
        status = ax_strdup(dir.data, out);
    ax_buf_fini(&dir);
    return status;
}

/* Copies model.dropout to each of the other dropout keys that the user did not give. If model.dropout is
 * given on the command line, it also overrides those of the other keys that only the file gives. */
static void spread_dropout(ax_config *cfg)
{
    const double rate = cfg->model.dropout;
    double *const one[] = {&cfg->model.embd_dropout, &cfg->model.resid_dropout, &cfg->model.attn_dropout};
    static const char *const keys[] = {"model.embd_dropout", "model.resid_dropout", "model.attn_dropout"};
    bool typed = ax_option_typed(cfg->set, "model.dropout");
    for (size_t i = 0; i < AX_COUNT(keys); i++)
        if (!ax_config_given(cfg, keys[i]) || (typed && !ax_option_typed(cfg->set, keys[i])))
            *one[i] = rate;
}

ax_status ax_config_load(const char *path, char *const *overrides, size_t n, ax_config_use use,
                         ax_config *cfg)
{
    memset(cfg, 0, sizeof *cfg);
    AX_CHECK(
        !path || !strchr(path, '=') || !access(path, F_OK), AX_ERR_USAGE,
        "\"%s\" stands in the place of the configuration file, and no file has this name: write CONFIG.yaml "
        "before KEY=VALUE",
        path);
    size_t synonyms;
    const ax_option_synonym *others = ax_config_synonyms(&synonyms);
    AX_TRY(ax_option_set_create(options, AX_COUNT(options), cfg, &cfg->set));
    ax_option_take_synonyms(cfg->set, others, synonyms);
    if (path)
        AX_TRY(ax_option_read_file(cfg->set, path));
    AX_TRY(ax_option_read_overrides(cfg->set, n, overrides));
    config_check(cfg, use);
    if (use != AX_CONFIG_TO_TRAIN)
        ax_option_waive(cfg->set, "data.train");
    ax_status status = ax_option_finish(cfg->set);
    if (status == AX_ERR_USAGE) { /* some keys have errors: also checks the files that the other keys name, so
                                     that all errors are reported together */
        if (use == AX_CONFIG_TO_TRAIN)
            config_check_paths(cfg);
        AX_TRY(config_check_files(cfg));
        status = ax_option_finish(cfg->set);
    }
    AX_TRY(status);
    if (!cfg->run.dir)
        AX_TRY(default_dir(path, &cfg->run.dir));
    spread_dropout(cfg);
    return AX_OK;
}

void ax_config_fini(ax_config *cfg)
{
    ax_option_set_destroy(&cfg->set);
    ax_option_fini(options, AX_COUNT(options), cfg);
}

bool ax_config_given(const ax_config *cfg, const char *key) { return ax_option_given(cfg->set, key); }

ax_status ax_config_dump(const ax_config *cfg, ax_buf *out) { return ax_option_dump(cfg->set, out); }

static const struct {
    ax_dtype dtype;
    const char *name;
} precisions[] = {[AX_CONFIG_FP32] = {AX_F32, "fp32"},
                  [AX_CONFIG_BF16] = {AX_BF16, "bf16"},
                  [AX_CONFIG_FP16] = {AX_F16, "fp16"}};

ax_dtype ax_config_dtype(int precision) { return precisions[precision].dtype; }

const char *ax_config_dtype_name(int precision)
{
    return precision < (int)AX_COUNT(precisions) ? precisions[precision].name : NULL;
}

ax_dtype ax_config_dtype_of(const char *name)
{
    for (size_t i = 0; name && i < AX_COUNT(precisions); i++)
        if (!strcmp(name, precisions[i].name))
            return precisions[i].dtype;
    return AX_DTYPE_COUNT;
}

ax_grid_size ax_config_grid(const ax_config *cfg)
{
#define SIZE(id, name, split) [AX_##id] = (int)cfg->grid.name,
    return (ax_grid_size){{AX_AXES(SIZE)[AX_SIZE_EXPERT] = (int)cfg->grid.expert}};
#undef SIZE
}
