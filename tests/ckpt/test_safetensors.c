/* ckpt: safetensors files: those that transformers wrote, round trips of boxes, shards, and every kind of
 * damage. */
#include "ckpt_test.h"

#include <math.h>

/* ---- files of others ----------------------------------------------------------------------------- */

static void reads_what_transformers_wrote(void **state)
{
    (void)state;
    ax_st *st;
    OK(ax_st_open(AXONN_SOURCE_DIR "/tests/golden/gpt2/tanh", &st));
    assert_int_equal(ax_st_bytes(st), 50488);
    for (int i = 1; i < ax_st_count(st); i++)
        assert_true(strcmp(ax_st_at(st, i - 1)->key, ax_st_at(st, i)->key) < 0);
    const ax_st_array *a = ax_st_find(st, "transformer.h.1.attn.c_attn.weight");
    assert_non_null(a);
    assert_int_equal(a->ndim, 2);
    assert_int_equal(a->dim[0], 20);
    assert_int_equal(a->dim[1], 60);
    assert_string_equal(a->dtype_name, "F32");
    assert_int_equal(a->dtype, AX_F32);
    assert_null(ax_st_find(st, "transformer.h.2.attn.c_attn.weight"));
    float whole[20][60], keys[20][20], turned[20][20];
    OK(ax_st_read(st, a, NULL, NULL, false, AX_F32, whole));
    const int64_t lo[] = {0, 20}, n[] = {20, 20};
    OK(ax_st_read(st, a, lo, n, false, AX_F32, keys));
    OK(ax_st_read(st, a, lo, n, true, AX_F32, turned));
    for (int i = 0; i < 20; i++)
        for (int j = 0; j < 20; j++) {
            assert_true(isfinite(whole[i][20 + j]) && whole[i][20 + j] != 0);
            assert_memory_equal(&keys[i][j], &whole[i][20 + j], 4);
            assert_memory_equal(&turned[j][i], &whole[i][20 + j], 4);
        }
    ax_st_close(&st);
    OK(ax_st_open(AXONN_SOURCE_DIR "/tests/golden/gpt2/tiny/golden.safetensors", &st));
    int32_t tokens[10];
    a = ax_st_find(st, "generate.tokens");
    OK(ax_st_read(st, a, NULL, NULL, false, AX_I32, tokens));
    for (int i = 0; i < 10; i++)
        assert_in_range(tokens[i], 0, 10);
    FAILS(AX_ERR_USAGE, "generate.tokens is I32 and cannot be converted to f32",
          ax_st_read(st, a, NULL, NULL, false, AX_F32, tokens));
    ax_st_close(&st);
}

/* ---- round trips --------------------------------------------------------------------------------- */

static void fill(ax_dtype dtype, void *data, int64_t n, uint64_t key)
{
    for (int64_t i = 0; i < n; i++)
        ax_store(dtype, data, i,
                 dtype == AX_U8 || dtype == AX_U16 ? (double)(i % 251)
                                                   : (double)ax_rng_normal(key, (uint64_t)i) * 100);
}

