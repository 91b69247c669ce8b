/* data: training the tokenizer: results computed by hand, comparison with Hugging Face's trainer, the same
 * result for any threads and chunks, and options that are refused. */
#include "axonn/tokenizer.h"

#include "support/sanitized.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Supplies documents to ax_tokenizer_training.next. */
typedef struct supply {
    const char *const *documents;
    size_t n, at;
} supply;

static ax_status next_document(void *arg, ax_buf *doc, bool *end)
{
    supply *s = arg;
    *end = s->at == s->n;
    if (*end)
        return AX_OK;
    const char *text = s->documents[s->at++];
    return ax_buf_add(doc, text, strlen(text));
}

static ax_tokenizer *train_on(const char *text, int32_t vocab)
{
    supply s = {&text, 1, 0};
    ax_tokenizer_training training = {.vocab = vocab, .next = next_document, .next_arg = &s};
    ax_tokenizer *tok;
    assert_int_equal(ax_tokenizer_train(&training, &tok), AX_OK);
    return tok;
}

/* The pieces are "low" and " low" x3, "er", "est" attached: l-o 5, o-w 5 (l-o first: smaller ids), then
 * " "-low 4, " low"-e 2; of the pairs met once s-t has the smallest ids, then " lowe"-r, then " lowe"-st. */
static void by_hand(void **state)
{
    (void)state;
    static const char *const want[] = {"lo", "low", " low", " lowe", "st", " lower", " lowest"};
    ax_tokenizer *tok = train_on("low low low lower lowest", 256 + (int32_t)AX_COUNT(want));
    assert_int_equal(ax_tokenizer_vocab_size(tok), 256 + AX_COUNT(want));
    for (size_t i = 0; i < AX_COUNT(want); i++) {
        size_t n;
        const char *piece = ax_tokenizer_piece(tok, 256 + (int32_t)i, &n);
        assert_int_equal(n, strlen(want[i]));
        assert_memory_equal(piece, want[i], n);
    }
    assert_int_equal(ax_tokenizer_eos(tok), -1);
    ax_tokenizer_destroy(&tok);
}

/* Pairs that overlap: "aaaaa" is merged from the left, aa aa a; then aa-a precedes aa-aa, having smaller ids.
 */
static void overlapping_pairs(void **state)
{
    (void)state;
    ax_tokenizer *tok = train_on("aaaaa", 256 + 3);
    static const char *const want[] = {"aa", "aaa", "aaaaa"};
    for (size_t i = 0; i < AX_COUNT(want); i++)
        assert_int_equal(ax_tokenizer_id(tok, want[i], strlen(want[i])), 256 + i);
    ax_tokenizer_destroy(&tok);
}

/* If nothing is left to merge, the vocabulary stays smaller than requested, and the tokenizer is valid. */
static void little_text(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "a", "\xFF\xFF", "ab"};
    for (size_t i = 0; i < AX_COUNT(texts); i++) {
        ax_tokenizer *tok = train_on(texts[i], 1000);
        assert_int_equal(ax_tokenizer_vocab_size(tok), i == 3 ? 257 : 256);
        ax_tokenizer_destroy(&tok);
    }
}

/* For the variants that Hugging Face's trainer made from the corpus of the golden file, our trainer makes the
 * same: vocabulary, merges and their order, pattern, special tokens. */
static void same_as_hugging_face(void **state)
{
    (void)state;
    char dir[] = "/tmp/axonn-train-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    json_t *golden = json_load_file(AXONN_SOURCE_DIR "/tests/golden/tokenizer.json", 0, NULL), *entry, *item;
    assert_non_null(golden);
    const char *documents[16];
    size_t n = 0, i;
    json_array_foreach(json_object_get(golden, "corpus"), i, item) documents[n++] = json_string_value(item);
    int compared = 0;
    json_array_foreach(json_object_get(golden, "variants"), i, entry)
    {
        const char *const special = "<|endoftext|>";
        supply s = {documents, n, 0};
        ax_tokenizer_training training = {.vocab =
                                              (int32_t)json_integer_value(json_object_get(golden, "vocab")),
                                          .pattern = json_string_value(json_object_get(entry, "trains_as")),
                                          .specials = &special,
                                          .n_specials = 1,
                                          .next = next_document,
                                          .next_arg = &s};
        if (!training.pattern)
            continue;
        ax_tokenizer *ours, *theirs;
        assert_int_equal(json_dump_file(json_object_get(entry, "tokenizer"), path, 0), 0);
        assert_int_equal(ax_tokenizer_load(path, &theirs), AX_OK);
        assert_int_equal(ax_tokenizer_train(&training, &ours), AX_OK);
        assert_true(ax_tokenizer_hash(ours) == ax_tokenizer_hash(theirs));
        assert_int_equal(ax_tokenizer_save(ours, dir), AX_OK);
        ax_tokenizer_destroy(&theirs);
        assert_int_equal(ax_tokenizer_load(dir, &theirs), AX_OK);
        assert_true(ax_tokenizer_hash(ours) == ax_tokenizer_hash(theirs));
        ax_tokenizer_destroy(&ours);
        ax_tokenizer_destroy(&theirs);
        compared++;
    }
    assert_int_equal(compared, 3);
    json_decref(golden);
    assert_int_equal(ax_remove_tree(dir), AX_OK);
}

