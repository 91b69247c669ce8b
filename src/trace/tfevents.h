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

/* Creates DIR/events.out.tfevents.<time>.<host>.<pid> with its version record; with resume_step > 0 also the
 * record at which readers forget what earlier files say of later steps. *fd is the caller's to close if it is
 * not negative, also on failure. AX_ERR_DATA. */
AX_MUST_CHECK ax_status ax_tfevents_open(const char *dir, int64_t resume_step, int *fd);
/* One event with up to 16 scalars of tags of up to 48 bytes. Allocates nothing. */
AX_MUST_CHECK ax_status ax_tfevents_add(int fd, double wall_time, int64_t step, const ax_scalar *scalars,
                                        int n);

#endif
