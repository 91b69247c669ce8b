/* Text that a user types or pipes to standard input. */
#include "verb.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Logs, after two seconds without input, that the program waits for the prompt on standard input: the user
 * may have forgotten to give one. */
static void await_input(void)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    if (poll(&input, 1, 2000) == 0)
        ax_log(AX_LOG_INFO,
               "waiting for the prompt on standard input (or give it with --prompt or --tokens)");
}

/* Returns 3 if the text begins with a UTF-8 byte order mark, which is 3 bytes long, else 0. */
static size_t mark(const char *text, size_t n) { return n >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3) ? 3 : 0; }

/* Removes a byte order mark at the start, and the CR of each line end CR LF: an editor wrote them, not the
 * user. */
static void clean_lines(ax_buf *text)
{
    size_t n = 0;
    for (size_t i = mark(text->data, text->size); i < text->size; i++)
        if (text->data[i] != '\r' || i + 1 == text->size || text->data[i + 1] != '\n')
            text->data[n++] = text->data[i];
    text->size = n;
}

ax_status cli_read_prompt(ax_buf *out)
{
    enum { MOST_BYTES = 64 << 20 }; /* 64 MiB: more text than fits into the positions of any model */
    char bytes[16384];
    await_input();
    for (ssize_t n; (n = read(STDIN_FILENO, bytes, sizeof bytes)) != 0;) {
        if (n < 0 && errno == EINTR)
            continue;
        AX_CHECK(n > 0, AX_ERR_DATA, "the prompt cannot be read from standard input: %s", strerror(errno));
        AX_TRY(ax_buf_add(out, bytes, (size_t)n));
        AX_CHECK(
            out->size <= MOST_BYTES, AX_ERR_DATA,
            "the prompt on standard input is larger than 64 MiB, more than any model can read: shorten it");
    }
    clean_lines(out);
    out->size -= out->size && out->data[out->size - 1] == '\n';
    return AX_OK;
}

ax_status cli_read_line(char **line, size_t *room, ssize_t *n)
{
    if (isatty(STDIN_FILENO))
        fprintf(stderr, "> ");
    *n = getline(line, room, stdin);
    AX_CHECK(*n >= 0 || !ferror(stdin), AX_ERR_DATA, "standard input cannot be read: %s", strerror(errno));
    while (*n > 0 && ((*line)[*n - 1] == '\n' || (*line)[*n - 1] == '\r'))
        --*n;
    size_t skip = *n > 0 ? mark(*line, (size_t)*n) : 0;
    memmove(*line, *line + skip, *n > 0 ? (size_t)*n - skip : 0);
    *n -= (ssize_t)skip;
    return AX_OK;
}
