#include <algorithm>
#include <cmath>
#include <cstddef>
#include <mpi.h>
#include <vector>

/* Sort the vector x in ascending order of the absolute values of its elements. Use MPI to
   compute in parallel. MPI is initialized. Every rank has the whole input; the result must be
   in x on rank 0.
   Example:
   input: [3.5, -1, 2, -4]
   output: [-1, 2, 3.5, -4] */
void sort_by_magnitude(std::vector<double> &x) {
#ifndef WRONG
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    const auto less = [](double a, double b) { return std::abs(a) < std::abs(b); };
    const size_t n = x.size();
    std::vector<int> counts(ranks), begins(ranks);
    for (int r = 0; r < ranks; r++) {
        begins[r] = n * r / ranks;
        counts[r] = n * (r + 1) / ranks - begins[r];
    }
    std::vector<double> own(x.begin() + begins[rank], x.begin() + begins[rank] + counts[rank]);
    std::sort(own.begin(), own.end(), less);
    MPI_Gatherv(own.data(), own.size(), MPI_DOUBLE, x.data(), counts.data(), begins.data(), MPI_DOUBLE, 0,
                MPI_COMM_WORLD);
    if (rank == 0)
        for (int r = 1; r < ranks; r++)
            std::inplace_merge(x.begin(), x.begin() + begins[r], x.begin() + begins[r] + counts[r], less);
}
#else
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    const auto less = [](double a, double b) { return std::abs(a) < std::abs(b); };
    const size_t n = x.size() / ranks;
    std::vector<double> own(x.begin() + n * rank, x.begin() + n * (rank + 1));
    std::sort(own.begin(), own.end(), less);
    MPI_Gather(own.data(), n, MPI_DOUBLE, x.data(), n, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    if (rank == 0)
        for (int r = 1; r < ranks; r++)
            std::inplace_merge(x.begin(), x.begin() + n * r, x.begin() + n * (r + 1), less);
}
#endif