/* Every dtype without conversion, whole and cut into boxes, plain and transposed: the bits stay the same. */
static void every_dtype_comes_back(void **state)
{
    static const ax_dtype dtypes[] = {AX_F64, AX_F32, AX_BF16, AX_F16, AX_I32, AX_I64, AX_U16, AX_U8};
    const int64_t rows = 37, cols = 23, cut_r = 11, cut_c = 9;
    static const char *const keys[] = {"f64", "f32", "bf16", "f16", "i32", "i64", "u16", "u8"};
    ax_st_array arrays[AX_COUNT(dtypes)] = {0};
    ax_st *st;
    char data[37 * 23 * 8], part[37 * 23 * 8], back[37 * 23 * 8];
    for (size_t i = 0; i < AX_COUNT(dtypes); i++)
        arrays[i] = (ax_st_array){.key = keys[i], .dtype = dtypes[i], .ndim = 2, .dim = {rows, cols}};
    OK(ax_st_plan(*state, "model", arrays, AX_COUNT(arrays), 0, &st));
    OK(ax_st_make(st));
    for (size_t k = 0; k < AX_COUNT(dtypes); k++) {
        fill(dtypes[k], data, rows * cols, k);
        size_t size = ax_dtype_size(dtypes[k]);
        for (int quarter = 0; quarter < 4; quarter++) { /* two of the four are written transposed */
            int64_t lo[2] = {quarter & 1 ? cut_r : 0, quarter & 2 ? cut_c : 0};
            int64_t n[2] = {quarter & 1 ? rows - cut_r : cut_r, quarter & 2 ? cols - cut_c : cut_c};
            bool turn = quarter == 1 || quarter == 2;
            for (int64_t i = 0; i < n[0]; i++)
                for (int64_t j = 0; j < n[1]; j++)
                    memcpy(part + (size_t)(turn ? j * n[0] + i : i * n[1] + j) * size,
                           data + (size_t)((lo[0] + i) * cols + lo[1] + j) * size, size);
            OK(ax_st_write(st, ax_st_find(st, keys[k]), lo, n, turn, dtypes[k], part));
        }
    }
    OK(ax_st_sync(st));
    ax_st_close(&st);
    OK(ax_st_open(*state, &st));
    assert_int_equal(ax_st_count(st), AX_COUNT(dtypes));
    for (size_t k = 0; k < AX_COUNT(dtypes); k++) {
        fill(dtypes[k], data, rows * cols, k);
        size_t size = ax_dtype_size(dtypes[k]);
        OK(ax_st_read(st, ax_st_find(st, keys[k]), NULL, NULL, false, dtypes[k], back));
        assert_memory_equal(back, data, (size_t)(rows * cols) * size);
        assert_int_equal(ax_st_find(st, keys[k])->offset % (int64_t)size, 0);
        OK(ax_st_read(st, ax_st_find(st, keys[k]), NULL, NULL, true, dtypes[k], back));
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < cols; j++)
                assert_memory_equal(back + (size_t)(j * rows + i) * size,
                                    data + (size_t)(i * cols + j) * size, size);
    }
    ax_st_close(&st);
}

/* Floats are converted on reading and writing as ax_load and ax_store do it. */
static void floats_convert(void **state)
{
    static const ax_dtype dtypes[] = {AX_F64, AX_F32, AX_BF16, AX_F16};
    enum { N = 700 };
    double memory[N], back[N], expected;
    for (size_t f = 0; f < AX_COUNT(dtypes); f++)
        for (size_t m = 0; m < AX_COUNT(dtypes); m++) {
            ax_st_array array = {.key = "w", .dtype = dtypes[f], .ndim = 1, .dim = {N}};
            ax_st *st;
            fill(dtypes[m], memory, N, 7);
            OK(ax_st_plan(*state, "model", &array, 1, 0, &st));
            OK(ax_st_make(st));
            OK(ax_st_write(st, ax_st_at(st, 0), NULL, NULL, false, dtypes[m], memory));
            OK(ax_st_read(st, ax_st_at(st, 0), NULL, NULL, false, AX_F64, back));
            for (int i = 0; i < N; i++) {
                ax_store(dtypes[f], &expected, 0, ax_load(dtypes[m], memory, i));
                assert_true(back[i] == ax_load(dtypes[f], &expected, 0));
            }
            ax_st_close(&st);
        }
}

/* Arrays larger than the staging buffer in every way: one row, many rows, a column; also dims of 0 and 1, and
 * no dims. */
