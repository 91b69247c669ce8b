/* Runs that are killed at random moments and resumed until they finish, for test_stop.c and test_long_kill.c
 * (many more kills). */
#ifndef AX_TESTS_KILL_TEST_H
#define AX_TESTS_KILL_TEST_H

#include "train/run_test.h"

#define KILL_KEYS                                                                                            \
    BASE_KEYS "train.steps=12 model.dropout=0.1 data.valid=valid.tok run.eval_interval=4 "                   \
              "run.checkpoint_interval=2 run.keep_latest=2 "

/* Makes the reference run, which is not killed, in ref/. Returns its duration in seconds. */
static inline double kill_reference(const char *keys)
{
    sh("rm -rf ref");
    double start = ax_now();
    run_expect(0, "done: step 12", KILL_KEYS "%s run.dir=ref", keys);
    return ax_now() - start;
}

typedef struct kill_count {
    int kills;   /* kills that hit a running process */
    int resumed; /* sessions that resumed from a checkpoint */
} kill_count;

/* Waits until a random moment of a run that takes `seconds`: any moment or, more often, one soon after a
 * step, when checkpoints are written. */
static inline void await_moment(pid_t pid, double seconds, uint64_t key, uint64_t draw)
{
    float u = ax_rng_uniform(key, 3 * draw), v = ax_rng_uniform(key, 3 * draw + 1);
    if (ax_rng_uniform(key, 3 * draw + 2) < 0.3f) {
        sleep_ms(1e3 * seconds * u);
        return;
    }
    await_step("run", pid, last_step("run") + 1 + (int64_t)(4 * u));
    sleep_ms(6 * v);
}

/* Starts the run up to `tries` times, kills it at random moments (from `seed`), then lets it finish. The
 * result must equal the reference. */
static inline void kill_and_compare(const char *keys, int tries, double seconds, uint64_t seed,
                                    kill_count *count)
{
    char all[4096];
    snprintf(all, sizeof all, KILL_KEYS "%s", keys);
    sh("rm -rf run");
    for (int i = 0, code = 1; i < tries && code; i++) {
        pid_t pid = run_start("log", all);
        await_moment(pid, seconds, ax_rng_key(seed, "kill", 0), (uint64_t)i);
        kill(pid, SIGKILL);
        code = run_wait(pid);
        char *log = text_of("log");
        if (code != 0 && code != 128 + SIGKILL)
            fail_msg("exit code %d after %d kills:\n%s", code, count->kills, log);
        count->kills += code != 0;
        count->resumed += strstr(log, "resuming ") && !strstr(log, "nothing to do");
        free(log);
    }
    run_expect(0, NULL, "%s", all);
    same_checkpoint("ref/ckpt/step-12", "run/ckpt/step-12");
    same_checkpoint("ref/ckpt/step-10", "run/ckpt/step-10");
    same_text(metrics_of("ref", true), metrics_of("run", true));
}

static inline int kill_setup(void **state)
{
    if (run_setup(state))
        return -1;
    make_tokens("train.tok", VOCAB, 4000, 1);
    make_tokens("valid.tok", VOCAB, 300, 3);
    return 0;
}

#endif
