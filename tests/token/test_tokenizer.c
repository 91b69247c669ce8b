/* data: the tokenizer compared with Hugging Face's, on files with every supported feature; round trips;
 * streaming. test_tokenizer_files.c tests its files, test_tokenizer_classes.c where patterns cut,
 * test_tokenizer_train.c training. */
#include "token/tok.h"
#include "token/tokenizer_test.h"

static void compare(const char *name, const char *text, const ax_ids *ids, const json_t *want)
{
    bool equal = ids->size == json_array_size(want);
    for (size_t i = 0; i < ids->size && equal; i++)
        equal = ids->data[i] == json_integer_value(json_array_get(want, i));
    if (equal)
        return;
    for (size_t i = 0; i < ids->size; i++)
        print_error("%d ", ids->data[i]);
    fail_msg("%s: other ids for \"%s\"", name, text);
}

/* Decoding gives Hugging Face's text, where it is all of the text: Hugging Face's has U+FFFD for bytes that
 * are not UTF-8. Decoding the first ids and then the others gives the same, and so does decoding id by id. */
static void compare_text(const char *name, const ax_tokenizer *tok, const ax_ids *ids, const char *want,
                         size_t n)
{
    ax_buf whole = {0}, parts = {0}, pushed = {0};
    ax_decoder decoder;
    assert_int_equal(ax_decode(tok, ids->data, ids->size, 0, &whole), AX_OK);
    if (!strstr(want, "\xEF\xBF\xBD") && (whole.size != n || (n && memcmp(whole.data, want, n))))
        fail_msg("%s: decoded \"%.*s\", not \"%s\"", name, (int)whole.size, whole.data, want);
    ax_decoder_init(&decoder, tok, 0);
    for (size_t i = 0; i < ids->size; i++) {
        assert_int_equal(ax_decoder_push(&decoder, ids->data[i], &pushed), AX_OK);
        parts.size = 0;
        assert_int_equal(ax_decode(tok, ids->data, i + 1, 0, &parts), AX_OK);
        assert_int_equal(ax_decode(tok, ids->data + i + 1, ids->size - i - 1, AX_DECODE_CONTINUE, &parts),
                         AX_OK);
        if (parts.size != whole.size || (whole.size && memcmp(parts.data, whole.data, whole.size)))
            fail_msg("%s: \"%s\" decoded in two parts, %zu ids first: \"%.*s\"", name, want, i + 1,
                     (int)parts.size, parts.data);
    }
    assert_int_equal(ax_decoder_finish(&decoder, &pushed), AX_OK);
    assert_int_equal(pushed.size, whole.size);
    if (whole.size)
        assert_memory_equal(pushed.data, whole.data, whole.size);
    ax_buf_fini(&whole);
    ax_buf_fini(&parts);
    ax_buf_fini(&pushed);
}

/* Every variant of the golden file gives Hugging Face's ids, twice (the second time from the cache), and
 * their text. */
static void same_ids_as_hugging_face(void **state)
{
    const fixture *f = *state;
    size_t v, i;
    const json_t *entry, *item;
    json_array_foreach(json_object_get(f->golden, "variants"), v, entry)
    {
        const char *name = json_string_value(json_object_get(entry, "name"));
        ax_tokenizer *tok;
        ax_encoder *encoder;
        ax_ids ids = {0};
        assert_int_equal(load_value(f, json_object_get(entry, "tokenizer"), &tok), AX_OK);
        assert_int_equal(ax_encoder_create(tok, &encoder), AX_OK);
        for (int round = 0; round < 2; round++)
            json_array_foreach(json_object_get(entry, "cases"), i, item)
            {
                /* A case has the ids, those with special tokens (null: the same), and the text that they
                 * decode to (missing: the text itself). */
                const json_t *text = json_array_get(json_object_get(f->golden, "texts"), i);
                const json_t *whole = json_array_get(item, 1), *back = json_array_get(item, 2);
                for (unsigned special = 2; special--;) {
                    ids.size = 0;
                    assert_int_equal(ax_encode(encoder, json_string_value(text), json_string_length(text),
                                               special ? AX_ENCODE_ADD_SPECIAL : 0, &ids),
                                     AX_OK);
                    compare(name, json_string_value(text), &ids,
                            special && json_is_array(whole) ? whole : json_array_get(item, 0));
                }
                back = back ? back : text;
                if (!round)
                    compare_text(name, tok, &ids, json_string_value(back), json_string_length(back));
            }
        ax_ids_fini(&ids);
        ax_encoder_destroy(&encoder);
        ax_tokenizer_destroy(&tok);
    }
}

