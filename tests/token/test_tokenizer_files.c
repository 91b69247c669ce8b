/* data: files of tokenizers: saved, older, written by transformers, damaged and truncated ones. */
#include "token/tokenizer_test.h"

#include <unistd.h>

static void saved_as_loaded(void **state)
{
    const fixture *f = *state;
    ax_tokenizer *tok;
    char copy[128];
    snprintf(copy, sizeof copy, "%s/a/copy", f->dir);
    assert_int_equal(ax_tokenizer_save(f->tok, copy), AX_OK);
    assert_int_equal(ax_tokenizer_load(copy, &tok), AX_OK);
    assert_true(ax_tokenizer_hash(tok) == ax_tokenizer_hash(f->tok));
    ax_tokenizer_destroy(&tok);
    assert_int_equal(ax_remove_tree(copy), AX_OK);
}

/* Expects the ids of the text "!" with the tokens that the tokenizer puts around it: 0 before it, after it.
 */
static void expect_around(const ax_tokenizer *tok, bool before, bool after)
{
    ax_encoder *encoder;
    ax_ids ids = {0};
    assert_int_equal(ax_encoder_create(tok, &encoder), AX_OK);
    assert_int_equal(ax_encode(encoder, "!", 1, AX_ENCODE_ADD_SPECIAL, &ids), AX_OK);
    const int32_t wanted[] = {0, 1, 0};
    assert_int_equal(ids.size, 1 + before + after);
    assert_memory_equal(ids.data, wanted + !before, ids.size * sizeof *wanted);
    ax_ids_fini(&ids);
    ax_encoder_destroy(&encoder);
}

/* Beside vocab.json alone, add_bos_token and add_eos_token count, as in transformers, which gives these ids.
 * A saved tokenizer.json says the same. */
static void expect_tokens_around(const fixture *f)
{
    static const char *const values[] = {"null", "false", "true"};
    char config[256], dir[64];
    snprintf(dir, sizeof dir, "%s/around", f->dir);
    for (int i = 0; i < 9; i++) {
        ax_tokenizer *tok;
        const bool before = i % 3 == 2, after = i / 3 == 2;
        snprintf(config, sizeof config,
                 "{\"tokenizer_class\": \"GPT2Tokenizer\", \"add_bos_token\": %s, \"add_eos_token\": %s, "
                 "\"bos_token\": \"<|endoftext|>\", \"eos_token\": {\"content\": \"<|endoftext|>\"}}",
                 values[i % 3], values[i / 3]);
        write_text(f, "tokenizer_config.json", config);
        assert_int_equal(ax_tokenizer_load(f->dir, &tok), AX_OK);
        expect_around(tok, before, after);
        assert_int_equal(ax_tokenizer_save(tok, dir), AX_OK);
        ax_tokenizer_destroy(&tok);
        assert_int_equal(ax_tokenizer_load(dir, &tok), AX_OK);
        expect_around(tok, before, after);
        ax_tokenizer_destroy(&tok);
        assert_int_equal(ax_remove_tree(dir), AX_OK);
    }
}

