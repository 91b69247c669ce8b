/* Saves checkpoints of a run and resumes from them. training/state.json holds the state of the run other than
 * weights and optimizer state. */
#include "axonn/json.h"
#include "train/train.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- state.json ---------------------------------------------------------------------------------- */

static ax_status print_state(const ax_train_run *run, char **out)
{
    const ax_config *c = run->config;
    int64_t counts[run->inputs.train.n];
    ax_sampler_state(run->state.sampler, counts);
    json_t *sampler = json_array();
    for (int i = 0; i < run->inputs.train.n; i++)
        json_array_append_new(sampler, json_integer(counts[i]));
    json_t *state =
        json_pack("{s:s,s:s,s:I,s:I,s:b,s:b,s:o,s:o,s:o,s:o}", "axonn", ax_version(), "commit", ax_commit(),
                  "step", (json_int_t)run->state.step, "tokens", (json_int_t)run->state.tokens, "evaluate",
                  run->state.pending.eval, "recall", run->state.pending.recall, "sampler", sampler, "paths",
                  ax_train_paths(run), "run", ax_train_identity(run), "settings", ax_train_settings(run));
    const ax_loss_scale *scale = ax_engine_loss_scale(run->state.engine);
    bool complete = state;
    if (state && c->train.precision == AX_CONFIG_FP16)
        complete = !json_object_set_new(state, "loss_scale",
                                        json_pack("{s:f,s:I,s:I}", "scale", scale->scale, "good_steps",
                                                  (json_int_t)scale->good_steps, "skipped_steps",
                                                  (json_int_t)scale->skipped_steps));
    *out = complete ? json_dumps(state, JSON_INDENT(2)) : NULL;
    json_decref(state);
    AX_CHECK(*out, AX_ERR_MEMORY,
             "not enough memory for the text of training/state.json of the checkpoint of step %lld",
             (long long)run->state.step);
    return AX_OK;
}

/* ---- saving -------------------------------------------------------------------------------------- */

/* Sets *out to the checkpoint's small files, and *state to the text of state.json. Called on rank 0. */
static ax_status collect_files(const ax_train_run *run, ax_train_files *written, ax_ckpt_file **out,
                               char **state)
{
    AX_TRY(ax_train_write_files(run, written));
    AX_TRY(ax_calloc((size_t)(written->n + run->beside.n), sizeof **out, out));
    for (int i = 0; i < written->n + run->beside.n; i++) {
        const ax_train_file *f = i < written->n ? &written->file[i] : &run->beside.file[i - written->n];
        (*out)[i] = (ax_ckpt_file){f->name, f->data, f->size};
    }
    return print_state(run, state);
}

/* The arguments of a save, with the small files that belong to them. */
typedef struct ax_train_saving {
    ax_ckpt_save_args args;
    ax_train_files written;
    ax_ckpt_file *files;
    char *state;
} ax_train_saving;

/* Sets *out to the arguments of a save of the run as it is. The caller releases *out, also after an error. */
static ax_status make_saving(const ax_train_run *run, ax_train_saving *out)
{
    const ax_config *c = run->config;
    if (ax_train_first(run))
        AX_TRY(collect_files(run, &out->written, &out->files, &out->state));
    out->args = (ax_ckpt_save_args){.run_dir = c->run.dir,
                                    .step = run->state.step,
                                    .params = ax_engine_params(run->state.engine),
                                    .base = run->inputs.base[0] ? run->inputs.base : NULL,
                                    .dtype = ax_config_dtype(c->run.save_dtype),
                                    .moment_names = run->plan.options.optim->moment_names,
                                    .files = out->files,
                                    .n_files = out->written.n + run->beside.n,
                                    .state = out->state,
                                    .keep_latest = c->run.keep_latest};
    return AX_OK;
}

static void saving_fini(ax_train_saving *s)
{
    ax_train_files_fini(&s->written);
    free(s->files);
    free(s->state);
}

ax_status ax_train_measure_checkpoint(const ax_train_run *run, ax_ckpt_size *out)
{
    ax_train_saving s = {0};
    ax_status status = make_saving(run, &s);
    if (status == AX_OK)
        status = ax_ckpt_measure(&s.args, out);
    saving_fini(&s);
    return status;
}

