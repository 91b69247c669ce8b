/* axonn info: prints version, build, libraries, and the hardware and devices of this machine. */
#include "info_grid.h"

#include "axonn/comm.h"
#include "axonn/config.h"
#include "axonn/data.h"
#include "axonn/grid.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <hwloc.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utf8proc.h>
#include <xxhash.h>
#include <yaml.h>

#if !defined(AXONN_BUILD_TYPE) || !defined(AXONN_BUILD_FLAGS) || !defined(AXONN_COMPILER) ||                 \
    !defined(AXONN_SANITIZE)
#error "the build defines AXONN_BUILD_TYPE, AXONN_BUILD_FLAGS, AXONN_COMPILER and AXONN_SANITIZE"
#endif

typedef struct args {
    bool options, json;
    info_grid_args grid;
} args;

static const ax_option options[] = {
    {"options", AX_OPT_BOOL, offsetof(args, options), "false",
     .help = "also list the configuration keys: those of a training run, and the runtime settings, which "
             "every verb takes"},
    {"grid", AX_OPT_STRING, offsetof(args, grid.grid), .meta = "x=N,y=N,...",
     .help =
         "print a grid of ranks of these sizes instead: its communication groups, and their ranks and hosts"},
    {"order", AX_OPT_STRING, offsetof(args, grid.order), AX_GRID_ORDER,
     .help = "with --grid: axes in the order in which ranks are numbered, the fastest-varying first (like "
             "the key grid.order)"},
    {"ranks-per-node", AX_OPT_INT, offsetof(args, grid.ranks_per_node), "0", "[0, 65536]", .meta = "K",
     .help = "with --grid: number of ranks on each host; 0: all ranks on one host"},
    {"hosts", AX_OPT_STRING, offsetof(args, grid.hosts), .meta = "LIST",
     .help = "with --grid: names of the hosts, as host,host,... or host:ranks,..."},
    {"json", AX_OPT_BOOL, offsetof(args, json), "false", .help = "print the result as one JSON object"},
};

/* Backends that similar programs have and this version does not have, with the reason. */
static const struct {
    const char *name, *why;
} missing[] = {
    {"onednn", "this version uses its own kernels"},
};

/* ---- collecting ---------------------------------------------------------------------------------- */

/* Returns those words of `wanted` that are in the line "flags" (x86) or "Features" (ARM) of /proc/cpuinfo. */
static json_t *instruction_sets(void)
{
    static const char *const wanted[] = {"sse4_2",      "avx",         "avx2",     "fma",      "f16c",
                                         "avx512f",     "avx512bw",    "avx512vl", "avx512dq", "avx512_vnni",
                                         "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "asimd",
                                         "asimdhp",     "bf16",        "sve",      "sve2"};
    json_t *found = json_array();
    FILE *file = fopen("/proc/cpuinfo", "r");
    char *line = NULL;
    size_t size = 0;
    bool done = !file;
    while (!done && getline(&line, &size, file) > 0) {
        done = !strncmp(line, "flags", 5) || !strncmp(line, "Features", 8);
        char *save, *word = done ? strtok_r(line, " \t\n", &save) : NULL;
        for (; word; word = strtok_r(NULL, " \t\n", &save))
            for (size_t i = 0; i < AX_COUNT(wanted); i++)
                if (!strcmp(word, wanted[i]))
                    json_array_append_new(found, json_string(word));
    }
    free(line);
    if (file)
        fclose(file);
    return found;
}

static json_int_t cache_bytes(hwloc_topology_t topology, hwloc_obj_type_t type)
{
    hwloc_obj_t cache = hwloc_get_obj_by_type(topology, type, 0);
    return cache ? (json_int_t)cache->attr->cache.size : 0;
}

static json_t *machine(void)
{
    hwloc_topology_t topology;
    json_t *isa = instruction_sets();
    if (hwloc_topology_init(&topology) || hwloc_topology_load(topology))
        return json_pack("{s:o}", "isa", isa);
    hwloc_obj_t package = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, 0);
    const char *model = package ? hwloc_obj_get_info_by_name(package, "CPUModel") : NULL;
    json_t *out = json_pack(
        "{s:s, s:o, s:i, s:i, s:i, s:i, s:{s:I, s:I, s:I}, s:I}", "model", model ? model : "unknown", "isa",
        isa, "packages", hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PACKAGE), "numa_nodes",
        hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE), "cores",
        hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE), "hardware_threads",
        hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU), "cache_bytes", "l1d",
        cache_bytes(topology, HWLOC_OBJ_L1CACHE), "l2", cache_bytes(topology, HWLOC_OBJ_L2CACHE), "l3",
        cache_bytes(topology, HWLOC_OBJ_L3CACHE), "memory_bytes",
        (json_int_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE));
    hwloc_topology_destroy(topology);
    return out;
}

static void add_unpacker(json_t *list, const char *name, const char *help, const char *library)
{
    char absent[64];
    snprintf(absent, sizeof absent, "built without %s", library ? library : "");
    json_array_append_new(list, json_pack("{s:s, s:s, s:b, s:s?}", "name", name, "help", help, "available",
                                          !library, "absent", library ? absent : NULL));
}

