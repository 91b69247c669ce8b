#include <cstddef>
#include <omp.h>
#include <vector>

/* Multiply a sparse matrix by the vector x: y = A x. Row i of A has the values value[j] in the
   columns column[j], for start[i] <= j < start[i + 1]. y has an element for each row. Use
   OpenMP to compute in parallel.
   Example:
   input: start = [0, 2, 3], column = [0, 1, 1], value = [1, 2, 3], x = [4, 5]
   output: y = [14, 15] */
void multiply_sparse(const std::vector<int> &start, const std::vector<int> &column, const std::vector<double> &value,
                     const std::vector<double> &x, std::vector<double> &y) {
#ifndef WRONG
    #pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < y.size(); i++) {
        double sum = 0;
        for (int j = start[i]; j < start[i + 1]; j++)
            sum += value[j] * x[column[j]];
        y[i] = sum;
    }
}
#else
    #pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < y.size(); i++) {
        double sum = 0;
        for (int j = start[i]; j < start[i + 1]; j++)
            sum += value[j] * x[j % x.size()];
        y[i] = sum;
    }
}
#endif
