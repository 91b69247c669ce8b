/* Measures descriptions of machines: what `axonn bench gemm --save` and `axonn bench comm --save` have in
 * common. */
#include "bench/bench.h"

#include <errno.h>
#include <hwloc.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

size_t bench_processor(char *name, size_t size)
{
    size_t cache = 0;
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology) || hwloc_topology_load(topology)) {
        snprintf(name, size, "an unknown machine");
        return 0;
    }
    hwloc_obj_t package = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, 0);
    const char *model = package ? hwloc_obj_get_info_by_name(package, "CPUModel") : NULL;
    for (int level = 0; level < 3; level++) {
        static const hwloc_obj_type_t types[] = {HWLOC_OBJ_L1CACHE, HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L3CACHE};
        hwloc_obj_t c = hwloc_get_obj_by_type(topology, types[level], 0);
        cache = c ? (size_t)c->attr->cache.size : cache;
    }
    snprintf(name, size, "%s, %d cores, %zu MiB last-level cache", model ? model : "an unknown processor",
             hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE), cache >> 20);
    hwloc_topology_destroy(topology);
    return cache;
}

/* ---- opening and saving ---------------------------------------------------------------------------- */

ax_status bench_node_size(ax_comm *world, int *out)
{
    const char *value;
    ax_threads threads;
    ax_work *work;
    AX_TRY(ax_threads_share(world, 1, &threads));
    AX_TRY(ax_runtime_get(AX_RUNTIME_RANKS_PER_NODE, &value));
    const int emulated = (int)strtol(value, NULL, 10);
    int64_t most[] = {threads.local_size, -threads.local_size};
    AX_TRY(ax_all_reduce(world, NULL, most, 2, AX_I64, AX_MAX, &work));
    AX_TRY(ax_wait(&work));
    *out = emulated ? (int)ax_min(emulated, threads.local_size) : threads.local_size;
    AX_CHECK(most[0] == -most[1] && ax_comm_size(world) % *out == 0, AX_ERR_USAGE,
             "a description needs the same number of ranks on each node");
    return AX_OK;
}

/* Enters what any measurement knows: the ranks, and the host. */
static ax_status describe_host(int ranks, int node, ax_machine *m)
{
    char name[160];
    ax_cores cores;
    ax_cores_find(&cores);
    m->nodes = ranks / node;
    m->ranks_per_node = node;
    m->cores = cores.machine;
    m->host.memory = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    bench_processor(name, sizeof name);
    free(m->name);
    m->name = NULL;
    return ax_strdup(name, &m->name);
}

/* Fails if the file could not be written after the measurement. */
static ax_status check_place(const char *path)
{
    char dir[4096], *file;
    const char *slash = strrchr(path, '/');
    AX_TRY(ax_file_to_replace(path, &file));
    free(file);
    snprintf(dir, sizeof dir, "%.*s", slash > path ? (int)(slash - path) : 1, slash ? path : ".");
    AX_CHECK(!access(dir, W_OK), AX_ERR_DATA, "--save: no file can be written in %s: %s", dir,
             strerror(errno));
    return AX_OK;
}

/* Opens the file if there is one, whose other part stays; it must have been measured with as many ranks. */
static ax_status open_file(const char *path, int ranks, int node, ax_machine **out)
{
    for (int i = 0; ax_machine_shipped(i); i++)
        AX_CHECK(
            strcmp(ax_machine_shipped(i), path) != 0, AX_ERR_USAGE,
            "--save: %s is the name of a description that comes with axonn, which a file of this name would "
            "not replace; give another name, or ./%s",
            path, path);
    AX_TRY(check_place(path));
    if (!ax_path_exists(path))
        return ax_machine_create(out);
    AX_TRY(ax_machine_open(path, out));
    AX_CHECK((*out)->ranks_per_node == node && (*out)->nodes == ranks / node, AX_ERR_USAGE,
             "--save: %s is of %lld nodes with %lld ranks each, and this run has %d with %d: run as "
             "many ranks, or give another file",
             path, (long long)(*out)->nodes, (long long)(*out)->ranks_per_node, ranks / node, node);
    return AX_OK;
}

ax_status bench_machine_open(ax_comm *world, const char *path, ax_machine **out)
{
    int node;
    *out = NULL;
    AX_TRY(bench_node_size(world, &node));
    ax_status status = AX_OK;
    if (ax_comm_rank(world) == 0)
        status = open_file(path, ax_comm_size(world), node, out);
    else
        status = ax_machine_create(out);
    if (status == AX_OK)
        status = describe_host(ax_comm_size(world), node, *out);
    status = ax_comm_agree(world, status);
    if (status != AX_OK)
        ax_machine_close(out);
    return status;
}

