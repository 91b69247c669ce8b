/* Masks of packed token files (version 2): what the writer stores, rows and counts of targets against a naive
 * oracle, shards with and without masks, damage. */
#include "data_test.h"

#include "data/source.h"

#include <xxhash.h>

enum { N_MOST = 12000, END_ID = 9, VOCAB = 50 };

/* The tokens that were written, and for each whether its mask bit is 1 and whether a document starts there.
 */
typedef struct written {
    int64_t n;
    int32_t token[N_MOST];
    uint8_t bit[N_MOST], start[N_MOST];
} written;

static void keep(written *all, const int32_t *tokens, const uint8_t *bits, int64_t n, bool closes)
{
    assert_true(all->n + n + 1 <= N_MOST);
    all->start[all->n] = 1;
    for (int64_t i = 0; i < n; i++) {
        all->token[all->n] = tokens[i];
        all->bit[all->n++] = !bits || bits[i];
    }
    if (closes) {
        all->token[all->n] = END_ID;
        all->bit[all->n++] = !bits;
    }
}

/* Writes `documents` documents of 1 to `longest` tokens, every third of plain text. The first two are plain
 * text, which gets its bits only after the file has a mask; `masked` false: all are. Some documents with a
 * mask end with END_ID themselves. */
static void put_masked(const char *path, int documents, int longest, bool masked, written *all)
{
    ax_token_writer *w;
    static int32_t tokens[N_MOST];
    static uint8_t bits[N_MOST];
    uint64_t key = ax_rng_key(7, "mask", (uint64_t)documents), at = 0;
    OK(ax_token_writer_create(path, VOCAB, END_ID, 5, &w));
    for (int d = 0; d < documents; d++) {
        int64_t n = 1 + (int64_t)(ax_rng_uniform(key, at++) * longest);
        for (int64_t i = 0; i < n; i++) {
            tokens[i] = 10 + (int32_t)(ax_rng_uniform(key, at++) * 40);
            bits[i] = ax_rng_uniform(key, at++) < 0.3;
        }
        bits[n / 2] = 1;
        if (!masked || d < 2 || d % 3 == 0) {
            OK(ax_token_writer_add(w, tokens, n, n));
            keep(all, tokens, NULL, n, true);
            continue;
        }
        tokens[n - 1] = d % 2 ? END_ID : tokens[n - 1];
        OK(ax_token_writer_add_masked(w, tokens, bits, n, n));
        keep(all, tokens, bits, n, tokens[n - 1] != END_ID);
    }
    OK(ax_token_writer_finish(&w, NULL));
}

static int64_t sum_bits(const written *all)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < all->n; i++)
        sum += all->bit[i];
    return sum;
}

static void expect_bits(const ax_data *data, const written *all, int64_t first, int64_t count)
{
    static uint64_t bits[N_MOST / 64 + 2];
    memset(bits, 0xa5, sizeof bits);
    OK(ax_data_mask(data, first, count, bits));
    for (int64_t i = 0; i < (count + 63) / 64 * 64; i++)
        assert_int_equal(bits[i / 64] >> i % 64 & 1, i < count ? all->bit[first + i] : 0);
}

/* Compares all rows, and the counts of their targets, with the definitions of axonn/data.h. */
static void expect_rows(const ax_data *data, const written *all, int64_t T, bool documents, bool answers)
{
    ax_row_shape shape = {.seq_len = T, .mask_documents = documents, .answers = answers};
    ax_rows out = rows_create(1, T);
    for (int64_t row = 0; row < ax_data_rows(data, &shape); row++) {
        int64_t got, counted, expected = 0, doc = 0;
        OK(ax_data_row(data, &shape, row, &out, 0, &got));
        OK(ax_data_row_targets(data, &shape, row, &counted));
        for (int64_t t = 0, at = row * T; t < T; t++, at++) {
            bool target =
                at + 1 < all->n && !(documents && all->start[at + 1]) && !(answers && !all->bit[at + 1]);
            doc = t && documents && at < all->n && all->start[at] ? t : doc;
            expected += target;
            assert_int_equal(out.targets[t], target ? all->token[at + 1] : -1);
            assert_int_equal(out.position[t], t - out.doc_start[t]);
            if (at + 1 < all->n)
                assert_int_equal(out.doc_start[t], doc);
        }
        assert_int_equal(got, expected);
        assert_int_equal(counted, expected);
    }
    rows_free(&out);
}

