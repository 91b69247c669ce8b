/* Ranks as a grid of named axes, and the communicators along these axes. An axis may be the product of two
 * factors, which are axes too (ax_grid_factor); an axis without factors is called an atom. */
#include "axonn/grid.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const axis_names[AX_GRID_SIZES] = {
#define NAME(id, name, split) #name,
    AX_AXES(NAME)
#undef NAME
        [AX_SIZE_EXPERT] = "expert"};

static const struct {
    ax_axis axis;
    const char *major, *minor;
} factors[AX_FACTOR_COUNT] = {
#define ROW(id, axis, major, minor) [AX_FACTOR_##id] = {axis, major, minor},
    AX_FACTORS(ROW)
#undef ROW
};

_Static_assert(AX_MAX_AXES <= 8 * sizeof(ax_axisset), "ax_axisset has too few bits");
_Static_assert(AX_AXES_STANDARD + 2 * AX_FACTOR_COUNT <= AX_MAX_AXES,
               "AX_MAX_AXES is too small for the factors");

/* An axis of the grid. A group along the axis has `size` ranks; the numbers of successive ranks of the group
 * differ by `stride`. */
typedef struct grid_axis {
    char name[24];
    int size, stride;
    ax_axis of; /* the standard axis that this axis is a factor of; for a standard axis, the axis itself */
    ax_axisset atoms; /* the atoms that this axis is the product of; for an atom, the axis itself */
} grid_axis;

/* The communicator of this rank's group along a set of atoms. */
typedef struct group {
    ax_axisset atoms;
    ax_comm *comm;
} group;

struct ax_grid {
    ax_comm *world;
    int axes, ranks, factorings, comms;
    grid_axis axis[AX_MAX_AXES];
    ax_factoring factoring[AX_MAX_AXES];
    ax_axisset products, single; /* products: the axes that have factors; single: the axes of size 1 */
    group *along;
    ax_device *dev;      /* device for device-to-device collectives (ax_grid_connect), or NULL */
    bool host_path_said; /* the log already says that collectives go through host memory */
};

/* ---- sizes --------------------------------------------------------------------------------------- */

int ax_grid_size_along(ax_grid_size size, ax_axis index) { return size.of[index] ? size.of[index] : 1; }

int64_t ax_grid_size_ranks(ax_grid_size size)
{
    int64_t product = 1;
    for (int a = 0; a < AX_AXES_STANDARD; a++)
        product = ax_min(product * ax_grid_size_along(size, (ax_axis)a), INT32_MAX);
    return product;
}

const char *ax_axis_name(ax_axis index) { return axis_names[index]; }

static ax_status refuse(ax_grid_size size, int ranks)
{
    char wanted[80], nearest[320];
    return ax_fail(AX_ERR_USAGE, "grid %s needs %lld ranks but there %s %d; the nearest grids that fit: %s",
                   ax_grid_size_print(size, wanted), (long long)ax_grid_size_ranks(size),
                   ranks == 1 ? "is" : "are", ranks, ax_grid_nearest(size, ranks, NULL, NULL, nearest));
}

/* ---- communicators ------------------------------------------------------------------------------- */

static const group *find_along(const ax_grid *grid, ax_axisset atoms)
{
    for (int i = 0; i < grid->comms; i++)
        if (grid->along[i].atoms == atoms)
            return &grid->along[i];
    return NULL;
}

/* Lists the ranks of this rank's group along `atoms` in ascending order. Goes over all atoms with several
 * ranks, each of which has the product of the sizes before it as its stride. */
static int list_group(const ax_grid *grid, ax_axisset atoms, int *ranks)
{
    int n = 1, me = ranks[0] = ax_grid_rank(grid);
    for (int stride = 1, size; stride < grid->ranks; stride *= size) {
        int a = 0;
        while (grid->axis[a].stride != stride || (grid->products | grid->single) >> a & 1)
            a++;
        size = grid->axis[a].size;
        if (!(atoms >> a & 1))
            continue;
        for (int i = 0; i < n; i++)
            ranks[i] -= ax_grid_coord(grid, me, (ax_axis)a) * stride;
        for (int i = n; i < n * size; i++)
            ranks[i] = ranks[i - n] + stride;
        n *= size;
    }
    return n;
}

