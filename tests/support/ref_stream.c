/* A stream of the device ref. */
#include "support/ref_stream.h"

ax_stream stream;

int open_ref(void **state)
{
    (void)state;
    return ax_device_open("ref", 1, &stream.dev) != AX_OK;
}

int close_ref(void **state)
{
    (void)state;
    ax_device_close(&stream.dev);
    return 0;
}
