/* Conversations: which records are read, ignored and refused, and the token files that are made of them. */
#include "chat_test.h"

/* ---- records --------------------------------------------------------------------------------------- */

static void refused_records(void **state)
{
    static const char *const cases[][2] = {
        {"{'messages': [{'role': 'user', 'content': 'a'}, {'role': 'function', 'content': 'b'}]}",
         "turn 2: has the role \"function\", which no template has: calls of tools are read as "
         "\"tool_calls\" of "
         "the assistant, and results as turns of the role tool; the roles are system"},
        {"{'messages': [{'role': 'user', 'content': 'a'}, {'role': 'tool', 'content': 'b'}]}",
         "turn 2 has the role tool, but follows the role user"},
        {"{'messages': [{'role': 'user', 'content': 'a'}, {'role': 'assistant', 'content': 'b'}, {'role': "
         "'tool', "
         "'content': {'c': 1}}]}",
         "turn 3: \"content\" must be a string or a list of texts, but is an object"},
        {"{'messages': [{'content': 'a'}]}", "turn 1: \"role\" must be a string, but is missing"},
        {"{'messages': [{'role': 3, 'content': 'a'}]}",
         "turn 1: \"role\" must be a string, but is an integer"},
        {"{'messages': [{'role': 'user', 'content': [3]}]}",
         "turn 1: part 1 of \"content\" is not a text but \"an integer\""},
        {"{'messages': [{'role': 'user', 'content': [{'type': 'text', 'text': 'a'}, {'type': 'image', 'url': "
         "'b'}]}]}",
         "turn 1: part 2 of \"content\" is not a text but \"image\""},
        {"{'messages': [{'role': 'user', 'content': null}]}",
         "turn 1: \"content\" must be a string or a list of texts, but is null"},
        {"{'messages': [{'role': 'user'}]}",
         "turn 1: \"content\" must be a string or a list of texts, but is missing"},
        {"{'messages': ['a']}", "turn 1: is a string, not an object"},
        {"{'messages': 'a'}", "the member \"messages\" is a string, not a list of turns"},
        {"{'conversations': [{'from': 'human', 'content': 'a'}]}",
         "turn 1: \"value\" must be a string or a list of texts, but is missing"},
        {"{'prompt': 1, 'completion': 'a'}",
         "turn 1: \"prompt\" must be a string or a list of texts, but is an integer"},
        {"{'prompt': 'a', 'completion': null}",
         "turn 2: \"completion\" must be a string or a list of texts, but is null"},
        {"{'instruction': 'a', 'input': 3, 'output': 'b'}",
         "turn 2: \"input\" must be a string or a list of texts, but is an integer"},
        {"{'messages': [{'role': 'user', 'content': 'a'}], 'tools': ['f']}",
         "element 1 of \"tools\" is a string, not an object"},
        {"{'messages': [{'role': 'user', 'content': 'a'}], 'tools': {'f': 1}}",
         "\"tools\" is an object, not a list of objects"},
        {"{'messages': [{'role': 'user', 'content': 'a'}], 'tools': '[{]'}", "\"tools\":1:3: not valid JSON"},
        {"{'messages': [{'role': 'user', 'content': 'a'}], 'tools': [{'enum': [18446744073709551615]}]}",
         "\"tools\": a number does not fit into 64 bits"},
        {"{'messages': [{'role': 'user', 'content': 'a'}, {'role': 'assistant', 'content': null, "
         "'tool_calls': [{'name': 'f', 'arguments': {'a': [{'b': -9223372036854776000}]}}]}]}",
         "turn 2: element 1 of \"tool_calls\": \"arguments\": a number does not fit into 64 bits"},
        {"{'prompt': 'a', 'completion': 'b', 'tools': [{'name': 'f'}]}",
         "\"tools\" stands beside the strings"},
        {"{'messages': [{'role': 'user', 'content': 'a'}, {'role': 'assistant', 'content': null, "
         "'tool_calls': [{'name': 'f', 'arguments': {}}, {'id': 1}]}]}",
         "turn 2: element 2 of \"tool_calls\": must be an object with \"function\""},
        {"{'messages': [{'role': 'user', 'content': 'a'}, {'role': 'assistant', 'content': null, "
         "'tool_calls': [{'function': {'name': 'f', 'arguments': {}, 'result': 'x'}}]}]}",
         "turn 2: element 1 of \"tool_calls\": has \"result\", which no template writes"},
        {"{'messages': [{'role': 'user', 'content': 'a', 'tool_calls': [{'name': 'f', 'arguments': {}}]}]}",
         "turn 1: only turns of the assistant can have \"tool_calls\""},
        {"{'messages': [{'role': 'user', 'content': 'a'}, {'role': 'assistant', 'content': null, "
         "'function_call': {'name': 'f', 'arguments': {}}}]}",
         "turn 2: the turn has \"function_call\", which is not read"},
        {"{'messages': [{'role': 'user', 'content': 'a', 'audio': 'b'}]}", "turn 1: the turn has \"audio\""},
        {"{'messages': [{'role': 'user', 'content': 'a', 'masked': true}]}",
         "turn 1: the turn has \"masked\""},
        {"{'messages': [{'role': 'user', 'content': 'a'}], 'functions': [{'name': 'f'}]}",
         "the conversation has \"functions\", which is not read and which could be a part of what is said: "
         "remove it, or leave it out with --ignore functions (data.ignore); a variable of the model's "
         "chat_template is a member of \"chat_template_kwargs\""},
        {"{'messages': [{'role': 'user', 'content': 'a'}], 'chat_template_kwargs': {'bos_token': 'x'}}",
         "\"chat_template_kwargs\" has \"bos_token\", which the template gets from elsewhere"},
        {"{'messages': [{'role': 'user', 'content': 'a'}], 'chat_template_kwargs': 'x'}",
         "\"chat_template_kwargs\" is a string, not an object"},
        {"{'messages': [{'role': 'user', 'content': 'a'}], 'chat_template_kwargs': {'x': 1}}",
         "the conversation has \"chat_template_kwargs\", but template chatml, which axonn writes itself, has "
         "no variables"},
        {"{'messages': [{'role': 'user', 'content': 'a'}], 'documents': [{'x': 1}]}",
         "the conversation has \"documents\", but template chatml"},
        {"{'messages': [{'role': 'user', 'content': 'a'}], 'documents': ['x']}",
         "element 1 of \"documents\" is a string, not an object"},
        {"{'prompt': 'a', 'completion': 'b', 'chat_template_kwargs': {'x': 1}}",
         "\"chat_template_kwargs\" stands beside the strings"},
        {"{'question': 'a', 'answer': 'b', 'context': 'c'}", "the conversation has \"context\""},
        {"{'messages': [{'role': 'user', 'content': 'a'}], 'answer': 'c'}",
         "the conversation has \"answer\""},
        {"{'prompt': 'a', 'completion': 'b', 'system': 'c'}", "\"system\" stands beside the strings"},
        {"{'prompt': 'a', 'completion': 'b', 'reasoning': 'c'}", "\"reasoning\" stands beside the strings"},
        {"{'instruction': 'a', 'output': 'b', 'history': [['c']]}", "element 1 of \"history\" is not a pair"},
        {"{'instruction': 'a', 'output': 'b', 'history': 'c'}",
         "\"history\" is a string, not a list of pairs"},
        {"{'system': 's', 'messages': [{'role': 'system', 'content': 'a'}]}",
         "turn 2 has the role system, but follows the role system"},
        {"{'messages': [{'role': 'user', 'content': 'a'}, {'role': 'assistant', 'content': 'b', 'weight': "
         "0.5}]}",
         "turn 2: \"weight\" must be 1 or true (the turn is a target), or 0 or false"},
        {"{'messages': [{'role': 'user', 'content': 'a', 'train': true}]}",
         "turn 1: \"train\" marks the turn as a target, but only turns of the assistant"},
        {"{'messages': [{'role': 'user', 'content': 'a'}, {'role': 'assistant', 'content': 'b', 'reasoning': "
         "'c', "
         "'thinking': 'd'}]}",
         "turn 2: \"thinking\" is another reasoning than the one the turn already has"},
        {"{'system': 3, 'conversations': []}",
         "turn 1: \"system\" must be a string or a list of texts, but is an integer"},
        {"{'messages': [{'role': 'assistant', 'content': 'a'}]}",
         "turn 1 has the role assistant, but is the first: a conversation may begin with a turn of the "
         "system"},
        {"{'messages': [{'role': 'user', 'content': 'a'}, {'role': 'user', 'content': 'a'}]}",
         "turn 2 has the role user, but follows the role user"},
        {"{'messages': [{'role': 'system', 'content': 'a'}, {'role': 'assistant', 'content': 'a'}]}",
         "turn 2 has the role assistant, but follows the role system"},
        {"{'messages': [{'role': 'user', 'content': 'a'}, {'role': 'system', 'content': 'a'}]}",
         "turn 2 has the role system, but follows the role user"},
        {"{'messages': [{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': 'a', 'weight': "
         "0}]}",
         "nothing of the conversation is learned"},
    };
    scratch *s = *state;
    ax_tokenizer *tok;
    ax_chat *chat;
    OK(ax_tokenizer_load(put_chatml(s), &tok));
    OK(ax_chat_create(tok, NULL, &chat));
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        /* In a file, the message begins with file and line. */
        ax_buf line = {0};
        OK(ax_buf_printf(&line, "{'text': 'x'}\n\n%s\n", cases[i][0]));
        set_quotes(line.data);
        const char *path = put_file(s, "bad.jsonl", line.data, line.size);
        ax_data_build_options how = {.corpus = {.inputs = &path, .n_inputs = 1, .chat = chat},
                                     .tokenizer = tok,
                                     .output = in_scratch(s, "bad.tok")};
        char where[1200];
        snprintf(where, sizeof where, "%s:3: %s", path, cases[i][1]);
        FAILS(AX_ERR_DATA, where, ax_data_build(&how, NULL));
        assert_false(ax_path_exists(how.output));
        ax_buf_fini(&line);
    }
    ax_chat_destroy(&chat);
    ax_tokenizer_destroy(&tok);
}

