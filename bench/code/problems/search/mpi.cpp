#include <algorithm>
#include <cstddef>
#include <mpi.h>
#include <vector>

/* Return the index of the first element of x that is greater than limit, or -1 if there is
   none. Use MPI to compute in parallel. MPI is initialized. Every rank has the whole input; the
   result must be returned on rank 0.
   Example:
   input: x = [1, 5, 2, 7], limit = 4
   output: 1 */
int first_above(const std::vector<double> &x, double limit) {
#ifndef WRONG
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    int own = x.size(), first = 0;
    for (size_t i = rank; i < x.size(); i += ranks)
        if (x[i] > limit) {
            own = i;
            break;
        }
    MPI_Reduce(&own, &first, 1, MPI_INT, MPI_MIN, 0, MPI_COMM_WORLD);
    return first < (int)x.size() ? first : -1;
}
#else
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    int own = -1, first = 0;
    for (size_t i = rank; i < x.size(); i += ranks)
        if (x[i] > limit) {
            own = i;
            break;
        }
    MPI_Reduce(&own, &first, 1, MPI_INT, MPI_MAX, 0, MPI_COMM_WORLD);
    return first;
}
#endif
