#include <cstddef>
#include <vector>

/* Multiply a sparse matrix by the vector x: y = A x. Row i of A has the values value[j] in the
   columns column[j], for start[i] <= j < start[i + 1]. y has an element for each row.
   Example:
   input: start = [0, 2, 3], column = [0, 1, 1], value = [1, 2, 3], x = [4, 5]
   output: y = [14, 15] */
void multiply_sparse(const std::vector<int> &start, const std::vector<int> &column, const std::vector<double> &value,
                     const std::vector<double> &x, std::vector<double> &y) {
#ifndef WRONG
    for (size_t i = 0; i < y.size(); i++) {
        y[i] = 0;
        for (int j = start[i]; j < start[i + 1]; j++)
            y[i] += value[j] * x[column[j]];
    }
}
#else
    for (size_t i = 0; i < y.size(); i++) {
        y[i] = 0;
        for (int j = start[i]; j <= start[i + 1] - 2; j++)
            y[i] += value[j] * x[column[j]];
    }
}
#endif
