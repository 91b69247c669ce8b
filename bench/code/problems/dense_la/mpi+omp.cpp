#include <cstddef>
#include <mpi.h>
#include <omp.h>
#include <vector>

/* Multiply the matrices A (m x k) and B (k x n): C = A B. All are stored row by row. C (m x n)
   is 0 at the start. Use MPI and OpenMP to compute in parallel. MPI is initialized. Every rank
   has the whole input; the result must be in C on rank 0.
   Example:
   input: A = [1, 2, 3, 4], B = [1, 0, 1, 1], m = 2, n = 2, k = 2
   output: C = [3, 2, 7, 4] */
void multiply(const std::vector<double> &A, const std::vector<double> &B, std::vector<double> &C, int m, int n,
              int k) {
#ifndef WRONG
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    std::vector<double> own(m * n);
    #pragma omp parallel for
    for (int i = 0; i < m; i++)
        for (int l = rank; l < k; l += ranks)
            for (int j = 0; j < n; j++)
                own[i * n + j] += A[i * k + l] * B[l * n + j];
    MPI_Reduce(own.data(), C.data(), m * n, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
}
#else
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    #pragma omp parallel for
    for (int i = 0; i < m; i++)
        for (int l = rank; l < k; l += ranks)
            for (int j = 0; j < n; j++)
                C[i * n + j] += A[i * k + l] * B[l * n + j];
    MPI_Barrier(MPI_COMM_WORLD);
}
#endif
