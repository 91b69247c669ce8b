/* ckpt: checkpoints with ranks as threads: written on one grid and read on another, chosen, kept, damaged,
 * compared. */
#include "ckpt/ckpt.h"
#include "grid_test.h"
#include "support/sampled.h"

#include <math.h>
#include <sys/stat.h>

static void assert_runs(int size, ax_rank_fn *fn, void *arg)
{
    if (ax_comm_threads_run(size, fn, arg) != AX_OK)
        fail_msg("%d ranks: %s", size, ax_error_message());
}

/* ---- grids --------------------------------------------------------------------------------------- */

static const ax_grid_size grids[] = {{{1, 1, 1, 1, 1}}, {{2, 2, 1, 1, 1}},    {{4, 1, 1, 1, 2}},
                                     {{1, 3, 2, 1, 1}}, {{3, 2, 1, 1, 1}},    {{1, 1, 2, 1, 3}},
                                     {{2, 1, 1, 1, 3}}, {{1, 1, 1, 1, 4, 2}}, {{1, 1, 2, 1, 3, 3}}};
/* Stage of ZeRO on each grid: with stage 1 or more, master weights and optimizer state are also split along
 * data. */
static const int zero[AX_COUNT(grids)] = {0, 0, 1, 0, 0, 2, 3, 1, 3};

typedef struct job {
    const char *run;
    ax_grid_size size;
    int64_t step;
    ax_dtype dtype;
    int64_t shard_bytes;
    int64_t keep;
    int zero;
    uint64_t sum; /* of the parameters' checksums */
} job;

static ax_status save_rank(ax_comm *world, void *arg)
{
    job *j = arg;
    known_model m = {.zero = j->zero};
    uint64_t sums[KNOWN_PARAMS], sum = 0;
    AX_TRY(known_open(world, j->size, 2, &m));
    AX_TRY(known_fill(&m, j->step));
    AX_TRY(known_save(&m, j->run, j->step, j->dtype, j->shard_bytes, j->keep));
    AX_TRY(ax_ckpt_checksums(m.set, sums));
    for (int i = 0; i < KNOWN_PARAMS; i++)
        sum = sum * 31 + sums[i];
    if (ax_comm_rank(world) == 0)
        j->sum = sum;
    known_close(&m);
    return AX_OK;
}

static ax_status load_rank(ax_comm *world, void *arg)
{
    const job *j = arg;
    known_model m = {.zero = j->zero};
    char *dir;
    AX_TRY(known_open(world, j->size, 2, &m));
    AX_TRY(ax_ckpt_find_latest(j->run, &dir));
    EXPECT(dir);
    AX_TRY(ax_ckpt_load(m.set, dir, known_slots, NULL));
    AX_TRY(known_check(&m, j->step));
    free(dir);
    known_close(&m);
    return AX_OK;
}

/* Parameters and slots are restored bit for bit, whatever the grids, the shards and the dtype of the model's
 * files. */
static void any_grid_reads_what_any_wrote(void **state)
{
    uint64_t sum = 0;
    for (size_t w = 0; w < AX_COUNT(grids); w++) {
        char run[128];
        snprintf(run, sizeof run, "%s/run%zu", (char *)*state, w);
        job j = {.run = run,
                 .size = grids[w],
                 .step = 7,
                 .zero = zero[w],
                 .dtype = w % 2 ? AX_BF16 : AX_F32,
                 .shard_bytes = w % 3 == 1 ? 100 : 0};
        assert_runs(grid_ranks(j.size), save_rank, &j);
        assert_true(j.sum != 0 && (w == 0 || j.sum == sum)); /* the checksum does not depend on the grid */
        sum = j.sum;
        assert_int_equal(ax_path_exists(at(run, "ckpt/step-7/model.safetensors.index.json")), w % 3 == 1);
        for (size_t r = 0; r < AX_COUNT(grids); r++) {
            if (!my_share(r + 2 * w, 3))
                continue;
            j.size = grids[r];
            j.zero = zero[r];
            assert_runs(grid_ranks(j.size), load_rank, &j);
        }
    }
}

