/* How many cores this process may use: the machine's, less what affinity and container quotas forbid. */
#include "axonn/dev.h"

#include <hwloc.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

/* Physical cores with at least one hardware thread in this process's affinity mask; 0 if unknown. */
static int cores_allowed(void)
{
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology))
        return 0;
    int cores = 0;
    hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
    hwloc_topology_set_type_filter(topology, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
    hwloc_bitmap_t mine = hwloc_bitmap_alloc();
    if (mine && !hwloc_topology_load(topology) && !hwloc_get_cpubind(topology, mine, HWLOC_CPUBIND_PROCESS))
        for (hwloc_obj_t core = NULL; (core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core));)
            cores += hwloc_bitmap_intersects(core->cpuset, mine);
    hwloc_bitmap_free(mine);
    hwloc_topology_destroy(topology);
    return cores;
}

/* Hardware threads in the affinity mask, for machines whose topology is hidden. */
static int threads_allowed(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

static bool read_numbers(const char *path, double *a, double *b)
{
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    int n = fscanf(file, b ? "%lf %lf" : "%lf", a, b); /* "max" is not a number: no limit */
    fclose(file);
    return n == (b ? 2 : 1);
}

/* CPUs' worth of time that one control group may use, or infinity. */
static double quota_of(const char *group)
{
    char path[4200];
    double limit, period;
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", group);
    return read_numbers(path, &limit, &period) ? limit / period : INFINITY;
}

/* The same of a version 1 hierarchy's root, which is a container's own group. */
static double quota_v1(void)
{
    double limit, period;
    bool known = read_numbers("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", &limit, NULL) &&
                 read_numbers("/sys/fs/cgroup/cpu/cpu.cfs_period_us", &period, NULL);
    return known && limit > 0 ? limit / period : INFINITY;
}

/* The tightest quota from this process's control group up to the root. */
static double quota(void)
{
    char line[4096];
    double tightest = fmin(quota_of(""), quota_v1());
    FILE *file = fopen("/proc/self/cgroup", "r");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, "0::", 3)) {
            char *group = line + 3;
            group[strcspn(group, "\n")] = 0;
            for (char *end; (end = strrchr(group, '/')); *end = 0)
                tightest = fmin(tightest, quota_of(group));
        }
    if (file)
        fclose(file);
    return tightest;
}

int ax_cores_usable(void)
{
    int cores = cores_allowed();
    if (cores <= 0)
        cores = threads_allowed();
    double limit = quota();
    if (limit < cores)
        cores = (int)limit;
    return cores > 1 ? cores : 1;
}
