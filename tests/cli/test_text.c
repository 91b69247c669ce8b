/* cli: axonn tok and axonn data. */
#include "cli/cli_test.h"

/* Makes a corpus of 40 documents in a directory tree, and trains a tokenizer on it. */
static int set_up(void **state)
{
    (void)state;
    ax_buf out = {0};
    if (chdir(AXONN_BUILD_DIR))
        return 1;
    int rc = shell("rm -rf cli-text && mkdir -p cli-text/corpus/sub && cd cli-text && for i in $(seq 40); do "
                   "echo \"document $i says: the cat sat on the mat<|endoftext|>, and the hat too\" "
                   ">corpus/sub/$i.txt; done && "
                   "echo 'not text' >corpus/other.bin && " AXONN
                   " tok train --input corpus --include '*.txt' --vocab 300 --out tok 2>&1",
                   &out);
    ax_buf_fini(&out);
    return rc || chdir("cli-text");
}

static int tear_down(void **state)
{
    (void)state;
    return chdir("..") || ax_remove_tree("cli-text") != AX_OK;
}

static long long number(const json_t *object, const char *key)
{
    assert_true(json_is_integer(json_object_get(object, key)));
    return json_integer_value(json_object_get(object, key));
}

static void encode_and_decode_are_inverse(void **state)
{
    (void)state;
    ax_buf ids = {0}, text = {0};
    assert_int_equal(shell("printf 'the cät\\n\\377' | " AXONN " tok encode tok", &ids), 0);
    assert_int_equal(
        shell("printf 'the cät\\n\\377' | " AXONN " tok encode tok | " AXONN " tok decode tok", &text), 0);
    assert_string_equal(text.data, "the cät\n\377");
    json_t *object = json_of(AXONN " tok encode tok --json 'the cät<|endoftext|>'");
    assert_int_equal(number(object, "count"), json_array_size(json_object_get(object, "ids")));
    assert_int_equal(number(object, "count"), json_array_size(json_object_get(object, "pieces")));
    json_decref(object);
    object = json_of(AXONN " tok decode tok 0,1,2 --skip-special --json");
    assert_int_equal(strlen(json_string_value(json_object_get(object, "text"))), 2);
    json_decref(object);
    assert_int_equal(shell(AXONN " tok decode tok 70000 2>&1", &text), 4);
    assert_int_equal(shell(AXONN " tok encode tok </dev/null", &ids), 0); /* as `tok encode --help` says */
    assert_string_equal(ids.data, "\n");
    assert_int_equal(shell(AXONN " tok encode tok </dev/null | " AXONN " tok decode tok", &text), 0);
    assert_int_equal(text.size, 0);
    assert_int_equal(shell("echo 1,x | " AXONN " tok decode tok 2>&1", &text), 2);
    assert_int_equal(shell(AXONN " tok encode missing x 2>&1", &text), 4);
    ax_buf_fini(&ids);
    ax_buf_fini(&text);
}

static void check_tokenizer(void **state)
{
    (void)state;
    json_t *object = json_of(AXONN " tok check tok --input corpus --include '*.txt' --json");
    assert_int_equal(number(object, "documents"), 40);
    assert_int_equal(number(object, "failed"), 0);
    assert_true(json_real_value(json_object_get(object, "bytes_per_token")) > 1);
    json_decref(object);
}