/* Model files hold the arrays that ax_param.file describes: fused, transposed, spread, rounded. */
static ax_status layout_of_files(ax_comm *world, void *arg)
{
    job *j = arg;
    ax_st *st;
    AX_TRY(save_rank(world, arg));
    if (ax_comm_rank(world))
        return AX_OK;
    AX_TRY(ax_st_open(at(j->run, "ckpt/step-3"), &st));
    EXPECT(ax_st_count(st) == 5 + 2 * 3);
    float c_attn[6][24], bias[24];
    const ax_st_array *a = ax_st_find(st, "m.c_attn.weight");
    EXPECT(a && a->dtype == AX_BF16 && a->dim[0] == 6 && a->dim[1] == 24);
    AX_TRY(ax_st_read(st, a, NULL, NULL, false, AX_F32, c_attn));
    AX_TRY(ax_st_read(st, ax_st_find(st, "m.c_attn.bias"), NULL, NULL, false, AX_F32, bias));
    static const char *const names[] = {"q.w", "k.w", "v.w"}, *const biases[] = {"q.b", "k.b", "v.b"};
    for (int o = 0; o < 24; o++) {
        float b = known_value(biases[o / 8], 0, 3, o % 8);
        EXPECT(bias[o] == ax_bf16_to_float(ax_bf16_from_float(b)));
        for (int i = 0; i < 6; i++) {
            float w = known_value(names[o / 8], 0, 3, o % 8 * 6 + i);
            EXPECT(c_attn[i][o] == ax_bf16_to_float(ax_bf16_from_float(w)));
        }
    }
    EXPECT(ax_st_find(st, "ln") && !ax_st_find(st, "q.w"));
    float up[9][5];
    a = ax_st_find(st, "m.experts.1.up.weight");
    EXPECT(a && a->ndim == 2 && a->dim[0] == 9 && a->dim[1] == 5);
    AX_TRY(ax_st_read(st, a, NULL, NULL, false, AX_F32, up));
    for (int i = 0; i < 9 * 5; i++) {
        float w = known_value("up.w", 0, 3, (i / 5 * 3 + 1) * 5 + i % 5);
        EXPECT(up[i / 5][i % 5] == ax_bf16_to_float(ax_bf16_from_float(w)));
    }
    ax_st_close(&st);
    return AX_OK;
}

static void files_hold_fused_and_transposed(void **state)
{
    job j = {.run = *state, .size = {{2, 2, 1, 1, 2}}, .step = 3, .dtype = AX_BF16};
    assert_runs(8, layout_of_files, &j);
}

/* ---- foreign keys -------------------------------------------------------------------------------- */

/* Lists the arrays of a spread parameter: odd 6: one is missing, 7: there is one more, 8: one has another
 * shape, 9: they are one array, 10: in both forms, 11: the second is beside the one array, 12: there is one
 * more, whose number does not follow. Returns how many there are. */
static int list_spread(int i, const char *prefix, int odd, ax_st_array *arrays, char keys[][64])
{
    const char *key = known[i].key + 2, *star = strchr(key, '*');
    const int64_t *dim = known[i].dim, count = dim[1] + (odd == 7 || odd == 12);
    int n = 0;
    for (int64_t e = 0; e < count && odd != 9; e++) {
        const int number = (int)(odd == 12 && e == dim[1] ? e + 9 : e);
        if ((odd == 6 && e == 1) || (odd == 11 && e != 1))
            continue;
        snprintf(keys[n], 64, "%s%.*s%d%s", prefix, (int)(star - key), key, number, star + 1);
        arrays[n] = (ax_st_array){
            .key = keys[n], .dtype = AX_F32, .ndim = 2, .dim = {dim[0] + (odd == 8 && !e), dim[2]}};
        n++;
    }
    if (odd >= 9 && odd <= 11) {
        snprintf(keys[n], 64, "%sall.%s", prefix, known[i].name);
        arrays[n] =
            (ax_st_array){.key = keys[n], .dtype = AX_F32, .ndim = 3, .dim = {dim[1], dim[0], dim[2]}};
        n++;
    }
    return n;
}

static void write_foreign(const char *dir, const char *prefix, int odd)
{
    static const char *const extra[] = {"h.0.attn.bias", "lm_head.weight", "stranger",  "h.2.x",
                                        "h.2.y",         "h.3.x",          "h.4.attn.z"};
    ax_st_array arrays[32] = {0};
    char keys[32][64];
    int n = 0;
    for (int i = 0; i < KNOWN_PARAMS; i++) {
        if (known[i].ndim == 3) {
            n += list_spread(i, prefix, odd, arrays + n, keys + n);
            continue;
        }
        if (i == 2 || i == 3 || i == 5 || i == 6 || ((odd == 1 || odd == 5) && i == 0))
            continue; /* each fused array once; odd 1 and 5: one array is missing */
        const char *key = known[i].key ? known[i].key + 2 : known[i].name;
        snprintf(keys[n], sizeof keys[n], "%s%s", known[i].key ? prefix : "", key);
        arrays[n] = (ax_st_array){.key = keys[n], .dtype = AX_F32, .ndim = known[i].ndim};
        memcpy(arrays[n].dim, known[i].key ? known[i].in : known[i].dim, sizeof known[i].in);
        if (odd == 2 && i == 0)
            arrays[n].dim[0] = 12;
        n++;
    }
    for (int i = 0; i < (odd == 3 ? 7 : 2); i++)
        arrays[n++] = (ax_st_array){.key = extra[i], .dtype = AX_U8, .ndim = 1, .dim = {3}};
    if (odd == 4)
        arrays[n++] = (ax_st_array){.key = "wte.weight_scale", .dtype = AX_F32, .ndim = 1, .dim = {1}};
    if (odd == 5) /* the head holds the table */
        arrays[n - 1] = (ax_st_array){.key = "lm_head.weight", .dtype = AX_F32, .ndim = 2, .dim = {11, 6}};
    ax_st *st;
    OK(ax_st_plan(dir, "model", arrays, n, 0, &st));
    OK(ax_st_make(st));
    ax_st_close(&st);
}

