/* Scratch directories: each test makes one of its own and removes it. */
#ifndef AXONN_TESTS_SUPPORT_SCRATCH_H
#define AXONN_TESTS_SUPPORT_SCRATCH_H

#include "axonn/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { SCRATCH_PATH = 64 };

/* Makes a directory below `parent` and writes its path to `dir`. Returns 0, or -1. */
static inline int scratch_make(const char *parent, char dir[SCRATCH_PATH])
{
    snprintf(dir, SCRATCH_PATH, "%s/axonn-test-XXXXXX", parent);
    return mkdtemp(dir) ? 0 : -1;
}

/* For cmocka: *state is the path. The directory is in memory where possible: tests then do not depend on the
 * disk, and syncs are free. */
static inline int scratch_setup(void **state)
{
    char *dir = malloc(SCRATCH_PATH);
    *state = dir;
    return dir ? scratch_make(access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm", dir) : -1;
}

static inline int scratch_teardown(void **state)
{
    ax_status status = ax_remove_tree(*state);
    free(*state);
    return status == AX_OK ? 0 : -1;
}

#endif
