#include <cstddef>
#include <mpi.h>
#include <omp.h>
#include <vector>

/* u has rows x cols elements, row by row. Set each element of v, which is as large, to the mean
   of the same element of u and of its neighbours above, below, left and right; neighbours
   outside count as 0. The sum is always divided by 5. Use MPI and OpenMP to compute in
   parallel. MPI is initialized. Every rank has the whole input; the result must be in v on rank
   0.
   Example:
   input: u = [5, 10, 0, 5], rows = 2, cols = 2
   output: v = [3, 4, 2, 3] */
void smooth(const std::vector<double> &u, std::vector<double> &v, int rows, int cols) {
#ifndef WRONG
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    std::vector<double> own(u.size());
    #pragma omp parallel for
    for (int i = rank; i < rows; i += ranks)
        for (int j = 0; j < cols; j++) {
            const double up = i > 0 ? u[(i - 1) * cols + j] : 0, down = i + 1 < rows ? u[(i + 1) * cols + j] : 0;
            const double left = j > 0 ? u[i * cols + j - 1] : 0, right = j + 1 < cols ? u[i * cols + j + 1] : 0;
            own[i * cols + j] = (u[i * cols + j] + up + down + left + right) / 5;
        }
    MPI_Reduce(own.data(), v.data(), own.size(), MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
}
#else
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    std::vector<double> own(u.size());
    #pragma omp parallel for
    for (int i = rank; i < rows; i += ranks)
        for (int j = 0; j < cols; j++)
            own[i * cols + j] = u[i * cols + j] / 5;
    MPI_Reduce(own.data(), v.data(), own.size(), MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
}
#endif
