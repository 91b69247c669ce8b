/* How many cores this process may use: the machine's, less what affinity and container quotas forbid. */
#include "axonn/dev.h"

#include <hwloc.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void set(ax_cores *cores, int i)
{
    if (i < AX_CORES_MAX)
        cores->usable[i / 64] |= UINT64_C(1) << (i % 64);
}

/* Physical cores, of which those are usable that have a hardware thread in the affinity mask. */
static bool find_by_topology(ax_cores *out)
{
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology))
        return false;
    hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
    hwloc_topology_set_type_filter(topology, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
    hwloc_bitmap_t mine = hwloc_bitmap_alloc();
    if (mine && !hwloc_topology_load(topology) && !hwloc_get_cpubind(topology, mine, HWLOC_CPUBIND_PROCESS))
        for (hwloc_obj_t core = NULL; (core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core));
             out->machine++)
            if (hwloc_bitmap_intersects(core->cpuset, mine))
                set(out, out->machine);
    hwloc_bitmap_free(mine);
    hwloc_topology_destroy(topology);
    return out->machine > 0;
}

/* Hardware threads stand for cores on machines whose topology is hidden. */
static void find_by_mask(ax_cores *out)
{
    cpu_set_t mask;
    out->machine = (int)ax_max(sysconf(_SC_NPROCESSORS_ONLN), 1);
    if (sched_getaffinity(0, sizeof mask, &mask))
        CPU_SET(0, &mask);
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &mask))
            set(out, i);
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

void ax_cores_find(ax_cores *out)
{
    *out = (ax_cores){.quota = quota()};
    if (!find_by_topology(out))
        find_by_mask(out);
}

int ax_cores_usable(void)
{
    ax_cores found;
    int cores = 0;
    ax_cores_find(&found);
    for (size_t i = 0; i < AX_COUNT(found.usable); i++)
        cores += __builtin_popcountll(found.usable[i]);
    if (found.quota < cores)
        cores = (int)found.quota;
    return cores > 1 ? cores : 1;
}
