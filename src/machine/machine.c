/* Opens and closes descriptions of machines: the table of their keys, and the rules between keys. */
#include "private.h"

#include <stdlib.h>
#include <string.h>

#define PATHS "nccl|node|flat|staged" /* in the order of ax_machine_path */
#define RATE "[1e-30, 1e30]"          /* as of rows */
#define TIME "[0, 1e9]"
#define AT(member) offsetof(ax_machine, member)
#define GEMM_RATE(name, dtype)                                                                               \
    {                                                                                                        \
        "device.gemm." name, AX_OPT_FLOAT, AT(device.gemm.rate[dtype]),                                      \
            .range = RATE, .meta = "FLOP/S",                                                                 \
            .help = "floating-point operations per second of large GEMMs of " name " operands"               \
    }
#define LINK(name, id, at_once_preset, what)                                                                 \
    {"links." name ".rate", AX_OPT_FLOAT,                                                                    \
     AT(link[id].rate),     .range = RATE,                                                                   \
     .meta = "B/S",         .help = "bytes per second of one transfer " what ", in one direction"},          \
        {"links." name ".latency",                                                                           \
         AX_OPT_FLOAT,                                                                                       \
         AT(link[id].latency),                                                                               \
         .range = TIME,                                                                                      \
         .meta = "S",                                                                                        \
         .help = "seconds of the smallest message " what},                                                   \
        {"links." name ".occupies", AX_OPT_FLOAT, AT(link[id].occupies), .range = "[0, 1]",                  \
         .help = "part of a collective's time for which kernels wait, because their cores move its data"},   \
        {"links." name ".busy", AX_OPT_FLOAT,                                                                \
         AT(link[id].busy),     .range = TIME,                                                               \
         .meta = "S",           .help = "seconds that a message takes longer while ranks compute"},          \
    {                                                                                                        \
        "links." name ".at_once", AX_OPT_INT, AT(link[id].at_once), at_once_preset, "[1, 65536]",            \
            .choices = "all", .meta = "N",                                                                   \
            .help = "transfers of a node that have this rate at the same time; all: one of each rank"        \
    }
#define PATH(name, coll)                                                                                     \
    {                                                                                                        \
        "paths." name, AX_OPT_ENUM, AT(path[coll]), "nccl", .choices = PATHS, .help = "how " name " travels" \
    }

static const ax_option options[] = {
    {"name", AX_OPT_STRING, AT(name), .help = "what the machine is called"},
    {"nodes", AX_OPT_INT, AT(nodes), "1", "[1, 1048576]", .help = "number of nodes"},
    {"ranks_per_node", AX_OPT_INT, AT(ranks_per_node), NULL, "[1, 65536]", .required = true,
     .help = "ranks of a node, each with a device"},
    {"cores", AX_OPT_INT, AT(cores), "0", "[0, 65536]",
     .help = "physical cores of a node, which its ranks share; 0: unknown"},
    {"device.name", AX_OPT_STRING, AT(device.name), .help = "what a rank's device is called"},
    {"device.memory", AX_OPT_INT, AT(device.memory), NULL, "[1, 1152921504606846976]", .required = true,
     .meta = "BYTES", .help = "memory of a device"},
    {"device.scratch", AX_OPT_INT, AT(device.scratch), "0", "[0, 1152921504606846976]", .meta = "BYTES",
     .help = "memory of a device that kernels need besides their operands"},
    {"device.host_access", AX_OPT_BOOL, AT(device.host_access), "false",
     .help = "the host can read and write device memory"},
    {"device.launch", AX_OPT_FLOAT, AT(device.launch), .range = TIME, .meta = "S",
     .help = "seconds that a launch takes besides its work"},
    {"device.stream", AX_OPT_FLOAT, AT(device.stream), .range = RATE, .meta = "B/S",
     .help = "bytes per second that kernels read and write"},
    GEMM_RATE("f64", AX_F64),
    GEMM_RATE("f32", AX_F32),
    GEMM_RATE("bf16", AX_BF16),
    GEMM_RATE("f16", AX_F16),
    {"device.gemm.points", AX_OPT_STRINGS, AT(device.gemm.points), .meta = "ROW...",
     .help = "measured GEMMs: layout, MxNxK, dtype, what is added to the product, FLOP/s"},
    {"device.kernels", AX_OPT_STRINGS, AT(device.kernels), .meta = "ROW...",
     .help = "rates of kernels: name, rate, B/s or FLOP/s"},
    {"host.memory", AX_OPT_INT, AT(host.memory), "0", "[0, 1152921504606846976]", .meta = "BYTES",
     .help = "host memory of a node; 0: unknown"},
    {"host.copy", AX_OPT_FLOAT, AT(host.copy), .range = RATE, .meta = "B/S",
     .help = "bytes per second between a device and the host, in one direction"},
    LINK("node", AX_MACHINE_NODE, "all", "within a node"),
    LINK("network", AX_MACHINE_NETWORK, "1", "between nodes"),
    PATH("all_reduce", AX_ALL_REDUCE),
    PATH("all_gather", AX_ALL_GATHER),
    PATH("reduce_scatter", AX_REDUCE_SCATTER),
    PATH("all_to_all", AX_ALL_TO_ALL),
    PATH("broadcast", AX_BROADCAST),
    {"bandwidths", AX_OPT_STRINGS, AT(bandwidths), .meta = "ROW...",
     .help = "bytes per second that a rank sends in a ring: distance of neighbours, ranks, rate"},
    {"collectives", AX_OPT_STRINGS, AT(collectives), .meta = "ROW...",
     .help = "measured times: name, distance of neighbours, ranks, bytes, seconds"},
    {"measured.gemm", AX_OPT_STRING, AT(measured.gemm), .help = "how kernels were measured, for people"},
    {"measured.comm", AX_OPT_STRING, AT(measured.comm), .help = "how communication was measured, for people"},
};

