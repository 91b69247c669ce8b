/* Reading and writing config.json. */
#include "axonn/model.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char gpt2[] =
    "{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_embd\": 12, \"n_head\": 3, \"n_positions\": 16,"
    " \"vocab_size\": 50, \"n_inner\": null, \"activation_function\": \"gelu_new\","
    " \"resid_pdrop\": 0.25, \"attn_pdrop\": 0.5, \"custom\": {\"kept\": [1, 2]}, \"eos_token_id\": [7, 8]}";

static ax_status parse(const char *text, ax_model_config *out)
{
    return ax_model_config_parse(text, strlen(text), "c.json", out);
}

static void round_trip_keeps_unknown_keys(void **state)
{
    (void)state;
    ax_model_config c, again;
    ax_buf text = {0};
    assert_int_equal(parse(gpt2, &c), AX_OK);
    assert_int_equal(c.layers, 2);
    assert_int_equal(c.ffn, 48);
    assert_int_equal(c.kv_heads, 3);
    assert_true(c.dropout.embd == 0.1 && c.dropout.resid == 0.25 && c.dropout.attn == 0.5 && c.tie &&
                c.norm_eps == 1e-5);
    ax_model_identity id = {1, 2, AX_BF16};
    assert_int_equal(ax_model_config_print(&c, &id, &text), AX_OK);
    json_t *json = json_loads(text.data, 0, NULL);
    assert_non_null(json);
    assert_int_equal(json_array_size(json_object_get(json_object_get(json, "custom"), "kept")), 2);
    assert_int_equal(json_integer_value(json_object_get(json, "eos_token_id")), 2);
    assert_string_equal(json_string_value(json_object_get(json, "dtype")), "bfloat16");
    assert_true(json_is_null(json_object_get(json, "n_inner")));
    json_decref(json);
    text.size = 0;
    id.eos = 8; /* an id of the file's list, so the list is kept */
    assert_int_equal(ax_model_config_print(&c, &id, &text), AX_OK);
    json = json_loads(text.data, 0, NULL);
    assert_int_equal(json_array_size(json_object_get(json, "eos_token_id")), 2);
    json_decref(json);
    assert_int_equal(parse(text.data, &again), AX_OK);
    assert_true(again.layers == c.layers && again.ffn == c.ffn &&
                !memcmp(&again.dropout, &c.dropout, sizeof c.dropout) && again.vocab == c.vocab);
    ax_buf_fini(&text);
    ax_model_config_fini(&c);
    ax_model_config_fini(&again);
}

/* Numbers that the program does not need, or does not change, keep their digits whatever their size. */
static void numbers_keep_their_digits(void **state)
{
    (void)state;
    static const char text[] =
        "{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_embd\": 12, \"n_head\": 3, \"n_positions\": 16,"
        " \"vocab_size\": 50, \"layer_norm_epsilon\": 1e-05, \"initializer_range\": 0.020,"
        " \"max\": 1000000000000000019884624838656, \"limit\": [0.10, Infinity], \"task\": {\"p\": 1E+400}}";
    static const char *const kept[] = {"\"layer_norm_epsilon\": 1e-05,", "\"initializer_range\": 0.020,",
                                       "\"max\": 1000000000000000019884624838656,",
                                       "    0.10,\n    Infinity\n", "\"p\": 1E+400\n"};
    ax_model_config c;
    ax_buf out = {0};
    ax_model_identity id = {1, 2, AX_F32};
    assert_int_equal(parse(text, &c), AX_OK);
    assert_int_equal(ax_model_config_print(&c, &id, &out), AX_OK);
    for (size_t i = 0; i < AX_COUNT(kept); i++)
        if (!strstr(out.data, kept[i]))
            fail_msg("%s is not in %s", kept[i], out.data);
    c.norm_eps = 1e-6; /* a changed value does not keep the file's digits */
    out.size = 0;
    assert_int_equal(ax_model_config_print(&c, &id, &out), AX_OK);
    assert_non_null(strstr(out.data, "\"layer_norm_epsilon\": 1e-06,"));
    ax_buf_fini(&out);
    ax_model_config_fini(&c);
}

/* The parameter counts of GPT-2 124M equal those of transformers. */
static void parameters_are_counted(void **state)
{
    (void)state;
    ax_model_config c = {.layers = 12,
                         .hidden = 768,
                         .heads = 12,
                         .kv_heads = 12,
                         .ffn = 3072,
                         .vocab = 50257,
                         .seq_len = 1024,
                         .tie = true};
    int64_t total, matmul;
    ax_model_config_params(&c, &total, &matmul);
    assert_int_equal(total, 124439808);
    assert_int_equal(matmul, 12 * 12 * 768 * 768 + 50257 * 768);
    assert_true(ax_model_config_flops_per_token(&c, 1024) == 6.0 * (double)matmul + 6.0 * 12 * 768 * 1024);
}

/* With updates, a matrix costs 4 FLOPs an element, and 2 in blocks before the first update; factor A of the
 * embedding is no operand of a GEMM. */