/* GPT-2's older files give the same tokenizer; they lack the pattern, which is known to be GPT-2's. */
static void older_files(void **state)
{
    const fixture *f = *state;
    const json_t *model = json_object_get(json_object_get(variant(f, 0), "tokenizer"), "model"), *merge;
    char *vocab = json_dumps(json_object_get(model, "vocab"), 0);
    ax_buf merges = {0};
    ax_tokenizer *tok;
    size_t i;
    assert_int_equal(ax_buf_printf(&merges, "#version: 0.2\n"), AX_OK);
    json_array_foreach(json_object_get(model, "merges"), i, merge)
        assert_int_equal(ax_buf_printf(&merges, "%s %s\n", json_string_value(json_array_get(merge, 0)),
                                       json_string_value(json_array_get(merge, 1))),
                         AX_OK);
    assert_int_equal(ax_remove_tree(path_in(f, "tokenizer.json")), AX_OK);
    assert_int_equal(ax_tokenizer_load(f->dir, &tok), AX_ERR_DATA);
    assert_non_null(strstr(ax_error_message(), "no tokenizer"));
    write_text(f, "tokenizer.model", "\n\x0e");
    for (int by_file = 0; by_file < 2; by_file++) {
        assert_int_equal(ax_tokenizer_load(by_file ? path_in(f, "tokenizer.model") : f->dir, &tok),
                         AX_ERR_DATA);
        assert_non_null(strstr(ax_error_message(), "save_pretrained"));
    }
    assert_int_equal(ax_remove_tree(path_in(f, "tokenizer.model")), AX_OK);
    write_text(f, "vocab.json", vocab);
    write_text(f, "merges.txt", merges.data);
    for (int by_file = 0; by_file < 2; by_file++) {
        assert_int_equal(ax_tokenizer_load(by_file ? path_in(f, "vocab.json") : f->dir, &tok), AX_OK);
        assert_true(ax_tokenizer_hash(tok) == ax_tokenizer_hash(f->tok));
        ax_tokenizer_destroy(&tok);
    }
    write_text(f, "added_tokens.json", "{\"<|endoftext|>\": 0}");
    assert_int_equal(ax_tokenizer_load(f->dir, &tok), AX_OK);
    ax_tokenizer_destroy(&tok);
    write_text(f, "added_tokens.json", "{\"<|endoftext|>\": 0, \"<|user|>\": 50257}");
    assert_int_equal(ax_tokenizer_load(f->dir, &tok), AX_ERR_DATA);
    assert_non_null(strstr(ax_error_message(), "token \"<|user|>\" is not in vocab.json"));
    assert_int_equal(ax_remove_tree(path_in(f, "added_tokens.json")), AX_OK);
    expect_tokens_around(f);
    write_text(f, "tokenizer_config.json", "{\"tokenizer_class\": \"Qwen2Tokenizer\"}");
    assert_int_equal(ax_tokenizer_load(f->dir, &tok), AX_ERR_DATA);
    assert_non_null(strstr(ax_error_message(), "Qwen2Tokenizer"));
    const char *const files[] = {"vocab.json", "merges.txt", "tokenizer_config.json"};
    for (size_t k = 0; k < AX_COUNT(files); k++)
        assert_int_equal(ax_remove_tree(path_in(f, files[k])), AX_OK);
    ax_buf_fini(&merges);
    free(vocab);
}

/* A tokenizer as transformers saves it: fields that the program does not use may hold numbers of any size. */
static void saved_by_transformers(void **state)
{
    const fixture *f = *state;
    static const char config[] = "{\"eos_token\": \"!\", \"clean\": 1e-05,\n"
                                 "\"model_max_length\": 1000000000000000019884624838656}\n";
    ax_tokenizer *tok;
    char *text, dir[64];
    size_t size;
    write_text(f, "tokenizer_config.json", config);
    assert_int_equal(load_value(f, json_object_get(variant(f, 0), "tokenizer"), &tok), AX_OK);
    assert_int_equal(ax_tokenizer_eos(tok), 1);
    snprintf(dir, sizeof dir, "%s/saved", f->dir);
    assert_int_equal(ax_tokenizer_save(tok, dir), AX_OK);
    assert_int_equal(ax_file_read(path_in(f, "saved/tokenizer_config.json"), &text, &size), AX_OK);
    assert_string_equal(text, config);
    free(text);
    ax_tokenizer_destroy(&tok);
    assert_int_equal(ax_remove_tree(dir), AX_OK);
    assert_int_equal(ax_remove_tree(path_in(f, "tokenizer_config.json")), AX_OK);
}

/* tokenizer.json says which tokens are put around a text: add_bos_token and add_eos_token of
 * tokenizer_config.json have no effect beside it, as in transformers 5. */
