/* The goldfish loss: its hash against the test vectors and the definition in axonn/data.h, the rate at which
 * it drops, and its mask as a property of the text, in every format and shape of rows. */
#include "data_test.h"
#include "support/mallocs.h"

#include <math.h>

/* ---- the hash ------------------------------------------------------------------------------------ */

#define P UINT64_C(0x13c6ef372fe94f99)
#define M ((UINT64_C(1) << 61) - 1)

/* H by its definition: the sum of x_{i-j} P^{j-1}. */
static uint64_t slow_hash(const int32_t *tokens, int64_t window)
{
    unsigned __int128 sum = 0, power = 1;
    for (int64_t j = window - 1; j >= 0; j--) {
        sum = (sum + power * (uint32_t)tokens[j]) % M;
        power = power * P % M;
    }
    return (uint64_t)sum;
}

/* mix(H) by its definition. */
static uint64_t slow_mix(uint64_t z)
{
    z += UINT64_C(0x9e3779b97f4a7c15);
    z ^= z >> 30;
    z *= UINT64_C(0xbf58476d1ce4e5b9);
    z ^= z >> 27;
    z *= UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static bool dropped_by(int64_t k, uint64_t mixed)
{
    return (unsigned __int128)mixed * (uint64_t)k < (unsigned __int128)1 << 64;
}

static void vectors_of_the_header(void **state)
{
    (void)state;
    static const struct {
        int32_t tokens[13];
        int window;
        uint64_t hash, mixed;
        int64_t k; /* the largest k that drops the target */
    } vectors[] = {
        {{1}, 1, 0x1, 0x910a2dec89025cc1, 1},
        {{1, 2}, 2, 0x13c6ef372fe94f9b, 0xc77a8fc3fd4dc98a, 1},
        {{2, 1}, 2, 0x078dde6e5fd29f34, 0x61c6951241befbc1, 2},
        {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}, 13, 0x06d0d2de11137cbf, 0xec55e98152abd01a, 1},
        {{INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX,
          INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX},
         13,
         0x1172014f31aec224,
         0x4d7c0842458b73c1,
         3}};
    for (size_t i = 0; i < AX_COUNT(vectors); i++) {
        ax_goldfish goldfish = {.window = vectors[i].window};
        int32_t document[14] = {0};
        assert_true(slow_hash(vectors[i].tokens, vectors[i].window) == vectors[i].hash);
        assert_true(slow_mix(vectors[i].hash) == vectors[i].mixed);
        memcpy(document, vectors[i].tokens, (size_t)vectors[i].window * sizeof *document);
        for (goldfish.k = 2; goldfish.k < 9; goldfish.k++) {
            uint8_t keep[14];
            memset(keep, 1, sizeof keep);
            assert_int_equal(dropped_by(goldfish.k, vectors[i].mixed), goldfish.k <= vectors[i].k);
            OK(ax_goldfish_drop(&goldfish, document, goldfish.window + 1, keep));
            for (int w = 0; w <= goldfish.window; w++)
                assert_int_equal(keep[w], w < goldfish.window || goldfish.k > vectors[i].k);
        }
    }
}

/* ---- rows ---------------------------------------------------------------------------------------- */

enum { VOCAB = 50, END = 49, DOCUMENTS = 40, MOST = 400 };

/* A text of documents of 1 to MOST tokens, each of which ends with END, and its naive mask. */
typedef struct text {
    int64_t n, start[DOCUMENTS + 1];
    int32_t token[DOCUMENTS * MOST];
} text;

static void make_text(text *t, uint64_t seed)
{
    t->n = 0;
    for (int d = 0; d < DOCUMENTS; d++) {
        int64_t length = d % 5 ? (int64_t)(ax_rng_uniform(seed, (uint64_t)d) * MOST) : d % 3;
        t->start[d] = t->n;
        for (int64_t i = 0; i < length; i++, t->n++)
            t->token[t->n] = (int32_t)(ax_rng_uniform(seed + 1, (uint64_t)t->n) * END);
        t->token[t->n++] = END;
    }
    t->start[DOCUMENTS] = t->n;
}