/* What a description should have, why it may not have it, and what has measured it. */
static ax_status list_missing(const ax_machine *m, ax_strings *out)
{
    const struct {
        bool given;
        const char *text;
    } keys[] = {
        {m->measured.gemm, "device: axonn bench gemm CONFIG --save has not measured the device"},
        {m->measured.comm || m->nodes * m->ranks_per_node == 1,
         "collectives, links: axonn bench comm --save has not measured communication"},
        {m->host.copy > 0, "host.copy: the host uses the device's memory, or the device was not measured"},
        {m->link[AX_MACHINE_NODE].rate > 0,
         "links.node: no two ranks were on one node, or none were measured"},
        {m->link[AX_MACHINE_NETWORK].rate > 0,
         "links.network: all ranks were on one node, or none were measured"},
        {m->link[AX_MACHINE_NODE].busy > 0 || m->link[AX_MACHINE_NETWORK].busy > 0,
         "links.node.busy, links.network.busy: were not measured, or are 0"},
        {false,
         "links.node.at_once, links.network.at_once: are not measured; collectives have their own times"}};
    for (size_t i = 0; i < AX_COUNT(keys); i++)
        if (!keys[i].given)
            AX_TRY(ax_strings_add(out, "%s", keys[i].text));
    return AX_OK;
}

ax_status bench_machine_save(ax_comm *world, ax_machine *m, char **how, const char *text, const char *path)
{
    ax_strings missing = {0};
    ax_status status = AX_OK;
    if (ax_comm_rank(world) == 0) {
        free(*how);
        *how = NULL;
        status = ax_strdup(text, how);
        if (status == AX_OK)
            status = list_missing(m, &missing);
        if (status == AX_OK)
            status = ax_machine_save(m, &missing, path);
        ax_strings_fini(&missing);
    }
    return ax_comm_agree(world, status);
}

/* ---- the device ------------------------------------------------------------------------------------ */

enum { LAUNCHES = 200, COPY_RUNS = 7, COPY_BYTES = 32 << 20 };

/* Seconds of a launch with one element. */
static ax_status time_launches(ax_ctx *ctx, double *out)
{
    double seconds[LAUNCHES], *x;
    AX_TRY(ax_ctx_alloc(ctx, AX_MEMORY_BATCH, sizeof *x, (void **)&x));
    const ax_fill_args fill = {.n = 1, .value = 0, .y = x, .dtype = AX_F64};
    ax_status status = AX_OK;
    for (int i = 0; i < LAUNCHES && status == AX_OK; i++) {
        double begin = ax_now();
        status = ax_run_fill(ctx->stream, &fill);
        if (status == AX_OK)
            status = ax_stream_wait(ctx->stream);
        seconds[i] = ax_now() - begin;
    }
    ax_ctx_free(ctx, AX_MEMORY_BATCH, x, sizeof *x);
    *out = ax_spread_of(seconds, LAUNCHES).median;
    return status;
}

/* Bytes per second from the host to the device. */
static ax_status time_copies(ax_ctx *ctx, double *out)
{
    double seconds[COPY_RUNS];
    void *host, *device;
    AX_TRY(ax_calloc(1, COPY_BYTES, &host));
    ax_status status = ax_ctx_alloc(ctx, AX_MEMORY_BATCH, COPY_BYTES, &device);
    if (status == AX_OK) {
        for (int i = 0; i < COPY_RUNS && status == AX_OK; i++) {
            double begin = ax_now();
            status = ax_copy_in(ctx->stream, device, host, COPY_BYTES);
            if (status == AX_OK)
                status = ax_stream_wait(ctx->stream);
            seconds[i] = ax_now() - begin;
        }
        ax_ctx_free(ctx, AX_MEMORY_BATCH, device, COPY_BYTES);
        *out = COPY_BYTES / ax_spread_of(seconds, COPY_RUNS).median;
    }
    free(host);
    return status;
}

ax_status bench_measure_device(ax_ctx *ctx, int local_size, ax_machine *m)
{
    const double patience = 0.3; /* seconds */
    int place;
    size_t scratch;
    char name[160];
    const char *device = ctx->dev->ops.name;
    AX_TRY(ax_device_workspace(device, ctx->dev->threads, &scratch));
    m->device.scratch = (int64_t)scratch;
    m->device.host_access = ax_device_host_access(ctx->dev);
    m->device.memory = ax_device_available(device, ctx->local_rank, &place);
    if (!place)
        m->device.memory = m->host.memory / local_size;
    AX_TRY(time_launches(ctx, &m->device.launch));
    AX_TRY(ax_device_stream(ctx->dev, patience, &m->device.stream));
    if (!m->device.host_access)
        AX_TRY(time_copies(ctx, &m->host.copy));
    for (int coll = 0; coll < AX_BARRIER && m->device.host_access && !m->measured.comm; coll++)
        m->path[coll] = AX_MACHINE_HOST;
    AX_TRY(ax_device_describe(device, name, sizeof name));
    if (!*name)
        snprintf(name, sizeof name, "%s, %d thread%s", device, ctx->dev->threads,
                 ctx->dev->threads == 1 ? "" : "s");
    free(m->device.name);
    m->device.name = NULL;
    return ax_strdup(name, &m->device.name);
}
