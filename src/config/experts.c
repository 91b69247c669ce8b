/* The rules of the keys about experts that involve the model. */
#include "private.h"

#include <inttypes.h>

/* Records an error for each number that no model with experts can have. */
static void check_experts_range(ax_config *cfg, const ax_model_config *model)
{
    const ax_model_experts *e = &model->experts;
    if (ax_option_ok(cfg->set, "model.sparse_step") && e->step < 1)
        ax_option_error(cfg->set, "model.sparse_step", "must be at least 1, not %lld", (long long)e->step);
    if (!ax_option_ok(cfg->set, "model.experts"))
        return;
    if (e->n < 1)
        ax_option_error(cfg->set, "model.experts", "models of family %s have at least one expert, not %lld",
                        ax_model_config_family(model), (long long)e->n);
    else if (ax_option_ok(cfg->set, "model.top_k") && (e->top_k < 1 || e->top_k > e->n))
        ax_option_error(cfg->set, "model.top_k",
                        "each token chooses %lld experts of %lld: it may choose 1 to %lld",
                        (long long)e->top_k, (long long)e->n, (long long)e->n);
}

/* Checks that the model has an expert for each rank among which they are divided. */
static void check_expert_count(ax_config *cfg, const ax_model_config *model)
{
    const int64_t ranks = cfg->grid.expert, n = model->experts.n;
    if (ranks == 1 || !ax_option_ok(cfg->set, "grid.expert"))
        return;
    if (!ax_family_has(model->family, "model.experts"))
        ax_option_error(cfg->set, "grid.expert", "models of family %s have no experts: leave the key out",
                        ax_model_config_family(model));
    else if (ranks > n && ax_option_ok(cfg->set, "model.experts"))
        ax_option_error(cfg->set, "grid.expert",
                        "%" PRId64 " ranks are too many for %" PRId64
                        " experts: choose a divisor of grid.data that is at most %" PRId64,
                        ranks, n, n);
}

/* Checks the keys of how experts are trained, which no config.json has. */
static void check_training(ax_config *cfg, const ax_model_config *model)
{
    const struct {
        const char *key;
        double value;
    } keys[] = {{"moe.z_loss", cfg->moe.z_loss}, {"moe.capacity", cfg->moe.capacity}};
    for (size_t i = 0; i < AX_COUNT(keys); i++)
        if (keys[i].value > 0 && ax_option_ok(cfg->set, keys[i].key) &&
            !ax_family_has(model->family, "model.experts"))
            ax_option_error(cfg->set, keys[i].key, "models of family %s have no experts: leave the key out",
                            ax_model_config_family(model));
}

void config_check_experts(ax_config *cfg, const ax_model_config *model)
{
    const ax_model_experts usual = ax_model_config_defaults(model->family).experts;
    const struct {
        const char *key;
        bool needed; /* the key has a value that only some families support */
    } keys[] = {{"model.experts", cfg->model.experts != usual.n},
                {"model.top_k", cfg->model.top_k != usual.top_k},
                {"model.expert_ffn", cfg->model.expert_ffn != usual.ffn},
                {"model.sparse_step", cfg->model.sparse_step != usual.step},
                {"model.renormalize", cfg->model.renormalize != usual.renormalize},
                {"model.dense_layers", cfg->model.dense_layers.count > 0},
                {"moe.balance", cfg->moe.balance != usual.balance}};
    const bool has = ax_family_has(model->family, "model.experts");
    for (size_t i = 0; i < AX_COUNT(keys); i++)
        if (keys[i].needed && ax_option_ok(cfg->set, keys[i].key) &&
            !ax_family_has(model->family, keys[i].key))
            ax_option_error(cfg->set, keys[i].key, "models of family %s have no %s: leave the key out",
                            ax_model_config_family(model), has ? "such setting" : "experts");
    check_training(cfg, model);
    if (has)
        check_experts_range(cfg, model);
    check_expert_count(cfg, model);
    if (has && cfg->train.sparse && ax_option_ok(cfg->set, "train.sparse"))
        ax_option_error(cfg->set, "train.sparse", "is not implemented for models with experts");
    if (has && model->experts.top_k == 1 && model->experts.renormalize &&
        cfg->tune.method != AX_CONFIG_LORA && config_both_ok(cfg, "model.top_k", "model.renormalize"))
        ax_option_error(
            cfg->set, cfg->model.from ? "model.from" : "model.top_k",
            "with one expert for each token its renormalized weight is always 1, so the router gets no "
            "gradient: choose two experts or more, or weights that are not renormalized");
}
