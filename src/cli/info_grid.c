/* axonn info --grid: prints which ranks form which groups, and on which hosts. Starts no ranks. */
#include "info_grid.h"

#include "axonn/grid.h"
#include "hosts.h"
#include "model.h"

#include <stdlib.h>
#include <string.h>

/* A grid whose ranks are assigned to hosts. */
typedef struct placed {
    ax_grid_size size;
    ax_grid_order order;
    int ranks, hosts;
    int *host;    /* [ranks]: host index of each rank */
    int *seen;    /* [hosts]: used by most_hosts */
    int *rank_at; /* [ranks]: the rank at each grid position; positions are numbered in the default order of
                     axes */
    cli_hosts named; /* the hosts of --hosts; empty without it: hosts are then called host0, host1, … */
} placed;

static void placed_fini(placed *p)
{
    cli_hosts_fini(&p->named);
    free(p->host);
    free(p->seen);
    free(p->rank_at);
}

static const char *host_name(const placed *p, int host, char out[64])
{
    if (p->named.n)
        snprintf(out, 64, "%.63s", p->named.name[host]);
    else
        snprintf(out, 64, "host%d", host);
    return out;
}

/* ---- reading the arguments ----------------------------------------------------------------------- */

static ax_status fill_hosts(placed *p, const char *list, int64_t per_host)
{
    int64_t room = 0;
    if (list) {
        AX_TRY(cli_hosts_read(list, p->ranks, &p->named));
        p->hosts = p->named.n;
    } else {
        per_host = per_host ? per_host : p->ranks;
        p->hosts = (int)((p->ranks + per_host - 1) / per_host);
    }
    AX_TRY(ax_calloc((size_t)p->hosts, sizeof *p->seen, &p->seen));
    AX_TRY(ax_calloc((size_t)p->ranks, sizeof *p->host, &p->host));
    for (int h = 0, r = 0; h < p->hosts; h++) {
        int64_t slots = p->named.n ? p->named.slots[h] : per_host;
        for (room += slots; r < p->ranks && r < room; r++)
            p->host[r] = h;
    }
    AX_CHECK(room >= p->ranks, AX_ERR_USAGE,
             "--hosts %s: the hosts have room for %lld ranks, the grid needs %d: name more hosts, or more "
             "ranks for each (HOST:N)",
             list, (long long)room, p->ranks);
    return AX_OK;
}

static ax_status place_ranks(const info_grid_args *a, placed *p)
{
    AX_TRY(cli_grid_parse(a->grid, &p->size));
    AX_CHECK(p->size.of[AX_DATA] % p->size.of[AX_SIZE_EXPERT] == 0, AX_ERR_USAGE,
             "--grid %s: expert=%d must divide data=%d", a->grid, p->size.of[AX_SIZE_EXPERT],
             p->size.of[AX_DATA]);
    if (ax_grid_order_parse(a->order, &p->order) != AX_OK)
        return ax_fail(AX_ERR_USAGE, "--order %s: %s", a->order, ax_error_message());
    const int64_t ranks = ax_grid_size_ranks(p->size);
    AX_CHECK(ranks <= 1 << 20, AX_ERR_USAGE, "--grid %s: more than 1048576 ranks are too many to print",
             a->grid);
    p->ranks = (int)ranks;
    AX_TRY(fill_hosts(p, a->hosts, a->ranks_per_node));
    AX_TRY(ax_calloc((size_t)p->ranks, sizeof *p->rank_at, &p->rank_at));
    for (int r = 0, coord[AX_AXES_STANDARD]; r < p->ranks; r++)
        p->rank_at[ax_grid_place(p->size, &p->order, r, coord)] = r;
    return AX_OK;
}

/* ---- groups -------------------------------------------------------------------------------------- */

/* Stands for the factor data.exp in a set of axes, without others. */
enum { EXPERTS = 1 << AX_SIZE_EXPERT };

/* The sets of grid axes whose groups of ranks are printed. `split`: what the ranks of such a group split
 * among themselves. */
