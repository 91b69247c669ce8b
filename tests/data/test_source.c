/* Token sources: every format written byte by byte, rows against a naive oracle, damage, files that
 * shrink, resident memory. */
#include "data_test.h"

/* ---- files made of bytes -------------------------------------------------------------------------- */

static const int32_t sample_tokens[] = {5, 6, 7, 9, 1, 9, 2, 3, 4, 8, 9}; /* 9 ends a document */
static const int64_t sample_starts[] = {0, 4, 6, 11};
enum { N = 11, D = 3 };

static const char *put_llmc(scratch *s, const char *name, int width)
{
    ax_buf f = {0};
    add_u32(&f, width == 2 ? 20240520 : 20240801);
    add_u32(&f, width == 2 ? 1 : 7);
    add_u32(&f, N);
    while (f.size < 1024)
        add_u32(&f, 0);
    for (int i = 0; i < N; i++)
        width == 2 ? add_u16(&f, (unsigned)sample_tokens[i]) : add_u32(&f, (uint64_t)sample_tokens[i]);
    const char *path = put_file(s, name, f.data, f.size);
    ax_buf_fini(&f);
    return path;
}

static const char *put_nanogpt(scratch *s, const char *name)
{
    ax_buf f = {0};
    for (int i = 0; i < N; i++)
        add_u16(&f, (unsigned)sample_tokens[i]);
    const char *path = put_file(s, name, f.data, f.size);
    ax_buf_fini(&f);
    return path;
}

/* Sequences of 4, 2, 3, 2, 0 tokens in documents of 1, 1, 2 and 1 sequences: the last document is empty. */
static void put_megatron(scratch *s, const char *stem, int code, int width)
{
    static const int lengths[] = {4, 2, 3, 2, 0}, bounds[] = {0, 1, 2, 4, 5};
    ax_buf idx = {0}, bin = {0};
    char name[64];
    add_bytes(&idx, "MMIDIDX\0\0", 9);
    add_u64(&idx, 1);
    add_bytes(&idx, &(unsigned char){(unsigned char)code}, 1);
    add_u64(&idx, 5);
    add_u64(&idx, 5);
    assert_int_equal(idx.size, 34);
    for (int i = 0; i < 5; i++)
        add_u32(&idx, (uint64_t)lengths[i]);
    for (int i = 0, at = 0; i < 5; at += lengths[i++] * width)
        add_u64(&idx, (uint64_t)at);
    for (int i = 0; i < 5; i++)
        add_u64(&idx, (uint64_t)bounds[i]);
    for (int i = 0; i < N; i++)
        add_bytes(&bin, &(uint64_t){(uint64_t)sample_tokens[i]}, (size_t)width);
    snprintf(name, sizeof name, "%s.idx", stem);
    put_file(s, name, idx.data, idx.size);
    snprintf(name, sizeof name, "%s.bin", stem);
    put_file(s, name, bin.data, bin.size);
    ax_buf_fini(&idx);
    ax_buf_fini(&bin);
}

static const char *put_tok(scratch *s, const char *name, int64_t vocab)
{
    const char *path = in_scratch(s, name);
    ax_token_writer *w;
    OK(ax_token_writer_create(path, vocab, 9, 0x1234, &w));
    for (int d = 0; d < D; d++)
        OK(ax_token_writer_add(w, sample_tokens + sample_starts[d],
                               sample_starts[d + 1] - sample_starts[d] - 1, 10 + d));
    OK(ax_token_writer_finish(&w, NULL));
    assert_null(w);
    return path;
}

/* ---- oracle --------------------------------------------------------------------------------------- */

static bool starts_at(const int64_t *starts, int64_t documents, int64_t pos)
{
    for (int64_t d = 0; d < documents; d++)
        if (starts[d] == pos)
            return true;
    return false;
}