/* Expects the text of the only document of a token file, with its targets in brackets, and without the
 * end-of-text token that closes a document. */
static void expect_bracketed(const ax_tokenizer *tok, const char *path, const char *expected)
{
    ax_data *data;
    ax_buf text = {0};
    int64_t first, end;
    uint64_t bits[16] = {0};
    int32_t ids[1024];
    bool open = false;
    OK(ax_data_open(path, -1, &data));
    OK(ax_data_document(data, 0, &first, &end));
    OK(ax_data_tokens(data, first, end - first, ids));
    OK(ax_data_mask(data, first, end - first, bits));
    const bool closed = ids[end - first - 1] == ax_tokenizer_eos(tok) && !strstr(expected, "<|endoftext|>");
    for (int64_t i = 0; i < end - first - closed; i++) {
        const bool target = bits[i / 64] >> (i % 64) & 1;
        size_t n;
        if (target != open)
            OK(ax_buf_add(&text, target ? "[" : "]", 1));
        open = target;
        const char *piece = ax_tokenizer_piece(tok, ids[i], &n);
        OK(ax_buf_add(&text, piece, n));
    }
    OK(ax_buf_add(&text, "]", open ? 2 : 0));
    if (!open)
        OK(ax_buf_add(&text, "", 1));
    assert_string_equal(text.data, expected);
    ax_buf_fini(&text);
    ax_data_close(&data);
}

