/* Writes tokenizer.json (from vocabulary, merges and added tokens) and tokenizer_config.json, in the layout
 * of Hugging Face `tokenizers`. Also loads GPT-2's older pair of files, vocab.json and merges.txt, by
 * converting them to a tokenizer.json. */
#include "token/tok.h"

#include <stdlib.h>
#include <string.h>

static ax_status dump_and_release(json_t *root, char **text, size_t *size)
{
    *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    AX_CHECK(*text, AX_ERR_MEMORY, "not enough memory to write the tokenizer as JSON");
    *size = strlen(*text);
    return AX_OK;
}

json_t *tok_added_json(int32_t id, const char *content, bool special)
{
    return json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", (int)id, "content", content, "single_word",
                     0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", (int)special);
}

static json_t *byte_level(bool prefix_space, bool use_regex)
{
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", (int)prefix_space,
                     "trim_offsets", 1, "use_regex", (int)use_regex);
}

static json_t *pre_tokenizer(const char *pattern, bool prefix_space)
{
    if (!strcmp(pattern, "gpt2")) /* GPT-2's pattern is built into the pre-tokenizer ByteLevel */
        return byte_level(prefix_space, true);
    return json_pack("{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, o]}", "type", "Sequence", "pretokenizers", "type",
                     "Split", "pattern", "Regex", tok_pattern_named(pattern), "behavior", "Isolated",
                     "invert", 0, byte_level(prefix_space, false));
}

ax_status tok_write_json(const char *pattern, bool prefix_space, json_t *vocab, json_t *merges, json_t *added,
                         char **text, size_t *size)
{
    json_t *normalizer = strcmp(pattern, "qwen2") ? json_null() : json_pack("{s:s}", "type", "NFC");
    json_t *model = json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:O, s:O}", "type", "BPE", "dropout",
                              "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
                              "byte_fallback", 0, "ignore_merges", 0, "vocab", vocab, "merges", merges);
    return dump_and_release(json_pack("{s:s, s:n, s:n, s:O, s:o, s:o, s:n, s:o, s:o}", "version", "1.0",
                                      "truncation", "padding", "added_tokens", added, "normalizer",
                                      normalizer, "pre_tokenizer", pre_tokenizer(pattern, prefix_space),
                                      "post_processor", "decoder", byte_level(true, true), "model", model),
                            text, size);
}

ax_status tok_write_config(const char *eos, char **text, size_t *size)
{
    json_t *root = json_pack("{s:s, s:b}", "tokenizer_class", "PreTrainedTokenizerFast",
                             "clean_up_tokenization_spaces", 0);
    if (root && eos && json_object_set_new(root, "eos_token", json_string(eos))) {
        json_decref(root);
        root = NULL;
    }
    return dump_and_release(root, text, size);
}

/* ---- vocab.json and merges.txt ---- */

/* Appends the lines of the file `path`, a merges.txt, to `merges`, except the file's version line. */
static ax_status read_merges(const char *path, json_t *merges)
{
    char *text, *rest = NULL;
    size_t size;
    AX_TRY(ax_file_read(path, &text, &size));
    ax_status status = AX_OK;
    for (char *line = strtok_r(text, "\r\n", &rest); line && status == AX_OK;
         line = strtok_r(NULL, "\r\n", &rest))
        if ((strncmp(line, "#version", 8) || line != text) &&
            json_array_append_new(merges, json_string(line)))
            status = ax_fail(AX_ERR_DATA,
                             "%s: the line \"%.40s\" is not UTF-8, or there is not enough memory for it",
                             path, line);
    free(text);
    return status;
}

/* Checks that the tokenizer splits text by GPT-2's regular expression. vocab.json and merges.txt do not tell
 * the expression, but tokenizer_config.json does: it must name the class of GPT-2's tokenizer, or no
 * class. */
static ax_status check_class(const char *path, const json_t *config)
{
    const char *name = json_string_value(json_object_get(config, "tokenizer_class"));
    AX_CHECK(!name || !strncmp(name, "GPT2Tokenizer", 13), AX_ERR_DATA,
             "%s: tokenizer class %s needs a pattern that vocab.json and merges.txt do not contain; add a "
             "tokenizer.json",
             path, name);
    return AX_OK;
}

/* Fails if added_tokens.json has tokens that vocab.json lacks. Further files, which this program does not
 * read, say which of these tokens are special; a tokenizer.json says it itself. */