/* Creates the communicator of this rank's group along `atoms`. */
static ax_status make_comm(const ax_grid *grid, ax_axisset atoms, ax_comm **out)
{
    int *ranks;
    AX_TRY(ax_calloc((size_t)ax_grid_group_size(grid, atoms), sizeof *ranks, &ranks));
    ax_status status = ax_comm_group(grid->world, ranks, list_group(grid, atoms, ranks), out);
    free(ranks);
    return status;
}

static ax_status connect(ax_grid *grid, const group *to)
{
    char name[AX_AXISSET_TEXT], why[AX_COMM_WHY];
    AX_TRY(ax_comm_connect(to->comm, grid->dev, ax_grid_set_print(grid, to->atoms, name), why));
    if (*why)
        ax_log(grid->host_path_said ? AX_LOG_DEBUG : AX_LOG_INFO,
               "collectives of device %s along %s go through host memory: %s", grid->dev->ops.name, name,
               why);
    grid->host_path_said |= *why != 0;
    return AX_OK;
}

ax_status ax_grid_connect(ax_grid *grid, ax_device *dev)
{
    grid->dev = dev;
    for (int i = 0; i < grid->comms; i++)
        AX_TRY(connect(grid, &grid->along[i]));
    return AX_OK;
}

/* Creates the communicator of this rank's group along `atoms` and adds it to the grid's list. The message
 * of an error names the axes. */
static ax_status add_comm(ax_grid *grid, ax_axisset atoms, ax_comm **out)
{
    char name[AX_AXISSET_TEXT];
    group *more = realloc(grid->along, (size_t)(grid->comms + 1) * sizeof *more), made = {.atoms = atoms};
    AX_CHECK(more, AX_ERR_MEMORY, "not enough memory to add the communicator along %s to the grid's list",
             ax_grid_set_print(grid, atoms, name));
    grid->along = more;
    ax_status status = make_comm(grid, atoms, &made.comm);
    if (status != AX_OK) {
        ax_error_context("cannot create the communicator along grid axes %s",
                         ax_grid_set_print(grid, atoms, name));
        return status;
    }
    more[grid->comms++] = made;
    *out = made.comm;
    return grid->dev ? connect(grid, &made) : AX_OK;
}

int ax_grid_groups(const ax_grid *grid) { return grid->comms; }

ax_comm *ax_grid_group(const ax_grid *grid, int index, ax_axisset *axes)
{
    *axes = grid->along[index].atoms;
    return grid->along[index].comm;
}

ax_status ax_grid_comm(ax_grid *grid, ax_axisset axes, ax_comm **out)
{
    ax_axisset atoms = ax_grid_effective(grid, axes);
    const group *known = find_along(grid, atoms);
    *out = known ? known->comm : NULL;
    return known ? AX_OK : add_comm(grid, atoms, out);
}

static int by_axes(const void *x, const void *y)
{
    return ((const ax_grid_use *)x)->axes - ((const ax_grid_use *)y)->axes;
}

ax_status ax_grid_used(const ax_grid *grid, ax_grid_use **out)
{
    AX_TRY(ax_calloc((size_t)grid->comms + 1, sizeof **out, out));
    int n = 0;
    for (int i = 0; i < grid->comms; i++)
        if (grid->along[i].atoms)
            (*out)[n++] = (ax_grid_use){grid->along[i].atoms, ax_comm_buffers_of(grid->along[i].comm)};
    qsort(*out, (size_t)n, sizeof **out, by_axes);
    return AX_OK;
}

