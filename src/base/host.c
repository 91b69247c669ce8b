/* Which machine this is. */
#include "axonn/base.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* Names are given twice where machines are cloned; an id of each start of a kernel is not, but containers of
 * one machine have the same. */
uint64_t ax_host_key(void)
{
    char text[256 + 64] = "";
    gethostname(text, 255);
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t n = read(fd, text + strlen(text), 63);
        (void)n; /* without it the name has to do */
        close(fd);
    }
    return ax_rng_key(0, text, 0);
}