static void shapes_of_every_kind(void **state)
{
    static const struct {
        int ndim;
        int64_t dim[4];
    } shapes[] = {{0, {0}},           {1, {1500000}},    {1, {0}},          {2, {3, 600000}},
                  {2, {600000, 3}},   {2, {1, 7}},       {2, {7, 1}},       {3, {5, 0, 3}},
                  {3, {3, 700, 501}}, {4, {2, 3, 5, 7}}, {4, {1, 1, 70, 1}}};
    for (size_t s = 0; s < AX_COUNT(shapes); s++) {
        ax_st_array array = {.key = "w", .dtype = AX_F32, .ndim = shapes[s].ndim};
        memcpy(array.dim, shapes[s].dim, sizeof shapes[s].dim);
        int64_t n = ax_st_elements(&array);
        float *data = calloc((size_t)n + 1, 4), *back = calloc((size_t)n + 1, 4);
        ax_st *st;
        fill(AX_F32, data, n, s);
        OK(ax_st_plan(*state, "model", &array, 1, 0, &st));
        OK(ax_st_make(st));
        const ax_st_array *a = ax_st_at(st, 0);
        if (a->ndim == 2) { /* written transposed, then read plain */
            for (int64_t i = 0; i < n; i++)
                back[i % a->dim[1] * a->dim[0] + i / a->dim[1]] = data[i];
            OK(ax_st_write(st, a, NULL, NULL, true, AX_F32, back));
        } else
            OK(ax_st_write(st, a, NULL, NULL, false, AX_F32, data));
        memset(back, 0, (size_t)n * 4);
        OK(ax_st_read(st, a, NULL, NULL, false, AX_F32, back));
        assert_memory_equal(data, back, (size_t)n * 4);
        ax_st_close(&st);
        OK(ax_st_open(*state, &st));
        assert_int_equal(ax_st_elements(ax_st_at(st, 0)), n);
        ax_st_close(&st);
        free(data);
        free(back);
    }
}

static void misuse_is_refused(void **state)
{
    ax_st_array arrays[2] = {{.key = "a", .dtype = AX_F32, .ndim = 2, .dim = {3, 4}},
                             {.key = "a", .dtype = AX_F32, .ndim = 1, .dim = {3}}};
    ax_st *st;
    float data[12] = {0};
    FAILS(AX_ERR_USAGE, "a is also in", ax_st_plan(*state, "model", arrays, 2, 0, &st));
    OK(ax_st_plan(*state, "model", arrays, 1, 0, &st));
    OK(ax_st_make(st));
    const int64_t lo[] = {1, 0}, n[] = {3, 4};
    FAILS(AX_ERR_USAGE, "3 elements from element 1 on do not fit dim 0, which has 3",
          ax_st_write(st, ax_st_at(st, 0), lo, n, false, AX_F32, data));
    ax_st_close(&st);
    OK(ax_st_open(*state, &st));
    FAILS(AX_ERR_USAGE, "was opened for reading only",
          ax_st_write(st, ax_st_at(st, 0), NULL, NULL, false, AX_F32, data));
    ax_st_close(&st);
    ax_st *ids, *to;
    ax_st_array integers = {.key = "a", .dtype = AX_I32, .ndim = 2, .dim = {3, 4}};
    int64_t overflows = 0;
    OK(ax_st_open(*state, &st));
    OK(ax_st_plan(*state, "ids", &integers, 1, 0, &ids));
    OK(ax_st_plan(*state, "to", arrays, 1, 0, &to));
    OK(ax_st_make(to));
    FAILS(AX_ERR_USAGE, "a is F32 and cannot be converted to I32",
          ax_st_copy(st, ax_st_at(st, 0), ids, ax_st_at(ids, 0), 0, 12, &overflows));
    FAILS(AX_ERR_USAGE, "a does not have 12 elements from element 1 on",
          ax_st_copy(st, ax_st_at(st, 0), to, ax_st_at(to, 0), 1, 12, &overflows));
    FAILS(AX_ERR_USAGE, "was opened for reading only",
          ax_st_copy(to, ax_st_at(to, 0), st, ax_st_at(st, 0), 0, 12, &overflows));
    OK(ax_st_copy(st, ax_st_at(st, 0), to, ax_st_at(to, 0), 11, 1, &overflows));
    ax_st_close(&st);
    ax_st_close(&ids);
    ax_st_close(&to);
    ax_st_array odd = {.key = "\xff", .dtype = AX_F32};
    FAILS(AX_ERR_USAGE, "UTF-8", ax_st_plan(*state, "model", &odd, 1, 0, &st));
}

