#include <cstddef>
#include <mpi.h>
#include <vector>

/* u has rows x cols elements, row by row. Set each element of v, which is as large, to the mean
   of the same element of u and of its neighbours above, below, left and right; neighbours
   outside count as 0. The sum is always divided by 5. Use MPI to compute in parallel. MPI is
   initialized. Every rank has the whole input; the result must be in v on rank 0.
   Example:
   input: u = [5, 10, 0, 5], rows = 2, cols = 2
   output: v = [3, 4, 2, 3] */
void smooth(const std::vector<double> &u, std::vector<double> &v, int rows, int cols) {
#ifndef WRONG
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    const int begin = rows * rank / ranks, end = rows * (rank + 1) / ranks;
    std::vector<double> own;
    for (int i = begin; i < end; i++)
        for (int j = 0; j < cols; j++) {
            const double up = i > 0 ? u[(i - 1) * cols + j] : 0, down = i + 1 < rows ? u[(i + 1) * cols + j] : 0;
            const double left = j > 0 ? u[i * cols + j - 1] : 0, right = j + 1 < cols ? u[i * cols + j + 1] : 0;
            own.push_back((u[i * cols + j] + up + down + left + right) / 5);
        }
    std::vector<int> counts(ranks), begins(ranks);
    for (int r = 0; r < ranks; r++) {
        begins[r] = rows * r / ranks * cols;
        counts[r] = rows * (r + 1) / ranks * cols - begins[r];
    }
    MPI_Gatherv(own.data(), own.size(), MPI_DOUBLE, v.data(), counts.data(), begins.data(), MPI_DOUBLE, 0,
                MPI_COMM_WORLD);
}
#else
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    const int begin = rows * rank / ranks, end = rows * (rank + 1) / ranks;
    std::vector<double> own;
    for (int i = begin; i < end; i++)
        for (int j = 0; j < cols; j++) {
            const double up = i > begin ? u[(i - 1) * cols + j] : 0, down = i + 1 < end ? u[(i + 1) * cols + j] : 0;
            const double left = j > 0 ? u[i * cols + j - 1] : 0, right = j + 1 < cols ? u[i * cols + j + 1] : 0;
            own.push_back((u[i * cols + j] + up + down + left + right) / 5);
        }
    std::vector<int> counts(ranks), begins(ranks);
    for (int r = 0; r < ranks; r++) {
        begins[r] = rows * r / ranks * cols;
        counts[r] = rows * (r + 1) / ranks * cols - begins[r];
    }
    MPI_Gatherv(own.data(), own.size(), MPI_DOUBLE, v.data(), counts.data(), begins.data(), MPI_DOUBLE, 0,
                MPI_COMM_WORLD);
}
#endif
