/* Timings of generation: counts and sums that follow from the model, and arguments that are refused. */
#include "bench/bench.h"
#include "support/ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

typedef struct job {
    const char *model, *device;
    ax_grid_size grid;
    ax_dtype compute;
} job;

/* A block of golden/qwen3_moe/dense has 1152 weights for attention. Two blocks have a router of 108, of whose
 * 6 experts of 486 a token reads two; the third has an MLP of 1242. */
enum { EXPERTS = 3 * 1152 + 2 * (108 + 2 * 486) + 1242 };

/* Checks bench_time_tokens for a model of width d = 8, 1 layer and 11 tokens: per token its GEMMs read 12·d²
 * + 11·d weights, and the table's rows of zeros, and the share follows from the rate of reading and the time
 * of a token. For the model with experts only the weights are checked. There are 7 calls on one rank; 5 on
 * two ranks along y, where q, k and v are one: their biases, which are not adjacent, are added later there.
 * `known`: the device can tell how fast it reads. */
static ax_status timed(ax_ctx *ctx, const ax_pretrained *model, bool known)
{
    enum { D = 8, TOKENS = 5 };
    bench_token_times t;
    AX_TRY(bench_time_tokens(ctx, model, &(bench_tokens){3, TOKENS, 1, 1, 0}, &t));
    int ranks = ax_grid_ranks(ctx->grid);
    int64_t words = ax_round_up(model->config.vocab, ax_vocab_pad(ctx));
    if (model->config.experts.n) {
        EXPECT(t.weights == (double)(EXPERTS + words * 18) * (double)ax_dtype_size(ctx->compute));
        return AX_OK;
    }
    if (ranks == 1)
        EXPECT(t.weights == (double)(12 * D * D + words * D) * (double)ax_dtype_size(ctx->compute));
    EXPECT(t.kernel[AX_K_gemm].calls == (ranks == 1 ? 7 : 5) && t.kernel[AX_K_attention].calls == 1);
    EXPECT(t.kernel[AX_K_gemm].seconds > 0 && t.kernel[AX_K_gemm].seconds <= t.token.mean);
    EXPECT(t.prompt.median > 0 && t.token.min > 0 && t.token.min <= t.token.median);
    EXPECT(t.memory.planned.bytes[AX_MEMORY_WEIGHTS] > 0 && t.memory.planned.bytes[AX_MEMORY_COPIES] == 0 &&
           t.memory.allocated == ax_memory_total(&t.memory.planned) &&
           t.memory.held > 0); /* no copies: weights are fp32 */
    EXPECT(known == (t.read.median > 0));
    EXPECT(!known || fabs(t.share.median - t.weights / t.read.median / t.token.median) < 1e-9);
    const double weights = t.weights; /* those of a batch are read once, too */
    EXPECT(bench_time_tokens(ctx, model, &(bench_tokens){3, 2, 1, 0, 0}, &t) == AX_ERR_USAGE);
    EXPECT(bench_time_tokens(ctx, model, &(bench_tokens){3, 0, 1, 1, 0}, &t) == AX_ERR_USAGE);
    EXPECT(bench_time_tokens(ctx, model, &(bench_tokens){0, 1, 1, 1, 0}, &t) == AX_ERR_USAGE);
    EXPECT(bench_time_tokens(ctx, model, &(bench_tokens){3, 1, 0, 1, 0}, &t) == AX_ERR_USAGE);
    EXPECT(bench_time_tokens(ctx, model, &(bench_tokens){3, model->config.seq_len, 1, 1, 0}, &t) ==
           AX_ERR_USAGE);
    AX_TRY(bench_time_tokens(ctx, model, &(bench_tokens){3, 2, 1, 7, 0.9}, &t));
    EXPECT(t.weights == weights);
    EXPECT(t.kernel[AX_K_attention].calls == 1 && t.kernel[AX_K_scatter].calls > 0);
    EXPECT(t.token.min > 0);
    return AX_OK;
}

static ax_status timed_rank(ax_comm *world, void *arg)
{
    const job *j = arg;
    ax_pretrained model;
    ax_ctx *ctx = NULL;
    AX_TRY(ax_pretrained_open(j->model, &model));
    ax_status status = ax_ctx_create(world, j->grid, j->device, 1, j->compute, 1, &ctx);
    if (status == AX_OK)
        status = timed(ctx, &model, strcmp(j->device, "ref") != 0);
    ax_ctx_destroy(&ctx);
    ax_pretrained_close(&model);
    return status;
}

static void tokens_are_timed(void **state)
{
    (void)state;
#define GOLDEN(model) AXONN_SOURCE_DIR "/tests/golden/" model
    static const job jobs[] = {{GOLDEN("gpt2/tiny"), "cpu", {{1, 1, 1, 1, 1}}, AX_BF16},
                               {GOLDEN("gpt2/tiny"), "ref", {{1, 1, 1, 1, 1}}, AX_F32},
                               {GOLDEN("gpt2/tiny"), "check:cpu", {{1, 1, 1, 1, 1}}, AX_F32},
                               {GOLDEN("gpt2/tiny"), "cpu", {{1, 2, 1, 1, 1}}, AX_F32},
                               {GOLDEN("qwen3_moe/dense"), "cpu", {{1, 1, 1, 1, 1}}, AX_BF16}};
    for (size_t i = 0; i < AX_COUNT(jobs); i++)
        assert_ranks(grid_ranks(jobs[i].grid), timed_rank, &jobs[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(tokens_are_timed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
