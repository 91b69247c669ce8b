/* Runs that are killed at random moments until one comes to its end, for test_stop.c and its campaign. */
#ifndef AX_TESTS_KILL_TEST_H
#define AX_TESTS_KILL_TEST_H

#include "engine/run_test.h"

#define KILL_KEYS                                                                                            \
    BASE_KEYS "train.steps=12 model.dropout=0.1 data.valid=valid.tok run.eval_interval=4 "                   \
              "run.checkpoint_interval=2 run.keep_latest=2 "

/* The run that nobody kills, in ref/; returns how long it takes. */
static inline double kill_reference(const char *keys)
{
    sh("rm -rf ref");
    double start = ax_now();
    run_expect(0, "done: step 12", KILL_KEYS "%s run.dir=ref", keys);
    return ax_now() - start;
}

/* Starts the run up to `tries` times and kills each after at most half of `seconds`, drawn from `seed`, then
 * lets it end; it must be as the reference. Returns the kills that hit a living run. */
static inline int kill_and_compare(const char *keys, int tries, double seconds, uint64_t seed)
{
    char all[4096];
    int kills = 0;
    snprintf(all, sizeof all, KILL_KEYS "%s", keys);
    sh("rm -rf run");
    for (int i = 0, code = 1; i < tries && code; i++) {
        pid_t pid = run_start("log", all);
        sleep_ms(500 * seconds * ax_rng_uniform(ax_rng_key(seed, "kill", 0), (uint64_t)i));
        kill(pid, SIGKILL);
        code = run_wait(pid);
        if (code != 0 && code != 128 + SIGKILL)
            fail_msg("exit code %d after %d kills:\n%s", code, kills, text_of("log"));
        kills += code != 0;
    }
    run_expect(0, NULL, "%s", all);
    same_checkpoint("ref/ckpt/step-12", "run/ckpt/step-12");
    same_checkpoint("ref/ckpt/step-10", "run/ckpt/step-10");
    same_text(metrics_of("ref", true), metrics_of("run", true));
    return kills;
}

static inline int kill_setup(void **state)
{
    if (scratch_setup(state))
        return -1;
    make_tokens("train.tok", VOCAB, 4000, 1);
    make_tokens("valid.tok", VOCAB, 300, 3);
    return 0;
}

#endif
