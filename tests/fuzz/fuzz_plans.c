/* The file of measured GEMM plans of a GPU. The reader needs no GPU. If the input begins with '#', the
 * harness adds the checksum of each line, so that mutants pass that check. */
#include "dev/cuda/plans.h"
#include "fuzz/fuzz.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char kind[] = "a GPU";

void fuzz_make_seeds(void)
{
    static const char numbers[] = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 ";
    char line[1024];
    int n = snprintf(line, sizeof line, "#%s%016x %016x %016x %016x %016x %016x %016x %016x \n", numbers, 1,
                     2, 3, 4, 5, 6, 7, 8);
    fuzz_seed((fuzz_part[]){{line, (size_t)n}, {NULL, 0}});
    fuzz_seed_texts((const char *[]){"a GPU\n1 2 3 0000000000000000\n", NULL});
}

/* Writes the first line, which names the kind of GPU, and appends its checksum to each line of `text`. */
static void with_checksums(char *text, ax_buf *out)
{
    char *rest = NULL;
    FUZZ_HOLDS(ax_buf_printf(out, "%s\n", kind) == AX_OK);
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        FUZZ_HOLDS(ax_buf_printf(out, "%s%016" PRIx64 "\n", line, ax_cuda_plan_hash(line, strlen(line))) ==
                   AX_OK);
}

void fuzz_one(const fuzz_part *part, int n)
{
    ax_cuda_plans *plans;
    ax_cuda_plan_key key = {.m = 1};
    ax_buf text = {0};
    (void)n;
    if (setenv("AXONN_PLANS", fuzz_path(""), 1))
        abort();
    if (part->size && part->data[0] == '#')
        with_checksums(part->data + 1, &text);
    else
        FUZZ_HOLDS(ax_buf_add(&text, part->data, part->size) == AX_OK);
    fuzz_file("a-gpu.txt", text.data, text.size);
    ax_buf_fini(&text);
    FUZZ_HOLDS(ax_cuda_plans_open(kind, &plans) == AX_OK && plans);
    (void)ax_cuda_plans_find(plans, &key);
    ax_cuda_plans_add(plans, &key, (uint64_t[AX_CUDA_PLAN_WORDS]){7}, false);
    FUZZ_HOLDS(ax_cuda_plans_find(plans, &key));
    ax_cuda_plans_close(&plans);
}
