/* Joins the ranks of a verb (the world), and makes sure that each error is printed once. */
#include "job.h"
#include "launch.h"
#include "process.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Which process prints an error. NOT_THIS_RANK: another process prints the error, or it is already printed.
 * NO_WORLD: no communicator exists yet; all ranks are expected to fail in the same way, so only rank 0
 * prints. */
static enum { NO_WORLD, THIS_RANK, NOT_THIS_RANK } error_printer;

void cli_print_error(ax_status status)
{
    bool mine = error_printer == NO_WORLD ? ax_launcher_find().rank <= 0 : error_printer == THIS_RANK;
    if (status == AX_OK || !mine)
        return;
    bool colour = cli_colour(stderr);
    if (status == AX_ERR_SIGNAL) /* not shown as an error: the user asked for the stop */
        fprintf(stderr, "axonn: %s\n", ax_error_message());
    else
        fprintf(stderr, "axonn: %serror:%s %s\n", colour ? "\033[1;31m" : "", colour ? "\033[0m" : "",
                ax_error_message());
    error_printer = NOT_THIS_RANK;
}

void cli_ranks_print_error(void) { error_printer = NOT_THIS_RANK; }

/* ---- the process that started the ranks ---------------------------------------------------------- */

static int starter =
    -1; /* file descriptor of the note (cli_note) of the process that started this rank; -1: none */

/* Sets a member of the note that any rank may set, that at `offset`, to 1. Async-signal-safe. */
static void set_note(size_t offset)
{
    static const int32_t yes = 1;
    if (starter >= 0 && pwrite(starter, &yes, sizeof yes, (off_t)offset) < 0)
        starter = -1; /* the note cannot be written: do not try again */
}

/* Opens the note (cli_note, memory of the process that started this rank) only if CLI_NOTE is the path of a
 * memfd with the name CLI_NOTE_NAME: on another host the same path may lead to another file. */
void cli_starter_find(void)
{
    char target[64] = "";
    const char *path = getenv(CLI_NOTE);
    if (path && readlink(path, target, sizeof target - 1) > 0 &&
        !strncmp(target, "/memfd:" CLI_NOTE_NAME " ", strlen("/memfd:" CLI_NOTE_NAME " ")))
        starter = open(path, O_RDWR | O_CLOEXEC);
    set_note(offsetof(cli_note, begun));
}

void cli_starter_note_signal(void) { set_note(offsetof(cli_note, heard)); }

/* Writes the part of the note that is rank 0's. Async-signal-safe. */
static void leave_note(bool ended, int code)
{
    cli_note note = {.pid = getpid(), .ended = ended, .code = code};
    if (starter >= 0 && pwrite(starter, &note, offsetof(cli_note, heard), 0) < 0)
        starter = -1; /* the note cannot be written: do not try again */
}

static void note_abort(int code) { leave_note(true, code); }

/* As note_abort, on ranks other than 0: the launcher may kill rank 0 before it can write its part of the
 * note. What rank 0 has written stays. */
static void note_abort_too(int code)
{
    int32_t part[2] = {0};
    _Static_assert(offsetof(cli_note, code) == offsetof(cli_note, ended) + sizeof part[0], "adjacent");
    if (starter < 0 || pread(starter, part, sizeof part, offsetof(cli_note, ended)) < 0 || part[0])
        return;
    part[0] = true, part[1] = code;
    if (pwrite(starter, part, sizeof part, offsetof(cli_note, ended)) < 0)
        starter = -1; /* the note cannot be written: do not try again */
}

/* ---- the world ----------------------------------------------------------------------------------- */

ax_status cli_world_open(ax_comm **world)
{
    AX_TRY(ax_comm_world_create(world));
    if (!ax_comm_rank(*world))
        leave_note(false, 0);
    ax_comm_on_abort(ax_comm_rank(*world) ? note_abort_too : note_abort);
    ax_status status = ax_comm_share_runtime(*world);
    return status == AX_OK ? AX_OK : cli_world_close(world, status);
}

void cli_world_wait_for_first(ax_comm *world, bool waits)
{
    if (ax_comm_rank(world))
        ax_comm_set_timeout(world, waits ? 0 : AX_COMM_TIMEOUT);
}

void cli_world_abort_unshared(ax_comm *world, ax_status status)
{
    if (world && status != AX_OK && ax_comm_size(world) > 1 && !ax_error_is_shared())
        ax_comm_abort(world, status, ax_error_message());
}

ax_status cli_world_close(ax_comm **world, ax_status status)
{
    if (!*world)
        return status;
    cli_world_abort_unshared(*world, status);
    error_printer = ax_comm_rank(*world) ? NOT_THIS_RANK : THIS_RANK;
    if (!ax_comm_rank(*world))
        leave_note(true, status);
    fflush(stdout);
    cli_print_error(status); /* printed before any rank exits with an error, because the launcher then kills
                                the other ranks */
    ax_comm_destroy(world);
    return status;
}

ax_status cli_config_open(const cli_config_args *args, ax_config_use use, ax_config *config)
{
    AX_TRY(ax_config_load(args->path, args->overrides.items, args->overrides.count, use, config));
    AX_TRY(ax_runtime_set_given(config->set));
    return cli_process_settings();
}

/* Creates the communicator of all ranks (the world). `loaded` is the status of loading the configuration. If
 * it is an error, returns it, with its message, which the creation of the communicator may have replaced. */
static ax_status open_after(ax_status loaded, ax_comm **world)
{
    char *message = NULL;
    if (loaded != AX_OK)
        AX_TRY(ax_strdup(ax_error_message(), &message));
    ax_status status = cli_world_open(world);
    if (status == AX_OK && loaded != AX_OK)
        status = ax_fail(loaded, "%s", message);
    free(message);
    return status;
}

/* Loads the configuration before it creates the communicator of all ranks (the world), because some runtime
 * settings affect how the communicator is created. */
ax_status cli_configured(const void *args, ax_config_use use, cli_configured_fn *run)
{
    ax_comm *world = NULL;
    ax_config config;
    ax_status status = open_after(cli_config_open(args, use, &config), &world);
    if (world)
        status = ax_comm_agree(world, status);
    if (status == AX_OK)
        status = run(world, &config, args);
    ax_config_fini(&config);
    return cli_world_close(&world, status);
}
