/* Any text, with a valid tokenizer: decoding the encoded text must give it back byte for byte. Training a
 * tokenizer on the text must end. */
#include "axonn/tokenizer.h"
#include "fuzz/fuzz.h"

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

void fuzz_make_seeds(void)
{
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
    if (part->size <= TRAIN_MOST)
        train(part->data, part->size);
}