const ax_option *ax_machine_options(size_t *count)
{
    *count = AX_COUNT(options);
    return options;
}

const char *ax_machine_shipped(int index)
{
    return index >= 0 && (size_t)index < machine_text_count ? machine_texts[index].name : NULL;
}

/* ---- rules ----------------------------------------------------------------------------------------- */

static void check_rules(ax_machine *m, ax_option_set *set)
{
    enum { MOST_RANKS = 1 << 20 };
    const int64_t at_once = m->link[AX_MACHINE_NODE].at_once;
    if (!ax_option_given(set, "ranks_per_node"))
        return;
    if (ax_option_ok(set, "nodes") && ax_machine_ranks(m) > MOST_RANKS)
        ax_option_error(set, "nodes",
                        "%lld nodes of %lld ranks are more than the %d ranks that can be planned",
                        (long long)m->nodes, (long long)m->ranks_per_node, MOST_RANKS);
    if (ax_option_ok(set, "links.node.at_once") && at_once > m->ranks_per_node)
        ax_option_error(set, "links.node.at_once", "must be at most ranks_per_node, %lld, not %lld",
                        (long long)m->ranks_per_node, (long long)at_once);
    if (ax_option_given(set, "device.memory") && ax_option_ok(set, "device.scratch") &&
        m->device.scratch >= m->device.memory)
        ax_option_error(set, "device.scratch", "must be less than device.memory, %lld, not %lld",
                        (long long)m->device.memory, (long long)m->device.scratch);
}

/* ---- opening --------------------------------------------------------------------------------------- */

ax_status ax_machine_create(ax_machine **out)
{
    ax_option_set *set;
    AX_TRY(ax_calloc(1, sizeof **out, out));
    ax_status status = ax_option_set_create(options, AX_COUNT(options), *out, &set);
    if (status == AX_OK)
        ax_option_set_destroy(&set);
    else
        ax_machine_close(out);
    return status;
}

/* Reads `text`, or the file if text is NULL. */
static ax_status read_all(ax_machine *m, ax_option_set *set, const char *name, const char *text, size_t size)
{
    AX_TRY(text ? ax_option_read_text(set, name, "", text, size) : ax_option_read_file(set, name));
    check_rules(m, set);
    AX_TRY(machine_read_rows(m, set));
    AX_TRY(ax_option_finish(set));
    machine_fit_points(m->tables);
    return m->name ? AX_OK : ax_strdup(name, &m->name);
}