/* Computes one row naively, directly from the definition in axonn/data.h. */
static void expect_row(const ax_data *data, const ax_row_shape *shape, int64_t row, const int32_t *tokens,
                       int64_t n, const int64_t *starts, int64_t documents)
{
    int64_t T = shape->seq_len, unmasked = 0, got = -1, doc = 0;
    ax_rows out = rows_create(2, T);
    OK(ax_data_row(data, shape, row, &out, 1, &got));
    for (int64_t t = 0; t < T; t++) {
        int64_t g = row * T + t;
        bool has_target = g + 1 < n;
        if (shape->mask_documents && t > 0 && g < n && starts_at(starts, documents, g))
            doc = t;
        if (g + 1 < n && shape->mask_documents && starts_at(starts, documents, g + 1))
            has_target = false;
        unmasked += has_target;
        assert_int_equal(out.tokens[T + t], g + 1 < n ? tokens[g] : -1);
        assert_int_equal(out.targets[T + t], has_target ? tokens[g + 1] : -1);
        if (g + 1 < n)
            assert_int_equal(out.doc_start[T + t], doc);
        assert_int_equal(out.position[T + t], t - out.doc_start[T + t]);
    }
    assert_int_equal(got, unmasked);
    int64_t counted;
    OK(ax_data_row_targets(data, shape, row, &counted));
    assert_int_equal(counted, unmasked);
    rows_free(&out);
}

static void expect_all_rows(const ax_data *data, const int32_t *tokens, int64_t n, const int64_t *starts,
                            int64_t documents, int64_t max_len)
{
    for (int64_t T = 1; T <= max_len; T++)
        for (int mask = 0; mask < 2; mask++) {
            ax_row_shape shape = {.seq_len = T, .mask_documents = mask};
            const ax_row_shape full = {.seq_len = T, .mask_documents = mask, .full_rows = true};
            assert_int_equal(ax_data_rows(data, &full), (n - 1) / T);
            assert_int_equal(ax_data_rows(data, &shape), (n - 1 + T - 1) / T);
            for (int64_t row = 0; row < ax_data_rows(data, &shape); row++)
                expect_row(data, &shape, row, tokens, n, starts, documents);
        }
}

/* ---- tests ---------------------------------------------------------------------------------------- */

static void expect_sample(const char *path, int64_t end_id, ax_data_format format, int width)
{
    ax_data *data;
    ax_data_format found;
    int32_t all[N];
    OK(ax_data_detect(path, &found));
    assert_int_equal(found, format);
    OK(ax_data_open(path, end_id, &data));
    const ax_data_info *info = ax_data_describe(data);
    assert_int_equal(info->format, format);
    assert_int_equal(info->token_bytes, width);
    assert_int_equal(info->tokens, N);
    OK(ax_data_tokens(data, 0, N, all));
    assert_memory_equal(all, sample_tokens, sizeof all);
    OK(ax_data_check(data));
    expect_all_rows(data, sample_tokens, N, sample_starts, D, N + 2);
    FAILS(AX_ERR_USAGE, "11 tokens", ax_data_tokens(data, 4, 8, all));
    OK(ax_data_expect(data, &(ax_data_reader){100000, 0, NULL, false}));
    ax_data_close(&data);
    assert_null(data);
}

static void formats(void **state)
{
    scratch *s = *state;
    expect_sample(put_llmc(s, "a.bin", 2), 9, AX_DATA_LLMC, 2);
    expect_sample(put_llmc(s, "b.bin", 4), 9, AX_DATA_LLMC32, 4);
    expect_sample(put_nanogpt(s, "train.bin"), 9, AX_DATA_NANOGPT, 2);
    expect_sample(put_tok(s, "small.tok", 10), -1, AX_DATA_TOK, 2);
    expect_sample(put_tok(s, "large", 100000), -1, AX_DATA_TOK, 4);
    static const int codes[][2] = {{1, 1}, {4, 4}, {5, 8}, {8, 2}};
    for (size_t i = 0; i < AX_COUNT(codes); i++) {
        put_megatron(s, "m", codes[i][0], codes[i][1]);
        expect_sample(in_scratch(s, "m.idx"), -1, AX_DATA_MEGATRON, codes[i][1]);
        expect_sample(in_scratch(s, "m.bin"), -1, AX_DATA_MEGATRON, codes[i][1]);
        expect_sample(in_scratch(s, "m"), -1, AX_DATA_MEGATRON, codes[i][1]);
    }
    put_megatron(s, "f", 7, 4);
    ax_data *data;
    FAILS(AX_ERR_DATA, "the dtype code of its tokens (offset 17) is 7, but must be 1",
          ax_data_open(in_scratch(s, "f.idx"), -1, &data));
    assert_null(data);
}

