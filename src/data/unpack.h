/* Compressed files, read as streams. */
#ifndef AXONN_DATA_UNPACK_H
#define AXONN_DATA_UNPACK_H

#include "axonn/data.h"

typedef enum data_packing { DATA_PLAIN, DATA_GZIP, DATA_ZSTD } data_packing;

/* Returns how a file that begins with these bytes is compressed. */
data_packing data_packing_of(const char *head, size_t n);
/* Returns the name of the compression, never NULL. */
const char *data_packing_name(data_packing packing);

/* Reads the bytes that a compressed file holds, from the first to the last. Several streams after one another
 * in the file are read as one. */
typedef struct data_unpacker data_unpacker;

/* Starts at the beginning of the file that is open as `fd`; `fd` and `path`, which is for messages, must
 * outlive the unpacker. AX_ERR_DATA: this program was built without the library. */
AX_MUST_CHECK ax_status data_unpack_start(int fd, const char *path, data_packing packing,
                                          data_unpacker **out);
void data_unpack_end(data_unpacker **unpacker);

/* Reads n bytes, or fewer at the end only; *got says how many. AX_ERR_DATA: the file is truncated or damaged;
 * the message names the place. */
AX_MUST_CHECK ax_status data_unpack_read(data_unpacker *unpacker, char *out, size_t n, size_t *got);

/* Returns how many bytes of the compressed file were used so far. */
int64_t data_unpack_offset(const data_unpacker *unpacker);

/* Reads the first bytes that a compressed file holds, at most `bytes`. */
AX_MUST_CHECK ax_status data_unpack_head(int fd, const char *path, data_packing packing, char *head,
                                         size_t bytes, size_t *n);

#endif
