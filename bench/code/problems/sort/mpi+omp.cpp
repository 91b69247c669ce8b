#include <algorithm>
#include <cmath>
#include <cstddef>
#include <mpi.h>
#include <omp.h>
#include <vector>

/* Sort the vector x in ascending order of the absolute values of its elements. Use MPI and
   OpenMP to compute in parallel. MPI is initialized. Every rank has the whole input; the result
   must be in x on rank 0.
   Example:
   input: [3.5, -1, 2, -4]
   output: [-1, 2, 3.5, -4] */
void sort_by_magnitude(std::vector<double> &x) {
#ifndef WRONG
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    const auto less = [](double a, double b) { return std::abs(a) < std::abs(b); };
    const size_t n = x.size(), threads = omp_get_max_threads(), parts = ranks * threads;
    const auto begin = [&](size_t part) { return n * part / parts; };
    #pragma omp parallel for
    for (size_t p = rank * threads; p < (rank + 1) * threads; p++)
        std::sort(x.begin() + begin(p), x.begin() + begin(p + 1), less);
    std::vector<int> counts(ranks), begins(ranks);
    for (int r = 0; r < ranks; r++) {
        begins[r] = begin(r * threads);
        counts[r] = begin((r + 1) * threads) - begins[r];
    }
    std::vector<double> own(x.begin() + begins[rank], x.begin() + begins[rank] + counts[rank]);
    MPI_Gatherv(own.data(), own.size(), MPI_DOUBLE, x.data(), counts.data(), begins.data(), MPI_DOUBLE, 0,
                MPI_COMM_WORLD);
    if (rank == 0)
        for (size_t p = 1; p < parts; p++)
            std::inplace_merge(x.begin(), x.begin() + begin(p), x.begin() + begin(p + 1), less);
}
#else
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    const size_t n = x.size();
    #pragma omp parallel for
    for (size_t i = 0; i < n; i++)
        x[i] = std::abs(x[i]);
    if (rank == 0)
        std::sort(x.begin(), x.end());
}
#endif
