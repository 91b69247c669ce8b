/* Ranks as a grid of named axes, and the communicators along them. */
#include "axonn/grid.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const axis_names[AX_AXES] = {"x", "y", "z", "pipe", "data", "x.kv", "x.rep"};

struct ax_grid {
    ax_comm *world;
    int axes, ranks; /* axes: AX_AXES once x has factors */
    int size[AX_AXES], stride[AX_AXES];
    ax_comm *comm[1 << AX_AXES]; /* by effective set of axes; the others are NULL */
    ax_device *dev;              /* that they are connected with, where that is possible; or NULL */
    bool said;                   /* that it is not */
};

/* ---- legal neighbours of a grid that does not fit ------------------------------------------------ */

enum { NEIGHBOURS = 3 };

typedef struct candidate {
    int size[AX_AXES_STANDARD];
    double distance;
} candidate;

typedef struct search {
    int wanted[AX_AXES_STANDARD];
    ax_grid_legal_fn *legal; /* or NULL */
    const void *arg;
    candidate now, best[NEIGHBOURS];
    int n;
} search;

static ax_grid_size size_of(const int *n)
{
    return (ax_grid_size){.x = n[AX_X], .y = n[AX_Y], .z = n[AX_Z], .pipe = n[AX_PIPE], .data = n[AX_DATA]};
}

/* How far two grids are apart: the factors by which axes differ; splitting what was not split costs more. */
static double distance(const int *wanted, const int *size)
{
    double sum = 0;
    for (int a = 0; a < AX_AXES_STANDARD; a++)
        sum += fabs(log((double)size[a] / wanted[a])) * (wanted[a] == 1 ? 2.0 : 1.0);
    return sum;
}

static void keep_best(search *s)
{
    if (s->legal && !s->legal(s->arg, size_of(s->now.size)))
        return;
    s->now.distance = distance(s->wanted, s->now.size);
    int at = s->n;
    while (at > 0 && s->now.distance < s->best[at - 1].distance)
        at--;
    for (int i = s->n < NEIGHBOURS ? s->n : NEIGHBOURS - 1; i > at; i--)
        s->best[i] = s->best[i - 1];
    if (at < NEIGHBOURS)
        s->best[at] = s->now;
    if (s->n < NEIGHBOURS)
        s->n++;
}

/* All ways to write `ranks` as a product over the axes from `axis` on. */
static void factorize(search *s, int axis, int ranks)
{
    if (axis == AX_AXES_STANDARD - 1) {
        s->now.size[axis] = ranks;
        keep_best(s);
        return;
    }
    for (int f = 1; f <= ranks; f++)
        if (ranks % f == 0) {
            s->now.size[axis] = f;
            factorize(s, axis + 1, ranks / f);
        }
}

static void print_sizes(const int *size, char *out, size_t room)
{
    size_t len = 0;
    for (int a = 0; a < AX_AXES_STANDARD && len < room; a++)
        len += (size_t)snprintf(out + len, room - len, "%s%s=%d", a ? " " : "", axis_names[a], size[a]);
}

char *ax_grid_nearest(ax_grid_size wanted, int ranks, ax_grid_legal_fn *legal, const void *arg, char out[320])
{
    search s = {
        .wanted = {wanted.x, wanted.y, wanted.z, wanted.pipe, wanted.data}, .legal = legal, .arg = arg};
    factorize(&s, 0, ranks);
    size_t len = (size_t)snprintf(out, 320, "%s", s.n ? "" : "none");
    for (int i = 0; i < s.n; i++) {
        char one[100];
        print_sizes(s.best[i].size, one, sizeof one);
        len += (size_t)snprintf(out + len, 320 - len, "%s%s", i ? "; " : "", one);
    }
    return out;
}

static ax_status refuse(const int *size, int ranks, int64_t product)
{
    char wanted[128], text[320];
    print_sizes(size, wanted, sizeof wanted);
    ax_grid_nearest(size_of(size), ranks, NULL, NULL, text);
    return ax_fail(AX_ERR_USAGE, "grid %s needs %lld ranks but there %s %d; the nearest grids that fit: %s",
                   wanted, (long long)product, ranks == 1 ? "is" : "are", ranks, text);
}

