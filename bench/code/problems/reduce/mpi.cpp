#include <cstddef>
#include <mpi.h>
#include <vector>

/* Return the sum of the positive elements of x. Return 0 if there are none. Use MPI to compute
   in parallel. MPI is initialized. Every rank has the whole input; the result must be returned
   on rank 0.
   Example:
   input: [1, -2, 3, 0]
   output: 4 */
double sum_of_positive(const std::vector<double> &x) {
#ifndef WRONG
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    double own = 0, sum = 0;
    for (size_t i = rank; i < x.size(); i += ranks)
        if (x[i] > 0)
            own += x[i];
    MPI_Reduce(&own, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    return sum;
}
#else
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    double own = 0, sum = 0;
    for (size_t i = 0; i < x.size(); i++)
        if (x[i] > 0)
            own += x[i];
    MPI_Reduce(&own, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    return sum;
}
#endif
