/* Packed rows: every document once, whole, by first fit; long ones in pieces; the same rows for every reader.
 */
#include "data_test.h"
#include "support/mallocs.h"

#include <math.h>

enum { END = 999, VOCAB = 1000 };

/* Writes documents of these lengths (their end token included), whose tokens count up from 0 over all of
 * them. */
static ax_data *make_documents(scratch *s, const char *name, const int64_t *lengths, int64_t n)
{
    const char *path = in_scratch(s, name);
    ax_token_writer *w;
    ax_data *data;
    int32_t *document = calloc(100000, sizeof *document);
    int64_t at = 0;
    OK(ax_token_writer_create(path, VOCAB, END, 0, &w));
    for (int64_t d = 0; d < n; d++) {
        for (int64_t i = 0; i < lengths[d] - 1; i++)
            document[i] = (int32_t)(at++ % END);
        OK(ax_token_writer_add(w, document, lengths[d] - 1, 1));
    }
    OK(ax_token_writer_finish(&w, NULL));
    OK(ax_data_open(path, -1, &data));
    free(document);
    return data;
}

static void add_pair(uint64_t sum[2], int32_t input, int32_t target)
{
    sum[0]++;
    sum[1] += ax_rng_key((uint64_t)input * VOCAB + (uint64_t)target, "pair", 0);
}

/* Reads all rows and checks that each target of the source is in them once, with the inputs before it and the
 * position in its document or piece. */
static void expect_all_targets(ax_data *data, int64_t T, const ax_data_packed *packed)
{
    int64_t N = ax_data_describe(data)->tokens, D = ax_data_describe(data)->documents;
    uint64_t expected[2] = {0},
             got[2] = {0}; /* number of pairs of input and target, and a sum of their hashes */
    ax_row_shape shape = {.seq_len = T, .mask_documents = true, .pack = AX_PACK_DOCUMENTS};
    int32_t *tokens = calloc((size_t)N, sizeof *tokens);
    ax_rows out = rows_create(1, T);
    OK(ax_data_tokens(data, 0, N, tokens));
    assert_int_equal(ax_data_rows(data, &shape), packed->rows);
    for (int64_t r = 0; r < packed->rows; r++) {
        int64_t targets, counted, unmasked = 0;
        OK(ax_data_row(data, &shape, r, &out, 0, &targets));
        OK(ax_data_row_targets(data, &shape, r, &counted));
        assert_int_equal(targets, counted);
        for (int64_t t = 0; t < T; t++) {
            assert_int_equal(out.position[t], t - out.doc_start[t]);
            assert_in_range(out.doc_start[t], 0, t);
            unmasked += out.targets[t] >= 0;
            if (t && out.doc_start[t] == out.doc_start[t - 1] && out.targets[t] >= 0)
                assert_int_equal(out.tokens[t], out.targets[t - 1]); /* one document: it goes on */
            assert_true(out.targets[t] >= 0 ||
                        (out.tokens[t] == -1 && (t == T - 1 || out.targets[t + 1] < 0)));
        }
        assert_int_equal(unmasked, targets);
        for (int64_t t = 0; t < T; t++)
            if (out.targets[t] >= 0)
                add_pair(got, out.tokens[t], out.targets[t]);
    }
    for (int64_t d = 0, first, end; d < D; d++) {
        OK(ax_data_document(data, d, &first, &end));
        for (int64_t i = first; i < end - 1; i++)
            add_pair(expected, tokens[i], tokens[i + 1]);
    }
    assert_memory_equal(got, expected, sizeof got);
    assert_int_equal(got[0], packed->positions);
    rows_free(&out);
    free(tokens);
}

/* Six documents in rows of 10 positions, by hand: of 4, 11, 1, 25, 6 and 8 tokens, hence 3, 10, 0, 24 = 10 +
 * 10 + 4, 5 and 7 positions. First fit, the longest first: 10 | 10 | 10 | 7 3 | 5 4. */
