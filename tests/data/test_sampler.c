/* Order and mixture: epochs are permutations; every sample is a function of (seed, index), whether a run is
 * resumed or a batch is read in parts; a step allocates nothing. */
#include "data_test.h"
#include "support/mallocs.h"

#include <math.h>

/* Makes a source of `samples` samples of T tokens and `rest` further tokens, with a document every 5 tokens.
 */
static ax_data *make_source(scratch *s, const char *name, int64_t samples, int64_t T, int64_t rest)
{
    int64_t n = samples * T + 1 + rest;
    int32_t *tokens = calloc((size_t)n, sizeof *tokens);
    ax_token_writer *w;
    ax_data *data;
    for (int64_t i = 0; i < n; i++)
        tokens[i] = (int32_t)i;
    OK(ax_token_writer_create(in_scratch(s, name), 1 << 20, -1, 0, &w));
    for (int64_t i = 0; i < n; i += 5)
        OK(ax_token_writer_add(w, tokens + i, ax_min(5, n - i), 5));
    OK(ax_token_writer_finish(&w, NULL));
    OK(ax_data_open(in_scratch(s, name), -1, &data));
    free(tokens);
    return data;
}

static ax_sampler *make_sampler(ax_data *const *sources, int n, ax_data_order order, uint64_t seed, int64_t T,
                                int64_t batch, const double *weights)
{
    ax_sampler *sampler;
    OK(ax_sampler_create(sources, n,
                         &(ax_sampler_options){.shape = {.seq_len = T, .mask_documents = true},
                                               .batch = batch,
                                               .order = order,
                                               .seed = seed,
                                               .weights = weights},
                         &sampler));
    return sampler;
}

static void sequential_order(void **state)
{
    scratch *s = *state;
    ax_data *data = make_source(s, "a.tok", 10, 4, 2);
    ax_sampler *sampler = make_sampler(&data, 1, AX_ORDER_SEQUENTIAL, 1, 4, 3, NULL);
    ax_rows out = rows_create(3, 4);
    for (int64_t g = 0; g < 66;) { /* ten full rows, and one of the two tokens that are left */
        int64_t targets, unmasked = 0;
        OK(ax_sampler_next_batch(sampler, &out, &targets));
        for (int64_t r = 0; r < 3; r++, g++) {
            int src;
            int64_t sample;
            ax_sampler_where(sampler, r, &src, &sample);
            assert_int_equal(sample, g % 11);
            assert_int_equal(out.tokens[r * 4], g % 11 * 4);
            assert_int_equal(out.targets[r * 4 + 2], sample == 10 ? -1
                                                     : out.tokens[r * 4 + 2] % 5 == 4
                                                         ? -1
                                                         : out.tokens[r * 4 + 2] + 1);
        }
        for (int i = 0; i < 12; i++)
            unmasked += out.targets[i] >= 0;
        assert_int_equal(targets, unmasked);
    }
    rows_free(&out);
    ax_sampler_destroy(&sampler);
    assert_null(sampler);
    ax_data_close(&data);
}

/* Each epoch visits every sample once; epochs and seeds differ. */
static void epochs_are_permutations(void **state)
{
    scratch *s = *state;
    enum { SAMPLES = 97, EPOCHS = 4 };
    ax_data *data = make_source(s, "a.tok", SAMPLES, 4, 0);
    int64_t order[2][EPOCHS][SAMPLES], targets, same = 0;
    for (int seed = 0; seed < 2; seed++) {
        ax_sampler *sampler = make_sampler(&data, 1, AX_ORDER_SHUFFLED, (uint64_t)seed, 4, 1, NULL);
        for (int e = 0; e < EPOCHS; e++) {
            char seen[SAMPLES] = {0};
            for (int i = 0; i < SAMPLES; i++) {
                int src;
                OK(ax_sampler_next(sampler, &targets));
                ax_sampler_where(sampler, 0, &src, &order[seed][e][i]);
                assert_int_equal(seen[order[seed][e][i]]++, 0);
            }
        }
        ax_sampler_destroy(&sampler);
    }
    for (int i = 0; i < SAMPLES; i++)
        same +=
            (order[0][0][i] == order[0][1][i]) + (order[0][0][i] == order[1][0][i]) + (order[0][0][i] == i);
    assert_true(same < 20); /* three fixed points are expected */
    ax_data_close(&data);
}