static void build_show_check(void **state)
{
    (void)state;
    ax_buf out = {0};
    json_t *built = json_of(AXONN " data build --input corpus --include '*.txt' --tokenizer tok --out a.tok "
                                  "--valid b.tok --valid-fraction 0.3 --json");
    json_t *train = json_object_get(built, "train"), *valid = json_object_get(built, "valid");
    assert_int_equal(number(train, "documents") + number(valid, "documents"), 40);
    json_t *shown = json_of(AXONN " data show a.tok --json");
    assert_true(json_equal(train, shown));
    json_decref(shown);
    shown = json_of(AXONN " data show a.tok --document 0 --tokenizer tok --json");
    assert_contains(json_string_value(json_object_get(shown, "text")), " says: the cat sat on the mat");
    json_decref(shown);
    json_decref(built);
    assert_int_equal(shell("cat corpus/sub/*.txt | sort >all; for f in a b; do " AXONN
                           " data show $f.tok --text --tokenizer tok; done | sort | cmp - all 2>&1",
                           &out),
                     0);
    assert_int_equal(shell(AXONN " data show a.tok --text 2>&1", &out), 2);
    /* Another tokenizer would print other words. */
    static const char *const flags[] = {"--document 0", "--count 3 --json", "--text", ""};
    assert_int_equal(shell("seq 3000 >numbers && " AXONN
                           " tok train --input numbers --vocab 2000 --out other 2>/dev/null",
                           &out),
                     0);
    for (size_t i = 0; i < AX_COUNT(flags); i++) {
        char command[256];
        snprintf(command, sizeof command, AXONN " data show a.tok --tokenizer other %s 2>&1", flags[i]);
        assert_int_equal(shell(command, &out), 4);
        assert_contains(out.data, "a.tok was made by another tokenizer (hash ");
    }
    assert_int_equal(
        shell(AXONN " data build --input corpus/sub/$(ls corpus/sub | head -1) --tokenizer tok --out one.tok",
              &out),
        0);
    assert_contains(out.data, "1 file read, 0 left out");
    assert_int_equal(shell(AXONN " data check a.tok b.tok --tokenizer tok 2>&1", &out), 0);
    assert_int_equal(shell(AXONN " data show a.tok --document 40 2>&1", &out), 2);
    /* One damaged byte is found, and the other file is checked too. */
    assert_int_equal(shell("printf '\\377' | dd of=a.tok bs=1 seek=300 conv=notrunc 2>/dev/null; " AXONN
                           " data check a.tok b.tok --json 2>/dev/null",
                           &out),
                     4);
    assert_contains(out.data, "{\"path\":\"a.tok\",\"good\":false");
    assert_contains(out.data, "{\"path\":\"b.tok\",\"good\":true");
    ax_buf_fini(&out);
}

static void missing_input_is_an_error(void **state)
{
    (void)state;
    ax_buf out = {0};
    assert_int_equal(shell(AXONN " data build --input nowhere --tokenizer tok --out c.tok 2>&1", &out), 4);
    assert_contains(out.data, "nowhere");
    assert_false(ax_path_exists("c.tok"));
    assert_int_equal(shell(AXONN " data build --input corpus --tokenizer tok --out c.tok --valid "
                                 "./corpus/../c.tok 2>&1",
                           &out),
                     2);
    assert_contains(out.data, "--out and --valid are the same file");
    assert_false(ax_path_exists("c.tok"));
    assert_int_equal(shell(AXONN " tok train --input corpus --vocab 300 2>&1", &out), 2);
    assert_contains(out.data, "--out: required, but not given");
    ax_buf_fini(&out);
}

/* For all verbs that read text: empty input is an error, and pipes are read. */
static void pipes_are_read_and_empty_input_is_an_error(void **state)
{
    (void)state;
    ax_buf out = {0};
    static const char *const readers[] = {" tok train --vocab 300 --out piped --input ",
                                          " tok check tok --input ",
                                          " data build --tokenizer tok --out piped.tok --input "};
    for (size_t i = 0; i < AX_COUNT(readers); i++) {
        char command[512];
        snprintf(command, sizeof command, ": >nothing; " AXONN "%s nothing 2>&1", readers[i]);
        assert_int_equal(shell(command, &out), 4);
        assert_contains(out.data, "there is no text in nothing");
        snprintf(command, sizeof command, ": | " AXONN "%s - 2>&1", readers[i]);
        assert_int_equal(shell(command, &out), 4);
        assert_contains(out.data, "there is no text in /dev/stdin");
        snprintf(command, sizeof command,
                 "printf '{\"body\":\"the cat\"}\\n{\"body\":null}\\n' | " AXONN
                 "%s /dev/stdin --text-key body --json 2>errors",
                 readers[i]);
        assert_int_equal(shell(command, &out), 0);
        assert_int_equal(shell("cat errors", &out), 0);
        assert_contains(out.data, "left out /dev/stdin:2: \"body\" is null");
        snprintf(command, sizeof command,
                 "printf '{\"text\":\"the cat\"}\\n{\"text\":null}\\n' | " AXONN
                 "%s /dev/stdin --bad-lines 0 2>&1",
                 readers[i]);
        assert_int_equal(shell(command, &out), 4);
        assert_contains(out.data, "/dev/stdin:2: \"text\" is null");
    }
    ax_buf_fini(&out);
}

