/* Reads compressed files (gzip, zstd) as streams of the bytes that they hold, in constant memory. zlib and
 * libzstd are optional at build time. */
#include "data/unpack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef AXONN_HAVE_ZLIB
#include <zlib.h>
#endif
#ifdef AXONN_HAVE_ZSTD
#include <zstd.h>
#endif

enum { INPUT_BYTES = 1 << 16 };

struct data_unpacker {
    const char *path;
    int fd;
    data_packing packing;
    int64_t at;        /* offset in the file of the byte after `in` */
    int64_t made;      /* bytes returned so far */
    size_t used, size; /* the bytes in[used ... size-1] are not decompressed yet */
    bool file_end;     /* the file has no bytes after `in` */
    bool ended;        /* the compressed stream is complete; another one may follow it in the file */
#ifdef AXONN_HAVE_ZLIB
    z_stream z;
#endif
#ifdef AXONN_HAVE_ZSTD
    ZSTD_DCtx *zstd;
#endif
    unsigned char in[INPUT_BYTES];
};

data_packing data_packing_of(const char *head, size_t n)
{
    if (n >= 3 && !memcmp(head, "\x1f\x8b\x08", 3))
        return DATA_GZIP;
    /* A file of zstd may begin with a frame that holds no data, of magic 0x184d2a50 to 0x184d2a5f. */
    if (n >= 4 && (!memcmp(head, "\x28\xb5\x2f\xfd", 4) ||
                   ((head[0] & 0xf0) == 0x50 && !memcmp(head + 1, "\x2a\x4d\x18", 3))))
        return DATA_ZSTD;
    return DATA_PLAIN;
}

/* ---- libraries ----------------------------------------------------------------------------------- */

#ifdef AXONN_HAVE_ZLIB
static bool start_gzip(data_unpacker *u) { return inflateInit2(&u->z, 15 + 16) == Z_OK; }
static void end_gzip(data_unpacker *u) { inflateEnd(&u->z); }

/* After a stream, zeros are padding, and anything else is a further stream. Returns false if there is none.
 */
static bool begin_member(data_unpacker *u)
{
    while (u->ended && u->used < u->size && !u->in[u->used])
        u->used++;
    if (u->used == u->size)
        return false;
    if (u->ended)
        inflateReset(&u->z);
    u->ended = false;
    return true;
}

static const char *step_gzip(data_unpacker *u, char *out, size_t n, size_t *made)
{
    if (u->ended && !begin_member(u))
        return NULL;
    u->z.next_in = u->in + u->used;
    u->z.avail_in = (uInt)(u->size - u->used);
    u->z.next_out = (unsigned char *)out;
    u->z.avail_out = (uInt)n;
    int result = inflate(&u->z, Z_NO_FLUSH);
    u->used = u->size - u->z.avail_in;
    *made = n - u->z.avail_out;
    u->ended = result == Z_STREAM_END;
    if (result == Z_OK || result == Z_BUF_ERROR || result == Z_STREAM_END)
        return NULL;
    return u->z.msg ? u->z.msg : "not a stream of gzip";
}
#endif

#ifdef AXONN_HAVE_ZSTD
static bool start_zstd(data_unpacker *u) { return (u->zstd = ZSTD_createDCtx()) != NULL; }
static void end_zstd(data_unpacker *u) { ZSTD_freeDCtx(u->zstd); }

static const char *step_zstd(data_unpacker *u, char *out, size_t n, size_t *made)
{
    ZSTD_inBuffer in = {u->in, u->size, u->used};
    ZSTD_outBuffer to = {out, n, 0};
    if (u->ended && u->used == u->size)
        return NULL;
    size_t left = ZSTD_decompressStream(u->zstd, &to, &in);
    u->used = in.pos;
    *made = to.pos;
    u->ended = left == 0;
    return ZSTD_isError(left) ? ZSTD_getErrorName(left) : NULL;
}
#endif

/* The kinds of compression. `step` decompresses at most n bytes from u->in, and returns NULL or the reason
 * why it cannot; NULL: this program was built without the library. */
