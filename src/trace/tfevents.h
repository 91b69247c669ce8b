/* Writes TensorBoard event files. Each record of such a file is a length, a checksum of the length, a
 * protobuf message, and a checksum of the message. */
#ifndef AXONN_TRACE_TFEVENTS_H
#define AXONN_TRACE_TFEVENTS_H

#include "axonn/base.h"

/* Returns the CRC-32C checksum (Castagnoli) of n bytes, as defined in RFC 3720. */
uint32_t ax_crc32c(const void *data, size_t n);

typedef struct ax_scalar {
    const char *tag;
    double value;
} ax_scalar;

/* Creates DIR/events.out.tfevents.<time>.<host>.<pid> and writes the version record. With resume_step > 0,
 * also writes the record that makes TensorBoard drop the steps after resume_step from earlier event files of
 * DIR. The caller closes *fd if it is not negative, also on failure. AX_ERR_DATA. */
AX_MUST_CHECK ax_status ax_tfevents_open(const char *dir, int64_t resume_step, int *fd);
/* Writes one event with up to 16 scalars, whose tags have up to 48 bytes. Allocates nothing. */
AX_MUST_CHECK ax_status ax_tfevents_add(int fd, double wall_time, int64_t step, const ax_scalar *scalars,
                                        int n);

#endif
