/* The loader refuses a plugin for GPUs that was not built with the library. */
#include "axonn/dev.h"

#include "support/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void another_interface_is_refused(void **state)
{
    (void)state;
    ax_device *dev;
    char said[512];
    setenv("AXONN_PLUGINS", OTHER_PLUGIN_DIR, 1);
    snprintf(said, sizeof said,
             OTHER_PLUGIN_DIR
             "/libaxonn_cuda.so was built from commit %s with interface 0123456789abcdef, but ",
             ax_commit());
    FAILS(AX_ERR_USAGE, said, ax_device_open("cuda", 1, &dev));
    FAILS(AX_ERR_USAGE, "libaxonn.so", ax_device_open("cuda", 1, &dev));
    FAILS(AX_ERR_USAGE, "set runtime.plugins to the folder of the plugin", ax_device_open("cuda", 1, &dev));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(another_interface_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