static ax_status save(const ax_train_run *run)
{
    const ax_config *c = run->config;
    ax_train_saving s = {0};
    double start = ax_now();
    ax_status status = ax_comm_agree(run->world, make_saving(run, &s));
    if (status == AX_OK)
        status = ax_ckpt_save(&s.args);
    saving_fini(&s);
    AX_TRY(status);
    char took[32];
    ax_report_break_line(run);
    ax_log(AX_LOG_INFO, "saved %s/ckpt/step-%lld in %s", c->run.dir, (long long)run->state.step,
           ax_format_seconds(ax_now() - start, took));
    return AX_OK;
}

/* Saves a checkpoint with the watchdog's normal timeout, because ranks may take long to answer while they
 * save. A signal may have shortened this timeout to about 2 s (ax_comm_hurry). */
ax_status ax_train_save(const ax_train_run *run)
{
    ax_signals_saving(true);
    ax_comm_set_timeout(run->world, run->config->watchdog.timeout);
    ax_status status = save(run);
    ax_signals_saving(false);
    return status;
}

/* ---- resuming ------------------------------------------------------------------------------------ */

ax_status ax_train_count_checkpoints(const char *run_dir, int *n)
{
    ax_ckpt_list *list;
    AX_TRY(ax_ckpt_list_create(run_dir, false, &list));
    *n = list->n;
    ax_ckpt_list_destroy(&list);
    return AX_OK;
}

/* Returns true if `path` is run.dir or lies below run.dir. */
static bool inside_run(const char *run_dir, const char *path)
{
    char *a = realpath(run_dir, NULL), *b = realpath(path, NULL);
    size_t n = a ? strlen(a) : 0;
    bool inside = a && b && !strncmp(a, b, n) && (b[n] == '/' || !b[n]);
    free(a);
    free(b);
    return inside;
}

/* Finds the checkpoint to start from; called on rank 0. A path in train.resume starts a new run from that
 * checkpoint, with one exception: if run.dir already has checkpoints and the path lies outside run.dir, the
 * run continues from its own newest checkpoint. So the same command can be repeated. A path inside run.dir
 * lets the run go back to that checkpoint. */
static ax_status find_resume(const ax_train_run *run, ax_train_resume *resume)
{
    const ax_config *c = run->config;
    const char *wanted = c->train.resume;
    int own;
    AX_TRY(ax_ckpt_clean(c->run.dir));
    AX_TRY(ax_train_count_checkpoints(c->run.dir, &own));
    bool named = strcmp(wanted, "auto") != 0 && strcmp(wanted, "none") != 0;
    AX_CHECK(strcmp(wanted, "none") != 0 || !own, AX_ERR_USAGE,
             "run.dir %s already holds %d checkpoint%s: continue the run with train.resume=auto, or choose "
             "another run.dir",
             c->run.dir, own, own == 1 ? "" : "s");
    if (named && own && !inside_run(c->run.dir, wanted)) {
        ax_log(AX_LOG_INFO, "run.dir has its own checkpoints: the run continues from these, not from %s",
               wanted);
        named = false;
    }
    resume->new_run = named;
    return ax_ckpt_find_resume(c->run.dir, named ? wanted : own ? "auto" : "none", &resume->dir);
}

/* Reads the state of the checkpoint from which the run starts. */
static ax_status read_state(const char *dir, json_t **state)
{
    char *text;
    AX_TRY(ax_ckpt_read_state(dir, &text));
    ax_status status = ax_json_parse("training/state.json", text, strlen(text), 0, state);
    free(text);
    if (status != AX_OK)
        ax_error_context("%s", dir);
    return status;
}

bool ax_train_can_frame(const ax_train_run *run)
{
    const ax_tokenizer *tok = run->inputs.tokenizer;
    return tok && ax_tokenizer_before(tok)->size + ax_tokenizer_after(tok)->size;
}

/* Lets a resumed run read the same tokens as before: sets data.bos to the value that it had, unless the user
 * gives one. Earlier versions, whose states have no such value, put no special tokens around texts. */