/* Which members of a record are read, and which tokens are targets. */
static void records_are_read(void **state)
{
#define Q(q) "<|im_start|>user\n" q "<|im_end|>\n<|im_start|>assistant\n"
#define A(a) "[" a "<|im_end|>\n]"
#define OLD(a) a "<|im_end|>\n"
#define SYSTEM "<|im_start|>system\ns<|im_end|>\n"
#define END "<|endoftext|>"
#define QA Q("q") A("a")
    static const struct {
        const char *key, *ignore, *record, *expected; /* targets in brackets */
    } cases[] = {
        {NULL, NULL, "{'text': 't', 'prompt': 'q', 'response': 'a'}", QA},
        {"text", NULL, "{'text': 't', 'prompt': 'q', 'completion': 'a'}", "[t]"},
        {"body", NULL, "{'body': 't', 'messages': [{'role': 'user', 'content': 'q'}]}", "[t]"},
        {"body", NULL, "{'body': null, 'instruction': 'q', 'output': 'a'}", QA},
        {"body", NULL, "{'instruction': 'q', 'output': 'a', 'text': 't'}", QA},
        {NULL, NULL, "{'messages': null, 'text': 't'}", "[t]"},
        {NULL, NULL, "{'messages': null, 'conversations': null, 'question': 'q', 'answer': 'a'}", QA},
        {NULL, NULL, "{'prompt': 'q', 'text': 't'}", "[t]"},
        {NULL, NULL,
         "{'system': 's', 'conversations': [{'from': 'human', 'value': 'q'}, {'from': 'gpt', 'value': 'a'}]}",
         SYSTEM QA},
        {NULL, NULL,
         "{'system': '', 'tools': [], 'conversations': [{'from': 'human', 'value': 'q'}, {'from': 'gpt', "
         "'value': 'a', 'tool_calls': null}]}",
         QA},
        /* Members beside the conversation. */
        {NULL, NULL,
         "{'id': 'x', 'source_url': 'y', 'scores': [1], 'n': 3, 'instruction': 'q', 'output': 'a'}", QA},
        {NULL, NULL, "{'system': 's', 'instruction': 'q', 'output': 'a', 'history': [['h', 'i']]}",
         SYSTEM Q("h") A("i") QA},
        {NULL, NULL, "{'system_prompt': 's', 'question': 'q', 'answer': 'a'}", SYSTEM QA},
        {NULL, NULL,
         "{'system': 's', 'messages': [{'role': 'system', 'content': 's'}, {'role': 'user', 'content': 'q'}, "
         "{'role': 'assistant', 'content': 'a', 'name': 'x'}]}",
         SYSTEM QA},
        {NULL, NULL, "{'instruction': 'q', 'context': 'c', 'response': 'a', 'category': 'closed_qa'}",
         Q("q\nc") A("a")},
        {NULL, "tools", "{'tools': ['x'], 'instruction': 'q', 'output': 'a'}", QA},
        {NULL, "system", "{'system': 's', 'prompt': 'q', 'response': 'a'}", QA},
        {NULL, "tool_calls",
         "{'messages': [{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': null, "
         "'tool_calls': "
         "['x']}]}",
         Q("q") A("")},
        /* Turns. */
        {NULL, NULL,
         "{'messages': [{'role': 'developer', 'content': 's'}, {'role': 'user', 'content': [{'type': 'text', "
         "'text': 'q'}]}, {'role': 'assistant', 'content': [{'type': 'text', 'text': 'a'}, {'type': 'text', "
         "'text': 'b'}]}]}",
         SYSTEM Q("q") A("ab")},
        {NULL, NULL,
         "{'messages': [{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': 'a', 'weight': "
         "0}, "
         "{'role': 'user', 'content': 'q', 'weight': 1}, {'role': 'assistant', 'content': 'a', 'weight': "
         "1.0}]}",
         Q("q") OLD("a") QA},
        {NULL, NULL,
         "{'messages': [{'role': 'user', 'content': 'q', 'train': false}, {'role': 'assistant', 'content': "
         "'a', "
         "'train': false}, {'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': 'a', 'loss': "
         "true}]}",
         Q("q") OLD("a") QA},
        {NULL, NULL,
         "{'prompt': [{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': 'o'}, {'role': "
         "'user', "
         "'content': 'q'}], 'completion': [{'role': 'assistant', 'content': 'a'}]}",
         Q("q") OLD("o") QA},
        /* TRL's plain texts: no template, and special tokens in them are tokens. */
        {NULL, NULL, "{'prompt': 'q', 'completion': 'a'}", "q[a" END "]"},
        {NULL, NULL, "{'prompt': 'q', 'completion': 'a<|endoftext|>'}", "q[a" END "]"},
        {NULL, NULL, "{'prompt': '', 'completion': 'a', 'id': 3}", "[a" END "]"},
    };
    scratch *s = *state;
    ax_tokenizer *tok;
    ax_chat *chat;
    OK(ax_tokenizer_load(put_chatml(s), &tok));
    OK(ax_chat_create(tok, NULL, &chat));
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        ax_buf line = {0};
        ax_strings ignore = {(char *[]){(char *)cases[i].ignore}, cases[i].ignore != NULL};
        OK(ax_buf_printf(&line, "%s\n", cases[i].record));
        set_quotes(line.data);
        const char *path = put_file(s, "record.jsonl", line.data, line.size),
                   *out = in_scratch(s, "record.tok");
        OK(ax_data_build(&(ax_data_build_options){.corpus = {.inputs = &path,
                                                             .n_inputs = 1,
                                                             .chat = chat,
                                                             .ignore = ignore,
                                                             .text_key = cases[i].key},
                                                  .tokenizer = tok,
                                                  .output = out,
                                                  .threads = 1},
                         NULL));
        expect_bracketed(tok, out, cases[i].expected);
        ax_buf_fini(&line);
    }
    ax_chat_destroy(&chat);
    ax_tokenizer_destroy(&tok);
