/* base: median, minimum, maximum and mean of measurements. */
#include "axonn/base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void one_two_and_three(void **state)
{
    (void)state;
    double one[] = {3}, two[] = {5, 2}, three[] = {9, 1, 2};
    ax_spread a = ax_spread_of(one, 1), b = ax_spread_of(two, 2), c = ax_spread_of(three, 3);
    assert_true(a.median == 3 && a.min == 3 && a.max == 3 && a.mean == 3);
    assert_true(b.median == 3.5 && b.min == 2 && b.max == 5 && b.mean == 3.5);
    assert_true(c.median == 2 && c.min == 1 && c.max == 9 && c.mean == 4);
    assert_true(three[0] == 1 && three[1] == 2 && three[2] == 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_two_and_three)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
