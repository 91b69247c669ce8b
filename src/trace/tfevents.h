/* TensorBoard event files: records of length, checksum, protobuf and checksum. */
#ifndef AXONN_TRACE_TFEVENTS_H
#define AXONN_TRACE_TFEVENTS_H

#include "axonn/base.h"

/* CRC-32C (Castagnoli), as RFC 3720 has it. */
uint32_t ax_crc32c(const void *data, size_t n);

typedef struct ax_scalar {
    const char *tag;
    double value;
} ax_scalar;

/* Creates DIR/events.out.tfevents.<time>.<host>.<pid> with its version record; *fd is the caller's to close.
 */
ax_status ax_tfevents_open(const char *dir, int *fd);
/* One event with up to 16 scalars of tags of up to 48 bytes. Allocates nothing. */
ax_status ax_tfevents_add(int fd, double wall_time, int64_t step, const ax_scalar *scalars, int n);

#endif
