/* Token files in shards, named by directory or pattern, in each format: they read like one file with all
 * their tokens. */
#include "data_test.h"

enum { N = 61, SHARDS = 4, END = 9, VOCAB = 50 };
/* First tokens of the shards: one shard has a single token, and a row may span three of them. */
static const int64_t shard_at[SHARDS + 1] = {0, 23, 24, 40, N};

/* Documents of odd lengths; each shard ends with the end of a document. */
static int32_t token_at(int64_t i)
{
    for (int s = 1; s <= SHARDS; s++)
        if (i == shard_at[s] - 1)
            return END;
    return i % 7 == 3 || i % 11 == 5 ? END : (int32_t)(i * 5 % VOCAB);
}

/* ---- writing tokens first ... end-1 -------------------------------------------------------------- */

static void put_tok(scratch *s, const char *name, int64_t first, int64_t end)
{
    ax_token_writer *w;
    OK(ax_token_writer_create(in_scratch(s, name), VOCAB, END, 0x12, &w));
    for (int64_t i = first, start = first; i < end; i++) {
        int32_t document[N];
        document[i - start] = token_at(i);
        if (token_at(i) != END)
            continue;
        for (int64_t k = start; k < i; k++)
            document[k - start] = token_at(k);
        OK(ax_token_writer_add(w, document, i - start, 3));
        start = i + 1;
    }
    OK(ax_token_writer_finish(&w, NULL));
}

static void add_tokens(ax_buf *f, int64_t first, int64_t end, size_t width)
{
    for (int64_t i = first; i < end; i++)
        add_bytes(f, &(uint64_t){(uint64_t)token_at(i)}, width);
}

static void put_llmc(scratch *s, const char *name, int64_t first, int64_t end)
{
    ax_buf f = {0};
    add_u32(&f, 20240520);
    add_u32(&f, 1);
    add_u32(&f, (uint64_t)(end - first));
    while (f.size < 1024)
        add_u32(&f, 0);
    add_tokens(&f, first, end, 2);
    put_file(s, name, f.data, f.size);
    ax_buf_fini(&f);
}

static void put_llmc32(scratch *s, const char *name, int64_t first, int64_t end)
{
    ax_buf f = {0};
    add_u32(&f, 20240801);
    add_u32(&f, 7);
    add_u32(&f, (uint64_t)(end - first));
    while (f.size < 1024)
        add_u32(&f, 0);
    add_tokens(&f, first, end, 4);
    put_file(s, name, f.data, f.size);
    ax_buf_fini(&f);
}

static void put_nanogpt(scratch *s, const char *name, int64_t first, int64_t end)
{
    ax_buf f = {0};
    add_tokens(&f, first, end, 2);
    put_file(s, name, f.data, f.size);
    ax_buf_fini(&f);
}

/* Writes NAME.bin and NAME.idx, with a sequence and a document for each run of tokens that END closes. */
static void put_megatron(scratch *s, const char *name, int64_t first, int64_t end)
{
    int64_t start[N + 1], n = 0;
    char idx_name[64];
    ax_buf idx = {0};
    put_nanogpt(s, name, first, end);
    for (int64_t i = first; i < end; i++)
        if (i == first || token_at(i - 1) == END)
            start[n++] = i - first;
    start[n] = end - first;
    add_bytes(&idx, "MMIDIDX\0\0", 9);
    add_u64(&idx, 1);
    add_bytes(&idx, &(unsigned char){8}, 1);
    add_u64(&idx, (uint64_t)n);
    add_u64(&idx, (uint64_t)n + 1);
    for (int64_t i = 0; i < n; i++)
        add_u32(&idx, (uint64_t)(start[i + 1] - start[i]));
    for (int64_t i = 0; i < n; i++)
        add_u64(&idx, (uint64_t)(2 * start[i]));
    for (int64_t i = 0; i <= n; i++)
        add_u64(&idx, (uint64_t)i);
    snprintf(idx_name, sizeof idx_name, "%.*s.idx", (int)strlen(name) - 4, name);
    put_file(s, idx_name, idx.data, idx.size);
    ax_buf_fini(&idx);
}

static const struct {
    ax_data_format format;
    const char *suffix;
    void (*put)(scratch *s, const char *name, int64_t first, int64_t end);
} formats[] = {{AX_DATA_TOK, "tok", put_tok},
               {AX_DATA_LLMC, "bin", put_llmc},
               {AX_DATA_LLMC32, "bin", put_llmc32},
               {AX_DATA_NANOGPT, "bin", put_nanogpt},
               {AX_DATA_MEGATRON, "bin", put_megatron}};

/* Writes shards to `dir` in the scratch directory, and all their tokens to one file beside it. */
static void put_shards(scratch *s, size_t f, const char *dir)
{
    char name[64];
    OK(ax_mkdirs(in_scratch(s, dir)));
    for (int i = 0; i < SHARDS; i++) {
        snprintf(name, sizeof name, "%s/part-%d.%s", dir, i, formats[f].suffix);
        formats[f].put(s, name, shard_at[i], shard_at[i + 1]);
    }
    snprintf(name, sizeof name, "%s-whole.%s", dir, formats[f].suffix);
    formats[f].put(s, name, 0, N);
}

