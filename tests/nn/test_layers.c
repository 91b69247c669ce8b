/* Every layer of layers.def: its gradients against finite differences in float64 on the reference device, and
 * its values and gradients on all grids of up to 8 thread-ranks over x, y and data against the serial run. */
#include "axonn/nn.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

static void gradients_match_finite_differences(void **state)
{
    (void)state;
    for (int s = 0; s < ax_layer_sample_count; s++) {
        double worst;
        if (ax_layer_check_gradient(&ax_layer_samples[s], &worst) != AX_OK)
            fail_msg("%s: %s", ax_layer_samples[s].name, ax_error_message());
        printf("%-20s worst relative gradient error %.1e\n", ax_layer_samples[s].name, worst);
        assert_true(worst < 1e-6);
    }
}

/* In float64 a grid only reorders sums of at most a few hundred terms: 1e-12 is 1e4 roundings. */
static void on_grid(const ax_layer_sample *sample, ax_grid_size grid, const char *device)
{
    double worst;
    if (ax_layer_check_grid(sample, grid, device, &worst) != AX_OK)
        fail_msg("%s on x=%d y=%d data=%d: %s", sample->name, grid.x, grid.y, grid.data, ax_error_message());
    if (!(worst < 1e-12))
        fail_msg("%s on x=%d y=%d data=%d, %s: off by %.1e", sample->name, grid.x, grid.y, grid.data, device,
                 worst);
}

static void all_grids_equal_serial(void **state)
{
    (void)state;
    int runs = 0;
    for (int s = 0; s < ax_layer_sample_count; s++) {
        for (int x = 1; x <= 8; x++)
            for (int y = 1; x * y <= 8; y++)
                for (int d = 1; x * y * d <= 8; d++, runs++)
                    on_grid(&ax_layer_samples[s], (ax_grid_size){x, y, 1, 1, d}, "ref");
        // CHECK
    }
    printf("%d layer and grid pairs\n", runs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gradients_match_finite_differences),
                                       cmocka_unit_test(all_grids_equal_serial)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