static bool is_dropped(const text *t, const ax_goldfish *g, bool documents, int64_t at)
{
    int64_t d = 0;
    while (documents && t->start[d + 1] <= at)
        d++;
    int64_t place = at - t->start[d];
    if (g->kind == AX_GOLDFISH_STATIC)
        return (place + 1) % g->k == 0;
    return place >= g->window && dropped_by(g->k, slow_mix(slow_hash(t->token + at - g->window, g->window)));
}

/* Compares all rows of a source with the naive mask. `documents`: the source has documents. */
static void expect_mask(const ax_data *data, const text *t, const ax_row_shape *shape, bool documents)
{
    int64_t T = shape->seq_len;
    ax_row_shape plain = *shape;
    ax_rows out = rows_create(1, T), want = rows_create(1, T);
    plain.goldfish.k = 0;
    for (int64_t r = 0; r < ax_data_rows(data, shape); r++) {
        int64_t kept = 0, got, counted;
        OK(ax_data_row(data, &plain, r, &want, 0, NULL));
        OK(ax_data_row(data, shape, r, &out, 0, &got));
        OK(ax_data_row_targets(data, shape, r, &counted));
        assert_memory_equal(out.tokens, want.tokens, (size_t)T * 4);
        assert_memory_equal(out.doc_start, want.doc_start, (size_t)T * 4);
        assert_memory_equal(out.position, want.position, (size_t)T * 4);
        for (int64_t i = 0; i < T; i++) {
            if (want.targets[i] >= 0 && is_dropped(t, &shape->goldfish, documents, r * T + i + 1))
                want.targets[i] = -1;
            kept += want.targets[i] >= 0;
        }
        assert_memory_equal(out.targets, want.targets, (size_t)T * 4);
        assert_int_equal(got, kept);
        assert_int_equal(counted, kept);
    }
    rows_free(&out);
    rows_free(&want);
}

static void expect_masks(const ax_data *data, const text *t, bool documents, bool statics)
{
    static const int64_t lengths[] = {7, 64, 3000}; /* 3000: more than are decided at a time */
    static const int64_t windows[] = {1, 3, 13, 200};
    for (size_t l = 0; l < AX_COUNT(lengths); l++)
        for (int mask = 0; mask < 2; mask++)
            for (int64_t k = 2; k < 6; k += k) {
                ax_row_shape shape = {.seq_len = lengths[l], .mask_documents = mask, .goldfish = {.k = k}};
                for (size_t w = 0; w < AX_COUNT(windows); w++) {
                    shape.goldfish.window = windows[w];
                    expect_mask(data, t, &shape, documents);
                }
                shape.goldfish.kind = AX_GOLDFISH_STATIC;
                if (statics)
                    expect_mask(data, t, &shape, documents);
            }
}

static void write_tok(const char *path, const text *t, int64_t from, int64_t to)
{
    ax_token_writer *w;
    OK(ax_token_writer_create(path, VOCAB, END, 0, &w));
    for (int64_t d = from; d < to; d++)
        OK(ax_token_writer_add(w, t->token + t->start[d], t->start[d + 1] - t->start[d] - 1, 1));
    OK(ax_token_writer_finish(&w, NULL));
}

/* Returns the path of a file of u16 tokens without an index. */
static const char *write_bin(scratch *s, const char *name, const text *t)
{
    ax_buf f = {0};
    for (int64_t i = 0; i < t->n; i++)
        add_u16(&f, (unsigned)t->token[i]);
    const char *path = put_file(s, name, f.data, f.size);
    ax_buf_fini(&f);
    return path;
}

