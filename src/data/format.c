/* Detects the format of data files: by the first bytes if the format has a magic number, else by the suffix,
 * by the start of the text (.json), and by the files beside it (Megatron-LM). */
#include "source.h"
#include "unpack.h"

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

static bool is_lines(const char *name)
{
    return data_has_suffix(name, ".jsonl") || data_has_suffix(name, ".ndjson");
}

bool data_is_json(const char *name) { return is_lines(name) || data_has_suffix(name, ".json"); }

#define BLANKS " \t\r\n"

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

/* A file format that is not read. `advice` is to be printed after "it". */
typedef struct foreign {
    const char *magic; /* its bytes at offset `at`; NULL: only `suffix` tells the format */
    int bytes, at;
    const char *suffix; /* as a rule its suffix; NULL: none of its own */
    const char *advice;
    const char *command; /* what converts it, with %s for the path; NULL: nothing in general */
} foreign;

#define FROM_PANDAS(read)                                                                                    \
    "python3 -c \"import pandas as p; p." read                                                               \
    "('%s').to_json('text.jsonl', orient='records', lines=True)\", then --text-key (data.text_key) COLUMN"

static const foreign foreign_formats[] = {
    {"\xfd"
     "7zXZ",
     5, 0, ".xz", "is compressed (xz): unpack it first", "xz -d %s"},
    {"BZh", 3, 0, ".bz2", "is compressed (bzip2): unpack it first", "bzip2 -d %s"},
    {"\x04\x22\x4d\x18", 4, 0, ".lz4", "is compressed (lz4): unpack it first", "lz4 -d %s"},
    {"7z\xbc\xaf\x27\x1c", 6, 0, ".7z", "is an archive (7z): unpack it first", NULL},
    {"PK\x03\x04", 4, 0, ".docx",
     "is a zip archive, as Word's documents and PyTorch's files are: unpack it, or "
     "save its text as .txt, first",
     NULL},
    {"PK\x03\x04", 4, 0, ".zip", "is a zip archive: unpack it first", "unzip %s"},
    {"ustar", 5, 257, ".tar", "is a tar archive: unpack it first", "tar -xf %s"},
    {"PAR1", 4, 0, ".parquet", "is a Parquet file: export its text as JSONL first",
     FROM_PANDAS("read_parquet")},
    {"ARROW1", 6, 0, ".feather", "is an Arrow file: export its text as JSONL first",
     FROM_PANDAS("read_feather")},
    {NULL, 0, 0, ".arrow", "is an Arrow file: export its text as JSONL first",
     "python3 -c \"import datasets as d; d.Dataset.from_file('%s').to_json('text.jsonl')\", then --text-key "
     "(data.text_key) COLUMN"},
    {"\x93NUMPY", 6, 0, ".npy",
     "is an array of NumPy with a header: write its ids without header, if they are "
     "tokens",
     "python3 -c \"import numpy as n; n.load('%s').astype('<u4').tofile('tokens.u32.bin')\""},
    {"\x80\x04\x95", 3, 0, ".pkl", "is a pickle of Python: export its text as JSONL first", NULL},
    {"\x80\x02\x8a\nl", 5, 0, ".pt", "is a file of PyTorch: export its text as JSONL first", NULL},
    {"\x89HDF\r\n", 6, 0, ".h5", "is an HDF5 file: export its text as JSONL first", NULL},
    {"SQLite format 3", 15, 0, ".db", "is a database of SQLite: export its text as JSONL first", NULL},
    {"GGUF", 4, 0, ".gguf", "is a model of llama.cpp (GGUF), not data", NULL},
    {"%PDF-", 5, 0, ".pdf", "is a PDF: extract its text first", "pdftotext %s"},
    {"{\\rtf", 5, 0, ".rtf", "is in Rich Text Format: save it as plain text first", NULL},
    {"version https://git-lfs", 23, 0, NULL, "is a pointer of Git LFS, not the file itself: fetch that first",
     "git lfs pull"},
    {"BIN.TOK\n", 8, 0, NULL, "is a token file of llmq, which is not read here: build one from the text",
     NULL}};