/* Makes random words; without `newlines` there is no place to cut the file into chunks. */
static char *random_text(size_t n, bool newlines)
{
    char *text = malloc(n + 1);
    static const char letters[] = "etaoinshrdlu.,'0";
    uint32_t r[4] = {0};
    for (size_t i = 0; i < n; i++) {
        if (i % 4 == 0)
            ax_philox(3, newlines, i, r);
        uint32_t x = r[i % 4];
        text[i] = x % 3 ? letters[(x >> 8) % 16 & (x >> 16) % 16] : newlines && x % 21 == 0 ? '\n' : ' ';
    }
    text[n] = 0;
    return text;
}

/* A file of several chunks gives the same result with one thread, with several, and supplied as one document;
 * also if it has no places to cut it. */
static void independent_of_readers(void **state)
{
    (void)state;
    enum { N = (SANITIZED ? 5 : 9) << 20 }; /* chunks have 4 MiB */
    char dir[] = "/tmp/axonn-train-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/text", dir);
    const char *const paths[] = {path};
    static const char *const names[] = {"gpt2", "llama3", "qwen2"};
    for (int newlines = 0; newlines < 2; newlines++) {
        char *text = random_text(N, newlines);
        assert_int_equal(ax_file_write_atomic(path, text, N), AX_OK);
        for (size_t k = newlines ? 0 : 2; k < (newlines ? 2 - SANITIZED : AX_COUNT(names)); k++) {
            supply s = {(const char *const *)&text, 1, 0};
            uint64_t hash[3];
            for (int way = 0; way < 3; way++) {
                ax_tokenizer_training training = {.vocab = 600, .pattern = names[k], .threads = way ? 3 : 1};
                if (way < 2) {
                    training.paths = paths;
                    training.n_paths = 1;
                } else {
                    training.next = next_document;
                    training.next_arg = &s;
                }
                ax_tokenizer *tok;
                assert_int_equal(ax_tokenizer_train(&training, &tok), AX_OK);
                assert_int_equal(ax_tokenizer_vocab_size(tok), 600);
                hash[way] = ax_tokenizer_hash(tok);
                ax_tokenizer_destroy(&tok);
            }
            assert_true(hash[0] == hash[1] && hash[1] == hash[2]);
        }
        free(text);
    }
    assert_int_equal(ax_remove_tree(dir), AX_OK);
}

typedef struct watcher {
    int calls[2], stop_at;
    int64_t last[2], total[2];
} watcher;

static bool watch(void *arg, ax_tokenizer_phase phase, int64_t done, int64_t total)
{
    watcher *w = arg;
    assert_true(done >= w->last[phase] || phase == AX_TOKENIZER_COUNT);
    w->calls[phase]++;
    w->last[phase] = done;
    w->total[phase] = total;
    return (int)phase != w->stop_at;
}

static void progress_and_stop(void **state)
{
    (void)state;
    char dir[] = "/tmp/axonn-train-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/text", dir);
    const char *const paths[] = {path, path};
    char *text = random_text(10000, true);
    assert_int_equal(ax_file_write_atomic(path, text, 10000), AX_OK);
    free(text);
    for (int stop_at = 0; stop_at < 3; stop_at++) {
        watcher w = {.stop_at = stop_at};
        ax_tokenizer_training training = {
            .vocab = 300, .paths = paths, .n_paths = 2, .progress = watch, .progress_arg = &w};
        ax_tokenizer *tok;
        ax_status status = ax_tokenizer_train(&training, &tok);
        assert_int_equal(status, stop_at < 2 ? AX_ERR_SIGNAL : AX_OK);
        if (status == AX_OK) {
            assert_true(w.calls[0] > 0 && w.calls[1] > 0);
            assert_int_equal(w.total[AX_TOKENIZER_COUNT], 20000);
            assert_int_equal(w.last[AX_TOKENIZER_COUNT], 20000);
            assert_int_equal(w.last[AX_TOKENIZER_MERGE], 300);
        }
        ax_tokenizer_destroy(&tok);
    }
    assert_int_equal(ax_remove_tree(dir), AX_OK);
}

static ax_status failing_supply(void *arg, ax_buf *doc, bool *end)
{
    (void)arg;
    (void)doc;
    (void)end;
    return ax_fail(AX_ERR_DATA, "line 7 of x.jsonl has no text");
}