/* A file that is truncated while it is open gives an error with its name. */
static void files_that_shrink(void **state)
{
    enum { N = 4096 };
    ax_st_array array = {.key = "a", .dtype = AX_F32, .ndim = 1, .dim = {N}};
    ax_st *st;
    static float data[N];
    char path[512];
    OK(ax_st_plan(*state, "model", &array, 1, 0, &st));
    OK(ax_st_make(st));
    OK(ax_st_write(st, ax_st_at(st, 0), NULL, NULL, false, AX_F32, data));
    ax_st_close(&st);
    OK(ax_st_open(*state, &st));
    OK(ax_st_read(st, ax_st_at(st, 0), NULL, NULL, false, AX_F32, data));
    snprintf(path, sizeof path, "%s/model.safetensors", (const char *)*state);
    assert_int_equal(truncate(path, 100), 0);
    FAILS(AX_ERR_DATA, "model.safetensors", ax_st_read(st, ax_st_at(st, 0), NULL, NULL, false, AX_F32, data));
    ax_st_close(&st);
}

/* ---- shards -------------------------------------------------------------------------------------- */

static void write_shards(const char *dir)
{
    ax_st_array arrays[5] = {{.key = "e", .ndim = 1, .dim = {10}},
                             {.key = "b", .ndim = 1, .dim = {10}},
                             {.key = "huge", .ndim = 1, .dim = {100}},
                             {.key = "d", .ndim = 1, .dim = {10}},
                             {.key = "a", .ndim = 1, .dim = {10}}};
    ax_st *st;
    float data[100];
    for (int i = 0; i < 5; i++)
        arrays[i].dtype = AX_F32;
    OK(ax_st_plan(dir, "model", arrays, 5, 80, &st));
    OK(ax_st_make(st));
    for (int i = 0; i < 5; i++) {
        fill(AX_F32, data, ax_st_elements(ax_st_at(st, i)), (uint64_t)i);
        OK(ax_st_write(st, ax_st_at(st, i), NULL, NULL, false, AX_F32, data));
    }
    int64_t planned = ax_st_bytes(st);
    ax_st_close(&st);
    OK(ax_st_open(dir, &st));
    assert_int_equal(planned, ax_st_bytes(st));
    ax_st_close(&st);
}

static void shards_and_index(void **state)
{
    const char *dir = *state;
    ax_st *st;
    write_shards(dir);
    OK(ax_st_open(dir, &st));
    assert_int_equal(ax_st_count(st), 5);
    float expected[100], back[100];
    for (int i = 0; i < 5; i++) {
        fill(AX_F32, expected, ax_st_elements(ax_st_at(st, i)), (uint64_t)i);
        OK(ax_st_read(st, ax_st_at(st, i), NULL, NULL, false, AX_F32, back));
        assert_memory_equal(expected, back, (size_t)ax_st_at(st, i)->bytes);
    }
    assert_int_equal(ax_st_find(st, "e")->file, ax_st_find(st, "b")->file);
    assert_int_equal(ax_st_find(st, "d")->file, ax_st_find(st, "a")->file);
    assert_true(ax_path_exists(at(dir, "model-00003-of-00003.safetensors")));
    ax_st_close(&st);
    char *index;
    size_t size;
    OK(ax_file_read(at(dir, "model.safetensors.index.json"), &index, &size));
    assert_non_null(strstr(index, "\"total_size\": 560"));
    assert_non_null(strstr(index, "\"huge\": \"model-00002-of-00003.safetensors\""));
    free(index);
}