/* The bytes of a packed file, as listed at the top of axonn/data.h, without the checksums. */
static void packed_layout(void **state)
{
    scratch *s = *state;
    char *bytes;
    size_t size;
    OK(ax_file_read(put_tok(s, "t.tok", 10), &bytes, &size));
    ax_buf want = {0};
    add_bytes(&want, "AXTOKENS", 8);
    add_u32(&want, 1);
    add_u32(&want, 2);
    add_u64(&want, N);
    add_u64(&want, D);
    add_u64(&want, 10);
    add_u64(&want, 0x1234);
    add_u64(&want, 9);
    add_u64(&want, 33);
    add_u64(&want, 256);
    add_u64(&want, 256 + 24);
    assert_memory_equal(bytes, want.data, 80);
    assert_int_equal(size, 256 + 24 + 32);
    want.size = 0;
    for (int i = 0; i < N; i++)
        add_u16(&want, (unsigned)sample_tokens[i]);
    add_u16(&want, 0);
    for (int d = 0; d <= D; d++)
        add_u64(&want, (uint64_t)sample_starts[d]);
    assert_memory_equal(bytes + 256, want.data, size - 256);
    ax_buf_fini(&want);
    free(bytes);

    ax_data *data;
    int64_t first, end;
    OK(ax_data_open(in_scratch(s, "t.tok"), -1, &data));
    assert_int_equal(ax_data_describe(data)->documents, D);
    assert_int_equal(ax_data_describe(data)->text_bytes, 33);
    assert_int_equal(ax_data_describe(data)->end_id, 9);
    for (int d = 0; d < D; d++) {
        OK(ax_data_document(data, d, &first, &end));
        assert_int_equal(first, sample_starts[d]);
        assert_int_equal(end, sample_starts[d + 1]);
    }
    FAILS(AX_ERR_USAGE, "3 documents", ax_data_document(data, D, &first, &end));
    ax_data_close(&data);
}

/* Rows computed by hand: tokens 5 6 7 9 | 1 9 | 2 3 4 8 9 in rows of four. */
static void rows_by_hand(void **state)
{
    scratch *s = *state;
    static const int32_t tokens[] = {5, 6, 7, 9, 1, 9, 2, 3, 4, 8, -1, -1};
    static const int32_t targets[] = {6, 7, 9, -1, 9, -1, 3, 4, 8, 9, -1, -1};
    static const int32_t doc_start[] = {0, 0, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0};
    static const int32_t position[] = {0, 1, 2, 3, 0, 1, 0, 1, 0, 1, 2, 3};
    ax_row_shape shape = {.seq_len = 4, .mask_documents = true};
    ax_rows out = rows_create(3, 4);
    ax_data *data;
    int64_t count, sum = 0;
    OK(ax_data_open(put_tok(s, "t.tok", 10), -1, &data));
    assert_int_equal(ax_data_rows(data, &shape), 3);
    for (int r = 0; r < 3; r++) {
        OK(ax_data_row(data, &shape, r, &out, r, &count));
        sum += count;
    }
    assert_int_equal(sum, 8);
    assert_memory_equal(out.tokens, tokens, sizeof tokens);
    assert_memory_equal(out.targets, targets, sizeof targets);
    assert_memory_equal(out.doc_start, doc_start, sizeof doc_start);
    assert_memory_equal(out.position, position, sizeof position);
    FAILS(AX_ERR_USAGE, "3 rows", ax_data_row(data, &shape, 3, &out, 0, NULL));
    rows_free(&out);
    ax_data_close(&data);
}

