/* cli: the verbs that take a MODEL take the directory of an adapter too, here of adapters that PEFT wrote. */
#include "cli/cli_test.h"

#include <math.h>

#define LORA AXONN_SOURCE_DIR "/tests/golden/lora/"

static int set_up(void **state)
{
    (void)state;
    return chdir(AXONN_BUILD_DIR) || ax_remove_tree("cli-adapters") != AX_OK ||
           ax_mkdirs("cli-adapters") != AX_OK || chdir("cli-adapters");
}

static int tear_down(void **state)
{
    (void)state;
    return chdir("..") || ax_remove_tree("cli-adapters") != AX_OK;
}

static void expect(int code, const char *part, const char *command)
{
    ax_buf out = {0};
    char both[4096];
    snprintf(both, sizeof both, "%s 2>&1", command);
    int got = shell(both, &out);
    if (got != code || !strstr(out.data, part))
        fail_msg("%s: exit code %d, printed:\n%s", command, got, out.data);
    ax_buf_fini(&out);
}

/* Returns the largest difference of two lists of numbers, relative to the largest number. */
static double gap(const json_t *a, const json_t *b)
{
    double worst = 0, largest = 0;
    assert_true(json_array_size(a) > 0 && json_array_size(a) == json_array_size(b));
    for (size_t i = 0; i < json_array_size(a); i++) {
        double x = json_number_value(json_array_get(a, i)), y = json_number_value(json_array_get(b, i));
        worst = fmax(worst, fabs(x - y));
        largest = fmax(largest, fabs(y));
    }
    return worst / largest;
}

static void verbs_read_adapters(void **state)
{
    (void)state;
    expect(0, "updates of 8 arrays were merged", AXONN " ckpt convert " LORA "joint --out merged");
    expect(2, "merged exists", AXONN " ckpt convert " LORA "joint --out merged");
    json_t *a = json_of(AXONN " logits " LORA "joint --tokens 5,9,1,33 --json"),
           *b = json_of(AXONN " logits merged --tokens 5,9,1,33 --json"),
           *base =
               json_of(AXONN " logits " AXONN_SOURCE_DIR "/tests/golden/gpt2/tanh --tokens 5,9,1,33 --json");
    assert_true(gap(json_object_get(a, "logits"), json_object_get(b, "logits")) < 1e-5);
    assert_true(gap(json_object_get(a, "logits"), json_object_get(base, "logits")) > 1e-2);
    json_decref(a);
    json_decref(b);
    json_decref(base);
    a = json_of(AXONN " generate " LORA "all --tokens 5,9,1 --temperature 0 --max-tokens 6 --json");
    expect(0, "merged", AXONN " ckpt convert " LORA "all --out whole");
    b = json_of(AXONN " generate whole --tokens 5,9,1 --temperature 0 --max-tokens 6 --json");
    assert_true(json_equal(json_object_get(a, "tokens"), json_object_get(b, "tokens")));
    json_decref(a);
    json_decref(b);
    expect(0, "good", AXONN " ckpt verify " LORA "one");
    expect(0, "",
           "cp -r " LORA
           "one other && chmod -R u+w other && sed -i 's/\"lora_alpha\": [0-9]*/\"lora_alpha\": 99/' "
           "other/adapter_config.json");
    expect(0, "adapter_config.json:lora_alpha", AXONN " ckpt diff other " LORA "one");
    expect(4,
           "other is an adapter and merged a full model: merge the adapter with its base first (axonn ckpt "
           "convert other --out DIR), and compare DIR with the model",
           AXONN " ckpt diff other merged");
    expect(4, "other is an adapter and merged a full model", AXONN " ckpt diff merged other");
    expect(0, " compared, 0 differ", AXONN " ckpt diff other/adapter_model.safetensors " LORA "one");
}

/* A directory that holds a model and an adapter is the adapter's for every verb. */
static void adapters_beside_a_model(void **state)
{
    (void)state;
    expect(0, "",
           "mkdir both && cp merged/* both && cp " LORA "one/adapter_* both && chmod -R u+w both && "
           "sed -i 's,\"base_model_name_or_path\": \".*\",\"base_model_name_or_path\": \"" AXONN_SOURCE_DIR
           "/tests/golden/gpt2/tanh\",' both/adapter_config.json");
    json_t *a = json_of(AXONN " logits both --tokens 5,9,1 --json"),
           *b = json_of(AXONN " logits " LORA "one --tokens 5,9,1 --json");
    assert_true(json_equal(json_object_get(a, "logits"), json_object_get(b, "logits")));
    json_decref(a);
    json_decref(b);
    expect(0, " compared, 1 differ", AXONN " ckpt diff both " LORA "one"); /* the path of the base */
    expect(4, "both is an adapter and merged a full model", AXONN " ckpt diff both merged");
    expect(0, "were merged", AXONN " ckpt convert both --out both_merged");
    expect(0, "",
           "mkdir over && cp " LORA "one/adapter_* over && chmod -R u+w over && "
           "sed -i 's,\"base_model_name_or_path\": \".*\",\"base_model_name_or_path\": \"both\",' "
           "over/adapter_config.json");
    expect(4, "names the base both, which holds adapter_config.json, so it is an adapter itself",
           AXONN " logits over --tokens 5");
    expect(0, "", "rm both/adapter_model.safetensors");
    static const char *const verbs[] = {"logits both --tokens 5", "ckpt convert both --out never",
                                        "ckpt diff both merged"};
    for (size_t i = 0; i < AX_COUNT(verbs); i++) {
        char command[256];
        snprintf(command, sizeof command, AXONN " %s", verbs[i]);
        expect(4, "both holds adapter_config.json, so it is the directory of an adapter", command);
    }
}

