/* Documents of a corpus: the order of trees, JSONL cut at any byte, what is left out and what is an error. */
#include "data/corpus.h"
#include "data_test.h"

#include <sys/stat.h>

/* Returns all documents of a corpus, each after a '|'. */
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
    assert_string_equal(all, "|A|B|D1|D2|C|O|Z"); /* "a.h" before "a/b.h": order of whole paths */
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
    assert_string_equal(all, "|Z|C|O"); /* `include` applies to trees, not to files that are named */
    free(all);
}

static ax_status add_document(void *user, const char *text, size_t bytes, ax_chat_text *chat)
{
    (void)chat;
    AX_TRY(ax_buf_add(user, "|", 1));
    return ax_buf_add(user, text, bytes);
}

/* At whatever bytes a JSONL file is cut, its units give its documents once and in order. */
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
        corpus_omitted omitted;
        for (int64_t a = 0; a <= size; a++)
            for (int64_t b = a; b <= size; b++) {
                const int64_t cuts[] = {0, a, b, size};
                all.size = 0;
                for (int i = 0; i < 3; i++)
                    if (cuts[i] < cuts[i + 1])
                        OK(corpus_read_unit(corpus, &(corpus_unit){.from = cuts[i], .to = cuts[i + 1]}, &buf,
                                            add_document, &all, &omitted));
                assert_string_equal(all.data, want);
            }
        ax_buf_fini(&all);
        ax_buf_fini(&buf);
        ax_corpus_destroy(&corpus);
    }
}

/* A file of several units, with lines that are longer than a unit. */
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

/* Asserts that the documents of one input, each after a '|', are `want`. */
static void expect_documents(const char *path, const char *want)
{
    char *all =
        join_documents(&(ax_corpus_options){.inputs = &path, .n_inputs = 1, .bad_lines = 9}, NULL, NULL);
    assert_string_equal(all, want);
    free(all);
}

/* Asserts that reading one input with at most `bad_lines` bad lines allowed fails with AX_ERR_DATA and a
 * message that contains `text`. */
static void expect_failure(const char *path, int64_t bad_lines, const char *text)
{
    ax_corpus *corpus;
    ax_buf doc = {0};
    bool end = false;
    ax_status status = ax_corpus_create(
        &(ax_corpus_options){.inputs = &path, .n_inputs = 1, .bad_lines = bad_lines}, &corpus);
    while (status == AX_OK && !end)
        status = ax_corpus_next(corpus, &doc, &end);
    FAILS(AX_ERR_DATA, text, status);
    ax_corpus_destroy(&corpus);
    ax_buf_fini(&doc);
}

/* Asserts that reading one input fails with AX_ERR_DATA and a message that contains `text`. */
static void expect_bad(const char *path, const char *text) { expect_failure(path, 0, text); }

