/* Helpers of the tests of the trace room: a scratch directory, sample runs, rows read back with jansson. */
#ifndef AXONN_TESTS_TRACE_TEST_H
#define AXONN_TESTS_TRACE_TEST_H

#include "axonn/trace.h"
#include "support/check.h"
#include "support/scratch.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static inline ax_metrics_run quiet_run(const char *dir)
{
    return (ax_metrics_run){.dir = dir,
                            .device = "cpu",
                            .threads = 2,
                            .ranks = 1,
                            .grid = "data=1 pipe=1 x=1 y=1 z=1",
                            .precision = "fp32",
                            .grad_dtype = "fp32",
                            .offload = "none",
                            .model = "gpt2 6 x 256",
                            .parameters = 10000000,
                            .steps = 100,
                            .peak_flops = 1e12,
                            .peak_from = "measured",
                            .log_interval = 10,
                            .quiet = true};
}

static inline ax_metrics_step a_step(int64_t step)
{
    double s = (double)step;
    return (ax_metrics_step){.step = step,
                             .loss = 4 + 1 / s,
                             .grad_norm = 0.1 * s,
                             .lr = 3e-4 / s,
                             .tokens = 4096 * step,
                             .step_tokens = 4096,
                             .step_ms = 400 + 0.3 * s,
                             .flops = 2e11,
                             .hw_flops = 2.5e11,
                             .mem_bytes = 123456789,
                             .mem_mean = 123450000,
                             .comm_exposed_ms = 0.25};
}

static inline void add_steps(ax_metrics *metrics, int64_t from, int64_t to)
{
    for (int64_t step = from; step <= to; step++) {
        ax_metrics_step s = a_step(step);
        OK(ax_metrics_step_add(metrics, &s));
    }
}

/* Returns DIR/name, in one of four buffers used in turn. */
static inline const char *in(const char *dir, const char *name)
{
    static char paths[4][256];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}

/* Returns all rows of DIR/name as a JSON array; each line must be a complete object. The caller releases
 * it. */
static inline json_t *read_rows(const char *dir, const char *name)
{
    char *data;
    size_t size;
    json_t *rows = json_array();
    OK(ax_file_read(in(dir, name), &data, &size));
    for (char *line = data, *end; line < data + size; line = end + 1) {
        end = memchr(line, '\n', (size_t)(data + size - line));
        assert_non_null(end);
        json_error_t error;
        json_t *row = json_loadb(line, (size_t)(end - line), JSON_REJECT_DUPLICATES, &error);
        if (!json_is_object(row))
            fail_msg("%s: %.*s", error.text, (int)(end - line), line);
        json_array_append_new(rows, row);
    }
    free(data);
    return rows;
}

#endif
