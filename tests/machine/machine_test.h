/* Shared by the tests of the room machine. */
#ifndef AX_TEST_MACHINE_H
#define AX_TEST_MACHINE_H

#include "axonn/machine.h"
#include "support/check.h"

/* Opens a description; fails the test if it is wrong. */
static inline ax_machine *open_text(const char *text)
{
    ax_machine *m;
    OK(ax_machine_parse("m.yaml", text, strlen(text), &m));
    return m;
}

static inline void near(double have, double want)
{
    if (!(have > want * (1 - 1e-9) && have < want * (1 + 1e-9)) && !(have == 0 && want == 0))
        fail_msg("%.12g, not %.12g", have, want);
}

#endif
