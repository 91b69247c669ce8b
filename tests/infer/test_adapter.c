/* Low-rank adapters compared with PEFT (tests/golden/lora): logits, loss, the gradients of all factors, 50
 * steps of AdamW. Ranks 1, 8, and one above the size of a head. */
#include "infer/golden_case.h"

static const char *const cases[] = {"lora/joint", "lora/one", "lora/all", "lora/patterns", "lora/blocks"};

/* ---- logits, loss, gradients --------------------------------------------------------------------- */

static ax_status compare_logits(void *user, int64_t position, const float *logits, int64_t vocab)
{
    const double *expected = (const double *)user + position * vocab;
    double unit = rms(expected, vocab);
    for (int64_t v = 0; v < vocab; v++)
        AX_CHECK(fabs(logits[v] - expected[v]) < 1e-5 * unit, AX_ERR_NUMERIC,
                 "logit %lld at %lld: %g, not %g", (long long)v, (long long)position, logits[v], expected[v]);
    return AX_OK;
}

/* Adds the gradient of a factor to its place in `sum`, the gradient of the whole array in PEFT's files. */
static void add_gradient(golden *g, const ax_param *p, double *sum)
{
    const ax_tensor *grad = &p->grad;
    float *host = calloc((size_t)ax_tensor_global_count(grad), sizeof *host);
    OK(ax_tensor_collect(g->ctx, grad, host));
    for (int64_t r = 0; r < grad->dim[0]; r++)
        for (int64_t c = 0; c < grad->dim[1]; c++)
            sum[(p->file.lo[0] + (p->file.transpose ? c : r)) * p->file.dim[1] + p->file.lo[1] +
                (p->file.transpose ? r : c)] += host[r * grad->dim[1] + c];
    free(host);
}

static void check_gradients(golden *g)
{
    const ax_param_set *set = ax_engine_params(g->engine);
    int arrays = 0;
    double worst = 0;
    for (int i = 0; i < ax_st_count(g->numbers); i++) {
        const ax_st_array *a = ax_st_at(g->numbers, i);
        if (strncmp(a->key, "forward.grad.", 13))
            continue;
        int64_t n = ax_st_elements(a);
        double *theirs = array(g, a->key, NULL), *mine = calloc((size_t)n, sizeof *mine);
        int found = 0;
        for (int k = 0; k < set->n; k++)
            if (!set->param[k]->frozen && !strcmp(set->param[k]->file.key, a->key + 13)) {
                add_gradient(g, set->param[k], mine);
                found++;
            }
        assert_true(found > 0);
        double unit = rms(theirs, n);
        for (int64_t k = 0; k < n; k++)
            mine[k] -= theirs[k];
        worst = fmax(worst, rms(mine, n) / unit);
        arrays++;
        free(theirs);
        free(mine);
    }
    printf("%s: gradients of %d factors within %.1e\n", strrchr(g->dir, '/') + 1, arrays, worst);
    assert_true(arrays > 0 && worst < 1e-5);
}

static void forward_case(const char *name, const char *device)
{
    golden g;
    int64_t dim[AX_ST_MAX_DIMS];
    open_case(&g, name, device);
    double *tokens = array(&g, "forward.tokens", dim), *targets = array(&g, "forward.targets", NULL),
           *logits = array(&g, "forward.logits", NULL), *loss = array(&g, "forward.loss", NULL);
    for (int64_t row = 0; row < dim[0]; row++) {
        int32_t ids[64];
        for (int64_t i = 0; i < dim[1]; i++)
            ids[i] = (int32_t)tokens[row * dim[1] + i];
        OK(ax_pretrained_logits(g.ctx, &g.model, ids, dim[1], compare_logits,
                                logits + row * dim[1] * g.model.config.vocab));
    }
    open_engine(&g, (ax_engine_options){.seq_len = dim[1], .micro_batch = dim[0], .global_batch = dim[0]});
    rows r = {tokens, targets, NULL, dim[1]};
    ax_step_result result;
    OK(ax_engine_step(g.engine, 1, read_rows, &r, count_targets(targets, dim[0] * dim[1]),
                      &(ax_hyper){.step = 1}));
    OK(ax_engine_result(g.engine, &result));
    assert_true(result.finite && fabs(result.loss - *loss) < 1e-5 * *loss);
    check_gradients(&g);
    close_case(&g);
    free(tokens);
    free(targets);
    free(logits);
    free(loss);
}

static void logits_loss_and_gradients_are_those_of_peft(void **state)
{
    (void)state;
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        forward_case(cases[i], "ref");
        forward_case(cases[i], "cpu");
    }
}

/* ---- fifty steps --------------------------------------------------------------------------------- */

static void fifty_steps_are_those_of_peft(void **state)
{
    (void)state;
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        golden g;
        open_case(&g, cases[i], "cpu");
        check_fifty_steps(&g, 0);
        close_case(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(logits_loss_and_gradients_are_those_of_peft),
                                       cmocka_unit_test(fifty_steps_are_those_of_peft)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