static bool has_magic(const foreign *f, const char *head, size_t n)
{
    size_t end = (size_t)f->at + (size_t)f->bytes;
    return f->magic && n >= end && !memcmp(head + f->at, f->magic, (size_t)f->bytes);
}

/* Returns the format whose first bytes the file has; of several, the one with the file's suffix, else the
 * last; NULL: none of the table. */
static const foreign *foreign_by_magic(const char *path, const char *head, size_t n)
{
    const foreign *found = NULL;
    for (size_t i = 0; i < AX_COUNT(foreign_formats); i++) {
        const foreign *f = &foreign_formats[i];
        if (!has_magic(f, head, n))
            continue;
        found = f;
        if (path && f->suffix && data_has_suffix(path, f->suffix))
            break;
    }
    return found;
}

static const foreign *foreign_by_suffix(const char *path)
{
    for (size_t i = 0; i < AX_COUNT(foreign_formats); i++)
        if (foreign_formats[i].suffix && data_has_suffix(path, foreign_formats[i].suffix))
            return &foreign_formats[i];
    return NULL;
}

enum { NAME_BYTES = 4096 };

/* Sets `name` to `path` or, if the file is compressed, to a name for what it holds. */
static void inner_name(const char *path, data_packing packing, char name[NAME_BYTES])
{
    const char *suffix = packing ? data_packed_suffix(path) : "";
    const int64_t stem = (int64_t)(strlen(path) - strlen(suffix));
    if (packing && !*suffix)
        snprintf(name, NAME_BYTES, "unpacked");
    else
        snprintf(name, NAME_BYTES, "%.*s%s", (int)ax_min(stem, NAME_BYTES - 8), path,
                 strcmp(suffix, ".tgz") ? "" : ".tar");
}

/* Fails because of what the file is: `advice`, to be printed after "it", and `command` that converts it, with
 * %s for a path (NULL: none). The command for a compressed file unpacks it first, unless it is tar, which
 * does so itself. */
static ax_status refuse(const char *path, data_packing packing, const char *advice, const char *command)
{
    char name[NAME_BYTES], line[2 * NAME_BYTES] = "", inside[80] = "";
    const char *kind = data_packing_name(packing);
    int at = 0;
    inner_name(path, packing, name);
    if (packing)
        snprintf(inside, sizeof inside, " is compressed (%s), and what it holds", kind);
    bool itself = !packing || !command || !strncmp(command, "tar ", 4);
    if (!itself)
        at = snprintf(line, sizeof line, "%s -dc < %s > %s && ", kind, path, name);
    if (command && at >= 0 && (size_t)at < sizeof line)
        snprintf(line + at, sizeof line - (size_t)at, command, itself ? path : name);
    return ax_fail(AX_ERR_DATA, "%s cannot be read: it%s %s%s%s%s", path, inside, advice, command ? " (" : "",
                   line, command ? ")" : "");
}

static ax_status refuse_foreign(const char *path, data_packing packing, const foreign *f)
{
    return refuse(path, packing, f->advice, f->command);
}

/* Returns the name of the encoding if a text is in UTF-16 or UTF-32, by its byte order mark or, without one,
 * because each second byte is NUL; NULL: it is not. */
static const char *wide_encoding(const char *head, size_t n)
{
    if (n >= 4 && (!memcmp(head, "\xff\xfe\0\0", 4) || !memcmp(head, "\0\0\xfe\xff", 4)))
        return "utf-32";
    if (n >= 2 && (!memcmp(head, "\xff\xfe", 2) || !memcmp(head, "\xfe\xff", 2)))
        return "utf-16";
    size_t zeros[2] = {0}, pairs = ax_min((int64_t)n, 256) / 2;
    for (size_t i = 0; i < 2 * pairs; i++)
        zeros[i % 2] += !head[i];
    if (pairs < 4 || zeros[0] + zeros[1] != pairs || (zeros[0] && zeros[1]))
        return NULL;
    return zeros[0] ? "utf-16be" : "utf-16le";
}