static const char *const ignore[] = {"*.attn.bias", "lm_head.weight"};
static const ax_ckpt_rules rules = {.prefix = "m.", .ignore = ignore, .ignores = 2};

/* Arrays that belong to no parameter are said and left alone, unless an array is missing (this one may be it,
 * under another name) or they say how another is quantized. Of two tied arrays one is enough. */
static void left_alone(known_model *m, const char *dir)
{
    ax_ckpt_rules tied = rules;
    ax_buf left = {0};
    ax_st *st;
    write_foreign(dir, "", 3);
    OK(ax_ckpt_read_params(m->set, dir, &rules));
    OK(ax_st_open(dir, &st));
    OK(ax_ckpt_match(m->param, KNOWN_PARAMS, st, &rules, &left));
    ax_st_close(&st);
    assert_non_null(strstr(left.data, "5 arrays belong to no parameter of the model and are left alone: "
                                      "h.{2..4}.* (4), stranger"));
    ax_buf_fini(&left);
    write_foreign(dir, "", 4);
    FAILS(AX_ERR_DATA, "array wte.weight_scale says how another array is quantized",
          ax_ckpt_read_params(m->set, dir, &rules));
    write_foreign(dir, "_orig_mod.m.", 0);
    FAILS(AX_ERR_DATA, "The names in the file begin with \"_orig_mod.\"",
          ax_ckpt_read_params(m->set, dir, &rules));
    assert_non_null(strstr(ax_error_message(), "_orig_mod.m.wte.weight belongs to no parameter"));
    write_foreign(dir, "m.", 5);
    FAILS(AX_ERR_DATA, "m.wte.weight is missing", ax_ckpt_read_params(m->set, dir, &rules));
    tied.table = "m.wte.weight";
    tied.head = "lm_head.weight";
    OK(ax_ckpt_read_params(m->set, dir, &tied));
}

/* Arrays of experts that are missing, too many, misshapen, or there twice; and all experts in one array. */
static void experts_of_models(known_model *m, const char *dir)
{
    write_foreign(dir, "m.", 6);
    FAILS(AX_ERR_DATA,
          "2 mismatches:\n  array m.experts.1.up.weight is missing\n  array m.experts.1.down.weight is",
          ax_ckpt_read_params(m->set, dir, &rules));
    write_foreign(dir, "", 7);
    FAILS(AX_ERR_DATA, "array experts.3.up.weight is of an expert that the model does not have",
          ax_ckpt_read_params(m->set, dir, &rules));
    for (int bare = 0; bare < 2; bare++) {
        write_foreign(dir, bare ? "" : "m.", 12);
        FAILS(AX_ERR_DATA, "experts.12.down.weight is of an expert that the model does not have",
              ax_ckpt_read_params(m->set, dir, &rules));
    }
    write_foreign(dir, "m.", 8);
    FAILS(AX_ERR_DATA, "array m.experts.0.up.weight has shape [10, 5]; the model needs [9, 5]",
          ax_ckpt_read_params(m->set, dir, &rules));
    for (int i = 8; i <= 9; i++) {
        char key[64];
        snprintf(key, sizeof key, "m.all.%s", known[i].name);
        OK(ax_strdup(key, &m->param[i]->file.fused));
        m->param[i]->file.parts = 1;
    }
    write_foreign(dir, "m.", 9);
    OK(ax_ckpt_read_params(m->set, dir, &rules));
    write_foreign(dir, "m.", 10);
    FAILS(AX_ERR_DATA, "array m.all.up.w is a second form of experts that are there already",
          ax_ckpt_read_params(m->set, dir, &rules));
    write_foreign(dir, "m.", 11);
    FAILS(AX_ERR_DATA, "array m.experts.1.up.weight is a second form of experts that are there already",
          ax_ckpt_read_params(m->set, dir, &rules));
    write_foreign(dir, "m.", 0);
    OK(ax_ckpt_read_params(m->set, dir, &rules));
}