static json_t *devices(void)
{
    json_t *list = json_array();
    for (int i = 0; i < ax_device_count(); i++) {
        const ax_device_ops *ops = ax_device_backend(i);
        const char *absent = ax_device_absent(ops->name);
        char detail[1024] = "";
        if (!absent && ax_device_describe(ops->name, detail, sizeof detail) != AX_OK)
            snprintf(detail, sizeof detail, "cannot be opened: %s", ax_error_message());
        json_array_append_new(list, json_pack("{s:s, s:s, s:b, s:s?, s:s?}", "name", ops->name, "help",
                                              ops->help, "available", !absent, "absent", absent, "detail",
                                              *detail ? detail : NULL));
    }
    const char *mpi = ax_comm_mpi_library();
    json_array_append_new(list, json_pack("{s:s, s:s, s:b, s:s?}", "name", "mpi", "help", mpi ? mpi : "",
                                          "available", mpi != NULL, "absent",
                                          mpi ? NULL : "no MPI library was found when this was built"));
    add_unpacker(list, "gzip", "text in .gz files", ax_data_absent_gzip());
    add_unpacker(list, "zstd", "text in .zst files", ax_data_absent_zstd());
    for (size_t i = 0; i < AX_COUNT(missing); i++)
        json_array_append_new(list, json_pack("{s:s, s:s, s:b, s:s}", "name", missing[i].name, "help", "",
                                              "available", 0, "absent", missing[i].why));
    return list;
}

/* Returns the versions of the libraries in use. For hwloc this is the version of its API, the only one that
 * it reports; for jansson, the version of its header when axonn was built. */
static json_t *components(void)
{
    char pcre2[64] = "", xxhash[32], hwloc[32];
    unsigned h = hwloc_get_api_version(), x = XXH_versionNumber();
    pcre2_config(PCRE2_CONFIG_VERSION, pcre2);
    pcre2[strcspn(pcre2, " ")] = 0;
    snprintf(xxhash, sizeof xxhash, "%u.%u.%u", x / 10000, x / 100 % 100, x % 100);
    snprintf(hwloc, sizeof hwloc, "API %u.%u.%u", h >> 16, h >> 8 & 255, h & 255);
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s}", "hwloc", hwloc, "jansson", JANSSON_VERSION, "libyaml",
                     yaml_get_version_string(), "pcre2", pcre2, "utf8proc", utf8proc_version(), "xxhash",
                     xxhash);
}

static json_t *keys(void)
{
    static const char *const types[] = {
        [AX_OPT_BOOL] = "bool",
        [AX_OPT_INT] = "integer",
        [AX_OPT_FLOAT] = "number",
        [AX_OPT_QUOTA] = "integer or percentage",
        [AX_OPT_STRING] = "text",
        [AX_OPT_PATH] = "path",
        [AX_OPT_ENUM] = "choice",
        [AX_OPT_FLOATS] = "list of numbers",
        [AX_OPT_INTS] = "list of integers",
        [AX_OPT_STRINGS] = "list of texts",
        [AX_OPT_PATHS] = "list of paths",
    };
    size_t count;
    const ax_option *table = ax_config_options(&count);
    json_t *list = json_array();
    char choices[AX_OPTION_LIST];
    for (size_t i = 0; i < count; i++)
        json_array_append_new(
            list, json_pack("{s:s, s:s, s:s?, s:s?, s:s?, s:b, s:s, s:s?}", "key", table[i].key, "type",
                            types[table[i].type], "default", table[i].preset, "choices",
                            ax_option_list(&table[i], "|", choices), "range", table[i].range, "required",
                            (int)table[i].required, "help", table[i].help, "variable", table[i].variable));
    return list;
}

/* Sets *out to the number of threads and the core binding that a run of one rank would get. */
static ax_status find_threads(ax_threads *out)
{
    ax_comm *self;
    AX_TRY(ax_comm_self_create(&self));
    ax_status status = ax_threads_share(self, 0, out);
    ax_comm_destroy(&self);
    return status;
}

static json_t *binding_json(const ax_binding *b)
{
    char cores[256];
    ax_binding_print(b, cores, sizeof cores);
    return json_pack("{s:s?, s:s?}", "cores", b->n ? cores : NULL, "why_not", b->why_not);
}

/* Returns the instruction sets for which the cpu backend has kernels and which this processor has, best
 * first; and the one in use, `isa`. */
static json_t *kernels(const char *isa)
{
    json_t *can = json_array();
    for (int i = 0; ax_isa_name(i); i++)
        json_array_append_new(can, json_string(ax_isa_name(i)));
    return json_pack("{s:s, s:o}", "isa", isa, "can_run", can);
}