static void questions(void **state)
{
    const fixture *f = *state;
    size_t n;
    assert_int_equal(ax_tokenizer_vocab_size(f->tok),
                     json_integer_value(json_object_get(f->golden, "vocab")));
    assert_int_equal(ax_tokenizer_eos(f->tok), 0);
    assert_int_equal(ax_tokenizer_id(f->tok, "<|endoftext|>", 13), 0);
    assert_int_equal(ax_tokenizer_id(f->tok, "!", 1),
                     1); /* the first printable byte follows the special token */
    assert_int_equal(ax_tokenizer_id(f->tok, "no such token", 13), -1);
    assert_int_equal(ax_tokenizer_id(f->tok, "", 0), -1);
    int32_t the = ax_tokenizer_id(f->tok, " the", 4);
    assert_true(the > 256);
    const char *piece = ax_tokenizer_piece(f->tok, the, &n);
    assert_int_equal(n, 4);
    assert_memory_equal(piece, " the", 4);
    assert_null(ax_tokenizer_piece(f->tok, -1, &n));
    assert_null(ax_tokenizer_piece(f->tok, ax_tokenizer_vocab_size(f->tok), &n));
    assert_true(ax_tokenizer_is_special(f->tok, 0));
    assert_false(ax_tokenizer_is_special(f->tok, the));
}

static void flags(void **state)
{
    const fixture *f = *state;
    const char text[] = "a<|endoftext|>b";
    ax_ids ids = {0};
    ax_buf out = {0};
    assert_int_equal(ax_encode(f->encoder, text, strlen(text), 0, &ids), AX_OK);
    assert_int_equal(ids.size, 3);
    assert_int_equal(ids.data[1], 0);
    assert_int_equal(ax_decode(f->tok, ids.data, ids.size, AX_DECODE_SKIP_SPECIAL, &out), AX_OK);
    assert_string_equal(out.data, "ab");
    ids.size = out.size = 0;
    assert_int_equal(ax_encode(f->encoder, text, strlen(text), AX_ENCODE_PLAIN, &ids), AX_OK);
    assert_true(ids.size > 3);
    for (size_t i = 0; i < ids.size; i++)
        assert_true(ids.data[i] > 0);
    assert_int_equal(ax_decode(f->tok, ids.data, ids.size, 0, &out), AX_OK);
    assert_string_equal(out.data, text);
    const int32_t bad[] = {1, 100000};
    assert_int_equal(ax_decode(f->tok, bad, 2, 0, &out), AX_ERR_DATA);
    assert_non_null(strstr(ax_error_message(), "100000"));
    ax_ids_fini(&ids);
    ax_buf_fini(&out);
}

/* Round trips of random bytes, random ASCII, random characters and pieces of all of these, in each variant
 * that can return its input: decoding returns the input, or the input normalized. */
