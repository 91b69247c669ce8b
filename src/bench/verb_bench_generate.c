/* axonn bench generate: times token generation and, for comparison, the reading of the model's weights. */
#include "bench/bench.h"
#include "cli/model.h"

#include <math.h>
#include <string.h>

typedef struct args {
    model_args common;
    int64_t prompt, tokens, rounds, batch;
    double top_p;
    model_keys keys;
} args;

static const ax_option options[] = {
    MODEL_OPTIONS(args, common),
    {"prompt", AX_OPT_INT, offsetof(args, prompt), "8", "[1, 16777216]", .meta = "N",
     .help = "number of tokens in the prompt, which is random"},
    {"tokens", AX_OPT_INT, offsetof(args, tokens), "0", "[0, 16777216]", .meta = "N",
     .help = "tokens to generate per round; 0: 64, or fewer if the model has fewer positions left"},
    {"rounds", AX_OPT_INT, offsetof(args, rounds), "8", "[1, 100000]", .meta = "N",
     .help = "number of rounds to time; each feeds the prompt and generates the tokens"},
    {"batch", AX_OPT_INT, offsetof(args, batch), "1", "[1, 65535]", .meta = "B",
     .help = "texts that are generated at a time, all after the same prompt"},
    {"top-p", AX_OPT_FLOAT, offsetof(args, top_p), "0", "[0, 1]", .meta = "P",
     .help = "draw tokens, with temperature 1 and this top-p; 0: take the likeliest"},
    MODEL_KEYS_OPTIONS(args, keys),
    MODEL_DEVICE_OPTIONS(args, common),
};

typedef struct measured {
    const args *a;
    const opened_model *m;
    bench_token_times t;
    bench_token_times full; /* with --keys: as `t`, with attention to all keys */
    int64_t tokens;         /* tokens generated per round */
    int ranks;
} measured;

static json_t *spread_json(const ax_spread *s, double unit)
{
    return json_pack("{s:f, s:f, s:f}", "median", s->median * unit, "min", s->min * unit, "max",
                     s->max * unit);
}

/* The launches of attention to few keys, or to all. */
static double attention_seconds(const bench_token_times *t)
{
    return t->kernel[AX_K_attention].seconds + t->kernel[AX_K_turn].seconds + t->kernel[AX_K_choose].seconds;
}

static bool reads_few_keys(const measured *r) { return r->a->keys.keys != NULL; }

/* The time of attention per token, and its share of the token's. */
static json_t *attention_json(const bench_token_times *t)
{
    return json_pack("{s:f, s:f, s:f}", "ms", attention_seconds(t) * 1e3, "share",
                     attention_seconds(t) / t->token.mean, "token_ms", t->token.mean * 1e3);
}

static json_t *kernels_json(const bench_token_times *t)
{
    json_t *all = json_object();
    for (int k = 0; k < AX_KERNEL_COUNT; k++)
        if (t->kernel[k].calls && all)
            json_object_set_new(all, ax_kernel_name((ax_kernel)k),
                                json_pack("{s:f, s:I, s:f, s:f}", "ms", t->kernel[k].seconds * 1e3, "calls",
                                          (json_int_t)t->kernel[k].calls, "flops", t->kernel[k].flops,
                                          "bytes", t->kernel[k].bytes));
    return all;
}

