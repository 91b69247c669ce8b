/* The order in which a run reads its samples, compared with the test vectors of docs/training.md, which
 * docs/order.py prints. With learning rate 0 and one row per step, the loss of a step identifies
 * its sample. */
#include "train/run_test.h"

enum { MOST = 64 };
#define FIXED_KEYS                                                                                           \
    BASE_KEYS                                                                                                \
    "optim.lr=0 train.global_batch=1 train.micro_batch=1 run.checkpoint_interval=0 "                         \
    "data.mask_documents=false "

/* Reads the losses of the steps from metrics.jsonl. Returns their number. */
static int losses_of(const char *run, double *out)
{
    char *text = metrics_of(run, true);
    int n = 0;
    for (char *at = text; n < MOST && (at = strstr(at, "\"loss\": ")); at++)
        out[n++] = strtod(at + 8, NULL);
    free(text);
    return n;
}

/* Writes a token file of `samples` samples. */
static void make_source(const char *path, int samples, uint64_t seed)
{
    ax_token_writer *writer;
    int32_t document[1024];
    int64_t n = 16 * samples + 1;
    uint64_t key = ax_rng_key(seed, "tokens", 0);
    for (int64_t i = 0; i < n; i++)
        document[i] = (int32_t)(ax_rng_uniform(key, (uint64_t)i) * (VOCAB - 1));
    OK(ax_token_writer_create(path, VOCAB, -1, 0, &writer));
    OK(ax_token_writer_add(writer, document, n, 3 * n));
    OK(ax_token_writer_finish(&writer, NULL));
}

/* Compares the order of the samples of one source with `order`. Source 1 is listed after a source with a tiny
 * weight, which gives a single sample: the second of the stream. */
static void check_vector(int seed, int source, int n, char *order)
{
    double of_row[MOST], read[MOST + 1];
    int steps = 2 * n + source;
    assert_true(source <= 1 && steps <= MOST);
    sh("rm -rf sequential shuffled");
    make_source("source.tok", n, 5);
    make_source("other.tok", 3, 6);
    run_expect(0, NULL,
               FIXED_KEYS "train.seed=%d run.dir=sequential data.order=sequential data.train=source.tok "
                          "train.steps=%d",
               seed, n);
    run_expect(0, NULL, FIXED_KEYS "train.seed=%d run.dir=shuffled data.train=%s train.steps=%d", seed,
               source ? "[{\"path\":other.tok,\"weight\":1.0e-9},source.tok]" : "source.tok", steps);
    assert_int_equal(losses_of("sequential", of_row), n);
    assert_int_equal(losses_of("shuffled", read), steps);
    for (int i = 0; i < steps; i++) {
        if (source && i == 1)
            continue;
        char *end;
        long row = strtol(order, &end, 10);
        assert_true(end > order && row >= 0 && row < n);
        if (read[i] != of_row[row])
            fail_msg("seed %d, source %d: sample %d of the stream is not row %ld", seed, source, i, row);
        order = end;
    }
}

static void documented_order(void **state)
{
    (void)state;
    char *text = text_of(AXONN_SOURCE_DIR "/docs/training.md"), *at = strstr(text, "| `train.seed` | source");
    assert_non_null(at);
    int vectors = 0;
    for (at = strchr(strchr(at, '\n') + 1, '\n') + 1; *at == '|'; at = strchr(at, '\n') + 1, vectors++) {
        int seed, source, n, used;
        assert_int_equal(sscanf(at, "| %d | %d | %d | %n", &seed, &source, &n, &used), 3);
        check_vector(seed, source, n, at + used);
    }
    assert_int_equal(vectors, 3);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(documented_order)};
    return cmocka_run_group_tests_name("train.order", tests, run_setup, run_teardown);
}