static ax_status resume_bos(const ax_train_run *run, const ax_train_resume *resume)
{
    const ax_config *c = run->config;
    bool was = json_is_true(json_object_get(json_object_get(resume->state, "settings"), "data.bos"));
    if (!ax_train_can_frame(run) || was == c->data.bos || ax_option_given(c->set, "data.bos"))
        return AX_OK;
    ax_log(AX_LOG_INFO, "data.bos is %s, as it was when this run began", was ? "true" : "false");
    return ax_option_assign(c->set, "data.bos", was ? "true" : "false", resume->dir);
}

/* Lets a resumed run cut its data into rows of the same length as before, unless the user gives a length. */
static void resume_length(const ax_train_run *run, const ax_train_resume *resume)
{
    int64_t was = json_integer_value(json_object_get(json_object_get(resume->state, "run"), "model.seq_len"));
    if (!run->config->model.seq_len && was > 0 && was <= ax_model_config_positions(&run->inputs.model))
        run->config->model.seq_len = was;
}

/* Lets rank 0 remove incomplete checkpoints and find the checkpoint to start from, then tells the other
 * ranks. All ranks read the state of that checkpoint. */
ax_status ax_train_find_resume(const ax_train_run *run, ax_train_resume *resume)
{
    AX_TRY(ax_comm_agree(run->world, ax_train_first(run) ? find_resume(run, resume) : AX_OK));
    AX_TRY(ax_comm_share_text(run->world, 0, &resume->dir));
    int64_t new_run = resume->new_run;
    AX_TRY(ax_train_max(run, &new_run, 1));
    resume->new_run = new_run;
    if (!resume->dir)
        return AX_OK;
    AX_TRY(read_state(resume->dir, &resume->state));
    if (resume->new_run)
        return AX_OK;
    resume_length(run, resume);
    return resume_bos(run, resume);
}

/* Sets *out to the loss scale in the saved state. Leaves *out unchanged if this run or the run of the
 * checkpoint does not use fp16. */
static ax_status read_loss_scale(const ax_train_run *run, const json_t *state, ax_loss_scale *out)
{
    const json_t *saved = json_object_get(state, "loss_scale");
    if (!saved || run->config->train.precision != AX_CONFIG_FP16)
        return AX_OK;
    *out = (ax_loss_scale){.scale = json_number_value(json_object_get(saved, "scale")),
                           .good_steps = json_integer_value(json_object_get(saved, "good_steps")),
                           .skipped_steps = json_integer_value(json_object_get(saved, "skipped_steps"))};
    int exponent;
    AX_CHECK(out->scale >= AX_LOSS_SCALE_LEAST && out->scale <= AX_LOSS_SCALE_MOST &&
                 frexp(out->scale, &exponent) == 0.5,
             AX_ERR_DATA,
             "%s: training/state.json has a loss scale of %g, which is not a power of two in [%g, %g]: the "
             "file is damaged; set "
             "train.resume to another checkpoint",
             run->resume.dir, out->scale, AX_LOSS_SCALE_LEAST, AX_LOSS_SCALE_MOST);
    return AX_OK;
}

/* Reads from the saved state the number of steps and tokens, and the number of samples read of each source.
 * For a new run with other data leaves out->read unchanged: the run starts at the beginning of its data. */
