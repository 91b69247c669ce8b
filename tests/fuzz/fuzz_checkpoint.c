/* Checkpoints of a run. The parts are training/manifest.json without its checksum, training/state.json and
 * RUN/latest. The harness adds the manifest's checksum, so that mutants pass that check. The other files come
 * from a run of one step. */
#include "ckpt/ckpt.h"
#include "fuzz/fuzz.h"
#include "train/train.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static ax_config config;
static ax_train_run run;  /* of the same configuration; it has data and sampler, but no engine */
static ax_param_set *set; /* parameters of the same model */
static char run_dir[512], step_dir[600];

/* ---- a run of one step --------------------------------------------------------------------------- */

static void make_tokens(const char *path)
{
    ax_token_writer *w;
    FUZZ_HOLDS(ax_token_writer_create(path, 11, 10, 0, &w) == AX_OK);
    for (int d = 0; d < 10; d++)
        FUZZ_HOLDS(ax_token_writer_add(w, (int32_t[]){1, 2, 3, 4, 5, 6, 7, 8}, 8, 9) == AX_OK);
    FUZZ_HOLDS(ax_token_writer_finish(&w, NULL) == AX_OK);
}

static void load_config(void)
{
    static char keys[][600] = {"model.family=gpt2",    "model.layers=1",
                               "model.hidden=4",       "model.heads=2",
                               "model.vocab=11",       "model.seq_len=8",
                               "train.steps=1",        "train.global_batch=1",
                               "device=ref",           "train.micro_batch=1",
                               "train.precision=fp16", "threads=1",
                               "data.train=",          "run.dir="};
    char *words[AX_COUNT(keys)];
    snprintf(keys[AX_COUNT(keys) - 2], sizeof keys[0], "data.train=%s", fuzz_path("train.tok"));
    snprintf(keys[AX_COUNT(keys) - 1], sizeof keys[0], "run.dir=%s", fuzz_path("run"));
    for (size_t i = 0; i < AX_COUNT(keys); i++)
        words[i] = keys[i];
    FUZZ_HOLDS(ax_config_load(NULL, words, AX_COUNT(words), AX_CONFIG_TO_TRAIN, &config) == AX_OK);
}

static void set_up(void)
{
    ax_comm *world;
    ax_ctx *ctx;
    static ax_model *model;
    ax_train_result result;
    make_tokens(fuzz_path("train.tok"));
    load_config();
    FUZZ_HOLDS(ax_comm_self_create(&world) == AX_OK && ax_train(world, &config, &result) == AX_OK);
    free(result.checkpoint);
    snprintf(run_dir, sizeof run_dir, "%s", fuzz_path("run"));
    snprintf(step_dir, sizeof step_dir, "%s/ckpt/step-1", run_dir);
    run = (ax_train_run){.world = world, .config = &config, .resume = {.dir = step_dir}};
    FUZZ_HOLDS(ax_train_open_model(&run, &run.inputs) == AX_OK);
    FUZZ_HOLDS(ax_train_open_data(&run, &run.inputs, &run.state.signal) == AX_OK);
    FUZZ_HOLDS(ax_optim_find(config.optim.name, &run.plan.options.optim) == AX_OK);
    FUZZ_HOLDS(ax_ctx_create(world, (ax_grid_size){{1}}, "ref", 1, AX_F16, 1, &ctx) == AX_OK);
    FUZZ_HOLDS(ax_model_create(ctx, &run.inputs.model, &(ax_model_use){.positions = 1}, &model) == AX_OK);
    FUZZ_HOLDS(ax_layer_param_set(model->root, run.plan.options.optim->moments, &set) == AX_OK);
}

void fuzz_make_seeds(void)
{
    char *manifest, *state;
    size_t manifest_size, state_size;
    set_up();
    FUZZ_HOLDS(ax_file_read(fuzz_path("run/ckpt/step-1/" MANIFEST), &manifest, &manifest_size) == AX_OK);
    FUZZ_HOLDS(ax_file_read(fuzz_path("run/ckpt/step-1/training/state.json"), &state, &state_size) == AX_OK);
    *strstr(manifest, ",\n  \"xxh3\": \"") =
        0; /* the manifest's own checksum is the first one indented by two blanks */
    fuzz_seed_texts((const char *[]){manifest, state, "step-1\n", NULL});
    fuzz_seed_texts(
        (const char *[]){"{\"version\":1,\"step\":1,\"serial\":1,\"time\":1.5,\"files\":{\"../../../../../../"
                         "../../../../../../"
                         "../../../../dev/zero\":{\"bytes\":0,\"xxh3\":\"0000000000000000\"}},\"params\":{}",
                         state, "", NULL});
    free(manifest);
    free(state);
}

/* ---- reading ------------------------------------------------------------------------------------- */

static void put_manifest(const fuzz_part *part)
{
    ax_buf text = {0};
    FUZZ_HOLDS(ax_buf_add(&text, part->data, part->size) == AX_OK);
    uint64_t sum = XXH3_64bits(text.data, text.size);
    FUZZ_HOLDS(ax_buf_printf(&text, ",\n  \"xxh3\": \"%016llx\"\n}\n", (unsigned long long)sum) == AX_OK);
    fuzz_file("run/ckpt/step-1/" MANIFEST, text.data, text.size);
    ax_buf_fini(&text);
}

static void list_and_find(void)
{
    ax_ckpt_list *list;
    ax_ckpt_report *report;
    char *dir;
    for (int verify = 0; verify < 2; verify++)
        if (fuzz_read(ax_ckpt_list_create(run_dir, verify, &list)))
            ax_ckpt_list_destroy(&list);
    if (fuzz_read(ax_ckpt_verify(step_dir, &report)))
        ax_ckpt_report_destroy(&report);
    if (fuzz_read(ax_ckpt_find_model(run_dir, &dir)))
        free(dir);
}

static void resume_as(bool new_run)
{
    int64_t read[1] = {0}, targets;
    ax_train_position at = {.read = read};
    ax_sampler *sampler;
    run.resume.new_run = new_run;
    if (!fuzz_read(ax_train_restore_position(&run, &run.resume, &at)))
        return;
    FUZZ_HOLDS(at.step >= 0 && at.tokens >= 0);
    (void)fuzz_read(ax_train_log_changes(&run));
    if (!fuzz_read(ax_train_create_sampler(&run, at.step, read, &sampler)))
        return;
    FUZZ_HOLDS(fuzz_read(ax_sampler_next(sampler, &targets)));
    ax_sampler_destroy(&sampler);
}

static void resume(void)
{
    (void)fuzz_read(ax_ckpt_load(set, step_dir, run.plan.options.optim->moment_names, NULL));
    for (int new_run = 0; new_run < 2; new_run++) {
        resume_as(new_run);
        json_decref(run.resume.state);
        run.resume.state = NULL;
    }
}

void fuzz_one(const fuzz_part *part, int n)
{
    put_manifest(part);
    if (n > 1)
        fuzz_file("run/ckpt/step-1/training/state.json", part[1].data, part[1].size);
    if (n > 2)
        fuzz_file("run/latest", part[2].data, part[2].size);
    list_and_find();
    resume();
}
