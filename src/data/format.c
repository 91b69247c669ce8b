/* Telling formats apart: by first bytes where a format has a magic, else by suffix and neighbours. */
#include "source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *ax_data_format_name(ax_data_format format)
{
    static const char *const names[] = {"text",           "directory of text", "JSONL",
                                        "packed tokens",  "llm.c tokens",      "llm.c Llama-3 tokens",
                                        "nanoGPT tokens", "Megatron-LM tokens"};
    return (unsigned)format < AX_COUNT(names) ? names[format] : "unknown format";
}

bool data_has_suffix(const char *path, const char *suffix)
{
    size_t n = strlen(path), m = strlen(suffix);
    return n >= m && !memcmp(path + n - m, suffix, m);
}

static bool replaced_suffix_exists(const char *path, size_t stem, const char *suffix)
{
    char other[4096];
    int n = snprintf(other, sizeof other, "%.*s%s", (int)stem, path, suffix);
    return n > 0 && (size_t)n < sizeof other && ax_path_exists(other) && !ax_path_is_dir(other);
}

static size_t megatron_stem(const char *path)
{
    size_t n = strlen(path);
    return data_has_suffix(path, ".idx") || data_has_suffix(path, ".bin") ? n - 4 : n;
}

static bool is_megatron_pair(const char *path)
{
    size_t stem = megatron_stem(path);
    return replaced_suffix_exists(path, stem, ".idx") && replaced_suffix_exists(path, stem, ".bin");
}

ax_status data_megatron_paths(const char *path, char **idx, char **bin)
{
    size_t stem = megatron_stem(path);
    char **out[2] = {idx, bin};
    static const char *const suffixes[2] = {".idx", ".bin"};
    *idx = *bin = NULL;
    for (int i = 0; i < 2; i++) {
        AX_TRY(ax_calloc(stem + 5, 1, out[i]));
        memcpy(*out[i], path, stem);
        memcpy(*out[i] + stem, suffixes[i], 4);
    }
    return AX_OK;
}

/* At most `capacity` first bytes. */
static ax_status read_head(const char *path, char *head, size_t capacity, size_t *n)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    AX_CHECK(fd >= 0, AX_ERR_DATA, "cannot open %s: %s", path, strerror(errno));
    ssize_t got;
    *n = 0;
    while ((got = read(fd, head + *n, capacity - *n)) > 0 || (got < 0 && errno == EINTR))
        *n += got > 0 ? (size_t)got : 0;
    int error = errno;
    close(fd);
    AX_CHECK(got == 0, AX_ERR_DATA, "cannot read %s: %s", path, strerror(error));
    return AX_OK;
}

/* Formats that people have and this program does not read, so that they are not taken for something else. */
static ax_status refuse_known(const char *path, const char *head, size_t n)
{
    static const struct {
        const char *magic, *advice;
        size_t bytes;
    } known[] = {
        {"\x1f\x8b", "is compressed (gzip): unpack it first", 2},
        {"\xfd"
         "7zXZ",
         "is compressed (xz): unpack it first", 5},
        {"\x28\xb5\x2f\xfd", "is compressed (zstd): unpack it first", 4},
        {"BZh", "is compressed (bzip2): unpack it first", 3},
        {"PK\x03\x04", "is a zip archive: unpack it first", 4},
        {"PAR1", "is a Parquet file: export its text as JSONL first", 4},
        {"ARROW1", "is an Arrow file: export its text as JSONL first", 6},
        {"BIN.TOK\n", "is a token file of llmq, which is not read here: build one from the text", 8}};
    for (size_t i = 0; i < AX_COUNT(known); i++)
        AX_CHECK(n < known[i].bytes || memcmp(head, known[i].magic, known[i].bytes), AX_ERR_DATA, "%s %s",
                 path, known[i].advice);
    return AX_OK;
}

static bool detect_magic(const char *head, size_t n, ax_data_format *out)
{
    int32_t words[2] = {0};
    if (n >= sizeof words)
        memcpy(words, head, sizeof words);
    if (n >= 8 && !memcmp(head, TOK_MAGIC, 8))
        *out = AX_DATA_TOK;
    else if (n >= 9 && !memcmp(head, MEGATRON_MAGIC, 9))
        *out = AX_DATA_MEGATRON;
    else if (words[0] == LLMC_MAGIC && words[1] == 1)
        *out = AX_DATA_LLMC;
    else if (words[0] == LLMC32_MAGIC && words[1] == 7)
        *out = AX_DATA_LLMC32;
    else
        return false;
    return true;
}

ax_status ax_data_detect(const char *path, ax_data_format *out)
{
    char head[4096];
    size_t n = 0;
    int32_t magic = 0;
    if (!ax_path_exists(path)) {
        AX_CHECK(is_megatron_pair(path), AX_ERR_DATA, "no such file or directory: %s", path);
        *out = AX_DATA_MEGATRON;
        return AX_OK;
    }
    if (ax_path_is_dir(path)) {
        *out = AX_DATA_TREE;
        return AX_OK;
    }
    AX_TRY(read_head(path, head, sizeof head, &n));
    if (detect_magic(head, n, out))
        return AX_OK;
    if (n >= sizeof magic)
        memcpy(&magic, head, sizeof magic);
    AX_CHECK(magic != LLMC_EVAL_MAGIC, AX_ERR_DATA,
             "%s is an evaluation set of llm.c (multiple choice), not a stream of tokens", path);
    AX_TRY(refuse_known(path, head, n));
    if (data_has_suffix(path, ".bin")) {
        *out = is_megatron_pair(path) ? AX_DATA_MEGATRON : AX_DATA_NANOGPT;
        return AX_OK;
    }
    AX_CHECK(!data_has_suffix(path, ".idx") && !data_has_suffix(path, ".tok"), AX_ERR_DATA,
             "%s is damaged: it has the suffix of a %s but not its first bytes", path,
             data_has_suffix(path, ".idx") ? "Megatron-LM index" : "packed token file");
    if (data_has_suffix(path, ".jsonl") || data_has_suffix(path, ".ndjson")) {
        *out = AX_DATA_JSONL;
        return AX_OK;
    }
    AX_CHECK(!memchr(head, 0, n), AX_ERR_DATA,
             "%s is neither text nor a known token file (headerless u16 tokens need the suffix .bin)", path);
    *out = AX_DATA_TEXT;
    return AX_OK;
}
