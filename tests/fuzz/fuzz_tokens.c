/* Token files. Two parts are NAME.idx and NAME.bin of Megatron-LM; a single part is a file whose first byte
 * selects its name. For the name T the harness corrects the checksums of axonn's own format, so that mutants
 * pass that check. A file that opens must give rows, documents and tokens, or an error. If its check
 * succeeds, all of them must read without error. */
#include "data/source.h"
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { SEQ_LEN = 5, ROWS = 200 };

/* ---- seeds --------------------------------------------------------------------------------------- */

static void add(ax_buf *buf, const void *bytes, size_t n)
{
    if (ax_buf_add(buf, bytes, n) != AX_OK)
        abort();
}

static void add_int(ax_buf *buf, int64_t value, size_t width) { add(buf, &value, width); }

static void seed_and_free(ax_buf *a, ax_buf *b)
{
    fuzz_seed((fuzz_part[]){{a->data, a->size}, {b ? b->data : NULL, b ? b->size : 0}, {NULL, 0}});
    ax_buf_fini(a);
    if (b)
        ax_buf_fini(b);
}

static void seed_packed(int64_t vocab, bool masked)
{
    ax_token_writer *w;
    char *data;
    size_t size;
    ax_buf seed = {0};
    if (ax_token_writer_create(fuzz_path("seed.tok"), vocab, 9, 1, &w) != AX_OK)
        abort();
    ax_token_writer_set_template(w, "alpaca");
    for (int d = 0; d < 3; d++)
        if ((masked && d ? ax_token_writer_add_masked(w, (int32_t[]){1, 2, 3, 4},
                                                      (const uint8_t[]){0, 1, 0, 1}, d + 1, 5)
                         : ax_token_writer_add(w, (int32_t[]){1, 2, 3, 4}, d + 1, 5)) != AX_OK)
            abort();
    if (ax_token_writer_finish(&w, NULL) != AX_OK ||
        ax_file_read(fuzz_path("seed.tok"), &data, &size) != AX_OK)
        abort();
    add(&seed, "T", 1);
    add(&seed, data, size);
    free(data);
    seed_and_free(&seed, NULL);
}

static void seed_llmc(int32_t magic, int32_t version, size_t width)
{
    ax_buf seed = {0};
    add(&seed, "b", 1);
    add_int(&seed, magic, 4);
    add_int(&seed, version, 4);
    add_int(&seed, 11, 4);
    while (seed.size < 1 + 1024)
        add_int(&seed, 0, 1);
    for (int i = 0; i < 11; i++)
        add_int(&seed, i % 4, width);
    seed_and_free(&seed, NULL);
}

static void seed_headerless(size_t width)
{
    ax_buf seed = {0};
    add(&seed, "b", 1);
    for (int i = 0; i < 40; i++)
        add_int(&seed, 100000 - 777 * i, width);
    seed_and_free(&seed, NULL);
}

static void seed_megatron(int code, size_t width)
{
    static const int lengths[] = {4, 2, 3, 2, 0}, bounds[] = {0, 1, 2, 4, 5};
    ax_buf idx = {0}, bin = {0};
    add(&idx, "MMIDIDX\0\0", 9);
    add_int(&idx, 1, 8);
    add_int(&idx, code, 1);
    add_int(&idx, 5, 8);
    add_int(&idx, 5, 8);
    for (int i = 0; i < 5; i++)
        add_int(&idx, lengths[i], 4);
    for (int i = 0, at = 0; i < 5; at += lengths[i++])
        add_int(&idx, at * (int64_t)width, 8);
    for (int i = 0; i < 5; i++)
        add_int(&idx, bounds[i], 8);
    for (int i = 0; i < 11; i++)
        add_int(&bin, i, width);
    seed_and_free(&idx, &bin);
}

void fuzz_make_seeds(void)
{
    seed_packed(10, false);
    seed_packed(100000, false);
    seed_packed(10, true);
    seed_llmc(20240520, 1, 2);
    seed_llmc(20240801, 7, 4);
    seed_llmc(20240522, 1, 2);
    seed_headerless(4);
    seed_headerless(8);
    static const int widths[][2] = {{1, 1}, {4, 4}, {5, 8}, {8, 2}};
    for (size_t i = 0; i < AX_COUNT(widths); i++)
        seed_megatron(widths[i][0], (size_t)widths[i][1]);
    fuzz_seed_texts((const char *[]){"btokens of nanoGPT", NULL});
}

/* ---- reading ------------------------------------------------------------------------------------- */

