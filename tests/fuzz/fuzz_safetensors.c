/* Model files. One part is model.safetensors; several are an index and its shards. A file that begins with
 * '{' is a header alone: the harness writes its length before it and as much data after it as its arrays
 * need, so that mutants pass those checks. If the files open, every array is read, both as stored and
 * converted; the model is compared, verified, copied as bf16, and read as the parameters of a small model. */
#include "axonn/infer.h"
#include "axonn/json.h"
#include "fuzz/fuzz.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 1 << 20 };

/* ---- seeds --------------------------------------------------------------------------------------- */

/* Returns a file: the length of the header, the header, and `bytes` bytes of data. */
static fuzz_part file_of(const char *header, size_t bytes)
{
    uint64_t length = strlen(header);
    char *data = calloc(8 + length + bytes, 1);
    if (!data)
        abort();
    memcpy(data, &length, 8);
    memcpy(data + 8, header, length);
    return (fuzz_part){data, 8 + length + bytes};
}

/* Adds a file, and its header alone. */
static void seed_file(const char *header, size_t bytes)
{
    fuzz_seed_texts((const char *[]){header, NULL});
    fuzz_part file = file_of(header, bytes);
    fuzz_seed((fuzz_part[]){file, {NULL, 0}});
    free(file.data);
}

