/* mpi: all ranks get rank 0's runtime settings; a rank that can no longer use them fails.
 * Argument: "late" if rank 1 has used its own value of runtime.plugins before. */
#include "mpi/world.h"

#include "axonn/runtime.h"

#include <string.h>

static ax_status run(ax_comm *world, char **argv)
{
    const char *value;
    int rank = ax_comm_rank(world);
    bool late = !strcmp(argv[1], "late");
    AX_TRY(ax_runtime_set(AX_RUNTIME_ISA, rank ? "avx2" : "generic"));
    if (late) {
        AX_TRY(ax_runtime_set(AX_RUNTIME_PLUGINS, rank ? "/one" : "/zero"));
        AX_TRY(ax_runtime_fix(AX_RUNTIME_PLUGINS, &value));
    }
    ax_status status = ax_comm_share_runtime(world);
    AX_TRY(ax_runtime_get(AX_RUNTIME_ISA, &value));
    AX_CHECK(!strcmp(value, "generic"), AX_ERR_INTERNAL, "rank %d has runtime.isa=%s", rank, value);
    if (!late)
        return status;
    static const char expected[] =
        "rank 1: runtime.plugins is \"/one\" here (runtime.plugins) and \"/zero\" on "
        "rank 0";
    AX_CHECK(status == AX_ERR_USAGE && !strncmp(ax_error_message(), expected, sizeof expected - 1),
             AX_ERR_INTERNAL, "another error: %s", ax_error_message());
    return AX_OK;
}

int main(int argc, char **argv) { return in_world(argc, argv, run); }