static void refused(void **state)
{
    (void)state;
    static const char *const specials[] = {"<|a|>", "<|b|>"}, *const twice[] = {"<|a|>", "<|a|>"};
    static const char *const byte[] = {"!"}, *const empty[] = {""}, *const missing[] = {"/nowhere/text"};
    static const char *const directory[] = {"/tmp"};
    supply s = {NULL, 0, 0};
    const struct {
        ax_tokenizer_training training;
        ax_status status;
        const char *says;
    } cases[] = {
        {{.vocab = 257}, AX_ERR_USAGE, "no text"},
        {{.vocab = 255, .next = next_document, .next_arg = &s}, AX_ERR_USAGE, "too small"},
        {{.vocab = -1, .next = next_document, .next_arg = &s}, AX_ERR_USAGE, "too small"},
        {{.vocab = 257, .specials = specials, .n_specials = 2, .next = next_document, .next_arg = &s},
         AX_ERR_USAGE,
         "at least 258"},
        {{.vocab = 1 << 30, .next = next_document, .next_arg = &s}, AX_ERR_USAGE, "too large"},
        {{.vocab = 300, .pattern = "gpt3", .next = next_document, .next_arg = &s}, AX_ERR_USAGE, "gpt3"},
        {{.vocab = 300, .specials = twice, .n_specials = 2, .next = next_document, .next_arg = &s},
         AX_ERR_USAGE,
         "twice"},
        {{.vocab = 300, .specials = empty, .n_specials = 1, .next = next_document, .next_arg = &s},
         AX_ERR_USAGE,
         "empty"},
        {{.vocab = 300, .specials = byte, .n_specials = 1, .next = next_document, .next_arg = &s},
         AX_ERR_USAGE,
         "single character"},
        {{.vocab = 300,
          .specials = specials,
          .n_specials = 2,
          .eos = "<|c|>",
          .next = next_document,
          .next_arg = &s},
         AX_ERR_USAGE,
         "<|c|>"},
        {{.vocab = 300, .paths = missing, .n_paths = 1}, AX_ERR_DATA, "/nowhere/text"},
        {{.vocab = 300, .paths = directory, .n_paths = 1}, AX_ERR_DATA, "directory"},
        {{.vocab = 300, .next = failing_supply, .threads = 3}, AX_ERR_DATA, "line 7 of x.jsonl"},
    };
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        ax_tokenizer *tok;
        ax_status status = ax_tokenizer_train(&cases[i].training, &tok);
        if (status != cases[i].status || !strstr(ax_error_message(), cases[i].says))
            fail_msg("case %zu: %s, %s", i, ax_status_name(status), ax_error_message());
        assert_null(tok);
    }
}

/* Special tokens come first, in the given order. The end-of-text token is <|endoftext|>, or the one chosen.
 */
static void special_tokens(void **state)
{
    (void)state;
    static const char *const specials[] = {"<|pad|>", "<|endoftext|>", "a b\xC3\xA9"};
    static const char *const eos[] = {NULL, "<|pad|>", "a b\xC3\xA9"};
    static const int32_t ids[] = {1, 0, 2};
    const char *text = "some text, some text";
    for (size_t k = 0; k < AX_COUNT(eos); k++) {
        supply s = {&text, 1, 0};
        ax_tokenizer_training training = {.vocab = 262,
                                          .specials = specials,
                                          .n_specials = 3,
                                          .eos = eos[k],
                                          .next = next_document,
                                          .next_arg = &s};
        ax_tokenizer *tok;
        ax_encoder *encoder;
        ax_ids out = {0};
        assert_int_equal(ax_tokenizer_train(&training, &tok), AX_OK);
        assert_int_equal(ax_tokenizer_eos(tok), ids[k]);
        assert_int_equal(ax_encoder_create(tok, &encoder), AX_OK);
        for (int32_t i = 0; i < 3; i++) {
            assert_int_equal(ax_encode(encoder, specials[i], strlen(specials[i]), 0, &out), AX_OK);
            assert_int_equal(out.size, i + 1);
            assert_int_equal(out.data[i], i);
            assert_true(ax_tokenizer_is_special(tok, i));
        }
        ax_ids_fini(&out);
        ax_encoder_destroy(&encoder);
        ax_tokenizer_destroy(&tok);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),
        cmocka_unit_test(overlapping_pairs),
        cmocka_unit_test(little_text),
        cmocka_unit_test(same_as_hugging_face),
        cmocka_unit_test(independent_of_readers),
        cmocka_unit_test(progress_and_stop),
        cmocka_unit_test(refused),
        cmocka_unit_test(special_tokens),
    };
    ax_log_set_level(AX_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
