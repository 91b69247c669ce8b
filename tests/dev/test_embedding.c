/* The gradient of an embedding in 16 bits, with so many rows that the device cpu takes them in parts, and
 * with so large a table that it leaves the call to ref. */
#include "axonn/dev.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

/* Each of two ids has 2^18 rows of ones. The sum, and that of each part, fits into bf16. If it were rounded
 * after each row, it would stay at 256, from where 1 is less than half of the distance to the next number. */
static void many_rows_are_summed_in_fp32(void **state)
{
    (void)state;
    enum { ROWS = 1 << 19 };
    const struct {
        const char *device;
        int64_t count;
    } cases[] = {{"cpu", 2}, {"cpu", ROWS}, {"ref", 2}};
    uint16_t *dy = malloc(ROWS * sizeof *dy), *table = calloc(ROWS, sizeof *table);
    int32_t *ids = malloc(ROWS * sizeof *ids);
    assert_true(dy && table && ids);
    for (int i = 0; i < ROWS; i++) {
        dy[i] = ax_bf16_from_float(1);
        ids[i] = i % 2;
    }
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        ax_stream stream = {0};
        assert_int_equal(ax_device_open(cases[i].device, 1, &stream.dev), AX_OK);
        table[0] = table[1] = 0;
        const ax_embedding_grad_args args = {.rows = ROWS,
                                             .cols = 1,
                                             .count = cases[i].count,
                                             .dy = dy,
                                             .ids = ids,
                                             .dtable = table,
                                             .dtype = AX_BF16,
                                             .table_dtype = AX_BF16};
        assert_int_equal(ax_run_embedding_grad(&stream, &args), AX_OK);
        assert_true(ax_bf16_to_float(table[0]) == ROWS / 2 && ax_bf16_to_float(table[1]) == ROWS / 2);
        ax_device_close(&stream.dev);
    }
    free(dy);
    free(table);
    free(ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(many_rows_are_summed_in_fp32)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
