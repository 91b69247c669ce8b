/* Loops over many like cases, of which a test runs some and a campaign all. */
#ifndef AX_TESTS_SAMPLED_H
#define AX_TESTS_SAMPLED_H

#include "support/sanitized.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

/* Returns n: the test runs one of n cases. That is `release` or, with a sanitizer, `sanitized`; and 1 in the
 * campaign of the test (labels long and sampled, tests/CMakeLists.txt), which sets AXONN_TEST_ALL. */
static inline int one_of(int release, int sanitized)
{
    return getenv("AXONN_TEST_ALL") ? 1 : SANITIZED ? sanitized : release;
}

/* Whether this build runs case i: with a sanitizer one of n cases, otherwise all the others, so that two
 * builds together run each case once; and each case in the campaign of the test. The thread sanitizer's build
 * repeats a third of the sanitized cases: like cases run the same code on their threads. */
static inline bool my_share(size_t i, size_t n)
{
    size_t every = THREAD_SANITIZED ? 3 * n : n;
    return getenv("AXONN_TEST_ALL") || (SANITIZED ? i % every == 0 : i % n != 0);
}

#endif
