/* cli: axonn loki calibrate, and --loki, --keys, --dims, --per of the verbs that run a model. */
#include "axonn/data.h"
#include "cli/cli_test.h"
#include "support/check.h"

#include <math.h>

#define GOLDEN AXONN_SOURCE_DIR "/tests/golden/llama/grouped"
#define OTHER AXONN_SOURCE_DIR "/tests/golden/llama/linear"
#define LEARNED AXONN_SOURCE_DIR "/tests/golden/gpt2/tanh"
enum { VOCAB = 67, TOKENS = 1000 };

static int begin(void **state)
{
    int32_t ids[TOKENS];
    ax_token_writer *w;
    (void)state;
    if (chdir(AXONN_BUILD_DIR) || ax_remove_tree("cli-loki") != AX_OK || ax_mkdirs("cli-loki") != AX_OK ||
        chdir("cli-loki"))
        return -1;
    for (int i = 0; i < TOKENS; i++)
        ids[i] = (i * i * 3 + i / 7) % VOCAB;
    return ax_token_writer_create("a.tok", VOCAB, -1, 0, &w) != AX_OK ||
           ax_token_writer_add(w, ids, TOKENS, TOKENS) != AX_OK || ax_token_writer_finish(&w, NULL) != AX_OK;
}

static int end(void **state)
{
    (void)state;
    return chdir("..") || ax_remove_tree("cli-loki") != AX_OK;
}

static double number(const char *command, const char *key)
{
    json_t *object = json_of(command);
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value))
        fail_msg("%s: no number \"%s\"", command, key);
    const double x = json_number_value(value);
    json_decref(object);
    return x;
}

/* A calibration prints a rank for each layer. With all keys the loss, and a greedy text, are those of full
 * attention; with few they are not. */
static void keys_are_chosen(void **state)
{
    (void)state;
    ax_buf full = {0}, out = {0};
    json_t *object = json_of(AXONN " loki calibrate " GOLDEN
                                   " --data a.tok --out a.safetensors --tokens 900 --rotary before --json");
    assert_int_equal(json_array_size(json_object_get(object, "rank90")), 2);
    assert_int_equal(json_integer_value(json_object_get(object, "tokens")), 920); /* 23 rows of 40 */
    json_decref(object);
    const double loss = number(AXONN " eval " GOLDEN " --data a.tok --json", "loss"),
                 all = number(AXONN " eval " GOLDEN
                                    " --data a.tok --loki a.safetensors --keys 1.0 --dims 0.25 --json",
                              "loss"),
                 few = number(AXONN " eval " GOLDEN
                                    " --data a.tok --loki a.safetensors --keys 2 --dims 8 --per group --json",
                              "loss");
    assert_true(fabs(all - loss) < 1e-5 * loss);
    assert_true(fabs(few - loss) > 1e-4 * loss);
    assert_int_equal(
        shell(AXONN " generate " GOLDEN " --tokens 1,2,3 --temperature 0 --max-tokens 30", &full), 0);
    assert_int_equal(shell(AXONN " generate " GOLDEN " --tokens 1,2,3 --temperature 0 --max-tokens 30 --loki "
                                 "a.safetensors --keys 1.0 --dims 8",
                           &out),
                     0);
    assert_string_equal(out.data, full.data);
    assert_int_equal(shell(AXONN " bench generate " GOLDEN " --keys 0.25 --rounds 1 --tokens 4", &out), 0);
    assert_contains(out.data, "with attention to all keys");
    /* A text alone chooses among more keys with each step, in memory that is planned once. */
    assert_int_equal(
        shell(
            "printf 'model: {family: gpt2, layers: 1, hidden: 48, heads: 12, vocab: 67, seq_len: 320}\n"
            "train: {steps: 1, global_batch: 1, micro_batch: 1}\ndata: {train: a.tok}\n' >long.yaml && " AXONN
            " train long.yaml run.dir=long 2>/dev/null && " AXONN
            " generate long --tokens 1,2,3 --max-tokens 300 --ignore-end --keys 0.25",
            &out),
        0);
    assert_int_equal(shell(AXONN " bench generate long --keys 0.25 --rounds 1 --tokens 200", &out), 0);
    /* A file of texts goes on with the same keys only. */
    assert_int_equal(shell("echo '{\"id\": 1, \"tokens\": [1, 2, 3]}' >prompts && " AXONN " generate " GOLDEN
                           " --prompts prompts --out texts --temperature 0 --max-tokens 30 --keys 1.0",
                           &out),
                     0);
    assert_int_equal(shell(AXONN " generate " GOLDEN
                                 " --prompts prompts --out texts --temperature 0 --max-tokens 30 2>&1",
                           &out),
                     4);
    assert_contains(out.data, "keys");
    ax_buf_fini(&full);
    ax_buf_fini(&out);
}

