/* Models of every family compared with transformers and PyTorch (tests/golden): logits, loss, every gradient,
 * 50 steps of AdamW, greedy generation. */
#include "infer/golden_case.h"
#include "support/sampled.h"

/* What a case has besides a forward pass: rows of several documents, 50 steps, generated tokens. */
enum { PACKED = 1, TRAIN = 2, GENERATE = 4, ALL = PACKED | TRAIN | GENERATE };

static const struct {
    const char *name;
    int has;
} cases[] = {{"gpt2/tanh", ALL},
             {"gpt2/exact", TRAIN | GENERATE},
             {"gpt2/tiny", TRAIN | GENERATE},
             {"llama/grouped", ALL},
             {"llama/llama3", GENERATE},
             {"llama/linear", 0},
             {"llama/yarn", 0},
             {"llama/biases", ALL},
             {"mistral/window", ALL},
             {"mistral/types", PACKED | GENERATE},
             {"ministral/types", PACKED | GENERATE},
             {"mistral/whole", 0},
             {"mistral/yarn", 0},
             {"qwen2/tied", ALL},
             {"qwen2/windows", PACKED | GENERATE},
             {"qwen2/yarn", 0},
             {"qwen3/norms", ALL},
             {"qwen3/biases", GENERATE},
             {"qwen3/types", GENERATE},
             {"qwen3/one", 0},
             {"mixtral/window", ALL},
             {"mixtral/fused", 0},
             {"mixtral/all", PACKED | GENERATE},
             {"qwen3_moe/dense", PACKED | GENERATE},
             {"qwen3_moe/step", 0},
             {"qwen3_moe/biases", GENERATE},
             {"qwen3_moe/tied", PACKED},
             {"olmoe/grouped", PACKED | GENERATE},
             {"olmoe/fused", 0},
             {"olmoe/tied", GENERATE}};
static const char *const devices[] = {"ref", "cpu"};

/* ---- forward and gradients ----------------------------------------------------------------------- */

/* Returns the golden gradient of a matrix of all experts, [out, expert, in]: the array has [expert, parts ·
 * out, in]. */
static double *experts_gradient(golden *g, const ax_st_array *a, const ax_param *p)
{
    const int64_t *dim = p->rest.dim, height = dim[0] * p->file.parts;
    double *whole = calloc((size_t)ax_st_elements(a), sizeof *whole),
           *out = calloc((size_t)ax_tensor_global_count(&p->rest), sizeof *out);
    OK(ax_st_read(g->numbers, a, NULL, NULL, false, AX_F64, whole));
    for (int64_t o = 0; o < dim[0]; o++)
        for (int64_t e = 0; e < dim[1]; e++)
            memcpy(out + (o * dim[1] + e) * dim[2], whole + (e * height + p->file.part * dim[0] + o) * dim[2],
                   (size_t)dim[2] * sizeof *out);
    free(whole);
    return out;
}

/* Returns the golden gradient of a parameter, in the parameter's shape. */
static double *golden_gradient(golden *g, const ax_param *p)
{
    char key[300];
    const ax_param_file *f = &p->file;
    snprintf(key, sizeof key, "forward.grad.%s", f->fused ? f->fused : f->key);
    const ax_st_array *a = ax_st_find(g->numbers, key);
    assert_non_null(a);
    if (f->spread)
        return experts_gradient(g, a, p);
    int64_t n[AX_MAX_DIMS];
    for (int d = 0; d < f->ndim; d++)
        n[d] = p->rest.dim[f->transpose ? f->ndim - 1 - d : d];
    double *out = calloc((size_t)ax_tensor_global_count(&p->rest), sizeof *out);
    OK(ax_st_read(g->numbers, a, f->lo, n, f->transpose, AX_F64, out));
    return out;
}

/* Reads the gradients after a step with learning rate 0, which changes no weight. Tolerance: 1e-4 relative,
 * plus the rounding error of a sum that cancels (the key bias is zero in exact arithmetic): 4·sqrt(terms)
 * roundings of 2^-24 relative to the largest gradient, with one term per row and position. */
static void check_gradients(golden *g, int64_t terms)
{
    ax_param_set *set = ax_engine_params(g->engine);
    double scale = 0, *mine[64], *theirs[64];
    for (int i = 0; i < set->n; i++) {
        int64_t n = ax_tensor_global_count(&set->param[i]->grad);
        ax_tensor grad = set->param[i]->grad;
        float *host = calloc((size_t)n, sizeof *host);
        OK(ax_tensor_collect(g->ctx, &grad, host));
        mine[i] = calloc((size_t)n, sizeof(double));
        for (int64_t k = 0; k < n; k++)
            mine[i][k] = host[k];
        free(host);
        theirs[i] = golden_gradient(g, set->param[i]);
        scale = fmax(scale, rms(theirs[i], n));
    }
    for (int i = 0; i < set->n; i++) {
        int64_t n = ax_tensor_global_count(&set->param[i]->grad);
        double worst = 0, unit = fmax(rms(theirs[i], n), 1e-3 * scale);
        double allowed = 1e-4 * unit + 4 * sqrt((double)terms) * 0x1p-24 * scale;
        for (int64_t k = 0; k < n; k++)
            worst = fmax(worst, fabs(mine[i][k] - theirs[i][k]));
        if (!(worst < allowed))
            fail_msg("%s: gradient of %s is off by %.1e (allowed: %.1e)", g->dir, set->param[i]->name, worst,
                     allowed);
        free(mine[i]);
        free(theirs[i]);
    }
}

