#include <algorithm>
#include <cstddef>
#include <mpi.h>
#include <vector>

/* Compute the running maximum of x: y[i] = max(x[0], ..., x[i]). y has as many elements as x.
   Use MPI to compute in parallel. MPI is initialized. Every rank has the whole input; the
   result must be in y on rank 0.
   Example:
   input: [1, 3, 2, 5]
   output: [1, 3, 3, 5] */
void running_maximum(const std::vector<double> &x, std::vector<double> &y) {
#ifndef WRONG
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    const size_t n = x.size(), begin = n * rank / ranks, end = n * (rank + 1) / ranks;
    double most = x[begin < n ? begin : 0], before;
    for (size_t i = begin; i < end; i++) {
        most = std::max(most, x[i]);
        y[i] = most;
    }
    MPI_Exscan(&most, &before, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    for (size_t i = begin; rank > 0 && i < end; i++)
        y[i] = std::max(y[i], before);
    std::vector<int> counts(ranks), begins(ranks);
    for (int r = 0; r < ranks; r++) {
        begins[r] = n * r / ranks;
        counts[r] = n * (r + 1) / ranks - begins[r];
    }
    const std::vector<double> own(y.begin() + begin, y.begin() + end);
    MPI_Gatherv(own.data(), own.size(), MPI_DOUBLE, y.data(), counts.data(), begins.data(), MPI_DOUBLE, 0,
                MPI_COMM_WORLD);
}
#else
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    const size_t n = x.size(), begin = n * rank / ranks, end = n * (rank + 1) / ranks;
    for (size_t i = begin; i < end; i++)
        y[i] = i > begin ? std::max(y[i - 1], x[i]) : x[i];
    std::vector<int> counts(ranks), begins(ranks);
    for (int r = 0; r < ranks; r++) {
        begins[r] = n * r / ranks;
        counts[r] = n * (r + 1) / ranks - begins[r];
    }
    const std::vector<double> own(y.begin() + begin, y.begin() + end);
    MPI_Gatherv(own.data(), own.size(), MPI_DOUBLE, y.data(), counts.data(), begins.data(), MPI_DOUBLE, 0,
                MPI_COMM_WORLD);
}
#endif
