/* Runs with the goldfish loss: it drops targets in training only, by the same mask on every grid, and a run
 * is resumed with the same bits. */
#include "train/run_test.h"

#include <math.h>

#define FISH_KEYS                                                                                            \
    BASE_KEYS "model.heads=4 train.global_batch=8 train.micro_batch=1 optim.schedule=constant "              \
              "data.valid=valid.tok run.eval_start=true run.eval_interval=0 "

static void only_training_drops_targets(void **state)
{
    (void)state;
    sh("rm -rf plain fish");
    run_expect(0, NULL, FISH_KEYS "run.dir=plain");
    run_expect(0, "goldfish loss: one of 3 targets is dropped, by a hash of the 4 tokens before it",
               FISH_KEYS "data.goldfish.k=3 data.goldfish.window=4 run.dir=fish");
    double dropped = number_at("fish", "dropped", 1), before = number_at("plain", "tokens", 1);
    assert_true(dropped > 0.1 && dropped < 0.5);
    assert_true(fabs(number_at("fish", "tokens", 1) - before * (1 - dropped)) < 1e-6);
    assert_true(number_at("fish", "goldfish_k", 0) == 3 && number_at("plain", "goldfish_k", 0) == 0);
    /* Before the first step both models are the same, and so are evaluations. */
    assert_true(number_at("fish", "eval_loss", 0) == number_at("plain", "eval_loss", 0));
    assert_true(number_at("fish", "targets", 6) == number_at("plain", "targets", 6));
    assert_true(number_at("fish", "eval_loss", 6) != number_at("plain", "eval_loss", 6));
    char *log = text_of("log");
    assert_non_null(strstr(log, " | dropped "));
    free(log);
}

static void every_grid_drops_the_same(void **state)
{
    (void)state;
    static const char *const grids[] = {"ranks=2 grid.data=2", "ranks=4 grid.x=2 grid.z=2",
                                        "ranks=2 grid.pipe=2 train.micro_batch=2"};
    sh("rm -rf one");
    run_expect(0, NULL, FISH_KEYS "data.goldfish.k=2 data.goldfish.window=3 run.dir=one");
    for (size_t i = 0; i < AX_COUNT(grids); i++) {
        sh("rm -rf many");
        run_expect(0, NULL, FISH_KEYS "data.goldfish.k=2 data.goldfish.window=3 run.dir=many %s", grids[i]);
        for (int step = 1; step <= 6; step++) {
            assert_true(number_at("many", "tokens", step) == number_at("one", "tokens", step));
            assert_true(number_at("many", "dropped", step) == number_at("one", "dropped", step));
            assert_true(fabs(number_at("many", "loss", step) - number_at("one", "loss", step)) < 1e-5);
        }
    }
}

/* The static kind too; a change of what is dropped is refused. */
static void resumed_with_the_same_bits(void **state)
{
    (void)state;
    static const char *const kinds[] = {"data.goldfish.k=4 data.goldfish.window=2",
                                        "data.goldfish.k=3 data.goldfish.kind=static"};
    for (size_t i = 0; i < AX_COUNT(kinds); i++) {
        sh("rm -rf ref run");
        run_expect(0, NULL, FISH_KEYS "run.dir=ref %s", kinds[i]);
        run_expect(0, NULL, FISH_KEYS "train.steps=3 %s", kinds[i]);
        run_expect(0, NULL, FISH_KEYS "%s", kinds[i]);
        same_checkpoint("ref/ckpt/step-6", "run/ckpt/step-6");
    }
    /* It has no window, so that this key means nothing: neither its value nor a change of it. */
    run_expect(0, "done: step 7",
               FISH_KEYS "train.steps=7 data.goldfish.k=3 data.goldfish.kind=static data.goldfish.window=17");
    run_expect(2, "data.goldfish.kind was \"static\" and is now \"hashed\"",
               FISH_KEYS "train.steps=8 data.goldfish.k=3");
    run_expect(2, "data.goldfish.k was 3 and is now 0", FISH_KEYS "train.steps=8");
}

/* What only the data tell is refused before anything is trained. */
static void places_need_an_index(void **state)
{
    (void)state;
    sh("rm -rf run && head -c 20000 /dev/zero > plain.bin");
    run_expect(0, NULL,
               FISH_KEYS "train.steps=1 data.train=plain.bin data.goldfish.k=3 data.goldfish.kind=static");
    run_expect(2, "data.goldfish.window: 17 tokens are longer than a row: choose at most model.seq_len (16)",
               FISH_KEYS "data.goldfish.k=3 data.goldfish.window=17");
}

static int setup(void **state)
{
    if (run_setup(state))
        return -1;
    make_tokens("train.tok", VOCAB, 3000, 1);
    make_tokens("valid.tok", VOCAB, 300, 2);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_training_drops_targets),
        cmocka_unit_test(every_grid_drops_the_same),
        cmocka_unit_test(resumed_with_the_same_bits),
        cmocka_unit_test(places_need_an_index),
    };
    return cmocka_run_group_tests(tests, setup, run_teardown);
}
