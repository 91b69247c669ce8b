/* Chooses which sample (row) of which source (one token file, or several read as one) becomes row r of the
 * next batch. Read axonn/data.h first. Sample number g (from 0, over all sources) comes from the source i
 * that maximises w_i max(g, 1) - count_i, where w_i is the source's weight and count_i the number of samples
 * taken from it so far (the rule by which Megatron-LM blends data sets). A source with a number of epochs
 * gets evenly spaced samples of the run instead, and g counts only the samples of the sources with weights.
 * If the run has such a source and its samples do not fill the last batch, the rest of the batch is padding.
 * In each epoch, the samples of a source are taken in the order of a pseudo-random permutation; with
 * AX_ORDER_SEQUENTIAL, in the order of the file. */
#include "source.h"

#include <math.h>
#include <stdlib.h>

typedef struct source {
    ax_data *data;
    double weight;          /* normalized: all weights sum to 1; 0: the source has epochs instead */
    int64_t samples, count; /* number of samples in an epoch; number of samples taken so far */
    int64_t share; /* number of samples that the source gets in the whole run, if it has epochs; else 0 */
    uint64_t key;  /* random key of the source's order; each epoch derives a key of its own from it */
} source;

/* The sample of a row; source is -1 if the row is padding. */
typedef struct pick {
    int source;
    int64_t sample;
} pick;

struct ax_sampler {
    ax_row_shape shape;
    ax_data_order order;
    int n;
    int64_t batch, total; /* batch: rows of a batch; total: samples taken so far from all sources */
    int64_t run;          /* samples of the whole run; 0: no source has epochs */
    int64_t rest, mixed;  /* rest: samples that the sources with weights get in the whole run, all together;
                             mixed: samples taken so far from these sources */
    int sharers; /* number of sources with epochs; plus 1 if samples are left for the sources with weights */
    int64_t dropped; /* targets of the current batch that the goldfish loss dropped */
    source *sources;
    pick *picks; /* samples of the current batch */
};

static ax_status set_weights(ax_sampler *s, const double *weights)
{
    double sum = 0;
    for (int i = 0; i < s->n; i++) {
        if (s->sources[i].share)
            continue;
        double w = weights ? weights[i] : (double)s->sources[i].samples;
        AX_CHECK(w > 0 && isfinite(w), AX_ERR_USAGE,
                 "the weight of %s is %g; weights must be finite and greater than 0",
                 ax_data_path(s->sources[i].data), w);
        s->sources[i].weight = w;
        sum += w;
    }
    for (int i = 0; i < s->n && sum > 0; i++)
        s->sources[i].weight /= sum;
    return AX_OK;
}

/* Gives each source with epochs its number of samples of the run (`share`). The samples that are left go to
 * the sources with weights (`rest`). */
static ax_status set_epochs(ax_sampler *s, const ax_sampler_options *options)
{
    int64_t left = options->samples;
    int with = 0;
    for (int i = 0; i < s->n && options->epochs; i++) {
        int64_t epochs = options->epochs[i], rows = s->sources[i].samples;
        AX_CHECK(epochs >= 0 && epochs <= left / rows, AX_ERR_USAGE,
                 "%lld epochs of %s do not fit into the run: %lld samples of the run are left for them, "
                 "enough for %lld epochs of %lld samples; set fewer epochs or more steps",
                 (long long)epochs, ax_data_path(s->sources[i].data), (long long)left,
                 (long long)(left / rows), (long long)rows);
        s->sources[i].share = epochs * rows;
        left -= epochs * rows;
        with += epochs > 0;
    }
    AX_CHECK(!left || with < s->n, AX_ERR_USAGE,
             "all sources have epochs, with %lld samples together, but the run has %lld: give a source a "
             "weight, so that it fills the rest",
             (long long)(options->samples - left), (long long)options->samples);
    s->run = with ? options->samples : 0;
    s->rest = left;
    s->sharers = with + (left > 0);
    return AX_OK;
}

/* Fails if a source has no row, with the reason. */
static ax_status check_rows_exist(const ax_data *data, const ax_row_shape *shape)
{
    const char *path = ax_data_path(data);
    const long long tokens = ax_data_describe(data)->tokens, T = shape->seq_len;
    if (ax_data_rows(data, shape))
        return AX_OK;
    static const char *const which[] = {[AX_LONG_SPLIT] = "",
                                        [AX_LONG_TRUNCATE] =
                                            " with a target in its first row (data.long: truncate)",
                                        [AX_LONG_DROP] = " that fits into a row (data.long: drop)"};
    if (ax_data_is_packed(data, shape))
        return ax_fail(AX_ERR_DATA, "%s has no document of two tokens or more%s: there is nothing to learn",
                       path, which[shape->longer]);
    if (shape->full_rows)
        return ax_fail(AX_ERR_DATA,
                       "%s has %lld tokens, too few for one row of %lld and the token after it: give more "
                       "text or set model.seq_len to at most %lld",
                       path, tokens, T, tokens > 1 ? tokens - 1 : 0);
    return ax_fail(AX_ERR_DATA, "%s has fewer than two tokens: there is nothing to learn", path);
}

