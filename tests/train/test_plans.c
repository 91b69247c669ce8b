/* Plans of GEMMs in training runs on the emulated GPU: the default, the user's cache, and checkpoints that
 * carry plans, so that a run that is resumed elsewhere keeps its bits. Another clock of the emulated GPU
 * (AXONN_EMULATED_SLOW) stands for another place, where timing would choose other algorithms. */
#include "train/run_test.h"

/* SPLIT: the algorithm that is fastest on a GPU of LARGE GiB; its results differ in their last digits. */
#define SPLIT "5"
#define LARGE "64"
#define KEYS BASE_KEYS "device=cuda "

/* Sets the place: a directory for caches, and the algorithm that is slow there (NULL: none). */
static void move_to(const char *cache, const char *slow)
{
    char path[SCRATCH_PATH + 32];
    snprintf(path, sizeof path, "%s/%s", scratch_dir, cache);
    setenv("XDG_CACHE_HOME", path, 1);
    slow ? setenv("AXONN_EMULATED_SLOW", slow, 1) : unsetenv("AXONN_EMULATED_SLOW");
}

/* Makes a copy of the run `ref` as it was after `step`, without its file of plans. */
static void copy_run(const char *run, int64_t step)
{
    sh("rm -rf %s && mkdir -p %s/ckpt && cp -r ref/ckpt/step-%lld %s/ckpt/ && cp ref/metrics.jsonl "
       "ref/config.yaml "
       "%s/",
       run, run, (long long)step, run, run);
}

static void assert_weights(const char *a, const char *b, bool same)
{
    char *x, *y;
    size_t n, m;
    OK(ax_file_read(a, &x, &n));
    OK(ax_file_read(b, &y, &m));
    assert_int_equal(n, m);
    assert_int_equal(!memcmp(x, y, n), same);
    free(x);
    free(y);
}

static void bits_are_kept(const char *keys)
{
    sh("rm -rf ref run again here there");
    move_to("here", NULL);
    run_expect(0, "plans of GEMMs: 0 in ", KEYS "%s run.dir=ref", keys);
    assert_true(ax_path_exists("here/axonn/plans.txt"));
    same_file("ref/plans.txt", "ref/ckpt/step-6/training/plans.txt");
    run_expect(0, "plans of GEMMs: 0 in ", KEYS "%s run.dir=again", keys);
    assert_weights("ref/ckpt/step-6/model.safetensors", "again/ckpt/step-6/model.safetensors", true);

    move_to("there", SPLIT);
    sh("rm -rf again");
    run_expect(0, NULL, KEYS "%s run.dir=again", keys);
    assert_weights("ref/ckpt/step-6/model.safetensors", "again/ckpt/step-6/model.safetensors", false);
    for (int64_t step = SANITIZED ? 5 : 1; step < 6; step += 2) {
        copy_run("run", step);
        run_expect(0, "timing others on the GPU takes at most 600 s (runtime.plan_seconds)", KEYS "%s", keys);
        same_checkpoint("ref/ckpt/step-6", "run/ckpt/step-6");
    }
}

static void a_run_keeps_its_bits_elsewhere(void **state)
{
    (void)state;
    bits_are_kept("");
}

static void ranks_have_the_same_plans(void **state)
{
    (void)state;
    bits_are_kept("ranks=2 grid.data=2");
}

/* What was not timed for lack of time is not timed later either. */
static void first_choices_are_kept(void **state)
{
    (void)state;
    sh("rm -rf ref run again here");
    move_to("here", NULL);
    run_expect(0, "takes at most 0 s", KEYS "runtime.plan_seconds=0 run.dir=ref");
    run_expect(0, NULL, KEYS "runtime.plans=off run.dir=again");
    assert_weights("ref/ckpt/step-6/model.safetensors", "again/ckpt/step-6/model.safetensors", true);
    assert_false(ax_path_exists("here"));
    copy_run("run", 3);
    run_expect(0, "changed: runtime.plan_seconds was \"0\" and is now \"9\"", KEYS "runtime.plan_seconds=9");
    same_checkpoint("ref/ckpt/step-6", "run/ckpt/step-6");
}