/* Documents of random lengths, so many that the coarse index skips several at a time. */
static void many_documents(void **state)
{
    scratch *s = *state;
    enum { DOCUMENTS = 10000 };
    int64_t *starts = calloc(DOCUMENTS + 1, sizeof *starts);
    int32_t *tokens = calloc(DOCUMENTS * 8, sizeof *tokens);
    uint64_t key = ax_rng_key(7, "documents", 0);
    ax_token_writer *w;
    OK(ax_token_writer_create(in_scratch(s, "many.tok"), 70000, -1, 0, &w));
    for (int64_t d = 0; d < DOCUMENTS; d++) {
        int64_t n = 1 + (int64_t)(ax_rng_uniform(key, (uint64_t)d) * 7);
        starts[d + 1] = starts[d] + n;
        for (int64_t i = starts[d]; i < starts[d + 1]; i++)
            tokens[i] = (int32_t)((i * 7919) % 70000);
        OK(ax_token_writer_add(w, tokens + starts[d], n, n));
        OK(ax_token_writer_add(w, tokens, 0, 0)); /* dropped: there is no end-of-text token */
    }
    OK(ax_token_writer_finish(&w, NULL));
    ax_data *data;
    OK(ax_data_open(in_scratch(s, "many.tok"), -1, &data));
    assert_int_equal(ax_data_describe(data)->documents, DOCUMENTS);
    OK(ax_data_check(data));
    for (int64_t d = 0; d < DOCUMENTS; d++) {
        int64_t first, end;
        OK(ax_data_document(data, d, &first, &end));
        assert_true(first == starts[d] && end == starts[d + 1]);
    }
    ax_row_shape shape = {.seq_len = 37, .mask_documents = true};
    int64_t rows = ax_data_rows(data, &shape);
    for (int64_t i = 0; i < 64; i++) {
        int64_t row = i < 2 ? i : i == 2 ? rows - 1 : (int64_t)ax_permute(key, (uint64_t)rows, (uint64_t)i);
        /* The oracle searches linearly, so it gets only the documents near the row. */
        int64_t low = 0;
        while (starts[low + 1] <= row * 37)
            low++;
        expect_row(data, &shape, row, tokens, starts[DOCUMENTS], starts + low, ax_min(64, DOCUMENTS - low));
    }
    ax_data_close(&data);
    free(starts);
    free(tokens);
}

/* Writes a damaged copy of `path`: byte `at` changed, the file cut to `size` (0: not cut). */
static const char *damage(scratch *s, const char *path, const char *name, size_t at, size_t size)
{
    char *bytes;
    size_t n;
    OK(ax_file_read(path, &bytes, &n));
    bytes[at] ^= 0x11;
    const char *out = put_file(s, name, bytes, size ? size : n);
    free(bytes);
    return out;
}

