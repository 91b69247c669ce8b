#include <cstddef>
#include <vector>

/* u has rows x cols elements, row by row. Set each element of v, which is as large, to the mean
   of the same element of u and of its neighbours above, below, left and right; neighbours
   outside count as 0. The sum is always divided by 5.
   Example:
   input: u = [5, 10, 0, 5], rows = 2, cols = 2
   output: v = [3, 4, 2, 3] */
void smooth(const std::vector<double> &u, std::vector<double> &v, int rows, int cols) {
#ifndef WRONG
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++) {
            double sum = u[i * cols + j];
            if (i > 0)
                sum += u[(i - 1) * cols + j];
            if (i + 1 < rows)
                sum += u[(i + 1) * cols + j];
            if (j > 0)
                sum += u[i * cols + j - 1];
            if (j + 1 < cols)
                sum += u[i * cols + j + 1];
            v[i * cols + j] = sum / 5;
        }
}
#else
    for (int i = 1; i + 1 < rows; i++)
        for (int j = 1; j + 1 < cols; j++)
            v[i * cols + j] = (u[i * cols + j] + u[(i - 1) * cols + j] + u[(i + 1) * cols + j] +
                               u[i * cols + j - 1] + u[i * cols + j + 1]) / 5;
}
#endif