/* The base's chat templates are copied, unless the adapter's tokenizer has one. */
static void adapters_bring_their_templates(void **state)
{
    (void)state;
    expect(0, "",
           "cp -r " AXONN_SOURCE_DIR "/tests/golden/gpt2/tanh tbase && chmod -R u+w tbase && mkdir talk "
           "tbase/additional_chat_templates && echo b >tbase/chat_template.jinja && echo r "
           ">tbase/additional_chat_templates/rag.jinja && cp " LORA
           "one/adapter_* talk && chmod -R u+w talk && "
           "sed -i 's,\"base_model_name_or_path\": \".*\",\"base_model_name_or_path\": \"tbase\",' "
           "talk/adapter_config.json");
    static const char *const configs[] = {"{}", "{\"chat_template\": null}",
                                          "{\"x\": {\"chat_template\": \"a\"}}",
                                          "{\"chat_template\": \"a\"}"};
    for (size_t i = 0; i < AX_COUNT(configs); i++) {
        const bool own = i + 1 == AX_COUNT(configs);
        char command[512];
        snprintf(command, sizeof command,
                 "echo '%s' >talk/tokenizer_config.json; rm -rf told; " AXONN
                 " ckpt convert talk --out told; %s test -e "
                 "told/chat_template.jinja && %s test -e told/additional_chat_templates/rag.jinja",
                 configs[i], own ? "!" : "", own ? "!" : "");
        expect(0, "were merged", command);
    }
}

/* A relative path of a base belongs to the current directory, as in PEFT, and else to the adapter's. */
static void a_base_is_searched_here_first(void **state)
{
    (void)state;
    const char
        *taken =
            "place/adapter_config.json names the base \"found\": the directory in the current directory is "
            "taken, not place/found (write an absolute path to choose)",
        *logits = AXONN " logits place --tokens 5,9,1 --json";
    ax_buf out = {0};
    expect(0, "",
           "mkdir place && cp " LORA "one/adapter_* place && chmod -R u+w place && "
           "sed -i 's,\"base_model_name_or_path\": \".*\",\"base_model_name_or_path\": \"found\",' "
           "place/adapter_config.json");
    expect(4, "names the base \"found\", but there is no such directory", logits);
    expect(0, "", "cp -r " AXONN_SOURCE_DIR "/tests/golden/gpt2/tanh place/found");
    json_t *beside = json_of(logits);
    expect(0, "", "touch found"); /* a file is no base */
    expect(0, "", logits);
    expect(0, "", "rm found && cp -r merged found");
    expect(0, taken, logits);
    json_t *here = json_of(logits);
    assert_true(gap(json_object_get(here, "logits"), json_object_get(beside, "logits")) > 1e-3);
    /* Where both are the same directory, there is nothing to say. */
    assert_int_equal(shell("cd place && " AXONN " logits . --tokens 5 2>&1 >/dev/null", &out), 0);
    assert_null(strstr(out.data, "names the base"));
    json_decref(beside);
    json_decref(here);
    ax_buf_fini(&out);
}

static void errors_name_the_file(void **state)
{
    (void)state;
    ax_buf out = {0};
    assert_int_equal(shell("cp -r " LORA
                           "one bad && chmod -R u+w bad && sed -i 's/\"use_dora\": false/\"use_dora\": "
                           "true/' bad/adapter_config.json",
                           &out),
                     0);
    expect(4,
           "bad/adapter_config.json describes an adapter that cannot be used:\n  use_dora: true: DoRA is not "
           "implemented",
           AXONN " logits bad --tokens 1");
    expect(4, "use_dora", AXONN " ckpt convert bad --out never");
    assert_int_equal(shell("rm bad/adapter_model.safetensors && touch bad/adapter_model.bin", &out), 0);
    expect(4, "holds an adapter as adapter_model.bin, which is not read", AXONN " logits bad --tokens 1");
    assert_false(ax_path_exists("never"));
    ax_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(verbs_read_adapters), cmocka_unit_test(adapters_beside_a_model),
        cmocka_unit_test(a_base_is_searched_here_first), cmocka_unit_test(errors_name_the_file),
        cmocka_unit_test(adapters_bring_their_templates)};
    return cmocka_run_group_tests_name("cli.adapters", tests, set_up, tear_down);
}
