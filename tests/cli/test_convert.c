/* cli: axonn ckpt convert. Files are written and read here without the library, and values are rounded here
 * by choosing the nearer of two neighbours. */
#include "axonn/dev.h"
#include "cli/cli_test.h"
#include "support/sanitized.h"

#include <math.h>

#define TANH AXONN_SOURCE_DIR "/tests/golden/gpt2/tanh"

static int set_up(void **state)
{
    (void)state;
    return chdir(AXONN_BUILD_DIR) || ax_remove_tree("cli-convert") != AX_OK ||
           ax_mkdirs("cli-convert/mixed/folder") != AX_OK || chdir("cli-convert");
}

static int tear_down(void **state)
{
    (void)state;
    return chdir("..") || ax_remove_tree("cli-convert") != AX_OK;
}

/* ---- files --------------------------------------------------------------------------------------- */

/* Writes DIR/model.safetensors: header, data, and zeros up to the size that the header says. */
static void write_weights(const char *dir, const char *header, const void *data, size_t size, int64_t whole)
{
    char path[256];
    uint64_t length = strlen(header);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(&length, 8, 1, file), 1);
    assert_int_equal(fwrite(header, length, 1, file), 1);
    assert_true(!size || fwrite(data, size, 1, file) == 1);
    assert_int_equal(fflush(file), 0);
    assert_int_equal(ftruncate(fileno(file), 8 + (int64_t)length + whole), 0);
    assert_int_equal(fclose(file), 0);
}

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    assert_int_equal(fclose(file), 0);
}

static char *read_file(const char *path, size_t *size)
{
    char *data;
    assert_int_equal(ax_file_read(path, &data, size), AX_OK);
    return data;
}

/* An array of a file: its dtype, shape and bytes. */
typedef struct found {
    char dtype[16], shape[64];
    size_t size;
    char bytes[32768];
} found;

/* Reads an array of a safetensors file by its header. */
static void find(const char *path, const char *key, found *out)
{
    size_t size;
    uint64_t length;
    char *file = read_file(path, &size);
    memcpy(&length, file, 8);
    json_t *header = json_loadb(file + 8, length, 0, NULL), *entry = json_object_get(header, key);
    assert_non_null(entry);
    json_t *offsets = json_object_get(entry, "data_offsets");
    size_t begin = (size_t)json_integer_value(json_array_get(offsets, 0)),
           end = (size_t)json_integer_value(json_array_get(offsets, 1));
    out->size = end - begin;
    assert_true(out->size <= sizeof out->bytes && 8 + length + end <= size);
    memcpy(out->bytes, file + 8 + length + begin, out->size);
    snprintf(out->dtype, sizeof out->dtype, "%s", json_string_value(json_object_get(entry, "dtype")));
    char *shape = json_dumps(json_object_get(entry, "shape"), JSON_COMPACT);
    snprintf(out->shape, sizeof out->shape, "%s", shape);
    free(shape);
    json_decref(header);
    free(file);
}

