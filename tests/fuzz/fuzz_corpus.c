/* Text files. The first byte says which suffix the files have; a capital letter means that the reader gets a
 * directory. Each further part is another file of that directory. */
#include "axonn/data.h"
#include "fuzz/fuzz.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char letters[] = "ljtmgz";
static const char *const suffixes[] = {"jsonl", "json", "txt", "md", "jsonl.gz", "jsonl.zst", "c"};

/* The lines {"text":"ab"} and {"text":"c"}, compressed, after the letter of the suffix. */
#define GZIPPED                                                                                              \
    "g\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff\xab\x56\x2a\x49\xad\x28\x51\xb2\x52\x4a\x4c\x52\xaa\xe5\xaa"  \
    "\x86"                                                                                                   \
    "\xf1\x92\x81\x1c\x00\x3d\xa3\x38\x9e\x1b\x00\x00\x00"
#define ZSTD                                                                                                 \
    "Z\x28\xb5\x2f\xfd\x24\x1b\xc5\x00\x00\x90\x7b\x22\x74\x65\x78\x74\x22\x3a\x22\x61\x62\x22\x7d\x0a\x63"  \
    "\x22\x7d\x0a\x01\x00\x51\x4c\x25\x91\x65\xad\xd4"

void fuzz_make_seeds(void)
{
    fuzz_seed_texts(
        (const char *[]){"l{\"text\":\"one\"}\n\n{\"text\":\"two\\u0000\\ud83d\\ude00\",\"n\":1e400}\n"
                         "{\"text\":null}\n{\"x\":NaN}\n{\"text\":\"\"}",
                         NULL});
    fuzz_seed_texts(
        (const char *[]){"L\xef\xbb\xbf{\"text\":\"one\",\"id\":123456789012345678901234567890}\r\n", "{}",
                         "[1,2]\n{\"text\":\"\\ud800\"}", NULL});
    fuzz_seed_texts((const char *[]){"j[{\"text\":\"one\"},{\"text\":\"two\"}]", NULL});
    fuzz_seed_texts((const char *[]){"J{\"text\":\"one\"}\n{\"text\":\"two\"}\n", "[]", NULL});
    fuzz_seed_texts((const char *[]){"l{}\n{}\n{\"text\":1}\n{\"text\":null}\n{\"text\":\"one\"}\n", NULL});
    fuzz_seed_texts((const char *[]){"t\xef\xbb\xbfSome text.\n", NULL});
    fuzz_seed_texts((const char *[]){"MSome text.\n", "more", "\x1f\x8b\x08", NULL});
    fuzz_seed((fuzz_part[]){{(char *)"ta\0b", 4}, {NULL, 0}});
    fuzz_seed((fuzz_part[]){{(char *)GZIPPED, sizeof GZIPPED - 1}, {NULL, 0}});
    fuzz_seed((fuzz_part[]){{(char *)ZSTD, sizeof ZSTD - 1}, {NULL, 0}});
    fuzz_seed_texts((const char *[]){"L[{\"text\":\"one\"}]", "<html>", "\xff\xfe{", NULL});
}

static void read_all(const char *path)
{
    ax_corpus *corpus;
    ax_buf document = {0};
    ax_corpus_options options = {.inputs = &path, .n_inputs = 1, .bad_lines = 2};
    if (!fuzz_read(ax_corpus_create(&options, &corpus)))
        return;
    for (bool end = false; !end && fuzz_read(ax_corpus_next(corpus, &document, &end)); document.size = 0)
        FUZZ_HOLDS(end || document.size);
    FUZZ_HOLDS(ax_corpus_files(corpus) >= 0 && ax_corpus_bytes(corpus) >= 0);
    ax_corpus_destroy(&corpus);
    ax_buf_fini(&document);
}

void fuzz_one(const fuzz_part *part, int n)
{
    char name[64];
    if (!part->size)
        return;
    const char *letter = strchr(letters, tolower((unsigned char)part->data[0]));
    const char *suffix = suffixes[letter && *letter ? letter - letters : (ptrdiff_t)AX_COUNT(suffixes) - 1];
    if (ax_remove_tree(fuzz_path("tree")) != AX_OK || ax_mkdirs(fuzz_path("tree")) != AX_OK)
        abort();
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "tree/%d.%s", i, suffix);
        fuzz_file(name, part[i].data + !i, part[i].size - !i);
    }
    snprintf(name, sizeof name, "tree/0.%s", suffix);
    read_all(fuzz_path(isupper((unsigned char)part->data[0]) ? "tree" : name));
}