/* The mixture follows its weights at every step, by the rule in axonn/data.h. */
static void mixture_follows_weights(void **state)
{
    scratch *s = *state;
    ax_data *data[3] = {make_source(s, "a.tok", 50, 4, 0), make_source(s, "b.tok", 7, 4, 1),
                        make_source(s, "c.tok", 20, 4, 3)};
    const double weights[3] = {5, 3, 2};
    ax_sampler *sampler = make_sampler(data, 3, AX_ORDER_SHUFFLED, 3, 4, 1, weights);
    int64_t count[3] = {0}, targets;
    for (int64_t g = 0; g < 1000; g++) {
        int want = 0, src;
        int64_t sample;
        for (int i = 1; i < 3; i++)
            if (weights[i] / 10 * (double)ax_max(g, 1) - (double)count[i] >
                weights[want] / 10 * (double)ax_max(g, 1) - (double)count[want])
                want = i;
        OK(ax_sampler_next(sampler, &targets));
        ax_sampler_where(sampler, 0, &src, &sample);
        assert_int_equal(src, want);
        count[src]++;
        for (int i = 0; i < 3; i++)
            assert_true((double)count[i] - weights[i] / 10 * (double)(g + 1) < 2 &&
                        weights[i] / 10 * (double)(g + 1) - (double)count[i] < 2);
    }
    ax_sampler_destroy(&sampler);

    /* Without weights all sources complete their epochs at the same step. */
    sampler = make_sampler(data, 3, AX_ORDER_SHUFFLED, 3, 4, 79, NULL);
    OK(ax_sampler_next(sampler, &targets));
    ax_sampler_state(sampler, count);
    assert_true(count[0] == 50 && count[1] == 8 && count[2] == 21);
    ax_sampler_destroy(&sampler);
    for (int i = 0; i < 3; i++)
        ax_data_close(&data[i]);
}

/* A batch chosen in parts equals one chosen at once; a batch that is given up half-way is chosen again. */
static void batches_in_parts(void **state)
{
    scratch *s = *state;
    ax_data *data[2] = {make_source(s, "a.tok", 50, 4, 0), make_source(s, "b.tok", 7, 4, 1)};
    ax_sampler *whole = make_sampler(data, 2, AX_ORDER_SHUFFLED, 3, 4, 11, NULL),
               *parts = make_sampler(data, 2, AX_ORDER_SHUFFLED, 3, 4, 11, NULL);
    for (int batch = 0; batch < 9; batch++) {
        int64_t before[2], want, a, b, sample[2];
        int src[2];
        OK(ax_sampler_next(whole, &want));
        ax_sampler_state(parts, before);
        OK(ax_sampler_next_part(parts, 0, 5, &a));
        OK(ax_sampler_restore(parts, before));
        OK(ax_sampler_next_part(parts, 0, 4, &a));
        OK(ax_sampler_next_part(parts, 4, 11, &b));
        assert_int_equal(a + b, want);
        for (int64_t r = 0; r < 11; r++) {
            ax_sampler_where(whole, r, &src[0], &sample[0]);
            ax_sampler_where(parts, r, &src[1], &sample[1]);
            assert_true(src[0] == src[1] && sample[0] == sample[1]);
        }
        assert_int_equal(ax_sampler_next_part(parts, 4, 12, &a), AX_ERR_USAGE);
    }
    ax_sampler_destroy(&whole);
    ax_sampler_destroy(&parts);
    ax_data_close(&data[0]);
    ax_data_close(&data[1]);
}

static void expect_equal_rows(const ax_rows *a, const ax_rows *b, int64_t a_line, int64_t n, int64_t T)
{
    size_t bytes = (size_t)(n * T) * 4;
    assert_memory_equal(a->tokens + a_line * T, b->tokens, bytes);
    assert_memory_equal(a->targets + a_line * T, b->targets, bytes);
    assert_memory_equal(a->doc_start + a_line * T, b->doc_start, bytes);
    assert_memory_equal(a->position + a_line * T, b->position, bytes);
}