/* A model whose weights are not numbers has no keys to calibrate with. */
static void keys_must_be_finite(void **state)
{
    (void)state;
    ax_buf out = {0};
    char *data;
    size_t size;
    uint64_t header;
    assert_int_equal(shell("cp -r " GOLDEN " nan && chmod -R u+w nan", &out), 0);
    assert_int_equal(ax_file_read("nan/model.safetensors", &data, &size), AX_OK);
    memcpy(&header, data, sizeof header);
    memset(data + 8 + header, 0xff, size - 8 - header);
    assert_int_equal(ax_file_write_atomic("nan/model.safetensors", data, size), AX_OK);
    free(data);
    assert_int_equal(
        shell(AXONN " loki calibrate nan --data a.tok --out nan.safetensors --tokens 900 2>&1", &out), 4);
    assert_contains(out.data, "the keys of layer 0 are not finite");
    assert_int_equal(shell("ls nan.safetensors 2>/dev/null", &out), 2);
    ax_buf_fini(&out);
}

static void bad_input_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *command;
        int code;
        const char *says[3];
    } bad[] = {
        {"eval " GOLDEN " --data a.tok --dims 8", 2, {"--dims needs --loki"}},
        {"eval " GOLDEN " --data a.tok --per group", 2, {"--per needs --keys"}},
        {"eval " GOLDEN " --data a.tok --loki a.safetensors", 2, {"both are missing"}},
        {"generate " GOLDEN " --tokens 1 --loki a.safetensors --keys 0 --dims 11 --per layer",
         2,
         {"--keys 0: give 1 to 40", "--dims 11: give 1 to 10", "--per layer"}},
        {"generate " GOLDEN " --tokens 1 --keys 1.5", 2, {"--keys 1.5: a part"}},
        {"generate " GOLDEN " --tokens 1 --keys 41", 2, {"--keys 41: give 1 to 40"}},
        {"generate " GOLDEN " --tokens 1 --keys 0.0", 2, {"--keys 0.0: a part"}},
        {"generate " GOLDEN " --tokens 1 --keys few", 2, {"--keys few"}},
        {"bench generate " GOLDEN " --loki nowhere.safetensors --keys 1 --dims 8",
         4,
         {"nowhere.safetensors"}},
        {"eval " OTHER " --data a.tok --loki a.safetensors --keys 0.5 --dims 8",
         4,
         {"of a model with other weights", "matrices of 2 layers, the model has 1",
          "2 key heads of width 14"}},
        {"eval " GOLDEN " --data a.tok --loki " GOLDEN "/model.safetensors --keys 0.5 --dims 8",
         4,
         {"was not written by", "matrices of 0 layers"}},
        {"loki calibrate " LEARNED " --data a.tok --out basis --rotary before --tokens 60",
         2,
         {"60 tokens are too few for heads of width 4: give 64", "no rotary embedding",
          "must end in .safetensors"}},
        {"loki calibrate " GOLDEN " --data a.tok --out nowhere/b.safetensors",
         4,
         {"no file can be written to nowhere"}},
    };
    ax_buf out = {0};
    for (size_t i = 0; i < AX_COUNT(bad); i++) {
        char command[1024];
        snprintf(command, sizeof command, "%s %s 2>&1", AXONN, bad[i].command);
        assert_int_equal(shell(command, &out), bad[i].code);
        for (int n = 0; n < 3 && bad[i].says[n]; n++)
            assert_contains(out.data, bad[i].says[n]);
    }
    ax_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(keys_are_chosen),
                                       cmocka_unit_test(keys_must_be_finite),
                                       cmocka_unit_test(bad_input_is_refused)};
    return cmocka_run_group_tests(tests, begin, end);
}