/* A .json file holds documents if it is an array of objects, or objects on lines or spread over lines. */
static void json_files(void **state)
{
    scratch *s = *state;
    static const char array[] = "\xef\xbb\xbf [\n {\"text\": \"one, ]\\\"}\", \"m\": [1, {\"a\": \"]\"}]},\n"
                                "\t{\"text\":\n\"two\", \"x\": NaN}\n,{\"text\": \"\"}]\n";
    expect_documents(put_text(s, "a.json", array), "|one, ]\"}|two");
    expect_documents(put_text(s, "b.json", "[{\"text\":\"one\"}]"), "|one");
    expect_documents(put_text(s, "c.json", "{\"text\":\"one\"}\n\n{\"text\": \"two\"}"), "|one|two");
    expect_documents(put_text(s, "d.json", "{\"text\":\"one\"}"), "|one");
    expect_documents(put_text(s, "e.json", "\n{\n\"text\": \"one, }\"\n}\n"), "|one, }");
    expect_documents(put_text(s, "e.json", "{\n\"m\": [{}],\n\"text\": \"one\"\n}\n{\"text\": \"two\"}"),
                     "|one|two");
    expect_bad(put_text(s, "e.json", "{\n\"text\": 1\n}\n"), "give plain text another suffix than .json");
    expect_bad(put_text(s, "e.json", "{\n\"text\": \"x\"\n}\n]\n"), "e.json:4:1: not valid JSON");
    expect_documents(put_text(s, "f.json", "[1, 2]"), "|[1, 2]");
    expect_bad(put_text(s, "g.json", "[]"), "there is no text in");
    expect_bad(put_text(s, "h.json", "[\n{\"text\":\"x\"}\n"),
               "h.json:3:1: not valid JSON: the array has no end");
    expect_bad(put_text(s, "i.json", "[{\"text\":\"x\"},\n"),
               "i.json:2:1: not valid JSON: the array has no end");
    expect_bad(put_text(s, "j.json", "[{\"text\":\"x\"}]\n]"),
               "j.json:1:14: not valid JSON: there is more text after the end of the array");
    expect_bad(put_text(s, "k.json", "[{\"text\":\"x\"} {}]"), "k.json:1:15: not valid JSON");
    expect_bad(put_text(s, "l.json", "[{\"text\":\"x\"},\n\n{\"text\":\n1,}]"), "l.json:4:3: not valid JSON");
    expect_bad(put_text(s, "m.json", "[{\"text\":\"x\"},\n{}]"),
               "m.json:2: expected an object with a string \"text\"");
    expect_bad(put_text(s, "n.json", "[{\"text\":\"x\"},]"), "n.json:1:15: not valid JSON");

    /* Below a directory a .json file may be anything: one that holds no documents is left out. */
    OK(ax_mkdirs(in_scratch(s, "tree")));
    put_text(s, "tree/a.json", array);
    put_text(s, "tree/b.json", "[{\"file\":\"x.c\"},\n{\"file\": 2}]");
    put_text(s, "tree/c.json", "{\"a\":\"x\"}\n{\"a\": 2}");
    put_text(s, "tree/d.json", "{\"a\": x}");
    put_text(s, "tree/e.json", "{\n}");
    const char *tree = in_scratch(s, "tree");
    int64_t files, skipped;
    char *all = join_documents(&(ax_corpus_options){.inputs = &tree, .n_inputs = 1}, &files, &skipped);
    assert_string_equal(all, "|one, ]\"}|two");
    assert_int_equal(files, 1);
    assert_int_equal(skipped, 4);
    free(all);
}

static void byte_order_marks(void **state)
{
    scratch *s = *state;
    expect_documents(put_text(s, "a.txt", "\xef\xbb\xbftext \xef\xbb\xbf"), "|text \xef\xbb\xbf");
    expect_documents(put_text(s, "a.jsonl", "\xef\xbb\xbf{\"text\":\"one\"}\n{\"text\":\"two\"}"),
                     "|one|two");
    expect_bad(put_text(s, "b.txt", "\xef\xbb\xbf"), "there is no text in");
    expect_bad(put_text(s, "c.jsonl", "{\"text\":\"one\"}\n\xef\xbb\xbf{}"), "c.jsonl:2:1: not valid JSON");
}

/* Values that some exports have in place of a text are left out and counted. Numbers of any size in other
 * members are fine. */