/* Stopping after any number of steps, and reading any part of a batch, changes nothing. */
static void resume_and_parts(void **state)
{
    scratch *s = *state;
    enum { T = 6, B = 5, STEPS = 12 };
    ax_data *data[2] = {make_source(s, "a.tok", 13, T, 0), make_source(s, "b.tok", 4, T, 5)};
    const double weights[2] = {1, 0.7};
    ax_rows whole = rows_create(B, T), part = rows_create(B, T);
    ax_sampler *run = make_sampler(data, 2, AX_ORDER_SHUFFLED, 11, T, B, weights);
    for (int step = 0; step < STEPS; step++) {
        int64_t at[2], after[2], again[2], targets, targets_again;
        ax_sampler_state(run, at);
        OK(ax_sampler_next_batch(run, &whole, &targets));
        ax_sampler_state(run, after);
        ax_sampler *resumed = make_sampler(data, 2, AX_ORDER_SHUFFLED, 11, T, B, weights);
        OK(ax_sampler_restore(resumed, at));
        OK(ax_sampler_next(resumed, &targets_again));
        assert_int_equal(targets, targets_again);
        for (int64_t first = 0; first <= B; first++)
            for (int64_t end = first; end <= B; end++) {
                OK(ax_sampler_read(resumed, first, end, &part));
                expect_equal_rows(&whole, &part, first, end - first, T);
            }
        ax_sampler_state(resumed, again);
        assert_memory_equal(after, again, sizeof again);
        ax_sampler_destroy(&resumed);
    }
    FAILS(AX_ERR_USAGE, "batch of 5", ax_sampler_read(run, 0, B + 1, &part));
    FAILS(AX_ERR_DATA, "says that -1 samples of ", ax_sampler_restore(run, (int64_t[]){1, -1}));
    ax_sampler_destroy(&run);
    rows_free(&whole);
    rows_free(&part);
    ax_data_close(&data[0]);
    ax_data_close(&data[1]);
}

/* ---- epochs -------------------------------------------------------------------------------------- */

enum { MOST = 6 };

typedef struct mix {
    int n;
    ax_data *data[MOST];
    int64_t rows[MOST], epochs[MOST], samples; /* samples: of the whole run */
    double weights[MOST];
} mix;

static ax_sampler *mix_sampler(const mix *m)
{
    ax_sampler *sampler;
    OK(ax_sampler_create(m->data, m->n,
                         &(ax_sampler_options){.shape = {.seq_len = 4, .mask_documents = true},
                                               .batch = 1,
                                               .seed = 5,
                                               .weights = m->weights,
                                               .epochs = m->epochs,
                                               .samples = m->samples},
                         &sampler));
    return sampler;
}

/* Reads a whole run. Each source with epochs stays within 1 - 1/(2n-2) samples of its even share, its rows
 * are read exactly as often as its epochs say; the others follow their weights among themselves. */
