/* A file of GEMM plans of a GPU, as a run takes it over from a checkpoint. The reader needs no GPU. If the
 * input begins with '#', the harness adds the kind of GPU before each line and the checksum after it, so that
 * mutants pass these checks. */
#include "axonn/dev.h"
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
    fuzz_seed_texts((const char *[]){"1 2 3 0000000000000000\n", NULL});
}

/* Appends each line of `text`, with a hash of the kind before and a checksum after it. */
static void complete_lines(char *text, ax_buf *out)
{
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        size_t begin = out->size;
        FUZZ_HOLDS(ax_buf_printf(out, "%" PRId64 " %s", (int64_t)ax_cuda_plan_hash(kind, strlen(kind)),
                                 line) == AX_OK);
        uint64_t sum = ax_cuda_plan_hash(out->data + begin, out->size - begin);
        FUZZ_HOLDS(ax_buf_printf(out, "%016" PRIx64 "\n", sum) == AX_OK);
    }
}

/* Opens the plans of a run in directory run/. Its cache is cache/. */
static ax_cuda_plans *open_run(const char *from)
{
    ax_cuda_plans *plans;
    FUZZ_HOLDS(ax_cuda_plans_open(kind, fuzz_path("run"), from, 0, &plans) == AX_OK && plans);
    return plans;
}

void fuzz_one(const fuzz_part *part, int n)
{
    ax_cuda_plan_key key = {.m = 1};
    ax_buf text = {0};
    (void)n;
    if (setenv("AXONN_PLANS", fuzz_path("cache"), 1) || ax_mkdirs(fuzz_path("run")) != AX_OK)
        abort();
    fuzz_file("run/" AX_PLANS_FILE, NULL, 0);
    fuzz_file("cache/" AX_PLANS_FILE, NULL, 0);
    if (part->size && part->data[0] == '#')
        complete_lines(part->data + 1, &text);
    else
        FUZZ_HOLDS(ax_buf_add(&text, part->data, part->size) == AX_OK);
    fuzz_file(AX_PLANS_FILE, text.data, text.size);
    ax_buf_fini(&text);
    ax_cuda_plans *plans = open_run(fuzz_path(""));
    const uint64_t *known = ax_cuda_plans_find(plans, &key);
    uint64_t algo = known ? known[0] : 7;
    if (!known)
        ax_cuda_plans_add(plans, &key, (uint64_t[AX_CUDA_PLAN_WORDS]){7}, true, false);
    ax_cuda_plans_close(&plans);
    plans = open_run(NULL);
    known = ax_cuda_plans_find(plans, &key);
    FUZZ_HOLDS(known && known[0] == algo);
    ax_cuda_plans_close(&plans);
}