static void updates_of_some_blocks_are_counted(void **state)
{
    (void)state;
    ax_model_config c = {
        .layers = 3, .hidden = 10, .heads = 2, .kv_heads = 2, .ffn = 20, .vocab = 40, .seq_len = 5};
    const ax_low_rank in_last[] = {{.rank = 0}, {.rank = 0}, {.rank = 3, .scale = 2}};
    const double block = 4 * 10 * 10 + 2 * 10 * 20, head = 10 * 40, attention = 10 * 5;
    ax_model_config copy;
    assert_int_equal(ax_model_config_set_updates(&c, AX_MATRIX_UP, in_last), AX_OK);
    assert_int_equal(ax_model_config_copy(&c, &copy), AX_OK);
    assert_int_equal(ax_model_config_low_rank_params(&copy), 3 * 30);
    assert_true(ax_model_config_update(&copy, AX_MATRIX_UP, 2)->rank == 3 &&
                !ax_model_config_update(&copy, AX_MATRIX_UP, 1)->rank && !copy.low_rank[AX_MATRIX_Q].rank);
    assert_true(ax_model_config_flops_per_token(&copy, 5) ==
                4 * (block + head) + 2 * 2 * block + (6 + 2 * 2) * attention + 6 * 3 * 30);
    copy.low_rank[AX_MATRIX_EMBED] = (ax_low_rank){.rank = 2, .scale = 1};
    assert_int_equal(ax_model_config_low_rank_params(&copy), 3 * 30 + 2 * 50);
    assert_true(ax_model_config_flops_per_token(&copy, 5) ==
                4 * (3 * block + head) + 6 * 3 * attention + 6 * (3 * 30 + 2 * 10));
    ax_model_config_fini(&copy);
    ax_model_config_fini(&c);
}

/* Attention is heads x head_dim wide, whatever the width of the residual stream. */
static void heads_may_have_their_own_size(void **state)
{
    (void)state;
    ax_model_config c = {.layers = 2,
                         .hidden = 10,
                         .heads = 4,
                         .kv_heads = 2,
                         .head_dim = 6,
                         .ffn = 7,
                         .vocab = 11,
                         .seq_len = 5};
    int64_t total, matmul;
    assert_int_equal(ax_model_config_check(&c), AX_OK);
    ax_model_config_params(&c, &total, &matmul);
    int64_t block = 10 * 24 + 2 * 10 * 12 + 24 * 10 + 2 * 10 * 7, biases = 24 + 2 * 12 + 10 + 7 + 10 + 4 * 10;
    assert_int_equal(matmul, 2 * block + 11 * 10);
    assert_int_equal(total, 2 * (block + biases) + 2 * 11 * 10 + 5 * 10 + 2 * 10);
    assert_true(ax_model_config_flops_per_token(&c, 5) == 6.0 * (double)matmul + 6.0 * 2 * 24 * 5);
    c.head_dim = AX_HIDDEN_MAX / 4 + 1;
    assert_int_equal(ax_model_config_check(&c), AX_ERR_USAGE);
    assert_non_null(strstr(ax_error_message(), "the width of a head, 262145"));
    c.head_dim = 0;
    assert_int_equal(ax_model_config_check(&c), AX_ERR_USAGE);
    assert_non_null(
        strstr(ax_error_message(), "the hidden width, 10, is not a multiple of the number of heads, 4"));
    c.head_dim = 6, c.kv_heads = 3;
    assert_int_equal(ax_model_config_check(&c), AX_ERR_USAGE);
    assert_non_null(strstr(ax_error_message(),
                           "the number of heads, 4, is not a multiple of the number of key heads, 3"));
}

static char *values_of(const ax_model_config *c)
{
    ax_buf text = {0};
    assert_int_equal(ax_model_config_values(c, &text), AX_OK);
    return text.data;
}

/* Every fact of the network is one of the values; what the program does not know is not. */
static void values_have_every_fact(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
        bool unknown;
    } changes[] = {{"\"n_layer\": 2", "\"n_layer\": 3", false},
                   {"\"n_embd\": 12", "\"n_embd\": 15", false},
                   {"\"n_head\": 3", "\"n_head\": 4", false},
                   {"\"vocab_size\": 50", "\"vocab_size\": 51", false},
                   {"\"n_inner\": null", "\"n_inner\": 47", false},
                   {"gelu_new", "gelu", false},
                   {"\"custom\"", "\"layer_norm_epsilon\": 1e-6, \"custom\"", false},
                   {"\"custom\"", "\"tie_word_embeddings\": false, \"custom\"", false},
                   {"\"custom\"", "\"initializer_range\": 0.01, \"custom\"", false},
                   {"\"attn_pdrop\": 0.5", "\"attn_pdrop\": 0.1", false},
                   {"\"custom\"", "\"other\"", true}};
    ax_model_config c;
    assert_int_equal(parse(gpt2, &c), AX_OK);
    char *before = values_of(&c);
    assert_non_null(strstr(before, "\"model.hidden\":12"));
    assert_non_null(strstr(before, "\"model.family\":\"gpt2\""));
    ax_model_config_fini(&c);
    for (size_t i = 0; i < AX_COUNT(changes); i++) {
        char text[1024];
        const char *at = strstr(gpt2, changes[i].from);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - gpt2), gpt2, changes[i].to,
                 at + strlen(changes[i].from));
        assert_int_equal(parse(text, &c), AX_OK);
        char *after = values_of(&c);
        if (!strcmp(before, after) != changes[i].unknown)
            fail_msg("%s: %s", changes[i].to, after);
        free(after);
        ax_model_config_fini(&c);
    }
    free(before);
}