static void round_trips(void **state)
{
    const fixture *f = *state;
    enum { DOCUMENTS = 150, LONGEST = 400 };
    static const char *const names[] = {
        "gpt2",         "llama3",      "qwen2",  "ignore_merges, template", "prefix space, added tokens",
        "three splits", "end of line", "llama2", "metaspace first",         "words joined"};
    for (size_t k = 0; k < AX_COUNT(names); k++) {
        size_t v = variant_named(f, names[k]);
        ax_tokenizer *tok;
        ax_encoder *encoder;
        ax_tokenizer_report report = {0};
        int64_t bytes = 0;
        assert_int_equal(load_value(f, json_object_get(variant(f, v), "tokenizer"), &tok), AX_OK);
        assert_int_equal(ax_encoder_create(tok, &encoder), AX_OK);
        for (uint64_t d = 0; d < DOCUMENTS; d++) {
            unsigned char text[LONGEST];
            uint32_t r[4];
            ax_philox(v, d, 0, r);
            size_t n = r[0] % LONGEST;
            for (size_t i = 0; i < n; i++) {
                ax_philox(v, d, i + 1, r);
                text[i] = r[1] % 4 < d % 5 ? (unsigned char)r[0] : (unsigned char)"ab 1\n'"[r[0] % 6];
                if (r[2] % 40 == 0 && n - i > 13)
                    memcpy(text + i, "<|endoftext|>", 13), i += 12;
                else if (r[2] % 8 == 0 && n - i > 4)
                    memcpy(text + i, "\xF0\x9F\x98\x80", 4), i += 3;
            }
            bytes += (int64_t)n;
            assert_int_equal(ax_tokenizer_check(encoder, (const char *)text, n, &report), AX_OK);
        }
        assert_int_equal(report.documents, DOCUMENTS);
        assert_int_equal(report.bytes, bytes);
        assert_int_equal(report.unknown, 0);
        assert_true(report.invalid_bytes > 0 && report.tokens > 0 && report.tokens_used > 200);
        if (report.failed && strcmp(names[k], "prefix space, added tokens")) /* which absorb white space */
            fail_msg("variant %zu: document %d differs at byte %d", v, (int)report.first_failed,
                     (int)report.first_failed_byte);
        ax_tokenizer_report_fini(&report);
        ax_encoder_destroy(&encoder);
        ax_tokenizer_destroy(&tok);
    }
}

/* Text in the normal form NFC as Hugging Face's library has it. A Hangul syllable composes with a trailing
 * consonant, U+11A8 to U+11C2, but not with U+11A7. Marks are reordered if Unicode 9 has them (U+0323), but
 * not if they are newer (U+11A34, of Unicode 10). */
static void normal_form(void **state)
{
    const fixture *f = *state;
    static const struct {
        const char *text, *normal;
    } cases[] = {{"\xED\x81\x90\xE1\x86\xA7", NULL},
                 {"\xED\x81\x90\xE1\x86\xA8", "\xED\x81\x91"},
                 {"e\xCC\x81\xE1\x86\xA7\xCC\x81\xED\x81\x90\xE1\x86\xA7",
                  "\xC3\xA9\xE1\x86\xA7\xCC\x81\xED\x81\x90\xE1\x86\xA7"},
                 {"q\xCD\x85\xCC\xA3", "q\xCC\xA3\xCD\x85"},
                 {"q\xCD\x85\xF0\x91\xA8\xB4\xCD\x85\xCC\xA3", "q\xCD\x85\xF0\x91\xA8\xB4\xCC\xA3\xCD\x85"}};
    ax_tokenizer *tok;
    ax_encoder *encoder;
    assert_int_equal(load_value(f, json_object_get(variant(f, variant_named(f, "qwen2")), "tokenizer"), &tok),
                     AX_OK);
    assert_int_equal(ax_encoder_create(tok, &encoder), AX_OK);
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        const char *want = cases[i].normal ? cases[i].normal : cases[i].text;
        ax_ids ids = {0};
        ax_buf back = {0};
        assert_int_equal(ax_encode(encoder, cases[i].text, strlen(cases[i].text), 0, &ids), AX_OK);
        assert_int_equal(ax_decode(tok, ids.data, ids.size, 0, &back), AX_OK);
        assert_int_equal(back.size, strlen(want));
        assert_memory_equal(back.data, want, back.size);
        ax_ids_fini(&ids);
        ax_buf_fini(&back);
    }
    ax_encoder_destroy(&encoder);
    ax_tokenizer_destroy(&tok);
}

