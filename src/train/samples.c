/* The samples (rows) of a run: what a sample is, and how the sources of data.train share the samples of all
 * steps. */
#include "train/train.h"

#include <math.h>
#include <stdio.h>

/* ---- what a sample is ---------------------------------------------------------------------------- */

/* Logs for each source that the run, which an earlier version began, leaves out its last tokens. */
static void log_full_rows(const ax_train_run *run)
{
    const ax_row_shape shape = ax_train_trained_shape(run);
    for (int i = 0; i < run->inputs.train.n && ax_train_first(run); i++) {
        const ax_data *data = run->inputs.train.data[i];
        const int64_t left = (ax_data_describe(data)->tokens - 1) % shape.seq_len;
        if (left > 0 && !ax_data_is_packed(data, &shape))
            ax_log(
                AX_LOG_INFO,
                "%s: its last %lld tokens are in no sample, because the run began with a version that left "
                "out what does not fill one",
                run->inputs.train.path[i], (long long)left);
    }
}

/* Lets the run keep the packing of the checkpoint's run, unless the user gave another: earlier versions had
 * another default. */
static ax_status keep_packing(const ax_train_run *run)
{
    ax_config *c = run->config;
    const ax_data_packing saved = ax_train_saved_packing(run->resume.state);
    if (c->data.pack != AX_PACK_AUTO || saved == ax_train_packing(run))
        return AX_OK;
    if (ax_train_first(run))
        ax_log(AX_LOG_INFO, "data.pack is %s, as in the run of the checkpoint, which has the same data",
               saved ? "documents" : "stream");
    return ax_option_assign(c->set, "data.pack", saved ? "documents" : "stream", "the checkpoint");
}

ax_status ax_train_set_shape(const ax_train_run *run, ax_train_inputs *inputs)
{
    const ax_config *c = run->config;
    inputs->shape = (ax_row_shape){.seq_len = c->model.seq_len,
                                   .mask_documents = c->data.mask_documents,
                                   .answers = c->data.loss != AX_CONFIG_ALL};
    if (run->resume.state)
        ax_train_convert_state(run, run->resume.state);
    if (run->resume.state && ax_train_same_sources(run, run->resume.state)) {
        AX_TRY(keep_packing(run));
        inputs->full_rows = ax_train_saved_full_rows(run->resume.state);
    }
    inputs->shape.pack = (ax_data_packing)c->data.pack;
    if (inputs->full_rows)
        log_full_rows(run);
    return AX_OK;
}

ax_row_shape ax_train_trained_shape(const ax_train_run *run)
{
    const ax_config *c = run->config;
    ax_row_shape shape = run->inputs.shape;
    shape.full_rows = run->inputs.full_rows;
    shape.longer = (ax_data_long)c->data.longer;
    shape.goldfish = (ax_goldfish){.k = c->data.goldfish.k,
                                   .window = c->data.goldfish.window,
                                   .kind = (ax_goldfish_kind)c->data.goldfish.kind};
    return shape;
}

/* ---- how the sources share the samples ----------------------------------------------------------- */

/* How the sources of data.train share the samples of a run, from its first step to its last. */
typedef struct sharing {
    const ax_train_run *run;
    int64_t step;   /* steps that are done */
    int64_t before; /* samples read in the steps that are done */
    int64_t all;    /* samples of the whole run: `before`, plus train.global_batch for each further step */
    int64_t mixed;  /* samples read so far from sources that have no epochs and are mixed by weight */
    int by_weight;  /* number of sources without epochs */
    double epochs;  /* number of samples in all epochs of the sources that have epochs */
    double weights; /* sum of the weights of the sources without epochs */
} sharing;

static int64_t samples_of(const ax_train_run *run, int source)
{
    const ax_row_shape shape = ax_train_trained_shape(run);
    return ax_data_rows(run->inputs.train.data[source], &shape);
}

/* Returns the weight by which a source is mixed: the one given, or, if the user gave no weights, its number
 * of samples. */
static double weight_of(const ax_train_run *run, int source)
{
    const ax_sources *train = &run->inputs.train;
    return train->weighted ? train->weight[source] : (double)samples_of(run, source);
}

static sharing share_samples(const ax_train_run *run, int64_t step, const int64_t *read)
{
    const ax_config *c = run->config;
    const ax_sources *train = &run->inputs.train;
    sharing s = {.run = run, .step = step};
    for (int i = 0; i < train->n; i++) {
        s.before += read[i];
        if (train->epochs[i]) {
            s.epochs += (double)train->epochs[i] * (double)samples_of(run, i);
            continue;
        }
        s.mixed += read[i];
        s.by_weight++;
        s.weights += weight_of(run, i);
    }
    s.all = s.before + ax_max(c->train.steps - step, 0) * c->train.global_batch;
    return s;
}