size_t ax_grid_buffers(const ax_grid *grid)
{
    size_t bytes = 0;
    for (int i = 0; i < grid->comms; i++) {
        const ax_comm_buffers buffers = ax_comm_buffers_of(grid->along[i].comm);
        bytes += ax_comm_buffers_bytes(&buffers);
    }
    return bytes;
}

size_t ax_grid_lacking_buffers(const ax_grid *grid, const ax_grid_use *used)
{
    size_t bytes = 0;
    for (const ax_grid_use *use = used; use->axes; use++) {
        const group *known = find_along(grid, use->axes); /* factors may not be declared yet: then none is */
        bytes += known ? ax_comm_lacking_buffers(known->comm, &use->buffers)
                       : ax_comm_buffers_bytes(&use->buffers);
    }
    return bytes;
}

ax_status ax_grid_prepare(ax_grid *grid, const ax_grid_use *used)
{
    ax_comm *comm;
    double begin = ax_now();
    ax_status status = AX_OK;
    for (const ax_grid_use *use = used; use->axes; use++)
        AX_TRY(ax_grid_comm(grid, use->axes, &comm));
    for (const ax_grid_use *use = used; use->axes && status == AX_OK; use++) {
        status = ax_grid_comm(grid, use->axes, &comm); /* it exists */
        if (status == AX_OK)
            status = ax_comm_reserve_buffers(comm, &use->buffers);
    }
    AX_TRY(ax_comm_agree(grid->world, status));
    ax_log(AX_LOG_DEBUG, "%d communicators created in %.1f ms", grid->comms, (ax_now() - begin) * 1e3);
    return AX_OK;
}

/* Enters into the n ranks of `of` the rank `rank`, unless one of them, or this rank, has its key. */
static void add_apart(const ax_grid *grid, const uint64_t *key, int rank, int *of, int *n)
{
    const uint64_t its = key[ax_comm_world_rank(grid->world, rank)];
    bool known = its == key[ax_comm_world_rank(grid->world, ax_grid_rank(grid))];
    for (int i = 0; i < *n && !known; i++)
        known = its == key[ax_comm_world_rank(grid->world, of[i])];
    if (!known)
        of[(*n)++] = rank;
}

ax_status ax_grid_apart(const ax_grid *grid, int **out, int *n)
{
    uint64_t *key;
    bool apart = false;
    *n = 0;
    AX_TRY(ax_calloc((size_t)grid->ranks, sizeof **out, out));
    AX_TRY(ax_calloc((size_t)grid->ranks, sizeof *key, &key));
    for (int i = 0; i < grid->comms; i++)
        if (grid->along[i].atoms)
            apart |= ax_comm_dry_mark(grid->along[i].comm, key);
    const int stage = ax_grid_coord(grid, ax_grid_rank(grid), AX_PIPE);
    for (int r = 0; r < grid->ranks && apart; r++)
        if (ax_grid_coord(grid, r, AX_PIPE) == stage)
            add_apart(grid, key, r, *out, n);
    free(key);
    return AX_OK;
}

/* ---- grids --------------------------------------------------------------------------------------- */

static ax_axis add_axis(ax_grid *grid, ax_axis of, const char *name, int size, int stride)
{
    grid_axis *a = &grid->axis[grid->axes];
    *a = (grid_axis){.size = size, .stride = stride, .of = of, .atoms = (ax_axisset)(1u << grid->axes)};
    snprintf(a->name, sizeof a->name, "%s", name);
    if (size == 1)
        grid->single |= a->atoms;
    return (ax_axis)grid->axes++;
}

/* Declares the factors of data that the size AX_SIZE_EXPERT asks for. */
static ax_status factor_experts(ax_grid *grid, ax_grid_size size)
{
    int factoring;
    const int expert = ax_grid_size_along(size, AX_SIZE_EXPERT), data = grid->axis[AX_DATA].size;
    return expert > 1 ? ax_grid_factor(grid, AX_FACTOR_EXPERT, data / expert, &factoring) : AX_OK;
}