static ax_status refuse_added_tokens(const char *path, const json_t *vocab)
{
    json_t *added;
    const json_t *id;
    const char *name, *missing = NULL;
    if (!ax_path_is_given(path))
        return AX_OK;
    AX_TRY(ax_json_read_file(path, 0, &added));
    json_object_foreach(added, name, id)
    {
        if (!json_object_get(vocab, name))
            missing = name;
    }
    ax_status status =
        missing
            ? ax_fail(
                  AX_ERR_DATA,
                  "%s: token \"%s\" is not in vocab.json: let transformers write a tokenizer.json with it "
                  "(AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR))",
                  path, missing)
            : AX_OK;
    json_decref(added);
    return status;
}

static ax_status gpt2_json(const char *paths[4], char **text, size_t *size)
{
    json_t *vocab, *config = NULL;
    AX_TRY(ax_json_read_file(paths[0], 0, &vocab));
    json_t *merges = json_array(), *added = json_array();
    ax_status status = merges && added ? read_merges(paths[1], merges)
                                       : ax_fail(AX_ERR_MEMORY, "not enough memory to read %s", paths[0]);
    if (status == AX_OK && ax_path_is_given(paths[2])) {
        status = ax_json_read_file(paths[2], 0, &config);
        if (status == AX_OK)
            status = check_class(paths[2], config);
    }
    if (status == AX_OK)
        status = refuse_added_tokens(paths[3], vocab);
    const json_t *end = json_object_get(vocab, "<|endoftext|>");
    if (status == AX_OK && end &&
        json_array_append_new(added, tok_added_json((int32_t)json_integer_value(end), "<|endoftext|>", true)))
        status = ax_fail(AX_ERR_MEMORY, "not enough memory to read %s", paths[0]);
    if (status == AX_OK)
        status = tok_write_json("gpt2", json_is_true(json_object_get(config, "add_prefix_space")), vocab,
                                merges, added, text, size);
    json_decref(vocab);
    json_decref(merges);
    json_decref(added);
    json_decref(config);
    return status;
}

ax_status tok_refuse_sentencepiece(const char *dir)
{
    return ax_fail(
        AX_ERR_DATA,
        "%s has a tokenizer.model (SentencePiece) but no tokenizer.json, the file that is read here. "
        "Python packages transformers, sentencepiece and protobuf make one: python3 -c \"from "
        "transformers import AutoTokenizer as T; T.from_pretrained('%s').save_pretrained('%s')\"",
        dir, dir, dir);
}

/* Fails, because `dir` contains neither tokenizer.json nor GPT-2's vocab.json and merges.txt. */
static ax_status refuse_directory(const char *dir)
{
    if (ax_dir_has(dir, "tokenizer.model"))
        return tok_refuse_sentencepiece(dir);
    AX_CHECK(
        !ax_dir_has(dir, "tekken.json"), AX_ERR_DATA,
        "%s has a tekken.json (the tokenizer of Mistral's own programs) but no tokenizer.json, the file that "
        "is "
        "read here: get that file from the model's page (hf download ORG/NAME tokenizer.json --local-dir %s)",
        dir, dir);
    return ax_fail(AX_ERR_DATA,
                   "%s holds no tokenizer: neither tokenizer.json nor vocab.json with merges.txt", dir);
}

ax_status tok_load_gpt2_files(const char *dir, ax_tokenizer **out)
{
    static const char *const names[] = {"vocab.json", "merges.txt", "tokenizer_config.json",
                                        "added_tokens.json"};
    char *paths[4] = {0}, *json = NULL, *config = NULL;
    size_t json_size = 0, config_size = 0;
    ax_status status = AX_OK;
    for (size_t i = 0; i < AX_COUNT(paths) && status == AX_OK; i++)
        status = ax_path_join(dir, names[i], &paths[i]);
    if (status == AX_OK && (!ax_path_exists(paths[0]) || !ax_path_exists(paths[1])))
        status = refuse_directory(dir);
    if (status == AX_OK)
        status = gpt2_json((const char *[]){paths[0], paths[1], paths[2], paths[3]}, &json, &json_size);
    if (status == AX_OK && ax_path_is_given(paths[2]))
        status = ax_file_read(paths[2], &config, &config_size);
    if (status == AX_OK)
        status = tok_parse(paths[0], NULL, json, json_size, config, config_size, out);
    else
        free(json);
    for (size_t i = 0; i < AX_COUNT(paths); i++)
        free(paths[i]);
    return status;
}