void fuzz_make_seeds(void)
{
    seed_file("{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
              "\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]},\"__metadata__\":{"
              "\"format\":\"pt\"}}",
              32);
    seed_file("{\"wte.weight\":{\"dtype\":\"F16\",\"shape\":[7,4],\"data_offsets\":[0,56]},"
              "\"wpe.weight\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[56,64]}}",
              64);
    seed_file("{\"wte.weight\":{\"dtype\":\"F16\",\"shape\":[7,4],\"data_offsets\":[0,56]},"
              "\"wpe.weight\":{\"dtype\":\"BF16\",\"shape\":[4,7],\"data_offsets\":[56,112]}}",
              112);
    seed_file("{\"wte.weight\":{\"dtype\":\"I64\",\"shape\":[0,9223372036854775807,1,1,1,1,1,1],"
              "\"data_offsets\":[0,0]},\"x\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[0,1]}}",
              1);
    static const char index[] =
        "{\"metadata\":{\"total_size\":8},\"weight_map\":{\"a\":\"model-1.safetensors\","
        "\"b\":\"model-2.safetensors\"}}";
    fuzz_part one = file_of("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4),
              two = file_of("{\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4);
    fuzz_seed((fuzz_part[]){{(char *)index, strlen(index)}, one, two, {NULL, 0}});
    fuzz_seed_texts((const char *[]){index, one.data + 8, two.data + 8, NULL});
    fuzz_seed_texts(
        (const char *[]){"{\"__metadata__\":null,\"q.w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":"
                         "[0,4],\"checksum\":\"ab\"},\"q.w_scale\":{\"dtype\":\"F16\",\"shape\":[],"
                         "\"data_offsets\":[4,6]}}",
                         NULL});
    free(one.data);
    free(two.data);
}

/* ---- files --------------------------------------------------------------------------------------- */

/* Returns the largest end of an array in the header, up to MOST_DATA. */
static size_t data_bytes(const fuzz_part *part)
{
    enum { MOST_DATA = 1 << 16 };
    json_t *root, *entry;
    const char *key;
    json_int_t most = 0;
    if (ax_json_parse(NULL, part->data, part->size, 0, &root) != AX_OK)
        return 0;
    json_object_foreach(root, key, entry)
    {
        json_int_t end = json_integer_value(json_array_get(json_object_get(entry, "data_offsets"), 1));
        most = end > most && end <= MOST_DATA ? end : most;
    }
    json_decref(root);
    return (size_t)most;
}

/* Writes a file, completed if it is a header alone; removes it if `part` is NULL. */
static void write_part(const char *name, const fuzz_part *part)
{
    if (!part || part->data[0] != '{') {
        fuzz_file(name, part ? part->data : NULL, part ? part->size : 0);
        return;
    }
    ax_buf whole = {0};
    uint64_t length = part->size;
    static const char data[1 << 16];
    FUZZ_HOLDS(ax_buf_add(&whole, &length, 8) == AX_OK && ax_buf_add(&whole, part->data, length) == AX_OK &&
               ax_buf_add(&whole, data, data_bytes(part)) == AX_OK);
    fuzz_file(name, whole.data, whole.size);
    ax_buf_fini(&whole);
}

/* ---- reading ------------------------------------------------------------------------------------- */

static void read_array(ax_st *st, const ax_st_array *a, char *out)
{
    FUZZ_HOLDS(a->ndim <= AX_ST_MAX_DIMS && a->file >= 0 && a->offset >= 8);
    int64_t elements = ax_st_elements(a);
    FUZZ_HOLDS(elements >= 0);
    if (a->dtype == AX_DTYPE_COUNT || elements > MOST_BYTES / 8)
        return;
    (void)fuzz_read(ax_st_read(st, a, NULL, NULL, false, a->dtype, out));
    (void)fuzz_read(ax_st_read(st, a, NULL, NULL, a->ndim == 2, AX_F64, out));
}

static void read_store(const char *path)
{
    ax_st *st;
    if (!fuzz_read(ax_st_open(path, &st)))
        return;
    char *out = malloc(MOST_BYTES);
    FUZZ_HOLDS(out && ax_st_bytes(st) > 0);
    for (int i = 0; i < ax_st_count(st); i++) {
        FUZZ_HOLDS(ax_st_find(st, ax_st_at(st, i)->key) == ax_st_at(st, i));
        read_array(st, ax_st_at(st, i), out);
    }
    free(out);
    ax_st_close(&st);
}

static void verify(const char *path)
{
    ax_ckpt_report *report;
    if (fuzz_read(ax_ckpt_verify(path, &report)))
        ax_ckpt_report_destroy(&report);
}

static void compare(const char *a, const char *b)
{
    static const char *const prefix = "transformer.";
    ax_ckpt_diff *diff;
    if (fuzz_read(ax_ckpt_diff_create(a, b, &prefix, 1, &diff)))
        ax_ckpt_diff_destroy(&diff);
}

/* A copy must open, and have the same arrays. */
static void convert(const char *dir)
{
    ax_conversion_args args = {.dir = dir, .out = fuzz_path("copy"), .dtype = AX_BF16, .shard_bytes = 64};
    ax_conversion result;
    ax_st *st;
    FUZZ_HOLDS(ax_remove_tree(args.out) == AX_OK);
    if (!fuzz_read(ax_model_convert(&args, &result)))
        return;
    FUZZ_HOLDS(ax_st_open(args.out, &st) == AX_OK && ax_st_count(st) == result.arrays);
    ax_st_close(&st);
}

/* Returns two parameters that occur in some seeds. They are made once. */
static ax_param_set *parameters(void)
{
    static ax_param_set *set;
    static ax_param *param[2];
    static const char *const key[] = {"wte.weight", "wpe.weight"};
    static const int64_t dim[] = {7, 4}, unit[] = {1, 1};
    static const ax_role role[] = {AX_ROLE_VOCAB, AX_ROLE_MODEL};
    ax_comm *world;
    ax_ctx *ctx;
    if (set)
        return set;
    bool made = ax_comm_self_create(&world) == AX_OK &&
                ax_ctx_create(world, (ax_grid_size){{1}}, "ref", 1, AX_F32, 1, &ctx) == AX_OK;
    for (int i = 0; made && i < 2; i++) {
        made = ax_param_create(ctx, key[i], 2, dim, unit, role, AX_INIT_ZERO, 0, &param[i]) == AX_OK &&
               ax_strdup(key[i], &param[i]->file.key) == AX_OK;
        if (!made)
            break;
        param[i]->file.ndim = 2;
        param[i]->file.transpose = i;
        param[i]->file.dim[0] = dim[i];
        param[i]->file.dim[1] = dim[!i];
    }
    FUZZ_HOLDS(made && ax_param_set_create(ctx, param, 2, 1, &set) == AX_OK);
    return set;
}

void fuzz_one(const fuzz_part *part, int n)
{
    char name[64];
    write_part("model.safetensors", n == 1 ? part : NULL);
    fuzz_file("model.safetensors.index.json", n > 1 ? part->data : NULL, part->size);
    for (int i = 1; i < FUZZ_PARTS; i++) {
        snprintf(name, sizeof name, "model-%d.safetensors", i);
        write_part(name, i < n ? &part[i] : NULL);
    }
    fuzz_file("config.json", "{}", 2);
    const char *dir = fuzz_path("");
    convert(dir);
    read_store(dir);
    verify(dir);
    compare(dir, dir);
    static const char *const ignored[] = {"x*"};
    (void)fuzz_read(ax_ckpt_read_params(
        parameters(), dir, &(ax_ckpt_rules){.prefix = "model.", .ignore = ignored, .ignores = 1}));
}