static void rows_by_hand(void **state)
{
    scratch *s = *state;
    static const int64_t lengths[] = {4, 11, 1, 25, 6, 8};
    ax_data *data = make_documents(s, "hand.tok", lengths, 6);
    ax_row_shape shape = {.seq_len = 10, .mask_documents = true, .pack = AX_PACK_DOCUMENTS};
    ax_data_packed p;
    assert_int_equal(ax_data_rows(data, &shape), 0); /* not packed yet */
    OK(ax_data_pack(data, &shape, &p));
    assert_true(p.rows == 5 && p.positions == 49 && p.documents == 5 && p.pieces == 7 && p.cut == 1 &&
                p.left_out == 1);
    ax_rows out = rows_create(5, 10);
    for (int64_t r = 0; r < 5; r++)
        OK(ax_data_row(data, &shape, r, &out, r, NULL));
    static const int32_t first[3] = {3, 13, 23}; /* rows 0 to 2: document 1, and two pieces of document 3 */
    for (int r = 0; r < 3; r++)
        assert_int_equal(out.tokens[10 * r], first[r]);
    /* Row 3: document 0 (tokens 0 1 2 END) and then document 5 (7 tokens from 42 on, END). */
    static const int32_t tokens[10] = {0, 1, 2, 42, 43, 44, 45, 46, 47, 48};
    static const int32_t targets[10] = {1, 2, END, 43, 44, 45, 46, 47, 48, END};
    static const int32_t begin[10] = {0, 0, 0, 3, 3, 3, 3, 3, 3, 3};
    assert_memory_equal(out.tokens + 30, tokens, sizeof tokens);
    assert_memory_equal(out.targets + 30, targets, sizeof targets);
    assert_memory_equal(out.doc_start + 30, begin, sizeof begin);
    /* Row 4: the last piece of document 3 (tokens 33 ... 36, END), document 4 (37 ... 41, END), padding. */
    static const int32_t last[10] = {33, 34, 35, 36, 37, 38, 39, 40, 41, -1};
    static const int32_t ends[10] = {34, 35, 36, END, 38, 39, 40, 41, END, -1};
    static const int32_t places[10] = {0, 1, 2, 3, 0, 1, 2, 3, 4, 5};
    assert_memory_equal(out.tokens + 40, last, sizeof last);
    assert_memory_equal(out.targets + 40, ends, sizeof ends);
    assert_memory_equal(out.position + 40, places, sizeof places);
    /* Across documents: one text for attention and positions, the same targets. */
    shape.mask_documents = false;
    OK(ax_data_row(data, &shape, 4, &out, 0, NULL));
    assert_memory_equal(out.targets, ends, sizeof ends);
    for (int t = 0; t < 10; t++)
        assert_true(out.doc_start[t] == 0 && out.position[t] == t);
    rows_free(&out);
    ax_data_close(&data);
}

/* Random lengths, more than a window of them; packing for another T; the same rows from shards and again. */
static void every_target_once(void **state)
{
    scratch *s = *state;
    enum { D = 3000 };
    static int64_t lengths[D];
    for (int d = 0; d < D; d++)
        lengths[d] = 1 + (int64_t)(ax_rng_uniform(4, (uint64_t)d) * (d % 50 ? 60 : 400));
    ax_data *data = make_documents(s, "many.tok", lengths, D);
    static const int64_t Ts[] = {1, 7, 64, 300};
    for (size_t i = 0; i < AX_COUNT(Ts); i++) {
        ax_data_packed p;
        OK(ax_data_pack(data, &(ax_row_shape){.seq_len = Ts[i], .pack = AX_PACK_DOCUMENTS}, &p));
        expect_all_targets(data, Ts[i], &p);
    }
    ax_data_close(&data);
}

/* At least 95 % of positions are used for short dialogues: lengths of a log-normal distribution with a median
 * of a quarter of a row, a few of which are longer than a row. */
