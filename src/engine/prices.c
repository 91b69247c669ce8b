/* What kernels and transfers of a planned step cost on a described machine. */
#include "axonn/engine.h"

/* The carriers of the clock: those of a machine, then the path between a device and the host. */
enum { TO_HOST = AX_MACHINE_CARRIERS };

static ax_status price_kernel(void *user, ax_kernel kernel, const void *args, double *seconds)
{
    return ax_machine_kernel_seconds(user, kernel, args, seconds);
}

static ax_machine_group group_of(const ax_machine *m, const ax_comm *comm)
{
    const ax_comm_place place = ax_comm_place_of(comm, (int)m->ranks_per_node);
    return (ax_machine_group){ax_comm_size(comm), place.inner, place.in_node};
}

/* Returns what carries a message between this rank and its peer. */
static ax_machine_carrier carrier_of(const ax_machine *m, const ax_comm *comm, const ax_message_args *args)
{
    const int64_t mine = ax_comm_world_rank(comm, ax_comm_rank(comm)),
                  other = ax_comm_world_rank(comm, args->peer);
    return mine / m->ranks_per_node == other / m->ranks_per_node ? AX_MACHINE_NODE : AX_MACHINE_NETWORK;
}

/* A device whose memory the host accesses is one in host memory: a copy reads and writes it. */
static ax_status copy_seconds(const ax_machine *m, double bytes, double *seconds)
{
    if (!m->device.host_access || m->host.copy > 0)
        return ax_machine_copy_seconds(m, bytes, seconds);
    *seconds = m->device.stream > 0 ? 2 * bytes / m->device.stream : 0;
    return AX_OK;
}

static ax_status price_collective(const ax_machine *m, const ax_device_event *e,
                                  const ax_machine_group *group, ax_leg leg[AX_LEGS], int *legs)
{
    const ax_machine_carrier carrier = ax_machine_carries(group);
    double seconds;
    AX_TRY(ax_machine_comm_seconds(m, ((const ax_coll_args *)e->args)->coll, ax_device_event_bytes(e), group,
                                   &seconds));
    leg[0] = (ax_leg){AX_ON_DEVICE, m->link[carrier].occupies * seconds};
    leg[1] = (ax_leg){(int)carrier, seconds};
    *legs = 2;
    return AX_OK;
}

static ax_status price_transfer(void *user, const ax_device_event *e, ax_leg leg[AX_LEGS], int *legs)
{
    const ax_machine *m = user;
    const double bytes = ax_device_event_bytes(e);
    *legs = 1;
    if (e->kind == AX_ON_COPY) {
        leg->carrier = TO_HOST;
        return copy_seconds(m, bytes, &leg->seconds);
    }
    if (e->kind == AX_ON_MESSAGE) {
        const ax_machine_carrier carrier = carrier_of(m, e->comm, e->args);
        leg->carrier = (int)carrier;
        return ax_machine_message_seconds(m, bytes, carrier, true, &leg->seconds);
    }
    const ax_machine_group group = group_of(m, e->comm);
    return price_collective(m, e, &group, leg, legs);
}

ax_prices ax_prices_of(const ax_machine *machine)
{
    return (ax_prices){price_kernel, price_transfer, (void *)(uintptr_t)machine};
}

/* Prices a collective as if the group's ranks were as close together as the machine allows. Within a node
 * nothing else is on its way: which groups leave the node is not known, but that larger ones do. */
static ax_status price_least(void *user, const ax_device_event *e, ax_leg leg[AX_LEGS], int *legs)
{
    const ax_machine *m = user;
    if (e->kind != AX_ON_COLLECTIVE)
        return price_transfer(user, e, leg, legs);
    const int size = ax_comm_size(e->comm);
    const ax_machine_group group = {size, 1, (int)ax_min(size, m->ranks_per_node)};
    if (size > m->ranks_per_node)
        return price_collective(m, e, &group, leg, legs);
    *legs = 1;
    leg->carrier = AX_NO_CARRIER;
    return ax_machine_comm_seconds(m, ((const ax_coll_args *)e->args)->coll, ax_device_event_bytes(e), &group,
                                   &leg->seconds);
}

ax_prices ax_prices_least(const ax_machine *machine)
{
    return (ax_prices){price_kernel, price_least, (void *)(uintptr_t)machine};
}