static json_int_t member(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

static void assert_same_file(const char *a, const char *b)
{
    size_t size_a, size_b;
    char *data_a = read_file(a, &size_a), *data_b = read_file(b, &size_b);
    assert_int_equal(size_a, size_b);
    assert_memory_equal(data_a, data_b, size_a);
    free(data_a);
    free(data_b);
}

/* ---- values -------------------------------------------------------------------------------------- */

/* The value of bits with `fraction` bits of fraction and `exponent` bits of exponent. */
static double value_of(unsigned bits, int fraction, int exponent)
{
    int bias = (1 << (exponent - 1)) - 1, e = (int)(bits >> fraction) & ((1 << exponent) - 1);
    double f = (double)(bits & ((1u << fraction) - 1)), sign = bits >> 15 ? -1 : 1;
    if (e == (1 << exponent) - 1)
        return f != 0 ? NAN : sign * INFINITY;
    return sign * (e ? ldexp(f + (1 << fraction), e - bias - fraction) : ldexp(f, 1 - bias - fraction));
}

/* The 16 bits of the number nearest to x, of two that are equally near the even one: the largest that are not
 * above |x|, or the next. */
static unsigned nearest(double x, int fraction, int exponent)
{
    unsigned low = 0, high = ((1u << exponent) - 1) << fraction;
    double most = value_of(high - 1, fraction, exponent), size = fabs(x);
    double step = most - value_of(high - 2, fraction, exponent);
    while (high - low > 1) {
        unsigned middle = (low + high) / 2;
        *(value_of(middle, fraction, exponent) <= size ? &low : &high) = middle;
    }
    double below = size - value_of(low, fraction, exponent),
           above = (isinf(value_of(high, fraction, exponent)) ? most + step
                                                              : value_of(high, fraction, exponent)) -
                   size;
    unsigned bits = above < below || (above == below && low % 2) ? high : low;
    return bits | (signbit(x) ? 0x8000u : 0);
}

enum { ROWS = 53, COLS = 41, N = ROWS * COLS };

/* Values of all sizes, and those where rounding is hard: ties, a double just above a tie, subnormals, the
 * largest that is finite. */
static double sample(int i)
{
    static const double hard[] = {0.0,   -0.0,    1.00390625, 1.01171875, 1.00390625 + 1e-12,
                                  1e-41, 65519.0, -6e-8,      0x1.002p0,  0x1.8p-24,
                                  1e-30, -1.5};
    if (i < (int)AX_COUNT(hard))
        return hard[i];
    return (double)ax_rng_normal(5, (uint64_t)i) * exp2((double)(i % 30) - 20);
}

/* A model of no family that the program knows: floats of each kind, and arrays that are not converted. */
static void write_mixed(void)
{
    static char data[N * 16 + 35];
    static const char header[] =
        "{\"f64\":{\"dtype\":\"F64\",\"shape\":[53,41],\"data_offsets\":[0,17384]},"
        "\"f32\":{\"dtype\":\"F32\",\"shape\":[53,41],\"data_offsets\":[17384,26076]},"
        "\"b.16\":{\"dtype\":\"BF16\",\"shape\":[2173],\"data_offsets\":[26076,30422]},"
        "\"ids\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[30422,30438]},"
        "\"mask\":{\"dtype\":\"BOOL\",\"shape\":[7],\"data_offsets\":[30438,30445]},"
        "\"f8\":{\"dtype\":\"F8_E4M3\",\"shape\":[5,1],\"data_offsets\":[30445,30450]},"
        "\"f4\":{\"dtype\":\"F4\",\"shape\":[3,4],\"data_offsets\":[30450,30456]},"
        "\"none\":{\"dtype\":\"F16\",\"shape\":[0,3],\"data_offsets\":[30456,30456]},"
        "\"one\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[30456,30458]}}";
    char *at = data;
    for (int i = 0; i < N; i++, at += 8)
        memcpy(at, (double[]){sample(i)}, 8);
    for (int i = 0; i < N; i++, at += 4)
        memcpy(at, (float[]){(float)sample(i)}, 4);
    for (int i = 0; i < N; i++, at += 2)
        memcpy(at, (uint16_t[]){(uint16_t)(i * 13)}, 2);
    for (int i = 0; i < 34; i++)
        *at++ = (char)(200 + i);
    *at++ = 0x00;
    *at++ = 0x3c; /* 1 */
    write_weights("mixed", header, data, (size_t)(at - data), at - data);
}

/* The elements of the output are those of the source, rounded once. */
static void assert_rounded(const char *path, const char *key, bool from_double, bool bf16)
{
    found a;
    find(path, key, &a);
    assert_string_equal(a.dtype, bf16 ? "BF16" : "F16");
    assert_string_equal(a.shape, "[53,41]");
    assert_int_equal(a.size, 2 * N);
    for (int i = 0; i < N; i++) {
        uint16_t bits;
        memcpy(&bits, a.bytes + 2 * i, 2);
        double x = from_double ? sample(i) : (double)(float)sample(i);
        assert_int_equal(bits, bf16 ? nearest(x, 7, 8) : nearest(x, 10, 5));
    }
}

static void values_and_other_dtypes(void **state)
{
    (void)state;
    static const char *const kept[] = {"ids", "mask", "f8", "f4", "none"};
    found a, b;
    write_mixed();
    write_text("mixed/config.json", "{}");
    json_t *report = json_of(AXONN " ckpt convert mixed --out mixed-bf16 --dtype bf16 --json");
    assert_int_equal(member(report, "arrays"), 9);
    assert_int_equal(member(report, "converted"), 4);
    assert_int_equal(member(report, "files"), 1);
    assert_int_equal(member(report, "overflows"), 0);
    json_decref(report);
    json_decref(json_of(AXONN " ckpt convert mixed --out mixed-fp16 --dtype fp16 --json"));
    assert_rounded("mixed-bf16/model.safetensors", "f64", true, true);
    assert_rounded("mixed-bf16/model.safetensors", "f32", false, true);
    assert_rounded("mixed-fp16/model.safetensors", "f64", true, false);
    assert_rounded("mixed-fp16/model.safetensors", "f32", false, false);
    for (size_t i = 0; i < AX_COUNT(kept); i++) {
        find("mixed/model.safetensors", kept[i], &a);
        find("mixed-bf16/model.safetensors", kept[i], &b);
        assert_true(!strcmp(kept[i], "none") || !strcmp(a.dtype, b.dtype));
        assert_string_equal(a.shape, b.shape);
        assert_int_equal(a.size, b.size);
        assert_memory_equal(a.bytes, b.bytes, a.size);
    }
    find("mixed-bf16/model.safetensors", "one", &a);
    assert_string_equal(a.dtype, "BF16");
    assert_memory_equal(a.bytes, "\x80\x3f", 2);
    find("mixed/model.safetensors", "b.16", &a);
    find("mixed-bf16/model.safetensors", "b.16", &b);
    assert_memory_equal(a.bytes, b.bytes, a.size);
}

/* Values that bf16 has survive the way to fp32 and back, in one file or in several. */
static void round_trips_are_exact(void **state)
{
    (void)state;
    ax_buf out = {0};
    assert_int_equal(shell(AXONN " ckpt convert " TANH " --out one --dtype bf16 && " AXONN
                                 " ckpt convert one --out many --dtype fp32 --shard-size 9KiB && " AXONN
                                 " ckpt convert many --out again --dtype bf16 && " AXONN
                                 " ckpt convert many --out same/",
                           &out),
                     0);
    assert_contains(out.data, "one: 28 arrays, of which 28 were converted, in 1 file of 25.9 KiB");
    assert_contains(out.data, "same/: 28 arrays, of which 0 were converted, in 1 file of");
    assert_same_file("one/model.safetensors", "again/model.safetensors");
    assert_int_equal(shell(AXONN " ckpt diff many same && " AXONN " ckpt verify many", &out), 0);
    assert_contains(out.data, "28 compared, 0 differ\n");
    json_t *index = json_load_file("many/model.safetensors.index.json", 0, NULL), *where;
    const char *key;
    json_int_t total = 0;
    found a;
    json_object_foreach(json_object_get(index, "weight_map"), key, where)
    {
        char path[256];
        snprintf(path, sizeof path, "many/%s", json_string_value(where));
        find(path, key, &a);
        total += (json_int_t)a.size;
        assert_string_equal(a.dtype, "F32");
    }
    assert_int_equal(json_object_size(json_object_get(index, "weight_map")), 28);
    assert_int_equal(member(json_object_get(index, "metadata"), "total_size"), total);
    json_decref(index);
    /* Only what a shard of one array needs is above the size. */
    assert_int_equal(shell("find many -name 'model-*' -size +9216c | wc -l; ls many | grep -c model-", &out),
                     0);
    assert_string_equal(out.data, "0\n7\n");
    ax_buf_fini(&out);
}

/* config.json keeps what the program does not know, digit for digit; other files are copied. */
static void files_beside_the_weights(void **state)
{
    (void)state;
    ax_buf out = {0};
    write_mixed();
    write_text("mixed/config.json",
               "{\"model_type\": \"unknown\", \"torch_dtype\": \"float32\", \"x\": "
               "1000000000000000019884624838656, \"y\": [1e-05, 0.10, null, {\"dtype\": \"kept\"}]}");
    write_text("mixed/tokenizer.json", "no longer read");
    write_text("mixed/chat_template.jinja", "{{ x }}");
    write_text("mixed/pytorch_model.bin", "weights");
    write_text("mixed/other.safetensors", "weights");
    write_text("mixed/.hidden", "");
    write_text("mixed/folder/file", "");
    assert_int_equal(ax_mkdirs("mixed/additional_chat_templates"), AX_OK);
    write_text("mixed/additional_chat_templates/rag.jinja", "{{ rag }}");
    write_text("mixed/additional_chat_templates/notes.txt", "");
    assert_int_equal(ax_mkdirs("mixed/additional_chat_templates/folder.jinja"), AX_OK);
    assert_int_equal(shell("truncate -s 2M mixed/additional_chat_templates/large.jinja; truncate -s 17M "
                           "mixed/large mixed/tokenizer.model; ln -s /dev/null mixed/device; " AXONN
                           " ckpt convert mixed --out beside --dtype fp16 2>&1; ls -A beside; cat "
                           "beside/config.json; " AXONN " ckpt convert mixed --out kept 2>/dev/null; cmp "
                           "mixed/config.json kept/config.json",
                           &out),
                     0);
    assert_contains(out.data, "mixed/large is larger than 16 MiB and is not copied");
    assert_contains(out.data, "the directory mixed/folder is not copied");
    assert_same_file("mixed/additional_chat_templates/rag.jinja",
                     "beside/additional_chat_templates/rag.jinja");
    static const char *const left[] = {"notes.txt", "folder.jinja", "large.jinja"};
    for (size_t i = 0; i < AX_COUNT(left); i++) {
        char path[128];
        snprintf(path, sizeof path, "beside/additional_chat_templates/%s", left[i]);
        assert_int_equal(access(path, F_OK), -1);
    }
    assert_contains(out.data, "\nchat_template.jinja\nconfig.json\nmodel.safetensors\ntokenizer.json\n"
                              "tokenizer.model\n{\n");
    assert_contains(out.data, "\"torch_dtype\": \"float16\",\n  \"x\": 1000000000000000019884624838656,\n");
    assert_contains(out.data, "1e-05,\n    0.10,\n    null,\n    {\n      \"dtype\": \"kept\"\n");
    assert_same_file("mixed/tokenizer.model", "beside/tokenizer.model");
    ax_buf_fini(&out);
}

/* __metadata__ is kept. A snapshot of the hub's cache, whose files are links to ../../blobs/, is copied
 * without a word; a link that leads elsewhere is said. */
static void metadata_and_links(void **state)
{
    (void)state;
    ax_buf out = {0};
    static const char header[] =
        "{\"__metadata__\":{\"license\":\"mit\"},\"a\":{\"dtype\":\"F32\",\"shape\":[1],"
        "\"data_offsets\":[0,4]}}";
    assert_int_equal(
        shell("mkdir -p models--a--b/blobs models--a--b/snapshots/1; echo hello >elsewhere", &out), 0);
    write_weights("models--a--b/blobs", header, "abcd", 4, 4);
    write_text("models--a--b/blobs/c", "{\"dtype\": \"float32\"}");
    assert_int_equal(
        shell("cd models--a--b/snapshots/1; ln -s ../../blobs/model.safetensors .; ln -s ../../blobs/c "
              "config.json; cd ../../..; " AXONN " ckpt convert models--a--b --out plain 2>&1; ln -s "
              "../../../elsewhere models--a--b/snapshots/1/notes.txt; " AXONN
              " ckpt convert models--a--b --out linked 2>&1; cat linked/notes.txt",
              &out),
        0);
    const char *second = strstr(out.data, "notes.txt is a link to ");
    assert_non_null(second);
    assert_non_null(
        strstr(second, "elsewhere, which is not in the model's directory: its content is copied"));
    assert_null(strstr(second + strlen("notes.txt is a link to "), "is a link to"));
    assert_contains(out.data, "hello\n");
    size_t size;
    char *file = read_file("plain/model.safetensors", &size);
    uint64_t length;
    memcpy(&length, file, 8);
    file[8 + length] = 0;
    assert_non_null(strstr(file + 8, "\"license\":\"mit\""));
    assert_non_null(strstr(file + 8, "\"format\":\"pt\""));
    free(file);
    ax_buf_fini(&out);
}

static void overflow_is_reported(void **state)
{
    (void)state;
    ax_buf out = {0};
    float values[] = {1, 65519, 65520, -INFINITY, -1e30F};
    assert_int_equal(ax_mkdirs("wide"), AX_OK);
    write_text("wide/config.json", "{}");
    write_weights("wide", "{\"w\":{\"dtype\":\"F32\",\"shape\":[5],\"data_offsets\":[0,20]}}", values,
                  sizeof values, sizeof values);
    assert_int_equal(shell(AXONN " ckpt convert wide --out wide-fp16 --dtype fp16 --json 2>&1", &out), 0);
    assert_contains(out.data, ": 2 values of array w are beyond the range of f16 and become infinite");
    assert_contains(out.data, "\"overflows\":2");
    ax_buf_fini(&out);
}

/* An array of 192 MiB, in a sparse file, with 64 MiB of memory for all of the process. */
static void memory_is_bounded(void **state)
{
    (void)state;
    ax_buf out = {0};
    if (SANITIZED)
        skip();
    assert_int_equal(ax_mkdirs("large"), AX_OK);
    write_text("large/config.json", "{\"dtype\": \"float32\"}");
    float first[] = {1, -2};
    write_weights("large",
                  "{\"w\":{\"dtype\":\"F32\",\"shape\":[12288,4096],\"data_offsets\":[0,201326592]}}", first,
                  sizeof first, 201326592);
    assert_int_equal(
        shell("ulimit -v 65536; " AXONN " ckpt convert large --out large-bf16 --dtype bf16", &out), 0);
    assert_int_equal(
        shell("tail -c 100663296 large-bf16/model.safetensors | head -c 6 | od -An -tx1; rm -r large*", &out),
        0);
    assert_string_equal(out.data, " 80 3f 00 c0 00 00\n");
    ax_buf_fini(&out);
}

/* ---- failures ------------------------------------------------------------------------------------ */

static void failures_leave_nothing(void **state)
{
    (void)state;
    static const struct {
        const char *command;
        int code;
        const char *message;
    } cases[] = {
        {"mkdir there; " AXONN " ckpt convert " TANH " --out there", 2,
         "there exists; give the name of a directory"},
        {"ln -s nothing link; " AXONN " ckpt convert " TANH " --out link", 2, "link exists"},
        {AXONN " ckpt convert " TANH " --out no/parent", 4, "cannot create no/parent: No such file"},
        {AXONN " ckpt convert nowhere --out o", 4, "no such file or directory: nowhere"},
        {AXONN " ckpt convert " TANH " --out o --dtype f8", 2, "--dtype"},
        {AXONN " ckpt convert " TANH " --out o --shard-size 5XB", 2, "--shard-size 5XB: must be a number"},
        {AXONN " ckpt convert " TANH " --out o --shard-size -5", 2, "must be a number"},
        {AXONN " ckpt convert " TANH " --out o --shard-size 0x10GB", 2, "must be a number"},
        {AXONN " ckpt convert " TANH " --out o --shard-size 0.5B", 2, "must be a number"},
        {"cp -r " TANH " bare; rm bare/config.json; " AXONN " ckpt convert bare --out o", 4,
         "bare has no config.json"},
        {"cp -r " TANH " list; echo '[]' >list/config.json; " AXONN " ckpt convert list --out o --dtype bf16",
         4, "list/config.json does not hold a JSON object"},
        {"cp -r " TANH " list; echo '{\"a\": 1, \"a\": 2}' >list/config.json; " AXONN
         " ckpt convert list --out o",
         4, "list/config.json:1:10: not valid JSON: duplicate object key"},
        {"cp -r " TANH " torn; truncate -s -1 torn/model.safetensors; " AXONN " ckpt convert torn --out o", 4,
         "torn/model.safetensors: "},
        {"ulimit -f 20; " AXONN " ckpt convert " TANH " --out o", 4, "File too large"},
    };
    ax_buf out = {0};
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        char command[1024];
        snprintf(command, sizeof command, "mkdir f; cd f; exec 2>&1; %s", cases[i].command);
        assert_int_equal(shell(command, &out), cases[i].code);
        assert_contains(out.data, cases[i].message);
        assert_int_equal(shell("cd f; rm -rf bare list torn there link; ls -A; cd ..; rm -r f", &out), 0);
        assert_string_equal(out.data, "");
    }
    ax_buf_fini(&out);
}