static void bad_lines(void **state)
{
    scratch *s = *state;
    static const char text[] =
        "{\"text\": \"a\", \"x\": NaN, \"y\": 1e999, \"z\": 123456789012345678901234567890}\n"
        "{\"text\": null}\n"
        "{\"text\": \"lone \\uDC00\"}\n"
        "{\"text\": \"pair \\ud83d\\uDE00 \\\\ud800\", \"x\": \"\\ud800\"}\n"
        "{\"text\": \"\\uffff\"}\n"
        "{\"text\": NaN}\n"
        "{\"text\": \"latin \xe9\"}\n"
        "{\"text\": \"b\", \"x\": \"\xe9\"}\n"
        "{\"text\": \"\\ud800\\ud800\"}\n";
    const char *path = put_text(s, "a.jsonl", text);
    expect_documents(path, "|a|pair \xf0\x9f\x98\x80 \\ud800|\xef\xbf\xbf|b");
    expect_failure(path, 4, "5 records cannot be used, allowed: 4");
    expect_failure(path, 0, "a.jsonl:2: \"text\" is null");
    expect_failure(path, 4, "a.jsonl:9: the same");
    expect_failure(path, 0, "a.jsonl:7: \"text\" is not valid Unicode");
    expect_documents(put_text(s, "e.jsonl", "{\"text\": \"a\"}\n{}\n{\"text\": 1}\n{\"text\": \"b\"}\n"),
                     "|a|b");
    expect_failure(in_scratch(s, "e.jsonl"), 1, "e.jsonl:3: the same");
    expect_failure(in_scratch(s, "e.jsonl"), -1, "2 records cannot be used, allowed: 0");
    expect_bad(put_text(s, "b.jsonl", "{\"text\":\"\\udead\"}"), "b.jsonl:1: \"text\" is not valid Unicode");
    expect_failure(put_text(s, "c.jsonl", "{\"text\": null}\n"), 1, "there is no text in");
    expect_bad(put_text(s, "d.jsonl", "{\"text\": \"\\ud800\", \"x\": }"), "d.jsonl:1:25: not valid JSON");
    ax_corpus *corpus;
    ax_buf doc = {0};
    bool end = false;
    OK(ax_corpus_create(&(ax_corpus_options){.inputs = &path, .n_inputs = 1, .bad_lines = 5}, &corpus));
    while (!end)
        OK(ax_corpus_next(corpus, &doc, &end));
    assert_int_equal(ax_corpus_bad_lines(corpus), 5);
    assert_int_equal(ax_corpus_skipped(corpus), 0);
    ax_corpus_destroy(&corpus);
    ax_buf_fini(&doc);
}

/* Returns the path of a pipe with n bytes, after which it ends; the caller closes *fd. */
static const char *fill_pipe(scratch *s, const void *bytes, size_t n, int *fd)
{
    int ends[2];
    char name[32];
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], bytes, n), n);
    close(ends[1]);
    *fd = ends[0];
    snprintf(name, sizeof name, "/dev/fd/%d", ends[0]);
    return in_scratch(s, name);
}

static bool stop(void *user, const ax_data_progress *progress)
{
    (void)progress;
    return ++*(int *)user < 3;
}

static void pipes(void **state)
{
    scratch *s = *state;
    static const struct {
        const char *bytes, *want, *error;
    } cases[] = {{"some text\n", "|some text\n", NULL},
                 {"{\"text\": \"one\"}\n{\"text\": \"two\"}\n", "|one|two", NULL},
                 {"[{\"text\": \"one\"}]", "|one", NULL},
                 {"{\n  \"text\": \"one\"\n}\n", "|one", NULL},
                 {"{ int x; }\n", "|{ int x; }\n", NULL},
                 {"", NULL, "there is no text in /dev/fd/"},
                 {"\x1f\x8b\x08", NULL, "gzip"},
                 {"{\"text\": \"one\"}\n{\"text\": 2}\n", NULL, ":2: expected an object with a string"}};
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        int fd;
        size_t n = strlen(cases[i].bytes) + (cases[i].bytes[0] == 0x1f); /* with a NUL, as gzip has */
        const char *path = fill_pipe(s, cases[i].bytes, n, &fd);
        if (cases[i].want)
            expect_documents(path, cases[i].want);
        else
            expect_bad(path, cases[i].error);
        close(fd);
    }
    expect_bad("/dev/null", "there is no text in /dev/null");
    expect_bad("/dev/zero", "a token file must be a regular file");

    /* Waiting for a pipe without a writer can be stopped. */
    int ends[2], calls = 0;
    char name[32];
    assert_int_equal(pipe(ends), 0);
    snprintf(name, sizeof name, "/dev/fd/%d", ends[0]);
    const char *path = name;
    ax_corpus *corpus;
    FAILS(AX_ERR_SIGNAL, "was stopped",
          corpus_create(&(ax_corpus_options){.inputs = &path, .n_inputs = 1}, stop, &calls, &corpus));
    assert_null(corpus);
    close(ends[0]);
    close(ends[1]);
}

