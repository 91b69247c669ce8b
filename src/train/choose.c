/* grid: auto. Rank 0 chooses the sizes of the grid and the order of its axes for the other keys as they are;
 * all ranks take them. A run that is continued keeps its own, unless the number of ranks has changed or the
 * command line says grid=auto. */
#include "train/train.h"

#include "axonn/runtime.h"

#include <stdlib.h>
#include <string.h>

/* The keys that are chosen. */
static const char *const keys[] = {"grid.data", "grid.expert", "grid.pipe", "grid.x",
                                   "grid.y",    "grid.z",      "grid.order"};

/* Reads the values of these keys in run.dir/config.yaml as texts: NULL where there is none. */
static ax_status read_kept(const ax_train_run *run, char *value[AX_COUNT(keys)])
{
    ax_option rows[AX_COUNT(keys)];
    ax_option_set *set;
    char *path;
    for (size_t i = 0; i < AX_COUNT(keys); i++)
        rows[i] = (ax_option){.key = keys[i], .type = AX_OPT_STRING, .offset = i * sizeof *value};
    AX_TRY(ax_path_join(run->config->run.dir, "config.yaml", &path));
    ax_status status = ax_option_set_create(rows, AX_COUNT(keys), value, &set);
    if (status == AX_OK) {
        status = ax_path_exists(path) ? ax_option_read_file(set, path) : AX_OK;
        ax_option_set_destroy(&set);
    }
    free(path);
    return status == AX_ERR_DATA ? AX_OK : status;
}

/* Appends the keys that the run had before, if it is continued and they are for as many ranks. */
static ax_status find_kept(const ax_train_run *run, ax_buf *words)
{
    const ax_config *c = run->config;
    char *value[AX_COUNT(keys)] = {NULL}, *checkpoint = NULL;
    int64_t ranks = 1;
    if (ax_option_typed(c->set, "grid") || strcmp(c->train.resume, "auto") != 0 ||
        !ax_path_is_dir(c->run.dir))
        return AX_OK;
    AX_TRY(ax_ckpt_find_resume(c->run.dir, "auto", &checkpoint));
    ax_status status = checkpoint ? read_kept(run, value) : AX_OK;
    for (size_t i = 0; i < AX_COUNT(keys); i++)
        if (strcmp(keys[i], "grid.expert") != 0 && strcmp(keys[i], "grid.order") != 0)
            ranks *= value[i] ? strtoll(value[i], NULL, 10) : 0;
    for (size_t i = 0; i < AX_COUNT(keys) && status == AX_OK && ranks == ax_comm_size(run->world); i++)
        if (value[i])
            status = ax_buf_printf(words, "%s%s=%s", words->size ? " " : "", keys[i], value[i]);
    for (size_t i = 0; i < AX_COUNT(keys); i++)
        free(value[i]);
    free(checkpoint);
    return status;
}

/* Searches, and appends the keys of the best. */
static ax_status search(ax_train_run *run, ax_buf *words)
{
    ax_option_set *set = run->config->set;
    const char *name;
    char text[32];
    ax_machine *machine;
    ax_search *found;
    AX_TRY(ax_runtime_get(AX_RUNTIME_MACHINE, &name));
    if (!strcmp(name, ax_runtime_options[AX_RUNTIME_MACHINE].preset)) {
        ax_option_error(set, "grid", "auto needs a description of the machine: give runtime.machine");
        return ax_option_finish(set);
    }
    AX_TRY(ax_machine_open(name, &machine));
    const ax_search_options options = {machine, ax_comm_size(run->world), .axes_only = true, .most = 1};
    ax_status status = ax_train_search(run, &options, &found);
    if (status == AX_OK) {
        status = ax_search_words(found, ax_search_get(found, 0), words);
        ax_log(AX_LOG_INFO, "grid: auto chose %s: %s a step on %s", words->data,
               ax_format_seconds(ax_search_get(found, 0)->seconds, text), machine->name);
        ax_search_destroy(&found);
    }
    ax_machine_close(&machine);
    return status;
}

static ax_status choose(ax_train_run *run, char **out)
{
    ax_buf words = {0};
    ax_status status = find_kept(run, &words);
    if (status == AX_OK && words.size)
        ax_log(AX_LOG_INFO, "grid: auto keeps the run's %s", words.data);
    else if (status == AX_OK)
        status = search(run, &words);
    if (status == AX_OK)
        status = ax_strdup(words.data, out);
    ax_buf_fini(&words);
    return status;
}

/* Assigns the keys in "KEY=VALUE KEY=VALUE ...", which it changes. */
static ax_status take(ax_option_set *set, char *words)
{
    for (char *rest = words, *word; (word = strsep(&rest, " "));) {
        char *value = strchr(word, '=');
        *value++ = 0;
        AX_TRY(ax_option_assign(set, word, value, "grid: auto"));
    }
    return AX_OK;
}

ax_status ax_train_choose_grid(ax_train_run *run)
{
    char *words = NULL;
    if (run->config->grid.choice != AX_CONFIG_GRID_AUTO)
        return AX_OK;
    AX_TRY(ax_comm_agree(run->world, ax_train_first(run) ? choose(run, &words) : AX_OK));
    ax_status status = ax_comm_share_text(run->world, 0, &words);
    if (status == AX_OK)
        status = take(run->config->set, words);
    free(words);
    AX_TRY(status);
    return ax_config_take_ranks(run->config, ax_comm_size(run->world));
}