/* ---- grids --------------------------------------------------------------------------------------- */

/* A group is named by its lowest rank: the one with coordinate 0 along all the axes, which do not overlap. */
static ax_status make_comm(ax_grid *grid, ax_axisset axes)
{
    int rank = ax_grid_rank(grid), lowest = rank;
    if (!axes)
        return ax_comm_self_create(&grid->comm[axes]);
    for (int a = 0; a < grid->axes; a++)
        if (axes >> a & 1)
            lowest -= ax_grid_coord(grid, rank, (ax_axis)a) * grid->stride[a];
    return ax_comm_split(grid->world, lowest, rank, &grid->comm[axes]);
}

/* "x.data" */
static void name_axes(const ax_grid *grid, ax_axisset axes, char *out, size_t size)
{
    size_t len = 0;
    for (int a = 0; a < grid->axes && len < size; a++)
        if (axes >> a & 1)
            len += (size_t)snprintf(out + len, size - len, "%s%s", len ? "." : "", axis_names[a]);
}

static ax_status connect(ax_grid *grid, ax_axisset axes)
{
    char name[64] = "", why[AX_COMM_WHY];
    name_axes(grid, axes, name, sizeof name);
    AX_TRY(ax_comm_connect(grid->comm[axes], grid->dev, name, why));
    if (*why)
        ax_log(grid->said ? AX_LOG_DEBUG : AX_LOG_INFO,
               "collectives of device %s along %s go through host memory: %s", grid->dev->ops.name, name,
               why);
    grid->said |= *why != 0;
    return AX_OK;
}

ax_status ax_grid_connect(ax_grid *grid, ax_device *dev)
{
    grid->dev = dev;
    for (unsigned axes = 0; axes < AX_COUNT(grid->comm); axes++)
        if (grid->comm[axes])
            AX_TRY(connect(grid, (ax_axisset)axes));
    return AX_OK;
}

/* All that are missing, while all ranks do the same: later, ranks differ in which they use first. */
static ax_status make_comms(ax_grid *grid)
{
    for (unsigned axes = 0; axes < 1u << grid->axes; axes++)
        if (!grid->comm[axes] && ax_grid_effective(grid, (ax_axisset)axes) == axes) {
            AX_TRY(make_comm(grid, (ax_axisset)axes));
            if (grid->dev)
                AX_TRY(connect(grid, (ax_axisset)axes));
        }
    return AX_OK;
}

ax_status ax_grid_create(ax_comm *world, ax_grid_size size, ax_grid **out)
{
    *out = NULL;
    const int sizes[AX_AXES_STANDARD] = {size.x, size.y, size.z, size.pipe, size.data};
    int64_t product = 1;
    for (int a = 0; a < AX_AXES_STANDARD; a++) {
        AX_CHECK(sizes[a] >= 1, AX_ERR_USAGE, "grid axis %s has size %d; it must be at least 1",
                 axis_names[a], sizes[a]);
        product = ax_min(product * sizes[a], INT32_MAX);
    }
    int ranks = ax_comm_size(world);
    if (product != ranks)
        return refuse(sizes, ranks, product);
    ax_grid *grid;
    AX_TRY(ax_calloc(1, sizeof *grid, &grid));
    grid->world = world;
    grid->axes = AX_AXES_STANDARD;
    grid->ranks = ranks;
    for (int a = 0, stride = 1; a < AX_AXES_STANDARD; a++) {
        grid->size[a] = sizes[a];
        grid->stride[a] = stride;
        stride *= sizes[a];
    }
    ax_status status = make_comms(grid);
    if (status != AX_OK)
        ax_grid_destroy(&grid);
    *out = grid;
    return status;
}

void ax_grid_destroy(ax_grid **grid)
{
    if (!*grid)
        return;
    for (size_t i = 0; i < AX_COUNT((*grid)->comm); i++)
        ax_comm_destroy(&(*grid)->comm[i]);
    free(*grid);
    *grid = NULL;
}

ax_grid_size ax_grid_sizes(const ax_grid *grid) { return size_of(grid->size); }