/* A byte that is not UTF-8 is a piece of its own; the text before it is cut as at the end of a text. */
static void invalid_bytes(void **state)
{
    const fixture *f = *state;
    static const struct {
        const char *text;
        size_t n, invalid;
    } cases[] = {{"the\xFFthe", 7, 1},
                 {"\x80", 1, 1},
                 {"\xC0\xAF", 2, 2},
                 {"\xED\xA0\x80", 3, 3},
                 {"\xF4\x90\x80\x80", 4, 4},
                 {"\xE2\x82", 2, 2},
                 {"a\0b\xE2\x82\xAC", 6, 0},
                 {"\xF0\x9F\x98\x80\xF0\x9F\x98", 7, 3},
                 {"\xE0\x9F\xBF\xC2\xA0", 5, 3}};
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        ax_tokenizer_report report = {0};
        assert_int_equal(ax_tokenizer_check(f->encoder, cases[i].text, cases[i].n, &report), AX_OK);
        assert_int_equal(report.invalid_bytes, cases[i].invalid);
        assert_int_equal(report.failed + report.normalized, 0);
        ax_tokenizer_report_fini(&report);
    }
    ax_ids ids = {0};
    assert_int_equal(ax_encode(f->encoder, "the\xFFthe", 7, 0, &ids), AX_OK);
    int32_t the = ax_tokenizer_id(f->tok, "the", 3);
    const int32_t want[] = {the, ax_tokenizer_id(f->tok, "\xFF", 1), the};
    assert_true(the >= 0);
    assert_int_equal(ids.size, 3);
    assert_memory_equal(ids.data, want, sizeof want);
    ax_ids_fini(&ids);
}

/* A megabyte that no pattern cuts: an algorithm of quadratic cost would take hours. */
static void long_pieces(void **state)
{
    const fixture *f = *state;
    enum { N = 1 << 20 };
    char *text = malloc(N);
    for (const char *c = "a \n-\xFF"; *c; c++) {
        ax_tokenizer_report report = {0};
        memset(text, *c, N);
        assert_int_equal(ax_tokenizer_check(f->encoder, text, N, &report), AX_OK);
        assert_int_equal(report.bytes, N);
        assert_int_equal(report.failed, 0);
        ax_tokenizer_report_fini(&report);
    }
    free(text);
}

/* The same for a document that is one piece, of which nothing is cut off (letters that merges join), or of
 * which characters are cut off. */
static void long_documents(void **state)
{
    const fixture *f = *state;
    enum { N = 1 << 20 };
    char *text = malloc(N);
    ax_tokenizer *tok;
    ax_encoder *encoder;
    assert_int_equal(
        load_value(f, json_object_get(variant(f, variant_named(f, "merged bytes")), "tokenizer"), &tok),
        AX_OK);
    assert_int_equal(ax_encoder_create(tok, &encoder), AX_OK);
    for (const char *c = "a \n-\x01"; *c; c++) {
        ax_tokenizer_report report = {0};
        memset(text, *c, N);
        assert_int_equal(ax_tokenizer_check(encoder, text, N, &report), AX_OK);
        assert_int_equal(report.bytes, N);
        assert_int_equal(report.failed + report.normalized, 0);
        ax_tokenizer_report_fini(&report);
    }
    ax_encoder_destroy(&encoder);
    ax_tokenizer_destroy(&tok);
    free(text);
}

