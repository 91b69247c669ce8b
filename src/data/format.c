/* Detects the format of data files: by the first bytes if the format has a magic number, else by the suffix,
 * by the start of the text (.json), and by the files beside it (Megatron-LM). */
#include "source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *ax_data_format_name(ax_data_format format)
{
    static const char *const names[] = {
        "text",           "directory of text", "pipe",         "JSONL",
        "JSON",           "packed tokens",     "llm.c tokens", "llm.c Llama-3 tokens",
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

bool data_is_pattern(const char *path)
{
    return strpbrk(path, "*?[") && !ax_path_exists(path) && !is_megatron_pair(path);
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

ax_status data_read_head(const char *path, char head[DATA_HEAD_BYTES], size_t *n)
{
    int fd;
    ssize_t got;
    *n = 0;
    AX_TRY(ax_file_open(path, &fd));
    while ((got = read(fd, head + *n, DATA_HEAD_BYTES - *n)) > 0 || (got < 0 && errno == EINTR))
        *n += got > 0 ? (size_t)got : 0;
    int error = errno;
    close(fd);
    AX_CHECK(got == 0, AX_ERR_DATA, "cannot read %s: %s", path, strerror(error));
    return AX_OK;
}

/* Recognizes common formats that this program does not read. Returns a phrase to be printed after "it", such
 * as "is compressed (gzip): unpack it first"; NULL for any other format. */
static const char *known_advice(const char *head, size_t n)
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
        if (n >= known[i].bytes && !memcmp(head, known[i].magic, known[i].bytes))
            return known[i].advice;
    return NULL;
}

/* Recognizes common formats of a file that contains a NUL byte: those of known_advice, and text in UTF-16.
 * Returns a phrase to be printed after "it"; NULL for any other format. */
static const char *binary_advice(const char *head, size_t n)
{
    if (n >= 2 && (!memcmp(head, "\xff\xfe", 2) || !memcmp(head, "\xfe\xff", 2)))
        return "is in UTF-16: convert it to UTF-8 first (iconv -f utf-16 -t utf-8)";
    return known_advice(head, n);
}

const char *data_not_text(const char *head, size_t n)
{
    const char *advice = binary_advice(head, n);
    return advice ? advice : "is not text (it holds a NUL byte)";
}

ax_status data_refuse_nul(const char *path, const char *head, size_t n, int64_t offset)
{
    const char *advice = binary_advice(head, n);
    AX_CHECK(!advice, AX_ERR_DATA, "%s cannot be read: it %s", path, advice);
    return ax_fail(
        AX_ERR_DATA,
        "%s is neither text nor a known token file: it holds a NUL byte at offset %lld; if it is text, "
        "remove such bytes (tr -d '\\0'), if it is headerless tokens, name it *.bin",
        path, (long long)offset);
}

ax_data_format data_json_format(const char *head, size_t n, bool complete)
{
    static const char blanks[] = " \t\r\n";
    char text[DATA_HEAD_BYTES + 1];
    snprintf(text, sizeof text, "%.*s", (int)n, head);
    const char *at = text + (strncmp(text, DATA_BOM, strlen(DATA_BOM)) ? 0 : strlen(DATA_BOM));
    at += strspn(at, blanks);
    const char *inside = at + (*at == '[' || *at == '{');
    inside += strspn(inside, blanks);
    if (*at == '[')
        return *inside == '{' || *inside == ']' ? AX_DATA_JSON : AX_DATA_TEXT;
    if (*at != '{' || (*inside != '"' && *inside != '}'))
        return AX_DATA_TEXT;
    /* If the first line ends with }, each line is expected to hold one object (JSONL). The same is assumed if
     * the end of the first line is not in `head`. Else the object is spread over several lines (JSON). */
    size_t line = strcspn(at, "\n");
    bool whole = at[line] || complete;
    while (line && strchr(blanks, at[line - 1]))
        line--;
    return !whole || at[line - 1] == '}' ? AX_DATA_JSONL : AX_DATA_JSON;
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

ax_status data_detect_file(const char *path, ax_data_format *out)
{
    char head[DATA_HEAD_BYTES];
    size_t n = 0;
    int32_t magic = 0;
    struct stat info;
    if (!ax_path_exists(path)) {
        AX_CHECK(is_megatron_pair(path), AX_ERR_DATA, "no such file or directory: %s", path);
        *out = AX_DATA_MEGATRON;
        return AX_OK;
    }
    if (ax_path_is_dir(path)) {
        *out = AX_DATA_TREE;
        return AX_OK;
    }
    if (!stat(path, &info) && !S_ISREG(info.st_mode)) { /* a pipe: bytes read here could not be read again */
        *out = AX_DATA_PIPE;
        return AX_OK;
    }
    AX_TRY(data_read_head(path, head, &n));
    if (detect_magic(head, n, out))
        return AX_OK;
    if (n >= sizeof magic)
        memcpy(&magic, head, sizeof magic);
    AX_CHECK(
        magic != LLMC_MAGIC && magic != LLMC32_MAGIC, AX_ERR_DATA,
        "%s is a token file of llm.c, but its version, the number at offset 4, is not %d: it is damaged, or "
        "was "
        "written by another release of llm.c; build a token file from the text instead (axonn data build)",
        path, magic == LLMC_MAGIC ? 1 : 7);
    AX_CHECK(magic != LLMC_EVAL_MAGIC, AX_ERR_DATA,
             "%s is an evaluation set of llm.c (multiple choice), not a stream of tokens: give a token file "
             "or text",
             path);
    const char *advice = known_advice(head, n);
    AX_CHECK(!advice, AX_ERR_DATA, "%s cannot be read: it %s", path, advice);
    if (data_has_suffix(path, ".bin")) {
        *out = is_megatron_pair(path) ? AX_DATA_MEGATRON : AX_DATA_NANOGPT;
        return AX_OK;
    }
    AX_CHECK(!data_has_suffix(path, ".idx") && !data_has_suffix(path, ".tok"), AX_ERR_DATA,
             "%s is damaged: it has the suffix of a %s but not its first bytes; get it again, or rename a "
             "file of another format",
             path, data_has_suffix(path, ".idx") ? "Megatron-LM index" : "packed token file");
    if (data_has_suffix(path, ".jsonl") || data_has_suffix(path, ".ndjson")) {
        *out = AX_DATA_JSONL;
        return AX_OK;
    }
    const char *zero = memchr(head, 0, n);
    if (zero)
        return data_refuse_nul(path, head, n, zero - head);
    *out = data_has_suffix(path, ".json") ? data_json_format(head, n, n < sizeof head) : AX_DATA_TEXT;
    return AX_OK;
}

ax_status ax_data_detect(const char *path, ax_data_format *out)
{
    data_names names;
    AX_TRY(data_list(path, &names));
    ax_status status = data_detect_file(names.n ? names.path[0] : path, out);
    data_names_fini(&names);
    return status;
}
