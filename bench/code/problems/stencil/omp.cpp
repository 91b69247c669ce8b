#include <cstddef>
#include <omp.h>
#include <vector>

/* u has rows x cols elements, row by row. Set each element of v, which is as large, to the mean
   of the same element of u and of its neighbours above, below, left and right; neighbours
   outside count as 0. The sum is always divided by 5. Use OpenMP to compute in parallel.
   Example:
   input: u = [5, 10, 0, 5], rows = 2, cols = 2
   output: v = [3, 4, 2, 3] */
void smooth(const std::vector<double> &u, std::vector<double> &v, int rows, int cols) {
#ifndef WRONG
    #pragma omp parallel for collapse(2)
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++) {
            const double up = i > 0 ? u[(i - 1) * cols + j] : 0, down = i + 1 < rows ? u[(i + 1) * cols + j] : 0;
            const double left = j > 0 ? u[i * cols + j - 1] : 0, right = j + 1 < cols ? u[i * cols + j + 1] : 0;
            v[i * cols + j] = (u[i * cols + j] + up + down + left + right) / 5;
        }
}
#else
    #pragma omp parallel for collapse(2)
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++) {
            const double up = i > 0 ? u[(i - 1) * cols + j] : 0, down = i + 1 < rows ? u[(i + 1) * cols + j] : 0;
            const double left = j > 0 ? u[i * cols + j - 1] : 0, right = j + 1 < cols ? u[i * cols + j + 1] : 0;
            v[i * cols + j] = (up + down + left + right) / 4;
        }
}
#endif