/* If runtime.plans is off, and on other devices, there are no plans. */
static void nothing_is_kept(void **state)
{
    (void)state;
    static const char *const keys[] = {"runtime.plans=off", "device=cpu"};
    move_to("here", NULL);
    for (size_t i = 0; i < AX_COUNT(keys); i++) {
        sh("rm -rf run here");
        run_expect(0, NULL, KEYS "%s", keys[i]);
        char *said = text_of("log");
        assert_null(strstr(said, "plans"));
        free(said);
        assert_false(ax_path_exists("run/plans.txt"));
        assert_false(ax_path_exists("run/ckpt/step-6/training/plans.txt"));
        assert_false(ax_path_exists("here"));
    }
}

/* A run that makes no plans carries those of its checkpoint on, and not those that it finds in run.dir. */
static void plans_are_carried_on(void **state)
{
    (void)state;
    static const char *const keys[] = {"runtime.plans=off", "device=cpu"};
    sh("rm -rf ref run here");
    move_to("here", NULL);
    run_expect(0, NULL, KEYS "run.dir=ref");
    for (size_t i = 0; i < AX_COUNT(keys); i++) {
        copy_run("run", 3);
        run_expect(0, NULL, KEYS "%s", keys[i]);
        same_file("ref/ckpt/step-3/training/plans.txt", "run/ckpt/step-6/training/plans.txt");
        assert_false(ax_path_exists("run/plans.txt"));
        sh("rm -rf run && mkdir run && cp ref/plans.txt run/");
        run_expect(0, NULL, KEYS "%s", keys[i]);
        assert_false(ax_path_exists("run/ckpt/step-6/training/plans.txt"));
    }
}

/* Damage of the run's own file does not matter: the checkpoint has the plans. */
static void damage_is_reported(void **state)
{
    (void)state;
    sh("rm -rf ref run here");
    move_to("here", NULL);
    run_expect(0, NULL, KEYS "run.dir=ref");
    copy_run("run", 3);
    sh("sed '1s/^./x/' ref/plans.txt > run/plans.txt");
    run_expect(0, "warning: ", KEYS "ranks=2 grid.data=2");
    char *said = text_of("log"), *warning = strstr(said, "has 1 damaged line");
    assert_true(warning && !strstr(warning + 1, "has 1 damaged line")); /* one rank says it */
    free(said);
    same_file("run/plans.txt", "run/ckpt/step-6/training/plans.txt");
}

/* A checkpoint with a damaged file of plans is a damaged checkpoint: the one before has the plans. */
static void a_damaged_checkpoint_is_passed_over(void **state)
{
    (void)state;
    sh("rm -rf ref run here");
    move_to("here", NULL);
    run_expect(0, NULL, KEYS "run.dir=ref");
    copy_run("run", 4);
    sh("cp -r ref/ckpt/step-5 run/ckpt/ && sed -i '1s/^./x/' run/ckpt/step-5/training/plans.txt");
    run_expect(0, "training/plans.txt was changed or is damaged", KEYS);
    same_checkpoint("ref/ckpt/step-6", "run/ckpt/step-6");
}

static int set_up(void **state)
{
    if (run_setup(state))
        return -1;
    make_tokens("train.tok", VOCAB, 4000, 1);
    unsetenv("AXONN_PLANS");
    setenv("AXONN_PLAN_SECONDS", "600", 1); /* enough also on a machine that is busy */
    setenv("AXONN_EMULATED_MEMORY", LARGE, 1);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_keeps_its_bits_elsewhere),
        cmocka_unit_test(ranks_have_the_same_plans),
        cmocka_unit_test(first_choices_are_kept),
        cmocka_unit_test(nothing_is_kept),
        cmocka_unit_test(plans_are_carried_on),
        cmocka_unit_test(damage_is_reported),
        cmocka_unit_test(a_damaged_checkpoint_is_passed_over),
    };
    if (!getenv("AXONN_PLUGINS"))
        return 77;
    return cmocka_run_group_tests(tests, set_up, run_teardown);
}
