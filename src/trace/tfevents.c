/* Writes TensorBoard event files. The protobuf messages in them have these field numbers. Event: wall_time =
 * 1 (double), step = 2 (varint), file_version = 3 (string), summary = 5, session_log = 7. Summary: value = 1.
 * Summary.Value: tag = 1 (string), simple_value = 2 (float). SessionLog: status = 1 (enum, START is 1). */
#include "trace/tfevents.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

uint32_t ax_crc32c(const void *data, size_t n)
{
    const unsigned char *p = data;
    uint32_t crc = ~0u;
    while (n--) {
        crc ^= *p++;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

static uint32_t masked(const void *data, size_t n)
{
    uint32_t crc = ax_crc32c(data, n);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* A protobuf message under construction. The put_… functions do not check whether `byte` has room; the limits
 * on scalars and tags of ax_tfevents_add ensure that it has. */
typedef struct message {
    unsigned char byte[2048];
    size_t n;
} message;

static void put_varint(message *m, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        m->byte[m->n++] = (unsigned char)(value | 0x80);
    m->byte[m->n++] = (unsigned char)value;
}

static void put_bytes(message *m, int field, const void *data, size_t n)
{
    put_varint(m, (uint64_t)field << 3 | 2);
    put_varint(m, n);
    memcpy(m->byte + m->n, data, n);
    m->n += n;
}

/* Appends the bytes of a fixed-size field as they are in memory: correct on little-endian hosts only, like
 * all file formats of this program. */
static void put_fixed(message *m, int field, int wire, const void *value, size_t n)
{
    put_varint(m, (uint64_t)field << 3 | (unsigned)wire);
    memcpy(m->byte + m->n, value, n);
    m->n += n;
}

static void put_header(message *m, double wall_time, int64_t step)
{
    put_fixed(m, 1, 1, &wall_time, sizeof wall_time);
    put_varint(m, 2 << 3);
    put_varint(m, (uint64_t)step);
}

static ax_status write_record(int fd, const message *m)
{
    unsigned char record[sizeof m->byte + 16];
    uint64_t length = m->n;
    memcpy(record, &length, 8);
    uint32_t crc = masked(record, 8);
    memcpy(record + 8, &crc, 4);
    memcpy(record + 12, m->byte, m->n);
    crc = masked(m->byte, m->n);
    memcpy(record + 12 + m->n, &crc, 4);
    return ax_write_all(fd, record, m->n + 16,
                        "the TensorBoard event file (tb/events.out.tfevents.* in run.dir)");
}

ax_status ax_tfevents_add(int fd, double wall_time, int64_t step, const ax_scalar *scalars, int n)
{
    message event = {.n = 0}, summary = {.n = 0};
    for (int i = 0; i < n; i++) {
        message value = {.n = 0};
        float number = (float)scalars[i].value;
        put_bytes(&value, 1, scalars[i].tag, strlen(scalars[i].tag));
        put_fixed(&value, 2, 5, &number, sizeof number);
        put_bytes(&summary, 1, value.byte, value.n);
    }
    put_header(&event, wall_time, step);
    put_bytes(&event, 5, summary.byte, summary.n);
    return write_record(fd, &event);
}

static ax_status write_version(int fd)
{
    static const char version[] = "brain.Event:2";
    message event = {.n = 0};
    put_header(&event, ax_wall_clock(), 0);
    put_bytes(&event, 3, version, sizeof version - 1);
    return write_record(fd, &event);
}

/* Appends a SessionLog START event. This event makes TensorBoard drop the events of `step` and later steps
 * from earlier event files of the directory. */
static ax_status write_restart(int fd, int64_t step)
{
    static const unsigned char start[] = {1 << 3, 1};
    message event = {.n = 0};
    put_header(&event, ax_wall_clock(), step);
    put_bytes(&event, 7, start, sizeof start);
    return write_record(fd, &event);
}

ax_status ax_tfevents_open(const char *dir, int64_t resume_step, int *fd)
{
    char host[256] = "localhost";
    ax_buf path = {0};
    *fd = -1;
    (void)gethostname(host, sizeof host - 1);
    AX_TRY(ax_mkdirs(dir));
    ax_status status = ax_buf_printf(&path, "%s/events.out.tfevents.%.0f.%s.%ld", dir, ax_wall_clock(), host,
                                     (long)getpid());
    if (status == AX_OK && (*fd = open(path.data, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) < 0)
        status = ax_fail(AX_ERR_DATA, "cannot create %s: %s", path.data, strerror(errno));
    ax_buf_fini(&path);
    AX_TRY(status);
    AX_TRY(write_version(*fd));
    return resume_step ? write_restart(*fd, resume_step + 1) : AX_OK;
}