static void damaged_indices(void **state)
{
    const char *dir = *state, *index = at(dir, "model.safetensors.index.json");
    char keep[512];
    snprintf(keep, sizeof keep, "%s", index);
    ax_st *st;
    write_shards(dir);
#define INDEX(text, why)                                                                                     \
    put(keep, text, strlen(text));                                                                           \
    FAILS(AX_ERR_DATA, why, ax_st_open(dir, &st))
    INDEX("{\"weight_map\": {\"a\": \"model-00003-of-00003.safetensors\"", "index.json");
    INDEX("{}", "\"weight_map\" is missing");
    INDEX("{\"weight_map\": {\"a\": 3}}", "a: the shard is not a file name");
    INDEX("{\"weight_map\": {\"a\": \"../model.safetensors\"}}", "a: the shard is not a file name");
    INDEX("{\"weight_map\": {\"a\": \"model-00009-of-00009.safetensors\"}}",
          "lacks 1 of the 1 shards that its index lists: model-00009-of-00009.safetensors");
#undef INDEX
    FAILS(AX_ERR_DATA, "holds neither model.safetensors nor", ax_st_open("/tmp", &st));
    FAILS(AX_ERR_DATA, "cannot open", ax_st_open(at(dir, "none.safetensors"), &st));
}

/* The index decides: of the copies of an array that in the shard which it names counts, arrays that it does
 * not list count too, and those that no shard has are said. transformers loads these directories likewise. */
static void the_index_decides(void **state)
{
#define SHARD(i) "\"model-0000" #i "-of-00002.safetensors\""
    static const struct {
        const char *index;
        float a, b; /* what is read; b is in the second shard only */
        const char *remark;
    } cases[] = {
        {"{\"weight_map\": {\"a\": " SHARD(1) ", \"b\": " SHARD(2) "}}", 1, 3, "a; the copy in model-00001-"},
        {"{\"weight_map\": {\"a\": " SHARD(2) ", \"b\": " SHARD(2) ", \"c\": " SHARD(1) "}}", 2, 3,
         "lists 1 array that no shard has (c); 1 array is in more than one shard (a; the copy in "
         "model-00002-"},
        {"{\"weight_map\": {\"x\": " SHARD(1) ", \"c\": " SHARD(2) "}}", 2, 3, "the copy in model-00002-"},
        {"{\"weight_map\": {\"a\": " SHARD(2) ", \"b\": " SHARD(1) "}}", 2, 3,
         "not in the shard that it names, but in another (b in model-00002-"},
        {"{\"weight_map\": {\"b\": " SHARD(2) "}}", 2, 3, NULL},
    };
#undef SHARD
    const char *dir = *state;
    const float values[2][2] = {{1, 1}, {2, 3}};
    for (int i = 0; i < 2; i++) {
        ax_st_array arrays[2] = {{.key = "a", .dtype = AX_F32, .ndim = 1, .dim = {1}},
                                 {.key = i ? "b" : "x", .dtype = AX_F32, .ndim = 1, .dim = {1}}};
        char name[64];
        ax_st *st;
        snprintf(name, sizeof name, "model-0000%d-of-00002", i + 1);
        OK(ax_st_plan(dir, name, arrays, 2, 0, &st));
        OK(ax_st_make(st));
        for (int k = 0; k < 2; k++)
            OK(ax_st_write(st, ax_st_find(st, arrays[k].key), NULL, NULL, false, AX_F32, &values[i][k]));
        ax_st_close(&st);
    }
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        ax_st *st;
        float a, b;
        put(at(dir, "model.safetensors.index.json"), cases[i].index, strlen(cases[i].index));
        OK(ax_st_open(dir, &st));
        assert_int_equal(ax_st_count(st), i == 4 ? 2 : 3);
        OK(ax_st_read(st, ax_st_find(st, "a"), NULL, NULL, false, AX_F32, &a));
        OK(ax_st_read(st, ax_st_find(st, "b"), NULL, NULL, false, AX_F32, &b));
        assert_true(a == cases[i].a && b == cases[i].b);
        assert_true(cases[i].remark ? ax_st_remark(st) && strstr(ax_st_remark(st), cases[i].remark)
                                    : !ax_st_remark(st));
        ax_st_close(&st);
    }
}

/* Without an index all shards are read, if all are there, no array is in two of them, and they are of one
 * set. */
