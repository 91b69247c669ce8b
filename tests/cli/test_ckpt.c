/* cli: axonn ckpt ls, verify and diff, and convert where it reads runs and checkpoints. */
#include "ckpt/grid_test.h"
#include "cli/cli_test.h"

#define GPT2 AXONN_SOURCE_DIR "/tests/golden/gpt2/tiny/model.safetensors"

static ax_status save_three(ax_comm *self)
{
    known_model m = {.n = 8};
    AX_TRY(known_open(self, (ax_grid_size){{1}}, 2, &m));
    for (int64_t step = 1; step <= 3; step++) {
        AX_TRY(known_fill(&m, step));
        AX_TRY(known_save(&m, "run", step, AX_F32, 0, 0));
    }
    known_close(&m);
    return AX_OK;
}

static int set_up(void **state)
{
    (void)state;
    ax_comm *self;
    if (chdir(AXONN_BUILD_DIR) || ax_remove_tree("cli-ckpt") != AX_OK || ax_mkdirs("cli-ckpt") != AX_OK ||
        chdir("cli-ckpt") || ax_comm_self_create(&self) != AX_OK)
        return 1;
    ax_status status = save_three(self);
    ax_comm_destroy(&self);
    return status != AX_OK;
}

static int tear_down(void **state)
{
    (void)state;
    return chdir("..") || ax_remove_tree("cli-ckpt") != AX_OK;
}

static void ls_lists_checkpoints(void **state)
{
    (void)state;
    ax_buf out = {0};
    json_t *object = json_of(AXONN " ckpt ls run --json"), *items = json_object_get(object, "checkpoints");
    assert_int_equal(json_array_size(items), 3);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(items, 0), "step")), 3);
    assert_true(json_is_true(json_object_get(json_array_get(items, 0), "latest")));
    assert_true(json_is_null(json_object_get(json_array_get(items, 0), "verified")));
    json_decref(object);
    assert_int_equal(shell(AXONN " ckpt ls run --verify", &out), 0);
    assert_contains(out.data, "latest, verified\n");
    assert_int_equal(shell(AXONN " ckpt ls nowhere 2>&1", &out), 4);
    assert_contains(out.data, "no such file or directory: nowhere");
    static const char *const others[] = {"empty", "run/ckpt/step-3"};
    assert_int_equal(shell("mkdir empty", &out), 0);
    for (size_t i = 0; i < AX_COUNT(others); i++) {
        char command[256], said[256];
        snprintf(command, sizeof command, AXONN " ckpt ls %s 2>&1", others[i]);
        snprintf(said, sizeof said,
                 "%s is not a run directory, which has config.yaml, and checkpoints in ckpt/", others[i]);
        assert_int_equal(shell(command, &out), 4);
        assert_contains(out.data, said);
    }
    assert_int_equal(shell("mkdir -p young && touch young/lock && " AXONN " ckpt ls young 2>&1", &out), 0);
    assert_contains(out.data, "young has no checkpoints");
    ax_buf_fini(&out);
}

static void diff_compares_arrays(void **state)
{
    (void)state;
    ax_buf out = {0};
    assert_int_equal(shell(AXONN " ckpt diff run run/ckpt/step-3", &out), 0);
    assert_string_equal(out.data, "12 compared, 0 differ\n");
    json_t *object = json_of(AXONN " ckpt diff run/ckpt/step-1 run --json");
    assert_true(json_is_false(json_object_get(object, "equal")));
    assert_int_equal(json_integer_value(json_object_get(object, "differing")), 12);
    json_t *row = json_array_get(json_object_get(object, "rows"), 0);
    assert_string_equal(json_string_value(json_object_get(row, "key")), "ln");
    assert_true(json_real_value(json_object_get(row, "max_abs")) > 0);
    json_decref(object);
    assert_int_equal(
        shell("cp -r run/ckpt/step-1 other && sed -i 's/\"n\": 1/\"n\": 5/' other/config.json && " AXONN
              " ckpt diff other run/ckpt/step-1 --all",
              &out),
        0);
    assert_contains(out.data, "config.json:n                                values differ: 5, 1\n");
    assert_contains(out.data, "training/exp_avg.m.c_attn.weight             equal\n");
    assert_contains(out.data, "13 compared, 1 differ\n");
    /* Array names in the Hub's gpt2 have no prefix. Here blanks of the same length replace the prefix. */
    assert_int_equal(shell("cp " GPT2 " hub.safetensors && sed 's/\"transformer\\./            \"/g' " GPT2
                           " >plain.safetensors && " AXONN " ckpt diff plain.safetensors hub.safetensors",
                           &out),
                     0);
    assert_contains(out.data, " compared, 0 differ\n");
    assert_int_equal(shell(AXONN " ckpt diff hub.safetensors run 2>&1", &out), 4);
    assert_contains(out.data, "hub.safetensors and run have no array in common: no weights were compared");
    assert_int_equal(shell(AXONN " ckpt diff run nowhere 2>&1", &out), 4);
    assert_contains(out.data, "nowhere");
    ax_buf_fini(&out);
}

