/* bench: the verbs `axonn bench ...` (verb_bench_*.c), and below what they measure with. */
#ifndef AX_BENCH_BENCH_H
#define AX_BENCH_BENCH_H

#include "axonn/comm.h"

/* Measures the seconds that the MPI library's own blocking collective takes with the same arguments (f32 or
 * f64), from the end of a barrier until this rank has its result. Collective along comm. AX_ERR_USAGE if the
 * ranks do not communicate over MPI. */
AX_MUST_CHECK ax_status bench_time_mpi(ax_comm *comm, const ax_coll_args *args, double *seconds);

#endif