static void short_dialogues_fill_rows(void **state)
{
    scratch *s = *state;
    enum { D = 4096, T = 256 };
    static int64_t lengths[D];
    int longer = 0;
    for (int d = 0; d < D; d++) {
        double u = ax_rng_uniform(7, 2 * (uint64_t)d), v = ax_rng_uniform(7, 2 * (uint64_t)d + 1);
        double normal = sqrt(-2 * log(1 - u)) * cos(6.283185307179586 * v);
        lengths[d] = 2 + (int64_t)(T / 4 * exp(0.6 * normal));
        longer += lengths[d] > T + 1;
    }
    ax_data *data = make_documents(s, "dialogues.tok", lengths, D);
    ax_row_shape shape = {.seq_len = T, .mask_documents = true, .pack = AX_PACK_DOCUMENTS};
    ax_data_packed p;
    OK(ax_data_pack(data, &shape, &p));
    assert_true(longer > 10 && p.cut == longer);
    if ((double)p.positions < 0.95 * (double)(p.rows * T))
        fail_msg("%.2f %% of positions are used", 100 * (double)p.positions / (double)(p.rows * T));
    ax_data_close(&data);
}

/* The goldfish loss drops the same tokens of packed rows as of a stream. */
static void goldfish_in_packed_rows(void **state)
{
    scratch *s = *state;
    enum { D = 200, T = 40 };
    static int64_t lengths[D];
    for (int d = 0; d < D; d++)
        lengths[d] = 1 + (int64_t)(ax_rng_uniform(9, (uint64_t)d) * 120);
    ax_data *data = make_documents(s, "fish.tok", lengths, D);
    ax_row_shape stream = {.seq_len = T, .mask_documents = true, .goldfish = {.k = 3, .window = 4}},
                 packed = stream;
    packed.pack = AX_PACK_DOCUMENTS;
    for (int kind = 0; kind < 2; kind++) {
        int64_t sums[2] = {0}, here;
        ax_data_packed p;
        stream.goldfish.kind = packed.goldfish.kind = (ax_goldfish_kind)kind;
        OK(ax_data_pack(data, &packed, &p));
        ax_rows out = rows_create(1, T);
        for (int64_t r = 0; r < ax_data_rows(data, &stream); r++) {
            OK(ax_data_row_targets(data, &stream, r, &here));
            sums[0] += here;
        }
        for (int64_t r = 0; r < ax_data_rows(data, &packed); r++) {
            int64_t counted, unmasked = 0;
            OK(ax_data_row(data, &packed, r, &out, 0, &here));
            OK(ax_data_row_targets(data, &packed, r, &counted));
            for (int t = 0; t < T; t++)
                unmasked += out.targets[t] >= 0;
            assert_true(here == counted && here == unmasked);
            sums[1] += here;
        }
        assert_int_equal(sums[0], sums[1]);
        assert_true(sums[1] < p.positions * 4 / 5);
        rows_free(&out);
    }
    ax_data_close(&data);
}

/* The documents of rows_by_hand, of which two have more than 10 positions less or more: what is read of those
 * that are longer than a row of 9 positions, and how many a stream cuts. */