static void tokens_around_a_text(void **state)
{
    const fixture *f = *state;
    static const struct {
        const char *config;
        int before, after; /* ids, -1: none; before -2: refused */
    } cases[] = {{"{}", 0, -1},
                 {"{\"bos_token\": \"!\"}", 0, -1},
                 {"{\"add_bos_token\": true, \"bos_token\": \"!\"}", 0, -1},
                 {"{\"add_bos_token\": false, \"bos_token\": \"!\"}", 0, -1},
                 {"{\"add_bos_token\": null, \"bos_token\": \"!\"}", 0, -1},
                 {"{\"add_eos_token\": true, \"eos_token\": \"!\"}", 0, -1},
                 {"{\"add_eos_token\": false}", 0, -1}};
    json_t *root = json_deep_copy(json_object_get(variant(f, 0), "tokenizer"));
    json_object_set_new(
        root, "post_processor",
        json_loads("{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": "
                   "\"<|endoftext|>\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", "
                   "\"type_id\": 0}}], \"pair\": [], \"special_tokens\": {\"<|endoftext|>\": "
                   "{\"id\": \"<|endoftext|>\", \"ids\": [0], \"tokens\": "
                   "[\"<|endoftext|>\"]}}}",
                   0, NULL));
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        ax_tokenizer *tok;
        ax_encoder *encoder;
        ax_ids ids = {0};
        int at = 0;
        write_text(f, "tokenizer_config.json", cases[i].config);
        ax_status status = load_value(f, root, &tok);
        assert_int_equal(status, cases[i].before == -2 ? AX_ERR_DATA : AX_OK);
        if (status != AX_OK)
            continue;
        assert_int_equal(ax_encoder_create(tok, &encoder), AX_OK);
        assert_int_equal(ax_encode(encoder, "!", 1, AX_ENCODE_ADD_SPECIAL, &ids), AX_OK);
        assert_int_equal(ids.size, 1 + (cases[i].before >= 0) + (cases[i].after >= 0));
        if (cases[i].before >= 0)
            assert_int_equal(ids.data[at++], cases[i].before);
        assert_int_equal(ids.data[at++], 1);
        if (cases[i].after >= 0)
            assert_int_equal(ids.data[at], cases[i].after);
        ax_ids_fini(&ids);
        ax_encoder_destroy(&encoder);
        ax_tokenizer_destroy(&tok);
    }
    json_decref(root);
    assert_int_equal(ax_remove_tree(path_in(f, "tokenizer_config.json")), AX_OK);
}

static void end_of_text(void **state)
{
    const fixture *f = *state;
    const struct {
        const char *config;
        int32_t eos; /* -2: refused */
    } cases[] = {{"{}", 0},
                 {"{\"eos_token\": null}", 0},
                 {"{\"eos_token\": \"!\"}", 1},
                 {"{\"eos_token\": {\"content\": \"!\"}}", 1},
                 {"{\"eos_token\": \"<|nowhere|>\"}", ax_tokenizer_vocab_size(f->tok)}, /* a new token */
                 {"{\"eos_token\": 5}", -2},
                 {"{", -2}};
    json_t *root = json_deep_copy(json_object_get(variant(f, 0), "tokenizer"));
    ax_tokenizer *tok;
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        write_text(f, "tokenizer_config.json", cases[i].config);
        ax_status status = load_value(f, root, &tok);
        assert_int_equal(status, cases[i].eos == -2 ? AX_ERR_DATA : AX_OK);
        if (status == AX_OK)
            assert_int_equal(ax_tokenizer_eos(tok), cases[i].eos);
        ax_tokenizer_destroy(&tok);
    }
    assert_int_equal(ax_remove_tree(path_in(f, "tokenizer_config.json")), AX_OK);
    json_array_clear(json_object_get(root, "added_tokens"));
    json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    json_object_del(vocab, "<|endoftext|>");
    assert_int_equal(load_value(f, root, &tok), AX_OK);
    assert_int_equal(ax_tokenizer_eos(tok), -1);
    ax_tokenizer_destroy(&tok);
    json_decref(root);
}

/* What transformers 5.24 takes from the files beside tokenizer.json.
 */