/* Reads rows of a shape. With AX_PACK_DOCUMENTS the source must have an index. */
static bool read_rows(ax_data *data, ax_row_shape shape)
{
    int32_t lines[4][SEQ_LEN];
    ax_rows rows = {lines[0], lines[1], lines[2], lines[3]};
    ax_data_packed packed;
    bool good = true;
    if (ax_data_is_packed(data, &shape) && !fuzz_read(ax_data_pack(data, &shape, &packed)))
        return false;
    for (int64_t r = 0; r < ax_min(ROWS, ax_data_rows(data, &shape)); r++) {
        int64_t targets, counted;
        FUZZ_HOLDS(fuzz_read(ax_data_row_targets(data, &shape, r, &counted)));
        bool read = fuzz_read(ax_data_row(data, &shape, r, &rows, 0, &targets));
        FUZZ_HOLDS(!read || targets == counted);
        for (int t = 0; read && t < SEQ_LEN; t++) {
            FUZZ_HOLDS(lines[0][t] >= (lines[1][t] < 0 ? -1 : 0) && lines[0][t] < 1000); /* -1: padding */
            FUZZ_HOLDS(lines[1][t] >= -1 && lines[1][t] < 1000);
            FUZZ_HOLDS(lines[2][t] >= 0 && lines[2][t] <= t && lines[3][t] == t - lines[2][t]);
        }
        good = good && read;
    }
    return good;
}

static bool read_documents(const ax_data *data)
{
    int64_t first, end, expected = 0;
    for (int64_t d = 0; d < ax_min(ROWS, ax_data_describe(data)->documents); d++) {
        if (!fuzz_read(ax_data_document(data, d, &first, &end)) || first != expected || end < first)
            return false;
        expected = end;
    }
    return true;
}

static void read_all(const char *path)
{
    ax_data *data;
    ax_data_format format;
    bool detected = fuzz_read(ax_data_detect(path, &format));
    if (!fuzz_read(ax_data_open(path, 3, &data)))
        return;
    FUZZ_HOLDS(detected && format == ax_data_describe(data)->format);
    FUZZ_HOLDS(ax_data_describe(data)->checksum || format == AX_DATA_TOK);
    if (fuzz_read(ax_data_expect(data, &(ax_data_reader){1000, 0, NULL, false}))) {
        const ax_goldfish goldfish = {.k = 2, .window = 3};
        const ax_row_shape answers = {.seq_len = SEQ_LEN, .mask_documents = true, .answers = true},
                           fish = {.seq_len = SEQ_LEN, .goldfish = goldfish},
                           all = {.seq_len = SEQ_LEN,
                                  .mask_documents = true,
                                  .answers = true,
                                  .pack = AX_PACK_DOCUMENTS,
                                  .goldfish = goldfish},
                           cut = {.seq_len = SEQ_LEN, .pack = AX_PACK_AUTO, .longer = AX_LONG_TRUNCATE},
                           few = {.seq_len = SEQ_LEN, .pack = AX_PACK_AUTO, .longer = AX_LONG_DROP};
        bool masked = read_rows(data, answers), plain = read_rows(data, fish),
             packed = ax_data_describe(data)->documents < 0 || read_rows(data, all),
             whole = read_rows(data, cut) && read_rows(data, few), documents = read_documents(data);
        if (fuzz_read(ax_data_check(data)))
            FUZZ_HOLDS(masked && plain && packed && whole && documents);
    }
    ax_data_close(&data);
}

/* Sets the checksums in a file that is at least as long as a header. */
static void set_checksums(char *file, size_t size)
{
    tok_header h;
    memcpy(&h, file, sizeof h);
    h.body_hash = XXH3_64bits(file + sizeof h, size - sizeof h);
    h.header_hash = tok_header_hash(&h);
    h.mask_hash = h.version == TOK_VERSION_MASK ? tok_mask_hash(&h) : h.mask_hash;
    h.chat_template_hash = h.version == TOK_VERSION_MASK ? tok_chat_template_hash(&h) : h.chat_template_hash;
    memcpy(file, &h, sizeof h);
}

void fuzz_one(const fuzz_part *part, int n)
{
    static const char *const names[] = {"x.tok", "x.tok", "x.bin", "x.idx", "x.txt"};
    static const char letters[] = "Ttbi";
    for (size_t i = 0; i < AX_COUNT(names); i++)
        fuzz_file(names[i], NULL, 0);
    if (n > 1) {
        fuzz_file("x.idx", part[0].data, part[0].size);
        fuzz_file("x.bin", part[1].data, part[1].size);
        read_all(fuzz_path("x"));
    } else if (part->size) {
        size_t which = strcspn(letters, (char[]){part->data[0], 0});
        if (part->data[0] == 'T' && part->size > sizeof(tok_header))
            set_checksums(part->data + 1, part->size - 1);
        read_all(fuzz_file(names[which], part->data + 1, part->size - 1));
    }
}