static ax_status restore_position(const ax_train_run *run, const json_t *state, ax_train_position *out)
{
    const json_t *sampler = json_object_get(state, "sampler");
    out->step = json_integer_value(json_object_get(state, "step"));
    out->tokens = json_integer_value(json_object_get(state, "tokens"));
    out->pending.eval =
        run->inputs.valid.n && !run->resume.new_run && json_is_true(json_object_get(state, "evaluate"));
    out->pending.recall =
        run->inputs.recall.n && !run->resume.new_run && json_is_true(json_object_get(state, "recall"));
    if (run->resume.new_run && !ax_train_same_samples(run, state)) {
        if (ax_train_first(run))
            ax_log(AX_LOG_INFO, "data.train has other samples than the checkpoint's run: it is read from its "
                                "beginning");
        return AX_OK;
    }
    AX_CHECK(json_is_array(sampler) && (int)json_array_size(sampler) == run->inputs.train.n, AX_ERR_DATA,
             "%s: training/state.json does not have a read position for each of the %d data sources: the "
             "file is damaged; set "
             "train.resume to another checkpoint",
             run->resume.dir, run->inputs.train.n);
    for (int i = 0; i < run->inputs.train.n; i++) {
        out->read[i] = json_integer_value(json_array_get(sampler, (size_t)i));
        AX_CHECK(out->read[i] >= 0 && out->read[i] <= INT64_MAX / 2 / run->inputs.train.n, AX_ERR_DATA,
                 "%s: training/state.json says that %lld samples of %s were read, but this number must be "
                 "from 0 to %lld: the file is damaged; set "
                 "train.resume to another checkpoint",
                 run->resume.dir, (long long)out->read[i], run->inputs.train.path[i],
                 (long long)(INT64_MAX / 2 / run->inputs.train.n));
    }
    return AX_OK;
}

ax_status ax_train_restore_position(const ax_train_run *run, ax_train_resume *resume,
                                    ax_train_position *position)
{
    if (!run->resume.dir)
        return AX_OK;
    AX_TRY(ax_train_check_same(run, resume->state));
    AX_TRY(restore_position(run, resume->state, position));
    return read_loss_scale(run, resume->state, &resume->scale);
}

static ax_status load_checkpoint(const ax_train_run *run)
{
    ax_ckpt_rules rules = ax_model_ckpt_rules(&run->inputs.model);
    rules.frozen = false; /* a checkpoint of an adapter does not hold the frozen parameters */
    AX_TRY(ax_ckpt_load(ax_engine_params(run->state.engine), run->resume.dir,
                        run->plan.options.optim->moment_names, &rules));
    AX_TRY(ax_param_set_refresh(ax_engine_params(run->state.engine)));
    if (run->resume.scale.scale > 0)
        *ax_engine_loss_scale(run->state.engine) = run->resume.scale;
    ax_log(AX_LOG_INFO, "resuming from %s after step %lld", run->resume.dir, (long long)run->state.step);
    return AX_OK;
}

ax_status ax_train_init_weights(const ax_train_run *run, ax_engine *engine)
{
    if (!run->config->model.from)
        return ax_param_set_init(ax_engine_params(engine));
    if (ax_model_config_is_adapted(&run->inputs.model))
        AX_TRY(ax_param_set_init_trained(ax_engine_params(engine)));
    /* A checkpoint from which the run resumes has its own factors. */
    const ax_pretrained from = {.dir = run->inputs.model_dir,
                                .config = run->inputs.model,
                                .weights = run->inputs.model_weights,
                                .adapter = run->resume.dir ? NULL : run->inputs.adapter_weights};
    return ax_pretrained_load(&from, ax_engine_params(engine));
}

ax_status ax_train_start_weights(const ax_train_run *run)
{
    /* The checkpoint of a LoRA adapter lacks the weights of the base model. */
    if (!run->resume.dir || ax_model_config_is_adapted(&run->inputs.model))
        AX_TRY(ax_train_init_weights(run, run->state.engine));
    return run->resume.dir ? load_checkpoint(run) : AX_OK;
}

/* Lets rank 0 alone take over the checkpoint's plans, before the other ranks read those of run.dir. So all
 * ranks have the same plans, and messages about the checkpoint's plans come once. */
ax_status ax_train_keep_plans(const ax_train_run *run, bool *kept)
{
    ax_device *dev = run->state.ctx->dev;
    const char *dir = run->config->run.dir;
    char *from = NULL;
    ax_status status = AX_OK;
    if (ax_train_first(run) && run->resume.dir)
        status = ax_path_join(run->resume.dir, "training", &from);
    if (ax_train_first(run) && status == AX_OK)
        status = ax_device_keep_plans(dev, dir, from, kept);
    free(from);
    AX_TRY(ax_comm_agree(run->world, status));
    return ax_train_first(run) ? AX_OK : ax_device_keep_plans(dev, dir, NULL, kept);
}

void ax_resume_fini(ax_train_resume *resume)
{
    free(resume->dir);
    json_decref(resume->state);
}