static void keys_with_and_without_prefix(void **state)
{
    ax_comm *self;
    known_model m = {0};
    OK(ax_comm_self_create(&self));
    OK(known_open(self, grids[0], -1, &m));
    const char *dir = *state;
    write_foreign(dir, "m.", 0);
    OK(ax_ckpt_read_params(m.set, dir, &rules));
    write_foreign(dir, "", 0);
    OK(ax_ckpt_read_params(m.set, dir, &rules));
    OK(ax_ckpt_read_params(m.set, at(dir, "model.safetensors"), &rules));
    FAILS(AX_ERR_DATA, "m.wte.weight is missing", ax_ckpt_read_params(m.set, dir, NULL));
    assert_non_null(strstr(ax_error_message(), "lm_head.weight belongs to no parameter"));
    write_foreign(dir, "m.", 1);
    FAILS(AX_ERR_DATA, "1 mismatch:\n  array m.wte.weight is missing",
          ax_ckpt_read_params(m.set, dir, &rules));
    write_foreign(dir, "m.", 2);
    FAILS(AX_ERR_DATA, "m.wte.weight has shape [12, 6]; the model needs [11, 6]",
          ax_ckpt_read_params(m.set, dir, &rules));
    left_alone(&m, dir);
    experts_of_models(&m, dir);
    m.param[3]->file.lo[1] = 15; /* v overlaps k */
    FAILS(AX_ERR_USAGE, "k.w and v.w overlap", ax_ckpt_write_params(m.set, dir, AX_F32, 0));
    m.param[3]->file.lo[1] = 17;
    FAILS(AX_ERR_USAGE, "v.w does not fit dim 1 of array m.c_attn.weight",
          ax_ckpt_write_params(m.set, dir, AX_F32, 0));
    m.param[3]->file.lo[1] = 16;
    m.param[3]->file.dim[1] = 23;
    FAILS(AX_ERR_USAGE, "v.w does not fit", ax_ckpt_write_params(m.set, dir, AX_F32, 0));
    m.param[1]->file.dim[1] = m.param[2]->file.dim[1] = m.param[3]->file.dim[1] = 25;
    FAILS(AX_ERR_USAGE, "fill only 144 of the 150 elements", ax_ckpt_write_params(m.set, dir, AX_F32, 0));
    known_close(&m);
    ax_comm_destroy(&self);
}

/* ---- downloads ----------------------------------------------------------------------------------- */

/* The hub's cache keeps versions of a model as directories of links; a name of a model is no directory. */
static void finds_what_the_hub_left(void **state)
{
    const char *hub = *state, *one = at(hub, "models--acme--x/snapshots/1111"), *folder;
    char *dir, expected[512], path[512];
    folder = at(hub, "models--acme--x");
    snprintf(expected, sizeof expected, "%s", one);
    OK(ax_mkdirs(at(hub, "models--acme--x/refs")));
    OK(ax_mkdirs(at(hub, "models--acme--x/blobs")));
    OK(ax_mkdirs(expected));
    put(at(hub, "models--acme--x/blobs/b"), "{}", 2);
    assert_int_equal(symlink("../../blobs/b", at(expected, "config.json")), 0);
    for (int i = 0; i < 3; i++) {
        static const char *const below[] = {"", "/", "/snapshots"};
        snprintf(path, sizeof path, "%s%s", folder, below[i]);
        OK(ax_ckpt_find_model(path, &dir));
        assert_string_equal(dir, expected);
        free(dir);
    }
    OK(ax_mkdirs(at(hub, "models--acme--x/snapshots/2222")));
    FAILS(AX_ERR_DATA, "with 2 snapshots, of which none is main", ax_ckpt_find_model(folder, &dir));
    put(at(hub, "models--acme--x/refs/main"), "1111\n", 5);
    OK(ax_ckpt_find_model(folder, &dir));
    assert_string_equal(dir, expected);
    free(dir);
    assert_int_equal(setenv("HF_HUB_CACHE", hub, 1), 0);
    FAILS(AX_ERR_DATA, expected, ax_ckpt_find_model("acme/x", &dir));
    FAILS(AX_ERR_DATA, "hf download acme/y --local-dir DIR", ax_ckpt_find_model("acme/y", &dir));
    assert_int_equal(unsetenv("HF_HUB_CACHE"), 0);
    assert_int_equal(symlink("../../blobs/gone", at(expected, "tokenizer.json")), 0);
    FAILS(AX_ERR_DATA, "tokenizer.json is a link to ../../blobs/gone, which does not exist",
          ax_ckpt_find_model(folder, &dir));
}

/* ---- keeping and choosing ------------------------------------------------------------------------ */

static void save_steps(const char *run, int64_t keep, const int64_t *steps, int n)
{
    for (int i = 0; i < n; i++) {
        job j = {.run = run, .size = grids[0], .step = steps[i], .dtype = AX_F32, .keep = keep};
        assert_runs(1, save_rank, &j);
    }
}

static void assert_found(const char *run, const char *resume, const char *expected)
{
    char *dir;
    OK(ax_ckpt_find_resume(run, resume, &dir));
    if (!expected)
        assert_null(dir);
    else if (!dir || strcmp(strrchr(dir, '/') + 1, expected) != 0)
        fail_msg("%s was found, not %s", dir ? dir : "nothing", expected);
    free(dir);
}

