/* Rotary position embedding: frequencies and tables at real sizes, compared with those of transformers
 * (tests/golden/rope.json), and the errors of a wrong configuration. */
#include "nn/rope.h"

#include "axonn/json.h"
#include "support/check.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { POSITION = 8191 }; /* positions[1] of each case */

static double number(const json_t *json, const char *key)
{
    return json_number_value(json_object_get(json, key));
}

static ax_rope_config config_of(const json_t *entry)
{
    static const char *const kinds[] = {"default", "linear", "dynamic", "llama3", "yarn"};
    const json_t *c = json_object_get(entry, "config"), *p = json_object_get(c, "rope_scaling");
    const char *kind = json_string_value(json_object_get(p, "rope_type"));
    ax_rope_config rope = {.theta = number(c, "rope_theta"),
                           .factor = number(p, "factor"),
                           .original = (int64_t)number(p, "original_max_position_embeddings"),
                           .low_freq_factor = number(p, "low_freq_factor"),
                           .high_freq_factor = number(p, "high_freq_factor"),
                           .beta_fast = number(p, "beta_fast"),
                           .beta_slow = number(p, "beta_slow"),
                           .attention_factor = number(p, "attention_factor"),
                           .mscale = number(p, "mscale"),
                           .mscale_all_dim = number(p, "mscale_all_dim"),
                           .no_truncate = json_is_false(json_object_get(p, "truncate"))};
    while (strcmp(kind, kinds[rope.kind]))
        rope.kind++;
    if (rope.kind == AX_ROPE_YARN && rope.beta_fast == 0) {
        rope.beta_fast = 32;
        rope.beta_slow = 1;
    }
    return rope;
}

/* fp32 powers, quotients and sums in another order differ by a few roundings of 2^-24. */
static void check_frequencies(const json_t *entry, const ax_rope_config *rope, int64_t head_dim, float *out)
{
    const json_t *expected = json_object_get(entry, "frequencies");
    assert_int_equal(json_array_size(expected), head_dim / 2);
    ax_rope_frequencies(rope, head_dim, out);
    for (int64_t i = 0; i < head_dim / 2; i++) {
        double f = json_number_value(json_array_get(expected, (size_t)i));
        if (!(fabs(out[i] - f) <= 4 * 0x1p-24 * f))
            fail_msg("theta %g kind %d: frequency %d is %.9g, not %.9g", rope->theta, (int)rope->kind, (int)i,
                     out[i], f);
    }
    double factor = number(entry, "attention_factor");
    assert_true(fabs(ax_rope_attention_factor(rope) - factor) < 1e-12 * factor);
}

/* Compares the table at a high position. The angle there is rounded to fp32, by up to 2^-11 at 8191: where a
 * frequency has the bits of transformers', cosine and sine must agree to fp32. */
static void check_table(const json_t *entry, const ax_rope_config *rope, int64_t head_dim, const float *f)
{
    ax_comm *self;
    ax_ctx *ctx;
    ax_tensor table;
    const int64_t pairs = head_dim / 2;
    double worst = 0, unrounded = 0, factor = ax_rope_attention_factor(rope);
    int equal = 0;
    float *host = calloc((size_t)head_dim, sizeof *host);
    OK(ax_comm_self_create(&self));
    OK(ax_ctx_create(self, (ax_grid_size){{1}}, "ref", 1, AX_BF16, 1, &ctx));
    OK(ax_rope_table_make(ctx, rope, head_dim, POSITION + 1, &table));
    assert_int_equal(ax_rope_table_bytes(&table), (POSITION + 1) * head_dim * sizeof(float));
    OK(ax_copy_out(ctx->stream, host, (float *)table.data + POSITION * head_dim,
                   (size_t)head_dim * sizeof *host));
    for (int64_t i = 0; i < pairs; i++) {
        if (f[i] !=
            (float)json_number_value(json_array_get(json_object_get(entry, "frequencies"), (size_t)i)))
            continue;
        double c = json_number_value(
                   json_array_get(json_array_get(json_object_get(entry, "cos"), 1), (size_t)i)),
               s = json_number_value(
                   json_array_get(json_array_get(json_object_get(entry, "sin"), 1), (size_t)i));
        worst = fmax(worst, fmax(fabs(host[2 * i] - c), fabs(host[2 * i + 1] - s)));
        unrounded = fmax(unrounded, fabs(factor * cos(POSITION * (double)f[i]) - c));
        equal++;
    }
    printf("theta %-8g head_dim %3d: %d of %d frequencies bit for bit, table off by %.1e (%.1e unrounded)\n",
           rope->theta, (int)head_dim, equal, (int)pairs, worst, unrounded);
    assert_true(equal > pairs / 2);
    assert_true(worst < 4 * 0x1p-24 * factor);
    assert_true(unrounded > 1e-5); /* so that a missing rounding shows */
    ax_rope_table_free(ctx, &table);
    ax_ctx_destroy(&ctx);
    ax_comm_destroy(&self);
    free(host);
}

static void tables_are_those_of_transformers(void **state)
{
    (void)state;
    json_t *cases;
    OK(ax_json_read_file(AXONN_SOURCE_DIR "/tests/golden/rope.json", 0, &cases));
    assert_int_equal(json_array_size(cases), 7);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *entry = json_array_get(cases, i);
        const ax_rope_config rope = config_of(entry);
        const int64_t head_dim = (int64_t)number(entry, "head_dim");
        float *f = calloc((size_t)head_dim, sizeof *f);
        OK(ax_rope_check(&rope, head_dim));
        check_frequencies(entry, &rope, head_dim, f);
        check_table(entry, &rope, head_dim, f);
        free(f);
    }
    json_decref(cases);
}

static void wrong_values_are_named(void **state)
{
    (void)state;
    static const struct {
        ax_rope_config rope;
        int64_t head_dim;
        const char *names;
    } wrong[] = {
        {{.theta = 10000}, 7, "the width of a head, 7, is odd"},
        {{.theta = 1}, 8, "rope_theta = 1 must be above 1"},
        {{.theta = NAN}, 8, "rope_theta = nan"},
        {{.theta = 10, .kind = AX_ROPE_LINEAR}, 8, "factor = 0"},
        {{.theta = 10, .kind = AX_ROPE_LLAMA3, .factor = 2, .low_freq_factor = 1, .high_freq_factor = 4},
         8,
         "original_max_position_embeddings = 0"},
        {{.theta = 10,
          .kind = AX_ROPE_LLAMA3,
          .factor = 2,
          .original = 9,
          .low_freq_factor = 4,
          .high_freq_factor = 1},
         8,
         "high_freq_factor = 1"},
        {{.theta = 10, .kind = AX_ROPE_YARN, .factor = 2, .original = 9, .beta_fast = 1, .beta_slow = 2},
         8,
         "beta_slow = 2"}};
    for (size_t i = 0; i < AX_COUNT(wrong); i++) {
        assert_int_equal(ax_rope_check(&wrong[i].rope, wrong[i].head_dim), AX_ERR_USAGE);
        if (!strstr(ax_error_message(), wrong[i].names))
            fail_msg("\"%s\" does not name \"%s\"", ax_error_message(), wrong[i].names);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(tables_are_those_of_transformers),
                                       cmocka_unit_test(wrong_values_are_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