static void damaged_packed(void **state)
{
    scratch *s = *state;
    ax_data *data;
    const char *good = put_tok(s, "good.tok", 10);
    char *bytes;
    size_t size;
    OK(ax_file_read(good, &bytes, &size));
    free(bytes);
    for (size_t at = 0; at < size; at++) { /* any flipped bit is found by open or by check, without a crash */
        const char *bad = damage(s, good, "bad.tok", at, 0);
        ax_status status = ax_data_open(bad, -1, &data);
        if (status == AX_OK) {
            ax_row_shape shape = {.seq_len = 3, .mask_documents = true};
            ax_rows out = rows_create(1, 3);
            for (int64_t r = 0; r < ax_data_rows(data, &shape); r++) {
                ax_status read = ax_data_row(data, &shape, r, &out, 0, NULL);
                assert_true(read == AX_OK || read == AX_ERR_DATA);
            }
            rows_free(&out);
            status = ax_data_check(data);
            ax_data_close(&data);
        }
        assert_int_equal(status, AX_ERR_DATA);
    }
    for (size_t cut = 1; cut < size; cut++) {
        assert_int_equal(ax_data_open(damage(s, good, "cut.tok", size - 1, cut), -1, &data), AX_ERR_DATA);
        assert_null(data);
    }
    FAILS(AX_ERR_DATA, "truncated", ax_data_open(damage(s, good, "cut.tok", size - 1, size - 1), -1, &data));
    FAILS(AX_ERR_DATA, "byte 200 of its header", ax_data_open(damage(s, good, "bad.tok", 200, 0), -1, &data));
    FAILS(AX_ERR_DATA, "offset 88", ax_data_open(damage(s, good, "bad.tok", 40, 0), -1, &data));
    OK(ax_data_open(damage(s, good, "bad.tok", 256 + 6, 0), -1, &data)); /* 9 -> 24 at token 3 */
    FAILS(AX_ERR_DATA, "offset 262", ax_data_check(data));
    int32_t some[4];
    FAILS(AX_ERR_DATA, "token 3 is 24 (offset 262)", ax_data_tokens(data, 0, 4, some));
    ax_data_close(&data);
}

/* How ids are written to a file: bytes of an id, and the byte order. */
static void add_id(ax_buf *out, uint64_t id, int width, bool big)
{
    for (int i = 0; i < width; i++) {
        unsigned char byte = (unsigned char)(id >> 8 * (big ? width - 1 - i : i));
        OK(ax_buf_add(out, &byte, 1));
    }
}

/* A headerless file has the width that its ids show or its name says; what is unclear, or not ids, is
 * refused. */
static void widths_of_headerless_files(void **state)
{
    scratch *s = *state;
    static const struct {
        const char *name;
        int64_t vocab; /* ids are below it */
        int n, width;
        bool big;
        int got; /* width with which the file is read; 0: refused with `why` */
        const char *why;
    } cases[] = {{"a.bin", 50257, 3000, 2, false, 2, NULL},
                 {"b.bin", 65536, 40000, 2, false, 2, NULL},
                 {"c.bin", 65, 300, 2, false, 2, NULL},
                 {"d.bin", 12, 300, 2, false, 2, NULL},
                 {"e.bin", 128256, 300, 4, false, 4, NULL},
                 {"f.bin", 32000, 70000, 4, false, 4, NULL},
                 {"g.bin", 65, 12, 4, false, 4, NULL},
                 {"h.bin", 50257, 300, 8, false, 8, NULL},
                 {"i.bin", 151936, 300, 8, false, 8, NULL},
                 {"j.u16.bin", 65, 12, 4, false, 2, NULL},
                 {"k.u32.bin", 65, 4, 4, false, 4, NULL},
                 {"l.u64.bin", 65, 4, 8, false, 8, NULL},
                 {"m.bin", 128256, 12, 4, false, 0, "unclear whether its token ids have 16 or 32 bits"},
                 {"n.bin", 50257, 9000, 2, true, 0, "big-endian token ids"},
                 {"o.bin", 65, 300, 2, true, 0, "big-endian token ids"},
                 {"p.bin", 128256, 300, 4, true, 0, "big-endian token ids"},
                 {"q.u32.bin", 65, 5, 2, false, 0, "its size, 10 bytes, is not a multiple of 4"}};
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        ax_buf f = {0};
        uint64_t key = ax_rng_key(7, "ids", 0);
        for (int j = 0; j < cases[i].n; j++)
            add_id(&f, (uint64_t)(ax_rng_uniform(key, (uint64_t)j) * (double)cases[i].vocab), cases[i].width,
                   cases[i].big);
        const char *path = put_file(s, cases[i].name, f.data, f.size);
        ax_data *data;
        if (cases[i].got) {
            OK(ax_data_open(path, -1, &data));
            assert_int_equal(ax_data_describe(data)->token_bytes, cases[i].got);
            ax_data_close(&data);
        } else {
            FAILS(AX_ERR_DATA, cases[i].why, ax_data_open(path, -1, &data));
        }
        ax_buf_fini(&f);
    }
    ax_data *data;
    char text[100];
    memset(text, 'a', sizeof text);
    FAILS(AX_ERR_DATA, "holds text: name it .txt", ax_data_open(put_file(s, "t.bin", text, 100), -1, &data));
}

