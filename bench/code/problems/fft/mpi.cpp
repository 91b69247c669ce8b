#include <cmath>
#include <complex>
#include <cstddef>
#include <mpi.h>
#include <vector>

/* Replace x by its discrete Fourier transform: x[k] becomes the sum over j of x[j] exp(-2 pi i
   j k / n), where n, a power of two, is the number of elements. Use MPI to compute in parallel.
   MPI is initialized. Every rank has the whole input; the result must be in x on rank 0.
   Example:
   input: [1, 0, 0, 0]
   output: [1, 1, 1, 1] */
void fourier(std::vector<std::complex<double>> &x) {
#ifndef WRONG
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    const size_t n = x.size();
    std::vector<std::complex<double>> own(n), all(n);
    for (size_t k = rank; k < n; k += ranks)
        for (size_t j = 0; j < n; j++)
            own[k] += x[j] * std::polar(1.0, -2 * M_PI * (j * k % n) / n);
    MPI_Reduce(own.data(), all.data(), 2 * n, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    x = all;
}
#else
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    const size_t n = x.size();
    std::vector<std::complex<double>> own(n), all(n);
    for (size_t k = rank; k < n; k += ranks)
        for (size_t j = 0; j < n; j++)
            own[k] += x[j] * std::polar(1.0, -2 * M_PI * (j * k % n) / n);
    MPI_Reduce(own.data(), all.data(), n, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    x = all;
}
#endif
