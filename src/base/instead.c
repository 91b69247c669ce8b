/* Recognizes, by their first bytes, the files that failed downloads and other programs leave in place of the
 * file that is expected. */
#include "axonn/base.h"

#include <string.h>
#include <strings.h>

#define AGAIN "download it with `hf download`"

typedef struct stand_in {
    const char *begin; /* the file's first bytes, compared without regard to case */
    size_t size;
    const char *what; /* what the file is, and what to do */
} stand_in;

#define BEGINS(text, what)                                                                                   \
    {                                                                                                        \
        text, sizeof(text) - 1, what                                                                         \
    }
static const stand_in stand_ins[] = {
    BEGINS("version https://git-lfs.github.com/",
           "is a Git LFS pointer, which only names the file: run `git lfs pull` in its directory, or " AGAIN),
    BEGINS("<!doctype html",
           "is a web page, not the file: " AGAIN
           " (in addresses of the hub the file is at /resolve/main/, its page at /blob/main/)"),
    BEGINS("<html", "is a web page, not the file: " AGAIN),
    BEGINS("Entry not found", "holds the hub's answer \"Entry not found\", not the file: " AGAIN),
    BEGINS("Repository not found", "holds the hub's answer \"Repository not found\", not the file: " AGAIN),
    BEGINS("Access to model", "holds the hub's answer that access is restricted, not the file: accept the "
                              "model's terms on its page, run `hf auth login`, then " AGAIN),
    BEGINS("Invalid username or password", "holds the hub's answer \"Invalid username or password\", not the "
                                           "file: run `hf auth login`, then " AGAIN),
    BEGINS("GGUF", "is a GGUF file (of llama.cpp), which is not read: get the model's safetensors files"),
    BEGINS("\x93NUMPY", "is a NumPy file, which is not read: save its arrays as safetensors"),
    BEGINS("\x89HDF\r\n", "is an HDF5 file (of Keras), which is not read: get the model's safetensors files"),
    BEGINS("PK\x03\x04",
           "is a zip archive or a file of torch.save, which is not read: unpack it, or load it in "
           "transformers and write it again with save_pretrained"),
    BEGINS("\x80\x02\x8a\x0a\x6c\xfc",
           "is a file of torch.save (pickle), which is not read: load it in transformers and write "
           "it again with save_pretrained"),
    BEGINS("\x1f\x8b\x08", "is compressed by gzip: unpack it with `gunzip`"),
    BEGINS("\x28\xb5\x2f\xfd", "is compressed by Zstandard: unpack it with `unzstd`"),
};

const char *ax_file_stand_in(const char *bytes, size_t size)
{
    for (size_t i = 0; i < AX_COUNT(stand_ins); i++)
        if (size >= stand_ins[i].size && !strncasecmp(bytes, stand_ins[i].begin, stand_ins[i].size))
            return stand_ins[i].what;
    return NULL;
}