const char *data_packed_suffix(const char *path)
{
    static const char *const suffixes[] = {".gz", ".gzip", ".tgz", ".zst", ".zstd"};
    for (size_t i = 0; i < AX_COUNT(suffixes); i++)
        if (data_has_suffix(path, suffixes[i]))
            return path + strlen(path) - strlen(suffixes[i]);
    return "";
}

const char *data_not_text(const char *head, size_t n)
{
    if (data_packing_of(head, n))
        return "is compressed, but has no suffix that says so: name it .gz or .zst";
    const foreign *f = foreign_by_magic(NULL, head, n);
    if (f)
        return f->advice;
    return wide_encoding(head, n) ? "is in UTF-16 or UTF-32: convert it to UTF-8 first (iconv)"
                                  : "is not text (it holds a NUL byte)";
}

ax_status data_refuse_wide(const char *path, data_packing packing, const char *head, size_t n)
{
    const char *encoding = wide_encoding(head, n);
    char advice[80], command[80];
    if (!encoding)
        return AX_OK;
    snprintf(advice, sizeof advice, "is in UTF-%s: convert it to UTF-8 first", encoding + strlen("utf-"));
    snprintf(command, sizeof command, "iconv -f %s -t utf-8 %%s", encoding);
    return refuse(path, packing, advice, command);
}

ax_status data_refuse_nul(const char *path, data_packing packing, const char *head, size_t n, int64_t offset)
{
    char name[NAME_BYTES], advice[80];
    inner_name(path, packing, name);
    const foreign *f = foreign_by_magic(name, head, n);
    if (!f && n)
        f = foreign_by_suffix(name);
    if (f)
        return refuse_foreign(path, packing, f);
    AX_TRY(data_refuse_wide(path, packing, head, n));
    snprintf(advice, sizeof advice, "is not text: there is a NUL byte at offset %lld: remove such bytes",
             (long long)offset);
    if (packing)
        return refuse(path, packing, advice, "tr -d '\\0' < %s");
    return ax_fail(
        AX_ERR_DATA,
        "%s is neither text nor a known token file: it holds a NUL byte at offset %lld; if it is text, "
        "remove such bytes (tr -d '\\0'), if it is headerless tokens, name it *.bin",
        path, (long long)offset);
}

/* Refuses a text whose name (of a compressed file: without that suffix) says that it is something else: the
 * suffix of a format in the table, or that of JSON for what a failed download leaves, such as a web page. */
static ax_status refuse_misnamed(const char *path, const char *name, const char *head, size_t n)
{
    const foreign *f = foreign_by_suffix(name);
    const char *packed = data_packed_suffix(name);
    AX_CHECK(
        !f && !*packed, AX_ERR_DATA,
        "%s has the suffix %s, but holds text: is it a message of a failed download? Get it again, or, if "
        "this is the text to read, name it .txt",
        path, f ? f->suffix : packed);
    size_t blank = 0;
    while (blank < n && memchr(BLANKS, head[blank], strlen(BLANKS)))
        blank++;
    const char *instead = data_is_json(name) ? ax_file_stand_in(head + blank, n - blank) : NULL;
    return instead ? ax_fail(AX_ERR_DATA, "%s %s", path, instead) : AX_OK;
}

/* Detects the format of a text that may be JSON. `at` is its beginning, without blanks. */
static ax_data_format json_format(const char *at, bool complete)
{
    const char *inside = at + (*at == '[' || *at == '{');
    inside += strspn(inside, BLANKS);
    if (*at == '[')
        return *inside == '{' || *inside == ']' ? AX_DATA_JSON : AX_DATA_TEXT;
    if (*at != '{' || (*inside != '"' && *inside != '}'))
        return AX_DATA_TEXT;
    /* If the first line ends with }, each line is expected to hold one object (JSONL). The same is assumed if
     * the end of the first line is not in the text. Else the object is spread over several lines (JSON). */
    size_t line = strcspn(at, "\n");
    bool whole = at[line] || complete;
    while (line && strchr(BLANKS, at[line - 1]))
        line--;
    return !whole || at[line - 1] == '}' ? AX_DATA_JSONL : AX_DATA_JSON;
}

