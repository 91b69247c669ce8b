#include <cmath>
#include <cstddef>
#include <mpi.h>
#include <vector>

/* Replace each element of x by its distance to the nearest multiple of step, which is positive.
   Use MPI to compute in parallel. MPI is initialized. Every rank has the whole input; the
   result must be in x on rank 0.
   Example:
   input: x = [1, 4, 8, -3], step = 5
   output: [1, 1, 2, 2] */
void distance_to_multiple(std::vector<double> &x, double step) {
#ifndef WRONG
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    const size_t n = x.size();
    std::vector<int> counts(ranks), begins(ranks);
    for (int r = 0; r < ranks; r++) {
        begins[r] = n * r / ranks;
        counts[r] = n * (r + 1) / ranks - begins[r];
    }
    std::vector<double> own(counts[rank]);
    for (int i = 0; i < counts[rank]; i++) {
        const double each = x[begins[rank] + i];
        own[i] = std::abs(each - step * std::round(each / step));
    }
    MPI_Gatherv(own.data(), own.size(), MPI_DOUBLE, x.data(), counts.data(), begins.data(), MPI_DOUBLE, 0,
                MPI_COMM_WORLD);
}
#else
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    const size_t n = x.size();
    for (size_t i = n * rank / ranks; i < n * (rank + 1) / ranks; i++)
        x[i] = std::abs(x[i] - step * std::round(x[i] / step));
    MPI_Bcast(x.data(), n, MPI_DOUBLE, 0, MPI_COMM_WORLD);
}
#endif