static void keeps_and_finds(void **state)
{
    const char *run = *state;
    char *dir;
    assert_found(run, "auto", NULL);
    assert_found(run, "none", NULL);
    FAILS(AX_ERR_DATA, "is neither a model directory", ax_ckpt_find_model(run, &dir));
    FAILS(AX_ERR_DATA, "no such file or directory", ax_ckpt_find_model(at(run, "x"), &dir));
    save_steps(run, 3, (const int64_t[]){10, 20, 30, 40, 50}, 5);
    ax_ckpt_list *list;
    OK(ax_ckpt_list_create(run, true, &list));
    assert_int_equal(list->n, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(list->item[i].step, 50 - 10 * i);
        assert_int_equal(list->item[i].serial, 5 - i);
        assert_int_equal(list->item[i].latest, i == 0);
        assert_null(list->item[i].damage);
        assert_true(list->item[i].bytes > 3 * 4 * 701 * 1203 && list->item[i].time > 1.7e9);
    }
    ax_ckpt_list_destroy(&list);
    assert_found(run, "auto", "step-50");
    assert_found("/nowhere", run, "step-50");
    assert_found(run, at(run, "ckpt/step-30"), "step-30");
    FAILS(AX_ERR_DATA, "is neither a checkpoint",
          ax_ckpt_find_resume(run, AXONN_SOURCE_DIR "/include", &dir));
    OK(ax_ckpt_find_model(AXONN_SOURCE_DIR "/tests/golden/gpt2/tiny", &dir));
    assert_string_equal(dir, AXONN_SOURCE_DIR "/tests/golden/gpt2/tiny");
    free(dir);
    OK(ax_ckpt_read_state(at(run, "ckpt/step-50"), &dir));
    assert_string_equal(dir, "{\"step\": 50}");
    free(dir);
    /* A checkpoint of an earlier step that is saved later is newer; saving a step again replaces its
     * checkpoint. */
    save_steps(run, 3, (const int64_t[]){35, 35}, 2);
    assert_found(run, "auto", "step-35");
    assert_true(ax_path_exists(at(run, "ckpt/step-50")) && ax_path_exists(at(run, "ckpt/step-40")));
    assert_false(ax_path_exists(at(run, "ckpt/step-30")));
}

/* keep_latest beyond the range of int is not truncated. */
static void keeps_more_than_there_are(void **state)
{
    save_steps(*state, (INT64_C(1) << 32) + 1, (const int64_t[]){1, 2, 3}, 3);
    for (int step = 1; step <= 3; step++) {
        char name[32];
        snprintf(name, sizeof name, "ckpt/step-%d", step);
        assert_true(ax_path_exists(at(*state, name)));
    }
}

static void falls_back_from_damage(void **state)
{
    const char *run = *state;
    char *dir;
    save_steps(run, 0, (const int64_t[]){1, 2, 3}, 3);
    flip_bit(at(run, "ckpt/step-3/training/optim.safetensors"), 123456, 3);
    ax_log_set_level(AX_LOG_ERROR); /* the warnings are expected */
    assert_found(run, "auto", "step-2");
    OK(ax_remove_tree(at(run, "ckpt/step-2/tokenizer.json")));
    assert_found(run, "auto", "step-1");
    FAILS(AX_ERR_DATA, "step-2/tokenizer.json, which training/manifest.json",
          ax_ckpt_find_resume(run, at(run, "ckpt/step-2"), &dir));
    flip_bit(at(run, "ckpt/step-1/training/manifest.json"), 40, 0);
    FAILS(AX_ERR_DATA, "none of the 3 checkpoints", ax_ckpt_find_latest(run, &dir));
    ax_log_set_level(AX_LOG_INFO);
    ax_ckpt_list *list;
    OK(ax_ckpt_list_create(run, true, &list));
    assert_non_null(strstr(list->item[0].damage, "optim.safetensors was changed or is damaged"));
    assert_non_null(strstr(list->item[2].damage, "manifest.json was changed or is damaged"));
    ax_ckpt_list_destroy(&list);
}

/* ---- damage -------------------------------------------------------------------------------------- */

static const char *const files_of_checkpoint[] = {
    "config.json",       "tokenizer.json",      "model.safetensors",     "training/optim.safetensors",
    "training/more.txt", "training/state.json", "training/manifest.json"};

/* With one flipped bit anywhere, or one byte less, the report names exactly the damaged file. */
static void any_flipped_bit_is_found(void **state)
{
    const char *run = *state;
    save_steps(run, 0, (const int64_t[]){1}, 1);
    char dir[256];
    snprintf(dir, sizeof dir, "%s", at(run, "ckpt/step-1"));
    ax_ckpt_report *report;
    OK(ax_ckpt_verify(dir, &report));
    assert_true(report->manifest);
    assert_int_equal(report->files, AX_COUNT(files_of_checkpoint));
    assert_int_equal(report->n, 0);
    ax_ckpt_report_destroy(&report);
    for (size_t f = 0; f < AX_COUNT(files_of_checkpoint); f++) {
        char path[512];
        snprintf(path, sizeof path, "%s", at(dir, files_of_checkpoint[f]));
        size_t size = size_of(path);
        int flips = size > 100000 ? 12 : size > 1000 ? 100 : 40;
        for (int k = 0; k <= flips; k++) {
            size_t byte = k == flips ? size - 1 : (size_t)ax_permute(f, size, (uint64_t)k % size);
            flip_bit(path, byte, k % 8);
            OK(ax_ckpt_verify(dir, &report));
            if (report->n != 1 || strcmp(report->fault[0].file, files_of_checkpoint[f]) != 0)
                fail_msg("bit %d of byte %zu of %s: %d faults", k % 8, byte, files_of_checkpoint[f],
                         report->n);
            ax_ckpt_report_destroy(&report);
            flip_bit(path, byte, k % 8);
        }
        char *bytes;
        OK(ax_file_read(path, &bytes, &size));
        assert_int_equal(truncate(path, (off_t)size - 1), 0);
        OK(ax_ckpt_verify(dir, &report));
        assert_int_equal(report->n, 1);
        ax_ckpt_report_destroy(&report);
        put(path, bytes, size);
        free(bytes);
    }
}

