/* Writes packed token files (format: axonn/data.h). The tokens are written to a temporary file, document
 * starts and mask to two further ones. At the end, document starts and mask are appended to the file with the
 * tokens. So memory does not grow with the corpus. */
#include "source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { WRITE_BUFFER = 1 << 20 };

/* 64-bit words (document starts, or mask) that are appended to the token file later. They are collected in a
 * buffer; a full buffer is written to an unlinked temporary file. */
typedef struct spill {
    int fd; /* -1: not open */
    char *buffer;
    size_t used;     /* bytes used of `buffer` */
    uint64_t stored; /* bytes written to the file: always whole buffers */
} spill;

struct ax_token_writer {
    char *path, *aside; /* aside: the temporary file, which is renamed to `path` at the end */
    int fd;
    tok_header header;
    XXH3_state_t *hash;
    char *buffer;
    size_t used; /* bytes used of `buffer` */
    spill index, mask;
    uint64_t mask_word; /* the last bits of the mask, which do not fill a word yet */
    uint64_t mask_bits; /* number of bits of the mask so far; 0 until a document has a mask */
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

/* Appends bytes to the body (the file without its header) and updates the body's hash. Because of the hash,
 * the body must be written in the order of the file. */
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

static ax_status spill_open(const ax_token_writer *w, const char *suffix, spill *s)
{
    char *name = NULL;
    AX_TRY(ax_calloc(WRITE_BUFFER, 1, &s->buffer));
    AX_TRY(create_aside(w->path, suffix, &name, &s->fd));
    unlink(name);
    free(name);
    return AX_OK;
}

static ax_status spill_add(const ax_token_writer *w, spill *s, uint64_t word)
{
    memcpy(s->buffer + s->used, &word, 8);
    s->used += 8;
    if (s->used < WRITE_BUFFER)
        return AX_OK;
    s->used = 0;
    s->stored += WRITE_BUFFER;
    return ax_write_all(s->fd, s->buffer, WRITE_BUFFER, w->path);
}

/* Appends all words of a spill to the body. */
static ax_status spill_append(ax_token_writer *w, const spill *s)
{
    for (uint64_t at = 0; at < s->stored; at += WRITE_BUFFER) {
        AX_TRY(ax_pread_all(s->fd, w->buffer, WRITE_BUFFER, (int64_t)at, w->path));
        AX_TRY(write_body(w, w->buffer, WRITE_BUFFER));
    }
    return write_body(w, s->buffer, s->used);
}

static void spill_close(spill *s)
{
    if (s->fd >= 0)
        close(s->fd);
    free(s->buffer);
}

static ax_status add_start(ax_token_writer *w) { return spill_add(w, &w->index, w->header.tokens); }

static ax_status add_bit(ax_token_writer *w, bool is_target)
{
    w->mask_word |= (uint64_t)is_target << w->mask_bits++ % 64;
    w->header.targets += is_target;
    if (w->mask_bits % 64)
        return AX_OK;
    uint64_t word = w->mask_word;
    w->mask_word = 0;
    return spill_add(w, &w->mask, word);
}

/* Appends bits of value 1 to the mask until the mask has a bit for each token so far. */
static ax_status add_ones(ax_token_writer *w)
{
    while (w->mask_bits < w->header.tokens)
        AX_TRY(add_bit(w, true));
    return AX_OK;
}

static ax_status open_writer(ax_token_writer *w, const char *path)
{
    static const char zero[TOK_HEADER_BYTES];
    AX_TRY(ax_file_to_replace(path, &w->path));
    AX_TRY(ax_calloc(WRITE_BUFFER, 1, &w->buffer));
    w->hash = XXH3_createState();
    AX_CHECK(w->hash, AX_ERR_MEMORY, "not enough memory for the checksum of %s", w->path);
    XXH3_64bits_reset(w->hash);
    AX_TRY(create_aside(w->path, "", &w->aside, &w->fd));
    AX_TRY(spill_open(w, ".index", &w->index));
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
    w->fd = w->index.fd = w->mask.fd = -1;
    memcpy(w->header.magic, TOK_MAGIC, sizeof w->header.magic);
    w->header.version = TOK_VERSION_PLAIN;
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

void ax_token_writer_set_template(ax_token_writer *w, const char *name)
{
    char *field = w->header.chat_template;
    memset(field, 0, AX_CHAT_NAME_BYTES);
    snprintf(field, AX_CHAT_NAME_BYTES, "%s", name);
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
    return w->header.version == TOK_VERSION_MASK ? add_ones(w) : AX_OK;
}

ax_status ax_token_writer_add_masked(ax_token_writer *w, const int32_t *tokens, const uint8_t *is_target,
                                     int64_t count, int64_t text_bytes)
{
    int32_t end = (int32_t)w->header.end_id;
    AX_CHECK(count > 0 && memchr(is_target, 1, (size_t)count), AX_ERR_USAGE,
             "document %llu of %s has no target: a document with a mask needs at least one",
             (unsigned long long)w->header.documents, w->path);
    if (w->header.version == TOK_VERSION_PLAIN) {
        AX_TRY(spill_open(w, ".mask", &w->mask));
        w->header.version = TOK_VERSION_MASK;
        AX_TRY(add_ones(w));
    }
    AX_TRY(add_start(w));
    AX_TRY(add_tokens(w, tokens, count));
    for (int64_t i = 0; i < count; i++)
        AX_TRY(add_bit(w, is_target[i]));
    if (end >= 0 && tokens[count - 1] != end) {
        AX_TRY(add_tokens(w, &end, 1));
        AX_TRY(add_bit(w, false));
    }
    w->header.documents++;
    w->header.text_bytes += (uint64_t)text_bytes;
    return AX_OK;
}

static ax_status append_mask(ax_token_writer *w)
{
    tok_header *h = &w->header;
    if (h->version == TOK_VERSION_PLAIN) {
        memset(h->chat_template, 0, sizeof h->chat_template); /* there was no conversation */
        return AX_OK;
    }
    h->chat_template_hash = tok_chat_template_hash(h);
    if (w->mask_bits % 64)
        AX_TRY(spill_add(w, &w->mask, w->mask_word));
    h->mask_at = h->index_at + 8 * (h->documents + 1);
    h->mask_hash = tok_mask_hash(h);
    return spill_append(w, &w->mask);
}

static ax_status append_index(ax_token_writer *w)
{
    static const char zero[8];
    tok_header *h = &w->header;
    h->tokens_at = TOK_HEADER_BYTES;
    h->index_at = TOK_HEADER_BYTES + (h->tokens * h->token_bytes + 7) / 8 * 8;
    AX_TRY(write_body(w, zero, h->index_at - TOK_HEADER_BYTES - h->tokens * h->token_bytes));
    return spill_append(w, &w->index);
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
    AX_CHECK(h->documents, AX_ERR_DATA, "%s is not written: there are no documents", w->path);
    AX_TRY(flush_tokens(w));
    AX_TRY(add_start(w));
    AX_TRY(append_index(w));
    AX_TRY(append_mask(w));
    h->body_hash = XXH3_64bits_digest(w->hash);
    h->header_hash = tok_header_hash(h);
    AX_TRY(ax_pwrite_all(w->fd, h, sizeof *h, 0, w->path));
    AX_CHECK(!fsync(w->fd), AX_ERR_DATA, "cannot flush %s to disk: %s", w->path, strerror(errno));
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
    bool masked = h->version == TOK_VERSION_MASK;
    if (status == AX_OK && info)
        *info = (ax_data_info){.format = AX_DATA_TOK,
                               .token_bytes = (int)h->token_bytes,
                               .tokens = (int64_t)h->tokens,
                               .documents = (int64_t)h->documents,
                               .targets = masked ? (int64_t)h->targets : -1,
                               .vocab = (int64_t)h->vocab,
                               .text_bytes = (int64_t)h->text_bytes,
                               .file_bytes = (int64_t)(h->index_at + 8 * (h->documents + 1) +
                                                       (masked ? tok_mask_bytes(h->tokens) : 0)),
                               .end_id = h->end_id,
                               .begin_id = -1,
                               .tokenizer_hash = h->tokenizer_hash,
                               .checksum = h->body_hash};
    if (status == AX_OK && info)
        memcpy(info->chat_template, h->chat_template, sizeof h->chat_template);
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
    spill_close(&w->index);
    spill_close(&w->mask);
    if (w->aside)
        unlink(w->aside);
    XXH3_freeState(w->hash);
    free(w->buffer);
    free(w->aside);
    free(w->path);
    free(w);
    *writer = NULL;
}
