/* Exchanges between the ranks of a run. Before the run, ranks compare their configurations. While one rank
 * works for all, the ranks run an all-reduce about once a second, so that all know of a signal to any of them
 * and the watchdog does not warn of a late rank. After each step, ranks exchange signals, errors and
 * measurements. */
#include "train/train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool ax_train_first(const ax_train_run *run) { return ax_comm_rank(run->world) == 0; }

ax_status ax_train_max(const ax_train_run *run, int64_t *values, int n)
{
    ax_work *work;
    if (ax_comm_size(run->world) == 1)
        return AX_OK;
    AX_TRY(ax_all_reduce(run->world, NULL, values, n, AX_I64, AX_MAX, &work));
    return ax_wait(&work);
}

/* ---- one configuration --------------------------------------------------------------------------- */

/* Compares line by line this rank's configuration, the text `mine`, with the configuration of rank 0, the
 * text `first`. The two texts have the same keys. Fails, with a message about it, at the first line that
 * differs. */
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

/* Gives the grid all ranks (ax_config_take_ranks), and logs what it chose if the configuration did not. */
static ax_status take_ranks(const ax_train_run *run)
{
    const ax_grid_size before = ax_config_grid(run->config);
    if (run->config->grid.choice == AX_CONFIG_GRID_AUTO) /* ax_train_choose_grid */
        return AX_OK;
    AX_TRY(ax_config_take_ranks(run->config, ax_comm_size(run->world)));
    const ax_grid_size now = ax_config_grid(run->config);
    for (int a = 0; a < AX_AXES_STANDARD; a++)
        if (now.of[a] != before.of[a] && ax_train_first(run))
            ax_log(AX_LOG_INFO,
                   "grid.%s is %d: the ranks that no other key of the grid uses divide each batch",
                   ax_axis_name((ax_axis)a), now.of[a]);
    return AX_OK;
}

ax_status ax_train_compare_configs(const ax_train_run *run)
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
    return status == AX_OK ? take_ranks(run) : status;
}

/* ---- waiting for a rank that works for all ------------------------------------------------------- */

ax_status ax_train_beat(const ax_train_run *run, bool *done, int *signal)
{
    int64_t values[] = {*done, ax_signal_pending()};
    AX_TRY(ax_train_max(run, values, 2));
    *done = values[0];
    *signal = (int)values[1];
    return AX_OK;
}

/* ---- once a step --------------------------------------------------------------------------------- */

void ax_trouble_note(ax_train_trouble *trouble, ax_status status)
{
    if (status == AX_OK || trouble->status != AX_OK)
        return;
    trouble->status = status;
    snprintf(trouble->message, sizeof trouble->message, "%s", ax_error_message());
}

ax_status ax_train_agree(const ax_train_run *run)
{
    const ax_train_trouble *t = &run->trouble;
    return ax_comm_agree(run->world, t->status != AX_OK ? ax_fail(t->status, "%s", t->message) : AX_OK);
}

/* Runs one all-reduce for all maxima and one for the sums; starts the two all-reduces before it waits for
 * one. */
ax_status ax_train_exchange(const ax_train_run *run, double *max, int n, double *sum, int sums, int *signal)
{
    enum { SIGNAL, TROUBLE };
    _Static_assert(TROUBLE + 1 == AX_EXCHANGE_OWN, "the values of the caller follow these");
    max[SIGNAL] = ax_signal_pending();
    max[TROUBLE] = run->trouble.status;
    if (ax_comm_size(run->world) > 1) {
        ax_work *largest, *summed;
        AX_TRY(ax_all_reduce(run->world, NULL, max, AX_EXCHANGE_OWN + n, AX_F64, AX_MAX, &largest));
        AX_TRY(ax_all_reduce(run->world, NULL, sum, sums, AX_F64, AX_SUM, &summed));
        AX_TRY(ax_wait(&largest));
        AX_TRY(ax_wait(&summed));
    }
    ax_comm_set_timeout(run->world, run->config->watchdog.timeout);
    *signal = (int)max[SIGNAL];
    return max[TROUBLE] > 0 ? ax_train_agree(run) : AX_OK;
}
