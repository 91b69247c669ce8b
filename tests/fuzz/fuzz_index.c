/* model.safetensors.index.json, beside three shards that stay the same. What opens is verified and copied
 * into other shards; the copy must have the same arrays. */
#include "axonn/infer.h"
#include "fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Writes a shard with two arrays. */
static void write_shard(int i)
{
    char name[64], header[256], file[512];
    snprintf(header, sizeof header,
             "{\"%c.x\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},\"%c.y\":{\"dtype\":\"I8\","
             "\"shape\":[1,2],\"data_offsets\":[12,14]}}",
             'a' + i, 'a' + i);
    uint64_t length = strlen(header);
    snprintf(name, sizeof name, "model-0000%d-of-00003.safetensors", i + 1);
    memcpy(file, &length, 8);
    memcpy(file + 8, header, length);
    memcpy(file + 8 + length, "0123456789abcd", 14);
    fuzz_file(name, file, 8 + length + 14);
}

void fuzz_make_seeds(void)
{
    for (int i = 0; i < 3; i++)
        write_shard(i);
    fuzz_file("config.json", "{\"dtype\":\"float32\"}", 19);
    fuzz_seed_texts((const char *[]){
        "{\"metadata\":{\"total_size\":42},\"weight_map\":{\"a.x\":\"model-00001-of-00003.safetensors\","
        "\"a.y\":\"model-00001-of-00003.safetensors\",\"b.x\":\"model-00002-of-00003.safetensors\",\"b.y\":"
        "\"model-00002-of-00003.safetensors\",\"c.x\":\"model-00003-of-00003.safetensors\",\"c.y\":"
        "\"model-00003-of-00003.safetensors\"}}",
        NULL});
    fuzz_seed_texts((const char *[]){"{\"weight_map\":{\"a.x\":\"model-00001-of-00003.safetensors\",\"a.y\":"
                                     "\"model-00001-of-00003.safetensors\"}}",
                                     NULL});
    fuzz_seed_texts(
        (const char *[]){"{\"weight_map\":{\"a.x\":\"../files/model-00001-of-00003.safetensors\",\"b.x\":"
                         "\"/dev/null\",\"c.x\":\".\",\"c.x\":7}}",
                         NULL});
    fuzz_seed_texts((const char *[]){"{\"weight_map\":{}}", NULL});
    fuzz_seed_texts((const char *[]){
        "{\"weight_map\":{\"a.x\":\"model-00002-of-00003.safetensors\",\"mtp.x\":"
        "\"model-00001-of-00003.safetensors\",\"s.x\":\"model-00003-of-00003.safetensors\"}}",
        NULL});
    fuzz_seed_texts((const char *[]){"version https://git-lfs.github.com/spec/v1\n", NULL});
}

void fuzz_one(const fuzz_part *part, int n)
{
    (void)n;
    ax_st *st;
    ax_ckpt_report *report;
    ax_conversion result;
    ax_conversion_args args = {.out = fuzz_path("copy"), .dtype = AX_F16, .shard_bytes = 9};
    fuzz_file("model.safetensors.index.json", part->data, part->size);
    args.dir = fuzz_path("");
    if (fuzz_read(ax_ckpt_verify(args.dir, &report)))
        ax_ckpt_report_destroy(&report);
    FUZZ_HOLDS(ax_remove_tree(args.out) == AX_OK);
    if (!fuzz_read(ax_model_convert(&args, &result)))
        return;
    FUZZ_HOLDS(ax_st_open(args.out, &st) == AX_OK && ax_st_count(st) == result.arrays);
    for (int i = 0; i < ax_st_count(st); i++)
        FUZZ_HOLDS(ax_st_at(st, i)->dtype == (i % 2 ? AX_DTYPE_COUNT : AX_F16));
    ax_st_close(&st);
}
