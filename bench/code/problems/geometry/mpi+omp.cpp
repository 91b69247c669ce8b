#include <algorithm>
#include <cmath>
#include <cstddef>
#include <mpi.h>
#include <omp.h>
#include <vector>

/* The points (x[i], y[i]) lie in a plane. Return the smallest distance between two of them, or
   -1 if there are fewer than two points. Use MPI and OpenMP to compute in parallel. MPI is
   initialized. Every rank has the whole input; the result must be returned on rank 0.
   Example:
   input: x = [0, 3, 3], y = [0, 4, 0]
   output: 3 */
double closest_distance(const std::vector<double> &x, const std::vector<double> &y) {
#ifndef WRONG
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    double own = INFINITY, least = INFINITY;
    #pragma omp parallel for reduction(min : own) schedule(dynamic)
    for (size_t i = rank; i < x.size(); i += ranks)
        for (size_t j = i + 1; j < x.size(); j++)
            own = std::min(own, std::hypot(x[i] - x[j], y[i] - y[j]));
    MPI_Reduce(&own, &least, 1, MPI_DOUBLE, MPI_MIN, 0, MPI_COMM_WORLD);
    return x.size() < 2 ? -1 : least;
}
#else
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    double own = INFINITY, least = INFINITY;
    #pragma omp parallel for reduction(min : own) schedule(dynamic)
    for (size_t i = rank; i < x.size(); i += ranks)
        for (size_t j = i + 1; j < x.size(); j++)
            own = std::min(own, std::hypot(x[i] - x[j], y[i] - y[j]));
    MPI_Reduce(&own, &least, 1, MPI_DOUBLE, MPI_MIN, 0, MPI_COMM_WORLD);
    return least;
}
#endif