static void damaged_others(void **state)
{
    scratch *s = *state;
    ax_data *data;
    ax_data_format format;
    FAILS(AX_ERR_DATA, "header says 11 tokens",
          ax_data_open(damage(s, put_llmc(s, "l.bin", 2), "l2.bin", 100, 1024 + 20), -1, &data));
    FAILS(AX_ERR_DATA, "its version, the number at offset 4, is not 1",
          ax_data_open(damage(s, put_llmc(s, "l.bin", 2), "l3.bin", 4, 0), -1, &data));
    FAILS(AX_ERR_DATA, "its size, 21 bytes, is not a multiple of 2",
          ax_data_open(damage(s, put_nanogpt(s, "n.bin"), "n2.bin", 0, 21), -1, &data));
    put_megatron(s, "m", 8, 2);
    char *idx;
    size_t size;
    OK(ax_file_read(in_scratch(s, "m.idx"), &idx, &size));
    for (size_t at = 0; at < size; at++) {
        damage(s, in_scratch(s, "m.bin"), "d.bin", 0, 0);
        const char *bad = damage(s, in_scratch(s, "m.idx"), "d.idx", at, 0);
        if (ax_data_open(bad, -1, &data) == AX_OK) {
            ax_row_shape shape = {.seq_len = 3, .mask_documents = true};
            ax_rows out = rows_create(1, 3);
            for (int64_t r = 0; r < ax_data_rows(data, &shape); r++)
                if (ax_data_row(data, &shape, r, &out, 0, NULL) != AX_OK)
                    break;
            rows_free(&out);
            assert_int_equal(ax_data_check(data), AX_ERR_DATA);
            ax_data_close(&data);
        }
    }
    free(idx);
    damage(s, in_scratch(s, "m.bin"), "d.bin", 0, 20);
    damage(s, in_scratch(s, "m.idx"), "d.idx", 0, 0);
    FAILS(AX_ERR_DATA, "first bytes", ax_data_detect(in_scratch(s, "d.idx"), &format));
    FAILS(AX_ERR_DATA, "no such file", ax_data_open(in_scratch(s, "none.tok"), -1, &data));
    FAILS(AX_ERR_DATA, "not tokens", ax_data_open(put_text(s, "a.txt", "hello"), -1, &data));
    FAILS(AX_ERR_DATA, "gzip", ax_data_detect(put_file(s, "a.gz", "\x1f\x8b\x08", 3), &format));
    FAILS(AX_ERR_DATA, "bzip2 -d ", ax_data_detect(put_file(s, "a.bz2", "BZh91", 5), &format));
    FAILS(AX_ERR_DATA, "neither text", ax_data_detect(put_file(s, "a.o", "ab\0c", 4), &format));
    ax_buf eval = {0};
    add_u32(&eval, 20240522);
    FAILS(AX_ERR_DATA, "evaluation set", ax_data_detect(put_file(s, "e.bin", eval.data, eval.size), &format));
    ax_buf_fini(&eval);
}

