#include <cmath>
#include <complex>
#include <cstddef>
#include <omp.h>
#include <vector>

/* Replace x by its discrete Fourier transform: x[k] becomes the sum over j of x[j] exp(-2 pi i
   j k / n), where n, a power of two, is the number of elements. Use OpenMP to compute in
   parallel.
   Example:
   input: [1, 0, 0, 0]
   output: [1, 1, 1, 1] */
void fourier(std::vector<std::complex<double>> &x) {
#ifndef WRONG
    const size_t n = x.size();
    for (size_t i = 1, j = 0; i < n; i++) {
        size_t bit = n >> 1;
        for (; j & bit; bit >>= 1)
            j ^= bit;
        j ^= bit;
        if (i < j)
            std::swap(x[i], x[j]);
    }
    for (size_t half = 1; half < n; half *= 2) {
        #pragma omp parallel for
        for (size_t b = 0; b < n / 2; b++) {
            const size_t i = b / half * 2 * half + b % half;
            const std::complex<double> even = x[i], odd = x[i + half] * std::polar(1.0, -M_PI * (b % half) / half);
            x[i] = even + odd;
            x[i + half] = even - odd;
        }
    }
}
#else
    const size_t n = x.size();
    for (size_t i = 1, j = 0; i < n; i++) {
        size_t bit = n >> 1;
        for (; j & bit; bit >>= 1)
            j ^= bit;
        j ^= bit;
        if (i < j)
            std::swap(x[i], x[j]);
    }
    for (size_t half = 1; half < n; half *= 2) {
        #pragma omp parallel for
        for (size_t b = 0; b < n / 2; b++) {
            const size_t i = b / half * 2 * half + b % half;
            const std::complex<double> even = x[i], odd = x[i + half] * std::polar(1.0, -M_PI * (b % half) / half);
            x[i] = even + odd;
            x[i + half] = even + odd;
        }
    }
}
#endif