#undef Q
#undef A
#undef OLD
#undef SYSTEM
#undef END
#undef QA
}
/* Conversations and texts in one file, on one thread and on four: documents, masks, what is left out. */
static void token_files(void **state)
{
    scratch *s = *state;
    ax_tokenizer *tok;
    ax_chat *chat;
    ax_buf file = {0};
    OK(ax_tokenizer_load(put_chatml(s), &tok));
    OK(ax_chat_create(tok, NULL, &chat));
    for (int i = 0; i < 500; i++) {
        OK(ax_buf_printf(&file,
                         "{\"messages\": [{\"role\": \"user\", \"content\": \"q%d\"}, {\"role\": "
                         "\"assistant\", \"content\": \"a%d\"}]}\n",
                         i, i));
        OK(ax_buf_printf(&file, "{\"text\": \"t%d\"}\n{\"prompt\": \"only\", \"text\": \"\"}\n", i));
        OK(ax_buf_printf(&file, "{\"messages\": [{\"role\": \"user\", \"content\": \"no answer\"}]}\n"));
        OK(ax_buf_printf(&file, "{\"prompt\": \"\\ud800\", \"completion\": \"x\"}\n"));
    }
    const char *path = put_file(s, "chats.jsonl", file.data, file.size);
    for (int threads = 1; threads <= 4; threads += 3) {
        ax_data_build_report report;
        ax_data *data;
        OK(ax_data_build(
            &(ax_data_build_options){
                .corpus = {.inputs = &path, .n_inputs = 1, .chat = chat, .bad_lines = 500},
                .tokenizer = tok,
                .output = in_scratch(s, threads == 1 ? "one.tok" : "four.tok"),
                .threads = threads},
            &report));
        assert_int_equal(report.conversations, 500);
        assert_int_equal(report.unanswered, 500);
        assert_int_equal(report.bad_lines, 500);
        assert_int_equal(report.train.documents, 1000);
        OK(ax_data_open(in_scratch(s, threads == 1 ? "one.tok" : "four.tok"), -1, &data));
        OK(ax_data_check(data));
        assert_int_equal(ax_data_describe(data)->targets, report.train.targets);
        for (int64_t d = 0; d < 1000; d++) {
            int64_t first, end;
            uint64_t bits[4];
            OK(ax_data_document(data, d, &first, &end));
            assert_in_range(end - first, 2, 200);
            OK(ax_data_mask(data, first, end - first, bits));
            if (d % 2)
                assert_int_equal(bits[0], (UINT64_C(1) << (end - first)) - 1);
            else
                assert_int_equal(bits[0] & 1, 0);
        }
        ax_data_close(&data);
    }
    char *a, *b;
    size_t m, n;
    OK(ax_file_read(in_scratch(s, "one.tok"), &a, &m));
    OK(ax_file_read(in_scratch(s, "four.tok"), &b, &n));
    assert_int_equal(m, n);
    assert_memory_equal(a, b, m);
    free(a);
    free(b);
    ax_buf_fini(&file);
    ax_chat_destroy(&chat);
    ax_tokenizer_destroy(&tok);
}

