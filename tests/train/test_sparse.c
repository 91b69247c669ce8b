/* Whole runs of pruned models (key train.sparse): what is zero in model.from stays zero, a stopped run goes
 * on with the same bits, on the same grid and on others, and wrong settings are refused. */
#include "axonn/infer.h"
#include "ckpt/ckpt.h"
#include "train/run_test.h"

#include <math.h>

/* The keys of a run from the pruned model in directory `half`. */
#define SPARSE_KEYS                                                                                          \
    OTHER_KEYS "model.from=half model.seq_len=16 train.sparse=true train.precision=bf16 model.dropout=0.1 "

static void prune(const char *from, double density, const char *to)
{
    ax_pruning result;
    const ax_pruning_args args = {.dir = from, .out = to, .density = density};
    OK(ax_model_prune(&args, &result));
    ax_pruning_fini(&result);
}

/* Trains a model, whose weights are then pruned to directory half. */
static int make_models(void **state)
{
    if (run_setup(state))
        return -1;
    make_tokens("train.tok", VOCAB, 4000, 1);
    run_expect(0, "done: step 3", BASE_KEYS "train.steps=3 run.dir=dense");
    prune("dense/ckpt/step-3", 0.25, "half");
    return 0;
}

/* Returns how many elements of the matrices of a model's blocks are not zero, and sets *outside to how many
 * of these are zero in the model of directory half. */
static int64_t count_kept(const char *dir, int64_t *outside)
{
    ax_st *st, *half;
    int64_t kept = 0;
    OK(ax_st_open(dir, &st));
    OK(ax_st_open("half", &half));
    *outside = 0;
    for (int i = 0; i < half->n; i++) {
        const ax_st_array *b = &half->array[i], *a = ax_ckpt_find_array(st, b->key, "");
        const int64_t n = ax_st_elements(b);
        float *x = calloc((size_t)n, sizeof *x), *y = calloc((size_t)n, sizeof *y);
        assert_non_null(a);
        OK(ax_st_read(st, a, NULL, NULL, false, AX_F32, x));
        OK(ax_st_read(half, b, NULL, NULL, false, AX_F32, y));
        for (int64_t k = 0; k < n && b->ndim == 2 && strstr(b->key, "h."); k++) {
            kept += x[k] != 0;
            *outside += x[k] != 0 && y[k] == 0;
        }
        free(x);
        free(y);
    }
    ax_st_close(&st);
    ax_st_close(&half);
    return kept;
}

static void zeros_stay_and_a_stopped_run_goes_on(void **state)
{
    int64_t outside;
    (void)state;
    sh("rm -rf run other");
    run_expect(0, "masks ", SPARSE_KEYS "train.steps=6 run.dir=run");
    const int64_t kept = count_kept("run/ckpt/step-6", &outside);
    assert_int_equal(outside, 0);
    assert_int_equal(kept, 2 * 12 * 24 * 24 / 4); /* all kept elements, which weight decay alone moves */
    sh("mkdir -p other/ckpt && cp -r run/ckpt/step-3 other/ckpt/ && echo step-3 > other/latest && "
       "cp run/metrics.jsonl other/");
    run_expect(0, "after step 3", SPARSE_KEYS "train.steps=6 run.dir=other");
    same_checkpoint("run/ckpt/step-6", "other/ckpt/step-6");
}

static void wrong_settings_are_refused(void **state)
{
    (void)state;
    sh("rm -rf run other");
    run_expect(2, "train.sparse: needs model.from", BASE_KEYS "train.sparse=true");
    run_expect(2, "train.sparse: is not possible with tune.method lora", SPARSE_KEYS "tune.method=lora");
    run_expect(4, "have no zeros: prune the model first", SPARSE_KEYS "model.from=dense");
    assert_false(ax_path_exists("run"));
    run_expect(0, "done: step 2", SPARSE_KEYS "train.steps=2");
    prune("dense/ckpt/step-3", 0.5, "third");
    run_expect(2, "zeros of model.from was ", SPARSE_KEYS "train.steps=4 model.from=third");
    run_expect(2, "train.sparse was true and is now false", SPARSE_KEYS "train.steps=4 train.sparse=false");
    run_expect(0, "done: step 2",
               SPARSE_KEYS "train.steps=2 train.sparse=false run.dir=other"); /* fills the zeros */
    run_expect(4, "read from array", SPARSE_KEYS "train.steps=4 run.dir=more train.resume=other/ckpt/step-2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zeros_stay_and_a_stopped_run_goes_on),
        cmocka_unit_test(wrong_settings_are_refused),
    };
    return cmocka_run_group_tests(tests, make_models, run_teardown);
}