/* The lines {"text":"ab"} and {"text":"c"}, compressed. */
#define GZIPPED                                                                                              \
    "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff\xab\x56\x2a\x49\xad\x28\x51\xb2\x52\x4a\x4c\x52\xaa\xe5\xaa"   \
    "\x86"                                                                                                   \
    "\xf1\x92\x81\x1c\x00\x3d\xa3\x38\x9e\x1b\x00\x00\x00"
#define ZSTD                                                                                                 \
    "\x28\xb5\x2f\xfd\x24\x1b\xc5\x00\x00\x90\x7b\x22\x74\x65\x78\x74\x22\x3a\x22\x61\x62\x22\x7d\x0a\x63"   \
    "\x22\x7d\x0a\x01\x00\x51\x4c\x25\x91\x65\xad\xd4"

/* Compressed text gives the documents of the text; a file that is not whole is an error that names the place.
 */
static void compressed_text(void **state)
{
    scratch *s = *state;
    static const struct {
        const char *bytes, *end; /* end: of the name */
        size_t n, cut;           /* cut: bytes without which the file is truncated */
        const char *(*absent)(void);
    } kinds[] = {{GZIPPED, "gz", sizeof GZIPPED - 1, 3, ax_data_absent_gzip},
                 {ZSTD, "zst", sizeof ZSTD - 1, 1, ax_data_absent_zstd}};
    for (size_t i = 0; i < AX_COUNT(kinds); i++) {
        char name[32], dir[32], twice[128];
        size_t n = kinds[i].n;
        snprintf(dir, sizeof dir, "d%zu", i);
        OK(ax_mkdirs(in_scratch(s, dir)));
        snprintf(name, sizeof name, "d%zu/a.jsonl.%s", i, kinds[i].end);
        const char *path = put_file(s, name, kinds[i].bytes, n);
        if (kinds[i].absent()) {
            expect_bad(path, "this program was built without");
            continue;
        }
        expect_documents(path, "|ab|c");
        expect_documents(in_scratch(s, dir), "|ab|c");
        int fd;
        path = fill_pipe(s, kinds[i].bytes, n, &fd);
        expect_documents(path, "|ab|c");
        close(fd);
        memcpy(twice, kinds[i].bytes, n);
        memcpy(twice + n, kinds[i].bytes, n);
        expect_documents(put_file(s, "noname", twice, 2 * n), "|{\"text\":\"ab\"}\n{\"text\":\"c\"}\n"
                                                              "{\"text\":\"ab\"}\n{\"text\":\"c\"}\n");
        expect_bad(put_file(s, name, twice, 2 * n - kinds[i].cut), "is truncated: its compressed data");
        expect_bad(in_scratch(s, dir), "is truncated: its compressed data");
        twice[n - 6] ^= 1;
        expect_bad(put_file(s, name, twice, 2 * n), "cannot be read at byte ");
    }
}