/* The same mask from a token file, from shards, and from tokens without an index. */
static void masks_of_every_format(void **state)
{
    scratch *s = *state;
    static text t;
    ax_data *data;
    make_text(&t, 5);
    const char *dir = in_scratch(s, "shards");
    OK(ax_mkdirs(dir));
    write_tok(in_scratch(s, "whole.tok"), &t, 0, DOCUMENTS);
    for (int64_t i = 0; i < 4; i++) {
        char name[32];
        snprintf(name, sizeof name, "shards/%d.tok", (int)i);
        write_tok(in_scratch(s, name), &t, i * DOCUMENTS / 4, (i + 1) * DOCUMENTS / 4);
    }
    const char *bin = write_bin(s, "plain.bin", &t);
    const struct {
        const char *path;
        int64_t end_id;
        bool documents, statics;
    } sources[] = {{in_scratch(s, "whole.tok"), -1, true, true},
                   {dir, -1, true, true},
                   {bin, END, true, false},
                   {bin, -1, false, true}};
    for (size_t i = 0; i < AX_COUNT(sources); i++) {
        OK(ax_data_open(sources[i].path, sources[i].end_id, &data));
        expect_masks(data, &t, sources[i].documents, sources[i].statics);
        ax_data_close(&data);
    }
}

/* A passage that is repeated in other documents, at other places of rows, keeps its mask from its token
 * number `window` on. */
static void a_passage_has_one_mask(void **state)
{
    scratch *s = *state;
    enum { LENGTH = 120, COPIES = 30, T = 50, WINDOW = 13 };
    int32_t passage[LENGTH], document[2 * LENGTH + COPIES];
    int64_t at[COPIES], n = 0;
    char mask[COPIES][LENGTH];
    ax_token_writer *w;
    ax_data *data;
    for (int i = 0; i < LENGTH; i++)
        passage[i] = (int32_t)(ax_rng_uniform(1, (uint64_t)i) * 30000);
    OK(ax_token_writer_create(in_scratch(s, "copies.tok"), 30000, -1, 0, &w));
    for (int c = 0; c < COPIES; c++) {
        int before =
            c % 3 ? 7 * c % LENGTH : 0; /* other tokens before it; none: the document begins with it */
        for (int i = 0; i < before; i++)
            document[i] = (int32_t)(ax_rng_uniform(2 + (uint64_t)c, (uint64_t)i) * 30000);
        memcpy(document + before, passage, sizeof passage);
        OK(ax_token_writer_add(w, document, before + LENGTH, 1));
        at[c] = n + before;
        n += before + LENGTH;
    }
    OK(ax_token_writer_finish(&w, NULL));
    OK(ax_data_open(in_scratch(s, "copies.tok"), -1, &data));
    ax_row_shape shape = {.seq_len = T, .mask_documents = true, .goldfish = {.k = 3, .window = WINDOW}};
    ax_rows out = rows_create(1, T);
    int dropped = 0;
    for (int c = 0; c < COPIES; c++)
        for (int64_t i = WINDOW, row = -1; i < LENGTH; i++) {
            int64_t input = at[c] + i - 1;
            if (input / T != row)
                OK(ax_data_row(data, &shape, row = input / T, &out, 0, NULL));
            mask[c][i] = out.targets[input % T] < 0;
            dropped += mask[c][i];
        }
    for (int c = 1; c < COPIES; c++)
        assert_memory_equal(mask[c] + WINDOW, mask[0] + WINDOW, LENGTH - WINDOW);
    assert_in_range(dropped, COPIES * 20, COPIES * 55);
    rows_free(&out);
    ax_data_close(&data);
}

/* One of k targets is dropped, within three standard errors, over windows that all differ. */
static void one_of_k_is_dropped(void **state)
{
    scratch *s = *state;
    enum { N = 400000, T = 1000, WINDOW = 13 };
    static const int64_t ks[] = {2, 3, 4, 8, 32};
    ax_buf f = {0};
    ax_data *data;
    for (int i = 0; i < N + 1; i++) /* two tokens that count up make all windows different */
        add_u16(&f, i % 2 ? (unsigned)i / 2 % 512 : (unsigned)i / 1024);
    OK(ax_data_open(put_file(s, "distinct.bin", f.data, f.size), -1, &data));
    ax_buf_fini(&f);
    for (size_t i = 0; i < AX_COUNT(ks); i++) {
        ax_row_shape shape = {
            .seq_len = T, .mask_documents = true, .goldfish = {.k = ks[i], .window = WINDOW}};
        int64_t kept = 0, here, n = N - WINDOW + 1;
        for (int64_t r = 0; r < ax_data_rows(data, &shape); r++) {
            OK(ax_data_row_targets(data, &shape, r, &here));
            kept += here;
        }
        double p = 1 / (double)ks[i], error = sqrt(p * (1 - p) / (double)n);
        if (fabs((double)(N - kept) / (double)n - p) > 3 * error)
            fail_msg("k = %d drops %.6f of the targets", (int)ks[i], (double)(N - kept) / (double)n);
    }
    ax_data_close(&data);
}

