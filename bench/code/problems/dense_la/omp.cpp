#include <cstddef>
#include <omp.h>
#include <vector>

/* Multiply the matrices A (m x k) and B (k x n): C = A B. All are stored row by row. C (m x n)
   is 0 at the start. Use OpenMP to compute in parallel.
   Example:
   input: A = [1, 2, 3, 4], B = [1, 0, 1, 1], m = 2, n = 2, k = 2
   output: C = [3, 2, 7, 4] */
void multiply(const std::vector<double> &A, const std::vector<double> &B, std::vector<double> &C, int m, int n,
              int k) {
#ifndef WRONG
    #pragma omp parallel for
    for (int i = 0; i < m; i++)
        for (int l = 0; l < k; l++)
            for (int j = 0; j < n; j++)
                C[i * n + j] += A[i * k + l] * B[l * n + j];
}
#else
    for (int i = 0; i < m; i++)
        for (int l = 0; l < k; l++)
            for (int j = 0; j < n; j++)
                C[i * n + j] += A[i * k + l] * B[l * n + j];
}
#endif