static void shards_without_index(void **state)
{
    const char *dir = *state;
    ax_st *st;
    write_shards(dir);
    assert_int_equal(unlink(at(dir, "model.safetensors.index.json")), 0);
    assert_true(ax_ckpt_has_weights(dir));
    OK(ax_st_open(dir, &st));
    assert_int_equal(ax_st_count(st), 5);
    assert_non_null(
        strstr(ax_st_remark(st), "has no model.safetensors.index.json; all its 3 shards are read"));
    ax_st_close(&st);
    ax_ckpt_report *report;
    OK(ax_ckpt_verify(dir, &report));
    assert_true(report->n == 0 && report->remark);
    ax_ckpt_report_destroy(&report);
    assert_int_equal(rename(at(dir, "model-00002-of-00003.safetensors"), at(dir, "other")), 0);
    FAILS(AX_ERR_DATA, "lacks 1 of the 3 shards that their names announce: model-00002-of-00003",
          ax_st_open(dir, &st));
    assert_int_equal(
        link(at(dir, "model-00001-of-00003.safetensors"), at(dir, "model-00002-of-00003.safetensors")), 0);
    FAILS(AX_ERR_DATA, "is also in", ax_st_open(dir, &st));
    assert_int_equal(rename(at(dir, "other"), at(dir, "model-00001-of-00001.safetensors")), 0);
    FAILS(AX_ERR_DATA, "shards of two models", ax_st_open(dir, &st));
}

/* What failed downloads and other programs leave in place of a weights file is named as what it is. */
static void files_of_other_kinds(void **state)
{
    static const struct {
        const char *text, *why;
    } cases[] = {
        {"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22e\nsize "
         "548\n",
         "is a Git LFS pointer"},
        {"<!DOCTYPE html>\n<html><head></head></html>\n", "is a web page"},
        {"Entry not found", "\"Entry not found\""},
        {"Access to model acme/x is restricted. You must be authenticated.", "hf auth login"},
        {"GGUF\3__________", "is a GGUF file"},
        {"PK\3\4____________", "torch.save"},
        {"\x80\2\x8a\x0a\x6c\xfc\x9c\x46", "torch.save"},
        {"\x1f\x8b\x08_____________", "gunzip"},
    };
    const char *path = at(*state, "model.safetensors"), *json = at(*state, "model.safetensors.index.json");
    ax_st *st;
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        put(path, cases[i].text, strlen(cases[i].text));
        FAILS(AX_ERR_DATA, cases[i].why, ax_st_open(*state, &st));
        assert_non_null(strstr(ax_error_message(), path));
    }
    put(path, "", 0);
    FAILS(AX_ERR_DATA, "is empty", ax_st_open(*state, &st));
    /* A header of 640 bytes begins with the bytes 80 02, as files of torch.save do. */
    char header[641];
    memset(header, ' ', 640);
    header[0] = '{';
    header[1] = '}';
    header[640] = 0;
    put_safetensors(path, header, 0);
    OK(ax_st_open(*state, &st));
    ax_st_close(&st);
    assert_int_equal(unlink(path), 0);
    put(json, cases[0].text, strlen(cases[0].text));
    FAILS(AX_ERR_DATA, "index.json is a Git LFS pointer", ax_st_open(*state, &st));
}

/* A directory without weights: the message names what it holds instead, and what helps. */
static void directories_without_weights(void **state)
{
    static const struct {
        const char *name, *why;
    } cases[] = {
        {"tokenizer.model", "tokenizer.model, the tokenizer of SentencePiece"},
        {"tekken.json", "tekken.json, the tokenizer of Mistral"},
        {"my.safetensors", "my.safetensors, not the name of"},
        {"model.fp16.safetensors", "model.fp16.safetensors, a variant"},
        {"pytorch_model.bin", "save_pretrained('"},
        {"model-Q4.gguf", "a file of llama.cpp"},
        {"consolidated.00.pth", "a file of llama.cpp"},
        {"consolidated.safetensors", "Mistral's own programs"},
        {".cache/huggingface/download/x.incomplete", "its download is not finished"},
    };
    const char *dir = *state;
    ax_st *st;
    char *found;
    OK(ax_mkdirs(at(dir, ".cache/huggingface/download")));
    for (size_t i = 0; i < AX_COUNT(cases); i++) { /* later rows come before earlier ones */
        put(at(dir, cases[i].name), "x", 1);
        FAILS(AX_ERR_DATA, cases[i].why, ax_st_open(dir, &st));
        FAILS(AX_ERR_DATA, cases[i].why, ax_ckpt_find_model(dir, &found));
    }
}