static ax_status set_sources(ax_sampler *s, ax_data *const *sources, uint64_t seed)
{
    AX_TRY(ax_calloc((size_t)s->n, sizeof *s->sources, &s->sources));
    AX_TRY(ax_calloc((size_t)s->batch, sizeof *s->picks, &s->picks));
    for (int i = 0; i < s->n; i++) {
        source *from = &s->sources[i];
        AX_TRY(ax_data_check_shape(sources[i], &s->shape));
        from->data = sources[i];
        from->samples = ax_data_rows(sources[i], &s->shape);
        from->key = ax_rng_key(seed, "data/order", (uint64_t)i);
        AX_TRY(check_rows_exist(sources[i], &s->shape));
    }
    return AX_OK;
}

ax_status ax_sampler_create(ax_data *const *sources, int n, const ax_sampler_options *options,
                            ax_sampler **out)
{
    *out = NULL;
    AX_CHECK(n > 0 && options->batch > 0 && options->shape.seq_len > 0, AX_ERR_USAGE,
             "ax_sampler_create: there must be at least one source (got %d), one row in a batch (%lld) and "
             "one token in a row (%lld)",
             n, (long long)options->batch, (long long)options->shape.seq_len);
    ax_sampler *s;
    AX_TRY(ax_calloc(1, sizeof *s, &s));
    *s = (ax_sampler){.shape = options->shape, .order = options->order, .n = n, .batch = options->batch};
    ax_status status = set_sources(s, sources, options->seed);
    if (status == AX_OK)
        status = set_epochs(s, options);
    if (status == AX_OK)
        status = set_weights(s, options->weights);
    if (status != AX_OK)
        ax_sampler_destroy(&s);
    *out = s;
    return status;
}

void ax_sampler_destroy(ax_sampler **sampler)
{
    if (!*sampler)
        return;
    free((*sampler)->sources);
    free((*sampler)->picks);
    free(*sampler);
    *sampler = NULL;
}

void ax_sampler_state(const ax_sampler *s, int64_t *per_source)
{
    for (int i = 0; i < s->n; i++)
        per_source[i] = s->sources[i].count;
}

ax_status ax_sampler_restore(ax_sampler *s, const int64_t *per_source)
{
    int64_t total = 0, mixed = 0;
    for (int i = 0; i < s->n; i++) {
        const source *from = &s->sources[i];
        AX_CHECK(per_source[i] >= 0, AX_ERR_DATA,
                 "the checkpoint says that %lld samples of %s were read, but the number must be at least 0: "
                 "the checkpoint is damaged, so resume from another one",
                 (long long)per_source[i], ax_data_path(from->data));
        AX_CHECK(!from->share || per_source[i] <= from->share, AX_ERR_USAGE,
                 "%lld samples of %s were read already, more than its epochs have (%lld): give that source "
                 "more epochs",
                 (long long)per_source[i], ax_data_path(from->data), (long long)from->share);
        total += per_source[i];
        mixed += from->share ? 0 : per_source[i];
    }
    AX_CHECK(!s->run || mixed <= s->rest, AX_ERR_USAGE,
             "the epochs do not fit into what is left of the run: %lld of its %lld samples were read, %lld "
             "of them from sources with weights, for which the whole run has %lld; more steps are needed",
             (long long)total, (long long)s->run, (long long)mixed, (long long)s->rest);
    s->total = total;
    s->mixed = mixed;
    for (int i = 0; i < s->n; i++)
        s->sources[i].count = per_source[i];
    return AX_OK;
}

static int choose_by_weight(const ax_sampler *s)
{
    int best = 0;
    double most = -INFINITY, drawn = (double)ax_max(s->mixed, 1);
    for (int i = 0; i < s->n; i++) {
        double lack = s->sources[i].weight * drawn - (double)s->sources[i].count;
        if (lack > most && !s->sources[i].share) {
            most = lack;
            best = i;
        }
    }
    return best;
}

/* A range of sample numbers of the run, `first` to `last`: a source must get its next sample within this
 * range to stay evenly spread. */
typedef struct span {
    int64_t first, last;
} span;

/* Returns the span (range of sample numbers of the run) of sample number `count` of a source that gets
 * `share` samples of the run. If each sample of the source is within its span, the source has, after sample g
 * of the run, at most d = 1 - 1/N samples more or fewer than share * g / run. N = 2n - 2 for n sources (1 if
 * n is 1), where all sources with weights count as one. Tijdeman (1980) proved that each sample is within its
 * span if the source chosen is always the one whose span ends first among those whose span has begun. */
static span span_of(const ax_sampler *s, int64_t count, int64_t share)
{
    const int64_t N = ax_max(2 * s->sharers - 2, 1);
    const __int128 unit = (__int128)N * share, first = ((__int128)N * count + 1) * s->run,
                   last = ((__int128)N * count + N - 1) * s->run;
    return (span){(int64_t)((first + unit - 1) / unit) - 1, (int64_t)(last / unit)};
}