static void tokens_beside(void **state)
{
    const fixture *f = *state;
    const int32_t n = ax_tokenizer_vocab_size(f->tok);
    static const struct {
        const char *config, *map, *more;
        int32_t x, y; /* ids of <|x|> and <|y|> beyond those of tokenizer.json; -1: no tokens */
    } cases[] = {
        {"{}", NULL, NULL, -1, -1},
        {"{}", "{\"eos_token\": \"<|x|>\"}", NULL, 0, -1},
        {"{\"eos_token\": \"<|x|>\", \"pad_token\": \"<|y|>\"}", NULL, NULL, 0, 1},
        {"{\"image_token\": \"<|x|>\"}", NULL, NULL, 0, -1},
        {"{\"extra_special_tokens\": {\"image_token\": \"<|x|>\", \"b\": \"<|y|>\"}}", NULL, NULL, 0, 1},
        {"{\"extra_special_tokens\": [\"<|y|>\"], \"additional_special_tokens\": [\"<|x|>\"]}", NULL, NULL,
         -1, 0},
        {"{\"extra_special_tokens\": [], \"additional_special_tokens\": [\"<|x|>\"]}", NULL, NULL, 0, -1},
        {"{\"bos_token\": \"<|y|>\", \"added_tokens_decoder\": {\"%d\": {\"content\": \"<|x|>\"}}}",
         "{\"eos_token\": 5}", NULL, 0, 1},
        {"{}", "{\"additional_special_tokens\": [\"<|y|>\"]}", "{\"<|x|>\": %d}", 0, 1},
    };
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        char text[256];
        ax_tokenizer *tok, *again;
        snprintf(text, sizeof text, cases[i].config, n);
        write_text(f, "tokenizer_config.json", text);
        if (cases[i].map)
            write_text(f, "special_tokens_map.json", cases[i].map);
        snprintf(text, sizeof text, cases[i].more ? cases[i].more : "{}", n);
        write_text(f, "added_tokens.json", text);
        assert_int_equal(load_value(f, json_object_get(variant(f, 0), "tokenizer"), &tok), AX_OK);
        assert_int_equal(ax_tokenizer_id(tok, "<|x|>", 5), cases[i].x < 0 ? -1 : n + cases[i].x);
        assert_int_equal(ax_tokenizer_id(tok, "<|y|>", 5), cases[i].y < 0 ? -1 : n + cases[i].y);
        assert_int_equal(ax_tokenizer_save(tok, path_in(f, "again")), AX_OK);
        assert_int_equal(ax_tokenizer_load(path_in(f, "again"), &again), AX_OK);
        assert_true(ax_tokenizer_hash(tok) == ax_tokenizer_hash(again));
        ax_tokenizer_destroy(&tok);
        ax_tokenizer_destroy(&again);
        unlink(path_in(f, "special_tokens_map.json"));
    }
    write_text(f, "tokenizer_config.json",
               "{\"added_tokens_decoder\": {\"3000\": {\"content\": \"<|x|>\"}}}");
    ax_tokenizer *tok;
    assert_int_equal(load_value(f, json_object_get(variant(f, 0), "tokenizer"), &tok), AX_ERR_DATA);
    assert_non_null(strstr(ax_error_message(), "gives the token \"<|x|>\" the id 3000"));
    write_text(f, "tokenizer_config.json",
               "{\"tokenizer_class\": \"Qwen2Tokenizer\", \"add_prefix_space\": true}");
    assert_int_equal(load_value(f, json_object_get(variant(f, variant_named(f, "qwen2")), "tokenizer"), &tok),
                     AX_ERR_DATA);
    assert_non_null(strstr(ax_error_message(), "add_prefix_space of the tokenizer_config.json"));
    assert_int_equal(ax_remove_tree(path_in(f, "tokenizer_config.json")), AX_OK);
    assert_int_equal(ax_remove_tree(path_in(f, "added_tokens.json")), AX_OK);
}

/* Expects the ids of each text, with the special tokens around it. Returns the number of texts with others.
 */
static int count_others(const char *name, const ax_tokenizer *tok, const json_t *texts, const json_t *wanted)
{
    ax_encoder *encoder;
    ax_ids ids = {0};
    const json_t *text;
    size_t i;
    int others = 0;
    assert_int_equal(ax_encoder_create(tok, &encoder), AX_OK);
    json_array_foreach(texts, i, text)
    {
        json_t *got = json_array();
        ids.size = 0;
        assert_int_equal(ax_encode(encoder, json_string_value(text), json_string_length(text),
                                   AX_ENCODE_ADD_SPECIAL, &ids),
                         AX_OK);
        for (size_t k = 0; k < ids.size; k++)
            json_array_append_new(got, json_integer(ids.data[k]));
        char *is = json_dumps(got, 0), *must = json_dumps(json_array_get(wanted, i), 0);
        if (strcmp(is, must)) {
            print_error("%s: text %zu, \"%s\": %s, not %s\n", name, i, json_string_value(text), is, must);
            others++;
        }
        free(is);
        free(must);
        json_decref(got);
    }
    ax_ids_fini(&ids);
    ax_encoder_destroy(&encoder);
    return others;
}

