/* Models with experts that are made of dense golden models: they compute what the dense ones do, every expert
 * is the MLP, and what cannot be made leaves nothing. */
#include "infer/golden_case.h"
#include "support/scratch.h"

enum { POSITIONS = 12, EXPERTS = 5 };

typedef struct logits {
    float *value; /* [POSITIONS, vocab] */
    int64_t vocab;
    double largest, worst; /* largest absolute value; with `compare`: largest difference */
    bool compare;
} logits;

static ax_status take(void *user, int64_t position, const float *row, int64_t vocab)
{
    logits *l = user;
    if (!l->value)
        AX_TRY(ax_calloc((size_t)(POSITIONS * vocab), sizeof *l->value, &l->value));
    for (int64_t v = 0; v < vocab; v++) {
        float *value = &l->value[position * vocab + v];
        l->largest = fmax(l->largest, fabs((double)row[v]));
        if (l->compare)
            l->worst = fmax(l->worst, fabs((double)row[v] - (double)*value));
        else
            *value = row[v];
    }
    return AX_OK;
}

static void run(const char *dir, logits *l)
{
    static const int32_t tokens[POSITIONS] = {1, 5, 9, 3, 2, 17, 8, 4, 4, 11, 0, 6};
    ax_comm *self;
    ax_ctx *ctx;
    ax_pretrained model;
    OK(ax_comm_self_create(&self));
    OK(ax_ctx_create(self, (ax_grid_size){{1}}, "cpu", 2, AX_F32, 1, &ctx));
    OK(ax_pretrained_open(dir, &model));
    OK(ax_pretrained_logits(ctx, &model, tokens, POSITIONS, take, l));
    ax_pretrained_close(&model);
    ax_ctx_destroy(&ctx);
    ax_comm_destroy(&self);
}

static void upcycle(const char *name, const char *out, int64_t top_k, ax_status want)
{
    char dir[600];
    ax_conversion result;
    snprintf(dir, sizeof dir, "%s/tests/golden/%s", AXONN_SOURCE_DIR, name);
    const ax_conversion_args args = {
        .dir = dir, .out = out, .dtype = AX_DTYPE_COUNT, .experts = EXPERTS, .top_k = top_k};
    assert_int_equal(ax_model_upcycle(&args, &result), want);
}

/* The dense model's logits, within 1e-6 of the largest: the weights of a token's experts sum to 1 but for
 * roundings. */
static void new_models_compute_what_the_dense_ones_do(void **state)
{
    static const struct {
        const char *dense, *family;
        bool prefix;
    } cases[] = {{"llama/grouped", "mixtral", true},
                 {"llama/linear", "mixtral", false},
                 {"mistral/window", "mixtral", true},
                 {"qwen3/norms", "qwen3_moe", true},
                 {"qwen3/biases", "qwen3_moe", true}};
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        char dir[600], out[600], key[64];
        logits l = {0};
        ax_st *st;
        ax_pretrained model;
        snprintf(dir, sizeof dir, "%s/tests/golden/%s", AXONN_SOURCE_DIR, cases[i].dense);
        snprintf(out, sizeof out, "%s/sparse%d", (const char *)*state, (int)i);
        upcycle(cases[i].dense, out, 2, AX_OK);
        run(dir, &l);
        l.compare = true;
        run(out, &l);
        if (!(l.worst < 1e-6 * l.largest))
            fail_msg("%s: logits differ by %.1e of the largest", cases[i].dense, l.worst / l.largest);
        free(l.value);
        OK(ax_pretrained_open(out, &model));
        assert_string_equal(ax_model_config_family(&model.config), cases[i].family);
        assert_true(model.config.experts.n == EXPERTS && model.config.experts.top_k == 2 &&
                    model.config.experts.renormalize);
        ax_pretrained_close(&model);
        OK(ax_st_open(out, &st));
        for (int e = 0; e <= EXPERTS; e++) {
            snprintf(key, sizeof key, "%slayers.0.%s.experts.%d.%s.weight", cases[i].prefix ? "model." : "",
                     cases[i].family[0] == 'q' ? "mlp" : "block_sparse_moe", e,
                     cases[i].family[0] == 'q' ? "up_proj" : "w3");
            assert_true(!ax_st_find(st, key) == (e == EXPERTS));
        }
        ax_st_close(&st);
    }
}

static void what_cannot_be_made_leaves_nothing(void **state)
{
    static const struct {
        const char *dense, *message;
        int64_t top_k;
    } cases[] = {
        {"gpt2/tiny", "models of family gpt2 cannot become a mixture of experts", 2},
        {"qwen2/tied", "models of family qwen2 cannot become", 2},
        {"mixtral/window", "models of family mixtral cannot become", 2},
        {"llama/biases", "the model's MLPs have biases, which models of family mixtral do not have", 2},
        {"mistral/types", "some layers of the model have a sliding window and others have none", 2},
        {"llama/grouped", "each token chooses 6 experts of 5", EXPERTS + 1}};
    char out[600];
    ax_strings names;
    snprintf(out, sizeof out, "%s/none", (const char *)*state);
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        upcycle(cases[i].dense, out, cases[i].top_k, AX_ERR_USAGE);
        assert_non_null(strstr(ax_error_message(), cases[i].message));
    }
    OK(ax_dir_list(*state, &names));
    for (size_t i = 0; i < names.count; i++)
        assert_null(strstr(names.items[i], "none"));
    ax_strings_fini(&names);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(new_models_compute_what_the_dense_ones_do, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(what_cannot_be_made_leaves_nothing, scratch_setup, scratch_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
