/* Computes keys that identify the host and its kernel. */
#include "axonn/base.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* Adds the kernel's boot id to a text of 64 more bytes. Returns false if it is not known. */
static bool add_boot_id(char *text)
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    const ssize_t n = read(fd, text + strlen(text), 63);
    close(fd);
    return n > 0;
}

/* Hashes the host's name together with the kernel's boot id. The name alone is not enough, because cloned
 * machines may have the same name; nor is the boot id alone, because containers of one machine share it. */
uint64_t ax_host_key(void)
{
    char text[256 + 64] = "";
    gethostname(text, 255);
    add_boot_id(text); /* without it the key is the hash of the name */
    return ax_rng_key(0, text, 0);
}

uint64_t ax_kernel_key(void)
{
    char text[64] = "";
    return add_boot_id(text) ? ax_rng_key(0, text, 0) : ax_host_key();
}
