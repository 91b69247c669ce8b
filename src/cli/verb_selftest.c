/* axonn selftest: checks that this build computes correct numbers on this machine. */
#include "axonn/nn.h"
#include "verb.h"

typedef struct args {
    bool json;
} args;

static const ax_option options[] = {
    {"json", AX_OPT_BOOL, offsetof(args, json), "false",
     .help = "print the results as JSON, one object per check"},
};

typedef struct tally {
    const args *a;
    int passed, failed;
} tally;

/* Upper bounds of the relative errors. `gradient_bound`: finite differences have an error of about 1e-8.
 * `grid_bound`: float64 sums of a few hundred terms change by about 1e-13 if the terms are added in another
 * order. */
static const double gradient_bound = 1e-6, grid_bound = 1e-12;

static ax_status report_check(tally *t, const char *what, const char *layer, double worst, double bound)
{
    bool ok = worst < bound;
    t->passed += ok;
    t->failed += !ok;
    if (t->a->json)
        return cli_print_json(json_pack("{s:s, s:s, s:f, s:f, s:b}", "check", what, "layer", layer, "worst",
                                        worst, "bound", bound, "passed", ok));
    printf("%-6s  %-18s  %-28s worst %.1e (bound %.0e)\n", ok ? "ok" : "FAILED", layer, what, worst, bound);
    return AX_OK;
}

static ax_status check_sample(tally *t, const ax_layer_sample *sample)
{
    static const struct {
        const char *name, *device;
        ax_grid_size size;
    } grids[] = {{"4 ranks: x=2 y=2, ref", "ref", {{2, 2, 1, 1, 1}}},
                 {"4 ranks: x=2 data=2, ref", "ref", {{2, 1, 1, 1, 2}}},
                 {"4 ranks: y=2 data=2, cpu", "cpu", {{1, 2, 1, 1, 2}}},
                 {"1 rank, cuda", "cuda", {{1, 1, 1, 1, 1}}},
                 {"4 ranks: x=2 z=2, cuda", "cuda", {{2, 1, 2, 1, 1}}}};
    double worst;
    AX_TRY(ax_layer_check_gradient(sample, &worst));
    AX_TRY(report_check(t, "gradient", sample->name, worst, gradient_bound));
    for (size_t i = 0; i < AX_COUNT(grids); i++) {
        if (ax_device_absent(grids[i].device))
            continue;
        AX_TRY(ax_layer_check_grid(sample, grids[i].size, NULL, grids[i].device, &worst));
        AX_TRY(report_check(t, grids[i].name, sample->name, worst, grid_bound));
    }
    return AX_OK;
}

static ax_status run(const void *raw)
{
    tally t = {.a = raw};
    double start = ax_now();
    for (int i = 0; i < ax_layer_sample_count; i++)
        AX_TRY(check_sample(&t, &ax_layer_samples[i]));
    char took[32];
    if (!t.a->json)
        printf("%d passed, %d failed in %s\n", t.passed, t.failed, ax_format_seconds(ax_now() - start, took));
    AX_CHECK(
        !t.failed, AX_ERR_NUMERIC,
        "%d of %d checks failed: this build computes wrong numbers on this machine, so do not train with it",
        t.failed, t.passed + t.failed);
    return AX_OK;
}

const cli_verb verb_selftest = {
    .name = "selftest",
    .summary = "check that this build computes correct numbers on this machine",
    .details = "For every kind of layer, in float64: compares its gradient with finite differences, and the\n"
               "result of four ranks (threads) with that of one. Also runs on the GPU, if there is one.",
    .examples = "axonn selftest",
    .options = options,
    .option_count = AX_COUNT(options),
    .args_size = sizeof(args),
    .run = run,
};