static ax_status check_sizes(ax_grid_size size, int ranks)
{
    const int expert = ax_grid_size_along(size, AX_SIZE_EXPERT), data = ax_grid_size_along(size, AX_DATA);
    for (int a = 0; a < AX_GRID_SIZES; a++)
        AX_CHECK(size.of[a] >= 0, AX_ERR_USAGE,
                 "grid axis %s has size %d; each axis must have at least 1 rank", axis_names[a], size.of[a]);
    AX_CHECK(data % expert == 0, AX_ERR_USAGE,
             "experts cannot be divided among %d ranks of grid axis data = %d; choose a divisor of %d",
             expert, data, data);
    return ax_grid_size_ranks(size) == ranks ? AX_OK : refuse(size, ranks);
}

ax_status ax_grid_create(ax_comm *world, ax_grid_size size, ax_grid **out)
{
    *out = NULL;
    const int ranks = ax_comm_size(world);
    ax_grid *grid;
    AX_TRY(check_sizes(size, ranks));
    AX_TRY(ax_calloc(1, sizeof *grid, &grid));
    grid->world = world;
    grid->ranks = ranks;
    for (int a = 0, stride = 1; a < AX_AXES_STANDARD; a++) {
        int n = ax_grid_size_along(size, (ax_axis)a);
        add_axis(grid, (ax_axis)a, axis_names[a], n, stride);
        stride *= n;
    }
    ax_status status = factor_experts(grid, size);
    if (status != AX_OK)
        ax_grid_destroy(&grid);
    *out = grid;
    return status;
}

void ax_grid_destroy(ax_grid **grid)
{
    if (!*grid)
        return;
    for (int i = 0; i < (*grid)->comms; i++)
        ax_comm_destroy(&(*grid)->along[i].comm);
    free((*grid)->along);
    free(*grid);
    *grid = NULL;
}

ax_grid_size ax_grid_sizes(const ax_grid *grid)
{
    ax_grid_size size;
    for (int a = 0; a < AX_AXES_STANDARD; a++)
        size.of[a] = grid->axis[a].size;
    const ax_factoring *experts = ax_grid_experts(grid);
    size.of[AX_SIZE_EXPERT] = experts ? grid->axis[experts->minor].size : 1;
    return size;
}

int ax_grid_axes(const ax_grid *grid) { return grid->axes; }
int ax_grid_axis_size(const ax_grid *grid, ax_axis axis) { return grid->axis[axis].size; }
int ax_grid_ranks(const ax_grid *grid) { return grid->ranks; }
int ax_grid_rank(const ax_grid *grid) { return ax_comm_rank(grid->world); }

const char *ax_grid_axis_name(const ax_grid *grid, ax_axis axis)
{
    return axis < grid->axes ? grid->axis[axis].name : "?";
}

int ax_grid_coord(const ax_grid *grid, int rank, ax_axis axis)
{
    return rank / grid->axis[axis].stride % grid->axis[axis].size;
}

int ax_grid_peer(const ax_grid *grid, ax_axis axis, int coord)
{
    int rank = ax_grid_rank(grid);
    return rank + (coord - ax_grid_coord(grid, rank, axis)) * grid->axis[axis].stride;
}

ax_status ax_grid_axis_find(const ax_grid *grid, const char *name, size_t len, ax_axis *out)
{
    char all[AX_MAX_AXES * 26] = "";
    for (int a = 0; a < grid->axes; a++) {
        const char *is = grid->axis[a].name;
        if (strlen(is) == len && !memcmp(is, name, len)) {
            *out = (ax_axis)a;
            return AX_OK;
        }
        ax_text_add(all, sizeof all, "%s%s", a ? ", " : "", is);
    }
    return ax_fail(AX_ERR_USAGE, "the grid has no axis \"%.*s\"; its axes are %s", (int)len, name, all);
}

/* ---- factors ------------------------------------------------------------------------------------- */