static void expectations(void **state)
{
    scratch *s = *state;
    ax_data *data;
    int32_t token;
    OK(ax_data_open(put_tok(s, "t.tok", 10), -1, &data));
    OK(ax_data_expect(data, &(ax_data_reader){10, 0x1234, NULL, false}));
    OK(ax_data_expect(data, &(ax_data_reader){64, 0, NULL, false}));
    /* Its tokens are read, on one rank, if the tokenizer is known to be the same. */
    FAILS(AX_ERR_DATA, "token 3 is 9 ", ax_data_expect(data, &(ax_data_reader){9, 0x1234, NULL, false}));
    OK(ax_data_expect(data, &(ax_data_reader){9, 0x1234, NULL, true}));
    FAILS(AX_ERR_DATA, "token 3 is 9 ", ax_data_tokens(data, 3, 1, &token));
    FAILS(AX_ERR_DATA, "vocabulary of 10 tokens, but 9 are expected",
          ax_data_expect(data, &(ax_data_reader){9, 0, NULL, false}));
    FAILS(AX_ERR_DATA, "another tokenizer", ax_data_expect(data, &(ax_data_reader){10, 0x1235, NULL, false}));
    ax_data_close(&data);
    OK(ax_data_open(put_nanogpt(s, "n.bin"), -1, &data));
    /* The format stores no vocabulary, so a wrong token is found when it is read. */
    OK(ax_data_expect(data, &(ax_data_reader){9, 5, NULL, false}));
    FAILS(AX_ERR_DATA, "token 3 is 9 (offset 6)", ax_data_tokens(data, 3, 1, &token));
    ax_data_close(&data);
    ax_token_writer *w;
    OK(ax_token_writer_create(in_scratch(s, "w.tok"), 10, -1, 0, &w));
    FAILS(AX_ERR_DATA, "token 10 of document 0", ax_token_writer_add(w, &(int32_t){10}, 1, 1));
    ax_token_writer_abandon(&w);
    OK(ax_token_writer_create(in_scratch(s, "w.tok"), 10, -1, 0, &w));
    FAILS(AX_ERR_DATA, "no documents", ax_token_writer_finish(&w, NULL));
    assert_false(ax_path_exists(in_scratch(s, "w.tok")));
    FAILS(AX_ERR_USAGE, "end-of-text token (10)", ax_token_writer_create("x", 10, 10, 0, &w));
    FAILS(AX_ERR_DATA, "no/dir.tok: No such",
          ax_token_writer_create(in_scratch(s, "no/dir.tok"), 10, 9, 0, &w));
    assert_null(w);
}

/* A file that is truncated while it is open gives an error with its name, wherever it is read. */
static void files_that_shrink(void **state)
{
    scratch *s = *state;
    put_tok(s, "s.tok", 10);
    put_nanogpt(s, "n.bin");
    put_llmc(s, "l.bin", 4);
    put_megatron(s, "m", 8, 2);
    put_megatron(s, "k", 8, 2);
    static const struct {
        const char *path, *cut;
        bool indexed;
    } cases[] = {{"s.tok", "s.tok", true},
                 {"n.bin", "n.bin", false},
                 {"l.bin", "l.bin", false},
                 {"m", "m.bin", false},
                 {"k", "k.idx", true}};
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        ax_data *data;
        ax_row_shape shape = {.seq_len = 4, .mask_documents = true};
        ax_rows out = rows_create(1, 4);
        int32_t tokens[N];
        int64_t first, end, targets;
        char why[64];
        snprintf(why, sizeof why, "%s became shorter while it was in use", cases[i].cut);
        OK(ax_data_open(in_scratch(s, cases[i].path), 9, &data));
        OK(ax_data_row(data, &shape, 0, &out, 0, &targets));
        assert_int_equal(truncate(in_scratch(s, cases[i].cut), 0), 0);
        FAILS(AX_ERR_DATA, why, ax_data_row(data, &shape, 0, &out, 0, &targets));
        FAILS(AX_ERR_DATA, why, ax_data_check(data));
        if (strcmp(cases[i].cut, "k.idx") != 0)
            FAILS(AX_ERR_DATA, why, ax_data_tokens(data, 0, N, tokens));
        if (cases[i].indexed) {
            FAILS(AX_ERR_DATA, why, ax_data_document(data, 0, &first, &end));
            FAILS(AX_ERR_DATA, why, ax_data_row_targets(data, &shape, 0, &targets));
        }
        rows_free(&out);
        ax_data_close(&data);
    }
}

/* Returns the checksum of a file of `bytes` bytes, all zero but byte `at`. The file is sparse, so this is
 * cheap. */