static void expect_all(const ax_data *data, const written *all)
{
    static const int64_t lengths[] = {1, 7, 64, 100, 4096, 5000};
    assert_int_equal(ax_data_describe(data)->tokens, all->n);
    assert_int_equal(ax_data_describe(data)->targets, sum_bits(all));
    for (size_t i = 0; i < AX_COUNT(lengths); i++)
        for (int flags = 0; flags < 4; flags++)
            expect_rows(data, all, lengths[i], flags & 1, flags & 2);
    for (int64_t first = 0; first < ax_min(all->n, 200); first += 13)
        for (int64_t count = 0; count <= all->n - first; count += 1 + all->n / 9)
            expect_bits(data, all, first, count);
    expect_bits(data, all, 0, all->n);
    FAILS(AX_ERR_USAGE, "ax_data_mask: the 2 tokens from token", ax_data_mask(data, all->n - 1, 2, NULL));
}

static void rows_of_a_file(void **state)
{
    scratch *s = *state;
    static const int counts[] = {3, 12, 40, 800};
    for (size_t i = 0; i < AX_COUNT(counts); i++) {
        static written all;
        ax_data *data;
        memset(&all, 0, sizeof all);
        const char *path = in_scratch(s, "m.tok");
        put_masked(path, counts[i], i == 1 ? 900 : 20, true, &all);
        OK(ax_data_open(path, -1, &data));
        OK(ax_data_check(data));
        expect_all(data, &all);
        ax_data_close(&data);
    }
}

/* Without documents that have a mask the file is of version 1, byte for byte as before. */
static void no_mask(void **state)
{
    scratch *s = *state;
    static written all;
    const char *path = in_scratch(s, "plain.tok");
    put_masked(path, 10, 20, false, &all);
    tok_header h;
    char *bytes;
    size_t size;
    OK(ax_file_read(path, &bytes, &size));
    memcpy(&h, bytes, sizeof h);
    free(bytes);
    assert_int_equal(h.version, 1);
    assert_int_equal(h.mask_at | h.targets | h.mask_hash, 0);
    assert_int_equal(size, h.index_at + 8 * (h.documents + 1));
    ax_data *data;
    OK(ax_data_open(path, -1, &data));
    assert_int_equal(ax_data_describe(data)->targets, -1);
    expect_rows(data, &all, 7, true, true);
    expect_bits(data, &all, 3, 70);
    ax_data_close(&data);
}

/* A shard without a mask between shards that have one. */
static void shards(void **state)
{
    scratch *s = *state;
    static written all;
    char name[32];
    OK(ax_mkdirs(in_scratch(s, "parts")));
    for (int i = 0; i < 5; i++) {
        snprintf(name, sizeof name, "parts/%d.tok", i);
        put_masked(in_scratch(s, name), 4 + i, 30, i % 2 == 1, &all);
    }
    ax_data *data;
    OK(ax_data_open(in_scratch(s, "parts"), -1, &data));
    OK(ax_data_check(data));
    expect_all(data, &all);
    ax_data_close(&data);
}

/* Writes a copy of the file with one byte of its mask, or one field of its header, changed, and all checksums
 * right. */
static const char *put_damaged(scratch *s, const char *from, int64_t bit, int64_t add_targets)
{
    char *bytes;
    size_t size;
    tok_header h;
    OK(ax_file_read(from, &bytes, &size));
    memcpy(&h, bytes, sizeof h);
    if (bit >= 0)
        bytes[h.mask_at + (uint64_t)bit / 8] ^= (char)(1 << bit % 8);
    h.targets += (uint64_t)add_targets;
    h.body_hash = XXH3_64bits(bytes + sizeof h, size - sizeof h);
    h.header_hash = tok_header_hash(&h);
    h.mask_hash = tok_mask_hash(&h);
    memcpy(bytes, &h, sizeof h);
    const char *path = put_file(s, "damaged.tok", bytes, size);
    free(bytes);
    return path;
}

static void expect_damage(const char *path, const char *text)
{
    ax_data *data;
    OK(ax_data_open(path, -1, &data));
    FAILS(AX_ERR_DATA, text, ax_data_check(data));
    ax_data_close(&data);
}

/* Writes a file of one document, with a mask or without, whose template has this name. */
static const char *put_named(scratch *s, const char *file, bool masked, const char *name)
{
    ax_token_writer *w;
    ax_data_info info;
    const char *path = in_scratch(s, file);
    OK(ax_token_writer_create(path, VOCAB, END_ID, 5, &w));
    ax_token_writer_set_template(w, "a name that is longer");
    ax_token_writer_set_template(w, name);
    if (masked)
        OK(ax_token_writer_add_masked(w, (int32_t[]){3, 4}, (uint8_t[]){0, 1}, 2, 2));
    else
        OK(ax_token_writer_add(w, (int32_t[]){3, 4}, 2, 2));
    OK(ax_token_writer_finish(&w, &info));
    assert_string_equal(info.chat_template, masked ? name : "");
    return path;
}