static void longer_than_a_row(void **state)
{
    scratch *s = *state;
    static const int64_t lengths[] = {4, 11, 1, 25, 6, 8};
    static const ax_data_packed want[] = {
        [AX_LONG_SPLIT] = {.rows = 6, .positions = 49, .documents = 5, .pieces = 8, .cut = 2, .left_out = 1},
        [AX_LONG_TRUNCATE] =
            {.rows = 4, .positions = 33, .documents = 5, .pieces = 5, .cut = 2, .lost = 16, .left_out = 1},
        [AX_LONG_DROP] = {.rows = 2,
                          .positions = 15,
                          .documents = 3,
                          .pieces = 3,
                          .dropped = 2,
                          .lost = 36,
                          .left_out = 1}};
    ax_data *data = make_documents(s, "long.tok", lengths, 6);
    ax_rows out = rows_create(1, 9);
    for (int i = 0; i < 3; i++) {
        ax_row_shape shape = {
            .seq_len = 9, .mask_documents = true, .pack = AX_PACK_DOCUMENTS, .longer = (ax_data_long)i};
        ax_data_packed p;
        int64_t sum = 0, targets;
        OK(ax_data_pack(data, &shape, &p));
        assert_memory_equal(&p, &want[i], sizeof p);
        for (int64_t r = 0; r < p.rows; r++) {
            OK(ax_data_row(data, &shape, r, &out, 0, &targets));
            for (int t = 0; t < 9 && i == AX_LONG_TRUNCATE; t++) /* the ends of documents 1 and 3 */
                assert_true(out.targets[t] != 12 + 1 && out.targets[t] < (r ? 1000 : 14));
            sum += targets;
        }
        assert_int_equal(sum, p.positions);
        shape.longer = (ax_data_long)((i + 1) % 3); /* not packed in this way */
        assert_int_equal(ax_data_rows(data, &shape), 0);
    }
    const ax_row_shape none = {.seq_len = 2, .pack = AX_PACK_DOCUMENTS, .longer = AX_LONG_DROP};
    ax_data_packed p;
    ax_sampler *sampler;
    OK(ax_data_pack(data, &none, &p));
    assert_true(p.rows == 0 && p.dropped == 5);
    FAILS(AX_ERR_DATA, "that fits into a row (data.long: drop)",
          ax_sampler_create(&data, 1, &(ax_sampler_options){.shape = none, .batch = 1}, &sampler));
    /* Documents begin at tokens 0, 4, 15, 16, 41 and 47. Rows of 10: those at 4, 16 and 47 cross an edge;
     * rows of 16: those at 16 and 41; of 55, none. */
    static const int64_t Ts[][2] = {{10, 3}, {16, 2}, {54, 0}, {1, 5}};
    for (size_t i = 0; i < AX_COUNT(Ts); i++) {
        int64_t cut;
        OK(ax_data_count_cut(data, Ts[i][0], &cut));
        assert_int_equal(cut, Ts[i][1]);
    }
    rows_free(&out);
    ax_data_close(&data);
}

/* Conversations longer than a row of which no target is left in the part that is read are left out; those
 * that fit into a row, and those with a target at the very end of the part, are read. */
static void without_targets_after_the_cut(void **state)
{
    scratch *s = *state;
    static const struct {
        int64_t n, target; /* tokens, and the only one of them that is a target */
    } documents[] = {{10, 9}, {6, 5}, {7, 6}, {7, 5}, {30, 29}, {3, 1}, {12, 0}};
    ax_token_writer *w;
    ax_data *data;
    ax_data_packed p;
    OK(ax_token_writer_create(in_scratch(s, "cut.tok"), VOCAB, -1, 0, &w));
    for (size_t d = 0; d < AX_COUNT(documents); d++) {
        int32_t tokens[30] = {0};
        uint8_t mask[30] = {0};
        mask[documents[d].target] = 1;
        OK(ax_token_writer_add_masked(w, tokens, mask, documents[d].n, 1));
    }
    OK(ax_token_writer_finish(&w, NULL));
    OK(ax_data_open(in_scratch(s, "cut.tok"), -1, &data));
    for (int answers = 0; answers < 2; answers++) {
        const ax_row_shape shape = {.seq_len = 5,
                                    .mask_documents = true,
                                    .pack = AX_PACK_DOCUMENTS,
                                    .longer = AX_LONG_TRUNCATE,
                                    .answers = answers,
                                    .goldfish = {.k = answers ? 2 : 0, .window = 3}};
        ax_row_shape other = shape;
        OK(ax_data_pack(data, &shape, &p));
        assert_int_equal(p.targetless, answers ? 4 : 0);
        assert_int_equal(p.documents, answers ? 3 : 7);
        assert_int_equal(p.cut, answers ? 1 : 5);
        assert_int_equal(p.lost, answers ? 10 + 7 + 30 + 12 + 1 : 4 + 1 + 1 + 24 + 6);
        other.answers = !answers;
        assert_int_equal(ax_data_rows(data, &other), 0);
    }
    ax_data_close(&data);
}

