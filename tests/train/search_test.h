/* Compares the search for a layout with the replay of every candidate. */
#ifndef AX_TESTS_SEARCH_TEST_H
#define AX_TESTS_SEARCH_TEST_H

#include "train/run_test.h"

#include <math.h>

/* Searches with the keys `text`, and returns the seconds of the first, its keys in *words, and how many steps
 * were replayed. */
static inline double first_of(const char *text, const char *name, int ranks, bool every, char *words,
                              int64_t *replays)
{
    char all[1024], *key[MAX_KEYS];
    ax_config config;
    ax_machine *machine;
    ax_search *search;
    ax_buf out = {0};
    snprintf(all, sizeof all, "%s data.train=train.tok threads=1 run.dir=run", text);
    OK(ax_config_load(NULL, key, keys_of_rank(all, 0, key), AX_CONFIG_TO_MEASURE, &config));
    OK(ax_machine_open(name, &machine));
    OK(ax_search_create(&config, &(ax_search_options){machine, ranks, .every = every, .most = 1}, &search));
    OK(ax_search_words(search, ax_search_get(search, 0), &out));
    const double seconds = ax_search_get(search, 0)->seconds;
    *replays = ax_search_replays(search);
    snprintf(words, 512, "%s", out.data);
    ax_buf_fini(&out);
    ax_search_destroy(&search);
    ax_machine_close(&machine);
    ax_config_fini(&config);
    return seconds;
}

/* Fails unless both find a first that is equally fast, and the search has replayed less. */
static inline void compare_searches(const char *text, const char *machine, int ranks)
{
    char found[512], best[512];
    int64_t few, all;
    const double mine = first_of(text, machine, ranks, false, found, &few),
                 least = first_of(text, machine, ranks, true, best, &all);
    if (fabs(mine - least) > 1e-9 * least)
        fail_msg("%s, %d ranks of %s: the search finds %s of %.12g s, but %s takes %.12g s", text, ranks,
                 machine, found, mine, best, least);
    print_message("%d ranks of %s: %s, %.4g s, by %lld replays instead of %lld\n", ranks, machine, found,
                  mine, (long long)few, (long long)all);
}

#endif