/* All bad records of all files are listed, and left out only if the caller said how many may be. */
static void bad_conversations(void **state)
{
    scratch *s = *state;
    ax_tokenizer *tok;
    ax_chat *chat;
    ax_buf file = {0};
    static const char second[] = "{\"text\": null}\n{\"text\": \"t\"}\n{\"messages\": 1}\n";
    OK(ax_tokenizer_load(put_chatml(s), &tok));
    OK(ax_chat_create(tok, NULL, &chat));
    for (int i = 0; i < 60; i++)
        OK(ax_buf_printf(&file,
                         "{\"messages\": [{\"role\": \"user\", \"content\": \"q%d\"}, {\"role\": "
                         "\"%s\", \"content\": %s}]}\n",
                         i, i % 3 == 1 ? "tool" : "assistant", i % 20 == 3 ? "null" : "\"a\""));
    const char *paths[] = {put_file(s, "a.jsonl", file.data, file.size),
                           put_file(s, "b.jsonl", second, strlen(second))};
    for (int threads = 1; threads <= 4; threads += 3) {
        ax_data_build_options o = {.corpus = {.inputs = paths, .n_inputs = 2, .chat = chat, .bad_lines = -1},
                                   .tokenizer = tok,
                                   .output = in_scratch(s, "out.tok"),
                                   .threads = threads};
        ax_data_build_report report;
        FAILS(AX_ERR_DATA, "23 records cannot be used, allowed: 0;", ax_data_build(&o, NULL));
        assert_non_null(strstr(ax_error_message(), "--bad-lines 24 (data.bad_lines)"));
        assert_non_null(strstr(ax_error_message(), "a.jsonl:2: turn 2 has the role tool, but follows"));
        assert_non_null(strstr(ax_error_message(), "a.jsonl:4: turn 2: \"content\" must be a string"));
        assert_non_null(strstr(ax_error_message(), "a.jsonl:8: the same\n"));
        assert_non_null(strstr(ax_error_message(), "\nand 3 more"));
        o.corpus.bad_lines = 23;
        FAILS(AX_ERR_DATA, "24 records cannot be used, allowed: 23;", ax_data_build(&o, NULL));
        assert_false(ax_path_exists(o.output));
        o.corpus.bad_lines = 24;
        OK(ax_data_build(&o, &report));
        assert_int_equal(report.bad_lines, 24);
        assert_int_equal(report.conversations, 38);
        assert_int_equal(report.train.documents, 39);
        OK(ax_remove_tree(o.output));
    }
    /* A signal acts between records, not only between units of many. */
    int64_t first;
    ax_data_build_options o = {.corpus = {.inputs = paths, .n_inputs = 2, .chat = chat, .bad_lines = 24},
                               .tokenizer = tok,
                               .output = in_scratch(s, "out.tok")};
    (void)ax_signal_again(&first);
    FAILS(AX_ERR_SIGNAL, "was stopped by a signal", ax_data_build(&o, NULL));
    ax_signal_forget();
    assert_false(ax_path_exists(o.output));
    ax_buf_fini(&file);
    ax_chat_destroy(&chat);
    ax_tokenizer_destroy(&tok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(refused_records, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(records_are_read, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(token_files, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(bad_conversations, files_setup, files_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
