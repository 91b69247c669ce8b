/* A stream of the device ref, on which kernels run at once, for tests of single kernels. */
#ifndef AXONN_TESTS_REF_STREAM_H
#define AXONN_TESTS_REF_STREAM_H

#include "axonn/dev.h"

extern ax_stream stream;

/* Set-up and teardown of a group of tests: opens the device of `stream`, and closes it. */
int open_ref(void **state);
int close_ref(void **state);

/* Runs a kernel, whose arguments follow in the order of its struct; an error fails the test. */
#define RUN(kernel, ...) assert_int_equal(ax_run_##kernel(&stream, &(ax_##kernel##_args){__VA_ARGS__}), AX_OK)

#endif
