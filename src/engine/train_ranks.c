/* Exchanges between the ranks of a run. Before the run they compare configurations. While one rank works for
 * all, they tell each other that they are alive. After each step they share signals, errors and
 * measurements. */
#include "engine/train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool ax_run_first(const ax_run *run) { return ax_comm_rank(run->world) == 0; }

ax_status ax_run_max(const ax_run *run, int64_t *values, int n)
{
    ax_work *work;
    if (ax_comm_size(run->world) == 1)
        return AX_OK;
    AX_TRY(ax_all_reduce(run->world, NULL, values, n, AX_I64, AX_MAX, &work));
    return ax_wait(&work);
}

ax_status ax_run_average_peak(ax_run *run)
{
    ax_work *work;
    AX_TRY(ax_all_reduce(run->world, NULL, &run->peak_flops, 1, AX_F64, AX_SUM, &work));
    AX_TRY(ax_wait(&work));
    run->peak_flops /= ax_comm_size(run->world);
    return AX_OK;
}

/* ---- one configuration --------------------------------------------------------------------------- */

/* Compares two configurations line by line; both have the same keys. Reports the first line that differs. */
static ax_status compare_lines(const ax_option_set *set, const char *mine, const char *first)
{
    while (*mine) {
        size_t n = strcspn(mine, "\n"), m = strcspn(first, "\n"), key = strcspn(mine, ":");
        char name[128];
        snprintf(name, sizeof name, "%.*s", (int)key, mine);
        AX_CHECK(n == m && !memcmp(mine, first, n), AX_ERR_USAGE,
                 "%s is%.*s here (%s) and%.*s on rank 0: give all ranks the same configuration", name,
                 (int)(n - key - 1), mine + key + 1, ax_option_place(set, name),
                 (int)(m > key ? m - key - 1 : 0), first + ax_min((int64_t)m, (int64_t)key + 1));
        mine += n + (mine[n] == '\n');
        first += m + (first[m] == '\n');
    }
    return AX_OK;
}

ax_status ax_run_compare_configs(ax_run *run)
{
    ax_buf mine = {0};
    char *first = NULL;
    ax_status status = ax_option_print(run->config->set, &mine);
    if (ax_comm_size(run->world) > 1) {
        if (status == AX_OK)
            status = ax_strdup(mine.data, &first);
        status = ax_comm_agree(run->world, status);
        char *own = first;
        if (status == AX_OK)
            status = ax_comm_share_text(run->world, 0, &first);
        if (status == AX_OK)
            status = ax_comm_agree(run->world, compare_lines(run->config->set, mine.data, first));
        if (first != own)
            free(own);
        free(first);
    }
    ax_buf_fini(&mine);
    return status == AX_OK ? ax_config_check_ranks(run->config, ax_comm_size(run->world)) : status;
}

/* ---- waiting for a rank that works for all ------------------------------------------------------- */

ax_status ax_run_beat(ax_run *run, bool *done)
{
    int64_t values[] = {*done, ax_signal_pending()};
    AX_TRY(ax_run_max(run, values, 2));
    *done = values[0];
    run->signal = (int)values[1];
    return AX_OK;
}

/* ---- once a step --------------------------------------------------------------------------------- */

/* Indices into ax_run.exchanged; from AXES on, the bytes along each set of axes. */
enum { SIGNAL, TROUBLE, MEMORY, WIRE, EXPOSED, SECONDS, AXES };

ax_status ax_run_find_axes(ax_run *run)
{
    const ax_grid *grid = run->ctx->grid;
    int groups = ax_grid_groups(grid);
    AX_TRY(ax_calloc((size_t)groups, sizeof *run->axes, &run->axes));
    AX_TRY(ax_calloc((size_t)groups, sizeof *run->row_axes, &run->row_axes));
    AX_TRY(ax_calloc((size_t)(AXES + groups), sizeof *run->exchanged, &run->exchanged));
    for (int i = 0; i < groups; i++) {
        ax_axisset set;
        const ax_comm *comm = ax_grid_group(grid, i, &set);
        if (!set)
            continue;
        ax_run_axes *a = &run->axes[run->n_axes++];
        a->comm = comm;
        ax_grid_set_print(grid, set, a->name);
    }
    return AX_OK;
}

void ax_run_begin_traffic(ax_run *run)
{
    for (int i = 0; i < run->n_axes; i++)
        run->axes[i].before = ax_comm_traffic_get(run->axes[i].comm);
}

double ax_run_exposed(const ax_run *run)
{
    double sum = 0;
    for (int i = 0; i < run->n_axes; i++)
        sum += ax_comm_traffic_get(run->axes[i].comm).exposed - run->axes[i].before.exposed;
    return sum;
}

void ax_run_note_trouble(ax_run *run, ax_status status)
{
    if (status == AX_OK || run->trouble != AX_OK)
        return;
    run->trouble = status;
    snprintf(run->trouble_message, sizeof run->trouble_message, "%s", ax_error_message());
}

ax_status ax_run_agree(ax_run *run)
{
    ax_status mine = run->trouble != AX_OK ? ax_fail(run->trouble, "%s", run->trouble_message) : AX_OK;
    return ax_comm_agree(run->world, mine);
}

/* Reduces all maxima in one small all-reduce and the sum of FLOPs in another; both are started before the
 * waits. */
ax_status ax_run_exchange(ax_run *run, ax_metrics_step *row)
{
    double *max = run->exchanged;
    max[SIGNAL] = ax_signal_pending();
    max[TROUBLE] = run->trouble;
    max[MEMORY] = (double)row->mem_bytes;
    max[WIRE] = 0;
    for (int i = 0; i < run->n_axes; i++) {
        ax_comm_traffic now = ax_comm_traffic_get(run->axes[i].comm), before = run->axes[i].before;
        max[AXES + i] = (double)(now.bytes - before.bytes);
        max[WIRE] += (double)(now.wire - before.wire);
    }
    max[EXPOSED] = ax_run_exposed(run);
    max[SECONDS] = ax_now() - run->step_began;
    if (ax_comm_size(run->world) > 1) {
        ax_work *largest, *sum;
        AX_TRY(ax_all_reduce(run->world, NULL, max, AXES + run->n_axes, AX_F64, AX_MAX, &largest));
        AX_TRY(ax_all_reduce(run->world, NULL, &row->hw_flops, 1, AX_F64, AX_SUM, &sum));
        AX_TRY(ax_wait(&largest));
        AX_TRY(ax_wait(&sum));
    }
    ax_comm_set_timeout(run->world, run->config->watchdog.timeout);
    run->signal = (int)max[SIGNAL];
    ax_pace_end(&run->computing, max[SECONDS]);
    row->mem_bytes = (int64_t)max[MEMORY];
    row->comm_wire_bytes = (int64_t)max[WIRE];
    row->comm_exposed_ms = max[EXPOSED] * 1e3;
    for (int i = 0; i < run->n_axes; i++)
        run->row_axes[i] = (ax_metrics_axes){run->axes[i].name, (int64_t)max[AXES + i]};
    row->comm = run->row_axes;
    row->comm_count = run->n_axes;
    return max[TROUBLE] > 0 ? ax_run_agree(run) : AX_OK;
}