/* Finds the axis with this size and stride: standard axis `of`, or one of the factors of that axis. Returns
 * AX_MAX_AXES if there is none. */
static int find_axis(const ax_grid *grid, ax_axis of, int size, int stride)
{
    int a = 0;
    while (a < grid->axes &&
           (grid->axis[a].of != of || grid->axis[a].size != size || grid->axis[a].stride != stride))
        a++;
    return a < grid->axes ? a : AX_MAX_AXES;
}

/* Returns the atom (axis without factors) of standard axis `of` that a factor with this stride would cut in
 * two. Returns AX_MAX_AXES if the factor would cut no atom. */
static int atom_across(const ax_grid *grid, ax_axis of, int stride)
{
    for (int a = 0; a < grid->axes; a++) {
        const grid_axis *x = &grid->axis[a];
        if (grid->axis[of].atoms >> a & 1 && x->stride < stride && stride < x->stride * x->size)
            return a;
    }
    return AX_MAX_AXES;
}

/* Returns the axis with this size and stride. If there is none, adds one with the name OF.SUFFIX ("x.kv"), or
 * OF.SUFFIXSIZE ("x.kv4") if another axis already has the name OF.SUFFIX. */
static ax_axis name_axis(ax_grid *grid, ax_axis of, const char *suffix, int size, int stride)
{
    int known = find_axis(grid, of, size, stride);
    char name[24];
    if (known < AX_MAX_AXES)
        return (ax_axis)known;
    snprintf(name, sizeof name, "%s.%s", axis_names[of], suffix);
    for (int a = 0; a < grid->axes; a++)
        if (!strcmp(grid->axis[a].name, name))
            snprintf(name, sizeof name, "%s.%s%d", axis_names[of], suffix, size);
    return add_axis(grid, of, name, size, stride);
}

/* Replaces `atom`, an axis that was just cut into the two factors `parts`, in the sets of atoms of all
 * axes and communicators. */
static void cut_atom(ax_grid *grid, int atom, ax_axisset parts)
{
    for (int a = 0; a < grid->axes; a++)
        if (grid->axis[a].atoms >> atom & 1)
            grid->axis[a].atoms = (ax_axisset)((grid->axis[a].atoms & ~(1u << atom)) | parts);
    for (int i = 0; i < grid->comms; i++)
        if (grid->along[i].atoms >> atom & 1)
            grid->along[i].atoms = (ax_axisset)((grid->along[i].atoms & ~(1u << atom)) | parts);
}

/* Returns those atoms of standard axis `of` whose strides are in [from, to). */
static ax_axisset atoms_between(const ax_grid *grid, ax_axis of, int from, int to)
{
    ax_axisset atoms = 0;
    for (int a = 0; a < grid->axes; a++)
        if (grid->axis[of].atoms >> a & 1 && grid->axis[a].stride >= from && grid->axis[a].stride < to)
            atoms |= (ax_axisset)(1u << a);
    return atoms;
}

/* Adds the major and the minor factor of an axis as axes of the grid. If an atom (the axis itself, or an
 * earlier factor) lies across the boundary between the two new factors, the atom is cut in two. */
static ax_factoring add_factors(ax_grid *grid, ax_factor factor, int size)
{
    ax_axis of = factors[factor].axis;
    int low = grid->axis[of].stride, minor = grid->axis[of].size / size, boundary = low * minor;
    int atom = atom_across(grid, of, boundary);
    ax_factoring f = {of, name_axis(grid, of, factors[factor].major, size, boundary),
                      name_axis(grid, of, factors[factor].minor, minor, low)};
    if (atom < AX_MAX_AXES) {
        const grid_axis *a = &grid->axis[atom];
        int below_size = boundary / a->stride, above_size = a->size / below_size;
        ax_axis above = name_axis(grid, of, factors[factor].major, above_size, boundary);
        ax_axis below = name_axis(grid, of, factors[factor].minor, below_size, a->stride);
        cut_atom(grid, atom, (ax_axisset)(1u << above | 1u << below));
    }
    if (size > 1)
        grid->axis[f.major].atoms = atoms_between(grid, of, boundary, low * grid->axis[of].size);
    if (minor > 1)
        grid->axis[f.minor].atoms = atoms_between(grid, of, low, boundary);
    for (int a = 0; a < grid->axes; a++)
        if (grid->axis[a].atoms != 1u << a)
            grid->products |= (ax_axisset)(1u << a);
    return f;
}