static ax_status print_json(const measured *r)
{
    const bench_token_times *t = &r->t;
    const args *a = r->a;
    const char *isa = NULL;
    bool known = t->read.median > 0;
    if (!strcmp(a->common.device, "cpu"))
        AX_TRY(ax_isa_chosen(&isa));
    return cli_print_json(json_pack(
        "{s:s, s:s, s:I, s:f, s:f, s:f, s:f, s:s, s:s, s:s, s:i, s:i, s:I, s:I, s:I, s:o, s:f, "
        "s:f, s:f, s:o, "
        "s:o, "
        "s:o, s:I, s:I, s:o, s:I, s:s, s:s?, s:I, s:f, s:o, s:o*}",
        "case", a->common.model, "unit", "ms", "runs", (json_int_t)a->rounds * r->tokens, "median",
        t->token.median * 1e3, "min", t->token.min * 1e3, "max", t->token.max * 1e3, "mean",
        t->token.mean * 1e3, "model", t->model, "precision", ax_dtype_name(r->m->ctx->compute), "grid",
        t->grid, "ranks", r->ranks, "threads", r->m->ctx->dev->threads, "prompt", (json_int_t)a->prompt,
        "tokens", (json_int_t)r->tokens, "rounds", (json_int_t)a->rounds, "prompt_ms",
        spread_json(&t->prompt, 1e3), "tokens_per_s", (double)a->batch / t->token.median, "weights_bytes",
        t->weights, "weights_bytes_per_s", t->weights / t->token.median, "read_bytes_per_s",
        known ? spread_json(&t->read, 1) : json_null(), "of_reading",
        known ? spread_json(&t->share, 1) : json_null(), "kernels", kernels_json(t), "mem_planned",
        (json_int_t)ax_memory_total(&t->memory.planned), "mem_allocated", (json_int_t)t->memory.allocated,
        "mem_limit", t->memory.limit ? json_integer((json_int_t)t->memory.limit) : json_null(), "mem_held",
        (json_int_t)t->memory.held, "device", a->common.device, "isa", isa, "batch", (json_int_t)a->batch,
        "top_p", a->top_p, "attention_of_token", attention_json(t), "full_attention_of_token",
        reads_few_keys(r) ? attention_json(&r->full) : NULL));
}

/* Prints a time in milliseconds, with three significant digits; from 100 ms on, without decimals. */
static void print_ms(double seconds)
{
    double ms = seconds * 1e3;
    printf(ms < 100 ? "%.3g" : "%.0f", ms);
}

static void print_spread(const char *name, const ax_spread *s)
{
    printf("%-14s ", name);
    print_ms(s->median);
    printf(" ms, from ");
    print_ms(s->min);
    printf(" to ");
    print_ms(s->max);
}

static void print_part(const char *name, double seconds, double token)
{
    printf("  %-14s %8.3f %6.1f %%\n", name, seconds * 1e3, 100 * seconds / token);
}

static const char *plural(int64_t n) { return n == 1 ? "" : "s"; }

static ax_status print_table(const measured *r)
{
    const bench_token_times *t = &r->t;
    const args *a = r->a;
    const char *step = a->batch > 1 ? "step" : "token"; /* a token of each text */
    int threads = r->m->ctx->dev->threads;
    printf("%s in %s, %d rank%s of %d thread%s (%s)\n\n", t->model, ax_dtype_name(r->m->ctx->compute),
           r->ranks, plural(r->ranks), threads, plural(threads), t->grid);
    if (a->batch > 1)
        printf("%-14s %lld texts; a step generates a token of each\n", "batch", (long long)a->batch);
    print_spread("prompt", &t->prompt);
    printf(" in %lld round%s: %lld token%s, %.1f tokens/s\n", (long long)a->rounds, plural(a->rounds),
           (long long)a->prompt, plural(a->prompt), (double)a->prompt / t->prompt.median);
    print_spread(step, &t->token);
    printf(" in %lld rounds of %lld, at positions %lld to %lld: %.1f tokens/s\n", (long long)a->rounds,
           (long long)r->tokens, (long long)a->prompt, (long long)(a->prompt + r->tokens - 1),
           (double)a->batch / t->token.median);
    printf("%-14s %.1f MB per %s%s: %.1f GB/s\n", "weights", t->weights * 1e-6, step,
           r->ranks > 1 ? " and rank" : "", t->weights / t->token.median * 1e-9);
    if (t->read.median > 0)
        printf("%-14s %.1f GB/s, from %.1f to %.1f, for the same weights%s; generation reaches %.2f of that, "
               "from %.2f to %.2f\n",
               "reading", t->read.median * 1e-9, t->read.min * 1e-9, t->read.max * 1e-9,
               t->weights < (double)ax_cores_cache() ? ", which fit into the caches" : "", t->share.median,
               t->share.min, t->share.max);
    double matmuls = t->kernel[AX_K_gemm].seconds + t->kernel[AX_K_gemm_grouped].seconds;
    double attention = attention_seconds(t), kernels = 0;
    for (int k = 0; k < AX_KERNEL_COUNT; k++)
        kernels += t->kernel[k].seconds;
    printf("\n  per %-10s %8s %8s\n", step, "ms", "share");
    print_part("matmuls", matmuls, t->token.mean);
    print_part("attention", attention, t->token.mean);
    print_part("other kernels", kernels - matmuls - attention, t->token.mean);
    print_part("the rest", fmax(0, t->token.mean - kernels), t->token.mean);
    print_part("mean", t->token.mean, t->token.mean);
    if (reads_few_keys(r)) {
        printf("  with attention to all keys\n");
        print_part("attention", attention_seconds(&r->full), r->full.token.mean);
        print_part("mean", r->full.token.mean, r->full.token.mean);
    }
    printf("\n%-14s ", "memory");
    bench_memory_print(&t->memory);
    return AX_OK;
}

