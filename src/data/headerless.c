/* Finds out how wide the tokens of a headerless file (nanoGPT's .bin) are. The file does not say so, and a
 * wrong width gives wrong tokens that look right. If the name says it (NAME.u16.bin, NAME.u32.bin,
 * NAME.u64.bin), the name counts. Otherwise up to 64 blocks of 4 KiB are read, as 16-bit words:
 *
 *   Ids of 32 bits, little-endian, have their high half in each second word. It is 0 for ids below 65536, and
 *   below 16 for vocabularies of less than a million, while the other words have any value. Ids of 64 bits
 *   have two further words that are 0. Ids of 16 bits have the same distribution in all words.
 *   Big-endian ids have small values in the other byte of each word. */
#include "source.h"

#include <stdlib.h>
#include <string.h>

enum {
    BLOCK_BYTES = 4096,
    BLOCKS = 64,
    SMALL = 15,     /* largest high half of a 32-bit id: ids are below 2^20 */
    LARGE = 256,    /* words from here on occur in nearly all low halves of a text with such ids */
    FEW_IDS = 8,    /* fewer ids tell nothing: 16 bits are assumed */
    ENOUGH_IDS = 32 /* that so many words of a text in 16-bit tokens are all small by chance is excluded */
};

typedef struct words {
    int64_t n;          /* words read, a multiple of 4 */
    int64_t most[4];    /* largest value of the words number 0, 4, 8, …; 1, 5, 9, …; and so on */
    int64_t swapped[4]; /* the same, with the bytes of each word swapped */
    int64_t zeros;      /* words of value 0 in even places */
} words;

static void count_words(const unsigned char *bytes, int64_t n, words *w)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t value = bytes[2 * i] | bytes[2 * i + 1] << 8, swapped = bytes[2 * i] << 8 | bytes[2 * i + 1];
        w->most[i % 4] = ax_max(w->most[i % 4], value);
        w->swapped[i % 4] = ax_max(w->swapped[i % 4], swapped);
        w->zeros += i % 2 == 0 && !value;
    }
    w->n += n;
}

/* Reads the sampled blocks, at offsets that are multiples of 8; the first block is at the start. */
static ax_status sample(const data_file *file, unsigned char *block, words *w)
{
    int64_t room = ax_max(file->bytes - BLOCK_BYTES, 0), step = ax_max(room / (BLOCKS - 1), BLOCK_BYTES);
    for (int64_t i = 0; i < BLOCKS && i * step / 8 * 8 < file->bytes; i++) {
        int64_t at = i * step / 8 * 8, n = ax_min(file->bytes - at, BLOCK_BYTES) / 8 * 8;
        AX_TRY(data_file_read(file, at, block, n));
        count_words(block, n / 2, w);
    }
    return AX_OK;
}

/* Returns true if the first block is text: printable ASCII, or UTF-8, and white space. */
static bool is_text(const unsigned char *bytes, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (bytes[i] < ' ' ? !memchr("\t\n\r", bytes[i], 3) : bytes[i] == 0x7f || bytes[i] == 0xff)
            return false;
    return n >= 64;
}

/* Refuses a file of big-endian ids. The low byte of ids has all values, the high byte only those of the
 * vocabulary. So words above 0xff00 beside none that would be above 0xf000 with swapped bytes have the low
 * byte first. */
static ax_status check_order(const data_file *file, const words *w)
{
    int64_t even = ax_max(w->swapped[0], w->swapped[2]), odd = ax_max(w->swapped[1], w->swapped[3]);
    int64_t most = ax_max(ax_max(w->most[0], w->most[1]), ax_max(w->most[2], w->most[3]));
    bool wide = even <= SMALL && odd >= LARGE, narrow = most > 0xff && ax_max(even, odd) <= 0xff;
    bool high = w->n >= BLOCK_BYTES && most >= 0xff00 && ax_max(even, odd) < 0xf000;
    AX_CHECK(w->n < 2 * ENOUGH_IDS || !(wide || narrow || high), AX_ERR_DATA,
             "%s seems to hold big-endian token ids, which are not read: write them little-endian (numpy: "
             "astype('<u%d')), or, if they are little-endian, say how wide they are by a name that ends with "
             ".u16.bin or .u32.bin",
             file->path, wide ? 4 : 2);
    return AX_OK;
}

/* Returns the width in bytes of the ids, or 0 if it is unclear. */
static int width_of(const words *w)
{
    int64_t even = ax_max(w->most[0], w->most[2]), odd = ax_max(w->most[1], w->most[3]);
    bool filled = w->zeros < w->n / 4; /* most words in even places are not 0 */
    if (w->n < 2 * FEW_IDS || odd > SMALL || !even)
        return 2;
    if (!w->most[2] && !w->most[3] && w->n >= 4 * FEW_IDS)
        return 8;
    if (!odd && filled)
        return 4;
    if (odd && even >= LARGE && w->n >= 2 * ENOUGH_IDS)
        return 4;
    return even > SMALL ? 0 : 2;
}

/* Returns the width that a name such as tokens.u32.bin states, or 0. */
static int named_width(const char *path)
{
    static const struct {
        const char *suffix;
        int width;
    } names[] = {{".u16.bin", 2}, {".u32.bin", 4}, {".u64.bin", 8}};
    for (size_t i = 0; i < AX_COUNT(names); i++)
        if (data_has_suffix(path, names[i].suffix))
            return names[i].width;
    return 0;
}

static ax_status guess(const data_file *file, unsigned char *block, int *width)
{
    words w = {0};
    int64_t head = ax_min(file->bytes, BLOCK_BYTES);
    AX_TRY(data_file_read(file, 0, block, head));
    AX_CHECK(
        !is_text(block, head), AX_ERR_DATA,
        "%s was taken for headerless token ids by its suffix .bin, but holds text: name it .txt, or .jsonl "
        "if each line is a JSON object",
        file->path);
    AX_TRY(sample(file, block, &w));
    *width = width_of(&w);
    if (*width == 2)
        AX_TRY(check_order(file, &w));
    AX_CHECK(
        *width, AX_ERR_DATA,
        "%s has no header, and it is unclear whether its token ids have 16 or 32 bits (each second 16-bit "
        "word is at most %lld, the others reach %lld): say so by its name, which may be that of a link: "
        "NAME.u16.bin or NAME.u32.bin",
        file->path, (long long)ax_max(w.most[1], w.most[3]), (long long)ax_max(w.most[0], w.most[2]));
    return AX_OK;
}

ax_status data_headerless_width(const data_file *file, int *width)
{
    unsigned char *block;
    *width = named_width(file->path);
    if (!*width) {
        AX_TRY(ax_calloc(BLOCK_BYTES, 1, &block));
        ax_status status = guess(file, block, width);
        free(block);
        AX_TRY(status);
    }
    AX_CHECK(
        file->bytes % *width == 0, AX_ERR_DATA,
        "%s was taken for headerless %d-bit token ids by its suffix .bin, but its size, %lld bytes, is not "
        "a multiple of %d: truncated, or of another format",
        file->path, 8 * *width, (long long)file->bytes, *width);
    return AX_OK;
}
