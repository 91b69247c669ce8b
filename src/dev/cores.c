/* Finds which cores of the machine this process may use by its affinity mask, and how many CPUs the quota of
 * its cgroup allows. */
#include "dev/cores.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void set_usable(ax_cores *cores, int i)
{
    if (i < AX_CORES_MAX)
        cores->usable[i / 64] |= UINT64_C(1) << (i % 64);
}

/* Loads the machine's topology by hwloc, including cores that the cpuset of this process's cgroup excludes:
 * ranks of one machine may have different cpusets, and a core must have the same number on all ranks. Uses
 * the flag DONT_CHANGE_BINDING, because hwloc may otherwise bind the calling thread to each hardware thread
 * in turn to discover the topology. Other threads that read this process's binding at that moment would see a
 * wrong binding. */
bool ax_topology_find(hwloc_topology_t *out, hwloc_bitmap_t *mine)
{
    *mine = NULL;
    if (hwloc_topology_init(out)) {
        *out = NULL;
        return false;
    }
    unsigned long flags = HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED;
#if HWLOC_API_VERSION >= 0x00020500
    flags |= HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING;
#endif
    hwloc_topology_set_flags(*out, flags);
    hwloc_topology_set_all_types_filter(*out, HWLOC_TYPE_FILTER_KEEP_NONE);
    hwloc_topology_set_type_filter(*out, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
    hwloc_topology_set_cache_types_filter(*out, HWLOC_TYPE_FILTER_KEEP_ALL);
    *mine = hwloc_bitmap_alloc();
    return *mine && !hwloc_topology_load(*out) && !hwloc_get_cpubind(*out, *mine, HWLOC_CPUBIND_PROCESS);
}

void ax_topology_forget(hwloc_topology_t topology, hwloc_bitmap_t mine)
{
    hwloc_bitmap_free(mine);
    if (topology)
        hwloc_topology_destroy(topology);
}

/* Counts the machine's physical cores, and marks as usable each core that has a hardware thread in the
 * affinity mask of this process. Returns false if hwloc finds no cores. */
static bool count_cores(ax_cores *out)
{
    hwloc_topology_t topology;
    hwloc_bitmap_t mine;
    if (ax_topology_find(&topology, &mine))
        for (hwloc_obj_t core = NULL; (core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core));
             out->machine++)
            if (hwloc_bitmap_intersects(core->cpuset, mine))
                set_usable(out, out->machine);
    ax_topology_forget(topology, mine);
    out->physical = out->machine > 0 && out->machine <= AX_CORES_MAX;
    return out->machine > 0;
}

/* Counts hardware threads as cores, for systems on which hwloc finds no cores. */
static void count_hardware_threads(ax_cores *out)
{
    cpu_set_t mask;
    out->machine = (int)ax_max(sysconf(_SC_NPROCESSORS_ONLN), 1);
    if (sched_getaffinity(0, sizeof mask, &mask))
        CPU_SET(0, &mask);
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &mask))
            set_usable(out, i);
}

static bool read_numbers(const char *path, double *a, double *b)
{
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    /* The file may say "max", which means no limit: then fscanf reads fewer numbers. */
    int n = fscanf(file, b ? "%lf %lf" : "%lf", a, b);
    fclose(file);
    return n == (b ? 2 : 1);
}

/* Returns the CPU quota of one control group (cgroup v2), in CPUs; infinity if the group has none. */
static double quota_of(const char *group)
{
    char path[4200];
    double limit, period;
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", group);
    return read_numbers(path, &limit, &period) ? limit / period : INFINITY;
}

/* Returns the CPU quota of the root group of cgroup v1, which in a container is the container's own group. */
static double quota_v1(void)
{
    double limit, period;
    bool known = read_numbers("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", &limit, NULL) &&
                 read_numbers("/sys/fs/cgroup/cpu/cpu.cfs_period_us", &period, NULL);
    return known && limit > 0 ? limit / period : INFINITY;
}

/* Returns the smallest of these CPU quotas, in CPUs: those of this process's control group and of all its
 * parents (cgroup v2), and that of the root group of cgroup v1. Infinity if there is none. */
static double smallest_quota(void)
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
    *out = (ax_cores){.quota = smallest_quota()};
    if (!count_cores(out))
        count_hardware_threads(out);
}

char *ax_binding_print(const ax_binding *binding, char *out, size_t size)
{
    *out = 0;
    for (int c = 0, end; c < AX_CORES_MAX; c = end) {
        for (end = c; end < AX_CORES_MAX && binding->cores[end / 64] >> (end % 64) & 1;)
            end++;
        if (end > c)
            ax_text_add(out, size, end > c + 1 ? "%s%d-%d" : "%s%d", *out ? "," : "", c, end - 1);
        else
            end = c + 1;
    }
    return out;
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

int64_t ax_cores_cache(void)
{
    static const hwloc_obj_type_t levels[] = {HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L1CACHE};
    hwloc_topology_t topology;
    hwloc_bitmap_t mine;
    int64_t bytes = 0;
    if (ax_topology_find(&topology, &mine))
        for (size_t i = 0; i < AX_COUNT(levels) && !bytes; i++)
            for (hwloc_obj_t c = NULL; (c = hwloc_get_next_obj_by_type(topology, levels[i], c));)
                bytes += hwloc_bitmap_intersects(c->cpuset, mine) ? (int64_t)c->attr->cache.size : 0;
    ax_topology_forget(topology, mine);
    return bytes;
}