static const struct {
    const char *name;
    ax_axisset axes;
    const char *split;
} sets[] = {
#define SET(id, name, split) {#name, 1 << AX_##id, split},
    AX_AXES(SET)
#undef SET
        {"x.y", 1 << AX_X | 1 << AX_Y, "vocabulary"},
    {"z.data", 1 << AX_Z | 1 << AX_DATA, "all rows of a batch"},
    {"data.exp", EXPERTS, "experts, and rows"},
};

/* Returns the number of ranks in a group along `axes`. Returns 1 if there are several axes and one has size
 * 1: the groups are then the same as those along the other axes. Groups of one rank are not printed. */
static int group_size(const placed *p, ax_axisset axes)
{
    int size = 1;
    bool single = false, several = axes & (axes - 1);
    for (int a = 0; a < AX_GRID_SIZES; a++)
        if (axes >> a & 1) {
            const int n = ax_grid_size_along(p->size, (ax_axis)a);
            size *= n;
            single |= n == 1;
        }
    return several && single ? 1 : size;
}

/* Lists the members of the group along `axes` in which `rank` is the first, with coordinate 0 along all these
 * axes. Returns the number of members, 0 if `rank` is not the first of its group. Groups along data.exp are
 * runs of coordinates along data. */
static int list_members(const placed *p, ax_axisset axes, int rank, int *out)
{
    const ax_axisset along = axes == EXPERTS ? 1 << AX_DATA : axes;
    int first[AX_AXES_STANDARD], coord[AX_AXES_STANDARD], count = 0, size = group_size(p, axes);
    ax_grid_size n = p->size;
    if (axes == EXPERTS)
        n.of[AX_DATA] = size;
    ax_grid_place(p->size, &p->order, rank, first);
    memcpy(coord, first, sizeof coord);
    for (int a = 0; a < AX_AXES_STANDARD; a++)
        if ((along >> a & 1) && first[a] % n.of[a])
            return 0;
    for (; count < size; count++) {
        int rest = count, at = 0;
        for (int a = 0; a < AX_AXES_STANDARD; a++)
            if (along >> a & 1) {
                coord[a] = first[a] + rest % n.of[a];
                rest /= n.of[a];
            }
        for (int a = AX_AXES_STANDARD - 1; a >= 0; a--)
            at = at * p->size.of[a] + coord[a];
        out[count] = p->rank_at[at];
    }
    return count;
}

/* Returns the largest number of hosts that a group along `axes` spans. p->seen[h] is the first rank of the
 * last group that has a member on host h. */
static int most_hosts(const placed *p, ax_axisset axes, int *scratch)
{
    int most = 0;
    for (int h = 0; h < p->hosts; h++)
        p->seen[h] = -1;
    for (int r = 0; r < p->ranks; r++) {
        int n = list_members(p, axes, r, scratch), hosts = 0;
        for (int i = 0; i < n; i++) {
            int *last = &p->seen[p->host[scratch[i]]];
            hosts += *last != r;
            *last = r;
        }
        most = (int)ax_max(most, hosts);
    }
    return most;
}

/* ---- printing ------------------------------------------------------------------------------------ */

enum { SHOWN = 32, ROWS_SHOWN = 64 };

static void print_groups(const placed *p, ax_axisset axes, int *scratch)
{
    int shown = 0, size = group_size(p, axes), groups = p->ranks / size;
    for (int r = 0; r < p->ranks && shown * size < SHOWN; r++) {
        int n = list_members(p, axes, r, scratch);
        for (int i = 0; i < n; i++)
            printf("%s%d", i ? " " : shown ? "  {" : "{", scratch[i]);
        shown += n > 0;
        if (n)
            printf("}");
    }
    printf("%s\n", shown < groups ? "  ..." : "");
}

static void print_ranks(const placed *p)
{
    char name[64];
    printf("\n%6s  %-16s", "rank", "host");
    for (int a = 0; a < AX_AXES_STANDARD; a++)
        printf("%5s", ax_axis_name((ax_axis)a));
    for (int r = 0, c[AX_AXES_STANDARD]; r < p->ranks && r < ROWS_SHOWN; r++) {
        ax_grid_place(p->size, &p->order, r, c);
        printf("\n%6d  %-16s", r, host_name(p, p->host[r], name));
        for (int a = 0; a < AX_AXES_STANDARD; a++)
            printf("%5d", c[a]);
    }
    printf("\n");
    if (p->ranks > ROWS_SHOWN)
        printf("   ...  (%d ranks; --json has all)\n", p->ranks);
}

