/* comm: ax_launcher_find detects the launcher from environment variables. */
#include "axonn/comm.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const variables[] = {
    "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_SIZE", "PMI_RANK",
    "SLURM_STEP_NUM_TASKS", "SLURM_PROCID",         "PMIX_RANK"};

/* Sets the variables "NAME=value NAME=value" and unsets all other launchers' variables. */
static void be_in(const char *environment)
{
    char text[256];
    for (size_t i = 0; i < AX_COUNT(variables); i++)
        unsetenv(variables[i]);
    snprintf(text, sizeof text, "%s", environment);
    for (char *save, *word = strtok_r(text, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        char *value = strchr(word, '=');
        *value = 0;
        setenv(word, value + 1, 1);
    }
}

static void launchers_are_found_by_environment_variables(void **state)
{
    (void)state;
    static const struct {
        const char *environment, *launcher; /* a part of its name; NULL: none */
        int rank, size;
    } cases[] = {
        {"", NULL, 0, 0},
        {"OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=3", "Open MPI", 3, 4},
        {"OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0 PMIX_RANK=0", "Open MPI", 0, 1},
        {"PMI_SIZE=2 PMI_RANK=1", "MPICH", 1, 2},
        {"SLURM_STEP_NUM_TASKS=8 SLURM_PROCID=5 PMIX_RANK=5", "srun", 5, 8},
        {"PMIX_RANK=2", "PMIx", 2, 0},
        /* A Slurm batch script is not a rank; a process that mpirun started in an srun step of one task is.
         */
        {"SLURM_PROCID=0", NULL, 0, 0},
        {"SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0 PMI_SIZE=3 PMI_RANK=2", "MPICH", 2, 3},
        {"OMPI_COMM_WORLD_SIZE=four OMPI_COMM_WORLD_RANK=0", NULL, 0, 0},
    };
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        be_in(cases[i].environment);
        ax_launcher found = ax_launcher_find();
        if (cases[i].launcher ? !found.launcher || !strstr(found.launcher, cases[i].launcher)
                              : !!found.launcher)
            fail_msg("\"%s\" is taken for %s", cases[i].environment,
                     found.launcher ? found.launcher : "none");
        assert_int_equal(found.rank, cases[i].rank);
        assert_int_equal(found.size, cases[i].size);
    }
}

static void a_process_without_launcher_is_a_world_of_one(void **state)
{
    (void)state;
    static const char *const environments[] = {"", "OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0"};
    for (size_t i = 0; i < AX_COUNT(environments); i++) {
        ax_comm *world;
        be_in(environments[i]);
        assert_int_equal(ax_comm_world_create(&world), AX_OK);
        assert_int_equal(ax_comm_size(world), 1);
        ax_comm_destroy(&world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(launchers_are_found_by_environment_variables),
        cmocka_unit_test(a_process_without_launcher_is_a_world_of_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
