#include "support/tiny.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

ax_model_config tiny(double dropout)
{
    ax_model_config c = {.layers = 3,
                         .hidden = 21,
                         .heads = 3,
                         .kv_heads = 3,
                         .ffn = 23,
                         .vocab = VOCAB,
                         .seq_len = T,
                         .dropout = {dropout, dropout, dropout},
                         .init_std = 0.2,
                         .norm_eps = 1e-5,
                         .tie = true};
    OK(ax_family_find("gpt2", &c.family));
    return c;
}

ax_status tiny_rows(void *source, int64_t first, int64_t end, const ax_rows *out)
{
    uint64_t seed = *(const uint64_t *)source;
    for (int64_t row = first; row < end; row++)
        for (int64_t i = 0, start = 0; i < T; i++) {
            uint64_t at = (uint64_t)(row * T + i);
            int64_t to = (row - first) * T + i;
            if (ax_rng_uniform(ax_rng_key(seed, "document", 0), at) < 0.1f)
                start = i;
            out->tokens[to] = (int32_t)(ax_rng_uniform(ax_rng_key(seed, "token", 0), at) * VOCAB);
            out->targets[to] =
                at % 7 == 3 ? -1 : (int32_t)(ax_rng_uniform(ax_rng_key(seed, "token", 0), at + 1) * VOCAB);
            out->doc_start[to] = (int32_t)start;
            out->position[to] = (int32_t)(i - start);
        }
    return AX_OK;
}

int64_t tiny_targets(void)
{
    int64_t n = 0;
    for (int64_t at = 0; at < GLOBAL * T; at++)
        n += at % 7 != 3;
    return n;
}