/* Bytes that are not UTF-8 become the tokens of these bytes; the text after them gets no space. */
static void invalid_bytes_in_text(void **state)
{
    const fixture *f = *state;
    ax_tokenizer *tok;
    ax_encoder *encoder;
    ax_ids ids = {0};
    static const char *const names[] = {"llama2", "metaspace first", "metaspace always, split"};
    for (size_t k = 0; k < AX_COUNT(names); k++) {
        ids.size = 0;
        assert_int_equal(
            load_value(f, json_object_get(variant(f, variant_named(f, names[k])), "tokenizer"), &tok), AX_OK);
        assert_int_equal(ax_encoder_create(tok, &encoder), AX_OK);
        assert_int_equal(ax_encode(encoder,
                                   "a\xFF"
                                   "a\xE2\x96 a",
                                   7, 0, &ids),
                         AX_OK);
        int32_t spaced = ax_tokenizer_id(tok,
                                         "\xE2\x96\x81"
                                         "a",
                                         4),
                plain = ax_tokenizer_id(tok, "a", 1);
        const int32_t want[] = {spaced, 3 + 0xFF, plain, 3 + 0xE2, 3 + 0x96, spaced};
        assert_true(spaced > 0 && plain > 0);
        assert_int_equal(ids.size, AX_COUNT(want));
        assert_memory_equal(ids.data, want, sizeof want);
        ax_encoder_destroy(&encoder);
        ax_tokenizer_destroy(&tok);
    }
    ax_ids_fini(&ids);
}

/* A prompt and its continuation, as `generate` decodes them: with the special tokens left out, the space
 * before the first word is removed once. */
static void continued_text(void **state)
{
    const fixture *f = *state;
    ax_tokenizer *tok;
    ax_decoder decoder;
    ax_buf out = {0};
    assert_int_equal(
        load_value(f, json_object_get(variant(f, variant_named(f, "llama2")), "tokenizer"), &tok), AX_OK);
    int32_t a = ax_tokenizer_id(tok,
                                "\xE2\x96\x81"
                                "a",
                                4),
            start = ax_tokenizer_id(tok, "<s>", 3);
    const int32_t ids[] = {start, a, a};
    size_t n;
    assert_int_equal(*ax_tokenizer_piece(tok, 3 + '\n', &n), '\n');
    assert_int_equal(n, 1);
    for (int whole = 0; whole < 2; whole++) {
        out.size = 0;
        ax_decoder_init(&decoder, tok, AX_DECODE_SKIP_SPECIAL | (whole ? 0 : AX_DECODE_CONTINUE));
        for (size_t i = 0; i < AX_COUNT(ids); i++)
            assert_int_equal(ax_decoder_push(&decoder, ids[i], &out), AX_OK);
        assert_int_equal(ax_decoder_finish(&decoder, &out), AX_OK);
        assert_int_equal(ax_decoder_push(&decoder, a, &out), AX_OK); /* another text */
        assert_string_equal(out.data, whole ? "a aa" : " a a a");
    }
    ax_buf_fini(&out);
    ax_tokenizer_destroy(&tok);
}

/* Decoding byte by byte returns whole characters only; bytes that can no longer become one are returned at
 * once. */
static void streaming(void **state)
{
    const fixture *f = *state;
    static const struct {
        const char *bytes, *held; /* bytes held back after each byte */
    } cases[] = {{"a\xC3\xA9z", "0100"}, {"\xF0\x9F\x98\x80!", "12300"}, {"\xE2\x82x", "120"},
                 {"\xC0\x80", "00"},     {"\xED\xA0\x80", "100"},        {"\xF4\x90", "10"},
                 {"\xE0\x80", "10"},     {"\xC3\xC3\xA9", "110"}};
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        ax_decoder decoder;
        ax_buf out = {0};
        ax_decoder_init(&decoder, f->tok, 0);
        for (size_t k = 0; cases[i].bytes[k]; k++) {
            assert_int_equal(ax_decoder_push(&decoder, ax_tokenizer_id(f->tok, cases[i].bytes + k, 1), &out),
                             AX_OK);
            assert_int_equal(out.size, k + 1 - (size_t)(cases[i].held[k] - '0'));
        }
        assert_int_equal(ax_decoder_push(&decoder, 100000, &out), AX_ERR_DATA);
        assert_int_equal(ax_decoder_finish(&decoder, &out), AX_OK);
        assert_string_equal(out.data, cases[i].bytes);
        ax_buf_fini(&out);
    }
}