/* AX_PACK_AUTO packs what has a mask. */
static void conversations_are_packed(void **state)
{
    scratch *s = *state;
    const ax_row_shape shape = {.seq_len = 4, .mask_documents = true, .pack = AX_PACK_AUTO};
    for (int masked = 0; masked < 2; masked++) {
        ax_token_writer *w;
        ax_data *data;
        ax_data_packed p;
        int64_t targets;
        OK(ax_token_writer_create(in_scratch(s, "auto.tok"), VOCAB, -1, 0, &w));
        for (int d = 0; d < 3; d++)
            OK(masked ? ax_token_writer_add_masked(w, (int32_t[]){1, 2, 3, 4}, (uint8_t[]){0, 0, 1, 1}, 4, 4)
                      : ax_token_writer_add(w, (int32_t[]){1, 2, 3, 4}, 4, 4));
        OK(ax_token_writer_finish(&w, NULL));
        OK(ax_data_open(in_scratch(s, "auto.tok"), -1, &data));
        assert_int_equal(ax_data_is_packed(data, &shape), masked);
        assert_int_equal(ax_data_rows(data, &shape), masked ? 0 : 3);
        if (masked)
            OK(ax_data_pack(data, &shape, &p));
        assert_int_equal(ax_data_rows(data, &shape), 3);
        OK(ax_data_row_targets(data, &shape, 1, &targets));
        assert_int_equal(targets,
                         3); /* masked without `answers`; the stream begins at a document's token 1 */
        ax_data_close(&data);
    }
}

/* Batches of packed rows: the divisor is what is unmasked, each row once an epoch, nothing allocated. */
static void packed_batches(void **state)
{
    scratch *s = *state;
    enum { D = 500, T = 64, B = 4 };
    static int64_t lengths[D];
    for (int d = 0; d < D; d++)
        lengths[d] = 2 + (int64_t)(ax_rng_uniform(11, (uint64_t)d) * 40);
    ax_data *data = make_documents(s, "batches.tok", lengths, D);
    ax_sampler_options o = {.shape = {.seq_len = T, .pack = AX_PACK_DOCUMENTS, .mask_documents = true},
                            .batch = B};
    ax_sampler *sampler;
    ax_data_packed p;
    OK(ax_data_pack(data, &o.shape, &p));
    OK(ax_sampler_create(&data, 1, &o, &sampler));
    ax_rows out = rows_create(B, T);
    char *seen = calloc((size_t)p.rows, 1);
    long before = atomic_load(&mallocs_made);
    for (int64_t g = 0; g + B <= p.rows; g += B) {
        int64_t targets, unmasked = 0, sample;
        int src;
        OK(ax_sampler_next_batch(sampler, &out, &targets));
        for (int i = 0; i < B * T; i++)
            unmasked += out.targets[i] >= 0;
        assert_int_equal(targets, unmasked);
        for (int64_t r = 0; r < B; r++) {
            ax_sampler_where(sampler, r, &src, &sample);
            assert_int_equal(seen[sample]++, 0);
        }
    }
    assert_int_equal(atomic_load(&mallocs_made), before);
    free(seen);
    rows_free(&out);
    ax_sampler_destroy(&sampler);
    ax_data_close(&data);
}