/* Prints how many samples a run has, and how this number is computed. */
static const char *print_samples(const sharing *s, char out[160])
{
    if (!s->step)
        snprintf(out, 160, "%lld (train.steps x train.global_batch)", (long long)s->all);
    else if (!s->before)
        snprintf(out, 160, "%lld (train.global_batch in each step after step %lld)", (long long)s->all,
                 (long long)s->step);
    else
        snprintf(out, 160, "%lld (%lld until step %lld, and then train.global_batch in each step)",
                 (long long)s->all, (long long)s->before, (long long)s->step);
    return out;
}

/* Returns the value of train.steps that the epochs need. If there are also sources by weight (without
 * epochs), at least one sample is left for these; otherwise the last step may have fewer samples than a
 * batch. */
static double steps_needed(const sharing *s)
{
    const double batch = (double)s->run->config->train.global_batch,
                 samples = s->epochs + (s->by_weight ? (double)ax_max(s->mixed, 1) : 0) - (double)s->before;
    return (double)s->step + ceil(fmax(samples, 0) / batch);
}

/* Prints, for an error message, the advice to set train.steps to the number of steps that the epochs need. */
static const char *print_steps(const sharing *s, char out[256])
{
    snprintf(out, 256, "set train.steps to %s%.0f%s", s->by_weight ? "at least " : "", steps_needed(s),
             s->by_weight ? "" : " or leave it out, or add a source by weight, which fills the rest");
    return out;
}

/* Logs the value of train.steps that follows from the epochs, and how it is computed. */
static void log_steps(const sharing *s)
{
    const ax_sources *train = &s->run->inputs.train;
    char samples[96], read[96] = "";
    if (train->n == 1)
        snprintf(samples, sizeof samples, "%lld epoch%s of %lld sample%s", (long long)train->epochs[0],
                 train->epochs[0] == 1 ? "" : "s", (long long)samples_of(s->run, 0),
                 samples_of(s->run, 0) == 1 ? "" : "s");
    else
        snprintf(samples, sizeof samples, "%.0f samples in the epochs of %d sources", s->epochs, train->n);
    if (s->step && !s->before)
        snprintf(read, sizeof read, " after step %lld", (long long)s->step);
    else if (s->step)
        snprintf(read, sizeof read, "; %lld samples were read until step %lld", (long long)s->before,
                 (long long)s->step);
    ax_log(AX_LOG_INFO, "train.steps = %lld: %s in batches of %lld%s", (long long)s->run->config->train.steps,
           samples, (long long)s->run->config->train.global_batch, read);
}

/* Fails if more of a source was read already than its epochs have: the user has lowered their number. */
static ax_status check_read(const ax_train_run *run, int64_t step, const int64_t *read)
{
    const ax_sources *train = &run->inputs.train;
    for (int i = 0; i < train->n; i++) {
        const int64_t rows = samples_of(run, i), epochs = train->epochs[i];
        if (epochs && read[i] > epochs * rows)
            ax_option_error(
                run->config->set, "data.train",
                "%s has epochs: %lld, but after step %lld it was read %.2f times already (%lld samples, "
                "%lld in each epoch): set epochs to at least %lld, or choose another "
                "run.dir",
                train->path[i], (long long)epochs, (long long)step, (double)read[i] / (double)rows,
                (long long)read[i], (long long)rows, (long long)ax_ceil_div(read[i], rows));
    }
    return ax_option_finish(run->config->set);
}

ax_status ax_train_derive_steps(const ax_train_run *run, int64_t step, const int64_t *read)
{
    ax_config *c = run->config;
    AX_TRY(check_read(run, step, read));
    const sharing s = share_samples(run, step, read);
    char steps[32];
    if (s.by_weight || s.epochs <= 0 || ax_config_given(c, "train.steps"))
        return AX_OK;
    snprintf(steps, sizeof steps, "%.0f", fmax(steps_needed(&s), 1));
    if (ax_option_assign(c->set, "train.steps", steps, "the epochs of data.train") != AX_OK)
        return ax_fail(AX_ERR_USAGE,
                       "the epochs of data.train need too many steps: train.steps %s; give fewer epochs, or "
                       "raise train.global_batch",
                       ax_error_message());
    if (ax_train_first(run))
        log_steps(&s);
    return AX_OK;
}

/* Divides the samples of the run, except those already read from sources by weight (without epochs), among
 * the sources with epochs, in the order of data.train. Records an error for each source whose epochs do not
 * fit into the samples that the sources before it leave. */
