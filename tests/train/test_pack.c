/* data.pack: documents: packed rows give the losses and gradients of their documents one by one; runs with
 * packed rows on grids, resumed, and refused. */
#include "support/ranks.h"
#include "train/run_test.h"

#include <math.h>

enum { DOCUMENTS = 24, T = 16, STEPS = 3 };

/* ---- the same losses and gradients --------------------------------------------------------------- */

/* What a batch consists of: packed rows, or one document in each row. */
typedef struct job {
    const char *keys;
    bool packed;
    double loss[STEPS], norm[STEPS];
    float *weights; /* after the steps; the test frees them */
    int64_t n;
} job;

typedef struct batch {
    const ax_data *data;
    ax_row_shape shape;
    bool packed;
} batch;

static ax_status read_document(const ax_data *data, int64_t d, const ax_rows *out, int64_t line)
{
    int64_t first, end;
    AX_TRY(ax_data_document(data, d, &first, &end));
    for (int64_t t = 0; t < T; t++) {
        out->tokens[line * T + t] = 0;
        out->targets[line * T + t] = -1;
        out->doc_start[line * T + t] = 0;
        out->position[line * T + t] = (int32_t)t;
    }
    AX_TRY(ax_data_tokens(data, first, end - first - 1, out->tokens + line * T));
    return ax_data_tokens(data, first + 1, end - first - 1, out->targets + line * T);
}

static ax_status read_rows(void *source, int64_t first, int64_t end, const ax_rows *out)
{
    const batch *b = source;
    for (int64_t i = first; i < end; i++)
        AX_TRY(b->packed ? ax_data_row(b->data, &b->shape, i, out, i - first, NULL)
                         : read_document(b->data, i, out, i - first));
    return AX_OK;
}

/* Copies all weights, one parameter after another. */
static ax_status copy_weights(ax_engine *engine, job *j)
{
    const ax_param_set *set = ax_engine_params(engine);
    j->weights = calloc(set->memory.bytes[AX_MEMORY_WEIGHTS], 1);
    j->n = 0;
    for (int i = 0; i < set->n; i++) {
        const ax_param_state *s = &set->param[i]->state[AX_STATE_MASTER];
        AX_TRY(ax_param_state_read(set->ctx, s, 0, s->n, j->weights + j->n));
        j->n += s->n;
    }
    return AX_OK;
}

static ax_status run_steps(const ax_train_plan *plan, ax_engine *engine, batch *b, job *j)
{
    int64_t targets = ax_data_describe(b->data)->tokens - DOCUMENTS;
    for (int64_t step = 1; step <= STEPS; step++) {
        ax_step_result result;
        ax_hyper hyper = ax_train_hyper(plan, step);
        AX_TRY(ax_engine_step(engine, step, read_rows, b, targets, &hyper));
        AX_TRY(ax_engine_result(engine, &result));
        j->loss[step - 1] = result.loss;
        j->norm[step - 1] = result.grad_norm;
    }
    return copy_weights(engine, j);
}

static ax_status load(const char *keys, int64_t rows, ax_config *config)
{
    char text[4096], *key[MAX_KEYS];
    snprintf(text, sizeof text, "%s train.global_batch=%lld", keys, (long long)rows);
    size_t n = keys_of_rank(text, 0, key);
    return ax_config_load(NULL, key, n, AX_CONFIG_TO_MEASURE, config);
}

static ax_status steps_rank(ax_comm *world, void *arg)
{
    job *j = arg;
    ax_data *data;
    ax_data_packed packed;
    ax_config config;
    ax_trainer *trainer;
    ax_ctx *ctx = NULL;
    ax_engine *engine = NULL;
    batch b = {.shape = {.seq_len = T, .mask_documents = true, .pack = AX_PACK_DOCUMENTS},
               .packed = j->packed};
    AX_TRY(ax_data_open("short.tok", -1, &data));
    AX_TRY(ax_data_pack(data, &b.shape, &packed));
    EXPECT(packed.documents == DOCUMENTS && packed.cut == 0 && packed.rows < DOCUMENTS * 2 / 3);
    b.data = data;
    AX_TRY(load(j->keys, j->packed ? packed.rows : DOCUMENTS, &config));
    ax_status status = ax_trainer_create(world, &config, &trainer);
    if (status == AX_OK)
        status = ax_trainer_engine(trainer, &ctx, &engine);
    if (status == AX_OK)
        status = run_steps(ax_trainer_plan(trainer), engine, &b, j);
    ax_engine_destroy(&engine);
    ax_ctx_destroy(&ctx);
    ax_trainer_destroy(&trainer);
    ax_config_fini(&config);
    ax_data_close(&data);
    return status;
}

/* With plain SGD the weights change by the learning rate times the gradient, so equal weights mean equal
 * gradients. */
#define SGD_KEYS                                                                                             \
    "model.layers=2 model.hidden=24 model.heads=3 model.vocab=61 model.seq_len=16 train.micro_batch=1 "      \
    "train.precision=fp32 train.steps=6 optim.name=sgd optim.momentum=0 optim.weight_decay=0 optim.clip=0 "  \
    "optim.schedule=constant optim.lr=0.1 threads=1 run.dir=none "

