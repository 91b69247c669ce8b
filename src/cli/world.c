/* Being one of the ranks of a verb, and telling errors once. */
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Whether this process may tell an error, has told it, or leaves it to another rank. Before there is a world,
 * all ranks are taken to fail alike. */
static enum { NO_WORLD, MAY_TELL, NEED_NOT } voice;

void cli_tell(ax_status status)
{
    bool mine = voice == NO_WORLD ? ax_launcher_find().rank <= 0 : voice == MAY_TELL;
    if (status == AX_OK || !mine)
        return;
    bool colour = cli_colour(stderr);
    if (status == AX_ERR_SIGNAL) /* asked for, and done as asked: no error to the eye */
        fprintf(stderr, "axonn: %s\n", ax_error_message());
    else
        fprintf(stderr, "axonn: %serror:%s %s\n", colour ? "\033[1;31m" : "", colour ? "\033[0m" : "",
                ax_error_message());
    voice = NEED_NOT;
}

void cli_told_by_ranks(void) { voice = NEED_NOT; }

ax_status cli_world_open(ax_comm **world) { return ax_comm_world_create(world); }

/* Launchers may return another code than the ranks. */
static void leave_note(ax_status status)
{
    const char *path = getenv(CLI_NOTE);
    int fd = path ? open(path, O_WRONLY | O_CLOEXEC) : -1;
    char code = (char)('0' + (int)status);
    if (fd < 0)
        return; /* rank 0 is on another host: the launcher's word has to do */
    if (write(fd, &code, 1) < 0)
        ax_log(AX_LOG_DEBUG, "no note of the exit code is left: %s", strerror(errno));
    close(fd);
}

void cli_world_judge(ax_comm *world, ax_status status)
{
    if (world && status != AX_OK && ax_comm_size(world) > 1 && !ax_error_is_shared())
        ax_comm_abort(world, status, ax_error_message());
}

ax_status cli_world_close(ax_comm **world, ax_status status)
{
    if (!*world)
        return status;
    cli_world_judge(*world, status);
    voice = ax_comm_rank(*world) ? NEED_NOT : MAY_TELL;
    if (voice == MAY_TELL)
        leave_note(status);
    fflush(stdout);
    cli_tell(status); /* before a launcher can see a rank that failed, and ends the others */
    ax_comm_destroy(world);
    return status;
}
