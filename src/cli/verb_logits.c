/* axonn logits: prints the logits of a model at each position of a sequence. */
#include "model.h"

#include <math.h>
#include <stdlib.h>

typedef struct args {
    model_args common;
    ax_ints tokens;
    bool last;
} args;

static const ax_option options[] = {
    MODEL_OPTIONS(args, common),
    {"tokens", AX_OPT_INTS, offsetof(args, tokens), .required = true, .meta = "ID,ID,...",
     .help = "the sequence whose logits are printed, as token ids"},
    {"last", AX_OPT_BOOL, offsetof(args, last), "false",
     .help = "print the logits of the last position only"},
    MODEL_DEVICE_OPTIONS(args, common),
};

typedef struct printer {
    const args *a;
    int64_t printed;
    bool first;                      /* this is rank 0, which prints */
    int64_t bad;                     /* number of logits that are not finite */
    int64_t bad_position, bad_token; /* position and token of the first logit that is not finite */
} printer;

/* Prints the five most probable tokens after the position, best first. */
static void print_best(int64_t position, const float *logits, int64_t vocab)
{
    int64_t best[5];
    int n = 0;
    for (int64_t v = 0; v < vocab; v++) {
        int at = n;
        while (at > 0 && logits[best[at - 1]] < logits[v])
            at--;
        if (at == (int)AX_COUNT(best))
            continue;
        n = n < (int)AX_COUNT(best) ? n + 1 : n;
        for (int k = n - 1; k > at; k--)
            best[k] = best[k - 1];
        best[at] = v;
    }
    printf("%6lld ", (long long)position);
    for (int k = 0; k < n; k++)
        printf(" %lld:%.4f", (long long)best[k], logits[best[k]]);
    printf("\n");
}

static void count_nonfinite(printer *p, int64_t position, const float *logits, int64_t vocab)
{
    for (int64_t v = 0; v < vocab; v++)
        if (!isfinite(logits[v]) && !p->bad++) {
            p->bad_position = position;
            p->bad_token = v;
        }
}

static ax_status check_finite(const printer *p)
{
    AX_CHECK(!p->bad, AX_ERR_NUMERIC,
             "%lld logits are not finite, the first at position %lld, token %lld: the model has weights that "
             "are not finite, or it overflows in this precision (%s)",
             (long long)p->bad, (long long)p->bad_position, (long long)p->bad_token, p->a->common.precision);
    return AX_OK;
}

static ax_status print_position(void *user, int64_t position, const float *logits, int64_t vocab)
{
    printer *p = user;
    if (!p->first || (p->a->last && position + 1 < (int64_t)p->a->tokens.count))
        return AX_OK;
    count_nonfinite(p, position, logits, vocab);
    if (!p->a->common.json) {
        print_best(position, logits, vocab);
        return AX_OK;
    }
    if (!p->printed)
        printf("{\"shape\": [%lld, %lld], \"logits\": [", p->a->last ? 1LL : (long long)p->a->tokens.count,
               (long long)vocab);
    for (int64_t v = 0; v < vocab; v++) {
        const char *comma = p->printed++ ? ", " : "";
        if (isfinite(logits[v]))
            printf("%s%.9g", comma, logits[v]);
        else
            printf("%snull", comma);
    }
    return AX_OK;
}

static ax_status read_ids(const args *a, const opened_model *m, int32_t *ids)
{
    for (size_t i = 0; i < a->tokens.count; i++) {
        AX_CHECK(a->tokens.items[i] >= 0 && a->tokens.items[i] < m->model.config.vocab, AX_ERR_USAGE,
                 "--tokens: %lld is not in the model's vocabulary, 0 … %lld", (long long)a->tokens.items[i],
                 (long long)m->model.config.vocab - 1);
        ids[i] = (int32_t)a->tokens.items[i];
    }
    return AX_OK;
}

static ax_status print_logits(const args *a, opened_model *m)
{
    int32_t *ids;
    printer p = {.a = a, .first = m->first};
    AX_TRY(ax_calloc(a->tokens.count, sizeof *ids, &ids));
    ax_status status = ax_comm_agree(m->world, read_ids(a, m, ids));
    if (status == AX_OK)
        status = ax_pretrained_logits(m->ctx, &m->model, ids, (int64_t)a->tokens.count, print_position, &p);
    if (status == AX_OK && a->common.json && m->first)
        printf("]}\n");
    if (status == AX_OK)
        status = ax_comm_agree(m->world, check_finite(&p));
    free(ids);
    return status;
}

static ax_status run(const void *raw)
{
    const args *a = raw;
    opened_model m;
    ax_status status = model_open(&a->common, MODEL_SEQUENCE, &m);
    if (status == AX_OK)
        status = print_logits(a, &m);
    return model_close(&m, status);
}

const cli_verb verb_logits = {
    .name = "logits",
    .summary = "print a model's logits for a sequence of tokens",
    .details =
        "Without --json, prints the five likeliest next tokens at each position as ID:LOGIT. With --json,\n"
        "prints {\"shape\": [T, V], \"logits\": [T*V numbers, row by row]}.",
    .examples = "axonn logits runs/name --tokens 1,2,3 --last --json",
    .options = options,
    .option_count = AX_COUNT(options),
    .args_size = sizeof(args),
    .run = run,
    .launches = true,
};