int ax_grid_axes(const ax_grid *grid) { return grid->axes; }
int ax_grid_axis_size(const ax_grid *grid, ax_axis axis) { return grid->size[axis]; }
int ax_grid_ranks(const ax_grid *grid) { return grid->ranks; }
int ax_grid_rank(const ax_grid *grid) { return ax_comm_rank(grid->world); }

const char *ax_grid_axis_name(const ax_grid *grid, ax_axis axis)
{
    return axis < grid->axes ? axis_names[axis] : "?";
}

int ax_grid_coord(const ax_grid *grid, int rank, ax_axis axis)
{
    return rank / grid->stride[axis] % grid->size[axis];
}

int ax_grid_peer(const ax_grid *grid, ax_axis axis, int coord)
{
    int rank = ax_grid_rank(grid);
    return rank + (coord - ax_grid_coord(grid, rank, axis)) * grid->stride[axis];
}

ax_status ax_grid_axis_find(const ax_grid *grid, const char *name, size_t len, ax_axis *out)
{
    char all[64] = "";
    for (int a = 0; a < grid->axes; a++) {
        if (strlen(axis_names[a]) == len && !memcmp(axis_names[a], name, len)) {
            *out = (ax_axis)a;
            return AX_OK;
        }
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", a ? ", " : "", axis_names[a]);
    }
    return ax_fail(AX_ERR_USAGE, "the grid has no axis \"%.*s\"; its axes are %s", (int)len, name, all);
}

/* ---- factors ------------------------------------------------------------------------------------- */

enum { X = 1 << AX_X, X_FACTORS = 1 << AX_X_KV | 1 << AX_X_REP };

ax_status ax_grid_factor(ax_grid *grid, int kv)
{
    int x = grid->size[AX_X];
    AX_CHECK(kv >= 1 && x % kv == 0, AX_ERR_USAGE, "x = %d cannot be x.kv = %d times anything", x, kv);
    if (kv == x)
        return AX_OK;
    if (grid->axes == AX_AXES) {
        AX_CHECK(grid->size[AX_X_KV] == kv, AX_ERR_USAGE,
                 "x = %d is x.kv = %d times x.rep = %d already and cannot be x.kv = %d too: one grid serves "
                 "layers of one number of key heads",
                 x, grid->size[AX_X_KV], grid->size[AX_X_REP], kv);
        return AX_OK;
    }
    grid->size[AX_X_KV] = kv;
    grid->size[AX_X_REP] = x / kv;
    grid->stride[AX_X_REP] = grid->stride[AX_X];
    grid->stride[AX_X_KV] = grid->stride[AX_X] * (x / kv);
    grid->axes = AX_AXES;
    /* The groups along x are those along both factors, by their new name. */
    for (unsigned axes = 0; axes < 1u << AX_AXES_STANDARD; axes++)
        if (axes & X) {
            grid->comm[(axes & ~(unsigned)X) | X_FACTORS] = grid->comm[axes];
            grid->comm[axes] = NULL;
        }
    return make_comms(grid);
}

ax_axisset ax_grid_atoms(const ax_grid *grid, ax_axisset axes)
{
    if (grid->axes < AX_AXES || !(axes & X))
        return axes;
    return (ax_axisset)((axes & ~X) | X_FACTORS);
}

/* ---- sets of axes -------------------------------------------------------------------------------- */

ax_axisset ax_grid_effective(const ax_grid *grid, ax_axisset axes)
{
    ax_axisset effective = 0, atoms = ax_grid_atoms(grid, axes);
    for (int a = 0; a < grid->axes; a++)
        if ((atoms >> a & 1) && grid->size[a] > 1)
            effective |= (ax_axisset)(1u << a);
    return effective;
}

int ax_grid_group_size(const ax_grid *grid, ax_axisset axes)
{
    int size = 1;
    axes = ax_grid_effective(grid, axes);
    for (int a = 0; a < grid->axes; a++)
        if (axes >> a & 1)
            size *= grid->size[a];
    return size;
}

ax_comm *ax_grid_comm(const ax_grid *grid, ax_axisset axes)
{
    return grid->comm[ax_grid_effective(grid, axes)];
}

ax_comm *ax_grid_comm_all(const ax_grid *grid)
{
    return ax_grid_comm(grid, (ax_axisset)((1u << grid->axes) - 1));
}