static void packed_as_one_by_one(void **state)
{
    (void)state;
    static const char *const keys[] = {SGD_KEYS "model.family=gpt2",
                                       SGD_KEYS "model.family=llama model.ffn=64"};
    ax_token_writer *writer;
    OK(ax_token_writer_create("short.tok", VOCAB, VOCAB - 1, 0, &writer));
    for (int d = 0; d < DOCUMENTS; d++) {
        int32_t document[T];
        int64_t n = 1 + (int64_t)(ax_rng_uniform(3, (uint64_t)d) * (d % 4 ? 6 : T));
        for (int64_t i = 0; i < n; i++)
            document[i] = (int32_t)(ax_rng_uniform(4 + (uint64_t)d, (uint64_t)i) * (VOCAB - 1));
        OK(ax_token_writer_add(writer, document, n, n));
    }
    OK(ax_token_writer_finish(&writer, NULL));
    for (size_t i = 0; i < AX_COUNT(keys); i++) {
        job one = {.keys = keys[i]}, packed = {.keys = keys[i], .packed = true};
        assert_ranks(1, steps_rank, &one);
        assert_ranks(1, steps_rank, &packed);
        assert_int_equal(one.n, packed.n);
        for (int s = 0; s < STEPS; s++) {
            assert_true(fabs(one.loss[s] - packed.loss[s]) < 1e-5 * one.loss[s]);
            assert_true(fabs(one.norm[s] - packed.norm[s]) < 1e-5 * one.norm[s]);
        }
        assert_true(one.loss[STEPS - 1] < one.loss[0]);
        double most = 0, difference = 0;
        for (int64_t w = 0; w < one.n; w++) {
            most = fmax(most, fabs((double)one.weights[w]));
            difference = fmax(difference, fabs((double)one.weights[w] - (double)packed.weights[w]));
        }
        assert_true(difference < 1e-5 * most);
        free(one.weights);
        free(packed.weights);
    }
}

/* ---- runs ---------------------------------------------------------------------------------------- */

#define PACK_KEYS                                                                                            \
    BASE_KEYS "data.pack=documents model.heads=4 train.global_batch=8 train.micro_batch=1 "                  \
              "optim.schedule=constant data.valid=valid.tok run.eval_interval=3 "

static void runs_of_packed_rows(void **state)
{
    (void)state;
    static const char *const others[] = {"train.micro_batch=4", "ranks=2 grid.data=2",
                                         "ranks=4 grid.x=2 grid.z=2", "ranks=2 grid.pipe=2"};
    make_tokens("train.tok", VOCAB, 4000, 1);
    make_tokens("valid.tok", VOCAB, 600, 2);
    run_expect(0, " % of which are used", PACK_KEYS "run.dir=ref");
    char *log = text_of("log");
    assert_non_null(strstr(log, "/train.tok: "));
    assert_non_null(strstr(log, " documents are packed into "));
    assert_non_null(strstr(log, " are longer than a row and became "));
    free(log);
    json_t *want = json_array(), *got = json_array();
    for (size_t i = 0; i < AX_COUNT(others) + 1; i++) {
        json_t *losses = i ? got : want;
        char *rest = NULL, *text;
        if (i)
            run_expect(0, NULL, PACK_KEYS "run.dir=other%zu %s", i, others[i - 1]);
        char path[32];
        snprintf(path, sizeof path, i ? "other%zu/metrics.jsonl" : "ref/metrics.jsonl", i);
        text = text_of(path);
        json_array_clear(losses);
        for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
            json_t *row = json_loads(line, 0, NULL), *loss = json_object_get(row, "loss");
            json_array_append(losses, loss ? loss : json_object_get(row, "eval_loss"));
            json_decref(row);
        }
        free(text);
        assert_int_equal(json_array_size(losses), json_array_size(want));
        for (size_t k = 0; k < json_array_size(want); k++)
            assert_true(fabs(json_number_value(json_array_get(losses, k)) -
                             json_number_value(json_array_get(want, k))) < 1e-5);
    }
    json_decref(want);
    json_decref(got);
    /* Resumed with the same bits; not resumed as a stream. */
    run_expect(0, NULL, PACK_KEYS "train.steps=4");
    run_expect(0, NULL, PACK_KEYS);
    same_checkpoint("ref/ckpt/step-6", "run/ckpt/step-6");
    run_expect(2, "data.pack was \"documents\" and is now \"stream\"",
               PACK_KEYS "train.steps=7 data.pack=stream");
}

/* All sources that cannot be packed are named together, before anything is trained. */
static void sources_without_documents(void **state)
{
    (void)state;
    sh("rm -rf run && head -c 2000 /dev/zero > a.bin && head -c 2000 /dev/zero > b.bin");
    run_expect(2, "a.bin (nanoGPT tokens) has no index of documents, which packing needs",
               PACK_KEYS "data.train=a.bin data.valid=b.bin");
    char *log = text_of("log");
    assert_non_null(strstr(log, "2 errors"));
    assert_non_null(strstr(log, "data.valid: "));
    assert_non_null(strstr(log, "b.bin (nanoGPT tokens) has no index of documents"));
    free(log);
    assert_false(ax_path_exists("run/metrics.jsonl"));
    /* Documents of one token: there is nothing to evaluate on, however many there are. */
    ax_token_writer *writer;
    OK(ax_token_writer_create("ones.tok", VOCAB, -1, 0, &writer));
    for (int32_t i = 0; i < 40; i++)
        OK(ax_token_writer_add(writer, &i, 1, 1));
    OK(ax_token_writer_finish(&writer, NULL));
    run_expect(4, "ones.tok holds nothing to evaluate on: it has no document of two tokens or more",
               PACK_KEYS "data.valid=ones.tok");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(packed_as_one_by_one),
                                       cmocka_unit_test(runs_of_packed_rows),
                                       cmocka_unit_test(sources_without_documents)};
    return cmocka_run_group_tests(tests, run_setup, run_teardown);
}
