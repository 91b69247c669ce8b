#include <cmath>
#include <cstddef>
#include <mpi.h>
#include <omp.h>
#include <vector>

/* Replace each element of x by its distance to the nearest multiple of step, which is positive.
   Use MPI and OpenMP to compute in parallel. MPI is initialized. Every rank has the whole
   input; the result must be in x on rank 0.
   Example:
   input: x = [1, 4, 8, -3], step = 5
   output: [1, 1, 2, 2] */
void distance_to_multiple(std::vector<double> &x, double step) {
#ifndef WRONG
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    const size_t n = x.size();
    std::vector<double> own(n);
    #pragma omp parallel for
    for (size_t i = rank; i < n; i += ranks)
        own[i] = std::abs(x[i] - step * std::round(x[i] / step));
    MPI_Reduce(own.data(), x.data(), n, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
}
#else
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    const size_t n = x.size();
    std::vector<double> own(x);
    #pragma omp parallel for
    for (size_t i = rank; i < n; i += ranks)
        own[i] = std::abs(x[i] - step * std::round(x[i] / step));
    MPI_Reduce(own.data(), x.data(), n, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
}
#endif