static void signals_leave_nothing(void **state)
{
    (void)state;
    ax_buf out = {0};
    assert_int_equal(ax_mkdirs("long"), AX_OK);
    write_text("long/config.json", "{}");
    write_weights("long", "{\"w\":{\"dtype\":\"F32\",\"shape\":[2097152,32],\"data_offsets\":[0,268435456]}}",
                  NULL, 0, 268435456);
    static const char *const signals[][2] = {{"TERM", "143\n"}, {"HUP", "129\n"}};
    for (size_t i = 0; i < AX_COUNT(signals); i++) {
        char command[1024];
        snprintf(command, sizeof command,
                 "mkdir s; cd s; " AXONN " ckpt convert ../long --out o --dtype fp16 & p=$!; until ls -A | "
                 "grep tmp >/dev/null; do :; done; kill -%s $p; wait $p; echo $?; "
                 "ls -A; cd ..; rm -r s",
                 signals[i][0]);
        assert_int_equal(shell(command, &out), 0);
        assert_string_equal(out.data, signals[i][1]);
    }
    ax_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_and_other_dtypes),  cmocka_unit_test(round_trips_are_exact),
        cmocka_unit_test(files_beside_the_weights), cmocka_unit_test(overflow_is_reported),
        cmocka_unit_test(memory_is_bounded),        cmocka_unit_test(failures_leave_nothing),
        cmocka_unit_test(signals_leave_nothing),    cmocka_unit_test(metadata_and_links),
    };
    return cmocka_run_group_tests_name("cli.convert", tests, set_up, tear_down);
}