static void what_is_refused(void **state)
{
    scratch *s = *state;
    ax_data *data;
    ax_sampler *sampler;
    ax_data_packed p;
    int64_t targets;
    ax_sampler_options o = {.shape = {.seq_len = 4, .pack = AX_PACK_DOCUMENTS}, .batch = 1};
    OK(ax_data_open(put_text(s, "plain.bin", "0123456789012345"), -1, &data));
    FAILS(AX_ERR_USAGE, "has no index of documents, which packing needs", ax_data_pack(data, &o.shape, &p));
    FAILS(AX_ERR_USAGE, "has no index of documents", ax_sampler_create(&data, 1, &o, &sampler));
    ax_data_close(&data);
    data = make_documents(s, "ends.tok", (const int64_t[]){1, 1, 1}, 3);
    OK(ax_data_pack(data, &o.shape, &p));
    assert_true(p.rows == 0 && p.left_out == 3);
    FAILS(AX_ERR_DATA, "has no document of two tokens or more", ax_sampler_create(&data, 1, &o, &sampler));
    FAILS(AX_ERR_USAGE, "has 0 rows", ax_data_row_targets(data, &o.shape, 0, &targets));
    ax_data_close(&data);
    static const int64_t lengths[] = {0, -1, (int64_t)INT32_MAX + 1};
    data = make_documents(s, "ends.tok", (const int64_t[]){3, 3, 3}, 3);
    for (size_t i = 0; i < AX_COUNT(lengths); i++)
        for (int pack = 0; pack < 2; pack++) {
            const ax_row_shape wrong = {.seq_len = lengths[i], .pack = (ax_data_packing)pack};
            ax_rows out = {0};
            FAILS(AX_ERR_USAGE, "it must have 1 to 2147483647", ax_data_check_shape(data, &wrong));
            FAILS(AX_ERR_USAGE, "it must have 1 to 2147483647", ax_data_pack(data, &wrong, &p));
            FAILS(AX_ERR_USAGE, "it must have 1 to 2147483647",
                  ax_data_row_targets(data, &wrong, 0, &targets));
            FAILS(AX_ERR_USAGE, "it must have 1 to 2147483647", ax_data_row(data, &wrong, 0, &out, 0, NULL));
            assert_int_equal(ax_data_rows(data, &wrong), 0);
        }
    ax_data_close(&data);
}

/* Rows that were chosen before a source is packed again are no rows any more. */
static void packed_again(void **state)
{
    scratch *s = *state;
    ax_data *data = make_documents(s, "again.tok", (const int64_t[]){5, 5, 5, 5}, 4);
    ax_sampler *sampler;
    ax_data_packed p;
    int64_t targets;
    ax_rows out = rows_create(4, 4);
    const ax_sampler_options o = {.shape = {.seq_len = 4, .pack = AX_PACK_DOCUMENTS}, .batch = 4};
    const ax_row_shape wide = {.seq_len = 16, .pack = AX_PACK_DOCUMENTS}, none = {.pack = AX_PACK_DOCUMENTS};
    OK(ax_data_pack(data, &o.shape, &p));
    OK(ax_sampler_create(&data, 1, &o, &sampler));
    OK(ax_sampler_next(sampler, &targets));
    OK(ax_data_pack(data, &wide, &p));
    FAILS(AX_ERR_USAGE, "has 0 rows of 4 tokens", ax_sampler_read(sampler, 0, 4, &out));
    FAILS(AX_ERR_USAGE, "it must have 1 to", ax_data_pack(data, &none, &p));
    FAILS(AX_ERR_USAGE, "has 0 rows of 4 tokens", ax_sampler_read(sampler, 0, 4, &out));
    rows_free(&out);
    ax_sampler_destroy(&sampler);
    ax_data_close(&data);
}