static ax_status open_from(const char *name, const char *text, size_t size, ax_machine **out)
{
    ax_option_set *set = NULL;
    AX_TRY(ax_calloc(1, sizeof **out, out));
    ax_status status = ax_option_set_create(options, AX_COUNT(options), *out, &set);
    if (status == AX_OK)
        status = read_all(*out, set, name, text, size);
    ax_option_set_destroy(&set);
    if (status != AX_OK)
        ax_machine_close(out);
    return status;
}

ax_status ax_machine_parse(const char *name, const char *text, size_t size, ax_machine **out)
{
    return open_from(name, text, size, out);
}

/* Fails because there is no such file and no such name. Suggests the nearest name. */
static ax_status fail_unknown(const char *path)
{
    const char *slash = strrchr(path, '/'), *word = slash ? slash + 1 : path, *nearest = NULL;
    int least = 1 + (int)strlen(word) / 2;
    char names[256] = "";
    for (size_t i = 0; i < machine_text_count; i++) {
        const char *name = machine_texts[i].name;
        int distance = ax_edit_distance(name, word);
        nearest = distance < least ? name : nearest;
        least = (int)ax_min(distance, least);
        ax_text_add(names, sizeof names, "%s%s", i ? ", " : "", name);
    }
    return ax_fail(
        AX_ERR_USAGE,
        "there is no description of a machine \"%s\": neither a file of this name nor one of those that "
        "come with axonn (%s)%s%s",
        path, names, nearest ? "; the nearest is " : "", nearest ? nearest : "");
}

ax_status ax_machine_open(const char *name, ax_machine **out)
{
    *out = NULL;
    for (size_t i = 0; i < machine_text_count; i++)
        if (!strcmp(machine_texts[i].name, name))
            return open_from(name, (const char *)machine_texts[i].text, machine_texts[i].size, out);
    if (!ax_path_exists(name))
        return fail_unknown(name);
    return open_from(name, NULL, 0, out);
}

void ax_machine_close(ax_machine **machine)
{
    if (!*machine)
        return;
    machine_tables_free(&(*machine)->tables);
    ax_option_fini(options, AX_COUNT(options), *machine);
    free(*machine);
    *machine = NULL;
}

/* ---- what it has ----------------------------------------------------------------------------------- */

int64_t ax_machine_ranks(const ax_machine *m) { return m->nodes * m->ranks_per_node; }

ax_status ax_machine_check_ranks(const ax_machine *m, int64_t ranks)
{
    AX_CHECK(ranks <= ax_machine_ranks(m), AX_ERR_USAGE,
             "machine %s has %lld ranks (nodes: %lld, ranks of a node: %lld), fewer than the %lld of the "
             "grid: use a smaller grid "
             "or another machine",
             m->name, (long long)ax_machine_ranks(m), (long long)m->nodes, (long long)m->ranks_per_node,
             (long long)ranks);
    return AX_OK;
}

ax_status ax_machine_check_times(const ax_machine *m, ax_dtype dtype, int64_t ranks)
{
    const bool gemm = ax_machine_gemm_rate(m, dtype) > 0;
    bool copies = !m->device.host_access;
    for (int coll = 0; coll < AX_BARRIER && ranks > 1; coll++)
        copies |= m->path[coll] == AX_MACHINE_STAGED;
    const struct {
        const char *key;
        bool needed, given;
    } rates[] = {{"device.stream", true, m->device.stream > 0},
                 {"host.copy", copies, m->host.copy > 0},
                 {"links.node.rate", ranks > 1 && m->ranks_per_node > 1, m->link[AX_MACHINE_NODE].rate > 0},
                 {"links.network.rate", ranks > m->ranks_per_node, m->link[AX_MACHINE_NETWORK].rate > 0}};
    char missing[256] = "";
    if (!gemm)
        ax_text_add(missing, sizeof missing, "device.gemm.%s", ax_dtype_name(dtype));
    for (size_t i = 0; i < AX_COUNT(rates); i++)
        if (rates[i].needed && !rates[i].given)
            ax_text_add(missing, sizeof missing, "%s%s", *missing ? ", " : "", rates[i].key);
    AX_CHECK(
        !*missing, AX_ERR_USAGE,
        "machine %s lacks rates that times need: %s; measure them (axonn bench gemm|comm --save FILE) or add "
        "them to the description",
        m->name, missing);
    return AX_OK;
}
