/* Runs the program from a test. */
#ifndef AX_TESTS_CLI_TEST_H
#define AX_TESTS_CLI_TEST_H

#include "axonn/base.h"
#include "support/sanitized.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define AXONN AXONN_BUILD_DIR "/axonn"

/* Runs a shell command and stores its standard output in *out. Returns its exit code. */
static inline int shell(const char *command, ax_buf *out)
{
    out->size = 0;
    assert_int_equal(ax_buf_add(out, "", 0), AX_OK);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    char bytes[4096];
    for (size_t n; (n = fread(bytes, 1, sizeof bytes, pipe)) > 0;)
        assert_int_equal(ax_buf_add(out, bytes, n), AX_OK);
    int status = pclose(pipe);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Runs a shell command that prints a JSON object and must succeed. The caller releases the object. */
static inline json_t *json_of(const char *command)
{
    ax_buf out = {0};
    int code = shell(command, &out);
    json_t *object = json_loads(out.data, 0, NULL);
    if (code || !object)
        fail_msg("%s: exit code %d, printed:\n%s", command, code, out.data);
    ax_buf_fini(&out);
    return object;
}

/* Asserts that `text` contains `part`, and shows both if not. */
static inline void assert_contains(const char *text, const char *part)
{
    if (!strstr(text, part))
        assert_string_equal(text, part);
}

/* Whether the program can start several ranks. Under a sanitizer they are left out: MPI libraries leak. */
static inline bool has_ranks(void)
{
    ax_buf out = {0};
    if (SANITIZED)
        return false;
    (void)shell(AXONN " generate nowhere --tokens 1 --ranks 2 2>&1", &out);
    bool has = !strstr(out.data, "without MPI");
    ax_buf_fini(&out);
    return has;
}

#endif