static ax_status report(const measured *r) { return r->a->common.json ? print_json(r) : print_table(r); }

/* Sets *out to the number of tokens to generate per round. Fails if the model has too few positions for
 * them. */
static ax_status choose_tokens(const args *a, int64_t positions, int64_t *out)
{
    enum { TOKENS = 64 };
    int64_t room = positions - a->prompt;
    AX_CHECK(room > 0, AX_ERR_USAGE,
             "--prompt %lld leaves no room for a generated token in the model's %lld positions: give a "
             "smaller number",
             (long long)a->prompt, (long long)positions);
    AX_CHECK(
        a->tokens <= room, AX_ERR_USAGE,
        "--prompt %lld and --tokens %lld need more than the model's %lld positions: --tokens %lld at most",
        (long long)a->prompt, (long long)a->tokens, (long long)positions, (long long)room);
    *out = a->tokens ? a->tokens : ax_min(TOKENS, room);
    return AX_OK;
}

/* With --keys, generates again with attention to all keys. */
static ax_status measure(const args *a, opened_model *m)
{
    measured r = {.a = a, .m = m, .ranks = ax_comm_size(m->world)};
    AX_TRY(choose_tokens(a, ax_model_config_positions(&m->model.config), &r.tokens));
    const bench_tokens what = {a->prompt, r.tokens, a->rounds, a->batch, a->top_p};
    AX_TRY(bench_time_tokens(m->ctx, &m->model, &what, &r.t));
    if (reads_few_keys(&r)) {
        AX_TRY(ax_pretrained_read_keys(&m->model, &(ax_key_reading){.keys = NULL}));
        AX_TRY(bench_time_tokens(m->ctx, &m->model, &what, &r.full));
    }
    return ax_comm_agree(m->world, m->first ? report(&r) : AX_OK);
}

static ax_status run(const void *raw)
{
    const args *a = raw;
    opened_model m;
    ax_status status = model_open(&a->common, MODEL_SEQUENCE, &m);
    if (status == AX_OK)
        status = model_read_keys(&m, &a->keys);
    if (status == AX_OK)
        status = measure(a, &m);
    return model_close(&m, status);
}

const cli_verb verb_bench_generate = {
    .name = "bench generate",
    .summary = "time token generation, and compare it with reading the weights",
    .details =
        "Each round feeds a prompt of random tokens and generates the likeliest tokens of one text, or of\n"
        "--batch texts at a time; one round before the timed ones is not counted. Every token reads all "
        "weight matrices, of\n"
        "experts those that it chooses, so memory bandwidth limits generation. After each round the same\n"
        "threads therefore read the same weights as fast as they can (of as many experts as a token\n"
        "chooses). The ratio of the two rates, generation over reading, is the median over the rounds: 0.8\n"
        "and more is good; above 1, memory was slower during the reading than during the generation. On\n"
        "several ranks the figures are those of rank 0. With --keys, as many rounds with attention to all\n"
        "keys follow, and the share of attention (choices included) in the time of a token is given for\n"
        "both.",
    .examples = "axonn bench generate path/to/gpt2 --precision bf16\n"
                "axonn bench generate path/to/gpt2 --batch 16 --top-p 0.95\n"
                "axonn bench generate runs/name --prompt 1000 --tokens 16\n"
                "axonn bench generate runs/name --ranks 2 --json | jq .of_reading.median",
    .options = options,
    .option_count = AX_COUNT(options),
    .args_size = sizeof(args),
    .run = run,
    .launches = true,
};