/* Text of several units: the same documents and lines as those of the text itself. */
static void much_compressed_text(void **state)
{
    scratch *s = *state;
    char command[512];
    ax_buf text = {0};
    if (ax_data_absent_gzip())
        skip();
    for (int i = 0; i < 60000; i++)
        OK(ax_buf_printf(&text, "{\"text\":\"document number %d of this file, and its square %d\"}\n", i,
                         i * 7 % 1000));
    const char *plain = put_file(s, "m.jsonl", text.data, text.size), *packed = in_scratch(s, "m.jsonl.gz");
    OK(ax_buf_printf(&text, "{\"text\":7}\n"));
    put_file(s, "bad.jsonl", text.data, text.size);
    ax_buf_fini(&text);
    snprintf(command, sizeof command, "cd %s && gzip -1k m.jsonl && gzip -1k bad.jsonl", s->dir);
    assert_int_equal(system(command), 0);
    char *want = join_documents(&(ax_corpus_options){.inputs = &plain, .n_inputs = 1}, NULL, NULL);
    expect_documents(packed, want);
    free(want);
    expect_bad(in_scratch(s, "bad.jsonl.gz"), "bad.jsonl.gz:60001: expected an object with a string");
}

/* What a compressed file holds is named, with the commands that unpack and convert the file that was given.
 */
static void compressed_other_formats(void **state)
{
    scratch *s = *state;
    static const struct {
        const char *write, *file, *why;
    } cases[] = {
        {"tar -cf - a.txt | gzip -1 > x.tgz", "x.tgz",
         "x.tgz cannot be read: it is compressed (gzip), and what it holds is a tar archive: unpack it first "
         "(tar -xf "},
        {"tar -cf - a.txt | gzip -1 > x.tar.gz", "x.tar.gz", "x.tar.gz)"},
        {"iconv -t utf-16 a.txt | gzip -1 > u.txt.gz", "u.txt.gz", "u.txt && iconv -f utf-16 -t utf-8 "},
        {"iconv -t utf-16 a.txt | gzip -1 > u.txt.gz", "u.txt.gz",
         "u.txt.gz cannot be read: it is compressed (gzip), and what it holds is in UTF-16: convert it"},
        {"iconv -t utf-16 a.txt | gzip -1 > noname", "noname",
         "noname > unpacked && iconv -f utf-16 -t utf-8 unpacked)"},
        {"gzip -1c a.txt | gzip -1 > t.gz.gz", "t.gz.gz", "is compressed twice: unpack it once (gzip -dc < "},
        {"printf 'a\\0b' | gzip -1 > n.txt.gz", "n.txt.gz", "n.txt && tr -d '\\0' < "},
        {"printf PAR1 | gzip -1 > p.parquet.gz", "p.parquet.gz", "what it holds is a Parquet file"},
        {"gzip -1c a.txt > b.parquet.gz", "b.parquet.gz",
         "b.parquet.gz has the suffix .parquet, but holds text"},
        {"gzip -1c a.txt > c.bin.gz", "c.bin.gz", "unpack it first (gzip -dc < "}};
    if (ax_data_absent_gzip())
        skip();
    put_text(s, "a.txt", "some text\n");
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        char command[512];
        snprintf(command, sizeof command, "cd %s && %s", s->dir, cases[i].write);
        assert_int_equal(system(command), 0);
        expect_bad(in_scratch(s, cases[i].file), cases[i].why);
    }
}

/* A text is one document, and is refused if it cannot be in memory. */
static void larger_than_memory(void **state)
{
    scratch *s = *state;
    static char text[1 << 13];
    memset(text, 'a', sizeof text);
    const char *path = put_file(s, "huge.txt", text, sizeof text);
    assert_int_equal(truncate(path, INT64_C(1) << 43), 0); /* a hole of 8 TiB */
    ax_corpus *corpus;
    ax_buf doc = {0};
    bool end;
    OK(ax_corpus_create(&(ax_corpus_options){.inputs = &path, .n_inputs = 1}, &corpus));
    FAILS(AX_ERR_MEMORY, "huge.txt is too large to be read: a text of 8388608 MiB must be in memory",
          ax_corpus_next(corpus, &doc, &end));
    ax_corpus_destroy(&corpus);
    ax_buf_fini(&doc);
}

