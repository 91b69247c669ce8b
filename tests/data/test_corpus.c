/* Documents of text: order of trees, JSONL cut anywhere, what is left out and what is an error. */
#include "data/corpus.h"
#include "data_test.h"

#include <sys/stat.h>

/* All documents of a corpus joined, each behind '|'. */
static char *join_documents(const ax_corpus_options *options, int64_t *files, int64_t *skipped)
{
    ax_corpus *corpus;
    ax_buf all = {0};
    bool end;
    OK(ax_corpus_create(options, &corpus));
    for (;;) {
        size_t before = all.size;
        OK(ax_buf_add(&all, "|", 1));
        OK(ax_corpus_next(corpus, &all, &end));
        if (end) {
            assert_int_equal(all.size, before + 1);
            all.data[before] = 0;
            break;
        }
    }
    if (files)
        *files = ax_corpus_files(corpus);
    if (skipped)
        *skipped = ax_corpus_skipped(corpus);
    ax_corpus_destroy(&corpus);
    assert_null(corpus);
    return all.data;
}

static void trees(void **state)
{
    scratch *s = *state;
    OK(ax_mkdirs(in_scratch(s, "t/a/deep")));
    OK(ax_mkdirs(in_scratch(s, "t/.git")));
    put_text(s, "t/z.h", "Z");
    put_text(s, "t/a.h", "A");
    put_text(s, "t/a/b.h", "B");
    put_text(s, "t/a/deep/c.txt", "C");
    put_text(s, "t/a/d.jsonl", "{\"text\":\"D1\"}\n{\"text\":\"D2\"}");
    put_text(s, "t/empty.h", "");
    put_text(s, "t/.git/HEAD", "hidden");
    put_file(s, "t/binary.h", "x\0y", 3);
    put_text(s, "outside.h", "O");
    assert_int_equal(symlink("..", in_scratch(s, "t/a/up")), 0);
    assert_int_equal(symlink("../outside.h", in_scratch(s, "t/link.h")), 0);
    assert_int_equal(symlink("nowhere", in_scratch(s, "t/dangling.h")), 0);

    const char *tree = in_scratch(s, "t");
    int64_t files, skipped;
    ax_corpus_options o = {.inputs = &tree, .n_inputs = 1};
    char *all = join_documents(&o, &files, &skipped);
    assert_string_equal(all, "|A|B|D1|D2|C|O|Z"); /* "a.h" before "a/b.h": bytes of whole paths */
    assert_int_equal(files, 7);
    assert_int_equal(skipped, 2); /* the binary and the dangling link */
    free(all);

    o.include = (const char *const[]){"*.h", "*.txt"};
    o.n_include = 2;
    all = join_documents(&o, NULL, NULL);
    assert_string_equal(all, "|A|B|C|O|Z");
    free(all);

    const char *inputs[] = {in_scratch(s, "t/z.h"), tree, in_scratch(s, "outside.h")};
    o = (ax_corpus_options){
        .inputs = inputs, .n_inputs = 3, .include = (const char *const[]){"c.*"}, .n_include = 1};
    all = join_documents(&o, NULL, NULL);
    assert_string_equal(all, "|Z|C|O"); /* patterns are for trees, named files are wanted */
    free(all);
}

static ax_status add_document(void *user, const char *text, size_t bytes)
{
    AX_TRY(ax_buf_add(user, "|", 1));
    return ax_buf_add(user, text, bytes);
}

/* Whatever bytes a JSONL file is cut at, its units hold its documents once and in order. */
static void jsonl_cuts(void **state)
{
    scratch *s = *state;
    static const char text[] = "{\"text\": \"one\"}\n\n  \r\n{\"id\": 3, \"text\": \"t\\u00e9\\ntwo\"}\r\n"
                               "{\"text\": \"\"}\n{\"text\": \"three\"}\n{\"text\":\"four\"}";
    static const char want[] = "|one|t\xc3\xa9\ntwo|three|four";
    for (int newline = 0; newline < 2; newline++) {
        char file[sizeof text];
        memcpy(file, text, sizeof text);
        file[sizeof text - 1] = '\n';
        const char *path = put_file(s, "d.jsonl", file, sizeof text - 1 + (size_t)newline);
        ax_corpus *corpus;
        OK(ax_corpus_create(&(ax_corpus_options){.inputs = &path, .n_inputs = 1}, &corpus));
        int64_t size = ax_corpus_bytes(corpus);
        ax_buf all = {0}, buf = {0};
        const char *why;
        for (int64_t a = 0; a <= size; a++)
            for (int64_t b = a; b <= size; b++) {
                const int64_t cuts[] = {0, a, b, size};
                all.size = 0;
                for (int i = 0; i < 3; i++)
                    if (cuts[i] < cuts[i + 1])
                        OK(corpus_read_unit(corpus, &(corpus_unit){0, cuts[i], cuts[i + 1]}, &buf,
                                            add_document, &all, &why));
                assert_string_equal(all.data, want);
            }
        ax_buf_fini(&all);
        ax_buf_fini(&buf);
        ax_corpus_destroy(&corpus);
    }
}