static void check_parts(const sharing *s)
{
    const ax_sources *train = &s->run->inputs.train;
    int64_t left = s->all - s->mixed;
    char samples[160], steps[256], most_text[64];
    for (int i = 0; i < train->n; i++) {
        int64_t rows = samples_of(s->run, i), epochs = train->epochs[i], most = left / rows;
        snprintf(most_text, sizeof most_text, "at most %lld %s", (long long)most, most == 1 ? "fits" : "fit");
        if (epochs > most)
            ax_option_error(s->run->config->set, "data.train",
                            "%lld epoch%s of %s, which has %lld sample%s, do%s not fit into the samples of "
                            "the run, %s%s: %s; or %s",
                            (long long)epochs, epochs == 1 ? "" : "s", train->path[i], (long long)rows,
                            rows == 1 ? "" : "s", epochs == 1 ? "es" : "", print_samples(s, samples),
                            left < s->all ? ", beside those of the other sources" : "",
                            most ? most_text : "no whole epoch fits", print_steps(s, steps));
        left -= ax_min(epochs, most) * rows;
    }
}

/* Records an error in three cases: all sources have epochs, and their samples need more or fewer steps than
 * train.steps (the last step may have fewer samples than a batch); the epochs, with the samples already read
 * from the other sources, need more samples than the run has; the epochs take all samples of the run, so that
 * a source by weight (without epochs) would never be read. */
static void check_epochs(const sharing *s)
{
    const ax_sources *train = &s->run->inputs.train;
    ax_option_set *set = s->run->config->set;
    char samples[160], steps[256];
    for (int i = 0; i < train->n; i++)
        if (!samples_of(s->run, i)) /* an empty source: ax_sampler_create reports the error */
            return;
    if (s->by_weight == train->n)
        return;
    if (!s->by_weight && steps_needed(s) != (double)ax_max(s->run->config->train.steps, s->step))
        ax_option_error(set, "data.train",
                        "all sources have epochs, %.0f samples together, but the run has %s: %s", s->epochs,
                        print_samples(s, samples), print_steps(s, steps));
    else if (s->by_weight && s->epochs + (double)s->mixed > (double)s->all)
        check_parts(s);
    for (int i = 0; i < train->n && s->by_weight && !s->mixed && s->epochs == (double)s->all; i++)
        if (!train->epochs[i])
            ax_option_error(
                set, "data.train",
                "nothing of %s would be read: the epochs of the other sources fill the samples of the "
                "run, %s: %s, or leave this source out",
                train->path[i], print_samples(s, samples), print_steps(s, steps));
}

/* Logs, for each source, how much of it the run reads. */
static void log_epochs(const sharing *s)
{
    const ax_sources *train = &s->run->inputs.train;
    for (int i = 0; i < train->n && ax_train_first(s->run); i++) {
        double rows = (double)samples_of(s->run, i), epochs = (double)train->epochs[i];
        if (!train->epochs[i])
            epochs = ((double)s->all - s->epochs) * weight_of(s->run, i) / s->weights / rows;
        ax_log(AX_LOG_INFO, "%s: %.0f sample%s, %.1f epochs in this run, %.1f %% of it", train->path[i], rows,
               rows == 1 ? "" : "s", epochs, 100 * epochs * rows / (double)ax_max(s->all, 1));
    }
}

ax_status ax_train_create_sampler(const ax_train_run *run, int64_t step, const int64_t *read,
                                  ax_sampler **sampler)
{
    const ax_config *c = run->config;
    const ax_sources *train = &run->inputs.train;
    sharing s = share_samples(run, step, read);
    *sampler = NULL;
    check_epochs(&s);
    AX_TRY(ax_option_finish(c->set));
    if (!s.by_weight)
        s.all = (int64_t)s.epochs;
    ax_sampler_options options = {.shape = ax_train_trained_shape(run),
                                  .batch = c->train.global_batch,
                                  .order = c->data.order == AX_CONFIG_SEQUENTIAL ? AX_ORDER_SEQUENTIAL
                                                                                 : AX_ORDER_SHUFFLED,
                                  .seed = ax_rng_key((uint64_t)c->train.seed, "data order", 0),
                                  .weights = train->weighted ? train->weight : NULL,
                                  .epochs = train->epochs,
                                  .samples = s.all};
    AX_TRY(ax_sampler_create(train->data, train->n, &options, sampler));
    log_epochs(&s);
    ax_status status = ax_sampler_restore(*sampler, read);
    if (status != AX_OK)
        ax_sampler_destroy(sampler);
    return status;
}