static void print_all(const placed *p, int *scratch)
{
    char order[32];
    printf("%d rank%s on %d host%s, numbered %s, the innermost axis first\n", p->ranks,
           p->ranks == 1 ? "" : "s", p->hosts, p->hosts == 1 ? "" : "s",
           ax_grid_order_print(&p->order, order));
    print_ranks(p);
    printf("\n%-9s%5s%8s  %-31s%-14s%s\n", "along", "ranks", "groups", "they split", "on", "members");
    for (size_t i = 0; i < AX_COUNT(sets); i++) {
        int size = group_size(p, sets[i].axes);
        if (size == 1)
            continue;
        char on[32] = "one host";
        int hosts = most_hosts(p, sets[i].axes, scratch);
        if (hosts > 1)
            snprintf(on, sizeof on, "%d hosts", hosts);
        printf("%-9s%5d%8d  %-31s%-14s", sets[i].name, size, p->ranks / size, sets[i].split, on);
        print_groups(p, sets[i].axes, scratch);
    }
}

static json_t *json_groups(const placed *p, int *scratch)
{
    json_t *all = json_array();
    for (size_t i = 0; i < AX_COUNT(sets); i++) {
        json_t *groups = json_array();
        int size = group_size(p, sets[i].axes);
        for (int r = 0; size > 1 && r < p->ranks; r++) {
            int n = list_members(p, sets[i].axes, r, scratch);
            json_t *group = json_array();
            for (int k = 0; k < n; k++)
                json_array_append_new(group, json_integer(scratch[k]));
            if (n)
                json_array_append(groups, group);
            json_decref(group);
        }
        if (size > 1)
            json_array_append_new(all,
                                  json_pack("{s:s, s:i, s:i, s:O}", "axes", sets[i].name, "size", size,
                                            "hosts", most_hosts(p, sets[i].axes, scratch), "groups", groups));
        json_decref(groups);
    }
    return all;
}

/* Adds a member for each axis: n[axis]. */
static void add_axes(json_t *json, const int n[AX_AXES_STANDARD])
{
    for (int a = 0; a < AX_AXES_STANDARD; a++)
        json_object_set_new(json, ax_axis_name((ax_axis)a), json_integer(n[a]));
}

static ax_status print_json(const placed *p, int *scratch)
{
    char order[32], name[64];
    json_t *ranks = json_array(), *grid = json_object();
    for (int r = 0, c[AX_AXES_STANDARD]; r < p->ranks; r++) {
        json_t *rank = json_pack("{s:i, s:s}", "rank", r, "host", host_name(p, p->host[r], name));
        ax_grid_place(p->size, &p->order, r, c);
        add_axes(rank, c);
        json_array_append_new(ranks, rank);
    }
    add_axes(grid, p->size.of);
    if (p->size.of[AX_SIZE_EXPERT] > 1)
        json_object_set_new(grid, ax_axis_name(AX_SIZE_EXPERT), json_integer(p->size.of[AX_SIZE_EXPERT]));
    return cli_print_json(json_pack("{s:o, s:s, s:i, s:o, s:o}", "grid", grid, "order",
                                    ax_grid_order_print(&p->order, order), "hosts", p->hosts, "ranks", ranks,
                                    "groups", json_groups(p, scratch)));
}

ax_status info_grid(const info_grid_args *args, bool json)
{
    placed p = {.hosts = 0};
    int *scratch = NULL;
    ax_status status = place_ranks(args, &p);
    if (status == AX_OK)
        status = ax_calloc((size_t)p.ranks, sizeof *scratch, &scratch);
    if (status == AX_OK && json)
        status = print_json(&p, scratch);
    else if (status == AX_OK)
        print_all(&p, scratch);
    free(scratch);
    placed_fini(&p);
    return status;
}
