/* Chooses the backend of the world communicator. A process that no launcher started, or whose launcher says
 * that it started one rank, does not initialise MPI, because that would take time. */
#include "comm/world.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

/* The environment variables that launchers set to the number of ranks (`size`; NULL: the launcher sets no
 * such variable) and to the rank. The launcher is the first one in this list that started more than one rank;
 * if there is none, the first one that started one rank, or a number that it does not tell. Inside an
 * allocation of Slurm the variables of srun may be set beside those of mpirun, so srun comes later. */
static const struct {
    const char *launcher, *size, *rank;
} launchers[] = {
    {"Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
    {"an mpiexec of the MPICH family", "PMI_SIZE", "PMI_RANK"},
    {"srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"},
    {"a launcher with PMIx", NULL, "PMIX_RANK"},
};

/* Returns the environment variable `name` as a nonnegative integer; `absent` if it is unset or not an integer
 * from 0 to 2^31 - 1, or if `name` is NULL. */
static int number(const char *name, int absent)
{
    const char *text = name ? getenv(name) : NULL;
    char *end;
    long value = text ? strtol(text, &end, 10) : -1;
    return text && end != text && !*end && value >= 0 && value <= INT32_MAX ? (int)value : absent;
}

ax_launcher ax_launcher_find(void)
{
    ax_launcher found = {0};
    for (size_t i = 0; i < AX_COUNT(launchers) && found.size < 2; i++) {
        int rank = number(launchers[i].rank, -1), size = number(launchers[i].size, 0);
        bool alone = rank >= 0 && (size == 1 || !launchers[i].size);
        if (size > 1 || (alone && !found.launcher))
            found = (ax_launcher){launchers[i].launcher, (int)ax_max(rank, 0), size};
    }
    return found;
}

static void (*_Atomic on_abort)(int code);

void ax_comm_on_abort(void (*function)(int code)) { atomic_store(&on_abort, function); }

void ax_comm_tell_abort(int code)
{
    void (*function)(int) = atomic_load(&on_abort);
    if (function)
        function(code);
}

void ax_comm_exit(int code)
{
    ax_comm_tell_abort(code);
    _exit(code);
}

#ifdef AXONN_HAVE_MPI
ax_status ax_comm_world_create(ax_comm **out)
{
    *out = NULL;
    ax_launcher launch = ax_launcher_find();
    return !launch.launcher || launch.size == 1 ? ax_comm_self_create(out) : ax_comm_mpi_create(launch, out);
}
#else
ax_status ax_comm_world_create(ax_comm **out)
{
    *out = NULL;
    ax_launcher launch = ax_launcher_find();
    AX_CHECK(launch.size < 2, AX_ERR_USAGE,
             "%s started %d ranks, but this program was built without MPI: build it where an MPI library is "
             "installed (scripts/install-deps.sh does that), or start one rank",
             launch.launcher, launch.size);
    return ax_comm_self_create(out);
}

const char *ax_comm_mpi_library(void) { return NULL; }
#endif
