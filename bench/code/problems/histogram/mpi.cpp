#include <cstddef>
#include <mpi.h>
#include <vector>

/* Count how often each last decimal digit occurs: count[d] becomes the number of elements of x,
   none of which is negative, whose last digit is d. count has 10 elements, which are 0 at the
   start. Use MPI to compute in parallel. MPI is initialized. Every rank has the whole input;
   the result must be in count on rank 0.
   Example:
   input: [10, 21, 31, 7]
   output: [1, 2, 0, 0, 0, 0, 0, 1, 0, 0] */
void count_last_digits(const std::vector<int> &x, std::vector<int> &count) {
#ifndef WRONG
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    std::vector<int> own(10);
    for (size_t i = rank; i < x.size(); i += ranks)
        own[x[i] % 10]++;
    MPI_Reduce(own.data(), count.data(), 10, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
}
#else
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    std::vector<int> own(10);
    for (size_t i = rank; i < x.size(); i += ranks)
        own[x[i] % 10]++;
    MPI_Reduce(own.data(), count.data(), 10, MPI_INT, MPI_MAX, 0, MPI_COMM_WORLD);
}
#endif