/* Lines longer than a unit, and more units than one. */
static void jsonl_large(void **state)
{
    scratch *s = *state;
    ax_buf file = {0};
    static const int lengths[] = {10, 3 * CORPUS_UNIT_BYTES, 1, CORPUS_UNIT_BYTES - 14, 5, CORPUS_UNIT_BYTES};
    char *letters = malloc(4 * CORPUS_UNIT_BYTES);
    for (size_t i = 0; i < AX_COUNT(lengths); i++) {
        memset(letters, 'a' + (int)i, (size_t)lengths[i]);
        OK(ax_buf_printf(&file, "{\"body\": \"%.*s\"}\n", lengths[i], letters));
    }
    const char *path = put_file(s, "d.ndjson", file.data, file.size);
    ax_corpus *corpus;
    OK(ax_corpus_create(&(ax_corpus_options){.inputs = &path, .n_inputs = 1, .text_key = "body"}, &corpus));
    bool end;
    for (size_t i = 0; i < AX_COUNT(lengths); i++) {
        file.size = 0;
        OK(ax_corpus_next(corpus, &file, &end));
        assert_false(end);
        assert_int_equal(file.size, lengths[i]);
        assert_int_equal(file.data[0], 'a' + (int)i);
    }
    OK(ax_corpus_next(corpus, &file, &end));
    assert_true(end);
    ax_corpus_destroy(&corpus);
    ax_buf_fini(&file);
    free(letters);
}

/* The walk over one input ends with AX_ERR_DATA and a message that holds `text`. */
static void expect_bad(const char *path, const char *text)
{
    ax_corpus *corpus;
    ax_buf doc = {0};
    bool end = false;
    ax_status status = ax_corpus_create(&(ax_corpus_options){.inputs = &path, .n_inputs = 1}, &corpus);
    while (status == AX_OK && !end)
        status = ax_corpus_next(corpus, &doc, &end);
    FAILS(AX_ERR_DATA, text, status);
    ax_corpus_destroy(&corpus);
    ax_buf_fini(&doc);
}

static void errors(void **state)
{
    scratch *s = *state;
    expect_bad(put_text(s, "a.jsonl", "{\"text\":\"x\"}\n\n{\"text\":\"x\"\n"), "a.jsonl:3: no valid JSON");
    expect_bad(put_text(s, "b.jsonl", "{\"text\":\"x\"}\n{\"txt\":\"x\"}\n"),
               "b.jsonl:2: an object with a string");
    expect_bad(put_text(s, "c.jsonl", "{\"text\":5}"), "c.jsonl:1: an object with a string");
    expect_bad(put_text(s, "d.jsonl", "[1]"), "d.jsonl:1: an object with a string");
    expect_bad(in_scratch(s, "none.txt"), "no such file");
    expect_bad(put_file(s, "tokens.bin", "\1\0\2\0", 4), "holds tokens already");
    char *late = calloc(8192, 1);
    memset(late, 'a', 8191);
    expect_bad(put_file(s, "late.txt", late, 8192), "NUL byte at offset 8191");
    free(late);
    OK(ax_mkdirs(in_scratch(s, "empty")));
    expect_bad(in_scratch(s, "empty"), "no files to read");

    /* Damage inside a tree is an error as well: it was meant to be read. */
    OK(ax_mkdirs(in_scratch(s, "tree")));
    put_text(s, "tree/a.jsonl", "{");
    expect_bad(in_scratch(s, "tree"), "a.jsonl:1");

    ax_corpus *corpus;
    FAILS(AX_ERR_DATA, "no input was given", ax_corpus_create(&(ax_corpus_options){0}, &corpus));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(trees, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(jsonl_cuts, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(jsonl_large, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(errors, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