static void expect_name(const char *path, const char *name)
{
    ax_data *data;
    OK(ax_data_open(path, -1, &data));
    assert_string_equal(ax_data_describe(data)->chat_template, name);
    ax_data_close(&data);
}

static void templates_are_recorded(void **state)
{
    scratch *s = *state;
    static const struct {
        const char *first, *second;
        bool masked[2];
        const char *whole;
    } cases[] = {{"alpaca", "alpaca", {true, true}, "alpaca"},
                 {"alpaca", "chatml", {true, true}, ""},
                 {"alpaca", "", {true, true}, ""},
                 {"", "alpaca", {true, true}, ""},
                 {"alpaca", "chatml", {true, false}, "alpaca"},
                 {"chatml", "alpaca", {false, true}, "alpaca"},
                 {"alpaca", "alpaca", {false, false}, ""}};
    expect_name(put_named(s, "one.tok", true, "deepseek-coder"), "deepseek-coder");
    expect_name(put_named(s, "one.tok", false, "deepseek-coder"), "");
    OK(ax_mkdirs(in_scratch(s, "named")));
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        put_named(s, "named/0.tok", cases[i].masked[0], cases[i].first);
        put_named(s, "named/1.tok", cases[i].masked[1], cases[i].second);
        expect_name(in_scratch(s, "named"), cases[i].whole);
    }
}

static void damage(void **state)
{
    scratch *s = *state;
    ax_token_writer *w;
    ax_data *data;
    tok_header h;
    char *bytes;
    size_t size;
    const char *path = in_scratch(s, "good.tok");
    OK(ax_token_writer_create(path, VOCAB, END_ID, 5, &w));
    OK(ax_token_writer_add(w, (int32_t[]){1, 2}, 2, 2));
    OK(ax_token_writer_add_masked(w, (int32_t[]){3, 4, 5}, (uint8_t[]){0, 1, 0}, 3, 3));
    FAILS(AX_ERR_USAGE, "document 2 of", ax_token_writer_add_masked(w, (int32_t[]){3}, (uint8_t[]){0}, 1, 1));
    OK(ax_token_writer_finish(&w, NULL));
    expect_damage(put_damaged(s, path, 4, 0), "its mask has no target in document 1");
    expect_damage(put_damaged(s, path, 5, 0), "its mask has 5 targets, its header (offset 104) says 4");
    expect_damage(put_damaged(s, path, -1, 1), "its mask has 4 targets, its header (offset 104) says 5");
    expect_damage(put_damaged(s, path, 7, 0), "its mask has a 1 after the bit of the last token");
    OK(ax_data_open(put_damaged(s, path, -1, 0), -1, &data));
    OK(ax_data_check(data));
    ax_data_close(&data);
    OK(ax_file_read(path, &bytes, &size));
    bytes[104] ^= 1;
    path = put_file(s, "fields.tok", bytes, size);
    FAILS(AX_ERR_DATA, "the checksum of the mask's fields (offset 112)", ax_data_open(path, -1, &data));
    bytes[104] ^= 1;
    bytes[200] = 1;
    path = put_file(s, "zeros.tok", bytes, size);
    FAILS(AX_ERR_DATA, "byte 200 of its header is 0x01, but bytes 152 to 255", ax_data_open(path, -1, &data));
    bytes[200] = 0;
    bytes[130] = 1;
    path = put_file(s, "name.tok", bytes, size);
    FAILS(AX_ERR_DATA, "the name of its chat template (offset 120)", ax_data_open(path, -1, &data));
    bytes[130] = 0;
    path = put_file(s, "short.tok", bytes, size - 8);
    FAILS(AX_ERR_DATA, "is truncated", ax_data_open(path, -1, &data));
    memcpy(&h, bytes, sizeof h);
    h.version = 3;
    memcpy(bytes, &h, sizeof h);
    path = put_file(s, "new.tok", bytes, size);
    FAILS(AX_ERR_DATA, "has format version 3, but this program reads 1 and 2", ax_data_open(path, -1, &data));
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(rows_of_a_file, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(no_mask, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(shards, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(templates_are_recorded, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(damage, files_setup, files_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