static void check_mix(const mix *m)
{
    int64_t count[MOST] = {0}, mixed = 0, rest = m->samples, targets;
    char seen[MOST][100] = {{0}};
    int sharers = 0;
    for (int i = 0; i < m->n; i++) {
        rest -= m->epochs[i] * m->rows[i];
        sharers += m->epochs[i] > 0;
    }
    sharers += rest > 0;
    const double within = sharers > 1 ? 1 - 1 / (2.0 * sharers - 2) + 1e-9 : 1e-9;
    ax_sampler *sampler = mix_sampler(m);
    for (int64_t g = 0; g < m->samples; g++) {
        int src, want = -1;
        int64_t sample;
        double most = -1e9, sum = 0;
        for (int i = 0; i < m->n; i++)
            sum += m->epochs[i] ? 0 : m->weights[i];
        for (int i = 0; i < m->n; i++) {
            double lack = m->weights[i] / sum * (double)ax_max(mixed, 1) - (double)count[i];
            if (!m->epochs[i] && lack > most) {
                most = lack;
                want = i;
            }
        }
        OK(ax_sampler_next(sampler, &targets));
        ax_sampler_where(sampler, 0, &src, &sample);
        count[src]++;
        if (m->epochs[src]) {
            seen[src][sample]++;
        } else {
            mixed++;
            assert_int_equal(src, want);
        }
        for (int i = 0; i < m->n; i++) {
            double even = (double)(m->epochs[i] * m->rows[i]) * (double)(g + 1) / (double)m->samples;
            if (m->epochs[i])
                assert_true(fabs((double)count[i] - even) <= within);
        }
    }
    for (int i = 0; i < m->n; i++)
        for (int64_t r = 0; r < m->rows[i] && m->epochs[i]; r++)
            assert_int_equal(seen[i][r], m->epochs[i]);
    if (sharers > (rest > 0)) /* some source has epochs */
        FAILS(AX_ERR_USAGE, "its epochs are over", ax_sampler_next(sampler, &targets));
    ax_sampler_destroy(&sampler);
}

static double draw(uint64_t *at) { return (double)ax_rng_uniform(77, (*at)++); }

static void epochs_are_spread_evenly(void **state)
{
    scratch *s = *state;
    ax_data *data[MOST];
    int64_t rows[MOST];
    uint64_t at = 0;
    for (int i = 0; i < MOST; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d.tok", i);
        rows[i] = 1 + (int64_t)(draw(&at) * 40);
        data[i] = make_source(s, name, rows[i], 4, 0);
    }
    for (int c = 0; c < 150; c++) {
        mix m = {.n = 1 + (int)(draw(&at) * MOST)};
        bool filled = false;
        for (int i = 0; i < m.n; i++) {
            m.data[i] = data[i];
            m.rows[i] = rows[i];
            m.weights[i] = 0.1 + draw(&at);
            m.epochs[i] = (int64_t)(draw(&at) * 4);
            m.samples += m.epochs[i] * rows[i];
            filled = filled || !m.epochs[i];
        }
        m.samples += filled ? 1 + (int64_t)(draw(&at) * draw(&at) * 600) : 0;
        check_mix(&m);
    }
    /* One sample in a hundred, beside one other source: in the middle of each hundred. */
    mix two = {
        .n = 2, .data = {data[0], data[1]}, .epochs = {1}, .samples = 100 * rows[0], .weights = {0, 1}};
    ax_sampler *sampler = mix_sampler(&two);
    for (int64_t g = 0; g < two.samples; g++) {
        int64_t targets, sample;
        int src;
        OK(ax_sampler_next(sampler, &targets));
        ax_sampler_where(sampler, 0, &src, &sample);
        if (g % 100 < 49 || g % 100 > 50)
            assert_int_equal(src, 1);
    }
    ax_sampler_destroy(&sampler);
    for (int i = 0; i < MOST; i++)
        ax_data_close(&data[i]);
}

/* A sampler that is restored at any sample goes on in the same way; in a longer run the epochs are still read
 * exactly, and a shorter run that has no place for them is refused. */
