/* Assertions on calls of the library. */
#ifndef AXONN_TESTS_SUPPORT_CHECK_H
#define AXONN_TESTS_SUPPORT_CHECK_H

#include "axonn/base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* Fails the test, with the library's message, unless the call succeeds. */
#define OK(call)                                                                                             \
    do {                                                                                                     \
        ax_status ok_status_ = (call);                                                                       \
        if (ok_status_ != AX_OK)                                                                             \
            fail_msg("%s: %s: %s", #call, ax_status_name(ok_status_), ax_error_message());                   \
    } while (0)

/* Fails the test unless the call fails with `code` and a message that contains `text`. */
#define FAILS(code, text, call)                                                                              \
    do {                                                                                                     \
        assert_int_equal(call, code);                                                                        \
        if (!strstr(ax_error_message(), text))                                                               \
            fail_msg("\"%s\" does not mention \"%s\"", ax_error_message(), text);                            \
    } while (0)

#endif
