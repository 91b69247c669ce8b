/* Writes packed token files (axonn/data.h). The tokens are streamed to a temporary file, the document starts
 * to a second, unlinked temporary file. At the end, the document starts are appended to the first file. So
 * memory does not grow with the corpus. */
#include "source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { WRITE_BUFFER = 1 << 20 };

struct ax_token_writer {
    char *path, *aside; /* aside: the temporary file, which is renamed to `path` at the end */
    int fd, index_fd;
    tok_header header;
    XXH3_state_t *hash;
    size_t used, index_used; /* bytes used of `buffer` and of `index_buffer` */
    char *buffer, *index_buffer;
};

/* Creates a temporary file beside `path`, with a name that no other writer uses. The caller frees *name and
 * closes *fd. */
static ax_status create_aside(const char *path, const char *suffix, char **name, int *fd)
{
    size_t n = strlen(path) + 64;
    AX_TRY(ax_calloc(n, 1, name));
    for (int attempt = 0;; attempt++) {
        snprintf(*name, n, "%s.tmp.%ld.%d%s", path, (long)getpid(), attempt, suffix);
        *fd = open(*name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (*fd >= 0)
            return AX_OK;
        if (errno != EEXIST)
            break;
    }
    ax_status status = ax_fail(AX_ERR_DATA, "cannot create %s: %s", path, strerror(errno));
    free(*name);
    *name = NULL;
    return status;
}

/* Appends to the body (the file without its header) and updates the body's hash. So the body must be written
 * in the order of the file. */
static ax_status write_body(ax_token_writer *w, const void *data, size_t bytes)
{
    XXH3_64bits_update(w->hash, data, bytes);
    return ax_write_all(w->fd, data, bytes, w->path);
}

static ax_status flush_tokens(ax_token_writer *w)
{
    size_t bytes = w->used;
    w->used = 0;
    return write_body(w, w->buffer, bytes);
}

static ax_status add_start(ax_token_writer *w)
{
    memcpy(w->index_buffer + w->index_used, &w->header.tokens, 8);
    w->index_used += 8;
    if (w->index_used < WRITE_BUFFER)
        return AX_OK;
    w->index_used = 0;
    return ax_write_all(w->index_fd, w->index_buffer, WRITE_BUFFER, w->path);
}

static ax_status open_writer(ax_token_writer *w, const char *path)
{
    static const char zero[TOK_HEADER_BYTES];
    char *index_name = NULL;
    AX_TRY(ax_file_to_replace(path, &w->path));
    AX_TRY(ax_calloc(WRITE_BUFFER, 1, &w->buffer));
    AX_TRY(ax_calloc(WRITE_BUFFER, 1, &w->index_buffer));
    w->hash = XXH3_createState();
    AX_CHECK(w->hash, AX_ERR_MEMORY, "not enough memory for a hash state");
    XXH3_64bits_reset(w->hash);
    AX_TRY(create_aside(w->path, "", &w->aside, &w->fd));
    AX_TRY(create_aside(w->path, ".index", &index_name, &w->index_fd));
    unlink(index_name);
    free(index_name);
    return ax_write_all(w->fd, zero, sizeof zero, w->path);
}

ax_status ax_token_writer_create(const char *path, int64_t vocab, int64_t end_id, uint64_t tokenizer_hash,
                                 ax_token_writer **out)
{
    *out = NULL;
    AX_CHECK(vocab > 0 && vocab <= INT64_C(1) << 31 && end_id >= -1 && end_id < vocab, AX_ERR_USAGE,
             "cannot write a token file: the vocabulary (%lld) must be 1 to 2^31, and the end-of-text token "
             "(%lld) must be below it, or -1 for none",
             (long long)vocab, (long long)end_id);
    ax_token_writer *w;
    AX_TRY(ax_calloc(1, sizeof *w, &w));
    w->fd = w->index_fd = -1;
    memcpy(w->header.magic, TOK_MAGIC, sizeof w->header.magic);
    w->header.version = TOK_VERSION;
    w->header.token_bytes = vocab <= 65536 ? 2 : 4;
    w->header.vocab = (uint64_t)vocab;
    w->header.end_id = end_id;
    w->header.tokenizer_hash = tokenizer_hash;
    ax_status status = open_writer(w, path);
    if (status != AX_OK)
        ax_token_writer_abandon(&w);
    *out = w;
    return status;
}

static ax_status add_tokens(ax_token_writer *w, const int32_t *tokens, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t token = (uint32_t)tokens[i];
        AX_CHECK(token < w->header.vocab, AX_ERR_DATA,
                 "token %d of document %llu of %s is outside the vocabulary of %llu", tokens[i],
                 (unsigned long long)w->header.documents, w->path, (unsigned long long)w->header.vocab);
        /* On a little-endian host, the first token_bytes bytes of `token` are its low bytes. */
        memcpy(w->buffer + w->used, &token, w->header.token_bytes);
        w->used += w->header.token_bytes;
        if (w->used == WRITE_BUFFER)
            AX_TRY(flush_tokens(w));
    }
    w->header.tokens += (uint64_t)count;
    return AX_OK;
}