ax_data_format data_text_format(const char *name, const char *head, size_t n)
{
    char text[DATA_HEAD_BYTES + 1];
    if (name && !data_is_json(name))
        return AX_DATA_TEXT;
    snprintf(text, sizeof text, "%.*s", (int)n, head);
    const char *at = text + (strncmp(text, DATA_BOM, strlen(DATA_BOM)) ? 0 : strlen(DATA_BOM));
    at += strspn(at, BLANKS);
    const ax_data_format format = json_format(at, n < DATA_HEAD_BYTES);
    if (!name || !is_lines(name))
        return format;
    const char *next = at + (*at == '{');
    next += strspn(next, " \t\r");
    return format == AX_DATA_JSON && (*at == '[' || *next == '\n') ? AX_DATA_JSON : AX_DATA_JSONL;
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

/* Detects the format of a file that is text, if anything, by its suffix and its first bytes. */
static ax_status detect_text(const char *path, data_packing packing, const char *head, size_t n,
                             ax_data_format *out)
{
    char name[NAME_BYTES];
    inner_name(path, packing, name);
    AX_TRY(data_refuse_wide(path, packing, head, n));
    const char *zero = is_lines(name) ? NULL : memchr(head, 0, n);
    if (zero)
        return data_refuse_nul(path, packing, head, n, zero - head);
    AX_TRY(refuse_misnamed(path, name, head, n));
    *out = data_text_format(name, head, n);
    return AX_OK;
}

ax_status data_detect_inside(const char *path, data_packing packing, const char *head, size_t n,
                             ax_data_format *out)
{
    char name[NAME_BYTES];
    inner_name(path, packing, name);
    const foreign *other = foreign_by_magic(name, head, n);
    const char *kind = data_packing_name(packing);
    AX_CHECK(!data_packing_of(head, n), AX_ERR_DATA,
             "%s is compressed twice: unpack it once (%s -dc < %s > %s)", path, kind, path, name);
    AX_CHECK(
        !detect_magic(head, n, out) && !data_has_suffix(name, ".bin") && !data_has_suffix(name, ".idx") &&
            !data_has_suffix(name, ".tok"),
        AX_ERR_DATA,
        "%s is a compressed token file, and these are read at any place: unpack it first (%s -dc < %s > %s)",
        path, kind, path, name);
    return other ? refuse_foreign(path, packing, other) : detect_text(path, packing, head, n, out);
}

static ax_status detect_packed(const char *path, data_packing packing, ax_data_format *out)
{
    char head[DATA_HEAD_BYTES];
    size_t n;
    int fd;
    AX_TRY(ax_file_open(path, &fd));
    ax_status status = data_unpack_head(fd, path, packing, head, sizeof head, &n);
    close(fd);
    AX_TRY(status);
    return data_detect_inside(path, packing, head, n, out);
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
    const foreign *other = foreign_by_magic(path, head, n);
    if (other)
        return refuse_foreign(path, DATA_PLAIN, other);
    data_packing packing = data_packing_of(head, n);
    if (packing)
        return detect_packed(path, packing, out);
    if (data_has_suffix(path, ".bin")) {
        *out = is_megatron_pair(path) ? AX_DATA_MEGATRON : AX_DATA_NANOGPT;
        return AX_OK;
    }
    AX_CHECK(!data_has_suffix(path, ".idx") && !data_has_suffix(path, ".tok"), AX_ERR_DATA,
             "%s is damaged: it has the suffix of a %s but not its first bytes; get it again, or rename a "
             "file of another format",
             path, data_has_suffix(path, ".idx") ? "Megatron-LM index" : "packed token file");
    return detect_text(path, DATA_PLAIN, head, n, out);
}

ax_status ax_data_detect(const char *path, ax_data_format *out)
{
    ax_strings names;
    AX_TRY(data_list(path, &names));
    ax_status status = data_detect_file(names.count ? names.items[0] : path, out);
    ax_strings_fini(&names);
    return status;
}