static uint64_t checksum_of(scratch *s, off_t bytes, off_t at)
{
    ax_data *data;
    const char *path = put_file(s, "sparse.u16.bin", "", 0);
    FILE *file = fopen(path, "r+b");
    assert_int_equal(ftruncate(fileno(file), bytes), 0);
    if (at >= 0)
        assert_int_equal(pwrite(fileno(file), "x", 1, at), 1);
    fclose(file);
    OK(ax_data_open(path, -1, &data));
    uint64_t checksum = ax_data_describe(data)->checksum;
    ax_data_close(&data);
    return checksum;
}

/* For formats that store no checksum, one is computed: for a small file from all bytes, for a large file from
 * its length and 64 blocks. */
static void sampled_checksums(void **state)
{
    scratch *s = *state;
    const off_t small = 1000, large = (off_t)100 << 30;
    uint64_t zeros = checksum_of(s, small, -1);
    assert_int_not_equal(zeros, 0);
    assert_int_equal(zeros, checksum_of(s, small, -1));
    for (off_t at = 0; at < small; at += 37)
        assert_int_not_equal(zeros, checksum_of(s, small, at));
    double start = ax_now();
    zeros = checksum_of(s, large, -1);
    assert_int_not_equal(zeros, checksum_of(s, large + 2, -1));
    assert_int_not_equal(zeros, checksum_of(s, large, 0));
    assert_int_not_equal(zeros, checksum_of(s, large, large - 1));
    assert_int_not_equal(zeros, checksum_of(s, large, (large - 4096) / 63));
    assert_true(ax_now() - start < 20); /* reading the whole file would take many times as long */

    ax_data *data;
    put_megatron(s, "m", 8, 2);
    OK(ax_data_open(in_scratch(s, "m"), -1, &data));
    zeros = ax_data_describe(data)->checksum;
    ax_data_close(&data);
    damage(s, damage(s, in_scratch(s, "m.bin"), "e.bin", 0, 0), "d.bin", 0, 0); /* the same bytes again */
    damage(s, in_scratch(s, "m.idx"), "d.idx", 42, 0);                          /* the length of a sequence */
    OK(ax_data_open(in_scratch(s, "d"), -1, &data));
    assert_int_not_equal(zeros, ax_data_describe(data)->checksum);
    ax_data_close(&data);
}

/* Reading 64 MiB of tokens and their index leaves nothing of them resident. */
static void resident_memory(void **state)
{
    scratch *s = *state;
    enum { COUNT = 1 << 14, LENGTH = 1024 };
    int32_t *document = calloc(LENGTH, sizeof *document);
    ax_token_writer *w;
    OK(ax_token_writer_create(in_scratch(s, "big.tok"), 100000, -1, 0, &w));
    for (int d = 0; d < COUNT; d++)
        OK(ax_token_writer_add(w, document, LENGTH, LENGTH));
    OK(ax_token_writer_finish(&w, NULL));
    ax_data *data;
    ax_row_shape shape = {.seq_len = 1000, .mask_documents = true};
    ax_rows out = rows_create(1, 1000);
    OK(ax_data_open(in_scratch(s, "big.tok"), -1, &data));
    OK(ax_data_row(data, &shape, 0, &out, 0, NULL));
    int64_t before = ax_memory_now(), most = 0;
    for (int64_t r = 0; r < ax_data_rows(data, &shape); r++) {
        OK(ax_data_row(data, &shape, r, &out, 0, NULL));
        if (r % 256 == 0)
            most = ax_max(most, ax_memory_now() - before);
    }
    OK(ax_data_check(data));
    most = ax_max(most, ax_memory_now() - before);
    assert_true(most < 3 << 20);
    ax_data_close(&data);
    rows_free(&out);
    free(document);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(formats, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(packed_layout, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(rows_by_hand, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(many_documents, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(damaged_packed, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(widths_of_headerless_files, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(damaged_others, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(expectations, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(sampled_checksums, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(files_that_shrink, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(resident_memory, files_setup, files_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