/* A forged manifest that names a device, or files elsewhere: none of them is read. */
static void manifests_name_files_of_the_checkpoint(void **state)
{
    const char *run = *state;
    static const char *const names[] = {"/dev/zero", "../../../x", "training/../../x", "..", ""};
    char dir[256];
    manifest m, read;
    save_steps(run, 0, (const int64_t[]){1}, 1);
    snprintf(dir, sizeof dir, "%s", at(run, "ckpt/step-1"));
    OK(manifest_read(dir, &m));
    char *good = m.file[0].name;
    for (size_t i = 0; i < AX_COUNT(names); i++) {
        m.file[0].name = (char *)names[i];
        OK(manifest_write(dir, &m));
        FAILS(AX_ERR_DATA, "is not inside the checkpoint's directory", manifest_read(dir, &read));
    }
    manifest_file link = {(char *)"link", 0, 0};
    assert_int_equal(symlink("/dev/zero", at(dir, "link")), 0);
    FAILS(AX_ERR_DATA, "must be a regular file", manifest_check_file(dir, &link));
    m.file[0].name = good;
    manifest_fini(&m);
}

/* Impossible numbers in a manifest are reported as damage before anything is computed with them. */
static void impossible_manifests(void **state)
{
    manifest_file huge[] = {{(char *)"a", INT64_MAX, 0}, {(char *)"b", INT64_MAX, 0}};
    manifest_file negative = {(char *)"a", -1, 0};
    const struct {
        manifest m;
        const char *why;
    } cases[] = {
        {{.step = 1, .serial = 1, .time = 0.5, .n = 2, .file = huge},
         "it says that b has 9223372036854775807 bytes"},
        {{.step = 1, .serial = 1, .time = 0.5, .n = 1, .file = &negative}, "it says that a has -1 bytes"},
        {{.step = 1, .serial = INT64_MAX, .time = 0.5},
         "its serial (the number of the save, 9223372036854775807)"},
        {{.step = -1, .serial = 1, .time = 0.5}, "its step (-1)"},
    };
    char dir[256];
    snprintf(dir, sizeof dir, "%s", at(*state, "ckpt/step-1"));
    OK(ax_mkdirs(at(dir, "training")));
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        manifest m = cases[i].m;
        ax_ckpt_report *report;
        ax_ckpt_list *list;
        m.params = json_object();
        OK(manifest_write(dir, &m));
        json_decref(m.params);
        OK(ax_ckpt_verify(dir, &report));
        assert_int_equal(report->n, 1);
        assert_non_null(strstr(report->fault[0].what, cases[i].why));
        ax_ckpt_report_destroy(&report);
        OK(ax_ckpt_list_create(*state, false, &list));
        assert_int_equal(list->n, 1);
        assert_non_null(strstr(list->item[0].damage, cases[i].why));
        ax_ckpt_list_destroy(&list);
    }
}

static ax_status load_altered(ax_comm *world, void *arg)
{
    const job *j = arg;
    known_model m = {0};
    AX_TRY(known_open(world, j->size, 2, &m));
    ax_status status = ax_ckpt_load(m.set, at(j->run, "ckpt/step-1"), known_slots, NULL);
    EXPECT(status == AX_ERR_DATA);
    EXPECT(strstr(ax_error_message(), "its values are not those that were saved"));
    known_close(&m);
    return AX_OK;
}

/* Values that change after verification, or by a faulty read, are not loaded into a run. */
static void loading_compares_values(void **state)
{
    save_steps(*state, 0, (const int64_t[]){1}, 1);
    const char *path = at(*state, "ckpt/step-1/model.safetensors");
    flip_bit(path, size_of(path) - 1, 0);
    job j = {.run = *state, .size = {{2, 1, 1, 1, 2}}};
    assert_runs(4, load_altered, &j);
}