/* The newest checkpoint of a run, and one that is named: the model without training/. */
static void convert_reads_runs(void **state)
{
    (void)state;
    ax_buf out = {0};
    assert_int_equal(shell(AXONN " ckpt convert run --out new && " AXONN
                                 " ckpt convert run/ckpt/step-1 --out old >/dev/null && ls new && cmp "
                                 "new/config.json run/ckpt/step-3/config.json && " AXONN
                                 " ckpt diff new run && " AXONN " ckpt diff old run/ckpt/step-1",
                           &out),
                     0);
    assert_contains(
        out.data,
        "\nconfig.json\nmodel.safetensors\ntokenizer.json\n4 compared, 0 differ\n4 compared, 0 differ\n");
    ax_buf_fini(&out);
}

static void verify_finds_damaged_files(void **state)
{
    (void)state;
    ax_buf out = {0};
    assert_int_equal(
        shell(AXONN " ckpt verify run " AXONN_SOURCE_DIR "/tests/golden/gpt2/tiny/golden.safetensors", &out),
        0);
    assert_contains(out.data, "run/ckpt/step-3: good, 7 files");
    assert_contains(out.data,
                    "golden.safetensors: good, 1 file, 16.8 KiB (structure only: it has no checksums)");
    const char *damage =
        "printf x | dd of=run/ckpt/step-2/model.safetensors bs=1 seek=1000 conv=notrunc 2>/dev/null; "
        "rm run/ckpt/step-2/config.json; ";
    char command[1024];
    snprintf(command, sizeof command, "%s%s", damage, AXONN " ckpt verify run 2>&1");
    assert_int_equal(shell(command, &out), 4);
    assert_contains(out.data, "run/ckpt/step-2: 2 of 7 files damaged\n");
    assert_contains(out.data, "model.safetensors was changed or is damaged");
    assert_contains(out.data, "config.json, which training/manifest.json");
    assert_contains(out.data, "2 damaged files");
    assert_contains(out.data, "run/ckpt/step-1: good");
    assert_int_equal(shell(AXONN " ckpt verify run/ckpt/step-2 --json 2>/dev/null", &out), 4);
    json_t *object = json_loads(out.data, 0, NULL);
    assert_int_equal(json_array_size(json_object_get(object, "faults")), 2);
    json_decref(object);
    assert_int_equal(shell(AXONN " ckpt convert run/ckpt/step-2 --out none 2>&1", &out), 4);
    assert_contains(out.data, "run/ckpt/step-2/");
    assert_false(ax_path_exists("none"));
    assert_int_equal(shell(AXONN " ckpt ls run", &out), 0);
    assert_int_equal(shell(AXONN " ckpt verify nowhere 2>&1", &out), 4);
    assert_contains(out.data, "no such file or directory: nowhere");
    assert_int_equal(
        shell("printf 12345678 >torn.safetensors; " AXONN " ckpt verify torn.safetensors 2>&1", &out), 4);
    assert_contains(out.data, "torn.safetensors: 1 of 1 files damaged\n");
    assert_int_equal(shell(AXONN " ckpt verify ./torn.safetensors --json 2>/dev/null", &out), 4);
    assert_contains(out.data, "\"file\":\"torn.safetensors\"");
    ax_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ls_lists_checkpoints),
        cmocka_unit_test(diff_compares_arrays),
        cmocka_unit_test(convert_reads_runs),
        cmocka_unit_test(verify_finds_damaged_files),
    };
    return cmocka_run_group_tests_name("cli.ckpt", tests, set_up, tear_down);
}
