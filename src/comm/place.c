/* How the ranks of a communicator of a dry run lie on nodes, as the prices of collectives need it: for the
 * worst placed of the groups that do the same; and which ranks lie alike. */
#include "comm/place.h"

int ax_placed_number(const ax_placed *p, int rank) { return p->number ? p->number[rank] : rank; }

/* Of a communicator whose ranks differ along axes: how far the ranks along an axis are apart, and their
 * number. Axes that follow one another count as one. */
enum { MOST_AXES = 8 };
typedef struct axis {
    int64_t distance, size;
} axis;

/* Returns how far the i-th rank in rising order is from the first. */
static int distance(const ax_placed *p, int i) { return p->rising ? p->rising[i] - p->rising[0] : i; }

/* Finds the axes, at most MOST_AXES. Returns their number. */
static int find_axes(const ax_placed *p, axis out[MOST_AXES])
{
    int n = 0;
    for (int size = 1; size < p->size && n < MOST_AXES; n++) {
        axis *a = &out[n];
        *a = (axis){distance(p, size), 1};
        while (size * a->size < p->size && distance(p, (int)(size * a->size)) == a->size * a->distance)
            a->size++;
        size *= (int)a->size;
    }
    return n;
}

/* Returns how many ranks, from the i-th on, are on the node of the i-th if the first rank is number `first`.
 */
static int on_node(const ax_placed *p, int first, int i, int node)
{
    int end = i + 1;
    while (end < p->size && (first + distance(p, end)) / node == (first + distance(p, i)) / node)
        end++;
    return end - i;
}

static int most_on_node(const ax_placed *p, int first, int node)
{
    int most = 1;
    for (int i = 0, n; i < p->size; i += n) {
        n = on_node(p, first, i, node);
        most = ax_max(most, n);
    }
    return most;
}

/* The groups of other ranks along the same axes. They begin where the number is 0 along each of these. */
typedef struct groups {
    axis axes[MOST_AXES];
    int n;
    int end;    /* above all numbers where a group begins */
    bool alike; /* nodes begin and end with axes, so all groups lie alike, and all their ranks */
} groups;

static groups find_groups(const ax_placed *p, int node)
{
    groups g = {.end = p->world - distance(p, p->size - 1), .alike = true};
    g.n = find_axes(p, g.axes);
    for (int i = 0; i < g.n; i++) {
        const int64_t ends[] = {g.axes[i].distance, g.axes[i].distance * g.axes[i].size};
        for (size_t k = 0; k < AX_COUNT(ends); k++)
            g.alike &= node % ends[k] == 0 || ends[k] % node == 0;
    }
    return g;
}

/* Returns true if a group begins with this number. */
static bool begins(const groups *g, int number)
{
    bool yes = true;
    for (int i = 0; i < g->n && yes; i++)
        yes = number / g->axes[i].distance % g->axes[i].size == 0;
    return yes;
}

ax_comm_place ax_placed_find(const ax_placed *p, int node)
{
    const groups g = find_groups(p, node);
    ax_comm_place place = {g.n ? (int)g.axes[0].distance : 1, p->size};
    for (int first = 0; first < (g.alike ? 1 : g.end); first++)
        if (begins(&g, first))
            place.in_node = ax_min(place.in_node, most_on_node(p, first, node));
    return place;
}

bool ax_placed_mark(const ax_placed *p, int node, uint64_t *key)
{
    const groups g = find_groups(p, node);
    for (int first = 0; first < g.end && !g.alike; first++) {
        uint64_t nodes = 0;
        for (int i = 0, n; i < p->size && begins(&g, first); i += n)
            nodes = ax_rng_key(nodes, "node", (uint64_t)(n = on_node(p, first, i, node)));
        for (int i = 0, n; i < p->size && nodes; i += n) {
            n = on_node(p, first, i, node);
            for (int k = i; k < i + n; k++) {
                uint64_t *of = &key[first + distance(p, k)];
                *of = ax_rng_key(*of ^ nodes, "rank", (uint64_t)n);
            }
        }
    }
    return !g.alike;
}
