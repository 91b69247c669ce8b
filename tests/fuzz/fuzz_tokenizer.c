/* Tokenizers. One or two parts are tokenizer.json and tokenizer_config.json; three are vocab.json, merges.txt
 * and tokenizer_config.json; four are the first two, special_tokens_map.json and added_tokens.json. A
 * tokenizer that loads must encode and decode some texts, and load again after it was saved. */
#include "axonn/tokenizer.h"
#include "fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- seeds --------------------------------------------------------------------------------------- */

/* Adds the files of a tokenizer that is trained here. */
static void seed_trained(const char *pattern, const char *name)
{
    static const char text[] = "the cat sat on the mat; the cats sat. 12345 Über naïve <s>\n\n  the end";
    static const char *const specials[] = {"<|endoftext|>", "<s>"};
    char *json, *config;
    size_t json_size, config_size;
    ax_tokenizer *tok;
    const char *path = fuzz_file("text", text, sizeof text - 1);
    ax_tokenizer_training training = {.vocab = 270,
                                      .pattern = pattern,
                                      .specials = specials,
                                      .n_specials = 2,
                                      .paths = &path,
                                      .n_paths = 1,
                                      .threads = 1};
    if (ax_tokenizer_train(&training, &tok) != AX_OK || ax_tokenizer_save(tok, fuzz_path(name)) != AX_OK)
        abort();
    ax_tokenizer_destroy(&tok);
    char whole[2][64];
    snprintf(whole[0], sizeof whole[0], "%s/tokenizer.json", name);
    snprintf(whole[1], sizeof whole[1], "%s/tokenizer_config.json", name);
    if (ax_file_read(fuzz_path(whole[0]), &json, &json_size) != AX_OK ||
        ax_file_read(fuzz_path(whole[1]), &config, &config_size) != AX_OK)
        abort();
    fuzz_seed((fuzz_part[]){{json, json_size}, {config, config_size}, {NULL, 0}});
    free(json);
    free(config);
}

/* A tokenizer of SentencePiece's kind; the four parts around the model are given. */
static void seed_text_kind(const char *normalizer, const char *pre_tokenizer, const char *decoder,
                           const char *flags)
{
    char config[] = "{\"eos_token\":\"<s>\"}";
    ax_buf json = {0};
    ax_status status = ax_buf_printf(
        &json,
        "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":0,\"content\":\"<s>\",\"special\":true,"
        "\"normalized\":"
        "true},{\"id\":40,\"content\":\"[X]\",\"lstrip\":true,\"rstrip\":true,\"single_word\":true}],"
        "\"normalizer\":%s,\"pre_tokenizer\":%s,\"decoder\":%s,\"model\":{\"type\":\"BPE\",\"unk_token\":\"<"
        "unk>"
        "\",%s,\"vocab\":{\"<s>\":0,\"<unk>\":1,\"<0x0A>\":2,\"<0xFF>\":3,\"<0xC3>\":4,\"<0xAF>\":5,"
        "\"\u2581\":6,\"a\":7,\"b\":8,\"t\":9,\"h\":10,\"e\":11,\"ab\":12,\"he\":13,\"the\":14,\"\u2581the\":"
        "15,"
        "\"c\":16,\"abab\":17,\"\u2581\u2581\":18,\"\u00ef\":19},\"merges\":[\"a b\",\"h e\",[\"t\",\"he\"],"
        "\"\u2581 the\",\"ab ab\",\"\u2581 \u2581\"]}}",
        normalizer, pre_tokenizer, decoder, flags);
    if (status != AX_OK)
        abort();
    fuzz_seed((fuzz_part[]){{json.data, json.size}, {config, sizeof config - 1}, {NULL, 0}});
    ax_buf_fini(&json);
}

