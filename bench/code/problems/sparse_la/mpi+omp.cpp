#include <cstddef>
#include <mpi.h>
#include <omp.h>
#include <vector>

/* Multiply a sparse matrix by the vector x: y = A x. Row i of A has the values value[j] in the
   columns column[j], for start[i] <= j < start[i + 1]. y has an element for each row. Use MPI
   and OpenMP to compute in parallel. MPI is initialized. Every rank has the whole input; the
   result must be in y on rank 0.
   Example:
   input: start = [0, 2, 3], column = [0, 1, 1], value = [1, 2, 3], x = [4, 5]
   output: y = [14, 15] */
void multiply_sparse(const std::vector<int> &start, const std::vector<int> &column, const std::vector<double> &value,
                     const std::vector<double> &x, std::vector<double> &y) {
#ifndef WRONG
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    std::vector<double> own(y.size());
    #pragma omp parallel for
    for (size_t i = rank; i < y.size(); i += ranks)
        for (int j = start[i]; j < start[i + 1]; j++)
            own[i] += value[j] * x[column[j]];
    MPI_Reduce(own.data(), y.data(), y.size(), MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
}
#else
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    std::vector<double> own(y.size());
    #pragma omp parallel for
    for (size_t i = rank; i < y.size(); i += ranks)
        for (int j = start[i]; j < start[i + 1]; j++)
            own[i] = value[j] * x[column[j]];
    MPI_Reduce(own.data(), y.data(), y.size(), MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
}
#endif