/* ---- reading ------------------------------------------------------------------------------------- */

static void expect_same_rows(const ax_data *a, const ax_data *b, int64_t seq_len, bool mask)
{
    ax_row_shape shape = {.seq_len = seq_len, .mask_documents = mask};
    ax_rows x = rows_create(1, seq_len), y = rows_create(1, seq_len);
    size_t bytes = (size_t)seq_len * sizeof *x.tokens;
    assert_int_equal(ax_data_rows(a, &shape), ax_data_rows(b, &shape));
    for (int64_t r = 0; r < ax_data_rows(a, &shape); r++) {
        int64_t n, m, counted;
        OK(ax_data_row(a, &shape, r, &x, 0, &n));
        OK(ax_data_row(b, &shape, r, &y, 0, &m));
        assert_int_equal(n, m);
        OK(ax_data_row_targets(a, &shape, r, &counted));
        assert_int_equal(counted, n);
        assert_memory_equal(x.tokens, y.tokens, bytes);
        assert_memory_equal(x.targets, y.targets, bytes);
        assert_memory_equal(x.doc_start, y.doc_start, bytes);
        assert_memory_equal(x.position, y.position, bytes);
    }
    rows_free(&x);
    rows_free(&y);
}

static void expect_same_documents(const ax_data *a, const ax_data *b)
{
    int64_t first[2], end[2];
    assert_int_equal(ax_data_describe(a)->documents, ax_data_describe(b)->documents);
    for (int64_t d = 0; d < ax_data_describe(a)->documents; d++) {
        OK(ax_data_document(a, d, &first[0], &end[0]));
        OK(ax_data_document(b, d, &first[1], &end[1]));
        assert_int_equal(first[0], first[1]);
        assert_int_equal(end[0], end[1]);
    }
}

static void expect_same(const char *shards, const char *whole, ax_data_format format)
{
    ax_data *a, *b;
    ax_data_format found;
    int32_t x[N], y[N];
    OK(ax_data_detect(shards, &found));
    assert_int_equal(found, format);
    OK(ax_data_open(shards, END, &a));
    OK(ax_data_open(whole, END, &b));
    assert_string_equal(ax_data_path(a), shards);
    assert_int_equal(ax_data_describe(a)->tokens, N);
    assert_int_equal(ax_data_describe(a)->text_bytes, ax_data_describe(b)->text_bytes);
    assert_int_equal(ax_data_describe(a)->end_id, END);
    OK(ax_data_check(a));
    OK(ax_data_expect(a, &(ax_data_reader){1000, 0x12, NULL, false}));
    for (int64_t first = 0; first < N; first++) {
        OK(ax_data_tokens(a, first, N - first, x));
        OK(ax_data_tokens(b, first, N - first, y));
        assert_memory_equal(x, y, (size_t)(N - first) * sizeof *x);
    }
    for (int64_t seq_len = 1; seq_len <= N + 1; seq_len++) {
        expect_same_rows(a, b, seq_len, true);
        expect_same_rows(a, b, seq_len, false);
    }
    if (ax_data_describe(a)->documents >= 0)
        expect_same_documents(a, b);
    ax_data_close(&a);
    ax_data_close(&b);
}

static void shards_are_one_file(void **state)
{
    scratch *s = *state;
    for (size_t f = 0; f < AX_COUNT(formats); f++) {
        char dir[32], pattern[64], whole[64];
        snprintf(dir, sizeof dir, "d%zu", f);
        snprintf(pattern, sizeof pattern, "d%zu/part-[0-9].*", f);
        snprintf(whole, sizeof whole, "d%zu-whole.%s", f, formats[f].suffix);
        put_shards(s, f, dir);
        expect_same(in_scratch(s, dir), in_scratch(s, whole), formats[f].format);
        expect_same(in_scratch(s, pattern), in_scratch(s, whole), formats[f].format);
        put_text(s, "d0/.hidden", "not looked at");
    }
}

/* In byte order, books.en.bin and books.en.idx come between books.bin and books.idx. */
static void pairs_of_files_are_one_shard_each(void **state)
{
    scratch *s = *state;
    OK(ax_mkdirs(in_scratch(s, "pairs")));
    put_megatron(s, "pairs/books.bin", 0, shard_at[1]);
    put_megatron(s, "pairs/books.en.bin", shard_at[1], N);
    put_megatron(s, "pairs.bin", 0, N);
    expect_same(in_scratch(s, "pairs"), in_scratch(s, "pairs.bin"), AX_DATA_MEGATRON);
    expect_same(in_scratch(s, "pairs/*"), in_scratch(s, "pairs.bin"), AX_DATA_MEGATRON);
}

