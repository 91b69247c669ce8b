/* Opening token sources: each format becomes a mapped array of tokens and a way to find its documents. */
#include "source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

uint64_t tok_header_hash(const tok_header *header)
{
    return XXH3_64bits(header, offsetof(tok_header, header_hash));
}

ax_status data_map_open(const char *path, data_map *out)
{
    *out = (data_map){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    AX_CHECK(fd >= 0, AX_ERR_DATA, "cannot open %s: %s", path, strerror(errno));
    struct stat info;
    if (fstat(fd, &info) || !S_ISREG(info.st_mode)) {
        close(fd);
        return ax_fail(AX_ERR_DATA, "%s is not a regular file and cannot be mapped", path);
    }
    if (!info.st_size) {
        close(fd);
        return AX_OK;
    }
    void *base = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
    int error = errno;
    close(fd);
    AX_CHECK(base != MAP_FAILED, AX_ERR_DATA, "cannot map %s: %s", path, strerror(error));
    *out = (data_map){base, (size_t)info.st_size};
    return AX_OK;
}

void data_map_close(data_map *map)
{
    if (map->base)
        munmap((void *)(uintptr_t)map->base, map->bytes);
    *map = (data_map){0};
}

void data_map_forget(const data_map *map, const char *from, const char *to)
{
    /* A fault maps more than the page that was asked for: 64 KiB around it on older systems, the whole folio
     * of the page cache on newer ones, but never beyond the page table, 2 MiB aligned. */
    const uintptr_t around = 2 << 20, base = (uintptr_t)map->base;
    uintptr_t low = (uintptr_t)from / around * around, high = ((uintptr_t)to / around + 1) * around;
    if (low < base)
        low = base;
    if (high > base + map->bytes)
        high = base + map->bytes;
    if (low < high)
        madvise((void *)low, high - low, MADV_DONTNEED);
}

void data_forget_tokens(const ax_data *data, int64_t first, int64_t end)
{
    for (data_stretch s = {0}; data->parts && data_next_stretch(data, first, end, &s);)
        data_forget_tokens(s.part, s.from, s.to);
    if (data->parts)
        return;
    int w = data->info.token_bytes;
    data_map_forget(&data->main, data->tokens + first * w, data->tokens + end * w);
}

void data_want_tokens(const ax_data *data, int64_t first, int64_t end)
{
    for (data_stretch s = {0}; data->parts && data_next_stretch(data, first, end, &s);)
        data_want_tokens(s.part, s.from, s.to);
    if (data->parts)
        return;
    const uintptr_t page = 4096;
    uintptr_t low = (uintptr_t)(data->tokens + first * data->info.token_bytes) / page * page;
    uintptr_t high = (uintptr_t)(data->tokens + end * data->info.token_bytes);
    madvise((void *)low, high - low, MADV_WILLNEED);
}

/* ---- documents ----------------------------------------------------------------------------------- */

int64_t data_document_start(const ax_data *data, int64_t d)
{
    int64_t start = data_load64(data->index, d), tokens = data->info.tokens;
    if (data->index_kind == INDEX_MEGATRON)
        start = start >= 0 && start < data->sequences
                    ? data_load64(data->offsets, start) / data->info.token_bytes
                    : tokens;
    return start >= 0 && start <= tokens ? start : tokens; /* a damaged entry must not lead outside */
}

int64_t data_document_of(const ax_data *data, int64_t pos)
{
    int64_t low = 0, high = data->coarse_n;
    while (high - low > 1) {
        int64_t mid = (low + high) / 2;
        *(data->coarse[mid] <= pos ? &low : &high) = mid;
    }
    low *= data->coarse_step;
    high = ax_min(low + data->coarse_step, data->info.documents);
    while (high - low > 1) {
        int64_t mid = (low + high) / 2;
        *(data_document_start(data, mid) <= pos ? &low : &high) = mid;
    }
    return low;
}

void data_forget_documents(const ax_data *data, int64_t first, int64_t end)
{
    const data_map *map = data->index_kind == INDEX_STARTS ? &data->main : &data->side;
    int64_t low = first / data->coarse_step * data->coarse_step;
    int64_t high = ax_min(end + data->coarse_step, data->info.documents);
    if (data->index_kind == INDEX_MEGATRON) {
        int64_t from = data_load64(data->index, low), to = data_load64(data->index, high);
        if (from >= 0 && from <= to && to <= data->sequences)
            data_map_forget(map, data->offsets + 8 * from, data->offsets + 8 * to);
    }
    data_map_forget(map, data->index + 8 * low, data->index + 8 * (high + 1));
}

/* Reads every coarse_step-th start; damage that would lead outside the file is found here. */
static ax_status read_coarse(ax_data *data)
{
    int64_t documents = data->info.documents, tokens = data->info.tokens, last = 0;
    data->coarse_step = ax_max(ax_ceil_div(documents, COARSE_MAX), 1);
    data->coarse_n = ax_ceil_div(documents, data->coarse_step);
    AX_TRY(ax_calloc((size_t)data->coarse_n, sizeof *data->coarse, &data->coarse));
    for (int64_t i = 0; i < data->coarse_n; i++) {
        int64_t start = data_document_start(data, i * data->coarse_step);
        AX_CHECK(i ? start >= last && start <= tokens : start == 0, AX_ERR_DATA,
                 "%s is damaged: document %lld starts at token %lld of %lld, the one %lld before it at %lld",
                 data->path, (long long)(i * data->coarse_step), (long long)start, (long long)tokens,
                 (long long)data->coarse_step, (long long)last);
        data->coarse[i] = last = start;
    }
    data_forget_documents(data, 0, documents);
    return AX_OK;
}

/* ---- formats ------------------------------------------------------------------------------------- */

/* What the header's own checksum does not cover must be zero. */
static ax_status check_zeros(const ax_data *data, const tok_header *h)
{
    size_t i = 0;
    while (i < sizeof h->zero && !h->zero[i])
        i++;
    AX_CHECK(i == sizeof h->zero, AX_ERR_DATA,
             "%s is damaged: byte %zu of its header is 0x%02x, bytes %zu to %d are zeros", data->path,
             offsetof(tok_header, zero) + i, (unsigned char)h->zero[i], offsetof(tok_header, zero),
             TOK_HEADER_BYTES - 1);
    return AX_OK;
}

static ax_status open_tok(ax_data *data)
{
    tok_header h;
    AX_CHECK(data->main.bytes >= sizeof h, AX_ERR_DATA,
             "%s is truncated: %zu bytes, the header alone has %zu", data->path, data->main.bytes, sizeof h);
    memcpy(&h, data->main.base, sizeof h);
    AX_CHECK(h.version == TOK_VERSION, AX_ERR_DATA,
             "%s has format version %u, this program reads %d: build it again", data->path, h.version,
             TOK_VERSION);
    AX_CHECK(h.header_hash == tok_header_hash(&h), AX_ERR_DATA,
             "%s is damaged: the checksum of its header (offset 88) does not match", data->path);
    AX_TRY(check_zeros(data, &h));
    const uint64_t sane = UINT64_C(1) << 56;
    uint64_t index_at = TOK_HEADER_BYTES + (h.tokens * h.token_bytes + 7) / 8 * 8;
    AX_CHECK((h.token_bytes == 2 || h.token_bytes == 4) && h.tokens < sane && h.documents < sane &&
                 h.documents > 0 && h.tokens_at == TOK_HEADER_BYTES && h.index_at == index_at,
             AX_ERR_DATA, "%s is damaged: its header contradicts itself", data->path);
    uint64_t size = index_at + 8 * (h.documents + 1);
    AX_CHECK(data->main.bytes == size, AX_ERR_DATA, "%s is %s: %zu bytes where its header says %llu",
             data->path, data->main.bytes < size ? "truncated" : "damaged", data->main.bytes,
             (unsigned long long)size);
    data->info = (ax_data_info){.token_bytes = (int)h.token_bytes,
                                .tokens = (int64_t)h.tokens,
                                .documents = (int64_t)h.documents,
                                .vocab = (int64_t)h.vocab,
                                .text_bytes = (int64_t)h.text_bytes,
                                .end_id = h.end_id,
                                .tokenizer_hash = h.tokenizer_hash,
                                .checksum = h.body_hash};
    data->tokens = data->main.base + TOK_HEADER_BYTES;
    data->index_kind = INDEX_STARTS;
    data->index = data->main.base + index_at;
    AX_CHECK(data_load64(data->index, data->info.documents) == data->info.tokens, AX_ERR_DATA,
             "%s is damaged: its document index ends at token %lld of %lld (offset %zu)", data->path,
             (long long)data_load64(data->index, data->info.documents), (long long)data->info.tokens,
             data->main.bytes - 8);
    return AX_OK;
}

static ax_status open_llmc(ax_data *data, int width)
{
    AX_CHECK(data->main.bytes >= LLMC_HEADER_BYTES, AX_ERR_DATA,
             "%s is truncated: %zu bytes, the header of an llm.c file alone has %d", data->path,
             data->main.bytes, LLMC_HEADER_BYTES);
    int32_t count;
    memcpy(&count, data->main.base + 8, sizeof count);
    size_t size = LLMC_HEADER_BYTES + (size_t)ax_max(count, 0) * (size_t)width;
    AX_CHECK(count >= 0 && data->main.bytes == size, AX_ERR_DATA,
             "%s is damaged or truncated: its header says %d tokens of %d bytes, which makes %zu bytes; it "
             "has %zu",
             data->path, count, width, size, data->main.bytes);
    data->info = (ax_data_info){.token_bytes = width, .tokens = count};
    data->tokens = data->main.base + LLMC_HEADER_BYTES;
    return AX_OK;
}

static ax_status open_nanogpt(ax_data *data)
{
    AX_CHECK(
        data->main.bytes % 2 == 0, AX_ERR_DATA,
        "%s was taken for headerless u16 tokens by its suffix .bin, but has an odd number of bytes (%zu)",
        data->path, data->main.bytes);
    data->info = (ax_data_info){.token_bytes = 2, .tokens = (int64_t)(data->main.bytes / 2)};
    data->tokens = data->main.base;
    return AX_OK;
}

/* Bytes of a token by the dtype codes of Megatron-LM's index; 0 for those that are no token ids. */
static int megatron_width(int code)
{
    switch (code) {
    case 1:
        return 1;
    case 4:
        return 4;
    case 5:
        return 8;
    case 8:
        return 2;
    default:
        return 0;
    }
}

static ax_status open_megatron(ax_data *data, const char *idx)
{
    const data_map *side = &data->side;
    AX_CHECK(side->bytes >= MEGATRON_HEADER_BYTES && !memcmp(side->base, MEGATRON_MAGIC, 9), AX_ERR_DATA,
             "%s is not an index of Megatron-LM: its first bytes are not MMIDIDX", idx);
    AX_CHECK(data_load64(side->base + 9, 0) == 1, AX_ERR_DATA, "%s has version %lld; version 1 is read here",
             idx, (long long)data_load64(side->base + 9, 0));
    int code = (unsigned char)side->base[17], width = megatron_width(code);
    AX_CHECK(width, AX_ERR_DATA, "%s: dtype code %d (offset 17) is none of u8, u16, i32, i64", idx, code);
    int64_t sequences = data_load64(side->base + 18, 0), bounds = data_load64(side->base + 26, 0);
    const int64_t sane = INT64_C(1) << 48;
    AX_CHECK(sequences >= 0 && sequences < sane && bounds >= 1 && bounds < sane, AX_ERR_DATA,
             "%s is damaged: %lld sequences, %lld document boundaries (offset 18)", idx, (long long)sequences,
             (long long)bounds);
    int64_t size = MEGATRON_HEADER_BYTES + 12 * sequences + 8 * bounds;
    AX_CHECK((int64_t)side->bytes == size || (int64_t)side->bytes == size + sequences, AX_ERR_DATA,
             "%s is damaged or truncated: %zu bytes, its header says %lld", idx, side->bytes,
             (long long)size);
    data->info = (ax_data_info){
        .token_bytes = width, .tokens = (int64_t)data->main.bytes / width, .documents = bounds - 1};
    data->tokens = data->main.base;
    data->index_kind = INDEX_MEGATRON;
    data->sequences = sequences;
    data->offsets = side->base + MEGATRON_HEADER_BYTES + 4 * sequences;
    data->index = data->offsets + 8 * sequences;
    AX_CHECK(data_load64(data->index, 0) == 0 && data_load64(data->index, bounds - 1) == sequences,
             AX_ERR_DATA, "%s is damaged: its documents cover sequences %lld ... %lld of %lld", idx,
             (long long)data_load64(data->index, 0), (long long)data_load64(data->index, bounds - 1),
             (long long)sequences);
    int64_t end = 0;
    if (sequences) {
        int32_t length;
        memcpy(&length, side->base + MEGATRON_HEADER_BYTES + 4 * (sequences - 1), sizeof length);
        end = data_load64(data->offsets, sequences - 1) + (int64_t)length * width;
    }
    AX_CHECK((int64_t)data->main.bytes == end, AX_ERR_DATA,
             "%s is damaged or truncated: %zu bytes, its index ends at %lld", data->path, data->main.bytes,
             (long long)end);
    return AX_OK;
}

/* Trailing empty documents start at the end, where no sequence has an offset; they hold nothing. */
static void drop_empty_tail(ax_data *data)
{
    if (data->index_kind != INDEX_MEGATRON)
        return;
    int64_t last = data_load64(data->index, data->info.documents);
    while (data->info.documents > 0 && data_load64(data->index, data->info.documents - 1) == last)
        data->info.documents--;
}

static ax_status open_format(ax_data *data, ax_data_format format, const char *idx)
{
    AX_TRY(data_map_open(data->path, &data->main));
    if (format == AX_DATA_MEGATRON) {
        AX_TRY(data_map_open(idx, &data->side));
        AX_TRY(open_megatron(data, idx));
    } else if (format == AX_DATA_TOK) {
        AX_TRY(open_tok(data));
    } else if (format == AX_DATA_NANOGPT) {
        AX_TRY(open_nanogpt(data));
    } else {
        AX_TRY(open_llmc(data, format == AX_DATA_LLMC ? 2 : 4));
    }
    return AX_OK;
}

static ax_status open_into(ax_data *data, const char *path, int64_t end_id)
{
    ax_data_format format;
    AX_TRY(data_detect_file(path, &format));
    AX_CHECK(!ax_data_format_is_text(format), AX_ERR_DATA,
             "%s holds text, not tokens: make a token file of it with `axonn data build`", path);
    char *idx = NULL, *bin = NULL;
    ax_status status = AX_OK;
    if (format == AX_DATA_MEGATRON)
        status = data_megatron_paths(path, &idx, &bin);
    if (status == AX_OK)
        status = ax_strdup(bin ? bin : path, &data->path);
    if (status == AX_OK)
        status = open_format(data, format, idx);
    free(idx);
    free(bin);
    AX_TRY(status);
    AX_CHECK(data->info.tokens, AX_ERR_DATA, "%s is empty: it holds no tokens", data->path);
    data->info.format = format;
    data->info.file_bytes = (int64_t)(data->main.bytes + data->side.bytes);
    data->limit = data->info.vocab ? data->info.vocab : INT32_MAX;
    if (format != AX_DATA_TOK) {
        data->info.text_bytes = -1;
        data->info.end_id = end_id;
        data->info.checksum = data_sampled_sum(&data->main, &data->side);
    }
    if (data->index_kind == INDEX_NONE) {
        data->info.documents = -1;
        return AX_OK;
    }
    drop_empty_tail(data);
    return read_coarse(data);
}

ax_status data_open_file(const char *path, int64_t end_id, ax_data **out)
{
    ax_data *data;
    AX_TRY(ax_calloc(1, sizeof *data, &data));
    ax_status status = open_into(data, path, end_id);
    if (status != AX_OK)
        ax_data_close(&data);
    *out = data;
    return status;
}

static ax_status open_shards(const char *path, const data_names *names, int64_t end_id, ax_data **out)
{
    ax_data *data;
    AX_TRY(ax_calloc(1, sizeof *data, &data));
    ax_status status = ax_strdup(path, &data->path);
    if (status == AX_OK)
        status = data_open_parts(data, names, end_id);
    if (status != AX_OK)
        ax_data_close(&data);
    *out = data;
    return status;
}

ax_status ax_data_open(const char *path, int64_t end_id, ax_data **out)
{
    data_names names;
    *out = NULL;
    AX_TRY(data_list(path, &names));
    ax_status status = names.n ? open_shards(path, &names, end_id, out) : data_open_file(path, end_id, out);
    data_names_fini(&names);
    return status;
}

void ax_data_close(ax_data **data)
{
    if (!*data)
        return;
    for (ax_data **part = (*data)->part; part && *part; part++)
        ax_data_close(part);
    free((*data)->part);
    free((*data)->part_at);
    data_map_close(&(*data)->main);
    data_map_close(&(*data)->side);
    free((*data)->path);
    free((*data)->coarse);
    free(*data);
    *data = NULL;
}

const ax_data_info *ax_data_describe(const ax_data *data) { return &data->info; }
const char *ax_data_path(const ax_data *data) { return data->path; }

ax_status ax_data_expect(ax_data *data, int64_t vocab, uint64_t tokenizer_hash)
{
    const ax_data_info *info = &data->info;
    for (int i = 0; i < data->parts; i++)
        AX_TRY(ax_data_expect(data->part[i], vocab, tokenizer_hash));
    AX_CHECK(info->vocab <= vocab, AX_ERR_DATA,
             "%s holds tokens of a vocabulary of %lld, %lld are expected: it was made for another "
             "model or tokenizer; build it with the one in use",
             data->path, (long long)info->vocab, (long long)vocab);
    AX_CHECK(!info->tokenizer_hash || !tokenizer_hash || info->tokenizer_hash == tokenizer_hash, AX_ERR_DATA,
             "%s was made by another tokenizer (hash %016llx, the one given has %016llx): build it again, "
             "or name the tokenizer it was made with",
             data->path, (unsigned long long)info->tokenizer_hash, (unsigned long long)tokenizer_hash);
    data->limit = info->vocab ? info->vocab : vocab;
    return AX_OK;
}
