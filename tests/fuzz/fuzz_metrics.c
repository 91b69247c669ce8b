/* metrics.jsonl: it is read, drawn, and truncated at the step from which a run resumes. */
#include "axonn/trace.h"
#include "fuzz/fuzz.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RESUME_STEP = 3 };

void fuzz_make_seeds(void)
{
    fuzz_seed_texts((const char *[]){
        "{\"version\": \"0.1.0\", \"grid\": \"x=1\"}\n"
        "{\"step\": 1, \"loss\": 5.5, \"grad_norm\": 1.25, \"lr\": 0.001, \"tokens\": 99, \"step_ms\": 5, "
        "\"tokens_per_s\": 1e5, \"comm_bytes\": {\"x\": 12}, \"skipped\": false}\n"
        "{\"step\": 2, \"loss\": null, \"grad_norm\": null, \"lr\": 0.002}\n"
        "{\"step\": 3, \"loss\": 1e308, \"grad_norm\": -1e308, \"lr\": 1e-308}\n"
        "{\"step\": 3, \"eval_loss\": 4.5, \"bits_per_byte\": 1.9}\n"
        "{\"step\": 3, \"recall\": \"a.tok\", \"documents\": 8, \"recalled\": 2, \"recall_loss\": 4}\n"
        "{\"step\": 4, \"loss\": 0}\n{\"step\": 5, \"lo",
        NULL});
    fuzz_seed_texts((const char *[]){"{\"step\": -9223372036854775808, \"loss\": \"1\"}\n[]\n{\"step\": "
                                     "9223372036854775807, \"eval_loss\": 1e-320}\n",
                                     NULL});
}

static void draw(const ax_history *history)
{
    ax_buf out = {0};
    FUZZ_HOLDS(ax_history_svg(history, 1, &out) == AX_OK && out.size);
    out.size = 0;
    FUZZ_HOLDS(ax_history_html(history, 1, &out) == AX_OK && out.size);
    ax_buf_fini(&out);
}

/* Checks that resuming removes the rows of later steps, which the run repeats. */
static void resume(void)
{
    ax_metrics *metrics;
    ax_history history;
    ax_metrics_run run = {.dir = fuzz_path("run"), .quiet = true};
    if (!fuzz_read(ax_metrics_open(&run, RESUME_STEP, &metrics)))
        return;
    ax_metrics_close(&metrics);
    if (!fuzz_read(ax_history_read(run.dir, &history)))
        return;
    FUZZ_HOLDS(!history.n || history.point[history.n - 1].step <= RESUME_STEP);
    ax_history_fini(&history);
}

void fuzz_one(const fuzz_part *part, int n)
{
    ax_history history;
    (void)n;
    if (ax_mkdirs(fuzz_path("run")) != AX_OK || ax_remove_tree(fuzz_path("run/tb")) != AX_OK)
        abort();
    fuzz_file("run/metrics.jsonl", part->data, part->size);
    if (fuzz_read(ax_history_read(fuzz_path("run"), &history))) {
        draw(&history);
        ax_history_fini(&history);
    }
    resume();
}