static int choose_source(const ax_sampler *s)
{
    int best = -1;
    span most = {INT64_MAX, INT64_MAX};
    for (int i = 0; i <= s->n && s->run; i++) { /* i = n stands for all sources with weights */
        int64_t count = i < s->n ? s->sources[i].count : s->mixed,
                share = i < s->n ? s->sources[i].share : s->rest;
        if (count >= share)
            continue;
        span here = span_of(s, count, share);
        here.first = ax_max(here.first, s->total); /* among spans that have begun, only `last` is compared */
        if (here.first < most.first || (here.first == most.first && here.last < most.last)) {
            most = here;
            best = i;
        }
    }
    return best < 0 || best == s->n ? choose_by_weight(s) : best;
}

static int64_t ordered_sample(const ax_sampler *s, const source *from)
{
    int64_t epoch = from->count / from->samples, place = from->count % from->samples;
    if (s->order == AX_ORDER_SEQUENTIAL)
        return place;
    uint64_t key = ax_rng_key(from->key, "data/epoch", (uint64_t)epoch);
    return (int64_t)ax_permute(key, (uint64_t)from->samples, (uint64_t)place);
}

/* Returns true if the run has a fixed number of samples (sources with epochs) and all of them are taken. */
static bool is_over(const ax_sampler *s) { return s->run && s->total == s->run; }

/* Chooses the next sample of the run; if none is left, a row of padding (source -1). */
static pick next_pick(ax_sampler *s)
{
    if (is_over(s))
        return (pick){-1, -1};
    int i = choose_source(s);
    const pick p = {i, ordered_sample(s, &s->sources[i])};
    s->mixed += !s->sources[i].share;
    s->sources[i].count++;
    s->total++;
    return p;
}

static ax_status check_rows(const ax_sampler *s, int64_t first, int64_t end)
{
    AX_CHECK(first >= 0 && first <= end && end <= s->batch, AX_ERR_USAGE,
             "rows %lld ... %lld were asked of the sampler, but are not all in its batch of %lld rows",
             (long long)first, (long long)end - 1, (long long)s->batch);
    return AX_OK;
}

/* Prefetches the tokens of rows first ... end-1, so that a cold disk reads them in parallel. */
static void want_rows(const ax_sampler *s, int64_t first, int64_t end)
{
    for (const pick *p = s->picks + first; p < s->picks + end; p++)
        if (p->source >= 0)
            data_want_row(s->sources[p->source].data, &s->shape, p->sample);
}

/* Chooses the samples of rows first ... end-1 and counts their targets. So a rank that reads only some of the
 * rows still knows the number of targets of the whole batch. */
ax_status ax_sampler_next_part(ax_sampler *s, int64_t first, int64_t end, int64_t *targets)
{
    AX_TRY(check_rows(s, first, end));
    AX_CHECK(first || !is_over(s), AX_ERR_USAGE,
             "ax_sampler_next: all %lld samples of the run are read: its epochs are over", (long long)s->run);
    for (int64_t r = first; r < end; r++)
        s->picks[r] = next_pick(s);
    *targets = 0;
    s->dropped = first ? s->dropped : 0;
    if (s->shape.goldfish.k)
        want_rows(s, first, end);
    for (int64_t r = first; r < end; r++) {
        data_targets here;
        const pick *p = &s->picks[r];
        if (p->source < 0)
            break; /* this row is padding, and so are all rows after it */
        AX_TRY(data_row_targets(s->sources[p->source].data, &s->shape, p->sample, &here));
        *targets += here.kept;
        s->dropped += here.dropped;
    }
    return AX_OK;
}

int64_t ax_sampler_dropped(const ax_sampler *s) { return s->dropped; }

ax_status ax_sampler_next(ax_sampler *s, int64_t *targets)
{
    return ax_sampler_next_part(s, 0, s->batch, targets);
}

ax_status ax_sampler_read(const ax_sampler *s, int64_t first, int64_t end, const ax_rows *out)
{
    AX_TRY(check_rows(s, first, end));
    want_rows(s, first, end);
    for (int64_t r = first; r < end; r++) {
        const pick *p = &s->picks[r];
        if (p->source < 0)
            data_empty_row(&s->shape, out, r - first);
        else
            AX_TRY(ax_data_row(s->sources[p->source].data, &s->shape, p->sample, out, r - first, NULL));
    }
    return AX_OK;
}

ax_status ax_sampler_next_batch(ax_sampler *s, const ax_rows *out, int64_t *targets)
{
    AX_TRY(ax_sampler_next(s, targets));
    return ax_sampler_read(s, 0, s->batch, out);
}

void ax_sampler_where(const ax_sampler *s, int64_t row, int *src, int64_t *sample)
{
    *src = s->picks[row].source;
    *sample = s->picks[row].sample;
}