/* The fingerprint covers the content: another spelling of the same merges keeps it, another merge changes it.
 */
static void fingerprint(void **state)
{
    const fixture *f = *state;
    json_t *root = json_deep_copy(json_object_get(variant(f, 0), "tokenizer"));
    json_t *merges = json_object_get(json_object_get(root, "model"), "merges"), *merge;
    size_t i;
    ax_tokenizer *tok;
    json_array_foreach(merges, i, merge)
        json_array_set_new(merges, i,
                           json_sprintf("%s %s", json_string_value(json_array_get(merge, 0)),
                                        json_string_value(json_array_get(merge, 1))));
    assert_int_equal(load_value(f, root, &tok), AX_OK);
    assert_true(ax_tokenizer_hash(tok) == ax_tokenizer_hash(f->tok));
    ax_tokenizer_destroy(&tok);
    json_array_remove(merges, json_array_size(merges) - 1);
    assert_int_equal(load_value(f, root, &tok), AX_OK);
    assert_true(ax_tokenizer_hash(tok) != ax_tokenizer_hash(f->tok));
    ax_tokenizer_destroy(&tok);
    json_decref(root);
}

/* Constructs on which Oniguruma and PCRE2 disagree are refused; \s has the same meaning in and out of
 * classes. */
static void patterns(void **state)
{
    const fixture *f = *state;
    static const struct {
        const char *pattern;
        bool fine;
    } cases[] = {{"\\p{L}+|[^\\s]+|\\s+", true},
                 {"(?i:ab)|(?=a)a|(?!b)c|(?<=a)b|(?:a)|(?>a)", true},
                 {"[\\S]", true},
                 {"\\u00e9|\\x{e9}|\\xe9", true},
                 {"a{2,3}", true},
                 {"\\p{Han}+|[\\p{^Latin}\\p{Lu}]", true},
                 {"[ \\t\\v]+", true},
                 {"[\\s-a]+", true},
                 {"\\Qa", false},
                 {"\\N", false},
                 {"\\w+", false},
                 {"a\\b", false},
                 {"[a[bc]]", false},
                 {"[a-z&&[b]]", false},
                 {"(?m:a)", false},
                 {"(?<name>a)", false},
                 {"a{2}+", false},
                 {"a{,3}", false},
                 {"a\\", false},
                 {"\\p{Nonsense}", false},
                 {"", false}};
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        json_t *root = json_deep_copy(json_object_get(variant(f, 0), "tokenizer"));
        json_object_set_new(root, "pre_tokenizer",
                            json_pack("{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, {s:s, s:b, s:b}]}", "type",
                                      "Sequence", "pretokenizers", "type", "Split", "pattern", "Regex",
                                      cases[i].pattern, "behavior", "Isolated", "invert", 0, "type",
                                      "ByteLevel", "add_prefix_space", 0, "use_regex", 0));
        ax_tokenizer *tok;
        ax_status status = load_value(f, root, &tok);
        if ((status == AX_OK) != cases[i].fine)
            fail_msg("pattern \"%s\": %s", cases[i].pattern,
                     status == AX_OK ? "accepted" : ax_error_message());
        ax_tokenizer_destroy(&tok);
        json_decref(root);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_ids_as_hugging_face),
        cmocka_unit_test(questions),
        cmocka_unit_test(flags),
        cmocka_unit_test(round_trips),
        cmocka_unit_test(normal_form),
        cmocka_unit_test(invalid_bytes),
        cmocka_unit_test(long_pieces),
        cmocka_unit_test(long_documents),
        cmocka_unit_test(invalid_bytes_in_text),
        cmocka_unit_test(continued_text),
        cmocka_unit_test(streaming),
        cmocka_unit_test(fingerprint),
        cmocka_unit_test(patterns),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