static void epochs_are_resumed(void **state)
{
    scratch *s = *state;
    mix m = {.n = 3, .rows = {7, 5, 9}, .epochs = {2, 3, 0}, .samples = 60, .weights = {0, 0, 1}};
    for (int i = 0; i < m.n; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d.tok", i);
        m.data[i] = make_source(s, name, m.rows[i], 4, 0);
    }
    mix longer = m, shorter = m;
    longer.samples = 75;
    shorter.samples = 30;
    ax_sampler *run = mix_sampler(&m), *again = mix_sampler(&m), *more = mix_sampler(&longer),
               *less = mix_sampler(&shorter);
    for (int64_t g = 0; g < m.samples; g++) {
        int64_t counts[3], targets, a, b;
        int x, y;
        ax_sampler_state(run, counts);
        OK(ax_sampler_restore(again, counts));
        OK(ax_sampler_restore(more, counts));
        OK(ax_sampler_next(run, &targets));
        OK(ax_sampler_next(again, &targets));
        ax_sampler_where(run, 0, &x, &a);
        ax_sampler_where(again, 0, &y, &b);
        assert_true(x == y && a == b);
        for (int64_t h = g; h < longer.samples; h++)
            OK(ax_sampler_next(more, &targets));
        ax_sampler_state(more, counts);
        assert_true(counts[0] == 14 && counts[1] == 15 && counts[2] == 46);
    }
    FAILS(AX_ERR_USAGE, "of its 30 samples were read", ax_sampler_restore(less, (int64_t[]){1, 1, 2}));
    FAILS(AX_ERR_USAGE, "more than its epochs have (14)", ax_sampler_restore(run, (int64_t[]){15, 1, 2}));
    ax_sampler_destroy(&run);
    ax_sampler_destroy(&again);
    ax_sampler_destroy(&more);
    ax_sampler_destroy(&less);
    for (int i = 0; i < m.n; i++)
        ax_data_close(&m.data[i]);
}

/* Asserts that row `row` of `out` is padding. */
static void expect_padding(const ax_rows *out, int64_t row, int64_t T)
{
    for (int64_t t = 0; t < T; t++) {
        int64_t i = row * T + t;
        assert_true(out->tokens[i] == -1 && out->targets[i] == -1);
        assert_true(out->doc_start[i] == 0 && out->position[i] == t);
    }
}

/* Reads a whole run in batches of B rows, the last of which the run may not fill: the samples are those of
 * batches of one row, and then padding. A sampler that is restored before each batch, and chooses it in
 * parts, reads the same. */
static void check_batches(const mix *m, int64_t B, const ax_row_shape *shape)
{
    ax_rows out = rows_create(B, 4), part = rows_create(B, 4);
    ax_sampler_options o = {.shape = *shape,
                            .batch = B,
                            .seed = 5,
                            .weights = m->weights,
                            .epochs = m->epochs,
                            .samples = m->samples};
    ax_sampler *one = mix_sampler(m), *run, *again;
    OK(ax_sampler_create(m->data, m->n, &o, &run));
    OK(ax_sampler_create(m->data, m->n, &o, &again));
    int64_t counts[MOST], after[MOST], targets, first, second, sample, want;
    for (int64_t g = 0; g < m->samples;) {
        int64_t unmasked = 0, cut = (g + 3) % (B + 1);
        int src, from;
        ax_sampler_state(run, counts);
        OK(ax_sampler_next_batch(run, &out, &targets));
        for (int64_t r = 0; r < B; r++, g++) {
            ax_sampler_where(run, r, &src, &sample);
            if (g < m->samples) {
                OK(ax_sampler_next(one, &want));
                ax_sampler_where(one, 0, &from, &want);
                assert_true(src == from && sample == want);
            } else {
                assert_true(src == -1 && sample == -1);
                expect_padding(&out, r, 4);
            }
            for (int64_t t = 0; t < 4; t++)
                unmasked += out.targets[r * 4 + t] >= 0;
        }
        assert_int_equal(targets, unmasked);
        OK(ax_sampler_restore(again, counts));
        OK(ax_sampler_next_part(again, 0, cut, &first));
        OK(ax_sampler_next_part(again, cut, B, &second));
        assert_int_equal(first + second, targets);
        assert_int_equal(ax_sampler_dropped(again), ax_sampler_dropped(run));
        OK(ax_sampler_read(again, cut, B, &part));
        expect_equal_rows(&out, &part, cut, B - cut, 4);
    }
    ax_sampler_state(run, counts);
    ax_sampler_state(again, after);
    for (int i = 0; i < m->n; i++)
        assert_true(counts[i] == after[i] && (!m->epochs[i] || counts[i] == m->epochs[i] * m->rows[i]));
    FAILS(AX_ERR_USAGE, "its epochs are over", ax_sampler_next(run, &targets));
    ax_sampler_destroy(&one);
    ax_sampler_destroy(&run);
    ax_sampler_destroy(&again);
    rows_free(&out);
    rows_free(&part);
}