static ax_status check_factor(const ax_grid *grid, ax_factor factor, int size)
{
    ax_axis of = factors[factor].axis;
    int all = grid->axis[of].size;
    AX_CHECK(size >= 1 && all % size == 0, AX_ERR_USAGE,
             "ax_grid_factor: grid axis %s = %d cannot have the factor %s.%s = %d; choose a divisor of %d",
             axis_names[of], all, axis_names[of], factors[factor].major, size, all);
    for (int i = 0; i < grid->factorings; i++) {
        int other = grid->axis[grid->factoring[i].major].size;
        AX_CHECK(
            grid->factoring[i].axis != of || size % other == 0 || other % size == 0, AX_ERR_USAGE,
            "one layer factors grid axis %s = %d as %d x %d and another as %d x %d: one of %d and %d must "
            "divide the other",
            axis_names[of], all, other, all / other, size, all / size, other, size);
    }
    AX_CHECK(grid->axes + 4 <= AX_MAX_AXES, AX_ERR_USAGE,
             "the layers factor the axes of the grid in too many ways: the grid may have %d axes, factors "
             "included; use the same factors in more layers",
             AX_MAX_AXES);
    return AX_OK;
}

ax_status ax_grid_factor(ax_grid *grid, ax_factor factor, int size, int *out)
{
    AX_TRY(check_factor(grid, factor, size));
    for (*out = 0; *out < grid->factorings; ++*out) {
        const ax_factoring *f = &grid->factoring[*out];
        if (f->axis == factors[factor].axis && grid->axis[f->major].size == size)
            return AX_OK;
    }
    grid->factoring[grid->factorings++] = add_factors(grid, factor, size);
    return AX_OK;
}

ax_factoring ax_grid_factoring(const ax_grid *grid, int index) { return grid->factoring[index]; }

const ax_factoring *ax_grid_experts(const ax_grid *grid)
{
    return grid->factorings && grid->factoring[0].axis == AX_DATA ? &grid->factoring[0] : NULL;
}

/* ---- sets of axes -------------------------------------------------------------------------------- */

ax_axisset ax_grid_atoms(const ax_grid *grid, ax_axisset axes)
{
    ax_axisset atoms = axes & (ax_axisset)~grid->products;
    for (int a = 0; a < grid->axes && axes & grid->products; a++)
        if ((axes & grid->products) >> a & 1)
            atoms |= grid->axis[a].atoms;
    return atoms;
}

char *ax_grid_set_print(const ax_grid *grid, ax_axisset axes, char out[AX_AXISSET_TEXT])
{
    ax_axisset left = ax_grid_atoms(grid, axes);
    *out = 0;
    for (int a = 0; a < grid->axes; a++) {
        ax_axisset atoms = grid->axis[a].atoms;
        if (atoms & ~left)
            continue;
        ax_text_add(out, AX_AXISSET_TEXT, "%s%s", *out ? "." : "", grid->axis[a].name);
        left &= (ax_axisset)~atoms;
    }
    return out;
}

ax_axisset ax_grid_effective(const ax_grid *grid, ax_axisset axes)
{
    return ax_grid_atoms(grid, axes) & (ax_axisset)~grid->single;
}

int ax_grid_group_size(const ax_grid *grid, ax_axisset axes)
{
    int size = 1;
    axes = ax_grid_effective(grid, axes);
    for (int a = 0; a < grid->axes; a++)
        if (axes >> a & 1)
            size *= grid->axis[a].size;
    return size;
}