/* The largest model that a configuration may describe: its numbers of parameters and bytes are exact. */
static void counts_of_the_largest_model_are_exact(void **state)
{
    (void)state;
    ax_model_config c = {.layers = AX_LAYERS_MAX,
                         .hidden = AX_HIDDEN_MAX,
                         .heads = AX_HIDDEN_MAX,
                         .kv_heads = AX_HIDDEN_MAX,
                         .ffn = AX_FFN_MAX,
                         .vocab = AX_VOCAB_MAX,
                         .seq_len = AX_VOCAB_MAX};
    int64_t total, matmul;
    assert_int_equal(ax_model_config_check(&c), AX_OK);
    ax_model_config_params(&c, &total, &matmul);
    double d = AX_HIDDEN_MAX, block = 4 * d * d + 2 * d * AX_FFN_MAX;
    assert_true(fabs((double)matmul / (AX_LAYERS_MAX * block + d * AX_VOCAB_MAX) - 1) < 1e-12);
    assert_true(total > matmul && total < INT64_MAX / 16); /* bytes of weights, gradients and two moments */
    int64_t *const extents[] = {&c.layers, &c.hidden, &c.heads, &c.kv_heads, &c.ffn, &c.vocab, &c.seq_len};
    for (size_t i = 0; i < AX_COUNT(extents); i++) {
        ++*extents[i];
        assert_int_equal(ax_model_config_check(&c), AX_ERR_USAGE);
        --*extents[i];
    }
}

/* A key that is null has its default. Dropout rates reach to 1. */
static void null_is_the_default(void **state)
{
    (void)state;
    static const char text[] =
        "{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_embd\": 12, \"n_head\": 3, \"n_positions\": 16,"
        " \"vocab_size\": 50, \"tie_word_embeddings\": null, \"attn_pdrop\": 1.0, \"resid_pdrop\": null}";
    ax_model_config c;
    assert_int_equal(parse(text, &c), AX_OK);
    assert_true(c.tie && c.dropout.attn == 1 && c.dropout.resid == 0.1);
    assert_int_equal(ax_model_config_check(&c), AX_OK);
    ax_model_config_fini(&c);
}

static void refused(const char *text, const char *word)
{
    ax_model_config c;
    assert_int_equal(parse(text, &c), AX_ERR_DATA);
    if (!strstr(ax_error_message(), word) || !strstr(ax_error_message(), "c.json"))
        fail_msg("\"%s\" does not name the file and \"%s\"", ax_error_message(), word);
    ax_model_config_fini(&c);
}

static void errors_name_the_mistake(void **state)
{
    (void)state;
    refused("{", "c.json:1");
    refused("[]", "object");
    refused("{\"vocab_size\": 3}", "model_type");
    refused("{\"model_type\": \"mamba\"}", "mamba");
    refused("{\"model_type\": \"gpt2\"}", "n_layer");
    refused("{\"model_type\": \"gpt2\", \"n_layer\": \"2\"}", "n_layer");
    refused("{\"model_type\": \"gpt2\", \"n_layer\": 100000000000000000000}", "n_layer");
    refused("{\"model_type\": \"gpt2\", \"n_layer\": 1e999}", "n_layer");
    refused("{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_embd\": 10, \"n_head\": 3, \"n_positions\": 16, "
            "\"vocab_size\": 5}",
            "heads");
    refused("{\"model_type\": \"gpt2\", \"scale_attn_by_inverse_layer_idx\": true}",
            "scale_attn_by_inverse_layer_idx");
    refused("{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_embd\": 12, \"n_head\": 3, \"n_positions\": 16, "
            "\"vocab_size\": 5,"
            " \"activation_function\": \"relu\"}",
            "relu");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(round_trip_keeps_unknown_keys),
                                       cmocka_unit_test(numbers_keep_their_digits),
                                       cmocka_unit_test(parameters_are_counted),
                                       cmocka_unit_test(updates_of_some_blocks_are_counted),
                                       cmocka_unit_test(heads_may_have_their_own_size),
                                       cmocka_unit_test(values_have_every_fact),
                                       cmocka_unit_test(counts_of_the_largest_model_are_exact),
                                       cmocka_unit_test(null_is_the_default),
                                       cmocka_unit_test(errors_name_the_mistake)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
