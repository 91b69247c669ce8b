/* The time that a model's own chat template takes beside the encoding of what it writes.
 *
 *     cmake --build build --target bench_chat && build/bench_chat TOKENIZER TEXT [ANSWERS]
 *
 * TOKENIZER is a directory with tokenizer.json and a chat template, TEXT a file from which conversations of
 * ANSWERS (16) questions and answers are cut, one behind the other. Each round renders and encodes
 * CONVERSATIONS of them, with their targets. The line has the medians of ROUNDS rounds, with their minima and
 * maxima, in microseconds a conversation, and the ratio of the medians. */
#include "axonn/chat.h"
#include "axonn/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 21, CONVERSATIONS = 32, QUESTION = 150, ANSWER = 600 };

static void check(ax_status status)
{
    if (status == AX_OK)
        return;
    fprintf(stderr, "bench_chat: %s\n", ax_error_message());
    exit(1);
}

/* Appends the next message of `n` letters of the text. */
static void add_message(ax_buf *out, const char *role, const char *text, size_t size, size_t *at, int n)
{
    char cut[ANSWER + 1];
    for (int i = 0; i < n; i++) {
        const char c = text[(*at)++ % size];
        cut[i] = (char)(c < ' ' || c == '"' || c == '\\' ? ' ' : c);
    }
    check(ax_buf_printf(out, "%s{\"role\": \"%s\", \"content\": \"%.*s\"}", out->size ? ", " : "[", role, n,
                        cut));
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print(const char *what, double *us)
{
    qsort(us, ROUNDS, sizeof *us, by_value);
    printf("%s %.1f us (%.1f to %.1f)  ", what, us[ROUNDS / 2], us[0], us[ROUNDS - 1]);
}

/* Reads a conversation of the next letters of the text. The JSON value must live as long as the turns. */
static void read_next(const char *text, size_t size, size_t *at, int answers, struct json_t **value,
                      ax_chat_turns *turns)
{
    ax_buf list = {0};
    for (int i = 0; i < answers; i++) {
        add_message(&list, "user", text, size, at, QUESTION);
        add_message(&list, "assistant", text, size, at, ANSWER);
    }
    check(ax_buf_printf(&list, "]"));
    check(ax_json_parse("conversation", list.data, list.size, 0, value));
    turns->n = 0;
    check(ax_chat_read(*value, NULL, turns));
    ax_buf_fini(&list);
}

int main(int argc, char **argv)
{
    static double render[ROUNDS], encode[ROUNDS];
    const int answers = argc > 3 ? atoi(argv[3]) : 16;
    ax_tokenizer *tok;
    ax_chat *chat;
    ax_encoder *encoder;
    ax_chat_turns turns = {0};
    ax_chat_text text = {0};
    ax_ids ids = {0};
    ax_buf mask = {0};
    struct json_t *value;
    char *source;
    size_t size, at = 0;
    if (argc < 3) {
        fprintf(stderr, "bench_chat TOKENIZER TEXT [ANSWERS]\n");
        return 2;
    }
    check(ax_tokenizer_load(argv[1], &tok));
    check(ax_chat_create(tok, NULL, &chat));
    check(ax_encoder_create(tok, &encoder));
    check(ax_file_read(argv[2], &source, &size));
    for (int r = 0; r < ROUNDS; r++)
        for (int c = 0; c < CONVERSATIONS; c++) {
            read_next(source, size, &at, answers, &value, &turns);
            ids.size = mask.size = 0;
            const double start = ax_now();
            check(ax_chat_render(chat, &turns, false, &text));
            const double middle = ax_now();
            check(ax_chat_encode(encoder, &text, &ids, &mask));
            render[r] += (middle - start) * 1e6 / CONVERSATIONS;
            encode[r] += (ax_now() - middle) * 1e6 / CONVERSATIONS;
            /* The program ends soon: values are not released, which would need jansson's functions. */
        }
    printf("%s, %d answers: ", ax_chat_name(chat), answers);
    print("rendering", render);
    print("encoding", encode);
    printf("%.3f\n", render[ROUNDS / 2] / encode[ROUNDS / 2]);
    return 0;
}