static void what_loading_refuses(void **state)
{
    ax_comm *self;
    known_model m = {0};
    OK(ax_comm_self_create(&self));
    OK(known_open(self, grids[0], 1, &m));
    save_steps(*state, 0, (const int64_t[]){1}, 1);
    const char *dir = at(*state, "ckpt/step-1");
    FAILS(AX_ERR_DATA, "exp_avg_sq.big belongs to no parameter", ax_ckpt_load(m.set, dir, known_slots, NULL));
    FAILS(AX_ERR_DATA, "name it as model.from", ax_ckpt_load(m.set, *state, known_slots, NULL));
    ax_ckpt_save_args bad = {
        .run_dir = *state, .step = 2, .params = m.set, .moment_names = known_slots, .state = "[]"};
    bad.dtype = AX_F32;
    FAILS(AX_ERR_USAGE, "not a JSON object", ax_ckpt_save(&bad));
    bad.state = "{}";
    static const char *const names[] = {"../x", "training", "training/", "training/../x", "training/a/b"};
    for (size_t i = 0; i < AX_COUNT(names); i++) {
        char said[64];
        bad.files = &(ax_ckpt_file){names[i], "", 0};
        bad.n_files = 1;
        snprintf(said, sizeof said, "cannot have the name \"%s\"", names[i]);
        FAILS(AX_ERR_USAGE, said, ax_ckpt_save(&bad));
    }
    static const char *const own[] = {
        "training/state.json",          "training/manifest.json",   "training/optim.safetensors",
        "training/optim.txt",           "model.safetensors",        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json", "adapter_model.safetensors"};
    for (size_t i = 0; i < AX_COUNT(own); i++) {
        char said[128];
        bad.files = &(ax_ckpt_file){own[i], "", 0};
        snprintf(said, sizeof said, "\"%s\" is the name of a file that the checkpoint itself has", own[i]);
        FAILS(AX_ERR_USAGE, said, ax_ckpt_save(&bad));
    }
    bad.files = &(ax_ckpt_file){"training/model.safetensors", "", 0};
    OK(ax_ckpt_save(&bad));
    known_close(&m);
    ax_comm_destroy(&self);
}

/* ---- comparing ----------------------------------------------------------------------------------- */

static const ax_ckpt_diff_row *row_of(const ax_ckpt_diff *d, const char *key)
{
    for (int i = 0; i < d->n; i++)
        if (!strcmp(d->row[i].key, key))
            return &d->row[i];
    fail_msg("no row %s", key);
    return NULL;
}

static void differences(void **state)
{
    const char *run = *state;
    char a[256], b[256];
    ax_ckpt_diff *d;
    save_steps(run, 0, (const int64_t[]){1, 2}, 2);
    snprintf(a, sizeof a, "%s", at(run, "ckpt/step-1"));
    snprintf(b, sizeof b, "%s", at(run, "ckpt/step-2"));
    OK(ax_ckpt_diff_create(a, a, NULL, 0, &d));
    /* An array for each expert in model files, a row for each parameter in the optimizer's state. */
    const int rows = 5 + 2 * 3 + 2 * (5 + 2);
    assert_int_equal(d->n, rows);
    assert_int_equal(d->differing, 0);
    ax_ckpt_diff_destroy(&d);
    OK(ax_ckpt_diff_create(a, run, NULL, 0, &d)); /* the newest checkpoint of the run is b */
    assert_int_equal(d->differing, rows);
    const ax_ckpt_diff_row *row = row_of(d, "training/exp_avg_sq.ln");
    double max_abs = 0, max_rel = 0;
    for (int i = 0; i < 6; i++) {
        double x = known_value("ln", 2, 1, i), y = known_value("ln", 2, 2, i);
        max_abs = fmax(max_abs, fabs(x - y));
        max_rel = fmax(max_rel, fabs(x - y) / fmax(fabs(x), fabs(y)));
    }
    assert_int_equal(row->kind, AX_DIFF_VALUES);
    assert_int_equal(row->differing, 6);
    assert_true(row->max_abs == max_abs && row->max_rel == max_rel);
    /* Parameters that share an array of model files share a row, under the key of the array. */
    row = row_of(d, "training/exp_avg.m.c_attn.weight");
    static const char *const parts[] = {"q.w", "k.w", "v.w"};
    max_abs = 0;
    for (int i = 0; i < 3 * 48; i++)
        max_abs = fmax(max_abs, fabs((double)known_value(parts[i / 48], 1, 1, i % 48) -
                                     (double)known_value(parts[i / 48], 1, 2, i % 48)));
    assert_int_equal(row->elements, 3 * 48);
    assert_int_equal(row->differing, 3 * 48);
    assert_true(row->max_abs == max_abs);
    ax_ckpt_diff_destroy(&d);
    /* Differences in one bit of the last weight, in shapes, keys, dtypes and configuration are found. */
    const char *model = at(b, "model.safetensors"), *config = at(b, "config.json");
    put(config, "{\"n\": 2, \"more\": []}", 20);
    OK(ax_ckpt_diff_create(a, b, NULL, 0, &d));
    row = row_of(d, "config.json:n");
    assert_int_equal(row->kind, AX_DIFF_VALUES);
    assert_string_equal(row->a, "1");
    assert_string_equal(row->b, "2");
    assert_int_equal(row_of(d, "config.json:more")->kind, AX_DIFF_ONLY_B);
    assert_int_equal(row_of(d, "config.json:name")->kind, AX_DIFF_ONLY_A);
    ax_ckpt_diff_destroy(&d);
    put_safetensors(
        model,
        "{\"ln\": {\"dtype\": \"F16\", \"shape\": [6], \"data_offsets\": [0, 12]}, \"m.wte.weight\": "
        "{\"dtype\": \"I32\", \"shape\": [11, 6], \"data_offsets\": [12, 276]}, \"m.c_attn.bias\": "
        "{\"dtype\": \"F32\", \"shape\": [3], \"data_offsets\": [276, 288]}, \"new\": {\"dtype\": "
        "\"BOOL\", \"shape\": [2], \"data_offsets\": [288, 290]}}",
        290);
    OK(ax_ckpt_diff_create(at(a, "model.safetensors"), model, NULL, 0, &d));
    assert_int_equal(d->n, 6 + 2 * 3);
    assert_int_equal(row_of(d, "ln")->kind, AX_DIFF_VALUES);
    assert_int_equal(row_of(d, "m.wte.weight")->kind, AX_DIFF_DTYPE);
    assert_string_equal(row_of(d, "m.wte.weight")->b, "I32 [11, 6]");
    assert_int_equal(row_of(d, "m.c_attn.bias")->kind, AX_DIFF_SHAPE);
    assert_string_equal(row_of(d, "m.c_attn.bias")->a, "F32 [24]");
    assert_int_equal(row_of(d, "m.big.weight")->kind, AX_DIFF_ONLY_A);
    assert_int_equal(row_of(d, "new")->kind, AX_DIFF_ONLY_B);
    ax_ckpt_diff_destroy(&d);
}

/* A key with a prefix in one model matches the key without it in the other, unless one model has both. */
static void prefixes_that_one_has(void **state)
{
    static const char *const prefixes[] = {"p.", "q."};
    char a[256], b[256];
    ax_ckpt_diff *d;
    snprintf(a, sizeof a, "%s", at(*state, "a.safetensors"));
    snprintf(b, sizeof b, "%s", at(*state, "b.safetensors"));
    put_safetensors(a,
                    "{\"w\": {\"dtype\": \"F16\", \"shape\": [2], \"data_offsets\": [0, 4]}, "
                    "\"q.x\": {\"dtype\": \"F16\", \"shape\": [1], \"data_offsets\": [4, 6]}, "
                    "\"p.both\": {\"dtype\": \"F16\", \"shape\": [1], \"data_offsets\": [6, 8]}, "
                    "\"both\": {\"dtype\": \"F16\", \"shape\": [1], \"data_offsets\": [8, 10]}}",
                    10);
    put_safetensors(b,
                    "{\"p.w\": {\"dtype\": \"F16\", \"shape\": [2], \"data_offsets\": [0, 4]}, "
                    "\"x\": {\"dtype\": \"F16\", \"shape\": [1], \"data_offsets\": [4, 6]}, "
                    "\"both\": {\"dtype\": \"F16\", \"shape\": [1], \"data_offsets\": [6, 8]}}",
                    8);
    OK(ax_ckpt_diff_create(a, b, prefixes, AX_COUNT(prefixes), &d));
    assert_int_equal(d->n, 4);
    assert_int_equal(d->common, 3);
    assert_true(row_of(d, "w")->kind <= AX_DIFF_VALUES && row_of(d, "q.x")->kind <= AX_DIFF_VALUES);
    assert_true(row_of(d, "both")->kind <= AX_DIFF_VALUES);
    assert_int_equal(row_of(d, "p.both")->kind, AX_DIFF_ONLY_A);
    ax_ckpt_diff_destroy(&d);
    OK(ax_ckpt_diff_create(a, b, NULL, 0, &d));
    assert_int_equal(d->common, 1);
    ax_ckpt_diff_destroy(&d);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        TEST(any_grid_reads_what_any_wrote),
        TEST(files_hold_fused_and_transposed),
        TEST(keys_with_and_without_prefix),
        TEST(keeps_and_finds),
        TEST(finds_what_the_hub_left),
        TEST(keeps_more_than_there_are),
        TEST(falls_back_from_damage),
        TEST(any_flipped_bit_is_found),
        TEST(manifests_name_files_of_the_checkpoint),
        TEST(impossible_manifests),
        TEST(loading_compares_values),
        TEST(what_loading_refuses),
        TEST(differences),
        TEST(prefixes_that_one_has),
    };
    if (THREAD_SANITIZED &&
        !getenv("AXONN_TEST_ALL")) /* the others have one rank, or save and load as this one does */
        cmocka_set_test_filter("any_grid_reads_what_any_wrote");
    return cmocka_run_group_tests_name("ckpt.checkpoint", tests, NULL, NULL);
}
