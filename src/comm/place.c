/* How the ranks of a communicator of a dry run lie on nodes, as the prices of collectives need it: for the
 * worst placed of the groups that do the same. */
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

/* Returns the most ranks that are on one node if the first rank is number `first`. */
static int most_in_node(const ax_placed *p, int first, int node)
{
    int most = 1;
    for (int i = 1, n = 1; i < p->size; i++) {
        n = (first + distance(p, i)) / node == (first + distance(p, i - 1)) / node ? n + 1 : 1;
        most = ax_max(most, n);
    }
    return most;
}

/* The groups of other ranks along the same axes begin where the number is 0 along each of these. If nodes
 * begin and end with axes, all groups lie alike. */
ax_comm_place ax_placed_find(const ax_placed *p, int node)
{
    axis axes[MOST_AXES];
    const int n = find_axes(p, axes);
    ax_comm_place place = {n ? (int)axes[0].distance : 1, p->size};
    bool alike = true;
    for (int i = 0; i < n; i++) {
        const int64_t ends[] = {axes[i].distance, axes[i].distance * axes[i].size};
        for (size_t k = 0; k < AX_COUNT(ends); k++)
            alike &= node % ends[k] == 0 || ends[k] % node == 0;
    }
    for (int first = 0; first < (alike ? 1 : p->world - distance(p, p->size - 1)); first++) {
        bool begins = true;
        for (int i = 0; i < n && begins; i++)
            begins = first / axes[i].distance % axes[i].size == 0;
        if (begins)
            place.in_node = ax_min(place.in_node, most_in_node(p, first, node));
    }
    return place;
}