/* ---- damage -------------------------------------------------------------------------------------- */

static void damaged_headers(void **state)
{
    static const struct {
        const char *header;
        size_t body;
        const char *why;
    } cases[] = {
        {"", 0, "does not begin with '{'"},
        {" {}", 0, "does not begin with '{'"},
        {"[]", 0, "does not begin with '{'"},
        {"{\"a\": ", 0, "has a damaged header"},
        {"{} x", 0, "has a damaged header"},
        {"{\"a\": 3}", 0, "a: its entry has no"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1]}}", 4, "a: \"data_offsets\""},
        {"{\"a\": {\"dtype\": \"F33\", \"shape\": [1], \"data_offsets\": [0, 4]}}", 4,
         "a: unknown dtype \"F33\""},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": 1, \"data_offsets\": [0, 4]}}", 4,
         "a: \"shape\" is not a list"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1.0], \"data_offsets\": [0, 4]}}", 4,
         "a: \"shape\"[0] is not a non-negative integer"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [-1], \"data_offsets\": [0, 4]}}", 4,
         "a: \"shape\"[0] is not a non-negative integer"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1,1,1,1,1,1,1,1,1], \"data_offsets\": [0, 4]}}", 4,
         "at most 8"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [4611686018427387904, 4], \"data_offsets\": [0, 4]}}", 4,
         "more elements than a file can hold"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [0, 9223372036854775807, 9223372036854775807, "
         "9223372036854775807, 9223372036854775807, 9223372036854775807, 9223372036854775807, "
         "9223372036854775807], \"data_offsets\": [0, 0]}}",
         0, "more elements than a file can hold"},
        {"{\"a\": {\"dtype\": \"F4\", \"shape\": [3], \"data_offsets\": [0, 2]}}", 2, "whole bytes"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0]}}", 4, "a: \"data_offsets\""},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4.0]}}", 4,
         "a: \"data_offsets\""},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [-4, 0]}}", 4, "a: bytes -4 to 0"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [4, 0]}}", 4, "a: bytes 4 to 0"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]}}", 3,
         "a: bytes 0 to 4 are not"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 4]}}", 4,
         "bytes, but its shape and dtype need"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]}}", 5,
         "after the last array"},
        {"{\"a\": {\"dtype\": \"U8\", \"shape\": [4], \"data_offsets\": [1, 5]}}", 5,
         "before array a belong"},
        {"{\"a\": {\"dtype\": \"U8\", \"shape\": [4], \"data_offsets\": [0, 4]}, \"b\": {\"dtype\": \"U8\", "
         "\"shape\": [4], \"data_offsets\": [3, 7]}}",
         7, "array b overlaps array a"},
        {"{\"a\": {\"dtype\": \"U8\", \"shape\": [4], \"data_offsets\": [0, 4]}, \"a\": {\"dtype\": \"U8\", "
         "\"shape\": [4], \"data_offsets\": [4, 8]}}",
         8, "duplicate object key"},
        {"{\"__metadata__\": {\"format\": 3}}", 0, "__metadata__: format is not a string"},
        {"{\"__metadata__\": []}", 0, "__metadata__ is not an object"},
    };
    const char *path = at(*state, "damaged.safetensors");
    ax_st *st;
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        put_safetensors(path, cases[i].header, cases[i].body);
        FAILS(AX_ERR_DATA, cases[i].why, ax_st_open(path, &st));
        assert_non_null(strstr(ax_error_message(), "damaged.safetensors"));
        assert_null(st);
    }
    put(path, "\7\0\0", 3);
    FAILS(AX_ERR_DATA, "too few", ax_st_open(path, &st));
    put(path, "\0\341\365\5\0\0\0\0{}", 10); /* 100,000,000: within the limit */
    FAILS(AX_ERR_DATA, "longer than the file", ax_st_open(path, &st));
    put(path, "\1\341\365\5\0\0\0\0{}", 10);
    FAILS(AX_ERR_DATA, "above the limit", ax_st_open(path, &st));
    put(path, "\377\377\377\377\377\377\377\377{}", 10);
    FAILS(AX_ERR_DATA, "above the limit", ax_st_open(path, &st));
    /* As the reference implementation does: null metadata are none, and further members are ignored. */
    put_safetensors(
        path,
        "{\"__metadata__\": null, \"a\": {\"dtype\": \"U8\", \"shape\": [4], \"data_offsets\": [0, "
        "4], \"checksum\": \"abc\"}}",
        4);
    OK(ax_st_open(path, &st));
    assert_int_equal(ax_st_count(st), 1);
    ax_st_close(&st);
    put_safetensors(path, "{\"a\": {\"dtype\": \"BOOL\", \"shape\": [4], \"data_offsets\": [0, 4]}}   ", 4);
    OK(ax_st_open(path, &st));
    char out[32];
    FAILS(AX_ERR_USAGE, "a is BOOL", ax_st_read(st, ax_st_at(st, 0), NULL, NULL, false, AX_U8, out));
    ax_st_close(&st);
}