static json_t *collect(const ax_threads *threads, const char *isa, bool with_keys)
{
    json_t *info = json_pack(
        "{s:s, s:s, s:{s:s, s:s, s:s, s:s}, s:o, s:o, s:o, s:i, s:o, s:I, s:o}", "version", ax_version(),
        "commit", ax_commit(), "build", "compiler", AXONN_COMPILER, "type", AXONN_BUILD_TYPE, "flags",
        AXONN_BUILD_FLAGS, "sanitizers", AXONN_SANITIZE, "components", components(), "machine", machine(),
        "kernels", kernels(isa), "threads", threads->count, "binding", binding_json(&threads->binding),
        "memory_available_bytes", (json_int_t)ax_memory_available(), "devices", devices());
    if (info && with_keys)
        json_object_set_new(info, "options", keys());
    return info;
}

/* ---- printing for people ------------------------------------------------------------------------- */

static const char *text(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

static long long number(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

static void print_kernels(const json_t *kernels)
{
    const json_t *word;
    size_t i;
    printf("\nkernels     for %s; this processor can run:", text(kernels, "isa"));
    json_array_foreach(json_object_get(kernels, "can_run"), i, word) printf(" %s", json_string_value(word));
    printf(" (runtime.isa chooses)\n");
}

static void print_machine(const json_t *info)
{
    char total[32], left[32], l1[32], l2[32], l3[32];
    const json_t *m = json_object_get(info, "machine"), *cache = json_object_get(m, "cache_bytes"), *word;
    const json_t *binding = json_object_get(info, "binding");
    const char *cores = text(binding, "cores"), *why_not = text(binding, "why_not");
    size_t i;
    printf("processor   %s\n", text(m, "model"));
    printf("            %lld package(s), %lld NUMA node(s), %lld cores, %lld hardware threads\n",
           number(m, "packages"), number(m, "numa_nodes"), number(m, "cores"), number(m, "hardware_threads"));
    printf("            caches: L1d %s, L2 %s, L3 %s\n", ax_format_bytes((double)number(cache, "l1d"), l1),
           ax_format_bytes((double)number(cache, "l2"), l2),
           ax_format_bytes((double)number(cache, "l3"), l3));
    printf("            instruction sets:");
    json_array_foreach(json_object_get(m, "isa"), i, word) printf(" %s", json_string_value(word));
    print_kernels(json_object_get(info, "kernels"));
    printf("threads     %lld compute threads by default (key `threads`), %s: %s\n", number(info, "threads"),
           cores ? "each bound to its own core" : "not bound to cores", cores ? cores : why_not);
    printf("memory      %s, of which %s are available\n",
           ax_format_bytes((double)number(m, "memory_bytes"), total),
           ax_format_bytes((double)number(info, "memory_available_bytes"), left));
}

static void print_info(const json_t *info)
{
    const json_t *build = json_object_get(info, "build"), *device, *version;
    const char *name, *sanitizers = text(build, "sanitizers");
    size_t i;
    printf("axonn       %s, commit %s\n", text(info, "version"), text(info, "commit"));
    printf("build       %s, %s%s%s\n            %s\n", text(build, "type"), text(build, "compiler"),
           *sanitizers ? ", sanitizers " : "", sanitizers, text(build, "flags"));
    printf("components ");
    json_object_foreach((json_t *)(uintptr_t)json_object_get(info, "components"), name, version)
        printf(" %s %s", name, json_string_value(version));
    printf("\n");
    print_machine(info);
    printf("devices and other backends\n");
    json_array_foreach(json_object_get(info, "devices"), i, device)
    {
        bool available = json_is_true(json_object_get(device, "available"));
        printf("  %-8s  %s%s\n", text(device, "name"),
               available ? "" : "absent: ", text(device, available ? "help" : "absent"));
        if (text(device, "detail"))
            printf("            %s\n", text(device, "detail"));
    }
}

static ax_status print_keys(void)
{
    size_t count;
    const ax_option *table = ax_config_options(&count);
    ax_buf out = {0};
    ax_status status =
        ax_buf_printf(&out, "\nkeys of a training configuration; every verb takes runtime.*\n");
    if (status == AX_OK)
        status = ax_option_help(table, count, false, 100, &out);
    if (status == AX_OK)
        status = cli_print(out.data, out.size);
    ax_buf_fini(&out);
    return status;
}

static ax_status run(const void *raw)
{
    const args *a = raw;
    if (a->grid.grid)
        return info_grid(&a->grid, a->json);
    ax_threads threads;
    const char *isa;
    AX_TRY(find_threads(&threads));
    AX_TRY(ax_isa_chosen(&isa));
    json_t *info = collect(&threads, isa, a->options);
    AX_CHECK(info, AX_ERR_MEMORY, "not enough memory to describe this program and machine");
    if (a->json)
        return cli_print_json(info);
    print_info(info);
    json_decref(info);
    return a->options ? print_keys() : AX_OK;
}

const cli_verb verb_info = {
    .name = "info",
    .summary = "show version, build, hardware, devices, configuration keys, or a grid of ranks",
    .examples = "axonn info --options\naxonn info --grid x=2,y=2,data=2 --ranks-per-node 4",
    .options = options,
    .option_count = AX_COUNT(options),
    .args_size = sizeof(args),
    .run = run,
};
