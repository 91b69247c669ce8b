/* The long version of test_stop.c: hundreds of kills of several kinds of runs. */
#include "train/kill_test.h"

static void campaign(void **state)
{
    (void)state;
    static const char *const kinds[] = {"", "train.precision=bf16 run.save_dtype=bf16 train.recompute=full",
                                        "train.recompute=1 threads=2", "data.order=sequential optim.name=sgd",
                                        "train.precision=bf16 offload.optimizer=file offload.bucket=500"};
    kill_count count = {0, 0};
    uint64_t seed = 0;
    for (size_t i = 0; i < AX_COUNT(kinds); i++) {
        double seconds = kill_reference(kinds[i]);
        for (int goal = count.kills + 75; count.kills < goal; seed++)
            kill_and_compare(kinds[i], 12, seconds, seed, &count);
    }
    print_message("%d kills of %d runs, resumed %d times\n", count.kills, (int)seed, count.resumed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(campaign)};
    return cmocka_run_group_tests_name("train.long_kill", tests, kill_setup, run_teardown);
}
