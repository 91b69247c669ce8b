/* Any text, with valid tokenizers of both kinds: decoding the encoded text must give it back byte for byte.
 * Training a tokenizer on the text must end. */
#include "axonn/json.h"
#include "axonn/tokenizer.h"
#include "fuzz/fuzz.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* Trained once, on a file of the source tree. */
static ax_tokenizer *tokenizer(void)
{
    static const char *const specials[] = {"<|endoftext|>"}, *const paths[] = {AXONN_SOURCE_DIR
                                                                               "/CONTRIBUTING.md"};
    static ax_tokenizer *tok;
    ax_tokenizer_training training = {
        .vocab = 600, .specials = specials, .n_specials = 1, .paths = paths, .n_paths = 1, .threads = 1};
    if (!tok)
        FUZZ_HOLDS(ax_tokenizer_train(&training, &tok) == AX_OK);
    return tok;
}

/* One of SentencePiece's kind, from the golden files. */
static ax_tokenizer *text_tokenizer(void)
{
    static ax_tokenizer *tok;
    json_t *golden;
    const json_t *entry;
    size_t i;
    if (tok)
        return tok;
    FUZZ_HOLDS(ax_json_read_file(AXONN_SOURCE_DIR "/tests/golden/tokenizer.json", 0, &golden) == AX_OK);
    json_array_foreach(json_object_get(golden, "variants"), i, entry)
    {
        if (strcmp(json_string_value(json_object_get(entry, "name")), "llama2"))
            continue;
        char *text = json_dumps(json_object_get(entry, "tokenizer"), 0);
        FUZZ_HOLDS(text && ax_tokenizer_load(fuzz_file("tokenizer.json", text, strlen(text)), &tok) == AX_OK);
        free(text);
    }
    json_decref(golden);
    return tok;
}

void fuzz_make_seeds(void)
{
    fuzz_seed_texts((const char *[]){"  the <s> cat\xe2\x96\x81 </s>\xe2\x96 [STRIP]  word", NULL});
    fuzz_seed_texts((const char *[]){"Hello, world! It's 12345 o'clock.\r\n\n  \t end", NULL});
    fuzz_seed_texts((const char *[]){
        "na\xc3\xafve \xe2\x80\x99\xf0\x9f\x98\x80 \xff\xfe\xc0\x80 <|endoftext|> \xed\xa0\x80", NULL});
    fuzz_seed_texts(
        (const char *[]){"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaabbbbbbbbbbbbbbbbbbbbbbbb", NULL});
}

static void there_and_back(ax_encoder *encoder, const char *text, size_t n)
{
    ax_tokenizer_report report = {0};
    if (fuzz_read(ax_tokenizer_check(encoder, text, n, &report)))
        FUZZ_HOLDS(!report.failed && !report.unknown && !report.normalized && report.bytes == (int64_t)n);
    ax_tokenizer_report_fini(&report);
}

/* Decoding token by token must write the same as decoding all tokens at once. */
static void piecewise(const ax_tokenizer *tok, ax_encoder *encoder, const char *text, size_t n)
{
    ax_decoder decoder;
    ax_ids ids = {0};
    ax_buf whole = {0}, pieces = {0};
    ax_decoder_init(&decoder, tok, 0);
    if (fuzz_read(ax_encode(encoder, text, n, AX_ENCODE_PLAIN, &ids)) &&
        fuzz_read(ax_decode(tok, ids.data, ids.size, 0, &whole))) {
        for (size_t i = 0; i < ids.size; i++)
            FUZZ_HOLDS(ax_decoder_push(&decoder, ids.data[i], &pieces) == AX_OK);
        FUZZ_HOLDS(ax_decoder_finish(&decoder, &pieces) == AX_OK);
        FUZZ_HOLDS(whole.size == pieces.size &&
                   (!whole.size || !memcmp(whole.data, pieces.data, whole.size)));
    }
    ax_ids_fini(&ids);
    ax_buf_fini(&whole);
    ax_buf_fini(&pieces);
}

/* With the tokenizer of SentencePiece's kind. It gives the text back if the text has neither U+2581, which
 * decodes to a space, nor an added token, after which a space is added. */
static void text_kind(const char *text, size_t n)
{
    static ax_encoder *encoder;
    static const char *const changing[] = {"\xe2\x96\x81", "<unk>",  "<s>", "</s>",
                                           "[STRIP]",      "<tool>", " x",  "word"};
    bool exact = true;
    for (size_t i = 0; i < AX_COUNT(changing); i++)
        exact = exact && !memmem(text, n, changing[i], strlen(changing[i]));
    if (!encoder)
        FUZZ_HOLDS(ax_encoder_create(text_tokenizer(), &encoder) == AX_OK);
    ax_tokenizer_report report = {0};
    if (fuzz_read(ax_tokenizer_check(encoder, text, n, &report)))
        FUZZ_HOLDS(!report.unknown && (!exact || (!report.failed && !report.normalized)));
    ax_tokenizer_report_fini(&report);
    piecewise(text_tokenizer(), encoder, text, n);
}

static void train(const char *text, size_t n)
{
    static const char *const specials[] = {"<|endoftext|>"};
    ax_tokenizer *tok;
    ax_encoder *encoder;
    const char *path = fuzz_file("text", text, n);
    ax_tokenizer_training training = {
        .vocab = 300, .specials = specials, .n_specials = 1, .paths = &path, .n_paths = 1, .threads = 1};
    if (!fuzz_read(ax_tokenizer_train(&training, &tok)))
        return;
    FUZZ_HOLDS(ax_encoder_create(tok, &encoder) == AX_OK);
    there_and_back(encoder, text, n);
    ax_encoder_destroy(&encoder);
    ax_tokenizer_destroy(&tok);
}

void fuzz_one(const fuzz_part *part, int n)
{
    enum { TRAIN_MOST = 256 }; /* in bytes; training takes longer than reading */
    static ax_encoder *encoder;
    (void)n;
    if (!encoder)
        FUZZ_HOLDS(ax_encoder_create(tokenizer(), &encoder) == AX_OK);
    there_and_back(encoder, part->data, part->size);
    piecewise(tokenizer(), encoder, part->data, part->size);
    text_kind(part->data, part->size);
    if (part->size <= TRAIN_MOST)
        train(part->data, part->size);
}