/* Opening a file with any damaged header returns; if it succeeds, reads stay within the file. */
static void fuzzed_files(void **state)
{
    const char *source = AXONN_SOURCE_DIR "/tests/golden/gpt2/tiny/model.safetensors";
    const char *path = at(*state, "fuzz.safetensors");
    char *good, *bad;
    size_t size;
    OK(ax_file_read(source, &good, &size));
    bad = malloc(size);
    float *out = malloc(size * 4);
    int opened = 0, refused = 0;
    for (uint64_t round = 0; round < 3000; round++) {
        uint32_t r[4];
        ax_philox(11, 0, round, r);
        size_t length = round % 3 ? size : r[3] % size, header = 2100;
        memcpy(bad, good, size);
        for (uint32_t k = 0; k <= r[0] % 3 && round % 3; k++) {
            ax_philox(11, k + 1, round, r);
            bad[r[1] % header] = (char)(r[2] % 2 ? bad[r[1] % header] ^ (1 << r[3] % 8) : (int)(r[3] & 255));
        }
        FILE *f = fopen(path, "w");
        assert_int_equal(fwrite(bad, 1, length, f), length);
        fclose(f);
        ax_st *st;
        ax_status status = ax_st_open(path, &st);
        if (status != AX_OK) {
            assert_int_equal(status, AX_ERR_DATA);
            assert_non_null(strstr(ax_error_message(), "fuzz.safetensors"));
            refused++;
            continue;
        }
        assert_int_equal(length, size); /* a truncated file never opens */
        for (int i = 0; i < ax_st_count(st); i++)
            if (ax_st_at(st, i)->dtype == AX_F32)
                OK(ax_st_read(st, ax_st_at(st, i), NULL, NULL, false, AX_F32, out));
        ax_st_close(&st);
        opened++;
    }
    assert_true(opened > 100 && refused > 1500);
    free(out);
    free(bad);
    free(good);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_what_transformers_wrote),
        TEST(every_dtype_comes_back),
        TEST(floats_convert),
        TEST(shapes_of_every_kind),
        TEST(misuse_is_refused),
        TEST(files_that_shrink),
        TEST(shards_and_index),
        TEST(damaged_indices),
        TEST(the_index_decides),
        TEST(shards_without_index),
        TEST(files_of_other_kinds),
        TEST(directories_without_weights),
        TEST(damaged_headers),
        TEST(fuzzed_files),
    };
    return cmocka_run_group_tests_name("ckpt.safetensors", tests, NULL, NULL);
}
