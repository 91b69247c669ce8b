/* The three rates of dropout of a run: where they come from, that each has an effect, that they are logged
 * and saved, and that evaluation has none. */
#include "run_test.h"

#define MODEL_DIR "model"
#define KEYS                                                                                                 \
    OTHER_KEYS "data.train=from.tok data.valid=from.tok model.seq_len=16 train.steps=2 optim.lr=0 "          \
               "model.from=" MODEL_DIR " "

static void make_model(const char *rates)
{
    char *text = text_of(AXONN_SOURCE_DIR "/tests/golden/gpt2/tanh/config.json");
    json_t *config = json_loads(text, 0, NULL), *given = json_loads(rates, 0, NULL);
    assert_non_null(given);
    json_object_update(config, given);
    sh("rm -rf run " MODEL_DIR " && cp -r " AXONN_SOURCE_DIR "/tests/golden/gpt2/tanh " MODEL_DIR);
    assert_int_equal(json_dump_file(config, MODEL_DIR "/config.json", 0), 0);
    json_decref(config);
    json_decref(given);
    free(text);
}

static double rate_in(const char *path, const char *key)
{
    char *text = text_of(path);
    json_t *config = json_loads(text, 0, NULL);
    const json_t *rate = json_object_get(config, key);
    assert_true(json_is_number(rate));
    double value = json_number_value(rate);
    json_decref(config);
    free(text);
    return value;
}

static void expect_rates(const char *keys, double embd, double resid, double attn)
{
    static const char *const names[] = {"embd_pdrop", "resid_pdrop", "attn_pdrop"};
    const double expected[] = {embd, resid, attn};
    char said[128];
    snprintf(said, sizeof said,
             "dropout of the model: %g of embeddings, %g of residual branches, %g of attention", embd, resid,
             attn);
    sh("rm -rf run");
    run_expect(0, embd + resid + attn > 0 ? said : "dropout of the model: none", KEYS "%s", keys);
    for (size_t i = 0; i < AX_COUNT(names); i++)
        if (rate_in("run/ckpt/step-2/config.json", names[i]) != expected[i])
            fail_msg("%s is saved as %g with %s", names[i], rate_in("run/ckpt/step-2/config.json", names[i]),
                     keys);
}

static void rates_are_the_models_or_the_keys(void **state)
{
    (void)state;
    make_model("{\"embd_pdrop\": 0.25, \"resid_pdrop\": 0.5, \"attn_pdrop\": 0.125}");
    expect_rates("", 0.25, 0.5, 0.125);
    expect_rates("model.attn_dropout=0", 0.25, 0.5, 0);
    expect_rates("model.embd_dropout=0.3 model.resid_dropout=0", 0.3, 0, 0.125);
    expect_rates("model.dropout=0", 0, 0, 0);
    expect_rates("model.dropout=0.2 model.attn_dropout=0.4", 0.2, 0.2, 0.4);
    make_model("{\"embd_pdrop\": 0, \"resid_pdrop\": 0, \"attn_pdrop\": 1.0}"); /* all are dropped */
    expect_rates("", 0, 0, 1);
    make_model("{\"embd_pdrop\": 0, \"resid_pdrop\": 0, \"attn_pdrop\": 1.5}");
    run_expect(4, "the dropout rate of attention, 1.5, is not in [0, 1]", KEYS);
}

/* The loss of the first step and that of the evaluation. */
static void losses_with(const char *keys, double *train, double *eval)
{
    sh("rm -rf run");
    run_expect(0, NULL, KEYS "%s", keys);
    char *text = text_of("run/metrics.jsonl"), *a = strstr(text, "\"loss\": "),
         *b = strstr(text, "\"eval_loss\": ");
    assert_true(a && b);
    *train = strtod(a + strlen("\"loss\": "), NULL);
    *eval = strtod(b + strlen("\"eval_loss\": "), NULL);
    free(text);
}

static void each_rate_acts_in_training_only(void **state)
{
    (void)state;
    static const char *const keys[] = {"", "model.embd_dropout=0.3", "model.resid_dropout=0.3",
                                       "model.attn_dropout=0.3", "model.dropout=0.3"};
    double train[AX_COUNT(keys)], eval[AX_COUNT(keys)];
    make_model("{}");
    for (size_t i = 0; i < AX_COUNT(keys); i++) {
        losses_with(keys[i], &train[i], &eval[i]);
        assert_true(eval[i] == eval[0]);
        for (size_t k = 0; k < i; k++)
            if (train[i] == train[k])
                fail_msg("\"%s\" and \"%s\" have the same loss", keys[i], keys[k]);
    }
}

static int setup(void **state)
{
    if (run_setup(state))
        return -1;
    make_tokens("from.tok", 67, 2000, 3);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_are_the_models_or_the_keys),
        cmocka_unit_test(each_rate_acts_in_training_only),
    };
    return cmocka_run_group_tests(tests, setup, run_teardown);
}