static void seed_text_kinds(void)
{
    static const char prepend[] =
        "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Prepend\",\"prepend\":"
        "\"\u2581\"},"
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\u2581\"}]}";
    static const char whole[] =
        "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\u2581\"},"
        "\"content\":\" "
        "\"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" "
        "\",\"start\":1,\"stop\":0}]}";
    static const char metaspace[] = "{\"type\":\"Metaspace\",\"replacement\":\"\u2581\",\"prepend_scheme\":"
                                    "\"first\",\"split\":true}";
    static const char digits[] =
        "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Metaspace\",\"replacement\":\"\u2581\","
        "\"add_prefix_space\":true,\"split\":false},{\"type\":\"Digits\",\"individual_digits\":true}]}";
    seed_text_kind(prepend, "null", whole, "\"byte_fallback\":true,\"fuse_unk\":true");
    seed_text_kind("null", metaspace, metaspace, "\"byte_fallback\":true,\"ignore_merges\":true");
    seed_text_kind("null", digits, whole, "\"byte_fallback\":false,\"fuse_unk\":false");
}

/* A tokenizer.json that lacks tokens which the files beside it name. */
static void seed_beside(const char *config, const char *map, const char *more)
{
    fuzz_seed_texts((const char *[]){
        "{\"added_tokens\":[{\"id\":4,\"content\":\"<s>\",\"special\":false}],\"pre_tokenizer\":{\"type\":"
        "\"ByteLevel\",\"add_prefix_space\":false},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,"
        "\"ab\":2,\"[P]\":3},\"merges\":[\"a b\"]}}",
        config, map, more, NULL});
}

static void seed_all_beside(void)
{
    seed_beside("{\"added_tokens_decoder\":{\"5\":{\"content\":\"<x>\",\"lstrip\":true},\"4\":{\"content\":"
                "\"<s>\",\"normalized\":true}},\"eos_token\":\"<s>\",\"tokenizer_class\":\"GPT2Tokenizer\","
                "\"add_prefix_space\":true}",
                "{}", "{}");
    seed_beside("{\"extra_special_tokens\":{\"image_token\":\"<i>\"},\"my_token\":{\"content\":\"<m>\"}}",
                "{\"pad_token\":\"[P]\",\"additional_special_tokens\":[\"<q>\",{\"content\":\"<r>\"}]}",
                "{\"<x>\":5,\"<y>\":6}");
    fuzz_seed_texts((const char *[]){"{\"a\":0,\"b\":1,\"ab\":2,\"<|endoftext|>\":3}", "#version: 0.2\na b\n",
                                     "{\"eos_token\":\"<|endoftext|>\",\"bos_token\":\"<s>\","
                                     "\"add_bos_token\":true,\"add_eos_token\":true}",
                                     NULL});
}

void fuzz_make_seeds(void)
{
    seed_all_beside();
    seed_text_kinds();
    seed_trained("gpt2", "one");
    seed_trained("qwen2", "two");
    fuzz_seed_texts((const char *[]){
        "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":4,\"content\":\"<s>\",\"single_word\":false,"
        "\"lstrip\":true,"
        "\"rstrip\":true,\"normalized\":true,\"special\":true}],\"normalizer\":{\"type\":\"Sequence\","
        "\"normalizers\":"
        "[{\"type\":\"NFC\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"_\"}]},"
        "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{"
        "\"Regex\":"
        "\"\\\\s+|\\\\p{L}+|(a+)+$\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\","
        "\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":false}]},\"post_processor\":{\"type\":"
        "\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},{\"Sequence\":{"
        "\"id\":"
        "\"A\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[4],"
        "\"tokens\":"
        "[\"<s>\"]}}},\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"dropout\":null,"
        "\"unk_token\":null,\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"abab\":3},\"merges\":[\"a "
        "b\",[\"ab\",\"ab\"]]}}",
        "{\"eos_token\":{\"content\":\"<s>\"},\"chat_template\":[{\"name\":\"default\",\"template\":\"{{ x "
        "}}\"}],\"model_max_length\":1000000000000000019884624838656}",
        NULL});
    fuzz_seed_texts((const char *[]){"{\"a\":0,\"b\":1,\"ab\":2,\"<|endoftext|>\":3}", "#version: 0.2\na b\n",
                                     "{\"eos_token\":\"<|endoftext|>\",\"add_prefix_space\":true}", NULL});
}

/* ---- reading ------------------------------------------------------------------------------------- */