/* Ids that transformers gives with tokenizers of which tokenizer.json does not say all. */
static void beside_as_transformers(void **state)
{
    const fixture *f = *state;
    json_t *golden = json_load_file(AXONN_SOURCE_DIR "/tests/golden/beside.json", 0, NULL), *entry, *value;
    const json_t *texts = json_object_get(golden, "texts");
    const char *file;
    size_t i;
    int others = 0;
    assert_non_null(golden);
    json_array_foreach(json_object_get(golden, "variants"), i, entry)
    {
        const char *name = json_string_value(json_object_get(entry, "name"));
        json_t *files = json_object_get(entry, "files");
        size_t base = variant_named(f, json_string_value(json_object_get(entry, "base")));
        json_t *root = json_copy(json_object_get(variant(f, base), "tokenizer"));
        ax_tokenizer *tok;
        json_object_update(root, json_object_get(entry, "json"));
        json_object_foreach(files, file, value)
        {
            char *text = json_dumps(value, 0);
            write_text(f, file, text);
            free(text);
        }
        if (load_value(f, root, &tok) != AX_OK)
            fail_msg("%s: %s", name, ax_error_message());
        others += count_others(name, tok, texts, json_object_get(entry, "ids"));
        ax_tokenizer_destroy(&tok);
        json_decref(root);
        json_object_foreach(files, file, value) unlink(path_in(f, file));
    }
    assert_int_equal(others, 0);
    json_decref(golden);
}

/* Texts with characters of Unicode 15 and 16 are cut as by the library tokenizers. The merges of this
 * tokenizer join all neighbours, so that the ids show where texts are cut. */
static void newer_characters(void **state)
{
    const fixture *f = *state;
    json_t *golden = json_load_file(AXONN_SOURCE_DIR "/tests/golden/beside.json", 0, NULL);
    const json_t *newer = json_object_get(golden, "unicode"), *cut;
    size_t i;
    int others = 0;
    json_array_foreach(json_object_get(newer, "cuts"), i, cut)
    {
        json_t *root = json_copy(json_object_get(newer, "tokenizer"));
        ax_tokenizer *tok;
        json_object_set(root, "pre_tokenizer", json_object_get(cut, "pre_tokenizer"));
        assert_int_equal(load_value(f, root, &tok), AX_OK);
        others += count_others(json_string_value(json_object_get(cut, "name")), tok,
                               json_object_get(newer, "texts"), json_object_get(cut, "ids"));
        ax_tokenizer_destroy(&tok);
        json_decref(root);
    }
    assert_int_equal(i, 4);
    assert_int_equal(others, 0);
    json_decref(golden);
}

/* If the vocabulary lacks a byte, the byte is lost, as with Hugging Face, and `check` reports it. */
static void unknown_bytes(void **state)
{
    const fixture *f = *state;
    json_t *root = json_deep_copy(json_object_get(variant(f, 0), "tokenizer"));
    json_t *model = json_object_get(root, "model");
    ax_tokenizer *tok;
    ax_encoder *encoder;
    json_object_del(json_object_get(model, "vocab"), "Q");
    for (int with_unk = 0; with_unk < 2; with_unk++) {
        ax_tokenizer_report report = {0};
        ax_ids ids = {0};
        if (with_unk)
            json_object_set_new(model, "unk_token", json_string("!"));
        assert_int_equal(load_value(f, root, &tok), AX_OK);
        assert_int_equal(ax_encoder_create(tok, &encoder), AX_OK);
        assert_int_equal(ax_encode(encoder, "aQQ", 3, 0, &ids), AX_OK);
        assert_int_equal(ids.size, with_unk ? 3 : 1);
        assert_int_equal(ids.data[ids.size - 1], ax_tokenizer_id(tok, with_unk ? "!" : "a", 1));
        assert_int_equal(ax_tokenizer_check(encoder, "aQQ", 3, &report), AX_OK);
        assert_int_equal(ax_tokenizer_check(encoder, "aaa", 3, &report), AX_OK);
        assert_int_equal(report.unknown, 2);
        assert_int_equal(report.failed, 1);
        assert_int_equal(report.first_failed, 0);
        assert_int_equal(report.first_failed_byte, 1);
        ax_ids_fini(&ids);
        ax_tokenizer_report_fini(&report);
        ax_encoder_destroy(&encoder);
        ax_tokenizer_destroy(&tok);
    }
    json_decref(root);
}

