/* Where a text ends: at strings and closing braces, however tokens divide them; and what is printed before.
 */
#include "infer/continuation.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define OK(call) assert_int_equal(call, AX_OK)

typedef struct end_case {
    const char *prompt, *drawn; /* what the model would write */
    const char *until[3];
    bool braces;
    const char *text; /* what remains */
    ax_finish finish;
} end_case;

static const end_case cases[] = {
    {"a", "one two", {"x"}, false, "one two", AX_FINISH_LENGTH},
    {"a", "one STOP two", {"STOP"}, false, "one ", AX_FINISH_STOP},
    {"a", "STOP", {"STOP"}, false, "", AX_FINISH_STOP},
    {"a", "one STOSTOP", {"STOP"}, false, "one STO", AX_FINISH_STOP},
    {"a", "one STO", {"STOP"}, false, "one STO", AX_FINISH_LENGTH},
    {"a", "xabx", {"abc", "b"}, false, "xa", AX_FINISH_STOP},
    {"a", "xabc", {"b", "abc"}, false, "x", AX_FINISH_STOP},
    {"a", "xabc", {"abc", "xabcd"}, false, "x", AX_FINISH_STOP},
    {"a STOP", " b", {"STOP", "P b"}, false, " b", AX_FINISH_LENGTH}, /* the prompt does not count */
    {"a", "gr\303\274\303\237", {"\303\237"}, false, "gr\303\274", AX_FINISH_STOP},
    {"f() {", " if (x) { y; } // }\n}\n", {0}, true, " if (x) { y; } // }", AX_FINISH_STOP},
    {"f() { {", "}", {0}, true, "}", AX_FINISH_LENGTH},
    {"f() { {", "} a } b", {0}, true, "} a }", AX_FINISH_STOP},
    {"} g() { /* { */", "}}} }", {0}, true, "}}", AX_FINISH_STOP},
    {"f()", " { x } y", {0}, true, " { x } y", AX_FINISH_LENGTH}, /* the prompt opens none */
    {"f() {", "a } b", {"a"}, true, "", AX_FINISH_STOP},
    {"f() {", "a } b", {"b"}, true, "a }", AX_FINISH_STOP},
    {"f() {", "a } b", {"} b"}, true, "a ", AX_FINISH_STOP},
};

static ax_status next_document(void *arg, ax_buf *doc, bool *end)
{
    int *left = arg;
    *end = !(*left)--;
    return *end ? AX_OK : ax_buf_printf(doc, "one STOP two STOP } } } { {");
}

/* Sets out to the tokens of a text: merged ones, or its bytes. */
static void encode(const ax_tokenizer *tok, const char *text, bool bytes, ax_ids *out)
{
    ax_encoder *encoder;
    const size_t n = strlen(text);
    out->size = 0;
    OK(ax_encoder_create(tok, &encoder));
    for (size_t i = 0; i < n; i += bytes ? 1 : n)
        OK(ax_encode(encoder, text + i, bytes ? 1 : n, 0, out));
    ax_encoder_destroy(&encoder);
}

static void check_case(const ax_pretrained *model, const end_case *e, bool bytes, bool echo)
{
    char *until[3], taken[256] = "", wanted[256];
    ax_strings strings = {until, 0};
    ax_ids prompt = {0}, drawn = {0};
    ax_continuation c = {0};
    size_t n;
    for (; strings.count < 3 && e->until[strings.count]; strings.count++)
        until[strings.count] = (char *)(uintptr_t)e->until[strings.count];
    encode(model->tokenizer, e->prompt, bytes, &prompt);
    encode(model->tokenizer, e->drawn, bytes, &drawn);
    const ax_text_options o = {
        .max_tokens = (int64_t)drawn.size, .until = &strings, .braces = e->braces, .echo = echo};
    OK(ax_continuation_begin(&c, model, &o, &(ax_prompt){.ids = prompt.data, .n = prompt.size}, 0));
    for (size_t i = 0; c.finish == AX_UNFINISHED; i++) {
        OK(ax_continuation_add(&c, drawn.data[i]));
        const char *part = ax_continuation_take(&c, &n);
        strncat(taken, part, n);
    }
    snprintf(wanted, sizeof wanted, "%s%s", echo ? e->prompt : "", e->text);
    const char *text = ax_continuation_get(&c, &n);
    if (n != strlen(wanted) || memcmp(text, wanted, n) != 0 || strcmp(taken, wanted) != 0 ||
        c.finish != e->finish)
        fail_msg("\"%s\" then \"%s\"%s: text \"%.*s\", taken \"%s\", finish %d, instead of \"%s\"", e->prompt,
                 e->drawn, bytes ? " by bytes" : "", (int)n, text, taken, (int)c.finish, wanted);
    ax_continuation_fini(&c);
    ax_ids_fini(&prompt);
    ax_ids_fini(&drawn);
}

static void strings_and_braces_end_texts(void **state)
{
    (void)state;
    int documents = 4;
    ax_pretrained model = {.config = {.vocab = 270, .seq_len = 256}};
    ax_tokenizer_training training = {.vocab = 262, .next = next_document, .next_arg = &documents};
    OK(ax_tokenizer_train(&training, &model.tokenizer));
    for (size_t i = 0; i < AX_COUNT(cases); i++)
        for (int way = 0; way < 4; way++)
            check_case(&model, &cases[i], way & 1, way & 2);
    ax_tokenizer_destroy(&model.tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(strings_and_braces_end_texts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