/* What is not text is named as what it is, with what helps. */
static void other_formats(void **state)
{
    scratch *s = *state;
    static const struct {
        const char *name, *bytes;
        size_t n;
        const char *why;
    } cases[] = {{"a.parquet", "PAR1\0", 5, "a Parquet file: export its text as JSONL first (python3 -c "},
                 {"b.parquet", "version https://git-lfs.github.com/spec/v1\n", 43, "a pointer of Git LFS"},
                 {"c.parquet", "Entry not found", 15, "has the suffix .parquet, but holds text"},
                 {"d.jsonl", "<!DOCTYPE html>\n", 16, "d.jsonl is a web page, not the file"},
                 {"e.jsonl", "\xff\xfe{\0}\0", 6, "is in UTF-16: convert it to UTF-8 first (iconv -f utf-16"},
                 {"f.jsonl", "{\0\"\0t\0e\0", 8, "is in UTF-16le"},
                 {"g.txt", "\0\0\xfe\xff\0\0\0a", 8, "is in UTF-32"},
                 {"h.arrow", "\xff\xff\xff\xff\x10\0\0\0", 8, "an Arrow file"},
                 {"i.npy", "\x93NUMPY\1\0", 8, "tofile('tokens.u32.bin')"},
                 {"j.docx", "PK\3\4\0\0", 6, "as Word's documents"},
                 {"k.pdf", "%PDF-1.7\n", 9, "pdftotext "},
                 {"l.txt.gz", "some text", 9, "has the suffix .gz, but holds text"}};
    for (size_t i = 0; i < AX_COUNT(cases); i++)
        expect_bad(put_file(s, cases[i].name, cases[i].bytes, cases[i].n), cases[i].why);
    expect_documents(put_text(s, "m.jsonl", "[{\"text\":\"one\"},\n{\"text\":\"two\"}]"), "|one|two");
    expect_documents(put_text(s, "n.jsonl", "{\n \"text\": \"one\"\n}"), "|one");
    expect_documents(put_text(s, "o.csv", "a,b\n"), "|a,b\n"); /* with a warning */
}

static void errors(void **state)
{
    scratch *s = *state;
    expect_bad(put_text(s, "a.jsonl", "{\"text\":\"x\"}\n\n{\"text\":\"x\"\n"),
               "a.jsonl:3:12: not valid JSON");
    expect_bad(put_text(s, "b.jsonl", "{\"text\":\"x\"}\n{\"txt\":\"x\"}\n"),
               "b.jsonl:2: expected an object with a string");
    expect_bad(put_text(s, "c.jsonl", "{\"text\":5}"), "c.jsonl:1: expected an object with a string");
    expect_bad(put_text(s, "d.jsonl", "[1]"), "d.jsonl:1: expected an object with a string");
    expect_bad(in_scratch(s, "none.txt"), "no such file");
    expect_bad(put_file(s, "tokens.bin", "\1\0\2\0", 4), "holds tokens (");
    char *late = calloc(8192, 1);
    memset(late, 'a', 8191);
    expect_bad(put_file(s, "late.txt", late, 8192), "NUL byte at offset 8191");
    free(late);
    OK(ax_mkdirs(in_scratch(s, "empty")));
    expect_bad(in_scratch(s, "empty"), "no files to read");

    /* Damaged JSONL in a tree is an error too: its suffix says that it holds documents. */
    OK(ax_mkdirs(in_scratch(s, "tree")));
    put_text(s, "tree/a.jsonl", "{");
    expect_bad(in_scratch(s, "tree"), "a.jsonl:1");

    ax_corpus *corpus;
    FAILS(AX_ERR_DATA, "no input was given", ax_corpus_create(&(ax_corpus_options){0}, &corpus));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(trees, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(jsonl_cuts, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(jsonl_large, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(json_files, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(byte_order_marks, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(bad_lines, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(pipes, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(compressed_text, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(much_compressed_text, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(compressed_other_formats, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(larger_than_memory, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(other_formats, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(errors, files_setup, files_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
