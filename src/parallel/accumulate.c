/* Gradients that are contractions: the GEMMs that compute contributions to the gradients of matrices, in the
 * gradients' own memory where they can. Read param_grad.c first.
 *
 * A frame that defers gradients (ax_frame_defer) takes the contractions, and runs them later. */
#include "parallel/param.h"

/* Computes n contractions of a[i] and b as contributions to the gradients of the matrices param[i]. The sums
 * of a[i] over all dims but the last are contributions to the gradients of the biases param[n + i] that are
 * not NULL. */
static ax_status accumulate(ax_frame *frame, int n, void *const *param, const char *spec, const ax_tensor *a,
                            const ax_tensor *b)
{
    ax_layout produced[2 * AX_BESIDE];
    ax_tensor target[2 * AX_BESIDE], rule;
    ax_contraction each[AX_BESIDE] = {{0}};
    bool fresh[2 * AX_BESIDE];
    for (int i = 0; i < n; i++) {
        AX_TRY(ax_contract_rule(ax_frame_ctx(frame)->grid, spec, &a[i], b, &rule));
        produced[i] = rule.layout;
        produced[n + i] = ax_layout_of_sums(&a[i].layout, a[i].ndim);
    }
    for (int first = 0; first < 2 * n; first += n)
        AX_TRY(
            ax_param_grad_targets(frame, n, param + first, produced + first, target + first, fresh + first));
    for (int i = 0; i < n; i++) {
        each[i] = (ax_contraction){.a = &a[i], .b = b, .out = &target[i], .accumulate = !fresh[i]};
        if (param[n + i]) {
            each[i].sums = &target[n + i];
            each[i].accumulate_sums = !fresh[n + i];
        }
    }
    AX_TRY(ax_contract_each(frame, spec, each, n));
    for (int i = 0; i < 2 * n; i++)
        if (param[i])
            AX_TRY(ax_param_add_grad(frame, param[i], &target[i]));
    return AX_OK;
}

ax_status ax_param_accumulate_each(ax_frame *frame, int n, ax_param *const *params, ax_param *const *biases,
                                   const char *spec, const ax_tensor *a, const ax_tensor *b)
{
    void *trained[2 * AX_BESIDE];
    ax_tensor of_trained[AX_BESIDE];
    int count = 0, at = 0;
    AX_ASSERT(n <= AX_BESIDE);
    for (int i = 0; i < n; i++)
        count += !params[i]->frozen;
    for (int i = 0; i < n; i++) {
        if (params[i]->frozen)
            continue;
        trained[at] = params[i];
        trained[count + at] = biases[i] && !biases[i]->frozen ? biases[i] : NULL;
        of_trained[at++] = a[i];
    }
    if (!count)
        return AX_OK;
    return ax_frame_defers(frame) ? ax_frame_defer(frame, accumulate, count, trained, spec, of_trained, b)
                                  : accumulate(frame, count, trained, spec, of_trained, b);
}

/* Computes n contractions of rows in groups, a[i] and b, as contributions to the gradients of param[i];
 * param[n] is the ax_groups. Contractions of several rounds add to one contribution. */
static ax_status accumulate_grouped(ax_frame *frame, int n, void *const *param, const char *spec,
                                    const ax_tensor *a, const ax_tensor *b)
{
    const ax_groups *groups = param[n];
    ax_layout produced[AX_BESIDE] = {[0] = {.partial = 0}};
    ax_tensor target[AX_BESIDE], rule;
    ax_contraction each[AX_BESIDE];
    bool fresh[AX_BESIDE];
    for (int i = 0; i < n; i++) {
        AX_TRY(ax_contract_grouped_rule(ax_frame_ctx(frame)->grid, groups, spec, &a[i], b, &rule));
        produced[i] = rule.layout;
    }
    if (groups->round == 0)
        AX_TRY(ax_param_grad_targets(frame, n, param, produced, target, fresh));
    for (int i = 0; i < n; i++) {
        if (groups->round > 0)
            ax_param_grad_target_again(param[i], &produced[i], &target[i], &fresh[i]);
        each[i] = (ax_contraction){.a = &a[i], .b = b, .out = &target[i], .accumulate = !fresh[i]};
    }
    AX_TRY(ax_contract_grouped(frame, groups, spec, each, n));
    for (int i = 0; i < n && groups->round + 1 >= groups->rounds; i++)
        AX_TRY(ax_param_add_grad(frame, param[i], &target[i]));
    return AX_OK;
}

ax_status ax_param_accumulate_grouped(ax_frame *frame, const ax_groups *groups, int n,
                                      ax_param *const *params, const char *spec, const ax_tensor *a,
                                      const ax_tensor *b)
{
    void *trained[2 * AX_BESIDE] = {NULL};
    ax_tensor of_trained[AX_BESIDE];
    ax_groups *kept;
    int count = 0;
    AX_ASSERT(n <= AX_BESIDE);
    for (int i = 0; i < n; i++)
        if (!params[i]->frozen) {
            trained[count] = params[i];
            of_trained[count++] = a[i];
        }
    if (!count)
        return AX_OK;
    AX_TRY(ax_frame_host(frame, sizeof *kept, (void **)&kept));
    *kept = *groups;
    trained[count] = kept;
    /* The rounds use the same memory, so they cannot be deferred. */
    return ax_frame_defers(frame) && groups->rounds <= 1
               ? ax_frame_defer(frame, accumulate_grouped, count, trained, spec, of_trained, b)
               : accumulate_grouped(frame, count, trained, spec, of_trained, b);
}

ax_status ax_param_accumulate(ax_frame *frame, ax_param *p, const char *spec, const ax_tensor *a,
                              const ax_tensor *b)
{
    return ax_param_accumulate_each(frame, 1, &p, (ax_param *[]){NULL}, spec, a, b);
}