/* With a mask of answers, a token is a target if neither the mask nor the goldfish loss takes it out, in a
 * stream and in packed rows; the count without reading agrees. */
static void targets_are_a_product(void **state)
{
    scratch *s = *state;
    enum { T = 48, LENGTH = 90, D = 60 };
    int32_t document[LENGTH];
    uint8_t is_target[LENGTH];
    ax_token_writer *w;
    ax_data *data;
    OK(ax_token_writer_create(in_scratch(s, "answers.tok"), VOCAB, END, 0, &w));
    for (int d = 0; d < D; d++) {
        int64_t n = 2 + (int64_t)(ax_rng_uniform(21, (uint64_t)d) * (LENGTH - 2));
        for (int64_t i = 0; i < n; i++) {
            document[i] = (int32_t)(ax_rng_uniform(22 + (uint64_t)d, (uint64_t)i) * END);
            is_target[i] = i % 20 > 6 || i == 1;
        }
        OK(ax_token_writer_add_masked(w, document, is_target, n, n));
    }
    OK(ax_token_writer_finish(&w, NULL));
    OK(ax_data_open(in_scratch(s, "answers.tok"), -1, &data));
    ax_rows a = rows_create(1, T), g = rows_create(1, T), both = rows_create(1, T);
    for (int packed = 0; packed < 2; packed++) {
        ax_data_packed p;
        ax_row_shape all = {.seq_len = T,
                            .mask_documents = true,
                            .answers = true,
                            .pack = packed ? AX_PACK_DOCUMENTS : AX_PACK_STREAM,
                            .goldfish = {.k = 3, .window = 4}};
        ax_row_shape answers = all, goldfish = all;
        answers.goldfish.k = 0;
        goldfish.answers = false;
        if (packed)
            OK(ax_data_pack(data, &all, &p));
        int64_t sums[3] = {0};
        for (int64_t r = 0; r < ax_data_rows(data, &all); r++) {
            int64_t n, counted, kept = 0;
            OK(ax_data_row(data, &answers, r, &a, 0, &n));
            sums[0] += n;
            OK(ax_data_row(data, &goldfish, r, &g, 0, &n));
            sums[1] += n;
            OK(ax_data_row(data, &all, r, &both, 0, &n));
            sums[2] += n;
            OK(ax_data_row_targets(data, &all, r, &counted));
            for (int t = 0; t < T; t++) {
                assert_int_equal(both.targets[t], a.targets[t] >= 0 ? g.targets[t] : -1);
                kept += both.targets[t] >= 0;
            }
            assert_true(n == kept && counted == kept);
        }
        assert_true(sums[2] > 0 && sums[2] < sums[0] && sums[2] < sums[1]);
    }
    rows_free(&a);
    rows_free(&g);
    rows_free(&both);
    ax_data_close(&data);
}

/* ---- batches ------------------------------------------------------------------------------------- */

/* The divisor of a batch is the number of its targets that are left; parts of a batch add up; nothing is
 * allocated. */
