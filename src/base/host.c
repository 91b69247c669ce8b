/* Computes a key that identifies the host. */
#include "axonn/base.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* Hashes the host's name together with the kernel's boot id. The name alone is not enough, because cloned
 * machines may have the same name; nor is the boot id alone, because containers of one machine share it. */
uint64_t ax_host_key(void)
{
    char text[256 + 64] = "";
    gethostname(text, 255);
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t n = read(fd, text + strlen(text), 63);
        (void)n; /* without a boot id the key is the hash of the name */
        close(fd);
    }
    return ax_rng_key(0, text, 0);
}