static const struct {
    const char *name, *library;
    bool (*start)(data_unpacker *u);
    const char *(*step)(data_unpacker *u, char *out, size_t n, size_t *made);
    void (*end)(data_unpacker *u);
} kinds[] = {
    [DATA_PLAIN] = {.name = "plain"},
#ifdef AXONN_HAVE_ZLIB
    [DATA_GZIP] = {"gzip", "zlib (zlib1g-dev)", start_gzip, step_gzip, end_gzip},
#else
    [DATA_GZIP] = {.name = "gzip", .library = "zlib (zlib1g-dev)"},
#endif
#ifdef AXONN_HAVE_ZSTD
    [DATA_ZSTD] = {"zstd", "libzstd (libzstd-dev)", start_zstd, step_zstd, end_zstd},
#else
    [DATA_ZSTD] = {.name = "zstd", .library = "libzstd (libzstd-dev)"},
#endif
};

const char *data_packing_name(data_packing packing) { return kinds[packing].name; }

static const char *absent_library(data_packing packing)
{
    return kinds[packing].step ? NULL : kinds[packing].library;
}

const char *ax_data_absent_gzip(void) { return absent_library(DATA_GZIP); }
const char *ax_data_absent_zstd(void) { return absent_library(DATA_ZSTD); }

/* ---- reading ------------------------------------------------------------------------------------- */

ax_status data_unpack_start(int fd, const char *path, data_packing packing, data_unpacker **out)
{
    const char *absent = absent_library(packing);
    data_unpacker *u;
    *out = NULL;
    AX_CHECK(
        !absent, AX_ERR_DATA,
        "%s is compressed (%s), and this program was built without %s: unpack the file first, or build axonn "
        "with that library",
        path, data_packing_name(packing), absent);
    AX_TRY(ax_calloc(1, sizeof *u, &u));
    u->path = path;
    u->fd = fd;
    u->packing = packing;
    if (!kinds[packing].start(u)) {
        free(u);
        return ax_fail(AX_ERR_MEMORY, "not enough memory to decompress %s", path);
    }
    *out = u;
    return AX_OK;
}

void data_unpack_end(data_unpacker **unpacker)
{
    data_unpacker *u = *unpacker;
    if (!u)
        return;
    kinds[u->packing].end(u);
    free(u);
    *unpacker = NULL;
}

static ax_status refill(data_unpacker *u)
{
    ssize_t n;
    do
        n = pread(u->fd, u->in, sizeof u->in, u->at);
    while (n < 0 && errno == EINTR);
    AX_CHECK(n >= 0, AX_ERR_DATA, "cannot read %s: %s", u->path, strerror(errno));
    u->used = 0;
    u->size = (size_t)n;
    u->at += n;
    u->file_end = !n;
    return AX_OK;
}

int64_t data_unpack_offset(const data_unpacker *u) { return u->at - (int64_t)(u->size - u->used); }

ax_status data_unpack_read(data_unpacker *u, char *out, size_t n, size_t *got)
{
    *got = 0;
    while (*got < n) {
        size_t made, before;
        if (u->used == u->size && !u->file_end)
            AX_TRY(refill(u));
        if (u->ended && u->file_end)
            return AX_OK;
        before = u->used;
        made = 0;
        const char *why = kinds[u->packing].step(u, out + *got, n - *got, &made);
        *got += made;
        u->made += (int64_t)made;
        AX_CHECK(!why, AX_ERR_DATA,
                 "%s is damaged: its compressed data (%s) cannot be read at byte %lld of the file, after "
                 "%lld bytes "
                 "of text: %s; get the file again",
                 u->path, data_packing_name(u->packing), (long long)data_unpack_offset(u), (long long)u->made,
                 why);
        AX_CHECK(made || u->used > before || !u->file_end || u->ended, AX_ERR_DATA,
                 "%s is truncated: its compressed data (%s) end in the middle, at byte %lld of the file, "
                 "after %lld "
                 "bytes of text; get the file again",
                 u->path, data_packing_name(u->packing), (long long)u->at, (long long)u->made);
    }
    return AX_OK;
}

ax_status data_unpack_head(int fd, const char *path, data_packing packing, char *head, size_t bytes,
                           size_t *n)
{
    data_unpacker *u;
    *n = 0;
    AX_TRY(data_unpack_start(fd, path, packing, &u));
    ax_status status = data_unpack_read(u, head, bytes, n);
    data_unpack_end(&u);
    return status;
}