/* The losses of routers, and none in a model without experts. */
static void check_router_losses(golden *g, const ax_step_result *result)
{
    if (!g->model.config.experts.n) {
        assert_true(result->expert_load == 0 && result->balance_loss == 0 && result->z_loss == 0);
        return;
    }
    double *balance = array(g, "forward.balance_loss", NULL), *z = array(g, "forward.z_loss", NULL);
    assert_true(fabs(result->balance_loss - *balance) < 1e-5 * *balance);
    assert_true(fabs(result->z_loss - *z) < 1e-5 * *z);
    assert_true(result->expert_load >= 1);
    free(balance);
    free(z);
}

static ax_status compare_logits(void *user, int64_t position, const float *logits, int64_t vocab)
{
    const double *expected = (const double *)user + position * vocab;
    double unit = rms(expected, vocab);
    for (int64_t v = 0; v < vocab; v++)
        AX_CHECK(fabs(logits[v] - expected[v]) < 1e-4 * unit, AX_ERR_NUMERIC,
                 "logit %lld at %lld: %g, not %g", (long long)v, (long long)position, logits[v], expected[v]);
    return AX_OK;
}

static void forward_case(const char *name, const char *device, const char *prefix)
{
    golden g;
    int64_t dim[AX_ST_MAX_DIMS];
    char key[64];
    bool packed = !strcmp(prefix, "packed");
    open_case(&g, name, device);
    snprintf(key, sizeof key, "%s.tokens", prefix);
    double *tokens = array(&g, key, dim);
    snprintf(key, sizeof key, "%s.targets", prefix);
    double *targets = array(&g, key, NULL);
    snprintf(key, sizeof key, "%s.logits", prefix);
    double *logits = packed ? NULL : array(&g, key, NULL);
    snprintf(key, sizeof key, "%s.loss", prefix);
    double *loss = array(&g, key, NULL), *documents = packed ? array(&g, "packed.documents", NULL) : NULL;
    int64_t b = dim[0], t = dim[1];
    if (!packed)
        for (int64_t row = 0; row < b; row++) {
            int32_t ids[64];
            for (int64_t i = 0; i < t; i++)
                ids[i] = (int32_t)tokens[row * t + i];
            OK(ax_pretrained_logits(g.ctx, &g.model, ids, t, compare_logits,
                                    logits + row * t * g.model.config.vocab));
        }
    open_engine(&g, (ax_engine_options){.seq_len = t, .micro_batch = b, .global_batch = b});
    rows r = {tokens, targets, documents, t};
    ax_step_result result;
    OK(ax_engine_step(g.engine, 1, read_rows, &r, count_targets(targets, b * t), &(ax_hyper){.step = 1}));
    OK(ax_engine_result(g.engine, &result));
    assert_true(result.finite);
    if (!(fabs(result.loss - *loss) < 1e-5 * *loss))
        fail_msg("%s %s: loss %.9g, not %.9g", name, prefix, result.loss, *loss);
    if (!packed) {
        check_gradients(&g, b * t);
        check_router_losses(&g, &result);
    }
    close_case(&g);
    free(tokens);
    free(targets);
    free(logits);
    free(loss);
    free(documents);
}

static void logits_loss_gradients(void **state)
{
    (void)state;
    for (size_t d = 0; d < AX_COUNT(devices); d++) {
        for (size_t i = 0; i < AX_COUNT(cases); i++) {
            forward_case(cases[i].name, devices[d], "forward");
            if (cases[i].has & PACKED)
                forward_case(cases[i].name, devices[d], "packed");
        }
    }
}

/* ---- fifty steps --------------------------------------------------------------------------------- */

static void train_case(const char *name, const char *device, int64_t recompute)
{
    golden g;
    open_case(&g, name, device);
    check_fifty_steps(&g, recompute);
    close_case(&g);
}

static void fifty_steps(void **state)
{
    (void)state;
    for (size_t d = 0; d < AX_COUNT(devices); d++)
        for (size_t i = 0; i < AX_COUNT(cases); i++)
            if (cases[i].has & TRAIN && (i + d) % (size_t)one_of(1, 2) == 0)
                train_case(cases[i].name, devices[d], 0);
    train_case("gpt2/exact", "cpu", 2);
    train_case("qwen3/norms", "cpu", 1);
}

/* ---- generation ---------------------------------------------------------------------------------- */

static void greedy_case(const char *name)
{
    golden g;
    open_case(&g, name, "cpu");
    int64_t most = g.model.config.seq_len, made[AX_ST_MAX_DIMS] = {0}, dim[AX_ST_MAX_DIMS] = {0};
    double *prompt = array(&g, "generate.prompt", dim), *expected = array(&g, "generate.tokens", made);
    int64_t n = dim[0], last = ax_min(made[0], most - n);
    int32_t ids[64], next;
    for (int64_t k = 0; k < n; k++)
        ids[k] = (int32_t)prompt[k];
    ax_generator *generator;
    const float *logits;
    OK(ax_generator_create(g.ctx, &g.model, &(ax_generator_options){1, n, most}, &generator));
    OK(ax_generator_feed(generator, 0, ids, n, &logits));
    for (int64_t k = 0; k < last; k++) {
        OK(ax_sample(logits, (int)g.model.config.vocab, &(ax_sampling){0, 0, 1, 0}, 0, NULL, &next));
        if (next != (int32_t)expected[k])
            fail_msg("%s: generated token %d is %d, not %g", name, (int)k, next, expected[k]);
        if (k + 1 < last)
            OK(ax_generator_step(generator, &next, &logits));
    }
    ax_generator_destroy(&generator);
    free(prompt);
    free(expected);
    close_case(&g);
}

static void greedy(void **state)
{
    (void)state;
    for (size_t i = 0; i < AX_COUNT(cases); i++)
        if (cases[i].has & GENERATE)
            greedy_case(cases[i].name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(logits_loss_gradients), cmocka_unit_test(fifty_steps),
                                       cmocka_unit_test(greedy)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