static void last_batch_ends_with_padding(void **state)
{
    scratch *s = *state;
    uint64_t at = 0;
    mix m = {.n = MOST};
    for (int i = 0; i < MOST; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d.tok", i);
        m.rows[i] = 1 + (int64_t)(draw(&at) * 20);
        m.data[i] = make_source(s, name, m.rows[i], 4, 0);
    }
    for (int c = 0; c < 60; c++) {
        const ax_row_shape shape = {
            .seq_len = 4, .mask_documents = true, .goldfish = {.k = c % 2 ? 3 : 0, .window = 1}};
        m.n = 1 + (int)(draw(&at) * MOST);
        m.samples = 0;
        for (int i = 0; i < m.n; i++) {
            m.epochs[i] = 1 + (int64_t)(draw(&at) * 3);
            m.weights[i] = 1;
            m.samples += m.epochs[i] * m.rows[i];
        }
        if (c % 4 == 0 && m.n > 1) { /* one by weight */
            m.samples += 7 - m.epochs[0] * m.rows[0];
            m.epochs[0] = 0;
        }
        check_batches(&m, 1 + (int64_t)(draw(&at) * 15), &shape);
    }
    for (int i = 0; i < MOST; i++)
        ax_data_close(&m.data[i]);
}

static void refusals(void **state)
{
    scratch *s = *state;
    ax_data *data = make_source(s, "a.tok", 1, 8, 0);
    ax_sampler *sampler;
    ax_sampler_options o = {.shape = {.seq_len = 9, .mask_documents = true, .full_rows = true}, .batch = 1};
    FAILS(AX_ERR_DATA, "9 tokens, too few", ax_sampler_create(&data, 1, &o, &sampler));
    assert_null(sampler);
    o.shape.seq_len = 8;
    o.weights = (double[]){0};
    FAILS(AX_ERR_USAGE, "weight", ax_sampler_create(&data, 1, &o, &sampler));
    o.batch = 0;
    FAILS(AX_ERR_USAGE, "one row in a batch (0)", ax_sampler_create(&data, 1, &o, &sampler));
    FAILS(AX_ERR_USAGE, "at least one source (got 0)", ax_sampler_create(&data, 0, &o, &sampler));
    o.batch = 1;
    o.weights = NULL;
    o.epochs = (int64_t[]){5};
    o.samples = 4;
    FAILS(AX_ERR_USAGE, "5 epochs of ", ax_sampler_create(&data, 1, &o, &sampler));
    o.samples = 6;
    FAILS(AX_ERR_USAGE, "with 5 samples together, but the run has 6",
          ax_sampler_create(&data, 1, &o, &sampler));
    ax_data_close(&data);
}

static void steps_allocate_nothing(void **state)
{
    if (!MALLOCS_COUNTED)
        skip();
    scratch *s = *state;
    enum { T = 128, B = 16 };
    ax_data *data[2] = {make_source(s, "a.tok", 500, T, 0), make_source(s, "b.tok", 300, T, 5)};
    ax_rows out = rows_create(B, T);
    ax_sampler *sampler = make_sampler(data, 2, AX_ORDER_SHUFFLED, 11, T, B, NULL);
    int64_t targets;
    long before = atomic_load(&mallocs_made);
    void *volatile seen = malloc(1); /* volatile, or the compiler removes malloc and free */
    free(seen);
    assert_int_equal(atomic_load(&mallocs_made), before + 1); /* the counter works */
    for (int step = 0; step < 100; step++)
        OK(ax_sampler_next_batch(sampler, &out, &targets));
    assert_int_equal(atomic_load(&mallocs_made), before + 1);
    ax_sampler_destroy(&sampler);
    rows_free(&out);
    ax_data_close(&data[0]);
    ax_data_close(&data[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(sequential_order, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(epochs_are_permutations, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(batches_in_parts, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(mixture_follows_weights, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(resume_and_parts, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(epochs_are_spread_evenly, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(epochs_are_resumed, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(last_batch_ends_with_padding, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(refusals, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(steps_allocate_nothing, files_setup, files_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