/* The checksum depends on the order and on the contents of the shards. */
static void checksums(void **state)
{
    scratch *s = *state;
    uint64_t sum[3];
    for (int i = 0; i < 3; i++) {
        ax_data *data;
        put_nanogpt(s, "a.bin", i == 1 ? 10 : 0, i == 1 ? 20 : 10);
        put_nanogpt(s, "b.bin", i == 1 ? 0 : 10, i == 1 ? 10 : 20);
        OK(ax_data_open(in_scratch(s, "*.bin"), -1, &data));
        sum[i] = ax_data_describe(data)->checksum;
        ax_data_close(&data);
    }
    assert_int_equal(sum[0], sum[2]);
    assert_int_not_equal(sum[0], sum[1]);
}

static void refused(void **state)
{
    scratch *s = *state;
    ax_data *data;
    ax_data_format format;
    int32_t token;
    put_shards(s, 0, "d");
    put_text(s, "d/README", "text");
    FAILS(AX_ERR_DATA, "and other files", ax_data_open(in_scratch(s, "d"), -1, &data));
    assert_null(data);
    FAILS(AX_ERR_DATA, "README", ax_data_detect(in_scratch(s, "d"), &format));
    FAILS(AX_ERR_DATA, "no file matches", ax_data_open(in_scratch(s, "d/*.bin"), -1, &data));
    FAILS(AX_ERR_DATA, "README holds text", ax_data_open(in_scratch(s, "d/[Rp]*"), -1, &data));
    put_nanogpt(s, "d/x.bin", 0, 5);
    FAILS(AX_ERR_DATA, "all shards must have the same format",
          ax_data_open(in_scratch(s, "d/*.[bt]*"), -1, &data));
    ax_token_writer *w;
    OK(ax_token_writer_create(in_scratch(s, "d/z.tok"), VOCAB, END, 0x13, &w));
    OK(ax_token_writer_add(w, &(int32_t){1}, 1, 1));
    OK(ax_token_writer_finish(&w, NULL));
    FAILS(AX_ERR_DATA, "different tokenizers", ax_data_open(in_scratch(s, "d/*.tok"), -1, &data));
    OK(ax_data_open(in_scratch(s, "d/p*"), -1, &data));
    FAILS(AX_ERR_USAGE, "61 tokens", ax_data_tokens(data, N, 1, &token));
    FAILS(AX_ERR_DATA, "part-0.tok", ax_data_expect(data, &(ax_data_reader){10, 0, NULL, false}));
    ax_data_close(&data);
    /* A directory with other files is read as text if the first bytes of no file prove that it holds tokens.
     */
    OK(ax_mkdirs(in_scratch(s, "t")));
    put_text(s, "t/a.txt", "text");
    put_nanogpt(s, "t/b.bin", 0, 5);
    OK(ax_data_detect(in_scratch(s, "t"), &format));
    assert_int_equal(format, AX_DATA_TREE);
    FAILS(AX_ERR_DATA, "a token file must be a regular file", ax_data_open("/dev/null", -1, &data));
}

/* Shards are also found in subdirectories, but not behind links to directories. */
static void directories_below(void **state)
{
    scratch *s = *state;
    ax_data *data;
    int32_t tokens[4];
    OK(ax_mkdirs(in_scratch(s, "deep/a/b")));
    put_nanogpt(s, "deep/z.bin", 0, 1);
    put_nanogpt(s, "deep/a/b/y.bin", 1, 3);
    put_nanogpt(s, "deep/a/x.bin", 3, 4);
    assert_int_equal(symlink("..", in_scratch(s, "deep/a/up")), 0);
    OK(ax_data_open(in_scratch(s, "deep"), -1, &data));
    assert_int_equal(ax_data_describe(data)->tokens, 4);
    OK(ax_data_tokens(data, 0, 4, tokens));
    for (int i = 0; i < 4; i++)
        assert_int_equal(tokens[i], token_at((i + 1) % 4));
    ax_data_close(&data);
    put_text(s, "deep/a/b/README", "text");
    ax_data_format format;
    OK(ax_data_detect(in_scratch(s, "deep"), &format));
    assert_int_equal(format, AX_DATA_TREE);
}

/* Patterns work for text as well. */
static void text_by_pattern(void **state)
{
    scratch *s = *state;
    ax_corpus *corpus;
    ax_buf document = {0};
    bool end;
    put_text(s, "b.txt", "two");
    put_text(s, "a.txt", "one ");
    put_text(s, "c.md", "three");
    const char *input = in_scratch(s, "*.txt");
    OK(ax_corpus_create(&(ax_corpus_options){.inputs = &input, .n_inputs = 1}, &corpus));
    assert_int_equal(ax_corpus_files(corpus), 2);
    OK(ax_corpus_next(corpus, &document, &end));
    OK(ax_corpus_next(corpus, &document, &end));
    assert_string_equal(document.data, "one two");
    ax_corpus_destroy(&corpus);
    ax_buf_fini(&document);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(shards_are_one_file, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(pairs_of_files_are_one_shard_each, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(checksums, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(refused, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(directories_below, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(text_by_pattern, files_setup, files_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