/* The length of rows that the user does not give. */
static void lengths_by_the_data(void **state)
{
    scratch *s = *state;
    static const int64_t lengths[][3] = {
        {5, 201, 60}, {5, 2000, 1300}, {9000, 7, 6}, {70, 70, 71}, {1, 1, 1}};
    static const struct {
        int from;
        ax_data_packing pack;
        int64_t positions, length;
        ax_row_length_rule rule;
    } rows[] = {{0, AX_PACK_DOCUMENTS, 1 << 20, 256, AX_LENGTH_LONGEST},
                {0, AX_PACK_DOCUMENTS, 256, 256, AX_LENGTH_LONGEST},
                {0, AX_PACK_DOCUMENTS, 210, 210, AX_LENGTH_LONGEST},
                {0, AX_PACK_DOCUMENTS, 200, 200, AX_LENGTH_POSITIONS},
                {0, AX_PACK_DOCUMENTS, 100, 100, AX_LENGTH_POSITIONS},
                {0, AX_PACK_STREAM, 1 << 20, 265, AX_LENGTH_ALL},
                {1, AX_PACK_STREAM, 1 << 20, 2048, AX_LENGTH_LONGEST},
                {2, AX_PACK_STREAM, 1 << 20, AX_ROW_MOST, AX_LENGTH_MOST},
                {2, AX_PACK_DOCUMENTS, 4097, AX_ROW_MOST, AX_LENGTH_MOST},
                {2, AX_PACK_DOCUMENTS, 4095, 4095, AX_LENGTH_POSITIONS},
                {3, AX_PACK_DOCUMENTS, 1 << 20, 128, AX_LENGTH_LONGEST},
                {3, AX_PACK_STREAM, 1 << 20, 210, AX_LENGTH_ALL},
                {4, AX_PACK_STREAM, 1 << 20, 2, AX_LENGTH_ALL},
                {4, AX_PACK_DOCUMENTS, 1 << 20, 1, AX_LENGTH_LONGEST}};
    ax_data *data[AX_COUNT(lengths)];
    for (size_t i = 0; i < AX_COUNT(lengths); i++) {
        char name[16];
        snprintf(name, sizeof name, "%zu.tok", i);
        data[i] = make_documents(s, name, lengths[i], 3);
    }
    ax_row_length length;
    for (size_t i = 0; i < AX_COUNT(rows); i++) {
        OK(ax_data_choose_length(&data[rows[i].from], 1, &(ax_row_shape){.pack = rows[i].pack},
                                 rows[i].positions, &length));
        if (length.seq_len != rows[i].length || length.rule != rows[i].rule)
            fail_msg("row %zu: %lld tokens by rule %d", i, (long long)length.seq_len, (int)length.rule);
    }
    OK(ax_data_choose_length(data, 2, &(ax_row_shape){.pack = AX_PACK_DOCUMENTS}, 5000, &length));
    assert_int_equal(length.seq_len, 2048);
    char text[AX_ROW_LENGTH_TEXT];
    ax_row_length_print(&length, "--seq-len", text);
    assert_string_equal(
        text, "rows have 2048 tokens, enough for the longest document (2000); --seq-len sets another "
              "length, up to the model's 5000 positions");
    for (size_t i = 0; i < AX_COUNT(lengths); i++)
        ax_data_close(&data[i]);
}

/* Checks one document of a source that is read as excerpts: where it is, and its row there. */
static void expect_excerpt(const ax_data *data, const ax_row_shape *shape, const ax_data_piece *p)
{
    const ax_excerpt *x = &shape->excerpt;
    int64_t first, end;
    int32_t tokens[512];
    ax_rows out = rows_create(1, shape->seq_len);
    OK(ax_data_document(data, p->document, &first, &end));
    end = ax_min(end, first + x->document);
    if (x->prompt)
        first = end - x->prompt - x->target;
    assert_true(p->start == first && p->length == end - first - 1);
    OK(ax_data_tokens(data, first, end - first, tokens));
    OK(ax_data_row(data, shape, p->row, &out, 0, NULL));
    for (int64_t i = 0; i < p->length; i++) {
        const int64_t at = p->position + i;
        assert_true(out.tokens[at] == tokens[i] && out.position[at] == i);
        assert_true(shape->mask_documents || at == i);
        assert_int_equal(out.targets[at], i < p->length - x->target ? -1 : tokens[i + 1]);
    }
    rows_free(&out);
}