ax_status ax_token_writer_add(ax_token_writer *w, const int32_t *tokens, int64_t count, int64_t text_bytes)
{
    int32_t end = (int32_t)w->header.end_id;
    if (!count && end < 0)
        return AX_OK;
    AX_TRY(add_start(w));
    AX_TRY(add_tokens(w, tokens, count));
    if (end >= 0)
        AX_TRY(add_tokens(w, &end, 1));
    w->header.documents++;
    w->header.text_bytes += (uint64_t)text_bytes;
    return AX_OK;
}

static ax_status append_index(ax_token_writer *w)
{
    static const char zero[8];
    tok_header *h = &w->header;
    h->tokens_at = TOK_HEADER_BYTES;
    h->index_at = TOK_HEADER_BYTES + (h->tokens * h->token_bytes + 7) / 8 * 8;
    AX_TRY(write_body(w, zero, h->index_at - TOK_HEADER_BYTES - h->tokens * h->token_bytes));
    size_t kept = w->index_used, spilled = (size_t)(h->documents + 1) * 8 - kept;
    for (size_t at = 0; at < spilled; at += WRITE_BUFFER) { /* index_fd holds whole buffers only */
        AX_TRY(ax_pread_all(w->index_fd, w->buffer, WRITE_BUFFER, (int64_t)at, w->path));
        AX_TRY(write_body(w, w->buffer, WRITE_BUFFER));
    }
    return write_body(w, w->index_buffer, kept);
}

static ax_status sync_parent(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *dir;
    if (!slash)
        return ax_dir_sync(".");
    AX_TRY(ax_strndup(path, slash == path ? 1 : (size_t)(slash - path), &dir));
    ax_status status = ax_dir_sync(dir);
    free(dir);
    return status;
}

static ax_status finish_file(ax_token_writer *w)
{
    tok_header *h = &w->header;
    AX_CHECK(h->documents, AX_ERR_DATA, "no documents: there is nothing to write to %s", w->path);
    AX_TRY(flush_tokens(w));
    AX_TRY(add_start(w));
    AX_TRY(append_index(w));
    h->body_hash = XXH3_64bits_digest(w->hash);
    h->header_hash = tok_header_hash(h);
    AX_TRY(ax_pwrite_all(w->fd, h, sizeof *h, 0, w->path));
    AX_CHECK(!fsync(w->fd), AX_ERR_DATA, "cannot sync %s: %s", w->path, strerror(errno));
    AX_CHECK(!rename(w->aside, w->path), AX_ERR_DATA, "cannot create %s: %s", w->path, strerror(errno));
    free(w->aside);
    w->aside = NULL;
    return sync_parent(w->path);
}

ax_status ax_token_writer_finish(ax_token_writer **writer, ax_data_info *info)
{
    ax_token_writer *w = *writer;
    ax_status status = finish_file(w);
    const tok_header *h = &w->header;
    if (status == AX_OK && info)
        *info = (ax_data_info){.format = AX_DATA_TOK,
                               .token_bytes = (int)h->token_bytes,
                               .tokens = (int64_t)h->tokens,
                               .documents = (int64_t)h->documents,
                               .vocab = (int64_t)h->vocab,
                               .text_bytes = (int64_t)h->text_bytes,
                               .file_bytes = (int64_t)(h->index_at + 8 * (h->documents + 1)),
                               .end_id = h->end_id,
                               .tokenizer_hash = h->tokenizer_hash,
                               .checksum = h->body_hash};
    ax_token_writer_abandon(writer);
    return status;
}

void ax_token_writer_abandon(ax_token_writer **writer)
{
    ax_token_writer *w = *writer;
    if (!w)
        return;
    if (w->fd >= 0)
        close(w->fd);
    if (w->index_fd >= 0)
        close(w->index_fd);
    if (w->aside)
        unlink(w->aside);
    XXH3_freeState(w->hash);
    free(w->buffer);
    free(w->index_buffer);
    free(w->aside);
    free(w->path);
    free(w);
    *writer = NULL;
}