static void batches_count_what_is_left(void **state)
{
    scratch *s = *state;
    enum { T = 64, B = 12 };
    static text t;
    ax_data *data;
    ax_sampler *plain, *goldfish;
    make_text(&t, 9);
    write_tok(in_scratch(s, "batch.tok"), &t, 0, DOCUMENTS);
    OK(ax_data_open(in_scratch(s, "batch.tok"), -1, &data));
    ax_sampler_options options = {.shape = {.seq_len = T, .mask_documents = true}, .batch = B, .seed = 3};
    OK(ax_sampler_create(&data, 1, &options, &plain));
    options.shape.goldfish = (ax_goldfish){.k = 3, .window = 5};
    OK(ax_sampler_create(&data, 1, &options, &goldfish));
    ax_rows a = rows_create(B, T), b = rows_create(B, T);
    for (int step = 0; step < 30; step++) {
        int64_t whole, first, second, unmasked = 0;
        OK(ax_sampler_next_batch(plain, &a, &whole));
        long before = atomic_load(&mallocs_made);
        OK(ax_sampler_next_part(goldfish, 0, 5, &first));
        OK(ax_sampler_next_part(goldfish, 5, B, &second));
        OK(ax_sampler_read(goldfish, 0, B, &b));
        assert_int_equal(atomic_load(&mallocs_made), before);
        assert_memory_equal(a.tokens, b.tokens, sizeof(int32_t) * B * T);
        for (int i = 0; i < B * T; i++) {
            assert_true(b.targets[i] == a.targets[i] || b.targets[i] == -1);
            unmasked += b.targets[i] >= 0;
        }
        assert_int_equal(first + second, unmasked);
        assert_int_equal(ax_sampler_dropped(goldfish), whole - unmasked);
        assert_int_equal(ax_sampler_dropped(plain), 0);
    }
    rows_free(&a);
    rows_free(&b);
    ax_sampler_destroy(&plain);
    ax_sampler_destroy(&goldfish);
    ax_data_close(&data);
}

static void what_is_refused(void **state)
{
    scratch *s = *state;
    static text t;
    ax_data *data;
    ax_sampler *sampler;
    int64_t targets;
    make_text(&t, 2);
    OK(ax_data_open(write_bin(s, "refused.bin", &t), END, &data));
    ax_row_shape shape = {.seq_len = 8, .goldfish = {.k = 4, .kind = AX_GOLDFISH_STATIC}};
    FAILS(AX_ERR_USAGE, "no index of documents", ax_data_check_shape(data, &shape));
    FAILS(AX_ERR_USAGE, "no index of documents", ax_data_row_targets(data, &shape, 0, &targets));
    ax_sampler_options options = {.shape = shape, .batch = 1};
    FAILS(AX_ERR_USAGE, "no index of documents", ax_sampler_create(&data, 1, &options, &sampler));
    static const struct {
        ax_goldfish goldfish;
        const char *said;
    } wrong[] = {{{.k = 1, .window = 5}, "but must be 2 to 1000000000"},
                 {{.k = -3, .window = 5}, "but must be 2 to 1000000000"},
                 {{.k = INT64_MAX, .kind = AX_GOLDFISH_STATIC}, "but must be 2 to 1000000000"},
                 {{.k = 4}, "tokens, but must be 1 to 2048"},
                 {{.k = 4, .window = AX_GOLDFISH_WINDOW_MAX + 1}, "tokens, but must be 1 to 2048"},
                 {{.k = 4, .window = 5, .kind = (ax_goldfish_kind)2}, "no goldfish loss of kind 2"}};
    for (size_t i = 0; i < AX_COUNT(wrong); i++) {
        uint8_t keep[4] = {1, 1, 1, 1};
        shape.goldfish = wrong[i].goldfish;
        FAILS(AX_ERR_USAGE, wrong[i].said, ax_data_check_shape(data, &shape));
        FAILS(AX_ERR_USAGE, wrong[i].said, ax_goldfish_drop(&wrong[i].goldfish, t.token, 4, keep));
    }
    ax_data_close(&data);
}

/* A static loss has no window, whatever the member says. */
static void static_has_no_window(void **state)
{
    scratch *s = *state;
    static text t;
    static const int64_t windows[] = {-5, 1 << 30, INT64_MAX};
    ax_data *data;
    make_text(&t, 2);
    OK(ax_data_open(write_bin(s, "one.bin", &t), -1, &data));
    for (size_t i = 0; i < AX_COUNT(windows); i++) {
        const ax_row_shape shape = {.seq_len = 8,
                                    .goldfish = {.k = 3, .window = windows[i], .kind = AX_GOLDFISH_STATIC}};
        expect_mask(data, &t, &shape, false);
    }
    ax_data_close(&data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_of_the_header),
        cmocka_unit_test_setup_teardown(masks_of_every_format, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(a_passage_has_one_mask, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(one_of_k_is_dropped, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(targets_are_a_product, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(batches_count_what_is_left, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(what_is_refused, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(static_has_no_window, files_setup, files_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
