/* The room on the disk for the checkpoints of a run, checked before step 1: otherwise the run would compute
 * until a save fails. */
#include "train/train.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

/* Which checkpoints the run writes, and what one of them takes. */
typedef struct saves {
    ax_ckpt_size size;
    int64_t count; /* how many the run still writes */
    int64_t peak;  /* how many more than now are on the disk at a time: the oldest is removed after a save */
    int have;      /* how many there are now */
} saves;

/* Returns the step of the n-th save from now on, counted from 1. */
static int64_t step_of_save(const ax_train_run *run, int64_t n)
{
    const int64_t interval = run->config->run.checkpoint_interval, last = run->config->train.steps;
    return interval ? ax_min((run->state.step / interval + n) * interval, last) : last;
}

static ax_status count_saves(const ax_train_run *run, saves *out)
{
    const ax_config *c = run->config;
    const int64_t interval = c->run.checkpoint_interval, keep = c->run.keep_latest;
    AX_TRY(ax_train_measure_checkpoint(run, &out->size));
    AX_TRY(ax_train_count_checkpoints(c->run.dir, &out->have));
    out->count = interval ? ax_ceil_div(c->train.steps, interval) - run->state.step / interval : 1;
    out->peak = keep ? ax_min(out->count, ax_max(keep + 1 - out->have, 1)) : out->count;
    return AX_OK;
}

/* Checks the limit on the size of a file (ulimit -f). */
static ax_status check_limit(const saves *s)
{
    struct rlimit limit;
    char needs[32], has[32];
    AX_CHECK(getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur >= (rlim_t)s->size.largest, AX_ERR_DATA,
             "no checkpoint can be saved: its largest file has %s (%lld bytes), and the limit on the size of "
             "a file (ulimit -f) is %s: raise it",
             ax_format_bytes((double)s->size.largest, needs), (long long)s->size.largest,
             ax_format_bytes((double)limit.rlim_cur, has));
    return AX_OK;
}

/* Writes what would make the checkpoints fit where only `fit` more do: the largest run.keep_latest that does
 * or, if there is none, only a save at the end. */
static void advise(const ax_train_run *run, const saves *s, int64_t fit, char *out, size_t size)
{
    const int64_t keep = fit + s->have - 1;
    *out = 0;
    if (keep > 0)
        snprintf(out, size, ", or set run.keep_latest: %lld", (long long)keep);
    else if (run->config->run.checkpoint_interval)
        snprintf(out, size, ", or save only at the end (run.checkpoint_interval: 0)");
}

static void warn(const ax_train_run *run, const saves *s, const char *dir, double space)
{
    const int64_t fit = (int64_t)(space / (double)s->size.bytes);
    char one[32], has[32], more[32], advice[96];
    advise(run, s, fit, advice, sizeof advice);
    ax_log(AX_LOG_WARN,
           "%s has room for %lld of the %lld checkpoints that this run adds to it (%s each, %s are free): "
           "the save of step %lld will fail; free %s more%s",
           dir, (long long)fit, (long long)s->peak, ax_format_bytes((double)s->size.bytes, one),
           ax_format_bytes(space, has), (long long)step_of_save(run, fit + 1),
           ax_format_bytes((double)s->peak * (double)s->size.bytes - space, more), advice);
}

/* Checks the room in `dir`, where the checkpoints are. */
static ax_status check_space(const ax_train_run *run, const char *dir)
{
    saves s;
    if (run->state.step >= run->config->train.steps)
        return AX_OK;
    AX_TRY(count_saves(run, &s));
    AX_TRY(check_limit(&s));
    ax_status status = ax_dir_has_space(dir, s.size.bytes, "a checkpoint of this run");
    if (status != AX_OK) {
        ax_error_context("run.dir");
        return status;
    }
    double space = ax_dir_available(dir);
    if (space < (double)s.peak * (double)s.size.bytes)
        warn(run, &s, dir, space);
    return AX_OK;
}

ax_status ax_train_check_space(const ax_train_run *run)
{
    char *dir; /* may be a link to another file system */
    AX_TRY(ax_path_join(run->config->run.dir, "ckpt", &dir));
    ax_status status = check_space(run, ax_path_is_dir(dir) ? dir : run->config->run.dir);
    free(dir);
    return status;
}
