#include <cstddef>
#include <mpi.h>
#include <vector>

/* Multiply the matrices A (m x k) and B (k x n): C = A B. All are stored row by row. C (m x n)
   is 0 at the start. Use MPI to compute in parallel. MPI is initialized. Every rank has the
   whole input; the result must be in C on rank 0.
   Example:
   input: A = [1, 2, 3, 4], B = [1, 0, 1, 1], m = 2, n = 2, k = 2
   output: C = [3, 2, 7, 4] */
void multiply(const std::vector<double> &A, const std::vector<double> &B, std::vector<double> &C, int m, int n,
              int k) {
#ifndef WRONG
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    const int begin = m * rank / ranks, end = m * (rank + 1) / ranks;
    std::vector<double> own((end - begin) * n);
    for (int i = begin; i < end; i++)
        for (int l = 0; l < k; l++)
            for (int j = 0; j < n; j++)
                own[(i - begin) * n + j] += A[i * k + l] * B[l * n + j];
    std::vector<int> counts(ranks), begins(ranks);
    for (int r = 0; r < ranks; r++) {
        begins[r] = m * r / ranks * n;
        counts[r] = m * (r + 1) / ranks * n - begins[r];
    }
    MPI_Gatherv(own.data(), own.size(), MPI_DOUBLE, C.data(), counts.data(), begins.data(), MPI_DOUBLE, 0,
                MPI_COMM_WORLD);
}
#else
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    std::vector<double> own(m * n);
    for (int i = m / ranks * rank; i < m / ranks * (rank + 1); i++)
        for (int l = 0; l < k; l++)
            for (int j = 0; j < n; j++)
                own[i * n + j] += A[i * k + l] * B[l * n + j];
    MPI_Reduce(own.data(), C.data(), m * n, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
}
#endif