/* The message about a file that is not text says what kind of file it is. */
static void files_that_are_not_text_are_errors(void **state)
{
    (void)state;
    ax_buf out = {0};
    assert_int_equal(
        shell("mkdir -p mixed && echo text >mixed/a.txt && echo text >mixed/nogz.gz && "
              "printf 'a\\000b' >mixed/nul.txt && printf '\\377\\376a\\000' >mixed/wide.txt && " AXONN
              " data build --input mixed --tokenizer tok --out mixed.tok 2>&1",
              &out),
        0);
    assert_contains(out.data, "left out mixed/nogz.gz: its suffix says that it is compressed, but it is not");
    assert_contains(out.data, "left out mixed/nul.txt: it is not text (it holds a NUL byte)");
    assert_contains(out.data, "left out mixed/wide.txt: it is in UTF-16");
    assert_int_equal(shell(AXONN " data build --input mixed/nul.txt --tokenizer tok --out m.tok 2>&1", &out),
                     4);
    assert_contains(out.data, "it holds a NUL byte at offset 1; if it is text, remove such bytes");
    assert_int_equal(shell(AXONN " data build --input mixed/wide.txt --tokenizer tok --out m.tok 2>&1", &out),
                     4);
    assert_contains(out.data, "is in UTF-16");
    ax_buf_fini(&out);
}

/* For formats without a document index, --end-id finds the documents. */
static void end_id_finds_documents_without_an_index(void **state)
{
    (void)state;
    ax_buf out = {0};
    assert_int_equal(shell("printf '\\107\\000\\000\\000\\110\\000\\111\\000' >plain.bin", &out), 0);
    assert_int_equal(shell(AXONN " data show plain.bin --end-id 0", &out), 0);
    assert_contains(out.data, "documents   2\n");
    assert_int_equal(shell(AXONN " data show plain.bin --end-id 0 --document 0", &out), 0);
    assert_string_equal(out.data, "71,0\n");
    assert_int_equal(shell(AXONN " data show plain.bin --end-id 0 --document 1", &out), 0);
    assert_string_equal(out.data, "72,73\n");
    assert_int_equal(shell(AXONN " data show plain.bin --end-id 0 --document 2 2>&1", &out), 2);
    assert_contains(out.data, "plain.bin has 2 documents: document 2 does not exist");
    assert_int_equal(shell(AXONN " data show plain.bin --end-id 0 --text --tokenizer tok", &out), 0);
    assert_string_equal(out.data, "ghi");
    assert_int_equal(shell(AXONN " data show plain.bin --document 0 2>&1", &out), 2);
    assert_contains(out.data, "give --end-id, the id of the token that ends a document");
    assert_int_equal(shell(AXONN " data show plain.bin --end-id 65536 2>&1", &out), 2);
    assert_contains(out.data, "--end-id: 65536 cannot be a token of plain.bin, whose ids are below 65536");
    assert_int_equal(shell(AXONN " data check plain.bin --end-id 65536 2>&1", &out), 2);
    assert_int_equal(shell(AXONN " data show plain.bin --end-id 4294967296 2>&1", &out), 2);
    assert_int_equal(shell(AXONN " data show plain.bin --text --tokenizer tok 2>&1", &out), 2);
    assert_contains(out.data, "give --end-id");
    ax_buf_fini(&out);
}

/* A signal leaves no temporary files, and the exit status says that the signal ended the process. */
static void a_signal_leaves_no_temporary_files(void **state)
{
    (void)state;
    ax_buf out = {0};
    assert_int_equal(
        shell(
            "yes '{\"text\": \"the cat sat on the mat, and the hat too\"}' | head -n 1000000 >big.jsonl; "
            "mkdir -p stopped; " AXONN " data build --input big.jsonl --tokenizer tok --threads 1 "
            "--out stopped/big.tok 2>errors & p=$!; until [ -e stopped/big.tok.tmp.$p.0 ] || "
            "! kill -0 $p; do sleep 0.01; done; kill -TERM $p; wait $p; echo $?; ls -A stopped; rm big.jsonl",
            &out),
        0);
    assert_string_equal(out.data, "143\n");
    ax_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(encode_and_decode_are_inverse),
        cmocka_unit_test(check_tokenizer),
        cmocka_unit_test(build_show_check),
        cmocka_unit_test(missing_input_is_an_error),
        cmocka_unit_test(pipes_are_read_and_empty_input_is_an_error),
        cmocka_unit_test(files_that_are_not_text_are_errors),
        cmocka_unit_test(end_id_finds_documents_without_an_index),
        cmocka_unit_test(a_signal_leaves_no_temporary_files),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