/* Of each document that is long enough the excerpt is in one row, and its targets are the only ones. */
static void excerpts_of_documents(void **state)
{
    scratch *s = *state;
    enum { D = 1500 }; /* more than a window */
    static int64_t lengths[D];
    static const struct {
        int64_t T;
        ax_excerpt excerpt;
    } cases[] = {
        {63, {64, 0, 10}}, {80, {64, 0, 63}}, {29, {90, 20, 10}}, {70, {1000, 1, 3}}, {1, {2, 1, 1}}};
    for (int d = 0; d < D; d++)
        lengths[d] = 1 + (int64_t)(ax_rng_uniform(5, (uint64_t)d) * 100);
    ax_data *data = make_documents(s, "excerpts.tok", lengths, D);
    for (size_t c = 0; c < AX_COUNT(cases); c++) {
        const ax_excerpt *x = &cases[c].excerpt;
        const ax_row_shape shape = {
            .seq_len = cases[c].T, .mask_documents = c != 1, .pack = AX_PACK_DOCUMENTS, .excerpt = *x};
        const int64_t need = ax_max(x->prompt, 1) + x->target;
        ax_data_packed packed;
        ax_data_piece *piece;
        int64_t n, targets = 0, enough = 0, seen = 0;
        OK(ax_data_pack(data, &shape, &packed));
        OK(ax_data_pieces(data, &piece, &n));
        for (int d = 0; d < D; d++)
            enough += ax_min(lengths[d], x->document) >= need;
        assert_true(enough > 10 && n == enough && packed.documents == n && packed.left_out == D - n);
        for (int64_t i = 0; i < n; i++) {
            expect_excerpt(data, &shape, &piece[i]);
            seen += piece[i].index;
            assert_true(!i || piece[i].row > piece[i - 1].row ||
                        piece[i].position == piece[i - 1].position + piece[i - 1].length);
        }
        assert_int_equal(seen, n * (n - 1) / 2);
        assert_true(shape.mask_documents ? packed.rows <= n : packed.rows == n);
        for (int64_t r = 0, here; r < packed.rows; r++, targets += here)
            OK(ax_data_row_targets(data, &shape, r, &here));
        assert_int_equal(targets, n * x->target);
        free(piece);
    }
    ax_data_close(&data);
}

/* An excerpt needs a prompt and a target that fit into a row, and packed documents. */
static void excerpts_that_are_refused(void **state)
{
    scratch *s = *state;
    ax_data *data = make_documents(s, "few.tok", (int64_t[]){20, 30}, 2);
    static const struct {
        int64_t T;
        ax_data_packing pack;
        ax_excerpt excerpt;
    } cases[] = {{20, AX_PACK_DOCUMENTS, {22, 0, 5}},  {20, AX_PACK_STREAM, {21, 0, 5}},
                 {20, AX_PACK_DOCUMENTS, {21, 0, 21}}, {20, AX_PACK_DOCUMENTS, {21, 0, 0}},
                 {20, AX_PACK_DOCUMENTS, {0, 3, 0}},   {20, AX_PACK_DOCUMENTS, {10, 6, 5}},
                 {20, AX_PACK_DOCUMENTS, {90, 17, 5}}, {20, AX_PACK_DOCUMENTS, {21, -1, 5}}};
    ax_data_packed packed;
    for (size_t c = 0; c < AX_COUNT(cases); c++)
        assert_int_equal(ax_data_check_shape(data, &(ax_row_shape){.seq_len = cases[c].T,
                                                                   .pack = cases[c].pack,
                                                                   .excerpt = cases[c].excerpt}),
                         AX_ERR_USAGE);
    ax_row_shape shape = {.seq_len = 20, .pack = AX_PACK_DOCUMENTS, .excerpt = {21, 0, 5}};
    OK(ax_data_pack(data, &shape, &packed));
    assert_int_equal(ax_data_rows(data, &shape), 2);
    shape.excerpt.target = 6; /* was not packed for this */
    assert_int_equal(ax_data_rows(data, &shape), 0);
    ax_data_close(&data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(rows_by_hand, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(every_target_once, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(short_dialogues_fill_rows, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(goldfish_in_packed_rows, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(longer_than_a_row, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(without_targets_after_the_cut, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(conversations_are_packed, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(packed_batches, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(what_is_refused, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(packed_again, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(lengths_by_the_data, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(excerpts_of_documents, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(excerpts_that_are_refused, files_setup, files_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
