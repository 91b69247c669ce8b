/* ax_comm_agree makes all ranks return the same error if any rank failed. ax_comm_share_text copies the text
 * of one rank to all ranks. Both functions may allocate memory, so a training step calls them only after an
 * error. */
#include "axonn/comm.h"

#include <stdlib.h>
#include <string.h>

static ax_status all_max(ax_comm *comm, int64_t *value)
{
    ax_work *work;
    AX_TRY(ax_all_reduce(comm, NULL, value, 1, AX_I64, AX_MAX, &work));
    return ax_wait(&work);
}

static ax_status broadcast_bytes(ax_comm *comm, void *data, int64_t bytes, int root)
{
    ax_work *work;
    AX_TRY(ax_broadcast(comm, NULL, data, bytes, AX_U8, root, &work));
    return ax_wait(&work);
}

ax_status ax_comm_share_text(ax_comm *comm, int root, char **text)
{
    int64_t bytes = *text ? (int64_t)strlen(*text) : -1;
    if (comm->size == 1)
        return AX_OK;
    AX_TRY(broadcast_bytes(comm, &bytes, sizeof bytes, root));
    if (comm->rank != root) {
        *text = NULL;
        if (bytes >= 0)
            AX_TRY(ax_calloc((size_t)bytes + 1, 1, text));
    }
    return bytes > 0 ? broadcast_bytes(comm, *text, bytes, root) : AX_OK;
}

/* Broadcasts the status and error message of rank `root`, which has failed, to *status and *message of every
 * rank; the caller frees *message. Sets *alike to whether all ranks failed with the same message. */
static ax_status share_message(ax_comm *comm, int root, ax_status mine, char **message, int64_t *status,
                               bool *alike)
{
    int64_t differ;
    *status = (int64_t)mine;
    AX_TRY(ax_strdup(mine == AX_OK ? "" : ax_error_message(), message));
    char *own = *message;
    ax_status result = broadcast_bytes(comm, status, sizeof *status, root);
    if (result == AX_OK)
        result = ax_comm_share_text(comm, root, message);
    differ = result != AX_OK || mine == AX_OK || !*message || strcmp(own, *message) != 0;
    if (own != *message)
        free(own);
    AX_TRY(result);
    AX_TRY(all_max(comm, &differ));
    *alike = !differ;
    return AX_OK;
}

ax_status ax_comm_agree(ax_comm *comm, ax_status mine)
{
    if (comm->size == 1)
        return mine;
    char *message = NULL;
    bool alike = false;
    int64_t failed = mine == AX_OK ? 0 : comm->size - comm->rank, status = 0;
    if (mine != AX_OK) /* all_max may overwrite this thread's error message */
        AX_TRY(ax_strdup(ax_error_message(), &message));
    ax_status result = all_max(comm, &failed);
    if (mine != AX_OK)
        (void)ax_fail(mine, "%s", message);
    free(message);
    message = NULL;
    if (result != AX_OK)
        return mine != AX_OK ? mine : result;
    if (!failed)
        return AX_OK;
    int root = comm->size - (int)failed;
    result = share_message(comm, root, mine, &message, &status, &alike);
    if (result == AX_OK) {
        result = alike ? ax_fail((ax_status)status, "%s", message)
                       : ax_fail((ax_status)status, "rank %d: %s", root, message);
        ax_error_share();
    }
    free(message);
    return result;
}
