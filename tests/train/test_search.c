/* The first of a search is the first of all candidates. */
#include "train/search_test.h"

#define SMALL                                                                                                \
    "model.family=gpt2 model.layers=4 model.hidden=64 model.heads=4 model.vocab=128 model.seq_len=64 "       \
    "train.precision=bf16 train.global_batch=16 "

static void the_first_is_the_first_of_all(void **state)
{
    (void)state;
    compare_searches(SMALL "grid.pipe=1 grid.y=1", "alps", 4);
    compare_searches(SMALL "train.micro_batch=1 zero=1 train.recompute=none grid.z=1 grid.y=1 pipe.slack=0",
                     "perlmutter", 8);
    compare_searches(
        SMALL "grid.pipe=2 grid.y=1 grid.z=1 train.recompute=2 pipe.schedule=interleaved pipe.chunks=2 "
              "pipe.cut=[0,1,2] pipe.slack=0 train.weight_cache=0",
        "frontier", 4); /* blocks that are not alike */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_first_is_the_first_of_all)};
    return cmocka_run_group_tests_name("train.search", tests, run_setup, run_teardown);
}