/* Each kind of damage is refused, and the message names the field. `path` leads to the field that is
 * replaced. */
static void damaged_files(void **state)
{
    const fixture *f = *state;
    static const struct damage {
        const char *path[3];
        const char *value, *says;
    } cases[] =
        {
            {{"model"}, "null", "model is null"},
            {{"model", "type"}, "\"Unigram\"", "Unigram"},
            {{"model", "vocab"}, "[]", "model.vocab"},
            {{"model", "vocab"}, "{}", "merges[0]"},
            {{"model", "vocab", "a"}, "-1", "\"a\""},
            {{"model", "vocab", "a"}, "\"x\"", "\"a\""},
            {{"model", "vocab", "a"}, "1", "the id 1"},
            {{"model", "vocab", "a"}, "999999999999", "\"a\""},
            {{"model", "vocab", ""}, "7000", "empty"},
            {{"model", "merges"}, "{}", "model.merges"},
            {{"model", "merges"}, "[\"a\"]", "model.merges[0]"},
            {{"model", "merges"}, "[\"a b c\"]", "model.merges[0]"},
            {{"model", "merges"}, "[[\"a\", \"Z\"]]", "\"aZ\""},
            {{"model", "merges"}, "[[\"a\", 1]]", "model.merges[0]"},
            {{"model", "dropout"}, "0.1", "model.dropout"},
            {{"model", "byte_fallback"}, "true", "model.byte_fallback"},
            {{"normalizer"}, "{\"type\": \"Prepend\"}", "Prepend"},
            {{"normalizer"},
             "{\"type\": \"Replace\", \"pattern\": {\"Regex\": \"a\"}, \"content\": \"\"}",
             "Replace"},
            {{"normalizer"}, "{\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}}", "Replace.content"},
            {{"pre_tokenizer"},
             "{\"type\": \"Metaspace\", \"replacement\": \"_\", \"prepend_scheme\": \"last\"}",
             "prepend_scheme"},
            {{"pre_tokenizer"},
             "{\"type\": \"Metaspace\", \"replacement\": \"_\", \"prepend_scheme\": \"first\","
             " \"add_prefix_space\": false}",
             "add_prefix_space"},
            {{"pre_tokenizer"},
             "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\", \"individual_digits\": "
             "true},"
             " {\"type\": \"Metaspace\", \"replacement\": \"_\"}]}",
             "Metaspace after"},
            {{"model", "end_of_word_suffix"}, "\"</w>\"", "model.end_of_word_suffix"},
            {{"model", "ignore_merges"}, "1", "ignore_merges"},
            {{"model", "unk_token"}, "\"<unk>\"", "<unk>"},
            {{"added_tokens"}, "{}", "added_tokens"},
            {{"added_tokens"}, "[{\"id\": 0}]", "added_tokens[0]"},
            {{"added_tokens"}, "[{\"id\": 5, \"content\": \"a\"}]", "\"a\""},
            {{"added_tokens"}, "[{\"id\": 5, \"content\": \"<new>\"}]", "the id 5"},
            {{"added_tokens"}, "[{\"id\": 900, \"content\": \"<new>\", \"lstrip\": 3}]", "lstrip"},
            {{"added_tokens"},
             "[{\"id\": 900, \"content\": \"<x>\"}, {\"id\": 901, \"content\": \"<x>\"}]",
             "\"<x>\" is in added_tokens twice"},
            {{"added_tokens"}, "[{\"id\": 1000000, \"content\": \"<new>\"}]", "ids up to 1000000"},
            {{"normalizer"}, "{\"type\": \"Lowercase\"}", "Lowercase"},
            {{"pre_tokenizer"}, "null", "pre_tokenizer"},
            {{"pre_tokenizer"}, "{\"type\": \"Metaspace\"}", "Metaspace.replacement"},
            {{"pre_tokenizer"}, "{\"type\": \"Sequence\", \"pretokenizers\": []}", "ByteLevel"},
            {{"pre_tokenizer"},
             "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"(\"}, \"behavior\": \"Isolated\"}",
             "pattern"},
            {{"pre_tokenizer"},
             "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, \"behavior\": \"MergedWithNext\"}",
             "MergedWithNext"},
            {{"post_processor"}, "{\"type\": \"BertProcessing\"}", "BertProcessing"},
            {{"post_processor"},
             "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\"}}]}",
             "<s>"},
            {{"decoder"}, "{\"type\": \"WordPiece\"}", "WordPiece"},
        },
      text_cases[] = {
          {{"decoder"}, "null", "decoder is missing"},
          {{"decoder"},
           "{\"type\": \"ByteLevel\"}",
           "decoder ByteLevel is not supported without pre_tokenizer ByteLevel"},
          {{"decoder"}, "{\"type\": \"CTC\"}", "CTC"},
          {{"decoder"},
           "{\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}",
           "Strip before Fuse"},
          {{"decoder"},
           "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Fuse\"}, {\"type\": \"ByteFallback\"}]}",
           "ByteFallback after Fuse"},
          {{"decoder"},
           "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Fuse\"},"
           " {\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 1}]}",
           "stop 1"},
          {{"decoder"},
           "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Fuse\"},"
           " {\"type\": \"Strip\", \"content\": \"\u00e9\", \"start\": 1, \"stop\": 0}]}",
           "Strip.content"},
          {{"normalizer"},
           "{\"type\": \"Replace\", \"pattern\": {\"String\": \"<tool>\"}, \"content\": \"\"}",
           "into an empty text"},
          {{"model", "unk_token"}, "\"<nowhere>\"", "<nowhere>"},
      };
    for (size_t i = 0; i < AX_COUNT(cases) + AX_COUNT(text_cases); i++) {
        bool text = i >= AX_COUNT(cases);
        const struct damage *damage = text ? &text_cases[i - AX_COUNT(cases)] : &cases[i];
        size_t v = text ? variant_named(f, "llama2") : 0;
        json_t *root = json_deep_copy(json_object_get(variant(f, v), "tokenizer")), *at = root;
        int k = 0;
        for (; k < 2 && damage->path[k + 1]; k++)
            at = json_object_get(at, damage->path[k]);
        json_object_set_new(at, damage->path[k], json_loads(damage->value, JSON_DECODE_ANY, NULL));
        ax_tokenizer *tok;
        if (load_value(f, root, &tok) != AX_ERR_DATA || !strstr(ax_error_message(), damage->says))
            fail_msg("case %zu (%s): %s", i, damage->value, ax_error_message());
        assert_null(tok);
        json_decref(root);
    }
}

/* A file that is truncated anywhere is refused, and never causes a crash. */
static void truncated_files(void **state)
{
    const fixture *f = *state;
    char *text = json_dumps(json_object_get(variant(f, 3), "tokenizer"), 0);
    size_t n = strlen(text);
    for (size_t cut = 0; cut < n; cut += 97) {
        ax_tokenizer *tok;
        assert_int_equal(ax_file_write_atomic(path_in(f, "tokenizer.json"), text, cut), AX_OK);
        assert_int_equal(ax_tokenizer_load(f->dir, &tok), AX_ERR_DATA);
    }
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saved_as_loaded),
        cmocka_unit_test(older_files),
        cmocka_unit_test(saved_by_transformers),
        cmocka_unit_test(tokens_around_a_text),
        cmocka_unit_test(end_of_text),
        cmocka_unit_test(tokens_beside),
        cmocka_unit_test(beside_as_transformers),
        cmocka_unit_test(newer_characters),
        cmocka_unit_test(unknown_bytes),
        cmocka_unit_test(damaged_files),
        cmocka_unit_test(truncated_files),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