static void encode(const ax_tokenizer *tok, ax_encoder *encoder, const char *text, size_t n)
{
    ax_ids ids = {0};
    ax_buf back = {0};
    for (unsigned flags = 0; flags < 4; flags++)
        if (fuzz_read(ax_encode(encoder, text, n, flags, &ids)))
            (void)fuzz_read(ax_decode(tok, ids.data, ids.size, flags, &back));
    for (size_t i = 0; i < ids.size; i++)
        FUZZ_HOLDS(ids.data[i] >= 0 && ids.data[i] < ax_tokenizer_vocab_size(tok));
    ax_tokenizer_report report = {0};
    if (fuzz_read(ax_tokenizer_check(encoder, text, n, &report)))
        FUZZ_HOLDS(report.documents == 1 && report.tokens >= 0);
    ax_tokenizer_report_fini(&report);
    ax_ids_fini(&ids);
    ax_buf_fini(&back);
}

static void query_tokens(const ax_tokenizer *tok)
{
    int32_t vocab = ax_tokenizer_vocab_size(tok);
    FUZZ_HOLDS(vocab > 0 && ax_tokenizer_eos(tok) >= -1 && ax_tokenizer_eos(tok) < vocab);
    for (int32_t id = -1; id <= ax_min(vocab, 1000); id++) {
        size_t n;
        const char *piece = ax_tokenizer_piece(tok, id, &n);
        int32_t found = piece ? ax_tokenizer_id(tok, piece, n) : -1;
        FUZZ_HOLDS(found >= -1 && found < vocab);
        (void)ax_tokenizer_is_special(tok, id);
    }
}

static void save_and_load(const ax_tokenizer *tok)
{
    ax_tokenizer *again;
    const char *text = ax_tokenizer_chat_template(tok), *kept;
    fuzz_file("saved/chat_template.jinja", NULL, 0);
    if (!fuzz_read(ax_tokenizer_save(tok, fuzz_path("saved"))))
        return;
    FUZZ_HOLDS(ax_tokenizer_load(fuzz_path("saved"), &again) == AX_OK);
    kept = ax_tokenizer_chat_template(again);
    FUZZ_HOLDS(ax_tokenizer_hash(again) == ax_tokenizer_hash(tok));
    FUZZ_HOLDS(text ? kept && !strcmp(kept, text) : !kept);
    ax_tokenizer_destroy(&again);
}

/* A chat template that is set stands in one place. */
static void set_template(ax_tokenizer *tok)
{
    ax_tokenizer *again;
    if (!fuzz_read(ax_tokenizer_set_chat_template(tok, "{{ x }}")) ||
        !fuzz_read(ax_tokenizer_save(tok, fuzz_path("set"))))
        return;
    fuzz_file("set/chat_template.jinja", NULL, 0);
    FUZZ_HOLDS(ax_tokenizer_load(fuzz_path("set"), &again) == AX_OK);
    FUZZ_HOLDS(!ax_tokenizer_chat_template(again));
    ax_tokenizer_destroy(&again);
}

void fuzz_one(const fuzz_part *part, int n)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json",   "vocab.json",
                                        "merges.txt",     "special_tokens_map.json", "added_tokens.json"};
    static const int places[2][4] = {{0, 1, 4, 5}, {2, 3, 1, -1}};
    static const char *const texts[] = {"the cat  <s> ababab\n\xff\xc3 naïve 12345", "",
                                        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!"};
    ax_tokenizer *tok;
    ax_encoder *encoder;
    for (size_t i = 0; i < AX_COUNT(names); i++)
        fuzz_file(names[i], NULL, 0);
    for (int i = 0; i < n && i < 4; i++)
        if (places[n == 3][i] >= 0)
            fuzz_file(names[places[n == 3][i]], part[i].data, part[i].size);
    if (!fuzz_read(ax_tokenizer_load(fuzz_path(""), &tok)))
        return;
    query_tokens(tok);
    FUZZ_HOLDS(ax_encoder_create(tok, &encoder) == AX_OK);
    for (size_t i = 0; i < AX_COUNT(texts); i++)
        encode(tok, encoder, texts[i], strlen(texts[i]));
    ax_encoder_destroy(&encoder);
    save_and_load(tok);
    set_template(tok);
    ax_tokenizer_destroy(&tok);
}
