/* Model files. One part is model.safetensors; several are an index and its shards. If they open, every array
 * is read, both as stored and converted; the model is compared, verified, and read as the parameters of a
 * small model. */
#include "axonn/ckpt.h"
#include "fuzz/fuzz.h"

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

static void seed_file(const char *header, size_t bytes)
{
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
    free(one.data);
    free(two.data);
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
                ax_ctx_create(world, (ax_grid_size){1, 1, 1, 1, 1}, "ref", 1, AX_F32, 1, &ctx) == AX_OK;
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
    fuzz_file("model.safetensors", n == 1 ? part->data : NULL, part->size);
    fuzz_file("model.safetensors.index.json", n > 1 ? part->data : NULL, part->size);
    for (int i = 1; i < FUZZ_PARTS; i++) {
        snprintf(name, sizeof name, "model-%d.safetensors", i);
        fuzz_file(name, i < n ? part[i].data : NULL, i < n ? part[i].size : 0);
    }
    const char *dir = fuzz_path("");
    read_store(dir);
    verify(dir);
    compare(dir, dir);
    static const char *const ignored[] = {"x*"};
    (void)fuzz_read(ax_ckpt_read_params(parameters(), dir, &(ax_ckpt_rules){"model.", ignored, 1}));
}
