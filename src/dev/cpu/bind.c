/* Binds each thread of a device to a core of its own. A page of memory lies near the core that first writes
 * it (NUMA), so a bound thread stays near the memory that it was the first to write. If the thread that
 * opened the device also closes it, the thread gets its former binding back. */
#include "dev/cores.h"
#include "dev/cpu/cpu.h"

#include <stdlib.h>

struct ax_cpu_places {
    hwloc_topology_t topology;
    hwloc_bitmap_t allowed, former; /* allowed: hardware threads that the process may use; former: the binding
                                       that the thread that opened the device had before */
    int n;
    /* at[t]: those hardware threads of the core of the device's thread t that the process may use */
    hwloc_bitmap_t at[];
};

static bool find_cores(const ax_binding *binding, ax_cpu_places *p)
{
    hwloc_obj_t core = NULL;
    if (!ax_topology_find(&p->topology, &p->allowed))
        return false;
    for (int c = 0; (core = hwloc_get_next_obj_by_type(p->topology, HWLOC_OBJ_CORE, core)); c++) {
        if (c >= AX_CORES_MAX || !(binding->cores[c / 64] >> (c % 64) & 1) || p->n == binding->n)
            continue;
        p->at[p->n] = hwloc_bitmap_alloc();
        if (!p->at[p->n])
            return false;
        hwloc_bitmap_and(p->at[p->n], core->cpuset, p->allowed);
        p->n++;
        if (hwloc_bitmap_iszero(p->at[p->n - 1]))
            return false;
    }
    return p->n == binding->n;
}

bool ax_cpu_bind(const ax_cpu_places *places, int thread)
{
    return !hwloc_set_cpubind(places->topology, places->at[thread], HWLOC_CPUBIND_THREAD);
}

static void free_places(ax_cpu_places *p)
{
    for (int i = 0; i < p->n; i++)
        hwloc_bitmap_free(p->at[i]);
    hwloc_bitmap_free(p->former);
    ax_topology_forget(p->topology, p->allowed);
    free(p);
}

ax_cpu_places *ax_cpu_places_take(const ax_binding *binding)
{
    ax_cpu_places *p = calloc(1, sizeof *p + (size_t)binding->n * sizeof p->at[0]);
    if (!p)
        return NULL;
    p->former = hwloc_bitmap_alloc();
    if (p->former && find_cores(binding, p) &&
        !hwloc_get_cpubind(p->topology, p->former, HWLOC_CPUBIND_THREAD) && ax_cpu_bind(p, 0))
        return p;
    free_places(p);
    return NULL;
}

/* Restores the former binding of the calling thread, unless its binding is no longer that of the device's
 * first thread. It is no longer if another device has bound this thread since, or if another thread closes
 * the device. */
void ax_cpu_places_leave(ax_cpu_places **places)
{
    ax_cpu_places *p = *places;
    hwloc_bitmap_t now = p ? hwloc_bitmap_alloc() : NULL;
    if (now && !hwloc_get_cpubind(p->topology, now, HWLOC_CPUBIND_THREAD) &&
        hwloc_bitmap_isequal(now, p->at[0]))
        hwloc_set_cpubind(p->topology, p->former, HWLOC_CPUBIND_THREAD);
    hwloc_bitmap_free(now);
    if (p)
        free_places(p);
    *places = NULL;
}
